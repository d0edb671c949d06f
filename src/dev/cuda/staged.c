/* staged.c: operations whose bytes copy engines or NCCL move, for large messages.
 *
 * A message is cut into sections, so that both directions of a link and the sums are at work at
 * once. Streams are forked from the rank's and joined again, so that it can be captured:
 *
 *     stream   meet | await 0, work 0 | await 1, work 1 | ...                                | end
 *     out           | send 0, send 1, ...; two-shot: sums of section i, when work i has made them
 *     in            | copy-host: fetch 0 after await 0, ...; work is a section behind
 *
 * send    copy: to the peer's slot and, after it, a flag. copy-host: to this rank's pinned memory,
 *         once, and a flag there. nccl: sends and receives of all pairs at once.
 * await   those flags, when this rank's own section has gone; so the output may be the input.
 * fetch   from pinned memory into the slot.
 * work    kernels of launch.c that are alone, on what has come: a fused one-shot reduction; or the
 *         sum of this rank's share, and after the second leg norm and quantisation of all.
 *
 * Nobody overwrites what is still read: all ranks have met when the first byte is sent, so what
 * they did before is complete. Waits are those of kernels/copy.cu, with budgets; engines wait for
 * nobody, NCCL only after all have met.
 *
 * A driver may make one queue of several streams, in any order that the dependencies it knows
 * allow. It does not know that an await depends on the peers' sends; so a send must not come behind
 * what waits for a peer that is itself held up. Since a section is awaited and fetched after it has
 * gone, what comes before the send of section i waits for sections before i alone, and those have
 * gone. */
#include "comm.h"

enum { SUMS = 1 }; /* the second leg */

/* What a rank sends another: bytes of the message. */
struct part {
    uint64_t at, bytes;
};

/* A message. */
struct job {
    struct weft__comm_kernels *k;
    const struct weft__comm_reduce_args *reduce; /* or */
    const struct weft__comm_move_args *move;
    const struct weft__comm_post *post;
    weft_path path;
    uint64_t row_bytes; /* of reductions */
    uint64_t x;         /* this rank's message */
    bool scatter, two_shot;
    int sections;
    uint32_t signature;
    CUresult result; /* the first that failed */
    weft_error nccl; /* or NCCL's */
};

static const struct weft__cuda_driver *driver_of(const struct job *job)
{
    return &job->k->rank->device.driver;
}

static void check(struct job *job, CUresult result)
{
    if (job->result == CUDA_SUCCESS) job->result = result;
}

/* ---- who gets what ---- */

static struct part move_part(const struct job *job, int from, int section)
{
    const struct weft__comm_move_args *args = job->move;
    uint64_t piece = (args->bytes + (uint64_t)job->sections - 1) / (uint64_t)job->sections;
    piece = weft__round_up(piece, 16);
    uint64_t line = args->post.op == WEFT__BROADCAST
                        ? (from == args->root ? args->first + args->bytes : 0)
                        : args->row_bytes[from] * (uint64_t)args->rows;
    uint64_t end = line > args->first ? line - args->first : 0; /* of the message */
    if (end > args->bytes) end = args->bytes;
    uint64_t at = piece * (uint64_t)section;
    if (at >= end) return (struct part){0};
    return (struct part){at, end - at < piece ? end - at : piece};
}

/* Rows of the message that `rank` wants in the end. */
static int64_t wanted_of(const struct job *job, int rank, int64_t *first)
{
    const struct weft__comm_reduce_args *args = job->reduce;
    *first = 0;
    if (!job->scatter) return args->rows;
    int64_t own, count = weft_comm_share(args->op.tokens, job->k->link.size, rank, &own);
    *first = weft__max(own - args->first, 0);
    return weft__max(weft__min(own + count - args->first, args->rows) - *first, 0);
}

/* The same, of a section. */
static int64_t rows_of(const struct job *job, int rank, int section, int64_t *first)
{
    int64_t rows = wanted_of(job, rank, first), each = weft__ceil_div(rows, job->sections);
    int64_t at = weft__min(each * section, rows);
    *first += at;
    return weft__min(each, rows - at);
}

/* Of these, rows that `rank` sums in a two-shot reduction. */
static int64_t share_of(const struct job *job, int rank, int section, int64_t *first)
{
    int64_t from, at, rows = rows_of(job, rank, section, &from);
    rows = weft_comm_share(rows, job->k->link.size, rank, &at);
    *first = from + at;
    return rows;
}

static struct part part_of(const struct job *job, int leg, int from, int to, int section)
{
    if (job->move != NULL) return move_part(job, from, section);
    int64_t first, rows = !job->two_shot ? rows_of(job, to, section, &first)
                                         : share_of(job, leg == SUMS ? from : to, section, &first);
    return (struct part){(uint64_t)first * job->row_bytes, (uint64_t)rows * job->row_bytes};
}

/* ---- sending ---- */

/* Ranks that share a device have one stream each: the branches of a graph may wait for one another,
 * also for those of other ranks' graphs, where the driver has no more queues for them. */
static CUstream out_of(const struct job *job)
{
    const struct weft__cuda_rank *rank = job->k->rank;
    return rank->sharers > 1 ? rank->stream : rank->out;
}

static CUstream in_of(const struct job *job)
{
    const struct weft__cuda_rank *rank = job->k->rank;
    return rank->sharers > 1 ? rank->stream : rank->in;
}

static uint64_t flag_at(int leg, int section)
{
    return WEFT__CUDA_FLAG_AT + 4 * (uint64_t)(leg * WEFT__CUDA_SECTIONS_MAX + section);
}

/* Where this rank's bytes of a leg are. */
static uint64_t source_of(const struct job *job, int leg)
{
    return leg == SUMS ? job->k->engine.sums[job->k->link.rank] : job->x;
}

static void copy(struct job *job, uint64_t to, uint64_t from, struct part part, CUstream stream)
{
    if (part.bytes == 0) return;
    weft__cuda_pace(job->k);
    check(job, driver_of(job)->copy(to + part.at, from + part.at, part.bytes, stream));
}

static void copy_flag(struct job *job, uint64_t slot, int leg, int section)
{
    struct part word = {.at = 0, .bytes = 4};
    copy(job, slot + flag_at(leg, section), job->k->paths[job->path].epoch, word, out_of(job));
}

static void send_to_peers(struct job *job, int leg, int section)
{
    const struct weft__cuda_engine *engine = &job->k->engine;
    const struct weft__comm_link *link = &job->k->link;
    for (int i = 1; i < link->size; i++) { /* not all to the same at once */
        int to = (link->rank + i) % link->size;
        struct part part = part_of(job, leg, link->rank, to, section);
        uint64_t there = leg == SUMS ? engine->sums[to] : engine->there[to] + WEFT__CUDA_HEAD_BYTES;
        copy(job, there, source_of(job, leg), part, out_of(job));
        copy_flag(job, engine->there[to], leg, section);
    }
}

/* A message of inputs, and one of sums. */
static uint64_t host_at(const struct job *job, int rank, int leg)
{
    return job->k->engine.host[rank] + WEFT__CUDA_HEAD_BYTES +
           (leg == SUMS ? job->k->link.message_bytes : 0);
}

/* What several want goes once, and what is side by side together. */
static void send_to_host(struct job *job, int leg, int section)
{
    const struct weft__comm_link *link = &job->k->link;
    struct part run = {0};
    for (int to = 0; to < link->size; to++) {
        struct part part = part_of(job, leg, link->rank, to, section);
        if (to == link->rank || (part.at == run.at && part.bytes == run.bytes)) continue;
        if (part.at == run.at + run.bytes) {
            run.bytes += part.bytes;
            continue;
        }
        copy(job, host_at(job, link->rank, leg), source_of(job, leg), run, out_of(job));
        run = part;
    }
    copy(job, host_at(job, link->rank, leg), source_of(job, leg), run, out_of(job));
    copy_flag(job, job->k->engine.host[link->rank], leg, section);
}

/* Where bytes of a source go in this rank's memory. */
static uint64_t target_of(const struct job *job, int leg, int from)
{
    const struct weft__cuda_engine *engine = &job->k->engine;
    return leg == SUMS ? engine->sums[job->k->link.rank]
                       : engine->slot[from] + WEFT__CUDA_HEAD_BYTES;
}

static void send_by_nccl(struct job *job, int leg, int section)
{
    const struct weft__comm_link *link = &job->k->link;
    struct weft__nccl_part parts[WEFT_COMM_RANKS_MAX];
    int count = 0;
    for (int m = 0; m < link->size; m++) {
        if (m == link->rank) continue;
        struct part send = part_of(job, leg, link->rank, m, section);
        struct part receive = part_of(job, leg, m, link->rank, section);
        parts[count++] = (struct weft__nccl_part){.peer = link->world_rank[m],
                                                  .send = source_of(job, leg) + send.at,
                                                  .receive = target_of(job, leg, m) + receive.at,
                                                  .send_bytes = send.bytes,
                                                  .receive_bytes = receive.bytes};
    }
    if (job->nccl.status == WEFT_OK)
        (void)weft__nccl_exchange(job->k->rank->nccl, parts, count, out_of(job), &job->nccl);
}

static void send(struct job *job, int leg, int section)
{
    const struct weft__cuda_rank *rank = job->k->rank;
    if (job->path == WEFT_PATH_COPY)
        send_to_peers(job, leg, section);
    else if (job->path == WEFT_PATH_COPY_HOST)
        send_to_host(job, leg, section);
    else
        send_by_nccl(job, leg, section);
    check(job, driver_of(job)->event_record(rank->sent[leg][section], out_of(job)));
}

/* ---- receiving ---- */

static void step(struct job *job, enum weft__cuda_step what, int leg, int section)
{
    struct weft__cuda_step_args a = {.link = job->k->paths[job->path],
                                     .op = job->post->op,
                                     .signature = job->signature,
                                     .step = what,
                                     .phase = leg == SUMS ? WEFT__SUM : WEFT__INPUT,
                                     .flag = leg * WEFT__CUDA_SECTIONS_MAX + section,
                                     .nccl = job->path == WEFT_PATH_NCCL};
    bool host = job->path == WEFT_PATH_COPY_HOST;
    if (what == WEFT__CUDA_AWAIT) {
        a.link.half_bytes = 0;
        for (int m = 0; m < a.link.ranks; m++)
            a.link.recv[m] = host ? job->k->engine.host[m] : job->k->engine.slot[m];
    }
    weft__cuda_step(job->k, &a);
}

/* Until a section has gone and come; through the host, until it can be fetched, and fetches it. */
static void receive(struct job *job, int leg, int section)
{
    const struct weft__cuda_rank *rank = job->k->rank;
    const struct weft__cuda_driver *driver = driver_of(job);
    check(job, driver->stream_wait(rank->stream, rank->sent[leg][section], 0));
    if (job->path == WEFT_PATH_NCCL) return;
    step(job, WEFT__CUDA_AWAIT, leg, section);
    if (job->path != WEFT_PATH_COPY_HOST) return;
    check(job, driver->event_record(rank->fork, rank->stream));
    check(job, driver->stream_wait(in_of(job), rank->fork, 0));
    for (int i = 1; i < job->k->link.size; i++) {
        int from = (job->k->link.rank + i) % job->k->link.size;
        struct part part = part_of(job, leg, from, job->k->link.rank, section);
        copy(job, target_of(job, leg, from), host_at(job, from, leg), part, in_of(job));
    }
    check(job, driver->event_record(rank->fetched[section], in_of(job)));
}

/* ---- work ---- */

/* Data of all ranks, byte `at` of a message on, for a kernel that is alone. */
static void read_slots(const struct job *job, uint64_t at, struct weft__cuda_link *link)
{
    link->ranks = job->k->link.size;
    for (int m = 0; m < link->ranks; m++)
        link->recv[m] = (m == link->rank ? job->x : target_of(job, 0, m)) + at;
}

static void work_on_bytes(struct job *job, int section)
{
    const struct weft__comm_move_args *args = job->move;
    struct weft__cuda_move_args a;
    struct part longest = {0};
    for (int m = 0; m < job->k->link.size; m++) {
        struct part part = move_part(job, m, section);
        if (part.bytes > longest.bytes) longest = part;
    }
    if (longest.bytes == 0) return;
    weft__cuda_fill_move(job->k, args, &a);
    a.first = args->first + longest.at;
    a.bytes = longest.bytes;
    read_slots(job, longest.at, &a.link);
    weft__cuda_move_alone(job->k, &a);
}

/* What becomes of rows that are only passed on. */
static void store_only(struct weft__cuda_reduce_args *a, uint64_t y)
{
    a->y = y;
    a->residual_out = a->codes = a->scales = 0;
    a->norm = a->quant = 0;
    a->pad_rows = 0;
}

static void work_on_rows(struct job *job, int leg, int section)
{
    const struct weft__comm_reduce_args *args = job->reduce;
    int me = job->k->link.rank;
    bool share = job->two_shot && leg != SUMS;
    int64_t first,
        rows = share ? share_of(job, me, section, &first) : rows_of(job, me, section, &first);
    uint64_t at = (uint64_t)first * job->row_bytes;
    struct weft__cuda_reduce_args a;
    if (rows == 0) return;
    weft__cuda_fill_alone(job->k, args, args->first + first, rows, &a);
    if (leg == SUMS) { /* with the residual in it */
        a.x = source_of(job, SUMS) + at;
        a.top_k = 0;
        a.residual = 0;
    } else {
        read_slots(job, at, &a.link);
    }
    if (share) store_only(&a, source_of(job, SUMS) + at);
    weft__cuda_reduce_alone(job->k, &a, args->op.dtype);
}

static void work(struct job *job, int leg, int section)
{
    const struct weft__cuda_rank *rank = job->k->rank;
    const struct weft__cuda_driver *driver = driver_of(job);
    if (job->path == WEFT_PATH_COPY_HOST)
        check(job, driver->stream_wait(rank->stream, rank->fetched[section], 0));
    if (job->move != NULL)
        work_on_bytes(job, section);
    else
        work_on_rows(job, leg, section);
    if (!job->two_shot || leg == SUMS) return;
    check(job, driver->event_record(rank->summed[section], rank->stream));
    check(job, driver->stream_wait(out_of(job), rank->summed[section], 0));
    send(job, SUMS, section);
}

/* ---- an operation ---- */

/* A mixture of experts becomes a message in this rank's own slot. */
static void form(struct job *job)
{
    const struct weft__comm_reduce_args *args = job->reduce;
    struct weft__cuda_reduce_args a;
    job->x = target_of(job, 0, job->k->link.rank);
    weft__cuda_fill_alone(job->k, args, args->first, args->rows, &a);
    a.out_first = 0;
    a.out_rows = args->rows;
    a.residual = 0;
    store_only(&a, job->x);
    weft__cuda_reduce_alone(job->k, &a, args->op.dtype);
}

static void run(struct job *job)
{
    const struct weft__cuda_rank *rank = job->k->rank;
    const struct weft__cuda_driver *driver = driver_of(job);
    int legs = job->two_shot ? WEFT__CUDA_LEGS : 1;
    int behind = job->path == WEFT_PATH_COPY_HOST; /* the next is awaited while one is fetched */
    CUcontext popped;
    (void)driver->context_push(rank->device.context);
    if (job->reduce != NULL && job->reduce->op.moe.top_k > 0) form(job);
    step(job, WEFT__CUDA_MEET, 0, 0);
    check(job, driver->event_record(rank->fork, rank->stream));
    check(job, driver->stream_wait(out_of(job), rank->fork, 0));
    for (int i = 0; i < job->sections; i++) send(job, 0, i);
    for (int leg = 0; leg < legs; leg++)
        for (int i = 0; i < job->sections + behind; i++) {
            if (i < job->sections) receive(job, leg, i);
            if (i >= behind) work(job, leg, i - behind);
        }
    step(job, WEFT__CUDA_END, 0, 0);
    (void)driver->context_pop(&popped);
    weft_error why = job->nccl;
    if (job->result != CUDA_SUCCESS)
        (void)weft__cuda_fail(driver, job->result, "enqueuing copies", &why);
    if (why.status != WEFT_OK) weft__cuda_give_up(job->k, &why);
}

/* How many sections: with s of them, n bytes take about n / link + s * start + n / (s * link),
 * which is least at the root of n over what the link carries while a copy is started. */
static int sections_of(const struct job *job, uint64_t bytes)
{
    static const uint64_t started[] = {[WEFT_PATH_COPY] = 3 << 20,
                                       [WEFT_PATH_COPY_HOST] = 1 << 19,
                                       [WEFT_PATH_NCCL] = (uint64_t)1 << 40}; /* never worth it */
    uint64_t most = WEFT__CUDA_SECTIONS_MAX, s = 1;
    if (job->k->tuning.sections > 0) return (int)weft__min(job->k->tuning.sections, (int64_t)most);
    while (s < most &&
           (s + 1) * (s + 1) * started[job->path] * (uint64_t)(job->k->link.size - 1) <= bytes)
        s++;
    return (int)s;
}

static void sign(struct job *job, uint64_t first)
{
    int32_t plan[] = {(int32_t)job->path, job->sections, (int32_t)(first >> 10)};
    job->signature = weft__cuda_sign(job->k, job->post, plan, sizeof plan);
}

void weft__cuda_reduce_staged(struct weft__comm_kernels *k,
                              const struct weft__comm_reduce_args *args, weft_path path)
{
    struct job job = {.k = k,
                      .reduce = args,
                      .post = &args->post,
                      .path = path,
                      .row_bytes = (uint64_t)args->op.hidden * (args->op.dtype == WEFT_F32 ? 4 : 2),
                      .scatter = args->post.op == WEFT__REDUCE_SCATTER,
                      .two_shot = args->post.two_shot != 0};
    job.x = (uint64_t)(uintptr_t)args->op.x + (uint64_t)args->first * job.row_bytes;
    job.sections = sections_of(&job, (uint64_t)args->rows * job.row_bytes);
    sign(&job, (uint64_t)args->first);
    run(&job);
}

void weft__cuda_move_staged(struct weft__comm_kernels *k, const struct weft__comm_move_args *args,
                            weft_path path)
{
    struct job job = {.k = k,
                      .move = args,
                      .post = &args->post,
                      .path = path,
                      .x = (uint64_t)(uintptr_t)args->in + args->first};
    job.sections = sections_of(&job, args->bytes);
    sign(&job, args->first);
    run(&job);
}
