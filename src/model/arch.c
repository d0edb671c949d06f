/* Reads config.json: the pieces families share, and the choice of the family. */
#include <math.h>
#include <string.h>
#include <strings.h>

#include "model.h"

enum {
    MAX_HIDDEN = WEFT_COMM_HIDDEN_MAX,
    MAX_WIDTH = 1 << 20,
    MAX_LAYERS = 1024,
    MAX_HEADS = 4096
};

/* Every family: name of its file and of its entry in it. */
#define FAMILIES(X) \
    X(llama)        \
    X(mistral)      \
    X(qwen3)        \
    X(qwen3_moe)    \
    X(glm4_moe)     \
    X(glm_moe_dsa)  \
    X(deepseek_v3)

#define X(name) extern const struct weft__family weft__family_##name;
FAMILIES(X)
#undef X

static const struct weft__family *const families[] = {
#define X(name) &weft__family_##name,
    FAMILIES(X)
#undef X
};

static weft_status common(const struct weft__node *config, struct weft__arch *arch, weft_error *err)
{
    double eps = 1e-6;
    const char *act = "silu";
    arch->context = 2048;
    WEFT__TRY(weft__node_int(config, "vocab_size", 1, 1 << 24, &arch->vocab, err));
    WEFT__TRY(weft__node_int(config, "hidden_size", 8, MAX_HIDDEN, &arch->hidden, err));
    WEFT__TRY(weft__node_int(config, "num_hidden_layers", 1, MAX_LAYERS, &arch->layers, err));
    WEFT__TRY(weft__node_int(config, "num_attention_heads", 1, MAX_HEADS, &arch->heads, err));
    WEFT__TRY(
        weft__node_int_opt(config, "max_position_embeddings", 1, 1 << 30, &arch->context, err));
    WEFT__TRY(
        weft__node_int_opt(config, "intermediate_size", 1, MAX_WIDTH, &arch->intermediate, err));
    WEFT__TRY(weft__node_double_opt(config, "rms_norm_eps", 0, 1, &eps, err));
    WEFT__TRY(weft__node_bool_opt(config, "tie_word_embeddings", &arch->tied, err));
    WEFT__TRY(weft__node_string_opt(config, "hidden_act", &act, err));
    arch->norm_eps = (float)eps;
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return weft__fail(err, WEFT_UNSUPPORTED, "%s: hidden_act \"%s\"; weft supports \"silu\"",
                          config->file, act);
    if (arch->hidden % 8 != 0)
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "%s: hidden_size %lld is not a multiple of 8, which the collectives need",
                          config->file, (long long)arch->hidden);
    return WEFT_OK;
}

weft_status weft__arch_gqa(const struct weft__node *config, struct weft__arch *arch,
                           weft_error *err)
{
    arch->kv_heads = arch->heads;
    arch->head_dim = arch->hidden / arch->heads;
    WEFT__TRY(
        weft__node_int_opt(config, "num_key_value_heads", 1, MAX_HEADS, &arch->kv_heads, err));
    WEFT__TRY(weft__node_int_opt(config, "head_dim", 2, MAX_WIDTH, &arch->head_dim, err));
    WEFT__TRY(weft__node_bool_opt(config, "attention_bias", &arch->qkv_bias, err));
    WEFT__TRY(weft__node_bool_opt(config, "mlp_bias", &arch->mlp_bias, err));
    if (arch->heads % arch->kv_heads != 0)
        return weft__fail(err, WEFT_FORMAT,
                          "%s: num_attention_heads %lld is not a multiple of num_key_value_heads "
                          "%lld",
                          config->file, (long long)arch->heads, (long long)arch->kv_heads);
    if (arch->head_dim < 2)
        return weft__fail(err, WEFT_FORMAT, "%s: head_dim %lld (hidden_size / num_attention_heads)",
                          config->file, (long long)arch->head_dim);
    arch->attention_scale = (float)pow((double)arch->head_dim, -0.5);
    return WEFT_OK;
}

weft_status weft__arch_mla(const struct weft__node *config, struct weft__arch *arch,
                           weft_error *err)
{
    bool interleaved = true, bias = false;
    arch->mla = true;
    arch->kv_heads = arch->heads;
    /* Hugging Face fixes this whatever rms_norm_eps says; other stacks use rms_norm_eps. */
    arch->latent_eps = 1e-6f;
    WEFT__TRY(weft__node_int_opt(config, "q_lora_rank", 1, MAX_WIDTH, &arch->q_lora, err));
    WEFT__TRY(weft__node_int(config, "kv_lora_rank", 1, MAX_WIDTH, &arch->kv_lora, err));
    WEFT__TRY(weft__node_int(config, "qk_nope_head_dim", 1, MAX_WIDTH, &arch->nope_dim, err));
    WEFT__TRY(weft__node_int(config, "qk_rope_head_dim", 2, MAX_WIDTH, &arch->rope_dim, err));
    WEFT__TRY(weft__node_int(config, "v_head_dim", 1, MAX_WIDTH, &arch->value_dim, err));
    WEFT__TRY(weft__node_bool_opt(config, "rope_interleave", &interleaved, err));
    WEFT__TRY(weft__node_bool_opt(config, "attention_bias", &bias, err));
    arch->qkv_bias = arch->o_bias = bias;
    WEFT__TRY(weft__arch_rope(config, arch->rope_dim, interleaved, &arch->rope, err));
    double scale = pow((double)(arch->nope_dim + arch->rope_dim), -0.5);
    if (arch->rope.kind == WEFT__ROPE_YARN && arch->rope.mscale_all_dim != 0) {
        double ms = weft__yarn_mscale(arch->rope.factor, arch->rope.mscale_all_dim);
        scale *= ms * ms;
    }
    arch->attention_scale = (float)scale;
    return WEFT_OK;
}

/* Layers that declare another attention than the family's would run wrongly without a word. */
static weft_status check_layer_types(const struct weft__node *config, const struct weft__arch *arch,
                                     weft_error *err)
{
    struct weft__node types;
    WEFT__TRY(weft__node_list(config, "layer_types", &types, err));
    for (int64_t i = 0; types.json != NULL && i < weft__node_count(&types); i++) {
        const char *type;
        WEFT__TRY(weft__node_string_at(&types, i, &type, err));
        bool known = strcmp(type, "full_attention") == 0 ||
                     (arch->window > 0 && strcmp(type, "sliding_attention") == 0) ||
                     (arch->index_top > 0 && strcmp(type, "deepseek_sparse_attention") == 0);
        if (!known)
            return weft__fail(err, WEFT_UNSUPPORTED,
                              "%s: layer_types[%lld] is \"%.40s\", which weft does not support for "
                              "this family",
                              config->file, (long long)i, type);
    }
    return WEFT_OK;
}

/* Which layers are mixtures: mlp_layer_types, else first_k_dense_replace. */
static weft_status sparse_layers(const struct weft__node *config, struct weft__arena *arena,
                                 struct weft__arch *arch, weft_error *err)
{
    bool *sparse = weft__arena_array(arena, (size_t)arch->layers, sizeof *sparse);
    if (sparse == NULL) return weft__fail_oom(err, (size_t)arch->layers, "the layer schedule");
    arch->sparse = sparse;

    struct weft__node types;
    WEFT__TRY(weft__node_list(config, "mlp_layer_types", &types, err));
    if (types.json != NULL) {
        if (weft__node_count(&types) < arch->layers)
            return weft__fail(err, WEFT_FORMAT,
                              "%s: mlp_layer_types has %lld entries for %lld layers", config->file,
                              (long long)weft__node_count(&types), (long long)arch->layers);
        for (int64_t i = 0; i < arch->layers; i++) {
            const char *type;
            WEFT__TRY(weft__node_string_at(&types, i, &type, err));
            sparse[i] = strcmp(type, "sparse") == 0;
            if (!sparse[i] && strcmp(type, "dense") != 0)
                return weft__fail(err, WEFT_UNSUPPORTED,
                                  "%s: mlp_layer_types[%lld] is \"%s\"; weft knows \"dense\" and "
                                  "\"sparse\"",
                                  config->file, (long long)i, type);
        }
        return WEFT_OK;
    }
    int64_t dense = 0, freq = 1;
    WEFT__TRY(weft__node_int_opt(config, "first_k_dense_replace", 0, MAX_LAYERS, &dense, err));
    WEFT__TRY(weft__node_int_opt(config, "moe_layer_freq", 1, 1, &freq, err));
    for (int64_t i = 0; i < arch->layers; i++) sparse[i] = i >= dense;
    return WEFT_OK;
}

weft_status weft__arch_sigmoid_moe(const struct weft__node *config, struct weft__arena *arena,
                                   struct weft__arch *arch, weft_error *err)
{
    int64_t shared = 0;
    double scale = 1;
    const char *scoring = "sigmoid", *method = "noaux_tc";
    arch->router_sigmoid = arch->router_bias = arch->router_normalise = true;
    arch->groups = arch->top_groups = 1;
    WEFT__TRY(sparse_layers(config, arena, arch, err));
    WEFT__TRY(weft__node_int(config, "n_routed_experts|num_experts|num_local_experts", 1,
                             WEFT__EXPERTS_MAX, &arch->experts, err));
    WEFT__TRY(
        weft__node_int(config, "num_experts_per_tok", 1, arch->experts, &arch->experts_top, err));
    WEFT__TRY(weft__node_int(config, "moe_intermediate_size", 1, MAX_WIDTH,
                             &arch->expert_intermediate, err));
    WEFT__TRY(weft__node_int_opt(config, "n_shared_experts", 0, 64, &shared, err));
    WEFT__TRY(weft__node_int_opt(config, "n_group", 1, arch->experts, &arch->groups, err));
    WEFT__TRY(weft__node_int_opt(config, "topk_group", 1, arch->groups, &arch->top_groups, err));
    WEFT__TRY(weft__node_bool_opt(config, "norm_topk_prob", &arch->router_normalise, err));
    WEFT__TRY(weft__node_double_opt(config, "routed_scaling_factor", -1e6, 1e6, &scale, err));
    WEFT__TRY(weft__node_string_opt(config, "scoring_func", &scoring, err));
    WEFT__TRY(weft__node_string_opt(config, "topk_method", &method, err));
    arch->shared_intermediate = shared * arch->expert_intermediate;
    arch->router_scale = (float)scale;
    if (strcmp(scoring, "sigmoid") != 0 || strcmp(method, "noaux_tc") != 0)
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "%s: router \"%s\" / \"%s\"; this family has \"sigmoid\" / \"noaux_tc\"",
                          config->file, scoring, method);
    int64_t group = arch->experts / arch->groups;
    if (arch->experts % arch->groups != 0 || group * arch->top_groups < arch->experts_top ||
        (arch->groups > 1 && group < 2))
        return weft__fail(err, WEFT_FORMAT,
                          "%s: %lld experts in %lld groups of which %lld are kept cannot give %lld "
                          "experts a token",
                          config->file, (long long)arch->experts, (long long)arch->groups,
                          (long long)arch->top_groups, (long long)arch->experts_top);
    return WEFT_OK;
}

static weft_status choose_family(const struct weft__node *config, const struct weft__family **out,
                                 weft_error *err)
{
    const char *type;
    WEFT__TRY(weft__node_string(config, "model_type", &type, err));
    struct weft__buf known;
    weft__buf_init(&known, 1024);
    for (size_t i = 0; i < WEFT__COUNT(families); i++) {
        if (strcmp(type, families[i]->model_type) == 0) {
            weft__buf_free(&known);
            *out = families[i];
            return WEFT_OK;
        }
        weft__buf_printf(&known, "%s%s", i == 0 ? "" : ", ", families[i]->model_type);
    }
    weft_status status =
        weft__fail(err, WEFT_UNSUPPORTED, "%s: model_type \"%.64s\" is not supported; weft runs %s",
                   config->file, type, known.failed ? "others" : known.data);
    weft__buf_free(&known);
    return status;
}

/* ModelOpt's name of a format, in config.json or in a file of its own. */
static weft_status check_algorithm(const struct weft__node *quant, weft_error *err)
{
    static const char *const known[] = {
        "NVFP4", "W4A16_NVFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MIXED_PRECISION"};
    const char *name = NULL;
    if (quant->json == NULL) return WEFT_OK;
    WEFT__TRY(weft__node_string_opt(quant, "quant_algo", &name, err));
    if (name == NULL) return WEFT_OK;
    for (size_t i = 0; i < WEFT__COUNT(known); i++)
        if (strcasecmp(name, known[i]) == 0) return WEFT_OK;
    return weft__fail(err, WEFT_UNSUPPORTED,
                      "%s: quant_algo \"%.64s\" is not supported; weft reads NVFP4, W4A16_NVFP4, "
                      "FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO and MIXED_PRECISION of these",
                      quant->file, name);
}

static weft_status check_modelopt_file(const char *dir, weft_error *err)
{
    char path[WEFT__MAX_PATH];
    struct weft__node root, quant;
    WEFT__TRY(weft__path_join(path, dir, "hf_quant_config.json", err));
    weft_status status = weft__config_open(path, &root, err);
    if (status == WEFT_NOT_FOUND) return WEFT_OK;
    if (status != WEFT_OK) return status;
    status = weft__node_object(&root, "quantization", &quant, err);
    if (status == WEFT_OK) status = check_algorithm(&quant, err);
    weft__config_close(&root);
    return status;
}

/* The tensors decide how each weight is read; this only says early, by name, what no reader exists
 * for. */
static weft_status check_quantisation(const struct weft__node *config, weft_error *err)
{
    static const char *const known[] = {"modelopt", "compressed-tensors", "fp8"};
    struct weft__node quant;
    const char *method = NULL;
    WEFT__TRY(weft__node_object(config, "quantization_config", &quant, err));
    if (quant.json == NULL) return WEFT_OK;
    WEFT__TRY(check_algorithm(&quant, err));
    WEFT__TRY(weft__node_string_opt(&quant, "quant_method", &method, err));
    for (size_t i = 0; i < WEFT__COUNT(known); i++)
        if (method == NULL || strncmp(method, known[i], strlen(known[i])) == 0) return WEFT_OK;
    return weft__fail(
        err, WEFT_UNSUPPORTED,
        "%s: quant_method \"%.64s\" is not supported; weft reads plain BF16, F16, F32, "
        "and the FP8 and NVFP4 of modelopt, compressed-tensors and fp8",
        config->file, method);
}

weft_status weft__arch_load(const char *dir, struct weft__arena *arena, struct weft__arch *out,
                            weft_error *err)
{
    char path[WEFT__MAX_PATH];
    WEFT__TRY(weft__path_join(path, dir, "config.json", err));
    struct weft__node config;
    weft_status status = weft__config_open(path, &config, err);
    if (status == WEFT_NOT_FOUND)
        return weft__fail(err, WEFT_NOT_FOUND,
                          "%s: there is no config.json; MODEL is the directory of a Hugging Face "
                          "checkpoint",
                          dir[0] != '\0' ? dir : "(empty name)");
    if (status != WEFT_OK) return status;
    struct weft__arch arch = {0};
    status = choose_family(&config, &arch.family, err);
    if (status == WEFT_OK) status = check_quantisation(&config, err);
    if (status == WEFT_OK) status = check_modelopt_file(dir, err);
    if (status == WEFT_OK) status = common(&config, &arch, err);
    if (status == WEFT_OK) status = arch.family->configure(&config, arena, &arch, err);
    if (status == WEFT_OK) status = check_layer_types(&config, &arch, err);
    weft__config_close(&config);
    if (status == WEFT_OK) *out = arch;
    return status;
}
