/* weft bench: its options, the runs and the sweep. */
#include <assert.h>
#include <curl/curl.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "token/token.h"

enum { WARMUP_TOKENS = 32, DEFAULT_REQUESTS = 1000, OPTIONS_MAX = 64 };

static const char dataset_choices[] = /* behind a first bar */
#define X(name, word) "|" word
    WEFT__BENCH_DATASETS(X)
#undef X
    ;

/* Of requests within --goodput, for a load to count as carried. */
static const double GOODPUT_SHARE = 0.9;

/* ---- options ---- */

static bool parse_line(struct weft__bench_options *o, const struct weft__option *options, int argc,
                       char **argv, int *status)
{
    struct weft__command_line line = {
        .command = "bench",
        .synopsis = "URL|MODEL|calibrate|compare|diagnose",
        .about = "Loads an OpenAI-compatible server or /generate, or a model directory in this\n"
                 "process: latencies, throughput, where the time went, power, and a verdict.\n"
                 "Also: weft bench calibrate, weft bench diagnose FILE, weft bench compare A B.",
        .options = options,
        .arguments_min = 1,
        .arguments_max = 1,
    };
    if (!weft__command_line_parse(&line, argc, argv, status)) return false;
    o->url = line.argument[0];
    return true;
}

/* The options that say what is asked; how many. */
static size_t put_data_options(struct weft__bench_options *o, struct weft__option *out)
{
    const struct weft__option options[] = {
        {WEFT__OPTION_CHOICE, "dataset-name", &o->dataset, 0, 0, dataset_choices + 1,
         "(random-ids)"},
        {WEFT__OPTION_STRING, "dataset-path", &o->dataset_path, 0, 0, "FILE",
         "lines or .jsonl of prompts, JSON of ShareGPT, or .jsonl of a trace; -: stdin"},
        {WEFT__OPTION_INT, "num-prompts", &o->prompts, 1, WEFT__BENCH_MAX_REQUESTS, "N",
         "requests (1000)"},
        {WEFT__OPTION_INT, "random-input-len", &o->input_len, 1, 1 << 24, "N",
         "tokens of a random prompt (1024)"},
        {WEFT__OPTION_INT, "random-output-len", &o->output_len, 1, 1 << 24, "N",
         "tokens of an answer, of any dataset (1024; vllm: 128)"},
        {WEFT__OPTION_DOUBLE, "random-range-ratio", &o->range_ratio, 0, 1, "R",
         "how lengths vary (0)"},
        {WEFT__OPTION_CHOICE, "range-ratio-mode", &o->range_rules, 0, 0, "sglang|vllm",
         "sglang: from R of the length to all of it; vllm: 1-R to 1+R (--format's)"},
        {WEFT__OPTION_INT, "vocab", &o->vocab, 1, 1 << 24, "N",
         "random ids below N (the tokenizer's)"},
        {WEFT__OPTION_FLAG, "tokenize-prompt", &o->send_ids, 0, 0, NULL, "send ids, not text"},
        {WEFT__OPTION_INT, "turns", &o->turns, 1, 1000, "N", "of a multi-turn conversation (4)"},
        {WEFT__OPTION_INT, "shared-prefix-len", &o->prefix_len, 0, 1 << 24, "N",
         "tokens before each first turn, the same within a group (256)"},
        {WEFT__OPTION_INT, "shared-prefix-groups", &o->prefix_groups, 1, 1 << 20, "N", "(1)"},
        {WEFT__OPTION_DOUBLE, "trace-slowdown", &o->slowdown, 0, 1e6, "F",
         "times of a trace are multiplied with it (1)"},
        {WEFT__OPTION_INT, "sharegpt-context-len", &o->context_len, 1, 1 << 24, "N",
         "leave out conversations that are longer"},
    };
    memcpy(out, options, sizeof options);
    return WEFT__COUNT(options);
}

static bool parse(struct weft__bench_options *o, int argc, char **argv, int *status)
{
    const struct weft__option rest[] = {
        {WEFT__OPTION_CHOICE, "endpoint", &o->api, 0, 0, "completions|chat|generate",
         "(by the URL, else completions)"},
        {WEFT__OPTION_STRING, "model", &o->model, 0, 0, "ID", "asked of the server (its first)"},
        {WEFT__OPTION_STRING, "tokenizer", &o->tokenizer, 0, 0, "MODEL",
         "model directory or tokenizer.json, to make and count text"},
        {WEFT__OPTION_DOUBLE, "request-rate", &o->rate, 1e-3, INFINITY, "R",
         "requests a second (inf: all at once)"},
        {WEFT__OPTION_DOUBLE, "burstiness", &o->burstiness, 1e-2, 1e4, "B",
         "1: Poisson; below: bursts; above: regular (1)"},
        {WEFT__OPTION_INT, "max-concurrency", &o->concurrency, 1, WEFT__BENCH_MAX_ACTIVE, "N",
         "requests running at once (any)"},
        {WEFT__OPTION_STRING, "sweep", &o->sweep, 0, 0, "WHAT:N,N",
         "a run for each: concurrency:1,4,16 or rate:0.5,1,2"},
        {WEFT__OPTION_INT, "warmup-requests", &o->warmup, 0, 65536, "N",
         "before the clock starts (1)"},
        {WEFT__OPTION_INT, "seed", &o->seed, 0, UINT32_MAX, "N",
         "of data and arrivals (42; vllm: 0)"},
        {WEFT__OPTION_INT, "repeats", &o->repeats, 1, 1000, "N", "runs, for `bench compare` (1)"},
        {WEFT__OPTION_FLAG, "disable-ignore-eos", &o->stop_at_eos, 0, 0, NULL,
         "let answers end before their length"},
        {WEFT__OPTION_DOUBLE, "temperature", &o->temperature, WEFT__TEMPERATURE_RANGE, "T", "(0)"},
        {WEFT__OPTION_DOUBLE, "top-p", &o->top_p, WEFT__TOP_P_RANGE, "P", "(1)"},
        {WEFT__OPTION_STRING, "extra-request-body", &o->extra_body, 0, 0, "JSON",
         "an object merged into each request; it wins"},
        {WEFT__OPTION_STRING, "header", &o->header, 0, 0, "K=V", "one more header"},
        {WEFT__OPTION_INT, "timeout", &o->timeout_s, 1, 86400, "S", "of a request, seconds (600)"},
        {WEFT__OPTION_STRING, "goodput", &o->goodput, 0, 0, "SLO",
         "ttft:MS,tpot:MS,e2el:MS: count requests within"},
        {WEFT__OPTION_STRING, "thresholds", &o->thresholds, 0, 0, "FILE",
         "for the verdict: what `weft bench calibrate` wrote"},
        {WEFT__OPTION_STRING, "powercap", &o->powercap, 0, 0, "DIR",
         "where RAPL is (/sys/class/powercap)"},
        {WEFT__OPTION_STRING, "report", &o->report, 0, 0, "FILE", "write one HTML page"},
        {WEFT__OPTION_CHOICE, "format", &o->rules, 0, 0, "sglang|vllm",
         "whose definitions, table and keys (sglang)"},
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
    const struct weft__option model[] = {WEFT__MODEL_FLAGS(&o->engine_flags)}; /* with MODEL */
    struct weft__option options[OPTIONS_MAX];
    size_t count = put_data_options(o, options);
    assert(count + WEFT__COUNT(model) + WEFT__COUNT(rest) <= OPTIONS_MAX);
    memcpy(options + count, model, sizeof model);
    memcpy(options + count + WEFT__COUNT(model), rest, sizeof rest);
    return parse_line(o, options, argc, argv, status);
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

/* "concurrency:1,4,16" or "rate:0.5,1,2", ascending */
static bool parse_sweep(struct weft__bench_options *o)
{
    o->by_rate = strncmp(o->sweep, "rate:", 5) == 0;
    if (!o->by_rate && strncmp(o->sweep, "concurrency:", 12) != 0) return false;
    for (const char *at = strchr(o->sweep, ':') + 1;; at++) {
        char *end;
        double value = strtod(at, &end);
        bool good = end != at && o->loads < WEFT__SWEEP_MAX && value >= (o->by_rate ? 1e-3 : 1) &&
                    value <= (o->by_rate ? 1e6 : WEFT__BENCH_MAX_ACTIVE) &&
                    (o->by_rate || value == floor(value)) &&
                    (o->loads == 0 || value > o->load_of[o->loads - 1]);
        if (!good || (*end != ',' && *end != '\0')) return false;
        o->load_of[o->loads++] = value;
        if (*end == '\0') return true;
        at = end;
    }
}

static int complete(struct weft__bench_options *o)
{
    struct stat info;
    weft_error err;
    bool is_url = strncmp(o->url, "http://", 7) == 0 || strncmp(o->url, "https://", 8) == 0;
    if (!is_url && stat(o->url, &info) == 0 && S_ISDIR(info.st_mode)) o->dir = o->url;
    if (!is_url && o->dir == NULL)
        return weft__usage("bench",
                           "%.100s: a URL like http://127.0.0.1:8000, a model directory, or one of "
                           "calibrate, compare and diagnose is wanted",
                           o->url);
    if (o->dir != NULL &&
        (o->api >= 0 || o->extra_body != NULL || o->header != NULL || o->tokenizer != NULL))
        return weft__usage("bench",
                           "--endpoint, --extra-request-body, --header and --tokenizer are "
                           "for a URL: a model has its own tokenizer");
    const struct weft__engine_flags *f = &o->engine_flags;
    if (o->dir == NULL && (f->ranks | f->threads | f->context | f->kv_tokens | f->chunk |
                           f->activations | f->rank_kind | f->portable) != 0)
        return weft__usage("bench", "--tp, --ranks, --threads, --context, --kv-tokens, --chunk, "
                                    "--activations and --portable are for a model directory: a "
                                    "server has its own");
    if (o->api < 0)
        o->api = ends_with(o->url, "/chat/completions") ? WEFT__API_CHAT
                 : ends_with(o->url, "/generate")       ? WEFT__API_GENERATE
                                                        : WEFT__API_COMPLETIONS;
    if (o->range_rules < 0) o->range_rules = o->rules;
    if (o->range_rules == WEFT__RULES_VLLM && o->range_ratio >= 1)
        return weft__usage("bench", "vllm's rule needs --random-range-ratio below 1");
    if (o->send_ids && o->api == WEFT__API_CHAT)
        return weft__usage("bench", "--tokenize-prompt: chat takes text only");
    if (o->header != NULL && strpbrk(o->header, "=:") == NULL)
        return weft__usage("bench", "--header %.100s: K=V is wanted", o->header);
    if (!parse_goodput(o))
        return weft__usage("bench", "--goodput %.60s: ttft:MS,tpot:MS,e2el:MS is wanted",
                           o->goodput);
    if (o->sweep != NULL && !parse_sweep(o))
        return weft__usage("bench",
                           "--sweep %.60s: concurrency:1,4,16 or rate:0.5,1,2 is wanted, ascending",
                           o->sweep);
    if (o->dataset == WEFT__DATASET_TRACE && (isfinite(o->rate) || o->by_rate))
        return weft__usage("bench", "a trace has its own times: there is no rate to set; "
                                    "--trace-slowdown F stretches them");
    if (o->seed < 0) o->seed = o->rules == WEFT__RULES_VLLM ? 0 : 42;
    if (o->output_len == 0 && o->dataset != WEFT__DATASET_SHAREGPT)
        o->output_len = o->rules == WEFT__RULES_VLLM ? 128 : 1024;
    if (weft__bench_data_check(o, o->dir != NULL || o->tokenizer != NULL, &err) != WEFT_OK)
        return weft__usage("bench", "%s", err.text);
    return WEFT__EXIT_OK;
}

/* ---- runs ---- */

/* A body with a short answer; caller frees. */
static char *short_body(const struct weft__bench_options *o, const char *body)
{
    json_t *root = json_loads(body, 0, NULL);
    weft__bench_set_tokens(o, root, WARMUP_TOKENS);
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

static weft_status load(const struct weft__bench_options *o, struct weft__bench_run *run,
                        weft_error *err)
{
    return o->engine != NULL ? weft__bench_load_engine(o, run, err) : weft__bench_load(o, run, err);
}

/* The first request, with a short answer. */
static bool copy_first(const struct weft__bench_options *o, const struct weft__bench_request *first,
                       struct weft__bench_request *r)
{
    *r = (struct weft__bench_request){.then = -1,
                                      .prompt_len = first->prompt_len,
                                      .output_len = weft__min(first->output_len, WARMUP_TOKENS),
                                      .id_count = first->id_count};
    weft__buf_init(&r->text, WEFT__BENCH_MAX_ANSWER);
    if (first->ids != NULL) {
        size_t bytes = (size_t)first->id_count * sizeof *r->ids;
        r->ids = malloc(bytes + 1);
        if (r->ids != NULL) memcpy(r->ids, first->ids, bytes);
        return r->ids != NULL;
    }
    r->body = first->output_len > WARMUP_TOKENS ? short_body(o, first->body) : strdup(first->body);
    r->body_len = r->body != NULL ? strlen(r->body) : 0;
    return r->body != NULL;
}

/* A server that answers none of these is not measured. */
static weft_status warm_up(const struct weft__bench_options *o, const struct weft__bench_data *data,
                           weft_error *err)
{
    struct weft__bench_data few = {.request = calloc((size_t)o->warmup + 1, sizeof *few.request)};
    struct weft__bench_run run = {.data = &few, .only_start = true};
    weft_status status = WEFT_OK;
    if (few.request == NULL) return weft__fail_oom(err, sizeof *few.request, "warm-up");
    while (status == WEFT_OK && few.count < o->warmup)
        if (!copy_first(o, &data->request[0], &few.request[few.count++]))
            status = weft__fail_oom(err, (size_t)data->request[0].body_len, "warm-up");
    weft__bench_data_reset(&few);
    if (status == WEFT_OK && o->warmup > 0) status = load(o, &run, err);
    for (int64_t i = 0; status == WEFT_OK && i < few.count; i++)
        if (few.request[i].end != WEFT__END_OK && !o->allow_failures)
            status =
                weft__fail(err, WEFT_IO, "warm-up failed: %s; --allow-failures goes on regardless",
                           few.request[i].error);
    weft__bench_data_free(&few);
    return status;
}

/* What the runs of this command share. */
struct bench {
    struct weft__bench_options *o;
    struct weft__tokenizer *tok; /* of a server */
    struct weft__power *power;   /* NULL: the server is elsewhere */
    struct weft__profiles profiles;
    json_t *runs; /* the objects that were printed */
    char *model;
};

/* Failed requests are no failure of the run: *failures tells. */
static weft_status run_once(struct bench *b, struct weft__bench_data *data, bool *failures,
                            weft_error *err)
{
    const struct weft__bench_options *o = b->o;
    struct weft__bench_run run = {.data = data,
                                  .progress = !o->no_progress && isatty(STDERR_FILENO)};
    json_t *object = NULL;
    weft__bench_data_reset(data);
    WEFT__TRY(weft__watch_start(o, b->power, &run.watch, err));
    weft_status status = load(o, &run, err);
    weft__watch_stop(run.watch);
    if (status == WEFT_OK) status = weft__bench_print(o, &run, &object, err);
    if (object != NULL) (void)json_array_append_new(b->runs, object);
    weft__watch_free(run.watch);
    for (int64_t i = 0; status == WEFT_OK && i < data->count; i++)
        *failures |= data->request[i].end != WEFT__END_OK;
    return status;
}

/* Warm-up and the runs at one load. */
static weft_status run_load(struct bench *b, struct weft__bench_data *data, bool *failures,
                            weft_error *err)
{
    WEFT__TRY(warm_up(b->o, data, err));
    for (int64_t i = 0; i < b->o->repeats; i++) WEFT__TRY(run_once(b, data, failures, err));
    return WEFT_OK;
}

/* ---- sweep ---- */

static double run_number(const json_t *run, const char *key)
{
    return json_number_value(json_object_get(run, key));
}

static double goodput_share(const json_t *run)
{
    return run_number(run, "request_goodput") * run_number(run, "duration") /
           fmax(run_number(run, "num_prompts"), 1);
}

/* Every run at this load met the rule. */
static bool is_carried(const struct bench *b, const char *key, double load_of)
{
    json_t *run;
    size_t i;
    json_array_foreach (b->runs, i, run)
        if (run_number(run, key) == load_of && goodput_share(run) < GOODPUT_SHARE) return false;
    return true;
}

static void print_sweep(const struct bench *b)
{
    bool by_rate = b->o->by_rate;
    const char *key = by_rate ? "request_rate" : "max_concurrency";
    json_t *run;
    size_t i;
    double best = 0;
    (void)printf("\nSweep\n%12s %10s %12s %10s %10s %10s %10s %8s\n", by_rate ? "rate" : "at once",
                 "requests/s", "output tok/s", "TTFT p50", "p99 ms", "TPOT p50", "p99 ms",
                 b->o->goodput != NULL ? "within" : "");
    json_array_foreach (b->runs, i, run) {
        (void)printf("%12g %10.2f %12.2f %10.2f %10.2f %10.2f %10.2f", run_number(run, key),
                     run_number(run, "request_throughput"), run_number(run, "output_throughput"),
                     run_number(run, "median_ttft_ms"), run_number(run, "p99_ttft_ms"),
                     run_number(run, "median_tpot_ms"), run_number(run, "p99_tpot_ms"));
        if (b->o->goodput != NULL) (void)printf(" %6.1f %%", 100 * goodput_share(run));
        (void)putchar('\n');
        if (is_carried(b, key, run_number(run, key))) best = fmax(best, run_number(run, key));
    }
    if (b->o->goodput == NULL) return;
    if (best > 0)
        (void)printf("Carried with %s: %s %g (at least %.0f %% of the requests within)\n",
                     b->o->goodput, by_rate ? "rate" : "concurrency", best, 100 * GOODPUT_SHARE);
    else
        (void)printf("Carried with %s: none of these loads\n", b->o->goodput);
}

static weft_status run_sweep(struct bench *b, struct weft__bench_data *data, bool *failures,
                             weft_error *err)
{
    struct weft__bench_options *o = b->o;
    for (int i = 0; i < o->loads; i++) {
        if (o->by_rate)
            o->rate = o->load_of[i];
        else
            o->concurrency = (int64_t)o->load_of[i];
        weft__bench_set_arrivals(o, data);
        WEFT__TRY(run_load(b, data, failures, err));
    }
    if (!o->json) print_sweep(b);
    return WEFT_OK;
}

static weft_status run_all(struct bench *b, bool *failures, weft_error *err)
{
    struct weft__bench_data data = {0};
    WEFT__TRY(weft__bench_data_make(b->o, &data, err));
    weft_status status =
        b->o->loads > 0 ? run_sweep(b, &data, failures, err) : run_load(b, &data, failures, err);
    weft__bench_data_free(&data);
    return status;
}

/* ---- set-up ---- */

static bool is_local(const char *url)
{
    static const char *const hosts[] = {"127.", "localhost", "[::1]", "0.0.0.0"};
    const char *host = strstr(url, "//") + 2;
    for (size_t i = 0; i < WEFT__COUNT(hosts); i++)
        if (strncmp(host, hosts[i], strlen(hosts[i])) == 0) return true;
    return false;
}

static weft_status open_engine(struct bench *b, weft_error *err)
{
    struct weft__bench_options *o = b->o;
    weft_engine_options options = weft__engine_options_of(&o->engine_flags);
    bool sweep = o->loads > 0 && !o->by_rate;
    int64_t most = sweep ? (int64_t)o->load_of[o->loads - 1] : o->concurrency;
    options.max_running = weft__min(most, o->prompts);
    options.max_queue = WEFT__BENCH_MAX_ACTIVE; /* none is refused */
    WEFT__TRY(weft_engine_open(o->dir, &options, &o->engine, err));
    const struct weft__engine_view *view = weft__engine_view(o->engine);
    weft__warn_unread(view->checkpoint, view->arch);
    o->tok = view->tokenizer;
    if (o->tok == NULL && o->vocab == 0) o->vocab = view->arch->vocab;
    if (o->model == NULL) o->model = o->dir;
    return WEFT_OK;
}

/* Before the run, whose result would be lost. */
static weft_status check_writable(const char *path, weft_error *err)
{
    if (path == NULL) return WEFT_OK;
    FILE *file = fopen(path, "a");
    if (file != NULL && fclose(file) == 0) return WEFT_OK;
    return weft__fail(err, WEFT_IO, "%s: cannot be written: %s", path, strerror(errno));
}

static weft_status open_bench(struct bench *b, weft_error *err)
{
    struct weft__bench_options *o = b->o;
    WEFT__TRY(check_writable(o->report, err));
    WEFT__TRY(check_writable(o->output_file, err));
    if (o->thresholds != NULL) WEFT__TRY(weft__profiles_load(o->thresholds, &b->profiles, err));
    o->profiles = &b->profiles;
    b->runs = json_array();
    if (o->dir != NULL || is_local(o->url))
        WEFT__TRY(weft__power_open(o->powercap, &b->power, err));
    if (o->dir != NULL) return open_engine(b, err);
    if (o->tokenizer != NULL) {
        WEFT__TRY(weft__load_tokenizer(o->tokenizer, &b->tok, err));
        o->tok = b->tok;
    }
    if (o->model == NULL && o->api != WEFT__API_GENERATE) {
        WEFT__TRY(weft__bench_model(o, &b->model, err));
        o->model = b->model;
    }
    return WEFT_OK;
}

static int bench(struct weft__bench_options *o)
{
    weft_error err;
    struct bench b = {.o = o};
    bool failures = false;
    int exit_status = WEFT__EXIT_OK;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0)
        return weft__usage("bench", "libcurl does not start");
    weft_status status = open_bench(&b, &err);
    if (status == WEFT_OK) status = run_all(&b, &failures, &err);
    if (status == WEFT_OK && o->report != NULL)
        status = weft__bench_report(o->report, b.runs, &err);
    if (status != WEFT_OK) exit_status = weft__report("bench", &err);
    if (failures && !o->allow_failures) exit_status = WEFT__EXIT_FAILED;
    json_decref(b.runs);
    weft_engine_close(o->engine);
    weft__power_close(b.power);
    weft__tokenizer_free(b.tok);
    free(b.model);
    curl_global_cleanup();
    return exit_status;
}

int weft__cmd_bench(int argc, char **argv)
{
    struct weft__bench_options o = {.api = -1,
                                    .range_rules = -1,
                                    .prompts = DEFAULT_REQUESTS,
                                    .input_len = 1024,
                                    .seed = -1,
                                    .rate = INFINITY,
                                    .burstiness = 1,
                                    .warmup = 1,
                                    .timeout_s = 600,
                                    .repeats = 1,
                                    .turns = 4,
                                    .prefix_len = 256,
                                    .prefix_groups = 1,
                                    .slowdown = 1,
                                    .powercap = "/sys/class/powercap",
                                    .top_p = 1};
    int status;
    if (argc > 1 && strcmp(argv[1], "calibrate") == 0)
        return weft__bench_calibrate(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "diagnose") == 0)
        return weft__bench_diagnose(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "compare") == 0) return weft__bench_compare(argc - 1, argv + 1);
    if (!parse(&o, argc, argv, &status)) return status;
    status = complete(&o);
    if (status != WEFT__EXIT_OK) return status;
    if (o.dir != NULL && !weft__ranks_start("bench", o.dir, &o.engine_flags, &status))
        return status;
    return bench(&o);
}
