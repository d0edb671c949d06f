/* Every failure ends within its deadline, names the rank to blame on all ranks, and the world can
 * be opened again. */
#include "comm_ranks.h"

enum { BUDGET_MS = 500, LATE_MS = 100, HIDDEN = 64 };

static weft_world *short_world(int size)
{
    return world_of((weft_world_options){.size = size, .timeout_ms = BUDGET_MS},
                    (struct weft__tuning){0});
}

static weft_status sum_ones(weft_comm *comm, int64_t tokens, weft_error *err)
{
    float x[4 * HIDDEN], y[4 * HIDDEN];
    for (int64_t i = 0; i < tokens * HIDDEN; i++) x[i] = 1.0f;
    weft_reduce op = {.tokens = tokens, .hidden = HIDDEN, .dtype = WEFT_F32, .x = x, .y = y};
    WEFT__TRY(weft_comm_allreduce(comm, &op, err));
    for (int64_t i = 0; i < tokens * HIDDEN; i++)
        if (y[i] != (float)weft_comm_size(comm))
            return weft__fail(err, WEFT_INTERNAL, "sum of ones is %g", (double)y[i]);
    return WEFT_OK;
}

static weft_status sum_once(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)rank, (void)arg;
    return sum_ones(comm, 2, err);
}

/* A failed world serves again. */
static void assert_reopens(weft_world *world, int size)
{
    ranks_succeed(world, size, sum_once, NULL);
    weft_world_destroy(world);
}

static void assert_error(const struct rank_result *result, weft_status status, const char *text)
{
    if (result->status != status || strstr(result->err.text, text) == NULL)
        fail_msg("status %d (%s), expected %d with \"%s\"", result->status, result->err.text,
                 status, text);
    assert_null(strchr(result->err.text, '\n'));
}

/* ---- opening ---- */

/* Ranks 0 and 2, which comes late: who gives up first ends it for both. */
static void missing_rank_is_named_at_open(void **state)
{
    (void)state;
    weft_world *world = short_world(4);
    struct rank_result results[WEFT__MAX_RANKS] = {0};
    struct rank_thread two[2] = {{world, 0, sum_once, NULL, &results[0], 0},
                                 {world, 2, sum_once, NULL, &results[2], 0}};
    uint64_t start = weft__now_ns();
    for (int i = 0; i < 2; i++) {
        if (i == 1) sleep_ms(BUDGET_MS * 3 / 4);
        if (pthread_create(&two[i].thread, NULL, rank_main, &two[i]) != 0) abort();
    }
    for (int i = 0; i < 2; i++) (void)pthread_join(two[i].thread, NULL);
    assert_true(weft__now_ns() - start < (uint64_t)(BUDGET_MS + 5 * LATE_MS) * 1000000);
    assert_error(&results[0], WEFT_TIMEOUT, "rank 1, 3 of 4 did not open within 500 ms");
    assert_error(&results[2], WEFT_TIMEOUT, "rank 1, 3 of 4 did not open within 500 ms");
    ranks_run_some(world, 0xa, sum_once, NULL, results); /* too late: the others have left */
    assert_error(&results[1], WEFT_TIMEOUT, "rank 0, 2 of 4");
    assert_reopens(world, 4);
}

static weft_status sum_and_linger(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)arg;
    weft_status status = sum_ones(comm, 2, err);
    if (rank == 1) sleep_ms(50);
    return status;
}

static void *rank_twice(void *arg)
{
    struct rank_thread *self = arg;
    (void)rank_main(self);
    if (self->result->status == WEFT_OK) (void)rank_main(self);
    return NULL;
}

static void rank_opens_again_before_the_other_has_closed(void **state)
{
    (void)state;
    weft_world *world = short_world(2);
    struct rank_result results[2] = {0};
    struct rank_thread two[2];
    for (int r = 0; r < 2; r++) {
        two[r] = (struct rank_thread){world, r, sum_and_linger, NULL, &results[r], 0};
        if (pthread_create(&two[r].thread, NULL, rank_twice, &two[r]) != 0) abort();
    }
    for (int r = 0; r < 2; r++) (void)pthread_join(two[r].thread, NULL);
    for (int r = 0; r < 2; r++)
        if (results[r].status != WEFT_OK) fail_msg("rank %d: %s", r, results[r].err.text);
    weft_world_destroy(world);
}

/* Once for each attempt: rank 0 has heard of it, rank 2 has not and does when it comes. */
static void rank_without_memory_is_named_at_open(void **state)
{
    (void)state;
    weft_world *world = short_world(3);
    struct rank_result results[WEFT__MAX_RANKS];
    weft__session_starve(world, 1);
    ranks_run_some(world, 0x1, sum_once, NULL, results);
    assert_error(&results[0], WEFT_NO_MEMORY, "rank 1 of 3 ran out of memory");
    ranks_run_some(world, 0x4, sum_once, NULL, results);
    assert_error(&results[2], WEFT_NO_MEMORY, "rank 1 of 3 ran out of memory");
    assert_reopens(world, 3);
}

static bool somebody_waits(weft_world *world)
{
    (void)pthread_mutex_lock(&world->mutex);
    bool waits = world->current != NULL;
    (void)pthread_mutex_unlock(&world->mutex);
    return waits;
}

static void *open_rank_0(void *arg)
{
    static struct rank_result result;
    weft_comm *comm = NULL;
    result.status = weft_comm_open(arg, 0, &comm, &result.err);
    if (result.status == WEFT_OK) result.status = sum_ones(comm, 1, &result.err);
    weft_comm_close(comm);
    return &result;
}

static void rank_opens_once(void **state)
{
    (void)state;
    weft_world *world = world_of((weft_world_options){.size = 2}, (struct weft__tuning){0});
    pthread_t thread;
    void *result;
    weft_comm *comm = NULL;
    weft_error err;
    assert_int_equal(pthread_create(&thread, NULL, open_rank_0, world), 0);
    while (!somebody_waits(world)) sleep_ms(1);
    assert_int_equal(weft_comm_open(world, 0, &comm, &err), WEFT_INVALID);
    assert_string_equal(err.text, "rank 0 is open already");
    assert_int_equal(weft_comm_open(world, 2, &comm, &err), WEFT_INVALID);
    assert_int_equal(weft_comm_open(world, 1, &comm, &err), WEFT_OK);
    weft_world_destroy(world); /* the open communicators keep it */
    assert_int_equal(sum_ones(comm, 1, &err), WEFT_OK);
    weft_comm_close(comm);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_int_equal(((struct rank_result *)result)->status, WEFT_OK);
}

static void wrong_options(void **state)
{
    (void)state;
    static const weft_world_options wrong[] = {
        {.size = 0},
        {.size = -1},
        {.size = 17},
        {.size = 2, .algorithm = (weft_algorithm)3},
        {.size = 2, .message_bytes = 4096},
        {.size = 2, .message_bytes = SIZE_MAX},
        {.size = 2, .heap_bytes = SIZE_MAX},
    };
    for (size_t i = 0; i < WEFT__COUNT(wrong); i++) {
        weft_world *world = NULL;
        weft_error err;
        assert_int_equal(weft_world_create(&wrong[i], &world, &err), WEFT_INVALID);
        assert_null(world);
    }
    weft_error none;
    assert_int_equal(weft_world_create(NULL, &(weft_world *){NULL}, &none), WEFT_INVALID);
    weft_world_destroy(NULL);
    weft_comm_close(NULL);
    /* Memory that cannot be had is said at open. */
    weft_world *world = world_of(
        (weft_world_options){.size = 1, .message_bytes = (size_t)1 << 40, .heap_bytes = 1 << 20},
        (struct weft__tuning){0});
    for (int i = 0; i < 2; i++) {
        weft_comm *comm = NULL;
        weft_error err = {0};
        weft_status status = weft_comm_open(world, 0, &comm, &err);
        if (status != WEFT_OK) assert_int_equal(status, WEFT_NO_MEMORY);
        weft_comm_close(comm);
    }
    weft_world_destroy(world);
}

/* ---- silence, death, disagreement ---- */

enum deed { STAYS_SILENT, CLOSES, ABORTS, SHOWS_LIFE };

struct misdeed {
    int rank;
    enum deed deed;
    weft_comm_failure failure[WEFT__MAX_RANKS];
    uint64_t late_ns[WEFT__MAX_RANKS]; /* from the start of the wait to the error */
};

static weft_status misbehave(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    struct misdeed *misdeed = arg;
    WEFT__TRY(weft_comm_barrier(comm, err));
    sleep_ms(LATE_MS); /* all have left the barrier */
    uint64_t start = weft__now_ns();
    if (rank == misdeed->rank) {
        if (misdeed->deed == CLOSES) return WEFT_OK;
        if (misdeed->deed == ABORTS) weft_comm_abort(comm, "no memory\nfor layer 3");
        if (misdeed->deed == STAYS_SILENT) sleep_ms(BUDGET_MS + 3 * LATE_MS);
        for (int i = 0; i < 30 && misdeed->deed == SHOWS_LIFE; i++) {
            sleep_ms(BUDGET_MS / 10);
            weft_comm_heartbeat(comm);
        }
    }
    weft_status status = sum_ones(comm, 3, err);
    misdeed->late_ns[rank] = weft__now_ns() - start;
    (void)weft_comm_failed(comm, &misdeed->failure[rank]);
    if (status != WEFT_OK) { /* and from now on the same error */
        weft_error again = {0};
        if (weft_comm_barrier(comm, &again) != status || strcmp(again.text, err->text) != 0)
            return weft__fail(err, WEFT_INTERNAL, "a second error: %s", again.text);
    }
    return status;
}

static void silent_rank_is_named_in_time(void **state)
{
    (void)state;
    for (int p = 2; p <= 8; p += 3) {
        bool in_time = false;
        for (int attempt = 0; attempt < 3 && !in_time;
             attempt++) { /* other programs may delay us */
            weft_world *world = short_world(p);
            struct misdeed misdeed = {.rank = p - 1, .deed = STAYS_SILENT};
            struct rank_result results[WEFT__MAX_RANKS];
            ranks_run_some(world, all_ranks(p), misbehave, &misdeed, results);
            char text[80];
            (void)snprintf(text, sizeof text, "allreduce: rank %d gave no sign of life for 500 ms",
                           p - 1);
            in_time = true;
            for (int r = 0; r < p; r++) {
                assert_error(&results[r], WEFT_TIMEOUT, text);
                assert_int_equal(misdeed.failure[r].peer, p - 1);
                assert_string_equal(misdeed.failure[r].op, "allreduce");
                assert_string_equal(misdeed.failure[r].phase, "input");
                assert_true(misdeed.failure[r].elapsed_ns >= (uint64_t)BUDGET_MS * 1000000);
                in_time = in_time &&
                          (r == p - 1 || misdeed.late_ns[r] < (BUDGET_MS + LATE_MS) * 1000000ull);
            }
            assert_reopens(world, p);
        }
        assert_true(in_time);
    }
}

static void slow_rank_is_waited_for(void **state)
{
    (void)state;
    weft_world *world = short_world(3);
    struct misdeed misdeed = {.rank = 1, .deed = SHOWS_LIFE};
    ranks_succeed(world, 3, misbehave, &misdeed);
    assert_true(misdeed.late_ns[0] > 2ull * BUDGET_MS * 1000000);
    assert_reopens(world, 3);
}

static void closing_and_aborting_ranks_are_named(void **state)
{
    (void)state;
    for (int deed = CLOSES; deed <= ABORTS; deed++) {
        weft_world *world = world_of((weft_world_options){.size = 4}, (struct weft__tuning){0});
        struct misdeed misdeed = {.rank = 2, .deed = (enum deed)deed};
        struct rank_result results[WEFT__MAX_RANKS];
        ranks_run_some(world, all_ranks(4), misbehave, &misdeed, results);
        for (int r = 0; r < 4; r++) {
            if (r == 2 && deed == CLOSES) continue;
            assert_error(&results[r], WEFT_PEER,
                         deed == CLOSES ? "allreduce: rank 2 closed its communicator"
                                        : "rank 2 gave up: no memory for layer 3");
            assert_int_equal(misdeed.failure[r].peer, 2);
            assert_true(misdeed.late_ns[r] < 5000ull * 1000000); /* not the 30 s of a time-out */
        }
        assert_reopens(world, 4);
    }
}

static weft_status disagree(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    int kind = *(const int *)arg;
    static float x[4 * HIDDEN];
    float y[4 * HIDDEN];
    uint8_t codes[4 * HIDDEN], data[100], all[300];
    const size_t sizes[2] = {100, 200 - (size_t)rank};
    weft_reduce op = {.tokens = 2, .hidden = HIDDEN, .dtype = WEFT_F32, .x = x, .y = y};
    weft_gather gather = {.rows = 1, .row_bytes_of = sizes, .in = x, .out = all};
    weft_broadcast broadcast = {.root = rank, .bytes = 100, .data = data};
    switch (kind) {
    case 0:
        return rank == 0 ? weft_comm_barrier(comm, err) : weft_comm_allreduce(comm, &op, err);
    case 1:
        op.tokens -= rank;
        break;
    case 2:
        op.hidden -= 8 * rank;
        break;
    case 3:
        op.dtype = rank == 0 ? WEFT_F32 : WEFT_F16;
        break;
    case 4:
        op.norm = rank == 0;
        break;
    case 5:
        op.norm = true, op.norm_eps = rank == 0 ? 1e-5f : 1e-6f;
        break;
    case 6:
        op.quant = (weft_quant){rank == 0 ? WEFT_QUANT_FP8_TENSOR : 0, 1.0f, codes, NULL};
        break;
    case 7:
        op.residual = rank == 0 ? x : NULL;
        break;
    case 8:
        return rank == 0 ? weft_comm_reduce_scatter(comm, &op, err)
                         : weft_comm_allreduce(comm, &op, err);
    case 9:
        return weft_comm_all_gather(comm, &gather, err);
    case 10:
        op.tokens = rank == 0 ? 0 : 1;
        break;
    default: /* two roots */
        return weft_comm_broadcast(comm, &broadcast, err);
    }
    return weft_comm_allreduce(comm, &op, err);
}

static void disagreement_is_described(void **state)
{
    (void)state;
    static const char *const texts[] = {"called barrier",        "[1, 64] F32",
                                        "[2, 56] F32",           "[2, 64] F16",
                                        "with other options",    "with other options",
                                        "with other options",    "with other options",
                                        "called reduce_scatter", "all_gather of 1 x 299 bytes",
                                        "[0, 64] F32",           ""};
    for (int kind = 0; kind < (int)WEFT__COUNT(texts); kind++) {
        weft_world *world = short_world(2);
        struct rank_result results[WEFT__MAX_RANKS];
        ranks_run_some(world, 3, disagree, &kind, results);
        for (int r = 0; r < 2; r++) assert_error(&results[r], WEFT_INVALID, texts[kind]);
        assert_reopens(world, 2);
    }
}

/* ---- who is to blame when ranks wait in different groups ---- */

/* Ranks 0 and 1, then ranks 1 and 2, make a group. 0 waits for 1, which waits for 2, which sleeps.
 */
static weft_status wait_in_a_chain(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    weft_comm_failure *failures = arg;
    weft_comm *low, *high;
    WEFT__TRY(weft_comm_split(comm, rank < 2 ? 0 : -1, 0, &low, err));
    WEFT__TRY(weft_comm_split(comm, rank > 0 ? 0 : -1, 0, &high, err));
    WEFT__TRY(weft_comm_barrier(comm, err));
    weft_status status = WEFT_OK;
    if (rank == 2) sleep_ms(2 * BUDGET_MS);
    if (rank == 1) { /* later than rank 0, so that a plain budget would blame 1 */
        sleep_ms(BUDGET_MS / 3);
        status = sum_ones(high, 1, err);
    }
    if (rank == 0) status = sum_ones(low, 1, err);
    if (rank == 2) status = sum_ones(high, 1, err);
    (void)weft_comm_failed(comm, &failures[rank]);
    return status;
}

static void chain_of_waits_blames_its_end(void **state)
{
    (void)state;
    weft_world *world = short_world(3);
    weft_comm_failure failures[3] = {0};
    struct rank_result results[WEFT__MAX_RANKS];
    ranks_run_some(world, 7, wait_in_a_chain, failures, results);
    for (int r = 0; r < 3; r++) {
        assert_error(&results[r], WEFT_TIMEOUT, "rank 2 gave no sign of life");
        assert_int_equal(failures[r].peer, 2);
    }
    assert_reopens(world, 3);
}

static weft_status wait_in_a_circle(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)arg;
    weft_comm *group;
    WEFT__TRY(weft_comm_split(comm, 0, 0, &group, err));
    return sum_ones(rank == 0 ? comm : group, 1, err);
}

static void circle_of_waits_ends(void **state)
{
    (void)state;
    weft_world *world = short_world(2);
    struct rank_result results[WEFT__MAX_RANKS];
    ranks_run_some(world, 3, wait_in_a_circle, NULL, results);
    for (int r = 0; r < 2; r++) {
        assert_error(&results[r], WEFT_TIMEOUT, "wait for each other");
        assert_non_null(strstr(results[r].err.text, "rank 0"));
        assert_non_null(strstr(results[r].err.text, "rank 1"));
    }
    assert_reopens(world, 2);
}

/* ---- wrong arguments: refused before anything is sent, so the communicator stays good ---- */

static weft_status expect_refusal(weft_status got, weft_error *err, const char *text)
{
    if (got == WEFT_INVALID && strstr(err->text, text) != NULL) return WEFT_OK;
    weft_error was = *err;
    return weft__fail(err, WEFT_INTERNAL, "status %d, \"%.200s\" instead of \"%s\"", got, was.text,
                      text);
}

static weft_status refuse_reductions(weft_comm *comm, weft_error *err)
{
    static float x[4 * HIDDEN], y[4 * HIDDEN], w[4 * HIDDEN];
    static int32_t slots[4];
    const weft_reduce good = {.tokens = 2, .hidden = HIDDEN, .dtype = WEFT_F32, .x = x, .y = y};
    const weft_moe moe = {
        .top_k = 1, .expert_rows = 1, .expert_out = x, .slots = slots, .gates = w};
    struct {
        weft_reduce op;
        const char *text;
    } cases[24];
    size_t n = 0;
#define WRONG(message, ...)        \
    do {                           \
        weft_reduce op = good;     \
        __VA_ARGS__;               \
        cases[n].op = op;          \
        cases[n++].text = message; \
    } while (0)
    WRONG("tokens is negative", op.tokens = -1);
    WRONG("hidden must be", op.hidden = 12);
    WRONG("hidden must be", op.hidden = 0);
    WRONG("hidden must be", op.hidden = WEFT_COMM_HIDDEN_MAX + 8);
    WRONG("dtype must be", op.dtype = WEFT_F64);
    WRONG("too large", op.tokens = INT64_MAX);
    WRONG("x is missing", op.x = NULL);
    WRONG("x and moe", op.moe = moe);
    WRONG("moe needs", op.x = NULL, op.moe = moe, op.moe.gates = NULL);
    WRONG("moe: sizes", op.x = NULL, op.moe = moe, op.moe.expert_rows = INT64_MAX);
    WRONG("moe: sizes", op.x = NULL, op.moe = moe, op.moe.top_k = INT64_MAX);
    WRONG("moe: a negative", op.x = NULL, op.moe = moe, op.moe.top_k = -1);
    WRONG("unknown kind", op.quant.kind = (weft_quant_kind)7);
    WRONG("codes is missing", op.quant = (weft_quant){WEFT_QUANT_FP8_TENSOR, 1.0f, NULL, NULL});
    WRONG("scales is missing", op.quant = (weft_quant){WEFT_QUANT_FP8_TOKEN, 1.0f, w, NULL});
    WRONG("scale must be", op.quant = (weft_quant){WEFT_QUANT_FP8_TENSOR, 0.0f, w, NULL});
    WRONG("scale must be", op.quant = (weft_quant){WEFT_QUANT_NVFP4, NAN, w, w + 32});
    WRONG("multiple of 16", op.hidden = 56,
          op.quant = (weft_quant){WEFT_QUANT_NVFP4, 1.0f, w, w + 32});
    WRONG("norm_eps", op.norm = true, op.norm_eps = -1.0f);
    WRONG("norm is false", op.norm_weight = w);
    WRONG("y overlaps x", op.y = x + 1);
    WRONG("residual_out overlaps y", op.residual_out = y);
    WRONG("residual_out overlaps residual", op.residual = w, op.residual_out = w + 4);
    WRONG("y overlaps quant.codes", op.quant = (weft_quant){WEFT_QUANT_FP8_TENSOR, 1.0f, y, NULL});
#undef WRONG
    for (size_t i = 0; i < n; i++)
        WEFT__TRY(expect_refusal(weft_comm_allreduce(comm, &cases[i].op, err), err, cases[i].text));
    return WEFT_OK;
}

static weft_status refuse_moves(weft_comm *comm, weft_error *err)
{
    char in[64], out[200];
    weft_gather gather = {.rows = -1, .row_bytes = 8, .in = in, .out = out};
    WEFT__TRY(expect_refusal(weft_comm_all_gather(comm, &gather, err), err, "rows is negative"));
    gather.rows = 1, gather.row_bytes = SIZE_MAX / 2;
    WEFT__TRY(expect_refusal(weft_comm_all_gather(comm, &gather, err), err, "too large"));
    gather.row_bytes = 8, gather.in = out + 4;
    WEFT__TRY(expect_refusal(weft_comm_all_gather(comm, &gather, err), err, "out overlaps in"));
    gather.in = NULL;
    WEFT__TRY(expect_refusal(weft_comm_all_gather(comm, &gather, err), err, "missing"));
    weft_broadcast broadcast = {.root = 2, .bytes = 1, .data = in};
    WEFT__TRY(expect_refusal(weft_comm_broadcast(comm, &broadcast, err), err, "no such root"));
    broadcast.root = 0, broadcast.data = NULL;
    return expect_refusal(weft_comm_broadcast(comm, &broadcast, err), err, "data is missing");
}

/* A buffer of weft_comm_input serves the next operation and no other. */
static weft_status refuse_outdated_input(weft_comm *comm, weft_error *err)
{
    static const char outdated[] = "call weft_comm_input before";
    float y[HIDDEN];
    void *x;
    weft_reduce op = {.tokens = 1, .hidden = HIDDEN, .dtype = WEFT_F32, .y = y};
    WEFT__TRY(weft_comm_input(comm, sizeof y, &x, err));
    memset(x, 0, sizeof y);
    op.x = x;
    WEFT__TRY(weft_comm_allreduce(comm, &op, err));
    for (int i = 0; i < 3; i++) {
        WEFT__TRY(expect_refusal(weft_comm_allreduce(comm, &op, err), err, outdated));
        WEFT__TRY(weft_comm_barrier(comm, err));
    }
    WEFT__TRY(weft_comm_input(comm, sizeof y, &x, err));
    op.x = (char *)x + 64;
    WEFT__TRY(expect_refusal(weft_comm_allreduce(comm, &op, err), err, outdated));
    op.x = y, op.y = x;
    WEFT__TRY(expect_refusal(weft_comm_allreduce(comm, &op, err), err, "y overlaps the buffers"));
    if (weft_comm_input(comm, (1 << 20) + 1, &x, err) != WEFT_TOO_LONG)
        return weft__fail(err, WEFT_INTERNAL, "an input beyond a message");
    return WEFT_OK;
}

static weft_status refuse_everything(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)rank, (void)arg;
    WEFT__TRY(refuse_reductions(comm, err));
    WEFT__TRY(refuse_moves(comm, err));
    WEFT__TRY(refuse_outdated_input(comm, err));
    return sum_ones(comm, 4, err);
}

static void wrong_arguments_do_no_harm(void **state)
{
    (void)state;
    weft_world *world = short_world(2);
    ranks_succeed(world, 2, refuse_everything, NULL);
    weft_world_destroy(world);
}

static weft_status exhaust(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)arg;
    void *memory;
    weft_comm *group;
    if (weft_comm_heap_alloc(comm, SIZE_MAX, &memory, err) != WEFT_NO_MEMORY ||
        weft_comm_heap_alloc(comm, 64 << 20, &memory, err) != WEFT_NO_MEMORY)
        return weft__fail(err, WEFT_INTERNAL, "more heap than there is");
    for (int i = 0; i < 2; i++) { /* groups of 4 MiB each */
        WEFT__TRY(weft_comm_split(comm, 0, 0, &group, err));
        WEFT__TRY(sum_ones(group, 1, err));
        weft_comm_close(group);
    }
    if (rank == 1) WEFT__TRY(weft_comm_heap_alloc(comm, 23 << 20, &memory, err));
    if (weft_comm_split(comm, 0, 0, &group, err) != WEFT_NO_MEMORY ||
        strncmp(err->text, "rank 1 has no", 13) != 0)
        return weft__fail(err, WEFT_INTERNAL, "a group without memory");
    return sum_ones(comm, 1, err);
}

static weft_status split_too_often(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)rank, (void)arg;
    weft_comm *group;
    for (int i = 0; i < WEFT_COMM_GROUPS_MAX; i++)
        WEFT__TRY(weft_comm_split(comm, 0, 0, &group, err));
    if (weft_comm_split(comm, 0, 0, &group, err) != WEFT_TOO_LONG)
        return weft__fail(err, WEFT_INTERNAL, "one group too many");
    return sum_ones(comm, 1, err);
}

static void limits_of_heap_and_groups(void **state)
{
    (void)state;
    weft_world *world =
        world_of((weft_world_options){.size = 2, .heap_bytes = 32 << 20}, (struct weft__tuning){0});
    ranks_succeed(world, 2, exhaust, NULL);
    weft_world_destroy(world);
    world = short_world(2);
    ranks_succeed(world, 2, split_too_often, NULL);
    weft_world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_rank_is_named_at_open),
        cmocka_unit_test(rank_opens_again_before_the_other_has_closed),
        cmocka_unit_test(rank_without_memory_is_named_at_open),
        cmocka_unit_test(rank_opens_once),
        cmocka_unit_test(wrong_options),
        cmocka_unit_test(silent_rank_is_named_in_time),
        cmocka_unit_test(slow_rank_is_waited_for),
        cmocka_unit_test(closing_and_aborting_ranks_are_named),
        cmocka_unit_test(disagreement_is_described),
        cmocka_unit_test(chain_of_waits_blames_its_end),
        cmocka_unit_test(circle_of_waits_ends),
        cmocka_unit_test(wrong_arguments_do_no_harm),
        cmocka_unit_test(limits_of_heap_and_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
