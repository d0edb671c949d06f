/* weft.h: load a model and generate text with it. One engine is one model on one set of ranks; its
 * functions may be called from any thread, and calls that generate run side by side in one batch.
 * Hidden behind the handle: ranks and their threads, the scheduler, the KV cache, the tokenizer. */
#ifndef WEFT_H
#define WEFT_H

#include <stdbool.h>

#include "weft_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_engine weft_engine;

/* Zeroed fields mean the default. */
typedef struct weft_engine_options {
    int ranks;           /* tensor parallel, 1 to 16; default: one a NUMA node, at most one a CPU */
    int threads;         /* of each rank; default: the CPUs there are, or a quota is for, shared */
    int64_t context;     /* tokens of a sequence; default: the model's, or what fits in memory */
    int64_t kv_tokens;   /* size of the KV pool; default: what max_running needs, or what fits */
    int64_t chunk;       /* tokens of a step; 2048 beside what running requests get */
    int64_t max_running; /* sequences at once; 64 */
    int64_t max_queue;   /* sequences waiting beyond those; 4096 */
    uint32_t timeout_ms; /* how long a rank without a sign of life is waited for; 30000 */
    weft_activations activations;
    /* NULL: ranks are threads. Else each is a process, this one rank 0: see weft_engine_follow and
     * weft_world_options. */
    const char *rendezvous;
    bool portable; /* plain C kernels even where faster ones run: same bits, slower */
    /* Called while loading with the share done, 0 to 1, from a thread of the engine. */
    void (*on_progress)(void *ctx, double share);
    void *ctx;
} weft_engine_options;

/* Opens a Hugging Face directory: config.json, *.safetensors, tokenizer.json. Options may be NULL:
 * all defaults. */
WEFT_API WEFT_CHECKED weft_status weft_engine_open(const char *dir,
                                                   const weft_engine_options *options,
                                                   weft_engine **out, weft_error *err);
/* Another rank, 1 to ranks - 1, of an engine whose rank 0 is another process: returns when that one
 * has closed its engine, or with the failure. The model must be at dir here, too; of the options,
 * ranks, rendezvous and timeout_ms count. */
WEFT_API WEFT_CHECKED weft_status weft_engine_follow(const char *dir,
                                                     const weft_engine_options *options, int rank,
                                                     weft_error *err);
/* Ends running generations with WEFT_CLOSED. A rank that hangs is left behind after five seconds,
 * with the memory it uses. NULL is allowed. */
WEFT_API void weft_engine_close(weft_engine *engine);

typedef struct weft_message {
    const char *role;    /* "system", "user", "assistant" */
    const char *content; /* UTF-8 */
} weft_message;

typedef struct weft_generation {
    /* The prompt, one of: messages for the model's chat template, text as it is, ids. */
    const weft_message *messages;
    int message_count;
    const char *text; /* UTF-8, NUL-terminated */
    const int32_t *ids;
    int64_t id_count;

    int64_t max_tokens; /* 0: the checkpoint's max_new_tokens, else what is left of the context */
    /* Negative: the checkpoint's generation_config.json, else 1, 1, off, 0, 1. */
    double temperature; /* 0: greedy */
    double top_p;
    int64_t top_k;
    double min_p;
    double repetition_penalty;
    uint64_t seed;
    bool ignore_eos;

    /* Whole characters as they become certain; false ends the generation. May be NULL. Called on
     * the engine's thread: do little. */
    bool (*on_text)(void *ctx, const char *text, size_t len);
    void *ctx;
} weft_generation;

/* Everything neutral: set the prompt and what you want to change. */
#define WEFT_GENERATION_DEFAULT                                                            \
    {                                                                                      \
        .temperature = -1, .top_p = -1, .top_k = -1, .min_p = -1, .repetition_penalty = -1 \
    }

typedef struct weft_generated {
    char *text; /* NUL-terminated; free with weft_generated_free */
    size_t len;
    int64_t prompt_tokens, cached_tokens, generated_tokens;
    bool complete; /* the model ended it; else max_tokens, the context or on_text did */
    uint64_t prefill_ns, decode_ns; /* until the first token; from then to the last */
} weft_generated;

WEFT_API WEFT_CHECKED weft_status weft_generate(weft_engine *engine,
                                                const weft_generation *generation,
                                                weft_generated *out, weft_error *err);
WEFT_API void weft_generated_free(weft_generated *generated);

#ifdef __cplusplus
}
#endif

#endif
