/* What the server counts: Prometheus text under weft's, vLLM's and SGLang's names, and the
 * console's JSON. All of it belongs to the loop; the engine's counters are copied. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "private.h"

/* vLLM's bounds; token times go on below 10 ms. 0 ends a list. */
static const double ttft_bounds[] = {.001, .005, .01, .02, .04, .06, .08, .1,  .25, .5,   .75, 1,
                                     2.5,  5,    7.5, 10,  20,  40,  80,  160, 640, 2560, 0};
static const double token_bounds[] = {.001, .002, .004, .006, .01, .025, .05, .075, .1, .15, .2, .3,
                                      .4,   .5,   .75,  1,    2.5, 5,    7.5, 10,   20, 40,  80, 0};
static const double request_bounds[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,   20,
                                        30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680, 0};
static const double size_bounds[] = {1,     2,      5,      10,     20,   50,    100,
                                     200,   500,    1000,   2000,   5000, 10000, 20000,
                                     50000, 100000, 200000, 500000, 1e6,  0};

static const struct {
    const char *name, *help;
    const double *bounds;
} histograms[] = {
#define X(field, name, help, buckets) {name, help, buckets##_bounds},
    WEFT__HISTOGRAMS(X)
#undef X
};

void weft__observe(struct weft__histogram *histogram, enum weft__histogram_id id, double value)
{
    const double *bound = histograms[id].bounds;
    int i = 0;
    if (!(value >= 0)) value = 0;
    while (bound[i] != 0 && value > bound[i]) i++;
    histogram->bucket[bound[i] != 0 ? i : WEFT__BUCKETS_MAX]++;
    histogram->sum += value;
}

/* ---- the console's history ---- */

void weft__metrics_tick(struct weft__server *server)
{
    struct weft__metrics *m = &server->metrics;
    struct weft__engine_status status;
    if (server->engine == NULL) return;
    weft__engine_status(server->engine, &status);
    const struct weft__sched_counters *c = &status.counters;
    struct weft__sample_point *point = &m->point[m->points++ % WEFT__HISTORY];
    *point = (struct weft__sample_point){
        .at_s = (double)(weft__now_ns() - server->started_ns) / 1e9,
        .running = c->running,
        .waiting = c->waiting,
        .generated = c->generated_tokens,
        .prompt = c->prompt_tokens,
        .computed = c->computed_tokens,
        .pages_used = c->pages_used,
    };
    memcpy(point->rank, status.rank, sizeof point->rank);
}

static double share(uint64_t part_ns, double span_s)
{
    double value = span_s > 0 ? (double)part_ns / 1e9 / span_s : 0;
    return value > 1 ? 1 : value;
}

/* The second that ended at point b. */
static void put_point(const struct weft__sample_point *a, const struct weft__sample_point *b,
                      int ranks, struct weft__buf *out)
{
    double span = b->at_s - a->at_s;
    weft__buf_printf(out,
                     "{\"t\":%.2f,\"running\":%lld,\"waiting\":%lld,\"generated_per_s\":%.2f,"
                     "\"prompt_per_s\":%.2f,\"rows_per_s\":%.2f,\"pages_used\":%lld,\"ranks\":[",
                     b->at_s, (long long)b->running, (long long)b->waiting,
                     (double)(b->generated - a->generated) / span,
                     (double)(b->prompt - a->prompt) / span,
                     (double)(b->computed - a->computed) / span, (long long)b->pages_used);
    for (int r = 0; r < ranks; r++) {
        double busy = share(b->rank[r].busy_ns - a->rank[r].busy_ns, span);
        double collective = share(b->rank[r].collective_ns - a->rank[r].collective_ns, span);
        if (collective > busy) collective = busy;
        weft__buf_printf(out, "%s{\"compute\":%.4f,\"collectives\":%.4f,\"idle\":%.4f}",
                         r > 0 ? "," : "", busy - collective, collective, 1 - busy);
    }
    weft__buf_puts(out, "]}");
}

void weft__route_stats(struct weft__conn *conn)
{
    struct weft__server *server = conn->server;
    struct weft__metrics *m = &server->metrics;
    struct weft__buf body;
    weft__buf_init(&body, WEFT__ANSWER_MAX);
    weft__buf_puts(&body, "{\"model\":");
    weft__put_cstring(&body, server->options.model);
    weft__buf_printf(&body, ",\"version\":\"%s\",\"loading\":%s", weft_version(),
                     server->engine == NULL ? "true" : "false");
    if (server->engine != NULL) {
        const struct weft__plan *plan = weft__engine_view(server->engine)->plan;
        long long first = 0, count = m->points;
        char *end;
        /* ?after=N: only the points from number N on, so that a poll each second is small. */
        if (strncmp(conn->query, "after=", 6) == 0) first = strtoll(conn->query + 6, &end, 10);
        first = weft__max(weft__max(first, count - WEFT__HISTORY + 1), 1);
        weft__buf_printf(&body,
                         ",\"ranks\":%d,\"context\":%lld,\"page\":%d,\"pages\":%lld,"
                         "\"max_running\":%lld,\"next\":%lld,\"points\":[",
                         plan->ranks.size, (long long)plan->context, WEFT__PAGE,
                         (long long)plan->ranks.limits.pages, (long long)plan->max_running, count);
        for (long long i = first; i < count; i++) {
            if (i > first) weft__buf_puts(&body, ",");
            put_point(&m->point[(i - 1) % WEFT__HISTORY], &m->point[i % WEFT__HISTORY],
                      plan->ranks.size, &body);
        }
        weft__buf_puts(&body, "]");
    }
    weft__buf_puts(&body, "}");
    weft__respond_json(conn, 200, &body);
    weft__buf_free(&body);
}

/* ---- Prometheus ---- */

struct page {
    struct weft__buf out;
    char label[640]; /* model_name="..." */
};

/* Label values escape backslash, quote and newline. */
static void escape_label(char *out, size_t size, const char *text)
{
    size_t len = 0;
    for (; *text != '\0' && len + 3 < size; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n') out[len++] = '\\';
        out[len++] = *text == '\n' ? 'n' : *text;
    }
    out[len] = '\0';
}

static void family(struct page *page, const char *name, const char *type, const char *help)
{
    weft__buf_printf(&page->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void single(struct page *page, const char *name, const char *type, const char *help,
                   double value)
{
    family(page, name, type, help);
    weft__buf_printf(&page->out, "%s{%s} %.10g\n", name, page->label, value);
}

/* The same value under the names of the three. NULL: the vendor has none. */
static void triple(struct page *page, const char *const names[3], const char *type,
                   const char *help, double value)
{
    static const char *const prefix[3] = {"weft", "vllm", "sglang"};
    char name[128];
    for (int i = 0; i < 3; i++) {
        if (names[i] == NULL) continue;
        (void)snprintf(name, sizeof name, "%s:%s", prefix[i], names[i]);
        single(page, name, type, help, value);
    }
}

static void put_histogram(struct page *page, const char *prefix, const char *name, int id,
                          const struct weft__histogram *histogram)
{
    const double *bounds = histograms[id].bounds;
    char full[128];
    uint64_t total = 0;
    (void)snprintf(full, sizeof full, "%s:%s", prefix, name);
    family(page, full, "histogram", histograms[id].help);
    for (int i = 0; bounds[i] != 0; i++) {
        total += histogram->bucket[i];
        weft__buf_printf(&page->out, "%s_bucket{%s,le=\"%g\"} %llu\n", full, page->label, bounds[i],
                         (unsigned long long)total);
    }
    total += histogram->bucket[WEFT__BUCKETS_MAX];
    weft__buf_printf(&page->out,
                     "%s_bucket{%s,le=\"+Inf\"} %llu\n%s_sum{%s} %.9g\n%s_count{%s} %llu\n", full,
                     page->label, (unsigned long long)total, full, page->label, histogram->sum,
                     full, page->label, (unsigned long long)total);
}

static void put_histograms(struct page *page, const struct weft__metrics *m)
{
    static const char *const prefix[] = {"weft", "vllm", "sglang"};
    for (int p = 0; p < 3; p++) {
#define X(field, name, help, buckets)                                                              \
    put_histogram(page, prefix[p],                                                                 \
                  p == 2 && strcmp(name, "request_queue_time_seconds") == 0 ? "queue_time_seconds" \
                                                                            : name,                \
                  WEFT__HISTOGRAM_##field, &m->field);
        WEFT__HISTOGRAMS(X)
#undef X
    }
}

static void put_finished(struct page *page, const struct weft__sched_counters *c)
{
    static const char *const names[] = {"weft:request_success_total", "vllm:request_success_total"};
    for (size_t n = 0; n < WEFT__COUNT(names); n++) {
        family(page, names[n], "counter", "Sequences that ended, by reason.");
        for (int f = 0; f < WEFT__FINISH_COUNT; f++)
            weft__buf_printf(&page->out, "%s{%s,finished_reason=\"%s\"} %lld\n", names[n],
                             page->label, weft__finish_name((enum weft__finish)f),
                             (long long)c->finished[f]);
    }
}

static double recent_rate(const struct weft__metrics *m)
{
    if (m->points < 2) return 0;
    const struct weft__sample_point *b = &m->point[(m->points - 1) % WEFT__HISTORY];
    const struct weft__sample_point *a = &m->point[(m->points - 2) % WEFT__HISTORY];
    return (double)(b->generated - a->generated) / (b->at_s - a->at_s);
}

static void put_engine(struct page *page, const struct weft__server *server,
                       const struct weft__engine_status *status)
{
    const struct weft__sched_counters *c = &status->counters;
    double pages = (double)weft__max(c->pages, 1), used = (double)c->pages_used / pages;
    double asked = (double)c->prompt_tokens, cached = (double)c->cached_tokens;
    int64_t finished = 0;
    for (int f = 0; f < WEFT__FINISH_COUNT; f++) finished += c->finished[f];
#define ROW(weft, vllm, sglang, type, help, value) \
    triple(page, (const char *const[]){weft, vllm, sglang}, type, help, (double)(value))
    ROW("num_requests_running", "num_requests_running", "num_running_reqs", "gauge",
        "Sequences in the batch.", c->running);
    ROW("num_requests_waiting", "num_requests_waiting", "num_queue_reqs", "gauge",
        "Sequences in the queue.", c->waiting);
    ROW("kv_cache_usage_perc", "kv_cache_usage_perc", "token_usage", "gauge",
        "Share of the KV pool that sequences hold, 0 to 1.", used);
    ROW(NULL, NULL, "num_used_tokens", "gauge", "Tokens of the KV pool in use.",
        c->pages_used * WEFT__PAGE);
    ROW("max_total_num_tokens", NULL, "max_total_num_tokens", "gauge", "Tokens of the KV pool.",
        c->pages * WEFT__PAGE);
    ROW("kv_pages_cached", NULL, NULL, "gauge", "Idle pages kept for their prefix.",
        c->pages_cached);
    ROW("kv_pages_free", NULL, NULL, "gauge", "Free pages.", c->pages_free);
    ROW("prefix_cache_queries_total", "prefix_cache_queries_total", NULL, "counter",
        "Prompt tokens looked up in the prefix cache.", c->prompt_tokens);
    ROW("prefix_cache_hits_total", "prefix_cache_hits_total", "cached_tokens_total", "counter",
        "Prompt tokens found there.", c->cached_tokens);
    ROW(NULL, NULL, "cache_hit_rate", "gauge", "Share of prompt tokens found in the cache.",
        asked > 0 ? cached / asked : 0);
    ROW("prompt_tokens_total", "prompt_tokens_total", "prompt_tokens_total", "counter",
        "Prompt tokens accepted.", c->prompt_tokens);
    ROW("generation_tokens_total", "generation_tokens_total", "generation_tokens_total", "counter",
        "Tokens generated.", c->generated_tokens);
    ROW("iteration_rows_total", NULL, NULL, "counter", "Rows of all batches.", c->computed_tokens);
    ROW("steps_total", NULL, NULL, "counter", "Batches run.", c->steps);
    ROW("num_preemptions_total", "num_preemptions_total", "num_retracted_requests_total", "counter",
        "Sequences that gave their pages back and were recomputed.", c->retractions);
    ROW(NULL, NULL, "num_requests_total", "counter", "Sequences that ended.", finished);
    ROW(NULL, NULL, "num_aborted_requests_total", "counter", "Sequences that were cancelled.",
        c->finished[WEFT__FINISH_CANCELLED]);
    ROW(NULL, NULL, "gen_throughput", "gauge", "Tokens generated in the last second.",
        recent_rate(&server->metrics));
    ROW("last_step_age_seconds", NULL, NULL, "gauge", "Since the last step ended.",
        status->last_step_ns > 0 ? (double)(weft__now_ns() - status->last_step_ns) / 1e9 : 0);
    ROW("engine_failed", NULL, NULL, "gauge", "1 when the engine can't go on.", status->failed);
#undef ROW
    put_finished(page, c);
}

static void put_ranks(struct page *page, const struct weft__engine_status *status, int ranks)
{
    static const struct {
        const char *name, *help;
    } families[] = {
        {"weft:rank_busy_seconds_total", "Inside forward passes."},
        {"weft:rank_collective_seconds_total", "In collectives."},
        {"weft:rank_wait_seconds_total", "In collectives, waiting for peers."},
        {"weft:rank_prefill_seconds_total", "Computing, the share of prompt rows."},
        {"weft:rank_decode_seconds_total", "Computing, the share of sampled rows."},
        {"weft:rank_sample_seconds_total", "Between passes: planning, sampling, handing out."},
        {"weft:rank_steps_total", "Forward passes."},
    };
    for (size_t f = 0; f < WEFT__COUNT(families); f++) {
        family(page, families[f].name, "counter", families[f].help);
        for (int r = 0; r < ranks; r++) {
            const struct weft__rank_stats *s = &status->rank[r];
            const double value[] = {(double)s->busy_ns / 1e9,
                                    (double)s->collective_ns / 1e9,
                                    (double)s->wait_ns / 1e9,
                                    (double)s->prefill_ns / 1e9,
                                    (double)s->decode_ns / 1e9,
                                    (double)s->sample_ns / 1e9,
                                    (double)s->steps};
            weft__buf_printf(&page->out, "%s{%s,rank=\"%d\",device=\"%s\"} %.9g\n",
                             families[f].name, page->label, r, s->device, value[f]);
        }
    }
}

static int64_t count_fds(void)
{
    int64_t count = -3; /* ".", "..", and the folder's own */
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL) return 0;
    while (readdir(dir) != NULL) count++;
    (void)closedir(dir);
    return count;
}

static double resident_bytes(void)
{
    char text[128];
    char *at = text, *end;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL) return 0;
    size_t len = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[len] = '\0';
    (void)strtol(at, &end, 10);
    return (double)strtol(end, NULL, 10) * (double)sysconf(_SC_PAGESIZE);
}

static void put_process(struct page *page, const struct weft__server *server)
{
    struct rusage usage = {0};
    (void)getrusage(RUSAGE_SELF, &usage);
    double cpu = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                 (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    single(page, "process_resident_memory_bytes", "gauge", "Resident memory.", resident_bytes());
    single(page, "process_open_fds", "gauge", "Open file descriptors.", (double)count_fds());
    single(page, "process_start_time_seconds", "gauge", "Unix time of the start.",
           (double)server->started);
    single(page, "process_cpu_seconds_total", "counter", "CPU time.", cpu);
    struct timespec loop = {0};
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &loop); /* this is the loop's thread */
    single(page, "weft:http_cpu_seconds_total", "counter",
           "CPU time of the thread that serves HTTP.",
           (double)loop.tv_sec + (double)loop.tv_nsec / 1e9);
    single(page, "weft:uptime_seconds", "gauge", "Since the start, by the clock of the rank times.",
           (double)(weft__now_ns() - server->started_ns) / 1e9);
    single(page, "weft:connections", "gauge", "Open connections.", (double)server->conn_count);
    single(page, "weft:requests_accepted_total", "counter", "Requests that were queued.",
           (double)server->metrics.requests);
    single(page, "weft:requests_refused_total", "counter", "Requests answered with an error.",
           (double)server->metrics.refused);
    single(page, "weft:disconnects_total", "counter", "Clients that left before their answer.",
           (double)server->metrics.disconnects);
}

static void put_config(struct page *page, const struct weft__plan *plan)
{
    family(page, "vllm:cache_config_info", "gauge", "The KV pool.");
    weft__buf_printf(&page->out,
                     "vllm:cache_config_info{%s,block_size=\"%d\",num_gpu_blocks=\"%lld\","
                     "enable_prefix_caching=\"True\"} 1\n",
                     page->label, WEFT__PAGE, (long long)plan->ranks.limits.pages);
}

void weft__route_metrics(struct weft__conn *conn)
{
    struct weft__server *server = conn->server;
    struct page page;
    char model[512];
    weft__buf_init(&page.out, WEFT__ANSWER_MAX);
    escape_label(model, sizeof model, server->options.model);
    (void)snprintf(page.label, sizeof page.label, "model_name=\"%s\",engine=\"0\"", model);
    if (server->engine != NULL) {
        const struct weft__plan *plan = weft__engine_view(server->engine)->plan;
        struct weft__engine_status status;
        weft__engine_status(server->engine, &status);
        put_engine(&page, server, &status);
        put_ranks(&page, &status, plan->ranks.size);
        put_config(&page, plan);
    }
    put_histograms(&page, &server->metrics);
    put_process(&page, server);
    if (page.out.failed)
        weft__respond_json(conn, 500, &page.out);
    else
        weft__respond(conn, 200, "text/plain; version=0.0.4; charset=utf-8", "",
                      (struct weft__slice){page.out.data, page.out.len});
    weft__buf_free(&page.out);
}
