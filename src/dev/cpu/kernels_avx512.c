/* The kernels for AVX-512 (F, BW, DQ, VL) with VNNI. */
#if defined(__x86_64__)
#define KERNELS weft__kernels_avx512
#define KERNELS_NAME "avx512"
#include "attention_body.h"
#else
typedef int weft__not_x86; /* an empty file is not C */
#endif
