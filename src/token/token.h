/* token.h: text to token ids and back: byte-level BPE as tokenizer.json describes it, and decoding
 * that can be streamed. Results equal those of the `tokenizers` package; docs/ARCHITECTURE.md lists
 * the known exceptions. Chat templates are in chat.h. */
#ifndef WEFT_SRC_TOKEN_H
#define WEFT_SRC_TOKEN_H

#include "base/base.h"

enum {
    WEFT__MAX_TOKENIZER_FILE = 256 << 20, /* bytes of a tokenizer.json */
    WEFT__MAX_VOCAB = 1 << 22,            /* ids */
    WEFT__MAX_TEXT = 256 << 20,           /* bytes of one text to encode */
};

/* Immutable after load: any number of threads may use one at the same time. */
struct weft__tokenizer;

/* From a tokenizer.json file; or from its bytes, `name` standing for the file in errors. The caller
 * frees *out. What is not byte-level BPE is WEFT_UNSUPPORTED and named. */
WEFT_CHECKED weft_status weft__tokenizer_load(const char *path, struct weft__tokenizer **out,
                                              weft_error *err);
WEFT_CHECKED weft_status weft__tokenizer_parse(const char *json, size_t len, const char *name,
                                               struct weft__tokenizer **out, weft_error *err);
void weft__tokenizer_free(struct weft__tokenizer *tok); /* NULL allowed */

/* ---- tokens ---- */

/* Bytes inside the tokenizer, not NUL-terminated, valid while it lives. */
struct weft__token_text {
    const char *data; /* NULL: no such token */
    size_t len;
};

int32_t weft__tokenizer_size(const struct weft__tokenizer *tok); /* largest id + 1 */
/* What the token stands for: possibly part of a UTF-8 sequence. Any id is allowed. */
struct weft__token_text weft__token_bytes(const struct weft__tokenizer *tok, int32_t id);
bool weft__token_is_special(const struct weft__tokenizer *tok, int32_t id);
/* The id whose content in tokenizer.json is this text ("<|im_end|>", "\u0120the"), or -1. */
int32_t weft__token_id(const struct weft__tokenizer *tok, const char *content, size_t len);

/* ---- text to ids ---- */

/* A growing list of ids; zeroed is empty and valid. */
struct weft__ids {
    int32_t *data;
    size_t len;
    size_t cap;
};

void weft__ids_free(struct weft__ids *ids);

enum weft__encode_flags {
    WEFT__ADD_SPECIAL = 1,   /* let the post-processor add tokens (<|begin_of_text|> ...) */
    WEFT__PARSE_SPECIAL = 2, /* special tokens written in the text are those tokens */
};

/* Appends the ids of the text, which may hold NUL and any bytes: each maximal ill-formed UTF-8 part
 * counts as U+FFFD. On failure `out` is as before. */
WEFT_CHECKED weft_status weft__tokenizer_encode(const struct weft__tokenizer *tok, const char *text,
                                                size_t len, unsigned flags, struct weft__ids *out,
                                                weft_error *err);

/* ---- ids to text ---- */

/* Appends valid UTF-8; ill-formed parts become U+FFFD, ids that are no token give nothing. Failure
 * shows in out->failed. */
void weft__tokenizer_decode(const struct weft__tokenizer *tok, const int32_t *ids, size_t count,
                            bool skip_special, struct weft__buf *out);

/* Decoding token by token. Every push appends the whole characters that are certain by now, finish
 * the rest; together they equal weft__tokenizer_decode. A zeroed weft__detok is ready. */
struct weft__detok {
    unsigned char tail[4]; /* a well-formed beginning of a character */
    unsigned char len;
};

void weft__detok_push(struct weft__detok *detok, const struct weft__tokenizer *tok, int32_t id,
                      bool skip_special, struct weft__buf *out);
/* The same for bytes that come from elsewhere. */
void weft__detok_push_bytes(struct weft__detok *detok, const void *bytes, size_t len,
                            struct weft__buf *out);
void weft__detok_finish(struct weft__detok *detok, struct weft__buf *out);

#endif
