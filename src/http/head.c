/* HTTP/1.1 as bytes: request heads and chunked bodies. Functions of their input alone. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "private.h"

static const char *const method_names[] = {
#define X(name) #name,
    WEFT__METHODS(X)
#undef X
};

const char *weft__method_name(enum weft__method method) { return method_names[method]; }

size_t weft__head_size(const char *data, size_t len)
{
    const char *end = len > 0 ? memmem(data, len, "\r\n\r\n", 4) : NULL;
    return end != NULL ? (size_t)(end - data) + 4 : 0;
}

static bool is_token_char(int c) { return isalnum(c) || (c != 0 && strchr("!#$%&'*+-.^_`|~", c)); }

static bool equals(struct weft__slice s, const char *text)
{
    return s.len == strlen(text) && strncasecmp(s.data, text, s.len) == 0;
}

/* Whether the comma-separated list holds the word. */
static bool lists(struct weft__slice list, const char *word)
{
    const char *at = list.data, *end = list.data + list.len;
    while (at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at)), *stop = comma ? comma : end;
        while (at < stop && (*at == ' ' || *at == '\t')) at++;
        const char *last = stop;
        while (last > at && (last[-1] == ' ' || last[-1] == '\t')) last--;
        if (equals((struct weft__slice){at, (size_t)(last - at)}, word)) return true;
        at = stop + 1;
    }
    return false;
}

static int take_length(struct weft__head *head, struct weft__slice value)
{
    uint64_t length = 0;
    if (value.len == 0 || value.len > 18) return 400;
    for (size_t i = 0; i < value.len; i++) {
        if (!isdigit((unsigned char)value.data[i])) return 400;
        length = length * 10 + (uint64_t)(value.data[i] - '0');
    }
    /* Two lengths that differ are how requests are smuggled past a proxy. */
    if (head->has_length && head->length != length) return 400;
    head->has_length = true;
    head->length = length;
    return 0;
}

static int refuse_host(struct weft__head *head)
{
    head->why = "a request of HTTP/1.1 has one Host header with a valid value";
    return 400;
}

/* RFC 9112, 3.2: never two, since a proxy may go by the other one. It may be empty. */
static int take_host(struct weft__head *head, struct weft__slice value)
{
    if (head->has_host) return refuse_host(head);
    head->has_host = true;
    for (size_t i = 0; i < value.len; i++)
        if (!isalnum((unsigned char)value.data[i]) &&
            strchr("-._~!$&'()*+,;=%[]:", value.data[i]) == NULL)
            return refuse_host(head);
    return 0;
}

static int take_header(struct weft__head *head, struct weft__slice name, struct weft__slice value)
{
    if (equals(name, "host")) return take_host(head, value);
    if (equals(name, "content-length")) return take_length(head, value);
    if (equals(name, "transfer-encoding")) {
        if (head->chunked || !equals(value, "chunked")) return 501;
        head->chunked = true;
    } else if (equals(name, "connection")) {
        if (lists(value, "close")) head->keep_alive = false;
        if (lists(value, "keep-alive") && head->minor == 0) head->keep_alive = true;
    } else if (equals(name, "expect")) {
        if (!equals(value, "100-continue")) return 417;
        head->expect = true;
    } else if (equals(name, "authorization")) {
        head->authorization = value;
    } else if (equals(name, "x-request-id")) {
        head->request_id = value;
    } else if (equals(name, "x-api-key")) {
        head->api_key = value;
    }
    return 0;
}

static int parse_header(struct weft__head *head, const char *line, size_t len)
{
    const char *colon = memchr(line, ':', len);
    if (colon == NULL || colon == line) return 400; /* also refuses folded lines */
    for (const char *c = line; c < colon; c++)
        if (!is_token_char((unsigned char)*c)) return 400;
    const char *value = colon + 1, *end = line + len;
    while (value < end && (*value == ' ' || *value == '\t')) value++;
    while (end > value && (end[-1] == ' ' || end[-1] == '\t')) end--;
    for (const char *c = value; c < end; c++)
        if ((unsigned char)*c < ' ' && *c != '\t') return 400;
    return take_header(head, (struct weft__slice){line, (size_t)(colon - line)},
                       (struct weft__slice){value, (size_t)(end - value)});
}

static int parse_request_line(struct weft__head *head, const char *line, size_t len)
{
    const char *space = memchr(line, ' ', len), *end = line + len;
    if (space == NULL || space == line) return 400;
    const char *target = space + 1, *last = memchr(target, ' ', (size_t)(end - target));
    if (last == NULL || last == target) return 400;
    if (end - last != 9 || memcmp(last, " HTTP/1.", 8) != 0)
        return end - last == 9 && memcmp(last, " HTTP/", 6) == 0 ? 505 : 400;
    if (last[8] != '0' && last[8] != '1') return 505;
    head->minor = last[8] - '0';
    head->keep_alive = head->minor == 1;
    for (const char *c = target; c < last; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f) return 400;
    for (const char *c = line; c < space; c++)
        if (!is_token_char((unsigned char)*c)) return 400;
    head->target = (struct weft__slice){target, (size_t)(last - target)};
    head->method = WEFT__METHOD_OTHER;
    for (int m = 0; m < WEFT__METHOD_OTHER; m++)
        if (strlen(method_names[m]) == (size_t)(space - line) &&
            memcmp(line, method_names[m], (size_t)(space - line)) == 0)
            head->method = (enum weft__method)m;
    return 0;
}

int weft__head_parse(const char *data, size_t size, struct weft__head *head)
{
    *head = (struct weft__head){0};
    const char *at = data, *end = data + size - 2; /* without the empty line */
    int status = 0, lines = 0;
    while (status == 0 && at < end) {
        const char *stop = memmem(at, (size_t)(end - at), "\r\n", 2);
        size_t len = (size_t)(stop - at);
        if (memchr(at, '\n', len) != NULL || memchr(at, '\0', len) != NULL) return 400;
        if (lines++ == 0)
            status = parse_request_line(head, at, len);
        else
            status = parse_header(head, at, len);
        at = stop + 2;
    }
    if (lines > WEFT__HEADERS_MAX) return 431;
    if (status == 0 && head->chunked && head->has_length) status = 400;
    if (status == 0 && head->chunked && head->minor == 0) status = 400;
    if (status == 0 && head->minor == 1 && !head->has_host) status = refuse_host(head);
    return status;
}

/* Clients that take this server for a proxy name the whole address. */
static struct weft__slice without_origin(struct weft__slice target)
{
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < WEFT__COUNT(schemes); i++) {
        size_t host = strlen(schemes[i]), at = host;
        if (target.len <= host || strncasecmp(target.data, schemes[i], host) != 0) continue;
        while (at < target.len && target.data[at] != '/' && target.data[at] != '?') at++;
        if (at == target.len) return (struct weft__slice){"/", 1};
        if (at > host) return (struct weft__slice){target.data + at, target.len - at};
    }
    return target;
}

bool weft__path_decode(struct weft__slice target, char out[WEFT__PATH_MAX],
                       struct weft__slice *query)
{
    size_t len = 0;
    target = without_origin(target);
    const char *mark = memchr(target.data, '?', target.len);
    size_t path = mark != NULL ? (size_t)(mark - target.data) : target.len;
    *query = mark != NULL ? (struct weft__slice){mark + 1, target.len - path - 1}
                          : (struct weft__slice){"", 0};
    for (size_t i = 0; i < path; i++) {
        char c = target.data[i];
        if (c == '%') {
            char hex[3] = {0};
            if (i + 2 >= path) return false;
            memcpy(hex, target.data + i + 1, 2);
            if (!isxdigit((unsigned char)hex[0]) || !isxdigit((unsigned char)hex[1])) return false;
            c = (char)strtol(hex, NULL, 16);
            i += 2;
        }
        if (c == '\0' || len + 1 >= WEFT__PATH_MAX) return false;
        out[len++] = c;
    }
    while (len > 1 && out[len - 1] == '/') len--; /* a trailing slash does not matter */
    out[len] = '\0';
    return len > 0 && out[0] == '/';
}

/* ---- chunked bodies ---- */

static int chunk_line(struct weft__chunked *c, const char *line, size_t len)
{
    size_t digits = 0;
    uint64_t size = 0;
    while (digits < len && isxdigit((unsigned char)line[digits])) {
        int d = line[digits] <= '9' ? line[digits] - '0' : (line[digits] | 32) - 'a' + 10;
        if (digits++ == 12) return 400;
        size = size * 16 + (uint64_t)d;
    }
    if (digits == 0) return 400;
    if (digits < len && line[digits] != ';' && line[digits] != ' ') return 400;
    c->left = size;
    c->state = size > 0 ? WEFT__CHUNK_DATA : WEFT__CHUNK_TRAILER;
    return 0;
}

int weft__chunked_feed(struct weft__chunked *c, const char *data, size_t len, size_t *used,
                       struct weft__buf *body)
{
    enum { LINE_MAX_BYTES = 4096 };
    size_t at = 0;
    int status = 0;
    while (status == 0 && c->state != WEFT__CHUNK_DONE) {
        if (c->state == WEFT__CHUNK_DATA) {
            size_t n = len - at < c->left ? len - at : (size_t)c->left;
            if (n == 0) break;
            if (body->len + c->left > body->max) status = 413;
            if (status == 0) weft__buf_append(body, data + at, n);
            at += n;
            c->left -= n;
            if (c->left == 0) c->state = WEFT__CHUNK_END;
            continue;
        }
        const char *line = data + at, *stop = memchr(line, '\n', len - at);
        if (stop == NULL) {
            if (len - at > LINE_MAX_BYTES) status = 400;
            break;
        }
        size_t size = (size_t)(stop - line);
        at += size + 1;
        if (size == 0 || line[size - 1] != '\r')
            status = 400;
        else if (c->state == WEFT__CHUNK_SIZE)
            status = chunk_line(c, line, size - 1);
        else if (c->state == WEFT__CHUNK_END && size == 1)
            c->state = WEFT__CHUNK_SIZE;
        else if (c->state == WEFT__CHUNK_END)
            status = 400;
        else if (size == 1)
            c->state = WEFT__CHUNK_DONE;
        else if (++c->trailers > WEFT__HEADERS_MAX)
            status = 431;
    }
    *used = at;
    return status == 0 && body->failed ? 413 : status;
}
