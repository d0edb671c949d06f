/* Ranks of an MPI job: the same bits as threads, and as processes; a rank that is missing, stopped
 * or gives up is named, and the job opens again. This program starts itself with mpirun. */
#include "../unit/comm_ranks.h"

#include <signal.h>

enum { BUDGET_MS = 1000, LATE_MS = 100, TURNS = 400, ELEMENTS = 40 * 512 };

/* ---- a series of all operations, and the hash of all they gave ---- */

struct sums {
    float x[ELEMENTS], residual[ELEMENTS], weight[512], y[ELEMENTS], s[ELEMENTS];
    uint8_t codes[ELEMENTS], all[WEFT__MAX_RANKS * 4096];
    float scales[512];
};

/* Any bits that make sense as numbers, many of them awkward. */
static void fill(uint64_t *state, void *out, size_t bytes)
{
    static const float awkward[] = {0.0f, -0.0f, 1e-40f, -1e-40f, 1e30f, -3.0f, 1.0f, INFINITY};
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        uint64_t bits = next_random(state);
        float v = bits % 97 == 0 ? awkward[bits >> 32 & 7] : (float)(int32_t)bits * 0x1p-31f;
        memcpy((char *)out + i * sizeof v, &v, sizeof v);
    }
}

struct copied { /* what stands for a product of matrices */
    const char *x;
    int64_t row_bytes;
};

static void copy_rows(void *ctx, int64_t first, int64_t rows, void *out)
{
    const struct copied *c = ctx;
    memcpy(out, c->x + first * c->row_bytes, (size_t)(rows * c->row_bytes));
}

static weft_status digest_reduce(weft_comm *comm, struct sums *m, uint64_t plan, uint64_t mine,
                                 uint64_t *hash, weft_error *err)
{
    uint64_t shared = plan;
    int64_t tokens = pick_from(&plan, 0, 40), hidden = 16 * pick_from(&plan, 1, 32), first;
    weft_reduce op = {
        .tokens = tokens,
        .hidden = hidden,
        .dtype = (weft_dtype[]){WEFT_F32, WEFT_F16, WEFT_BF16}[plan % 3],
        .x = m->x,
        .residual = plan >> 8 & 1 ? m->residual : NULL,
        .residual_out = m->s,
        .norm = plan >> 9 & 1,
        .norm_weight = plan >> 9 & 1 ? m->weight : NULL,
        .norm_eps = 1e-5f,
        .y = m->y,
        .quant = {plan >> 10 & 1 ? WEFT_QUANT_FP8_TOKEN : WEFT_QUANT_NONE, 1, m->codes, m->scales}};
    memset(m->y, 0, sizeof m->y);
    memset(m->s, 0, sizeof m->s);
    memset(m->codes, 0, sizeof m->codes);
    fill(&mine, m->x, sizeof m->x);
    fill(&shared, m->residual, sizeof m->residual);
    fill(&shared, m->weight, sizeof m->weight);
    void *input;
    if (plan >> 13 & 1) {
        struct copied copied = {(const char *)m->x, hidden * (op.dtype == WEFT_F32 ? 4 : 2)};
        weft_gemm_reduce gemm = {.reduce = op,
                                 .tile_rows = (int64_t)(1 + (plan >> 14 & 15)),
                                 .compute = copy_rows,
                                 .ctx = &copied};
        gemm.reduce.x = NULL;
        WEFT__TRY(weft_comm_gemm_allreduce(comm, &gemm, err));
        goto hash_outputs;
    }
    if (plan >> 11 & 1) {
        size_t bytes = (size_t)(tokens * hidden) * sizeof(float);
        WEFT__TRY(weft_comm_input(comm, bytes, &input, err));
        memcpy(input, m->x, bytes);
        op.x = input;
    }
    if (plan >> 12 & 1) {
        int size = weft_comm_size(comm), rank = weft_comm_rank(comm);
        if (op.residual != NULL) {
            (void)weft_comm_share(tokens, size, rank, &first);
            op.residual = (char *)m->residual + first * hidden * (op.dtype == WEFT_F32 ? 4 : 2);
        }
        WEFT__TRY(weft_comm_reduce_scatter(comm, &op, err));
    } else {
        WEFT__TRY(weft_comm_allreduce(comm, &op, err));
    }
hash_outputs:
    *hash = weft__hash(m->y, sizeof m->y, *hash);
    *hash = weft__hash(m->s, sizeof m->s, *hash);
    *hash = weft__hash(m->codes, sizeof m->codes, *hash);
    return WEFT_OK;
}

static weft_status digest_move(weft_comm *comm, struct sums *m, uint64_t plan, uint64_t mine,
                               uint64_t *hash, weft_error *err)
{
    size_t bytes = (size_t)pick_from(&plan, 0, 1000);
    fill(&mine, m->x, sizeof m->x);
    memset(m->all, 0, sizeof m->all);
    if (plan & 1) {
        weft_gather gather = {.rows = 3, .row_bytes = bytes, .in = m->x, .out = m->all};
        WEFT__TRY(weft_comm_all_gather(comm, &gather, err));
    } else {
        int root = (int)(plan >> 1 & 15) % weft_comm_size(comm);
        memcpy(m->all, m->x, bytes);
        weft_broadcast broadcast = {.root = root, .bytes = bytes, .data = m->all};
        WEFT__TRY(weft_comm_broadcast(comm, &broadcast, err));
    }
    *hash = weft__hash(m->all, sizeof m->all, *hash);
    return WEFT_OK;
}

/* arg: uint64_t [ranks], this one's hash is stored there. */
static weft_status digest(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    uint64_t plan = 4711, mine = 1000 + (uint64_t)rank, hash = 0;
    weft_comm *half;
    struct sums *m = calloc(1, sizeof *m);
    if (m == NULL) return weft__fail_oom(err, sizeof *m, "a test");
    weft_status status = weft_comm_split(comm, rank % 2, 0, &half, err);
    for (int turn = 0; turn < TURNS && status == WEFT_OK; turn++) {
        uint64_t choice = next_random(&plan), bits = next_random(&plan), own = next_random(&mine);
        weft_comm *on = choice & 1 ? comm : half;
        status = choice & 6 ? digest_reduce(on, m, bits, own, &hash, err)
                            : digest_move(on, m, bits, own, &hash, err);
    }
    ((uint64_t *)arg)[rank] = hash;
    free(m);
    return status;
}

/* ---- one rank of the job ---- */

static weft_status sum_ones(weft_comm *comm, weft_error *err)
{
    float x[64], y[64];
    for (int i = 0; i < 64; i++) x[i] = 1;
    weft_reduce op = {.tokens = 1, .hidden = 64, .dtype = WEFT_F32, .x = x, .y = y};
    WEFT__TRY(weft_comm_allreduce(comm, &op, err));
    return y[63] == (float)weft_comm_size(comm) ? WEFT_OK
                                                : weft__fail(err, WEFT_INTERNAL, "a wrong sum");
}

static weft_status large(weft_comm *comm, int rank, weft_error *err)
{
    enum { BYTES = 3 << 20 };
    uint8_t *data = malloc(BYTES);
    if (data == NULL) return weft__fail_oom(err, BYTES, "a test");
    int root = weft_comm_size(comm) - 1;
    for (int i = 0; i < BYTES; i++) data[i] = rank == root ? (uint8_t)(i * 7) : 0;
    weft_broadcast broadcast = {.root = root, .bytes = BYTES, .data = data};
    weft_status status = weft_comm_broadcast(comm, &broadcast, err);
    for (int i = 0; i < BYTES && status == WEFT_OK; i++)
        if (data[i] != (uint8_t)(i * 7))
            status = weft__fail(err, WEFT_INTERNAL, "byte %d is wrong", i);
    free(data);
    return status;
}

/* Rank 1 leaves a group and lives on in the world; the others say what they heard, and how fast. */
static weft_status leave_group(weft_comm *comm, int rank, weft_error *err)
{
    weft_comm *group;
    WEFT__TRY(weft_comm_split(comm, 0, 0, &group, err));
    WEFT__TRY(sum_ones(group, err));
    if (rank == 1) {
        weft_comm_failure failure;
        weft_comm_close(group);
        for (int i = 0; i < 2 * BUDGET_MS / 10 && !weft_comm_failed(comm, &failure); i++) {
            weft_comm_heartbeat(comm);
            sleep_ms(10);
        }
        return WEFT_OK;
    }
    uint64_t start = weft__now_ns();
    weft_status status = sum_ones(group, err);
    unsigned long long ms = (weft__now_ns() - start) / 1000000;
    if (status == WEFT_OK) return weft__fail(err, WEFT_INTERNAL, "nobody noticed");
    (void)printf("rank %d %s: %s\n", rank, ms < BUDGET_MS / 2 ? "at once" : "LATE", err->text);
    return WEFT_OK;
}

/* Rank 1 stops, or gives up; the others say what they heard, and how fast. */
static weft_status misbehave(weft_comm *comm, int rank, bool stops, weft_error *err)
{
    pid_t own = getpid(), pids[WEFT__MAX_RANKS];
    weft_gather gather = {.rows = 1, .row_bytes = sizeof own, .in = &own, .out = pids};
    WEFT__TRY(weft_comm_all_gather(comm, &gather, err));
    for (int i = 0; i < 100; i++) WEFT__TRY(sum_ones(comm, err));
    for (int i = 0; i < 5; i++) { /* until all have the last sum */
        weft_comm_heartbeat(comm);
        sleep_ms(10);
    }
    uint64_t start = weft__now_ns();
    if (rank == 1 && stops) (void)raise(SIGSTOP);
    if (rank == 1 && !stops) weft_comm_abort(comm, "no memory for layer 3");
    weft_status status = sum_ones(comm, err);
    unsigned long long ms = (weft__now_ns() - start) / 1000000;
    if (rank == 0 && stops) (void)kill(pids[1], SIGCONT);
    if (rank == 1) return WEFT_OK; /* a stopped rank may find all inputs there when it goes on */
    if (status == WEFT_OK) return weft__fail(err, WEFT_INTERNAL, "nobody noticed");
    (void)printf("rank %d %s: %s\n", rank, ms < BUDGET_MS + LATE_MS ? "soon" : "LATE", err->text);
    return WEFT_OK;
}

static weft_status session(weft_world *world, int rank, const char *scene, weft_error *err)
{
    weft_comm *comm;
    uint64_t hash[WEFT__MAX_RANKS];
    WEFT__TRY(weft_comm_open(world, rank, &comm, err));
    weft_status status = WEFT_OK;
    if (strcmp(scene, "digest") == 0) {
        status = digest(comm, rank, hash, err);
        if (status == WEFT_OK)
            (void)printf("rank %d %016llx\n", rank, (unsigned long long)hash[rank]);
    } else if (strcmp(scene, "large") == 0) {
        status = large(comm, rank, err);
    } else if (strcmp(scene, "leave-group") == 0) {
        status = leave_group(comm, rank, err);
    } else if (strcmp(scene, "sum") == 0) {
        status = sum_ones(comm, err);
    } else {
        status = misbehave(comm, rank, strcmp(scene, "stop") == 0, err);
    }
    weft_comm_close(comm);
    return status;
}

/* Scenes one after the other, on one world. "late": rank 1 comes when the others have given up. */
static int job(int argc, char **argv)
{
    const char *rank_text = getenv("OMPI_COMM_WORLD_RANK");
    const char *size_text = getenv("OMPI_COMM_WORLD_SIZE");
    if (rank_text == NULL || size_text == NULL) return 1;
    int rank = (int)strtol(rank_text, NULL, 10);
    weft_world_options options = {.size = (int)strtol(size_text, NULL, 10),
                                  .rendezvous = "mpi",
                                  .timeout_ms = BUDGET_MS,
                                  .message_bytes = WEFT_COMM_MESSAGE_MIN};
    weft_world *world = world_of(options, (struct weft__tuning){.first_epoch = (uint32_t)-200});
    weft_status status = WEFT_OK;
    weft_error err = {0};
    for (int i = 0; i < argc && status == WEFT_OK; i++) {
        bool late = strcmp(argv[i], "late") == 0;
        if (late && rank == 1) sleep_ms(BUDGET_MS * 3 / 2);
        if (!late || rank != 1) status = session(world, rank, late ? "sum" : argv[i], &err);
        if (late && rank == 0) (void)printf("rank 0: %s\n", err.text);
        if (late && rank == 0) sleep_ms(BUDGET_MS / 2);
        if (late) status = WEFT_OK;
    }
    if (status != WEFT_OK) (void)printf("rank %d FAILED: %s\n", rank, err.text);
    weft_world_destroy(world);
    return status == WEFT_OK ? 0 : 1;
}

/* ---- the tests ---- */

static char self[4096];

/* Runs `mpirun -n ranks self --job scenes` and returns what it wrote. */
static const char *run_job(int ranks, const char *scenes, int *status)
{
    static char output[16384];
    char command[8192];
    (void)snprintf(command, sizeof command,
                   "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                   "ASAN_OPTIONS=detect_leaks=0 timeout 60 mpirun --oversubscribe -n %d %s --job "
                   "%s 2>&1",
                   ranks, self, scenes);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t len = fread(output, 1, sizeof output - 1, pipe);
    output[len] = '\0';
    *status = pclose(pipe);
    return output;
}

static void assert_says(const char *output, const char *text)
{
    if (strstr(output, text) == NULL) fail_msg("no \"%s\" in: %s", text, output);
}

static void same_bits_over_every_carrier(void **state)
{
    (void)state;
    for (int p = 1; p <= 5; p += 2) {
        int status;
        uint64_t hash[WEFT__MAX_RANKS];
        uint64_t *shared =
            mmap(NULL, sizeof hash, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        struct weft__tuning tuning = {.first_epoch = (uint32_t)-200};
        weft_world *world = world_of((weft_world_options){.size = p}, tuning);
        ranks_succeed(world, p, digest, hash);
        weft_world_destroy(world);
        struct rank_processes processes;
        processes_prepare(&processes,
                          (weft_world_options){.size = p, .algorithm = WEFT_ALGORITHM_TWO_SHOT},
                          tuning);
        processes_succeed(&processes, digest, shared);
        processes_release(&processes);
        const char *output = run_job(p, "digest large digest", &status);
        if (status != 0) fail_msg("%s", output);
        for (int r = 0; r < p; r++) {
            char text[64];
            assert_int_equal(shared[r], hash[r]);
            (void)snprintf(text, sizeof text, "rank %d %016llx\n", r, (unsigned long long)hash[r]);
            assert_says(output, text);
        }
        (void)munmap(shared, sizeof hash);
    }
}

static void failures_are_named_and_the_job_goes_on(void **state)
{
    (void)state;
    int status;
    const char *output = run_job(3, "sum stop sum give-up sum leave-group sum late sum", &status);
    if (status != 0) fail_msg("%s", output);
    assert_says(output, "rank 0 soon: allreduce: rank 1 gave no sign of life for 1000 ms");
    assert_says(output, "rank 2 soon: allreduce: rank 1 gave no sign of life for 1000 ms");
    assert_says(output, "rank 0 soon: rank 1 gave up: no memory for layer 3");
    assert_says(output, "rank 2 soon: rank 1 gave up: no memory for layer 3");
    assert_says(output, "rank 0 at once: allreduce: rank 1 closed");
    assert_says(output, "rank 2 at once: allreduce: rank 1 closed");
    assert_says(output, "rank 1 of 3 did not open within 1000 ms");
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--job") == 0) return job(argc - 2, argv + 2);
#if defined(__SANITIZE_THREAD__)
    (void)printf("SKIPPED: ThreadSanitizer sees races inside of Open MPI\n");
    return 77;
#endif
    if (access("/usr/bin/mpirun", X_OK) != 0) {
        (void)printf("SKIPPED: there is no mpirun: install openmpi-bin\n");
        return 77;
    }
    if (realpath(argv[0], self) == NULL) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_over_every_carrier),
                                       cmocka_unit_test(failures_are_named_and_the_job_goes_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
