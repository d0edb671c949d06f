/* MT19937 (Matsumoto and Nishimura 1998) and what is drawn from it. */
#include <math.h>

#include "bench.h"

enum { MT_N = 624, MT_M = 397 };

void weft__mt_seed(struct weft__mt *mt, uint32_t seed)
{
    mt->state[0] = seed;
    for (uint32_t i = 1; i < MT_N; i++)
        mt->state[i] = 1812433253u * (mt->state[i - 1] ^ (mt->state[i - 1] >> 30)) + i;
    mt->at = MT_N;
}

/* init_by_array of one word. */
void weft__mt_seed_python(struct weft__mt *mt, uint32_t seed)
{
    uint32_t *s = mt->state, i = 1;
    weft__mt_seed(mt, 19650218u);
    for (int k = 0; k < MT_N; k++) {
        s[i] = (s[i] ^ ((s[i - 1] ^ (s[i - 1] >> 30)) * 1664525u)) + seed;
        if (++i == MT_N) s[0] = s[MT_N - 1], i = 1;
    }
    for (int k = 0; k < MT_N - 1; k++) {
        s[i] = (s[i] ^ ((s[i - 1] ^ (s[i - 1] >> 30)) * 1566083941u)) - i;
        if (++i == MT_N) s[0] = s[MT_N - 1], i = 1;
    }
    s[0] = 0x80000000u;
    mt->at = MT_N;
}

static uint32_t next(struct weft__mt *mt)
{
    uint32_t *s = mt->state;
    if (mt->at == MT_N) {
        for (int i = 0; i < MT_N; i++) {
            uint32_t y = (s[i] & 0x80000000u) | (s[(i + 1) % MT_N] & 0x7fffffffu);
            s[i] = s[(i + MT_M) % MT_N] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908b0dfu : 0);
        }
        mt->at = 0;
    }
    uint32_t y = s[mt->at++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

/* By masked rejection. */
int64_t weft__mt_range(struct weft__mt *mt, int64_t low, int64_t high)
{
    uint32_t most = (uint32_t)(high - 1 - low), mask = most, value;
    if (most == 0) return low;
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    do value = next(mt) & mask;
    while (value > most);
    return low + value;
}

/* [0, 1) */
static double unit(struct weft__mt *mt)
{
    uint32_t a = next(mt) >> 5, b = next(mt) >> 6;
    return (a * 67108864.0 + b) / 9007199254740992.0;
}

int64_t weft__mt_python_below(struct weft__mt *mt, uint32_t n)
{
    int bits = 32 - __builtin_clz(n);
    uint32_t value;
    do value = next(mt) >> (32 - bits);
    while (value >= n);
    return value;
}

static double exponential(struct weft__mt *mt) { return -log(1 - unit(mt)); }

static double normal(struct weft__mt *mt)
{
    double radius = sqrt(2 * exponential(mt));
    return radius * cos(2 * 3.14159265358979323846 * unit(mt));
}

/* Marsaglia and Tsang 2000; a shape below 1 by the power of a uniform number. */
double weft__mt_gamma(struct weft__mt *mt, double shape)
{
    if (shape == 1) return exponential(mt);
    double boost = shape < 1 ? pow(1 - unit(mt), 1 / shape) : 1;
    double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = normal(mt), v = 1 + c * x;
        v = v * v * v;
        if (v > 0 && log(1 - unit(mt)) < 0.5 * x * x + d - d * v + d * log(v)) return boost * d * v;
    }
}
