/* mistral: llama with a sliding window. */
#include "model.h"

static weft_status configure(const struct weft__node *config, struct weft__arena *arena,
                             struct weft__arch *arch, weft_error *err)
{
    (void)arena;
    WEFT__TRY(weft__arch_gqa(config, arch, err));
    WEFT__TRY(weft__node_int_opt(config, "sliding_window", 1, 1 << 30, &arch->window, err));
    arch->qkv_bias = false; /* Mistral has no attention biases whatever the key says */
    return weft__arch_rope(config, arch->head_dim, false, &arch->rope, err);
}

const struct weft__family weft__family_mistral = {.model_type = "mistral", .configure = configure};
