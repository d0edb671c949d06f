/* Template text -> tokens, with Jinja2's whitespace rules (jinja2/lexer.py): trim_blocks,
 * lstrip_blocks, `-` and `+` marks. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jinja.h"

enum { MODE_DATA, MODE_BLOCK, MODE_PRINT };

weft_status weft__j_report(weft_error *err, weft_status status, struct weft__jplace place,
                           const char *format, va_list args)
{
    char message[300];
    int line = 1, column = 1;
    for (const char *p = place.text, *end = p + place.offset; p < end; column++)
        if (weft__j_char(&p, end) == '\n') {
            line++;
            column = 0;
        }
    (void)vsnprintf(message, sizeof message, format, args);
    weft__j_clean(message);
    return weft__fail(err, status, "%s: line %d, column %d: %s%s", place.name, line, column,
                      message, status == WEFT_UNSUPPORTED ? ": not supported" : "");
}

void weft__j_syntax(struct weft__jparser *parser, weft_status status, size_t offset,
                    const char *format, ...)
{
    const struct weft__jplace place = {parser->tmpl->name, parser->tmpl->text, offset};
    va_list args;
    va_start(args, format);
    if (parser->status == WEFT_OK)
        parser->status = weft__j_report(parser->err, status, place, format, args);
    va_end(args);
}

void *weft__j_parse_alloc(struct weft__jparser *parser, size_t bytes)
{
    struct weft__arena *arena = &parser->tmpl->arena;
    void *out = NULL;
    if (bytes > WEFT__TEMPLATE_MAX_MEMORY || arena->bytes > WEFT__TEMPLATE_MAX_MEMORY - bytes)
        weft__j_syntax(parser, WEFT_TOO_LONG, parser->token.offset,
                       "parsing the template needs more than %d bytes", WEFT__TEMPLATE_MAX_MEMORY);
    else if ((out = weft__arena_alloc(arena, bytes)) == NULL && parser->status == WEFT_OK)
        parser->status = weft__fail_oom(parser->err, bytes, "a chat template");
    return out;
}

/* ---- plain text up to the next tag ---- */

static bool at(const struct weft__jparser *parser, size_t pos, const char *text)
{
    size_t len = strlen(text);
    return parser->tmpl->len - pos >= len && memcmp(parser->tmpl->text + pos, text, len) == 0;
}

static size_t skip_space(const struct weft__jparser *parser, size_t pos)
{
    return weft__j_skip_space(parser->tmpl->text, parser->tmpl->len, pos);
}

/* After the mark `pos` is at: the end of a tag as `-%}`, `+%}` or `%}`, with what follows it that
 * belongs to it. 0: not there. */
static size_t tag_end(const struct weft__jparser *parser, size_t pos, const char *close, bool trim)
{
    size_t width = strlen(close);
    if (at(parser, pos, "-") && at(parser, pos + 1, close))
        return skip_space(parser, pos + 1 + width);
    if (trim && at(parser, pos, "+") && at(parser, pos + 1, close)) return pos + 1 + width;
    if (!at(parser, pos, close)) return 0;
    return pos + width + (trim && at(parser, pos + width, "\n") ? 1 : 0);
}

/* The text before a tag, less what the tag strips. mark: '-', '+' or 0. */
static size_t stripped(const struct weft__jparser *parser, size_t start, size_t len, char mark,
                       bool block)
{
    const char *text = parser->tmpl->text + start;
    if (mark == '-') return weft__j_trim_end(text, len);
    if (mark == '+' || !block) return len;
    size_t line = len;
    while (line > 0 && text[line - 1] != '\n') line--;
    bool whole_line = line > 0 || parser->line_start;
    return whole_line && weft__j_skip_space(text, len, line) == len ? line : len;
}

static char mark_at(const struct weft__jparser *parser, size_t pos)
{
    return at(parser, pos, "-") ? '-' : at(parser, pos, "+") ? '+' : '\0';
}

static void data_token(struct weft__jparser *parser, struct weft__jtoken *out, size_t start,
                       size_t len)
{
    out->type = WEFT__T_DATA;
    out->offset = (uint32_t)start;
    out->value = weft__j_text(parser->tmpl->text + start, len);
}

static void skip_comment(struct weft__jparser *parser, size_t start)
{
    const char *text = parser->tmpl->text;
    for (size_t pos = start; pos + 1 < parser->tmpl->len; pos++) {
        if (text[pos] != '#' || text[pos + 1] != '}') continue;
        size_t mark = pos > start && (text[pos - 1] == '-' || text[pos - 1] == '+') ? 1 : 0;
        parser->pos = tag_end(parser, pos - mark, "#}", true);
        parser->line_start = text[parser->pos - 1] == '\n';
        return;
    }
    weft__j_syntax(parser, WEFT_FORMAT, parser->pos, "missing end of comment tag #}");
}

/* Text up to the next tag, or the beginning of that tag when there is no text. */
static void lex_data(struct weft__jparser *parser, struct weft__jtoken *out)
{
    const char *text = parser->tmpl->text;
    size_t start = parser->pos, pos = start, len = parser->tmpl->len;
    while (pos < len &&
           !(text[pos] == '{' && pos + 1 < len && strchr("{%#", text[pos + 1]) != NULL))
        pos++;
    if (pos >= len) {
        data_token(parser, out, start, len - start);
        if (len == start) out->type = WEFT__T_END;
        parser->pos = len;
        return;
    }
    char kind = text[pos + 1], mark = mark_at(parser, pos + 2);
    size_t keep = stripped(parser, start, pos - start, mark, kind != '{');
    size_t inside = pos + 2 + (mark != '\0');
    if (keep > 0) { /* the tag itself comes next time, with nothing before it to strip */
        data_token(parser, out, start, keep);
        parser->pos = pos;
        parser->line_start = false;
        return;
    }
    parser->pos = pos;
    if (kind == '#') {
        skip_comment(parser, inside);
        data_token(parser, out, pos, 0);
    } else {
        out->type = kind == '%' ? WEFT__T_BLOCK_BEGIN : WEFT__T_PRINT_BEGIN;
        out->offset = (uint32_t)pos;
        parser->mode = kind == '%' ? MODE_BLOCK : MODE_PRINT;
        parser->pos = inside;
    }
}

/* ---- inside a tag ---- */

static size_t skip_digits(const struct weft__jparser *parser, size_t pos)
{
    const char *text = parser->tmpl->text;
    while (pos < parser->tmpl->len && text[pos] >= '0' && text[pos] <= '9') pos++;
    return pos;
}

/* Decimal numbers: Python's other notations are refused. */
static void lex_number(struct weft__jparser *parser, struct weft__jtoken *out)
{
    const char *text = parser->tmpl->text, *end = text + parser->tmpl->len;
    size_t start = parser->pos, pos = skip_digits(parser, start), fraction;
    out->type = WEFT__T_INT;
    /* `x.0.1` is two subscripts, not the subscript 0.1. */
    if (at(parser, pos, ".") && !(start > 0 && text[start - 1] == '.') &&
        (fraction = skip_digits(parser, pos + 1)) > pos + 1) {
        out->type = WEFT__T_FLOAT;
        pos = fraction;
    }
    const char *next = text + pos;
    char digits[40];
    bool odd = pos - start >= sizeof digits || weft__j_is_word(weft__j_char(&next, end)) ||
               (out->type == WEFT__T_INT && text[start] == '0' && pos > start + 1);
    errno = 0;
    if (!odd) {
        memcpy(digits, text + start, pos - start);
        digits[pos - start] = '\0';
        out->value = out->type == WEFT__T_FLOAT ? weft__j_float(strtod(digits, NULL))
                                                : weft__j_int(strtoimax(digits, NULL, 10));
    }
    parser->pos = pos;
    if (odd || (out->type == WEFT__T_INT && errno == ERANGE))
        weft__j_syntax(parser, WEFT_UNSUPPORTED, start,
                       "a number beyond 64 bits or in another notation than the decimal one");
}

/* Python's "unicode-escape" for what follows a backslash at p. Gives the position behind it, or
 * NULL when the escape is malformed or names a surrogate. */
static const char *unescape(const char *p, const char *end, char **out)
{
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    char c = *p;
    int width = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    for (size_t i = 0; i + 1 < sizeof plain; i += 2)
        if (plain[i] == c) {
            *(*out)++ = plain[i + 1];
            return p + 1;
        }
    if (c == '\n') return p + 1;
    if (width == 0) { /* no escape: both characters stay */
        *(*out)++ = '\\';
        return c == 'N' || (c >= '0' && c <= '7') ? NULL : p;
    }
    if (end - ++p < width) return NULL;
    uint32_t value = 0;
    for (const char *stop = p + width; p < stop; p++) {
        if (weft__hex_digit(*p) < 0 || value > 0x10ffff) return NULL;
        value = value * 16 + (uint32_t)weft__hex_digit(*p);
    }
    if (value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return NULL;
    *out += weft__utf8_put(*out, value);
    return p;
}

static void lex_string(struct weft__jparser *parser, struct weft__jtoken *out)
{
    const char *text = parser->tmpl->text, *end = text + parser->tmpl->len;
    const char *start = text + parser->pos + 1, *p = start;
    char quote = start[-1];
    bool escaped = false;
    for (; p < end && *p != quote; p++)
        if (*p == '\\') {
            escaped = true;
            if (++p == end) break;
        }
    if (p >= end) {
        weft__j_syntax(parser, WEFT_FORMAT, parser->pos, "a string that does not end");
        return;
    }
    out->type = WEFT__T_STRING;
    out->value = weft__j_text(start, (size_t)(p - start));
    parser->pos = (size_t)(p + 1 - text);
    if (!escaped) return;
    char *copy = weft__j_parse_alloc(parser, (size_t)(p - start)), *to = copy; /* never longer */
    if (copy == NULL) return;
    for (const char *from = start; from < p;) {
        if (*from != '\\') {
            *to++ = *from++;
            continue;
        }
        const char *next = unescape(from + 1, p, &to);
        if (next == NULL) {
            weft__j_syntax(parser, WEFT_UNSUPPORTED, (size_t)(from - text),
                           "the string escape \\%c, or this form of it", from[1]);
            return;
        }
        from = next;
    }
    out->value = weft__j_text(copy, (size_t)(to - copy));
}

const char *weft__j_spelling(enum weft__jop op)
{
    static const char *const spellings[] = {
#define X(name, text) text,
        WEFT__J_OPS(X)
#undef X
    };
    return spellings[op];
}

static void lex_operator(struct weft__jparser *parser, struct weft__jtoken *out)
{
    const char *p = parser->tmpl->text + parser->pos, *after = p;
    for (enum weft__jop op = 0; op < WEFT__J_OP_IN; op++) {
        if (!at(parser, parser->pos, weft__j_spelling(op))) continue;
        if (strchr("([{", *p) != NULL) parser->open++;
        if (strchr(")]}", *p) != NULL && parser->open > 0) parser->open--;
        out->type = WEFT__T_OP;
        out->op = (uint8_t)op;
        out->value = weft__j_literal(weft__j_spelling(op));
        parser->pos += out->value.len;
        return;
    }
    (void)weft__j_char(&after, parser->tmpl->text + parser->tmpl->len);
    weft__j_syntax(parser, WEFT_FORMAT, parser->pos, "unexpected character '%.*s'",
                   (int)(after - p), p);
}

static void lex_code(struct weft__jparser *parser, struct weft__jtoken *out)
{
    const char *text = parser->tmpl->text, *end = text + parser->tmpl->len;
    bool block = parser->mode == MODE_BLOCK;
    parser->pos = skip_space(parser, parser->pos);
    out->offset = (uint32_t)parser->pos;
    size_t close = parser->open > 0 ? 0 : tag_end(parser, parser->pos, block ? "%}" : "}}", block);
    if (close != 0) {
        out->type = block ? WEFT__T_BLOCK_END : WEFT__T_PRINT_END;
        parser->pos = close;
        parser->mode = MODE_DATA;
        parser->line_start = text[close - 1] == '\n';
        return;
    }
    if (parser->pos >= parser->tmpl->len) return; /* T_END: the parser says what it wanted */
    const char *p = text + parser->pos, *word = p;
    char c = *p;
    if (c >= '0' && c <= '9') {
        lex_number(parser, out);
        return;
    }
    for (const char *next = p; next < end && weft__j_is_word(weft__j_char(&next, end));) p = next;
    if (p > word) {
        out->type = WEFT__T_NAME;
        out->value = weft__j_text(word, (size_t)(p - word));
        parser->pos = (size_t)(p - text);
    } else if (c == '\'' || c == '"') {
        lex_string(parser, out);
    } else {
        lex_operator(parser, out);
    }
}

void weft__j_lex(struct weft__jparser *parser, struct weft__jtoken *out)
{
    do {
        *out = (struct weft__jtoken){.type = WEFT__T_END, .offset = (uint32_t)parser->pos};
        if (parser->status != WEFT_OK) return;
        if (parser->mode == MODE_DATA)
            lex_data(parser, out);
        else
            lex_code(parser, out);
    } while (out->type == WEFT__T_DATA && out->value.len == 0);
    if (parser->status != WEFT_OK) out->type = WEFT__T_END;
}
