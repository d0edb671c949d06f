/* What is asked and when: datasets, lengths and arrivals by either vendor's rules. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bench.h"
#include "token/token.h"

const char *const weft__bench_datasets[] = {
#define X(name, word) word,
    WEFT__BENCH_DATASETS(X)
#undef X
};

/* ---- one request ---- */

struct maker {
    const struct weft__bench_options *o;
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

void weft__bench_set_tokens(const struct weft__bench_options *o, json_t *body, int64_t tokens)
{
    static const char *const keys[] = {"max_tokens", "max_completion_tokens", "max_new_tokens"};
    if (o->api == WEFT__API_GENERATE) body = json_object_get(body, "sampling_params");
    (void)json_object_set_new(body, keys[o->api], json_integer((json_int_t)tokens));
}

static weft_status set_body(struct maker *m, const struct prompt *p, struct weft__bench_request *r)
{
    json_t *body = body_json(m->o, p);
    if (m->extra != NULL) (void)json_object_update(body, m->extra);
    r->body = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    if (r->body == NULL)
        return weft__fail(m->err, WEFT_INVALID,
                          "no request for prompt %lld: out of memory, or the model's name or the "
                          "prompt is not UTF-8",
                          (long long)m->data->count + 1);
    r->body_len = strlen(r->body);
    return WEFT_OK;
}

/* Ids for the engine, which adds nothing to a text: that is done here. */
static weft_status copy_ids(struct maker *m, const struct prompt *p, unsigned flags, int32_t **out,
                            int64_t *count)
{
    struct weft__ids ids = {0};
    const int32_t *from = p->ids;
    *count = p->count;
    if (p->text != NULL) {
        if (m->o->tok == NULL)
            return weft__fail(m->err, WEFT_NOT_FOUND,
                              "%s has no tokenizer.json: text can't be sent", m->o->dir);
        WEFT__TRY(weft__tokenizer_encode(m->o->tok, p->text, p->len, flags, &ids, m->err));
        from = ids.data;
        *count = (int64_t)ids.len;
    }
    *out = malloc((size_t)*count * sizeof **out + 1);
    if (*out != NULL && *count > 0) memcpy(*out, from, (size_t)*count * sizeof **out);
    weft__ids_free(&ids);
    return *out != NULL ? WEFT_OK : weft__fail_oom(m->err, (size_t)*count * 4, "a prompt");
}

static weft_status add_request(struct maker *m, const struct prompt *p)
{
    struct weft__bench_request *r = &m->data->request[m->data->count];
    *r = (struct weft__bench_request){
        .prompt_len = p->prompt_len, .output_len = p->output_len, .then = -1};
    weft__buf_init(&r->text, WEFT__BENCH_MAX_ANSWER);
    if (m->o->dir != NULL)
        WEFT__TRY(copy_ids(m, p, WEFT__ADD_SPECIAL, &r->ids, &r->id_count));
    else
        WEFT__TRY(set_body(m, p, r));
    m->data->count++;
    return WEFT_OK;
}

static weft_status count_tokens(struct maker *m, const char *text, size_t len, int64_t *out)
{
    struct weft__ids ids = {0};
    weft_status status = WEFT_OK;
    *out = -1;
    if (m->o->tok == NULL) return WEFT_OK;
    status = weft__tokenizer_encode(m->o->tok, text, len, WEFT__ADD_SPECIAL, &ids, m->err);
    if (status == WEFT_OK) *out = (int64_t)ids.len;
    weft__ids_free(&ids);
    return status;
}

/* ---- random-ids ---- */

/* [low, high] of a length by the rule (docs/BENCH.md, Lengths). */
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
    int64_t size = m->o->vocab > 0 ? m->o->vocab : weft__tokenizer_size(m->o->tok);
    bool skip_special = m->o->tok != NULL && m->o->range_rules == WEFT__RULES_VLLM;
    int32_t *id = malloc((size_t)size * sizeof *id);
    if (id == NULL) return weft__fail_oom(m->err, (size_t)size * sizeof *id, "the vocabulary");
    if (m->o->vocab == 0 && !skip_special)
        for (int64_t i = size / 2; i < size; i++) /* added tokens follow the others */
            if (weft__token_is_special(m->o->tok, (int32_t)i)) size = i;
    *count = 0;
    for (int64_t i = 0; i < size; i++)
        if (!skip_special || (weft__token_bytes(m->o->tok, (int32_t)i).data != NULL &&
                              !weft__token_is_special(m->o->tok, (int32_t)i)))
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
    weft__tokenizer_decode(m->o->tok, ids, (size_t)count, false, &text);
    if (!text.failed && m->o->range_rules == WEFT__RULES_VLLM) {
        status = weft__tokenizer_encode(m->o->tok, text.data, text.len, 0, &again, m->err);
        p.prompt_len = weft__min(count, (int64_t)again.len);
        text.len = 0;
        if (status == WEFT_OK)
            weft__tokenizer_decode(m->o->tok, again.data, (size_t)p.prompt_len, false, &text);
    }
    if (status == WEFT_OK && text.failed) status = weft__fail_oom(m->err, text.len, "a prompt");
    p.text = text.data != NULL ? text.data : "";
    p.len = text.len;
    if (status == WEFT_OK) status = add_request(m, &p);
    weft__ids_free(&again);
    weft__buf_free(&text);
    return status;
}

/* As ids, or as the text they stand for. */
static weft_status add_ids(struct maker *m, const int32_t *ids, int64_t count, int64_t output_len)
{
    const struct prompt p = {
        .ids = ids, .count = count, .prompt_len = count, .output_len = output_len};
    bool as_ids = m->o->tok == NULL || m->o->send_ids || m->o->dir != NULL;
    return as_ids ? add_request(m, &p) : add_decoded(m, ids, count, output_len);
}

/* Of ids, which text or at least the number of ids is needed for. */
static weft_status check_ids(const struct weft__bench_options *o, bool tokenizer, weft_error *err)
{
    const char *set = weft__bench_datasets[o->dataset];
    if (!tokenizer && o->vocab == 0)
        return weft__fail(err, WEFT_INVALID,
                          "%s needs --tokenizer MODEL, or --vocab N to send ids below N", set);
    if (!tokenizer && o->api == WEFT__API_CHAT && o->dir == NULL)
        return weft__fail(err, WEFT_INVALID, "%s needs --tokenizer MODEL for chat", set);
    return WEFT_OK;
}

static weft_status check_extra(const char *text, weft_error *err)
{
    json_error_t error = {0};
    json_t *object = text != NULL ? json_loads(text, 0, &error) : NULL;
    bool good = text == NULL || json_is_object(object);
    json_decref(object);
    if (good) return WEFT_OK;
    return weft__fail(err, WEFT_INVALID, "--extra-request-body: a JSON object is wanted%s%.100s",
                      error.text[0] != '\0' ? ": " : "", error.text);
}

weft_status weft__bench_data_check(const struct weft__bench_options *o, bool tokenizer,
                                   weft_error *err)
{
    bool file = o->dataset != WEFT__DATASET_RANDOM_IDS && o->dataset != WEFT__DATASET_TURNS;
    WEFT__TRY(check_extra(o->extra_body, err));
    if (file && o->dataset_path == NULL)
        return weft__fail(err, WEFT_INVALID, "--dataset-name %s needs --dataset-path FILE",
                          weft__bench_datasets[o->dataset]);
    switch (o->dataset) {
    case WEFT__DATASET_RANDOM_IDS:
    case WEFT__DATASET_TRACE:
        return check_ids(o, tokenizer, err);
    case WEFT__DATASET_TURNS:
        if (!tokenizer && o->dir == NULL)
            return weft__fail(err, WEFT_INVALID,
                              "multi-turn needs --tokenizer MODEL: turns are text");
        if (o->prompts >= o->turns) return WEFT_OK;
        return weft__fail(err, WEFT_INVALID,
                          "--num-prompts %lld is less than one conversation of --turns %lld",
                          (long long)o->prompts, (long long)o->turns);
    case WEFT__DATASET_SHAREGPT:
        if (tokenizer || o->output_len != 0) return WEFT_OK;
        return weft__fail(err, WEFT_INVALID,
                          "sharegpt needs --tokenizer MODEL to measure its answers, or "
                          "--random-output-len N");
    case WEFT__DATASET_RANDOM:
        if (tokenizer) return WEFT_OK;
        return weft__fail(err, WEFT_INVALID,
                          "random repeats text by tokens: it needs --tokenizer MODEL");
    default:
        return WEFT_OK;
    }
}

/* Lengths of `count` prompts, then of as many answers; caller frees. */
static weft_status draw_lengths(struct maker *m, int64_t count, bool special, int64_t **out)
{
    const struct weft__bench_options *o = m->o;
    int64_t low, high, added = 0;
    int64_t *len = calloc((size_t)count + 1, 2 * sizeof *len);
    if (len == NULL) return weft__fail_oom(m->err, (size_t)count * 16, "lengths");
    /* What the server's tokenizer adds to a text counts. */
    weft_status status = special && m->o->tok != NULL && !o->send_ids && o->dir == NULL
                             ? count_tokens(m, "", 0, &added)
                             : WEFT_OK;
    range_of(o, o->input_len, &low, &high);
    for (int64_t i = 0; i < count; i++)
        len[i] = weft__max(weft__mt_range(&m->numpy, low, high + 1) - added, 1);
    range_of(o, o->output_len, &low, &high);
    for (int64_t i = 0; i < count; i++) len[count + i] = weft__mt_range(&m->numpy, low, high + 1);
    *out = len;
    if (status != WEFT_OK) free(len);
    return status;
}

static int64_t most_of(const int64_t *len, int64_t count)
{
    int64_t most = 1;
    for (int64_t i = 0; i < count; i++) most = weft__max(most, len[i]);
    return most;
}

static weft_status make_random_ids(struct maker *m)
{
    int64_t vocab = 0, n = m->o->prompts, *len = NULL;
    int32_t *id = NULL, *prompt = NULL;
    int64_t *offset = malloc((size_t)n * sizeof *offset);
    weft_status status = draw_lengths(m, n, true, &len);
    if (status == WEFT_OK) status = make_vocab(m, &id, &vocab);
    if (status == WEFT_OK) prompt = malloc((size_t)most_of(len, n) * sizeof *prompt);
    if (status == WEFT_OK && (prompt == NULL || offset == NULL))
        status = weft__fail_oom(m->err, (size_t)n * sizeof *offset, "prompts");
    for (int64_t i = 0; status == WEFT_OK && i < n; i++)
        offset[i] = weft__mt_range(&m->numpy, 0, vocab);
    for (int64_t i = 0; status == WEFT_OK && i < n; i++) {
        for (int64_t j = 0; j < len[i]; j++) prompt[j] = id[(offset[i] + i + j) % vocab];
        status = add_ids(m, prompt, len[i], len[n + i]);
    }
    free(offset);
    free(prompt);
    free(id);
    free(len);
    return status;
}

/* ---- conversations of several turns, with shared beginnings ---- */

/* Turn t of a conversation: what the user adds. The first has its group's prefix before it. */
static weft_status add_turn(struct maker *m, const int32_t *ids, int64_t count, int64_t output_len,
                            const struct weft__bench_request *last)
{
    struct weft__bench_request *r = &m->data->request[m->data->count];
    if (last == NULL) return add_ids(m, ids, count, output_len);
    *r = (struct weft__bench_request){.later = true,
                                      .then = -1,
                                      .prompt_len = last->prompt_len + last->output_len + count,
                                      .output_len = output_len};
    weft__buf_init(&r->text, WEFT__BENCH_MAX_ANSWER);
    m->data->count++;
    if (m->o->dir != NULL) {
        const struct prompt p = {.ids = ids, .count = count};
        return copy_ids(m, &p, 0, &r->say_ids, &r->say_count);
    }
    struct weft__buf text;
    weft__buf_init(&text, WEFT__MAX_TEXT);
    weft__tokenizer_decode(m->o->tok, ids, (size_t)count, false, &text);
    r->say = text.failed ? NULL : strndup(text.data != NULL ? text.data : "", text.len);
    weft__buf_free(&text);
    return r->say != NULL ? WEFT_OK : weft__fail_oom(m->err, (size_t)count, "a turn");
}

/* Prefixes and turns count upwards from random ids, as random-ids do. First turns stand first. */
static weft_status make_turns(struct maker *m)
{
    const struct weft__bench_options *o = m->o;
    int64_t talks = o->prompts / o->turns, n = talks * o->turns, vocab = 0, *len = NULL;
    int32_t *id = NULL, *prompt = NULL;
    weft_status status = draw_lengths(m, n, false, &len);
    if (status == WEFT_OK) status = make_vocab(m, &id, &vocab);
    int64_t *offset = calloc((size_t)o->prefix_groups, sizeof *offset);
    if (status == WEFT_OK)
        prompt = malloc((size_t)(o->prefix_len + most_of(len, n)) * sizeof *prompt);
    if (status == WEFT_OK && (prompt == NULL || offset == NULL))
        status = weft__fail_oom(m->err, (size_t)o->prefix_len * sizeof *prompt, "a prefix");
    for (int64_t g = 0; status == WEFT_OK && g < o->prefix_groups; g++)
        offset[g] = weft__mt_range(&m->numpy, 0, vocab);
    for (int64_t i = 0; status == WEFT_OK && i < n; i++) {
        int64_t start = weft__mt_range(&m->numpy, 0, vocab), at = 0;
        struct weft__bench_request *last = i < talks ? NULL : &m->data->request[i - talks];
        for (; last == NULL && at < o->prefix_len; at++)
            prompt[at] = id[(offset[i % o->prefix_groups] + at) % vocab];
        for (int64_t j = 0; j < len[i]; j++) prompt[at + j] = id[(start + i + j) % vocab];
        status = add_turn(m, prompt, at + len[i], len[n + i], last);
        if (last != NULL) last->then = i;
    }
    free(offset);
    free(prompt);
    free(id);
    free(len);
    return status;
}

/* The value of `key`, with more text at its end. */
static bool extend(json_t *body, const char *key, const char *answer, size_t len, const char *say)
{
    struct weft__buf text;
    const json_t *old = json_object_get(body, key);
    weft__buf_init(&text, WEFT__MAX_TEXT);
    weft__buf_append(&text, json_string_value(old), json_string_length(old));
    weft__buf_append(&text, answer, len);
    weft__buf_puts(&text, say);
    bool good =
        !text.failed && json_object_set_new(body, key, json_stringn(text.data, text.len)) == 0;
    weft__buf_free(&text);
    return good;
}

static bool next_body(const struct weft__bench_options *o, const struct weft__bench_request *last,
                      struct weft__bench_request *next)
{
    const char *answer = last->text.data != NULL ? last->text.data : "";
    json_t *body = json_loadb(last->body, last->body_len, 0, NULL);
    json_t *messages = json_object_get(body, "messages");
    bool good = body != NULL && !last->text.failed;
    if (good && o->api == WEFT__API_CHAT)
        good = json_array_append_new(messages, json_pack("{s:s, s:s%}", "role", "assistant",
                                                         "content", answer, last->text.len)) == 0 &&
               json_array_append_new(
                   messages, json_pack("{s:s, s:s}", "role", "user", "content", next->say)) == 0;
    else if (good)
        good = extend(body, o->api == WEFT__API_GENERATE ? "text" : "prompt", answer,
                      last->text.len, next->say);
    if (good) weft__bench_set_tokens(o, body, next->output_len);
    next->body = good ? json_dumps(body, JSON_COMPACT) : NULL;
    next->body_len = next->body != NULL ? strlen(next->body) : 0;
    json_decref(body);
    return next->body != NULL;
}

bool weft__bench_next_turn(const struct weft__bench_options *o,
                           const struct weft__bench_request *last, struct weft__bench_request *next)
{
    if (o->dir == NULL) return next_body(o, last, next);
    size_t before = (size_t)last->id_count, answer = (size_t)last->events;
    size_t said = (size_t)next->say_count;
    next->ids = malloc((before + answer + said) * sizeof *next->ids);
    if (next->ids == NULL) return false;
    memcpy(next->ids, last->ids, before * sizeof *next->ids);
    memcpy(next->ids + before, last->out, answer * sizeof *next->ids);
    memcpy(next->ids + before + answer, next->say_ids, said * sizeof *next->ids);
    next->id_count = (int64_t)(before + answer + said);
    return true;
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

bool weft__next_line(const char **at, const char *end, const char **line, size_t *len)
{
    while (*at < end) {
        const char *newline = memchr(*at, '\n', (size_t)(end - *at));
        const char *stop = newline != NULL ? newline : end;
        *line = *at;
        *at = stop + (newline != NULL);
        if (stop > *line && stop[-1] == '\r') stop--;
        *len = (size_t)(stop - *line);
        if (*len > 0) return true;
    }
    return false;
}

/* Every line is a prompt; of a .jsonl file, an object. Too few are asked again from the top. */
static weft_status make_lines(struct maker *m, const char *text, size_t len)
{
    const char *path = m->o->dataset_path, *dot = strrchr(path, '.'), *end = text + len;
    bool objects = dot != NULL && strcasecmp(dot, ".jsonl") == 0;
    weft_status status = WEFT_OK;
    const char *line;
    size_t size;
    for (bool first = true; m->data->count < m->o->prompts && (first || m->data->count > 0);
         first = false)
        for (const char *at = text;
             m->data->count < m->o->prompts && weft__next_line(&at, end, &line, &size);) {
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

/* SGLang's random: the ids of a first turn, repeated or cut to the length. */
static weft_status add_repeated(struct maker *m, const char *text, size_t len, int64_t count,
                                int64_t output_len)
{
    struct weft__ids ids = {0};
    int32_t *prompt = malloc((size_t)count * sizeof *prompt);
    weft_status status = prompt != NULL ? weft__tokenizer_encode(m->o->tok, text, len,
                                                                 WEFT__ADD_SPECIAL, &ids, m->err)
                                        : weft__fail_oom(m->err, (size_t)count * 4, "a prompt");
    for (int64_t j = 0; status == WEFT_OK && ids.len > 0 && j < count; j++)
        prompt[j] = ids.data[(size_t)j % ids.len];
    if (status == WEFT_OK && ids.len > 0) status = add_ids(m, prompt, count, output_len);
    weft__ids_free(&ids);
    free(prompt);
    return status;
}

/* len: lengths for sglang's random, NULL: the conversation's own. */
static weft_status add_conversation(struct maker *m, const json_t *entry, const int64_t *len)
{
    json_t *turn[2];
    int64_t output = m->o->output_len;
    (void)turns_of(entry, turn);
    if (len != NULL)
        return add_repeated(m, json_string_value(turn[0]), json_string_length(turn[0]),
                            len[m->data->count], len[m->o->prompts + m->data->count]);
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
    int64_t *lens = NULL;
    if (m->o->dataset == WEFT__DATASET_RANDOM)
        WEFT__TRY(draw_lengths(m, m->o->prompts, false, &lens));
    weft_status status = WEFT_OK;
    json_t *all = json_loadb(text, len, 0, &error);
    if (!json_is_array(all)) {
        json_decref(all);
        free(lens);
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
        int64_t j = weft__mt_python_below(&m->python, (uint32_t)i + 1);
        const json_t *swap = entry[i];
        entry[i] = entry[j];
        entry[j] = swap;
    }
    for (size_t i = 0; status == WEFT_OK && i < count && m->data->count < m->o->prompts; i++)
        status = add_conversation(m, entry[i], lens);
    if (status == WEFT_OK && m->data->count == 0)
        status =
            weft__fail(m->err, WEFT_FORMAT,
                       "%.200s holds no conversation that can be used (%lld without two "
                       "turns, %lld too short or too long)",
                       m->o->dataset_path, (long long)m->data->broken, (long long)m->data->dropped);
    free(lens);
    free(entry);
    json_decref(all);
    return status;
}

/* ---- traces ---- */

enum { TRACE_BLOCK = 512, TRACE_MOST = 1 << 24 };

/* {"timestamp": MS, "input_length": N, "output_length": N, "hash_ids": [...]}, as Mooncake's traces
 * have it: a hash id stands for 512 tokens, the same ones wherever it stands. */
static bool add_traced(struct maker *m, const json_t *line, const int32_t *id, int64_t vocab,
                       double *first_ms, weft_status *status)
{
    const json_t *at = json_object_get(line, "timestamp"),
                 *hashes = json_object_get(line, "hash_ids");
    json_int_t in = json_integer_value(json_object_get(line, "input_length"));
    json_int_t out = json_integer_value(json_object_get(line, "output_length"));
    double ms = json_number_value(at), due = (ms - *first_ms) * m->o->slowdown * 1e6;
    int64_t n = m->data->count;
    if (!json_is_number(at) || in < 1 || in > TRACE_MOST || out < 1 || out > TRACE_MOST)
        return false;
    if (n == 0) *first_ms = ms, due = 0;
    if (due > 1e18 || due < (n > 0 ? (double)m->data->request[n - 1].at_ns : 0)) return false;
    int32_t *prompt = malloc((size_t)in * sizeof *prompt);
    int64_t start = weft__mt_range(&m->numpy, 0, vocab) + n;
    for (json_int_t j = 0; prompt != NULL && j < in; j++) {
        const json_t *hash = json_array_get(hashes, (size_t)(j / TRACE_BLOCK));
        uint64_t block = (uint64_t)json_integer_value(hash) * 0x9e3779b97f4a7c15u;
        prompt[j] = json_is_integer(hash)
                        ? id[((block >> 32) + (uint64_t)(j % TRACE_BLOCK)) % (uint64_t)vocab]
                        : id[(start + j) % vocab];
    }
    *status = prompt != NULL ? add_ids(m, prompt, in, out)
                             : weft__fail_oom(m->err, (size_t)in * 4, "a prompt");
    if (*status == WEFT_OK) m->data->request[n].at_ns = (uint64_t)due;
    free(prompt);
    return true;
}

static weft_status make_trace(struct maker *m, const char *text, size_t len)
{
    int64_t vocab;
    int32_t *id;
    const char *at = text, *end = text + len, *line;
    size_t size;
    double first_ms = 0;
    WEFT__TRY(make_vocab(m, &id, &vocab));
    weft_status status = WEFT_OK;
    while (status == WEFT_OK && m->data->count < m->o->prompts &&
           weft__next_line(&at, end, &line, &size)) {
        json_t *object = json_loadb(line, size, 0, NULL);
        m->data->broken += !add_traced(m, object, id, vocab, &first_ms, &status);
        json_decref(object);
    }
    free(id);
    if (status == WEFT_OK && m->data->count == 0)
        status = weft__fail(m->err, WEFT_FORMAT,
                            "%.200s holds no {\"timestamp\": MS, \"input_length\": N, "
                            "\"output_length\": N} (%lld broken lines)",
                            m->o->dataset_path, (long long)m->data->broken);
    return status;
}

static weft_status make_file(struct maker *m)
{
    struct weft__buf text;
    int64_t set = m->o->dataset;
    weft__buf_init(&text, WEFT__BENCH_MAX_FILE);
    weft_status status = weft__read_input(m->o->dataset_path, &text, m->err);
    if (status == WEFT_OK)
        status = set == WEFT__DATASET_PROMPTS ? make_lines(m, text.data, text.len)
                 : set == WEFT__DATASET_TRACE ? make_trace(m, text.data, text.len)
                                              : make_sharegpt(m, text.data, text.len);
    weft__buf_free(&text);
    return status;
}

/* ---- arrivals ---- */

/* SGLang: send, then wait. vLLM: wait, then send, and all waits scaled so that the last request is
 * due at count / rate. Times are absolute, so that a late dispatch does not delay the others. */
void weft__bench_set_arrivals(const struct weft__bench_options *o, struct weft__bench_data *data)
{
    struct weft__mt mt = data->mt;
    bool vllm = o->rules == WEFT__RULES_VLLM;
    int64_t count = data->count;
    if (isinf(o->rate)) return;                             /* all at once, or when a trace says */
    if (vllm) weft__mt_seed(&mt, (uint32_t)o->seed);        /* its prompts use another generator */
    double at = 0, scale = 1e9 / (o->rate * o->burstiness); /* ns */
    for (int64_t i = 0; i < count; i++) {
        double gap = weft__mt_gamma(&mt, o->burstiness) * scale;
        data->request[i].at_ns = (uint64_t)(vllm ? at + gap : at);
        at += gap;
    }
    double factor = vllm && at > 0 ? (double)count / o->rate * 1e9 / at : 1;
    for (int64_t i = 0; i < count; i++)
        data->request[i].at_ns = (uint64_t)((double)data->request[i].at_ns * factor);
}

weft_status weft__bench_data_make(const struct weft__bench_options *o, struct weft__bench_data *out,
                                  weft_error *err)
{
    WEFT__TRY(weft__bench_data_check(o, o->tok != NULL, err));
    struct weft__bench_data data = {.request = calloc((size_t)o->prompts, sizeof *data.request)};
    struct maker m = {.o = o, .data = &data, .err = err};
    if (data.request == NULL)
        return weft__fail_oom(err, (size_t)o->prompts * sizeof *data.request, "requests");
    weft__mt_seed(&m.numpy, (uint32_t)o->seed);
    weft__mt_seed_python(&m.python, (uint32_t)o->seed);
    if (o->extra_body != NULL) m.extra = json_loads(o->extra_body, 0, NULL);
    weft_status status = o->dataset == WEFT__DATASET_RANDOM_IDS ? make_random_ids(&m)
                         : o->dataset == WEFT__DATASET_TURNS    ? make_turns(&m)
                                                                : make_file(&m);
    json_decref(m.extra);
    if (status == WEFT_OK) {
        data.mt = m.numpy;
        weft__bench_set_arrivals(o, &data);
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
        r->text.failed = false;
        r->end = WEFT__END_OK;
        r->error[0] = '\0';
        if (!r->later) continue;
        free(r->body);
        free(r->ids);
        r->body = NULL;
        r->ids = NULL;
    }
}

void weft__bench_data_free(struct weft__bench_data *data)
{
    for (int64_t i = 0; i < data->count; i++) {
        struct weft__bench_request *r = &data->request[i];
        free(r->body);
        free(r->ids);
        free(r->say);
        free(r->say_ids);
        free(r->event);
        free(r->out);
        weft__buf_free(&r->text);
    }
    free(data->request);
    *data = (struct weft__bench_data){0};
}
