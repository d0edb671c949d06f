/* Matrix products: each against the dot product of dev.h with ==, and against double precision. */
#include "dev_case.h"

static const struct case_kind kinds[] = {CASE_KINDS};

/* ---- linear ---- */

static void run_linear(struct weft__dev *dev, const void *arg, void *y)
{
    struct weft__op_linear op = *(const struct weft__op_linear *)arg;
    op.y = y;
    weft__cpu.model->linear(dev, &op);
}

static void check_product(const struct case_matrix *w, int64_t row, const float *x, float got)
{
    const float *value = w->value + row * w->m.cols;
    float want = case_dot(value, 1, x, w->m.cols) * w->factor[row];
    double exact = 0, size = 0;
    for (int64_t k = 0; k < w->m.cols; k++) {
        double part = w->exact[row * w->m.cols + k] * (double)x[k];
        exact += part;
        size += fabs(part);
    }
    if (w->m.bias != NULL) {
        want += w->m.bias[row];
        exact += (double)w->m.bias[row];
        size += fabs((double)w->m.bias[row]);
    }
    if (weft__f32_bits(got) != weft__f32_bits(want))
        fail_msg("%s %lldx%lld row %lld: %.9g, in order %.9g", weft_dtype_name(w->m.dtype),
                 (long long)w->m.rows, (long long)w->m.cols, (long long)row, (double)got,
                 (double)want);
    case_near((double)got, exact, size, 4 + (double)w->m.cols / 8);
}

static void check_linear(struct case_kind kind, int64_t rows, int64_t cols, int64_t tokens,
                         bool bias)
{
    struct case_matrix w = case_matrix(kind, rows, cols, bias);
    int64_t x_stride = cols + rand() % 3, y_stride = rows + rand() % 3;
    float *x = case_floats(tokens * x_stride);
    struct weft__op_linear op = {.w = &w.m,
                                 .count = 1,
                                 .x = x,
                                 .x_stride = x_stride,
                                 .tokens = tokens,
                                 .y_stride = y_stride};
    struct case_out y = case_run(run_linear, &op, case_shape(tokens, 1, rows, y_stride, 0), NULL);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t r = 0; r < rows; r++)
            check_product(&w, r, x + t * x_stride, case_at(&y, t, 0, r));
    case_free(&y);
    free(x);
    case_matrix_free(&w);
}

static void linear_follows_the_order(void **state)
{
    (void)state;
    const int64_t shapes[][3] = {
        {1, 1, 1},    {3, 5, 2},    {4, 8, 1},     {5, 16, 3},   {7, 17, 4},    {33, 31, 5},
        {9, 32, 1},   {6, 33, 2},   {37, 48, 50},  {2, 64, 97},  {12, 100, 7},  {40, 257, 6},
        {67, 770, 3}, {4, 1600, 2}, {5, 1537, 49}, {130, 40, 1}, {400, 700, 5},
    };
    for (size_t k = 0; k < WEFT__COUNT(kinds); k++)
        for (size_t i = 0; i < WEFT__COUNT(shapes); i++)
            check_linear(kinds[k], shapes[i][0], shapes[i][1], shapes[i][2], i % 2 == 0);
}

static void linear_without_rows_columns_tokens(void **state)
{
    (void)state;
    for (size_t k = 0; k < WEFT__COUNT(kinds); k++) {
        check_linear(kinds[k], 0, 16, 2, false);
        check_linear(kinds[k], 3, 16, 0, false);
        check_linear(kinds[k], 3, 0, 2, true);
        check_linear(kinds[k], 3, 0, 2, false);
        check_linear(kinds[k], 3, 0, 5, true);
    }
}

/* Several matrices of one input, of kinds and heights of their own. */
static void linears_lie_side_by_side(void **state)
{
    (void)state;
    enum { COLS = 80 };
    const int64_t heights[][3] = {{150, 37, 37}, {1, 0, 5}, {0, 0, 3}, {64, 8, 0}, {0, 0, 0}};
    for (size_t i = 0; i < WEFT__COUNT(heights); i++)
        for (int64_t tokens = 1; tokens <= 53; tokens += 13) {
            struct weft__matrix w[3];
            struct case_matrix of[3];
            int64_t first[3], rows = 0;
            for (int k = 0; k < 3; k++) {
                of[k] = case_matrix(kinds[(i + 3 * (size_t)k) % WEFT__COUNT(kinds)], heights[i][k],
                                    COLS, k == 1);
                w[k] = of[k].m;
                first[k] = rows;
                rows += w[k].rows;
            }
            float *x = case_floats(tokens * COLS);
            struct weft__op_linear op = {.w = w,
                                         .count = 3,
                                         .x = x,
                                         .x_stride = COLS,
                                         .tokens = tokens,
                                         .y_stride = rows + 1};
            struct case_out y =
                case_run(run_linear, &op, case_shape(tokens, 1, rows, rows + 1, 0), NULL);
            for (int64_t t = 0; t < tokens; t++)
                for (int k = 0; k < 3; k++)
                    for (int64_t r = 0; r < w[k].rows; r++)
                        check_product(&of[k], r, x + t * COLS, case_at(&y, t, 0, first[k] + r));
            case_free(&y);
            free(x);
            for (int k = 0; k < 3; k++) case_matrix_free(&of[k]);
        }
}

/* A row's bits alone, and among any number of others. */
static void linear_rows_do_not_see_the_batch(void **state)
{
    (void)state;
    enum { ROWS = 70, COLS = 800, TOKENS = 101 };
    for (size_t k = 0; k < WEFT__COUNT(kinds); k++) {
        struct case_matrix w = case_matrix(kinds[k], ROWS, COLS, false);
        float *x = case_floats(TOKENS * COLS), *alone = malloc(TOKENS * ROWS * sizeof(float));
        float *batch = malloc(TOKENS * ROWS * sizeof(float));
        struct weft__op_linear op = {
            .w = &w.m, .count = 1, .x_stride = COLS, .y_stride = ROWS, .tokens = 1};
        for (int t = 0; t < TOKENS; t++) {
            op.x = x + t * COLS;
            op.y = alone + t * ROWS;
            weft__cpu.model->linear(case_dev[0], &op);
        }
        op.x = x;
        op.y = batch;
        for (op.tokens = 2; op.tokens <= TOKENS; op.tokens += op.tokens < 18 ? 1 : 23) {
            weft__cpu.model->linear(case_dev[1], &op);
            assert_memory_equal(batch, alone, (size_t)op.tokens * ROWS * sizeof(float));
        }
        free(batch);
        free(alone);
        free(x);
        case_matrix_free(&w);
    }
}

static float infinite(int i) { return i % 3 == 0 ? INFINITY : i % 3 == 1 ? -INFINITY : NAN; }

/* What is not finite stays so, whatever the kernel. */
static void linear_passes_nan_and_infinity(void **state)
{
    (void)state;
    for (size_t k = 0; k < WEFT__COUNT(kinds); k++)
        for (int64_t tokens = 1; tokens <= 4; tokens++) {
            struct case_matrix w = case_matrix(kinds[k], 5, 45, false);
            float *x = case_floats(tokens * 45), y[4 * 5];
            for (int t = 0; t < tokens; t++) x[t * 45 + 44 - 11 * t] = infinite(t);
            struct weft__op_linear op = {.w = &w.m,
                                         .count = 1,
                                         .x = x,
                                         .x_stride = 45,
                                         .tokens = tokens,
                                         .y = y,
                                         .y_stride = 5};
            for (int d = 0; d < case_devices; d++) {
                weft__cpu.model->linear(case_dev[d], &op);
                for (int64_t i = 0; i < tokens * 5; i++) {
                    float want =
                        case_dot(w.value + i % 5 * 45, 1, x + i / 5 * 45, 45) * w.factor[i % 5];
                    assert_true(y[i] == want || (isnan(y[i]) && isnan(want)));
                    assert_true(isnan(y[i]) || isinf(y[i]));
                }
            }
            free(x);
            case_matrix_free(&w);
        }
}

/* ---- INT8 inputs ---- */

/* x rounded and multiplied as dev.h says, a column at a time. */
static float int8_dot(const struct case_matrix *w, int64_t row, const float *x)
{
    float lane[8] = {0};
    for (int64_t k = 0; k < w->m.cols; k += 8) {
        float largest = 0;
        for (int64_t i = k / 16 * 16; i < weft__min(k / 16 * 16 + 16, w->m.cols); i++)
            if (!(fabsf(x[i]) <= 0x1p127f))
                largest = NAN;
            else if (fabsf(x[i]) > largest)
                largest = fabsf(x[i]);
        bool zero = largest < 0x1p-100f;
        double sum = 0; /* of integers: doubled codes times codes */
        for (int64_t i = k; i < weft__min(k + 8, w->m.cols); i++)
            if (!zero && !isnan(largest))
                sum += 2 * (double)case_code(&w->m, row, i) *
                       nearbyint((double)(x[i] * (127.0f / largest)));
        float scale = case_scale(&w->m, row, k) * (zero ? 0 : largest / 127.0f * 0.5f);
        lane[k / 8 % 8] = fmaf((float)sum, scale, lane[k / 8 % 8]);
    }
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
           ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static struct weft__int8 *round_rows(struct weft__dev *dev, const float *x, int64_t rows,
                                     int64_t width)
{
    int64_t count = rows * weft__ceil_div(width, WEFT__INT8_COLUMNS) + 1;
    struct weft__int8 *y = aligned_alloc(64, (size_t)count * sizeof *y);
    memset(y, 0xaa, (size_t)count * sizeof *y);
    weft__cpu.model->round_int8(
        dev, &(struct weft__op_round_int8){
                 .x = x, .x_stride = width, .rows = rows, .width = width, .y = y});
    return y;
}

static void check_int8(int64_t rows, int64_t cols, int64_t tokens, bool bias, const float *x)
{
    struct case_matrix w =
        case_matrix((struct case_kind){WEFT_F4_E2M1, WEFT__SCALE_NVFP4}, rows, cols, bias);
    float *got = malloc((size_t)(tokens * rows + 1) * sizeof *got);
    for (int d = 0; d < case_devices; d++) {
        struct weft__int8 *codes = round_rows(case_dev[d], x, tokens, cols);
        struct weft__op_linear op = {
            .w = &w.m, .count = 1, .x_int8 = codes, .tokens = tokens, .y = got, .y_stride = rows};
        weft__cpu.model->linear(case_dev[d], &op);
        for (int64_t i = 0; i < tokens * rows; i++) {
            int64_t row = i % rows;
            float want = int8_dot(&w, row, x + i / rows * cols) * w.m.scale_global;
            if (bias) want += w.m.bias[row];
            if (weft__f32_bits(got[i]) != weft__f32_bits(want) && !(isnan(got[i]) && isnan(want)))
                fail_msg("INT8 %lldx%lld, %lld tokens, device %d, element %lld: %.9g, not %.9g",
                         (long long)rows, (long long)cols, (long long)tokens, d, (long long)i,
                         (double)got[i], (double)want);
        }
        free(codes);
    }
    free(got);
    case_matrix_free(&w);
}

static void int8_follows_the_order(void **state)
{
    (void)state;
    const int64_t shapes[][3] = {
        {1, 16, 1},   {3, 64, 1},     {5, 80, 2},   {7, 176, 3},  {33, 128, 4},  {37, 448, 5},
        {6, 1600, 6}, {70, 1552, 7},  {4, 3104, 8}, {40, 256, 9}, {12, 112, 13}, {67, 768, 50},
        {2, 64, 101}, {205, 3120, 3}, {5, 45, 2},   {0, 16, 2},   {3, 16, 0},    {3, 0, 5},
    };
    for (size_t i = 0; i < WEFT__COUNT(shapes); i++) {
        float *x = case_floats(shapes[i][1] * shapes[i][2]);
        check_int8(shapes[i][0], shapes[i][1], shapes[i][2], i % 2 == 0, x);
        free(x);
    }
}

/* Blocks of zeros, of tiny, huge and unequal values; what is not finite makes its rows NaN. */
static void int8_blocks_at_the_edges(void **state)
{
    (void)state;
    enum { COLS = 16 * 12, TOKENS = 3 };
    const float largest[] = {0,  1e-38f, 0x1p-100f, 0x1p-101f, 1e30f, 3e38f,
                             -1, 127.5f, 1e-10f,    -2,        5,     1};
    float *x = case_floats(TOKENS * COLS);
    for (int i = 0; i < COLS; i++) x[i] = i % 16 == 0 ? largest[i / 16] : x[i] * largest[i / 16];
    x[COLS + 17] = INFINITY;
    x[2 * COLS + 40] = NAN;
    check_int8(9, COLS, TOKENS, true, x);
    x[16 * 5] = 1; /* without the one that is too large */
    check_int8(9, COLS, 1, true, x);
    free(x);
}

/* Every code of the narrow types, NaN included. */
static void every_code_decodes(void **state)
{
    (void)state;
    uint8_t codes[256], scales[256];
    for (int i = 0; i < 256; i++) codes[i] = scales[i] = (uint8_t)i;
    struct weft__matrix fp8 = {
        .dtype = WEFT_F8_E4M3, .rows = 1, .cols = 256, .data = codes, .scale_global = 1};
    struct weft__matrix fp4 = {.dtype = WEFT_F4_E2M1,
                               .rows = 256,
                               .cols = 16,
                               .data = codes,
                               .row_bytes = 0,
                               .scale_kind = WEFT__SCALE_NVFP4,
                               .scale = scales,
                               .scale_row_bytes = 1,
                               .scale_global = 1};
    for (int d = 0; d < case_devices; d++) {
        float y[256];
        const int32_t zero = 0;
        struct weft__op_embed op = {.table = &fp8, .token = &zero, .tokens = 1, .y = y};
        weft__cpu.model->embed(case_dev[d], &op);
        for (int i = 0; i < 256; i++) {
            float want = weft__f32_from_e4m3((uint8_t)i);
            assert_true(y[i] == want || (isnan(y[i]) && isnan(want)));
        }
        op.table = &fp4;
        for (int32_t row = 0; row < 256; row++) {
            op.token = &row;
            for (int half = 0; half < 16; half++) {
                fp4.data = codes + 16 * half; /* codes 16 half .. + 7, both nibbles */
                weft__cpu.model->embed(case_dev[d], &op);
                for (int i = 0; i < 16; i++) {
                    float want =
                        weft__f32_from_e2m1((uint8_t)(fp4.data[i / 2] >> (i % 2 * 4) & 15)) *
                        weft__f32_from_e4m3((uint8_t)row);
                    assert_true(y[i] == want || (isnan(y[i]) && isnan(want)));
                }
            }
        }
    }
}

/* ---- embed ---- */

static void run_embed(struct weft__dev *dev, const void *arg, void *y)
{
    struct weft__op_embed op = *(const struct weft__op_embed *)arg;
    op.y = y;
    weft__cpu.model->embed(dev, &op);
}

static void embed_reads_rows(void **state)
{
    (void)state;
    const int32_t token[] = {3, 0, 6, 6, 1};
    for (size_t k = 0; k < WEFT__COUNT(kinds); k++)
        for (int64_t cols = 1; cols < 300; cols += 37) {
            struct case_matrix w = case_matrix(kinds[k], 7, cols, false);
            struct weft__op_embed op = {.table = &w.m, .token = token, .tokens = 5};
            struct case_out y = case_run(run_embed, &op, case_shape(5, 1, cols, cols, 0), NULL);
            for (int t = 0; t < 5; t++)
                for (int64_t i = 0; i < cols; i++)
                    assert_true(case_at(&y, t, 0, i) ==
                                w.value[token[t] * cols + i] * w.factor[token[t]]);
            case_free(&y);
            case_matrix_free(&w);
        }
}

/* ---- linear_heads ---- */

static void run_heads(struct weft__dev *dev, const void *arg, void *y)
{
    struct weft__op_linear_heads op = *(const struct weft__op_linear_heads *)arg;
    op.y = y;
    weft__cpu.model->linear_heads(dev, &op);
}

static void check_heads(struct case_kind kind, int64_t tokens, int64_t rows, int64_t cols,
                        bool transposed)
{
    const int64_t heads = 3, first = 2, step = rows + 1, total = first + heads * step;
    struct case_matrix w = case_matrix(kind, total, cols, !transposed);
    int64_t in = transposed ? rows : cols, out = transposed ? cols : rows;
    int64_t x_head = in + 2, x_stride = heads * x_head + 1;
    int64_t y_head = out + 1, y_stride = heads * y_head + 2;
    float *x = case_floats(tokens * x_stride), *column = case_floats(rows);
    struct weft__op_linear_heads op = {.w = &w.m,
                                       .heads = heads,
                                       .first_row = first,
                                       .row_step = step,
                                       .rows = rows,
                                       .transposed = transposed,
                                       .x = x,
                                       .x_stride = x_stride,
                                       .x_head_stride = x_head,
                                       .tokens = tokens,
                                       .y_stride = y_stride,
                                       .y_head_stride = y_head};
    struct case_out y =
        case_run(run_heads, &op, case_shape(tokens, heads, out, y_stride, y_head), NULL);
    for (int64_t i = 0; i < tokens * heads * out; i++) {
        int64_t t = i / (heads * out), h = i / out % heads, o = i % out;
        int64_t row = first + h * step;
        const float *xh = x + t * x_stride + h * x_head;
        if (!transposed) {
            check_product(&w, row + o, xh, case_at(&y, t, h, o));
            continue;
        }
        double exact = 0, size = 0;
        for (int64_t r = 0; r < rows; r++) {
            double part = w.exact[(row + r) * cols + o] * (double)xh[r];
            exact += part;
            size += fabs(part);
            column[r] = w.value[(row + r) * cols + o];
            if (kind.scale == WEFT__SCALE_ROW) column[r] *= case_scale(&w.m, row + r, 0);
        }
        float want = case_dot(column, 1, xh, rows) * w.m.scale_global;
        assert_true(case_at(&y, t, h, o) == want);
        case_near((double)want, exact, size, 4 + (double)rows / 8);
    }
    case_free(&y);
    free(column);
    free(x);
    case_matrix_free(&w);
}

static void heads_follow_the_order(void **state)
{
    (void)state;
    for (size_t k = 0; k < WEFT__COUNT(kinds); k++)
        for (int transposed = 0; transposed < 2; transposed++) {
            check_heads(kinds[k], 1, 16, 64, transposed);
            check_heads(kinds[k], 3, 13, 45, transposed);
            check_heads(kinds[k], 50, 9, 70, transposed);
            check_heads(kinds[k], 2, 1, 3, transposed);
        }
    check_heads(kinds[2], 2, 900, 33, true);  /* longer than a panel */
    check_heads(kinds[2], 1, 41, 1600, true); /* wider than the sums */
    check_heads(kinds[2], 0, 4, 8, true);
    check_heads(kinds[2], 2, 0, 8, true); /* an empty sum */
}

/* Sums that underflow to -0: a padded lane becomes +0, and so does the result, everywhere alike. */
static void padding_has_one_sign(void **state)
{
    (void)state;
    enum { LONGEST = 17, TOKENS = 5 };
    float w[LONGEST], x[TOKENS * LONGEST], y[TOKENS];
    for (int i = 0; i < LONGEST; i++) w[i] = 1e-30f;
    for (int i = 0; i < TOKENS * LONGEST; i++) x[i] = -1e-30f;
    for (int64_t n = 1; n <= LONGEST; n++)
        for (int64_t tokens = 1; tokens <= TOKENS; tokens++)
            for (int d = 0; d < case_devices; d++)
                for (int transposed = 0; transposed < 2; transposed++) {
                    struct weft__matrix m = {.dtype = WEFT_F32,
                                             .rows = transposed ? n : 1,
                                             .cols = transposed ? 1 : n,
                                             .data = (const uint8_t *)w,
                                             .row_bytes = transposed ? 4 : 4 * n,
                                             .scale_global = 1};
                    struct weft__op_linear_heads op = {.w = &m,
                                                       .heads = 1,
                                                       .rows = m.rows,
                                                       .transposed = transposed,
                                                       .x = x,
                                                       .x_stride = LONGEST,
                                                       .tokens = tokens,
                                                       .y = y,
                                                       .y_stride = 1};
                    weft__cpu.model->linear_heads(case_dev[d], &op);
                    for (int64_t t = 0; t < tokens; t++)
                        assert_int_equal(weft__f32_bits(y[t]), n % 8 == 0 ? 0x80000000u : 0);
                }
}

/* ---- linear_experts ---- */

static void run_experts(struct weft__dev *dev, const void *arg, void *y)
{
    struct weft__op_linear_experts op = *(const struct weft__op_linear_experts *)arg;
    op.y = y;
    weft__cpu.model->linear_experts(dev, &op);
}

static void check_experts(struct case_kind kind, const int32_t *offset, int64_t rows, int64_t cols,
                          bool gathered)
{
    enum { EXPERTS = 6, TOKENS = 9 };
    struct case_matrix w[EXPERTS];
    struct weft__matrix m[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) {
        w[e] = case_matrix(kind, rows, cols, e % 2 == 0);
        w[e].m.scale_global *= (float)(1 << e); /* exact, so that its order does not matter */
        for (int64_t r = 0; r < rows; r++) w[e].factor[r] *= (float)(1 << e);
        for (int64_t i = 0; i < rows * cols; i++) w[e].exact[i] *= 1 << e;
        m[e] = w[e].m;
    }
    int64_t pairs = offset[EXPERTS];
    int32_t *x_row = malloc((size_t)(pairs + 1) * sizeof *x_row);
    for (int64_t i = 0; i < pairs; i++) x_row[i] = gathered ? rand() % TOKENS : (int32_t)i;
    float *x = case_floats((pairs + TOKENS) * cols);
    struct weft__op_linear_experts op = {.w = m,
                                         .offset = offset,
                                         .experts = EXPERTS,
                                         .x = x,
                                         .x_stride = cols,
                                         .x_row = gathered ? x_row : NULL,
                                         .y_stride = rows + 1};
    struct case_out y = case_run(run_experts, &op, case_shape(pairs, 1, rows, rows + 1, 0), NULL);
    for (int e = 0; e < EXPERTS; e++)
        for (int32_t i = offset[e]; i < offset[e + 1]; i++)
            for (int64_t r = 0; r < rows; r++)
                check_product(&w[e], r, x + x_row[i] * cols, case_at(&y, i, 0, r));
    case_free(&y);
    free(x);
    free(x_row);
    for (int e = 0; e < EXPERTS; e++) case_matrix_free(&w[e]);
}

static void experts_take_their_rows(void **state)
{
    (void)state;
    const int32_t offsets[][7] = {
        {0, 0, 0, 0, 0, 0, 0},       {0, 1, 1, 2, 2, 2, 2}, {0, 0, 3, 3, 5, 5, 9},
        {0, 60, 61, 63, 63, 63, 64}, {0, 1, 2, 3, 4, 5, 6},
    };
    for (size_t k = 0; k < WEFT__COUNT(kinds); k++)
        for (size_t i = 0; i < WEFT__COUNT(offsets); i++) {
            check_experts(kinds[k], offsets[i], 37, 48, true);
            check_experts(kinds[k], offsets[i], 10, 23, false);
        }
    check_experts(kinds[0], offsets[2], 0, 8, true);
    check_experts(kinds[0], offsets[2], 8, 0, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_follows_the_order),
        cmocka_unit_test(linear_without_rows_columns_tokens),
        cmocka_unit_test(linear_rows_do_not_see_the_batch),
        cmocka_unit_test(linear_passes_nan_and_infinity),
        cmocka_unit_test(linears_lie_side_by_side),
        cmocka_unit_test(int8_follows_the_order),
        cmocka_unit_test(int8_blocks_at_the_edges),
        cmocka_unit_test(every_code_decodes),
        cmocka_unit_test(embed_reads_rows),
        cmocka_unit_test(heads_follow_the_order),
        cmocka_unit_test(padding_has_one_sign),
        cmocka_unit_test(experts_take_their_rows),
    };
    return cmocka_run_group_tests(tests, case_setup, case_teardown);
}
