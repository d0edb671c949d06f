/* Stress: random operations on a world and its groups, small, so that flags matter more than bytes,
 * with random delays on every rank; every result checked, inputs overwritten as soon as allowed.
 * 10^5 operations on each of 2, 4 and 8 ranks, 10^6 with --soak, 25,000 sanitized; then the same
 * with ranks that are processes, and with 16 ranks on whatever processors there are. Meant to run
 * under TSan as well.
 */
#include "../unit/comm_ranks.h"

#include <sched.h>

/* A sanitizer's build is many times slower: a part of the turns says whether it finds anything. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum {
    HIDDEN = 64,
    ROWS_MAX = 3,
    ELEMENTS = HIDDEN * ROWS_MAX,
    OPERATIONS = SANITIZED ? 25000 : 100000,
    SOAK = 1000000
};

struct stress {
    int operations;
};

/* One rank's tools. */
struct worker {
    weft_comm *comms[3]; /* world, half, pairs */
    float *heap;
    uint64_t delays; /* its own generator */
};

/* Whole numbers, so that sums are exact in any order and tell who is missing. */
static float value_of(int world_rank, uint64_t turn, int64_t i)
{
    return (float)(((uint64_t)(world_rank + 1) * 131 + turn * 7 + (uint64_t)i * 3) % 1021);
}

static void delay(uint64_t *state)
{
    uint64_t bits = next_random(state);
    if (bits % 8192 == 0) sleep_ms(1);
    if (bits % 64 == 1) (void)sched_yield();
    if (bits % 16 == 2)
        for (uint64_t spin = bits >> 32 & 511; spin > 0; spin--) weft__pause();
}

static weft_status fail_at(weft_error *err, uint64_t turn, const char *what)
{
    return weft__fail(err, WEFT_INTERNAL, "operation %llu: wrong %s", (unsigned long long)turn,
                      what);
}

struct part {
    int rank;
    uint64_t turn;
};

static void compute(void *ctx, int64_t first, int64_t rows, void *out)
{
    const struct part *part = ctx;
    for (int64_t i = 0; i < rows * HIDDEN; i++)
        ((float *)out)[i] = value_of(part->rank, part->turn, first * HIDDEN + i);
}

static weft_status stress_tiles(weft_comm *comm, uint64_t turn, uint64_t bits, weft_error *err)
{
    int64_t tokens = 1 + (int64_t)(bits % ROWS_MAX);
    float y[ELEMENTS];
    const struct weft__comm_link *link = &comm->link;
    struct part part = {link->world_rank[link->rank], turn};
    const weft_gemm_reduce op = {
        .reduce = {.tokens = tokens, .hidden = HIDDEN, .dtype = WEFT_F32, .y = y},
        .tile_rows = 1 + (int64_t)(bits >> 8 & 1),
        .compute = compute,
        .ctx = &part};
    WEFT__TRY(weft_comm_gemm_allreduce(comm, &op, err));
    for (int64_t i = 0; i < tokens * HIDDEN; i++) {
        float want = 0;
        for (int m = 0; m < link->size; m++) want += value_of(link->world_rank[m], turn, i);
        if (y[i] != want) return fail_at(err, turn, "sum of tiles");
    }
    return WEFT_OK;
}

static weft_status stress_reduce(weft_comm *comm, struct worker *worker, uint64_t turn,
                                 uint64_t bits, weft_error *err)
{
    int64_t tokens = 1 + (int64_t)(bits % ROWS_MAX), first = 0, rows = tokens;
    bool scatter = (bits >> 8 & 3) == 0;
    float memory[ELEMENTS], y[ELEMENTS];
    void *x = memory;
    if ((bits >> 10 & 3) == 1) x = worker->heap;
    if ((bits >> 10 & 3) > 1) WEFT__TRY(weft_comm_input(comm, sizeof memory, &x, err));
    const struct weft__comm_link *link = &comm->link;
    for (int64_t i = 0; i < tokens * HIDDEN; i++)
        ((float *)x)[i] = value_of(link->world_rank[link->rank], turn, i);
    weft_reduce op = {.tokens = tokens, .hidden = HIDDEN, .dtype = WEFT_F32, .x = x, .y = y};
    if (scatter) {
        rows = weft_comm_share(tokens, link->size, link->rank, &first);
        WEFT__TRY(weft_comm_reduce_scatter(comm, &op, err));
    } else {
        WEFT__TRY(weft_comm_allreduce(comm, &op, err));
    }
    if (x == worker->heap) memset(worker->heap, 0xff, sizeof memory);
    for (int64_t i = 0; i < rows * HIDDEN; i++) {
        float want = 0;
        for (int m = 0; m < link->size; m++)
            want += value_of(link->world_rank[m], turn, first * HIDDEN + i);
        if (y[i] != want) return fail_at(err, turn, "sum");
    }
    return WEFT_OK;
}

static weft_status stress_gather(weft_comm *comm, uint64_t turn, uint64_t bits, weft_error *err)
{
    const struct weft__comm_link *link = &comm->link;
    size_t sizes[WEFT__MAX_RANKS];
    float in[4], out[4 * WEFT__MAX_RANKS];
    for (int m = 0; m < link->size; m++) sizes[m] = (bits >> (2 * m) & 3) * sizeof *in;
    for (int i = 0; i < 4; i++) in[i] = value_of(link->world_rank[link->rank], turn, i);
    weft_gather op = {.rows = 1, .row_bytes_of = sizes, .in = in, .out = out};
    WEFT__TRY(weft_comm_all_gather(comm, &op, err));
    float *got = out;
    for (int m = 0; m < link->size; m++)
        for (size_t i = 0; i < sizes[m] / sizeof *in; i++)
            if (*got++ != value_of(link->world_rank[m], turn, (int64_t)i))
                return fail_at(err, turn, "gathered value");
    return WEFT_OK;
}

static weft_status stress_broadcast(weft_comm *comm, struct worker *worker, uint64_t turn,
                                    uint64_t bits, weft_error *err)
{
    const struct weft__comm_link *link = &comm->link;
    int root = (int)(bits % (uint64_t)link->size);
    float memory[HIDDEN], *data = bits >> 8 & 1 ? worker->heap : memory;
    for (int i = 0; i < HIDDEN; i++)
        data[i] = root == link->rank ? value_of(link->world_rank[root], turn, i) : -1;
    weft_broadcast op = {.root = root, .bytes = sizeof memory, .data = data};
    WEFT__TRY(weft_comm_broadcast(comm, &op, err));
    for (int i = 0; i < HIDDEN; i++)
        if (data[i] != value_of(link->world_rank[root], turn, i))
            return fail_at(err, turn, "broadcast value");
    return WEFT_OK;
}

static weft_status stress_rank(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    const struct stress *stress = arg;
    int size = weft_comm_size(comm);
    uint64_t plan = 31337; /* the same on every rank */
    struct worker worker = {.comms = {comm}, .delays = 1000 + (uint64_t)rank};
    void *heap;
    WEFT__TRY(weft_comm_split(comm, rank >= size / 2, 0, &worker.comms[1], err));
    WEFT__TRY(weft_comm_split(comm, rank / 2, 0, &worker.comms[2], err));
    WEFT__TRY(weft_comm_heap_alloc(comm, sizeof(float) * ELEMENTS, &heap, err));
    worker.heap = heap;
    for (int turn = 0; turn < stress->operations; turn++) {
        uint64_t choice = next_random(&plan), bits = next_random(&plan);
        weft_comm *on = worker.comms[choice % 8 < 6 ? 0 : choice % 8 - 5];
        weft_status status;
        delay(&worker.delays);
        switch (choice >> 8 & 7) {
        case 0:
            status = weft_comm_barrier(on, err);
            break;
        case 1:
            status = stress_gather(on, (uint64_t)turn, bits, err);
            break;
        case 2:
            status = stress_broadcast(on, &worker, (uint64_t)turn, bits, err);
            break;
        case 3:
            status = stress_tiles(on, (uint64_t)turn, bits, err);
            break;
        default:
            status = stress_reduce(on, &worker, (uint64_t)turn, bits, err);
            break;
        }
        if (status != WEFT_OK) return status;
    }
    return WEFT_OK;
}

static void stress(void **state)
{
    int operations = *(const int *)*state;
    for (int p = 2; p <= 8; p *= 2)
        for (int algorithm = 1; algorithm <= 2; algorithm++) {
            struct stress arg = {.operations = operations / 2};
            weft_world *world =
                world_of((weft_world_options){.size = p, .algorithm = (weft_algorithm)algorithm},
                         (struct weft__tuning){.first_epoch = (uint32_t)(-operations / 4)});
            ranks_succeed(world, p, stress_rank, &arg);
            weft_world_destroy(world);
        }
}

static void stress_processes(void **state)
{
    struct stress arg = {.operations = *(const int *)*state / 10};
    for (int p = 2; p <= 8; p *= 2) {
        struct rank_processes processes;
        processes_prepare(&processes, (weft_world_options){.size = p, .heap_bytes = 16 << 20},
                          (struct weft__tuning){.first_epoch = (uint32_t)(-arg.operations / 2)});
        processes_succeed(&processes, stress_rank, &arg);
        processes_release(&processes);
    }
}

static void stress_crowded(void **state)
{
    struct stress arg = {.operations = *(const int *)*state / 20};
    weft_world *world = world_of((weft_world_options){.size = 16},
                                 (struct weft__tuning){.first_epoch = (uint32_t)-1000});
    ranks_succeed(world, 16, stress_rank, &arg);
    weft_world_destroy(world);
}

int main(int argc, char **argv)
{
    static int operations = OPERATIONS;
    if (argc > 1 && strcmp(argv[1], "--soak") == 0) operations = SOAK;
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(stress, &operations),
                                       cmocka_unit_test_prestate(stress_processes, &operations),
                                       cmocka_unit_test_prestate(stress_crowded, &operations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
