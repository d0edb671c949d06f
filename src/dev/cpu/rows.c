/* Operations on rows: a team shares the rows. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/numerics.h"
#include "cpu.h"

enum { UNIT_ELEMENTS = 8 * 1024 }; /* worth a unit of their own */

/* Row by row, blocks of them a unit. */
struct rows_job {
    void (*row)(const struct weft__dev *dev, const void *op, int64_t row);
    const void *op;
    int64_t rows, block;
};

static void rows_unit(struct weft__dev *dev, const void *arg, int64_t unit, int thread)
{
    (void)thread;
    const struct rows_job *job = arg;
    int64_t end = weft__min((unit + 1) * job->block, job->rows);
    for (int64_t row = unit * job->block; row < end; row++) job->row(dev, job->op, row);
}

static void run_rows(struct weft__dev *dev, int64_t rows, int64_t width,
                     void (*row)(const struct weft__dev *, const void *, int64_t), const void *op)
{
    struct rows_job job = {.row = row, .op = op, .rows = rows};
    int64_t even = weft__ceil_div(rows, 2 * (int64_t)dev->threads);
    job.block = weft__max(weft__max(UNIT_ELEMENTS / weft__max(width, 1), even), 1);
    weft__team_run(dev, weft__ceil_div(rows, job.block), rows_unit, &job);
}

static void embed_row(const struct weft__dev *dev, const void *arg, int64_t row)
{
    const struct weft__op_embed *op = arg;
    assert(op->token[row] >= 0 && op->token[row] < op->table->rows);
    dev->kernels->decode_row(dev, op->table, op->token[row], op->y + row * op->table->cols);
}

void weft__cpu_embed(struct weft__dev *dev, const struct weft__op_embed *op)
{
    run_rows(dev, op->tokens, op->table->cols, embed_row, op);
}

/* y = (x - mean) / sqrt(variance + eps) * weight + bias; sums run from first to last. */
static void centred(const float *x, const struct weft__op_norm *op, float *y)
{
    float sum = 0, squares = 0;
    for (int64_t i = 0; i < op->dim; i++) sum += x[i];
    float mean = sum / (float)op->dim;
    for (int64_t i = 0; i < op->dim; i++) squares += (x[i] - mean) * (x[i] - mean);
    float factor = 1.0f / sqrtf(squares / (float)op->dim + op->eps);
    for (int64_t i = 0; i < op->dim; i++) {
        float scaled = (x[i] - mean) * factor * op->weight[i];
        y[i] = op->bias != NULL ? scaled + op->bias[i] : scaled;
    }
}

static void norm_row(const struct weft__dev *dev, const void *arg, int64_t row)
{
    const struct weft__op_norm *op = arg;
    for (int64_t h = 0; h < op->heads; h++) {
        const float *x = op->x + row * op->x_stride + h * op->x_head_stride;
        float *y = op->y + row * op->y_stride + h * op->y_head_stride;
        if (op->centred)
            centred(x, op, y);
        else
            weft__rmsnorm_row(dev->rows, x, op->weight, op->eps, y, op->dim);
    }
}

void weft__cpu_norm(struct weft__dev *dev, const struct weft__op_norm *op)
{
    run_rows(dev, op->tokens, op->heads * op->dim, norm_row, op);
}

static void rope_table_row(const struct weft__dev *dev, const void *arg, int64_t row)
{
    (void)dev;
    const struct weft__op_rope_table *op = arg;
    for (int64_t j = 0; j < op->half; j++) {
        double angle = (double)op->position[row] * (double)op->frequency[j];
        op->cosine[row * op->half + j] = (float)cos(angle) * op->factor;
        op->sine[row * op->half + j] = (float)sin(angle) * op->factor;
    }
}

void weft__cpu_rope_table(struct weft__dev *dev, const struct weft__op_rope_table *op)
{
    enum { COST = 32 }; /* of a sine and a cosine, in elements */
    run_rows(dev, op->tokens, COST * op->half, rope_table_row, op);
}

static void rope_row(const struct weft__dev *dev, const void *arg, int64_t row)
{
    (void)dev;
    const struct weft__op_rope *op = arg;
    const float *cosine = op->cosine + row * op->half, *sine = op->sine + row * op->half;
    const int64_t half = op->half;
    for (int64_t h = 0; h < op->heads; h++) {
        float *x = op->x + row * op->stride + h * op->head_stride;
        if (op->interleaved) {
            for (int64_t j = 0; j < half; j++) {
                float u = x[2 * j], v = x[2 * j + 1];
                x[2 * j] = u * cosine[j] - v * sine[j];
                x[2 * j + 1] = v * cosine[j] + u * sine[j];
            }
        } else {
            for (int64_t j = 0; j < half; j++) {
                float u = x[j], v = x[j + half];
                x[j] = u * cosine[j] - v * sine[j];
                x[j + half] = v * cosine[j] + u * sine[j];
            }
        }
    }
}

void weft__cpu_rope(struct weft__dev *dev, const struct weft__op_rope *op)
{
    run_rows(dev, op->tokens, 2 * op->heads * op->half, rope_row, op);
}

static void kv_store_row(const struct weft__dev *dev, const void *arg, int64_t row)
{
    (void)dev;
    const struct weft__op_kv_store *op = arg;
    memcpy(op->cache + op->slot[row] * op->row + op->column, op->x + row * op->x_stride,
           (size_t)op->width * sizeof(float));
}

void weft__cpu_kv_store(struct weft__dev *dev, const struct weft__op_kv_store *op)
{
    assert(op->column + op->width <= op->row);
    if (op->width > 0) run_rows(dev, op->tokens, op->width, kv_store_row, op);
}

static void kv_load_row(const struct weft__dev *dev, const void *arg, int64_t key)
{
    (void)dev;
    const struct weft__op_kv_load *op = arg;
    int64_t slot = (int64_t)op->pages[key / WEFT__PAGE] * WEFT__PAGE + key % WEFT__PAGE;
    memcpy(op->y + key * op->y_stride, op->cache + slot * op->row + op->column,
           (size_t)op->width * sizeof(float));
}

void weft__cpu_kv_load(struct weft__dev *dev, const struct weft__op_kv_load *op)
{
    assert(op->column + op->width <= op->row);
    if (op->width > 0) run_rows(dev, op->count, op->width, kv_load_row, op);
}

static void silu_mul_row(const struct weft__dev *dev, const void *arg, int64_t row)
{
    const struct weft__op_silu_mul *op = arg;
    dev->kernels->silu_mul(op->gate + row * op->x_stride, op->up + row * op->x_stride,
                           op->y + row * op->y_stride, op->width);
}

void weft__cpu_silu_mul(struct weft__dev *dev, const struct weft__op_silu_mul *op)
{
    run_rows(dev, op->rows, op->width, silu_mul_row, op);
}

static void copy_row(const struct weft__dev *dev, const void *arg, int64_t row)
{
    (void)dev;
    const struct weft__op_copy *op = arg;
    const float *x = op->x + (op->row != NULL ? op->row[row] : row) * op->x_stride;
    for (int64_t h = 0; h < op->heads; h++)
        memcpy(op->y + row * op->y_stride + h * op->y_head_stride, x + h * op->x_head_stride,
               (size_t)op->width * sizeof(float));
}

void weft__cpu_copy(struct weft__dev *dev, const struct weft__op_copy *op)
{
    if (op->width > 0) run_rows(dev, op->rows, op->heads * op->width, copy_row, op);
}

/* The largest magnitude; NaN when there is one. */
static float largest(const float *x, int64_t n)
{
    float amax = 0;
    for (int64_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        if (!(a <= amax)) amax = a;
        if (isnan(amax)) break;
    }
    return amax;
}

static void fp8_values(const float *x, int64_t n, float scale, float *y)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = weft__f32_from_e4m3(weft__e4m3_from_f32(x[i] / scale)) * scale;
}

static void nvfp4_values(const float *x, int64_t n, float input_scale, float *y)
{
    float G = 1.0f / input_scale;
    uint8_t scale = weft__nvfp4_scale(largest(x, n), G);
    float inverse = weft__nvfp4_inverse(scale, G), step = weft__f32_from_e4m3(scale);
    for (int64_t i = 0; i < n; i++)
        y[i] = weft__f32_from_e2m1(weft__e2m1_from_f32(x[i] * inverse)) * step * input_scale;
}

static void quantise_row(const struct weft__dev *dev, const void *arg, int64_t row)
{
    enum { NVFP4_BLOCK = 16, FP8_BLOCK = 128 };
    (void)dev;
    const struct weft__op_quantise_activations *op = arg;
    const float *x = op->x + row * op->x_stride;
    float *y = op->y + row * op->y_stride;
    if (op->kind == WEFT__ACTIVATIONS_FP8_TENSOR) {
        fp8_values(x, op->width, op->input_scale, y);
        return;
    }
    int64_t block = op->kind == WEFT__ACTIVATIONS_NVFP4       ? NVFP4_BLOCK
                    : op->kind == WEFT__ACTIVATIONS_FP8_BLOCK ? FP8_BLOCK
                                                              : op->width;
    int64_t into = op->kind == WEFT__ACTIVATIONS_FP8_BLOCK ? op->first_column % FP8_BLOCK : 0;
    for (int64_t at = 0, n; at < op->width; at += n, into = 0) {
        n = weft__min(block - into, op->width - at);
        if (op->kind == WEFT__ACTIVATIONS_NVFP4)
            nvfp4_values(x + at, n, op->input_scale, y + at);
        else
            fp8_values(x + at, n, weft__fp8_token_scale(largest(x + at, n)), y + at);
    }
}

void weft__cpu_quantise_activations(struct weft__dev *dev,
                                    const struct weft__op_quantise_activations *op)
{
    assert(op->kind != WEFT__ACTIVATIONS_F32);
    if (op->width > 0) run_rows(dev, op->rows, op->width, quantise_row, op);
}

static void round_int8_row(const struct weft__dev *dev, const void *arg, int64_t row)
{
    const struct weft__op_round_int8 *op = arg;
    struct weft__int8 *y = op->y + row * weft__ceil_div(op->width, WEFT__INT8_COLUMNS);
    dev->kernels->round_int8(op->x + row * op->x_stride, op->width,
                             (struct weft__int8_chunk *)(void *)y);
}

void weft__cpu_round_int8(struct weft__dev *dev, const struct weft__op_round_int8 *op)
{
    run_rows(dev, op->rows, op->width, round_int8_row, op);
}
