/* Chat templates of a model directory, and what a conversation goes through before one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat.h"
#include "jinja.h"

#ifndef JANSSON_THREAD_SAFE_REFCOUNT
#error "renders of several threads share the texts of special tokens: jansson must count atomically"
#endif

enum { MAX_CONFIG_FILE = 64 << 20 };

/* What a template expects of a conversation; all false suits most. See probe(). */
struct habits {
    bool text_arguments; /* arguments of calls stay JSON text */
    bool null_content;   /* a missing content stays null */
    bool part_lists;     /* content may be a list of parts */
    bool only_parts;     /* and must be one */
};

struct weft__chat {
    struct weft__template *plain, *tools; /* tools: NULL when plain serves both */
    struct habits plain_habits, tools_habits;
    json_t *tokens;      /* name -> text: what templates see of tokenizer_config.json */
    weft_error unusable; /* why plain is NULL */
};

/* ---- JSON text to a tree ----
 * jansson's own parser loses characters of strings when memory runs out, without a word. */

struct reader {
    struct weft__json json;
    struct weft__buf scratch;
    bool no_room; /* a number beyond 64 bits or a double's range: null in the tree */
};

static json_t *read_value(struct reader *reader);

static json_t *read_text(struct reader *reader)
{
    struct weft__json_text text;
    if (!weft__json_string(&reader->json, &reader->scratch, &text)) return NULL;
    return json_stringn_nocheck(text.data, text.len);
}

static json_t *read_number(struct reader *reader)
{
    struct weft__json integer = reader->json;
    int64_t value;
    char *end, text[400];
    if (weft__json_int(&integer, &value)) {
        reader->json = integer;
        return json_integer(value);
    }
    const char *start = reader->json.at;
    weft__json_skip(&reader->json);
    if (reader->json.error != NULL) return NULL;
    size_t len = (size_t)(reader->json.at - start);
    bool whole = len >= sizeof text;
    if (!whole) {
        memcpy(text, start, len);
        text[len] = '\0';
        whole = strcspn(text, ".eE") == len;
    }
    double real = whole ? HUGE_VAL : strtod(text, &end);
    reader->no_room = reader->no_room || isinf(real);
    return isinf(real) ? json_null() : json_real(real);
}

static json_t *read_object(struct reader *reader)
{
    struct weft__json_text name;
    json_t *out = json_object();
    (void)weft__json_enter(&reader->json, WEFT__JSON_OBJECT);
    while (weft__json_member(&reader->json, &reader->scratch, &name)) {
        json_t *key = json_stringn_nocheck(name.data, name.len); /* the scratch is used again */
        json_t *value = key != NULL ? read_value(reader) : NULL;
        int failed = json_object_setn_new_nocheck(out, json_string_value(key),
                                                  json_string_length(key), value);
        json_decref(key);
        if (failed != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

static json_t *read_array(struct reader *reader)
{
    json_t *out = json_array();
    (void)weft__json_enter(&reader->json, WEFT__JSON_ARRAY);
    while (weft__json_item(&reader->json))
        if (json_array_append_new(out, read_value(reader)) != 0) {
            json_decref(out);
            return NULL;
        }
    return out;
}

/* NULL: the reader's error, or out of memory. At most WEFT__JSON_MAX_DEPTH calls deep. */
static json_t *read_value(struct reader *reader)
{
    bool truth;
    switch (weft__json_kind(&reader->json)) {
    case WEFT__JSON_OBJECT:
        return read_object(reader);
    case WEFT__JSON_ARRAY:
        return read_array(reader);
    case WEFT__JSON_STRING:
        return read_text(reader);
    case WEFT__JSON_NUMBER:
        return read_number(reader);
    case WEFT__JSON_BOOL:
        return weft__json_bool(&reader->json, &truth) ? json_boolean(truth) : NULL;
    default: /* null, or what is no value */
        weft__json_skip(&reader->json);
        return reader->json.error == NULL ? json_null() : NULL;
    }
}

static weft_status parse_json(const char *name, const char *text, size_t len, json_t **out,
                              bool *no_room, weft_error *err)
{
    struct reader reader = {.no_room = false};
    weft__json_init(&reader.json, text, len);
    weft__buf_init(&reader.scratch, len);
    *out = read_value(&reader);
    if (*out != NULL) (void)weft__json_end(&reader.json);
    weft_status status = weft__json_check(&reader.json, name, err);
    if (status == WEFT_OK && *out == NULL) status = weft__fail_oom(err, len, name);
    if (status != WEFT_OK) {
        json_decref(*out);
        *out = NULL;
    }
    *no_room = reader.no_room;
    weft__buf_free(&reader.scratch);
    return status;
}

/* ---- reading the directory ---- */

static char *joined(const char *a, const char *b)
{
    size_t size = strlen(a) + strlen(b) + 1;
    char *out = malloc(size);
    if (out != NULL) (void)snprintf(out, size, "%s%s", a, b);
    return out;
}

/* *out NULL when there is no such file. */
static weft_status read_config(const char *path, json_t **out, weft_error *err)
{
    char *text;
    size_t len;
    *out = NULL;
    weft_status status = weft__read_file(path, MAX_CONFIG_FILE, &text, &len, err);
    if (status == WEFT_NOT_FOUND) return WEFT_OK;
    if (status != WEFT_OK) return status;
    bool no_room; /* model_max_length often is beyond 64 bits; only strings matter here */
    status = parse_json(path, text, len, out, &no_room, err);
    free(text);
    if (status == WEFT_OK && !json_is_object(*out)) {
        status = weft__fail(err, WEFT_FORMAT, "%s: not a JSON object", path);
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

/* A token is given as its text, or as an object with `content`. */
static json_t *token_text(json_t *value)
{
    json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
    return json_is_string(text) ? text : NULL;
}

static int collect_named(json_t *tokens, json_t *from)
{
    const char *key;
    json_t *value;
    int failed = 0;
    json_object_foreach (from, key, value) {
        size_t len = strlen(key);
        json_t *text = token_text(value);
        if (len > 6 && strcmp(key + len - 6, "_token") == 0 && text != NULL)
            failed |= json_object_set(tokens, key, text);
    }
    return failed;
}

/* bos_token, eos_token, ... and the list additional_special_tokens, as transformers hands them to
 * templates. */
static weft_status collect_tokens(struct weft__chat *chat, json_t *config, weft_error *err)
{
    json_t *value, *more = json_array();
    size_t i;
    int failed = (chat->tokens = json_object()) == NULL;
    failed |= collect_named(chat->tokens, config);
    failed |= collect_named(chat->tokens, json_object_get(config, "extra_special_tokens"));
    json_array_foreach (json_object_get(config, "additional_special_tokens"), i, value)
        if (token_text(value) != NULL) failed |= json_array_append(more, token_text(value));
    if (json_array_size(more) > 0)
        failed |= json_object_set(chat->tokens, "additional_special_tokens", more);
    json_decref(more);
    return failed != 0 ? weft__fail_oom(err, 0, "special tokens") : WEFT_OK;
}

static json_t *named_template(json_t *list, const char *name)
{
    size_t i;
    json_t *entry;
    json_array_foreach (list, i, entry) {
        json_t *text = json_object_get(entry, "template");
        const char *key = json_string_value(json_object_get(entry, "name"));
        if (key != NULL && strcmp(key, name) == 0 && json_is_string(text)) return text;
    }
    return NULL;
}

static weft_status parse_json_text(const char *path, json_t *text, struct weft__template **out,
                                   weft_error *err)
{
    char *name = joined(path, " (chat_template)");
    if (name == NULL) return weft__fail_oom(err, strlen(path), "a name");
    weft_status status =
        weft__template_parse(name, json_string_value(text), json_string_length(text), out, err);
    free(name);
    return status;
}

/* The templates in tokenizer_config.json: one text, or a list of named ones. */
static weft_status config_templates(struct weft__chat *chat, const char *path, json_t *config,
                                    weft_error *err)
{
    json_t *given = json_object_get(config, "chat_template");
    if (json_is_string(given)) return parse_json_text(path, given, &chat->plain, err);
    json_t *plain = named_template(given, "default"), *tools = named_template(given, "tool_use");
    if (plain == NULL && json_array_size(given) > 0)
        return weft__fail(err, WEFT_NOT_FOUND,
                          "%s: none of the chat templates is named \"default\"; give the prompt "
                          "without a template (run --raw, /v1/completions)",
                          path);
    weft_status status = plain != NULL ? parse_json_text(path, plain, &chat->plain, err) : WEFT_OK;
    if (status == WEFT_OK && tools != NULL)
        status = parse_json_text(path, tools, &chat->tools, err);
    return status;
}

/* chat_template.jinja goes before tokenizer_config.json. */
static weft_status read_templates(struct weft__chat *chat, const char *dir, const char *config_path,
                                  json_t *config, weft_error *err)
{
    char *path = joined(dir, "/chat_template.jinja"), *text;
    size_t len;
    if (path == NULL) return weft__fail_oom(err, strlen(dir), "a path");
    weft_status status = weft__read_file(path, WEFT__TEMPLATE_MAX_TEXT, &text, &len, err);
    if (status == WEFT_OK) {
        status = weft__template_parse(path, text, len, &chat->plain, err);
        free(text);
    } else if (status == WEFT_NOT_FOUND) {
        status = config_templates(chat, config_path, config, err);
        if (status == WEFT_OK && chat->plain == NULL)
            status = weft__fail(err, WEFT_NOT_FOUND,
                                "%s: no chat template: looked for chat_template.jinja and for "
                                "chat_template in tokenizer_config.json; give the prompt without "
                                "a template (run --raw, /v1/completions)",
                                dir);
    }
    free(path);
    return status;
}

/* ---- the conversation, prepared ---- */

/* json_copy, but NULL where jansson leaves out what it has no memory for. */
static json_t *copy_of(json_t *json)
{
    json_t *copy = json_copy(json);
    if (json_object_size(copy) == json_object_size(json) &&
        json_array_size(copy) == json_array_size(json))
        return copy;
    json_decref(copy);
    return NULL;
}

/* Parses the arguments of a call when they are the text of a JSON object, as the OpenAI interface
 * has them; any other text stays, for the template to print or to refuse. */
static int prepare_call(json_t *calls, size_t i)
{
    json_t *call = json_array_get(calls, i), *function = json_object_get(call, "function");
    json_t *text = json_object_get(function, "arguments"), *arguments = NULL;
    bool no_room = false;
    if (!json_is_string(text)) return 0;
    if (json_string_length(text) == 0)
        arguments = json_object();
    else if (parse_json("", json_string_value(text), json_string_length(text), &arguments, &no_room,
                        NULL) == WEFT_NO_MEMORY)
        return -1;
    if (!json_is_object(arguments) || no_room) {
        json_decref(arguments);
        return 0;
    }
    json_t *new_call = copy_of(call), *new_function = copy_of(function);
    int failed = json_object_set_new(new_function, "arguments", arguments);
    failed |= json_object_set_new(new_call, "function", new_function);
    return failed | json_array_set_new(calls, i, new_call);
}

/* The texts of a content that is a list of text parts, joined; NULL: it is no such list, or out of
 * memory. */
static json_t *joined_parts(json_t *content, int *failed)
{
    struct weft__buf text;
    json_t *part, *out = NULL;
    size_t i, texts = 0;
    weft__buf_init(&text, SIZE_MAX / 2);
    json_array_foreach (content, i, part) {
        json_t *piece = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (type == NULL || strcmp(type, "text") != 0 || !json_is_string(piece)) break;
        weft__buf_append(&text, json_string_value(piece), json_string_length(piece));
        texts++;
    }
    if (texts > 0 && texts == json_array_size(content) && !text.failed)
        out = json_stringn(text.data, text.len);
    *failed |= text.failed || (out == NULL && texts > 0 && texts == json_array_size(content));
    weft__buf_free(&text);
    return out;
}

/* [{"type": "text", "text": content}] */
static json_t *text_part(json_t *content, int *failed)
{
    json_t *part = json_object(), *out = json_array();
    *failed |= json_object_set_new(part, "type", json_string("text"));
    *failed |= json_object_set(part, "text", content);
    *failed |= json_array_append_new(out, part);
    return out;
}

/* The content a message gets in place of its own; NULL: none, or out of memory. A call's content
 * may be left out as well as null. */
static json_t *prepare_content(json_t *message, struct habits habits, int *failed)
{
    json_t *content = json_object_get(message, "content"), *out = NULL;
    bool called = json_array_size(json_object_get(message, "tool_calls")) > 0;
    bool missing = json_is_null(content) || (called && content == NULL);
    if (missing && habits.null_content && content == NULL)
        out = json_null();
    else if (missing && !habits.null_content && (out = json_string("")) == NULL)
        *failed = 1;
    else if (json_is_array(content) && !habits.part_lists)
        out = joined_parts(content, failed);
    else if (json_is_string(content) && habits.only_parts)
        out = text_part(content, failed);
    return out;
}

/* A copy where it differs, the message itself where not; NULL: out of memory. */
static json_t *prepare_message(json_t *message, struct habits habits)
{
    json_t *calls = json_object_get(message, "tool_calls");
    bool parse = json_array_size(calls) > 0 && !habits.text_arguments;
    int failed = 0;
    json_t *content = prepare_content(message, habits, &failed);
    if (content == NULL && !parse && failed == 0) return json_incref(message);
    json_t *copy = copy_of(message);
    failed |= copy == NULL;
    if (content != NULL) failed |= json_object_set_new(copy, "content", content);
    if (parse) {
        calls = copy_of(calls);
        failed |= calls == NULL;
        for (size_t i = 0; i < json_array_size(calls); i++) failed |= prepare_call(calls, i);
        failed |= json_object_set_new(copy, "tool_calls", calls);
    }
    if (failed == 0) return copy;
    json_decref(copy);
    return NULL;
}

static json_t *prepare_messages(json_t *messages, struct habits habits)
{
    json_t *out = json_array(), *message;
    size_t i;
    json_array_foreach (messages, i, message)
        if (json_array_append_new(out, prepare_message(message, habits)) != 0) {
            json_decref(out);
            return NULL;
        }
    return out;
}

/* The variables of a render: tokens, then what transformers passes, then the caller's own. */
static weft_status make_vars(const struct weft__chat *chat, const struct weft__chat_input *input,
                             struct habits habits, json_t **out, weft_error *err)
{
    const char *key;
    json_t *value, *vars = copy_of(chat->tokens);
    int failed = json_object_set_new(vars, "messages", prepare_messages(input->messages, habits));
    failed |= json_object_set_new(vars, "tools",
                                  input->tools != NULL ? json_incref(input->tools) : json_null());
    failed |= json_object_set_new(vars, "documents", json_null());
    failed |= json_object_set_new(vars, "add_generation_prompt",
                                  json_boolean(input->add_generation_prompt));
    json_object_foreach (input->kwargs, key, value) {
        if (strcmp(key, "messages") == 0 || strcmp(key, "tools") == 0) {
            json_decref(vars);
            return weft__fail(err, WEFT_INVALID, "chat_template_kwargs must not contain \"%s\"",
                              key);
        }
        failed |= json_object_set(vars, key, value);
    }
    if (failed != 0) {
        json_decref(vars);
        return weft__fail_oom(err, 0, "a conversation");
    }
    *out = vars;
    return WEFT_OK;
}

static weft_status render(const struct weft__chat *chat, const struct weft__template *tmpl,
                          struct habits habits, const struct weft__chat_input *input,
                          struct weft__buf *out, weft_error *err)
{
    json_t *vars = NULL;
    weft_status status = make_vars(chat, input, habits, &vars, err);
    if (status != WEFT_OK) return status;
    status = weft__template_render(tmpl, vars, input->now, out, err);
    json_decref(vars);
    return status;
}

/* ---- what a template expects ---- */

struct trial { /* of a template */
    const struct weft__chat *chat;
    const struct weft__template *tmpl;
    weft_status status; /* of the last rendering */
    weft_error *err;
};

/* Renders a conversation and says whether the prompt has both texts, in this order, and none of the
 * marks of a value printed as it is. */
static bool shows(struct trial *t, struct habits habits, const char *messages, const char *first,
                  const char *second)
{
    static const char *const marks[] = {"None", "'type'", "\"type\": \"text\""};
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"weft-name\",\"description\":\"d\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"weft-key\":{\"type\":\"string\","
        "\"description\":\"d\"}},\"required\":[\"weft-key\"]}}}]";
    struct weft__chat_input input = {.messages = NULL};
    bool calls = strstr(messages, "tool_calls") != NULL, no_room;
    struct weft__buf out;
    if (t->status == WEFT_NO_MEMORY) return false;
    weft__buf_init(&out, WEFT__TEMPLATE_MAX_OUTPUT);
    t->status = parse_json("", messages, strlen(messages), &input.messages, &no_room, t->err);
    if (t->status == WEFT_OK && calls)
        t->status = parse_json("", tools, strlen(tools), &input.tools, &no_room, t->err);
    if (t->status == WEFT_OK) t->status = render(t->chat, t->tmpl, habits, &input, &out, t->err);
    const char *from = t->status == WEFT_OK && out.data != NULL ? strstr(out.data, first) : NULL;
    bool seen = from != NULL && strstr(from, second) != NULL;
    for (size_t i = 0; seen && i < WEFT__COUNT(marks); i++) seen = strstr(from, marks[i]) == NULL;
    weft__buf_free(&out);
    json_decref(input.messages);
    json_decref(input.tools);
    return seen;
}

#define USER(content) "{\"role\":\"user\",\"content\":" content "}"
#define SYSTEM(content) "{\"role\":\"system\",\"content\":" content "}"
#define PART(text) "[{\"type\":\"text\",\"text\":\"" text "\"}]"

/* Most templates want texts as content, "" where there is none, and the arguments of calls as an
 * object. A few print lists of parts, or know only these; a few were written for arguments as text,
 * or recognise a call by its null content (DeepSeek V3 does both). Given what they do not expect,
 * they fail or leave something out. So short conversations are rendered each way, and the first way
 * that shows what is in them is kept. Only a lack of memory fails. */
static weft_status probe(const struct weft__chat *chat, const struct weft__template *tmpl,
                         struct habits *habits, weft_error *err)
{
    static const char call[] =
        "[" USER("\"weft-user\"") ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{"
                                  "\"id\":\"weftcall1\",\"type\":\"function\",\"function\":{"
                                  "\"name\":\"weft-name\","
                                  "\"arguments\":\"{\\\"weft-key\\\": \\\"weft-value\\\"}\"}}]}]";
    static const char texts[] = "[" SYSTEM("\"weft-system\"") "," USER("\"weft-user\"") "]";
    static const char lists[] = "[" SYSTEM(PART("weft-system")) "," USER(PART("weft-user")) "]";
    struct trial t = {.chat = chat, .tmpl = tmpl, .err = err};
    *habits = (struct habits){.part_lists = true};
    bool system = shows(&t, *habits, texts, "weft-system", "weft-user");
    bool text = system || shows(&t, *habits, "[" USER("\"weft-user\"") "]", "", "weft-user");
    bool list = system ? shows(&t, *habits, lists, "weft-system", "weft-user")
                       : shows(&t, *habits, "[" USER(PART("weft-user")) "]", "", "weft-user");
    habits->part_lists = list;
    habits->only_parts = list && !text;
    for (int i = 0; i < 4 && t.status != WEFT_NO_MEMORY; i++) {
        habits->text_arguments = (i & 2) != 0;
        habits->null_content = (i & 1) != 0;
        if (shows(&t, *habits, call, "weft-user", "weft-value")) break;
        habits->text_arguments = habits->null_content = false;
    }
    return t.status == WEFT_NO_MEMORY ? t.status : WEFT_OK;
}

/* ---- the interface ---- */

/* The templates, or why there are none. Only a lack of memory fails. */
static weft_status open_templates(struct weft__chat *chat, const char *dir, const char *config_path,
                                  json_t *config, weft_error *err)
{
    weft_status status = read_templates(chat, dir, config_path, config, &chat->unusable);
    if (status == WEFT_OK) status = probe(chat, chat->plain, &chat->plain_habits, &chat->unusable);
    if (status == WEFT_OK && chat->tools != NULL)
        status = probe(chat, chat->tools, &chat->tools_habits, &chat->unusable);
    if (status == WEFT_NO_MEMORY && err != NULL) *err = chat->unusable;
    if (status == WEFT_OK || status == WEFT_NO_MEMORY) return status;
    weft__template_free(chat->plain);
    chat->plain = NULL;
    return WEFT_OK;
}

weft_status weft__chat_open(const char *dir, struct weft__chat **out, weft_error *err)
{
    char *path = joined(dir, "/tokenizer_config.json");
    json_t *config = NULL;
    struct weft__chat *chat = calloc(1, sizeof *chat);
    if (chat == NULL || path == NULL) {
        free(chat);
        free(path);
        return weft__fail_oom(err, sizeof *chat, "chat templates");
    }
    weft_status status = read_config(path, &config, err);
    if (status == WEFT_OK) status = collect_tokens(chat, config, err);
    if (status == WEFT_OK) status = open_templates(chat, dir, path, config, err);
    if (status == WEFT_OK)
        *out = chat;
    else
        weft__chat_close(chat);
    json_decref(config);
    free(path);
    return status;
}

void weft__chat_close(struct weft__chat *chat)
{
    if (chat == NULL) return;
    weft__template_free(chat->plain);
    weft__template_free(chat->tools);
    json_decref(chat->tokens);
    free(chat);
}

weft_status weft__chat_check(const struct weft__chat *chat, weft_error *err)
{
    if (chat->plain != NULL) return WEFT_OK;
    if (err != NULL) *err = chat->unusable;
    return chat->unusable.status;
}

const char *weft__chat_token(const struct weft__chat *chat, const char *name)
{
    return json_string_value(json_object_get(chat->tokens, name));
}

weft_status weft__chat_render(const struct weft__chat *chat, const struct weft__chat_input *input,
                              struct weft__buf *out, weft_error *err)
{
    weft_status status = weft__chat_check(chat, err);
    if (status != WEFT_OK) return status;
    bool tools = chat->tools != NULL && json_array_size(input->tools) > 0;
    return render(chat, tools ? chat->tools : chat->plain,
                  tools ? chat->tools_habits : chat->plain_habits, input, out, err);
}
