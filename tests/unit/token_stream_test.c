/* Decoding token by token: whole characters only, and the same text as decoding at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "token_golden.h"

static uint32_t seed;

static uint32_t next_random(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* What was appended since `from` is valid UTF-8, and at most a character's beginning is held back.
 */
static void check_step(const struct weft__buf *out, size_t from, const struct weft__detok *detok)
{
    uint32_t code;
    assert_true(weft__utf8_valid(out->data != NULL ? out->data + from : "", out->len - from));
    assert_true(detok->len <= 3);
    if (detok->len > 0)
        assert_int_equal(weft__utf8_next((const char *)detok->tail, detok->len, &code), 0);
}

static void random_tokens(void **state)
{
    (void)state;
    static const char *const names[] = {"qwen3", "deepseek_v3", "atlas", "smollm"};
    for (size_t n = 0; n < WEFT__COUNT(names); n++) {
        struct weft__tokenizer *tok = load_golden(names[n]);
        uint32_t size = (uint32_t)weft__tokenizer_size(tok);
        seed = 7;
        for (int round = 0; round < 3000; round++) {
            int32_t ids[40];
            size_t count = 1 + next_random() % WEFT__COUNT(ids);
            bool skip = next_random() % 2 == 0;
            struct weft__detok detok = {0};
            struct weft__buf streamed, whole;
            weft__buf_init(&streamed, 1 << 20);
            weft__buf_init(&whole, 1 << 20);
            for (size_t i = 0; i < count; i++) {
                /* Mostly single bytes and other low ids: there are the broken characters. */
                ids[i] = (int32_t)(next_random() % (next_random() % 4 != 0 ? 300 : size));
                size_t before = streamed.len;
                weft__detok_push(&detok, tok, ids[i], skip, &streamed);
                check_step(&streamed, before, &detok);
            }
            weft__detok_finish(&detok, &streamed);
            weft__tokenizer_decode(tok, ids, count, skip, &whole);
            assert_int_equal(streamed.len, whole.len);
            if (whole.len > 0) assert_memory_equal(streamed.data, whole.data, whole.len);
            assert_int_equal(detok.len, 0);
            weft__buf_free(&streamed);
            weft__buf_free(&whole);
        }
        weft__tokenizer_free(tok);
    }
}

/* The bytes of a text, cut anywhere, against U+FFFD for each maximal ill-formed part. */
static void push_in_parts(const char *bytes, size_t len, size_t part, const char *want)
{
    struct weft__detok detok = {0};
    struct weft__buf out;
    weft__buf_init(&out, 1 << 10);
    for (size_t i = 0; i < len; i += part) {
        size_t before = out.len;
        weft__detok_push_bytes(&detok, bytes + i, len - i < part ? len - i : part, &out);
        check_step(&out, before, &detok);
    }
    weft__detok_finish(&detok, &out);
    weft__buf_puts(&out, "");
    assert_string_equal(out.data, want);
    weft__buf_free(&out);
}

#define X "\xef\xbf\xbd"

static void ill_formed_parts(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *want;
    } cases[] = {
        {"abc", "abc"},
        {"\xe2\x82\xac", "\xe2\x82\xac"},
        {"\xe2\x82", X},           /* one part: a beginning */
        {"\xe2\x82z", X "z"},      /* and what follows it stands */
        {"\xe2\x28\xa1", X "(" X}, /* E2, (, A1 */
        {"\xf0\x9f\x98\xf0\x9f\x98\x80", X "\xf0\x9f\x98\x80"},
        {"\xf0\x9f\xe2\x82\xac", X "\xe2\x82\xac"},
        {"\xed\xa0\x80", X X X}, /* a surrogate: ED may not be followed by A0 */
        {"\xc0\xaf", X X},       /* overlong */
        {"\xe0\x80\xaf", X X X},
        {"\xf4\x90\x80\x80", X X X X}, /* beyond U+10FFFF */
        {"\x80\xbf", X X},
        {"\xff"
         "a\xfe",
         X "a" X},
        {"a" X "b", "a" X "b"}, /* a real U+FFFD is not held back */
        {X, X},
    };
    for (size_t i = 0; i < WEFT__COUNT(cases); i++)
        for (size_t part = 1; part <= 5; part++)
            push_in_parts(cases[i].bytes, strlen(cases[i].bytes), part, cases[i].want);
}

/* A character is out as soon as its last byte is in: nothing waits for the next token. */
static void nothing_is_held_longer_than_needed(void **state)
{
    (void)state;
    struct weft__detok detok = {0};
    struct weft__buf out;
    weft__buf_init(&out, 100);
    weft__detok_push_bytes(&detok, X, 3, &out);
    assert_int_equal(out.len, 3);
    weft__detok_push_bytes(&detok, "\xf0\x9f\x98", 3, &out);
    assert_int_equal(out.len, 3);
    weft__detok_push_bytes(&detok, "\x80", 1, &out);
    assert_int_equal(out.len, 7);
    weft__detok_push_bytes(&detok, "\xe2\x82", 2, &out);
    weft__detok_push_bytes(&detok, "\x41", 1, &out); /* can no longer become valid */
    assert_string_equal(out.data + 7, X "A");
    weft__buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_tokens),
        cmocka_unit_test(ill_formed_parts),
        cmocka_unit_test(nothing_is_held_longer_than_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
