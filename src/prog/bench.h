/* bench.h: what the files of `weft bench` share. */
#ifndef WEFT_SRC_PROG_BENCH_H
#define WEFT_SRC_PROG_BENCH_H

#include <jansson.h>

#include "prog.h"

enum {
    WEFT__BENCH_MAX_REQUESTS = 1 << 22,
    WEFT__BENCH_MAX_EVENTS = 1 << 22, /* of a request */
    WEFT__BENCH_MAX_FILE = 1 << 30,   /* of a dataset or a result */
    WEFT__BENCH_SHOWN = 3,            /* error texts that are quoted */
};

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
    X(TRANSPORT, "transport error")

enum weft__bench_end {
#define X(name, words) WEFT__END_##name,
    WEFT__BENCH_ENDS(X)
#undef X
        WEFT__END_COUNT
};

struct weft__bench_options {
    const char *url, *endpoint, *dataset, *dataset_path, *model, *tokenizer, *format, *ratio_mode;
    const char *goodput, *output_file, *header, *extra_body, *tag;
    int64_t prompts, input_len, output_len, seed, concurrency, warmup, vocab, context_len,
        timeout_s;
    int64_t repeats;
    double range_ratio, rate, burstiness, temperature, top_p;
    bool stop_at_eos, send_ids, allow_failures, json, no_progress, details;
    /* made of those */
    enum weft__bench_api api;
    enum weft__bench_rules rules;       /* of definitions, table and arrivals */
    enum weft__bench_rules range_rules; /* of lengths */
    double goodput_ms[3];               /* ttft, tpot, e2el; 0: any */
};

/* An event that brought output. */
struct weft__bench_event {
    uint64_t ns;
    int32_t tokens; /* completion_tokens so far when the event says it, else -1 */
    bool text;      /* not an empty one */
};

struct weft__bench_request {
    char *body; /* caller of weft__bench_data_free frees */
    size_t body_len;
    int64_t prompt_len; /* -1: not known without a tokenizer */
    int64_t output_len; /* asked for */
    uint64_t at_ns;     /* arrival, from the start */

    uint64_t due_ns, slot_ns, start_ns, last_line_ns; /* slot: due, and a slot was free */
    struct weft__bench_event *event;
    int events, events_cap;
    int64_t usage_prompt, usage_output; /* -1: not said */
    struct weft__buf text;              /* kept when there is a tokenizer */
    enum weft__bench_end end;
    int http;
    char error[200];
};

/* ---- data: what is asked, and when (bench_data.c) ---- */

/* MT19937, seeded and bounded as numpy's legacy generator and Python's random do. */
struct weft__mt {
    uint32_t state[624];
    int at;
};
void weft__mt_seed(struct weft__mt *mt, uint32_t seed);        /* numpy.random.seed */
void weft__mt_seed_python(struct weft__mt *mt, uint32_t seed); /* random.seed */
uint32_t weft__mt_next(struct weft__mt *mt);
int64_t weft__mt_range(struct weft__mt *mt, int64_t low, int64_t high); /* numpy randint */
double weft__mt_double(struct weft__mt *mt);                            /* [0, 1) */

struct weft__bench_data {
    struct weft__bench_request *request;
    int64_t count;
    int64_t broken;  /* lines or entries of the dataset that hold no prompt */
    int64_t dropped; /* by the rules of lengths */
};

struct weft__tokenizer; /* NULL: there is none */
WEFT_CHECKED weft_status weft__bench_data_make(const struct weft__bench_options *o,
                                               const struct weft__tokenizer *tok,
                                               struct weft__bench_data *out, weft_error *err);
void weft__bench_data_reset(struct weft__bench_data *data); /* forgets the answers */
void weft__bench_data_free(struct weft__bench_data *data);

/* ---- load: asks and times (bench_load.c) ---- */

struct weft__bench_run {
    struct weft__bench_request *request;
    int64_t count;
    bool progress;        /* a bar on stderr */
    bool keep_text;       /* for counting tokens */
    bool only_start;      /* warm-up: no arrival times */
    uint64_t duration_ns; /* out: from the first dispatch to the last end */
    uint64_t cpu_ns;      /* out: of this process */
    int64_t events;       /* out: with output */
};
WEFT_CHECKED weft_status weft__bench_load(const struct weft__bench_options *o,
                                          struct weft__bench_run *run, weft_error *err);
/* The first model id of /v1/models; caller frees. */
WEFT_CHECKED weft_status weft__bench_model(const struct weft__bench_options *o, char **out,
                                           weft_error *err);

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

/* Prints the table, or with --json the object; appends it to --output-file. */
WEFT_CHECKED weft_status weft__bench_print(const struct weft__bench_options *o,
                                           const struct weft__tokenizer *tok,
                                           const struct weft__bench_data *data,
                                           const struct weft__bench_run *run, weft_error *err);
double weft__percentile(const double *sorted, int64_t count,
                        double percent); /* linear; 0 of none */
int weft__compare_doubles(const void *a, const void *b);

/* ---- other parts of the command ---- */

int weft__bench_diagnose(int argc, char **argv);
int weft__bench_compare(int argc, char **argv);

#endif
