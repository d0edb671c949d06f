/* p ranks that run one batch together, threads of this process or processes of their own. Rank 0
 * is the caller's thread and tells the others what to do, through the communicator:
 *
 *     all_gather   the beginning of rank 0's order; from the others what they have counted so far
 *     broadcast    the rest of the order: there is none for a few sequences that generate
 *     forward      on every rank; a rank that fails aborts, and all hear of it
 *
 * So there is one way for all kinds of ranks, and every wait ends as collectives end. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine.h"

enum {
    LEAVE_S = 5,        /* how long a thread may take to see that all is over */
    FIRST_BYTES = 1024, /* of an order, that travel at once */
};

struct rank {
    struct weft__ranks *ranks;
    int index;
    pthread_t thread; /* of the others, when they are threads */
    bool started;
    struct weft__dev *dev;
    weft_comm *comm;
    struct weft__model *model;
    uint8_t *packed; /* the order as it travels; NULL when there is only one rank */
    size_t packed_bytes;
    const float *logits;
    struct weft__rank_stats stats;
};

struct weft__ranks {
    const struct weft__arch *arch;
    struct weft__checkpoint *checkpoint;
    struct weft__ranks_options options;
    const struct weft__device *device;
    weft_world *world;
    struct rank rank[WEFT__MAX_RANKS];              /* those of this process */
    struct weft__rank_stats heard[WEFT__MAX_RANKS]; /* of the others, by rank 0 */
};

/* ---- orders ---- */

/* An order begins with the sizes of its batch; no tokens: leave. */
struct sizes {
    int32_t tokens, seqs, outputs;
    int64_t pages; /* of all sequences together */
};

/* An order in one piece of memory. */
struct packed {
    struct sizes *sizes;
    int64_t *slot;
    struct weft__seq *seq; /* its pages follow in the order of the sequences */
    int32_t *token, *position, *output, *pages;
    size_t bytes;
};

/* base NULL: for the size alone. */
static struct packed lay_out(uint8_t *base, const struct sizes *sizes)
{
    size_t tokens = (size_t)sizes->tokens, at = 0;
    struct packed p;
#define PART(member, count)                               \
    p.member = base != NULL ? (void *)(base + at) : NULL; \
    at += (size_t)(count) * sizeof *p.member
    PART(sizes, 1);
    PART(slot, tokens);
    PART(seq, sizes->seqs);
    PART(token, tokens);
    PART(position, tokens);
    PART(output, sizes->outputs);
    PART(pages, sizes->pages);
#undef PART
    p.bytes = at;
    return p;
}

static int64_t pages_of(const struct weft__seq *seq)
{
    return weft__ceil_div(seq->kv_len, WEFT__PAGE);
}

static weft_status check_fits(const struct rank *r, const struct sizes *sizes, weft_error *err)
{
    size_t bytes = lay_out(NULL, sizes).bytes;
    if (bytes <= r->packed_bytes) return WEFT_OK;
    return weft__fail(err, WEFT_INTERNAL, "rank %d: an order of %zu bytes, %zu are possible",
                      r->index, bytes, r->packed_bytes);
}

static weft_status pack(struct rank *r, const struct weft__batch *batch, weft_error *err)
{
    struct sizes sizes = {batch->tokens, batch->seqs, batch->outputs, 0};
    for (int i = 0; i < batch->seqs; i++) sizes.pages += pages_of(&batch->seq[i]);
    WEFT__TRY(check_fits(r, &sizes, err));
    struct packed p = lay_out(r->packed, &sizes);
    size_t tokens = (size_t)batch->tokens;
    *p.sizes = sizes;
    memcpy(p.slot, batch->slot, tokens * sizeof *p.slot);
    memcpy(p.seq, batch->seq, (size_t)batch->seqs * sizeof *p.seq);
    memcpy(p.token, batch->token, tokens * sizeof *p.token);
    memcpy(p.position, batch->position, tokens * sizeof *p.position);
    memcpy(p.output, batch->output, (size_t)batch->outputs * sizeof *p.output);
    for (int i = 0; i < batch->seqs; i++) {
        size_t pages = (size_t)pages_of(&batch->seq[i]);
        memcpy(p.pages, batch->seq[i].pages, pages * sizeof *p.pages);
        p.pages += pages;
    }
    return WEFT_OK;
}

static struct weft__batch unpack(uint8_t *memory, const struct sizes *sizes)
{
    struct packed p = lay_out(memory, sizes);
    for (int i = 0; i < sizes->seqs; i++) {
        p.seq[i].pages = p.pages;
        p.pages += pages_of(&p.seq[i]);
    }
    return (struct weft__batch){.tokens = sizes->tokens,
                                .seqs = sizes->seqs,
                                .outputs = sizes->outputs,
                                .token = p.token,
                                .position = p.position,
                                .slot = p.slot,
                                .seq = p.seq,
                                .output = p.output};
}

/* Rank 0 gives the beginning of its order, the others get it, as long as that may take. */
static weft_status exchange(struct rank *r, struct sizes *sizes, weft_error *err)
{
    struct weft__ranks *all = r->ranks;
    const size_t note = sizeof r->stats;
    uint8_t notes[FIRST_BYTES + WEFT__MAX_RANKS * sizeof r->stats];
    size_t row_bytes[WEFT__MAX_RANKS] = {FIRST_BYTES};
    for (int other = 1; other < all->options.size; other++) row_bytes[other] = note;
    const weft_gather gather = {.rows = 1,
                                .row_bytes_of = row_bytes,
                                .in = r->index == 0 ? (void *)r->packed : &r->stats,
                                .out = notes,
                                .patient = r->index > 0};
    WEFT__TRY(weft_comm_all_gather(r->comm, &gather, err));
    if (r->index > 0) memcpy(r->packed, notes, FIRST_BYTES);
    for (int other = 1; r->index == 0 && other < all->options.size; other++)
        memcpy(&all->heard[other], notes + FIRST_BYTES + (size_t)(other - 1) * note, note);
    memcpy(sizes, r->packed, sizeof *sizes);
    return WEFT_OK;
}

/* What did not fit into the beginning. */
static weft_status send_rest(struct rank *r, const struct sizes *sizes, weft_error *err)
{
    WEFT__TRY(check_fits(r, sizes, err));
    size_t bytes = lay_out(NULL, sizes).bytes;
    if (bytes <= FIRST_BYTES) return WEFT_OK;
    const weft_broadcast rest = {.bytes = bytes - FIRST_BYTES, .data = r->packed + FIRST_BYTES};
    return weft_comm_broadcast(r->comm, &rest, err);
}

/* ---- one rank ---- */

/* Room for the largest batch. No more sequences run than there can be outputs (sched.h). */
static weft_status make_room(struct rank *r, weft_error *err)
{
    const struct weft__model_limits *limits = &r->ranks->options.limits;
    const struct sizes largest = {.tokens = (int32_t)limits->tokens,
                                  .seqs = (int32_t)limits->outputs,
                                  .outputs = (int32_t)limits->outputs,
                                  .pages = limits->outputs *
                                           weft__ceil_div(limits->context, WEFT__PAGE)};
    if (r->ranks->options.size == 1) return WEFT_OK;
    r->packed_bytes = FIRST_BYTES + lay_out(NULL, &largest).bytes;
    r->packed = calloc(1, r->packed_bytes);
    return r->packed != NULL ? WEFT_OK : weft__fail_oom(err, r->packed_bytes, "an order");
}

static weft_status rank_load(struct rank *r, weft_error *err)
{
    struct weft__ranks *all = r->ranks;
    const struct weft__dev_options options = {
        .threads = all->options.threads,
        .first_cpu = all->options.pinned ? r->index * all->options.threads : -1,
        .kernels = all->options.portable ? "portable" : NULL,
    };
    WEFT__TRY(all->device->core->open(&options, &r->dev, err));
    WEFT__TRY(make_room(r, err));
    if (r->index == 0) weft__warm(all->checkpoint, all->arch, &all->options, r->comm);
    const struct weft__model_parts parts = {.arch = all->arch,
                                            .checkpoint = all->checkpoint,
                                            .device = all->device,
                                            .dev = r->dev,
                                            .comm = r->comm};
    return weft__model_open(&parts, &all->options.limits, &r->model, err);
}

/* Rank 0's options hold for all, but for pointers, which are good in one process. */
static weft_status take_options(struct rank *r, weft_error *err)
{
    const struct weft__ranks_options own = r->ranks->options;
    struct weft__ranks_options options = own;
    const weft_broadcast broadcast = {.bytes = sizeof options, .data = &options};
    WEFT__TRY(weft_comm_broadcast(r->comm, &broadcast, err));
    if (own.rendezvous == NULL) return WEFT_OK;
    options.rendezvous = own.rendezvous;
    options.on_progress = own.on_progress;
    options.ctx = own.ctx;
    r->ranks->options = options;
    return WEFT_OK;
}

/* Returns when all ranks have loaded, which may take long with signs of life, or one has failed. */
static weft_status rank_open(struct rank *r, weft_error *err)
{
    WEFT__TRY(weft_comm_open(r->ranks->world, r->index, &r->comm, err));
    weft_status status = take_options(r, err);
    if (status == WEFT_OK) status = rank_load(r, err);
    if (status != WEFT_OK) {
        weft_comm_abort(r->comm, err->text);
        return status;
    }
    return weft_comm_barrier(r->comm, err);
}

static uint64_t sampled_rows(const struct weft__batch *batch)
{
    uint64_t rows = 0;
    for (int i = 0; i < batch->seqs; i++)
        if (batch->seq[i].generated) rows += (uint64_t)batch->seq[i].count;
    return rows;
}

static weft_status rank_step(struct rank *r, const struct weft__batch *batch, weft_error *err)
{
    weft_comm_stats before, after;
    uint64_t start = weft__now_ns();
    weft_comm_get_stats(r->comm, &before);
    weft_status status = weft__model_forward(r->model, batch, &r->logits, err);
    if (status != WEFT_OK) weft_comm_abort(r->comm, err->text);
    weft_comm_get_stats(r->comm, &after);
    uint64_t busy = weft__now_ns() - start, moved = after.total_ns - before.total_ns;
    uint64_t compute = busy > moved ? busy - moved : 0;
    uint64_t decode = compute * sampled_rows(batch) / (uint64_t)batch->tokens;
    r->stats.steps++;
    r->stats.busy_ns += busy;
    r->stats.decode_ns += decode;
    r->stats.prefill_ns += compute - decode;
    r->stats.collective_ns += moved;
    r->stats.wait_ns += after.wait_ns - before.wait_ns;
    for (enum weft__tiling_kind kind = 0; kind < WEFT__TILING_KINDS; kind++)
        r->stats.tiling[kind] = weft__model_tiling(r->model, kind);
    return status;
}

/* What every rank but 0 does until rank 0 says leave. */
static weft_status rank_obey(struct rank *r, weft_error *err)
{
    for (;;) {
        struct sizes sizes;
        WEFT__TRY(exchange(r, &sizes, err));
        if (sizes.tokens == 0) return WEFT_OK;
        weft_status status = send_rest(r, &sizes, err);
        if (status != WEFT_OK) {
            weft_comm_abort(r->comm, err->text);
            return status;
        }
        const struct weft__batch batch = unpack(r->packed, &sizes);
        WEFT__TRY(rank_step(r, &batch, err));
    }
}

static void rank_close(struct rank *r)
{
    weft__model_close(r->model);
    weft_comm_close(r->comm);
    if (r->dev != NULL) r->ranks->device->core->close(r->dev);
    free(r->packed);
}

static weft_status rank_run(struct rank *r, weft_error *err)
{
    weft_status status = rank_open(r, err);
    if (status == WEFT_OK) status = rank_obey(r, err);
    rank_close(r);
    return status;
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    char name[16];
    weft_error err; /* rank 0 hears of it through the communicator */
    (void)snprintf(name, sizeof name, "weft rank %d", r->index);
    (void)pthread_setname_np(pthread_self(), name);
    (void)rank_run(r, &err);
    return NULL;
}

/* ---- all of them ---- */

static weft_status ranks_create(const struct weft__arch *arch, struct weft__checkpoint *checkpoint,
                                const struct weft__ranks_options *options, struct weft__ranks **out,
                                weft_error *err)
{
    struct weft__ranks *all = calloc(1, sizeof *all);
    if (all == NULL) return weft__fail_oom(err, sizeof *all, "the ranks");
    all->arch = arch;
    all->checkpoint = checkpoint;
    all->options = *options;
    all->device = &weft__cpu;
    for (int i = 0; i < options->size; i++) all->rank[i] = (struct rank){.ranks = all, .index = i};
    const int64_t rows = weft__min(options->limits.tokens, WEFT__BLOCK_ROWS);
    const size_t message = (size_t)rows * (size_t)arch->hidden * sizeof(float);
    const weft_world_options world = {
        .size = options->size,
        .timeout_ms = options->timeout_ms,
        .message_bytes = (size_t)weft__max((int64_t)message, WEFT_COMM_MESSAGE_MIN),
        .heap_bytes = 1u << 16,
        .rendezvous = options->rendezvous,
    };
    weft_status status = weft_world_create(&world, &all->world, err);
    if (status == WEFT_OK)
        *out = all;
    else
        free(all);
    return status;
}

static weft_status start_threads(struct weft__ranks *all, weft_error *err)
{
    for (int i = 1; i < all->options.size; i++) {
        struct rank *r = &all->rank[i];
        r->started = pthread_create(&r->thread, NULL, rank_main, r) == 0;
        if (!r->started) return weft__fail(err, WEFT_NO_MEMORY, "rank %d: no thread for it", i);
    }
    return WEFT_OK;
}

/* Waits a while for the threads. False: one is still at work, or stuck, outside of collectives. */
static bool join_threads(struct weft__ranks *all)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LEAVE_S;
    bool joined = true;
    for (int i = 1; i < all->options.size; i++) {
        struct rank *r = &all->rank[i];
        if (r->started && pthread_timedjoin_np(r->thread, NULL, &until) == 0) r->started = false;
        joined = joined && !r->started;
    }
    return joined;
}

static void ranks_free(struct weft__ranks *all)
{
    weft_world_destroy(all->world);
    free(all);
}

weft_status weft__ranks_open(const struct weft__arch *arch, struct weft__checkpoint *checkpoint,
                             const struct weft__ranks_options *options, struct weft__ranks **out,
                             weft_error *err)
{
    struct weft__ranks *all;
    weft_error why = {0};
    weft_status status = ranks_create(arch, checkpoint, options, &all, err);
    if (status != WEFT_OK) return status;
    if (options->rendezvous == NULL) status = start_threads(all, &why);
    if (status == WEFT_OK) status = rank_open(&all->rank[0], &why);
    if (status == WEFT_OK) {
        *out = all;
        return WEFT_OK;
    }
    if (err != NULL) *err = why;
    rank_close(&all->rank[0]);
    while (!join_threads(all)) continue; /* they load from what the caller is going to close */
    ranks_free(all);
    return status;
}

weft_status weft__ranks_follow(const char *dir, const struct weft__ranks_options *options, int rank,
                               weft_error *err)
{
    struct weft__arena arena = {0};
    struct weft__arch arch;
    struct weft__checkpoint *checkpoint = NULL;
    struct weft__ranks *all = NULL;
    weft_error why; /* peers hear of it, too */
    weft_status status = weft__arch_load(dir, &arena, &arch, &why);
    if (status == WEFT_OK) status = weft__checkpoint_open(dir, &checkpoint, &why);
    if (status == WEFT_OK) status = ranks_create(&arch, checkpoint, options, &all, &why);
    if (status == WEFT_OK) {
        status = rank_run(&all->rank[rank], &why);
        ranks_free(all);
    }
    if (status != WEFT_OK && err != NULL) *err = why;
    weft__checkpoint_close(checkpoint);
    weft__arena_free(&arena);
    return status;
}

bool weft__ranks_close(struct weft__ranks *all)
{
    if (all == NULL) return true;
    struct rank *r = &all->rank[0];
    if (all->options.size > 1) {
        struct sizes leave = {0};
        memcpy(r->packed, &leave, sizeof leave);
        (void)exchange(r, &leave, NULL); /* or they know of a failure */
    }
    rank_close(r);
    if (!join_threads(all)) return false;
    ranks_free(all);
    return true;
}

weft_status weft__ranks_step(struct weft__ranks *all, const struct weft__batch *batch,
                             const float **logits, weft_error *err)
{
    struct rank *r = &all->rank[0];
    if (all->options.size > 1) {
        struct sizes sizes;
        WEFT__TRY(pack(r, batch, err));
        WEFT__TRY(exchange(r, &sizes, err));
        WEFT__TRY(send_rest(r, &sizes, err));
    }
    weft_status status = rank_step(r, batch, err);
    if (status == WEFT_OK) *logits = r->logits;
    return status;
}

struct weft__rank_stats weft__ranks_stats(const struct weft__ranks *ranks, int rank)
{
    struct weft__rank_stats stats = rank == 0 ? ranks->rank[0].stats : ranks->heard[rank];
    stats.device = ranks->device->core->name; /* heard: a pointer of another process */
    return stats;
}
