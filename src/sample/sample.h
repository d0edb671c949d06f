/* sample.h: from one row of logits to a token and log-probabilities.
 *
 * Functions of their arguments alone: the same row, settings and position give the same token
 * whatever else is in the batch, on every machine. Order: penalties, bias and masks, temperature,
 * top-k, top-p, min-p, sample. Equal logits: the lower id counts as larger. */
#ifndef WEFT_SRC_SAMPLE_H
#define WEFT_SRC_SAMPLE_H

#include "base/base.h"

enum {
    WEFT__LOGIT_BIAS_MAX = 1024, /* entries of one request */
    WEFT__TOP_LOGPROBS_MAX = 20, /* alternatives listed a token */
};

/* The lowest and the highest value of each setting, on command lines, in requests and in files. */
#define WEFT__TEMPERATURE_RANGE 0, 100
#define WEFT__TOP_P_RANGE 0, 1
#define WEFT__MIN_P_RANGE 0, 1
#define WEFT__REPETITION_PENALTY_RANGE 0.01, 10
#define WEFT__OUTPUT_PENALTY_RANGE -2, 2 /* frequency, presence */

struct weft__logit_bias {
    int32_t token;
    float bias; /* -100 .. 100, added after the penalties */
};

/* Settings of one request. Zeroed is not neutral: start from weft__sampling_default. */
struct weft__sampling {
    float temperature;        /* 0: greedy, the largest logit */
    float top_p;              /* 1: off */
    int32_t top_k;            /* at most 0: off */
    float min_p;              /* 0: off; relative to the largest probability */
    float repetition_penalty; /* 1: off; over prompt and output */
    float frequency_penalty;  /* over output */
    float presence_penalty;   /* over output */
    uint64_t seed;
    const struct weft__logit_bias *bias; /* [bias_count], borrowed */
    int32_t bias_count;
};

/* Temperature 1, everything else off, seed 0. */
extern const struct weft__sampling weft__sampling_default;

/* Names the first setting out of its range; ids must be below vocab. */
weft_status weft__sampling_check(const struct weft__sampling *sampling, int64_t vocab,
                                 weft_error *err);

/* Work space for rows of one vocabulary; one thread at a time. */
struct weft__sampler;

/* usable: ids from here on are in the model's padded vocabulary but not in the tokenizer, and are
 * never chosen or listed. 1 <= usable <= vocab. */
weft_status weft__sampler_open(int64_t vocab, int64_t usable, struct weft__sampler **out,
                               weft_error *err);
void weft__sampler_close(struct weft__sampler *sampler); /* NULL allowed */

/* One row to sample from. Everything is borrowed. */
struct weft__sample_row {
    const float *logits; /* [vocab] */
    const struct weft__sampling *sampling;
    const int32_t *prompt; /* [prompt_count] for the repetition penalty */
    int64_t prompt_count;
    const int32_t *output; /* [output_count] tokens sampled so far, for all penalties */
    int64_t output_count;
    const uint32_t *allowed; /* NULL, or bit id % 32 of word id / 32 set: may be chosen */
    const int32_t *banned;   /* [banned_count] ids not to choose: stop ids before min_tokens */
    int32_t banned_count;
    uint32_t sample; /* which of n samples; with the seed and position the generator's key */
};

/* FORMAT: a logit is NaN or infinite; INVALID: no id may be chosen. */
weft_status weft__sample(struct weft__sampler *sampler, const struct weft__sample_row *row,
                         int32_t *token, weft_error *err);

/* Log-softmax of the model's own logits, before penalties and temperature. */
struct weft__logprobs {
    int32_t token; /* the token in question */
    float logprob;
    int32_t count; /* entries below: the top ones, best first, then `token` unless among them */
    int32_t top_token[WEFT__TOP_LOGPROBS_MAX + 1];
    float top_logprob[WEFT__TOP_LOGPROBS_MAX + 1];
};

/* top: 0 .. WEFT__TOP_LOGPROBS_MAX alternatives. token: 0 .. vocab - 1. FORMAT as above. */
weft_status weft__logprobs_of(struct weft__sampler *sampler, const float *logits, int32_t token,
                              int32_t top, struct weft__logprobs *out, weft_error *err);

/* The generator: Philox4x32-10 (Salmon et al., SC 2011). Uniform in [0, 1), 53 bits. */
double weft__uniform(uint64_t seed, uint32_t sample, uint64_t position);
void weft__philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

#endif
