/* weft_comm.h: fused all-reduce collectives for tensor-parallel inference. Usable without the rest
 * of weft; examples/allreduce.c is a complete program.
 *
 * A world is the set of ranks that work together: threads of a process, processes of a host, or CPU
 * ranks of an Open MPI job on several hosts. Each rank opens its own communicator, which belongs to
 * one thread at a time; then all ranks call the same operations, on the same communicator or group,
 * with the same shapes, in the same order. Hidden behind the handles: the memory that ranks share,
 * epochs and flags, the choice of path and algorithm, deadlines.
 *
 * Numbers. Sums are F32, folded in ascending rank order and rounded once. Every rank gets the same
 * bits. They depend neither on the algorithm nor on how many other rows are in the call. NaN
 * results are the canonical 0x7fc00000, 0x7fc0 (BF16), 0x7e00 (F16).
 *
 * Failure. Every wait is bounded, but a patient gather's, which ends with its peers. A rank that
 * stays away, closes, aborts or calls something else is named, by its rank in the world, in the
 * error that every rank gets, on every group; from then on operations return that error. Close on
 * all ranks, then open again. */
#ifndef WEFT_COMM_H
#define WEFT_COMM_H

#include <stdbool.h>

#include "weft_base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    WEFT_COMM_RANKS_MAX = 16,
    WEFT_COMM_MESSAGE_MIN = 262144, /* bytes: the longest row */
    WEFT_COMM_HIDDEN_MAX = 65536,   /* longest row of weft_reduce */
    WEFT_COMM_GROUPS_MAX = 15,      /* splits that a communicator takes part in, in all */
};

typedef struct weft_world weft_world;
typedef struct weft_comm weft_comm;

/* ---- life cycle ---- */

typedef enum weft_algorithm {
    WEFT_ALGORITHM_AUTO,
    WEFT_ALGORITHM_ONE_SHOT, /* every rank reads and sums everything */
    WEFT_ALGORITHM_TWO_SHOT, /* every rank sums its share, then all read the shares */
} weft_algorithm;

/* How bytes travel between GPUs. A path that does not work here is refused at open. name, text */
#define WEFT_PATHS(X)                                                                              \
    X(AUTO, "auto")           /* what was measured to be fastest at open, by operation and size */ \
    X(PUSH, "push")           /* stores to the peer's memory */                                    \
    X(PULL, "pull")           /* loads from the peer's memory */                                   \
    X(HOST, "host")           /* through pinned host memory; works without peer access */          \
    X(COPY, "copy")           /* copy engines, to the peer's memory; for large messages */         \
    X(COPY_HOST, "copy-host") /* copy engines, through pinned host memory */                       \
    X(NCCL, "nccl")           /* NCCL, found at run time; a device a rank. It moves bytes alone */

typedef enum weft_path {
#define X(name, text) WEFT_PATH_##name,
    WEFT_PATHS(X)
#undef X
} weft_path;

/* Zeroed fields mean the default. */
typedef struct weft_world_options {
    int size;             /* ranks, 1 to WEFT_COMM_RANKS_MAX; no default */
    uint32_t timeout_ms;  /* how long a rank without a sign of life is waited for; 30000 */
    size_t message_bytes; /* what one rank contributes at once; longer messages are cut; 1 MiB */
    size_t heap_bytes;    /* for weft_comm_heap_alloc and groups (4 messages each); 64 MiB. On GPUs
                             device memory as well */
    weft_algorithm algorithm; /* of reductions */
    const int *cuda_devices;  /* [size] CUDA ordinal of each rank, or NULL: ranks on CPUs */
    weft_path path;           /* of GPU ranks */
    /* NULL: ranks are threads of this process. "unix:NAME": processes of this host; each makes a
     * world of this name, which no other world uses. "mpi": ranks of an Open MPI job; MPI is loaded
     * then, ends with the world unless a session failed last, and starts only once in a process.
     * Rank 0's options hold for all, but for size, timeout_ms at open and cuda_devices. */
    const char *rendezvous;
} weft_world_options;

WEFT_API WEFT_CHECKED weft_status weft_world_create(const weft_world_options *options,
                                                    weft_world **out, weft_error *err);
/* The memory stays until the last communicator is closed. NULL is allowed. */
WEFT_API void weft_world_destroy(weft_world *world);

/* Blocks until every rank has opened, at most timeout_ms; the error names who is missing. */
WEFT_API WEFT_CHECKED weft_status weft_comm_open(weft_world *world, int rank, weft_comm **out,
                                                 weft_error *err);
/* Closes a communicator and the groups split from it. Does not wait for other ranks; those that
 * still need this one get an error that names it. NULL is allowed. */
WEFT_API void weft_comm_close(weft_comm *comm);

/* Collective: the ranks that gave the same color form a group, ordered by (key, rank). A negative
 * color joins none and sets *out to NULL. Freed by closing comm. */
WEFT_API WEFT_CHECKED weft_status weft_comm_split(weft_comm *comm, int color, int key,
                                                  weft_comm **out, weft_error *err);

WEFT_API int weft_comm_rank(const weft_comm *comm); /* in this communicator or group */
WEFT_API int weft_comm_size(const weft_comm *comm);

/* ---- memory ---- */

/* Memory that peers can read, zeroed, aligned to 64 bytes, valid until comm is closed. An input
 * that lies in it is not copied; the operation is then complete only when all peers have read it.
 * Not collective, but call it alike on all ranks. Between GPUs it is device memory; inputs of long
 * reductions that lie in the same place on all ranks are read there when that is faster. */
WEFT_API WEFT_CHECKED weft_status weft_comm_heap_alloc(weft_comm *comm, size_t bytes, void **out,
                                                       weft_error *err);

/* CPU ranks only. Where to write the input of the next operation on comm, at most message_bytes:
 * neither copied nor waited for, the fastest way in. Good for that operation alone. */
WEFT_API WEFT_CHECKED weft_status weft_comm_input(weft_comm *comm, size_t bytes, void **out,
                                                  weft_error *err);

/* ---- reductions ---- */

/* This rank's share of a mixture of experts, summed on the way in, in F32, ascending k, then
 * rounded to dtype:
 *     x[t] = round(((0 + gates[t,0] * expert_out[slots[t,0]]) + ...) + shared[t]) */
typedef struct weft_moe {
    int64_t top_k;          /* 0: no experts, weft_reduce.x is the input */
    int64_t expert_rows;    /* rows of expert_out */
    const void *expert_out; /* [expert_rows, hidden] dtype */
    const int32_t *slots; /* [tokens, top_k] rows of expert_out; any other number: term left out */
    const float *gates;   /* [tokens, top_k] */
    const void *shared;   /* [tokens, hidden] dtype, or NULL */
} weft_moe;

typedef enum weft_quant_kind {
    WEFT_QUANT_NONE,
    WEFT_QUANT_FP8_TENSOR,     /* codes = e4m3(y / scale) */
    WEFT_QUANT_FP8_TOKEN,      /* scales[t] = max|y[t]| / 448, or 1; codes = e4m3(y / scales[t]) */
    WEFT_QUANT_NVFP4,          /* E2M1 codes, one E4M3 scale per 16 */
    WEFT_QUANT_NVFP4_SWIZZLED, /* the same, scales in the 128x4 tiles of tensor-core GEMMs */
} weft_quant_kind;

typedef struct weft_quant {
    weft_quant_kind kind;
    float scale;  /* FP8_TENSOR and NVFP4: input_scale of the checkpoint, > 0 */
    void *codes;  /* FP8 [tokens, hidden] bytes; NVFP4 [tokens, hidden/2], even element low */
    void *scales; /* FP8_TOKEN: float [tokens]; NVFP4: bytes [tokens, hidden/16], or swizzled
                     [ceil(tokens/128)*128, ceil(hidden/64)*4], its padding written as 0 */
} weft_quant;

/* s = round(residual + (((x_0 + x_1) + x_2) + ...))    stored in residual_out, if given
 * y = norm ? round(round(s / sqrt(mean(s*s) + norm_eps)) * norm_weight) : s
 * quant codes are of the rounded y. */
typedef struct weft_reduce {
    int64_t tokens;          /* >= 0 */
    int64_t hidden;          /* a multiple of 8 (NVFP4: 16), at most WEFT_COMM_HIDDEN_MAX */
    weft_dtype dtype;        /* WEFT_F32, WEFT_F16 or WEFT_BF16, of all but moe.gates */
    const void *x;           /* [tokens, hidden], or NULL with moe */
    weft_moe moe;            /* instead of x */
    const void *residual;    /* [tokens, hidden] the same on every rank, or NULL */
    void *residual_out;      /* [tokens, hidden], may be residual itself, or NULL */
    bool norm;               /* RMSNorm */
    const void *norm_weight; /* [hidden], or NULL for ones */
    float norm_eps;
    void *y;          /* [tokens, hidden], may be x itself (on GPUs: of allreduce), or NULL */
    weft_quant quant; /* further output */
} weft_reduce;

/* All ranks get all rows. */
WEFT_API WEFT_CHECKED weft_status weft_comm_allreduce(weft_comm *comm, const weft_reduce *op,
                                                      weft_error *err);

/* Each rank gets its weft_comm_share of the rows: residual, residual_out, y and quant have those
 * only, x and moe have all. */
WEFT_API WEFT_CHECKED weft_status weft_comm_reduce_scatter(weft_comm *comm, const weft_reduce *op,
                                                           weft_error *err);

/* A row-parallel matrix product whose finished tiles are summed while the next are computed. The
 * bits are those of an allreduce of the whole product. */
typedef struct weft_gemm_reduce {
    weft_reduce reduce; /* without x and moe */
    int64_t tile_rows;  /* 0: 64, or what a message holds if that is less */
    /* Writes rows first .. first + rows of this rank's product to out [rows, hidden]; called in
     * ascending order. */
    void (*compute)(void *ctx, int64_t first, int64_t rows, void *out);
    void *ctx;
} weft_gemm_reduce;

/* CPU ranks only. */
WEFT_API WEFT_CHECKED weft_status weft_comm_gemm_allreduce(weft_comm *comm,
                                                           const weft_gemm_reduce *op,
                                                           weft_error *err);

/* The part of total that rank owns: the first total % size ranks have one more. */
static inline int64_t weft_comm_share(int64_t total, int size, int rank, int64_t *first)
{
    int64_t base = total / size, more = total % size;
    *first = base * rank + (rank < more ? rank : more);
    return base + (rank < more);
}

/* ---- bytes: every bit arrives unchanged ---- */

/* out[row] = in_0[row] | in_1[row] | ... ; rows = 1 concatenates. */
typedef struct weft_gather {
    int64_t rows;
    size_t row_bytes;           /* of every rank, when row_bytes_of is NULL */
    const size_t *row_bytes_of; /* [size], the same on all ranks; may hold zeros */
    const void *in;             /* [rows, own row bytes] */
    void *out;                  /* [rows, sum of row bytes], apart from in */
    bool patient; /* wait for the others however long they take: only their death, close or
                     failure ends it. Not on GPUs */
} weft_gather;

WEFT_API WEFT_CHECKED weft_status weft_comm_all_gather(weft_comm *comm, const weft_gather *op,
                                                       weft_error *err);

typedef struct weft_broadcast {
    int root;
    size_t bytes;
    void *data; /* read on root, written elsewhere */
} weft_broadcast;

WEFT_API WEFT_CHECKED weft_status weft_comm_broadcast(weft_comm *comm, const weft_broadcast *op,
                                                      weft_error *err);

WEFT_API WEFT_CHECKED weft_status weft_comm_barrier(weft_comm *comm, weft_error *err);

/* ---- GPU ranks ----
 * Operations take device memory, aligned to 16 bytes, enqueue work on the rank's stream and return,
 * unless about a hundred kernels and copies are pending, which they wait for: call each rank's from
 * a thread of its own. A CUDA graph can capture them and replays while the communicator is open.
 * Failures come out of later calls. Ranks that share a device must be able to run at once. */

/* The CUstream of a GPU rank, owned by the communicator; NULL on CPUs. */
WEFT_API void *weft_comm_stream(const weft_comm *comm);

/* Waits until all operations of this rank are complete. */
WEFT_API WEFT_CHECKED weft_status weft_comm_sync(weft_comm *comm, weft_error *err);

/* ---- life signs and failure ---- */

/* A sign of life, for work longer than the timeout without an operation. */
WEFT_API void weft_comm_heartbeat(weft_comm *comm);

/* Fails the current and all later operations of every rank with this rank's name and the reason
 * (copied, cut at 159 bytes; may be NULL). For a rank that cannot go on. */
WEFT_API void weft_comm_abort(weft_comm *comm, const char *reason);

typedef struct weft_comm_failure {
    weft_status status;
    int rank;          /* who noticed */
    int peer;          /* who is to blame */
    const char *op;    /* "allreduce", ... "" when no operation was running */
    const char *phase; /* what was waited for: "input", "sum", "release" or "" */
    uint32_t epoch;    /* of the group the operation ran in */
    uint64_t elapsed_ns;
} weft_comm_failure;

/* False while nothing has failed. */
WEFT_API bool weft_comm_failed(const weft_comm *comm, weft_comm_failure *out);

/* A way that was measured when GPU ranks opened. */
typedef struct weft_comm_way {
    const char *op; /* "allreduce" (with norm), "reduce_scatter", "all_gather", "broadcast" */
    size_t bytes;   /* of a rank's input */
    weft_path path;
    const char *form; /* in which data travels: "packed", "dense", "plain", "in place"
                         (docs/CUDA.md) */
    weft_algorithm algorithm;
    float us;    /* an operation, on the slowest rank */
    bool chosen; /* what operations of about this size do; in place: with x in the heap */
} weft_comm_way;

/* The plan: writes at most max ways, returns how many there are. 0 between CPU ranks. */
WEFT_API int weft_comm_plan(const weft_comm *comm, weft_comm_way *out, int max);

typedef struct weft_comm_stats {
    uint64_t operations;
    uint64_t bytes;    /* contributed by this rank */
    uint64_t total_ns; /* inside operations, but computing tiles */
    uint64_t wait_ns;  /* of these, waiting for peers */
} weft_comm_stats;

/* Since open, this communicator or group alone. */
WEFT_API void weft_comm_get_stats(const weft_comm *comm, weft_comm_stats *out);

#ifdef __cplusplus
}
#endif

#endif
