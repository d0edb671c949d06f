/* Operations on rows against double precision, or against a plain loop where they only move data.
 */
#include "dev_case.h"

#define RUNNER(op_name)                                                         \
    static void run_##op_name(struct weft__dev *dev, const void *arg, void *y)  \
    {                                                                           \
        struct weft__op_##op_name op = *(const struct weft__op_##op_name *)arg; \
        op.y = y;                                                               \
        weft__cpu.model->op_name(dev, &op);                                     \
    }
RUNNER(norm)
RUNNER(silu_mul)
RUNNER(copy)
RUNNER(kv_load)

/* ---- norm ---- */

static void check_norm(int64_t tokens, int64_t heads, int64_t dim, bool centred, bool in_place)
{
    int64_t head_stride = dim + 2, stride = heads * head_stride + 1;
    float *x = case_floats(tokens * stride), *weight = case_floats(dim), *bias = case_floats(dim);
    struct weft__op_norm op = {.x = x,
                               .x_stride = stride,
                               .x_head_stride = head_stride,
                               .tokens = tokens,
                               .heads = heads,
                               .dim = dim,
                               .weight = weight,
                               .bias = centred ? bias : NULL,
                               .eps = 1e-5f,
                               .centred = centred,
                               .y_stride = stride + 3,
                               .y_head_stride = head_stride + 1};
    struct case_out y = case_run(
        run_norm, &op, case_shape(tokens, heads, dim, op.y_stride, op.y_head_stride), NULL);
    float *own = malloc((size_t)(tokens * stride + 1) * sizeof *own);
    memcpy(own, x, (size_t)(tokens * stride) * sizeof *own);
    if (in_place) {
        op.x = op.y = own;
        op.y_stride = stride;
        op.y_head_stride = head_stride;
        weft__cpu.model->norm(case_dev[1], &op);
    }
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < heads; h++) {
            const float *row = x + t * stride + h * head_stride;
            double mean = 0, squares = 0;
            for (int64_t i = 0; i < dim; i++) mean += (double)row[i] / (double)dim;
            if (!centred) mean = 0;
            for (int64_t i = 0; i < dim; i++) squares += pow((double)row[i] - mean, 2);
            double factor = 1 / sqrt(squares / (double)dim + 1e-5);
            for (int64_t i = 0; i < dim; i++) {
                double want = ((double)row[i] - mean) * factor * (double)weight[i];
                if (centred) want += (double)bias[i];
                case_near((double)case_at(&y, t, h, i), want, 1 + fabs(want),
                          centred ? 20 + (double)dim : 20);
                if (in_place)
                    assert_true(own[t * stride + h * head_stride + i] == case_at(&y, t, h, i));
            }
        }
    free(own);
    case_free(&y);
    free(bias);
    free(weight);
    free(x);
}

static void norm_matches_definition(void **state)
{
    (void)state;
    const int64_t dims[] = {1, 5, 8, 32, 64, 100, 576, 1000};
    for (int centred = 0; centred < 2; centred++)
        for (size_t i = 0; i < WEFT__COUNT(dims); i++) {
            check_norm(3, 1, dims[i], centred, i % 2 == 0);
            check_norm(2, 3, dims[i], centred, true);
            check_norm(60, 2, dims[i], centred, false);
            check_norm(0, 2, dims[i], centred, false);
        }
}

/* ---- rope ---- */

static void run_table(struct weft__dev *dev, const void *arg, void *y)
{
    struct weft__op_rope_table op = *(const struct weft__op_rope_table *)arg;
    op.cosine = y;
    op.sine = op.cosine + op.tokens * op.half;
    weft__cpu.model->rope_table(dev, &op);
}

/* The oracle reduces the angle in extended precision. */
static void rope_table_is_exact_far_out(void **state)
{
    (void)state;
    enum { HALF = 32, TOKENS = 7 };
    const int32_t position[TOKENS] = {0, 1, 77, 4095, 131072, 1048575, 2147483647};
    float frequency[HALF];
    for (int j = 0; j < HALF; j++) frequency[j] = (float)pow(8e6, -2.0 * j / (2 * HALF));
    struct weft__op_rope_table op = {.position = position,
                                     .frequency = frequency,
                                     .factor = 1.25f,
                                     .tokens = TOKENS,
                                     .half = HALF};
    struct case_out y =
        case_run(run_table, &op, case_shape(2, 1, TOKENS * HALF, TOKENS * HALF, 0), NULL);
    for (int t = 0; t < TOKENS; t++)
        for (int j = 0; j < HALF; j++) {
            long double angle = (long double)position[t] * (long double)frequency[j];
            case_near((double)case_at(&y, 0, 0, t * HALF + j), (double)cosl(angle) * 1.25, 1.25, 2);
            case_near((double)case_at(&y, 1, 0, t * HALF + j), (double)sinl(angle) * 1.25, 1.25, 2);
        }
    case_free(&y);
}

static void run_rope(struct weft__dev *dev, const void *arg, void *y)
{
    struct weft__op_rope op = *(const struct weft__op_rope *)arg;
    op.x = y;
    weft__cpu.model->rope(dev, &op);
}

static void check_rope(int64_t tokens, int64_t heads, int64_t half, bool interleaved)
{
    int64_t width = 2 * half + 3, stride = heads * width + 2;
    int64_t total = (tokens - 1) * stride + heads * width;
    float *x = case_floats(total), *c = case_floats(tokens * half), *s = case_floats(tokens * half);
    struct weft__op_rope op = {.stride = stride,
                               .head_stride = width,
                               .tokens = tokens,
                               .heads = heads,
                               .half = half,
                               .cosine = c,
                               .sine = s,
                               .interleaved = interleaved};
    struct case_out y = case_run(run_rope, &op, case_shape(tokens, heads, width, stride, width), x);
    for (int64_t i = 0; i < total; i++) {
        int64_t t = i / stride, h = i % stride / width, e = i % stride % width;
        float got = weft__f32_from_bits(y.words[i]);
        if (i % stride >= heads * width || e >= 2 * half) {
            assert_true(got == x[i]); /* beside the rotated part */
            continue;
        }
        int64_t j = interleaved ? e / 2 : e % half, step = interleaved ? 1 : half;
        bool second = interleaved ? e % 2 == 1 : e >= half;
        const float *u = x + t * stride + h * width + (interleaved ? 2 * j : j);
        double cosine = (double)c[t * half + j], sine = (double)s[t * half + j];
        double want = second ? (double)u[step] * cosine + (double)u[0] * sine
                             : (double)u[0] * cosine - (double)u[step] * sine;
        case_near((double)got, want, 1, 4);
    }
    case_free(&y);
    free(s);
    free(c);
    free(x);
}

static void rope_rotates_pairs(void **state)
{
    (void)state;
    for (int interleaved = 0; interleaved < 2; interleaved++)
        for (int64_t half = 1; half < 70; half = half * 3 + 1) {
            check_rope(1, 1, half, interleaved);
            check_rope(45, 3, half, interleaved);
            check_rope(300, 2, half, interleaved);
        }
}

/* ---- silu ---- */

static void silu_matches_definition(void **state)
{
    (void)state;
    enum { ROWS = 40, WIDTH = 1003, STRIDE = WIDTH + 2 };
    float *gate = case_floats(ROWS * STRIDE), *up = case_floats(ROWS * STRIDE);
    for (int i = 0; i < ROWS * STRIDE; i++) gate[i] *= i % 3 == 0 ? 100.0f : 8.0f;
    struct weft__op_silu_mul op = {.gate = gate,
                                   .up = up,
                                   .x_stride = STRIDE,
                                   .rows = ROWS,
                                   .width = WIDTH,
                                   .y_stride = STRIDE + 1};
    struct case_out y =
        case_run(run_silu_mul, &op, case_shape(ROWS, 1, WIDTH, STRIDE + 1, 0), NULL);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < WIDTH; i++) {
            double z = (double)gate[r * STRIDE + i];
            double want = z / (1 + exp(-z)) * (double)up[r * STRIDE + i];
            /* below -88 the result may be 0 where it is 1e-36 */
            case_near((double)case_at(&y, r, 0, i), want, fabs(want) + 1e-28, 8);
        }
    op.y = gate; /* in place */
    op.y_stride = STRIDE;
    weft__cpu.model->silu_mul(case_dev[2], &op);
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < WIDTH; i++) assert_true(gate[r * STRIDE + i] == case_at(&y, r, 0, i));
    case_free(&y);
    free(up);
    free(gate);
}

static void silu_at_the_extremes(void **state)
{
    (void)state;
    const float gate[] = {0, -0.0f, 1e30f, -1e30f, INFINITY, NAN, -87, -88.5f, -104, 1e-40f, -700};
    enum { N = (int)WEFT__COUNT(gate) };
    float up[N];
    for (int i = 0; i < N; i++) up[i] = 1;
    struct weft__op_silu_mul op = {
        .gate = gate, .up = up, .x_stride = N, .rows = 1, .width = N, .y_stride = N};
    struct case_out y = case_run(run_silu_mul, &op, case_shape(1, 1, N, N, 0), NULL);
    for (int i = 0; i < N; i++) {
        double z = (double)gate[i], want = z / (1 + exp(-z)), got = (double)case_at(&y, 0, 0, i);
        if (isnan(want))
            assert_true(isnan(got));
        else if (isinf(want))
            assert_true(got == want);
        else
            case_near(got, want, fabs(want) + 1e-28, 8);
    }
    case_free(&y);
}

/* ---- moving rows ---- */

static void kv_goes_in_and_comes_out(void **state)
{
    (void)state;
    enum { PAGES = 5, ROW = 37, WIDTH = 20, COLUMN = 11, TOKENS = 50, STRIDE = 23 };
    const int32_t pages[] = {3, 0, 4, 2};
    int64_t slot[TOKENS];
    for (int t = 0; t < TOKENS; t++) slot[t] = pages[t / 16] * 16 + t % 16;
    float *x = case_floats(TOKENS * STRIDE), *cache = malloc(PAGES * 16 * ROW * sizeof(float));
    for (int d = 0; d < case_devices; d++) {
        for (int i = 0; i < PAGES * 16 * ROW; i++) cache[i] = -7;
        weft__cpu.model->kv_store(case_dev[d], &(struct weft__op_kv_store){.x = x,
                                                                           .x_stride = STRIDE,
                                                                           .tokens = TOKENS,
                                                                           .width = WIDTH,
                                                                           .slot = slot,
                                                                           .cache = cache,
                                                                           .row = ROW,
                                                                           .column = COLUMN});
        int written = 0;
        for (int i = 0; i < PAGES * 16 * ROW; i++) written += cache[i] != -7;
        assert_int_equal(written, TOKENS * WIDTH);
    }
    struct weft__op_kv_load op = {.cache = cache,
                                  .row = ROW,
                                  .column = COLUMN,
                                  .width = WIDTH,
                                  .count = TOKENS,
                                  .pages = pages,
                                  .y_stride = WIDTH + 1};
    struct case_out y =
        case_run(run_kv_load, &op, case_shape(TOKENS, 1, WIDTH, WIDTH + 1, 0), NULL);
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < WIDTH; i++) assert_true(case_at(&y, t, 0, i) == x[t * STRIDE + i]);
    case_free(&y);
    free(cache);
    free(x);
}

static void copy_gathers_and_repeats(void **state)
{
    (void)state;
    enum { ROWS = 300, HEADS = 3, WIDTH = 17, STRIDE = 60 };
    float *x = case_floats(ROWS * STRIDE);
    int32_t row[ROWS];
    for (int i = 0; i < ROWS; i++) row[i] = rand() % ROWS;
    for (int repeat = 0; repeat < 2; repeat++)
        for (int gather = 0; gather < 2; gather++) {
            struct weft__op_copy op = {.x = x,
                                       .x_stride = STRIDE,
                                       .x_head_stride = repeat ? 0 : WIDTH + 1,
                                       .rows = ROWS,
                                       .heads = HEADS,
                                       .width = WIDTH,
                                       .row = gather ? row : NULL,
                                       .y_stride = 70,
                                       .y_head_stride = 20};
            struct case_out y =
                case_run(run_copy, &op, case_shape(ROWS, HEADS, WIDTH, 70, 20), NULL);
            for (int r = 0; r < ROWS; r++)
                for (int h = 0; h < HEADS; h++)
                    for (int i = 0; i < WIDTH; i++)
                        assert_true(case_at(&y, r, h, i) ==
                                    x[(gather ? row[r] : r) * STRIDE + h * op.x_head_stride + i]);
            case_free(&y);
        }
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_matches_definition),  cmocka_unit_test(rope_table_is_exact_far_out),
        cmocka_unit_test(rope_rotates_pairs),       cmocka_unit_test(silu_matches_definition),
        cmocka_unit_test(silu_at_the_extremes),     cmocka_unit_test(kv_goes_in_and_comes_out),
        cmocka_unit_test(copy_gathers_and_repeats),
    };
    return cmocka_run_group_tests(tests, case_setup, case_teardown);
}
