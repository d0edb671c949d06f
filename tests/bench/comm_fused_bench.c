/* Fused all-reduce + residual + RMSNorm of CPU ranks against the same as separate calls:
 * all-reduce, add, norm. F32, inputs in the buffers of weft_comm_input, every kernel at its best. A
 * time is the median of several rounds of many operations; the columns take turns within a round.
 * Usage: bench_comm_fused [ranks], 2 by default. Prints a Markdown table. */
#include "../unit/comm_ranks.h"

#include "dev/cpu/comm_rows.h"

enum { ROUNDS = 21, ROUND_NS = 4 * 1000 * 1000, ROWS_MAX = 64, HIDDEN_MAX = 6144 };
enum column { SEPARATE, ONE_SHOT, TWO_SHOT, AUTO, COLUMNS };

static const int64_t hiddens[] = {256, 2048, 6144}, rows[] = {1, 8, 64};

struct table {
    double us[WEFT__COUNT(hiddens)][WEFT__COUNT(rows)][COLUMNS];
};

struct block { /* one rank's activations */
    const struct weft__rows *kernels;
    float *partial, *residual, *weight, *y;
};

static weft_status one_block(weft_comm *comm, const struct block *b, int64_t tokens, int64_t hidden,
                             enum column column, weft_error *err)
{
    void *x;
    size_t elements = (size_t)(tokens * hidden);
    WEFT__TRY(weft_comm_input(comm, elements * sizeof(float), &x, err));
    memcpy(x, b->partial, elements * sizeof(float)); /* stands for the linear that writes it */
    weft_reduce op = {.tokens = tokens, .hidden = hidden, .dtype = WEFT_F32, .x = x, .y = b->y};
    if (column != SEPARATE) {
        op.residual = op.residual_out = b->residual;
        op.norm = true;
        op.norm_weight = b->weight;
        op.norm_eps = 1e-5f;
    }
    WEFT__TRY(weft_comm_allreduce(comm, &op, err));
    if (column != SEPARATE) return WEFT_OK;
    struct weft__row_fold add = {
        .dtype = WEFT_F32, .parts = 1, .part = {b->y}, .residual = b->residual, .out = b->residual};
    b->kernels->fold(&add, (int64_t)elements);
    for (int64_t t = 0; t < tokens; t++)
        weft__rmsnorm_row(b->kernels, b->residual + t * hidden, b->weight, 1e-5f, b->y + t * hidden,
                          hidden);
    return WEFT_OK;
}

/* The same on all ranks, so one of them decides how many operations a round has. */
static weft_status time_round(weft_comm *comm, const struct block *b, int64_t tokens,
                              int64_t hidden, enum column column, int *count, double *us,
                              weft_error *err)
{
    comm->algorithm = column == ONE_SHOT   ? WEFT_ALGORITHM_ONE_SHOT
                      : column == TWO_SHOT ? WEFT_ALGORITHM_TWO_SHOT
                                           : WEFT_ALGORITHM_AUTO;
    WEFT__TRY(weft_comm_barrier(comm, err));
    uint64_t start = weft__now_ns();
    for (int i = 0; i < *count; i++) WEFT__TRY(one_block(comm, b, tokens, hidden, column, err));
    uint64_t spent = weft__now_ns() - start;
    *us = (double)spent / 1000.0 / *count;
    *count = (int)weft__max(2, weft__min(20000, (int64_t)(ROUND_NS / 1000.0 / *us)));
    return weft_comm_broadcast(comm, &(weft_broadcast){.bytes = sizeof *count, .data = count}, err);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static weft_status time_shape(weft_comm *comm, const struct block *b, int64_t tokens,
                              int64_t hidden, double medians[COLUMNS], weft_error *err)
{
    static _Thread_local double us[COLUMNS][ROUNDS];
    int count[COLUMNS] = {10, 10, 10, 10};
    double warm;
    for (int c = 0; c < COLUMNS; c++)
        WEFT__TRY(time_round(comm, b, tokens, hidden, (enum column)c, &count[c], &warm, err));
    for (int round = 0; round < ROUNDS; round++)
        for (int c = 0; c < COLUMNS; c++)
            WEFT__TRY(
                time_round(comm, b, tokens, hidden, (enum column)c, &count[c], &us[c][round], err));
    for (int c = 0; c < COLUMNS; c++) {
        qsort(us[c], ROUNDS, sizeof us[c][0], ascending);
        medians[c] = us[c][ROUNDS / 2];
    }
    return WEFT_OK;
}

static weft_status bench_rank(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    struct table *table = arg, mine;
    size_t most = (size_t)ROWS_MAX * HIDDEN_MAX;
    struct block b = {.kernels = weft__rows_pick(false),
                      .partial = calloc(most, sizeof(float)),
                      .residual = calloc(most, sizeof(float)),
                      .weight = calloc(HIDDEN_MAX, sizeof(float)),
                      .y = calloc(most, sizeof(float))};
    for (int i = 0; i < HIDDEN_MAX; i++) b.weight[i] = 1.0f;
    for (size_t i = 0; i < most; i++) b.partial[i] = i % 2 == 0 ? 0.01f : -0.01f;
    for (size_t h = 0; h < WEFT__COUNT(hiddens); h++)
        for (size_t r = 0; r < WEFT__COUNT(rows); r++)
            WEFT__TRY(time_shape(comm, &b, rows[r], hiddens[h], mine.us[h][r], err));
    if (rank == 0) *table = mine;
    free(b.partial), free(b.residual), free(b.weight), free(b.y);
    return WEFT_OK;
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2; /* checked with the options */
    weft_world_options options = {.size = ranks, .message_bytes = ROWS_MAX * HIDDEN_MAX * 4};
    weft_world *world;
    weft_error err;
    if (weft_world_create(&options, &world, &err) != WEFT_OK) {
        (void)fprintf(stderr, "bench_comm_fused: %s\n", err.text);
        return 1;
    }
    struct table table;
    struct rank_result results[WEFT__MAX_RANKS];
    ranks_run_some(world, all_ranks(ranks), bench_rank, &table, results);
    weft_world_destroy(world);
    for (int r = 0; r < ranks; r++)
        if (results[r].status != WEFT_OK) {
            (void)fprintf(stderr, "bench_comm_fused: %s\n", results[r].err.text);
            return 1;
        }
    (void)printf("\nall-reduce + residual + RMSNorm, F32, %d CPU ranks (%s), microseconds\n\n"
                 "| hidden | rows | separate | one-shot | two-shot | fused | fused / separate |\n"
                 "|---|---|---|---|---|---|---|\n",
                 ranks, weft__rows_pick(false)->name);
    for (size_t h = 0; h < WEFT__COUNT(hiddens); h++)
        for (size_t r = 0; r < WEFT__COUNT(rows); r++) {
            const double *us = table.us[h][r];
            (void)printf("| %lld | %lld | %.2f | %.2f | %.2f | %.2f | %.2f |\n",
                         (long long)hiddens[h], (long long)rows[r], us[SEPARATE], us[ONE_SHOT],
                         us[TWO_SHOT], us[AUTO], us[AUTO] / us[SEPARATE]);
        }
    return 0;
}
