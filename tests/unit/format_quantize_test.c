/* Quantising a checkpoint against what tools/make_quantize_golden.py computed with NumPy; and that
 * the new directory is whole or absent. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "format/format.h"
#include "format_files.h"

#define GOLDEN WEFT_SOURCE_DIR "/tests/golden/quantize/"

static char dir[64], target[256];

static int setup(void **state)
{
    (void)state;
    make_directory(dir);
    join(dir, "out", target);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    remove_directory(dir);
    return 0;
}

static int entries(const char *path)
{
    int count = 0;
    DIR *list = opendir(path);
    if (list == NULL) return -1;
    while (readdir(list) != NULL) count++;
    (void)closedir(list);
    return count - 2;
}

static struct weft__checkpoint *open_good(const char *path)
{
    struct weft__checkpoint *checkpoint = NULL;
    weft_error err = {0};
    if (weft__checkpoint_open(path, &checkpoint, &err) != WEFT_OK) fail_msg("%s", err.text);
    return checkpoint;
}

/* Every tensor of the golden file is there with the same type, shape and bytes, and no other. */
static void expect_tensors(const char *got_path, const char *want_path)
{
    struct weft__checkpoint *got = open_good(got_path), *want = open_good(want_path);
    for (int64_t i = 0; i < weft__checkpoint_count(want); i++) {
        struct weft__tensor w = weft__checkpoint_at(want, i), g;
        if (!weft__checkpoint_find(got, w.name, &g)) fail_msg("'%s' is missing", w.name);
        assert_int_equal(g.dtype, w.dtype);
        assert_int_equal(g.dims, w.dims);
        assert_memory_equal(g.shape, w.shape, sizeof w.shape);
        for (int64_t b = 0; b < w.bytes; b++)
            if (g.data[b] != w.data[b])
                fail_msg("'%s' byte %lld of %lld: %02x, wanted %02x", w.name, (long long)b,
                         (long long)w.bytes, g.data[b], w.data[b]);
        /* Others map files and view them by type: offsets are multiples of the element. */
        int64_t bytes = weft__dtype_bits(g.dtype) / 8;
        assert_int_equal(g.file_offset % (bytes > 0 ? bytes : 1), 0);
    }
    assert_int_equal(weft__checkpoint_count(got), weft__checkpoint_count(want));
    weft__checkpoint_close(got);
    weft__checkpoint_close(want);
}

struct calls {
    int linears, progress, stop_at;
    double last;
};

static bool on_progress(void *ctx, double share)
{
    struct calls *calls = ctx;
    assert_true(share >= calls->last && share <= 1);
    calls->last = share;
    return ++calls->progress != calls->stop_at;
}

static void on_linear(void *ctx, const struct weft__quantize_row *row)
{
    struct calls *calls = ctx;
    calls->linears++;
    assert_true(row->out > 0 && row->in > 0 && row->module[0] != '\0');
    assert_true(row->error.error_squared <= row->error.weight_squared);
}

static weft_status quantize(const char *source, enum weft__linear_kind to, struct calls *calls,
                            struct weft__quantize_totals *totals, weft_error *err)
{
    struct weft__quantize_options options = {
        .to = to, .on_progress = on_progress, .on_linear = on_linear, .ctx = calls};
    return weft__quantize(source, target, &options, totals, err);
}

static void golden(enum weft__linear_kind to, const char *want, int linears, double relative_max)
{
    struct calls calls = {0};
    struct weft__quantize_totals totals;
    weft_error err = {0};
    char path[512];
    if (quantize(GOLDEN "source", to, &calls, &totals, &err) != WEFT_OK) fail_msg("%s", err.text);
    expect_tensors(target, want);
    assert_true(calls.last == 1);
    assert_int_equal(totals.linears, linears);
    assert_int_equal(calls.linears, linears);
    double relative = totals.error.error_squared / totals.error.weight_squared;
    assert_true(relative > 0 && relative < relative_max * relative_max);
    assert_true(totals.worst_relative < 1 && strstr(totals.worst, "_proj") != NULL);
    assert_true(totals.bytes < totals.source_bytes);

    /* Its shards are named as the source's; the small files are there, no temporary is. */
    (void)snprintf(path, sizeof path, "%s/model-00002-of-00002.safetensors", target);
    weft__checkpoint_close(open_good(path));
    (void)snprintf(path, sizeof path, "%s/generation_config.json", target);
    assert_int_equal(access(path, R_OK), 0);
    assert_int_equal(entries(dir), 1);
    assert_int_equal(entries(target), to == WEFT__LINEAR_NVFP4 ? 6 : 5);
}

static struct weft__node quantization(struct weft__node *root)
{
    char path[512];
    struct weft__node node;
    weft_error err = {0};
    double third = 0;
    const char *name = NULL;
    (void)snprintf(path, sizeof path, "%s/config.json", target);
    if (weft__config_open(path, root, &err) != WEFT_OK) fail_msg("%s", err.text);
    /* The rest of the configuration is the source's. */
    assert_int_equal(weft__node_double(root, "third", 0, 1, &third, &err), WEFT_OK);
    assert_true(third == 1.0 / 3);
    assert_int_equal(weft__node_string(root, "name", &name, &err), WEFT_OK);
    assert_string_equal(name, "caf\xc3\xa9");
    assert_int_equal(weft__node_object(root, "quantization_config", &node, &err), WEFT_OK);
    return node;
}

static bool lists(const struct weft__node *node, const char *key, const char *module)
{
    struct weft__node list;
    const char *text;
    assert_int_equal(weft__node_list(node, key, &list, NULL), WEFT_OK);
    for (int64_t i = 0; i < weft__node_count(&list); i++)
        if (weft__node_string_at(&list, i, &text, NULL) == WEFT_OK && strcmp(text, module) == 0)
            return true;
    return false;
}

static void nvfp4(void **state)
{
    (void)state;
    struct weft__node root, node;
    const char *text;
    golden(WEFT__LINEAR_NVFP4, GOLDEN "nvfp4.safetensors", 19, 0.15);
    node = quantization(&root);
    assert_int_equal(weft__node_string(&node, "quant_method", &text, NULL), WEFT_OK);
    assert_string_equal(text, "modelopt");
    assert_true(lists(&node, "ignore", "lm_head"));
    assert_true(lists(&node, "ignore", "model.embed_tokens"));
    assert_true(lists(&node, "ignore", "model.layers.2.*"));
    assert_true(lists(&node, "ignore", "model.layers.1.mlp.gate"));
    assert_true(lists(&node, "ignore", "model.layers.0.mlp.down_proj"));
    assert_false(lists(&node, "ignore", "model.layers.0.mlp.up_proj"));
    weft__config_close(&root);
}

static void fp8(void **state)
{
    (void)state;
    struct weft__node root, node;
    const char *text;
    golden(WEFT__LINEAR_FP8_BLOCK, GOLDEN "fp8.safetensors", 20, 0.05);
    node = quantization(&root);
    assert_int_equal(weft__node_string(&node, "quant_method", &text, NULL), WEFT_OK);
    assert_string_equal(text, "fp8");
    assert_true(lists(&node, "modules_to_not_convert", "lm_head"));
    assert_false(lists(&node, "modules_to_not_convert", "model.layers.0.mlp.down_proj"));
    weft__config_close(&root);
}

/* Wider and longer than a tile: pieces must fall into their places. One large value a block makes
 * every scale known, and a value on the grid comes back exactly. */
static void tiles(void **state)
{
    (void)state;
    enum { ROWS = 130, COLS = 8192 + 144 };
    char path[256], header[256];
    float *w = malloc(sizeof(float) * ROWS * COLS);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++)
            w[r * COLS + c] = (c % 16 == 3 ? 6.0f : (float)(c % 4) * 0.5f) * (r % 2 ? 448 : 224);
    (void)snprintf(header, sizeof header,
                   "{\"model.layers.0.mlp.down_proj.weight\":{\"dtype\":\"F32\",\"shape\":[%d,%d],"
                   "\"data_offsets\":[0,%d]}}",
                   ROWS, COLS, ROWS * COLS * 4);
    put_file(join(dir, "model.safetensors", path), strlen(header), header, w,
             sizeof(float) * ROWS * COLS);
    join(dir, "config.json", path);
    put_text(path, "{\"num_hidden_layers\":1}");
    for (int to = 0; to < 2; to++) {
        struct calls calls = {0};
        struct weft__quantize_totals totals;
        struct weft__linear_view view;
        weft_error err = {0};
        enum weft__linear_kind kind = to ? WEFT__LINEAR_FP8_BLOCK : WEFT__LINEAR_NVFP4;
        if (quantize(dir, kind, &calls, &totals, &err) != WEFT_OK) fail_msg("%s", err.text);
        struct weft__checkpoint *out = open_good(target);
        assert_int_equal(
            weft__linear_open(out, "model.layers.0.mlp.down_proj", ROWS, COLS, &view, &err),
            WEFT_OK);
        assert_int_equal(view.kind, kind);
        /* NVFP4: all values are on the grid of their block. FP8: q = w / 6, within half a step. */
        if (kind == WEFT__LINEAR_NVFP4)
            assert_true(totals.error.error_squared == 0);
        else
            assert_true(totals.worst_relative < 0.04);
        /* The same from the file: a value at each corner of the tiles. */
        const int rows[] = {0, 1, 127, 128, 129}, cols[] = {0, 3, 8191, 8192, 8195, COLS - 1};
        float scale[2 * 66];
        assert_int_equal(weft__linear_scale_f32(&view, scale, &err), WEFT_OK);
        for (size_t i = 0; i < WEFT__COUNT(rows) * WEFT__COUNT(cols); i++) {
            int r = rows[i / WEFT__COUNT(cols)], c = cols[i % WEFT__COUNT(cols)];
            float want = w[r * COLS + c], got;
            if (kind == WEFT__LINEAR_NVFP4) {
                static const float e2m1[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
                int code = view.weight.data[(r * COLS + c) / 2] >> (c % 2 * 4) & 15;
                struct weft__tensor s = weft__tensor_rows(&view.scale, r, 1);
                float block[COLS / 16];
                assert_int_equal(weft__tensor_f32(&s, block, &err), WEFT_OK);
                got = e2m1[code] * block[c / 16] * view.scale_global;
            } else {
                struct weft__tensor q = weft__tensor_rows(&view.weight, r, 1);
                static float row[COLS];
                assert_int_equal(weft__tensor_f32(&q, row, &err), WEFT_OK);
                got = row[c] * scale[r / 128 * 66 + c / 128];
            }
            assert_true(got >= want * 0.96f && got <= want * 1.04f);
        }
        weft__checkpoint_close(out);
        remove_directory(target);
    }
    free(w);
}

/* The attention of an MLA model is kept in NVFP4 unless asked for; excluded modules stay. */
static void exclusions(void **state)
{
    (void)state;
    static struct build file;
    char path[256];
    memset(&file, 0, sizeof file);
    static const char *const names[] = {"self_attn.q_a_proj", "self_attn.indexer.wk",
                                        "self_attn.indexer.weights_proj", "mlp.gate_proj",
                                        "mlp.up_proj"};
    for (size_t i = 0; i < WEFT__COUNT(names); i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "model.layers.0.%s.weight", names[i]);
        build_add(&file, name, "BF16", "[2,16]", NULL, 64);
    }
    build_write(&file, join(dir, "model.safetensors", path));
    put_text(join(dir, "config.json", path),
             "{\"num_hidden_layers\":1,\"kv_lora_rank\":8,\"quantization_config\":null}");
    static const char *const exclude[] = {"*.up_proj"};
    static const struct {
        enum weft__linear_kind to;
        bool attention;
        int exclude, linears;
    } cases[] = {{WEFT__LINEAR_NVFP4, false, 0, 2},
                 {WEFT__LINEAR_NVFP4, true, 0, 4},
                 {WEFT__LINEAR_NVFP4, true, 1, 3},
                 {WEFT__LINEAR_FP8_BLOCK, false, 0, 4}};
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        struct weft__quantize_options options = {.to = cases[i].to,
                                                 .attention = cases[i].attention,
                                                 .exclude = exclude,
                                                 .exclude_count = cases[i].exclude};
        struct weft__quantize_totals totals;
        weft_error err = {0};
        if (weft__quantize(dir, target, &options, &totals, &err) != WEFT_OK)
            fail_msg("%s", err.text);
        assert_int_equal(totals.linears, cases[i].linears);
        assert_int_equal(totals.kept, 5 - cases[i].linears);
        remove_directory(target);
    }
}

static void expect_refusal(const char *source, weft_status status, const char *piece)
{
    struct calls calls = {0};
    struct weft__quantize_totals totals;
    weft_error err = {0};
    int before = entries(dir);
    weft_status got = quantize(source, WEFT__LINEAR_NVFP4, &calls, &totals, &err);
    if (got != status || strstr(err.text, piece) == NULL)
        fail_msg("'%s' lacks '%s'", err.text, piece);
    assert_int_equal(entries(dir), before); /* nothing new, nothing half-written */
}

static void refusals(void **state)
{
    (void)state;
    char path[256];
    static struct build file;
    const float nan_weights[32] = {1, NAN};
    expect_refusal(WEFT_SOURCE_DIR "/models/atlas", WEFT_UNSUPPORTED, "quantised already");
    expect_refusal(dir, WEFT_NOT_FOUND, "config.json");
    put_text(join(dir, "config.json", path), "{\"num_hidden_layers\":1}");
    expect_refusal(dir, WEFT_NOT_FOUND, "neither model.safetensors");
    memset(&file, 0, sizeof file);
    build_add(&file, "model.layers.0.mlp.up_proj.weight", "F32", "[2,16]", nan_weights, 128);
    build_write(&file, join(dir, "model.safetensors", path));
    expect_refusal(dir, WEFT_FORMAT, "up_proj.weight' holds NaN");
    memset(&file, 0, sizeof file);
    build_add(&file, "model.layers.0.mlp.up_proj.weight_packed", "U8", "[2,8]", NULL, 16);
    build_write(&file, path);
    expect_refusal(dir, WEFT_UNSUPPORTED, "quantised already");
    memset(&file, 0, sizeof file);
    build_add(&file, "model.norm.weight", "F32", "[16]", NULL, 64);
    build_write(&file, path);
    expect_refusal(dir, WEFT_INVALID, "nothing to quantise");
    put_bytes(target, "mine", 4);
    expect_refusal(GOLDEN "source", WEFT_INVALID, "exists already");
    assert_int_equal(unlink(target), 0);
    assert_int_equal(mkdir(target, 0700), 0);
    expect_refusal(GOLDEN "source", WEFT_INVALID, "exists already");
    assert_int_equal(rmdir(target), 0);
    (void)snprintf(target, sizeof target, "%s/none/out", dir);
    expect_refusal(GOLDEN "source", WEFT_IO, "none/out: No such");
}

/* Stopped at any point, and out of room: nothing is left. */
static void interruptions(void **state)
{
    (void)state;
    struct weft__quantize_totals totals;
    weft_error err = {0};
    struct calls calls = {0};
    assert_int_equal(quantize(GOLDEN "source", WEFT__LINEAR_NVFP4, &calls, &totals, &err), WEFT_OK);
    remove_directory(target);
    int steps = calls.progress;
    assert_in_range(steps, 20, 1000);
    for (int stop = 1; stop <= steps; stop += 7) {
        calls = (struct calls){.stop_at = stop};
        assert_int_equal(quantize(GOLDEN "source", WEFT__LINEAR_NVFP4, &calls, &totals, &err),
                         WEFT_CLOSED);
        assert_non_null(strstr(err.text, "out was not written"));
        assert_int_equal(entries(dir), 0);
    }
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){.rlim_cur = 50000, .rlim_max = old.rlim_max};
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    calls = (struct calls){0};
    weft_status status = quantize(GOLDEN "source", WEFT__LINEAR_FP8_BLOCK, &calls, &totals, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, WEFT_IO);
    assert_non_null(strstr(err.text, "safetensors: File too large"));
    assert_int_equal(entries(dir), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {TEST(nvfp4),      TEST(fp8),      TEST(tiles),
                                       TEST(exclusions), TEST(refusals), TEST(interruptions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
