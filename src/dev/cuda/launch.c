/* launch.c: enqueues the collective kernels: shape of the grid, arguments, failures. */
#include <stdio.h>
#include <time.h>

#include "comm.h"

/* ---- failures ---- */

void weft__cuda_give_up(const struct weft__comm_kernels *k, const weft_error *why)
{
    int rank = k->link.world_rank[k->link.rank];
    struct weft__comm_fault what = {.kind = WEFT__FAULT_ABORT, .rank = rank, .peer = rank};
    (void)snprintf(what.reason, sizeof what.reason, "%.159s", why->text);
    weft__comm_fail(k->link.fault, &what);
}

/* Takes a kernel's record over into the session's fault. True when the session has failed. */
static bool failed(const struct weft__comm_kernels *k)
{
    struct weft__comm_fault *fault = k->link.fault;
    /* Acquire: pairs with the kernel's release of the poison, which follows its record. */
    if (atomic_load_explicit(&k->link.world[0]->poison, memory_order_acquire) == 0)
        return atomic_load_explicit(&fault->state, memory_order_acquire) != WEFT__COMM_HEALTHY;
    for (int r = 0; r < k->link.world_size; r++) {
        const struct weft__cuda_record *record = (const void *)k->link.world[r]->record;
        if (atomic_load_explicit(&record->state, memory_order_acquire) != 1) continue;
        struct weft__comm_fault what = {.kind = record->kind,
                                        .rank = record->rank,
                                        .peer = record->peer,
                                        .op = record->op,
                                        .phase = record->phase,
                                        .epoch = record->epoch,
                                        .elapsed_ns = record->elapsed_ns};
        if (record->kind == WEFT__FAULT_MISMATCH) {
            what.mine = k->link.world[record->rank]->channel[record->channel].enqueued;
            what.theirs = k->link.world[record->peer]->channel[record->channel].enqueued;
        }
        weft__comm_fail(fault, &what);
        return true;
    }
    return true;
}

/* What NCCL does while a stream is waited for. */
struct vigil {
    uint32_t inside; /* the epoch it was last seen at work in */
    uint64_t since, failed_at;
};

/* NCCL's own waits have no bound, and it says nothing of ranks: an operation that all ranks have
 * begun must end within the budget, and when the session has failed NCCL is ended. */
static void watch_nccl(const struct weft__comm_kernels *k, struct vigil *vigil)
{
    enum { GRACE_NS = 50000000 };
    uint64_t now = weft__now_ns();
    const struct weft__comm_rank *mine = k->link.world[k->link.world_rank[k->link.rank]];
    uint32_t inside = atomic_load_explicit(&mine->inside, memory_order_relaxed);
    if (inside != vigil->inside) *vigil = (struct vigil){inside, now, vigil->failed_at};
    if (inside != 0 && now - vigil->since > k->link.timeout_ns && !failed(k)) {
        weft_error why;
        (void)weft__fail(&why, WEFT_TIMEOUT,
                         "NCCL has not moved an operation's bytes within %llu ms; it does not say "
                         "which rank is missing",
                         (unsigned long long)(k->link.timeout_ns / 1000000));
        weft__cuda_give_up(k, &why);
    }
    if (vigil->failed_at == 0 && failed(k)) vigil->failed_at = now;
    if (vigil->failed_at != 0 && now - vigil->failed_at > GRACE_NS) weft__nccl_abort(k->rank->nccl);
}

static CUresult query(const struct weft__comm_kernels *k, CUevent event)
{
    const struct weft__cuda_driver *driver = &k->rank->device.driver;
    return event != NULL ? driver->event_query(event) : driver->stream_query(k->rank->stream);
}

/* For an event, or NULL: all of the rank's stream. Looks meanwhile whether ranks that are processes
 * still live, and after NCCL. */
static CUresult wait_for(const struct weft__comm_kernels *k, CUevent event)
{
    enum { SLICE_NS = 20000 };
    const struct weft__cuda_driver *driver = &k->rank->device.driver;
    uint64_t begun = weft__now_ns();
    bool looks = k->link.meeting != NULL || k->rank->nccl != NULL;
    struct vigil vigil = {0};
    if (!looks)
        return event != NULL ? driver->event_sync(event) : driver->stream_sync(k->rank->stream);
    CUresult result = query(k, event);
    for (; result == CUDA_ERROR_NOT_READY; result = query(k, event)) {
        if (k->rank->nccl != NULL) watch_nccl(k, &vigil);
        int dead = weft__comm_ended(&k->link);
        if (dead >= 0) { /* the kernels find the fault, and end */
            const struct weft__comm_channel *channel =
                &k->link.world[k->link.world_rank[k->link.rank]]->channel[k->link.channel];
            struct weft__comm_fault what = {.kind = WEFT__FAULT_ENDED,
                                            .rank = k->link.world_rank[k->link.rank],
                                            .peer = dead,
                                            .op = channel->enqueued.op,
                                            .phase = WEFT__INPUT,
                                            .elapsed_ns = weft__now_ns() - begun};
            weft__comm_fail(k->link.fault, &what);
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = SLICE_NS}, NULL);
    }
    return result;
}

void weft__cuda_sync(struct weft__comm_kernels *k)
{
    const struct weft__cuda_driver *driver = &k->rank->device.driver;
    CUcontext popped;
    (void)driver->context_push(k->rank->device.context);
    CUresult result = wait_for(k, NULL);
    (void)driver->context_pop(&popped);
    if (failed(k) || result == CUDA_SUCCESS) return;
    weft_error why;
    (void)weft__cuda_fail(driver, result, "waiting for the rank's stream", &why);
    weft__cuda_give_up(k, &why);
}

/* ---- shape of a launch ---- */

static int dtype_index(weft_dtype dtype)
{
    return dtype == WEFT_BF16 ? 0 : dtype == WEFT_F16 ? 1 : 2;
}

struct shape {
    int instance, cluster, threads, shared_bytes, clusters;
    bool chained, early; /* may be launched while its predecessor runs; lets its successor be */
};

static CUlaunchAttribute cluster_attribute(int cluster)
{
    return (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                               .value.cluster = {(unsigned)cluster, 1, 1}};
}

/* How many clusters of this shape a rank may keep waiting: those of all ranks on the device fit at
 * once. */
static CUresult measure_fit(const struct weft__comm_kernels *k, const struct shape *shape, int *out)
{
    const struct weft__cuda_device *device = &k->rank->device;
    CUfunction function = k->reduce[shape->instance];
    int fit;
    CUresult result;
    if (shape->cluster == 1) {
        result = device->driver.occupancy_blocks(&fit, function, shape->threads,
                                                 (size_t)shape->shared_bytes);
        fit *= device->processors;
    } else {
        CUlaunchAttribute attribute = cluster_attribute(shape->cluster);
        CUlaunchConfig config = {.grid_x = (unsigned)shape->cluster,
                                 .grid_y = 1,
                                 .grid_z = 1,
                                 .block_x = (unsigned)shape->threads,
                                 .block_y = 1,
                                 .block_z = 1,
                                 .shared_bytes = (unsigned)shape->shared_bytes,
                                 .attributes = &attribute,
                                 .attribute_count = 1};
        result = device->driver.occupancy_clusters(&fit, function, &config);
    }
    *out = result == CUDA_SUCCESS ? fit / k->rank->sharers : 0;
    return result;
}

static int fit_of(struct weft__comm_kernels *k, const struct shape *shape)
{
    for (int i = 0; i < k->fit_count; i++) {
        const struct weft__cuda_fit *fit = &k->fits[i];
        if (fit->instance == shape->instance && fit->cluster == shape->cluster &&
            fit->threads == shape->threads && fit->shared_bytes == shape->shared_bytes)
            return fit->clusters;
    }
    int clusters;
    CUcontext popped;
    (void)k->rank->device.driver.context_push(k->rank->device.context);
    (void)measure_fit(k, shape, &clusters); /* what cannot be asked does not fit */
    (void)k->rank->device.driver.context_pop(&popped);
    size_t at = (size_t)k->fit_count % WEFT__COUNT(k->fits);
    if (k->fit_count < (int)WEFT__COUNT(k->fits)) k->fit_count++;
    k->fits[at] = (struct weft__cuda_fit){shape->instance, shape->cluster, shape->threads,
                                          shape->shared_bytes, clusters};
    return clusters;
}

/* Order of WEFT__CUDA_REDUCES. */
static int instance_of(weft_dtype dtype, bool one, enum weft__cuda_wire wire)
{
    return 6 * dtype_index(dtype) + (one ? 0 : 3) + (int)wire - WEFT__CUDA_PACKED;
}

/* What a launch is shaped for. */
struct work {
    weft_dtype dtype;
    enum weft__cuda_wire wire;
    int64_t tokens, hidden;
    bool far, placed;
    bool lean; /* no two-shot, no mixture: kernels whose warps have one group know neither */
};

/* A row over `cluster` blocks. */
static struct shape shape_of(const struct work *work, int cluster)
{
    int groups = (int)weft__ceil_div(work->hidden, WEFT__CUDA_GROUP),
        chunk_bytes = work->dtype == WEFT_F32 ? 32 : 16;
    int each = (int)weft__ceil_div(groups, cluster * (WEFT__CUDA_THREADS / 32)); /* of a warp */
    int warps = (int)weft__ceil_div(groups, cluster * each);
    bool one = each == 1 && work->lean;
    int own_bytes = work->wire == WEFT__CUDA_DENSE           ? WEFT__CUDA_STAGE_BYTES
                    : work->wire == WEFT__CUDA_PLAIN && !one ? WEFT__CUDA_AHEAD_BYTES
                                                             : 0;
    return (struct shape){.instance = instance_of(work->dtype, one, work->wire),
                          .cluster = cluster,
                          .threads = 32 * warps,
                          .shared_bytes =
                              warps * (own_bytes + (one ? 0 : each * 32 * chunk_bytes))};
}

/* Blocks that share a row, by rows at work on the device: few rows are spread for latency. Found
 * by the sweep of bench_comm_cuda on an H200. */
static int cluster_for(const struct weft__comm_kernels *k, int64_t tokens)
{
    int64_t rows = tokens * k->rank->sharers;
    if (!weft__cuda_has_clusters(&k->rank->device)) return 1;
    return rows <= 8 ? WEFT__CUDA_CLUSTER_MAX : rows <= 16 ? 4 : rows <= 512 ? 2 : 1;
}

/* Small grids let their successors come early: one has room to wait beside each of them. Large ones
 * take all the room there is, and let the next kernel come when all their blocks have stored their
 * outputs, which they can only when all peers' blocks have been at work; and where ranks share the
 * device they come when their predecessors have ended, since these may be small and waiting for a
 * rank that has no room yet. */
static bool choose_shape(struct weft__comm_kernels *k, const struct work *work, struct shape *out)
{
    enum { FAR_BLOCKS = 16 }; /* over a slow link, a block's fence costs more than its work */
    const struct weft__cuda_tuning *tuning = &k->tuning;
    bool slow = work->far && work->wire == WEFT__CUDA_PLAIN;
    int64_t tokens = work->tokens, groups = weft__ceil_div(work->hidden, WEFT__CUDA_GROUP);
    int cluster = slow || work->placed ? 1 : cluster_for(k, tokens);
    if (tuning->cluster > 0) cluster = tuning->cluster;
    while (cluster > groups) cluster /= 2; /* each has a group */
    for (; cluster >= 1; cluster /= 2) {
        struct shape shape = shape_of(work, cluster);
        int spare = k->rank->device.shared_max - WEFT__CUDA_STATIC_SHARED;
        int fit = shape.shared_bytes <= spare ? fit_of(k, &shape) : 0;
        bool last = cluster <= 2 || tuning->cluster > 0;
        if (fit < 1 || (!last && fit / 2 < tokens)) continue;
        shape.early = fit / 2 >= tokens;
        shape.chained = shape.early || k->rank->sharers == 1;
        int64_t clusters = weft__max(1, weft__min(fit, tokens));
        if (slow && tuning->cluster == 0) clusters = weft__min(clusters, FAR_BLOCKS);
        if (tuning->clusters > fit) return false;
        if (tuning->clusters > 0) clusters = tuning->clusters;
        shape.clusters = (int)weft__min(clusters, WEFT__CUDA_BLOCKS_MAX / cluster);
        *out = shape;
        return true;
    }
    return false;
}

weft_status weft__cuda_check_fit(struct weft__comm_kernels *k, weft_error *err)
{
    for (int i = 0; i < WEFT__CUDA_INSTANCES; i++) {
        struct shape shape = {.instance = i, .cluster = 1, .threads = WEFT__CUDA_THREADS};
        if (i % 3 == WEFT__CUDA_DENSE - WEFT__CUDA_PACKED)
            shape.shared_bytes = WEFT__CUDA_THREADS / 32 * WEFT__CUDA_STAGE_BYTES;
        int clusters;
        CUresult result = measure_fit(k, &shape, &clusters);
        if (result != CUDA_SUCCESS)
            return weft__cuda_fail(&k->rank->device.driver, result, "asking what fits", err);
        if (clusters < 2)
            return weft__fail(err, WEFT_UNSUPPORTED,
                              "CUDA device %d: the waiting blocks of %d ranks do not fit on its %d "
                              "processors: put fewer ranks on it",
                              k->rank->device.ordinal, k->rank->sharers,
                              k->rank->device.processors);
    }
    return WEFT_OK;
}

/* ---- launching ---- */

void weft__cuda_pace(struct weft__comm_kernels *k)
{
    enum { EVERY = 32 };
    struct weft__cuda_rank *rank = k->rank;
    const struct weft__cuda_driver *driver = &rank->device.driver;
    int capturing = 0, mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* other threads may be capturing */
    if (++rank->commands % EVERY != 0) return;
    if (driver->stream_capturing(rank->stream, &capturing) != CUDA_SUCCESS || capturing) return;
    CUevent event = rank->pace[rank->commands / EVERY % 2];
    (void)driver->capture_mode(&mode);
    (void)wait_for(k, event); /* that of 2 * EVERY commands ago, or of none */
    (void)driver->capture_mode(&mode);
    (void)driver->event_record(event, rank->stream);
}

/* args begins with a struct weft__cuda_link. */
static void launch(struct weft__comm_kernels *k, CUfunction function, void *args,
                   const struct shape *shape)
{
    const struct weft__cuda_driver *driver = &k->rank->device.driver;
    CUlaunchAttribute attributes[2];
    unsigned count = 0;
    if (shape->cluster > 1) attributes[count++] = cluster_attribute(shape->cluster);
    if (shape->chained && !k->tuning.serial && k->rank->device.arch >= 900)
        attributes[count++] = (CUlaunchAttribute){
            .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, .value.flag = 1};
    CUlaunchConfig config = {.grid_x = (unsigned)(shape->clusters * shape->cluster),
                             .grid_y = 1,
                             .grid_z = 1,
                             .block_x = (unsigned)shape->threads,
                             .block_y = 1,
                             .block_z = 1,
                             .shared_bytes = (unsigned)shape->shared_bytes,
                             .stream = k->rank->stream,
                             .attributes = attributes,
                             .attribute_count = count};
    void *params[] = {args};
    CUcontext popped;
    (void)driver->context_push(k->rank->device.context);
    weft__cuda_pace(k);
    CUresult result = driver->launch(&config, function, params, NULL);
    (void)driver->context_pop(&popped);
    if (result == CUDA_SUCCESS) return;
    weft_error why;
    (void)weft__cuda_fail(driver, result, "launching a collective", &why);
    weft__cuda_give_up(k, &why);
}

static void refuse(struct weft__comm_kernels *k, const char *why)
{
    weft_error err;
    (void)weft__fail(&err, WEFT_INVALID, "%s", why);
    weft__cuda_give_up(k, &err);
}

static const char no_room[] = "CUDA: the blocks of this operation do not fit on the device beside "
                              "the other ranks': fewer ranks or a shorter row";

/* What all ranks must agree on, for kernels to compare; the host keeps the post for the text. */
uint32_t weft__cuda_sign(struct weft__comm_kernels *k, const struct weft__comm_post *post,
                         const void *plan, size_t plan_bytes)
{
    k->link.world[k->link.world_rank[k->link.rank]]->channel[k->link.channel].enqueued = *post;
    struct {
        uint32_t op, dtype;
        int64_t shape[2];
        uint64_t detail, plan, two_shot;
    } all = {post->op,
             post->dtype,
             {post->shape[0], post->shape[1]},
             post->detail,
             weft__hash(plan, plan_bytes, 0),
             post->two_shot};
    return (uint32_t)weft__hash(&all, sizeof all, 0);
}

/* ---- reductions ---- */

static uint64_t address(const void *base, int64_t rows, int64_t row_bytes)
{
    return base == NULL ? 0 : (uint64_t)(uintptr_t)base + (uint64_t)(rows * row_bytes);
}

static bool aligned(const weft_reduce *op)
{
    const void *all[] = {op->x,        op->moe.expert_out, op->moe.shared,
                         op->residual, op->residual_out,   op->norm_weight,
                         op->y,        op->quant.codes};
    bool swizzled = op->quant.kind == WEFT_QUANT_NVFP4_SWIZZLED;
    uintptr_t bits = (uintptr_t)op->quant.scales & (swizzled ? 15 : 3);
    for (size_t i = 0; i < WEFT__COUNT(all); i++) bits |= (uintptr_t)all[i] & 15;
    return bits == 0;
}

/* Rows first .. first + rows of the operation; the outputs are those of out_first on. */
static void fill_rows(struct weft__cuda_reduce_args *a, const struct weft__comm_reduce_args *args,
                      int64_t first, int64_t rows)
{
    const weft_reduce *op = &args->op;
    bool nvfp4 = op->quant.kind == WEFT_QUANT_NVFP4 || op->quant.kind == WEFT_QUANT_NVFP4_SWIZZLED;
    a->top_k = op->moe.top_k;
    a->expert_rows = op->moe.expert_rows;
    a->hidden = op->hidden;
    a->norm_eps = op->norm_eps;
    a->quant = (uint32_t)op->quant.kind;
    a->quant_scale = nvfp4 ? 1.0f / op->quant.scale : op->quant.scale;
    a->norm = op->norm;
    a->op = args->post.op;
    int64_t row_bytes = op->hidden * (op->dtype == WEFT_F32 ? 4 : 2);
    int64_t from = weft__max(first, args->out_first);
    int64_t to = weft__min(first + rows, args->out_first + args->out_rows);
    int64_t out = from - args->out_first; /* row of the outputs */
    if (to < from) to = from;
    a->x = address(op->x, first, row_bytes);
    a->expert_out = address(op->moe.expert_out, 0, 0);
    a->slots = address(op->moe.slots, first * op->moe.top_k, 4);
    a->gates = address(op->moe.gates, first * op->moe.top_k, 4);
    a->shared = address(op->moe.shared, first, row_bytes);
    a->residual = address(op->residual, out, row_bytes);
    a->residual_out = address(op->residual_out, out, row_bytes);
    a->norm_weight = address(op->norm_weight, 0, 0);
    a->y = address(op->y, out, row_bytes);
    a->codes = address(op->quant.codes, out, nvfp4 ? op->hidden / 2 : op->hidden);
    int64_t scale_bytes = op->quant.kind == WEFT_QUANT_FP8_TOKEN ? 4
                          : op->quant.kind == WEFT_QUANT_NVFP4   ? op->hidden / 16
                                                                 : 0;
    a->scales = address(op->quant.scales, out, scale_bytes);
    a->tokens = rows;
    a->out_first = from - first;
    a->out_rows = to - from;
    a->scale_row = out;
    bool last = to == args->out_first + args->out_rows;
    if (op->quant.kind == WEFT_QUANT_NVFP4_SWIZZLED && to > from)
        a->pad_rows = (last ? weft__ceil_div(args->out_rows, 128) * 128 : out + to - from) - out;
}

/* The path of an operation. */
static weft_path path_of(const struct weft__comm_kernels *k, uint32_t way)
{
    weft_path path = k->tuning.path != WEFT_PATH_AUTO ? k->tuning.path : weft__way_path(way);
    return path != WEFT_PATH_AUTO ? path : k->rank->best;
}

/* How `rows` rows travel. Unless measured or told: with the epoch in every word while they are few;
 * over a slow link with fewer bytes. False: the form asked for has no room. */
static bool choose_wire(const struct weft__comm_kernels *k,
                        const struct weft__comm_reduce_args *args, int64_t rows, bool far,
                        enum weft__cuda_wire *out)
{
    enum { FEW = 256 * 1024, FEW_SHARED = 2048 * 1024, DENSE_FAR = 768 * 1024 };
    uint64_t groups = (uint64_t)(rows * weft__ceil_div(args->op.hidden, WEFT__CUDA_GROUP)) *
                      (args->op.dtype == WEFT_F32 ? 2 : 1);
    bool twice = args->post.two_shot != 0;
    bool fits[] = {[WEFT__CUDA_PLAIN] = true, [WEFT__CUDA_PLACED] = true};
    for (enum weft__cuda_wire w = WEFT__CUDA_PACKED; w < WEFT__CUDA_PLAIN; w++)
        fits[w] = weft__cuda_wire_bytes(w, groups, twice) <= k->packed_bytes;
    *out = k->tuning.wire;
    if (*out != WEFT__CUDA_WIRE_AUTO) return fits[*out];
    *out = weft__way_form(args->way);
    if (*out != WEFT__CUDA_WIRE_AUTO && fits[*out]) return true;
    uint64_t packed = weft__cuda_wire_bytes(WEFT__CUDA_PACKED, groups, twice);
    uint64_t dense = weft__cuda_wire_bytes(WEFT__CUDA_DENSE, groups, twice);
    bool shared = k->rank->sharers > 1; /* a device, whose memory moves all ranks' bytes */
    bool few = shared ? packed * (uint64_t)k->link.size <= FEW_SHARED : packed <= FEW;
    uint64_t most = far ? DENSE_FAR : shared ? 0 : k->packed_bytes; /* in dense form */
    *out = few && !far ? WEFT__CUDA_PACKED : dense <= most ? WEFT__CUDA_DENSE : WEFT__CUDA_PLAIN;
    return true;
}

/* Each rank's x, in the same place of its memory as this one's. -1: not where all reach it. */
static int64_t find_places(const struct weft__comm_kernels *k, uint64_t bytes,
                           struct weft__cuda_reduce_args *a)
{
    const struct weft__cuda_rank *rank = k->rank;
    const struct weft__comm_link *link = &k->link;
    uint64_t all = rank->memory[0].device_bytes,
             at = a->x - rank->base[link->world_rank[link->rank]];
    if (at >= all || bytes > all - at) return -1;
    for (int m = 0; m < link->size; m++) a->from[m] = rank->base[link->world_rank[m]] + at;
    return (int64_t)at;
}

/* Whether inputs are read where they are. */
static bool is_placed(const struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args)
{
    enum weft__cuda_wire wire = k->tuning.wire;
    if (wire == WEFT__CUDA_WIRE_AUTO) wire = weft__way_form(args->way);
    return wire == WEFT__CUDA_PLACED && path_of(k, args->way) == WEFT_PATH_PULL &&
           k->link.size > 1 && !k->tuning.local;
}

/* Rows of one launch. Those that are sent have flags. */
static int64_t rows_max(const struct weft__comm_kernels *k,
                        const struct weft__comm_reduce_args *args)
{
    if (!is_placed(k, args) || args->post.two_shot) return WEFT__CUDA_ROWS_MAX;
    return INT32_MAX / args->op.hidden; /* the kernel counts elements */
}

/* A piece that one launch can do. */
static void reduce_piece(struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args,
                         int64_t first, int64_t rows)
{
    enum { SECTION = 4, SECTION_TWO_SHOT = 16 }; /* two-shot has twice the fences */
    enum { FEW_GROUPS = 96 };
    const weft_reduce *op = &args->op;
    const struct weft__cuda_tuning *tuning = &k->tuning;
    weft_path path = path_of(k, args->way);
    const struct weft__cuda_link *link = &k->paths[path];
    enum weft__cuda_wire wire;
    if (!choose_wire(k, args, rows, link->far != 0, &wire))
        return refuse(k, "CUDA: the message is too long for the form asked for");
    bool placed = is_placed(k, args);
    if (placed) link = &k->paths[WEFT_PATH_PUSH]; /* flags and sums */
    if (wire == WEFT__CUDA_PLACED) wire = WEFT__CUDA_PLAIN;
    struct shape shape;
    struct work work = {.dtype = op->dtype,
                        .wire = wire,
                        .tokens = rows,
                        .hidden = op->hidden,
                        .far = link->far != 0,
                        .placed = placed,
                        .lean = !args->post.two_shot && op->moe.top_k == 0 && !placed};
    if (!choose_shape(k, &work, &shape)) return refuse(k, no_room);
    struct weft__cuda_reduce_args a = {
        .link = *link,
        .two_shot = args->post.two_shot,
        .cluster = shape.cluster,
        .late_release = tuning->late || !shape.early,
    };
    int64_t each = weft__max(1, weft__ceil_div(rows, shape.clusters)); /* rows of a cluster */
    int64_t most = args->post.two_shot ? SECTION_TWO_SHOT : placed ? each : SECTION;
    a.section = tuning->section > 0 ? tuning->section : (int32_t)weft__min(most, each);
    if (wire == WEFT__CUDA_PLAIN && op->moe.top_k == 0)
        a.own = link->push ? 1 + link->rank : link->sends == 2 ? 2 : 0;
    /* Looking with all lanes is quicker, and cheap while few warps do, and not many on one link. */
    bool pair = k->link.size == 2 && k->rank->sharers <= 2;
    if (rows == 1 || (pair && rows * weft__ceil_div(op->hidden, WEFT__CUDA_GROUP) <= FEW_GROUPS))
        a.link.far = 0;
    if (tuning->local) a.link.ranks = 1, a.link.sends = 0, a.two_shot = 0;
    fill_rows(&a, args, first, rows);
    if (a.two_shot) {
        a.sum_rows = weft_comm_share(rows, k->link.size, k->link.rank, &a.sum_first);
    } else {
        a.sum_first = a.out_first;
        a.sum_rows = a.out_rows;
    }
    uint64_t bytes = (uint64_t)(rows * op->hidden) * (op->dtype == WEFT_F32 ? 4 : 2);
    int64_t place = placed ? find_places(k, bytes, &a) : 0;
    if (place < 0) return refuse(k, "CUDA: x is not in memory of weft_comm_heap_alloc");
    /* Blocks of a cluster meet their like; the grid need not agree, but where inputs are in place.
     */
    int grid = placed ? shape.clusters : 0;
    int64_t plan[] = {path, wire, shape.cluster, shape.threads, grid, first, place};
    a.signature = weft__cuda_sign(k, &args->post, plan, sizeof plan);
    launch(k, k->reduce[shape.instance], &a, &shape);
}

/* ---- kernels that are alone ---- */

/* Blocks of the move kernel. Those that wait, and their successors', have room beside those of all
 * ranks. */
static int blocks_for(const struct weft__comm_kernels *k, uint64_t bytes)
{
    enum { BLOCK_BYTES = 8 * 1024, BLOCKS = 32 };
    int room = k->rank->device.processors / (2 * k->rank->sharers);
    int64_t wanted = weft__ceil_div((int64_t)bytes, BLOCK_BYTES);
    return (int)weft__max(1, weft__min(weft__min(BLOCKS, room), wanted));
}

static struct weft__cuda_link nobody(const struct weft__comm_kernels *k)
{
    const struct weft__cuda_link *link = &k->paths[WEFT_PATH_HOST];
    return (struct weft__cuda_link){
        .epoch = link->epoch, .watch = link->watch, .ranks = 1, .rank = link->rank};
}

void weft__cuda_fill_alone(struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args,
                           int64_t first, int64_t rows, struct weft__cuda_reduce_args *out)
{
    *out = (struct weft__cuda_reduce_args){.link = nobody(k)};
    fill_rows(out, args, first, rows);
}

void weft__cuda_reduce_alone(struct weft__comm_kernels *k, struct weft__cuda_reduce_args *a,
                             weft_dtype dtype)
{
    struct shape shape;
    struct work work = {.dtype = dtype,
                        .wire = WEFT__CUDA_PLAIN,
                        .tokens = a->tokens,
                        .hidden = a->hidden,
                        .lean = !a->two_shot && a->top_k == 0};
    if (!choose_shape(k, &work, &shape)) return refuse(k, no_room);
    shape.chained = false;
    a->cluster = shape.cluster;
    a->section = 4;
    a->late_release = 1;
    a->sum_first = a->out_first;
    a->sum_rows = a->out_rows;
    launch(k, k->reduce[shape.instance], a, &shape);
}

void weft__cuda_move_alone(struct weft__comm_kernels *k, const struct weft__cuda_move_args *a)
{
    struct weft__cuda_move_args args = *a;
    struct shape shape = {
        .cluster = 1, .threads = WEFT__CUDA_THREADS, .clusters = blocks_for(k, a->bytes)};
    launch(k, k->move, &args, &shape);
}

void weft__cuda_step(struct weft__comm_kernels *k, const struct weft__cuda_step_args *a)
{
    struct weft__cuda_step_args args = *a;
    struct shape shape = {.cluster = 1, .threads = 32, .clusters = 1};
    launch(k, k->step, &args, &shape);
}

/* ---- operations ---- */

void weft__cuda_reduce(struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args)
{
    if (failed(k)) return;
    if (!aligned(&args->op))
        return refuse(k, "CUDA: x, residual, y, codes and the like must be aligned to 16 bytes, "
                         "scales to 4, swizzled ones to 16");
    weft_path path = path_of(k, args->way);
    if (weft__cuda_is_staged(path) && k->link.size > 1 && !k->tuning.local)
        return weft__cuda_reduce_staged(k, args, path);
    int64_t end = args->first + args->rows, first = args->first;
    do {
        int64_t rows = weft__min(rows_max(k, args), end - first);
        reduce_piece(k, args, first, rows);
        first += rows;
    } while (first < end);
}

void weft__cuda_fill_move(const struct weft__comm_kernels *k,
                          const struct weft__comm_move_args *args, struct weft__cuda_move_args *out)
{
    struct weft__cuda_move_args a = {.link = nobody(k),
                                     .in = (uint64_t)(uintptr_t)args->in,
                                     .out = (uint64_t)(uintptr_t)args->out,
                                     .first = args->first,
                                     .bytes = args->bytes,
                                     .rows = args->rows,
                                     .out_row_bytes = args->out_row_bytes,
                                     .root = args->root,
                                     .op = args->post.op};
    uint64_t column = 0, bits = a.in | a.out | a.first | a.bytes | a.out_row_bytes;
    for (int m = 0; m < k->link.size; m++) {
        a.row_bytes[m] = args->row_bytes[m];
        a.column[m] = column;
        column += a.row_bytes[m];
        bits |= a.row_bytes[m];
    }
    if (args->post.op == WEFT__BROADCAST) { /* one row, of the root */
        a.rows = 1;
        a.row_bytes[args->root] = args->first + args->bytes;
        a.column[args->root] = 0;
        bits |= a.row_bytes[args->root];
    }
    a.wide = bits % 16 == 0;
    *out = a;
}

void weft__cuda_move(struct weft__comm_kernels *k, const struct weft__comm_move_args *args)
{
    if (failed(k)) return;
    weft_path path = path_of(k, args->way);
    if (weft__cuda_is_staged(path) && k->link.size > 1 && args->post.op != WEFT__BARRIER)
        return weft__cuda_move_staged(k, args, path);
    struct weft__cuda_move_args a;
    weft__cuda_fill_move(k, args, &a);
    a.link = k->paths[path];
    int blocks = blocks_for(k, args->bytes);
    int32_t plan[] = {(int32_t)path, (int32_t)(args->first >> 10), (int32_t)args->bytes, blocks};
    a.signature = weft__cuda_sign(k, &args->post, plan, sizeof plan);
    struct shape shape = {
        .cluster = 1, .threads = WEFT__CUDA_THREADS, .clusters = blocks, .chained = true};
    launch(k, k->move, &a, &shape);
}
