/* Sampling against a naive implementation (full sort, libm, double), known answers of the
 * generator, and the chi-square of what is drawn. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "sample/sample.h"

enum { VOCAB_MAX = 4096 };

static uint64_t state;

static uint32_t random_u32(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static double random_double(double low, double high)
{
    return low + (high - low) * (double)random_u32() / 2147483648.0;
}

/* ---- the naive implementation: what may be drawn, and with which probability ---- */

static double sort_value[VOCAB_MAX];

static int by_value(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (sort_value[x] != sort_value[y]) return sort_value[x] > sort_value[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static void naive_adjust(const struct weft__sample_row *row, int64_t vocab, int64_t usable,
                         double *x)
{
    const struct weft__sampling *s = row->sampling;
    for (int64_t v = 0; v < vocab; v++) {
        int64_t in_output = 0, anywhere = 0;
        for (int64_t i = 0; i < row->output_count; i++) in_output += row->output[i] == v;
        for (int64_t i = 0; i < row->prompt_count; i++) anywhere += row->prompt[i] == v;
        anywhere += in_output;
        x[v] = (double)row->logits[v];
        if (anywhere > 0 && x[v] > 0)
            x[v] /= (double)s->repetition_penalty;
        else if (anywhere > 0)
            x[v] *= (double)s->repetition_penalty;
        x[v] -= (double)s->frequency_penalty * (double)in_output;
        if (in_output > 0) x[v] -= (double)s->presence_penalty;
        for (int32_t i = 0; i < s->bias_count; i++)
            if (s->bias[i].token == v) x[v] += (double)s->bias[i].bias;
        for (int32_t i = 0; i < row->banned_count; i++)
            if (row->banned[i] == v) x[v] = -INFINITY;
        if (v >= usable)
            x[v] = -INFINITY;
        else if (row->allowed != NULL && !(row->allowed[v / 32] >> (v % 32) & 1))
            x[v] = -INFINITY;
    }
}

/* Fills p [vocab]. True when a limit lies so near to a cumulated probability, or a value to
 * another, that rounding may decide: such a case is not compared. */
static bool naive_probabilities(const struct weft__sample_row *row, int64_t vocab, int64_t usable,
                                double *p)
{
    const struct weft__sampling *s = row->sampling;
    static double x[VOCAB_MAX];
    static int32_t order[VOCAB_MAX];
    bool close = false;
    naive_adjust(row, vocab, usable, x);
    int64_t n = 0;
    for (int64_t v = 0; v < vocab; v++) {
        p[v] = 0;
        sort_value[v] = x[v] / (s->temperature > 0 ? (double)s->temperature : 1);
        if (x[v] > -INFINITY) order[n++] = (int32_t)v;
    }
    qsort(order, (size_t)n, sizeof order[0], by_value);
    if (s->temperature == 0) {
        p[order[0]] = 1;
        return n > 1 && fabs(x[order[0]] - x[order[1]]) < 1e-5 && x[order[0]] != x[order[1]];
    }
    if (s->top_k > 0 && s->top_k < n) {
        n = s->top_k;
        double gap = sort_value[order[n - 1]] - sort_value[order[n]];
        close |= gap != 0 && gap < 1e-5 * (1 + fabs(sort_value[order[n]]));
    }
    double z = 0, top = sort_value[order[0]];
    for (int64_t i = 0; i < n; i++) z += exp(sort_value[order[i]] - top);
    int64_t kept = 0;
    for (double before = 0; kept < n && (kept == 0 || before < (double)s->top_p); kept++) {
        before += exp(sort_value[order[kept]] - top) / z;
        close |= s->top_p < 1 && fabs(before - (double)s->top_p) < 1e-5;
    }
    if (kept < n) {
        double gap = sort_value[order[kept - 1]] - sort_value[order[kept]];
        close |= gap != 0 && gap < 1e-5 * (1 + fabs(sort_value[order[kept]]));
    }
    double total = 0;
    for (int64_t i = 0; i < kept; i++) {
        double ratio = exp(sort_value[order[i]] - top);
        close |= fabs(ratio - (double)s->min_p) < 1e-5 * (double)s->min_p;
        if (ratio >= (double)s->min_p) total += p[order[i]] = ratio;
    }
    for (int64_t v = 0; v < vocab; v++) p[v] /= total;
    return close;
}

/* ---- tests ---- */

static void philox_known_answers(void **unused)
{
    (void)unused;
    /* kat_vectors of Random123: counter, key, result */
    static const uint32_t kat[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d,
         0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (size_t i = 0; i < WEFT__COUNT(kat); i++) {
        uint32_t out[4];
        weft__philox(kat[i], kat[i] + 4, out);
        assert_memory_equal(out, kat[i] + 6, sizeof out);
    }
    /* Each part of the key matters, and the high word of the position too. */
    double base = weft__uniform(7, 0, 0);
    assert_true(base >= 0 && base < 1);
    assert_true(weft__uniform(8, 0, 0) != base && weft__uniform(7 + (1ull << 32), 0, 0) != base);
    assert_true(weft__uniform(7, 1, 0) != base);
    assert_true(weft__uniform(7, 0, 1) != base && weft__uniform(7, 0, 1ull << 32) != base);
}

/* Draws many tokens at different positions and returns chi-square / degrees, or -infinity if a
 * token of probability zero was drawn. Cells expected below 5 are joined. */
static double chi_square(struct weft__sampler *sampler, struct weft__sample_row row, int64_t vocab,
                         const double *p, int draws)
{
    static int64_t hits[VOCAB_MAX];
    static struct weft__sampling s;
    memset(hits, 0, sizeof hits);
    s = *row.sampling;
    row.sampling = &s;
    for (int i = 0; i < draws; i++) {
        s.seed = (uint64_t)i * 977u;
        int32_t token;
        assert_int_equal(weft__sample(sampler, &row, &token, NULL), WEFT_OK);
        assert_in_range(token, 0, vocab - 1);
        if (p[token] == 0) return -INFINITY;
        hits[token]++;
    }
    double chi = 0, rest = 0, rest_hits = 0;
    int degrees = -1;
    for (int64_t v = 0; v < vocab; v++) {
        double expected = p[v] * draws;
        if (expected < 5) {
            rest += expected, rest_hits += (double)hits[v];
            continue;
        }
        chi += ((double)hits[v] - expected) * ((double)hits[v] - expected) / expected;
        degrees++;
    }
    if (rest >= 5) chi += (rest_hits - rest) * (rest_hits - rest) / rest, degrees++;
    return degrees > 0 ? (chi - degrees) / sqrt(2.0 * degrees) : 0;
}

struct setup {
    struct weft__sampling sampling;
    struct weft__logit_bias bias[4];
    float logits[VOCAB_MAX];
    int32_t prompt[16], output[16], banned[2];
    uint32_t allowed[VOCAB_MAX / 32];
    struct weft__sample_row row;
};

static void random_setup(struct setup *t, int64_t vocab)
{
    double spread = random_double(0.1, 8);
    bool coarse = random_u32() % 3 == 0; /* many equal logits */
    for (int64_t v = 0; v < vocab; v++) {
        double x = random_double(-spread, spread);
        t->logits[v] = (float)(coarse ? floor(x) : x);
    }
    for (int i = 0; i < 16; i++) t->prompt[i] = (int32_t)(random_u32() % (uint32_t)vocab);
    for (int i = 0; i < 16; i++) t->output[i] = (int32_t)(random_u32() % (uint32_t)vocab);
    for (int i = 0; i < 2; i++) t->banned[i] = (int32_t)(random_u32() % (uint32_t)vocab);
    for (int64_t i = 0; i < vocab / 32; i++) t->allowed[i] = random_u32() << 1 | 1;
    for (int i = 0; i < 4; i++)
        t->bias[i] = (struct weft__logit_bias){i * 3, (float)random_double(-5, 5)};
    struct weft__sampling *s = &t->sampling;
    *s = weft__sampling_default;
    s->temperature = random_u32() % 4 == 0 ? 0 : (float)random_double(0.3, 2);
    if (random_u32() % 2)
        s->top_k =
            (int32_t)(random_u32() % (uint32_t)(random_u32() % 2 ? vocab / 64 + 2 : vocab + 5));
    if (random_u32() % 2) s->top_p = (float)random_double(0, 1);
    if (random_u32() % 2) s->min_p = (float)random_double(0, 0.3);
    if (random_u32() % 2) s->repetition_penalty = (float)random_double(0.5, 2);
    if (random_u32() % 2) s->frequency_penalty = (float)random_double(-2, 2);
    if (random_u32() % 2) s->presence_penalty = (float)random_double(-2, 2);
    if (random_u32() % 2) s->bias = t->bias, s->bias_count = 4;
    t->row = (struct weft__sample_row){.logits = t->logits,
                                       .sampling = s,
                                       .prompt = t->prompt,
                                       .prompt_count = 16,
                                       .output = t->output,
                                       .output_count = (int64_t)(random_u32() % 17)};
    if (random_u32() % 3 == 0) t->row.allowed = t->allowed;
    if (random_u32() % 3 == 0) t->row.banned = t->banned, t->row.banned_count = 2;
}

/* Every combination of settings: never a token outside the naive set, and the naive frequencies. */
static void filters_match_naive(void **unused)
{
    (void)unused;
    static struct setup t;
    static double p[VOCAB_MAX];
    state = 11;
    int compared = 0;
    double worst = 0;
    for (int round = 0; round < 400; round++) {
        int64_t vocab = 32 * (1 + (int64_t)(random_u32() % (round % 8 == 0 ? 64 : 3)));
        int64_t usable = vocab - random_u32() % 9;
        struct weft__sampler *sampler = NULL;
        assert_int_equal(weft__sampler_open(vocab, usable, &sampler, NULL), WEFT_OK);
        random_setup(&t, vocab);
        assert_int_equal(weft__sampling_check(&t.sampling, vocab, NULL), WEFT_OK);
        if (!naive_probabilities(&t.row, vocab, usable, p)) {
            double chi = chi_square(sampler, t.row, vocab, p, 3000);
            assert_true(chi >= -4);
            worst = fmax(worst, chi);
            compared++;
        }
        weft__sampler_close(sampler);
    }
    assert_true(compared > 300);
    assert_true(worst < 6); /* of 300 values with mean 0 and deviation 1, a little skewed */
}

/* The rarest kept token must be reachable: a filter one entry too narrow passes chi-square. */
static void filters_keep_exactly(void **unused)
{
    (void)unused;
    const float logits[6] = {2, 3, 1, 3, 0, 2}; /* order: 1 3 0 5 2 4 */
    struct weft__sampler *sampler = NULL;
    assert_int_equal(weft__sampler_open(6, 6, &sampler, NULL), WEFT_OK);
    struct weft__sampling s = weft__sampling_default;
    struct weft__sample_row row = {.logits = logits, .sampling = &s};
    /* p: .3284 .3284 .1208 .1208 .0445 .0164... by hand: e^0 e^0 e^-1 e^-1 e^-2 e^-3, Z 2.9209 */
    const struct {
        int32_t top_k;
        float top_p, min_p;
        unsigned kept; /* bit id */
    } cases[] = {
        {1, 1, 0, 1u << 1},
        {3, 1, 0, 1u << 1 | 1u << 3 | 1u << 0}, /* of equal ones the lower id */
        {4, 1, 0, 1u << 1 | 1u << 3 | 1u << 0 | 1u << 5},
        {6, 1, 0, 63},
        {100, 1, 0, 63},
        {0, 0, 0, 1u << 1},
        {0, .34f, 0, 1u << 1},
        {0, .35f, 0, 1u << 1 | 1u << 3},
        {0, .70f, 0, 1u << 1 | 1u << 3 | 1u << 0},
        {0, .82f, 0, 1u << 1 | 1u << 3 | 1u << 0 | 1u << 5},
        {3, .84f, 0, 1u << 1 | 1u << 3}, /* of the three kept: .4223 .4223 .1554 */
        {3, .85f, 0, 1u << 1 | 1u << 3 | 1u << 0},
        {0, 1, .36f, 1u << 1 | 1u << 3 | 1u << 0 | 1u << 5},
        {0, 1, .37f, 1u << 1 | 1u << 3},
        {0, .70f, .37f, 1u << 1 | 1u << 3},
        {0, 1, 1, 1u << 1 | 1u << 3},
    };
    for (size_t c = 0; c < WEFT__COUNT(cases); c++) {
        s.top_k = cases[c].top_k, s.top_p = cases[c].top_p, s.min_p = cases[c].min_p;
        unsigned kept = 0;
        for (uint64_t seed = 0; seed < 2000; seed++) {
            int32_t token;
            s.seed = seed;
            assert_int_equal(weft__sample(sampler, &row, &token, NULL), WEFT_OK);
            kept |= 1u << token;
        }
        assert_int_equal(kept, cases[c].kept);
    }
    weft__sampler_close(sampler);
}

static void greedy_takes_lower_id_and_skips_padding(void **unused)
{
    (void)unused;
    float logits[40] = {0};
    logits[7] = logits[9] = 5;
    logits[38] = 50; /* beyond usable */
    struct weft__sampler *sampler = NULL;
    assert_int_equal(weft__sampler_open(40, 36, &sampler, NULL), WEFT_OK);
    struct weft__sampling s = weft__sampling_default;
    s.temperature = 0;
    struct weft__sample_row row = {.logits = logits, .sampling = &s};
    int32_t token = -1;
    assert_int_equal(weft__sample(sampler, &row, &token, NULL), WEFT_OK);
    assert_int_equal(token, 7);
    int32_t banned[] = {7};
    row.banned = banned, row.banned_count = 1;
    assert_int_equal(weft__sample(sampler, &row, &token, NULL), WEFT_OK);
    assert_int_equal(token, 9);
    struct weft__logprobs lp;
    assert_int_equal(weft__logprobs_of(sampler, logits, 9, 3, &lp, NULL), WEFT_OK);
    assert_int_equal(lp.count, 3);
    assert_int_equal(lp.top_token[0], 7);
    assert_int_equal(lp.top_token[1], 9);
    assert_int_equal(lp.top_token[2], 0);
    assert_true(lp.logprob == lp.top_logprob[1] && lp.logprob == lp.top_logprob[0]);
    weft__sampler_close(sampler);
}

static void logprobs_match_naive(void **unused)
{
    (void)unused;
    static float logits[VOCAB_MAX];
    state = 5;
    struct weft__sampler *sampler = NULL;
    assert_int_equal(weft__sampler_open(VOCAB_MAX, VOCAB_MAX - 3, &sampler, NULL), WEFT_OK);
    for (int round = 0; round < 200; round++) {
        double spread = random_double(0, 60), z = 0;
        for (int v = 0; v < VOCAB_MAX; v++)
            sort_value[v] = (double)(logits[v] = (float)random_double(-spread, spread));
        for (int v = 0; v < VOCAB_MAX; v++) z += exp(sort_value[v]);
        static int32_t order[VOCAB_MAX];
        for (int v = 0; v < VOCAB_MAX; v++) order[v] = v;
        qsort(order, VOCAB_MAX - 3, sizeof order[0], by_value);
        int32_t top = (int32_t)(random_u32() % (WEFT__TOP_LOGPROBS_MAX + 1));
        int32_t token = round % 2 ? order[random_u32() % 20] : (int32_t)(random_u32() % VOCAB_MAX);
        struct weft__logprobs lp;
        assert_int_equal(weft__logprobs_of(sampler, logits, token, top, &lp, NULL), WEFT_OK);
        double want = sort_value[token] - log(z);
        assert_true(fabs((double)lp.logprob - want) <= 2e-7 * (1 + fabs(want)));
        bool listed = false;
        for (int i = 0; i < top; i++) {
            assert_int_equal(lp.top_token[i], order[i]);
            listed |= order[i] == token;
        }
        assert_int_equal(lp.count, top + !listed);
        for (int i = 0; i < lp.count; i++) {
            want = sort_value[lp.top_token[i]] - log(z);
            assert_true(fabs((double)lp.top_logprob[i] - want) <= 2e-7 * (1 + fabs(want)));
            /* lm-eval compares for equality */
            if (lp.top_token[i] == token) assert_true(lp.top_logprob[i] == lp.logprob);
        }
        if (!listed) assert_int_equal(lp.top_token[lp.count - 1], token);
    }
    weft__sampler_close(sampler);
}

static void bad_logits_and_settings_are_named(void **unused)
{
    (void)unused;
    float logits[64] = {0};
    struct weft__sampler *sampler = NULL;
    weft_error err;
    assert_int_equal(weft__sampler_open(64, 65, &sampler, &err), WEFT_INVALID);
    assert_int_equal(weft__sampler_open(64, 0, &sampler, &err), WEFT_INVALID);
    assert_int_equal(weft__sampler_open(64, 60, &sampler, NULL), WEFT_OK);
    struct weft__sampling s = weft__sampling_default;
    uint32_t none[2] = {0, 0xf0000000u}; /* only ids that are not usable */
    struct weft__sample_row row = {.logits = logits, .sampling = &s};
    int32_t token = 5;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < WEFT__COUNT(bad); i++) {
        logits[63] = bad[i];
        struct weft__logprobs lp;
        assert_int_equal(weft__sample(sampler, &row, &token, &err), WEFT_FORMAT);
        assert_non_null(strstr(err.text, "token 63"));
        assert_int_equal(weft__logprobs_of(sampler, logits, 0, 1, &lp, &err), WEFT_FORMAT);
    }
    logits[63] = 0;
    row.allowed = none;
    assert_int_equal(weft__sample(sampler, &row, &token, &err), WEFT_INVALID);
    assert_int_equal(token, 5);

    struct weft__logit_bias bias = {64, 0};
    const struct weft__sampling wrong[] = {
        {.temperature = -1},
        {.temperature = NAN, .top_p = 1},
        {.top_p = 1.5f},
        {.top_p = -0.5f},
        {.min_p = NAN},
        {.repetition_penalty = 0},
        {.repetition_penalty = INFINITY},
        {.repetition_penalty = 1, .frequency_penalty = 3},
        {.repetition_penalty = 1, .presence_penalty = -3},
        {.repetition_penalty = 1, .bias_count = -1},
        {.repetition_penalty = 1, .bias_count = WEFT__LOGIT_BIAS_MAX + 1},
        {.repetition_penalty = 1, .bias = &bias, .bias_count = 1}};
    for (size_t i = 0; i < WEFT__COUNT(wrong); i++)
        assert_int_equal(weft__sampling_check(&wrong[i], 64, &err), WEFT_INVALID);
    assert_non_null(strstr(err.text, "token 64"));
    bias = (struct weft__logit_bias){63, NAN};
    assert_int_equal(weft__sampling_check(&wrong[WEFT__COUNT(wrong) - 1], 64, &err), WEFT_INVALID);
    weft__sampler_close(sampler);
}

/* Extremes that overflow on the way: still a token, and the right one. */
static void extremes_survive(void **unused)
{
    (void)unused;
    float logits[8] = {-3e38f, 3e38f, 3.4e38f, 0, 1, 2, 3, -3.4e38f};
    struct weft__logit_bias bias[1] = {{3, 100}};
    int32_t output[3] = {2, 2, 7};
    struct weft__sampling s = weft__sampling_default;
    s.repetition_penalty = 0.01f, s.bias = bias, s.bias_count = 1, s.temperature = 1e-38f;
    struct weft__sampler *sampler = NULL;
    assert_int_equal(weft__sampler_open(8, 8, &sampler, NULL), WEFT_OK);
    struct weft__sample_row row = {
        .logits = logits, .sampling = &s, .output = output, .output_count = 3};
    int32_t token = -1;
    assert_int_equal(weft__sample(sampler, &row, &token, NULL), WEFT_OK);
    assert_int_equal(token, 2);
    s.repetition_penalty = 10, s.temperature = 100, s.top_p = 0.5f, s.top_k = 3;
    assert_int_equal(weft__sample(sampler, &row, &token, NULL), WEFT_OK);
    assert_int_equal(token, 1);
    token = -1, s.top_p = 0, s.top_k = 0;
    assert_int_equal(weft__sample(sampler, &row, &token, NULL), WEFT_OK);
    assert_int_equal(token, 1);
    weft__sampler_close(sampler);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(philox_known_answers),
                                       cmocka_unit_test(filters_match_naive),
                                       cmocka_unit_test(filters_keep_exactly),
                                       cmocka_unit_test(greedy_takes_lower_id_and_skips_padding),
                                       cmocka_unit_test(logprobs_match_naive),
                                       cmocka_unit_test(bad_logits_and_settings_are_named),
                                       cmocka_unit_test(extremes_survive)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
