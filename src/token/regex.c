/* Regular expressions of tokenizer.json on PCRE2: compiling and iterating over matches. */
#include "tokenizer.h"

enum {
    MATCH_LIMIT = 10 * 1000 * 1000, /* backtracking steps; long texts get more */
    MATCH_STEPS_A_BYTE = 16,
    MATCH_HEAP_KIB = 256 << 10, /* when matching is interpreted */
};

/* An expression in PCRE2's syntax. */
static weft_status compile(struct weft__regex *regex, const char *pattern, size_t len,
                           const char *where, weft_error *err)
{
    char text[160];
    int code;
    PCRE2_SIZE offset;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context == NULL) return weft__fail_oom(err, len, "a regular expression");
    (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    regex->code =
        pcre2_compile((PCRE2_SPTR)pattern, len, PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                      &code, &offset, context);
    pcre2_compile_context_free(context);
    if (regex->code == NULL) {
        (void)pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        return weft__fail(err, code == PCRE2_ERROR_NOMEMORY ? WEFT_NO_MEMORY : WEFT_UNSUPPORTED,
                          "%s: regular expression: %s", where, text);
    }
    /* Where there is no JIT compiler the expression is interpreted, with the same result. */
    (void)pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE);
    return WEFT_OK;
}

weft_status weft__regex_compile(struct weft__regex *regex, const char *pattern, size_t len,
                                const char *where, weft_error *err)
{
    struct weft__buf native;
    weft__buf_init(&native, 64 * (size_t)WEFT__MAX_PATTERN);
    weft_status status = weft__regex_translate(pattern, len, where, &native, err);
    if (status == WEFT_OK)
        status = compile(regex, native.len > 0 ? native.data : "", native.len, where, err);
    weft__buf_free(&native);
    return status;
}

weft_status weft__regex_literal(struct weft__regex *regex, const char *text, size_t len,
                                const char *where, weft_error *err)
{
    if (len == 0 || len > WEFT__MAX_PATTERN)
        return weft__fail(err, WEFT_UNSUPPORTED, "%s: pattern of %zu bytes; 1 to %d are supported",
                          where, len, WEFT__MAX_PATTERN);
    struct weft__buf native;
    weft__buf_init(&native, 16 * (size_t)WEFT__MAX_PATTERN);
    for (size_t i = 0; i < len;) {
        uint32_t code = 0;
        i += (size_t)weft__utf8_next(text + i, len - i, &code);
        weft__buf_printf(&native, "\\x{%x}", (unsigned)code);
    }
    weft_status status = native.failed ? weft__fail_oom(err, native.len, where)
                                       : compile(regex, native.data, native.len, where, err);
    weft__buf_free(&native);
    return status;
}

void weft__regex_free(struct weft__regex *regex)
{
    pcre2_code_free(regex->code);
    regex->code = NULL;
}

weft_status weft__matcher_init(struct weft__matcher *matcher, size_t text_len, weft_error *err)
{
    matcher->data = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    if (matcher->data == NULL || matcher->context == NULL) {
        weft__matcher_free(matcher);
        return weft__fail_oom(err, sizeof *matcher, "matching");
    }
    int64_t steps = weft__max(MATCH_LIMIT, MATCH_STEPS_A_BYTE * (int64_t)text_len);
    (void)pcre2_set_match_limit(matcher->context, (uint32_t)weft__min(steps, UINT32_MAX));
    (void)pcre2_set_heap_limit(matcher->context, MATCH_HEAP_KIB);
    return WEFT_OK;
}

void weft__matcher_free(struct weft__matcher *matcher)
{
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    *matcher = (struct weft__matcher){0};
}

static weft_status fail_match(int code, size_t len, weft_error *err)
{
    char text[160];
    (void)pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
    return weft__fail(err, code == PCRE2_ERROR_NOMEMORY ? WEFT_NO_MEMORY : WEFT_TOO_LONG,
                      "the tokenizer's regular expression on a text of %zu bytes: %s", len, text);
}

weft_status weft__regex_next(const struct weft__regex *regex, const struct weft__matcher *matcher,
                             struct weft__matches *matches, bool *found, weft_error *err)
{
    while (matches->from <= matches->len) {
        PCRE2_SPTR text = (PCRE2_SPTR)matches->text;
        int code = pcre2_match(regex->code, text, matches->len, matches->from, PCRE2_NO_UTF_CHECK,
                               matcher->data, matcher->context);
        if (code == PCRE2_ERROR_JIT_STACKLIMIT)
            code = pcre2_match(regex->code, text, matches->len, matches->from,
                               PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, matcher->data, matcher->context);
        if (code == PCRE2_ERROR_NOMATCH) break;
        if (code < 0) return fail_match(code, matches->len, err);
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(matcher->data);
        matches->start = ends[0];
        matches->end = ends[1];
        if (ends[0] == ends[1] && ends[1] == matches->last_end) {
            /* An empty match right behind the last one does not count: one character on. */
            uint32_t ignored;
            size_t rest = matches->len - matches->from;
            matches->from +=
                rest == 0 ? 1
                          : (size_t)weft__utf8_next(matches->text + matches->from, rest, &ignored);
            continue;
        }
        matches->from = matches->last_end = ends[1];
        *found = true;
        return WEFT_OK;
    }
    *found = false;
    return WEFT_OK;
}
