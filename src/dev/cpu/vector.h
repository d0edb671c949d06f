/* vector.h: eight lanes in the compiler's vector types; what a processor does faster than the
 * compiler would find has a second form that gives the same bits. */
#ifndef WEFT_SRC_DEV_CPU_VECTOR_H
#define WEFT_SRC_DEV_CPU_VECTOR_H

#include <math.h>
#include <string.h>

#include "base/numerics.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef uint8_t u8x8 __attribute__((vector_size(8)));

INLINE f32x8 splat(float x) { return (f32x8){x, x, x, x, x, x, x, x}; }

INLINE f32x8 load8(const void *p)
{
    f32x8 v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store8(float *p, f32x8 v) { memcpy(p, &v, sizeof v); }

#if defined(__AVX2__)

INLINE f32x8 fma8(f32x8 a, f32x8 b, f32x8 c)
{
    return (f32x8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

/* Both return b when either is NaN. */
INLINE f32x8 min8(f32x8 a, f32x8 b) { return (f32x8)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE f32x8 max8(f32x8 a, f32x8 b) { return (f32x8)_mm256_max_ps((__m256)a, (__m256)b); }

INLINE i32x8 first_lanes(int64_t n) { return (i32x8){0, 1, 2, 3, 4, 5, 6, 7} < (int32_t)n; }

/* Lanes from n on are zero and their memory is not touched; n < 8. */
INLINE f32x8 load_first(const float *p, int64_t n)
{
    return (f32x8)_mm256_maskload_ps(p, (__m256i)first_lanes(n));
}

INLINE void store_first(float *p, f32x8 v, int64_t n)
{
    _mm256_maskstore_ps(p, (__m256i)first_lanes(n), (__m256)v);
}

#else

INLINE f32x8 fma8(f32x8 a, f32x8 b, f32x8 c)
{
    for (int i = 0; i < 8; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}

INLINE f32x8 min8(f32x8 a, f32x8 b)
{
    i32x8 less = a < b;
    return (f32x8)((less & (i32x8)a) | (~less & (i32x8)b));
}

INLINE f32x8 max8(f32x8 a, f32x8 b)
{
    i32x8 more = a > b;
    return (f32x8)((more & (i32x8)a) | (~more & (i32x8)b));
}

INLINE f32x8 load_first(const float *p, int64_t n)
{
    f32x8 v = {0};
    for (int64_t i = 0; i < n; i++) v[i] = p[i];
    return v;
}

INLINE void store_first(float *p, f32x8 v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) p[i] = v[i];
}

#endif

/* ---- wide: WIDE vectors in one register, each of a row of its own or all of one row ---- */

#if defined(__AVX512F__)

enum { WIDE = 2 };
typedef float wide __attribute__((vector_size(64)));

INLINE wide splat_wide(float x) { return (wide)_mm512_set1_ps(x); }

/* The same eight lanes for every row. */
INLINE wide repeat8(const void *p) { return (wide)_mm512_broadcast_f32x8((__m256)load8(p)); }

/* Eight lanes of each row, from `at` bytes on. */
INLINE wide load8_each(const uint8_t *const p[WIDE], int64_t at)
{
    __m512 first = _mm512_castps256_ps512((__m256)load8(p[0] + at));
    return (wide)_mm512_insertf32x8(first, (__m256)load8(p[1] + at), 1);
}

INLINE f32x8 part(wide v, int row)
{
    return (f32x8)(row == 0 ? _mm512_castps512_ps256((__m512)v)
                            : _mm512_extractf32x8_ps((__m512)v, 1));
}

INLINE wide fma_wide(wide a, wide b, wide c)
{
    return (wide)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

INLINE wide load_first_wide(const float *p, int64_t n)
{
    return (wide)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}

INLINE void store_first_wide(float *p, wide v, int64_t n)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
}

#else

enum { WIDE = 1 };
typedef f32x8 wide;

INLINE wide splat_wide(float x) { return splat(x); }
INLINE wide repeat8(const void *p) { return load8(p); }
INLINE wide load8_each(const uint8_t *const p[WIDE], int64_t at) { return load8(p[0] + at); }
INLINE f32x8 part(wide v, int row) { return (void)row, v; }
INLINE wide fma_wide(wide a, wide b, wide c) { return fma8(a, b, c); }
INLINE wide load_first_wide(const float *p, int64_t n) { return load_first(p, n); }
INLINE void store_first_wide(float *p, wide v, int64_t n) { store_first(p, v, n); }

#endif

INLINE wide load_wide(const void *p)
{
    wide v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store_wide(float *p, wide v) { memcpy(p, &v, sizeof v); }

/* ---- of all lanes ---- */

/* The lanes of a finished dot product. */
INLINE float add_lanes(f32x8 v)
{
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/* add_lanes of four. */
INLINE f32x4 add_lanes4(const f32x8 v[4])
{
#if defined(__AVX2__)
    __m128 h[4];
    for (int i = 0; i < 4; i++)
        h[i] = _mm_add_ps(_mm256_castps256_ps128((__m256)v[i]),
                          _mm256_extractf128_ps((__m256)v[i], 1));
    _MM_TRANSPOSE4_PS(h[0], h[1], h[2], h[3]);
    return (f32x4)_mm_add_ps(_mm_add_ps(h[0], h[2]), _mm_add_ps(h[1], h[3]));
#else
    return (f32x4){add_lanes(v[0]), add_lanes(v[1]), add_lanes(v[2]), add_lanes(v[3])};
#endif
}

/* max8 over the lanes, halves first. */
INLINE float largest_lane(f32x8 v)
{
#if defined(__AVX2__)
    __m128 m = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
#else
    for (int half = 4; half > 0; half /= 2)
        for (int i = 0; i < half; i++) v[i] = v[i] > v[i + half] ? v[i] : v[i + half];
    return v[0];
#endif
}

/* e^x to about one unit in the last place, also where the result is subnormal; 0 and infinity where
 * it does not fit, NaN for NaN. x = n ln 2 + r with ln 2 in two parts; the polynomial is Cephes's
 * expf. 2^n is applied in two halves, so that only the second product rounds. */
INLINE f32x8 exp8(f32x8 x)
{
    x = max8(splat(-104.0f), min8(splat(89.0f), x));
    f32x8 shifted = fma8(x, splat(0x1.715476p+0f), splat(0x1.8p23f));
    f32x8 n = shifted - splat(0x1.8p23f);
    f32x8 r = fma8(n, splat(-0x1.62e4p-1f), x);
    r = fma8(n, splat(-0x1.7f7d1cp-20f), r);
    f32x8 p = splat(1.9875691500e-4f);
    p = fma8(p, r, splat(1.3981999507e-3f));
    p = fma8(p, r, splat(8.3334519073e-3f));
    p = fma8(p, r, splat(4.1665795894e-2f));
    p = fma8(p, r, splat(1.6666665459e-1f));
    p = fma8(p, r, splat(5.0000001201e-1f));
    p = fma8(p, r * r, r) + splat(1.0f);
    i32x8 exponent = (i32x8)shifted - 0x4b400000, half = exponent >> 1;
    u32x8 low = (u32x8)(half + 127), high = (u32x8)(exponent - half + 127);
    return p * (f32x8)(low << 23) * (f32x8)(high << 23);
}

#endif
