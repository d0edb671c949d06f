/* tokenizer.h: the parts of a tokenizer, private to src/token. A text goes through them in this
 * order: added tokens (added.c), normalizer (normalize.c), added tokens again, pre-tokenizer
 * (split.c, with regex.c and translate.c), byte-pair encoding (vocab.c). encode.c strings them
 * together, decode.c goes back; load.c and pipeline.c read them from tokenizer.json. */
#ifndef WEFT_SRC_TOKENIZER_H
#define WEFT_SRC_TOKENIZER_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/base.h"
#include "token.h"

enum {
    WEFT__MAX_STEPS = 32,        /* of a pre-tokenizer, and of a normalizer */
    WEFT__MAX_TOKEN = 1 << 16,   /* bytes of one vocabulary entry */
    WEFT__MAX_ADDED = 1024,      /* bytes of one added token: bounds the search at each position */
    WEFT__MAX_PATTERN = 1 << 16, /* bytes of one regular expression, as written */
    WEFT__MAX_TEMPLATE = 256,    /* tokens a post-processor adds on one side */
};

/* ---- unicode.c, unicode_tables.c ---- */

struct weft__assigned { /* code points PCRE2's Unicode 14 does not know, but the reference does */
    uint32_t first, last;
    char category[3];
    char script[11]; /* of those translate.c knows, or empty */
};
struct weft__code_range {
    uint32_t first, last;
};
struct weft__lower {
    uint32_t first, last;
    int32_t delta;
};
extern const struct weft__assigned weft__assigned[];
extern const size_t weft__assigned_count;
extern const struct weft__code_range weft__inert[]; /* normalization leaves them alone */
extern const size_t weft__inert_count;
extern const struct weft__lower weft__lower[]; /* where utf8proc_tolower differs */
extern const size_t weft__lower_count;

/* White_Space, the \s of the reference, as items of a PCRE2 class and as a predicate. */
#define WEFT__SPACE_CLASS                                                                       \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"

bool weft__is_space(uint32_t code);
bool weft__is_word(uint32_t code); /* the \w of Rust's regex */
bool weft__is_inert(uint32_t code);
uint32_t weft__lowercase(uint32_t code); /* U+0130 aside, which has two */

/* The byte <-> character map of byte-level BPE, GPT-2's bytes_to_unicode; appended. unmap is false,
 * and what it appended unspecified, if some character is not in the map. */
void weft__map_bytes(const char *bytes, size_t len, struct weft__buf *out);
bool weft__unmap_chars(const char *text, size_t len, struct weft__buf *out);

/* ---- regex.c, translate.c ---- */

struct weft__regex {
    pcre2_code *code;
};

/* Compiles an expression in Oniguruma's syntax to match as Oniguruma does; a literal. What cannot
 * be had exactly is WEFT_UNSUPPORTED. `where` opens the error. */
WEFT_CHECKED weft_status weft__regex_compile(struct weft__regex *regex, const char *pattern,
                                             size_t len, const char *where, weft_error *err);
WEFT_CHECKED weft_status weft__regex_literal(struct weft__regex *regex, const char *text,
                                             size_t len, const char *where, weft_error *err);
void weft__regex_free(struct weft__regex *regex);

/* The Oniguruma expression as a PCRE2 one. */
WEFT_CHECKED weft_status weft__regex_translate(const char *pattern, size_t len, const char *where,
                                               struct weft__buf *out, weft_error *err);

/* What matching needs besides the expression: one for each thread that matches. */
struct weft__matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
};

WEFT_CHECKED weft_status weft__matcher_init(struct weft__matcher *matcher, size_t text_len,
                                            weft_error *err);
void weft__matcher_free(struct weft__matcher *matcher);

/* The matches in one text, in order, as Oniguruma's find_iter gives them. */
struct weft__matches {
    const char *text; /* valid UTF-8 */
    size_t len;
    size_t from;     /* where to search next */
    size_t last_end; /* of the last match, SIZE_MAX before the first */
    size_t start, end;
};

/* *found = false when there is none left. */
WEFT_CHECKED weft_status weft__regex_next(const struct weft__regex *regex,
                                          const struct weft__matcher *matcher,
                                          struct weft__matches *matches, bool *found,
                                          weft_error *err);

/* ---- vocab.c: the byte-pair model ---- */

struct weft__vocab_entry {
    uint32_t offset; /* of its bytes in the vocabulary's text */
    uint32_t len : 28;
    uint32_t used : 1;  /* the vocabulary has this id */
    uint32_t raw : 1;   /* the text is what its characters map to, not the characters */
    uint32_t added : 1; /* an added token has this id: look there first */
};

struct weft__merge {
    uint32_t left, right; /* left = UINT32_MAX: an empty slot */
    uint32_t rank, merged;
};

struct weft__vocab {
    struct weft__buf text;
    struct weft__vocab_entry *entries; /* [entries_cap] by id */
    size_t size;                       /* largest id + 1, added tokens included */
    size_t entries_cap;
    size_t count;    /* entries in use by the vocabulary */
    uint32_t *slots; /* [slot_mask + 1] id + 1, or 0; hash of text */
    size_t slot_mask;
    struct weft__merge *merges; /* [merge_mask + 1] hash of (left, right) */
    size_t merge_mask;
    int32_t byte_ids[256]; /* -1: no token for this byte */
    bool ignore_merges;
};

/* Adds a token by its content in tokenizer.json; `mapped` is scratch. */
WEFT_CHECKED weft_status weft__vocab_add(struct weft__vocab *vocab, struct weft__json_text content,
                                         int64_t id, struct weft__buf *mapped, const char *name,
                                         weft_error *err);
/* Makes entries[0 .. size) exist. */
WEFT_CHECKED weft_status weft__vocab_grow(struct weft__vocab *vocab, size_t size, weft_error *err);
/* Call once, when all tokens are in. */
WEFT_CHECKED weft_status weft__vocab_index(struct weft__vocab *vocab, const char *name,
                                           weft_error *err);
/* Takes the pairs in order of rank. */
WEFT_CHECKED weft_status weft__vocab_set_merges(struct weft__vocab *vocab,
                                                const struct weft__merge *merges, size_t count,
                                                weft_error *err);
/* The id of a text, -1 if there is none; `mapped` is scratch, and shows a failure. */
int32_t weft__vocab_id(const struct weft__vocab *vocab, struct weft__json_text content,
                       struct weft__buf *mapped);
void weft__vocab_free(struct weft__vocab *vocab);

/* Room for one piece at a time; zeroed is empty, free(memory) ends it. */
struct weft__bpe_scratch {
    void *memory;
    size_t bytes;
};

/* Appends the tokens of one piece of raw bytes. */
WEFT_CHECKED weft_status weft__vocab_encode(const struct weft__vocab *vocab, const char *piece,
                                            size_t len, struct weft__bpe_scratch *scratch,
                                            struct weft__ids *out, weft_error *err);
WEFT_CHECKED weft_status weft__ids_push(struct weft__ids *ids, int32_t id, weft_error *err);

/* ---- added.c: tokens found in the text itself ---- */

struct weft__added_token {
    uint32_t id;
    uint32_t content, content_len; /* in weft__added.text */
    uint32_t pattern, pattern_len; /* what to look for: the content, or its normalized form */
    bool special, normalized, single_word, lstrip, rstrip;
};

/* Tokens to look for, sorted by pattern, and where each first byte begins in that order. */
struct weft__finder {
    uint32_t *order; /* [count] indices of tokens */
    size_t count;
    uint32_t first[257];
};

struct weft__added {
    struct weft__buf text;
    struct weft__added_token *tokens; /* [count], sorted by content */
    size_t count, cap;
    uint32_t *by_id; /* [count] indices of tokens, sorted by id */
    struct weft__finder raw, normalized;
};

struct weft__segment {
    size_t start, end;
    const struct weft__added_token *token; /* NULL: text between tokens */
};

/* Splits a text; zero it but for the first five. next is false at the end. */
struct weft__search {
    const struct weft__added *added;
    const struct weft__finder *finder;
    const char *text;
    size_t len;
    bool parse_special;
    size_t at, done;              /* where to look next; what was given out so far */
    struct weft__segment waiting; /* a match that stands behind the gap just given */
};

WEFT_CHECKED weft_status weft__added_push(struct weft__added *added, struct weft__added_token token,
                                          struct weft__json_text content, weft_error *err);
/* Sorts and indexes, once all tokens are in and have ids and patterns. */
WEFT_CHECKED weft_status weft__added_index(struct weft__added *added, const char *name,
                                           weft_error *err);
bool weft__added_next(struct weft__search *search, struct weft__segment *segment);
const struct weft__added_token *weft__added_by_id(const struct weft__added *added, uint32_t id);
const struct weft__added_token *weft__added_by_content(const struct weft__added *added,
                                                       const char *content, size_t len);
void weft__added_free(struct weft__added *added);

/* ---- normalize.c ---- */

enum weft__normalize_kind {
    WEFT__NORMALIZE_UNICODE, /* NFC, NFD, NFKC, NFKD */
    WEFT__NORMALIZE_LOWERCASE,
    WEFT__NORMALIZE_STRIP,
    WEFT__NORMALIZE_PREPEND,
    WEFT__NORMALIZE_REPLACE,
    WEFT__NORMALIZE_BYTES, /* bytes to characters: nothing may follow */
};

struct weft__normalize_step {
    enum weft__normalize_kind kind;
    bool compose, compat;     /* UNICODE */
    bool left, right;         /* STRIP */
    struct weft__regex regex; /* REPLACE */
    char *content;            /* PREPEND, REPLACE; freed with the step */
    size_t content_len;
};

struct weft__normalizer {
    struct weft__normalize_step steps[WEFT__MAX_STEPS];
    size_t count;
};

/* Buffers of normalizing; init, then free. The result lies in the text given or in one of them. */
struct weft__normalize_scratch {
    struct weft__buf buffers[2];
    int32_t *codes;
    size_t codes_cap;
};

void weft__normalize_scratch_init(struct weft__normalize_scratch *scratch);
void weft__normalize_scratch_free(struct weft__normalize_scratch *scratch);
WEFT_CHECKED weft_status weft__normalize(const struct weft__normalizer *normalizer,
                                         struct weft__normalize_scratch *scratch,
                                         const struct weft__matcher *matcher,
                                         struct weft__json_text *text, weft_error *err);
void weft__normalizer_free(struct weft__normalizer *normalizer);

/* ---- split.c: the pre-tokenizer ---- */

enum weft__split_behavior {
    WEFT__SPLIT_ISOLATED,
    WEFT__SPLIT_REMOVED,
    WEFT__SPLIT_CONTIGUOUS,
    WEFT__SPLIT_MERGED_WITH_PREVIOUS,
    WEFT__SPLIT_MERGED_WITH_NEXT,
};

enum weft__step_kind {
    WEFT__STEP_SPLIT,
    WEFT__STEP_PREFIX_SPACE, /* a space in front of every piece that has none */
    WEFT__STEP_MAP,          /* bytes to characters, when steps follow that see them */
};

struct weft__step {
    enum weft__step_kind kind;
    enum weft__split_behavior behavior;
    bool invert;
    struct weft__regex regex;
};

struct weft__pretokenizer {
    struct weft__step steps[WEFT__MAX_STEPS];
    size_t count;
    bool mapped; /* pieces come out as characters of the map, not as bytes */
};

/* What one call of encode works with. */
struct weft__encoder {
    const struct weft__tokenizer *tok;
    struct weft__ids *out;
    bool parse_special;
    struct weft__matcher matcher;
    struct weft__normalize_scratch normalize;
    struct weft__buf steps[WEFT__MAX_STEPS]; /* texts made by PREFIX_SPACE and MAP */
    struct weft__buf unmapped;
    struct weft__bpe_scratch bpe;
};

/* Runs the steps from `step` on over one piece, and hands each final piece to the model. */
WEFT_CHECKED weft_status weft__pretokenize(struct weft__encoder *encoder, size_t step,
                                           const char *text, size_t len, weft_error *err);
void weft__pretokenizer_free(struct weft__pretokenizer *pretokenizer);

/* ---- the whole ---- */

struct weft__tokenizer {
    struct weft__vocab vocab;
    struct weft__added added;
    struct weft__normalizer normalizer;
    struct weft__pretokenizer pretokenizer;
    int32_t prefix[WEFT__MAX_TEMPLATE], suffix[WEFT__MAX_TEMPLATE]; /* of the post-processor */
    size_t prefix_count, suffix_count;
};

/* pipeline.c: the small parts of tokenizer.json. `at` stands before the value, which is read but
 * not consumed. */
WEFT_CHECKED weft_status weft__read_normalizer(const struct weft__json *at, const char *name,
                                               struct weft__normalizer *out, weft_error *err);
/* Knows from the normalizer whether the text is mapped before. */
WEFT_CHECKED weft_status weft__read_pretokenizer(const struct weft__json *at, const char *name,
                                                 bool mapped, struct weft__pretokenizer *out,
                                                 weft_error *err);
WEFT_CHECKED weft_status weft__read_postprocessor(const struct weft__json *at, const char *name,
                                                  struct weft__tokenizer *out, weft_error *err);
WEFT_CHECKED weft_status weft__read_decoder(const struct weft__json *at, const char *name,
                                            weft_error *err);

#endif
