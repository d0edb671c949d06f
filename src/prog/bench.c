/* weft bench: its options, the runs, and the table of its parts. */
#include <curl/curl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "token/token.h"

enum { WARMUP_TOKENS = 32, DEFAULT_REQUESTS = 1000 };

/* ---- options ---- */

static bool parse_line(struct weft__bench_options *o, const struct weft__option *options, int argc,
                       char **argv, int *status)
{
    struct weft__command_line line = {
        .command = "bench",
        .synopsis = "URL",
        .about = "Loads an OpenAI-compatible server or /generate and measures its streams.\n"
                 "Also: weft bench diagnose FILE, weft bench compare A.json B.json.",
        .options = options,
        .arguments_min = 1,
        .arguments_max = 1,
    };
    if (!weft__command_line_parse(&line, argc, argv, status)) return false;
    o->url = line.argument[0];
    return true;
}

static bool parse(struct weft__bench_options *o, int argc, char **argv, int *status)
{
    const struct weft__option options[] = {
        {WEFT__OPTION_STRING, "endpoint", &o->endpoint, 0, 0, "API",
         "completions, chat or generate (by the URL, else completions)"},
        {WEFT__OPTION_STRING, "model", &o->model, 0, 0, "ID", "asked of the server (its first)"},
        {WEFT__OPTION_STRING, "tokenizer", &o->tokenizer, 0, 0, "MODEL",
         "model directory or tokenizer.json, to make and count text"},
        {WEFT__OPTION_STRING, "dataset-name", &o->dataset, 0, 0, "NAME",
         "random-ids, prompts or sharegpt (random-ids)"},
        {WEFT__OPTION_STRING, "dataset-path", &o->dataset_path, 0, 0, "FILE",
         "lines or .jsonl of prompts, or JSON of ShareGPT"},
        {WEFT__OPTION_INT, "num-prompts", &o->prompts, 1, WEFT__BENCH_MAX_REQUESTS, "N",
         "requests (1000)"},
        {WEFT__OPTION_INT, "random-input-len", &o->input_len, 1, 1 << 24, "N",
         "tokens of a random prompt (1024)"},
        {WEFT__OPTION_INT, "random-output-len", &o->output_len, 1, 1 << 24, "N",
         "tokens of an answer, of any dataset (1024; vllm: 128)"},
        {WEFT__OPTION_DOUBLE, "random-range-ratio", &o->range_ratio, 0, 1, "R",
         "how lengths vary (0)"},
        {WEFT__OPTION_STRING, "range-ratio-mode", &o->ratio_mode, 0, 0, "RULE",
         "sglang: from R of the length to all of it; vllm: 1-R to 1+R (--format's)"},
        {WEFT__OPTION_INT, "vocab", &o->vocab, 1, 1 << 24, "N",
         "random ids below N (the tokenizer's)"},
        {WEFT__OPTION_FLAG, "tokenize-prompt", &o->send_ids, 0, 0, NULL, "send ids, not text"},
        {WEFT__OPTION_INT, "sharegpt-context-len", &o->context_len, 1, 1 << 24, "N",
         "leave out conversations that are longer"},
        {WEFT__OPTION_DOUBLE, "request-rate", &o->rate, 1e-3, INFINITY, "R",
         "requests a second (inf: all at once)"},
        {WEFT__OPTION_DOUBLE, "burstiness", &o->burstiness, 1e-2, 1e4, "B",
         "1: Poisson; below: bursts; above: regular (1)"},
        {WEFT__OPTION_INT, "max-concurrency", &o->concurrency, 1, 65536, "N",
         "requests running at once (any)"},
        {WEFT__OPTION_INT, "warmup-requests", &o->warmup, 0, 65536, "N",
         "before the clock starts (1)"},
        {WEFT__OPTION_INT, "seed", &o->seed, 0, UINT32_MAX, "N",
         "of data and arrivals (42; vllm: 0)"},
        {WEFT__OPTION_INT, "repeats", &o->repeats, 1, 1000, "N", "runs, for `bench compare` (1)"},
        {WEFT__OPTION_FLAG, "disable-ignore-eos", &o->stop_at_eos, 0, 0, NULL,
         "let answers end before their length"},
        {WEFT__OPTION_DOUBLE, "temperature", &o->temperature, 0, 100, "T", "(0)"},
        {WEFT__OPTION_DOUBLE, "top-p", &o->top_p, 0, 1, "P", "(1)"},
        {WEFT__OPTION_STRING, "extra-request-body", &o->extra_body, 0, 0, "JSON",
         "an object merged into each request; it wins"},
        {WEFT__OPTION_STRING, "header", &o->header, 0, 0, "K=V", "one more header"},
        {WEFT__OPTION_INT, "timeout", &o->timeout_s, 1, 86400, "S", "of a request, seconds (600)"},
        {WEFT__OPTION_STRING, "goodput", &o->goodput, 0, 0, "SLO",
         "ttft:MS,tpot:MS,e2el:MS: count requests within"},
        {WEFT__OPTION_STRING, "format", &o->format, 0, 0, "WHOSE",
         "definitions, table and keys: sglang or vllm (sglang)"},
        {WEFT__OPTION_STRING, "output-file", &o->output_file, 0, 0, "FILE",
         "append the JSON of each run, a line each"},
        {WEFT__OPTION_FLAG, "output-details", &o->details, 0, 0, NULL,
         "with the times of each request in the JSON"},
        {WEFT__OPTION_STRING, "tag", &o->tag, 0, 0, "TEXT", "a word for the JSON"},
        {WEFT__OPTION_FLAG, "json", &o->json, 0, 0, NULL, "JSON instead of the table"},
        {WEFT__OPTION_FLAG, "allow-failures", &o->allow_failures, 0, 0, NULL,
         "exit 0 although requests failed"},
        {WEFT__OPTION_FLAG, "disable-tqdm", &o->no_progress, 0, 0, NULL, "no progress bar"},
        {0},
    };
    return parse_line(o, options, argc, argv, status);
}

/* The index of text among count names, -1: none. */
static int index_of(const char *text, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(text, names[i]) == 0) return i;
    return -1;
}

static bool ends_with(const char *text, const char *tail)
{
    size_t a = strlen(text), b = strlen(tail);
    return a >= b && strcmp(text + a - b, tail) == 0;
}

/* "ttft:200,tpot:50" */
static bool parse_goodput(struct weft__bench_options *o)
{
    static const char *const names[] = {"ttft:", "tpot:", "e2el:"};
    for (const char *at = o->goodput; at != NULL;) {
        char *end = NULL;
        int k = 0;
        while (k < 3 && strncmp(at, names[k], 5) != 0) k++;
        if (k == 3) return false;
        o->goodput_ms[k] = strtod(at + 5, &end);
        if (end == at + 5 || !(o->goodput_ms[k] > 0) || isinf(o->goodput_ms[k])) return false;
        if (*end != '\0' && *end != ',' && *end != ' ') return false;
        at = *end != '\0' ? end + 1 : NULL;
    }
    return true;
}

static int complete(struct weft__bench_options *o)
{
    static const char *const apis[] = {"completions", "chat", "generate"};
    static const char *const rules[] = {"sglang", "vllm"};
    static const char *const sets[] = {"random-ids", "prompts", "sharegpt"};
    int api = ends_with(o->url, "/chat/completions") ? WEFT__API_CHAT
              : ends_with(o->url, "/generate")       ? WEFT__API_GENERATE
                                                     : WEFT__API_COMPLETIONS;
    if (o->endpoint != NULL) api = index_of(o->endpoint, apis, 3);
    int format = index_of(o->format, rules, 2);
    int range = o->ratio_mode != NULL ? index_of(o->ratio_mode, rules, 2) : format;
    if (strncmp(o->url, "http://", 7) != 0 && strncmp(o->url, "https://", 8) != 0)
        return weft__usage("bench", "%.100s: a URL like http://127.0.0.1:8000 is wanted", o->url);
    if (api < 0) return weft__usage("bench", "--endpoint is completions, chat or generate");
    if (format < 0) return weft__usage("bench", "--format is sglang or vllm");
    if (range < 0) return weft__usage("bench", "--range-ratio-mode is sglang or vllm");
    if (index_of(o->dataset, sets, 3) < 0)
        return weft__usage("bench", "--dataset-name is random-ids, prompts or sharegpt; sglang's "
                                    "\"random\" is text of ShareGPT");
    if (range == WEFT__RULES_VLLM && o->range_ratio >= 1)
        return weft__usage("bench", "vllm's rule needs --random-range-ratio below 1");
    if (o->send_ids && api == WEFT__API_CHAT)
        return weft__usage("bench", "--tokenize-prompt: chat takes text only");
    if (!parse_goodput(o))
        return weft__usage("bench", "--goodput %.60s: ttft:MS,tpot:MS,e2el:MS is wanted",
                           o->goodput);
    o->api = (enum weft__bench_api)api;
    o->rules = (enum weft__bench_rules)format;
    o->range_rules = (enum weft__bench_rules)range;
    if (o->seed < 0) o->seed = format == WEFT__RULES_VLLM ? 0 : 42;
    if (o->output_len == 0 && strcmp(o->dataset, "sharegpt") != 0)
        o->output_len = format == WEFT__RULES_VLLM ? 128 : 1024;
    return WEFT__EXIT_OK;
}

/* ---- runs ---- */

/* The first request with a short answer; caller frees. */
static char *short_body(const struct weft__bench_options *o, const char *body)
{
    static const char *const keys[] = {"max_tokens", "max_completion_tokens", "max_new_tokens"};
    json_t *root = json_loads(body, 0, NULL);
    json_t *at = o->api == WEFT__API_GENERATE ? json_object_get(root, "sampling_params") : root;
    json_t *tokens = json_object_get(at, keys[o->api]);
    if (json_integer_value(tokens) > WARMUP_TOKENS)
        (void)json_object_set_new(at, keys[o->api], json_integer(WARMUP_TOKENS));
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

/* A server that answers none of these is not measured. */
static weft_status warm_up(const struct weft__bench_options *o, const struct weft__bench_data *data,
                           weft_error *err)
{
    struct weft__bench_data few = {.request = calloc((size_t)o->warmup + 1, sizeof *few.request)};
    struct weft__bench_run run = {.request = few.request, .count = o->warmup, .only_start = true};
    weft_status status = WEFT_OK;
    for (; few.request != NULL && few.count < o->warmup; few.count++) {
        struct weft__bench_request *r = &few.request[few.count];
        *r = data->request[0];
        r->event = NULL;
        r->events_cap = 0;
        weft__buf_init(&r->text, 0);
        r->body = short_body(o, data->request[0].body);
        r->body_len = r->body != NULL ? strlen(r->body) : 0;
    }
    if (few.request == NULL) return weft__fail_oom(err, sizeof *few.request, "warm-up");
    weft__bench_data_reset(&few);
    if (o->warmup > 0) status = weft__bench_load(o, &run, err);
    for (int64_t i = 0; status == WEFT_OK && i < few.count; i++)
        if (few.request[i].end != WEFT__END_OK && !o->allow_failures)
            status =
                weft__fail(err, WEFT_IO, "warm-up failed: %s; --allow-failures goes on regardless",
                           few.request[i].error);
    weft__bench_data_free(&few);
    return status;
}

static int run_once(const struct weft__bench_options *o, const struct weft__tokenizer *tok,
                    struct weft__bench_data *data, weft_error *err)
{
    struct weft__bench_run run = {.request = data->request,
                                  .count = data->count,
                                  .progress = !o->no_progress && isatty(STDERR_FILENO),
                                  .keep_text = tok != NULL};
    weft__bench_data_reset(data);
    if (weft__bench_load(o, &run, err) != WEFT_OK ||
        weft__bench_print(o, tok, data, &run, err) != WEFT_OK)
        return weft__report("bench", err);
    for (int64_t i = 0; i < data->count; i++)
        if (data->request[i].end != WEFT__END_OK && !o->allow_failures) return WEFT__EXIT_FAILED;
    return fflush(stdout) == 0 && ferror(stdout) == 0 ? WEFT__EXIT_OK : WEFT__EXIT_FAILED;
}

/* DIR/tokenizer.json, or the file itself. */
static weft_status load_tokenizer(const char *path, struct weft__tokenizer **out, weft_error *err)
{
    struct stat info;
    char file[4096];
    bool dir = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    (void)snprintf(file, sizeof file, "%s%s", path, dir ? "/tokenizer.json" : "");
    return weft__tokenizer_load(file, out, err);
}

static int bench_url(struct weft__bench_options *o)
{
    weft_error err;
    char *model = NULL;
    struct weft__tokenizer *tok = NULL;
    struct weft__bench_data data = {0};
    int status = WEFT__EXIT_FAILED;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0)
        return weft__usage("bench", "libcurl does not start");
    if (o->tokenizer != NULL && load_tokenizer(o->tokenizer, &tok, &err) != WEFT_OK) goto failed;
    if (o->model == NULL && o->api != WEFT__API_GENERATE) {
        if (weft__bench_model(o, &model, &err) != WEFT_OK) goto failed;
        o->model = model;
    }
    if (weft__bench_data_make(o, tok, &data, &err) != WEFT_OK) goto failed;
    if (warm_up(o, &data, &err) != WEFT_OK) goto failed;
    status = WEFT__EXIT_OK;
    for (int64_t i = 0; i < o->repeats; i++)
        if (run_once(o, tok, &data, &err) != WEFT__EXIT_OK) status = WEFT__EXIT_FAILED;
    goto done;
failed:
    status = weft__report("bench", &err);
done:
    weft__bench_data_free(&data);
    weft__tokenizer_free(tok);
    free(model);
    curl_global_cleanup();
    return status;
}

int weft__cmd_bench(int argc, char **argv)
{
    struct weft__bench_options o = {.dataset = "random-ids",
                                    .format = "sglang",
                                    .prompts = DEFAULT_REQUESTS,
                                    .input_len = 1024,
                                    .seed = -1,
                                    .rate = INFINITY,
                                    .burstiness = 1,
                                    .warmup = 1,
                                    .timeout_s = 600,
                                    .repeats = 1,
                                    .top_p = 1};
    int status;
    if (argc > 1 && strcmp(argv[1], "diagnose") == 0)
        return weft__bench_diagnose(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "compare") == 0) return weft__bench_compare(argc - 1, argv + 1);
    if (!parse(&o, argc, argv, &status)) return status;
    status = complete(&o);
    return status == WEFT__EXIT_OK ? bench_url(&o) : status;
}
