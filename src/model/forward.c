/* The forward pass of one rank. Reads like the model's diagram: two fused collectives a layer, and
 * nothing but matrix products and attention between them. */
#include "rank.h"

#define RUN(m, name, ...) \
    (m)->device->model->name((m)->dev, &(const struct weft__op_##name){__VA_ARGS__})

struct rows { /* of an input */
    const float *x;
    int64_t stride, count;
};

struct input { /* as an operation takes it */
    const float *x;
    const struct weft__int8 *x_int8;
    int64_t stride;
};

/* The input of `count` linears as the options want it: itself, or a rounded copy. */
static struct input input_of(struct weft__model *m, const struct weft__matrix *w, int64_t count,
                             struct rows in)
{
    struct input out = {.x = in.x, .stride = in.stride};
    bool nvfp4 = false;
    for (int64_t i = 0; i < count; i++) nvfp4 = nvfp4 || w[i].dtype == WEFT_F4_E2M1;
    if (m->limits.activations == WEFT_ACTIVATIONS_INT8 && nvfp4) {
        RUN(m, round_int8, .x = in.x, .x_stride = in.stride, .rows = in.count, .width = w->cols,
            .y = m->work.int8);
        out.x_int8 = m->work.int8;
    }
    if (m->limits.activations == WEFT_ACTIVATIONS_QUANTISED &&
        w->activations != WEFT__ACTIVATIONS_F32) {
        RUN(m, quantise_activations, .x = in.x, .x_stride = in.stride, .rows = in.count,
            .width = w->cols, .kind = w->activations, .input_scale = w->input_scale,
            .first_column = w->block_col, .y = m->work.quantised, .y_stride = w->cols);
        out = (struct input){.x = m->work.quantised, .stride = w->cols};
    }
    return out;
}

/* `count` linears of one input, results side by side. Those quantised as their files ask may
 * differ in how. */
static void linears(struct weft__model *m, const struct weft__matrix *w, int64_t count,
                    struct rows in, float *y)
{
    int64_t width = 0, step = m->limits.activations == WEFT_ACTIVATIONS_QUANTISED ? 1 : count;
    for (int64_t i = 0; i < count; i++) width += w[i].rows;
    for (int64_t i = 0; i < count; y += w[i].rows, i += step) {
        struct input x = input_of(m, &w[i], step, in);
        RUN(m, linear, .w = &w[i], .count = step, .x = x.x, .x_int8 = x.x_int8,
            .x_stride = x.stride, .tokens = in.count, .y = y, .y_stride = width);
    }
}

static void linear(struct weft__model *m, const struct weft__matrix *w, const float *x,
                   int64_t tokens, float *y)
{
    linears(m, w, 1, (struct rows){x, w->cols, tokens}, y);
}

/* Rotates the part of each head that starts at x. */
static void rope(struct weft__model *m, float *x, int64_t stride, int64_t head_stride,
                 int64_t tokens, int64_t heads, bool interleaved)
{
    RUN(m, rope, .x = x, .stride = stride, .head_stride = head_stride, .tokens = tokens,
        .heads = heads, .half = m->arch->rope.dim / 2, .cosine = m->work.cosine,
        .sine = m->work.sine, .interleaved = interleaved);
}

/* ---- grouped-query attention ---- */

static void attention_gqa(struct weft__model *m, int64_t layer, const struct weft__batch *batch)
{
    const struct weft__arch *a = m->arch;
    const struct weft__layer *l = &m->weights.layer[layer];
    const struct weft__cache *cache = &m->cache[layer];
    struct weft__work *w = &m->work;
    int64_t t = batch->tokens, h = m->shard.heads.count, g = m->shard.kv_heads.count;
    int64_t hd = a->head_dim, row = g * hd, all = h * hd + 2 * row;
    float *k = w->q + h * hd, *v = k + row;

    linears(m, &l->q, 3, (struct rows){w->hidden, a->hidden, t}, w->q);
    if (a->qk_norm) {
        RUN(m, norm, .x = w->q, .x_stride = all, .x_head_stride = hd, .tokens = t, .heads = h,
            .dim = hd, .weight = l->q_norm, .eps = a->norm_eps, .y = w->q, .y_stride = all,
            .y_head_stride = hd);
        RUN(m, norm, .x = k, .x_stride = all, .x_head_stride = hd, .tokens = t, .heads = g,
            .dim = hd, .weight = l->k_norm, .eps = a->norm_eps, .y = k, .y_stride = all,
            .y_head_stride = hd);
    }
    rope(m, w->q, all, hd, t, h + g, a->rope.interleaved); /* queries and keys */
    RUN(m, kv_store, .x = k, .x_stride = all, .tokens = t, .width = row, .slot = batch->slot,
        .cache = cache->k, .row = row);
    RUN(m, kv_store, .x = v, .x_stride = all, .tokens = t, .width = row, .slot = batch->slot,
        .cache = cache->v, .row = row);
    RUN(m, attention, .seq = batch->seq, .seqs = batch->seqs, .heads = h, .key_dim = hd,
        .value_dim = hd, .kv_head = m->kv_head, .q = w->q, .q_stride = all, .k = cache->k,
        .k_stride = row, .k_head_stride = hd, .v = cache->v, .v_stride = row, .v_head_stride = hd,
        .scale = a->attention_scale, .window = a->window, .y = w->heads, .y_stride = h * hd);
}

/* ---- latent attention (MLA), with the sparse indexer where the model has one ---- */

/* Which keys each row attends to. Index keys are stored for every token: later ones need them. */
static void select_keys(struct weft__model *m, int64_t layer, const struct weft__batch *batch)
{
    const struct weft__arch *a = m->arch;
    const struct weft__layer *l = &m->weights.layer[layer];
    struct weft__work *w = &m->work;
    int64_t t = batch->tokens, ih = a->index_heads, id = a->index_dim;

    linear(m, &l->index_q, w->q_latent, t, w->index_q);
    linear(m, &l->index_k, w->hidden, t, w->index_k);
    linear(m, &l->index_weight, w->hidden, t, w->index_weight);
    RUN(m, norm, .x = w->index_k, .x_stride = id, .tokens = t, .heads = 1, .dim = id,
        .weight = l->index_norm, .bias = l->index_norm_bias, .eps = 1e-6f, .centred = true,
        .y = w->index_k, .y_stride = id);
    rope(m, w->index_q, ih * id, id, t, ih, a->index_interleaved);
    rope(m, w->index_k, id, id, t, 1, a->index_interleaved);
    RUN(m, kv_store, .x = w->index_k, .x_stride = id, .tokens = t, .width = id, .slot = batch->slot,
        .cache = m->cache[layer].index_k, .row = id);
    RUN(m, index_select, .seq = batch->seq, .seqs = batch->seqs, .heads = ih, .dim = id,
        .top = weft__min(a->index_top, m->limits.context), .q = w->index_q, .q_stride = ih * id,
        .weight = w->index_weight, .weight_stride = ih, .k = m->cache[layer].index_k,
        .k_stride = id, .selected = w->selected, .count = w->selected_count);
}

/* The first `rows` rows of seq: keys and values expanded from the cached latents. */
static void attend_naive(struct weft__model *m, int64_t layer, const struct weft__seq *seq,
                         int32_t rows)
{
    const struct weft__arch *a = m->arch;
    const struct weft__matrix *kv_b = &m->weights.layer[layer].kv_b;
    struct weft__work *w = &m->work;
    int64_t h = m->shard.heads.count, key = a->nope_dim + a->rope_dim, value = a->value_dim;
    int64_t row = a->kv_lora + a->rope_dim, up = a->nope_dim + value;
    int64_t keys = seq->kv_len - seq->count + rows;
    const float *latents = m->cache[layer].k;

    RUN(m, kv_load, .cache = latents, .row = row, .width = row, .count = keys, .pages = seq->pages,
        .y = w->naive_latent, .y_stride = row);
    RUN(m, linear_heads, .w = kv_b, .heads = h, .row_step = up, .rows = a->nope_dim,
        .x = w->naive_latent, .x_stride = row, .tokens = keys, .y = w->naive_k, .y_stride = h * key,
        .y_head_stride = key);
    RUN(m, linear_heads, .w = kv_b, .heads = h, .first_row = a->nope_dim, .row_step = up,
        .rows = value, .x = w->naive_latent, .x_stride = row, .tokens = keys, .y = w->naive_v,
        .y_stride = h * value, .y_head_stride = value);
    RUN(m, copy, .x = w->naive_latent + a->kv_lora, .x_stride = row, .rows = keys, .heads = h,
        .width = a->rope_dim, .y = w->naive_k + a->nope_dim, .y_stride = h * key,
        .y_head_stride = key); /* the rope part of the key is one for all heads */

    const struct weft__seq part = {
        .row = seq->row, .count = rows, .kv_len = (int32_t)keys, .pages = m->identity_pages};
    RUN(m, attention, .seq = &part, .seqs = 1, .heads = h, .key_dim = key, .value_dim = value,
        .kv_head = m->own_head, .q = w->q, .q_stride = h * key, .k = w->naive_k,
        .k_stride = h * key, .k_head_stride = key, .v = w->naive_v, .v_stride = h * value,
        .v_head_stride = value, .scale = a->attention_scale, .selected = w->selected,
        .selected_count = w->selected_count,
        .selected_stride = weft__min(a->index_top, m->limits.context), .y = w->heads,
        .y_stride = h * value);
}

/* How many of the sequences have rows that follow one another, and how many rows. */
static int64_t adjoining(const struct weft__seq *seq, int64_t seqs, int64_t *rows)
{
    int64_t n = 0;
    for (*rows = 0; n < seqs && seq[n].row == seq->row + *rows; n++) *rows += seq[n].count;
    return n;
}

/* Queries of rows for the absorbed form: (q_nope UK, q_rope). */
static void absorb_queries(struct weft__model *m, const struct weft__matrix *kv_b, int64_t first,
                           int64_t rows)
{
    const struct weft__arch *a = m->arch;
    struct weft__work *w = &m->work;
    int64_t h = m->shard.heads.count, key = a->nope_dim + a->rope_dim;
    int64_t row = a->kv_lora + a->rope_dim;
    const float *q = w->q + first * h * key;
    float *absorbed = w->q_absorbed + first * h * row;

    RUN(m, linear_heads, .w = kv_b, .heads = h, .row_step = a->nope_dim + a->value_dim,
        .rows = a->nope_dim, .transposed = true, .x = q, .x_stride = h * key, .x_head_stride = key,
        .tokens = rows, .y = absorbed, .y_stride = h * row, .y_head_stride = row);
    RUN(m, copy, .x = q + a->nope_dim, .x_stride = h * key, .x_head_stride = key, .rows = rows,
        .heads = h, .width = a->rope_dim, .y = absorbed + a->kv_lora, .y_stride = h * row,
        .y_head_stride = row);
}

/* Attention over the latents themselves: kv_b folded into the query and out of the result, read
 * once for all rows that follow one another. */
static void attend_absorbed(struct weft__model *m, int64_t layer, const struct weft__seq *seq,
                            int64_t seqs)
{
    const struct weft__arch *a = m->arch;
    const struct weft__matrix *kv_b = &m->weights.layer[layer].kv_b;
    struct weft__work *w = &m->work;
    int64_t h = m->shard.heads.count, value = a->value_dim, row = a->kv_lora + a->rope_dim, rows;
    const float *latents = m->cache[layer].k;

    for (int64_t i = 0, n; i < seqs; i += n) {
        n = adjoining(seq + i, seqs - i, &rows);
        absorb_queries(m, kv_b, seq[i].row, rows);
    }
    RUN(m, attention, .seq = seq, .seqs = seqs, .heads = h, .key_dim = row, .value_dim = a->kv_lora,
        .kv_head = m->zero_head, .q = w->q_absorbed, .q_stride = h * row, .k = latents,
        .k_stride = row, .v = latents, .v_stride = row, .scale = a->attention_scale,
        .selected = w->selected, .selected_count = w->selected_count,
        .selected_stride = weft__min(a->index_top, m->limits.context), .y = w->z,
        .y_stride = h * a->kv_lora);
    for (int64_t i = 0, n; i < seqs; i += n) {
        n = adjoining(seq + i, seqs - i, &rows);
        RUN(m, linear_heads, .w = kv_b, .heads = h, .first_row = a->nope_dim,
            .row_step = a->nope_dim + value, .rows = value, .x = w->z + seq[i].row * h * a->kv_lora,
            .x_stride = h * a->kv_lora, .x_head_stride = a->kv_lora, .tokens = rows,
            .y = w->heads + seq[i].row * h * value, .y_stride = h * value, .y_head_stride = value);
    }
}

/* How many of a sequence's first rows take the naive form. */
static int32_t naive_rows(const struct weft__seq *seq)
{
    if (seq->generated) return 0;
    int64_t first = seq->kv_len - seq->count;
    return (int32_t)weft__max(weft__min(WEFT__NAIVE_POSITIONS - first, seq->count), 0);
}

static void attention_mla(struct weft__model *m, int64_t layer, const struct weft__batch *batch)
{
    const struct weft__arch *a = m->arch;
    const struct weft__layer *l = &m->weights.layer[layer];
    struct weft__work *w = &m->work;
    int64_t t = batch->tokens, h = m->shard.heads.count, key = a->nope_dim + a->rope_dim;
    int64_t row = a->kv_lora + a->rope_dim;

    if (a->q_lora > 0) {
        linear(m, &l->q_a, w->hidden, t, w->q_latent);
        RUN(m, norm, .x = w->q_latent, .x_stride = a->q_lora, .tokens = t, .heads = 1,
            .dim = a->q_lora, .weight = l->q_a_norm, .eps = a->latent_eps, .y = w->q_latent,
            .y_stride = a->q_lora);
    }
    linear(m, &l->q_b, a->q_lora > 0 ? w->q_latent : w->hidden, t, w->q);
    rope(m, w->q + a->nope_dim, h * key, key, t, h, a->rope.interleaved);
    linear(m, &l->kv_a, w->hidden, t, w->latent);
    RUN(m, norm, .x = w->latent, .x_stride = row, .tokens = t, .heads = 1, .dim = a->kv_lora,
        .weight = l->kv_a_norm, .eps = a->latent_eps, .y = w->latent, .y_stride = row);
    rope(m, w->latent + a->kv_lora, row, row, t, 1, a->rope.interleaved);
    RUN(m, kv_store, .x = w->latent, .x_stride = row, .tokens = t, .width = row,
        .slot = batch->slot, .cache = m->cache[layer].k, .row = row);
    if (a->index_top > 0 && a->index_full[layer]) select_keys(m, layer, batch);

    int64_t absorbed = 0;
    for (int32_t i = 0; i < batch->seqs; i++) {
        struct weft__seq seq = batch->seq[i];
        int32_t naive = naive_rows(&seq);
        if (naive > 0) attend_naive(m, layer, &seq, naive);
        seq.row += naive;
        seq.count -= naive;
        if (seq.count > 0) m->absorbed[absorbed++] = seq;
    }
    if (absorbed > 0) attend_absorbed(m, layer, m->absorbed, absorbed);
}

/* ---- feed-forward ---- */

/* A layer, for what computes some of its rows. */
struct rows_of {
    struct weft__model *m;
    const struct weft__layer *l;
};

/* This rank's part of the dense feed-forward layer, or of the shared expert. */
static void mlp(void *ctx, int64_t first, int64_t rows, void *out)
{
    const struct rows_of *of = ctx;
    struct weft__model *m = of->m;
    const struct weft__mlp_weights *weights = &of->l->mlp;
    int64_t hidden = m->arch->hidden, width = weights->gate.rows;
    float *x = m->work.hidden + first * hidden, *y = out, *gate = m->work.gate_up;
    for (int64_t n; rows > 0; rows -= n, x += n * hidden, y += n * hidden) {
        n = weft__min(rows, WEFT__BLOCK_ROWS);
        linears(m, &weights->gate, 2, (struct rows){x, hidden, n}, gate);
        RUN(m, silu_mul, .gate = gate, .up = gate + width, .x_stride = 2 * width, .rows = n,
            .width = width, .y = gate, .y_stride = 2 * width);
        linears(m, &weights->down, 1, (struct rows){gate, 2 * width, n}, y);
    }
}

static void experts(struct weft__model *m, const struct weft__layer *l, int64_t tokens)
{
    const struct weft__arch *a = m->arch;
    struct weft__work *w = &m->work;
    int64_t width = l->expert_gate[0].rows, pairs = tokens * a->experts_top;

    linear(m, &l->router, w->hidden, tokens, w->router);
    RUN(m, route, .logits = w->router, .bias = l->router_bias, .tokens = tokens,
        .experts = a->experts, .top = a->experts_top, .groups = a->groups,
        .top_groups = a->top_groups, .sigmoid = a->router_sigmoid, .normalise = a->router_normalise,
        .scale = a->router_scale, .expert = w->expert, .weight = w->expert_weight);
    RUN(m, moe_plan, .expert = w->expert, .tokens = tokens, .top = a->experts_top,
        .experts = a->experts, .offset = w->expert_offset, .x_row = w->x_row, .slot = w->slot);
    struct input x =
        input_of(m, l->expert_gate, 2 * a->experts, (struct rows){w->hidden, a->hidden, tokens});
    RUN(m, linear_experts, .w = l->expert_gate, .offset = w->expert_offset, .experts = a->experts,
        .x = x.x, .x_int8 = x.x_int8, .x_stride = x.stride, .x_row = w->x_row, .y = w->expert_gate,
        .y_stride = width);
    RUN(m, linear_experts, .w = l->expert_up, .offset = w->expert_offset, .experts = a->experts,
        .x = x.x, .x_int8 = x.x_int8, .x_stride = x.stride, .x_row = w->x_row, .y = w->expert_up,
        .y_stride = width);
    RUN(m, silu_mul, .gate = w->expert_gate, .up = w->expert_up, .x_stride = width, .rows = pairs,
        .width = width, .y = w->expert_gate, .y_stride = width);
    x = input_of(m, l->expert_down, a->experts, (struct rows){w->expert_gate, width, pairs});
    RUN(m, linear_experts, .w = l->expert_down, .offset = w->expert_offset, .experts = a->experts,
        .x = x.x, .x_int8 = x.x_int8, .x_stride = x.stride, .y = w->expert_out,
        .y_stride = a->hidden);
}

/* ---- the two fused collectives ---- */

/* residual += sum over ranks of what comes in; hidden = rmsnorm(residual) * weight. */
static weft_reduce reduce_norm(const struct weft__model *m, int64_t tokens, const float *weight)
{
    return (weft_reduce){.tokens = tokens,
                         .hidden = m->arch->hidden,
                         .dtype = WEFT_F32,
                         .residual = m->work.residual,
                         .residual_out = m->work.residual,
                         .norm = true,
                         .norm_weight = weight,
                         .norm_eps = m->arch->norm_eps,
                         .y = m->work.hidden};
}

/* This rank's part of what attention gives. */
static void attention_out(void *ctx, int64_t first, int64_t rows, void *out)
{
    const struct rows_of *of = ctx;
    const struct weft__matrix *o = &of->l->o;
    linear(of->m, o, of->m->work.heads + first * o->cols, rows, out);
}

/* reduce_norm of rows that are computed for it: all at once, or in tiles (tiling.c). */
static weft_status compute_reduce_norm(struct weft__model *m, enum weft__tiling_kind kind,
                                       int64_t layer, int64_t tokens, const float *norm_weight,
                                       weft_error *err)
{
    struct rows_of rows_of = {m, &m->weights.layer[layer]};
    weft_gemm_reduce op = {.reduce = reduce_norm(m, tokens, norm_weight),
                           .tile_rows = weft__tiling_choose(m, kind, layer, tokens),
                           .compute = kind == WEFT__TILING_O ? attention_out : mlp,
                           .ctx = &rows_of};
    uint64_t start = weft__now_ns();
    if (op.tile_rows > 0) {
        WEFT__TRY(weft_comm_gemm_allreduce(m->comm, &op, err));
    } else {
        void *x;
        size_t bytes = (size_t)tokens * (size_t)m->arch->hidden * sizeof(float);
        WEFT__TRY(weft_comm_input(m->comm, bytes, &x, err));
        op.compute(op.ctx, 0, tokens, x);
        op.reduce.x = x;
        WEFT__TRY(weft_comm_allreduce(m->comm, &op.reduce, err));
    }
    weft__tiling_note(m, kind, layer, tokens, weft__now_ns() - start);
    return WEFT_OK;
}

static weft_status attention_block(struct weft__model *m, int64_t layer,
                                   const struct weft__batch *batch, weft_error *err)
{
    if (m->arch->mla)
        attention_mla(m, layer, batch);
    else
        attention_gqa(m, layer, batch);
    return compute_reduce_norm(m, WEFT__TILING_O, layer, batch->tokens,
                               m->weights.layer[layer].post_norm, err);
}

static weft_status mlp_block(struct weft__model *m, int64_t layer, int64_t tokens,
                             const float *next_norm, weft_error *err)
{
    const struct weft__arch *a = m->arch;
    const struct weft__layer *l = &m->weights.layer[layer];
    struct weft__work *w = &m->work;
    if (l->expert_gate == NULL)
        return compute_reduce_norm(m, WEFT__TILING_MLP, layer, tokens, next_norm, err);
    experts(m, l, tokens);
    if (a->shared_intermediate > 0) mlp(&(struct rows_of){m, l}, 0, tokens, w->shared);
    weft_reduce op = reduce_norm(m, tokens, next_norm);
    op.moe = (weft_moe){.top_k = a->experts_top,
                        .expert_rows = tokens * a->experts_top,
                        .expert_out = w->expert_out,
                        .slots = w->slot,
                        .gates = w->expert_weight,
                        .shared = a->shared_intermediate > 0 ? w->shared : NULL};
    return weft_comm_allreduce(m->comm, &op, err);
}

weft_status weft__model_forward(struct weft__model *m, const struct weft__batch *batch,
                                const float **logits, weft_error *err)
{
    const struct weft__arch *a = m->arch;
    const struct weft__layer *layer = m->weights.layer;
    struct weft__work *w = &m->work;

    RUN(m, rope_table, .position = batch->position, .frequency = m->frequency,
        .factor = m->rope_factor, .tokens = batch->tokens, .half = a->rope.dim / 2,
        .cosine = w->cosine, .sine = w->sine);
    RUN(m, embed, .table = &m->weights.embed, .token = batch->token, .tokens = batch->tokens,
        .y = w->residual);
    RUN(m, norm, .x = w->residual, .x_stride = a->hidden, .tokens = batch->tokens, .heads = 1,
        .dim = a->hidden, .weight = layer[0].input_norm, .eps = a->norm_eps, .y = w->hidden,
        .y_stride = a->hidden);
    for (int64_t i = 0; i < a->layers; i++) {
        const float *next = i + 1 < a->layers ? layer[i + 1].input_norm : m->weights.final_norm;
        WEFT__TRY(attention_block(m, i, batch, err));
        WEFT__TRY(mlp_block(m, i, batch->tokens, next, err));
    }
    WEFT__TRY(weft__tiling_decide(m, batch->tokens, err));
    if (batch->outputs > 0) {
        RUN(m, copy, .x = w->hidden, .x_stride = a->hidden, .rows = batch->outputs, .heads = 1,
            .width = a->hidden, .row = batch->output, .y = w->out_hidden, .y_stride = a->hidden);
        linear(m, &m->weights.lm_head, w->out_hidden, batch->outputs, w->out_part);
    }
    WEFT__TRY(m->device->core->sync(m->dev, err));
    const weft_gather all = {.rows = batch->outputs,
                             .row_bytes_of = m->vocab_bytes,
                             .in = w->out_part,
                             .out = w->logits};
    if (m->shard.size > 1) WEFT__TRY(weft_comm_all_gather(m->comm, &all, err));
    *logits = w->logits;
    return WEFT_OK;
}
