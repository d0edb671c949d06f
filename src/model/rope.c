/* Rotary frequencies and their scaling, as in transformers' modeling_rope_utils.py. */
#include <math.h>
#include <string.h>

#include "model.h"

static weft_status rope_kind(const struct weft__node *node, enum weft__rope_kind *kind,
                             weft_error *err)
{
    static const char *const names[] = {"default", "linear", "llama3", "yarn"};
    const char *name = "default";
    WEFT__TRY(weft__node_string_opt(node, "rope_type|type", &name, err));
    for (size_t i = 0; i < WEFT__COUNT(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *kind = (enum weft__rope_kind)i;
            return WEFT_OK;
        }
    }
    return weft__fail(
        err, WEFT_UNSUPPORTED,
        "%s: rope_type \"%.64s\" is not supported; weft knows default, linear, llama3 "
        "and yarn",
        node->file, name);
}

static weft_status rope_scaling(const struct weft__node *node, struct weft__rope *rope,
                                weft_error *err)
{
    const double huge = 1e9;
    if (rope->kind == WEFT__ROPE_DEFAULT) return WEFT_OK;
    WEFT__TRY(weft__node_double(node, "factor", 1e-6, huge, &rope->factor, err));
    if (rope->kind == WEFT__ROPE_LINEAR) return WEFT_OK;
    WEFT__TRY(weft__node_double_opt(node, "original_max_position_embeddings", 1, huge,
                                    &rope->original_context, err));
    if (rope->kind == WEFT__ROPE_LLAMA3) {
        WEFT__TRY(weft__node_double(node, "low_freq_factor", 1e-6, huge, &rope->low_freq, err));
        WEFT__TRY(weft__node_double(node, "high_freq_factor", 1e-6, huge, &rope->high_freq, err));
        if (rope->low_freq == rope->high_freq)
            return weft__fail(err, WEFT_FORMAT,
                              "%s: low_freq_factor and high_freq_factor must differ", node->file);
        return WEFT_OK;
    }
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    rope->truncate = true;
    WEFT__TRY(weft__node_double_opt(node, "beta_fast", 1e-6, huge, &rope->beta_fast, err));
    WEFT__TRY(weft__node_double_opt(node, "beta_slow", 1e-6, huge, &rope->beta_slow, err));
    WEFT__TRY(weft__node_double_opt(node, "mscale", 0, huge, &rope->mscale, err));
    WEFT__TRY(weft__node_double_opt(node, "mscale_all_dim", 0, huge, &rope->mscale_all_dim, err));
    WEFT__TRY(
        weft__node_double_opt(node, "attention_factor", 0, huge, &rope->attention_factor, err));
    return weft__node_bool_opt(node, "truncate", &rope->truncate, err);
}

weft_status weft__arch_rope(const struct weft__node *config, int64_t dim, bool interleaved,
                            struct weft__rope *rope, weft_error *err)
{
    struct weft__node node;
    *rope =
        (struct weft__rope){.dim = dim, .interleaved = interleaved, .theta = 10000, .factor = 1};
    if (dim < 2 || dim % 2 != 0)
        return weft__fail(err, WEFT_FORMAT, "%s: %lld rotary dimensions a head; must be even",
                          config->file, (long long)dim);
    WEFT__TRY(weft__node_double_opt(config, "max_position_embeddings", 1, 1 << 30,
                                    &rope->original_context, err));
    WEFT__TRY(weft__node_double_opt(config, "rope_theta", 1e-6, 1e15, &rope->theta, err));
    WEFT__TRY(weft__node_object(config, "rope_parameters|rope_scaling", &node, err));
    if (node.json == NULL) return WEFT_OK;
    WEFT__TRY(weft__node_double_opt(&node, "rope_theta", 1e-6, 1e15, &rope->theta, err));
    WEFT__TRY(rope_kind(&node, &rope->kind, err));
    return rope_scaling(&node, rope, err);
}

double weft__yarn_mscale(double scale, double m)
{
    return scale <= 1 ? 1 : 0.1 * m * log(scale) + 1;
}

static double llama3_frequency(const struct weft__rope *rope, double f)
{
    double wavelength = 2 * M_PI / f, context = rope->original_context;
    if (wavelength < context / rope->high_freq) return f;
    if (wavelength > context / rope->low_freq) return f / rope->factor;
    double m = (context / wavelength - rope->low_freq) / (rope->high_freq - rope->low_freq);
    return (1 - m) * f / rope->factor + m * f;
}

/* The share of the unscaled frequency is 1 - ramp below low, 0 above high. */
static void yarn_bounds(const struct weft__rope *rope, double *low, double *high)
{
    double dim = (double)rope->dim, base = 2 * log(rope->theta);
    *low = dim * log(rope->original_context / (rope->beta_fast * 2 * M_PI)) / base;
    *high = dim * log(rope->original_context / (rope->beta_slow * 2 * M_PI)) / base;
    if (rope->truncate) {
        *low = floor(*low);
        *high = ceil(*high);
    }
    *low = fmax(*low, 0);
    *high = fmin(*high, dim - 1);
    if (*low == *high) *high += 0.001;
}

static double yarn_factor(const struct weft__rope *rope)
{
    if (rope->attention_factor != 0) return rope->attention_factor;
    if (rope->mscale != 0 && rope->mscale_all_dim != 0)
        return weft__yarn_mscale(rope->factor, rope->mscale) /
               weft__yarn_mscale(rope->factor, rope->mscale_all_dim);
    return weft__yarn_mscale(rope->factor, 1);
}

void weft__rope_frequencies(const struct weft__rope *rope, float *frequency, float *factor)
{
    double low = 0, high = 1;
    *factor = 1;
    if (rope->kind == WEFT__ROPE_YARN) {
        yarn_bounds(rope, &low, &high);
        *factor = (float)yarn_factor(rope);
    }
    for (int64_t j = 0; j < rope->dim / 2; j++) {
        double f = pow(rope->theta, -2.0 * (double)j / (double)rope->dim);
        if (rope->kind == WEFT__ROPE_LINEAR) f /= rope->factor;
        if (rope->kind == WEFT__ROPE_LLAMA3) f = llama3_frequency(rope, f);
        if (rope->kind == WEFT__ROPE_YARN) {
            double ramp = fmin(fmax(((double)j - low) / (high - low), 0), 1);
            f = ramp * f / rope->factor + (1 - ramp) * f;
        }
        frequency[j] = (float)f;
    }
}
