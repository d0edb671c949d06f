/* Any bits as logits, any settings that pass the check: a token that may be chosen, or an error. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sample/sample.h"

enum { VOCAB = 96, USABLE = 90 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(condition)           \
    do {                           \
        if (!(condition)) abort(); \
    } while (0)

struct input {
    struct {
        float temperature, top_p, min_p, repetition, frequency, presence;
        int32_t top_k;
        uint32_t bits;
    } settings;
    struct weft__logit_bias bias[2];
    uint32_t allowed[3];
    uint8_t prompt[8], output[8];
    float logits[VOCAB];
};

static void check_token(const struct weft__sample_row *row, int32_t token)
{
    CHECK(token >= 0 && token < USABLE);
    for (int32_t i = 0; i < row->banned_count; i++) CHECK(token != row->banned[i]);
    if (row->allowed != NULL) CHECK(row->allowed[token / 32] >> (token % 32) & 1u);
    if (row->sampling->temperature != 0 || row->output_count + row->prompt_count > 0) return;
    for (int32_t v = 0; v < USABLE && row->allowed == NULL && row->banned_count == 0; v++) {
        float a = row->logits[v], b = row->logits[token];
        for (int32_t i = 0; i < row->sampling->bias_count; i++) {
            if (row->sampling->bias[i].token == v) a += row->sampling->bias[i].bias;
            if (row->sampling->bias[i].token == token) b += row->sampling->bias[i].bias;
        }
        CHECK(a < b || (a == b && v >= token));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct weft__sampler *sampler;
    if (sampler == NULL) CHECK(weft__sampler_open(VOCAB, USABLE, &sampler, NULL) == WEFT_OK);
    struct input in = {0};
    memcpy(&in, data, size < sizeof in ? size : sizeof in);
    const struct weft__sampling s = {.temperature = in.settings.temperature,
                                     .top_p = in.settings.top_p,
                                     .top_k = in.settings.top_k,
                                     .min_p = in.settings.min_p,
                                     .repetition_penalty = in.settings.repetition,
                                     .frequency_penalty = in.settings.frequency,
                                     .presence_penalty = in.settings.presence,
                                     .seed = in.settings.bits,
                                     .bias = in.bias,
                                     .bias_count = (int32_t)(in.settings.bits % 3)};
    if (weft__sampling_check(&s, VOCAB, NULL) != WEFT_OK) return 0;
    int32_t prompt[8], output[8], banned[1] = {(int32_t)(in.settings.bits >> 8 & 63)};
    for (int i = 0; i < 8; i++) prompt[i] = in.prompt[i] % VOCAB;
    for (int i = 0; i < 8; i++) output[i] = in.output[i] % VOCAB;
    const struct weft__sample_row row = {.logits = in.logits,
                                         .sampling = &s,
                                         .prompt = prompt,
                                         .prompt_count = in.settings.bits >> 16 & 7,
                                         .output = output,
                                         .output_count = in.settings.bits >> 20 & 7,
                                         .allowed = in.settings.bits >> 24 & 1 ? in.allowed : NULL,
                                         .banned = banned,
                                         .banned_count = (int32_t)(in.settings.bits >> 25 & 1)};
    bool finite = true;
    for (int i = 0; i < VOCAB; i++) finite &= isfinite(in.logits[i]) != 0;

    int32_t token = -1, again = -1;
    struct weft__logprobs logprobs;
    weft_status status = weft__sample(sampler, &row, &token, NULL);
    CHECK(finite == (status != WEFT_FORMAT));
    CHECK((weft__logprobs_of(sampler, in.logits, prompt[0], 5, &logprobs, NULL) == WEFT_OK) ==
          finite);
    if (finite) CHECK(logprobs.logprob <= 0 && logprobs.count >= 5 && logprobs.count <= 6);
    if (status != WEFT_OK) return 0;
    check_token(&row, token);
    CHECK(weft__sample(sampler, &row, &again, NULL) == WEFT_OK && again == token);
    return 0;
}
