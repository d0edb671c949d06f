/* Added tokens: leftmost-longest search for them in a text. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer.h"

/* ---- building ---- */

weft_status weft__added_push(struct weft__added *added, struct weft__added_token token,
                             struct weft__json_text content, weft_error *err)
{
    if (added->count == added->cap) {
        size_t cap = added->cap < 32 ? 32 : added->cap * 2;
        struct weft__added_token *tokens = realloc(added->tokens, cap * sizeof *tokens);
        if (tokens == NULL) return weft__fail_oom(err, cap * sizeof *tokens, "added tokens");
        added->tokens = tokens;
        added->cap = cap;
    }
    token.content = (uint32_t)added->text.len;
    token.content_len = (uint32_t)content.len;
    token.pattern = token.content;
    token.pattern_len = token.content_len;
    weft__buf_append(&added->text, content.data, content.len);
    if (added->text.failed) return weft__fail_oom(err, content.len, "added tokens");
    added->tokens[added->count++] = token;
    return WEFT_OK;
}

static int compare_texts(const char *a, size_t a_len, const char *b, size_t b_len)
{
    int order = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return order != 0 ? order : (a_len > b_len) - (a_len < b_len);
}

static int by_content(const void *a, const void *b, void *context)
{
    const struct weft__added *added = context;
    const struct weft__added_token *x = a, *y = b;
    return compare_texts(added->text.data + x->content, x->content_len,
                         added->text.data + y->content, y->content_len);
}

static int by_id(const void *a, const void *b, void *context)
{
    const struct weft__added *added = context;
    uint32_t x = added->tokens[*(const uint32_t *)a].id, y = added->tokens[*(const uint32_t *)b].id;
    return (x > y) - (x < y);
}

static int by_pattern(const void *a, const void *b, void *context)
{
    const struct weft__added *added = context;
    const struct weft__added_token *x = &added->tokens[*(const uint32_t *)a];
    const struct weft__added_token *y = &added->tokens[*(const uint32_t *)b];
    return compare_texts(added->text.data + x->pattern, x->pattern_len,
                         added->text.data + y->pattern, y->pattern_len);
}

static weft_status fail_token(const struct weft__added *added,
                              const struct weft__added_token *token, const char *name,
                              const char *what, weft_error *err)
{
    return weft__fail(err, WEFT_FORMAT, "%s: added token \"%.*s\" %s", name,
                      (int)weft__min(token->content_len, 60), added->text.data + token->content,
                      what);
}

static weft_status finder_index(struct weft__added *added, struct weft__finder *finder,
                                bool normalized, const char *name, weft_error *err)
{
    finder->order = malloc((added->count + 1) * sizeof *finder->order);
    if (finder->order == NULL)
        return weft__fail_oom(err, added->count * sizeof *finder->order, "added tokens");
    for (size_t i = 0; i < added->count; i++)
        if (added->tokens[i].normalized == normalized) finder->order[finder->count++] = (uint32_t)i;
    qsort_r(finder->order, finder->count, sizeof *finder->order, by_pattern, added);

    /* Of two that normalize alike the first is found. */
    size_t byte = 0, kept = 0;
    for (size_t i = 0; i < finder->count; i++) {
        uint32_t index = finder->order[i];
        const struct weft__added_token *token = &added->tokens[index];
        if (token->pattern_len == 0)
            return fail_token(added, token, name, "is empty once normalized", err);
        if (kept > 0 && by_pattern(&finder->order[kept - 1], &index, added) == 0) continue;
        size_t first = (unsigned char)added->text.data[token->pattern];
        while (byte <= first) finder->first[byte++] = (uint32_t)kept;
        finder->order[kept++] = index;
    }
    finder->count = kept;
    while (byte < WEFT__COUNT(finder->first)) finder->first[byte++] = (uint32_t)finder->count;
    return WEFT_OK;
}

weft_status weft__added_index(struct weft__added *added, const char *name, weft_error *err)
{
    if (added->count > 0)
        qsort_r(added->tokens, added->count, sizeof *added->tokens, by_content, added);
    for (size_t i = 1; i < added->count; i++) {
        const struct weft__added_token *token = &added->tokens[i];
        if (by_content(token - 1, token, added) == 0)
            return fail_token(added, token, name, "is listed twice", err);
    }

    added->by_id = malloc((added->count + 1) * sizeof *added->by_id);
    if (added->by_id == NULL)
        return weft__fail_oom(err, added->count * sizeof *added->by_id, "added tokens");
    for (size_t i = 0; i < added->count; i++) added->by_id[i] = (uint32_t)i;
    qsort_r(added->by_id, added->count, sizeof *added->by_id, by_id, added);

    weft_status status = finder_index(added, &added->raw, false, name, err);
    if (status == WEFT_OK) status = finder_index(added, &added->normalized, true, name, err);
    return status;
}

void weft__added_free(struct weft__added *added)
{
    weft__buf_free(&added->text);
    free(added->tokens);
    free(added->by_id);
    free(added->raw.order);
    free(added->normalized.order);
    *added = (struct weft__added){0};
}

/* ---- looking up ---- */

const struct weft__added_token *weft__added_by_id(const struct weft__added *added, uint32_t id)
{
    size_t low = 0, high = added->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const struct weft__added_token *token = &added->tokens[added->by_id[middle]];
        if (token->id == id) return token;
        if (token->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const struct weft__added_token *weft__added_by_content(const struct weft__added *added,
                                                       const char *content, size_t len)
{
    size_t low = 0, high = added->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const struct weft__added_token *token = &added->tokens[middle];
        int order =
            compare_texts(added->text.data + token->content, token->content_len, content, len);
        if (order == 0) return token;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* ---- searching ---- */

/* The first of the patterns low .. high, which agree up to `depth`, whose byte there is >= byte. */
static size_t narrow(const struct weft__search *search, size_t low, size_t high, size_t depth,
                     unsigned byte)
{
    while (low < high) {
        size_t middle = (low + high) / 2;
        const struct weft__added_token *token =
            &search->added->tokens[search->finder->order[middle]];
        if ((unsigned char)search->added->text.data[token->pattern + depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest token at a position, or NULL. */
static const struct weft__added_token *longest_at(const struct weft__search *search,
                                                  size_t position)
{
    const struct weft__added_token *best = NULL;
    unsigned byte = (unsigned char)search->text[position];
    size_t low = search->finder->first[byte], high = search->finder->first[byte + 1];
    for (size_t depth = 1; low < high; depth++) {
        /* Of patterns that agree so far, the one that ends here sorts first. */
        const struct weft__added_token *token = &search->added->tokens[search->finder->order[low]];
        if (token->pattern_len == depth) {
            best = token;
            low++;
        }
        if (position + depth == search->len) break;
        byte = (unsigned char)search->text[position + depth];
        low = narrow(search, low, high, depth, byte);
        high = narrow(search, low, high, depth, byte + 1);
    }
    return best;
}

static uint32_t code_before(const char *text, size_t end, size_t *start)
{
    uint32_t code = 0;
    size_t at = end - 1;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80) at--;
    (void)weft__utf8_next(text + at, end - at, &code);
    *start = at;
    return code;
}

static bool stands_alone(const struct weft__search *search, size_t start, size_t end)
{
    uint32_t code = 0;
    size_t before;
    if (start > 0 && weft__is_word(code_before(search->text, start, &before))) return false;
    if (end == search->len) return true;
    (void)weft__utf8_next(search->text + end, search->len - end, &code);
    return !weft__is_word(code);
}

/* Where white space in front of `start` begins, not before what was given out. */
static size_t strip_left(const struct weft__search *search, size_t start)
{
    if (start < search->done) return search->done;
    while (start > search->done) {
        size_t before;
        if (!weft__is_space(code_before(search->text, start, &before))) break;
        start = before;
    }
    return start;
}

static size_t strip_right(const struct weft__search *search, size_t end)
{
    while (end < search->len) {
        uint32_t code = 0;
        int n = weft__utf8_next(search->text + end, search->len - end, &code);
        if (!weft__is_space(code)) break;
        end += (size_t)n;
    }
    return end;
}

/* The next token that counts. Search goes on behind the token itself, not behind the white space
 * that it strips: a token made of white space is found again there, as in the reference. */
static bool next_token(struct weft__search *search, struct weft__segment *found)
{
    while (search->at < search->len) {
        unsigned byte = (unsigned char)search->text[search->at];
        const struct weft__added_token *token = NULL;
        if (search->finder->first[byte] != search->finder->first[byte + 1])
            token = longest_at(search, search->at);
        if (token == NULL) {
            search->at++;
            continue;
        }
        size_t start = search->at, end = start + token->pattern_len;
        search->at = end;
        if (token->special && !search->parse_special) continue;
        if (token->single_word && !stands_alone(search, start, end)) continue;
        if (token->lstrip) start = strip_left(search, start);
        /* Once stripping went beyond this token, it need not look at the same blanks again. */
        if (token->rstrip) end = search->done > end ? search->done : strip_right(search, end);
        if (start >= end) continue; /* wholly swallowed by the token before */
        *found = (struct weft__segment){start, end, token};
        return true;
    }
    return false;
}

bool weft__added_next(struct weft__search *search, struct weft__segment *segment)
{
    if (search->waiting.token != NULL) {
        *segment = search->waiting;
        search->waiting.token = NULL;
        return true;
    }
    struct weft__segment found;
    if (search->finder->count > 0 && next_token(search, &found)) {
        size_t gap = search->done;
        search->done = found.end;
        if (gap >= found.start) {
            *segment = found;
            return true;
        }
        search->waiting = found;
        *segment = (struct weft__segment){gap, found.start, NULL};
        return true;
    }
    if (search->done >= search->len) return false;
    *segment = (struct weft__segment){search->done, search->len, NULL};
    search->done = search->len;
    return true;
}
