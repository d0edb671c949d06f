/* The pre-tokenizer: splits a text into the pieces that byte-pair encoding may not cross. */
#include "tokenizer.h"

void weft__pretokenizer_free(struct weft__pretokenizer *pretokenizer)
{
    for (size_t i = 0; i < pretokenizer->count; i++)
        weft__regex_free(&pretokenizer->steps[i].regex);
    pretokenizer->count = 0;
}

/* Matches and gaps of one text on their way to the next step. What merging with a neighbour may
 * still change is held back. */
struct splitter {
    struct weft__encoder *encoder;
    size_t next_step;
    enum weft__split_behavior behavior;
    const char *text;
    size_t start, end; /* held, if `held` */
    bool held, previous_match;
    weft_error *err;
};

static weft_status give(struct splitter *s, size_t start, size_t end)
{
    if (start == end) return WEFT_OK;
    return weft__pretokenize(s->encoder, s->next_step, s->text + start, end - start, s->err);
}

static weft_status flush(struct splitter *s)
{
    if (!s->held) return WEFT_OK;
    s->held = false;
    return give(s, s->start, s->end);
}

static weft_status hold(struct splitter *s, size_t start, size_t end)
{
    weft_status status = flush(s);
    s->held = true;
    s->start = start;
    s->end = end;
    return status;
}

/* The next part of the text in order: a match or a gap. */
static weft_status feed(struct splitter *s, size_t start, size_t end, bool match)
{
    bool previous = s->previous_match;
    s->previous_match = match;
    switch (s->behavior) {
    case WEFT__SPLIT_REMOVED:
        return match ? WEFT_OK : give(s, start, end);
    case WEFT__SPLIT_CONTIGUOUS: /* neighbours of one kind are one piece */
        if (!s->held || match != previous) return hold(s, start, end);
        break;
    case WEFT__SPLIT_MERGED_WITH_PREVIOUS: /* a match, with the gap before it */
        if (!s->held || !match || previous) return hold(s, start, end);
        break;
    case WEFT__SPLIT_MERGED_WITH_NEXT: /* a match, with the gap behind it; only matches are held */
        if (match) return hold(s, start, end);
        if (!s->held) return give(s, start, end);
        s->end = end;
        return flush(s);
    default:
        return give(s, start, end);
    }
    s->end = end;
    return WEFT_OK;
}

static weft_status split(struct weft__encoder *encoder, size_t step, const char *text, size_t len,
                         weft_error *err)
{
    const struct weft__step *self = &encoder->tok->pretokenizer.steps[step];
    struct weft__matches matches = {.text = text, .len = len, .last_end = SIZE_MAX};
    struct splitter splitter = {.encoder = encoder,
                                .next_step = step + 1,
                                .behavior = self->behavior,
                                .text = text,
                                .err = err};
    size_t done = 0;
    weft_status status;
    for (;;) {
        bool found;
        status = weft__regex_next(&self->regex, &encoder->matcher, &matches, &found, err);
        if (status != WEFT_OK) return status;
        if (!found) break;
        size_t start = matches.start, end = matches.end;
        if (start != done) {
            status = feed(&splitter, done, start, self->invert);
            if (status != WEFT_OK) return status;
        }
        status = feed(&splitter, start, end, !self->invert);
        if (status != WEFT_OK) return status;
        done = end;
    }
    if (done != len) {
        status = feed(&splitter, done, len, self->invert);
        if (status != WEFT_OK) return status;
    }
    return flush(&splitter);
}

static weft_status encode_piece(struct weft__encoder *encoder, const char *text, size_t len,
                                weft_error *err)
{
    const struct weft__tokenizer *tok = encoder->tok;
    if (tok->pretokenizer.mapped) {
        encoder->unmapped.len = 0;
        if (!weft__unmap_chars(text, len, &encoder->unmapped))
            return weft__fail(err, WEFT_INTERNAL, "a piece holds a character that is no byte");
        if (encoder->unmapped.failed) return weft__fail_oom(err, len, "a piece of text");
        text = encoder->unmapped.data;
        len = encoder->unmapped.len;
    }
    return weft__vocab_encode(&tok->vocab, text, len, &encoder->bpe, encoder->out, err);
}

weft_status weft__pretokenize(struct weft__encoder *encoder, size_t step, const char *text,
                              size_t len, weft_error *err)
{
    const struct weft__pretokenizer *pretokenizer = &encoder->tok->pretokenizer;
    if (step == pretokenizer->count) return encode_piece(encoder, text, len, err);
    enum weft__step_kind kind = pretokenizer->steps[step].kind;
    if (kind == WEFT__STEP_SPLIT) return split(encoder, step, text, len, err);
    if (kind == WEFT__STEP_PREFIX_SPACE && text[0] == ' ')
        return weft__pretokenize(encoder, step + 1, text, len, err);

    struct weft__buf *made = &encoder->steps[step];
    made->len = 0;
    if (kind == WEFT__STEP_MAP) {
        weft__map_bytes(text, len, made);
    } else {
        weft__buf_puts(made, " ");
        weft__buf_append(made, text, len);
    }
    if (made->failed) return weft__fail_oom(err, len, "a piece of text");
    return weft__pretokenize(encoder, step + 1, made->data, made->len, err);
}
