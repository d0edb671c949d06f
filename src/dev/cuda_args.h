/* cuda_args.h: arguments of the collective kernels (kernels/reduce.cu, kernels/move.cu). Compiled
 * as C and as CUDA C; pointers are device addresses. docs/CUDA.md explains it.
 *
 * A slot is the memory in which one rank's contribution to one operation appears. It has two
 * halves, for odd and even epochs. In each stand, one after the other,
 *
 *     arrival: one 8-byte word {epoch, signature}: the rank runs that operation;
 *     flags: an epoch for each row and block of the cluster: that plain data is complete;
 *     packed or dense data of short messages: 8-byte words {4 bytes, epoch}, or 16-byte words
 *         {12 bytes, epoch}: what brings the data says that it is there;
 *     plain data.
 *
 * Rank r reads rank s's contribution at recv[s], and writes its own to each of send[]: with push a
 * slot in every rank's memory; with pull one in its own; with host one in pinned host memory, and
 * one in its own memory for itself. A kernel that sends to no slot is alone: what it reads from
 * slots is there already, and it waits for nobody and leaves the epoch as it is. */
#ifndef WEFT_SRC_DEV_CUDA_ARGS_H
#define WEFT_SRC_DEV_CUDA_ARGS_H

#include <stdint.h>

#include "dev/comm_args.h"

enum {
    WEFT__CUDA_CLUSTER_MAX =
        8,                    /* most blocks that share a row: what every chip with clusters has */
    WEFT__CUDA_THREADS = 384, /* most threads of a block */
    WEFT__CUDA_GROUP = 256,   /* elements that a warp handles at once, 8 a thread */
    WEFT__CUDA_FLAG_AT = 64,  /* offset of the flags in a half slot */
    WEFT__CUDA_STAGE_BYTES = 4352, /* shared memory of a warp that moves dense data */
    WEFT__CUDA_AHEAD_BYTES = 2048, /* the same, that reads plain data ahead */
    WEFT__CUDA_PACKED_PITCH =
        1024,                     /* bytes of a group of 16-bit elements on the wire; F32: twice */
    WEFT__CUDA_DENSE_PITCH = 704, /* the same */
};

/* What a failed wait leaves behind, in the rank's control block; state is stored last, with
 * release. */
struct weft__cuda_record {
    WEFT__ATOMIC(uint32_t) state; /* 1: the rest is valid */
    uint8_t rank, peer;           /* in the world: who noticed, who is to blame */
    uint16_t kind;                /* enum weft__comm_fault_kind: TIMEOUT, CLOSED or MISMATCH */
    uint32_t op, phase;           /* enum weft__comm_op, enum weft__comm_phase */
    uint32_t epoch, channel;
    uint64_t elapsed_ns;
};
WEFT__SIZE_IS(struct weft__cuda_record, 32);

/* What a wait that lasts looks at, in device memory. */
struct weft__cuda_watch {
    uint64_t budget_ns; /* how long a silent rank is waited for */
    /* pinned host memory: */
    uint64_t control[WEFT_COMM_RANKS_MAX]; /* struct weft__comm_rank, by rank */
    uint64_t poison;                       /* uint32_t of the world: a kernel has failed */
    uint64_t fault;                        /* struct weft__comm_fault of the session */
    uint32_t claimed;                      /* a thread of this rank writes the record */
    uint32_t channel;
    uint8_t world_rank[WEFT_COMM_RANKS_MAX];
};
WEFT__SIZE_IS(struct weft__cuda_watch, 8 + 16 * 8 + 16 + 8 + 16);

/* The same in every call on one communicator and path, but for `far` and operations of one rank. */
struct weft__cuda_link {
    uint64_t send[WEFT_COMM_RANKS_MAX]; /* slots written */
    uint64_t recv[WEFT_COMM_RANKS_MAX]; /* slots read, by source */
    uint64_t half_bytes, packed_at, plain_at;
    uint64_t epoch; /* uint32_t: of the next operation; advanced by the last block */
    uint64_t done;  /* uint32_t: blocks that have read the epoch */
    uint64_t watch; /* struct weft__cuda_watch */
    int32_t sends, ranks, rank;
    uint16_t far;  /* peers' slots are across a slow link: look with one lane before all read */
    uint16_t push; /* send[d] is the slot in rank d's memory */
};
WEFT__SIZE_IS(struct weft__cuda_link, 16 * 16 + 6 * 8 + 16);

/* weft_reduce, cut to the rows of one launch. The grid is clusters of `cluster` blocks. */
struct weft__cuda_reduce_args {
    struct weft__cuda_link link;
    uint64_t x, expert_out, slots, gates, shared; /* from the launch's first row on */
    uint64_t residual, residual_out, norm_weight, y, codes, scales; /* from row out_first on */
    int64_t top_k, expert_rows;
    int64_t tokens, hidden;
    int64_t out_first, out_rows; /* rows of the launch whose results this rank stores */
    int64_t sum_first, sum_rows; /* rows of the launch that this rank sums */
    int64_t scale_row;           /* swizzled scales: row of the whole matrix that out_first is */
    int64_t pad_rows;            /* swizzled scales: rows whose padding this launch clears */
    float norm_eps, quant_scale; /* quant_scale: NVFP4: its inverse */
    uint32_t quant, norm;        /* enum weft_quant_kind; bool */
    uint32_t op, signature, two_shot;
    int32_t cluster;
    uint32_t late_release; /* dependents start when the outputs are stored, not earlier */
    int32_t section;       /* rows of a cluster that are sent together */
    int32_t own; /* plain: 1 + number of the send[] that no input goes to: x is read; 0: none */
    int32_t pad;
    /* In place, else 0: where each rank's x is. Data is plain then. */
    uint64_t from[WEFT_COMM_RANKS_MAX];
};
WEFT__SIZE_IS(struct weft__cuda_reduce_args,
              sizeof(struct weft__cuda_link) + 21 * 8 + 12 * 4 + 16 * 8);

/* Bytes first .. first + bytes of each rank's input, seen as one line; see weft__comm_move_args.
 * ALL_GATHER, BROADCAST (root alone sends) or BARRIER (nobody does). */
struct weft__cuda_move_args {
    struct weft__cuda_link link;
    uint64_t in, out;
    uint64_t first, bytes;
    int64_t rows;
    uint64_t out_row_bytes;
    uint64_t row_bytes[WEFT_COMM_RANKS_MAX];
    uint64_t column[WEFT_COMM_RANKS_MAX]; /* where a rank's bytes start in a row of out */
    int32_t root;                         /* BROADCAST */
    uint32_t op, signature;
    uint32_t wide; /* all of the above are multiples of 16 */
};
WEFT__SIZE_IS(struct weft__cuda_move_args, sizeof(struct weft__cuda_link) + 38 * 8 + 16);

/* A step of an operation whose bytes copy engines or NCCL move (kernels/copy.cu). */
enum weft__cuda_step {
    WEFT__CUDA_MEET,  /* arrive, and wait for all arrivals: nobody uses the memory of before */
    WEFT__CUDA_AWAIT, /* wait for a flag of every other rank */
    WEFT__CUDA_END,   /* go on to the next epoch */
};

struct weft__cuda_step_args {
    struct weft__cuda_link link;
    uint32_t op, signature, step, phase;
    int32_t flag;
    uint32_t nccl; /* say when NCCL is at work: the host watches over it */
};
WEFT__SIZE_IS(struct weft__cuda_step_args, sizeof(struct weft__cuda_link) + 24);

/* Instances of the reduce kernel: C name of the type, weft_dtype, groups that a warp has of
 * a row, form in which data travels. */
#define WEFT__CUDA_REDUCES(X)        \
    X(bf16, WEFT_BF16, one, packed)  \
    X(bf16, WEFT_BF16, one, dense)   \
    X(bf16, WEFT_BF16, one, plain)   \
    X(bf16, WEFT_BF16, many, packed) \
    X(bf16, WEFT_BF16, many, dense)  \
    X(bf16, WEFT_BF16, many, plain)  \
    X(f16, WEFT_F16, one, packed)    \
    X(f16, WEFT_F16, one, dense)     \
    X(f16, WEFT_F16, one, plain)     \
    X(f16, WEFT_F16, many, packed)   \
    X(f16, WEFT_F16, many, dense)    \
    X(f16, WEFT_F16, many, plain)    \
    X(f32, WEFT_F32, one, packed)    \
    X(f32, WEFT_F32, one, dense)     \
    X(f32, WEFT_F32, one, plain)     \
    X(f32, WEFT_F32, many, packed)   \
    X(f32, WEFT_F32, many, dense)    \
    X(f32, WEFT_F32, many, plain)

#endif
