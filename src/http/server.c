/* The loop: listening, waking up for notes, time-outs, draining, the log. */
#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "private.h"

enum { BACKLOG = 4096, SWEEP_MS = 250, SECOND = 1000000000, FAREWELL_S = 5 };

/* ---- ids, log ---- */

void weft__server_new_id(struct weft__server *server, char out[33])
{
    uint64_t n = ++server->id_state;
    (void)snprintf(out, 33, "%016llx%016llx",
                   (unsigned long long)weft__hash(&n, sizeof n, server->started_ns),
                   (unsigned long long)weft__hash(&n, sizeof n, ~server->started_ns));
}

static void put_time(struct weft__buf *out)
{
    struct timespec now;
    struct tm tm;
    char text[64];
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &tm);
    (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
    weft__buf_printf(out, "%s.%03ldZ", text, now.tv_nsec / 1000000);
}

struct counts {
    int64_t prompt, cached, generated;
    double ttft_s; /* negative: no token came */
};

static struct counts counts_of(const struct weft__call *call)
{
    struct counts c = {.ttft_s = -1};
    for (int p = 0; p < call->parts; p++) {
        c.prompt += (int64_t)call->part[p].prompt.ids.len;
        c.cached += call->part[p].cached_tokens;
        for (int s = 0; s < call->ask.samples; s++) {
            const struct weft__choice *choice = &call->part[p].choice[s];
            double at = (double)(choice->first_ns - call->received_ns) / 1e9;
            c.generated += choice->told_tokens;
            if (choice->first_ns > 0 && (c.ttft_s < 0 || at < c.ttft_s)) c.ttft_s = at;
        }
    }
    return c;
}

/* One line a request. */
void weft__server_log(struct weft__server *server, const struct weft__conn *conn)
{
    struct weft__buf line;
    bool json = server->options.json_log;
    double seconds = conn->received_ns > 0 ? (double)(weft__now_ns() - conn->received_ns) / 1e9 : 0;
    if (server->options.log == NULL) return;
    weft__buf_init(&line, 32768);
    weft__buf_puts(&line, json ? "{\"time\":\"" : "");
    put_time(&line);
    weft__buf_puts(&line, json ? "\",\"event\":\"request\",\"peer\":" : " request peer=");
    weft__put_cstring(&line, conn->peer);
    weft__buf_puts(&line, json ? ",\"request_id\":" : " id=");
    weft__put_cstring(&line, conn->request_id);
    weft__buf_printf(&line, json ? ",\"method\":\"%s\",\"path\":" : " %s ",
                     weft__method_name(conn->method));
    weft__put_cstring(&line, conn->path);
    weft__buf_printf(&line, json ? ",\"status\":%d,\"seconds\":%.6f" : " status=%d seconds=%.6f",
                     conn->status, seconds);
    if (conn->error != NULL)
        weft__buf_printf(&line, json ? ",\"error\":\"%s\"" : " error=%s", conn->error);
    if (conn->call != NULL) {
        struct counts c = counts_of(conn->call);
        weft__buf_printf(&line,
                         json ? ",\"prompt_tokens\":%lld,\"cached_tokens\":%lld,"
                                "\"completion_tokens\":%lld"
                              : " prompt=%lld cached=%lld completion=%lld",
                         (long long)c.prompt, (long long)c.cached, (long long)c.generated);
        if (c.ttft_s >= 0)
            weft__buf_printf(&line, json ? ",\"ttft_seconds\":%.6f" : " ttft=%.6f", c.ttft_s);
    }
    weft__buf_puts(&line, json ? "}" : "");
    if (!line.failed) server->options.log(server->options.ctx, line.data, line.len);
    weft__buf_free(&line);
}

void weft__log_event(const struct weft__server_options *options, const char *event,
                     const char *text)
{
    struct weft__buf line;
    if (options->log == NULL) return;
    weft__buf_init(&line, 32768);
    weft__buf_puts(&line, options->json_log ? "{\"time\":\"" : "");
    put_time(&line);
    if (options->json_log) {
        weft__buf_printf(&line, "\",\"event\":\"%s\",\"text\":", event);
        weft__put_cstring(&line, text);
        weft__buf_puts(&line, "}");
    } else {
        weft__buf_printf(&line, " %s %s", event, text);
    }
    if (!line.failed) options->log(options->ctx, line.data, line.len);
    weft__buf_free(&line);
}

/* ---- state ---- */

bool weft__server_able(const struct weft__server *server, struct weft__refusal *refusal)
{
    struct weft__engine_status status;
    if (server->engine == NULL)
        return weft__refuse(refusal, 503, "loading", NULL, "the model is being loaded");
    if (server->draining)
        return weft__refuse(refusal, 503, "draining", NULL, "the server is shutting down");
    weft__engine_status(server->engine, &status);
    if (status.failed)
        return weft__refuse(refusal, 503, "engine_dead", NULL, "the engine has failed: %s",
                            status.error.text);
    return true;
}

void weft__server_wake(struct weft__server *server)
{
    static const uint64_t one = 1;
    /* It can fail only when the counter is full, and then the loop is awake already. */
    ssize_t written = write(server->wake_fd, &one, sizeof one);
    (void)written;
}

void weft__server_ready(struct weft__server *server, weft_engine *engine)
{
    atomic_store(&server->opened, engine);
    weft__server_wake(server);
}

void weft__server_quit(struct weft__server *server)
{
    atomic_store(&server->quit, true);
    weft__server_wake(server);
}

static void end_if_drained(struct weft__server *server)
{
    if (!server->draining || server->calls != NULL) return;
    if (server->reader.count > 0 && !server->aborted) return;
    for (const struct weft__conn *conn = server->conns; conn != NULL; conn = conn->next)
        if (conn->out.len > 0 || conn->state == WEFT__CONN_BODY) return;
    (void)event_base_loopbreak(server->base);
}

/* ---- events ---- */

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct weft__server *server = arg;
    uint64_t count;
    (void)what;
    ssize_t got = read(fd, &count, sizeof count);
    (void)got;
    if (server->engine == NULL) {
        server->engine = atomic_load(&server->opened);
        if (server->engine != NULL) {
            weft__route_prepare(server);
            weft__metrics_tick(server);
        }
    }
    if (atomic_load(&server->quit)) {
        (void)event_base_loopbreak(server->base);
        return;
    }
    weft__reader_take(&server->reader);
    weft__calls_take_notes(server);
    end_if_drained(server);
}

static void give_up_drain(struct weft__server *server)
{
    struct weft__refusal refusal;
    (void)weft__refuse(&refusal, 503, "draining", NULL,
                       "the server shut down before this request was done");
    server->aborted = true;
    weft__log_event(&server->options, "drain", "time is over: ending what still runs");
    for (struct weft__call *call = server->calls, *next; call != NULL; call = next) {
        next = call->next;
        weft__call_fail(call, &refusal);
    }
}

/* A failed engine does not come back. Clients hear why for a while, then the server ends, so that
 * whoever supervises it starts another. */
static void look_at_engine(struct weft__server *server, uint64_t now)
{
    struct weft__engine_status status;
    if (server->engine == NULL) return;
    if (server->failed_ns != 0) {
        if (now - server->failed_ns > (uint64_t)FAREWELL_S * SECOND)
            (void)event_base_loopbreak(server->base);
        return;
    }
    weft__engine_status(server->engine, &status);
    if (!status.failed) return;
    server->failed_ns = now;
    weft__log_event(&server->options, "failed", status.error.text);
}

static void on_sweep(evutil_socket_t fd, short what, void *arg)
{
    struct weft__server *server = arg;
    uint64_t now = weft__now_ns();
    (void)fd;
    (void)what;
    while (server->graveyard != NULL) {
        struct weft__conn *conn = server->graveyard;
        server->graveyard = conn->next;
        weft__conn_free(conn);
    }
    for (struct weft__conn *conn = server->conns, *next; conn != NULL; conn = next) {
        next = conn->next;
        weft__conn_sweep(conn, now);
    }
    weft__calls_ping(server, now);
    if (now >= server->next_tick_ns) {
        server->next_tick_ns = now + SECOND;
        weft__metrics_tick(server);
        look_at_engine(server, now);
    }
    if (!server->listening) {
        (void)evconnlistener_enable(server->listener);
        server->listening = true;
    }
    if (server->draining && server->drain_deadline_ns != 0 && now > server->drain_deadline_ns &&
        !server->aborted)
        give_up_drain(server);
    /* Bodies under way and clients that read slowly get no more time than that. */
    if (server->aborted && now > server->drain_deadline_ns + (uint64_t)FAREWELL_S * SECOND)
        (void)event_base_loopbreak(server->base);
    end_if_drained(server);
}

static void on_signal(evutil_socket_t signal, short what, void *arg)
{
    struct weft__server *server = arg;
    (void)signal;
    (void)what;
    if (server->draining) {
        server->aborted = true;
        (void)event_base_loopbreak(server->base);
        return;
    }
    server->draining = true;
    server->drain_deadline_ns =
        weft__now_ns() + (uint64_t)server->options.drain_timeout_s * SECOND + 1;
    weft__log_event(&server->options, "drain", "no new requests; waiting for those that run");
    end_if_drained(server);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address,
                      int len, void *arg)
{
    struct weft__server *server = arg;
    char host[48] = "?", port[8] = "?", peer[64];
    (void)listener;
    if (server->conn_count >= WEFT__CONNECTIONS_MAX) {
        (void)close(fd);
        return;
    }
    (void)getnameinfo(address, (socklen_t)len, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    (void)snprintf(peer, sizeof peer, "%s:%s", host, port);
    weft__conn_open(server, fd, peer);
}

/* Out of descriptors: accepting again at once would spin, so the next sweep does. */
static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    struct weft__server *server = arg;
    weft__log_event(&server->options, "accept", strerror(errno));
    (void)evconnlistener_disable(listener);
    server->listening = false;
}

/* ---- open, run, close ---- */

static weft_status listen_at(struct weft__server *server, weft_error *err)
{
    const struct weft__server_options *o = &server->options;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    char port[16];
    (void)snprintf(port, sizeof port, "%d", o->port);
    int failure = getaddrinfo(o->host, port, &hints, &list);
    if (failure != 0)
        return weft__fail(err, WEFT_INVALID, "--host %.200s: %s", o->host, gai_strerror(failure));
    for (struct addrinfo *at = list; at != NULL && server->listener == NULL; at = at->ai_next)
        server->listener = evconnlistener_new_bind(server->base, on_accept, server,
                                                   LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC |
                                                       LEV_OPT_REUSEABLE,
                                                   BACKLOG, at->ai_addr, (int)at->ai_addrlen);
    int why = errno;
    freeaddrinfo(list);
    if (server->listener == NULL)
        return weft__fail(err, WEFT_IO, "cannot listen at %.200s port %d: %s", o->host, o->port,
                          strerror(why));
    evconnlistener_set_error_cb(server->listener, on_accept_error);
    server->listening = true;
    struct sockaddr_storage name = {0};
    socklen_t size = sizeof name;
    if (getsockname(evconnlistener_get_fd(server->listener), (struct sockaddr *)&name, &size) ==
            0 &&
        getnameinfo((struct sockaddr *)&name, size, NULL, 0, port, sizeof port, NI_NUMERICSERV) ==
            0)
        server->port = (int)strtol(port, NULL, 10);
    return WEFT_OK;
}

static weft_status add_events(struct weft__server *server, weft_error *err)
{
    static const struct timeval sweep = {.tv_usec = SWEEP_MS * 1000};
    server->wake_event =
        event_new(server->base, server->wake_fd, EV_READ | EV_PERSIST, on_wake, server);
    server->sweep_event = event_new(server->base, -1, EV_PERSIST, on_sweep, server);
    server->term_event = evsignal_new(server->base, SIGTERM, on_signal, server);
    server->int_event = evsignal_new(server->base, SIGINT, on_signal, server);
    if (server->wake_event == NULL || server->sweep_event == NULL || server->term_event == NULL ||
        server->int_event == NULL || event_add(server->wake_event, NULL) != 0 ||
        event_add(server->sweep_event, &sweep) != 0 || event_add(server->term_event, NULL) != 0 ||
        event_add(server->int_event, NULL) != 0)
        return weft__fail(err, WEFT_NO_MEMORY, "no memory for the event loop");
    return WEFT_OK;
}

/* One descriptor a connection: as many as the hard limit allows. */
static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

weft_status weft__server_open(const struct weft__server_options *options, struct weft__server **out,
                              weft_error *err)
{
    struct weft__server *server = calloc(1, sizeof *server);
    if (server == NULL) return weft__fail_oom(err, sizeof *server, "the server");
    server->options = *options;
    server->started = time(NULL);
    server->started_ns = weft__now_ns();
    (void)pthread_mutex_init(&server->notes.mutex, NULL);
    weft__buf_init(&server->notes.list, WEFT__NOTES_MAX);
    weft__buf_init(&server->notes.raw, WEFT__ANSWER_MAX);
    weft__buf_init(&server->notes.text, WEFT__ANSWER_MAX);
    weft__buf_init(&server->taken, WEFT__NOTES_MAX);
    weft__buf_init(&server->scratch, WEFT__ANSWER_MAX);
    weft__buf_init(&server->piece, WEFT__ANSWER_MAX);
    raise_descriptors();
    server->base = event_base_new();
    server->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    weft_status status = WEFT_OK;
    if (server->base == NULL || server->wake_fd < 0)
        status = weft__fail(err, WEFT_NO_MEMORY, "no event loop: %s", strerror(errno));
    if (status == WEFT_OK) status = listen_at(server, err);
    if (status == WEFT_OK) status = add_events(server, err);
    if (status == WEFT_OK) status = weft__reader_open(server, err);
    if (status != WEFT_OK) {
        weft__server_close(server);
        return status;
    }
    *out = server;
    return WEFT_OK;
}

bool weft__server_loaded(const struct weft__server *server)
{
    return atomic_load(&server->opened) != NULL;
}

int weft__server_port(const struct weft__server *server) { return server->port; }

bool weft__server_run(struct weft__server *server)
{
    (void)event_base_dispatch(server->base);
    return !server->aborted;
}

/* The engine's thread must be done with the calls before they are freed. */
static void end_calls(struct weft__server *server)
{
    for (struct weft__call *call = server->calls; call != NULL; call = call->next)
        weft__call_abort(call);
    while (server->calls != NULL) {
        const struct timespec pause = {.tv_nsec = 1000000};
        weft__calls_take_notes(server);
        if (server->calls != NULL) (void)nanosleep(&pause, NULL);
    }
}

static void free_event(struct event *event)
{
    if (event != NULL) event_free(event);
}

void weft__server_close(struct weft__server *server)
{
    if (server == NULL) return;
    while (server->conns != NULL) weft__conn_kill(server->conns);
    weft__reader_close(&server->reader);
    end_calls(server);
    while (server->graveyard != NULL) {
        struct weft__conn *conn = server->graveyard;
        server->graveyard = conn->next;
        weft__conn_free(conn);
    }
    if (server->listener != NULL) evconnlistener_free(server->listener);
    free_event(server->wake_event);
    free_event(server->sweep_event);
    free_event(server->term_event);
    free_event(server->int_event);
    if (server->base != NULL) event_base_free(server->base);
    if (server->wake_fd >= 0) (void)close(server->wake_fd);
    weft__buf_free(&server->notes.list);
    weft__buf_free(&server->notes.raw);
    weft__buf_free(&server->notes.text);
    weft__buf_free(&server->taken);
    weft__buf_free(&server->scratch);
    weft__buf_free(&server->piece);
    free(server->template);
    free(server->mask);
    weft__constraints_free(server);
    (void)pthread_mutex_destroy(&server->notes.mutex);
    free(server);
}
