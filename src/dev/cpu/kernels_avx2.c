/* The kernels for AVX2, FMA and F16C. */
#if defined(__x86_64__)
#define KERNELS weft__kernels_avx2
#define KERNELS_NAME "avx2"
#include "attention_body.h"
#else
typedef int weft__not_x86; /* an empty file is not C */
#endif
