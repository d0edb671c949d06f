/* The integers from one number to another as a grammar over their decimal digits. */
#include <stdio.h>
#include <string.h>

#include "private.h"

static const char zeros[] = "0000000000000000", nines[] = "9999999999999999"; /* 16 of each */

static int32_t digits(struct weft__grammar *g, char low, char high)
{
    return weft__grammar_range(g, (unsigned char)low, (unsigned char)high);
}

/* The digits after those that are known, from low to high, which are equally long. */
static int32_t between(struct weft__grammar *g, const char *low, const char *high)
{
    int32_t rule = weft__grammar_rule(g);
    size_t len = strlen(low);
    if (len == 0) {
        weft__grammar_add(g, rule, NULL, 0);
        return rule;
    }
    const char *all_zero = zeros + sizeof zeros - len, *all_nine = nines + sizeof nines - len;
    if (*low == *high || (strcmp(low, all_zero - 1) == 0 && strcmp(high, all_nine - 1) == 0)) {
        WEFT__ADD(g, rule, digits(g, *low, *high), between(g, low + 1, high + 1));
        return rule;
    }
    WEFT__ADD(g, rule, digits(g, *low, *low), between(g, low + 1, all_nine));
    if (*high - *low > 1)
        WEFT__ADD(g, rule, digits(g, (char)(*low + 1), (char)(*high - 1)),
                  between(g, all_zero, all_nine));
    WEFT__ADD(g, rule, digits(g, *high, *high), between(g, all_zero, high + 1));
    return rule;
}

/* 0 <= low <= high: the numbers of each length between them. */
static int32_t magnitudes(struct weft__grammar *g, int64_t low, int64_t high)
{
    int32_t rule = weft__grammar_rule(g);
    for (int64_t first = 0, last = 9; first <= high; first = last + 1, last = last * 10 + 9) {
        char from[24], to[24];
        if (last < low) continue;
        (void)snprintf(from, sizeof from, "%lld", (long long)weft__max(first, low));
        (void)snprintf(to, sizeof to, "%lld", (long long)weft__min(last, high));
        WEFT__ADD(g, rule, between(g, from, to));
    }
    return rule;
}

int32_t weft__grammar_integers(struct weft__grammar *g, int64_t low, int64_t high)
{
    int32_t rule = weft__grammar_rule(g);
    if (low < 0)
        WEFT__ADD(g, rule, weft__grammar_chars(g, "-"), magnitudes(g, weft__max(-high, 1), -low));
    if (high >= 0) WEFT__ADD(g, rule, magnitudes(g, weft__max(low, 0), high));
    return rule;
}
