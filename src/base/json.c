/* JSON (RFC 8259) pulled value by value out of a buffer: no tree, no recursion, strict UTF-8. */
#include <string.h>

#include "base.h"

bool weft__json_is(struct weft__json_text text, const char *word)
{
    return text.len == strlen(word) && memcmp(text.data, word, text.len) == 0;
}

void weft__json_init(struct weft__json *json, const char *text, size_t len)
{
    *json = (struct weft__json){.begin = text, .at = text, .end = text + len};
}

void weft__json_fail(struct weft__json *json, const char *what)
{
    if (json->error == NULL) json->error = what;
}

static bool fail(struct weft__json *json, const char *what)
{
    weft__json_fail(json, what);
    return false;
}

weft_status weft__json_check(const struct weft__json *json, const char *name, weft_error *err)
{
    if (json->error == NULL) return WEFT_OK;
    if (json->no_memory) return weft__fail(err, WEFT_NO_MEMORY, "%s: out of memory", name);
    return weft__fail(err, WEFT_FORMAT, "%s: byte %zu: %s", name, (size_t)(json->at - json->begin),
                      json->error);
}

static void skip_space(struct weft__json *json)
{
    const char *at = json->at;
    while (at < json->end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) at++;
    json->at = at;
}

/* The next character that is not white space, or NUL at the end. */
static char ahead(struct weft__json *json)
{
    if (json->error != NULL) return '\0';
    skip_space(json);
    return json->at < json->end ? *json->at : '\0';
}

enum weft__json_kind weft__json_kind(struct weft__json *json)
{
    char c = ahead(json);
    switch (c) {
    case '{':
        return WEFT__JSON_OBJECT;
    case '[':
        return WEFT__JSON_ARRAY;
    case '"':
        return WEFT__JSON_STRING;
    case 't':
    case 'f':
        return WEFT__JSON_BOOL;
    case 'n':
        return WEFT__JSON_NULL;
    default:
        return c == '-' || (c >= '0' && c <= '9') ? WEFT__JSON_NUMBER : WEFT__JSON_NONE;
    }
}

/* ---- containers ---- */

bool weft__json_enter(struct weft__json *json, enum weft__json_kind kind)
{
    bool object = kind == WEFT__JSON_OBJECT;
    if (ahead(json) != (object ? '{' : '['))
        return fail(json, object ? "expected an object" : "expected an array");
    if (json->depth == WEFT__JSON_MAX_DEPTH) return fail(json, "nested deeper than 64 levels");
    json->fresh |= UINT64_C(1) << json->depth++;
    json->at++;
    return true;
}

/* Behind the separator before the next member, or behind the closing bracket. */
static bool advance(struct weft__json *json, char closing)
{
    char c = ahead(json);
    if (json->error != NULL) return false;
    uint64_t bit = UINT64_C(1) << (json->depth - 1);
    bool first = (json->fresh & bit) != 0;
    json->fresh &= ~bit;
    if (c == closing) {
        json->at++;
        json->depth--;
        return false;
    }
    if (first) return true;
    if (c != ',') return fail(json, closing == '}' ? "expected , or }" : "expected , or ]");
    json->at++;
    return true;
}

bool weft__json_item(struct weft__json *json) { return advance(json, ']'); }

/* A key and its colon. */
static bool read_key(struct weft__json *json, struct weft__buf *scratch,
                     struct weft__json_text *key)
{
    if (!weft__json_string(json, scratch, key)) return false;
    if (ahead(json) != ':') return fail(json, "expected : after a key");
    json->at++;
    return true;
}

bool weft__json_member(struct weft__json *json, struct weft__buf *scratch,
                       struct weft__json_text *key)
{
    return advance(json, '}') && read_key(json, scratch, key);
}

/* ---- strings ---- */

/* From json->at over plain characters up to a quote, an escape, or an error. */
static bool scan_plain(struct weft__json *json)
{
    const char *at = json->at;
    while (at < json->end) {
        unsigned char c = (unsigned char)*at;
        if (c == '"' || c == '\\') {
            json->at = at;
            return true;
        }
        if (c >= 0x80) {
            uint32_t code;
            int n = weft__utf8_next(at, (size_t)(json->end - at), &code);
            if (n <= 0) break;
            at += n;
        } else if (c >= 0x20) {
            at++;
        } else {
            break;
        }
    }
    json->at = at;
    return fail(json, at == json->end              ? "string without end"
                      : (unsigned char)*at >= 0x80 ? "ill-formed UTF-8 in a string"
                                                   : "control character in a string");
}

static bool read_hex4(struct weft__json *json, uint32_t *out)
{
    if (json->end - json->at < 4) return fail(json, "string without end");
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = weft__hex_digit(json->at[i]);
        if (digit < 0) return fail(json, "\\u needs four hexadecimal digits");
        value = value << 4 | (uint32_t)digit;
    }
    json->at += 4;
    *out = value;
    return true;
}

static bool read_unicode(struct weft__json *json, uint32_t *code)
{
    if (!read_hex4(json, code)) return false;
    if (*code < 0xd800 || *code > 0xdfff) return true;
    uint32_t low;
    if (*code > 0xdbff || json->end - json->at < 2 || memcmp(json->at, "\\u", 2) != 0)
        return fail(json, "a surrogate without its partner");
    json->at += 2;
    if (!read_hex4(json, &low)) return false;
    if (low < 0xdc00 || low > 0xdfff) return fail(json, "a surrogate without its partner");
    *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

/* One escape, behind its backslash. scratch may be NULL: then it is only checked. */
static bool read_escape(struct weft__json *json, struct weft__buf *scratch)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (json->at == json->end) return fail(json, "string without end");
    char out[4];
    int len = 1;
    char c = *json->at++;
    const char *name = c != '\0' ? strchr(names, c) : NULL;
    if (c == 'u') {
        uint32_t code;
        if (!read_unicode(json, &code)) return false;
        len = weft__utf8_put(out, code);
    } else if (name != NULL) {
        out[0] = values[name - names];
    } else {
        json->at--;
        return fail(json, "unknown escape in a string");
    }
    if (scratch != NULL) weft__buf_append(scratch, out, (size_t)len);
    return true;
}

bool weft__json_string(struct weft__json *json, struct weft__buf *scratch,
                       struct weft__json_text *text)
{
    if (ahead(json) != '"') return fail(json, "expected a string");
    const char *start = ++json->at;
    if (!scan_plain(json)) return false;
    if (*json->at == '"') { /* nearly every string: no copy */
        *text = (struct weft__json_text){start, (size_t)(json->at++ - start)};
        return true;
    }
    scratch->len = 0;
    for (;;) {
        weft__buf_append(scratch, start, (size_t)(json->at - start));
        if (*json->at++ == '"') break;
        if (!read_escape(json, scratch)) return false;
        start = json->at;
        if (!scan_plain(json)) return false;
    }
    if (scratch->failed) {
        json->no_memory = true;
        return fail(json, "out of memory");
    }
    *text = (struct weft__json_text){scratch->data, scratch->len};
    return true;
}

static bool skip_string(struct weft__json *json)
{
    json->at++;
    for (;;) {
        if (!scan_plain(json)) return false;
        if (*json->at++ == '"') return true;
        if (!read_escape(json, NULL)) return false;
    }
}

/* ---- numbers and words ---- */

static bool digit_at(const struct weft__json *json)
{
    return json->at < json->end && *json->at >= '0' && *json->at <= '9';
}

static bool skip_digits(struct weft__json *json)
{
    if (!digit_at(json)) return fail(json, "malformed number");
    while (digit_at(json)) json->at++;
    return true;
}

static bool skip_number(struct weft__json *json)
{
    if (*json->at == '-') json->at++;
    if (json->at < json->end && *json->at == '0')
        json->at++;
    else if (!skip_digits(json))
        return false;
    if (digit_at(json)) return fail(json, "malformed number");
    if (json->at < json->end && *json->at == '.') {
        json->at++;
        if (!skip_digits(json)) return false;
    }
    if (json->at < json->end && (*json->at == 'e' || *json->at == 'E')) {
        json->at++;
        if (json->at < json->end && (*json->at == '+' || *json->at == '-')) json->at++;
        if (!skip_digits(json)) return false;
    }
    return true;
}

bool weft__json_int(struct weft__json *json, int64_t *value)
{
    if (weft__json_kind(json) != WEFT__JSON_NUMBER) return fail(json, "expected an integer");
    const char *start = json->at;
    if (!skip_number(json)) return false;
    bool negative = *start == '-';
    int64_t sum = 0;
    for (const char *p = start + negative; p < json->at; p++) {
        if (*p < '0' || *p > '9' || __builtin_mul_overflow(sum, 10, &sum) ||
            __builtin_add_overflow(sum, *p - '0', &sum))
            return fail(json, "expected an integer of 64 bits");
    }
    *value = negative ? -sum : sum;
    return true;
}

static bool word(struct weft__json *json, const char *text)
{
    size_t len = strlen(text);
    if ((size_t)(json->end - json->at) < len || memcmp(json->at, text, len) != 0)
        return fail(json, "expected a value");
    json->at += len;
    return true;
}

bool weft__json_bool(struct weft__json *json, bool *value)
{
    char c = ahead(json);
    if (c != 't' && c != 'f') return fail(json, "expected true or false");
    if (!word(json, c == 't' ? "true" : "false")) return false;
    *value = c == 't';
    return true;
}

/* ---- any value ---- */

/* A value that is no container. */
static bool skip_scalar(struct weft__json *json, enum weft__json_kind kind)
{
    switch (kind) {
    case WEFT__JSON_STRING:
        return skip_string(json);
    case WEFT__JSON_NUMBER:
        return skip_number(json);
    case WEFT__JSON_BOOL:
        return word(json, *json->at == 't' ? "true" : "false");
    case WEFT__JSON_NULL:
        return word(json, "null");
    default:
        return fail(json, "expected a value");
    }
}

/* A key and its colon, checked. */
static bool skip_key(struct weft__json *json)
{
    if (ahead(json) != '"') return fail(json, "expected a string");
    if (!skip_string(json)) return false;
    if (ahead(json) != ':') return fail(json, "expected : after a key");
    json->at++;
    return true;
}

void weft__json_skip(struct weft__json *json)
{
    const unsigned floor = json->depth;
    uint64_t objects = 0; /* bit d: the container at depth d is an object */
    do {
        enum weft__json_kind kind = weft__json_kind(json);
        if (kind == WEFT__JSON_OBJECT || kind == WEFT__JSON_ARRAY) {
            if (!weft__json_enter(json, kind)) return;
            uint64_t bit = UINT64_C(1) << (json->depth - 1);
            objects = kind == WEFT__JSON_OBJECT ? objects | bit : objects & ~bit;
        } else if (!skip_scalar(json, kind)) {
            return;
        }
        /* To the next value of the innermost container that has one. */
        while (json->depth > floor) {
            bool object = (objects >> (json->depth - 1) & 1) != 0;
            if (advance(json, object ? '}' : ']')) {
                if (object && !skip_key(json)) return;
                break;
            }
            if (json->error != NULL) return;
        }
    } while (json->depth > floor);
}

bool weft__json_end(struct weft__json *json)
{
    (void)ahead(json);
    if (json->error == NULL && json->at != json->end)
        return fail(json, "more text after the value");
    return json->error == NULL;
}
