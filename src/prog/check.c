/* weft check: the forward pass against a reference made by another implementation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

struct check {
    const struct weft__arch *arch;
    struct weft__ranks *ranks;
    int64_t chunk, context;
    int32_t *token, *position, *output, *pages;
    int64_t *slot;
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
                               const struct check *check, struct prompt *out, weft_error *err)
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
        !fits(&p.logits, WEFT_F32, 2, check->arch->vocab) || p.logits.shape[0] > p.ids.shape[0])
        return weft__fail(
            err, WEFT_FORMAT,
            "%s: %sinput_ids and greedy must be I32 [n], logits F32 [at most n, %lld]", path,
            p.name, (long long)check->arch->vocab);
    if (p.ids.shape[0] + p.greedy.shape[0] > check->context)
        return weft__fail(err, WEFT_TOO_LONG, "%s: %s needs %lld tokens of context, there are %lld",
                          path, ids.name, (long long)(p.ids.shape[0] + p.greedy.shape[0]),
                          (long long)check->context);
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

/* Runs `count` tokens from position first on; logits of rows from `wanted` on. */
static weft_status run_rows(struct check *c, int64_t first, int64_t count, int64_t wanted,
                            bool generated, const float **logits, weft_error *err)
{
    const struct weft__seq seq = {.count = (int32_t)count,
                                  .kv_len = (int32_t)(first + count),
                                  .generated = generated,
                                  .pages = c->pages};
    int32_t outputs = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t position = first + i;
        c->position[i] = (int32_t)position;
        c->slot[i] = (int64_t)c->pages[position / WEFT__PAGE] * WEFT__PAGE + position % WEFT__PAGE;
        if (position >= wanted) c->output[outputs++] = (int32_t)i;
    }
    const struct weft__batch batch = {.tokens = (int32_t)count,
                                      .seqs = 1,
                                      .outputs = outputs,
                                      .token = c->token,
                                      .position = c->position,
                                      .slot = c->slot,
                                      .seq = &seq,
                                      .output = c->output};
    return weft__ranks_step(c->ranks, &batch, logits, err);
}

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

/* The prompt in chunks; leaves the last row's argmax in *next. */
static weft_status compare_prompt(struct check *c, const struct prompt *p, struct outcome *o,
                                  const float **logits, weft_error *err)
{
    int64_t n = p->ids.shape[0], known = n - p->logits.shape[0];
    for (int64_t first = 0; first < n; first += c->chunk) {
        int64_t count = weft__min(c->chunk, n - first);
        for (int64_t i = 0; i < count; i++) {
            c->token[i] = int_at(&p->ids, first + i);
            if (c->token[i] < 0 || c->token[i] >= c->arch->vocab)
                return weft__fail(err, WEFT_FORMAT, "%s[%lld] is %d, not a token of %lld",
                                  p->ids.name, (long long)(first + i), c->token[i],
                                  (long long)c->arch->vocab);
        }
        WEFT__TRY(run_rows(c, first, count, known, false, logits, err));
        int64_t shown = weft__max(first, known);
        for (int64_t i = shown; i < first + count; i++)
            compare_row(p, i - known, *logits + (i - shown) * c->arch->vocab, o);
        *logits += (weft__max(first + count - shown, 1) - 1) * c->arch->vocab;
    }
    return WEFT_OK;
}

/* Our own continuation; where it leaves the reference's, the gap must be rounding. */
static weft_status compare_greedy(struct check *c, const struct prompt *p, const float *logits,
                                  struct outcome *o, weft_error *err)
{
    int64_t n = p->ids.shape[0];
    for (int64_t i = 0; i < p->greedy.shape[0]; i++) {
        int32_t theirs = int_at(&p->greedy, i);
        int64_t ours = argmax(logits, c->arch->vocab);
        o->greedy = i + 1;
        if (theirs < 0 || theirs >= c->arch->vocab)
            return weft__fail(err, WEFT_FORMAT, "%s[%lld] is %d, not a token", p->greedy.name,
                              (long long)i, theirs);
        if (ours != theirs) {
            double gap = (double)logits[ours] - (double)logits[theirs];
            o->near_tie = gap <= TOLERANCE * o->max_logit;
            return WEFT_OK;
        }
        o->greedy_equal++;
        if (i + 1 == p->greedy.shape[0]) break;
        c->token[0] = theirs;
        WEFT__TRY(run_rows(c, n + i, 1, 0, true, &logits, err));
    }
    return WEFT_OK;
}

static weft_status check_prompt(struct check *c, const struct prompt *p, struct outcome *out,
                                weft_error *err)
{
    struct outcome o = {0};
    const float *logits = NULL;
    WEFT__TRY(compare_prompt(c, p, &o, &logits, err));
    WEFT__TRY(compare_greedy(c, p, logits, &o, err));
    o.passed = o.max_difference <= TOLERANCE * o.max_logit &&
               (o.greedy_equal == p->greedy.shape[0] || o.near_tie);
    *out = o;
    return WEFT_OK;
}

static void print_outcome(const struct prompt *p, const struct outcome *o, int ranks, bool json)
{
    if (json) {
        (void)printf("{\"prompt\": \"%s\", \"tokens\": %lld, \"tp\": %d, \"max_difference\": %.9g, "
                     "\"max_logit\": %.9g, \"tolerance\": %.9g, \"argmax_equal\": %lld, "
                     "\"positions\": %lld, \"greedy_equal\": %lld, \"greedy\": %lld, "
                     "\"near_tie\": %s, \"passed\": %s}\n",
                     p->name, (long long)p->ids.shape[0], ranks,
                     isfinite(o->max_difference) ? o->max_difference : 1e308, o->max_logit,
                     TOLERANCE * o->max_logit, (long long)o->argmax_equal, (long long)o->positions,
                     (long long)o->greedy_equal, (long long)p->greedy.shape[0],
                     o->near_tie ? "true" : "false", o->passed ? "true" : "false");
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

static weft_status check_file(struct check *c, const char *path, int ranks, bool json, bool *passed,
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
        status = read_prompt(file, ids, c, &prompt, err);
        if (status == WEFT_OK) status = check_prompt(c, &prompt, &outcome, err);
        if (status != WEFT_OK) break;
        print_outcome(&prompt, &outcome, ranks, json);
        *passed = *passed && outcome.passed;
        prompts++;
    }
    if (status == WEFT_OK && prompts == 0)
        status = weft__fail(err, WEFT_FORMAT, "%s: no input_ids in it", path);
    weft__checkpoint_close(file);
    return status;
}

/* ---- the command ---- */

static weft_status make_batch_space(struct check *c, struct weft__arena *arena, weft_error *err)
{
    int64_t pages = weft__ceil_div(c->context, WEFT__PAGE);
    c->token = weft__arena_array(arena, (size_t)c->chunk, sizeof *c->token);
    c->position = weft__arena_array(arena, (size_t)c->chunk, sizeof *c->position);
    c->output = weft__arena_array(arena, (size_t)c->chunk, sizeof *c->output);
    c->slot = weft__arena_array(arena, (size_t)c->chunk, sizeof *c->slot);
    c->pages = weft__arena_array(arena, (size_t)pages, sizeof *c->pages);
    if (c->token == NULL || c->position == NULL || c->output == NULL || c->slot == NULL ||
        c->pages == NULL)
        return weft__fail_oom(err, (size_t)c->chunk, "a batch");
    /* Pages in descending order: a page table that is not looked at would show. */
    for (int64_t i = 0; i < pages; i++) c->pages[i] = (int32_t)(pages - 1 - i);
    return WEFT_OK;
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
    const char *dir = request->dir, *reference = request->reference;
    const weft_engine_options *options = &request->engine;
    struct weft__arena arena = {0};
    struct weft__arch arch;
    struct weft__checkpoint *checkpoint = NULL;
    struct weft__plan plan;
    struct check check = {.arch = &arch};
    weft_engine_options sized = *options;
    int64_t tokens = 0;
    weft_status status = weft__arch_load(dir, &arena, &arch, err);
    if (status == WEFT_OK) status = weft__checkpoint_open(dir, &checkpoint, err);
    if (status == WEFT_OK) status = longest(reference, &tokens, err);
    if (status == WEFT_OK) {
        sized.max_running = 1;
        if (sized.context == 0) sized.context = weft__min(tokens, arch.context);
        status = weft__plan_make(&arch, checkpoint, &sized, &plan, err);
    }
    if (status == WEFT_OK && request->verbose)
        status = weft__print_plan(&arch, checkpoint, &plan, err);
    if (status == WEFT_OK) {
        weft__warm(checkpoint, &arch, options);
        status = weft__ranks_open(&arch, checkpoint, &plan.ranks, &check.ranks, err);
    }
    if (status == WEFT_OK) {
        check.chunk = plan.ranks.limits.tokens;
        check.context = plan.context;
        status = make_batch_space(&check, &arena, err);
    }
    if (status == WEFT_OK)
        status = check_file(&check, reference, plan.ranks.size, request->json, passed, err);
    weft__ranks_close(check.ranks);
    weft__checkpoint_close(checkpoint);
    weft__arena_free(&arena);
    return status;
}

int weft__cmd_check(int argc, char **argv)
{
    struct weft__engine_flags flags = {0};
    bool json = false, passed = true;
    const char *reference = NULL;
    char path[4096];
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
    if (snprintf(path, sizeof path, "%s/reference.safetensors", dir) >= (int)sizeof path)
        return weft__usage("check", "the path is too long");
    const struct request request = {.dir = dir,
                                    .reference = reference != NULL ? reference : path,
                                    .engine = weft__engine_options_of(&flags),
                                    .json = json,
                                    .verbose = flags.verbose};
    if (check_model(&request, &passed, &err) != WEFT_OK) return weft__report("check", &err);
    return passed ? WEFT__EXIT_OK : WEFT__EXIT_FAILED;
}
