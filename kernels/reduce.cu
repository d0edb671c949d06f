/* reduce.cu: sum over ranks, residual, RMSNorm, quantisation, in one kernel.
 *
 * A row is cut into groups of 256 elements, a warp's 32 lanes times 8; the warps of a cluster of
 * blocks share the groups of a row, and the clusters of the grid share the rows. A rank of p moves,
 * with n bytes of input (packed data takes twice the bytes of plain data, dense
 * data a third more):
 *     one-shot   reads n, writes n to each slot, reads p * n from slots
 *     two-shot   the same with n / p to each owner; then the owner's sums, again n / p to each
 *     afterwards reads the residual, writes residual_out, y, codes, scales
 * Order: see wait.cuh. Outputs may be the inputs: a row's results are stored by the thread that has
 * read the same elements of that row, after it has. */

#include "base/rows.h"
#include "wait.cuh"

/* ---- eight elements of a row, in storage form: 4 words of 16-bit types, 8 of F32 ---- */

struct bf16 {
    enum { WORDS = 4, BATCH = 8 }; /* BATCH: sources read at once */
    __device__ static float from(uint32_t bits) { return weft__f32_from_bf16((uint16_t)bits); }
    __device__ static uint32_t to(float v) { return weft__bf16_from_f32(v); }
    /* Both of a word, but for NaN: the instruction does what numerics.h says. */
    __device__ static uint32_t to_pair(float low, float high)
    {
        uint32_t word;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
    }
};

struct f16 {
    enum { WORDS = 4, BATCH = 8 };
    __device__ static float from(uint32_t bits)
    {
        float v;
        asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"((uint16_t)bits));
        return v;
    }
    __device__ static uint32_t to(float v) { return weft__f16_from_f32(v); }
    __device__ static uint32_t to_pair(float low, float high)
    {
        uint32_t word;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
        return word;
    }
};

struct f32 {
    enum { WORDS = 8, BATCH = 4 };
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
    for (int i = 0; i < 4; i++) words[i] = T::to(v[2 * i]) | T::to(v[2 * i + 1]) << 16;
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
};

__device__ static inline bool in_row(const place &at, int group)
{
    return group * 32 + at.lane < at.chunks;
}

/* This rank's share of row t: x, or a mixture of experts. */
template <class T> __device__ void form(const place &at, int t, int group, uint32_t *words)
{
    const struct weft__cuda_reduce_args *a = at.a;
    int column = group * 32 + at.lane;
    if (a->top_k == 0) {
        load_chunk<T>(a->x, t * at.chunks + column, words);
        return;
    }
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0}, v[8];
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
        EACH = (VECTORS + 31) / 32,                        /* at most, of a thread */
        PITCH = (VECTORS + 1) / 2 * 32,                    /* bytes from one group to the next */
        STAGED = FORM == dense ? (3 * VECTORS + 3) / 4 : 0 /* vectors of shared memory */
    };
    static_assert(T::BATCH * STAGED * 16 <= WEFT__CUDA_STAGE_BYTES, "room of a warp");
};

/* Where vector j of a thread is, or NULL when the thread has no such vector. A warp's access is one
 * line after the other. A half slot is smaller than 4 GiB. */
template <class T, enum form FORM>
__device__ char *vector_at(const place &at, uint64_t slot, int t, int group, int j)
{
    const struct weft__cuda_link *link = &at.a->link;
    char *half = half_of(at.call, slot);
    if (FORM == plain) {
        uint32_t chunk = (uint32_t)(t * at.chunks + group * 32 + at.lane);
        return in_row(at, group) ? half + link->plain_at + chunk * (T::WORDS * 4) + 16 * j : NULL;
    }
    using W = wire<T, FORM>;
    uint32_t base = (uint32_t)(t * at.groups + group) * W::PITCH;
    int v = at.lane + 32 * j;
    return v < W::VECTORS ? half + link->packed_at + base + 16 * v : NULL;
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

/* The thread's words of COUNT sources, of which `there` are. */
template <class T, enum form FORM, int COUNT>
__device__ void unwrap(place &at, int there, uint4 (*in)[wire<T, FORM>::EACH],
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
            else if (b < there && at.lane + 32 * j < W::VECTORS)
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
 * it, or -1; with pull and host all can see it. For a whole warp. */
template <class T, enum form FORM>
__device__ void send(const place &at, int t, int group, int to, const uint32_t *words)
{
    using W = wire<T, FORM>;
    const struct weft__cuda_link *link = &at.a->link;
    uint4 out[W::EACH];
    wrap<T, FORM>(at, words, out);
    for (int d = 0; d < link->sends; d++) {
        if (link->push && to >= 0 && d != to) continue;
#pragma unroll
        for (int j = 0; j < W::EACH; j++) {
            char *p = vector_at<T, FORM>(at, link->send[d], t, group, j);
            if (p == NULL) continue;
            if (FORM == plain)
                *(uint4 *)p = out[j];
            else if (FORM == packed)
                store_pair(p, out[j]);
            else
                store_whole(p, out[j]);
        }
    }
}

/* One try to read sources s .. s + COUNT - 1, as far as there are such. Returns the first source
 * whose vectors are not all there, or -1. */
template <class T, enum form FORM, int COUNT>
__device__ int try_take(const place &at, int t, int group, int s, int to,
                        uint4 (*in)[wire<T, FORM>::EACH])
{
    using W = wire<T, FORM>;
#pragma unroll
    for (int b = 0; b < COUNT; b++) {
        if (s + b >= to) break;
#pragma unroll
        for (int j = 0; j < W::EACH; j++) {
            const char *p = vector_at<T, FORM>(at, at.a->link.recv[s + b], t, group, j);
            if (p == NULL) continue;
            in[b][j] = FORM == plain    ? *(const uint4 *)p
                       : FORM == packed ? load_pair(p)
                                        : load_whole(p);
        }
    }
    int missing = -1;
#pragma unroll
    for (int b = COUNT - 1; FORM != plain && b >= 0; b--) {
        bool here = true;
#pragma unroll
        for (int j = 0; j < W::EACH; j++)
            here =
                here &&
                ((in[b][j].w == at.call.epoch && (FORM == dense || in[b][j].y == at.call.epoch)) ||
                 at.lane + 32 * j >= W::VECTORS);
        if (s + b < to && !here) missing = s + b;
    }
    return missing;
}

/* A whole warp agrees on whether to go on, so that it stays together. */
__device__ static bool warp_keeps_waiting(const place &at, struct patience *last, int peer)
{
    return __all_sync(~0u, keep_waiting(at.call, last, peer)) != 0;
}

/* Waits for the last vector of a group from each source with one lane, which costs the link less
 * than trying with all of them. */
template <class T, enum form FORM>
__device__ void glance(place &at, struct patience *last, int t, int group, int s, int to)
{
    using W = wire<T, FORM>;
    uint64_t offset = at.a->link.packed_at + (uint32_t)(t * at.groups + group) * W::PITCH +
                      16 * (W::VECTORS - 1) + 12;
    for (; s < to && at.alive; s++) {
        if (s == at.a->link.rank) continue;
        uint64_t word = at.a->link.recv[s] + at.call.half + offset;
        for (uint32_t tries = 1; at.alive; tries++) {
            uint32_t seen = at.lane == 0 ? load_relaxed_u32(word) : 0;
            if (__shfl_sync(~0u, seen, 0) == at.call.epoch) break;
            if (tries % TRIES == 0) at.alive = warp_keeps_waiting(at, last, s);
        }
    }
}

/* Waits for sources s .. s + COUNT - 1, and gives this thread's words of each; for a whole warp.
 * Plain data is there already. */
template <class T, enum form FORM, int COUNT>
__device__ void take(place &at, int t, int group, int s, int to, uint32_t (*words)[T::WORDS])
{
    uint4 in[COUNT][wire<T, FORM>::EACH] = {};
    struct patience last = {-1, 0, 0, 0};
    if (FORM != plain && at.a->link.far)
        glance<T, FORM>(at, &last, t, group, s, min(s + COUNT, to));
    for (uint32_t tries = 1; at.alive; tries++) {
        int missing = try_take<T, FORM, COUNT>(at, t, group, s, to, in);
        if (FORM == plain || __all_sync(~0u, missing < 0)) break;
        if (tries % TRIES == 0)
            at.alive = warp_keeps_waiting(at, &last, __reduce_max_sync(~0u, missing));
    }
    unwrap<T, FORM, COUNT>(at, to - s, in, words);
}

/* The sum over ranks of eight elements, in ascending order. */
template <class T, enum form FORM> __device__ void fold(place &at, int t, int group, float *sum)
{
    int ranks = at.a->link.ranks;
    if (ranks == 1) {
        uint32_t words[T::WORDS] = {};
        if (in_row(at, group)) form<T>(at, t, group, words);
        unpack<T>(words, sum);
        return;
    }
    for (int s = 0; s < ranks; s += T::BATCH) {
        uint32_t words[T::BATCH][T::WORDS];
        take<T, FORM, T::BATCH>(at, t, group, s, ranks, words);
#pragma unroll
        for (int b = 0; b < T::BATCH; b++) {
            if (s + b >= ranks) break;
            float v[8];
            unpack<T>(words[b], v);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[i] = s + b == 0 ? v[i] : __fadd_rn(sum[i], v[i]);
        }
    }
}

/* round(residual + sum over ranks), in storage form. `out` is the row of the residual. */
template <class T, enum form FORM>
__device__ void sum_up(place &at, int t, int out, int group, uint32_t *words)
{
    const struct weft__cuda_reduce_args *a = at.a;
    uint32_t residual[T::WORDS] = {};
    bool add = a->residual != 0;
    if (add && in_row(at, group))
        load_chunk<T>(a->residual, out * at.chunks + group * 32 + at.lane, residual);
    float sum[8], v[8];
    fold<T, FORM>(at, t, group, sum);
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

__device__ static void store_fp8(const place &at, int chunk, const float *v, float scale)
{
    uint2 codes = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        codes.x |= (uint32_t)weft__e4m3_from_f32(__fdiv_rn(v[i], scale)) << 8 * i;
        codes.y |= (uint32_t)weft__e4m3_from_f32(__fdiv_rn(v[4 + i], scale)) << 8 * i;
    }
    ((uint2 *)at.a->codes)[chunk] = codes;
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
    for (int i = 0; i < 8; i++)
        codes |= (uint32_t)weft__e2m1_from_f32(__fmul_rn(v[i], inverse)) << 4 * i;
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

/* Says that the section's inputs, or the sums made here, are in the slots. */
__device__ static void send_flags(const place &at, int section, bool sums)
{
    const struct weft__cuda_link *link = &at.a->link;
    __syncthreads(); /* the block's payload stores come before the fence */
    if (threadIdx.x >= 32) return;
    __threadfence_system(); /* partner: await_flag() */
    for (int i = at.lane; i < at.a->section * link->sends; i += 32) {
        int t = section + i / link->sends * at.step;
        if (t >= at.tokens || (sums && !summed_here(at, t))) continue;
        store_relaxed_u32(flag_of(at.call, link->send[i % link->sends], flag_number(at, t, sums)),
                          at.call.epoch);
    }
}

/* Waits for all inputs of the rows summed here, or for the sums of all rows. */
__device__ static void await_flags(place &at, int section, bool sums)
{
    struct patience last = {-1, 0, 0, 0};
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

/* Sends this rank's share of the section's rows. */
template <class T, enum form FORM> __device__ void send_inputs(const place &at, int section)
{
    int end = min(section + at.a->section * at.step, at.tokens);
    for (int t = section; t < end; t += at.step) {
        int to = at.a->two_shot ? owner_of(at.tokens, at.a->link.ranks, t) : -1;
        for (int group = at.warp; group < at.groups; group += at.warps) {
            uint32_t words[T::WORDS] = {};
            if (in_row(at, group)) form<T>(at, t, group, words);
            send<T, FORM>(at, t, group, to, words);
        }
    }
    if (FORM == plain) send_flags(at, section, false);
}

/* Two-shot: sums what is to be summed here, for everyone. */
template <class T, enum form FORM> __device__ void send_sums(place &at, int section)
{
    if (FORM == plain) await_flags(at, section, false);
    int end = min(section + at.a->section * at.step, at.tokens);
    for (int t = section; t < end; t += at.step) {
        for (int group = at.warp; group < at.groups && summed_here(at, t); group += at.warps) {
            uint32_t words[T::WORDS];
            sum_up<T, FORM>(at, t, t, group, words);
            if (at.alive) send<T, FORM>(at, at.tokens + t, group, -1, words);
        }
    }
    if (FORM == plain) send_flags(at, section, true);
}

/* s of row t, row `out` of the outputs, in storage form. */
template <class T, enum form FORM>
__device__ void receive(place &at, int t, int out, int group, uint32_t *words)
{
    if (!at.a->two_shot) {
        sum_up<T, FORM>(at, t, out, group, words);
        return;
    }
    int owner = owner_of(at.tokens, at.a->link.ranks, t);
    take<T, FORM, 1>(at, at.tokens + t, group, owner, owner + 1, (uint32_t(*)[T::WORDS])words);
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
        receive<T, FORM>(at, t, out, group, words);
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

/* Sends sections ahead of those it sums, and sums ahead of those it finishes, so that a link
 * carries both directions at once. */
template <class T, bool ONE, enum form FORM>
__device__ void exchange(place &at, struct row_memory *memory, uint4 *kept_memory)
{
    const struct weft__cuda_reduce_args &a = *at.a;
    keeper<T, ONE> kept;
    if constexpr (!ONE) kept.memory = kept_memory;
    uint32_t weight[T::WORDS] = {};
    if (ONE && a.norm) load_weight<T>(at, at.warp, weight);
    int stride = a.section * at.step, behind = a.two_shot ? 2 * stride : stride, rows = 0;
    for (int section = at.first; section - behind < at.tokens; section += stride) {
        if (section < at.tokens && a.link.ranks > 1) send_inputs<T, FORM>(at, section);
        if (section == at.first) { /* after the first loads, which do not need the epoch */
            if (blockIdx.x == 0) send_arrival(at.call);
            at.ticket = draw_ticket(&a.link, at.call.epoch);
            clear_padding(at);
            if (a.cluster > 1) cluster_wait(); /* partner: in reduce() */
        }
        int sums = section - stride, results = section - behind;
        if (a.two_shot && sums >= 0 && sums < at.tokens) send_sums<T, FORM>(at, sums);
        if (results < 0) continue;
        if (a.two_shot) at.call.phase = WEFT__SUM;
        if (FORM == plain && a.link.ranks > 1) await_flags(at, results, a.two_shot != 0);
        int end = min(results + stride, at.tokens);
        for (int t = results; t < end; t += at.step) {
            if (t < a.out_first || t >= a.out_first + a.out_rows) continue;
            receive_row<T, ONE, FORM>(at, t, kept, weight, memory + rows % 2, rows / 2);
            rows++;
        }
        at.call.phase = WEFT__INPUT;
    }
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
                (uint32_t *)((char *)dynamic + threadIdx.x / 32 * WEFT__CUDA_STAGE_BYTES)};
    uint4 *kept_memory = dynamic + (FORM == dense ? warps * WEFT__CUDA_STAGE_BYTES / 16 : 0);
    exchange<T, ONE, FORM>(at, memory, kept_memory);
    if (a.late_release) grid_release();
    if (blockIdx.x == 0 && at.alive && link->ranks > 1) await_arrivals(at.call, at.arrival);
    finish(link, at.call.epoch, at.ticket);
}

/* ---- instances ---- */

enum { one = true, many = false };
#define X(type, dtype, hold, wire)                                   \
    extern "C" __global__ __launch_bounds__(WEFT__CUDA_THREADS) void \
        weft__reduce_##type##_##hold##_##wire(                       \
            const __grid_constant__ struct weft__cuda_reduce_args a) \
    {                                                                \
        reduce<type, hold, wire>(a);                                 \
    }
WEFT__CUDA_REDUCES(X)
#undef X
