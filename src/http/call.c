/* Requests under way. The engine's thread turns tokens into text, looks for stop strings, and
 * leaves notes; the loop takes them, renders and sends. A choice belongs to the engine's thread
 * from submission until it stands in the finished list, and its call lives until all its choices
 * do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "private.h"

/* ---- notes: the engine's thread ---- */

struct note {
    uint32_t bytes; /* of the record: this, the text, padding, maybe weft__logprobs */
    uint32_t text_len;
    struct weft__part *part;
    struct weft__choice *choice; /* NULL: of the prompt */
    int64_t position;            /* of the prompt; else tokens generated so far */
    uint64_t at_ns;
    int32_t token; /* -1: text alone */
    bool logprobs, stop;
};

static size_t padded(size_t size) { return (size + 7) & ~(size_t)7; }

static void leave(struct weft__server *server, struct note *note, const struct weft__buf *text,
                  const struct weft__logprobs *logprobs)
{
    static const char zeros[8];
    struct weft__notes *notes = &server->notes;
    size_t text_len = text != NULL ? text->len : 0;
    size_t padding = padded(text_len) - text_len;
    note->text_len = (uint32_t)text_len;
    note->logprobs = logprobs != NULL;
    note->bytes = (uint32_t)(sizeof *note + padded(text_len) +
                             (logprobs != NULL ? padded(sizeof *logprobs) : 0));
    note->at_ns = weft__now_ns();
    (void)pthread_mutex_lock(&notes->mutex);
    weft__buf_append(&notes->list, note, sizeof *note);
    weft__buf_append(&notes->list, text != NULL ? text->data : "", text_len);
    weft__buf_append(&notes->list, zeros, padding);
    if (logprobs != NULL) {
        weft__buf_append(&notes->list, logprobs, sizeof *logprobs);
        weft__buf_append(&notes->list, zeros, padded(sizeof *logprobs) - sizeof *logprobs);
    }
    bool wake = !notes->woken;
    notes->woken = true;
    (void)pthread_mutex_unlock(&notes->mutex);
    if (wake) weft__server_wake(server);
}

static void on_prompt(void *ctx, const struct weft__prompt_event *event)
{
    struct weft__part *part = ctx;
    struct note note = {.part = part, .position = event->position, .token = -1};
    leave(part->call->server, &note, NULL, event->logprobs);
}

/* Text that is certain goes to notes.text; true when it ended in a stop string. */
static bool filter(struct weft__choice *choice, bool match)
{
    const struct weft__ask *ask = &choice->part->call->ask;
    struct weft__notes *notes = &choice->part->call->server->notes;
    if (match)
        choice->matched = weft__tail_push(&choice->tail, &ask->stops, notes->raw.data,
                                          notes->raw.len, &notes->text);
    else
        weft__buf_append(&notes->text, notes->raw.data, notes->raw.len);
    return choice->matched >= 0;
}

/* Special tokens are no text, but for the marks around reasoning and calls. */
static bool skips(const struct weft__ask *ask, const struct weft__tokenizer *tokenizer, int32_t id)
{
    if (!ask->skip_special || ask->kind != WEFT__ASK_CHAT || !weft__token_is_special(tokenizer, id))
        return ask->skip_special;
    struct weft__token_text text = weft__token_bytes(tokenizer, id);
    return !weft__extract_mark(text.data, text.len);
}

/* Where reasoning may come first, its mark is allowed beside what the constraint allows. */
static const uint32_t *allowed(void *ctx, int32_t sample)
{
    struct weft__part *part = ctx;
    struct weft__choice *choice = &part->choice[sample];
    struct weft__server *server = part->call->server;
    if (choice->thinking == WEFT__THINKS_ALREADY) return NULL;
    const uint32_t *mask = weft__guided_mask(&choice->guided);
    if (choice->thinking == WEFT__THINKS_NOT || choice->guided.failed != WEFT_OK) return mask;
    memcpy(server->mask, mask, server->mask_words * sizeof *mask);
    server->mask[server->think_begin / 32] |= 1U << (server->think_begin % 32);
    return server->mask;
}

/* True when the constraint is met and nothing can follow. */
static bool advance(struct weft__choice *choice, int32_t token)
{
    const struct weft__server *server = choice->part->call->server;
    if (choice->thinking == WEFT__THINKS_MAYBE)
        choice->thinking = token == server->think_begin ? WEFT__THINKS_ALREADY : WEFT__THINKS_NOT;
    if (choice->thinking == WEFT__THINKS_NOT) return weft__guided_push(&choice->guided, token);
    if (token == server->think_end) choice->thinking = WEFT__THINKS_NOT;
    return false;
}

static void on_token(void *ctx, const struct weft__token_event *event)
{
    struct weft__part *part = ctx;
    struct weft__choice *choice = &part->choice[event->sample];
    struct weft__server *server = part->call->server;
    const struct weft__ask *ask = &part->call->ask;
    struct weft__notes *notes = &server->notes;
    const struct weft__tokenizer *tokenizer = weft__engine_view(server->engine)->tokenizer;
    if (choice->matched >= 0) return;
    notes->raw.len = notes->text.len = 0;
    choice->tokens = event->index + 1;
    if (!event->stop || ask->stops.keep || !ask->skip_special)
        weft__detok_push(&choice->detok, tokenizer, event->token,
                         skips(ask, tokenizer, event->token), &notes->raw);
    bool complete = ask->constraint != NULL && !event->stop && advance(choice, event->token);
    if (filter(choice, choice->tokens >= ask->min_tokens) || complete)
        weft__sched_stop(weft__engine_sched(server->engine), part->handle, event->sample);
    struct note note = {.part = part,
                        .choice = choice,
                        .position = choice->tokens,
                        .token = event->token,
                        .stop = event->stop};
    leave(server, &note, &notes->text, event->logprobs);
}

static void on_finish(void *ctx, const struct weft__finish_event *event)
{
    struct weft__part *part = ctx;
    struct weft__choice *choice = &part->choice[event->sample];
    struct weft__server *server = part->call->server;
    struct weft__notes *notes = &server->notes;
    notes->raw.len = notes->text.len = 0;
    if (choice->matched < 0) {
        weft__detok_finish(&choice->detok, &notes->raw);
        (void)filter(choice, true);
        weft__tail_finish(&choice->tail, &notes->text);
    }
    if (notes->text.len > 0) {
        struct note note = {
            .part = part, .choice = choice, .position = choice->tokens, .token = -1};
        leave(server, &note, &notes->text, NULL);
    }
    choice->finish = *event;
    if (event->error != NULL) {
        choice->error = *event->error;
        (void)weft__guided_check(&choice->guided, &choice->error);
    }
    (void)pthread_mutex_lock(&notes->mutex);
    choice->next_finished = notes->finished;
    notes->finished = choice;
    /* Within the lock: once the last request is seen to have ended, the server may close. */
    if (!notes->woken) weft__server_wake(server);
    notes->woken = true;
    (void)pthread_mutex_unlock(&notes->mutex);
}

/* ---- life ---- */

static void free_lists(struct weft__logprob_lists *lists)
{
    weft__buf_free(&lists->token);
    weft__buf_free(&lists->value);
    weft__buf_free(&lists->top);
    weft__buf_free(&lists->offset);
}

static void init_lists(struct weft__logprob_lists *lists)
{
    weft__buf_init(&lists->token, WEFT__ANSWER_MAX);
    weft__buf_init(&lists->value, WEFT__ANSWER_MAX);
    weft__buf_init(&lists->top, WEFT__ANSWER_MAX);
    weft__buf_init(&lists->offset, WEFT__ANSWER_MAX);
}

static void call_free(struct weft__call *call)
{
    for (int p = 0; p < call->parts; p++) {
        struct weft__part *part = &call->part[p];
        weft__ids_free(&part->prompt.ids);
        free_lists(&part->logprobs);
        for (int s = 0; s < call->ask.samples; s++) {
            struct weft__choice *choice = &part->choice[s];
            weft__buf_free(&choice->tail.held);
            weft__guided_free(&choice->guided);
            weft__buf_free(&choice->text);
            weft__buf_free(&choice->reasoning);
            weft__buf_free(&choice->calls);
            weft__extract_free(&choice->extract);
            weft__buf_free(&choice->ids);
            free_lists(&choice->logprobs);
        }
    }
    if (call->next != NULL) call->next->prev = call->prev;
    if (call->prev != NULL || call->server->calls == call)
        *(call->prev != NULL ? &call->prev->next : &call->server->calls) = call->next;
    call->server->body_bytes -= call->body_bytes;
    weft__buf_free(&call->prefix);
    weft__constraint_release(call->server, call->ask.constraint);
    free(call->part);
    free(call->choice);
    weft__ask_free(&call->ask);
    free(call);
}

static void on_call(void *ctx, struct weft__slice name, struct weft__slice arguments)
{
    struct weft__choice *choice = ctx;
    if (!choice->part->call->ask.one_call || choice->call_count == 0)
        weft__render_call(choice, name, arguments);
}

static void init_choice(struct weft__choice *choice, struct weft__part *part, int32_t sample)
{
    const struct weft__call *call = part->call;
    const struct weft__ask *ask = &call->ask;
    choice->part = part;
    choice->index = (int)(part - call->part) * ask->samples + sample;
    choice->sample = sample;
    choice->matched = -1;
    weft__buf_init(&choice->tail.held, WEFT__ANSWER_MAX);
    if (ask->constraint != NULL)
        weft__guided_init(&choice->guided, weft__constraint_guide(ask->constraint));
    choice->thinking = call->server->think_end >= 0 ? part->prompt.thinking : WEFT__THINKS_NOT;
    weft__buf_init(&choice->text, WEFT__ANSWER_MAX);
    weft__buf_init(&choice->reasoning, WEFT__ANSWER_MAX);
    weft__buf_init(&choice->calls, WEFT__ANSWER_MAX);
    weft__buf_init(&choice->ids, WEFT__ANSWER_MAX);
    init_lists(&choice->logprobs);
    choice->extract = (struct weft__extract){.tools = ask->tools, .ctx = choice, .call = on_call};
    if (ask->tools != NULL) choice->extract.format = call->server->calls_format;
    if (ask->reasoning && part->prompt.thinking == WEFT__THINKS_MAYBE)
        choice->extract.state = WEFT__EXTRACT_START;
    if (ask->reasoning && part->prompt.thinking == WEFT__THINKS_ALREADY)
        choice->extract.state = WEFT__EXTRACT_REASONING;
    choice->extract.fresh = choice->extract.state == WEFT__EXTRACT_REASONING;
    weft__extract_init(&choice->extract);
}

/* Parts and choices for the prompts, whose ids move in. */
static bool make_parts(struct weft__call *call, struct weft__prompt *prompts, int count,
                       struct weft__refusal *refusal)
{
    int samples = call->ask.samples;
    call->part = calloc((size_t)count, sizeof *call->part);
    call->choice = calloc((size_t)count * (size_t)samples, sizeof *call->choice);
    if (call->part == NULL || call->choice == NULL)
        return weft__refuse(refusal, 500, "out_of_memory", NULL, "no memory for %d choices",
                            count * samples);
    call->parts = count;
    for (int p = 0; p < count; p++) {
        struct weft__part *part = &call->part[p];
        part->call = call;
        part->prompt = prompts[p];
        prompts[p].ids = (struct weft__ids){0};
        part->choice = &call->choice[p * samples];
        init_lists(&part->logprobs);
        for (int s = 0; s < samples; s++) init_choice(&part->choice[s], part, s);
    }
    return true;
}

static void cancel(struct weft__call *call)
{
    call->cancelled = true;
    for (int p = 0; p < call->parts; p++)
        if (call->part[p].submitted)
            weft__engine_cancel(call->server->engine, call->part[p].handle);
}

static bool submit(struct weft__call *call, struct weft__refusal *refusal)
{
    const struct weft__ask *ask = &call->ask;
    int64_t timeout_s = call->probe ? 20 : call->server->options.request_timeout_s;
    bool prompt_logprobs = (ask->echo && ask->logprobs >= 0) || ask->logprobs_from >= 0;
    weft_error err;
    for (int p = 0; p < call->parts; p++) {
        struct weft__part *part = &call->part[p];
        const struct weft__request request = {
            .prompt = part->prompt.ids.data,
            .prompt_count = (int64_t)part->prompt.ids.len,
            .max_tokens = ask->max_tokens,
            .min_tokens = ask->min_tokens,
            .samples = ask->samples,
            .sampling = ask->sampling,
            .stop = ask->stop_ids,
            .stop_count = ask->stop_id_count,
            .ignore_eos = ask->ignore_eos,
            .logprobs = ask->logprobs >= 0,
            .prompt_logprobs = prompt_logprobs,
            .prompt_logprobs_from = weft__max(ask->logprobs_from, 0),
            .top_logprobs = (int32_t)weft__max(ask->logprobs, 0),
            .priority = ask->priority,
            .deadline_ns =
                timeout_s > 0 ? call->received_ns + (uint64_t)timeout_s * 1000000000U : 0,
            .cache_salt = ask->cache_salt,
            .ctx = part,
            .on_token = on_token,
            .on_finish = on_finish,
            .on_prompt = on_prompt,
            .allowed = ask->constraint != NULL ? allowed : NULL,
        };
        if (weft__engine_submit(call->server->engine, &request, &part->handle, &err) != WEFT_OK) {
            cancel(call);
            return weft__refuse_error(refusal, &err);
        }
        part->submitted = true;
        call->unfinished += ask->samples;
    }
    return true;
}

static struct weft__call *call_new(struct weft__conn *conn)
{
    struct weft__call *call = calloc(1, sizeof *call);
    if (call == NULL) return NULL;
    call->server = conn->server;
    call->received_ns = conn->received_ns;
    call->created = time(NULL);
    (void)snprintf(call->request_id, sizeof call->request_id, "%s", conn->request_id);
    weft__buf_init(&call->prefix, WEFT__ANSWER_MAX);
    return call;
}

static void read_call(struct weft__reading *r)
{
    struct weft__ask *ask = &r->call->ask;
    json_t *body = weft__body_parse(&r->body, &r->refusal);
    bool ok = body != NULL && weft__ask_read(ask, r->server, body, &r->refusal);
    json_decref(body);
    if (ok) (void)weft__prompts_read(r->server, ask, &r->prompts, &r->prompt_count, &r->refusal);
}

/* Hands what was read to the engine; the client waits from here on. */
static bool begin(struct weft__call *call, struct weft__reading *r, struct weft__refusal *refusal)
{
    static const char *const prefix[] = {"cmpl-", "chatcmpl-", ""};
    const enum weft__ask_kind kind = call->ask.kind;
    char id[33];
    call->body_bytes = (int64_t)r->body.len;
    call->server->body_bytes += call->body_bytes;
    if (!weft__constrain(call->server, &call->ask, refusal) ||
        !make_parts(call, r->prompts, r->prompt_count, refusal))
        return false;
    weft__server_new_id(call->server, id);
    const char *rid = kind == WEFT__ASK_NATIVE && call->ask.rid != NULL ? call->ask.rid : id;
    (void)snprintf(call->id, sizeof call->id, "%s%s", prefix[kind], rid);
    weft__render_begin(call);
    bool ok = submit(call, refusal);
    if (call->cancelled) cancel(call); /* while its body was read */
    return ok;
}

static void start(struct weft__conn *conn, struct weft__call *call, bool ok,
                  const struct weft__refusal *refusal)
{
    struct weft__server *server = conn->server;
    if (call != NULL && call->unfinished > 0) {
        call->next = server->calls;
        if (call->next != NULL) call->next->prev = call;
        server->calls = call;
    }
    if (ok) {
        server->metrics.requests++;
        call->conn = conn;
        conn->call = call;
        return;
    }
    if (call != NULL && call->unfinished == 0) call_free(call);
    weft__respond_refusal(conn, refusal);
}

static void start_read(struct weft__reading *r)
{
    if (r->conn == NULL)
        call_free(r->call);
    else
        start(r->conn, r->call, r->refusal.status == 0 && begin(r->call, r, &r->refusal),
              &r->refusal);
}

void weft__call_start(struct weft__conn *conn, enum weft__ask_kind kind)
{
    struct weft__refusal refusal;
    struct weft__call *call = call_new(conn);
    if (call == NULL) {
        (void)weft__refuse(&refusal, 500, "out_of_memory", NULL, "no memory");
        weft__respond_refusal(conn, &refusal);
        return;
    }
    call->ask.kind = kind;
    weft__read_body(conn, call, read_call, start_read);
}

/* One token through the whole path: /health_generate. */
void weft__call_probe(struct weft__conn *conn)
{
    struct weft__refusal refusal = {0};
    struct weft__prompt prompt = {.ids.data = calloc(1, sizeof(int32_t)), .ids.len = 1};
    struct weft__call *call = call_new(conn);
    bool ok = call != NULL && prompt.ids.data != NULL;
    if (ok) {
        call->probe = true;
        call->ask = (struct weft__ask){.kind = WEFT__ASK_NATIVE,
                                       .max_tokens = 1,
                                       .samples = 1,
                                       .logprobs = -1,
                                       .logprobs_from = -1,
                                       .ignore_eos = true,
                                       .sampling = weft__sampling_default};
        ok = make_parts(call, &prompt, 1, &refusal) && submit(call, &refusal);
    } else {
        (void)weft__refuse(&refusal, 500, "out_of_memory", NULL, "no memory");
    }
    weft__ids_free(&prompt.ids);
    start(conn, call, ok, &refusal);
}

void weft__call_orphan(struct weft__call *call)
{
    call->conn = NULL;
    if (!call->cancelled && call->unfinished > 0) cancel(call);
}

void weft__call_abort(struct weft__call *call)
{
    if (!call->cancelled) cancel(call);
}

/* ---- notes: the loop ---- */

static void send_events(struct weft__call *call)
{
    struct weft__conn *conn = call->conn;
    struct weft__buf *out = &call->server->scratch;
    if (out->len == 0) return;
    if (!call->head_sent) {
        call->head_sent = true;
        weft__stream_start(conn);
    }
    call->sent_ns = weft__now_ns();
    weft__stream_send(conn, out);
    out->len = 0;
}

void weft__call_fail(struct weft__call *call, const struct weft__refusal *refusal)
{
    struct weft__conn *conn = call->conn;
    if (conn == NULL) return;
    if (call->head_sent) {
        conn->error = refusal->code;
        call->server->scratch.len = 0;
        weft__render_error(refusal, &call->server->scratch);
        conn->close_after = true;
        send_events(call);
    }
    /* Sending may have failed, and the connection with it. */
    if (call->conn == NULL) return;
    call->conn = NULL;
    if (call->head_sent)
        weft__stream_end(conn);
    else
        weft__respond_refusal(conn, refusal);
    if (!call->cancelled && call->unfinished > 0) cancel(call);
}

static void observe_token(struct weft__choice *choice, uint64_t at_ns)
{
    struct weft__server *server = choice->part->call->server;
    if (choice->first_ns == 0) {
        choice->first_ns = at_ns;
        WEFT__OBSERVE(server, ttft, (double)(at_ns - choice->part->call->received_ns) / 1e9);
    } else {
        WEFT__OBSERVE(server, itl, (double)(at_ns - choice->last_ns) / 1e9);
    }
    choice->last_ns = at_ns;
}

static void take_note(const struct note *note, const char *text,
                      const struct weft__logprobs *logprobs)
{
    struct weft__choice *choice = note->choice;
    struct weft__call *call = note->part->call;
    if (choice == NULL) {
        if (call->conn != NULL) weft__render_prompt_logprob(note->part, note->position, logprobs);
        return;
    }
    if (note->token >= 0 && !call->probe) observe_token(choice, note->at_ns);
    if (call->conn == NULL || call->probe) {
        choice->told_tokens = note->position;
        return;
    }
    const struct weft__extracted out = {&choice->text, &choice->reasoning};
    if (call->ask.kind == WEFT__ASK_CHAT)
        weft__extract_push(&choice->extract, text, note->text_len, &out);
    else
        weft__buf_append(&choice->text, text, note->text_len);
    bool news =
        call->ask.kind == WEFT__ASK_CHAT ? weft__render_pending(choice) : note->text_len > 0;
    if (note->token >= 0 && call->ask.return_ids)
        weft__buf_append(&choice->ids, &note->token, sizeof note->token);
    /* The end mark is no content of a chat; completions count every token. */
    if (logprobs != NULL && !(note->stop && call->ask.kind == WEFT__ASK_CHAT))
        weft__render_logprob(choice, logprobs);
    choice->told_tokens = note->position;
    if (call->ask.stream && (news || (!choice->told && call->ask.echo))) {
        call->server->scratch.len = 0;
        weft__render_event(choice, &call->server->scratch);
        send_events(call);
    }
}

static void observe_finish(struct weft__choice *choice)
{
    const struct weft__finish_event *f = &choice->finish;
    struct weft__call *call = choice->part->call;
    struct weft__server *server = call->server;
    if (call->probe || choice->first_ns == 0) return;
    double received = (double)call->received_ns, admitted = (double)f->admitted_ns;
    double first = (double)choice->first_ns, last = (double)choice->last_ns;
    WEFT__OBSERVE(server, e2e, (last - received) / 1e9);
    WEFT__OBSERVE(server, queue, (admitted - received) / 1e9);
    WEFT__OBSERVE(server, prefill, (first - admitted) / 1e9);
    WEFT__OBSERVE(server, decode, (last - first) / 1e9);
    WEFT__OBSERVE(server, inference, (last - admitted) / 1e9);
    WEFT__OBSERVE(server, prompt, (double)f->prompt_tokens);
    WEFT__OBSERVE(server, generation, (double)f->generated_tokens);
}

/* All its choices have ended: what is left to say, and its end. */
static void finish_call(struct weft__call *call)
{
    static const struct weft__slice ok = {"{\"status\":\"ok\"}", 15};
    struct weft__buf *out = &call->server->scratch;
    struct weft__conn *conn = call->conn;
    if (conn != NULL && call->probe) {
        call->conn = NULL;
        weft__respond(conn, 200, "application/json", "", ok);
    } else if (conn != NULL && call->ask.stream) {
        out->len = 0;
        weft__render_end(call, out);
        send_events(call);
        if (call->conn != NULL) {
            call->conn = NULL;
            weft__stream_end(conn);
        }
    } else if (conn != NULL) {
        struct weft__buf answer;
        weft__buf_init(&answer, WEFT__ANSWER_MAX);
        weft__render_answer(call, &answer);
        call->conn = NULL;
        weft__respond_json(conn, 200, &answer);
        weft__buf_free(&answer);
    }
    call_free(call);
}

static void take_finish(struct weft__choice *choice)
{
    struct weft__call *call = choice->part->call;
    struct weft__refusal refusal;
    enum weft__finish finish = choice->finish.finish;
    choice->finished = true;
    call->unfinished--;
    observe_finish(choice);
    const struct weft__extracted out = {&choice->text, &choice->reasoning};
    weft__extract_finish(&choice->extract, &out);
    if (choice->sample == 0) choice->part->cached_tokens = choice->finish.cached_tokens;
    if (finish == WEFT__FINISH_TIMEOUT) {
        (void)weft__refuse(&refusal, call->probe ? 503 : 504, "timeout", NULL,
                           "the request's time of %lld s is over",
                           (long long)call->server->options.request_timeout_s);
        weft__call_fail(call, &refusal);
    } else if (finish == WEFT__FINISH_FAILED) {
        bool schema = choice->guided.failed == WEFT_UNSUPPORTED;
        (void)weft__refuse(&refusal, schema ? 400 : 500, schema ? "invalid_value" : "engine_failed",
                           schema ? "response_format" : NULL, "%s", choice->error.text);
        weft__call_fail(call, &refusal);
    } else if (call->conn != NULL && call->ask.stream) {
        call->server->scratch.len = 0;
        weft__render_finish(choice, &call->server->scratch);
        send_events(call);
    }
    if (call->unfinished == 0) finish_call(call);
}

/* Notes were lost for want of memory: nobody's answer can be trusted. */
static void fail_all(struct weft__server *server)
{
    struct weft__refusal refusal;
    (void)weft__refuse(&refusal, 500, "out_of_memory", NULL, "memory ran out on the way");
    for (struct weft__call *call = server->calls, *next; call != NULL; call = next) {
        next = call->next;
        weft__call_fail(call, &refusal);
    }
}

void weft__calls_take_notes(struct weft__server *server)
{
    struct weft__notes *notes = &server->notes;
    struct weft__buf list = server->taken;
    (void)pthread_mutex_lock(&notes->mutex);
    server->taken = notes->list;
    list.len = 0;
    notes->list = list;
    struct weft__choice *finished = notes->finished;
    notes->finished = NULL;
    notes->woken = false;
    (void)pthread_mutex_unlock(&notes->mutex);
    for (size_t at = 0; at + sizeof(struct note) <= server->taken.len;) {
        struct note note;
        memcpy(&note, server->taken.data + at, sizeof note);
        if (note.bytes > server->taken.len - at) break; /* memory ran out while it was written */
        const char *text = server->taken.data + at + sizeof note;
        struct weft__logprobs logprobs;
        if (note.logprobs) memcpy(&logprobs, text + padded(note.text_len), sizeof logprobs);
        take_note(&note, text, note.logprobs ? &logprobs : NULL);
        at += note.bytes;
    }
    bool lost = server->taken.failed;
    server->taken.failed = false;
    if (lost) fail_all(server);
    while (finished != NULL) {
        struct weft__choice *choice = finished;
        finished = choice->next_finished;
        take_finish(choice);
    }
    if (server->taken.cap > 16 << 20) weft__buf_free(&server->taken);
}

void weft__calls_ping(struct weft__server *server, uint64_t now_ns)
{
    static const char text[] = ": ping\n\n";
    uint64_t interval = (uint64_t)server->options.ping_interval_s * 1000000000U;
    if (interval == 0) return;
    server->scratch.len = 0;
    for (struct weft__call *call = server->calls, *next; call != NULL; call = next) {
        next = call->next;
        uint64_t since = call->sent_ns != 0 ? call->sent_ns : call->received_ns;
        if (call->conn == NULL || !call->ask.stream || now_ns - since < interval) continue;
        weft__buf_append(&server->scratch, text, sizeof text - 1);
        send_events(call);
    }
}
