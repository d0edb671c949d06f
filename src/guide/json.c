/* The rules of JSON, of which those of schemas are made: white space stands where JSON is usually
 * written with it, and numbers have at most 16 digits on a side. */
#include "private.h"

enum {
    DIGITS = 15, /* after the first */
    INDENT = 20, /* characters, after a line's end */
};

int32_t weft__rule_space(struct weft__rules *r)
{
    struct weft__grammar *g = r->g;
    if (r->space != 0) return r->space;
    int32_t indent = 0, blank = weft__grammar_chars(g, " \t"), line = weft__grammar_chars(g, "\n");
    for (int i = 0; i <= INDENT; i++) {
        int32_t rule = weft__grammar_rule(g);
        weft__grammar_add(g, rule, NULL, 0);
        if (i > 0) WEFT__ADD(g, rule, blank, indent);
        indent = rule;
    }
    r->space = weft__grammar_rule(g);
    weft__grammar_add(g, r->space, NULL, 0);
    WEFT__ADD(g, r->space, weft__grammar_chars(g, " "));
    WEFT__ADD(g, r->space, line, indent);
    WEFT__ADD(g, r->space, line, line, indent);
    return r->space;
}

/* Well-formed ones: Unicode, table 3-7. */
void weft__rule_add_beyond_ascii(struct weft__grammar *g, int32_t rule)
{
    int32_t tail = weft__grammar_range(g, 0x80, 0xbf);
    int32_t three =
        weft__grammar_chars(g, "\xe1\xe2\xe3\xe4\xe5\xe6\xe7\xe8\xe9\xea\xeb\xec\xee\xef");
    WEFT__ADD(g, rule, weft__grammar_range(g, 0xc2, 0xdf), tail);
    WEFT__ADD(g, rule, weft__grammar_range(g, 0xe0, 0xe0), weft__grammar_range(g, 0xa0, 0xbf),
              tail);
    WEFT__ADD(g, rule, three, tail, tail);
    WEFT__ADD(g, rule, weft__grammar_range(g, 0xed, 0xed), weft__grammar_range(g, 0x80, 0x9f),
              tail);
    WEFT__ADD(g, rule, weft__grammar_range(g, 0xf0, 0xf0), weft__grammar_range(g, 0x90, 0xbf), tail,
              tail);
    WEFT__ADD(g, rule, weft__grammar_range(g, 0xf1, 0xf3), tail, tail, tail);
    WEFT__ADD(g, rule, weft__grammar_range(g, 0xf4, 0xf4), weft__grammar_range(g, 0x80, 0x8f), tail,
              tail);
}

struct weft__byte_set weft__rule_plain_ascii(void)
{
    struct weft__byte_set set = {{0}};
    for (unsigned b = ' '; b < 0x80; b++)
        if (b != '"' && b != '\\') set.bit[b / 64] |= UINT64_C(1) << (b % 64);
    return set;
}

/* Of \u escapes neither surrogates nor NUL: few readers take those. */
int32_t weft__rule_character(struct weft__rules *r)
{
    struct weft__grammar *g = r->g;
    if (r->character != 0) return r->character;
    int32_t rule = r->character = weft__grammar_rule(g);
    int32_t escape = weft__grammar_chars(g, "\\"), u = weft__grammar_chars(g, "u");
    int32_t hex = weft__grammar_chars(g, "0123456789abcdefABCDEF"),
            zero = weft__grammar_chars(g, "0");
    int32_t not_zero = weft__grammar_chars(g, "123456789abcdefABCDEF");
    WEFT__ADD(g, rule, weft__grammar_set(g, weft__rule_plain_ascii()));
    WEFT__ADD(g, rule, escape, weft__grammar_chars(g, "\"\\/bfnrt"));
    WEFT__ADD(g, rule, escape, u, weft__grammar_chars(g, "123456789abcefABCEF"), hex, hex, hex);
    WEFT__ADD(g, rule, escape, u, weft__grammar_chars(g, "dD"), weft__grammar_range(g, '0', '7'),
              hex, hex);
    WEFT__ADD(g, rule, escape, u, zero, not_zero, hex, hex);
    WEFT__ADD(g, rule, escape, u, zero, zero, not_zero, hex);
    WEFT__ADD(g, rule, escape, u, zero, zero, zero, not_zero);
    weft__rule_add_beyond_ascii(g, rule);
    return rule;
}

int32_t weft__rule_repeat(struct weft__grammar *g, int32_t item, int32_t separator, int32_t end,
                          int64_t low, int64_t high)
{
    int64_t last = high < 0 ? (low > 0 ? low : 1) : high;
    int32_t rest = weft__grammar_rule(g);
    WEFT__ADD(g, rest, end);
    if (high < 0) {
        if (separator != 0)
            WEFT__ADD(g, rest, separator, item, rest);
        else
            WEFT__ADD(g, rest, item, rest);
    }
    /* rest: what follows when `last` items are there; now for one less at a time. */
    for (int64_t have = last - 1; have >= 0; have--) {
        int32_t rule = weft__grammar_rule(g);
        if (have >= low) WEFT__ADD(g, rule, end);
        if (separator != 0 && have > 0)
            WEFT__ADD(g, rule, separator, item, rest);
        else
            WEFT__ADD(g, rule, item, rest);
        rest = rule;
    }
    return rest;
}

/* At most `count` characters, then a quote: strings of any maxLength end in the same rules. */
static int32_t characters_until(struct weft__rules *r, int64_t count)
{
    struct weft__grammar *g = r->g;
    int32_t quote = weft__grammar_chars(g, "\"");
    for (; r->bounded <= count; r->bounded++) {
        int32_t rule = r->at_most[r->bounded] = weft__grammar_rule(g);
        WEFT__ADD(g, rule, quote);
        if (r->bounded > 0) WEFT__ADD(g, rule, weft__rule_character(r), r->at_most[r->bounded - 1]);
    }
    return r->at_most[count];
}

int32_t weft__rule_string_of(struct weft__rules *r, int64_t low, int64_t high)
{
    int32_t quote = weft__grammar_chars(r->g, "\""), rule = weft__grammar_rule(r->g);
    int32_t end = high < 0 ? quote : characters_until(r, high - low);
    WEFT__ADD(r->g, rule, quote,
              weft__rule_repeat(r->g, weft__rule_character(r), 0, end, low, high < 0 ? -1 : low));
    return rule;
}

int32_t weft__rule_any_string(struct weft__rules *r)
{
    if (r->string == 0) r->string = weft__rule_string_of(r, 0, -1);
    return r->string;
}

/* Up to DIGITS digits. */
static int32_t digits(struct weft__rules *r)
{
    int32_t rule = 0, digit = weft__grammar_range(r->g, '0', '9');
    for (int i = 0; i <= DIGITS; i++) {
        int32_t more = weft__grammar_rule(r->g);
        weft__grammar_add(r->g, more, NULL, 0);
        if (i > 0) WEFT__ADD(r->g, more, digit, rule);
        rule = more;
    }
    return rule;
}

int32_t weft__rule_number(struct weft__rules *r)
{
    struct weft__grammar *g = r->g;
    if (r->number != 0) return r->number;
    int32_t digit = weft__grammar_range(g, '0', '9'), e = weft__grammar_chars(g, "eE");
    int32_t exponent = weft__grammar_rule(g), fraction = weft__grammar_rule(g);
    int32_t whole = weft__grammar_integers(g, -WEFT__INTEGER_MAX, WEFT__INTEGER_MAX);
    weft__grammar_add(g, exponent, NULL, 0);
    int32_t sign = weft__grammar_chars(g, "+-");
    WEFT__ADD(g, exponent, e, digit);
    WEFT__ADD(g, exponent, e, digit, digit);
    WEFT__ADD(g, exponent, e, sign, digit);
    WEFT__ADD(g, exponent, e, sign, digit, digit);
    weft__grammar_add(g, fraction, NULL, 0);
    WEFT__ADD(g, fraction, weft__grammar_chars(g, "."), digit, digits(r));
    r->number = weft__grammar_rule(g);
    WEFT__ADD(g, r->number, whole, fraction, exponent);
    WEFT__ADD(g, r->number, weft__grammar_chars(g, "-"), weft__grammar_chars(g, "0"), fraction,
              exponent);
    return r->number;
}

int32_t weft__rule_boolean(struct weft__rules *r)
{
    if (r->boolean != 0) return r->boolean;
    r->boolean = weft__grammar_rule(r->g);
    weft__grammar_text(r->g, r->boolean, "true", 4);
    weft__grammar_text(r->g, r->boolean, "false", 5);
    return r->boolean;
}

int32_t weft__rule_null(struct weft__rules *r)
{
    if (r->null != 0) return r->null;
    r->null = weft__grammar_rule(r->g);
    weft__grammar_text(r->g, r->null, "null", 4);
    return r->null;
}

int32_t weft__rule_comma(struct weft__rules *r)
{
    int32_t rule = weft__grammar_rule(r->g);
    WEFT__ADD(r->g, rule, weft__grammar_chars(r->g, ","), weft__rule_space(r));
    return rule;
}

int32_t weft__rule_closing(struct weft__rules *r, const char *bracket)
{
    int32_t rule = weft__grammar_rule(r->g);
    WEFT__ADD(r->g, rule, weft__rule_space(r), weft__grammar_chars(r->g, bracket));
    return rule;
}

int32_t weft__rule_array_of(struct weft__rules *r, int32_t item, int64_t low, int64_t high)
{
    int32_t rule = weft__grammar_rule(r->g), bracket = weft__grammar_chars(r->g, "[");
    WEFT__ADD(
        r->g, rule, bracket, weft__rule_space(r),
        weft__rule_repeat(r->g, item, weft__rule_comma(r), weft__rule_closing(r, "]"), low, high));
    return rule;
}

int32_t weft__rule_member_of(struct weft__rules *r, int32_t key, int32_t value)
{
    int32_t rule = weft__grammar_rule(r->g);
    WEFT__ADD(r->g, rule, key, weft__grammar_chars(r->g, ":"), weft__rule_space(r), value);
    return rule;
}

int32_t weft__rule_object_of(struct weft__rules *r, int32_t member)
{
    int32_t rule = weft__grammar_rule(r->g), brace = weft__grammar_chars(r->g, "{");
    WEFT__ADD(
        r->g, rule, brace, weft__rule_space(r),
        weft__rule_repeat(r->g, member, weft__rule_comma(r), weft__rule_closing(r, "}"), 0, -1));
    return rule;
}

int32_t weft__rule_any(struct weft__rules *r)
{
    if (r->any != 0) return r->any;
    int32_t rule = r->any = weft__grammar_rule(r->g);
    int32_t member = weft__rule_member_of(r, weft__rule_any_string(r), rule);
    WEFT__ADD(r->g, rule, weft__rule_object_of(r, member));
    WEFT__ADD(r->g, rule, weft__rule_array_of(r, rule, 0, -1));
    WEFT__ADD(r->g, rule, weft__rule_any_string(r));
    WEFT__ADD(r->g, rule, weft__rule_number(r));
    WEFT__ADD(r->g, rule, weft__rule_boolean(r));
    WEFT__ADD(r->g, rule, weft__rule_null(r));
    return rule;
}
