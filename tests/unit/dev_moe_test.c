/* The router against a plain reading of the definitions in double precision, and the plan. */
#include "dev_case.h"

enum { EXPERTS_MOST = 256 };

/* expert ids, then weights */
static void run_route(struct weft__dev *dev, const void *arg, void *y)
{
    struct weft__op_route op = *(const struct weft__op_route *)arg;
    op.expert = y;
    op.weight = (float *)y + op.tokens * op.top;
    weft__cpu.model->route(dev, &op);
}

/* Index of the largest of n that is not barred, the first of equals. */
static int64_t largest(const double *value, const bool *barred, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (!barred[i] && (best < 0 || value[i] > value[best])) best = i;
    return best;
}

static void bar_groups(const struct weft__op_route *op, const double *choice, bool *barred)
{
    int64_t size = op->experts / op->groups;
    double score[EXPERTS_MOST];
    bool kept[EXPERTS_MOST] = {false};
    for (int64_t g = 0; g < op->groups; g++) {
        bool used[EXPERTS_MOST] = {false};
        int64_t a = largest(choice + g * size, used, size);
        used[a] = true;
        score[g] = choice[g * size + a];
        if (size > 1) score[g] += choice[g * size + largest(choice + g * size, used, size)];
    }
    for (int64_t i = 0; i < op->top_groups; i++) kept[largest(score, kept, op->groups)] = true;
    for (int64_t e = 0; e < op->experts; e++) barred[e] = !kept[e / size];
}

static void check_token(const struct weft__op_route *op, int64_t token, const int32_t *expert,
                        const float *weight)
{
    const float *logits = op->logits + token * op->experts;
    double score[EXPERTS_MOST], choice[EXPERTS_MOST], sum = 0, chosen = 0;
    bool barred[EXPERTS_MOST] = {false};
    for (int64_t e = 0; e < op->experts; e++) sum += exp((double)logits[e]);
    for (int64_t e = 0; e < op->experts; e++) {
        score[e] = op->sigmoid ? 1 / (1 + exp(-(double)logits[e])) : exp((double)logits[e]) / sum;
        choice[e] = score[e] + (op->bias != NULL ? (double)op->bias[e] : 0);
    }
    if (op->groups > 1) bar_groups(op, choice, barred);
    for (int64_t i = 0; i < op->top; i++) {
        int64_t e = largest(choice, barred, op->experts);
        assert_int_equal(expert[i], e);
        barred[e] = true;
        chosen += score[e];
    }
    for (int64_t i = 0; i < op->top; i++) {
        double want = score[expert[i]] * (double)op->scale;
        if (op->normalise) want /= chosen + (op->sigmoid ? 1e-20 : 0);
        case_near((double)weight[i], want, fabs(want), op->sigmoid ? 16 : 16 + (double)op->experts);
    }
}

static void check_route(struct weft__op_route op)
{
    float *logits = case_floats(op.tokens * op.experts), *bias = case_floats(op.experts);
    for (int64_t i = 0; i < op.tokens * op.experts; i++) logits[i] *= 6;
    for (int64_t e = 0; e < op.experts; e++) bias[e] *= 0.2f;
    op.logits = logits;
    if (op.sigmoid) op.bias = bias;
    op.scale = 2.5f;
    int64_t pairs = op.tokens * op.top;
    struct case_out y = case_run(run_route, &op, case_shape(2, 1, pairs, pairs, 0), NULL);
    const int32_t *expert = (const int32_t *)(void *)y.words;
    const float *weight = (const float *)(void *)(y.words + pairs);
    for (int64_t t = 0; t < op.tokens; t++)
        check_token(&op, t, expert + t * op.top, weight + t * op.top);
    case_free(&y);
    free(bias);
    free(logits);
}

static void route_matches_definition(void **state)
{
    (void)state;
    for (int sigmoid = 0; sigmoid < 2; sigmoid++)
        for (int normalise = 0; normalise < 2; normalise++)
            for (int64_t tokens = 0; tokens < 50; tokens = tokens * 6 + 1) {
                struct weft__op_route op = {
                    .tokens = tokens, .sigmoid = sigmoid, .normalise = normalise};
                const int64_t shapes[][4] = {{16, 4, 1, 1}, {256, 8, 1, 1}, {32, 5, 4, 2},
                                             {12, 6, 6, 3}, {8, 8, 1, 1},   {1, 1, 1, 1},
                                             {9, 3, 9, 4}};
                for (size_t i = 0; i < WEFT__COUNT(shapes); i++) {
                    op.experts = shapes[i][0];
                    op.top = shapes[i][1];
                    op.groups = shapes[i][2];
                    op.top_groups = shapes[i][3];
                    check_route(op);
                }
            }
}

/* Equal scores: the lower expert first, among experts and among groups. */
static void route_ties_go_to_the_lower(void **state)
{
    (void)state;
    const float logits[8] = {1, 2, 2, 1, 2, 1, 1, 2};
    const int32_t want[2][4] = {{1, 2, 4, 7}, {1, 2, 0, 3}};
    for (int grouped = 0; grouped < 2; grouped++) {
        struct weft__op_route op = {.logits = logits,
                                    .tokens = 1,
                                    .experts = 8,
                                    .top = 4,
                                    .groups = grouped ? 2 : 1,
                                    .top_groups = 1,
                                    .sigmoid = true,
                                    .scale = 1};
        struct case_out y = case_run(run_route, &op, case_shape(2, 1, 4, 4, 0), NULL);
        for (int i = 0; i < 4; i++) assert_int_equal(y.words[i], want[grouped][i]);
        case_free(&y);
    }
}

/* Whatever the numbers, ids are valid and different: the next operations index with them. */
static void route_survives_nan(void **state)
{
    (void)state;
    float logits[3][8];
    for (int t = 0; t < 3; t++)
        for (int e = 0; e < 8; e++)
            logits[t][e] = t == 0 ? NAN : t == 1 && e != 3 ? -INFINITY : e % 2 ? INFINITY : NAN;
    for (int variant = 0; variant < 4; variant++) {
        struct weft__op_route op = {.logits = logits[0],
                                    .tokens = 3,
                                    .experts = 8,
                                    .top = 4,
                                    .groups = variant / 2 ? 4 : 1,
                                    .top_groups = 2,
                                    .sigmoid = variant % 2,
                                    .scale = 1};
        for (int d = 0; d < case_devices; d++) {
            int32_t out[24];
            run_route(case_dev[d], &op, out);
            for (int t = 0; t < 3; t++) {
                int seen = 0;
                for (int i = 0; i < 4; i++) {
                    assert_in_range(out[4 * t + i], 0, 7);
                    assert_false(seen >> out[4 * t + i] & 1);
                    seen |= 1 << out[4 * t + i];
                }
            }
        }
    }
}

static void plan_sorts_stably(void **state)
{
    (void)state;
    enum { TOKENS = 37, TOP = 3, EXPERTS = 9, PAIRS = TOKENS * TOP };
    int32_t expert[PAIRS], offset[EXPERTS + 1], x_row[PAIRS], slot[PAIRS];
    for (int tokens = 0; tokens <= TOKENS; tokens += TOKENS) {
        for (int i = 0; i < PAIRS; i++) expert[i] = rand() % (EXPERTS - 1); /* one stays idle */
        weft__cpu.model->moe_plan(case_dev[0], &(struct weft__op_moe_plan){.expert = expert,
                                                                           .tokens = tokens,
                                                                           .top = TOP,
                                                                           .experts = EXPERTS,
                                                                           .offset = offset,
                                                                           .x_row = x_row,
                                                                           .slot = slot});
        int at = 0;
        for (int e = 0; e < EXPERTS; e++) {
            assert_int_equal(offset[e], at);
            for (int i = 0; i < tokens * TOP; i++) {
                if (expert[i] != e) continue;
                assert_int_equal(x_row[at], i / TOP);
                assert_int_equal(slot[i], at);
                at++;
            }
        }
        assert_int_equal(offset[EXPERTS], tokens * TOP);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(route_matches_definition),
        cmocka_unit_test(route_ties_go_to_the_lower),
        cmocka_unit_test(route_survives_nan),
        cmocka_unit_test(plan_sorts_stably),
    };
    return cmocka_run_group_tests(tests, case_setup, case_teardown);
}
