/* Chat templates of a model directory, and what a conversation goes through before one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat.h"
#include "jinja.h"

enum { MAX_CONFIG_FILE = 64 << 20 };

/* What a template expects of tool calls; see probe(). */
struct habits {
    bool text_arguments; /* arguments stay JSON text */
    bool null_content;   /* a missing content stays null */
};

struct weft__chat {
    struct weft__template *plain, *tools; /* tools: NULL when plain serves both */
    struct habits plain_habits, tools_habits;
    json_t *tokens;      /* name -> text: what templates see of tokenizer_config.json */
    weft_error unusable; /* why plain is NULL */
};

/* ---- reading the directory ---- */

/* *out NULL when there is no such file. */
static weft_status read_config(const char *path, json_t **out, weft_error *err)
{
    char *text;
    size_t len;
    json_error_t where;
    *out = NULL;
    weft_status status = weft__read_file(path, MAX_CONFIG_FILE, &text, &len, err);
    if (status == WEFT_NOT_FOUND) return WEFT_OK;
    if (status != WEFT_OK) return status;
    /* Only strings matter here, and model_max_length is often beyond 64 bits. */
    *out = json_loadb(text, len, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, &where);
    if (*out == NULL) {
        status = weft__fail(err, WEFT_FORMAT, "%s: line %d, column %d: %s", path, where.line,
                            where.column, where.text);
    } else if (!json_is_object(*out)) {
        status = weft__fail(err, WEFT_FORMAT, "%s: not a JSON object", path);
        json_decref(*out);
        *out = NULL;
    }
    free(text);
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
    json_object_foreach(from, key, value)
    {
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
    json_array_foreach(json_object_get(config, "additional_special_tokens"), i,
                       value) if (token_text(value) != NULL) failed |=
        json_array_append(more, token_text(value));
    if (json_array_size(more) > 0)
        failed |= json_object_set(chat->tokens, "additional_special_tokens", more);
    json_decref(more);
    return failed != 0 ? weft__fail_oom(err, 0, "special tokens") : WEFT_OK;
}

static json_t *named_template(json_t *list, const char *name)
{
    size_t i;
    json_t *entry;
    json_array_foreach(list, i, entry)
    {
        json_t *text = json_object_get(entry, "template");
        const char *key = json_string_value(json_object_get(entry, "name"));
        if (key != NULL && strcmp(key, name) == 0 && json_is_string(text)) return text;
    }
    return NULL;
}

static weft_status parse_json_text(const char *path, json_t *text, struct weft__template **out,
                                   weft_error *err)
{
    char *name = NULL;
    if (asprintf(&name, "%s (chat_template)", path) < 0)
        return weft__fail_oom(err, strlen(path), "a name");
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
                          "without a template (--raw)",
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
    char *path = NULL, *text;
    size_t len;
    if (asprintf(&path, "%s/chat_template.jinja", dir) < 0)
        return weft__fail_oom(err, strlen(dir), "a path");
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
                                "a template (--raw)",
                                dir);
    }
    free(path);
    return status;
}

/* ---- the conversation, prepared ---- */

/* Parses the arguments of a call when they are the text of a JSON object, as the OpenAI interface
 * has them; any other text stays, for the template to print or to refuse. */
static int prepare_call(json_t *calls, size_t i)
{
    json_t *call = json_array_get(calls, i), *function = json_object_get(call, "function");
    json_t *text = json_object_get(function, "arguments"), *arguments = NULL;
    if (!json_is_string(text)) return 0;
    if (json_string_length(text) == 0)
        arguments = json_object();
    else
        arguments =
            json_loadb(json_string_value(text), json_string_length(text), JSON_ALLOW_NUL, NULL);
    if (!json_is_object(arguments)) {
        json_decref(arguments);
        return 0;
    }
    json_t *new_call = json_copy(call), *new_function = json_copy(function);
    int failed = json_object_set_new(new_function, "arguments", arguments);
    failed |= json_object_set_new(new_call, "function", new_function);
    return failed | json_array_set_new(calls, i, new_call);
}

/* A copy where it differs, the message itself where not; NULL: out of memory. A call's content may
 * be left out as well as null. */
static json_t *prepare_message(json_t *message, struct habits habits)
{
    json_t *calls = json_object_get(message, "tool_calls");
    json_t *content = json_object_get(message, "content");
    bool called = json_array_size(calls) > 0, parse = called && !habits.text_arguments;
    bool fill = habits.null_content ? called && content == NULL
                                    : json_is_null(content) || (called && content == NULL);
    if (!fill && !parse) return json_incref(message);
    json_t *copy = json_copy(message);
    int failed = copy == NULL;
    if (fill)
        failed |= json_object_set_new(copy, "content",
                                      habits.null_content ? json_null() : json_string(""));
    if (parse) {
        calls = json_copy(calls);
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
    json_array_foreach(
        messages, i, message) if (json_array_append_new(out, prepare_message(message, habits)) != 0)
    {
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
    json_t *value, *vars = json_deep_copy(chat->tokens); /* other threads count references too */
    int failed = json_object_set_new(vars, "messages", prepare_messages(input->messages, habits));
    failed |= json_object_set_new(vars, "tools",
                                  input->tools != NULL ? json_incref(input->tools) : json_null());
    failed |= json_object_set_new(vars, "documents", json_null());
    failed |= json_object_set_new(vars, "add_generation_prompt",
                                  json_boolean(input->add_generation_prompt));
    json_object_foreach(input->kwargs, key, value)
    {
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

/* Most templates want arguments as an object and get along with empty content, which the first
 * habits are. A few were written for arguments as text, or recognise a call by its null content
 * (DeepSeek V3 does both): with the first habits those fail, or leave the call out. So a call is
 * rendered with each, and the first that shows its name and its argument is kept. */
static struct habits probe(const struct weft__chat *chat, const struct weft__template *tmpl)
{
    static const char messages[] =
        "[{\"role\":\"user\",\"content\":\"weft-user\"},{\"role\":\"assistant\",\"content\":null,"
        "\"tool_calls\":[{\"id\":\"weftcall1\",\"type\":\"function\",\"function\":{\"name\":"
        "\"weft-name\",\"arguments\":\"{\\\"weft-key\\\": \\\"weft-value\\\"}\"}}]}]";
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"weft-name\",\"description\":\"d\","
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"weft-key\":{\"type\":\"string\","
        "\"description\":\"d\"}},\"required\":[\"weft-key\"]}}}]";
    static const struct habits choices[] = {
        {false, false}, {false, true}, {true, false}, {true, true}};
    struct weft__chat_input input = {.messages = json_loads(messages, 0, NULL),
                                     .tools = json_loads(tools, 0, NULL)};
    struct habits kept = choices[0];
    struct weft__buf out;
    weft__buf_init(&out, WEFT__TEMPLATE_MAX_OUTPUT);
    for (size_t i = 0; i < WEFT__COUNT(choices); i++) {
        out.len = 0;
        if (render(chat, tmpl, choices[i], &input, &out, NULL) != WEFT_OK || out.data == NULL)
            continue;
        const char *after = strstr(out.data, "weft-user");
        if (after != NULL && strstr(after, "weft-name") != NULL &&
            strstr(after, "weft-value") != NULL && strstr(after, "None") == NULL) {
            kept = choices[i];
            break;
        }
    }
    weft__buf_free(&out);
    json_decref(input.messages);
    json_decref(input.tools);
    return kept;
}

/* ---- the interface ---- */

weft_status weft__chat_open(const char *dir, struct weft__chat **out, weft_error *err)
{
    char *path = NULL;
    json_t *config = NULL;
    weft_status status;
    struct weft__chat *chat = calloc(1, sizeof *chat);
    if (chat == NULL || asprintf(&path, "%s/tokenizer_config.json", dir) < 0) {
        free(chat);
        return weft__fail_oom(err, sizeof *chat, "chat templates");
    }
    status = read_config(path, &config, err);
    if (status == WEFT_OK) status = collect_tokens(chat, config, err);
    if (status != WEFT_OK) {
        weft__chat_close(chat);
        goto done;
    }
    if (read_templates(chat, dir, path, config, &chat->unusable) != WEFT_OK) {
        weft__template_free(chat->plain);
        chat->plain = NULL;
    } else {
        chat->plain_habits = probe(chat, chat->plain);
        if (chat->tools != NULL) chat->tools_habits = probe(chat, chat->tools);
    }
    *out = chat;
done:
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
