/* UTF-8 strings by character: positions, classes, stripping, searching. */
#include <string.h>
#include <utf8proc.h>

#include "jinja.h"

uint32_t weft__j_char(const char **p, const char *end)
{
    const unsigned char *s = (const unsigned char *)*p;
    ptrdiff_t left = end - *p;
    if (left <= 0) return 0;
    uint32_t c = s[0];
    int more = c < 0xc0 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    if (more > left - 1) more = (int)left - 1;
    if (more > 0) c &= 0x3fu >> more;
    for (int i = 1; i <= more; i++) c = c << 6 | (s[i] & 0x3fu);
    *p += more + 1;
    return c;
}

void weft__j_clean(char *text)
{
    uint32_t code;
    for (size_t len = strlen(text), pos = 0; pos < len;) {
        int step = weft__utf8_next(text + pos, len - pos, &code);
        if (step <= 0)
            text[pos] = '?';
        else if (code < 0x20)
            text[pos] = ' ';
        pos += step > 0 ? (size_t)step : 1;
    }
}

int64_t weft__j_chars(struct jvalue s)
{
    int64_t count = 0;
    for (uint32_t i = 0; i < s.len; i++) count += ((unsigned char)s.text[i] & 0xc0) != 0x80;
    return count;
}

const char *weft__j_seek(struct jvalue s, int64_t index)
{
    const char *p = s.text, *end = p + s.len;
    while (p < end && index-- > 0) do
            p++;
        while (p < end && ((unsigned char)*p & 0xc0) == 0x80);
    return p;
}

/* Python's str.isspace, for the regular expression \s too. */
bool weft__j_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool weft__j_is_word(uint32_t c)
{
    if (c < 0x80)
        return c == '_' || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) ||
           (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

bool weft__j_is_printable(uint32_t c)
{
    if (c < 0x7f) return c >= ' ';
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS;
}

size_t weft__j_skip_space(const char *text, size_t len, size_t pos)
{
    while (pos < len) {
        const char *p = text + pos;
        if (!weft__j_is_space(weft__j_char(&p, text + len))) break;
        pos = (size_t)(p - text);
    }
    return pos;
}

static size_t previous(const char *text, size_t pos)
{
    do pos--;
    while (pos > 0 && ((unsigned char)text[pos] & 0xc0) == 0x80);
    return pos;
}

size_t weft__j_trim_end(const char *text, size_t len)
{
    while (len > 0) {
        size_t start = previous(text, len);
        const char *p = text + start;
        if (!weft__j_is_space(weft__j_char(&p, text + len))) break;
        len = start;
    }
    return len;
}

static bool one_of(struct jvalue chars, uint32_t c)
{
    for (const char *p = chars.text, *end = p + chars.len; p < end;)
        if (weft__j_char(&p, end) == c) return true;
    return false;
}

static bool strippable(struct jrun *run, struct jvalue chars, uint32_t c)
{
    if (chars.kind != J_STRING) return weft__j_is_space(c);
    return weft__j_tick(run, chars.len) && one_of(chars, c);
}

struct jvalue weft__j_strip(struct jrun *run, struct jvalue s, struct jvalue chars, int sides)
{
    size_t start = 0, end = s.len;
    if (chars.kind != J_STRING && chars.kind != J_NONE && chars.kind != J_ABSENT)
        return weft__j_fail(run, WEFT_INVALID, "strip arg must be None or str, not %s",
                            weft__j_type(chars));
    while ((sides & J_STRIP_LEFT) != 0 && start < end) {
        const char *p = s.text + start;
        if (!strippable(run, chars, weft__j_char(&p, s.text + end))) break;
        start = (size_t)(p - s.text);
    }
    while ((sides & J_STRIP_RIGHT) != 0 && end > start) {
        size_t at = previous(s.text, end);
        const char *p = s.text + at;
        if (!strippable(run, chars, weft__j_char(&p, s.text + end))) break;
        end = at;
    }
    (void)weft__j_tick(run, s.len - (end - start));
    return weft__j_text(s.text + start, end - start);
}

static bool ends_line(uint32_t c)
{
    return (c >= '\n' && c <= '\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

struct jvalue weft__j_lines(struct jrun *run, struct jvalue s, bool keep_ends)
{
    struct jvalue out = weft__j_new_list(run, J_LIST);
    const char *start = s.text, *end = start + s.len;
    for (const char *p = start; p < end && weft__j_tick(run, 0);) {
        const char *stop = p;
        while (p < end) {
            uint32_t c = weft__j_char(&p, end);
            if (ends_line(c)) {
                if (c == '\r' && p < end && *p == '\n') p++;
                break;
            }
            stop = p;
        }
        const char *upto = keep_ends ? p : stop;
        (void)weft__j_push(run, out.list, weft__j_text(start, (size_t)(upto - start)));
        start = p;
    }
    (void)weft__j_tick(run, (size_t)s.len * 4);
    return out;
}

int64_t weft__j_search(struct jrun *run, struct jvalue s, size_t start, struct jvalue needle)
{
    if (needle.len == 0) return (int64_t)start;
    const char *found = needle.len == 1
                            ? memchr(s.text + start, needle.text[0], s.len - start)
                            : memmem(s.text + start, s.len - start, needle.text, needle.len);
    size_t looked = found != NULL ? (size_t)(found - s.text) - start : s.len - start;
    (void)weft__j_tick(run, looked + needle.len);
    return found != NULL ? found - s.text : -1;
}

struct jvalue weft__j_replace(struct jrun *run, struct jvalue s, struct jvalue from,
                              struct jvalue to, int64_t count)
{
    struct jsink sink = {0};
    size_t pos = 0;
    if (count == 0) return s;
    if (from.len == 0) { /* between all characters and at both ends */
        const char *p = s.text, *end = p + s.len;
        for (; count != 0 && weft__j_tick(run, 0); count--) {
            const char *start = p;
            weft__j_write(run, &sink, to.text, to.len);
            (void)weft__j_char(&p, end);
            weft__j_write(run, &sink, start, (size_t)(p - start));
            if (start == end) break;
        }
        weft__j_write(run, &sink, p, (size_t)(end - p));
        return weft__j_written(&sink);
    }
    for (; count != 0 && run->status == WEFT_OK; count--) {
        int64_t at = weft__j_search(run, s, pos, from);
        if (at < 0) break;
        weft__j_write(run, &sink, s.text + pos, (size_t)at - pos);
        weft__j_write(run, &sink, to.text, to.len);
        pos = (size_t)at + from.len;
    }
    if (pos == 0) return s;
    weft__j_write(run, &sink, s.text + pos, s.len - pos);
    return weft__j_written(&sink);
}
