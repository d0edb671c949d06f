/* Building grammars, and the depth that their texts need. */
#include <stdlib.h>
#include <string.h>

#include "private.h"

enum { NO_HEIGHT = 1 << 28 };

/* Room for `more` further elements; false: the grammar has failed. */
static bool grow(struct weft__grammar *g, void *array, size_t *cap, size_t count, size_t more,
                 size_t size)
{
    void **data = array;
    if (g->failed || g->too_large) return false;
    if (count + more > WEFT__GRAMMAR_MAX) {
        g->too_large = true;
        return false;
    }
    if (count + more <= *cap) return true;
    size_t wanted = *cap * 2 > count + more ? *cap * 2 : count + more + 64;
    void *grown = realloc(*data, wanted * size);
    if (grown == NULL) {
        g->failed = true;
        return false;
    }
    *data = grown;
    *cap = wanted;
    return true;
}

void weft__grammar_free(struct weft__grammar *g)
{
    free(g->symbol);
    free(g->alternative);
    free(g->rule);
    free(g->set);
}

size_t weft__grammar_bytes(const struct weft__grammar *g)
{
    return g->symbols_cap * sizeof *g->symbol + g->alternatives_cap * sizeof *g->alternative +
           g->rules_cap * sizeof *g->rule + g->sets_cap * sizeof *g->set;
}

int32_t weft__grammar_rule(struct weft__grammar *g)
{
    if (!grow(g, &g->rule, &g->rules_cap, g->rules, 1, sizeof *g->rule)) return -1;
    g->rule[g->rules++] = (struct weft__rule){.first = -1, .last = -1, .height = NO_HEIGHT};
    return -(int32_t)g->rules;
}

void weft__grammar_add(struct weft__grammar *g, int32_t rule, const int32_t *symbol, size_t count)
{
    if (!grow(g, &g->symbol, &g->symbols_cap, g->symbols, count + 1, sizeof *symbol) ||
        !grow(g, &g->alternative, &g->alternatives_cap, g->alternatives, 1, sizeof *g->alternative))
        return;
    int32_t at = (int32_t)g->alternatives++;
    g->alternative[at] =
        (struct weft__alternative){.begin = (int32_t)g->symbols, .next = -1, .height = NO_HEIGHT};
    if (count > 0) memcpy(g->symbol + g->symbols, symbol, count * sizeof *symbol);
    g->symbols += count;
    g->symbol[g->symbols++] = 0;
    struct weft__rule *r = &g->rule[-rule - 1];
    if (r->first < 0)
        r->first = at;
    else
        g->alternative[r->last].next = at;
    r->last = at;
}

int32_t weft__grammar_set(struct weft__grammar *g, struct weft__byte_set set)
{
    for (size_t i = 0; i < g->sets; i++)
        if (memcmp(&g->set[i], &set, sizeof set) == 0) return (int32_t)i + 1;
    if (!grow(g, &g->set, &g->sets_cap, g->sets, 1, sizeof set)) return 1;
    g->set[g->sets++] = set;
    return (int32_t)g->sets;
}

int32_t weft__grammar_range(struct weft__grammar *g, unsigned char low, unsigned char high)
{
    struct weft__byte_set set = {{0}};
    for (unsigned b = low; b <= high; b++) set.bit[b / 64] |= UINT64_C(1) << (b % 64);
    return weft__grammar_set(g, set);
}

int32_t weft__grammar_chars(struct weft__grammar *g, const char *chars)
{
    struct weft__byte_set set = {{0}};
    for (; *chars != '\0'; chars++) {
        unsigned b = (unsigned char)*chars;
        set.bit[b / 64] |= UINT64_C(1) << (b % 64);
    }
    return weft__grammar_set(g, set);
}

void weft__grammar_text(struct weft__grammar *g, int32_t rule, const char *text, size_t len)
{
    int32_t *symbol = calloc(len + 1, sizeof *symbol);
    if (symbol == NULL) {
        g->failed = true;
        return;
    }
    for (size_t i = 0; i < len; i++)
        symbol[i] = weft__grammar_range(g, (unsigned char)text[i], (unsigned char)text[i]);
    weft__grammar_add(g, rule, symbol, len);
    free(symbol);
}

/* A rule at the end of an alternative takes the place of that alternative: it adds no depth. */
static int32_t height_of(const struct weft__grammar *g, int32_t begin)
{
    int32_t height = 0;
    for (const int32_t *s = g->symbol + begin; *s != 0; s++) {
        if (*s > 0) continue;
        int32_t h = g->rule[-*s - 1].height + (s[1] != 0);
        if (h > height) height = h;
    }
    return height < NO_HEIGHT ? height : NO_HEIGHT;
}

/* True when the rule turned out to need less than was known. */
static bool lower(struct weft__grammar *g, size_t rule)
{
    struct weft__rule *r = &g->rule[rule];
    int32_t before = r->height;
    for (int32_t a = r->first; a >= 0; a = g->alternative[a].next) {
        int32_t height = height_of(g, g->alternative[a].begin);
        g->alternative[a].height = height;
        if (height < r->height) r->height = height;
    }
    return r->height < before;
}

bool weft__grammar_finish(struct weft__grammar *g, int32_t rule)
{
    /* Up and down: chains of rules were built in either order. */
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < g->rules; i++) changed |= lower(g, i);
        for (size_t i = g->rules; i-- > 0;) changed |= lower(g, i);
    }
    return g->rule[-rule - 1].height <= WEFT__GUIDE_DEPTH_MAX;
}
