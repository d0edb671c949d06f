/* GPU ranks over time: chains of a thousand operations without a pause, graphs captured and
 * replayed in any order, many epochs with random delays. Results are compared with CPU ranks'. With
 * --soak, a million epochs; with --short, few of everything. */
#include "cuda_ranks.h"

#include "base/numerics.h"

enum { HIDDEN = 2048, ROWS = 3, BYTES = HIDDEN * ROWS * 2, GRAPHS = 3, REPLAYS = 40 };
enum { ARENA_BYTES = 16 << 20, HEAP_BYTES = 1 << 20 };

struct job {
    weft_world *cpu;
    weft_path path;
    int links, epochs;
};

/* One rank's tensors: an operation reads x and residual, writes residual in place, and y, which is
 * the next operation's x. On a GPU both are where peers can read them. */
struct tensors {
    uint16_t *x, *residual, *weight, *y;
};

static void fill_host(const struct tensors *t, int rank)
{
    uint64_t state = (uint64_t)rank + 1, same = 99;
    for (int i = 0; i < BYTES / 2; i++) {
        t->x[i] = weft__bf16_from_f32((float)pick_from(&state, -1000, 1000) / 512.0f);
        t->residual[i] = weft__bf16_from_f32((float)pick_from(&same, -1000, 1000) / 512.0f);
        t->y[i] = 0x5a5a;
    }
    for (int i = 0; i < HIDDEN; i++)
        t->weight[i] = weft__bf16_from_f32((float)pick_from(&same, 500, 1500) / 1000.0f);
}

static struct tensors host_tensors(int rank)
{
    struct tensors t = {malloc(BYTES), malloc(BYTES), malloc(BYTES), malloc(BYTES)};
    fill_host(&t, rank);
    return t;
}

static void host_free(struct tensors *t)
{
    free(t->x);
    free(t->residual);
    free(t->weight);
    free(t->y);
}

static weft_status to_gpu(struct gpu_rank *self, const struct tensors *from, struct tensors *to,
                          weft_error *err)
{
    void *heap = NULL;
    WEFT__TRY(weft_comm_heap_alloc(self->comm, (size_t)2 * BYTES, &heap, err));
    to->x = heap;
    to->y = to->x + BYTES / 2;
    to->residual = gpu_take(self, BYTES);
    to->weight = gpu_take(self, BYTES);
    uint16_t *all[] = {to->x, to->residual, to->weight, to->y};
    const uint16_t *host[] = {from->x, from->residual, from->weight, from->y};
    for (size_t i = 0; i < WEFT__COUNT(all); i++)
        WEFT__TRY(gpu_write(self->comm, all[i], host[i], BYTES, err));
    return WEFT_OK;
}

/* How an operation goes. In place is a form of pull. */
static void tune(weft_comm *comm, weft_path path, int wire, struct weft__cuda_tuning tuning)
{
    bool pull = (comm->kernels->usable >> WEFT_PATH_PULL & 1) != 0;
    tuning.wire = (enum weft__cuda_wire)wire;
    tuning.path = wire == WEFT__CUDA_PLACED && pull ? WEFT_PATH_PULL : gpu_path(comm, path);
    weft__cuda_tune(comm->kernels, &tuning);
}

/* Number i of a sequence; forwards and backwards between x and y, with changing shapes. */
static weft_status operate(weft_comm *comm, const struct tensors *t, int i, weft_error *err)
{
    weft_reduce op = {.tokens = 1 + i % ROWS,
                      .hidden = i % 5 == 4 ? HIDDEN / 2 : HIDDEN,
                      .dtype = WEFT_BF16,
                      .x = i % 2 ? t->y : t->x,
                      .residual = t->residual,
                      .residual_out = t->residual,
                      .norm = true,
                      .norm_weight = t->weight,
                      .norm_eps = 1e-5f,
                      .y = i % 2 ? t->x : t->y};
    return weft_comm_allreduce(comm, &op, err);
}

static weft_status compare(struct gpu_rank *self, const struct tensors *want,
                           const struct tensors *gpu, const char *what, weft_error *err)
{
    const uint16_t *all[] = {want->x, want->residual, want->y};
    const uint16_t *there[] = {gpu->x, gpu->residual, gpu->y};
    uint16_t *seen = malloc(BYTES);
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < WEFT__COUNT(all) && status == WEFT_OK; i++) {
        status = gpu_read(self->comm, seen, there[i], BYTES, err);
        if (status == WEFT_OK && memcmp(seen, all[i], BYTES) != 0)
            status = weft__fail(err, WEFT_INTERNAL, "%s: tensor %zu differs", what, i);
    }
    free(seen);
    return status;
}

/* ---- chains ---- */

static weft_status chain(struct gpu_rank *self, weft_error *err)
{
    const struct job *job = self->arg;
    weft_comm *cpu = NULL;
    WEFT__TRY(weft_comm_open(job->cpu, self->rank, &cpu, err));
    struct tensors host = host_tensors(self->rank), gpu = {0};
    weft_status status = to_gpu(self, &host, &gpu, err);
    for (int i = 0; i < job->links && status == WEFT_OK; i++) {
        /* By turns chained early, chained late and one by one; in every form. */
        tune(self->comm, job->path, WEFT__CUDA_PACKED + i / 7 % WEFT__CUDA_PLACED,
             (struct weft__cuda_tuning){
                 .sections = 1 + i / 5 % 3, .late = i / 3 % 3 == 1, .serial = i / 3 % 3 == 2});
        status = operate(self->comm, &gpu, i, err);
    }
    for (int i = 0; i < job->links && status == WEFT_OK; i++) status = operate(cpu, &host, i, err);
    if (status == WEFT_OK) status = weft_comm_sync(self->comm, err);
    if (status == WEFT_OK) status = compare(self, &host, &gpu, "chain", err);
    weft_comm_close(cpu);
    host_free(&host);
    return status;
}

/* ---- graphs ---- */

static weft_status capture(struct gpu_rank *self, const struct tensors *gpu, int first,
                           CUgraphExec *out, weft_error *err)
{
    const struct weft__cuda_driver *driver = gpu_driver(self->comm);
    CUstream stream = weft_comm_stream(self->comm);
    CUgraph graph = NULL;
    WEFT__TRY(gpu_check(self->comm,
                        driver->capture_begin(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                        "capturing", err));
    weft_status status = WEFT_OK;
    for (int i = first; i < first + 4 && status == WEFT_OK; i++)
        status = operate(self->comm, gpu, i, err);
    CUresult result = driver->capture_end(stream, &graph);
    if (status == WEFT_OK) status = gpu_check(self->comm, result, "capturing", err);
    if (status == WEFT_OK)
        status = gpu_check(self->comm, driver->graph_make(out, graph, 0), "instantiating", err);
    if (graph != NULL) (void)driver->graph_destroy(graph);
    return status;
}

static weft_status graphs(struct gpu_rank *self, weft_error *err)
{
    const struct job *job = self->arg;
    const struct weft__cuda_driver *driver = gpu_driver(self->comm);
    weft_comm *cpu = NULL;
    WEFT__TRY(weft_comm_open(job->cpu, self->rank, &cpu, err));
    struct tensors host = host_tensors(self->rank), gpu = {0};
    CUgraphExec graph[GRAPHS] = {0};
    struct weft__cuda_tuning tuning = {.path = gpu_path(self->comm, job->path), .sections = 2};
    weft__cuda_tune(self->comm->kernels, &tuning);
    weft_status status = to_gpu(self, &host, &gpu, err);
    for (int g = 0; g < GRAPHS && status == WEFT_OK; g++)
        status = capture(self, &gpu, 4 * g, &graph[g], err);
    (void)pthread_barrier_wait(self->meet); /* instantiating may synchronise the device */
    uint64_t state = 11;
    for (int i = 0; i < REPLAYS && status == WEFT_OK; i++) {
        int g = (int)pick_from(&state, 0, GRAPHS); /* the last: without a graph */
        for (int k = 4 * g; k < 4 * g + 4 && status == WEFT_OK; k++)
            status = operate(cpu, &host, k, err);
        if (g < GRAPHS)
            status =
                gpu_check(self->comm, driver->graph_launch(graph[g], weft_comm_stream(self->comm)),
                          "replaying", err);
        for (int k = 4 * g; k < 4 * g + 4 && status == WEFT_OK && g == GRAPHS; k++)
            status = operate(self->comm, &gpu, k, err);
    }
    if (status == WEFT_OK) status = weft_comm_sync(self->comm, err);
    if (status == WEFT_OK) status = compare(self, &host, &gpu, "graphs", err);
    (void)pthread_barrier_wait(self->meet);
    for (int g = 0; g < GRAPHS; g++)
        if (graph[g] != NULL) (void)driver->graph_exec_destroy(graph[g]);
    (void)pthread_barrier_wait(self->meet);
    weft_comm_close(cpu);
    host_free(&host);
    return status;
}

/* ---- epochs with delays: each rank checks the sum of known numbers, and spoils its own after each
 * operation, when peers have no more use for them ---- */

static weft_status epochs(struct gpu_rank *self, weft_error *err)
{
    enum { SLOTS = 64, WIDTH = 256 };
    const struct job *job = self->arg;
    int p = weft_comm_size(self->comm);
    float host[SLOTS * WIDTH];
    void *heap = NULL;
    WEFT__TRY(weft_comm_heap_alloc(self->comm, sizeof host, &heap, err));
    uint8_t *x = heap, *y = gpu_take(self, sizeof host);
    uint8_t *waste = gpu_take(self, 4 << 20);
    const struct weft__cuda_driver *driver = gpu_driver(self->comm);
    uint64_t state = (uint64_t)self->rank + 17, same = 5;
    for (int i = 0; i < job->epochs; i++) {
        for (int k = 0; k < SLOTS * WIDTH && i % SLOTS == 0; k++)
            host[k] = (float)(k % 1009 + self->rank);
        if (i % SLOTS == 0) WEFT__TRY(gpu_write(self->comm, x, host, sizeof host, err));
        size_t at = (size_t)(i % SLOTS) * WIDTH * 4;
        weft_path path = (weft_path)pick_from(&same, WEFT_PATH_PUSH, WEFT_PATH_NCCL);
        int wire = (int)pick_from(&same, WEFT__CUDA_PACKED, WEFT__CUDA_PLACED);
        tune(self->comm, path, wire, (struct weft__cuda_tuning){0});
        weft_reduce op = {
            .tokens = 1, .hidden = WIDTH, .dtype = WEFT_F32, .x = x + at, .y = y + at};
        if (next_random(&state) % 16 == 0) /* some microseconds of other work on this rank alone */
            (void)driver->set_u8_async((CUdeviceptr)(uintptr_t)waste, 1,
                                       (size_t)pick_from(&state, 1, 4 << 20),
                                       weft_comm_stream(self->comm));
        if (next_random(&state) % 512 == 0) sleep_ms(1);
        WEFT__TRY(weft_comm_allreduce(self->comm, &op, err));
        (void)driver->set_u8_async((CUdeviceptr)(uintptr_t)(x + at), 0xff, WIDTH * 4,
                                   weft_comm_stream(self->comm));
        if (i % SLOTS != SLOTS - 1) continue;
        WEFT__TRY(weft_comm_sync(self->comm, err));
        WEFT__TRY(gpu_read(self->comm, host, y, sizeof host, err));
        for (int k = 0; k < SLOTS * WIDTH; k++)
            if (host[k] != (float)(p * (k % 1009) + p * (p - 1) / 2))
                return weft__fail(err, WEFT_INTERNAL, "epoch %d: element %d is %g", i, k,
                                  (double)host[k]);
    }
    return WEFT_OK;
}

/* ---- tests ---- */

static const weft_path paths[] = {WEFT_PATH_AUTO, WEFT_PATH_HOST, WEFT_PATH_COPY,
                                  WEFT_PATH_COPY_HOST, WEFT_PATH_NCCL};

struct context {
    struct gpu_place place;
    bool soak;
    int links, epochs;
};

static void run(const struct context *context, int p, gpu_fn *fn, struct job *job)
{
    weft_world_options options = {.size = p,
                                  .cuda_devices = context->place.ordinal,
                                  .heap_bytes = HEAP_BYTES,
                                  .timeout_ms = 20000};
    weft_world *gpu = world_of(options, (struct weft__tuning){0});
    job->cpu = world_of((weft_world_options){.size = p}, (struct weft__tuning){0});
    gpu_ranks_succeed(gpu, p, fn, job, ARENA_BYTES);
    weft_world_destroy(job->cpu);
    weft_world_destroy(gpu);
}

static void chains_hold(void **state)
{
    const struct context *context = *state;
    for (int p = 2; p <= 8; p += 3)
        for (size_t i = 0; i < WEFT__COUNT(paths); i++)
            run(context, p, chain, &(struct job){.path = paths[i], .links = context->links});
}

static void graphs_replay_in_any_order(void **state)
{
    for (int p = 2; p <= 4; p += 2)
        for (size_t i = 0; i < WEFT__COUNT(paths); i++)
            run(*state, p, graphs, &(struct job){.path = paths[i]});
}

static void epochs_hold(void **state)
{
    const struct context *context = *state;
    for (int p = context->soak ? 3 : 2; p <= 4; p += 2) {
        uint64_t begun = weft__now_ns();
        run(context, p, epochs, &(struct job){.epochs = context->epochs});
        printf("p = %d: %d epochs, %.1f s\n", p, context->epochs,
               (double)(weft__now_ns() - begun) / 1e9);
    }
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    struct context context = {.place = gpu_place_or_skip("comm_cuda_order"),
                              .soak = strcmp(how, "--soak") == 0,
                              .links = 1000,
                              .epochs = 20000};
    if (context.soak) context.epochs = 1000000;
    if (strcmp(how, "--short") == 0) { /* where everything is slow */
        context.links = 40;
        context.epochs = 1000;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(chains_hold, &context),
        cmocka_unit_test_prestate(graphs_replay_in_any_order, &context),
        cmocka_unit_test_prestate(epochs_hold, &context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
