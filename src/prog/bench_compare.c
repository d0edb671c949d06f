/* weft bench compare: two sets of runs, metric by metric. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { MAX_RUNS = 1000 };

/* key, is more better, 0: neither */
static const struct {
    const char *key;
    int better;
} compared[] = {
    {"duration", -1},
    {"request_throughput", 1},
    {"request_goodput", 1},
    {"input_throughput", 1},
    {"output_throughput", 1},
    {"total_throughput", 1},
    {"total_token_throughput", 1},
    {"mean_e2e_latency_ms", -1},
    {"p99_e2e_latency_ms", -1},
    {"mean_e2el_ms", -1},
    {"p99_e2el_ms", -1},
    {"mean_ttft_ms", -1},
    {"median_ttft_ms", -1},
    {"p99_ttft_ms", -1},
    {"mean_tpot_ms", -1},
    {"median_tpot_ms", -1},
    {"p99_tpot_ms", -1},
    {"mean_itl_ms", -1},
    {"median_itl_ms", -1},
    {"p99_itl_ms", -1},
    {"total_input_tokens", 0},
    {"total_output_tokens", 0},
    {"completed", 0},
    {"failed", 0},
};

struct runs {
    json_t *run[MAX_RUNS];
    int count;
};

struct side {
    double median, low, high;
    int count;
};

/* ---- reading ---- */

/* Python writes numbers that JSON lacks: outside strings, Infinity becomes null
 * and NaN an empty list, which are no numbers either.
 */
static void blank_words(char *text, size_t len)
{
    static const char *const words[] = {"-Infinity", "Infinity", "NaN"};
    bool inside = false;
    for (size_t i = 0; i < len; i++) {
        if (inside && text[i] == '\\') {
            i++;
        } else if (text[i] == '"') {
            inside = !inside;
        } else if (!inside) {
            for (size_t w = 0; w < WEFT__COUNT(words); w++) {
                size_t n = strlen(words[w]);
                if (len - i < n || memcmp(text + i, words[w], n) != 0) continue;
                memset(text + i, ' ', n);
                memcpy(text + i, n > 3 ? "null" : "[] ", n > 3 ? 4 : 3);
            }
        }
    }
}

/* One object, several after each other, or a list of them. */
static weft_status read_runs(const char *path, struct runs *out, weft_error *err)
{
    char *text;
    size_t len, at = 0;
    json_error_t error = {0};
    WEFT__TRY(weft__read_file(path, WEFT__BENCH_MAX_FILE, &text, &len, err));
    blank_words(text, len);
    weft_status status = WEFT_OK;
    while (status == WEFT_OK) {
        while (at < len && isspace((unsigned char)text[at])) at++;
        if (at == len) break;
        json_t *value = json_loadb(text + at, len - at, JSON_DISABLE_EOF_CHECK, &error);
        if (!json_is_object(value) || out->count == MAX_RUNS) {
            json_decref(value);
            status = weft__fail(err, WEFT_FORMAT,
                                "%.200s: run %d: a JSON object is wanted, of at most %d runs: "
                                "%.100s",
                                path, out->count + 1, MAX_RUNS, error.text);
        } else {
            out->run[out->count++] = value;
            at += (size_t)error.position;
        }
    }
    free(text);
    if (status == WEFT_OK && out->count == 0)
        status = weft__fail(err, WEFT_FORMAT, "%.200s holds no run", path);
    return status;
}

static void free_runs(struct runs *runs)
{
    while (runs->count > 0) json_decref(runs->run[--runs->count]);
}

/* ---- comparing ---- */

static bool side_of(const struct runs *runs, const char *key, struct side *out)
{
    double value[MAX_RUNS];
    int count = 0;
    for (int i = 0; i < runs->count; i++) {
        const json_t *number = json_object_get(runs->run[i], key);
        if (json_is_number(number)) value[count++] = json_number_value(number);
    }
    if (count == 0) return false;
    qsort(value, (size_t)count, sizeof *value, weft__compare_doubles);
    *out = (struct side){.median = weft__percentile(value, count, 50),
                         .low = value[0],
                         .high = value[count - 1],
                         .count = count};
    return true;
}

/* A difference is one when the runs of A and B do not overlap and the medians are further apart
 * than either set is wide. One run has no spread: nothing can be said. */
static const char *verdict_of(const struct side *a, const struct side *b, int better)
{
    double difference = b->median - a->median;
    double spread = fmax(a->high - a->low, b->high - b->low);
    if (difference == 0) return "none";
    if (better == 0) return "differs";
    if (a->count < 2 || b->count < 2) return "unknown";
    if (fabs(difference) <= spread || (a->low <= b->high && b->low <= a->high)) return "none";
    return (difference > 0) == (better > 0) ? "better" : "worse";
}

/* Nothing to compare is a wrong file. */
static weft_status check_figures(const struct runs runs[2], const char *const path[2],
                                 weft_error *err)
{
    struct side side;
    bool in_a = false, in_b = false, common = false;
    for (size_t i = 0; i < WEFT__COUNT(compared); i++) {
        bool of_a = side_of(&runs[0], compared[i].key, &side);
        bool of_b = side_of(&runs[1], compared[i].key, &side);
        in_a |= of_a;
        in_b |= of_b;
        common |= of_a && of_b;
    }
    if (common) return WEFT_OK;
    if (in_a && in_b)
        return weft__fail(err, WEFT_FORMAT, "%.200s and %.200s have no figure in common", path[0],
                          path[1]);
    return weft__fail(err, WEFT_FORMAT,
                      "%.200s holds no figure of a run, such as \"duration\": is it what bench's "
                      "--output-file wrote?",
                      path[in_a]);
}

static void print_row(const char *key, const struct side *a, const struct side *b,
                      const char *verdict)
{
    char ratio[32] = "-";
    if (a->median != 0) (void)snprintf(ratio, sizeof ratio, "%.3f", b->median / a->median);
    (void)printf("%-26s %12.3f %10.3f %12.3f %10.3f %8s  %s\n", key, a->median, a->high - a->low,
                 b->median, b->high - b->low, ratio, verdict);
}

static json_t *row_json(const struct side *a, const struct side *b, const char *verdict)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:o, s:s}", "a", a->median, "a_spread", a->high - a->low,
                     "b", b->median, "b_spread", b->high - b->low, "ratio",
                     a->median != 0 ? json_real(b->median / a->median) : json_null(), "difference",
                     verdict);
}

static void compare(const struct runs *a, const struct runs *b, bool json)
{
    json_t *rows = json_object();
    if (!json)
        (void)printf("%-26s %12s %10s %12s %10s %8s  %s\n", "", "A median", "spread", "B median",
                     "spread", "B / A", "difference");
    for (size_t i = 0; i < WEFT__COUNT(compared); i++) {
        struct side x, y;
        const char *key = compared[i].key;
        if (!side_of(a, key, &x) || !side_of(b, key, &y)) continue;
        const char *verdict = verdict_of(&x, &y, compared[i].better);
        if (!json)
            print_row(key, &x, &y, verdict);
        else
            (void)json_object_set_new(rows, key, row_json(&x, &y, verdict));
    }
    if (json) {
        (void)weft__print_json(
            json_pack("{s:i, s:i, s:O}", "a_runs", a->count, "b_runs", b->count, "metrics", rows),
            JSON_INDENT(2));
    } else {
        (void)printf("\n%d and %d runs; none: smaller than the spread of the runs%s\n", a->count,
                     b->count,
                     a->count < 2 || b->count < 2
                         ? "; unknown: one run has no spread, use weft bench --repeats"
                         : "");
    }
    json_decref(rows);
}

/* Runs of different work are compared all the same, but not silently. */
static void warn_different(const struct runs *a, const struct runs *b)
{
    static const char *const keys[] = {
        "backend",           "dataset_name",       "num_prompts",
        "request_rate",      "max_concurrency",    "random_input_len",
        "random_output_len", "random_range_ratio", "model_id"};
    for (size_t i = 0; i < WEFT__COUNT(keys); i++) {
        const json_t *x = json_object_get(a->run[0], keys[i]);
        const json_t *y = json_object_get(b->run[0], keys[i]);
        if (x != NULL && y != NULL && !json_equal(x, y))
            (void)fprintf(stderr, "weft bench compare: the runs differ in %s\n", keys[i]);
    }
}

int weft__bench_compare(int argc, char **argv)
{
    bool json = false;
    int status;
    weft_error err;
    const struct weft__option options[] = {
        {WEFT__OPTION_FLAG, "json", &json, 0, 0, NULL, "for machines"},
        {0},
    };
    struct weft__command_line line = {
        .command = "bench compare",
        .synopsis = "A.json B.json",
        .about = "Compares runs saved by --output-file, or by sglang's or vLLM's client: medians\n"
                 "of a file's runs, their spread, and whether the difference is larger than it.",
        .options = options,
        .arguments_min = 2,
        .arguments_max = 2,
    };
    if (!weft__command_line_parse(&line, argc, argv, &status)) return status;
    struct runs *runs = calloc(2, sizeof *runs);
    if (runs == NULL) {
        (void)weft__fail_oom(&err, 2 * sizeof *runs, "runs");
        return weft__report(line.command, &err);
    }
    status = WEFT__EXIT_OK;
    if (read_runs(line.argument[0], &runs[0], &err) != WEFT_OK ||
        read_runs(line.argument[1], &runs[1], &err) != WEFT_OK ||
        check_figures(runs, line.argument, &err) != WEFT_OK) {
        status = weft__report(line.command, &err);
    } else {
        warn_different(&runs[0], &runs[1]);
        compare(&runs[0], &runs[1], json);
    }
    free_runs(&runs[0]);
    free_runs(&runs[1]);
    free(runs);
    return status;
}
