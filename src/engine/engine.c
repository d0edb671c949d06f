/* The engine: one thread drives the scheduler over the ranks, and is rank 0 itself. A mutex guards
 * the scheduler; it is free while a step runs, which is nearly always. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

struct weft_engine {
    struct weft__engine_view view;
    struct weft__arena arena;
    struct weft__arch arch;
    struct weft__checkpoint *checkpoint;
    struct weft__tokenizer *tokenizer;
    struct weft__chat *chat;
    struct weft__generation_config generation;
    struct weft__plan plan;
    char *dir;

    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work; /* there may be something to do, or the engine closes */
    pthread_cond_t ready;
    struct weft__sched *sched;
    struct weft__ranks *ranks; /* the thread's own */
    bool stuck;                /* a rank's thread was left behind: it may still read all this */
    enum { LOADING, RUNNING, FAILED, CLOSING } state;
    weft_error error;
    struct weft__rank_stats stats[WEFT__MAX_RANKS];
    uint64_t last_step_ns, sample_ns;
};

/* ---- the engine's thread ---- */

static void enter_failure(struct weft_engine *e, const weft_error *why)
{
    e->error = *why;
    e->state = FAILED;
    weft__sched_fail_all(e->sched, why);
}

static void copy_stats(struct weft_engine *e)
{
    for (int r = 0; r < e->plan.ranks.size; r++) e->stats[r] = weft__ranks_stats(e->ranks, r);
}

/* One step. Called and returns with the mutex held; false when there was nothing to do. */
static bool step(struct weft_engine *e)
{
    const struct weft__batch *batch;
    const float *logits;
    weft_error err;
    uint64_t start = weft__now_ns();
    if (!weft__sched_plan(e->sched, start, &batch)) return false;
    e->sample_ns += weft__now_ns() - start;
    (void)pthread_mutex_unlock(&e->mutex);
    weft_status status = weft__ranks_step(e->ranks, batch, &logits, &err);
    (void)pthread_mutex_lock(&e->mutex);
    e->last_step_ns = weft__now_ns();
    copy_stats(e);
    if (status == WEFT_OK)
        weft__sched_accept(e->sched, logits);
    else
        enter_failure(e, &err);
    e->sample_ns += weft__now_ns() - e->last_step_ns;
    return true;
}

static void *engine_main(void *arg)
{
    struct weft_engine *e = arg;
    weft_error err = {0};
    weft_status status = weft__ranks_open(&e->arch, e->checkpoint, &e->plan.ranks, &e->ranks, &err);
    (void)pthread_mutex_lock(&e->mutex);
    if (status != WEFT_OK)
        e->error = err;
    else
        copy_stats(e);
    e->state = status == WEFT_OK ? RUNNING : FAILED;
    (void)pthread_cond_broadcast(&e->ready);
    while (e->state != CLOSING) {
        if (e->state == RUNNING && step(e)) continue;
        (void)pthread_cond_wait(&e->work, &e->mutex);
    }
    const weft_error closed = {.status = WEFT_CLOSED, .text = "the engine is closing"};
    weft__sched_fail_all(e->sched, &closed);
    (void)pthread_mutex_unlock(&e->mutex);
    e->stuck = !weft__ranks_close(e->ranks);
    return NULL;
}

/* ---- open and close ---- */

static weft_status load_text_side(struct weft_engine *e, weft_error *err)
{
    char path[WEFT__MAX_PATH];
    const char *dir = e->dir;
    WEFT__TRY(weft__generation_config_load(dir, e->arch.vocab, &e->generation, err));
    WEFT__TRY(weft__chat_open(dir, &e->chat, err));
    WEFT__TRY(weft__path_join(path, dir, "tokenizer.json", err));
    weft_status status = weft__tokenizer_load(path, &e->tokenizer, err);
    if (status == WEFT_NOT_FOUND) return WEFT_OK; /* ids in, ids out still works */
    if (status != WEFT_OK) return status;
    /* The stop set also holds the tokenizer's own end-of-sequence token. */
    const char *eos = weft__chat_token(e->chat, "eos_token");
    int32_t id = eos == NULL ? -1 : weft__token_id(e->tokenizer, eos, strlen(eos));
    weft__generation_config_add_eos(&e->generation, id, e->arch.vocab);
    return WEFT_OK;
}

static weft_status open_sched(struct weft_engine *e, weft_error *err)
{
    int64_t usable = e->arch.vocab;
    if (e->tokenizer != NULL) usable = weft__min(usable, weft__tokenizer_size(e->tokenizer));
    const struct weft__model_limits *limits = &e->plan.ranks.limits;
    const struct weft__sched_options options = {
        .pages = limits->pages,
        .chunk = limits->tokens,
        .piece = WEFT__PIECE,
        .max_outputs = limits->outputs,
        .max_running = e->plan.max_running,
        .max_queue = e->plan.max_queue,
        .growth = WEFT__GROWTH,
        .context = e->plan.context,
        .answer = e->generation.max_new_tokens,
        .vocab = e->arch.vocab,
        .usable_vocab = usable,
        .eos = e->generation.eos,
        .eos_count = e->generation.eos_count,
        .cache_generated = !e->arch.mla,
    };
    return weft__sched_open(&options, &e->sched, err);
}

static weft_status load(struct weft_engine *e, const weft_engine_options *options, weft_error *err)
{
    WEFT__TRY(weft__arch_load(e->dir, &e->arena, &e->arch, err));
    WEFT__TRY(weft__checkpoint_open(e->dir, &e->checkpoint, err));
    WEFT__TRY(load_text_side(e, err));
    WEFT__TRY(weft__plan_make(&e->arch, e->checkpoint, options, &e->plan, err));
    return open_sched(e, err);
}

static void release(struct weft_engine *e)
{
    if (e->stuck) return;
    weft__sched_close(e->sched);
    weft__tokenizer_free(e->tokenizer);
    weft__chat_close(e->chat);
    weft__checkpoint_close(e->checkpoint);
    weft__arena_free(&e->arena);
    (void)pthread_mutex_destroy(&e->mutex);
    (void)pthread_cond_destroy(&e->work);
    (void)pthread_cond_destroy(&e->ready);
    free(e->dir);
    free(e);
}

weft_status weft_engine_open(const char *dir, const weft_engine_options *options, weft_engine **out,
                             weft_error *err)
{
    static const weft_engine_options defaults;
    if (dir == NULL) return weft__fail(err, WEFT_INVALID, "a model directory is wanted, not NULL");
    uint64_t start = weft__now_ns();
    struct weft_engine *e = calloc(1, sizeof *e);
    if (e == NULL) return weft__fail_oom(err, sizeof *e, "the engine");
    (void)pthread_mutex_init(&e->mutex, NULL);
    (void)pthread_cond_init(&e->work, NULL);
    (void)pthread_cond_init(&e->ready, NULL);
    e->dir = strdup(dir);
    weft_status status = e->dir == NULL ? weft__fail_oom(err, strlen(dir), "a path")
                                        : load(e, options != NULL ? options : &defaults, err);
    if (status == WEFT_OK && pthread_create(&e->thread, NULL, engine_main, e) != 0)
        status = weft__fail(err, WEFT_NO_MEMORY, "no thread for the engine");
    if (status != WEFT_OK) {
        release(e);
        return status;
    }
    (void)pthread_mutex_lock(&e->mutex);
    while (e->state == LOADING) (void)pthread_cond_wait(&e->ready, &e->mutex);
    status = e->state == FAILED ? e->error.status : WEFT_OK;
    if (status != WEFT_OK && err != NULL) *err = e->error;
    (void)pthread_mutex_unlock(&e->mutex);
    if (status != WEFT_OK) {
        weft_engine_close(e);
        return status;
    }
    e->view = (struct weft__engine_view){.dir = e->dir,
                                         .arch = &e->arch,
                                         .checkpoint = e->checkpoint,
                                         .tokenizer = e->tokenizer,
                                         .chat = e->chat,
                                         .generation = &e->generation,
                                         .plan = &e->plan,
                                         .load_ns = weft__now_ns() - start};
    *out = e;
    return WEFT_OK;
}

weft_status weft_engine_follow(const char *dir, const weft_engine_options *options, int rank,
                               weft_error *err)
{
    if (dir == NULL || options == NULL)
        return weft__fail(err, WEFT_INVALID,
                          "rank %d: a model directory and options are wanted, not NULL", rank);
    const struct weft__ranks_options ranks = {.size = options->ranks,
                                              .timeout_ms = options->timeout_ms,
                                              .rendezvous = options->rendezvous};
    if (options->rendezvous == NULL || options->ranks > WEFT__MAX_RANKS || rank < 1 ||
        rank >= options->ranks)
        return weft__fail(err, WEFT_INVALID, "rank %d of %d ranks: a rendezvous and 1 to %d wanted",
                          rank, options->ranks, options->ranks - 1);
    return weft__ranks_follow(dir, &ranks, rank, err);
}

void weft_engine_close(weft_engine *e)
{
    if (e == NULL) return;
    (void)pthread_mutex_lock(&e->mutex);
    e->state = CLOSING;
    (void)pthread_cond_broadcast(&e->work);
    (void)pthread_mutex_unlock(&e->mutex);
    (void)pthread_join(e->thread, NULL);
    release(e);
}

/* ---- for the server and the programs ---- */

const struct weft__engine_view *weft__engine_view(const weft_engine *e) { return &e->view; }

struct weft__sched *weft__engine_sched(weft_engine *e) { return e->sched; }

weft_status weft__engine_submit(weft_engine *e, const struct weft__request *request,
                                uint64_t *handle, weft_error *err)
{
    (void)pthread_mutex_lock(&e->mutex);
    weft_status status;
    if (e->state == RUNNING)
        status = weft__sched_submit(e->sched, request, handle, err);
    else
        status = weft__fail(err, WEFT_CLOSED, "the engine does not run: %s",
                            e->state == FAILED ? e->error.text : "it is closing");
    (void)pthread_cond_signal(&e->work);
    (void)pthread_mutex_unlock(&e->mutex);
    return status;
}

void weft__engine_cancel(weft_engine *e, uint64_t handle)
{
    (void)pthread_mutex_lock(&e->mutex);
    weft__sched_cancel(e->sched, handle);
    (void)pthread_cond_signal(&e->work);
    (void)pthread_mutex_unlock(&e->mutex);
}

void weft__engine_flush(weft_engine *e)
{
    (void)pthread_mutex_lock(&e->mutex);
    weft__sched_flush(e->sched);
    (void)pthread_mutex_unlock(&e->mutex);
}

void weft__engine_status(weft_engine *e, struct weft__engine_status *out)
{
    (void)pthread_mutex_lock(&e->mutex);
    out->counters = weft__sched_counters(e->sched);
    memcpy(out->rank, e->stats, sizeof out->rank);
    out->rank[0].sample_ns = e->sample_ns;
    out->last_step_ns = e->last_step_ns;
    out->failed = e->state == FAILED;
    out->error = e->error;
    (void)pthread_mutex_unlock(&e->mutex);
}
