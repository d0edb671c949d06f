/* Matrix products: how a team shares them. Units are blocks of outputs, so their size changes no
 * bit; it is chosen so that every thread gets some and a unit is worth handing out. */
#include <assert.h>

#include "cpu.h"

enum {
    UNIT_WORK = 16 * 1024, /* multiply-adds that are worth a unit of their own */
    UNITS_A_THREAD = 4,    /* so that a thread which is late does not keep the others waiting */
    ROW_STEP = 4,          /* rows that the kernels compute side by side */
};

/* Rows a unit for `rows` rows that cost `row_work` each, when other units number `others`. */
static int64_t unit_rows(const struct weft__dev *dev, int64_t rows, int64_t row_work,
                         int64_t others)
{
    if (dev->threads == 1) return weft__max(rows, 1);
    int64_t parts = weft__ceil_div((int64_t)dev->threads * UNITS_A_THREAD, weft__max(others, 1));
    int64_t even = weft__ceil_div(rows, parts);
    int64_t worth = weft__ceil_div(UNIT_WORK, weft__max(row_work, 1));
    int64_t unit = weft__max(weft__max(even, worth), 1);
    return weft__ceil_div(unit, ROW_STEP) * ROW_STEP;
}

static void check(const struct weft__matrix *w)
{
    assert(w->rows >= 0 && w->cols >= 0);
    assert((w->dtype == WEFT_F4_E2M1) == (w->scale_kind == WEFT__SCALE_NVFP4));
    assert(w->scale_kind == WEFT__SCALE_NONE || w->scale != NULL);
    (void)w;
}

/* Row `row` of INT8 inputs; NULL without. */
static const struct weft__int8_chunk *int8_from(const struct weft__int8 *x,
                                                const struct weft__matrix *w, int64_t row)
{
    if (x == NULL || w->dtype != WEFT_F4_E2M1) return NULL;
    return (const struct weft__int8_chunk *)(const void *)(x +
                                                           row * weft__ceil_div(
                                                                     w->cols, WEFT__INT8_COLUMNS));
}

/* ---- linear ---- */

struct linear_job {
    const struct weft__op_linear *op;
    int64_t rows, tokens;                 /* of a unit */
    int64_t end[WEFT__LINEARS_MAX];       /* of each matrix's units for the same tokens */
    int64_t first_row[WEFT__LINEARS_MAX]; /* of each matrix in y */
};

static void linear_unit(struct weft__dev *dev, const void *arg, int64_t unit, int thread)
{
    const struct linear_job *job = arg;
    const struct weft__op_linear *op = job->op;
    int64_t row_units = job->end[op->count - 1], at = unit % row_units, i = 0;
    while (at >= job->end[i]) i++;
    const struct weft__matrix *w = &op->w[i];
    int64_t row = (at - (i > 0 ? job->end[i - 1] : 0)) * job->rows;
    int64_t token = unit / row_units * job->tokens;
    dev->kernels->product(
        dev,
        &(struct weft__product){.w = w,
                                .row = row,
                                .rows = weft__min(job->rows, w->rows - row),
                                .x = op->x + token * op->x_stride,
                                .x_int8 = int8_from(op->x_int8, w, token),
                                .x_stride = op->x_stride,
                                .tokens = weft__min(job->tokens, op->tokens - token),
                                .y = op->y + token * op->y_stride + job->first_row[i] + row,
                                .y_stride = op->y_stride},
        &dev->scratch[thread]);
}

void weft__cpu_linear(struct weft__dev *dev, const struct weft__op_linear *op)
{
    assert(op->count >= 1 && op->count <= WEFT__LINEARS_MAX);
    struct linear_job job = {.op = op};
    int64_t rows = 0, row_units = 0;
    for (int64_t i = 0; i < op->count; i++) {
        check(&op->w[i]);
        assert(op->w[i].cols == op->w->cols);
        job.first_row[i] = rows;
        rows += op->w[i].rows;
    }
    if (op->tokens == 0 || rows == 0) return;
    int64_t token_units = weft__ceil_div(op->tokens, WEFT__TILE_TOKENS);
    job.tokens = weft__ceil_div(op->tokens, token_units);
    token_units = weft__ceil_div(op->tokens, job.tokens);
    job.rows = unit_rows(dev, rows, op->w->cols * job.tokens, token_units);
    for (int64_t i = 0; i < op->count; i++)
        job.end[i] = row_units += weft__ceil_div(op->w[i].rows, job.rows);
    weft__team_run(dev, row_units * token_units, linear_unit, &job);
}

/* ---- linear_heads ---- */

struct heads_job {
    const struct weft__op_linear_heads *op;
    int64_t columns, column_units; /* outputs of a head in a unit */
};

static void heads_unit(struct weft__dev *dev, const void *arg, int64_t unit, int thread)
{
    const struct heads_job *job = arg;
    const struct weft__op_linear_heads *op = job->op;
    int64_t head = unit / job->column_units, column = unit % job->column_units * job->columns;
    int64_t row = op->first_row + head * op->row_step;
    int64_t columns = weft__min(job->columns, (op->transposed ? op->w->cols : op->rows) - column);
    const float *x = op->x + head * op->x_head_stride;
    float *y = op->y + head * op->y_head_stride + column;
    if (op->transposed)
        dev->kernels->product_t(dev,
                                &(struct weft__product_t){.w = op->w,
                                                          .row = row,
                                                          .rows = op->rows,
                                                          .column = column,
                                                          .columns = columns,
                                                          .x = x,
                                                          .x_stride = op->x_stride,
                                                          .tokens = op->tokens,
                                                          .y = y,
                                                          .y_stride = op->y_stride},
                                &dev->scratch[thread]);
    else
        dev->kernels->product(dev,
                              &(struct weft__product){.w = op->w,
                                                      .row = row + column,
                                                      .rows = columns,
                                                      .x = x,
                                                      .x_stride = op->x_stride,
                                                      .tokens = op->tokens,
                                                      .y = y,
                                                      .y_stride = op->y_stride},
                              &dev->scratch[thread]);
}

void weft__cpu_linear_heads(struct weft__dev *dev, const struct weft__op_linear_heads *op)
{
    check(op->w);
    assert(!op->transposed || op->w->bias == NULL);
    assert(op->heads == 0 ||
           op->first_row + (op->heads - 1) * op->row_step + op->rows <= op->w->rows);
    int64_t outputs = op->transposed ? op->w->cols : op->rows;
    if (op->tokens == 0 || op->heads == 0 || outputs == 0) return;
    int64_t length = op->transposed ? op->rows : op->w->cols;
    struct heads_job job = {.op = op};
    job.columns = unit_rows(dev, outputs, length * op->tokens, op->heads);
    if (op->transposed) /* columns are decoded in whole chunks */
        job.columns = weft__ceil_div(job.columns, WEFT__CHUNK) * WEFT__CHUNK;
    job.column_units = weft__ceil_div(outputs, job.columns);
    weft__team_run(dev, op->heads * job.column_units, heads_unit, &job);
}

/* ---- linear_experts ---- */

struct experts_job {
    const struct weft__op_linear_experts *op;
    int64_t rows, row_units;
};

static void experts_unit(struct weft__dev *dev, const void *arg, int64_t unit, int thread)
{
    const struct experts_job *job = arg;
    const struct weft__op_linear_experts *op = job->op;
    int32_t expert = dev->active[unit / job->row_units];
    const struct weft__matrix *w = &op->w[expert];
    int64_t first = op->offset[expert], row = unit % job->row_units * job->rows;
    dev->kernels->product(
        dev,
        &(struct weft__product){.w = w,
                                .row = row,
                                .rows = weft__min(job->rows, w->rows - row),
                                .x = op->x + (op->x_row != NULL ? 0 : first * op->x_stride),
                                .x_int8 = int8_from(op->x_int8, w, op->x_row != NULL ? 0 : first),
                                .x_stride = op->x_stride,
                                .tokens = op->offset[expert + 1] - first,
                                .x_row = op->x_row != NULL ? op->x_row + first : NULL,
                                .y = op->y + first * op->y_stride + row,
                                .y_stride = op->y_stride},
        &dev->scratch[thread]);
}

void weft__cpu_linear_experts(struct weft__dev *dev, const struct weft__op_linear_experts *op)
{
    assert(op->experts <= WEFT__EXPERTS_MAX);
    int64_t active = 0;
    for (int32_t e = 0; e < op->experts; e++) {
        check(&op->w[e]);
        assert(op->w[e].rows == op->w[0].rows);
        if (op->offset[e + 1] > op->offset[e]) dev->active[active++] = e;
    }
    if (active == 0 || op->w[0].rows == 0) return;
    int64_t tokens = weft__ceil_div(op->offset[op->experts], active);
    struct experts_job job = {.op = op};
    job.rows = unit_rows(dev, op->w[0].rows, op->w[0].cols * tokens, active);
    job.row_units = weft__ceil_div(op->w[0].rows, job.rows);
    weft__team_run(dev, active * job.row_units, experts_unit, &job);
}
