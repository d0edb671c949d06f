/* Finds, checks and slices the tensors of one rank. Large ones stay in the file's mapping: a rank
 * touches only its rows or columns. Vectors and small scale tables become F32. */
#include <stdio.h>
#include <string.h>

#include "model.h"

enum { NAME_MAX_BYTES = 256, NVFP4_BLOCK = 16, FP8_BLOCK = 128 };

struct loader {
    struct weft__checkpoint *checkpoint;
    const struct weft__arch *arch;
    const struct weft__shard *shard;
    weft_comm *comm; /* NULL: scales are not checked for NaN, which reads them */
    int64_t layer;
    struct weft__weights weights;
    weft_error *err;
};

/* "model.layers.<layer>.<name>". */
static const char *layer_name(const struct loader *load, const char *name,
                              char text[NAME_MAX_BYTES])
{
    (void)snprintf(text, NAME_MAX_BYTES, "model.layers.%lld.%s", (long long)load->layer, name);
    return text;
}

static weft_status load_vector(struct loader *load, const char *name, int64_t n, const float **out)
{
    struct weft__tensor tensor;
    WEFT__TRY(weft__checkpoint_get(load->checkpoint, name, 1, &n, &tensor, load->err));
    float *values = weft__arena_array(&load->weights.arena, (size_t)n, sizeof *values);
    if (values == NULL) return weft__fail_oom(load->err, (size_t)n * sizeof *values, name);
    WEFT__TRY(weft__tensor_f32(&tensor, values, load->err));
    load->weights.mapped_bytes += (size_t)tensor.bytes;
    *out = values;
    return WEFT_OK;
}

static weft_status load_layer_vector(struct loader *load, const char *name, int64_t n,
                                     const float **out)
{
    char text[NAME_MAX_BYTES];
    return load_vector(load, layer_name(load, name, text), n, out);
}

/* The scale table of an FP8 linear as F32: [out], or [ceil(out/128), ceil(in/128)]. */
static weft_status load_scale_table(struct loader *load, const struct weft__linear_view *view,
                                    const struct weft__range *rows, const struct weft__range *cols,
                                    struct weft__matrix *w)
{
    int64_t count = weft__linear_scale_count(view);
    float *table = weft__arena_array(&load->weights.arena, (size_t)count, sizeof *table);
    if (table == NULL)
        return weft__fail_oom(load->err, (size_t)count * sizeof *table, view->scale.name);
    WEFT__TRY(weft__linear_scale_f32(view, table, load->err));
    w->scale = (const uint8_t *)table;
    if (view->kind == WEFT__LINEAR_FP8_CHANNEL) {
        w->scale_kind = WEFT__SCALE_ROW;
        w->scale_row_bytes = (int64_t)sizeof *table;
        w->scale += rows->begin * w->scale_row_bytes;
    } else {
        w->scale_kind = WEFT__SCALE_BLOCK;
        w->scale_row_bytes = weft__ceil_div(view->in, FP8_BLOCK) * (int64_t)sizeof *table;
        w->block_row = rows->begin;
        w->block_col = cols->begin;
    }
    return WEFT_OK;
}

/* How the file wants the linear's inputs quantised. A static kind without its scale is weight-only.
 */
static void set_activations(const struct weft__linear_view *view, struct weft__matrix *w)
{
    static const enum weft__activations of[] = {
        [WEFT__LINEAR_PLAIN] = WEFT__ACTIVATIONS_F32,
        [WEFT__LINEAR_NVFP4] = WEFT__ACTIVATIONS_NVFP4,
        [WEFT__LINEAR_FP8_TENSOR] = WEFT__ACTIVATIONS_FP8_TENSOR,
        [WEFT__LINEAR_FP8_CHANNEL] = WEFT__ACTIVATIONS_FP8_TOKEN,
        [WEFT__LINEAR_FP8_BLOCK] = WEFT__ACTIVATIONS_FP8_BLOCK,
    };
    bool is_static = view->kind == WEFT__LINEAR_NVFP4 || view->kind == WEFT__LINEAR_FP8_TENSOR;
    w->input_scale = view->input_scale;
    w->activations = is_static && view->input_scale == 0 ? WEFT__ACTIVATIONS_F32 : of[view->kind];
}

/* Linears that read the same input take the largest of their scales, as in vLLM. */
static void share_input_scale(struct weft__matrix *const *w, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < count; k++)
            if (w[k]->activations == w[i]->activations && w[k]->input_scale > w[i]->input_scale)
                w[i]->input_scale = w[k]->input_scale;
}

/* The rows and columns of a linear that this rank holds; the bias goes with the rows, once: a
 * row-parallel linear (columns split) adds it on rank 0 only. */
static weft_status slice(struct loader *load, const struct weft__linear_view *view,
                         struct weft__range rows, struct weft__range cols, struct weft__matrix *out)
{
    struct weft__matrix w = {.dtype = view->dtype,
                             .rows = rows.count,
                             .cols = cols.count,
                             .row_bytes = view->row_bytes,
                             .scale_global = view->scale_global};
    int64_t bits = weft__dtype_bits(view->dtype);
    if (load->comm != NULL) weft_comm_heartbeat(load->comm);
    set_activations(view, &w);
    w.data = view->weight.data + rows.begin * view->row_bytes + cols.begin * bits / 8;
    load->weights.mapped_bytes += (size_t)(rows.count * cols.count * bits / 8);
    if (view->kind == WEFT__LINEAR_NVFP4) {
        if (load->comm != NULL)
            WEFT__TRY(weft__linear_check(view, rows.begin, rows.count, load->err));
        w.scale_kind = WEFT__SCALE_NVFP4;
        w.scale_row_bytes = view->in / NVFP4_BLOCK;
        w.scale = view->scale.data + rows.begin * w.scale_row_bytes + cols.begin / NVFP4_BLOCK;
        load->weights.mapped_bytes += (size_t)(rows.count * cols.count / NVFP4_BLOCK);
    } else if (weft__linear_scale_count(view) > 0) {
        WEFT__TRY(load_scale_table(load, view, &rows, &cols, &w));
    }
    bool columns_split = cols.count != view->in;
    if (view->bias.name != NULL && (!columns_split || load->shard->rank == 0)) {
        struct weft__tensor bias = weft__tensor_rows(&view->bias, rows.begin, rows.count);
        float *values = weft__arena_array(&load->weights.arena, (size_t)rows.count, sizeof *values);
        if (values == NULL)
            return weft__fail_oom(load->err, (size_t)rows.count * sizeof *values, view->bias.name);
        WEFT__TRY(weft__tensor_f32(&bias, values, load->err));
        w.bias = values;
    }
    *out = w;
    return WEFT_OK;
}

struct linear {
    const char *name; /* of the module, in the layer */
    int64_t out, in;
    struct weft__range rows, cols; /* {0, out}, {0, in}: whole */
    bool bias;                     /* what the config says */
};

static weft_status check_bias(struct loader *load, const struct weft__linear_view *view,
                              const char *module, bool wanted)
{
    if ((view->bias.name != NULL) == wanted) return WEFT_OK;
    return weft__fail(load->err, WEFT_FORMAT,
                      wanted ? "%s: config.json asks for a bias on %s, but the file has none"
                             : "%s: the file has a bias on %s, but config.json says there is none",
                      weft__checkpoint_path(load->checkpoint), module);
}

static weft_status load_linear(struct loader *load, const struct linear *linear,
                               struct weft__matrix *out)
{
    char text[NAME_MAX_BYTES];
    struct weft__linear_view view;
    const char *module = layer_name(load, linear->name, text);
    WEFT__TRY(
        weft__linear_open(load->checkpoint, module, linear->out, linear->in, &view, load->err));
    WEFT__TRY(check_bias(load, &view, module, linear->bias));
    return slice(load, &view, linear->rows, linear->cols, out);
}

static struct weft__range whole(int64_t n) { return (struct weft__range){.begin = 0, .count = n}; }

static struct weft__range scaled(struct weft__range range, int64_t by)
{
    return (struct weft__range){.begin = range.begin * by, .count = range.count * by};
}

static weft_status load_gqa(struct loader *load, struct weft__layer *layer)
{
    const struct weft__arch *a = load->arch;
    struct weft__range q = scaled(load->shard->heads, a->head_dim);
    struct weft__range kv = scaled(load->shard->kv_heads, a->head_dim);
    int64_t q_rows = a->heads * a->head_dim, kv_rows = a->kv_heads * a->head_dim;
    const struct linear projections[] = {
        {"self_attn.q_proj", q_rows, a->hidden, q, whole(a->hidden), a->qkv_bias},
        {"self_attn.k_proj", kv_rows, a->hidden, kv, whole(a->hidden), a->qkv_bias},
        {"self_attn.v_proj", kv_rows, a->hidden, kv, whole(a->hidden), a->qkv_bias},
        {"self_attn.o_proj", a->hidden, q_rows, whole(a->hidden), q, a->o_bias},
    };
    struct weft__matrix *const out[] = {&layer->q, &layer->k, &layer->v, &layer->o};
    for (size_t i = 0; i < WEFT__COUNT(projections); i++)
        WEFT__TRY(load_linear(load, &projections[i], out[i]));
    share_input_scale(out, 3);
    if (!a->qk_norm) return WEFT_OK;
    WEFT__TRY(load_layer_vector(load, "self_attn.q_norm.weight", a->head_dim, &layer->q_norm));
    return load_layer_vector(load, "self_attn.k_norm.weight", a->head_dim, &layer->k_norm);
}

static weft_status load_indexer(struct loader *load, struct weft__layer *layer)
{
    const struct weft__arch *a = load->arch;
    int64_t q_rows = a->index_heads * a->index_dim;
    const struct linear projections[] = {
        {"self_attn.indexer.wq_b", q_rows, a->q_lora, whole(q_rows), whole(a->q_lora), false},
        {"self_attn.indexer.wk", a->index_dim, a->hidden, whole(a->index_dim), whole(a->hidden),
         false},
        {"self_attn.indexer.weights_proj", a->index_heads, a->hidden, whole(a->index_heads),
         whole(a->hidden), false},
    };
    struct weft__matrix *const out[] = {&layer->index_q, &layer->index_k, &layer->index_weight};
    for (size_t i = 0; i < WEFT__COUNT(projections); i++)
        WEFT__TRY(load_linear(load, &projections[i], out[i]));
    WEFT__TRY(load_layer_vector(load, "self_attn.indexer.k_norm.weight", a->index_dim,
                                &layer->index_norm));
    return load_layer_vector(load, "self_attn.indexer.k_norm.bias", a->index_dim,
                             &layer->index_norm_bias);
}

static weft_status load_mla(struct loader *load, struct weft__layer *layer)
{
    const struct weft__arch *a = load->arch;
    const struct weft__range heads = load->shard->heads;
    int64_t key = a->nope_dim + a->rope_dim, up = a->nope_dim + a->value_dim;
    int64_t latent = a->kv_lora + a->rope_dim, q_in = a->q_lora > 0 ? a->q_lora : a->hidden;
    if (a->q_lora > 0) {
        const struct linear q_a = {"self_attn.q_a_proj", a->q_lora,        a->hidden,
                                   whole(a->q_lora),     whole(a->hidden), a->qkv_bias};
        WEFT__TRY(load_linear(load, &q_a, &layer->q_a));
        WEFT__TRY(
            load_layer_vector(load, "self_attn.q_a_layernorm.weight", a->q_lora, &layer->q_a_norm));
    }
    const struct linear projections[] = {
        {a->q_lora > 0 ? "self_attn.q_b_proj" : "self_attn.q_proj", a->heads * key, q_in,
         scaled(heads, key), whole(q_in), false},
        {"self_attn.kv_a_proj_with_mqa", latent, a->hidden, whole(latent), whole(a->hidden),
         a->qkv_bias},
        {"self_attn.kv_b_proj", a->heads * up, a->kv_lora, scaled(heads, up), whole(a->kv_lora),
         false},
        {"self_attn.o_proj", a->hidden, a->heads * a->value_dim, whole(a->hidden),
         scaled(heads, a->value_dim), a->o_bias},
    };
    struct weft__matrix *const out[] = {&layer->q_b, &layer->kv_a, &layer->kv_b, &layer->o};
    for (size_t i = 0; i < WEFT__COUNT(projections); i++)
        WEFT__TRY(load_linear(load, &projections[i], out[i]));
    WEFT__TRY(
        load_layer_vector(load, "self_attn.kv_a_layernorm.weight", a->kv_lora, &layer->kv_a_norm));
    if (a->index_top > 0 && a->index_full[load->layer]) return load_indexer(load, layer);
    return WEFT_OK;
}

/* The columns of down_proj, and rows of gate and up, that this rank holds. */
static struct weft__range mlp_range(const struct loader *load, const struct weft__linear_view *down)
{
    int64_t unit = down->kind == WEFT__LINEAR_NVFP4 ? NVFP4_BLOCK : 8;
    return weft__shard_range(down->in, unit, load->shard->rank, load->shard->size);
}

static weft_status load_mlp(struct loader *load, const char *prefix, int64_t width,
                            struct weft__mlp_weights *out)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    struct weft__linear_view view[3];
    for (int i = 0; i < 3; i++) {
        char name[NAME_MAX_BYTES / 2], text[NAME_MAX_BYTES];
        (void)snprintf(name, sizeof name, "%s.%s", prefix, names[i]);
        const char *module = layer_name(load, name, text);
        WEFT__TRY(weft__linear_open(load->checkpoint, module, i == 2 ? load->arch->hidden : width,
                                    i == 2 ? width : load->arch->hidden, &view[i], load->err));
        WEFT__TRY(check_bias(load, &view[i], module, load->arch->mlp_bias));
    }
    struct weft__range range = mlp_range(load, &view[2]), hidden = whole(load->arch->hidden);
    WEFT__TRY(slice(load, &view[0], range, hidden, &out->gate));
    WEFT__TRY(slice(load, &view[1], range, hidden, &out->up));
    share_input_scale((struct weft__matrix *[]){&out->gate, &out->up}, 2);
    return slice(load, &view[2], hidden, range, &out->down);
}

/* A token is quantised once for all experts of a layer; when they differ in kind it is not. */
static void share_expert_input(struct weft__matrix *w, int64_t count)
{
    float scale = 0;
    bool same = true;
    for (int64_t i = 0; i < count; i++) {
        scale = w[i].input_scale > scale ? w[i].input_scale : scale;
        same = same && w[i].activations == w[0].activations;
    }
    for (int64_t i = 0; i < count; i++) {
        w[i].input_scale = scale;
        if (!same) w[i].activations = WEFT__ACTIVATIONS_F32;
    }
}

static weft_status load_experts(struct loader *load, struct weft__layer *layer)
{
    const struct weft__arch *a = load->arch;
    char text[NAME_MAX_BYTES];
    struct weft__matrix *all =
        weft__arena_array(&load->weights.arena, 3 * (size_t)a->experts, sizeof *all);
    if (all == NULL)
        return weft__fail_oom(load->err, 3 * (size_t)a->experts * sizeof *all, "the expert table");
    layer->expert_gate = all;
    layer->expert_up = all + a->experts;
    layer->expert_down = all + 2 * a->experts;
    struct weft__expert_ref ref = {.experts = layer_name(load, "mlp.experts", text),
                                   .count = a->experts};
    for (int64_t e = 0; e < a->experts; e++) {
        struct weft__linear_view down, gate, up;
        ref.expert = e;
        ref.projection = "down_proj";
        ref.out = a->hidden;
        ref.in = a->expert_intermediate;
        WEFT__TRY(weft__linear_open_expert(load->checkpoint, &ref, &down, load->err));
        ref.projection = "gate_proj";
        ref.out = a->expert_intermediate;
        ref.in = a->hidden;
        WEFT__TRY(weft__linear_open_expert(load->checkpoint, &ref, &gate, load->err));
        ref.projection = "up_proj";
        WEFT__TRY(weft__linear_open_expert(load->checkpoint, &ref, &up, load->err));
        struct weft__range range = mlp_range(load, &down), hidden = whole(a->hidden);
        WEFT__TRY(slice(load, &gate, range, hidden, &layer->expert_gate[e]));
        WEFT__TRY(slice(load, &up, range, hidden, &layer->expert_up[e]));
        WEFT__TRY(slice(load, &down, hidden, range, &layer->expert_down[e]));
        /* The experts' work space is one strided buffer. */
        if (layer->expert_down[e].cols != layer->expert_down[0].cols)
            return weft__fail(load->err, WEFT_UNSUPPORTED,
                              "%s: expert %lld of layer %lld has another format than expert 0",
                              weft__checkpoint_path(load->checkpoint), (long long)e,
                              (long long)load->layer);
    }
    share_expert_input(layer->expert_gate, 2 * a->experts); /* and up, which follow */
    share_expert_input(layer->expert_down, a->experts);
    return WEFT_OK;
}

static weft_status load_moe(struct loader *load, struct weft__layer *layer)
{
    const struct weft__arch *a = load->arch;
    const struct linear router = {"mlp.gate",        a->experts,       a->hidden,
                                  whole(a->experts), whole(a->hidden), false};
    WEFT__TRY(load_linear(load, &router, &layer->router));
    if (a->router_bias)
        WEFT__TRY(load_layer_vector(load, "mlp.gate.e_score_correction_bias", a->experts,
                                    &layer->router_bias));
    WEFT__TRY(load_experts(load, layer));
    if (a->shared_intermediate == 0) return WEFT_OK;
    return load_mlp(load, "mlp.shared_experts", a->shared_intermediate, &layer->mlp);
}

static weft_status load_layer(struct loader *load, struct weft__layer *layer)
{
    const struct weft__arch *a = load->arch;
    WEFT__TRY(load_layer_vector(load, "input_layernorm.weight", a->hidden, &layer->input_norm));
    WEFT__TRY(
        load_layer_vector(load, "post_attention_layernorm.weight", a->hidden, &layer->post_norm));
    WEFT__TRY(a->mla ? load_mla(load, layer) : load_gqa(load, layer));
    if (a->sparse != NULL && a->sparse[load->layer]) return load_moe(load, layer);
    if (a->intermediate == 0)
        return weft__fail(load->err, WEFT_FORMAT,
                          "%s: layer %lld is dense, but config.json has no intermediate_size",
                          weft__checkpoint_path(load->checkpoint), (long long)load->layer);
    return load_mlp(load, "mlp", a->intermediate, &layer->mlp);
}

bool weft__weights_untied(const struct weft__checkpoint *checkpoint)
{
    struct weft__tensor head;
    return weft__checkpoint_find(checkpoint, "lm_head.weight", &head) ||
           weft__checkpoint_find(checkpoint, "lm_head.weight_packed", &head);
}

static weft_status load_ends(struct loader *load)
{
    const struct weft__arch *a = load->arch;
    struct weft__weights *weights = &load->weights;
    struct weft__linear_view embed, head;
    WEFT__TRY(weft__linear_open(load->checkpoint, "model.embed_tokens", a->vocab, a->hidden, &embed,
                                load->err));
    WEFT__TRY(slice(load, &embed, whole(a->vocab), whole(a->hidden), &weights->embed));
    WEFT__TRY(load_vector(load, "model.norm.weight", a->hidden, &weights->final_norm));
    bool untied = weft__weights_untied(load->checkpoint);
    if (!untied && !a->tied)
        return weft__fail(load->err, WEFT_FORMAT,
                          "%s: there is no lm_head.weight, and config.json does not say "
                          "\"tie_word_embeddings\": true; one of them is incomplete",
                          weft__checkpoint_path(load->checkpoint));
    if (!untied) {
        size_t counted = weights->mapped_bytes;
        WEFT__TRY(slice(load, &embed, load->shard->vocab, whole(a->hidden), &weights->lm_head));
        weights->mapped_bytes = counted; /* the same bytes */
        return WEFT_OK;
    }
    WEFT__TRY(
        weft__linear_open(load->checkpoint, "lm_head", a->vocab, a->hidden, &head, load->err));
    return slice(load, &head, load->shard->vocab, whole(a->hidden), &weights->lm_head);
}

static weft_status load_all(struct loader *load)
{
    struct weft__weights *weights = &load->weights;
    size_t layers = (size_t)load->arch->layers;
    WEFT__TRY(load_ends(load));
    weights->layer = weft__arena_array(&weights->arena, layers, sizeof *weights->layer);
    if (weights->layer == NULL)
        return weft__fail_oom(load->err, layers * sizeof *weights->layer, "the layer table");
    for (load->layer = 0; load->layer < load->arch->layers; load->layer++)
        WEFT__TRY(load_layer(load, &weights->layer[load->layer]));
    return WEFT_OK;
}

weft_status weft__weights_load(struct weft__checkpoint *checkpoint, const struct weft__arch *arch,
                               const struct weft__shard *shard, weft_comm *comm,
                               struct weft__weights *out, weft_error *err)
{
    struct loader load = {
        .checkpoint = checkpoint, .arch = arch, .shard = shard, .comm = comm, .err = err};
    weft_status status = load_all(&load);
    if (status == WEFT_OK)
        *out = load.weights;
    else
        weft__weights_free(&load.weights);
    return status;
}

void weft__weights_free(struct weft__weights *weights)
{
    weft__arena_free(&weights->arena);
    *weights = (struct weft__weights){0};
}

int64_t weft__head_unit(const struct weft__checkpoint *checkpoint, const struct weft__arch *arch)
{
    int64_t width = arch->mla ? arch->value_dim : arch->head_dim, unit = 1;
    struct weft__linear_view view;
    for (int64_t i = 0; i < arch->layers; i++) {
        char module[NAME_MAX_BYTES];
        (void)snprintf(module, sizeof module, "model.layers.%lld.self_attn.o_proj", (long long)i);
        if (weft__linear_open(checkpoint, module, arch->hidden, arch->heads * width, &view, NULL) ==
                WEFT_OK &&
            view.kind == WEFT__LINEAR_NVFP4)
            while (unit * width % NVFP4_BLOCK != 0) unit++;
    }
    return unit;
}

bool weft__tensor_used(const struct weft__arch *arch, const struct weft__tensor *tensor)
{
    long long layer;
    if (strncmp(tensor->name, "mtp.", 4) == 0) return false;
    return sscanf(tensor->name, "model.layers.%9lld.", &layer) != 1 || layer < arch->layers;
}

static bool ends_with(const char *text, const char *end)
{
    size_t len = strlen(text), end_len = strlen(end);
    return len >= end_len && strcmp(text + len - end_len, end) == 0;
}

/* Of multi-token prediction, whose layers follow the model's and begin with a norm of their own; of
 * an indexer in a layer that uses another layer's; scales of quantised KV caches; a table of
 * frequencies. */
static bool known_unread(const struct weft__checkpoint *checkpoint, const struct weft__arch *arch,
                         const char *name)
{
    static const char *const ends[] = {".k_scale", ".v_scale", ".kv_scale", ".rotary_emb.inv_freq"};
    long long layer;
    for (size_t i = 0; i < WEFT__COUNT(ends); i++)
        if (ends_with(name, ends[i])) return true;
    if (strncmp(name, "mtp.", 4) == 0) return true;
    if (sscanf(name, "model.layers.%9lld.", &layer) != 1 || layer < 0) return false;
    if (layer < arch->layers)
        return arch->index_top > 0 && !arch->index_full[layer] &&
               strstr(name, ".self_attn.indexer.") != NULL;
    char norm[NAME_MAX_BYTES];
    struct weft__tensor tensor;
    (void)snprintf(norm, sizeof norm, "model.layers.%lld.enorm.weight", layer);
    return weft__checkpoint_find(checkpoint, norm, &tensor);
}

int64_t weft__weights_unread(const struct weft__checkpoint *checkpoint,
                             const struct weft__arch *arch, weft_error *note)
{
    int64_t count = 0;
    const char *one = NULL;
    for (int64_t i = 0; i < weft__checkpoint_count(checkpoint); i++) {
        const char *name = weft__checkpoint_at(checkpoint, i).name;
        if (weft__checkpoint_found(checkpoint, i) || known_unread(checkpoint, arch, name)) continue;
        if (count++ == 0) one = name;
    }
    if (count > 0)
        (void)weft__fail(
            note, WEFT_FORMAT,
            "%s: the model has no use for %lld of the tensors, such as '%.160s'; check "
            "that config.json belongs to these weights",
            weft__checkpoint_path(checkpoint), (long long)count, one);
    return count;
}
