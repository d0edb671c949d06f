/* base.h: what every module stands on: errors, arena, bounded buffer, clock, waits. libc only. */
#ifndef WEFT_SRC_BASE_H
#define WEFT_SRC_BASE_H

#include <stdalign.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weft_base.h"

#define WEFT__PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define WEFT__COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* The largest number of ranks anywhere; arrays of ranks have this size. */
enum { WEFT__MAX_RANKS = 16 };

static inline int64_t weft__min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t weft__max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t weft__ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ---- errors ---- */

/* Writes the error and returns its status, so that detection reads `return weft__fail(...)`. */
weft_status weft__fail(weft_error *err, weft_status status, const char *format, ...)
    WEFT__PRINTF(3, 4);
weft_status weft__fail_oom(weft_error *err, size_t bytes, const char *what);

/* Passes a failure on to the caller; for functions that have nothing to undo. */
#define WEFT__TRY(call)                                                                            \
    do {                                                                                           \
        weft_status try_status_ = (call);                                                          \
        if (try_status_ != WEFT_OK) return try_status_;                                            \
    } while (0)

/* ---- checked sizes: false when the result does not fit ---- */

bool weft__mul_size(size_t a, size_t b, size_t *out);
bool weft__add_size(size_t a, size_t b, size_t *out);

/* Bits of one element. */
int weft__dtype_bits(weft_dtype dtype);

/* ---- arena: many small allocations, freed together; a zeroed arena is empty and valid ---- */

struct weft__arena {
    struct weft__arena_block *head;
    size_t bytes; /* handed out so far */
};

/* Zeroed memory aligned for any type, or NULL. Owned by the arena. */
void *weft__arena_alloc(struct weft__arena *arena, size_t bytes);
void *weft__arena_array(struct weft__arena *arena, size_t count, size_t size); /* overflow -> NULL */
char *weft__arena_strndup(struct weft__arena *arena, const char *text, size_t len);
void weft__arena_free(struct weft__arena *arena);

/* ---- buffer: growing bytes with a named maximum; a zeroed buffer is unusable: init first ---- */

struct weft__buf {
    char *data; /* always NUL-terminated when not NULL */
    size_t len;
    size_t cap;
    size_t max; /* append fails beyond it */
    bool failed; /* sticky: out of memory or beyond max; check once at the end */
};

void weft__buf_init(struct weft__buf *buf, size_t max);
void weft__buf_append(struct weft__buf *buf, const void *bytes, size_t len);
void weft__buf_puts(struct weft__buf *buf, const char *text);
void weft__buf_printf(struct weft__buf *buf, const char *format, ...) WEFT__PRINTF(2, 3);
void weft__buf_free(struct weft__buf *buf);

/* ---- clock ---- */

uint64_t weft__now_ns(void); /* monotonic */

/* ---- waits: spin briefly, then sleep in the kernel; work across processes on shared memory ---- */

/* Waits until *word != seen or deadline_ns (weft__now_ns scale) passed. Acquire. Returns the value
 * last seen, so a result equal to `seen` means the deadline passed. */
uint32_t weft__wait_change(_Atomic uint32_t *word, uint32_t seen, uint64_t deadline_ns);

/* The same without the spinning. */
uint32_t weft__wait_sleep(_Atomic uint32_t *word, uint32_t seen, uint64_t deadline_ns);

void weft__pause(void); /* between two looks at a word */

/* Wakes every waiter on word. Call after a release store to it. */
void weft__wake_all(_Atomic uint32_t *word);

/* ---- files ---- */

/* The whole of a regular file of at most max bytes, NUL-terminated; caller frees. Refuses FIFOs,
 * devices and directories without blocking. */
weft_status weft__read_file(const char *path, size_t max, char **out, size_t *len, weft_error *err);

/* ---- hash ---- */

uint64_t weft__hash(const void *bytes, size_t len, uint64_t seed); /* FNV-1a with a final mix */

#endif
