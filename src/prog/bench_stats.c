/* What the times mean: each vendor's definitions, tables and keys. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "token/token.h"

/* key, table name, section by sglang, section by vllm, label of its table */
#define METRICS(X)                                                        \
    X(TTFT, "ttft", "TTFT", "Time to First Token", "Time to First Token") \
    X(TPOT, "tpot", "TPOT", "Time per Output Token (excl. 1st token)",    \
      "Time per Output Token (excl. 1st token)")                          \
    X(ITL, "itl", "ITL", "Inter-Token Latency", "Inter-token Latency")    \
    X(E2E, "e2e_latency", "E2E Latency", "End-to-End Latency", "End-to-end Latency")

enum metric {
#define X(name, key, label, sglang, vllm) name,
    METRICS(X)
#undef X
        METRICS_COUNT
};

static const struct {
    const char *key, *label, *section[WEFT__RULES_COUNT];
} metrics[] = {
#define X(name, key, label, sglang, vllm) {key, label, {sglang, vllm}},
    METRICS(X)
#undef X
};

static const char *const rule_names[] = {"sglang", "vllm"};
static const char *const end_words[] = {
#define X(name, words) words,
    WEFT__BENCH_ENDS(X)
#undef X
};

struct series {
    double *value; /* ms */
    int64_t count, cap;
    bool failed;
};

struct summary {
    double mean, median, std, p90, p95, p99, max;
};

struct result {
    struct summary summary[WEFT__RULES_COUNT][METRICS_COUNT];
    int64_t ends[WEFT__END_COUNT], completed, input, server_input, output[WEFT__RULES_COUNT];
    int64_t *tokens;     /* [count] of each text; NULL: no tokenizer */
    int64_t retokenized; /* their sum */
    int64_t no_usage, other_length, no_text, good, server_input_known;
    double duration_s, e2e_sum_s[WEFT__RULES_COUNT];
    double peak_events, peak_tokens, peak_requests;
    struct summary lag, queue; /* ms: dispatch behind its time; waiting for a slot */
};

/* ---- series ---- */

int weft__compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double weft__percentile(const double *sorted, int64_t count, double percent)
{
    if (count == 0) return 0;
    double at = percent / 100 * (double)(count - 1);
    int64_t low = (int64_t)at, high = weft__min(low + 1, count - 1);
    return sorted[low] + (sorted[high] - sorted[low]) * (at - (double)low);
}

static void push(struct series *s, double value)
{
    if (s->count == s->cap) {
        int64_t cap = s->cap == 0 ? 1024 : 2 * s->cap;
        double *grown = realloc(s->value, (size_t)cap * sizeof *grown);
        if (grown == NULL) {
            s->failed = true;
            return;
        }
        s->value = grown;
        s->cap = cap;
    }
    s->value[s->count++] = value;
}

/* Empties the series. */
static bool summarize(struct series *s, struct summary *out)
{
    double sum = 0, squares = 0, n = (double)s->count;
    bool good = !s->failed;
    *out = (struct summary){0};
    if (s->count > 0) {
        qsort(s->value, (size_t)s->count, sizeof *s->value, weft__compare_doubles);
        for (int64_t i = 0; i < s->count; i++) sum += s->value[i];
        out->mean = sum / n;
        for (int64_t i = 0; i < s->count; i++)
            squares += (s->value[i] - out->mean) * (s->value[i] - out->mean);
        out->std = sqrt(squares / n);
        out->median = weft__percentile(s->value, s->count, 50);
        out->p90 = weft__percentile(s->value, s->count, 90);
        out->p95 = weft__percentile(s->value, s->count, 95);
        out->p99 = weft__percentile(s->value, s->count, 99);
        out->max = s->value[s->count - 1];
    }
    free(s->value);
    *s = (struct series){0};
    return good;
}

static double ms(uint64_t from, uint64_t to) { return to > from ? (double)(to - from) / 1e6 : 0; }

/* ---- one request by one rule ---- */

static bool counts(const struct weft__bench_event *e, enum weft__bench_rules rules)
{
    return rules == WEFT__RULES_VLLM || e->text;
}

static int64_t output_of(const struct result *res, const struct weft__bench_request *r, int64_t i,
                         enum weft__bench_rules rules)
{
    if (r->usage_output >= 0) return r->usage_output;
    if (rules == WEFT__RULES_SGLANG) return r->output_len;
    return res->tokens != NULL ? res->tokens[i] : r->events;
}

/* -1: nothing came that the rule counts. */
static double ttft_of(const struct weft__bench_request *r, enum weft__bench_rules rules)
{
    for (int i = 0; i < r->events; i++)
        if (counts(&r->event[i], rules)) return ms(r->start_ns, r->event[i].ns);
    return -1;
}

static double e2e_of(const struct weft__bench_request *r, enum weft__bench_rules rules)
{
    if (rules == WEFT__RULES_SGLANG) return ms(r->start_ns, r->last_line_ns);
    return ms(r->start_ns, r->event[r->events - 1].ns);
}

/* -1: of a single token. */
static double tpot_of(const struct result *res, const struct weft__bench_request *r, int64_t i,
                      enum weft__bench_rules rules)
{
    int64_t output = output_of(res, r, i, rules);
    double ttft = ttft_of(r, rules);
    return output > 1 && ttft >= 0 ? (e2e_of(r, rules) - ttft) / (double)(output - 1) : -1;
}

/* SGLang's native client spreads a gap over the tokens that came after it, and passes over events
 * without a new one; the others take one sample an event. */
static void push_itls(struct series *s, const struct weft__bench_request *r, bool spread,
                      enum weft__bench_rules rules)
{
    const struct weft__bench_event *last = NULL;
    for (int i = 0; i < r->events; i++) {
        const struct weft__bench_event *e = &r->event[i];
        if (!counts(e, rules)) continue;
        if (last != NULL) {
            bool split = spread && e->tokens >= 0 && last->tokens >= 0;
            int32_t news = split ? e->tokens - last->tokens : 1;
            if (news <= 0) continue;
            for (int32_t k = 0; k < news; k++) push(s, ms(last->ns, e->ns) / news);
        }
        last = e;
    }
}

/* ---- all of them ---- */

static bool take_metric(const struct weft__bench_options *o, const struct weft__bench_data *data,
                        struct result *res, enum metric metric, enum weft__bench_rules rules)
{
    struct series s = {0};
    for (int64_t i = 0; i < data->count; i++) {
        const struct weft__bench_request *r = &data->request[i];
        double value = -1;
        if (r->end != WEFT__END_OK) continue;
        if (metric == TTFT) value = ttft_of(r, rules);
        if (metric == TPOT) value = tpot_of(res, r, i, rules);
        if (metric == E2E) value = e2e_of(r, rules);
        if (metric == E2E) res->e2e_sum_s[rules] += value / 1e3;
        if (metric == ITL)
            push_itls(&s, r, o->api == WEFT__API_GENERATE && rules == WEFT__RULES_SGLANG, rules);
        else if (value >= 0)
            push(&s, value);
    }
    return summarize(&s, &res->summary[rules][metric]);
}

static bool meets(const struct weft__bench_options *o, const struct result *res,
                  const struct weft__bench_request *r, int64_t i)
{
    double value[] = {ttft_of(r, o->rules), tpot_of(res, r, i, o->rules), e2e_of(r, o->rules)};
    for (size_t k = 0; k < WEFT__COUNT(value); k++)
        if (o->goodput_ms[k] > 0 && value[k] > o->goodput_ms[k]) return false;
    return true;
}

static void count_requests(const struct weft__bench_options *o, const struct weft__bench_data *data,
                           struct result *res)
{
    for (int64_t i = 0; i < data->count; i++) {
        const struct weft__bench_request *r = &data->request[i];
        res->ends[r->end]++;
        if (r->end != WEFT__END_OK) continue;
        res->completed++;
        res->input += r->prompt_len >= 0 ? r->prompt_len : weft__max(r->usage_prompt, 0);
        res->server_input += weft__max(r->usage_prompt, 0);
        res->server_input_known += r->usage_prompt >= 0;
        for (int rules = 0; rules < WEFT__RULES_COUNT; rules++)
            res->output[rules] += output_of(res, r, i, (enum weft__bench_rules)rules);
        res->no_usage += r->usage_output < 0;
        res->other_length += r->usage_output >= 0 && r->usage_output != r->output_len;
        res->no_text += ttft_of(r, WEFT__RULES_SGLANG) < 0;
        res->good += meets(o, res, r, i);
        if (res->tokens != NULL) res->retokenized += res->tokens[i];
    }
}

/* Buckets of 1 s from the first start of a request that succeeded. */
static bool find_peaks(const struct weft__bench_options *o, const struct weft__bench_data *data,
                       struct result *res)
{
    uint64_t begin = UINT64_MAX, end = 0;
    for (int64_t i = 0; i < data->count; i++) {
        const struct weft__bench_request *r = &data->request[i];
        if (r->end != WEFT__END_OK) continue;
        if (r->start_ns < begin) begin = r->start_ns;
        if (r->last_line_ns > end) end = r->last_line_ns;
    }
    if (end <= begin) return true;
    size_t seconds = (size_t)((end - begin) / 1000000000u) + 1;
    double *bucket = calloc(seconds, 3 * sizeof *bucket);
    if (bucket == NULL) return false;
    double *tokens = bucket + seconds, *alive = tokens + seconds;
    for (int64_t i = 0; i < data->count; i++) {
        const struct weft__bench_request *r = &data->request[i];
        if (r->end != WEFT__END_OK) continue;
        int shown = 0;
        for (int k = 0; k < r->events; k++) shown += counts(&r->event[k], o->rules);
        double weight = shown > 0 ? (double)output_of(res, r, i, o->rules) / shown : 0;
        for (int k = 0; k < r->events; k++) {
            if (!counts(&r->event[k], o->rules)) continue;
            size_t at = (size_t)((r->event[k].ns - begin) / 1000000000u);
            bucket[at]++;
            tokens[at] += weight;
        }
        uint64_t last = r->start_ns + (uint64_t)(e2e_of(r, o->rules) * 1e6);
        for (size_t at = (size_t)((r->start_ns - begin) / 1000000000u);
             at <= (size_t)((last - begin) / 1000000000u) && at < seconds; at++)
            alive[at]++;
    }
    for (size_t at = 0; at < seconds; at++) {
        res->peak_events = fmax(res->peak_events, bucket[at]);
        res->peak_tokens = fmax(res->peak_tokens, tokens[at]);
        res->peak_requests = fmax(res->peak_requests, alive[at]);
    }
    free(bucket);
    return true;
}

static bool measure_dispatch(const struct weft__bench_data *data, struct result *res)
{
    struct series lag = {0}, queue = {0};
    for (int64_t i = 0; i < data->count; i++) {
        const struct weft__bench_request *r = &data->request[i];
        if (r->start_ns == 0) continue; /* not sent */
        push(&lag, ms(r->slot_ns, r->start_ns));
        push(&queue, ms(r->due_ns, r->slot_ns));
    }
    bool good = summarize(&lag, &res->lag);
    return summarize(&queue, &res->queue) && good;
}

static weft_status retokenize(const struct weft__tokenizer *tok,
                              const struct weft__bench_data *data, struct result *res,
                              weft_error *err)
{
    struct weft__ids ids = {0};
    weft_status status = WEFT_OK;
    if (tok == NULL) return WEFT_OK;
    res->tokens = calloc((size_t)data->count, sizeof *res->tokens);
    if (res->tokens == NULL) return weft__fail_oom(err, (size_t)data->count * 8, "token counts");
    for (int64_t i = 0; status == WEFT_OK && i < data->count; i++) {
        const struct weft__buf *text = &data->request[i].text;
        ids.len = 0;
        if (text->len > 0)
            status = weft__tokenizer_encode(tok, text->data, text->len, 0, &ids, err);
        res->tokens[i] = (int64_t)ids.len;
    }
    weft__ids_free(&ids);
    return status;
}

static weft_status measure(const struct weft__bench_options *o, const struct weft__bench_run *run,
                           struct result *res, weft_error *err)
{
    const struct weft__bench_data *data = run->data;
    bool good = true;
    res->duration_s = (double)run->duration_ns / 1e9;
    WEFT__TRY(retokenize(o->tok, data, res, err));
    count_requests(o, data, res);
    for (int rules = 0; rules < WEFT__RULES_COUNT; rules++)
        for (int metric = 0; metric < METRICS_COUNT; metric++)
            good &= take_metric(o, data, res, (enum metric)metric, (enum weft__bench_rules)rules);
    good &= find_peaks(o, data, res) && measure_dispatch(data, res);
    return good ? WEFT_OK : weft__fail(err, WEFT_NO_MEMORY, "out of memory for the latencies");
}

/* ---- the table ---- */

static void rule_line(char fill, const char *title)
{
    enum { WIDTH = 50 };
    int len = (int)strlen(title), left = (WIDTH - len) / 2;
    for (int i = 0; i < left; i++) (void)putchar(fill);
    (void)fputs(title, stdout);
    for (int i = left + len; i < WIDTH; i++) (void)putchar(fill);
    (void)putchar('\n');
}

static void row_text(const char *label, const char *value)
{
    (void)printf("%-40s %-10s\n", label, value);
}

static void row_int(const char *label, int64_t value)
{
    (void)printf("%-40s %-10lld\n", label, (long long)value);
}

static void row_real(const char *label, double value)
{
    (void)printf("%-40s %-10.2f\n", label, value);
}

static const char *backend_of(const struct weft__bench_options *o)
{
    static const char *const names[][3] = {{"sglang-oai", "sglang-oai-chat", "sglang"},
                                           {"openai", "openai-chat", "sglang"}};
    if (o->dir != NULL) return "weft";
    return names[o->rules][o->api];
}

static void print_section(const struct result *res, enum weft__bench_rules rules,
                          enum metric metric)
{
    const struct summary *s = &res->summary[rules][metric];
    const char *name = metrics[metric].label;
    bool sglang = rules == WEFT__RULES_SGLANG;
    if (!sglang && metric == E2E) name = "E2EL";
    const struct {
        const char *prefix;
        double value;
        bool shown;
    } rows[] = {{"Mean", s->mean, true}, {"Median", s->median, true},
                {"P90", s->p90, sglang}, {"P95", s->p95, sglang},
                {"P99", s->p99, true},   {"Max", s->max, sglang && metric == ITL}};
    rule_line('-', metrics[metric].section[rules]);
    for (size_t i = 0; i < WEFT__COUNT(rows); i++) {
        char label[64];
        (void)snprintf(label, sizeof label, "%s %s (ms):", rows[i].prefix, name);
        if (rows[i].shown) row_real(label, rows[i].value);
    }
}

static void print_counts(const struct weft__bench_options *o, int64_t count,
                         const struct result *res)
{
    bool sglang = o->rules == WEFT__RULES_SGLANG;
    double d = res->duration_s > 0 ? res->duration_s : 1;
    double in = (double)res->input / d, out = (double)res->output[o->rules] / d;
    char text[32];
    (void)snprintf(text, sizeof text, "%g", o->rate);
    if (sglang) row_text("Backend:", backend_of(o));
    if (sglang) row_text("Traffic request rate:", text);
    if (sglang && o->concurrency == 0) row_text("Max request concurrency:", "not set");
    if (sglang && o->concurrency > 0) row_int("Max request concurrency:", o->concurrency);
    row_int("Successful requests:", res->completed);
    if (!sglang) row_int("Failed requests:", count - res->completed);
    if (!sglang && o->concurrency > 0) row_int("Maximum request concurrency:", o->concurrency);
    if (!sglang && !isinf(o->rate)) row_real("Request rate configured (RPS):", o->rate);
    row_real("Benchmark duration (s):", res->duration_s);
    row_int("Total input tokens:", res->input);
    if (sglang) row_int("Total input text tokens:", res->input);
    row_int("Total generated tokens:", res->output[o->rules]);
    if (sglang && res->tokens != NULL)
        row_int("Total generated tokens (retokenized):", res->retokenized);
    if (sglang && res->tokens == NULL)
        row_text("Total generated tokens (retokenized):", "no tokenizer");
    row_real("Request throughput (req/s):", (double)res->completed / d);
    if (o->goodput != NULL) row_real("Request goodput (req/s):", (double)res->good / d);
    if (sglang) row_real("Input token throughput (tok/s):", in);
    row_real("Output token throughput (tok/s):", out);
    row_real("Peak output token throughput (tok/s):", res->peak_events);
    row_int("Peak concurrent requests:", (int64_t)res->peak_requests);
    row_real("Total token throughput (tok/s):", in + out);
    if (sglang) row_real("Concurrency:", res->e2e_sum_s[o->rules] / d);
}

/* Which definition says what, where they differ by more than 0.1 %. */
static void print_other(const struct weft__bench_options *o, const struct result *res)
{
    enum weft__bench_rules other =
        o->rules == WEFT__RULES_SGLANG ? WEFT__RULES_VLLM : WEFT__RULES_SGLANG;
    bool any = false;
    for (int m = 0; m < METRICS_COUNT; m++) {
        const struct summary *a = &res->summary[o->rules][m], *b = &res->summary[other][m];
        if (fabs(a->mean - b->mean) <= 0.001 * a->mean && fabs(a->p99 - b->p99) <= 0.001 * a->p99)
            continue;
        if (!any) (void)printf("By %s's definitions:\n", rule_names[other]);
        any = true;
        (void)printf("  %-12s mean %.2f, median %.2f, p99 %.2f ms\n", metrics[m].label, b->mean,
                     b->median, b->p99);
    }
    if (res->output[0] != res->output[1]) {
        (void)printf("  generated    %lld tokens by sglang's definition, %lld by vllm's\n",
                     (long long)res->output[0], (long long)res->output[1]);
    }
}

static void print_failures(const struct weft__bench_data *data, const struct result *res)
{
    for (int end = 1; end < WEFT__END_COUNT; end++)
        if (res->ends[end] > 0)
            (void)printf("FAILED: %lld of %lld requests: %s\n", (long long)res->ends[end],
                         (long long)data->count, end_words[end]);
    int shown = 0;
    for (int64_t i = 0; i < data->count && shown < WEFT__BENCH_SHOWN; i++) {
        const struct weft__bench_request *r = &data->request[i];
        if (r->end == WEFT__END_OK) continue;
        (void)printf("  request %lld: %s: %s\n", (long long)i + 1, end_words[r->end], r->error);
        shown++;
    }
}

/* What neither vendor's table says. */
static void print_notes(const struct weft__bench_options *o, const struct weft__bench_run *run,
                        const struct result *res)
{
    const struct weft__bench_data *data = run->data;
    double d = res->duration_s > 0 ? res->duration_s : 1;
    (void)printf("Peak by tokens:  %.2f tok/s (the row above counts events)\n", res->peak_tokens);
    if (o->dataset != WEFT__DATASET_SHAREGPT && o->dataset != WEFT__DATASET_TRACE &&
        o->dataset != WEFT__DATASET_PROMPTS)
        (void)printf("Lengths:         %s's rule of range ratio %g: %lld tokens in, %lld out\n",
                     rule_names[o->range_rules], o->range_ratio, (long long)res->input,
                     (long long)res->output[WEFT__RULES_SGLANG]);
    (void)printf(
        "Prompt tokens:   %lld planned, %lld by the server (%lld of %lld answers say it)\n",
        (long long)res->input, (long long)res->server_input, (long long)res->server_input_known,
        (long long)res->completed);
    (void)printf("Dispatch lag:    mean %.3f, p99 %.3f, max %.3f ms%s\n", res->lag.mean,
                 res->lag.p99, res->lag.max,
                 res->lag.p99 > 1 ? "; above 1 ms: this client may be the bottleneck" : "");
    if (res->queue.max > 0)
        (void)printf("Waited for slot: mean %.3f, p99 %.3f, max %.3f ms, in no latency above\n",
                     res->queue.mean, res->queue.p99, res->queue.max);
    (void)printf("%s         %.1f %% of a core, %.0f events/s\n",
                 o->dir != NULL ? "Process:" : "Client: ", (double)run->cpu_ns / 1e9 / d * 100,
                 (double)run->events / d);
    if (data->broken > 0 || data->dropped > 0)
        (void)printf("Dataset:         %lld broken entries passed over, %lld of the wrong length\n",
                     (long long)data->broken, (long long)data->dropped);
    if (res->no_usage > 0)
        (void)printf(
            "NO USAGE:        %lld answers: sglang's definition takes the length asked for\n",
            (long long)res->no_usage);
    if (res->other_length > 0)
        (void)printf("OTHER LENGTH:    %lld answers are not as long as asked for\n",
                     (long long)res->other_length);
    if (res->no_text > 0)
        (void)printf("NO TEXT:         %lld answers, in no TTFT by sglang's definition\n",
                     (long long)res->no_text);
    print_other(o, res);
    print_failures(data, res);
}

static void print_table(const struct weft__bench_options *o, const struct weft__bench_run *run,
                        const struct result *res)
{
    static const enum metric sglang[] = {E2E, TTFT, TPOT, ITL}, vllm[] = {TTFT, TPOT, ITL, E2E};
    const enum metric *order = o->rules == WEFT__RULES_SGLANG ? sglang : vllm;
    (void)putchar('\n');
    rule_line('=', " Serving Benchmark Result ");
    print_counts(o, run->data->count, res);
    for (int i = 0; i < METRICS_COUNT; i++) print_section(res, o->rules, order[i]);
    rule_line('=', "");
    print_notes(o, run, res);
}

/* ---- JSON ---- */

static void put_int(json_t *object, const char *key, int64_t value)
{
    (void)json_object_set_new(object, key, json_integer((json_int_t)value));
}

static void put_real(json_t *object, const char *key, double value)
{
    (void)json_object_set_new(object, key, json_real(value));
}

static void put_text(json_t *object, const char *key, const char *value)
{
    (void)json_object_set_new(object, key, value != NULL ? json_string(value) : json_null());
}

static void put_summaries(json_t *object, const struct result *res, enum weft__bench_rules rules,
                          bool vllm_keys)
{
    for (int m = 0; m < METRICS_COUNT; m++) {
        const struct summary *s = &res->summary[rules][m];
        const char *key = vllm_keys && m == E2E ? "e2el" : metrics[m].key;
        const struct {
            const char *prefix;
            double value;
        } values[] = {{"mean", s->mean}, {"median", s->median}, {"std", s->std},
                      {"p90", s->p90},   {"p95", s->p95},       {"p99", s->p99}};
        for (size_t i = 0; i < WEFT__COUNT(values); i++) {
            char name[64];
            (void)snprintf(name, sizeof name, "%s_%s_ms", values[i].prefix, key);
            put_real(object, name, values[i].value);
        }
    }
    put_real(object, "max_itl_ms", res->summary[rules][ITL].max);
}

static void put_setup(json_t *object, const struct weft__bench_options *o,
                      const struct weft__bench_data *data)
{
    char date[32];
    time_t now = time(NULL);
    struct tm utc;
    (void)strftime(date, sizeof date, "%Y%m%d-%H%M%S", gmtime_r(&now, &utc));
    put_text(object, "date", date);
    put_text(object, "tag", o->tag);
    put_text(object, "backend", backend_of(o));
    put_text(object, "dataset_name", weft__bench_datasets[o->dataset]);
    put_text(object, "model_id", o->model);
    put_text(object, "tokenizer_id", o->tokenizer);
    put_int(object, "num_prompts", data->count);
    if (isinf(o->rate))
        put_text(object, "request_rate", "inf");
    else
        put_real(object, "request_rate", o->rate);
    put_real(object, "burstiness", o->burstiness);
    (void)json_object_set_new(object, "max_concurrency",
                              o->concurrency > 0 ? json_integer((json_int_t)o->concurrency)
                                                 : json_null());
    if (o->dataset != WEFT__DATASET_RANDOM_IDS) return;
    put_int(object, "random_input_len", o->input_len);
    put_int(object, "random_output_len", o->output_len);
    put_real(object, "random_range_ratio", o->range_ratio);
}

static void put_totals(json_t *object, const struct weft__bench_options *o,
                       const struct weft__bench_data *data, const struct result *res)
{
    bool sglang = o->rules == WEFT__RULES_SGLANG;
    double d = res->duration_s > 0 ? res->duration_s : 1;
    double in = (double)res->input / d, out = (double)res->output[o->rules] / d;
    put_real(object, "duration", res->duration_s);
    put_int(object, "completed", res->completed);
    put_int(object, "failed", data->count - res->completed);
    put_int(object, "total_input_tokens", res->input);
    if (sglang) put_int(object, "total_input_text_tokens", res->input);
    if (sglang) put_int(object, "total_input_vision_tokens", 0);
    put_int(object, "total_output_tokens", res->output[o->rules]);
    if (sglang && res->tokens != NULL)
        put_int(object, "total_output_tokens_retokenized", res->retokenized);
    put_real(object, "request_throughput", (double)res->completed / d);
    if (o->goodput != NULL) put_real(object, "request_goodput", (double)res->good / d);
    if (sglang) put_real(object, "input_throughput", in);
    put_real(object, "output_throughput", out);
    put_real(object, sglang ? "total_throughput" : "total_token_throughput", in + out);
    put_summaries(object, res, o->rules, !sglang);
    if (sglang) put_real(object, "concurrency", res->e2e_sum_s[o->rules] / d);
    put_real(object, "max_output_tokens_per_s", res->peak_events);
    put_int(object, "max_concurrent_requests", (int64_t)res->peak_requests);
}

static json_t *error_json(const struct weft__bench_request *r)
{
    return json_string(weft__utf8_valid(r->error, strlen(r->error)) ? r->error : "(not UTF-8)");
}

/* What neither vendor's keys say. */
static json_t *weft_json(const struct weft__bench_options *o, const struct weft__bench_run *run,
                         const struct result *res)
{
    const struct weft__bench_data *data = run->data;
    double d = res->duration_s > 0 ? res->duration_s : 1;
    json_t *out = json_object(), *failures = json_object(), *texts = json_array();
    put_text(out, "version", weft_version());
    put_text(out, "definitions", rule_names[o->rules]);
    put_text(out, "range_ratio_mode", rule_names[o->range_rules]);
    put_int(out, "seed", o->seed);
    put_int(out, "server_prompt_tokens", res->server_input);
    put_real(out, "peak_tokens_per_s", res->peak_tokens);
    put_real(out, "dispatch_lag_mean_ms", res->lag.mean);
    put_real(out, "dispatch_lag_p99_ms", res->lag.p99);
    put_real(out, "dispatch_lag_max_ms", res->lag.max);
    put_real(out, "slot_wait_mean_ms", res->queue.mean);
    put_real(out, "slot_wait_p99_ms", res->queue.p99);
    put_real(out, "client_core_share", (double)run->cpu_ns / 1e9 / d);
    put_real(out, "events_per_s", (double)run->events / d);
    put_int(out, "dataset_broken", data->broken);
    put_int(out, "dataset_dropped", data->dropped);
    put_int(out, "no_usage", res->no_usage);
    put_int(out, "other_length", res->other_length);
    put_int(out, "no_text", res->no_text);
    for (int end = 1; end < WEFT__END_COUNT; end++)
        if (res->ends[end] > 0) put_int(failures, end_words[end], res->ends[end]);
    for (int64_t i = 0; i < data->count && json_array_size(texts) < WEFT__BENCH_SHOWN; i++)
        if (data->request[i].end != WEFT__END_OK)
            (void)json_array_append_new(texts, error_json(&data->request[i]));
    (void)json_object_set_new(out, "failures", failures);
    (void)json_object_set_new(out, "first_errors", texts);
    for (int rules = 0; rules < WEFT__RULES_COUNT; rules++) {
        json_t *by = json_object();
        put_int(by, "total_output_tokens", res->output[rules]);
        put_summaries(by, res, (enum weft__bench_rules)rules, rules == WEFT__RULES_VLLM);
        (void)json_object_set_new(out, rule_names[rules], by);
    }
    return out;
}

static json_t *itls_json(const struct weft__bench_options *o, const struct weft__bench_request *r)
{
    struct series gaps = {0};
    json_t *out = json_array();
    push_itls(&gaps, r, o->api == WEFT__API_GENERATE && o->rules == WEFT__RULES_SGLANG, o->rules);
    for (int64_t k = 0; k < gaps.count; k++)
        (void)json_array_append_new(out, json_real(gaps.value[k] / 1e3));
    free(gaps.value);
    return out;
}

/* What both vendors call details: a value a request, in seconds; of a failed one zeros. */
static void put_details(json_t *object, const struct weft__bench_options *o,
                        const struct weft__bench_data *data, const struct result *res)
{
    static const char *const keys[] = {"input_lens", "output_lens", "ttfts",      "itls",
                                       "errors",     "latencies",   "start_times"};
    json_t *list[WEFT__COUNT(keys)];
    for (size_t k = 0; k < WEFT__COUNT(keys); k++)
        (void)json_object_set_new(object, keys[k], list[k] = json_array());
    for (int64_t i = 0; i < data->count; i++) {
        const struct weft__bench_request *r = &data->request[i];
        bool good = r->end == WEFT__END_OK;
        json_t *value[] = {
            json_integer(r->prompt_len >= 0 ? r->prompt_len : weft__max(r->usage_prompt, 0)),
            json_integer(good ? output_of(res, r, i, o->rules) : 0),
            json_real(good ? fmax(ttft_of(r, o->rules), 0) / 1e3 : 0),
            good ? itls_json(o, r) : json_array(),
            error_json(r),
            json_real(good ? e2e_of(r, o->rules) / 1e3 : 0),
            json_real((double)r->start_ns / 1e9)};
        for (size_t k = 0; k < WEFT__COUNT(keys); k++)
            (void)json_array_append_new(list[k], value[k]);
    }
}

weft_status weft__bench_print(const struct weft__bench_options *o,
                              const struct weft__bench_run *run, json_t **out, weft_error *err)
{
    struct result res = {0};
    weft_status status = measure(o, run, &res, err);
    if (status == WEFT_OK) {
        int64_t tokens = res.output[o->rules];
        json_t *object = json_object(), *more = weft_json(o, run, &res);
        json_t *where = weft__where_json(run->watch, o->profiles, tokens);
        /* Nothing was measured, so there is nothing to show or to judge. */
        bool none = res.completed == 0;
        if (none) (void)json_object_del(where, "verdicts");
        put_setup(object, o, run->data);
        put_totals(object, o, run->data, &res);
        if (o->details) put_details(object, o, run->data, &res);
        (void)json_object_update(more, where);
        json_decref(where);
        (void)json_object_set_new(object, "weft", more);
        if (o->json) {
            (void)weft__print_json(json_incref(object), JSON_COMPACT);
        } else if (none) {
            print_failures(run->data, &res);
        } else {
            print_table(o, run, &res);
            weft__where_print(run->watch, o->profiles, tokens);
        }
        if (o->output_file != NULL)
            status = weft__bench_write_json(o->output_file, true, object, err);
        *out = object;
    }
    free(res.tokens);
    return status;
}
