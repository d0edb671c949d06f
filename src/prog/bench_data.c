/* What is asked and when: datasets, lengths and arrivals by either vendor's rules. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bench.h"
#include "token/token.h"

/* ---- MT19937 (Matsumoto and Nishimura 1998) ---- */

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

uint32_t weft__mt_next(struct weft__mt *mt)
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

/* Integers in [low, high), by masked rejection as numpy's legacy randint draws them. */
int64_t weft__mt_range(struct weft__mt *mt, int64_t low, int64_t high)
{
    uint32_t most = (uint32_t)(high - 1 - low), mask = most, value;
    if (most == 0) return low;
    for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
    do value = weft__mt_next(mt) & mask;
    while (value > most);
    return low + value;
}

double weft__mt_double(struct weft__mt *mt)
{
    uint32_t a = weft__mt_next(mt) >> 5, b = weft__mt_next(mt) >> 6;
    return (a * 67108864.0 + b) / 9007199254740992.0;
}

/* Python's random.randrange(n), n >= 1. */
static int64_t python_below(struct weft__mt *mt, uint32_t n)
{
    int bits = 32 - __builtin_clz(n);
    uint32_t value;
    do value = weft__mt_next(mt) >> (32 - bits);
    while (value >= n);
    return value;
}

static double exponential(struct weft__mt *mt) { return -log(1 - weft__mt_double(mt)); }

static double normal(struct weft__mt *mt)
{
    double radius = sqrt(2 * exponential(mt));
    return radius * cos(2 * 3.14159265358979323846 * weft__mt_double(mt));
}

/* Marsaglia and Tsang 2000; a shape below 1 by the power of a uniform number. */
static double gamma_of(struct weft__mt *mt, double shape)
{
    if (shape == 1) return exponential(mt);
    double boost = shape < 1 ? pow(1 - weft__mt_double(mt), 1 / shape) : 1;
    double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = normal(mt), v = 1 + c * x;
        v = v * v * v;
        if (v > 0 && log(1 - weft__mt_double(mt)) < 0.5 * x * x + d - d * v + d * log(v))
            return boost * d * v;
    }
}

/* ---- one request ---- */

struct maker {
    const struct weft__bench_options *o;
    const struct weft__tokenizer *tok;
    struct weft__bench_data *data;
    json_t *extra; /* NULL: none */
    struct weft__mt numpy, python;
    weft_error *err;
};

/* Text, or ids when text is NULL. */
struct prompt {
    const char *text;
    size_t len;
    const int32_t *ids;
    int64_t count;
    int64_t prompt_len, output_len;
};

static json_t *prompt_json(const struct prompt *p)
{
    if (p->text != NULL) return json_stringn(p->text, p->len);
    json_t *array = json_array();
    for (int64_t i = 0; i < p->count; i++)
        (void)json_array_append_new(array, json_integer(p->ids[i]));
    return array;
}

static json_t *body_json(const struct weft__bench_options *o, const struct prompt *p)
{
    json_int_t tokens = (json_int_t)p->output_len;
    json_t *body, *prompt = prompt_json(p);
    if (o->api == WEFT__API_GENERATE)
        return json_pack("{s:o, s:b, s:{s:f, s:f, s:I, s:b}}",
                         p->text != NULL ? "text" : "input_ids", prompt, "stream", 1,
                         "sampling_params", "temperature", o->temperature, "top_p", o->top_p,
                         "max_new_tokens", tokens, "ignore_eos", (int)!o->stop_at_eos);
    if (o->api == WEFT__API_CHAT)
        body = json_pack("{s:[{s:s, s:o}], s:I}", "messages", "role", "user", "content", prompt,
                         "max_completion_tokens", tokens);
    else
        body = json_pack("{s:o, s:I}", "prompt", prompt, "max_tokens", tokens);
    json_t *common =
        json_pack("{s:s, s:f, s:f, s:b, s:b, s:{s:b}}", "model", o->model, "temperature",
                  o->temperature, "top_p", o->top_p, "ignore_eos", (int)!o->stop_at_eos, "stream",
                  1, "stream_options", "include_usage", 1);
    if (common == NULL || json_object_update(body, common) != 0) {
        json_decref(body);
        body = NULL;
    }
    json_decref(common);
    return body;
}

static weft_status add_request(struct maker *m, const struct prompt *p)
{
    struct weft__bench_request *r = &m->data->request[m->data->count];
    json_t *body = body_json(m->o, p);
    if (m->extra != NULL) (void)json_object_update(body, m->extra);
    char *text = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (text == NULL)
        return weft__fail(m->err, WEFT_INVALID,
                          "no request for prompt %lld: out of memory, or the model's name or the "
                          "prompt is not UTF-8",
                          (long long)m->data->count + 1);
    *r = (struct weft__bench_request){.body = text,
                                      .body_len = strlen(text),
                                      .prompt_len = p->prompt_len,
                                      .output_len = p->output_len};
    weft__buf_init(&r->text, 256 << 20);
    m->data->count++;
    return WEFT_OK;
}

static weft_status count_tokens(struct maker *m, const char *text, size_t len, int64_t *out)
{
    struct weft__ids ids = {0};
    weft_status status = WEFT_OK;
    *out = -1;
    if (m->tok == NULL) return WEFT_OK;
    status = weft__tokenizer_encode(m->tok, text, len, WEFT__ADD_SPECIAL, &ids, m->err);
    if (status == WEFT_OK) *out = (int64_t)ids.len;
    weft__ids_free(&ids);
    return status;
}

/* ---- random-ids ---- */

/* [low, high] of a length by the rule (the spec's table of range ratios). */
static void range_of(const struct weft__bench_options *o, int64_t len, int64_t *low, int64_t *high)
{
    double l = (double)len, r = o->range_ratio;
    if (o->range_rules == WEFT__RULES_SGLANG) {
        *low = weft__max((int64_t)floor(l * r), 1);
        *high = len;
    } else {
        *low = weft__max((int64_t)floor(l * (1 - r)), 1);
        *high = (int64_t)ceil(l * (1 + r));
    }
}

/* The ids prompts are made of. SGLang takes all below the vocabulary without added tokens, vLLM all
 * that are not special. */
static weft_status make_vocab(const struct maker *m, int32_t **out, int64_t *count)
{
    int64_t size = m->o->vocab > 0 ? m->o->vocab : weft__tokenizer_size(m->tok);
    bool skip_special = m->tok != NULL && m->o->range_rules == WEFT__RULES_VLLM;
    int32_t *id = malloc((size_t)size * sizeof *id);
    if (id == NULL) return weft__fail_oom(m->err, (size_t)size * sizeof *id, "the vocabulary");
    if (m->o->vocab == 0 && !skip_special)
        for (int64_t i = size / 2; i < size; i++) /* added tokens follow the others */
            if (weft__token_is_special(m->tok, (int32_t)i)) size = i;
    *count = 0;
    for (int64_t i = 0; i < size; i++)
        if (!skip_special || (weft__token_bytes(m->tok, (int32_t)i).data != NULL &&
                              !weft__token_is_special(m->tok, (int32_t)i)))
            id[(*count)++] = (int32_t)i;
    *out = id;
    if (*count > 0) return WEFT_OK;
    free(id);
    return weft__fail(m->err, WEFT_INVALID, "the vocabulary is empty");
}

/* Ids as text. vLLM's rule encodes it again, cuts it to the length and counts what is left. */
static weft_status add_decoded(struct maker *m, const int32_t *ids, int64_t count,
                               int64_t output_len)
{
    struct weft__buf text;
    struct weft__ids again = {0};
    struct prompt p = {.prompt_len = count, .output_len = output_len};
    weft_status status = WEFT_OK;
    weft__buf_init(&text, WEFT__MAX_TEXT);
    weft__tokenizer_decode(m->tok, ids, (size_t)count, false, &text);
    if (!text.failed && m->o->range_rules == WEFT__RULES_VLLM) {
        status = weft__tokenizer_encode(m->tok, text.data, text.len, 0, &again, m->err);
        p.prompt_len = weft__min(count, (int64_t)again.len);
        text.len = 0;
        if (status == WEFT_OK)
            weft__tokenizer_decode(m->tok, again.data, (size_t)p.prompt_len, false, &text);
    }
    if (status == WEFT_OK && text.failed) status = weft__fail_oom(m->err, text.len, "a prompt");
    p.text = text.data != NULL ? text.data : "";
    p.len = text.len;
    if (status == WEFT_OK) status = add_request(m, &p);
    weft__ids_free(&again);
    weft__buf_free(&text);
    return status;
}

static weft_status add_random(struct maker *m, const int64_t *input_len, const int64_t *output_len)
{
    int64_t vocab = 0, most = 1;
    int32_t *id = NULL, *prompt;
    bool as_ids = m->tok == NULL || m->o->send_ids;
    WEFT__TRY(make_vocab(m, &id, &vocab));
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < m->o->prompts; i++) most = weft__max(most, input_len[i]);
    prompt = malloc((size_t)most * sizeof *prompt);
    int64_t *offset = malloc((size_t)m->o->prompts * sizeof *offset);
    if (prompt == NULL || offset == NULL)
        status = weft__fail_oom(m->err, (size_t)most * sizeof *prompt, "a prompt");
    for (int64_t i = 0; status == WEFT_OK && i < m->o->prompts; i++)
        offset[i] = weft__mt_range(&m->numpy, 0, vocab);
    for (int64_t i = 0; status == WEFT_OK && i < m->o->prompts; i++) {
        for (int64_t j = 0; j < input_len[i]; j++) prompt[j] = id[(offset[i] + i + j) % vocab];
        const struct prompt p = {.ids = prompt,
                                 .count = input_len[i],
                                 .prompt_len = input_len[i],
                                 .output_len = output_len[i]};
        status = as_ids ? add_request(m, &p) : add_decoded(m, prompt, input_len[i], output_len[i]);
    }
    free(offset);
    free(prompt);
    free(id);
    return status;
}

static weft_status make_random(struct maker *m)
{
    const struct weft__bench_options *o = m->o;
    int64_t low, high, special = 0;
    if (m->tok == NULL && o->vocab == 0)
        return weft__fail(m->err, WEFT_INVALID,
                          "random-ids needs --tokenizer MODEL, or --vocab N to send ids below N");
    if (m->tok == NULL && o->api == WEFT__API_CHAT)
        return weft__fail(m->err, WEFT_INVALID, "random-ids needs --tokenizer MODEL for chat");
    int64_t *len = calloc((size_t)o->prompts, 2 * sizeof *len);
    if (len == NULL) return weft__fail_oom(m->err, (size_t)o->prompts * 16, "lengths");
    /* What the server's tokenizer adds to a text counts. */
    weft_status status =
        m->tok != NULL && !o->send_ids ? count_tokens(m, "", 0, &special) : WEFT_OK;
    range_of(o, o->input_len, &low, &high);
    for (int64_t i = 0; i < o->prompts; i++)
        len[i] = weft__max(weft__mt_range(&m->numpy, low, high + 1) - special, 1);
    range_of(o, o->output_len, &low, &high);
    for (int64_t i = 0; i < o->prompts; i++)
        len[o->prompts + i] = weft__mt_range(&m->numpy, low, high + 1);
    if (status == WEFT_OK) status = add_random(m, len, len + o->prompts);
    free(len);
    return status;
}

/* ---- files ---- */

static weft_status add_text(struct maker *m, const char *text, size_t len, int64_t output_len)
{
    struct prompt p = {.text = text, .len = len, .output_len = output_len};
    WEFT__TRY(count_tokens(m, text, len, &p.prompt_len));
    return add_request(m, &p);
}

/* {"prompt": "...", "output_tokens": N}, as vLLM's custom dataset has it; false: not that. */
static bool add_line_json(struct maker *m, const char *line, size_t len, weft_status *status)
{
    json_t *object = json_loadb(line, len, 0, NULL);
    json_t *prompt = json_object_get(object, "prompt"),
           *n = json_object_get(object, "output_tokens");
    json_int_t tokens = json_is_integer(n) ? json_integer_value(n) : m->o->output_len;
    bool good = json_is_string(prompt) && tokens >= 1 && tokens <= INT32_MAX;
    if (good) *status = add_text(m, json_string_value(prompt), json_string_length(prompt), tokens);
    json_decref(object);
    return good;
}

/* Every line is a prompt; of a .jsonl file, an object. Too few are asked again from the top. */
static weft_status make_lines(struct maker *m, const char *text, size_t len)
{
    const char *path = m->o->dataset_path, *dot = strrchr(path, '.'), *end = text + len;
    bool objects = dot != NULL && strcasecmp(dot, ".jsonl") == 0;
    weft_status status = WEFT_OK;
    for (bool first = true; m->data->count < m->o->prompts && (first || m->data->count > 0);
         first = false)
        for (const char *at = text; at < end && m->data->count < m->o->prompts;) {
            const char *newline = memchr(at, '\n', (size_t)(end - at));
            const char *stop = newline != NULL ? newline : end, *line = at;
            at = stop + 1;
            if (stop > line && stop[-1] == '\r') stop--;
            if (stop == line) continue;
            size_t size = (size_t)(stop - line);
            bool good = true;
            if (objects)
                good = add_line_json(m, line, size, &status);
            else if ((good = weft__utf8_valid(line, size)))
                status = add_text(m, line, size, m->o->output_len);
            m->data->broken += first && !good;
            if (status != WEFT_OK) return status;
        }
    if (m->data->count > 0) return WEFT_OK;
    return weft__fail(m->err, WEFT_FORMAT, "%.200s holds no prompt (%lld broken lines)", path,
                      (long long)m->data->broken);
}

/* The texts of the first two turns. */
static bool turns_of(const json_t *entry, json_t *turn[2])
{
    const json_t *turns = json_object_get(entry, "conversations");
    if (turns == NULL) turns = json_object_get(entry, "conversation");
    for (size_t i = 0; i < 2; i++) turn[i] = json_object_get(json_array_get(turns, i), "value");
    return json_is_string(turn[0]) && json_is_string(turn[1]);
}

/* By the rules of lengths: is the conversation used? */
static bool keep(const struct weft__bench_options *o, int64_t prompt, int64_t output)
{
    bool given = o->output_len > 0;
    if (prompt < 0) return true; /* no tokenizer: unknown */
    if (o->context_len > 0 && prompt + output > o->context_len) return false;
    if (o->range_rules == WEFT__RULES_SGLANG) return prompt >= 2 && output >= 2;
    return prompt >= 4 && (given || output >= 4) && prompt <= 1024 && prompt + output <= 2048;
}

static weft_status add_conversation(struct maker *m, const json_t *entry)
{
    json_t *turn[2];
    int64_t output = m->o->output_len;
    (void)turns_of(entry, turn);
    struct prompt p = {.text = json_string_value(turn[0]), .len = json_string_length(turn[0])};
    WEFT__TRY(count_tokens(m, p.text, p.len, &p.prompt_len));
    if (output == 0)
        WEFT__TRY(
            count_tokens(m, json_string_value(turn[1]), json_string_length(turn[1]), &output));
    p.output_len = output;
    if (keep(m->o, p.prompt_len, output)) return add_request(m, &p);
    m->data->dropped++;
    return WEFT_OK;
}

static weft_status make_sharegpt(struct maker *m, const char *text, size_t len)
{
    json_error_t error;
    weft_status status = WEFT_OK;
    json_t *all = json_loadb(text, len, 0, &error);
    if (!json_is_array(all)) {
        json_decref(all);
        return weft__fail(m->err, WEFT_FORMAT,
                          "%.200s: a JSON array of {\"conversations\": [{\"value\": ...}, ...]} is "
                          "wanted: %.100s",
                          m->o->dataset_path, all == NULL ? error.text : "this is something else");
    }
    size_t count = 0;
    const json_t **entry = calloc(json_array_size(all) + 1, sizeof *entry);
    if (entry == NULL) status = weft__fail_oom(m->err, json_array_size(all) * 8, "a dataset");
    for (size_t i = 0; status == WEFT_OK && i < json_array_size(all); i++) {
        json_t *turn[2];
        if (turns_of(json_array_get(all, i), turn))
            entry[count++] = json_array_get(all, i);
        else
            m->data->broken++;
    }
    for (size_t i = count; status == WEFT_OK && i-- > 1;) { /* random.shuffle */
        int64_t j = python_below(&m->python, (uint32_t)i + 1);
        const json_t *swap = entry[i];
        entry[i] = entry[j];
        entry[j] = swap;
    }
    for (size_t i = 0; status == WEFT_OK && i < count && m->data->count < m->o->prompts; i++)
        status = add_conversation(m, entry[i]);
    if (status == WEFT_OK && m->data->count == 0)
        status =
            weft__fail(m->err, WEFT_FORMAT,
                       "%.200s holds no conversation that can be used (%lld without two "
                       "turns, %lld too short or too long)",
                       m->o->dataset_path, (long long)m->data->broken, (long long)m->data->dropped);
    free(entry);
    json_decref(all);
    return status;
}

static weft_status make_file(struct maker *m)
{
    char *text;
    size_t len;
    bool sharegpt = strcmp(m->o->dataset, "sharegpt") == 0;
    if (m->o->dataset_path == NULL)
        return weft__fail(m->err, WEFT_INVALID, "--dataset-name %s needs --dataset-path FILE",
                          m->o->dataset);
    if (sharegpt && m->tok == NULL && m->o->output_len == 0)
        return weft__fail(m->err, WEFT_INVALID,
                          "sharegpt needs --tokenizer MODEL to measure its answers, or "
                          "--random-output-len N");
    WEFT__TRY(weft__read_file(m->o->dataset_path, WEFT__BENCH_MAX_FILE, &text, &len, m->err));
    weft_status status = sharegpt ? make_sharegpt(m, text, len) : make_lines(m, text, len);
    free(text);
    return status;
}

/* ---- arrivals ---- */

/* SGLang: send, then wait. vLLM: wait, then send, and all waits scaled so that the last request is
 * due at count / rate. Times are absolute, so that a late dispatch does not delay the others. */
static void set_arrivals(struct maker *m)
{
    const struct weft__bench_options *o = m->o;
    bool vllm = o->rules == WEFT__RULES_VLLM;
    int64_t count = m->data->count;
    if (isinf(o->rate)) return;
    if (vllm) weft__mt_seed(&m->numpy, (uint32_t)o->seed);  /* its prompts use another generator */
    double at = 0, scale = 1e9 / (o->rate * o->burstiness); /* ns */
    for (int64_t i = 0; i < count; i++) {
        double gap = gamma_of(&m->numpy, o->burstiness) * scale;
        m->data->request[i].at_ns = (uint64_t)(vllm ? at + gap : at);
        at += gap;
    }
    double factor = vllm && at > 0 ? (double)count / o->rate * 1e9 / at : 1;
    for (int64_t i = 0; i < count; i++)
        m->data->request[i].at_ns = (uint64_t)((double)m->data->request[i].at_ns * factor);
}

weft_status weft__bench_data_make(const struct weft__bench_options *o,
                                  const struct weft__tokenizer *tok, struct weft__bench_data *out,
                                  weft_error *err)
{
    struct weft__bench_data data = {.request = calloc((size_t)o->prompts, sizeof *data.request)};
    struct maker m = {.o = o, .tok = tok, .data = &data, .err = err};
    if (data.request == NULL)
        return weft__fail_oom(err, (size_t)o->prompts * sizeof *data.request, "requests");
    json_error_t error;
    weft_status status = WEFT_OK;
    weft__mt_seed(&m.numpy, (uint32_t)o->seed);
    weft__mt_seed_python(&m.python, (uint32_t)o->seed);
    if (o->extra_body != NULL) {
        m.extra = json_loads(o->extra_body, 0, &error);
        if (!json_is_object(m.extra))
            status = weft__fail(err, WEFT_INVALID,
                                "--extra-request-body: a JSON object is wanted%s%.100s",
                                m.extra == NULL ? ": " : "", m.extra == NULL ? error.text : "");
    }
    if (status == WEFT_OK)
        status = strcmp(o->dataset, "random-ids") == 0 ? make_random(&m) : make_file(&m);
    json_decref(m.extra);
    if (status == WEFT_OK) {
        set_arrivals(&m);
        *out = data;
    } else {
        weft__bench_data_free(&data);
    }
    return status;
}

void weft__bench_data_reset(struct weft__bench_data *data)
{
    for (int64_t i = 0; i < data->count; i++) {
        struct weft__bench_request *r = &data->request[i];
        r->due_ns = r->slot_ns = r->start_ns = r->last_line_ns = 0;
        r->events = r->http = 0;
        r->usage_prompt = r->usage_output = -1;
        r->text.len = 0;
        r->end = WEFT__END_OK;
        r->error[0] = '\0';
    }
}

void weft__bench_data_free(struct weft__bench_data *data)
{
    for (int64_t i = 0; i < data->count; i++) {
        free(data->request[i].body);
        free(data->request[i].event);
        weft__buf_free(&data->request[i].text);
    }
    free(data->request);
    *data = (struct weft__bench_data){0};
}
