/* llama: Llama, SmolLM2 and their kin. */
#include "model.h"

static weft_status configure(const struct weft__node *config, struct weft__arena *arena,
                             struct weft__arch *arch, weft_error *err)
{
    (void)arena;
    WEFT__TRY(weft__arch_gqa(config, arch, err));
    arch->o_bias = arch->qkv_bias; /* attention_bias covers all four projections */
    return weft__arch_rope(config, arch->head_dim, false, &arch->rope, err);
}

const struct weft__family weft__family_llama = {.model_type = "llama", .configure = configure};
