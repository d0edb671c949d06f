/* Fuzzes request bodies: JSON, every field, prompts and messages through template and tokenizer. A
 * body is either refused with a status and words, or within the limits that the engine is given. */
#include <stdlib.h>
#include <string.h>

#include "http/private.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len);

static struct weft__server server;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const weft_engine_options options = {.ranks = 1, .threads = 1, .kv_tokens = 1024};
    weft_error err;
    (void)argc;
    (void)argv;
    server.options.model = "atlas";
    server.text_max = 1 << 20;
    if (weft_engine_open(WEFT_SOURCE_DIR "/models/atlas", &options, &server.engine, &err) !=
        WEFT_OK)
        abort();
    return 0;
}

static void check_ask(const struct weft__ask *ask)
{
    const struct weft__sampling *s = &ask->sampling;
    if (ask->samples < 1 || ask->samples > WEFT__SAMPLES_MAX || ask->min_tokens < 0 ||
        ask->logprobs > WEFT__TOP_LOGPROBS_MAX || ask->stops.count > WEFT__STOPS_MAX ||
        ask->stop_id_count > WEFT__STOP_IDS_MAX || s->bias_count > WEFT__LOGIT_BIAS_MAX)
        abort();
    for (int i = 0; i < ask->stops.count; i++)
        if (ask->stops.stop[i].len == 0) abort();
    /* Only ids beyond the vocabulary are left for the engine to refuse. */
    weft_error err;
    if (weft__sampling_check(s, INT32_MAX, &err) != WEFT_OK) abort();
}

static void check_refusal(const struct weft__refusal *refusal)
{
    struct weft__buf out;
    if (refusal->status < 400 || refusal->status > 404 || refusal->message[0] == '\0') abort();
    weft__buf_init(&out, 1 << 16);
    weft__put_refusal(&out, refusal);
    json_t *value = json_loadb(out.data, out.len, 0, NULL);
    if (value == NULL) abort();
    json_decref(value);
    weft__buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len)
{
    struct weft__ask ask = {0};
    struct weft__refusal refusal = {0};
    struct weft__prompt *prompts = NULL;
    struct weft__buf body;
    int count = 0;
    if (len < 1) return 0;
    ask.kind = (enum weft__ask_kind)(input[0] % 3);
    weft__buf_init(&body, len);
    weft__buf_append(&body, input + 1, len - 1);
    json_t *root = weft__body_parse(&body, &refusal);
    bool ok = root != NULL && weft__ask_read(&ask, &server, root, &refusal);
    if (ok) check_ask(&ask);
    ok = ok && weft__prompts_read(&server, &ask, &prompts, &count, &refusal);
    if (!ok) check_refusal(&refusal);
    for (int i = 0; i < count; i++)
        if (prompts[i].ids.len == 0) abort();
    weft__prompts_free(prompts, count);
    weft__ask_free(&ask);
    json_decref(root);
    weft__buf_free(&body);
    return 0;
}
