/* numerics.h: the arithmetic that CPU and GPU share to the bit. Compiled as C and as CUDA C.
 *
 * IEEE single precision, round to nearest even, no contraction, no flush to zero (build flags on
 * both sides). Sources: OCP's OFP8 (E4M3) and Microscaling Formats (E2M1, E8M0), ModelOpt (NVFP4);
 * what is promised: docs/ARCHITECTURE.md. */
#ifndef WEFT_SRC_NUMERICS_H
#define WEFT_SRC_NUMERICS_H

#include <stdint.h>

#ifdef __CUDACC__
#define WEFT__HD static __host__ __device__ inline
#else
#include <math.h>
#include <string.h>
#define WEFT__HD static inline
#endif

WEFT__HD float weft__f32_from_bits(uint32_t bits)
{
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

WEFT__HD uint32_t weft__f32_bits(float value)
{
#ifdef __CUDA_ARCH__
    return __float_as_uint(value);
#else
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}

/* ---- BF16 and F16; every NaN becomes the canonical one on the way to the narrow type ---- */

WEFT__HD float weft__f32_from_bf16(uint16_t h) { return weft__f32_from_bits((uint32_t)h << 16); }

WEFT__HD uint16_t weft__bf16_from_f32(float value)
{
    uint32_t u = weft__f32_bits(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

WEFT__HD float weft__f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 1023u;
    if (exponent == 31) return weft__f32_from_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0) return weft__f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    /* Subnormal: mantissa * 2^-24, exact in F32. */
    float magnitude = (float)mantissa * weft__f32_from_bits(0x33800000u);
    return weft__f32_from_bits(sign | weft__f32_bits(magnitude));
}

WEFT__HD uint16_t weft__f16_from_f32(float value)
{
    uint32_t u = weft__f32_bits(value), a = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
    if (a > 0x7f800000u) return 0x7e00;
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 65536 or more */
    if (a >= 0x38800000u)
        return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
    /* Subnormal result: adding 0.5 leaves round(a * 2^24) in the low mantissa bits. */
    float shifted = weft__f32_from_bits(a) + 0.5f;
    return (uint16_t)(sign | (weft__f32_bits(shifted) - 0x3f000000u));
}

/* The canonical NaN of F32 results. */
WEFT__HD float weft__f32_canonical(float value)
{
    return value == value ? value : weft__f32_from_bits(0x7fc00000u);
}

/* ---- E4M3 (FN): bias 7, no infinities, 0x7f and 0xff are NaN, largest 448 ---- */

WEFT__HD float weft__f32_from_e4m3(uint8_t b)
{
    uint32_t sign = (uint32_t)(b & 0x80u) << 24, exponent = (b >> 3) & 15u, mantissa = b & 7u;
    if ((b & 0x7fu) == 0x7fu) return weft__f32_from_bits(sign | 0x7fc00000u);
    if (exponent != 0) return weft__f32_from_bits(sign | (exponent + 120) << 23 | mantissa << 20);
    float magnitude = (float)mantissa * weft__f32_from_bits(0x3b000000u); /* * 2^-9 */
    return weft__f32_from_bits(sign | weft__f32_bits(magnitude));
}

/* Round to nearest even, saturating to 448; NaN gives 0x7f. */
WEFT__HD uint8_t weft__e4m3_from_f32(float value)
{
    uint32_t u = weft__f32_bits(value), a = u & 0x7fffffffu, sign = (u >> 24) & 0x80u;
    if (a > 0x7f800000u) return 0x7f;
    if (a >= 0x43e00000u) return (uint8_t)(sign | 0x7eu); /* 448 and beyond */
    if (a >= 0x3c800000u) {                               /* normal, 2^-6 up */
        uint32_t code = (a - 0x3c000000u + 0x7ffffu + ((a >> 20) & 1u)) >> 20;
        return (uint8_t)(sign | (code > 0x7eu ? 0x7eu : code));
    }
    /* Subnormal result: adding 2^14 leaves round(a * 2^9) in the low mantissa bits. */
    float shifted = weft__f32_from_bits(a) + 16384.0f;
    return (uint8_t)(sign | (weft__f32_bits(shifted) - 0x46800000u));
}

/* FP8 scale of a row whose largest magnitude is amax: code = e4m3_from_f32(x / scale). A row too
 * small for a scale counts as zeros; a NaN poisons its row. */
WEFT__HD float weft__fp8_token_scale(float amax)
{
    float scale = amax / 448.0f;
    return scale == 0.0f ? 1.0f : weft__f32_canonical(scale);
}

/* ---- E2M1: 0 .5 1 1.5 2 3 4 6, sign in bit 3 ---- */

WEFT__HD float weft__f32_from_e2m1(uint8_t code)
{
    uint32_t m = code & 7u;
    uint32_t bits = m >= 2 ? 0x3f000000u + (m << 22) : m == 1 ? 0x3f000000u : 0u;
    return weft__f32_from_bits(bits | (uint32_t)(code & 8u) << 28);
}

/* Round to nearest, ties to the even code, saturating to 6; NaN gives +6 as the hardware does. */
WEFT__HD uint8_t weft__e2m1_from_f32(float value)
{
    uint32_t u = weft__f32_bits(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 7;
    float a = weft__f32_from_bits(u & 0x7fffffffu);
    /* A sum of comparisons: no branches, so that loops over it become vector code. */
    uint32_t code = (uint32_t)(a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                    (a >= 3.5f) + (a > 5.0f);
    return (uint8_t)(code | (u >> 28 & 8u));
}

/* ---- E8M0: 2^(b-127), 0xff is NaN ---- */

WEFT__HD float weft__f32_from_e8m0(uint8_t b)
{
    if (b == 0xff) return weft__f32_from_bits(0x7fc00000u);
    return weft__f32_from_bits(b != 0 ? (uint32_t)b << 23 : 0x00400000u);
}

/* ---- NVFP4 activations: scale byte of a block, and the factor for its codes; as vLLM's kernels,
 * but with a correctly rounded division where they take approximate reciprocals ----
 * G = 1/input_scale rounded once; amax is the largest magnitude of the block's 16 values (NaN if
 * any is NaN). code = e2m1_from_f32(x * inverse). */

WEFT__HD uint8_t weft__nvfp4_scale(float amax, float G)
{
    float sixth = amax * weft__f32_from_bits(0x3e2aaaabu);
    return weft__e4m3_from_f32(G * sixth);
}

WEFT__HD float weft__nvfp4_inverse(uint8_t scale, float G)
{
    float s = weft__f32_from_e4m3(scale);
    return s == 0.0f ? 0.0f : G / s;
}

/* Byte offset of scale (m, k) in the 128x4 tile layout of tensor-core GEMMs (cuBLASLt, CUTLASS);
 * columns = scales a row. */
WEFT__HD int64_t weft__swizzled_scale_offset(int64_t m, int64_t k, int64_t columns)
{
    int64_t tiles = (columns + 3) / 4;
    return ((m / 128) * tiles + k / 4) * 512 + (m % 32) * 16 + ((m % 128) / 32) * 4 + k % 4;
}

#endif
