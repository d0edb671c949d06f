/* glm_moe_dsa: GLM-5, 5.1, 5.2, 5.3. deepseek_v3's shape plus the sparse indexer. */
#include <string.h>

#include "model.h"

/* indexer_types, else index_topk_pattern, else every index_topk_freq-th layer from an offset on. */
static weft_status index_schedule(const struct weft__node *config, struct weft__arch *arch,
                                  bool *full, weft_error *err)
{
    struct weft__node types, pattern_list = {0};
    const char *pattern = NULL;
    int64_t freq = 1, offset = 2;
    WEFT__TRY(weft__node_list(config, "indexer_types", &types, err));
    if (types.json == NULL && weft__node_has(config, "index_topk_pattern")) {
        if (weft__node_list(config, "index_topk_pattern", &pattern_list, NULL) == WEFT_OK)
            types = pattern_list;
        else
            WEFT__TRY(weft__node_string(config, "index_topk_pattern", &pattern, err));
    }
    WEFT__TRY(weft__node_int_opt(config, "index_topk_freq", 0, 1 << 20, &freq, err));
    WEFT__TRY(weft__node_int_opt(config, "index_skip_topk_offset", 0, 1 << 20, &offset, err));
    int64_t given = types.json != NULL ? weft__node_count(&types)
                    : pattern != NULL  ? (int64_t)strlen(pattern)
                                       : arch->layers;
    if (given < arch->layers)
        return weft__fail(err, WEFT_FORMAT,
                          "%s: the indexer schedule has %lld entries for %lld layers", config->file,
                          (long long)given, (long long)arch->layers);
    for (int64_t i = 0; i < arch->layers; i++) {
        const char *type = pattern != NULL ? pattern + i : "";
        if (types.json != NULL) WEFT__TRY(weft__node_string_at(&types, i, &type, err));
        if (types.json != NULL || pattern != NULL) {
            full[i] = type[0] == 'f' || type[0] == 'F';
            if (!full[i] && type[0] != 's' && type[0] != 'S')
                return weft__fail(err, WEFT_UNSUPPORTED,
                                  "%s: layer %lld has indexer type \"%.16s\"; weft knows \"full\" "
                                  "and \"shared\"",
                                  config->file, (long long)i, type);
        } else {
            full[i] = weft__max(i - offset + 1, 0) % weft__max(freq, 1) == 0;
        }
    }
    if (!full[0])
        return weft__fail(err, WEFT_FORMAT, "%s: layer 0 shares an indexer with no layer before it",
                          config->file);
    return WEFT_OK;
}

static weft_status configure(const struct weft__node *config, struct weft__arena *arena,
                             struct weft__arch *arch, weft_error *err)
{
    WEFT__TRY(weft__arch_mla(config, arch, err));
    if (arch->q_lora == 0)
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "%s: q_lora_rank is null, but the indexer reads the query latent",
                          config->file);
    arch->index_interleaved = true;
    WEFT__TRY(weft__node_int(config, "index_n_heads", 1, 4096, &arch->index_heads, err));
    WEFT__TRY(
        weft__node_int(config, "index_head_dim", arch->rope_dim, 1 << 20, &arch->index_dim, err));
    WEFT__TRY(weft__node_int(config, "index_topk", 1, WEFT__INDEX_TOP_MAX, &arch->index_top, err));
    WEFT__TRY(
        weft__node_bool_opt(config, "indexer_rope_interleave", &arch->index_interleaved, err));
    bool *full = weft__arena_array(arena, (size_t)arch->layers, sizeof *full);
    if (full == NULL) return weft__fail_oom(err, (size_t)arch->layers, "the indexer schedule");
    WEFT__TRY(index_schedule(config, arch, full, err));
    arch->index_full = full;
    return weft__arch_sigmoid_moe(config, arena, arch, err);
}

const struct weft__family weft__family_glm_moe_dsa = {.model_type = "glm_moe_dsa",
                                                      .configure = configure};
