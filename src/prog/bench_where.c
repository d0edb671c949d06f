/* Where the time went, what was drawn, and the verdict: tables for people, keys for machines. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { UNITS_MAX = WEFT__METERS_MAX, POINTS_SHOWN = 600, SENTENCE_MAX = 4096 };

static const struct {
    int bit;
    const char *word;
} reasons[] = {{0, "idle"},
               {1, "application clocks"},
               {2, "power cap"},
               {3, "hardware slowdown"},
               {4, "sync boost"},
               {5, "heat (software)"},
               {6, "heat (hardware)"},
               {7, "power brake"},
               {8, "display clocks"}};

/* ---- units: what a verdict is about ---- */

enum kind { RANK, RANK_GPU, GPU, PACKAGE };
static const char *const kind_words[][2] = {
    {"rank", "ranks"}, {"GPU", "GPUs"}, {"GPU", "GPUs"}, {"package", "packages"}};

struct unit {
    enum kind kind;
    int index; /* of its kind */
    int meter; /* -1: none */
    struct weft__evidence e;
    struct weft__judged judged;
};

struct units {
    const struct weft__watch *watch;
    bool known; /* progress is */
    struct weft__progress progress;
    double stalled_s;
    struct unit unit[UNITS_MAX];
    int count;
};

/* The nth GPU or package; -1: there is none. */
static int find_meter(const struct weft__power *power, bool gpu, int n)
{
    for (int i = 0; power != NULL && i < weft__power_count(power); i++)
        if (weft__power_meter(power, i)->gpu == gpu && n-- == 0) return i;
    return -1;
}

static void add_unit(struct units *u, const struct weft__profiles *profiles, enum kind kind,
                     int index, int meter)
{
    const struct weft__power *power = weft__watch_power(u->watch);
    struct weft__thresholds t = weft__thresholds_default;
    struct unit *unit = &u->unit[u->count++];
    *unit = (struct unit){.kind = kind, .index = index, .meter = meter, .e.limit_w = NAN};
    if (meter >= 0) {
        const struct weft__watched *m = weft__watch_meter(u->watch, meter);
        unit->e.busy = m->busy;
        unit->e.memory = m->memory;
        unit->e.power = m->power;
        unit->e.limit_w = weft__power_meter(power, meter)->limit_w;
        unit->e.samples = m->samples;
        unit->e.throttled = m->samples > 0 ? (double)m->throttled / (double)m->samples : 0;
        t = weft__profiles_find(profiles, weft__power_meter(power, meter)->name);
    }
    if (kind == RANK || kind == RANK_GPU) {
        const struct weft__rank_time *r = &u->progress.rank[index];
        unit->e.steps_known = true;
        unit->e.wall_s = u->progress.clock_s;
        unit->e.compute_s = r->prefill + r->decode;
        unit->e.moving_s = r->moving;
        unit->e.waiting_s = r->waiting;
        unit->e.sampling_s = r->sampling;
        unit->e.steps = r->steps;
        unit->e.stalled_s = u->stalled_s;
    }
    weft__judge(&unit->e, &t, &unit->judged);
}

/* Ranks where steps are known; else GPUs, else packages. */
static void make_units(const struct weft__watch *watch, const struct weft__profiles *profiles,
                       struct units *u)
{
    const struct weft__power *power = weft__watch_power(watch);
    u->watch = watch;
    u->count = 0;
    u->known = weft__watch_progress(watch, &u->progress, &u->stalled_s);
    if (u->known) {
        int packages = 0;
        while (find_meter(power, false, packages) >= 0) packages++;
        for (int r = 0; r < u->progress.ranks; r++)
            if (u->progress.gpu)
                add_unit(u, profiles, RANK_GPU, r, find_meter(power, true, r));
            else /* a rank a NUMA node: packages in turn */
                add_unit(u, profiles, RANK, r,
                         find_meter(power, false, packages > 0 ? r % packages : 0));
        return;
    }
    bool gpus = find_meter(power, true, 0) >= 0;
    for (int i = 0, meter; (meter = find_meter(power, gpus, i)) >= 0; i++)
        add_unit(u, profiles, gpus ? GPU : PACKAGE, i, meter);
}

/* ---- the sentence ---- */

/* Who keeps the others waiting: the rank that waits least itself. */
static void say_last(const struct units *u, struct weft__buf *out)
{
    int last = 0;
    double sum = 0, least;
    for (int r = 0; r < u->progress.ranks; r++) {
        sum += u->progress.rank[r].waiting;
        if (u->progress.rank[r].waiting < u->progress.rank[last].waiting) last = r;
    }
    least = u->progress.rank[last].waiting;
    double others = (sum - least) / fmax(u->progress.ranks - 1, 1);
    if (least < 0.7 * others)
        weft__buf_printf(out, "; rank %d arrives last (waits %.2f s, the others %.2f s)", last,
                         least, others);
    else
        weft__buf_puts(out, "; no rank arrives much later than the others");
}

static void say_reasons(const struct units *u, enum weft__verdict verdict, struct weft__buf *out)
{
    struct weft__mean clock = {0};
    double most = NAN;
    bool any = false;
    for (int i = 0; i < u->count; i++) {
        if (u->unit[i].judged.verdict != verdict || u->unit[i].meter < 0) continue;
        weft__mean_add(&clock,
                       weft__mean_of(&weft__watch_meter(u->watch, u->unit[i].meter)->clock));
        most = weft__power_meter(weft__watch_power(u->watch), u->unit[i].meter)->clock_max_mhz;
    }
    for (size_t k = 0; k < WEFT__COUNT(reasons); k++) {
        int64_t seen = 0, samples = 0;
        for (int i = 0; i < u->count; i++) {
            if (u->unit[i].judged.verdict != verdict || u->unit[i].meter < 0) continue;
            const struct weft__watched *m = weft__watch_meter(u->watch, u->unit[i].meter);
            seen += m->reason[reasons[k].bit];
            samples += m->samples;
        }
        if (seen == 0 || reasons[k].bit < 3) continue;
        weft__buf_printf(out, "%s %s in %.0f %% of the readings", any ? "," : ", held down by",
                         reasons[k].word, 100 * (double)seen / (double)samples);
        any = true;
    }
    if (clock.count > 0)
        weft__buf_printf(out, ", SM clock %.0f of %.0f MHz", weft__mean_of(&clock), most);
}

/* The evidence of all units with this verdict. */
static void say(const struct units *u, enum weft__verdict verdict, struct weft__buf *out)
{
    struct weft__mean busy = {0}, share = {0}, wait = {0}, move = {0}, step = {0}, compute = {0};
    enum kind kind = RANK;
    int count = 0;
    for (int i = 0; i < u->count; i++) {
        const struct weft__evidence *e = &u->unit[i].e;
        double in = e->compute_s + e->moving_s + e->waiting_s;
        if (u->unit[i].judged.verdict != verdict) continue;
        kind = u->unit[i].kind;
        count++;
        weft__mean_add(&busy, weft__mean_of(&e->busy));
        weft__mean_add(&share, u->unit[i].judged.share);
        weft__mean_add(&wait, in > 0 ? e->waiting_s / in : NAN);
        weft__mean_add(&move, in > 0 ? e->moving_s / in : NAN);
        weft__mean_add(&compute, in > 0 ? e->compute_s / in : NAN);
        weft__mean_add(&step, e->steps_known ? in / e->wall_s : NAN);
    }
    weft__buf_printf(out, "%d %s", count, kind_words[kind][count != 1]);
    if (busy.count > 0 && kind != RANK) /* of a processor, others' work is in it */
        weft__buf_printf(out, " %.0f %% busy", weft__mean_of(&busy));
    if (share.count > 0)
        weft__buf_printf(out, "%s at %.0f %% of %s power limit",
                         kind == RANK ? " on processors" : "", 100 * weft__mean_of(&share),
                         count == 1 ? "its" : "their");
    if (step.count > 0)
        weft__buf_printf(out, ", in steps %.0f %% of the time", 100 * weft__mean_of(&step));
    if (verdict == WEFT__VERDICT_SPINNING)
        weft__buf_printf(out, ", no step ended for %.0f s while requests ran", u->stalled_s);
    if (wait.count > 0)
        weft__buf_printf(out,
                         ", %.0f %% of step time waiting in collectives, %.0f %% moving data, "
                         "%.0f %% computing",
                         100 * weft__mean_of(&wait), 100 * weft__mean_of(&move),
                         100 * weft__mean_of(&compute));
    if (verdict == WEFT__VERDICT_STARVED && u->progress.ranks > 1) say_last(u, out);
    if (verdict == WEFT__VERDICT_THROTTLED) say_reasons(u, verdict, out);
}

static const char *confidence_of(const struct units *u, enum weft__verdict verdict)
{
    static const char *const order[] = {"low", "medium", "high"};
    int least = 2;
    for (int i = 0; i < u->count; i++)
        for (int k = 0; k < 2 && u->unit[i].judged.verdict == verdict; k++)
            if (strcmp(u->unit[i].judged.confidence, order[k]) == 0 && k < least) least = k;
    return order[least];
}

static bool has_verdict(const struct units *u, enum weft__verdict verdict)
{
    for (int i = 0; i < u->count; i++)
        if (u->unit[i].judged.verdict == verdict) return true;
    return false;
}

/* ---- for people ---- */

static double idle_of(const struct weft__progress *p, const struct weft__rank_time *r)
{
    return fmax(p->clock_s - r->prefill - r->decode - r->moving - r->waiting - r->sampling, 0);
}

static void print_time(const struct units *u)
{
    const struct weft__progress *p = &u->progress;
    double percent = 100 / p->clock_s;
    (void)printf("\nWhere the time went: %% of %.2f s\n", p->clock_s);
    (void)printf("%-10s %8s %8s %8s %8s %8s %8s %8s %9s\n", "", "prefill", "decode", "moving",
                 "waiting", "sampling", "HTTP", "idle", "steps");
    for (int i = 0; i < p->ranks; i++) {
        const struct weft__rank_time *r = &p->rank[i];
        (void)printf("  rank %-3d %8.2f %8.2f %8.2f %8.2f %8.2f %8s %8.2f %9.0f\n", i,
                     r->prefill * percent, r->decode * percent, r->moving * percent,
                     r->waiting * percent, r->sampling * percent, "-", idle_of(p, r) * percent,
                     r->steps);
    }
    if (p->http_s > 0)
        (void)printf("  %-8s %8s %8s %8s %8s %8s %8.2f %8.2f\n", "HTTP", "-", "-", "-", "-", "-",
                     p->http_s * percent, fmax(p->clock_s - p->http_s, 0) * percent);
}

static void print_known(const char *format, double value)
{
    if (isfinite(value)) (void)printf(format, value);
}

static void print_power(const struct weft__watch *watch, int64_t output_tokens)
{
    const struct weft__power *power = weft__watch_power(watch);
    double joules = 0;
    int gpus = 0, packages = 0;
    if (power == NULL) {
        (void)printf("\nPower: not read: the server is on another machine\n");
        return;
    }
    (void)printf("\nPower, read ten times a second\n");
    for (int i = 0; i < weft__power_count(power); i++) {
        const struct weft__meter *meter = weft__power_meter(power, i);
        const struct weft__watched *m = weft__watch_meter(watch, i);
        (void)printf("  %s%d %s:", meter->gpu ? "GPU " : "CPU ", meter->gpu ? gpus++ : packages++,
                     meter->name);
        print_known(" %.1f W", weft__mean_of(&m->power));
        print_known(" of %.0f W", meter->limit_w);
        print_known(", %.0f %% busy", weft__mean_of(&m->busy));
        print_known(", memory %.0f %%", weft__mean_of(&m->memory));
        print_known(", SM %.0f", weft__mean_of(&m->clock));
        print_known(" of %.0f MHz", meter->clock_max_mhz);
        print_known(", %.0f C", weft__mean_of(&m->temperature));
        print_known(", PCIe %.0f MB/s", weft__mean_of(&m->pcie));
        print_known(", NVLink %.0f MB/s", weft__mean_of(&m->nvlink));
        (void)printf(", %.1f J", m->energy_j);
        for (size_t k = 0; k < WEFT__COUNT(reasons); k++)
            if (m->reason[reasons[k].bit] > 0)
                (void)printf(", %s %.0f %%", reasons[k].word,
                             100 * (double)m->reason[reasons[k].bit] / (double)m->samples);
        (void)putchar('\n');
        joules += m->energy_j;
    }
    for (int gpu = 1; gpu >= 0; gpu--)
        if (weft__power_note(power, gpu != 0)[0] != '\0')
            (void)printf("  %s: %s\n", gpu != 0 ? "GPUs" : "Packages",
                         weft__power_note(power, gpu != 0));
    if (joules > 0 && output_tokens > 0)
        (void)printf("  Energy: %.1f J, %.4f J an output token\n", joules,
                     joules / (double)output_tokens);
}

void weft__where_print(const struct weft__watch *watch, const struct weft__profiles *profiles,
                       int64_t output_tokens)
{
    struct weft__buf text;
    struct units *u = calloc(1, sizeof *u);
    if (u == NULL) return;
    make_units(watch, profiles, u);
    if (u->known)
        print_time(u);
    else
        (void)printf("\nWhere the time went: not known: no weft:rank_* in the server's /metrics\n");
    print_power(watch, output_tokens);
    if (u->count == 0) (void)printf("\nVerdict: none: neither steps nor power are known\n");
    for (int v = 0; v < WEFT__VERDICT_COUNT; v++) {
        if (!has_verdict(u, (enum weft__verdict)v)) continue;
        weft__buf_init(&text, SENTENCE_MAX);
        say(u, (enum weft__verdict)v, &text);
        (void)printf("\nVerdict: %s (%s confidence): %s.\n  Measure next: %s.\n",
                     weft__verdict_words[v].word, confidence_of(u, (enum weft__verdict)v),
                     text.data != NULL ? text.data : "", weft__verdict_words[v].next);
        weft__buf_free(&text);
    }
    free(u);
}

/* ---- for machines ---- */

static json_t *time_json(const struct units *u)
{
    const struct weft__progress *p = &u->progress;
    if (!u->known) return json_null();
    json_t *ranks = json_array();
    for (int i = 0; i < p->ranks; i++) {
        const struct weft__rank_time *r = &p->rank[i];
        (void)json_array_append_new(ranks, json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
                                                     "prefill_s", r->prefill, "decode_s", r->decode,
                                                     "moving_s", r->moving, "waiting_s", r->waiting,
                                                     "sampling_s", r->sampling, "idle_s",
                                                     idle_of(p, r), "steps", r->steps));
    }
    return json_pack("{s:f, s:o, s:f, s:s}", "wall_s", p->clock_s, "ranks", ranks, "http_s",
                     p->http_s, "device", p->gpu ? "cuda" : "cpu");
}

static json_t *meter_json(const struct weft__meter *meter, const struct weft__watched *m)
{
    json_t *held = json_object();
    for (size_t k = 0; k < WEFT__COUNT(reasons); k++)
        if (m->reason[reasons[k].bit] > 0)
            (void)json_object_set_new(
                held, reasons[k].word,
                json_real((double)m->reason[reasons[k].bit] / (double)m->samples));
    bool valid = weft__utf8_valid(meter->name, strlen(meter->name)) &&
                 weft__utf8_valid(meter->id, strlen(meter->id));
    return json_pack(
        "{s:s, s:s, s:b, s:I, s:o, s:o, s:o, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name",
        valid ? meter->name : "?", "id", valid ? meter->id : "?", "gpu", (int)meter->gpu, "samples",
        (json_int_t)m->samples, "power_w", weft__number_json(weft__mean_of(&m->power)),
        "power_max_w", weft__number_json(m->power.count > 0 ? m->power.high : NAN), "limit_w",
        weft__number_json(meter->limit_w), "energy_j", m->energy_j, "busy_percent",
        weft__number_json(weft__mean_of(&m->busy)), "memory_percent",
        weft__number_json(weft__mean_of(&m->memory)), "clock_mhz",
        weft__number_json(weft__mean_of(&m->clock)), "clock_max_mhz",
        weft__number_json(meter->clock_max_mhz), "temperature_c",
        weft__number_json(weft__mean_of(&m->temperature)), "pcie_mb_per_s",
        weft__number_json(weft__mean_of(&m->pcie)), "nvlink_mb_per_s",
        weft__number_json(weft__mean_of(&m->nvlink)), "clock_reasons", held);
}

/* At most POINTS_SHOWN points: seconds and, a meter each, watts. */
static json_t *series_json(const struct weft__watch *watch, int meters)
{
    int64_t count;
    const struct weft__point *point = weft__watch_points(watch, &count);
    int64_t step = weft__max(weft__ceil_div(count, POINTS_SHOWN), 1);
    json_t *at = json_array(), *power = json_array();
    for (int64_t i = 0; i < count; i += step)
        (void)json_array_append_new(at, json_real(point[i].at_s));
    for (int m = 0; m < meters; m++) {
        json_t *watts = json_array();
        for (int64_t i = 0; i < count; i += step)
            (void)json_array_append_new(watts, weft__number_json(point[i].reading[m].power_w));
        (void)json_array_append_new(power, watts);
    }
    return json_pack("{s:o, s:o}", "at_s", at, "power_w", power);
}

static json_t *power_json(const struct weft__watch *watch, int64_t output_tokens)
{
    const struct weft__power *power = weft__watch_power(watch);
    double joules = 0;
    if (power == NULL) return json_null();
    json_t *meters = json_array();
    int count = weft__power_count(power);
    for (int i = 0; i < count; i++) {
        const struct weft__watched *m = weft__watch_meter(watch, i);
        (void)json_array_append_new(meters, meter_json(weft__power_meter(power, i), m));
        joules += m->energy_j;
    }
    return json_pack(
        "{s:o, s:o, s:f, s:o, s:s, s:s}", "meters", meters, "series", series_json(watch, count),
        "energy_j", joules, "energy_per_output_token_j",
        weft__number_json(output_tokens > 0 && joules > 0 ? joules / (double)output_tokens : NAN),
        "gpus_note", weft__power_note(power, true), "packages_note",
        weft__power_note(power, false));
}

static json_t *verdicts_json(const struct units *u)
{
    json_t *list = json_array();
    for (int v = 0; v < WEFT__VERDICT_COUNT; v++) {
        struct weft__buf text;
        json_t *about = json_array();
        if (!has_verdict(u, (enum weft__verdict)v)) {
            json_decref(about);
            continue;
        }
        for (int i = 0; i < u->count; i++)
            if (u->unit[i].judged.verdict == (enum weft__verdict)v)
                (void)json_array_append_new(
                    about, json_sprintf("%s %d", kind_words[u->unit[i].kind][0], u->unit[i].index));
        weft__buf_init(&text, SENTENCE_MAX);
        say(u, (enum weft__verdict)v, &text);
        (void)json_array_append_new(
            list, json_pack("{s:s, s:s, s:s, s:s, s:o}", "verdict", weft__verdict_words[v].word,
                            "confidence", confidence_of(u, (enum weft__verdict)v), "evidence",
                            text.data != NULL ? text.data : "", "measure_next",
                            weft__verdict_words[v].next, "about", about));
        weft__buf_free(&text);
    }
    return list;
}

json_t *weft__where_json(const struct weft__watch *watch, const struct weft__profiles *profiles,
                         int64_t output_tokens)
{
    struct units *u = calloc(1, sizeof *u);
    if (u == NULL) return json_null();
    make_units(watch, profiles, u);
    json_t *out = json_pack("{s:o, s:o, s:o}", "time", time_json(u), "power",
                            power_json(watch, output_tokens), "verdicts", verdicts_json(u));
    free(u);
    return out;
}
