/* Text to token ids. */
#include <stdlib.h>

#include "tokenizer.h"

void weft__ids_free(struct weft__ids *ids)
{
    free(ids->data);
    *ids = (struct weft__ids){0};
}

/* The tokens of a text between added tokens of the raw kind. */
static weft_status encode_gap(struct weft__encoder *encoder, struct weft__json_text text,
                              weft_error *err)
{
    const struct weft__tokenizer *tok = encoder->tok;
    weft_status status =
        weft__normalize(&tok->normalizer, &encoder->normalize, &encoder->matcher, &text, err);
    struct weft__search search = {.added = &tok->added,
                                  .finder = &tok->added.normalized,
                                  .text = text.data,
                                  .len = text.len,
                                  .parse_special = encoder->parse_special};
    struct weft__segment segment;
    while (status == WEFT_OK && weft__added_next(&search, &segment)) {
        if (segment.token != NULL)
            status = weft__ids_push(encoder->out, (int32_t)segment.token->id, err);
        else
            status = weft__pretokenize(encoder, 0, text.data + segment.start,
                                       segment.end - segment.start, err);
    }
    return status;
}

static weft_status encode_text(struct weft__encoder *encoder, struct weft__json_text text,
                               weft_error *err)
{
    const struct weft__tokenizer *tok = encoder->tok;
    struct weft__search search = {.added = &tok->added,
                                  .finder = &tok->added.raw,
                                  .text = text.data,
                                  .len = text.len,
                                  .parse_special = encoder->parse_special};
    struct weft__segment segment;
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && weft__added_next(&search, &segment)) {
        struct weft__json_text part = {text.data + segment.start, segment.end - segment.start};
        status = segment.token != NULL
                     ? weft__ids_push(encoder->out, (int32_t)segment.token->id, err)
                     : encode_gap(encoder, part, err);
    }
    return status;
}

static weft_status push_template(struct weft__ids *out, const int32_t *ids, size_t count,
                                 unsigned flags, weft_error *err)
{
    weft_status status = WEFT_OK;
    if ((flags & WEFT__ADD_SPECIAL) == 0) return WEFT_OK;
    for (size_t i = 0; i < count && status == WEFT_OK; i++)
        status = weft__ids_push(out, ids[i], err);
    return status;
}

static void encoder_free(struct weft__encoder *encoder)
{
    weft__matcher_free(&encoder->matcher);
    weft__normalize_scratch_free(&encoder->normalize);
    for (int i = 0; i < WEFT__MAX_STEPS; i++) weft__buf_free(&encoder->steps[i]);
    weft__buf_free(&encoder->unmapped);
    free(encoder->bpe.memory);
}

weft_status weft__tokenizer_encode(const struct weft__tokenizer *tok, const char *text, size_t len,
                                   unsigned flags, struct weft__ids *out, weft_error *err)
{
    if (len > WEFT__MAX_TEXT)
        return weft__fail(err, WEFT_TOO_LONG, "text of %zu bytes; the limit is %d", len,
                          WEFT__MAX_TEXT);
    struct weft__encoder encoder = {
        .tok = tok, .out = out, .parse_special = (flags & WEFT__PARSE_SPECIAL) != 0};
    const size_t before = out->len;
    struct weft__json_text whole = {text, len};
    struct weft__buf repaired; /* with U+FFFD for what was ill-formed */
    weft__buf_init(&repaired, 3 * (size_t)WEFT__MAX_TEXT);
    weft__normalize_scratch_init(&encoder.normalize);
    weft__buf_init(&encoder.unmapped, 8 * (size_t)WEFT__MAX_TEXT);
    for (int i = 0; i < WEFT__MAX_STEPS; i++)
        weft__buf_init(&encoder.steps[i], 8 * (size_t)WEFT__MAX_TEXT);
    weft_status status = weft__matcher_init(&encoder.matcher, len, err);
    if (status != WEFT_OK) goto done;

    if (!weft__utf8_valid(text, len)) {
        struct weft__detok detok = {0};
        weft__detok_push_bytes(&detok, text, len, &repaired);
        weft__detok_finish(&detok, &repaired);
        if (repaired.failed) {
            status = weft__fail_oom(err, len, "a text");
            goto done;
        }
        whole = (struct weft__json_text){repaired.data, repaired.len};
    }
    status = push_template(out, tok->prefix, tok->prefix_count, flags, err);
    if (status == WEFT_OK) status = encode_text(&encoder, whole, err);
    if (status == WEFT_OK) status = push_template(out, tok->suffix, tok->suffix_count, flags, err);
done:
    if (status != WEFT_OK) out->len = before;
    encoder_free(&encoder);
    weft__buf_free(&repaired);
    return status;
}
