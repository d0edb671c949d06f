/* Attention and the indexer against double precision; and that neither the batch, nor the way a
 * prompt is cut, nor the team changes a bit. */
#include "dev_case.h"

/* A paged cache of several sequences, pages shuffled, what no sequence wrote poisoned with NaN. */
enum { SEQS = 3, PAGES_MAX = 64 };

struct scene {
    int64_t heads, kv_heads, key_dim, value_dim;
    int32_t kv_head[16];
    int64_t k_row, v_row;
    float *k, *v, *q;
    int32_t page[SEQS][PAGES_MAX];
    struct weft__seq seq[SEQS];
    int64_t tokens;
};

/* lengths: keys of each sequence; counts: its last rows, which are the queries. */
static struct scene scene(int64_t heads, int64_t kv_heads, int64_t key_dim, int64_t value_dim,
                          const int32_t lengths[SEQS], const int32_t counts[SEQS])
{
    struct scene s = {heads,
                      kv_heads,
                      key_dim,
                      value_dim,
                      .k_row = kv_heads * key_dim + 3,
                      .v_row = kv_heads * value_dim + 1};
    for (int64_t h = 0; h < heads; h++) s.kv_head[h] = (int32_t)(h * kv_heads / heads);
    int32_t order[SEQS * PAGES_MAX], pages = 0, used = 0;
    for (int i = 0; i < SEQS; i++) pages += (lengths[i] + WEFT__PAGE - 1) / WEFT__PAGE;
    pages += 2; /* some belong to nobody */
    for (int32_t i = 0; i < pages; i++) order[i] = i;
    for (int32_t i = pages - 1; i > 0; i--) {
        int32_t j = rand() % (i + 1), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    int64_t slots = (int64_t)pages * WEFT__PAGE;
    s.k = malloc((size_t)(slots * s.k_row) * sizeof *s.k);
    s.v = malloc((size_t)(slots * s.v_row) * sizeof *s.v);
    for (int64_t i = 0; i < slots * s.k_row; i++) s.k[i] = NAN;
    for (int64_t i = 0; i < slots * s.v_row; i++) s.v[i] = NAN;
    for (int i = 0; i < SEQS; i++) {
        for (int32_t key = 0; key < lengths[i]; key++) {
            if (key % WEFT__PAGE == 0) s.page[i][key / WEFT__PAGE] = order[used++];
            int64_t slot = (int64_t)s.page[i][key / WEFT__PAGE] * WEFT__PAGE + key % WEFT__PAGE;
            for (int64_t d = 0; d < kv_heads * key_dim; d++)
                s.k[slot * s.k_row + d] = 3 * case_random();
            for (int64_t d = 0; d < kv_heads * value_dim; d++)
                s.v[slot * s.v_row + d] = case_random();
        }
        s.seq[i] =
            (struct weft__seq){.row = (int32_t)s.tokens, .count = counts[i], .kv_len = lengths[i]};
        s.tokens += counts[i];
    }
    s.q = case_floats(s.tokens * heads * key_dim);
    return s;
}

static void scene_free(struct scene *s)
{
    free(s->k);
    free(s->v);
    free(s->q);
}

static struct weft__op_attention scene_op(struct scene *s)
{
    for (int i = 0; i < SEQS; i++) s->seq[i].pages = s->page[i];
    return (struct weft__op_attention){.seq = s->seq,
                                       .seqs = SEQS,
                                       .heads = s->heads,
                                       .key_dim = s->key_dim,
                                       .value_dim = s->value_dim,
                                       .kv_head = s->kv_head,
                                       .q = s->q,
                                       .q_stride = s->heads * s->key_dim,
                                       .k = s->k,
                                       .k_stride = s->k_row,
                                       .k_head_stride = s->key_dim,
                                       .v = s->v,
                                       .v_stride = s->v_row,
                                       .v_head_stride = s->value_dim,
                                       .scale = 1.0f / sqrtf((float)s->key_dim),
                                       .y_stride = s->heads * s->value_dim + 5};
}

static void run_attention(struct weft__dev *dev, const void *arg, void *y)
{
    struct weft__op_attention op = *(const struct weft__op_attention *)arg;
    op.y = y;
    weft__cpu.model->attention(dev, &op);
}

static bool sees(const struct weft__op_attention *op, int64_t token, int64_t position, int64_t key)
{
    if (key > position || (op->window > 0 && key <= position - op->window)) return false;
    if (op->selected == NULL || op->selected_count[token] < 0) return true;
    for (int32_t i = 0; i < op->selected_count[token]; i++)
        if (op->selected[token * op->selected_stride + i] == key) return true;
    return false;
}

static void check_row(const struct weft__op_attention *op, const struct weft__seq *seq, int64_t row,
                      int64_t head, const struct case_out *y)
{
    int64_t token = seq->row + row, position = seq->kv_len - seq->count + row;
    double score[PAGES_MAX * WEFT__PAGE], most = -INFINITY, sum = 0;
    int64_t slot[PAGES_MAX * WEFT__PAGE];
    for (int64_t key = 0; key <= position; key++) {
        slot[key] = (int64_t)seq->pages[key / WEFT__PAGE] * WEFT__PAGE + key % WEFT__PAGE;
        score[key] = 0;
        if (!sees(op, token, position, key)) continue;
        const float *q = op->q + token * op->q_stride + head * op->key_dim;
        const float *k = op->k + slot[key] * op->k_stride + op->kv_head[head] * op->k_head_stride;
        for (int64_t d = 0; d < op->key_dim; d++) score[key] += (double)q[d] * (double)k[d];
        score[key] *= (double)op->scale;
        most = fmax(most, score[key]);
    }
    for (int64_t key = 0; key <= position; key++) {
        score[key] = sees(op, token, position, key) ? exp(score[key] - most) : 0;
        sum += score[key];
    }
    for (int64_t d = 0; d < op->value_dim; d++) {
        double want = 0;
        for (int64_t key = 0; key <= position; key++)
            if (score[key] > 0)
                want +=
                    score[key] / sum *
                    (double)
                        op->v[slot[key] * op->v_stride + op->kv_head[head] * op->v_head_stride + d];
        case_near((double)case_at(y, token, head, d), want, 3, 60);
    }
}

static void check_attention(struct scene *s, const struct weft__op_attention *op)
{
    struct case_out y =
        case_run(run_attention, op,
                 case_shape(s->tokens, s->heads, s->value_dim, op->y_stride, s->value_dim), NULL);
    for (int i = 0; i < SEQS; i++)
        for (int64_t row = 0; row < s->seq[i].count; row++)
            for (int64_t head = 0; head < s->heads; head++)
                check_row(op, &s->seq[i], row, head, &y);
    case_free(&y);
}

/* heads, KV heads, key and value width: GQA, one head each, odd groups, MLA's absorbed form */
static const int64_t shapes[][4] = {{9, 3, 64, 64}, {4, 4, 32, 32}, {5, 2, 17, 9},  {1, 1, 1, 1},
                                    {8, 1, 80, 64}, {7, 7, 12, 40}, {16, 2, 24, 33}};

static void attention_matches_softmax(void **state)
{
    (void)state;
    const int32_t lengths[SEQS] = {37, 1, 64}, counts[SEQS] = {20, 1, 1};
    for (size_t i = 0; i < WEFT__COUNT(shapes); i++)
        for (int64_t window = 0; window < 60; window = window * 3 + 1) {
            struct scene s =
                scene(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], lengths, counts);
            struct weft__op_attention op = scene_op(&s);
            op.window = window;
            check_attention(&s, &op);
            scene_free(&s);
        }
}

static void attention_of_a_long_prompt(void **state)
{
    (void)state;
    const int32_t lengths[SEQS] = {100, 33, 70}, counts[SEQS] = {100, 17, 33};
    struct scene s = scene(3, 1, 16, 24, lengths, counts);
    struct weft__op_attention op = scene_op(&s);
    check_attention(&s, &op);
    op.seqs = 0;
    struct case_out none =
        case_run(run_attention, &op, case_shape(0, 3, 24, op.y_stride, 24), NULL);
    case_free(&none);
    scene_free(&s);
}

/* MLA's absorbed form: values are the first elements of the keys; many heads share one. */
static void attention_with_values_in_keys(void **state)
{
    (void)state;
    const int32_t lengths[SEQS] = {40, 21, 64}, counts[SEQS] = {5, 1, 20};
    for (int64_t heads = 1; heads <= 16; heads += 5) {
        struct scene s = scene(heads, 1, 44, 36, lengths, counts);
        struct weft__op_attention op = scene_op(&s);
        op.v = op.k;
        op.v_stride = op.k_stride;
        op.v_head_stride = op.k_head_stride;
        check_attention(&s, &op);
        scene_free(&s);
    }
}

/* A rank without heads does nothing. */
static void attention_without_heads(void **state)
{
    (void)state;
    const int32_t lengths[SEQS] = {5, 5, 5}, counts[SEQS] = {1, 1, 1};
    struct scene s = scene(1, 1, 4, 4, lengths, counts);
    struct weft__op_attention op = scene_op(&s);
    op.heads = 0;
    for (int d = 0; d < case_devices; d++) weft__cpu.model->attention(case_dev[d], &op);
    scene_free(&s);
}

static void attention_over_selected_keys(void **state)
{
    (void)state;
    const int32_t lengths[SEQS] = {90, 20, 64}, counts[SEQS] = {50, 1, 2};
    enum { TOP = 23 };
    for (size_t i = 0; i < WEFT__COUNT(shapes); i++) {
        struct scene s =
            scene(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], lengths, counts);
        int32_t *selected = malloc((size_t)s.tokens * TOP * sizeof *selected);
        int32_t *count = malloc((size_t)s.tokens * sizeof *count);
        for (int q = 0; q < SEQS; q++)
            for (int32_t row = 0; row < s.seq[q].count; row++) {
                int32_t token = s.seq[q].row + row, keys = lengths[q] - counts[q] + row + 1;
                int32_t n = 0;
                for (int32_t key = 0; key < keys && n < TOP; key++)
                    if (rand() % 3 == 0 || keys - key <= 1) selected[token * TOP + n++] = key;
                count[token] = rand() % 4 == 0 ? -1 : n;
            }
        struct weft__op_attention op = scene_op(&s);
        op.selected = selected;
        op.selected_count = count;
        op.selected_stride = TOP;
        check_attention(&s, &op);
        free(selected);
        free(count);
        scene_free(&s);
    }
}

/* The whole prompt in one piece, in chunks, token by token, alone or beside others. */
static void attention_does_not_see_the_batch(void **state)
{
    (void)state;
    const int32_t lengths[SEQS] = {70, 41, 64};
    for (size_t i = 0; i < WEFT__COUNT(shapes); i++) {
        struct scene s =
            scene(shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], lengths, lengths);
        struct weft__op_attention op = scene_op(&s);
        op.window = i % 2 == 0 ? 0 : 30;
        op.y_stride = s.heads * s.value_dim;
        size_t size = (size_t)(s.tokens * op.y_stride) * sizeof(float);
        float *whole = malloc(size), *parts = malloc(size);
        op.y = whole;
        weft__cpu.model->attention(case_dev[1], &op);
        for (int32_t chunk = 1; chunk < 60; chunk += chunk < 3 ? 1 : 14) {
            memset(parts, 0xff, size);
            for (int q = 0; q < SEQS; q++)
                for (int32_t row = 0; row < lengths[q]; row += chunk) {
                    int32_t n = chunk < lengths[q] - row ? chunk : lengths[q] - row;
                    struct weft__seq part = {.row = s.seq[q].row + row,
                                             .count = n,
                                             .kv_len = row + n,
                                             .pages = s.page[q]};
                    struct weft__op_attention one = op;
                    one.seq = &part;
                    one.seqs = 1;
                    one.y = parts;
                    weft__cpu.model->attention(case_dev[row % case_devices], &one);
                }
            assert_memory_equal(whole, parts, size);
        }
        free(whole);
        free(parts);
        scene_free(&s);
    }
}

/* Scores of any size: the softmax neither overflows nor loses the rest. */
static void attention_with_large_scores(void **state)
{
    (void)state;
    const int32_t lengths[SEQS] = {40, 2, 17}, counts[SEQS] = {3, 1, 2};
    struct scene s = scene(4, 2, 8, 8, lengths, counts);
    struct weft__op_attention op = scene_op(&s);
    op.scale = 300;
    check_attention(&s, &op);
    scene_free(&s);
}

/* ---- the indexer ---- */

struct index_case {
    struct weft__op_index_select op;
    int64_t tokens;
};

/* Counts first, then the lists, as one output. */
static void run_select(struct weft__dev *dev, const void *arg, void *y)
{
    const struct index_case *c = arg;
    struct weft__op_index_select op = c->op;
    op.count = y;
    op.selected = op.count + c->tokens;
    weft__cpu.model->index_select(dev, &op);
}

struct scored {
    double score;
    int32_t key;
};

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score) return x->score < y->score ? 1 : -1;
    return x->key < y->key ? -1 : 1;
}

static int by_key(const void *a, const void *b)
{
    return ((const struct scored *)a)->key < ((const struct scored *)b)->key ? -1 : 1;
}

static double index_score(const struct weft__op_index_select *op, const struct weft__seq *seq,
                          int64_t token, int64_t key)
{
    int64_t slot = (int64_t)seq->pages[key / WEFT__PAGE] * WEFT__PAGE + key % WEFT__PAGE;
    double score = 0;
    for (int64_t h = 0; h < op->heads; h++) {
        double dot = 0;
        for (int64_t d = 0; d < op->dim; d++)
            dot += (double)op->q[token * op->q_stride + h * op->dim + d] *
                   (double)op->k[slot * op->k_stride + d];
        score += (double)op->weight[token * op->weight_stride + h] / sqrt((double)op->heads) *
                 fmax(dot / sqrt((double)op->dim), 0);
    }
    return score;
}

/* exact: the data are small integers, so that scores are exact and ties real. */
static void check_select(int64_t heads, int64_t dim, int64_t top, bool exact, bool many_rows)
{
    const int32_t lengths[SEQS] = {many_rows ? 300 : 1000, 20, 150};
    const int32_t counts[SEQS] = {many_rows ? 40 : 1, many_rows ? 20 : 1, 1};
    struct scene s = scene(heads, 1, dim, 1, lengths, counts);
    float *weight = case_floats(s.tokens * (heads + 1));
    if (exact) {
        for (int64_t i = 0; i < s.tokens * heads * dim; i++) s.q[i] = (float)(rand() % 3 - 1);
        for (int64_t i = 0; i < s.tokens * (heads + 1); i++) weight[i] = (float)(rand() % 5 - 2);
        for (int q = 0; q < SEQS; q++)
            for (int32_t key = 0; key < lengths[q]; key++)
                for (int64_t d = 0; d < dim; d++)
                    s.k[((int64_t)s.page[q][key / 16] * 16 + key % 16) * s.k_row + d] =
                        (float)(rand() % 3 - 1);
    }
    (void)scene_op(&s);
    struct index_case c = {.op = {.seq = s.seq,
                                  .seqs = SEQS,
                                  .heads = heads,
                                  .dim = dim,
                                  .top = top,
                                  .q = s.q,
                                  .q_stride = heads * dim,
                                  .weight = weight,
                                  .weight_stride = heads + 1,
                                  .k = s.k,
                                  .k_stride = s.k_row},
                           .tokens = s.tokens};
    int32_t none = (int32_t)case_poison;
    int64_t size = s.tokens * (1 + top);
    int32_t *fill = malloc((size_t)size * sizeof *fill);
    for (int64_t i = 0; i < size; i++) fill[i] = none;
    struct case_out y = case_run(run_select, &c, case_shape(1, 1, size, size, 0), fill);
    const int32_t *count = (const int32_t *)(void *)y.words, *list = count + s.tokens;
    for (int q = 0; q < SEQS; q++)
        for (int32_t row = 0; row < counts[q]; row++) {
            int32_t token = s.seq[q].row + row, keys = lengths[q] - counts[q] + row + 1;
            if (keys <= top) {
                assert_int_equal(count[token], -1);
                continue;
            }
            struct scored scored[PAGES_MAX * WEFT__PAGE];
            for (int32_t key = 0; key < keys; key++)
                scored[key] = (struct scored){index_score(&c.op, &s.seq[q], token, key), key};
            qsort(scored, (size_t)keys, sizeof *scored, by_score);
            qsort(scored, (size_t)top, sizeof *scored, by_key);
            assert_int_equal(count[token], top);
            for (int64_t i = 0; i < top; i++)
                assert_int_equal(list[token * top + i], scored[i].key);
        }
    case_free(&y);
    free(fill);
    free(weight);
    scene_free(&s);
}

static void select_takes_the_best(void **state)
{
    (void)state;
    const int64_t tops[] = {1, 7, 16, 100, 149, 150, 299, 512};
    for (size_t i = 0; i < WEFT__COUNT(tops); i++) {
        check_select(16, 32, tops[i], false, true);
        check_select(5, 11, tops[i], false, true);
        check_select(16, 32, tops[i], false, false);
    }
}

/* heads and dim are powers of 4: their square roots are exact, and so are the scores. */
static void select_breaks_ties_by_position(void **state)
{
    (void)state;
    const int64_t tops[] = {1, 7, 16, 100, 149};
    for (size_t i = 0; i < WEFT__COUNT(tops); i++) {
        check_select(4, 4, tops[i], true, true);
        check_select(1, 16, tops[i], true, true);
        check_select(16, 4, tops[i], true, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_matches_softmax),
        cmocka_unit_test(attention_of_a_long_prompt),
        cmocka_unit_test(attention_with_values_in_keys),
        cmocka_unit_test(attention_without_heads),
        cmocka_unit_test(attention_over_selected_keys),
        cmocka_unit_test(attention_does_not_see_the_batch),
        cmocka_unit_test(attention_with_large_scores),
        cmocka_unit_test(select_takes_the_best),
        cmocka_unit_test(select_breaks_ties_by_position),
    };
    return cmocka_run_group_tests(tests, case_setup, case_teardown);
}
