/* weft_base.h: what both public interfaces share: statuses, errors, element types, version.
 *
 * Every function that can fail returns a weft_status and takes a weft_error as its last
 * parameter. The first function to detect an error writes it there once: what, where, and the way
 * out. Outputs are set only on WEFT_OK. A NULL weft_error is allowed. */
#ifndef WEFT_BASE_H
#define WEFT_BASE_H

#include <stddef.h>
#include <stdint.h>

#define WEFT_VERSION "0.1.0"

#if defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#define WEFT_CHECKED __attribute__((warn_unused_result))
#else
#define WEFT_API
#define WEFT_CHECKED
#endif

/* name, text */
#define WEFT_STATUSES(X)           \
    X(OK, "ok")                    \
    X(INVALID, "invalid argument") \
    X(NOT_FOUND, "not found")      \
    X(IO, "input/output error")    \
    X(FORMAT, "malformed data")    \
    X(UNSUPPORTED, "unsupported")  \
    X(NO_MEMORY, "out of memory")  \
    X(TOO_LONG, "limit exceeded")  \
    X(TIMEOUT, "timed out")        \
    X(PEER, "a peer failed")       \
    X(CLOSED, "closed")            \
    X(DEVICE, "device error")      \
    X(INTERNAL, "internal error")  \
    X(BUSY, "busy, try again later")

typedef enum weft_status {
#define X(name, text) WEFT_##name,
    WEFT_STATUSES(X)
#undef X
} weft_status;

typedef struct weft_error {
    weft_status status;
    char text[500]; /* one line, no newline: what, where, how to fix it */
} weft_error;

/* Element types. name, the name safetensors files use, bits an element */
#define WEFT_DTYPES(X)               \
    X(F32, "F32", 32)                \
    X(F16, "F16", 16)                \
    X(BF16, "BF16", 16)              \
    X(F8_E4M3, "F8_E4M3", 8)         \
    X(F4_E2M1, "F4", 4)              \
    X(F8_E8M0, "F8_E8M0", 8)         \
    X(U8, "U8", 8)                   \
    X(I8, "I8", 8)                   \
    X(I16, "I16", 16)                \
    X(U16, "U16", 16)                \
    X(I32, "I32", 32)                \
    X(U32, "U32", 32)                \
    X(I64, "I64", 64)                \
    X(U64, "U64", 64)                \
    X(F64, "F64", 64)                \
    X(C64, "C64", 64)                \
    X(F8_E5M2, "F8_E5M2", 8)         \
    X(F8_E4M3FNUZ, "F8_E4M3FNUZ", 8) \
    X(F8_E5M2FNUZ, "F8_E5M2FNUZ", 8) \
    X(F6_E2M3, "F6_E2M3", 6)         \
    X(F6_E3M2, "F6_E3M2", 6)         \
    X(BOOL, "BOOL", 8)

typedef enum weft_dtype {
#define X(name, file_name, bits) WEFT_##name,
    WEFT_DTYPES(X)
#undef X
        WEFT_DTYPE_COUNT
} weft_dtype;

/* Inputs of quantised linears. */
typedef enum weft_activations {
    WEFT_ACTIVATIONS_F32,       /* as they are */
    WEFT_ACTIVATIONS_QUANTISED, /* rounded as the checkpoint asks */
    WEFT_ACTIVATIONS_INT8,      /* of NVFP4 linears: rounded to INT8, blocks of 16; faster */
} weft_activations;

#ifdef __cplusplus
extern "C" {
#endif

WEFT_API const char *weft_version(void);
WEFT_API const char *weft_status_name(weft_status status); /* never NULL */
WEFT_API const char *weft_dtype_name(weft_dtype dtype);    /* never NULL */

#ifdef __cplusplus
}
#endif

#endif
