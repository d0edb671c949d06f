/* A thread that reads meters ten times a second through a run, and once a second what the server
 * or the engine says of its ranks. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum {
    TICK_NS = 100000000,
    PROGRESS_EVERY = 10, /* ticks */
    ASK_MS = 300,        /* then a slow server is let be: the meters are not read meanwhile */
    ASK_FIRST_MS = 2000, /* and for the last time: these two are what the differences are made of */
    MAX_POINTS = 4096,   /* then every second one goes */
    MAX_METRICS = 64 << 20,
};

/* HW slowdown, SW and HW thermal slowdown, power brake (nvml.h) */
static const uint64_t throttle_bits = 0x8 | 0x20 | 0x40 | 0x80;

struct weft__watch {
    const struct weft__bench_options *o;
    struct weft__power *power; /* NULL: nothing is metered */
    pthread_t thread;
    pthread_mutex_t mutex; /* guards: */
    pthread_cond_t wake;
    bool stopping;
    /* The thread's own while it runs. */
    uint64_t begin_ns;
    bool known; /* progress: of the first and of every later one */
    struct weft__progress first, last;
    double since_s, stalled_s; /* since_s: clock when a step last ended or nothing ran */
    struct weft__watched meter[WEFT__METERS_MAX];
    double energy_first[WEFT__METERS_MAX];
    struct weft__point *point;
    int64_t points, every, skipped; /* every: ticks a point */
};

/* ---- what a server says: Prometheus text ---- */

/* "name{...} value": the value of the label as a string of at most 15 bytes. */
static bool label_of(const char *line, const char *end, const char *label, char out[16])
{
    char key[24];
    int len = snprintf(key, sizeof key, "%s=\"", label);
    const char *at = memmem(line, (size_t)(end - line), key, (size_t)len);
    if (at == NULL) return false;
    at += len;
    const char *quote = memchr(at, '"', (size_t)(end - at));
    if (quote == NULL || quote - at > 15) return false;
    memcpy(out, at, (size_t)(quote - at));
    out[quote - at] = '\0';
    return true;
}

static void take_rank(struct weft__progress *p, const char *name, size_t len, const char *line,
                      const char *end, double value)
{
    static const struct {
        const char *name;
        size_t offset;
    } fields[] = {
#define X(member, metric) {metric, offsetof(struct weft__rank_time, member)},
        WEFT__RANK_TIMES(X)
#undef X
    };
    char text[16], *stop;
    if (!label_of(line, end, "rank", text)) return;
    long rank = strtol(text, &stop, 10);
    if (stop == text || rank < 0 || rank >= WEFT__MAX_RANKS) return;
    if (label_of(line, end, "device", text)) p->gpu = strcmp(text, "cuda") == 0;
    for (size_t f = 0; f < WEFT__COUNT(fields); f++)
        if (strlen(fields[f].name) == len && memcmp(fields[f].name, name, len) == 0) {
            memcpy((char *)&p->rank[rank] + fields[f].offset, &value, sizeof value);
            if (rank >= p->ranks) p->ranks = (int)rank + 1;
        }
}

static void take_sample(struct weft__progress *p, const char *line, const char *end)
{
    const char *brace = memchr(line, '{', (size_t)(end - line));
    const char *space = memrchr(line, ' ', (size_t)(end - line));
    char text[40];
    if (brace == NULL || space == NULL || space < brace || end - space > 32) return;
    memcpy(text, space, (size_t)(end - space));
    text[end - space] = '\0';
    double value = strtod(text, NULL);
    size_t len = (size_t)(brace - line);
    if (!(value >= 0 && value <= 1e15)) return; /* seconds and counts; differences stay finite */
    if (len > 10 && memcmp(line, "weft:rank_", 10) == 0)
        take_rank(p, line + 10, len - 10, line, end, value);
    else if (len == 19 && memcmp(line, "weft:uptime_seconds", 19) == 0)
        p->clock_s = value;
    else if (len == 27 && memcmp(line, "weft:http_cpu_seconds_total", 27) == 0)
        p->http_s = value;
    else if (len == 25 && memcmp(line, "weft:num_requests_running", 25) == 0)
        p->running = value;
}

static bool ask_server(const struct weft__bench_options *o, long timeout_ms,
                       struct weft__progress *out)
{
    struct weft__buf body;
    weft_error err;
    long http = 0;
    *out = (struct weft__progress){0};
    weft__buf_init(&body, MAX_METRICS);
    bool good =
        weft__bench_get(o, "/metrics", timeout_ms, &body, &http, &err) == WEFT_OK && http == 200;
    const char *at = body.data, *line;
    size_t len;
    while (good && weft__next_line(&at, body.data + body.len, &line, &len))
        take_sample(out, line, line + len);
    weft__buf_free(&body);
    /* The counter of collectives holds the waiting. */
    for (int r = 0; r < out->ranks; r++)
        out->rank[r].moving = fmax(out->rank[r].moving - out->rank[r].waiting, 0);
    return good && out->ranks > 0 && out->clock_s > 0;
}

/* ---- what the engine in this process says ---- */

static void ask_engine(weft_engine *engine, struct weft__progress *out)
{
    struct weft__engine_status status;
    weft__engine_status(engine, &status);
    *out = (struct weft__progress){.ranks = weft__engine_view(engine)->plan->ranks.size,
                                   .clock_s = (double)weft__now_ns() / 1e9,
                                   .running = (double)status.counters.running};
    for (int r = 0; r < out->ranks; r++) {
        const struct weft__rank_stats *s = &status.rank[r];
        out->gpu = strcmp(s->device, "cuda") == 0;
        out->rank[r] = (struct weft__rank_time){
            .prefill = (double)s->prefill_ns / 1e9,
            .decode = (double)s->decode_ns / 1e9,
            .moving = (double)(s->collective_ns - s->wait_ns) / 1e9,
            .waiting = (double)s->wait_ns / 1e9,
            .sampling = (double)s->sample_ns / 1e9,
            .steps = (double)s->steps,
        };
    }
}

static void ask(struct weft__watch *w, long timeout_ms)
{
    struct weft__progress now;
    bool good = true, first = w->begin_ns == 0;
    if (!first && !w->known) return;
    if (w->o->engine != NULL)
        ask_engine(w->o->engine, &now);
    else
        good = ask_server(w->o, timeout_ms, &now);
    if (first) w->known = good;
    if (!good) return; /* one that is missed shows nothing */
    if (first) w->first = now;
    if (first || now.rank[0].steps != w->last.rank[0].steps || now.running == 0)
        w->since_s = now.clock_s;
    w->stalled_s = fmax(w->stalled_s, now.clock_s - w->since_s);
    w->last = now;
}

/* ---- meters ---- */

static void take_reading(struct weft__watched *m, const struct weft__power_reading *r)
{
    weft__mean_add(&m->busy, r->busy);
    weft__mean_add(&m->memory, r->memory_busy);
    weft__mean_add(&m->power, r->power_w);
    weft__mean_add(&m->clock, r->clock_mhz);
    weft__mean_add(&m->temperature, r->temperature_c);
    weft__mean_add(&m->pcie, r->pcie_mbs);
    weft__mean_add(&m->nvlink, r->nvlink_mbs);
    m->samples++;
    m->throttled += (r->reasons & throttle_bits) != 0;
    for (size_t bit = 0; bit < WEFT__COUNT(m->reason); bit++)
        m->reason[bit] += (int64_t)(r->reasons >> bit & 1);
}

/* The first reading only starts the counters. */
static void read_meters(struct weft__watch *w, bool first)
{
    struct weft__point point = {.at_s = (double)(weft__now_ns() - w->begin_ns) / 1e9};
    int count = w->power != NULL ? weft__power_count(w->power) : 0;
    for (int i = 0; i < count; i++) {
        weft__power_read(w->power, i, &point.reading[i]);
        if (first) w->energy_first[i] = point.reading[i].energy_j;
        if (!first) take_reading(&w->meter[i], &point.reading[i]);
        w->meter[i].energy_j = point.reading[i].energy_j - w->energy_first[i];
    }
    if (first || count == 0 || ++w->skipped < w->every) return;
    w->skipped = 0;
    if (w->points == MAX_POINTS) {
        for (int64_t i = 0; i < MAX_POINTS / 2; i++) w->point[i] = w->point[2 * i];
        w->points = MAX_POINTS / 2;
        w->every *= 2;
    }
    w->point[w->points++] = point;
}

static void *watch_main(void *arg)
{
    struct weft__watch *w = arg;
    uint64_t due = w->begin_ns;
    (void)pthread_mutex_lock(&w->mutex);
    for (int64_t tick = 1; !w->stopping; tick++) {
        due += TICK_NS;
        if (due < weft__now_ns()) due = weft__now_ns(); /* late: no burst of readings */
        const struct timespec until = {.tv_sec = (time_t)(due / 1000000000u),
                                       .tv_nsec = (long)(due % 1000000000u)};
        while (!w->stopping && weft__now_ns() < due)
            (void)pthread_cond_timedwait(&w->wake, &w->mutex, &until);
        if (w->stopping) break;
        (void)pthread_mutex_unlock(&w->mutex);
        read_meters(w, false);
        if (tick % PROGRESS_EVERY == 0) ask(w, ASK_MS);
        (void)pthread_mutex_lock(&w->mutex);
    }
    (void)pthread_mutex_unlock(&w->mutex);
    return NULL;
}

/* ---- open and close ---- */

weft_status weft__watch_start(const struct weft__bench_options *o, struct weft__power *power,
                              struct weft__watch **out, weft_error *err)
{
    pthread_condattr_t attr;
    struct weft__watch *w = calloc(1, sizeof *w);
    if (w != NULL) w->point = calloc(MAX_POINTS, sizeof *w->point);
    if (w == NULL || w->point == NULL) {
        free(w);
        return weft__fail_oom(err, MAX_POINTS * sizeof *w->point, "readings");
    }
    w->o = o;
    w->power = power;
    w->every = 1;
    (void)pthread_mutex_init(&w->mutex, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&w->wake, &attr);
    (void)pthread_condattr_destroy(&attr);
    ask(w, ASK_FIRST_MS);
    w->begin_ns = weft__now_ns();
    read_meters(w, true);
    if (pthread_create(&w->thread, NULL, watch_main, w) != 0) {
        w->stopping = true;
        weft__watch_free(w);
        return weft__fail(err, WEFT_NO_MEMORY, "no thread for reading power");
    }
    *out = w;
    return WEFT_OK;
}

void weft__watch_stop(struct weft__watch *w)
{
    (void)pthread_mutex_lock(&w->mutex);
    w->stopping = true;
    (void)pthread_cond_signal(&w->wake);
    (void)pthread_mutex_unlock(&w->mutex);
    (void)pthread_join(w->thread, NULL);
    read_meters(w, false);
    ask(w, ASK_FIRST_MS);
}

void weft__watch_free(struct weft__watch *w)
{
    if (w == NULL) return;
    (void)pthread_mutex_destroy(&w->mutex);
    (void)pthread_cond_destroy(&w->wake);
    free(w->point);
    free(w);
}

/* ---- results ---- */

const struct weft__power *weft__watch_power(const struct weft__watch *w) { return w->power; }

const struct weft__watched *weft__watch_meter(const struct weft__watch *w, int i)
{
    return &w->meter[i];
}

const struct weft__point *weft__watch_points(const struct weft__watch *w, int64_t *count)
{
    *count = w->points;
    return w->point;
}

bool weft__watch_progress(const struct weft__watch *w, struct weft__progress *out,
                          double *stalled_s)
{
    const struct weft__progress *a = &w->first, *b = &w->last;
    *out = *b;
    out->clock_s = b->clock_s - a->clock_s;
    out->http_s = b->http_s - a->http_s;
    for (int r = 0; r < b->ranks; r++) out->rank[r] = (struct weft__rank_time)
        {
#define X(member, metric) .member = b->rank[r].member - a->rank[r].member,
            WEFT__RANK_TIMES(X)
#undef X
        };
    *stalled_s = w->stalled_s;
    /* Counters that fell: the server was started anew in between. */
    return w->known && out->clock_s > 0 && out->rank[0].steps >= 0;
}
