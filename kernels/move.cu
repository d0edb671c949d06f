/* move.cu: all-gather, broadcast and barrier: every bit arrives unchanged.
 *
 * The blocks of the grid share the bytes of a message; block b of a rank waits for block b of its
 * peers, flag number b. A rank that contributes n bytes reads n, writes n to each slot, reads from
 * slots what it wants and writes as much. Order: see wait.cuh. A barrier is the arrivals alone. */

#include "wait.cuh"

/* ---- helpers ---- */

/* Where byte i of a member's line goes. */
__device__ static inline char *place_of(const struct weft__cuda_move_args &a, int member,
                                        uint64_t i)
{
    uint64_t row_bytes = a.row_bytes[member], row = i / row_bytes;
    return (char *)a.out + row * a.out_row_bytes + a.column[member] + (i - row * row_bytes);
}

/* This block's part, from .. to - 1, of bytes first .. first + bytes of a member's line. */
__device__ static inline uint64_t part_of(const struct weft__cuda_move_args &a, int member,
                                          uint64_t *to)
{
    uint64_t piece = (a.bytes + gridDim.x - 1) / gridDim.x;
    piece = (piece + 15) / 16 * 16;
    uint64_t line = a.row_bytes[member] * (uint64_t)a.rows;
    uint64_t from = a.first + blockIdx.x * piece, end = min(a.first + a.bytes, line);
    *to = min(from + piece, end);
    return min(from, *to);
}

__device__ static void send_part(const struct weft__cuda_move_args &a, const struct call &call)
{
    const struct weft__cuda_link *link = &a.link;
    uint64_t to, from = part_of(a, link->rank, &to);
    for (int d = 0; d < link->sends; d++) {
        char *slot = half_of(call, link->send[d]) + link->plain_at - a.first;
        if (a.wide) {
            for (uint64_t i = from + 16 * threadIdx.x; i < to; i += 16 * blockDim.x)
                *(uint4 *)(slot + i) = *(const uint4 *)(a.in + i);
        } else {
            for (uint64_t i = from + threadIdx.x; i < to; i += blockDim.x)
                slot[i] = ((const char *)a.in)[i];
        }
    }
}

/* This rank's own bytes come from `in`. */
__device__ static void receive_part(const struct weft__cuda_move_args &a, const struct call &call,
                                    int member)
{
    const struct weft__cuda_link *link = &a.link;
    uint64_t to, from = part_of(a, member, &to);
    const char *line = half_of(call, link->recv[member]) + link->plain_at - a.first;
    if (member == link->rank) line = (const char *)a.in;
    if (a.wide) {
        for (uint64_t i = from + 16 * threadIdx.x; i < to; i += 16 * blockDim.x)
            *(uint4 *)place_of(a, member, i) = *(const uint4 *)(line + i);
    } else {
        for (uint64_t i = from + threadIdx.x; i < to; i += blockDim.x)
            *place_of(a, member, i) = line[i];
    }
}

/* ---- the kernel ---- */

extern "C" __global__ __launch_bounds__(WEFT__CUDA_THREADS) void weft__move(
    const __grid_constant__ struct weft__cuda_move_args a)
{
    grid_wait();
    grid_release();
    const struct weft__cuda_link *link = &a.link;
    struct call call = call_of(link, a.op, a.signature);
    uint32_t ticket = draw_ticket(link, call.epoch);
    struct patience last = {-1, 0, 0, 0, 0};
    bool alive = true;
    if (blockIdx.x == 0) send_arrival(call);
    bool sends = a.op == WEFT__ALL_GATHER || (a.op == WEFT__BROADCAST && a.root == link->rank);
    if (sends && link->sends > 0) {
        send_part(a, call);
        __syncthreads(); /* the block's payload stores come before the fence */
        if ((int)threadIdx.x < link->sends) {
            __threadfence_system(); /* partner: await_flag() */
            store_relaxed_u32(flag_of(call, link->send[threadIdx.x], (int)blockIdx.x), call.epoch);
        }
    }
    if (a.op != WEFT__BARRIER) {
        int from = a.op == WEFT__BROADCAST ? a.root : 0;
        int to = a.op == WEFT__BROADCAST ? a.root + 1 : link->ranks;
        int source = from + (int)threadIdx.x;
        if (link->sends > 0 && source < to)
            alive = await_flag(call, &last, source, (int)blockIdx.x);
        alive = __syncthreads_and(alive) != 0;
        for (int member = from; alive && member < to; member++)
            if (a.op != WEFT__BROADCAST || member != link->rank) receive_part(a, call, member);
    }
    if (blockIdx.x == 0 && alive) await_arrivals(call, look_for_arrival(call));
    finish(link, call.epoch, ticket);
}
