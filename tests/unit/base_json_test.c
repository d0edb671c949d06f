/* The pull reader for JSON and the UTF-8 functions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

static bool accepts(const char *text, size_t len)
{
    struct weft__json json;
    weft__json_init(&json, text, len);
    weft__json_skip(&json);
    return weft__json_end(&json);
}

static const char *const good[] = {"{}",
                                   "[]",
                                   " [ ] ",
                                   "0",
                                   "-0",
                                   "12",
                                   "1.5",
                                   "1e9",
                                   "-1.25E-7",
                                   "true",
                                   "false",
                                   "null",
                                   "\"\"",
                                   "\"a\\n\\u00e9\\\\\\/\"",
                                   "[1,2,3]",
                                   "{\"a\":1}",
                                   "{\"a\":[{},[],\"x\"],\"b\":null}",
                                   "\"\\ud83d\\ude00\"",
                                   "\t\r\n1\n",
                                   "[[[[]]]]",
                                   "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""};
static const char *const bad[] = {"",
                                  " ",
                                  "{",
                                  "[",
                                  "]",
                                  "}",
                                  "[1",
                                  "[1,",
                                  "[,1]",
                                  "[1,]",
                                  "[1 2]",
                                  "{1:2}",
                                  "{\"a\"}",
                                  "{\"a\":}",
                                  "{\"a\":1,}",
                                  "{\"a\" 1}",
                                  "{,}",
                                  "01",
                                  "+1",
                                  ".5",
                                  "1.",
                                  "1e",
                                  "1e+",
                                  "-",
                                  "--1",
                                  "tru",
                                  "nul",
                                  "True",
                                  "nan",
                                  "'a'",
                                  "\"",
                                  "\"a",
                                  "\"\\",
                                  "\"\\x\"",
                                  "\"\\u12\"",
                                  "\"\\u12g4\"",
                                  "\"\\ud800\"",
                                  "\"\\ud800x\"",
                                  "\"\\ud800\\u0041\"",
                                  "\"\\udc00\"",
                                  "\"\n\"",
                                  "\"\x01\"",
                                  "\"\x80\"",
                                  "\"\xc3\"",
                                  "\"\xed\xa0\x80\"",
                                  "\"\xc0\x80\"",
                                  "1 2",
                                  "[] []",
                                  "{}x",
                                  "/**/1"};

static void grammar(void **state)
{
    (void)state;
    for (size_t i = 0; i < WEFT__COUNT(good); i++)
        if (!accepts(good[i], strlen(good[i]))) fail_msg("refused: %s", good[i]);
    for (size_t i = 0; i < WEFT__COUNT(bad); i++)
        if (accepts(bad[i], strlen(bad[i]))) fail_msg("accepted: %s", bad[i]);
    assert_false(accepts("1\0", 2));
    assert_false(accepts("\"\0\"", 3));
}

static void depth_is_bounded(void **state)
{
    (void)state;
    char text[4096];
    for (size_t depth = 60; depth < 70; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        assert_int_equal(accepts(text, 2 * depth), depth <= WEFT__JSON_MAX_DEPTH);
    }
    memset(text, '[', sizeof text);
    assert_false(accepts(text, sizeof text));
}

/* Every proper prefix of a value is an error, and no read goes beyond the end. */
static void truncation(void **state)
{
    (void)state;
    static const char text[] =
        "{\"k\\u00e9\":[1,-2.5e3,\"a\\ud83d\\ude00\xe2\x82\xac\",true,null,{}]}";
    for (size_t len = 0; len < sizeof text - 1; len++) {
        char *copy = malloc(len + 1); /* so that a sanitizer sees its end */
        memcpy(copy, text, len);
        assert_false(accepts(copy, len));
        free(copy);
    }
    assert_true(accepts(text, sizeof text - 1));
}

static void values(void **state)
{
    (void)state;
    static const char text[] =
        "{ \"plain\" : \"abc\", \"esc\\t\" : \"x\\u0041\\n\\uD83D\\uDE00\\\"\", "
        "\"n\":[-9223372036854775807, 42 ,0], \"b\":true, \"skip\":{\"a\":[1]}, "
        "\"empty\":[], \"z\":null}";
    struct weft__json json;
    struct weft__json_text key, value;
    struct weft__buf keys, scratch;
    int64_t n;
    bool flag = false;
    weft__buf_init(&keys, 1 << 20);
    weft__buf_init(&scratch, 1 << 20);
    weft__json_init(&json, text, sizeof text - 1);
    assert_true(weft__json_enter(&json, WEFT__JSON_OBJECT));
    assert_true(weft__json_member(&json, &keys, &key));
    assert_true(key.len == 5 && memcmp(key.data, "plain", 5) == 0);
    assert_true(weft__json_string(&json, &scratch, &value));
    assert_true(value.len == 3 && value.data > text && value.data < text + sizeof text);
    assert_true(weft__json_member(&json, &keys, &key));
    assert_true(key.len == 4 && memcmp(key.data, "esc\t", 4) == 0);
    assert_true(weft__json_string(&json, &scratch, &value));
    assert_true(value.len == 8 && memcmp(value.data, "xA\n\xf0\x9f\x98\x80\"", 8) == 0);
    assert_true(weft__json_member(&json, &keys, &key) && weft__json_enter(&json, WEFT__JSON_ARRAY));
    assert_true(weft__json_item(&json) && weft__json_int(&json, &n) && n == -INT64_MAX);
    assert_true(weft__json_item(&json) && weft__json_int(&json, &n) && n == 42);
    assert_true(weft__json_item(&json) && weft__json_int(&json, &n) && n == 0);
    assert_false(weft__json_item(&json));
    assert_true(weft__json_member(&json, &keys, &key) && weft__json_bool(&json, &flag) && flag);
    assert_true(weft__json_member(&json, &keys, &key));
    struct weft__json copy = json; /* a copy reads on by itself */
    assert_true(weft__json_enter(&copy, WEFT__JSON_OBJECT));
    weft__json_skip(&json);
    assert_true(weft__json_member(&json, &keys, &key) && weft__json_enter(&json, WEFT__JSON_ARRAY));
    assert_false(weft__json_item(&json));
    assert_true(weft__json_member(&json, &keys, &key));
    assert_int_equal(weft__json_kind(&json), WEFT__JSON_NULL);
    weft__json_skip(&json);
    assert_false(weft__json_member(&json, &keys, &key));
    assert_true(weft__json_end(&json));
    weft__buf_free(&keys);
    weft__buf_free(&scratch);
}

static void errors_stick_and_say_where(void **state)
{
    (void)state;
    struct weft__json json;
    struct weft__buf scratch;
    struct weft__json_text text;
    weft_error err = {0};
    int64_t n;
    weft__buf_init(&scratch, 100);
    weft__json_init(&json, "[1.5, 2]", 8);
    assert_int_equal(weft__json_check(&json, "f", &err), WEFT_OK);
    assert_true(weft__json_enter(&json, WEFT__JSON_ARRAY) && weft__json_item(&json));
    assert_false(weft__json_int(&json, &n));
    assert_false(weft__json_item(&json));
    assert_false(weft__json_string(&json, &scratch, &text));
    assert_false(weft__json_end(&json));
    assert_int_equal(weft__json_kind(&json), WEFT__JSON_NONE);
    assert_int_equal(weft__json_check(&json, "f", &err), WEFT_FORMAT);
    assert_string_equal(err.text, "f: byte 4: expected an integer of 64 bits");
    weft__json_init(&json, "9223372036854775808", 19);
    assert_false(weft__json_int(&json, &n));
    weft__buf_free(&scratch);
}

/* All sequences of up to four bytes from the interesting ones against the definition of UTF-8. */
static bool well_formed(const unsigned char *b, int n)
{
    if (n == 1) return b[0] < 0x80;
    int code = n == 2 ? b[0] & 0x1f : n == 3 ? b[0] & 0xf : b[0] & 7;
    int lead = n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0, mask = n == 2 ? 0xe0 : n == 3 ? 0xf0 : 0xf8;
    if ((b[0] & mask) != lead) return false;
    for (int i = 1; i < n; i++) {
        if ((b[i] & 0xc0) != 0x80) return false;
        code = code << 6 | (b[i] & 0x3f);
    }
    static const int least[] = {0, 0, 0x80, 0x800, 0x10000};
    return code >= least[n] && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
}

/* Some well-formed character begins with these n bytes. */
static bool can_continue(const unsigned char *b, int n)
{
    unsigned char c[4] = {0x80, 0x80, 0x80, 0x80};
    memcpy(c, b, (size_t)n);
    for (int len = n + 1; len <= 4; len++)
        for (int x = 0x80; x < 0xc0; x++)
            for (int y = 0x80; y < 0xc0; y += 0x3f) {
                c[n] = (unsigned char)x;
                if (n + 1 < len) c[n + 1] = (unsigned char)y;
                if (well_formed(c, len)) return true;
            }
    return false;
}

static void utf8_by_definition(void **state)
{
    (void)state;
    static const unsigned char bytes[] = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf,
                                          0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee,
                                          0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff};
    const int kinds = (int)sizeof bytes;
    for (int i = 0; i < kinds * kinds * kinds * kinds; i++) {
        unsigned char b[4] = {bytes[i % kinds], bytes[i / kinds % kinds],
                              bytes[i / kinds / kinds % kinds], bytes[i / kinds / kinds / kinds]};
        for (int len = 1; len <= 4; len++) {
            uint32_t code = 0;
            int n = weft__utf8_next((const char *)b, (size_t)len, &code), want = 0;
            for (int k = 1; k <= len && want == 0; k++)
                if (well_formed(b, k)) want = k;
            if (want == 0) { /* the longest beginning, at least one byte; 0 if that is all */
                int k = 0;
                while (k < len && k < 3 && can_continue(b, k + 1)) k++;
                want = k == len ? 0 : k == 0 ? -1 : -k;
            }
            if (n != want)
                fail_msg("%02x %02x %02x %02x/%d: %d, not %d", b[0], b[1], b[2], b[3], len, n,
                         want);
            if (n <= 0) continue;
            char back[4];
            assert_int_equal(weft__utf8_put(back, code), n);
            assert_memory_equal(back, b, (size_t)n);
        }
    }
    assert_true(weft__utf8_valid("plain ascii of more than eight", 30));
    assert_true(weft__utf8_valid("", 0));
    assert_false(weft__utf8_valid("12345678\xe2\x82", 10));
    assert_false(weft__utf8_valid("1234567\xff", 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grammar),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(truncation),
        cmocka_unit_test(values),
        cmocka_unit_test(errors_stick_and_say_where),
        cmocka_unit_test(utf8_by_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
