/* Fuzzes what is sent: stop strings in text cut anywhere must give what the definition gives, and
 * every JSON string must be one line that jansson reads. */
#include <stdlib.h>
#include <string.h>

#include "http/private.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len);

static size_t first_end(const struct weft__stops *stops, const char *text, size_t len, size_t *left)
{
    for (size_t end = 1; end <= len; end++) {
        size_t longest = 0;
        for (int i = 0; i < stops->count; i++) {
            struct weft__slice s = stops->stop[i];
            if (s.len <= end && s.len > longest && memcmp(text + end - s.len, s.data, s.len) == 0)
                longest = s.len;
        }
        if (longest > 0) {
            *left = end - longest;
            return end;
        }
    }
    *left = len;
    return 0;
}

static void use_stops(const struct weft__stops *stops, const char *text, size_t len, size_t piece)
{
    struct weft__tail tail;
    struct weft__buf out;
    size_t left;
    int found = -1;
    weft__buf_init(&tail.held, 1 << 20);
    weft__buf_init(&out, 1 << 20);
    for (size_t at = 0; at < len && found < 0; at += piece)
        found = weft__tail_push(&tail, stops, text + at, len - at < piece ? len - at : piece, &out);
    if (found < 0) weft__tail_finish(&tail, &out);
    if ((first_end(stops, text, len, &left) > 0) != (found >= 0)) abort();
    if (out.len != left || (left > 0 && memcmp(out.data, text, left) != 0)) abort();
    weft__buf_free(&tail.held);
    weft__buf_free(&out);
}

static void use_string(const char *text, size_t len)
{
    struct weft__buf out;
    weft__buf_init(&out, 1 << 20);
    weft__put_string(&out, text, len);
    json_t *value = json_loadb(out.data, out.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    json_t *direct = json_stringn(text, len);
    if (value == NULL || memchr(out.data, '\n', out.len) != NULL) abort();
    if (direct != NULL && !json_equal(value, direct)) abort();
    json_decref(value);
    json_decref(direct);
    weft__buf_free(&out);
}

/* Byte 0: the pieces' length; byte 1: stops; then each stop with its length; the rest is text. */
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len)
{
    struct weft__stops stops = {0};
    if (len < 2) return 0;
    const char *at = (const char *)input + 2, *end = (const char *)input + len;
    for (int i = 0; i < input[1] % 8 && at < end; i++) {
        size_t n = 1 + (unsigned char)*at++ % 6U;
        if ((size_t)(end - at) < n) break;
        stops.stop[stops.count++] = (struct weft__slice){at, n};
        at += n;
    }
    use_stops(&stops, at, (size_t)(end - at), 1 + input[0] % 16U);
    use_string(at, (size_t)(end - at));
    return 0;
}
