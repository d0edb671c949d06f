/* Text as clients see it: JSON strings and numbers, and the search for stop strings. */
#include <string.h>

#include "private.h"

/* ---- JSON ---- */

/* Bytes of the well-formed UTF-8 sequence at s, 0 if it is ill-formed. */
static size_t sequence(const unsigned char *s, size_t len)
{
    size_t n = s[0] < 0x80   ? 1
               : s[0] < 0xc2 ? 0
               : s[0] < 0xe0 ? 2
               : s[0] < 0xf0 ? 3
               : s[0] < 0xf5 ? 4
                             : 0;
    if (n > len) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (n == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f))) return 0;
    if (n == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))) return 0;
    return n;
}

static void put_escaped(struct weft__buf *out, unsigned char c)
{
    switch (c) {
    case '"':
        weft__buf_append(out, "\\\"", 2);
        break;
    case '\\':
        weft__buf_append(out, "\\\\", 2);
        break;
    case '\n':
        weft__buf_append(out, "\\n", 2);
        break;
    case '\r':
        weft__buf_append(out, "\\r", 2);
        break;
    case '\t':
        weft__buf_append(out, "\\t", 2);
        break;
    default:
        weft__buf_printf(out, "\\u%04x", c);
    }
}

void weft__put_string(struct weft__buf *out, const char *data, size_t len)
{
    const unsigned char *s = (const unsigned char *)data;
    size_t start = 0, i = 0;
    if (len == 0) {
        weft__buf_append(out, "\"\"", 2);
        return;
    }
    weft__buf_append(out, "\"", 1);
    while (i < len) {
        size_t n = sequence(s + i, len - i);
        if (n > 1 || (n == 1 && s[i] >= ' ' && s[i] != '"' && s[i] != '\\' && s[i] != 0x7f)) {
            i += n;
            continue;
        }
        weft__buf_append(out, data + start, i - start);
        if (n == 1)
            put_escaped(out, s[i]);
        else
            weft__buf_append(out, "\xef\xbf\xbd", 3);
        start = ++i;
    }
    weft__buf_append(out, data + start, len - start);
    weft__buf_append(out, "\"", 1);
}

void weft__put_cstring(struct weft__buf *out, const char *text)
{
    if (text == NULL)
        weft__buf_append(out, "null", 4);
    else
        weft__put_string(out, text, strlen(text));
}

void weft__put_logprob(struct weft__buf *out, float value)
{
    if (!(value >= -9999.0F)) value = -9999.0F;
    weft__buf_printf(out, value == (float)(int)value ? "%.1f" : "%.9g", (double)value);
}

int64_t weft__count_characters(const char *data, size_t len)
{
    int64_t count = 0;
    for (size_t i = 0; i < len; i++) count += ((unsigned char)data[i] & 0xc0) != 0x80;
    return count;
}

/* ---- stop strings ---- */

/* The stop that is complete first in text, whose bytes before `from` hold none complete. */
static int find_stop(const struct weft__stops *stops, const char *text, size_t len, size_t from,
                     size_t *start)
{
    int found = -1;
    size_t found_end = SIZE_MAX, found_start = 0;
    for (int i = 0; i < stops->count; i++) {
        const struct weft__slice s = stops->stop[i];
        size_t begin = from >= s.len ? from - s.len + 1 : 0;
        const char *at = begin < len ? memmem(text + begin, len - begin, s.data, s.len) : NULL;
        if (at == NULL) continue;
        size_t at_start = (size_t)(at - text), at_end = at_start + s.len;
        if (at_end < found_end || (at_end == found_end && at_start < found_start)) {
            found = i;
            found_end = at_end;
            found_start = at_start;
        }
    }
    *start = found_start;
    return found;
}

/* Bytes at the end of text that begin some stop string. */
static size_t open_end(const struct weft__stops *stops, const char *text, size_t len)
{
    size_t longest = 0;
    for (int i = 0; i < stops->count; i++) {
        const struct weft__slice s = stops->stop[i];
        size_t n = s.len - 1 < len ? s.len - 1 : len;
        while (n > longest && memcmp(text + len - n, s.data, n) != 0) n--;
        if (n > longest) longest = n;
    }
    return longest;
}

int weft__tail_push(struct weft__tail *tail, const struct weft__stops *stops, const char *text,
                    size_t len, struct weft__buf *out)
{
    struct weft__buf *held = &tail->held;
    if (stops->count == 0) {
        weft__buf_append(out, text, len);
        return -1;
    }
    size_t before = held->len, start;
    weft__buf_append(held, text, len);
    if (held->failed || held->len == 0) {
        if (held->failed) out->failed = true;
        return -1;
    }
    int found = find_stop(stops, held->data, held->len, before, &start);
    if (found >= 0) {
        weft__buf_append(out, held->data, start + (stops->keep ? stops->stop[found].len : 0));
        held->len = 0;
        return found;
    }
    size_t keep = open_end(stops, held->data, held->len);
    weft__buf_append(out, held->data, held->len - keep);
    memmove(held->data, held->data + held->len - keep, keep);
    held->len = keep;
    return -1;
}

void weft__tail_finish(struct weft__tail *tail, struct weft__buf *out)
{
    weft__buf_append(out, tail->held.data, tail->held.len);
    tail->held.len = 0;
}
