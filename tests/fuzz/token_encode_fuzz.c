/* Fuzzes tokenizer.json and texts: the input is the file, then, behind a NUL, a text for it.
 * Without a NUL it is a text for a small tokenizer of our own. What loads must encode within its
 * limits, and decode to valid UTF-8, in one go as in parts. */
#include <stdlib.h>
#include <string.h>

#include "token/token.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len);

static const char own[] =
    "{\"added_tokens\":[{\"content\":\"<x>\",\"special\":true,\"normalized\":false,\"lstrip\":true}"
    ","
    "{\"content\":\"  "
    "A\",\"normalized\":true,\"rstrip\":true},{\"content\":\"ab\",\"single_word\":true}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":"
    "\"Strip\","
    "\"strip_left\":true},{\"type\":\"Lowercase\"}]},\"pre_tokenizer\":{\"type\":\"Sequence\","
    "\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{L}+|\\\\s*[\\\\r\\\\n]+|"
    "\\\\s+(?!"
    "\\\\S)|\\\\b\"},\"behavior\":\"MergedWithNext\",\"invert\":false},{\"type\":\"Digits\","
    "\"individual_digits\":false},{\"type\":\"ByteLevel\"},{\"type\":\"Punctuation\",\"behavior\":"
    "\"Contiguous\"}]},\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"\\u0120\":2,\"aa\":3,\"aaa\":4,"
    "\"\\u00cc\":5,"
    "\"\\u0120a\":6},\"merges\":[[\"a\",\"a\"],[\"a\",\"aa\"],[\"\\u0120\",\"a\"]]}}";

static void decode(const struct weft__tokenizer *tok, const struct weft__ids *ids)
{
    struct weft__buf whole, parts;
    struct weft__detok detok = {0};
    weft__buf_init(&whole, 1 << 26);
    weft__buf_init(&parts, 1 << 26);
    weft__tokenizer_decode(tok, ids->data, ids->len, false, &whole);
    for (size_t i = 0; i < ids->len; i++) {
        size_t before = parts.len;
        weft__detok_push(&detok, tok, ids->data[i], false, &parts);
        if (parts.len > before && !weft__utf8_valid(parts.data + before, parts.len - before))
            abort();
    }
    weft__detok_finish(&detok, &parts);
    if (whole.failed || parts.failed || whole.len != parts.len) abort();
    if (whole.len > 0 && memcmp(whole.data, parts.data, whole.len) != 0) abort();
    weft__buf_free(&whole);
    weft__buf_free(&parts);
}

static void encode(const struct weft__tokenizer *tok, const char *text, size_t len)
{
    for (unsigned flags = 0; flags < 4; flags++) {
        struct weft__ids ids = {0};
        weft_error err = {0};
        weft_status status = weft__tokenizer_encode(tok, text, len, flags, &ids, &err);
        if (status != WEFT_OK && (err.text[0] == '\0' || ids.len != 0 || status == WEFT_INTERNAL))
            abort();
        for (size_t i = 0; i < ids.len; i++)
            if (weft__token_bytes(tok, ids.data[i]).data == NULL) abort();
        decode(tok, &ids);
        weft__ids_free(&ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len)
{
    static struct weft__tokenizer *small;
    const char *text = (const char *)input;
    const char *nul = len > 0 ? memchr(text, '\0', len) : NULL;
    weft_error err = {0};
    if (small == NULL && weft__tokenizer_parse(own, sizeof own - 1, "own", &small, &err) != WEFT_OK)
        abort();
    if (nul == NULL) {
        encode(small, text, len);
        return 0;
    }
    struct weft__tokenizer *tok = NULL;
    size_t file = (size_t)(nul - text);
    if (weft__tokenizer_parse(text, file, "fuzz", &tok, &err) != WEFT_OK) {
        if (err.text[0] == '\0' || strchr(err.text, '\n') != NULL || tok != NULL) abort();
        return 0;
    }
    encode(tok, nul + 1, len - file - 1);
    for (int32_t id = -1; id <= weft__tokenizer_size(tok) && id < 1000; id++) {
        struct weft__token_text token = weft__token_bytes(tok, id);
        (void)weft__token_is_special(tok, id);
        if (token.data != NULL) (void)weft__token_id(tok, token.data, token.len);
    }
    weft__tokenizer_free(tok);
    return 0;
}
