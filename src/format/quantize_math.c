/* Weights to NVFP4 and FP8: every operation in IEEE single, true divisions, so that ModelOpt's
 * arithmetic gives the same bits. */
#include <math.h>

#include "base/numerics.h"
#include "internal.h"

enum { NVFP4_BLOCK = 16, FP8_BLOCK = 128 };

/* Not fmaxf, which is a call; there are no NaN here. */
static float larger(float a, float b) { return a > b ? a : b; }

static float largest(const float *w, int64_t count)
{
    float amax = 0;
    for (int64_t i = 0; i < count; i++) amax = larger(amax, fabsf(w[i]));
    return amax;
}

static void add_error(struct weft__quantize_error *sum, const float *w, const float *back,
                      int64_t count)
{
    float max = 0;
    for (int64_t i = 0; i < count; i++) {
        double error = (double)w[i] - (double)back[i];
        sum->error_squared += error * error;
        sum->weight_squared += (double)w[i] * (double)w[i];
        max = larger(max, fabsf(w[i] - back[i]));
    }
    if ((double)max > sum->error_max) sum->error_max = (double)max;
}

float weft__nvfp4_global(float amax)
{
    float scale = amax / (6.0f * 448.0f);
    return scale > 0 ? scale : 1.0f; /* nothing but zeros, or too small for a scale */
}

static uint8_t nvfp4_scale(const float *w, float scale_global)
{
    float scale = largest(w, NVFP4_BLOCK) / (6.0f * scale_global);
    if (scale == 0) scale = 1.0f;
    return weft__e4m3_from_f32(larger(scale, 0x1p-9f)); /* which saturates at 448 */
}

void weft__quantize_nvfp4(const float *w, int64_t count, float scale_global, uint8_t *codes,
                          uint8_t *scales, struct weft__quantize_error *sum)
{
    for (int64_t block = 0; block < count / NVFP4_BLOCK; block++) {
        const float *x = w + block * NVFP4_BLOCK;
        scales[block] = nvfp4_scale(x, scale_global);
        float scale = weft__f32_from_e4m3(scales[block]) * scale_global;
        uint8_t code[NVFP4_BLOCK];
        float back[NVFP4_BLOCK];
        for (int i = 0; i < NVFP4_BLOCK; i++) {
            code[i] = weft__e2m1_from_f32(x[i] / scale);
            back[i] = weft__f32_from_e2m1(code[i]) * scale;
        }
        for (int i = 0; i < NVFP4_BLOCK; i += 2)
            codes[(block * NVFP4_BLOCK + i) / 2] = (uint8_t)(code[i] | code[i + 1] << 4);
        add_error(sum, x, back, NVFP4_BLOCK);
    }
}

void weft__quantize_fp8(const float *w, int64_t rows, int64_t cols, uint8_t *codes, float *scales,
                        struct weft__quantize_error *sum)
{
    for (int64_t first = 0; first < cols; first += FP8_BLOCK) {
        int64_t width = weft__min(FP8_BLOCK, cols - first);
        float amax = 0, back[FP8_BLOCK];
        for (int64_t row = 0; row < rows; row++)
            amax = larger(amax, largest(w + row * cols + first, width));
        float scale = amax / 448.0f;
        if (scale == 0) scale = 1.0f;
        scales[first / FP8_BLOCK] = scale;
        for (int64_t row = 0; row < rows; row++) {
            const float *x = w + row * cols + first;
            uint8_t *code = codes + row * cols + first;
            for (int64_t i = 0; i < width; i++) {
                code[i] = weft__e4m3_from_f32(x[i] / scale);
                back[i] = weft__f32_from_e4m3(code[i]) * scale;
            }
            add_error(sum, x, back, width);
        }
    }
}
