/* Settings, generator, and the way from logits to a token. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/numerics.h"
#include "sample.h"

/* Digits of the radix selection: 31 bits of key, largest first. */
enum { DIGIT_BITS = 11, DIGITS = 3, BUCKETS = 1 << DIGIT_BITS, LANES = 8 };

struct weft__sampler {
    int64_t vocab, usable;
    float *value;   /* [vocab] logits; later distance from the largest over temperature, <= 0 */
    float *weight;  /* [vocab] e^value */
    int32_t *id;    /* [vocab] of each candidate, ascending */
    uint32_t *seen; /* [vocab] zero between calls */
    double mass[BUCKETS];
    int64_t count[BUCKETS];
};

const struct weft__sampling weft__sampling_default = {
    .temperature = 1, .top_p = 1, .repetition_penalty = 1};

weft_status weft__sampling_check(const struct weft__sampling *sampling, int64_t vocab,
                                 weft_error *err)
{
    const struct {
        const char *name;
        float value;
        double low, high;
    } ranges[] = {
        {"temperature", sampling->temperature, WEFT__TEMPERATURE_RANGE},
        {"top_p", sampling->top_p, WEFT__TOP_P_RANGE},
        {"min_p", sampling->min_p, WEFT__MIN_P_RANGE},
        {"repetition_penalty", sampling->repetition_penalty, WEFT__REPETITION_PENALTY_RANGE},
        {"frequency_penalty", sampling->frequency_penalty, WEFT__OUTPUT_PENALTY_RANGE},
        {"presence_penalty", sampling->presence_penalty, WEFT__OUTPUT_PENALTY_RANGE},
    };
    for (size_t i = 0; i < WEFT__COUNT(ranges); i++)
        if (!(ranges[i].value >= (float)ranges[i].low && ranges[i].value <= (float)ranges[i].high))
            return weft__fail(err, WEFT_INVALID, "%s is %g, must be from %g to %g", ranges[i].name,
                              (double)ranges[i].value, ranges[i].low, ranges[i].high);
    if (sampling->bias_count < 0 || sampling->bias_count > WEFT__LOGIT_BIAS_MAX)
        return weft__fail(err, WEFT_INVALID, "logit_bias has %d entries, at most %d are allowed",
                          sampling->bias_count, WEFT__LOGIT_BIAS_MAX);
    for (int32_t i = 0; i < sampling->bias_count; i++) {
        const struct weft__logit_bias *entry = &sampling->bias[i];
        if (entry->token < 0 || entry->token >= vocab)
            return weft__fail(err, WEFT_INVALID,
                              "logit_bias names token %d, the vocabulary has ids 0 to %lld",
                              entry->token, (long long)vocab - 1);
        if (!(entry->bias >= -100 && entry->bias <= 100))
            return weft__fail(err, WEFT_INVALID,
                              "logit_bias of token %d is %g, must be from -100 to 100",
                              entry->token, (double)entry->bias);
    }
    return WEFT_OK;
}

weft_status weft__sampler_open(int64_t vocab, int64_t usable, struct weft__sampler **out,
                               weft_error *err)
{
    if (usable < 1 || usable > vocab)
        return weft__fail(err, WEFT_INVALID, "%lld usable ids in a vocabulary of %lld",
                          (long long)usable, (long long)vocab);
    struct weft__sampler *sampler = calloc(1, sizeof *sampler);
    if (sampler == NULL) return weft__fail_oom(err, sizeof *sampler, "a sampler");
    size_t n = (size_t)vocab;
    *sampler = (struct weft__sampler){.vocab = vocab,
                                      .usable = usable,
                                      .value = malloc(n * sizeof(float)),
                                      .weight = malloc(n * sizeof(float)),
                                      .id = malloc(n * sizeof(int32_t)),
                                      .seen = calloc(n, sizeof(uint32_t))};
    if (sampler->value == NULL || sampler->weight == NULL || sampler->id == NULL ||
        sampler->seen == NULL) {
        weft__sampler_close(sampler);
        return weft__fail_oom(err, n * 16, "a sampler");
    }
    *out = sampler;
    return WEFT_OK;
}

void weft__sampler_close(struct weft__sampler *sampler)
{
    if (sampler == NULL) return;
    free(sampler->value);
    free(sampler->weight);
    free(sampler->id);
    free(sampler->seen);
    free(sampler);
}

/* ---- generator ---- */

void weft__philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

double weft__uniform(uint64_t seed, uint32_t sample, uint64_t position)
{
    const uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), sample, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t word[4];
    weft__philox(counter, key, word);
    return (double)(((uint64_t)word[0] << 32 | word[1]) >> 11) * 0x1p-53;
}

/* ---- passes over a row, written in lanes: the order of additions is ours, not the compiler's ----
 */

static weft_status check_finite(const float *logits, int64_t n, weft_error *err)
{
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        bad |= (weft__f32_bits(logits[i]) & 0x7f800000u) == 0x7f800000u;
    }
    if (bad == 0) return WEFT_OK;
    int64_t i = 0;
    while (isfinite(logits[i])) i++;
    return weft__fail(err, WEFT_FORMAT,
                      "the model gave %s as the logit of token %lld: damaged weights or overflow",
                      isnan(logits[i]) ? "NaN" : "infinity", (long long)i);
}

static float largest(const float *x, int64_t n)
{
    float lane[LANES];
    for (int l = 0; l < LANES; l++) lane[l] = -INFINITY;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (; i < n; i++) lane[0] = x[i] > lane[0] ? x[i] : lane[0];
    for (int l = 1; l < LANES; l++) lane[0] = lane[l] > lane[0] ? lane[l] : lane[0];
    return lane[0];
}

/* e^x for x <= 0, within 2 units in the last place; 0 below -87. Ours rather than libm's so that
 * every machine gives the same bits, and with selects on integers so that the compiler vectorises
 * it. */
static inline float exp_negative(float x)
{
    const uint32_t limit = 0x42ae0000u; /* 87 */
    uint32_t bits = weft__f32_bits(x) & 0x7fffffffu, nonzero = bits <= limit ? ~0u : 0u;
    float d = -weft__f32_from_bits(bits <= limit ? bits : limit);
    float n = d * 1.44269504f + 12582912.0f - 12582912.0f; /* round(d / ln 2) */
    float r = d - n * 0.693359375f - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f; /* Cephes expf */
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    float power = weft__f32_from_bits((uint32_t)((int32_t)n + 127) << 23);
    return weft__f32_from_bits(weft__f32_bits(p * power) & nonzero);
}

static double add_lanes(const double lane[LANES])
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static double sum(const float *x, int64_t n)
{
    double lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += (double)x[i + l];
    for (; i < n; i++) lane[0] += (double)x[i];
    return add_lanes(lane);
}

/* ---- penalties, bias, masks ---- */

static void penalise(struct weft__sampler *sampler, const struct weft__sample_row *row)
{
    const struct weft__sampling *s = row->sampling;
    bool repetition = s->repetition_penalty != 1;
    if (!repetition && s->frequency_penalty == 0 && s->presence_penalty == 0) return;

    int64_t prompt_count = repetition ? row->prompt_count : 0;
    for (int64_t i = 0; i < prompt_count; i++) sampler->seen[row->prompt[i]] |= 1;
    for (int64_t i = 0; i < row->output_count; i++) sampler->seen[row->output[i]] += 2;
    for (int64_t i = 0; i < prompt_count + row->output_count; i++) {
        int32_t id = i < prompt_count ? row->prompt[i] : row->output[i - prompt_count];
        uint32_t seen = sampler->seen[id], times = seen >> 1;
        if (seen == 0) continue; /* done at its first occurrence */
        sampler->seen[id] = 0;
        float x = sampler->value[id];
        x = x > 0 ? x / s->repetition_penalty : x * s->repetition_penalty;
        x -= s->frequency_penalty * (float)times + (times > 0 ? s->presence_penalty : 0);
        sampler->value[id] = fmaxf(-FLT_MAX, fminf(FLT_MAX, x));
    }
}

static void adjust(struct weft__sampler *sampler, const struct weft__sample_row *row)
{
    float *value = sampler->value;
    memcpy(value, row->logits, (size_t)sampler->vocab * sizeof(float));
    penalise(sampler, row);
    for (int32_t i = 0; i < row->sampling->bias_count; i++)
        value[row->sampling->bias[i].token] += row->sampling->bias[i].bias;
    for (int32_t i = 0; i < row->banned_count; i++) value[row->banned[i]] = -INFINITY;
    if (row->allowed == NULL) return;
    for (int64_t i = 0; i < sampler->usable; i++)
        if ((row->allowed[i / 32] >> (i % 32) & 1u) == 0) value[i] = -INFINITY;
}

/* ---- candidates: value, weight, id [n], ids ascending ---- */

static void keep(struct weft__sampler *sampler, int64_t from, int64_t to)
{
    sampler->value[to] = sampler->value[from];
    sampler->weight[to] = sampler->weight[from];
    sampler->id[to] = sampler->id[from];
}

/* Masked ids stay in, with weight 0: they are never drawn. */
static int64_t candidates(struct weft__sampler *sampler, float top, float temperature)
{
    int64_t n = sampler->usable;
    for (int64_t i = 0; i < n; i++) {
        sampler->value[i] = (sampler->value[i] - top) / temperature;
        sampler->weight[i] = exp_negative(sampler->value[i]);
        sampler->id[i] = (int32_t)i;
    }
    return n;
}

/* Keeps the candidates whose x (value or weight) is at least low. */
static int64_t keep_from(struct weft__sampler *sampler, const float *x, int64_t n, float low)
{
    enum { BLOCK = 4 * LANES };
    int64_t kept = 0;
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        int64_t end = weft__min(begin + BLOCK, n);
        if (largest(x + begin, end - begin) < low) continue;
        for (int64_t i = begin; i < end; i++)
            if (x[i] >= low) keep(sampler, i, kept++);
    }
    return kept;
}

/* Ascending keys are descending values. */
static uint32_t key_of(float value) { return weft__f32_bits(value) & 0x7fffffffu; }

/* Keeps the best candidates: `most` of them, or as few as weigh `mass`, whichever are fewer. A
 * radix selection, so any row takes three passes, the later ones over what the first left. */
static int64_t keep_best(struct weft__sampler *sampler, int64_t n, int64_t most, double mass)
{
    uint32_t prefix = 0;
    int64_t ahead = 0; /* candidates surely kept, and their weight */
    double ahead_mass = 0;
    for (int digit = DIGITS - 1; digit >= 0; digit--) {
        int shift = digit * DIGIT_BITS;
        memset(sampler->count, 0, sizeof sampler->count);
        memset(sampler->mass, 0, sizeof sampler->mass);
        for (int64_t i = 0; i < n; i++) {
            uint32_t head = key_of(sampler->value[i]) >> shift;
            if (head >> DIGIT_BITS != prefix) continue;
            sampler->count[head % BUCKETS]++;
            sampler->mass[head % BUCKETS] += (double)sampler->weight[i];
        }
        uint32_t b = 0;
        while (b < BUCKETS && ahead + sampler->count[b] < most &&
               ahead_mass + sampler->mass[b] < mass) {
            ahead += sampler->count[b];
            ahead_mass += sampler->mass[b++];
        }
        if (b == BUCKETS) return n; /* rounding left the mass just out of reach */
        prefix = prefix << DIGIT_BITS | b;
        int64_t kept = 0;
        for (int64_t i = 0; i < n; i++)
            if (key_of(sampler->value[i]) >> shift <= prefix) keep(sampler, i, kept++);
        n = kept;
    }
    /* Those at the last key are equal: the lower ids are kept. */
    int64_t kept = 0;
    for (int64_t i = 0; i < n; i++) {
        if (key_of(sampler->value[i]) == prefix) {
            if (ahead >= most || ahead_mass >= mass) continue;
            ahead++;
            ahead_mass += (double)sampler->weight[i];
        }
        keep(sampler, i, kept++);
    }
    return kept;
}

static int64_t keep_top_k(struct weft__sampler *sampler, int64_t n, int64_t k)
{
    if (k >= n) return n;
    /* Of k parts of the row each has a largest; at least k candidates reach the least of those. */
    if (k <= n / 64) {
        float low = 0;
        for (int64_t part = 0; part < k; part++) {
            int64_t begin = n * part / k, end = n * (part + 1) / k;
            low = fminf(low, largest(sampler->value + begin, end - begin));
        }
        n = keep_from(sampler, sampler->value, n, low);
    }
    return keep_best(sampler, n, k, INFINITY);
}

static int64_t keep_top_p(struct weft__sampler *sampler, int64_t n, double p)
{
    double total = sum(sampler->weight, n);
    /* All those below this weight together are less than what top-p drops. */
    float low = (float)(0.999 * (1 - p) * total / (double)n);
    n = keep_from(sampler, sampler->weight, n, low);
    return keep_best(sampler, n, n, fmax(p * total, DBL_MIN)); /* of mass 0 none would be kept */
}

static int32_t draw(const struct weft__sampler *sampler, int64_t n, double uniform)
{
    enum { BLOCK = 1024 };
    const float *weight = sampler->weight;
    double total = 0, below = 0;
    for (int64_t i = 0; i < n; i += BLOCK) total += sum(weight + i, weft__min(BLOCK, n - i));
    double target = uniform * total;
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        int64_t end = weft__min(begin + BLOCK, n);
        double block = sum(weight + begin, end - begin);
        if (below + block <= target) {
            below += block;
            continue;
        }
        for (int64_t i = begin; i < end; i++) {
            below += (double)weight[i];
            if (below > target) return sampler->id[i];
        }
    }
    /* Rounding put the target at the very end; the largest weighs 1, so there is a last one. */
    int64_t last = n - 1;
    while (weight[last] == 0) last--;
    return sampler->id[last];
}

weft_status weft__sample(struct weft__sampler *sampler, const struct weft__sample_row *row,
                         int32_t *token, weft_error *err)
{
    const struct weft__sampling *s = row->sampling;
    weft_status status = check_finite(row->logits, sampler->vocab, err);
    if (status != WEFT_OK) return status;
    adjust(sampler, row);
    float top = largest(sampler->value, sampler->usable);
    if (top == -INFINITY)
        return weft__fail(err, WEFT_INVALID,
                          "no token may be chosen: all %lld ids are masked or banned",
                          (long long)sampler->usable);
    if (s->temperature == 0) {
        int32_t id = 0;
        while (sampler->value[id] != top) id++;
        *token = id;
        return WEFT_OK;
    }
    int64_t n = candidates(sampler, top, s->temperature);
    if (s->top_k > 0) n = keep_top_k(sampler, n, s->top_k);
    if (s->top_p < 1) n = keep_top_p(sampler, n, (double)s->top_p);
    if (s->min_p > 0) n = keep_from(sampler, sampler->weight, n, s->min_p);
    uint64_t position = (uint64_t)(row->prompt_count + row->output_count);
    *token = draw(sampler, n, weft__uniform(s->seed, row->sample, position));
    return WEFT_OK;
}

/* ---- log-probabilities ---- */

static double log_sum_exp(const float *logits, int64_t n, float top)
{
    double lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += (double)exp_negative(logits[i + l] - top);
    for (; i < n; i++) lane[0] += (double)exp_negative(logits[i] - top);
    return log(add_lanes(lane));
}

weft_status weft__logprobs_of(struct weft__sampler *sampler, const float *logits, int32_t token,
                              int32_t top, struct weft__logprobs *out, weft_error *err)
{
    weft_status status = check_finite(logits, sampler->vocab, err);
    if (status != WEFT_OK) return status;
    /* Over the whole vocabulary, as the reference implementations do: the padding's probability is
     * the model's, though it is never listed. */
    float best = largest(logits, sampler->vocab);
    double log_sum = log_sum_exp(logits, sampler->vocab, best);

    int32_t *id = out->top_token, count = 0;
    bool listed = false;
    for (int64_t i = 0; i < sampler->usable && top > 0; i++) {
        if (count == top && logits[i] <= logits[id[count - 1]]) continue;
        int32_t at = count < top ? count++ : count - 1;
        for (; at > 0 && logits[i] > logits[id[at - 1]]; at--) id[at] = id[at - 1];
        id[at] = (int32_t)i;
    }
    for (int32_t i = 0; i < count; i++) listed |= id[i] == token;
    if (!listed) id[count++] = token;
    for (int32_t i = 0; i < count; i++)
        out->top_logprob[i] = (float)((double)logits[id[i]] - (double)best - log_sum);
    out->count = count;
    out->token = token;
    out->logprob = (float)((double)logits[token] - (double)best - log_sum);
    return WEFT_OK;
}
