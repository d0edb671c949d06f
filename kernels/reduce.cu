/* reduce.cu: sum over ranks, residual, RMSNorm, quantisation, in one kernel.
 *
 * A row is cut into groups of 256 elements, a warp's 32 lanes times 8; the warps of a cluster of
 * blocks share the groups of a row, and the clusters of the grid share the rows. A rank of p moves,
 * with n bytes of input (packed data takes twice the bytes of plain data, dense
 * data a third more):
 *     one-shot   reads n, writes n to each slot, reads p * n from slots; or, plain data, reads x
 *                once more in the place of its own slot
 *     two-shot   the same with n / p to each owner; then the owner's sums, again n / p to each
 *     in place   the same, but inputs are read where they are, in each rank's own memory
 *     afterwards reads the residual, writes residual_out, y, codes, scales
 * Order: see wait.cuh. Outputs may be the inputs: a row's results are stored by the thread that has
 * read the same elements of that row, after it has. */

#include "base/rows.h"
#include "wait.cuh"

/* ---- eight elements of a row, in storage form: 4 words of 16-bit types, 8 of F32 ---- */

struct bf16 {
    enum { WORDS = 4, NOT_A_NUMBER = 0x7fc0 };
    __device__ static float from(uint32_t bits) { return weft__f32_from_bf16((uint16_t)bits); }
    /* Both of a word: the instruction does what numerics.h says, but for NaN. */
    __device__ static uint32_t to_pair(float low, float high)
    {
        uint32_t word;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
    }
};

struct f16 {
    enum { WORDS = 4, NOT_A_NUMBER = 0x7e00 };
    __device__ static float from(uint32_t bits)
    {
        float v;
        asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((uint16_t)bits));
        return v;
    }
    __device__ static uint32_t to_pair(float low, float high)
    {
        uint32_t word;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
    }
};

struct f32 {
    enum { WORDS = 8 };
};

template <class T> __device__ void unpack(const uint32_t *words, float *v)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = T::from(words[i] & 0xffffu);
        v[2 * i + 1] = T::from(words[i] >> 16);
    }
}

template <> __device__ void unpack<f32>(const uint32_t *words, float *v)
{
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __uint_as_float(words[i]);
}

template <class T> __device__ void pack(const float *v, uint32_t *words)
{
    bool nan = false;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        words[i] = T::to_pair(v[2 * i], v[2 * i + 1]);
        nan = nan || v[2 * i] != v[2 * i] || v[2 * i + 1] != v[2 * i + 1];
    }
    if (!nan) return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (v[2 * i] != v[2 * i]) words[i] = (words[i] & 0xffff0000u) | T::NOT_A_NUMBER;
        if (v[2 * i + 1] != v[2 * i + 1]) words[i] = (words[i] & 0xffffu) | T::NOT_A_NUMBER << 16;
    }
}

template <> __device__ void pack<f32>(const float *v, uint32_t *words)
{
#pragma unroll
    for (int i = 0; i < 8; i++) words[i] = __float_as_uint(weft__f32_canonical(v[i]));
}

/* Chunk number `chunk` of an array of rows. */
template <class T> __device__ void load_chunk(uint64_t array, int64_t chunk, uint32_t *words)
{
    const uint4 *p = (const uint4 *)(array + (uint64_t)chunk * T::WORDS * 4);
#pragma unroll
    for (int i = 0; i < T::WORDS / 4; i++) *(uint4 *)(words + 4 * i) = p[i];
}

template <class T> __device__ void store_chunk(uint64_t array, int64_t chunk, const uint32_t *words)
{
    uint4 *p = (uint4 *)(array + (uint64_t)chunk * T::WORDS * 4);
#pragma unroll
    for (int i = 0; i < T::WORDS / 4; i++) p[i] = *(const uint4 *)(words + 4 * i);
}

/* ---- one thread's place and state ---- */

struct place {
    const struct weft__cuda_reduce_args *a;
    struct call call;
    int chunks, groups;    /* of a row */
    int lane, warp, warps; /* warp: in the cluster */
    int block;             /* in the cluster */
    int tokens;            /* of the launch */
    int first, step;       /* the cluster's rows: first, first + step, ... */
    bool alive;            /* false after a failure: go on without waiting or storing */
    uint64_t arrival;      /* first block: the word that a peer has sent */
    uint32_t ticket;       /* first thread of a block */
    uint32_t *stage;       /* shared memory of this warp, for dense data */
    uint64_t own; /* plain: the slot in which this rank's input is, or as if x were in it */
};

__device__ static inline bool in_row(const place &at, int group)
{
    return group * 32 + at.lane < at.chunks;
}

/* A mixture of experts: this rank's share of row t. */
template <class T> __device__ void mix(const place &at, int t, int group, uint32_t *words)
{
    const struct weft__cuda_reduce_args *a = at.a;
    int column = group * 32 + at.lane;
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0}, v[8];
#pragma unroll 1
    for (int64_t k = t * a->top_k; k < (t + 1) * a->top_k; k++) {
        int64_t slot = ((const int32_t *)a->slots)[k];
        if (slot < 0 || slot >= a->expert_rows) continue;
        float gate = ((const float *)a->gates)[k];
        load_chunk<T>(a->expert_out, slot * at.chunks + column, words);
        unpack<T>(words, v);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = __fadd_rn(sum[i], __fmul_rn(v[i], gate));
    }
    if (a->shared != 0) {
        load_chunk<T>(a->shared, t * at.chunks + column, words);
        unpack<T>(words, v);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = __fadd_rn(sum[i], v[i]);
    }
    pack<T>(sum, words);
}

/* This rank's share of row t, where the thread has some. A warp with ONE group has no mixtures. */
template <class T, bool ONE>
__device__ void form(const place &at, int t, int group, uint32_t *words)
{
    if (!in_row(at, group)) return;
    if (ONE || at.a->top_k == 0)
        load_chunk<T>(at.a->x, t * at.chunks + group * 32 + at.lane, words);
    else
        mix<T>(at, t, group, words);
}

/* ---- exchange of a group: a warp sends and receives it as vectors of 16 bytes ---- */

/* plain: the thread's eight elements; packed: two of its words, each with the epoch; dense: three
 * words of the group, whoever's, and the epoch. */
enum form { plain, packed, dense };

template <class T, enum form FORM>
struct wire {
    enum {
        WORDS = 32 * T::WORDS, /* of a group */
        VECTORS = FORM == plain    ? WORDS / 4
                  : FORM == packed ? WORDS / 2
                                   : (WORDS + 2) / 3,
        EACH = (VECTORS + 31) / 32,          /* at most, of a thread */
        PITCH = (VECTORS + 1) / 2 * 32,      /* bytes from one group to the next */
        STEP = FORM == plain ? 16 : 32 * 16, /* from one vector of a thread to its next */
        BATCH = T::WORDS == 4 && FORM == packed ? 8 : 4,   /* sources read at once */
        STAGED = FORM == dense ? (3 * VECTORS + 3) / 4 : 0 /* vectors of shared memory */
    };
    static_assert(BATCH * STAGED * 16 <= WEFT__CUDA_STAGE_BYTES, "room of a warp");
};

/* Where a thread's first vector of a group is in a slot. A half slot is smaller than 4 GiB. */
template <class T, enum form FORM> __device__ uint64_t offset_of(const place &at, int t, int group)
{
    const struct weft__cuda_link *link = &at.a->link;
    uint32_t chunk = (uint32_t)(t * at.chunks + group * 32 + at.lane);
    uint32_t base = (uint32_t)(t * at.groups + group) * wire<T, FORM>::PITCH;
    if (FORM == plain) return at.call.half + link->plain_at + chunk * (T::WORDS * 4);
    return at.call.half + link->packed_at + base + 16 * (uint32_t)at.lane;
}

/* Whether the thread has a vector j of a group. */
template <class T, enum form FORM> __device__ bool has(const place &at, int group, int j)
{
    using W = wire<T, FORM>;
    if (FORM == plain) return in_row(at, group);
    return W::VECTORS % 32 == 0 || at.lane + 32 * j < W::VECTORS;
}

/* Words 3v .. 3v + 2 of a group, in shared memory. */
__device__ static inline uint32_t *three_of(const place &at, int j)
{
    return at.stage + 3 * (at.lane + 32 * j);
}

template <class T, enum form FORM>
__device__ void wrap(const place &at, const uint32_t *words, uint4 *out)
{
    using W = wire<T, FORM>;
    uint32_t epoch = at.call.epoch;
    if (FORM == dense) {
#pragma unroll
        for (int i = 0; i < T::WORDS / 4; i++)
            ((uint4 *)at.stage)[at.lane * (T::WORDS / 4) + i] = *(const uint4 *)(words + 4 * i);
        __syncwarp();
    }
#pragma unroll
    for (int j = 0; j < W::EACH; j++) {
        const uint32_t *three = three_of(at, j);
        if (FORM == plain)
            out[j] = *(const uint4 *)(words + 4 * j);
        else if (FORM == packed)
            out[j] = make_uint4(words[2 * j], epoch, words[2 * j + 1], epoch);
        else if (at.lane + 32 * j < W::VECTORS)
            out[j] = make_uint4(three[0], three[1], three[2], epoch);
    }
    if (FORM == dense) __syncwarp();
}

/* The thread's words of COUNT sources. */
template <class T, enum form FORM, int COUNT>
__device__ void unwrap(const place &at, const uint4 (*in)[wire<T, FORM>::EACH],
                       uint32_t (*words)[T::WORDS])
{
    using W = wire<T, FORM>;
#pragma unroll
    for (int b = 0; b < COUNT; b++)
#pragma unroll
        for (int j = 0; j < W::EACH; j++) {
            uint32_t *three = three_of(at, j) + 4 * W::STAGED * b;
            uint4 v = in[b][j];
            if (FORM == plain)
                *(uint4 *)(words[b] + 4 * j) = v;
            else if (FORM == packed)
                words[b][2 * j] = v.x, words[b][2 * j + 1] = v.z;
            else if (has<T, FORM>(at, 0, j))
                three[0] = v.x, three[1] = v.y, three[2] = v.z;
        }
    if (FORM != dense) return;
    __syncwarp();
#pragma unroll
    for (int b = 0; b < COUNT; b++)
#pragma unroll
        for (int i = 0; i < T::WORDS / 4; i++)
            *(uint4 *)(words[b] + 4 * i) =
                ((const uint4 *)at.stage)[W::STAGED * b + at.lane * (T::WORDS / 4) + i];
    __syncwarp();
}

/* Row `t` of a slot: inputs first, then, in two-shot reductions, sums. to: the one rank that needs
 * it, or -1; with pull and host all can see it. but_own: not to the slot that is not read, since x
 * is. For a whole warp. */
template <class T, enum form FORM>
__device__ void send(const place &at, int t, int group, int to, bool but_own, const uint32_t *words)
{
    using W = wire<T, FORM>;
    const struct weft__cuda_link *link = &at.a->link;
    uint4 out[W::EACH];
    wrap<T, FORM>(at, words, out);
    uint64_t offset = offset_of<T, FORM>(at, t, group);
    for (int d = 0; d < link->sends; d++) {
        if ((link->push && to >= 0 && d != to) || (but_own && d + 1 == at.a->own)) continue;
        char *p = (char *)(link->send[d] + offset);
#pragma unroll
        for (int j = 0; j < W::EACH; j++, p += W::STEP) {
            if (!has<T, FORM>(at, group, j)) continue;
            if (FORM == plain)
                *(uint4 *)p = out[j];
            else if (FORM == packed)
                store_pair(p, out[j]);
            else
                store_whole(p, out[j]);
        }
    }
}

/* Packed or dense. Zero when the vector is there. */
template <enum form FORM> __device__ uint32_t differs(const place &at, uint4 v)
{
    uint32_t epoch = at.call.epoch;
    return FORM == packed ? (v.y ^ epoch) | (v.w ^ epoch) : v.w ^ epoch;
}

template <enum form FORM> __device__ uint4 load_vector(uint64_t p)
{
    return FORM == packed ? load_pair((const char *)p) : load_whole((const char *)p);
}

/* One try to read packed or dense vectors of sources s .. s + COUNT - 1, the last source in the
 * place of those beyond it. True when all are there. */
template <class T, enum form FORM, int COUNT>
__device__ bool try_take(const place &at, uint64_t offset, int s, int last,
                         uint4 (*in)[wire<T, FORM>::EACH])
{
    using W = wire<T, FORM>;
    uint32_t wrong = 0;
#pragma unroll
    for (int b = 0; b < COUNT; b++) {
        uint64_t p = at.a->link.recv[min(s + b, last)] + offset;
#pragma unroll
        for (int j = 0; j < W::EACH; j++)
            if (has<T, FORM>(at, 0, j)) in[b][j] = load_vector<FORM>(p + W::STEP * j);
    }
#pragma unroll
    for (int b = 0; b < COUNT; b++)
#pragma unroll
        for (int j = 0; j < W::EACH; j++)
            if (has<T, FORM>(at, 0, j)) wrong |= differs<FORM>(at, in[b][j]);
    return wrong == 0;
}

/* The first of the sources s .. last that something is missing from, or -1; for a whole warp. */
template <class T, enum form FORM>
__device__ int missing_source(const place &at, uint64_t offset, int s, int last)
{
    using W = wire<T, FORM>;
    int missing = -1;
#pragma unroll 1
    for (int source = last; source >= s; source--)
        for (int j = 0; j < W::EACH; j++)
            if (has<T, FORM>(at, 0, j) &&
                differs<FORM>(at,
                              load_vector<FORM>(at.a->link.recv[source] + offset + W::STEP * j)))
                missing = source;
    return __reduce_max_sync(~0u, missing);
}

/* A whole warp agrees on whether to go on, so that it stays together. */
__device__ static bool warp_keeps_waiting(const place &at, struct patience *last, int peer)
{
    return __all_sync(~0u, keep_waiting(at.call, last, peer)) != 0;
}

/* Waits for the last vector of a group from each source with one lane, which costs the link less
 * than trying with all of them. */
template <class T, enum form FORM>
__device__ void glance(place &at, struct patience *last, uint64_t offset, int s, int to)
{
    offset += 16 * (wire<T, FORM>::VECTORS - 1 - at.lane) + 12;
    for (; s <= to && at.alive; s++) {
        if (s == at.a->link.rank) continue;
        for (uint32_t tries = 1; at.alive; tries++) {
            uint32_t seen = at.lane == 0 ? load_relaxed_u32(at.a->link.recv[s] + offset) : 0;
            if (__shfl_sync(~0u, seen, 0) == at.call.epoch) break;
            if (tries % TRIES == 0) at.alive = warp_keeps_waiting(at, last, s);
        }
    }
}

__device__ static inline bool in_place(const place &at) { return at.a->from[0] != 0; }

/* Plain data, which is there already. In the rows of inputs, this rank's own may be elsewhere, and
 * so may all. */
template <class T, int COUNT>
__device__ void take_plain(const place &at, int t, int group, int s, int last,
                           uint4 (*in)[wire<T, plain>::EACH])
{
    const struct weft__cuda_link *link = &at.a->link;
    uint64_t offset = offset_of<T, plain>(at, t, group);
    bool input = t < at.tokens, placed = input && in_place(at);
    if (placed) offset -= at.call.half + link->plain_at;
#pragma unroll
    for (int b = 0; b < COUNT; b++) {
        bool own = input && s + b == link->rank, there = s + b <= last;
        uint64_t base = placed ? at.a->from[s + b] : own ? at.own : link->recv[s + b];
        const uint4 *p = (const uint4 *)(base + offset);
#pragma unroll
        for (int j = 0; j < wire<T, plain>::EACH; j++)
            in[b][j] = there && in_row(at, group) ? p[j] : make_uint4(0, 0, 0, 0);
    }
}

/* Waits for sources s .. s + COUNT - 1, as far as they are not beyond `last`, and gives this
 * thread's words of each; for a whole warp. */
template <class T, enum form FORM, int COUNT>
__device__ void take(place &at, int t, int group, int s, int last, uint32_t (*words)[T::WORDS])
{
    uint4 in[COUNT][wire<T, FORM>::EACH];
    if constexpr (FORM == plain) {
        take_plain<T, COUNT>(at, t, group, s, last, in);
    } else {
        uint64_t offset = offset_of<T, FORM>(at, t, group);
        struct patience patience = {-1, 0, 0, 0, 0};
        if (at.a->link.far) glance<T, FORM>(at, &patience, offset, s, min(s + COUNT - 1, last));
        for (uint32_t tries = 1;; tries++) {
            bool there = try_take<T, FORM, COUNT>(at, offset, s, last, in);
            if (__all_sync(~0u, there) || !at.alive) break;
            if (tries % TRIES != 0) continue;
            int peer = missing_source<T, FORM>(at, offset, s, last);
            if (peer >= 0) at.alive = warp_keeps_waiting(at, &patience, peer);
        }
    }
    unwrap<T, FORM, COUNT>(at, in, words);
}

/* Adds sources s .. s + COUNT - 1, as far as there are such; at least half of them are. */
template <class T, enum form FORM, int COUNT>
__device__ void add_sources(place &at, int t, int group, int s, float *sum)
{
    int last = at.a->link.ranks - 1;
    uint32_t words[COUNT][T::WORDS];
    take<T, FORM, COUNT>(at, t, group, s, last, words);
#pragma unroll
    for (int b = 0; b < COUNT; b++) {
        if (b >= COUNT / 2 && s + b > last) break;
        float v[8];
        unpack<T>(words[b], v);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = __fadd_rn(sum[i], v[i]);
    }
}

/* The sum over ranks of eight elements, in ascending order. The fewer ranks, the less code is run:
 * a short message takes as long as fetching its instructions does. */
template <class T, bool ONE, enum form FORM>
__device__ void fold(place &at, int t, int group, float *sum)
{
    int ranks = at.a->link.ranks;
    if (ranks == 1) {
        uint32_t words[T::WORDS] = {};
        form<T, ONE>(at, t, group, words);
        unpack<T>(words, sum);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] = -0.0f; /* adding to it changes no bit */
    for (int s = 0; s < ranks; s += wire<T, FORM>::BATCH) {
        if (ranks - s <= 2)
            add_sources<T, FORM, 2>(at, t, group, s, sum);
        else if (ranks - s <= 4)
            add_sources<T, FORM, 4>(at, t, group, s, sum);
        else
            add_sources<T, FORM, wire<T, FORM>::BATCH>(at, t, group, s, sum);
    }
}

/* round(residual + sum over ranks), in storage form. `out` is the row of the residual. */
template <class T, bool ONE, enum form FORM>
__device__ void sum_up(place &at, int t, int out, int group, uint32_t *words)
{
    const struct weft__cuda_reduce_args *a = at.a;
    uint32_t residual[T::WORDS] = {};
    bool add = a->residual != 0;
    if (add && in_row(at, group))
        load_chunk<T>(a->residual, out * at.chunks + group * 32 + at.lane, residual);
    float sum[8], v[8];
    fold<T, ONE, FORM>(at, t, group, sum);
    unpack<T>(residual, v);
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] = add ? __fadd_rn(v[i], sum[i]) : sum[i];
    pack<T>(sum, words);
}

/* ---- reductions of a row over the cluster; results are the same in all its threads ---- */

struct row_memory {
    struct meeting squares, largest;
};

/* Adds neighbours: the tree of rows.h over the lanes of a warp. */
__device__ static inline float add_lanes(float v)
{
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2)
        v = __fadd_rn(v, __shfl_xor_sync(~0u, v, distance));
    return v;
}

__device__ static inline float add_squares(const float *v)
{
    float q[8];
#pragma unroll
    for (int i = 0; i < 8; i++) q[i] = __fmul_rn(v[i], v[i]);
    return __fadd_rn(__fadd_rn(__fadd_rn(q[0], q[1]), __fadd_rn(q[2], q[3])),
                     __fadd_rn(__fadd_rn(q[4], q[5]), __fadd_rn(q[6], q[7])));
}

/* The root of the tree over the groups of a row. */
__device__ static float tree_root(const place &at, const uint32_t *squares)
{
    float top = 0;
    for (int first = 0; first < at.groups; first += 32) {
        float node = first + at.lane < at.groups ? __uint_as_float(squares[first + at.lane]) : 0.0f;
        node = add_lanes(node);
        if (at.groups <= 32) return node;
        if (at.lane == first / 32) top = node;
    }
    return add_lanes(top);
}

/* ---- outputs ---- */

__device__ static inline uint32_t magnitude(float v) { return __float_as_uint(v) & 0x7fffffffu; }

/* As bits, NaN is above all numbers. */
__device__ static inline uint32_t largest_of(const float *v)
{
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) most = max(most, magnitude(v[i]));
    return most;
}

/* Two codes; the instruction does what numerics.h says. */
__device__ static inline uint32_t e4m3_pair(float low, float high)
{
#if __CUDA_ARCH__ >= 890
    uint16_t codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
#else
    return weft__e4m3_from_f32(low) | (uint32_t)weft__e4m3_from_f32(high) << 8;
#endif
}

__device__ static void store_fp8(const place &at, int chunk, const float *v, float scale)
{
    uint32_t codes[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        codes[i / 4] |= e4m3_pair(__fdiv_rn(v[i], scale), __fdiv_rn(v[i + 1], scale))
                        << 16 * (i / 2 % 2);
    ((uint2 *)at.a->codes)[chunk] = make_uint2(codes[0], codes[1]);
}

/* As numerics.h has it, without branches. */
__device__ static inline uint32_t e2m1(float value)
{
    uint32_t u = __float_as_uint(value), a = u & 0x7fffffffu;
    uint32_t normal = (a - 0x3f000000u + 0x1fffffu + (a >> 22 & 1)) >> 22; /* 1 up */
    /* Below, the low mantissa bits are round(2 a) when the lowest of them is worth 0.5. */
    uint32_t small = __float_as_uint(__fadd_rn(__uint_as_float(a), 4194304.0f)) - 0x4a800000u;
    return (a >= 0x3f800000u ? min(normal, 7u) : small) | (u >> 28 & 8);
}

/* For a whole warp: neighbouring lanes hold the 16 values of a scale. */
__device__ static void store_nvfp4(const place &at, int out, int group, const float *v)
{
    const struct weft__cuda_reduce_args *a = at.a;
    uint32_t most = largest_of(v);
    most = max(most, __shfl_xor_sync(~0u, most, 1));
    if (!in_row(at, group) || !at.alive) return;
    uint8_t scale = weft__nvfp4_scale(__uint_as_float(most), a->quant_scale);
    float inverse = weft__nvfp4_inverse(scale, a->quant_scale);
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) codes |= e2m1(__fmul_rn(v[i], inverse)) << 4 * i;
    int column = group * 32 + at.lane, columns = (int)a->hidden / 16;
    ((uint32_t *)a->codes)[(int64_t)out * at.chunks + column] = codes;
    if (at.lane % 2 != 0) return;
    int64_t offset = a->quant == WEFT_QUANT_NVFP4_SWIZZLED
                         ? weft__swizzled_scale_offset(a->scale_row + out, column / 2, columns)
                         : (int64_t)out * columns + column / 2;
    ((uint8_t *)a->scales)[offset] = scale;
}

/* Zeros in the tiles of swizzled scales where no scale is, shared by all threads of the grid: one
 * vector of a tile has four scales of rows r, r + 32, r + 64, r + 96. */
__device__ static void clear_padding(const place &at)
{
    const struct weft__cuda_reduce_args *a = at.a;
    if (a->pad_rows == 0) return;
    int columns = (int)a->hidden / 16, tiles = (columns + 3) / 4;
    int64_t first = a->scale_row / 128, last = (a->scale_row + a->pad_rows - 1) / 128;
    int vectors = (int)(last - first + 1) * tiles * 32;
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < vectors;
         i += (int)(gridDim.x * blockDim.x)) {
        int tile = i / 32, column = tile % tiles * 4;
        int64_t row = (first + tile / tiles) * 128 + i % 32 - a->scale_row; /* of this launch */
        uint32_t *words = (uint32_t *)a->scales + (first * tiles * 32 + i) * 4;
        if (row >= a->out_rows && row + 96 < a->pad_rows) {
            *(uint4 *)words = make_uint4(0, 0, 0, 0);
            continue;
        }
        for (int k = 0; k < 4; k++, row += 32) {
            if (row >= a->out_rows && row < a->pad_rows) words[k] = 0;
            for (int c = columns; c < column + 4 && row >= 0 && row < a->out_rows; c++)
                ((uint8_t *)(words + k))[c - column] = 0;
        }
    }
}

template <class T> __device__ void load_weight(const place &at, int group, uint32_t *words)
{
    if (at.a->norm_weight != 0 && in_row(at, group))
        load_chunk<T>(at.a->norm_weight, group * 32 + at.lane, words);
}

/* round(round(s * factor) * weight). */
template <class T>
__device__ void normalise(const place &at, float factor, const uint32_t *weight, uint32_t *words)
{
    float v[8], w[8];
    unpack<T>(words, v);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], factor);
    pack<T>(v, words);
    if (at.a->norm_weight == 0) return;
    unpack<T>(words, v);
    unpack<T>(weight, w);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(v[i], w[i]);
    pack<T>(v, words);
}

/* Stores y and the codes that need nothing of other groups; gives the largest magnitude. */
template <class T>
__device__ uint32_t put_y(const place &at, int out, int group, const uint32_t *words)
{
    const struct weft__cuda_reduce_args *a = at.a;
    int chunk = out * at.chunks + group * 32 + at.lane;
    bool mine = in_row(at, group) && at.alive;
    bool later = a->quant == WEFT_QUANT_FP8_TOKEN; /* what others wait for first */
    if (mine && a->y != 0 && !later) store_chunk<T>(a->y, chunk, words);
    if (a->quant == WEFT_QUANT_NONE) return 0;
    float v[8];
    unpack<T>(words, v);
    if (a->quant == WEFT_QUANT_FP8_TENSOR) {
        if (mine) store_fp8(at, chunk, v, a->quant_scale);
    } else if (a->quant != WEFT_QUANT_FP8_TOKEN) {
        store_nvfp4(at, out, group, v);
    }
    return in_row(at, group) ? largest_of(v) : 0;
}

/* Between the passes over a row, a warp keeps its elements: in registers when it has one group,
 * else in shared memory. */
template <class T, bool ONE> struct keeper {
    uint32_t words[T::WORDS];
    __device__ uint32_t *at(const place &, int) { return words; }
};

template <class T> struct keeper<T, false> {
    uint4 *memory; /* [own groups][threads][WORDS / 4] */
    __device__ uint32_t *at(const place &at, int group)
    {
        int own = (group - at.warp) / at.warps;
        return (uint32_t *)(memory + (own * (int64_t)blockDim.x + threadIdx.x) * (T::WORDS / 4));
    }
};

/* After the sum: the warp's rounded s is in `kept`. */
template <class T, bool ONE>
__device__ void finish_row(const place &at, int out, keeper<T, ONE> &kept,
                           const uint32_t *first_weight, struct row_memory *memory, uint32_t use)
{
    const struct weft__cuda_reduce_args *a = at.a;
    float factor = 1;
    if (a->norm) {
        meeting_wait(&memory->squares, a->cluster, at.groups, use);
        factor = weft__rms_factor(tree_root(at, memory->squares.values), a->hidden, a->norm_eps);
    }
    for (int group = at.warp; group < at.groups; group += at.warps) {
        uint32_t *words = kept.at(at, group), weight[T::WORDS] = {};
        if (a->residual_out != 0 && in_row(at, group) && at.alive)
            store_chunk<T>(a->residual_out, out * at.chunks + group * 32 + at.lane, words);
        if (a->norm && !ONE) load_weight<T>(at, group, weight);
        if (a->norm) normalise<T>(at, factor, ONE ? first_weight : weight, words);
        uint32_t most = put_y<T>(at, out, group, words);
        if (a->quant == WEFT_QUANT_FP8_TOKEN)
            meeting_put(&memory->largest, a->cluster, group, __reduce_max_sync(~0u, most));
        if (ONE) break;
    }
    if (a->quant != WEFT_QUANT_FP8_TOKEN) return;
    meeting_wait(&memory->largest, a->cluster, at.groups, use);
    uint32_t most = 0;
    for (int g = at.lane; g < at.groups; g += 32) most = max(most, memory->largest.values[g]);
    float scale = weft__fp8_token_scale(__uint_as_float(__reduce_max_sync(~0u, most)));
    if (!at.alive) return;
    if (at.warp == 0 && at.lane == 0) ((float *)a->scales)[out] = scale;
    for (int group = at.warp; group < at.groups; group += at.warps) {
        if (!in_row(at, group)) break;
        int chunk = out * at.chunks + group * 32 + at.lane;
        const uint32_t *words = kept.at(at, group);
        float v[8];
        unpack<T>(words, v);
        if (a->y != 0) store_chunk<T>(a->y, chunk, words);
        store_fp8(at, chunk, v, scale);
        if (ONE) break;
    }
}

/* ---- rows of a cluster, a section of a few at a time: plain data of a section has its flags
 * together. A section is named by its first row ---- */

/* The rank that sums row t in a two-shot reduction, as weft_comm_share() has it. */
__device__ static inline int owner_of(int tokens, int ranks, int t)
{
    int base = tokens / ranks, more = tokens % ranks;
    if (t < more * (base + 1)) return t / (base + 1);
    return more + (t - more * (base + 1)) / base;
}

__device__ static inline bool summed_here(const place &at, int t)
{
    return t >= at.a->sum_first && t < at.a->sum_first + at.a->sum_rows;
}

/* Flags of inputs come first, flags of sums after those of all rows. */
__device__ static inline int flag_number(const place &at, int t, bool sums)
{
    return (t + (sums ? at.tokens : 0)) * at.a->cluster + at.block;
}

/* Says that the inputs of a section, and the sums made here of another, are in the slots. */
__device__ static void send_flags(const place &at, int inputs, int sums)
{
    const struct weft__cuda_link *link = &at.a->link;
    __syncthreads(); /* the block's payload stores come before the fence */
    if (threadIdx.x >= 32) return;
    __threadfence_system(); /* partner: await_flag() */
    for (int made = 0; made < 2; made++) {
        int section = made ? sums : inputs;
        for (int i = at.lane; i < at.a->section * link->sends; i += 32) {
            int t = section + i / link->sends * at.step;
            if (t < 0 || t >= at.tokens || (made && !summed_here(at, t))) continue;
            store_relaxed_u32(
                flag_of(at.call, link->send[i % link->sends], flag_number(at, t, made != 0)),
                at.call.epoch);
        }
    }
}

/* Waits for all inputs of the rows summed here, or for the sums of all rows. */
__device__ static void await_flags(place &at, int section, bool sums)
{
    struct patience last = {-1, 0, 0, 0, 0};
    int ranks = at.a->link.ranks, sources = sums ? 1 : ranks;
    bool alive = at.alive;
    for (int i = (int)threadIdx.x; alive && i < at.a->section * sources; i += (int)blockDim.x) {
        int t = section + i / sources * at.step;
        if (t >= at.tokens || (!sums && !summed_here(at, t))) continue;
        int source = sums ? owner_of(at.tokens, ranks, t) : i % sources;
        alive = await_flag(at.call, &last, source, flag_number(at, t, sums));
    }
    at.alive = __syncthreads_and(alive) != 0;
}

/* Sends this rank's share of the section's rows, some groups of a warp at once. */
template <class T, bool ONE, enum form FORM>
__device__ void send_inputs(const place &at, int section)
{
    const struct weft__cuda_reduce_args *a = at.a;
    enum { MOST = ONE || FORM != plain ? 1 : 4 };
    int count = ONE || a->top_k == 0 ? MOST : 1;
    int end = min(section + a->section * at.step, at.tokens);
    for (int t = section; t < end; t += at.step) {
        int to = !ONE && a->two_shot ? owner_of(at.tokens, a->link.ranks, t) : -1;
        for (int first = at.warp; first < at.groups; first += count * at.warps) {
            uint32_t words[MOST][T::WORDS] = {};
            form<T, ONE>(at, t, first, words[0]);
#pragma unroll
            for (int i = 1; i < MOST; i++)
                if (i < count) form<T, true>(at, t, first + i * at.warps, words[i]);
#pragma unroll
            for (int i = 0; i < MOST; i++)
                if (i < count && first + i * at.warps < at.groups)
                    send<T, FORM>(at, t, first + i * at.warps, to, FORM == plain, words[i]);
            if (ONE) break;
        }
    }
}

/* Two-shot: sums what is to be summed here, for everyone. */
template <class T, enum form FORM> __device__ void send_sums(place &at, int section)
{
    if (section < 0 || section >= at.tokens) return;
    if (FORM == plain && !in_place(at)) await_flags(at, section, false);
    int end = min(section + at.a->section * at.step, at.tokens);
    for (int t = section; t < end; t += at.step) {
        for (int group = at.warp; group < at.groups && summed_here(at, t); group += at.warps) {
            uint32_t words[T::WORDS];
            sum_up<T, false, FORM>(at, t, t, group, words);
            if (at.alive) send<T, FORM>(at, at.tokens + t, group, -1, false, words);
        }
    }
}

/* s of row t, row `out` of the outputs, in storage form. */
template <class T, bool ONE, enum form FORM>
__device__ void receive(place &at, int t, int out, int group, uint32_t *words)
{
    if (ONE || !at.a->two_shot) {
        sum_up<T, ONE, FORM>(at, t, out, group, words);
        return;
    }
    int owner = owner_of(at.tokens, at.a->link.ranks, t);
    take<T, FORM, 1>(at, at.tokens + t, group, owner, owner, (uint32_t(*)[T::WORDS])words);
}

/* The results of row t. */
template <class T, bool ONE, enum form FORM>
__device__ void receive_row(place &at, int t, keeper<T, ONE> &kept, const uint32_t *weight,
                            struct row_memory *memory, uint32_t use)
{
    const struct weft__cuda_reduce_args *a = at.a;
    int out = t - (int)a->out_first;
    for (int group = at.warp; group < at.groups; group += at.warps) {
        uint32_t *words = kept.at(at, group);
        receive<T, ONE, FORM>(at, t, out, group, words);
        if (a->norm) {
            float v[8];
            unpack<T>(words, v);
            float node = in_row(at, group) ? add_squares(v) : 0.0f;
            meeting_put(&memory->squares, a->cluster, group, __float_as_uint(add_lanes(node)));
        }
        if (ONE) break;
    }
    /* It has arrived by now, and is here when it is wanted. */
    if (blockIdx.x == 0) at.arrival = look_for_arrival(at.call);
    finish_row<T, ONE>(at, out, kept, weight, memory, use);
    /* Warps without a group put nothing, so nothing but this keeps them near the others. */
    if (a->cluster > 1 && at.warps > at.groups) __syncthreads();
}

/* ---- the kernel ---- */

/* Inputs in place can be read when their ranks have arrived. For whole blocks. */
__device__ static void meet(place &at)
{
    if (blockIdx.x == 0) send_arrival(at.call);
    bool there = await_arrivals(at.call, look_for_arrival(at.call, true), true);
    at.alive = __syncthreads_and(there) != 0;
}

/* They are free again when every peer has read them; in two-shot reductions, when the sums are
 * there. A block waits for its like, which had the same rows. */
__device__ static void leave(place &at)
{
    const struct weft__cuda_link *link = &at.a->link;
    struct patience last = {-1, 0, 0, 0, 0};
    int number = (int)threadIdx.x, flag = (int)blockIdx.x;
    at.call.phase = WEFT__RELEASE;
    __syncthreads(); /* all its loads come before */
    if (number < link->sends)
        store_relaxed_u32(flag_of(at.call, link->send[number], flag), at.call.epoch);
    if (number < link->ranks && at.alive) (void)await_flag(at.call, &last, number, flag);
}

/* Sends sections ahead of those it sums, and sums ahead of those it finishes, so that a link
 * carries both directions at once. Flags come last: the fence before them waits for what was sent,
 * which has had the time of all other work to arrive. No rank waits for a row before it has sent
 * the flags of all rows before, so the lowest row that has none gets it. */
template <class T, bool ONE, enum form FORM>
__device__ void exchange(place &at, struct row_memory *memory, uint4 *kept_memory)
{
    const struct weft__cuda_reduce_args &a = *at.a;
    keeper<T, ONE> kept;
    if constexpr (!ONE) kept.memory = kept_memory;
    uint32_t weight[T::WORDS] = {};
    if (ONE && a.norm) load_weight<T>(at, at.warp, weight);
    bool two_shot = !ONE && a.two_shot != 0, sends = a.link.sends > 0;
    bool placed = !ONE && FORM == plain && in_place(at);
    if (placed) meet(at);
    int stride = a.section * at.step, behind = two_shot ? 2 * stride : stride, rows = 0;
    for (int section = at.first; section - behind < at.tokens; section += stride) {
        if (section < at.tokens && sends && !placed) send_inputs<T, ONE, FORM>(at, section);
        if (section == at.first) { /* after the first loads, which do not need the epoch */
            if (blockIdx.x == 0 && !placed) send_arrival(at.call);
            at.ticket = draw_ticket(&a.link, at.call.epoch);
            clear_padding(at);
            if (a.cluster > 1) cluster_wait(); /* partner: in reduce() */
        }
        int sums = section - stride, results = section - behind;
        if (two_shot) send_sums<T, FORM>(at, sums);
        if (two_shot) at.call.phase = WEFT__SUM;
        bool flags = FORM == plain && sends && (two_shot || !placed);
        if (flags && results >= 0) await_flags(at, results, two_shot);
        int end = min(results + stride, at.tokens);
        for (int t = results; results >= 0 && t < end; t += at.step) {
            if ((uint32_t)(t - (int)a.out_first) >= (uint32_t)a.out_rows) continue;
            receive_row<T, ONE, FORM>(at, t, kept, weight, memory + rows % 2, rows / 2);
            rows++;
        }
        at.call.phase = WEFT__INPUT;
        if (flags && (two_shot ? sums : section) < at.tokens)
            send_flags(at, placed ? at.tokens : section, two_shot ? sums : -1);
    }
    if (placed && !two_shot) leave(at);
}

template <class T, bool ONE, enum form FORM>
__device__ void reduce(const struct weft__cuda_reduce_args &a)
{
    __shared__ struct row_memory memory[2]; /* by turns: a block may be a row behind another */
    extern __shared__ uint4 dynamic[];
    if (a.cluster > 1) {
        if (threadIdx.x == 0)
            for (int i = 0; i < 2; i++) {
                meeting_init(&memory[i].squares);
                meeting_init(&memory[i].largest);
            }
        cluster_arrive(); /* all blocks have begun when exchange() waits */
    }
    grid_wait();
    if (!a.late_release) grid_release();
    const struct weft__cuda_link *link = &a.link;
    int shift = __ffs(a.cluster) - 1, block = (int)blockIdx.x & (a.cluster - 1);
    int warps = (int)blockDim.x / 32, hidden = (int)a.hidden;
    place at = {&a,
                call_of(link, a.op, a.signature),
                hidden / 8,
                (hidden + WEFT__CUDA_GROUP - 1) / WEFT__CUDA_GROUP,
                (int)threadIdx.x % 32,
                ((int)threadIdx.x / 32 << shift) + block,
                warps << shift,
                block,
                (int)a.tokens,
                (int)blockIdx.x >> shift,
                (int)gridDim.x >> shift,
                true,
                0,
                0,
                (uint32_t *)((char *)dynamic + threadIdx.x / 32 * WEFT__CUDA_STAGE_BYTES),
                0};
    at.own = a.own == 0 ? link->recv[link->rank] : a.x - link->plain_at - at.call.half;
    uint4 *kept_memory = dynamic + (FORM == dense ? warps * WEFT__CUDA_STAGE_BYTES / 16 : 0);
    exchange<T, ONE, FORM>(at, memory, kept_memory);
    if (a.late_release) grid_release();
    if (blockIdx.x == 0 && at.alive && link->sends > 0) await_arrivals(at.call, at.arrival);
    finish(link, at.call.epoch, at.ticket);
}

/* ---- instances ---- */

enum { one = true, many = false };
#define X(type, dtype, hold, wire)                                                          \
    extern "C" __global__ __launch_bounds__(WEFT__CUDA_THREADS, wire == plain ? 2 : 1) void \
        weft__reduce_##type##_##hold##_##wire(                                              \
            const __grid_constant__ struct weft__cuda_reduce_args a)                        \
    {                                                                                       \
        reduce<type, hold, wire>(a);                                                        \
    }
WEFT__CUDA_REDUCES(X)
#undef X
