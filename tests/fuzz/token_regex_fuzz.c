/* Fuzzes the translation of regular expressions: whatever Oniguruma expression is accepted must
 * compile as a PCRE2 one or be refused in words, and finding its matches must end. */
#include <stdlib.h>
#include <string.h>

#include "token/token.h"
#include "token/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len);

static void find(const struct weft__regex *regex)
{
    static const char text[] = "ab \n1\xc3\xa9\xe6\x97\xa5 A'x \xf0\x9f\x98\x80";
    struct weft__matches matches = {.text = text, .len = sizeof text - 1, .last_end = SIZE_MAX};
    struct weft__matcher matcher;
    weft_error err = {0};
    size_t done = 0;
    bool found = true;
    if (weft__matcher_init(&matcher, sizeof text, &err) != WEFT_OK) abort();
    for (size_t rounds = 0; found; rounds++) {
        if (weft__regex_next(regex, &matcher, &matches, &found, &err) != WEFT_OK) break;
        if (!found) break;
        if (matches.start < done || matches.end < matches.start || matches.end > sizeof text - 1)
            abort();
        done = matches.end;
        if (rounds > 2 * sizeof text) abort();
    }
    weft__matcher_free(&matcher);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len)
{
    struct weft__regex regex = {0};
    weft_error err = {0};
    if (len > 2000 || !weft__utf8_valid((const char *)input, len)) return 0;
    weft_status status = weft__regex_compile(&regex, (const char *)input, len, "fuzz", &err);
    if (status != WEFT_OK) {
        if (err.text[0] == '\0' || strchr(err.text, '\n') != NULL || status == WEFT_INTERNAL)
            abort();
        return 0;
    }
    find(&regex);
    weft__regex_free(&regex);
    return 0;
}
