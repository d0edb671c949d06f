/* elements.cuh: eight elements of a row, in storage form: 4 words of 16-bit types, 8 of F32. */
#ifndef WEFT_KERNELS_ELEMENTS_CUH
#define WEFT_KERNELS_ELEMENTS_CUH

#include "base/rows.h"
#include "dev/cuda_args.h"

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

#endif
