/* attention_body.h: softmax attention and the indexer's scores, a page of keys at a time.
 *
 * Queries that read the same keys (the heads of a group, neighbouring rows) meet a page together,
 * so that it is read once. For each query alone the order is fixed by key positions: scores by the
 * dot product of dev.h; the page's maximum; m, l and the output rescaled; then one fused
 * multiply-add a key, ascending. The output's memory holds the unfinished sum.
 *
 * The includer defines KERNELS and KERNELS_NAME. */
#include <assert.h>

#include "int8_body.h"

enum {
    LANES = 8 * WIDE,
    VALUES = 8, /* most vectors of a value that stay in registers */
};

/* One page of keys as a unit's queries see it. */
struct page {
    const float *k[WEFT__PAGE], *v[WEFT__PAGE];
    int64_t first, count; /* index of the first key, keys present */
};

struct query {
    const float *q;
    float *y;
    int64_t begin, end; /* keys it sees, by index */
    float max, sum;
    float rescale;     /* of the page at hand */
    int64_t low, high; /* keys of the page that it sees */
    float p[WEFT__PAGE];
};

/* Scores of ROWS keys, from j on, for `queries` queries. */
INLINE void score_tile(int queries, const struct codes k[HEIGHT], struct query *query, int64_t j,
                       int64_t dim, float scale)
{
    const float *q[TOKENS];
    wide sum[HEIGHT * TOKENS];
    for (int i = 0; i < HEIGHT * queries; i++) sum[i] = splat_wide(0);
    for (int t = 0; t < queries; t++) q[t] = query[t].q;
    dots(queries, WEFT_F32, false, k, q, dim, sum);
    for (int t = 0; t < queries; t++)
        for (int r = 0; r < ROWS; r += 4) {
            f32x4 score = tile_result(queries, sum, t, r) * (f32x4){scale, scale, scale, scale};
            memcpy(query[t].p + j + r, &score, sizeof score);
        }
}

/* Queries first .. last: score of every key of the page. */
INLINE void page_scores(const struct page *page, struct query *query, int64_t first, int64_t last,
                        int64_t dim, float scale)
{
    for (int64_t i = first, n; i < last; i += n) {
        n = next_three(last - i);
        for (int64_t j = 0; j < page->count; j += ROWS) {
            struct codes k[HEIGHT];
            for (int r = 0; r < ROWS; r++)
                k[r / WIDE].data[r % WIDE] =
                    (const uint8_t *)page->k[weft__min(j + r, page->count - 1)];
            FOR_THREE(score_tile, n, k, query + i, j, dim, scale)
        }
    }
}

/* Scores of the page become weights; m and l move on. */
INLINE void page_softmax(const struct page *page, struct query *query)
{
    query->low = weft__max(query->begin - page->first, 0);
    query->high = weft__min(query->end - page->first, page->count);
    for (int64_t j = 0; j < query->low; j++) query->p[j] = -INFINITY;
    for (int64_t j = query->high; j < WEFT__PAGE; j++) query->p[j] = -INFINITY;
    f32x8 a = load8(query->p), b = load8(query->p + 8);
    float most = largest_lane(max8(a, b)), max = most > query->max ? most : query->max;
    a = exp8(a - splat(max));
    b = exp8(b - splat(max));
    store8(query->p, a);
    store8(query->p + 8, b);
    /* e^0 is exactly 1, and the maximum seldom changes. */
    query->rescale = max == query->max ? 1 : exp8(splat(query->max - max))[0];
    query->sum = query->sum * query->rescale + add_lanes(a + b);
    query->max = max;
}

/* y = y * rescale + sum over keys low .. high of p[j] v[j], for `vectors` vectors at `at`. */
INLINE void values_tile(int vectors, int queries, const struct page *page,
                        const struct query *query, int64_t low, int64_t high, int64_t at)
{
    wide s[TOKENS * VALUES], v[VALUES];
    for (int t = 0; t < queries; t++)
        for (int c = 0; c < vectors; c++)
            s[t * vectors + c] =
                load_wide(query[t].y + at + LANES * c) * splat_wide(query[t].rescale);
    for (int64_t j = low; j < high; j++) {
        for (int c = 0; c < vectors; c++) v[c] = load_wide(page->v[j] + at + LANES * c);
        for (int t = 0; t < queries; t++)
            for (int c = 0; c < vectors; c++)
                s[t * vectors + c] = fma_wide(splat_wide(query[t].p[j]), v[c], s[t * vectors + c]);
    }
    for (int t = 0; t < queries; t++)
        for (int c = 0; c < vectors; c++)
            store_wide(query[t].y + at + LANES * c, s[t * vectors + c]);
}

INLINE void values_rest(const struct page *page, struct query *query, int64_t at, int64_t n)
{
    wide s = load_first_wide(query->y + at, n) * splat_wide(query->rescale);
    for (int64_t j = query->low; j < query->high; j++)
        s = fma_wide(splat_wide(query->p[j]), load_first_wide(page->v[j] + at, n), s);
    store_first_wide(query->y + at, s, n);
}

/* `queries` queries that see the same keys of the page; at most nine sums side by side. */
INLINE void page_values_of(int queries, const struct page *page, struct query *query, int64_t dim)
{
    int64_t at = 0, low = query->low, high = query->high;
    if (queries == 1)
        for (; at + LANES * VALUES <= dim; at += LANES * VALUES)
            values_tile(VALUES, queries, page, query, low, high, at);
    for (int n; at + LANES <= dim; at += LANES * n) {
        n = next_three((dim - at) / LANES);
        FOR_THREE(values_tile, n, queries, page, query, low, high, at)
    }
    if (at < dim)
        for (int t = 0; t < queries; t++) values_rest(page, query + t, at, dim - at);
}

/* Keys a query does not see are skipped, not multiplied by 0: their values may be anything. */
static void page_values(const struct page *page, struct query *query, int64_t first, int64_t last,
                        int64_t dim)
{
    for (int64_t i = first; i < last;) {
        int64_t n = 1;
        while (n < TOKENS && i + n < last && query[i + n].low == query[i].low &&
               query[i + n].high == query[i].high)
            n++;
        FOR_THREE(page_values_of, n, page, query + i, dim)
        i += n;
    }
}

/* MLA's absorbed form: a value is the first part of its key. */
static bool values_in_keys(const struct weft__op_attention *op)
{
    return op->v == op->k && op->v_stride == op->k_stride && op->v_head_stride == op->k_head_stride;
}

/* Keys index .. index + PAGE of what the unit's queries see: a page of the cache, or of `list`.
 * They are also fetched: the caller asks for a page ahead. */
static void page_at(const struct weft__attend *a, const int32_t *list, int64_t keys, int64_t index,
                    struct page *page)
{
    enum { LINE = 64 / sizeof(float) };
    const struct weft__op_attention *op = a->op;
    int64_t head = op->kv_head[a->head], slot = 0;
    page->first = index;
    page->count = weft__min(WEFT__PAGE, keys - index);
    for (int64_t j = 0; j < page->count; j++, slot++) {
        int64_t key = list != NULL ? list[index + j] : index + j;
        if (list != NULL || j == 0)
            slot = (int64_t)a->seq->pages[key / WEFT__PAGE] * WEFT__PAGE + key % WEFT__PAGE;
        page->k[j] = op->k + slot * op->k_stride + head * op->k_head_stride;
        page->v[j] = op->v + slot * op->v_stride + head * op->v_head_stride;
        for (int64_t d = 0; d < op->key_dim; d += LINE) __builtin_prefetch(page->k[j] + d);
        if (values_in_keys(op)) continue;
        for (int64_t d = 0; d < op->value_dim; d += LINE) __builtin_prefetch(page->v[j] + d);
    }
}

/* Moves the page's rows together: where their distance is a power of two they would evict each
 * other from the cache. Worth it when many queries meet the page. */
static void gather_page(const struct weft__attend *a, float *memory, struct page *page)
{
    const struct weft__op_attention *op = a->op;
    bool shared = values_in_keys(op);
    size_t k_bytes = (size_t)op->key_dim * sizeof(float);
    size_t v_bytes = (size_t)op->value_dim * sizeof(float);
    for (int64_t j = 0; j < page->count; j++) {
        page->k[j] = memcpy(memory, page->k[j], k_bytes);
        memory += op->key_dim;
        if (shared) {
            page->v[j] = page->k[j];
            continue;
        }
        page->v[j] = memcpy(memory, page->v[j], v_bytes);
        memory += op->value_dim;
    }
}

/* Rows row .. row + rows of the sequence. With a list they are one row, and keys count in it. */
static void attend_rows(const struct weft__attend *a, int64_t row, int64_t rows,
                        const int32_t *list, int64_t listed, struct weft__scratch *scratch)
{
    enum { GATHER_QUERIES = 8 };
    const struct weft__op_attention *op = a->op;
    struct query query[WEFT__TILE_QUERIES];
    assert(rows >= 1 && a->heads >= 1 && rows * a->heads <= WEFT__TILE_QUERIES);
    int64_t queries = 0, before = a->seq->kv_len - a->seq->count;
    for (int64_t r = row; r < row + rows; r++)
        for (int64_t h = a->head; h < a->head + a->heads; h++) {
            int64_t token = a->seq->row + r, end = list != NULL ? listed : before + r + 1;
            bool windowed = list == NULL && op->window > 0;
            struct query *q = &query[queries++];
            q->q = op->q + token * op->q_stride + h * op->key_dim;
            q->y = op->y + token * op->y_stride + h * op->value_dim;
            q->begin = windowed ? weft__max(end - op->window, 0) : 0;
            q->end = end;
            q->max = -INFINITY;
            q->sum = 0;
            memset(q->y, 0, (size_t)op->value_dim * sizeof(float));
        }
    /* Rows ascend, so what sees a page is a range of queries. */
    int64_t first = 0, last = 0, keys = query[queries - 1].end;
    struct page pages[2]; /* this one and the next */
    bool gather = queries >= GATHER_QUERIES &&
                  WEFT__PAGE * (op->key_dim + op->value_dim) <= WEFT__TILE_ROWS * WEFT__TILE_K;
    int64_t index = query[0].begin / WEFT__PAGE * WEFT__PAGE;
    page_at(a, list, keys, index, &pages[0]);
    for (int at = 0; index < keys; index += WEFT__PAGE, at ^= 1) {
        struct page *page = &pages[at];
        if (index + WEFT__PAGE < keys) page_at(a, list, keys, index + WEFT__PAGE, &pages[at ^ 1]);
        if (gather) gather_page(a, scratch->panel, page);
        while (last < queries && query[last].begin < index + page->count) last++;
        while (query[first].end <= index) first++;
        page_scores(page, query, first, last, op->key_dim, op->scale);
        for (int64_t i = first; i < last; i++) page_softmax(page, &query[i]);
        page_values(page, query, first, last, op->value_dim);
    }
    for (int64_t i = 0; i < queries; i++) {
        float inverse = 1.0f / query[i].sum;
        for (int64_t d = 0; d < op->value_dim; d++) query[i].y[d] *= inverse;
    }
}

static void attend(const struct weft__attend *a, struct weft__scratch *scratch)
{
    const struct weft__op_attention *op = a->op;
    if (op->selected == NULL) {
        attend_rows(a, a->row, a->rows, NULL, 0, scratch);
        return;
    }
    const int32_t *count = op->selected_count + a->seq->row;
    for (int64_t row = a->row, end = a->row + a->rows; row < end;) {
        int64_t n = 1;
        if (count[row] < 0) {
            while (row + n < end && count[row + n] < 0) n++;
            attend_rows(a, row, n, NULL, 0, scratch);
        } else {
            const int32_t *list = op->selected + (a->seq->row + row) * op->selected_stride;
            attend_rows(a, row, 1, list, count[row], scratch);
        }
        row += n;
    }
}

/* ---- indexer ---- */

static void index_score(const struct weft__op_index_select *op, const struct weft__seq *seq,
                        int64_t row, int64_t key, int64_t count, float *score)
{
    const int64_t token = seq->row + row;
    const float *weight = op->weight + token * op->weight_stride;
    const float dim_scale = 1.0f / sqrtf((float)op->dim);
    const float head_scale = 1.0f / sqrtf((float)op->heads);
    struct page page = {.first = key, .count = count};
    int64_t slot = (int64_t)seq->pages[key / WEFT__PAGE] * WEFT__PAGE + key % WEFT__PAGE;
    for (int64_t j = 0; j < count; j++) page.k[j] = op->k + (slot + j) * op->k_stride;

    f32x8 a = {0}, b = {0};
    struct query query[TOKENS];
    /* Scores past `count` are computed with, too. */
    for (int t = 0; t < TOKENS; t++) memset(query[t].p, 0, sizeof query[t].p);
    for (int64_t h = 0, n; h < op->heads; h += n) {
        n = next_three(op->heads - h);
        for (int64_t t = 0; t < n; t++)
            query[t].q = op->q + token * op->q_stride + (h + t) * op->dim;
        page_scores(&page, query, 0, n, op->dim, dim_scale);
        for (int64_t t = 0; t < n; t++) {
            f32x8 w = splat(weight[h + t] * head_scale);
            a = fma8(w, max8(splat(0), load8(query[t].p)), a);
            b = fma8(w, max8(splat(0), load8(query[t].p + 8)), b);
        }
    }
    f32x8 both[2] = {a, b};
    memcpy(score, both, (size_t)count * sizeof *score);
}

/* ---- element by element ---- */

INLINE f32x8 silu8(f32x8 gate, f32x8 up) { return gate / (splat(1) + exp8(-gate)) * up; }

static void silu_mul(const float *gate, const float *up, float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) store8(y + i, silu8(load8(gate + i), load8(up + i)));
    if (i < n)
        store_first(y + i, silu8(load_first(gate + i, n - i), load_first(up + i, n - i)), n - i);
}

static void exp_row(const float *x, float sign, float shift, float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) store8(y + i, exp8(load8(x + i) * splat(sign) + splat(shift)));
    if (i < n)
        store_first(y + i, exp8(load_first(x + i, n - i) * splat(sign) + splat(shift)), n - i);
}

const struct weft__kernels KERNELS = {
    .name = KERNELS_NAME,
    .product = product,
    .product_t = product_t,
    .decode_row = decode_row,
    .attend = attend,
    .index_score = index_score,
    .round_int8 = round_int8,
    .silu_mul = silu_mul,
    .exp = exp_row,
};
