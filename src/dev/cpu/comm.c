/* comm.c: the collective kernels for CPU ranks, threads or processes, over shared memory.
 *
 * One-shot, one row of n bytes and p ranks: each rank writes n (its staged input) and reads p * n.
 * Two-shot: writes n + n/p, reads n + n. Memory order: docs/PROTOCOL.md; the two halves of each
 * pair here are `publish` (release) and `wait_for` (acquire). */
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/rows.h"
#include "comm_rows.h"
#include "dev/comm_args.h"

enum {
    SLICE_NS = 10 * 1000 * 1000, /* a sleeping rank looks around this often, */
    PATIENT_NS = 10 * SLICE_NS,  /* and this often when it may sleep for long */
    STOPPED_NS = 100 * SLICE_NS, /* a slice that took so much longer did not let it look */
    FOLD_TILE = 4096,            /* elements folded at once, to stay in the first cache */
    SPINS_MIN = 64,              /* tries before a rank sleeps: some microseconds, */
    SPINS_MAX = 1024,            /* and some ten; */
    PATIENT_SPINS = 4096, /* once between two steps of a model, where some sampling is done */
};

/* What a member reads of something that is published. */
struct extent {
    size_t at, bytes;
};

struct weft__comm_kernels {
    struct weft__comm_link link;
    const struct weft__rows *rows;
    struct weft__comm_rank *self;
    struct weft__comm_channel *channel;    /* of self, in this group */
    uint32_t epoch;                        /* of the operation that runs */
    uint32_t spins;                        /* tries before the next sleep */
    struct weft__comm_post post;           /* of the operation that runs */
    const uint8_t *input[WEFT__MAX_RANKS]; /* of each member, valid after meet() */
    bool peers_hold;                       /* some input has to be released */
    bool patient;                          /* the operation that runs waits without a budget */
    float row[WEFT_COMM_HIDDEN_MAX];
    uint8_t scales[WEFT_COMM_HIDDEN_MAX / 16];
};

/* ---- floating-point mode: the caller's thread may flush subnormals to zero; the promise does not
 */

#if defined(__x86_64__)
enum { DEFAULT_MODE = 0x1f80 };

static unsigned enter_float_mode(void)
{
    unsigned mode = _mm_getcsr();
    if (mode != DEFAULT_MODE) _mm_setcsr(DEFAULT_MODE);
    return mode;
}

static void leave_float_mode(unsigned mode)
{
    if (mode != DEFAULT_MODE) _mm_setcsr(mode);
}
#else
static unsigned enter_float_mode(void) { return 0; }
static void leave_float_mode(unsigned mode) { (void)mode; }
#endif

/* ---- failure ---- */

void weft__comm_fail(struct weft__comm_fault *fault, const struct weft__comm_fault *what)
{
    uint32_t healthy = WEFT__COMM_HEALTHY;
    if (!atomic_compare_exchange_strong_explicit(&fault->state, &healthy, WEFT__COMM_FAILING,
                                                 memory_order_relaxed, memory_order_relaxed))
        return;
    size_t head = offsetof(struct weft__comm_fault, kind);
    memcpy((char *)fault + head, (const char *)what + head, sizeof *fault - head);
    /* Release: pairs with the acquire in comm/fault.c, which reads the record. Sleepers see it
     * within a slice. */
    atomic_store_explicit(&fault->state, WEFT__COMM_FAILED, memory_order_release);
}

static bool poisoned(const struct weft__comm_kernels *k)
{
    return atomic_load_explicit(&k->link.fault->state, memory_order_relaxed) != WEFT__COMM_HEALTHY;
}

static void fail(struct weft__comm_kernels *k, enum weft__comm_fault_kind kind, int world_rank,
                 enum weft__comm_phase phase, uint64_t elapsed_ns,
                 const struct weft__comm_post *theirs)
{
    struct weft__comm_fault what = {.kind = kind,
                                    .rank = k->link.world_rank[k->link.rank],
                                    .peer = world_rank,
                                    .op = k->post.op,
                                    .phase = phase,
                                    .epoch = k->epoch,
                                    .elapsed_ns = elapsed_ns,
                                    .mine = k->post};
    if (theirs != NULL) what.theirs = *theirs;
    weft__comm_fail(k->link.fault, &what);
    if (k->link.wire != NULL) k->link.wire->pump(k->link.wire);
}

/* ---- flags ---- */

static uint32_t progress_at(uint32_t epoch, enum weft__comm_phase phase)
{
    return epoch << 2 | phase;
}

static bool reached(uint32_t progress, uint32_t wanted)
{
    return (int32_t)(progress - wanted) >= 0; /* both wrap */
}

/* need [size]: what of the segment behind `base` is published, for each member; NULL: nothing. */
static void publish(struct weft__comm_kernels *k, enum weft__comm_phase phase, uint64_t base,
                    const struct extent *need)
{
    /* Release: pairs with the acquire loads in wait_for, sleep_for and followed. Sequentially
     * consistent, as is the sleeper's increment, so that either we see the sleeper or it sees the
     * new progress before it sleeps. */
    atomic_store(&k->channel->progress, progress_at(k->epoch, phase));
    if (atomic_load(&k->channel->sleepers) != 0) weft__wake_all(&k->channel->progress);
    for (int member = 0; k->link.wire != NULL && member < k->link.size; member++) {
        const struct weft__wire_part part = {.to = k->link.world_rank[member],
                                             .channel = k->link.channel,
                                             .progress = progress_at(k->epoch, phase),
                                             .post = &k->post,
                                             .at = base + (need != NULL ? need[member].at : 0),
                                             .bytes = need != NULL ? need[member].bytes : 0};
        if (member != k->link.rank) k->link.wire->publish(k->link.wire, &part);
    }
}

/* A rank that sleeps cannot be blamed while what it waits for is missing. Follows the chain of
 * sleepers from world_rank to the one that could go on; a circle ends where it began. */
static int followed(const struct weft__comm_link *link, int world_rank, bool *circle)
{
    *circle = false;
    int rank = world_rank;
    for (int hop = 0; hop < link->world_size; hop++) {
        uint64_t waiting = atomic_load_explicit(&link->world[rank]->waiting, memory_order_acquire);
        if (waiting == 0) return rank;
        int next = (int)(waiting >> 40 & 0xff), channel = (int)(waiting >> 32 & 0xff);
        uint32_t progress = atomic_load_explicit(&link->world[next]->channel[channel].progress,
                                                 memory_order_acquire);
        if (reached(progress, (uint32_t)waiting)) return rank;
        rank = next;
    }
    *circle = true;
    return world_rank;
}

/* The budget: it restarts whenever the rank to blame is another one, or shows a sign of life. */
struct watch {
    int culprit;
    bool circle; /* it waits itself, in the end for us */
    uint32_t heartbeat;
    uint64_t since;
};

static bool budget_spent(const struct weft__comm_link *link, struct watch *watch, int world_rank,
                         uint64_t now)
{
    bool circle;
    int culprit = followed(link, world_rank, &circle);
    uint32_t heartbeat =
        atomic_load_explicit(&link->world[culprit]->heartbeat, memory_order_relaxed);
    if (culprit != watch->culprit || heartbeat != watch->heartbeat)
        *watch = (struct watch){.culprit = culprit, .heartbeat = heartbeat, .since = now};
    watch->circle = circle;
    return now - watch->since >= link->timeout_ns;
}

int weft__comm_ended(const struct weft__comm_link *link)
{
    uint32_t lost = link->meeting != NULL ? weft__meeting_lost(link->meeting) : 0;
    for (int r = 0; lost >> r != 0; r++)
        if (lost >> r & 1 &&
            atomic_load_explicit(&link->world[r]->channel[0].closed, memory_order_acquire) == 0)
            return r;
    return -1;
}

static bool sleep_for(struct weft__comm_kernels *k, int member, enum weft__comm_phase phase,
                      uint32_t wanted, uint64_t start)
{
    const struct weft__comm_link *link = &k->link;
    int world_rank = link->world_rank[member];
    struct weft__comm_channel *peer = &link->world[world_rank]->channel[link->channel];
    struct watch watch = {.culprit = -1};
    bool ok = false;
    atomic_store_explicit(&k->self->waiting, weft__comm_waiting(world_rank, link->channel, wanted),
                          memory_order_release); /* pairs with followed() */
    atomic_fetch_add(&peer->sleepers, 1);        /* see publish() */
    for (;;) {
        /* Closed is read first: a peer that closes has published all it ever will. */
        bool closed = atomic_load_explicit(&peer->closed, memory_order_acquire) != 0;
        uint32_t progress = atomic_load_explicit(&peer->progress, memory_order_acquire);
        ok = reached(progress, wanted);
        if (ok || poisoned(k)) break;
        uint64_t now = weft__now_ns();
        if (closed) {
            fail(k, WEFT__FAULT_CLOSED, world_rank, phase, now - start, NULL);
            break;
        }
        int dead = weft__comm_ended(link);
        if (dead >= 0) {
            fail(k, WEFT__FAULT_ENDED, dead, phase, now - start, NULL);
            break;
        }
        if (!k->patient && budget_spent(link, &watch, world_rank, now)) {
            fail(k, watch.circle ? WEFT__FAULT_DEADLOCK : WEFT__FAULT_TIMEOUT, watch.culprit, phase,
                 now - start, NULL);
            break;
        }
        uint64_t until = now + (k->patient ? PATIENT_NS : SLICE_NS);
        if (link->wire != NULL)
            link->wire->sleep(link->wire, &peer->progress, progress, until);
        else
            (void)weft__wait_sleep(&peer->progress, progress, until);
        /* This process was stopped, and perhaps the others with it: that time does not count. */
        uint64_t woken = weft__now_ns();
        if (woken > until + STOPPED_NS) watch.since += woken - until;
    }
    atomic_fetch_sub(&peer->sleepers, 1);
    atomic_store_explicit(&k->self->waiting, 0, memory_order_release);
    if (link->wire != NULL) link->wire->pump(link->wire);
    return ok;
}

/* Waits until the member has published the phase of the epoch. False: the session has failed. */
static bool wait_for(struct weft__comm_kernels *k, int member, uint32_t epoch,
                     enum weft__comm_phase phase)
{
    const struct weft__comm_link *link = &k->link;
    struct weft__comm_channel *peer =
        &link->world[link->world_rank[member]]->channel[link->channel];
    uint32_t wanted = progress_at(epoch, phase);
    /* Acquire, here and below: pairs with publish(). */
    if (reached(atomic_load_explicit(&peer->progress, memory_order_acquire), wanted)) return true;
    uint64_t start = weft__now_ns();
    bool ok = false;
    uint32_t spins = k->patient ? PATIENT_SPINS : k->spins;
    for (uint32_t spin = 0; spin < spins && !ok; spin++) {
        if (link->wire != NULL)
            link->wire->pump(link->wire);
        else
            weft__pause();
        ok = reached(atomic_load_explicit(&peer->progress, memory_order_acquire), wanted);
    }
    /* Spinning that was in vain is shortened: the peer may be waiting for this very processor. */
    if (!k->patient)
        k->spins = (uint32_t)(ok ? weft__min(2 * k->spins, SPINS_MAX)
                                 : weft__max(k->spins / 2, SPINS_MIN));
    if (!ok) ok = sleep_for(k, member, phase, wanted, start);
    k->channel->wait_ns += weft__now_ns() - start;
    return ok;
}

static bool wait_for_all(struct weft__comm_kernels *k, uint32_t epoch, enum weft__comm_phase phase)
{
    for (int member = 0; member < k->link.size; member++)
        if (member != k->link.rank && !wait_for(k, member, epoch, phase)) return false;
    return true;
}

/* ---- an operation's frame ---- */

/* Says where the input is, once it is there. */
static void publish_at(struct weft__comm_kernels *k, uint64_t input, bool hold,
                       const struct extent *need)
{
    k->post.hold = hold;
    k->post.input = input;
    k->input[k->link.rank] = k->link.segment[k->link.rank] + input;
    k->channel->post[k->epoch & 1] = k->post;
    publish(k, WEFT__INPUT, input, need);
}

static void publish_input(struct weft__comm_kernels *k, enum weft__comm_source source,
                          const void *in, uint64_t first_byte, const struct extent *need)
{
    const struct weft__comm_link *link = &k->link;
    bool own = source == WEFT__SOURCE_HEAP;
    uint64_t input = own ? (uint64_t)((const uint8_t *)in - link->segment[link->rank]) + first_byte
                         : weft__comm_input_at(link, link->rank, k->epoch);
    publish_at(k, input, own, need);
}

/* Waits for a member's input and checks that it does the same as we do. */
static bool meet(struct weft__comm_kernels *k, int member)
{
    const struct weft__comm_link *link = &k->link;
    if (member == link->rank) return true;
    if (!wait_for(k, member, k->epoch, WEFT__INPUT)) return false;
    int world_rank = link->world_rank[member];
    const struct weft__comm_post *theirs =
        &link->world[world_rank]->channel[link->channel].post[k->epoch & 1];
    const struct weft__comm_post *mine = &k->post;
    if (theirs->op != mine->op || theirs->dtype != mine->dtype ||
        theirs->shape[0] != mine->shape[0] || theirs->shape[1] != mine->shape[1] ||
        theirs->detail != mine->detail || theirs->two_shot != mine->two_shot) {
        fail(k, WEFT__FAULT_MISMATCH, world_rank, WEFT__INPUT, 0, theirs);
        return false;
    }
    k->input[member] = link->segment[member] + theirs->input;
    k->peers_hold = k->peers_hold || theirs->hold != 0;
    return true;
}

static bool meet_all(struct weft__comm_kernels *k)
{
    for (int member = 0; member < k->link.size; member++)
        if (!meet(k, member)) return false;
    return true;
}

/* Starts the next epoch. Its buffers are free: they were last used two epochs ago, and in the epoch
 * between we met every peer, each of which had finished with the one before. So every operation has
 * to meet every peer, a broadcast, too. */
static void begin(struct weft__comm_kernels *k, const struct weft__comm_post *post, bool patient)
{
    uint32_t beat = atomic_load_explicit(&k->self->heartbeat, memory_order_relaxed);
    atomic_store_explicit(&k->self->heartbeat, beat + 1, memory_order_relaxed);
    k->epoch = k->channel->epoch + 1;
    k->post = *post;
    k->peers_hold = false;
    k->patient = patient;
}

/* Ends the epoch. An input in the caller's own memory is held until all peers have read it. */
static void end(struct weft__comm_kernels *k, bool released)
{
    if (!released) {
        if (k->peers_hold) publish(k, WEFT__RELEASE, 0, NULL);
        if (k->post.hold && !wait_for_all(k, k->epoch, WEFT__RELEASE)) return;
    }
    k->channel->epoch = k->epoch;
}

/* ---- reductions ---- */

static size_t bytes_of(weft_dtype dtype, int64_t elements)
{
    return (size_t)elements * (dtype == WEFT_F32 ? 4 : 2);
}

/* weft_moe's formula, for rows first .. first + rows. */
static void finalize_moe(struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args,
                         uint8_t *out)
{
    const weft_reduce *op = &args->op;
    const weft_moe *moe = &op->moe;
    size_t row_bytes = bytes_of(op->dtype, op->hidden);
    for (int64_t t = args->first; t < args->first + args->rows; t++, out += row_bytes) {
        memset(k->row, 0, (size_t)op->hidden * sizeof(float));
        for (int64_t i = t * moe->top_k; i < (t + 1) * moe->top_k; i++) {
            int64_t slot = moe->slots[i];
            if (slot < 0 || slot >= moe->expert_rows) continue;
            const uint8_t *expert = (const uint8_t *)moe->expert_out + (size_t)slot * row_bytes;
            k->rows->add_scaled(op->dtype, expert, moe->gates[i], k->row, op->hidden);
        }
        if (moe->shared != NULL)
            k->rows->add_scaled(op->dtype, (const uint8_t *)moe->shared + (size_t)t * row_bytes,
                                1.0f, k->row, op->hidden);
        k->rows->store(op->dtype, k->row, out, op->hidden);
    }
}

static void stage_rows(struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args)
{
    const struct weft__comm_link *link = &k->link;
    uint8_t *out = link->segment[link->rank] + weft__comm_input_at(link, link->rank, k->epoch);
    size_t row_bytes = bytes_of(args->op.dtype, args->op.hidden);
    if (args->op.moe.top_k > 0)
        finalize_moe(k, args, out);
    else if (args->rows > 0)
        k->rows->copy(out, (const uint8_t *)args->op.x + (size_t)args->first * row_bytes,
                      (size_t)args->rows * row_bytes);
}

static void fold_parts(struct weft__comm_kernels *k, weft_dtype dtype, size_t offset,
                       const void *residual, float *sum, void *out, int64_t n)
{
    struct weft__row_fold fold = {
        .dtype = dtype, .parts = k->link.size, .residual = residual, .sum = sum, .out = out};
    for (int member = 0; member < k->link.size; member++)
        fold.part[member] = k->input[member] + offset;
    k->rows->fold(&fold, n);
}

/* A member's share of the piece's elements in a two-shot reduction. */
static int64_t share(const struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args,
                     int member, int64_t *first)
{
    int64_t total = args->rows * args->op.hidden;
    int64_t units = weft__ceil_div(total, WEFT__COMM_SHARE_UNIT);
    int64_t count = weft_comm_share(units, k->link.size, member, first) * WEFT__COMM_SHARE_UNIT;
    *first *= WEFT__COMM_SHARE_UNIT;
    return weft__max(0, weft__min(count, total - *first));
}

static void fold_share(struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args)
{
    const weft_reduce *op = &args->op;
    const struct weft__comm_link *link = &k->link;
    int64_t first, count = share(k, args, link->rank, &first);
    uint8_t *sums = link->segment[link->rank] + weft__comm_sum_at(link, link->rank, k->epoch);
    const uint8_t *residual = op->residual;
    if (residual != NULL) residual += bytes_of(op->dtype, args->first * op->hidden);
    for (int64_t i = first; i < first + count; i += FOLD_TILE) {
        size_t at = bytes_of(op->dtype, i);
        fold_parts(k, op->dtype, at, residual != NULL ? residual + at : NULL, NULL, sums + at,
                   weft__min(FOLD_TILE, first + count - i));
    }
}

/* One row of sums, from the shares of those who hold it. */
static void gather_row(struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args,
                       int64_t t, uint8_t *out)
{
    const struct weft__comm_link *link = &k->link;
    weft_dtype dtype = args->op.dtype;
    int64_t row = (t - args->first) * args->op.hidden, row_end = row + args->op.hidden;
    for (int member = 0; member < link->size; member++) {
        int64_t first, count = share(k, args, member, &first);
        int64_t from = weft__max(first, row), to = weft__min(first + count, row_end);
        if (from >= to) continue;
        const uint8_t *sums = link->segment[member] + weft__comm_sum_at(link, member, k->epoch) +
                              bytes_of(dtype, from);
        k->rows->load(dtype, sums, k->row + (from - row), to - from);
    }
    if (out != NULL) k->rows->store(dtype, k->row, out, args->op.hidden);
}

/* Rows of scales in the 128x4 tiles, the tiles' padding zeroed before their first row. */
static void put_swizzled(const uint8_t *in, uint8_t *out, int64_t row, int64_t rows,
                         int64_t columns)
{
    int64_t tile_bytes = weft__ceil_div(columns, 4) * 512; /* 128 rows */
    bool last_tile = row / 128 == (rows - 1) / 128;
    if (row % 128 == 0 && (last_tile || columns % 4 != 0))
        memset(out + row / 128 * tile_bytes, 0, (size_t)tile_bytes);
    for (int64_t c = 0; c < columns; c++) out[weft__swizzled_scale_offset(row, c, columns)] = in[c];
}

/* y's row is in k->row; `row` of `rows` of this rank's outputs. */
static void quantise_row(struct weft__comm_kernels *k, const weft_reduce *op, int64_t row,
                         int64_t rows)
{
    const weft_quant *quant = &op->quant;
    uint8_t *codes = quant->codes;
    int64_t columns = op->hidden / 16;
    float scale = quant->scale;
    switch (quant->kind) {
    case WEFT_QUANT_NONE:
        return;
    case WEFT_QUANT_FP8_TOKEN:
        scale = weft__fp8_token_scale(weft__f32_from_bits(k->rows->amax(k->row, op->hidden)));
        ((float *)quant->scales)[row] = scale;
        k->rows->fp8(k->row, scale, codes + row * op->hidden, op->hidden);
        return;
    case WEFT_QUANT_FP8_TENSOR:
        k->rows->fp8(k->row, scale, codes + row * op->hidden, op->hidden);
        return;
    case WEFT_QUANT_NVFP4:
        k->rows->nvfp4(k->row, 1.0f / scale, codes + row * op->hidden / 2,
                       (uint8_t *)quant->scales + row * columns, op->hidden);
        return;
    case WEFT_QUANT_NVFP4_SWIZZLED:
        k->rows->nvfp4(k->row, 1.0f / scale, codes + row * op->hidden / 2, k->scales, op->hidden);
        put_swizzled(k->scales, quant->scales, row, rows, columns);
        return;
    }
}

/* Everything after the sum: the rounded s is in k->row. */
static void finish_row(struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args,
                       int64_t row)
{
    const weft_reduce *op = &args->op;
    uint8_t *y = op->y;
    if (y != NULL) y += bytes_of(op->dtype, row * op->hidden);
    if (op->norm) {
        float squares = k->rows->sum_squares(k->row, op->hidden);
        struct weft__row_scale scale = {.dtype = op->dtype,
                                        .factor =
                                            weft__rms_factor(squares, op->hidden, op->norm_eps),
                                        .weight = op->norm_weight,
                                        .values = op->quant.kind != WEFT_QUANT_NONE ? k->row : NULL,
                                        .out = y};
        k->rows->scale(&scale, k->row, op->hidden);
    } else if (y != NULL) {
        k->rows->store(op->dtype, k->row, y, op->hidden);
    }
    quantise_row(k, op, row, args->out_rows);
}

static void reduce_rows(struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args)
{
    const weft_reduce *op = &args->op;
    int64_t from = weft__max(args->first, args->out_first);
    int64_t to = weft__min(args->first + args->rows, args->out_first + args->out_rows);
    for (int64_t t = from; t < to; t++) {
        size_t at = bytes_of(op->dtype, (t - args->out_first) * op->hidden);
        uint8_t *out = op->residual_out != NULL ? (uint8_t *)op->residual_out + at : NULL;
        const uint8_t *residual = op->residual;
        if (args->post.two_shot)
            gather_row(k, args, t, out);
        else
            fold_parts(k, op->dtype, bytes_of(op->dtype, (t - args->first) * op->hidden),
                       residual != NULL ? residual + at : NULL, k->row, out, op->hidden);
        finish_row(k, args, t - args->out_first);
    }
}

/* What each member reads of this rank's input: its share, its rows, or all. */
static void input_needs(const struct weft__comm_kernels *k,
                        const struct weft__comm_reduce_args *args, struct extent *need)
{
    const weft_reduce *op = &args->op;
    if (k->link.wire == NULL) return;
    for (int member = 0; member < k->link.size; member++) {
        int64_t first = 0, count = args->rows * op->hidden;
        if (args->post.two_shot) {
            count = share(k, args, member, &first);
        } else if (args->post.op == WEFT__REDUCE_SCATTER) {
            int64_t rows = weft_comm_share(op->tokens, k->link.size, member, &first);
            int64_t from = weft__max(first, args->first);
            count =
                weft__max(weft__min(first + rows, args->first + args->rows) - from, 0) * op->hidden;
            first = count > 0 ? (from - args->first) * op->hidden : 0;
        }
        need[member] = (struct extent){bytes_of(op->dtype, first), bytes_of(op->dtype, count)};
    }
}

/* All members read this rank's sums. */
static void sum_needs(const struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args,
                      struct extent *need)
{
    int64_t first, count = share(k, args, k->link.rank, &first);
    for (int member = 0; member < k->link.size; member++)
        need[member] =
            (struct extent){bytes_of(args->op.dtype, first), bytes_of(args->op.dtype, count)};
}

static void reduce(struct weft__comm_kernels *k, const struct weft__comm_reduce_args *args)
{
    struct extent need[WEFT__MAX_RANKS];
    unsigned mode = enter_float_mode();
    begin(k, &args->post, false);
    if (args->source == WEFT__SOURCE_STAGE) stage_rows(k, args);
    input_needs(k, args, need);
    publish_input(k, args->source, args->op.x,
                  bytes_of(args->op.dtype, args->first * args->op.hidden), need);
    if (!meet_all(k)) goto leave;
    if (args->post.two_shot) {
        fold_share(k, args);
        sum_needs(k, args, need);
        publish(k, WEFT__SUM, weft__comm_sum_at(&k->link, k->link.rank, k->epoch), need);
        if (!wait_for_all(k, k->epoch, WEFT__SUM)) goto leave;
    }
    reduce_rows(k, args);
    end(k, args->post.two_shot != 0); /* SUM said that the inputs are read */
leave:
    leave_float_mode(mode);
}

static void compute_tile(struct weft__comm_gemm_args *args, int64_t first, int64_t rows,
                         uint8_t *out)
{
    uint64_t start = weft__now_ns();
    args->compute(args->ctx, first, rows, out);
    args->compute_ns += weft__now_ns() - start;
}

/* Three buffers take turns. While tile i + 1 is computed, peers may still read tiles i and, since
 * tile i has not been met yet, i - 1; tile i - 2 they have finished with, as the INPUT of i - 1
 * said. Tile 1 must not go where the operation before has its input or its sums: these are of the
 * other parity than tile 0's epoch. The last tile is held, so that all buffers are free again. */
void weft__cpu_gemm_reduce(struct weft__comm_kernels *k, struct weft__comm_gemm_args *args)
{
    struct weft__comm_reduce_args tile = args->reduce;
    const weft_reduce *op = &tile.op;
    const struct weft__comm_link *link = &k->link;
    uint8_t *segment = link->segment[link->rank];
    uint32_t epoch = k->channel->epoch + 1;
    const uint64_t buffer[] = {weft__comm_input_at(link, link->rank, epoch),
                               weft__comm_sum_at(link, link->rank, epoch),
                               weft__comm_input_at(link, link->rank, epoch + 1)};
    struct extent need[WEFT__MAX_RANKS];
    tile.rows = weft__min(args->tile_rows, op->tokens);
    if (tile.rows > 0) compute_tile(args, 0, tile.rows, segment + buffer[0]);
    for (int turn = 0;; turn = (turn + 1) % 3) {
        int64_t next = tile.first + tile.rows;
        int64_t next_rows = weft__min(args->tile_rows, op->tokens - next);
        begin(k, &tile.post, false);
        input_needs(k, &tile, need);
        publish_at(k, buffer[turn], next_rows == 0, need);
        if (next_rows > 0) compute_tile(args, next, next_rows, segment + buffer[(turn + 1) % 3]);
        unsigned mode = enter_float_mode();
        bool met = meet_all(k);
        if (met) reduce_rows(k, &tile);
        leave_float_mode(mode);
        if (met) end(k, false);
        if (poisoned(k) || next_rows == 0) return;
        tile.first = next;
        tile.rows = next_rows;
    }
}

/* ---- bytes ---- */

/* Bytes first .. first + bytes of a member's line, those that exist, into rows of out. */
static void place(struct weft__comm_kernels *k, const struct weft__comm_move_args *args, int member)
{
    const uint8_t *in = k->input[member];
    uint64_t row_bytes = args->row_bytes[member], column = 0;
    for (int before = 0; before < member; before++) column += args->row_bytes[before];
    uint64_t end_at = row_bytes * (uint64_t)args->rows;
    if (end_at > args->first + args->bytes) end_at = args->first + args->bytes;
    for (uint64_t at = args->first; at < end_at;) {
        uint64_t row = at / row_bytes, skip = at % row_bytes;
        uint64_t count = row_bytes - skip;
        if (count > end_at - at) count = end_at - at;
        k->rows->copy(args->out + row * args->out_row_bytes + column + skip, in, count);
        at += count;
        in += count;
    }
}

static void stage_bytes(struct weft__comm_kernels *k, const struct weft__comm_move_args *args,
                        uint64_t line_bytes)
{
    const struct weft__comm_link *link = &k->link;
    if (args->source != WEFT__SOURCE_STAGE || args->first >= line_bytes) return; /* empty, too */
    uint64_t count = line_bytes - args->first;
    if (count > args->bytes) count = args->bytes;
    k->rows->copy(link->segment[link->rank] + weft__comm_input_at(link, link->rank, k->epoch),
                  args->in + args->first, count);
}

/* All members read as much: this piece of a line of bytes. */
static void line_needs(const struct weft__comm_kernels *k, const struct weft__comm_move_args *args,
                       uint64_t line_bytes, struct extent *need)
{
    uint64_t left = line_bytes > args->first ? line_bytes - args->first : 0;
    for (int member = 0; member < k->link.size; member++)
        need[member] = (struct extent){.bytes = left < args->bytes ? left : args->bytes};
}

static void all_gather(struct weft__comm_kernels *k, const struct weft__comm_move_args *args)
{
    struct extent need[WEFT__MAX_RANKS];
    uint64_t line_bytes = args->row_bytes[k->link.rank] * (uint64_t)args->rows;
    stage_bytes(k, args, line_bytes);
    line_needs(k, args, line_bytes, need);
    publish_input(k, args->source, args->in, args->first, need);
    if (!meet_all(k)) return;
    for (int member = 0; member < k->link.size; member++) place(k, args, member);
    end(k, false);
}

static void broadcast(struct weft__comm_kernels *k, const struct weft__comm_move_args *args)
{
    struct extent need[WEFT__MAX_RANKS];
    bool root = args->root == k->link.rank;
    uint64_t line_bytes = root ? args->first + args->bytes : 0;
    if (root) stage_bytes(k, args, line_bytes);
    line_needs(k, args, line_bytes, need);
    publish_input(k, root ? args->source : WEFT__SOURCE_STAGE, args->in, args->first, need);
    if (!meet_all(k)) return;
    if (!root && args->bytes > 0)
        k->rows->copy(args->out + args->first, k->input[args->root], args->bytes);
    end(k, false);
}

static void move(struct weft__comm_kernels *k, const struct weft__comm_move_args *args)
{
    begin(k, &args->post, args->patient);
    if (args->post.op == WEFT__ALL_GATHER) {
        all_gather(k, args);
    } else if (args->post.op == WEFT__BROADCAST) {
        broadcast(k, args);
    } else {
        publish_input(k, WEFT__SOURCE_STAGE, NULL, 0, NULL);
        if (meet_all(k)) end(k, false);
    }
}

/* ---- life cycle ---- */

static void release(struct weft__comm_rank *control) { (void)control; }

static weft_status open_kernels(const struct weft__comm_link *link, bool portable,
                                struct weft__comm_kernels **out, weft_error *err)
{
    struct weft__comm_kernels *k = calloc(1, sizeof *k);
    if (k == NULL) return weft__fail_oom(err, sizeof *k, "a communicator");
    k->link = *link;
    k->spins = SPINS_MAX;
    k->rows = weft__rows_pick(portable);
    k->self = link->world[link->world_rank[link->rank]];
    k->channel = &k->self->channel[link->channel];
    *out = k;
    return WEFT_OK;
}

static void close_kernels(struct weft__comm_kernels *k) { free(k); }

static uint8_t *heap_of(const struct weft__comm_kernels *k)
{
    const struct weft__comm_link *link = &k->link;
    return link->segment[link->rank] + link->staging[link->rank] +
           WEFT__STAGING_MESSAGES * link->message_bytes;
}

static void *no_stream(const struct weft__comm_kernels *k)
{
    (void)k;
    return NULL;
}

static void nothing_to_wait_for(struct weft__comm_kernels *k) { (void)k; }

const struct weft__dev_comm weft__cpu_comm = {
    .name = "cpu",
    .release = release,
    .open = open_kernels,
    .close = close_kernels,
    .reduce = reduce,
    .move = move,
    .heap = heap_of,
    .stream = no_stream,
    .sync = nothing_to_wait_for,
    /* With two ranks nothing is saved; with more, measured on shared cores: docs/PERFORMANCE.md */
    .two_shot_ranks = 3,
    .two_shot_bytes = 256 * 1024,
};
