/* The load in this process: requests go to the engine's scheduler, tokens come from its thread. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "bench.h"

struct load;

struct call { /* one request at the engine; its request is the engine's thread's until it ends */
    struct load *load;
    struct weft__bench_request *r;
    struct weft__detok detok;
};

struct load {
    const struct weft__bench_options *o;
    struct weft__pace pace;
    struct call *call;     /* [count] */
    pthread_mutex_t mutex; /* guards: */
    pthread_cond_t ended;
    struct weft__bench_request **end; /* [ends] those that ended and were not taken yet */
    int64_t ends;
};

/* ---- on the engine's thread ---- */

static void on_token(void *ctx, const struct weft__token_event *event)
{
    struct call *call = ctx;
    struct weft__bench_request *r = call->r;
    size_t len = r->text.len;
    if (r->events == r->events_cap) return; /* never: as many as were asked for */
    if (call->load->o->tok != NULL && !event->stop)
        weft__detok_push(&call->detok, call->load->o->tok, event->token, true, &r->text);
    r->out[r->events] = event->token;
    r->event[r->events++] =
        (struct weft__bench_event){.ns = weft__now_ns(),
                                   .tokens = (int32_t)event->index + 1,
                                   .text = call->load->o->tok == NULL || r->text.len > len};
}

static void on_finish(void *ctx, const struct weft__finish_event *event)
{
    struct call *call = ctx;
    struct load *load = call->load;
    struct weft__bench_request *r = call->r;
    weft__detok_finish(&call->detok, &r->text);
    r->last_line_ns = weft__now_ns();
    r->usage_prompt = event->prompt_tokens;
    r->usage_output = event->generated_tokens;
    if (event->finish == WEFT__FINISH_TIMEOUT)
        weft__bench_fail(r, WEFT__END_TIMEOUT, "no end after %lld s (--timeout)",
                         (long long)load->o->timeout_s);
    else if (event->finish != WEFT__FINISH_STOP && event->finish != WEFT__FINISH_LENGTH)
        weft__bench_fail(r, WEFT__END_ERROR_EVENT, "%s",
                         event->error != NULL ? event->error->text
                                              : weft__finish_name(event->finish));
    else if (r->events == 0)
        weft__bench_fail(r, WEFT__END_NO_OUTPUT, "no token");
    (void)pthread_mutex_lock(&load->mutex);
    load->end[load->ends++] = r;
    (void)pthread_cond_signal(&load->ended);
    (void)pthread_mutex_unlock(&load->mutex);
}

/* ---- on the caller's ---- */

static bool make_room(struct weft__bench_request *r)
{
    if (r->events_cap >= r->output_len) return true;
    struct weft__bench_event *event = realloc(r->event, (size_t)r->output_len * sizeof *event);
    if (event != NULL) r->event = event;
    int32_t *out = realloc(r->out, (size_t)r->output_len * sizeof *out);
    if (out != NULL) r->out = out;
    if (event == NULL || out == NULL) return false;
    r->events_cap = (int)r->output_len;
    return true;
}

static void start(struct load *load, struct weft__bench_request *r)
{
    const struct weft__bench_options *o = load->o;
    struct call *call = &load->call[r - load->pace.request];
    struct weft__request request = {
        .prompt = r->ids,
        .prompt_count = r->id_count,
        .max_tokens = r->output_len,
        .samples = 1,
        .sampling = weft__sampling_default,
        .ignore_eos = !o->stop_at_eos,
        .deadline_ns = r->start_ns + (uint64_t)o->timeout_s * 1000000000u,
        .ctx = call,
        .on_token = on_token,
        .on_finish = on_finish,
    };
    uint64_t handle;
    weft_error err;
    request.sampling.temperature = (float)o->temperature;
    request.sampling.top_p = (float)o->top_p;
    request.sampling.seed = (uint64_t)o->seed;
    *call = (struct call){.load = load, .r = r};
    if (!make_room(r))
        weft__bench_fail(r, WEFT__END_REFUSED, "no memory for %lld tokens",
                         (long long)r->output_len);
    else if (weft__engine_submit(o->engine, &request, &handle, &err) != WEFT_OK)
        weft__bench_fail(r, WEFT__END_REFUSED, "%s", err.text);
    if (r->end != WEFT__END_OK) weft__pace_done(&load->pace, r);
}

/* Until a request ends, or something is due. */
static void wait_ended(struct load *load)
{
    uint64_t due = weft__pace_due(&load->pace);
    const struct timespec until = {.tv_sec = (time_t)(due / 1000000000u),
                                   .tv_nsec = (long)(due % 1000000000u)};
    (void)pthread_mutex_lock(&load->mutex);
    while (load->ends == 0 && weft__now_ns() < due) {
        if (due == UINT64_MAX)
            (void)pthread_cond_wait(&load->ended, &load->mutex);
        else
            (void)pthread_cond_timedwait(&load->ended, &load->mutex, &until);
    }
    while (load->ends > 0) {
        struct weft__bench_request *r = load->end[--load->ends];
        (void)pthread_mutex_unlock(&load->mutex);
        weft__pace_done(&load->pace, r);
        (void)pthread_mutex_lock(&load->mutex);
    }
    (void)pthread_mutex_unlock(&load->mutex);
}

weft_status weft__bench_load_engine(const struct weft__bench_options *o,
                                    struct weft__bench_run *run, weft_error *err)
{
    struct weft__bench_request *r;
    pthread_condattr_t attr;
    struct load load = {.o = o,
                        .mutex = PTHREAD_MUTEX_INITIALIZER,
                        .call = calloc((size_t)run->data->count + 1, sizeof *load.call),
                        .end = calloc((size_t)run->data->count + 1, sizeof *load.end)};
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&load.ended, &attr);
    (void)pthread_condattr_destroy(&attr);
    weft_status status = load.call != NULL && load.end != NULL
                             ? weft__pace_begin(o, run, &load.pace, err)
                             : weft__fail_oom(err, (size_t)run->data->count * 64, "calls");
    while (status == WEFT_OK && !weft__pace_over(&load.pace)) {
        while ((r = weft__pace_take(&load.pace)) != NULL) start(&load, r);
        if (!weft__pace_over(&load.pace)) wait_ended(&load);
        weft__pace_show(&load.pace);
    }
    weft__pace_end(&load.pace);
    (void)pthread_cond_destroy(&load.ended);
    free(load.call);
    free(load.end);
    return status;
}
