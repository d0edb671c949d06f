/* GPU ranks that fail: every wait ends, the error names the rank, the GPU stays usable and the same
 * world opens again. */
#include "cuda_ranks.h"

enum { P = 3, HIDDEN = 512, ROWS = 2, BYTES = HIDDEN * ROWS * 2, BUDGET_MS = 2000 };
enum { ARENA_BYTES = 1 << 20, LOOSE_MS = 100, NCCL_MS = 2000 };

enum fault {
    NONE,
    STUCK,
    SLOW,
    LEAVES,
    ABORTS,
    OTHER_SHAPE,
    OTHER_OP,
    OTHER_PLACE,
    NOT_SHARED,
    TOO_MANY_BLOCKS
};

struct job {
    enum fault fault;
    weft_path path;
    bool peers; /* reach each other's memory */
    int64_t waited_ms[P];
    weft_comm_failure failure[P];
};

enum { CULPRIT = 1 };

static weft_status allreduce(struct gpu_rank *self, int64_t hidden, weft_error *err)
{
    uint8_t *x = gpu_take(self, BYTES), *y = gpu_take(self, BYTES);
    weft_reduce op = {.tokens = ROWS, .hidden = hidden, .dtype = WEFT_BF16, .x = x, .y = y};
    WEFT__TRY(weft_comm_allreduce(self->comm, &op, err));
    return weft_comm_sync(self->comm, err);
}

/* x is read in place: in the heap from `at` on, or not at all. */
static weft_status allreduce_placed(struct gpu_rank *self, size_t at, weft_error *err)
{
    void *heap = gpu_take(self, BYTES);
    if (at < BYTES) WEFT__TRY(weft_comm_heap_alloc(self->comm, (size_t)BYTES * 2, &heap, err));
    weft__cuda_tune(self->comm->kernels,
                    &(struct weft__cuda_tuning){.path = gpu_path(self->comm, WEFT_PATH_PULL),
                                                .wire = WEFT__CUDA_PLACED});
    weft_reduce op = {.tokens = ROWS,
                      .hidden = HIDDEN,
                      .dtype = WEFT_BF16,
                      .x = (uint8_t *)heap + at % BYTES,
                      .y = gpu_take(self, BYTES)};
    WEFT__TRY(weft_comm_allreduce(self->comm, &op, err));
    return weft_comm_sync(self->comm, err);
}

static weft_status do_wrong(struct gpu_rank *self, enum fault fault, weft_error *err)
{
    switch (fault) {
    case STUCK:
        sleep_ms(BUDGET_MS * 2);
        return WEFT_OK;
    case SLOW: /* three budgets long, but alive */
        for (int i = 0; i < 12; i++) {
            sleep_ms(BUDGET_MS / 4);
            weft_comm_heartbeat(self->comm);
        }
        return allreduce(self, HIDDEN, err);
    case ABORTS:
        sleep_ms(200);
        weft_comm_abort(self->comm, "no more tokens");
        return WEFT_OK;
    case OTHER_SHAPE:
        return allreduce(self, HIDDEN / 2, err);
    case OTHER_OP:
        WEFT__TRY(weft_comm_barrier(self->comm, err));
        return weft_comm_sync(self->comm, err);
    case OTHER_PLACE:
        return allreduce_placed(self, 256, err);
    case NOT_SHARED:
        return allreduce_placed(self, BYTES, err);
    case TOO_MANY_BLOCKS:
        weft__cuda_tune(self->comm->kernels, &(struct weft__cuda_tuning){.clusters = 1 << 20});
        return allreduce(self, HIDDEN, err);
    default:
        return WEFT_OK;
    }
}

static weft_status take_part(struct gpu_rank *self, weft_error *err)
{
    struct job *job = self->arg;
    weft__cuda_tune(self->comm->kernels,
                    &(struct weft__cuda_tuning){.path = gpu_path(self->comm, job->path)});
    WEFT__TRY(allreduce(self, HIDDEN, err)); /* all is well at first */
    uint64_t begun = weft__now_ns();
    bool placed = job->fault == OTHER_PLACE || job->fault == NOT_SHARED;
    if (self->rank == 0) job->peers = (self->comm->kernels->usable >> WEFT_PATH_PULL & 1) != 0;
    weft_status status = self->rank == CULPRIT && job->fault != NONE
                             ? do_wrong(self, job->fault, err)
                         : placed ? allreduce_placed(self, 0, err)
                                  : allreduce(self, HIDDEN, err);
    job->waited_ms[self->rank] = (int64_t)(weft__now_ns() - begun) / 1000000;
    (void)weft_comm_failed(self->comm, &job->failure[self->rank]);
    return status;
}

/* A rank that leaves closes before the others are done, so it has no arena to meet for. */
static weft_status leave_early(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    struct job *job = arg;
    if (rank == CULPRIT) return WEFT_OK;
    uint64_t begun = weft__now_ns();
    WEFT__TRY(weft_comm_barrier(comm, err));
    weft_status status = weft_comm_sync(comm, err);
    job->waited_ms[rank] = (int64_t)(weft__now_ns() - begun) / 1000000;
    return status;
}

struct world {
    struct gpu_place *place;
    weft_world *world;
};

static struct world world_make(void **state)
{
    struct gpu_place *place = *state;
    weft_world_options options = {
        .size = P, .cuda_devices = place->ordinal, .timeout_ms = BUDGET_MS};
    return (struct world){place, world_of(options, (struct weft__tuning){0})};
}

/* Runs the fault, then the same world again without one. */
static void run(void **state, struct job *job, struct rank_result *results)
{
    struct world w = world_make(state);
    if (job->fault == LEAVES)
        ranks_run_some(w.world, all_ranks(P), leave_early, job, results);
    else
        gpu_ranks_run(w.world, P, take_part, job, ARENA_BYTES, results);
    struct job sound = {.path = job->path};
    gpu_ranks_succeed(w.world, P, take_part, &sound, ARENA_BYTES);
    weft_world_destroy(w.world);
}

static void says(const struct rank_result *result, weft_status status, const char *text)
{
    if (result->status != status || strstr(result->err.text, text) == NULL)
        fail_msg("status %s, not %s, or no \"%s\" in: %s", weft_status_name(result->status),
                 weft_status_name(status), text, result->err.text);
}

static void stuck_rank_is_named_in_time(void **state)
{
    static const weft_path paths[] = {WEFT_PATH_AUTO, WEFT_PATH_HOST, WEFT_PATH_COPY,
                                      WEFT_PATH_COPY_HOST};
    for (size_t i = 0; i < WEFT__COUNT(paths); i++) {
        struct rank_result results[WEFT__MAX_RANKS];
        struct job job = {.fault = STUCK, .path = paths[i]};
        run(state, &job, results);
        for (int r = 0; r < P; r++) {
            if (r == CULPRIT) continue;
            says(&results[r], WEFT_TIMEOUT, "allreduce: rank 1 gave no sign of life");
            printf("stuck rank named after %lld ms\n", (long long)job.waited_ms[r]);
            assert_in_range(job.waited_ms[r], BUDGET_MS, BUDGET_MS + LOOSE_MS);
            assert_int_equal(job.failure[r].peer, CULPRIT);
            assert_string_equal(job.failure[r].op, "allreduce");
            assert_string_equal(job.failure[r].phase, "input");
        }
    }
}

static void slow_rank_is_awaited(void **state)
{
    struct rank_result results[WEFT__MAX_RANKS];
    struct job job = {.fault = SLOW};
    run(state, &job, results);
    for (int r = 0; r < P; r++) assert_int_equal(results[r].status, WEFT_OK);
}

static void rank_that_leaves_is_named_at_once(void **state)
{
    struct rank_result results[WEFT__MAX_RANKS];
    struct job job = {.fault = LEAVES};
    run(state, &job, results);
    for (int r = 0; r < P; r += 2) {
        says(&results[r], WEFT_PEER, "rank 1 closed its communicator");
        assert_in_range(job.waited_ms[r], 0, 500);
    }
}

static void abort_releases_waiting_kernels(void **state)
{
    struct rank_result results[WEFT__MAX_RANKS];
    struct job job = {.fault = ABORTS};
    run(state, &job, results);
    for (int r = 0; r < P; r += 2) {
        says(&results[r], WEFT_PEER, "rank 1 gave up: no more tokens");
        assert_in_range(job.waited_ms[r], 150, 200 + LOOSE_MS);
    }
}

static void mismatch_names_both(void **state)
{
    for (int fault = OTHER_SHAPE; fault <= OTHER_OP; fault++) {
        struct rank_result results[WEFT__MAX_RANKS];
        struct job job = {.fault = (enum fault)fault};
        run(state, &job, results);
        for (int r = 0; r < P; r++) {
            says(&results[r], WEFT_INVALID, "rank 1 called ");
            says(&results[r], WEFT_INVALID, "called allreduce of [2, 512] BF16");
            assert_in_range(job.waited_ms[r], 0, 500);
        }
    }
}

static void inputs_in_place_are_checked(void **state)
{
    for (int fault = OTHER_PLACE; fault <= NOT_SHARED; fault++) {
        struct rank_result results[WEFT__MAX_RANKS];
        struct job job = {.fault = (enum fault)fault};
        run(state, &job, results);
        for (int r = 0; r < P && job.peers; r++) {
            if (fault == OTHER_PLACE)
                says(&results[r], WEFT_INVALID, "place in the heap");
            else
                says(&results[r], WEFT_PEER, "rank 1 gave up: CUDA: x is not in memory of");
            assert_in_range(job.waited_ms[r], 0, 500);
        }
    }
}

static void too_many_blocks_are_refused(void **state)
{
    struct rank_result results[WEFT__MAX_RANKS];
    struct job job = {.fault = TOO_MANY_BLOCKS};
    run(state, &job, results);
    for (int r = 0; r < P; r++) {
        says(&results[r], WEFT_PEER, "do not fit on the device");
        assert_in_range(job.waited_ms[r], 0, 500);
    }
}

/* NCCL's own waits have no bound: they are ended, with the rank that ours have found. */
static void nccl_is_ended(void **state)
{
    const struct gpu_place *place = *state;
    weft_world_options options = {
        .size = 2, .cuda_devices = place->ordinal, .timeout_ms = BUDGET_MS, .path = WEFT_PATH_NCCL};
    weft_world *world = world_of(options, (struct weft__tuning){.plan_ms = -1});
    struct rank_result results[WEFT__MAX_RANKS];
    struct job job = {.fault = STUCK, .path = WEFT_PATH_NCCL}, sound = {.path = WEFT_PATH_NCCL};
    gpu_ranks_run(world, 2, take_part, &job, ARENA_BYTES, results);
    if (results[0].status == WEFT_UNSUPPORTED) {
        printf("%s\n", results[0].err.text);
        says(&results[1], WEFT_UNSUPPORTED, "the path \"nccl\" was asked for");
        says(&results[1], WEFT_UNSUPPORTED, "NCCL");
    } else {
        says(&results[0], WEFT_TIMEOUT, "allreduce: rank 1 gave no sign of life");
        printf("stuck rank named after %lld ms\n", (long long)job.waited_ms[0]);
        assert_in_range(job.waited_ms[0], BUDGET_MS, BUDGET_MS + NCCL_MS);
        gpu_ranks_succeed(world, 2, take_part, &sound, ARENA_BYTES);
    }
    weft_world_destroy(world);
}

static weft_status nothing(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)comm, (void)rank, (void)arg, (void)err;
    return WEFT_OK;
}

static void missing_device_is_named(void **state)
{
    (void)state;
    int ordinals[2] = {0, 77};
    weft_world *world =
        world_of((weft_world_options){.size = 2, .cuda_devices = ordinals, .timeout_ms = BUDGET_MS},
                 (struct weft__tuning){0});
    struct rank_result results[WEFT__MAX_RANKS];
    ranks_run_some(world, all_ranks(2), nothing, NULL, results);
    says(&results[1], WEFT_NOT_FOUND, "CUDA device 77");
    says(&results[0], WEFT_PEER, "rank 1 could not open");
    weft_world_destroy(world);
}

static weft_status take_part_without(struct gpu_rank *self, weft_error *err)
{
    weft_path path = *(const weft_path *)self->arg;
    if (self->comm->kernels->usable >> path & 1)
        return weft__fail(err, WEFT_INTERNAL, "path %d passed its check", (int)path);
    return allreduce(self, HIDDEN, err);
}

/* Of one rank, the last, the data that a path brought is not what was sent. */
static void spoilt_path_is_refused_or_left(void **state)
{
    static const char *const texts[] = {
        [WEFT_PATH_PUSH] = "the path \"push\" was asked for, but does not work for rank 2",
        [WEFT_PATH_PULL] = "the path \"pull\" was asked for, but does not work for rank 2",
        [WEFT_PATH_HOST] = "the path \"host\" was asked for, but does not work for rank 2"};
    const struct gpu_place *place = *state;
    for (weft_path path = WEFT_PATH_PUSH; path <= WEFT_PATH_HOST; path++) {
        weft_world_options options = {
            .size = P, .cuda_devices = place->ordinal, .timeout_ms = BUDGET_MS};
        struct weft__tuning tuning = {.spoilt = path, .plan_ms = -1};
        struct rank_result results[WEFT__MAX_RANKS];
        weft_world *any = world_of(options, tuning);
        gpu_ranks_run(any, P, take_part_without, &path, ARENA_BYTES, results);
        for (int r = 0; r < P; r++)
            if (path != WEFT_PATH_HOST || results[r].status == WEFT_OK)
                assert_int_equal(results[r].status, WEFT_OK);
            else /* where there is no peer access, it was the only one */
                says(&results[r], WEFT_DEVICE, "no path between the GPU ranks works");
        weft_world_destroy(any);
        options.path = path;
        weft_world *named = world_of(options, tuning);
        ranks_run_some(named, all_ranks(P), nothing, NULL, results);
        for (int r = 0; r < P; r++) says(&results[r], WEFT_UNSUPPORTED, texts[path]);
        weft_world_destroy(named);
    }
}

int main(void)
{
    struct gpu_place place = gpu_place_or_skip("comm_cuda_faults");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(stuck_rank_is_named_in_time, &place),
        cmocka_unit_test_prestate(slow_rank_is_awaited, &place),
        cmocka_unit_test_prestate(rank_that_leaves_is_named_at_once, &place),
        cmocka_unit_test_prestate(abort_releases_waiting_kernels, &place),
        cmocka_unit_test_prestate(mismatch_names_both, &place),
        cmocka_unit_test_prestate(inputs_in_place_are_checked, &place),
        cmocka_unit_test_prestate(too_many_blocks_are_refused, &place),
        cmocka_unit_test_prestate(nccl_is_ended, &place),
        cmocka_unit_test_prestate(missing_device_is_named, &place),
        cmocka_unit_test_prestate(spoilt_path_is_refused_or_left, &place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
