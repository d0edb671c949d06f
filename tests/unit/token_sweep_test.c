/* Every code point through the pre-tokenizer, against hashes of what the `tokenizers` package gives
 * (tools/make_token_golden.py, sweep). A block that differs on a system whose PCRE2 knows a newer
 * Unicode than 16 is explained by that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "token_golden.h"

enum { BLOCK = 4096, STRIDE = 64, CODES = 0x110000 };

static void put(struct weft__buf *text, uint32_t code)
{
    char bytes[4];
    weft__buf_append(text, bytes, (size_t)weft__utf8_put(bytes, code));
}

static uint64_t hash_block(const struct weft__tokenizer *tok, uint32_t block)
{
    uint64_t hash = 0xcbf29ce484222325u;
    struct weft__buf text;
    struct weft__ids ids = {0};
    weft_error err = {0};
    weft__buf_init(&text, 1 << 20);
    for (uint32_t begin = block; begin < block + BLOCK; begin += STRIDE) {
        text.len = ids.len = 0;
        for (uint32_t code = begin; code < begin + STRIDE; code++) {
            if (code >= 0xd800 && code <= 0xdfff) continue;
            weft__buf_puts(&text, "a");
            put(&text, code);
            weft__buf_puts(&text, "b ");
            put(&text, code);
            put(&text, code);
            weft__buf_puts(&text, "1");
        }
        if (weft__tokenizer_encode(tok, text.data != NULL ? text.data : "", text.len,
                                   WEFT__ADD_SPECIAL | WEFT__PARSE_SPECIAL, &ids, &err) != WEFT_OK)
            fail_msg("%s", err.text);
        for (size_t i = 0; i < ids.len; i++) hash = (hash ^ (uint32_t)ids.data[i]) * 0x100000001b3u;
    }
    weft__ids_free(&ids);
    weft__buf_free(&text);
    return hash;
}

static void sweep(void **state)
{
    (void)state;
    struct names names;
    list_golden(".sweep", &names);
    assert_true(names.count >= 5);
    for (size_t n = 0; n < names.count; n++) {
        char path[512];
        size_t len, wrong = 0;
        struct weft__tokenizer *tok = load_golden(names.name[n]);
        (void)snprintf(path, sizeof path, GOLDEN "%s.sweep", names.name[n]);
        char *file = read_golden(path, &len);
        assert_int_equal(len, CODES / BLOCK * 17);
        for (uint32_t block = 0; block < CODES; block += BLOCK) {
            uint64_t want = strtoull(file + block / BLOCK * 17, NULL, 16);
            if (hash_block(tok, block) == want) continue;
            print_message("%s: U+%04X..U+%04X differs\n", names.name[n], block, block + BLOCK - 1);
            wrong++;
        }
        if (wrong > 0) fail_msg("%s: %zu blocks differ", names.name[n], wrong);
        free(file);
        weft__tokenizer_free(tok);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sweep)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
