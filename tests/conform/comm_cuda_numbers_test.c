/* GPU ranks against CPU ranks, bit for bit: every operation, type, path, form and algorithm, with 1
 * to 8 ranks, ragged and long shapes, special values; outputs poisoned before, every element and
 * the bytes around it checked. */
#include "cuda_ranks.h"

#include "base/numerics.h"

enum { GUARD = 256, CANARY = 0xa5, CASES = 160, BUFFERS = 11, ARENA_BYTES = 96 << 20 };
enum { HEAP_BYTES = (4 << 20) + 2 * GUARD }; /* the longest input */
enum { X, EXPERT, SLOTS, GATES, SHARED, RESIDUAL, WEIGHT, S, Y, CODES, SCALES };

struct plan { /* one operation; equal on all ranks */
    weft_dtype dtype;
    int64_t tokens, hidden, top_k, experts;
    int data; /* 0 random, 1 with special values, 2 all 16-bit patterns */
    bool scatter, shared, in_place, residual, residual_in_place, want_s, want_y, norm, weight;
    weft_quant_kind quant;
    float eps, scale;
    weft_algorithm algorithm;
    struct weft__cuda_tuning tuning;
    uint64_t seed;
};

struct job {
    weft_world *cpu;
    int p, cases;
    uint64_t seed;
};

static size_t width_of(weft_dtype dtype) { return dtype == WEFT_F32 ? 4 : 2; }

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
        bool special = plan->data == 1 && bits % 64 == 0;
        uint32_t word = special ? specials[(bits >> 8) % WEFT__COUNT(specials)]
                                : (uint32_t)(bits >> 32 & 0x807fffff) | (uint32_t)(115 + bits % 20)
                                                                            << 23;
        float value = weft__f32_from_bits(word);
        if (plan->dtype == WEFT_F32)
            ((uint32_t *)row)[i] = word;
        else if (plan->data == 2)
            ((uint16_t *)row)[i] = (uint16_t)(offset + (uint64_t)i * step);
        else
            ((uint16_t *)row)[i] =
                plan->dtype == WEFT_F16 ? weft__f16_from_f32(value) : weft__bf16_from_f32(value);
    }
}

/* ---- a random plan ---- */

static void pick_tuning(struct plan *plan, uint64_t *state, uint32_t usable)
{
    static const int clusters[] = {0, 0, 1, 2, 4, 8};
    struct weft__cuda_tuning *tuning = &plan->tuning;
    do tuning->path = (weft_path)pick_from(state, WEFT_PATH_PUSH, WEFT_PATH_NCCL);
    while ((usable >> tuning->path & 1) == 0);
    int64_t row = weft__ceil_div(plan->hidden, 256) * 256;
    bool fits = plan->tokens * row * (plan->dtype == WEFT_F32 ? 16 : 8) <= WEFT__CUDA_PACKED_BYTES;
    tuning->wire = (enum weft__cuda_wire)pick_from(state, 0, WEFT__CUDA_PLACED);
    bool placed = plan->top_k == 0 && !plan->in_place && (usable >> WEFT_PATH_PULL & 1);
    if (tuning->wire == WEFT__CUDA_PLACED && placed) {
        tuning->path = WEFT_PATH_PULL;
    } else if (tuning->wire == WEFT__CUDA_PLACED || !fits) {
        tuning->wire = pick_from(state, 0, 1) == 1 ? WEFT__CUDA_PLAIN : WEFT__CUDA_WIRE_AUTO;
    }
    tuning->section = (int)pick_from(state, 0, 4);
    tuning->sections = (int)pick_from(state, 0, 5);
    tuning->cluster = clusters[pick_from(state, 0, 5)];
    tuning->serial = pick_from(state, 0, 1) == 1;
    tuning->late = pick_from(state, 0, 1) == 1;
}

static struct plan pick_plan(uint64_t *state, uint32_t usable)
{
    static const int64_t hiddens[] = {8, 16, 264, 512, 1000, 2880, 4096, 6144, 7168, 16384};
    static const weft_dtype dtypes[] = {WEFT_BF16, WEFT_F16, WEFT_F32};
    struct plan plan = {.seed = next_random(state)};
    plan.dtype = dtypes[pick_from(state, 0, 2)];
    plan.hidden = hiddens[pick_from(state, 0, 9)];
    plan.tokens = pick_from(state, 0, 9) == 0 ? pick_from(state, 0, 4096) : pick_from(state, 0, 40);
    if (plan.tokens * plan.hidden > 1 << 20) plan.tokens = (1 << 20) / plan.hidden;
    plan.data = (int)pick_from(state, 0, 2);
    plan.scatter = pick_from(state, 0, 3) == 0;
    plan.top_k = pick_from(state, 0, 3) == 0 ? pick_from(state, 1, 4) : 0;
    plan.experts = pick_from(state, 1, 16);
    plan.shared = pick_from(state, 0, 1) == 1;
    plan.residual = pick_from(state, 0, 3) != 0;
    plan.want_s = pick_from(state, 0, 1) == 1;
    plan.residual_in_place = plan.residual && plan.want_s && pick_from(state, 0, 1) == 1;
    plan.want_y = pick_from(state, 0, 3) != 0;
    plan.in_place = plan.want_y && plan.top_k == 0 && !plan.scatter && pick_from(state, 0, 1) == 1;
    plan.norm = pick_from(state, 0, 3) != 0;
    plan.weight = plan.norm && pick_from(state, 0, 3) != 0;
    plan.quant = (weft_quant_kind)pick_from(state, 0, WEFT_QUANT_NVFP4_SWIZZLED);
    if (plan.hidden % 16 != 0 && plan.quant >= WEFT_QUANT_NVFP4) plan.quant = WEFT_QUANT_FP8_TOKEN;
    plan.eps = 1e-5f;
    plan.scale = 0.011f;
    plan.algorithm = (weft_algorithm)pick_from(state, 0, 2);
    pick_tuning(&plan, state, usable);
    return plan;
}

/* ---- memory of one operation: host copies, and the same on the device ---- */

struct memory {
    size_t bytes[BUFFERS];
    uint8_t *host[BUFFERS]; /* inputs; what the CPU makes of the outputs */
    uint8_t *gpu[BUFFERS], *back;
};

static void sizes_of(const struct plan *plan, int64_t out_rows, struct memory *m)
{
    size_t width = width_of(plan->dtype), row = (size_t)plan->hidden * width;
    size_t rows = (size_t)plan->tokens, out = (size_t)out_rows, columns = (size_t)plan->hidden / 16;
    bool moe = plan->top_k > 0, nvfp4 = plan->quant >= WEFT_QUANT_NVFP4;
    size_t scales[] = {0, 0, out * 4, out * columns, (out + 127) / 128 * 512 * ((columns + 3) / 4)};
    m->bytes[X] = moe ? 0 : rows * row;
    m->bytes[EXPERT] = moe ? (size_t)plan->experts * row : 0;
    m->bytes[SLOTS] = m->bytes[GATES] = rows * (size_t)plan->top_k * 4;
    m->bytes[SHARED] = moe && plan->shared ? rows * row : 0;
    m->bytes[RESIDUAL] = plan->residual ? out * row : 0;
    m->bytes[WEIGHT] = plan->weight ? row : 0;
    m->bytes[S] = plan->want_s && !plan->residual_in_place ? out * row : 0;
    m->bytes[Y] = plan->want_y && !plan->in_place ? out * row : 0;
    m->bytes[CODES] =
        plan->quant == WEFT_QUANT_NONE ? 0 : out * (size_t)plan->hidden / (nvfp4 ? 2 : 1);
    m->bytes[SCALES] = scales[plan->quant];
}

static void memory_free(struct memory *m)
{
    for (int b = 0; b < BUFFERS; b++) free(m->host[b]);
    free(m->back);
}

/* Inputs filled, outputs and guards poisoned, on both sides alike. */
static weft_status memory_make(struct gpu_rank *self, const struct plan *plan, uint8_t *heap,
                               struct memory *m, weft_error *err)
{
    size_t most = 0;
    int rank = self->rank;
    self->used = 0;
    int64_t width = (int64_t)width_of(plan->dtype);
    for (int b = 0; b < BUFFERS; b++) {
        size_t all = m->bytes[b] + 2 * GUARD;
        if (all > most) most = all;
        m->host[b] = malloc(all);
        memset(m->host[b], CANARY, all);
        if (b == X || b == EXPERT || b == SHARED) /* different on every rank */
            fill(plan, m->host[b] + GUARD, (int64_t)m->bytes[b] / width, (uint64_t)(b + 20 * rank));
        if (b == WEIGHT || (b == RESIDUAL && !plan->scatter))
            fill(plan, m->host[b] + GUARD, (int64_t)m->bytes[b] / width, (uint64_t)b);
        if (b == RESIDUAL && plan->scatter)
            fill(plan, m->host[b] + GUARD, (int64_t)m->bytes[b] / width, (uint64_t)(b + 20 * rank));
        uint64_t state = plan->seed + (uint64_t)(b + 20 * rank);
        for (size_t i = 0; i < m->bytes[b] / 4 && b == SLOTS; i++)
            ((int32_t *)(void *)(m->host[b] + GUARD))[i] =
                (int32_t)pick_from(&state, -1, plan->experts);
        for (size_t i = 0; i < m->bytes[b] / 4 && b == GATES; i++)
            ((float *)(void *)(m->host[b] + GUARD))[i] = (float)pick_from(&state, 0, 999) / 1000.0f;
        bool placed = b == X
        &&plan->tuning.wire == WEFT__CUDA_PLACED;
        m->gpu[b] = placed ? heap : gpu_take(self, all);
        if (m->gpu[b] == NULL) return weft__fail(err, WEFT_NO_MEMORY, "the arena is too small");
        WEFT__TRY(gpu_write(self->comm, m->gpu[b], m->host[b], all, err));
    }
    m->back = malloc(most);
    return WEFT_OK;
}

static weft_reduce operation_of(const struct plan *plan, uint8_t *const *at)
{
    void *p[BUFFERS];
    /* Ranks agree on what is given, also where it has no rows. */
    bool moe = plan->top_k > 0, quant = plan->quant != WEFT_QUANT_NONE;
    const bool given[BUFFERS] = {
        [X] = !moe,
        [EXPERT] = moe,
        [SLOTS] = moe,
        [GATES] = moe,
        [SHARED] = moe && plan->shared,
        [RESIDUAL] = plan->residual,
        [WEIGHT] = plan->weight,
        [S] = plan->want_s && !plan->residual_in_place,
        [Y] = plan->want_y && !plan->in_place,
        [CODES] = quant,
        [SCALES] = quant,
    };
    for (int b = 0; b < BUFFERS; b++) p[b] = given[b] ? at[b] + GUARD : NULL;
    return (weft_reduce)
    {
        .tokens = plan->tokens, .hidden = plan->hidden, .dtype = plan->dtype, .x = p[X],
        .moe = {.top_k = plan->top_k,
                .expert_rows = moe ? plan->experts : 0,
                .expert_out = p[EXPERT],
                .slots = p[SLOTS],
                .gates = p[GATES],
                .shared = p[SHARED]},
        .residual = p[RESIDUAL], .residual_out = plan->residual_in_place ? p[RESIDUAL] : p[S],
        .norm = plan->norm, .norm_weight = p[WEIGHT], .norm_eps = plan->eps,
        .y = plan->in_place ? p[X] : p[Y],
        .quant = {
            .kind = plan->quant, .scale = plan->scale, .codes = p[CODES], .scales = p[SCALES]},
    };
}

/* ---- one case on one rank ---- */

static weft_status compare(const weft_comm *comm, const struct plan *plan, struct memory *m,
                           weft_error *err)
{
    for (int b = 0; b < BUFFERS; b++) {
        size_t all = m->bytes[b] + 2 * GUARD;
        WEFT__TRY(gpu_read(comm, m->back, m->gpu[b], all, err));
        if (memcmp(m->back, m->host[b], all) == 0) continue;
        size_t at = 0;
        while (m->back[at] == m->host[b][at]) at++;
        return weft__fail(
            err, WEFT_INTERNAL,
            "buffer %d differs at byte %zd of %zu (%02x, not %02x): %s [%lld, %lld] scatter %d "
            "moe %lld residual %d%d s %d y %d%d norm %d%d quant %d data %d algorithm %d path %d "
            "wire %d cluster %d sections %d",
            b, (ptrdiff_t)at - GUARD, m->bytes[b], m->back[at], m->host[b][at],
            weft_dtype_name(plan->dtype), (long long)plan->tokens, (long long)plan->hidden,
            plan->scatter, (long long)plan->top_k, plan->residual, plan->residual_in_place,
            plan->want_s, plan->want_y, plan->in_place, plan->norm, plan->weight, plan->quant,
            plan->data, plan->algorithm, plan->tuning.path, plan->tuning.wire, plan->tuning.cluster,
            plan->tuning.sections);
    }
    return WEFT_OK;
}

static weft_status run_case(struct gpu_rank *self, weft_comm *cpu, const struct plan *plan,
                            uint8_t *heap, weft_error *err)
{
    struct memory m = {0};
    weft_comm *gpu = self->comm;
    int64_t first, out_rows = plan->tokens;
    if (plan->scatter)
        out_rows = weft_comm_share(plan->tokens, weft_comm_size(cpu), self->rank, &first);
    sizes_of(plan, out_rows, &m);
    weft_status status = memory_make(self, plan, heap, &m, err);
    weft_reduce on_cpu = operation_of(plan, m.host), on_gpu = operation_of(plan, m.gpu);
    gpu->algorithm = plan->algorithm;
    weft__cuda_tune(gpu->kernels, &plan->tuning);
    weft_status (*call)(weft_comm *, const weft_reduce *, weft_error *) =
        plan->scatter ? weft_comm_reduce_scatter : weft_comm_allreduce;
    if (status == WEFT_OK) status = call(gpu, &on_gpu, err);
    if (status == WEFT_OK) status = call(cpu, &on_cpu, err);
    if (status == WEFT_OK) status = weft_comm_sync(gpu, err);
    if (status == WEFT_OK) status = compare(gpu, plan, &m, err);
    memory_free(&m);
    return status;
}

static weft_status run_cases(struct gpu_rank *self, weft_error *err)
{
    const struct job *job = self->arg;
    weft_comm *cpu = NULL;
    weft_status status = weft_comm_open(job->cpu, self->rank, &cpu, err);
    uint64_t state = job->seed;
    void *heap = NULL;
    if (status == WEFT_OK) status = weft_comm_heap_alloc(self->comm, HEAP_BYTES, &heap, err);
    for (int i = 0; i < job->cases && status == WEFT_OK; i++) {
        struct plan plan = pick_plan(&state, self->comm->kernels->usable);
        status = run_case(self, cpu, &plan, heap, err);
    }
    if (status != WEFT_OK && cpu != NULL) weft_comm_abort(cpu, err->text);
    weft_comm_close(cpu);
    return status;
}

/* ---- bytes: all_gather and broadcast of every alignment, groups ---- */

static weft_status gather_case(struct gpu_rank *self, weft_comm *gpu, uint64_t *state,
                               weft_error *err)
{
    int p = weft_comm_size(gpu), me = weft_comm_rank(gpu);
    size_t unit = pick_from(state, 0, 1) == 1 ? 16 : 1, row_bytes[WEFT__MAX_RANKS], sum = 0;
    int64_t rows = pick_from(state, 0, 50);
    for (int m = 0; m < p; m++) {
        row_bytes[m] = (size_t)pick_from(state, 0, 3000) * unit;
        sum += row_bytes[m];
    }
    size_t mine = row_bytes[me] * (size_t)rows, all = sum * (size_t)rows;
    uint8_t *in = malloc(mine + 1), *out = malloc(all + 1);
    self->used = 0;
    uint8_t *gpu_in = gpu_take(self, mine + 16), *gpu_out = gpu_take(self, all + 16);
    for (size_t i = 0; i < mine; i++) in[i] = (uint8_t)((size_t)me * 61 + i * 7 + i / 251);
    memset(out, CANARY, all + 1);
    WEFT__TRY(gpu_write(gpu, gpu_in, in, mine, err));
    WEFT__TRY(gpu_write(gpu, gpu_out, out, all + 1, err));
    weft_gather op = {.rows = rows, .row_bytes_of = row_bytes, .in = gpu_in, .out = gpu_out};
    WEFT__TRY(weft_comm_all_gather(gpu, &op, err));
    WEFT__TRY(weft_comm_sync(gpu, err));
    WEFT__TRY(gpu_read(gpu, out, gpu_out, all + 1, err));
    bool right = out[all] == CANARY;
    size_t at = 0;
    for (size_t row = 0; row < (size_t)rows; row++)
        for (size_t m = 0; m < (size_t)p; m++)
            for (size_t c = 0; c < row_bytes[m]; c++, at++) {
                size_t i = row * row_bytes[m] + c;
                right = right && out[at] == (uint8_t)(m * 61 + i * 7 + i / 251);
            }
    free(in);
    free(out);
    return right ? WEFT_OK : weft__fail(err, WEFT_INTERNAL, "all_gather: wrong bytes");
}

static weft_status broadcast_case(struct gpu_rank *self, weft_comm *gpu, uint64_t *state,
                                  weft_error *err)
{
    size_t bytes = (size_t)pick_from(state, 0, 70000);
    int root = (int)pick_from(state, 0, weft_comm_size(gpu) - 1);
    self->used = 0;
    uint8_t *data = malloc(bytes + 1), *memory = gpu_take(self, bytes + 16);
    bool sends = root == weft_comm_rank(gpu), right = true;
    memset(data, CANARY, bytes + 1);
    for (size_t i = 0; i < bytes && sends; i++) data[i] = (uint8_t)(i * 13 + (size_t)root);
    WEFT__TRY(gpu_write(gpu, memory, data, bytes + 1, err));
    WEFT__TRY(weft_comm_broadcast(gpu, &(weft_broadcast){root, bytes, memory}, err));
    WEFT__TRY(weft_comm_barrier(gpu, err));
    WEFT__TRY(weft_comm_sync(gpu, err));
    WEFT__TRY(gpu_read(gpu, data, memory, bytes + 1, err));
    for (size_t i = 0; i < bytes; i++) right = right && data[i] == (uint8_t)(i * 13 + (size_t)root);
    right = right && data[bytes] == CANARY;
    free(data);
    return right ? WEFT_OK : weft__fail(err, WEFT_INTERNAL, "broadcast: wrong bytes");
}

static weft_status move_cases(struct gpu_rank *self, weft_error *err)
{
    weft_comm *gpu = self->comm;
    int rank = self->rank;
    uint64_t state = *(const uint64_t *)self->arg;
    weft_comm *group = NULL;
    WEFT__TRY(weft_comm_split(gpu, rank % 2, -rank, &group, err));
    for (int i = 0; i < 24; i++) {
        struct weft__cuda_tuning tuning = {.path = (weft_path)(1 + i % WEFT_PATH_NCCL),
                                           .sections = i % 4};
        if ((gpu->kernels->usable >> tuning.path & 1) == 0) tuning.path = WEFT_PATH_AUTO;
        weft__cuda_tune(gpu->kernels, &tuning);
        WEFT__TRY(gather_case(self, gpu, &state, err));
        WEFT__TRY(broadcast_case(self, gpu, &state, err));
        uint64_t ours = state + (uint64_t)(rank % 2);
        WEFT__TRY(gather_case(self, group, &ours, err));
    }
    return WEFT_OK;
}

/* ---- tests ---- */

static void bits_are_the_cpus(void **state)
{
    struct gpu_place *place = *state;
    for (int p = 1; p <= place->most; p++) {
        /* The epoch wraps within the first cases. */
        struct weft__tuning tuning = {.first_epoch = 0xfffffff0u, .plan_ms = -1};
        weft_world_options options = {.size = p,
                                      .cuda_devices = place->ordinal,
                                      .timeout_ms = 20000,
                                      .message_bytes = p % 2 == 0 ? HEAP_BYTES : 0}; /* else cut */
        weft_world *gpu = world_of(options, tuning);
        weft_world *cpu = world_of((weft_world_options){.size = p}, (struct weft__tuning){0});
        int cases = place->brief > 0 ? place->brief : CASES;
        struct job job = {cpu, p, cases, 77 + (uint64_t)p};
        uint64_t begun = weft__now_ns();
        gpu_ranks_succeed(gpu, p, run_cases, &job, ARENA_BYTES);
        printf("p = %d: %d operations, %.1f s\n", p, cases, (double)(weft__now_ns() - begun) / 1e9);
        (void)fflush(stdout);
        weft_world_destroy(cpu);
        weft_world_destroy(gpu);
    }
}

static void bytes_arrive(void **state)
{
    struct gpu_place *place = *state;
    if (place->most == 2) return; /* sanitizers hold a rank's copies back while its peer waits */
    for (int p = 2; p <= 5; p += 3) {
        weft_world *gpu = world_of(
            (weft_world_options){.size = p, .cuda_devices = place->ordinal, .timeout_ms = 20000},
            (struct weft__tuning){0});
        uint64_t seed = 5;
        gpu_ranks_succeed(gpu, p, move_cases, &seed, ARENA_BYTES);
        weft_world_destroy(gpu);
    }
}

int main(int argc, char **argv)
{
    struct gpu_place place = gpu_place_or_skip("comm_cuda_numbers");
    if (argc > 2 && strcmp(argv[1], "--short") == 0) {
        place.brief = (int)strtol(argv[2], NULL, 10);
        place.most = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 2;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(bytes_arrive, &place),
                                       cmocka_unit_test_prestate(bits_are_the_cpus, &place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
