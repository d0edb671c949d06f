/* Fuzzes what arrives on a socket: a head, its path, a chunked body cut at every place. */
#include <stdlib.h>
#include <string.h>

#include "http/private.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len);

static bool inside(struct weft__slice s, const char *data, size_t len)
{
    return s.len == 0 || (s.data >= data && s.len <= len && s.data + s.len <= data + len);
}

static void use_head(const char *data, size_t len)
{
    struct weft__head head;
    struct weft__slice query;
    char path[WEFT__PATH_MAX];
    size_t size = weft__head_size(data, len);
    if (size > len) abort();
    if (size == 0) return;
    int status = weft__head_parse(data, size, &head);
    if (status != 0) {
        if (status < 400 || status > 599) abort();
        return;
    }
    if (!inside(head.target, data, size) || !inside(head.authorization, data, size) ||
        !inside(head.request_id, data, size) || (head.chunked && head.has_length))
        abort();
    if (weft__path_decode(head.target, path, &query) &&
        (path[0] != '/' || !inside(query, data, size)))
        if (query.len > 0) abort();
}

/* Whole and in pieces: the same status, bytes taken and body. */
static void use_chunks(const char *data, size_t len, size_t piece)
{
    struct weft__chunked whole = {0}, cut = {0};
    struct weft__buf a, b;
    size_t used_a = SIZE_MAX, used_b = 0;
    weft__buf_init(&a, 4096);
    weft__buf_init(&b, 4096);
    int status_a = weft__chunked_feed(&whole, data, len, &used_a, &a), status_b = 0;
    for (size_t end = piece; status_b == 0 && cut.state != WEFT__CHUNK_DONE; end += piece) {
        size_t used = SIZE_MAX;
        if (end > len) end = len;
        status_b = weft__chunked_feed(&cut, data + used_b, end - used_b, &used, &b);
        if (used > end - used_b) abort();
        if (status_b == 0) used_b += used;
        if (end == len) break;
    }
    if (used_a > len) abort();
    if (status_a == 0 && status_b == 0 &&
        (used_a != used_b || a.len != b.len || (a.len > 0 && memcmp(a.data, b.data, a.len) != 0)))
        abort();
    if ((status_a == 0) != (status_b == 0)) abort();
    weft__buf_free(&a);
    weft__buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len)
{
    if (len < 1) return 0;
    char *copy = malloc(len); /* so that reading past the end is noticed */
    if (copy == NULL) return 0;
    memcpy(copy, input + 1, len - 1);
    use_head(copy, len - 1);
    use_chunks(copy, len - 1, 1 + input[0] % 16U);
    free(copy);
    return 0;
}
