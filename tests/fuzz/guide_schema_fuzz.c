/* Fuzzes JSON Schemas: one is refused with words, at once or where it gets too complex, or every
 * walk through its masks goes on until the text is JSON. */
#include <stdlib.h>
#include <string.h>

#include "guide/guide.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len);

enum { WALK_MAX = 300 };

static struct weft__guide_vocab *vocab;
static int32_t size;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static struct weft__tokenizer *tokenizer;
    static const int32_t eos[] = {0};
    weft_error err;
    (void)argc;
    (void)argv;
    if (weft__tokenizer_load(WEFT_SOURCE_DIR "/models/atlas/tokenizer.json", &tokenizer, &err) !=
        WEFT_OK)
        abort();
    size = weft__tokenizer_size(tokenizer);
    if (weft__guide_vocab_open(tokenizer, size, eos, 1, &vocab, &err) != WEFT_OK) abort();
    return 0;
}

/* The first allowed token at or behind a place that the input chooses. */
static int32_t pick(const uint32_t *mask, uint32_t at)
{
    for (int32_t i = 0; i < size; i++) {
        int32_t id = (int32_t)((at + (uint32_t)i) % (uint32_t)size);
        if ((mask[id / 32] >> (id % 32) & 1) != 0) return id;
    }
    abort(); /* a dead end */
}

static void walk(struct weft__guide *guide, uint32_t seed)
{
    struct weft__guided text;
    weft_error err;
    bool done = false;
    weft__guided_init(&text, guide);
    for (int step = 0; step < WALK_MAX && !done; step++) {
        seed = seed * 1664525U + 1013904223U;
        const uint32_t *mask = weft__guided_mask(&text);
        if (weft__guided_check(&text, &err) != WEFT_OK) break;
        done = weft__guided_push(&text, pick(mask, seed >> 8));
    }
    if (done) {
        json_t *value =
            json_loadb(text.text.data, text.text.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (value == NULL) abort();
        json_decref(value);
    }
    weft__guided_free(&text);
}

/* Byte 0: where walks begin; the rest is the schema. */
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len)
{
    struct weft__guide *guide = NULL;
    weft_error err;
    if (len < 2) return 0;
    json_t *schema =
        json_loadb((const char *)input + 1, len - 1, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (schema == NULL) return 0;
    const struct weft__guide_spec spec = {
        .schema = schema, .prefix = "", .suffix = "", .lines = input[0] % 2 == 1};
    if (weft__guide_open(vocab, &spec, &guide, &err) != WEFT_OK) {
        if (err.text[0] == '\0') abort();
    } else {
        for (uint32_t i = 0; i < 3; i++) walk(guide, input[0] + i * 65536);
    }
    weft__guide_close(guide);
    json_decref(schema);
    return 0;
}
