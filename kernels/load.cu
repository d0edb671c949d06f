/* load.cu: work of a known kind, so that its power can be measured: polling, memory, matrix units.
 *
 * spin: each thread polls a flag in device memory (4 bytes, acquire, system scope; nothing sets it)
 * until its time is over, as a collective waits for a peer.
 *
 * fill: writes 16 random-looking bytes a thread: zeros draw less power.
 *
 * memory: reads and writes 16 bytes a thread and turn, each byte once; no order.
 *
 * compute: bf16 products of 16 x 8 x 16 from registers, 8 independent a warp; moves nothing.
 */

#include <stdint.h>

__device__ static uint32_t mixed(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

__device__ static uint64_t time_ns()
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

/* Two bf16 numbers of magnitude 1 to 2. */
__device__ static uint32_t pair(uint32_t seed) { return (mixed(seed) & 0x807f807fu) | 0x3f803f80u; }

extern "C" __global__ void weft__load_spin(const uint32_t *flag, uint64_t ns)
{
    uint64_t start = time_ns();
    uint32_t seen = 0;
    while (seen == 0 && time_ns() - start < ns)
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
}

extern "C" __global__ void weft__load_fill(uint4 *to, uint64_t count)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        uint32_t seed = mixed((uint32_t)i);
        to[i] = make_uint4(seed, mixed(seed + 1), mixed(seed + 2), mixed(seed + 3));
    }
}

extern "C" __global__ void weft__load_memory(uint4 *to, const uint4 *from, uint64_t count)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        to[i] = from[i];
}

extern "C" __global__ void weft__load_compute(float *out, uint32_t rounds)
{
    uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
    uint32_t a[8][4], b[8][2];
    float c[8][4] = {};
#pragma unroll
    for (int k = 0; k < 8; k++) {
#pragma unroll
        for (int i = 0; i < 4; i++) a[k][i] = pair(thread * 64 + k * 8 + i);
#pragma unroll
        for (int i = 0; i < 2; i++) b[k][i] = pair(thread * 64 + k * 8 + 4 + i);
    }
    for (uint32_t r = 0; r < rounds; r++) {
#pragma unroll
        for (int k = 0; k < 8; k++)
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                         "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                         : "+f"(c[k][0]), "+f"(c[k][1]), "+f"(c[k][2]), "+f"(c[k][3])
                         : "r"(a[k][0]), "r"(a[k][1]), "r"(a[k][2]), "r"(a[k][3]), "r"(b[k][0]),
                           "r"(b[k][1]));
    }
    float sum = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) sum += c[k][0] + c[k][1] + c[k][2] + c[k][3];
    out[thread] = sum;
}
