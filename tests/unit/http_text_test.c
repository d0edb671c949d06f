/* Stop strings against a definition that looks at every prefix, JSON text against jansson. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "http/private.h"

static uint32_t next(uint32_t *state) { return *state = *state * 1664525U + 1013904223U; }

/* The definition: the text ends at the first position where some stop is complete; of those
 * complete there, the longest. */
static int reference(const struct weft__stops *stops, const char *text, size_t len, size_t *left)
{
    for (size_t end = 1; end <= len; end++) {
        int found = -1;
        for (int i = 0; i < stops->count; i++) {
            struct weft__slice s = stops->stop[i];
            if (s.len <= end && memcmp(text + end - s.len, s.data, s.len) == 0 &&
                (found < 0 || s.len > stops->stop[found].len))
                found = i;
        }
        if (found >= 0) {
            *left = stops->keep ? end : end - stops->stop[found].len;
            return found;
        }
    }
    *left = len;
    return -1;
}

static void any_cut_gives_the_same(void **unused)
{
    (void)unused;
    static const char *const words[] = {"a",    "ab",  "ba",       "aab",
                                        "abab", "bbb", "\xc3\xa4", "b\xc3\xa4"};
    static const char *const letters[] = {"a", "b", "\xc3\xa4"};
    uint32_t state = 1;
    int stopped = 0;
    for (int round = 0; round < 20000; round++) {
        struct weft__stops stops = {.count = (int)(next(&state) >> 16) % 4, .keep = round % 2};
        for (int i = 0; i < stops.count; i++) {
            const char *w = words[(next(&state) >> 16) % WEFT__COUNT(words)];
            stops.stop[i] = (struct weft__slice){w, strlen(w)};
        }
        char text[64] = "";
        size_t len = 0, left;
        for (int i = 0; i < 12; i++) {
            const char *l = letters[(next(&state) >> 16) % (round % 3 ? 3 : 2)];
            memcpy(text + len, l, strlen(l));
            len += strlen(l);
        }
        struct weft__tail tail;
        struct weft__buf out;
        weft__buf_init(&tail.held, 1000);
        weft__buf_init(&out, 1000);
        int found = -1;
        for (size_t at = 0; at < len && found < 0;) {
            size_t n = 1 + (next(&state) >> 16) % 5;
            while (at + n < len && ((unsigned char)text[at + n] & 0xc0) == 0x80) n++;
            if (n > len - at) n = len - at;
            found = weft__tail_push(&tail, &stops, text + at, n, &out);
            /* What is out can't be taken back, so it must be a beginning of the result. */
            (void)reference(&stops, text, len, &left);
            assert_true(out.len <= left);
            at += n;
        }
        if (found < 0) weft__tail_finish(&tail, &out);
        int wanted = reference(&stops, text, len, &left);
        assert_true((found < 0) == (wanted < 0));
        if (found >= 0) assert_int_equal(stops.stop[found].len, stops.stop[wanted].len);
        assert_int_equal(out.len, left);
        assert_true(out.len == 0 || memcmp(out.data, text, left) == 0);
        stopped += found >= 0;
        weft__buf_free(&tail.held);
        weft__buf_free(&out);
    }
    assert_true(stopped > 5000 && stopped < 19000);
}

static void held_text_is_as_short_as_can_be(void **unused)
{
    (void)unused;
    const struct weft__stops stops = {.stop = {{"Paris.", 6}}, .count = 1};
    struct weft__tail tail;
    struct weft__buf out;
    weft__buf_init(&tail.held, 1000);
    weft__buf_init(&out, 1000);
    assert_int_equal(weft__tail_push(&tail, &stops, "is Par", 6, &out), -1);
    assert_string_equal(out.data, "is ");
    assert_int_equal(weft__tail_push(&tail, &stops, "P", 1, &out), -1);
    assert_string_equal(out.data, "is Par");
    assert_int_equal(weft__tail_push(&tail, &stops, "aris.!", 6, &out), 0);
    assert_string_equal(out.data, "is Par");
    weft__buf_free(&tail.held);
    weft__buf_free(&out);
}

static void strings_survive_jansson(void **unused)
{
    (void)unused;
    uint32_t state = 7;
    for (int round = 0; round < 20000; round++) {
        char bytes[24];
        size_t len = (next(&state) >> 16) % sizeof bytes;
        for (size_t i = 0; i < len; i++) {
            uint32_t r = next(&state) >> 16;
            bytes[i] = (char)(round % 2 ? r : r % 0x60 + (r & 0x100 ? 0xc0 : 0x10));
        }
        struct weft__buf out;
        weft__buf_init(&out, 1000);
        weft__put_string(&out, bytes, len);
        json_t *value = json_loadb(out.data, out.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(value);
        assert_null(memchr(out.data, '\n', out.len));
        json_t *direct = json_stringn(bytes, len);
        if (direct != NULL) assert_true(json_equal(value, direct));
        json_decref(value);
        json_decref(direct);
        weft__buf_free(&out);
    }
}

static void ill_formed_text_is_replaced(void **unused)
{
    (void)unused;
    static const struct {
        const char *bytes, *json;
    } cases[] = {
        {"a\xff", "\"a\xef\xbf\xbd\""},
        {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* a surrogate */
        {"\xc0\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\""},                 /* overlong */
        {"\xf0\x9f\x98\x80", "\"\xf0\x9f\x98\x80\""},
        {"\"\\\b\n\t\r\x01\x7f", "\"\\\"\\\\\\u0008\\n\\t\\r\\u0001\\u007f\""},
        {"", "\"\""},
    };
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        struct weft__buf out;
        weft__buf_init(&out, 1000);
        weft__put_string(&out, cases[i].bytes, strlen(cases[i].bytes));
        assert_string_equal(out.data, cases[i].json);
        weft__buf_free(&out);
    }
}

/* lm-eval compares numbers of one answer for equality: printing must not merge or split floats. */
static void logprobs_keep_their_bits(void **unused)
{
    (void)unused;
    uint32_t state = 3;
    struct weft__buf out;
    weft__buf_init(&out, 1000);
    for (int round = 0; round < 20000; round++) {
        float value = -(float)(next(&state) >> 8) / (float)(1 << (next(&state) >> 28));
        if (value < -9999) value /= 1e6F;
        out.len = 0;
        weft__put_logprob(&out, value);
        assert_true(strtof(out.data, NULL) == value);
    }
    out.len = 0;
    weft__put_logprob(&out, -strtof("inf", NULL));
    assert_string_equal(out.data, "-9999.0");
    weft__buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_cut_gives_the_same),
        cmocka_unit_test(held_text_is_as_short_as_can_be),
        cmocka_unit_test(strings_survive_jansson),
        cmocka_unit_test(ill_formed_text_is_replaced),
        cmocka_unit_test(logprobs_keep_their_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
