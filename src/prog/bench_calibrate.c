/* weft bench calibrate: what this machine draws at rest, polling, moving memory and computing; from
 * that the thresholds of the verdict. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

enum { TICK_NS = 100000000, CPU_BUFFER = 64 << 20, MAX_THREADS = 1024 };

/* After a load begins, power rises for a while: not measured. */
static double settle_of(double seconds) { return fmin(seconds, 2); }

enum phase { IDLE, SPIN, MEMORY, COMPUTE, PHASES };
static const char *const phase_words[] = {"idle", "spin", "memory", "compute"};

/* ---- loads on the processors ---- */

struct team {
    enum phase phase;
    atomic_bool stop;
    atomic_int word; /* nobody sets it */
};

static void compute_some(float *sink)
{
    float a[64];
    for (int i = 0; i < 64; i++) a[i] = sink[i];
    for (int round = 0; round < 100000; round++)
        for (int i = 0; i < 64; i++) a[i] = a[i] * 0.9999f + 0.0001f;
    memcpy(sink, a, sizeof a);
}

static void spin_some(struct team *team)
{
    int left = 100000;
    while (left > 0 && atomic_load_explicit(&team->word, memory_order_acquire) == 0) left--;
}

static void *team_main(void *arg)
{
    struct team *team = arg;
    float sink[64];
    size_t bytes = team->phase == MEMORY ? CPU_BUFFER : 1;
    char *from = malloc(bytes), *to = malloc(bytes);
    for (int i = 0; i < 64; i++) sink[i] = (float)i;
    for (size_t i = 0; from != NULL && i < bytes; i++) from[i] = (char)(i * 167 >> 3);
    while (from != NULL && to != NULL && !atomic_load(&team->stop)) {
        if (team->phase == SPIN) spin_some(team);
        if (team->phase == COMPUTE) compute_some(sink);
        if (team->phase == MEMORY) memcpy(to, from, bytes), memcpy(from, to, bytes);
    }
    volatile float keep = sink[7]; /* so that the sums are made */
    (void)keep;
    free(from);
    free(to);
    return NULL;
}

/* ---- one load beside the meters ---- */

struct job { /* a GPU's load, on a thread: it blocks */
    const char *uuid;
    enum phase phase;
    uint64_t ns;
    weft_status status;
    weft_error err;
};

static void *job_main(void *arg)
{
    static const enum weft__load loads[] = {0, WEFT__LOAD_SPIN, WEFT__LOAD_MEMORY,
                                            WEFT__LOAD_COMPUTE};
    struct job *job = arg;
    job->status = weft__cuda_run_load(job->uuid, loads[job->phase], job->ns, &job->err);
    return NULL;
}

/* Reads for the time; what came while the load settled is left out. */
static void read_through(struct weft__power *power, int meter, double settle, double seconds,
                         struct weft__evidence *out)
{
    struct weft__power_reading r;
    uint64_t begin = weft__now_ns(), due = begin, measured = begin + (uint64_t)(settle * 1e9);
    uint64_t end = measured + (uint64_t)(seconds * 1e9);
    *out = (struct weft__evidence){.limit_w = weft__power_meter(power, meter)->limit_w};
    weft__power_read(power, meter, &r); /* starts the counters */
    while ((due += TICK_NS) < end) {
        const struct timespec at = {.tv_sec = (time_t)(due / 1000000000u),
                                    .tv_nsec = (long)(due % 1000000000u)};
        (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
        weft__power_read(power, meter, &r);
        if (due < measured) continue;
        weft__mean_add(&out->busy, r.busy);
        weft__mean_add(&out->memory, r.memory_busy);
        weft__mean_add(&out->power, r.power_w);
        out->samples++;
    }
}

static weft_status measure_gpu(struct weft__power *power, int meter, enum phase phase,
                               double seconds, struct weft__evidence *out, weft_error *err)
{
    struct job job = {.uuid = weft__power_meter(power, meter)->id,
                      .phase = phase,
                      .ns = (uint64_t)((settle_of(seconds) + seconds + 2) * 1e9)};
    pthread_t thread;
    if (phase == IDLE) {
        read_through(power, meter, settle_of(seconds), seconds, out);
        return WEFT_OK;
    }
    if (pthread_create(&thread, NULL, job_main, &job) != 0)
        return weft__fail(err, WEFT_NO_MEMORY, "no thread for a load");
    /* Opening the device takes a while of its own. */
    read_through(power, meter, settle_of(seconds) + 1, seconds, out);
    (void)pthread_join(thread, NULL);
    if (job.status != WEFT_OK && err != NULL) *err = job.err;
    return job.status;
}

static weft_status measure_cpu(struct weft__power *power, int meter, enum phase phase,
                               double seconds, struct weft__evidence *out, weft_error *err)
{
    struct team team = {.phase = phase};
    pthread_t thread[MAX_THREADS];
    int count = 0, wanted = phase == IDLE ? 0 : (int)weft__min(weft__cpu_count(), MAX_THREADS);
    while (count < wanted && pthread_create(&thread[count], NULL, team_main, &team) == 0) count++;
    if (count == wanted) read_through(power, meter, settle_of(seconds), seconds, out);
    atomic_store(&team.stop, true);
    for (int i = 0; i < count; i++) (void)pthread_join(thread[i], NULL);
    return count == wanted ? WEFT_OK : weft__fail(err, WEFT_NO_MEMORY, "no threads for a load");
}

/* ---- a meter ---- */

static void print_phase(const struct weft__meter *meter, enum phase phase,
                        const struct weft__evidence *e)
{
    struct weft__judged judged;
    weft__judge(e, &weft__thresholds_default, &judged);
    (void)printf("%-28.28s %-8s %8.1f W %6.1f %% %7.1f %% %6.1f %%  %s (%s)\n", meter->name,
                 phase_words[phase], weft__mean_of(&e->power), 100 * judged.share,
                 weft__mean_of(&e->busy), weft__mean_of(&e->memory),
                 weft__verdict_words[judged.verdict].word, judged.confidence);
    (void)fflush(stdout);
}

static weft_status calibrate(struct weft__power *power, int meter, double seconds,
                             struct weft__profile *out, weft_error *err)
{
    const struct weft__meter *about = weft__power_meter(power, meter);
    struct weft__evidence e[PHASES];
    struct weft__thresholds t;
    struct weft__judged judged;
    double watts[PHASES];
    for (int phase = 0; phase < PHASES; phase++) {
        WEFT__TRY((about->gpu ? measure_gpu : measure_cpu)(power, meter, (enum phase)phase, seconds,
                                                           &e[phase], err));
        watts[phase] = weft__mean_of(&e[phase].power);
        print_phase(about, (enum phase)phase, &e[phase]);
    }
    *out =
        (struct weft__profile){.limit_w = isnan(about->limit_w) ? watts[COMPUTE] : about->limit_w,
                               .idle_w = watts[IDLE],
                               .spin_w = watts[SPIN],
                               .memory_w = watts[MEMORY],
                               .compute_w = watts[COMPUTE]};
    memcpy(out->name, about->name, sizeof out->name);
    if (!weft__thresholds_of(out, &t))
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "%s: computing drew no more than rest: power tells nothing here",
                          about->name);
    (void)printf("%-28.28s spin-like below %.3f of the limit, working from %.3f; by these:",
                 about->name, t.spin_below, t.working_from);
    for (int phase = 0; phase < PHASES; phase++) {
        weft__judge(&e[phase], &t, &judged);
        (void)printf("%s %s %s (%s)", phase > 0 ? "," : "", phase_words[phase],
                     weft__verdict_words[judged.verdict].word, judged.confidence);
    }
    (void)putchar('\n');
    return WEFT_OK;
}

/* Cards of one name are alike: the first is measured. */
static bool has_name(const struct weft__profiles *profiles, const char *name)
{
    for (int i = 0; i < profiles->count; i++)
        if (strcmp(profiles->profile[i].name, name) == 0) return true;
    return false;
}

static weft_status save(const struct weft__profiles *profiles, const char *path, weft_error *err)
{
    json_t *list = json_array();
    for (int i = 0; i < profiles->count; i++) {
        const struct weft__profile *p = &profiles->profile[i];
        (void)json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f, s:f, s:f}", "name",
                                                    p->name, "limit_w", p->limit_w, "idle_w",
                                                    p->idle_w, "spin_w", p->spin_w, "memory_w",
                                                    p->memory_w, "compute_w", p->compute_w));
    }
    json_t *root = json_pack("{s:s, s:o}", "version", weft_version(), "profiles", list);
    weft_status status = weft__bench_write_json(path, false, root, err);
    json_decref(root);
    return status;
}

int weft__bench_calibrate(int argc, char **argv)
{
    double seconds = 5;
    const char *output = NULL, *powercap = "/sys/class/powercap";
    struct weft__profiles profiles = {0};
    struct weft__power *power = NULL;
    weft_error err;
    int status;
    const struct weft__option options[] = {
        {WEFT__OPTION_DOUBLE, "seconds", &seconds, 0.5, 600, "S", "of each of the four phases (5)"},
        {WEFT__OPTION_STRING, "output", &output, 0, 0, "FILE",
         "store the watts, for --thresholds of bench and bench diagnose"},
        {WEFT__OPTION_STRING, "powercap", &powercap, 0, 0, "DIR",
         "where RAPL is (/sys/class/powercap)"},
        {0},
    };
    struct weft__command_line line = {
        .command = "bench calibrate",
        .synopsis = "",
        .about = "Measures what this machine draws at rest, polling, moving memory and computing;\n"
                 "each kind of GPU by NVML, each package by RAPL. Nothing else should run.",
        .options = options,
    };
    if (!weft__command_line_parse(&line, argc, argv, &status)) return status;
    if (weft__power_open(powercap, &power, &err) != WEFT_OK)
        return weft__report(line.command, &err);
    status = WEFT__EXIT_OK;
    (void)printf("%-28s %-8s %10s %8s %9s %8s  %s\n", "", "load", "power", "of limit", "busy",
                 "memory", "verdict by the default thresholds");
    for (int i = 0; i < weft__power_count(power); i++) {
        if (has_name(&profiles, weft__power_meter(power, i)->name)) continue;
        if (calibrate(power, i, seconds, &profiles.profile[profiles.count], &err) == WEFT_OK)
            profiles.count++;
        else
            status = weft__report(line.command, &err);
    }
    for (int gpu = 1; gpu >= 0; gpu--)
        if (weft__power_note(power, gpu != 0)[0] != '\0')
            (void)printf("%s: %s\n", gpu != 0 ? "GPUs" : "packages",
                         weft__power_note(power, gpu != 0));
    if (profiles.count == 0 && status == WEFT__EXIT_OK) {
        (void)weft__fail(&err, WEFT_UNSUPPORTED, "no meter on this machine can be read");
        status = weft__report(line.command, &err);
    }
    if (output != NULL && profiles.count > 0 && save(&profiles, output, &err) != WEFT_OK)
        status = weft__report(line.command, &err);
    weft__power_close(power);
    return status;
}
