/* sched_trace.h: bytes -> a trace of arrivals, cancels, stops, time-outs and failures on a
 * scheduler over a fake model; shared by the fuzzer and the unit test.
 *
 * The fake model keeps a KV cache by slot. What a row stores depends on its token, its position,
 * and everything the pages show before it, as in a deep transformer; without cache_generated also
 * on the row's kind, as in MLA. Its logits depend on what it stored. So a wrong page, slot, length,
 * kind or order gives wrong tokens. The oracle is each sample run alone, which needs no KV: a fold
 * over its own tokens. Every violation aborts. */
#ifndef WEFT_TESTS_SCHED_TRACE_H
#define WEFT_TESTS_SCHED_TRACE_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sched_check.h"

enum {
    TRACE_VOCAB = 40,
    TRACE_USABLE = 37,
    TRACE_EOS = 3,
    TRACE_STOP = 5,
    TRACE_PAGES_MAX = 48,
    TRACE_CHUNK_MAX = 64,
    TRACE_REQUESTS_MAX = 400,
    TRACE_SAMPLES_MAX = 4,
    TRACE_CONTEXT_MAX = 300,
    TRACE_SALT = 1 << 20,
};

#define TRACE_CHECK(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: step %d: %s\n", __FILE__, __LINE__, trace->steps, #condition); \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct trace;

struct trace_sample {
    uint64_t fold; /* of the sample's own tokens: the oracle */
    int64_t tokens;
    int32_t output[TRACE_CONTEXT_MAX];
    int last_step; /* that gave a token */
    bool finished;
    bool stop_called;    /* weft__sched_stop or cancel from on_token */
    int32_t end_token;   /* the last one if it is a stop id, else negative */
    uint32_t allowed[2]; /* given to the scheduler for the next token */
};

struct trace_request {
    struct trace *trace;
    struct weft__request request;
    uint64_t handle;
    int32_t prompt[TRACE_CONTEXT_MAX];
    struct weft__logit_bias bias[2];
    int64_t limit; /* max_tokens, or what is left of the context */
    int64_t next_prompt_position;
    uint64_t prompt_fold[TRACE_CONTEXT_MAX]; /* after each position */
    uint64_t stop_salt; /* chooses tokens at which on_token stops or cancels; 0: none */
    int must_finish_by; /* a step: cancelled or timed out; 0: no */
    int unfinished;
    struct trace_sample sample[TRACE_SAMPLES_MAX];
};

struct trace {
    const uint8_t *data;
    size_t size, at;
    struct weft__sched_options options;
    int32_t eos[1];
    struct weft__sched *sched;
    struct weft__sampler *sampler; /* the oracle's own */
    uint64_t kv[TRACE_PAGES_MAX * WEFT__PAGE];
    int64_t room;
    struct trace_request *request[TRACE_REQUESTS_MAX];
    int requests, steps, failed_in_step, failed;
    uint64_t now;
    bool failing, poisoned;
    int64_t finishes, tokens;
};

/* ---- the model ---- */

static inline uint64_t trace_mix(uint64_t a, uint64_t b)
{
    uint64_t h = (a ^ b * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    return (h ^ h >> 29) * 0x94d049bb133111ebu ^ h >> 32;
}

/* What a row leaves in the cache. */
static inline uint64_t trace_row(const struct trace *trace, uint64_t before, int32_t token,
                                 int64_t position, bool generated)
{
    uint64_t kind = generated && !trace->options.cache_generated;
    return trace_mix(trace_mix(before, (uint64_t)token), (uint64_t)position * 2 + kind);
}

static inline void trace_logits(uint64_t row, float *logits)
{
    for (uint64_t v = 0; v < TRACE_VOCAB; v++)
        logits[v] = (float)(trace_mix(row, v + 77) >> 40) * 0x1p-21f - 4;
}

static inline uint64_t trace_fold(uint64_t before, uint64_t row)
{
    return trace_mix(before + 1, row);
}

static void trace_check_batch(struct trace *trace, const struct weft__batch *b)
{
    TRACE_CHECK(b->tokens > 0 && b->tokens <= trace->options.chunk);
    TRACE_CHECK(b->seqs > 0 && b->seqs <= trace->options.max_running);
    TRACE_CHECK(b->outputs >= 0 && b->outputs <= trace->options.max_outputs);
    bool taken[TRACE_PAGES_MAX * WEFT__PAGE] = {0}; /* written or read by a sequence before */
    int32_t row = 0;
    for (int32_t s = 0; s < b->seqs; s++) {
        const struct weft__seq *seq = &b->seq[s];
        TRACE_CHECK(seq->row == row && seq->count > 0);
        for (int32_t i = 0; i < seq->count; i++, row++) {
            int64_t position = b->position[row];
            TRACE_CHECK(position == seq->kv_len - seq->count + i);
            TRACE_CHECK(b->slot[row] ==
                        seq->pages[position / WEFT__PAGE] * WEFT__PAGE + position % WEFT__PAGE);
            TRACE_CHECK(!taken[b->slot[row]]);
        }
        for (int64_t at = 0; at < seq->kv_len; at++) {
            int32_t page = seq->pages[at / WEFT__PAGE];
            TRACE_CHECK(page >= 0 && page < trace->options.pages);
            taken[page * WEFT__PAGE + at % WEFT__PAGE] = true;
        }
    }
    TRACE_CHECK(row == b->tokens);
    for (int32_t i = 0; i < b->outputs; i++)
        TRACE_CHECK(b->output[i] < b->tokens && (i == 0 || b->output[i] > b->output[i - 1]));
}

static void trace_forward(struct trace *trace, const struct weft__batch *b, float *logits)
{
    int32_t next_output = 0;
    for (int32_t s = 0; s < b->seqs; s++) {
        const struct weft__seq *seq = &b->seq[s];
        uint64_t fold = 0;
        for (int64_t at = 0; at < seq->kv_len; at++) {
            int64_t slot = (int64_t)seq->pages[at / WEFT__PAGE] * WEFT__PAGE + at % WEFT__PAGE;
            int64_t row = at - (seq->kv_len - seq->count) + seq->row;
            if (row >= seq->row)
                trace->kv[slot] = trace_row(trace, fold, b->token[row], at, seq->generated);
            if (next_output < b->outputs && b->output[next_output] == row)
                trace_logits(trace->kv[slot], logits + next_output++ * TRACE_VOCAB);
            fold = trace_fold(fold, trace->kv[slot]);
        }
    }
    TRACE_CHECK(next_output == b->outputs);
}

/* ---- the oracle and the callbacks ---- */

/* Advances a sample by one token and returns the row's value. */
static uint64_t trace_advance(const struct trace *trace, uint64_t *fold, int32_t token,
                              int64_t position, bool generated)
{
    uint64_t row = trace_row(trace, *fold, token, position, generated);
    *fold = trace_fold(*fold, row);
    return row;
}

static uint64_t trace_last_row(const struct trace_request *r, const struct trace_sample *sample)
{
    const struct trace *trace = r->trace;
    int64_t prompt = r->request.prompt_count;
    uint64_t fold = r->prompt_fold[prompt - 1];
    if (sample->tokens == 0) {
        fold = prompt > 1 ? r->prompt_fold[prompt - 2] : 0;
        return trace_advance(trace, &fold, r->prompt[prompt - 1], prompt - 1, false);
    }
    uint64_t row = 0;
    for (int64_t i = 0; i < sample->tokens; i++)
        row = trace_advance(trace, &fold, sample->output[i], prompt + i, true);
    return row;
}

static bool trace_ends(const struct weft__request *r, int32_t token)
{
    return (token == TRACE_EOS && !r->ignore_eos) || (token == TRACE_STOP && r->stop_count > 0);
}

static const uint32_t *trace_allowed(void *ctx, int32_t index)
{
    struct trace_request *r = ctx;
    struct trace_sample *sample = &r->sample[index];
    uint64_t mask = trace_mix(r->handle, (uint64_t)sample->tokens) | 1u << 9;
    sample->allowed[0] = (uint32_t)mask;
    sample->allowed[1] = (uint32_t)(mask >> 32);
    return sample->tokens % 3 == 0 ? NULL : sample->allowed;
}

static int32_t trace_expected(struct trace_request *r, int32_t index, const float *logits)
{
    struct trace *trace = r->trace;
    struct trace_sample *sample = &r->sample[index];
    int32_t banned[2] = {TRACE_STOP, TRACE_EOS};
    int first = r->request.stop_count > 0 ? 0 : 1, last = r->request.ignore_eos ? 1 : 2;
    const struct weft__sample_row row = {
        .logits = logits,
        .sampling = &r->request.sampling,
        .prompt = r->prompt,
        .prompt_count = r->request.prompt_count,
        .output = sample->output,
        .output_count = sample->tokens,
        .allowed = r->request.allowed != NULL ? trace_allowed(r, index) : NULL,
        .banned = banned + first,
        .banned_count = sample->tokens < r->request.min_tokens && last > first ? last - first : 0,
        .sample = (uint32_t)index};
    int32_t token = -1;
    TRACE_CHECK(weft__sample(trace->sampler, &row, &token, NULL) == WEFT_OK);
    return token;
}

static void trace_check_logprobs(struct trace *trace, const struct weft__request *r,
                                 const float *logits, int32_t token,
                                 const struct weft__logprobs *got)
{
    struct weft__logprobs want;
    TRACE_CHECK(weft__logprobs_of(trace->sampler, logits, token, r->top_logprobs, &want, NULL) ==
                WEFT_OK);
    TRACE_CHECK(got->token == token && got->logprob == want.logprob && got->count == want.count);
    TRACE_CHECK(memcmp(got->top_token, want.top_token, 4 * (size_t)want.count) == 0);
}

static void trace_on_token(void *ctx, const struct weft__token_event *event)
{
    struct trace_request *r = ctx;
    struct trace *trace = r->trace;
    struct trace_sample *sample = &r->sample[event->sample];
    TRACE_CHECK(event->sample >= 0 && event->sample < r->request.samples);
    TRACE_CHECK(!sample->finished && !sample->stop_called && sample->end_token < 0);
    TRACE_CHECK(event->index == sample->tokens && sample->tokens < r->limit);
    if (r->request.prompt_logprobs && event->sample == 0)
        TRACE_CHECK(r->next_prompt_position == r->request.prompt_count);

    float logits[TRACE_VOCAB];
    trace_logits(trace_last_row(r, sample), logits);
    TRACE_CHECK(event->token == trace_expected(r, event->sample, logits));
    TRACE_CHECK(event->stop == trace_ends(&r->request, event->token));
    TRACE_CHECK((event->logprobs != NULL) == r->request.logprobs);
    if (event->logprobs != NULL)
        trace_check_logprobs(trace, &r->request, logits, event->token, event->logprobs);
    sample->output[sample->tokens++] = event->token;
    sample->last_step = trace->steps;
    if (event->stop) sample->end_token = event->token;
    trace->tokens++;
    if (r->stop_salt == 0) return;
    uint64_t draw =
        trace_mix(r->stop_salt, trace_mix((uint64_t)event->token, (uint64_t)event->index));
    if (draw % 16 == 0) {
        weft__sched_stop(trace->sched, r->handle, event->sample);
        sample->stop_called = true;
    } else if (draw % 64 == 1) {
        weft__sched_cancel(trace->sched, r->handle);
        r->must_finish_by = trace->steps + 1;
    }
}

static void trace_on_prompt(void *ctx, const struct weft__prompt_event *event)
{
    struct trace_request *r = ctx;
    struct trace *trace = r->trace;
    TRACE_CHECK(r->request.prompt_logprobs && event->position == r->next_prompt_position);
    TRACE_CHECK(r->sample[0].tokens == 0 && !r->sample[0].finished);
    int64_t before = event->position - 1;
    uint64_t fold = before > 0 ? r->prompt_fold[before - 1] : 0;
    float logits[TRACE_VOCAB];
    trace_logits(trace_advance(trace, &fold, r->prompt[before], before, false), logits);
    trace_check_logprobs(trace, &r->request, logits, r->prompt[event->position], event->logprobs);
    r->next_prompt_position++;
}

static void trace_on_finish(void *ctx, const struct weft__finish_event *event)
{
    struct trace_request *r = ctx;
    struct trace *trace = r->trace;
    struct trace_sample *sample = &r->sample[event->sample];
    TRACE_CHECK(!sample->finished);
    sample->finished = true;
    r->unfinished--;
    trace->finishes++;
    TRACE_CHECK(event->generated_tokens == sample->tokens);
    TRACE_CHECK(event->prompt_tokens == r->request.prompt_count);
    TRACE_CHECK(event->cached_tokens >= 0 && event->cached_tokens < event->prompt_tokens &&
                event->cached_tokens % WEFT__PAGE == 0);
    TRACE_CHECK((event->error != NULL) == (event->finish == WEFT__FINISH_FAILED));
    TRACE_CHECK(
        event->stop_token ==
        (event->finish == WEFT__FINISH_STOP && !sample->stop_called ? sample->end_token : -1));
    switch (event->finish) {
    case WEFT__FINISH_STOP:
        TRACE_CHECK(sample->stop_called || sample->end_token >= 0);
        break;
    case WEFT__FINISH_LENGTH:
        TRACE_CHECK(sample->tokens == r->limit && sample->end_token < 0 && !sample->stop_called);
        if (event->sample == 0 && r->request.prompt_logprobs)
            TRACE_CHECK(r->next_prompt_position == r->request.prompt_count);
        break;
    case WEFT__FINISH_CANCELLED:
        TRACE_CHECK(r->must_finish_by > 0);
        break;
    case WEFT__FINISH_TIMEOUT:
        TRACE_CHECK(r->request.deadline_ns != 0 && r->request.deadline_ns <= trace->now);
        break;
    case WEFT__FINISH_FAILED:
        trace->failed_in_step++;
        TRACE_CHECK(trace->failing || (trace->poisoned && trace->failed_in_step == 1));
        break;
    case WEFT__FINISH_COUNT:
        TRACE_CHECK(false);
    }
}

/* ---- the trace ---- */

static uint32_t trace_byte(struct trace *trace)
{
    return trace->at < trace->size ? trace->data[trace->at++] : 0;
}

static int64_t trace_range(struct trace *trace, int64_t low, int64_t high)
{
    int64_t draw = (int64_t)trace_byte(trace) << 8;
    draw |= (int64_t)trace_byte(trace);
    return low + draw % (high - low + 1);
}

/* A prompt begins like one of three texts, or is the next turn of an earlier request: prefixes are
 * shared, those with generated tokens too. */
static void trace_prompt(struct trace *trace, struct trace_request *r)
{
    int64_t count = trace_range(trace, 1, weft__min(trace->room, TRACE_CONTEXT_MAX));
    if (trace_byte(trace) % 4 != 0) count = 1 + count % 70;
    count = weft__min(count, trace->room);
    int64_t common = trace_range(trace, 0, count);
    uint64_t text = trace_byte(trace) % 3, own = trace_byte(trace);
    for (int64_t i = 0; i < count; i++)
        r->prompt[i] =
            (int32_t)(trace_mix(i < common ? text : 1000 + own, (uint64_t)i) % TRACE_VOCAB);
    if (own % 4 == 0 && trace->requests > 0) {
        const struct trace_request *old =
            trace->request[trace->requests - 1 - (int)own / 4 % trace->requests];
        const struct trace_sample *sample = &old->sample[0];
        int64_t prompt = old->request.prompt_count;
        count = weft__min(prompt + sample->tokens + 1 + common % 8, trace->room);
        for (int64_t i = 0; i < weft__min(prompt + sample->tokens, count); i++)
            r->prompt[i] = i < prompt ? old->prompt[i] : sample->output[i - prompt];
    }
    r->request.prompt = r->prompt;
    r->request.prompt_count = count;
    uint64_t fold = 0;
    for (int64_t i = 0; i < count; i++) {
        (void)trace_advance(trace, &fold, r->prompt[i], i, false);
        r->prompt_fold[i] = fold;
    }
}

static void trace_sampling(struct trace *trace, struct trace_request *r)
{
    struct weft__sampling *s = &r->request.sampling;
    *s = weft__sampling_default;
    uint32_t bits = trace_byte(trace);
    s->temperature = bits & 1 ? 0 : 0.8f;
    s->seed = trace_byte(trace);
    if (bits & 2) s->top_k = 5;
    if (bits & 4) s->top_p = 0.9f;
    if (bits & 8) s->repetition_penalty = 1.3f;
    if (bits & 16) s->presence_penalty = 0.5f;
    if (bits & 32) {
        r->bias[0] = (struct weft__logit_bias){7, 2};
        r->bias[1] = (struct weft__logit_bias){TRACE_EOS, -3};
        s->bias = r->bias;
        s->bias_count = 2;
    }
    if (bits & 64) r->request.allowed = trace_allowed;
}

static void trace_submit(struct trace *trace)
{
    if (trace->requests == TRACE_REQUESTS_MAX) return;
    struct trace_request *r = calloc(1, sizeof *r);
    TRACE_CHECK(r != NULL);
    r->trace = trace;
    trace_prompt(trace, r);
    trace_sampling(trace, r);
    struct weft__request *q = &r->request;
    uint32_t bits = trace_byte(trace), more = trace_byte(trace);
    static const int32_t stop[1] = {TRACE_STOP};
    int64_t rest = trace->room - q->prompt_count;
    q->samples = bits & 1 ? 1 : 1 + (int32_t)trace_range(trace, 0, TRACE_SAMPLES_MAX - 1);
    q->max_tokens = bits & 2 ? -1 : trace_range(trace, 0, rest + (bits & 4 ? 3 : 0));
    if ((bits & 2) == 0 && more & 1) q->max_tokens %= 24;
    r->limit = q->max_tokens < 0 ? rest : q->max_tokens;
    q->min_tokens = bits & 8 ? weft__min(r->limit, 6) : 0;
    if (bits & 16) q->stop = stop, q->stop_count = 1;
    q->ignore_eos = bits & 32;
    q->logprobs = bits & 64;
    q->prompt_logprobs = (more & 6) == 6;
    q->prompt_logprobs_from = more & 8 ? trace_range(trace, 0, q->prompt_count + 2) : 0;
    q->top_logprobs = bits & 128 ? 3 : 0;
    q->priority = more & 16 ? (int32_t)(more >> 5 & 1) - 1 : 0;
    if (more & 64) q->deadline_ns = trace->now + (uint64_t)trace_range(trace, 0, 3000);
    q->cache_salt = more & 128 ? 1 : 0;
    if (trace_byte(trace) % 8 == 0) r->stop_salt = 1 + trace_byte(trace);
    r->next_prompt_position = weft__min(weft__max(1, q->prompt_logprobs_from), q->prompt_count);
    q->ctx = r;
    q->on_token = trace_on_token;
    q->on_finish = trace_on_finish;
    q->on_prompt = trace_on_prompt;
    for (int i = 0; i < TRACE_SAMPLES_MAX; i++)
        r->sample[i].end_token = r->sample[i].last_step = -9;

    struct weft__sched_counters c = weft__sched_counters(trace->sched);
    int64_t slots = trace->options.max_running + trace->options.max_queue;
    weft_status want = WEFT_OK;
    if (r->limit > rest || (q->max_tokens < 0 && rest == 0))
        want = WEFT_TOO_LONG;
    else if (q->samples > slots)
        want = WEFT_INVALID;
    else if (c.running + c.waiting + q->samples > slots)
        want = WEFT_BUSY;
    weft_error err = {0};
    TRACE_CHECK(weft__sched_submit(trace->sched, q, &r->handle, &err) == want);
    TRACE_CHECK(err.status == want);
    if (want != WEFT_OK) {
        free(r);
        return;
    }
    r->unfinished = q->samples;
    trace->request[trace->requests++] = r;
}

static void trace_cancel(struct trace *trace)
{
    if (trace->requests == 0) return;
    struct trace_request *r = trace->request[trace_range(trace, 0, trace->requests - 1)];
    if (trace_byte(trace) % 2 == 0) {
        weft__sched_cancel(trace->sched, r->handle);
        if (r->unfinished > 0) r->must_finish_by = trace->steps + 1;
    } else {
        int32_t index = (int32_t)(trace_byte(trace) % TRACE_SAMPLES_MAX);
        weft__sched_stop(trace->sched, r->handle, index);
        if (index < r->request.samples) r->sample[index].stop_called = true;
    }
}

/* After a step: who was decoding went on, who was to end has ended. */
static void trace_check_progress(struct trace *trace, bool retracted)
{
    weft_error err = {0};
    if (check_sched(trace->sched, &err) != WEFT_OK) {
        fprintf(stderr, "step %d: %s\n", trace->steps, err.text);
        abort();
    }
    for (int i = 0; i < trace->requests; i++) {
        struct trace_request *r = trace->request[i];
        if (r->unfinished == 0) continue;
        TRACE_CHECK(r->must_finish_by == 0 || trace->steps < r->must_finish_by);
        for (int k = 0; k < r->request.samples && !retracted; k++)
            TRACE_CHECK(r->sample[k].finished || r->sample[k].last_step != trace->steps - 1);
    }
}

static bool trace_step(struct trace *trace)
{
    const struct weft__batch *batch = NULL;
    int64_t retractions = weft__sched_counters(trace->sched).retractions;
    trace->now += 1 + trace_byte(trace) % 8;
    trace->steps++;
    trace->failed_in_step = 0;
    trace->poisoned = false;
    if (!weft__sched_plan(trace->sched, trace->now, &batch)) {
        struct weft__sched_counters c = weft__sched_counters(trace->sched);
        TRACE_CHECK(c.running == 0 && c.waiting == 0);
        trace_check_progress(trace, true);
        return false;
    }
    static float logits[(TRACE_CHUNK_MAX + 16) * TRACE_VOCAB];
    trace_check_batch(trace, batch);
    trace_forward(trace, batch, logits);
    uint32_t event = trace_byte(trace);
    if (event == 255 && batch->outputs > 0) { /* a row that is not numbers ends its sample only */
        logits[trace_range(trace, 0, batch->outputs * TRACE_VOCAB - 1)] = NAN;
        trace->poisoned = true;
    }
    if (event == 254) trace_cancel(trace); /* between plan and accept */
    weft__sched_accept(trace->sched, logits);
    retractions = weft__sched_counters(trace->sched).retractions - retractions;
    trace_check_progress(trace, retractions > 0);
    return true;
}

static void trace_fail_all(struct trace *trace, bool in_flight)
{
    const struct weft__batch *batch;
    const weft_error why = {WEFT_DEVICE, "the device is gone"};
    if (in_flight) (void)weft__sched_plan(trace->sched, trace->now, &batch);
    trace->failing = true;
    weft__sched_fail_all(trace->sched, &why);
    trace->failing = false;
    for (int i = 0; i < trace->requests; i++) TRACE_CHECK(trace->request[i]->unfinished == 0);
}

static void trace_open(struct trace *trace)
{
    struct weft__sched_options *o = &trace->options;
    trace->eos[0] = TRACE_EOS;
    o->pages = trace_range(trace, 1, TRACE_PAGES_MAX);
    o->chunk = trace_range(trace, 1, TRACE_CHUNK_MAX);
    o->max_running = trace_range(trace, 1, weft__min(o->chunk, 16));
    o->max_outputs = trace_range(trace, o->max_running, o->max_running + 12);
    o->max_queue = trace_range(trace, 0, 40);
    o->context = trace_range(trace, 1, TRACE_CONTEXT_MAX);
    o->growth = trace_byte(trace) % 4 == 0 ? trace_range(trace, 0, 80) : 0;
    o->vocab = TRACE_VOCAB;
    o->usable_vocab = TRACE_USABLE;
    o->eos = trace->eos;
    o->eos_count = 1;
    o->cache_generated = trace_byte(trace) % 2;
    o->piece = trace_range(trace, 1, o->chunk);
    trace->room = weft__min(o->context, o->pages * WEFT__PAGE);
    TRACE_CHECK(weft__sched_open(o, &trace->sched, NULL) == WEFT_OK);
    TRACE_CHECK(weft__sampler_open(TRACE_VOCAB, TRACE_USABLE, &trace->sampler, NULL) == WEFT_OK);
}

/* Runs the trace that the bytes describe. *counters: the scheduler's at the end. */
static void trace_run(const uint8_t *data, size_t size, struct weft__sched_counters *counters)
{
    struct trace *trace = calloc(1, sizeof *trace);
    if (trace == NULL) abort();
    trace->data = data;
    trace->size = size;
    trace_open(trace);
    while (trace->at < trace->size) {
        uint32_t event = trace_byte(trace);
        if (event < 100)
            trace_submit(trace);
        else if (event < 110)
            trace_cancel(trace);
        else if (event == 110)
            weft__sched_flush(trace->sched);
        else if (event == 111 && trace_byte(trace) < 5)
            trace_fail_all(trace, trace_byte(trace) % 2);
        else
            (void)trace_step(trace);
    }
    /* Without new arrivals everything ends, well before this many steps. */
    int64_t bound = 0;
    for (int i = 0; i < trace->requests; i++)
        bound += trace->request[i]->unfinished * 2 * trace->room + 2;
    while (trace_step(trace)) TRACE_CHECK(bound-- > 0);

    int64_t samples = 0;
    for (int i = 0; i < trace->requests; i++) {
        TRACE_CHECK(trace->request[i]->unfinished == 0);
        samples += trace->request[i]->request.samples;
        free(trace->request[i]);
    }
    *counters = weft__sched_counters(trace->sched);
    TRACE_CHECK(trace->finishes == samples && counters->generated_tokens == trace->tokens);
    TRACE_CHECK(counters->pages_used == 0 && counters->pages == trace->options.pages);
    weft__sched_flush(trace->sched);
    TRACE_CHECK(weft__sched_counters(trace->sched).pages_free == trace->options.pages);
    weft__sched_close(trace->sched);
    weft__sampler_close(trace->sampler);
    free(trace);
}

#endif
