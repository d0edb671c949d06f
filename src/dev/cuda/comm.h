/* comm.h: a GPU rank's communicator: what open.c makes and launch.c uses. */
#ifndef WEFT_SRC_DEV_CUDA_COMM_H
#define WEFT_SRC_DEV_CUDA_COMM_H

#include "dev/cuda_args.h"
#include "driver.h"

enum {
    WEFT__CUDA_ROWS_MAX = 2048,            /* of one launch; each has flags */
    WEFT__CUDA_PACKED_BYTES = 2048 * 1024, /* of a half slot: 1 MiB of data */
    WEFT__CUDA_BLOCKS_MAX = 2048,          /* of one launch; each has a flag */
    WEFT__CUDA_STATIC_SHARED = 8 * 1024,   /* bytes, at least what a kernel declares itself */
    WEFT__CUDA_LEGS = 2,                   /* inputs; sums of two-shot reductions */
    WEFT__CUDA_SECTIONS_MAX = 16,          /* of a leg */
    WEFT__CUDA_HEAD_BYTES = 512,           /* flags of a slot that copy engines fill */
};

/* Memory of one channel that peers use: this rank's own; and, when ranks are processes, all
 * members' as it is mapped here. */
struct weft__cuda_memory {
    CUdeviceptr device;
    void *host;
    size_t device_bytes, host_bytes;
    CUdeviceptr mapped_device[WEFT_COMM_RANKS_MAX]; /* 0: cannot be reached */
    void *mapped_host[WEFT_COMM_RANKS_MAX];
};

/* What a rank owns until the session ends, since peers use its memory. */
struct weft__cuda_rank {
    struct weft__cuda_device device;
    CUstream stream;
    CUstream out, in; /* of copies; forked from the stream and joined again in every operation */
    CUevent pace[2];  /* recorded after every so many kernels and copies, by turns */
    uint32_t commands;
    /* by section: sent from here, of both legs; fetched from host memory; summed; last: forking */
    CUevent sent[WEFT__CUDA_LEGS][WEFT__CUDA_SECTIONS_MAX], fetched[WEFT__CUDA_SECTIONS_MAX],
        summed[WEFT__CUDA_SECTIONS_MAX], fork;
    struct weft__nccl *nccl;               /* NULL: not there, or the ranks share devices */
    bool processes;                        /* ranks are, not threads of one */
    void *registered[WEFT_COMM_RANKS_MAX]; /* control blocks of segments, pinned */
    struct weft__cuda_memory memory[WEFT__COMM_CHANNELS];
    /* Each world rank's memory of channel 0, as this rank reaches it; its heap is in there. */
    uint64_t base[WEFT_COMM_RANKS_MAX], heap_at;
    int sharers;     /* ranks of the world on the device that has most of them */
    uint32_t usable; /* mask of paths that work between all ranks of the world */
    weft_path best;  /* of these, or the one asked for */
};

/* share.c: memory of ranks that are processes. Takes memory that peers can map, and maps theirs;
 * collective. Bytes are in memory. */
weft_status weft__cuda_share(const struct weft__comm_link *link, struct weft__cuda_rank *rank,
                             struct weft__cuda_memory *memory, weft_error *err);
void weft__cuda_unshare(const struct weft__cuda_driver *driver, struct weft__cuda_memory *memory);

/* Forms in which data travels, and of a way; order of WEFT__CUDA_REDUCES. */
enum weft__cuda_wire {
    WEFT__CUDA_WIRE_AUTO,
    WEFT__CUDA_PACKED,
    WEFT__CUDA_DENSE,
    WEFT__CUDA_PLAIN,
    WEFT__CUDA_PLACED = WEFT__FORM_PLACED /* plain; the input is read where it is */
};

/* What `groups` groups of 16-bit elements take of a half slot, packed or dense. */
static inline uint64_t weft__cuda_wire_bytes(enum weft__cuda_wire wire, uint64_t groups,
                                             bool two_shot)
{
    uint64_t pitch = wire == WEFT__CUDA_DENSE ? WEFT__CUDA_DENSE_PITCH : WEFT__CUDA_PACKED_PITCH;
    return groups * pitch * (two_shot ? 2 : 1);
}

/* Choices that are made for every operation; zeros leave them to the library. The same on all
 * ranks. For tests and benchmarks. */
struct weft__cuda_tuning {
    weft_path path;
    enum weft__cuda_wire wire;
    int cluster;  /* blocks that share a row */
    int clusters; /* at work at once */
    int section;  /* rows of a cluster that are sent together */
    int sections; /* of a message that copy engines or NCCL move */
    bool serial;  /* kernels start when the one before has ended */
    bool late;    /* weft__cuda_reduce_args.late_release */
    bool local;   /* the rank's own rows alone: what is left of an operation without exchange */
};

enum { WEFT__CUDA_DTYPES = 3, WEFT__CUDA_INSTANCES = WEFT__CUDA_DTYPES * 6 };

/* How many clusters of a shape fit on the device, for one rank. */
struct weft__cuda_fit {
    int instance, cluster, threads, shared_bytes, clusters;
};

/* Operations that are timed. */
struct weft__cuda_trial {
    CUgraphExec graph;
    CUevent from, to; /* recorded by it */
};

/* Where copy engines and NCCL put things. A slot has a message, after its flags; one in pinned host
 * memory has a message of inputs and one of sums. */
struct weft__cuda_engine {
    uint64_t slot[WEFT_COMM_RANKS_MAX];  /* of each source, in this rank's memory */
    uint64_t there[WEFT_COMM_RANKS_MAX]; /* this rank's, in every rank's memory */
    uint64_t sums[WEFT_COMM_RANKS_MAX];  /* one message of every rank's memory */
    uint64_t host[WEFT_COMM_RANKS_MAX];  /* every rank's slot in pinned host memory */
};

struct weft__comm_kernels {
    struct weft__comm_link link;
    struct weft__cuda_rank *rank;
    struct weft__cuda_link paths[WEFT_PATH_NCCL + 1]; /* by weft_path; engines': where ranks meet */
    struct weft__cuda_engine engine;
    uint32_t usable;                    /* mask of paths */
    uint64_t packed_bytes, plain_bytes; /* of a half slot */
    CUfunction reduce[WEFT__CUDA_INSTANCES], move, step;
    struct weft__cuda_fit fits[64];
    int fit_count;
    struct weft__cuda_tuning tuning;
    struct weft__cuda_trial trial;
};

/* Whether copy engines or NCCL move the bytes. */
static inline bool weft__cuda_is_staged(weft_path path) { return path >= WEFT_PATH_COPY; }

/* Makes a failed CUDA call the session's failure. */
void weft__cuda_give_up(const struct weft__comm_kernels *k, const weft_error *why);

/* The device part of all_gather, broadcast and barrier; also what open checks paths with. */
void weft__cuda_move(struct weft__comm_kernels *k, const struct weft__comm_move_args *args);
void weft__cuda_reduce(struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args);

/* The same on a path of copy engines or NCCL (staged.c). */
void weft__cuda_reduce_staged(struct weft__comm_kernels *k,
                              const struct weft__comm_reduce_args *args, weft_path path);
void weft__cuda_move_staged(struct weft__comm_kernels *k, const struct weft__comm_move_args *args,
                            weft_path path);

/* What staged.c uses of launch.c. Arguments of a kernel that is alone (cuda_args.h), for rows
 * first .. first + rows of the operation; the caller says where they are read. */
void weft__cuda_fill_alone(struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args,
                           int64_t first, int64_t rows, struct weft__cuda_reduce_args *out);
void weft__cuda_reduce_alone(struct weft__comm_kernels *k, struct weft__cuda_reduce_args *a,
                             weft_dtype dtype);
void weft__cuda_fill_move(const struct weft__comm_kernels *k,
                          const struct weft__comm_move_args *args,
                          struct weft__cuda_move_args *out);
void weft__cuda_move_alone(struct weft__comm_kernels *k, const struct weft__cuda_move_args *a);
void weft__cuda_step(struct weft__comm_kernels *k, const struct weft__cuda_step_args *a);

/* Before each kernel and copy. A driver whose queue is full, which is at about a thousand entries,
 * waits inside the call, and holds up the calls of other ranks on the device: of the one, too, that
 * the first entry waits for. So the caller waits here while a hundred kernels and copies are
 * pending, which with the events between them are some hundreds of entries. */
void weft__cuda_pace(struct weft__comm_kernels *k);
uint32_t weft__cuda_sign(struct weft__comm_kernels *k, const struct weft__comm_post *post,
                         const void *plan, size_t plan_bytes);

enum { WEFT__NCCL_ID_BYTES = 128 };

/* nccl.c. Loads NCCL and, on rank 0, makes an id; else *why says what is wrong. */
struct weft__nccl *weft__nccl_load(bool first, void *id, weft_error *why);
weft_status weft__nccl_open(struct weft__nccl *nccl, const struct weft__comm_link *link,
                            const void *id, weft_error *err);
/* Frees it; NULL allowed. */
void weft__nccl_close(struct weft__nccl *nccl);
/* Ends its kernels, wherever they are: NCCL's own waits have no bound. */
void weft__nccl_abort(struct weft__nccl *nccl);
/* Between begin and end, what is to be sent to and received from ranks of the world. */
struct weft__nccl_part {
    int peer;
    uint64_t send, receive, send_bytes, receive_bytes;
};
weft_status weft__nccl_exchange(struct weft__nccl *nccl, const struct weft__nccl_part *parts,
                                int count, CUstream stream, weft_error *err);
weft_status weft__nccl_baseline(struct weft__comm_kernels *k, enum weft__comm_op op, const void *in,
                                void *out, size_t bytes, weft_error *err);

/* Waits for what was enqueued; failures go to link->fault. */
void weft__cuda_sync(struct weft__comm_kernels *k);

/* Whether a kernel of every instance fits beside those of all ranks on the device. */
weft_status weft__cuda_check_fit(struct weft__comm_kernels *k, weft_error *err);

extern const struct weft__dev_trial weft__cuda_trials;

void weft__cuda_tune(struct weft__comm_kernels *k, const struct weft__cuda_tuning *tuning);

#endif
