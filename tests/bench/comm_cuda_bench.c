/* Times of the fused collectives of GPU ranks, inside CUDA graphs: the ranks are parallel branches
 * of one graph, each a chain of operations; a time is that of the graph over the operations of a
 * branch, the median of several replays. Where copy engines or NCCL move the bytes, each rank has a
 * graph of its own: branches of one could wait for one another in the same queue. Usage:
 * bench_comm_cuda [sweep|parts|sums|large]. */
#include "../conform/cuda_ranks.h"

enum { HIDDEN = 6144, CHAIN = 100, REPLAYS = 7, ROWS_MAX = 1024, MESSAGE_BYTES = 16 << 20 };
enum { ROWS_LARGE = 5461, MESSAGE_LARGE = 64 << 20 }; /* 64 MiB */

/* What an operation does, to see where time goes. */
enum part {
    FUSED,
    UNFUSED,
    UNFUSED_NCCL,
    SUM_NCCL,
    SUM_ONLY,
    LOCAL_COPY,
    LOCAL_NORM,
    LINK,      /* engines copy the input to the next rank */
    LINK_HOST, /* to host memory and, at the same time, as much from there */
};

struct rank_memory {
    void *x, *residual, *weight, *s, *y, *codes, *scales;
};

struct bench {
    int p;
    int64_t rows_max;
    bool nccl; /* there is one, and a device for each rank */
    weft_world *world;
    weft_comm *comm[WEFT__MAX_RANKS];
    struct rank_memory memory[WEFT__MAX_RANKS];
};

struct setup {
    int64_t rows;
    weft_quant_kind quant;
    enum part part;
    weft_algorithm algorithm;
    struct weft__cuda_tuning tuning;
};

/* ---- the ranks ---- */

struct opening {
    struct bench *bench;
    int rank;
    weft_error err;
};

static bool has_path(const weft_comm *comm, weft_path path)
{
    return (comm->kernels->usable >> path & 1) != 0;
}

/* NCCL connects when a size is first used; it does so with all ranks in threads of their own. */
static weft_status connect_nccl(weft_comm *comm, int64_t rows_max, weft_error *err)
{
    void *memory = NULL;
    WEFT__TRY(gpu_alloc(comm, (size_t)rows_max * HIDDEN * 2, &memory, err));
    weft_status status = WEFT_OK;
    for (int64_t rows = 1; rows <= rows_max && status == WEFT_OK; rows *= 4) {
        status = comm->dev->trial->baseline(comm->kernels, WEFT__ALLREDUCE, memory, memory,
                                            (size_t)rows * HIDDEN * 2, err);
        if (status == WEFT_OK) status = weft_comm_sync(comm, err);
    }
    gpu_free(comm, memory);
    return status;
}

static void *open_rank(void *arg)
{
    struct opening *self = arg;
    struct bench *bench = self->bench;
    weft_comm *comm = NULL;
    uint8_t mine = 0, all[WEFT__MAX_RANKS];
    if (weft_comm_open(bench->world, self->rank, &comm, &self->err) != WEFT_OK) return NULL;
    gpu_enter(comm);
    if (has_path(comm, WEFT_PATH_NCCL) &&
        connect_nccl(comm, bench->rows_max, &self->err) != WEFT_OK) {
        weft_comm_close(comm);
        return NULL;
    }
    bench->comm[self->rank] = comm;
    weft_gather gather = {.rows = 1, .row_bytes = 1, .in = &mine, .out = all};
    (void)weft__comm_gather_host(comm, &gather, &self->err); /* nobody launches before */
    return NULL;
}

static bool fill_memory(struct bench *bench, int r, weft_error *err)
{
    const weft_comm *comm = bench->comm[r];
    struct rank_memory *m = &bench->memory[r];
    size_t bytes = (size_t)bench->rows_max * HIDDEN * 2;
    void **all[] = {&m->residual, &m->weight, &m->s, &m->y, &m->codes, &m->scales};
    uint16_t *values = malloc(bytes);
    uint64_t state = (uint64_t)r + 1;
    for (size_t i = 0; i < bytes / 2; i++) {
        uint64_t bits = next_random(&state);
        values[i] = (uint16_t)((bits & 0x807f) | (117 + (bits >> 32) % 10) << 7);
    }
    bool good = weft_comm_heap_alloc(bench->comm[r], bytes, &m->x, err) == WEFT_OK &&
                gpu_write(comm, m->x, values, bytes, err) == WEFT_OK;
    for (size_t i = 0; i < WEFT__COUNT(all) && good; i++)
        good = gpu_alloc(comm, bytes, all[i], err) == WEFT_OK &&
               gpu_write(comm, *all[i], values, bytes, err) == WEFT_OK;
    free(values);
    return good;
}

static bool bench_open(struct bench *bench, const struct gpu_place *place, int p, bool large,
                       weft_error *err)
{
    pthread_t thread[WEFT__MAX_RANKS];
    struct opening opening[WEFT__MAX_RANKS];
    *bench = (struct bench){.p = p, .rows_max = large ? ROWS_LARGE : ROWS_MAX};
    weft_world_options options = {.size = p,
                                  .timeout_ms = 2000,
                                  .message_bytes = large ? MESSAGE_LARGE : MESSAGE_BYTES,
                                  .heap_bytes = (size_t)bench->rows_max * HIDDEN * 2,
                                  .cuda_devices = place->ordinal};
    struct weft__tuning tuning = {.plan_ms = -1};
    if (weft__world_create(&options, &tuning, &bench->world, err) != WEFT_OK) return false;
    for (int r = 0; r < p; r++) {
        opening[r] = (struct opening){.bench = bench, .rank = r};
        if (pthread_create(&thread[r], NULL, open_rank, &opening[r]) != 0) abort();
    }
    for (int r = 0; r < p; r++) (void)pthread_join(thread[r], NULL);
    for (int r = 0; r < p; r++) {
        if (bench->comm[r] == NULL) {
            *err = opening[r].err;
            return false;
        }
        gpu_enter(bench->comm[r]);
        if (!fill_memory(bench, r, err)) return false;
    }
    bench->nccl = has_path(bench->comm[0], WEFT_PATH_NCCL);
    return true;
}

static void bench_close(struct bench *bench)
{
    for (int r = 0; r < bench->p; r++) {
        if (bench->comm[r] == NULL) continue;
        void *all[] = {bench->memory[r].residual, bench->memory[r].weight, bench->memory[r].s,
                       bench->memory[r].y,        bench->memory[r].codes,  bench->memory[r].scales};
        for (size_t i = 0; i < WEFT__COUNT(all); i++)
            if (all[i] != NULL) gpu_free(bench->comm[r], all[i]);
        weft_comm_close(bench->comm[r]);
    }
    weft_world_destroy(bench->world);
}

/* ---- one operation of one rank ---- */

static weft_status local(weft_comm *comm, const weft_reduce *op, weft_error *err)
{
    struct weft__cuda_tuning tuning = comm->kernels->tuning, alone = tuning;
    alone.local = true;
    weft__cuda_tune(comm->kernels, &alone);
    weft_status status = weft_comm_allreduce(comm, op, err);
    weft__cuda_tune(comm->kernels, &tuning);
    return status;
}

/* What the links can do. */
static weft_status copy(struct bench *bench, int r, const struct setup *setup, size_t bytes,
                        weft_error *err)
{
    const weft_comm *comm = bench->comm[r];
    const struct weft__cuda_driver *driver = gpu_driver(comm);
    const struct weft__cuda_rank *rank = comm->kernels->rank;
    const struct weft__cuda_engine *engine = &comm->kernels->engine;
    const struct rank_memory *m = &bench->memory[r], *next = &bench->memory[(r + 1) % bench->p];
    uint64_t x = (uint64_t)(uintptr_t)m->x, y = (uint64_t)(uintptr_t)m->y;
    CUresult result;
    if (setup->part == LINK) {
        result = driver->copy((uint64_t)(uintptr_t)next->y, x, bytes, rank->stream);
        return gpu_check(comm, result, "copying", err);
    }
    (void)driver->event_record(rank->fork, rank->stream);
    (void)driver->stream_wait(rank->out, rank->fork, 0);
    result = driver->copy(engine->host[r] + WEFT__CUDA_HEAD_BYTES, x, bytes, rank->out);
    if (result == CUDA_SUCCESS)
        result = driver->copy(y, engine->host[r] + WEFT__CUDA_HEAD_BYTES + MESSAGE_LARGE, bytes,
                              rank->stream);
    (void)driver->event_record(rank->fork, rank->out);
    (void)driver->stream_wait(rank->stream, rank->fork, 0);
    return gpu_check(comm, result, "copying", err);
}

static weft_status operate(struct bench *bench, int r, const struct setup *setup, weft_error *err)
{
    const struct rank_memory *m = &bench->memory[r];
    weft_comm *comm = bench->comm[r];
    weft_reduce op = {.tokens = setup->rows, .hidden = HIDDEN, .dtype = WEFT_BF16, .x = m->x};
    weft_quant quant = {
        .kind = setup->quant, .scale = 0.02f, .codes = m->codes, .scales = m->scales};
    size_t bytes = (size_t)setup->rows * HIDDEN * 2; /* NCCL sums half as many F32 */
    if (setup->part == LINK || setup->part == LINK_HOST) return copy(bench, r, setup, bytes, err);
    if (setup->part == SUM_NCCL)
        return comm->dev->trial->baseline(comm->kernels, WEFT__ALLREDUCE, m->x, m->y, bytes, err);
    if (setup->part == SUM_ONLY || setup->part == LOCAL_COPY) {
        op.y = m->y;
        return setup->part == SUM_ONLY ? weft_comm_allreduce(comm, &op, err)
                                       : local(comm, &op, err);
    }
    if (setup->part != UNFUSED && setup->part != UNFUSED_NCCL) {
        op.residual = m->residual;
        op.residual_out = m->s;
        op.norm = true;
        op.norm_weight = m->weight;
        op.norm_eps = 1e-5f;
        op.y = m->y;
        op.quant = quant;
        return setup->part == FUSED ? weft_comm_allreduce(comm, &op, err) : local(comm, &op, err);
    }
    weft_reduce add = op, norm = op, code = op;
    op.y = m->y;
    WEFT__TRY(
        setup->part == UNFUSED_NCCL
            ? comm->dev->trial->baseline(comm->kernels, WEFT__ALLREDUCE, m->x, m->y, bytes, err)
            : weft_comm_allreduce(comm, &op, err));
    add.x = m->y;
    add.residual = m->residual;
    add.residual_out = m->s;
    WEFT__TRY(local(comm, &add, err));
    norm.x = m->s;
    norm.norm = true;
    norm.norm_weight = m->weight;
    norm.norm_eps = 1e-5f;
    norm.y = m->y;
    WEFT__TRY(local(comm, &norm, err));
    if (setup->quant == WEFT_QUANT_NONE) return WEFT_OK;
    code.x = m->y;
    code.quant = quant;
    return local(comm, &code, err);
}

/* ---- timing ---- */

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Fewer when rows are many, or an operation is many nodes: a launch that fills a queue waits for
 * the GPU, and this thread has other ranks' graphs to launch. */
static int chain_of(const struct setup *setup)
{
    if (weft__cuda_is_staged(setup->tuning.path)) return CHAIN / 10;
    return setup->rows <= 16 ? CHAIN : CHAIN / 2;
}

/* An event belongs to a device, as do the streams that record it. */
static CUevent event_for(const weft_comm *comm, unsigned flags)
{
    const struct weft__cuda_driver *driver = gpu_driver(comm);
    CUevent event = NULL;
    CUcontext popped;
    (void)driver->context_push(comm->kernels->rank->device.context);
    (void)driver->event_create(&event, flags);
    (void)driver->context_pop(&popped);
    return event;
}

/* Chains of the ranks from..to - 1 as branches of one graph. */
static weft_status capture(struct bench *bench, const struct setup *setup, int from, int to,
                           CUgraphExec *out, weft_error *err)
{
    const struct weft__cuda_driver *driver = gpu_driver(bench->comm[from]);
    CUstream first = weft_comm_stream(bench->comm[from]);
    CUevent fork = event_for(bench->comm[from], CU_EVENT_DISABLE_TIMING), join[WEFT__MAX_RANKS];
    CUgraph graph = NULL;
    (void)driver->capture_begin(first, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    (void)driver->event_record(fork, first);
    weft_status status = WEFT_OK;
    for (int r = from; r < to; r++) {
        CUstream stream = weft_comm_stream(bench->comm[r]);
        join[r] = event_for(bench->comm[r], CU_EVENT_DISABLE_TIMING);
        if (r > from) (void)driver->stream_wait(stream, fork, 0);
        for (int i = 0; i < chain_of(setup) && status == WEFT_OK; i++)
            status = operate(bench, r, setup, err);
        if (r > from) (void)driver->event_record(join[r], stream);
        if (r > from) (void)driver->stream_wait(first, join[r], 0);
    }
    CUresult result = driver->capture_end(first, &graph);
    if (status == WEFT_OK) status = gpu_check(bench->comm[0], result, "capturing", err);
    if (status == WEFT_OK)
        status = gpu_check(bench->comm[0], driver->graph_make(out, graph, 0), "instantiating", err);
    if (graph != NULL) (void)driver->graph_destroy(graph);
    (void)driver->event_destroy(fork);
    for (int r = from; r < to; r++) (void)driver->event_destroy(join[r]);
    return status;
}

/* Of every rank's graph, as far as there is one. */
static weft_status replay(struct bench *bench, const CUgraphExec *graphs, int chain, float *us,
                          weft_error *err)
{
    const struct weft__cuda_driver *driver = gpu_driver(bench->comm[0]);
    CUstream stream = weft_comm_stream(bench->comm[0]);
    CUevent from = event_for(bench->comm[0], 0), to = event_for(bench->comm[0], 0);
    float ms[REPLAYS + 1];
    for (int i = 0; i <= REPLAYS; i++) {
        CUresult result = CUDA_SUCCESS;
        for (int r = 1; r < bench->p && result == CUDA_SUCCESS; r++) /* they wait for rank 0 */
            if (graphs[r] != NULL)
                result = driver->graph_launch(graphs[r], weft_comm_stream(bench->comm[r]));
        (void)driver->event_record(from, stream);
        if (result == CUDA_SUCCESS) result = driver->graph_launch(graphs[0], stream);
        (void)driver->event_record(to, stream);
        if (result == CUDA_SUCCESS) result = driver->event_sync(to);
        WEFT__TRY(gpu_check(bench->comm[0], result, "replaying", err));
        (void)driver->event_elapsed(&ms[i], from, to);
    }
    qsort(ms + 1, REPLAYS, sizeof *ms, by_value); /* the first is a warm-up */
    *us = ms[1 + REPLAYS / 2] * 1000 / (float)chain;
    (void)driver->event_destroy(from);
    (void)driver->event_destroy(to);
    for (int r = 0; r < bench->p; r++) WEFT__TRY(weft_comm_sync(bench->comm[r], err));
    return WEFT_OK;
}

/* Microseconds an operation, or a negative number. */
static float time_of(struct bench *bench, const struct setup *setup)
{
    weft_error err = {0};
    CUgraphExec graphs[WEFT__MAX_RANKS] = {0};
    bool staged = weft__cuda_is_staged(setup->tuning.path);
    float us = -1;
    for (int r = 0; r < bench->p; r++) {
        bench->comm[r]->algorithm = setup->algorithm;
        weft__cuda_tune(bench->comm[r]->kernels, &setup->tuning);
    }
    weft_status status = WEFT_OK;
    for (int r = 0; r < (staged ? bench->p : 1) && status == WEFT_OK; r++)
        status = capture(bench, setup, r, staged ? r + 1 : bench->p, &graphs[r], &err);
    if (status == WEFT_OK) status = replay(bench, graphs, chain_of(setup), &us, &err);
    for (int r = 0; r < bench->p; r++)
        if (graphs[r] != NULL) (void)gpu_driver(bench->comm[r])->graph_exec_destroy(graphs[r]);
    if (status == WEFT_OK) return us;
    printf("  failed: %s\n", err.text);
    return -1;
}

/* ---- what is measured ---- */

/* The input is read where it is. */
static struct setup in_place(struct setup setup)
{
    setup.tuning.wire = WEFT__CUDA_PLACED;
    return setup;
}

static const char *const path_names[] = {
#define X(name, text) text,
    WEFT_PATHS(X)
#undef X
};
static const char *const wire_names[] = {"auto  ", "packed", "dense ", "plain "};

static void sweep(struct bench *bench)
{
    static const int64_t rows[] = {1, 4, 16, 64};
    printf(
        "p path rows wire algorithm: us at cluster 1 2 4 8 | serial late early at the default\n");
    for (int path = WEFT_PATH_PUSH; path <= WEFT_PATH_HOST; path++)
        for (size_t i = 0; i < WEFT__COUNT(rows); i++)
            for (int wire = WEFT__CUDA_PACKED; wire <= WEFT__CUDA_PLAIN; wire++)
                for (int algorithm = 1; algorithm <= 2; algorithm++) {
                    struct setup setup = {
                        .rows = rows[i],
                        .algorithm = (weft_algorithm)algorithm,
                        .tuning = {.path = (weft_path)path, .wire = (enum weft__cuda_wire)wire}};
                    if ((wire != WEFT__CUDA_PLAIN && rows[i] > 16) ||
                        (algorithm == 2 && rows[i] < 16))
                        continue;
                    printf("%d %s %4lld %s %s:", bench->p, path_names[path], (long long)rows[i],
                           wire_names[wire], algorithm == 1 ? "one-shot" : "two-shot");
                    for (setup.tuning.cluster = 1; setup.tuning.cluster <= 8;
                         setup.tuning.cluster *= 2)
                        printf(" %7.2f", (double)time_of(bench, &setup));
                    setup.tuning.cluster = 0;
                    setup.tuning.serial = true;
                    printf(" | %7.2f", (double)time_of(bench, &setup));
                    setup.tuning.serial = false;
                    setup.tuning.late = true;
                    printf(" %7.2f", (double)time_of(bench, &setup));
                    setup.tuning.late = false;
                    printf(" %7.2f\n", (double)time_of(bench, &setup));
                    (void)fflush(stdout);
                }
}

static void parts(struct bench *bench)
{
    static const char *const names[] = {"fused", "", "", "", "sum", "copy", "norm"};
    printf("p part: us at cluster 1 2 4 8, the same one by one; 1 row, pull\n");
    for (int part = FUSED; part <= LOCAL_NORM; part++) {
        if (part >= UNFUSED && part <= SUM_NCCL) continue;
        printf("%d %-5s:", bench->p, names[part]);
        for (int serial = 0; serial <= 1; serial++)
            for (int cluster = 1; cluster <= 8; cluster *= 2) {
                struct setup setup = {
                    .rows = 1,
                    .part = (enum part)part,
                    .tuning = {.path = WEFT_PATH_PULL, .cluster = cluster, .serial = serial != 0}};
                printf(" %7.2f", (double)time_of(bench, &setup));
            }
        printf("\n");
    }
}

/* Short messages through host memory: which form, over how many blocks a row, how many rows at work
 * at once, how many sent at once. */
static void host_forms(struct bench *bench)
{
    static const int64_t rows[] = {1, 4, 16};
    printf("p host rows wire clusters section: us at cluster 1 2 4 8\n");
    for (size_t i = 0; i < WEFT__COUNT(rows); i++)
        for (int wire = WEFT__CUDA_PACKED; wire <= WEFT__CUDA_PLAIN; wire++)
            for (int clusters = 2; clusters <= 16; clusters *= 2)
                for (int section = 1; section <= 4; section *= 4) {
                    if (clusters > rows[i] && clusters > 2) continue;
                    printf("%d host %2lld %s %2d %d:", bench->p, (long long)rows[i],
                           wire_names[wire], clusters, section);
                    for (int cluster = 1; cluster <= 8; cluster *= 2) {
                        struct setup setup = {.rows = rows[i],
                                              .tuning = {.path = WEFT_PATH_HOST,
                                                         .wire = (enum weft__cuda_wire)wire,
                                                         .cluster = cluster,
                                                         .clusters = rows[i] == 1 ? 1 : clusters,
                                                         .section = section}};
                        printf(" %7.2f", (double)time_of(bench, &setup));
                    }
                    printf("\n");
                }
}

/* The sum alone, to compare with others' all-reduce; rows sent together. */
static void sums(struct bench *bench)
{
    printf("p path rows KiB: us of the sum with sections of 1 2 4 8 16 rows | two-shot | in place "
           "one-shot, two-shot | NCCL\n");
    for (int path = WEFT_PATH_PUSH; path <= WEFT_PATH_PULL; path++)
        for (int64_t rows = 1; rows <= ROWS_MAX; rows *= 4) {
            struct setup setup = {
                .rows = rows, .part = SUM_ONLY, .tuning = {.path = (weft_path)path}};
            printf("%d %s %4lld %5lld:", bench->p, path_names[path], (long long)rows,
                   (long long)(rows * HIDDEN * 2 / 1024));
            for (setup.tuning.section = 1; setup.tuning.section <= 16; setup.tuning.section *= 2)
                printf(" %7.2f", (double)time_of(bench, &setup));
            setup.tuning.section = 0;
            setup.algorithm = WEFT_ALGORITHM_TWO_SHOT;
            printf(" | %7.2f |", (double)time_of(bench, &setup));
            setup = in_place(setup);
            for (int algorithm = 1; algorithm <= 2 && path == WEFT_PATH_PULL; algorithm++) {
                setup.algorithm = (weft_algorithm)algorithm;
                printf(" %7.2f", (double)time_of(bench, &setup));
            }
            printf(" |");
            setup.part = SUM_NCCL;
            if (bench->nccl) printf(" %7.2f", (double)time_of(bench, &setup));
            printf("\n");
            (void)fflush(stdout);
        }
}

/* Long messages: the sum alone and fused, on every path; what the links can do; others. */
static void large(struct bench *bench)
{
    static const int64_t rows[] = {64, 256, 1024, ROWS_LARGE};
    static const int sections[] = {0, 1, 2, 4, 8};
    printf(
        "p rows KiB: us of an engine's copy to the next rank (GB/s), to and from the host, NCCL\n"
        "   path algorithm: us of the sum | fused; copies and nccl: in the library's number of "
        "sections, in 1 2 4 8\n");
    for (size_t i = 0; i < WEFT__COUNT(rows); i++) {
        struct setup setup = {.rows = rows[i], .part = LINK};
        double bytes = (double)rows[i] * HIDDEN * 2;
        float link = time_of(bench, &setup);
        setup.part = LINK_HOST;
        float host = time_of(bench, &setup), nccl = -1;
        setup.part = SUM_NCCL;
        if (bench->nccl) nccl = time_of(bench, &setup);
        printf("%d %lld %.0f: link %.2f (%.1f) host %.2f (%.1f) nccl %.2f\n", bench->p,
               (long long)rows[i], bytes / 1024, (double)link, bytes / (double)link / 1e3,
               (double)host, bytes / (double)host / 1e3, (double)nccl);
        for (int path = WEFT_PATH_PUSH; path <= WEFT_PATH_NCCL; path++)
            for (int how = 0; how < 3; how++) {
                static const char *const names[] = {"one-shot", "two-shot", "in place"};
                if (!has_path(bench->comm[0], (weft_path)path)) continue;
                if (how == 1 && bench->p == 2 && path != WEFT_PATH_COPY) continue;
                if (how == 2 && path != WEFT_PATH_PULL) continue;
                printf("   %-9s %s:", path_names[path], names[how]);
                for (int part = SUM_ONLY; part >= FUSED; part -= SUM_ONLY) {
                    bool staged = weft__cuda_is_staged((weft_path)path);
                    for (size_t s = 0; s < (staged ? WEFT__COUNT(sections) : 1); s++) {
                        setup = (struct setup){
                            .rows = rows[i],
                            .part = (enum part)part,
                            .algorithm =
                                how == 1 ? WEFT_ALGORITHM_TWO_SHOT : WEFT_ALGORITHM_ONE_SHOT,
                            .tuning = {.path = (weft_path)path, .sections = sections[s]}};
                        if (how == 2) setup = in_place(setup);
                        printf(" %8.2f", (double)time_of(bench, &setup));
                    }
                    if (part != FUSED) printf(" |");
                }
                printf("\n");
                (void)fflush(stdout);
            }
    }
}

static void table(struct bench *bench)
{
    static const int64_t rows[] = {1, 4, 16, 64, 256, 1024};
    printf("p path rows KiB: us fused, unfused, ratio%s | with FP8 token | with NVFP4 swizzled\n",
           bench->nccl ? ", unfused with NCCL, ratio" : "");
    for (int how = 0; how <= WEFT_PATH_NCCL; how++) {
        bool placed = how == 0;
        weft_path path = placed ? WEFT_PATH_PULL : (weft_path)how;
        for (size_t i = placed || weft__cuda_is_staged(path) ? 3 : 0; i < WEFT__COUNT(rows); i++) {
            if (!has_path(bench->comm[0], path)) continue;
            printf("%d %s %4lld %5lld:", bench->p, placed ? "in place" : path_names[path],
                   (long long)rows[i], (long long)(rows[i] * HIDDEN * 2 / 1024));
            static const weft_quant_kind quants[] = {WEFT_QUANT_NONE, WEFT_QUANT_FP8_TOKEN,
                                                     WEFT_QUANT_NVFP4_SWIZZLED};
            for (size_t q = 0; q < WEFT__COUNT(quants); q++) {
                struct setup setup = {
                    .rows = rows[i], .quant = quants[q], .tuning = {.path = path}};
                if (placed) setup = in_place(setup);
                float fused = time_of(bench, &setup);
                setup.part = UNFUSED;
                float unfused = time_of(bench, &setup);
                printf("%s %8.2f %8.2f %5.2f", q > 0 ? " |" : "", (double)fused, (double)unfused,
                       (double)(fused / unfused));
                if (!bench->nccl) continue;
                setup.part = UNFUSED_NCCL;
                unfused = time_of(bench, &setup);
                printf(" %8.2f %5.2f", (double)unfused, (double)(fused / unfused));
            }
            printf("\n");
            (void)fflush(stdout);
        }
    }
}

int main(int argc, char **argv)
{
    struct gpu_place place = gpu_place_or_skip("comm_cuda_bench");
    void (*measure)(struct bench *) = table;
    if (argc > 1 && strcmp(argv[1], "sweep") == 0) measure = sweep;
    if (argc > 1 && strcmp(argv[1], "parts") == 0) measure = parts;
    if (argc > 1 && strcmp(argv[1], "sums") == 0) measure = sums;
    if (argc > 1 && strcmp(argv[1], "large") == 0) measure = large;
    printf(
        "hidden %d BF16: all-reduce + residual + RMSNorm; %d devices, rank r on device r mod %d; "
        "ranks are branches of one graph, at most %d operations each\n",
        HIDDEN, place.devices, place.devices, CHAIN);
    (void)fflush(stdout);
    for (int p = 2; p <= (place.devices > 1 ? place.devices : 8); p *= 2) {
        struct bench bench;
        weft_error err = {0};
        if (!bench_open(&bench, &place, p, measure == large, &err)) {
            printf("p = %d: %s\n", p, err.text);
            bench_close(&bench);
            return 1;
        }
        measure(&bench);
        if (measure == parts && p == 2) host_forms(&bench);
        bench_close(&bench);
    }
    return 0;
}
