/* The JSON scanner and sets of names. A parser that builds a tree needs up to forty bytes for each
 * byte of a hostile header; this one needs none, and numbers lines for its messages. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "internal.h"

/* ---- names ---- */

static uint32_t names_probe(const struct weft__names *names, const char *name)
{
    uint32_t mask = names->slots - 1;
    uint32_t at = (uint32_t)weft__hash(name, strlen(name), names->seed) & mask;
    while (names->slot[at] != 0 && strcmp(names->name[names->slot[at] - 1], name) != 0)
        at = (at + 1) & mask;
    return at;
}

int64_t weft__names_find(const struct weft__names *names, const char *name)
{
    if (names->slots == 0) return -1;
    return (int64_t)names->slot[names_probe(names, name)] - 1;
}

static weft_status names_grow(struct weft__names *names, weft_error *err)
{
    if (names->slots == 0 &&
        getrandom(&names->seed, sizeof names->seed, 0) != (ssize_t)sizeof names->seed)
        return weft__fail(err, WEFT_IO, "the kernel's random numbers cannot be read");
    uint32_t cap = names->cap == 0 ? 8 : names->cap * 2, slots = cap * 2;
    size_t bytes = cap * sizeof(char *);
    const char **name = realloc(names->name, bytes);
    if (name == NULL) return weft__fail_oom(err, bytes, "names");
    names->name = name;
    uint32_t *slot = calloc(slots, sizeof *slot);
    if (slot == NULL) return weft__fail_oom(err, slots * sizeof *slot, "names");
    free(names->slot);
    names->slot = slot;
    names->slots = slots;
    names->cap = cap;
    for (uint32_t i = 0; i < names->count; i++) names->slot[names_probe(names, name[i])] = i + 1;
    return WEFT_OK;
}

weft_status weft__names_add(struct weft__names *names, const char *name, bool *added,
                            weft_error *err)
{
    if (names->count == names->cap) {
        weft_status status = names_grow(names, err);
        if (status != WEFT_OK) return status;
    }
    uint32_t at = names_probe(names, name);
    *added = names->slot[at] == 0;
    if (*added) {
        names->name[names->count++] = name;
        names->slot[at] = names->count;
    }
    return WEFT_OK;
}

void weft__names_free(struct weft__names *names)
{
    free(names->name);
    free(names->slot);
    *names = (struct weft__names){0};
}

/* ---- scanner ---- */

weft_status weft__scan_fail(struct weft__scan *scan, const char *what)
{
    return weft__fail(scan->err, WEFT_FORMAT, "%s: not the JSON it should be: line %lld: %s",
                      scan->file, (long long)scan->line, what);
}

char weft__scan_peek(struct weft__scan *scan)
{
    for (; scan->at < scan->len; scan->at++) {
        char c = scan->text[scan->at];
        if (c == '\n') scan->line++;
        if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return c;
    }
    return '\0';
}

weft_status weft__scan_expect(struct weft__scan *scan, char c)
{
    if (weft__scan_peek(scan) != c) {
        char what[] = "expected ' '";
        what[10] = c;
        return weft__scan_fail(scan, scan->at == scan->len ? "ends too early" : what);
    }
    scan->at++;
    return WEFT_OK;
}

weft_status weft__scan_more(struct weft__scan *scan, char close, bool first, bool *more)
{
    if (weft__scan_peek(scan) == close) {
        scan->at++;
        *more = false;
        return WEFT_OK;
    }
    *more = true;
    return first ? WEFT_OK : weft__scan_expect(scan, ',');
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Four hexadecimal digits at `at`, or -1. */
static int hex4(const struct weft__scan *scan, size_t at)
{
    int value = 0;
    if (at + 4 > scan->len) return -1;
    for (size_t i = at; i < at + 4; i++) {
        char c = scan->text[i], lower = (char)(c | 0x20);
        int digit = is_digit(c) ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* The code point after \u at scan->at, surrogate pairs joined; -1 when malformed. */
static int unicode_escape(struct weft__scan *scan)
{
    int high = hex4(scan, scan->at);
    scan->at += 4;
    if (high < 0xd800 || high > 0xdfff) return high;
    if (high > 0xdbff || scan->at + 2 > scan->len || scan->text[scan->at] != '\\' ||
        scan->text[scan->at + 1] != 'u')
        return -1;
    int low = hex4(scan, scan->at + 2);
    if (low < 0xdc00 || low > 0xdfff) return -1;
    scan->at += 6;
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

static char *put_utf8(char *to, int point)
{
    if (point < 0x80) {
        *to++ = (char)point;
        return to;
    }
    int rest = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    static const int lead[] = {0, 0xc0, 0xe0, 0xf0};
    *to++ = (char)(lead[rest] | point >> 6 * rest);
    while (rest-- > 0) *to++ = (char)(0x80 | (point >> 6 * rest & 0x3f));
    return to;
}

/* Decodes the escape whose backslash is consumed; NULL when malformed. */
static char *put_escape(struct weft__scan *scan, char *to)
{
    static const char from[] = "\"\\/bfnrt", into[] = "\"\\/\b\f\n\r\t";
    if (scan->at == scan->len) return NULL;
    char c = scan->text[scan->at++];
    if (c == 'u') {
        int point = unicode_escape(scan);
        return point > 0 ? put_utf8(to, point) : NULL; /* U+0000 would end the string */
    }
    const char *which = c != '\0' ? strchr(from, c) : NULL;
    if (which == NULL) return NULL;
    *to++ = into[which - from];
    return to;
}

/* Length of the valid UTF-8 sequence at p, of at most `left` bytes; 0 when it is not valid. */
static size_t utf8_len(const char *text, size_t left)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) return 1;
    size_t len = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || len > left) return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    bool overlong = (p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xf0 && p[1] < 0x90);
    bool surrogate = p[0] == 0xed && p[1] > 0x9f, beyond = p[0] == 0xf4 && p[1] > 0x8f;
    return overlong || surrogate || beyond ? 0 : len;
}

weft_status weft__scan_string(struct weft__scan *scan, char **out)
{
    if (weft__scan_peek(scan) != '"') return weft__scan_fail(scan, "expected a string");
    char *start = scan->text + scan->at + 1, *to = start;
    scan->at++;
    while (scan->at < scan->len) {
        char c = scan->text[scan->at];
        if (c == '"') {
            scan->at++;
            *to = '\0'; /* at the latest where the closing quote was */
            *out = start;
            return WEFT_OK;
        }
        if (c == '\\') {
            scan->at++;
            to = put_escape(scan, to);
            if (to == NULL) return weft__scan_fail(scan, "bad escape in a string");
            continue;
        }
        if ((unsigned char)c < 0x20) return weft__scan_fail(scan, "control character in a string");
        size_t len = utf8_len(scan->text + scan->at, scan->len - scan->at);
        if (len == 0) return weft__scan_fail(scan, "a string is not valid UTF-8");
        memmove(to, scan->text + scan->at, len);
        to += len;
        scan->at += len;
    }
    return weft__scan_fail(scan, "a string has no end");
}

weft_status weft__scan_key(struct weft__scan *scan, char **out)
{
    char *key;
    weft_status status = weft__scan_string(scan, &key);
    if (status == WEFT_OK) status = weft__scan_expect(scan, ':');
    if (status == WEFT_OK) *out = key;
    return status;
}

weft_status weft__scan_u64(struct weft__scan *scan, uint64_t *out)
{
    uint64_t value = 0;
    weft__scan_peek(scan);
    size_t start = scan->at;
    for (; scan->at < scan->len && is_digit(scan->text[scan->at]); scan->at++) {
        uint64_t digit = (uint64_t)(scan->text[scan->at] - '0');
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, digit, &value))
            return weft__scan_fail(scan, "integer beyond 64 bits");
    }
    size_t digits = scan->at - start;
    char next = scan->at < scan->len ? scan->text[scan->at] : '\0';
    bool leading_zero = digits > 1 && scan->text[start] == '0';
    if (digits == 0 || leading_zero || next == '.' || next == 'e' || next == 'E')
        return weft__scan_fail(scan, "expected a whole number, 0 or more");
    *out = value;
    return WEFT_OK;
}

static size_t skip_digits(struct weft__scan *scan)
{
    size_t start = scan->at;
    while (scan->at < scan->len && is_digit(scan->text[scan->at])) scan->at++;
    return scan->at - start;
}

static bool skip_char(struct weft__scan *scan, const char *any)
{
    if (scan->at == scan->len || scan->text[scan->at] == '\0' ||
        strchr(any, scan->text[scan->at]) == NULL)
        return false;
    scan->at++;
    return true;
}

static weft_status skip_number(struct weft__scan *scan)
{
    (void)skip_char(scan, "-");
    size_t start = scan->at, digits = skip_digits(scan);
    bool good = digits == 1 || (digits > 1 && scan->text[start] != '0');
    if (good && skip_char(scan, ".")) good = skip_digits(scan) > 0;
    if (good && skip_char(scan, "eE")) {
        (void)skip_char(scan, "+-");
        good = skip_digits(scan) > 0;
    }
    return good ? WEFT_OK : weft__scan_fail(scan, "expected a value");
}

static weft_status skip_container(struct weft__scan *scan, char close, int depth)
{
    struct weft__names keys = {0};
    weft_status status = WEFT_OK;
    scan->at++;
    for (bool first = true; status == WEFT_OK; first = false) {
        bool more, added;
        char *key;
        status = weft__scan_more(scan, close, first, &more);
        if (status != WEFT_OK || !more) break;
        if (close == '}') {
            status = weft__scan_key(scan, &key);
            if (status == WEFT_OK) status = weft__names_add(&keys, key, &added, scan->err);
            if (status == WEFT_OK && !added)
                status = weft__fail(scan->err, WEFT_FORMAT, "%s: line %lld: duplicate key " NAME,
                                    scan->file, (long long)scan->line, key);
        }
        if (status == WEFT_OK) status = weft__scan_skip(scan, depth - 1);
    }
    weft__names_free(&keys);
    return status;
}

weft_status weft__scan_skip(struct weft__scan *scan, int depth)
{
    static const char *const words[] = {"true", "false", "null"};
    char *text, c = weft__scan_peek(scan);
    if (depth == 0) return weft__scan_fail(scan, "nested too deeply");
    if (++scan->values > scan->values_max) return weft__scan_fail(scan, "too many values");
    if (c == '{' || c == '[') return skip_container(scan, c == '{' ? '}' : ']', depth);
    if (c == '"') return weft__scan_string(scan, &text);
    for (size_t i = 0; i < WEFT__COUNT(words); i++) {
        size_t len = strlen(words[i]);
        if (scan->len - scan->at >= len && memcmp(scan->text + scan->at, words[i], len) == 0) {
            scan->at += len;
            return WEFT_OK;
        }
    }
    return skip_number(scan);
}
