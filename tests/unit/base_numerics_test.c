/* Conversions against double-precision definitions, over every code and random floats. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/numerics.h"

/* The nearest of `count` ascending magnitudes, ties to the even index, computed in double. */
static int nearest(double x, const double *values, int count)
{
    int best = 0;
    for (int i = 1; i < count; i++) {
        double new_gap = fabs(values[i] - x), old_gap = fabs(values[best] - x);
        if (new_gap < old_gap || (new_gap == old_gap && i % 2 == 0)) best = i;
    }
    return best;
}

static float random_f32(int low_exponent, int high_exponent)
{
    uint32_t e = (uint32_t)(low_exponent + rand() % (high_exponent - low_exponent + 1) + 127);
    return weft__f32_from_bits((uint32_t)rand() << 31 | e << 23 | ((uint32_t)rand() & 0x7fffffu));
}

static void e4m3_matches_definition(void **state)
{
    (void)state;
    double values[127];
    for (int b = 0; b < 127; b++) {
        int e = b >> 3, m = b & 7;
        values[b] = e == 0 ? m * 0x1p-9 : ldexp(1 + m / 8.0, e - 7);
        assert_true((double)weft__f32_from_e4m3((uint8_t)b) == values[b]);
        assert_true((double)weft__f32_from_e4m3((uint8_t)(b | 0x80)) == -values[b]);
        assert_int_equal(weft__e4m3_from_f32((float)values[b]), b);
        if (b > 0) { /* the tie below, and its neighbours */
            float tie = (float)((values[b] + values[b - 1]) / 2);
            assert_int_equal(weft__e4m3_from_f32(tie), b % 2 == 0 ? b : b - 1);
            assert_int_equal(weft__e4m3_from_f32(nextafterf(tie, FLT_MAX)), b);
            assert_int_equal(weft__e4m3_from_f32(nextafterf(tie, 0)), b - 1);
        }
    }
    for (int i = 0; i < 200000; i++) {
        float x = random_f32(-14, 10);
        int want = nearest(fabs((double)x), values, 127) | (x < 0 ? 0x80 : 0);
        assert_int_equal(weft__e4m3_from_f32(x), want);
    }
    assert_int_equal(weft__e4m3_from_f32(NAN), 0x7f);
    assert_int_equal(weft__e4m3_from_f32(INFINITY), 0x7e);
    assert_int_equal(weft__e4m3_from_f32(-1000.0f), 0xfe);
    assert_true(isnan(weft__f32_from_e4m3(0x7f)) && isnan(weft__f32_from_e4m3(0xff)));
}

static void e2m1_matches_definition(void **state)
{
    (void)state;
    const double values[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    for (int c = 0; c < 8; c++) {
        assert_true((double)weft__f32_from_e2m1((uint8_t)c) == values[c]);
        assert_true((double)weft__f32_from_e2m1((uint8_t)(c | 8)) == -values[c]);
        if (c > 0)
            assert_int_equal(weft__e2m1_from_f32((float)((values[c] + values[c - 1]) / 2)),
                             c % 2 == 0 ? c : c - 1);
    }
    for (int i = 0; i < 200000; i++) {
        float x = random_f32(-6, 5);
        assert_int_equal(weft__e2m1_from_f32(x),
                         nearest(fabs((double)x), values, 8) | (x < 0 ? 8 : 0));
    }
    assert_int_equal(weft__e2m1_from_f32(-0.01f), 8);
    assert_int_equal(weft__e2m1_from_f32(NAN), 7);
}

static void halves_round_trip_and_round(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = weft__f32_from_f16((uint16_t)h), b = weft__f32_from_bf16((uint16_t)h);
        assert_int_equal(weft__f16_from_f32(f), isnan(f) ? 0x7e00 : (int)h);
        assert_int_equal(weft__bf16_from_f32(b), isnan(b) ? 0x7fc0 : (int)h);
        if ((h & 0x7fff) < 0x7bff) { /* the tie above goes to the even code */
            float next = weft__f32_from_f16((uint16_t)(h + 1));
            float tie = (float)(((double)f + (double)next) / 2);
            assert_int_equal(weft__f16_from_f32(tie), h % 2 == 0 ? h : h + 1);
        }
        if ((h & 0x7fff) < 0x7f7f) {
            float tie = weft__f32_from_bits(h << 16 | 0x8000u);
            assert_int_equal(weft__bf16_from_f32(tie), h % 2 == 0 ? h : h + 1);
        }
    }
    assert_int_equal(weft__f16_from_f32(65519.9f), 0x7bff);
    assert_int_equal(weft__f16_from_f32(65520.0f), 0x7c00);
}

/* A block of 16 values, worked by hand. */
static void nvfp4_worked_check(void **state)
{
    (void)state;
    const float x[16] = {0,     .1f,   -.2f, .3f,   -.45f, .6f,   .75f, -1,
                         1.25f, -1.5f, 2,    -2.5f, 3,     -.01f, .05f, -3.5f};
    const uint8_t want[8] = {0x00, 0x19, 0x2a, 0xc3, 0xd4, 0xe6, 0x87, 0xf0};
    float G = 1.0f / (8.0f / 2688.0f), amax = 3.5f;
    uint8_t scale = weft__nvfp4_scale(amax, G);
    assert_int_equal(scale, 0x74);
    float inverse = weft__nvfp4_inverse(scale, G);
    assert_true(inverse == 1.75f);
    for (int i = 0; i < 8; i++) {
        uint8_t lo =
            weft__e2m1_from_f32(weft__f32_from_bf16(weft__bf16_from_f32(x[2 * i])) * inverse);
        uint8_t hi =
            weft__e2m1_from_f32(weft__f32_from_bf16(weft__bf16_from_f32(x[2 * i + 1])) * inverse);
        assert_int_equal(lo | hi << 4, want[i]);
    }
}

static void swizzle_check_values(void **state)
{
    (void)state;
    const int cases[][3] = {{0, 0, 0},     {0, 1, 1},   {1, 0, 16},     {32, 0, 4},    {31, 3, 499},
                            {127, 3, 511}, {0, 4, 512}, {128, 0, 1536}, {130, 9, 2593}};
    for (size_t i = 0; i < WEFT__COUNT(cases); i++)
        assert_int_equal(weft__swizzled_scale_offset(cases[i][0], cases[i][1], 12), cases[i][2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(e4m3_matches_definition), cmocka_unit_test(e2m1_matches_definition),
        cmocka_unit_test(halves_round_trip_and_round), cmocka_unit_test(nvfp4_worked_check),
        cmocka_unit_test(swizzle_check_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
