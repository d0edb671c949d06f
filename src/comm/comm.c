/* comm.c: operations: check what the caller gave, cut it into messages, run the device's kernel. */
#include "comm.h"
#include "base/numerics.h"

enum { GEMM_TILE_ROWS = 64 };

/* ---- frame of every operation ---- */

static weft_status start(weft_comm *comm, uint64_t *begun_ns, weft_error *err)
{
    *begun_ns = weft__now_ns();
    return weft__comm_health(comm, err);
}

static void count(weft_comm *comm, uint64_t bytes, uint64_t begun_ns)
{
    comm->stats.operations++;
    comm->stats.bytes += bytes;
    comm->stats.total_ns += weft__now_ns() - begun_ns;
}

void *weft_comm_stream(const weft_comm *comm) { return comm->dev->stream(comm->kernels); }

weft_status weft_comm_sync(weft_comm *comm, weft_error *err)
{
    comm->dev->sync(comm->kernels);
    return weft__comm_health(comm, err);
}

void weft_comm_get_stats(const weft_comm *comm, weft_comm_stats *out)
{
    *out = comm->stats;
    out->wait_ns = comm->channel->wait_ns;
}

static weft_status fail_argument(const weft_comm *comm, const char *op, const char *what,
                                 weft_error *err)
{
    return weft__fail(err, WEFT_INVALID, "rank %d: %s: %s", weft__comm_world_rank(comm), op, what);
}

/* Where peers find the input. `twin`: an output is the input itself, so it has to be copied. */
static weft_status source_of(const weft_comm *comm, const char *op, const void *in, bool twin,
                             enum weft__comm_source *out, weft_error *err)
{
    const struct weft__comm_link *link = &comm->link;
    uintptr_t at = (uintptr_t)in - (uintptr_t)comm->root->heap;
    uint64_t staging = link->staging[link->rank];
    bool gpu = comm->host != NULL;
    *out = WEFT__SOURCE_STAGE;
    if (in == NULL || at >= comm->session->segment_bytes) return WEFT_OK;
    uint32_t epoch = comm->channel->epoch + 1;
    if (gpu) {
        bool heap = at >= comm->session->segment_bytes - link->heap_bytes;
        if (heap && !twin) *out = WEFT__SOURCE_HEAP;
    } else if (at - staging < WEFT__STAGING_MESSAGES * link->message_bytes) {
        if (comm->lent_epoch != epoch || at != weft__comm_input_at(link, link->rank, epoch))
            return fail_argument(comm, op,
                                 "the input is an outdated buffer: call weft_comm_input before "
                                 "each operation, and pass what it gave",
                                 err);
        *out = WEFT__SOURCE_STAGED;
    } else if (!twin) {
        *out = WEFT__SOURCE_HEAP;
    }
    return WEFT_OK;
}

/* ---- memory that an operation touches ---- */

struct span {
    const char *name;
    const void *at;
    size_t bytes;
    const void *twin; /* the one input that it may coincide with */
};

static bool overlap(const struct span *a, const struct span *b)
{
    uintptr_t x = (uintptr_t)a->at, y = (uintptr_t)b->at;
    return a->at != NULL && b->at != NULL && x < y + b->bytes && y < x + a->bytes;
}

/* The first `outputs` spans are written; they must lie apart from all others. */
static weft_status check_apart(const weft_comm *comm, const char *op, const struct span *spans,
                               size_t outputs, size_t all, weft_error *err)
{
    const struct weft__comm_link *link = &comm->link;
    struct span staging = {.name = "the buffers of weft_comm_input",
                           .at = link->segment[link->rank] + link->staging[link->rank],
                           .bytes = WEFT__STAGING_MESSAGES * link->message_bytes};
    for (size_t i = 0; i < outputs; i++)
        for (size_t j = i + 1; j <= all; j++) {
            const struct span *other = j < all ? &spans[j] : &staging;
            bool twins = spans[i].twin != NULL && spans[i].twin == other->at &&
                         spans[i].at == other->at && j >= outputs;
            if (!twins && overlap(&spans[i], other))
                return weft__fail(err, WEFT_INVALID, "rank %d: %s: %s overlaps %s",
                                  weft__comm_world_rank(comm), op, spans[i].name, other->name);
        }
    return WEFT_OK;
}

/* ---- reductions ---- */

static bool is_nvfp4(weft_quant_kind kind)
{
    return kind == WEFT_QUANT_NVFP4 || kind == WEFT_QUANT_NVFP4_SWIZZLED;
}

/* NULL when the sizes are fine; all products below then fit. */
static const char *wrong_shape(const weft_reduce *op)
{
    size_t bytes;
    if (op->tokens < 0) return "tokens is negative";
    if (op->hidden <= 0 || op->hidden % 8 != 0 || op->hidden > WEFT_COMM_HIDDEN_MAX)
        return "hidden must be a multiple of 8, at most 65536";
    if (op->dtype != WEFT_F32 && op->dtype != WEFT_F16 && op->dtype != WEFT_BF16)
        return "dtype must be F32, F16 or BF16";
    if (!weft__mul_size((size_t)op->tokens, (size_t)op->hidden * 4, &bytes) || bytes > PTRDIFF_MAX)
        return "tokens * hidden is too large";
    if (op->moe.top_k < 0 || op->moe.expert_rows < 0) return "moe: a negative size";
    if (op->moe.top_k > 0 &&
        (!weft__mul_size((size_t)op->tokens, (size_t)op->moe.top_k, &bytes) ||
         bytes > PTRDIFF_MAX / 4 ||
         !weft__mul_size((size_t)op->moe.expert_rows, (size_t)op->hidden * 4, &bytes) ||
         bytes > PTRDIFF_MAX))
        return "moe: sizes are too large";
    return NULL;
}

static const char *wrong_pointers(const weft_reduce *op)
{
    const weft_moe *moe = &op->moe;
    const weft_quant *quant = &op->quant;
    if (op->tokens == 0) return NULL;
    if (moe->top_k > 0 && op->x != NULL) return "x and moe are both given";
    if (moe->top_k > 0 && (moe->slots == NULL || moe->gates == NULL ||
                           (moe->expert_out == NULL && moe->expert_rows > 0)))
        return "moe needs expert_out, slots and gates";
    if (moe->top_k == 0 && op->x == NULL) return "x is missing";
    if (quant->kind != WEFT_QUANT_NONE && quant->codes == NULL) return "quant: codes is missing";
    if (quant->kind > WEFT_QUANT_FP8_TENSOR && quant->scales == NULL)
        return "quant: scales is missing";
    return NULL;
}

static const char *wrong_options(const weft_reduce *op)
{
    const weft_quant *quant = &op->quant;
    if ((unsigned)quant->kind > WEFT_QUANT_NVFP4_SWIZZLED) return "quant: unknown kind";
    if (is_nvfp4(quant->kind) && op->hidden % 16 != 0)
        return "quant: NVFP4 needs hidden to be a multiple of 16";
    if ((quant->kind == WEFT_QUANT_FP8_TENSOR || is_nvfp4(quant->kind)) &&
        !(quant->scale > 0.0f && quant->scale < INFINITY))
        return "quant: scale must be positive and finite";
    if (op->norm && !(op->norm_eps >= 0.0f && op->norm_eps < INFINITY))
        return "norm_eps must be finite and not negative";
    if (!op->norm && op->norm_weight != NULL) return "norm_weight is given, but norm is false";
    return NULL;
}

static size_t scales_bytes(const weft_reduce *op, size_t rows)
{
    size_t columns = (size_t)op->hidden / 16;
    switch (op->quant.kind) {
    case WEFT_QUANT_FP8_TOKEN:
        return rows * sizeof(float);
    case WEFT_QUANT_NVFP4:
        return rows * columns;
    case WEFT_QUANT_NVFP4_SWIZZLED:
        return (rows + 127) / 128 * 512 * ((columns + 3) / 4);
    default:
        return 0;
    }
}

static weft_status check_memory(const weft_comm *comm, const char *name, const weft_reduce *op,
                                int64_t out_rows, weft_error *err)
{
    size_t hidden = (size_t)op->hidden, width = op->dtype == WEFT_F32 ? 4 : 2;
    size_t all = (size_t)op->tokens * hidden * width, own = (size_t)out_rows * hidden * width;
    size_t picks = (size_t)op->tokens * (size_t)op->moe.top_k * 4;
    size_t codes = (size_t)out_rows * hidden / (is_nvfp4(op->quant.kind) ? 2 : 1);
    bool quant = op->quant.kind != WEFT_QUANT_NONE, moe = op->moe.top_k > 0;
    /* Kernels read x where it is, and one's own rows are elsewhere in it than in y. */
    bool twins = comm->host == NULL || out_rows == op->tokens;
    const struct span spans[] = {
        {"residual_out", op->residual_out, own, op->residual},
        {"y", op->y, own, twins ? op->x : NULL},
        {"quant.codes", quant ? op->quant.codes : NULL, codes, NULL},
        {"quant.scales", quant ? op->quant.scales : NULL, scales_bytes(op, (size_t)out_rows), NULL},
        {"x", op->x, all, NULL},
        {"residual", op->residual, own, NULL},
        {"norm_weight", op->norm_weight, hidden * width, NULL},
        {"moe.expert_out", moe ? op->moe.expert_out : NULL,
         (size_t)op->moe.expert_rows * hidden * width, NULL},
        {"moe.slots", moe ? op->moe.slots : NULL, picks, NULL},
        {"moe.gates", moe ? op->moe.gates : NULL, picks, NULL},
        {"moe.shared", moe ? op->moe.shared : NULL, all, NULL},
    };
    return check_apart(comm, name, spans, 4, WEFT__COUNT(spans), err);
}

static struct weft__comm_post reduce_post(const weft_reduce *op, enum weft__comm_op kind,
                                          bool two_shot)
{
    uint32_t options[] = {op->residual != NULL,     op->norm,
                          op->norm_weight != NULL,  weft__f32_bits(op->norm_eps),
                          (uint32_t)op->quant.kind, weft__f32_bits(op->quant.scale)};
    return (struct weft__comm_post){.op = kind,
                                    .dtype = (uint32_t)op->dtype,
                                    .shape = {op->tokens, op->hidden},
                                    .detail = weft__hash(options, sizeof options, 0),
                                    .two_shot = two_shot};
}

static weft_status reduce(weft_comm *comm, const weft_reduce *op, enum weft__comm_op kind,
                          const char *name, weft_error *err)
{
    uint64_t begun_ns;
    WEFT__TRY(start(comm, &begun_ns, err));
    const char *wrong = wrong_shape(op);
    if (wrong == NULL) wrong = wrong_options(op);
    if (wrong == NULL) wrong = wrong_pointers(op);
    if (wrong != NULL) return fail_argument(comm, name, wrong, err);
    const struct weft__comm_link *link = &comm->link;
    int64_t row_bytes = op->hidden * (op->dtype == WEFT_F32 ? 4 : 2);
    struct weft__comm_reduce_args args = {.op = *op, .out_rows = op->tokens};
    if (kind == WEFT__REDUCE_SCATTER)
        args.out_rows = weft_comm_share(op->tokens, link->size, link->rank, &args.out_first);
    WEFT__TRY(check_memory(comm, name, op, args.out_rows, err));
    WEFT__TRY(source_of(comm, name, op->x, op->x == op->y, &args.source, err));
    struct weft__comm_choice choice = weft__comm_plan_choose(
        comm, kind, (uint64_t)op->tokens * (uint64_t)row_bytes, args.source == WEFT__SOURCE_HEAP);
    args.post = reduce_post(op, kind, choice.two_shot);
    args.way = choice.way;
    int64_t piece = (int64_t)link->message_bytes / row_bytes;
    if (args.source == WEFT__SOURCE_STAGED && op->tokens > piece)
        return fail_argument(comm, name, "the input is longer than message_bytes", err);
    do { /* once even without rows, so that ranks that disagree find out */
        args.rows = weft__min(piece, op->tokens - args.first);
        comm->dev->reduce(comm->kernels, &args);
        WEFT__TRY(weft__comm_health(comm, err));
        args.first += args.rows;
    } while (args.first < op->tokens);
    count(comm, (uint64_t)op->tokens * (uint64_t)row_bytes, begun_ns);
    return WEFT_OK;
}

weft_status weft_comm_allreduce(weft_comm *comm, const weft_reduce *op, weft_error *err)
{
    return reduce(comm, op, WEFT__ALLREDUCE, "allreduce", err);
}

weft_status weft_comm_reduce_scatter(weft_comm *comm, const weft_reduce *op, weft_error *err)
{
    return reduce(comm, op, WEFT__REDUCE_SCATTER, "reduce_scatter", err);
}

weft_status weft_comm_gemm_allreduce(weft_comm *comm, const weft_gemm_reduce *op, weft_error *err)
{
    static const char name[] = "gemm_allreduce";
    const struct weft__comm_link *link = &comm->link;
    uint64_t begun_ns;
    WEFT__TRY(start(comm, &begun_ns, err));
    if (comm->dev != &weft__cpu_comm)
        return weft__fail(err, WEFT_UNSUPPORTED, "rank %d: %s: on CPUs only",
                          weft__comm_world_rank(comm), name);
    struct weft__comm_gemm_args args = {.reduce = {.op = op->reduce, .out_rows = op->reduce.tokens},
                                        .compute = op->compute,
                                        .ctx = op->ctx};
    weft_reduce *reduce = &args.reduce.op;
    if (op->compute == NULL || reduce->x != NULL || reduce->moe.top_k != 0 || op->tile_rows < 0)
        return fail_argument(comm, name, "wants compute, no x, no moe, tile_rows not negative",
                             err);
    reduce->x = link->segment[link->rank] + link->staging[link->rank]; /* where tiles will be */
    const char *wrong = wrong_shape(reduce);
    if (wrong == NULL) wrong = wrong_options(reduce);
    if (wrong == NULL) wrong = wrong_pointers(reduce);
    if (wrong != NULL) return fail_argument(comm, name, wrong, err);
    WEFT__TRY(check_memory(comm, name, reduce, reduce->tokens, err));
    int64_t row_bytes = reduce->hidden * (reduce->dtype == WEFT_F32 ? 4 : 2);
    int64_t fits = (int64_t)link->message_bytes / row_bytes;
    args.tile_rows = weft__min(op->tile_rows > 0 ? op->tile_rows : GEMM_TILE_ROWS, fits);
    args.reduce.post = reduce_post(reduce, WEFT__ALLREDUCE, false);
    args.reduce.post.detail =
        weft__hash(&args.tile_rows, sizeof args.tile_rows, args.reduce.post.detail);
    weft__cpu_gemm_reduce(comm->kernels, &args);
    WEFT__TRY(weft__comm_health(comm, err));
    count(comm, (uint64_t)reduce->tokens * (uint64_t)row_bytes, begun_ns + args.compute_ns);
    return WEFT_OK;
}

/* ---- bytes ---- */

/* Cuts a line of `bytes` bytes, the longest of any member, into messages. */
static weft_status move(weft_comm *comm, struct weft__comm_move_args *args, uint64_t bytes,
                        weft_error *err)
{
    args->way = weft__comm_plan_choose(comm, args->post.op, bytes, false).way;
    do {
        uint64_t left = bytes - args->first;
        args->bytes = left < comm->link.message_bytes ? left : comm->link.message_bytes;
        comm->dev->move(comm->kernels, args);
        WEFT__TRY(weft__comm_health(comm, err));
        args->first += args->bytes;
    } while (args->first < bytes);
    return WEFT_OK;
}

/* Row bytes of every member, and of all together. */
static bool gather_sizes(const weft_comm *comm, const weft_gather *op,
                         struct weft__comm_move_args *args, uint64_t *longest)
{
    size_t most = 0, sum = 0, bytes;
    for (int m = 0; m < comm->link.size; m++) {
        size_t row = op->row_bytes_of != NULL ? op->row_bytes_of[m] : op->row_bytes;
        args->row_bytes[m] = row;
        if (row > most) most = row;
        if (!weft__add_size(sum, row, &sum)) return false;
    }
    args->out_row_bytes = sum;
    *longest = most * (uint64_t)op->rows; /* fits when the sum does */
    return weft__mul_size(sum, (size_t)op->rows, &bytes) && bytes <= PTRDIFF_MAX;
}

weft_status weft_comm_all_gather(weft_comm *comm, const weft_gather *op, weft_error *err)
{
    static const char name[] = "all_gather";
    uint64_t begun_ns, longest;
    WEFT__TRY(start(comm, &begun_ns, err));
    struct weft__comm_move_args args = {
        .rows = op->rows, .in = op->in, .out = op->out, .patient = op->patient};
    if (op->rows < 0) return fail_argument(comm, name, "rows is negative", err);
    if (!gather_sizes(comm, op, &args, &longest))
        return fail_argument(comm, name, "rows * row bytes is too large", err);
    size_t in_bytes = args.row_bytes[comm->link.rank] * (size_t)op->rows;
    size_t out_bytes = args.out_row_bytes * (size_t)op->rows;
    if ((in_bytes > 0 && op->in == NULL) || (out_bytes > 0 && op->out == NULL))
        return fail_argument(comm, name, "in or out is missing", err);
    const struct span spans[] = {{"out", op->out, out_bytes, NULL}, {"in", op->in, in_bytes, NULL}};
    WEFT__TRY(check_apart(comm, name, spans, 1, 2, err));
    WEFT__TRY(source_of(comm, name, op->in, false, &args.source, err));
    if (args.source == WEFT__SOURCE_STAGED && longest > comm->link.message_bytes)
        return fail_argument(comm, name, "an input is longer than message_bytes", err);
    args.post =
        (struct weft__comm_post){.op = WEFT__ALL_GATHER,
                                 .shape = {op->rows, (int64_t)args.out_row_bytes},
                                 .detail = weft__hash(args.row_bytes, sizeof args.row_bytes, 0)};
    WEFT__TRY(move(comm, &args, longest, err));
    count(comm, in_bytes, begun_ns);
    return WEFT_OK;
}

weft_status weft_comm_broadcast(weft_comm *comm, const weft_broadcast *op, weft_error *err)
{
    static const char name[] = "broadcast";
    uint64_t begun_ns;
    WEFT__TRY(start(comm, &begun_ns, err));
    if (op->root < 0 || op->root >= comm->link.size)
        return fail_argument(comm, name, "there is no such root", err);
    if (op->bytes > PTRDIFF_MAX) return fail_argument(comm, name, "bytes is too large", err);
    if (op->bytes > 0 && op->data == NULL) return fail_argument(comm, name, "data is missing", err);
    struct weft__comm_move_args args = {.root = op->root, .in = op->data, .out = op->data};
    args.post = (struct weft__comm_post){
        .op = WEFT__BROADCAST, .shape = {1, (int64_t)op->bytes}, .detail = (uint64_t)op->root};
    if (op->root == comm->link.rank) {
        WEFT__TRY(source_of(comm, name, op->data, false, &args.source, err));
        if (args.source == WEFT__SOURCE_STAGED && op->bytes > comm->link.message_bytes)
            return fail_argument(comm, name, "the input is longer than message_bytes", err);
    } else {
        const struct span span = {"data", op->data, op->bytes, NULL};
        WEFT__TRY(check_apart(comm, name, &span, 1, 1, err));
    }
    WEFT__TRY(move(comm, &args, op->bytes, err));
    count(comm, op->root == comm->link.rank ? op->bytes : 0, begun_ns);
    return WEFT_OK;
}

weft_status weft_comm_barrier(weft_comm *comm, weft_error *err)
{
    uint64_t begun_ns;
    WEFT__TRY(start(comm, &begun_ns, err));
    struct weft__comm_move_args args = {.post = {.op = WEFT__BARRIER}};
    WEFT__TRY(move(comm, &args, 0, err));
    count(comm, 0, begun_ns);
    return WEFT_OK;
}
