/* Reads tokenizer.json: 11 MB of it for a large vocabulary, so without a tree, in one pass. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer.h"

/* Members of the file: index, name */
#define PARTS(X)                        \
    X(ADDED_TOKENS, "added_tokens")     \
    X(NORMALIZER, "normalizer")         \
    X(PRE_TOKENIZER, "pre_tokenizer")   \
    X(POST_PROCESSOR, "post_processor") \
    X(DECODER, "decoder")               \
    X(MODEL, "model")

enum part {
#define X(id, key) id,
    PARTS(X)
#undef X
        PART_COUNT
};

static const char *const part_names[] = {
#define X(id, key) key,
    PARTS(X)
#undef X
};

struct loader {
    struct weft__json json;
    const char *name;
    struct weft__tokenizer *tok;
    struct weft__buf scratch, second, mapped, whole;
    struct weft__json parts[PART_COUNT]; /* where they stand; begin = NULL: absent or null */
    bool seen[PART_COUNT];
    struct weft__merge *merges;
    size_t merge_count, merge_cap;
    struct weft__json merges_at; /* when they come before the vocabulary */
    bool has_vocab, has_merges, has_unknown;
    weft_status status;
    weft_error *err;
};

/* Goes on while all is well: with the reader, and otherwise. */
static bool good(struct loader *l, const struct weft__json *json)
{
    if (l->status == WEFT_OK) l->status = weft__json_check(json, l->name, l->err);
    return l->status == WEFT_OK;
}

/* ---- the model ---- */

static void read_vocab(struct loader *l)
{
    struct weft__json *json = &l->json;
    struct weft__json_text content;
    if (l->has_vocab) weft__json_fail(json, "a second vocabulary");
    l->has_vocab = true;
    (void)weft__json_enter(json, WEFT__JSON_OBJECT);
    while (l->status == WEFT_OK && weft__json_member(json, &l->scratch, &content)) {
        /* The id's digits do not touch the scratch buffer that content may lie in. */
        int64_t id;
        if (weft__json_int(json, &id))
            l->status = weft__vocab_add(&l->tok->vocab, content, id, &l->mapped, l->name, l->err);
    }
    if (good(l, json)) l->status = weft__vocab_index(&l->tok->vocab, l->name, l->err);
}

/* "left right" or ["left", "right"]; the texts lie in the source or in scratch and second. */
static bool read_merge(struct loader *l, struct weft__json *json, enum weft__json_kind form,
                       struct weft__json_text *left, struct weft__json_text *right)
{
    if (weft__json_kind(json) != form)
        weft__json_fail(json, "expected a merge, in the same form as the first");
    if (form == WEFT__JSON_ARRAY) {
        if (weft__json_enter(json, WEFT__JSON_ARRAY) && weft__json_item(json) &&
            weft__json_string(json, &l->scratch, left) && weft__json_item(json) &&
            weft__json_string(json, &l->second, right) && !weft__json_item(json) &&
            json->error == NULL)
            return true;
        weft__json_fail(json, "a merge that is not two tokens");
        return false;
    }
    if (!weft__json_string(json, &l->scratch, left)) return false;
    const char *blank = left->len > 0 ? memchr(left->data, ' ', left->len) : NULL;
    size_t at = blank != NULL ? (size_t)(blank - left->data) : 0;
    if (blank == NULL || memchr(blank + 1, ' ', left->len - at - 1) != NULL) {
        weft__json_fail(json, "a merge that is not two tokens with one space between");
        return false;
    }
    *right = (struct weft__json_text){blank + 1, left->len - at - 1};
    left->len = at;
    return true;
}

static void fail_merge(struct loader *l, struct weft__json_text text)
{
    if (l->status == WEFT_OK)
        l->status =
            weft__fail(l->err, WEFT_FORMAT, "%s: merge %zu: \"%.*s\" is not in the vocabulary",
                       l->name, l->merge_count, (int)weft__min((int64_t)text.len, 60), text.data);
}

static void add_merge(struct loader *l, struct weft__json_text left, struct weft__json_text right)
{
    const struct weft__vocab *vocab = &l->tok->vocab;
    int32_t a = weft__vocab_id(vocab, left, &l->mapped);
    int32_t b = weft__vocab_id(vocab, right, &l->mapped);
    if ((a < 0 || b < 0) && !l->mapped.failed) {
        fail_merge(l, a < 0 ? left : right);
        return;
    }
    struct weft__buf *whole = &l->whole;
    whole->len = 0;
    weft__buf_append(whole, left.data, left.len);
    weft__buf_append(whole, right.data, right.len);
    struct weft__json_text text = {whole->data, whole->len};
    int32_t merged = whole->failed ? -1 : weft__vocab_id(vocab, text, &l->mapped);
    if (whole->failed || l->mapped.failed)
        l->status = weft__fail_oom(l->err, left.len + right.len, "a merge");
    else if (merged < 0)
        fail_merge(l, text);
    if (l->status != WEFT_OK) return;

    if (l->merge_count == l->merge_cap) {
        size_t cap = l->merge_cap < 1024 ? 1024 : l->merge_cap * 2;
        struct weft__merge *merges = realloc(l->merges, cap * sizeof *merges);
        if (merges == NULL) {
            l->status = weft__fail_oom(l->err, cap * sizeof *merges, "merges");
            return;
        }
        l->merges = merges;
        l->merge_cap = cap;
    }
    l->merges[l->merge_count] =
        (struct weft__merge){(uint32_t)a, (uint32_t)b, (uint32_t)l->merge_count, (uint32_t)merged};
    l->merge_count++;
}

static void read_merges(struct loader *l, struct weft__json *json)
{
    static const char version[] = "\"#version"; /* the first line of a merges.txt: no merge */
    struct weft__json_text left, right;
    enum weft__json_kind form = WEFT__JSON_NONE;
    (void)weft__json_enter(json, WEFT__JSON_ARRAY);
    while (l->status == WEFT_OK && weft__json_item(json)) {
        enum weft__json_kind kind = weft__json_kind(json);
        size_t rest = (size_t)(json->end - json->at);
        if (form == WEFT__JSON_NONE) form = kind;
        if (form != WEFT__JSON_ARRAY && form != WEFT__JSON_STRING)
            weft__json_fail(json, "expected a merge: a string, or an array of two");
        else if (rest >= sizeof version - 1 && memcmp(json->at, version, sizeof version - 1) == 0)
            weft__json_skip(json);
        else if (read_merge(l, json, form, &left, &right))
            add_merge(l, left, right);
    }
    if (good(l, json))
        l->status = weft__vocab_set_merges(&l->tok->vocab, l->merges, l->merge_count, l->err);
}

static void refuse_model(struct loader *l, const char *what)
{
    if (l->status == WEFT_OK)
        l->status =
            weft__fail(l->err, WEFT_UNSUPPORTED,
                       "%s: model: %s is not supported; weft reads byte-level BPE", l->name, what);
}

/* A number that is zero, or null. */
static bool is_zero(const struct weft__json *before, const struct weft__json *after)
{
    for (const char *p = before->at; p < after->at; p++)
        if (*p >= '1' && *p <= '9') return false;
    return true;
}

/* Options that only their neutral value may have. */
static void read_option(struct loader *l, struct weft__json_text key)
{
    struct weft__json *json = &l->json;
    struct weft__json_text text;
    enum weft__json_kind kind = weft__json_kind(json);
    struct weft__json before = *json;
    bool flag = false;
    if (kind == WEFT__JSON_NULL) {
        weft__json_skip(json);
    } else if (weft__json_is(key, "byte_fallback")) {
        if (weft__json_bool(json, &flag) && flag) refuse_model(l, "byte_fallback");
    } else if (weft__json_is(key, "ignore_merges")) {
        (void)weft__json_bool(json, &l->tok->vocab.ignore_merges);
    } else if (weft__json_is(key, "dropout")) {
        weft__json_skip(json);
        if (!is_zero(&before, json)) refuse_model(l, "dropout");
    } else if (weft__json_is(key, "unk_token")) {
        weft__json_skip(json);
        l->has_unknown = true;
    } else if (weft__json_is(key, "continuing_subword_prefix") ||
               weft__json_is(key, "end_of_word_suffix")) {
        const bool prefix = key.data[0] == 'c';
        if (weft__json_string(json, &l->second, &text) && text.len > 0)
            refuse_model(l, prefix ? "continuing_subword_prefix" : "end_of_word_suffix");
    } else {
        weft__json_skip(json);
    }
}

static void read_model(struct loader *l)
{
    struct weft__json *json = &l->json;
    struct weft__json_text key, type;
    (void)weft__json_enter(json, WEFT__JSON_OBJECT);
    while (l->status == WEFT_OK && weft__json_member(json, &l->scratch, &key)) {
        if (weft__json_is(key, "type")) {
            if (weft__json_string(json, &l->second, &type) && !weft__json_is(type, "BPE")) {
                char what[64];
                (void)snprintf(what, sizeof what, "type %.*s",
                               (int)weft__min((int64_t)type.len, 50), type.data);
                refuse_model(l, what);
            }
        } else if (weft__json_is(key, "vocab") && weft__json_kind(json) == WEFT__JSON_OBJECT) {
            read_vocab(l);
        } else if (weft__json_is(key, "merges")) {
            if (l->has_merges) weft__json_fail(json, "a second list of merges");
            l->has_merges = true;
            l->merges_at = *json;
            if (l->has_vocab)
                read_merges(l, json);
            else
                weft__json_skip(json);
        } else {
            read_option(l, key);
        }
    }
    if (!good(l, json)) return;
    if (!l->has_vocab || !l->has_merges)
        l->status = weft__fail(l->err, WEFT_FORMAT, "%s: model: no %s", l->name,
                               l->has_vocab ? "merges" : "vocabulary");
    else if (l->tok->vocab.merges == NULL)
        read_merges(l, &l->merges_at);
    for (int byte = 0; byte < 256 && l->has_unknown && l->status == WEFT_OK; byte++)
        if (l->tok->vocab.byte_ids[byte] < 0)
            refuse_model(l, "unk_token beside a vocabulary that lacks bytes");
}

/* ---- added tokens ---- */

static void read_added_token(struct loader *l, struct weft__json *json,
                             struct weft__added_token *token, struct weft__json_text *content)
{
    struct weft__json_text key;
    *token = (struct weft__added_token){.normalized = true};
    *content = (struct weft__json_text){"", 0};
    (void)weft__json_enter(json, WEFT__JSON_OBJECT);
    while (weft__json_member(json, &l->scratch, &key)) {
        bool *flag = weft__json_is(key, "special")       ? &token->special
                     : weft__json_is(key, "normalized")  ? &token->normalized
                     : weft__json_is(key, "single_word") ? &token->single_word
                     : weft__json_is(key, "lstrip")      ? &token->lstrip
                     : weft__json_is(key, "rstrip")      ? &token->rstrip
                                                         : NULL;
        if (flag != NULL)
            (void)weft__json_bool(json, flag);
        else if (weft__json_is(key, "content"))
            (void)weft__json_string(json, &l->second, content);
        else
            weft__json_skip(json);
    }
}

/* The reference gives ids itself, whatever the file says: that of an equal entry of the vocabulary,
 * or the next one from the number of entries on. */
static void read_added(struct loader *l, struct weft__json *json)
{
    struct weft__tokenizer *tok = l->tok;
    size_t next = tok->vocab.count;
    (void)weft__json_enter(json, WEFT__JSON_ARRAY);
    while (l->status == WEFT_OK && weft__json_item(json)) {
        struct weft__added_token token;
        struct weft__json_text content;
        read_added_token(l, json, &token, &content);
        if (content.len == 0 || json->error != NULL) continue;
        int32_t id = weft__vocab_id(&tok->vocab, content, &l->mapped);
        if (l->mapped.failed) l->status = weft__fail_oom(l->err, content.len, "an added token");
        token.id = id >= 0 ? (uint32_t)id : (uint32_t)next++;
        if (l->status == WEFT_OK && (content.len > WEFT__MAX_ADDED || next > WEFT__MAX_VOCAB))
            l->status = weft__fail(l->err, WEFT_TOO_LONG,
                                   "%s: added token of %zu bytes; the limit is %d, and %d ids",
                                   l->name, content.len, WEFT__MAX_ADDED, WEFT__MAX_VOCAB);
        if (l->status == WEFT_OK) l->status = weft__vocab_grow(&tok->vocab, token.id + 1, l->err);
        if (l->status == WEFT_OK) l->status = weft__added_push(&tok->added, token, content, l->err);
        if (l->status == WEFT_OK) tok->vocab.entries[token.id].added = 1;
    }
    (void)good(l, json);
}

/* What the normalizer makes of the tokens that are looked for in normalized text. */
static void normalize_added(struct loader *l)
{
    struct weft__added *added = &l->tok->added;
    struct weft__normalize_scratch scratch;
    struct weft__matcher matcher = {0};
    weft__normalize_scratch_init(&scratch);
    l->status = weft__matcher_init(&matcher, WEFT__MAX_ADDED, l->err);
    for (size_t i = 0; i < added->count && l->status == WEFT_OK; i++) {
        struct weft__added_token *token = &added->tokens[i];
        struct weft__json_text text = {added->text.data + token->content, token->content_len};
        if (!token->normalized) continue;
        l->status = weft__normalize(&l->tok->normalizer, &scratch, &matcher, &text, l->err);
        if (l->status != WEFT_OK || text.data == added->text.data + token->content) {
            token->pattern_len = (uint32_t)text.len; /* all of it, or stripped on the right */
            continue;
        }
        token->pattern = (uint32_t)added->text.len;
        token->pattern_len = (uint32_t)text.len;
        /* Stripped text lies in the buffer that grows here: a copy goes first. */
        l->second.len = 0;
        weft__buf_append(&l->second, text.data, text.len);
        weft__buf_append(&added->text, l->second.data, l->second.len);
        if (l->second.failed || added->text.failed)
            l->status = weft__fail_oom(l->err, text.len, "an added token");
        else if (text.len > WEFT__MAX_ADDED)
            l->status = weft__fail(l->err, WEFT_TOO_LONG,
                                   "%s: added token of %zu bytes once normalized; the limit is %d",
                                   l->name, text.len, WEFT__MAX_ADDED);
    }
    weft__matcher_free(&matcher);
    weft__normalize_scratch_free(&scratch);
}

/* ---- the file ---- */

static void read_parts(struct loader *l)
{
    struct weft__json *json = &l->json;
    struct weft__json_text key;
    (void)weft__json_enter(json, WEFT__JSON_OBJECT);
    while (l->status == WEFT_OK && weft__json_member(json, &l->scratch, &key)) {
        size_t part = 0;
        while (part < PART_COUNT && !weft__json_is(key, part_names[part])) part++;
        if (part == PART_COUNT) {
            weft__json_skip(json);
            continue;
        }
        if (l->seen[part]) weft__json_fail(json, "a part that was there before");
        l->seen[part] = true;
        if (part == MODEL) {
            read_model(l);
            continue;
        }
        if (weft__json_kind(json) != WEFT__JSON_NULL) l->parts[part] = *json;
        weft__json_skip(json);
    }
    (void)weft__json_end(json);
    if (good(l, json) && !l->has_vocab)
        l->status =
            weft__fail(l->err, WEFT_FORMAT, "%s: no model: is this a tokenizer.json?", l->name);
}

static bool present(const struct loader *l, enum part part)
{
    return l->status == WEFT_OK && l->parts[part].begin != NULL;
}

static void read_all(struct loader *l)
{
    static const char null[] = "null";
    struct weft__tokenizer *tok = l->tok;
    read_parts(l);
    if (present(l, NORMALIZER))
        l->status = weft__read_normalizer(&l->parts[NORMALIZER], l->name, &tok->normalizer, l->err);
    if (l->status == WEFT_OK) {
        size_t count = tok->normalizer.count;
        bool mapped = count > 0 && tok->normalizer.steps[count - 1].kind == WEFT__NORMALIZE_BYTES;
        if (!present(l, PRE_TOKENIZER))
            weft__json_init(&l->parts[PRE_TOKENIZER], null, sizeof null - 1);
        l->status = weft__read_pretokenizer(&l->parts[PRE_TOKENIZER], l->name, mapped,
                                            &tok->pretokenizer, l->err);
    }
    if (present(l, DECODER)) l->status = weft__read_decoder(&l->parts[DECODER], l->name, l->err);
    if (present(l, ADDED_TOKENS)) read_added(l, &l->parts[ADDED_TOKENS]);
    if (l->status == WEFT_OK) normalize_added(l);
    if (l->status == WEFT_OK) l->status = weft__added_index(&tok->added, l->name, l->err);
    if (present(l, POST_PROCESSOR))
        l->status = weft__read_postprocessor(&l->parts[POST_PROCESSOR], l->name, tok, l->err);
}

weft_status weft__tokenizer_parse(const char *json, size_t len, const char *name,
                                  struct weft__tokenizer **out, weft_error *err)
{
    struct loader l = {.name = name, .status = WEFT_OK, .err = err};
    l.tok = calloc(1, sizeof *l.tok);
    if (l.tok == NULL) return weft__fail_oom(err, sizeof *l.tok, "a tokenizer");
    weft__json_init(&l.json, json, len);
    weft__buf_init(&l.scratch, WEFT__MAX_TOKENIZER_FILE);
    weft__buf_init(&l.second, WEFT__MAX_TOKENIZER_FILE);
    weft__buf_init(&l.mapped, WEFT__MAX_TOKENIZER_FILE);
    weft__buf_init(&l.whole, 2 * (size_t)WEFT__MAX_TOKEN);
    weft__buf_init(&l.tok->vocab.text, WEFT__MAX_TOKENIZER_FILE);
    weft__buf_init(&l.tok->added.text, WEFT__MAX_TOKENIZER_FILE);
    read_all(&l);
    weft__buf_free(&l.scratch);
    weft__buf_free(&l.second);
    weft__buf_free(&l.mapped);
    weft__buf_free(&l.whole);
    free(l.merges);
    if (l.status != WEFT_OK)
        weft__tokenizer_free(l.tok);
    else
        *out = l.tok;
    return l.status;
}

weft_status weft__tokenizer_load(const char *path, struct weft__tokenizer **out, weft_error *err)
{
    char *text;
    size_t len;
    weft_status status = weft__read_file(path, WEFT__MAX_TOKENIZER_FILE, &text, &len, err);
    if (status != WEFT_OK) return status;
    status = weft__tokenizer_parse(text, len, path, out, err);
    free(text);
    return status;
}

void weft__tokenizer_free(struct weft__tokenizer *tok)
{
    if (tok == NULL) return;
    weft__vocab_free(&tok->vocab);
    weft__added_free(&tok->added);
    weft__normalizer_free(&tok->normalizer);
    weft__pretokenizer_free(&tok->pretokenizer);
    free(tok);
}
