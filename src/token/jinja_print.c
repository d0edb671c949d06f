/* Values -> text: Python's str() and repr(), and json.dumps as Hugging Face's tojson calls it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jinja.h"

/* ---- sinks and strings that grow ---- */

static struct weft__jgrow *new_grow(struct weft__jrun *run, size_t need, size_t spare)
{
    if (need > WEFT__TEMPLATE_MAX_OUTPUT) {
        weft__j_fail(run, WEFT_TOO_LONG, "the template makes a text of more than %d MiB",
                     WEFT__TEMPLATE_MAX_OUTPUT >> 20);
        return NULL;
    }
    size_t cap = (size_t)weft__min((int64_t)(need + spare), WEFT__TEMPLATE_MAX_OUTPUT);
    struct weft__jgrow *grow = weft__j_alloc(run, sizeof *grow + cap);
    if (grow != NULL) grow->cap = (uint32_t)cap;
    return grow;
}

void weft__j_write(struct weft__jrun *run, struct weft__jsink *sink, const char *text, size_t len)
{
    if (run->status != WEFT_OK || len == 0) return;
    if (sink->buf != NULL) {
        size_t room = WEFT__TEMPLATE_MAX_OUTPUT - (sink->buf->len - run->out_start);
        if (room > sink->buf->max - sink->buf->len) room = sink->buf->max - sink->buf->len;
        if (len > room)
            weft__j_fail(run, WEFT_TOO_LONG, "the prompt grows beyond %zu bytes",
                         sink->buf->len - run->out_start + room);
        else
            weft__buf_append(sink->buf, text, len);
        if (sink->buf->failed && run->status == WEFT_OK)
            run->status = weft__fail_oom(run->err, len, "a prompt");
        return;
    }
    struct weft__jgrow *grow = sink->grow;
    if (grow == NULL || grow->cap - grow->used < len) {
        size_t used = grow != NULL ? grow->used : 0;
        struct weft__jgrow *larger = new_grow(run, used + len, used + 48);
        if (larger == NULL) return;
        if (used > 0) memcpy(larger->text, grow->text, used);
        larger->used = (uint32_t)used;
        sink->grow = grow = larger;
    }
    memcpy(grow->text + grow->used, text, len);
    grow->used += (uint32_t)len;
}

void weft__j_puts(struct weft__jrun *run, struct weft__jsink *sink, const char *text)
{
    weft__j_write(run, sink, text, strlen(text));
}

void weft__j_fill(struct weft__jrun *run, struct weft__jsink *sink, struct weft__jvalue unit,
                  int64_t times)
{
    for (int64_t i = 0; i < times && unit.len > 0 && run->status == WEFT_OK; i++) {
        weft__j_write(run, sink, unit.text, unit.len); /* fails before long */
        run->steps += i % 64 == 0;
    }
    (void)weft__j_tick(run, 0);
}

struct weft__jvalue weft__j_written(struct weft__jsink *sink)
{
    if (sink->grow == NULL) return weft__j_text("", 0);
    struct weft__jvalue out = weft__j_text(sink->grow->text, sink->grow->used);
    out.growable = true;
    return out;
}

/* Appends in place when nothing was appended to a before: building a text piece by piece takes
 * time and memory in proportion to it, as in CPython. */
struct weft__jvalue weft__j_concat(struct weft__jrun *run, struct weft__jvalue a,
                                   struct weft__jvalue b)
{
    if (run->status != WEFT_OK || b.len == 0) return a;
    if (a.len == 0) return b;
    if (!weft__j_tick(run, b.len)) return a;
    struct weft__jgrow *grow = NULL;
    if (a.growable) {
        grow = (struct weft__jgrow *)(void *)((char *)(uintptr_t)a.text -
                                              offsetof(struct weft__jgrow, text));
        if (grow->used != a.len || grow->cap - grow->used < b.len) grow = NULL;
    }
    if (grow == NULL) {
        size_t need = (size_t)a.len + b.len;
        grow = new_grow(run, need, a.growable ? need : 16);
        if (grow == NULL || !weft__j_tick(run, a.len)) return a;
        memcpy(grow->text, a.text, a.len);
        grow->used = a.len;
    }
    memcpy(grow->text + grow->used, b.text, b.len);
    grow->used += b.len;
    struct weft__jsink sink = {.grow = grow};
    return weft__j_written(&sink);
}

/* ---- numbers ---- */

static void write_float(struct weft__jrun *run, struct weft__jsink *sink, double value, bool json)
{
    char digits[40], out[48], *p = out;
    if (isnan(value) || isinf(value)) {
        const char *text = isnan(value) ? (json ? "NaN" : "nan") : (json ? "Infinity" : "inf");
        if (isinf(value) && value < 0) weft__j_puts(run, sink, "-");
        weft__j_puts(run, sink, text);
        return;
    }
    int count = 0;
    do /* the fewest digits that read back as the same number */
        (void)snprintf(digits, sizeof digits, "%.*e", count++, fabs(value));
    while (count < 17 && strtod(digits, NULL) != fabs(value));
    int exponent = (int)strtol(strchr(digits, 'e') + 1, NULL, 10);     /* ours, hence well-formed */
    if (count > 1) memmove(digits + 1, digits + 2, (size_t)count - 1); /* the point */
    if (signbit(value)) *p++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *p++ = digits[0];
        if (count > 1) *p++ = '.';
        for (int i = 1; i < count; i++) *p++ = digits[i];
        p += snprintf(p, 8, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else {
        int whole = exponent < 0 ? 1 : exponent + 1; /* digits before the point */
        for (int i = 0; i < whole; i++) *p++ = exponent < 0 || i >= count ? '0' : digits[i];
        *p++ = '.';
        for (int i = exponent + 1; i < 0; i++) *p++ = '0';
        for (int i = exponent < 0 ? 0 : whole; i < count; i++) *p++ = digits[i];
        if (p[-1] == '.') *p++ = '0';
    }
    weft__j_write(run, sink, out, (size_t)(p - out));
}

static void write_int(struct weft__jrun *run, struct weft__jsink *sink, int64_t value)
{
    char text[24];
    int len = snprintf(text, sizeof text, "%lld", (long long)value);
    weft__j_write(run, sink, text, (size_t)len);
}

/* ---- str and repr ---- */

static void repr_text(struct weft__jrun *run, struct weft__jsink *sink, struct weft__jvalue s)
{
    bool single = memchr(s.text, '\'', s.len) != NULL && memchr(s.text, '"', s.len) == NULL;
    char quote = single ? '"' : '\'';
    if (s.markup) weft__j_puts(run, sink, "Markup(");
    weft__j_write(run, sink, &quote, 1);
    for (const char *p = s.text, *end = p + s.len; p < end && run->status == WEFT_OK;) {
        const char *start = p;
        char escape[12];
        uint32_t c = weft__j_char(&p, end);
        int len = 0;
        if (c == (uint32_t)quote || c == '\\')
            len = snprintf(escape, sizeof escape, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            len = snprintf(escape, sizeof escape, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (!weft__j_is_printable(c))
            len = snprintf(escape, sizeof escape,
                           c < 0x100     ? "\\x%02x"
                           : c < 0x10000 ? "\\u%04x"
                                         : "\\U%08x",
                           c);
        weft__j_write(run, sink, len > 0 ? escape : start,
                      len > 0 ? (size_t)len : (size_t)(p - start));
    }
    weft__j_write(run, sink, &quote, 1);
    if (s.markup) weft__j_puts(run, sink, ")");
    (void)weft__j_tick(run, (size_t)s.len * 8);
}

/* of a list, tuple or mapping */
static void repr_items(struct weft__jrun *run, struct weft__jsink *sink, struct weft__jvalue v)
{
    bool dict = v.kind == WEFT__J_DICT, tuple = v.kind == WEFT__J_TUPLE;
    uint32_t count = (uint32_t)weft__j_length(v);
    weft__j_puts(run, sink, dict ? "{" : tuple ? "(" : "[");
    for (uint32_t i = 0; i < count && run->status == WEFT_OK; i++) {
        if (i > 0) weft__j_puts(run, sink, ", ");
        if (dict) {
            weft__j_write_repr(run, sink, v.dict->pairs[i].key);
            weft__j_puts(run, sink, ": ");
        }
        weft__j_write_repr(run, sink, dict ? v.dict->pairs[i].value : v.list->items[i]);
    }
    weft__j_puts(run, sink, dict ? "}" : !tuple ? "]" : count == 1 ? ",)" : ")");
}

void weft__j_write_repr(struct weft__jrun *run, struct weft__jsink *sink, struct weft__jvalue v)
{
    if (!weft__j_tick(run, 0) || !weft__j_enter(run)) return;
    switch (v.kind) {
    case WEFT__J_NONE:
        weft__j_puts(run, sink, "None");
        break;
    case WEFT__J_BOOL:
        weft__j_puts(run, sink, v.truth ? "True" : "False");
        break;
    case WEFT__J_INT:
        write_int(run, sink, v.integer);
        break;
    case WEFT__J_FLOAT:
        write_float(run, sink, v.real, false);
        break;
    case WEFT__J_STRING:
        repr_text(run, sink, v);
        break;
    case WEFT__J_UNDEFINED:
        weft__j_puts(run, sink, "Undefined");
        break;
    case WEFT__J_LIST:
    case WEFT__J_TUPLE:
    case WEFT__J_DICT:
        repr_items(run, sink, v);
        break;
    default: /* mostly an address, which no template can want */
        weft__j_fail(run, WEFT_UNSUPPORTED, "printing a %s", weft__j_type(v));
    }
    run->depth--;
}

void weft__j_write_str(struct weft__jrun *run, struct weft__jsink *sink, struct weft__jvalue v)
{
    if (v.kind == WEFT__J_STRING)
        weft__j_write(run, sink, v.text, v.len);
    else if (v.kind != WEFT__J_UNDEFINED)
        weft__j_write_repr(run, sink, v);
}

struct weft__jvalue weft__j_str(struct weft__jrun *run, struct weft__jvalue v)
{
    if (v.kind == WEFT__J_STRING || run->status != WEFT_OK) return v;
    struct weft__jsink sink = {0};
    weft__j_write_str(run, &sink, v);
    return weft__j_written(&sink);
}

/* ---- tojson ---- */

struct json_style {
    bool ascii, sort;
    bool broken;                /* over lines, as `indent` asks for */
    struct weft__jvalue indent; /* one level of it */
    struct weft__jvalue comma, colon;
};

static void json_text(struct weft__jrun *run, struct weft__jsink *sink, struct weft__jvalue s,
                      bool ascii)
{
    static const char plain[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    weft__j_puts(run, sink, "\"");
    for (const char *p = s.text, *end = p + s.len; p < end && run->status == WEFT_OK;) {
        const char *start = p;
        uint32_t c = ' ';
        while (p < end) { /* a stretch that needs no escape */
            const char *next = p;
            c = weft__j_char(&next, end);
            if (c < 0x20 || c == '"' || c == '\\' || (ascii && c > '~')) break;
            p = next;
        }
        weft__j_write(run, sink, start, (size_t)(p - start));
        if (p == end) break;
        (void)weft__j_char(&p, end);
        char escape[16];
        size_t i = 0;
        while (i + 1 < sizeof plain && (uint32_t)plain[i] != c) i += 2;
        if (i + 1 < sizeof plain)
            (void)snprintf(escape, sizeof escape, "\\%c", plain[i + 1]);
        else if (c < 0x10000)
            (void)snprintf(escape, sizeof escape, "\\u%04x", c);
        else
            (void)snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                           0xdc00 + ((c - 0x10000) & 0x3ff));
        weft__j_puts(run, sink, escape);
    }
    weft__j_puts(run, sink, "\"");
    (void)weft__j_tick(run, (size_t)s.len * 4);
}

static void json_line(struct weft__jrun *run, struct weft__jsink *sink,
                      const struct json_style *style, int level)
{
    if (!style->broken) return;
    weft__j_puts(run, sink, "\n");
    weft__j_fill(run, sink, style->indent, level);
}

static void json_value(struct weft__jrun *run, struct weft__jsink *sink,
                       const struct json_style *style, struct weft__jvalue v, int level);

/* of a list, tuple or mapping */
static void json_items(struct weft__jrun *run, struct weft__jsink *sink,
                       const struct json_style *style, struct weft__jvalue v, int level)
{
    bool dict = v.kind == WEFT__J_DICT;
    uint32_t count = (uint32_t)weft__j_length(v);
    struct weft__jpair *pairs = dict ? v.dict->pairs : NULL;
    if (dict && style->sort && count > 1) {
        pairs = weft__j_alloc(run, count * sizeof *pairs);
        if (pairs == NULL) return;
        memcpy(pairs, v.dict->pairs, count * sizeof *pairs);
        if (!weft__j_sort(run, pairs, count, false)) return;
    }
    weft__j_puts(run, sink, dict ? "{" : "[");
    for (uint32_t i = 0; i < count && run->status == WEFT_OK; i++) {
        if (i > 0) weft__j_write(run, sink, style->comma.text, style->comma.len);
        json_line(run, sink, style, level + 1);
        if (dict && pairs[i].key.kind != WEFT__J_STRING)
            weft__j_fail(run, WEFT_UNSUPPORTED, "tojson of a mapping with a key that is a %s",
                         weft__j_type(pairs[i].key));
        if (dict) {
            json_value(run, sink, style, pairs[i].key, level);
            weft__j_write(run, sink, style->colon.text, style->colon.len);
        }
        json_value(run, sink, style, dict ? pairs[i].value : v.list->items[i], level + 1);
    }
    if (count > 0) json_line(run, sink, style, level);
    weft__j_puts(run, sink, dict ? "}" : "]");
}

static void json_value(struct weft__jrun *run, struct weft__jsink *sink,
                       const struct json_style *style, struct weft__jvalue v, int level)
{
    if (!weft__j_tick(run, 0) || !weft__j_enter(run)) return;
    switch (v.kind) {
    case WEFT__J_NONE:
        weft__j_puts(run, sink, "null");
        break;
    case WEFT__J_BOOL:
        weft__j_puts(run, sink, v.truth ? "true" : "false");
        break;
    case WEFT__J_INT:
        write_int(run, sink, v.integer);
        break;
    case WEFT__J_FLOAT:
        write_float(run, sink, v.real, true);
        break;
    case WEFT__J_STRING:
        json_text(run, sink, v, style->ascii);
        break;
    case WEFT__J_LIST:
    case WEFT__J_TUPLE:
    case WEFT__J_DICT:
        json_items(run, sink, style, v, level);
        break;
    default:
        weft__j_fail(run, WEFT_INVALID, "Object of type %s is not JSON serializable",
                     weft__j_type(v));
    }
    run->depth--;
}

/* arguments: ensure_ascii, indent, separators, sort_keys */
struct weft__jvalue weft__j_tojson(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jsink sink = {0}, spaces = {0};
    struct weft__jvalue indent = call->arg[1], separators = call->arg[2];
    int64_t width;
    struct json_style style = {
        .ascii = call->arg[0].kind != WEFT__J_ABSENT && weft__j_truth(run, call->arg[0]),
        .sort = call->arg[3].kind != WEFT__J_ABSENT && weft__j_truth(run, call->arg[3]),
        .broken = indent.kind != WEFT__J_ABSENT && indent.kind != WEFT__J_NONE,
        .colon = weft__j_literal(": ")};
    style.comma = weft__j_literal(style.broken ? "," : ", ");
    if (indent.kind == WEFT__J_STRING) {
        style.indent = indent;
    } else if (style.broken) {
        if (!weft__j_integer(indent, &width))
            return weft__j_fail(run, WEFT_INVALID, "tojson(): indent must be an int or str, not %s",
                                weft__j_type(indent));
        weft__j_fill(run, &spaces, weft__j_literal(" "), width);
        style.indent = weft__j_written(&spaces);
    }
    if (separators.kind != WEFT__J_ABSENT && separators.kind != WEFT__J_NONE) {
        struct weft__jlist parts;
        if (!weft__j_iterate(run, separators, &parts)) return separators;
        if (parts.count != 2 || parts.items[0].kind != WEFT__J_STRING ||
            parts.items[1].kind != WEFT__J_STRING)
            return weft__j_fail(run, WEFT_INVALID, "tojson(): separators must be two strings");
        style.comma = parts.items[0];
        style.colon = parts.items[1];
    }
    json_value(run, &sink, &style, call->self, 0);
    return weft__j_written(&sink);
}
