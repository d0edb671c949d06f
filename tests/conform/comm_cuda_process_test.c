/* GPU ranks that are processes: sums over every path are right; a process that ends is named by the
 * others, at once, and the GPU stays usable. The ranks run this program with --rank; those that
 * share a GPU take turns on it, so that there are few operations. */
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda_ranks.h"

enum { WIDTH = 4096, ROWS = 3, OPERATIONS = 200, BUDGET_MS = 20000, CULPRIT = 1, ENDS = 42 };

extern char **environ;

/* ---- a rank ---- */

/* x: of the heap, to be read in place; NULL: in `memory`. */
static weft_status add_up(weft_comm *comm, weft_path path, void *memory, void *heap,
                          weft_error *err)
{
    static const int64_t count = (int64_t)ROWS * WIDTH;
    int p = weft_comm_size(comm), rank = weft_comm_rank(comm);
    float host[ROWS * WIDTH];
    uint8_t *y = (uint8_t *)memory + sizeof host, *x = heap != NULL ? heap : memory;
    for (int64_t i = 0; i < count; i++) host[i] = (float)(i % 1009 + rank);
    WEFT__TRY(gpu_write(comm, x, host, sizeof host, err));
    weft__cuda_tune(comm->kernels,
                    &(struct weft__cuda_tuning){.path = path,
                                                .wire = heap != NULL ? WEFT__CUDA_PLACED
                                                                     : WEFT__CUDA_WIRE_AUTO});
    for (int i = 0; i < OPERATIONS; i++) {
        weft_reduce op = {.tokens = ROWS, .hidden = WIDTH, .dtype = WEFT_F32, .x = x, .y = y};
        WEFT__TRY(weft_comm_allreduce(comm, &op, err));
    }
    WEFT__TRY(weft_comm_sync(comm, err));
    WEFT__TRY(gpu_read(comm, host, y, sizeof host, err));
    for (int64_t i = 0; i < count; i++)
        if (host[i] != (float)(p * (i % 1009) + p * (p - 1) / 2))
            return weft__fail(err, WEFT_INTERNAL, "path %d: element %lld is %g", (int)path,
                              (long long)i, (double)host[i]);
    return WEFT_OK;
}

static weft_status work(weft_comm *comm, bool ends, weft_error *err)
{
    void *memory = NULL, *heap = NULL;
    gpu_enter(comm);
    WEFT__TRY(weft_comm_heap_alloc(comm, (size_t)ROWS * WIDTH * 4, &heap, err));
    WEFT__TRY(gpu_alloc(comm, (size_t)ROWS * WIDTH * 8, &memory, err));
    WEFT__TRY(weft_comm_barrier(comm, err));
    WEFT__TRY(weft_comm_sync(comm, err));
    for (weft_path path = WEFT_PATH_PUSH; path <= WEFT_PATH_NCCL; path++)
        if (comm->kernels->usable >> path & 1) WEFT__TRY(add_up(comm, path, memory, NULL, err));
    if (comm->kernels->usable >> WEFT_PATH_PULL & 1)
        WEFT__TRY(add_up(comm, WEFT_PATH_PULL, memory, heap, err));
    if (ends && weft_comm_rank(comm) == CULPRIT) _exit(ENDS);
    WEFT__TRY(add_up(comm, WEFT_PATH_AUTO, memory, NULL, err));
    gpu_free(comm, memory);
    return WEFT_OK;
}

/* The parent has written it. */
static int number_of(const char *text)
{
    char *end;
    long number = strtol(text, &end, 10);
    return *end == '\0' && number >= 0 && number < WEFT__MAX_RANKS ? (int)number : 0;
}

/* "NAME SIZE RANK ENDS": the exit status says how it went. */
static int process_main(struct gpu_place *place, char **argv)
{
    weft_error err = {0};
    weft_world *world = NULL;
    weft_comm *comm = NULL;
    int size = number_of(argv[1]), rank = number_of(argv[2]);
    weft_world_options options = {.size = size,
                                  .timeout_ms = BUDGET_MS,
                                  .message_bytes = WEFT_COMM_MESSAGE_MIN,
                                  .heap_bytes = (size_t)ROWS * WIDTH * 4,
                                  .cuda_devices = place->ordinal,
                                  .rendezvous = argv[0]};
    uint64_t begun = weft__now_ns();
    weft_status status = weft_world_create(&options, &world, &err);
    if (status == WEFT_OK) status = weft_comm_open(world, rank, &comm, &err);
    if (status == WEFT_OK) status = work(comm, number_of(argv[3]) != 0, &err);
    weft_comm_close(comm);
    weft_world_destroy(world);
    uint64_t ms = (weft__now_ns() - begun) / 1000000;
    printf("rank %d: %llu ms %s\n", rank, (unsigned long long)ms, err.text);
    (void)fflush(stdout);
    bool named = strstr(err.text, "the process of rank 1 has ended") != NULL;
    return status == WEFT_OK ? 0 : status == WEFT_PEER && named && ms < BUDGET_MS ? 2 : 1;
}

/* ---- the test ---- */

/* Exit statuses of the ranks. */
static void run_ranks(int size, bool ends, int *statuses)
{
    char name[64], sizes[12], ranks[12], *end = ends ? (char[]){"1"} : (char[]){"0"};
    char *program = (char[]){"/proc/self/exe"}, *flag = (char[]){"--rank"};
    pid_t pid[WEFT__MAX_RANKS];
    (void)snprintf(name, sizeof name, "unix:weft-cuda-%d-%d", (int)getpid(), ends);
    (void)snprintf(sizes, sizeof sizes, "%d", size);
    for (int r = 0; r < size; r++) {
        (void)snprintf(ranks, sizeof ranks, "%d", r);
        char *argv[] = {program, flag, name, sizes, ranks, end, NULL};
        assert_int_equal(posix_spawn(&pid[r], program, NULL, NULL, argv, environ), 0);
    }
    for (int r = 0; r < size; r++) {
        int how = 0;
        assert_true(waitpid(pid[r], &how, 0) == pid[r]);
        statuses[r] = WIFEXITED(how) ? WEXITSTATUS(how) : -1;
    }
}

static void processes_add_up(void **state)
{
    (void)state;
    int statuses[WEFT__MAX_RANKS];
    for (int size = 2; size <= 3; size++) {
        run_ranks(size, false, statuses);
        for (int r = 0; r < size; r++) assert_int_equal(statuses[r], 0);
    }
}

static void process_that_ends_is_named(void **state)
{
    (void)state;
    int statuses[WEFT__MAX_RANKS];
    run_ranks(3, true, statuses);
    for (int r = 0; r < 3; r++) assert_int_equal(statuses[r], r == CULPRIT ? ENDS : 2);
    run_ranks(2, false, statuses); /* nothing is left running */
    for (int r = 0; r < 2; r++) assert_int_equal(statuses[r], 0);
}

int main(int argc, char **argv)
{
    struct gpu_place place = gpu_place_or_skip("comm_cuda_process");
    if (argc == 6 && strcmp(argv[1], "--rank") == 0) return process_main(&place, argv + 2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_add_up),
        cmocka_unit_test(process_that_ends_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
