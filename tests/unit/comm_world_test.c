/* Moving bytes, groups, long chains of operations, epochs that wrap, life cycle, statistics. */
#include "comm_ranks.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/rows.h"

static void run_world(weft_world_options options, struct weft__tuning tuning, rank_fn *fn,
                      void *arg)
{
    weft_world *world = world_of(options, tuning);
    ranks_succeed(world, options.size, fn, arg);
    weft_world_destroy(world);
}

/* Byte i of what a rank contributes to operation `turn`: every value comes up. */
static uint8_t byte_of(int rank, int turn, size_t i)
{
    return (uint8_t)(i * 167 + (i >> 8) * 31 + (size_t)rank * 59 + (size_t)turn * 101);
}

/* ---- all_gather ---- */

enum way { OWN_MEMORY, HEAP_MEMORY, INPUT_BUFFER, WAYS };

static weft_status gather_once(weft_comm *comm, int turn, enum way way, int64_t rows,
                               const size_t *sizes, void *heap, weft_error *err)
{
    int rank = weft_comm_rank(comm), p = weft_comm_size(comm);
    size_t total = 0, own = sizes[rank], bytes = own * (size_t)rows;
    for (int r = 0; r < p; r++) total += sizes[r];
    uint8_t *memory = malloc(bytes + 1), *out = malloc(total * (size_t)rows + 2);
    void *in = memory;
    weft_status status = WEFT_OK;
    if (way == HEAP_MEMORY) in = heap;
    if (way == INPUT_BUFFER) status = weft_comm_input(comm, bytes, &in, err);
    if (status != WEFT_OK) goto free_all;
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)in)[i] = byte_of(rank, turn, i);
    memset(out, 0xa5, total * (size_t)rows + 2);
    weft_gather gather = {.rows = rows, .row_bytes_of = sizes, .in = in, .out = out + 1};
    status = weft_comm_all_gather(comm, &gather, err);
    if (way == HEAP_MEMORY) memset(in, 0xa5, bytes); /* the peers have read it */
    if (status != WEFT_OK) goto free_all;
    size_t at = 1, wrong = out[0] != 0xa5 || out[total * (size_t)rows + 1] != 0xa5;
    for (int64_t row = 0; row < rows; row++)
        for (int r = 0; r < p; r++)
            for (size_t i = 0; i < sizes[r]; i++)
                wrong += out[at++] != byte_of(r, turn, (size_t)row * sizes[r] + i);
    if (wrong != 0)
        status = weft__fail(err, WEFT_INTERNAL, "gather %d: %zu wrong bytes", turn, wrong);
free_all:
    free(memory), free(out);
    return status;
}

static weft_status gather_much(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)rank, (void)arg;
    uint64_t state = 77;
    void *heap;
    WEFT__TRY(weft_comm_heap_alloc(comm, 4 << 20, &heap, err));
    for (int turn = 0; turn < 120; turn++) {
        size_t sizes[WEFT__MAX_RANKS];
        for (int r = 0; r < weft_comm_size(comm); r++)
            sizes[r] = (size_t)pick_from(&state, 0, 3) * (size_t)pick_from(&state, 0, 50);
        enum way way = (enum way)pick_from(&state, 0, WAYS - 1);
        WEFT__TRY(gather_once(comm, turn, way, pick_from(&state, 0, 9), sizes, heap, err));
    }
    /* Cut into messages of 256 KiB, some members done before others, rows cut in the middle. */
    size_t sizes[WEFT__MAX_RANKS] = {1000, 70001, 0, 3};
    for (int way = 0; way < INPUT_BUFFER; way++)
        WEFT__TRY(gather_once(comm, way, (enum way)way, 11, sizes, heap, err));
    return WEFT_OK;
}

static void gathers_uneven_rows(void **state)
{
    (void)state;
    for (int p = 1; p <= 5; p++)
        run_world((weft_world_options){.size = p, .message_bytes = 256 << 10},
                  (struct weft__tuning){0}, gather_much, NULL);
}

/* ---- broadcast: the root reuses its memory at once ---- */

static weft_status broadcast_much(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)arg;
    enum { MOST = 300 << 10 };
    uint64_t state = 99;
    void *heap;
    WEFT__TRY(weft_comm_heap_alloc(comm, MOST, &heap, err));
    uint8_t *memory = malloc(MOST);
    weft_status status = WEFT_OK;
    for (int turn = 0; turn < 1000 && status == WEFT_OK; turn++) {
        bool long_one = turn % 100 == 99;
        size_t bytes = (size_t)pick_from(&state, 0, long_one ? MOST : 300);
        int root = (int)pick_from(&state, 0, weft_comm_size(comm) - 1);
        if (turn < 300) root = 0;
        enum way way = (enum way)pick_from(&state, 0, long_one ? HEAP_MEMORY : INPUT_BUFFER);
        void *data = way == HEAP_MEMORY ? heap : memory;
        if (way == INPUT_BUFFER && rank == root) status = weft_comm_input(comm, bytes, &data, err);
        if (status != WEFT_OK) break;
        for (size_t i = 0; i < bytes; i++)
            ((uint8_t *)data)[i] = rank == root ? byte_of(root, turn, i) : 0xa5;
        status = weft_comm_broadcast(
            comm, &(weft_broadcast){.root = root, .bytes = bytes, .data = data}, err);
        for (size_t i = 0; i < bytes && status == WEFT_OK; i++)
            if (((uint8_t *)data)[i] != byte_of(root, turn, i))
                status = weft__fail(err, WEFT_INTERNAL, "broadcast %d: byte %zu", turn, i);
    }
    free(memory);
    return status;
}

static void broadcasts_in_a_row(void **state)
{
    (void)state;
    for (int p = 1; p <= 8; p = p * 2 + (p == 2))
        run_world((weft_world_options){.size = p, .message_bytes = 256 << 10},
                  (struct weft__tuning){0}, broadcast_much, NULL);
}

/* ---- groups ---- */

static weft_status expect_sum(weft_comm *comm, float mine, float want, weft_error *err)
{
    float x[8], y[8];
    for (int i = 0; i < 8; i++) x[i] = mine;
    weft_reduce op = {.tokens = 1, .hidden = 8, .dtype = WEFT_F32, .x = x, .y = y};
    WEFT__TRY(weft_comm_allreduce(comm, &op, err));
    if (y[0] != want || y[7] != want)
        return weft__fail(err, WEFT_INTERNAL, "sum %g, not %g", (double)y[0], (double)want);
    return WEFT_OK;
}

/* Six ranks as 2 x 3: rows {0,1,2} {3,4,5}, columns {0,3} {1,4} {2,5}, and a group within a row. */
static weft_status work_in_groups(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)arg;
    weft_comm *row, *column, *inner, *none, *reversed;
    WEFT__TRY(weft_comm_split(comm, rank / 3, 0, &row, err));
    WEFT__TRY(weft_comm_split(comm, rank % 3, 0, &column, err));
    WEFT__TRY(weft_comm_split(row, rank % 3 == 2 ? -1 : 5, 0, &inner, err));
    WEFT__TRY(weft_comm_split(comm, -1, 0, &none, err));
    WEFT__TRY(weft_comm_split(comm, 1, -rank, &reversed, err));
    if (none != NULL || (inner != NULL) != (rank % 3 != 2) || weft_comm_size(row) != 3 ||
        weft_comm_rank(row) != rank % 3 || weft_comm_size(column) != 2 ||
        weft_comm_rank(column) != rank / 3 || weft_comm_rank(reversed) != 5 - rank)
        return weft__fail(err, WEFT_INTERNAL, "groups are formed wrongly");
    float value = (float)(1 << rank);
    for (int turn = 0; turn < 200; turn++) {
        WEFT__TRY(expect_sum(row, value, rank < 3 ? 7 : 56, err));
        WEFT__TRY(expect_sum(column, value, (float)(9 << rank % 3), err));
        if (inner != NULL) WEFT__TRY(expect_sum(inner, value, rank < 3 ? 3 : 24, err));
        if (turn % 2 == rank / 3) WEFT__TRY(weft_comm_barrier(row, err));
        WEFT__TRY(expect_sum(comm, value, 63, err));
        uint8_t root = (uint8_t)rank;
        WEFT__TRY(weft_comm_broadcast(
            reversed, &(weft_broadcast){.root = turn % 6, .bytes = 1, .data = &root}, err));
        if (root != 5 - turn % 6) return weft__fail(err, WEFT_INTERNAL, "root %d", root);
    }
    weft_comm_close(column);
    return expect_sum(row, value, rank < 3 ? 7 : 56, err);
}

static void groups_work_side_by_side(void **state)
{
    (void)state;
    run_world((weft_world_options){.size = 6}, (struct weft__tuning){0}, work_in_groups, NULL);
}

/* ---- chains: each operation takes what the one before gave, checked at every step ---- */

enum { CHAIN_TOKENS = 3, CHAIN_HIDDEN = 72, CHAIN = CHAIN_TOKENS * CHAIN_HIDDEN };

static float bf16(float value) { return weft__f32_from_bf16(weft__bf16_from_f32(value)); }

static float partial_of(const float *y, int rank, int turn, int i)
{
    return bf16(y[i] * (0.25f + (float)rank) + (float)((i + turn) % 7));
}

/* The step in plain scalar code, on floats that hold BF16 values. */
static void chain_step(int p, int turn, float *s, float *y)
{
    for (int i = 0; i < CHAIN; i++) {
        float sum = partial_of(y, 0, turn, i);
        for (int r = 1; r < p; r++) sum = sum + partial_of(y, r, turn, i);
        s[i] = bf16(sum);
    }
    for (int t = 0; t < CHAIN_TOKENS; t++) {
        float factor = weft__rms_factor(weft__sum_squares(s + t * CHAIN_HIDDEN, CHAIN_HIDDEN),
                                        CHAIN_HIDDEN, 1e-6f);
        for (int i = t * CHAIN_HIDDEN; i < (t + 1) * CHAIN_HIDDEN; i++) y[i] = bf16(s[i] * factor);
    }
}

struct chain {
    int turns;
    bool broadcasts; /* between the steps */
};

static weft_status run_chain(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    const struct chain *chain = arg;
    float s[CHAIN], y[CHAIN];
    uint16_t got[CHAIN], stream[CHAIN];
    void *heap;
    WEFT__TRY(weft_comm_heap_alloc(comm, sizeof got, &heap, err));
    for (int i = 0; i < CHAIN; i++) s[i] = y[i] = bf16((float)(i % 13) - 6.0f);
    for (int turn = 0; turn < chain->turns; turn++) {
        void *x = heap;
        if (turn % 3 != 0) WEFT__TRY(weft_comm_input(comm, sizeof got, &x, err));
        for (int i = 0; i < CHAIN; i++)
            ((uint16_t *)x)[i] = weft__bf16_from_f32(partial_of(y, rank, turn, i));
        weft_reduce op = {.tokens = CHAIN_TOKENS,
                          .hidden = CHAIN_HIDDEN,
                          .dtype = WEFT_BF16,
                          .x = x,
                          .residual_out = stream,
                          .norm = true,
                          .norm_eps = 1e-6f,
                          .y = got};
        WEFT__TRY(weft_comm_allreduce(comm, &op, err));
        chain_step(weft_comm_size(comm), turn, s, y);
        for (int i = 0; i < CHAIN; i++)
            if (got[i] != weft__bf16_from_f32(y[i]) || stream[i] != weft__bf16_from_f32(s[i]))
                return weft__fail(err, WEFT_INTERNAL, "step %d, element %d", turn, i);
        int token = rank;
        weft_broadcast next = {.root = turn % 2, .bytes = sizeof token, .data = &token};
        if (chain->broadcasts) WEFT__TRY(weft_comm_broadcast(comm, &next, err));
        if (chain->broadcasts && token != turn % 2)
            return weft__fail(err, WEFT_INTERNAL, "step %d, broadcast", turn);
    }
    return WEFT_OK;
}

static void a_thousand_operations_in_a_row(void **state)
{
    (void)state;
    for (int p = 2; p <= 8; p *= 2)
        for (int algorithm = 1; algorithm <= 2; algorithm++)
            run_world((weft_world_options){.size = p, .algorithm = (weft_algorithm)algorithm},
                      (struct weft__tuning){0}, run_chain, &(struct chain){.turns = 1000});
}

/* The epoch itself has 32 bits; the progress word keeps 30 of them. */
static void epochs_wrap(void **state)
{
    (void)state;
    static const uint32_t firsts[] = {UINT32_MAX - 50, 0x1fffffff - 50, 0x3fffffff - 50,
                                      0x7fffffff - 50};
    for (size_t i = 0; i < WEFT__COUNT(firsts); i++)
        run_world((weft_world_options){.size = 3}, (struct weft__tuning){.first_epoch = firsts[i]},
                  run_chain, &(struct chain){.turns = 100, .broadcasts = true});
}

/* ---- the rest ---- */

static weft_status count_operations(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)arg;
    weft_comm_stats stats;
    for (int i = 0; i < 10; i++) {
        if (rank == 0) sleep_ms(3);
        WEFT__TRY(expect_sum(comm, 1, 2, err));
    }
    WEFT__TRY(weft_comm_barrier(comm, err));
    weft_comm_get_stats(comm, &stats);
    if (stats.operations != 11 || stats.bytes != 10 * 8 * 4 || stats.wait_ns > stats.total_ns ||
        (rank == 1 && stats.wait_ns < 10 * 2 * 1000000))
        return weft__fail(err, WEFT_INTERNAL, "%llu operations, %llu bytes, %llu of %llu ns",
                          (unsigned long long)stats.operations, (unsigned long long)stats.bytes,
                          (unsigned long long)stats.wait_ns, (unsigned long long)stats.total_ns);
    return WEFT_OK;
}

static void statistics_count(void **state)
{
    (void)state;
    run_world((weft_world_options){.size = 2}, (struct weft__tuning){0}, count_operations, NULL);
}

/* A caller that flushes subnormals to zero neither loses ours nor its own mode. */
static weft_status sum_subnormals(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)rank, (void)arg;
#if defined(__x86_64__)
    unsigned flush = 0x1f80 | 0x8040, mode = _mm_getcsr();
    _mm_setcsr(flush);
#endif
    uint32_t x[8], y[8];
    for (uint32_t i = 0; i < 8; i++) x[i] = 0x80000001u + i;
    weft_reduce op = {.tokens = 1, .hidden = 8, .dtype = WEFT_F32, .x = x, .y = y};
    weft_status status = weft_comm_allreduce(comm, &op, err);
#if defined(__x86_64__)
    unsigned after = _mm_getcsr();
    _mm_setcsr(mode);
    if (status == WEFT_OK && after != flush)
        status = weft__fail(err, WEFT_INTERNAL, "float mode %x", after);
#endif
    for (uint32_t i = 0; i < 8 && status == WEFT_OK; i++)
        if (y[i] != 0x80000000u + 2 * (1 + i))
            status = weft__fail(err, WEFT_INTERNAL, "2 * %08x = %08x", x[i], y[i]);
    return status;
}

static void subnormals_survive_the_callers_mode(void **state)
{
    (void)state;
    run_world((weft_world_options){.size = 2}, (struct weft__tuning){0}, sum_subnormals, NULL);
}

static weft_status check_heap(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)rank, (void)arg;
    for (int i = 0; i < 10; i++) {
        void *memory;
        WEFT__TRY(weft_comm_heap_alloc(comm, 1000 + (size_t)i, &memory, err));
        if ((uintptr_t)memory % 64 != 0) return weft__fail(err, WEFT_INTERNAL, "alignment");
        for (int b = 0; b < 1000; b++)
            if (((char *)memory)[b] != 0) return weft__fail(err, WEFT_INTERNAL, "not zero");
        memset(memory, 1, 1000 + (size_t)i);
    }
    return WEFT_OK;
}

static void heap_is_zero_in_every_session(void **state)
{
    (void)state;
    weft_world *world = world_of((weft_world_options){.size = 2}, (struct weft__tuning){0});
    for (int session = 0; session < 3; session++) ranks_succeed(world, 2, check_heap, NULL);
    weft_world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gathers_uneven_rows),
                                       cmocka_unit_test(broadcasts_in_a_row),
                                       cmocka_unit_test(groups_work_side_by_side),
                                       cmocka_unit_test(a_thousand_operations_in_a_row),
                                       cmocka_unit_test(epochs_wrap),
                                       cmocka_unit_test(statistics_count),
                                       cmocka_unit_test(subnormals_survive_the_callers_mode),
                                       cmocka_unit_test(heap_is_zero_in_every_session)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
