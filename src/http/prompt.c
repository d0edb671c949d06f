/* Prompts in all their forms -> token ids, and the tokenize routes. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "private.h"

/* ---- text ---- */

static bool encode(const struct weft__server *server, struct weft__slice text, unsigned flags,
                   const char *param, struct weft__ids *ids, struct weft__refusal *refusal)
{
    const struct weft__engine_view *view = weft__engine_view(server->engine);
    weft_error err;
    if (text.len > server->text_max)
        return weft__refuse(refusal, 400, "context_length_exceeded", param,
                            "a text of %zu bytes cannot fit into the context of %lld tokens",
                            text.len, (long long)view->plan->context);
    if (weft__tokenizer_encode(view->tokenizer, text.data, text.len, flags, ids, &err) != WEFT_OK) {
        (void)weft__refuse_error(refusal, &err);
        return false;
    }
    return true;
}

static bool read_ids(const json_t *list, const char *param, struct weft__ids *ids,
                     struct weft__refusal *refusal)
{
    size_t count = json_array_size(list), i;
    json_t *value;
    ids->data = malloc((count + 1) * sizeof *ids->data);
    if (ids->data == NULL)
        return weft__refuse(refusal, 500, "out_of_memory", param, "no memory for %zu ids", count);
    ids->cap = count + 1;
    json_array_foreach (list, i, value) {
        int64_t id;
        if (!weft__json_integer(value, &id) || id < 0 || id > INT32_MAX)
            return weft__refuse(refusal, 400, "invalid_value", param,
                                "%s: entry %zu is no token id", param, i);
        ids->data[ids->len++] = (int32_t)id;
    }
    return true;
}

/* ---- messages ---- */

/* Concatenates the text parts of a content list. NULL: refused. */
static json_t *flatten(const json_t *parts, size_t index, struct weft__refusal *refusal)
{
    struct weft__buf text;
    json_t *part;
    size_t i;
    weft__buf_init(&text, WEFT__MAX_TEXT);
    weft__buf_puts(&text, "");
    json_array_foreach (parts, i, part) {
        const char *type = json_string_value(weft__field(part, "type"));
        const json_t *piece = weft__field(part, "text");
        if (type == NULL || (strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0) ||
            !json_is_string(piece)) {
            (void)weft__refuse(refusal, 400, "unsupported", "messages",
                               "messages[%zu].content[%zu]: this model takes text parts only",
                               index, i);
            weft__buf_free(&text);
            return NULL;
        }
        weft__buf_append(&text, json_string_value(piece), json_string_length(piece));
    }
    json_t *out = text.failed ? NULL : json_stringn_nocheck(text.data, text.len);
    if (out == NULL)
        (void)weft__refuse(refusal, 500, "out_of_memory", "messages", "no memory for a message");
    weft__buf_free(&text);
    return out;
}

static bool read_message(json_t *message, size_t index, struct weft__refusal *refusal)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    const char *role = json_string_value(weft__field(message, "role"));
    bool known = false;
    for (size_t i = 0; role != NULL && i < WEFT__COUNT(roles); i++)
        known |= strcmp(role, roles[i]) == 0;
    if (!known)
        return weft__refuse(refusal, 400, "invalid_value", "messages",
                            "messages[%zu].role must be one of system, developer, user, "
                            "assistant, tool, function",
                            index);
    bool optional = strcmp(role, "assistant") == 0; /* its content, beside tool calls */
    /* Templates know no developer; it is the system's newer name. */
    if (strcmp(role, "developer") == 0 &&
        json_object_set_new(message, "role", json_string("system")) != 0)
        return weft__refuse(refusal, 500, "out_of_memory", "messages", "no memory for a message");
    const json_t *content = weft__field(message, "content");
    if (content == NULL) {
        if (!optional)
            return weft__refuse(refusal, 400, "invalid_value", "messages",
                                "messages[%zu].content is missing", index);
        return true;
    }
    if (json_is_array(content)) {
        json_t *text = flatten(content, index, refusal);
        if (text == NULL) return false;
        if (json_object_set_new(message, "content", text) != 0)
            return weft__refuse(refusal, 500, "out_of_memory", "messages", "no memory");
    } else if (!json_is_string(content)) {
        return weft__refuse(refusal, 400, "invalid_type", "messages",
                            "messages[%zu].content must be a string or a list of parts", index);
    }
    return true;
}

/* The text of the last message, which is to be continued instead of answered. */
static bool cut_continued(struct weft__buf *text, const json_t *messages,
                          struct weft__refusal *refusal)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const json_t *content = weft__field(last, "content");
    size_t len = json_string_length(content);
    while (len > 0 && strchr(" \n\t", json_string_value(content)[len - 1]) != NULL) len--;
    if (len > 0 && text->len >= len)
        for (size_t at = text->len - len + 1; at-- > 0;)
            if (memcmp(text->data + at, json_string_value(content), len) == 0) {
                text->len = at + len;
                return true;
            }
    return weft__refuse(refusal, 400, "invalid_value", "continue_final_message",
                        "the last message has no text that the template keeps");
}

static bool render_messages(const struct weft__server *server, json_t *body, struct weft__buf *text,
                            struct weft__refusal *refusal)
{
    json_t *messages = weft__field(body, "messages"), *message;
    json_t *kwargs = weft__field(body, "chat_template_kwargs");
    bool generation_prompt = true, continued = false;
    size_t i;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return weft__refuse(refusal, 400, "invalid_value", "messages",
                            "messages must be a list with at least one message");
    json_array_foreach (messages, i, message)
        if (!read_message(message, i, refusal)) return false;
    if (kwargs != NULL && !json_is_object(kwargs))
        return weft__refuse(refusal, 400, "invalid_type", "chat_template_kwargs",
                            "chat_template_kwargs must be an object");
    if (!weft__field_bool(body, "add_generation_prompt", &generation_prompt, refusal) ||
        !weft__field_bool(body, "continue_final_message", &continued, refusal))
        return false;
    const char *choice = json_string_value(weft__field(body, "tool_choice"));
    json_t *tools = weft__field(body, "tools");
    if (choice != NULL && strcmp(choice, "none") == 0) tools = NULL;
    if (json_array_size(tools) > 0 && server->template != NULL &&
        strstr(server->template, "tools") == NULL)
        return weft__refuse(refusal, 400, "unsupported", "tools",
                            "this model's chat template ignores tools: the model would not know "
                            "of them; leave them out, or set tool_choice to \"none\"");
    const struct weft__chat_input input = {
        .messages = messages,
        .tools = tools,
        .kwargs = kwargs,
        .add_generation_prompt = generation_prompt && !continued,
        .now = time(NULL),
    };
    weft_error err;
    if (weft__chat_render(weft__engine_view(server->engine)->chat, &input, text, &err) != WEFT_OK)
        return weft__refuse(refusal, 400, "invalid_messages", "messages", "%s", err.text);
    return !continued || cut_continued(text, messages, refusal);
}

static bool ends_with(const struct weft__buf *text, const char *end)
{
    size_t len = text->len, n = strlen(end);
    while (len > 0 && strchr(" \n", text->data[len - 1]) != NULL) len--;
    return len >= n && memcmp(text->data + len - n, end, n) == 0;
}

static bool read_messages(const struct weft__server *server, json_t *body,
                          struct weft__prompt *prompt, struct weft__refusal *refusal)
{
    struct weft__buf text;
    weft__buf_init(&text, WEFT__MAX_TEXT);
    weft__buf_puts(&text, "");
    bool ok = render_messages(server, body, &text, refusal) &&
              encode(server, (struct weft__slice){text.data, text.len}, WEFT__PARSE_SPECIAL,
                     "messages", &prompt->ids, refusal);
    if (ok && server->thinks)
        prompt->thinking = ends_with(&text, "<think>")    ? WEFT__THINKS_ALREADY
                           : ends_with(&text, "</think>") ? WEFT__THINKS_NOT
                                                          : WEFT__THINKS_MAYBE;
    weft__buf_free(&text);
    return ok;
}

/* ---- prompts ---- */

static bool read_prompt(const struct weft__server *server, const struct weft__ask *ask,
                        const json_t *value, const char *param, struct weft__prompt *prompt,
                        struct weft__refusal *refusal)
{
    if (json_is_string(value)) {
        unsigned flags = WEFT__PARSE_SPECIAL | (ask->add_special ? WEFT__ADD_SPECIAL : 0U);
        prompt->text = (struct weft__slice){json_string_value(value), json_string_length(value)};
        return encode(server, prompt->text, flags, param, &prompt->ids, refusal);
    }
    if (json_is_array(value)) return read_ids(value, param, &prompt->ids, refusal);
    return weft__refuse(refusal, 400, "invalid_type", param,
                        "%s must be a string, a list of strings, a list of token ids, or a list of "
                        "lists of token ids",
                        param);
}

/* The prompt field as a list of prompts; a single one counts as such. */
static const json_t *prompt_at(const json_t *value, bool list, size_t i)
{
    return list ? json_array_get(value, i) : value;
}

static bool read_all(const struct weft__server *server, const struct weft__ask *ask,
                     struct weft__prompt *prompts, int count, struct weft__refusal *refusal)
{
    const char *param = "prompt";
    if (ask->kind == WEFT__ASK_CHAT) return read_messages(server, ask->body, prompts, refusal);
    if (ask->kind == WEFT__ASK_NATIVE)
        param = weft__field(ask->body, "text") != NULL ? "text" : "input_ids";
    const json_t *value = weft__field(ask->body, param);
    bool list = json_is_array(value) && !json_is_number(json_array_get(value, 0));
    for (int i = 0; i < count; i++)
        if (!read_prompt(server, ask, prompt_at(value, list, (size_t)i), param, &prompts[i],
                         refusal))
            return false;
    return true;
}

/* How many prompts the ask has; 0: none that make sense. */
static size_t count_prompts(const struct weft__ask *ask)
{
    if (ask->kind == WEFT__ASK_CHAT) return 1;
    const json_t *value = weft__field(ask->body, "prompt");
    if (ask->kind == WEFT__ASK_NATIVE) {
        value = weft__field(ask->body, "text");
        if (value == NULL) value = weft__field(ask->body, "input_ids");
    }
    if (json_is_array(value) && !json_is_number(json_array_get(value, 0)))
        return json_array_size(value);
    return value != NULL;
}

bool weft__prompts_read(const struct weft__server *server, const struct weft__ask *ask,
                        struct weft__prompt **out, int *count, struct weft__refusal *refusal)
{
    const char *param = ask->kind == WEFT__ASK_NATIVE ? "text" : "prompt";
    size_t n = count_prompts(ask);
    if (n == 0)
        return weft__refuse(refusal, 400, "missing_required_parameter", param,
                            "%s is missing or empty", param);
    if (n > WEFT__PROMPTS_MAX || n * (size_t)ask->samples > WEFT__PROMPTS_MAX)
        return weft__refuse(refusal, 400, "invalid_value", param, "prompts times n is more than %d",
                            WEFT__PROMPTS_MAX);
    struct weft__prompt *prompts = calloc(n, sizeof *prompts);
    if (prompts == NULL)
        return weft__refuse(refusal, 500, "out_of_memory", param, "no memory for %zu prompts", n);
    bool ok = read_all(server, ask, prompts, (int)n, refusal);
    for (size_t i = 0; ok && i < n; i++)
        if (prompts[i].ids.len == 0)
            ok = weft__refuse(refusal, 400, "invalid_value", param, "prompt %zu has no tokens", i);
    if (!ok) {
        weft__prompts_free(prompts, (int)n);
        return false;
    }
    *out = prompts;
    *count = (int)n;
    return true;
}

void weft__prompts_free(struct weft__prompt *prompts, int count)
{
    for (int i = 0; i < count; i++) weft__ids_free(&prompts[i].ids);
    free(prompts);
}

/* ---- tokenize, detokenize ---- */

static void put_ids(struct weft__buf *out, const struct weft__ids *ids)
{
    weft__buf_puts(out, "[");
    for (size_t i = 0; i < ids->len; i++) weft__buf_printf(out, i > 0 ? ",%d" : "%d", ids->data[i]);
    weft__buf_puts(out, "]");
}

static void put_token_strings(const struct weft__server *server, struct weft__buf *out,
                              const struct weft__ids *ids)
{
    const struct weft__tokenizer *tokenizer = weft__engine_view(server->engine)->tokenizer;
    weft__buf_puts(out, "[");
    for (size_t i = 0; i < ids->len; i++) {
        struct weft__token_text text = weft__token_bytes(tokenizer, ids->data[i]);
        if (i > 0) weft__buf_puts(out, ",");
        weft__put_string(out, text.data, text.len);
    }
    weft__buf_puts(out, "]");
}

static bool tokenize(const struct weft__server *server, json_t *body, struct weft__prompt *prompt,
                     bool *strings, struct weft__refusal *refusal)
{
    struct weft__ask ask = {.kind = WEFT__ASK_COMPLETION, .body = body, .add_special = true};
    if (!weft__field_bool(body, "add_special_tokens", &ask.add_special, refusal) ||
        !weft__field_bool(body, "return_token_strs", strings, refusal))
        return false;
    if (weft__field(body, "messages") != NULL) return read_messages(server, body, prompt, refusal);
    const json_t *value = weft__field(body, "prompt");
    if (value == NULL) value = weft__field(body, "text");
    if (!json_is_string(value))
        return weft__refuse(refusal, 400, "invalid_type", "prompt", "prompt must be a string");
    return read_prompt(server, &ask, value, "prompt", prompt, refusal);
}

static void read_tokenize(struct weft__reading *r)
{
    struct weft__prompt prompt = {0};
    bool strings = false;
    json_t *body = weft__body_parse(&r->body, &r->refusal);
    if (body != NULL && tokenize(r->server, body, &prompt, &strings, &r->refusal)) {
        weft__buf_printf(&r->answer,
                         "{\"count\":%zu,\"max_model_len\":%lld,\"tokens\":", prompt.ids.len,
                         (long long)weft__engine_view(r->server->engine)->plan->context);
        put_ids(&r->answer, &prompt.ids);
        weft__buf_puts(&r->answer, ",\"token_strs\":");
        if (strings)
            put_token_strings(r->server, &r->answer, &prompt.ids);
        else
            weft__buf_puts(&r->answer, "null");
        weft__buf_puts(&r->answer, "}");
    }
    weft__ids_free(&prompt.ids);
    json_decref(body);
}

static bool detokenize(const struct weft__server *server, const json_t *body,
                       struct weft__buf *text, struct weft__refusal *refusal)
{
    const struct weft__tokenizer *tokenizer = weft__engine_view(server->engine)->tokenizer;
    const json_t *list = weft__field(body, "tokens");
    struct weft__ids ids = {0};
    bool skip_special = false;
    if (!json_is_array(list))
        return weft__refuse(refusal, 400, "invalid_type", "tokens", "tokens must be a list of ids");
    bool ok = weft__field_bool(body, "skip_special_tokens", &skip_special, refusal) &&
              read_ids(list, "tokens", &ids, refusal);
    if (ok) weft__tokenizer_decode(tokenizer, ids.data, ids.len, skip_special, text);
    weft__ids_free(&ids);
    return ok;
}

static void read_detokenize(struct weft__reading *r)
{
    struct weft__buf text;
    json_t *body = weft__body_parse(&r->body, &r->refusal);
    weft__buf_init(&text, WEFT__ANSWER_MAX);
    if (body != NULL && detokenize(r->server, body, &text, &r->refusal)) {
        weft__buf_puts(&r->answer, "{\"prompt\":");
        weft__put_string(&r->answer, text.data, text.len);
        weft__buf_puts(&r->answer, ",\"text\":");
        weft__put_string(&r->answer, text.data, text.len);
        weft__buf_puts(&r->answer, "}");
        r->answer.failed |= text.failed;
    }
    weft__buf_free(&text);
    json_decref(body);
}

static void answer(struct weft__reading *r)
{
    if (r->conn == NULL) return;
    if (r->refusal.status != 0)
        weft__respond_refusal(r->conn, &r->refusal);
    else
        weft__respond_json(r->conn, 200, &r->answer);
}

void weft__route_tokenize(struct weft__conn *conn)
{
    weft__read_body(conn, NULL, read_tokenize, answer);
}

void weft__route_detokenize(struct weft__conn *conn)
{
    weft__read_body(conn, NULL, read_detokenize, answer);
}
