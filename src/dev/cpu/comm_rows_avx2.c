/* Row operations compiled for AVX2 and F16C. */
#if defined(__x86_64__)
#define ROWS_TABLE weft__rows_avx2
#define ROWS_NAME "avx2"
#include "comm_rows_body.h"
#else
typedef int weft__not_x86; /* an empty file is not C */
#endif
