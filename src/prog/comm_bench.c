/* weft comm-bench: times of the collectives of CPU ranks, size by size, each result checked. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prog.h"
#include "weft_comm.h"

enum { HIDDEN = 4096, WARM_UPS = 5, ROW_BYTES = HIDDEN * 4 };

enum operation { ALLREDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, OPERATIONS };

static const char *const operation_names[] = {"allreduce", "reduce-scatter", "all-gather",
                                              "broadcast"};

struct run {
    enum operation operation;
    int ranks;
    int64_t rows, iterations;
    weft_algorithm algorithm;
    weft_world *world;
    double us;     /* an operation, of rank 0 */
    int64_t wrong; /* elements, of all ranks */
    weft_error err[WEFT_COMM_RANKS_MAX];
};

struct rank_run {
    struct run *run;
    int rank;
    int64_t wrong;
    weft_status status;
    pthread_t thread;
};

struct tensors {
    float *in, *out; /* in: [rows, HIDDEN]; out: [ranks * rows, HIDDEN] */
};

/* Small whole numbers, so that every order of a sum gives the same. */
static float input_at(int rank, int64_t i) { return (float)(i % 97 + rank); }

static weft_status operate(weft_comm *comm, const struct run *run, const struct tensors *t,
                           weft_error *err)
{
    weft_reduce reduce = {
        .tokens = run->rows, .hidden = HIDDEN, .dtype = WEFT_F32, .x = t->in, .y = t->out};
    weft_gather gather = {
        .rows = 1, .row_bytes = (size_t)run->rows * ROW_BYTES, .in = t->in, .out = t->out};
    weft_broadcast broadcast = {.bytes = (size_t)run->rows * ROW_BYTES, .data = t->out};
    switch (run->operation) {
    case ALLREDUCE:
        return weft_comm_allreduce(comm, &reduce, err);
    case REDUCE_SCATTER:
        return weft_comm_reduce_scatter(comm, &reduce, err);
    case ALL_GATHER:
        return weft_comm_all_gather(comm, &gather, err);
    default:
        return weft_comm_broadcast(comm, &broadcast, err);
    }
}

/* Elements of the last result that are not what they must be. */
static int64_t count_wrong(const struct run *run, int rank, const float *out)
{
    int64_t first = 0, count = run->rows * HIDDEN, wrong = 0;
    if (run->operation == REDUCE_SCATTER) {
        count = weft_comm_share(run->rows, run->ranks, rank, &first) * HIDDEN;
        first *= HIDDEN;
    }
    if (run->operation == ALL_GATHER) count *= run->ranks;
    for (int64_t i = 0; i < count; i++) {
        int64_t in = (first + i) % (run->rows * HIDDEN);
        float want = input_at(0, in);
        if (run->operation == ALL_GATHER) want = input_at((int)(i / (run->rows * HIDDEN)), in);
        if (run->operation <= REDUCE_SCATTER)
            want = want * (float)run->ranks + (float)(run->ranks * (run->ranks - 1) / 2);
        wrong += out[i] != want;
    }
    return wrong;
}

static weft_status measure(weft_comm *comm, struct rank_run *self, const struct tensors *t,
                           weft_error *err)
{
    struct run *run = self->run;
    for (int64_t i = 0; i < run->rows * HIDDEN; i++) t->in[i] = input_at(self->rank, i);
    if (run->operation == BROADCAST && self->rank == 0)
        memcpy(t->out, t->in, (size_t)run->rows * ROW_BYTES);
    for (int i = 0; i < WARM_UPS; i++) WEFT__TRY(operate(comm, run, t, err));
    WEFT__TRY(weft_comm_barrier(comm, err));
    uint64_t begun = weft__now_ns();
    for (int64_t i = 0; i < run->iterations; i++) WEFT__TRY(operate(comm, run, t, err));
    WEFT__TRY(weft_comm_barrier(comm, err));
    if (self->rank == 0) run->us = (double)(weft__now_ns() - begun) / 1e3 / (double)run->iterations;
    self->wrong = count_wrong(run, self->rank, t->out);
    return WEFT_OK;
}

static void *rank_main(void *arg)
{
    struct rank_run *self = arg;
    struct run *run = self->run;
    weft_error *err = &run->err[self->rank];
    size_t bytes = (size_t)run->rows * ROW_BYTES;
    struct tensors t = {malloc(bytes), calloc((size_t)run->ranks, bytes)};
    weft_comm *comm = NULL;
    self->status = t.in == NULL || t.out == NULL
                       ? weft__fail_oom(err, bytes * (size_t)(run->ranks + 1), "tensors")
                       : weft_comm_open(run->world, self->rank, &comm, err);
    if (self->status == WEFT_OK) self->status = measure(comm, self, &t, err);
    weft_comm_close(comm);
    free(t.in);
    free(t.out);
    return NULL;
}

/* All ranks' part of one line. */
static weft_status run_ranks(struct run *run, weft_error *err)
{
    struct rank_run ranks[WEFT_COMM_RANKS_MAX];
    weft_world_options options = {.size = run->ranks, .algorithm = run->algorithm};
    WEFT__TRY(weft_world_create(&options, &run->world, err));
    weft_status status = WEFT_OK;
    int started = 0;
    for (; started < run->ranks; started++) {
        ranks[started] = (struct rank_run){.run = run, .rank = started};
        if (pthread_create(&ranks[started].thread, NULL, rank_main, &ranks[started]) != 0) break;
    }
    if (started < run->ranks)
        status =
            weft__fail(err, WEFT_NO_MEMORY, "cannot start thread %d of %d", started, run->ranks);
    run->wrong = 0;
    for (int r = 0; r < started; r++) {
        (void)pthread_join(ranks[r].thread, NULL);
        run->wrong += ranks[r].wrong;
        if (ranks[r].status == WEFT_OK || status != WEFT_OK) continue;
        status = ranks[r].status;
        *err = run->err[r];
    }
    weft_world_destroy(run->world);
    return status;
}

/* Bytes a rank must send or receive for each byte of the input, as nccl-tests counts. */
static double bus_factor(const struct run *run)
{
    double p = run->ranks;
    if (run->operation == ALLREDUCE) return 2 * (p - 1) / p;
    if (run->operation == REDUCE_SCATTER) return (p - 1) / p;
    return run->operation == ALL_GATHER ? p - 1 : 1;
}

static void print_line(const struct run *run, bool json, bool first)
{
    double bytes = (double)(run->rows * ROW_BYTES);
    double bus = bytes * bus_factor(run) / run->us / 1e3;
    static const char *const algorithms[] = {"auto", "one-shot", "two-shot"};
    const char *name = operation_names[run->operation], *how = algorithms[run->algorithm];
    if (json)
        printf("%s\n  {\"operation\": \"%s\", \"ranks\": %d, \"bytes\": %.0f, \"path\": \"shm\", "
               "\"algorithm\": \"%s\", \"us\": %.3f, \"bus_gb_s\": %.3f, \"wrong\": %lld}",
               first ? "[" : ",", name, run->ranks, bytes, how, run->us, bus,
               (long long)run->wrong);
    else
        printf("%-14s %5d %12.0f  shm   %-8s %12.2f %10.3f %10lld\n", name, run->ranks, bytes, how,
               run->us, bus, (long long)run->wrong);
    (void)fflush(stdout);
}

static int run_table(struct run *run, int64_t rows_min, int64_t rows_max, bool json)
{
    int64_t wrong = 0;
    bool first = true;
    if (!json)
        printf("%-14s %5s %12s  path  %-8s %12s %10s %10s\n", "operation", "ranks", "bytes", "how",
               "us", "bus GB/s", "wrong");
    for (run->rows = rows_min; run->rows <= rows_max; run->rows *= 4) {
        weft_error err = {0};
        if (run_ranks(run, &err) != WEFT_OK) return weft__report("comm-bench", &err);
        print_line(run, json, first);
        wrong += run->wrong;
        first = false;
    }
    if (json) printf("\n]\n");
    return wrong == 0 ? WEFT__EXIT_OK : WEFT__EXIT_FAILED;
}

static bool find(const char *word, const char *const *names, int count, int *out)
{
    for (int i = 0; i < count; i++)
        if (strcmp(word, names[i]) == 0) {
            *out = i;
            return true;
        }
    return false;
}

int weft__cmd_comm_bench(int argc, char **argv)
{
    static const char *const algorithms[] = {"auto", "one-shot", "two-shot"};
    const char *operation = "allreduce", *algorithm = "auto";
    int64_t ranks = 2, rows_min = 1, rows_max = 256, iterations = 50;
    bool json = false;
    const struct weft__option options[] = {
        {WEFT__OPTION_STRING, "operation", &operation, 0, 0, "NAME",
         "allreduce, reduce-scatter, all-gather, broadcast (allreduce)"},
        {WEFT__OPTION_INT, "ranks", &ranks, 1, WEFT_COMM_RANKS_MAX, "N", "CPU ranks (2)"},
        {WEFT__OPTION_STRING, "algorithm", &algorithm, 0, 0, "NAME",
         "of reductions: auto, one-shot, two-shot (auto)"},
        {WEFT__OPTION_INT, "rows-min", &rows_min, 1, 1 << 16, "N", "rows of 16 KiB at first (1)"},
        {WEFT__OPTION_INT, "rows-max", &rows_max, 1, 1 << 16, "N", "rows at most (256)"},
        {WEFT__OPTION_INT, "iterations", &iterations, 1, 1 << 20, "N", "of each size (50)"},
        {WEFT__OPTION_FLAG, "json", &json, 0, 0, NULL, "for machines"},
        {0},
    };
    struct weft__command_line line = {
        .command = "comm-bench",
        .synopsis = "",
        .about = "Times of the collectives of CPU ranks by size, each result checked.",
        .options = options,
    };
    int status, kind, how;
    if (!weft__command_line_parse(&line, argc, argv, &status)) return status;
    if (!find(operation, operation_names, OPERATIONS, &kind))
        return weft__usage("comm-bench", "unknown operation \"%s\"", operation);
    if (!find(algorithm, algorithms, 3, &how))
        return weft__usage("comm-bench", "unknown algorithm \"%s\"", algorithm);
    struct run run = {.operation = (enum operation)kind,
                      .ranks = (int)ranks,
                      .iterations = iterations,
                      .algorithm = (weft_algorithm)how};
    return run_table(&run, rows_min, rows_max, json);
}
