/* Row operations: both builds against the scalar definitions of numerics.h and rows.h. */
#include "comm_ranks.h"

#include "base/rows.h"
#include "dev/cpu/comm_rows.h"

static const struct weft__rows *const builds[] = {
    &weft__rows_portable,
#if defined(__x86_64__)
    &weft__rows_avx2,
#endif
};

/* The second build needs a processor that has its instructions. */
static size_t build_count(void)
{
    return weft__rows_pick(false) == &weft__rows_portable ? 1 : WEFT__COUNT(builds);
}

static void assert_same_bits(const void *got, const void *want, size_t bytes, const char *what,
                             const char *build, int64_t n)
{
    if (memcmp(got, want, bytes) != 0) fail_msg("%s, %s, n = %lld", build, what, (long long)n);
}

/* Floats of every exponent, with every mantissa that decides a rounding nearby. */
static float sweep(uint32_t i)
{
    static const uint32_t low_bits[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001};
    return weft__f32_from_bits((i >> 3) << 16 | low_bits[i & 7]);
}

static void fill_norm_rows(float *x, float *w, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)pick_from(&seed, -100000, 100000) / 3001.0f;
        w[i] = (float)pick_from(&seed, -1000, 1000) / 499.0f;
    }
}

/* Any length, aligned or not, in place or not, with and without weight. */
static void norm_of_any_length(void **state)
{
    (void)state;
    enum { N_MAX = 20001 };
    float *x = malloc(N_MAX * 4), *w = malloc(N_MAX * 4), *want = malloc(N_MAX * 4),
          *got = malloc((N_MAX + 1) * 4);
    for (size_t b = 0; b < build_count(); b++)
        for (int64_t n = 1; n <= N_MAX; n += n < 300 ? 1 : 1970) {
            fill_norm_rows(x, w, n, (uint64_t)n);
            float sum = builds[b]->sum_squares(x, n), scalar = weft__sum_squares(x, n);
            assert_same_bits(&sum, &scalar, 4, "sum of squares", builds[b]->name, n);
            const float *weight = n % 3 == 0 ? NULL : w;
            for (int64_t i = 0; i < n; i++) {
                want[i] = x[i] * weft__rms_factor(scalar, n, 1e-5f);
                if (weight != NULL) want[i] = want[i] * w[i];
            }
            float *out = n % 2 == 0 ? got : got + 1;
            memcpy(out, x, (size_t)n * 4);
            weft__rmsnorm_row(builds[b], n % 5 == 0 ? x : out, weight, 1e-5f, out, n);
            assert_same_bits(out, want, (size_t)n * 4, "norm", builds[b]->name, n);
        }
    free(x), free(w), free(want), free(got);
}

static void sum_follows_the_tree(void **state)
{
    (void)state;
    /* 2^24 + 1 + 1 tells the orders apart: neighbours first keeps the ones. */
    const float x[5] = {4096.0f, 0.0f, 1.0f, 1.0f, 1.0f};
    for (size_t b = 0; b < build_count(); b++) {
        assert_true(builds[b]->sum_squares(x, 4) == 16777218.0f);
        assert_true(builds[b]->sum_squares(x, 5) == 16777220.0f); /* a tie goes to even */
    }
}

static void rounding_to_16_bits(void **state)
{
    (void)state;
    enum { COUNT = 1 << 19 };
    float *x = malloc(COUNT * 4);
    uint16_t *got = malloc(COUNT * 2);
    for (uint32_t i = 0; i < COUNT; i++) x[i] = sweep(i);
    for (size_t b = 0; b < build_count(); b++) {
        builds[b]->store(WEFT_BF16, x, got, COUNT);
        for (uint32_t i = 0; i < COUNT; i++) assert_int_equal(got[i], weft__bf16_from_f32(x[i]));
        builds[b]->store(WEFT_F16, x, got, COUNT);
        for (uint32_t i = 0; i < COUNT; i++) assert_int_equal(got[i], weft__f16_from_f32(x[i]));
        for (uint32_t h = 0; h < 65536; h++) got[h] = (uint16_t)h;
        for (int type = 0; type < 2; type++) {
            builds[b]->load(type == 0 ? WEFT_BF16 : WEFT_F16, got, x, 65536);
            for (uint16_t h = 0; h < 65535; h++) {
                float want = type == 0 ? weft__f32_from_bf16(h) : weft__f32_from_f16(h);
                if (isnan(want)) /* the payload of a NaN is free until it is stored */
                    assert_true(isnan(x[h]));
                else
                    assert_int_equal(weft__f32_bits(x[h]), weft__f32_bits(want));
            }
        }
        for (uint32_t i = 0; i < COUNT; i++) x[i] = sweep(i);
    }
    free(x), free(got);
}

static void quantisation(void **state)
{
    (void)state;
    enum { COUNT = 1 << 19 };
    float *x = malloc(COUNT * 4);
    uint8_t *codes = malloc(COUNT), *scales = malloc(COUNT / 16);
    for (uint32_t i = 0; i < COUNT; i++) x[i] = sweep(i);
    for (size_t b = 0; b < build_count(); b++) {
        builds[b]->fp8(x, 3.0f, codes, COUNT);
        for (uint32_t i = 0; i < COUNT; i++)
            assert_int_equal(codes[i], weft__e4m3_from_f32(x[i] / 3.0f));
        builds[b]->nvfp4(x, 336.0f, codes, scales, COUNT);
        for (uint32_t i = 0; i < COUNT; i++) {
            float amax = 0;
            for (uint32_t j = i / 16 * 16; j < i / 16 * 16 + 16; j++)
                if (!(fabsf(x[j]) <= amax) && !isnan(amax)) amax = fabsf(x[j]);
            assert_int_equal(scales[i / 16], weft__nvfp4_scale(amax, 336.0f));
            uint8_t want = weft__e2m1_from_f32(x[i] * weft__nvfp4_inverse(scales[i / 16], 336.0f));
            assert_int_equal(i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4, want);
        }
    }
    free(x), free(codes), free(scales);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_of_any_length), cmocka_unit_test(sum_follows_the_tree),
        cmocka_unit_test(rounding_to_16_bits), cmocka_unit_test(quantisation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
