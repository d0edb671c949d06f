/* Regular expressions from Oniguruma's syntax, which tokenizer.json uses, to PCRE2's.
 *
 * Everything that means something else in PCRE2 is written out: classes become explicit items, so
 * that \s is White_Space and \p{L} knows the letters of the Unicode version that the reference has
 * (weft__assigned); groups do not capture; {n,m}+ repeats instead of being possessive. What cannot
 * be written out exactly is refused by name. */
#include <string.h>
#include <strings.h>

#include "tokenizer.h"

enum {
    MAX_DEPTH = 48,   /* of groups and of classes in classes */
    MAX_REPEATS = 8,  /* quantifiers on one item */
    MAX_COUNT = 65535 /* in {n,m}, PCRE2's limit */
};

#define ANY "[\\x{0}-\\x{10ffff}]"

struct translator {
    const char *begin, *at, *end;
    struct weft__buf *out;
    const char *where;
    weft_error *err;
    weft_status status;
    unsigned depth;
    bool caseless, dotall;
    char previous; /* the literal letter just written, while caseless */
};

static bool refuse(struct translator *t, const char *what)
{
    if (t->status == WEFT_OK)
        t->status = weft__fail(t->err, WEFT_UNSUPPORTED, "%s: regular expression, byte %zu: %s",
                               t->where, (size_t)(t->at - t->begin), what);
    return false;
}

static bool more(const struct translator *t) { return t->at < t->end; }

static bool starts(const struct translator *t, const char *text)
{
    size_t len = strlen(text);
    return (size_t)(t->end - t->at) >= len && memcmp(t->at, text, len) == 0;
}

static bool take(struct translator *t, const char *text)
{
    if (!starts(t, text)) return false;
    t->at += strlen(text);
    return true;
}

static uint32_t take_code(struct translator *t)
{
    uint32_t code = 0;
    t->at += weft__utf8_next(t->at, (size_t)(t->end - t->at), &code);
    return code;
}

static void put_code(struct weft__buf *out, uint32_t code)
{
    weft__buf_printf(out, "\\x{%x}", (unsigned)code);
}

/* ---- classes ---- */

/* One character out of a set: items of a PCRE2 class, and alternatives that no class can hold. */
struct set {
    struct weft__buf items;
    struct weft__buf others; /* joined by | */
};

static void set_init(struct set *set)
{
    weft__buf_init(&set->items, 16 * (size_t)WEFT__MAX_PATTERN);
    weft__buf_init(&set->others, 16 * (size_t)WEFT__MAX_PATTERN);
}

static void set_free(struct set *set)
{
    weft__buf_free(&set->items);
    weft__buf_free(&set->others);
}

static void set_put(const struct set *set, bool negated, struct weft__buf *out)
{
    out->failed |= set->items.failed | set->others.failed;
    if (set->others.len == 0) {
        weft__buf_puts(out, negated ? "[^" : "[");
        weft__buf_append(out, set->items.data, set->items.len);
        weft__buf_puts(out, "]");
        return;
    }
    weft__buf_puts(out, negated ? "(?:(?!" : "(?:");
    if (set->items.len > 0) {
        weft__buf_puts(out, "[");
        weft__buf_append(out, set->items.data, set->items.len);
        weft__buf_puts(out, "]|");
    }
    weft__buf_append(out, set->others.data, set->others.len);
    weft__buf_puts(out, negated ? ")" ANY ")" : ")");
}

/* Adds an inner set to an outer one. */
static void set_add(struct set *outer, const struct set *inner, bool negated)
{
    if (!negated && inner->others.len == 0) {
        weft__buf_append(&outer->items, inner->items.data, inner->items.len);
        outer->items.failed |= inner->items.failed | inner->others.failed;
        return;
    }
    if (outer->others.len > 0) weft__buf_puts(&outer->others, "|");
    set_put(inner, negated, &outer->others);
}

/* A set of characters that has a name; one of: */
struct property {
    const char *category, *script, *native; /* native: items of a PCRE2 class */
};

static const char *const categories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                         "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                         "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                         "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
static const struct {
    const char *name, *category;
} category_names[] = {
    {"Letter", "L"},
    {"UppercaseLetter", "Lu"},
    {"LowercaseLetter", "Ll"},
    {"TitlecaseLetter", "Lt"},
    {"ModifierLetter", "Lm"},
    {"OtherLetter", "Lo"},
    {"Mark", "M"},
    {"NonspacingMark", "Mn"},
    {"SpacingMark", "Mc"},
    {"Number", "N"},
    {"DecimalNumber", "Nd"},
    {"Digit", "Nd"},
    {"Punctuation", "P"},
    {"Punct", "P"},
    {"Symbol", "S"},
    {"Separator", "Z"},
};
static const char *const scripts[] = {"Arabic", "Bengali", "Cyrillic", "Devanagari", "Greek",
                                      "Han",    "Hangul",  "Hebrew",   "Hiragana",   "Katakana",
                                      "Latin",  "Tamil",   "Thai"};

/* Whether characters that PCRE2 does not know yet belong to it. */
static bool has(const struct property *property, const struct weft__assigned *row)
{
    if (property->script != NULL) return strcmp(property->script, row->script) == 0;
    return property->category != NULL &&
           strncmp(property->category, row->category, strlen(property->category)) == 0;
}

static void put_property(struct property property, struct weft__buf *items)
{
    if (property.native != NULL)
        weft__buf_puts(items, property.native);
    else if (property.script != NULL)
        weft__buf_printf(items, "\\p{sc:%s}", property.script);
    else
        weft__buf_printf(items, "\\p{%s}", property.category);
    for (size_t i = 0; i < weft__assigned_count; i++) {
        const struct weft__assigned *row = &weft__assigned[i];
        if (!has(&property, row)) continue;
        put_code(items, row->first);
        if (row->last == row->first) continue;
        weft__buf_puts(items, "-");
        put_code(items, row->last);
    }
}

static void put_category(const char *category, struct weft__buf *items)
{
    put_property((struct property){.category = category}, items);
}

/* \w: Alphabetic, marks, decimal digits, connectors. Outside classes, where Oniguruma looks Latin-1
 * up in a table of its own, the other numbers of Latin-1, too. */
static void put_word(bool in_class, struct weft__buf *items)
{
    weft__buf_puts(items, "\\p{Alphabetic}");
    put_category("L", items); /* those among them that PCRE2 does not know yet */
    put_category("M", items);
    put_category("Nd", items);
    put_category("Pc", items);
    if (!in_class) weft__buf_puts(items, "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}");
}

static bool find_property(const char *name, struct property *out)
{
    for (size_t i = 0; i < WEFT__COUNT(category_names); i++)
        if (strcasecmp(name, category_names[i].name) == 0) name = category_names[i].category;
    for (size_t i = 0; i < WEFT__COUNT(categories); i++)
        if (strcasecmp(name, categories[i]) == 0) out->category = categories[i];
    for (size_t i = 0; i < WEFT__COUNT(scripts); i++)
        if (strcasecmp(name, scripts[i]) == 0) out->script = scripts[i];
    if (strcasecmp(name, "Space") == 0 || strcasecmp(name, "WhiteSpace") == 0)
        out->native = WEFT__SPACE_CLASS;
    if (strcasecmp(name, "Any") == 0) out->native = "\\x{0}-\\x{10ffff}";
    return out->category != NULL || out->script != NULL || out->native != NULL;
}

/* {Name} or {^Name}, behind \p or \P; case, blanks, - and _ do not count. */
static bool named_property(struct translator *t, struct property *property, bool *negated)
{
    char name[32];
    size_t len = 0;
    if (!take(t, "{")) return refuse(t, "\\p and \\P need a name in braces");
    if (take(t, "^")) *negated = !*negated;
    for (; more(t) && *t->at != '}'; t->at++) {
        char c = *t->at;
        if (c == ' ' || c == '-' || c == '_') continue;
        if (len + 1 == sizeof name) break;
        name[len++] = c;
    }
    name[len] = '\0';
    if (!take(t, "}")) return refuse(t, "property without end");
    return find_property(name, property) ||
           refuse(t, "this character property is not supported; general categories (L, Nd, ...) "
                     "and the larger scripts are");
}

/* A class escape behind its backslash: \s \d \w \h \p and their negations. Adds to set and returns
 * true; false also when it is none of these, with t->status unchanged. */
static bool class_escape(struct translator *t, bool in_class, struct set *set)
{
    if (!more(t) || strchr("sSdDwWhHpP", *t->at) == NULL || *t->at == '\0') return false;
    char letter = *t->at++;
    bool negated = letter < 'a';
    struct property property = {0};
    struct set inner;
    set_init(&inner);
    switch (letter | 0x20) {
    case 's':
        weft__buf_puts(&inner.items, WEFT__SPACE_CLASS);
        break;
    case 'd':
        put_category("Nd", &inner.items);
        break;
    case 'h':
        weft__buf_puts(&inner.items, "0-9A-Fa-f");
        break;
    case 'w':
        put_word(in_class, &inner.items);
        break;
    default:
        if (!named_property(t, &property, &negated)) goto done;
        put_property(property, &inner.items);
    }
    if (in_class && t->caseless) {
        /* There Oniguruma closes the class under case folding, which leaves these only as they are:
         * letters as a whole but for U+0345, what has no case, and the scripts but Greek. */
        const char *category = property.category != NULL ? property.category : "";
        if (strcmp(category, "L") == 0 && !negated)
            weft__buf_puts(&inner.items, "\\x{345}");
        else if (category[0] == 'L' || category[0] == 'M' ||
                 (property.script != NULL && strcmp(property.script, "Greek") == 0))
            (void)refuse(t, "this property in a class under (?i) is not supported");
    }
    set_add(set, &inner, negated);
done:
    set_free(&inner);
    return t->status == WEFT_OK;
}

/* Up to `most` digits of a base; how many there were. */
static int take_digits(struct translator *t, int base, int most, uint32_t *value)
{
    int count = 0;
    *value = 0;
    while (more(t) && count < most) {
        int digit = weft__hex_digit(*t->at);
        if (digit < 0 || digit >= base) break;
        *value = *value * (uint32_t)base + (uint32_t)digit;
        count++;
        t->at++;
    }
    return count;
}

/* A backslash sequence that stands for one character, behind the backslash. */
static bool code_escape(struct translator *t, uint32_t *code)
{
    static const char letters[] = "tnrfvae", values[] = "\t\n\r\f\v\a\x1b";
    if (!more(t)) return refuse(t, "ends in a backslash");
    char c = *t->at;
    const char *letter = c != '\0' ? strchr(letters, c) : NULL;
    bool alphanumeric = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    if (letter != NULL) {
        *code = (unsigned char)values[letter - letters];
        t->at++;
    } else if (c == 'x' || c == 'u') {
        t->at++;
        bool braces = c == 'x' && take(t, "{");
        int digits = take_digits(t, 16, braces ? 8 : c == 'x' ? 2 : 4, code);
        if (digits == 0 || (c == 'u' && digits != 4) || (braces && !take(t, "}")))
            return refuse(t, "malformed \\x or \\u");
        if (*code > 0x10ffff || (*code >= 0xd800 && *code <= 0xdfff) ||
            (c == 'x' && !braces && *code > 0x7f))
            return refuse(t, "\\x or \\u is no character");
    } else if (c == '0') {
        (void)take_digits(t, 8, 3, code);
    } else if (alphanumeric) {
        return refuse(t, "this escape is not supported");
    } else {
        *code = take_code(t);
    }
    return true;
}

/* [:name:] inside a class; what is supported of it. */
static bool posix_class(struct translator *t, struct set *set)
{
    bool negated = take(t, "[:^");
    if (!negated) (void)take(t, "[:");
    struct set inner;
    set_init(&inner);
    if (take(t, "space:]")) {
        weft__buf_puts(&inner.items, WEFT__SPACE_CLASS);
    } else if (take(t, "digit:]")) {
        put_category("Nd", &inner.items);
    } else if (take(t, "punct:]")) {
        put_category("P", &inner.items);
        put_category("S", &inner.items);
    } else {
        (void)refuse(t, "of the POSIX classes only space, digit and punct are supported");
    }
    set_add(set, &inner, negated);
    set_free(&inner);
    return t->status == WEFT_OK;
}

static bool class_body(struct translator *t, struct set *set, bool *negated);

static bool nested_class(struct translator *t, struct set *set)
{
    struct set inner;
    bool negated;
    set_init(&inner);
    t->at++;
    bool good = class_body(t, &inner, &negated);
    if (good) set_add(set, &inner, negated);
    set_free(&inner);
    return good;
}

/* One character of a class, or a range. */
static bool class_range(struct translator *t, struct set *set)
{
    uint32_t first, last;
    if (!take(t, "\\"))
        first = take_code(t);
    else if (!code_escape(t, &first))
        return false;
    put_code(&set->items, first);
    if (!starts(t, "-") || starts(t, "-]")) return true;
    t->at++;
    if (!more(t) || *t->at == '[' || starts(t, "&&"))
        return refuse(t, "malformed range in a class");
    if (!take(t, "\\"))
        last = take_code(t);
    else if (!code_escape(t, &last))
        return false;
    if (last < first) return refuse(t, "range in a class that runs backwards");
    weft__buf_puts(&set->items, "-");
    put_code(&set->items, last);
    return true;
}

/* The members up to ] or &&. */
static bool class_members(struct translator *t, struct set *set)
{
    const char *begin = t->at;
    while (more(t) && *t->at != ']' && !starts(t, "&&")) {
        bool good;
        if (starts(t, "[:")) {
            good = posix_class(t, set);
        } else if (*t->at == '[') {
            good = nested_class(t, set);
        } else if (*t->at == '\\') {
            t->at++;
            good = class_escape(t, true, set);
            if (good && starts(t, "-") && !starts(t, "-]"))
                return refuse(t, "malformed range in a class");
            if (!good && t->status == WEFT_OK) {
                t->at--;
                good = class_range(t, set);
            }
        } else {
            good = class_range(t, set);
        }
        if (!good) return false;
    }
    if (!more(t)) return refuse(t, "class without end");
    return t->at > begin || refuse(t, "empty class");
}

/* Behind the [: to behind the ]. */
static bool class_body(struct translator *t, struct set *set, bool *negated)
{
    if (t->depth == MAX_DEPTH) return refuse(t, "nested too deep");
    t->depth++;
    *negated = take(t, "^");
    bool good = class_members(t, set);
    while (good && take(t, "&&")) {
        struct set right, both;
        set_init(&right);
        set_init(&both);
        good = class_members(t, &right);
        weft__buf_puts(&both.others, "(?=");
        set_put(set, false, &both.others);
        weft__buf_puts(&both.others, ")");
        set_put(&right, false, &both.others);
        set_free(&right);
        set_free(set);
        *set = both;
    }
    t->depth--;
    return good && take(t, "]");
}

/* ---- everything else ---- */

static void word_boundary(struct translator *t, bool negated)
{
    struct weft__buf word;
    weft__buf_init(&word, WEFT__MAX_PATTERN);
    put_word(false, &word);
    const char *w = word.failed ? "" : word.data;
    if (word.failed) t->out->failed = true;
    weft__buf_printf(t->out,
                     negated ? "(?:(?<=[%s])(?=[%s])|(?<![%s])(?![%s]))"
                             : "(?:(?<=[%s])(?![%s])|(?<![%s])(?=[%s]))",
                     w, w, w, w);
    weft__buf_free(&word);
}

/* Oniguruma folds these pairs to one letter (ss to sharp s, ff to a ligature), PCRE2 does not. */
static bool folds_together(char a, char b)
{
    return (a == 's' && (b == 's' || b == 't')) || (a == 'f' && strchr("fil", b) != NULL);
}

static bool literal(struct translator *t, uint32_t code)
{
    char lower = code < 0x80 ? (char)(code | 0x20) : '\0';
    bool letter = lower >= 'a' && lower <= 'z' && code >= 'A';
    if (t->caseless && letter && t->previous != '\0' && folds_together(t->previous, lower))
        return refuse(t, "ss, st, ff, fi and fl under (?i) are not supported");
    t->previous = letter ? lower : '\0';
    put_code(t->out, code);
    return true;
}

/* An escape outside classes. *repeatable is false for assertions. */
static bool escape(struct translator *t, bool *repeatable)
{
    t->at++;
    struct set set;
    set_init(&set);
    bool good = class_escape(t, false, &set);
    if (good) {
        if (t->caseless) weft__buf_puts(t->out, "(?-i:");
        set_put(&set, false, t->out);
        if (t->caseless) weft__buf_puts(t->out, ")");
        t->previous = '\0';
    }
    set_free(&set);
    if (good || t->status != WEFT_OK) return good;

    uint32_t code;
    char c = more(t) ? *t->at : '\0';
    *repeatable = false;
    t->previous = '\0';
    if (c != '\0' && strchr("AzZbB", c) != NULL) {
        t->at++;
        if (c == 'b' || c == 'B')
            word_boundary(t, c == 'B');
        else
            weft__buf_puts(t->out, c == 'A' ? "\\A" : c == 'z' ? "\\z" : "(?=\\x{a}?\\z)");
        return true;
    }
    *repeatable = true;
    return code_escape(t, &code) && literal(t, code);
}

static bool sequence(struct translator *t);

/* The letters of (?i-m: ...), behind the question mark. */
static bool options(struct translator *t)
{
    bool on = true;
    for (; more(t) && *t->at != ':' && *t->at != ')'; t->at++) {
        if (*t->at == '-')
            on = false;
        else if (*t->at == 'i')
            t->caseless = on;
        else if (*t->at == 'm') /* Ruby's m: the dot matches newlines */
            t->dotall = on;
        else
            return refuse(t, "of the options only i and m are supported");
    }
    return more(t) || refuse(t, "group without end");
}

/* What opens a group: behind it, and its PCRE2 form written. *whole: an option for all that follows
 * was given, at the very beginning. */
static bool group_opening(struct translator *t, bool *repeatable, bool *whole)
{
    static const char *const assertions[] = {"(?=", "(?!", "(?<=", "(?<!"};
    bool first = t->at == t->begin;
    for (size_t i = 0; i < WEFT__COUNT(assertions); i++) {
        if (!take(t, assertions[i])) continue;
        *repeatable = false;
        weft__buf_puts(t->out, assertions[i]);
        return true;
    }
    if (take(t, "(?>")) {
        weft__buf_puts(t->out, "(?>");
        return true;
    }
    if (starts(t, "(?<") || starts(t, "(?'")) {
        char closing = t->at[2] == '<' ? '>' : '\'';
        for (t->at += 3; more(t) && *t->at != closing; t->at++)
            if (*t->at == '(' || *t->at == ')') return refuse(t, "malformed name of a group");
        if (!more(t)) return refuse(t, "malformed name of a group");
        t->at++;
    } else if (take(t, "(?")) {
        if (!options(t)) return false;
        *whole = *t->at++ == ')';
        if (*whole && !first) return refuse(t, "options inside an expression are not supported");
    } else if (starts(t, "(*")) {
        return refuse(t, "callouts are not supported");
    } else {
        t->at++;
    }
    weft__buf_puts(t->out, t->caseless ? "(?i:" : "(?-i:");
    return true;
}

static bool group(struct translator *t, bool *repeatable)
{
    if (starts(t, "(?#")) return refuse(t, "comments are not supported");
    if (t->depth == MAX_DEPTH) return refuse(t, "nested too deep");
    bool caseless = t->caseless, dotall = t->dotall, whole = false;
    if (!group_opening(t, repeatable, &whole)) return false;
    t->depth++;
    t->previous = '\0';
    if (!sequence(t)) return false;
    t->previous = '\0';
    t->depth--;
    weft__buf_puts(t->out, ")");
    if (whole) {
        *repeatable = false;
        return !more(t) || refuse(t, "unmatched )");
    }
    t->caseless = caseless;
    t->dotall = dotall;
    return take(t, ")") || refuse(t, "group without end");
}

/* {n} {n,} {n,m} {,m} as numbers, -1 for no upper limit; false, and nothing taken, if it is none.
 */
static bool interval(struct translator *t, int64_t *low, int64_t *high)
{
    const char *begin = t->at++;
    uint32_t a, b;
    int digits = take_digits(t, 10, 6, &a), upper = digits;
    b = a;
    if (take(t, ",")) upper = take_digits(t, 10, 6, &b);
    bool comma = t->at > begin + 1 && t->at[-1] == ',';
    if ((digits == 0 && (upper == 0 || comma)) || !take(t, "}")) {
        t->at = begin;
        return false;
    }
    *low = digits > 0 ? a : 0;
    *high = comma ? -1 : (int64_t)b;
    return true;
}

static void wrap(struct translator *t, size_t item)
{
    struct weft__buf *out = t->out;
    size_t len = out->len - item;
    weft__buf_puts(out, "(?:)");
    if (out->failed) return;
    memmove(out->data + item + 3, out->data + item, len);
    memcpy(out->data + item, "(?:", 3);
}

/* One quantifier; *took is false when there is none. */
static bool quantifier(struct translator *t, size_t item, bool again, bool *took)
{
    int64_t low = 0, high = 0;
    char c = more(t) ? *t->at : '\0';
    *took = false;
    if (c == '{') {
        if (!interval(t, &low, &high)) return true;
        if (low > MAX_COUNT || high > MAX_COUNT || (high >= 0 && high < low))
            return refuse(t, "repetition out of range");
    } else if (c == '*' || c == '+' || c == '?') {
        t->at++;
    } else {
        return true;
    }
    *took = true;
    if (again) wrap(t, item);
    if (c != '{') {
        char text[2] = {c, '\0'};
        weft__buf_puts(t->out, text);
        if (take(t, "?"))
            weft__buf_puts(t->out, "?");
        else if (take(t, "+"))
            weft__buf_puts(t->out, "+");
        return true;
    }
    if (high < 0)
        weft__buf_printf(t->out, "{%d,}", (int)low);
    else
        weft__buf_printf(t->out, "{%d,%d}", (int)low, (int)high);
    /* A fixed count cannot be lazy: there the ? makes the whole optional. And {n,m}+ is no
     * possessive repetition but a repeated one: a + is taken as the next quantifier. */
    if (low != high && take(t, "?")) weft__buf_puts(t->out, "?");
    return true;
}

static bool quantifiers(struct translator *t, size_t item, bool repeatable)
{
    for (int i = 0;; i++) {
        bool took;
        if (!quantifier(t, item, i > 0, &took)) return false;
        if (!took) return true;
        t->previous = '\0';
        if (!repeatable) return refuse(t, "repeated assertion");
        if (i == MAX_REPEATS) return refuse(t, "too many quantifiers in a row");
    }
}

static bool class(struct translator *t)
{
    struct set set;
    bool negated;
    set_init(&set);
    t->at++;
    t->previous = '\0';
    bool good = class_body(t, &set, &negated);
    if (good) set_put(&set, negated, t->out);
    set_free(&set);
    return good;
}

/* One item of a sequence, without its quantifiers. */
static bool item(struct translator *t, bool *repeatable)
{
    switch (*t->at) {
    case '(':
        return group(t, repeatable);
    case '[':
        return class(t);
    case '\\':
        return escape(t, repeatable);
    case '.':
        t->at++;
        t->previous = '\0';
        weft__buf_puts(t->out, t->dotall ? ANY : "[^\\x{a}]");
        return true;
    case '^':
    case '$':
        *repeatable = false;
        t->previous = '\0';
        weft__buf_puts(t->out, *t->at++ == '^' ? "(?:\\A|(?<=\\x{a})(?!\\z))" : "(?=\\x{a}|\\z)");
        return true;
    default:
        return literal(t, take_code(t));
    }
}

/* Alternatives up to the end or a closing parenthesis. */
static bool sequence(struct translator *t)
{
    bool started = false; /* a quantifier has something in front of it */
    while (more(t) && *t->at != ')') {
        bool repeatable = true, took;
        size_t begin = t->out->len;
        if (take(t, "|")) {
            weft__buf_puts(t->out, "|");
            t->previous = '\0';
            started = false;
            continue;
        }
        if (!started) {
            if (!quantifier(t, begin, false, &took)) return false;
            if (took) return refuse(t, "nothing to repeat");
        }
        if (!item(t, &repeatable) || !quantifiers(t, begin, repeatable)) return false;
        started = true;
    }
    return true;
}

weft_status weft__regex_translate(const char *pattern, size_t len, const char *where,
                                  struct weft__buf *out, weft_error *err)
{
    if (len > WEFT__MAX_PATTERN)
        return weft__fail(err, WEFT_TOO_LONG,
                          "%s: regular expression of %zu bytes; the limit is %d", where, len,
                          WEFT__MAX_PATTERN);
    struct translator t = {.begin = pattern,
                           .at = pattern,
                           .end = pattern + len,
                           .out = out,
                           .where = where,
                           .err = err,
                           .status = WEFT_OK};
    if (sequence(&t) && more(&t)) (void)refuse(&t, "unmatched )");
    if (t.status == WEFT_OK && out->failed)
        return weft__fail(err, WEFT_NO_MEMORY,
                          "%s: regular expression needs more memory than there is, or than %zu MiB",
                          where, out->max >> 20);
    return t.status;
}
