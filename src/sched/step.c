/* A step: plan its batch, take its logits. */
#include <assert.h>
#include <stddef.h>

#include "private.h"

/* ---- pages of a sequence ---- */

/* How many pages a sequence may take from the cache: not the one of its last token, whose logits
 * are needed; not a position whose log-probability is still to report; and where generated rows
 * leave other bits than prompt rows, none with a generated token. */
static int64_t sharable_pages(const struct weft__sched *sched, const struct weft__sequence *seq)
{
    const struct weft__request *r = &seq->group->request;
    int64_t tokens = weft__sequence_tokens(seq) - 1;
    if (!sched->options.cache_generated) tokens = weft__min(tokens, r->prompt_count);
    if (seq->next_logprob < r->prompt_count) tokens = weft__min(tokens, seq->next_logprob - 1);
    return tokens / WEFT__PAGE;
}

/* Takes what the cache has of the tokens not yet computed; also in the middle of a prompt, where
 * another sequence with the same beginning may have gone ahead, or does so in this very step. */
static void take_cached(struct weft__sched *sched, struct weft__sequence *seq)
{
    int64_t limit = sharable_pages(sched, seq);
    while (seq->shared < limit && seq->done == seq->shared * WEFT__PAGE) {
        const struct weft__page_key key = weft__sequence_key(seq, seq->shared);
        int32_t page = weft__pool_find(&sched->pool, &key);
        if (page == WEFT__NO_PAGE) return;
        weft__pool_hold(&sched->pool, page);
        if (seq->page_count > seq->shared)
            weft__pool_put(&sched->pool, seq->page[seq->shared]);
        else
            seq->page_count++;
        seq->page[seq->shared++] = page;
        seq->done += WEFT__PAGE;
        if (seq->retractions > 0) continue; /* its own work, most likely */
        seq->cached_tokens += WEFT__PAGE;
        sched->counters.cached_tokens += WEFT__PAGE;
    }
}

/* Gives the pages that its first `tokens` tokens fill to the cache. Those that the planned batch
 * fills are there for sequences planned after it: a layer stores all rows' keys and values before
 * any row attends. But they can't give way to equal ones: the batch writes to them. */
static void share_full(struct weft__sched *sched, struct weft__sequence *seq, int64_t tokens)
{
    int64_t full = tokens;
    if (!sched->options.cache_generated) full = weft__min(full, seq->group->request.prompt_count);
    full /= WEFT__PAGE;
    while (seq->shared < full) {
        const struct weft__page_key key = weft__sequence_key(seq, seq->shared);
        if (tokens > seq->done && weft__pool_find(&sched->pool, &key) != WEFT__NO_PAGE) return;
        int32_t page = weft__pool_share(&sched->pool, seq->page[seq->shared], &key);
        if (page == WEFT__NO_PAGE) return;
        seq->page[seq->shared++] = page;
    }
}

/* ---- retraction ---- */

/* Of the lowest priority the one with the least output, of equals the latest. */
static struct weft__sequence *pick_victim(const struct weft__sched *sched)
{
    struct weft__sequence *victim = sched->running.tail;
    int32_t priority = victim->group->request.priority;
    for (struct weft__sequence *seq = victim->prev;
         seq != NULL && seq->group->request.priority == priority; seq = seq->prev)
        if (seq->output_count < victim->output_count) victim = seq;
    return victim;
}

static void retract(struct weft__sched *sched, struct weft__sequence *seq)
{
    weft__sequence_release(sched, seq);
    weft__queue_remove(&sched->running, seq);
    seq->running = false;
    weft__queue_insert(&sched->waiting, seq); /* it arrived before those never admitted */
    seq->retractions++;
    sched->counters.retractions++;
}

/* Every running sequence gets pages for all its tokens. The last one left fits: submit saw to it.
 */
static void grow_running(struct weft__sched *sched)
{
    struct weft__sequence *seq = sched->running.head;
    while (seq != NULL) {
        if (seq->page_count * WEFT__PAGE >= weft__sequence_tokens(seq)) {
            seq = seq->next;
            continue;
        }
        int32_t page = weft__pool_get(&sched->pool);
        if (page != WEFT__NO_PAGE) {
            seq->page[seq->page_count++] = page;
            continue;
        }
        struct weft__sequence *victim = pick_victim(sched);
        if (victim == seq) seq = seq->next;
        retract(sched, victim);
    }
}

/* ---- batch ---- */

/* How many rows a sequence that has `rows` to go may add to a batch in which `decoding` others get
 * their next token. Prompts delay those tokens, so a step takes in `piece` rows of them. But while
 * at least a quarter as many sequences wait as decode, those whose first token is a piece away go
 * beyond it: one long pause, shared by few, instead of many shorter ones for more and more. */
static int64_t rows_allowed(const struct weft__sched *sched, int64_t rows, int64_t decoding)
{
    const struct weft__sched_options *o = &sched->options;
    int64_t left = o->chunk - sched->batch.tokens;
    int64_t places = o->max_running - sched->running.count;
    int64_t waiting = sched->running.count - decoding + weft__min(sched->waiting.count, places);
    if (decoding == 0 || (4 * waiting >= decoding && rows <= weft__min(left, o->piece)))
        return left;
    return weft__min(left, weft__max(decoding + o->piece - sched->batch.tokens, 0));
}

/* Adds as many rows of the sequence as are allowed: of its prompt or, beyond, of its output. */
static void add_rows(struct weft__sched *sched, struct weft__sequence *seq, int64_t decoding)
{
    const struct weft__request *r = &seq->group->request;
    struct weft__batch *batch = &sched->batch;
    int64_t total = weft__sequence_tokens(seq), begin = seq->done, end = r->prompt_count;
    bool generated = begin >= end;
    if (generated) end = total;

    /* Logits are wanted of rows output .. output_end - 1. */
    int64_t output_end = seq->output_count < r->max_tokens ? total : total - 1;
    int64_t output = output_end == total ? total - 1 : total;
    if (seq->next_logprob < r->prompt_count) output = weft__max(begin, seq->next_logprob - 1);
    end = weft__min(end, begin + rows_allowed(sched, end - begin, decoding));
    end = weft__min(end, output + sched->options.max_outputs - batch->outputs);
    if (end <= begin) return;

    sched->planned[batch->seqs] = seq;
    sched->seq[batch->seqs++] = (struct weft__seq){.row = batch->tokens,
                                                   .count = (int32_t)(end - begin),
                                                   .kv_len = (int32_t)end,
                                                   .generated = generated,
                                                   .pages = seq->page};
    seq->rows = end - begin;
    seq->output_position = output;
    seq->outputs = weft__max(0, weft__min(end, output_end) - output);
    for (int64_t at = begin; at < end; at++) {
        int32_t row = batch->tokens++;
        if (at >= output && at < output_end) sched->output[batch->outputs++] = row;
        sched->token[row] = generated ? seq->output[at - r->prompt_count] : r->prompt[at];
        sched->position[row] = (int32_t)at;
        sched->kv_slot[row] = (int64_t)seq->page[at / WEFT__PAGE] * WEFT__PAGE + at % WEFT__PAGE;
    }
    share_full(sched, seq, end);
}

static bool decodes(const struct weft__sequence *seq)
{
    return seq->output_count > 0 && seq->done == weft__sequence_tokens(seq) - 1;
}

/* Pages left free at an admission, for the next tokens of all who then run. */
static int64_t growth_pages(const struct weft__sched *sched, const struct weft__sequence *extra)
{
    int64_t tokens =
        weft__min(extra->group->request.max_tokens - extra->output_count, sched->options.growth);
    for (const struct weft__sequence *seq = sched->running.head; seq != NULL; seq = seq->next)
        tokens +=
            weft__min(seq->group->request.max_tokens - seq->output_count, sched->options.growth);
    return tokens / WEFT__PAGE;
}

/* Takes a waiting sequence into the pool if there is room for all its tokens. */
static bool place(struct weft__sched *sched, struct weft__sequence *seq)
{
    struct weft__pool *pool = &sched->pool;
    int64_t growth = growth_pages(sched, seq);
    if (pool->free + pool->idle <= growth) return false; /* its last page at least is new */
    take_cached(sched, seq);
    int64_t pages = weft__ceil_div(weft__sequence_tokens(seq), WEFT__PAGE);
    if (pages - seq->page_count + growth > pool->free + pool->idle) {
        weft__sequence_release(sched, seq);
        if (seq->retractions == 0) {
            sched->counters.cached_tokens -= seq->cached_tokens;
            seq->cached_tokens = 0;
        }
        return false;
    }
    while (seq->page_count < pages) seq->page[seq->page_count++] = weft__pool_get(pool);
    return true;
}

/* The next sequence in order, or NULL when it doesn't fit: no later one may overtake it, except
 * samples that wait for the first of their request to fill the cache. */
static struct weft__sequence *admit(struct weft__sched *sched, uint64_t now_ns, int64_t decoding)
{
    struct weft__sequence *seq = sched->waiting.head;
    while (seq != NULL && seq->sample > 0 && !seq->group->prompt_ready) seq = seq->next;
    if (seq == NULL || rows_allowed(sched, weft__sequence_tokens(seq), decoding) == 0 ||
        !place(sched, seq))
        return NULL;
    weft__queue_remove(&sched->waiting, seq);
    seq->running = true;
    weft__queue_insert(&sched->running, seq);
    if (seq->retractions == 0) {
        seq->admitted_ns = now_ns;
        sched->counters.prompt_tokens += seq->group->request.prompt_count;
    }
    return seq;
}

static void reap(struct weft__sched *sched, struct weft__queue *queue, uint64_t now_ns)
{
    for (struct weft__sequence *seq = queue->head, *next; seq != NULL; seq = next) {
        next = seq->next;
        uint64_t deadline = seq->group->request.deadline_ns;
        if (seq->ending)
            weft__sequence_finish(sched, seq, seq->finish, -1, NULL);
        else if (deadline != 0 && deadline <= now_ns)
            weft__sequence_finish(sched, seq, WEFT__FINISH_TIMEOUT, -1, NULL);
    }
}

bool weft__sched_plan(struct weft__sched *sched, uint64_t now_ns, const struct weft__batch **batch)
{
    assert(!sched->in_flight);
    reap(sched, &sched->running, now_ns);
    reap(sched, &sched->waiting, now_ns);
    grow_running(sched);

    struct weft__batch *b = &sched->batch;
    b->tokens = b->seqs = b->outputs = 0;
    for (struct weft__sequence *seq = sched->running.head; seq != NULL; seq = seq->next)
        if (decodes(seq)) add_rows(sched, seq, 0);
    int64_t decoding = b->seqs;
    for (struct weft__sequence *seq = sched->running.head; seq != NULL; seq = seq->next) {
        if (decodes(seq)) continue;
        take_cached(sched, seq);
        add_rows(sched, seq, decoding);
    }
    while (sched->running.count < sched->options.max_running) {
        struct weft__sequence *seq = admit(sched, now_ns, decoding);
        if (seq == NULL) break;
        add_rows(sched, seq, decoding);
    }
    if (b->tokens == 0) return false;
    sched->in_flight = true;
    sched->counters.steps++;
    sched->counters.computed_tokens += b->tokens;
    *batch = b;
    return true;
}

/* ---- logits ---- */

static bool ends(const struct weft__sched *sched, const struct weft__request *r, int32_t token)
{
    for (int32_t i = 0; i < sched->options.eos_count && !r->ignore_eos; i++)
        if (token == sched->eos[i]) return true;
    for (int32_t i = 0; i < r->stop_count; i++)
        if (token == r->stop[i]) return true;
    return false;
}

static weft_status choose(struct weft__sched *sched, const struct weft__sequence *seq,
                          const float *logits, int32_t *token, weft_error *err)
{
    const struct weft__request *r = &seq->group->request;
    int32_t banned[2 * WEFT__STOP_IDS_MAX], count = 0;
    if (seq->output_count < r->min_tokens) {
        for (int32_t i = 0; i < sched->options.eos_count && !r->ignore_eos; i++)
            banned[count++] = sched->eos[i];
        for (int32_t i = 0; i < r->stop_count; i++) banned[count++] = r->stop[i];
    }
    const struct weft__sample_row row = {
        .logits = logits,
        .sampling = &r->sampling,
        .prompt = r->prompt,
        .prompt_count = r->prompt_count,
        .output = seq->output,
        .output_count = seq->output_count,
        .allowed = r->allowed != NULL ? r->allowed(r->ctx, seq->sample) : NULL,
        .banned = banned,
        .banned_count = count,
        .sample = (uint32_t)seq->sample,
    };
    return weft__sample(sched->sampler, &row, token, err);
}

/* Samples, reports, and finishes the sequence if that was its last token. */
static void take_token(struct weft__sched *sched, struct weft__sequence *seq, const float *logits)
{
    const struct weft__request *r = &seq->group->request;
    struct weft__logprobs logprobs;
    weft_error err;
    int32_t token;
    weft_status status = choose(sched, seq, logits, &token, &err);
    if (status == WEFT_OK && r->logprobs)
        status = weft__logprobs_of(sched->sampler, logits, token, r->top_logprobs, &logprobs, &err);
    if (status != WEFT_OK) {
        weft__sequence_finish(sched, seq, WEFT__FINISH_FAILED, -1, &err);
        return;
    }
    const struct weft__token_event event = {.sample = seq->sample,
                                            .token = token,
                                            .index = seq->output_count,
                                            .stop = ends(sched, r, token),
                                            .logprobs = r->logprobs ? &logprobs : NULL};
    seq->output[seq->output_count++] = token;
    sched->counters.generated_tokens++;
    r->on_token(r->ctx, &event);
    if (seq->ending)
        weft__sequence_finish(sched, seq, seq->finish, -1, NULL);
    else if (event.stop)
        weft__sequence_finish(sched, seq, WEFT__FINISH_STOP, token, NULL);
    else if (seq->output_count == r->max_tokens)
        weft__sequence_finish(sched, seq, WEFT__FINISH_LENGTH, -1, NULL);
}

/* Reports the log-probability of the prompt's token after `position`; false: sequence finished. */
static bool take_prompt_logprob(struct weft__sched *sched, struct weft__sequence *seq,
                                int64_t position, const float *logits)
{
    const struct weft__request *r = &seq->group->request;
    struct weft__logprobs logprobs;
    weft_error err;
    weft_status status = weft__logprobs_of(sched->sampler, logits, r->prompt[position + 1],
                                           r->top_logprobs, &logprobs, &err);
    if (status != WEFT_OK) {
        weft__sequence_finish(sched, seq, WEFT__FINISH_FAILED, -1, &err);
        return false;
    }
    const struct weft__prompt_event event = {.position = position + 1, .logprobs = &logprobs};
    seq->next_logprob = position + 2;
    r->on_prompt(r->ctx, &event);
    if (!seq->ending) return true;
    weft__sequence_finish(sched, seq, seq->finish, -1, NULL);
    return false;
}

static void take_rows(struct weft__sched *sched, struct weft__sequence *seq, const float *logits)
{
    const struct weft__request *r = &seq->group->request;
    seq->done += seq->rows;
    share_full(sched, seq, seq->done);
    if (seq->done >= r->prompt_count) seq->group->prompt_ready = true;
    if (seq->ending) {
        weft__sequence_finish(sched, seq, seq->finish, -1, NULL);
        return;
    }
    for (int64_t i = 0; i < seq->outputs; i++, logits += sched->options.vocab) {
        int64_t position = seq->output_position + i;
        if (position < r->prompt_count - 1) {
            if (!take_prompt_logprob(sched, seq, position, logits)) return;
        } else {
            take_token(sched, seq, logits); /* the last row */
            return;
        }
    }
    if (r->max_tokens == 0 && seq->done == r->prompt_count)
        weft__sequence_finish(sched, seq, WEFT__FINISH_LENGTH, -1, NULL);
}

void weft__sched_accept(struct weft__sched *sched, const float *logits)
{
    assert(sched->in_flight);
    sched->in_flight = false;
    for (int32_t i = 0; i < sched->batch.seqs; i++) {
        int64_t outputs = sched->planned[i]->outputs;
        take_rows(sched, sched->planned[i], logits);
        logits += outputs * sched->options.vocab;
    }
}
