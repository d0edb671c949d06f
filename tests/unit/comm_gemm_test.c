/* gemm_allreduce gives the bits of computing everything and then calling allreduce, for any tiles;
 * its buffers do not get into the way of the operations around it. */
#include "comm_ranks.h"

#include <sched.h>

#include "dev/cpu/comm_rows.h"

enum { TOKENS_MAX = 150, HIDDEN_MAX = 4096, ELEMENTS = TOKENS_MAX * HIDDEN_MAX };

struct shape {
    int64_t tokens, hidden, tile_rows;
    weft_dtype dtype;
    bool residual, norm, quant;
};

static const struct shape shapes[] = {
    {0, 64, 0, WEFT_F32, true, true, false},    {1, 64, 0, WEFT_F32, true, true, false},
    {2, 64, 1, WEFT_F32, false, false, false},  {3, 128, 1, WEFT_BF16, true, true, true},
    {150, 256, 7, WEFT_F32, true, true, false}, {150, 1024, 50, WEFT_F16, true, false, true},
    {100, 512, 0, WEFT_BF16, true, true, true}, {64, 64, 64, WEFT_F32, true, true, false},
    {65, 64, 64, WEFT_F32, true, true, false},  {40, 4096, 0, WEFT_F32, true, true, false},
    {128, 64, 64, WEFT_F32, true, true, true},  {5, 64, 2, WEFT_F16, false, true, false},
};

struct product { /* this rank's factor of what compute makes */
    const struct shape *shape;
    int rank;
    int64_t expected_row; /* of the next tile */
    uint64_t delays;
};

static float element(int rank, int64_t row, int64_t column)
{
    uint64_t seed = (uint64_t)(rank * 7919 + row * 65537 + column);
    return (float)(int32_t)next_random(&seed) * 0x1p-30f;
}

static void compute(void *ctx, int64_t first, int64_t rows, void *out)
{
    struct product *p = ctx;
    const struct weft__rows *kernels = weft__rows_pick(true);
    int64_t hidden = p->shape->hidden, width = p->shape->dtype == WEFT_F32 ? 4 : 2;
    float row[HIDDEN_MAX];
    if (first != p->expected_row) return; /* then sums will be wrong */
    p->expected_row += rows;
    for (int64_t t = 0; t < rows; t++) {
        for (int64_t i = 0; i < hidden; i++) row[i] = element(p->rank, first + t, i);
        kernels->store(p->shape->dtype, row, (char *)out + t * hidden * width, hidden);
    }
    if (next_random(&p->delays) % 4 == 0) (void)sched_yield();
    if (next_random(&p->delays) % 64 == 0) sleep_ms(1);
}

struct memory {
    float x[ELEMENTS], residual[ELEMENTS], weight[HIDDEN_MAX];
    struct {
        float y[ELEMENTS], s[ELEMENTS], scales[TOKENS_MAX];
        uint8_t codes[ELEMENTS];
    } fused, plain;
};

static weft_status compare(weft_comm *comm, int rank, const struct shape *shape, struct memory *m,
                           weft_error *err)
{
    struct product product = {.shape = shape, .rank = rank, .delays = (uint64_t)rank};
    weft_gemm_reduce gemm = {.reduce = {.tokens = shape->tokens,
                                        .hidden = shape->hidden,
                                        .dtype = shape->dtype,
                                        .residual = shape->residual ? m->residual : NULL,
                                        .residual_out = m->fused.s,
                                        .norm = shape->norm,
                                        .norm_weight = shape->norm ? m->weight : NULL,
                                        .norm_eps = 1e-5f,
                                        .y = m->fused.y},
                             .tile_rows = shape->tile_rows,
                             .compute = compute,
                             .ctx = &product};
    memset(&m->fused, 0, sizeof m->fused);
    memset(&m->plain, 0, sizeof m->plain);
    if (shape->quant)
        gemm.reduce.quant = (weft_quant){
            .kind = WEFT_QUANT_FP8_TOKEN, .codes = m->fused.codes, .scales = m->fused.scales};
    WEFT__TRY(weft_comm_gemm_allreduce(comm, &gemm, err));
    weft_reduce plain = gemm.reduce;
    product.expected_row = 0;
    compute(&product, 0, shape->tokens, m->x);
    plain.x = m->x;
    plain.residual_out = m->plain.s;
    plain.y = m->plain.y;
    plain.quant.codes = m->plain.codes;
    plain.quant.scales = m->plain.scales;
    WEFT__TRY(weft_comm_allreduce(comm, &plain, err));
    if (memcmp(&m->fused, &m->plain, sizeof m->plain) != 0)
        return weft__fail(err, WEFT_INTERNAL, "%lld x %lld, tiles of %lld: other bits",
                          (long long)shape->tokens, (long long)shape->hidden,
                          (long long)shape->tile_rows);
    return WEFT_OK;
}

/* Inputs in the buffers of weft_comm_input, between the tiles of two products. */
static weft_status small_ones_between(weft_comm *comm, int rank, int turn, weft_error *err)
{
    for (int i = 0; i < turn % 3; i++) {
        float *x, y[64];
        void *input;
        WEFT__TRY(weft_comm_input(comm, sizeof y, &input, err));
        x = input;
        for (int j = 0; j < 64; j++) x[j] = (float)(rank + i + j);
        weft_reduce op = {.tokens = 1, .hidden = 64, .dtype = WEFT_F32, .x = x, .y = y};
        WEFT__TRY(weft_comm_allreduce(comm, &op, err));
        int p = weft_comm_size(comm);
        if (y[5] != (float)(p * (i + 5) + p * (p - 1) / 2))
            return weft__fail(err, WEFT_INTERNAL, "a wrong sum between products");
    }
    return WEFT_OK;
}

static weft_status all_shapes(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)arg;
    struct memory *m = calloc(1, sizeof *m);
    if (m == NULL) return weft__fail_oom(err, sizeof *m, "a test");
    for (int i = 0; i < ELEMENTS; i++) m->residual[i] = element(99, 0, i);
    for (int i = 0; i < HIDDEN_MAX; i++) m->weight[i] = element(98, 0, i);
    weft_status status = WEFT_OK;
    for (int turn = 0; turn < 3 * (int)WEFT__COUNT(shapes) && status == WEFT_OK; turn++) {
        status = compare(comm, rank, &shapes[turn % (int)WEFT__COUNT(shapes)], m, err);
        if (status == WEFT_OK) status = small_ones_between(comm, rank, turn, err);
    }
    free(m);
    return status;
}

static void tiles_give_the_same_bits(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 8};
    for (size_t i = 0; i < WEFT__COUNT(sizes); i++)
        for (int algorithm = 1; algorithm <= 2; algorithm++) {
            weft_world *world =
                world_of((weft_world_options){.size = sizes[i],
                                              .message_bytes = WEFT_COMM_MESSAGE_MIN,
                                              .algorithm = (weft_algorithm)algorithm},
                         (struct weft__tuning){.first_epoch = (uint32_t)-50});
            ranks_succeed(world, sizes[i], all_shapes, NULL);
            weft_world_destroy(world);
        }
}

static weft_status disagree(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    const struct shape *shape = &shapes[4];
    struct product product = {.shape = shape, .rank = rank};
    float *y = arg;
    weft_gemm_reduce gemm = {.reduce = {.tokens = shape->tokens,
                                        .hidden = shape->hidden,
                                        .dtype = WEFT_F32,
                                        .y = y + rank * ELEMENTS},
                             .tile_rows = 7 + rank,
                             .compute = compute,
                             .ctx = &product};
    weft_gemm_reduce wrong = gemm;
    wrong.compute = NULL;
    if (weft_comm_gemm_allreduce(comm, &wrong, err) != WEFT_INVALID) return WEFT_INTERNAL;
    wrong = gemm;
    wrong.reduce.x = y;
    if (weft_comm_gemm_allreduce(comm, &wrong, err) != WEFT_INVALID) return WEFT_INTERNAL;
    return weft_comm_gemm_allreduce(comm, &gemm, err);
}

static void other_tiles_are_a_mismatch(void **state)
{
    (void)state;
    struct rank_result results[WEFT__MAX_RANKS];
    float *y = calloc(2 * ELEMENTS, sizeof *y);
    assert_non_null(y);
    weft_world *world = world_of((weft_world_options){.size = 2}, (struct weft__tuning){0});
    ranks_run_some(world, 3, disagree, y, results);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(results[r].status, WEFT_INVALID);
        assert_non_null(strstr(results[r].err.text, "with other options"));
    }
    weft_world_destroy(world);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiles_give_the_same_bits),
                                       cmocka_unit_test(other_tiles_are_a_mismatch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
