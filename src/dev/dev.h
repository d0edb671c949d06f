/* dev.h: the tables of device operations.
 *
 * A device has three parts, and implements each wholly or not at all:
 *   core    memory and the stream of one rank
 *   comm    the collective kernels (comm_args.h)
 *   model   the operations of a forward pass
 * Operations enqueue on the rank's stream and return; the CPU's stream runs at once, on the rank's
 * team of threads. Every pointer in a descriptor is device memory and is read when the operation
 * runs. Operations have no status: errors of the device stick and come out of `sync`.
 *
 * Numbers: activations are F32 on the CPU. A dot product over k adds lane l (k mod 8 = l) in
 * ascending k with fused multiply-adds from zero, k padded with zeros to a multiple of 8, then the
 * lanes as ((0+4)+(2+6)) + ((1+5)+(3+7));
 * every operation that multiplies matrices uses that order, so a row's bits depend neither on the
 * batch nor on the team.
 *
 * INT8 inputs, for NVFP4 weights, have an order of their own. Each 16 columns of a row become codes
 * rint(x * (127 / largest)) below the scale largest / 127. Eight columns are summed exactly, for an
 * E2M1 code doubled is an integer; lane l (k / 8 mod 8 = l) then adds sum * (weight scale * input
 * scale) with one fused multiply-add, in ascending k, and the lanes are added as above. */
#ifndef WEFT_SRC_DEV_H
#define WEFT_SRC_DEV_H

#include "base/base.h"

struct weft__dev; /* one rank's device and stream */

/* What operations are made for; the loader refuses models beyond it. */
enum {
    WEFT__PAGE = 16,            /* tokens a KV page holds; attention folds keys page by page */
    WEFT__LINEARS_MAX = 3,      /* linear: q, k and v */
    WEFT__EXPERTS_MAX = 1024,   /* route, moe_plan, linear_experts */
    WEFT__INDEX_TOP_MAX = 4096, /* top of index_select */
};

/* ---- weights ---- */

enum weft__scale_kind {
    WEFT__SCALE_NONE,  /* w = value * scale_global */
    WEFT__SCALE_NVFP4, /* E4M3, one a row and 16 columns: w = e2m1 * scale * scale_global */
    WEFT__SCALE_ROW,   /* F32, one a row: applied with scale_global */
    WEFT__SCALE_BLOCK, /* F32, one a block of 128 x 128 of the unsplit matrix: w = e4m3 * scale */
};

/* How a quantised linear wants its inputs rounded when activations are quantised; none for
 * plain weights and weight-only files. */
enum weft__activations {
    WEFT__ACTIVATIONS_F32,
    WEFT__ACTIVATIONS_NVFP4,      /* blocks of 16, below the static input_scale */
    WEFT__ACTIVATIONS_FP8_TENSOR, /* the static input_scale */
    WEFT__ACTIVATIONS_FP8_TOKEN,  /* a scale a row, from its values */
    WEFT__ACTIVATIONS_FP8_BLOCK,  /* a scale a row and 128 columns of the unsplit matrix */
};

/* One linear's weight on one rank: a slice of the file's tensor, borrowed from the mapping. Data
 * need not be aligned. */
struct weft__matrix {
    weft_dtype dtype;    /* F32, F16, BF16, F8_E4M3, F4_E2M1 */
    int64_t rows, cols;  /* [out, in] of this slice */
    const uint8_t *data; /* first byte of the slice; F4: two values a byte, low nibble first */
    int64_t row_bytes;   /* from one row to the next */
    enum weft__scale_kind scale_kind;
    const uint8_t *scale; /* NVFP4, ROW: of the slice's first row and column; BLOCK: whole table */
    int64_t scale_row_bytes;      /* from one row of scales to the next */
    int64_t block_row, block_col; /* BLOCK: where the slice starts in the unsplit matrix */
    float scale_global;           /* applied to the finished dot product, before the bias */
    const float *bias;            /* [rows], or NULL */
    enum weft__activations activations;
    float input_scale; /* the same for all linears that share an input */
};

/* ---- batch: one step's work, immutable while the step runs; every rank reads the same one ---- */

struct weft__seq {
    int32_t row;          /* first row of this sequence in the batch */
    int32_t count;        /* rows: query tokens, at least 1 */
    int32_t kv_len;       /* keys visible to the last row, itself included */
    bool generated;       /* rows were sampled, not prompt: MLA takes its absorbed form */
    const int32_t *pages; /* [ceil(kv_len / PAGE)] page numbers, the same on every rank */
};

struct weft__batch {
    int32_t tokens, seqs, outputs;
    const int32_t *token;        /* [tokens] ids */
    const int32_t *position;     /* [tokens] */
    const int64_t *slot;         /* [tokens] page * PAGE + offset that receives the row's KV */
    const struct weft__seq *seq; /* [seqs], rows ascending and contiguous */
    const int32_t *output;       /* [outputs] rows whose logits are wanted, ascending */
};

/* ---- operation descriptors; strides count elements ---- */

struct weft__op_embed {
    const struct weft__matrix *table; /* [vocab, hidden] */
    const int32_t *token;             /* [tokens] */
    int64_t tokens;
    float *y; /* [tokens, hidden] */
};

struct weft__op_linear {             /* y = x W^T + bias; no columns: y = bias or 0 */
    const struct weft__matrix *w;    /* [count] of equal columns: their results lie side by side */
    int64_t count;                   /* at most WEFT__LINEARS_MAX */
    const float *x;                  /* [tokens, w->cols] */
    const struct weft__int8 *x_int8; /* NULL, or what round_int8 made of x, for what is NVFP4 */
    int64_t x_stride, tokens;
    float *y; /* [tokens, rows of all] */
    int64_t y_stride;
};

/* One small product a head: W_h is `rows` rows of w from first_row + h * row_step. No bias when
 * transposed. */
struct weft__op_linear_heads {
    const struct weft__matrix *w;
    int64_t heads, first_row, row_step, rows;
    bool transposed; /* false: y = x W_h^T; true: y = x W_h */
    const float *x;  /* [tokens, heads, transposed ? rows : cols] */
    int64_t x_stride, x_head_stride, tokens;
    float *y; /* [tokens, heads, transposed ? cols : rows] */
    int64_t y_stride, y_head_stride;
};

struct weft__op_linear_experts {  /* y[i] = x[x_row[i]] W_e^T for i in offset[e] .. offset[e+1] */
    const struct weft__matrix *w; /* [experts] */
    const int32_t *offset;        /* [experts + 1] */
    int64_t experts;
    const float *x;
    const struct weft__int8 *x_int8; /* as op_linear's */
    int64_t x_stride;
    const int32_t *x_row; /* [offset[experts]], or NULL: i */
    float *y;
    int64_t y_stride;
};

struct weft__op_norm { /* RMS norm; with centred: LayerNorm. In place allowed */
    const float *x;    /* [tokens, heads, dim] */
    int64_t x_stride, x_head_stride, tokens, heads, dim;
    const float *weight, *bias; /* [dim]; bias only when centred */
    float eps;
    bool centred;
    float *y;
    int64_t y_stride, y_head_stride;
};

struct weft__op_rope_table { /* angle = position * frequency, formed in double */
    const int32_t *position; /* [tokens] */
    const float *frequency;  /* [half] */
    float factor;            /* multiplies cos and sin */
    int64_t tokens, half;
    float *cosine, *sine; /* [tokens, half] */
};

struct weft__op_rope { /* rotates the first 2 * half elements of each head, in place */
    float *x;
    int64_t stride, head_stride, tokens, heads, half;
    const float *cosine, *sine; /* [tokens, half] */
    bool interleaved;           /* pairs (2j, 2j+1), else (j, j + half) */
};

struct weft__op_kv_store { /* cache[slot[t], column ..] = x[t] */
    const float *x;        /* [tokens, width] */
    int64_t x_stride, tokens, width;
    const int64_t *slot;
    float *cache; /* [pages * PAGE, row] */
    int64_t row, column;
};

struct weft__op_kv_load { /* y[i] = cache row of key i, for i < count; for MLA's naive form */
    const float *cache;
    int64_t row, column, width, count;
    const int32_t *pages;
    float *y;
    int64_t y_stride;
};

/* Softmax attention of query rows over their sequences' keys, with an online softmax over pages of
 * keys in ascending order. Key j of a sequence is at slot pages[j / PAGE] * PAGE + j % PAGE. */
struct weft__op_attention {
    const struct weft__seq *seq;
    int64_t seqs;
    int64_t heads, key_dim, value_dim;
    const int32_t *kv_head; /* [heads] which of the rank's KV heads each query head reads */
    const float *q;         /* [tokens, heads, key_dim] */
    int64_t q_stride;
    const float *k; /* [slots, kv heads, key_dim]: */
    int64_t k_stride, k_head_stride;
    const float *v; /* [slots, kv heads, value_dim] */
    int64_t v_stride, v_head_stride;
    float scale;
    int64_t window;                /* 0, or a query sees keys with position > its own - window */
    const int32_t *selected;       /* NULL, or [tokens, selected_stride] key positions, ascending */
    const int32_t *selected_count; /* [tokens]; -1: every visible key */
    int64_t selected_stride;
    float *y; /* [tokens, heads, value_dim] */
    int64_t y_stride;
};

/* The sparse indexer: for each row the `top` keys with the largest
 * sum over heads of weight * heads^-1/2 * relu(dim^-1/2 q.k); equal scores: lower position first.
 * Rows that see at most `top` keys get count -1 and no list. */
struct weft__op_index_select {
    const struct weft__seq *seq;
    int64_t seqs, heads, dim, top;
    const float *q; /* [tokens, heads, dim] */
    int64_t q_stride;
    const float *weight; /* [tokens, heads] */
    int64_t weight_stride;
    const float *k; /* [slots, dim] */
    int64_t k_stride;
    int32_t *selected; /* [tokens, top] ascending positions */
    int32_t *count;    /* [tokens] */
};

/* As transformers routes qwen3_moe or, sigmoid, deepseek_v3. Equal scores: lower expert first. */
struct weft__op_route {
    const float *logits; /* [tokens, experts] */
    const float *bias;   /* [experts] added for choosing only, or NULL */
    int64_t tokens, experts, top, groups, top_groups;
    bool sigmoid, normalise;
    float scale;
    int32_t *expert; /* [tokens, top] in order of choice */
    float *weight;   /* [tokens, top] */
};

struct weft__op_moe_plan { /* sorts the (token, choice) pairs by expert, tokens ascending */
    const int32_t *expert; /* [tokens, top] */
    int64_t tokens, top, experts;
    int32_t *offset; /* [experts + 1] */
    int32_t *x_row;  /* [tokens * top] the token of each sorted row */
    int32_t *slot;   /* [tokens, top] the sorted row of each pair */
};

struct weft__op_silu_mul { /* y = silu(gate) * up; in place allowed */
    const float *gate, *up;
    int64_t x_stride, rows, width;
    float *y;
    int64_t y_stride;
};

struct weft__op_copy { /* y[i, h] = x[row ? row[i] : i, h]; a head stride of 0 in x repeats it */
    const float *x;
    int64_t x_stride, x_head_stride, rows, heads, width;
    const int32_t *row; /* [rows], or NULL */
    float *y;
    int64_t y_stride, y_head_stride;
};

/* y = the values that x, quantised, stands for. In place allowed. */
struct weft__op_quantise_activations {
    const float *x;
    int64_t x_stride, rows, width;
    enum weft__activations kind;
    float input_scale;    /* NVFP4, FP8_TENSOR */
    int64_t first_column; /* FP8_BLOCK: of x in the unsplit input */
    float *y;
    int64_t y_stride;
};

/* INT8 inputs in the device's own layout. A row is ceil(width / WEFT__INT8_COLUMNS) of these. */
enum { WEFT__INT8_COLUMNS = 64, WEFT__INT8_BYTES = 128 };
struct weft__int8 {
    alignas(32) uint8_t bytes[WEFT__INT8_BYTES];
};

/* A 16-column block that holds a NaN or infinity, or a largest above 2^127, stands for NaN; one
 * whose largest is below 2^-100 for zeros. */
struct weft__op_round_int8 {
    const float *x;
    int64_t x_stride, rows, width;
    struct weft__int8 *y; /* [rows, ceil(width / INT8_COLUMNS)] */
};

/* ---- the tables ---- */

struct weft__dev_options {
    int threads;         /* the rank's team, at least 1 */
    int first_cpu;       /* thread i is pinned to first_cpu + i; -1: not pinned. Thread 0 is the one
                            that calls open: the same must then call the operations */
    const char *kernels; /* "avx512", "avx2" or "portable"; NULL: the fastest that run here */
};

struct weft__dev_core {
    const char *name;
    weft_status (*open)(const struct weft__dev_options *options, struct weft__dev **out,
                        weft_error *err);
    void (*close)(struct weft__dev *dev);
    /* Zeroed device memory aligned to 64 bytes; NULL when there is none left. */
    void *(*alloc)(struct weft__dev *dev, size_t bytes);
    void (*free)(struct weft__dev *dev, void *memory);
    /* Repacks a weight for the device, once, at load; the result belongs to the device. */
    weft_status (*prepare)(struct weft__dev *dev, struct weft__matrix *w, weft_error *err);
    weft_status (*sync)(struct weft__dev *dev, weft_error *err);
};

/* name of the entry, which takes a struct weft__op_<name> */
#define WEFT__MODEL_OPS(X)  \
    X(embed)                \
    X(linear)               \
    X(linear_heads)         \
    X(linear_experts)       \
    X(norm)                 \
    X(rope_table)           \
    X(rope)                 \
    X(kv_store)             \
    X(kv_load)              \
    X(attention)            \
    X(index_select)         \
    X(route)                \
    X(moe_plan)             \
    X(silu_mul)             \
    X(copy)                 \
    X(quantise_activations) \
    X(round_int8)

struct weft__dev_model {
#define X(name) void (*name)(struct weft__dev * dev, const struct weft__op_##name *op);
    WEFT__MODEL_OPS(X)
#undef X
};

struct weft__device {
    const struct weft__dev_core *core;
    const struct weft__dev_model *model;
};

extern const struct weft__device weft__cpu;

/* ---- loads of a known kind, for measuring what they draw (cuda/load.c) ---- */

enum weft__load { WEFT__LOAD_SPIN, WEFT__LOAD_MEMORY, WEFT__LOAD_COMPUTE };

/* Runs one for the time on the CUDA device with this UUID: "GPU-8-4-4-4-12", as NVML has it. */
WEFT_CHECKED weft_status weft__cuda_run_load(const char *uuid, enum weft__load what, uint64_t ns,
                                             weft_error *err);

#endif
