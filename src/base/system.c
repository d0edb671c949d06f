/* Clock, waits, files, hash: the little of the operating system that everything uses. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base.h"

/* Long enough to catch a peer that is about to arrive, short enough that a rank which shares its
 * core with that peer soon gives the core up. */
enum { SPIN_ROUNDS = 2000 };

uint64_t weft__now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void weft__pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

uint32_t weft__wait_change(_Atomic uint32_t *word, uint32_t seen, uint64_t deadline_ns)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        uint32_t value = atomic_load_explicit(word, memory_order_acquire);
        if (value != seen) return value;
        weft__pause();
    }
    return weft__wait_sleep(word, seen, deadline_ns);
}

uint32_t weft__wait_sleep(_Atomic uint32_t *word, uint32_t seen, uint64_t deadline_ns)
{
    for (;;) {
        uint32_t value = atomic_load_explicit(word, memory_order_acquire);
        if (value != seen) return value;
        uint64_t now = weft__now_ns();
        if (now >= deadline_ns) return seen;
        uint64_t left = deadline_ns - now;
        struct timespec timeout = {.tv_sec = (time_t)(left / 1000000000u),
                                   .tv_nsec = (long)(left % 1000000000u)};
        /* Shared, not private: the word may lie in memory of several processes. The kernel checks
         * the word itself, so a change between our load and the call is not lost. */
        (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0);
    }
}

void weft__wake_all(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

weft_status weft__path_join(char out[WEFT__MAX_PATH], const char *dir, const char *name,
                            weft_error *err)
{
    if (snprintf(out, WEFT__MAX_PATH, "%s/%s", dir, name) < WEFT__MAX_PATH) return WEFT_OK;
    return weft__fail(err, WEFT_TOO_LONG, "%.100s...: the path is too long", dir);
}

weft_status weft__read_file(const char *path, size_t max, char **out, size_t *len, weft_error *err)
{
    /* O_NONBLOCK: opening a FIFO must not wait for a writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return weft__fail(err, errno == ENOENT ? WEFT_NOT_FOUND : WEFT_IO, "%s: %s", path,
                          strerror(errno));
    struct stat st;
    weft_status status = WEFT_OK;
    char *data = NULL;
    size_t size = 0;
    if (fstat(fd, &st) != 0) {
        status = weft__fail(err, WEFT_IO, "%s: %s", path, strerror(errno));
        goto close_fd;
    }
    if (!S_ISREG(st.st_mode)) {
        status = weft__fail(err, WEFT_IO, "%s: not a regular file", path);
        goto close_fd;
    }
    if ((uint64_t)st.st_size > max) {
        status = weft__fail(err, WEFT_TOO_LONG, "%s: %lld bytes, at most %zu are read", path,
                            (long long)st.st_size, max);
        goto close_fd;
    }
    data = malloc((size_t)st.st_size + 1);
    if (data == NULL) {
        status = weft__fail_oom(err, (size_t)st.st_size + 1, path);
        goto close_fd;
    }
    while (size < (size_t)st.st_size) {
        ssize_t got = read(fd, data + size, (size_t)st.st_size - size);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            status = weft__fail(err, WEFT_IO, "%s: %s", path, strerror(errno));
            free(data);
            goto close_fd;
        }
        if (got == 0) break;
        size += (size_t)got;
    }
    data[size] = '\0';
    *out = data;
    *len = size;
close_fd:
    (void)close(fd);
    return status;
}

uint64_t weft__hash(const void *bytes, size_t len, uint64_t seed)
{
    const unsigned char *p = bytes;
    uint64_t h = 0xcbf29ce484222325u ^ seed;
    for (size_t i = 0; i < len; i++) h = (h ^ p[i]) * 0x100000001b3u;
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}
