/* The kernels for any processor. */
#define KERNELS weft__kernels_portable
#define KERNELS_NAME "portable"
#include "attention_body.h"
