/* Server-sent events of three APIs: bytes to events, events to timed output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { MAX_EVENT = WEFT__BENCH_MAX_ANSWER };

void weft__bench_fail(struct weft__bench_request *r, enum weft__bench_end end, const char *format,
                      ...)
{
    va_list args;
    if (r->end != WEFT__END_OK) return;
    r->end = end;
    va_start(args, format);
    (void)vsnprintf(r->error, sizeof r->error, format, args);
    va_end(args);
    for (char *c = r->error; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = ' ';
    /* The cut may have split a character. */
    size_t len = strlen(r->error);
    for (int i = 0; i < 3 && len > 0 && !weft__utf8_valid(r->error, len); i++)
        r->error[--len] = '\0';
}

/* ---- events ---- */

/* What one event says. */
struct said {
    bool choice, finish;
    size_t text_len;
    int64_t prompt_tokens, completion_tokens; /* -1: nothing */
};

/* Values of an unexpected type are passed over: servers differ in what they add. A number that
 * counts nothing would spoil the figures of the whole run. */
static void read_count(struct weft__json *json, int64_t *out)
{
    int64_t value;
    if (weft__json_kind(json) != WEFT__JSON_NUMBER)
        weft__json_skip(json);
    else if (weft__json_int(json, &value) && (value < 0 || value > WEFT__BENCH_MAX_EVENTS))
        weft__json_fail(json, "no count of tokens");
    else if (json->error == NULL)
        *out = value;
}

static void read_text(struct weft__json *json, struct weft__sse *sse, struct weft__buf *keep,
                      struct said *said)
{
    struct weft__json_text text;
    if (weft__json_kind(json) != WEFT__JSON_STRING) {
        weft__json_skip(json);
    } else if (weft__json_string(json, &sse->value, &text)) {
        said->text_len += text.len;
        if (keep != NULL) weft__buf_append(keep, text.data, text.len);
    }
}

static void read_finish(struct weft__json *json, struct said *said)
{
    said->finish |= weft__json_kind(json) != WEFT__JSON_NULL;
    weft__json_skip(json);
}

/* Passes over a value of another kind. */
static bool enter(struct weft__json *json, enum weft__json_kind kind)
{
    if (weft__json_kind(json) == kind) return weft__json_enter(json, kind);
    weft__json_skip(json);
    return false;
}

/* The counts in `usage` and `meta_info`. */
static void read_counts(struct weft__json *json, struct weft__sse *sse, struct said *said)
{
    struct weft__json_text key;
    if (!enter(json, WEFT__JSON_OBJECT)) return;
    while (weft__json_member(json, &sse->key, &key)) {
        if (weft__json_is(key, "completion_tokens"))
            read_count(json, &said->completion_tokens);
        else if (weft__json_is(key, "prompt_tokens"))
            read_count(json, &said->prompt_tokens);
        else if (weft__json_is(key, "finish_reason"))
            read_finish(json, said);
        else
            weft__json_skip(json);
    }
}

static void read_delta(struct weft__json *json, struct weft__sse *sse, struct weft__buf *keep,
                       struct said *said)
{
    struct weft__json_text key;
    if (!enter(json, WEFT__JSON_OBJECT)) return;
    while (weft__json_member(json, &sse->key, &key)) {
        if (weft__json_is(key, "content") || weft__json_is(key, "reasoning_content") ||
            weft__json_is(key, "reasoning"))
            read_text(json, sse, keep, said);
        else
            weft__json_skip(json);
    }
}

/* The first choice counts: one is asked for. */
static void read_choices(struct weft__json *json, struct weft__sse *sse, struct weft__buf *keep,
                         struct said *said)
{
    struct weft__json_text key;
    if (!enter(json, WEFT__JSON_ARRAY)) return;
    while (weft__json_item(json)) {
        if (said->choice || weft__json_kind(json) != WEFT__JSON_OBJECT) {
            weft__json_skip(json);
            continue;
        }
        said->choice = true;
        (void)weft__json_enter(json, WEFT__JSON_OBJECT);
        while (weft__json_member(json, &sse->key, &key)) {
            if (weft__json_is(key, "text"))
                read_text(json, sse, keep, said);
            else if (weft__json_is(key, "delta"))
                read_delta(json, sse, keep, said);
            else if (weft__json_is(key, "finish_reason"))
                read_finish(json, said);
            else
                weft__json_skip(json);
        }
    }
}

static void add_event(struct weft__bench_request *r, const struct said *said, uint64_t now)
{
    if (r->events == r->events_cap) {
        int cap = r->events_cap == 0 ? 64 : 2 * r->events_cap;
        struct weft__bench_event *grown =
            cap <= WEFT__BENCH_MAX_EVENTS ? realloc(r->event, (size_t)cap * sizeof *grown) : NULL;
        if (grown == NULL) {
            weft__bench_fail(r, WEFT__END_BAD_EVENT, "more than %d events", r->events);
            return;
        }
        r->event = grown;
        r->events_cap = cap;
    }
    r->event[r->events++] = (struct weft__bench_event){
        .ns = now, .tokens = (int32_t)said->completion_tokens, .text = said->text_len > 0};
}

static void take_event(struct weft__sse *sse, struct weft__bench_request *r, uint64_t now,
                       bool keep_text)
{
    const char *data = sse->data.data;
    size_t len = sse->data.len;
    struct weft__buf *keep = keep_text ? &r->text : NULL;
    struct said said = {.prompt_tokens = -1, .completion_tokens = -1};
    struct weft__json json;
    struct weft__json_text key;
    if (len == 0) return;
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        sse->done = true;
        return;
    }
    weft__json_init(&json, data, len);
    (void)weft__json_enter(&json, WEFT__JSON_OBJECT);
    while (weft__json_member(&json, &sse->key, &key)) {
        if (weft__json_is(key, "choices")) {
            read_choices(&json, sse, keep, &said);
        } else if (weft__json_is(key, "usage") || weft__json_is(key, "meta_info")) {
            read_counts(&json, sse, &said);
        } else if (weft__json_is(key, "text")) { /* of /generate: all of it so far */
            said.choice = true;
            if (keep != NULL) keep->len = 0;
            read_text(&json, sse, keep, &said);
        } else if (weft__json_is(key, "error") && weft__json_kind(&json) != WEFT__JSON_NULL) {
            weft__bench_fail(r, WEFT__END_ERROR_EVENT, "%.*s", (int)weft__min((int64_t)len, 190),
                             data);
            weft__json_skip(&json);
        } else {
            weft__json_skip(&json);
        }
    }
    const char *wrong = !weft__json_end(&json) ? json.error
                        : sse->done            ? "more after [DONE]"
                        : r->text.failed       ? "more than 64 MiB of text"
                        : said.completion_tokens >= 0 && said.completion_tokens < r->usage_output
                            ? "completion_tokens fell"
                            : NULL;
    if (wrong != NULL) {
        weft__bench_fail(r, WEFT__END_BAD_EVENT, "%s: %.*s", wrong,
                         (int)weft__min((int64_t)len, 150), data);
        return;
    }
    sse->finish |= said.finish;
    if (said.prompt_tokens >= 0) r->usage_prompt = said.prompt_tokens;
    if (said.completion_tokens >= 0) r->usage_output = said.completion_tokens;
    if (said.choice) add_event(r, &said, now);
}

/* ---- lines ---- */

void weft__sse_init(struct weft__sse *sse)
{
    *sse = (struct weft__sse){0};
    weft__buf_init(&sse->line, MAX_EVENT);
    weft__buf_init(&sse->data, MAX_EVENT);
    weft__buf_init(&sse->key, MAX_EVENT);
    weft__buf_init(&sse->value, MAX_EVENT);
}

void weft__sse_restart(struct weft__sse *sse)
{
    if (sse->line.failed || sse->data.failed) {
        weft__sse_free(sse);
        weft__sse_init(sse);
    }
    sse->line.len = sse->data.len = 0;
    sse->after_cr = sse->has_data = sse->done = sse->finish = false;
}

void weft__sse_free(struct weft__sse *sse)
{
    weft__buf_free(&sse->line);
    weft__buf_free(&sse->data);
    weft__buf_free(&sse->key);
    weft__buf_free(&sse->value);
}

/* A line without its end. Comments and fields other than data are passed over. */
static void take_line(struct weft__sse *sse, struct weft__bench_request *r, const char *line,
                      size_t len, uint64_t now, bool keep_text)
{
    if (len == 0) {
        if (sse->has_data) take_event(sse, r, now, keep_text);
        sse->has_data = false;
        sse->data.len = 0;
        return;
    }
    if (line[0] != ':') r->last_line_ns = now;
    if (len < 5 || memcmp(line, "data:", 5) != 0) return;
    size_t skip = len > 5 && line[5] == ' ' ? 6 : 5;
    if (sse->has_data) weft__buf_append(&sse->data, "\n", 1);
    weft__buf_append(&sse->data, line + skip, len - skip);
    sse->has_data = true;
}

/* Lines end with LF, CR LF or CR, which may come in two pieces. */
void weft__sse_feed(struct weft__sse *sse, struct weft__bench_request *r, const char *bytes,
                    size_t len, uint64_t now, bool keep_text)
{
    const char *at = bytes, *end = bytes + len;
    while (at < end && r->end == WEFT__END_OK) {
        if (sse->after_cr && *at == '\n') at++;
        sse->after_cr = false;
        const char *stop = at;
        while (stop < end && *stop != '\n' && *stop != '\r') stop++;
        if (stop == end) {
            weft__buf_append(&sse->line, at, (size_t)(end - at));
            break;
        }
        if (sse->line.len > 0) {
            weft__buf_append(&sse->line, at, (size_t)(stop - at));
            take_line(sse, r, sse->line.data, sse->line.len, now, keep_text);
            sse->line.len = 0;
        } else {
            take_line(sse, r, at, (size_t)(stop - at), now, keep_text);
        }
        sse->after_cr = *stop == '\r';
        at = stop + 1;
    }
    if (sse->line.failed || sse->data.failed)
        weft__bench_fail(r, WEFT__END_BAD_EVENT, "an event of more than %d MiB", MAX_EVENT >> 20);
}
