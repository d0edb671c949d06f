/* cpu.h: inside the CPU device: a rank's team of threads and the kernels it runs.
 *
 * Kernels are written once, in eight-lane vectors (*_body.h), and compiled three times: kernels.c
 * for any processor, kernels_avx2.c for AVX2, FMA and F16C, kernels_avx512.c for AVX-512 with VNNI,
 * where a register holds two rows. All give the same bits. */
#ifndef WEFT_SRC_DEV_CPU_H
#define WEFT_SRC_DEV_CPU_H

#include <assert.h>

#include "comm_rows.h"
#include "dev/dev.h"

/* ---- team: the calling thread leads, threads - 1 workers follow ---- */

struct weft__team;

/* Computes output unit `unit`; units are independent and are handed out in any order. */
typedef void weft__unit_fn(struct weft__dev *dev, const void *arg, int64_t unit, int thread);

weft_status weft__team_open(struct weft__dev *dev, const struct weft__dev_options *options,
                            struct weft__team **out, weft_error *err);
void weft__team_close(struct weft__team *team);

/* Runs all units and returns when they are done. */
void weft__team_run(struct weft__dev *dev, int64_t units, weft__unit_fn *fn, const void *arg);

/* ---- kernels ---- */

enum {
    WEFT__TILE_ROWS = 32,    /* weight rows whose sums wait between panels of columns */
    WEFT__TILE_TOKENS = 48,  /* token rows that meet them */
    WEFT__TILE_K = 768,      /* columns of a panel */
    WEFT__TILE_QUERIES = 48, /* (row, head) pairs that meet a page of keys */
    WEFT__CHUNK = 32,        /* columns decoded together: whole bytes, whole scales */
};

/* The best `top` candidates of a row of index_select so far; one a thread. */
struct weft__ranking {
    uint64_t *kept; /* [2 * top] scores and positions, positions ascending */
    int64_t count, top;
    uint64_t least; /* what is not above it has lost already */
};

/* Work space of one thread. */
struct weft__scratch {
    float *panel;     /* [TILE_ROWS, TILE_K] decoded weights, inputs or a page of keys */
    float *sums;      /* [TILE_ROWS, TILE_TOKENS, 8] lanes of unfinished dot products */
    uint64_t *ranked; /* [2, WEFT__INDEX_TOP_MAX] for ranking */
    struct weft__ranking ranking;
};

/* 64 columns of an INT8 row. Even columns first: that is how packed codes fall apart. */
struct weft__int8_chunk {
    alignas(32) int8_t code[WEFT__INT8_COLUMNS];
    int32_t sum[8]; /* of each lane's eight codes, times -12 */
    float scale[8]; /* of each lane's block, times 2^8 / 2: what an NVFP4 scale is short of */
};
static_assert(sizeof(struct weft__int8_chunk) == WEFT__INT8_BYTES, "the layout's size is known");

/* y[t, r] = x[t] . w[row + r], for r < rows, t < tokens */
struct weft__product {
    const struct weft__matrix *w;
    int64_t row, rows;
    const float *x;
    const struct weft__int8_chunk *x_int8; /* NULL, or [.., ceil(cols / INT8_COLUMNS)] for x */
    int64_t x_stride, tokens;
    const int32_t *x_row; /* [tokens], or NULL: t */
    float *y;             /* of row `row` and token 0 */
    int64_t y_stride;
};

/* y[t, c] = sum over r of x[t, r] w[row + r, column + c], for c < columns */
struct weft__product_t {
    const struct weft__matrix *w;
    int64_t row, rows, column, columns;
    const float *x;
    int64_t x_stride, tokens;
    float *y; /* of column `column` and token 0 */
    int64_t y_stride;
};

/* Rows row .. row + rows of a sequence, heads head .. head + heads, all of one KV head. */
struct weft__attend {
    const struct weft__op_attention *op;
    const struct weft__seq *seq;
    int64_t row, rows, head, heads; /* rows * heads <= TILE_QUERIES; row within the sequence */
};

struct weft__kernels {
    const char *name;
    void (*product)(const struct weft__dev *dev, const struct weft__product *p,
                    struct weft__scratch *scratch);
    void (*product_t)(const struct weft__dev *dev, const struct weft__product_t *p,
                      struct weft__scratch *scratch);
    /* One row of a table, scales included. */
    void (*decode_row)(const struct weft__dev *dev, const struct weft__matrix *w, int64_t row,
                       float *y);
    void (*attend)(const struct weft__attend *a, struct weft__scratch *scratch);
    /* score[j] of keys key .. key + count of a sequence, count <= WEFT__PAGE, all of one page. */
    void (*index_score)(const struct weft__op_index_select *op, const struct weft__seq *seq,
                        int64_t row, int64_t key, int64_t count, float *score);
    void (*round_int8)(const float *x, int64_t n, struct weft__int8_chunk *y);
    void (*silu_mul)(const float *gate, const float *up, float *y, int64_t n);
    void (*exp)(const float *x, float sign, float shift, float *y,
                int64_t n); /* e^(sign x + shift) */
};

extern const struct weft__kernels weft__kernels_portable;
#if defined(__x86_64__)
extern const struct weft__kernels weft__kernels_avx2, weft__kernels_avx512;
#endif

/* ---- one rank's device ---- */

/* What E2M1 codes are worth under a scale, as BF16: six bits of it are needed at most. */
struct weft__nvfp4 {
    uint8_t low[16], high[16]; /* bytes */
};

struct weft__dev {
    struct weft__nvfp4 nvfp4[256]; /* by the scale's code; first, so that an index is an address */
    const struct weft__kernels *kernels;
    const struct weft__rows *rows; /* shared with the collectives */
    struct weft__team *team;
    int threads;
    struct weft__scratch *scratch; /* [threads] */
    void *scratch_memory;
    int32_t *active;        /* [WEFT__EXPERTS_MAX] experts that have rows */
    float e4m3[256];        /* value of each code */
    float nvfp4_scale[256]; /* the same * 2^-25: the kernels hold 2^25 * e2m1 */
};

/* ---- operations ---- */

#define X(name) void weft__cpu_##name(struct weft__dev *dev, const struct weft__op_##name *op);
WEFT__MODEL_OPS(X)
#undef X

#endif
