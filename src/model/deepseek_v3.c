/* deepseek_v3: latent attention (MLA), sigmoid router with groups, shared expert. */
#include "model.h"

static weft_status configure(const struct weft__node *config, struct weft__arena *arena,
                             struct weft__arch *arch, weft_error *err)
{
    WEFT__TRY(weft__arch_mla(config, arch, err));
    return weft__arch_sigmoid_moe(config, arena, arch, err);
}

const struct weft__family weft__family_deepseek_v3 = {.model_type = "deepseek_v3",
                                                      .configure = configure};
