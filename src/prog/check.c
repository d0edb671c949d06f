/* weft check: the forward pass against a reference made by another implementation. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "prog.h"

/* A difference of at most this times the largest |logit| is rounding. */
static const double TOLERANCE = 2e-4;

struct prompt { /* one set of tensors of the reference file */
    char name[64];
    struct weft__tensor ids, logits, greedy; /* I32 [n]; F32 [last m positions, V]; I32 [g] */
};

struct outcome {
    double max_difference, max_logit; /* of all logits */
    int64_t argmax_equal, positions;
    int64_t greedy_equal, greedy;
    bool near_tie; /* the greedy comparison ended early at one */
    bool passed;
};

/* ---- the reference file ---- */

static bool find_part(const struct weft__checkpoint *file, const char *prefix, const char *part,
                      struct weft__tensor *out)
{
    for (int64_t i = 0; i < weft__checkpoint_count(file); i++) {
        struct weft__tensor tensor = weft__checkpoint_at(file, i);
        size_t len = strlen(prefix);
        if (strncmp(tensor.name, prefix, len) != 0 ||
            strncmp(tensor.name + len, part, strlen(part)) != 0)
            continue;
        *out = tensor;
        return true;
    }
    return false;
}

static bool fits(const struct weft__tensor *tensor, weft_dtype dtype, int dims, int64_t columns)
{
    return tensor->dtype == dtype && tensor->dims == dims && tensor->shape[0] >= 1 &&
           (dims == 1 || tensor->shape[1] == columns);
}

static weft_status read_prompt(const struct weft__checkpoint *file, struct weft__tensor ids,
                               const struct weft__solo *solo, struct prompt *out, weft_error *err)
{
    const char *path = weft__checkpoint_path(file);
    struct prompt p = {.ids = ids};
    size_t len = strlen(ids.name) - strlen("input_ids");
    if (len >= sizeof p.name) return weft__fail(err, WEFT_FORMAT, "%s: name too long", path);
    memcpy(p.name, ids.name, len);
    if (!find_part(file, p.name, "logits", &p.logits) ||
        !find_part(file, p.name, "greedy", &p.greedy))
        return weft__fail(err, WEFT_FORMAT, "%s: %s has no %slogits or no %sgreedy beside it", path,
                          ids.name, p.name, p.name);
    if (!fits(&p.ids, WEFT_I32, 1, 0) || !fits(&p.greedy, WEFT_I32, 1, 0) ||
        !fits(&p.logits, WEFT_F32, 2, solo->arch.vocab) || p.logits.shape[0] > p.ids.shape[0])
        return weft__fail(
            err, WEFT_FORMAT,
            "%s: %sinput_ids and greedy must be I32 [n], logits F32 [at most n, %lld]", path,
            p.name, (long long)solo->arch.vocab);
    if (p.ids.shape[0] + p.greedy.shape[0] > solo->plan.context)
        return weft__fail(err, WEFT_TOO_LONG, "%s: %s needs %lld tokens of context, there are %lld",
                          path, ids.name, (long long)(p.ids.shape[0] + p.greedy.shape[0]),
                          (long long)solo->plan.context);
    *out = p;
    return WEFT_OK;
}

static int32_t int_at(const struct weft__tensor *tensor, int64_t i)
{
    int32_t value;
    memcpy(&value, tensor->data + i * (int64_t)sizeof value, sizeof value);
    return value;
}

static float logit_at(const struct prompt *p, int64_t row, int64_t column)
{
    float value;
    int64_t i = row * p->logits.shape[1] + column;
    memcpy(&value, p->logits.data + i * (int64_t)sizeof value, sizeof value);
    return value;
}

/* ---- running ---- */

static int64_t argmax(const float *row, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

static void compare_row(const struct prompt *p, int64_t row, const float *ours, struct outcome *o)
{
    int64_t vocab = p->logits.shape[1], best = 0;
    for (int64_t v = 0; v < vocab; v++) {
        float theirs = logit_at(p, row, v);
        double difference = fabs((double)ours[v] - (double)theirs);
        /* Not a number counts as the largest difference there is. */
        if (!(difference <= o->max_difference))
            o->max_difference = isnan(difference) ? INFINITY : difference;
        o->max_logit = fmax(o->max_logit, fabs((double)theirs));
        if (theirs > logit_at(p, row, best)) best = v;
    }
    o->argmax_equal += argmax(ours, vocab) == best;
    o->positions++;
}

/* The prompt in chunks; leaves the last row in *logits. */
static weft_status compare_prompt(struct weft__solo *solo, const struct prompt *p,
                                  struct outcome *o, const float **logits, weft_error *err)
{
    int64_t n = p->ids.shape[0], known = n - p->logits.shape[0];
    int64_t chunk = solo->plan.ranks.limits.outputs;
    for (int64_t first = 0; first < n; first += chunk) {
        int64_t count = weft__min(chunk, n - first);
        for (int64_t i = 0; i < count; i++) {
            solo->token[i] = int_at(&p->ids, first + i);
            if (solo->token[i] < 0 || solo->token[i] >= solo->arch.vocab)
                return weft__fail(err, WEFT_FORMAT, "%s[%lld] is %d, not a token of %lld",
                                  p->ids.name, (long long)(first + i), solo->token[i],
                                  (long long)solo->arch.vocab);
        }
        const struct weft__solo_rows rows = {.first = first, .count = count, .wanted = known};
        WEFT__TRY(weft__solo_step(solo, rows, logits, err));
        int64_t shown = weft__max(first, known);
        for (int64_t i = shown; i < first + count; i++)
            compare_row(p, i - known, *logits + (i - shown) * solo->arch.vocab, o);
        *logits += (weft__max(first + count - shown, 1) - 1) * solo->arch.vocab;
    }
    return WEFT_OK;
}

/* Our own continuation; where it leaves the reference's, the gap must be rounding. */
static weft_status compare_greedy(struct weft__solo *solo, const struct prompt *p,
                                  const float *logits, struct outcome *o, weft_error *err)
{
    int64_t n = p->ids.shape[0];
    for (int64_t i = 0; i < p->greedy.shape[0]; i++) {
        int32_t theirs = int_at(&p->greedy, i);
        int64_t ours = argmax(logits, solo->arch.vocab);
        o->greedy = i + 1;
        if (theirs < 0 || theirs >= solo->arch.vocab)
            return weft__fail(err, WEFT_FORMAT, "%s[%lld] is %d, not a token", p->greedy.name,
                              (long long)i, theirs);
        if (ours != theirs) {
            double gap = (double)logits[ours] - (double)logits[theirs];
            o->near_tie = gap <= TOLERANCE * o->max_logit;
            return WEFT_OK;
        }
        o->greedy_equal++;
        if (i + 1 == p->greedy.shape[0]) break;
        solo->token[0] = theirs;
        const struct weft__solo_rows next = {.first = n + i, .count = 1, .generated = true};
        WEFT__TRY(weft__solo_step(solo, next, &logits, err));
    }
    return WEFT_OK;
}

static weft_status check_prompt(struct weft__solo *solo, const struct prompt *p,
                                struct outcome *out, weft_error *err)
{
    struct outcome o = {0};
    const float *logits = NULL;
    WEFT__TRY(compare_prompt(solo, p, &o, &logits, err));
    WEFT__TRY(compare_greedy(solo, p, logits, &o, err));
    o.passed = o.max_difference <= TOLERANCE * o.max_logit &&
               (o.greedy_equal == p->greedy.shape[0] || o.near_tie);
    *out = o;
    return WEFT_OK;
}

static void print_outcome(const struct prompt *p, const struct outcome *o, int ranks, bool json)
{
    if (json) {
        double difference = isfinite(o->max_difference) ? o->max_difference : 1e308;
        json_t *object = json_pack(
            "{s:s, s:I, s:i, s:f, s:o, s:o, s:I, s:I, s:I, s:I, s:b, s:b}", "prompt", p->name,
            "tokens", (json_int_t)p->ids.shape[0], "tp", ranks, "max_difference", difference,
            "max_logit", weft__number_json(o->max_logit), "tolerance",
            weft__number_json(TOLERANCE * o->max_logit), "argmax_equal",
            (json_int_t)o->argmax_equal, "positions", (json_int_t)o->positions, "greedy_equal",
            (json_int_t)o->greedy_equal, "greedy", (json_int_t)p->greedy.shape[0], "near_tie",
            (int)o->near_tie, "passed", (int)o->passed);
        (void)weft__print_json(object, JSON_REAL_PRECISION(9));
        return;
    }
    (void)printf("%s%s%lld tokens, %d rank%s: largest difference %.3g (allowed %.3g), argmax "
                 "%lld/%lld, greedy %lld/%lld%s: %s\n",
                 p->name, p->name[0] != '\0' ? " " : "", (long long)p->ids.shape[0], ranks,
                 ranks == 1 ? "" : "s", o->max_difference, TOLERANCE * o->max_logit,
                 (long long)o->argmax_equal, (long long)o->positions, (long long)o->greedy_equal,
                 (long long)p->greedy.shape[0], o->near_tie ? " (then a near tie)" : "",
                 o->passed ? "ok" : "FAILED");
}

static weft_status check_file(struct weft__solo *solo, const char *path, bool json, bool *passed,
                              weft_error *err)
{
    struct weft__checkpoint *file;
    WEFT__TRY(weft__checkpoint_open(path, &file, err));
    weft_status status = WEFT_OK;
    int64_t prompts = 0;
    for (int64_t i = 0; i < weft__checkpoint_count(file) && status == WEFT_OK; i++) {
        struct weft__tensor ids = weft__checkpoint_at(file, i);
        const char *end = strstr(ids.name, "input_ids");
        if (end == NULL || strcmp(end, "input_ids") != 0) continue;
        struct prompt prompt;
        struct outcome outcome;
        status = read_prompt(file, ids, solo, &prompt, err);
        if (status == WEFT_OK) status = check_prompt(solo, &prompt, &outcome, err);
        if (status != WEFT_OK) break;
        print_outcome(&prompt, &outcome, solo->plan.ranks.size, json);
        *passed = *passed && outcome.passed;
        prompts++;
    }
    if (status == WEFT_OK && prompts == 0)
        status = weft__fail(err, WEFT_FORMAT, "%s: no input_ids in it", path);
    weft__checkpoint_close(file);
    return status;
}

/* ---- the command ---- */

static weft_status find_reference(const char *path, weft_error *err)
{
    if (access(path, F_OK) == 0) return WEFT_OK;
    return weft__fail(err, WEFT_NOT_FOUND,
                      "%.200s: %s: the logits and greedy tokens of another implementation are "
                      "wanted; weft's tools/reference.py MODEL makes them, with transformers",
                      path, strerror(errno));
}

/* The longest prompt and its continuation, so that the KV cache is no larger than needed. */
static weft_status longest(const char *path, int64_t *tokens, weft_error *err)
{
    struct weft__checkpoint *file;
    WEFT__TRY(weft__checkpoint_open(path, &file, err));
    int64_t ids = 1, greedy = 1;
    for (int64_t i = 0; i < weft__checkpoint_count(file); i++) {
        struct weft__tensor tensor = weft__checkpoint_at(file, i);
        if (tensor.dims != 1) continue;
        if (strstr(tensor.name, "input_ids") != NULL) ids = weft__max(ids, tensor.shape[0]);
        if (strstr(tensor.name, "greedy") != NULL) greedy = weft__max(greedy, tensor.shape[0]);
    }
    weft__checkpoint_close(file);
    *tokens = ids + greedy;
    return WEFT_OK;
}

struct request {
    const char *dir, *reference;
    weft_engine_options engine;
    bool json, verbose;
};

static weft_status check_model(const struct request *request, bool *passed, weft_error *err)
{
    struct weft__solo solo;
    int64_t tokens = 0;
    WEFT__TRY(weft__solo_open(request->dir, &solo, err));
    weft_status status = find_reference(request->reference, err);
    if (status == WEFT_OK) status = longest(request->reference, &tokens, err);
    if (status == WEFT_OK)
        status = weft__solo_start(&solo, &request->engine, tokens, request->verbose, err);
    if (status == WEFT_OK)
        status = check_file(&solo, request->reference, request->json, passed, err);
    weft__solo_close(&solo);
    return status;
}

int weft__cmd_check(int argc, char **argv)
{
    struct weft__engine_flags flags = {0};
    bool json = false, passed = true;
    const char *reference = NULL;
    char path[WEFT__MAX_PATH];
    weft_error err;
    int status;
    const struct weft__option options[] = {
        WEFT__ENGINE_FLAGS(&flags),
        {WEFT__OPTION_STRING, "reference", &reference, 0, 0, "FILE",
         "the reference (MODEL/reference.safetensors)"},
        {WEFT__OPTION_FLAG, "json", &json, 0, 0, NULL, "one JSON object a prompt"},
        {0},
    };
    struct weft__command_line line = {
        .command = "check",
        .synopsis = "MODEL",
        .about = "Runs the reference's prompts and compares: logits may differ by 2e-4 of the\n"
                 "largest, greedy tokens only at near ties. Exit status 1 when they differ more.",
        .options = options,
        .arguments_min = 1,
        .arguments_max = 1,
    };
    if (!weft__command_line_parse(&line, argc, argv, &status)) return status;
    const char *dir = line.argument[0];
    if (weft__path_join(path, dir, "reference.safetensors", &err) != WEFT_OK)
        return weft__report("check", &err);
    if (!weft__ranks_start("check", dir, &flags, &status)) return status;
    const struct request request = {.dir = dir,
                                    .reference = reference != NULL ? reference : path,
                                    .engine = weft__engine_options_of(&flags),
                                    .json = json,
                                    .verbose = flags.verbose};
    if (check_model(&request, &passed, &err) != WEFT_OK) return weft__report("check", &err);
    if (!passed && flags.activations != WEFT_ACTIVATIONS_F32)
        (void)fprintf(
            stderr, "weft check: rounded activations do not meet a reference made with exact ones: "
                    "check without --activations, or give a --reference made with them\n");
    return passed ? WEFT__EXIT_OK : WEFT__EXIT_FAILED;
}
