/* int8_body.h: products of NVFP4 weights with INT8 inputs (dev.h), 64 columns at a time. Sums of
 * eight columns are exact, whatever way they are formed. */
#include "product_body.h"

enum {
    INT8 = WEFT__INT8_COLUMNS,
    LANE = INT8 / 8, /* columns of a lane */
    OFFSET = 12,     /* added to doubled E2M1 codes, which makes them unsigned */
};

/* ---- rounding ---- */

/* The largest magnitude of sixteen numbers, NaN if one is: as integers they order so. */
INLINE float largest16(const float x[16])
{
    i32x8 a = (i32x8)load8(x) & 0x7fffffff, b = (i32x8)load8(x + 8) & 0x7fffffff;
    i32x8 more = b > a;
    a = (b & more) | (a & ~more);
    int32_t bits = 0;
    for (int i = 0; i < 8; i++) bits = a[i] > bits ? a[i] : bits;
    return weft__f32_from_bits((uint32_t)bits);
}

/* Codes of a block's two lanes, and what they add up to. */
INLINE void store_codes(i32x8 a, i32x8 b, int block, struct weft__int8_chunk *y)
{
    int8_t *even = y->code + 8 * block, *odd = even + INT8 / 2;
#if defined(__AVX2__)
    const __m128i apart = _mm_setr_epi8(0, 2, 8, 10, 4, 6, 12, 14, 1, 3, 9, 11, 5, 7, 13, 15);
    __m256i words = _mm256_packs_epi32((__m256i)a, (__m256i)b);
    __m128i bytes = _mm_unpacklo_epi64(
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm_setzero_si128()),
        _mm_packs_epi16(_mm256_extracti128_si256(words, 1), _mm_setzero_si128()));
    bytes = _mm_shuffle_epi8(bytes, apart);
    _mm_storel_epi64((__m128i *)(void *)even, bytes);
    _mm_storel_epi64((__m128i *)(void *)odd, _mm_srli_si128(bytes, 8));
    __m256i pairs = _mm256_hadd_epi32((__m256i)a, (__m256i)b);
    __m128i fours =
        _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    __m128i sums = _mm_mullo_epi32(_mm_hadd_epi32(fours, fours), _mm_set1_epi32(-OFFSET));
    _mm_storel_epi64((__m128i *)(void *)(y->sum + 2 * block), sums);
#else
    int32_t sum[2] = {0};
    for (int i = 0; i < 4; i++) {
        even[i] = (int8_t)a[2 * i];
        odd[i] = (int8_t)a[2 * i + 1];
        even[4 + i] = (int8_t)b[2 * i];
        odd[4 + i] = (int8_t)b[2 * i + 1];
        sum[0] += a[2 * i] + a[2 * i + 1];
        sum[1] += b[2 * i] + b[2 * i + 1];
    }
    for (int lane = 0; lane < 2; lane++) y->sum[2 * block + lane] = -OFFSET * sum[lane];
#endif
}

static void round_block(const float x[16], int block, struct weft__int8_chunk *y)
{
    float largest = largest16(x), scale = 0;
    i32x8 code[2] = {0};
    if (!(largest <= 0x1p127f)) {
        scale = NAN;
    } else if (largest >= 0x1p-100f) {
        f32x8 inverse = splat(127.0f / largest);
        scale = largest / 127.0f * 128.0f;
        /* Adding 1.5 * 2^23 rounds to an integer, ties to even, and leaves it in the low bits. */
        for (int i = 0; i < 2; i++)
            code[i] = (i32x8)(load8(x + 8 * i) * inverse + splat(0x1.8p23f)) - 0x4b400000;
    }
    store_codes(code[0], code[1], block, y);
    y->scale[2 * block] = y->scale[2 * block + 1] = scale;
}

static void round_int8(const float *x, int64_t n, struct weft__int8_chunk *y)
{
    for (int64_t k = 0; k < n; k += INT8, y++)
        for (int block = 0; block < INT8 / 16; block++) {
            int64_t at = k + 16 * block;
            float padded[16] = {0};
            if (at + 16 > n && at < n) memcpy(padded, x + at, (size_t)(n - at) * sizeof *x);
            round_block(at + 16 <= n ? x + at : padded, block, y);
        }
}

/* ---- one chunk of each of WIDE rows against one of a token ---- */

#if defined(__AVX512F__)

struct chunk_weights {
    __m512i even, odd; /* doubled codes + OFFSET */
    wide scale;        /* E4M3 * 2^-8, of each lane */
};

INLINE struct chunk_weights chunk_decode(const struct weft__dev *dev, struct codes c)
{
    (void)dev;
    const __m512i values = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m256i twice = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3));
    __m512i bytes = (__m512i)load8_each(c.data, 0);
    int32_t four[WIDE];
    for (int j = 0; j < WIDE; j++) memcpy(&four[j], c.scale[j], sizeof four[j]);
    __m256i scales = _mm256_mask_set1_epi32(_mm256_set1_epi32(four[0]), 0xf0, four[1]);
    /* As decode_e4m3; a scale is never NaN: the loader refuses those. */
    __m256i top = _mm256_shuffle_epi8(scales, twice);
    __m256i half = _mm256_and_si256(_mm256_srai_epi16(top, 1), _mm256_set1_epi16((short)0xbfff));
    return (struct chunk_weights){
        .even = _mm512_shuffle_epi8(values, _mm512_and_si512(bytes, nibble)),
        .odd = _mm512_shuffle_epi8(values, _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble)),
        .scale = (wide)_mm512_cvtph_ps(half),
    };
}

INLINE wide chunk_add(const struct chunk_weights *w, const struct weft__int8_chunk *x, wide sum)
{
    __m512i eights =
        _mm512_dpbusd_epi32((__m512i)repeat8(x->sum), w->even, (__m512i)repeat8(x->code));
    eights = _mm512_dpbusd_epi32(eights, w->odd, (__m512i)repeat8(x->code + INT8 / 2));
    return fma_wide((wide)_mm512_cvtepi32_ps(eights), w->scale * repeat8(x->scale), sum);
}

#elif defined(__AVX2__)

struct chunk_weights {
    __m256i even, odd; /* doubled codes + OFFSET */
    f32x8 scale;       /* E4M3 * 2^-8, of each lane */
};

INLINE struct chunk_weights chunk_decode(const struct weft__dev *dev, struct codes c)
{
    (void)dev;
    const __m256i values = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m128i twice = _mm_setr_epi8(-1, 0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3);
    int32_t four;
    memcpy(&four, c.scale[0], sizeof four);
    __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)c.data[0]);
    /* As decode_e4m3; a scale is never NaN: the loader refuses those. */
    __m128i top = _mm_shuffle_epi8(_mm_cvtsi32_si128(four), twice);
    __m128i half = _mm_and_si128(_mm_srai_epi16(top, 1), _mm_set1_epi16((short)0xbfff));
    return (struct chunk_weights){
        .even = _mm256_shuffle_epi8(values, _mm256_and_si256(bytes, nibble)),
        .odd = _mm256_shuffle_epi8(values, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble)),
        .scale = (f32x8)_mm256_cvtph_ps(half),
    };
}

INLINE f32x8 chunk_add(const struct chunk_weights *w, const struct weft__int8_chunk *x, f32x8 sum)
{
    __m256i even = _mm256_load_si256((const __m256i *)(const void *)x->code);
    __m256i odd = _mm256_load_si256((const __m256i *)(const void *)(x->code + INT8 / 2));
    __m256i offsets = _mm256_load_si256((const __m256i *)(const void *)x->sum);
    /* Four products of at most 24 * 127 fit 16 bits. */
    __m256i fours =
        _mm256_add_epi16(_mm256_maddubs_epi16(w->even, even), _mm256_maddubs_epi16(w->odd, odd));
    __m256i eights = _mm256_add_epi32(_mm256_madd_epi16(fours, _mm256_set1_epi16(1)), offsets);
    return fma8((f32x8)_mm256_cvtepi32_ps(eights), w->scale * load8(x->scale), sum);
}

#else

struct chunk_weights {
    int8_t code[INT8]; /* doubled codes + OFFSET, in the order of an INT8 chunk */
    f32x8 scale;
};

INLINE struct chunk_weights chunk_decode(const struct weft__dev *dev, struct codes c)
{
    static const int8_t values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    struct chunk_weights w;
    for (int i = 0; i < INT8 / 2; i++) {
        w.code[i] = values[c.data[0][i] & 15];
        w.code[INT8 / 2 + i] = values[c.data[0][i] >> 4];
    }
    for (int l = 0; l < 8; l++) w.scale[l] = dev->e4m3[c.scale[0][l / 2]] * 0x1p-8f;
    return w;
}

INLINE f32x8 chunk_add(const struct chunk_weights *w, const struct weft__int8_chunk *x, f32x8 sum)
{
    f32x8 eights;
    for (int l = 0; l < 8; l++) {
        int32_t s = x->sum[l];
        for (int i = LANE / 2 * l; i < LANE / 2 * (l + 1); i++)
            s += w->code[i] * x->code[i] + w->code[INT8 / 2 + i] * x->code[INT8 / 2 + i];
        eights[l] = (float)s;
    }
    return fma8(eights, w->scale * load8(x->scale), sum);
}

#endif

/* The last n < 64 columns of the rows; those beyond count as 0. */
INLINE struct chunk_weights chunk_decode_rest(const struct weft__dev *dev, struct codes c,
                                              int64_t n)
{
    uint8_t data[WIDE][INT8 / 2] = {0}, scale[WIDE][INT8 / 16] = {0};
    for (int j = 0; j < WIDE; j++) {
        memcpy(data[j], c.data[j], (size_t)(n + 1) / 2);
        memcpy(scale[j], c.scale[j], (size_t)(n + 15) / 16);
        c.data[j] = data[j];
        c.scale[j] = scale[j];
    }
    return chunk_decode(dev, c);
}

/* ---- strips, as in product_body.h ---- */

/* `height` times WIDE rows at a time against `tokens` tokens, at x from the strip's first column.
 */
INLINE void int8_strip(int height, int tokens, const struct weft__dev *dev,
                       const struct weft__product *p, const struct strip *s,
                       const struct weft__int8_chunk *const x[])
{
    const bool start = s->column == 0, end = s->column + s->columns == p->w->cols;
    const int64_t whole = s->columns / INT8, rest = s->columns % INT8;
    const int64_t last_row = p->row + p->rows - 1;
    for (int64_t first = s->row; first < s->last; first += height * WIDE) {
        struct codes c[HEIGHT];
        wide sum[STRIP_SUMS], *waiting = s->sums + (first - s->row) / WIDE * tokens;
        for (int i = 0; i < height * tokens; i++) sum[i] = start ? splat_wide(0) : waiting[i];
        for (int r = 0; r < height; r++)
            c[r] = codes_at(WEFT_F4_E2M1, p->w, p->row + first + r * WIDE, last_row, s->column);
        /* To fetch, as in strip. */
        const uint8_t *next = c[0].data[0] + height * WIDE * p->w->row_bytes;
        const bool is_short = p->w->row_bytes <= SHORT_ROW;
        for (int64_t i = 0; i < whole; i++)
            for (int r = 0; r < height; r++) {
                struct codes at = codes_after(c[r], WEFT_F4_E2M1, i * (INT8 / CHUNK));
                struct chunk_weights w = chunk_decode(dev, at);
                for (int j = 0; j < WIDE; j++, next += INT8 / 2)
                    __builtin_prefetch(is_short ? next : at.data[j] + AHEAD, 0, 2);
                for (int t = 0; t < tokens; t++)
                    sum[r * tokens + t] = chunk_add(&w, x[t] + i, sum[r * tokens + t]);
            }
        for (int r = 0; rest > 0 && r < height; r++) {
            struct codes at = codes_after(c[r], WEFT_F4_E2M1, whole * (INT8 / CHUNK));
            struct chunk_weights w = chunk_decode_rest(dev, at, rest);
            for (int t = 0; t < tokens; t++)
                sum[r * tokens + t] = chunk_add(&w, x[t] + whole, sum[r * tokens + t]);
        }
        if (end)
            strip_finish(height, tokens, p, first, s->token, s->count, sum);
        else
            for (int i = 0; i < height * tokens; i++) waiting[i] = sum[i];
    }
}

INLINE const struct weft__int8_chunk *int8_row(const struct weft__product *p, int64_t token)
{
    return p->x_int8 +
           (p->x_row != NULL ? p->x_row[token] : token) * weft__ceil_div(p->w->cols, INT8);
}

static void int8_light(const struct weft__dev *dev, const struct weft__product *p, int64_t token,
                       int64_t count)
{
    const struct weft__int8_chunk *x[2] = {int8_row(p, token), int8_row(p, token + count - 1)};
    struct strip s = {.last = p->rows, .columns = p->w->cols, .token = token, .count = count};
    if (count == 1)
        int8_strip(4, 1, dev, p, &s, x);
    else
        int8_strip(4, 2, dev, p, &s, x);
}

/* Three to eight tokens, as strip_heavy. */
static void int8_heavy(const struct weft__dev *dev, const struct weft__product *p, int64_t token,
                       int64_t count, struct weft__scratch *scratch)
{
    enum { BLOCK = 24, ROWS_MOST = WEFT__TILE_ROWS * WEFT__TILE_TOKENS / STRIP_SUMS };
    struct strip s = {.token = token, .count = count, .sums = (wide *)(void *)scratch->sums};
    struct weft__int8_chunk *panel = (struct weft__int8_chunk *)(void *)scratch->panel;
    for (; s.row < p->rows; s.row = s.last) {
        s.last = weft__min(s.row + ROWS_MOST, p->rows);
        for (s.column = 0; s.column < p->w->cols; s.column += s.columns) {
            const struct weft__int8_chunk *x[STRIP_SUMS];
            s.columns = weft__min(BLOCK * INT8, p->w->cols - s.column);
            for (int64_t t = 0; t < STRIP_SUMS; t++)
                x[t] = memcpy(panel + t * BLOCK,
                              int8_row(p, token + weft__min(t, count - 1)) + s.column / INT8,
                              (size_t)weft__ceil_div(s.columns, INT8) * sizeof *panel);
            if (count <= 4)
                int8_strip(2, 4, dev, p, &s, x);
            else if (count <= 6)
                int8_strip(1, 6, dev, p, &s, x);
            else
                int8_strip(1, 8, dev, p, &s, x);
        }
    }
}

static void product_int8(const struct weft__dev *dev, const struct weft__product *p,
                         struct weft__scratch *scratch)
{
    for (int64_t token = 0, n; token < p->tokens; token += n) {
        n = strip_tokens(p->tokens - token);
        if (n <= 2)
            int8_light(dev, p, token, n);
        else
            int8_heavy(dev, p, token, n, scratch);
    }
}

/* ---- products with either kind of input ---- */

static void product(const struct weft__dev *dev, const struct weft__product *p,
                    struct weft__scratch *scratch)
{
    if (p->rows == 0 || p->tokens == 0) return;
    if (p->x_int8 != NULL && p->w->cols > 0)
        product_int8(dev, p, scratch);
    else
        product_f32(dev, p, scratch);
}
