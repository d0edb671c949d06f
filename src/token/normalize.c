/* The normalizer: what happens to a text before it is split. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "tokenizer.h"

enum {
    MAX_EXPANSION = 32,  /* codes one code decomposes into; Unicode's maximum is 18 */
    INSERTION_SORT = 16, /* marks; longer runs are sorted by counting */
};

void weft__normalize_scratch_init(struct weft__normalize_scratch *scratch)
{
    *scratch = (struct weft__normalize_scratch){0};
    for (int i = 0; i < 2; i++) weft__buf_init(&scratch->buffers[i], 4 * (size_t)WEFT__MAX_TEXT);
}

void weft__normalize_scratch_free(struct weft__normalize_scratch *scratch)
{
    for (int i = 0; i < 2; i++) weft__buf_free(&scratch->buffers[i]);
    free(scratch->codes);
    scratch->codes = NULL;
    scratch->codes_cap = 0;
}

void weft__normalizer_free(struct weft__normalizer *normalizer)
{
    for (size_t i = 0; i < normalizer->count; i++) {
        weft__regex_free(&normalizer->steps[i].regex);
        free(normalizer->steps[i].content);
    }
    normalizer->count = 0;
}

/* ---- Unicode normalization forms ---- */

/* Ranges of starters that NFC leaves alone and that compose with nothing before them. Most text is
 * in them, so only what lies between is looked at closely. Sorted. */
static const struct weft__code_range composed[] = {
    {0x0, 0x2ff},     {0x400, 0x482},   {0x48a, 0x52f},     {0x5d0, 0x5ea},   {0x620, 0x64a},
    {0xe01, 0xe30},   {0x2010, 0x205e}, {0x20a0, 0x20c0},   {0x2190, 0x2328}, {0x232b, 0x2adb},
    {0x3000, 0x3029}, {0x3041, 0x3096}, {0x30a1, 0x30fa},   {0x3400, 0x4dbf}, {0x4e00, 0x9fff},
    {0xac00, 0xd7a3}, {0xff01, 0xffee}, {0x1f300, 0x1faff},
};

/* Whether the form changes neither the character nor what it does to the text before it. */
static bool is_plain(const struct weft__normalize_step *step, uint32_t code)
{
    if (code < 0x80 || !step->compose || step->compat) return code < 0x80;
    size_t i = 0;
    while (i + 1 < WEFT__COUNT(composed) && code > composed[i].last) i++;
    return code >= composed[i].first && code <= composed[i].last;
}

static weft_status reserve_codes(struct weft__normalize_scratch *scratch, size_t count,
                                 weft_error *err)
{
    if (count <= scratch->codes_cap) return WEFT_OK;
    size_t cap = scratch->codes_cap < 1024 ? 1024 : scratch->codes_cap;
    while (cap < count) cap *= 2;
    int32_t *codes = realloc(scratch->codes, cap * sizeof *codes);
    if (codes == NULL) return weft__fail_oom(err, cap * sizeof *codes, "normalizing a text");
    scratch->codes = codes;
    scratch->codes_cap = cap;
    return WEFT_OK;
}

static unsigned combining_class(int32_t code)
{
    return (unsigned)utf8proc_get_property(code)->combining_class & 0xffu;
}

/* Sorts a run of marks by class, stably; `spare` holds as many. utf8proc's own way takes a time
 * quadratic in the run. */
static void sort_marks(int32_t *codes, size_t count, int32_t *spare)
{
    if (count <= INSERTION_SORT) {
        for (size_t i = 1; i < count; i++) {
            int32_t code = codes[i];
            size_t at = i;
            for (; at > 0 && combining_class(codes[at - 1]) > combining_class(code); at--)
                codes[at] = codes[at - 1];
            codes[at] = code;
        }
        return;
    }
    size_t ends[257] = {0};
    for (size_t i = 0; i < count; i++) ends[combining_class(codes[i]) + 1]++;
    for (size_t i = 1; i < WEFT__COUNT(ends); i++) ends[i] += ends[i - 1];
    for (size_t i = 0; i < count; i++) spare[ends[combining_class(codes[i])]++] = codes[i];
    memcpy(codes, spare, count * sizeof *codes);
}

/* Orders and composes codes[begin .. *count). Nothing acts across its ends. */
static weft_status finish_codes(const struct weft__normalize_step *step,
                                struct weft__normalize_scratch *scratch, size_t begin,
                                size_t *count, weft_error *err)
{
    size_t run = begin;
    weft_status status = reserve_codes(scratch, 2 * *count - begin, err);
    if (status != WEFT_OK) return status;
    for (size_t i = begin; i <= *count; i++) {
        if (i < *count && combining_class(scratch->codes[i]) != 0) continue;
        if (i - run > 1) sort_marks(scratch->codes + run, i - run, scratch->codes + *count);
        run = i + 1;
    }
    if (step->compose && *count > begin) {
        utf8proc_ssize_t left =
            utf8proc_normalize_utf32(scratch->codes + begin, (utf8proc_ssize_t)(*count - begin),
                                     UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (left < 0)
            return weft__fail(err, WEFT_INTERNAL, "normalizing: %s", utf8proc_errmsg(left));
        *count = begin + (size_t)left;
    }
    return WEFT_OK;
}

/* One stretch of text that no plain character ends; its first may be one. */
static weft_status normalize_stretch(const struct weft__normalize_step *step,
                                     struct weft__normalize_scratch *scratch, const char *text,
                                     size_t len, struct weft__buf *out, weft_error *err)
{
    utf8proc_option_t options = UTF8PROC_DECOMPOSE | (step->compat ? UTF8PROC_COMPAT : 0);
    size_t begin = 0, count = 0;
    weft_status status;
    for (size_t i = 0; i < len;) {
        uint32_t code = 0;
        int boundary = UTF8PROC_BOUNDCLASS_START;
        i += (size_t)weft__utf8_next(text + i, len - i, &code);
        status = reserve_codes(scratch, count + MAX_EXPANSION, err);
        if (status != WEFT_OK) return status;
        if (weft__is_inert(code)) { /* a starter that takes part in nothing */
            status = finish_codes(step, scratch, begin, &count, err);
            if (status != WEFT_OK) return status;
            scratch->codes[count++] = (int32_t)code;
            begin = count;
            continue;
        }
        utf8proc_ssize_t n = utf8proc_decompose_char((int32_t)code, scratch->codes + count,
                                                     MAX_EXPANSION, options, &boundary);
        if (n < 0 || n > MAX_EXPANSION)
            return weft__fail(err, WEFT_INTERNAL, "normalizing U+%04X failed", (unsigned)code);
        count += (size_t)n;
    }
    status = finish_codes(step, scratch, begin, &count, err);
    if (status != WEFT_OK) return status;
    for (size_t i = 0; i < count; i++) {
        char bytes[4];
        weft__buf_append(out, bytes, (size_t)weft__utf8_put(bytes, (uint32_t)scratch->codes[i]));
    }
    return WEFT_OK;
}

/* Copies plain characters and normalizes what is between; a mark acts on the character before it,
 * too. *changed stays false, and nothing is written, when all is plain. */
static weft_status normalize_unicode(const struct weft__normalize_step *step,
                                     struct weft__normalize_scratch *scratch,
                                     struct weft__json_text text, struct weft__buf *out,
                                     bool *changed, weft_error *err)
{
    size_t copied = 0, previous = 0, i = 0;
    while (i < text.len) {
        uint32_t code = 0;
        int n = weft__utf8_next(text.data + i, text.len - i, &code);
        if (is_plain(step, code)) {
            previous = i;
            i += (size_t)n;
            continue;
        }
        size_t begin = previous;
        do {
            i += (size_t)n;
            if (i == text.len) break;
            n = weft__utf8_next(text.data + i, text.len - i, &code);
        } while (!is_plain(step, code));
        *changed = true;
        weft__buf_append(out, text.data + copied, begin - copied);
        weft_status status =
            normalize_stretch(step, scratch, text.data + begin, i - begin, out, err);
        if (status != WEFT_OK) return status;
        copied = previous = i;
    }
    if (*changed) weft__buf_append(out, text.data + copied, i - copied);
    return WEFT_OK;
}

/* ---- the other steps ---- */

static void lowercase(const char *text, size_t len, struct weft__buf *out)
{
    for (size_t i = 0; i < len;) {
        char bytes[4];
        uint32_t code = 0;
        i += (size_t)weft__utf8_next(text + i, len - i, &code);
        if (code == 0x130)
            weft__buf_puts(out, "i\xcc\x87");
        else
            weft__buf_append(out, bytes, (size_t)weft__utf8_put(bytes, weft__lowercase(code)));
    }
}

static struct weft__json_text strip(const struct weft__normalize_step *step,
                                    struct weft__json_text text)
{
    uint32_t code = 0;
    while (step->left && text.len > 0) {
        int n = weft__utf8_next(text.data, text.len, &code);
        if (!weft__is_space(code)) break;
        text.data += n;
        text.len -= (size_t)n;
    }
    while (step->right && text.len > 0) {
        size_t last = text.len - 1;
        while (last > 0 && ((unsigned char)text.data[last] & 0xc0) == 0x80) last--;
        (void)weft__utf8_next(text.data + last, text.len - last, &code);
        if (!weft__is_space(code)) break;
        text.len = last;
    }
    return text;
}

static weft_status replace(const struct weft__normalize_step *step,
                           const struct weft__matcher *matcher, struct weft__json_text text,
                           struct weft__buf *out, weft_error *err)
{
    struct weft__matches matches = {.text = text.data, .len = text.len, .last_end = SIZE_MAX};
    size_t done = 0;
    for (;;) {
        bool found;
        weft_status status = weft__regex_next(&step->regex, matcher, &matches, &found, err);
        if (status != WEFT_OK) return status;
        if (!found) break;
        weft__buf_append(out, text.data + done, matches.start - done);
        weft__buf_append(out, step->content, step->content_len);
        done = matches.end;
    }
    weft__buf_append(out, text.data + done, text.len - done);
    return WEFT_OK;
}

/* One step from *text to `out`, or *text is changed in place of that. */
static weft_status apply(const struct weft__normalize_step *step,
                         struct weft__normalize_scratch *scratch,
                         const struct weft__matcher *matcher, struct weft__json_text *text,
                         struct weft__buf *out, weft_error *err)
{
    weft_status status = WEFT_OK;
    bool changed = false;
    out->len = 0;
    switch (step->kind) {
    case WEFT__NORMALIZE_STRIP:
        *text = strip(step, *text);
        return WEFT_OK;
    case WEFT__NORMALIZE_UNICODE:
        status = normalize_unicode(step, scratch, *text, out, &changed, err);
        if (!changed) return status;
        break;
    case WEFT__NORMALIZE_LOWERCASE:
        lowercase(text->data, text->len, out);
        break;
    case WEFT__NORMALIZE_PREPEND:
        weft__buf_append(out, step->content, step->content_len);
        weft__buf_append(out, text->data, text->len);
        break;
    case WEFT__NORMALIZE_REPLACE:
        status = replace(step, matcher, *text, out, err);
        break;
    case WEFT__NORMALIZE_BYTES:
        weft__map_bytes(text->data, text->len, out);
        break;
    }
    if (status != WEFT_OK) return status;
    if (out->failed) return weft__fail_oom(err, out->len, "normalizing a text");
    *text = (struct weft__json_text){out->data, out->len};
    return WEFT_OK;
}

weft_status weft__normalize(const struct weft__normalizer *normalizer,
                            struct weft__normalize_scratch *scratch,
                            const struct weft__matcher *matcher, struct weft__json_text *text,
                            weft_error *err)
{
    int holder = 1; /* the buffer that must not be written: the text is there, or in neither */
    for (size_t i = 0; i < normalizer->count && text->len > 0; i++) {
        struct weft__buf *out = &scratch->buffers[1 - holder];
        weft_status status = apply(&normalizer->steps[i], scratch, matcher, text, out, err);
        if (status != WEFT_OK) return status;
        if (text->data == out->data) holder = 1 - holder;
    }
    return WEFT_OK;
}
