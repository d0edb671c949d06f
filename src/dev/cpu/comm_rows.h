/* comm_rows.h: operations on one row, bit-equal in every implementation. n counts elements.
 * Pointers need no alignment. NaN results are canonical. */
#ifndef WEFT_SRC_COMM_ROWS_H
#define WEFT_SRC_COMM_ROWS_H

#include "base/base.h"

/* round(residual + ((part_0 + part_1) + ...)) */
struct weft__row_fold {
    weft_dtype dtype; /* F32, F16, BF16: of parts, residual and out */
    int parts;        /* at least 1 */
    const void *part[WEFT__MAX_RANKS];
    const void *residual; /* or NULL */
    float *sum;           /* the rounded sums, or NULL */
    void *out;            /* the same, may be residual, or NULL */
};

/* round(round(in * factor) * weight) */
struct weft__row_scale {
    weft_dtype dtype; /* F32, F16, BF16: of weight and out */
    float factor;
    const void *weight; /* or NULL for ones */
    float *values;      /* the results, may be in, or NULL */
    void *out;          /* the same, or NULL */
};

struct weft__rows {
    const char *name;
    /* n a multiple of 8: */
    void (*fold)(const struct weft__row_fold *fold, int64_t n);
    void (*add_scaled)(weft_dtype dtype, const void *x, float factor, float *sum, int64_t n);
    void (*load)(weft_dtype dtype, const void *in, float *out, int64_t n);
    void (*store)(weft_dtype dtype, const float *in, void *out, int64_t n); /* rounds */
    /* memcpy, but without the mode in which AMD Zen copies 3 GB/s instead of 50 when the addresses,
     * modulo 4096, differ by less than 64; calloc and mmap give just such addresses. */
    void (*copy)(void *out, const void *in, size_t bytes);
    uint32_t (*amax)(const float *x, int64_t n); /* bits of max |x|; a NaN is the largest */
    void (*fp8)(const float *x, float scale, uint8_t *codes, int64_t n);
    /* n a multiple of 16: */
    void (*nvfp4)(const float *x, float G, uint8_t *codes, uint8_t *scales, int64_t n);
    /* any n: */
    float (*sum_squares)(const float *x, int64_t n); /* weft__sum_squares */
    void (*scale)(const struct weft__row_scale *scale, const float *in, int64_t n);
};

/* The fastest that this processor runs, or the portable one. */
const struct weft__rows *weft__rows_pick(bool portable);

extern const struct weft__rows weft__rows_portable;
#if defined(__x86_64__)
extern const struct weft__rows weft__rows_avx2;
#endif

/* y = RMSNorm(x) * weight, all F32; any n, in place allowed. */
void weft__rmsnorm_row(const struct weft__rows *rows, const float *x, const float *weight,
                       float eps, float *y, int64_t n);

#endif
