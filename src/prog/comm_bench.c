/* weft comm-bench: times of the collectives, of CPU or GPU ranks, size by size, each result
 * checked; the same for NCCL, and what was measured at open. On GPUs the operations run inside a
 * graph a rank. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "prog.h"

enum { HIDDEN = 4096, WARM_UPS = 5, ROW_BYTES = HIDDEN * 4 };

enum operation { ALLREDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };

static const char *const operation_names[] = {"allreduce", "reduce-scatter", "all-gather",
                                              "broadcast"};
static const enum weft__comm_op ops[] = {WEFT__ALLREDUCE, WEFT__REDUCE_SCATTER, WEFT__ALL_GATHER,
                                         WEFT__BROADCAST};
static const char *const algorithm_names[] = {"auto", "one-shot", "two-shot"};
static const char *const path_names[] = {
#define X(name, text) text,
    WEFT_PATHS(X)
#undef X
};
static const char path_choices[] = /* behind a first bar */
#define X(name, text) "|" text
    WEFT_PATHS(X)
#undef X
    ;

struct run {
    enum operation operation;
    int ranks, first_rank, own; /* own: as many of the ranks are threads of this process */
    int64_t rows_min, rows_max, iterations;
    bool json, plan, baseline, cuda;
    weft_world *world;
    bool first; /* nothing has been printed */
    bool wrong;
    weft_error err[WEFT_COMM_RANKS_MAX];
};

struct rank_run {
    struct run *run;
    int rank;
    weft_comm *comm;
    uint8_t *in, *out; /* in: rows_max rows, between GPUs in the heap; out: of all ranks */
    float *host;       /* as large as out */
    weft_status status;
    pthread_t thread;
};

/* What a rank has found out about one size. */
struct finding {
    double us;
    int64_t wrong;
};

/* ---- memory ---- */

static weft_status take(struct rank_run *self, size_t bytes, uint8_t **out, weft_error *err)
{
    const struct weft__dev_trial *dev = self->comm->dev->trial;
    if (dev != NULL) return dev->memory_take(self->comm->kernels, bytes, (void **)out, err);
    *out = calloc(1, bytes);
    return *out != NULL ? WEFT_OK : weft__fail_oom(err, bytes, "tensors");
}

static void give(struct rank_run *self, uint8_t *memory)
{
    if (memory != NULL && self->comm->dev->trial != NULL)
        self->comm->dev->trial->memory_give(self->comm->kernels, memory);
    else
        free(memory);
}

static weft_status store(struct rank_run *self, uint8_t *to, size_t bytes, weft_error *err)
{
    const struct weft__dev_trial *dev = self->comm->dev->trial;
    if (dev != NULL) return dev->memory_write(self->comm->kernels, to, self->host, bytes, err);
    memcpy(to, self->host, bytes);
    return WEFT_OK;
}

static weft_status load(struct rank_run *self, const uint8_t *from, size_t bytes, weft_error *err)
{
    const struct weft__dev_trial *dev = self->comm->dev->trial;
    if (dev != NULL) return dev->memory_read(self->comm->kernels, self->host, from, bytes, err);
    memcpy(self->host, from, bytes);
    return WEFT_OK;
}

/* Until all ranks are here, with nothing at work; everyone's findings. */
static weft_status meet(struct rank_run *self, const struct finding *mine, struct finding *all,
                        weft_error *err)
{
    weft_gather gather = {.rows = 1, .row_bytes = sizeof *mine, .in = mine, .out = all};
    return weft__comm_gather_host(self->comm, &gather, err);
}

/* ---- one size ---- */

static weft_status operate(struct rank_run *self, int64_t rows, weft_error *err)
{
    const struct run *run = self->run;
    weft_comm *comm = self->comm;
    size_t bytes = (size_t)rows * ROW_BYTES;
    weft_reduce reduce = {
        .tokens = rows, .hidden = HIDDEN, .dtype = WEFT_F32, .x = self->in, .y = self->out};
    weft_gather gather = {.rows = 1, .row_bytes = bytes, .in = self->in, .out = self->out};
    weft_broadcast broadcast = {.bytes = bytes, .data = self->out};
    if (run->baseline) {
        const void *in = run->operation == BROADCAST ? self->out : self->in;
        return comm->dev->trial->baseline(comm->kernels, ops[run->operation], in, self->out, bytes,
                                          err);
    }
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

/* By the clock. */
static weft_status time_calls(struct rank_run *self, int64_t rows, double *us, weft_error *err)
{
    int64_t iterations = self->run->iterations;
    for (int i = 0; i < WARM_UPS; i++) WEFT__TRY(operate(self, rows, err));
    WEFT__TRY(weft_comm_barrier(self->comm, err));
    uint64_t begun = weft__now_ns();
    for (int64_t i = 0; i < iterations; i++) WEFT__TRY(operate(self, rows, err));
    WEFT__TRY(weft_comm_barrier(self->comm, err));
    *us = (double)(weft__now_ns() - begun) / 1e3 / (double)iterations;
    return WEFT_OK;
}

/* Inside a graph, whose second run counts. */
static weft_status time_graph(struct rank_run *self, int64_t rows, double *us, weft_error *err)
{
    const struct weft__dev_trial *dev = self->comm->dev->trial;
    struct weft__comm_kernels *k = self->comm->kernels;
    struct finding nothing = {0}, all[WEFT_COMM_RANKS_MAX];
    float graph_us = 0;
    WEFT__TRY(operate(self, rows, err)); /* NCCL connects when it is first called */
    WEFT__TRY(meet(self, &nothing, all, err));
    weft_status status = dev->begin(k, err);
    if (status == WEFT_OK) status = weft_comm_barrier(self->comm, err); /* start together */
    if (status == WEFT_OK) status = dev->mark(k, err);
    for (int64_t i = 0; i < self->run->iterations && status == WEFT_OK; i++)
        status = operate(self, rows, err);
    weft_status ended = dev->end(k, status == WEFT_OK ? err : NULL);
    if (status == WEFT_OK) status = ended;
    if (status == WEFT_OK) status = meet(self, &nothing, all, err);
    for (int i = 0; i < 2 && status == WEFT_OK; i++) status = dev->run(k, &graph_us, err);
    if (status == WEFT_OK) status = meet(self, &nothing, all, err);
    dev->drop(k);
    *us = (double)graph_us / (double)self->run->iterations;
    return status;
}

/* Small whole numbers, so that every order of a sum gives the same. */
static float input_at(int rank, int64_t i) { return (float)(i % 97 + rank); }

/* Inputs; and outputs that nothing writes by accident. */
static weft_status prepare(struct rank_run *self, int64_t rows, weft_error *err)
{
    size_t bytes = (size_t)rows * ROW_BYTES;
    bool root = self->run->operation == BROADCAST && self->rank == 0;
    memset(self->host, 0xff, bytes * (size_t)self->run->ranks);
    WEFT__TRY(store(self, self->out, bytes * (size_t)self->run->ranks, err));
    for (int64_t i = 0; i < rows * HIDDEN; i++) self->host[i] = input_at(self->rank, i);
    return store(self, root ? self->out : self->in, bytes, err);
}

/* Elements of the last result that are not what they must be. */
static weft_status check(struct rank_run *self, int64_t rows, int64_t *wrong, weft_error *err)
{
    const struct run *run = self->run;
    int64_t first = 0, count = rows * HIDDEN;
    if (run->operation == REDUCE_SCATTER) {
        count = weft_comm_share(rows, run->ranks, self->rank, &first) * HIDDEN;
        first *= HIDDEN;
    }
    if (run->operation == ALL_GATHER) count *= run->ranks;
    WEFT__TRY(load(self, self->out, (size_t)count * 4, err));
    for (int64_t i = 0; i < count; i++) {
        int64_t in = (first + i) % (rows * HIDDEN);
        float want = input_at(0, in);
        if (run->operation == ALL_GATHER) want = input_at((int)(i / (rows * HIDDEN)), in);
        if (run->operation <= REDUCE_SCATTER)
            want = want * (float)run->ranks + (float)(run->ranks * (run->ranks - 1) / 2);
        *wrong += self->host[i] != want;
    }
    return WEFT_OK;
}

/* ---- words ---- */

/* Bytes a rank must send or receive for each byte of the input, as nccl-tests counts. */
static double bus_factor(const struct run *run)
{
    double p = run->ranks;
    if (run->operation == ALLREDUCE) return 2 * (p - 1) / p;
    if (run->operation == REDUCE_SCATTER) return (p - 1) / p;
    return run->operation == ALL_GATHER ? p - 1 : 1;
}

/* What comes before a line of the table or list. */
static void begin_line(struct run *run)
{
    if (run->json)
        printf(run->first ? "[\n  " : ",\n  ");
    else if (run->first)
        printf("%-14s %5s %12s  %-9s %-8s %12s %s\n", "operation", "ranks", "bytes", "path", "how",
               "us",
               run->plan   ? " form"
               : run->cuda ? "  bus GB/s      wrong form"
                           : "  bus GB/s      wrong");
    run->first = false;
}

static void print_line(const struct rank_run *self, int64_t rows, const struct finding *all)
{
    struct run *run = self->run;
    struct finding sum = {0};
    for (int r = 0; r < run->ranks; r++) {
        sum.wrong += all[r].wrong;
        if (all[r].us > sum.us) sum.us = all[r].us;
    }
    run->wrong = run->wrong || sum.wrong != 0;
    double bytes = (double)(rows * ROW_BYTES), bus = bytes * bus_factor(run) / sum.us / 1e3;
    struct weft__comm_choice choice = weft__comm_plan_choose(self->comm, ops[run->operation],
                                                             (uint64_t)rows * ROW_BYTES, run->cuda);
    weft_path asked = self->comm->link.path, path = weft__way_path(choice.way);
    const char *name = operation_names[run->operation];
    const char *how = run->baseline ? "own" : choice.two_shot ? "two-shot" : "one-shot";
    const char *where = !run->cuda      ? "shm"
                        : run->baseline ? "nccl"
                                        : path_names[path != WEFT_PATH_AUTO ? path : asked];
    const struct weft__dev_trial *dev = self->comm->dev->trial;
    const char *form = dev == NULL || run->baseline ? "" : dev->form(choice.way);
    begin_line(run);
    if (run->json)
        printf("{\"operation\": \"%s\", \"ranks\": %d, \"bytes\": %.0f, \"path\": \"%s\", "
               "\"algorithm\": \"%s\", \"us\": %.3f, \"bus_gb_s\": %.3f, \"wrong\": %lld, "
               "\"form\": \"%s\"}",
               name, run->ranks, bytes, where, how, sum.us, bus, (long long)sum.wrong, form);
    else
        printf("%-14s %5d %12.0f  %-9s %-8s %12.2f %10.3f %10lld%s%s\n", name, run->ranks, bytes,
               where, how, sum.us, bus, (long long)sum.wrong, run->cuda ? " " : "", form);
    (void)fflush(stdout);
}

static weft_status print_plan(const struct rank_run *self, weft_error *err)
{
    struct run *run = self->run;
    int count = weft_comm_plan(self->comm, NULL, 0);
    weft_comm_way *ways = calloc((size_t)count, sizeof *ways);
    if (ways == NULL && count > 0) return weft__fail_oom(err, sizeof *ways, "the plan");
    (void)weft_comm_plan(self->comm, ways, count);
    for (int i = 0; i < count; i++) {
        const weft_comm_way *w = &ways[i];
        const char *path = path_names[w->path], *how = algorithm_names[w->algorithm];
        begin_line(run);
        if (run->json)
            printf("{\"operation\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"path\": \"%s\", "
                   "\"form\": \"%s\", \"algorithm\": \"%s\", \"us\": %.3f, \"chosen\": %s}",
                   w->op, run->ranks, w->bytes, path, w->form, how, (double)w->us,
                   w->chosen ? "true" : "false");
        else
            printf("%-14s %5d %12zu  %-9s %-8s %12.2f  %-6s %s\n", w->op, run->ranks, w->bytes,
                   path, how, (double)w->us, w->form, w->chosen ? "chosen" : "");
    }
    free(ways);
    return WEFT_OK;
}

/* ---- the ranks ---- */

/* Four times as many, the last time rows_max; 0: that was it. */
static int64_t next_rows(const struct run *run, int64_t rows)
{
    return rows < run->rows_max ? weft__min(4 * rows, run->rows_max) : 0;
}

static weft_status measure(struct rank_run *self, weft_error *err)
{
    struct run *run = self->run;
    size_t bytes = (size_t)run->rows_max * ROW_BYTES;
    struct finding all[WEFT_COMM_RANKS_MAX];
    WEFT__TRY(run->cuda ? weft_comm_heap_alloc(self->comm, bytes, (void **)&self->in, err)
                        : take(self, bytes, &self->in, err));
    WEFT__TRY(take(self, bytes * (size_t)run->ranks, &self->out, err));
    for (int64_t rows = run->rows_min; rows > 0; rows = next_rows(run, rows)) {
        struct finding mine = {0};
        /* NCCL's shares are even. */
        if (run->baseline && run->operation == REDUCE_SCATTER && rows % run->ranks != 0) continue;
        WEFT__TRY(prepare(self, rows, err));
        WEFT__TRY(meet(self, &mine, all, err));
        WEFT__TRY(run->cuda ? time_graph(self, rows, &mine.us, err)
                            : time_calls(self, rows, &mine.us, err));
        WEFT__TRY(check(self, rows, &mine.wrong, err));
        WEFT__TRY(meet(self, &mine, all, err));
        if (self->rank == 0) print_line(self, rows, all);
    }
    return WEFT_OK;
}

static void *rank_main(void *arg)
{
    struct rank_run *self = arg;
    struct run *run = self->run;
    weft_error *err = &run->err[self->rank];
    size_t bytes = (size_t)run->rows_max * ROW_BYTES * (size_t)run->ranks;
    self->host = malloc(bytes);
    self->status = self->host == NULL ? weft__fail_oom(err, bytes, "tensors")
                                      : weft_comm_open(run->world, self->rank, &self->comm, err);
    if (self->status == WEFT_OK && run->plan) {
        if (self->rank == 0) self->status = print_plan(self, err);
    } else if (self->status == WEFT_OK) {
        self->status = measure(self, err);
        if (self->status != WEFT_OK) weft_comm_abort(self->comm, err->text);
    }
    if (self->comm != NULL) {
        weft_status idle = weft_comm_sync(self->comm, NULL); /* before memory goes */
        if (self->status == WEFT_OK) self->status = idle;
        if (!run->cuda) give(self, self->in);
        give(self, self->out);
    }
    weft_comm_close(self->comm);
    free(self->host);
    return NULL;
}

static weft_status run_ranks(struct run *run, weft_error *err)
{
    struct rank_run ranks[WEFT_COMM_RANKS_MAX];
    weft_status status = WEFT_OK;
    int started = 0, rc = 0;
    for (; started < run->own; started++) {
        ranks[started] = (struct rank_run){.run = run, .rank = run->first_rank + started};
        rc = pthread_create(&ranks[started].thread, NULL, rank_main, &ranks[started]);
        if (rc != 0) break;
    }
    if (started < run->own)
        status =
            weft__fail(err, WEFT_NO_MEMORY,
                       "no thread for rank %d of %d: %s; fewer ranks or a higher limit (ulimit -u, "
                       "ulimit -v) help",
                       run->first_rank + started, run->ranks, strerror(rc));
    for (int r = 0; r < started; r++) {
        (void)pthread_join(ranks[r].thread, NULL);
        /* Others only say that a peer has failed. */
        bool worse = status == WEFT_OK || (status == WEFT_PEER && ranks[r].status != WEFT_PEER);
        if (ranks[r].status == WEFT_OK || !worse) continue;
        status = ranks[r].status;
        *err = run->err[ranks[r].rank];
    }
    return status;
}

static int run_table(struct run *run, const weft_world_options *options)
{
    weft_error err = {0};
    run->first = true;
    weft_status status = weft_world_create(options, &run->world, &err);
    if (status == WEFT_OK) status = run_ranks(run, &err);
    weft_world_destroy(run->world);
    if (run->first_rank > 0) { /* a process of its own, which says only what is its own fault */
        bool own = status != WEFT_OK && status != WEFT_PEER && status != WEFT_TIMEOUT;
        return own ? weft__report("comm-bench", &err) : WEFT__EXIT_OK;
    }
    if (status == WEFT_OK && run->first) begin_line(run); /* an empty one */
    if (run->json && !run->first) printf("\n]\n");
    if (status != WEFT_OK) return weft__report("comm-bench", &err);
    return run->wrong ? WEFT__EXIT_FAILED : WEFT__EXIT_OK;
}

/* ---- the command ---- */

/* "0,0,1" -> ordinals; how many, 0 when the text is none. */
static int parse_devices(const char *text, int *ordinals)
{
    for (int count = 0; count < WEFT_COMM_RANKS_MAX; text++) {
        char *end;
        long ordinal = strtol(text, &end, 10);
        if (end == text || ordinal < 0 || ordinal > 1023) return 0;
        ordinals[count++] = (int)ordinal;
        text = end;
        if (*text == '\0') return count;
        if (*text != ',') return 0;
    }
    return 0;
}

/* Message size of GPU ranks: the largest operation, within reason. */
static size_t message_for(int64_t rows)
{
    return (size_t)weft__max(16 << 20, weft__min(rows * ROW_BYTES, 64 << 20));
}

struct request {
    const char *devices;
    int64_t operation, algorithm, path, ranks, processes, rows_min, rows_max, iterations;
    bool json, plan, baseline;
};

static int check_request(const struct request *q)
{
    if (q->devices != NULL && (q->ranks | q->processes) != 0)
        return weft__usage("comm-bench",
                           "--tp and --ranks are for CPU ranks: --cuda has a thread a device");
    if (q->devices == NULL && (q->path != WEFT_PATH_AUTO || q->plan || q->baseline))
        return weft__usage("comm-bench",
                           "--path, --plan and --baseline are about GPU ranks: give --cuda");
    if (q->baseline && q->path != WEFT_PATH_AUTO)
        return weft__usage("comm-bench", "--baseline is NCCL's affair: leave --path");
    if (q->rows_min > q->rows_max)
        return weft__usage("comm-bench", "--rows-min %lld is more than --rows-max %lld",
                           (long long)q->rows_min, (long long)q->rows_max);
    if (q->algorithm == WEFT_ALGORITHM_TWO_SHOT && q->operation != ALLREDUCE)
        return weft__usage("comm-bench", "--algorithm two-shot is of allreduce, not of %s",
                           operation_names[q->operation]);
    return WEFT__EXIT_OK;
}

static int run_request(const struct request *q)
{
    int ordinals[WEFT_COMM_RANKS_MAX], ranks = q->ranks > 0 ? (int)q->ranks : 2;
    if (q->devices != NULL && (ranks = parse_devices(q->devices, ordinals)) == 0)
        return weft__usage("comm-bench", "--cuda wants device numbers like 0,1, not \"%s\"",
                           q->devices);
    struct run run = {.operation = (enum operation)q->operation,
                      .ranks = ranks,
                      .own = ranks,
                      .rows_min = q->rows_min,
                      .rows_max = q->rows_max,
                      .iterations = q->iterations,
                      .json = q->json,
                      .plan = q->plan,
                      .baseline = q->baseline,
                      .cuda = q->devices != NULL};
    weft_world_options world = {.size = ranks,
                                .algorithm = (weft_algorithm)q->algorithm,
                                .message_bytes = run.cuda ? message_for(q->rows_max) : 0,
                                .heap_bytes = (size_t)q->rows_max * ROW_BYTES,
                                .cuda_devices = run.cuda ? ordinals : NULL,
                                .path = q->baseline ? WEFT_PATH_NCCL : (weft_path)q->path};
    if (q->processes != 0) {
        run.own = 1;
        run.first_rank = weft__ranks_fork("comm-bench", ranks, &world.rendezvous);
        if (run.first_rank < 0) return WEFT__EXIT_FAILED;
    }
    return run_table(&run, &world);
}

int weft__cmd_comm_bench(int argc, char **argv)
{
    struct request q = {.operation = ALLREDUCE,
                        .algorithm = WEFT_ALGORITHM_AUTO,
                        .path = WEFT_PATH_AUTO,
                        .rows_min = 1,
                        .rows_max = 256,
                        .iterations = 50};
    const struct weft__option options[] = {
        {WEFT__OPTION_CHOICE, "operation", &q.operation, 0, 0,
         "allreduce|reduce-scatter|all-gather|broadcast", "what is timed (allreduce)"},
        {WEFT__OPTION_INT, "tp", &q.ranks, 1, WEFT_COMM_RANKS_MAX, "N", "CPU ranks (2)"},
        {WEFT__OPTION_CHOICE, "ranks", &q.processes, 0, 0, "threads|processes",
         "what CPU ranks are (threads)"},
        {WEFT__OPTION_STRING, "cuda", &q.devices, 0, 0, "N,N...", "GPU ranks, one a CUDA device"},
        {WEFT__OPTION_CHOICE, "path", &q.path, 0, 0, path_choices + 1, "between GPUs (auto)"},
        {WEFT__OPTION_FLAG, "baseline", &q.baseline, 0, 0, NULL,
         "NCCL's own collectives instead, to compare with"},
        {WEFT__OPTION_CHOICE, "algorithm", &q.algorithm, 0, 0, "auto|one-shot|two-shot",
         "of allreduce (auto)"},
        {WEFT__OPTION_FLAG, "plan", &q.plan, 0, 0, NULL, "what was measured when GPU ranks opened"},
        {WEFT__OPTION_INT, "rows-min", &q.rows_min, 1, 1 << 16, "N",
         "rows of 16 KiB at first (1), then 4 times as many"},
        {WEFT__OPTION_INT, "rows-max", &q.rows_max, 1, 1 << 16, "N", "and at last (256)"},
        {WEFT__OPTION_INT, "iterations", &q.iterations, 1, 1 << 20, "N", "of each size (50)"},
        {WEFT__OPTION_FLAG, "json", &q.json, 0, 0, NULL, "for machines"},
        {0},
    };
    struct weft__command_line line = {
        .command = "comm-bench",
        .synopsis = "",
        .about = "Times of the collectives of CPU or GPU ranks by size, each result checked.",
        .options = options,
    };
    int status;
    if (!weft__command_line_parse(&line, argc, argv, &status)) return status;
    status = check_request(&q);
    return status == WEFT__EXIT_OK ? run_request(&q) : status;
}
