/* What of a chat's text is reasoning, what content, what a tool call: in the formats of the
 * families, told apart by the chat template. Pure and incremental: the result does not depend on
 * how the text is cut. A call comes out whole or, when it is not well-formed, as the text it was.
 */
#include <string.h>

#include "private.h"

/* Fullwidth bar and lower block, as DeepSeek's marks have them. */
#define BAR "\xef\xbd\x9c"
#define LOW "\xe2\x96\x81"

static const struct {
    const char *sign;        /* in the chat template */
    const char *begin, *end; /* around one or several calls; end NULL: to the end of the text */
} formats[] = {
    [WEFT__CALLS_NONE] = {"", "", ""},
    /* Qwen3-Coder's XML inside the same marks is not read. */
    [WEFT__CALLS_HERMES] = {"<tool_call>", "<tool_call>", "</tool_call>"},
    [WEFT__CALLS_GLM] = {"<arg_key>", "<tool_call>", "</tool_call>"},
    [WEFT__CALLS_MISTRAL] = {"[TOOL_CALLS]", "[TOOL_CALLS]", NULL},
    [WEFT__CALLS_DEEPSEEK] = {"<" BAR "tool" LOW "calls" LOW "begin" BAR ">",
                              "<" BAR "tool" LOW "calls" LOW "begin" BAR ">",
                              "<" BAR "tool" LOW "calls" LOW "end" BAR ">"},
};

static const char think_begin[] = "<think>", think_end[] = "</think>";
static const char call_begin[] = "<" BAR "tool" LOW "call" LOW "begin" BAR ">",
                  call_end[] = "<" BAR "tool" LOW "call" LOW "end" BAR ">",
                  call_separator[] = "<" BAR "tool" LOW "sep" BAR ">";

static const char *const marks[] = {
    think_begin,
    think_end,
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    call_end,
    "<arg_value>",
    "</arg_value>",
    call_begin,
    call_separator,
    "[ARGS]",
    "[TOOL_CALLS]",
    "[CALL_ID]",
    "<" BAR "tool" LOW "calls" LOW "begin" BAR ">",
    "<" BAR "tool" LOW "calls" LOW "end" BAR ">",
};

enum weft__calls_format weft__calls_format(const char *template)
{
    int format = WEFT__COUNT(formats) - 1;
    while (format > WEFT__CALLS_NONE && strstr(template, formats[format].sign) == NULL) format--;
    if (format == WEFT__CALLS_HERMES && strstr(template, "<function=") != NULL)
        return WEFT__CALLS_NONE;
    return (enum weft__calls_format)format;
}

bool weft__extract_mark(const char *text, size_t len)
{
    for (size_t i = 0; i < WEFT__COUNT(marks); i++)
        if (strlen(marks[i]) == len && memcmp(marks[i], text, len) == 0) return true;
    return false;
}

/* ---- slices ---- */

static bool space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

static struct weft__slice trim(struct weft__slice s)
{
    while (s.len > 0 && space(s.data[0])) s.data++, s.len--;
    while (s.len > 0 && space(s.data[s.len - 1])) s.len--;
    return s;
}

static bool starts(struct weft__slice s, const char *text)
{
    return s.len >= strlen(text) && memcmp(s.data, text, strlen(text)) == 0;
}

/* Cuts s behind the mark; what stood before it goes to *before. False: no such mark. */
static bool cut(struct weft__slice *s, const char *mark, struct weft__slice *before)
{
    const char *at = s->len > 0 ? memmem(s->data, s->len, mark, strlen(mark)) : NULL;
    if (at == NULL) return false;
    *before = (struct weft__slice){s->data, (size_t)(at - s->data)};
    size_t gone = before->len + strlen(mark);
    *s = (struct weft__slice){s->data + gone, s->len - gone};
    return true;
}

/* Bytes at the end of s that may begin the mark. */
static size_t open_end(struct weft__slice s, const char *mark)
{
    size_t n = strlen(mark) - 1 < s.len ? strlen(mark) - 1 : s.len;
    while (n > 0 && memcmp(s.data + s.len - n, mark, n) != 0) n--;
    return n;
}

/* ---- one group of calls ---- */

/* The calls read so far; nothing is reported before all of the group are known to be good. */
struct group {
    const json_t *tools;
    struct weft__buf text; /* names and arguments, one after the other */
    size_t name_len[WEFT__CALLS_MAX], arguments_len[WEFT__CALLS_MAX];
    int count;
};

/* The schema of a function's parameters; NULL: no such function. */
static const json_t *find_tool(const json_t *tools, struct weft__slice name)
{
    size_t i;
    json_t *tool;
    json_array_foreach (tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        const json_t *known = json_object_get(function, "name");
        if (json_string_length(known) == name.len && name.len > 0 &&
            memcmp(json_string_value(known), name.data, name.len) == 0)
            return function;
    }
    return NULL;
}

static bool is_json(struct weft__slice s, enum weft__json_kind kind)
{
    struct weft__json json;
    weft__json_init(&json, s.data, s.len);
    if (kind != WEFT__JSON_NONE && weft__json_kind(&json) != kind) return false;
    weft__json_skip(&json);
    return weft__json_end(&json);
}

static bool add(struct group *group, struct weft__slice name, struct weft__slice arguments)
{
    if (group->count == WEFT__CALLS_MAX || find_tool(group->tools, name) == NULL ||
        !is_json(arguments, WEFT__JSON_OBJECT))
        return false;
    weft__buf_append(&group->text, name.data, name.len);
    weft__buf_append(&group->text, arguments.data, arguments.len);
    group->name_len[group->count] = name.len;
    group->arguments_len[group->count++] = arguments.len;
    return !group->text.failed;
}

/* The value ahead: of a string its text, else its source. */
static struct weft__slice read_value(struct weft__json *json, struct weft__buf *scratch)
{
    struct weft__json_text text;
    if (weft__json_kind(json) == WEFT__JSON_STRING && weft__json_string(json, scratch, &text))
        return (struct weft__slice){text.data, text.len};
    const char *start = json->at;
    weft__json_skip(json);
    return (struct weft__slice){start, (size_t)(json->at - start)};
}

/* {"name": ..., "arguments": {...}}; Llama's word for the latter is parameters. */
static bool read_json_call(struct group *group, struct weft__json *json)
{
    struct weft__buf scratch, name_text, arguments_text;
    struct weft__json_text key;
    struct weft__slice name = {0}, arguments = {"{}", 2};
    weft__buf_init(&scratch, WEFT__ANSWER_MAX);
    weft__buf_init(&name_text, WEFT__ANSWER_MAX);
    weft__buf_init(&arguments_text, WEFT__ANSWER_MAX);
    bool ok = weft__json_enter(json, WEFT__JSON_OBJECT);
    while (ok && weft__json_member(json, &scratch, &key)) {
        const struct weft__slice k = {key.data, key.len};
        if (k.len == 4 && starts(k, "name"))
            name = read_value(json, &name_text);
        else if ((k.len == 9 && starts(k, "arguments")) || (k.len == 10 && starts(k, "parameters")))
            arguments = read_value(json, &arguments_text);
        else
            weft__json_skip(json);
    }
    ok = ok && json->error == NULL && add(group, name, arguments);
    weft__buf_free(&scratch);
    weft__buf_free(&name_text);
    weft__buf_free(&arguments_text);
    return ok;
}

/* One call, or a list of them. */
static bool read_json_calls(struct group *group, struct weft__slice body)
{
    struct weft__json json;
    weft__json_init(&json, body.data, body.len);
    if (weft__json_kind(&json) != WEFT__JSON_ARRAY)
        return read_json_call(group, &json) && weft__json_end(&json);
    bool ok = weft__json_enter(&json, WEFT__JSON_ARRAY);
    while (ok && weft__json_item(&json)) ok = read_json_call(group, &json);
    return ok && group->count > 0 && weft__json_end(&json);
}

/* Whether the parameter is declared as a string, so that 42 means "42". */
static bool is_string(const json_t *tool, struct weft__slice key)
{
    const json_t *properties = json_object_get(json_object_get(tool, "parameters"), "properties");
    const json_t *property = json_object_getn(properties, key.data, key.len);
    const char *type = json_string_value(json_object_get(property, "type"));
    return type != NULL && strcmp(type, "string") == 0;
}

/* NAME, then <arg_key>K</arg_key><arg_value>V</arg_value> as often as needed: strings stand bare,
 * everything else is JSON. */
static bool read_glm_call(struct group *group, struct weft__slice body)
{
    struct weft__slice name = body, key, value, between;
    struct weft__buf arguments;
    if (!cut(&body, "<arg_key>", &name)) body.len = 0;
    name = trim(name);
    const json_t *tool = find_tool(group->tools, name);
    weft__buf_init(&arguments, WEFT__ANSWER_MAX);
    weft__buf_puts(&arguments, "{");
    bool more = body.len > 0, ok = true;
    while (more && ok) {
        ok = cut(&body, "</arg_key>", &key) && cut(&body, "<arg_value>", &between) &&
             trim(between).len == 0 && cut(&body, "</arg_value>", &value);
        if (!ok) break;
        weft__buf_puts(&arguments, arguments.len > 1 ? ", " : "");
        weft__put_string(&arguments, key.data, key.len);
        weft__buf_puts(&arguments, ": ");
        if (!is_string(tool, key) && is_json(value, WEFT__JSON_NONE))
            weft__buf_append(&arguments, trim(value).data, trim(value).len);
        else
            weft__put_string(&arguments, value.data, value.len);
        more = cut(&body, "<arg_key>", &between);
        ok = trim(more ? between : body).len == 0;
    }
    weft__buf_puts(&arguments, "}");
    ok = ok && !arguments.failed &&
         add(group, name, (struct weft__slice){arguments.data, arguments.len});
    weft__buf_free(&arguments);
    return ok;
}

/* V3: function SEP NAME \n ```json \n {...} \n ```; V3.1: NAME SEP {...}. */
static bool read_deepseek_call(struct group *group, struct weft__slice body)
{
    struct weft__slice name, rest = body, arguments;
    if (!cut(&rest, call_separator, &name)) return false;
    if (starts(trim(rest), "{")) return add(group, trim(name), trim(rest));
    return cut(&rest, "```json", &name) && cut(&rest, "```", &arguments) && trim(rest).len == 0 &&
           add(group, trim(name), trim(arguments));
}

static bool read_deepseek_calls(struct group *group, struct weft__slice body)
{
    struct weft__slice between, call;
    while (cut(&body, call_begin, &between))
        if (trim(between).len > 0 || !cut(&body, call_end, &call) ||
            !read_deepseek_call(group, call))
            return false;
    return group->count > 0 && trim(body).len == 0;
}

/* Tokenizers up to v7: a list of calls. From v11: NAME [CALL_ID] ID [ARGS] {...}, the marks but
 * for the first left out by some, and [TOOL_CALLS] again before the next. */
static bool read_mistral_calls(struct group *group, struct weft__slice body)
{
    if (starts(trim(body), "[{")) return read_json_calls(group, trim(body));
    bool more = true;
    while (more) {
        struct weft__slice call = body, name, id, brace;
        more = cut(&body, "[TOOL_CALLS]", &call);
        struct weft__slice rest = call;
        if (!cut(&rest, "{", &brace)) return false;
        const struct weft__slice arguments = {call.data + brace.len, call.len - brace.len};
        name = brace;
        if (cut(&brace, "[ARGS]", &name) && trim(brace).len > 0) return false;
        struct weft__slice head = name;
        if (cut(&head, "[CALL_ID]", &id)) name = id;
        if (!add(group, trim(name), trim(arguments))) return false;
    }
    return true;
}

static bool read_group(struct weft__extract *x, struct weft__slice body)
{
    struct group group = {.tools = x->tools};
    weft__buf_init(&group.text, WEFT__ANSWER_MAX);
    bool ok = x->format == WEFT__CALLS_HERMES     ? read_json_calls(&group, trim(body))
              : x->format == WEFT__CALLS_GLM      ? read_glm_call(&group, body)
              : x->format == WEFT__CALLS_DEEPSEEK ? read_deepseek_calls(&group, body)
                                                  : read_mistral_calls(&group, body);
    const char *at = group.text.data;
    for (int i = 0; ok && i < group.count; i++) {
        const struct weft__slice name = {at, group.name_len[i]};
        const struct weft__slice arguments = {at + name.len, group.arguments_len[i]};
        x->call(x->ctx, name, arguments);
        at += name.len + arguments.len;
    }
    weft__buf_free(&group.text);
    return ok;
}

/* ---- the text ---- */

void weft__extract_init(struct weft__extract *x) { weft__buf_init(&x->held, WEFT__ANSWER_MAX); }

void weft__extract_free(struct weft__extract *x) { weft__buf_free(&x->held); }

static void drop(struct weft__extract *x, size_t n)
{
    memmove(x->held.data, x->held.data + n, x->held.len - n);
    x->held.len -= n;
    x->seen = 0;
}

/* Moves the first n bytes out; white space at the beginning of a part is left out. */
static void emit(struct weft__extract *x, size_t n, struct weft__buf *out)
{
    struct weft__slice s = {x->held.data, n};
    while (x->fresh && s.len > 0 && space(s.data[0])) s.data++, s.len--;
    if (s.len > 0) {
        x->fresh = false;
        weft__buf_append(out, s.data, s.len);
    }
    drop(x, n);
}

/* Everything before the mark but white space right before it goes out; true when the mark is all
 * there, at the length of that white space. */
static bool until(struct weft__extract *x, const char *mark, struct weft__buf *out)
{
    struct weft__slice s = {x->held.data, x->held.len}, rest = s, before = s;
    bool found = cut(&rest, mark, &before);
    if (!found) before.len -= open_end(s, mark);
    while (before.len > 0 && space(before.data[before.len - 1])) before.len--;
    emit(x, before.len, out);
    return found;
}

static bool take_start(struct weft__extract *x)
{
    const struct weft__slice s = {x->held.data, x->held.len};
    struct weft__slice rest = s;
    while (rest.len > 0 && space(rest.data[0])) rest.data++, rest.len--;
    if (starts(rest, think_begin)) {
        drop(x, s.len - rest.len + strlen(think_begin));
        x->state = WEFT__EXTRACT_REASONING;
        x->fresh = true;
        return true;
    }
    if (open_end(rest, think_begin) == rest.len) return false; /* it may yet come */
    x->state = WEFT__EXTRACT_TEXT;
    return true;
}

static bool take_reasoning(struct weft__extract *x, struct weft__buf *reasoning)
{
    if (!until(x, think_end, reasoning)) return false;
    struct weft__slice rest = {x->held.data, x->held.len}, before;
    (void)cut(&rest, think_end, &before);
    drop(x, x->held.len - rest.len);
    x->state = WEFT__EXTRACT_TEXT;
    x->fresh = true;
    return true;
}

static bool take_text(struct weft__extract *x, struct weft__buf *content)
{
    if (x->format == WEFT__CALLS_NONE) {
        emit(x, x->held.len, content);
        return false;
    }
    if (!until(x, formats[x->format].begin, content)) return false;
    x->state = WEFT__EXTRACT_CALL;
    return true;
}

/* Whether the text ends inside a JSON string. */
static bool in_string(struct weft__slice s)
{
    bool inside = false;
    for (size_t i = 0; i < s.len; i++) {
        if (inside && s.data[i] == '\\')
            i++;
        else if (s.data[i] == '"')
            inside = !inside;
    }
    return inside;
}

/* held: white space, the begin mark, the body. The end mark is looked for behind what was seen. */
static bool take_call(struct weft__extract *x, struct weft__buf *content, bool last)
{
    const char *end = formats[x->format].end;
    struct weft__slice body = {x->held.data, x->held.len}, before;
    (void)cut(&body, formats[x->format].begin, &before);
    size_t head = x->held.len - body.len, from = x->seen > head ? x->seen - head : 0;
    struct weft__slice rest = {body.data + from, body.len - from};
    bool found = end != NULL && cut(&rest, end, &before);
    if (found) {
        body.len = (size_t)(rest.data - body.data) - strlen(end);
        if (x->format == WEFT__CALLS_HERMES && in_string(body)) {
            x->seen = x->held.len - rest.len;
            return true;
        }
    } else if (!last) {
        size_t back = end != NULL ? open_end(body, end) : 0;
        x->seen = x->held.len - back;
        return false;
    }
    bool fresh = x->fresh;
    x->state = WEFT__EXTRACT_TEXT;
    size_t taken = x->held.len - (found ? rest.len : 0);
    x->fresh = true;
    if (read_group(x, body)) {
        drop(x, taken);
    } else {
        x->fresh = fresh;
        emit(x, taken, content);
    }
    return true;
}

static void run(struct weft__extract *x, const struct weft__extracted *out, bool last)
{
    bool more = true;
    while (more && x->held.len > 0) {
        switch (x->state) {
        case WEFT__EXTRACT_START:
            more = take_start(x);
            break;
        case WEFT__EXTRACT_REASONING:
            more = take_reasoning(x, out->reasoning);
            break;
        case WEFT__EXTRACT_TEXT:
            more = take_text(x, out->content);
            break;
        case WEFT__EXTRACT_CALL:
            more = take_call(x, out->content, last);
            break;
        }
    }
    if (x->held.failed) out->content->failed = true;
}

void weft__extract_push(struct weft__extract *x, const char *text, size_t len,
                        const struct weft__extracted *out)
{
    weft__buf_append(&x->held, text, len);
    run(x, out, false);
}

void weft__extract_finish(struct weft__extract *x, const struct weft__extracted *out)
{
    run(x, out, true);
    bool reasoning = x->state == WEFT__EXTRACT_REASONING;
    if (x->held.len > 0) emit(x, x->held.len, reasoning ? out->reasoning : out->content);
}
