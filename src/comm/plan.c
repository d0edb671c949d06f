/* plan.c: which way an operation goes, by operation and size: measured at open.
 *
 * Every way that the device offers (it has moved known data over each path by then) runs a chain of
 * operations inside a graph, on all ranks at once; a way takes as long as its slowest rank. The
 * ranks gather their times after each, so all of them decide the same from the same numbers, and
 * stop when rank 0 says that it has taken long enough. No way changes a bit of any result. */
#include <stdlib.h>

#include "comm.h"

enum { OPS = WEFT__BARRIER + 1, CLASSES = 7, TRIALS_MAX = 600, PLAN_MS = 400 };
enum { HIDDEN = 6144, ROW_BYTES = HIDDEN * 2, TWO_SHOT_RANKS = 3 };

/* A class is measured at these bytes of a rank's input, and ends at twice as many. */
static const uint64_t class_bytes[CLASSES] = {1 * ROW_BYTES,   4 * ROW_BYTES,   16 * ROW_BYTES,
                                              64 * ROW_BYTES,  256 * ROW_BYTES, 1024 * ROW_BYTES,
                                              4096 * ROW_BYTES};

struct trial {
    enum weft__comm_op op;
    int size;
    struct weft__comm_choice choice;
    float us;
};

struct weft__comm_plan {
    struct trial trial[TRIALS_MAX];
    int count;
    int best[OPS][CLASSES][2]; /* 1 + index of a trial; 0: none. [1]: of all; [0]: but in place */
};

static bool is_placed(uint32_t way) { return weft__way_form(way) == WEFT__FORM_PLACED; }

static int class_of(uint64_t bytes)
{
    int size = 0;
    while (size < CLASSES - 1 && bytes > 2 * class_bytes[size]) size++;
    return size;
}

struct weft__comm_choice weft__comm_plan_choose(const weft_comm *comm, enum weft__comm_op op,
                                                uint64_t bytes, bool placed)
{
    if (comm->trial != NULL) return *comm->trial;
    struct weft__comm_choice choice = {.two_shot =
                                           comm->algorithm == WEFT_ALGORITHM_AUTO
                                               ? comm->link.size >= comm->dev->two_shot_ranks &&
                                                     bytes >= comm->dev->two_shot_bytes
                                               : comm->algorithm == WEFT_ALGORITHM_TWO_SHOT};
    const struct weft__comm_plan *plan = comm->root->plan;
    int best = 0;
    if (plan != NULL)
        for (int c = class_of(bytes); c >= 0 && best == 0; c--) best = plan->best[op][c][placed];
    if (best != 0) {
        const struct weft__comm_choice *measured = &plan->trial[best - 1].choice;
        choice.way = measured->way;
        if (comm->link.size == comm->link.world_size && comm->algorithm == WEFT_ALGORITHM_AUTO)
            choice.two_shot = measured->two_shot;
    }
    choice.two_shot = choice.two_shot && op == WEFT__ALLREDUCE && comm->link.size > 1;
    return choice;
}

/* ---- one way of one class ---- */

struct bench {
    weft_comm *comm;
    const struct weft__dev_trial *dev;
    uint8_t *memory; /* x, residual, then room for the output of every operation */
    uint8_t *placed; /* x, when it is read in place */
    uint64_t largest;
    uint64_t begun_ns;
    uint32_t budget_ms;
};

static weft_status operate(const struct bench *bench, enum weft__comm_op op, uint64_t bytes,
                           weft_error *err)
{
    uint8_t *x = bench->memory, *residual = x + bench->largest, *out = residual + bench->largest;
    if (is_placed(bench->comm->trial->way)) x = bench->placed;
    weft_reduce reduce = {.tokens = (int64_t)(bytes / ROW_BYTES),
                          .hidden = HIDDEN,
                          .dtype = WEFT_BF16,
                          .x = x,
                          .residual = residual,
                          .norm = true,
                          .norm_eps = 1e-5f,
                          .y = out};
    weft_gather gather = {.rows = 1, .row_bytes = bytes, .in = x, .out = out};
    weft_broadcast broadcast = {.bytes = bytes, .data = out};
    switch (op) {
    case WEFT__ALLREDUCE:
        return weft_comm_allreduce(bench->comm, &reduce, err);
    case WEFT__REDUCE_SCATTER:
        return weft_comm_reduce_scatter(bench->comm, &reduce, err);
    case WEFT__ALL_GATHER:
        return weft_comm_all_gather(bench->comm, &gather, err);
    default:
        return weft_comm_broadcast(bench->comm, &broadcast, err);
    }
}

struct report {
    float us;
    uint32_t spent_ms;
};

/* Everybody's report; also when everybody is there. */
static weft_status meet(const struct bench *bench, const struct report *mine, struct report *all,
                        weft_error *err)
{
    weft_gather gather = {.rows = 1, .row_bytes = sizeof *mine, .in = mine, .out = all};
    return weft__comm_gather_host(bench->comm, &gather, err);
}

static weft_status run(const struct bench *bench, struct trial *trial, bool *enough,
                       weft_error *err)
{
    enum { CHAIN = 8, LONG_CHAIN = 3, REPEATS = 3 };
    struct weft__comm_kernels *k = bench->comm->kernels;
    struct report mine = {0}, all[WEFT__MAX_RANKS];
    uint64_t bytes = class_bytes[trial->size];
    int chain = trial->size <= 2 ? CHAIN : trial->size <= 4 ? LONG_CHAIN : 1;
    weft_status status = bench->dev->begin(k, err);
    if (status == WEFT_OK) status = weft_comm_barrier(bench->comm, err); /* start together */
    if (status == WEFT_OK) status = bench->dev->mark(k, err);
    bench->comm->trial = &trial->choice;
    for (int i = 0; i < chain && status == WEFT_OK; i++)
        status = operate(bench, trial->op, bytes, err);
    bench->comm->trial = NULL;
    weft_status ended = bench->dev->end(k, status == WEFT_OK ? err : NULL);
    if (status == WEFT_OK) status = ended;
    /* Making a graph may wait for the device: nobody starts before all have made theirs. */
    if (status == WEFT_OK) status = meet(bench, &mine, all, err);
    for (int i = 0; i <= REPEATS && status == WEFT_OK; i++) {
        float us;
        status = bench->dev->run(k, &us, err);
        if (i == 1 || us < mine.us) mine.us = us; /* the first warms up */
    }
    mine.us /= (float)chain;
    mine.spent_ms = (uint32_t)((weft__now_ns() - bench->begun_ns) / 1000000);
    if (status == WEFT_OK) status = meet(bench, &mine, all, err);
    bench->dev->drop(k);
    WEFT__TRY(status);
    for (int r = 0; r < bench->comm->link.size; r++)
        if (all[r].us > trial->us) trial->us = all[r].us;
    *enough = all[0].spent_ms > bench->budget_ms;
    return WEFT_OK;
}

/* ---- the whole table ---- */

static weft_status try_way(const struct bench *bench, const struct trial *what, bool *enough,
                           weft_error *err)
{
    struct weft__comm_plan *plan = bench->comm->plan;
    if (plan->count == TRIALS_MAX) return WEFT_OK;
    struct trial *trial = &plan->trial[plan->count];
    *trial = *what;
    WEFT__TRY(run(bench, trial, enough, err));
    plan->count++;
    for (int placed = is_placed(what->choice.way); placed <= 1; placed++) {
        int *best = &plan->best[what->op][what->size][placed];
        if (*best == 0 || trial->us < plan->trial[*best - 1].us) *best = plan->count;
    }
    return WEFT_OK;
}

static weft_status try_class(const struct bench *bench, enum weft__comm_op op, int size,
                             bool *enough, weft_error *err)
{
    const weft_comm *comm = bench->comm;
    uint64_t bytes = class_bytes[size];
    for (int two_shot = 0; two_shot <= 1; two_shot++) {
        if (two_shot && (op != WEFT__ALLREDUCE || comm->link.size < TWO_SHOT_RANKS)) continue;
        if (comm->algorithm == (two_shot ? WEFT_ALGORITHM_ONE_SHOT : WEFT_ALGORITHM_TWO_SHOT) &&
            op == WEFT__ALLREDUCE)
            continue;
        for (uint32_t way = 1; way < WEFT__WAYS && !*enough; way++) {
            struct trial trial = {op, size, {way, two_shot != 0}, 0};
            if (bench->dev->offers(comm->kernels, way, op, bytes, two_shot != 0))
                WEFT__TRY(try_way(bench, &trial, enough, err));
        }
    }
    return WEFT_OK;
}

static weft_status try_all(struct bench *bench, weft_error *err)
{
    static const enum weft__comm_op ops[] = {WEFT__ALLREDUCE, WEFT__ALL_GATHER, WEFT__BROADCAST,
                                             WEFT__REDUCE_SCATTER}; /* what matters most first */
    struct weft__comm_kernels *k = bench->comm->kernels;
    size_t ranks = (size_t)bench->comm->link.size, bytes = (2 + ranks) * bench->largest;
    WEFT__TRY(bench->dev->memory_take(k, bytes, (void **)&bench->memory, err));
    bench->placed = bench->dev->memory_placed(k);
    weft_status status = WEFT_OK;
    bool enough = false;
    for (size_t i = 0; i < WEFT__COUNT(ops); i++)
        for (int c = 0; c < CLASSES && status == WEFT_OK && !enough; c++)
            if (class_bytes[c] <= bench->largest)
                status = try_class(bench, ops[i], c, &enough, err);
    bench->dev->memory_give(k, bench->memory);
    struct report mine = {0}, all[WEFT__MAX_RANKS]; /* giving memory back waits for the device */
    return status == WEFT_OK ? meet(bench, &mine, all, err) : status;
}

weft_status weft__comm_plan_make(weft_comm *comm, weft_error *err)
{
    if (comm->dev->trial == NULL || comm->link.size == 1) return WEFT_OK;
    int asked = comm->session->world->tuning.plan_ms;
    struct bench bench = {.comm = comm,
                          .dev = comm->dev->trial,
                          .begun_ns = weft__now_ns(),
                          .budget_ms = (uint32_t)(asked > 0 ? asked : PLAN_MS)};
    for (int c = 0; c < CLASSES && class_bytes[c] <= comm->link.message_bytes; c++)
        bench.largest = class_bytes[c];
    comm->plan = calloc(1, sizeof *comm->plan);
    if (comm->plan == NULL) return weft__fail_oom(err, sizeof *comm->plan, "a plan");
    weft_status status = try_all(&bench, err);
    comm->stats = (weft_comm_stats){0};
    if (status == WEFT_OK) return WEFT_OK;
    free(comm->plan);
    comm->plan = NULL;
    return status;
}

int weft_comm_plan(const weft_comm *comm, weft_comm_way *out, int max)
{
    const struct weft__comm_plan *plan = comm->root->plan;
    if (plan == NULL) return 0;
    for (int i = 0; i < plan->count && i < max; i++) {
        const struct trial *trial = &plan->trial[i];
        const int *best = plan->best[trial->op][trial->size];
        out[i] = (weft_comm_way){.op = weft__comm_op_name(trial->op),
                                 .bytes = class_bytes[trial->size],
                                 .path = weft__way_path(trial->choice.way),
                                 .form = comm->dev->trial->form(trial->choice.way),
                                 .algorithm = trial->choice.two_shot ? WEFT_ALGORITHM_TWO_SHOT
                                                                     : WEFT_ALGORITHM_ONE_SHOT,
                                 .us = trial->us,
                                 .chosen = best[0] == i + 1 || best[1] == i + 1};
    }
    return plan->count;
}
