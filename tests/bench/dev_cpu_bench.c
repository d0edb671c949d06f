/* dev_cpu_bench: what the CPU device's operations reach, against the memory bandwidth and the
 * multiply-add peak that the same threads reach in the same run.
 *
 * Usage: bench_dev_cpu [THREADS [KERNELS]]. Times are the best of several; weights are taken in
 * turn from a pool larger than the caches, as in a decode step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numerics.h"
#include "dev/dev.h"

enum { POOL_MIB = 160 };

static struct weft__dev *dev;
static double bandwidth, peak; /* bytes/s, flop/s */
static uint8_t *pool;

/* ---- time ---- */

typedef void work_fn(const void *arg, int64_t round);

/* Best seconds of one call. Samples are short, so that some escape other work on the machine. */
static double best_seconds(work_fn *fn, const void *arg)
{
    enum { SAMPLE_NS = 1000000, SAMPLES = 40, ALL_NS = 400000000 };
    int64_t calls = 1, round = 0;
    double best = INFINITY;
    uint64_t begin = weft__now_ns();
    for (int sample = 0; sample < SAMPLES;) {
        uint64_t start = weft__now_ns();
        for (int64_t i = 0; i < calls; i++) fn(arg, round++);
        uint64_t spent = weft__now_ns() - start;
        if (spent < SAMPLE_NS) {
            calls *= 2;
            continue;
        }
        best = fmin(best, (double)spent * 1e-9 / (double)calls);
        sample++;
        if (sample > 2 && weft__now_ns() - begin > ALL_NS) break;
    }
    return best;
}

/* ---- the machine ---- */

enum { FMA_ROUNDS = 10000, FMA_CHAINS = 12, STREAM_PARTS = 32 };

/* Twelve independent chains of eight lanes, in registers. */
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void fma_chains(const void *arg, int64_t round)
{
    (void)arg, (void)round;
#define FMA(n) "vfmadd231ps %%ymm12, %%ymm13, %%ymm" #n "\n"
    for (int k = 0; k < FMA_ROUNDS; k++)
        __asm__ volatile(FMA(0) FMA(1) FMA(2) FMA(3) FMA(4) FMA(5) FMA(6) FMA(7) FMA(8) FMA(9)
                             FMA(10) FMA(11)::
                                 : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                                   "xmm8", "xmm9", "xmm10", "xmm11");
#undef FMA
}
#else
static void fma_chains(const void *arg, int64_t round)
{
    (void)arg;
    float sum[FMA_CHAINS * 8] = {0};
    volatile float factor = (float)round;
    float x = factor;
    for (int k = 0; k < FMA_ROUNDS; k++)
        for (int i = 0; i < FMA_CHAINS * 8; i++) sum[i] = fmaf(x, x, sum[i]);
    for (int i = 0; i < FMA_CHAINS * 8; i++) factor = sum[i];
}
#endif

/* One part of the pool, read in the order of addresses. */
#if defined(__x86_64__)
__attribute__((target("avx2")))
#endif
static void
stream_read(const void *arg, int64_t round)
{
    (void)arg;
    typedef uint64_t u64x4 __attribute__((vector_size(32)));
    size_t vectors = ((size_t)POOL_MIB << 20) / STREAM_PARTS / sizeof(u64x4);
    const u64x4 *p = (const u64x4 *)(const void *)pool + vectors * (size_t)(round % STREAM_PARTS);
    u64x4 a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i < vectors; i += 4) {
        a ^= p[i];
        b ^= p[i + 1];
        c ^= p[i + 2];
        d ^= p[i + 3];
    }
    volatile uint64_t sink = (a ^ b ^ c ^ d)[0];
    (void)sink;
}

/* Of one thread; what follows is compared with as many of them as there are. */
static void measure_machine(int threads)
{
    peak = 2.0 * 8 * FMA_CHAINS * FMA_ROUNDS / best_seconds(fma_chains, NULL) * threads;
    bandwidth = (double)((size_t)POOL_MIB << 20) / STREAM_PARTS / best_seconds(stream_read, NULL);
    printf("one thread: stream %.1f GB/s, multiply-add %.1f Gflop/s; %d threads follow\n",
           bandwidth * 1e-9, peak / threads * 1e-9, threads);
}

/* ---- products ---- */

struct product_case {
    struct weft__matrix w;
    int64_t bytes, copies;
    struct weft__op_linear op;
};

static void run_product(const void *arg, int64_t round)
{
    const struct product_case *c = arg;
    struct weft__matrix w = c->w;
    struct weft__op_linear op = c->op;
    w.data = pool + round % c->copies * c->bytes;
    if (w.scale_kind == WEFT__SCALE_NVFP4) w.scale = w.data + w.rows * w.row_bytes;
    op.w = &w;
    weft__cpu.model->linear(dev, &op);
}

static void bench_product(weft_dtype dtype, bool int8, int64_t rows, int64_t cols, int64_t tokens)
{
    bool fp4 = dtype == WEFT_F4_E2M1;
    struct product_case c = {.w = {.dtype = dtype,
                                   .rows = rows,
                                   .cols = cols,
                                   .row_bytes = cols * weft__dtype_bits(dtype) / 8,
                                   .scale_kind = fp4 ? WEFT__SCALE_NVFP4 : WEFT__SCALE_NONE,
                                   .scale_row_bytes = fp4 ? cols / 16 : 0,
                                   .scale_global = 1}};
    c.bytes = rows * (c.w.row_bytes + c.w.scale_row_bytes);
    c.copies = weft__max(((int64_t)POOL_MIB << 20) / c.bytes, 1);
    if (c.bytes > (int64_t)POOL_MIB << 20) return;
    float *x = calloc((size_t)(tokens * cols), sizeof *x);
    float *y = calloc((size_t)(tokens * rows), sizeof *y);
    for (int64_t i = 0; i < tokens * cols; i++) x[i] = (float)(i % 7) - 3;
    c.op = (struct weft__op_linear){
        .count = 1, .x = x, .x_stride = cols, .tokens = tokens, .y = y, .y_stride = rows};
    struct weft__int8 *codes = NULL;
    if (int8) {
        codes = aligned_alloc(64, (size_t)(tokens * weft__ceil_div(cols, WEFT__INT8_COLUMNS)) *
                                      sizeof *codes);
        weft__cpu.model->round_int8(
            dev, &(struct weft__op_round_int8){
                     .x = x, .x_stride = cols, .rows = tokens, .width = cols, .y = codes});
        c.op.x_int8 = codes;
    }
    double seconds = best_seconds(run_product, &c);
    double flops = 2.0 * (double)(rows * cols * tokens) / seconds;
    printf("linear %-4s %6lldx%-5lld %4lld tokens %10.1f us %7.2f GB/s (%3.0f %%) %7.1f Gflop/s "
           "(%3.0f %%) %6.2f Gweights/s\n",
           int8  ? "INT8"
           : fp4 ? "FP4"
                 : weft_dtype_name(dtype),
           (long long)rows, (long long)cols, (long long)tokens, seconds * 1e6,
           (double)c.bytes / seconds * 1e-9, (double)c.bytes / seconds / bandwidth * 100,
           flops * 1e-9, flops / peak * 100, (double)(rows * cols) / seconds * 1e-9);
    free(codes);
    free(y);
    free(x);
}

static void bench_products(void)
{
    const int64_t shapes[][2] = {{576, 576},   {1536, 576},  {576, 1536},  {49152, 576},
                                 {2624, 6144}, {2048, 6144}, {6144, 2048}, {16384, 2048}};
    const weft_dtype dtypes[] = {WEFT_F32, WEFT_BF16, WEFT_F4_E2M1};
    const int64_t tokens[] = {1, 2, 8, 32, 512};
    for (size_t s = 0; s < WEFT__COUNT(shapes); s++)
        for (size_t d = 0; d < WEFT__COUNT(dtypes); d++)
            for (size_t t = 0; t < WEFT__COUNT(tokens); t++) {
                if (tokens[t] * shapes[s][0] * shapes[s][1] > 4000000000) continue;
                bench_product(dtypes[d], false, shapes[s][0], shapes[s][1], tokens[t]);
                if (dtypes[d] == WEFT_F4_E2M1)
                    bench_product(dtypes[d], true, shapes[s][0], shapes[s][1], tokens[t]);
            }
    bench_product(WEFT_F16, false, 2048, 6144, 1);
    bench_product(WEFT_F8_E4M3, false, 2048, 6144, 1);
    bench_product(WEFT_F8_E4M3, false, 2048, 6144, 32);
}

/* ---- attention ---- */

static void run_attention(const void *arg, int64_t round)
{
    (void)round;
    weft__cpu.model->attention(dev, arg);
}

static void bench_attention(const char *name, int64_t heads, int64_t kv_heads, int64_t key_dim,
                            int64_t value_dim, int64_t keys, int64_t count)
{
    int32_t *pages = malloc((size_t)(keys / WEFT__PAGE + 1) * sizeof *pages), kv_head[128];
    for (int64_t i = 0; i <= keys / WEFT__PAGE; i++) pages[i] = (int32_t)i;
    for (int64_t h = 0; h < heads; h++) kv_head[h] = (int32_t)(h * kv_heads / heads);
    struct weft__seq seq = {.count = (int32_t)count, .kv_len = (int32_t)keys, .pages = pages};
    float *q = calloc((size_t)(count * heads * key_dim), sizeof *q);
    float *y = calloc((size_t)(count * heads * value_dim), sizeof *y);
    bool latent = kv_heads == 1 && value_dim < key_dim; /* MLA: values are part of the keys */
    float *k = (float *)(void *)pool, *v = latent ? k : k + keys * kv_heads * key_dim;
    struct weft__op_attention op = {.seq = &seq,
                                    .seqs = 1,
                                    .heads = heads,
                                    .key_dim = key_dim,
                                    .value_dim = value_dim,
                                    .kv_head = kv_head,
                                    .q = q,
                                    .q_stride = heads * key_dim,
                                    .k = k,
                                    .k_stride = kv_heads * key_dim,
                                    .k_head_stride = key_dim,
                                    .v = v,
                                    .v_stride = latent ? key_dim : kv_heads * value_dim,
                                    .v_head_stride = value_dim,
                                    .scale = 0.1f,
                                    .y = y,
                                    .y_stride = heads * value_dim};
    double seconds = best_seconds(run_attention, &op);
    double seen = (double)count * ((double)keys - (double)(count - 1) / 2);
    double flops = 2.0 * seen * (double)(heads * (key_dim + value_dim)) / seconds;
    double bytes = (double)(keys * kv_heads * (latent ? key_dim : key_dim + value_dim)) * 4;
    printf("attention %-14s %6lld keys %4lld rows %10.1f us %7.2f GB/s (%3.0f %%) %7.1f Gflop/s "
           "(%3.0f %%)\n",
           name, (long long)keys, (long long)count, seconds * 1e6, bytes / seconds * 1e-9,
           bytes / seconds / bandwidth * 100, flops * 1e-9, flops / peak * 100);
    free(y);
    free(q);
    free(pages);
}

/* ---- the rest ---- */

static void run_norm(const void *arg, int64_t round)
{
    (void)round;
    weft__cpu.model->norm(dev, arg);
}

static void run_silu(const void *arg, int64_t round)
{
    (void)round;
    weft__cpu.model->silu_mul(dev, arg);
}

static void run_select(const void *arg, int64_t round)
{
    (void)round;
    weft__cpu.model->index_select(dev, arg);
}

static void bench_rows(int64_t rows, int64_t width)
{
    float *x = calloc((size_t)(rows * width), sizeof *x), *y = calloc((size_t)(rows * width), 4);
    struct weft__op_norm norm = {.x = x,
                                 .x_stride = width,
                                 .tokens = rows,
                                 .heads = 1,
                                 .dim = width,
                                 .weight = (const float *)(const void *)pool,
                                 .eps = 1e-5f,
                                 .y = y,
                                 .y_stride = width};
    struct weft__op_silu_mul silu = {.gate = x,
                                     .up = y,
                                     .x_stride = width,
                                     .rows = rows,
                                     .width = width,
                                     .y = y,
                                     .y_stride = width};
    printf("norm     %4lldx%-5lld %8.2f us\n", (long long)rows, (long long)width,
           best_seconds(run_norm, &norm) * 1e6);
    double seconds = best_seconds(run_silu, &silu);
    printf("silu_mul %4lldx%-5lld %8.2f us, %.2f G elements/s\n", (long long)rows, (long long)width,
           seconds * 1e6, (double)(rows * width) / seconds * 1e-9);
    free(y);
    free(x);
}

static void bench_select(int64_t keys, int64_t count)
{
    enum { HEADS = 32, DIM = 128, TOP = 2048 };
    int32_t *pages = malloc((size_t)(keys / WEFT__PAGE + 1) * sizeof *pages);
    for (int64_t i = 0; i <= keys / WEFT__PAGE; i++) pages[i] = (int32_t)i;
    int32_t *selected = malloc((size_t)count * TOP * sizeof *selected), chosen[64];
    float *q = malloc((size_t)count * HEADS * DIM * sizeof *q);
    for (int64_t i = 0; i < count * HEADS * DIM; i++) q[i] = (float)(i % 11) - 5;
    struct weft__seq seq = {.count = (int32_t)count, .kv_len = (int32_t)keys, .pages = pages};
    struct weft__op_index_select op = {.seq = &seq,
                                       .seqs = 1,
                                       .heads = HEADS,
                                       .dim = DIM,
                                       .top = TOP,
                                       .q = q,
                                       .q_stride = HEADS * DIM,
                                       .weight = q,
                                       .weight_stride = HEADS,
                                       .k = (const float *)(const void *)pool,
                                       .k_stride = DIM,
                                       .selected = selected,
                                       .count = chosen};
    double seconds = best_seconds(run_select, &op);
    double flops = 2.0 * (double)(keys * count * HEADS * DIM) / seconds;
    printf("index_select %6lld keys %3lld rows %10.1f us %7.1f Gflop/s (%3.0f %%)\n",
           (long long)keys, (long long)count, seconds * 1e6, flops * 1e-9, flops / peak * 100);
    free(q);
    free(selected);
    free(pages);
}

static void run_small(const void *arg, int64_t round)
{
    (void)round;
    weft__cpu.model->linear(dev, arg);
}

/* A product that is too small to gain: what an operation costs at least. */
static void bench_dispatch(void)
{
    static float w[256 * 256], x[256], y[256];
    struct weft__matrix m = {.dtype = WEFT_F32,
                             .rows = 256,
                             .cols = 256,
                             .data = (const uint8_t *)w,
                             .row_bytes = sizeof x,
                             .scale_global = 1};
    struct weft__op_linear op = {
        .w = &m, .count = 1, .x = x, .x_stride = 256, .tokens = 1, .y = y, .y_stride = 256};
    printf("linear F32 256x256 in cache: %.2f us\n", best_seconds(run_small, &op) * 1e6);
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 1;
    weft_error err;
    const struct weft__dev_options options = {
        .threads = threads, .first_cpu = -1, .kernels = argc > 2 ? argv[2] : NULL};
    if (weft__cpu.core->open(&options, &dev, &err) != WEFT_OK) {
        fprintf(stderr, "dev_cpu_bench: %s\n", err.text);
        return 1;
    }
    pool = aligned_alloc(4096, (size_t)POOL_MIB << 20);
    if (pool == NULL) return 1;
    /* Small finite numbers in every format: F32, BF16 and codes alike. */
    for (size_t i = 0; i < (size_t)POOL_MIB << 20; i++) pool[i] = (uint8_t)(0x38 + i % 5);
    measure_machine(threads);
    bench_dispatch();
    bench_products();
    bench_attention("SmolLM2", 9, 3, 64, 64, 256, 1);
    bench_attention("SmolLM2", 9, 3, 64, 64, 8192, 1);
    bench_attention("SmolLM2", 9, 3, 64, 64, 512, 512);
    bench_attention("GLM-5 absorbed", 64, 1, 576, 512, 2048, 1);
    bench_attention("GLM-5 absorbed", 64, 1, 576, 512, 32768, 1);
    bench_attention("GLM-5 naive", 16, 16, 256, 256, 512, 512);
    bench_select(32768, 1);
    bench_select(4096, 16);
    bench_rows(1, 6144);
    bench_rows(512, 6144);
    bench_rows(512, 576);
    free(pool);
    weft__cpu.core->close(dev);
    return 0;
}
