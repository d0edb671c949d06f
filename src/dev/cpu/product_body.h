/* product_body.h: matrix products. Every output is one chain of eight lanes (dev.h), so the only
 * freedom is how many outputs run side by side and where weights are decoded:
 *
 *   strips    in registers, a row's chunk at a time: few tokens, so that memory or the decoding is
 *             the limit
 *   tiles     while they are multiplied where that costs nothing (F32, F16, BF16), else a panel of
 *             four rows into the cache: many tokens, so that multiplying is the limit. Unfinished
 *             sums wait in memory between panels of columns. */
#include "decode_body.h"

enum {
    HEIGHT = 4, /* register tile: WIDE rows each, */
    ROWS = HEIGHT * WIDE,
    TOKENS = 3,        /* by token rows: 12 sums hide the latency of an addition */
    STRIP_SUMS = 8,    /* wide sums side by side in a strip */
    STRIP_TOKENS = 16, /* up to here strips are faster when decoding costs something */
    PANELS = WIDE > 1, /* also of F32, F16, BF16: joining rows in a register costs more */
    SHORT_ROW = 2048,  /* bytes: shorter rows are fetched in the order of addresses */
    AHEAD = 2048,      /* bytes that longer ones are fetched ahead */
};

/* ---- register tiles ---- */

/* Eight weights of each row at column `at`: of a panel, or of a type that is decoded while
 * multiplied. */
INLINE wide weights8(weft_dtype dtype, bool panel, struct codes w, int64_t at)
{
    if (panel) return load_wide(w.data[0] + 4 * WIDE * at);
    switch (dtype) {
    case WEFT_F16:
        return decode_f16(w, 2 * at);
    case WEFT_BF16:
        return decode_bf16(w, 2 * at);
    default:
        return load8_each(w.data, 4 * at);
    }
}

/* The last n < 8. */
INLINE wide weights_rest(weft_dtype dtype, bool panel, struct codes w, int64_t at, int64_t n)
{
    if (panel) return weights8(dtype, panel, w, at);
    uint8_t bytes[WIDE][32] = {0};
    size_t width = dtype == WEFT_F32 ? 4 : 2;
    for (int j = 0; j < WIDE; j++) {
        memcpy(bytes[j], w.data[j] + (size_t)at * width, (size_t)n * width);
        w.data[j] = bytes[j];
    }
    return weights8(dtype, panel, w, 0);
}

/* sum[r * tokens + t] += w[r] . x[t] over k columns. */
INLINE void dots(int tokens, weft_dtype dtype, bool panel, const struct codes w[HEIGHT],
                 const float *const x[], int64_t k, wide *sum)
{
    int64_t at = 0;
    for (; at + 8 <= k; at += 8) {
        wide xv[TOKENS];
        for (int t = 0; t < tokens; t++) xv[t] = repeat8(x[t] + at);
        for (int r = 0; r < HEIGHT; r++) {
            wide wv = weights8(dtype, panel, w[r], at);
            for (int t = 0; t < tokens; t++)
                sum[r * tokens + t] = fma_wide(wv, xv[t], sum[r * tokens + t]);
        }
    }
    if (at == k) return;
    for (int r = 0; r < HEIGHT; r++) {
        wide wv = weights_rest(dtype, panel, w[r], at, k - at);
        for (int t = 0; t < tokens; t++) {
            f32x8 xv = load_first(x[t] + at, k - at);
            sum[r * tokens + t] = fma_wide(wv, repeat8(&xv), sum[r * tokens + t]);
        }
    }
}

/* The finished sums of one token, four rows from `row` on. */
INLINE f32x4 tile_result(int tokens, const wide *sum, int token, int row)
{
    f32x8 v[4];
    for (int i = 0; i < 4; i++)
        v[i] = part(sum[(row + i) / WIDE * tokens + token], (row + i) % WIDE);
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

INLINE f32x4 splat4(float x) { return (f32x4){x, x, x, x}; }

/* Finishes a token's dot products with rows first to first + 3 of the result; there may be fewer.
 */
INLINE void finish(const struct weft__product *p, int64_t first, int64_t token, f32x4 v)
{
    const int64_t n = weft__min(p->rows - first, 4), row = p->row + first;
    float *y = p->y + token * p->y_stride + first;
    f32x4 factor = splat4(p->w->scale_global), bias = {0};
    if (p->w->scale_kind == WEFT__SCALE_ROW)
        for (int64_t r = 0; r < n; r++) factor[r] = row_factor(p->w, row + r);
    v = v * factor;
    if (p->w->bias != NULL) {
        for (int64_t r = 0; r < n; r++) bias[r] = p->w->bias[row + r];
        v = v + bias;
    }
    if (n == 4)
        memcpy(y, &v, sizeof v);
    else
        for (int64_t r = 0; r < n; r++) y[r] = v[r];
}

INLINE const float *token_row(const struct weft__product *p, int64_t token)
{
    return p->x + (p->x_row != NULL ? p->x_row[token] : token) * p->x_stride;
}

/* ---- strips ---- */

/* The last chunk of WIDE rows, n < 32 weights. */
INLINE void strip_rest(const struct weft__dev *dev, weft_dtype dtype, int tokens, struct codes c,
                       const float *const x[], int64_t at, int64_t n, wide *sum)
{
    wide w[4];
    decode_rest(dev, dtype, c, n, w);
    for (int v = 0; v < 4 && 8 * v < n; v++)
        for (int t = 0; t < tokens; t++) {
            const float *xp = x[t] + at + 8 * v;
            f32x8 xv = n - 8 * v >= 8 ? load8(xp) : load_first(xp, n - 8 * v);
            sum[t] = fma_wide(w[v], repeat8(&xv), sum[t]);
        }
}

/* Finishes sum[r * tokens + t]: rows from `first` on, `count` tokens from `token` on. */
INLINE void strip_finish(int height, int tokens, const struct weft__product *p, int64_t first,
                         int64_t token, int64_t count, const wide *sum)
{
    if (height == HEIGHT) {
        for (int t = 0; t < tokens; t++)
            for (int r = 0; r < ROWS; r += 4)
                finish(p, first + r, token + t, tile_result(tokens, sum, t, r));
        return;
    }
    for (int r = 0; r < height * WIDE && first + r < p->rows; r++)
        for (int t = 0; t < tokens; t += 4) {
            f32x8 v[4];
            for (int i = 0; i < 4; i++)
                v[i] = part(sum[r / WIDE * tokens + weft__min(t + i, tokens - 1)], r % WIDE);
            f32x4 y = add_lanes4(v) * splat4(row_factor(p->w, p->row + first + r));
            if (p->w->bias != NULL) y = y + splat4(p->w->bias[p->row + first + r]);
            for (int i = 0; i < 4 && t + i < count; i++)
                p->y[(token + t + i) * p->y_stride + first + r] = y[i];
        }
}

/* What a strip covers. */
struct strip {
    int64_t row, last;       /* rows of the result */
    int64_t column, columns; /* column a multiple of 32 */
    int64_t token, count;    /* tokens that are wanted */
    wide *sums;              /* where sums wait between strips of columns */
};

/* sum[r * tokens + t] += 32 columns from `column` on of the WIDE rows c[r], times x[t]. */
INLINE void strip_chunk(int height, int tokens, weft_dtype dtype, const struct weft__dev *dev,
                        const struct codes c[], const float *const x[], int64_t column, wide *sum)
{
    for (int r = 0; r < height; r++) {
        wide w[4];
        decode(dev, dtype, codes_after(c[r], dtype, column / CHUNK), w);
        for (int v = 0; v < 4; v++)
            for (int t = 0; t < tokens; t++)
                sum[r * tokens + t] =
                    fma_wide(w[v], repeat8(x[t] + column + 8 * v), sum[r * tokens + t]);
    }
}

#if defined(__AVX2__) && !defined(__AVX512F__)

/* NVFP4 against one or two tokens: what codes are worth under their scale is looked up, for two
 * rows at a time, each in a half of the registers. So the sums of two rows are kept as lanes 0 to 3
 * of both and lanes 4 to 7 of both. Where more tokens share what is decoded, decode is faster. */
enum { PAIR_TOKENS = 2 };

/* From sums of rows to those of pairs, and back. */
INLINE void turn_pairs(int height, int tokens, f32x8 *sum)
{
    for (int r = 0; r < height; r += 2)
        for (int t = r * tokens; t < (r + 1) * tokens; t++) {
            __m256 a = (__m256)sum[t], b = (__m256)sum[t + tokens];
            sum[t] = (f32x8)_mm256_permute2f128_ps(a, b, 0x20);
            sum[t + tokens] = (f32x8)_mm256_permute2f128_ps(a, b, 0x31);
        }
}

/* Sixteen bytes for each half. */
INLINE __m256i load16_two(const uint8_t *first, const uint8_t *second)
{
    return _mm256_blend_epi32(
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)first)),
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)second)), 0xf0);
}

/* The 32 codes in sixteen bytes, each a byte: 16 and 16. */
INLINE void split_codes(__m256i bytes, __m256i codes[2])
{
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i even = _mm256_and_si256(bytes, nibble);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble);
    codes[0] = _mm256_unpacklo_epi8(even, odd);
    codes[1] = _mm256_unpackhi_epi8(even, odd);
}

/* The BF16 for 16 codes: eight and eight. */
INLINE void look_up(const struct weft__nvfp4 *first, const struct weft__nvfp4 *second,
                    __m256i codes, __m256i words[2])
{
    __m256i low = _mm256_shuffle_epi8(load16_two(first->low, second->low), codes);
    __m256i high = _mm256_shuffle_epi8(load16_two(first->high, second->high), codes);
    words[0] = _mm256_unpacklo_epi8(low, high);
    words[1] = _mm256_unpackhi_epi8(low, high);
}

/* strip_chunk of NVFP4 for sums of pairs. */
INLINE void strip_pairs(int height, int tokens, const struct weft__dev *dev, const struct codes c[],
                        const float *const x[], int64_t column, f32x8 *sum)
{
    const __m256i zero = _mm256_setzero_si256();
    __m256i codes[HEIGHT / 2][2], words[HEIGHT / 2][2];
    for (int r = 0; r < height; r += 2)
        split_codes(load16_two(c[r].data[0] + column / 2, c[r + 1].data[0] + column / 2),
                    codes[r / 2]);
    for (int block = 0; block < 2; block++) {
        const int64_t scale = column / 16 + block;
        for (int r = 0; r < height; r += 2)
            look_up(&dev->nvfp4[c[r].scale[0][scale]], &dev->nvfp4[c[r + 1].scale[0][scale]],
                    codes[r / 2][block], words[r / 2]);
        for (int eight = 0; eight < 2; eight++)
            for (int t = 0; t < tokens; t++) {
                const __m128 *at =
                    (const __m128 *)(const void *)(x[t] + column + 16 * block + 8 * eight);
                f32x8 low = (f32x8)_mm256_broadcast_ps(at);
                f32x8 high = (f32x8)_mm256_broadcast_ps(at + 1);
                for (int r = 0; r < height; r += 2) {
                    __m256i w = words[r / 2][eight]; /* BF16 become F32 when zeros follow */
                    f32x8 *a = sum + r * tokens + t, *b = a + tokens;
                    *a = fma8((f32x8)_mm256_unpacklo_epi16(zero, w), low, *a);
                    *b = fma8((f32x8)_mm256_unpackhi_epi16(zero, w), high, *b);
                }
            }
    }
}

#else

enum { PAIR_TOKENS = 0 };

INLINE void turn_pairs(int height, int tokens, wide *sum) { (void)height, (void)tokens, (void)sum; }

INLINE void strip_pairs(int height, int tokens, const struct weft__dev *dev, const struct codes c[],
                        const float *const x[], int64_t column, wide *sum)
{
    strip_chunk(height, tokens, WEFT_F4_E2M1, dev, c, x, column, sum);
}

#endif

/* Whether strips of one or two tokens are computed in pairs of rows. */
INLINE bool in_pairs(weft_dtype dtype, int tokens)
{
    return dtype == WEFT_F4_E2M1 && tokens <= PAIR_TOKENS;
}

/* All whole chunks. Meanwhile memory from `next` on is fetched or, when that is NULL, what follows
 * in the same rows. */
INLINE void strip_whole(int height, int tokens, weft_dtype dtype, const struct weft__dev *dev,
                        const struct codes c[], const float *const x[], int64_t chunks,
                        const uint8_t *next, wide *total)
{
    const int64_t step = chunk_bytes(dtype);
    wide sum[STRIP_SUMS];
    for (int i = 0; i < height * tokens; i++) sum[i] = total[i];
    if (in_pairs(dtype, tokens)) turn_pairs(height, tokens, sum);
    for (int64_t i = 0; i < chunks; i++) {
        for (int64_t at = 0; next != NULL && at < height * WIDE * step; at += 64)
            __builtin_prefetch(next + i * height * WIDE * step + at, 0, 2);
        for (int r = 0; next == NULL && r < height * WIDE; r++)
            for (int64_t at = 0; at < step; at += 64)
                __builtin_prefetch(c[r / WIDE].data[r % WIDE] + i * step + AHEAD + at, 0, 2);
        if (in_pairs(dtype, tokens))
            strip_pairs(height, tokens, dev, c, x, i * CHUNK, sum);
        else
            strip_chunk(height, tokens, dtype, dev, c, x, i * CHUNK, sum);
    }
    if (in_pairs(dtype, tokens)) turn_pairs(height, tokens, sum);
    for (int i = 0; i < height * tokens; i++) total[i] = sum[i];
}

/* `height` times WIDE rows at a time against `tokens` tokens, at x from the strip's first column.
 */
INLINE void strip(int height, int tokens, weft_dtype dtype, const struct weft__dev *dev,
                  const struct weft__product *p, const struct strip *s, const float *const x[])
{
    const int64_t whole = s->columns / CHUNK, rest = s->columns % CHUNK;
    const int64_t last_row = p->row + p->rows - 1;
    const bool start = s->column == 0, end = s->column + s->columns == p->w->cols;
    for (int64_t first = s->row; first < s->last; first += height * WIDE) {
        struct codes c[HEIGHT];
        wide sum[STRIP_SUMS], *waiting = s->sums + (first - s->row) / WIDE * tokens;
        for (int i = 0; i < height * tokens; i++) sum[i] = start ? splat_wide(0) : waiting[i];
        for (int r = 0; r < height; r++)
            c[r] = codes_at(dtype, p->w, p->row + first + r * WIDE, last_row, s->column);
        /* Short rows: the next ones are fetched in the order of addresses, for side by side they
         * look like no stream to the processor. Long ones it recognises; they are helped a bit. */
        const uint8_t *next = c[0].data[0] + height * WIDE * p->w->row_bytes;
        strip_whole(height, tokens, dtype, dev, c, x, whole,
                    p->w->row_bytes <= SHORT_ROW ? next : NULL, sum);
        for (int r = 0; rest > 0 && r < height; r++)
            strip_rest(dev, dtype, tokens, codes_after(c[r], dtype, whole), x, whole * CHUNK, rest,
                       sum + r * tokens);
        if (end)
            strip_finish(height, tokens, p, first, s->token, s->count, sum);
        else
            for (int i = 0; i < height * tokens; i++) waiting[i] = sum[i];
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
        strip(in_pairs(dtype, 2) ? 2 : 4, 2, dtype, dev, p, &s, x);
}

/* Three to eight tokens. An odd count runs as the next even one, its last token twice. The tokens'
 * columns are moved together: rows of a length near a power of two evict each other. */
INLINE void strip_heavy(weft_dtype dtype, const struct weft__dev *dev,
                        const struct weft__product *p, int64_t token, int64_t count,
                        struct weft__scratch *scratch)
{
    enum { BLOCK = 640, ROWS_MOST = WEFT__TILE_ROWS * WEFT__TILE_TOKENS / STRIP_SUMS };
    struct strip s = {.token = token, .count = count, .sums = (wide *)(void *)scratch->sums};
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
INLINE void tile_step(int tokens, weft_dtype dtype, bool panel, const struct weft__product *p,
                      int64_t first, const struct codes w[HEIGHT], const float *const x[],
                      int64_t columns, int64_t token, bool start, bool end, wide *sums)
{
    wide sum[HEIGHT * TOKENS];
    for (int i = 0; i < HEIGHT * tokens; i++) sum[i] = start ? splat_wide(0) : sums[i];
    dots(tokens, dtype, panel, w, x, columns, sum);
    if (end)
        strip_finish(HEIGHT, tokens, p, first, token, tokens, sum);
    else
        for (int i = 0; i < HEIGHT * tokens; i++) sums[i] = sum[i];
}

/* At most TILE_ROWS rows by TILE_TOKENS tokens. */
INLINE void tile(weft_dtype dtype, bool panel, const struct weft__dev *dev,
                 const struct weft__product *p, int64_t row, int64_t token, int64_t tokens,
                 struct weft__scratch *scratch)
{
    const int64_t last = weft__min(row + WEFT__TILE_ROWS, p->rows), k = p->w->cols;
    const int64_t last_row = p->row + p->rows - 1;
    struct codes w[HEIGHT];
    const float *x[WEFT__TILE_TOKENS];
    for (int64_t t = 0; t < tokens; t++) x[t] = token_row(p, token + t);
    int64_t column = 0;
    do {
        int64_t columns = weft__min(WEFT__TILE_K, k - column);
        bool start = column == 0, end = column + columns == k;
        wide *sums = (wide *)(void *)scratch->sums;
        for (int64_t first = row; first < last; first += ROWS) {
            for (int r = 0; r < HEIGHT; r++) {
                float *decoded = scratch->panel + r * WIDE * WEFT__TILE_K;
                const int64_t at = p->row + first + r * WIDE;
                if (!panel) {
                    w[r] = codes_at(dtype, p->w, at, last_row, column);
                } else {
                    decode_columns(dev, p->w, at, last_row, column, columns, decoded);
                    w[r].data[0] = (const uint8_t *)decoded;
                }
            }
            for (int64_t t = 0, n; t < tokens; t += n) {
                n = next_three(tokens - t);
                FOR_THREE(tile_step, n, dtype, panel, p, first, w, x + t, columns, token + t, start,
                          end, sums)
                sums += HEIGHT * n;
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
        tile(WEFT_F32, PANELS, dev, p, row, token, tokens, scratch);
        break;
    case WEFT_F16:
        tile(WEFT_F16, PANELS, dev, p, row, token, tokens, scratch);
        break;
    case WEFT_BF16:
        tile(WEFT_BF16, PANELS, dev, p, row, token, tokens, scratch);
        break;
    default:
        tile(WEFT_F32, true, dev, p, row, token, tokens, scratch);
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

/* ---- single rows ---- */

#if defined(__AVX512F__)

/* AVX2's are as fast. */
static void decode_row(const struct weft__dev *dev, const struct weft__matrix *w, int64_t row,
                       float *y)
{
    weft__kernels_avx2.decode_row(dev, w, row, y);
}

static void product_t(const struct weft__dev *dev, const struct weft__product_t *p,
                      struct weft__scratch *scratch)
{
    weft__kernels_avx2.product_t(dev, p, scratch);
}

#else

static void decode_row(const struct weft__dev *dev, const struct weft__matrix *w, int64_t row,
                       float *y)
{
    float factor = row_factor(w, row), span[CHUNK * 4];
    for (int64_t k = 0; k < w->cols; k += CHUNK * 4) {
        int64_t n = weft__min(w->cols - k, CHUNK * 4);
        decode_columns(dev, w, row, row, k, n, span);
        for (int64_t i = 0; i < n; i++) y[k + i] = span[i] * factor;
    }
}

/* Transposed: the reduction runs down the rows, lane l of a dot product is a vector of eight
 * columns. */

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
            const int64_t at = p->row + row + r;
            float *out = scratch->panel + r * T_COLUMNS, scale = row_scale(p->w, at);
            decode_columns(dev, p->w, at, at, p->column + column, columns, out);
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
        const int64_t at = p->row + row + 8 * j;
        c[j] = codes_at(dtype, p->w, at, at, p->column + column);
        x[j] = splat(p->x[row + 8 * j]);
    }
    for (int64_t at = 0; at < columns; at += CHUNK, sums += 4) {
        f32x8 s[4] = {sums[0], sums[1], sums[2], sums[3]};
        for (int j = 0; j < count; j++) {
            struct codes here = codes_after(c[j], dtype, at / CHUNK);
            if (columns - at >= CHUNK)
                decode(dev, dtype, here, w);
            else
                decode_rest(dev, dtype, here, columns - at, w);
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

#endif
