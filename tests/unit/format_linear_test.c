/* Linears in every supported format, and every way in which their tensors can be wrong. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/numerics.h"
#include "format/format.h"
#include "format_files.h"

static char dir[64], path[256];
static struct build file;
static struct weft__checkpoint *checkpoint;

static int setup(void **state)
{
    (void)state;
    make_directory(dir);
    join(dir, "model.safetensors", path);
    memset(&file, 0, sizeof file);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    weft__checkpoint_close(checkpoint);
    checkpoint = NULL;
    remove_directory(dir);
    return 0;
}

static void open_file(void)
{
    weft_error err = {0};
    build_write(&file, path);
    if (weft__checkpoint_open(path, &checkpoint, &err) != WEFT_OK) fail_msg("%s", err.text);
}

static struct weft__linear_view linear(const char *module, int64_t out, int64_t in)
{
    struct weft__linear_view view = {0};
    weft_error err = {0};
    if (weft__linear_open(checkpoint, module, out, in, &view, &err) != WEFT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(view.out, out);
    assert_int_equal(view.in, in);
    return view;
}

static void add_f32(const char *name, const char *shape, float value)
{
    build_add(&file, name, "F32", shape, &value, 4);
}

static void plain_types(void **state)
{
    (void)state;
    build_add(&file, "a.weight", "F32", "[3,4]", NULL, 48);
    build_add(&file, "a.bias", "BF16", "[3]", NULL, 6);
    build_add(&file, "b.weight", "BF16", "[3,4]", NULL, 24);
    build_add(&file, "c.weight", "F16", "[3,4]", NULL, 24);
    build_add(&file, "c.k_scale", "F32", "[]", NULL, 4);
    open_file();
    struct weft__linear_view a = linear("a", 3, 4), b = linear("b", 3, 4), c = linear("c", 3, 4);
    assert_int_equal(a.kind, WEFT__LINEAR_PLAIN);
    assert_int_equal(a.dtype, WEFT_F32);
    assert_int_equal(a.row_bytes, 16);
    assert_string_equal(a.bias.name, "a.bias");
    assert_null(a.scale.name);
    assert_int_equal(b.dtype, WEFT_BF16);
    assert_int_equal(b.row_bytes, 8);
    assert_null(b.bias.name);
    assert_true(b.scale_global == 1 && b.input_scale == 0);
    assert_int_equal(c.dtype, WEFT_F16);
    assert_int_equal(weft__linear_scale_count(&c), 0);
    assert_int_equal(weft__linear_scale_f32(&c, NULL, NULL), WEFT_OK);
    assert_int_equal(weft__linear_check(&c, 0, 3, NULL), WEFT_OK);
}

static void nvfp4(void **state)
{
    (void)state;
    build_add(&file, "m.weight", "U8", "[3,16]", NULL, 48);
    build_add(&file, "m.weight_scale", "F8_E4M3", "[3,2]", NULL, 6);
    add_f32("m.weight_scale_2", "[]", 0.375f);
    add_f32("m.input_scale", "[1]", 0.0625f);
    build_add(&file, "c.weight_packed", "U8", "[3,16]", NULL, 48);
    build_add(&file, "c.weight_scale", "F8_E4M3", "[3,2]", NULL, 6);
    add_f32("c.weight_global_scale", "[1]", 3);
    add_f32("c.input_global_scale", "[1]", 8);
    build_add(&file, "w.weight", "U8", "[3,16]", NULL, 48);
    build_add(&file, "w.weight_scale", "F8_E4M3", "[3,2]", NULL, 6);
    add_f32("w.weight_scale_2", "[1]", 2);
    build_add(&file, "f.weight", "F4", "[3,32]", NULL, 48);
    build_add(&file, "f.weight_scale", "F8_E4M3", "[3,2]", NULL, 6);
    add_f32("f.weight_scale_2", "[1]", 2);
    open_file();
    const struct weft__linear_view views[] = {linear("m", 3, 32), linear("c", 3, 32),
                                              linear("w", 3, 32), linear("f", 3, 32)};
    const float global[] = {0.375f, 1.0f / 3, 2, 2}, input[] = {0.0625f, 0.125f, 0, 0};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(views[i].kind, WEFT__LINEAR_NVFP4);
        assert_int_equal(views[i].dtype, WEFT_F4_E2M1);
        assert_int_equal(views[i].row_bytes, 16);
        assert_int_equal(views[i].scale.shape[1], 2);
        assert_true(views[i].scale_global == global[i]);
        assert_true(views[i].input_scale == input[i]);
        assert_int_equal(weft__linear_check(&views[i], 0, 3, NULL), WEFT_OK);
    }
}

static void fp8_kinds(void **state)
{
    (void)state;
    const uint16_t bf16[3] = {0x3f80, 0x4000, 0x3f00};
    const float f32[6] = {1, 2, 3, 4, 5, 6};
    const uint8_t e8m0[6] = {127, 128, 126, 127, 127, 127};
    build_add(&file, "t.weight", "F8_E4M3", "[130,300]", NULL, 39000);
    add_f32("t.weight_scale", "[]", 0.5f);
    add_f32("t.input_scale", "[]", 0.25f);
    build_add(&file, "r.weight", "F8_E4M3", "[3,300]", NULL, 900);
    build_add(&file, "r.weight_scale", "BF16", "[3,1]", bf16, 6);
    build_add(&file, "v.weight", "F8_E4M3", "[3,300]", NULL, 900);
    build_add(&file, "v.weight_scale", "F32", "[3]", f32, 12);
    build_add(&file, "b.weight", "F8_E4M3", "[130,300]", NULL, 39000);
    build_add(&file, "b.weight_scale_inv", "F32", "[2,3]", f32, 24);
    build_add(&file, "e.weight", "F8_E4M3", "[130,300]", NULL, 39000);
    build_add(&file, "e.weight_scale", "U8", "[2,3]", e8m0, 6);
    build_add(&file, "s.weight", "F8_E4M3", "[64,64]", NULL, 4096);
    build_add(&file, "s.weight_scale_inv", "F32", "[1,1]", f32, 4);
    open_file();
    struct weft__linear_view v = linear("t", 130, 300);
    assert_int_equal(v.kind, WEFT__LINEAR_FP8_TENSOR);
    assert_true(v.scale_global == 0.5f && v.input_scale == 0.25f);
    assert_int_equal(v.row_bytes, 300);

    static const struct {
        const char *module;
        int64_t out, in;
        enum weft__linear_kind kind;
        float scale[6];
        int count;
    } cases[] = {{"r", 3, 300, WEFT__LINEAR_FP8_CHANNEL, {1, 2, 0.5f}, 3},
                 {"v", 3, 300, WEFT__LINEAR_FP8_CHANNEL, {1, 2, 3}, 3},
                 {"b", 130, 300, WEFT__LINEAR_FP8_BLOCK, {1, 2, 3, 4, 5, 6}, 6},
                 {"e", 130, 300, WEFT__LINEAR_FP8_BLOCK, {1, 2, 0.5f, 1, 1, 1}, 6},
                 {"s", 64, 64, WEFT__LINEAR_FP8_BLOCK, {1}, 1}};
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        float scale[6];
        v = linear(cases[i].module, cases[i].out, cases[i].in);
        assert_int_equal(v.kind, cases[i].kind);
        assert_int_equal(v.dtype, WEFT_F8_E4M3);
        assert_true(v.scale_global == 1);
        assert_int_equal(weft__linear_scale_count(&v), cases[i].count);
        assert_int_equal(weft__linear_scale_f32(&v, scale, NULL), WEFT_OK);
        assert_memory_equal(scale, cases[i].scale, (size_t)cases[i].count * 4);
    }
}

static void stacked_experts(void **state)
{
    (void)state;
    float gate_up[3][4][5], down[3][5][2];
    for (int i = 0; i < 60; i++) gate_up[i / 20][i / 5 % 4][i % 5] = (float)i;
    for (int i = 0; i < 30; i++) down[i / 10][i / 2 % 5][i % 2] = (float)(100 + i);
    build_add(&file, "x.gate_up_proj", "F32", "[3,4,5]", gate_up, sizeof gate_up);
    build_add(&file, "x.down_proj", "F32", "[3,5,2]", down, sizeof down);
    build_add(&file, "y.1.up_proj.weight", "F32", "[2,5]", gate_up, 40);
    build_add(&file, "q.gate_up_proj", "F8_E4M3", "[3,4,5]", NULL, 60);
    open_file();
    struct weft__linear_view v;
    weft_error err;
    struct weft__expert_ref ref = {"x", "gate_proj", 1, 3, 2, 5};
    assert_int_equal(weft__linear_open_expert(checkpoint, &ref, &v, &err), WEFT_OK);
    assert_int_equal(v.kind, WEFT__LINEAR_PLAIN);
    assert_int_equal(v.row_bytes, 20);
    assert_memory_equal(v.weight.data, gate_up[1][0], 40);
    ref.projection = "up_proj";
    assert_int_equal(weft__linear_open_expert(checkpoint, &ref, &v, &err), WEFT_OK);
    assert_memory_equal(v.weight.data, gate_up[1][2], 40);
    ref = (struct weft__expert_ref){"x", "down_proj", 2, 3, 5, 2};
    assert_int_equal(weft__linear_open_expert(checkpoint, &ref, &v, &err), WEFT_OK);
    float read[10];
    assert_int_equal(weft__tensor_f32(&v.weight, read, &err), WEFT_OK);
    assert_memory_equal(read, down[2], 40);
    assert_int_equal(v.weight.dims, 2);
    assert_int_equal(v.weight.shape[0], 5);

    ref = (struct weft__expert_ref){"y", "up_proj", 1, 3, 2, 5};
    assert_int_equal(weft__linear_open_expert(checkpoint, &ref, &v, &err), WEFT_OK);
    ref.expert = 2;
    assert_int_equal(weft__linear_open_expert(checkpoint, &ref, &v, &err), WEFT_NOT_FOUND);
    assert_non_null(strstr(err.text, "'y.2.up_proj.weight'"));
    ref = (struct weft__expert_ref){"x", "up_proj", 1, 4, 2, 5};
    assert_int_equal(weft__linear_open_expert(checkpoint, &ref, &v, &err), WEFT_FORMAT);
    assert_non_null(strstr(err.text, "[4, 4, 5]"));
    ref = (struct weft__expert_ref){"q", "up_proj", 1, 3, 2, 5};
    assert_int_equal(weft__linear_open_expert(checkpoint, &ref, &v, &err), WEFT_UNSUPPORTED);
}

/* One wrong linear of module "m", expected [3, 32]: its tensors as "name dtype shape bytes", and
 * what the error says. Bytes are all 1 unless a scalar follows. */
static const struct {
    struct {
        const char *name, *dtype, *shape;
        size_t bytes;
        float value; /* when bytes is 4 */
    } tensor[4];
    weft_status status;
    const char *piece[3];
} wrong[] = {
#define CODES                             \
    {                                     \
        "m.weight", "U8", "[3,16]", 48, 0 \
    }
#define SCALES                                     \
    {                                              \
        "m.weight_scale", "F8_E4M3", "[3,2]", 6, 0 \
    }
#define GLOBAL(value)                             \
    {                                             \
        "m.weight_scale_2", "F32", "[]", 4, value \
    }
#define FP8                                    \
    {                                          \
        "m.weight", "F8_E4M3", "[3,32]", 96, 0 \
    }
    {{{"x", "U8", "[1]", 1, 0}}, WEFT_NOT_FOUND, {"'m.weight'", "missing"}},
    {{{"m.weight", "F32", "[32,3]", 384, 0}}, WEFT_FORMAT, {"'m.weight'", "[32, 3]", "[3, 32]"}},
    {{{"m.weight", "F32", "[96]", 384, 0}}, WEFT_FORMAT, {"'m.weight'", "[96]", "[3, 32]"}},
    {{{"m.weight", "F32", "[3,32]", 384, 0}, {"m.bias", "F32", "[32]", 128, 0}},
     WEFT_FORMAT,
     {"'m.bias'", "[32]", "[3]"}},
    {{{"m.weight", "F32", "[3,32]", 384, 0}, {"m.bias", "I8", "[3]", 3, 0}},
     WEFT_UNSUPPORTED,
     {"'m.bias'", "I8"}},
    {{{"m.weight", "BF16", "[3,32]", 192, 0}, SCALES}, WEFT_FORMAT, {"'m.weight_scale'", "BF16"}},
    {{CODES}, WEFT_FORMAT, {"'m.weight'", "U8", ".weight_scale"}},
    {{CODES, SCALES}, WEFT_FORMAT, {"'m.weight'", ".weight_scale_2"}},
    {{CODES, SCALES, GLOBAL(NAN)}, WEFT_FORMAT, {"'m.weight_scale_2'", "nan"}},
    {{CODES, SCALES, GLOBAL(0)}, WEFT_FORMAT, {"'m.weight_scale_2'", "0"}},
    {{CODES, SCALES, GLOBAL(-1)}, WEFT_FORMAT, {"'m.weight_scale_2'", "-1"}},
    {{CODES, SCALES, GLOBAL(INFINITY)}, WEFT_FORMAT, {"'m.weight_scale_2'", "inf"}},
    {{CODES, SCALES, {"m.weight_scale_2", "F32", "[2]", 8, 0}},
     WEFT_FORMAT,
     {"'m.weight_scale_2'", "[2]", "one number"}},
    {{CODES, SCALES, {"m.weight_scale_2", "I32", "[]", 4, 1}},
     WEFT_FORMAT,
     {"'m.weight_scale_2'", "I32", "one number"}},
    {{CODES, SCALES, GLOBAL(1), {"m.input_scale", "F32", "[]", 4, NAN}},
     WEFT_FORMAT,
     {"'m.input_scale'", "nan"}},
    {{CODES, {"m.weight_scale", "F8_E4M3", "[3,1]", 3, 0}, GLOBAL(1)},
     WEFT_FORMAT,
     {"'m.weight_scale'", "[3, 1]", "[3, 2]"}},
    {{{"m.weight", "U8", "[3,32]", 96, 0}, SCALES, GLOBAL(1)},
     WEFT_FORMAT,
     {"'m.weight'", "[3, 32]", "[3, 16]"}},
    {{CODES, {"m.weight_scale", "U8", "[3,1]", 3, 0}}, WEFT_UNSUPPORTED, {"MXFP4", "NVFP4"}},
    {{CODES, {"m.weight_scale", "F32", "[3,2]", 24, 0}},
     WEFT_UNSUPPORTED,
     {"'m.weight_scale'", "F32"}},
    {{{"m.weight_packed", "U8", "[3,16]", 48, 0}, SCALES}, WEFT_FORMAT, {"weight_global_scale"}},
    {{{"m.weight_packed", "U8", "[3,16]", 48, 0},
      SCALES,
      {"m.weight_global_scale", "F32", "[1]", 4, 1e-45f}},
     WEFT_FORMAT,
     {"'m.weight_global_scale'", "reciprocal"}},
    {{{"m.weight_packed", "I32", "[3,4]", 48, 0}}, WEFT_UNSUPPORTED, {"'m.weight_packed'", "I32"}},
    {{FP8}, WEFT_FORMAT, {"'m.weight'", "weight_scale_inv"}},
    {{FP8, {"m.weight_scale", "F32", "[32]", 128, 0}},
     WEFT_FORMAT,
     {"'m.weight_scale'", "[32]", "[3, 1]"}},
    {{FP8, {"m.weight_scale", "F32", "[]", 4, NAN}}, WEFT_FORMAT, {"'m.weight_scale'", "nan"}},
    {{FP8, {"m.weight_scale", "F8_E8M0", "[3,1]", 3, 0}}, WEFT_UNSUPPORTED, {"MXFP8"}},
    {{FP8, {"m.weight_scale", "I8", "[3,1]", 3, 0}}, WEFT_FORMAT, {"'m.weight_scale'", "I8"}},
    {{FP8, {"m.weight_scale", "Q1", "[4611686018427387904,4611686018427387904]", 3, 0}},
     WEFT_FORMAT,
     {"'m.weight_scale'", "unknown type"}},
    {{{"m.weight", "F8_E5M2", "[3,32]", 96, 0}}, WEFT_UNSUPPORTED, {"F8_E5M2", "E4M3"}},
    {{{"m.weight", "I8", "[3,32]", 96, 0}}, WEFT_UNSUPPORTED, {"'m.weight'", "I8"}},
    {{{"m.weight", "Z3", "[3,32]", 96, 0}}, WEFT_UNSUPPORTED, {"'m.weight'", "unknown type"}},
    {{{"m.qweight", "I32", "[4,3]", 48, 0}}, WEFT_UNSUPPORTED, {"'m.qweight'", "GPTQ", "NVFP4"}},
    {{{"m.weight", "U8", "[48,16]", 768, 0}, {"m.pre_quant_scale", "BF16", "[32]", 64, 0}},
     WEFT_UNSUPPORTED,
     {"'m.pre_quant_scale'", "AWQ"}},
    {{{"m.weight", "U8", "[48,1]", 48, 0}, {"m.weight.absmax", "U8", "[1]", 1, 0}},
     WEFT_UNSUPPORTED,
     {"bitsandbytes"}},
    {{FP8, {"m.weight_zero_point", "F32", "[]", 4, 0}}, WEFT_UNSUPPORTED, {"asymmetric"}},
};

static void wrong_tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < WEFT__COUNT(wrong); i++) {
        struct weft__linear_view view;
        weft_error err = {0};
        memset(&file, 0, sizeof file);
        for (int t = 0; t < 4 && wrong[i].tensor[t].name != NULL; t++)
            build_add(&file, wrong[i].tensor[t].name, wrong[i].tensor[t].dtype,
                      wrong[i].tensor[t].shape,
                      wrong[i].tensor[t].bytes == 4 ? &wrong[i].tensor[t].value : NULL,
                      wrong[i].tensor[t].bytes);
        open_file();
        weft_status status = weft__linear_open(checkpoint, "m", 3, 32, &view, &err);
        if (status != wrong[i].status) print_error("case %zu: '%s'\n", i, err.text);
        assert_int_equal(status, wrong[i].status);
        for (int n = 0; n < 3 && wrong[i].piece[n] != NULL; n++)
            if (strstr(err.text, wrong[i].piece[n]) == NULL)
                fail_msg("case %zu: '%s' lacks '%s'", i, err.text, wrong[i].piece[n]);
        weft__checkpoint_close(checkpoint);
        checkpoint = NULL;
    }
}

static void odd_columns(void **state)
{
    (void)state;
    struct weft__linear_view view;
    weft_error err = {0};
    build_add(&file, "m.weight", "U8", "[3,12]", NULL, 36);
    build_add(&file, "m.weight_scale", "F8_E4M3", "[3,2]", NULL, 6);
    open_file();
    assert_int_equal(weft__linear_open(checkpoint, "m", 3, 24, &view, &err), WEFT_FORMAT);
    assert_non_null(strstr(err.text, "multiple of 16"));
}

/* Scales inside tables: named with their place. */
static void bad_scale_values(void **state)
{
    (void)state;
    const float table[3] = {1, 2, NAN};
    weft_error err = {0};
    float out[3];
    build_add(&file, "f.weight", "F8_E4M3", "[3,32]", NULL, 96);
    uint8_t *at = build_add(&file, "f.weight_scale", "F32", "[3]", table, 12);
    build_add(&file, "m.weight", "U8", "[3,16]", NULL, 48);
    uint8_t *scale = build_add(&file, "m.weight_scale", "F8_E4M3", "[3,2]", NULL, 6);
    add_f32("m.weight_scale_2", "[]", 1);
    const float values[] = {NAN, INFINITY, 0, -1};
    for (int i = 0; i < 4; i++) {
        memcpy(at + 8, &values[i], 4);
        file.header[file.header_len] = '\0';
        open_file();
        struct weft__linear_view f = linear("f", 3, 32);
        assert_int_equal(weft__linear_scale_f32(&f, out, &err), WEFT_FORMAT);
        assert_non_null(strstr(err.text, "'f.weight_scale': scale 2"));
        weft__checkpoint_close(checkpoint);
    }
    const uint8_t codes[] = {0x7f, 0xff, 0x81, 0x00, 0x80, 0x7e};
    for (int i = 0; i < 6; i++) {
        scale[5] = codes[i];
        open_file();
        struct weft__linear_view m = linear("m", 3, 32);
        assert_int_equal(weft__linear_check(&m, 0, 2, &err), WEFT_OK); /* not its rows */
        assert_int_equal(weft__linear_check(&m, 1, 2, &err), i < 3 ? WEFT_FORMAT : WEFT_OK);
        if (i < 3)
            assert_non_null(strstr(err.text, "'m.weight_scale': the scale of row 2, block 1"));
        if (i < 5) weft__checkpoint_close(checkpoint);
    }
}

/* The embedded model, made by ModelOpt's rules. */
static void atlas(void **state)
{
    (void)state;
    weft_error err = {0};
    if (weft__checkpoint_open(WEFT_SOURCE_DIR "/models/atlas", &checkpoint, &err) != WEFT_OK)
        fail_msg("%s", err.text);
    struct weft__linear_view v = linear("model.layers.0.mlp.gate_proj", 768, 256);
    assert_int_equal(v.kind, WEFT__LINEAR_NVFP4);
    assert_true(v.scale_global > 0 && v.input_scale > 0);
    assert_int_equal(weft__linear_check(&v, 0, 768, &err), WEFT_OK);
    assert_int_equal(linear("lm_head", 4096, 256).dtype, WEFT_BF16);
    struct weft__expert_ref ref = {"model.layers.5.mlp.experts", "down_proj", 15, 16, 256, 128};
    assert_int_equal(weft__linear_open_expert(checkpoint, &ref, &v, &err), WEFT_OK);
    assert_int_equal(v.kind, WEFT__LINEAR_NVFP4);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(plain_types),   TEST(nvfp4),       TEST(fp8_kinds),        TEST(stacked_experts),
        TEST(wrong_tensors), TEST(odd_columns), TEST(bad_scale_values), TEST(atlas)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
