/* bench.h: what the files of `weft bench` share. */
#ifndef WEFT_SRC_PROG_BENCH_H
#define WEFT_SRC_PROG_BENCH_H

#include <jansson.h>

#include "prog.h"

enum {
    WEFT__BENCH_MAX_REQUESTS = 1 << 22,
    WEFT__BENCH_MAX_ACTIVE = 65536,    /* requests running */
    WEFT__BENCH_MAX_EVENTS = 1 << 22,  /* of a request, and tokens that a server says */
    WEFT__BENCH_MAX_ANSWER = 64 << 20, /* bytes of text */
    WEFT__BENCH_MAX_FILE = 1 << 30,    /* of a dataset or a result */
    WEFT__BENCH_SHOWN = 3,             /* error texts that are quoted */
    WEFT__METERS_MAX = 64,             /* GPUs and packages of a machine */
    WEFT__SWEEP_MAX = 64,              /* loads of a sweep */
};

/* name, word */
#define WEFT__BENCH_DATASETS(X) \
    X(RANDOM_IDS, "random-ids") \
    X(RANDOM, "random")         \
    X(PROMPTS, "prompts")       \
    X(SHAREGPT, "sharegpt")     \
    X(TURNS, "multi-turn")      \
    X(TRACE, "trace")

enum weft__bench_dataset {
#define X(name, word) WEFT__DATASET_##name,
    WEFT__BENCH_DATASETS(X)
#undef X
};
extern const char *const weft__bench_datasets[]; /* their words */

enum weft__bench_api {
    WEFT__API_COMPLETIONS,
    WEFT__API_CHAT,
    WEFT__API_GENERATE,
};

/* Whose rules: lengths, arrivals, definitions and tables. */
enum weft__bench_rules { WEFT__RULES_SGLANG, WEFT__RULES_VLLM, WEFT__RULES_COUNT };

/* How a request can end. name, words */
#define WEFT__BENCH_ENDS(X)                       \
    X(OK, "ok")                                   \
    X(CONNECT, "could not connect")               \
    X(TIMEOUT, "timed out")                       \
    X(HTTP_4XX, "HTTP 4xx")                       \
    X(HTTP_5XX, "HTTP 5xx")                       \
    X(HTTP_OTHER, "another HTTP status than 200") \
    X(CUT, "stream cut")                          \
    X(BAD_EVENT, "malformed event")               \
    X(ERROR_EVENT, "error event")                 \
    X(NO_OUTPUT, "no output")                     \
    X(TRANSPORT, "transport error")               \
    X(REFUSED, "refused by the engine")           \
    X(SKIPPED, "not sent: an earlier turn failed")

enum weft__bench_end {
#define X(name, words) WEFT__END_##name,
    WEFT__BENCH_ENDS(X)
#undef X
        WEFT__END_COUNT
};

struct weft__bench_options {
    const char *url, *dataset_path, *model, *tokenizer;
    const char *goodput, *output_file, *header, *extra_body, *tag, *sweep, *report, *thresholds,
        *powercap;
    int64_t dataset;     /* enum weft__bench_dataset */
    int64_t api;         /* enum weft__bench_api; -1 at first: by the URL */
    int64_t rules;       /* enum weft__bench_rules, of definitions, table and arrivals */
    int64_t range_rules; /* of lengths; -1 at first: the same */
    int64_t prompts, input_len, output_len, seed, concurrency, warmup, vocab, context_len,
        timeout_s;
    int64_t repeats, turns, prefix_len, prefix_groups;
    double range_ratio, rate, burstiness, temperature, top_p, slowdown;
    bool stop_at_eos, send_ids, allow_failures, json, no_progress, details;
    struct weft__engine_flags engine_flags;
    /* made of those */
    const char *dir;                   /* in-process: the model directory; NULL: there is a URL */
    weft_engine *engine;               /* of it */
    const struct weft__tokenizer *tok; /* NULL: there is none */
    const struct weft__profiles *profiles;
    double goodput_ms[3];            /* ttft, tpot, e2el; 0: any */
    double load_of[WEFT__SWEEP_MAX]; /* [loads] of the sweep, ascending */
    int loads;
    bool by_rate; /* they are rates, else requests at once */
};

/* An event that brought output. */
struct weft__bench_event {
    uint64_t ns;
    int32_t tokens; /* completion_tokens so far when the event says it, else -1 */
    bool text;      /* not an empty one */
};

struct weft__bench_request { /* owns what it points to */
    char *body;              /* for a server */
    size_t body_len;
    int32_t *ids; /* [id_count] for the engine in this process */
    int64_t id_count;
    int64_t prompt_len; /* -1: not known without a tokenizer */
    int64_t output_len; /* asked for */
    uint64_t at_ns;     /* arrival, from the start */
    /* A later turn has no body or ids until the answer before it is there. */
    int64_t then; /* index of the next turn; -1: none */
    bool later;   /* this is one */
    char *say;    /* what a later turn adds to prompt and answer before it: text, or ids */
    int32_t *say_ids;
    int64_t say_count;

    uint64_t due_ns, slot_ns, start_ns, last_line_ns; /* slot: due, and a slot was free */
    struct weft__bench_event *event;
    int events, events_cap;
    int64_t usage_prompt, usage_output; /* -1: not said */
    struct weft__buf text;              /* kept when there is a tokenizer, or a next turn */
    int32_t *out;                       /* [events] ids of the answer, in-process */
    enum weft__bench_end end;
    int http;
    char error[200];
};

/* ---- random numbers (bench_random.c) ---- */

/* MT19937, seeded and bounded as numpy's legacy generator and Python's random do. */
struct weft__mt {
    uint32_t state[624];
    int at;
};
void weft__mt_seed(struct weft__mt *mt, uint32_t seed);                 /* numpy.random.seed */
void weft__mt_seed_python(struct weft__mt *mt, uint32_t seed);          /* random.seed */
int64_t weft__mt_range(struct weft__mt *mt, int64_t low, int64_t high); /* numpy randint */
int64_t weft__mt_python_below(struct weft__mt *mt, uint32_t n); /* random.randrange, n >= 1 */
double weft__mt_gamma(struct weft__mt *mt, double shape);

/* ---- data: what is asked, and when (bench_data.c) ---- */

struct weft__bench_data {
    struct weft__bench_request *request;
    int64_t count;
    int64_t broken;     /* lines or entries of the dataset that hold no prompt */
    int64_t dropped;    /* by the rules of lengths */
    struct weft__mt mt; /* arrivals are drawn after the data */
};

/* Whether the options give what their dataset needs; make asks, too. */
WEFT_CHECKED weft_status weft__bench_data_check(const struct weft__bench_options *o, bool tokenizer,
                                                weft_error *err);
WEFT_CHECKED weft_status weft__bench_data_make(const struct weft__bench_options *o,
                                               struct weft__bench_data *out, weft_error *err);
/* Sets at_ns by the rate; make has done it once. */
void weft__bench_set_arrivals(const struct weft__bench_options *o, struct weft__bench_data *data);
void weft__bench_data_reset(struct weft__bench_data *data); /* forgets the answers */
void weft__bench_data_free(struct weft__bench_data *data);
/* The next line of a text that is not empty, without its end; false: there is none. */
bool weft__next_line(const char **at, const char *end, const char **line, size_t *len);
/* Sets how many tokens a body asks for. */
void weft__bench_set_tokens(const struct weft__bench_options *o, json_t *body, int64_t tokens);
/* Makes the body or the ids of `next` from the turn before it; false: no memory. */
bool weft__bench_next_turn(const struct weft__bench_options *o,
                           const struct weft__bench_request *last,
                           struct weft__bench_request *next);

/* ---- load: asks and times (bench_load.c a server, bench_engine.c the engine) ---- */

struct weft__bench_run {
    struct weft__bench_data *data;
    struct weft__watch *watch; /* NULL: of the warm-up */
    bool progress;             /* a bar on stderr */
    bool only_start;           /* warm-up: no arrival times */
    uint64_t duration_ns;      /* out: from the first dispatch to the last end */
    uint64_t cpu_ns;           /* out: of this process */
    int64_t events;            /* out: with output */
};
WEFT_CHECKED weft_status weft__bench_load(const struct weft__bench_options *o,
                                          struct weft__bench_run *run, weft_error *err);
WEFT_CHECKED weft_status weft__bench_load_engine(const struct weft__bench_options *o,
                                                 struct weft__bench_run *run, weft_error *err);
/* GET of a path of the server; *http is the status. */
WEFT_CHECKED weft_status weft__bench_get(const struct weft__bench_options *o, const char *path,
                                         long timeout_ms, struct weft__buf *body, long *http,
                                         weft_error *err);
/* The first model id of /v1/models; caller frees. */
WEFT_CHECKED weft_status weft__bench_model(const struct weft__bench_options *o, char **out,
                                           weft_error *err);

/* ---- pace: which request is due when (bench_pace.c) ---- */

struct weft__pace {
    const struct weft__bench_options *o;
    struct weft__bench_run *run;
    struct weft__bench_request *request; /* [count] those of the run */
    int64_t count;
    int64_t limit, active, next, finished, failed;
    int64_t *ready; /* ring [count] of later turns that can be sent */
    int64_t ready_head, ready_count;
    uint64_t begin_ns, freed_ns, shown_due_ns; /* freed: when the last missing slot came */
};
int64_t weft__pace_limit(const struct weft__bench_options *o, const struct weft__bench_run *run);
WEFT_CHECKED weft_status weft__pace_begin(const struct weft__bench_options *o,
                                          struct weft__bench_run *run, struct weft__pace *out,
                                          weft_error *err);
void weft__pace_end(struct weft__pace *pace); /* says how long it took; zeroed is allowed */
bool weft__pace_over(const struct weft__pace *pace);
/* The request to send now, if one is due and there is a slot; its times are set. */
struct weft__bench_request *weft__pace_take(struct weft__pace *pace);
/* When take may have one, or the progress bar is due; UINT64_MAX: not before one ends. */
uint64_t weft__pace_due(const struct weft__pace *pace);
void weft__pace_done(struct weft__pace *pace, struct weft__bench_request *r);
void weft__pace_show(struct weft__pace *pace);

/* ---- stream: server-sent events to timed output (bench_stream.c) ---- */

struct weft__sse {
    struct weft__buf line, data;
    struct weft__buf key, value; /* scratch of the JSON reader */
    bool after_cr, has_data;
    bool done;   /* [DONE] came */
    bool finish; /* a finish_reason came */
};
void weft__sse_init(struct weft__sse *sse);
void weft__sse_restart(struct weft__sse *sse);
void weft__sse_free(struct weft__sse *sse);
/* Bytes that came at `now`. Failures are noted in the request, the first one stays. */
void weft__sse_feed(struct weft__sse *sse, struct weft__bench_request *r, const char *bytes,
                    size_t len, uint64_t now, bool keep_text);
void weft__bench_fail(struct weft__bench_request *r, enum weft__bench_end end, const char *format,
                      ...) WEFT__PRINTF(3, 4);

/* ---- stats: what the times mean (bench_stats.c) ---- */

/* Prints the table, or with --json the object; appends it to --output-file. *out is the object,
 * caller frees. */
WEFT_CHECKED weft_status weft__bench_print(const struct weft__bench_options *o,
                                           const struct weft__bench_run *run, json_t **out,
                                           weft_error *err);
double weft__percentile(const double *sorted, int64_t count,
                        double percent); /* linear; 0 of none */
int weft__compare_doubles(const void *a, const void *b);

/* ---- power: what GPUs and packages draw, and why (bench_power.c) ---- */

struct weft__meter { /* a GPU, or a package of the host */
    char name[96], id[96];
    bool gpu;
    double limit_w, clock_max_mhz; /* NAN: not said */
};

struct weft__power_reading {  /* NAN: not said */
    double power_w, energy_j; /* energy: since open */
    double busy, memory_busy; /* percent */
    double clock_mhz, temperature_c, pcie_mbs, nvlink_mbs;
    uint64_t reasons; /* for slower clocks, as NVML numbers them */
};

struct weft__power;
WEFT_CHECKED weft_status weft__power_open(const char *powercap, struct weft__power **out,
                                          weft_error *err);
void weft__power_close(struct weft__power *power); /* NULL allowed */
int weft__power_count(const struct weft__power *power);
const struct weft__meter *weft__power_meter(const struct weft__power *power, int i);
const char *weft__power_note(const struct weft__power *power, bool gpu); /* why none; "" */
void weft__power_read(struct weft__power *power, int i, struct weft__power_reading *out);

/* ---- verdict: one decision for every source (bench_verdict.c) ---- */

/* name, word, meaning, what to measure next */
#define WEFT__VERDICTS(X)                                                                          \
    X(IDLE, "idle", "almost nothing ran",                                                          \
      "whether requests arrive at all, and whether the process that feeds it runs")                \
    X(SPIN, "spin-like", "always busy at a power that a polling kernel draws",                     \
      "progress: tokens a second, and the wait share of collectives of every rank; the rank that " \
      "arrives last is the cause; memory utilisation near 0 % confirms that nothing is read")      \
    X(LOW, "low power, cause unknown", "busy, but power carries neither working nor spinning",     \
      "memory utilisation or DRAM activity, SM clock and throttle reasons, and steps a second: "   \
      "small batches, launch gaps and waiting look the same here")                                 \
    X(WORKING, "working", "most of the time computes, or power says so",                           \
      "throughput against the model's limits says how well it works")                              \
    X(STARVED, "starved by communication", "most of a step is spent in collectives",               \
      "the rank that arrives last, if one does; weft comm-bench on this machine; fewer ranks")     \
    X(SPINNING, "spinning", "requests run, but no step ends",                                      \
      "which rank arrived last at which collective: the server's log names it when it times out")  \
    X(THROTTLED, "throttled", "the clocks are held down",                                          \
      "temperature, cooling and power supply: the reasons are listed with the clocks")             \
    X(NO_DATA, "no data", "utilisation or power is missing",                                       \
      "record both: nvidia-smi --query-gpu=index,utilization.gpu,power.draw,power.limit "          \
      "--format=csv -l 1")

enum weft__verdict {
#define X(name, word, meaning, next) WEFT__VERDICT_##name,
    WEFT__VERDICTS(X)
#undef X
        WEFT__VERDICT_COUNT
};
struct weft__verdict_words {
    const char *word, *meaning, *next;
};
extern const struct weft__verdict_words weft__verdict_words[];

struct weft__mean { /* of what was added, NANs aside */
    double sum, low, high;
    int64_t count;
};
void weft__mean_add(struct weft__mean *mean, double value);
double weft__mean_of(const struct weft__mean *mean); /* NAN of none */

struct weft__evidence { /* about a GPU, package or rank */
    struct weft__mean busy, memory, power;
    double limit_w; /* NAN: not known */
    int64_t samples;
    double throttled; /* share of samples with clocks held down by heat or supply */
    bool steps_known; /* the rest is set */
    double wall_s, compute_s, moving_s, waiting_s, sampling_s, steps;
    double stalled_s; /* longest time with requests running and no step ended */
};
struct weft__thresholds { /* shares of the power limit */
    double spin_below, working_from;
    bool calibrated;
};
struct weft__judged {
    enum weft__verdict verdict;
    double share; /* of the limit; NAN */
    const char *confidence;
};
extern const struct weft__thresholds weft__thresholds_default;
void weft__judge(const struct weft__evidence *e, const struct weft__thresholds *t,
                 struct weft__judged *out);
json_t *weft__thresholds_json(const struct weft__thresholds *t);

/* What `weft bench calibrate` measured, watts. */
struct weft__profile {
    char name[96];
    double limit_w, idle_w, spin_w, memory_w, compute_w;
};
struct weft__profiles {
    struct weft__profile profile[WEFT__METERS_MAX];
    int count;
};
bool weft__thresholds_of(const struct weft__profile *p, struct weft__thresholds *out);
WEFT_CHECKED weft_status weft__profiles_load(const char *path, struct weft__profiles *out,
                                             weft_error *err);
/* Of the profile of that name, NULL: the first; else the defaults. */
struct weft__thresholds weft__profiles_find(const struct weft__profiles *profiles,
                                            const char *name);

/* ---- watch: power and progress through a run (bench_watch.c) ---- */

/* member, its name in /metrics */
#define WEFT__RANK_TIMES(X)               \
    X(prefill, "prefill_seconds_total")   \
    X(decode, "decode_seconds_total")     \
    X(moving, "collective_seconds_total") \
    X(waiting, "wait_seconds_total")      \
    X(sampling, "sample_seconds_total")   \
    X(steps, "steps_total")

struct weft__rank_time { /* since the engine's start; seconds, but steps */
#define X(member, metric) double member;
    WEFT__RANK_TIMES(X)
#undef X
};
struct weft__progress {
    int ranks;
    bool gpu; /* rank r runs on GPU r */
    double clock_s, http_s, running;
    struct weft__rank_time rank[WEFT__MAX_RANKS];
};

struct weft__point {
    double at_s;
    struct weft__power_reading reading[WEFT__METERS_MAX];
};

struct weft__watched { /* about a meter */
    struct weft__mean busy, memory, power, clock, temperature, pcie, nvlink;
    int64_t samples, reason[16]; /* samples with the bit */
    int64_t throttled;           /* samples with one of the bits of heat or supply */
    double energy_j;
};

struct weft__watch;
/* Reads once, then ten times a second on a thread of its own. power NULL: nothing is metered. */
WEFT_CHECKED weft_status weft__watch_start(const struct weft__bench_options *o,
                                           struct weft__power *power, struct weft__watch **out,
                                           weft_error *err);
void weft__watch_stop(struct weft__watch *watch); /* reads once more */
void weft__watch_free(struct weft__watch *watch); /* NULL allowed */
const struct weft__power *weft__watch_power(const struct weft__watch *watch);
const struct weft__watched *weft__watch_meter(const struct weft__watch *watch, int i);
/* False: the server does not tell. Of the time between start and stop. */
bool weft__watch_progress(const struct weft__watch *watch, struct weft__progress *out,
                          double *stalled_s);
/* Readings, thinned out when there are too many. */
const struct weft__point *weft__watch_points(const struct weft__watch *watch, int64_t *count);

/* ---- where: time, power and verdict in words (bench_where.c) ---- */

void weft__where_print(const struct weft__watch *watch, const struct weft__profiles *profiles,
                       int64_t output_tokens);
json_t *weft__where_json(const struct weft__watch *watch, const struct weft__profiles *profiles,
                         int64_t output_tokens);

/* ---- other parts of the command ---- */

/* One page with the runs [count] of this command. */
WEFT_CHECKED weft_status weft__bench_report(const char *path, const json_t *runs, weft_error *err);
/* As a file, or as a line behind those a file has. */
WEFT_CHECKED weft_status weft__bench_write_json(const char *path, bool append, const json_t *value,
                                                weft_error *err);
int weft__bench_calibrate(int argc, char **argv);
int weft__bench_diagnose(int argc, char **argv);
int weft__bench_compare(int argc, char **argv);

#endif
