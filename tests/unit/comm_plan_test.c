/* The plan, on CPU ranks that pretend to have ways with times of their own: all ranks choose the
 * fastest by the slowest rank, operations then go that way, the time is bounded, and a rank that
 * cannot measure fails all. */
#include "comm_ranks.h"

enum { P = 3, WAYS = 1024, WIDTH = 512, LONG_MS = 60000, LONG_ROWS = 200 };
enum { FAST = WEFT__FORMS * 1 + 1, SLOW = WEFT__FORMS * 2 + 1 };
enum { PLACED = WEFT__FORMS * 2 + WEFT__FORM_PLACED }; /* the fastest */

/* ---- a device with ways: the CPU's, which notes what it is asked for ---- */

static _Thread_local struct {
    int rank;
    uint32_t way; /* of the last operation */
    bool two_shot;
    int runs;
} mine;

static int failing_rank = -1, slow_ms;

static weft_status fake_open(const struct weft__comm_link *link, bool portable,
                             struct weft__comm_kernels **out, weft_error *err)
{
    mine.rank = link->world_rank[link->rank];
    mine.runs = 0;
    return weft__cpu_comm.open(link, portable, out, err);
}

static void fake_close(struct weft__comm_kernels *k) { weft__cpu_comm.close(k); }

static void fake_reduce(struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args)
{
    mine.way = args->way;
    mine.two_shot = args->post.two_shot != 0;
    weft__cpu_comm.reduce(k, args);
}

static void fake_move(struct weft__comm_kernels *k, const struct weft__comm_move_args *args)
{
    if (args->post.op != WEFT__BARRIER) mine.way = args->way;
    weft__cpu_comm.move(k, args);
}

static void *fake_stream(const struct weft__comm_kernels *k) { return weft__cpu_comm.stream(k); }

static void fake_sync(struct weft__comm_kernels *k) { weft__cpu_comm.sync(k); }

static void fake_release(struct weft__comm_rank *control) { weft__cpu_comm.release(control); }

static bool offers(const struct weft__comm_kernels *k, uint32_t way, enum weft__comm_op op,
                   uint64_t bytes, bool two_shot)
{
    (void)k, (void)bytes, (void)two_shot;
    return way == SLOW || (way == FAST && op != WEFT__BROADCAST) ||
           (way == PLACED && op == WEFT__ALLREDUCE);
}

static const char *form(uint32_t way)
{
    return way == FAST ? "fast" : way == SLOW ? "slow" : "in place";
}

static weft_status memory_take(struct weft__comm_kernels *k, size_t bytes, void **out,
                               weft_error *err)
{
    (void)k;
    *out = calloc(1, bytes);
    return *out != NULL ? WEFT_OK : weft__fail_oom(err, bytes, "a test");
}

static void memory_give(struct weft__comm_kernels *k, void *memory)
{
    (void)k;
    free(memory);
}

static void *memory_placed(const struct weft__comm_kernels *k)
{
    static uint8_t memory[WEFT_COMM_MESSAGE_MIN]; /* zeros, which all ranks only read */
    (void)k;
    return memory;
}

static weft_status begin(struct weft__comm_kernels *k, weft_error *err)
{
    (void)k, (void)err;
    return WEFT_OK;
}

static weft_status end(struct weft__comm_kernels *k, weft_error *err)
{
    (void)k;
    if (mine.rank != failing_rank) return WEFT_OK;
    return weft__fail(err, WEFT_DEVICE, "rank %d has no graph", mine.rank);
}

/* The fast way is slow on rank 2 when it is two-shot, and on the other ranks for none. The first
 * of four runs does not count. */
static weft_status run(struct weft__comm_kernels *k, float *us, weft_error *err)
{
    (void)k, (void)err;
    mine.runs++;
    if (slow_ms > 0) sleep_ms(slow_ms);
    *us = mine.way == FAST ? 8 : mine.way == PLACED ? 4 : 16;
    if (mine.two_shot) *us = mine.rank == 2 ? 80 : 1;
    if (mine.way == SLOW && mine.runs % 4 == 1) *us = 0.1f;
    return WEFT_OK;
}

static void drop(struct weft__comm_kernels *k) { (void)k; }

static const struct weft__dev_trial fake_trial = {.offers = offers,
                                                  .form = form,
                                                  .memory_take = memory_take,
                                                  .memory_give = memory_give,
                                                  .memory_placed = memory_placed,
                                                  .begin = begin,
                                                  .mark = begin,
                                                  .end = end,
                                                  .run = run,
                                                  .drop = drop};

static uint8_t *fake_heap(const struct weft__comm_kernels *k) { return weft__cpu_comm.heap(k); }

static const struct weft__dev_comm fake = {.name = "fake",
                                           .release = fake_release,
                                           .open = fake_open,
                                           .close = fake_close,
                                           .reduce = fake_reduce,
                                           .move = fake_move,
                                           .heap = fake_heap,
                                           .stream = fake_stream,
                                           .sync = fake_sync,
                                           .trial = &fake_trial,
                                           .two_shot_ranks = 2};

/* ---- ranks ---- */

struct seen {
    int count[P], runs[P];
    uint32_t way[P], heap_way[P], twin_way[P]; /* x in the heap; and y the same */
    uint32_t long_way[P];                      /* of a size that was not measured */
    bool two_shot[P], group_two_shot[P];
    uint64_t operations[P]; /* counted before the first */
    weft_comm_way ways[P][WAYS];
};

static weft_status look(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    struct seen *seen = arg;
    float x[WIDTH], y[WIDTH];
    weft_comm_stats stats;
    weft_comm_get_stats(comm, &stats);
    seen->operations[rank] = stats.operations;
    seen->runs[rank] = mine.runs;
    seen->count[rank] = weft_comm_plan(comm, seen->ways[rank], WAYS);
    for (int i = 0; i < WIDTH; i++) x[i] = (float)(i + rank);
    weft_reduce op = {.tokens = 1, .hidden = WIDTH, .dtype = WEFT_F32, .x = x, .y = y};
    WEFT__TRY(weft_comm_allreduce(comm, &op, err));
    seen->way[rank] = mine.way;
    seen->two_shot[rank] = mine.two_shot;
    for (int i = 0; i < WIDTH; i++)
        if (y[i] != (float)(P * i + P * (P - 1) / 2))
            return weft__fail(err, WEFT_INTERNAL, "element %d is %g", i, (double)y[i]);
    void *heap;
    WEFT__TRY(weft_comm_heap_alloc(comm, sizeof x, &heap, err));
    op.x = heap;
    WEFT__TRY(weft_comm_allreduce(comm, &op, err));
    seen->heap_way[rank] = mine.way;
    op.y = heap;
    WEFT__TRY(weft_comm_allreduce(comm, &op, err));
    seen->twin_way[rank] = mine.way;
    static const float zeros[LONG_ROWS * WIDTH];
    static _Thread_local float sums[LONG_ROWS * WIDTH];
    op = (weft_reduce){
        .tokens = LONG_ROWS, .hidden = WIDTH, .dtype = WEFT_F32, .x = zeros, .y = sums};
    WEFT__TRY(weft_comm_allreduce(comm, &op, err));
    seen->long_way[rank] = mine.way;
    weft_comm *group;
    WEFT__TRY(weft_comm_split(comm, rank == 0, rank, &group, err));
    WEFT__TRY(weft_comm_allreduce(group, &op, err));
    seen->group_two_shot[rank] = mine.two_shot;
    return WEFT_OK;
}

static weft_world *fake_world(weft_algorithm algorithm, int plan_ms)
{
    weft_world *world = world_of((weft_world_options){.size = P,
                                                      .message_bytes = WEFT_COMM_MESSAGE_MIN,
                                                      .heap_bytes = 8 << 20,
                                                      .timeout_ms = 20000,
                                                      .algorithm = algorithm},
                                 (struct weft__tuning){.plan_ms = plan_ms});
    world->dev = &fake;
    return world;
}

static void run_ranks(weft_world *world, struct seen *seen, struct rank_result *results)
{
    memset(seen, 0, sizeof *seen);
    ranks_run_some(world, all_ranks(P), look, seen, results);
}

static void expect_success(const struct rank_result *results)
{
    for (int r = 0; r < P; r++)
        if (results[r].status != WEFT_OK) fail_msg("rank %d: %s", r, results[r].err.text);
}

/* ---- tests ---- */

static void slowest_rank_decides(void **state)
{
    (void)state;
    static struct seen seen;
    struct rank_result results[WEFT__MAX_RANKS];
    weft_world *world = fake_world(WEFT_ALGORITHM_AUTO, LONG_MS);
    run_ranks(world, &seen, results);
    expect_success(results);
    assert_int_equal(seen.count[0], 3 * 6 + 3 * (2 + 1 + 2)); /* sizes of a short message */
    for (int r = 0; r < P; r++) {
        assert_int_equal(seen.way[r], FAST);
        assert_int_equal(seen.heap_way[r], PLACED);
        assert_int_equal(seen.twin_way[r], FAST);
        assert_int_equal(seen.long_way[r], FAST);
        assert_int_equal(seen.group_two_shot[r], r != 0); /* as unmeasured; rank 0 is alone */
        assert_int_equal(seen.operations[r], 0);
        assert_false(seen.two_shot[r]); /* unmeasured it would be */
        assert_int_equal(seen.count[r], seen.count[0]);
        for (int i = 0; i < seen.count[0]; i++) {
            const weft_comm_way *way = &seen.ways[r][i];
            bool one = way->algorithm == WEFT_ALGORITHM_ONE_SHOT;
            bool broadcast = strcmp(way->op, "broadcast") == 0;
            bool fast = strcmp(way->form, "fast") == 0, placed = strcmp(way->form, "in place") == 0;
            assert_int_equal(way->chosen, one && (fast || placed || broadcast));
            assert_true(way->us > 0 && way->us == seen.ways[0][i].us);
            assert_int_equal(way->path, weft__way_path(fast ? FAST : SLOW));
        }
    }
    weft_world_destroy(world);
}

static void algorithm_that_was_asked_for_is_kept(void **state)
{
    (void)state;
    static struct seen seen;
    struct rank_result results[WEFT__MAX_RANKS];
    weft_world *world = fake_world(WEFT_ALGORITHM_TWO_SHOT, LONG_MS);
    run_ranks(world, &seen, results);
    expect_success(results);
    for (int r = 0; r < P; r++) assert_true(seen.two_shot[r]);
    for (int i = 0; i < seen.count[0]; i++)
        if (strcmp(seen.ways[0][i].op, "allreduce") == 0)
            assert_int_equal(seen.ways[0][i].algorithm, WEFT_ALGORITHM_TWO_SHOT);
    weft_world_destroy(world);
}

static void measuring_ends(void **state)
{
    (void)state;
    static struct seen seen;
    struct rank_result results[WEFT__MAX_RANKS];
    weft_world *world = fake_world(WEFT_ALGORITHM_AUTO, 200);
    slow_ms = 60; /* a way takes 240 ms */
    run_ranks(world, &seen, results);
    slow_ms = 0;
    expect_success(results);
    for (int r = 0; r < P; r++) {
        assert_int_equal(seen.count[r], 1);
        assert_int_equal(seen.runs[r], 4);
    }
    weft_world_destroy(world);
}

static void rank_that_cannot_measure_fails_all(void **state)
{
    (void)state;
    static struct seen seen;
    struct rank_result results[WEFT__MAX_RANKS];
    weft_world *world = fake_world(WEFT_ALGORITHM_AUTO, LONG_MS);
    failing_rank = 1;
    run_ranks(world, &seen, results);
    failing_rank = -1;
    assert_int_equal(results[1].status, WEFT_DEVICE);
    for (int r = 0; r < P; r += 2) {
        assert_int_equal(results[r].status, WEFT_PEER);
        assert_non_null(strstr(results[r].err.text, "rank 1"));
    }
    run_ranks(world, &seen, results); /* and the world opens again */
    expect_success(results);
    weft_world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slowest_rank_decides),
        cmocka_unit_test(algorithm_that_was_asked_for_is_kept),
        cmocka_unit_test(measuring_ends),
        cmocka_unit_test(rank_that_cannot_measure_fails_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
