/* product_body.h: matrix products. Every output is one chain of eight lanes (dev.h), so the only
 * freedom is how many outputs run side by side and where weights are decoded:
 *
 *   strips    in registers, a row's chunk at a time: few tokens, so that memory or the decoding is
 *             the limit
 *   tiles     while they are multiplied where that costs nothing (F32, F16, BF16), else a panel of
 *             four rows into the cache: many tokens, so that multiplying is the limit. Unfinished
 *             sums wait in memory between panels of columns. */
#include "cpu.h"
#include "vector.h"

enum {
    CHUNK = WEFT__CHUNK,
    ROWS = 4,          /* weight rows of a register tile */
    TOKENS = 3,        /* token rows of a register tile: 12 sums hide the latency of an addition */
    STRIP_SUMS = 8,    /* outputs side by side in a strip */
    STRIP_TOKENS = 16, /* up to here strips are faster when decoding costs something */
    SHORT_ROW = 2048,  /* bytes: shorter rows are fetched in the order of addresses */
    AHEAD = 2048,      /* bytes that longer ones are fetched ahead */
};

/* ---- decoding: 32 weights from a row's chunk, without the scales of rows and 128-blocks ---- */

struct codes { /* where a row's chunk lies */
    const uint8_t *data, *scale;
};

/* Bytes of a chunk; a constant where the type is one. */
INLINE int64_t chunk_bytes(weft_dtype dtype)
{
    return dtype == WEFT_F32       ? 4 * CHUNK
           : dtype == WEFT_F8_E4M3 ? CHUNK
           : dtype == WEFT_F4_E2M1 ? CHUNK / 2
                                   : 2 * CHUNK;
}

#if defined(__AVX2__)

/* 16-bit words of p in the high halves of eight lanes. */
INLINE f32x8 decode_bf16(const uint8_t *p)
{
    const __m256i spread =
        _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, -1, -1, 8, 9, -1,
                         -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    __m256i words = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)p));
    return (f32x8)_mm256_shuffle_epi8(words, spread);
}

INLINE f32x8 decode_f16(const uint8_t *p)
{
    return (f32x8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* E4M3 is F16 with a bias of 7 instead of 15 and fewer bits; NaN needs care. */
INLINE f32x8 decode_e4m3(const float *table, const uint8_t *p)
{
    (void)table;
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)p);
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
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)c.data));
    __m256i even = _mm256_shuffle_epi8(values, _mm256_and_si256(bytes, nibble));
    __m256i odd =
        _mm256_shuffle_epi8(values, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble));
    __m256i first = _mm256_unpacklo_epi8(even, odd), second = _mm256_unpackhi_epi8(even, odd);
    f32x8 s0 = splat(dev->nvfp4_scale[c.scale[0]]), s1 = splat(dev->nvfp4_scale[c.scale[1]]);
    w[0] = (f32x8)_mm256_cvtepi32_ps(_mm256_shuffle_epi8(first, low)) * s0;
    w[1] = (f32x8)_mm256_cvtepi32_ps(_mm256_shuffle_epi8(first, high)) * s0;
    w[2] = (f32x8)_mm256_cvtepi32_ps(_mm256_shuffle_epi8(second, low)) * s1;
    w[3] = (f32x8)_mm256_cvtepi32_ps(_mm256_shuffle_epi8(second, high)) * s1;
}

#else

INLINE f32x8 decode_bf16(const uint8_t *p)
{
    u16x8 words;
    memcpy(&words, p, sizeof words);
    return (f32x8)(__builtin_convertvector(words, u32x8) << 16);
}

INLINE f32x8 decode_f16(const uint8_t *p)
{
    uint16_t words[8];
    f32x8 v;
    memcpy(words, p, sizeof words);
    for (int i = 0; i < 8; i++) v[i] = weft__f32_from_f16(words[i]);
    return v;
}

INLINE f32x8 decode_e4m3(const float *table, const uint8_t *p)
{
    f32x8 v;
    for (int i = 0; i < 8; i++) v[i] = table[p[i]];
    return v;
}

/* Code 8 is +0, as in an integer; a product with it is the same but for the sign of a zero. */
INLINE void decode_nvfp4(const struct weft__dev *dev, struct codes c, f32x8 w[4])
{
    static const float values[16] = {0, .5f,  1,  1.5f,  2,  3,  4,  6,
                                     0, -.5f, -1, -1.5f, -2, -3, -4, -6};
    for (int i = 0; i < CHUNK; i++) {
        int code = c.data[i / 2] >> (i % 2 * 4) & 15;
        w[i / 8][i % 8] = values[code] * dev->e4m3[c.scale[i / 16]];
    }
}

#endif

INLINE void decode(const struct weft__dev *dev, weft_dtype dtype, struct codes c, f32x8 w[4])
{
    if (dtype == WEFT_F4_E2M1) {
        decode_nvfp4(dev, c, w);
        return;
    }
    for (int v = 0; v < 4; v++) {
        switch (dtype) {
        case WEFT_F32:
            w[v] = load8(c.data + 32 * v);
            break;
        case WEFT_BF16:
            w[v] = decode_bf16(c.data + 16 * v);
            break;
        case WEFT_F16:
            w[v] = decode_f16(c.data + 16 * v);
            break;
        default:
            w[v] = decode_e4m3(dev->e4m3, c.data + 8 * v);
        }
    }
}

/* decode for a row's last n < 32 weights: bytes beyond the row are not read and count as 0. */
INLINE void decode_rest(const struct weft__dev *dev, weft_dtype dtype, struct codes c, int64_t n,
                        f32x8 w[4])
{
    uint8_t data[CHUNK * 4] = {0}, scale[2] = {0};
    memcpy(data, c.data, (size_t)(n * chunk_bytes(dtype) + CHUNK - 1) / CHUNK);
    if (dtype == WEFT_F4_E2M1) memcpy(scale, c.scale, (size_t)(n + 15) / 16);
    decode(dev, dtype, (struct codes){data, scale}, w);
}

/* Chunk at column k, a multiple of 32. */
INLINE struct codes codes_at(weft_dtype dtype, const struct weft__matrix *w, int64_t row, int64_t k)
{
    return (struct codes){.data = w->data + row * w->row_bytes + k / CHUNK * chunk_bytes(dtype),
                          .scale = w->scale_kind == WEFT__SCALE_NVFP4
                                       ? w->scale + row * w->scale_row_bytes + k / 16
                                       : NULL};
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
                        int64_t row, int64_t column, int64_t columns, float *out)
{
    for (int64_t k = 0; k < columns; k += CHUNK) {
        f32x8 v[4];
        int64_t n = columns - k;
        struct codes c = codes_at(dtype, w, row, column + k);
        if (n >= CHUNK)
            decode(dev, dtype, c, v);
        else
            decode_rest(dev, dtype, c, n, v);
        for (int64_t i = 0; i < 4 && 8 * i < n; i++) store8(out + k + 8 * i, v[i]);
    }
}

/* out[k] *= the scale of column + k's block. */
static void scale_blocks(const struct weft__matrix *w, int64_t row, int64_t column, int64_t columns,
                         float *out)
{
    const uint8_t *scales = w->scale + (w->block_row + row) / 128 * w->scale_row_bytes;
    for (int64_t k = 0; k < columns;) {
        int64_t at = w->block_col + column + k, end = weft__min(columns, k + 128 - at % 128);
        float scale;
        memcpy(&scale, scales + at / 128 * (int64_t)sizeof scale, sizeof scale);
        for (; k < end; k++) out[k] *= scale;
    }
}

/* Columns of a row as floats, padded with zeros to a multiple of 8; column is a multiple of 32. */
static void decode_columns(const struct weft__dev *dev, const struct weft__matrix *w, int64_t row,
                           int64_t column, int64_t columns, float *out)
{
    switch (w->dtype) {
    case WEFT_F32:
        decode_span(dev, WEFT_F32, w, row, column, columns, out);
        break;
    case WEFT_F16:
        decode_span(dev, WEFT_F16, w, row, column, columns, out);
        break;
    case WEFT_BF16:
        decode_span(dev, WEFT_BF16, w, row, column, columns, out);
        break;
    case WEFT_F8_E4M3:
        decode_span(dev, WEFT_F8_E4M3, w, row, column, columns, out);
        break;
    default:
        decode_span(dev, WEFT_F4_E2M1, w, row, column, columns, out);
    }
    if (w->scale_kind == WEFT__SCALE_BLOCK) scale_blocks(w, row, column, columns, out);
}

static void decode_row(const struct weft__dev *dev, const struct weft__matrix *w, int64_t row,
                       float *y)
{
    float factor = row_factor(w, row), span[CHUNK * 4];
    for (int64_t k = 0; k < w->cols; k += CHUNK * 4) {
        int64_t n = weft__min(w->cols - k, CHUNK * 4);
        decode_columns(dev, w, row, k, n, span);
        for (int64_t i = 0; i < n; i++) y[k + i] = span[i] * factor;
    }
}

/* ---- register tiles ---- */

/* Eight weights at column `at` of a row, of a type that is decoded while multiplied. */
INLINE f32x8 weights8(weft_dtype dtype, const uint8_t *row, int64_t at)
{
    switch (dtype) {
    case WEFT_F16:
        return decode_f16(row + 2 * at);
    case WEFT_BF16:
        return decode_bf16(row + 2 * at);
    default:
        return load8(row + 4 * at);
    }
}

/* The last n < 8. */
INLINE f32x8 weights_rest(weft_dtype dtype, const uint8_t *row, int64_t at, int64_t n)
{
    uint8_t bytes[32] = {0};
    size_t width = dtype == WEFT_F32 ? 4 : 2;
    memcpy(bytes, row + (size_t)at * width, (size_t)n * width);
    return weights8(dtype, bytes, 0);
}

/* sum[r * tokens + t] += w[r] . x[t] over k columns. */
INLINE void dots(int tokens, weft_dtype dtype, const void *const w[ROWS], const float *const x[],
                 int64_t k, f32x8 *sum)
{
    int64_t at = 0;
    for (; at + 8 <= k; at += 8) {
        f32x8 xv[TOKENS];
        for (int t = 0; t < tokens; t++) xv[t] = load8(x[t] + at);
        for (int r = 0; r < ROWS; r++) {
            f32x8 wv = weights8(dtype, w[r], at);
            for (int t = 0; t < tokens; t++)
                sum[r * tokens + t] = fma8(wv, xv[t], sum[r * tokens + t]);
        }
    }
    if (at == k) return;
    for (int r = 0; r < ROWS; r++) {
        f32x8 wv = weights_rest(dtype, w[r], at, k - at);
        for (int t = 0; t < tokens; t++)
            sum[r * tokens + t] = fma8(wv, load_first(x[t] + at, k - at), sum[r * tokens + t]);
    }
}

/* The finished sums of one token, rows 0 to 3. */
INLINE f32x4 tile_result(int tokens, const f32x8 *sum, int token)
{
    f32x8 v[ROWS];
    for (int r = 0; r < ROWS; r++) v[r] = sum[r * tokens + token];
    return add_lanes4(v);
}

/* How many of `left` things the next register tile takes: three, but never so that one is left. */
INLINE int next_three(int64_t left) { return left == 4 || left < 3 ? (left == 1 ? 1 : 2) : 3; }

/* function(n, ...) with a constant n from 1 to 3 */
#define FOR_THREE(function, n, ...) \
    switch (n) {                    \
    case 1:                         \
        function(1, __VA_ARGS__);   \
        break;                      \
    case 2:                         \
        function(2, __VA_ARGS__);   \
        break;                      \
    default:                        \
        function(3, __VA_ARGS__);   \
    }

/* Up to four rows of a product; beyond the last they repeat it and are not stored. */
struct rows4 {
    int64_t row[ROWS];    /* of the matrix */
    int64_t first, count; /* of the result */
    f32x4 factor, bias;
};

INLINE struct rows4 rows4_at(const struct weft__product *p, int64_t first, int height)
{
    struct rows4 out = {.first = first, .count = weft__min(height, p->rows - first)};
    float g = p->w->scale_global;
    out.factor = (f32x4){g, g, g, g};
    for (int r = 0; r < height; r++) {
        out.row[r] = p->row + weft__min(first + r, p->rows - 1);
        if (p->w->scale_kind == WEFT__SCALE_ROW) out.factor[r] = row_factor(p->w, out.row[r]);
        if (p->w->bias != NULL) out.bias[r] = p->w->bias[out.row[r]];
    }
    return out;
}

INLINE void finish(const struct weft__product *p, const struct rows4 *rows, int64_t token,
                   f32x4 dots4)
{
    float *y = p->y + token * p->y_stride + rows->first;
    f32x4 v = dots4 * rows->factor;
    if (p->w->bias != NULL) v = v + rows->bias;
    if (rows->count == ROWS)
        memcpy(y, &v, sizeof v);
    else
        memcpy(y, &v, (size_t)rows->count * sizeof *y);
}

INLINE const float *token_row(const struct weft__product *p, int64_t token)
{
    return p->x + (p->x_row != NULL ? p->x_row[token] : token) * p->x_stride;
}

/* ---- strips ---- */

/* The last chunk of a row, n < 32 weights. */
INLINE void strip_rest(const struct weft__dev *dev, weft_dtype dtype, int tokens, struct codes c,
                       const float *const x[], int64_t at, int64_t n, f32x8 *sum)
{
    f32x8 w[4];
    decode_rest(dev, dtype, c, n, w);
    for (int v = 0; v < 4 && 8 * v < n; v++)
        for (int t = 0; t < tokens; t++) {
            const float *xp = x[t] + at + 8 * v;
            f32x8 xv = n - 8 * v >= 8 ? load8(xp) : load_first(xp, n - 8 * v);
            sum[t] = fma8(w[v], xv, sum[t]);
        }
}

/* Stores sum[r * tokens + t] of rows->count rows and of `count` tokens from `token` on. */
INLINE void strip_finish(int height, int tokens, const struct weft__product *p,
                         const struct rows4 *rows, int64_t token, int64_t count, const f32x8 *sum)
{
    if (height == ROWS) {
        for (int t = 0; t < tokens; t++) finish(p, rows, token + t, tile_result(tokens, sum, t));
        return;
    }
    for (int i = 0; i < height * tokens; i += 4) {
        f32x8 v[4];
        for (int j = 0; j < 4; j++) v[j] = sum[i + j < height * tokens ? i + j : i];
        f32x4 d = add_lanes4(v);
        for (int j = 0; j < 4 && i + j < height * tokens; j++) {
            int r = (i + j) / tokens, t = (i + j) % tokens;
            if (r >= rows->count || t >= count) continue;
            float y = d[j] * rows->factor[r];
            if (p->w->bias != NULL) y = y + rows->bias[r];
            p->y[(token + t) * p->y_stride + rows->first + r] = y;
        }
    }
}

/* What a strip covers. */
struct strip {
    int64_t row, last;       /* rows of the result */
    int64_t column, columns; /* column a multiple of 32 */
    int64_t token, count;    /* tokens that are wanted */
    f32x8 *sums;             /* where sums wait between strips of columns */
};

/* `height` rows at a time against `tokens` tokens, at x from the strip's first column. */
INLINE void strip(int height, int tokens, weft_dtype dtype, const struct weft__dev *dev,
                  const struct weft__product *p, const struct strip *s, const float *const x[])
{
    const int64_t k = s->columns, step = chunk_bytes(dtype);
    const bool start = s->column == 0, end = s->column + k == p->w->cols;
    for (int64_t first = s->row; first < s->last; first += height) {
        struct rows4 rows = rows4_at(p, first, height);
        struct codes c[ROWS];
        const int64_t at_sum = (first - s->row) * tokens;
        f32x8 sum[STRIP_SUMS] = {0};
        if (!start)
            for (int i = 0; i < height * tokens; i++) sum[i] = s->sums[at_sum + i];
        for (int r = 0; r < height; r++) c[r] = codes_at(dtype, p->w, rows.row[r], s->column);
        /* Short rows: the next ones are fetched in the order of addresses, for side by side they
         * look like no stream to the processor. Long ones it recognises; they are helped a bit. */
        const uint8_t *next = c[0].data + height * p->w->row_bytes;
        const bool is_short = p->w->row_bytes <= SHORT_ROW;
        int64_t at = 0;
        for (; at + CHUNK <= k; at += CHUNK)
            for (int r = 0; r < height; r++) {
                f32x8 w[4];
                decode(dev, dtype, c[r], w);
                const uint8_t *fetch = is_short ? next : c[r].data + AHEAD;
                __builtin_prefetch(fetch, 0, 2);
                if (step > 64) __builtin_prefetch(fetch + 64, 0, 2);
                next += step;
                c[r].data += step;
                if (dtype == WEFT_F4_E2M1) c[r].scale += 2;
                for (int v = 0; v < 4; v++)
                    for (int t = 0; t < tokens; t++)
                        sum[r * tokens + t] =
                            fma8(w[v], load8(x[t] + at + 8 * v), sum[r * tokens + t]);
            }
        if (at < k)
            for (int r = 0; r < height; r++)
                strip_rest(dev, dtype, tokens, c[r], x, at, k - at, sum + r * tokens);
        if (end)
            strip_finish(height, tokens, p, &rows, s->token, s->count, sum);
        else
            for (int i = 0; i < height * tokens; i++) s->sums[at_sum + i] = sum[i];
    }
}

/* All rows and columns against one or two tokens. */
INLINE void strip_light(weft_dtype dtype, const struct weft__dev *dev,
                        const struct weft__product *p, int64_t token, int64_t count)
{
    const float *x[2] = {token_row(p, token), token_row(p, token + count - 1)};
    struct strip s = {.last = p->rows, .columns = p->w->cols, .token = token, .count = count};
    if (count == 1)
        strip(4, 1, dtype, dev, p, &s, x);
    else
        strip(4, 2, dtype, dev, p, &s, x);
}

/* Three to eight tokens. An odd count runs as the next even one, its last token twice. The tokens'
 * columns are moved together: rows of a length near a power of two evict each other. */
INLINE void strip_heavy(weft_dtype dtype, const struct weft__dev *dev,
                        const struct weft__product *p, int64_t token, int64_t count,
                        struct weft__scratch *scratch)
{
    enum { BLOCK = 640, ROWS_MOST = WEFT__TILE_ROWS * WEFT__TILE_TOKENS / STRIP_SUMS };
    struct strip s = {.token = token, .count = count, .sums = (f32x8 *)(void *)scratch->sums};
    for (; s.row < p->rows; s.row = s.last) {
        s.last = weft__min(s.row + ROWS_MOST, p->rows);
        for (s.column = 0; s.column < p->w->cols; s.column += s.columns) {
            const float *x[STRIP_SUMS];
            s.columns = weft__min(BLOCK, p->w->cols - s.column);
            for (int64_t t = 0; t < STRIP_SUMS; t++)
                x[t] = memcpy(scratch->panel + t * BLOCK,
                              token_row(p, token + weft__min(t, count - 1)) + s.column,
                              (size_t)s.columns * sizeof *x[t]);
            switch (count) {
            case 3:
            case 4:
                strip(2, 4, dtype, dev, p, &s, x);
                break;
            case 5:
            case 6:
                strip(1, 6, dtype, dev, p, &s, x);
                break;
            default:
                strip(1, 8, dtype, dev, p, &s, x);
            }
        }
    }
}

/* Tokens of the next strip when `left` are. */
INLINE int64_t strip_tokens(int64_t left)
{
    return left <= 8 ? left : left < 16 ? (left + 1) / 2 : 8;
}

INLINE void strips(weft_dtype dtype, const struct weft__dev *dev, const struct weft__product *p,
                   struct weft__scratch *scratch)
{
    for (int64_t token = 0, n; token < p->tokens; token += n) {
        n = strip_tokens(p->tokens - token);
        if (n <= 2)
            strip_light(dtype, dev, p, token, n);
        else
            strip_heavy(dtype, dev, p, token, n, scratch);
    }
}

static void product_strips(const struct weft__dev *dev, const struct weft__product *p,
                           struct weft__scratch *scratch)
{
    switch (p->w->dtype) {
    case WEFT_F32:
        strip_light(WEFT_F32, dev, p, 0, p->tokens);
        break;
    case WEFT_F16:
        strip_light(WEFT_F16, dev, p, 0, p->tokens);
        break;
    case WEFT_BF16:
        strip_light(WEFT_BF16, dev, p, 0, p->tokens);
        break;
    case WEFT_F8_E4M3:
        strips(WEFT_F8_E4M3, dev, p, scratch);
        break;
    default:
        strips(WEFT_F4_E2M1, dev, p, scratch);
    }
}

/* ---- tiles ---- */

/* A panel of columns against `tokens` tokens from `token` on. Sums come from `sums` unless the
 * panel is the first, and go there or, after the last, to y. */
INLINE void tile_step(int tokens, weft_dtype dtype, const struct weft__product *p,
                      const struct rows4 *rows, const void *const w[ROWS], const float *const x[],
                      int64_t columns, int64_t token, bool start, bool end, f32x8 *sums)
{
    f32x8 sum[ROWS * TOKENS] = {0};
    if (!start)
        for (int i = 0; i < ROWS * tokens; i++) sum[i] = sums[i];
    dots(tokens, dtype, w, x, columns, sum);
    if (end)
        for (int t = 0; t < tokens; t++) finish(p, rows, token + t, tile_result(tokens, sum, t));
    else
        for (int i = 0; i < ROWS * tokens; i++) sums[i] = sum[i];
}

/* At most TILE_ROWS rows by TILE_TOKENS tokens; `light`: dtype is the matrix's, else that of the
 * panel. */
INLINE void tile(weft_dtype dtype, bool light, const struct weft__dev *dev,
                 const struct weft__product *p, int64_t row, int64_t token, int64_t tokens,
                 struct weft__scratch *scratch)
{
    const int64_t last = weft__min(row + WEFT__TILE_ROWS, p->rows), k = p->w->cols;
    const void *w[ROWS];
    const float *x[WEFT__TILE_TOKENS];
    for (int64_t t = 0; t < tokens; t++) x[t] = token_row(p, token + t);
    int64_t column = 0;
    do {
        int64_t columns = weft__min(WEFT__TILE_K, k - column);
        bool start = column == 0, end = column + columns == k;
        f32x8 *sums = (f32x8 *)(void *)scratch->sums;
        for (int64_t first = row; first < last; first += ROWS) {
            struct rows4 rows = rows4_at(p, first, ROWS);
            for (int r = 0; r < ROWS; r++) {
                float *panel = scratch->panel + r * WEFT__TILE_K;
                w[r] =
                    light ? (const void *)codes_at(dtype, p->w, rows.row[r], column).data : panel;
                if (!light) decode_columns(dev, p->w, rows.row[r], column, columns, panel);
            }
            for (int64_t t = 0, n; t < tokens; t += n) {
                n = next_three(tokens - t);
                FOR_THREE(tile_step, n, dtype, p, &rows, w, x + t, columns, token + t, start, end,
                          sums)
                sums += ROWS * n;
            }
        }
        for (int64_t t = 0; t < tokens; t++) x[t] += columns;
        column += columns;
    } while (column < k);
}

static void product_tile(const struct weft__dev *dev, const struct weft__product *p, int64_t row,
                         int64_t token, int64_t tokens, struct weft__scratch *scratch)
{
    switch (p->w->dtype) {
    case WEFT_F32:
        tile(WEFT_F32, true, dev, p, row, token, tokens, scratch);
        break;
    case WEFT_F16:
        tile(WEFT_F16, true, dev, p, row, token, tokens, scratch);
        break;
    case WEFT_BF16:
        tile(WEFT_BF16, true, dev, p, row, token, tokens, scratch);
        break;
    default:
        tile(WEFT_F32, false, dev, p, row, token, tokens, scratch);
    }
}

static void product_f32(const struct weft__dev *dev, const struct weft__product *p,
                        struct weft__scratch *scratch)
{
    bool heavy = (p->w->dtype == WEFT_F8_E4M3 || p->w->dtype == WEFT_F4_E2M1) && p->w->cols > 0;
    if (p->tokens <= (heavy ? STRIP_TOKENS : 2) && p->w->scale_kind != WEFT__SCALE_BLOCK) {
        product_strips(dev, p, scratch);
        return;
    }
    const int64_t even = weft__ceil_div(p->tokens, weft__ceil_div(p->tokens, WEFT__TILE_TOKENS));
    for (int64_t token = 0; token < p->tokens; token += even) {
        int64_t tokens = weft__min(even, p->tokens - token);
        for (int64_t row = 0; row < p->rows; row += WEFT__TILE_ROWS)
            product_tile(dev, p, row, token, tokens, scratch);
    }
}

/* ---- transposed: the reduction runs down the rows, lane l of a dot product is a vector of eight
 * columns ---- */

enum { T_COLUMNS = 32, T_ROWS = WEFT__TILE_ROWS * WEFT__TILE_K / T_COLUMNS };

/* sum[lane] of eight columns, over `rows` rows; the first is a multiple of 8. */
INLINE void dots_t(const float *panel, const float *x, int64_t rows, f32x8 *sum)
{
    f32x8 s[8];
    for (int l = 0; l < 8; l++) s[l] = sum[l];
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8)
        for (int l = 0; l < 8; l++)
            s[l] = fma8(load8(panel + (r + l) * T_COLUMNS), splat(x[r + l]), s[l]);
    if (r < rows) /* the missing lanes are zeros here as everywhere */
        for (int l = 0; l < 8; l++)
            s[l] = r + l < rows ? fma8(load8(panel + (r + l) * T_COLUMNS), splat(x[r + l]), s[l])
                                : fma8(splat(0), splat(0), s[l]);
    for (int l = 0; l < 8; l++) sum[l] = s[l];
}

/* Finishes eight columns, or the n that are left. */
INLINE void store_t(const struct weft__product_t *p, float *y, int64_t n, const f32x8 s[8])
{
    f32x8 v = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    v = v * splat(p->w->scale_global);
    if (n >= 8)
        store8(y, v);
    else
        store_first(y, v, n);
}

static void product_t_tile(const struct weft__dev *dev, const struct weft__product_t *p,
                           int64_t column, int64_t token, int64_t tokens,
                           struct weft__scratch *scratch)
{
    const int64_t columns = weft__min(T_COLUMNS, p->columns - column);
    const int64_t groups = weft__ceil_div(columns, 8);
    f32x8 *sums = (f32x8 *)(void *)scratch->sums;
    memset(sums, 0, (size_t)(tokens * groups) * 8 * sizeof *sums);
    for (int64_t row = 0; row < p->rows; row += T_ROWS) {
        int64_t rows = weft__min(T_ROWS, p->rows - row);
        for (int64_t r = 0; r < rows; r++) {
            float *out = scratch->panel + r * T_COLUMNS, scale = row_scale(p->w, p->row + row + r);
            decode_columns(dev, p->w, p->row + row + r, p->column + column, columns, out);
            for (int64_t c = 0; c < columns; c++) out[c] *= scale;
        }
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t g = 0; g < groups; g++)
                dots_t(scratch->panel + 8 * g, p->x + (token + t) * p->x_stride + row, rows,
                       sums + (t * groups + g) * 8);
    }
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t g = 0; g < groups; g++)
            store_t(p, p->y + (token + t) * p->y_stride + column + 8 * g, columns - 8 * g,
                    sums + (t * groups + g) * 8);
}

/* One token, decoded in registers: for each lane four of its rows at a time, along the columns.
 * Rows row, row + 8, ..: `count` of them. */
INLINE void lane_rows(int count, weft_dtype dtype, const struct weft__dev *dev,
                      const struct weft__product_t *p, int64_t row, int64_t column, int64_t columns,
                      f32x8 *sums)
{
    struct codes c[4];
    f32x8 x[4], w[4];
    for (int j = 0; j < count; j++) {
        c[j] = codes_at(dtype, p->w, p->row + row + 8 * j, p->column + column);
        x[j] = splat(p->x[row + 8 * j]);
    }
    for (int64_t at = 0; at < columns; at += CHUNK, sums += 4) {
        f32x8 s[4] = {sums[0], sums[1], sums[2], sums[3]};
        for (int j = 0; j < count; j++) {
            if (columns - at >= CHUNK)
                decode(dev, dtype, c[j], w);
            else
                decode_rest(dev, dtype, c[j], columns - at, w);
            c[j].data += chunk_bytes(dtype);
            if (dtype == WEFT_F4_E2M1) c[j].scale += 2;
            for (int v = 0; v < 4; v++) s[v] = fma8(w[v], x[j], s[v]);
        }
        for (int v = 0; v < 4; v++) sums[v] = s[v];
    }
}

INLINE void product_t_one(weft_dtype dtype, const struct weft__dev *dev,
                          const struct weft__product_t *p, struct weft__scratch *scratch)
{
    enum { WIDTH = WEFT__TILE_ROWS * WEFT__TILE_TOKENS }; /* columns whose eight lanes have room */
    for (int64_t column = 0; column < p->columns; column += WIDTH) {
        const int64_t columns = weft__min(WIDTH, p->columns - column);
        const int64_t vectors = weft__ceil_div(columns, CHUNK) * 4;
        f32x8 *sums = (f32x8 *)(void *)scratch->sums; /* [8, vectors] */
        memset(sums, 0, (size_t)(8 * vectors) * sizeof *sums);
        for (int64_t row = 0; row < p->rows; row += 32)
            for (int64_t lane = 0; lane < 8; lane++) {
                f32x8 *sum = sums + lane * vectors;
                int64_t at = row + lane;
                if (at + 24 < p->rows)
                    lane_rows(4, dtype, dev, p, at, column, columns, sum);
                else
                    for (; at < weft__min(row + 32, p->rows); at += 8)
                        lane_rows(1, dtype, dev, p, at, column, columns, sum);
            }
        for (int64_t i = 0; 8 * i < columns; i++) {
            f32x8 s[8];
            for (int l = 0; l < 8; l++) {
                s[l] = sums[l * vectors + i];
                if (p->rows % 8 != 0 && l >= p->rows % 8) s[l] = s[l] + splat(0); /* padding */
            }
            store_t(p, p->y + column + 8 * i, columns - 8 * i, s);
        }
    }
}

static void product_t(const struct weft__dev *dev, const struct weft__product_t *p,
                      struct weft__scratch *scratch)
{
    if (p->tokens == 1 &&
        (p->w->scale_kind == WEFT__SCALE_NONE || p->w->scale_kind == WEFT__SCALE_NVFP4)) {
        switch (p->w->dtype) {
        case WEFT_F32:
            product_t_one(WEFT_F32, dev, p, scratch);
            return;
        case WEFT_F16:
            product_t_one(WEFT_F16, dev, p, scratch);
            return;
        case WEFT_BF16:
            product_t_one(WEFT_BF16, dev, p, scratch);
            return;
        case WEFT_F8_E4M3:
            product_t_one(WEFT_F8_E4M3, dev, p, scratch);
            return;
        default:
            product_t_one(WEFT_F4_E2M1, dev, p, scratch);
            return;
        }
    }
    for (int64_t token = 0; token < p->tokens; token += WEFT__TILE_TOKENS) {
        int64_t tokens = weft__min(WEFT__TILE_TOKENS, p->tokens - token);
        for (int64_t column = 0; column < p->columns; column += T_COLUMNS)
            product_t_tile(dev, p, column, token, tokens, scratch);
    }
}
