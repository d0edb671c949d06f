/* The kernels' own exponential, which all instruction sets share: its error over the whole range,
 * its values at the ends, and equal bits. */
#include <float.h>

#include "dev/cpu/cpu.h"
#include "dev_case.h"

enum { N = 4099 };

static void exp_of_all(const float *x, float sign, float shift, float *y)
{
    weft__kernels_portable.exp(x, sign, shift, y, N);
    for (int d = 0; d < case_devices; d++) {
        float other[N];
        case_dev[d]->kernels->exp(x, sign, shift, other, N);
        for (int i = 0; i < N; i++)
            assert_true(weft__f32_bits(y[i]) == weft__f32_bits(other[i]) ||
                        (isnan(y[i]) && isnan(other[i])));
    }
}

/* Units in the last place of the F32 nearest to want; subnormals have the smallest. */
static double ulps(float got, double want)
{
    int exponent;
    (void)frexp(want, &exponent);
    double unit = ldexp(1, exponent - 24 < -149 ? -149 : exponent - 24);
    return fabs((double)got - want) / unit;
}

static void exp_is_accurate(void **state)
{
    (void)state;
    float x[N], y[N];
    double worst = 0;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < N; i++) x[i] = -104 + (192.7f * (float)rand()) / (float)RAND_MAX;
        exp_of_all(x, 1, 0, y);
        for (int i = 0; i < N; i++) worst = fmax(worst, ulps(y[i], exp((double)x[i])));
    }
    print_message("exp: at most %.3f units in the last place\n", worst);
    assert_true(worst < 1);
}

static void exp_at_the_ends(void **state)
{
    (void)state;
    const float ends[] = {0,      -0.0f,   INFINITY, -INFINITY, NAN,     88.7f,  88.8f,   1e30f,
                          -1e30f, -103.9f, -103.f,   1e-40f,    -1e-40f, -87.4f, FLT_MAX, -FLT_MAX};
    float x[N] = {0}, y[N];
    memcpy(x, ends, sizeof ends);
    exp_of_all(x, 1, 0, y);
    for (size_t i = 0; i < WEFT__COUNT(ends); i++) {
        float want = (float)exp((double)ends[i]);
        if (isnan(want))
            assert_true(isnan(y[i]));
        else if (isinf(want) || want == 0 || want == 1)
            assert_true(y[i] == want);
        else
            assert_true(ulps(y[i], exp((double)ends[i])) < 1);
    }
    exp_of_all(x, -1, 0, y); /* sign and shift are exact and rounded once */
    assert_true(y[2] == 0 && isinf(y[3]) && isnan(y[4]));
    for (int i = 0; i < N; i++) x[i] = 3;
    exp_of_all(x, -1, 5, y);
    for (int i = 0; i < N; i++) assert_true(ulps(y[i], exp(2)) < 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_accurate),
        cmocka_unit_test(exp_at_the_ends),
    };
    return cmocka_run_group_tests(tests, case_setup, case_teardown);
}
