/* JSON bodies -> struct weft__ask. Every field is checked here, once; null means absent; unknown
 * fields are ignored, known ones that cannot be honoured are refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"

/* ---- bodies ---- */

/* Counts before parsing what parsing would allocate: the parser's own limits are far above. */
static bool body_is_moderate(const struct weft__buf *body, struct weft__refusal *refusal)
{
    int64_t values = 0;
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < body->len; i++) {
        char c = body->data[i];
        if (in_string) {
            if (c == '\\') i++;
            in_string = c != '"';
            continue;
        }
        in_string = c == '"';
        if (c == '[' || c == '{') depth++;
        if (c == ']' || c == '}') depth--;
        values += c == ',' || c == '[' || c == '{';
        values += 3 * (c == ':'); /* a member takes as much as four items */
        if (depth > WEFT__JSON_DEPTH_MAX)
            return weft__refuse(refusal, 400, "invalid_json", NULL,
                                "the JSON is nested deeper than %d levels", WEFT__JSON_DEPTH_MAX);
        if (values > WEFT__JSON_VALUES_MAX)
            return weft__refuse(refusal, 400, "invalid_json", NULL,
                                "the JSON holds more than %d values", WEFT__JSON_VALUES_MAX);
    }
    return true;
}

json_t *weft__body_parse(const struct weft__buf *body, struct weft__refusal *refusal)
{
    json_error_t error;
    if (body->len == 0) {
        (void)weft__refuse(refusal, 400, "invalid_json", NULL,
                           "the request has no body; a JSON object is wanted");
        return NULL;
    }
    if (!body_is_moderate(body, refusal)) return NULL;
    json_t *root = json_loadb(body->data, body->len, JSON_ALLOW_NUL, &error);
    if (root == NULL) {
        bool large = json_error_code(&error) == json_error_numeric_overflow;
        (void)weft__refuse(refusal, 400, "invalid_json", NULL,
                           "the body %s: %.200s (line %d, column %d)",
                           large ? "has a number that 64 bits cannot hold" : "is not valid JSON",
                           error.text, error.line, error.column);
        return NULL;
    }
    if (!json_is_object(root)) {
        (void)weft__refuse(refusal, 400, "invalid_json", NULL, "the body must be a JSON object");
        json_decref(root);
        return NULL;
    }
    return root;
}

/* ---- fields ---- */

json_t *weft__field(const json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

bool weft__json_integer(const json_t *value, int64_t *out)
{
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    double real = json_is_real(value) ? json_real_value(value) : NAN;
    if (!(fabs(real) < 0x1p63) || real != floor(real)) return false;
    *out = (int64_t)real;
    return true;
}

/* A value as its sender wrote it, cut after some characters. */
static const char *describe(const json_t *value, char out[48])
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    (void)snprintf(out, 48, "%.44s", text != NULL ? text : "?");
    free(text);
    return out;
}

bool weft__field_int(const json_t *object, const char *name, int64_t min, int64_t max, int64_t *out,
                     struct weft__refusal *refusal)
{
    const json_t *value = weft__field(object, name);
    char given[48];
    int64_t integer;
    if (value == NULL) return true;
    bool is_integer = weft__json_integer(value, &integer);
    if (is_integer && integer >= min && integer <= max) {
        *out = integer;
        return true;
    }
    return weft__refuse(refusal, 400, is_integer ? "invalid_value" : "invalid_type", name,
                        "%s is %s; it must be an integer from %lld to %lld", name,
                        describe(value, given), (long long)min, (long long)max);
}

static bool field_float(const json_t *object, const char *name, double min, double max, float *out,
                        struct weft__refusal *refusal)
{
    const json_t *value = weft__field(object, name);
    char given[48];
    if (value == NULL) return true;
    double number = json_number_value(value);
    if (json_is_number(value) && number >= min && number <= max) {
        *out = (float)number;
        return true;
    }
    return weft__refuse(refusal, 400, json_is_number(value) ? "invalid_value" : "invalid_type",
                        name, "%s is %s; it must be a number from %g to %g", name,
                        describe(value, given), min, max);
}

bool weft__field_bool(const json_t *object, const char *name, bool *out,
                      struct weft__refusal *refusal)
{
    const json_t *value = weft__field(object, name);
    if (value == NULL) return true;
    char given[48];
    if (!json_is_boolean(value))
        return weft__refuse(refusal, 400, "invalid_type", name,
                            "%s is %s; it must be true or false", name, describe(value, given));
    *out = json_is_true(value);
    return true;
}

/* ---- what cannot be honoured ---- */

static bool refuse_unsupported(const json_t *params, struct weft__refusal *refusal)
{
    static const char *const constraints[] = {
        "regex",         "ebnf",           "structural_tag", "guided_json",        "guided_regex",
        "guided_choice", "guided_grammar", "grammar",        "structured_outputs",
    };
    size_t i;
    for (i = 0; i < WEFT__COUNT(constraints); i++)
        if (weft__field(params, constraints[i]) != NULL)
            return weft__refuse(refusal, 400, "unsupported", constraints[i],
                                "%s is not supported: answers are constrained by "
                                "response_format alone",
                                constraints[i]);
    const json_t *modalities = weft__field(params, "modalities"), *modality;
    bool text = modalities == NULL || json_is_array(modalities);
    json_array_foreach (modalities, i, modality)
        text &= json_is_string(modality) && strcmp(json_string_value(modality), "text") == 0;
    if (!text)
        return weft__refuse(refusal, 400, "unsupported", "modalities",
                            "modalities: answers are text; only [\"text\"] is supported");
    const json_t *suffix = weft__field(params, "suffix");
    if (suffix != NULL && json_string_length(suffix) != 0)
        return weft__refuse(refusal, 400, "unsupported", "suffix", "suffix is not supported");
    if (json_is_true(weft__field(params, "use_beam_search")))
        return weft__refuse(refusal, 400, "unsupported", "use_beam_search",
                            "beam search is not supported");
    return true;
}

/* ---- sampling ---- */

static bool read_bias(struct weft__ask *ask, const json_t *params, struct weft__refusal *refusal)
{
    json_t *object = weft__field(params, "logit_bias"), *value;
    const char *key;
    if (object == NULL) return true;
    if (!json_is_object(object))
        return weft__refuse(refusal, 400, "invalid_type", "logit_bias",
                            "logit_bias must be an object: {\"token id\": number}");
    if (json_object_size(object) > WEFT__LOGIT_BIAS_MAX)
        return weft__refuse(refusal, 400, "invalid_value", "logit_bias",
                            "logit_bias has more than %d entries", WEFT__LOGIT_BIAS_MAX);
    json_object_foreach (object, key, value) {
        char *end;
        long id = strtol(key, &end, 10);
        if (end == key || *end != '\0' || id < 0 || id > INT32_MAX)
            return weft__refuse(refusal, 400, "invalid_value", "logit_bias",
                                "logit_bias: \"%.40s\" is not a token id", key);
        double bias = json_number_value(value);
        if (!json_is_number(value) || !(bias >= -100 && bias <= 100))
            return weft__refuse(refusal, 400, "invalid_value", "logit_bias",
                                "logit_bias of %ld must be a number from -100 to 100", id);
        ask->bias[ask->sampling.bias_count++] =
            (struct weft__logit_bias){.token = (int32_t)id, .bias = (float)bias};
    }
    ask->sampling.bias = ask->bias;
    return true;
}

static bool read_sampling(struct weft__ask *ask, const struct weft__server *server,
                          const json_t *params, struct weft__refusal *refusal)
{
    struct weft__sampling *s = &ask->sampling;
    int64_t top_k, seed = 0;
    *s = server->options.neutral_sampling ? weft__sampling_default
                                          : weft__engine_view(server->engine)->generation->sampling;
    top_k = s->top_k;
    if (!field_float(params, "temperature", WEFT__TEMPERATURE_RANGE, &s->temperature, refusal) ||
        !field_float(params, "top_p", WEFT__TOP_P_RANGE, &s->top_p, refusal) ||
        !weft__field_int(params, "top_k", -1, INT64_MAX, &top_k, refusal) ||
        !field_float(params, "min_p", WEFT__MIN_P_RANGE, &s->min_p, refusal) ||
        !field_float(params, "frequency_penalty", WEFT__OUTPUT_PENALTY_RANGE, &s->frequency_penalty,
                     refusal) ||
        !field_float(params, "presence_penalty", WEFT__OUTPUT_PENALTY_RANGE, &s->presence_penalty,
                     refusal) ||
        !field_float(params, "repetition_penalty", WEFT__REPETITION_PENALTY_RANGE,
                     &s->repetition_penalty, refusal) ||
        !read_bias(ask, params, refusal))
        return false;
    s->top_k = (int32_t)weft__min(top_k, INT32_MAX);
    const char *name = weft__field(params, "seed") != NULL ? "seed" : "sampling_seed";
    if (weft__field(params, name) == NULL) {
        uint64_t now = weft__now_ns(); /* unlike any other request's */
        s->seed = weft__hash(&now, sizeof now, (uint64_t)(uintptr_t)ask->body);
        return true;
    }
    if (!weft__field_int(params, name, INT64_MIN, INT64_MAX, &seed, refusal)) return false;
    s->seed = (uint64_t)seed;
    return true;
}

/* ---- stops ---- */

static bool add_stop(struct weft__ask *ask, const json_t *value, struct weft__refusal *refusal)
{
    size_t len = json_string_length(value);
    if (!json_is_string(value))
        return weft__refuse(refusal, 400, "invalid_type", "stop",
                            "stop must be a string or a list of strings");
    if (len == 0 || len > WEFT__STOP_BYTES_MAX)
        return weft__refuse(refusal, 400, "invalid_value", "stop",
                            "a stop string has from 1 to %d bytes", WEFT__STOP_BYTES_MAX);
    if (ask->stops.count == WEFT__STOPS_MAX)
        return weft__refuse(refusal, 400, "invalid_value", "stop",
                            "there are more than %d stop strings", WEFT__STOPS_MAX);
    ask->stops.stop[ask->stops.count++] = (struct weft__slice){json_string_value(value), len};
    return true;
}

static bool read_stops(struct weft__ask *ask, const json_t *params, struct weft__refusal *refusal)
{
    json_t *stop = weft__field(params, "stop"), *ids = weft__field(params, "stop_token_ids"),
           *value;
    size_t i;
    if (stop != NULL && !json_is_array(stop)) {
        if (!add_stop(ask, stop, refusal)) return false;
    } else {
        json_array_foreach (stop, i, value)
            if (!add_stop(ask, value, refusal)) return false;
    }
    if (ids != NULL && (!json_is_array(ids) || json_array_size(ids) > WEFT__STOP_IDS_MAX))
        return weft__refuse(refusal, 400, "invalid_value", "stop_token_ids",
                            "stop_token_ids must be a list of at most %d ids", WEFT__STOP_IDS_MAX);
    json_array_foreach (ids, i, value) {
        int64_t id;
        if (!weft__json_integer(value, &id) || id < 0 || id > INT32_MAX)
            return weft__refuse(refusal, 400, "invalid_value", "stop_token_ids",
                                "stop_token_ids[%zu] is not a token id", i);
        ask->stop_ids[ask->stop_id_count++] = (int32_t)id;
    }
    return weft__field_bool(params, "include_stop_str_in_output", &ask->stops.keep, refusal) &&
           weft__field_bool(params, "no_stop_trim", &ask->stops.keep, refusal);
}

/* ---- the kinds ---- */

static bool read_count(struct weft__ask *ask, const json_t *params, struct weft__refusal *refusal)
{
    int64_t n = 1, best_of;
    if (!weft__field_int(params, "n", 1, WEFT__SAMPLES_MAX, &n, refusal)) return false;
    best_of = n;
    if (!weft__field_int(params, "best_of", 1, WEFT__SAMPLES_MAX, &best_of, refusal)) return false;
    if (best_of != n && best_of != 1)
        return weft__refuse(refusal, 400, "unsupported", "best_of",
                            "best_of is %lld and n %lld; best_of must be 1 or equal to n",
                            (long long)best_of, (long long)n);
    ask->samples = (int)n;
    return true;
}

static bool read_model(const struct weft__server *server, const json_t *body,
                       struct weft__refusal *refusal)
{
    const json_t *model = weft__field(body, "model");
    if (model == NULL || server->options.any_model) return true;
    if (!json_is_string(model))
        return weft__refuse(refusal, 400, "invalid_type", "model", "model must be a string");
    if (strcmp(json_string_value(model), server->options.model) != 0)
        return weft__refuse(refusal, 404, "model_not_found", "model",
                            "there is no model \"%.200s\" here; this server has \"%.200s\"",
                            json_string_value(model), server->options.model);
    return true;
}

/* logprobs of completions: a count; booleans are taken, too. */
static bool read_completion(struct weft__ask *ask, struct weft__refusal *refusal)
{
    const json_t *body = ask->body, *logprobs = weft__field(body, "logprobs");
    int64_t count = -1;
    ask->max_tokens = 16;
    if (json_is_boolean(logprobs))
        count = json_is_true(logprobs) ? 1 : -1;
    else if (!weft__field_int(body, "logprobs", 0, WEFT__TOP_LOGPROBS_MAX, &count, refusal))
        return false;
    ask->logprobs = (int)count;
    return weft__field_int(body, "max_tokens", 0, INT64_MAX, &ask->max_tokens, refusal) &&
           weft__field_int(body, "min_tokens", 0, INT64_MAX, &ask->min_tokens, refusal) &&
           weft__field_bool(body, "echo", &ask->echo, refusal) &&
           weft__field_bool(body, "add_special_tokens", &ask->add_special, refusal);
}

static bool check_tools(const json_t *tools, struct weft__refusal *refusal)
{
    size_t i;
    json_t *tool;
    if (tools != NULL && !json_is_array(tools))
        return weft__refuse(refusal, 400, "invalid_type", "tools", "tools must be a list");
    json_array_foreach (tools, i, tool) {
        const char *type = json_string_value(weft__field(tool, "type"));
        const json_t *function = weft__field(tool, "function");
        const json_t *parameters = weft__field(function, "parameters");
        if (type == NULL || strcmp(type, "function") != 0)
            return weft__refuse(refusal, 400, "invalid_value", "tools",
                                "tools[%zu].type must be \"function\"", i);
        if (json_string_length(weft__field(function, "name")) == 0)
            return weft__refuse(refusal, 400, "invalid_value", "tools",
                                "tools[%zu].function.name must be a string, not empty", i);
        if (parameters != NULL && !json_is_object(parameters))
            return weft__refuse(refusal, 400, "invalid_type", "tools",
                                "tools[%zu].function.parameters must be an object", i);
    }
    return true;
}

static bool read_tools(struct weft__ask *ask, const json_t *body, struct weft__refusal *refusal)
{
    const json_t *tools = weft__field(body, "tools"), *choice = weft__field(body, "tool_choice");
    const char *word = json_string_value(choice);
    bool parallel = true;
    if (!check_tools(tools, refusal) ||
        !weft__field_bool(body, "parallel_tool_calls", &parallel, refusal))
        return false;
    ask->one_call = !parallel;
    if (word == NULL || strcmp(word, "none") != 0) ask->tools = tools;
    return true;
}

static bool read_chat(struct weft__ask *ask, struct weft__refusal *refusal)
{
    const json_t *body = ask->body;
    bool logprobs = false;
    int64_t top = 0;
    const char *name =
        weft__field(body, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
    ask->add_special = false; /* the template writes them */
    ask->reasoning = true;
    if (!weft__field_bool(body, "logprobs", &logprobs, refusal) ||
        !weft__field_int(body, "top_logprobs", 0, WEFT__TOP_LOGPROBS_MAX, &top, refusal) ||
        !weft__field_int(body, name, 1, INT64_MAX, &ask->max_tokens, refusal) ||
        !weft__field_int(body, "min_tokens", 0, INT64_MAX, &ask->min_tokens, refusal) ||
        !weft__field_bool(body, "separate_reasoning", &ask->reasoning, refusal) ||
        !read_tools(ask, body, refusal))
        return false;
    if (top > 0 && !logprobs)
        return weft__refuse(refusal, 400, "invalid_value", "top_logprobs",
                            "top_logprobs needs \"logprobs\": true");
    ask->logprobs = logprobs ? (int)top : -1;
    return true;
}

static bool read_native(struct weft__ask *ask, const json_t *params, struct weft__refusal *refusal)
{
    const json_t *body = ask->body;
    bool logprobs = false;
    int64_t top = 0, from = -1;
    ask->max_tokens = 128;
    if (weft__field(body, "text") != NULL && weft__field(body, "input_ids") != NULL)
        return weft__refuse(refusal, 400, "invalid_value", "input_ids",
                            "text and input_ids are both given; one of them is wanted");
    if (!weft__field_bool(body, "return_logprob", &logprobs, refusal) ||
        !weft__field_int(body, "top_logprobs_num", 0, WEFT__TOP_LOGPROBS_MAX, &top, refusal) ||
        !weft__field_int(body, "logprob_start_len", -1, INT64_MAX, &from, refusal) ||
        !weft__field_int(params, "max_new_tokens", 0, INT64_MAX, &ask->max_tokens, refusal) ||
        !weft__field_int(params, "min_new_tokens", 0, INT64_MAX, &ask->min_tokens, refusal))
        return false;
    ask->logprobs = logprobs ? (int)top : -1;
    ask->logprobs_from = logprobs ? from : -1;
    return true;
}

static bool read_common(struct weft__ask *ask, const json_t *params, struct weft__refusal *refusal)
{
    const json_t *body = ask->body, *stream_options = weft__field(body, "stream_options");
    int64_t priority = 0;
    if (stream_options != NULL && !json_is_object(stream_options))
        return weft__refuse(refusal, 400, "invalid_type", "stream_options",
                            "stream_options must be an object");
    if (!weft__field_bool(body, "stream", &ask->stream, refusal) ||
        !weft__field_bool(stream_options, "include_usage", &ask->include_usage, refusal) ||
        !weft__field_bool(stream_options, "continuous_usage_stats", &ask->continuous_usage,
                          refusal) ||
        !weft__field_bool(params, "ignore_eos", &ask->ignore_eos, refusal) ||
        !weft__field_bool(params, "skip_special_tokens", &ask->skip_special, refusal) ||
        !weft__field_bool(body, "return_token_ids", &ask->return_ids, refusal) ||
        !weft__field_int(body, "priority", INT32_MIN, INT32_MAX, &priority, refusal))
        return false;
    ask->priority = (int32_t)priority;
    const json_t *salt = weft__field(body, "cache_salt");
    if (json_is_string(salt))
        ask->cache_salt = weft__hash(json_string_value(salt), json_string_length(salt), 1);
    ask->rid = json_string_value(weft__field(body, "rid"));
    if (ask->rid == NULL) ask->rid = json_string_value(weft__field(body, "request_id"));
    return true;
}

bool weft__ask_read(struct weft__ask *ask, const struct weft__server *server, json_t *body,
                    struct weft__refusal *refusal)
{
    ask->body = json_incref(body);
    ask->max_tokens = -1;
    ask->skip_special = ask->add_special = true;
    ask->logprobs = -1;
    ask->logprobs_from = -1;
    const json_t *params = body;
    if (ask->kind == WEFT__ASK_NATIVE) {
        params = weft__field(body, "sampling_params");
        if (params != NULL && !json_is_object(params))
            return weft__refuse(refusal, 400, "invalid_type", "sampling_params",
                                "sampling_params must be an object");
    }
    if (!read_model(server, body, refusal) || !refuse_unsupported(params, refusal) ||
        !read_common(ask, params, refusal) || !read_count(ask, params, refusal) ||
        !read_sampling(ask, server, params, refusal) || !read_stops(ask, params, refusal))
        return false;
    bool ok = ask->kind == WEFT__ASK_COMPLETION ? read_completion(ask, refusal)
              : ask->kind == WEFT__ASK_CHAT     ? read_chat(ask, refusal)
                                                : read_native(ask, params, refusal);
    return ok && weft__constrain_read(ask, server, params, refusal);
}

void weft__ask_free(struct weft__ask *ask)
{
    json_decref(ask->schema);
    free(ask->schema_text);
    json_decref(ask->body);
}
