/* trial.c: what measuring the ways of a GPU rank's operations takes: memory, graphs, times. */
#include "comm.h"

/* Everything runs with the rank's context current. */
static const struct weft__cuda_driver *enter(const struct weft__comm_kernels *k)
{
    const struct weft__cuda_driver *driver = &k->rank->device.driver;
    (void)driver->context_push(k->rank->device.context);
    return driver;
}

static weft_status leave(const struct weft__cuda_driver *driver, CUresult result, const char *what,
                         weft_error *err)
{
    CUcontext popped;
    (void)driver->context_pop(&popped);
    return result == CUDA_SUCCESS ? WEFT_OK : weft__cuda_fail(driver, result, what, err);
}

enum { STAGED_BYTES = 768 * 1024, PLACED_BYTES = 192 * 1024 };

static bool offers(const struct weft__comm_kernels *k, uint32_t way, enum weft__comm_op op,
                   uint64_t bytes, bool two_shot)
{
    weft_path path = weft__way_path(way);
    enum weft__cuda_wire wire = weft__way_form(way);
    bool asked = k->link.path == WEFT_PATH_AUTO || k->link.path == path;
    if ((k->usable >> path & 1) == 0 || !asked || wire == WEFT__CUDA_WIRE_AUTO) return false;
    bool reduces = op == WEFT__ALLREDUCE || op == WEFT__REDUCE_SCATTER;
    if (wire == WEFT__CUDA_PLACED)
        return path == WEFT_PATH_PULL && (k->usable >> WEFT_PATH_PUSH & 1) != 0 && reduces &&
               bytes >= PLACED_BYTES;
    if (weft__cuda_is_staged(path)) /* starting engines costs more than short messages take */
        return wire == WEFT__CUDA_PLAIN && (bytes >= STAGED_BYTES || k->link.path == path);
    if (!reduces || wire == WEFT__CUDA_PLAIN) return wire == WEFT__CUDA_PLAIN;
    uint64_t groups = bytes / (2 * WEFT__CUDA_GROUP);
    return weft__cuda_wire_bytes(wire, groups, two_shot) <= k->packed_bytes;
}

static const char *form(uint32_t way)
{
    static const char *const names[] = {"auto", "packed", "dense", "plain", "in place"};
    return names[weft__way_form(way)];
}

static weft_status memory_take(struct weft__comm_kernels *k, size_t bytes, void **out,
                               weft_error *err)
{
    CUdeviceptr memory = 0;
    const struct weft__cuda_driver *driver = enter(k);
    CUresult result = driver->mem_alloc(&memory, bytes);
    if (result == CUDA_SUCCESS) result = driver->set_u8(memory, 0, bytes);
    if (result == CUDA_SUCCESS) result = driver->stream_sync(NULL);
    *out = (void *)(uintptr_t)memory;
    return leave(driver, result, "allocating for a measurement", err);
}

static void memory_give(struct weft__comm_kernels *k, void *memory)
{
    const struct weft__cuda_driver *driver = enter(k);
    (void)leave(driver, driver->mem_free((CUdeviceptr)(uintptr_t)memory), "", NULL);
}

static void *memory_placed(const struct weft__comm_kernels *k)
{
    return (void *)(uintptr_t)k->engine.sums[k->link.rank]; /* engines are at rest meanwhile */
}

static weft_status memory_write(struct weft__comm_kernels *k, void *to, const void *from,
                                size_t bytes, weft_error *err)
{
    const struct weft__cuda_driver *driver = enter(k);
    CUresult result = driver->to_device((CUdeviceptr)(uintptr_t)to, from, bytes);
    /* It may return before the data is there, and the rank's stream would not wait for it. */
    if (result == CUDA_SUCCESS) result = driver->stream_sync(NULL);
    return leave(driver, result, "writing device memory", err);
}

static weft_status memory_read(struct weft__comm_kernels *k, void *to, const void *from,
                               size_t bytes, weft_error *err)
{
    const struct weft__cuda_driver *driver = enter(k);
    CUresult result = driver->to_host(to, (CUdeviceptr)(uintptr_t)from, bytes);
    return leave(driver, result, "reading device memory", err);
}

static weft_status begin(struct weft__comm_kernels *k, weft_error *err)
{
    struct weft__cuda_trial *trial = &k->trial;
    const struct weft__cuda_driver *driver = enter(k);
    CUresult result = driver->event_create(&trial->from, 0);
    if (result == CUDA_SUCCESS) result = driver->event_create(&trial->to, 0);
    if (result == CUDA_SUCCESS)
        result = driver->capture_begin(k->rank->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    return leave(driver, result, "capturing operations", err);
}

static weft_status mark(struct weft__comm_kernels *k, weft_error *err)
{
    const struct weft__cuda_driver *driver = enter(k);
    CUresult result =
        driver->event_record_in_graph(k->trial.from, k->rank->stream, CU_EVENT_RECORD_EXTERNAL);
    return leave(driver, result, "capturing operations", err);
}

static weft_status end(struct weft__comm_kernels *k, weft_error *err)
{
    CUgraph graph = NULL;
    CUstream stream = k->rank->stream;
    const struct weft__cuda_driver *driver = enter(k);
    CUresult result = driver->event_record_in_graph(k->trial.to, stream, CU_EVENT_RECORD_EXTERNAL);
    CUresult ended = driver->capture_end(stream, &graph);
    if (result == CUDA_SUCCESS) result = ended;
    if (result == CUDA_SUCCESS) result = driver->graph_make(&k->trial.graph, graph, 0);
    if (graph != NULL) (void)driver->graph_destroy(graph);
    return leave(driver, result, "making a graph", err);
}

static weft_status run(struct weft__comm_kernels *k, float *us, weft_error *err)
{
    float ms = 0;
    const struct weft__cuda_driver *driver = enter(k);
    CUresult result = driver->graph_launch(k->trial.graph, k->rank->stream);
    if (result == CUDA_SUCCESS) weft__cuda_sync(k);
    if (result == CUDA_SUCCESS) result = driver->event_elapsed(&ms, k->trial.from, k->trial.to);
    *us = ms * 1000;
    return leave(driver, result, "running a graph", err);
}

static void drop(struct weft__comm_kernels *k)
{
    struct weft__cuda_trial *trial = &k->trial;
    const struct weft__cuda_driver *driver = enter(k);
    if (trial->graph != NULL) (void)driver->graph_exec_destroy(trial->graph);
    if (trial->from != NULL) (void)driver->event_destroy(trial->from);
    if (trial->to != NULL) (void)driver->event_destroy(trial->to);
    (void)leave(driver, CUDA_SUCCESS, "", NULL);
    *trial = (struct weft__cuda_trial){0};
}

const struct weft__dev_trial weft__cuda_trials = {.offers = offers,
                                                  .form = form,
                                                  .memory_take = memory_take,
                                                  .memory_give = memory_give,
                                                  .memory_placed = memory_placed,
                                                  .memory_write = memory_write,
                                                  .memory_read = memory_read,
                                                  .begin = begin,
                                                  .mark = mark,
                                                  .end = end,
                                                  .run = run,
                                                  .drop = drop,
                                                  .baseline = weft__nccl_baseline};
