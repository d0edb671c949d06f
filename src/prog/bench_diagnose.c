/* weft bench diagnose: what recorded utilisation and power say, and what they can't say. */
#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bench.h"

enum {
    MAX_FILE = 512 << 20,
    MAX_CELLS = 128, /* of a line */
    MAX_GPUS = 1024,
    MAX_SHOWN = 3, /* broken lines that are quoted */
};

enum column { GPU, UTIL, UTIL_SHARE, MEMORY, MEMORY_SHARE, POWER, LIMIT, COLUMNS };

/* How the tools call what we read. The first name of a column that a header has wins. */
static const struct {
    enum column column;
    const char *name;
} names[] = {
    {GPU, "index"},
    {GPU, "uuid"},
    {GPU, "gpu_uuid"},
    {GPU, "pci.bus_id"},
    {GPU, "gpu_bus_id"},
    {GPU, "gpu"},
    {GPU, "entity"},
    {UTIL, "utilization.gpu"},
    {UTIL, "sm"},
    {UTIL, "gputl"},
    {UTIL_SHARE, "gract"},
    {UTIL_SHARE, "smact"},
    {MEMORY, "utilization.memory"},
    {MEMORY, "mem"},
    {MEMORY, "mcutl"},
    {MEMORY_SHARE, "drama"},
    {POWER, "power.draw"},
    {POWER, "power.draw.average"},
    {POWER, "power.draw.instant"},
    {POWER, "pwr"},
    {POWER, "power"},
    {LIMIT, "enforced.power.limit"},
    {LIMIT, "power.limit"},
    {LIMIT, "pmlmt"},
};

struct gpu {
    char name[64];
    struct weft__mean limit;
    struct weft__evidence e;
    struct weft__judged judged;
};

struct diagnosis {
    struct gpu *gpu;
    int gpus;
    int column[COLUMNS]; /* its cell; -1: not there */
    bool header;         /* columns are known */
    bool commas, entity; /* cells end at commas; the first one is two words, "GPU 0" */
    int64_t lines, broken;
    char quoted[MAX_SHOWN][120];
    struct weft__thresholds thresholds;
};

/* ---- lines ---- */

struct cells {
    const char *text[MAX_CELLS];
    int len[MAX_CELLS];
    int count;
};

static void add_cell(struct cells *cells, const char *begin, const char *end)
{
    while (begin < end && isspace((unsigned char)*begin)) begin++;
    while (end > begin && isspace((unsigned char)end[-1])) end--;
    if (end - begin > 1 && *begin == '"' && end[-1] == '"') begin++, end--;
    if (cells->count == MAX_CELLS) return;
    cells->text[cells->count] = begin;
    cells->len[cells->count++] = (int)weft__min(end - begin, 256);
}

static void cut(const char *line, size_t len, bool commas, struct cells *out)
{
    const char *end = line + len, *at = line;
    out->count = 0;
    while (commas) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        add_cell(out, at, comma != NULL ? comma : end);
        if (comma == NULL) return;
        at = comma + 1;
    }
    while (at < end) {
        while (at < end && isspace((unsigned char)*at)) at++;
        const char *begin = at;
        while (at < end && !isspace((unsigned char)*at)) at++;
        if (at > begin) add_cell(out, begin, at);
    }
}

/* "99 %", "121.5 W", "0.97". False for "[N/A]", "-" and words. */
static bool number(const struct cells *cells, int cell, double *out)
{
    if (cell < 0 || cell >= cells->count || cells->len[cell] > 40) return false;
    char text[48], *end;
    memcpy(text, cells->text[cell], (size_t)cells->len[cell]);
    text[cells->len[cell]] = '\0';
    double value = strtod(text, &end);
    if (end == text || !isfinite(value) || value < 0 || value > 1e6) return false;
    while (*end == ' ') end++;
    *out = value;
    return *end == '\0' || strcmp(end, "%") == 0 || strcmp(end, "W") == 0;
}

static bool cell_is(const struct cells *cells, int cell, const char *name)
{
    int len = cells->len[cell];
    const char *unit = memchr(cells->text[cell], '[', (size_t)len);
    if (unit != NULL) len = (int)(unit - cells->text[cell]);
    while (len > 0 && cells->text[cell][len - 1] == ' ') len--;
    return (int)strlen(name) == len && strncasecmp(cells->text[cell], name, (size_t)len) == 0;
}

/* Is this the line that names the columns? The tools repeat it. */
static bool take_header(struct diagnosis *d, const char *line, size_t len)
{
    struct cells cells;
    bool hash = len > 0 && *line == '#';
    if (hash) line++, len--;
    bool commas = memchr(line, ',', len) != NULL;
    cut(line, len, commas, &cells);
    int column[COLUMNS], found = 0;
    for (int c = 0; c < COLUMNS; c++) column[c] = -1;
    for (size_t n = 0; n < WEFT__COUNT(names); n++)
        for (int i = 0; i < cells.count; i++)
            if (column[names[n].column] < 0 && cell_is(&cells, i, names[n].name)) {
                column[names[n].column] = i;
                found++;
            }
    /* "GPU" alone also begins dcgmi's samples. */
    if (found == 0 || (column[UTIL] < 0 && column[UTIL_SHARE] < 0 && column[POWER] < 0))
        return false;
    memcpy(d->column, column, sizeof column);
    d->header = true;
    d->commas = commas;
    d->entity = column[GPU] >= 0 && cell_is(&cells, column[GPU], "entity") && !commas;
    return true;
}

/* Without a header the units tell: the first % is the GPU's, the second the memory's; the first W
 * is drawn, the second the limit. The GPU is the first cell that is a bare integer or a UUID. */
static bool guess_columns(struct diagnosis *d, const char *line, size_t len)
{
    struct cells cells;
    double value;
    int column[COLUMNS];
    for (int c = 0; c < COLUMNS; c++) column[c] = -1;
    cut(line, len, true, &cells);
    for (int i = 0; i < cells.count; i++) {
        if (cells.len[i] == 0) continue;
        char last = cells.text[i][cells.len[i] - 1];
        bool digits = true;
        for (int k = 0; k < cells.len[i]; k++)
            digits &= isdigit((unsigned char)cells.text[i][k]) != 0;
        bool uuid = cells.len[i] > 4 && strncmp(cells.text[i], "GPU-", 4) == 0;
        int to = -1;
        if (digits || uuid)
            to = column[GPU] < 0 ? GPU : -1;
        else if (last == '%' && number(&cells, i, &value))
            to = column[UTIL] < 0 ? UTIL : MEMORY;
        else if (last == 'W' && number(&cells, i, &value))
            to = column[POWER] < 0 ? POWER : LIMIT;
        if (to >= 0 && column[to] < 0) column[to] = i;
    }
    if (column[UTIL] < 0 || column[POWER] < 0) return false;
    memcpy(d->column, column, sizeof column);
    d->header = d->commas = true;
    return true;
}

static struct gpu *gpu_of(struct diagnosis *d, const struct cells *cells)
{
    char name[64] = "0"; /* without a column the file is of one GPU */
    int cell = d->column[GPU];
    if (cell >= 0) {
        if (cell >= cells->count || cells->len[cell] == 0) return NULL;
        size_t len = (size_t)weft__min(cells->len[cell], (int)sizeof name - 1);
        memcpy(name, cells->text[cell], len);
        name[len] = '\0';
    }
    for (int i = 0; i < d->gpus; i++)
        if (strcmp(d->gpu[i].name, name) == 0) return &d->gpu[i];
    if (d->gpus == MAX_GPUS) return NULL;
    struct gpu *gpu = &d->gpu[d->gpus++];
    memcpy(gpu->name, name, sizeof name);
    return gpu;
}

/* One sample; false: the line holds none. */
static bool take_sample(struct diagnosis *d, const char *line, size_t len)
{
    struct cells cells;
    double util = NAN, memory = NAN, power = NAN, limit = NAN;
    cut(line, len, d->commas, &cells);
    if (d->entity) { /* "GPU 0 99 121.3": the name's two words stand under one heading */
        if (cells.count < 2 || strncmp(cells.text[0], "GPU", 3) != 0) return false;
        cells.count--;
        memmove(cells.text, cells.text + 1, (size_t)cells.count * sizeof *cells.text);
        memmove(cells.len, cells.len + 1, (size_t)cells.count * sizeof *cells.len);
    }
    if (!number(&cells, d->column[UTIL], &util) && number(&cells, d->column[UTIL_SHARE], &util))
        util *= 100;
    if (!number(&cells, d->column[MEMORY], &memory) &&
        number(&cells, d->column[MEMORY_SHARE], &memory))
        memory *= 100;
    (void)number(&cells, d->column[POWER], &power);
    (void)number(&cells, d->column[LIMIT], &limit);
    if ((isnan(util) && isnan(power)) || util > 100.5) return false;
    struct gpu *gpu = gpu_of(d, &cells);
    if (gpu == NULL) return false;
    gpu->e.samples++;
    weft__mean_add(&gpu->e.busy, util);
    weft__mean_add(&gpu->e.memory, memory);
    weft__mean_add(&gpu->e.power, power);
    if (limit > 0) weft__mean_add(&gpu->limit, limit);
    return true;
}

static void take_line(struct diagnosis *d, const char *line, size_t len)
{
    while (len > 0 && isspace((unsigned char)line[len - 1])) len--;
    while (len > 0 && isspace((unsigned char)*line)) line++, len--;
    if (len == 0) return;
    d->lines++;
    if (take_header(d, line, len) || *line == '#') return;   /* the second # line holds units */
    if (len == 2 && strncasecmp(line, "id", 2) == 0) return; /* dcgmi's second line */
    if (!d->header) (void)guess_columns(d, line, len);
    if (d->header && take_sample(d, line, len)) return;
    if (d->broken < MAX_SHOWN)
        (void)snprintf(d->quoted[d->broken], sizeof d->quoted[0], "line %lld: \"%.*s\"",
                       (long long)d->lines, (int)weft__min((int64_t)len, 60), line);
    d->broken++;
}

static void judge(struct diagnosis *d, double limit)
{
    for (int i = 0; i < d->gpus; i++) {
        struct gpu *gpu = &d->gpu[i];
        gpu->e.limit_w = limit > 0 ? limit : weft__mean_of(&gpu->limit);
        weft__judge(&gpu->e, &d->thresholds, &gpu->judged);
    }
}

/* ---- output ---- */

static const char *cell(char out[32], double value, const char *format)
{
    if (isnan(value)) return "-";
    (void)snprintf(out, 32, format, value);
    return out;
}

static void print_gpu(const struct gpu *gpu)
{
    char util[32], memory[32], power[32], limit[32], share[32];
    (void)printf("%-14.40s %8lld %8s %8s %9s %9s %7s  %s (%s confidence)\n", gpu->name,
                 (long long)gpu->e.samples, cell(util, weft__mean_of(&gpu->e.busy), "%.1f %%"),
                 cell(memory, weft__mean_of(&gpu->e.memory), "%.1f %%"),
                 cell(power, weft__mean_of(&gpu->e.power), "%.1f W"),
                 cell(limit, gpu->e.limit_w, "%.0f W"),
                 cell(share, 100 * gpu->judged.share, "%.0f %%"),
                 weft__verdict_words[gpu->judged.verdict].word, gpu->judged.confidence);
}

static void print_text(const struct diagnosis *d)
{
    (void)printf("%-14s %8s %8s %8s %9s %9s %7s  %s\n", "GPU", "samples", "busy", "memory", "power",
                 "limit", "of it", "verdict");
    for (int i = 0; i < d->gpus; i++) print_gpu(&d->gpu[i]);
    for (int v = 0; v < WEFT__VERDICT_COUNT; v++) {
        double util = 0, share = 0;
        int count = 0;
        for (int i = 0; i < d->gpus; i++) {
            if (d->gpu[i].judged.verdict != (enum weft__verdict)v) continue;
            util += weft__mean_of(&d->gpu[i].e.busy);
            share += d->gpu[i].judged.share;
            count++;
        }
        if (count == 0) continue;
        (void)printf("\n%d GPU%s %s", count, count == 1 ? "" : "s", weft__verdict_words[v].word);
        if (v != WEFT__VERDICT_NO_DATA)
            (void)printf(": %.0f %% busy at %.0f %% of the power limit", util / count,
                         100 * share / count);
        (void)printf(": %s.\n  Measure next: %s.\n", weft__verdict_words[v].meaning,
                     weft__verdict_words[v].next);
    }
    if (d->broken > 0)
        (void)printf("\n%lld of %lld lines hold no sample", (long long)d->broken,
                     (long long)d->lines);
    for (int i = 0; i < MAX_SHOWN && i < d->broken; i++)
        (void)printf("%s%s", i == 0 ? ": " : ", ", d->quoted[i]);
    if (d->broken > 0) (void)putchar('\n');
}

static int print_json(const struct diagnosis *d)
{
    json_t *gpus = json_array();
    for (int i = 0; i < d->gpus; i++) {
        const struct gpu *gpu = &d->gpu[i];
        (void)json_array_append_new(
            gpus, json_pack("{s:s%, s:I, s:o, s:o, s:o, s:o, s:o, s:s, s:s, s:s, s:s}", "gpu",
                            weft__utf8_valid(gpu->name, strlen(gpu->name)) ? gpu->name : "?",
                            weft__utf8_valid(gpu->name, strlen(gpu->name)) ? strlen(gpu->name) : 1,
                            "samples", (json_int_t)gpu->e.samples, "utilization_percent",
                            weft__number_json(weft__mean_of(&gpu->e.busy)), "memory_percent",
                            weft__number_json(weft__mean_of(&gpu->e.memory)), "power_w",
                            weft__number_json(weft__mean_of(&gpu->e.power)), "power_limit_w",
                            weft__number_json(gpu->e.limit_w), "share_of_limit",
                            weft__number_json(gpu->judged.share), "verdict",
                            weft__verdict_words[gpu->judged.verdict].word, "confidence",
                            gpu->judged.confidence, "meaning",
                            weft__verdict_words[gpu->judged.verdict].meaning, "measure_next",
                            weft__verdict_words[gpu->judged.verdict].next));
    }
    json_t *root = json_pack("{s:o, s:I, s:I, s:o}", "gpus", gpus, "lines", (json_int_t)d->lines,
                             "broken_lines", (json_int_t)d->broken, "thresholds",
                             weft__thresholds_json(&d->thresholds));
    return weft__print_json(root, JSON_INDENT(2)) ? WEFT__EXIT_OK : WEFT__EXIT_FAILED;
}

/* ---- the command ---- */

static weft_status read_samples(struct diagnosis *d, const char *path, double limit,
                                weft_error *err)
{
    char *text;
    size_t len;
    WEFT__TRY(weft__read_file(path, MAX_FILE, &text, &len, err));
    const char *at = text, *line;
    size_t size;
    while (weft__next_line(&at, text + len, &line, &size)) take_line(d, line, size);
    free(text);
    if (d->gpus == 0)
        return weft__fail(err, WEFT_FORMAT,
                          "%.200s: no sample in %lld lines; record with nvidia-smi "
                          "--query-gpu=index,utilization.gpu,power.draw,power.limit --format=csv "
                          "-l 1, nvidia-smi dmon, or dcgmi dmon -e 203,155",
                          path, (long long)d->lines);
    bool limits = limit > 0;
    for (int i = 0; i < d->gpus; i++) limits |= d->gpu[i].limit.count > 0;
    if (!limits)
        return weft__fail(err, WEFT_INVALID,
                          "%.200s has no power.limit column: give --power-limit W", path);
    return WEFT_OK;
}

int weft__bench_diagnose(int argc, char **argv)
{
    bool json = false;
    double limit = 0;
    const char *thresholds = NULL;
    struct weft__profiles profiles = {0};
    int status;
    weft_error err;
    const struct weft__option options[] = {
        {WEFT__OPTION_DOUBLE, "power-limit", &limit, 1, 1e5, "W",
         "of each GPU (the file's power.limit column)"},
        {WEFT__OPTION_STRING, "thresholds", &thresholds, 0, 0, "FILE",
         "what `weft bench calibrate` wrote; its first entry counts"},
        {WEFT__OPTION_FLAG, "json", &json, 0, 0, NULL, "for machines"},
        {0},
    };
    struct weft__command_line line = {
        .command = "bench diagnose",
        .synopsis = "FILE",
        .about = "What a recording by nvidia-smi or dcgmi says of each GPU: working, low power,\n"
                 "spin-like or idle. Power and utilisation alone never prove a cause.",
        .options = options,
        .arguments_min = 1,
        .arguments_max = 1,
    };
    if (!weft__command_line_parse(&line, argc, argv, &status)) return status;
    if (thresholds != NULL && weft__profiles_load(thresholds, &profiles, &err) != WEFT_OK)
        return weft__report(line.command, &err);
    struct diagnosis d = {.gpu = calloc(MAX_GPUS, sizeof *d.gpu),
                          .thresholds = weft__profiles_find(&profiles, NULL)};
    if (d.gpu == NULL) {
        (void)weft__fail_oom(&err, MAX_GPUS * sizeof *d.gpu, "the GPUs of a recording");
        return weft__report(line.command, &err);
    }
    if (read_samples(&d, line.argument[0], limit, &err) != WEFT_OK) {
        status = weft__report(line.command, &err);
    } else {
        judge(&d, limit);
        status = WEFT__EXIT_OK;
        if (json)
            status = print_json(&d);
        else
            print_text(&d);
    }
    free(d.gpu);
    return status;
}
