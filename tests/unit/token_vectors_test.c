/* Ids and texts against those of the `tokenizers` package (tools/make_token_golden.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <threads.h>

#include "token_golden.h"

static struct corpus corpus;

static int setup(void **state)
{
    (void)state;
    read_corpus(&corpus);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    free(corpus.data);
    return 0;
}

/* [1,2,3], or null: then *given is false. */
static void read_ids(struct weft__json *json, struct weft__ids *ids, bool *given)
{
    int64_t id;
    ids->len = 0;
    *given = weft__json_kind(json) == WEFT__JSON_ARRAY;
    if (!*given) {
        weft__json_skip(json);
        return;
    }
    (void)weft__json_enter(json, WEFT__JSON_ARRAY);
    while (weft__json_item(json) && weft__json_int(json, &id)) {
        if (ids->len == ids->cap) {
            ids->cap = ids->cap * 2 + 64;
            ids->data = realloc(ids->data, ids->cap * sizeof *ids->data);
        }
        ids->data[ids->len++] = (int32_t)id;
    }
}

static void check_ids(const char *name, size_t line, const char *what,
                      const struct weft__tokenizer *tok, unsigned flags,
                      const struct weft__ids *want)
{
    struct weft__ids got = {0};
    weft_error err = {0};
    const char *text = corpus.data + corpus.start[line];
    size_t len = corpus.start[line + 1] - corpus.start[line];
    if (weft__tokenizer_encode(tok, text, len, flags, &got, &err) != WEFT_OK)
        fail_msg("%s", err.text);
    bool equal = got.len == want->len;
    for (size_t i = 0; equal && i < got.len; i++) equal = got.data[i] == want->data[i];
    if (!equal) {
        size_t i = 0;
        while (i < got.len && i < want->len && got.data[i] == want->data[i]) i++;
        fail_msg("%s, text %zu, %s: %zu ids, not %zu; first difference at %zu", name, line, what,
                 got.len, want->len, i);
    }
    weft__ids_free(&got);
}

static void check_line(const char *name, size_t line, const struct weft__tokenizer *tok,
                       struct weft__json *json, struct weft__buf *scratch, struct weft__ids *ids)
{
    struct weft__ids plain = {0};
    struct weft__json_text decoded = {"", 0};
    struct weft__buf text;
    bool given, good;
    good = weft__json_enter(json, WEFT__JSON_ARRAY) && weft__json_item(json);
    read_ids(json, ids, &given);
    check_ids(name, line, "ids", tok, WEFT__ADD_SPECIAL | WEFT__PARSE_SPECIAL, ids);
    good = good && weft__json_item(json);
    read_ids(json, &plain, &given);
    check_ids(name, line, "ids without special tokens", tok, WEFT__ADD_SPECIAL,
              given ? &plain : ids);
    good = good && weft__json_item(json);
    bool compare = weft__json_kind(json) == WEFT__JSON_STRING;
    if (!compare)
        weft__json_skip(json);
    else if (!weft__json_string(json, scratch, &decoded))
        good = false;
    if (!good || weft__json_item(json))
        fail_msg("%s.expected, line %zu: malformed", name, line + 1);
    weft__buf_init(&text, 1 << 24);
    weft__tokenizer_decode(tok, ids->data, ids->len, true, &text);
    assert_false(text.failed);
    if (compare && (text.len != decoded.len ||
                    (text.len > 0 && memcmp(text.data, decoded.data, text.len) != 0)))
        fail_msg("%s, text %zu: decodes to '%s', not '%.*s'", name, line, text.data,
                 (int)decoded.len, decoded.data);
    weft__buf_free(&text);
    weft__ids_free(&plain);
}

static void vectors(void **state)
{
    (void)state;
    struct names names;
    list_golden(".expected", &names);
    assert_true(names.count >= 25);
    for (size_t n = 0; n < names.count; n++) {
        const char *name = names.name[n];
        char path[512];
        size_t len, line = 0;
        struct weft__tokenizer *tok = load_golden(name);
        (void)snprintf(path, sizeof path, GOLDEN "%s.expected", name);
        char *file = read_golden(path, &len), *at = file;
        struct weft__buf scratch;
        struct weft__ids ids = {0};
        weft__buf_init(&scratch, 1 << 24);
        while (at < file + len) {
            char *end = memchr(at, '\n', (size_t)(file + len - at));
            assert_true(end != NULL && line < corpus.count);
            struct weft__json json;
            weft__json_init(&json, at, (size_t)(end - at));
            check_line(name, line++, tok, &json, &scratch, &ids);
            at = end + 1;
        }
        if (line != corpus.count) fail_msg("%s.expected has %zu lines", name, line);
        weft__ids_free(&ids);
        weft__buf_free(&scratch);
        free(file);
        weft__tokenizer_free(tok);
    }
    print_message("%zu tokenizers, %zu texts each\n", names.count, corpus.count);
}

/* Several threads on one tokenizer. Each returns whether its results equal the first thread's. */
struct job {
    const struct weft__tokenizer *tok;
    struct weft__ids ids;
    bool good;
};

static int encode_all(void *context)
{
    struct job *job = context;
    job->good = true;
    for (int round = 0; round < 20; round++) {
        job->ids.len = 0;
        for (size_t i = 0; i < corpus.count; i++)
            job->good &= weft__tokenizer_encode(job->tok, corpus.data + corpus.start[i],
                                                corpus.start[i + 1] - corpus.start[i],
                                                WEFT__PARSE_SPECIAL, &job->ids, NULL) == WEFT_OK;
    }
    return 0;
}

static void threads_share_a_tokenizer(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    struct weft__tokenizer *tok = load_golden("qwen3");
    struct job jobs[THREADS] = {{0}};
    thrd_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        jobs[i].tok = tok;
        assert_int_equal(thrd_create(&threads[i], encode_all, &jobs[i]), thrd_success);
    }
    for (int i = 0; i < THREADS; i++) (void)thrd_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        assert_true(jobs[i].good && jobs[i].ids.len == jobs[0].ids.len && jobs[0].ids.len > 0);
        assert_memory_equal(jobs[i].ids.data, jobs[0].ids.data, jobs[0].ids.len * sizeof(int32_t));
    }
    for (int i = 0; i < THREADS; i++) weft__ids_free(&jobs[i].ids);
    weft__tokenizer_free(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
