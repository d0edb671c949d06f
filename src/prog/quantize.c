/* weft quantize: a checkpoint in F32, F16 or BF16 to NVFP4 or FP8. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prog.h"

enum { MAX_EXCLUDES = 256 };

struct quantize {
    struct weft__bar bar;
    bool quiet, json;
    json_t *rows; /* with --json; NULL after memory ran out */
};

static double relative(const struct weft__quantize_error *error)
{
    return error->weight_squared > 0 ? sqrt(error->error_squared / error->weight_squared) : 0;
}

static bool on_progress(void *ctx, double share)
{
    struct quantize *q = ctx;
    weft__bar_show(&q->bar, share);
    return !weft__signals_came();
}

static void on_linear(void *ctx, const struct weft__quantize_row *row)
{
    struct quantize *q = ctx;
    if (q->json) {
        json_t *value = json_pack("{s:s, s:[I, I], s:f, s:f}", "module", row->module, "shape",
                                  (json_int_t)row->out, (json_int_t)row->in, "relative_error",
                                  relative(&row->error), "error_max", row->error.error_max);
        if (json_array_append_new(q->rows, value) != 0) {
            json_decref(q->rows);
            q->rows = NULL;
        }
    } else if (!q->quiet) {
        /* The bar and the rows may share a terminal. */
        if (q->bar.terminal && q->bar.shown >= 0) (void)fprintf(stderr, "\r%60s\r", "");
        q->bar.shown = -1;
        (void)printf("%-56s %6lld x %-6lld error %.4f  max %.3g\n", row->module,
                     (long long)row->out, (long long)row->in, relative(&row->error),
                     row->error.error_max);
    }
}

static int print_totals(struct quantize *q, const char *target, const char *to,
                        const struct weft__quantize_totals *t)
{
    if (!q->json) {
        (void)printf("%s: %lld linears in %s, relative error %.4f, worst %.4f (%s); %lld tensors "
                     "kept; %.1f MiB, was %.1f MiB\n",
                     target, (long long)t->linears, to, relative(&t->error), t->worst_relative,
                     t->worst, (long long)t->kept, (double)t->bytes / (1 << 20),
                     (double)t->source_bytes / (1 << 20));
        return WEFT__EXIT_OK;
    }
    json_t *root = json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:s, s:I, s:I, s:O*}", "target",
                             target, "to", to, "linears", (json_int_t)t->linears, "kept",
                             (json_int_t)t->kept, "relative_error", relative(&t->error),
                             "error_max", t->error.error_max, "worst_relative_error",
                             t->worst_relative, "worst", t->worst, "bytes", (json_int_t)t->bytes,
                             "source_bytes", (json_int_t)t->source_bytes, "modules", q->rows);
    return weft__print_json(root, JSON_INDENT(2)) && q->rows != NULL ? WEFT__EXIT_OK
                                                                     : WEFT__EXIT_FAILED;
}

/* Splits "a,b" in place; -1 when there are too many. */
static int split(char *text, const char *parts[MAX_EXCLUDES])
{
    int count = 0;
    while (text != NULL) {
        char *comma = strchr(text, ',');
        if (count == MAX_EXCLUDES) return -1;
        if (comma != NULL) *comma++ = '\0';
        if (*text != '\0') parts[count++] = text;
        text = comma;
    }
    return count;
}

static int run(struct quantize *q, const struct weft__command_line *line,
               const struct weft__quantize_options *options, const char *to)
{
    struct weft__quantize_totals totals;
    weft_error err = {0};
    weft__signals_hold();
    weft_status status =
        weft__quantize(line->argument[0], line->argument[1], options, &totals, &err);
    if (status != WEFT_OK) {
        weft__bar_end(&q->bar);
        return weft__report(line->command, &err);
    }
    return print_totals(q, line->argument[1], to, &totals);
}

int weft__cmd_quantize(int argc, char **argv)
{
    struct quantize q = {0};
    int64_t to = -1;
    const char *exclude = NULL;
    bool attention = false;
    const struct weft__option options[] = {
        {WEFT__OPTION_CHOICE, "to", &to, 0, 0, "nvfp4|fp8",
         "weights in 4 bits, ModelOpt's names; or E4M3, blocks of 128 x 128"},
        {WEFT__OPTION_STRING, "exclude", &exclude, 0, 0, "GLOBS",
         "modules to keep too, \"*.o_proj,model.layers.0.*\""},
        {WEFT__OPTION_FLAG, "attention", &attention, 0, 0, NULL,
         "nvfp4: also the attention of MLA models, which is kept otherwise"},
        {WEFT__OPTION_FLAG, "quiet", &q.quiet, 0, 0, NULL, "totals only, not a line a module"},
        {WEFT__OPTION_FLAG, "json", &q.json, 0, 0, NULL, "the report as JSON"},
        {0}};
    struct weft__command_line line = {
        .command = "quantize",
        .synopsis = "SRC DST --to nvfp4|fp8",
        .about =
            "Writes the F32, F16 or BF16 checkpoint SRC, quantised, to the new directory DST.\n"
            "Embeddings, head, norms, routers and MTP layers are kept. Errors are relative:\n"
            "the root mean square of the differences over that of the weights.",
        .options = options,
        .arguments_min = 2,
        .arguments_max = 2};
    int status;
    if (!weft__command_line_parse(&line, argc, argv, &status)) return status;
    if (to < 0) return weft__usage(line.command, "--to nvfp4 or --to fp8 is wanted");
    if (attention && to != 0)
        return weft__usage(line.command,
                           "--attention is for nvfp4: fp8 quantises attention anyway");

    const char *excludes[MAX_EXCLUDES];
    char *list = exclude != NULL ? strdup(exclude) : NULL;
    int count = split(list, excludes);
    if (count < 0) {
        free(list);
        return weft__usage(line.command, "--exclude takes at most %d globs", MAX_EXCLUDES);
    }
    q.bar = weft__bar_start("quantising");
    q.rows = q.json ? json_array() : NULL;
    const struct weft__quantize_options quantize = {.to = to == 0 ? WEFT__LINEAR_NVFP4
                                                                  : WEFT__LINEAR_FP8_BLOCK,
                                                    .attention = attention,
                                                    .exclude = excludes,
                                                    .exclude_count = count,
                                                    .on_progress = on_progress,
                                                    .on_linear = on_linear,
                                                    .ctx = &q};
    status = run(&q, &line, &quantize, to == 0 ? "nvfp4" : "fp8");
    json_decref(q.rows);
    free(list);
    return status;
}
