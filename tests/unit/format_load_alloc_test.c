/* Opening checkpoints, linears and configurations while memory runs out at every allocation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "alloc_fail.h"
#include "format/format.h"
#include "format_files.h"

static char dir[64], config[256];
static struct build file;

static int setup(void **state)
{
    (void)state;
    char path[256], name[32];
    make_directory(dir);
    alloc_fail_jansson();
    memset(&file, 0, sizeof file);
    /* Enough tensors that every table grows; a linear with a scale table. */
    for (int i = 0; i < 100; i++) {
        (void)snprintf(name, sizeof name, "t%d", i);
        build_add(&file, name, "U8", "[1,2]", NULL, 2);
    }
    build_add(&file, "m.weight", "F8_E4M3", "[3,32]", NULL, 96);
    build_add(&file, "m.weight_scale", "BF16", "[3]", NULL, 6);
    build_write(&file, join(dir, "model.safetensors", path));
    join(dir, "config.json", config);
    static const char text[] = "{\"hidden\":64,\"rope\":{\"type\":\"yarn\",\"theta\":1e6},"
                               "\"eos\":[1,2,3],\"names\":[\"a\",\"b\\u00e9\",\"c\"],\"e\":1.5}";
    put_bytes(config, text, strlen(text));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    remove_directory(dir);
    return 0;
}

static weft_status open_checkpoint(void *context, weft_error *err)
{
    (void)context;
    struct weft__checkpoint *checkpoint = NULL;
    struct weft__linear_view view;
    float scale[3];
    weft_status status = weft__checkpoint_open(dir, &checkpoint, err);
    if (status != WEFT_OK) return status;
    status = weft__linear_open(checkpoint, "m", 3, 32, &view, err);
    if (status == WEFT_OK) status = weft__linear_scale_f32(&view, scale, err);
    weft__checkpoint_close(checkpoint);
    return status;
}

static void single_file(void **state)
{
    (void)state;
    alloc_fail_sweep("one file", open_checkpoint, NULL, 1000);
}

static void shards(void **state)
{
    (void)state;
    char path[256], index[8192];
    size_t at = (size_t)snprintf(index, sizeof index,
                                 "{\"metadata\":{\"total_size\":1},\"weight_map\":{"
                                 "\"z\":\"z\",\"m.weight\":\"model.safetensors\","
                                 "\"m.weight_scale\":\"model.safetensors\"");
    for (int i = 0; i < 100; i++)
        at += (size_t)snprintf(index + at, sizeof index - at, ",\"t%d\":\"model.safetensors\"", i);
    (void)snprintf(index + at, sizeof index - at, "}}");
    put_bytes(join(dir, "model.safetensors.index.json", path), index, strlen(index));
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},\"z\":{\"dtype\":\"U8\","
                                 "\"shape\":[],\"data_offsets\":[0,1]}}";
    put_file(join(dir, "z", path), strlen(header), header, "z", 1);
    alloc_fail_sweep("shards", open_checkpoint, NULL, 1000);
}

static weft_status open_config(void *context, weft_error *err)
{
    (void)context;
    struct weft__node root = {0}, rope, names;
    const char *text;
    double theta;
    weft_status status = weft__config_open(config, &root, err);
    if (status == WEFT_OK) status = weft__node_object(&root, "rope", &rope, err);
    if (status == WEFT_OK) status = weft__node_double(&rope, "theta", 1, 1e9, &theta, err);
    if (status == WEFT_OK) status = weft__node_list(&root, "names", &names, err);
    if (status == WEFT_OK) status = weft__node_string_at(&names, 2, &text, err);
    weft__config_close(&root);
    return status;
}

static void configuration(void **state)
{
    (void)state;
    alloc_fail_sweep("configuration", open_config, NULL, 1000);
}

static weft_status quantize(void *context, weft_error *err)
{
    char target[256];
    struct weft__quantize_totals totals;
    const struct weft__quantize_options options = {.to = *(enum weft__linear_kind *)context};
    weft_status status = weft__quantize(WEFT_SOURCE_DIR "/tests/golden/quantize/source",
                                        join(dir, "out", target), &options, &totals, err);
    if (access(target, F_OK) == 0 && status != WEFT_OK) abort(); /* whole or absent */
    remove_directory(target);
    return status;
}

static void quantising(void **state)
{
    (void)state;
    enum weft__linear_kind kinds[] = {WEFT__LINEAR_NVFP4, WEFT__LINEAR_FP8_BLOCK};
    alloc_fail_sweep("quantising to NVFP4", quantize, &kinds[0], 60);
    alloc_fail_sweep("quantising to FP8", quantize, &kinds[1], 60);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {TEST(single_file), TEST(shards), TEST(configuration),
                                       TEST(quantising)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
