/* Attention and the indexer's choice: how a team shares them, and selection of the top keys. */
#include <assert.h>

#include "base/numerics.h"
#include "cpu.h"

/* ---- attention ---- */

struct attention_job {
    const struct weft__op_attention *op;
    int64_t rows, heads; /* of a unit, at most */
};

/* Query heads from `head` on that read the same keys, at most `most`. */
static int64_t same_keys(const struct weft__op_attention *op, int64_t head, int64_t most)
{
    int64_t n = 1;
    while (n < most && head + n < op->heads && op->kv_head[head + n] == op->kv_head[head]) n++;
    return n;
}

/* Runs unit `unit`, or counts the units when it is -1. Sequences, then blocks of rows, then heads.
 */
static int64_t attention_walk(struct weft__dev *dev, const struct attention_job *job, int64_t unit,
                              struct weft__scratch *scratch)
{
    const struct weft__op_attention *op = job->op;
    int64_t head_units = 0, seen = 0;
    for (int64_t h = 0; h < op->heads; h += same_keys(op, h, job->heads)) head_units++;
    for (int64_t s = 0; s < op->seqs; s++) {
        const struct weft__seq *seq = &op->seq[s];
        int64_t units = weft__ceil_div(seq->count, job->rows) * head_units;
        if (unit < seen || unit >= seen + units) {
            seen += units;
            continue;
        }
        int64_t row = (unit - seen) / head_units * job->rows, head = 0;
        for (int64_t i = (unit - seen) % head_units; i > 0; i--)
            head += same_keys(op, head, job->heads);
        dev->kernels->attend(&(struct weft__attend){.op = op,
                                                    .seq = seq,
                                                    .row = row,
                                                    .rows = weft__min(job->rows, seq->count - row),
                                                    .head = head,
                                                    .heads = same_keys(op, head, job->heads)},
                             scratch);
        break;
    }
    return seen;
}

static void attention_unit(struct weft__dev *dev, const void *arg, int64_t unit, int thread)
{
    (void)attention_walk(dev, arg, unit, &dev->scratch[thread]);
}

void weft__cpu_attention(struct weft__dev *dev, const struct weft__op_attention *op)
{
    if (op->heads == 0) return;
    int64_t group = 1, rows = 1;
    for (int64_t h = 0; h < op->heads; h++)
        group = weft__max(group, same_keys(op, h, WEFT__TILE_QUERIES));
    for (int64_t s = 0; s < op->seqs; s++) {
        assert(op->seq[s].count >= 1 && op->seq[s].kv_len >= op->seq[s].count);
        rows = weft__max(rows, op->seq[s].count);
    }
    struct attention_job job = {.op = op, .heads = group};
    job.rows = weft__min(weft__max(WEFT__TILE_QUERIES / group, 1), rows);
    int64_t units = attention_walk(dev, &job, -1, NULL);
    while (units < 2 * (int64_t)dev->threads && job.rows * job.heads > 8) {
        if (job.rows > 1)
            job.rows = weft__ceil_div(job.rows, 2);
        else
            job.heads = weft__ceil_div(job.heads, 2);
        units = attention_walk(dev, &job, -1, NULL);
    }
    weft__team_run(dev, units, attention_unit, &job);
}

/* ---- index_select ---- */

/* A ranking keeps the best `top` of what is pushed. A candidate is one number: the score, ordered
 * as an unsigned integer, above the complement of the position, so that larger is better and no two
 * are equal. */

static uint64_t candidate(float score, int64_t position)
{
    uint32_t bits = weft__f32_bits(score + 0.0f); /* -0 ties with +0 */
    bits = bits >> 31 ? ~bits : bits | 0x80000000u;
    if (!(score == score)) bits = 0; /* NaN comes last */
    return (uint64_t)bits << 32 | (uint32_t) ~(uint32_t)position;
}

/* The rank-th largest of n different numbers, a byte at a time. */
static uint64_t nth_largest(const uint64_t *value, int64_t n, int64_t rank)
{
    uint64_t prefix = 0, mask = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        int64_t histogram[256] = {0};
        for (int64_t i = 0; i < n; i++)
            if ((value[i] & mask) == prefix) histogram[value[i] >> shift & 255]++;
        int digit = 255;
        for (; rank > histogram[digit]; digit--) rank -= histogram[digit];
        prefix |= (uint64_t)digit << shift;
        mask |= (uint64_t)255 << shift;
    }
    return prefix;
}

static void keep_top(struct weft__ranking *r)
{
    if (r->count <= r->top) return;
    uint64_t least = nth_largest(r->kept, r->count, r->top);
    int64_t n = 0;
    for (int64_t i = 0; i < r->count; i++)
        if (r->kept[i] >= least) r->kept[n++] = r->kept[i];
    assert(n == r->top);
    r->count = n;
    r->least = least;
}

static void push(struct weft__ranking *r, uint64_t value)
{
    if (value <= r->least && r->count >= r->top) return;
    if (r->count == 2 * r->top) keep_top(r);
    if (value > r->least || r->count < r->top) r->kept[r->count++] = value;
}

/* Keys first .. last of what a row sees. */
static void rank_keys(const struct weft__dev *dev, const struct weft__op_index_select *op,
                      const struct weft__seq *seq, int64_t row, int64_t first, int64_t last,
                      struct weft__ranking *r)
{
    for (int64_t key = first; key < last; key += WEFT__PAGE) {
        float score[WEFT__PAGE];
        int64_t n = weft__min(WEFT__PAGE, last - key);
        dev->kernels->index_score(op, seq, row, key, n, score);
        for (int64_t j = 0; j < n; j++) push(r, candidate(score[j], key + j));
    }
}

static uint32_t position(uint64_t value) { return ~(uint32_t)value; }

static void store_ranking(const struct weft__op_index_select *op, int64_t token,
                          struct weft__ranking *r)
{
    keep_top(r);
    int32_t *out = op->selected + token * op->top;
    for (int64_t i = 0; i < op->top; i++) out[i] = (int32_t)position(r->kept[i]);
    op->count[token] = (int32_t)op->top;
}

struct select_row {
    const struct weft__op_index_select *op;
    const struct weft__seq *seq;
    int64_t row, keys;
};

/* The unit-th row of the batch; true when it sees at most `top` keys and so is done. */
static bool select_all(const struct weft__op_index_select *op, struct select_row *out, int64_t unit)
{
    const struct weft__seq *seq = op->seq;
    while (unit >= seq->count) unit -= seq++->count;
    *out = (struct select_row){op, seq, unit, seq->kv_len - seq->count + unit + 1};
    if (out->keys > op->top) return false;
    op->count[seq->row + unit] = -1;
    return true;
}

/* Many rows: a row a unit. */
static void select_unit(struct weft__dev *dev, const void *arg, int64_t unit, int thread)
{
    const struct weft__op_index_select *op = arg;
    struct select_row s;
    if (select_all(op, &s, unit)) return;
    struct weft__ranking r = {.kept = dev->scratch[thread].ranked, .top = op->top};
    rank_keys(dev, op, s.seq, s.row, 0, s.keys, &r);
    store_ranking(op, s.seq->row + s.row, &r);
}

/* Few rows: the team shares the keys of one. Each thread ranks those it gets, in ascending order;
 * candidates have one order, so who ranked which changes nothing. */
enum { SLICE = 16 * WEFT__PAGE }; /* keys of a unit */

static void slice_unit(struct weft__dev *dev, const void *arg, int64_t unit, int thread)
{
    const struct select_row *s = arg;
    rank_keys(dev, s->op, s->seq, s->row, unit * SLICE, weft__min((unit + 1) * SLICE, s->keys),
              &dev->scratch[thread].ranking);
}

/* Both hold at most `top` candidates in ascending positions, and so does the result. */
static void merge(struct weft__ranking *into, const struct weft__ranking *from)
{
    int64_t a = into->count, b = from->count;
    into->count = a + b;
    for (int64_t to = a + b; b > 0;) {
        bool take = a > 0 && position(into->kept[a - 1]) > position(from->kept[b - 1]);
        into->kept[--to] = take ? into->kept[--a] : from->kept[--b];
    }
    keep_top(into);
}

static void select_by_slices(struct weft__dev *dev, const struct select_row *row)
{
    for (int t = 0; t < dev->threads; t++)
        dev->scratch[t].ranking =
            (struct weft__ranking){.kept = dev->scratch[t].ranked, .top = row->op->top};
    weft__team_run(dev, weft__ceil_div(row->keys, SLICE), slice_unit, row);
    struct weft__ranking *all = &dev->scratch[0].ranking;
    for (int t = 0; t < dev->threads; t++) keep_top(&dev->scratch[t].ranking);
    for (int t = 1; t < dev->threads; t++) merge(all, &dev->scratch[t].ranking);
    store_ranking(row->op, row->seq->row + row->row, all);
}

void weft__cpu_index_select(struct weft__dev *dev, const struct weft__op_index_select *op)
{
    assert(op->top >= 1 && op->top <= WEFT__INDEX_TOP_MAX);
    int64_t rows = 0;
    for (int64_t s = 0; s < op->seqs; s++) rows += op->seq[s].count;
    if (dev->threads == 1 || rows >= 2 * (int64_t)dev->threads) {
        weft__team_run(dev, rows, select_unit, op);
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        struct select_row row;
        if (!select_all(op, &row, i)) select_by_slices(dev, &row);
    }
}
