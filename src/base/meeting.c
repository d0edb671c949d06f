/* Processes of one host that meet under a name. Rank 0 listens at an abstract Unix socket, which
 * leaves no file behind, the others connect; when all are there, rank 0 gives every pair of them a
 * socket of its own, and the name is free again. A socket ends with its process, however that ends.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base.h"

enum {
    RETRY_NS = 2 * 1000 * 1000,    /* between attempts to reach rank 0 */
    HELLO_NS = 1000 * 1000 * 1000, /* how long a newcomer may take to say who it is */
};

struct weft__meeting {
    int rank, size;
    uint32_t timeout_ms;
    int listener;
    int peer[WEFT__MAX_RANKS]; /* sockets; -1: none */
};

struct hello {
    char version[16];
    int32_t size, rank;
};

/* What rank 0 tells those who have come, whenever that changes. */
struct news {
    uint32_t joined; /* mask of ranks; all of them: file descriptors follow in this message */
    bool failed;
    weft_error error;
};

const char *weft__rank_names(uint32_t ranks, char text[WEFT__RANK_NAMES])
{
    size_t len = 0;
    text[0] = '\0';
    for (int r = 0; r < WEFT__MAX_RANKS; r++)
        if (ranks >> r & 1)
            len += (size_t)snprintf(text + len, WEFT__RANK_NAMES - len, "%s%d", len > 0 ? ", " : "",
                                    r);
    return text;
}

/* ---- messages with file descriptors ---- */

union control {
    char bytes[CMSG_SPACE(WEFT__MAX_RANKS * sizeof(int))];
    struct cmsghdr align;
};

/* False: errno says why. */
static bool send_message(int to, const void *bytes, size_t len, const int *fds, int fd_count)
{
    union control control = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = len};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count > 0) {
        size_t fd_bytes = (size_t)fd_count * sizeof *fds;
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fd_bytes);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(fd_bytes);
        memcpy(CMSG_DATA(head), fds, fd_bytes);
    }
    ssize_t sent;
    do sent = sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)len;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) (void)close(*fd);
    *fd = -1;
}

/* Waits until the deadline. False: errno says why, ETIMEDOUT and ECONNRESET (the peer has gone)
 * among the reasons. The descriptors are the caller's; fds holds WEFT__MAX_RANKS. */
static bool receive_message(int from, void *bytes, size_t len, int *fds, int *fd_count,
                            uint64_t deadline_ns)
{
    union control control;
    struct iovec part = {.iov_base = bytes, .iov_len = len};
    *fd_count = 0;
    for (;;) {
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = control.bytes,
                                 .msg_controllen = sizeof control.bytes};
        ssize_t got = recvmsg(from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (got >= 0) {
            for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head != NULL;
                 head = CMSG_NXTHDR(&message, head)) {
                if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
                *fd_count = (int)((head->cmsg_len - CMSG_LEN(0)) / sizeof *fds);
                memcpy(fds, CMSG_DATA(head), (size_t)*fd_count * sizeof *fds);
            }
            if (got == (ssize_t)len && (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) == 0)
                return true;
            while (*fd_count > 0) close_fd(&fds[--*fd_count]);
            errno = got == 0 ? ECONNRESET : message.msg_flags & MSG_CTRUNC ? EMFILE : EPROTO;
            return false;
        }
        if (errno != EAGAIN && errno != EINTR) return false;
        uint64_t now = weft__now_ns();
        if (now >= deadline_ns) {
            errno = ETIMEDOUT;
            return false;
        }
        struct pollfd wait = {.fd = from, .events = POLLIN};
        (void)poll(&wait, 1, (int)weft__min((int64_t)((deadline_ns - now) / 1000000) + 1, 1000));
    }
}

/* ---- opening ---- */

static uint32_t all_of(int size) { return (1u << size) - 1; }

weft_status weft__fail_missing(int rank, uint32_t joined, int size, uint32_t timeout_ms,
                               weft_error *err)
{
    char names[WEFT__RANK_NAMES];
    return weft__fail(err, WEFT_TIMEOUT,
                      "rank %d: opening the communicator: rank %s of %d did not open within %u ms",
                      rank, weft__rank_names(all_of(size) & ~joined, names), size, timeout_ms);
}

static weft_status fail_missing(const struct weft__meeting *m, uint32_t joined, weft_error *err)
{
    return weft__fail_missing(m->rank, joined, m->size, m->timeout_ms, err);
}

static weft_status fail_system(const struct weft__meeting *m, const char *what, weft_error *err)
{
    return weft__fail(err, WEFT_IO, "rank %d: opening the communicator: %s: %s", m->rank, what,
                      strerror(errno));
}

static bool same_user(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == geteuid();
}

static weft_status address_of(const char *name, struct sockaddr_un *out, socklen_t *len,
                              weft_error *err)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    /* A first byte of 0 makes the name abstract. */
    int n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "weft/%s", name);
    if (n >= (int)sizeof out->sun_path - 1)
        return weft__fail(err, WEFT_TOO_LONG, "rendezvous: the name %.60s... is too long", name);
    *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    return WEFT_OK;
}

static struct hello hello_of(const struct weft__meeting *m)
{
    struct hello hello = {.size = m->size, .rank = m->rank};
    (void)snprintf(hello.version, sizeof hello.version, "weft %s", WEFT_VERSION);
    return hello;
}

static uint32_t joined_of(const struct weft__meeting *m)
{
    uint32_t joined = 1u << m->rank;
    for (int r = 0; r < m->size; r++)
        if (m->peer[r] >= 0) joined |= 1u << r;
    return joined;
}

/* To all that have come; those that are gone again will be missed. */
static void tell_all(struct weft__meeting *m, const struct news *news)
{
    for (int r = 1; r < m->size; r++)
        if (m->peer[r] >= 0 && !send_message(m->peer[r], news, sizeof *news, NULL, 0))
            close_fd(&m->peer[r]);
}

/* Rank 0: takes in who knocks, or sends away. */
static weft_status admit(struct weft__meeting *m, weft_error *err)
{
    int fd = accept4(m->listener, NULL, NULL, SOCK_CLOEXEC), fds[WEFT__MAX_RANKS], fd_count;
    if (fd < 0) return errno == EMFILE || errno == ENFILE ? fail_system(m, "accept", err) : WEFT_OK;
    struct hello hello, mine = hello_of(m);
    bool known = same_user(fd) && receive_message(fd, &hello, sizeof hello, fds, &fd_count,
                                                  weft__now_ns() + HELLO_NS);
    while (known && fd_count > 0) close_fd(&fds[--fd_count]);
    if (!known || hello.rank < 1 || hello.rank >= weft__min(hello.size, WEFT__MAX_RANKS)) {
        (void)close(fd);
        return WEFT_OK;
    }
    struct news refusal = {.failed = true};
    if (memcmp(hello.version, mine.version, sizeof mine.version) != 0)
        (void)weft__fail(&refusal.error, WEFT_INVALID, "rank %d runs another version than rank 0",
                         hello.rank);
    else if (hello.size != m->size)
        (void)weft__fail(&refusal.error, WEFT_INVALID,
                         "rank %d comes to a world of %d ranks, rank 0 made one of %d", hello.rank,
                         hello.size, m->size);
    else if (m->peer[hello.rank] >= 0)
        (void)weft__fail(&refusal.error, WEFT_INVALID, "rank %d is open already", hello.rank);
    if (refusal.error.status != WEFT_OK) {
        (void)send_message(fd, &refusal, sizeof refusal, NULL, 0);
        (void)close(fd);
        return WEFT_OK;
    }
    m->peer[hello.rank] = fd;
    return WEFT_OK;
}

/* Rank 0: forgets who has left again. */
static void drop_lost(struct weft__meeting *m)
{
    uint32_t lost = weft__meeting_lost(m);
    for (int r = 0; r < m->size; r++)
        if (lost >> r & 1) close_fd(&m->peer[r]);
}

/* Rank 0: a socket for every pair of the others. */
static weft_status introduce(struct weft__meeting *m, weft_error *err)
{
    const struct news news = {.joined = all_of(m->size)};
    int ends[WEFT__MAX_RANKS][WEFT__MAX_RANKS]; /* [i][j] is i's socket to j */
    weft_status status = WEFT_OK;
    memset(ends, -1, sizeof ends);
    for (int i = 1; i < m->size && status == WEFT_OK; i++)
        for (int j = i + 1; j < m->size && status == WEFT_OK; j++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
                status = fail_system(m, "socketpair", err);
                break;
            }
            ends[i][j] = pair[0];
            ends[j][i] = pair[1];
        }
    for (int i = 1; i < m->size && status == WEFT_OK; i++) {
        int fds[WEFT__MAX_RANKS], count = 0;
        for (int j = 1; j < m->size; j++)
            if (j != i) fds[count++] = ends[i][j];
        if (!send_message(m->peer[i], &news, sizeof news, fds, count))
            status = weft__fail(err, WEFT_PEER, "rank %d left while the communicator opened", i);
    }
    for (int i = 1; i < m->size; i++)
        for (int j = 1; j < m->size; j++) close_fd(&ends[i][j]);
    return status;
}

static weft_status host(struct weft__meeting *m, const struct sockaddr_un *address, socklen_t len,
                        uint64_t deadline_ns, weft_error *err)
{
    m->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (m->listener < 0) return fail_system(m, "socket", err);
    if (bind(m->listener, (const struct sockaddr *)address, len) != 0 ||
        listen(m->listener, 4 * WEFT__MAX_RANKS) != 0)
        return weft__fail(
            err, WEFT_IO, "rendezvous \"%s\": %s%s", address->sun_path + 6, strerror(errno),
            errno == EADDRINUSE ? "; another world meets there, take another name" : "");
    uint32_t told = joined_of(m), joined = told, seen = told;
    weft_status status = WEFT_OK;
    while (joined != all_of(m->size) && status == WEFT_OK) {
        if (weft__now_ns() >= deadline_ns) {
            status = fail_missing(m, seen != all_of(m->size) ? seen : joined, err);
            break;
        }
        struct pollfd wait = {.fd = m->listener, .events = POLLIN};
        (void)poll(&wait, 1, 10);
        drop_lost(m); /* first: the one that knocks may come in the place of one of them */
        if (wait.revents != 0) status = admit(m, err);
        seen |= joined_of(m);
        joined = joined_of(m);
        const struct news news = {.joined = joined};
        if (joined != told && joined != all_of(m->size)) tell_all(m, &news);
        told = joined;
    }
    if (status == WEFT_OK) status = introduce(m, err);
    if (status != WEFT_OK && err != NULL) {
        struct news news = {.failed = true, .error = *err};
        if (status != WEFT_TIMEOUT) news.error.status = WEFT_PEER; /* it is rank 0's to report */
        tell_all(m, &news);
    }
    close_fd(&m->listener);
    return status;
}

/* Others: until rank 0 is there. */
static weft_status knock(struct weft__meeting *m, const struct sockaddr_un *address, socklen_t len,
                         uint64_t deadline_ns, weft_error *err)
{
    static const struct timespec retry = {.tv_nsec = RETRY_NS};
    const struct hello hello = hello_of(m);
    for (;;) {
        /* Blocking, it would wait for a listener that accepts nobody. */
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) return fail_system(m, "socket", err);
        if (connect(fd, (const struct sockaddr *)address, len) == 0) {
            m->peer[0] = fd;
            if (!same_user(fd))
                return weft__fail(err, WEFT_INVALID,
                                  "rendezvous \"%s\": another user's process listens there",
                                  address->sun_path + 6);
            if (send_message(fd, &hello, sizeof hello, NULL, 0)) return WEFT_OK;
            m->peer[0] = -1;
        }
        (void)close(fd);
        if (weft__now_ns() >= deadline_ns) return fail_missing(m, ~1u, err);
        (void)nanosleep(&retry, NULL);
    }
}

static weft_status attend(struct weft__meeting *m, uint64_t deadline_ns, weft_error *err)
{
    uint32_t joined = 1u | 1u << m->rank;
    for (;;) {
        struct news news;
        int fds[WEFT__MAX_RANKS], fd_count;
        if (!receive_message(m->peer[0], &news, sizeof news, fds, &fd_count, deadline_ns)) {
            if (errno == ETIMEDOUT) return fail_missing(m, joined, err);
            if (errno == EMFILE) return fail_system(m, "receiving sockets", err);
            return weft__fail(err, WEFT_PEER, "rank %d: opening the communicator: rank 0 has gone",
                              m->rank);
        }
        if (news.failed) {
            if (err != NULL) *err = news.error;
            return news.error.status;
        }
        joined = news.joined;
        if (joined != all_of(m->size)) continue;
        for (int r = 1, at = 0; r < m->size && at < fd_count; r++)
            if (r != m->rank) m->peer[r] = fds[at++];
        return WEFT_OK;
    }
}

weft_status weft__meeting_open(const char *name, int rank, int size, uint32_t timeout_ms,
                               struct weft__meeting **out, weft_error *err)
{
    struct sockaddr_un address;
    socklen_t len = 0;
    uint64_t deadline_ns = weft__now_ns() + (uint64_t)timeout_ms * 1000000;
    WEFT__TRY(address_of(name, &address, &len, err));
    struct weft__meeting *m = malloc(sizeof *m);
    if (m == NULL) return weft__fail_oom(err, sizeof *m, "a meeting");
    *m = (struct weft__meeting){
        .rank = rank, .size = size, .timeout_ms = timeout_ms, .listener = -1};
    for (int r = 0; r < WEFT__MAX_RANKS; r++) m->peer[r] = -1;
    weft_status status;
    if (rank == 0) {
        status = host(m, &address, len, deadline_ns, err);
    } else {
        status = knock(m, &address, len, deadline_ns, err);
        if (status == WEFT_OK) status = attend(m, deadline_ns, err);
    }
    if (status != WEFT_OK) {
        weft__meeting_close(m);
        return status;
    }
    *out = m;
    return WEFT_OK;
}

void weft__meeting_close(struct weft__meeting *m)
{
    if (m == NULL) return;
    close_fd(&m->listener);
    for (int r = 0; r < WEFT__MAX_RANKS; r++) close_fd(&m->peer[r]);
    free(m);
}

/* ---- once all are there ---- */

weft_status weft__meeting_exchange(struct weft__meeting *m, uint32_t members,
                                   const struct weft__parcel *mine, struct weft__parcel *all,
                                   weft_error *err)
{
    uint64_t deadline_ns = weft__now_ns() + (uint64_t)m->timeout_ms * 1000000;
    int count = 0, r;
    for (r = 0; r < m->size; r++)
        for (int i = 0; i < WEFT__PARCEL_FDS; i++) all[r].fd[i] = -1;
    while (count < WEFT__PARCEL_FDS && mine->fd[count] >= 0) count++;
    for (r = 0; r < m->size; r++)
        if (r != m->rank && members >> r & 1 &&
            !send_message(m->peer[r], mine->bytes, sizeof mine->bytes, mine->fd, count))
            goto lost;
    all[m->rank] = *mine;
    for (r = 0; r < m->size; r++) {
        int fds[WEFT__MAX_RANKS], got;
        if (r == m->rank || (members >> r & 1) == 0) continue;
        if (!receive_message(m->peer[r], all[r].bytes, sizeof all[r].bytes, fds, &got, deadline_ns))
            goto lost;
        for (int i = 0; i < got && i < WEFT__PARCEL_FDS; i++) all[r].fd[i] = fds[i];
    }
    return WEFT_OK;
lost:
    for (int i = 0; i < m->size * WEFT__PARCEL_FDS; i++) {
        int why = errno, *fd = &all[i / WEFT__PARCEL_FDS].fd[i % WEFT__PARCEL_FDS];
        if (i / WEFT__PARCEL_FDS != m->rank) close_fd(fd);
        errno = why;
    }
    if (errno == ETIMEDOUT)
        return weft__fail(err, WEFT_TIMEOUT,
                          "rank %d: opening the communicator: rank %d gave no sign of life for "
                          "%u ms",
                          m->rank, r, m->timeout_ms);
    if (errno == EPIPE || errno == ECONNRESET)
        return weft__fail(err, WEFT_PEER, "rank %d: opening the communicator: rank %d has gone",
                          m->rank, r);
    return fail_system(m, "exchanging descriptors", err);
}

uint32_t weft__meeting_lost(const struct weft__meeting *m)
{
    struct pollfd wait[WEFT__MAX_RANKS];
    uint32_t lost = 0;
    /* poll leaves out what is negative. */
    for (int r = 0; r < m->size; r++)
        wait[r] = (struct pollfd){.fd = m->peer[r], .events = POLLRDHUP};
    if (poll(wait, (nfds_t)m->size, 0) <= 0) return 0;
    for (int r = 0; r < m->size; r++)
        if (wait[r].revents != 0) lost |= 1u << r;
    return lost;
}
