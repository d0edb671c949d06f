/* Connections. One request at a time is read, answered and done with; what a client sends ahead
 * waits in `in`, up to a limit. Reading goes on while a request is answered, since the end of the
 * input is how a client that left is noticed. Writes go straight to the socket; only what it does
 * not take waits in `out`. */
#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "private.h"

enum { READ_MAX = 64 << 10, SECOND = 1000000000 };

static uint64_t after_s(uint64_t seconds) { return weft__now_ns() + seconds * SECOND; }

/* ---- life ---- */

static void on_readable(evutil_socket_t fd, short what, void *arg);
static void on_writable(evutil_socket_t fd, short what, void *arg);

static void start_waiting(struct weft__conn *conn)
{
    conn->state = WEFT__CONN_HEAD;
    conn->deadline_ns = after_s(WEFT__IDLE_S);
    conn->status = 0;
    conn->error = NULL;
    conn->request_id[0] = '\0';
}

static void drop_body(struct weft__conn *conn)
{
    conn->server->body_bytes -= (int64_t)conn->body.len;
    weft__buf_free(&conn->body);
}

void weft__conn_open(struct weft__server *server, evutil_socket_t fd, const char *peer)
{
    static const int on = 1, send_buffer = 256 << 10;
    struct weft__conn *conn = calloc(1, sizeof *conn);
    if (conn != NULL) {
        conn->read_event = event_new(server->base, fd, EV_READ | EV_PERSIST, on_readable, conn);
        conn->write_event = event_new(server->base, fd, EV_WRITE | EV_PERSIST, on_writable, conn);
    }
    if (conn == NULL || conn->read_event == NULL || conn->write_event == NULL ||
        event_add(conn->read_event, NULL) != 0) {
        if (conn != NULL && conn->read_event != NULL) event_free(conn->read_event);
        if (conn != NULL && conn->write_event != NULL) event_free(conn->write_event);
        free(conn);
        (void)close(fd);
        return;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    /* The kernel would let a client fall behind by megabytes before its stream is given up. */
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
    (void)snprintf(conn->peer, sizeof conn->peer, "%s", peer);
    conn->server = server;
    conn->fd = fd;
    weft__buf_init(&conn->in, (size_t)WEFT__HEAD_MAX + 2 * READ_MAX);
    weft__buf_init(&conn->out, WEFT__ANSWER_MAX);
    weft__buf_init(&conn->body, (size_t)server->options.max_body);
    start_waiting(conn);
    conn->next = server->conns;
    if (conn->next != NULL) conn->next->prev = conn;
    server->conns = conn;
    server->conn_count++;
}

void weft__conn_kill(struct weft__conn *conn)
{
    struct weft__server *server = conn->server;
    if (conn->state == WEFT__CONN_DEAD) return;
    conn->state = WEFT__CONN_DEAD;
    if (conn->call != NULL || conn->reading != NULL) {
        server->metrics.disconnects++;
        conn->status = 499; /* in the log, as nginx has it */
        weft__server_log(server, conn);
    }
    if (conn->reading != NULL) conn->reading->conn = NULL;
    if (conn->call != NULL) weft__call_orphan(conn->call);
    conn->call = NULL;
    (void)event_del(conn->read_event);
    (void)event_del(conn->write_event);
    (void)close(conn->fd);
    drop_body(conn);
    weft__buf_free(&conn->in);
    weft__buf_free(&conn->out);
    if (conn->next != NULL) conn->next->prev = conn->prev;
    *(conn->prev != NULL ? &conn->prev->next : &server->conns) = conn->next;
    server->conn_count--;
    conn->next = server->graveyard; /* callers up the stack still hold it */
    server->graveyard = conn;
}

void weft__conn_free(struct weft__conn *conn)
{
    event_free(conn->read_event);
    event_free(conn->write_event);
    free(conn);
}

/* Reads on for a while, so that the answer, which is written, is not lost in a reset. */
static void say_goodbye(struct weft__conn *conn)
{
    conn->deadline_ns = after_s(WEFT__LINGER_S);
    (void)shutdown(conn->fd, SHUT_WR);
}

static void linger(struct weft__conn *conn)
{
    conn->state = WEFT__CONN_LINGER;
    conn->in.len = 0;
    if (conn->out.len == conn->out_sent) say_goodbye(conn);
}

/* ---- writing ---- */

/* Whether more than a reader may leave unread is waiting for it. */
static bool is_behind(const struct weft__conn *conn)
{
    return conn->out.len - conn->out_sent > WEFT__PENDING_MAX;
}

static void process(struct weft__conn *conn);

static void wrote_all(struct weft__conn *conn)
{
    conn->out.len = conn->out_sent = 0;
    conn->write_deadline_ns = 0;
    if (conn->out.cap > 2 * WEFT__PENDING_MAX) weft__buf_free(&conn->out);
    (void)event_del(conn->write_event);
    if (conn->state == WEFT__CONN_LINGER) say_goodbye(conn);
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    struct weft__conn *conn = arg;
    (void)fd;
    (void)what;
    ssize_t n = send(conn->fd, conn->out.data + conn->out_sent, conn->out.len - conn->out_sent,
                     MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        weft__conn_kill(conn);
        return;
    }
    conn->out_sent += (size_t)n;
    conn->write_deadline_ns = after_s(WEFT__STALL_S);
    if (conn->out_sent == conn->out.len) wrote_all(conn);
    if (is_behind(conn)) return;
    /* On with the requests that waited for this. */
    if (event_add(conn->read_event, NULL) != 0)
        weft__conn_kill(conn);
    else
        process(conn);
}

/* All pieces in one call. What the socket does not take is kept. */
static void write_pieces(struct weft__conn *conn, struct iovec *piece, int pieces)
{
    if (conn->state == WEFT__CONN_DEAD) return;
    size_t sent = 0;
    if (conn->out.len == 0) {
        const struct msghdr message = {.msg_iov = piece, .msg_iovlen = (size_t)pieces};
        ssize_t n = sendmsg(conn->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR) {
            weft__conn_kill(conn);
            return;
        }
        if (n > 0) sent = (size_t)n;
    }
    if (conn->out_sent > 0 && conn->out_sent * 2 > conn->out.len) {
        conn->out.len -= conn->out_sent;
        memmove(conn->out.data, conn->out.data + conn->out_sent, conn->out.len);
        conn->out_sent = 0;
    }
    for (int i = 0; i < pieces; i++) {
        size_t skip = sent < piece[i].iov_len ? sent : piece[i].iov_len;
        sent -= skip;
        if (skip < piece[i].iov_len)
            weft__buf_append(&conn->out, (char *)piece[i].iov_base + skip, piece[i].iov_len - skip);
    }
    size_t pending = conn->out.len - conn->out_sent;
    if (conn->out.failed || (conn->streaming && is_behind(conn)) ||
        (pending > 0 && event_add(conn->write_event, NULL) != 0))
        weft__conn_kill(conn);
    else if (pending > 0 && conn->write_deadline_ns == 0)
        conn->write_deadline_ns = after_s(WEFT__STALL_S);
}

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } reasons[] = {
        {200, "OK"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {413, "Content Too Large"},
        {417, "Expectation Failed"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < WEFT__COUNT(reasons); i++)
        if (reasons[i].status == status) return reasons[i].text;
    return "Unknown";
}

static void put_head(struct weft__conn *conn, struct weft__buf *out, int status, const char *type,
                     const char *headers)
{
    char date[64];
    time_t now = time(NULL);
    struct tm tm;
    (void)gmtime_r(&now, &tm);
    (void)strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    conn->status = status;
    weft__buf_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, reason(status), date);
    if (type != NULL) weft__buf_printf(out, "Content-Type: %s\r\n", type);
    weft__buf_printf(out, "X-Request-Id: %s\r\nAccess-Control-Allow-Origin: *\r\n",
                     conn->request_id);
    if (conn->close_after)
        weft__buf_puts(out, "Connection: close\r\n");
    else if (conn->minor == 0)
        weft__buf_puts(out, "Connection: keep-alive\r\n");
    weft__buf_puts(out, headers);
}

/* The answer is written: on to the next request. */
static void answered(struct weft__conn *conn)
{
    if (conn->state == WEFT__CONN_DEAD) return;
    weft__server_log(conn->server, conn);
    conn->call = NULL;
    conn->streaming = false;
    drop_body(conn);
    if (conn->close_after)
        linger(conn);
    else
        start_waiting(conn);
    if (!conn->processing) process(conn);
}

void weft__respond(struct weft__conn *conn, int status, const char *type, const char *headers,
                   const struct weft__slice body)
{
    struct weft__buf head;
    weft__buf_init(&head, 16384);
    if (conn->server->draining) conn->close_after = true;
    put_head(conn, &head, status, type, headers);
    if (status != 204) weft__buf_printf(&head, "Content-Length: %zu\r\n", body.len);
    weft__buf_puts(&head, "\r\n");
    size_t sent = conn->method == WEFT__METHOD_HEAD ? 0 : body.len;
    struct iovec piece[2] = {{.iov_base = head.data, .iov_len = head.len},
                             {.iov_base = (void *)(uintptr_t)body.data, .iov_len = sent}};
    if (head.failed)
        weft__conn_kill(conn);
    else
        write_pieces(conn, piece, 2);
    weft__buf_free(&head);
    answered(conn);
}

void weft__respond_json(struct weft__conn *conn, int status, const struct weft__buf *body)
{
    if (body->failed) {
        struct weft__refusal refusal = {0};
        (void)weft__refuse(&refusal, 500, "out_of_memory", NULL,
                           "no memory for the answer, or it outgrew %d MiB",
                           WEFT__ANSWER_MAX >> 20);
        weft__respond_refusal(conn, &refusal);
        return;
    }
    weft__respond(conn, status, "application/json", "",
                  (struct weft__slice){body->data, body->len});
}

void weft__respond_refusal(struct weft__conn *conn, const struct weft__refusal *refusal)
{
    struct weft__buf body;
    char headers[128] = "";
    int status = refusal->status;
    conn->error = refusal->code;
    weft__buf_init(&body, 16384);
    weft__put_refusal(&body, refusal);
    if (status == 429 || status == 503)
        (void)snprintf(headers, sizeof headers, "Retry-After: %d\r\n", status == 429 ? 1 : 5);
    else if (status == 401)
        (void)snprintf(headers, sizeof headers, "WWW-Authenticate: Bearer\r\n");
    if (status != 408 && status != 429 && status < 503)
        (void)strncat(headers, "x-should-retry: false\r\n", sizeof headers - strlen(headers) - 1);
    conn->server->metrics.refused++;
    weft__respond(conn, status, "application/json", headers,
                  (struct weft__slice){body.data, body.len});
    weft__buf_free(&body);
}

/* ---- streams ---- */

void weft__stream_start(struct weft__conn *conn)
{
    struct weft__buf head;
    weft__buf_init(&head, 16384);
    if (conn->minor == 0) conn->close_after = true; /* its end is the connection's */
    put_head(conn, &head, 200, "text/event-stream",
             "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    weft__buf_puts(&head, conn->minor == 0 ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n");
    conn->streaming = true;
    struct iovec piece = {.iov_base = head.data, .iov_len = head.len};
    if (head.failed)
        weft__conn_kill(conn);
    else
        write_pieces(conn, &piece, 1);
    weft__buf_free(&head);
}

void weft__stream_send(struct weft__conn *conn, const struct weft__buf *events)
{
    char size[24], end[] = "\r\n";
    if (events->failed) {
        weft__conn_kill(conn);
        return;
    }
    if (events->len == 0) return;
    int len = snprintf(size, sizeof size, "%zx\r\n", events->len);
    struct iovec piece[3] = {{.iov_base = size, .iov_len = (size_t)len},
                             {.iov_base = events->data, .iov_len = events->len},
                             {.iov_base = end, .iov_len = 2}};
    if (conn->minor == 0)
        write_pieces(conn, piece + 1, 1);
    else
        write_pieces(conn, piece, 3);
}

void weft__stream_end(struct weft__conn *conn)
{
    char end[] = "0\r\n\r\n";
    struct iovec piece = {.iov_base = end, .iov_len = 5};
    if (conn->minor > 0) write_pieces(conn, &piece, 1);
    if (conn->server->draining) conn->close_after = true;
    answered(conn);
}

/* ---- reading ---- */

/* Answers what is no request: its words go by the status, unless there are better ones. */
static void refuse_http(struct weft__conn *conn, int status, const char *words)
{
    static const struct {
        int status;
        const char *code, *words;
    } known[] = {
        {400, "not_http", "the request is not HTTP/1.1 that this server understands"},
        {408, "not_in_time", "the request did not arrive in time"},
        {413, "body_too_long", "the body is longer than this server accepts"},
        {417, "unknown_expectation", "only the expectation 100-continue is known"},
        {431, "head_too_long", "the head is longer than 64 KiB or 128 lines"},
        {501, "unknown_coding", "the only transfer coding known is chunked"},
        {503, "bodies_full", "too many bodies are being received or answered; try again later"},
        {505, "unknown_version", "only HTTP/1.0 and HTTP/1.1 are spoken"},
    };
    struct weft__refusal refusal = {0};
    size_t i = WEFT__COUNT(known) - 1;
    while (i > 0 && known[i].status != status) i--;
    (void)weft__refuse(&refusal, status, known[i].code, NULL, "%s",
                       words != NULL ? words : known[i].words);
    if (conn->request_id[0] == '\0') weft__server_new_id(conn->server, conn->request_id);
    conn->close_after = true;
    conn->state = WEFT__CONN_BUSY;
    weft__respond_refusal(conn, &refusal);
}

static void take_request_id(struct weft__conn *conn, struct weft__slice id)
{
    bool good = id.len > 0 && id.len <= WEFT__REQUEST_ID_MAX;
    for (size_t i = 0; good && i < id.len; i++) good = id.data[i] > ' ' && id.data[i] < 0x7f;
    if (good) {
        memcpy(conn->request_id, id.data, id.len);
        conn->request_id[id.len] = '\0';
    } else {
        weft__server_new_id(conn->server, conn->request_id);
    }
}

static void body_done(struct weft__conn *conn)
{
    conn->state = WEFT__CONN_BUSY;
    conn->deadline_ns = 0;
    weft__route(conn);
}

/* A whole head is at the start of `in`. */
static void take_head(struct weft__conn *conn, size_t size)
{
    struct weft__head head;
    struct weft__slice query;
    conn->method = WEFT__METHOD_OTHER;
    conn->minor = 1;
    conn->received_ns = weft__now_ns();
    conn->path[0] = '\0';
    int status = weft__head_parse(conn->in.data, size, &head);
    if (status == 0 && !weft__path_decode(head.target, conn->path, &query)) status = 400;
    if (status == 0 && head.has_length && head.length > conn->body.max) status = 413;
    if (status != 0) {
        refuse_http(conn, status, head.why);
        return;
    }
    conn->method = head.method;
    conn->minor = head.minor;
    conn->close_after = !head.keep_alive;
    (void)snprintf(conn->query, sizeof conn->query, "%.*s", (int)weft__min((int64_t)query.len, 255),
                   query.data);
    take_request_id(conn, head.request_id);
    bool has_body = head.chunked || (head.has_length && head.length > 0);
    conn->state = WEFT__CONN_BUSY;
    conn->deadline_ns = 0;
    /* What is refused by its head alone is refused before the body comes. */
    if (has_body) conn->close_after = true;
    bool go = weft__route_check(conn, &head);
    if (conn->state == WEFT__CONN_DEAD || conn->state == WEFT__CONN_LINGER) return;
    conn->in.len -= size;
    memmove(conn->in.data, conn->in.data + size, conn->in.len);
    if (!go) return;
    conn->close_after = !head.keep_alive;
    if (!has_body) {
        body_done(conn);
        return;
    }
    conn->state = WEFT__CONN_BODY;
    conn->body_chunked = head.chunked;
    conn->body_left = head.length;
    conn->chunked = (struct weft__chunked){0};
    conn->deadline_ns = after_s(WEFT__STALL_S);
    conn->body_deadline_ns = after_s(WEFT__BODY_S);
    if (head.expect && conn->in.len == 0) {
        char text[] = "HTTP/1.1 100 Continue\r\n\r\n";
        struct iovec piece = {.iov_base = text, .iov_len = sizeof text - 1};
        write_pieces(conn, &piece, 1);
    }
}

static void take_body(struct weft__conn *conn)
{
    size_t used, before = conn->body.len;
    int status = 0;
    bool done;
    if (conn->body_chunked) {
        status =
            weft__chunked_feed(&conn->chunked, conn->in.data, conn->in.len, &used, &conn->body);
        done = conn->chunked.state == WEFT__CHUNK_DONE;
    } else {
        used = conn->in.len < conn->body_left ? conn->in.len : (size_t)conn->body_left;
        weft__buf_append(&conn->body, conn->in.data, used);
        conn->body_left -= used;
        if (conn->body.failed) status = 413;
        done = conn->body_left == 0;
    }
    conn->server->body_bytes += (int64_t)(conn->body.len - before);
    if (status == 0 && conn->server->body_bytes > WEFT__BODIES_MAX) status = 503;
    conn->in.len -= used;
    memmove(conn->in.data, conn->in.data + used, conn->in.len);
    if (used > 0) conn->deadline_ns = after_s(WEFT__STALL_S);
    if (status != 0)
        refuse_http(conn, status, NULL);
    else if (done)
        body_done(conn);
}

/* Goes on with what was read, until it is used up, the connection is busy or its client must read
 * earlier answers first. */
static void process(struct weft__conn *conn)
{
    conn->processing = true;
    bool again = true;
    while (again && conn->in.len > 0 && !is_behind(conn)) {
        size_t before = conn->in.len;
        if (conn->state == WEFT__CONN_HEAD) {
            while (conn->in.len >= 2 && memcmp(conn->in.data, "\r\n", 2) == 0) {
                conn->in.len -= 2;
                memmove(conn->in.data, conn->in.data + 2, conn->in.len);
            }
            size_t size = weft__head_size(conn->in.data, conn->in.len);
            if (size > WEFT__HEAD_MAX || (size == 0 && conn->in.len > WEFT__HEAD_MAX))
                refuse_http(conn, 431, NULL);
            else if (size > 0)
                take_head(conn, size);
            else if (conn->in.len > 0 && conn->in.data[0] != '\r' &&
                     !isgraph((unsigned char)conn->in.data[0]))
                refuse_http(conn, 400, NULL); /* TLS, most likely, which waits for an answer, too */
        } else if (conn->state == WEFT__CONN_BODY) {
            take_body(conn);
        }
        again = conn->in.len < before;
    }
    if (conn->state == WEFT__CONN_HEAD && conn->in.len == 0)
        conn->deadline_ns = after_s(WEFT__IDLE_S);
    conn->processing = false;
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct weft__conn *conn = arg;
    char bytes[READ_MAX];
    (void)what;
    ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) { /* a client that closed its sending side is gone, too */
        weft__conn_kill(conn);
        return;
    }
    if (conn->state == WEFT__CONN_LINGER) return;
    if (conn->state == WEFT__CONN_BUSY && conn->in.len + (size_t)n > WEFT__HEAD_MAX) {
        conn->close_after = true; /* too far ahead: the connection ends with this answer */
        return;
    }
    if (conn->state == WEFT__CONN_HEAD && conn->in.len == 0)
        conn->deadline_ns = after_s(WEFT__HEAD_S);
    weft__buf_append(&conn->in, bytes, (size_t)n);
    if (is_behind(conn) && conn->in.len > WEFT__HEAD_MAX) (void)event_del(conn->read_event);
    if (conn->in.failed)
        weft__conn_kill(conn);
    else
        process(conn);
}

/* ---- time-outs ---- */

void weft__conn_sweep(struct weft__conn *conn, uint64_t now)
{
    /* Before the client has read its answers, the time to read them counts. */
    bool late = conn->out.len == 0 && conn->deadline_ns != 0 && now > conn->deadline_ns;
    if (conn->write_deadline_ns != 0 && now > conn->write_deadline_ns)
        weft__conn_kill(conn);
    else if (conn->state == WEFT__CONN_BODY && (late || now > conn->body_deadline_ns))
        refuse_http(conn, 408, NULL);
    else if (conn->state == WEFT__CONN_HEAD && late && conn->in.len > 0)
        refuse_http(conn, 408, NULL);
    else if (late && conn->state != WEFT__CONN_BUSY)
        weft__conn_kill(conn);
}
