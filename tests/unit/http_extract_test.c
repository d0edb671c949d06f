/* Reasoning, content and calls of texts in every family's format, the text cut at every byte, and
 * byte by byte: the same must come out. Texts that are no calls must come out as they are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "http/private.h"

#define BAR "\xef\xbd\x9c"
#define LOW "\xe2\x96\x81"
#define CALLS "<" BAR "tool" LOW "calls" LOW "begin" BAR ">"
#define CALLS_END "<" BAR "tool" LOW "calls" LOW "end" BAR ">"
#define CALL "<" BAR "tool" LOW "call" LOW "begin" BAR ">"
#define CALL_END "<" BAR "tool" LOW "call" LOW "end" BAR ">"
#define SEP "<" BAR "tool" LOW "sep" BAR ">"

enum { PLAIN = WEFT__EXTRACT_TEXT, MAYBE = WEFT__EXTRACT_START, OPEN = WEFT__EXTRACT_REASONING };

struct sample {
    int format, state;
    const char *text, *content, *reasoning, *calls; /* calls: name arguments; ... */
};

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}}]";

static const struct sample samples[] = {
    {WEFT__CALLS_NONE, PLAIN, "plain <tool_call>text\n ", "plain <tool_call>text\n ", "", ""},
    {WEFT__CALLS_HERMES, PLAIN, " no call < <tool \n", " no call < <tool \n", "", ""},
    /* Qwen3, with and without reasoning. */
    {WEFT__CALLS_HERMES, PLAIN,
     "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>", "", "",
     "get {\"city\": \"Paris\"};"},
    {WEFT__CALLS_HERMES, MAYBE,
     "<think>\nHm, <b>.\n</think>\n\nI look.\n<tool_call>\n{\"name\":\"now\",\"arguments\":{}}\n"
     "</tool_call>\n<tool_call>\n{\"arguments\": {\"a\": [1, {\"b\": null}]}, \"name\": \"get\"}\n"
     "</tool_call>\n",
     "I look.", "Hm, <b>.", "now {};get {\"a\": [1, {\"b\": null}]};"},
    {WEFT__CALLS_HERMES, MAYBE, "  <thinner>", "  <thinner>", "", ""},
    {WEFT__CALLS_NONE, MAYBE, "\n<think>a</think>b</think>", "b</think>", "a", ""},
    {WEFT__CALLS_NONE, MAYBE, "<think>cut off </thin", "", "cut off </thin", ""},
    {WEFT__CALLS_NONE, OPEN, "\nwhy\n\n</think>\n\nbecause\n", "because\n", "why", ""},
    {WEFT__CALLS_HERMES, OPEN, "<tool_call>{}</tool_call></think>", "", "<tool_call>{}</tool_call>",
     ""},
    /* The end mark in a string; arguments as text; a list; no arguments; no end mark. */
    {WEFT__CALLS_HERMES, PLAIN,
     "<tool_call>{\"name\":\"get\",\"arguments\":{\"city\":\"a</tool_call>\\\"b\"}}</tool_call>ok",
     "ok", "", "get {\"city\":\"a</tool_call>\\\"b\"};"},
    {WEFT__CALLS_HERMES, PLAIN,
     "<tool_call>{\"name\":\"get\",\"arguments\":\"{\\\"city\\\":1}\"}</tool_call>", "", "",
     "get {\"city\":1};"},
    {WEFT__CALLS_HERMES, PLAIN,
     "<tool_call>[{\"name\":\"now\"},{\"name\":\"get\",\"parameters\":{}}]</tool_call>", "", "",
     "now {};get {};"},
    {WEFT__CALLS_HERMES, PLAIN, "<tool_call>{\"name\":\"now\"}", "", "", "now {};"},
    /* Malformed ones come back: bad JSON, no such function, no object, two of which one is bad. */
    {WEFT__CALLS_HERMES, PLAIN, "x \n<tool_call>{nope}</tool_call> y",
     "x \n<tool_call>{nope}</tool_call> y", "", ""},
    {WEFT__CALLS_HERMES, PLAIN, "<tool_call>{\"name\":\"rm\",\"arguments\":{}}</tool_call>",
     "<tool_call>{\"name\":\"rm\",\"arguments\":{}}</tool_call>", "", ""},
    {WEFT__CALLS_HERMES, PLAIN, "<tool_call>{\"name\":\"get\",\"arguments\":3}</tool_call>",
     "<tool_call>{\"name\":\"get\",\"arguments\":3}</tool_call>", "", ""},
    {WEFT__CALLS_HERMES, PLAIN, "<tool_call>[{\"name\":\"get\"},{\"name\":7}]</tool_call>",
     "<tool_call>[{\"name\":\"get\"},{\"name\":7}]</tool_call>", "", ""},
    {WEFT__CALLS_HERMES, PLAIN, "<tool_call>{\"name\": \"get</tool_call>",
     "<tool_call>{\"name\": \"get</tool_call>", "", ""},
    {WEFT__CALLS_HERMES, PLAIN, "<tool_call>1</tool_call><tool_call>{\"name\":\"now\"}</tool_call>",
     "<tool_call>1</tool_call>", "", "now {};"},
    /* GLM 4.5 and 4.7. */
    {WEFT__CALLS_GLM, MAYBE,
     "\n<think>t</think>\nSee:\n<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>42</"
     "arg_value>\n"
     "<arg_key>days</arg_key>\n<arg_value>42</arg_value>\n</tool_call>",
     "See:", "t", "get {\"city\": \"42\", \"days\": 42};"},
    {WEFT__CALLS_GLM, PLAIN,
     "<tool_call>get<arg_key>x</arg_key><arg_value>say \"hi\"\n</arg_value></tool_call>"
     "<tool_call>now</tool_call>",
     "", "", "get {\"x\": \"say \\\"hi\\\"\\n\"};now {};"},
    {WEFT__CALLS_GLM, PLAIN, "<tool_call>get<arg_key>x</arg_key></tool_call>",
     "<tool_call>get<arg_key>x</arg_key></tool_call>", "", ""},
    {WEFT__CALLS_GLM, PLAIN,
     "<tool_call>get<arg_key>x</arg_key><arg_value>1</arg_value>y</tool_call>",
     "<tool_call>get<arg_key>x</arg_key><arg_value>1</arg_value>y</tool_call>", "", ""},
    /* DeepSeek V3 and V3.1. */
    {WEFT__CALLS_DEEPSEEK, PLAIN,
     "Let me see." CALLS CALL "function" SEP "get\n```json\n{\"city\": \"Paris\"}\n```" CALL_END
     "\n" CALL "function" SEP "now\n```json\n{}\n```" CALL_END CALLS_END,
     "Let me see.", "", "get {\"city\": \"Paris\"};now {};"},
    {WEFT__CALLS_DEEPSEEK, OPEN,
     "t</think>" CALLS CALL "get" SEP "{\"city\":\"x\"}" CALL_END CALL "now" SEP "{}" CALL_END, "",
     "t", "get {\"city\":\"x\"};now {};"},
    {WEFT__CALLS_DEEPSEEK, PLAIN, CALLS CALL "now" SEP "{}" CALL_END CALL "now" CALL_END CALLS_END,
     CALLS CALL "now" SEP "{}" CALL_END CALL "now" CALL_END CALLS_END, "", ""},
    {WEFT__CALLS_DEEPSEEK, PLAIN, CALLS CALLS_END, CALLS CALLS_END, "", ""},
    /* Mistral, old and new. */
    {WEFT__CALLS_MISTRAL, PLAIN,
     "Yes. [TOOL_CALLS] [{\"name\": \"get\", \"arguments\": {\"city\": \"]\"}, \"id\": \"abc\"}]",
     "Yes.", "", "get {\"city\": \"]\"};"},
    {WEFT__CALLS_MISTRAL, PLAIN, "[TOOL_CALLS]get[ARGS]{\"city\":\"a\"}[TOOL_CALLS]now{}", "", "",
     "get {\"city\":\"a\"};now {};"},
    {WEFT__CALLS_MISTRAL, PLAIN, "[TOOL_CALLS]get[CALL_ID]123456789[ARGS]{}", "", "", "get {};"},
    {WEFT__CALLS_MISTRAL, PLAIN, "[TOOL_CALLS]get[ARGS]x{}", "[TOOL_CALLS]get[ARGS]x{}", "", ""},
    {WEFT__CALLS_MISTRAL, PLAIN, "[TOOL_CALLS] [{\"name\": \"get\"}",
     "[TOOL_CALLS] [{\"name\": \"get\"}", "", ""},
    {WEFT__CALLS_MISTRAL, PLAIN, "a list: [1] [TOOL", "a list: [1] [TOOL", "", ""},
};

static void on_call(void *ctx, struct weft__slice name, struct weft__slice arguments)
{
    struct weft__buf *calls = ctx;
    weft__buf_append(calls, name.data, name.len);
    weft__buf_puts(calls, " ");
    weft__buf_append(calls, arguments.data, arguments.len);
    weft__buf_puts(calls, ";");
}

struct result {
    struct weft__buf content, reasoning, calls;
};

/* Feeds the text in pieces: up to `first`, then `step` bytes at a time. */
static void feed(const struct sample *s, const json_t *tools, size_t first, size_t step,
                 struct result *r)
{
    struct weft__extract x = {.format = (enum weft__calls_format)s->format,
                              .tools = tools,
                              .ctx = &r->calls,
                              .call = on_call};
    const struct weft__extracted out = {&r->content, &r->reasoning};
    size_t len = strlen(s->text), n = first;
    x.fresh = s->state == OPEN;
    if (s->state == MAYBE) x.state = WEFT__EXTRACT_START;
    if (s->state == OPEN) x.state = WEFT__EXTRACT_REASONING;
    weft__buf_init(&r->content, 1 << 16);
    weft__buf_init(&r->reasoning, 1 << 16);
    weft__buf_init(&r->calls, 1 << 16);
    weft__buf_puts(&r->content, "");
    weft__buf_puts(&r->reasoning, "");
    weft__buf_puts(&r->calls, "");
    weft__extract_init(&x);
    for (size_t at = 0; at < len; at += n, n = step) {
        if (n > len - at) n = len - at;
        weft__extract_push(&x, s->text + at, n, &out);
    }
    weft__extract_finish(&x, &out);
    weft__extract_free(&x);
}

static void free_result(struct result *r)
{
    weft__buf_free(&r->content);
    weft__buf_free(&r->reasoning);
    weft__buf_free(&r->calls);
}

static void every_cut_gives_the_same(void **unused)
{
    (void)unused;
    json_t *tools = json_loads(tools_json, 0, NULL);
    assert_non_null(tools);
    for (size_t i = 0; i < WEFT__COUNT(samples); i++) {
        const struct sample *s = &samples[i];
        for (size_t first = 0; first <= strlen(s->text); first++) {
            struct result r;
            feed(s, tools, first, first == 0 ? 1 : 1000, &r);
            if (strcmp(r.content.data, s->content) != 0 ||
                strcmp(r.reasoning.data, s->reasoning) != 0 || strcmp(r.calls.data, s->calls) != 0)
                fail_msg("sample %zu cut at %zu: content \"%s\", reasoning \"%s\", calls \"%s\"", i,
                         first, r.content.data, r.reasoning.data, r.calls.data);
            free_result(&r);
        }
    }
    json_decref(tools);
}

/* As many calls as there is room for; one more and all of them stay text. */
static void calls_are_limited(void **unused)
{
    (void)unused;
    json_t *tools = json_loads(tools_json, 0, NULL);
    for (int count = WEFT__CALLS_MAX; count <= WEFT__CALLS_MAX + 1; count++) {
        struct weft__buf text;
        struct result r;
        weft__buf_init(&text, 1 << 16);
        weft__buf_puts(&text, "<tool_call>[");
        for (int i = 0; i < count; i++)
            weft__buf_puts(&text, i > 0 ? ",{\"name\":\"now\"}" : "{\"name\":\"now\"}");
        weft__buf_puts(&text, "]</tool_call>");
        const struct sample s = {WEFT__CALLS_HERMES, PLAIN, text.data, NULL, NULL, NULL};
        feed(&s, tools, text.len, 1, &r);
        bool all = count == WEFT__CALLS_MAX;
        assert_int_equal(r.calls.len, all ? (size_t)count * strlen("now {};") : 0);
        assert_string_equal(r.content.data, all ? "" : text.data);
        free_result(&r);
        weft__buf_free(&text);
    }
    json_decref(tools);
}

static void content_is_not_held_back(void **unused)
{
    (void)unused;
    struct weft__buf content, reasoning;
    const struct weft__extracted out = {&content, &reasoning};
    struct weft__extract x = {.format = WEFT__CALLS_HERMES};
    weft__buf_init(&content, 100);
    weft__buf_init(&reasoning, 100);
    weft__extract_init(&x);
    weft__extract_push(&x, "a <b", 4, &out);
    assert_string_equal(content.data, "a <b");
    weft__extract_push(&x, " <tool_", 7, &out);
    assert_string_equal(content.data, "a <b");
    weft__extract_push(&x, "x", 1, &out);
    assert_string_equal(content.data, "a <b <tool_x");
    weft__extract_free(&x);
    weft__buf_free(&content);
    weft__buf_free(&reasoning);
}

static void templates_tell_the_format(void **unused)
{
    (void)unused;
    static const struct {
        const char *file;
        enum weft__calls_format format;
    } known[] = {
        {"qwen3", WEFT__CALLS_HERMES}, {"glm_4_6", WEFT__CALLS_GLM},
        {"glm_4_7", WEFT__CALLS_GLM},  {"deepseek_v3", WEFT__CALLS_DEEPSEEK},
        {"atlas", WEFT__CALLS_NONE},   {"smollm2", WEFT__CALLS_NONE},
    };
    for (size_t i = 0; i < WEFT__COUNT(known); i++) {
        char path[300], *text;
        size_t len;
        (void)snprintf(path, sizeof path, WEFT_SOURCE_DIR "/tests/golden/templates/%s.jinja",
                       known[i].file);
        assert_int_equal(weft__read_file(path, 1 << 20, &text, &len, NULL), WEFT_OK);
        assert_int_equal(weft__calls_format(text), known[i].format);
        free(text);
    }
    assert_int_equal(weft__calls_format("... [TOOL_CALLS] ..."), WEFT__CALLS_MISTRAL);
    assert_int_equal(weft__calls_format("<tool_call>\n<function=x>"), WEFT__CALLS_NONE);
    assert_true(weft__extract_mark("</think>", 8));
    assert_false(weft__extract_mark("<|im_end|>", 10));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_gives_the_same),
        cmocka_unit_test(calls_are_limited),
        cmocka_unit_test(content_is_not_held_back),
        cmocka_unit_test(templates_tell_the_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
