/* generation_config.json: what ends a text, and the checkpoint's own sampling defaults. */

#include "engine.h"

void weft__generation_config_add_eos(struct weft__generation_config *config, int64_t id,
                                     int64_t vocab)
{
    if (id < 0 || id >= vocab || config->eos_count == WEFT__EOS_MAX) return;
    for (int i = 0; i < config->eos_count; i++)
        if (config->eos[i] == id) return;
    config->eos[config->eos_count++] = (int32_t)id;
}

static weft_status read_eos(const struct weft__node *root, int64_t vocab,
                            struct weft__generation_config *out, weft_error *err)
{
    int64_t values[WEFT__EOS_MAX];
    struct weft__int_list list = {.max = INT32_MAX, .values = values, .max_count = WEFT__EOS_MAX};
    WEFT__TRY(weft__node_ints(root, "eos_token_id", &list, err));
    for (int i = 0; i < list.count; i++) weft__generation_config_add_eos(out, values[i], vocab);
    return WEFT_OK;
}

static weft_status read_sampling(const struct weft__node *root, struct weft__generation_config *out,
                                 weft_error *err)
{
    double temperature = 1, top_p = 1, min_p = 0, repetition = 1;
    int64_t top_k = 0;
    bool sample = true;
    WEFT__TRY(
        weft__node_double_opt(root, "temperature", WEFT__TEMPERATURE_RANGE, &temperature, err));
    WEFT__TRY(weft__node_double_opt(root, "top_p", WEFT__TOP_P_RANGE, &top_p, err));
    WEFT__TRY(weft__node_double_opt(root, "min_p", WEFT__MIN_P_RANGE, &min_p, err));
    WEFT__TRY(weft__node_double_opt(root, "repetition_penalty", WEFT__REPETITION_PENALTY_RANGE,
                                    &repetition, err));
    WEFT__TRY(weft__node_int_opt(root, "top_k", 0, INT32_MAX, &top_k, err));
    WEFT__TRY(weft__node_int_opt(root, "max_new_tokens", 1, INT32_MAX, &out->max_new_tokens, err));
    WEFT__TRY(weft__node_bool_opt(root, "do_sample", &sample, err));
    out->sampling.temperature = sample ? (float)temperature : 0;
    out->sampling.top_p = (float)top_p;
    out->sampling.min_p = (float)min_p;
    out->sampling.repetition_penalty = (float)repetition;
    out->sampling.top_k = (int32_t)top_k;
    return WEFT_OK;
}

static weft_status read_file(const char *dir, const char *name, int64_t vocab, bool sampling,
                             struct weft__generation_config *out, weft_error *err)
{
    char path[WEFT__MAX_PATH];
    WEFT__TRY(weft__path_join(path, dir, name, err));
    struct weft__node root = {0};
    weft_status status = weft__config_open(path, &root, err);
    if (status == WEFT_NOT_FOUND) return WEFT_OK;
    if (status != WEFT_OK) return status;
    status = read_eos(&root, vocab, out, err);
    if (status == WEFT_OK && sampling) status = read_sampling(&root, out, err);
    weft__config_close(&root);
    return status;
}

weft_status weft__generation_config_load(const char *dir, int64_t vocab,
                                         struct weft__generation_config *out, weft_error *err)
{
    struct weft__generation_config config = {.sampling = weft__sampling_default};
    WEFT__TRY(read_file(dir, "generation_config.json", vocab, true, &config, err));
    WEFT__TRY(read_file(dir, "config.json", vocab, false, &config, err));
    *out = config;
    return WEFT_OK;
}
