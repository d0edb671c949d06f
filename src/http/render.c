/* Answers and stream events, as OpenAI, vLLM and SGLang shape them. */
#include <string.h>

#include "private.h"

static const struct weft__tokenizer *tokenizer_of(const struct weft__call *call)
{
    return weft__engine_view(call->server->engine)->tokenizer;
}

static void comma(struct weft__buf *out)
{
    if (out->len > 0) weft__buf_append(out, ",", 1);
}

/* ---- log-probabilities ---- */

/* A token's text alone; parts of characters become U+FFFD. */
static struct weft__slice token_text(const struct weft__call *call, int32_t token)
{
    struct weft__buf *piece = &call->server->piece;
    struct weft__detok detok = {0};
    piece->len = 0;
    weft__detok_push(&detok, tokenizer_of(call), token, false, piece);
    weft__detok_finish(&detok, piece);
    return (struct weft__slice){piece->data != NULL ? piece->data : "", piece->len};
}

static void put_token(const struct weft__call *call, struct weft__buf *out, int32_t token)
{
    struct weft__slice text = token_text(call, token);
    weft__put_string(out, text.data, text.len);
}

/* {"token text": logprob, ...}: best first, so of two ids with one text the larger stays. */
static void put_top_map(const struct weft__call *call, struct weft__buf *out,
                        const struct weft__logprobs *l)
{
    enum { KEYS_MAX = 64 << 10 };
    struct weft__buf keys; /* each with its quotes, so none is the beginning of another */
    size_t start[WEFT__TOP_LOGPROBS_MAX + 2];
    int count = 0;
    weft__buf_init(&keys, KEYS_MAX);
    weft__buf_puts(out, "{");
    for (int i = 0; i < l->count; i++) {
        bool known = false;
        start[count] = keys.len;
        put_token(call, &keys, l->top_token[i]);
        start[count + 1] = keys.len;
        size_t len = start[count + 1] - start[count];
        for (int j = 0; j < count && !known; j++)
            known = start[j + 1] - start[j] == len &&
                    memcmp(keys.data + start[j], keys.data + start[count], len) == 0;
        if (known) {
            keys.len = start[count];
            continue;
        }
        if (count > 0) weft__buf_puts(out, ",");
        weft__buf_append(out, keys.data + start[count], len);
        weft__buf_puts(out, ":");
        weft__put_logprob(out, l->top_logprob[i]);
        count++;
    }
    weft__buf_puts(out, "}");
    if (keys.failed) out->failed = true;
    weft__buf_free(&keys);
}

static void put_chat_token(const struct weft__call *call, struct weft__buf *out, int32_t token,
                           float logprob)
{
    struct weft__token_text raw = weft__token_bytes(tokenizer_of(call), token);
    weft__buf_puts(out, "{\"token\":");
    put_token(call, out, token);
    weft__buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < raw.len; i++)
        weft__buf_printf(out, i > 0 ? ",%d" : "%d", (unsigned char)raw.data[i]);
    weft__buf_puts(out, "],\"logprob\":");
    weft__put_logprob(out, logprob);
}

static void put_chat_logprob(const struct weft__call *call, struct weft__buf *out,
                             const struct weft__logprobs *l)
{
    put_chat_token(call, out, l->token, l->logprob);
    weft__buf_puts(out, ",\"top_logprobs\":[");
    for (int i = 0; i < l->count && i < call->ask.logprobs; i++) {
        if (i > 0) weft__buf_puts(out, ",");
        put_chat_token(call, out, l->top_token[i], l->top_logprob[i]);
        weft__buf_puts(out, "}");
    }
    weft__buf_puts(out, "]}");
}

/* SGLang's triples: [logprob, id, null]. */
static void put_native_logprob(struct weft__buf *out, float logprob, int32_t token)
{
    weft__buf_puts(out, "[");
    weft__put_logprob(out, logprob);
    weft__buf_printf(out, ",%d,null]", token);
}

static void put_logprob(const struct weft__call *call, struct weft__logprob_lists *lists,
                        const struct weft__logprobs *l)
{
    comma(&lists->token);
    if (call->ask.kind == WEFT__ASK_CHAT) {
        put_chat_logprob(call, &lists->token, l);
        return;
    }
    comma(&lists->top);
    if (call->ask.kind == WEFT__ASK_NATIVE) {
        put_native_logprob(&lists->token, l->logprob, l->token);
        weft__buf_puts(&lists->top, "[");
        for (int i = 0; i < l->count && i < call->ask.logprobs; i++) {
            if (i > 0) weft__buf_puts(&lists->top, ",");
            put_native_logprob(&lists->top, l->top_logprob[i], l->top_token[i]);
        }
        weft__buf_puts(&lists->top, "]");
        return;
    }
    struct weft__slice text = token_text(call, l->token);
    weft__put_string(&lists->token, text.data, text.len);
    comma(&lists->value);
    weft__put_logprob(&lists->value, l->logprob);
    comma(&lists->offset);
    weft__buf_printf(&lists->offset, "%lld", (long long)lists->characters);
    lists->characters += weft__count_characters(text.data, text.len);
    put_top_map(call, &lists->top, l);
}

/* Position 0 has no probability. */
static void put_first_logprob(struct weft__part *part)
{
    const struct weft__call *call = part->call;
    struct weft__logprob_lists *lists = &part->logprobs;
    int32_t token = part->prompt.ids.data[0];
    weft__buf_puts(&lists->top, "null");
    if (call->ask.kind == WEFT__ASK_NATIVE) {
        weft__buf_printf(&lists->token, "[null,%d,null]", token);
        return;
    }
    struct weft__slice text = token_text(call, token);
    weft__put_string(&lists->token, text.data, text.len);
    weft__buf_puts(&lists->value, "null");
    weft__buf_puts(&lists->offset, "0");
    lists->characters = weft__count_characters(text.data, text.len);
}

void weft__render_prompt_logprob(struct weft__part *part, int64_t position,
                                 const struct weft__logprobs *logprobs)
{
    (void)position; /* they come in order */
    put_logprob(part->call, &part->logprobs, logprobs);
}

void weft__render_logprob(struct weft__choice *choice, const struct weft__logprobs *logprobs)
{
    const struct weft__call *call = choice->part->call;
    if (choice->told_tokens == 0 && call->ask.echo)
        choice->logprobs.characters = choice->part->logprobs.characters;
    put_logprob(call, &choice->logprobs, logprobs);
}

/* An array of what the prompt has, when it is echoed, and what the choice has. */
static void put_array(struct weft__buf *out, const char *name, const struct weft__buf *prompt,
                      const struct weft__buf *own)
{
    weft__buf_printf(out, "\"%s\":[", name);
    if (prompt != NULL) weft__buf_append(out, prompt->data, prompt->len);
    if (prompt != NULL && prompt->len > 0 && own->len > 0) weft__buf_puts(out, ",");
    weft__buf_append(out, own->data, own->len);
    weft__buf_puts(out, "]");
    if (own->failed || (prompt != NULL && prompt->failed)) out->failed = true;
}

static void put_logprobs(struct weft__choice *choice, struct weft__buf *out)
{
    const struct weft__call *call = choice->part->call;
    struct weft__logprob_lists *own = &choice->logprobs;
    bool echo = call->ask.echo && !choice->told;
    const struct weft__logprob_lists *prompt = echo ? &choice->part->logprobs : NULL;
    if (call->ask.logprobs < 0 || (own->token.len == 0 && !echo)) {
        weft__buf_puts(out, "null");
        return;
    }
    weft__buf_puts(out, "{");
    if (call->ask.kind == WEFT__ASK_CHAT) {
        put_array(out, "content", NULL, &own->token);
        weft__buf_puts(out, ",\"refusal\":null");
    } else {
        put_array(out, "text_offset", prompt ? &prompt->offset : NULL, &own->offset);
        weft__buf_puts(out, ",");
        put_array(out, "token_logprobs", prompt ? &prompt->value : NULL, &own->value);
        weft__buf_puts(out, ",");
        put_array(out, "tokens", prompt ? &prompt->token : NULL, &own->token);
        weft__buf_puts(out, ",");
        put_array(out, "top_logprobs", prompt ? &prompt->top : NULL, &own->top);
    }
    weft__buf_puts(out, "}");
    own->token.len = own->value.len = own->top.len = own->offset.len = 0;
}

/* ---- pieces ---- */

static void put_ids(struct weft__buf *out, const int32_t *ids, size_t count)
{
    weft__buf_puts(out, "[");
    for (size_t i = 0; i < count; i++) weft__buf_printf(out, i > 0 ? ",%d" : "%d", ids[i]);
    weft__buf_puts(out, "]");
}

static void put_choice_ids(struct weft__choice *choice, struct weft__buf *out)
{
    const struct weft__call *call = choice->part->call;
    if (!call->ask.return_ids) return;
    weft__buf_puts(out, ",\"token_ids\":");
    put_ids(out, (const int32_t *)(const void *)choice->ids.data,
            choice->ids.len / sizeof(int32_t));
    choice->ids.len = 0;
    if (choice->told) return;
    weft__buf_puts(out, ",\"prompt_token_ids\":");
    put_ids(out, choice->part->prompt.ids.data, choice->part->prompt.ids.len);
}

static void put_usage(const struct weft__call *call, struct weft__buf *out)
{
    int64_t prompt = 0, cached = 0, generated = 0;
    for (int p = 0; p < call->parts; p++) {
        prompt += (int64_t)call->part[p].prompt.ids.len;
        cached += call->part[p].cached_tokens;
        for (int s = 0; s < call->ask.samples; s++)
            generated += call->part[p].choice[s].told_tokens;
    }
    weft__buf_printf(out,
                     "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,"
                     "\"total_tokens\":%lld,\"prompt_tokens_details\":{\"cached_tokens\":%lld}}",
                     (long long)prompt, (long long)generated, (long long)(prompt + generated),
                     (long long)cached);
}

static const char *finish_reason(const struct weft__choice *choice)
{
    return weft__finish_name(choice->finish.finish);
}

/* Tool calls are why a chat stops, unless it was cut off. */
static const char *chat_finish_reason(const struct weft__choice *choice)
{
    bool calls = choice->call_count > 0 && choice->finish.finish == WEFT__FINISH_STOP;
    return calls ? "tool_calls" : finish_reason(choice);
}

/* What ended it: a stop string, an id, or null. SGLang names the end mark, too; vLLM does not. */
static void put_stop_reason(const struct weft__choice *choice, struct weft__buf *out, bool eos)
{
    const struct weft__ask *ask = &choice->part->call->ask;
    bool asked = eos;
    if (choice->matched >= 0) {
        const struct weft__slice stop = ask->stops.stop[choice->matched];
        weft__put_string(out, stop.data, stop.len);
        return;
    }
    for (int i = 0; i < ask->stop_id_count; i++)
        asked |= ask->stop_ids[i] == choice->finish.stop_token;
    if (asked && choice->finish.finish == WEFT__FINISH_STOP && choice->finish.stop_token >= 0)
        weft__buf_printf(out, "%d", choice->finish.stop_token);
    else
        weft__buf_puts(out, "null");
}

static void put_finish(const struct weft__choice *choice, struct weft__buf *out)
{
    weft__buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", chat_finish_reason(choice));
    put_stop_reason(choice, out, false);
    weft__buf_puts(out, ",\"matched_stop\":");
    put_stop_reason(choice, out, true);
}

/* ---- what a chat says ---- */

void weft__render_call(struct weft__choice *choice, struct weft__slice name,
                       struct weft__slice arguments)
{
    const struct weft__call *call = choice->part->call;
    struct weft__buf *out = &choice->calls;
    char id[33];
    weft__server_new_id(call->server, id);
    weft__buf_puts(out, out->len > 0 ? ",{" : "{");
    if (call->ask.stream) weft__buf_printf(out, "\"index\":%d,", choice->call_count);
    weft__buf_printf(out, "\"id\":\"call_%s\",\"type\":\"function\",\"function\":{\"name\":", id);
    weft__put_string(out, name.data, name.len);
    weft__buf_puts(out, ",\"arguments\":");
    weft__put_string(out, arguments.data, arguments.len);
    weft__buf_puts(out, "}}");
    choice->call_count++;
}

bool weft__render_pending(const struct weft__choice *choice)
{
    return choice->text.len > 0 || choice->reasoning.len > 0 || choice->calls.len > 0;
}

/* A member of an object whose inside begins at `start`. */
static void put_member(struct weft__buf *out, size_t start, const char *name)
{
    weft__buf_printf(out, out->len > start ? ",\"%s\":" : "\"%s\":", name);
}

/* The inside of a whole message, or of what a stream adds to it. */
static void put_said(struct weft__choice *choice, struct weft__buf *out, bool first, bool whole)
{
    size_t start = out->len;
    bool other = choice->reasoning.len > 0 || choice->calls.len > 0;
    if (first) weft__buf_puts(out, "\"role\":\"assistant\"");
    if (choice->text.len > 0 || !other) {
        put_member(out, start, "content");
        weft__put_string(out, choice->text.data, choice->text.len);
    } else if (whole) {
        put_member(out, start, "content");
        weft__buf_puts(out, "null");
    }
    if (choice->reasoning.len > 0) {
        put_member(out, start, "reasoning_content");
        weft__put_string(out, choice->reasoning.data, choice->reasoning.len);
    }
    if (choice->calls.len > 0) {
        put_member(out, start, "tool_calls");
        weft__buf_puts(out, "[");
        weft__buf_append(out, choice->calls.data, choice->calls.len);
        weft__buf_puts(out, "]");
    }
    if (choice->text.failed || choice->reasoning.failed || choice->calls.failed) out->failed = true;
    choice->text.len = choice->reasoning.len = choice->calls.len = 0;
}

/* ---- native ---- */

static void put_native_finish(const struct weft__choice *choice, struct weft__buf *out)
{
    if (!choice->finished) {
        weft__buf_puts(out, "null");
        return;
    }
    weft__buf_printf(out, "{\"type\":\"%s\"", finish_reason(choice));
    if (choice->finish.finish == WEFT__FINISH_STOP) {
        weft__buf_puts(out, ",\"matched\":");
        put_stop_reason(choice, out, true);
    } else if (choice->finish.finish == WEFT__FINISH_LENGTH) {
        weft__buf_printf(out, ",\"length\":%lld", (long long)choice->finish.generated_tokens);
    }
    weft__buf_puts(out, "}");
}

static void put_native(struct weft__choice *choice, struct weft__buf *out)
{
    struct weft__call *call = choice->part->call;
    const struct weft__logprob_lists *prompt = &choice->part->logprobs;
    weft__buf_puts(out, "{\"text\":");
    weft__put_string(out, choice->text.data, choice->text.len);
    if (call->ask.return_ids) {
        weft__buf_puts(out, ",\"output_ids\":");
        put_ids(out, (const int32_t *)(const void *)choice->ids.data,
                choice->ids.len / sizeof(int32_t));
    }
    weft__buf_puts(out, ",\"meta_info\":{\"id\":");
    weft__put_cstring(out, call->id);
    weft__buf_puts(out, ",\"finish_reason\":");
    put_native_finish(choice, out);
    weft__buf_printf(out,
                     ",\"prompt_tokens\":%zu,\"completion_tokens\":%lld,\"cached_tokens\":%lld,"
                     "\"e2e_latency\":%.6f",
                     choice->part->prompt.ids.len, (long long)choice->told_tokens,
                     (long long)choice->part->cached_tokens,
                     (double)(weft__now_ns() - call->received_ns) / 1e9);
    if (call->ask.logprobs >= 0) {
        weft__buf_puts(out, ",");
        put_array(out, "input_token_logprobs", NULL, &prompt->token);
        weft__buf_puts(out, ",");
        put_array(out, "output_token_logprobs", NULL, &choice->logprobs.token);
        weft__buf_puts(out, ",");
        put_array(out, "input_top_logprobs", NULL, &prompt->top);
        weft__buf_puts(out, ",");
        put_array(out, "output_top_logprobs", NULL, &choice->logprobs.top);
    }
    weft__buf_puts(out, "}");
    if (call->parts * call->ask.samples > 1 && call->ask.stream)
        weft__buf_printf(out, ",\"index\":%d", choice->index);
    weft__buf_puts(out, "}");
}

/* ---- streams ---- */

static void begin_event(struct weft__call *call, struct weft__buf *out)
{
    weft__buf_puts(out, "data: ");
    weft__buf_append(out, call->prefix.data, call->prefix.len);
}

static void end_event(struct weft__call *call, struct weft__buf *out)
{
    if (call->ask.continuous_usage) {
        weft__buf_puts(out, ",");
        put_usage(call, out);
    } else if (call->ask.include_usage) {
        weft__buf_puts(out, ",\"usage\":null");
    }
    weft__buf_puts(out, "}\n\n");
}

/* One event with the choice's new text; finishing completions say in it why they end. */
static void put_event(struct weft__choice *choice, struct weft__buf *out, bool finish)
{
    struct weft__call *call = choice->part->call;
    bool chat = call->ask.kind == WEFT__ASK_CHAT;
    begin_event(call, out);
    weft__buf_printf(out, ",\"choices\":[{\"index\":%d,", choice->index);
    if (chat && finish) {
        weft__buf_puts(out, "\"delta\":{}");
    } else if (chat) {
        weft__buf_puts(out, "\"delta\":{");
        put_said(choice, out, !choice->told, false);
        weft__buf_puts(out, "}");
    } else {
        weft__buf_puts(out, "\"text\":");
        weft__put_string(out, choice->text.data, choice->text.len);
    }
    weft__buf_puts(out, ",\"logprobs\":");
    put_logprobs(choice, out);
    put_choice_ids(choice, out);
    if (finish)
        put_finish(choice, out);
    else
        weft__buf_puts(out, ",\"finish_reason\":null");
    weft__buf_puts(out, "}]");
    end_event(call, out);
    choice->text.len = 0;
    choice->told = true;
}

void weft__render_event(struct weft__choice *choice, struct weft__buf *out)
{
    if (choice->text.failed) out->failed = true;
    if (choice->part->call->ask.kind != WEFT__ASK_NATIVE) {
        put_event(choice, out, false);
        return;
    }
    weft__buf_puts(out, "data: ");
    put_native(choice, out);
    weft__buf_puts(out, "\n\n");
    choice->told = true;
}

void weft__render_finish(struct weft__choice *choice, struct weft__buf *out)
{
    const struct weft__ask *ask = &choice->part->call->ask;
    if (ask->kind == WEFT__ASK_NATIVE) {
        weft__render_event(choice, out);
        return;
    }
    bool left = !choice->told || weft__render_pending(choice) || choice->logprobs.token.len > 0;
    if (ask->kind == WEFT__ASK_CHAT && left) put_event(choice, out, false);
    put_event(choice, out, true);
}

void weft__render_end(struct weft__call *call, struct weft__buf *out)
{
    if (call->ask.include_usage && call->ask.kind != WEFT__ASK_NATIVE) {
        begin_event(call, out);
        weft__buf_puts(out, ",\"choices\":[],");
        put_usage(call, out);
        weft__buf_puts(out, "}\n\n");
    }
    weft__buf_puts(out, "data: [DONE]\n\n");
}

void weft__render_error(const struct weft__refusal *refusal, struct weft__buf *out)
{
    weft__buf_puts(out, "data: ");
    weft__put_refusal(out, refusal);
    weft__buf_puts(out, "\n\ndata: [DONE]\n\n");
}

/* ---- whole answers ---- */

void weft__render_begin(struct weft__call *call)
{
    static const char *const objects[][2] = {
        [WEFT__ASK_COMPLETION] = {"text_completion", "text_completion"},
        [WEFT__ASK_CHAT] = {"chat.completion", "chat.completion.chunk"},
        [WEFT__ASK_NATIVE] = {"", ""},
    };
    const struct weft__ask *ask = &call->ask;
    weft__buf_puts(&call->prefix, "{\"id\":");
    weft__put_cstring(&call->prefix, call->id);
    weft__buf_printf(&call->prefix, ",\"object\":\"%s\",\"created\":%lld,\"model\":",
                     objects[ask->kind][ask->stream], (long long)call->created);
    weft__put_cstring(&call->prefix, call->server->options.model);
    for (int p = 0; p < call->parts; p++) {
        struct weft__part *part = &call->part[p];
        if ((ask->echo && ask->logprobs >= 0) || ask->logprobs_from == 0) put_first_logprob(part);
        for (int s = 0; s < ask->samples && ask->echo; s++) {
            struct weft__buf *text = &part->choice[s].text;
            if (part->prompt.text.data != NULL)
                weft__buf_append(text, part->prompt.text.data, part->prompt.text.len);
            else
                weft__tokenizer_decode(tokenizer_of(call), part->prompt.ids.data,
                                       part->prompt.ids.len, false, text);
        }
    }
}

static void put_choice(struct weft__choice *choice, struct weft__buf *out)
{
    struct weft__call *call = choice->part->call;
    weft__buf_printf(out, "{\"index\":%d,", choice->index);
    if (call->ask.kind == WEFT__ASK_CHAT) {
        weft__buf_puts(out, "\"message\":{");
        put_said(choice, out, true, true);
        weft__buf_puts(out, ",\"refusal\":null}");
    } else {
        weft__buf_puts(out, "\"text\":");
        weft__put_string(out, choice->text.data, choice->text.len);
    }
    weft__buf_puts(out, ",\"logprobs\":");
    put_logprobs(choice, out);
    put_choice_ids(choice, out);
    put_finish(choice, out);
    weft__buf_puts(out, "}");
    if (choice->text.failed) out->failed = true;
}

void weft__render_answer(struct weft__call *call, struct weft__buf *out)
{
    int count = call->parts * call->ask.samples;
    bool native = call->ask.kind == WEFT__ASK_NATIVE;
    bool list = !native || count > 1;
    if (!native) {
        weft__buf_append(out, call->prefix.data, call->prefix.len);
        weft__buf_puts(out, ",\"choices\":");
    }
    if (list) weft__buf_puts(out, "[");
    for (int i = 0; i < count; i++) {
        if (i > 0) weft__buf_puts(out, ",");
        if (native)
            put_native(&call->choice[i], out);
        else
            put_choice(&call->choice[i], out);
    }
    if (list) weft__buf_puts(out, "]");
    if (native) return;
    weft__buf_puts(out, ",");
    put_usage(call, out);
    weft__buf_puts(out, "}");
}
