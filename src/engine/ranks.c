/* p ranks that run one batch together: one thread each, the caller being rank 0's. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

struct rank {
    struct weft__ranks *ranks;
    int index;
    pthread_t thread; /* not of rank 0 */
    bool started;
    struct weft__dev *dev;
    weft_comm *comm;
    struct weft__model *model;
    const float *logits;
    weft_status status; /* of the last command */
    weft_error error;
    struct weft__rank_stats stats;
};

struct weft__ranks {
    const struct weft__arch *arch;
    struct weft__checkpoint *checkpoint;
    struct weft__ranks_options options;
    const struct weft__device *device;
    weft_world *world;
    /* A command is published by advancing `go`; each rank answers by advancing `done`. */
    _Atomic uint32_t go, done;
    const struct weft__batch *batch; /* NULL: leave */
    struct rank rank[WEFT__MAX_RANKS];
};

static void rank_open(struct rank *r)
{
    struct weft__ranks *all = r->ranks;
    const struct weft__dev_options options = {
        .threads = all->options.threads,
        .first_cpu = all->options.pinned ? r->index * all->options.threads : -1,
        .portable = all->options.portable,
    };
    r->status = all->device->core->open(&options, &r->dev, &r->error);
    /* A rank that failed still joins, so that the others hear of it rather than time out. */
    weft_status joined =
        weft_comm_open(all->world, r->index, &r->comm, r->status == WEFT_OK ? &r->error : NULL);
    if (r->status == WEFT_OK) r->status = joined;
    if (r->status == WEFT_OK)
        r->status = weft__model_open(all->arch, all->checkpoint, all->device, r->dev, r->comm,
                                     &all->options.limits, &r->model, &r->error);
    if (r->status != WEFT_OK && r->comm != NULL) weft_comm_abort(r->comm, r->error.text);
}

static uint64_t sampled_rows(const struct weft__batch *batch)
{
    uint64_t rows = 0;
    for (int i = 0; i < batch->seqs; i++)
        if (batch->seq[i].generated) rows += (uint64_t)batch->seq[i].count;
    return rows;
}

static void rank_step(struct rank *r, const struct weft__batch *batch)
{
    uint64_t start = weft__now_ns();
    r->status = weft__model_forward(r->model, batch, &r->logits, &r->error);
    if (r->status != WEFT_OK) weft_comm_abort(r->comm, r->error.text);
    weft_comm_stats comm;
    weft_comm_get_stats(r->comm, &comm);
    uint64_t busy = weft__now_ns() - start, moved = comm.total_ns - r->stats.collective_ns;
    uint64_t compute = busy > moved ? busy - moved : 0;
    uint64_t decode = compute * sampled_rows(batch) / (uint64_t)batch->tokens;
    r->stats.steps++;
    r->stats.busy_ns += busy;
    r->stats.decode_ns += decode;
    r->stats.prefill_ns += compute - decode;
    r->stats.collective_ns = comm.total_ns;
    r->stats.wait_ns = comm.wait_ns;
}

static void rank_close(struct rank *r)
{
    weft__model_close(r->model);
    weft_comm_close(r->comm);
    if (r->dev != NULL) r->ranks->device->core->close(r->dev);
}

static void answer(struct weft__ranks *all)
{
    /* Release: pairs with the acquire in wait_answers, so that rank 0 sees what the rank wrote. */
    atomic_fetch_add_explicit(&all->done, 1, memory_order_release);
    weft__wake_all(&all->done);
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;
    struct weft__ranks *all = r->ranks;
    uint32_t seen = 0;
    rank_open(r);
    answer(all);
    for (;;) {
        /* Acquire: pairs with the release in command. */
        uint32_t go = weft__wait_change(&all->go, seen, UINT64_MAX);
        if (go == seen) continue;
        seen = go;
        if (all->batch == NULL) break;
        rank_step(r, all->batch);
        answer(all);
    }
    rank_close(r);
    return NULL;
}

static void command(struct weft__ranks *all, const struct weft__batch *batch)
{
    all->batch = batch;
    atomic_store_explicit(&all->done, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&all->go, 1, memory_order_release);
    weft__wake_all(&all->go);
}

/* Bounded by the collectives' own deadlines: a rank that is stuck in one fails there. */
static void wait_answers(struct weft__ranks *all, uint32_t count)
{
    uint32_t done = atomic_load_explicit(&all->done, memory_order_acquire);
    while (done < count) done = weft__wait_change(&all->done, done, UINT64_MAX);
}

/* The failure that caused the others: one that is not about a peer, if there is one. */
static weft_status verdict(const struct weft__ranks *all, weft_error *err)
{
    const struct rank *worst = NULL;
    for (int i = 0; i < all->options.size; i++) {
        const struct rank *r = &all->rank[i];
        if (r->status == WEFT_OK) continue;
        if (worst == NULL || (worst->status == WEFT_PEER && r->status != WEFT_PEER)) worst = r;
    }
    if (worst == NULL) return WEFT_OK;
    if (err != NULL) *err = worst->error;
    return worst->status;
}

weft_status weft__ranks_open(const struct weft__arch *arch, struct weft__checkpoint *checkpoint,
                             const struct weft__ranks_options *options, struct weft__ranks **out,
                             weft_error *err)
{
    struct weft__ranks *all = calloc(1, sizeof *all);
    if (all == NULL) return weft__fail_oom(err, sizeof *all, "the ranks");
    all->arch = arch;
    all->checkpoint = checkpoint;
    all->options = *options;
    all->device = &weft__cpu;
    const size_t message = (size_t)options->limits.tokens * (size_t)arch->hidden * sizeof(float);
    const weft_world_options world = {
        .size = options->size,
        .timeout_ms = options->timeout_ms,
        .message_bytes = (size_t)weft__max((int64_t)message, WEFT_COMM_MESSAGE_MIN),
        .heap_bytes = 1u << 16,
    };
    weft_status status = weft_world_create(&world, &all->world, err);
    if (status != WEFT_OK) {
        free(all);
        return status;
    }
    uint32_t started = 0;
    for (int i = 0; i < options->size; i++)
        all->rank[i] =
            (struct rank){.ranks = all, .index = i, .stats.device = all->device->core->name};
    for (int i = 1; i < options->size; i++) {
        struct rank *r = &all->rank[i];
        r->started = pthread_create(&r->thread, NULL, rank_main, r) == 0;
        if (r->started)
            started++;
        else
            r->status = weft__fail(&r->error, WEFT_NO_MEMORY, "rank %d: no thread for it", i);
    }
    rank_open(&all->rank[0]);
    wait_answers(all, started);
    status = verdict(all, err);
    if (status != WEFT_OK) {
        weft__ranks_close(all);
        return status;
    }
    *out = all;
    return WEFT_OK;
}

void weft__ranks_close(struct weft__ranks *all)
{
    if (all == NULL) return;
    command(all, NULL);
    for (int i = 1; i < all->options.size; i++)
        if (all->rank[i].started) (void)pthread_join(all->rank[i].thread, NULL);
    rank_close(&all->rank[0]);
    weft_world_destroy(all->world);
    free(all);
}

weft_status weft__ranks_step(struct weft__ranks *all, const struct weft__batch *batch,
                             const float **logits, weft_error *err)
{
    command(all, batch);
    rank_step(&all->rank[0], batch);
    wait_answers(all, (uint32_t)all->options.size - 1);
    weft_status status = verdict(all, err);
    if (status == WEFT_OK) *logits = all->rank[0].logits;
    return status;
}

struct weft__rank_stats weft__ranks_stats(const struct weft__ranks *ranks, int rank)
{
    return ranks->rank[rank].stats;
}
