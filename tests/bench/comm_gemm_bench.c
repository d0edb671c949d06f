/* gemm_allreduce of CPU ranks against the matrix product first and one all-reduce then, both with
 * residual and RMSNorm: a down projection of BF16 weights, 512 rows. Medians of rounds that take
 * turns. Usage: bench_comm_gemm [ranks], 2 by default. Prints a Markdown table. */
#include "../unit/comm_ranks.h"

#include "dev/dev.h"

enum { TOKENS = 512, ROUNDS = 15, COLUMNS = 5 };

static const int64_t tiles[COLUMNS] = {0, 32, 64, 128, 256}; /* 0: not in tiles */
static const struct {
    int64_t hidden, inner;
} shapes[] = {{576, 1536}, {2048, 8192}};

struct table {
    double ms[WEFT__COUNT(shapes)][COLUMNS];
};

struct product {
    struct weft__dev *dev;
    struct weft__matrix w;
    const float *x;
};

static void compute(void *ctx, int64_t first, int64_t rows, void *out)
{
    const struct product *p = ctx;
    const struct weft__op_linear op = {.w = &p->w,
                                       .count = 1,
                                       .x = p->x + first * p->w.cols,
                                       .x_stride = p->w.cols,
                                       .tokens = rows,
                                       .y = out,
                                       .y_stride = p->w.rows};
    weft__cpu.model->linear(p->dev, &op);
}

static weft_status run_once(weft_comm *comm, struct product *p, const weft_reduce *reduce,
                            int64_t tile, double *ms, weft_error *err)
{
    WEFT__TRY(weft_comm_barrier(comm, err));
    uint64_t start = weft__now_ns();
    if (tile > 0) {
        const weft_gemm_reduce op = {
            .reduce = *reduce, .tile_rows = tile, .compute = compute, .ctx = p};
        WEFT__TRY(weft_comm_gemm_allreduce(comm, &op, err));
    } else {
        weft_reduce op = *reduce;
        void *x;
        size_t bytes = (size_t)op.tokens * (size_t)op.hidden * sizeof(float);
        WEFT__TRY(weft_comm_input(comm, bytes, &x, err));
        compute(p, 0, op.tokens, x);
        op.x = x;
        WEFT__TRY(weft_comm_allreduce(comm, &op, err));
    }
    *ms = (double)(weft__now_ns() - start) / 1e6;
    return WEFT_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static weft_status time_shape(weft_comm *comm, struct weft__dev *dev, int64_t hidden, int64_t inner,
                              double medians[COLUMNS], weft_error *err)
{
    double ms[COLUMNS][ROUNDS];
    size_t size = (size_t)(TOKENS * hidden), own = (size_t)(inner / weft_comm_size(comm));
    uint16_t *weights = calloc((size_t)hidden * own, sizeof *weights);
    float *x = calloc(TOKENS * own, sizeof *x), *residual = calloc(2 * size, sizeof *residual);
    weft_status status = WEFT_OK;
    if (weights == NULL || x == NULL || residual == NULL) {
        status = weft__fail_oom(err, size, "a bench");
        goto free_all;
    }
    for (size_t i = 0; i < (size_t)hidden * own; i++) weights[i] = (uint16_t)(0x3c00 + i % 256);
    for (size_t i = 0; i < TOKENS * own; i++) x[i] = (float)(i % 97) * 0.01f;
    struct product product = {.dev = dev,
                              .w = {.dtype = WEFT_BF16,
                                    .rows = hidden,
                                    .cols = (int64_t)own,
                                    .data = (const uint8_t *)weights,
                                    .row_bytes = (int64_t)own * 2,
                                    .scale_global = 1},
                              .x = x};
    const weft_reduce reduce = {.tokens = TOKENS,
                                .hidden = hidden,
                                .dtype = WEFT_F32,
                                .residual = residual,
                                .residual_out = residual,
                                .norm = true,
                                .norm_eps = 1e-5f,
                                .y = residual + size};
    for (int round = 0; round < ROUNDS && status == WEFT_OK; round++)
        for (int c = 0; c < COLUMNS && status == WEFT_OK; c++)
            status = run_once(comm, &product, &reduce, tiles[c], &ms[c][round], err);
    for (int c = 0; c < COLUMNS && status == WEFT_OK; c++) {
        qsort(ms[c], ROUNDS, sizeof ms[c][0], ascending);
        medians[c] = ms[c][ROUNDS / 2];
    }
free_all:
    free(weights);
    free(x);
    free(residual);
    return status;
}

static weft_status bench_rank(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    struct table *table = arg, ignored;
    struct weft__dev *dev;
    WEFT__TRY(weft__cpu.core->open(&(struct weft__dev_options){.threads = 1, .first_cpu = -1}, &dev,
                                   err));
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < WEFT__COUNT(shapes) && status == WEFT_OK; i++)
        status = time_shape(comm, dev, shapes[i].hidden, shapes[i].inner,
                            rank == 0 ? table->ms[i] : ignored.ms[i], err);
    weft__cpu.core->close(dev);
    return status;
}

int main(int argc, char **argv)
{
    int p = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2;
    static struct table table;
    weft_world *world = NULL;
    weft_error err = {0};
    weft_world_options options = {.size = p, .message_bytes = 8 << 20};
    if (weft_world_create(&options, &world, &err) != WEFT_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    struct rank_result results[WEFT__MAX_RANKS];
    ranks_run_some(world, all_ranks(p), bench_rank, &table, results);
    weft_world_destroy(world);
    for (int r = 0; r < p; r++)
        if (results[r].status != WEFT_OK) {
            (void)fprintf(stderr, "rank %d: %s\n", r, results[r].err.text);
            return 1;
        }
    (void)printf("\ngemm + all-reduce + residual + RMSNorm, %d CPU ranks x 1 thread, %d rows, BF16 "
                 "weights, milliseconds\n\n"
                 "| hidden | inner | product, then all-reduce | tiles of 32 | 64 | 128 | 256 |\n"
                 "|---|---|---|---|---|---|---|\n",
                 p, TOKENS);
    for (size_t i = 0; i < WEFT__COUNT(shapes); i++) {
        (void)printf("| %lld | %lld ", (long long)shapes[i].hidden, (long long)shapes[i].inner);
        for (int c = 0; c < COLUMNS; c++) (void)printf("| %.2f ", table.ms[i][c]);
        (void)printf("|\n");
    }
    return 0;
}
