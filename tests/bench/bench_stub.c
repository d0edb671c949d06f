/* A server that answers at once, to measure `weft bench` itself: 127.0.0.1, one thread, epoll.
 * Every POST gets a stream of EVENTS tokens in one write; GET gets a list of one model. bench_stub
 * EVENTS; prints its port. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_FILES = 4096, MAX_ASKED = 1 << 16, BATCH = 256 };

struct connection {
    char *asked; /* [MAX_ASKED] */
    size_t len;
};

static char *make_stream(int events, size_t *len)
{
    char *out = NULL;
    FILE *file = open_memstream(&out, len);
    if (file == NULL) return NULL;
    (void)fputs("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: "
                "chunked\r\n\r\n",
                file);
    for (int i = 0; i < events + 2; i++) {
        char event[512];
        int size;
        if (i < events)
            size = snprintf(event, sizeof event,
                            "data: {\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":1,"
                            "\"model\":\"stub\",\"choices\":[{\"index\":0,\"text\":\" token%d\","
                            "\"logprobs\":null,\"finish_reason\":%s}],\"usage\":null}\n\n",
                            i, i + 1 == events ? "\"length\"" : "null");
        else if (i == events)
            size = snprintf(event, sizeof event,
                            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":8,"
                            "\"completion_tokens\":%d}}\n\n",
                            events);
        else
            size = snprintf(event, sizeof event, "data: [DONE]\n\n");
        (void)fprintf(file, "%x\r\n%s\r\n", (unsigned)size, event);
    }
    (void)fputs("0\r\n\r\n", file);
    return fclose(file) == 0 ? out : NULL;
}

/* The length of the whole request at the beginning of text, 0: more is needed. */
static size_t request_length(const char *text, size_t len)
{
    const char *end = memmem(text, len, "\r\n\r\n", 4);
    const char *field = memmem(text, len, "ontent-Length: ", 15);
    if (end == NULL) return 0;
    size_t body = field != NULL && field < end ? strtoul(field + 15, NULL, 10) : 0;
    size_t all = (size_t)(end + 4 - text) + body;
    return all <= len ? all : 0;
}

static bool send_all(int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t sent = send(fd, bytes, len, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        bytes += sent;
        len -= (size_t)sent;
    }
    return true;
}

static bool serve(int fd, struct connection *c, const char *stream, size_t stream_len)
{
    static const char models[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                                 "Content-Length: 24\r\n\r\n{\"data\":[{\"id\":\"stub\"}]}";
    ssize_t got = recv(fd, c->asked + c->len, MAX_ASKED - c->len, MSG_DONTWAIT);
    if (got <= 0) return false;
    c->len += (size_t)got;
    for (size_t all; (all = request_length(c->asked, c->len)) > 0;) {
        bool get = c->asked[0] == 'G';
        if (!send_all(fd, get ? models : stream, get ? sizeof models - 1 : stream_len))
            return false;
        c->len -= all;
        memmove(c->asked, c->asked + all, c->len);
    }
    return c->len < MAX_ASKED;
}

static void accept_one(int epoll, int listener, struct connection *connection)
{
    int one = 1, fd = accept(listener, NULL, NULL);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (fd < 0) return;
    if (fd >= MAX_FILES ||
        (connection[fd].asked == NULL && (connection[fd].asked = malloc(MAX_ASKED)) == NULL)) {
        (void)close(fd);
        return;
    }
    connection[fd].len = 0;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

int main(int argc, char **argv)
{
    static struct connection connection[MAX_FILES];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    size_t stream_len;
    char *stream = make_stream(argc > 1 ? (int)strtol(argv[1], NULL, 10) : 1, &stream_len);
    int listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[BATCH];
    if (stream == NULL || bind(listener, (struct sockaddr *)&address, size) != 0 ||
        listen(listener, 1024) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) != 0 ||
        epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) != 0) {
        perror("bench_stub");
        return 1;
    }
    (void)printf("%d\n", ntohs(address.sin_port));
    (void)fflush(stdout);
    for (;;) {
        int count = epoll_wait(epoll, events, BATCH, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener)
                accept_one(epoll, listener, connection);
            else if (!serve(fd, &connection[fd], stream, stream_len))
                (void)close(fd);
        }
    }
}
