/* The template language against the jinja2 package (tests/golden/templates), its error messages,
 * and its limits on hostile templates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "token/jinja.h"

#define GOLDEN WEFT_SOURCE_DIR "/tests/golden/templates/"
enum { NOW = 1735787045 }; /* 2025-01-02 03:04:05 UTC, as in tools/make_template_golden.py */

static json_t *load(const char *name)
{
    char path[500];
    json_error_t err;
    (void)snprintf(path, sizeof path, GOLDEN "%s.json", name);
    json_t *out = json_load_file(path, JSON_ALLOW_NUL, &err);
    if (out == NULL) print_error("%s: %s\n", path, err.text);
    return out;
}

static weft_status render(const char *text, size_t len, json_t *vars, struct weft__buf *out,
                          weft_error *err)
{
    struct weft__template *tmpl;
    weft_status status = weft__template_parse("template", text, len, &tmpl, err);
    if (status != WEFT_OK) return status;
    status = weft__template_render(tmpl, vars, NOW, out, err);
    weft__template_free(tmpl);
    return status;
}

/* 1 when the text is not what jinja2 makes; want null: jinja2 refuses. */
static int differs(const char *name, json_t *text, json_t *vars, json_t *want)
{
    struct weft__buf out;
    weft_error err = {0};
    weft__buf_init(&out, WEFT__TEMPLATE_MAX_OUTPUT);
    weft_status status =
        render(json_string_value(text), json_string_length(text), vars, &out, &err);
    int bad = status == WEFT_OK
                  ? !json_is_string(want) || json_string_length(want) != out.len ||
                        memcmp(json_string_value(want), out.data ? out.data : "", out.len) != 0
                  : json_is_string(want) || err.text[0] == '\0';
    if (bad)
        print_error("%s\n  want %s\n  got  %s\n", name,
                    json_is_string(want) ? json_string_value(want) : "(an error)",
                    status != WEFT_OK  ? err.text
                    : out.data != NULL ? out.data
                                       : "");
    weft__buf_free(&out);
    return bad;
}

static void snippets_render_as_jinja2(void **state)
{
    json_t *cases = load("snippets"), *vars = load("variables"), *pair;
    size_t i;
    int bad = 0;
    (void)state;
    assert_true(json_array_size(cases) > 2500);
    json_array_foreach (cases, i, pair) {
        json_t *text = json_array_get(pair, 0);
        bad += differs(json_string_value(text), text, json_array_get(vars, 0),
                       json_array_get(pair, 1));
    }
    json_decref(cases);
    json_decref(vars);
    assert_int_equal(bad, 0);
}

static json_t *read_template(const char *name)
{
    char path[500], *text;
    size_t len;
    weft_error err;
    (void)snprintf(path, sizeof path, GOLDEN "%s.jinja", name);
    if (weft__read_file(path, WEFT__TEMPLATE_MAX_TEXT, &text, &len, &err) != WEFT_OK) return NULL;
    json_t *out = json_stringn(text, len);
    free(text);
    return out;
}

static const char *const models[] = {"atlas",   "smollm2", "qwen3",
                                     "glm_4_6", "glm_4_7", "deepseek_v3"};

static void real_templates_render_as_jinja2(void **state)
{
    json_t *conversations = load("conversations");
    int bad = 0;
    (void)state;
    assert_true(json_array_size(conversations) >= 70);
    for (size_t m = 0; m < WEFT__COUNT(models); m++) {
        json_t *text = read_template(models[m]), *want = load(models[m]), *pair;
        size_t i;
        assert_int_equal(json_array_size(want), json_array_size(conversations));
        json_array_foreach (conversations, i, pair) {
            char name[100];
            (void)snprintf(name, sizeof name, "%s, %s", models[m],
                           json_string_value(json_array_get(pair, 0)));
            bad += differs(name, text, json_array_get(pair, 1),
                           json_array_get(json_array_get(want, i), 1));
        }
        json_decref(text);
        json_decref(want);
    }
    json_decref(conversations);
    assert_int_equal(bad, 0);
}

/* ---- errors ---- */

static void errors_name_the_construct_and_the_place(void **state)
{
    static const struct {
        const char *text;
        weft_status status;
        const char *message;
    } cases[] = {
        {"a\n  {% include 'x' %}", WEFT_UNSUPPORTED, "line 2, column 6: no tag named 'include'"},
        {"{% extends 'x' %}", WEFT_UNSUPPORTED, "line 1, column 4: no tag named 'extends'"},
        {"\u00e9{{ x|nosuch }}", WEFT_UNSUPPORTED, "column 7: no filter or test named 'nosuch'"},
        {"{% if a %}\n{{ x|nosuch }}{% endif %}", WEFT_UNSUPPORTED,
         "chat template: line 2, column 6: no filter named 'nosuch'"},
        {"{{ x is nosuch }}", WEFT_UNSUPPORTED, "column 9: no filter or test named 'nosuch'"},
        {"{{ 99999999999999999999 }}", WEFT_UNSUPPORTED, "column 4: a number beyond 64 bits"},
        {"{{ '\\ud800' }}", WEFT_UNSUPPORTED, "column 5: the string escape \\u"},
        {"{% if a %}", WEFT_FORMAT, "unexpected end of the template"},
        {"{% for x in a %}{% endif %}", WEFT_FORMAT, "column 20: unexpected tag 'endif'"},
        {"{{ a b }}", WEFT_FORMAT, "column 6: unexpected 'b'"},
        {"{{ 'a }}", WEFT_FORMAT, "column 4: a string that does not end"},
        {"{{ (1] }}", WEFT_FORMAT, "column 6: unexpected ']', expected ')'"},
        {"{{ ? }}", WEFT_FORMAT, "column 4: unexpected character '?'"},
        {"\n\n{{ a.b.c }}", WEFT_INVALID,
         "chat template: line 3, column 8: 'dict object' has no "
         "attribute 'b'"},
        {"{{ nope.x }}", WEFT_INVALID, "'nope' is undefined"},
        {"{{ 1 + 'a' }}", WEFT_INVALID, "unsupported operand type(s) for +: 'int' and 'str'"},
        {"{{ strftime_now('%Q') }}", WEFT_UNSUPPORTED, "the time format '%Q': not supported"},
        {"\xff", WEFT_FORMAT, "not valid UTF-8"},
    };
    json_t *vars = json_pack("{s:{}}", "a");
    (void)state;
    json_object_set_new(json_object_get(vars, "a"), "k", json_true());
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        struct weft__buf out;
        weft_error err = {0};
        weft__buf_init(&out, 1000);
        weft_status status = render(cases[i].text, strlen(cases[i].text), vars, &out, &err);
        if (status != cases[i].status || strstr(err.text, cases[i].message) == NULL)
            print_error("%s: %s\n", cases[i].text, err.text);
        assert_int_equal(status, cases[i].status);
        assert_int_equal(err.status, status);
        assert_non_null(strstr(err.text, cases[i].message));
        weft__buf_free(&out);
    }
    json_decref(vars);
}

/* What jinja2 renders and weft does not: refused by line and column, never rendered otherwise. */
static const char *const refused[] = {
    "{% with a = 1 %}{{ a }}{% endwith %}",
    "{% print 1 %}",
    "{% raw %}{{ x }}{% endraw %}",
    "{% include 'x' %}",
    "{% block b %}{% endblock %}",
    "{% for x in [[1]] recursive %}{{ loop(x) }}{% endfor %}",
    "{% for x in [1] if x %}{{ loop.length }}{% endfor %}",
    "{% for x in [1] %}{{ loop.depth }}{% endfor %}",
    "{% for x in [1] %}{{ loop.changed(x) }}{% endfor %}",
    "{% for x in [1] %}{{ loop }}{% endfor %}",
    "{% macro f() %}{{ varargs }}{% endmacro %}{{ f(1) }}",
    "{% macro f() %}{% endmacro %}{{ f }}",
    "{% macro f() %}{% endmacro %}{{ f.name }}",
    "{{ cycler(1, 2).next() }}",
    "{{ joiner(',') is defined and joiner(',')() }}",
    "{{ dict([('a', 1)]) }}",
    "{{ dict(**{'a': 1}) }}",
    "{{ namespace(a=1) }}",
    "{{ range(3) }}",
    "{{ [1]|map('string') }}",
    "{{ [1]|map(attribute='a', default=1)|list }}",
    "{{ '%s' % 1 }}",
    "{{ '%s'|format(1) }}",
    "{{ '{:>5}'.format(1) }}",
    "{{ '{a}'.format(a=1) }}",
    "{{ 2 ** 3 }}",
    "{{ 7.5 // 2 }}",
    "{{ 7.5 % 2 }}",
    "{{ 9007199254740993 / 3 }}",
    "{{ 9223372036854775807 + 1 }}",
    "{{ 0x1f }}",
    "{{ 1_000 }}",
    "{{ 1e5 }}",
    "{{ '\\0' }}",
    "{{ '\\N{DASH}' }}",
    "{{ '3.7'|int }}",
    "{{ '1_0'|int }}",
    "{{ 'ff'|int(base=16) }}",
    "{{ 2.5|round }}",
    "{{ {'a': 1}.keys() }}",
    "{{ {1: 2}|tojson }}",
    "{{ 'abc'[::-1] }}",
    "{{ 'abc'|reverse }}",
    "{{ [1]|sum }}",
    "{{ 'a b'|wordcount }}",
    "{{ 'a b'|truncate(1) }}",
    "{{ [1]|batch(2)|list }}",
    "{{ [{'a': 1}]|groupby('a') }}",
    "{{ [{'a': 1}]|sort(attribute='a,b') }}",
    "{{ 1 is sameas 1 }}",
    "{{ 'a' is lower }}",
    "{{ 'a'.encode() }}",
    "{{ 'a'.isdigit() }}",
    "{{ 'a'.partition('b') }}",
    "{{ 'a b'.rsplit() }}",
    "{{ 'a'.startswith('b', 1) }}",
    "{{ 'a'.upper }}",
    "{{ '\u00df'|capitalize }}",
    "{{ ('a'|safe).replace('a', '<') }}",
    "{{ [1].index(1) }}",
    "{{ {}.copy() }}",
    "{{ strftime_now('%f') }}",
};

static void what_no_chat_template_uses_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < WEFT__COUNT(refused); i++) {
        struct weft__buf out;
        weft_error err = {0};
        weft__buf_init(&out, 1000);
        weft_status status = render(refused[i], strlen(refused[i]), NULL, &out, &err);
        if (status != WEFT_UNSUPPORTED) print_error("%s: %s\n", refused[i], err.text);
        assert_int_equal(status, WEFT_UNSUPPORTED);
        assert_non_null(strstr(err.text, "line 1, column "));
        weft__buf_free(&out);
    }
}

static void exceptions_pass_their_message_on(void **state)
{
    static const char text[] = "before {{ raise_exception('Roles must\nalternate: ' ~ role) }}";
    json_t *vars = json_pack("{s:s}", "role", "user");
    struct weft__buf out;
    weft_error err = {0};
    (void)state;
    weft__buf_init(&out, 1000);
    weft__buf_puts(&out, "kept");
    assert_int_equal(render(text, strlen(text), vars, &out, &err), WEFT_INVALID);
    assert_string_equal(err.text, "Roles must alternate: user");
    assert_string_equal(out.data, "kept");
    /* Without a place for the error, and with a message longer than its place, cut at a character.
     */
    assert_int_equal(render(text, strlen(text), vars, &out, NULL), WEFT_INVALID);
    static const char longer[] = "{{ raise_exception('a\u00e9' * 400) }}";
    assert_int_equal(render(longer, strlen(longer), vars, &out, &err), WEFT_INVALID);
    assert_true(strlen(err.text) >= 497 && weft__utf8_valid(err.text, strlen(err.text)));
    weft__buf_free(&out);
    json_decref(vars);
}

static void the_buffer_may_be_smaller_than_the_text(void **state)
{
    struct weft__buf out;
    weft_error err;
    (void)state;
    weft__buf_init(&out, 10);
    assert_int_equal(render("12345", 5, NULL, &out, &err), WEFT_OK);
    assert_int_equal(render("123456", 6, NULL, &out, &err), WEFT_TOO_LONG);
    assert_string_equal(out.data, "12345");
    assert_false(out.failed);
    assert_int_equal(render("12345", 5, NULL, &out, &err), WEFT_OK);
    assert_string_equal(out.data, "1234512345");
    weft__buf_free(&out);
}

/* ---- limits ---- */

static char *repeated(const char *before, const char *part, int times, const char *after)
{
    struct weft__buf out;
    weft__buf_init(&out, 8 << 20);
    weft__buf_puts(&out, before);
    for (int i = 0; i < times; i++) weft__buf_puts(&out, part);
    weft__buf_puts(&out, after);
    return out.data;
}

static void assert_too_long(const char *text)
{
    struct weft__buf out;
    weft_error err = {0};
    weft__buf_init(&out, WEFT__TEMPLATE_MAX_OUTPUT);
    uint64_t start = weft__now_ns();
    weft_status status = render(text, strlen(text), NULL, &out, &err);
    if (status != WEFT_TOO_LONG) print_error("%.100s: %s\n", text, err.text);
    assert_int_equal(status, WEFT_TOO_LONG);
    assert_int_equal(out.len, 0);
    /* About a second at worst where this was written; sanitizers and busy machines get more. */
    assert_true(weft__now_ns() - start < 60000000000u);
    weft__buf_free(&out);
}

static void hostile_templates_end_soon(void **state)
{
    static const char *const cases[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ 'x' * 1000000 }}{% endfor %}",
        "{{ 'x' * 99999999999 }}",
        "{{ [1] * 99999999999 }}",
        "{{ ([0] * 100000) * 100000 }}",
        "{{ 'x'|indent(999999999) }}",
        "{{ [1]|tojson(indent=999999999) }}",
        "{{ range(1000000) }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% "
        "endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = "
        "ns.x|replace('a', ns.x) %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% "
        "endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% "
        "endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% "
        "endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = {'a': ns.x} %}{% "
        "endfor %}{{ ns.x|tojson }}",
        "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}"
        "{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
        "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}"
        "{% set n.y = [n.y] %}{% endfor %}{{ n.x < n.y }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f() %}{{ caller() }}{% call f() %}{% endcall %}{% endmacro %}"
        "{% call f() %}{% endcall %}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% set ns = namespace() %}{% macro f() %}{% for x in [1] if ns.f() %}{% endfor %}"
        "{% endmacro %}{% set ns.f = f %}{{ f() }}",
        "{% set s = 'a' * 8000000 %}{% for i in range(99999) %}{{ 'b' in s }}{% endfor %}",
        "{% set s = 'a' * 8000000 %}{% set t = 'a' * 8000000 %}{% for i in range(99999) %}"
        "{{ s == t }}{{ s|length }}{% endfor %}",
        "{% set s = 'ab' * 4000000 %}{{ s.strip(s) }}",
        "{% set s = 'ab' * 4000000 %}{{ s.rfind('a' * 4000000) }}",
        "{% set s = 'ab' * 4000000 %}{% for c in s %}{% endfor %}",
        "{% set s = 'a\\n' * 4000000 %}{{ s.split('\\n') }}{{ s|indent }}",
        "{{ ('x' * 8000000)|upper }}{{ ('x' * 8000000)|upper }}",
    };
    (void)state;
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) assert_too_long(cases[i]);
}

static void deep_templates_end_soon(void **state)
{
    static const struct {
        const char *before, *part, *after;
    } cases[] = {
        {"{{ ", "(", "1"},
        {"{{ ", "[", "1"},
        {"{{ ", "{1:", "1"},
        {"{{ ", "- ", "1 }}"},
        {"{{ ", "not ", "1 }}"},
        {"{{ ", "1 if 1 else ", "1 }}"},
        {"{{ 1", " + 1", " }}"},
        {"{{ a", ".b", " }}"},
        {"{{ a", "|upper", " }}"},
        {"{{ a", "(", " }}"},
        {"{{ 1", " and 1", " }}"},
        {"{{ 1", " if 1", " }}"},
        {"{% for a in b %}", "{% for a in b %}", ""},
        {"", "{% if 1 %}", ""},
        {"{% if 1 %}", "{% else %}{% if 1 %}", ""},
        {"", "{% macro f() %}", ""},
        {"{% filter upper", "|upper", " %}a{% endfilter %}"},
        {"{% for ", "(", "a"},
    };
    (void)state;
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        char *text = repeated(cases[i].before, cases[i].part, 50000, cases[i].after);
        assert_too_long(text);
        free(text);
    }
    char *text = repeated("", "x", WEFT__TEMPLATE_MAX_TEXT + 1, "");
    assert_too_long(text);
    free(text);
}

/* What is long, but not too long. */
static void large_templates_and_texts_render(void **state)
{
    static const struct {
        const char *before, *part;
        int times;
        const char *after;
        size_t len;
    } cases[] = {
        {"", "x", WEFT__TEMPLATE_MAX_TEXT, "", WEFT__TEMPLATE_MAX_TEXT},
        {"{{ 1", " ~ 1", 100000, " }}", 100001},
        {"{{ 'x'", "+ 'x'", 300, " }}", 301},
        {"{% if 0 %}", "{% elif 0 %}", 50000, "{% else %}a{% endif %}", 1},
        {"", "{{ 'ab'|upper }}", 50000, "", 100000},
        /* Built piece by piece: in place, or the memory would not suffice. */
        {"{% set ns = namespace(t='') %}{% for i in range(99999) %}{% set ns.t = ns.t + 'abcdefgh' "
         "+ '\n' %}{% endfor %}{{ ns.t }}",
         "", 0, "", 899991},
        {"{{ 'x' * 8000000 }}", "{{ 'y' * 8000000 }}", 1, "", 16000000},
    };
    (void)state;
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        struct weft__buf out;
        weft_error err = {0};
        char *text = repeated(cases[i].before, cases[i].part, cases[i].times, cases[i].after);
        weft__buf_init(&out, WEFT__TEMPLATE_MAX_OUTPUT);
        if (render(text, strlen(text), NULL, &out, &err) != WEFT_OK)
            print_error("%.60s: %s\n", text, err.text);
        assert_int_equal(out.len, cases[i].len);
        weft__buf_free(&out);
        free(text);
    }
}

static void deep_data_is_refused(void **state)
{
    json_t *vars = json_object(), *inner = json_array();
    struct weft__buf out;
    weft_error err;
    (void)state;
    for (int i = 0; i < 500; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, inner);
        inner = outer;
    }
    json_object_set_new(vars, "x", inner);
    weft__buf_init(&out, 10000);
    assert_int_equal(render("{{ x }}", 7, vars, &out, &err), WEFT_TOO_LONG);
    assert_int_equal(render("{{ y }}", 7, vars, &out, &err), WEFT_OK); /* not looked at */
    weft__buf_free(&out);
    json_decref(vars);
}

/* ---- threads ---- */

struct worker {
    const struct weft__template *tmpl;
    json_t *vars;
    char *want;
    int bad;
};

static void *render_often(void *context)
{
    struct worker *worker = context;
    for (int i = 0; i < 50; i++) {
        struct weft__buf out;
        weft__buf_init(&out, 1 << 20);
        weft_status status = weft__template_render(worker->tmpl, worker->vars, NOW, &out, NULL);
        worker->bad += status != WEFT_OK || strcmp(out.data, worker->want) != 0;
        weft__buf_free(&out);
    }
    return NULL;
}

static void threads_share_a_template(void **state)
{
    json_t *text = read_template("glm_4_7"), *conversations = load("conversations"),
           *want = load("glm_4_7");
    struct weft__template *tmpl;
    struct worker workers[4];
    pthread_t threads[4];
    int bad = 0;
    (void)state;
    assert_int_equal(
        weft__template_parse("glm", json_string_value(text), json_string_length(text), &tmpl, NULL),
        WEFT_OK);
    for (size_t i = 0; i < 4; i++) {
        size_t which = 46 + i; /* calls */
        workers[i] = (struct worker){
            .tmpl = tmpl,
            .vars = json_deep_copy(json_array_get(json_array_get(conversations, which), 1)),
            .want = strdup(json_string_value(json_array_get(json_array_get(want, which), 1)))};
        assert_int_equal(pthread_create(&threads[i], NULL, render_often, &workers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        bad += workers[i].bad;
        json_decref(workers[i].vars);
        free(workers[i].want);
    }
    assert_int_equal(bad, 0);
    weft__template_free(tmpl);
    json_decref(text);
    json_decref(conversations);
    json_decref(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snippets_render_as_jinja2),
        cmocka_unit_test(real_templates_render_as_jinja2),
        cmocka_unit_test(errors_name_the_construct_and_the_place),
        cmocka_unit_test(what_no_chat_template_uses_is_refused),
        cmocka_unit_test(exceptions_pass_their_message_on),
        cmocka_unit_test(the_buffer_may_be_smaller_than_the_text),
        cmocka_unit_test(hostile_templates_end_soon),
        cmocka_unit_test(deep_templates_end_soon),
        cmocka_unit_test(large_templates_and_texts_render),
        cmocka_unit_test(deep_data_is_refused),
        cmocka_unit_test(threads_share_a_template),
    };
    setenv("TZ", "UTC", 1); /* strftime_now shows local time */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
