/* weft perplexity: how well a model predicts a text. */
#include <math.h>
#include <stdio.h>

#include "prog.h"

enum { DEFAULT_WINDOW = 1024 };

struct score {
    int64_t tokens, scored, window;
    int ranks;
    double sum; /* of -ln p of the scored tokens */
    uint64_t ns;
    struct weft__bar bar;
};

/* -ln softmax(logits)[token] */
static double surprise(const float *logits, int64_t vocab, int32_t token)
{
    double most = -INFINITY, sum = 0;
    for (int64_t v = 0; v < vocab; v++) most = fmax(most, (double)logits[v]);
    for (int64_t v = 0; v < vocab; v++) sum += exp((double)logits[v] - most);
    return log(sum) + most - (double)logits[token];
}

/* ids[0 .. count): every token but the first, given those before it. */
static weft_status score_window(struct weft__solo *solo, const int32_t *ids, int64_t count,
                                struct score *s, weft_error *err)
{
    int64_t chunk = solo->plan.ranks.limits.outputs, vocab = solo->arch.vocab;
    const float *logits;
    /* Nothing comes after the last token: it need not run. */
    for (int64_t first = 0; first < count - 1; first += chunk) {
        int64_t n = weft__min(chunk, count - 1 - first);
        for (int64_t i = 0; i < n; i++) solo->token[i] = ids[first + i];
        const struct weft__solo_rows rows = {.first = first, .count = n, .wanted = first};
        WEFT__TRY(weft__solo_step(solo, rows, &logits, err));
        for (int64_t i = 0; i < n; i++)
            s->sum += surprise(logits + i * vocab, vocab, ids[first + i + 1]);
        s->scored += n;
        weft__bar_show(&s->bar, (double)s->scored / (double)s->tokens);
    }
    return WEFT_OK;
}

static weft_status score_ids(struct weft__solo *solo, const struct weft__ids *ids,
                             struct score *out, weft_error *err)
{
    struct score s = {
        .tokens = (int64_t)ids->len, .window = solo->plan.context, .ranks = solo->plan.ranks.size};
    uint64_t start = weft__now_ns();
    s.bar = weft__bar_start("scoring");
    for (size_t i = 0; i < ids->len; i++)
        if (ids->data[i] >= solo->arch.vocab)
            return weft__fail(err, WEFT_FORMAT,
                              "the tokenizer has token %d, the model only %lld: they do not belong "
                              "together",
                              ids->data[i], (long long)solo->arch.vocab);
    weft_status status = WEFT_OK;
    for (int64_t first = 0; first < s.tokens && status == WEFT_OK; first += s.window)
        status =
            score_window(solo, ids->data + first, weft__min(s.window, s.tokens - first), &s, err);
    weft__bar_end(&s.bar);
    if (status != WEFT_OK) return status;
    if (!isfinite(s.sum))
        return weft__fail(err, WEFT_FORMAT, "the model gives logits that are not numbers");
    s.ns = weft__now_ns() - start;
    *out = s;
    return WEFT_OK;
}

static void print_score(const struct score *s, bool json)
{
    double mean = s->sum / (double)s->scored, rate = (double)s->tokens * 1e9 / (double)s->ns;
    (void)printf(json ? "{\"tokens\": %lld, \"scored\": %lld, \"window\": %lld, \"tp\": %d, "
                        "\"nll\": %.9g, \"perplexity\": %.9g, \"tokens_per_second\": %.6g}\n"
                      : "%lld tokens (%lld scored, windows of %lld), tp %d: mean negative "
                        "log-likelihood %.6f, perplexity %.4f, %.1f tokens/s\n",
                 (long long)s->tokens, (long long)s->scored, (long long)s->window, s->ranks, mean,
                 exp(mean), rate);
}

struct request {
    const char *dir, *file; /* NULL: standard input */
    weft_engine_options engine;
    bool verbose;
};

static weft_status read_ids(const struct request *request, const struct weft__tokenizer *tokenizer,
                            struct weft__ids *ids, weft_error *err)
{
    struct weft__buf input;
    weft__buf_init(&input, WEFT__MAX_TEXT);
    weft_status status = weft__read_input(request->file, &input, err);
    if (status == WEFT_OK)
        status = weft__tokenizer_encode(tokenizer, input.data, input.len,
                                        WEFT__ADD_SPECIAL | WEFT__PARSE_SPECIAL, ids, err);
    weft__buf_free(&input);
    if (status == WEFT_OK && ids->len < 2)
        status = weft__fail(err, WEFT_INVALID,
                            "%s: too short, %zu token(s); the first is not scored, so 2 are needed",
                            request->file != NULL ? request->file : "standard input", ids->len);
    return status;
}

static weft_status score_text(const struct request *request, struct score *score, weft_error *err)
{
    struct weft__solo solo;
    struct weft__tokenizer *tokenizer = NULL;
    struct weft__ids ids = {0};
    WEFT__TRY(weft__solo_open(request->dir, &solo, err));
    weft_status status = weft__load_tokenizer(request->dir, &tokenizer, err);
    if (status == WEFT_OK) status = read_ids(request, tokenizer, &ids, err);
    if (status == WEFT_OK)
        status =
            weft__solo_start(&solo, &request->engine, weft__min((int64_t)ids.len, DEFAULT_WINDOW),
                             request->verbose, err);
    if (status == WEFT_OK) status = score_ids(&solo, &ids, score, err);
    weft__ids_free(&ids);
    weft__tokenizer_free(tokenizer);
    weft__solo_close(&solo);
    return status;
}

int weft__cmd_perplexity(int argc, char **argv)
{
    struct weft__engine_flags flags = {0};
    bool json = false;
    struct score score = {0};
    weft_error err;
    int status;
    const struct weft__option options[] = {
        WEFT__ENGINE_FLAGS(&flags),
        {WEFT__OPTION_FLAG, "json", &json, 0, 0, NULL, "for machines"},
        {0},
    };
    struct weft__command_line line = {
        .command = "perplexity",
        .synopsis = "MODEL [FILE]",
        .about =
            "Perplexity of FILE, else of standard input: e to the mean of -ln p over the tokens,\n"
            "each given those before it in its window. Windows of --context tokens (1024, or\n"
            "the model's) do not overlap; the first token of each is not scored.",
        .options = options,
        .arguments_min = 1,
        .arguments_max = 2,
    };
    if (!weft__command_line_parse(&line, argc, argv, &status)) return status;
    if (flags.context == 1) return weft__usage("perplexity", "--context 1 leaves nothing to score");
    if (!weft__ranks_start("perplexity", line.argument[0], &flags, &status)) return status;
    const struct request request = {.dir = line.argument[0],
                                    .file = line.argument[1],
                                    .engine = weft__engine_options_of(&flags),
                                    .verbose = flags.verbose};
    if (score_text(&request, &score, &err) != WEFT_OK) return weft__report("perplexity", &err);
    print_score(&score, json);
    return WEFT__EXIT_OK;
}
