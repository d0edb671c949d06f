/* Which request is due when: arrival times, slots, later turns of a conversation, the bar. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "bench.h"

enum { PROGRESS_NS = 200000000 };

static uint64_t cpu_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int64_t weft__pace_limit(const struct weft__bench_options *o, const struct weft__bench_run *run)
{
    int64_t most = weft__min(run->data->count, WEFT__BENCH_MAX_ACTIVE);
    return o->concurrency > 0 ? weft__min(o->concurrency, most) : most;
}

weft_status weft__pace_begin(const struct weft__bench_options *o, struct weft__bench_run *run,
                             struct weft__pace *out, weft_error *err)
{
    struct weft__pace pace = {
        .o = o,
        .run = run,
        .request = run->data->request,
        .count = run->data->count,
        .limit = weft__pace_limit(o, run),
        .ready = calloc((size_t)run->data->count + 1, sizeof *pace.ready),
    };
    if (pace.ready == NULL) return weft__fail_oom(err, (size_t)run->data->count * 8, "later turns");
    run->cpu_ns = cpu_ns();
    pace.begin_ns = weft__now_ns();
    pace.shown_due_ns = run->progress ? pace.begin_ns : UINT64_MAX;
    *out = pace;
    return WEFT_OK;
}

void weft__pace_end(struct weft__pace *pace)
{
    if (pace->ready == NULL) return;
    pace->run->duration_ns =
        weft__now_ns() - (pace->count > 0 ? pace->request[0].start_ns : pace->begin_ns);
    pace->run->cpu_ns = cpu_ns() - pace->run->cpu_ns;
    free(pace->ready);
    pace->ready = NULL;
}

bool weft__pace_over(const struct weft__pace *pace) { return pace->finished == pace->count; }

/* Of the next first turn; UINT64_MAX: none is left. Later turns stand behind all first ones. */
static uint64_t first_due(const struct weft__pace *pace)
{
    if (pace->next == pace->count || pace->request[pace->next].later) return UINT64_MAX;
    return pace->begin_ns + (pace->run->only_start ? 0 : pace->request[pace->next].at_ns);
}

struct weft__bench_request *weft__pace_take(struct weft__pace *pace)
{
    struct weft__bench_request *r;
    uint64_t now = weft__now_ns();
    if (pace->active == pace->limit) return NULL;
    if (pace->ready_count > 0) {
        r = &pace->request[pace->ready[pace->ready_head]];
        pace->ready_head = (pace->ready_head + 1) % pace->count;
        pace->ready_count--;
    } else {
        uint64_t due = first_due(pace);
        if (due > now) return NULL;
        r = &pace->request[pace->next++];
        r->due_ns = due;
    }
    r->slot_ns = pace->freed_ns > r->due_ns ? pace->freed_ns : r->due_ns;
    r->start_ns = now;
    pace->active++;
    return r;
}

uint64_t weft__pace_due(const struct weft__pace *pace)
{
    uint64_t due = pace->active < pace->limit ? first_due(pace) : UINT64_MAX;
    return due < pace->shown_due_ns ? due : pace->shown_due_ns;
}

/* The next turn can be sent, or what follows a failure never will be. */
static void follow(struct weft__pace *pace, const struct weft__bench_request *r)
{
    struct weft__bench_request *all = pace->request;
    bool good = r->end == WEFT__END_OK;
    if (r->then < 0) return;
    if (good && weft__bench_next_turn(pace->o, r, &all[r->then])) {
        int64_t at = (pace->ready_head + pace->ready_count++) % pace->count;
        pace->ready[at] = r->then;
        all[r->then].due_ns = weft__now_ns();
        return;
    }
    for (int64_t i = r->then; i >= 0; i = all[i].then) {
        weft__bench_fail(&all[i], WEFT__END_SKIPPED, "%s",
                         good ? "no memory for the prompt" : r->error);
        pace->finished++;
        pace->failed++;
    }
}

void weft__pace_done(struct weft__pace *pace, struct weft__bench_request *r)
{
    if (pace->active == pace->limit) pace->freed_ns = weft__now_ns();
    pace->active--;
    pace->finished++;
    pace->failed += r->end != WEFT__END_OK;
    pace->run->events += r->events;
    follow(pace, r);
}

void weft__pace_show(struct weft__pace *pace)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    uint64_t now = weft__now_ns();
    int64_t count = pace->count;
    bool last = pace->finished == count;
    if (!pace->run->progress || (now < pace->shown_due_ns && !last)) return;
    pace->shown_due_ns = now + PROGRESS_NS;
    for (int i = 0; i < WIDTH; i++) bar[i] = i * count < pace->finished * WIDTH ? '#' : '.';
    bar[WIDTH] = '\0';
    double seconds = (double)(now - pace->begin_ns) / 1e9;
    (void)fprintf(stderr, "\r[%s] %lld/%lld  %.1f s  %.1f req/s  %lld running  %lld failed ", bar,
                  (long long)pace->finished, (long long)count, seconds,
                  seconds > 0 ? (double)pace->finished / seconds : 0, (long long)pace->active,
                  (long long)pace->failed);
    if (last) (void)fputc('\n', stderr);
}
