/* device.h: the part of CUDA C that kernels/ uses, as C++ for the CPU. A GPU's thread is a fiber
 * here: it runs until it waits, then the next one does, all on one thread of the CPU. What it
 * replaces and what that hides: see driver.cpp. */
#ifndef WEFT_TESTS_EMULATE_DEVICE_H
#define WEFT_TESTS_EMULATE_DEVICE_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <type_traits>

extern int emulated_arch; /* of the machine code: 900 has clusters, 800 has not */

namespace emulate
{

enum { WARP = 32, WARPS_MAX = 32, STATIC_SHARED_BYTES = 16384 };

/* Threads that meet; each meeting is a new generation. */
struct gathering {
    uint32_t arrived, generation;
};

struct warp {
    struct gathering all;
    uint64_t value[2][WARP]; /* what the threads brought to odd and even generations */
};

struct block {
    unsigned index, threads, blocks, cluster;
    unsigned pace;                       /* of PACES turns, how many it uses, about */
    struct block *first;                 /* of its cluster */
    char *shared;                        /* STATIC_SHARED_BYTES, then what the launch asked for */
    struct gathering all, whole_cluster; /* the latter is used in the first block */
    bool every[2];
    struct warp warps[WARPS_MAX];
};

struct fiber {
    void *stack_pointer;
    char *stack;
    struct block *block;
    unsigned thread;
    bool done;
    const uint32_t *awaited; /* nothing happens while this word is `seen`; NULL: run */
    uint32_t seen;
    uint32_t cluster_generation;
    struct {
        void *to;
        const void *from;
        uint32_t group;
    } ahead[16]; /* loads that are on their way */
    uint32_t aheads, group;
};

extern struct fiber *current;

void yield();

static inline void await_change(const uint32_t *word, uint32_t seen)
{
    current->awaited = word;
    current->seen = seen;
    yield();
    current->awaited = nullptr;
}

/* The generation that the thread has come to. */
static inline uint32_t arrive(struct gathering *all, uint32_t count)
{
    uint32_t generation = all->generation;
    if (++all->arrived == count) {
        all->arrived = 0;
        all->generation++;
    }
    return generation;
}

static inline uint32_t meet(struct gathering *all, uint32_t count)
{
    uint32_t generation = arrive(all, count);
    if (all->generation == generation) await_change(&all->generation, generation);
    return generation;
}

template <class To, class From> static inline To bits_as(From from)
{
    To to = {};
    memcpy(&to, &from, sizeof from < sizeof to ? sizeof from : sizeof to);
    return to;
}

/* What every thread of the warp brought. */
template <class V> static inline const uint64_t *exchange(V value)
{
    struct warp *warp = &current->block->warps[current->thread / WARP];
    warp->value[warp->all.generation % 2][current->thread % WARP] = bits_as<uint64_t>(value);
    return warp->value[meet(&warp->all, WARP) % 2];
}

template <class T> static inline T &static_shared()
{
    static_assert(sizeof(T) <= STATIC_SHARED_BYTES, "STATIC_SHARED_BYTES is too small");
    return *(T *)current->block->shared;
}

template <class T> static inline T *dynamic_shared()
{
    return (T *)(current->block->shared + STATIC_SHARED_BYTES);
}

/* A GPU's arithmetic has one NaN. */
static inline float one_nan(float v) { return v != v ? bits_as<float>(0x7fffffff) : v; }

} // namespace emulate

/* ---- the language ---- */

#define __CUDACC__
#define __CUDA_ARCH__ emulated_arch /* 0 for the preprocessor: the oldest chip's branches */
#define __host__
#define __device__
#define __global__
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)

struct uint2 {
    uint32_t x, y;
};

struct uint4 {
    uint32_t x, y, z, w;
};

struct emulate_index {
    unsigned x;
};

#define threadIdx (emulate_index{emulate::current->thread})
#define blockIdx (emulate_index{emulate::current->block->index})
#define blockDim (emulate_index{emulate::current->block->threads})
#define gridDim (emulate_index{emulate::current->block->blocks})

static inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }

static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}

template <class A, class B> static inline typename std::common_type<A, B>::type min(A a, B b)
{
    typename std::common_type<A, B>::type left = a, right = b;
    return left < right ? left : right;
}

template <class A, class B> static inline typename std::common_type<A, B>::type max(A a, B b)
{
    typename std::common_type<A, B>::type left = a, right = b;
    return left > right ? left : right;
}

static inline uint32_t __float_as_uint(float v) { return emulate::bits_as<uint32_t>(v); }
static inline float __uint_as_float(uint32_t bits) { return emulate::bits_as<float>(bits); }
static inline float __fadd_rn(float a, float b) { return emulate::one_nan(a + b); }
static inline float __fmul_rn(float a, float b) { return emulate::one_nan(a * b); }
static inline float __fdiv_rn(float a, float b) { return emulate::one_nan(a / b); }
static inline int __ffs(int bits) { return __builtin_ffs(bits); }

template <class V> static inline V __shfl_sync(unsigned, V value, int lane)
{
    return emulate::bits_as<V>(emulate::exchange(value)[lane]);
}

template <class V> static inline V __shfl_xor_sync(unsigned, V value, int mask)
{
    const uint64_t *all = emulate::exchange(value);
    return emulate::bits_as<V>(all[(int)(emulate::current->thread % emulate::WARP) ^ mask]);
}

static inline int __all_sync(unsigned, int holds)
{
    const uint64_t *all = emulate::exchange(holds != 0);
    for (int lane = 0; lane < emulate::WARP; lane++)
        if (!all[lane]) return 0;
    return 1;
}

static inline uint32_t __reduce_max_sync(unsigned, uint32_t value)
{
    const uint64_t *all = emulate::exchange(value);
    uint64_t most = 0;
    for (int lane = 0; lane < emulate::WARP; lane++) most = max(most, all[lane]);
    return (uint32_t)most;
}

static inline void __syncwarp() { (void)emulate::exchange(0); }

static inline int __syncthreads_and(int holds)
{
    struct emulate::block *block = emulate::current->block;
    bool *every = &block->every[block->all.generation % 2];
    *every = (block->all.arrived == 0 || *every) && holds;
    (void)emulate::meet(&block->all, block->threads);
    return *every;
}

static inline void __syncthreads() { (void)__syncthreads_and(1); }
static inline void __threadfence_system() {}

static inline uint32_t atomicAdd(uint32_t *word, uint32_t add)
{
    return __atomic_fetch_add(word, add, __ATOMIC_SEQ_CST);
}

static inline uint32_t atomicCAS(uint32_t *word, uint32_t expected, uint32_t wanted)
{
    (void)__atomic_compare_exchange_n(word, &expected, wanted, false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_SEQ_CST);
    return expected;
}

/* ---- instead of the assembly of reduce.cu ---- */

#include "base/numerics.h"

/* The instructions differ from numerics.h in what NaN becomes. */
static inline uint32_t bf16_or_nan(float v) { return v != v ? 0x7fff : weft__bf16_from_f32(v); }
static inline uint32_t f16_or_nan(float v) { return v != v ? 0x7fff : weft__f16_from_f32(v); }

static inline uint32_t cvt_bf16x2(float high, float low)
{
    return bf16_or_nan(high) << 16 | bf16_or_nan(low);
}

static inline uint32_t cvt_f16x2(float high, float low)
{
    return f16_or_nan(high) << 16 | f16_or_nan(low);
}

/* ---- instead of the first half of wait.cuh; every load lets the others run before ---- */

#include "dev/cuda_args.h"

static inline uint4 load_whole(const char *p)
{
    emulate::yield();
    return *(const uint4 *)p;
}

static inline void store_whole(char *p, uint4 v) { *(uint4 *)p = v; }
static inline uint4 load_pair(const char *p) { return load_whole(p); }
static inline void store_pair(char *p, uint4 v) { store_whole(p, v); }

static inline uint64_t load_relaxed_u64(const void *p)
{
    emulate::yield();
    return __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED);
}

static inline void store_relaxed_u64(void *p, uint64_t v)
{
    __atomic_store_n((uint64_t *)p, v, __ATOMIC_RELAXED);
}

static inline uint64_t load_acquire_u64(const void *p)
{
    emulate::yield();
    return __atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE);
}

static inline uint32_t load_acquire_u32(const void *p)
{
    emulate::yield();
    return __atomic_load_n((const uint32_t *)p, __ATOMIC_ACQUIRE);
}

static inline uint32_t load_relaxed_u32(uint64_t p) { return load_acquire_u32((const void *)p); }

static inline void store_relaxed_u32(char *p, uint32_t v)
{
    __atomic_store_n((uint32_t *)p, v, __ATOMIC_RELAXED);
}

static inline void store_release_u32(uint64_t p, uint32_t v)
{
    __atomic_store_n((uint32_t *)p, v, __ATOMIC_RELEASE);
}

static inline uint64_t now_ns()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Half of the warps as late as can be, when it is waited for, the others at once. */
static inline void load_ahead(uint4 *to, const uint4 *from)
{
    struct emulate::fiber *me = emulate::current;
    if (me->thread / emulate::WARP % 2 != me->block->index % 2) {
        *to = *from;
        return;
    }
    me->ahead[me->aheads++] = {to, from, me->group};
}

static inline void commit_ahead() { emulate::current->group++; }

template <uint32_t COUNT> static inline void await_ahead()
{
    struct emulate::fiber *me = emulate::current;
    uint32_t left = 0;
    for (uint32_t i = 0; i < me->aheads; i++)
        if (me->ahead[i].group + COUNT < me->group)
            memcpy(me->ahead[i].to, me->ahead[i].from, sizeof(uint4));
        else
            me->ahead[left++] = me->ahead[i];
    me->aheads = left;
}

/* A stream's kernels run one after the other. */
static inline void grid_wait() {}
static inline void grid_release() {}

static inline void cluster_arrive()
{
    struct emulate::block *first = emulate::current->block->first;
    emulate::current->cluster_generation =
        emulate::arrive(&first->whole_cluster, first->threads * first->cluster);
}

static inline void cluster_wait()
{
    const uint32_t *now = &emulate::current->block->first->whole_cluster.generation;
    uint32_t seen = emulate::current->cluster_generation;
    if (*now == seen) emulate::await_change(now, seen);
}

struct meeting {
    uint32_t arrived; /* values, ever */
    uint32_t values[WEFT_COMM_HIDDEN_MAX / WEFT__CUDA_GROUP];
};

static inline void meeting_init(struct meeting *meeting) { meeting->arrived = 0; }

static inline void meeting_put(struct meeting *meeting, int cluster, int group, uint32_t value)
{
    int block = (int)(emulate::current->thread % emulate::WARP);
    if (block >= cluster) return;
    const struct emulate::block *mine = emulate::current->block;
    const struct emulate::block *other = mine->first + block;
    struct meeting *there = (struct meeting *)(other->shared + ((char *)meeting - mine->shared));
    there->values[group] = value;
    there->arrived++;
}

static inline void meeting_wait(struct meeting *meeting, int cluster, int groups, uint32_t use)
{
    if (cluster == 1) {
        __syncthreads();
        return;
    }
    while (meeting->arrived < (uint32_t)groups * (use + 1))
        emulate::await_change(&meeting->arrived, meeting->arrived);
}

#endif
