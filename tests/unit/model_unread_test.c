/* Tensors that a model leaves unread: those that real checkpoints are known to hold beyond it, and
 * others, which are told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "format_files.h"
#include "model/model.h"

static struct weft__checkpoint *open_with(const char *const *names, size_t count)
{
    static struct build build;
    char dir[64], path[256];
    struct weft__checkpoint *checkpoint = NULL;
    weft_error err;
    memset(&build, 0, sizeof build);
    make_directory(dir);
    for (size_t i = 0; i < count; i++) (void)build_add(&build, names[i], "F32", "[1]", NULL, 4);
    build_write(&build, join(dir, "model.safetensors", path));
    weft_status status = weft__checkpoint_open(dir, &checkpoint, &err);
    remove_directory(dir);
    if (status != WEFT_OK) fail_msg("%s", err.text);
    return checkpoint;
}

/* A model of two layers, of which layer 1 has no indexer of its own. */
static const bool full[] = {true, false};
static const struct weft__arch arch = {.layers = 2, .index_top = 1, .index_full = full};

static void known_ones_are_passed_over(void **state)
{
    (void)state;
    static const char *const names[] = {
        "model.rotary_emb.inv_freq",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.0.self_attn.k_proj.k_scale",
        "model.layers.0.self_attn.v_proj.v_scale",
        "model.layers.0.self_attn.kv_scale",
        "model.layers.1.self_attn.indexer.wk.weight",
        "model.layers.2.enorm.weight",
        "model.layers.2.mlp.gate.weight",
        "mtp.layers.0.enorm.weight",
    };
    struct weft__checkpoint *checkpoint = open_with(names, WEFT__COUNT(names));
    weft_error note;
    if (weft__weights_unread(checkpoint, &arch, &note) > 0) fail_msg("%s", note.text);
    weft__checkpoint_close(checkpoint);
}

static void others_are_told_until_they_are_found(void **state)
{
    (void)state;
    static const char *const names[] = {
        "model.layers.0.self_attn.indexer.wk.weight",
        "model.layers.1.mlp.shared_experts.up_proj.weight",
        "model.layers.3.mlp.gate.weight", /* not of multi-token prediction, as layer 2 is */
        "model.layers.2.enorm.weight",
        "model.layers.-1.mlp.gate.weight",
        "model.layers.9999999999.mlp.gate.weight",
        "lm_head.bias",
    };
    const int64_t told = WEFT__COUNT(names) - 1;
    struct weft__checkpoint *checkpoint = open_with(names, WEFT__COUNT(names));
    weft_error note = {0};
    assert_int_equal(weft__weights_unread(checkpoint, &arch, &note), told);
    assert_non_null(strstr(note.text, names[0]));
    struct weft__tensor tensor;
    assert_true(weft__checkpoint_find(checkpoint, names[0], &tensor));
    assert_int_equal(weft__weights_unread(checkpoint, &arch, &note), told - 1);
    assert_non_null(strstr(note.text, names[1]));
    weft__checkpoint_close(checkpoint);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_ones_are_passed_over),
        cmocka_unit_test(others_are_told_until_they_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
