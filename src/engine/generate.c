/* weft_generate: one generation, waited for. */
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine.h"

enum { MAX_TEXT = 64 << 20 };

struct call {
    weft_engine *engine;
    const weft_generation *generation;
    pthread_mutex_t mutex;
    pthread_cond_t done;
    bool finished, stopped;
    uint64_t handle, submitted_ns, first_ns, last_ns;
    struct weft__detok detok;
    struct weft__buf text;
    size_t told; /* bytes of text that on_text has seen */
    enum weft__finish finish;
    struct weft__finish_event counts;
    weft_error error;
};

static void tell(struct call *call)
{
    const weft_generation *g = call->generation;
    if (call->text.len == call->told || call->stopped) return;
    if (g->on_text != NULL &&
        !g->on_text(g->ctx, call->text.data + call->told, call->text.len - call->told))
        call->stopped = true;
    call->told = call->text.len;
    if (call->stopped) weft__sched_stop(weft__engine_sched(call->engine), call->handle, 0);
}

static void on_token(void *ctx, const struct weft__token_event *event)
{
    struct call *call = ctx;
    call->last_ns = weft__now_ns();
    if (call->first_ns == 0) call->first_ns = call->last_ns;
    if (event->stop) return;
    weft__detok_push(&call->detok, weft__engine_view(call->engine)->tokenizer, event->token, true,
                     &call->text);
    tell(call);
}

static void on_finish(void *ctx, const struct weft__finish_event *event)
{
    struct call *call = ctx;
    weft__detok_finish(&call->detok, &call->text);
    tell(call);
    (void)pthread_mutex_lock(&call->mutex);
    call->counts = *event;
    call->finish = event->finish;
    if (event->error != NULL) call->error = *event->error;
    call->finished = true;
    (void)pthread_cond_signal(&call->done);
    (void)pthread_mutex_unlock(&call->mutex);
}

/* ---- the prompt ---- */

static weft_status messages_json(const weft_generation *g, json_t **out, weft_error *err)
{
    json_t *list = json_array();
    for (int i = 0; i < g->message_count; i++) {
        const weft_message *m = &g->messages[i];
        json_t *message = json_pack("{s:s, s:s}", "role", m->role, "content", m->content);
        if (json_array_append_new(list, message) == 0) continue;
        json_decref(list);
        if (m->role == NULL || m->content == NULL)
            return weft__fail(err, WEFT_INVALID, "message %d of %d has no role or no content",
                              i + 1, g->message_count);
        if (weft__utf8_valid(m->role, strlen(m->role)) &&
            weft__utf8_valid(m->content, strlen(m->content)))
            return weft__fail_oom(err, strlen(m->content), "the messages");
        return weft__fail(err, WEFT_INVALID, "message %d of %d is not valid UTF-8", i + 1,
                          g->message_count);
    }
    *out = list;
    return WEFT_OK;
}

static weft_status encode(const struct weft__engine_view *view, const char *text, size_t len,
                          unsigned flags, struct weft__ids *ids, weft_error *err)
{
    if (view->tokenizer == NULL)
        return weft__fail(err, WEFT_NOT_FOUND,
                          "%s: there is no tokenizer.json, so only token ids can be given",
                          view->dir);
    return weft__tokenizer_encode(view->tokenizer, text, len, flags, ids, err);
}

static weft_status encode_messages(const struct weft__engine_view *view, const weft_generation *g,
                                   struct weft__ids *ids, weft_error *err)
{
    struct weft__buf text;
    json_t *messages = NULL;
    WEFT__TRY(messages_json(g, &messages, err));
    weft__buf_init(&text, MAX_TEXT);
    const struct weft__chat_input input = {
        .messages = messages, .add_generation_prompt = true, .now = time(NULL)};
    weft_status status = weft__chat_render(view->chat, &input, &text, err);
    if (status == WEFT_OK)
        status = encode(view, text.data != NULL ? text.data : "", text.len, WEFT__PARSE_SPECIAL,
                        ids, err);
    weft__buf_free(&text);
    json_decref(messages);
    return status;
}

static weft_status encode_prompt(const struct weft__engine_view *view, const weft_generation *g,
                                 struct weft__ids *ids, weft_error *err)
{
    if (g->messages != NULL) return encode_messages(view, g, ids, err);
    return encode(view, g->text, strlen(g->text), WEFT__ADD_SPECIAL | WEFT__PARSE_SPECIAL, ids,
                  err);
}

/* ---- the call ---- */

static weft_status check_prompt(const weft_generation *g, weft_error *err)
{
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {{"message_count", g->message_count},
                  {"id_count", g->id_count},
                  {"max_tokens", g->max_tokens}};
    for (size_t i = 0; i < WEFT__COUNT(counts); i++)
        if (counts[i].value < 0)
            return weft__fail(err, WEFT_INVALID, "%s is %lld, must be 0 or more", counts[i].name,
                              (long long)counts[i].value);
    int prompts = (g->messages != NULL) + (g->text != NULL) + (g->ids != NULL);
    if (prompts != 1)
        return weft__fail(err, WEFT_INVALID,
                          "a generation needs messages, text or ids, one of them; %d are set",
                          prompts);
    return WEFT_OK;
}

/* NaN is not negative: it goes on, to be refused with other values out of range. */
static struct weft__sampling sampling_of(const struct weft__engine_view *view,
                                         const weft_generation *g)
{
    struct weft__sampling s = view->generation->sampling;
    if (!(g->temperature < 0)) s.temperature = (float)g->temperature;
    if (!(g->top_p < 0)) s.top_p = (float)g->top_p;
    if (g->top_k >= 0) s.top_k = (int32_t)weft__min(g->top_k, INT32_MAX);
    if (!(g->min_p < 0)) s.min_p = (float)g->min_p;
    if (!(g->repetition_penalty < 0)) s.repetition_penalty = (float)g->repetition_penalty;
    s.seed = g->seed;
    return s;
}

static weft_status run(struct call *call, const struct weft__request *request, weft_error *err)
{
    call->submitted_ns = weft__now_ns();
    WEFT__TRY(weft__engine_submit(call->engine, request, &call->handle, err));
    (void)pthread_mutex_lock(&call->mutex);
    while (!call->finished) (void)pthread_cond_wait(&call->done, &call->mutex);
    (void)pthread_mutex_unlock(&call->mutex);
    if (call->finish == WEFT__FINISH_FAILED) {
        if (err != NULL) *err = call->error;
        return call->error.status;
    }
    if (call->text.failed)
        return weft__fail(err, WEFT_NO_MEMORY, "the text outgrew memory or %d MiB", MAX_TEXT >> 20);
    return WEFT_OK;
}

static void deliver(struct call *call, weft_generated *out)
{
    *out = (weft_generated){
        .text = call->text.data,
        .len = call->text.len,
        .prompt_tokens = call->counts.prompt_tokens,
        .cached_tokens = call->counts.cached_tokens,
        .generated_tokens = call->counts.generated_tokens,
        .complete = call->finish == WEFT__FINISH_STOP && !call->stopped,
    };
    if (call->first_ns > 0) {
        out->prefill_ns = call->first_ns - call->submitted_ns;
        out->decode_ns = call->last_ns - call->first_ns;
    }
}

weft_status weft_generate(weft_engine *engine, const weft_generation *g, weft_generated *out,
                          weft_error *err)
{
    const struct weft__engine_view *view = weft__engine_view(engine);
    struct weft__ids ids = {0};
    struct call call = {.engine = engine,
                        .generation = g,
                        .mutex = PTHREAD_MUTEX_INITIALIZER,
                        .done = PTHREAD_COND_INITIALIZER};
    weft__buf_init(&call.text, MAX_TEXT);
    weft__buf_puts(&call.text, ""); /* so that an empty text is not NULL */
    weft_status status = check_prompt(g, err);
    if (status == WEFT_OK && g->ids == NULL) status = encode_prompt(view, g, &ids, err);
    if (status == WEFT_OK && view->tokenizer == NULL)
        status = weft__fail(err, WEFT_NOT_FOUND, "%s: no tokenizer.json to decode with", view->dir);
    if (status == WEFT_OK) {
        const struct weft__request request = {
            .prompt = g->ids != NULL ? g->ids : ids.data,
            .prompt_count = g->ids != NULL ? g->id_count : (int64_t)ids.len,
            .max_tokens = g->max_tokens > 0 ? g->max_tokens : -1,
            .samples = 1,
            .sampling = sampling_of(view, g),
            .ignore_eos = g->ignore_eos,
            .ctx = &call,
            .on_token = on_token,
            .on_finish = on_finish,
        };
        status = run(&call, &request, err);
    }
    weft__ids_free(&ids);
    if (status == WEFT_OK)
        deliver(&call, out);
    else
        weft__buf_free(&call.text);
    return status;
}

void weft_generated_free(weft_generated *generated)
{
    free(generated->text);
    *generated = (weft_generated){0};
}
