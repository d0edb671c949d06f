/* The methods of Python's str. */
#include <string.h>
#include <utf8proc.h>

#include "jinja.h"

/* ---- arguments ---- */

static bool text_argument(struct jrun *run, const struct jcall *call, int i)
{
    if (call->arg[i].kind == J_STRING) return true;
    weft__j_fail(run, WEFT_INVALID, "%s() needs a string, not '%s'", call->function->name,
                 weft__j_type(call->arg[i]));
    return false;
}

/* An integer argument, or `otherwise` when it is not given. */
static bool int_argument(struct jrun *run, const struct jcall *call, int i, int64_t otherwise,
                         int64_t *out)
{
    *out = otherwise;
    if (call->arg[i].kind == J_ABSENT || weft__j_integer(call->arg[i], out)) return true;
    weft__j_fail(run, WEFT_INVALID, "'%s' object cannot be interpreted as an integer",
                 weft__j_type(call->arg[i]));
    return false;
}

/* The part of the string that [start, end) of arguments 1 and 2 leave; false: nothing can match,
 * as start lies behind the end. offset: characters before it. */
static bool bounded(struct jrun *run, const struct jcall *call, struct jvalue *part,
                    int64_t *offset)
{
    int64_t length, bounds[2];
    *part = call->self;
    *offset = 0;
    if (call->arg[1].kind == J_ABSENT && call->arg[2].kind == J_ABSENT) return true;
    length = weft__j_chars(call->self);
    for (int i = 0; i < 2; i++) {
        bounds[i] = i == 0 ? 0 : length;
        if (call->arg[i + 1].kind == J_NONE) continue;
        if (!int_argument(run, call, i + 1, bounds[i], &bounds[i])) return false;
        if (bounds[i] < 0) bounds[i] = weft__max(bounds[i] + length, 0);
    }
    bounds[1] = weft__min(bounds[1], length);
    if (bounds[0] > bounds[1]) return false;
    const char *from = weft__j_seek(call->self, bounds[0]);
    *part = weft__j_text(from, (size_t)(weft__j_seek(call->self, bounds[1]) - from));
    *offset = bounds[0];
    return true;
}

/* ---- case ---- */

static struct jvalue str_upper(struct jrun *run, struct jcall *call)
{
    return weft__j_recase(run, call->self, J_UPPER);
}

static struct jvalue str_lower(struct jrun *run, struct jcall *call)
{
    return weft__j_recase(run, call->self, J_LOWER);
}

static struct jvalue str_title(struct jrun *run, struct jcall *call)
{
    return weft__j_recase(run, call->self, J_TITLE);
}

static struct jvalue str_capitalize(struct jrun *run, struct jcall *call)
{
    return weft__j_recase(run, call->self, J_CAPITALIZE);
}

static struct jvalue str_swapcase(struct jrun *run, struct jcall *call)
{
    return weft__j_recase(run, call->self, J_SWAPCASE);
}

static struct jvalue str_casefold(struct jrun *run, struct jcall *call)
{
    struct jsink sink = {0};
    (void)weft__j_tick(run, (size_t)call->self.len * 8);
    for (const char *p = call->self.text, *end = p + call->self.len;
         p < end && run->status == WEFT_OK;) {
        utf8proc_int32_t folded[8];
        char text[4];
        int unused = 0;
        utf8proc_ssize_t count = utf8proc_decompose_char((utf8proc_int32_t)weft__j_char(&p, end),
                                                         folded, 8, UTF8PROC_CASEFOLD, &unused);
        for (utf8proc_ssize_t i = 0; i < count; i++)
            weft__j_write(run, &sink, text, (size_t)weft__utf8_put(text, (uint32_t)folded[i]));
    }
    return weft__j_written(&sink);
}

/* ---- stripping, splitting, joining ---- */

static struct jvalue str_strip(struct jrun *run, struct jcall *call)
{
    return weft__j_strip(run, call->self, call->arg[0], J_STRIP_LEFT | J_STRIP_RIGHT);
}

static struct jvalue str_lstrip(struct jrun *run, struct jcall *call)
{
    return weft__j_strip(run, call->self, call->arg[0], J_STRIP_LEFT);
}

static struct jvalue str_rstrip(struct jrun *run, struct jcall *call)
{
    return weft__j_strip(run, call->self, call->arg[0], J_STRIP_RIGHT);
}

static bool starts(struct jvalue s, struct jvalue with)
{
    return s.len >= with.len && (with.len == 0 || memcmp(s.text, with.text, with.len) == 0);
}

static bool ends(struct jvalue s, struct jvalue with)
{
    return s.len >= with.len &&
           (with.len == 0 || memcmp(s.text + s.len - with.len, with.text, with.len) == 0);
}

static struct jvalue affix(struct jrun *run, struct jcall *call,
                           bool (*matches)(struct jvalue, struct jvalue))
{
    struct jvalue part, what = call->arg[0];
    struct jlist one = {.items = &what, .count = 1}, list = one;
    int64_t offset;
    if (what.kind == J_TUPLE) list = *what.list;
    if (!bounded(run, call, &part, &offset)) return weft__j_bool(false);
    for (uint32_t i = 0; i < list.count && weft__j_tick(run, list.items[i].len); i++) {
        if (list.items[i].kind != J_STRING)
            return weft__j_fail(run, WEFT_INVALID,
                                "%s first arg must be str or a tuple of str, not %s",
                                call->function->name, weft__j_type(list.items[i]));
        if (matches(part, list.items[i])) return weft__j_bool(true);
    }
    return weft__j_bool(false);
}

static struct jvalue str_startswith(struct jrun *run, struct jcall *call)
{
    return affix(run, call, starts);
}

static struct jvalue str_endswith(struct jrun *run, struct jcall *call)
{
    return affix(run, call, ends);
}

static struct jvalue str_removeprefix(struct jrun *run, struct jcall *call)
{
    struct jvalue s = call->self, prefix = call->arg[0];
    if (!text_argument(run, call, 0)) return s;
    return starts(s, prefix) ? weft__j_text(s.text + prefix.len, s.len - prefix.len) : s;
}

static struct jvalue str_removesuffix(struct jrun *run, struct jcall *call)
{
    struct jvalue s = call->self, suffix = call->arg[0];
    if (!text_argument(run, call, 0)) return s;
    return ends(s, suffix) ? weft__j_text(s.text, s.len - suffix.len) : s;
}

static int64_t search_last(struct jrun *run, struct jvalue s, struct jvalue needle)
{
    for (int64_t at = (int64_t)s.len - needle.len; at >= 0; at--) {
        if (needle.len == 0 || memcmp(s.text + at, needle.text, needle.len) == 0) {
            (void)weft__j_tick(run, (s.len - (size_t)at) * 4);
            return at;
        }
        if (needle.len > 16 && !weft__j_tick(run, needle.len)) break;
    }
    (void)weft__j_tick(run, (size_t)s.len * 4);
    return -1;
}

static void reverse(struct jlist *list)
{
    for (uint32_t i = 0, j = list->count; i + 1 < j; i++) {
        struct jvalue swap = list->items[i];
        list->items[i] = list->items[--j];
        list->items[j] = swap;
    }
}

static void split_space(struct jrun *run, struct jvalue s, int64_t max, struct jlist *out)
{
    size_t pos = weft__j_skip_space(s.text, s.len, 0);
    for (int64_t i = 0; pos < s.len && weft__j_tick(run, 0); i++) {
        const char *p = s.text + pos, *end = s.text + s.len, *stop = p;
        if (i == max) {
            (void)weft__j_push(run, out, weft__j_text(p, s.len - pos));
            return;
        }
        while (p < end && !weft__j_is_space(weft__j_char(&p, end))) stop = p;
        (void)weft__j_push(run, out, weft__j_text(s.text + pos, (size_t)(stop - s.text) - pos));
        pos = weft__j_skip_space(s.text, s.len, (size_t)(stop - s.text));
    }
}

static void rsplit_space(struct jrun *run, struct jvalue s, int64_t max, struct jlist *out)
{
    size_t len = weft__j_trim_end(s.text, s.len);
    for (int64_t i = 0; len > 0 && weft__j_tick(run, 0); i++) {
        size_t start = len;
        if (i == max) {
            (void)weft__j_push(run, out, weft__j_text(s.text, len));
            return;
        }
        while (start > 0 && weft__j_trim_end(s.text, start) == start) do
                start--;
            while (start > 0 && ((unsigned char)s.text[start] & 0xc0) == 0x80);
        (void)weft__j_push(run, out, weft__j_text(s.text + start, len - start));
        len = weft__j_trim_end(s.text, start);
    }
}

static struct jvalue split(struct jrun *run, struct jcall *call, bool last)
{
    struct jvalue s = call->self, by = call->arg[0], out = weft__j_new_list(run, J_LIST);
    int64_t max;
    if (!int_argument(run, call, 1, -1, &max) || out.kind == J_ABSENT) return out;
    (void)weft__j_tick(run, (size_t)s.len * 4);
    if (by.kind == J_ABSENT || by.kind == J_NONE) {
        (last ? rsplit_space : split_space)(run, s, max, out.list);
    } else {
        if (!text_argument(run, call, 0)) return out;
        if (by.len == 0) return weft__j_fail(run, WEFT_INVALID, "empty separator");
        for (; max != 0 && run->status == WEFT_OK; max--) {
            int64_t at = last ? search_last(run, s, by) : weft__j_search(run, s, 0, by);
            if (at < 0) break;
            size_t behind = (size_t)at + by.len;
            struct jvalue before = weft__j_text(s.text, (size_t)at);
            struct jvalue after = weft__j_text(s.text + behind, s.len - behind);
            (void)weft__j_push(run, out.list, last ? after : before);
            s = last ? before : after;
        }
        (void)weft__j_push(run, out.list, s);
    }
    if (last) reverse(out.list);
    return out;
}

static struct jvalue str_split(struct jrun *run, struct jcall *call)
{
    return split(run, call, false);
}

static struct jvalue str_rsplit(struct jrun *run, struct jcall *call)
{
    return split(run, call, true);
}

static struct jvalue str_splitlines(struct jrun *run, struct jcall *call)
{
    bool keep = call->arg[0].kind != J_ABSENT && weft__j_truth(run, call->arg[0]);
    return weft__j_lines(run, call->self, keep);
}

static struct jvalue partition(struct jrun *run, struct jcall *call, bool last)
{
    struct jvalue s = call->self, by = call->arg[0], empty = weft__j_text("", 0);
    struct jvalue out = weft__j_new_list(run, J_TUPLE), parts[3] = {s, empty, empty};
    if (!text_argument(run, call, 0)) return s;
    if (by.len == 0) return weft__j_fail(run, WEFT_INVALID, "empty separator");
    int64_t at = last ? search_last(run, s, by) : weft__j_search(run, s, 0, by);
    if (at >= 0) {
        size_t behind = (size_t)at + by.len;
        parts[0] = weft__j_text(s.text, (size_t)at);
        parts[1] = by;
        parts[2] = weft__j_text(s.text + behind, s.len - behind);
    } else if (last) {
        parts[0] = empty;
        parts[2] = s;
    }
    for (int i = 0; i < 3 && out.kind != J_ABSENT; i++) (void)weft__j_push(run, out.list, parts[i]);
    return out;
}

static struct jvalue str_partition(struct jrun *run, struct jcall *call)
{
    return partition(run, call, false);
}

static struct jvalue str_rpartition(struct jrun *run, struct jcall *call)
{
    return partition(run, call, true);
}

static struct jvalue str_join(struct jrun *run, struct jcall *call)
{
    struct jsink sink = {0};
    struct jlist items;
    if (!weft__j_iterate(run, call->arg[0], &items)) return (struct jvalue){0};
    for (uint32_t i = 0; i < items.count && weft__j_tick(run, items.items[i].len); i++) {
        if (items.items[i].kind != J_STRING)
            return weft__j_fail(run, WEFT_INVALID,
                                "sequence item %u: expected str instance, %s found", i,
                                weft__j_type(items.items[i]));
        if (i > 0) weft__j_write(run, &sink, call->self.text, call->self.len);
        weft__j_write(run, &sink, items.items[i].text, items.items[i].len);
    }
    return weft__j_written(&sink);
}

static struct jvalue str_replace(struct jrun *run, struct jcall *call)
{
    int64_t count;
    if (!text_argument(run, call, 0) || !text_argument(run, call, 1) ||
        !int_argument(run, call, 2, -1, &count))
        return call->self;
    return weft__j_replace(run, call->self, call->arg[0], call->arg[1], count);
}

/* ---- searching ---- */

static struct jvalue find(struct jrun *run, struct jcall *call, bool last, bool must)
{
    struct jvalue part;
    int64_t offset, at = -1;
    if (!text_argument(run, call, 0)) return (struct jvalue){0};
    if (bounded(run, call, &part, &offset))
        at = last ? search_last(run, part, call->arg[0])
                  : weft__j_search(run, part, 0, call->arg[0]);
    if (at >= 0) return weft__j_int(offset + weft__j_chars(weft__j_text(part.text, (size_t)at)));
    return must ? weft__j_fail(run, WEFT_INVALID, "substring not found") : weft__j_int(-1);
}

static struct jvalue str_find(struct jrun *run, struct jcall *call)
{
    return find(run, call, false, false);
}

static struct jvalue str_rfind(struct jrun *run, struct jcall *call)
{
    return find(run, call, true, false);
}

static struct jvalue str_index(struct jrun *run, struct jcall *call)
{
    return find(run, call, false, true);
}

static struct jvalue str_rindex(struct jrun *run, struct jcall *call)
{
    return find(run, call, true, true);
}

static struct jvalue str_count(struct jrun *run, struct jcall *call)
{
    struct jvalue part;
    int64_t offset, count = 0, at = 0;
    if (!text_argument(run, call, 0)) return (struct jvalue){0};
    if (!bounded(run, call, &part, &offset)) return weft__j_int(0);
    if (call->arg[0].len == 0) return weft__j_int(weft__j_chars(part) + 1);
    while ((at = weft__j_search(run, part, (size_t)at, call->arg[0])) >= 0 &&
           run->status == WEFT_OK) {
        at += call->arg[0].len;
        count++;
    }
    return weft__j_int(count);
}

/* ---- padding ---- */

static struct jvalue justify(struct jrun *run, struct jcall *call, int left_parts)
{
    struct jvalue fill = call->arg[1].kind == J_ABSENT ? weft__j_literal(" ") : call->arg[1];
    int64_t width, length = weft__j_chars(call->self);
    if (!int_argument(run, call, 0, 0, &width)) return call->self;
    if (fill.kind != J_STRING || weft__j_chars(fill) != 1)
        return weft__j_fail(run, WEFT_INVALID, "the fill character must be exactly one character");
    if (width <= length) return call->self;
    int64_t gap = width - length, left = left_parts == 2 ? gap : 0;
    if (left_parts == 1) left = gap / 2 + (gap & width & 1); /* CPython's str.center */
    struct jsink sink = {0};
    weft__j_fill(run, &sink, fill, left);
    weft__j_write(run, &sink, call->self.text, call->self.len);
    weft__j_fill(run, &sink, fill, gap - left);
    return weft__j_written(&sink);
}

static struct jvalue str_ljust(struct jrun *run, struct jcall *call)
{
    return justify(run, call, 0);
}

static struct jvalue str_center(struct jrun *run, struct jcall *call)
{
    return justify(run, call, 1);
}

static struct jvalue str_rjust(struct jrun *run, struct jcall *call)
{
    return justify(run, call, 2);
}

static struct jvalue str_zfill(struct jrun *run, struct jcall *call)
{
    struct jvalue s = call->self;
    int64_t width, length = weft__j_chars(s);
    struct jsink sink = {0};
    if (!int_argument(run, call, 0, 0, &width)) return s;
    uint32_t sign = s.len > 0 && (s.text[0] == '-' || s.text[0] == '+') ? 1 : 0;
    weft__j_write(run, &sink, s.text, sign);
    weft__j_fill(run, &sink, weft__j_literal("0"), width - length);
    weft__j_write(run, &sink, s.text + sign, s.len - sign);
    return weft__j_written(&sink);
}

/* ---- classes of characters ---- */

static bool is_alpha(uint32_t c)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

static bool is_decimal(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}

/* Numeric_Type=Digit, besides the decimal digits. */
static bool is_digit(uint32_t c)
{
    static const uint32_t ranges[][2] = {
        {0xb2, 0xb3},       {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},
        {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
        {0x2474, 0x247c},   {0x2488, 0x2490},   {0x24ea, 0x24ea},   {0x24f5, 0x24fd},
        {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},   {0x278a, 0x2792},
        {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}};
    if (is_decimal(c)) return true;
    for (size_t i = 0; i < WEFT__COUNT(ranges); i++)
        if (c >= ranges[i][0] && c <= ranges[i][1]) return true;
    return false;
}

static bool is_alnum(uint32_t c) { return c != '_' && weft__j_is_word(c); }

static struct jvalue all(struct jrun *run, const struct jcall *call, bool (*is)(uint32_t))
{
    for (const char *p = call->self.text, *end = p + call->self.len; p < end;)
        if (!is(weft__j_char(&p, end))) return weft__j_bool(false);
    (void)weft__j_tick(run, (size_t)call->self.len * 4);
    return weft__j_bool(call->self.len > 0);
}

static struct jvalue str_isalpha(struct jrun *run, struct jcall *call)
{
    return all(run, call, is_alpha);
}

static struct jvalue str_isdecimal(struct jrun *run, struct jcall *call)
{
    return all(run, call, is_decimal);
}

static struct jvalue str_isdigit(struct jrun *run, struct jcall *call)
{
    return all(run, call, is_digit);
}

static struct jvalue str_isalnum(struct jrun *run, struct jcall *call)
{
    return all(run, call, is_alnum);
}

static struct jvalue str_isspace(struct jrun *run, struct jcall *call)
{
    return all(run, call, weft__j_is_space);
}

static struct jvalue str_isprintable(struct jrun *run, struct jcall *call)
{
    struct jvalue out = all(run, call, weft__j_is_printable);
    return call->self.len == 0 ? weft__j_bool(true) : out;
}

static bool is_ascii(uint32_t c) { return c < 0x80; }

static struct jvalue str_isascii(struct jrun *run, struct jcall *call)
{
    struct jvalue out = all(run, call, is_ascii);
    return call->self.len == 0 ? weft__j_bool(true) : out;
}

static struct jvalue str_islower(struct jrun *run, struct jcall *call)
{
    (void)weft__j_tick(run, (size_t)call->self.len * 8);
    return weft__j_bool(weft__j_is_case(call->self, J_LOWER));
}

static struct jvalue str_isupper(struct jrun *run, struct jcall *call)
{
    (void)weft__j_tick(run, (size_t)call->self.len * 8);
    return weft__j_bool(weft__j_is_case(call->self, J_UPPER));
}

static struct jvalue str_istitle(struct jrun *run, struct jcall *call)
{
    (void)weft__j_tick(run, (size_t)call->self.len * 8);
    return weft__j_bool(weft__j_is_case(call->self, J_TITLE));
}

static struct jvalue not_supported(struct jrun *run, struct jcall *call)
{
    return weft__j_fail(run, WEFT_UNSUPPORTED, "the string method %s() is not supported",
                        call->function->name);
}

static const struct jfunction methods[] = {
    {"capitalize", str_capitalize, 0, 0, {0}},
    {"casefold", str_casefold, 0, 0, {0}},
    {"center", str_center, 1, 2, {"width", "fillchar"}},
    {"count", str_count, 1, 3, {"sub", "start", "end"}},
    {"encode", not_supported, 0, J_VARARGS, {0}},
    {"endswith", str_endswith, 1, 3, {"suffix", "start", "end"}},
    {"expandtabs", not_supported, 0, J_VARARGS, {0}},
    {"find", str_find, 1, 3, {"sub", "start", "end"}},
    {"format", weft__j_format, 0, J_VARARGS, {0}},
    {"format_map", not_supported, 0, J_VARARGS, {0}},
    {"index", str_index, 1, 3, {"sub", "start", "end"}},
    {"isalnum", str_isalnum, 0, 0, {0}},
    {"isalpha", str_isalpha, 0, 0, {0}},
    {"isascii", str_isascii, 0, 0, {0}},
    {"isdecimal", str_isdecimal, 0, 0, {0}},
    {"isdigit", str_isdigit, 0, 0, {0}},
    {"isidentifier", not_supported, 0, J_VARARGS, {0}},
    {"islower", str_islower, 0, 0, {0}},
    {"isnumeric", not_supported, 0, J_VARARGS, {0}},
    {"isprintable", str_isprintable, 0, 0, {0}},
    {"isspace", str_isspace, 0, 0, {0}},
    {"istitle", str_istitle, 0, 0, {0}},
    {"isupper", str_isupper, 0, 0, {0}},
    {"join", str_join, 1, 1, {"iterable"}},
    {"ljust", str_ljust, 1, 2, {"width", "fillchar"}},
    {"lower", str_lower, 0, 0, {0}},
    {"lstrip", str_lstrip, 0, 1, {"chars"}},
    {"maketrans", not_supported, 0, J_VARARGS, {0}},
    {"partition", str_partition, 1, 1, {"sep"}},
    {"removeprefix", str_removeprefix, 1, 1, {"prefix"}},
    {"removesuffix", str_removesuffix, 1, 1, {"suffix"}},
    {"replace", str_replace, 2, 3, {"old", "new", "count"}},
    {"rfind", str_rfind, 1, 3, {"sub", "start", "end"}},
    {"rindex", str_rindex, 1, 3, {"sub", "start", "end"}},
    {"rjust", str_rjust, 1, 2, {"width", "fillchar"}},
    {"rpartition", str_rpartition, 1, 1, {"sep"}},
    {"rsplit", str_rsplit, 0, 2, {"sep", "maxsplit"}},
    {"rstrip", str_rstrip, 0, 1, {"chars"}},
    {"split", str_split, 0, 2, {"sep", "maxsplit"}},
    {"splitlines", str_splitlines, 0, 1, {"keepends"}},
    {"startswith", str_startswith, 1, 3, {"prefix", "start", "end"}},
    {"strip", str_strip, 0, 1, {"chars"}},
    {"swapcase", str_swapcase, 0, 0, {0}},
    {"title", str_title, 0, 0, {0}},
    {"translate", not_supported, 0, J_VARARGS, {0}},
    {"upper", str_upper, 0, 0, {0}},
    {"zfill", str_zfill, 1, 1, {"width"}},
};

const struct jfunction *weft__j_string_method(const char *name, size_t len)
{
    return weft__j_lookup_function(methods, WEFT__COUNT(methods), name, len);
}
