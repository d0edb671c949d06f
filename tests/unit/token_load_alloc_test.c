/* Loading a tokenizer and encoding with it while memory runs out at every allocation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "alloc_fail.h"
#include "token_golden.h"

static const char text[] =
    "ABC abcab  <mask>\n\n jump \xff The qu\xc3\xad"
    "ck 12345 \xe6\x97\xa5\xe6\x9c\xac e\xcc\x81 "
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

static weft_status load_and_encode(void *context, weft_error *err)
{
    struct weft__tokenizer *tok = NULL;
    struct weft__ids ids = {0};
    weft_status status = weft__tokenizer_load(context, &tok, err);
    if (status != WEFT_OK) return status;
    status = weft__tokenizer_encode(tok, text, sizeof text - 1, WEFT__ADD_SPECIAL, &ids, err);
    if (status == WEFT_OK) assert_true(ids.len > 10);
    weft__ids_free(&ids);
    weft__tokenizer_free(tok);
    return status;
}

static void every_allocation(void **state)
{
    (void)state;
    static char added[] = GOLDEN "added.json", strip[] = GOLDEN "strip_replace.json",
                scripts[] = GOLDEN "scripts.json", bytes[] = GOLDEN "byte_normalizer.json",
                cl100k[] = GOLDEN "cl100k.json", falcon[] = GOLDEN "falcon.json";
    char *const paths[] = {added, strip, scripts, bytes, cl100k, falcon};
    for (size_t i = 0; i < WEFT__COUNT(paths); i++)
        alloc_fail_sweep(strrchr(paths[i], '/') + 1, load_and_encode, paths[i], 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
