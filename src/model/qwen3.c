/* qwen3, qwen3_moe: llama with per-head norms on q and k; the second with softmax-routed experts.
 */
#include "model.h"

static weft_status attention(const struct weft__node *config, struct weft__arch *arch,
                             weft_error *err)
{
    bool window = false;
    WEFT__TRY(weft__arch_gqa(config, arch, err));
    WEFT__TRY(weft__node_bool_opt(config, "use_sliding_window", &window, err));
    if (window)
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "%s: use_sliding_window is true, which weft does not support for this "
                          "family",
                          config->file);
    arch->o_bias = arch->qkv_bias;
    arch->qk_norm = true;
    return weft__arch_rope(config, arch->head_dim, false, &arch->rope, err);
}

static weft_status configure(const struct weft__node *config, struct weft__arena *arena,
                             struct weft__arch *arch, weft_error *err)
{
    (void)arena;
    return attention(config, arch, err);
}

/* Layer i is a mixture unless mlp_only_layers names it or decoder_sparse_step skips it. */
static weft_status schedule(const struct weft__node *config, struct weft__arena *arena,
                            struct weft__arch *arch, weft_error *err)
{
    int64_t step = 1;
    int64_t *dense = weft__arena_array(arena, (size_t)arch->layers, sizeof *dense);
    bool *sparse = weft__arena_array(arena, (size_t)arch->layers, sizeof *sparse);
    if (dense == NULL || sparse == NULL)
        return weft__fail_oom(err, (size_t)arch->layers * sizeof *dense, "the layer schedule");
    struct weft__int_list list = {
        .max = arch->layers - 1, .values = dense, .max_count = (int)arch->layers};
    WEFT__TRY(weft__node_ints(config, "mlp_only_layers", &list, err));
    WEFT__TRY(weft__node_int_opt(config, "decoder_sparse_step", 1, 1 << 20, &step, err));
    for (int64_t i = 0; i < arch->layers; i++) sparse[i] = (i + 1) % step == 0;
    for (int i = 0; i < list.count; i++) sparse[dense[i]] = false;
    arch->sparse = sparse;
    return WEFT_OK;
}

static weft_status configure_moe(const struct weft__node *config, struct weft__arena *arena,
                                 struct weft__arch *arch, weft_error *err)
{
    WEFT__TRY(attention(config, arch, err));
    WEFT__TRY(schedule(config, arena, arch, err));
    WEFT__TRY(weft__node_int(config, "num_experts|n_routed_experts|num_local_experts", 1,
                             WEFT__EXPERTS_MAX, &arch->experts, err));
    WEFT__TRY(
        weft__node_int(config, "num_experts_per_tok", 1, arch->experts, &arch->experts_top, err));
    WEFT__TRY(weft__node_int(config, "moe_intermediate_size", 1, 1 << 20,
                             &arch->expert_intermediate, err));
    WEFT__TRY(weft__node_bool_opt(config, "norm_topk_prob", &arch->router_normalise, err));
    arch->groups = arch->top_groups = 1;
    arch->router_scale = 1;
    return WEFT_OK;
}

const struct weft__family weft__family_qwen3 = {.model_type = "qwen3", .configure = configure};
const struct weft__family weft__family_qwen3_moe = {.model_type = "qwen3_moe",
                                                    .configure = configure_moe};
