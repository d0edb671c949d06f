/* dev_case.h: runs an operation on every kind of CPU device and demands the same bits of all, every
 * element written, and nothing beside them. */
#ifndef WEFT_TESTS_DEV_CASE_H
#define WEFT_TESTS_DEV_CASE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/numerics.h"
#include "dev/dev.h"

/* The devices that must agree: the fastest kernels and every other kind, teams of several sizes. */
static const struct weft__dev_options case_options[] = {
    {.threads = 1, .first_cpu = -1},
    {.threads = 2, .first_cpu = -1},
    {.threads = 3, .first_cpu = -1},
    {.threads = 1, .first_cpu = -1, .kernels = "portable"},
    {.threads = 3, .first_cpu = -1, .kernels = "portable"},
    {.threads = 1, .first_cpu = -1, .kernels = "avx2"},
    {.threads = 1, .first_cpu = -1, .kernels = "avx512"},
};
static struct weft__dev *case_dev[WEFT__COUNT(case_options)];
static int case_devices; /* whose kernels this processor runs */

static inline int case_setup(void **state)
{
    (void)state;
    srand(7);
    case_devices = 0;
    for (size_t i = 0; i < WEFT__COUNT(case_options); i++) {
        weft_error err;
        weft_status status = weft__cpu.core->open(&case_options[i], &case_dev[case_devices], &err);
        if (status == WEFT_OK)
            case_devices++;
        else if (status == WEFT_UNSUPPORTED)
            print_message("NOT COMPARED: %s\n", err.text);
        else
            return -1;
    }
    return 0;
}

static inline int case_teardown(void **state)
{
    (void)state;
    for (int i = 0; i < case_devices; i++) weft__cpu.core->close(case_dev[i]);
    return 0;
}

static inline float case_random(void) { return (float)rand() / (float)RAND_MAX * 2 - 1; }

static inline float *case_floats(int64_t n)
{
    float *x = malloc((size_t)(n > 0 ? n : 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = case_random();
    return x;
}

/* ---- outputs: [rows, heads, width] words with strides, poisoned, canaries around ---- */

struct case_out {
    int64_t rows, heads, width, stride, head_stride;
    uint32_t *words; /* the first element; CANARY words lie before and after */
    int64_t count;
};

enum { CANARY = 32 };
static const uint32_t case_poison = 0x7fa5a5a5u; /* a signalling NaN no operation makes */

static inline struct case_out case_out(int64_t rows, int64_t heads, int64_t width, int64_t stride,
                                       int64_t head_stride)
{
    int64_t count = rows > 0 ? (rows - 1) * stride + (heads - 1) * head_stride + width : 0;
    uint32_t *block = malloc((size_t)(count + 2 * CANARY) * sizeof *block);
    for (int64_t i = 0; i < count + 2 * CANARY; i++) block[i] = case_poison;
    return (struct case_out){rows, heads, width, stride, head_stride, block + CANARY, count};
}

static inline void case_free(struct case_out *out) { free(out->words - CANARY); }

static inline float case_at(const struct case_out *out, int64_t row, int64_t head, int64_t i)
{
    return weft__f32_from_bits(out->words[row * out->stride + head * out->head_stride + i]);
}

static inline void case_check_written(const struct case_out *out)
{
    char *wanted = calloc((size_t)(out->count + 2 * CANARY), 1);
    for (int64_t r = 0; r < out->rows; r++)
        for (int64_t h = 0; h < out->heads; h++)
            memset(wanted + CANARY + r * out->stride + h * out->head_stride, 1, (size_t)out->width);
    for (int64_t i = -CANARY; i < out->count + CANARY; i++)
        if ((out->words[i] != case_poison) != (wanted[i + CANARY] != 0))
            fail_msg("element %lld of %lld is %s", (long long)i, (long long)out->count,
                     wanted[i + CANARY] ? "not written" : "overwritten");
    free(wanted);
}

/* Runs fn on every device; the result of the first. `fill` is the output's first content, or NULL:
 * for operations in place, which may leave elements as they were. */
typedef void case_fn(struct weft__dev *dev, const void *arg, void *y);

static inline struct case_out case_run(case_fn *fn, const void *arg, struct case_out shape,
                                       const void *fill)
{
    struct case_out first = {0};
    for (int i = 0; i < case_devices; i++) {
        struct case_out out =
            case_out(shape.rows, shape.heads, shape.width, shape.stride, shape.head_stride);
        if (fill != NULL) memcpy(out.words, fill, (size_t)out.count * sizeof *out.words);
        fn(case_dev[i], arg, out.words);
        if (fill == NULL) case_check_written(&out);
        if (i == 0) {
            first = out;
            continue;
        }
        for (int64_t k = -CANARY; k < out.count + CANARY; k++)
            if (out.words[k] != first.words[k])
                fail_msg("device %d, element %lld: %08x, but %08x on the first", i, (long long)k,
                         out.words[k], first.words[k]);
        case_free(&out);
    }
    return first;
}

static inline struct case_out case_shape(int64_t rows, int64_t heads, int64_t width, int64_t stride,
                                         int64_t head_stride)
{
    return (struct case_out){rows, heads, width, stride, head_stride, NULL, 0};
}

/* ---- the dot product as dev.h defines it ---- */

static inline float case_dot(const float *a, int64_t a_step, const float *b, int64_t n)
{
    float lane[8] = {0};
    for (int64_t k = 0; k < (n + 7) / 8 * 8; k++)
        lane[k % 8] = k < n ? fmaf(a[k * a_step], b[k], lane[k % 8]) : fmaf(0, 0, lane[k % 8]);
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* ---- matrices of every kind, with the values they stand for ---- */

struct case_matrix {
    struct weft__matrix m;
    float *value;  /* [rows, cols] what multiplies x, exactly */
    float *factor; /* [rows] what multiplies the finished dot product */
    double *exact; /* [rows, cols] value * factor */
    uint8_t *memory[3];
};

struct case_kind {
    weft_dtype dtype;
    enum weft__scale_kind scale;
};

#define CASE_KINDS                                                                             \
    {WEFT_F32, WEFT__SCALE_NONE}, {WEFT_F16, WEFT__SCALE_NONE}, {WEFT_BF16, WEFT__SCALE_NONE}, \
        {WEFT_F8_E4M3, WEFT__SCALE_NONE}, {WEFT_F8_E4M3, WEFT__SCALE_ROW},                     \
        {WEFT_F8_E4M3, WEFT__SCALE_BLOCK},                                                     \
    {                                                                                          \
        WEFT_F4_E2M1, WEFT__SCALE_NVFP4                                                        \
    }

static inline float case_scale(const struct weft__matrix *m, int64_t row, int64_t col)
{
    float scale = 1;
    if (m->scale_kind == WEFT__SCALE_NVFP4)
        return weft__f32_from_e4m3(m->scale[row * m->scale_row_bytes + col / 16]);
    if (m->scale_kind == WEFT__SCALE_ROW) memcpy(&scale, m->scale + row * m->scale_row_bytes, 4);
    if (m->scale_kind == WEFT__SCALE_BLOCK)
        memcpy(&scale,
               m->scale + (m->block_row + row) / 128 * m->scale_row_bytes +
                   (m->block_col + col) / 128 * 4,
               4);
    return scale;
}

static inline float case_code(const struct weft__matrix *m, int64_t row, int64_t col)
{
    const uint8_t *p = m->data + row * m->row_bytes;
    uint16_t half;
    float value;
    switch (m->dtype) {
    case WEFT_F32:
        memcpy(&value, p + 4 * col, 4);
        return value;
    case WEFT_F16:
        memcpy(&half, p + 2 * col, 2);
        return weft__f32_from_f16(half);
    case WEFT_BF16:
        memcpy(&half, p + 2 * col, 2);
        return weft__f32_from_bf16(half);
    case WEFT_F8_E4M3:
        return weft__f32_from_e4m3(p[col]);
    default:
        return weft__f32_from_e2m1((uint8_t)(p[col / 2] >> (col % 2 * 4) & 15));
    }
}

static inline void case_set(const struct weft__matrix *m, uint8_t *p, int64_t col, float value)
{
    uint16_t half = m->dtype == WEFT_F16 ? weft__f16_from_f32(value) : weft__bf16_from_f32(value);
    switch (m->dtype) {
    case WEFT_F32:
        memcpy(p + 4 * col, &value, 4);
        break;
    case WEFT_F16:
    case WEFT_BF16:
        memcpy(p + 2 * col, &half, 2);
        break;
    default:
        p[col] = weft__e4m3_from_f32(value * 100);
    }
}

static inline void case_fill_scales(struct case_matrix *c, struct case_kind kind)
{
    struct weft__matrix *m = &c->m;
    if (kind.scale == WEFT__SCALE_NVFP4) {
        m->scale_row_bytes = (m->cols + 15) / 16 + 3;
        c->memory[1] = malloc((size_t)(m->rows * m->scale_row_bytes + 1));
        m->scale = c->memory[1];
        for (int64_t i = 0; i < m->rows * m->scale_row_bytes; i++)
            c->memory[1][i] = (uint8_t)(rand() % 0x7f); /* subnormal scales too, no NaN */
        return;
    }
    if (kind.scale == WEFT__SCALE_NONE) return;
    bool block = kind.scale == WEFT__SCALE_BLOCK;
    m->block_row = block ? rand() % 200 : 0;
    m->block_col = block ? rand() % 200 : 0;
    m->scale_row_bytes = block ? ((m->block_col + m->cols) / 128 + 1) * 4 : 4;
    int64_t count = block ? (m->block_row + m->rows) / 128 + 1 : m->rows;
    c->memory[1] = malloc((size_t)(count * m->scale_row_bytes + 1));
    for (int64_t i = 0; i < count * m->scale_row_bytes / 4; i++) {
        float scale = 0.1f + (float)rand() / (float)RAND_MAX;
        memcpy(c->memory[1] + 1 + 4 * i, &scale, 4);
    }
    m->scale = c->memory[1] + 1; /* unaligned */
}

/* Random codes; odd addresses; the block of data ends with the last row. */
static inline struct case_matrix case_matrix(struct case_kind kind, int64_t rows, int64_t cols,
                                             bool bias)
{
    struct case_matrix c = {.m = {.dtype = kind.dtype,
                                  .scale_kind = kind.scale,
                                  .rows = rows,
                                  .cols = cols,
                                  .scale_global = kind.dtype == WEFT_F4_E2M1 ? 0.013f : 1.7f}};
    struct weft__matrix *m = &c.m;
    int64_t bytes = (cols * weft__dtype_bits(kind.dtype) + 7) / 8;
    m->row_bytes = bytes + rand() % 3;
    size_t total = (size_t)(rows > 0 ? (rows - 1) * m->row_bytes + bytes : 0);
    c.memory[0] = malloc(total + 1);
    m->data = c.memory[0] + 1;
    for (size_t i = 0; i < total; i++) c.memory[0][1 + i] = (uint8_t)rand();
    if (kind.dtype != WEFT_F4_E2M1)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t k = 0; k < cols; k++)
                case_set(m, c.memory[0] + 1 + r * m->row_bytes, k, case_random());
    case_fill_scales(&c, kind);
    if (bias) {
        c.memory[2] = (uint8_t *)case_floats(rows);
        m->bias = (const float *)(void *)c.memory[2];
    }
    size_t count = (size_t)(rows * cols + 1);
    c.value = malloc(count * sizeof *c.value);
    c.exact = malloc(count * sizeof *c.exact);
    c.factor = malloc((size_t)(rows + 1) * sizeof *c.factor);
    for (int64_t r = 0; r < rows; r++) {
        bool by_row = kind.scale == WEFT__SCALE_ROW;
        c.factor[r] = by_row ? case_scale(m, r, 0) * m->scale_global : m->scale_global;
        for (int64_t k = 0; k < cols; k++) {
            float code = case_code(m, r, k);
            c.value[r * cols + k] = by_row ? code : code * case_scale(m, r, k);
            c.exact[r * cols + k] =
                (double)code * (double)case_scale(m, r, k) * (double)m->scale_global;
        }
    }
    return c;
}

static inline void case_matrix_free(struct case_matrix *c)
{
    for (int i = 0; i < 3; i++) free(c->memory[i]);
    free(c->value);
    free(c->factor);
    free(c->exact);
}

/* Fails unless got is want to `ulps` rounding errors of `size`, the magnitude of what was added. */
static inline void case_near(double got, double want, double size, double ulps)
{
    if (!(fabs(got - want) <= size * ulps * 0x1p-24 + 1e-37))
        fail_msg("%.9g, not %.9g (size %g)", got, want, size);
}

#endif
