/* Who runs when, and what it costs: the scheduler's policies, batch by batch. The model here
 * answers every token t with t + 1; sched_trace_test checks tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sched/private.h"

enum { VOCAB = 64, EOS = 63, OUTPUTS_MAX = 512, TOKENS_MAX = 4096 };

struct client {
    int tokens, prompt_logprobs, finishes;
    int32_t token[TOKENS_MAX]; /* of sample 0 */
    struct weft__finish_event last;
    char error[200];
    int64_t finish_order;
};

static int64_t finish_count;

static void on_token(void *ctx, const struct weft__token_event *event)
{
    struct client *client = ctx;
    if (event->sample == 0) client->token[event->index] = event->token;
    client->tokens++;
}

static void on_prompt(void *ctx, const struct weft__prompt_event *event)
{
    struct client *client = ctx;
    client->prompt_logprobs++;
    assert_int_equal(event->position, client->prompt_logprobs);
}

static void on_finish(void *ctx, const struct weft__finish_event *event)
{
    struct client *client = ctx;
    client->finishes++;
    client->last = *event;
    client->finish_order = ++finish_count;
    if (event->error != NULL)
        snprintf(client->error, sizeof client->error, "%.150s", event->error->text);
}

static struct weft__sched *open_sched(struct weft__sched_options options)
{
    static const int32_t eos[] = {EOS};
    struct weft__sched *sched = NULL;
    options.vocab = options.usable_vocab = VOCAB;
    options.eos = eos;
    options.eos_count = 1;
    if (options.context == 0) options.context = 4096;
    if (options.max_outputs == 0) options.max_outputs = options.max_running;
    if (options.piece == 0) options.piece = options.chunk;
    weft_error err = {0};
    if (weft__sched_open(&options, &sched, &err) != WEFT_OK) fail_msg("%s", err.text);
    return sched;
}

/* A prompt of `count` tokens, all `token`: the first answer is token + 1. */
static struct weft__request request(struct client *client, int32_t token, int64_t count,
                                    int64_t max_tokens)
{
    static int32_t prompt[VOCAB][TOKENS_MAX];
    for (int64_t i = 0; i < count; i++) prompt[token][i] = token;
    struct weft__request r = {.prompt = prompt[token],
                              .prompt_count = count,
                              .max_tokens = max_tokens,
                              .samples = 1,
                              .sampling = weft__sampling_default,
                              .ctx = client,
                              .on_token = on_token,
                              .on_finish = on_finish,
                              .on_prompt = on_prompt};
    r.sampling.temperature = 0;
    return r;
}

static uint64_t submit(struct weft__sched *sched, struct weft__request r)
{
    uint64_t handle = 0;
    weft_error err = {0};
    if (weft__sched_submit(sched, &r, &handle, &err) != WEFT_OK) fail_msg("%s", err.text);
    return handle;
}

static void answer(struct weft__sched *sched, const struct weft__batch *batch)
{
    static float logits[OUTPUTS_MAX * VOCAB];
    memset(logits, 0, sizeof logits);
    for (int32_t i = 0; i < batch->outputs; i++)
        logits[i * VOCAB + (batch->token[batch->output[i]] + 1) % VOCAB] = 1;
    weft__sched_accept(sched, logits);
}

static bool step(struct weft__sched *sched)
{
    const struct weft__batch *batch;
    if (!weft__sched_plan(sched, 1, &batch)) return false;
    answer(sched, batch);
    return true;
}

static void expect_error(struct weft__sched *sched, struct weft__request r, weft_status status,
                         const char *text)
{
    uint64_t handle = 77;
    weft_error err = {0};
    assert_int_equal(weft__sched_submit(sched, &r, &handle, &err), status);
    assert_int_equal(err.status, status);
    if (strstr(err.text, text) == NULL) fail_msg("'%s' lacks '%s'", err.text, text);
    assert_int_equal(handle, 77);
}

static void bad_requests_are_refused(void **unused)
{
    (void)unused;
    struct client c = {0};
    struct weft__sched *sched = open_sched((struct weft__sched_options){
        .pages = 10, .chunk = 32, .max_running = 2, .max_queue = 3, .context = 100});
    struct weft__request good = request(&c, 1, 60, 40), r;
    expect_error(sched, request(&c, 1, 0, 1), WEFT_INVALID, "empty");
    expect_error(
        sched, request(&c, 1, 61, 40), WEFT_TOO_LONG,
        "61 tokens and max_tokens 40 exceed the context of 100 tokens: ask for at most 39");
    expect_error(sched, request(&c, 1, 100, -1), WEFT_TOO_LONG, "leaves no room");
    expect_error(sched, request(&c, 1, 101, 0), WEFT_TOO_LONG, "context of 100");
    expect_error(sched, request(&c, 1, 60, INT64_MAX), WEFT_TOO_LONG, "at most 40");
    int32_t ids[3] = {0, -1, VOCAB};
    r = good, r.prompt = ids, r.prompt_count = 2;
    expect_error(sched, r, WEFT_INVALID, "prompt position 1 is token -1");
    r = good, r.stop = ids + 2, r.stop_count = 1;
    expect_error(sched, r, WEFT_INVALID, "stop id 0 is token 64");
    r = good, r.stop_count = WEFT__STOP_IDS_MAX + 1;
    expect_error(sched, r, WEFT_INVALID, "65 stop ids");
    r = good, r.samples = 0;
    expect_error(sched, r, WEFT_INVALID, "0 samples");
    r = good, r.samples = 6; /* more than run and wait */
    expect_error(sched, r, WEFT_INVALID, "from 1 to 5");
    r = good, r.top_logprobs = 21;
    expect_error(sched, r, WEFT_INVALID, "top_logprobs is 21");
    r = good, r.min_tokens = 41;
    expect_error(sched, r, WEFT_INVALID, "min_tokens");
    r = good, r.sampling.top_p = 2;
    expect_error(sched, r, WEFT_INVALID, "top_p");

    r = good, r.samples = 4;
    submit(sched, r);
    r.samples = 2;
    expect_error(sched, r, WEFT_BUSY, "4 of 5");
    r.samples = 1;
    submit(sched, r);
    expect_error(sched, r, WEFT_BUSY, "queue is full");
    while (step(sched)) continue;
    assert_int_equal(c.finishes, 5);
    weft__sched_close(sched);

    sched = open_sched((struct weft__sched_options){
        .pages = 3, .chunk = 32, .max_running = 2, .max_queue = 3, .context = 100});
    expect_error(sched, request(&c, 1, 30, 19), WEFT_TOO_LONG, "KV pool of 48 tokens");
    struct client fits = {0};
    submit(sched, request(&fits, 1, 30, 18));
    while (step(sched)) continue;
    assert_int_equal(fits.tokens, 18);
    weft__sched_close(sched);
}

static void bad_options_are_refused(void **unused)
{
    (void)unused;
    const struct weft__sched_options good = {.pages = 4,
                                             .chunk = 8,
                                             .piece = 8,
                                             .max_outputs = 8,
                                             .max_running = 8,
                                             .context = 10,
                                             .vocab = 9,
                                             .usable_vocab = 9};
    struct weft__sched_options o;
    struct weft__sched *sched = NULL;
    weft_error err;
    int32_t eos = 9;
    o = good, o.pages = 0;
    assert_int_equal(weft__sched_open(&o, &sched, &err), WEFT_INVALID);
    o = good, o.max_running = 9; /* a step could not give each a token */
    assert_int_equal(weft__sched_open(&o, &sched, &err), WEFT_INVALID);
    o = good, o.max_outputs = 7;
    assert_int_equal(weft__sched_open(&o, &sched, &err), WEFT_INVALID);
    o = good, o.eos = &eos, o.eos_count = 1;
    assert_int_equal(weft__sched_open(&o, &sched, &err), WEFT_INVALID);
    o = good, o.usable_vocab = 10;
    assert_int_equal(weft__sched_open(&o, &sched, &err), WEFT_INVALID);
    assert_null(sched);
    assert_int_equal(weft__sched_open(&good, &sched, &err), WEFT_OK);
    weft__sched_close(sched);
    weft__sched_close(NULL);
}

/* Decode rows first, each step; the prompt's chunk takes what is left. */
static void long_prompt_does_not_block_decode(void **unused)
{
    (void)unused;
    struct client a = {0}, b = {0}, c = {0};
    struct weft__sched *sched = open_sched(
        (struct weft__sched_options){.pages = 64, .chunk = 32, .max_running = 4, .max_queue = 4});
    const struct weft__batch *batch;
    submit(sched, request(&a, 1, 5, 20));
    submit(sched, request(&b, 2, 6, 20));
    assert_true(weft__sched_plan(sched, 1, &batch)); /* two prompts in one step */
    assert_int_equal(batch->seqs, 2);
    assert_int_equal(batch->tokens, 11);
    assert_int_equal(batch->outputs, 2);
    assert_int_equal(batch->output[0], 4);
    assert_int_equal(batch->output[1], 10);
    answer(sched, batch);
    assert_int_equal(a.token[0], 2);
    assert_int_equal(b.token[0], 3);

    submit(sched, request(&c, 4, 100, 3));
    const int32_t chunks[] = {30, 30, 30, 10};
    for (int i = 0; i < 4; i++) {
        assert_true(weft__sched_plan(sched, 1, &batch));
        assert_int_equal(batch->seqs, 3);
        assert_int_equal(batch->seq[0].count, 1);
        assert_true(batch->seq[0].generated && batch->seq[1].generated);
        assert_int_equal(batch->seq[2].count, chunks[i]);
        assert_int_equal(batch->seq[2].kv_len, i < 3 ? 30 * (i + 1) : 100);
        assert_false(batch->seq[2].generated);
        assert_int_equal(batch->outputs, i < 3 ? 2 : 3);
        answer(sched, batch);
        assert_int_equal(a.tokens, i + 2);
    }
    assert_int_equal(c.tokens, 1);
    while (step(sched)) continue;
    assert_int_equal(a.last.generated_tokens, 20);
    assert_int_equal(a.last.finish, WEFT__FINISH_LENGTH);
    weft__sched_close(sched);
}

/* The next batch: its sequences, and the rows of prompts among them. */
static void expect_step(struct weft__sched *sched, int seqs, int prompt_rows)
{
    const struct weft__batch *batch;
    int rows = 0;
    assert_true(weft__sched_plan(sched, 1, &batch));
    for (int32_t i = 0; i < batch->seqs; i++)
        if (!batch->seq[i].generated) rows += batch->seq[i].count;
    assert_int_equal(batch->seqs, seqs);
    assert_int_equal(rows, prompt_rows);
    answer(sched, batch);
}

/* Prompts hold those that decode up by `piece` rows a step, unless a burst of them waits. */
static void bursts_are_taken_in_at_once(void **unused)
{
    (void)unused;
    static struct client c;
    c = (struct client){0};
    struct weft__sched *sched = open_sched((struct weft__sched_options){
        .pages = 1000, .chunk = 100, .piece = 30, .max_running = 13, .max_queue = 40});
    submit(sched, request(&c, 1, 150, 60));
    expect_step(sched, 1, 100); /* nobody decodes */
    expect_step(sched, 1, 50);

    submit(sched, request(&c, 2, 150, 60));
    for (int i = 0; i < 5; i++) expect_step(sched, 2, 30); /* one too long for a step is cut */
    expect_step(sched, 2, 0);
    for (int32_t i = 3; i < 7; i++) submit(sched, request(&c, i, 30, 60));
    expect_step(sched, 5, 90); /* as many as fit a step whole, */
    expect_step(sched, 6, 30); /* then the others */
    for (int32_t i = 7; i < 9; i++) submit(sched, request(&c, i, 29, 60));
    expect_step(sched, 8, 29 * 2); /* 2 wait, 6 decode */
    for (int32_t i = 9; i < 11; i++) submit(sched, request(&c, i, 29, 60));
    expect_step(sched, 10, 29 * 2); /* 2 wait, 8 decode: just a quarter */
    for (int32_t i = 11; i < 13; i++) submit(sched, request(&c, i, 20, 60));
    expect_step(sched, 12, 30); /* 2 wait, 10 decode */
    expect_step(sched, 12, 10);
    for (int32_t i = 13; i < 18; i++) submit(sched, request(&c, i, 20, 60));
    expect_step(sched, 13, 20); /* 5 wait, one has a place; 12 decode */
    while (step(sched)) continue;
    assert_int_equal(c.finishes, 17);
    weft__sched_close(sched);
}

static void first_come_first_served_within_priority(void **unused)
{
    (void)unused;
    struct client big = {0}, first = {0}, large = {0}, small = {0}, urgent = {0};
    struct weft__sched *sched = open_sched(
        (struct weft__sched_options){.pages = 10, .chunk = 200, .max_running = 4, .max_queue = 8});
    submit(sched, request(&first, 1, 100, 10)); /* 7 pages */
    assert_true(step(sched));
    submit(sched, request(&large, 2, 60, 2)); /* 4 pages: has to wait */
    submit(sched, request(&small, 3, 10, 2)); /* would fit, but does not overtake */
    struct weft__request r = request(&urgent, 4, 20, 2);
    r.priority = 1;
    submit(sched, r); /* overtakes both */
    assert_true(step(sched));
    assert_int_equal(urgent.tokens, 1);
    assert_int_equal(small.tokens + large.tokens, 0);
    submit(sched, request(&big, 5, 10, 2));
    while (step(sched)) continue;
    assert_true(urgent.finish_order < first.finish_order);
    assert_true(first.finish_order < large.finish_order);
    assert_true(large.finish_order < small.finish_order);
    assert_true(small.finish_order < big.finish_order);
    weft__sched_close(sched);
}

/* A full pool: the youngest gives way, and comes back with its prompt as prompt, its output as
 * output, and no token told twice. */
static void retraction_replays(void **unused)
{
    (void)unused;
    struct client a = {0}, b = {0};
    struct weft__sched *sched = open_sched(
        (struct weft__sched_options){.pages = 5, .chunk = 64, .max_running = 4, .max_queue = 4});
    const struct weft__batch *batch;
    submit(sched, request(&a, 1, 10, 60)); /* up to 5 pages */
    submit(sched, request(&b, 2, 20, 30)); /* up to 4 pages */
    while (weft__sched_counters(sched).retractions == 0) assert_true(step(sched));
    assert_true(a.tokens > b.tokens || b.tokens == a.tokens - 1);
    assert_int_equal(weft__sched_counters(sched).running, 1);
    assert_int_equal(weft__sched_counters(sched).waiting, 1);
    int told = b.tokens;
    assert_true(told > 5);
    while (a.finishes == 0) assert_true(step(sched));
    assert_int_equal(a.last.retractions, 0);
    assert_int_equal(b.tokens, told);

    assert_true(weft__sched_plan(sched, 1, &batch));
    assert_int_equal(batch->seqs, 1);
    assert_false(batch->seq[0].generated);
    assert_int_equal(batch->position[0] + batch->tokens, 20); /* its prompt, less what is cached */
    assert_int_equal(batch->outputs, 0);
    answer(sched, batch);
    assert_true(weft__sched_plan(sched, 1, &batch));
    assert_true(batch->seq[0].generated);
    assert_int_equal(batch->tokens, told);
    assert_int_equal(batch->outputs, 1);
    assert_int_equal(batch->output[0], told - 1);
    answer(sched, batch);
    assert_int_equal(b.tokens, told + 1);
    while (step(sched)) continue;
    assert_int_equal(b.tokens, 30);
    assert_int_equal(b.last.retractions, 1);
    assert_int_equal(weft__sched_counters(sched).retractions, 1);
    weft__sched_close(sched);
}

/* The victim is of the lowest priority, then has the least output, then came last. */
static void retraction_chooses(void **unused)
{
    (void)unused;
    static struct client low, high, forked, other;
    struct weft__sched *sched = open_sched(
        (struct weft__sched_options){.pages = 5, .chunk = 64, .max_running = 4, .max_queue = 4});
    submit(sched, request(&low, 1, 10, 60));
    assert_true(step(sched) && step(sched));
    struct weft__request r = request(&high, 2, 10, 60);
    r.priority = 1;
    submit(sched, r);
    while (step(sched)) continue;
    assert_true(low.last.retractions > 0);
    assert_int_equal(high.last.retractions, 0);
    weft__sched_close(sched);

    /* The second sample starts a step after `other`, which came later, and so has less output. */
    sched = open_sched(
        (struct weft__sched_options){.pages = 12, .chunk = 64, .max_running = 4, .max_queue = 4});
    r = request(&forked, 3, 60, 40);
    r.samples = 2;
    submit(sched, r);
    submit(sched, request(&other, 4, 1, 40));
    while (other.finishes == 0) assert_true(step(sched));
    assert_int_equal(weft__sched_counters(sched).retractions, 1);
    assert_int_equal(other.last.retractions, 0);
    while (step(sched)) continue;
    assert_int_equal(forked.last.sample, 1);
    assert_int_equal(forked.last.retractions, 1);
    weft__sched_close(sched);
}

static void samples_share_the_prompt(void **unused)
{
    (void)unused;
    struct client c = {0};
    struct weft__sched *sched = open_sched(
        (struct weft__sched_options){.pages = 64, .chunk = 256, .max_running = 8, .max_queue = 8});
    struct weft__request r = request(&c, 1, 100, 3);
    r.samples = 4;
    submit(sched, r);
    while (step(sched)) continue;
    struct weft__sched_counters counters = weft__sched_counters(sched);
    assert_int_equal(c.finishes, 4);
    assert_int_equal(c.tokens, 12);
    /* 100 + 3 * 4 rows of prompt (96 are full pages), 4 * 2 of output */
    assert_int_equal(counters.computed_tokens, 112 + 8);
    assert_int_equal(counters.cached_tokens, 3 * 96);
    assert_int_equal(counters.prompt_tokens, 400);
    r = request(&c, 2, WEFT__PAGE, 3);
    r.samples = 4;
    submit(sched, r);
    expect_step(sched, 4, 4 * WEFT__PAGE); /* nothing to share, nothing to wait for */
    while (step(sched)) continue;
    weft__sched_close(sched);
}

static int64_t computed_by(struct weft__sched *sched, struct weft__request r)
{
    int64_t before = weft__sched_counters(sched).computed_tokens;
    submit(sched, r);
    while (step(sched)) continue;
    return weft__sched_counters(sched).computed_tokens - before;
}

static void prefix_cache_saves_whole_pages(void **unused)
{
    (void)unused;
    struct client c = {0};
    struct weft__sched *sched = open_sched((struct weft__sched_options){
        .pages = 40, .chunk = 1024, .max_running = 2, .cache_generated = true});
    struct weft__request r = request(&c, 1, 512, 1);
    assert_int_equal(computed_by(sched, r), 512);
    assert_int_equal(computed_by(sched, r), 16); /* the last page again, for its logits */
    assert_int_equal(c.last.cached_tokens, 496);
    for (uint64_t salt = 1; salt < 70; salt++) { /* more salts than buckets */
        r.cache_salt = salt;
        r.prompt_count = 33;
        assert_int_equal(computed_by(sched, r), 33);
    }
    r.cache_salt = 0;
    weft__sched_flush(sched);
    assert_int_equal(weft__sched_counters(sched).pages_free, 40);
    assert_int_equal(computed_by(sched, r), 33);

    /* Least recently used first: 2 is used again after 3, so a prompt of 25 pages evicts 3. */
    weft__sched_flush(sched);
    assert_int_equal(computed_by(sched, request(&c, 2, 129, 1)), 129);
    assert_int_equal(computed_by(sched, request(&c, 3, 129, 1)), 129);
    assert_int_equal(computed_by(sched, request(&c, 2, 129, 1)), 1);
    assert_int_equal(computed_by(sched, request(&c, 4, 460, 1)), 460);
    assert_int_equal(computed_by(sched, request(&c, 2, 129, 1)), 1);
    assert_int_equal(computed_by(sched, request(&c, 3, 129, 1)), 129 - 48); /* 5 of 8 pages gone */
    weft__sched_close(sched);
}

/* What a sequence would take from the cache counts once it is admitted, not whenever it is tried.
 */
static void cached_tokens_are_those_of_the_admitted(void **unused)
{
    (void)unused;
    struct client first = {0}, runs = {0}, waits = {0};
    struct weft__sched *sched = open_sched((struct weft__sched_options){
        .pages = 8, .chunk = 256, .max_running = 4, .max_queue = 4, .context = 128});
    (void)computed_by(sched, request(&first, 1, 48, 1));
    submit(sched, request(&runs, 2, 64, 16));
    assert_true(step(sched));
    submit(sched, request(&waits, 1, 112, 1));
    for (int i = 0; i < 5; i++) assert_true(step(sched));
    assert_int_equal(weft__sched_counters(sched).waiting, 1);
    assert_int_equal(weft__sched_counters(sched).cached_tokens, 0);
    while (step(sched)) continue;
    assert_int_equal(waits.last.cached_tokens, 48);
    assert_int_equal(weft__sched_counters(sched).cached_tokens, 48);
    weft__sched_close(sched);
}

/* Without max_tokens an answer is as long as the model's own limit says, or as min_tokens. */
static void the_models_limit_yields_to_min_tokens(void **unused)
{
    (void)unused;
    struct client c = {0};
    struct weft__sched *sched = open_sched((struct weft__sched_options){
        .pages = 8, .chunk = 256, .max_running = 4, .context = 30, .answer = 5});
    struct weft__request r = request(&c, 1, 10, -1);
    const struct {
        int64_t prompt, min_tokens, answer;
    } cases[] = {{10, 0, 5}, {10, 7, 7}, {27, 0, 3}};
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        r.prompt_count = cases[i].prompt;
        r.min_tokens = cases[i].min_tokens;
        (void)computed_by(sched, r);
        assert_int_equal(c.last.finish, WEFT__FINISH_LENGTH);
        assert_int_equal(c.last.generated_tokens, cases[i].answer);
    }
    weft__sched_close(sched);
}

/* A burst with one beginning: computed once, though all are in one step. What a failed step was to
 * fill is forgotten. */
static void prefix_is_shared_within_a_step(void **unused)
{
    (void)unused;
    static struct client c[8];
    memset(c, 0, sizeof c);
    struct weft__sched *sched = open_sched((struct weft__sched_options){
        .pages = 400, .chunk = 1024, .max_running = 8, .max_queue = 8});
    const struct weft__batch *batch;
    const weft_error why = {WEFT_DEVICE, "the device is gone"};
    struct weft__request r = request(&c[0], 1, 500, 3);
    submit(sched, r);
    assert_true(weft__sched_plan(sched, 1, &batch));
    weft__sched_fail_all(sched, &why);
    for (int i = 0; i < 8; i++) {
        r.ctx = &c[i];
        submit(sched, r);
    }
    expect_step(sched, 8, 500 + 7 * (500 - 496));
    while (step(sched)) continue;
    for (int i = 0; i < 8; i++) {
        assert_int_equal(c[i].last.cached_tokens, i == 0 ? 0 : 496);
        assert_int_equal(c[i].last.generated_tokens, 3);
        assert_int_equal(c[i].token[0], 2);
    }
    weft__sched_close(sched);
}

/* Prompt and answer together are the next turn's prompt. */
static void generated_pages_are_shared_only_where_exact(void **unused)
{
    (void)unused;
    for (int exact = 0; exact < 2; exact++) {
        static struct client c;
        c = (struct client){0};
        struct weft__sched *sched = open_sched((struct weft__sched_options){
            .pages = 40, .chunk = 1024, .max_running = 2, .cache_generated = exact});
        struct weft__request r = request(&c, 10, 20, 44);
        (void)computed_by(sched, r);
        int32_t turn[70] = {0};
        for (int i = 0; i < 64; i++) turn[i] = i < 20 ? 10 : c.token[i - 20];
        r.prompt = turn, r.prompt_count = 70, r.max_tokens = 1;
        assert_int_equal(computed_by(sched, r), exact ? 70 - 48 : 70 - 16);
        weft__sched_close(sched);
    }
}

/* Prompts that somebody chose for their hash fill one bucket: it ends, or every look-up would be a
 * long walk. */
static void a_bucket_has_an_end(void **unused)
{
    (void)unused;
    struct weft__pool pool;
    struct weft__page_key key = {.parent = WEFT__NO_PAGE};
    int cached = 0;
    assert_int_equal(weft__pool_open(&pool, 2 * WEFT__BUCKET_MAX, NULL), WEFT_OK);
    for (;; key.token[0]++) {
        int32_t page = weft__pool_get(&pool);
        assert_int_not_equal(page, WEFT__NO_PAGE);
        if (weft__pool_share(&pool, page, &key) == WEFT__NO_PAGE) break;
        if (pool.page[page].bucket == 0) {
            cached++;
            continue;
        }
        weft__pool_put(&pool, page);
        weft__pool_flush(&pool);
    }
    assert_int_equal(cached, WEFT__BUCKET_MAX);
    weft__pool_close(&pool);
}

static void finishes_for_the_right_reason(void **unused)
{
    (void)unused;
    static struct client c, stopped, timed;
    struct weft__sched *sched = open_sched(
        (struct weft__sched_options){.pages = 40, .chunk = 64, .max_running = 4, .max_queue = 8});
    const struct weft__batch *batch;
    struct weft__request r = request(&c, EOS - 3, 4, 50);
    (void)computed_by(sched, r);
    assert_int_equal(c.last.finish, WEFT__FINISH_STOP);
    assert_int_equal(c.last.stop_token, EOS);
    assert_int_equal(c.last.generated_tokens, 3);
    r.ignore_eos = true;
    (void)computed_by(sched, r);
    assert_int_equal(c.last.finish, WEFT__FINISH_LENGTH);
    assert_int_equal(c.last.generated_tokens, 50);
    int32_t stop[] = {2};
    r.stop = stop, r.stop_count = 1;
    (void)computed_by(sched, r); /* 61 62 63 0 1 2 */
    assert_int_equal(c.last.stop_token, 2);
    assert_int_equal(c.last.generated_tokens, 6);
    r.min_tokens = 10; /* 2 is passed by: of equals then the lowest id, 0 1 (2) ... */
    (void)computed_by(sched, r);
    assert_int_equal(c.last.finish, WEFT__FINISH_STOP);
    assert_true(c.last.generated_tokens > 10);
    assert_int_equal(weft__sched_counters(sched).finished[WEFT__FINISH_STOP], 3);

    /* max_tokens 0: log-probabilities only, or nothing at all. */
    r = request(&c, 1, 10, 0);
    (void)computed_by(sched, r);
    assert_int_equal(c.last.finish, WEFT__FINISH_LENGTH);
    assert_int_equal(c.last.generated_tokens, 0);
    r.prompt_logprobs = true;
    (void)computed_by(sched, r);
    assert_int_equal(c.prompt_logprobs, 9);

    uint64_t handle = submit(sched, request(&stopped, 1, 10, 100));
    r = request(&timed, 1, 10, 100);
    r.deadline_ns = 5;
    submit(sched, r);
    for (uint64_t now = 1; now < 5; now++) {
        assert_true(weft__sched_plan(sched, now, &batch));
        answer(sched, batch);
    }
    weft__sched_stop(sched, handle, 1);
    weft__sched_stop(sched, handle + 1, 0);
    assert_true(weft__sched_plan(sched, 5, &batch));
    assert_int_equal(timed.last.finish, WEFT__FINISH_TIMEOUT);
    assert_int_equal(timed.last.generated_tokens, 4);
    assert_int_equal(timed.last.admitted_ns, 1);
    assert_int_equal(stopped.finishes, 0);
    weft__sched_stop(sched, handle, 0); /* in flight: its row is dropped */
    weft__sched_cancel(sched, handle);  /* too late */
    answer(sched, batch);
    assert_int_equal(stopped.last.finish, WEFT__FINISH_STOP);
    assert_int_equal(stopped.last.stop_token, -1);
    assert_int_equal(stopped.last.generated_tokens, 4);

    /* The next request gets the same slot; the old handle does not name it. */
    uint64_t next = submit(sched, request(&c, 1, 10, 5));
    assert_int_not_equal(next, handle);
    weft__sched_cancel(sched, handle);
    while (step(sched)) continue;
    assert_int_equal(c.last.finish, WEFT__FINISH_LENGTH);
    weft__sched_close(sched);
}

static void failure_reaches_everyone(void **unused)
{
    (void)unused;
    static struct client c[3];
    struct weft__sched *sched = open_sched(
        (struct weft__sched_options){.pages = 40, .chunk = 64, .max_running = 2, .max_queue = 8});
    const struct weft__batch *batch;
    for (int i = 0; i < 3; i++) submit(sched, request(&c[i], 1, 10, 100));
    assert_true(weft__sched_plan(sched, 1, &batch));
    const weft_error why = {WEFT_PEER, "rank 1 died"};
    weft__sched_fail_all(sched, &why);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(c[i].finishes, 1);
        assert_int_equal(c[i].last.finish, WEFT__FINISH_FAILED);
        assert_string_equal(c[i].error, "rank 1 died");
    }
    assert_false(step(sched));
    assert_int_equal(weft__sched_counters(sched).pages_used, 0);
    weft__sched_cancel(sched, submit(sched, request(&c[0], 1, 10, 100)));
    assert_false(step(sched));
    assert_int_equal(c[0].last.finish, WEFT__FINISH_CANCELLED);
    submit(sched, request(&c[0], 1, 10, 100)); /* close frees it without a callback */
    assert_true(step(sched));
    weft__sched_close(sched);
    assert_int_equal(c[0].finishes, 2);
}

/* 1,000 requests on a pool for about 50 of them: rows computed twice, and how full the pool is. */
static double overload(int64_t growth, double *running)
{
    static struct client c;
    c = (struct client){0};
    struct weft__sched *sched = open_sched((struct weft__sched_options){
        .pages = 1000, .chunk = 2048, .max_running = 128, .max_queue = 1000, .growth = growth});
    uint64_t state = 1;
    int32_t prompt[256];
    for (int i = 0; i < 1000; i++) {
        struct weft__request r = request(&c, 1, 0, 0);
        for (int k = 0; k < 256; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            prompt[k] = (int32_t)(state >> 33) % VOCAB;
        }
        r.prompt = prompt;
        r.prompt_count = 64 + (int64_t)(state >> 40) % 128;
        r.max_tokens = 1 + (int64_t)(state >> 20) % 512;
        r.ignore_eos = true;
        submit(sched, r);
    }
    double sequences = 0;
    const struct weft__batch *batch;
    while (weft__sched_plan(sched, 1, &batch)) {
        sequences += batch->seqs;
        answer(sched, batch);
    }
    struct weft__sched_counters n = weft__sched_counters(sched);
    assert_int_equal(c.finishes, 1000);
    /* the last token of each is never computed */
    int64_t useful = n.prompt_tokens + n.generated_tokens - 1000;
    *running = sequences / (double)n.steps;
    double waste = (double)(n.computed_tokens + n.cached_tokens - useful) / (double)useful;
    print_message("growth %lld: %lld retractions, %.1f%% recomputed, %.1f running, %lld steps\n",
                  (long long)growth, (long long)n.retractions, 100 * waste, *running,
                  (long long)n.steps);
    weft__sched_close(sched);
    return waste;
}

static void overload_wastes_little(void **unused)
{
    (void)unused;
    double greedy, chosen, careful;
    double waste = overload(0, &greedy);
    assert_true(waste > 0.2); /* what `growth` is for */
    assert_true(overload(WEFT__GROWTH, &chosen) < 0.02);
    assert_true(chosen > 0.8 * greedy);
    (void)overload(512, &careful);
    assert_true(careful < 0.8 * chosen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(long_prompt_does_not_block_decode),
        cmocka_unit_test(bursts_are_taken_in_at_once),
        cmocka_unit_test(first_come_first_served_within_priority),
        cmocka_unit_test(retraction_replays),
        cmocka_unit_test(retraction_chooses),
        cmocka_unit_test(samples_share_the_prompt),
        cmocka_unit_test(prefix_cache_saves_whole_pages),
        cmocka_unit_test(prefix_is_shared_within_a_step),
        cmocka_unit_test(generated_pages_are_shared_only_where_exact),
        cmocka_unit_test(cached_tokens_are_those_of_the_admitted),
        cmocka_unit_test(the_models_limit_yields_to_min_tokens),
        cmocka_unit_test(a_bucket_has_an_end),
        cmocka_unit_test(finishes_for_the_right_reason),
        cmocka_unit_test(failure_reaches_everyone),
        cmocka_unit_test(overload_wastes_little)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
