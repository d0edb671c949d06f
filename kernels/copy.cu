/* copy.cu: what ranks do around the copies of copy engines and NCCL: they meet, wait for flags, and
 * go on to the next epoch. A few words move. One block of a warp, so that a wait needs little room.
 *
 * A copy engine writes the data, then, in the same stream, a flag: the sender's epoch, copied from
 * its own memory. Order: an engine's next copy starts when the one before it is complete; partner:
 * await_flag(), after which the stream's next work reads the data. */

#include "wait.cuh"

__device__ static void say_inside(const struct weft__cuda_step_args &a, uint32_t epoch)
{
    const struct weft__cuda_watch *watch = (const struct weft__cuda_watch *)a.link.watch;
    struct weft__comm_rank *mine = (struct weft__comm_rank *)watch->control[a.link.rank];
    if (a.nccl && threadIdx.x == 0) store_relaxed_u32((char *)&mine->inside, epoch);
}

extern "C" __global__ void weft__step(const __grid_constant__ struct weft__cuda_step_args a)
{
    grid_wait();
    const struct weft__cuda_link *link = &a.link;
    struct call call = call_of(link, a.op, a.signature);
    struct patience last = {-1, 0, 0, 0, 0};
    int source = (int)threadIdx.x;
    call.phase = a.phase;
    if (a.step == WEFT__CUDA_MEET) {
        send_arrival(call);
        bool there = await_arrivals(call, look_for_arrival(call));
        if (__all_sync(~0u, there)) say_inside(a, call.epoch);
    } else if (a.step == WEFT__CUDA_AWAIT) {
        if (source < link->ranks && source != link->rank)
            (void)await_flag(call, &last, source, a.flag);
    } else {
        say_inside(a, 0);
        finish(link, call.epoch, 0);
    }
}
