/* guide.h: constrained decoding: which tokens may come next so that the text becomes a JSON value
 * of a schema.
 *
 * A schema becomes a grammar over bytes (schema.c, json.c, grammar.c), and the grammar a push-down
 * automaton that is made deterministic as texts need it (machine.c). Tokens are looked up by their
 * bytes (vocab.c), so any byte-level tokenizer works. Whatever may be chosen can be completed: no
 * text runs into a dead end. */
#ifndef WEFT_SRC_GUIDE_H
#define WEFT_SRC_GUIDE_H

#include <jansson.h>

#include "base/base.h"
#include "token/token.h"

/* The tokens of one model, sorted by their bytes, for any number of guides on any threads. */
struct weft__guide_vocab;

/* vocab: columns of logits. The eos ids, which are below, may be chosen where the text is complete,
 * other special tokens never. The tokenizer and eos are borrowed. */
weft_status weft__guide_vocab_open(const struct weft__tokenizer *tokenizer, int64_t vocab,
                                   const int32_t *eos, int32_t eos_count,
                                   struct weft__guide_vocab **out, weft_error *err);
void weft__guide_vocab_close(struct weft__guide_vocab *vocab); /* NULL allowed */
/* Memory of all guides of the vocabulary; from any thread. */
size_t weft__guide_vocab_bytes(const struct weft__guide_vocab *vocab);

/* What a text must look like. It may be shared by texts of one thread. */
struct weft__guide;

struct weft__guide_spec {
    const json_t *schema;        /* a JSON Schema; `true`: any value */
    const char *prefix, *suffix; /* text around the value, or "" */
    bool lines;                  /* one or two line ends may come before them */
};

/* UNSUPPORTED names the keyword that would have to be ignored, and where, or the schema is too
 * large or too complex; INVALID: it is wrong, or no value meets it. The vocabulary is borrowed, the
 * schema is not needed afterwards. */
weft_status weft__guide_open(struct weft__guide_vocab *vocab, const struct weft__guide_spec *spec,
                             struct weft__guide **out, weft_error *err);
void weft__guide_close(struct weft__guide *guide); /* NULL allowed */

/* One text under way. */
struct weft__guided {
    struct weft__guide *guide;
    int32_t state;
    uint32_t generation;   /* of the guide's states; 0: none */
    struct weft__buf text; /* so far: read again when the guide has dropped its states */
    weft_status failed;    /* OK, or why it cannot go on */
};

void weft__guided_init(struct weft__guided *text, struct weft__guide *guide);
void weft__guided_free(struct weft__guided *text);
/* The tokens that may come next, one bit each [ceil(vocab / 32)], valid until the next call for any
 * text of the guide. No bit at all: it cannot go on. */
const uint32_t *weft__guided_mask(struct weft__guided *text);
/* OK leaves *err alone. UNSUPPORTED: too much work or memory for one token, of this schema. */
weft_status weft__guided_check(const struct weft__guided *text, weft_error *err);
/* Takes the token that was chosen; true when the text is complete and nothing can follow. */
bool weft__guided_push(struct weft__guided *text, int32_t token);

#endif
