/* comm_args.h: what the communicator and the collective kernels of a device share: the memory that
 * ranks see, and the kernels' arguments. Compiled as C and as CUDA C. docs/PROTOCOL.md explains it.
 *
 * Each rank has one segment of memory that its peers can read:
 *
 *     struct weft__comm_rank | staging of the world (4 messages) | heap: staging of groups, user's
 *
 * staging = input 0, input 1, sum 0, sum 1; operation number `epoch` of a group uses epoch % 2. */
#ifndef WEFT_SRC_COMM_ARGS_H
#define WEFT_SRC_COMM_ARGS_H

#include "weft_comm.h"

#ifdef __CUDACC__
#define WEFT__ATOMIC(type) type /* accessed with ld.acquire.sys and st.release.sys */
#define WEFT__SIZE_IS(type, bytes) static_assert(sizeof(type) == (bytes), #type)
#else
#include <stdatomic.h>
#define WEFT__ATOMIC(type) _Atomic(type)
#define WEFT__SIZE_IS(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#endif

/* name, text */
#define WEFT__COMM_OPS(X)               \
    X(NO_OP, "")                        \
    X(ALLREDUCE, "allreduce")           \
    X(REDUCE_SCATTER, "reduce_scatter") \
    X(ALL_GATHER, "all_gather")         \
    X(BROADCAST, "broadcast")           \
    X(BARRIER, "barrier")

enum weft__comm_op {
#define X(name, text) WEFT__##name,
    WEFT__COMM_OPS(X)
#undef X
};

/* A rank's progress in a group is epoch * 4 + phase and only grows; it wraps. Phase, and what its
 * publication promises to whoever acquires it. */
#define WEFT__COMM_PHASES(X)                                                                     \
    X(NO_PHASE, "")                                                                              \
    X(INPUT, "input")     /* my input can be read; I have read all I wanted of earlier epochs */ \
    X(SUM, "sum")         /* my share of the sum can be read; I have read all inputs */          \
    X(RELEASE, "release") /* I have read all inputs (published when a peer holds its own) */

enum weft__comm_phase {
#define X(name, text) WEFT__##name,
    WEFT__COMM_PHASES(X)
#undef X
};

enum {
    WEFT__COMM_CHANNELS = WEFT_COMM_GROUPS_MAX + 1, /* the world's is 0 */
    WEFT__COMM_SHARE_UNIT = 16,                     /* elements; two-shot shares are whole units */
};

/* What a rank says about its operation. Ranks compare all but hold and input. */
struct weft__comm_post {
    uint32_t op; /* enum weft__comm_op */
    uint32_t dtype;
    int64_t shape[2]; /* reductions: tokens, hidden; others: rows, bytes */
    uint64_t detail;  /* hash of everything else that must agree */
    uint32_t two_shot;
    uint32_t hold; /* the input is the caller's own memory: publish RELEASE when you have read it */
    uint64_t input; /* offset of the input in my segment */
    uint64_t unused[2];
};
WEFT__SIZE_IS(struct weft__comm_post, 64);

/* One rank in one group, by cache lines: what peers poll, what they read then, what is private.
 * All but sleepers is written by its owner alone. */
struct weft__comm_channel {
    WEFT__ATOMIC(uint32_t) progress;
    WEFT__ATOMIC(uint32_t) sleepers; /* peers that sleep on progress */
    WEFT__ATOMIC(uint32_t) closed;   /* progress will not change any more */
    uint32_t unused[13];
    struct weft__comm_post post[2];  /* by epoch % 2, readable under INPUT */
    struct weft__comm_post enqueued; /* what a GPU rank did last, for the text of a mismatch */
    uint32_t epoch;                  /* of the last operation */
    uint32_t pad;
    uint64_t wait_ns;
    uint64_t spare[6];
};
WEFT__SIZE_IS(struct weft__comm_channel, 320);

struct weft__comm_rank {
    WEFT__ATOMIC(uint32_t) heartbeat; /* grows while its owner works */
    WEFT__ATOMIC(uint32_t) poison;  /* of rank 0: a kernel of any rank has failed, see its record */
    WEFT__ATOMIC(uint64_t) waiting; /* weft__comm_waiting(), 0 when it does not wait */
    uint64_t record[4];             /* struct weft__cuda_record (cuda_args.h) */
    void *device;                   /* what a GPU rank owns until the session ends */
    WEFT__ATOMIC(uint32_t) inside;  /* epoch of the operation in which NCCL is at work; 0: none */
    uint32_t unused;
    struct weft__comm_channel channel[WEFT__COMM_CHANNELS];
};
WEFT__SIZE_IS(struct weft__comm_rank, 64 + 320 * WEFT__COMM_CHANNELS);

/* Whom a sleeping rank waits for, so that others blame the end of a chain of waits. */
static inline uint64_t weft__comm_waiting(int world_rank, int channel, uint32_t progress)
{
    return 1ull << 63 | (uint64_t)world_rank << 40 | (uint64_t)channel << 32 | progress;
}

enum weft__comm_fault_kind {
    WEFT__FAULT_TIMEOUT,
    WEFT__FAULT_DEADLOCK,
    WEFT__FAULT_CLOSED,
    WEFT__FAULT_ENDED,
    WEFT__FAULT_MISMATCH,
    WEFT__FAULT_ABORT,
};

enum { WEFT__COMM_HEALTHY, WEFT__COMM_FAILING, WEFT__COMM_FAILED };

/* The first failure of a session; one for all its ranks. Setting state poisons the session. */
struct weft__comm_fault {
    WEFT__ATOMIC(uint32_t) state; /* HEALTHY, FAILING: being written, FAILED: readable */
    uint32_t kind;                /* enum weft__comm_fault_kind */
    int32_t rank, peer;           /* in the world: who noticed, who is to blame */
    uint32_t op, phase, epoch;
    uint32_t pad;
    uint64_t elapsed_ns;
    struct weft__comm_post mine, theirs; /* of a mismatch */
    char reason[160];                    /* of an abort */
};
WEFT__SIZE_IS(struct weft__comm_fault, 328);

/* Ranks that share no memory: each process has copies of its peers' segments, and what a rank
 * publishes is sent to each peer's copy of its own. */
struct weft__wire_part {
    int to, channel; /* rank in the world */
    uint32_t progress;
    const struct weft__comm_post *post;
    uint64_t at, bytes; /* what that peer reads, in this rank's segment */
};

struct weft__wire {
    /* Takes in what has come; tells the peers of a failure, and that this rank lives or waits. */
    void (*pump)(struct weft__wire *wire);
    void (*publish)(struct weft__wire *wire, const struct weft__wire_part *part);
    /* Tells the peers that this rank has left a group. */
    void (*close)(struct weft__wire *wire, int channel);
    /* Until *word changes, the session fails or the deadline passes; pumps meanwhile. */
    void (*sleep)(struct weft__wire *wire, WEFT__ATOMIC(uint32_t) * word, uint32_t seen,
                  uint64_t deadline_ns);
};

/* A rank's view of a group: constant from open to close. */
struct weft__comm_link {
    int32_t rank, size, channel, world_size;
    int32_t world_rank[WEFT_COMM_RANKS_MAX];            /* of each member */
    struct weft__comm_rank *world[WEFT_COMM_RANKS_MAX]; /* by rank in the world */
    uint8_t *segment[WEFT_COMM_RANKS_MAX];              /* of each member */
    uint64_t staging[WEFT_COMM_RANKS_MAX];              /* offset in each member's segment */
    struct weft__comm_fault *fault;
    struct weft__meeting *meeting; /* of ranks that are processes of one host, else NULL */
    struct weft__wire *wire;       /* of ranks that share no memory, else NULL */
    uint64_t message_bytes, heap_bytes;
    uint64_t timeout_ns;
    uint32_t first_epoch;
    int32_t device; /* CUDA ordinal of this rank */
    int32_t lender; /* the first rank with this device: where ranks are threads, it has the code */
    weft_path path; /* asked for, between GPUs */
    weft_path spoilt; /* tests: known data arrives spoilt here over this path; AUTO: over none */
};

enum { WEFT__STAGING_MESSAGES = 4 };

/* Offset of this epoch's input and sum buffers in a member's segment. */
static inline uint64_t weft__comm_input_at(const struct weft__comm_link *link, int member,
                                           uint32_t epoch)
{
    return link->staging[member] + (epoch & 1) * link->message_bytes;
}

static inline uint64_t weft__comm_sum_at(const struct weft__comm_link *link, int member,
                                         uint32_t epoch)
{
    return link->staging[member] + (2 + (epoch & 1)) * link->message_bytes;
}

/* ---- arguments: one piece of an operation, at most one message ---- */

enum weft__comm_source {
    WEFT__SOURCE_STAGE,  /* copy the input, or form it from moe, into this epoch's input buffer */
    WEFT__SOURCE_STAGED, /* the caller has written it there (weft_comm_input) */
    WEFT__SOURCE_HEAP,   /* peers read the caller's memory */
};

/* Rows first .. first + rows of op. This rank wants rows out_first .. out_first + out_rows of all;
 * row t of the input is row t - out_first of residual and of the outputs. */
struct weft__comm_reduce_args {
    weft_reduce op;
    struct weft__comm_post post; /* but for input */
    enum weft__comm_source source;
    int64_t first, rows;
    int64_t out_first, out_rows;
    uint32_t way;
};

/* All rows of reduce.op, in tiles. */
struct weft__comm_gemm_args {
    struct weft__comm_reduce_args reduce; /* first, rows and source are of no account */
    int64_t tile_rows;
    void (*compute)(void *ctx, int64_t first, int64_t rows, void *out);
    void *ctx;
    uint64_t compute_ns; /* spent in compute, by the device */
};

/* Bytes first .. first + bytes of each member's input, seen as one line. */
struct weft__comm_move_args {
    struct weft__comm_post post; /* op: ALL_GATHER, BROADCAST or BARRIER */
    enum weft__comm_source source;
    int32_t root; /* BROADCAST */
    bool patient; /* wait without a budget */
    uint64_t first, bytes;
    uint64_t row_bytes[WEFT_COMM_RANKS_MAX]; /* ALL_GATHER: of each member */
    uint64_t out_row_bytes;
    int64_t rows;
    const uint8_t *in;
    uint8_t *out;
    uint32_t way;
};

#ifndef __CUDACC__

/* ---- ways: how the bytes of an operation travel, where the device has several: path * 5 + form;
 * what a form is, is the device's affair, but for PLACED: the input is read where it is, in memory
 * that peers reach. 0: the device chooses ---- */

enum { WEFT__FORMS = 5, WEFT__FORM_PLACED = 4, WEFT__WAYS = WEFT__FORMS * (WEFT_PATH_NCCL + 1) };

static inline weft_path weft__way_path(uint32_t way) { return (weft_path)(way / WEFT__FORMS); }

static inline uint32_t weft__way_form(uint32_t way) { return way % WEFT__FORMS; }

/* ---- the device's part ---- */

struct weft__comm_kernels; /* one rank's state of one group */

/* What measuring ways takes. What is marked "together" is called by all ranks at about the same
 * time, none of which has operations at work then: it may wait for the whole device. */
struct weft__dev_trial {
    /* Whether a way works between all ranks for `bytes` of BF16. */
    bool (*offers)(const struct weft__comm_kernels *kernels, uint32_t way, enum weft__comm_op op,
                   uint64_t bytes, bool two_shot);
    const char *(*form)(uint32_t way);
    /* Zeroed memory that operations take. Both together. */
    weft_status (*memory_take)(struct weft__comm_kernels *kernels, size_t bytes, void **out,
                               weft_error *err);
    void (*memory_give)(struct weft__comm_kernels *kernels, void *memory);
    /* A message's length of memory, for inputs that are read in place. */
    void *(*memory_placed)(const struct weft__comm_kernels *kernels);
    weft_status (*memory_write)(struct weft__comm_kernels *kernels, void *to, const void *from,
                                size_t bytes, weft_error *err);
    weft_status (*memory_read)(struct weft__comm_kernels *kernels, void *to, const void *from,
                               size_t bytes, weft_error *err);
    /* What is called from begin to end is kept; run does it, waits, and gives the time since mark
     * was called; drop forgets it, also after a failure. End and drop together. */
    weft_status (*begin)(struct weft__comm_kernels *kernels, weft_error *err);
    weft_status (*mark)(struct weft__comm_kernels *kernels, weft_error *err);
    weft_status (*end)(struct weft__comm_kernels *kernels, weft_error *err);
    weft_status (*run)(struct weft__comm_kernels *kernels, float *us, weft_error *err);
    void (*drop)(struct weft__comm_kernels *kernels);
    /* NCCL's own collectives, to compare with, where the path "nccl" works. bytes: of a rank's
     * input. Sums are of F32; the root is 0. */
    weft_status (*baseline)(struct weft__comm_kernels *kernels, enum weft__comm_op op,
                            const void *in, void *out, size_t bytes, weft_error *err);
};

struct weft__dev_comm {
    const char *name;
    /* Ends what a rank owned until the session's end; called by the process it lived in. */
    void (*release)(struct weft__comm_rank *control);
    weft_status (*open)(const struct weft__comm_link *link, bool portable,
                        struct weft__comm_kernels **out, weft_error *err);
    void (*close)(struct weft__comm_kernels *kernels);
    /* Failures go to link->fault. */
    void (*reduce)(struct weft__comm_kernels *kernels, const struct weft__comm_reduce_args *args);
    void (*move)(struct weft__comm_kernels *kernels, const struct weft__comm_move_args *args);
    /* This rank's heap of link.heap_bytes, zeroed; of the world's kernels. */
    uint8_t *(*heap)(const struct weft__comm_kernels *kernels);
    /* What operations are enqueued on; NULL when they are complete on return. */
    void *(*stream)(const struct weft__comm_kernels *kernels);
    void (*sync)(struct weft__comm_kernels *kernels);
    const struct weft__dev_trial *trial; /* NULL: one way, nothing to measure */
    /* Unmeasured, AUTO is two-shot from this many ranks and this size of a rank's input on. */
    int two_shot_ranks;
    uint64_t two_shot_bytes;
};

extern const struct weft__dev_comm weft__cpu_comm, weft__cuda_comm;

/* The rank of a process that has ended without closing, or -1. */
int weft__comm_ended(const struct weft__comm_link *link);

/* The one operation that the CPU has alone. */
void weft__cpu_gemm_reduce(struct weft__comm_kernels *kernels, struct weft__comm_gemm_args *args);

/* Records the failure unless there is one already, and poisons the session. */
void weft__comm_fail(struct weft__comm_fault *fault, const struct weft__comm_fault *what);

#endif /* __CUDACC__ */
#endif
