/* What `quantize` does to each tensor: the recipe. The projections of the decoder layers are
 * quantised; embeddings, head, norms, routers, the indexer's weights_proj and MTP layers are kept,
 * as NVIDIA's recipes keep them, and for NVFP4 the attention of MLA models too. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { NVFP4_BLOCK = 16, FP8_BLOCK = 128 };

static bool is_float(weft_dtype dtype)
{
    return dtype == WEFT_F32 || dtype == WEFT_F16 || dtype == WEFT_BF16;
}

/* Keeps a copy of text[0..len) as the next name of the set, unless it is there. */
static weft_status intern(struct weft__quantize_plan *plan, struct weft__names *names,
                          const char *text, size_t len, uint32_t *number, weft_error *err)
{
    bool added;
    char *copy = weft__arena_strndup(&plan->arena, text, len);
    if (copy == NULL) return weft__fail_oom(err, len, "names");
    int64_t known = weft__names_find(names, copy);
    if (known < 0) {
        known = names->count;
        weft_status status = weft__names_add(names, copy, &added, err);
        if (status != WEFT_OK) return status;
    }
    if (number != NULL) *number = (uint32_t)known;
    return WEFT_OK;
}

static bool ends_with(const char *text, const char *end)
{
    size_t len = strlen(text), end_len = strlen(end);
    return len >= end_len && strcmp(text + len - end_len, end) == 0;
}

/* Length of "model.layers.N" at the start of name, and N; 0 when it starts otherwise. */
static size_t layer_prefix(const char *name, int64_t *layer)
{
    static const char start[] = "model.layers.";
    if (strncmp(name, start, strlen(start)) != 0) return 0;
    const char *digits = name + strlen(start);
    size_t count = strspn(digits, "0123456789");
    if (count == 0 || count > 9 || digits[count] != '.') return 0;
    *layer = strtol(digits, NULL, 10);
    return strlen(start) + count;
}

static bool is_projection(const char *module)
{
    static const char *const names[] = {"q_proj",    "k_proj",   "v_proj",    "o_proj",
                                        "q_a_proj",  "q_b_proj", "wq_b",      "kv_a_proj_with_mqa",
                                        "kv_b_proj", "wk",       "gate_proj", "up_proj",
                                        "down_proj"};
    const char *last = strrchr(module, '.');
    for (size_t i = 0; last != NULL && i < WEFT__COUNT(names); i++)
        if (strcmp(last + 1, names[i]) == 0) return true;
    return false;
}

/* Whether the module is quantised. If it is kept, glob receives what the configuration's list of
 * exclusions says: the module, or the part of the model that is kept as a whole. */
static bool wanted(const struct weft__quantize_plan *plan, const char *module, int64_t in,
                   char glob[WEFT__MAX_TENSOR_NAME + 64])
{
    const struct weft__quantize_options *options = plan->options;
    bool nvfp4 = options->to == WEFT__LINEAR_NVFP4;
    const char *attention = strstr(module, ".self_attn.");
    int64_t layer = 0;
    size_t prefix = layer_prefix(module, &layer);
    (void)snprintf(glob, WEFT__MAX_TENSOR_NAME + 64, "%s", module);
    if (prefix == 0) return false;
    if (layer >= plan->layers) {
        (void)snprintf(glob, WEFT__MAX_TENSOR_NAME + 64, "%.*s.*", (int)prefix, module);
        return false;
    }
    if (plan->mla && nvfp4 && !options->attention && attention != NULL) {
        (void)snprintf(glob, WEFT__MAX_TENSOR_NAME + 64, "%.*s*",
                       (int)(attention - module) + (int)strlen(".self_attn"), module);
        return false;
    }
    for (int i = 0; i < options->exclude_count; i++)
        if (fnmatch(options->exclude[i], module, 0) == 0) return false;
    return is_projection(module) && !(nvfp4 && in % NVFP4_BLOCK != 0);
}

/* q, k and v share a global scale, and so do gate and up: engines run each group as one product. */
static void group_name(const char *module, char name[WEFT__MAX_TENSOR_NAME + 64])
{
    static const char *const members[][2] = {{".q_proj", ".qkv"},
                                             {".k_proj", ".qkv"},
                                             {".v_proj", ".qkv"},
                                             {".gate_proj", ".gate_up"},
                                             {".up_proj", ".gate_up"}};
    (void)snprintf(name, WEFT__MAX_TENSOR_NAME + 64, "%s", module);
    for (size_t i = 0; i < WEFT__COUNT(members); i++)
        if (ends_with(module, members[i][0])) {
            size_t len = strlen(module) - strlen(members[i][0]);
            (void)snprintf(name + len, 16, "%s", members[i][1]);
            return;
        }
}

static weft_status add_item(struct weft__quantize_plan *plan, const struct weft__tensor *source,
                            const char *name, bool quantise, weft_error *err)
{
    if (plan->items == WEFT__MAX_TENSORS)
        return weft__fail(err, WEFT_TOO_LONG, "%s: more than %d tensors", source->file,
                          WEFT__MAX_TENSORS);
    if (plan->items == plan->item_cap) {
        uint32_t cap = plan->item_cap == 0 ? 64 : plan->item_cap * 2;
        struct weft__quantize_item *item = realloc(plan->item, cap * sizeof *item);
        if (item == NULL) return weft__fail_oom(err, cap * sizeof *item, "the plan");
        plan->item = item;
        plan->item_cap = cap;
    }
    struct weft__quantize_item *item = &plan->item[plan->items];
    *item = (struct weft__quantize_item){.source = *source, .quantise = quantise};
    item->name = weft__arena_strndup(&plan->arena, name, strlen(name));
    if (item->name == NULL) return weft__fail_oom(err, strlen(name), "names");
    const char *base = strrchr(source->file, '/');
    base = base != NULL ? base + 1 : source->file;
    weft_status status = intern(plan, &plan->file, base, strlen(base), &item->file, err);
    if (status == WEFT_OK && quantise) {
        char group[WEFT__MAX_TENSOR_NAME + 64];
        group_name(name, group);
        status = intern(plan, &plan->group, group, strlen(group), &item->group, err);
    }
    if (status == WEFT_OK) plan->items++;
    return status;
}

/* A matrix that is quantised, or copied as `module`.weight. */
static weft_status add_matrix(struct weft__quantize_plan *plan, const struct weft__tensor *source,
                              const char *module, weft_error *err)
{
    char name[WEFT__MAX_TENSOR_NAME + 64];
    if (source->bytes > 0 && wanted(plan, module, source->shape[1], name))
        return add_item(plan, source, module, true, err);
    weft_status status = intern(plan, &plan->kept, name, strlen(name), NULL, err);
    if (status != WEFT_OK) return status;
    (void)snprintf(name, sizeof name, "%s.weight", module);
    return add_item(plan, source, name, false, err);
}

/* Stacked experts become one matrix each: quantised files hold them so. */
static weft_status add_stack(struct weft__quantize_plan *plan, const struct weft__tensor *source,
                             weft_error *err)
{
    char module[WEFT__MAX_TENSOR_NAME + 64];
    const char *last = strrchr(source->name, '.');
    int prefix = (int)(last - source->name);
    bool down = strcmp(last, ".down_proj") == 0;
    weft_status status = WEFT_OK;
    if (!down && source->shape[1] % 2 != 0)
        return weft__fail(err, WEFT_FORMAT, "%s: tensor " NAME ": an odd number of rows",
                          source->file, source->name);
    for (int64_t e = 0; e < source->shape[0] && status == WEFT_OK; e++) {
        struct weft__tensor matrix = weft__tensor_slice(source, e);
        int64_t half = matrix.shape[0] / 2;
        for (int part = 0; part < (down ? 1 : 2) && status == WEFT_OK; part++) {
            struct weft__tensor rows =
                down ? matrix : weft__tensor_rows(&matrix, part * half, half);
            (void)snprintf(module, sizeof module, "%.*s.%lld.%s", prefix, source->name,
                           (long long)e,
                           down        ? "down_proj"
                           : part == 0 ? "gate_proj"
                                       : "up_proj");
            status = add_matrix(plan, &rows, module, err);
        }
    }
    return status;
}

static weft_status add_tensor(struct weft__quantize_plan *plan, const struct weft__tensor *source,
                              weft_error *err)
{
    static const char *const quantised[] = {".weight_packed",    ".qweight",        ".weight_scale",
                                            ".weight_scale_inv", ".weight_scale_2", ".SCB"};
    const char *name = source->name;
    if (source->dtype == WEFT_DTYPE_COUNT)
        return weft__fail(err, WEFT_UNSUPPORTED, "%s: tensor " NAME " has an unknown element type",
                          source->file, name);
    for (size_t i = 0; i < WEFT__COUNT(quantised); i++)
        if (ends_with(name, quantised[i]))
            return weft__fail(err, WEFT_UNSUPPORTED,
                              "%s: tensor " NAME
                              " shows that this checkpoint is quantised already; "
                              "start from the F32, F16 or BF16 one",
                              source->file, name);
    bool stack =
        ends_with(name, ".mlp.experts.gate_up_proj") || ends_with(name, ".mlp.experts.down_proj");
    if (is_float(source->dtype) && stack && source->dims == 3 && source->bytes > 0)
        return add_stack(plan, source, err);
    if (!is_float(source->dtype) || source->dims != 2 || !ends_with(name, ".weight"))
        return add_item(plan, source, name, false, err);
    char module[WEFT__MAX_TENSOR_NAME + 1];
    (void)snprintf(module, sizeof module, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
    return add_matrix(plan, source, module, err);
}

/* A glob that names nothing is mistyped: what it was to keep would be quantised. */
static weft_status check_excludes(const struct weft__quantize_plan *plan, const char *path,
                                  weft_error *err)
{
    for (int e = 0; e < plan->options->exclude_count; e++) {
        const char *glob = plan->options->exclude[e];
        bool found = false;
        for (uint32_t i = 0; i < plan->items && !found; i++) {
            char module[WEFT__MAX_TENSOR_NAME + 64];
            (void)snprintf(module, sizeof module, "%s", plan->item[i].name);
            if (ends_with(module, ".weight")) *strrchr(module, '.') = '\0';
            found = fnmatch(glob, module, 0) == 0;
        }
        if (!found)
            return weft__fail(err, WEFT_INVALID, "%s: no module to exclude is named '%.200s'", path,
                              glob);
    }
    return WEFT_OK;
}

weft_status weft__quantize_plan_make(struct weft__quantize_plan *plan,
                                     const struct weft__checkpoint *checkpoint,
                                     const struct weft__node *config, weft_error *err)
{
    if (weft__node_has(config, "quantization_config"))
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "%s: has a quantization_config: the checkpoint is quantised already; "
                          "start from the F32, F16 or BF16 one",
                          config->file);
    plan->mla = weft__node_has(config, "kv_lora_rank");
    weft_status status =
        weft__node_int(config, "num_hidden_layers", 1, 1000000, &plan->layers, err);
    for (int64_t i = 0; i < weft__checkpoint_count(checkpoint) && status == WEFT_OK; i++) {
        struct weft__tensor tensor = weft__checkpoint_at(checkpoint, i);
        status = add_tensor(plan, &tensor, err);
    }
    if (status == WEFT_OK) status = check_excludes(plan, weft__checkpoint_path(checkpoint), err);
    if (status == WEFT_OK && plan->group.count == 0)
        status = weft__fail(err, WEFT_INVALID,
                            "%s: nothing to quantise: no projection of a decoder layer is left "
                            "(model.layers.N.*_proj.weight)",
                            weft__checkpoint_path(checkpoint));
    return status;
}

void weft__quantize_plan_free(struct weft__quantize_plan *plan)
{
    weft__names_free(&plan->file);
    weft__names_free(&plan->group);
    weft__names_free(&plan->kept);
    weft__arena_free(&plan->arena);
    free(plan->item);
    *plan = (struct weft__quantize_plan){0};
}

int weft__quantize_outputs(const struct weft__quantize_plan *plan,
                           const struct weft__quantize_item *item,
                           struct weft__quantize_output out[WEFT__MAX_OUTPUTS])
{
    const struct weft__tensor *source = &item->source;
    if (!item->quantise) {
        out[0] = (struct weft__quantize_output){.suffix = "",
                                                .dtype = source->dtype,
                                                .dims = source->dims,
                                                .bytes = (uint64_t)source->bytes};
        memcpy(out[0].shape, source->shape, sizeof out[0].shape);
        return 1;
    }
    int64_t rows = source->shape[0], cols = source->shape[1];
    if (plan->options->to == WEFT__LINEAR_NVFP4) {
        out[0] = (struct weft__quantize_output){
            ".weight", WEFT_U8, 2, {rows, cols / 2}, (uint64_t)(rows * cols / 2)};
        out[1] = (struct weft__quantize_output){".weight_scale",
                                                WEFT_F8_E4M3,
                                                2,
                                                {rows, cols / NVFP4_BLOCK},
                                                (uint64_t)(rows * cols / NVFP4_BLOCK)};
        out[2] = (struct weft__quantize_output){".weight_scale_2", WEFT_F32, 0, {0}, 4};
        return 3;
    }
    int64_t down = weft__ceil_div(rows, FP8_BLOCK), across = weft__ceil_div(cols, FP8_BLOCK);
    out[0] = (struct weft__quantize_output){
        ".weight", WEFT_F8_E4M3, 2, {rows, cols}, (uint64_t)(rows * cols)};
    out[1] = (struct weft__quantize_output){
        ".weight_scale_inv", WEFT_F32, 2, {down, across}, (uint64_t)(down * across * 4)};
    return 2;
}
