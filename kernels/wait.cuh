/* wait.cuh: memory order between ranks, and waits that end.
 *
 * Every word that ranks exchange is written and read with system scope:
 *   packed word    st.relaxed / ld.relaxed: a word of data and the epoch are one 8-byte access, so
 *                  nothing has to be ordered
 *   dense vector   the same with three words and the epoch in one 16-byte access, of the scalar
 *                  type b128
 *   flag           st.relaxed after a block barrier and a fence, which order all payload stores of
 *                  the block before it; partner: ld.acquire, a block barrier, the payload loads,
 *                  also those that go to shared memory, which each thread awaits itself
 *   arrival word   st.relaxed / ld.relaxed: one 8-byte access; it carries no payload with it, and
 *                  says that the sender's earlier kernels are complete (grid_wait came first), so
 *                  that what they stored is in the memory of its device. Where peers read that in
 *                  place: ld.acquire, a block barrier, the loads
 *   release flag   st.relaxed after a block barrier: what the block has read may be overwritten.
 *                  Its loads have returned, since their values were used before the barrier
 * A reader trusts only words that hold the current epoch, so halves need no clearing. */
#ifndef WEFT_KERNELS_WAIT_CUH
#define WEFT_KERNELS_WAIT_CUH

#include "dev/cuda_args.h"

/* ---- system-scope accesses ---- */

/* Two words of 8 bytes. */
__device__ static inline uint4 load_pair(const char *p)
{
    uint4 v;
    asm volatile("{ .reg .b64 a, b; ld.relaxed.sys.global.v2.b64 {a, b}, [%4]; "
                 "mov.b64 {%0, %1}, a; mov.b64 {%2, %3}, b; }"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

__device__ static inline void store_pair(char *p, uint4 v)
{
    asm volatile("{ .reg .b64 a, b; mov.b64 a, {%1, %2}; mov.b64 b, {%3, %4}; "
                 "st.relaxed.sys.global.v2.b64 [%0], {a, b}; }" ::"l"(p),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* One word of 16 bytes. */
__device__ static inline uint4 load_whole(const char *p)
{
    uint64_t low, high;
    asm volatile("{ .reg .b128 v; ld.relaxed.sys.global.b128 v, [%2]; mov.b128 {%0, %1}, v; }"
                 : "=l"(low), "=l"(high)
                 : "l"(p)
                 : "memory");
    return make_uint4((uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32));
}

__device__ static inline void store_whole(char *p, uint4 v)
{
    uint64_t low = (uint64_t)v.y << 32 | v.x, high = (uint64_t)v.w << 32 | v.z;
    asm volatile(
        "{ .reg .b128 v; mov.b128 v, {%1, %2}; st.relaxed.sys.global.b128 [%0], v; }" ::"l"(p),
        "l"(low), "l"(high)
        : "memory");
}

__device__ static inline uint64_t load_relaxed_u64(const void *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ static inline void store_relaxed_u64(void *p, uint64_t v)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ static inline uint32_t load_relaxed_u32(uint64_t p)
{
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ static inline uint64_t load_acquire_u64(const void *p)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ static inline uint32_t load_acquire_u32(const void *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ static inline void store_relaxed_u32(char *p, uint32_t v)
{
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ static inline void store_release_u32(uint64_t p, uint32_t v)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

__device__ static inline uint64_t now_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* ---- loads into shared memory, 16 bytes each, that a thread does not wait for but when it wants
 * them ---- */

__device__ static inline void load_ahead(uint4 *to, const uint4 *from)
{
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
}

/* Those since the last commit are one group. */
__device__ static inline void commit_ahead()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until all groups but the last COUNT are there. */
template <uint32_t COUNT> __device__ static inline void await_ahead()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(COUNT) : "memory");
}

/* ---- launch chaining; on chips without it the stream's order has done the same ---- */

/* Until the kernels before this one are complete and their stores visible. Nothing that they write
 * is read before. */
__device__ static inline void grid_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ static inline void grid_release()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- clusters of blocks; without them a cluster is one block ---- */

__device__ static inline void cluster_arrive()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ static inline void cluster_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* One value of each group of a row, in every block of the cluster. A value brings its own signal,
 * so that nothing else has to be ordered: a cluster barrier with release would wait for the block's
 * outstanding stores to global memory, about a microsecond. */
struct meeting {
    uint64_t barrier; /* mbarrier; counts bytes that have arrived. Only for several blocks */
    uint32_t values[WEFT_COMM_HIDDEN_MAX / WEFT__CUDA_GROUP];
};

/* For the first thread of each block, before cluster_arrive(). */
__device__ static inline void meeting_init(struct meeting *meeting)
{
#if __CUDA_ARCH__ >= 900
    uint32_t barrier = (uint32_t)__cvta_generic_to_shared(&meeting->barrier);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/* A group's value; for a whole warp, whose lane b writes to block b. */
__device__ static inline void meeting_put(struct meeting *meeting, int cluster, int group,
                                          uint32_t value)
{
    int block = (int)threadIdx.x % 32;
    if (block >= cluster) return;
    if (cluster == 1) {
        meeting->values[group] = value;
        return;
    }
#if __CUDA_ARCH__ >= 900
    uint32_t word = (uint32_t)__cvta_generic_to_shared(meeting->values + group);
    uint32_t barrier = (uint32_t)__cvta_generic_to_shared(&meeting->barrier);
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(word) : "r"(block));
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(barrier) : "r"(block));
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(word),
        "r"(value), "r"(barrier)
        : "memory");
#endif
}

/* Until the values of all groups are there; for a whole block, which has at least one of the
 * groups. use: how often this meeting has been waited for before. The next use is safe when every
 * warp has put into another meeting since. */
__device__ static inline void meeting_wait(struct meeting *meeting, int cluster, int groups,
                                           uint32_t use)
{
    if (cluster == 1) {
        __syncthreads();
        return;
    }
#if __CUDA_ARCH__ >= 900
    uint32_t barrier = (uint32_t)__cvta_generic_to_shared(&meeting->barrier), done = 0;
    if (threadIdx.x == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                     "r"(groups * 4)
                     : "memory");
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, "
                     "[%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(barrier), "r"(use & 1)
                     : "memory");
#endif
}

/* ---- waits ---- */

/* Tries between two looks at the clock: some 50 us in device memory, 300 us over PCIe. Nanoseconds
 * between two looks at the host's memory: thousands of threads that look each time would fill the
 * link, and what they wait for would come the later. */
enum { TRIES = 128, LOOK_NS = 1000000 };

/* What a thread knows of the operation it takes part in. */
struct call {
    const struct weft__cuda_link *link;
    uint64_t half; /* offset of this epoch's half in every slot */
    uint32_t epoch, op, phase, signature;
};

/* The last look at the host's memory. */
struct patience {
    int peer; /* who was waited for; -1: nobody yet */
    uint32_t beat;
    uint32_t closed;
    uint64_t since;  /* when the beat changed */
    uint64_t looked; /* 0: never */
};

__device__ static inline struct call call_of(const struct weft__cuda_link *link, uint32_t op,
                                             uint32_t signature)
{
    uint32_t epoch = load_relaxed_u32(link->epoch);
    return {link, (epoch & 1) * link->half_bytes, epoch, op, WEFT__INPUT, signature};
}

__device__ static inline char *half_of(const struct call &call, uint64_t slot)
{
    return (char *)(slot + call.half);
}

/* The first thread of this rank to fail writes the record; everyone's poison is raised. */
__device__ static void fail(const struct call &call, int peer, uint32_t kind, uint64_t elapsed)
{
    struct weft__cuda_watch *watch = (struct weft__cuda_watch *)call.link->watch;
    if (atomicCAS(&watch->claimed, 0u, 1u) != 0) return;
    struct weft__comm_rank *mine = (struct weft__comm_rank *)watch->control[call.link->rank];
    volatile struct weft__cuda_record *record = (volatile struct weft__cuda_record *)mine->record;
    record->rank = watch->world_rank[call.link->rank];
    record->peer = watch->world_rank[peer];
    record->kind = (uint16_t)kind;
    record->op = call.op;
    record->phase = call.phase;
    record->epoch = call.epoch;
    record->channel = watch->channel;
    record->elapsed_ns = elapsed;
    store_release_u32((uint64_t)&record->state, 1); /* partner: the host's acquire of state */
    store_release_u32(watch->poison, 1);
}

/* A look at the clock while `peer` is waited for: false when waiting has no use any more. */
__device__ static __noinline__ bool keep_waiting(struct call call, struct patience *last, int peer)
{
    const struct weft__cuda_link *link = call.link;
    const struct weft__cuda_watch *watch = (const struct weft__cuda_watch *)link->watch;
    const struct weft__comm_rank *theirs = (const struct weft__comm_rank *)watch->control[peer];
    uint64_t now = now_ns(), elapsed = now - last->since;
    if (last->looked == 0) last->looked = now;
    if (now - last->looked < LOOK_NS) return true;
    last->looked = now;
    if (load_relaxed_u32(watch->poison) != 0 || load_relaxed_u32(watch->fault) != 0) return false;
    uint64_t word = load_relaxed_u64(half_of(call, link->recv[peer]));
    if ((uint32_t)word == call.epoch && (uint32_t)(word >> 32) != call.signature) {
        fail(call, peer, WEFT__FAULT_MISMATCH, 0);
        return false;
    }
    /* A rank closes when its kernels are complete: what it has not sent by then does not come. */
    uint32_t closed = load_acquire_u32(&theirs->channel[watch->channel].closed);
    if (peer == last->peer && last->closed != 0) {
        fail(call, peer, WEFT__FAULT_CLOSED, elapsed);
        return false;
    }
    uint32_t beat = load_relaxed_u32((uint64_t)&theirs->heartbeat);
    if (peer != last->peer || beat != last->beat || closed != 0) {
        *last = {peer, beat, closed, now, now};
        return true;
    }
    if (elapsed <= watch->budget_ns) return true;
    fail(call, peer, WEFT__FAULT_TIMEOUT, elapsed);
    return false;
}

/* ---- begin and end of an operation ---- */

/* The ticket of a block, for its first thread. The last block to draw one will advance the epoch.
 * For whole blocks. */
__device__ static inline uint32_t draw_ticket(const struct weft__cuda_link *link, uint32_t epoch)
{
    if (link->sends == 0) return 0;
    /* An epoch is never 0; the sum depends on all threads' loads of it, so it comes after them. */
    int known = __syncthreads_and(epoch != 0);
    return threadIdx.x == 0 ? atomicAdd((uint32_t *)link->done, known ? 1u : 0u) : 0;
}

/* The next kernel, or the next replay of a graph, finds the new epoch. 0 is never an epoch, and
 * neighbours differ in their lowest bit. */
__device__ static inline void finish(const struct weft__cuda_link *link, uint32_t epoch,
                                     uint32_t ticket)
{
    if (threadIdx.x != 0 || link->sends == 0 || ticket + 1 != gridDim.x) return;
    *(uint32_t *)link->done = 0;
    *(uint32_t *)link->epoch = epoch == 0xffffffffu ? 2 : epoch + 1;
}

/* For each thread of a rank's first block that has the number of a slot to send to. */
__device__ static inline void send_arrival(struct call call)
{
    const struct weft__cuda_link *link = call.link;
    if ((int)threadIdx.x < link->sends)
        store_relaxed_u64(half_of(call, link->send[threadIdx.x]),
                          (uint64_t)call.signature << 32 | call.epoch);
}

/* The word of the peer that has this thread's number; of this rank itself when there is none. */
__device__ static inline uint64_t look_for_arrival(struct call call, bool acquire = false)
{
    const struct weft__cuda_link *link = call.link;
    uint64_t expected = (uint64_t)call.signature << 32 | call.epoch;
    if ((int)threadIdx.x >= link->ranks || link->sends == 0) return expected;
    const char *word = half_of(call, link->recv[threadIdx.x]);
    return acquire ? load_acquire_u64(word) : load_relaxed_u64(word);
}

/* Every peer runs this operation, and the same one. So nobody is more than one epoch ahead, which
 * is why two halves suffice, also for operations in which not all ranks wait for all others.
 * `seen` is what look_for_arrival() found. */
__device__ static inline bool await_arrivals(struct call call, uint64_t seen, bool acquire = false)
{
    struct patience last = {-1, 0, 0, 0, 0};
    int peer = (int)threadIdx.x;
    call.phase = WEFT__INPUT;
    for (uint32_t tries = 1; (uint32_t)seen != call.epoch; tries++) {
        if (tries % TRIES == 0 && !keep_waiting(call, &last, peer)) return false;
        seen = look_for_arrival(call, acquire);
    }
    if ((uint32_t)(seen >> 32) == call.signature) return true;
    fail(call, peer, WEFT__FAULT_MISMATCH, 0);
    return false;
}

/* ---- flags ---- */

__device__ static inline char *flag_of(struct call call, uint64_t slot, int flag)
{
    return half_of(call, slot) + WEFT__CUDA_FLAG_AT + 4 * flag;
}

/* Of one source; for one thread, which hands over to its block by a barrier. */
__device__ static inline bool await_flag(struct call call, struct patience *last, int source,
                                         int flag)
{
    const char *word = flag_of(call, call.link->recv[source], flag);
    for (uint32_t tries = 1; load_acquire_u32(word) != call.epoch; tries++)
        if (tries % TRIES == 0 && !keep_waiting(call, last, source)) return false;
    return true;
}

#endif
