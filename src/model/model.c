/* One rank's memory: measured, allocated, released. */
#include "rank.h"

/* Hands out parts of one block; with base NULL it only counts. */
struct carver {
    char *base;
    size_t used, peak;
};

static void *carve(struct carver *carver, int64_t count, size_t size)
{
    size_t bytes = weft__round_up((size_t)count * size, 64);
    void *out = carver->base != NULL && count > 0 ? carver->base + carver->used : NULL;
    carver->used += bytes;
    if (carver->used > carver->peak) carver->peak = carver->used;
    return out;
}

static float *floats(struct carver *carver, int64_t count)
{
    return carve(carver, count, sizeof(float));
}

static int32_t *ints(struct carver *carver, int64_t count)
{
    return carve(carver, count, sizeof(int32_t));
}

static void carve_attention(struct carver *c, const struct weft__arch *a,
                            const struct weft__shard *shard,
                            const struct weft__model_limits *limits, struct weft__work *work)
{
    int64_t t = limits->tokens, h = shard->heads.count, g = shard->kv_heads.count;
    if (!a->mla) {
        work->q = floats(c, t * (h + 2 * g) * a->head_dim);
        work->heads = floats(c, t * h * a->head_dim);
        return;
    }
    int64_t key = a->nope_dim + a->rope_dim, row = a->kv_lora + a->rope_dim;
    int64_t n = weft__min(limits->context, WEFT__NAIVE_POSITIONS);
    work->q = floats(c, t * h * key);
    work->heads = floats(c, t * h * a->value_dim);
    work->q_latent = floats(c, t * a->q_lora);
    work->latent = floats(c, t * row);
    work->q_absorbed = floats(c, t * h * row);
    work->z = floats(c, t * h * a->kv_lora);
    work->naive_latent = floats(c, n * row);
    work->naive_k = floats(c, n * h * key);
    work->naive_v = floats(c, n * h * a->value_dim);
    if (a->index_top == 0) return;
    work->index_q = floats(c, t * a->index_heads * a->index_dim);
    work->index_k = floats(c, t * a->index_dim);
    work->index_weight = floats(c, t * a->index_heads);
}

static int64_t max_columns(const struct weft__arch *a, const struct weft__shard *shard)
{
    /* The largest share any unit gives: rank 0's, with the coarsest unit. */
    int64_t width = weft__max(a->intermediate, a->shared_intermediate);
    return weft__shard_range(width, 16, 0, shard->size).count;
}

static void carve_mlp(struct carver *c, const struct weft__arch *a, const struct weft__shard *shard,
                      const struct weft__model_limits *limits, struct weft__work *work)
{
    int64_t t = limits->tokens, columns = max_columns(a, shard);
    work->gate_up = floats(c, 2 * weft__min(t, WEFT__BLOCK_ROWS) * columns);
    if (a->experts == 0) return;
    int64_t pairs = t * a->experts_top;
    int64_t own = weft__shard_range(a->expert_intermediate, 16, 0, shard->size).count;
    work->shared = floats(c, t * a->hidden);
    work->expert_gate = floats(c, pairs * own);
    work->expert_up = floats(c, pairs * own);
    work->expert_out = floats(c, pairs * a->hidden);
    work->router = floats(c, t * a->experts);
    work->expert_weight = floats(c, pairs);
    work->expert = ints(c, pairs);
    work->slot = ints(c, pairs);
    work->expert_offset = ints(c, a->experts + 1);
    work->x_row = ints(c, pairs);
}

/* The largest input of a linear, in pieces of `unit` columns. */
static int64_t largest_input(const struct weft__arch *a, const struct weft__shard *shard,
                             const struct weft__model_limits *limits, int64_t unit)
{
    int64_t own = weft__shard_range(a->expert_intermediate, 16, 0, shard->size).count;
    int64_t heads = shard->heads.count * (a->mla ? a->value_dim : a->head_dim);
    int64_t width = weft__ceil_div(weft__max(weft__max(a->hidden, a->q_lora), heads), unit);
    width = weft__max(width, weft__ceil_div(own, unit) * a->experts_top);
    return weft__max(limits->tokens * width, weft__min(limits->tokens, WEFT__BLOCK_ROWS) *
                                                 weft__ceil_div(max_columns(a, shard), unit));
}

/* Attention, feed-forward and output never live at once: their parts overlap. */
static size_t carve_work(char *base, const struct weft__arch *a, const struct weft__shard *shard,
                         const struct weft__model_limits *limits, struct weft__work *work)
{
    struct carver c = {.base = base};
    int64_t t = limits->tokens;
    work->residual = floats(&c, t * a->hidden);
    work->hidden = floats(&c, t * a->hidden);
    work->cosine = floats(&c, t * a->rope.dim / 2);
    work->sine = floats(&c, t * a->rope.dim / 2);
    if (limits->activations == WEFT_ACTIVATIONS_QUANTISED)
        work->quantised = floats(&c, largest_input(a, shard, limits, 1));
    if (limits->activations == WEFT_ACTIVATIONS_INT8)
        work->int8 =
            carve(&c, largest_input(a, shard, limits, WEFT__INT8_COLUMNS), sizeof *work->int8);
    if (a->index_top > 0) { /* read again by the shared layers that follow */
        work->selected = ints(&c, t * weft__min(a->index_top, limits->context));
        work->selected_count = ints(&c, t);
    }
    size_t shared = c.used;
    carve_attention(&c, a, shard, limits, work);
    c.used = shared;
    carve_mlp(&c, a, shard, limits, work);
    c.used = shared;
    work->out_hidden = floats(&c, limits->outputs * a->hidden);
    work->logits = floats(&c, limits->outputs * a->vocab);
    work->out_part =
        shard->size > 1 ? floats(&c, limits->outputs * shard->vocab.count) : work->logits;
    return c.peak;
}

static bool has_indexer(const struct weft__arch *a, int64_t layer)
{
    return a->index_top > 0 && a->index_full[layer];
}

static size_t carve_cache(char *base, const struct weft__arch *a, const struct weft__shard *shard,
                          int64_t pages, struct weft__cache *cache)
{
    struct carver c = {.base = base};
    int64_t slots = pages * WEFT__PAGE;
    for (int64_t i = 0; i < a->layers; i++) {
        struct weft__cache layer = {0};
        if (a->mla) {
            layer.k = floats(&c, slots * (a->kv_lora + a->rope_dim));
        } else {
            layer.k = floats(&c, slots * shard->kv_heads.count * a->head_dim);
            layer.v = floats(&c, slots * shard->kv_heads.count * a->head_dim);
        }
        if (has_indexer(a, i)) layer.index_k = floats(&c, slots * a->index_dim);
        if (cache != NULL) cache[i] = layer;
    }
    return c.peak;
}

struct weft__model_bytes weft__model_measure(const struct weft__arch *arch,
                                             const struct weft__shard *shard,
                                             const struct weft__model_limits *limits)
{
    struct weft__work work;
    return (struct weft__model_bytes){.kv_page = carve_cache(NULL, arch, shard, 1, NULL),
                                      .work = carve_work(NULL, arch, shard, limits, &work)};
}

/* The small tables: rope frequencies, head maps, identity pages. */
static weft_status make_tables(struct weft__model *m, weft_error *err)
{
    const struct weft__arch *a = m->arch;
    int64_t h = m->shard.heads.count, group = a->heads / a->kv_heads;
    int64_t pages = weft__ceil_div(WEFT__NAIVE_POSITIONS, WEFT__PAGE);
    m->frequency = weft__arena_array(&m->arena, (size_t)a->rope.dim / 2, sizeof *m->frequency);
    m->kv_head = weft__arena_array(&m->arena, (size_t)h, sizeof *m->kv_head);
    m->zero_head = weft__arena_array(&m->arena, (size_t)h, sizeof *m->zero_head);
    m->own_head = weft__arena_array(&m->arena, (size_t)h, sizeof *m->own_head);
    m->identity_pages = weft__arena_array(&m->arena, (size_t)pages, sizeof *m->identity_pages);
    m->absorbed = weft__arena_array(&m->arena, (size_t)m->limits.tokens, sizeof *m->absorbed);
    m->cache = weft__arena_array(&m->arena, (size_t)a->layers, sizeof *m->cache);
    m->vocab_bytes = weft__arena_array(&m->arena, (size_t)m->shard.size, sizeof *m->vocab_bytes);
    for (int kind = 0; kind < WEFT__TILING_KINDS; kind++) {
        float **last = &m->tiling[kind].last;
        *last = weft__arena_array(&m->arena, (size_t)a->layers, sizeof **last);
        if (*last == NULL)
            return weft__fail_oom(err, (size_t)a->layers * sizeof **last, "model tables");
    }
    if (m->frequency == NULL || m->kv_head == NULL || m->zero_head == NULL || m->own_head == NULL ||
        m->identity_pages == NULL || m->absorbed == NULL || m->cache == NULL ||
        m->vocab_bytes == NULL)
        return weft__fail_oom(err, (size_t)m->limits.tokens * sizeof *m->absorbed, "model tables");
    weft__rope_frequencies(&a->rope, m->frequency, &m->rope_factor);
    for (int64_t i = 0; i < h; i++) {
        m->own_head[i] = (int32_t)i;
        m->kv_head[i] = (int32_t)((m->shard.heads.begin + i) / group - m->shard.kv_heads.begin);
    }
    for (int64_t i = 0; i < pages; i++) m->identity_pages[i] = (int32_t)i;
    for (int r = 0; r < m->shard.size; r++)
        m->vocab_bytes[r] =
            (size_t)weft__shard_range(a->vocab, 1, r, m->shard.size).count * sizeof(float);
    return WEFT_OK;
}

static weft_status allocate(struct weft__model *m, weft_error *err)
{
    const struct weft__dev_core *core = m->device->core;
    struct weft__model_bytes bytes = weft__model_measure(m->arch, &m->shard, &m->limits);
    size_t cache = bytes.kv_page * (size_t)m->limits.pages;
    m->memory[0] = core->alloc(m->dev, bytes.work);
    if (m->memory[0] == NULL)
        return weft__fail_oom(err, bytes.work,
                              "work space; lower --chunk, or serve's --max-running-requests");
    m->memory[1] = core->alloc(m->dev, cache + 64 * (size_t)m->arch->layers * 3);
    if (m->memory[1] == NULL)
        return weft__fail_oom(err, cache,
                              "the KV cache; lower --kv-tokens, or serve's --max-running-requests");
    (void)carve_work(m->memory[0], m->arch, &m->shard, &m->limits, &m->work);
    (void)carve_cache(m->memory[1], m->arch, &m->shard, m->limits.pages, m->cache);
    return WEFT_OK;
}

static weft_status prepare_mlp(struct weft__model *m, struct weft__mlp_weights *mlp,
                               weft_error *err)
{
    struct weft__matrix *const all[] = {&mlp->gate, &mlp->up, &mlp->down};
    for (size_t i = 0; i < WEFT__COUNT(all); i++)
        if (all[i]->data != NULL) WEFT__TRY(m->device->core->prepare(m->dev, all[i], err));
    return WEFT_OK;
}

/* Offers every matrix to the device, which may repack it. */
static weft_status prepare(struct weft__model *m, weft_error *err)
{
    const struct weft__dev_core *core = m->device->core;
    WEFT__TRY(core->prepare(m->dev, &m->weights.embed, err));
    WEFT__TRY(core->prepare(m->dev, &m->weights.lm_head, err));
    for (int64_t i = 0; i < m->arch->layers; i++) {
        struct weft__layer *l = &m->weights.layer[i];
        struct weft__matrix *const all[] = {&l->q,      &l->k,       &l->v,       &l->o,
                                            &l->q_a,    &l->q_b,     &l->kv_a,    &l->kv_b,
                                            &l->router, &l->index_q, &l->index_k, &l->index_weight};
        for (size_t j = 0; j < WEFT__COUNT(all); j++)
            if (all[j]->data != NULL) WEFT__TRY(core->prepare(m->dev, all[j], err));
        WEFT__TRY(prepare_mlp(m, &l->mlp, err));
        for (int64_t e = 0; l->expert_gate != NULL && e < 3 * m->arch->experts; e++)
            WEFT__TRY(core->prepare(m->dev, &l->expert_gate[e], err));
    }
    return WEFT_OK;
}

weft_status weft__model_open(const struct weft__model_parts *parts,
                             const struct weft__model_limits *limits, struct weft__model **out,
                             weft_error *err)
{
    const struct weft__arch *arch = parts->arch;
    struct weft__arena arena = {0};
    struct weft__model *m = weft__arena_alloc(&arena, sizeof *m);
    if (m == NULL) return weft__fail_oom(err, sizeof *m, "a rank");
    *m = (struct weft__model){.arch = arch,
                              .device = parts->device,
                              .dev = parts->dev,
                              .comm = parts->comm,
                              .limits = *limits,
                              .arena = arena};
    m->shard = weft__shard_of(arch, weft__head_unit(parts->checkpoint, arch),
                              weft_comm_rank(parts->comm), weft_comm_size(parts->comm));
    weft_status status =
        weft__weights_load(parts->checkpoint, arch, &m->shard, parts->comm, &m->weights, err);
    if (status == WEFT_OK) status = make_tables(m, err);
    if (status == WEFT_OK) status = allocate(m, err);
    if (status == WEFT_OK) status = prepare(m, err);
    if (status != WEFT_OK) {
        weft__model_close(m);
        return status;
    }
    *out = m;
    return WEFT_OK;
}

void weft__model_close(struct weft__model *m)
{
    if (m == NULL) return;
    for (size_t i = 0; i < WEFT__COUNT(m->memory); i++)
        if (m->memory[i] != NULL) m->device->core->free(m->dev, m->memory[i]);
    weft__weights_free(&m->weights);
    struct weft__arena arena = m->arena; /* holds m itself */
    weft__arena_free(&arena);
}
