/* comm.h: inside the communicator: worlds, sessions, and what tests may tune. */
#ifndef WEFT_SRC_COMM_H
#define WEFT_SRC_COMM_H

#include <pthread.h>

#include "base/base.h"
#include "dev/comm_args.h"

/* The lives of a world's communicators from open to close. A rank that opens again after a failure
 * starts a new session, while a stuck rank may still keep the old one. When ranks are processes,
 * each has a session object of its own, with the others' segments mapped. */
struct weft__session {
    struct weft_world *world;
    uint32_t joined, left; /* masks of ranks of this process, under world->mutex */
    size_t segment_bytes;
    uint8_t *segment[WEFT__MAX_RANKS];
    struct weft__meeting *meeting; /* of processes of one host, else NULL */
    struct weft__wire *wire;       /* of processes of several hosts, else NULL */
};

struct weft__tuning {
    uint32_t first_epoch; /* 0: 1 */
    bool portable;        /* no vector instructions beyond the baseline */
    weft_path spoilt; /* known data of this path arrives spoilt at the last rank; AUTO: of none */
    int plan_ms;      /* to measure ways for; 0: 400; < 0: no plan, AUTO is the device's guess */
};

/* How an operation goes. */
struct weft__comm_choice {
    uint32_t way; /* comm_args.h */
    bool two_shot;
};

struct weft_world {
    weft_world_options options; /* defaults filled in */
    struct weft__tuning tuning;
    const struct weft__dev_comm *dev;
    int device[WEFT__MAX_RANKS]; /* of GPU ranks: CUDA ordinals */
    char *meeting_name;          /* of processes of one host, else NULL */
    bool across;                 /* ranks are processes of several hosts */
    struct weft__mpi *mpi;       /* then, once it is started */
    pthread_mutex_t mutex;       /* guards what follows, and the sessions' masks */
    pthread_cond_t changed;
    struct weft__session *current;     /* which ranks may still join, or have */
    uint32_t starved[WEFT__MAX_RANKS]; /* masks of ranks without memory to join with, of which
                                          this rank has yet to hear */
    int references;                    /* the creator's and the sessions' */
};

struct weft_comm {
    struct weft__session *session;
    struct weft_comm *root; /* the world's communicator of this rank; itself when it is that */
    struct weft__comm_link link;
    struct weft__comm_kernels *kernels;
    struct weft__comm_kernels *host; /* of GPU ranks: for host data, same channel; else NULL */
    struct weft__comm_channel *channel;
    const struct weft__dev_comm *dev;
    weft_algorithm algorithm;
    uint32_t lent_epoch; /* the operation that weft_comm_input last gave a buffer for */
    weft_comm_stats stats;
    const struct weft__comm_choice *trial; /* what is measured at the moment, else NULL */
    /* of the root: */
    uint8_t *heap; /* offsets are from here: the segment, or as if the device's heap were in it */
    struct weft__comm_plan *plan;                 /* NULL: nothing was measured */
    struct weft_comm *group[WEFT__COMM_CHANNELS]; /* by channel */
    int next_channel;
    size_t heap_next, heap_end; /* offsets in the segment */
};

weft_status weft__world_create(const weft_world_options *options, const struct weft__tuning *tuning,
                               weft_world **out, weft_error *err);

void weft__world_put(weft_world *world); /* gives up a reference */

/* What rank 0 decides for ranks that are processes, as it travels. */
struct weft__world_card {
    uint64_t message_bytes, heap_bytes;
    uint32_t timeout_ms, first_epoch;
    int32_t algorithm, path;
};

struct weft__world_card weft__world_card_of(const weft_world *world);
void weft__world_adopt(weft_world *world, const struct weft__world_card *card);

/* Blocks until all ranks have joined. */
weft_status weft__session_join(weft_world *world, int rank, struct weft__session **out,
                               weft_error *err);
void weft__session_leave(struct weft__session *session, int rank);
/* Ends each other thread's wait for this rank, or its next one: there is no memory to join with. */
void weft__session_starve(weft_world *world, int rank);

/* Sizes a session by its world's options; memory of this process alone for all ranks. */
weft_status weft__session_map(struct weft__session *session, weft_error *err);

/* Over MPI: the first session starts it. Adopts rank 0's options. */
weft_status weft__mpi_open(struct weft__session *session, int rank, weft_error *err);
void weft__mpi_close(struct weft__wire *wire);
void weft__mpi_free(struct weft__mpi *mpi); /* NULL allowed */

/* ---- layout of a segment (comm_args.h) ---- */

static inline size_t weft__staging_at(void)
{
    return weft__round_up(sizeof(struct weft__comm_rank) + sizeof(struct weft__comm_fault), 4096);
}

static inline size_t weft__staging_bytes(const weft_world_options *options)
{
    return WEFT__STAGING_MESSAGES * options->message_bytes;
}

static inline struct weft__comm_rank *weft__control_of(const struct weft__session *session,
                                                       int rank)
{
    return (struct weft__comm_rank *)(void *)session->segment[rank];
}

static inline struct weft__comm_fault *weft__fault_of(const struct weft__session *session)
{
    return (struct weft__comm_fault *)(void *)(session->segment[0] +
                                               sizeof(struct weft__comm_rank));
}

/* An all_gather of host memory, also between GPU ranks. Kernels enqueued so far are complete then,
 * so that what follows may synchronise devices. */
weft_status weft__comm_gather_host(weft_comm *comm, const weft_gather *gather, weft_error *err);

/* Measures what AUTO shall mean; collective, of a root communicator. Freed with free(). */
weft_status weft__comm_plan_make(weft_comm *comm, weft_error *err);

/* How an operation on `bytes` of a rank's input goes; placed: which peers can read in place. */
struct weft__comm_choice weft__comm_plan_choose(const weft_comm *comm, enum weft__comm_op op,
                                                uint64_t bytes, bool placed);

const char *weft__comm_op_name(uint32_t op); /* of enum weft__comm_op; never NULL */

/* WEFT_OK while the session is healthy, else its failure. */
weft_status weft__comm_health(const weft_comm *comm, weft_error *err);

static inline int weft__comm_world_rank(const weft_comm *comm)
{
    return comm->link.world_rank[comm->link.rank];
}

#endif
