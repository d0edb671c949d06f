/* decode_body.h: weights become floats, 32 of each of WIDE rows at a time, without the scales of
 * rows and 128-blocks. */
#include "cpu.h"
#include "vector.h"

enum { CHUNK = WEFT__CHUNK };

struct codes { /* where the rows' chunks lie */
    const uint8_t *data[WIDE], *scale[WIDE];
};

/* Bytes of a chunk; a constant where the type is one. */
INLINE int64_t chunk_bytes(weft_dtype dtype)
{
    return dtype == WEFT_F32       ? 4 * CHUNK
           : dtype == WEFT_F8_E4M3 ? CHUNK
           : dtype == WEFT_F4_E2M1 ? CHUNK / 2
                                   : 2 * CHUNK;
}

#if defined(__AVX512F__)

/* Sixteen bytes of each row. */
INLINE __m256i load16_each(struct codes c, int64_t at)
{
    return _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(c.data[0] + at))),
        _mm_loadu_si128((const __m128i *)(const void *)(c.data[1] + at)), 1);
}

INLINE wide decode_bf16(struct codes c, int64_t at)
{
    return (wide)_mm512_slli_epi32(_mm512_cvtepu16_epi32(load16_each(c, at)), 16);
}

INLINE wide decode_f16(struct codes c, int64_t at)
{
    return (wide)_mm512_cvtph_ps(load16_each(c, at));
}

/* As AVX2's. */
INLINE wide decode_e4m3(const float *table, struct codes c, int64_t at)
{
    (void)table;
    __m128i bytes =
        _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(const void *)(c.data[0] + at)),
                           _mm_loadl_epi64((const __m128i *)(const void *)(c.data[1] + at)));
    __m256i top = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
    __m256i magnitude = _mm256_and_si256(top, _mm256_set1_epi16(0x7f00));
    __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f00));
    __m256i half = _mm256_and_si256(_mm256_srai_epi16(top, 1), _mm256_set1_epi16((short)0xbfff));
    return (wide)_mm512_cvtph_ps(_mm256_or_si256(half, nan)) * splat_wide(256);
}

/* Scales of the rows' codes 16 block on. */
INLINE wide scale_each(const struct weft__dev *dev, struct codes c, int block)
{
    __m512 first = _mm512_set1_ps(dev->e4m3[c.scale[0][block]]);
    __m128 second = _mm_load_ss(&dev->e4m3[c.scale[1][block]]);
    return (wide)_mm512_mask_broadcastss_ps(first, 0xff00, second);
}

/* Eight codes are a word, each in the low bits of a lane of its own after a shift; they choose from
 * a register of sixteen values, which looks at those bits alone. */
INLINE void decode_nvfp4(const struct weft__dev *dev, struct codes c, wide w[4])
{
    const __m512 values =
        _mm512_setr_ps(0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6);
    const __m512i shift =
        _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    __m512i words =
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)c.data[0]));
    words = _mm512_mask_broadcast_i32x4(words, 0xff00,
                                        _mm_loadu_si128((const __m128i *)(const void *)c.data[1]));
    const wide s0 = scale_each(dev, c, 0), s1 = scale_each(dev, c, 1);
#define LOOK_UP(v)                \
    (wide) _mm512_permutexvar_ps( \
        _mm512_srlv_epi32(_mm512_shuffle_epi32(words, (_MM_PERM_ENUM)(0x55 * v)), shift), values)
    w[0] = LOOK_UP(0) * s0;
    w[1] = LOOK_UP(1) * s0;
    w[2] = LOOK_UP(2) * s1;
    w[3] = LOOK_UP(3) * s1;
#undef LOOK_UP
}

#elif defined(__AVX2__)

/* 16-bit words in the high halves of eight lanes. */
INLINE f32x8 decode_bf16(struct codes c, int64_t at)
{
    const __m256i spread =
        _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, -1, -1, 8, 9, -1,
                         -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    __m256i words = _mm256_broadcastsi128_si256(
        _mm_loadu_si128((const __m128i *)(const void *)(c.data[0] + at)));
    return (f32x8)_mm256_shuffle_epi8(words, spread);
}

INLINE f32x8 decode_f16(struct codes c, int64_t at)
{
    return (f32x8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(c.data[0] + at)));
}

/* E4M3 is F16 with a bias of 7 instead of 15 and fewer bits; NaN needs care. */
INLINE f32x8 decode_e4m3(const float *table, struct codes c, int64_t at)
{
    (void)table;
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)(c.data[0] + at));
    __m128i top = _mm_unpacklo_epi8(_mm_setzero_si128(), bytes);
    __m128i magnitude = _mm_and_si128(top, _mm_set1_epi16(0x7f00));
    __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f00));
    __m128i half = _mm_and_si128(_mm_srai_epi16(top, 1), _mm_set1_epi16((short)0xbfff));
    return (f32x8)_mm256_cvtph_ps(_mm_or_si128(half, nan)) * splat(256.0f);
}

/* 32 codes of 16 bytes; scale[i] (times 2^-25) for codes 16 i on. The table gives 2 * value in a
 * byte; the shuffle puts it in the top byte of a lane, where it counts 2^25 times the value. */
INLINE void decode_nvfp4(const struct weft__dev *dev, struct codes c, f32x8 w[4])
{
    const __m256i values = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m256i nibble = _mm256_set1_epi8(15);
    /* Lanes 0-3 take codes 0-3 of a group of eight, lanes 4-7 codes 4-7. */
    const __m256i low =
        _mm256_setr_epi8(-1, -1, -1, 0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1, -1, -1, 4,
                         -1, -1, -1, 5, -1, -1, -1, 6, -1, -1, -1, 7);
    const __m256i high = _mm256_add_epi8(low, _mm256_set1_epi32(8 << 24));
    __m256i bytes =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)c.data[0]));
    __m256i even = _mm256_shuffle_epi8(values, _mm256_and_si256(bytes, nibble));
    __m256i odd =
        _mm256_shuffle_epi8(values, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble));
    __m256i first = _mm256_unpacklo_epi8(even, odd), second = _mm256_unpackhi_epi8(even, odd);
    f32x8 s0 = splat(dev->nvfp4_scale[c.scale[0][0]]), s1 = splat(dev->nvfp4_scale[c.scale[0][1]]);
    w[0] = (f32x8)_mm256_cvtepi32_ps(_mm256_shuffle_epi8(first, low)) * s0;
    w[1] = (f32x8)_mm256_cvtepi32_ps(_mm256_shuffle_epi8(first, high)) * s0;
    w[2] = (f32x8)_mm256_cvtepi32_ps(_mm256_shuffle_epi8(second, low)) * s1;
    w[3] = (f32x8)_mm256_cvtepi32_ps(_mm256_shuffle_epi8(second, high)) * s1;
}

#else

INLINE f32x8 decode_bf16(struct codes c, int64_t at)
{
    u16x8 words;
    memcpy(&words, c.data[0] + at, sizeof words);
    return (f32x8)(__builtin_convertvector(words, u32x8) << 16);
}

INLINE f32x8 decode_f16(struct codes c, int64_t at)
{
    uint16_t words[8];
    f32x8 v;
    memcpy(words, c.data[0] + at, sizeof words);
    for (int i = 0; i < 8; i++) v[i] = weft__f32_from_f16(words[i]);
    return v;
}

INLINE f32x8 decode_e4m3(const float *table, struct codes c, int64_t at)
{
    f32x8 v;
    for (int i = 0; i < 8; i++) v[i] = table[c.data[0][at + i]];
    return v;
}

/* Code 8 is +0, as in an integer; a product with it is the same but for the sign of a zero. */
INLINE void decode_nvfp4(const struct weft__dev *dev, struct codes c, f32x8 w[4])
{
    static const float values[16] = {0, .5f,  1,  1.5f,  2,  3,  4,  6,
                                     0, -.5f, -1, -1.5f, -2, -3, -4, -6};
    for (int i = 0; i < CHUNK; i++) {
        int code = c.data[0][i / 2] >> (i % 2 * 4) & 15;
        w[i / 8][i % 8] = values[code] * dev->e4m3[c.scale[0][i / 16]];
    }
}

#endif

INLINE void decode(const struct weft__dev *dev, weft_dtype dtype, struct codes c, wide w[4])
{
    if (dtype == WEFT_F4_E2M1) {
        decode_nvfp4(dev, c, w);
        return;
    }
    for (int v = 0; v < 4; v++) {
        switch (dtype) {
        case WEFT_F32:
            w[v] = load8_each(c.data, 32 * v);
            break;
        case WEFT_BF16:
            w[v] = decode_bf16(c, 16 * v);
            break;
        case WEFT_F16:
            w[v] = decode_f16(c, 16 * v);
            break;
        default:
            w[v] = decode_e4m3(dev->e4m3, c, 8 * v);
        }
    }
}

/* decode for the rows' last n < 32 weights: bytes beyond a row are not read and count as 0. */
INLINE void decode_rest(const struct weft__dev *dev, weft_dtype dtype, struct codes c, int64_t n,
                        wide w[4])
{
    uint8_t data[WIDE][CHUNK * 4] = {0}, scale[WIDE][2] = {0};
    for (int j = 0; j < WIDE; j++) {
        memcpy(data[j], c.data[j], (size_t)(n * chunk_bytes(dtype) + CHUNK - 1) / CHUNK);
        c.data[j] = data[j];
        if (dtype != WEFT_F4_E2M1) continue;
        memcpy(scale[j], c.scale[j], (size_t)(n + 15) / 16);
        c.scale[j] = scale[j];
    }
    decode(dev, dtype, c, w);
}

/* Chunks of the rows from `row` on at column k, a multiple of 32. Beyond row `last` it is repeated.
 */
INLINE struct codes codes_at(weft_dtype dtype, const struct weft__matrix *w, int64_t row,
                             int64_t last, int64_t k)
{
    struct codes c = {0};
    for (int j = 0; j < WIDE; j++) {
        const int64_t at = weft__min(row + j, last);
        c.data[j] = w->data + at * w->row_bytes + k / CHUNK * chunk_bytes(dtype);
        if (dtype == WEFT_F4_E2M1) c.scale[j] = w->scale + at * w->scale_row_bytes + k / 16;
    }
    return c;
}

/* `chunks` times 32 columns further on. */
INLINE struct codes codes_after(struct codes c, weft_dtype dtype, int64_t chunks)
{
    for (int j = 0; j < WIDE; j++) {
        c.data[j] += chunks * chunk_bytes(dtype);
        if (dtype == WEFT_F4_E2M1) c.scale[j] += 2 * chunks;
    }
    return c;
}

static float row_scale(const struct weft__matrix *w, int64_t row)
{
    float scale = 1;
    if (w->scale_kind == WEFT__SCALE_ROW)
        memcpy(&scale, w->scale + row * w->scale_row_bytes, sizeof scale);
    return scale;
}

/* What multiplies a row's finished dot products. */
static float row_factor(const struct weft__matrix *w, int64_t row)
{
    return row_scale(w, row) * w->scale_global;
}

INLINE void decode_span(const struct weft__dev *dev, weft_dtype dtype, const struct weft__matrix *w,
                        int64_t row, int64_t last, int64_t column, int64_t columns, float *out)
{
    for (int64_t k = 0; k < columns; k += CHUNK) {
        wide v[4];
        int64_t n = columns - k;
        struct codes c = codes_at(dtype, w, row, last, column + k);
        if (n >= CHUNK)
            decode(dev, dtype, c, v);
        else
            decode_rest(dev, dtype, c, n, v);
        for (int64_t i = 0; i < 4 && 8 * i < n; i++) store_wide(out + WIDE * (k + 8 * i), v[i]);
    }
}

/* A row of a panel: out[k / 8 * 8 * WIDE + k % 8] *= the scale of column + k's block. */
static void scale_blocks(const struct weft__matrix *w, int64_t row, int64_t column, int64_t columns,
                         float *out)
{
    const uint8_t *scales = w->scale + (w->block_row + row) / 128 * w->scale_row_bytes;
    for (int64_t k = 0; k < columns;) {
        int64_t at = w->block_col + column + k, end = weft__min(columns, k + 128 - at % 128);
        float scale;
        memcpy(&scale, scales + at / 128 * (int64_t)sizeof scale, sizeof scale);
        for (; k < end; k++) out[k / 8 * 8 * WIDE + k % 8] *= scale;
    }
}

/* A panel: columns of WIDE rows as floats, eight of each in turn, padded with zeros to a multiple
 * of 8; column is a multiple of 32. */
static void decode_columns(const struct weft__dev *dev, const struct weft__matrix *w, int64_t row,
                           int64_t last, int64_t column, int64_t columns, float *out)
{
    switch (w->dtype) {
    case WEFT_F32:
        decode_span(dev, WEFT_F32, w, row, last, column, columns, out);
        break;
    case WEFT_F16:
        decode_span(dev, WEFT_F16, w, row, last, column, columns, out);
        break;
    case WEFT_BF16:
        decode_span(dev, WEFT_BF16, w, row, last, column, columns, out);
        break;
    case WEFT_F8_E4M3:
        decode_span(dev, WEFT_F8_E4M3, w, row, last, column, columns, out);
        break;
    default:
        decode_span(dev, WEFT_F4_E2M1, w, row, last, column, columns, out);
    }
    if (w->scale_kind == WEFT__SCALE_BLOCK)
        for (int j = 0; j < WIDE; j++)
            scale_blocks(w, weft__min(row + j, last), column, columns, out + 8 * j);
}
