/* Python's two kinds of format strings: "%d of %s" % (...) and "{} of {name}".format(...). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "jinja.h"

/* Widths and precisions beyond these are refused. */
enum { MAX_WIDTH = 4096, MAX_PRECISION = 200, NUMBER_TEXT = 800 };

struct spec {
    struct jvalue fill; /* one character */
    char align;         /* < > ^ =, or 0: the type's own */
    char sign;          /* + or space, or 0 */
    bool alternate, group;
    int64_t width, precision; /* precision -1: none */
    char type;                /* 0: none */
};

/* prefix: sign and base, which padding by = follows. */
static void write_padded(struct jrun *run, struct jsink *sink, const struct spec *spec,
                         const char *prefix, struct jvalue body, char own_align)
{
    int64_t gap = spec->width - (int64_t)strlen(prefix) - weft__j_chars(body);
    char align = spec->align != 0 ? spec->align : own_align;
    int64_t left = align == '>' ? gap : align == '^' ? gap / 2 : 0;
    weft__j_fill(run, sink, spec->fill, left);
    weft__j_puts(run, sink, prefix);
    if (align == '=') weft__j_fill(run, sink, spec->fill, gap);
    weft__j_write(run, sink, body.text, body.len);
    if (align != '=') weft__j_fill(run, sink, spec->fill, gap - left);
}

static void format_text(struct jrun *run, struct jsink *sink, const struct spec *spec,
                        struct jvalue s)
{
    if (spec->precision >= 0)
        s = weft__j_text(s.text, (size_t)(weft__j_seek(s, spec->precision) - s.text));
    write_padded(run, sink, spec, "", s, '<');
}

/* Commas between groups of three of the leading digits. */
static struct jvalue grouped(struct jrun *run, struct jvalue digits)
{
    struct jsink sink = {0};
    uint32_t whole = 0;
    while (whole < digits.len && digits.text[whole] >= '0' && digits.text[whole] <= '9') whole++;
    for (uint32_t i = 0; i < digits.len; i++) {
        if (i > 0 && i < whole && (whole - i) % 3 == 0) weft__j_puts(run, &sink, ",");
        weft__j_write(run, &sink, digits.text + i, 1);
    }
    return weft__j_written(&sink);
}

static void format_int(struct jrun *run, struct jsink *sink, const struct spec *spec, int64_t value)
{
    char text[80], prefix[8];
    uint64_t rest = value < 0 ? -(uint64_t)value : (uint64_t)value;
    char type = spec->type == 0 || spec->type == 'n' ? 'd' : spec->type;
    unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    char *end = text + sizeof text, *p = end;
    do {
        *--p = (type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[rest % base];
        rest /= base;
    } while (rest > 0);
    while (end - p < spec->precision && p > text) *--p = '0'; /* of % formats only */
    (void)snprintf(prefix, sizeof prefix, "%s%.2s",
                   value < 0           ? "-"
                   : spec->sign == '+' ? "+"
                   : spec->sign == ' ' ? " "
                                       : "",
                   spec->alternate && base != 10 ? (char[]){'0', type, '\0'} : "");
    struct jvalue body = weft__j_text(p, (size_t)(end - p));
    write_padded(run, sink, spec, prefix, spec->group ? grouped(run, body) : body, '>');
}

static void format_float(struct jrun *run, struct jsink *sink, const struct spec *spec,
                         double value)
{
    char text[NUMBER_TEXT], format[8] = "%.*f", prefix[2] = "";
    struct jsink repr = {0};
    struct jvalue body;
    double magnitude = fabs(value);
    if (spec->type == 0 && spec->precision < 0) {
        weft__j_write_float(run, &repr, magnitude, false);
        body = weft__j_written(&repr);
    } else {
        bool percent = spec->type == '%';
        (void)snprintf(format, sizeof format, spec->alternate ? "%%#.*%c" : "%%.*%c",
                       percent ? 'f' : spec->type);
        int len =
            snprintf(text, sizeof text - 1, format, spec->precision < 0 ? 6 : (int)spec->precision,
                     percent ? magnitude * 100 : magnitude);
        if (percent) text[len++] = '%';
        body = weft__j_text(text, (size_t)len);
    }
    prefix[0] = signbit(value) && !isnan(value) ? '-' : spec->sign;
    if (spec->group) body = grouped(run, body);
    write_padded(run, sink, spec, prefix, body, '>');
}

static bool is_one_of(char c, const char *set) { return c != '\0' && strchr(set, c) != NULL; }

static void unsupported(struct jrun *run, char type, struct jvalue v)
{
    weft__j_fail(run, WEFT_UNSUPPORTED, "the format '%c' for a value of type %s", type,
                 weft__j_type(v));
}

/* A value as format(value, spec) has it. */
static void format_value(struct jrun *run, struct jsink *sink, const struct spec *spec,
                         struct jvalue v)
{
    int64_t integer;
    double real;
    bool plain = spec->type == 0;
    if (v.kind == J_STRING && is_one_of(spec->type != 0 ? spec->type : 's', "s"))
        format_text(run, sink, spec, v);
    else if ((v.kind == J_INT || (v.kind == J_BOOL && !plain)) &&
             (plain || is_one_of(spec->type, "dnxXob")) && weft__j_integer(v, &integer))
        format_int(run, sink, spec, integer);
    else if (is_one_of(spec->type, "eEfFgG%") && weft__j_number(v, &real))
        format_float(run, sink, spec, real);
    else if (plain && v.kind == J_FLOAT && spec->precision < 0)
        format_float(run, sink, spec, v.real);
    else if (plain && spec->width == 0 && spec->precision < 0)
        weft__j_write_str(run, sink, v);
    else
        unsupported(run, plain ? ' ' : spec->type, v);
}

/* ---- "%..." % values ---- */

struct percent {
    struct jvalue format;
    uint32_t pos;
    struct jvalue args;
    uint32_t taken;
};

static char peek(const struct percent *state)
{
    return state->pos < state->format.len ? state->format.text[state->pos] : '\0';
}

static int64_t take_number(struct jvalue text, uint32_t *pos)
{
    int64_t out = 0;
    while (*pos < text.len && text.text[*pos] >= '0' && text.text[*pos] <= '9' && out < 1000000)
        out = out * 10 + (text.text[(*pos)++] - '0');
    return out;
}

static struct jvalue next_argument(struct jrun *run, struct percent *state)
{
    if (state->args.kind == J_TUPLE) {
        if (state->taken < state->args.list->count) return state->args.list->items[state->taken++];
    } else if (state->taken++ == 0) {
        return state->args;
    }
    return weft__j_fail(run, WEFT_INVALID, "not enough arguments for format string");
}

static struct jvalue named_argument(struct jrun *run, struct percent *state)
{
    const char *start = state->format.text + state->pos + 1;
    const char *end = memchr(start, ')', state->format.len - state->pos - 1);
    if (end == NULL) return weft__j_fail(run, WEFT_INVALID, "incomplete format key");
    if (state->args.kind != J_DICT)
        return weft__j_fail(run, WEFT_INVALID, "format requires a mapping");
    struct jvalue *found =
        weft__j_find(run, state->args.dict, weft__j_text(start, (size_t)(end - start)));
    state->pos += (uint32_t)(end - start) + 2;
    if (found != NULL) return *found;
    return weft__j_fail(run, WEFT_INVALID, "no key '%.*s' to format",
                        (int)weft__min(end - start, 80), start);
}

static void percent_spec(struct percent *state, struct spec *spec)
{
    bool left = false, zero = false;
    for (; is_one_of(peek(state), "-+ 0#"); state->pos++) {
        char c = peek(state);
        left = left || c == '-';
        zero = zero || c == '0';
        spec->alternate = spec->alternate || c == '#';
        if (c == '+' || (c == ' ' && spec->sign == 0)) spec->sign = c;
    }
    spec->width = take_number(state->format, &state->pos);
    if (peek(state) == '.') {
        state->pos++;
        spec->precision = take_number(state->format, &state->pos);
    }
    spec->align = left ? '<' : zero ? '=' : '>';
    if (zero && !left) spec->fill = weft__j_literal("0");
}

static void percent_value(struct jrun *run, struct jsink *sink, struct spec *spec, struct jvalue v)
{
    struct jsink text = {0};
    double real;
    if (spec->type == 's' || spec->type == 'r') {
        if (spec->align == '=') spec->align = '>';
        spec->fill = weft__j_literal(" ");
        if (spec->type == 's')
            weft__j_write_str(run, &text, v);
        else
            weft__j_write_repr(run, &text, v);
        format_text(run, sink, spec, weft__j_written(&text));
        return;
    }
    if (spec->type == 'i' || spec->type == 'u') spec->type = 'd';
    if (!weft__j_number(v, &real)) {
        weft__j_fail(run, WEFT_INVALID, "%%%c format: a real number is required, not %s",
                     spec->type, weft__j_type(v));
    } else if (is_one_of(spec->type, "eEfFgG")) {
        format_float(run, sink, spec, real);
    } else if (spec->type == 'd' && v.kind == J_FLOAT) {
        if (!(fabs(real) < 0x1p63))
            unsupported(run, 'd', v);
        else
            format_int(run, sink, spec, (int64_t)real);
    } else if (v.kind != J_FLOAT && is_one_of(spec->type, "dxXo")) {
        format_int(run, sink, spec, v.kind == J_INT ? v.integer : v.truth);
    } else {
        unsupported(run, spec->type, v);
    }
}

struct jvalue weft__j_percent(struct jrun *run, struct jvalue format, struct jvalue args)
{
    struct percent state = {.format = format, .args = args};
    struct jsink sink = {0};
    bool by_name = false;
    while (state.pos < format.len && weft__j_tick(run, 0)) {
        const char *start = format.text + state.pos;
        const char *mark = memchr(start, '%', format.len - state.pos);
        size_t plain = mark != NULL ? (size_t)(mark - start) : format.len - state.pos;
        weft__j_write(run, &sink, start, plain);
        state.pos += (uint32_t)plain;
        if (mark == NULL) break;
        state.pos++;
        struct spec spec = {.precision = -1, .fill = weft__j_literal(" ")};
        struct jvalue v = {0};
        if (peek(&state) == '(') {
            by_name = true;
            v = named_argument(run, &state);
        }
        percent_spec(&state, &spec);
        spec.type = peek(&state);
        state.pos++;
        if (spec.type == '%') {
            weft__j_puts(run, &sink, "%");
            continue;
        }
        if (spec.type == '\0') return weft__j_fail(run, WEFT_INVALID, "incomplete format");
        if (!is_one_of(spec.type, "sriduxXoeEfFgG") || spec.width > MAX_WIDTH ||
            spec.precision > MAX_PRECISION)
            return weft__j_fail(run, WEFT_UNSUPPORTED, "the format '%%%c'", spec.type);
        if (v.kind == J_ABSENT) v = next_argument(run, &state);
        if (run->status == WEFT_OK) percent_value(run, &sink, &spec, v);
    }
    bool mapping = args.kind == J_DICT || args.kind == J_LIST || args.kind == J_RANGE ||
                   args.kind == J_UNDEFINED; /* what has [] passes for one */
    bool left =
        args.kind == J_TUPLE ? state.taken < args.list->count : state.taken == 0 && !mapping;
    if (left && !by_name)
        return weft__j_fail(run, WEFT_INVALID,
                            "not all arguments converted during string formatting");
    return weft__j_written(&sink);
}

/* ---- "{...}".format(values) ---- */

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static bool brace_spec(struct jvalue text, struct spec *spec)
{
    *spec = (struct spec){.precision = -1, .fill = weft__j_literal(" ")};
    const char *end = text.text + text.len, *after = text.text;
    uint32_t pos = 0;
    (void)weft__j_char(&after, end);
    uint32_t first = (uint32_t)(after - text.text);
    if (first < text.len && is_one_of(text.text[first], "<>^=")) {
        spec->fill = weft__j_text(text.text, first);
        spec->align = text.text[first];
        pos = first + 1;
    } else if (text.len > 0 && is_one_of(text.text[0], "<>^=")) {
        spec->align = text.text[pos++];
    }
    if (pos < text.len && is_one_of(text.text[pos], "+- ")) {
        spec->sign = text.text[pos] == '-' ? '\0' : text.text[pos];
        pos++;
    }
    if (pos < text.len && text.text[pos] == '#') {
        spec->alternate = true;
        pos++;
    }
    if (pos < text.len && text.text[pos] == '0' && spec->align == 0) {
        spec->align = '=';
        spec->fill = weft__j_literal("0");
    }
    spec->width = take_number(text, &pos);
    if (pos < text.len && text.text[pos] == ',') {
        spec->group = true;
        pos++;
    }
    if (pos < text.len && text.text[pos] == '.') {
        pos++;
        spec->precision = take_number(text, &pos);
    }
    if (pos < text.len) spec->type = text.text[pos++];
    return pos == text.len && spec->width <= MAX_WIDTH && spec->precision <= MAX_PRECISION &&
           (spec->type == 0 || is_one_of(spec->type, "sdnxXobeEfFgG%"));
}

/* The value a field names: "", "0", "name", then .attribute and [key] of it. */
static struct jvalue field_value(struct jrun *run, struct jcall *call, struct jvalue field,
                                 uint32_t *automatic)
{
    uint32_t pos = 0, end = 0;
    while (end < field.len && field.text[end] != '.' && field.text[end] != '[') end++;
    struct jvalue name = weft__j_text(field.text, end), v;
    int64_t index = take_number(name, &pos);
    if (end == 0) index = (*automatic)++;
    if (pos == end) {
        if (index >= call->positional.count)
            return weft__j_fail(run, WEFT_INVALID, "no argument %lld to format", (long long)index);
        v = call->positional.items[index];
    } else {
        struct jvalue *found = weft__j_find(run, &call->named, name);
        if (found == NULL)
            return weft__j_fail(run, WEFT_INVALID, "no argument '%.*s' to format",
                                (int)weft__min(end, 80), field.text);
        v = *found;
    }
    while (end < field.len && run->status == WEFT_OK) {
        bool attribute = field.text[end] == '.';
        uint32_t start = ++end;
        while (end < field.len && (attribute ? field.text[end] != '.' && field.text[end] != '['
                                             : field.text[end] != ']'))
            end++;
        struct jvalue key = weft__j_text(field.text + start, end - start);
        pos = 0;
        index = take_number(key, &pos);
        if (attribute)
            v = weft__j_getattr(run, v, key);
        else
            v = weft__j_getitem(run, v, pos == key.len && pos > 0 ? weft__j_int(index) : key);
        if (!attribute) end++;
    }
    return v;
}

static void format_field(struct jrun *run, struct jsink *sink, struct jcall *call,
                         struct jvalue field, uint32_t *automatic)
{
    uint32_t name = 0;
    while (name < field.len && field.text[name] != '!' && field.text[name] != ':') name++;
    struct jvalue v = field_value(run, call, weft__j_text(field.text, name), automatic);
    if (run->status != WEFT_OK) return;
    uint32_t pos = name;
    if (pos + 1 < field.len && field.text[pos] == '!') {
        struct jsink text = {0};
        if (field.text[pos + 1] == 'r')
            weft__j_write_repr(run, &text, v);
        else if (field.text[pos + 1] == 's')
            weft__j_write_str(run, &text, v);
        else
            weft__j_fail(run, WEFT_UNSUPPORTED, "the conversion '!%c'", field.text[pos + 1]);
        v = weft__j_written(&text);
        pos += 2;
    }
    struct spec spec;
    struct jvalue rest = weft__j_text("", 0);
    if (pos < field.len && field.text[pos] == ':')
        rest = weft__j_text(field.text + pos + 1, field.len - pos - 1);
    if (!brace_spec(rest, &spec))
        weft__j_fail(run, WEFT_UNSUPPORTED, "the format '%.*s'", (int)weft__min(rest.len, 80),
                     rest.text);
    else
        format_value(run, sink, &spec, v);
}

struct jvalue weft__j_format(struct jrun *run, struct jcall *call)
{
    struct jvalue format = call->self;
    struct jsink sink = {0};
    uint32_t automatic = 0;
    for (uint32_t pos = 0; pos < format.len && weft__j_tick(run, 0);) {
        char c = format.text[pos];
        uint32_t start = pos;
        while (pos < format.len && format.text[pos] != '{' && format.text[pos] != '}') pos++;
        weft__j_write(run, &sink, format.text + start, pos - start);
        if (pos == format.len) break;
        c = format.text[pos++];
        if (pos < format.len && format.text[pos] == c) {
            weft__j_write(run, &sink, &c, 1);
            pos++;
            continue;
        }
        const char *body = format.text + pos;
        const char *end = c == '{' ? memchr(body, '}', format.len - pos) : NULL;
        if (end == NULL)
            return weft__j_fail(run, WEFT_INVALID, "single '%c' encountered in format string", c);
        format_field(run, &sink, call, weft__j_text(body, (size_t)(end - body)), &automatic);
        pos += (uint32_t)(end - body) + 1;
    }
    return weft__j_written(&sink);
}
