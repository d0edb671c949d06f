/* The filters: those of jinja2/filters.py that make sense for prompts, and tojson. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jinja.h"

static bool given(struct jvalue v) { return v.kind != J_ABSENT; }

static bool flag(struct jrun *run, struct jvalue v, bool otherwise)
{
    return given(v) ? weft__j_truth(run, v) : otherwise;
}

static bool integer(struct jrun *run, struct jvalue v, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    if (!given(v) || weft__j_integer(v, out)) return true;
    weft__j_fail(run, WEFT_INVALID, "'%s' object cannot be interpreted as an integer",
                 weft__j_type(v));
    return false;
}

/* ---- text ---- */

static struct jvalue recased(struct jrun *run, struct jcall *call, enum jcase to)
{
    struct jvalue s = weft__j_str(run, call->self);
    if (run->status != WEFT_OK) return s;
    struct jvalue out = weft__j_recase(run, s, to);
    out.markup = s.markup;
    return out;
}

static struct jvalue do_upper(struct jrun *run, struct jcall *call)
{
    return recased(run, call, J_UPPER);
}

static struct jvalue do_lower(struct jrun *run, struct jcall *call)
{
    return recased(run, call, J_LOWER);
}

static struct jvalue do_capitalize(struct jrun *run, struct jcall *call)
{
    return recased(run, call, J_CAPITALIZE);
}

/* Words begin after -, space and opening brackets: not str.title(). */
static bool parts_words(uint32_t c)
{
    return weft__j_is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

static struct jvalue do_title(struct jrun *run, struct jcall *call)
{
    struct jvalue s = weft__j_str(run, call->self);
    struct jsink sink = {0};
    for (const char *p = s.text, *end = p + s.len; run->status == WEFT_OK && p < end;) {
        const char *start = p;
        bool parting = parts_words(weft__j_char(&p, end));
        const char *first = p, *stop = p;
        while (p < end && parts_words(weft__j_char(&p, end)) == parting) stop = p;
        p = stop;
        struct jvalue head = weft__j_text(start, (size_t)(first - start));
        struct jvalue tail = weft__j_text(first, (size_t)(stop - first));
        head = weft__j_recase(run, head, J_UPPER);
        tail = weft__j_recase(run, tail, J_LOWER);
        weft__j_write(run, &sink, head.text, head.len);
        weft__j_write(run, &sink, tail.text, tail.len);
    }
    return weft__j_written(&sink);
}

static struct jvalue do_trim(struct jrun *run, struct jcall *call)
{
    struct jvalue s = weft__j_str(run, call->self);
    if (run->status != WEFT_OK) return s;
    struct jvalue out = weft__j_strip(run, s, call->arg[0], J_STRIP_LEFT | J_STRIP_RIGHT);
    out.markup = s.markup;
    return out;
}

static struct jvalue do_string(struct jrun *run, struct jcall *call)
{
    return weft__j_str(run, call->self);
}

static struct jvalue do_safe(struct jrun *run, struct jcall *call)
{
    struct jvalue s = weft__j_str(run, call->self);
    s.markup = true;
    return s;
}

struct jvalue weft__j_escape(struct jrun *run, struct jvalue s)
{
    static const char *const escapes[] = {"&",    "&amp;", "<",     "&lt;", ">",
                                          "&gt;", "\"",    "&#34;", "'",    "&#39;"};
    for (size_t i = 0; i + 1 < WEFT__COUNT(escapes) && run->status == WEFT_OK; i += 2)
        s = weft__j_replace(run, s, weft__j_literal(escapes[i]), weft__j_literal(escapes[i + 1]),
                            -1);
    s.markup = true;
    return s;
}

static struct jvalue do_escape(struct jrun *run, struct jcall *call)
{
    struct jvalue s = weft__j_str(run, call->self);
    return s.markup || run->status != WEFT_OK ? s : weft__j_escape(run, s);
}

static struct jvalue do_forceescape(struct jrun *run, struct jcall *call)
{
    struct jvalue s = weft__j_str(run, call->self);
    return run->status == WEFT_OK ? weft__j_escape(run, s) : s;
}

static struct jvalue do_replace(struct jrun *run, struct jcall *call)
{
    int64_t count;
    struct jvalue s = weft__j_str(run, call->self), from = weft__j_str(run, call->arg[0]),
                  to = weft__j_str(run, call->arg[1]);
    if (call->arg[2].kind == J_NONE) call->arg[2] = (struct jvalue){0};
    if (!integer(run, call->arg[2], -1, &count) || run->status != WEFT_OK) return s;
    s.markup = false;
    return weft__j_replace(run, s, from, to, count);
}

static struct jvalue do_indent(struct jrun *run, struct jcall *call)
{
    struct jvalue s = call->self, indent = call->arg[0];
    struct jsink spaces = {0}, sink = {0};
    bool first = flag(run, call->arg[1], false), blank = flag(run, call->arg[2], false);
    int64_t width = 4;
    if (s.kind == J_UNDEFINED) return weft__j_fail_undefined(run, s);
    if (s.kind != J_STRING)
        return weft__j_fail(run, WEFT_INVALID, "indent needs a string, not '%s'", weft__j_type(s));
    if (indent.kind != J_STRING) {
        if (!integer(run, indent, 4, &width)) return s;
        weft__j_fill(run, &spaces, weft__j_literal(" "), width);
        indent = weft__j_written(&spaces);
    }
    /* The newline that jinja2 appends makes an empty last line count. */
    s = weft__j_concat(run, s, weft__j_literal("\n"));
    struct jvalue lines = weft__j_lines(run, s, false);
    for (uint32_t i = 0; run->status == WEFT_OK && i < lines.list->count; i++) {
        struct jvalue line = lines.list->items[i];
        if (i > 0) weft__j_puts(run, &sink, "\n");
        if (i == 0 ? first : blank || line.len > 0)
            weft__j_write(run, &sink, indent.text, indent.len);
        weft__j_write(run, &sink, line.text, line.len);
        (void)weft__j_tick(run, line.len);
    }
    return weft__j_written(&sink);
}

static struct jvalue do_center(struct jrun *run, struct jcall *call)
{
    const struct jfunction *center = weft__j_string_method("center", 6);
    call->self = weft__j_str(run, call->self);
    if (!given(call->arg[0])) call->arg[0] = weft__j_int(80);
    return run->status == WEFT_OK ? center->call(run, call) : call->self;
}

static struct jvalue do_truncate(struct jrun *run, struct jcall *call)
{
    struct jvalue s = call->self;
    struct jvalue end = given(call->arg[2]) ? call->arg[2] : weft__j_literal("...");
    int64_t length, leeway, have = weft__j_length(s);
    if (!integer(run, call->arg[0], 255, &length) || !integer(run, call->arg[3], 5, &leeway))
        return s;
    if (end.kind != J_STRING || length < weft__j_chars(end) || leeway < 0)
        return weft__j_fail(run, WEFT_INVALID, "truncate: bad length, end or leeway");
    if (have >= 0 && have <= length + weft__min(leeway, INT32_MAX)) return s;
    if (s.kind != J_STRING)
        return weft__j_fail(run, WEFT_INVALID, "truncate needs a string, not '%s'",
                            weft__j_type(s));
    const char *cut = weft__j_seek(s, length - weft__j_chars(end));
    if (!flag(run, call->arg[1], false)) { /* whole words */
        const char *space = memrchr(s.text, ' ', (size_t)(cut - s.text));
        if (space != NULL) cut = space;
    }
    return weft__j_concat(run, weft__j_text(s.text, (size_t)(cut - s.text)), end);
}

static struct jvalue do_wordcount(struct jrun *run, struct jcall *call)
{
    struct jvalue s = weft__j_str(run, call->self);
    int64_t count = 0;
    bool inside = false;
    if (run->status != WEFT_OK || !weft__j_tick(run, (size_t)s.len * 4)) return s;
    for (const char *p = s.text, *end = p + s.len; p < end;) {
        bool word = weft__j_is_word(weft__j_char(&p, end));
        count += word && !inside;
        inside = word;
    }
    return weft__j_int(count);
}

static struct jvalue do_format(struct jrun *run, struct jcall *call)
{
    struct jvalue args = {.kind = J_TUPLE, .list = &call->positional};
    struct jvalue named = {.kind = J_DICT, .dict = &call->named};
    if (call->positional.count > 0 && call->named.count > 0)
        return weft__j_fail(run, WEFT_INVALID,
                            "can't handle positional and keyword arguments at the same time");
    struct jvalue s = weft__j_str(run, call->self);
    if (run->status != WEFT_OK) return s;
    return weft__j_percent(run, s, call->named.count > 0 ? named : args);
}

/* ---- numbers ---- */

static bool parse_int(struct jvalue s, int base, int64_t *out)
{
    char text[80];
    struct jvalue digits = s;
    size_t n = 0, start = weft__j_skip_space(s.text, s.len, 0);
    digits = weft__j_text(s.text + start, weft__j_trim_end(s.text + start, s.len - start));
    for (uint32_t i = 0; i < digits.len; i++) {
        char c = digits.text[i];
        bool joins = c == '_' && i > 0 && i + 1 < digits.len &&
                     isalnum((unsigned char)digits.text[i - 1]) &&
                     isalnum((unsigned char)digits.text[i + 1]);
        if (joins) continue;
        if (n + 1 >= sizeof text ||
            !(isalnum((unsigned char)c) || (i == 0 && (c == '-' || c == '+'))))
            return false;
        text[n++] = c;
    }
    text[n] = '\0';
    char *digit = text + (text[0] == '-' || text[0] == '+'), *end;
    char prefix = (char)(digit[0] == '0' ? digit[1] | 0x20 : 0);
    int prefixed = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 0;
    if (prefixed != 0 && prefixed == base) memmove(digit, digit + 2, strlen(digit + 2) + 1);
    long long value = strtoll(text, &end, base);
    if (!isalnum((unsigned char)*digit) || *end != '\0' || value == INT64_MAX || value == INT64_MIN)
        return false;
    *out = value;
    return true;
}

/* Decimal notation, inf and nan; not the hexadecimal that strtod takes as well. */
static bool parse_float(struct jvalue s, double *out)
{
    char text[400], *end;
    size_t start = weft__j_skip_space(s.text, s.len, 0);
    size_t len = weft__j_trim_end(s.text + start, s.len - start), n = 0;
    if (len == 0 || len >= sizeof text) return false;
    for (size_t i = 0; i < len; i++) {
        char c = s.text[start + i];
        bool joins = c == '_' && i > 0 && i + 1 < len &&
                     isdigit((unsigned char)s.text[start + i - 1]) &&
                     isdigit((unsigned char)s.text[start + i + 1]);
        if (joins) continue;
        if (c == '_' || c == 'x' || c == 'X' || c == '(' || (unsigned char)c <= ' ') return false;
        text[n++] = c;
    }
    text[n] = '\0';
    *out = strtod(text, &end);
    return end != text && *end == '\0';
}

static bool to_float(struct jvalue v, double *out)
{
    return v.kind == J_STRING ? parse_float(v, out) : weft__j_number(v, out);
}

static struct jvalue do_int(struct jrun *run, struct jcall *call)
{
    struct jvalue otherwise = given(call->arg[0]) ? call->arg[0] : weft__j_int(0);
    int64_t base, out;
    double real;
    if (!integer(run, call->arg[1], 10, &base)) return otherwise;
    if (base != 0 && (base < 2 || base > 36)) base = 10;
    if (call->self.kind == J_UNDEFINED) return weft__j_fail_undefined(run, call->self);
    if (weft__j_integer(call->self, &out)) return weft__j_int(out);
    if (call->self.kind == J_STRING && parse_int(call->self, (int)base, &out))
        return weft__j_int(out);
    if (to_float(call->self, &real) && isfinite(real)) {
        if (fabs(real) < 0x1p63) return weft__j_int((int64_t)real);
        return weft__j_fail(run, WEFT_UNSUPPORTED, "an integer beyond 64 bits");
    }
    return otherwise;
}

static struct jvalue do_float(struct jrun *run, struct jcall *call)
{
    double out;
    if (call->self.kind == J_UNDEFINED) return weft__j_fail_undefined(run, call->self);
    if (to_float(call->self, &out)) return weft__j_float(out);
    return given(call->arg[0]) ? call->arg[0] : weft__j_float(0);
}

static struct jvalue do_abs(struct jrun *run, struct jcall *call)
{
    int64_t value;
    if (call->self.kind == J_FLOAT) return weft__j_float(fabs(call->self.real));
    if (call->self.kind == J_UNDEFINED) return weft__j_fail_undefined(run, call->self);
    if (!weft__j_integer(call->self, &value) || value == INT64_MIN)
        return weft__j_fail(run, WEFT_INVALID, "bad operand type for abs(): '%s'",
                            weft__j_type(call->self));
    return weft__j_int(value < 0 ? -value : value);
}

/* Python's round(): to the nearest, the decimal digits of the exact value deciding, ties to even.
 */
static double round_to(double value, int64_t digits)
{
    char text[700];
    if (!isfinite(value) || digits > 330) return value;
    if (digits < -330) return copysign(0, value);
    if (digits < 0) {
        double unit = pow(10, (double)-digits);
        return copysign(nearbyint(fabs(value) / unit) * unit, value);
    }
    (void)snprintf(text, sizeof text, "%.*f", (int)digits, value);
    return strtod(text, NULL);
}

static int64_t round_int(int64_t value, int64_t digits)
{
    int64_t unit = 1;
    if (digits >= 0) return value;
    if (digits < -18) return 0;
    for (; digits < 0; digits++) unit *= 10;
    int64_t rest = value % unit, down = value - rest, magnitude = rest < 0 ? -rest : rest;
    bool up = magnitude > unit / 2 || (magnitude == unit / 2 && (down / unit) % 2 != 0);
    int64_t out = down;
    if (up && __builtin_add_overflow(down, value < 0 ? -unit : unit, &out)) return down;
    return out;
}

static struct jvalue do_round(struct jrun *run, struct jcall *call)
{
    struct jvalue method = given(call->arg[1]) ? call->arg[1] : weft__j_literal("common");
    bool up = weft__j_is_text(method, "ceil"), down = weft__j_is_text(method, "floor");
    int64_t digits, whole;
    double value;
    if (!integer(run, call->arg[0], 0, &digits)) return method;
    if (!up && !down && !weft__j_is_text(method, "common"))
        return weft__j_fail(run, WEFT_INVALID, "method must be common, ceil or floor");
    if (call->self.kind == J_UNDEFINED) return weft__j_fail_undefined(run, call->self);
    if (!up && !down && weft__j_integer(call->self, &whole))
        return weft__j_int(round_int(whole, digits));
    if (!weft__j_number(call->self, &value))
        return weft__j_fail(run, WEFT_INVALID, "type %s doesn't define __round__ method",
                            weft__j_type(call->self));
    if (!up && !down) return weft__j_float(round_to(value, digits));
    double unit = pow(10, (double)digits);
    if (!isfinite(value))
        return weft__j_fail(run, WEFT_INVALID, "cannot convert float infinity or NaN to integer");
    value = up ? ceil(value * unit) : floor(value * unit);
    return weft__j_float((value + 0.0) / unit); /* no -0, as Python's floor gives an int */
}

static struct jvalue do_tojson(struct jrun *run, struct jcall *call)
{
    return weft__j_tojson(run, call);
}

/* ---- any value ---- */

static struct jvalue do_default(struct jrun *run, struct jcall *call)
{
    bool falsy = flag(run, call->arg[1], false) && !weft__j_truth(run, call->self);
    if (call->self.kind != J_UNDEFINED && !falsy) return call->self;
    return given(call->arg[0]) ? call->arg[0] : weft__j_text("", 0);
}

static struct jvalue do_length(struct jrun *run, struct jcall *call)
{
    int64_t length = weft__j_length(call->self);
    if (call->self.kind == J_LOOP) length = weft__j_loop_length(run, call->self.loop);
    if (!weft__j_tick(run, call->self.kind == J_STRING ? call->self.len : 0)) return call->self;
    if (length >= 0) return weft__j_int(length);
    return weft__j_fail(run, WEFT_INVALID, "object of type '%s' has no len()",
                        weft__j_type(call->self));
}

static struct jvalue do_attr(struct jrun *run, struct jcall *call)
{
    /* Attributes only, never the keys of a mapping. */
    struct jvalue name = weft__j_str(run, call->arg[0]), object = call->self;
    if (run->status != WEFT_OK) return name;
    if (object.kind == J_DICT && weft__j_method(object, name.text, name.len) == NULL)
        return weft__j_undefined(run, object, name);
    return weft__j_getattr(run, object, name);
}

const struct jfunction *weft__j_lookup_function(const struct jfunction *table, size_t count,
                                                const char *name, size_t len)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i].name) == len && memcmp(table[i].name, name, len) == 0) return &table[i];
    return NULL;
}

static const struct jfunction filters[] = {
    {"abs", do_abs, 0, 0, {0}},
    {"attr", do_attr, 1, 1, {"name"}},
    {"capitalize", do_capitalize, 0, 0, {0}},
    {"center", do_center, 0, 1, {"width"}},
    {"count", do_length, 0, 0, {0}},
    {"d", do_default, 0, 2, {"default_value", "boolean"}},
    {"default", do_default, 0, 2, {"default_value", "boolean"}},
    {"e", do_escape, 0, 0, {0}},
    {"escape", do_escape, 0, 0, {0}},
    {"float", do_float, 0, 1, {"default"}},
    {"forceescape", do_forceescape, 0, 0, {0}},
    {"format", do_format, 0, J_VARARGS, {0}},
    {"indent", do_indent, 0, 3, {"width", "first", "blank"}},
    {"int", do_int, 0, 2, {"default", "base"}},
    {"length", do_length, 0, 0, {0}},
    {"lower", do_lower, 0, 0, {0}},
    {"replace", do_replace, 2, 3, {"old", "new", "count"}},
    {"round", do_round, 0, 2, {"precision", "method"}},
    {"safe", do_safe, 0, 0, {0}},
    {"string", do_string, 0, 0, {0}},
    {"title", do_title, 0, 0, {0}},
    {"tojson", do_tojson, 0, 4, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", do_trim, 0, 1, {"chars"}},
    {"truncate", do_truncate, 0, 4, {"length", "killwords", "end", "leeway"}},
    {"upper", do_upper, 0, 0, {0}},
    {"wordcount", do_wordcount, 0, 0, {0}},
};

const struct jfunction *weft__j_filter(const char *name, size_t len)
{
    const struct jfunction *found =
        weft__j_lookup_function(filters, WEFT__COUNT(filters), name, len);
    return found != NULL ? found : weft__j_list_filter(name, len);
}
