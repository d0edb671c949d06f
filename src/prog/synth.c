/* weft synth: a checkpoint with a real model's shapes and random weights of sane scales, to measure
 * speed without the model. Tensors are made as they are written: memory does not grow with size. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numerics.h"
#include "prog.h"

enum { MAX_HEADER = 100 << 20 }; /* readers of safetensors take no more */

/* Of the models' own config.json, what says their shapes. */
static const struct {
    const char *name, *config;
} likes[] = {
    {"glm-5",
     "{\"model_type\": \"glm_moe_dsa\", \"hidden_size\": 6144, \"num_hidden_layers\": 78,"
     "\"num_attention_heads\": 64, \"num_key_value_heads\": 64, \"q_lora_rank\": 2048,"
     "\"kv_lora_rank\": 512, \"qk_nope_head_dim\": 192, \"qk_rope_head_dim\": 64,"
     "\"v_head_dim\": 256, \"intermediate_size\": 12288, \"moe_intermediate_size\": 2048,"
     "\"n_routed_experts\": 256, \"n_shared_experts\": 1, \"num_experts_per_tok\": 8,"
     "\"first_k_dense_replace\": 3, \"scoring_func\": \"sigmoid\", \"topk_method\": \"noaux_tc\","
     "\"n_group\": 1, \"topk_group\": 1, \"norm_topk_prob\": true,"
     "\"routed_scaling_factor\": 2.5, \"index_n_heads\": 32, \"index_head_dim\": 128,"
     "\"index_topk\": 2048, \"rope_parameters\": {\"rope_type\": \"default\","
     "\"rope_theta\": 1000000.0}, \"max_position_embeddings\": 202752, \"rms_norm_eps\": 1e-5,"
     "\"hidden_act\": \"silu\", \"attention_bias\": false, \"tie_word_embeddings\": false,"
     "\"vocab_size\": 154880, \"eos_token_id\": 154820}"},
    {"smollm2-135m",
     "{\"model_type\": \"llama\", \"hidden_size\": 576, \"num_hidden_layers\": 30,"
     "\"num_attention_heads\": 9, \"num_key_value_heads\": 3, \"intermediate_size\": 1536,"
     "\"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-5, \"rope_theta\": 100000.0,"
     "\"hidden_act\": \"silu\", \"tie_word_embeddings\": true, \"vocab_size\": 49152,"
     "\"eos_token_id\": 2}"},
};

enum content {
    ONES,    /* BF16 */
    ZEROS,   /* F32 */
    WEIGHTS, /* BF16, variance 1 / columns */
    CODES,   /* two E2M1 a byte, all equally likely */
    SCALES,  /* E4M3 from 16 to 30 */
    SCALE_2, /* F32: brings the variance of codes and scales to 1 / columns */
};

struct tensor {
    const char *name;
    enum content content;
    int64_t shape[2]; /* [1] 0: one dimension */
    int64_t columns;  /* of the matrix that it belongs to */
};

struct synth {
    const char *like;
    int64_t layers, experts, to; /* 0: as the original; 1: NVFP4 */
    json_t *config;
    struct weft__arena arena;
    struct weft__arch arch;
    struct tensor *tensor;
    size_t count, room;
    bool failed;            /* out of memory */
    int64_t bytes, written; /* of the tensors */
    struct weft__bar bar;
};

/* ---- which tensors ---- */

static void add(struct synth *s, struct tensor tensor, const char *prefix, const char *suffix)
{
    char name[512];
    (void)snprintf(name, sizeof name, "%s%s", prefix, suffix);
    if (s->count == s->room) {
        size_t room = s->room > 0 ? 2 * s->room : 1024;
        struct tensor *grown = realloc(s->tensor, room * sizeof *grown);
        s->failed = s->failed || grown == NULL;
        if (grown == NULL) return;
        s->tensor = grown;
        s->room = room;
    }
    tensor.name = weft__arena_strndup(&s->arena, name, strlen(name));
    s->failed = s->failed || tensor.name == NULL;
    s->tensor[s->count++] = tensor;
}

static void add_vector(struct synth *s, enum content content, int64_t n, const char *prefix,
                       const char *suffix)
{
    add(s, (struct tensor){.content = content, .shape = {n}}, prefix, suffix);
}

static void add_plain(struct synth *s, int64_t out, int64_t in, const char *prefix,
                      const char *suffix)
{
    add(s, (struct tensor){.content = WEIGHTS, .shape = {out, in}, .columns = in}, prefix, suffix);
}

/* A projection of a layer that `weft quantize` leaves alone. */
static void add_kept(struct synth *s, int64_t out, int64_t in, bool bias, const char *prefix,
                     const char *name)
{
    char module[256];
    (void)snprintf(module, sizeof module, "%s%s", prefix, name);
    add_plain(s, out, in, module, ".weight");
    if (bias) add_vector(s, ZEROS, out, module, ".bias");
}

/* One that it would quantise is NVFP4 here too. */
static void add_linear(struct synth *s, int64_t out, int64_t in, bool bias, const char *prefix,
                       const char *name)
{
    char module[256];
    struct tensor t = {.content = CODES, .shape = {out, in / 2}, .columns = in};
    if (s->to == 0 || in % 16 != 0) {
        add_kept(s, out, in, bias, prefix, name);
        return;
    }
    (void)snprintf(module, sizeof module, "%s%s", prefix, name);
    add(s, t, module, ".weight");
    t.content = SCALES;
    t.shape[1] = in / 16;
    add(s, t, module, ".weight_scale");
    add(s, (struct tensor){.content = SCALE_2, .columns = in}, module, ".weight_scale_2");
    if (bias) add_vector(s, ZEROS, out, module, ".bias");
}

static void add_attention(struct synth *s, int64_t layer, const char *prefix)
{
    const struct weft__arch *a = &s->arch;
    int64_t h = a->hidden, key = a->nope_dim + a->rope_dim;
    if (!a->mla) {
        int64_t q = a->heads * a->head_dim, kv = a->kv_heads * a->head_dim;
        add_linear(s, q, h, a->qkv_bias, prefix, "self_attn.q_proj");
        add_linear(s, kv, h, a->qkv_bias, prefix, "self_attn.k_proj");
        add_linear(s, kv, h, a->qkv_bias, prefix, "self_attn.v_proj");
        add_linear(s, h, q, a->o_bias, prefix, "self_attn.o_proj");
        if (!a->qk_norm) return;
        add_vector(s, ONES, a->head_dim, prefix, "self_attn.q_norm.weight");
        add_vector(s, ONES, a->head_dim, prefix, "self_attn.k_norm.weight");
        return;
    }
    if (a->q_lora > 0) {
        add_kept(s, a->q_lora, h, a->qkv_bias, prefix, "self_attn.q_a_proj");
        add_vector(s, ONES, a->q_lora, prefix, "self_attn.q_a_layernorm.weight");
        add_plain(s, a->heads * key, a->q_lora, prefix, "self_attn.q_b_proj.weight");
    } else {
        add_plain(s, a->heads * key, h, prefix, "self_attn.q_proj.weight");
    }
    add_kept(s, a->kv_lora + a->rope_dim, h, a->qkv_bias, prefix, "self_attn.kv_a_proj_with_mqa");
    add_vector(s, ONES, a->kv_lora, prefix, "self_attn.kv_a_layernorm.weight");
    add_plain(s, a->heads * (a->nope_dim + a->value_dim), a->kv_lora, prefix,
              "self_attn.kv_b_proj.weight");
    add_kept(s, h, a->heads * a->value_dim, a->o_bias, prefix, "self_attn.o_proj");
    if (a->index_top == 0 || !a->index_full[layer]) return;
    add_plain(s, a->index_heads * a->index_dim, a->q_lora, prefix, "self_attn.indexer.wq_b.weight");
    add_plain(s, a->index_dim, h, prefix, "self_attn.indexer.wk.weight");
    add_plain(s, a->index_heads, h, prefix, "self_attn.indexer.weights_proj.weight");
    add_vector(s, ONES, a->index_dim, prefix, "self_attn.indexer.k_norm.weight");
    add_vector(s, ZEROS, a->index_dim, prefix, "self_attn.indexer.k_norm.bias");
}

static void add_mlp(struct synth *s, int64_t width, const char *prefix, const char *name)
{
    char module[256];
    (void)snprintf(module, sizeof module, "%s%s", prefix, name);
    add_linear(s, width, s->arch.hidden, s->arch.mlp_bias, module, ".gate_proj");
    add_linear(s, width, s->arch.hidden, s->arch.mlp_bias, module, ".up_proj");
    add_linear(s, s->arch.hidden, width, s->arch.mlp_bias, module, ".down_proj");
}

static void add_layer(struct synth *s, int64_t layer)
{
    const struct weft__arch *a = &s->arch;
    char prefix[64], expert[64];
    (void)snprintf(prefix, sizeof prefix, "model.layers.%lld.", (long long)layer);
    add_vector(s, ONES, a->hidden, prefix, "input_layernorm.weight");
    add_vector(s, ONES, a->hidden, prefix, "post_attention_layernorm.weight");
    add_attention(s, layer, prefix);
    if (a->sparse == NULL || !a->sparse[layer]) {
        add_mlp(s, a->intermediate, prefix, "mlp");
        return;
    }
    add_plain(s, a->experts, a->hidden, prefix, "mlp.gate.weight");
    if (a->router_bias)
        add_vector(s, ZEROS, a->experts, prefix, "mlp.gate.e_score_correction_bias");
    for (int64_t e = 0; e < a->experts; e++) {
        (void)snprintf(expert, sizeof expert, "mlp.experts.%lld", (long long)e);
        add_mlp(s, a->expert_intermediate, prefix, expert);
    }
    if (a->shared_intermediate > 0)
        add_mlp(s, a->shared_intermediate, prefix, "mlp.shared_experts");
}

static void add_all(struct synth *s)
{
    const struct weft__arch *a = &s->arch;
    add_plain(s, a->vocab, a->hidden, "model.embed_tokens.weight", "");
    for (int64_t layer = 0; layer < a->layers; layer++) add_layer(s, layer);
    add_vector(s, ONES, a->hidden, "model.norm.weight", "");
    if (!a->tied) add_plain(s, a->vocab, a->hidden, "lm_head.weight", "");
}

/* ---- their bytes ---- */

static int64_t elements(const struct tensor *t)
{
    if (t->content == SCALE_2) return 1;
    return t->shape[0] * (t->shape[1] > 0 ? t->shape[1] : 1);
}

static int64_t element_bytes(const struct tensor *t)
{
    static const int64_t bytes[] = {2, 4, 2, 1, 1, 4};
    return bytes[t->content];
}

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Eight bytes of a tensor. */
static uint64_t eight_bytes(const struct tensor *t, uint64_t random)
{
    const float columns = (float)(t->columns > 0 ? t->columns : 1);
    uint64_t out = 0;
    switch (t->content) {
    case ONES:
        return 0x3f803f803f803f80u;
    case ZEROS:
        return 0;
    case WEIGHTS:
        for (int i = 0; i < 4; i++) {
            float value = (float)(int16_t)(random >> 16 * i) * (sqrtf(3 / columns) * 0x1p-15f);
            out |= (uint64_t)weft__bf16_from_f32(value) << 16 * i;
        }
        return out;
    case CODES:
        return random;
    case SCALES:
        return (random & 0x0f0f0f0f0f0f0f0fu) + 0x5858585858585858u;
    default: /* random codes have a mean square of 68.5 / 8, and scales one of 1375 */
        return weft__f32_bits(1 / sqrtf(columns * 68.5f / 8 * 1375));
    }
}

static weft_status write_tensor(struct synth *s, const struct tensor *t, uint64_t seed, FILE *file,
                                const char *path, weft_error *err)
{
    enum { WORDS = 8192 };
    static uint64_t buffer[WORDS];
    uint64_t state = seed << 32;
    for (int64_t left = elements(t) * element_bytes(t); left > 0;) {
        int64_t n = weft__min(left, (int64_t)sizeof buffer);
        for (int64_t i = 0; i * 8 < n; i++) buffer[i] = eight_bytes(t, next_random(&state));
        if (fwrite(buffer, 1, (size_t)n, file) != (size_t)n)
            return weft__fail(err, WEFT_IO, "%s: %s", path, strerror(errno));
        left -= n;
        s->written += n;
        weft__bar_show(&s->bar, (double)s->written / (double)s->bytes);
        if (weft__signals_came())
            return weft__fail(err, WEFT_CLOSED, "interrupted; nothing was written");
    }
    return WEFT_OK;
}

static weft_status write_header(FILE *file, const char *path, const struct synth *s,
                                weft_error *err)
{
    static const char *const dtype[] = {"BF16", "F32", "BF16", "U8", "F8_E4M3", "F32"};
    struct weft__buf header;
    weft__buf_init(&header, MAX_HEADER);
    weft__buf_puts(&header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0, at = 0, end; i < s->count; i++, at = end) {
        const struct tensor *t = &s->tensor[i];
        end = at + (size_t)(elements(t) * element_bytes(t));
        weft__buf_printf(&header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name,
                         dtype[t->content]);
        if (t->content != SCALE_2) weft__buf_printf(&header, "%lld", (long long)t->shape[0]);
        if (t->shape[1] > 0) weft__buf_printf(&header, ",%lld", (long long)t->shape[1]);
        weft__buf_printf(&header, "],\"data_offsets\":[%zu,%zu]}", at, end);
    }
    weft__buf_puts(&header, "}");
    while (header.len % 8 != 0 && !header.failed) weft__buf_puts(&header, " ");
    uint64_t len = header.len;
    weft_status status = WEFT_OK;
    if (header.failed)
        status = weft__fail(err, WEFT_TOO_LONG,
                            "%s: %zu tensors need a header of more than %d MiB, or memory is out; "
                            "ask for fewer --layers or --experts",
                            path, s->count, MAX_HEADER >> 20);
    else if (fwrite(&len, sizeof len, 1, file) != 1 ||
             fwrite(header.data, 1, header.len, file) != header.len)
        status = weft__fail(err, WEFT_IO, "%s: %s", path, strerror(errno));
    weft__buf_free(&header);
    return status;
}

/* ---- the configuration ---- */

/* The count has one of these names; false: none of them. */
static bool set_experts(json_t *config, int64_t value)
{
    static const char *const names[] = {"n_routed_experts", "num_experts", "num_local_experts"};
    bool found = false;
    for (size_t i = 0; i < WEFT__COUNT(names); i++)
        if (json_object_get(config, names[i]) != NULL)
            found = json_object_set_new(config, names[i], json_integer(value)) == 0;
    return found;
}

/* Fewer layers: lists with an entry a layer become shorter, and one layer of experts stays. */
static void set_layers(json_t *config, int64_t layers)
{
    const char *key;
    json_t *value, *before = json_object_get(config, "num_hidden_layers");
    json_int_t old = json_integer_value(before);
    if (layers == 0) return;
    json_object_foreach (config, key, value) {
        if ((json_int_t)json_array_size(value) != old) continue;
        while (json_array_size(value) > (size_t)layers)
            (void)json_array_remove(value, json_array_size(value) - 1);
    }
    json_t *dense = json_object_get(config, "first_k_dense_replace");
    if (json_integer_value(dense) >= layers) (void)json_integer_set(dense, layers - 1);
    (void)json_integer_set(before, layers);
}

static weft_status read_config(struct synth *s, weft_error *err)
{
    char path[4096];
    json_error_t problem = {0};
    for (size_t i = 0; i < WEFT__COUNT(likes); i++)
        if (strcmp(s->like, likes[i].name) == 0)
            s->config = json_loads(likes[i].config, 0, &problem);
    if (s->config == NULL && snprintf(path, sizeof path, "%s/config.json", s->like) < 4096)
        s->config = json_load_file(path, 0, &problem);
    if (!json_is_object(s->config))
        return weft__fail(err, WEFT_NOT_FOUND,
                          "--like %.100s is neither glm-5 nor smollm2-135m nor a directory with a "
                          "config.json: %s",
                          s->like, problem.text);
    set_layers(s->config, s->layers);
    if (s->experts > 0 && !set_experts(s->config, s->experts))
        return weft__fail(err, WEFT_INVALID, "--experts: %.100s has none", s->like);
    (void)json_object_del(s->config, "quantization_config");
    return WEFT_OK;
}

/* ---- the command ---- */

static weft_status write_weights(struct synth *s, const struct weft__new_dir *dir, weft_error *err)
{
    char path[WEFT__MAX_PATH + 32];
    (void)snprintf(path, sizeof path, "%s/model.safetensors", dir->partial);
    FILE *file = fopen(path, "wbxe");
    if (file == NULL) return weft__fail(err, WEFT_IO, "%s: %s", path, strerror(errno));
    weft_status status = write_header(file, path, s, err);
    if (status == WEFT_OK) status = weft__new_dir_room(dir, (uint64_t)s->bytes, err);
    s->bar = weft__bar_start("writing");
    for (size_t i = 0; status == WEFT_OK && i < s->count; i++)
        status = write_tensor(s, &s->tensor[i], i + 1, file, path, err);
    weft__bar_end(&s->bar);
    if (fclose(file) != 0 && status == WEFT_OK)
        status = weft__fail(err, WEFT_IO, "%s: %s", path, strerror(errno));
    return status;
}

static weft_status write_all(struct synth *s, const struct weft__new_dir *dir, weft_error *err)
{
    char config[WEFT__MAX_PATH + 32];
    (void)snprintf(config, sizeof config, "%s/config.json", dir->partial);
    if (json_dump_file(s->config, config, JSON_INDENT(2)) != 0)
        return weft__fail(err, WEFT_IO, "%s: %s", config, strerror(errno));
    WEFT__TRY(weft__arch_load(dir->partial, &s->arena, &s->arch, err));
    add_all(s);
    if (s->failed) return weft__fail_oom(err, s->count * sizeof *s->tensor, "the tensors");
    for (size_t i = 0; i < s->count; i++)
        s->bytes += elements(&s->tensor[i]) * element_bytes(&s->tensor[i]);
    (void)fprintf(stderr, "weft synth: %zu tensors, %.3g GB\n", s->count, (double)s->bytes / 1e9);
    return write_weights(s, dir, err);
}

static weft_status run(struct synth *s, const char *target, weft_error *err)
{
    struct weft__new_dir dir;
    WEFT__TRY(read_config(s, err));
    weft__signals_hold();
    WEFT__TRY(weft__new_dir_make(&dir, target, err));
    weft_status status = write_all(s, &dir, err);
    if (status == WEFT_OK) status = weft__new_dir_publish(&dir, err);
    if (status != WEFT_OK) weft__new_dir_remove(&dir);
    return status;
}

int weft__cmd_synth(int argc, char **argv)
{
    struct synth s = {0};
    int status;
    const struct weft__option options[] = {
        {WEFT__OPTION_STRING, "like", &s.like, 0, 0, "MODEL",
         "glm-5, smollm2-135m, or a directory whose config.json is taken"},
        {WEFT__OPTION_INT, "layers", &s.layers, 1, 4096, "N", "layers (as many as the model has)"},
        {WEFT__OPTION_INT, "experts", &s.experts, 1, 4096, "N",
         "routed experts of a layer (as many as the model has)"},
        {WEFT__OPTION_CHOICE, "to", &s.to, 0, 0, "bf16|nvfp4", "projections of the layers (bf16)"},
        {0},
    };
    struct weft__command_line line = {
        .command = "synth",
        .synopsis = "DST",
        .about =
            "Writes a checkpoint with a model's shapes and random weights, to measure speed:\n"
            "weft synth DST --like glm-5 --layers 2 --experts 32. It has no tokenizer, so only\n"
            "`weft bench DST` runs it.",
        .options = options,
        .arguments_min = 1,
        .arguments_max = 1,
    };
    if (!weft__command_line_parse(&line, argc, argv, &status)) return status;
    if (s.like == NULL) return weft__usage(line.command, "--like is wanted");
    weft_error err;
    weft_status result = run(&s, line.argument[0], &err);
    if (result == WEFT_OK)
        (void)printf("%s: written, %.3g GB; it has no tokenizer: try `weft bench %s`\n",
                     line.argument[0], (double)s.bytes / 1e9, line.argument[0]);
    free(s.tensor);
    json_decref(s.config);
    weft__arena_free(&s.arena);
    return result == WEFT_OK ? WEFT__EXIT_OK : weft__report(line.command, &err);
}
