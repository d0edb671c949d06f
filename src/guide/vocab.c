/* The vocabulary in the order of its bytes: tokens with the same beginning stand together. */
#include <stdlib.h>
#include <string.h>

#include "private.h"

struct entry {
    struct weft__token_text text;
    int32_t id;
};

static int compare(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    size_t n = x->text.len < y->text.len ? x->text.len : y->text.len;
    int order = memcmp(x->text.data, y->text.data, n);
    if (order != 0) return order;
    return (x->text.len > y->text.len) - (x->text.len < y->text.len);
}

bool weft__guide_is_eos(const struct weft__guide_vocab *vocab, int32_t token)
{
    for (int32_t i = 0; i < vocab->eos_count; i++)
        if (vocab->eos[i] == token) return true;
    return false;
}

static size_t collect(const struct weft__guide_vocab *v, struct entry *entry)
{
    size_t count = 0;
    int64_t size = weft__min(v->vocab, weft__tokenizer_size(v->tokenizer));
    for (int32_t id = 0; id < size; id++) {
        struct weft__token_text text = weft__token_bytes(v->tokenizer, id);
        if (text.data == NULL || text.len == 0 || text.len > WEFT__GUIDE_TOKEN_MAX ||
            weft__token_is_special(v->tokenizer, id) || weft__guide_is_eos(v, id))
            continue;
        entry[count++] = (struct entry){text, id};
    }
    return count;
}

static uint8_t common(struct weft__token_text a, struct weft__token_text b)
{
    size_t n = 0;
    while (n < a.len && n < b.len && a.data[n] == b.data[n]) n++;
    return (uint8_t)n;
}

weft_status weft__guide_vocab_open(const struct weft__tokenizer *tokenizer, int64_t vocab,
                                   const int32_t *eos, int32_t eos_count,
                                   struct weft__guide_vocab **out, weft_error *err)
{
    struct weft__guide_vocab *v = calloc(1, sizeof *v);
    struct entry *entry = calloc((size_t)vocab + 1, sizeof *entry);
    if (v == NULL || entry == NULL) goto no_memory;
    v->tokenizer = tokenizer;
    v->vocab = vocab;
    v->eos = eos;
    v->eos_count = eos_count;
    v->count = collect(v, entry);
    v->id = calloc(v->count + 1, sizeof *v->id);
    v->common = calloc(v->count + 1, sizeof *v->common);
    if (v->id == NULL || v->common == NULL) goto no_memory;
    qsort(entry, v->count, sizeof *entry, compare);
    for (size_t i = 0; i < v->count; i++) {
        v->id[i] = entry[i].id;
        v->common[i] = i > 0 ? common(entry[i - 1].text, entry[i].text) : 0;
    }
    free(entry);
    *out = v;
    return WEFT_OK;
no_memory:
    free(entry);
    weft__guide_vocab_close(v);
    return weft__fail_oom(err, (size_t)vocab * sizeof *entry, "a sorted vocabulary");
}

void weft__guide_vocab_close(struct weft__guide_vocab *vocab)
{
    if (vocab == NULL) return;
    free(vocab->id);
    free(vocab->common);
    free(vocab);
}

size_t weft__guide_vocab_bytes(const struct weft__guide_vocab *vocab)
{
    return atomic_load(&vocab->bytes);
}
