/* comm.h: a GPU rank's communicator: what open.c makes and launch.c uses. */
#ifndef WEFT_SRC_DEV_CUDA_COMM_H
#define WEFT_SRC_DEV_CUDA_COMM_H

#include "dev/cuda_args.h"
#include "driver.h"

enum {
    WEFT__CUDA_ROWS_MAX = 2048,           /* of one launch */
    WEFT__CUDA_PACKED_BYTES = 512 * 1024, /* of a half slot: 256 KiB of data */
    WEFT__CUDA_BLOCKS_MAX = 2048,         /* of one launch; each has a flag */
    WEFT__CUDA_STATIC_SHARED = 8 * 1024,  /* bytes, at least what a kernel declares itself */
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
    bool processes;                        /* ranks are, not threads of one */
    void *registered[WEFT_COMM_RANKS_MAX]; /* control blocks of segments, pinned */
    struct weft__cuda_memory memory[WEFT__COMM_CHANNELS];
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
    WEFT__CUDA_PLAIN
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

struct weft__comm_kernels {
    struct weft__comm_link link;
    struct weft__cuda_rank *rank;
    struct weft__cuda_link paths[WEFT_PATH_HOST + 1]; /* by weft_path; AUTO: the best */
    uint32_t usable;                                  /* mask of paths */
    uint64_t packed_bytes, plain_bytes;               /* of a half slot */
    CUfunction reduce[WEFT__CUDA_INSTANCES], move;
    struct weft__cuda_fit fits[64];
    int fit_count;
    struct weft__cuda_tuning tuning;
    struct weft__cuda_trial trial;
    struct weft__nccl *nccl; /* of a baseline */
};

/* Makes a failed CUDA call the session's failure. */
void weft__cuda_give_up(const struct weft__comm_kernels *k, const weft_error *why);

/* The device part of all_gather, broadcast and barrier; also what open checks paths with. */
void weft__cuda_move(struct weft__comm_kernels *k, const struct weft__comm_move_args *args);
void weft__cuda_reduce(struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args);

/* Waits for what was enqueued; failures go to link->fault. */
void weft__cuda_sync(struct weft__comm_kernels *k);

/* Whether a kernel of every instance fits beside those of all ranks on the device. */
weft_status weft__cuda_check_fit(struct weft__comm_kernels *k, weft_error *err);

extern const struct weft__dev_trial weft__cuda_trials;
extern const struct weft__dev_baseline weft__cuda_nccl;

void weft__cuda_tune(struct weft__comm_kernels *k, const struct weft__cuda_tuning *tuning);

#endif
