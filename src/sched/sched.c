/* Requests: accepting, ending, reporting. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"

const char *weft__finish_name(enum weft__finish finish)
{
    static const char *const names[] = {
#define X(name, text) text,
        WEFT__FINISHES(X)
#undef X
    };
    return (size_t)finish < WEFT__COUNT(names) ? names[finish] : "unknown";
}

/* ---- open and close ---- */

static weft_status check_options(const struct weft__sched_options *options, weft_error *err)
{
    const struct {
        const char *name;
        int64_t value, low, high;
    } ranges[] = {
        {"KV pages", options->pages, 1, WEFT__PAGES_MAX},
        {"chunk", options->chunk, 1, WEFT__CHUNK_MAX},
        {"piece", options->piece, 1, WEFT__CHUNK_MAX},
        {"max_outputs", options->max_outputs, 1, WEFT__CHUNK_MAX},
        {"max_running", options->max_running, 1,
         weft__min(WEFT__SEQUENCES_MAX, weft__min(options->chunk, options->max_outputs))},
        {"max_queue", options->max_queue, 0, WEFT__SEQUENCES_MAX - options->max_running},
        {"context", options->context, 1, INT32_MAX - WEFT__PAGE},
        {"answer", options->answer, 0, INT32_MAX},
        {"growth", options->growth, 0, INT32_MAX},
        {"vocab", options->vocab, 1, INT32_MAX},
        {"usable vocab", options->usable_vocab, 1, options->vocab},
        {"number of eos ids", options->eos_count, 0, WEFT__STOP_IDS_MAX},
    };
    for (size_t i = 0; i < WEFT__COUNT(ranges); i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return weft__fail(err, WEFT_INVALID, "scheduler: %s is %lld, must be from %lld to %lld",
                              ranges[i].name, (long long)ranges[i].value, (long long)ranges[i].low,
                              (long long)ranges[i].high);
    for (int32_t i = 0; i < options->eos_count; i++)
        if (options->eos[i] < 0 || options->eos[i] >= options->vocab)
            return weft__fail(err, WEFT_INVALID, "eos id %d is not in the vocabulary of %lld",
                              options->eos[i], (long long)options->vocab);
    return WEFT_OK;
}

static weft_status allocate(struct weft__sched *sched, weft_error *err)
{
    size_t chunk = (size_t)sched->options.chunk, running = (size_t)sched->options.max_running;
    sched->token = malloc(chunk * sizeof *sched->token);
    sched->position = malloc(chunk * sizeof *sched->position);
    sched->kv_slot = malloc(chunk * sizeof *sched->kv_slot);
    sched->seq = malloc(running * sizeof *sched->seq);
    sched->planned = malloc(running * sizeof *sched->planned);
    sched->output = malloc((size_t)sched->options.max_outputs * sizeof *sched->output);
    sched->slot = calloc(sched->slots, sizeof *sched->slot);
    if (sched->token == NULL || sched->position == NULL || sched->kv_slot == NULL ||
        sched->seq == NULL || sched->planned == NULL || sched->output == NULL ||
        sched->slot == NULL)
        return weft__fail_oom(err, chunk * 16 + running * 32, "the scheduler's batch");
    for (uint32_t i = 0; i < sched->slots; i++) sched->slot[i].next_free = i + 1;
    sched->batch = (struct weft__batch){.token = sched->token,
                                        .position = sched->position,
                                        .slot = sched->kv_slot,
                                        .seq = sched->seq,
                                        .output = sched->output};
    return WEFT_OK;
}

weft_status weft__sched_open(const struct weft__sched_options *options, struct weft__sched **out,
                             weft_error *err)
{
    weft_status status = check_options(options, err);
    if (status != WEFT_OK) return status;
    struct weft__sched *sched = calloc(1, sizeof *sched);
    if (sched == NULL) return weft__fail_oom(err, sizeof *sched, "the scheduler");
    sched->options = *options;
    for (int32_t i = 0; i < options->eos_count; i++) sched->eos[i] = options->eos[i];
    sched->options.eos = sched->eos;
    sched->context = weft__min(options->context, options->pages * WEFT__PAGE);
    sched->slots = (uint32_t)(options->max_running + options->max_queue);
    status = allocate(sched, err);
    if (status == WEFT_OK) status = weft__pool_open(&sched->pool, options->pages, err);
    if (status == WEFT_OK)
        status = weft__sampler_open(options->vocab, options->usable_vocab, &sched->sampler, err);
    if (status != WEFT_OK) {
        weft__sched_close(sched);
        return status;
    }
    *out = sched;
    return WEFT_OK;
}

void weft__sched_close(struct weft__sched *sched)
{
    if (sched == NULL) return;
    for (uint32_t i = 0; sched->slot != NULL && i < sched->slots; i++) free(sched->slot[i].group);
    weft__sampler_close(sched->sampler);
    weft__pool_close(&sched->pool);
    free(sched->token);
    free(sched->position);
    free(sched->kv_slot);
    free(sched->seq);
    free(sched->planned);
    free(sched->output);
    free(sched->slot);
    free(sched);
}

/* ---- queues ---- */

static bool goes_before(const struct weft__sequence *a, const struct weft__sequence *b)
{
    const struct weft__group *g = a->group, *h = b->group;
    if (g->request.priority != h->request.priority)
        return g->request.priority > h->request.priority;
    if (g->arrival != h->arrival) return g->arrival < h->arrival;
    return a->sample < b->sample;
}

void weft__queue_insert(struct weft__queue *queue, struct weft__sequence *seq)
{
    struct weft__sequence *after = queue->tail; /* most go to the end */
    while (after != NULL && goes_before(seq, after)) after = after->prev;
    seq->prev = after;
    seq->next = after != NULL ? after->next : queue->head;
    *(seq->next != NULL ? &seq->next->prev : &queue->tail) = seq;
    *(after != NULL ? &after->next : &queue->head) = seq;
    queue->count++;
}

void weft__queue_remove(struct weft__queue *queue, struct weft__sequence *seq)
{
    *(seq->prev != NULL ? &seq->prev->next : &queue->head) = seq->next;
    *(seq->next != NULL ? &seq->next->prev : &queue->tail) = seq->prev;
    queue->count--;
}

/* ---- submit ---- */

static weft_status check_ids(const struct weft__sched *sched, const char *what, const int32_t *id,
                             int64_t count, weft_error *err)
{
    for (int64_t i = 0; i < count; i++)
        if (id[i] < 0 || id[i] >= sched->options.vocab)
            return weft__fail(err, WEFT_INVALID,
                              "%s %lld is token %d, the vocabulary has ids 0 to %lld", what,
                              (long long)i, id[i], (long long)sched->options.vocab - 1);
    return WEFT_OK;
}

static weft_status check_length(const struct weft__sched *sched, const struct weft__request *r,
                                weft_error *err)
{
    const char *limit = sched->context < sched->options.context ? "KV pool" : "context";
    long long room = sched->context, prompt = r->prompt_count, more = r->max_tokens;
    if (prompt < 1)
        return weft__fail(err, WEFT_INVALID, "the prompt is empty: it needs at least one token");
    if (prompt > room || (more < 0 && prompt == room))
        return weft__fail(err, WEFT_TOO_LONG,
                          "the prompt of %lld tokens leaves no room in the %s of %lld tokens",
                          prompt, limit, room);
    if (more > room - prompt)
        return weft__fail(err, WEFT_TOO_LONG,
                          "the prompt of %lld tokens and max_tokens %lld exceed the %s of %lld "
                          "tokens: ask for at most %lld",
                          prompt, more, limit, room, room - prompt);
    if (r->min_tokens < 0 || r->min_tokens > (more < 0 ? room - prompt : more))
        return weft__fail(err, WEFT_INVALID, "min_tokens is %lld, must be from 0 to max_tokens",
                          (long long)r->min_tokens);
    return WEFT_OK;
}

static weft_status check_request(const struct weft__sched *sched, const struct weft__request *r,
                                 weft_error *err)
{
    assert(r->on_token != NULL && r->on_finish != NULL);
    assert(!r->prompt_logprobs || r->on_prompt != NULL);
    weft_status status = check_length(sched, r, err);
    if (status != WEFT_OK) return status;
    int64_t samples_max = weft__min(WEFT__SAMPLES_MAX, sched->slots);
    if (r->samples < 1 || r->samples > samples_max)
        return weft__fail(err, WEFT_INVALID, "%d samples asked for, must be from 1 to %lld",
                          r->samples, (long long)samples_max);
    if (r->top_logprobs < 0 || r->top_logprobs > WEFT__TOP_LOGPROBS_MAX)
        return weft__fail(err, WEFT_INVALID, "top_logprobs is %d, must be from 0 to %d",
                          r->top_logprobs, WEFT__TOP_LOGPROBS_MAX);
    if (r->stop_count < 0 || r->stop_count > WEFT__STOP_IDS_MAX)
        return weft__fail(err, WEFT_INVALID, "%d stop ids, at most %d are allowed", r->stop_count,
                          WEFT__STOP_IDS_MAX);
    status = check_ids(sched, "prompt position", r->prompt, r->prompt_count, err);
    if (status == WEFT_OK) status = check_ids(sched, "stop id", r->stop, r->stop_count, err);
    if (status != WEFT_OK) return status;
    return weft__sampling_check(&r->sampling, sched->options.vocab, err);
}

/* One allocation: the group, its sequences, then the arrays, whose elements all take 4 bytes or two
 * times 4. Never larger than SAMPLES_MAX * context * 5 bytes. */
static struct weft__group *group_new(const struct weft__request *r, int64_t max_tokens)
{
    int64_t pages = weft__ceil_div(r->prompt_count + max_tokens, WEFT__PAGE);
    size_t words = (size_t)(r->prompt_count + r->stop_count + 2 * r->sampling.bias_count) +
                   (size_t)r->samples * (size_t)(max_tokens + pages);
    size_t head = sizeof(struct weft__group) + (size_t)r->samples * sizeof(struct weft__sequence);
    struct weft__group *group = calloc(1, head + words * sizeof(int32_t));
    if (group == NULL) return NULL;
    group->request = *r;
    group->request.max_tokens = max_tokens;
    group->unfinished = r->samples;

    char *at = (char *)group + head;
    memcpy(at, r->prompt, (size_t)r->prompt_count * sizeof(int32_t));
    group->request.prompt = (const int32_t *)(void *)at;
    at += (size_t)r->prompt_count * sizeof(int32_t);
    if (r->stop_count > 0) memcpy(at, r->stop, (size_t)r->stop_count * sizeof(int32_t));
    group->request.stop = (const int32_t *)(void *)at;
    at += (size_t)r->stop_count * sizeof(int32_t);
    size_t bias_bytes = (size_t)r->sampling.bias_count * sizeof(struct weft__logit_bias);
    if (bias_bytes > 0) memcpy(at, r->sampling.bias, bias_bytes);
    group->request.sampling.bias = (const struct weft__logit_bias *)(void *)at;
    at += bias_bytes;
    for (int32_t i = 0; i < r->samples; i++) {
        struct weft__sequence *seq = &group->sequence[i];
        seq->group = group;
        seq->sample = i;
        seq->output = (int32_t *)(void *)at;
        seq->page = seq->output + max_tokens;
        at += (size_t)(max_tokens + pages) * sizeof(int32_t);
        seq->next_logprob = r->prompt_count;
    }
    if (r->prompt_logprobs) /* of the first sample: the others would repeat them */
        group->sequence[0].next_logprob =
            weft__min(weft__max(1, r->prompt_logprobs_from), r->prompt_count);
    return group;
}

weft_status weft__sched_submit(struct weft__sched *sched, const struct weft__request *request,
                               uint64_t *handle, weft_error *err)
{
    weft_status status = check_request(sched, request, err);
    if (status != WEFT_OK) return status;
    int64_t there = sched->waiting.count + sched->running.count;
    if (there + request->samples > sched->slots)
        return weft__fail(err, WEFT_BUSY,
                          "the queue is full: %lld of %u sequences run or wait, try again later",
                          (long long)there, sched->slots);
    int64_t max_tokens = request->max_tokens;
    if (max_tokens < 0) {
        max_tokens = sched->context - request->prompt_count;
        if (sched->options.answer > 0)
            max_tokens =
                weft__min(max_tokens, weft__max(sched->options.answer, request->min_tokens));
    }
    struct weft__group *group = group_new(request, max_tokens);
    if (group == NULL) return weft__fail_oom(err, sizeof *group, "a request");

    uint32_t number = sched->first_free_slot; /* as many slots as sequences: one is free */
    struct weft__slot *slot = &sched->slot[number];
    sched->first_free_slot = slot->next_free;
    slot->group = group;
    slot->generation++;
    group->handle = (uint64_t)slot->generation << 32 | number;
    group->arrival = sched->arrivals++;
    group->prompt_ready = request->prompt_count <= WEFT__PAGE; /* no page to share */
    for (int32_t i = 0; i < request->samples; i++)
        weft__queue_insert(&sched->waiting, &group->sequence[i]);
    *handle = group->handle;
    return WEFT_OK;
}

/* ---- ending ---- */

static struct weft__group *find_group(const struct weft__sched *sched, uint64_t handle)
{
    uint32_t number = (uint32_t)handle;
    if (number >= sched->slots) return NULL;
    const struct weft__slot *slot = &sched->slot[number];
    return slot->generation == handle >> 32 ? slot->group : NULL;
}

static void mark(struct weft__sequence *seq, enum weft__finish finish)
{
    if (seq->ending) return;
    seq->ending = true;
    seq->finish = finish;
}

void weft__sched_cancel(struct weft__sched *sched, uint64_t handle)
{
    struct weft__group *group = find_group(sched, handle);
    for (int32_t i = 0; group != NULL && i < group->request.samples; i++)
        mark(&group->sequence[i], WEFT__FINISH_CANCELLED);
}

void weft__sched_stop(struct weft__sched *sched, uint64_t handle, int32_t sample)
{
    struct weft__group *group = find_group(sched, handle);
    if (group != NULL && sample >= 0 && sample < group->request.samples)
        mark(&group->sequence[sample], WEFT__FINISH_STOP);
}

struct weft__page_key weft__sequence_key(const struct weft__sequence *seq, int64_t page)
{
    const struct weft__request *r = &seq->group->request;
    struct weft__page_key key = {.parent = page > 0 ? seq->page[page - 1] : WEFT__NO_PAGE,
                                 .salt = r->cache_salt};
    for (int64_t i = 0; i < WEFT__PAGE; i++) {
        int64_t at = page * WEFT__PAGE + i;
        key.token[i] = at < r->prompt_count ? r->prompt[at] : seq->output[at - r->prompt_count];
    }
    return key;
}

void weft__sequence_release(struct weft__sched *sched, struct weft__sequence *seq)
{
    while (seq->page_count > 0) weft__pool_put(&sched->pool, seq->page[--seq->page_count]);
    seq->shared = seq->done = 0;
}

void weft__sequence_finish(struct weft__sched *sched, struct weft__sequence *seq,
                           enum weft__finish finish, int32_t stop_token, const weft_error *why)
{
    struct weft__group *group = seq->group;
    weft__sequence_release(sched, seq);
    weft__queue_remove(seq->running ? &sched->running : &sched->waiting, seq);
    seq->ending = true; /* marks on it have no effect any more */
    if (seq->sample == 0) group->prompt_ready = true;
    sched->counters.finished[finish]++;
    const struct weft__finish_event event = {
        .sample = seq->sample,
        .finish = finish,
        .stop_token = stop_token,
        .prompt_tokens = group->request.prompt_count,
        .cached_tokens = seq->cached_tokens,
        .generated_tokens = seq->output_count,
        .retractions = seq->retractions,
        .admitted_ns = seq->admitted_ns,
        .error = why,
    };
    bool last = --group->unfinished == 0;
    if (last) {
        struct weft__slot *slot = &sched->slot[(uint32_t)group->handle];
        slot->group = NULL;
        slot->next_free = sched->first_free_slot;
        sched->first_free_slot = (uint32_t)group->handle;
    }
    group->request.on_finish(group->request.ctx, &event);
    if (last) free(group);
}

void weft__sched_fail_all(struct weft__sched *sched, const weft_error *why)
{
    sched->in_flight = false;
    while (sched->running.head != NULL)
        weft__sequence_finish(sched, sched->running.head, WEFT__FINISH_FAILED, -1, why);
    while (sched->waiting.head != NULL)
        weft__sequence_finish(sched, sched->waiting.head, WEFT__FINISH_FAILED, -1, why);
    weft__sched_flush(sched); /* what the step in flight was to fill is in the cache */
}

void weft__sched_flush(struct weft__sched *sched) { weft__pool_flush(&sched->pool); }

struct weft__sched_counters weft__sched_counters(const struct weft__sched *sched)
{
    struct weft__sched_counters counters = sched->counters;
    counters.running = sched->running.count;
    counters.waiting = sched->waiting.count;
    counters.pages = sched->pool.pages;
    counters.pages_free = sched->pool.free;
    counters.pages_cached = sched->pool.idle;
    counters.pages_used = sched->pool.pages - sched->pool.free - sched->pool.idle;
    return counters;
}
