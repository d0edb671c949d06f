/* The numbers promise of weft_comm.h: every reduction, against a scalar reference that follows the
 * definition, bit for bit: any p, both algorithms, every way in, random shapes and options, random,
 * special and all 16-bit patterns as input; every output element, and nothing beside them. */
#include "comm_ranks.h"

#include "base/numerics.h"

enum { GUARD = 64, CANARY = 0xa5 };
enum source { PLAIN, IN_PLACE, HEAP, LENT, MOE, SOURCES };
enum data { RANDOM, SPECIAL, PATTERNS, DATA_KINDS };

struct plan { /* one operation; equal on all ranks */
    int p;
    weft_dtype dtype;
    int64_t tokens, hidden;
    enum source source;
    enum data data;
    bool scatter, residual, residual_in_place, norm, weight, want_s, want_y;
    weft_quant_kind quant;
    float eps, quant_scale;
    int64_t top_k, experts;
    bool shared;
    uint64_t seed;
};

/* ---- elements ---- */

static size_t width_of(weft_dtype dtype) { return dtype == WEFT_F32 ? 4 : 2; }

static float get(weft_dtype dtype, const void *row, int64_t i)
{
    if (dtype == WEFT_F32) return ((const float *)row)[i];
    uint16_t h = ((const uint16_t *)row)[i];
    return dtype == WEFT_F16 ? weft__f32_from_f16(h) : weft__f32_from_bf16(h);
}

static float put(weft_dtype dtype, void *row, int64_t i, float value)
{
    if (dtype == WEFT_F32)
        return ((float *)row)[i] = isnan(value) ? weft__f32_from_bits(0x7fc00000) : value;
    ((uint16_t *)row)[i] =
        dtype == WEFT_F16 ? weft__f16_from_f32(value) : weft__bf16_from_f32(value);
    return get(dtype, row, i);
}

static void fill(const struct plan *plan, void *row, int64_t count, uint64_t stream)
{
    static const uint32_t specials[] = {
        0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x807fffff, 0x00800000,
        0x80800000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345, 0x7f800001, 0xff812345,
        0x7f7fffff, 0xff7fffff, 0x3f800000, 0xbf800001, 0x477fe000, 0x33800000, 0x387fe000};
    uint64_t state = plan->seed * 1000 + stream;
    uint64_t offset = next_random(&state), step = next_random(&state) | 1;
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = next_random(&state);
        bool special = plan->data == SPECIAL && bits % 4 == 0;
        uint32_t word = special ? specials[(bits >> 8) % WEFT__COUNT(specials)]
                                : (uint32_t)(bits >> 32 & 0x807fffff) | (uint32_t)(115 + bits % 20)
                                                                            << 23;
        if (plan->dtype == WEFT_F32)
            ((uint32_t *)row)[i] = word;
        else if (plan->data == PATTERNS)
            ((uint16_t *)row)[i] = (uint16_t)(offset + (uint64_t)i * step);
        else
            (void)put(plan->dtype, row, i, weft__f32_from_bits(word));
    }
}

/* ---- the reference ---- */

static float tree(const float *squares, int64_t n, int64_t span)
{
    if (n <= 0) return 0.0f;
    if (span == 1) return squares[0];
    return tree(squares, n, span / 2) + tree(squares + span / 2, n - span / 2, span / 2);
}

static void reference_norm(const struct plan *plan, float *row, const void *weight)
{
    float squares[4096];
    int64_t n = plan->hidden, span = 1;
    while (span < n) span *= 2;
    for (int64_t i = 0; i < n; i++) squares[i] = row[i] * row[i];
    float mean = tree(squares, n, span) / (float)n;
    float factor = 1.0f / sqrtf(mean + plan->eps);
    for (int64_t i = 0; i < n; i++) {
        uint32_t cell;
        row[i] = put(plan->dtype, &cell, 0, row[i] * factor);
        if (weight != NULL)
            row[i] = put(plan->dtype, &cell, 0, row[i] * get(plan->dtype, weight, i));
    }
}

static float reference_amax(const float *x, int64_t n)
{
    float amax = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(x[i])) return NAN;
        if (fabsf(x[i]) > amax) amax = fabsf(x[i]);
    }
    return amax;
}

static void reference_quant(const struct plan *plan, const float *row, int64_t t, uint8_t *codes,
                            uint8_t *scales)
{
    int64_t n = plan->hidden;
    if (plan->quant == WEFT_QUANT_FP8_TENSOR || plan->quant == WEFT_QUANT_FP8_TOKEN) {
        float scale = plan->quant_scale;
        if (plan->quant == WEFT_QUANT_FP8_TOKEN) {
            scale = reference_amax(row, n) / 448.0f;
            if (scale == 0) scale = 1;
            (void)put(WEFT_F32, scales, t, scale);
        }
        for (int64_t i = 0; i < n; i++) codes[t * n + i] = weft__e4m3_from_f32(row[i] / scale);
        return;
    }
    float G = 1.0f / plan->quant_scale;
    for (int64_t k = 0; k < n / 16; k++) {
        float v = G * (reference_amax(row + 16 * k, 16) * weft__f32_from_bits(0x3e2aaaab));
        uint8_t b = weft__e4m3_from_f32(v);
        float S = weft__f32_from_e4m3(b), inverse = S == 0 ? 0 : G / S;
        bool swizzled = plan->quant == WEFT_QUANT_NVFP4_SWIZZLED;
        scales[swizzled ? weft__swizzled_scale_offset(t, k, n / 16) : t * (n / 16) + k] = b;
        for (int64_t i = 16 * k; i < 16 * k + 16; i += 2)
            codes[(t * n + i) / 2] = (uint8_t)(weft__e2m1_from_f32(row[i] * inverse) |
                                               weft__e2m1_from_f32(row[i + 1] * inverse) << 4);
    }
}

/* ---- buffers with canaries around them ---- */

struct outputs {
    size_t bytes[4]; /* s, y, codes, scales */
    uint8_t *got[4], *want[4];
};

static size_t scale_bytes(const struct plan *plan, int64_t rows)
{
    int64_t columns = plan->hidden / 16;
    switch (plan->quant) {
    case WEFT_QUANT_FP8_TOKEN:
        return (size_t)rows * 4;
    case WEFT_QUANT_NVFP4:
        return (size_t)(rows * columns);
    case WEFT_QUANT_NVFP4_SWIZZLED:
        return (size_t)(weft__ceil_div(rows, 128) * 512 * weft__ceil_div(columns, 4));
    default:
        return 0;
    }
}

static void outputs_init(struct outputs *o, const struct plan *plan, int64_t rows)
{
    size_t elements = (size_t)(rows * plan->hidden);
    bool fp4 = plan->quant == WEFT_QUANT_NVFP4 || plan->quant == WEFT_QUANT_NVFP4_SWIZZLED;
    o->bytes[0] = o->bytes[1] = elements * width_of(plan->dtype);
    o->bytes[2] = plan->quant == WEFT_QUANT_NONE ? 0 : fp4 ? elements / 2 : elements;
    o->bytes[3] = scale_bytes(plan, rows);
    for (int i = 0; i < 4; i++) {
        o->got[i] = malloc(o->bytes[i] + 2 * GUARD);
        o->want[i] = malloc(o->bytes[i] + 2 * GUARD);
        memset(o->got[i], CANARY, o->bytes[i] + 2 * GUARD);
        memset(o->want[i], CANARY, o->bytes[i] + 2 * GUARD);
        o->got[i] += GUARD;
        o->want[i] += GUARD;
    }
    memset(o->want[3], 0, plan->quant == WEFT_QUANT_NVFP4_SWIZZLED ? o->bytes[3] : 0);
}

static void outputs_free(struct outputs *o)
{
    for (int i = 0; i < 4; i++) {
        free(o->got[i] - GUARD);
        free(o->want[i] - GUARD);
    }
}

/* ---- one operation ---- */

struct inputs {                  /* of all ranks: every rank makes them all, for the reference */
    uint8_t *x[WEFT__MAX_RANKS]; /* the partial sums, after finalize */
    uint8_t *experts, *shared;   /* own, of MOE */
    int32_t *slots;
    float *gates;
    uint8_t *residual, *weight;
};

/* x of rank r from expert rows, by the definition. Keeps what this rank will pass. */
static void make_moe(struct inputs *in, const struct plan *plan, int r, bool own)
{
    size_t w = width_of(plan->dtype);
    int64_t n = plan->hidden;
    uint8_t *experts = malloc((size_t)(plan->experts * n) * w + 1);
    uint8_t *shared = plan->shared ? malloc((size_t)(plan->tokens * n) * w + 1) : NULL;
    int32_t *slots = malloc((size_t)(plan->tokens * plan->top_k) * 4 + 1);
    float *gates = malloc((size_t)(plan->tokens * plan->top_k) * 4 + 1);
    uint64_t state = plan->seed * 77 + (uint64_t)r;
    fill(plan, experts, plan->experts * n, 300 + (uint64_t)r);
    if (shared != NULL) fill(plan, shared, plan->tokens * n, 400 + (uint64_t)r);
    for (int64_t i = 0; i < plan->tokens * plan->top_k; i++) {
        slots[i] = (int32_t)pick_from(&state, -2, plan->experts); /* a few name no row */
        gates[i] = (float)pick_from(&state, -1000, 1000) / 997.0f;
    }
    for (int64_t i = 0; i < plan->tokens * n; i++) {
        int64_t t = i / n;
        float sum = 0;
        for (int64_t k = t * plan->top_k; k < (t + 1) * plan->top_k; k++)
            if (slots[k] >= 0 && slots[k] < plan->experts) {
                float term = gates[k] * get(plan->dtype, experts, slots[k] * n + i % n);
                sum = sum + term;
            }
        if (shared != NULL) sum = sum + get(plan->dtype, shared, i);
        (void)put(plan->dtype, in->x[r], i, sum);
    }
    if (own) {
        in->experts = experts, in->shared = shared, in->slots = slots, in->gates = gates;
    } else {
        free(experts), free(shared), free(slots), free(gates);
    }
}

static void inputs_init(struct inputs *in, const struct plan *plan, int rank, int64_t own_first,
                        int64_t own_rows)
{
    size_t w = width_of(plan->dtype), n = (size_t)plan->hidden, all = (size_t)plan->tokens * n;
    *in = (struct inputs){0};
    for (int r = 0; r < plan->p; r++) {
        in->x[r] = malloc(all * w + 1);
        if (plan->source == MOE)
            make_moe(in, plan, r, r == rank);
        else
            fill(plan, in->x[r], (int64_t)all, (uint64_t)r);
    }
    uint8_t *residual = malloc(all * w + 1);
    fill(plan, residual, (int64_t)all, 100);
    in->residual = malloc((size_t)own_rows * n * w + 1);
    memcpy(in->residual, residual + (size_t)own_first * n * w, (size_t)own_rows * n * w);
    free(residual);
    in->weight = malloc(n * w);
    fill(plan, in->weight, (int64_t)n, 101);
}

static void inputs_free(struct inputs *in)
{
    for (int r = 0; r < WEFT__MAX_RANKS; r++) free(in->x[r]);
    free(in->experts), free(in->shared), free(in->slots), free(in->gates);
    free(in->residual), free(in->weight);
}

static void reference(const struct plan *plan, const struct inputs *in, int64_t first, int64_t rows,
                      struct outputs *o)
{
    int64_t n = plan->hidden;
    float row[4096];
    for (int64_t t = 0; t < rows; t++) {
        for (int64_t i = 0; i < n; i++) {
            float sum = get(plan->dtype, in->x[0], (first + t) * n + i);
            for (int r = 1; r < plan->p; r++)
                sum = sum + get(plan->dtype, in->x[r], (first + t) * n + i);
            if (plan->residual) sum = get(plan->dtype, in->residual, t * n + i) + sum;
            row[i] = put(plan->dtype, o->want[0], t * n + i, sum);
        }
        if (plan->norm) reference_norm(plan, row, plan->weight ? in->weight : NULL);
        for (int64_t i = 0; i < n; i++) (void)put(plan->dtype, o->want[1], t * n + i, row[i]);
        if (plan->quant != WEFT_QUANT_NONE) reference_quant(plan, row, t, o->want[2], o->want[3]);
    }
}

/* Puts this rank's partial where the plan says, and returns the x to pass. */
static weft_status place_input(weft_comm *comm, const struct plan *plan, const struct inputs *in,
                               int rank, struct outputs *o, void *heap, const void **x,
                               weft_error *err)
{
    size_t bytes = (size_t)(plan->tokens * plan->hidden) * width_of(plan->dtype);
    void *to = heap;
    if (plan->source == PLAIN) *x = in->x[rank];
    if (plan->source == PLAIN || plan->source == MOE) return WEFT_OK;
    if (plan->source == IN_PLACE) to = o->got[1];
    if (plan->source == LENT) WEFT__TRY(weft_comm_input(comm, bytes, &to, err));
    memcpy(to, in->x[rank], bytes);
    *x = to;
    return WEFT_OK;
}

static weft_status compare(const struct plan *plan, const struct outputs *o, weft_error *err)
{
    static const char *const names[] = {"s", "y", "codes", "scales"};
    for (int i = 0; i < 4; i++)
        for (size_t b = 0; b < o->bytes[i] + 2 * GUARD; b++) {
            const uint8_t *got = o->got[i] - GUARD, *want = o->want[i] - GUARD;
            if (got[b] != want[b])
                return weft__fail(err, WEFT_INTERNAL,
                                  "%s: byte %lld of %zu is %02x, not %02x (p %d %s [%lld, %lld] "
                                  "source %d data %d scatter %d residual %d norm %d quant %d)",
                                  names[i], (long long)b - GUARD, o->bytes[i], got[b], want[b],
                                  plan->p, weft_dtype_name(plan->dtype), (long long)plan->tokens,
                                  (long long)plan->hidden, plan->source, plan->data, plan->scatter,
                                  plan->residual, plan->norm, plan->quant);
        }
    return WEFT_OK;
}

static weft_status run_plan(weft_comm *comm, const struct plan *plan, int rank, void *heap,
                            weft_error *err)
{
    int64_t first = 0, rows = plan->tokens;
    if (plan->scatter) rows = weft_comm_share(plan->tokens, plan->p, rank, &first);
    struct inputs in;
    struct outputs o;
    inputs_init(&in, plan, rank, first, rows);
    outputs_init(&o, plan, rows);
    reference(plan, &in, first, rows, &o);
    weft_reduce op = {.tokens = plan->tokens,
                      .hidden = plan->hidden,
                      .dtype = plan->dtype,
                      .norm = plan->norm,
                      .norm_eps = plan->eps};
    weft_status status = place_input(comm, plan, &in, rank, &o, heap, &op.x, err);
    if (status != WEFT_OK) goto free_all;
    if (plan->source == MOE)
        op.moe = (weft_moe){.top_k = plan->top_k,
                            .expert_rows = plan->experts,
                            .expert_out = in.experts,
                            .slots = in.slots,
                            .gates = in.gates,
                            .shared = in.shared};
    if (plan->residual && plan->residual_in_place) memcpy(o.got[0], in.residual, o.bytes[0]);
    if (plan->residual) op.residual = plan->residual_in_place ? o.got[0] : in.residual;
    if (plan->want_s) op.residual_out = o.got[0];
    if (plan->want_y) op.y = o.got[1];
    if (plan->norm && plan->weight) op.norm_weight = in.weight;
    op.quant = (weft_quant){plan->quant, plan->quant_scale, o.got[2], o.got[3]};
    status = plan->scatter ? weft_comm_reduce_scatter(comm, &op, err)
                           : weft_comm_allreduce(comm, &op, err);
    if (status != WEFT_OK) goto free_all;
    if (plan->source == HEAP) memset(heap, CANARY, (size_t)(plan->tokens * plan->hidden) * 4);
    if (!plan->want_s) memcpy(o.want[0], o.got[0], o.bytes[0]);
    if (!plan->want_y) memcpy(o.want[1], o.got[1], o.bytes[1]);
    status = compare(plan, &o, err);
free_all:
    outputs_free(&o);
    inputs_free(&in);
    return status;
}

/* ---- random plans ---- */

static struct plan random_plan(uint64_t *state, int p)
{
    struct plan plan = {.p = p, .seed = next_random(state) % 1000000};
    static const weft_dtype dtypes[] = {WEFT_F32, WEFT_F16, WEFT_BF16};
    plan.dtype = dtypes[pick_from(state, 0, 2)];
    plan.tokens = pick_from(state, 0, 9);
    plan.hidden = 8 * pick_from(state, 1, 40);
    plan.source = (enum source)pick_from(state, 0, SOURCES - 1);
    plan.data = (enum data)pick_from(state, 0, DATA_KINDS - 1);
    uint64_t bits = next_random(state);
    plan.scatter = (bits & 3) == 0;
    plan.residual = bits >> 2 & 1;
    plan.want_s = bits >> 3 & 1;
    plan.residual_in_place = plan.residual && plan.want_s && (bits >> 4 & 1);
    plan.norm = (bits >> 5 & 3) != 0;
    plan.weight = (bits >> 7 & 3) != 0;
    plan.quant = (weft_quant_kind)pick_from(state, 0, WEFT_QUANT_NVFP4_SWIZZLED);
    if (plan.quant >= WEFT_QUANT_NVFP4) plan.hidden = weft__ceil_div(plan.hidden, 16) * 16;
    plan.want_y = plan.quant == WEFT_QUANT_NONE || (bits >> 9 & 1);
    plan.shared = bits >> 10 & 1;
    plan.eps = (bits >> 11 & 1) ? 1e-5f : 0.0f;
    plan.quant_scale = (float)pick_from(state, 1, 1000) / 30000.0f;
    plan.top_k = pick_from(state, 1, 4);
    plan.experts = pick_from(state, 0, 6);
    if (plan.source == IN_PLACE && (plan.scatter || !plan.want_y)) plan.source = PLAIN;
    return plan;
}

struct suite {
    int p, plans;
    const struct plan *fixed; /* this one plan, else random ones */
};

static weft_status run_suite(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    const struct suite *suite = arg;
    uint64_t state = 4242 + (uint64_t)suite->p;
    void *heap;
    WEFT__TRY(weft_comm_heap_alloc(comm, 4 << 20, &heap, err));
    for (int i = 0; i < suite->plans; i++) {
        struct plan plan = suite->fixed != NULL ? *suite->fixed : random_plan(&state, suite->p);
        WEFT__TRY(run_plan(comm, &plan, rank, heap, err));
    }
    return WEFT_OK;
}

static void run_everywhere(const struct suite *suite)
{
    for (int algorithm = 0; algorithm < 3; algorithm++)
        for (int portable = 0; portable < 2; portable++) {
            weft_world *world = world_of(
                (weft_world_options){.size = suite->p, .algorithm = (weft_algorithm)algorithm},
                (struct weft__tuning){.portable = portable});
            ranks_succeed(world, suite->p, run_suite, (void *)suite);
            weft_world_destroy(world);
        }
}

static void random_operations(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 16};
    for (size_t i = 0; i < WEFT__COUNT(sizes); i++)
        run_everywhere(&(struct suite){.p = sizes[i], .plans = sizes[i] <= 4 ? 150 : 40});
}

/* All 65536 values of either 16-bit type at once, in every row position, on three ranks. */
static void every_16_bit_pattern(void **state)
{
    (void)state;
    static const weft_dtype dtypes[] = {WEFT_F16, WEFT_BF16};
    for (int d = 0; d < 2; d++)
        for (int norm = 0; norm < 2; norm++) {
            struct plan plan = {.p = 3,
                                .dtype = dtypes[d],
                                .tokens = 64,
                                .hidden = 1024,
                                .data = PATTERNS,
                                .residual = norm,
                                .norm = norm,
                                .weight = norm,
                                .want_s = true,
                                .want_y = true,
                                .eps = 1e-6f,
                                .seed = 5};
            run_everywhere(&(struct suite){.p = 3, .plans = 1, .fixed = &plan});
        }
}

/* Longer than a message (1 MiB), so cut into pieces; swizzled tiles with full and ragged ends. */
static void long_operations(void **state)
{
    (void)state;
    struct plan plan = {.p = 3,
                        .dtype = WEFT_F32,
                        .tokens = 300,
                        .hidden = 2096,
                        .residual = true,
                        .want_s = true,
                        .norm = true,
                        .weight = true,
                        .want_y = true,
                        .eps = 1e-5f,
                        .quant = WEFT_QUANT_NVFP4_SWIZZLED,
                        .quant_scale = 0.003f,
                        .seed = 6};
    for (int scatter = 0; scatter < 2; scatter++)
        for (int source = PLAIN; source <= MOE; source++) {
            if (source == LENT || (scatter && source == IN_PLACE)) continue;
            plan.source = (enum source)source;
            plan.top_k = 2;
            plan.experts = 50;
            plan.scatter = scatter;
            weft_world *world =
                world_of((weft_world_options){.size = 3, .algorithm = WEFT_ALGORITHM_AUTO},
                         (struct weft__tuning){0});
            struct suite suite = {.p = 3, .plans = 1, .fixed = &plan};
            ranks_succeed(world, 3, run_suite, &suite);
            weft_world_destroy(world);
        }
}

/* A row alone, and among others, has the same bits: the reference is by row, but say it directly.
 */
static weft_status row_alone(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)arg;
    enum { TOKENS = 67, HIDDEN = 576 };
    float *x = calloc(TOKENS * HIDDEN, sizeof *x), *y = calloc(TOKENS * HIDDEN, sizeof *y);
    float one[HIDDEN];
    uint64_t state = 9 + (uint64_t)rank;
    for (int i = 0; i < TOKENS * HIDDEN; i++) x[i] = (float)pick_from(&state, -9999, 9999) / 777.0f;
    weft_reduce op = {.tokens = TOKENS,
                      .hidden = HIDDEN,
                      .dtype = WEFT_F32,
                      .x = x,
                      .norm = true,
                      .norm_eps = 1e-5f,
                      .y = y};
    weft_status status = weft_comm_allreduce(comm, &op, err);
    for (int t = 0; t < TOKENS && status == WEFT_OK; t++) {
        op.tokens = 1, op.x = x + t * HIDDEN, op.y = one;
        status = weft_comm_allreduce(comm, &op, err);
        if (status == WEFT_OK && memcmp(one, y + t * HIDDEN, sizeof one) != 0)
            status = weft__fail(err, WEFT_INTERNAL, "row %d differs when alone", t);
    }
    free(x), free(y);
    return status;
}

static void rows_do_not_depend_on_the_batch(void **state)
{
    (void)state;
    weft_world *world = world_of((weft_world_options){.size = 4}, (struct weft__tuning){0});
    ranks_succeed(world, 4, row_alone, NULL);
    weft_world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations), cmocka_unit_test(every_16_bit_pattern),
        cmocka_unit_test(long_operations), cmocka_unit_test(rows_do_not_depend_on_the_batch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
