/* What GPU ranks measure at open: the same on all ranks, the fastest way of each operation and size
 * is chosen, what was asked for is kept to, and it does not take long, which --short
 * does not ask for. */
#include "cuda_ranks.h"

enum { WAYS = 1024, ARENA_BYTES = 4 << 20, HIDDEN = 6144, ROWS = 4, OPEN_MS = 3000 };

struct job {
    weft_path path;
    weft_algorithm algorithm;
    uint64_t hash[WEFT__MAX_RANKS];
    int count;
    weft_comm_way way[WAYS]; /* rank 0's */
};

/* A sum of small whole numbers, by whatever way was chosen. */
static weft_status add_up(struct gpu_rank *self, weft_error *err)
{
    static const int64_t count = (int64_t)ROWS * HIDDEN;
    int p = weft_comm_size(self->comm);
    float *host = malloc((size_t)count * 4);
    void *x = gpu_take(self, (size_t)count * 4), *y = gpu_take(self, (size_t)count * 4);
    for (int64_t i = 0; i < count; i++) host[i] = (float)(i % 97 + self->rank);
    weft_reduce op = {.tokens = ROWS, .hidden = HIDDEN, .dtype = WEFT_F32, .x = x, .y = y};
    weft_status status = gpu_write(self->comm, x, host, (size_t)count * 4, err);
    if (status == WEFT_OK) status = weft_comm_allreduce(self->comm, &op, err);
    if (status == WEFT_OK) status = weft_comm_sync(self->comm, err);
    if (status == WEFT_OK) status = gpu_read(self->comm, host, y, (size_t)count * 4, err);
    for (int64_t i = 0; i < count && status == WEFT_OK; i++)
        if (host[i] != (float)(p * (i % 97) + p * (p - 1) / 2))
            status =
                weft__fail(err, WEFT_INTERNAL, "element %lld is %g", (long long)i, (double)host[i]);
    free(host);
    return status;
}

static weft_status look(struct gpu_rank *self, weft_error *err)
{
    struct job *job = self->arg;
    weft_comm_way *ways = calloc(WAYS, sizeof *ways);
    int count = weft_comm_plan(self->comm, ways, WAYS);
    uint64_t hash = (uint64_t)count;
    for (int i = 0; i < count; i++) {
        const weft_comm_way *w = &ways[i];
        struct {
            uint64_t bytes;
            uint32_t path, algorithm, chosen;
            float us;
        } what = {w->bytes, w->path, w->algorithm, w->chosen, w->us};
        hash = weft__hash(&what, sizeof what, hash);
    }
    job->hash[self->rank] = hash;
    if (self->rank == 0) {
        memcpy(job->way, ways, WAYS * sizeof *ways);
        job->count = count;
    }
    free(ways);
    return add_up(self, err);
}

static void run(const struct gpu_place *place, int p, struct job *job)
{
    weft_world *world = world_of((weft_world_options){.size = p,
                                                      .cuda_devices = place->ordinal,
                                                      .timeout_ms = 20000,
                                                      .path = job->path,
                                                      .algorithm = job->algorithm},
                                 (struct weft__tuning){0});
    uint64_t begun = weft__now_ns();
    gpu_ranks_succeed(world, p, look, job, ARENA_BYTES);
    int64_t ms = (int64_t)(weft__now_ns() - begun) / 1000000;
    printf("p = %d: opened, measured %d ways and closed in %lld ms\n", p, job->count,
           (long long)ms);
    assert_true(place->brief || ms < OPEN_MS);
    assert_true(job->count > 0);
    for (int r = 1; r < p; r++) assert_true(job->hash[r] == job->hash[0]);
    weft_world_destroy(world);
}

static bool same_class(const weft_comm_way *a, const weft_comm_way *b)
{
    return strcmp(a->op, b->op) == 0 && a->bytes == b->bytes;
}

static bool in_place(const weft_comm_way *way) { return strcmp(way->form, "in place") == 0; }

/* Of every operation and size, one way is chosen, the fastest; and one in place that beats it. */
static void check_choices(const struct job *job)
{
    for (int i = 0; i < job->count; i++) {
        const weft_comm_way *way = &job->way[i];
        int chosen[2] = {0, 0};
        for (int k = 0; k < job->count; k++) {
            const weft_comm_way *other = &job->way[k];
            if (!same_class(way, other)) continue;
            chosen[in_place(other)] += other->chosen;
            if (way->chosen && (in_place(way) || !in_place(other)))
                assert_true(way->us <= other->us);
        }
        assert_int_equal(chosen[false], 1);
        assert_in_range(chosen[true], 0, 1);
        assert_true(way->us > 0);
    }
}

static void all_ranks_agree_on_the_fastest(void **state)
{
    for (int p = 2; p <= 8; p += 3) {
        struct job job = {0};
        run(*state, p, &job);
        check_choices(&job);
        bool placed = false, peers = false;
        for (int i = 0; i < job.count; i++) {
            placed = placed || in_place(&job.way[i]);
            peers = peers || job.way[i].path == WEFT_PATH_PULL;
        }
        if (!((const struct gpu_place *)*state)->brief) assert_int_equal(placed, peers);
    }
}

static void what_was_asked_for_is_kept_to(void **state)
{
    struct job job = {.path = WEFT_PATH_HOST, .algorithm = WEFT_ALGORITHM_TWO_SHOT};
    run(*state, 3, &job);
    check_choices(&job);
    for (int i = 0; i < job.count; i++) {
        assert_int_equal(job.way[i].path, WEFT_PATH_HOST);
        if (strcmp(job.way[i].op, "allreduce") == 0)
            assert_int_equal(job.way[i].algorithm, WEFT_ALGORITHM_TWO_SHOT);
    }
}

int main(int argc, char **argv)
{
    struct gpu_place place = gpu_place_or_skip("comm_cuda_plan");
    place.brief = argc > 1 && strcmp(argv[1], "--short") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(all_ranks_agree_on_the_fastest, &place),
        cmocka_unit_test_prestate(what_was_asked_for_is_kept_to, &place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
