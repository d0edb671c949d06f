/* cuda_ranks.h: what the tests and benchmarks of GPU ranks share. The ranks share the devices that
 * there are: rank r is on device r mod count. Without a device the program says so and exits 77. */
#ifndef WEFT_TESTS_CUDA_RANKS_H
#define WEFT_TESTS_CUDA_RANKS_H

#include "../unit/comm_ranks.h"

#include "dev/cuda/comm.h"

struct gpu_place {
    int devices;
    int ordinal[WEFT__MAX_RANKS];
    int brief; /* where a tool makes everything slow: so few cases; else 0 */
    int most;  /* ranks */
};

/* Has to come before the first CUDA call: the driver reads the variable once. */
static inline struct gpu_place gpu_place_or_skip(const char *test)
{
    struct gpu_place place = {.most = 8};
    struct weft__cuda_driver driver = {0};
    weft_error err = {0};
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    if (weft__cuda_load(&driver, &err) != WEFT_OK ||
        driver.device_count(&place.devices) != CUDA_SUCCESS || place.devices == 0) {
        printf("SKIPPED: %s: NOT TESTED, no GPU: %s\n", test, err.text);
        exit(77);
    }
    for (int r = 0; r < WEFT__MAX_RANKS; r++) place.ordinal[r] = r % place.devices;
    weft__cuda_unload(&driver);
    return place;
}

static inline const struct weft__cuda_driver *gpu_driver(const weft_comm *comm)
{
    return &comm->kernels->rank->device.driver;
}

/* Whether all ranks can use a path; also what several of them mean when they can't. */
static inline weft_path gpu_path(const weft_comm *comm, weft_path wanted)
{
    return comm->kernels->usable >> wanted & 1 ? wanted : WEFT_PATH_AUTO;
}

/* The calling thread works on the communicator's device from here on. */
static inline void gpu_enter(const weft_comm *comm)
{
    (void)gpu_driver(comm)->context_push(comm->kernels->rank->device.context);
}

static inline weft_status gpu_check(const weft_comm *comm, CUresult result, const char *what,
                                    weft_error *err)
{
    return result == CUDA_SUCCESS ? WEFT_OK : weft__cuda_fail(gpu_driver(comm), result, what, err);
}

/* ---- ranks with memory: allocating and freeing may wait for the whole device, and so for kernels
 * that wait for this rank; so it happens when no kernel runs ---- */

struct gpu_rank {
    weft_comm *comm;
    int rank;
    void *arg;
    uint8_t *arena;
    size_t used, bytes;
    pthread_barrier_t *meet;
};

typedef weft_status gpu_fn(struct gpu_rank *self, weft_error *err);

/* From the rank's arena, NULL when it is full; used = 0 gives it all back. */
static inline void *gpu_take(struct gpu_rank *self, size_t bytes)
{
    size_t at = self->used;
    bytes = (bytes + 255) / 256 * 256;
    if (self->bytes - at < bytes) return NULL;
    self->used += bytes;
    return self->arena + at;
}

static inline weft_status gpu_alloc(const weft_comm *comm, size_t bytes, void **out,
                                    weft_error *err)
{
    CUdeviceptr memory = 0;
    WEFT__TRY(gpu_check(comm, gpu_driver(comm)->mem_alloc(&memory, bytes), "allocating", err));
    *out = (void *)(uintptr_t)memory;
    return WEFT_OK;
}

static inline void gpu_free(const weft_comm *comm, void *memory)
{
    (void)gpu_driver(comm)->mem_free((CUdeviceptr)(uintptr_t)memory);
}

static inline weft_status gpu_write(const weft_comm *comm, void *to, const void *from, size_t bytes,
                                    weft_error *err)
{
    if (bytes == 0) return WEFT_OK;
    CUresult result = gpu_driver(comm)->to_device((CUdeviceptr)(uintptr_t)to, from, bytes);
    /* It may return before the data is there, and the rank's stream would not wait for it. */
    if (result == CUDA_SUCCESS) result = gpu_driver(comm)->stream_sync(NULL);
    return gpu_check(comm, result, "writing", err);
}

static inline weft_status gpu_read(const weft_comm *comm, void *to, const void *from, size_t bytes,
                                   weft_error *err)
{
    if (bytes == 0) return WEFT_OK;
    return gpu_check(comm, gpu_driver(comm)->to_host(to, (CUdeviceptr)(uintptr_t)from, bytes),
                     "reading", err);
}

struct gpu_job {
    gpu_fn *fn;
    void *arg;
    size_t arena_bytes;
    pthread_barrier_t meet;
};

static inline weft_status gpu_rank_run(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    struct gpu_job *job = arg;
    struct gpu_rank self = {comm, rank, job->arg, NULL, 0, job->arena_bytes, &job->meet};
    gpu_enter(comm);
    weft_status status = gpu_alloc(comm, job->arena_bytes, (void **)&self.arena, err);
    (void)pthread_barrier_wait(&job->meet);
    if (status == WEFT_OK) status = job->fn(&self, err);
    if (weft_comm_sync(comm, NULL) != WEFT_OK && status == WEFT_OK)
        status = weft_comm_sync(comm, err);
    (void)pthread_barrier_wait(&job->meet);
    if (self.arena != NULL) gpu_free(comm, self.arena);
    (void)pthread_barrier_wait(&job->meet);
    return status;
}

static inline void gpu_ranks_run(weft_world *world, int size, gpu_fn *fn, void *arg,
                                 size_t arena_bytes, struct rank_result *results)
{
    struct gpu_job job = {.fn = fn, .arg = arg, .arena_bytes = arena_bytes};
    (void)pthread_barrier_init(&job.meet, NULL, (unsigned)size);
    ranks_run_some(world, all_ranks(size), gpu_rank_run, &job, results);
    (void)pthread_barrier_destroy(&job.meet);
}

static inline void gpu_ranks_succeed(weft_world *world, int size, gpu_fn *fn, void *arg,
                                     size_t arena_bytes)
{
    struct rank_result results[WEFT__MAX_RANKS];
    gpu_ranks_run(world, size, fn, arg, arena_bytes, results);
    int failed = -1;
    for (int r = 0; r < size; r++) {
        if (results[r].status == WEFT_OK) continue;
        printf("rank %d: %s\n", r, results[r].err.text);
        failed = r;
    }
    if (failed >= 0) fail_msg("%s", results[failed].err.text);
}

#endif
