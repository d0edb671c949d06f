/* alloc_fail.h: makes the n-th allocation of a test program fail, for every n.
 *
 * For tests named <module>_<what>_alloc_test.c, which CMake links so that malloc and its relatives
 * come here first; include it in that one file, after cmocka.h. Allocations inside shared libraries
 * are not reached: those of jansson are, after alloc_fail_jansson(). */
#ifndef WEFT_TESTS_ALLOC_FAIL_H
#define WEFT_TESTS_ALLOC_FAIL_H

#include <errno.h>
#include <jansson.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/base.h"

/* Allocations asked for; the first and last that fail (0: none do); allocations not yet freed. */
static _Atomic long alloc_seen, alloc_first, alloc_last, alloc_live;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
void *__real_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);
void __real_free(void *data);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t max);
void __wrap_free(void *data);

static bool alloc_fails(void)
{
    long n = ++alloc_seen;
    if (n < alloc_first || n > alloc_last) return false;
    errno = ENOMEM;
    return true;
}

static void *alloc_counted(void *data)
{
    if (data != NULL) alloc_live++;
    return data;
}

void *__wrap_malloc(size_t size)
{
    return alloc_fails() ? NULL : alloc_counted(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size)
{
    return alloc_fails() ? NULL : alloc_counted(__real_calloc(count, size));
}

void *__wrap_realloc(void *old, size_t size)
{
    if (alloc_fails()) return NULL;
    return old == NULL ? alloc_counted(__real_realloc(old, size)) : __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t align, size_t size)
{
    return alloc_fails() ? NULL : alloc_counted(__real_aligned_alloc(align, size));
}

void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    return alloc_fails() ? MAP_FAILED : __real_mmap(at, size, protection, flags, fd, offset);
}

char *__wrap_strndup(const char *text, size_t max)
{
    size_t len = strnlen(text, max);
    char *copy = __wrap_malloc(len + 1);
    if (copy == NULL) return NULL;
    memcpy(copy, text, len);
    copy[len] = '\0';
    return copy;
}

char *__wrap_strdup(const char *text) { return __wrap_strndup(text, strlen(text)); }

void __wrap_free(void *data)
{
    if (data != NULL) alloc_live--;
    __real_free(data);
}

static inline void alloc_fail_jansson(void) { json_set_alloc_funcs(__wrap_malloc, __wrap_free); }

/* Runs body once, which must succeed, then again with each single allocation failing, and with all
 * from each one on failing: every time it must give back what it took and report NO_MEMORY, or
 * succeed without. Beyond 2 * max_runs runs only evenly spread allocations are tried. */
static inline void alloc_fail_sweep(const char *what,
                                    weft_status (*body)(void *context, weft_error *err),
                                    void *context, long max_runs)
{
    weft_error err = {0};
    long live = alloc_live, runs = 0, managed = 0;
    alloc_first = 0;
    alloc_last = 0;
    alloc_seen = 0;
    if (body(context, &err) != WEFT_OK) fail_msg("%s: %s", what, err.text);
    if (alloc_live != live) fail_msg("%s: leaks %ld allocations", what, alloc_live - live);
    long count = alloc_seen, step = count > max_runs ? count / max_runs : 1;
    assert_true(count > 0);
    for (long n = 1; n <= count; n += step) {
        for (int all = 0; all < 2; all++, runs++) {
            err = (weft_error){0};
            alloc_seen = 0;
            alloc_last = all ? 1L << 62 : n;
            alloc_first = n;
            weft_status status = body(context, &err);
            alloc_first = alloc_last = 0;
            managed += status == WEFT_OK;
            if (status != WEFT_OK && (status != WEFT_NO_MEMORY || err.status != status ||
                                      strstr(err.text, "memory") == NULL))
                fail_msg("%s: allocation %ld of %ld fails: '%s'", what, n, count, err.text);
            if (alloc_live != live)
                fail_msg("%s: allocation %ld of %ld fails: %ld allocations leak", what, n, count,
                         alloc_live - live);
        }
    }
    print_message("%s: %ld allocations, %ld runs with failures: %ld out of memory, %ld managed\n",
                  what, count, runs, runs - managed, managed);
}

#endif
