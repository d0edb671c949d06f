/* Quantised activations: a block worked by hand, and every kind against codes found by
 * trying them all in double precision. */
#include "base/numerics.h"
#include "dev_case.h"

static void run_quantise(struct weft__dev *dev, const void *arg, void *y)
{
    struct weft__op_quantise_activations op = *(const struct weft__op_quantise_activations *)arg;
    op.y = y;
    weft__cpu.model->quantise_activations(dev, &op);
}

/* The E4M3 value (of magnitude at most 448) nearest to x, ties to the even code. */
static double nearest_e4m3(double x)
{
    double best = 0;
    for (int b = 0; b < 127; b++) {
        double value = b < 8 ? b * 0x1p-9 : ldexp(1 + (b & 7) / 8.0, (b >> 3) - 7);
        double gap = fabs(value - fabs(x)), old = fabs(best - fabs(x));
        if (gap < old || (gap == old && b % 2 == 0)) best = value;
    }
    return x < 0 ? -best : best;
}

static void nvfp4_worked_check(void **state)
{
    (void)state;
    const float x[16] = {0,     .1f,   -.2f, .3f,   -.45f, .6f,   .75f, -1,
                         1.25f, -1.5f, 2,    -2.5f, 3,     -.01f, .05f, -3.5f};
    const uint8_t bytes[8] = {0x00, 0x19, 0x2a, 0xc3, 0xd4, 0xe6, 0x87, 0xf0};
    float rounded[16];
    for (int i = 0; i < 16; i++) rounded[i] = weft__f32_from_bf16(weft__bf16_from_f32(x[i]));
    struct weft__op_quantise_activations op = {.x = rounded,
                                               .x_stride = 16,
                                               .rows = 1,
                                               .width = 16,
                                               .kind = WEFT__ACTIVATIONS_NVFP4,
                                               .input_scale = 8.0f / 2688.0f,
                                               .y_stride = 16};
    struct case_out y = case_run(run_quantise, &op, case_shape(1, 1, 16, 16, 16), NULL);
    const float step = 192.0f; /* scale byte 0x74 */
    for (int i = 0; i < 16; i++) {
        float value = weft__f32_from_e2m1((uint8_t)(bytes[i / 2] >> (i % 2 * 4) & 15));
        assert_true(case_at(&y, 0, 0, i) == value * step * op.input_scale);
    }
    case_free(&y);
}

static void nvfp4_zero_and_nan_blocks(void **state)
{
    (void)state;
    float x[48] = {0};
    x[20] = NAN;
    x[32] = 1e30f; /* beyond the calibrated range: scale and code saturate */
    struct weft__op_quantise_activations op = {.x = x,
                                               .x_stride = 48,
                                               .rows = 1,
                                               .width = 48,
                                               .kind = WEFT__ACTIVATIONS_NVFP4,
                                               .input_scale = 0.01f,
                                               .y_stride = 48};
    struct case_out y = case_run(run_quantise, &op, case_shape(1, 1, 48, 48, 48), NULL);
    for (int i = 0; i < 16; i++) {
        assert_true(case_at(&y, 0, 0, i) == 0);
        assert_true(isnan(case_at(&y, 0, 0, 16 + i))); /* poisoned, not silently cleaned */
    }
    assert_true(case_at(&y, 0, 0, 32) == 6.0f * 448.0f * 0.01f);
    case_free(&y);
}

/* FP8 values of each kind: the scale that belongs to the column, and the nearest code under it. */
static void fp8_matches_definition(void **state)
{
    enum { ROWS = 3, WIDTH = 300, FIRST = 100 };
    static const enum weft__activations kinds[] = {
        WEFT__ACTIVATIONS_FP8_TENSOR, WEFT__ACTIVATIONS_FP8_TOKEN, WEFT__ACTIVATIONS_FP8_BLOCK};
    (void)state;
    float *x = case_floats(ROWS * WIDTH);
    for (int i = 0; i < WIDTH; i++) x[WIDTH + i] = 0; /* a row of zeros has scale 1 */
    for (size_t k = 0; k < WEFT__COUNT(kinds); k++) {
        struct weft__op_quantise_activations op = {.x = x,
                                                   .x_stride = WIDTH,
                                                   .rows = ROWS,
                                                   .width = WIDTH,
                                                   .kind = kinds[k],
                                                   .input_scale = 0.002f,
                                                   .first_column = FIRST,
                                                   .y_stride = WIDTH};
        struct case_out y =
            case_run(run_quantise, &op, case_shape(ROWS, 1, WIDTH, WIDTH, WIDTH), NULL);
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < WIDTH; i++) {
                float amax = 0;
                for (int j = 0; j < WIDTH; j++)
                    if (kinds[k] == WEFT__ACTIVATIONS_FP8_TOKEN ||
                        (j + FIRST) / 128 == (i + FIRST) / 128)
                        amax = fmaxf(amax, fabsf(x[r * WIDTH + j]));
                float scale = amax == 0 ? 1 : amax / 448.0f;
                if (kinds[k] == WEFT__ACTIVATIONS_FP8_TENSOR) scale = op.input_scale;
                float want = (float)nearest_e4m3((double)(x[r * WIDTH + i] / scale)) * scale;
                assert_true(case_at(&y, r, 0, i) == want);
            }
        case_free(&y);
    }
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nvfp4_worked_check),
        cmocka_unit_test(nvfp4_zero_and_nan_blocks),
        cmocka_unit_test(fp8_matches_definition),
    };
    return cmocka_run_group_tests(tests, case_setup, case_teardown);
}
