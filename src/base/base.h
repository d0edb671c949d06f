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
static inline size_t weft__round_up(size_t a, size_t unit) { return (a + unit - 1) / unit * unit; }
static inline double weft__mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

/* ---- errors ---- */

/* Writes the error and returns its status, so that detection reads `return weft__fail(...)`. */
weft_status weft__fail(weft_error *err, weft_status status, const char *format, ...)
    WEFT__PRINTF(3, 4);
weft_status weft__fail_oom(weft_error *err, size_t bytes, const char *what);

/* Passes a failure on to the caller; for functions that have nothing to undo. */
#define WEFT__TRY(call)                                 \
    do {                                                \
        weft_status try_status_ = (call);               \
        if (try_status_ != WEFT_OK) return try_status_; \
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
void *weft__arena_array(struct weft__arena *arena, size_t count,
                        size_t size); /* overflow -> NULL */
char *weft__arena_strndup(struct weft__arena *arena, const char *text, size_t len);
void weft__arena_free(struct weft__arena *arena);

/* ---- buffer: growing bytes with a named maximum; a zeroed buffer is unusable: init first ---- */

struct weft__buf {
    char *data; /* always NUL-terminated when not NULL */
    size_t len;
    size_t cap;
    size_t max;  /* append fails beyond it */
    bool failed; /* sticky: out of memory or beyond max; check once at the end */
};

void weft__buf_init(struct weft__buf *buf, size_t max);
void weft__buf_append(struct weft__buf *buf, const void *bytes, size_t len);
void weft__buf_puts(struct weft__buf *buf, const char *text);
void weft__buf_printf(struct weft__buf *buf, const char *format, ...) WEFT__PRINTF(2, 3);
void weft__buf_free(struct weft__buf *buf);

/* ---- characters ---- */

/* Its value; -1: it is none. */
static inline int weft__hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The character at p: its length, 1 to 4. Where there is none, minus the length of the maximal
 * ill-formed part there, or 0 when all len bytes are the beginning of a character. len > 0. */
int weft__utf8_next(const char *p, size_t len, uint32_t *code);
int weft__utf8_put(char out[4], uint32_t code); /* its length; code is a scalar value */
bool weft__utf8_valid(const char *text, size_t len);

/* ---- JSON: a pull reader over text in memory, for files too large for a tree ---- */

enum { WEFT__JSON_MAX_DEPTH = 64 };

enum weft__json_kind {
    WEFT__JSON_NONE, /* no value here, or the reader failed */
    WEFT__JSON_OBJECT,
    WEFT__JSON_ARRAY,
    WEFT__JSON_STRING,
    WEFT__JSON_NUMBER,
    WEFT__JSON_BOOL,
    WEFT__JSON_NULL,
};

/* A copy remembers a position: reading on with it changes nothing in the original. The first error
 * sticks; from then on every call returns false or zero, and loops over members end. */
struct weft__json {
    const char *begin, *at, *end;
    const char *error; /* what is wrong at `at`; NULL while all is well */
    uint64_t fresh;    /* bit d: nothing was read yet of the container at depth d */
    unsigned depth;
    bool no_memory;
};

struct weft__json_text {
    const char *data; /* in the source, or in the scratch buffer of the call: valid till the next */
    size_t len;
};

bool weft__json_is(struct weft__json_text text, const char *word);

void weft__json_init(struct weft__json *json, const char *text, size_t len);
void weft__json_fail(struct weft__json *json, const char *what); /* `what` outlives the reader */
enum weft__json_kind weft__json_kind(struct weft__json *json);   /* of the value ahead */
/* while (weft__json_item(...)) read or skip one value; the loop ends behind the bracket. */
bool weft__json_enter(struct weft__json *json, enum weft__json_kind kind);
bool weft__json_item(struct weft__json *json);
bool weft__json_member(struct weft__json *json, struct weft__buf *scratch,
                       struct weft__json_text *key);
bool weft__json_string(struct weft__json *json, struct weft__buf *scratch,
                       struct weft__json_text *text);
bool weft__json_int(struct weft__json *json, int64_t *value); /* no fraction, no exponent */
bool weft__json_bool(struct weft__json *json, bool *value);
void weft__json_skip(struct weft__json *json); /* any value, checked */
bool weft__json_end(struct weft__json *json);  /* nothing but white space follows */
/* WEFT_OK, or the reader's error with the name of the file and the offset. */
WEFT_CHECKED weft_status weft__json_check(const struct weft__json *json, const char *name,
                                          weft_error *err);

/* ---- clock ---- */

uint64_t weft__now_ns(void); /* monotonic */

/* ---- waits: spin briefly, then sleep in the kernel; work across processes on shared memory ----
 */

/* Waits until *word != seen or deadline_ns (weft__now_ns scale) passed. Acquire. Returns the value
 * last seen, so a result equal to `seen` means the deadline passed. */
uint32_t weft__wait_change(_Atomic uint32_t *word, uint32_t seen, uint64_t deadline_ns);

/* The same without the spinning. */
uint32_t weft__wait_sleep(_Atomic uint32_t *word, uint32_t seen, uint64_t deadline_ns);

void weft__pause(void); /* between two looks at a word */

/* Wakes every waiter on word. Call after a release store to it. */
void weft__wake_all(_Atomic uint32_t *word);

/* ---- meetings: the processes of one host that are the ranks of a world ---- */

enum { WEFT__PARCEL_BYTES = 1024, WEFT__PARCEL_FDS = 4, WEFT__RANK_NAMES = 4 * WEFT__MAX_RANKS };

struct weft__parcel {
    uint8_t bytes[WEFT__PARCEL_BYTES];
    int fd[WEFT__PARCEL_FDS]; /* those given come first; then -1 */
};

struct weft__meeting; /* a socket to the process of every other rank */

/* Returns when all `size` ranks have come to the name; at most timeout_ms, and names the missing.
 * Only processes of the same user and version meet. */
weft_status weft__meeting_open(const char *name, int rank, int size, uint32_t timeout_ms,
                               struct weft__meeting **out, weft_error *err);
void weft__meeting_close(struct weft__meeting *meeting); /* NULL allowed */

/* Each rank of the mask gives a parcel and gets those of all, its own included, in all[rank];
 * descriptors of others are then the caller's to close. */
weft_status weft__meeting_exchange(struct weft__meeting *meeting, uint32_t ranks,
                                   const struct weft__parcel *mine, struct weft__parcel *all,
                                   weft_error *err);

/* The ranks, as a mask, whose processes have ended or have closed the meeting. */
uint32_t weft__meeting_lost(const struct weft__meeting *meeting);

/* "1, 3" */
const char *weft__rank_names(uint32_t ranks, char text[WEFT__RANK_NAMES]);

/* How opening ends when ranks stay away: a mask of those that have joined. */
weft_status weft__fail_missing(int rank, uint32_t joined, int size, uint32_t timeout_ms,
                               weft_error *err);

/* ---- files ---- */

enum { WEFT__MAX_PATH = 4096 };

/* dir/name */
weft_status weft__path_join(char out[WEFT__MAX_PATH], const char *dir, const char *name,
                            weft_error *err);

/* The whole of a regular file of at most max bytes, NUL-terminated; caller frees. Refuses FIFOs,
 * devices and directories without blocking. */
weft_status weft__read_file(const char *path, size_t max, char **out, size_t *len, weft_error *err);

/* ---- hash ---- */

uint64_t weft__hash(const void *bytes, size_t len, uint64_t seed); /* FNV-1a with a final mix */

#endif
