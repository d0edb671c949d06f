#include <stdio.h>

#include "base.h"

const char *weft_version(void) { return WEFT_VERSION; }

const char *weft_status_name(weft_status status)
{
    static const char *const names[] = {
#define X(name, text) text,
        WEFT_STATUSES(X)
#undef X
    };
    return (size_t)status < WEFT__COUNT(names) ? names[status] : "unknown status";
}

static const struct {
    const char *name;
    int bits;
} dtypes[] = {
#define X(name, file_name, bits) {file_name, bits},
    WEFT_DTYPES(X)
#undef X
};

const char *weft_dtype_name(weft_dtype dtype)
{
    return (size_t)dtype < WEFT__COUNT(dtypes) ? dtypes[dtype].name : "unknown type";
}

int weft__dtype_bits(weft_dtype dtype) { return dtypes[dtype].bits; }

weft_status weft__fail(weft_error *err, weft_status status, const char *format, ...)
{
    if (err != NULL) {
        va_list args;
        err->status = status;
        va_start(args, format);
        (void)vsnprintf(err->text, sizeof err->text, format, args);
        va_end(args);
        /* Names come from files: what could start a new line or drive a terminal is not shown. */
        for (char *c = err->text; *c != '\0'; c++)
            if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    }
    return status;
}

weft_status weft__fail_oom(weft_error *err, size_t bytes, const char *what)
{
    return weft__fail(err, WEFT_NO_MEMORY, "out of memory: %zu bytes for %s", bytes, what);
}

bool weft__mul_size(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }

bool weft__add_size(size_t a, size_t b, size_t *out) { return !__builtin_add_overflow(a, b, out); }
