/* model_step_bench: where a decode step's time goes, operation by operation, against the memory
 * bandwidth that as many threads read with in the same run. One rank; the device's table of
 * operations is wrapped here, so that nothing is timed in the product.
 *
 * Usage: bench_model_step [MODEL [THREADS [f32|int8 [SEQUENCES [KEYS [KERNELS]]]]]]
 * KEYS: how many each sequence sees at the first step; they are what memory holds, not computed. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

enum {
    STEPS = 40,
    WARM = 8,
    ROWS_MAX = 256,
    STREAM_MIB = 256,
    STREAM_ROUNDS = 24,
    THREADS_MAX = 64
};

/* ---- memory bandwidth ---- */

static uint8_t *stream;
static int stream_threads;

#if defined(__x86_64__)
__attribute__((target("avx2")))
#endif
static void *
stream_main(void *arg)
{
    typedef uint64_t u64x4 __attribute__((vector_size(32)));
    size_t vectors = ((size_t)STREAM_MIB << 20) / (size_t)stream_threads / 128 * 4;
    const u64x4 *p = (const u64x4 *)(const void *)stream + vectors * (size_t)(uintptr_t)arg;
    u64x4 a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i < vectors; i += 4) {
        __builtin_prefetch(p + i + 64, 0, 2); /* as the product kernels do: it helps */
        a ^= p[i];
        b ^= p[i + 1];
        c ^= p[i + 2];
        d ^= p[i + 3];
    }
    volatile uint64_t sink = (a ^ b ^ c ^ d)[0];
    (void)sink;
    return NULL;
}

/* Bytes/s of the best of several reads, each shared by all threads. */
static double measure_bandwidth(int threads)
{
    double best = INFINITY;
    stream_threads = threads;
    stream = aligned_alloc(4096, (size_t)STREAM_MIB << 20);
    if (stream == NULL) return 0;
    memset(stream, 1, (size_t)STREAM_MIB << 20);
    for (int round = 0; round < STREAM_ROUNDS; round++) {
        pthread_t thread[THREADS_MAX];
        uint64_t start = weft__now_ns();
        for (int i = 1; i < threads; i++)
            if (pthread_create(&thread[i], NULL, stream_main, (void *)(uintptr_t)i) != 0) abort();
        (void)stream_main(NULL);
        for (int i = 1; i < threads; i++) (void)pthread_join(thread[i], NULL);
        best = fmin(best, (double)(weft__now_ns() - start) * 1e-9);
    }
    free(stream);
    return (double)((size_t)STREAM_MIB << 20) / best;
}

/* ---- the wrapped table ---- */

struct row { /* calls of one operation on one shape */
    const char *name;
    const struct weft__matrix *w;
    int64_t rows, cols, calls, bytes;
    uint64_t ns;
};

static struct row rows[ROWS_MAX];
static int row_count;

static int64_t matrix_bytes(const struct weft__matrix *w, int64_t height)
{
    int64_t scales = w->scale_kind == WEFT__SCALE_NVFP4 ? w->cols / 16 : 0;
    return height * (w->cols * weft__dtype_bits(w->dtype) / 8 + scales);
}

static void record(const char *name, const struct weft__matrix *w, int64_t height, int64_t bytes,
                   uint64_t ns)
{
    int64_t cols = w != NULL ? w->cols : 0;
    int i = 0;
    while (i < row_count && (rows[i].name != name || rows[i].rows != height ||
                             rows[i].cols != cols || (w != NULL && rows[i].w->dtype != w->dtype)))
        i++;
    if (i == ROWS_MAX) abort();
    if (i == row_count) rows[row_count++] = (struct row){name, w, height, cols, 0, 0, 0};
    rows[i].calls++;
    rows[i].bytes += bytes;
    rows[i].ns += ns;
}

/* What an operation must read of weights and KV cache at least. */
struct load {
    const struct weft__matrix *w;
    int64_t height, bytes;
};

static struct load load_none(const void *op)
{
    (void)op;
    return (struct load){0};
}

static struct load load_linear(const struct weft__op_linear *op)
{
    struct load load = {.w = op->w};
    for (int64_t i = 0; i < op->count; i++) {
        load.height += op->w[i].rows;
        load.bytes += matrix_bytes(&op->w[i], op->w[i].rows);
    }
    return load;
}

static struct load load_heads(const struct weft__op_linear_heads *op)
{
    int64_t height = op->heads * op->rows;
    return (struct load){op->w, height, matrix_bytes(op->w, height)};
}

static struct load load_experts(const struct weft__op_linear_experts *op)
{
    struct load load = {.w = op->w, .height = op->w->rows};
    for (int64_t e = 0; e < op->experts; e++)
        if (op->offset[e + 1] > op->offset[e]) load.bytes += matrix_bytes(op->w, op->w->rows);
    return load;
}

static struct load load_attention(const struct weft__op_attention *op)
{
    struct load load = {0};
    int64_t kv_heads = op->kv_head[op->heads - 1] + 1;
    int64_t width = op->v == op->k ? op->key_dim : op->key_dim + op->value_dim;
    for (int64_t s = 0; s < op->seqs; s++) {
        int64_t keys = op->seq[s].kv_len;
        if (op->selected != NULL && op->selected_count[op->seq[s].row] >= 0)
            keys = op->selected_count[op->seq[s].row];
        load.bytes += keys * kv_heads * width * (int64_t)sizeof(float);
    }
    return load;
}

static struct load load_select(const struct weft__op_index_select *op)
{
    struct load load = {0};
    for (int64_t s = 0; s < op->seqs; s++)
        if (op->seq[s].kv_len > op->top)
            load.bytes += op->seq[s].kv_len * op->dim * (int64_t)sizeof(float);
    return load;
}

#define LOAD(op) \
    _Generic((op),                                              \
        const struct weft__op_linear *: load_linear,            \
        const struct weft__op_linear_heads *: load_heads,       \
        const struct weft__op_linear_experts *: load_experts,   \
        const struct weft__op_attention *: load_attention,      \
        const struct weft__op_index_select *: load_select,      \
        default: load_none)(op)

#define X(name)                                                                       \
    static void timed_##name(struct weft__dev *dev, const struct weft__op_##name *op) \
    {                                                                                 \
        uint64_t start = weft__now_ns();                                              \
        weft__cpu.model->name(dev, op);                                               \
        uint64_t spent = weft__now_ns() - start;                                      \
        struct load load = LOAD(op);                                                  \
        record(#name, load.w, load.height, load.bytes, spent);                        \
    }
WEFT__MODEL_OPS(X)
#undef X

static const struct weft__dev_model timed = {
#define X(name) .name = timed_##name,
    WEFT__MODEL_OPS(X)
#undef X
};

/* ---- steps ---- */

struct bench {
    struct weft__arena arena;
    struct weft__arch arch;
    struct weft__checkpoint *checkpoint;
    struct weft__dev *dev;
    weft_world *world;
    weft_comm *comm;
    struct weft__model *model;
    int32_t seqs, keys;
    const char *kernels;
};

static weft_status open_bench(struct bench *b, const char *dir, int threads, bool int8,
                              weft_error *err)
{
    static struct weft__device device;
    device = (struct weft__device){.core = weft__cpu.core, .model = &timed};
    WEFT__TRY(weft__arch_load(dir, &b->arena, &b->arch, err));
    WEFT__TRY(weft__checkpoint_open(dir, &b->checkpoint, err));
    const struct weft__dev_options dev = {
        .threads = threads, .first_cpu = -1, .kernels = b->kernels};
    WEFT__TRY(weft__cpu.core->open(&dev, &b->dev, err));
    const weft_world_options world = {
        .size = 1,
        .message_bytes = 1 << 20 | (size_t)b->seqs * (size_t)b->arch.hidden * sizeof(float)};
    WEFT__TRY(weft_world_create(&world, &b->world, err));
    WEFT__TRY(weft_comm_open(b->world, 0, &b->comm, err));
    int64_t context = b->keys + WARM + STEPS;
    const struct weft__model_limits limits = {
        .tokens = b->seqs,
        .outputs = b->seqs,
        .pages = b->seqs * weft__ceil_div(context, WEFT__PAGE),
        .context = context,
        .activations = int8 ? WEFT_ACTIVATIONS_INT8 : WEFT_ACTIVATIONS_F32};
    const struct weft__model_parts parts = {.arch = &b->arch,
                                            .checkpoint = b->checkpoint,
                                            .device = &device,
                                            .dev = b->dev,
                                            .comm = b->comm};
    return weft__model_open(&parts, &limits, &b->model, err);
}

/* All sequences take their next token, at position `position`. */
static weft_status run_step(struct bench *b, int32_t position, weft_error *err)
{
    enum { SEQS_MAX = 64, PAGES_MAX = 1 << 16 };
    static int32_t token[SEQS_MAX], at[SEQS_MAX], output[SEQS_MAX], pages[PAGES_MAX];
    static int64_t slot[SEQS_MAX];
    static struct weft__seq seq[SEQS_MAX];
    int32_t each = (int32_t)weft__ceil_div(b->keys + WARM + STEPS, WEFT__PAGE);
    if (b->seqs > SEQS_MAX || (int64_t)each * b->seqs > PAGES_MAX)
        return weft__fail(err, WEFT_INVALID, "too many sequences or keys");
    for (int32_t s = 0; s < b->seqs; s++) {
        token[s] = (int32_t)((uint32_t)(position * 7919 + s * 31) % (uint32_t)b->arch.vocab);
        at[s] = position;
        output[s] = s;
        for (int32_t p = 0; p < each; p++) pages[s * each + p] = s * each + p;
        slot[s] =
            (int64_t)pages[s * each + position / WEFT__PAGE] * WEFT__PAGE + position % WEFT__PAGE;
        seq[s] = (struct weft__seq){.row = s,
                                    .count = 1,
                                    .kv_len = position + 1,
                                    .generated = true,
                                    .pages = pages + s * each};
    }
    const struct weft__batch batch = {.tokens = b->seqs,
                                      .seqs = b->seqs,
                                      .outputs = b->seqs,
                                      .token = token,
                                      .position = at,
                                      .slot = slot,
                                      .seq = seq,
                                      .output = output};
    const float *logits;
    return weft__model_forward(b->model, &batch, &logits, err);
}

static int by_time(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    return x->ns < y->ns ? 1 : x->ns > y->ns ? -1 : 0;
}

static void print_row(const char *name, int64_t calls, uint64_t ns, int64_t bytes, uint64_t all,
                      double bandwidth)
{
    double us = (double)ns * 1e-3 / STEPS, rate = (double)bytes / (double)ns * 1e9;
    printf("%-44s %6.1f %10.1f %6.1f %9.2f", name, (double)calls / STEPS, us,
           100 * (double)ns / (double)all, (double)bytes / STEPS / 1048576);
    if (bytes > 0) printf(" %8.2f %5.0f", rate * 1e-9, 100 * rate / bandwidth);
    printf("\n");
}

static weft_status run(struct bench *b, double bandwidth, weft_error *err)
{
    uint64_t start = 0, ops = 0;
    int64_t bytes = 0, calls = 0;
    for (int i = 0; i < WARM + STEPS; i++) {
        if (i == WARM) {
            row_count = 0;
            start = weft__now_ns();
        }
        WEFT__TRY(run_step(b, b->keys + i - 1, err));
    }
    uint64_t all = weft__now_ns() - start;
    qsort(rows, (size_t)row_count, sizeof *rows, by_time);
    printf("%-44s %6s %10s %6s %9s %8s %5s\n", "operation", "calls", "us", "%", "MiB", "GB/s",
           "% bw");
    for (int i = 0; i < row_count; i++) {
        const struct row *r = &rows[i];
        char name[64];
        (void)snprintf(name, sizeof name, "%s", r->name);
        if (r->w != NULL)
            (void)snprintf(name, sizeof name, "%s %lldx%lld %s", r->name, (long long)r->rows,
                           (long long)r->cols, weft_dtype_name(r->w->dtype));
        print_row(name, r->calls, r->ns, r->bytes, all, bandwidth);
        ops += r->ns;
        bytes += r->bytes;
        calls += r->calls;
    }
    print_row("the rest: collectives, this loop", 0, all - ops, 0, all, bandwidth);
    print_row("step", calls, all, bytes, all, bandwidth);
    return WEFT_OK;
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : WEFT_SOURCE_DIR "/models/atlas";
    int threads = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 2;
    bool int8 = argc > 3 && strcmp(argv[3], "int8") == 0;
    struct bench b = {.seqs = argc > 4 ? (int32_t)strtol(argv[4], NULL, 10) : 1,
                      .keys = argc > 5 ? (int32_t)strtol(argv[5], NULL, 10) : 64,
                      .kernels = argc > 6 ? argv[6] : NULL};
    weft_error err = {0};
    if (threads < 1 || threads > THREADS_MAX || b.seqs < 1 || b.keys < 1) return 2;
    double bandwidth = measure_bandwidth(threads);
    printf("%s, %d threads, %s, %d sequences, %d keys; memory %.1f GB/s\n", dir, threads,
           int8 ? "INT8" : "F32", b.seqs, b.keys, bandwidth * 1e-9);
    weft_status status = open_bench(&b, dir, threads, int8, &err);
    if (status == WEFT_OK) status = run(&b, bandwidth, &err);
    if (status != WEFT_OK) fprintf(stderr, "bench_model_step: %s\n", err.text);
    weft__model_close(b.model);
    weft_comm_close(b.comm);
    weft_world_destroy(b.world);
    if (b.dev != NULL) weft__cpu.core->close(b.dev);
    weft__checkpoint_close(b.checkpoint);
    weft__arena_free(&b.arena);
    return status == WEFT_OK ? 0 : 1;
}
