/* The load: libcurl's multi interface on one thread, driven by epoll and one timer. */
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

enum { EPOLL_BATCH = 256, ERROR_BODY = 160 };

struct load;

struct stream {
    struct load *load;
    struct stream *next_free;
    CURL *easy;
    struct weft__bench_request *request;
    struct weft__sse sse;
    char body[ERROR_BODY + 1]; /* the beginning, for errors */
    size_t body_len;
};

struct load {
    const struct weft__bench_options *o;
    struct weft__pace pace;
    CURLM *multi;
    struct curl_slist *headers;
    int epoll, timer;
    struct stream *stream; /* [limit] */
    struct stream *free;
    int64_t limit, made;
    uint64_t curl_due_ns; /* UINT64_MAX: no timer */
    char endpoint[2048];
};

/* ---- what libcurl calls ---- */

static size_t on_bytes(char *bytes, size_t size, size_t count, void *arg)
{
    struct stream *s = arg;
    size_t len = size * count;
    uint64_t now = weft__now_ns();
    size_t room = (size_t)weft__min((int64_t)(ERROR_BODY - s->body_len), (int64_t)len);
    memcpy(s->body + s->body_len, bytes, room);
    s->body_len += room;
    if (s->request->http == 0) {
        long status = 0;
        (void)curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &status);
        s->request->http = (int)status;
    }
    if (s->request->http == 200)
        weft__sse_feed(&s->sse, s->request, bytes, len, now,
                       s->load->o->tok != NULL || s->request->then >= 0);
    /* After a malformed event the rest cannot be trusted: end the transfer. */
    return s->request->end == WEFT__END_BAD_EVENT ? 0 : len;
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
    struct load *load = arg;
    struct epoll_event event = {.data.fd = fd};
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        (void)epoll_ctl(load->epoll, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    event.events =
        ((what & CURL_POLL_IN) != 0 ? EPOLLIN : 0u) | ((what & CURL_POLL_OUT) != 0 ? EPOLLOUT : 0u);
    (void)epoll_ctl(load->epoll, known != NULL ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event);
    (void)curl_multi_assign(load->multi, fd, load);
    return 0;
}

static int on_timer(CURLM *multi, long ms, void *arg)
{
    struct load *load = arg;
    (void)multi;
    load->curl_due_ns = ms < 0 ? UINT64_MAX : weft__now_ns() + (uint64_t)ms * 1000000u;
    return 0;
}

/* ---- streams ---- */

/* What streams and single answers have in common. NULL: no memory. */
static CURL *new_easy(const char *url, struct curl_slist *headers, curl_write_callback write,
                      void *arg, long timeout_ms)
{
    CURL *easy = curl_easy_init();
    if (easy == NULL) return NULL;
    (void)curl_easy_setopt(easy, CURLOPT_URL, url);
    (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, write);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, arg);
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, timeout_ms);
    return easy;
}

static struct stream *take_stream(struct load *load)
{
    struct stream *s = load->free;
    if (s != NULL) {
        load->free = s->next_free;
        return s;
    }
    s = &load->stream[load->made];
    s->easy = new_easy(load->endpoint, load->headers, on_bytes, s, (long)load->o->timeout_s * 1000);
    if (s->easy == NULL) return NULL;
    (void)curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s);
    (void)curl_easy_setopt(s->easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    (void)curl_easy_setopt(s->easy, CURLOPT_CONNECTTIMEOUT_MS, 10000L);
    s->load = load;
    weft__sse_init(&s->sse);
    load->made++;
    return s;
}

static bool start(struct load *load, struct weft__bench_request *r)
{
    struct stream *s = take_stream(load);
    if (s == NULL) return false;
    weft__sse_restart(&s->sse);
    s->request = r;
    s->body_len = 0;
    (void)curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, r->body);
    (void)curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body_len);
    r->start_ns = weft__now_ns();
    return curl_multi_add_handle(load->multi, s->easy) == CURLM_OK;
}

/* How a transfer ended that libcurl calls finished. */
static void judge(struct stream *s, CURLcode code)
{
    struct weft__bench_request *r = s->request;
    const char *why = curl_easy_strerror(code);
    long status = 0;
    (void)curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &status);
    r->http = (int)status;
    s->body[s->body_len] = '\0';
    /* A last line without its empty line counts when it is the end mark. */
    if (code == CURLE_OK && s->sse.line.len >= 6 &&
        memcmp(s->sse.line.data + s->sse.line.len - 6, "[DONE]", 6) == 0)
        weft__sse_feed(&s->sse, r, "\n", 1, weft__now_ns(), false);
    if (code == CURLE_OK && s->sse.has_data && s->sse.data.len == 6)
        weft__sse_feed(&s->sse, r, "\n", 1, r->last_line_ns, false);
    if (code == CURLE_OPERATION_TIMEDOUT)
        weft__bench_fail(r, WEFT__END_TIMEOUT, "no end after %lld s (--timeout)",
                         (long long)s->load->o->timeout_s);
    else if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST)
        weft__bench_fail(r, WEFT__END_CONNECT, "%s: %s", s->load->endpoint, why);
    else if (status != 0 && status != 200)
        weft__bench_fail(r,
                         status / 100 == 4   ? WEFT__END_HTTP_4XX
                         : status / 100 == 5 ? WEFT__END_HTTP_5XX
                                             : WEFT__END_HTTP_OTHER,
                         "HTTP %ld: %s", status, s->body);
    else if (status == 200 && (code != CURLE_OK || (!s->sse.done && !s->sse.finish)))
        weft__bench_fail(
            r, r->events == 0 && code == CURLE_OK ? WEFT__END_NO_OUTPUT : WEFT__END_CUT,
            "after %d events%s%s%s%s", r->events, code != CURLE_OK ? ": " : "",
            code != CURLE_OK ? why : "", r->events == 0 ? ": " : "", r->events == 0 ? s->body : "");
    else if (code != CURLE_OK)
        weft__bench_fail(r, WEFT__END_TRANSPORT, "%s", why);
    else if (r->events == 0)
        weft__bench_fail(r, WEFT__END_NO_OUTPUT, "no event with output: %s", s->body);
}

static void finish(struct load *load, CURL *easy, CURLcode code)
{
    char *private = NULL;
    (void)curl_easy_getinfo(easy, CURLINFO_PRIVATE, &private);
    struct stream *s = (struct stream *)(void *)private;
    judge(s, code);
    (void)curl_multi_remove_handle(load->multi, easy);
    weft__pace_done(&load->pace, s->request);
    s->next_free = load->free;
    load->free = s;
}

/* ---- the loop ---- */

static void arm(struct load *load)
{
    uint64_t due = weft__pace_due(&load->pace);
    if (load->curl_due_ns < due) due = load->curl_due_ns;
    struct itimerspec at = {0};
    if (due != UINT64_MAX) {
        if (due == 0) due = 1; /* zero disarms */
        at.it_value = (struct timespec){.tv_sec = (time_t)(due / 1000000000u),
                                        .tv_nsec = (long)(due % 1000000000u)};
    }
    (void)timerfd_settime(load->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void wait_and_move(struct load *load)
{
    struct epoll_event event[EPOLL_BATCH];
    int running, left;
    arm(load);
    int count = epoll_wait(load->epoll, event, EPOLL_BATCH, -1);
    for (int i = 0; i < count; i++) {
        uint64_t ticks;
        if (event[i].data.fd == load->timer) {
            if (read(load->timer, &ticks, sizeof ticks) < 0) continue;
            continue;
        }
        int mask = ((event[i].events & EPOLLIN) != 0 ? CURL_CSELECT_IN : 0) |
                   ((event[i].events & EPOLLOUT) != 0 ? CURL_CSELECT_OUT : 0) |
                   ((event[i].events & (EPOLLERR | EPOLLHUP)) != 0 ? CURL_CSELECT_ERR : 0);
        (void)curl_multi_socket_action(load->multi, event[i].data.fd, mask, &running);
    }
    if (weft__now_ns() >= load->curl_due_ns) {
        load->curl_due_ns = UINT64_MAX;
        (void)curl_multi_socket_action(load->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    for (CURLMsg *m; (m = curl_multi_info_read(load->multi, &left)) != NULL;)
        if (m->msg == CURLMSG_DONE) finish(load, m->easy_handle, m->data.result);
    weft__pace_show(&load->pace);
}

/* ---- set-up ---- */

static bool add_header(struct curl_slist **headers, const char *line)
{
    struct curl_slist *grown = curl_slist_append(*headers, line);
    if (grown != NULL) *headers = grown;
    return grown != NULL;
}

/* text: "K=V" or "K: V" from --header, or NULL. */
static bool make_headers(const char *text, struct curl_slist **out)
{
    bool good = add_header(out, "Content-Type: application/json") && add_header(out, "Expect:");
    if (text == NULL) return good;
    char line[4096];
    const char *cut = strpbrk(text, "=:");
    int len = cut != NULL ? snprintf(line, sizeof line, "%.*s: %s", (int)(cut - text), text,
                                     cut + 1 + strspn(cut + 1, " "))
                          : -1;
    return good && len > 0 && len < (int)sizeof line && add_header(out, line);
}

/* The base of the URL: without the endpoint's path. */
static int base_length(const char *url)
{
    static const char *const tails[] = {
        "/v1/chat/completions", "/v1/completions", "/generate", "/v1/", "/v1", "/"};
    size_t len = strlen(url);
    for (size_t i = 0; i < WEFT__COUNT(tails); i++) {
        size_t tail = strlen(tails[i]);
        if (len > tail && strcmp(url + len - tail, tails[i]) == 0) return (int)(len - tail);
    }
    return (int)len;
}

static weft_status open_load(struct load *load, weft_error *err)
{
    static const char *const paths[] = {"/v1/completions", "/v1/chat/completions", "/generate"};
    const char *url = load->o->url;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    (void)snprintf(load->endpoint, sizeof load->endpoint, "%.*s%s", base_length(url), url,
                   paths[load->o->api]);
    load->stream = calloc((size_t)load->limit, sizeof *load->stream);
    load->multi = curl_multi_init();
    load->epoll = epoll_create1(EPOLL_CLOEXEC);
    load->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = load->timer};
    if (load->stream == NULL || load->multi == NULL || load->epoll < 0 || load->timer < 0 ||
        epoll_ctl(load->epoll, EPOLL_CTL_ADD, load->timer, &event) != 0)
        return weft__fail(err, WEFT_NO_MEMORY, "no memory or no files for %lld streams: %s",
                          (long long)load->limit, strerror(errno));
    if (!make_headers(load->o->header, &load->headers))
        return weft__fail(err, WEFT_INVALID, "--header %.100s: too long, or memory is out",
                          load->o->header);
    (void)curl_multi_setopt(load->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    (void)curl_multi_setopt(load->multi, CURLMOPT_SOCKETDATA, load);
    (void)curl_multi_setopt(load->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    (void)curl_multi_setopt(load->multi, CURLMOPT_TIMERDATA, load);
    (void)curl_multi_setopt(load->multi, CURLMOPT_MAXCONNECTS, (long)load->limit);
    (void)curl_multi_setopt(load->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    return WEFT_OK;
}

static void close_load(struct load *load)
{
    for (int64_t i = 0; i < load->made; i++) {
        (void)curl_multi_remove_handle(load->multi, load->stream[i].easy);
        curl_easy_cleanup(load->stream[i].easy);
        weft__sse_free(&load->stream[i].sse);
    }
    if (load->multi != NULL) (void)curl_multi_cleanup(load->multi);
    curl_slist_free_all(load->headers);
    free(load->stream);
    if (load->epoll >= 0) (void)close(load->epoll);
    if (load->timer >= 0) (void)close(load->timer);
}

weft_status weft__bench_load(const struct weft__bench_options *o, struct weft__bench_run *run,
                             weft_error *err)
{
    struct load load = {.o = o,
                        .limit = weft__pace_limit(o, run),
                        .epoll = -1,
                        .timer = -1,
                        .curl_due_ns = UINT64_MAX};
    struct weft__bench_request *r;
    weft_status status = open_load(&load, err);
    if (status == WEFT_OK) status = weft__pace_begin(o, run, &load.pace, err);
    while (status == WEFT_OK && !weft__pace_over(&load.pace)) {
        while (status == WEFT_OK && (r = weft__pace_take(&load.pace)) != NULL)
            if (!start(&load, r))
                status = weft__fail(err, WEFT_NO_MEMORY, "no memory for stream %lld",
                                    (long long)load.made + 1);
        if (status == WEFT_OK) wait_and_move(&load);
    }
    weft__pace_end(&load.pace);
    close_load(&load);
    return status;
}

/* ---- single answers ---- */

static size_t append_bytes(char *bytes, size_t size, size_t count, void *arg)
{
    struct weft__buf *buf = arg;
    weft__buf_append(buf, bytes, size * count);
    return buf->failed ? 0 : size * count;
}

weft_status weft__bench_get(const struct weft__bench_options *o, const char *path, long timeout_ms,
                            struct weft__buf *body, long *http, weft_error *err)
{
    char url[2048];
    struct curl_slist *headers = NULL;
    CURL *easy = NULL;
    weft_status status = WEFT_OK;
    (void)snprintf(url, sizeof url, "%.*s%s", base_length(o->url), o->url, path);
    if (make_headers(o->header, &headers))
        easy = new_easy(url, headers, append_bytes, body, timeout_ms);
    CURLcode code = easy != NULL ? curl_easy_perform(easy) : CURLE_OK;
    if (easy == NULL)
        status = weft__fail(err, WEFT_INVALID, "--header: too long, or memory is out");
    else if (code != CURLE_OK)
        status = weft__fail(err, WEFT_IO, "%.200s: %s", url, curl_easy_strerror(code));
    else
        (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, http);
    curl_slist_free_all(headers);
    curl_easy_cleanup(easy);
    return status;
}

weft_status weft__bench_model(const struct weft__bench_options *o, char **out, weft_error *err)
{
    struct weft__buf body;
    long http = 0;
    weft__buf_init(&body, 16 << 20);
    weft_status status = weft__bench_get(o, "/v1/models", 10000, &body, &http, err);
    if (status == WEFT_OK) {
        json_t *answer = body.data != NULL ? json_loadb(body.data, body.len, 0, NULL) : NULL;
        const char *id = json_string_value(
            json_object_get(json_array_get(json_object_get(answer, "data"), 0), "id"));
        *out = http == 200 && id != NULL ? strdup(id) : NULL;
        json_decref(answer);
        if (*out == NULL)
            status = weft__fail(err, WEFT_FORMAT,
                                "%.200s/v1/models names no model (HTTP %ld): give --model, or "
                                "--header \"Authorization: Bearer KEY\" if a key is wanted",
                                o->url, http);
    }
    weft__buf_free(&body);
    return status;
}
