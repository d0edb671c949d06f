/* reduce.cu: sum over ranks, residual, RMSNorm, quantisation, in one kernel.
 *
 * A row is cut into groups of 256 elements, a warp's 32 lanes times 8; the warps of a cluster of
 * blocks share the groups of a row, and the clusters of the grid share the rows. A rank of p moves,
 * with n bytes of input (packed data takes twice the bytes of plain data, dense
 * data a third more):
 *     one-shot   reads n, writes n to each slot, reads p * n from slots; or, plain data, reads x
 *                once more in the place of its own slot
 *     two-shot   the same with n / p to each owner; then the owner's sums, again n / p to each
 *     in place   the same, but inputs are read where they are, in each rank's own memory
 *     afterwards reads the residual, writes residual_out, y, codes, scales
 * Order: see wait.cuh. Outputs may be the inputs: a row's results are stored by the thread that has
 * read the same elements of that row, after it has. */

#include "outputs.cuh"

/* ---- rows of a cluster, a section of a few at a time: plain data of a section has its flags
 * together. A section is named by its first row ---- */

__device__ static inline bool summed_here(const place &at, int t)
{
    return t >= at.a->sum_first && t < at.a->sum_first + at.a->sum_rows;
}

/* Flags of inputs come first, flags of sums after those of all rows. */
__device__ static inline int flag_number(const place &at, int t, bool sums)
{
    return (t + (sums ? at.tokens : 0)) * at.a->cluster + at.block;
}

/* Says that the inputs of a section, and the sums made here of another, are in the slots. */
__device__ static void send_flags(const place &at, int inputs, int sums)
{
    const struct weft__cuda_link *link = &at.a->link;
    __syncthreads(); /* the block's payload stores come before the fence */
    if (threadIdx.x >= 32) return;
    __threadfence_system(); /* partner: await_flag() */
    for (int made = 0; made < 2; made++) {
        int section = made ? sums : inputs;
        for (int i = at.lane; i < at.a->section * link->sends; i += 32) {
            int t = section + i / link->sends * at.step;
            if (t < 0 || t >= at.tokens || (made && !summed_here(at, t))) continue;
            store_relaxed_u32(
                flag_of(at.call, link->send[i % link->sends], flag_number(at, t, made != 0)),
                at.call.epoch);
        }
    }
}

/* Waits for all inputs of the rows summed here, or for the sums of all rows. */
__device__ static void await_flags(place &at, int section, bool sums)
{
    struct patience last = {-1, 0, 0, 0, 0};
    int ranks = at.a->link.ranks, sources = sums ? 1 : ranks;
    bool alive = at.alive;
    for (int i = (int)threadIdx.x; alive && i < at.a->section * sources; i += (int)blockDim.x) {
        int t = section + i / sources * at.step;
        if (t >= at.tokens || (!sums && !summed_here(at, t))) continue;
        int source = sums ? owner_of(at.tokens, ranks, t) : i % sources;
        alive = await_flag(at.call, &last, source, flag_number(at, t, sums));
    }
    at.alive = __syncthreads_and(alive) != 0;
}

/* Sends this rank's share of the section's rows, some groups of a warp at once. */
template <class T, bool ONE, enum form FORM>
__device__ void send_inputs(const place &at, int section)
{
    const struct weft__cuda_reduce_args *a = at.a;
    enum { MOST = ONE || FORM != plain ? 1 : 4 };
    int count = ONE || a->top_k == 0 ? MOST : 1;
    int end = min(section + a->section * at.step, at.tokens);
    for (int t = section; t < end; t += at.step) {
        int to = !ONE && a->two_shot ? owner_of(at.tokens, a->link.ranks, t) : -1;
        for (int first = at.warp; first < at.groups; first += count * at.warps) {
            uint32_t words[MOST][T::WORDS] = {};
            form<T, ONE>(at, t, first, words[0]);
#pragma unroll
            for (int i = 1; i < MOST; i++)
                if (i < count) form<T, true>(at, t, first + i * at.warps, words[i]);
#pragma unroll
            for (int i = 0; i < MOST; i++)
                if (i < count && first + i * at.warps < at.groups)
                    send<T, FORM>(at, t, first + i * at.warps, to, FORM == plain, words[i]);
            if (ONE) break;
        }
    }
}

/* Two-shot: sums what is to be summed here, for everyone. */
template <class T, enum form FORM> __device__ void send_sums(place &at, int section)
{
    if (section < 0 || section >= at.tokens) return;
    const struct weft__cuda_reduce_args *a = at.a;
    if (FORM == plain && !in_place(at)) await_flags(at, section, false);
    int end = min(section + a->section * at.step, at.tokens);
    if constexpr (FORM == plain)
        read_rows<T>(at, section, end, (int)a->sum_first, (int)a->sum_rows, false);
    for (int t = section; t < end; t += at.step) {
        for (int group = at.warp; group < at.groups && summed_here(at, t); group += at.warps) {
            uint32_t words[T::WORDS];
            sum_up<T, false, FORM>(at, t, t, group, words);
            if (at.alive) send<T, FORM>(at, at.tokens + t, group, -1, false, words);
        }
    }
}

/* s of row t, row `out` of the outputs, in storage form. */
template <class T, bool ONE, enum form FORM>
__device__ void receive(place &at, int t, int out, int group, uint32_t *words)
{
    if (ONE || !at.a->two_shot) {
        sum_up<T, ONE, FORM>(at, t, out, group, words);
    } else if constexpr (reads_ahead<ONE, FORM>) {
        take_next<T>(at, words);
    } else {
        int owner = owner_of(at.tokens, at.a->link.ranks, t);
        take<T, FORM, 1>(at, at.tokens + t, group, owner, owner, (uint32_t(*)[T::WORDS])words);
    }
}

/* The results of row t. */
template <class T, bool ONE, enum form FORM>
__device__ void receive_row(place &at, int t, keeper<T, ONE> &kept, const uint32_t *weight,
                            struct row_memory *memory, uint32_t use)
{
    const struct weft__cuda_reduce_args *a = at.a;
    int out = t - (int)a->out_first;
    for (int group = at.warp; group < at.groups; group += at.warps) {
        uint32_t *words = kept.at(at, group);
        receive<T, ONE, FORM>(at, t, out, group, words);
        if (a->norm) {
            float v[8];
            unpack<T>(words, v);
            float node = in_row(at, group) ? add_squares(v) : 0.0f;
            meeting_put(&memory->squares, a->cluster, group, __float_as_uint(add_lanes(node)));
        }
        if (ONE) break;
    }
    /* It has arrived by now, and is here when it is wanted. */
    if (blockIdx.x == 0) at.arrival = look_for_arrival(at.call);
    finish_row<T, ONE>(at, out, kept, weight, memory, use);
    /* Warps without a group put nothing, so nothing but this keeps them near the others. */
    if (a->cluster > 1 && at.warps > at.groups) __syncthreads();
}

/* ---- the kernel ---- */

/* Inputs in place can be read when their ranks have arrived. For whole blocks. */
__device__ static void meet(place &at)
{
    if (blockIdx.x == 0) send_arrival(at.call);
    bool there = await_arrivals(at.call, look_for_arrival(at.call, true), true);
    at.alive = __syncthreads_and(there) != 0;
}

/* They are free again when every peer has read them; in two-shot reductions, when the sums are
 * there. A block waits for its like, which had the same rows. */
__device__ static void leave(place &at)
{
    const struct weft__cuda_link *link = &at.a->link;
    struct patience last = {-1, 0, 0, 0, 0};
    int number = (int)threadIdx.x, flag = (int)blockIdx.x;
    at.call.phase = WEFT__RELEASE;
    __syncthreads(); /* all its loads come before */
    if (number < link->sends)
        store_relaxed_u32(flag_of(at.call, link->send[number], flag), at.call.epoch);
    if (number < link->ranks && at.alive) (void)await_flag(at.call, &last, number, flag);
}

/* Sends sections ahead of those it sums, and sums ahead of those it finishes, so that a link
 * carries both directions at once. Flags come last: the fence before them waits for what was sent,
 * which has had the time of all other work to arrive. No rank waits for a row before it has sent
 * the flags of all rows before, so the lowest row that has none gets it. */
template <class T, bool ONE, enum form FORM>
__device__ void exchange(place &at, struct row_memory *memory, uint4 *kept_memory)
{
    const struct weft__cuda_reduce_args &a = *at.a;
    keeper<T, ONE> kept;
    if constexpr (!ONE) kept.memory = kept_memory;
    uint32_t weight[T::WORDS] = {};
    if (ONE && a.norm) load_weight<T>(at, at.warp, weight);
    bool two_shot = !ONE && a.two_shot != 0, sends = a.link.sends > 0;
    bool placed = !ONE && FORM == plain && in_place(at);
    if (placed) meet(at);
    int stride = a.section * at.step, behind = two_shot ? 2 * stride : stride, rows = 0;
    for (int section = at.first; section - behind < at.tokens; section += stride) {
        if (section < at.tokens && sends && !placed) send_inputs<T, ONE, FORM>(at, section);
        if (section == at.first) { /* after the first loads, which do not need the epoch */
            if (blockIdx.x == 0 && !placed) send_arrival(at.call);
            at.ticket = draw_ticket(&a.link, at.call.epoch);
            clear_padding(at);
            if (a.cluster > 1) cluster_wait(); /* partner: in reduce() */
        }
        int sums = section - stride, results = section - behind;
        if (two_shot) send_sums<T, FORM>(at, sums);
        if (two_shot) at.call.phase = WEFT__SUM;
        bool flags = FORM == plain && sends && (two_shot || !placed);
        if (flags && results >= 0) await_flags(at, results, two_shot);
        int end = min(results + stride, at.tokens);
        if constexpr (reads_ahead<ONE, FORM>)
            if (results >= 0)
                read_rows<T>(at, results, end, (int)a.out_first, (int)a.out_rows, two_shot);
        for (int t = results; results >= 0 && t < end; t += at.step) {
            if ((uint32_t)(t - (int)a.out_first) >= (uint32_t)a.out_rows) continue;
            receive_row<T, ONE, FORM>(at, t, kept, weight, memory + rows % 2, rows / 2);
            rows++;
        }
        at.call.phase = WEFT__INPUT;
        if (flags && (two_shot ? sums : section) < at.tokens)
            send_flags(at, placed ? at.tokens : section, two_shot ? sums : -1);
    }
    if (placed && !two_shot) leave(at);
}

template <class T, bool ONE, enum form FORM>
__device__ void reduce(const struct weft__cuda_reduce_args &a)
{
    __shared__ struct row_memory memory[2]; /* by turns: a block may be a row behind another */
    extern __shared__ uint4 dynamic[];
    if (a.cluster > 1) {
        if (threadIdx.x == 0)
            for (int i = 0; i < 2; i++) {
                meeting_init(&memory[i].squares);
                meeting_init(&memory[i].largest);
            }
        cluster_arrive(); /* all blocks have begun when exchange() waits */
    }
    grid_wait();
    if (!a.late_release) grid_release();
    const struct weft__cuda_link *link = &a.link;
    int shift = __ffs(a.cluster) - 1, block = (int)blockIdx.x & (a.cluster - 1);
    int warps = (int)blockDim.x / 32, hidden = (int)a.hidden;
    int own_bytes = FORM == dense            ? WEFT__CUDA_STAGE_BYTES
                    : reads_ahead<ONE, FORM> ? WEFT__CUDA_AHEAD_BYTES
                                             : 0; /* shared memory of a warp */
    uint4 *own_memory = dynamic + threadIdx.x / 32 * (own_bytes / 16);
    uint4 *kept_memory = dynamic + warps * (own_bytes / 16);
    place at = {};
    at.a = &a;
    at.call = call_of(link, a.op, a.signature);
    at.chunks = hidden / 8;
    at.groups = (hidden + WEFT__CUDA_GROUP - 1) / WEFT__CUDA_GROUP;
    at.lane = (int)threadIdx.x % 32;
    at.warp = ((int)threadIdx.x / 32 << shift) + block;
    at.warps = warps << shift;
    at.block = block;
    at.tokens = (int)a.tokens;
    at.first = (int)blockIdx.x >> shift;
    at.step = (int)gridDim.x >> shift;
    at.alive = true;
    at.stage = (uint32_t *)own_memory;
    at.ahead.memory = own_memory + at.lane;
    at.own = a.own == 0 ? link->recv[link->rank] : a.x - link->plain_at - at.call.half;
    exchange<T, ONE, FORM>(at, memory, kept_memory);
    if (a.late_release) grid_release();
    if (blockIdx.x == 0 && at.alive && link->sends > 0) await_arrivals(at.call, at.arrival);
    finish(link, at.call.epoch, at.ticket);
}

/* ---- instances ---- */

enum { one = true, many = false };
#define X(type, dtype, hold, wire)                                                          \
    extern "C" __global__ __launch_bounds__(WEFT__CUDA_THREADS, wire == plain ? 2 : 1) void \
        weft__reduce_##type##_##hold##_##wire(                                              \
            const __grid_constant__ struct weft__cuda_reduce_args a)                        \
    {                                                                                       \
        reduce<type, hold, wire>(a);                                                        \
    }
WEFT__CUDA_REDUCES(X)
#undef X
