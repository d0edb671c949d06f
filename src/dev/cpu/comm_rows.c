/* Row operations for any processor, and the choice between implementations. */
#define ROWS_TABLE weft__rows_portable
#define ROWS_NAME "portable"
#include "comm_rows_body.h"

const struct weft__rows *weft__rows_pick(bool portable)
{
#if defined(__x86_64__)
    /* Whatever has AVX2 has F16C. */
    if (!portable && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &weft__rows_avx2;
#else
    (void)portable;
#endif
    return &weft__rows_portable;
}

void weft__rmsnorm_row(const struct weft__rows *rows, const float *x, const float *weight,
                       float eps, float *y, int64_t n)
{
    float factor = weft__rms_factor(rows->sum_squares(x, n), n, eps);
    rows->scale(
        &(struct weft__row_scale){.dtype = WEFT_F32, .factor = factor, .weight = weight, .out = y},
        x, n);
}
