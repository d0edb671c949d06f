/* sched.h: continuous batching: requests in, one batch a step out, tokens back.
 *
 * Pure and single-threaded: no clock, no device, no I/O. The engine's thread drives it:
 *
 *     while (weft__sched_plan(sched, weft__now_ns(), &batch)) {
 *         run the model on *batch -> logits [batch->outputs, vocab]
 *         weft__sched_accept(sched, logits);
 *     }
 *
 * A request has `samples` samples; each runs as a sequence of its own and reports through the
 * request's callbacks. Decode rows come first in a batch, then chunks of prompts, first come first
 * served within a priority. KV lives in pages of WEFT__PAGE tokens; full pages are shared between
 * sequences with the same beginning (prefix cache) and kept, least recently used out first, until
 * their room is needed. When the pool is full the sequence with the least output gives its pages
 * back and is recomputed later; its client sees only a pause. Whatever happens around it, a
 * sequence gets the same rows at the same positions with the same `generated` flags, so its tokens
 * depend on nothing else. */
#ifndef WEFT_SRC_SCHED_H
#define WEFT_SRC_SCHED_H

#include "dev/dev.h"
#include "sample/sample.h"

enum {
    WEFT__STOP_IDS_MAX = 64,       /* stop ids of one request; also eos ids of a model */
    WEFT__SAMPLES_MAX = 128,       /* samples of one request */
    WEFT__CHUNK_MAX = 1 << 20,     /* tokens of a step */
    WEFT__SEQUENCES_MAX = 1 << 20, /* running and waiting */
    WEFT__PAGES_MAX = 1 << 26,
    WEFT__GROWTH = 64, /* tokens: the value for `growth` */
    WEFT__PIECE = 512, /* rows: the value for `piece` */
};

struct weft__sched_options {
    int64_t pages;       /* KV pages in the pool, numbered from 0 */
    int64_t chunk;       /* rows of a batch, at most */
    int64_t piece;       /* of them prompt rows where others decode, but for bursts */
    int64_t max_outputs; /* rows with logits, at most */
    int64_t max_running; /* sequences in the pool; at most chunk and at most max_outputs */
    int64_t max_queue;   /* sequences accepted beyond max_running */
    int64_t context;     /* tokens of a sequence, prompt and output, at most */
    int64_t answer;      /* tokens of a sample whose request sets no max_tokens; 0: no limit */
    /* A sequence is admitted only while every running one could then add as many tokens, or its
     * last, without a retraction. With 0 a full pool spends up to two rows in five on recomputing
     * what it retracted; far above WEFT__GROWTH it stands half empty (sched_policy_test). */
    int64_t growth;
    int64_t vocab;        /* columns of logits */
    int64_t usable_vocab; /* ids the tokenizer knows: the others are never sampled */
    const int32_t *eos;   /* [eos_count], copied */
    int32_t eos_count;
    /* Rows of generated tokens leave the same bits in the KV cache as prompt rows would. False for
     * MLA, whose two forms differ in rounding: then only prompt pages are shared. */
    bool cache_generated;
};

#define WEFT__FINISHES(X)                                         \
    X(STOP, "stop")       /* eos, stop id, or weft__sched_stop */ \
    X(LENGTH, "length")   /* max_tokens or context reached */     \
    X(CANCELLED, "abort") /* weft__sched_cancel */                \
    X(TIMEOUT, "timeout") /* deadline passed */                   \
    X(FAILED, "error")    /* weft__sched_fail_all, or logits that are not numbers */

enum weft__finish {
#define X(name, text) WEFT__FINISH_##name,
    WEFT__FINISHES(X)
#undef X
        WEFT__FINISH_COUNT
};

const char *weft__finish_name(enum weft__finish finish); /* never NULL */

struct weft__token_event {
    int32_t sample; /* 0 .. samples - 1 */
    int32_t token;
    int64_t index; /* 0 for the sample's first token */
    bool stop;     /* an eos or stop id: counted, but usually not part of the text */
    const struct weft__logprobs *logprobs; /* NULL unless asked for; valid during the call */
};

struct weft__prompt_event { /* of position 1 and up: position 0 has no probability */
    int64_t position;
    const struct weft__logprobs *logprobs; /* valid during the call */
};

struct weft__finish_event {
    int32_t sample;
    enum weft__finish finish;
    int32_t stop_token; /* the id that ended it, or -1 */
    int64_t prompt_tokens;
    int64_t cached_tokens;    /* of the prompt, not computed thanks to the prefix cache */
    int64_t generated_tokens; /* stop id included */
    int64_t retractions;
    uint64_t admitted_ns;    /* `now` of the plan that first ran it; 0: never ran */
    const weft_error *error; /* FAILED: why; else NULL. Valid during the call */
};

struct weft__request {
    const int32_t *prompt; /* [prompt_count], copied */
    int64_t prompt_count;
    int64_t max_tokens;             /* a sample, at most; negative: what is left of the context */
    int64_t min_tokens;             /* no eos and no stop id before as many tokens */
    int32_t samples;                /* 1 .. WEFT__SAMPLES_MAX */
    struct weft__sampling sampling; /* bias copied */
    const int32_t *stop;            /* [stop_count] ids that end a sample beside eos, copied */
    int32_t stop_count;
    bool ignore_eos;
    bool logprobs;        /* of generated tokens */
    bool prompt_logprobs; /* of prompt tokens from position max(1, prompt_logprobs_from) */
    int64_t prompt_logprobs_from;
    int32_t top_logprobs; /* alternatives listed with each, 0 .. WEFT__TOP_LOGPROBS_MAX */
    int32_t priority;     /* higher runs first */
    uint64_t deadline_ns; /* on the scale of plan's `now`; 0: none */
    uint64_t cache_salt;  /* pages are shared only between requests of the same salt */

    /* Called from plan, accept and fail_all, on their thread. A callback may call cancel and stop,
     * nothing else of this header. For each sample any number of on_token, then one on_finish,
     * after which the sample is not mentioned again. on_prompt comes before the first on_token. */
    void *ctx;
    void (*on_token)(void *ctx, const struct weft__token_event *event);
    void (*on_finish)(void *ctx, const struct weft__finish_event *event);
    void (*on_prompt)(void *ctx, const struct weft__prompt_event *event); /* if prompt_logprobs */
    /* NULL, or gives the ids the next token may be, one bit each [ceil(vocab / 32)], borrowed until
     * the next call; NULL from it: any. For constrained decoding. */
    const uint32_t *(*allowed)(void *ctx, int32_t sample);
};

struct weft__sched;

weft_status weft__sched_open(const struct weft__sched_options *options, struct weft__sched **out,
                             weft_error *err);
/* Samples still there are dropped without a callback: fail_all first. NULL allowed. */
void weft__sched_close(struct weft__sched *sched);

/* Accepts a request whole or not at all; *handle names it until its last on_finish and is never
 * used again. INVALID: a field out of range. TOO_LONG: more tokens than the context or the pool
 * hold. BUSY: the queue is full now. NO_MEMORY. Not from a callback. */
weft_status weft__sched_submit(struct weft__sched *sched, const struct weft__request *request,
                               uint64_t *handle, weft_error *err);

/* Ends all samples of a request, or one of them as by a stop id; on_finish comes within the running
 * accept or the next plan or accept. A stale handle is ignored. */
void weft__sched_cancel(struct weft__sched *sched, uint64_t handle);
void weft__sched_stop(struct weft__sched *sched, uint64_t handle, int32_t sample);

/* The next step's batch, valid until accept or fail_all; false when there is nothing to do. Every
 * plan that returned true is followed by accept or fail_all. */
bool weft__sched_plan(struct weft__sched *sched, uint64_t now_ns, const struct weft__batch **batch);

/* logits [batch->outputs, vocab] of the planned batch. */
void weft__sched_accept(struct weft__sched *sched, const float *logits);

/* The engine can't go on: every sample finishes with FAILED and this error. */
void weft__sched_fail_all(struct weft__sched *sched, const weft_error *why);

/* Forgets cached pages that no sequence uses. */
void weft__sched_flush(struct weft__sched *sched);

struct weft__sched_counters {
    int64_t running, waiting; /* sequences */
    int64_t pages, pages_used, pages_cached,
        pages_free; /* used: by sequences; cached: kept, idle */
    /* Totals since open: */
    int64_t prompt_tokens, cached_tokens; /* accepted into the pool; of them not computed */
    int64_t generated_tokens;
    int64_t computed_tokens; /* rows of all batches, recomputed ones included */
    int64_t steps, retractions;
    int64_t finished[WEFT__FINISH_COUNT];
};

struct weft__sched_counters weft__sched_counters(const struct weft__sched *sched);

#endif
