/* private.h: what the files of src/guide share. */
#ifndef WEFT_SRC_GUIDE_PRIVATE_H
#define WEFT_SRC_GUIDE_PRIVATE_H

#include <stdatomic.h>

#include "guide.h"

enum {
    WEFT__GRAMMAR_MAX = 1 << 18, /* symbols, alternatives, rules of a grammar */
    WEFT__GUIDE_DEPTH_MAX = 64,  /* rules in progress: values nest to about 60 levels */
    /* Bytes of a guide's states: dropped between tokens above MAX, or above CROWDED when those of
     * all guides and their grammars are above GUIDES_MEMORY_MAX; above HARD its request fails. */
    WEFT__GUIDE_MEMORY_MAX = 32 << 20,
    WEFT__GUIDE_MEMORY_CROWDED = 1 << 20,
    WEFT__GUIDE_MEMORY_HARD = 64 << 20,
    WEFT__GUIDES_MEMORY_MAX = 256 << 20,
    /* Configurations looked at for one mask, and for each byte of a text that is read again. */
    WEFT__GUIDE_WORK_MAX = 1 << 20,
    WEFT__GUIDE_WORK_BYTE = 128,
    WEFT__GUIDE_TOKEN_MAX = 255, /* bytes of a token; longer ones are never chosen */
    WEFT__REPEAT_MAX = 8192,     /* minLength, maxLength, minItems, maxItems */
};

/* ---- vocab.c ---- */

struct weft__guide_vocab {
    const struct weft__tokenizer *tokenizer;
    int64_t vocab;
    const int32_t *eos; /* [eos_count], borrowed */
    int32_t eos_count;
    int32_t *id;     /* [count] by bytes, ascending */
    uint8_t *common; /* [count] bytes it shares with the one before it */
    size_t count;
    atomic_size_t bytes; /* of all guides */
};

bool weft__guide_is_eos(const struct weft__guide_vocab *vocab, int32_t token);

/* ---- grammar.c: rules of alternatives of symbols ---- */

/* A symbol: 0 ends an alternative, a positive one is a set of bytes, a negative one a rule. Only
 * rules whose last symbol is the rule in question call themselves without a byte before: there is
 * no left recursion. */
struct weft__byte_set {
    uint64_t bit[4];
};

struct weft__rule {
    int32_t first, last; /* alternatives, or -1 */
    int32_t height;      /* rules in progress at once that its shallowest text needs */
};

struct weft__alternative {
    int32_t begin; /* its first symbol */
    int32_t next;  /* alternative of the rule, or -1 */
    int32_t height;
};

struct weft__grammar {
    int32_t *symbol;
    size_t symbols, symbols_cap;
    struct weft__alternative *alternative;
    size_t alternatives, alternatives_cap;
    struct weft__rule *rule;
    size_t rules, rules_cap;
    struct weft__byte_set *set; /* symbol s is set[s - 1] */
    size_t sets, sets_cap;
    bool failed, too_large; /* out of memory; more than WEFT__GRAMMAR_MAX of anything */
};

void weft__grammar_free(struct weft__grammar *g);
size_t weft__grammar_bytes(const struct weft__grammar *g);
int32_t weft__grammar_rule(struct weft__grammar *g); /* a new one, as a symbol */
/* One more alternative of a rule. */
void weft__grammar_add(struct weft__grammar *g, int32_t rule, const int32_t *symbol, size_t count);
int32_t weft__grammar_set(struct weft__grammar *g, struct weft__byte_set set);
int32_t weft__grammar_range(struct weft__grammar *g, unsigned char low, unsigned char high);
int32_t weft__grammar_chars(struct weft__grammar *g, const char *chars);
/* An alternative that is this text. */
void weft__grammar_text(struct weft__grammar *g, int32_t rule, const char *text, size_t len);
/* Once all rules are there. False: the rule has no finite text within the depth. */
bool weft__grammar_finish(struct weft__grammar *g, int32_t rule);

#define WEFT__ADD(g, rule, ...)                                \
    weft__grammar_add(g, rule, (const int32_t[]){__VA_ARGS__}, \
                      sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* ---- integer.c ---- */

#define WEFT__INTEGER_MAX INT64_C(9999999999999999) /* 16 digits */

/* A rule of the integers from low to high, both at most as far from 0 as WEFT__INTEGER_MAX. */
int32_t weft__grammar_integers(struct weft__grammar *g, int64_t low, int64_t high);

/* ---- json.c: the rules of JSON ---- */

struct weft__rules { /* zeroed but for g */
    struct weft__grammar *g;
    /* Rules that are made when first asked for; 0: not yet. */
    int32_t space, character, string, number, boolean, null, any;
    int32_t at_most[WEFT__REPEAT_MAX + 1]; /* characters, the first `bounded` made */
    int64_t bounded;
};

/* Each gives a rule. */
int32_t weft__rule_any(struct weft__rules *r); /* value */
int32_t weft__rule_any_string(struct weft__rules *r);
int32_t weft__rule_number(struct weft__rules *r);
int32_t weft__rule_boolean(struct weft__rules *r);
int32_t weft__rule_null(struct weft__rules *r);
/* Of low to high characters or items; high < 0: any number. */
int32_t weft__rule_string_of(struct weft__rules *r, int64_t low, int64_t high);
int32_t weft__rule_array_of(struct weft__rules *r, int32_t item, int64_t low, int64_t high);
int32_t weft__rule_object_of(struct weft__rules *r, int32_t member); /* of any number of them */
int32_t weft__rule_member_of(struct weft__rules *r, int32_t key, int32_t value); /* KEY: VALUE */
int32_t weft__rule_character(struct weft__rules *r);                             /* of a string */
int32_t weft__rule_comma(struct weft__rules *r);                        /* and space behind it */
int32_t weft__rule_closing(struct weft__rules *r, const char *bracket); /* and space before it */
/* Nothing, a space, or line ends and an indentation. */
int32_t weft__rule_space(struct weft__rules *r);
/* `item` from `low` to `high` times, then `end`; high < 0: any number of times. Every item but the
 * first follows `separator`; 0: there is none. */
int32_t weft__rule_repeat(struct weft__grammar *g, int32_t item, int32_t separator, int32_t end,
                          int64_t low, int64_t high);
/* Alternatives that are a character beyond ASCII. */
void weft__rule_add_beyond_ascii(struct weft__grammar *g, int32_t rule);
struct weft__byte_set weft__rule_plain_ascii(void); /* characters that need no escape */

/* ---- schema.c ---- */

/* The rule of the whole text. */
weft_status weft__schema_compile(const struct weft__guide_spec *spec, struct weft__grammar *g,
                                 int32_t *root, weft_error *err);

#endif
