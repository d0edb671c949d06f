/* comm_rows_body.h: the row operations in the compiler's vector types. comm_rows.c compiles it for
 * any processor, comm_rows_avx2.c for AVX2 and F16C; what differs is below in load_f16 and
 * round_f16 alone, so bit equality is by construction. The includer defines ROWS_TABLE, ROWS_NAME.
 */
#include <string.h>

#include "base/rows.h"
#include "comm_rows.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float f32x8 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef uint8_t u8x8 __attribute__((vector_size(8)));

/* ---- vectors: the functions of numerics.h, eight at a time and without branches ---- */

INLINE u32x8 pick(i32x8 mask, u32x8 yes, u32x8 no)
{
    return ((u32x8)mask & yes) | (~(u32x8)mask & no);
}

/* Of magnitudes, so the signed comparison that AVX2 has will do. */
INLINE i32x8 above(u32x8 a, int32_t limit) { return (i32x8)a > limit; }

INLINE f32x8 canonical(f32x8 v) { return (f32x8)pick(v != v, (u32x8){0} + 0x7fc00000u, (u32x8)v); }

INLINE f32x8 load_f32(const void *p)
{
    f32x8 v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE u32x8 load_u16(const void *p)
{
    u16x8 h;
    memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, u32x8);
}

INLINE void store_u16(void *p, u32x8 v)
{
    u16x8 h = __builtin_convertvector(v, u16x8);
    memcpy(p, &h, sizeof h);
}

INLINE u32x8 round_bf16(f32x8 v)
{
    u32x8 u = (u32x8)v;
    u32x8 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return pick(v != v, (u32x8){0} + 0x7fc0u, rounded);
}

#if defined(__F16C__)

INLINE f32x8 f16_to_f32(u32x8 h)
{
    u16x8 narrow = __builtin_convertvector(h, u16x8);
    return (f32x8)_mm256_cvtph_ps((__m128i)narrow);
}

INLINE u32x8 round_f16(f32x8 v)
{
    u16x8 h = (u16x8)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return pick(v != v, (u32x8){0} + 0x7e00u, __builtin_convertvector(h, u32x8));
}

#else

INLINE f32x8 f16_to_f32(u32x8 h)
{
    u32x8 a = h & 0x7fffu, sign = (h & 0x8000u) << 16;
    u32x8 normal = (a << 13) + (112u << 23);
    u32x8 special = normal + (112u << 23); /* exponent 31 becomes 255 */
    f32x8 tiny = __builtin_convertvector((i32x8)a, f32x8) * 0x1p-24f;
    u32x8 magnitude = pick(above(a, 0x7bff), special, pick(above(a, 0x3ff), normal, (u32x8)tiny));
    return (f32x8)(magnitude | sign);
}

INLINE u32x8 round_f16(f32x8 v)
{
    u32x8 u = (u32x8)v, a = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
    u32x8 normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    u32x8 tiny = (u32x8)((f32x8)a + 0.5f) - 0x3f000000u;
    u32x8 finite = pick(above(a, 0x387fffff), normal, tiny);
    u32x8 code = sign | pick(above(a, 0x477fefff), (u32x8){0} + 0x7c00u, finite);
    return pick(v != v, (u32x8){0} + 0x7e00u, code);
}

#endif

/* Element i .. i + 7 of a row. */
INLINE f32x8 get(weft_dtype dtype, const void *row, int64_t i)
{
    if (dtype == WEFT_F32) return load_f32((const float *)row + i);
    u32x8 h = load_u16((const uint16_t *)row + i);
    return dtype == WEFT_BF16 ? (f32x8)(h << 16) : f16_to_f32(h);
}

/* Rounds v, stores it unless row is NULL, returns what a reader will find. */
INLINE f32x8 put(weft_dtype dtype, f32x8 v, void *row, int64_t i)
{
    if (dtype == WEFT_F32) {
        v = canonical(v);
        if (row != NULL) memcpy((float *)row + i, &v, sizeof v);
        return v;
    }
    u32x8 h = dtype == WEFT_BF16 ? round_bf16(v) : round_f16(v);
    if (row != NULL) store_u16((uint16_t *)row + i, h);
    return dtype == WEFT_BF16 ? (f32x8)(h << 16) : f16_to_f32(h);
}

/* function(dtype, ...) with a constant dtype, so that each instance is compiled for its type. */
#define FOR_DTYPE(function, dtype, ...)   \
    switch (dtype) {                      \
    case WEFT_BF16:                       \
        function(WEFT_BF16, __VA_ARGS__); \
        break;                            \
    case WEFT_F16:                        \
        function(WEFT_F16, __VA_ARGS__);  \
        break;                            \
    default:                              \
        function(WEFT_F32, __VA_ARGS__);  \
    }

/* ---- rows ---- */

/* `width` vectors from element i on: several, so that reading the part pointers costs little. */
INLINE void fold_vectors(weft_dtype dtype, const struct weft__row_fold *fold, int64_t i, int width)
{
    f32x8 sum[4];
    for (int v = 0; v < width; v++) sum[v] = get(dtype, fold->part[0], i + 8 * v);
    for (int r = 1; r < fold->parts; r++)
        for (int v = 0; v < width; v++) sum[v] = sum[v] + get(dtype, fold->part[r], i + 8 * v);
    for (int v = 0; v < width; v++) {
        if (fold->residual != NULL) sum[v] = get(dtype, fold->residual, i + 8 * v) + sum[v];
        f32x8 rounded = put(dtype, sum[v], fold->out, i + 8 * v);
        if (fold->sum != NULL) memcpy(fold->sum + i + 8 * v, &rounded, sizeof rounded);
    }
}

INLINE void fold_as(weft_dtype dtype, const struct weft__row_fold *fold, int64_t n)
{
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) fold_vectors(dtype, fold, i, 4);
    for (; i < n; i += 8) fold_vectors(dtype, fold, i, 1);
}

static void fold_row(const struct weft__row_fold *fold,
                     int64_t n){FOR_DTYPE(fold_as, fold->dtype, fold, n)}

INLINE void add_scaled_as(weft_dtype dtype, const void *x, float factor, float *sum, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) {
        f32x8 v = load_f32(sum + i) + get(dtype, x, i) * factor;
        memcpy(sum + i, &v, sizeof v);
    }
}

static void add_scaled_row(weft_dtype dtype, const void *x, float factor, float *sum,
                           int64_t n){FOR_DTYPE(add_scaled_as, dtype, x, factor, sum, n)}

INLINE void load_as(weft_dtype dtype, const void *in, float *out, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) {
        f32x8 v = get(dtype, in, i);
        memcpy(out + i, &v, sizeof v);
    }
}

static void load_row(weft_dtype dtype, const void *in, float *out,
                     int64_t n){FOR_DTYPE(load_as, dtype, in, out, n)}

INLINE void store_as(weft_dtype dtype, const float *in, void *out, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) (void)put(dtype, load_f32(in + i), out, i);
}

static void store_row(weft_dtype dtype, const float *in, void *out,
                      int64_t n){FOR_DTYPE(store_as, dtype, in, out, n)}

/* Neighbours added: (a0+a1, a2+a3, b0+b1, b2+b3 | a4+a5, a6+a7, b4+b5, b6+b7). */
INLINE f32x8 add_neighbours(f32x8 a, f32x8 b)
{
    return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
           __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
}

/* Sums of four neighbours, of four vectors of squares: first halves, then second halves. */
INLINE f32x8 square_quads(const float *x)
{
    f32x8 q[4];
    for (int v = 0; v < 4; v++) {
        f32x8 e = load_f32(x + 8 * v);
        q[v] = e * e;
    }
    return add_neighbours(add_neighbours(q[0], q[1]), add_neighbours(q[2], q[3]));
}

/* Node of level 6 of the tree: 64 elements. */
INLINE float square_node(const float *x)
{
    f32x8 low = square_quads(x), high = square_quads(x + 32);
    f32x8 eights = __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11) +
                   __builtin_shufflevector(low, high, 4, 5, 6, 7, 12, 13, 14, 15);
    f32x8 pairs = add_neighbours(eights, eights), quads = add_neighbours(pairs, pairs);
    return quads[0] + quads[4];
}

static float sum_squares_row(const float *x, int64_t n)
{
    float waiting[WEFT__TREE_LEVELS];
    int64_t nodes = 0;
    for (; 64 * nodes + 64 <= n; nodes++)
        weft__tree_push(waiting, nodes, square_node(x + 64 * nodes));
    if (64 * nodes < n) {
        float rest = weft__sum_squares(x + 64 * nodes, n - 64 * nodes);
        weft__tree_push(waiting, nodes++, rest);
    }
    return weft__tree_root(waiting, nodes);
}

INLINE void scale_as(weft_dtype dtype, const struct weft__row_scale *scale, const float *in,
                     int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) {
        bool last = scale->weight == NULL;
        f32x8 v = put(dtype, load_f32(in + i) * scale->factor, last ? scale->out : NULL, i);
        if (!last) v = put(dtype, v * get(dtype, scale->weight, i), scale->out, i);
        if (scale->values != NULL) memcpy(scale->values + i, &v, sizeof v);
    }
}

/* The last n % 8 elements, in a vector of their own. */
static void scale_rest(const struct weft__row_scale *scale, const float *in, int64_t whole,
                       int64_t n)
{
    size_t count = (size_t)(n - whole), width = scale->dtype == WEFT_F32 ? 4 : 2;
    size_t at = (size_t)whole * width;
    float x[8] = {0}, weight[8] = {0}, values[8], out[8];
    struct weft__row_scale rest = *scale;
    memcpy(x, in + whole, count * sizeof *x);
    if (scale->weight != NULL) {
        memcpy(weight, (const char *)scale->weight + at, count * width);
        rest.weight = weight;
    }
    rest.values = values;
    rest.out = out;
    FOR_DTYPE(scale_as, scale->dtype, &rest, x, 8)
    if (scale->values != NULL) memcpy(scale->values + whole, values, count * sizeof *values);
    if (scale->out != NULL) memcpy((char *)scale->out + at, out, count * width);
}

static void scale_row(const struct weft__row_scale *scale, const float *in, int64_t n)
{
    int64_t whole = n & ~(int64_t)7;
    FOR_DTYPE(scale_as, scale->dtype, scale, in, whole)
    if (whole < n) scale_rest(scale, in, whole, n);
}

/* Several vectors at a time, which the compiler does not turn into a call of memcpy. */
static void copy_bytes(void *out, const void *in, size_t bytes)
{
    uint8_t *to = out;
    const uint8_t *from = in;
    for (; bytes >= 64; bytes -= 64, to += 64, from += 64) {
        f32x8 low = load_f32(from), high = load_f32(from + 32);
        memcpy(to, &low, sizeof low);
        memcpy(to + 32, &high, sizeof high);
    }
    if (bytes > 0) memcpy(to, from, bytes);
}

/* As integers, magnitudes order like the floats they are, with NaN above all. */
static uint32_t amax_row(const float *x, int64_t n)
{
    u32x8 most = {0};
    for (int64_t i = 0; i < n; i += 8) {
        u32x8 a = (u32x8)load_f32(x + i) & 0x7fffffffu;
        most = pick((i32x8)a > (i32x8)most, a, most);
    }
    uint32_t max = 0;
    for (int lane = 0; lane < 8; lane++)
        if (most[lane] > max) max = most[lane];
    return max;
}

static void fp8_row(const float *x, float scale, uint8_t *codes, int64_t n)
{
    for (int64_t i = 0; i < n; i += 8) {
        f32x8 v = load_f32(x + i) / scale;
        u32x8 u = (u32x8)v, a = u & 0x7fffffffu, sign = (u >> 24) & 0x80u;
        u32x8 normal = (a - 0x3c000000u + 0x7ffffu + ((a >> 20) & 1u)) >> 20;
        u32x8 tiny = (u32x8)((f32x8)a + 16384.0f) - 0x46800000u;
        u32x8 code = pick(above(a, 0x3c7fffff), normal, tiny);
        code = pick(above(code, 0x7e) | above(a, 0x43dfffff), (u32x8){0} + 0x7eu, code);
        code = pick(v != v, (u32x8){0} + 0x7fu, code | sign);
        u8x8 bytes = __builtin_convertvector(code, u8x8);
        memcpy(codes + i, &bytes, sizeof bytes);
    }
}

/* Eight codes, two a byte. */
INLINE void put_e2m1(f32x8 v, uint8_t *out)
{
    u32x8 u = (u32x8)v;
    f32x8 a = (f32x8)(u & 0x7fffffffu);
    i32x8 passed = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                   (a >= 3.5f) + (a > 5.0f); /* each true is -1 */
    u32x8 code = pick(v != v, (u32x8){0} + 7u, (u32x8)(-passed) | ((u >> 28) & 8u));
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(code[2 * i] | code[2 * i + 1] << 4);
}

static void nvfp4_row(const float *x, float G, uint8_t *codes, uint8_t *scales, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        uint8_t scale = weft__nvfp4_scale(weft__f32_from_bits(amax_row(x + i, 16)), G);
        float inverse = weft__nvfp4_inverse(scale, G);
        put_e2m1(load_f32(x + i) * inverse, codes + i / 2);
        put_e2m1(load_f32(x + i + 8) * inverse, codes + i / 2 + 4);
        scales[i / 16] = scale;
    }
}

const struct weft__rows ROWS_TABLE = {
    .name = ROWS_NAME,
    .fold = fold_row,
    .add_scaled = add_scaled_row,
    .load = load_row,
    .store = store_row,
    .copy = copy_bytes,
    .amax = amax_row,
    .fp8 = fp8_row,
    .nvfp4 = nvfp4_row,
    .sum_squares = sum_squares_row,
    .scale = scale_row,
};
