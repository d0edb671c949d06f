/* The CPU device: one rank's memory and team. Its stream runs at once, so sync has nothing to do.
 */
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/numerics.h"
#include "cpu.h"

enum { ALIGNMENT = 64, THREADS_MAX = 1024 };

static void *dev_alloc(struct weft__dev *dev, size_t bytes)
{
    (void)dev;
    /* calloc's large blocks are fresh pages: zero without being touched, so that memory appears
     * where and when it is first used. Small ones: the first token of a layer in the KV cache would
     * wait for a huge page to be cleared, and attention is no faster with them. The block's start
     * is kept just before the aligned one. */
    size_t total;
    if (!weft__add_size(bytes, 2 * ALIGNMENT, &total)) return NULL;
    char *block = calloc(1, total);
    if (block == NULL) return NULL;
    char *memory = block + ALIGNMENT + (ALIGNMENT - (uintptr_t)block % ALIGNMENT);
    memcpy(memory - sizeof block, &block, sizeof block);
    return memory;
}

static void dev_free(struct weft__dev *dev, void *memory)
{
    (void)dev;
    if (memory == NULL) return;
    char *block;
    memcpy(&block, (char *)memory - sizeof block, sizeof block);
    free(block);
}

/* ---- the choice of kernels; __builtin_cpu_supports asks the operating system too ---- */

#if defined(__x86_64__)

static bool runs_avx2(void)
{
    /* clang 14's __builtin_cpu_supports does not know F16C. */
    unsigned eax, ebx, ecx, edx;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

static bool runs_avx512(void)
{
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

#endif

static bool runs_portable(void) { return true; }

/* Fastest first. */
static const struct kernel_set {
    const struct weft__kernels *kernels;
    bool (*runs)(void);
} kernel_sets[] = {
#if defined(__x86_64__)
    {&weft__kernels_avx512, runs_avx512},
    {&weft__kernels_avx2, runs_avx2},
#endif
    {&weft__kernels_portable, runs_portable},
};

static weft_status pick_kernels(const char *name, const struct weft__kernels **out, weft_error *err)
{
    for (size_t i = 0; i < WEFT__COUNT(kernel_sets); i++) {
        const struct kernel_set *set = &kernel_sets[i];
        if (!set->runs() || (name != NULL && strcmp(name, set->kernels->name) != 0)) continue;
        *out = set->kernels;
        return WEFT_OK;
    }
    return weft__fail(err, WEFT_UNSUPPORTED,
                      "this processor does not run the kernels '%s'; "
                      "'portable' run anywhere",
                      name);
}

static void dev_close(struct weft__dev *dev)
{
    if (dev == NULL) return;
    weft__team_close(dev->team);
    dev_free(dev, dev->scratch_memory);
    free(dev->active);
    free(dev->scratch);
    free(dev);
}

/* Every thread's part begins on a page of its own. */
static weft_status open_scratch(struct weft__dev *dev, weft_error *err)
{
    const size_t panel = (size_t)WEFT__TILE_ROWS * WEFT__TILE_K * sizeof(float);
    const size_t sums = (size_t)WEFT__TILE_ROWS * WEFT__TILE_TOKENS * 8 * sizeof(float);
    const size_t ranked = 2 * (size_t)WEFT__INDEX_TOP_MAX * sizeof(uint64_t);
    const size_t each = (panel + sums + ranked + 4095) / 4096 * 4096;

    dev->scratch = calloc((size_t)dev->threads, sizeof *dev->scratch);
    dev->active = calloc(WEFT__EXPERTS_MAX, sizeof *dev->active);
    dev->scratch_memory = dev_alloc(dev, each * (size_t)dev->threads);
    if (dev->scratch == NULL || dev->active == NULL || dev->scratch_memory == NULL)
        return weft__fail_oom(err, each * (size_t)dev->threads, "the work space of a CPU rank");
    for (int i = 0; i < dev->threads; i++) {
        char *memory = (char *)dev->scratch_memory + each * (size_t)i;
        dev->scratch[i] = (struct weft__scratch){.panel = (float *)memory,
                                                 .sums = (float *)(memory + panel),
                                                 .ranked = (uint64_t *)(memory + panel + sums)};
    }
    return WEFT_OK;
}

static void fill_nvfp4(struct weft__nvfp4 *table, float scale)
{
    for (uint8_t code = 0; code < 16; code++) {
        float value = weft__f32_from_e2m1(code) + 0.0f; /* no -0: the other decoders have none */
        uint32_t bits = weft__f32_bits(value * scale);
        table->low[code] = (uint8_t)(bits >> 16);
        table->high[code] = (uint8_t)(bits >> 24);
    }
}

static weft_status dev_open(const struct weft__dev_options *options, struct weft__dev **out,
                            weft_error *err)
{
    if (options->threads < 1 || options->threads > THREADS_MAX)
        return weft__fail(err, WEFT_INVALID, "%d threads a rank; 1 to %d are possible",
                          options->threads, THREADS_MAX);
    struct weft__dev *dev = calloc(1, sizeof *dev);
    if (dev == NULL) return weft__fail_oom(err, sizeof *dev, "a CPU device");
    dev->threads = options->threads;
    for (int i = 0; i < 256; i++) {
        dev->e4m3[i] = weft__f32_from_e4m3((uint8_t)i);
        dev->nvfp4_scale[i] = dev->e4m3[i] * 0x1p-25f;
        fill_nvfp4(&dev->nvfp4[i], dev->e4m3[i]);
    }
    weft_status status = pick_kernels(options->kernels, &dev->kernels, err);
    dev->rows = weft__rows_pick(dev->kernels == &weft__kernels_portable);
    if (status == WEFT_OK) status = open_scratch(dev, err);
    if (status == WEFT_OK) status = weft__team_open(dev, options, &dev->team, err);
    if (status != WEFT_OK) {
        dev_close(dev);
        return status;
    }
    *out = dev;
    return WEFT_OK;
}

/* Weights are used as they lie in the file. */
static weft_status dev_prepare(struct weft__dev *dev, struct weft__matrix *w, weft_error *err)
{
    (void)dev;
    switch (w->dtype) {
    case WEFT_F32:
    case WEFT_F16:
    case WEFT_BF16:
    case WEFT_F8_E4M3:
    case WEFT_F4_E2M1:
        return WEFT_OK;
    default:
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "the CPU device has no weights of type %s; F32, F16, BF16, F8_E4M3 and "
                          "NVFP4 work",
                          weft_dtype_name(w->dtype));
    }
}

static weft_status dev_sync(struct weft__dev *dev, weft_error *err)
{
    (void)dev, (void)err;
    return WEFT_OK;
}

static const struct weft__dev_core core = {
    .name = "cpu",
    .open = dev_open,
    .close = dev_close,
    .alloc = dev_alloc,
    .free = dev_free,
    .prepare = dev_prepare,
    .sync = dev_sync,
};

static const struct weft__dev_model model = {
#define X(name) .name = weft__cpu_##name,
    WEFT__MODEL_OPS(X)
#undef X
};

const struct weft__device weft__cpu = {.core = &core, .model = &model};
