/* outputs.cuh: from the sum of a row to its outputs: norm, quantisation. */
#ifndef WEFT_KERNELS_OUTPUTS_CUH
#define WEFT_KERNELS_OUTPUTS_CUH

#include "exchange.cuh"

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

#endif
