/* Mixture of experts: which experts a token takes, and the order in which experts are computed. */
#include <assert.h>
#include <math.h>

#include "cpu.h"

/* Larger value wins, then the lower index; taken ones are -infinity and never chosen: a NaN or
 * -infinity that is not taken is still preferred to them. */
static int64_t best(const float *value, const bool *taken, int64_t n)
{
    int64_t found = -1;
    for (int64_t i = 0; i < n; i++)
        if (!taken[i] && (found < 0 || value[i] > value[found])) found = i;
    return found;
}

/* Sum of the two largest. */
static float group_score(const float *choice, int64_t n)
{
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (choice[i] > first) {
            second = first;
            first = choice[i];
        } else if (choice[i] > second) {
            second = choice[i];
        }
    }
    return n == 1 ? first : first + second;
}

/* Takes out the experts of all groups but the best top_groups. */
static void keep_groups(const struct weft__op_route *op, const float *choice, bool *taken)
{
    float score[WEFT__EXPERTS_MAX];
    bool chosen[WEFT__EXPERTS_MAX] = {false};
    int64_t size = op->experts / op->groups;
    for (int64_t g = 0; g < op->groups; g++) score[g] = group_score(choice + g * size, size);
    for (int64_t i = 0; i < op->top_groups; i++) chosen[best(score, chosen, op->groups)] = true;
    for (int64_t e = 0; e < op->experts; e++) taken[e] = !chosen[e / size];
}

/* score = sigmoid(logits) or softmax(logits) */
static void scores(const struct weft__dev *dev, const struct weft__op_route *op,
                   const float *logits, float *score)
{
    if (op->sigmoid) {
        dev->kernels->exp(logits, -1, 0, score, op->experts);
        for (int64_t e = 0; e < op->experts; e++) score[e] = 1.0f / (1.0f + score[e]);
        return;
    }
    float max = -INFINITY, sum = 0;
    for (int64_t e = 0; e < op->experts; e++) max = logits[e] > max ? logits[e] : max;
    dev->kernels->exp(logits, 1, -max, score, op->experts);
    for (int64_t e = 0; e < op->experts; e++) sum += score[e];
    for (int64_t e = 0; e < op->experts; e++) score[e] /= sum;
}

static void route_unit(struct weft__dev *dev, const void *arg, int64_t token, int thread)
{
    (void)thread;
    const struct weft__op_route *op = arg;
    float score[WEFT__EXPERTS_MAX], choice[WEFT__EXPERTS_MAX];
    bool taken[WEFT__EXPERTS_MAX] = {false};
    int32_t *expert = op->expert + token * op->top;
    float *weight = op->weight + token * op->top, sum = 0;

    scores(dev, op, op->logits + token * op->experts, score);
    for (int64_t e = 0; e < op->experts; e++)
        choice[e] = op->bias != NULL ? score[e] + op->bias[e] : score[e];
    if (op->groups > 1) keep_groups(op, choice, taken);
    for (int64_t i = 0; i < op->top; i++) {
        int64_t e = best(choice, taken, op->experts);
        taken[e] = true;
        expert[i] = (int32_t)e;
        weight[i] = score[e];
        sum += score[e];
    }
    if (op->sigmoid) sum += 1e-20f;
    for (int64_t i = 0; i < op->top; i++) {
        if (op->normalise) weight[i] /= sum;
        weight[i] *= op->scale;
    }
}

void weft__cpu_route(struct weft__dev *dev, const struct weft__op_route *op)
{
    assert(op->experts >= 1 && op->experts <= WEFT__EXPERTS_MAX && op->top >= 1);
    assert(op->groups <= 1 ? op->top <= op->experts
                           : op->experts % op->groups == 0 && op->top_groups >= 1 &&
                                 op->top_groups <= op->groups &&
                                 op->top <= op->experts / op->groups * op->top_groups);
    weft__team_run(dev, op->tokens, route_unit, op);
}

/* A counting sort; too little work to share. */
void weft__cpu_moe_plan(struct weft__dev *dev, const struct weft__op_moe_plan *op)
{
    (void)dev;
    assert(op->experts >= 1 && op->experts <= WEFT__EXPERTS_MAX);
    int32_t next[WEFT__EXPERTS_MAX] = {0};
    int64_t pairs = op->tokens * op->top;
    for (int64_t i = 0; i < pairs; i++) {
        assert(op->expert[i] >= 0 && op->expert[i] < op->experts);
        next[op->expert[i]]++;
    }
    int32_t sum = 0;
    for (int64_t e = 0; e < op->experts; e++) {
        op->offset[e] = sum;
        sum += next[e];
        next[e] = op->offset[e];
    }
    op->offset[op->experts] = sum;
    for (int64_t i = 0; i < pairs; i++) {
        int32_t at = next[op->expert[i]]++;
        op->x_row[at] = (int32_t)(i / op->top);
        op->slot[i] = at;
    }
}
