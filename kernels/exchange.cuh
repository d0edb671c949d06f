/* exchange.cuh: sends groups of elements to peers, receives and sums what peers have sent. */
#ifndef WEFT_KERNELS_EXCHANGE_CUH
#define WEFT_KERNELS_EXCHANGE_CUH

#include "elements.cuh"
#include "wait.cuh"

/* ---- one thread's place and state ---- */

/* What a thread reads of plain data: 32-byte or 16-byte pieces of rows, of its groups of a row, of
 * their sources, in this order. Some are always on their way to shared memory, whatever else the
 * thread does, so that a link is never without work. */
struct ahead {
    uint4 *memory;       /* of this thread: every 32nd vector */
    int t, end;          /* the next to be asked for is of this row; where the rows end */
    int group, source;   /* the same */
    int inputs, sources; /* of a group; the residual comes after the ranks' inputs */
    int taken;
    bool sums; /* the source is the owner's sum */
};

struct place {
    const struct weft__cuda_reduce_args *a;
    struct call call;
    int chunks, groups;    /* of a row */
    int lane, warp, warps; /* warp: in the cluster */
    int block;             /* in the cluster */
    int tokens;            /* of the launch */
    int first, step;       /* the cluster's rows: first, first + step, ... */
    bool alive;            /* false after a failure: go on without waiting or storing */
    uint64_t arrival;      /* first block: the word that a peer has sent */
    uint32_t ticket;       /* first thread of a block */
    uint32_t *stage;       /* shared memory of this warp, for dense data */
    struct ahead ahead;    /* with many groups, plain data */
    uint64_t own; /* plain: the slot in which this rank's input is, or as if x were in it */
};

/* The rank that sums row t in a two-shot reduction, as weft_comm_share() has it. */
__device__ static inline int owner_of(int tokens, int ranks, int t)
{
    int base = tokens / ranks, more = tokens % ranks;
    if (t < more * (base + 1)) return t / (base + 1);
    return more + (t - more * (base + 1)) / base;
}

__device__ static inline bool in_row(const place &at, int group)
{
    return group * 32 + at.lane < at.chunks;
}

/* A mixture of experts: this rank's share of row t. */
template <class T> __device__ void mix(const place &at, int t, int group, uint32_t *words)
{
    const struct weft__cuda_reduce_args *a = at.a;
    int column = group * 32 + at.lane;
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0}, v[8];
#pragma unroll 1
    for (int64_t k = t * a->top_k; k < (t + 1) * a->top_k; k++) {
        int64_t slot = ((const int32_t *)a->slots)[k];
        if (slot < 0 || slot >= a->expert_rows) continue;
        float gate = ((const float *)a->gates)[k];
        load_chunk<T>(a->expert_out, slot * at.chunks + column, words);
        unpack<T>(words, v);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = __fadd_rn(sum[i], __fmul_rn(v[i], gate));
    }
    if (a->shared != 0) {
        load_chunk<T>(a->shared, t * at.chunks + column, words);
        unpack<T>(words, v);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = __fadd_rn(sum[i], v[i]);
    }
    pack<T>(sum, words);
}

/* This rank's share of row t, where the thread has some. A warp with ONE group has no mixtures. */
template <class T, bool ONE>
__device__ void form(const place &at, int t, int group, uint32_t *words)
{
    if (!in_row(at, group)) return;
    if (ONE || at.a->top_k == 0)
        load_chunk<T>(at.a->x, t * at.chunks + group * 32 + at.lane, words);
    else
        mix<T>(at, t, group, words);
}

/* ---- exchange of a group: a warp sends and receives it as vectors of 16 bytes ---- */

/* plain: the thread's eight elements; packed: two of its words, each with the epoch; dense: three
 * words of the group, whoever's, and the epoch. */
enum form { plain, packed, dense };

template <class T, enum form FORM>
struct wire {
    enum {
        WORDS = 32 * T::WORDS, /* of a group */
        VECTORS = FORM == plain    ? WORDS / 4
                  : FORM == packed ? WORDS / 2
                                   : (WORDS + 2) / 3,
        EACH = (VECTORS + 31) / 32,          /* at most, of a thread */
        PITCH = (VECTORS + 1) / 2 * 32,      /* bytes from one group to the next */
        STEP = FORM == plain ? 16 : 32 * 16, /* from one vector of a thread to its next */
        BATCH = T::WORDS == 4 && FORM == packed ? 8 : 4,   /* sources read at once */
        STAGED = FORM == dense ? (3 * VECTORS + 3) / 4 : 0 /* vectors of shared memory */
    };
    static_assert(BATCH * STAGED * 16 <= WEFT__CUDA_STAGE_BYTES, "room of a warp");
};

/* Where a thread's first vector of a group is in a slot. A half slot is smaller than 4 GiB. */
template <class T, enum form FORM> __device__ uint64_t offset_of(const place &at, int t, int group)
{
    const struct weft__cuda_link *link = &at.a->link;
    uint32_t chunk = (uint32_t)(t * at.chunks + group * 32 + at.lane);
    uint32_t base = (uint32_t)(t * at.groups + group) * wire<T, FORM>::PITCH;
    if (FORM == plain) return at.call.half + link->plain_at + chunk * (T::WORDS * 4);
    return at.call.half + link->packed_at + base + 16 * (uint32_t)at.lane;
}

/* Whether the thread has a vector j of a group. */
template <class T, enum form FORM> __device__ bool has(const place &at, int group, int j)
{
    using W = wire<T, FORM>;
    if (FORM == plain) return in_row(at, group);
    return W::VECTORS % 32 == 0 || at.lane + 32 * j < W::VECTORS;
}

/* Words 3v .. 3v + 2 of a group, in shared memory. */
__device__ static inline uint32_t *three_of(const place &at, int j)
{
    return at.stage + 3 * (at.lane + 32 * j);
}

template <class T, enum form FORM>
__device__ void wrap(const place &at, const uint32_t *words, uint4 *out)
{
    using W = wire<T, FORM>;
    uint32_t epoch = at.call.epoch;
    if (FORM == dense) {
#pragma unroll
        for (int i = 0; i < T::WORDS / 4; i++)
            ((uint4 *)at.stage)[at.lane * (T::WORDS / 4) + i] = *(const uint4 *)(words + 4 * i);
        __syncwarp();
    }
#pragma unroll
    for (int j = 0; j < W::EACH; j++) {
        const uint32_t *three = three_of(at, j);
        if (FORM == plain)
            out[j] = *(const uint4 *)(words + 4 * j);
        else if (FORM == packed)
            out[j] = make_uint4(words[2 * j], epoch, words[2 * j + 1], epoch);
        else if (at.lane + 32 * j < W::VECTORS)
            out[j] = make_uint4(three[0], three[1], three[2], epoch);
    }
    if (FORM == dense) __syncwarp();
}

/* The thread's words of COUNT sources. */
template <class T, enum form FORM, int COUNT>
__device__ void unwrap(const place &at, const uint4 (*in)[wire<T, FORM>::EACH],
                       uint32_t (*words)[T::WORDS])
{
    using W = wire<T, FORM>;
#pragma unroll
    for (int b = 0; b < COUNT; b++)
#pragma unroll
        for (int j = 0; j < W::EACH; j++) {
            uint32_t *three = three_of(at, j) + 4 * W::STAGED * b;
            uint4 v = in[b][j];
            if (FORM == plain)
                *(uint4 *)(words[b] + 4 * j) = v;
            else if (FORM == packed)
                words[b][2 * j] = v.x, words[b][2 * j + 1] = v.z;
            else if (has<T, FORM>(at, 0, j))
                three[0] = v.x, three[1] = v.y, three[2] = v.z;
        }
    if (FORM != dense) return;
    __syncwarp();
#pragma unroll
    for (int b = 0; b < COUNT; b++)
#pragma unroll
        for (int i = 0; i < T::WORDS / 4; i++)
            *(uint4 *)(words[b] + 4 * i) =
                ((const uint4 *)at.stage)[W::STAGED * b + at.lane * (T::WORDS / 4) + i];
    __syncwarp();
}

/* Row `t` of a slot: inputs first, then, in two-shot reductions, sums. to: the one rank that needs
 * it, or -1; with pull and host all can see it. but_own: not to the slot that is not read, since x
 * is. For a whole warp. */
template <class T, enum form FORM>
__device__ void send(const place &at, int t, int group, int to, bool but_own, const uint32_t *words)
{
    using W = wire<T, FORM>;
    const struct weft__cuda_link *link = &at.a->link;
    uint4 out[W::EACH];
    wrap<T, FORM>(at, words, out);
    uint64_t offset = offset_of<T, FORM>(at, t, group);
    for (int d = 0; d < link->sends; d++) {
        if ((link->push && to >= 0 && d != to) || (but_own && d + 1 == at.a->own)) continue;
        char *p = (char *)(link->send[d] + offset);
#pragma unroll
        for (int j = 0; j < W::EACH; j++, p += W::STEP) {
            if (!has<T, FORM>(at, group, j)) continue;
            if (FORM == plain)
                *(uint4 *)p = out[j];
            else if (FORM == packed)
                store_pair(p, out[j]);
            else
                store_whole(p, out[j]);
        }
    }
}

/* Packed or dense. Zero when the vector is there. */
template <enum form FORM> __device__ uint32_t differs(const place &at, uint4 v)
{
    uint32_t epoch = at.call.epoch;
    return FORM == packed ? (v.y ^ epoch) | (v.w ^ epoch) : v.w ^ epoch;
}

template <enum form FORM> __device__ uint4 load_vector(uint64_t p)
{
    return FORM == packed ? load_pair((const char *)p) : load_whole((const char *)p);
}

/* One try to read packed or dense vectors of sources s .. s + COUNT - 1, the last source in the
 * place of those beyond it. True when all are there. */
template <class T, enum form FORM, int COUNT>
__device__ bool try_take(const place &at, uint64_t offset, int s, int last,
                         uint4 (*in)[wire<T, FORM>::EACH])
{
    using W = wire<T, FORM>;
    uint32_t wrong = 0;
#pragma unroll
    for (int b = 0; b < COUNT; b++) {
        uint64_t p = at.a->link.recv[min(s + b, last)] + offset;
#pragma unroll
        for (int j = 0; j < W::EACH; j++)
            if (has<T, FORM>(at, 0, j)) in[b][j] = load_vector<FORM>(p + W::STEP * j);
    }
#pragma unroll
    for (int b = 0; b < COUNT; b++)
#pragma unroll
        for (int j = 0; j < W::EACH; j++)
            if (has<T, FORM>(at, 0, j)) wrong |= differs<FORM>(at, in[b][j]);
    return wrong == 0;
}

/* The first of the sources s .. last that something is missing from, or -1; for a whole warp. */
template <class T, enum form FORM>
__device__ int missing_source(const place &at, uint64_t offset, int s, int last)
{
    using W = wire<T, FORM>;
    int missing = -1;
#pragma unroll 1
    for (int source = last; source >= s; source--)
        for (int j = 0; j < W::EACH; j++)
            if (has<T, FORM>(at, 0, j) &&
                differs<FORM>(at,
                              load_vector<FORM>(at.a->link.recv[source] + offset + W::STEP * j)))
                missing = source;
    return __reduce_max_sync(~0u, missing);
}

/* A whole warp agrees on whether to go on, so that it stays together. */
__device__ static bool warp_keeps_waiting(const place &at, struct patience *last, int peer)
{
    return __all_sync(~0u, keep_waiting(at.call, last, peer)) != 0;
}

/* Waits for the last vector of a group from each source with one lane, which costs the link less
 * than trying with all of them. */
template <class T, enum form FORM>
__device__ void glance(place &at, struct patience *last, uint64_t offset, int s, int to)
{
    offset += 16 * (wire<T, FORM>::VECTORS - 1 - at.lane) + 12;
    for (; s <= to && at.alive; s++) {
        if (s == at.a->link.rank) continue;
        for (uint32_t tries = 1; at.alive; tries++) {
            uint32_t seen = at.lane == 0 ? load_relaxed_u32(at.a->link.recv[s] + offset) : 0;
            if (__shfl_sync(~0u, seen, 0) == at.call.epoch) break;
            if (tries % TRIES == 0) at.alive = warp_keeps_waiting(at, last, s);
        }
    }
}

/* Plain data, which is there already. This rank's own may be elsewhere. */
template <class T, int COUNT>
__device__ void take_plain(const place &at, int t, int group, int s, int last,
                           uint4 (*in)[wire<T, plain>::EACH])
{
    const struct weft__cuda_link *link = &at.a->link;
    uint64_t offset = offset_of<T, plain>(at, t, group);
#pragma unroll
    for (int b = 0; b < COUNT; b++) {
        bool there = s + b <= last;
        uint64_t base = s + b == link->rank ? at.own : link->recv[s + b];
        const uint4 *p = (const uint4 *)(base + offset);
#pragma unroll
        for (int j = 0; j < wire<T, plain>::EACH; j++)
            in[b][j] = there && in_row(at, group) ? p[j] : make_uint4(0, 0, 0, 0);
    }
}

/* Waits for sources s .. s + COUNT - 1, as far as they are not beyond `last`, and gives this
 * thread's words of each; for a whole warp. */
template <class T, enum form FORM, int COUNT>
__device__ void take(place &at, int t, int group, int s, int last, uint32_t (*words)[T::WORDS])
{
    uint4 in[COUNT][wire<T, FORM>::EACH];
    if constexpr (FORM == plain) {
        take_plain<T, COUNT>(at, t, group, s, last, in);
    } else {
        uint64_t offset = offset_of<T, FORM>(at, t, group);
        struct patience patience = {-1, 0, 0, 0, 0};
        if (at.a->link.far) glance<T, FORM>(at, &patience, offset, s, min(s + COUNT - 1, last));
        for (uint32_t tries = 1;; tries++) {
            bool there = try_take<T, FORM, COUNT>(at, offset, s, last, in);
            if (__all_sync(~0u, there) || !at.alive) break;
            if (tries % TRIES != 0) continue;
            int peer = missing_source<T, FORM>(at, offset, s, last);
            if (peer >= 0) at.alive = warp_keeps_waiting(at, &patience, peer);
        }
    }
    unwrap<T, FORM, COUNT>(at, in, words);
}

/* ---- reading ahead ---- */

template <bool ONE, enum form FORM> constexpr bool reads_ahead = FORM == plain && !ONE;

__device__ static inline bool in_place(const place &at) { return at.a->from[0] != 0; }

template <class T> struct ring {
    enum {
        EACH = T::WORDS / 4, /* vectors of a piece */
        PIECE = 32 * EACH,   /* vectors from one to the next */
        PIECES = WEFT__CUDA_AHEAD_BYTES / (16 * PIECE)
    };
};

template <class T> __device__ uint4 *ring_of(const struct ahead &r)
{
    return r.memory + r.taken % ring<T>::PIECES * ring<T>::PIECE;
}

/* Where the next piece is. */
template <class T> __device__ const uint4 *next_of(const place &at)
{
    const struct ahead &r = at.ahead;
    const struct weft__cuda_link *link = &at.a->link;
    bool residual = !r.sums && r.source == r.inputs;
    int t = r.sums ? at.tokens + r.t : residual ? r.t - (int)at.a->out_first : r.t;
    uint64_t offset = (uint64_t)(uint32_t)(t * at.chunks + r.group * 32 + at.lane) * (T::WORDS * 4);
    uint64_t base;
    if (residual) {
        base = at.a->residual;
    } else if (in_place(at) && !r.sums) {
        base = at.a->from[r.source];
    } else {
        base = r.source == link->rank ? at.own : link->recv[r.source];
        if (r.sums) base = link->recv[owner_of(at.tokens, link->ranks, r.t)];
        base += at.call.half + link->plain_at;
    }
    return (const uint4 *)(base + offset);
}

/* Asks for the next piece, to where the one was that is being taken. */
template <class T> __device__ void ask(place &at)
{
    struct ahead &r = at.ahead;
    if (r.t < r.end) {
        uint4 *to = ring_of<T>(r);
        const uint4 *from = next_of<T>(at);
#pragma unroll
        for (int i = 0; i < ring<T>::EACH; i++)
            if (in_row(at, r.group)) load_ahead(to + 32 * i, from + i);
        if (++r.source == r.sources) {
            r.source = 0;
            r.group += at.warps;
        }
        if (r.group >= at.groups) {
            r.group = at.warp;
            r.t += at.step;
        }
    }
    commit_ahead();
}

/* Begins to read inputs and residual, or sums, of those of the rows first, first + step, ... < end
 * that are among the `rows` rows from `from` on. All that was asked for before has been taken. */
template <class T>
__device__ void read_rows(place &at, int first, int end, int from, int rows, bool sums)
{
    struct ahead &r = at.ahead;
    r.inputs = at.a->link.ranks == 1 ? 0 : at.a->link.ranks;
    r.sources = sums ? 1 : r.inputs + (at.a->residual != 0);
    r.t = first + (max(from - first, 0) + at.step - 1) / at.step * at.step;
    r.end = r.sources > 0 ? min(end, from + rows) : 0;
    r.group = at.warp;
    r.source = 0;
    r.sums = sums;
#pragma unroll 1
    for (r.taken = 0; r.taken < ring<T>::PIECES; r.taken++) ask<T>(at);
    r.taken = 0;
}

/* The thread's words of the next piece. */
template <class T> __device__ void take_next(place &at, uint32_t *words)
{
    await_ahead<ring<T>::PIECES - 1>();
    const uint4 *from = ring_of<T>(at.ahead);
#pragma unroll
    for (int i = 0; i < ring<T>::EACH; i++) *(uint4 *)(words + 4 * i) = from[32 * i];
    ask<T>(at);
    at.ahead.taken++;
}

/* ---- sums ---- */

template <class T> __device__ void add(const uint32_t *words, float *sum)
{
    float v[8];
    unpack<T>(words, v);
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] = __fadd_rn(sum[i], v[i]);
}

/* Adds sources s .. s + COUNT - 1, as far as there are such; at least half of them are. */
template <class T, enum form FORM, int COUNT>
__device__ void add_sources(place &at, int t, int group, int s, float *sum)
{
    int last = at.a->link.ranks - 1;
    uint32_t words[COUNT][T::WORDS];
    take<T, FORM, COUNT>(at, t, group, s, last, words);
#pragma unroll
    for (int b = 0; b < COUNT; b++) {
        if (b >= COUNT / 2 && s + b > last) break;
        add<T>(words[b], sum);
    }
}

/* The sum over ranks of eight elements, in ascending order. The fewer ranks, the less code is run:
 * a short message takes as long as fetching its instructions does. */
template <class T, bool ONE, enum form FORM>
__device__ void fold(place &at, int t, int group, float *sum)
{
    int ranks = at.a->link.ranks;
    if (ranks == 1) {
        uint32_t words[T::WORDS] = {};
        form<T, ONE>(at, t, group, words);
        unpack<T>(words, sum);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] = -0.0f; /* adding to it changes no bit */
    if constexpr (reads_ahead<ONE, FORM>) {
#pragma unroll 1
        for (int s = 0; s < ranks; s++) {
            uint32_t words[T::WORDS];
            take_next<T>(at, words);
            add<T>(words, sum);
        }
    } else {
        for (int s = 0; s < ranks; s += wire<T, FORM>::BATCH) {
            if (ranks - s <= 2)
                add_sources<T, FORM, 2>(at, t, group, s, sum);
            else if (ranks - s <= 4)
                add_sources<T, FORM, 4>(at, t, group, s, sum);
            else
                add_sources<T, FORM, wire<T, FORM>::BATCH>(at, t, group, s, sum);
        }
    }
}

/* round(residual + sum over ranks), in storage form. `out` is the row of the residual. */
template <class T, bool ONE, enum form FORM>
__device__ void sum_up(place &at, int t, int out, int group, uint32_t *words)
{
    const struct weft__cuda_reduce_args *a = at.a;
    uint32_t residual[T::WORDS] = {};
    constexpr bool ahead = reads_ahead<ONE, FORM>;
    if (!ahead && a->residual != 0 && in_row(at, group))
        load_chunk<T>(a->residual, out * at.chunks + group * 32 + at.lane, residual);
    float sum[8], v[8];
    fold<T, ONE, FORM>(at, t, group, sum);
    bool also = a->residual != 0;
    if constexpr (ahead)
        if (also) take_next<T>(at, residual);
    unpack<T>(residual, v); /* chosen, not branched around: 0.7 us less for a row over PCIe */
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] = also ? __fadd_rn(v[i], sum[i]) : sum[i];
    pack<T>(sum, words);
}

#endif
