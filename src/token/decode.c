/* Token ids to text, and what there is to know about a token. */
#include <string.h>

#include "tokenizer.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* ---- tokens ---- */

int32_t weft__tokenizer_size(const struct weft__tokenizer *tok) { return (int32_t)tok->vocab.size; }

static const struct weft__added_token *added_token(const struct weft__tokenizer *tok, int32_t id)
{
    if (id < 0 || (size_t)id >= tok->vocab.size || !tok->vocab.entries[id].added) return NULL;
    return weft__added_by_id(&tok->added, (uint32_t)id);
}

struct weft__token_text weft__token_bytes(const struct weft__tokenizer *tok, int32_t id)
{
    if (id < 0 || (size_t)id >= tok->vocab.size) return (struct weft__token_text){0};
    const struct weft__added_token *added = added_token(tok, id);
    if (added != NULL)
        return (struct weft__token_text){tok->added.text.data + added->content, added->content_len};
    const struct weft__vocab_entry *entry = &tok->vocab.entries[id];
    if (!entry->used) return (struct weft__token_text){0};
    return (struct weft__token_text){tok->vocab.text.data + entry->offset, entry->len};
}

bool weft__token_is_special(const struct weft__tokenizer *tok, int32_t id)
{
    const struct weft__added_token *added = added_token(tok, id);
    return added != NULL && added->special;
}

int32_t weft__token_id(const struct weft__tokenizer *tok, const char *content, size_t len)
{
    const struct weft__added_token *added = weft__added_by_content(&tok->added, content, len);
    if (added != NULL) return (int32_t)added->id;
    if (len > WEFT__MAX_TOKEN) return -1;
    struct weft__buf mapped;
    weft__buf_init(&mapped, WEFT__MAX_TOKEN);
    int32_t id = weft__vocab_id(&tok->vocab, (struct weft__json_text){content, len}, &mapped);
    if (mapped.failed) id = -1;
    weft__buf_free(&mapped);
    return id;
}

/* ---- text ---- */

/* Settles the tail with the byte that follows it; whether the byte was used up. */
static bool settle(struct weft__detok *detok, unsigned char byte, struct weft__buf *out)
{
    uint32_t code;
    detok->tail[detok->len] = byte;
    int n = weft__utf8_next((const char *)detok->tail, (size_t)detok->len + 1, &code);
    if (n == 0) {
        detok->len++;
        return true;
    }
    /* Below zero the ill-formed part is the old tail: as such it was a well-formed beginning. */
    if (n > 0)
        weft__buf_append(out, detok->tail, (size_t)n);
    else
        weft__buf_puts(out, replacement);
    detok->len = 0;
    return n > 0;
}

void weft__detok_push_bytes(struct weft__detok *detok, const void *bytes, size_t len,
                            struct weft__buf *out)
{
    const char *text = bytes;
    size_t i = 0;
    while (i < len && detok->len > 0) i += settle(detok, (unsigned char)text[i], out);
    size_t start = i; /* of whole characters not yet appended */
    while (i < len) {
        uint32_t code;
        int n = weft__utf8_next(text + i, len - i, &code);
        if (n > 0) {
            i += (size_t)n;
            continue;
        }
        weft__buf_append(out, text + start, i - start);
        if (n == 0) {
            detok->len = (unsigned char)(len - i);
            memcpy(detok->tail, text + i, len - i);
            return;
        }
        weft__buf_puts(out, replacement);
        i += (size_t)-n;
        start = i;
    }
    weft__buf_append(out, text + start, i - start);
}

void weft__detok_push(struct weft__detok *detok, const struct weft__tokenizer *tok, int32_t id,
                      bool skip_special, struct weft__buf *out)
{
    if (skip_special && weft__token_is_special(tok, id)) return;
    struct weft__token_text text = weft__token_bytes(tok, id);
    if (text.len > 0) weft__detok_push_bytes(detok, text.data, text.len, out);
}

void weft__detok_finish(struct weft__detok *detok, struct weft__buf *out)
{
    if (detok->len > 0) weft__buf_puts(out, replacement);
    detok->len = 0;
}

void weft__tokenizer_decode(const struct weft__tokenizer *tok, const int32_t *ids, size_t count,
                            bool skip_special, struct weft__buf *out)
{
    struct weft__detok detok = {0};
    for (size_t i = 0; i < count; i++) weft__detok_push(&detok, tok, ids[i], skip_special, out);
    weft__detok_finish(&detok, out);
}
