/* Linears: which tensors make up one, and in which format, decided by what the file holds. Lists in
 * config.json are known to be wrong and are not consulted. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

#define SUPPORTED                                                                                 \
    "weft reads F32, F16, BF16, FP8 E4M3 (a scale per tensor, per row or per 128x128 block) and " \
    "NVFP4 (ModelOpt or compressed-tensors)"

enum { FP8_BLOCK = 128, NVFP4_BLOCK = 16, MX_BLOCK = 32 };
enum { MAX_NAME = WEFT__MAX_TENSOR_NAME + 64 };

/* A linear being recognised. */
struct probe {
    const struct weft__checkpoint *checkpoint;
    const char *module;
    struct weft__linear_view *view;
    weft_error *err;
};

static const char *part_name(const struct probe *p, const char *suffix, char name[MAX_NAME])
{
    (void)snprintf(name, MAX_NAME, "%s.%s", p->module, suffix);
    return name;
}

static bool find(const struct probe *p, const char *suffix, struct weft__tensor *out)
{
    char name[MAX_NAME];
    return weft__checkpoint_find(p->checkpoint, part_name(p, suffix, name), out);
}

static weft_status get(const struct probe *p, const char *suffix, int dims, int64_t d0, int64_t d1,
                       struct weft__tensor *out)
{
    char name[MAX_NAME];
    const int64_t shape[] = {d0, d1};
    return weft__checkpoint_get(p->checkpoint, part_name(p, suffix, name), dims, shape, out,
                                p->err);
}

static weft_status fail_tensor(const struct probe *p, weft_status status,
                               const struct weft__tensor *tensor, const char *what)
{
    return weft__fail(p->err, status, "%s: tensor " NAME ": %s", tensor->file, tensor->name, what);
}

static bool is_float(weft_dtype dtype)
{
    return dtype == WEFT_F32 || dtype == WEFT_F16 || dtype == WEFT_BF16;
}

static int64_t elements(const struct weft__tensor *tensor)
{
    int64_t count = 1; /* the header's check does not cover unknown types */
    for (int d = 0; d < tensor->dims; d++)
        if (__builtin_mul_overflow(count, tensor->shape[d], &count)) return INT64_MAX;
    return count;
}

/* A scale of one value, of shape [] or [1] or [1, 1]: finite and positive. */
static weft_status read_scalar(const struct probe *p, const struct weft__tensor *tensor, float *out)
{
    float value;
    if (!is_float(tensor->dtype) || elements(tensor) != 1) {
        char shape[WEFT__SHAPE_TEXT];
        return weft__fail(p->err, WEFT_FORMAT,
                          "%s: tensor " NAME " is %s %s; one number of type F32 is needed",
                          tensor->file, tensor->name, weft_dtype_name(tensor->dtype),
                          weft__shape_text(tensor->dims, tensor->shape, shape));
    }
    weft_status status = weft__tensor_f32(tensor, &value, p->err);
    if (status != WEFT_OK) return status;
    if (!isfinite(value) || value <= 0)
        return weft__fail(p->err, WEFT_FORMAT,
                          "%s: tensor " NAME " is a scale of %g; it must be finite and above 0",
                          tensor->file, tensor->name, (double)value);
    *out = value;
    return WEFT_OK;
}

/* The static activation scale, if there is one, in the sense that multiplies. */
static weft_status read_input_scale(const struct probe *p)
{
    struct weft__tensor tensor;
    float value;
    if (find(p, "input_scale", &tensor)) return read_scalar(p, &tensor, &p->view->input_scale);
    if (!find(p, "input_global_scale", &tensor)) return WEFT_OK;
    weft_status status = read_scalar(p, &tensor, &value);
    if (status == WEFT_OK) p->view->input_scale = 1.0f / value;
    return status;
}

/* Files of formats that weft does not read, recognised by what only they hold. */
static weft_status refuse_foreign(const struct probe *p)
{
    static const struct {
        const char *suffix, *format;
    } foreign[] = {{"qweight", "AWQ or GPTQ (INT4)"},
                   {"weight.absmax", "bitsandbytes (4 bit)"},
                   {"SCB", "bitsandbytes (INT8)"},
                   {"weight.SCB", "bitsandbytes (INT8)"},
                   {"weight_blocks", "MXFP4"},
                   {"pre_quant_scale", "AWQ (inputs scaled by channel)"},
                   {"weight_shape", "compressed-tensors pack-quantized (INT4 or INT8)"},
                   {"weight_zero_point", "an asymmetric quantisation"}};
    struct weft__tensor tensor;
    for (size_t i = 0; i < WEFT__COUNT(foreign); i++)
        if (find(p, foreign[i].suffix, &tensor))
            return weft__fail(p->err, WEFT_UNSUPPORTED,
                              "%s: tensor " NAME
                              " belongs to %s, which is not supported; " SUPPORTED,
                              tensor.file, tensor.name, foreign[i].format);
    return WEFT_OK;
}

static weft_status refuse_type(const struct probe *p, const struct weft__tensor *tensor)
{
    return weft__fail(p->err, WEFT_UNSUPPORTED,
                      "%s: tensor " NAME " has type %s, which is not supported here; " SUPPORTED,
                      tensor->file, tensor->name, weft_dtype_name(tensor->dtype));
}

/* ---- the formats ---- */

static weft_status open_plain(const struct probe *p)
{
    struct weft__linear_view *view = p->view;
    struct weft__tensor scale;
    if (find(p, "weight_scale", &scale) || find(p, "weight_scale_inv", &scale))
        return weft__fail(p->err, WEFT_FORMAT,
                          "%s: tensor " NAME " scales a weight of type %s, which needs none",
                          scale.file, scale.name, weft_dtype_name(view->weight.dtype));
    view->kind = WEFT__LINEAR_PLAIN;
    return get(p, "weight", 2, view->out, view->in, &view->weight);
}

static weft_status open_nvfp4(const struct probe *p, const char *weight, const char *global,
                              bool divides)
{
    struct weft__linear_view *view = p->view;
    struct weft__tensor tensor;
    weft_status status = WEFT_OK;
    if (view->in % NVFP4_BLOCK != 0)
        return fail_tensor(p, WEFT_FORMAT, &view->weight,
                           "NVFP4 needs a multiple of 16 input columns");
    if (!find(p, "weight_scale", &view->scale))
        return weft__fail(p->err, WEFT_FORMAT,
                          "%s: tensor " NAME " has type %s but there is no " NAME
                          ".weight_scale: the checkpoint is incomplete",
                          view->weight.file, view->weight.name, weft_dtype_name(view->weight.dtype),
                          p->module);
    bool mx = view->scale.dtype == WEFT_U8 || view->scale.dtype == WEFT_F8_E8M0;
    if (mx && view->scale.dims == 2 && view->scale.shape[1] == view->in / MX_BLOCK)
        return fail_tensor(p, WEFT_UNSUPPORTED, &view->scale,
                           "MXFP4 (blocks of 32) is not supported; " SUPPORTED);
    if (view->scale.dtype != WEFT_F8_E4M3) return refuse_type(p, &view->scale);
    view->kind = WEFT__LINEAR_NVFP4;
    view->dtype = WEFT_F4_E2M1;
    /* Safetensors counts F4 in values, U8 in bytes. */
    int64_t columns = view->weight.dtype == WEFT_F4_E2M1 ? view->in : view->in / 2;
    status = get(p, weight, 2, view->out, columns, &view->weight);
    if (status == WEFT_OK)
        status = get(p, "weight_scale", 2, view->out, view->in / NVFP4_BLOCK, &view->scale);
    if (status != WEFT_OK) return status;
    if (!find(p, global, &tensor))
        return weft__fail(p->err, WEFT_FORMAT,
                          "%s: NVFP4 tensor " NAME " lacks its global scale " NAME ".%s",
                          view->weight.file, view->weight.name, p->module, global);
    status = read_scalar(p, &tensor, &view->scale_global);
    if (status != WEFT_OK) return status;
    if (divides) view->scale_global = 1.0f / view->scale_global;
    if (!isfinite(view->scale_global) || view->scale_global == 0)
        return fail_tensor(p, WEFT_FORMAT, &tensor, "the scale's reciprocal is not finite");
    return read_input_scale(p);
}

/* Which FP8 kind a scale's shape means. A matrix so small that two fit gets the same values from
 * both. */
static weft_status fp8_kind(const struct probe *p)
{
    struct weft__linear_view *view = p->view;
    const struct weft__tensor *s = &view->scale;
    int64_t rows = weft__ceil_div(view->out, FP8_BLOCK), cols = weft__ceil_div(view->in, FP8_BLOCK);
    bool one = elements(s) == 1 && s->dims <= 1;
    bool channel = s->dims >= 1 && s->dims <= 2 && s->shape[0] == view->out &&
                   (s->dims == 1 || s->shape[1] == 1);
    if (one && is_float(s->dtype)) {
        view->kind = WEFT__LINEAR_FP8_TENSOR;
        return WEFT_OK;
    }
    if (channel && is_float(s->dtype)) {
        view->kind = WEFT__LINEAR_FP8_CHANNEL;
        return WEFT_OK;
    }
    if (s->dims == 2 && s->shape[0] == rows && s->shape[1] == cols &&
        (is_float(s->dtype) || s->dtype == WEFT_F8_E8M0)) {
        view->kind = WEFT__LINEAR_FP8_BLOCK;
        return WEFT_OK;
    }
    if (s->dtype == WEFT_F8_E8M0 && s->dims == 2 && s->shape[1] == view->in / MX_BLOCK)
        return fail_tensor(p, WEFT_UNSUPPORTED, s,
                           "MXFP8 (blocks of 32) is not supported; " SUPPORTED);
    char have[WEFT__SHAPE_TEXT];
    return weft__fail(p->err, WEFT_FORMAT,
                      "%s: tensor " NAME " is %s %s; the scale of an FP8 weight [%lld, %lld] is "
                      "F32 of shape [], [%lld], [%lld, 1] or [%lld, %lld]",
                      s->file, s->name, weft_dtype_name(s->dtype),
                      weft__shape_text(s->dims, s->shape, have), (long long)view->out,
                      (long long)view->in, (long long)view->out, (long long)view->out,
                      (long long)rows, (long long)cols);
}

static weft_status open_fp8(const struct probe *p)
{
    struct weft__linear_view *view = p->view;
    weft_status status = get(p, "weight", 2, view->out, view->in, &view->weight);
    if (status != WEFT_OK) return status;
    if (!find(p, "weight_scale_inv", &view->scale) && !find(p, "weight_scale", &view->scale))
        return weft__fail(p->err, WEFT_FORMAT,
                          "%s: tensor " NAME " has type F8_E4M3 but there is no weight_scale or "
                          "weight_scale_inv beside it: the checkpoint is incomplete",
                          view->weight.file, view->weight.name);
    if (view->scale.dtype == WEFT_U8) view->scale.dtype = WEFT_F8_E8M0; /* the older spelling */
    status = fp8_kind(p);
    if (status != WEFT_OK) return status;
    if (view->kind == WEFT__LINEAR_FP8_TENSOR) {
        status = read_scalar(p, &view->scale, &view->scale_global);
        view->scale = (struct weft__tensor){0};
        if (status != WEFT_OK) return status;
    }
    return read_input_scale(p);
}

static weft_status open_weight(const struct probe *p)
{
    struct weft__linear_view *view = p->view;
    if (find(p, "weight_packed", &view->weight)) {
        if (view->weight.dtype != WEFT_U8) return refuse_type(p, &view->weight);
        return open_nvfp4(p, "weight_packed", "weight_global_scale", true);
    }
    if (!find(p, "weight", &view->weight)) return get(p, "weight", 2, view->out, view->in, NULL);
    view->dtype = view->weight.dtype;
    switch (view->weight.dtype) {
    case WEFT_F32:
    case WEFT_F16:
    case WEFT_BF16:
        return open_plain(p);
    case WEFT_U8:
    case WEFT_F4_E2M1:
        return open_nvfp4(p, "weight", "weight_scale_2", false);
    case WEFT_F8_E4M3:
        return open_fp8(p);
    default:
        return refuse_type(p, &view->weight);
    }
}

weft_status weft__linear_open(const struct weft__checkpoint *checkpoint, const char *module,
                              int64_t out, int64_t in, struct weft__linear_view *view,
                              weft_error *err)
{
    struct weft__linear_view found = {.out = out, .in = in, .scale_global = 1};
    struct probe p = {checkpoint, module, &found, err};
    weft_status status = refuse_foreign(&p);
    if (status == WEFT_OK) status = open_weight(&p);
    if (status != WEFT_OK) return status;
    found.row_bytes = in * weft__dtype_bits(found.dtype) / 8;
    if (find(&p, "bias", &found.bias)) {
        status = get(&p, "bias", 1, out, 0, &found.bias);
        if (status != WEFT_OK) return status;
        if (!is_float(found.bias.dtype)) return refuse_type(&p, &found.bias);
    }
    *view = found;
    return WEFT_OK;
}

weft_status weft__linear_open_expert(const struct weft__checkpoint *checkpoint,
                                     const struct weft__expert_ref *ref,
                                     struct weft__linear_view *view, weft_error *err)
{
    char name[MAX_NAME];
    bool down = strcmp(ref->projection, "down_proj") == 0;
    bool up = strcmp(ref->projection, "up_proj") == 0;
    struct weft__tensor stack;
    (void)snprintf(name, sizeof name, "%s.%s", ref->experts, down ? "down_proj" : "gate_up_proj");
    if (!weft__checkpoint_find(checkpoint, name, &stack)) {
        (void)snprintf(name, sizeof name, "%s.%lld.%s", ref->experts, (long long)ref->expert,
                       ref->projection);
        return weft__linear_open(checkpoint, name, ref->out, ref->in, view, err);
    }
    const int64_t shape[] = {ref->count, down ? ref->out : 2 * ref->out, ref->in};
    weft_status status = weft__checkpoint_get(checkpoint, name, 3, shape, &stack, err);
    if (status != WEFT_OK) return status;
    if (!is_float(stack.dtype))
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "%s: tensor " NAME " has type %s: stacked experts are read as F32, F16 "
                          "or BF16 only; quantised ones must be stored one by one",
                          stack.file, stack.name, weft_dtype_name(stack.dtype));
    struct weft__linear_view found = {.kind = WEFT__LINEAR_PLAIN,
                                      .dtype = stack.dtype,
                                      .out = ref->out,
                                      .in = ref->in,
                                      .scale_global = 1};
    found.weight = weft__tensor_slice(&stack, ref->expert);
    if (!down) found.weight = weft__tensor_rows(&found.weight, up ? ref->out : 0, ref->out);
    found.row_bytes = ref->in * weft__dtype_bits(found.dtype) / 8;
    *view = found;
    return WEFT_OK;
}

/* ---- scales ---- */

int64_t weft__linear_scale_count(const struct weft__linear_view *view)
{
    bool table = view->kind == WEFT__LINEAR_FP8_CHANNEL || view->kind == WEFT__LINEAR_FP8_BLOCK;
    return table ? elements(&view->scale) : 0;
}

weft_status weft__linear_scale_f32(const struct weft__linear_view *view, float *out,
                                   weft_error *err)
{
    int64_t count = weft__linear_scale_count(view);
    if (count == 0) return WEFT_OK;
    weft_status status = weft__tensor_f32(&view->scale, out, err);
    for (int64_t i = 0; i < count && status == WEFT_OK; i++)
        if (!isfinite(out[i]) || out[i] <= 0)
            status = weft__fail(err, WEFT_FORMAT,
                                "%s: tensor " NAME ": scale %lld is %g; it must be finite and "
                                "above 0",
                                view->scale.file, view->scale.name, (long long)i, (double)out[i]);
    return status;
}

weft_status weft__linear_check(const struct weft__linear_view *view, int64_t first, int64_t count,
                               weft_error *err)
{
    uint8_t chunk[8192];
    if (view->kind != WEFT__LINEAR_NVFP4) return WEFT_OK;
    struct weft__tensor rows = weft__tensor_rows(&view->scale, first, count);
    for (int64_t at = 0; at < rows.bytes; at += (int64_t)sizeof chunk) {
        int64_t bytes = weft__min(rows.bytes - at, (int64_t)sizeof chunk);
        weft_status status = weft__tensor_read(&rows, at, bytes, chunk, err);
        if (status != WEFT_OK) return status;
        /* Zero is allowed: producers round tiny scales to it. */
        for (int64_t i = 0; i < bytes; i++)
            if (chunk[i] > 0x80 || chunk[i] == 0x7f)
                return weft__fail(err, WEFT_FORMAT,
                                  "%s: tensor " NAME ": the scale of row %lld, block %lld is %s",
                                  rows.file, rows.name,
                                  (long long)(first + (at + i) / rows.shape[1]),
                                  (long long)((at + i) % rows.shape[1]),
                                  (chunk[i] & 0x7f) == 0x7f ? "NaN" : "negative");
    }
    return WEFT_OK;
}
