/* glm4_moe: GLM-4.5, 4.6, 4.7. Partial rotary, biases on q, k, v, sigmoid router, shared expert. */
#include "model.h"

static weft_status configure(const struct weft__node *config, struct weft__arena *arena,
                             struct weft__arch *arch, weft_error *err)
{
    double partial = 0.5;
    struct weft__node rope;
    WEFT__TRY(weft__arch_gqa(config, arch, err));
    WEFT__TRY(weft__node_bool_opt(config, "use_qk_norm", &arch->qk_norm, err));
    WEFT__TRY(weft__node_double_opt(config, "partial_rotary_factor", 0.01, 1, &partial, err));
    WEFT__TRY(weft__node_object(config, "rope_parameters", &rope, err));
    if (rope.json != NULL)
        WEFT__TRY(weft__node_double_opt(&rope, "partial_rotary_factor", 0.01, 1, &partial, err));
    int64_t dim = (int64_t)((double)arch->head_dim * partial);
    WEFT__TRY(weft__arch_rope(config, dim, false, &arch->rope, err));
    return weft__arch_sigmoid_moe(config, arena, arch, err);
}

const struct weft__family weft__family_glm4_moe = {.model_type = "glm4_moe",
                                                   .configure = configure};
