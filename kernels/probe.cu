/* probe.cu: answers whether an embedded image runs on this device, before anything relies on it.
 *
 * Moves 4 bytes a thread, out[i] = i * 3 + architecture of the image that was chosen; no order. */

#include <stdint.h>

extern "C" __global__ void weft__probe(uint32_t *out, uint32_t count)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
#ifdef __CUDA_ARCH__
    if (i < count) out[i] = i * 3u + __CUDA_ARCH__;
#endif
}
