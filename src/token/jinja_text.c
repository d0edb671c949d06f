/* Strings: UTF-8 by character, case, and the methods of Python's str that templates call. */
#include <string.h>
#include <utf8proc.h>

#include "jinja.h"
#include "tokenizer.h"

/* ---- characters ---- */

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

int64_t weft__j_chars(struct weft__jvalue s)
{
    int64_t count = 0;
    for (uint32_t i = 0; i < s.len; i++) count += ((unsigned char)s.text[i] & 0xc0) != 0x80;
    return count;
}

const char *weft__j_seek(struct weft__jvalue s, int64_t index)
{
    const char *p = s.text, *end = p + s.len;
    for (; p < end && index > 0; index--) (void)weft__j_char(&p, end);
    return p;
}

/* Python's str.isspace, for the regular expression \s too. */
bool weft__j_is_space(uint32_t c) { return weft__is_space(c) || (c >= 0x1c && c <= 0x1f); }

static utf8proc_category_t category(uint32_t c) { return utf8proc_category((utf8proc_int32_t)c); }

bool weft__j_is_word(uint32_t c)
{
    if (c < 0x80)
        return c == '_' || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    return (category(c) >= UTF8PROC_CATEGORY_LU && category(c) <= UTF8PROC_CATEGORY_LO) ||
           (category(c) >= UTF8PROC_CATEGORY_ND && category(c) <= UTF8PROC_CATEGORY_NO);
}

bool weft__j_is_printable(uint32_t c)
{
    if (c < 0x7f) return c >= ' ';
    return category(c) != UTF8PROC_CATEGORY_CN && category(c) < UTF8PROC_CATEGORY_ZS;
}

/* ---- stripping ---- */

size_t weft__j_skip_space(const char *text, size_t len, size_t pos)
{
    while (pos < len) {
        const char *p = text + pos;
        if (!weft__j_is_space(weft__j_char(&p, text + len))) break;
        pos = (size_t)(p - text);
    }
    return pos;
}

/* The character before *p, which moves to its start. */
static uint32_t char_before(const char *text, const char **p)
{
    const char *end = *p;
    do --*p;
    while (*p > text && ((unsigned char)**p & 0xc0) == 0x80);
    const char *at = *p;
    return weft__j_char(&at, end);
}

size_t weft__j_trim_end(const char *text, size_t len)
{
    const char *end = text + len;
    for (const char *p = end; p > text && weft__j_is_space(char_before(text, &p));) end = p;
    return (size_t)(end - text);
}

static bool strippable(struct weft__jrun *run, struct weft__jvalue chars, uint32_t c)
{
    if (chars.kind != WEFT__J_STRING) return weft__j_is_space(c);
    for (const char *p = chars.text, *end = p + chars.len; p < end;)
        if (weft__j_char(&p, end) == c) return weft__j_tick(run, chars.len);
    return false;
}

struct weft__jvalue weft__j_strip(struct weft__jrun *run, struct weft__jvalue s,
                                  struct weft__jvalue chars, int sides)
{
    const char *start = s.text, *end = start + s.len;
    if (chars.kind != WEFT__J_STRING && chars.kind != WEFT__J_NONE && chars.kind != WEFT__J_ABSENT)
        return weft__j_fail(run, WEFT_INVALID, "strip arg must be None or str, not %s",
                            weft__j_type(chars));
    for (const char *p = start; (sides & WEFT__J_STRIP_LEFT) != 0 && start < end; start = p)
        if (!strippable(run, chars, weft__j_char(&p, end))) break;
    for (const char *p = end; (sides & WEFT__J_STRIP_RIGHT) != 0 && end > start; end = p)
        if (!strippable(run, chars, char_before(start, &p))) break;
    (void)weft__j_tick(run, s.len - (size_t)(end - start));
    return weft__j_text(start, (size_t)(end - start));
}

static bool ends_line(uint32_t c)
{
    return (c >= '\n' && c <= '\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

struct weft__jvalue weft__j_lines(struct weft__jrun *run, struct weft__jvalue s)
{
    struct weft__jvalue out = weft__j_new_list(run, WEFT__J_LIST);
    const char *start = s.text, *end = start + s.len;
    for (const char *p = start; p < end && weft__j_tick(run, 0); start = p) {
        const char *stop = p;
        for (uint32_t c = 0; p < end && !ends_line(c); stop = ends_line(c) ? stop : p) {
            c = weft__j_char(&p, end);
            if (c == '\r' && p < end && *p == '\n') p++;
        }
        (void)weft__j_push(run, out.list, weft__j_text(start, (size_t)(stop - start)));
    }
    (void)weft__j_tick(run, (size_t)s.len * 4);
    return out;
}

/* ---- case: full mappings (one character may become three) and the final sigma ---- */

static bool within(uint32_t c, uint32_t first, uint32_t last) { return c >= first && c <= last; }

/* Unicode's Cased, less the modifier letters, which are case-ignorable as well. */
static bool is_cased(uint32_t c)
{
    if (c < 0x80) return within(c | 0x20, 'a', 'z');
    return within(category(c), UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LT) || c == 0xaa ||
           c == 0xba || within(c, 0x2160, 0x217f) || within(c, 0x24b6, 0x24e9) ||
           within(c, 0x1f130, 0x1f149) || within(c, 0x1f150, 0x1f169) ||
           within(c, 0x1f170, 0x1f189);
}

/* Unicode's Case_Ignorable: what a final sigma looks past. */
static bool is_case_ignorable(uint32_t c)
{
    static const uint16_t punctuation[] = {0x27,   0x2e,   0x3a,   0xb7,   0x387,  0x55f,
                                           0x5f4,  0x2018, 0x2019, 0x2024, 0x2027, 0xfe13,
                                           0xfe52, 0xfe55, 0xff07, 0xff0e, 0xff1a};
    for (size_t i = 0; i < WEFT__COUNT(punctuation); i++)
        if (punctuation[i] == c) return true;
    utf8proc_category_t of = category(c);
    return of == UTF8PROC_CATEGORY_MN || of == UTF8PROC_CATEGORY_ME || of == UTF8PROC_CATEGORY_CF ||
           of == UTF8PROC_CATEGORY_LM || of == UTF8PROC_CATEGORY_SK;
}

/* Whether the sigma in s between `at` and `after` ends a word. */
static bool final_sigma(struct weft__jvalue s, const char *at, const char *after)
{
    uint32_t c = ' ';
    while (at > s.text && is_case_ignorable(c = char_before(s.text, &at))) c = ' ';
    if (!is_cased(c)) return false;
    for (const char *end = s.text + s.len; after < end;)
        if (!is_case_ignorable(c = weft__j_char(&after, end))) return !is_cased(c);
    return true;
}

static void put(struct weft__jrun *run, struct weft__jsink *sink, uint32_t c)
{
    char text[4];
    weft__j_write(run, sink, text, (size_t)weft__utf8_put(text, c));
}

static void put_lower(struct weft__jrun *run, struct weft__jsink *sink, struct weft__jvalue s,
                      const char *at, const char *after, uint32_t c)
{
    if (c == 0x3a3) {
        put(run, sink, final_sigma(s, at, after) ? 0x3c2 : 0x3c3);
        return;
    }
    put(run, sink, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
    if (c == 0x130) put(run, sink, 0x307); /* the one lower case of two characters */
}

/* utf8proc has the simple mappings only. What folds to several characters, and is not upper case
 * itself, has as its upper case the upper cases of those. */
static void put_upper(struct weft__jrun *run, struct weft__jsink *sink, uint32_t c, bool title)
{
    utf8proc_int32_t folded[8], simple = (utf8proc_int32_t)c;
    int unused = 0;
    utf8proc_ssize_t count = utf8proc_decompose_char(simple, folded, 8, UTF8PROC_CASEFOLD, &unused);
    if (count < 2 || category(c) == UTF8PROC_CATEGORY_LU)
        put(run, sink, (uint32_t)(title ? utf8proc_totitle(simple) : utf8proc_toupper(simple)));
    else if (title)
        weft__j_fail(run, WEFT_UNSUPPORTED, "the title case of the character U+%04X", c);
    else
        for (utf8proc_ssize_t i = 0; i < count; i++)
            put(run, sink, (uint32_t)utf8proc_toupper(folded[i]));
}

struct weft__jvalue weft__j_recase(struct weft__jrun *run, struct weft__jvalue s, int to)
{
    struct weft__jsink sink = {0};
    bool first = true, in_word = false;
    (void)weft__j_tick(run, (size_t)s.len * 8);
    for (const char *p = s.text, *end = p + s.len; p < end && run->status == WEFT_OK;) {
        const char *at = p;
        uint32_t c = weft__j_char(&p, end);
        if (to == WEFT__J_UPPER || (to == WEFT__J_CAPITALIZE && first) ||
            (to == WEFT__J_TITLE && !in_word))
            put_upper(run, &sink, c, to != WEFT__J_UPPER);
        else
            put_lower(run, &sink, s, at, p, c);
        if (to == WEFT__J_TITLE && c >= 0x80 && category(c) == UTF8PROC_CATEGORY_LM)
            weft__j_fail(run, WEFT_UNSUPPORTED, "the title case of the character U+%04X", c);
        in_word = is_cased(c);
        first = false;
    }
    struct weft__jvalue out = weft__j_written(&sink);
    out.markup = s.markup;
    return out;
}

/* ---- searching ---- */

/* Position of the first or last needle in s, or -1. */
static int64_t search(struct weft__jrun *run, struct weft__jvalue s, struct weft__jvalue needle,
                      bool last)
{
    if (needle.len == 0) return last ? s.len : 0;
    if (!last) {
        const char *found = needle.len == 1 ? memchr(s.text, needle.text[0], s.len)
                                            : memmem(s.text, s.len, needle.text, needle.len);
        size_t looked = found != NULL ? (size_t)(found - s.text) : s.len;
        (void)weft__j_tick(run, looked + needle.len);
        return found != NULL ? found - s.text : -1;
    }
    for (int64_t at = (int64_t)s.len - needle.len; at >= 0; at--) {
        if (memcmp(s.text + at, needle.text, needle.len) == 0) {
            (void)weft__j_tick(run, (s.len - (size_t)at) * 4);
            return at;
        }
        if (needle.len > 16 && !weft__j_tick(run, needle.len)) break;
    }
    (void)weft__j_tick(run, (size_t)s.len * 4);
    return -1;
}

bool weft__j_has(struct weft__jrun *run, struct weft__jvalue s, struct weft__jvalue needle)
{
    return search(run, s, needle, false) >= 0;
}

/* What is left of s behind its first `bytes`. */
static struct weft__jvalue behind(struct weft__jvalue s, size_t bytes)
{
    return weft__j_text(s.text + bytes, s.len - bytes);
}

struct weft__jvalue weft__j_replace(struct weft__jrun *run, struct weft__jvalue s,
                                    struct weft__jvalue from, struct weft__jvalue to, int64_t count)
{
    struct weft__jsink sink = {0};
    bool fresh = false;
    for (; count != 0 && weft__j_tick(run, 0); count--) {
        int64_t at = search(run, s, from, false);
        if (at < 0) break;
        weft__j_write(run, &sink, s.text, (size_t)at);
        weft__j_write(run, &sink, to.text, to.len);
        fresh = true;
        s = behind(s, (size_t)at + from.len);
        if (from.len > 0) continue;
        if (s.len == 0) break; /* "" is between all characters and at both ends */
        size_t one = (size_t)(weft__j_seek(s, 1) - s.text);
        weft__j_write(run, &sink, s.text, one);
        s = behind(s, one);
    }
    if (!fresh) return s;
    weft__j_write(run, &sink, s.text, s.len);
    return weft__j_written(&sink);
}

/* ---- methods: mode of the table's entry says which of its kind ---- */

enum { FIRST, LAST };

static bool text_argument(struct weft__jrun *run, const struct weft__jcall *call, int i)
{
    if (call->arg[i].kind == WEFT__J_STRING) return true;
    weft__j_fail(run, WEFT_INVALID, "%s() needs a string, not '%s'", call->function->name,
                 weft__j_type(call->arg[i]));
    return false;
}

/* Of a safe text these escape their arguments. */
static bool plain_self(struct weft__jrun *run, const struct weft__jcall *call)
{
    if (call->self.markup)
        weft__j_fail(run, WEFT_UNSUPPORTED, "%s() of a safe text", call->function->name);
    return run->status == WEFT_OK;
}

static struct weft__jvalue str_case(struct weft__jrun *run, struct weft__jcall *call)
{
    return weft__j_recase(run, call->self, call->function->mode);
}

static struct weft__jvalue str_strip(struct weft__jrun *run, struct weft__jcall *call)
{
    return weft__j_strip(run, call->self, call->arg[0], call->function->mode);
}

/* Whether s begins or ends (mode LAST) with a text. */
static bool has_affix(struct weft__jvalue s, struct weft__jvalue with, int mode)
{
    return s.len >= with.len &&
           memcmp(mode == LAST ? s.text + s.len - with.len : s.text, with.text, with.len) == 0;
}

static struct weft__jvalue str_affix(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jvalue what = call->arg[0];
    struct weft__jlist list = {.items = &what, .count = 1};
    if (what.kind == WEFT__J_TUPLE) list = *what.list;
    for (uint32_t i = 0; i < list.count && weft__j_tick(run, list.items[i].len); i++) {
        if (list.items[i].kind != WEFT__J_STRING)
            return weft__j_fail(run, WEFT_INVALID,
                                "%s first arg must be str or a tuple of str, not %s",
                                call->function->name, weft__j_type(list.items[i]));
        if (has_affix(call->self, list.items[i], call->function->mode)) return weft__j_bool(true);
    }
    return weft__j_bool(false);
}

/* The words of s; the rest of it once there are max words. */
static void split_space(struct weft__jrun *run, struct weft__jvalue s, int64_t max,
                        struct weft__jlist *out)
{
    size_t pos = weft__j_skip_space(s.text, s.len, 0);
    for (int64_t i = 0; pos < s.len && weft__j_tick(run, 0); i++) {
        const char *p = s.text + pos, *end = s.text + s.len, *stop = i == max ? end : p;
        while (stop < end && !weft__j_is_space(weft__j_char(&p, end))) stop = p;
        (void)weft__j_push(run, out, weft__j_text(s.text + pos, (size_t)(stop - s.text) - pos));
        pos = weft__j_skip_space(s.text, s.len, (size_t)(stop - s.text));
    }
}

static struct weft__jvalue str_split(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jvalue s = call->self, by = call->arg[0],
                        out = weft__j_new_list(run, WEFT__J_LIST);
    bool last = call->function->mode == LAST;
    int64_t max;
    if (!weft__j_int_argument(run, call->arg[1], -1, &max) || out.kind == WEFT__J_ABSENT)
        return out;
    (void)weft__j_tick(run, (size_t)s.len * 4);
    if (by.kind == WEFT__J_ABSENT || by.kind == WEFT__J_NONE) {
        if (last) return weft__j_fail(run, WEFT_UNSUPPORTED, "rsplit() at white space");
        split_space(run, s, max, out.list);
        return out;
    }
    if (!text_argument(run, call, 0)) return out;
    if (by.len == 0) return weft__j_fail(run, WEFT_INVALID, "empty separator");
    for (; max != 0 && run->status == WEFT_OK; max--) {
        int64_t at = search(run, s, by, last);
        if (at < 0) break;
        struct weft__jvalue before = weft__j_text(s.text, (size_t)at);
        struct weft__jvalue after = behind(s, (size_t)at + by.len);
        (void)weft__j_push(run, out.list, last ? after : before);
        s = last ? before : after;
    }
    (void)weft__j_push(run, out.list, s);
    for (uint32_t i = 0, j = out.list->count; last && i + 1 < j; i++) {
        struct weft__jvalue swap = out.list->items[i];
        out.list->items[i] = out.list->items[--j];
        out.list->items[j] = swap;
    }
    return out;
}

static struct weft__jvalue str_join(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jsink sink = {0};
    struct weft__jlist items;
    if (!plain_self(run, call) || !weft__j_iterate(run, call->arg[0], &items)) return call->self;
    for (uint32_t i = 0; i < items.count && weft__j_tick(run, items.items[i].len); i++) {
        if (items.items[i].kind != WEFT__J_STRING)
            return weft__j_fail(run, WEFT_INVALID,
                                "sequence item %u: expected str instance, %s found", i,
                                weft__j_type(items.items[i]));
        if (i > 0) weft__j_write(run, &sink, call->self.text, call->self.len);
        weft__j_write(run, &sink, items.items[i].text, items.items[i].len);
    }
    return weft__j_written(&sink);
}

static struct weft__jvalue str_replace(struct weft__jrun *run, struct weft__jcall *call)
{
    int64_t count;
    if (!plain_self(run, call) || !text_argument(run, call, 0) || !text_argument(run, call, 1) ||
        !weft__j_int_argument(run, call->arg[2], -1, &count))
        return call->self;
    return weft__j_replace(run, call->self, call->arg[0], call->arg[1], count);
}

static struct weft__jvalue str_find(struct weft__jrun *run, struct weft__jcall *call)
{
    if (!text_argument(run, call, 0)) return call->self;
    int64_t at = search(run, call->self, call->arg[0], call->function->mode == LAST);
    return weft__j_int(at < 0 ? -1 : weft__j_chars(weft__j_text(call->self.text, (size_t)at)));
}

/* "{} and {}".format(a, b): other fields are refused. */
static struct weft__jvalue str_format(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jsink sink = {0};
    uint32_t taken = 0;
    if (!plain_self(run, call)) return call->self;
    for (const char *p = call->self.text, *end = p + call->self.len; p < end; p += 2) {
        const char *start = p;
        while (p < end && *p != '{' && *p != '}') p++;
        weft__j_write(run, &sink, start, (size_t)(p - start));
        if (p == end) break;
        if (end - p >= 2 && p[1] == *p)
            weft__j_write(run, &sink, p, 1);
        else if (end - p >= 2 && p[0] == '{' && p[1] == '}' && taken < call->positional.count)
            weft__j_write_str(run, &sink, call->positional.items[taken++]);
        else
            return weft__j_fail(run, WEFT_UNSUPPORTED, "format() but of {} for each argument");
    }
    return weft__j_written(&sink);
}

static const struct weft__jfunction methods[] = {
    {"capitalize", str_case, WEFT__J_CAPITALIZE, 0, 0, {0}},
    {"endswith", str_affix, LAST, 1, 1, {"suffix"}},
    {"find", str_find, FIRST, 1, 1, {"sub"}},
    {"format", str_format, 0, 0, WEFT__J_VARARGS, {0}},
    {"join", str_join, 0, 1, 1, {"iterable"}},
    {"lower", str_case, WEFT__J_LOWER, 0, 0, {0}},
    {"lstrip", str_strip, WEFT__J_STRIP_LEFT, 0, 1, {"chars"}},
    {"replace", str_replace, 0, 2, 3, {"old", "new", "count"}},
    {"rfind", str_find, LAST, 1, 1, {"sub"}},
    {"rsplit", str_split, LAST, 0, 2, {"sep", "maxsplit"}},
    {"rstrip", str_strip, WEFT__J_STRIP_RIGHT, 0, 1, {"chars"}},
    {"split", str_split, FIRST, 0, 2, {"sep", "maxsplit"}},
    {"startswith", str_affix, FIRST, 1, 1, {"prefix"}},
    {"strip", str_strip, WEFT__J_STRIP_LEFT | WEFT__J_STRIP_RIGHT, 0, 1, {"chars"}},
    {"title", str_case, WEFT__J_TITLE, 0, 0, {0}},
    {"upper", str_case, WEFT__J_UPPER, 0, 0, {0}},
};

const struct weft__jfunction *weft__j_string_method(struct weft__jvalue name)
{
    return weft__j_lookup_function(methods, WEFT__COUNT(methods), name);
}
