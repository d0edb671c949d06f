/* Runs the kernels of load.cu for a while: work of a known kind, to measure what it draws. */
#include <stdio.h>
#include <string.h>

#include "../dev.h"
#include "driver.h"

enum {
    THREADS = 256,
    BLOCKS_A_PROCESSOR = 4,
    PIECE_NS = 50000000, /* of a launch */
    FIRST_ROUNDS = 1000, /* of the compute kernel, to learn how many take PIECE_NS */
    MOST_ROUNDS = 1 << 24,
};
static const size_t buffer_bytes = (size_t)1 << 30; /* far more than a cache holds */

struct load {
    struct weft__cuda_device device;
    CUstream stream;
    CUfunction spin, fill, memory, compute;
    CUdeviceptr from, to;
    uint64_t count; /* of 16 bytes in a buffer */
    uint32_t rounds;
};

static weft_status run(struct load *l, CUfunction function, void **params, weft_error *err)
{
    const struct weft__cuda_driver *driver = &l->device.driver;
    const CUlaunchConfig config = {.grid_x = (unsigned)l->device.processors * BLOCKS_A_PROCESSOR,
                                   .grid_y = 1,
                                   .grid_z = 1,
                                   .block_x = THREADS,
                                   .block_y = 1,
                                   .block_z = 1,
                                   .stream = l->stream};
    WEFT__CUDA_TRY(driver, launch(&config, function, params, NULL), "starting a load", err);
    WEFT__CUDA_TRY(driver, stream_sync(l->stream), "running a load", err);
    return WEFT_OK;
}

static weft_status prepare(struct load *l, weft_error *err)
{
    const struct weft__cuda_driver *driver = &l->device.driver;
    WEFT__TRY(weft__cuda_kernel(&l->device, "weft__load_spin", &l->spin, err));
    WEFT__TRY(weft__cuda_kernel(&l->device, "weft__load_fill", &l->fill, err));
    WEFT__TRY(weft__cuda_kernel(&l->device, "weft__load_memory", &l->memory, err));
    WEFT__TRY(weft__cuda_kernel(&l->device, "weft__load_compute", &l->compute, err));
    WEFT__CUDA_TRY(driver, stream_create(&l->stream, CU_STREAM_NON_BLOCKING), "a stream", err);
    WEFT__CUDA_TRY(driver, mem_alloc(&l->from, buffer_bytes), "allocating 1 GiB", err);
    WEFT__CUDA_TRY(driver, mem_alloc(&l->to, buffer_bytes), "allocating 1 GiB", err);
    WEFT__CUDA_TRY(driver, set_u8(l->to, 0, buffer_bytes), "clearing memory", err);
    l->count = buffer_bytes / 16;
    l->rounds = FIRST_ROUNDS;
    void *params[] = {&l->from, &l->count};
    return run(l, l->fill, params, err);
}

static weft_status run_piece(struct load *l, enum weft__load what, weft_error *err)
{
    uint64_t ns = PIECE_NS, start = weft__now_ns();
    void *spin[] = {&l->to, &ns}, *memory[] = {&l->to, &l->from, &l->count},
         *compute[] = {&l->to, &l->rounds};
    if (what == WEFT__LOAD_SPIN) return run(l, l->spin, spin, err);
    if (what == WEFT__LOAD_MEMORY) return run(l, l->memory, memory, err);
    WEFT__TRY(run(l, l->compute, compute, err));
    if (weft__now_ns() - start < PIECE_NS / 2 && l->rounds < MOST_ROUNDS) l->rounds *= 2;
    return WEFT_OK;
}

/* As NVML and nvidia-smi write it: hex, "GPU-8-4-4-4-12". */
static void write_uuid(const uint8_t bytes[16], char out[41])
{
    int len = snprintf(out, 41, "GPU");
    for (int i = 0; i < 16; i++) {
        bool dash = i == 0 || (i >= 4 && i <= 10 && i % 2 == 0);
        len += snprintf(out + len, 41 - (size_t)len, "%s%02x", dash ? "-" : "", bytes[i]);
    }
}

/* CUDA numbers and hides devices as CUDA_VISIBLE_DEVICES says, NVML does not: only the UUID says
 * which is which. */
static weft_status find(const char *uuid, int *ordinal, weft_error *err)
{
    struct weft__cuda_driver driver;
    uint8_t bytes[16];
    char found[41];
    int count = 0;
    CUdevice device;
    *ordinal = -1;
    WEFT__TRY(weft__cuda_load(&driver, err));
    (void)driver.device_count(&count);
    for (int i = 0; i < count && *ordinal < 0; i++) {
        if (driver.device_get(&device, i) != CUDA_SUCCESS ||
            driver.device_uuid(bytes, device) != CUDA_SUCCESS)
            continue;
        write_uuid(bytes, found);
        if (strcmp(found, uuid) == 0) *ordinal = i;
    }
    weft__cuda_unload(&driver);
    return *ordinal >= 0
               ? WEFT_OK
               : weft__fail(err, WEFT_NOT_FOUND,
                            "CUDA shows no device %.100s; CUDA_VISIBLE_DEVICES may hide it", uuid);
}

weft_status weft__cuda_run_load(const char *uuid, enum weft__load what, uint64_t ns,
                                weft_error *err)
{
    struct load l = {0};
    int ordinal;
    CUcontext popped;
    WEFT__TRY(find(uuid, &ordinal, err));
    WEFT__TRY(weft__cuda_open(ordinal, NULL, &l.device, err));
    const struct weft__cuda_driver *driver = &l.device.driver;
    (void)driver->context_push(l.device.context);
    weft_status status = prepare(&l, err);
    for (uint64_t end = weft__now_ns() + ns; status == WEFT_OK && weft__now_ns() < end;)
        status = run_piece(&l, what, err);
    if (l.from != 0) (void)driver->mem_free(l.from);
    if (l.to != 0) (void)driver->mem_free(l.to);
    if (l.stream != NULL) (void)driver->stream_destroy(l.stream);
    (void)driver->context_pop(&popped);
    weft__cuda_close(&l.device);
    return status;
}
