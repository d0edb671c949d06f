/* Ranks that are processes: they meet, they name who is missing, stopped or dead, leave nothing
 * behind, and meet again. */
#include "../unit/comm_ranks.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { BUDGET_MS = 1000, LATE_MS = 100, HIDDEN = 64, RANKS = 4 };

static weft_status sum_ones(weft_comm *comm, weft_error *err)
{
    float x[HIDDEN], y[HIDDEN];
    for (int64_t i = 0; i < HIDDEN; i++) x[i] = 1.0f;
    weft_reduce op = {.tokens = 1, .hidden = HIDDEN, .dtype = WEFT_F32, .x = x, .y = y};
    WEFT__TRY(weft_comm_allreduce(comm, &op, err));
    for (int64_t i = 0; i < HIDDEN; i++)
        if (y[i] != (float)weft_comm_size(comm))
            return weft__fail(err, WEFT_INTERNAL, "sum of ones is %g", (double)y[i]);
    return WEFT_OK;
}

static weft_status sum_once(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)rank, (void)arg;
    return sum_ones(comm, err);
}

static void prepare(struct rank_processes *p, int size)
{
    processes_prepare(p,
                      (weft_world_options){.size = size,
                                           .timeout_ms = BUDGET_MS,
                                           .message_bytes = WEFT_COMM_MESSAGE_MIN,
                                           .heap_bytes = 4 * WEFT_COMM_MESSAGE_MIN},
                      (struct weft__tuning){0});
}

static void assert_error(const struct rank_processes *p, int rank, weft_status status,
                         const char *text)
{
    const struct rank_result *result = &p->results[rank];
    if (result->status != status || strstr(result->err.text, text) == NULL)
        fail_msg("rank %d: status %d (%s), expected %d with \"%s\"", rank, result->status,
                 result->err.text, status, text);
}

static void assert_reopens(struct rank_processes *p)
{
    processes_succeed(p, sum_once, NULL);
    processes_release(p);
}

/* ---- opening ---- */

static void missing_ranks_are_named(void **state)
{
    (void)state;
    struct rank_processes p;
    prepare(&p, RANKS);
    for (int pass = 0; pass < 2; pass++) { /* without ranks 1 and 3; without 0 */
        uint32_t mask = pass == 0 ? 0x5 : 0xe;
        uint64_t start = weft__now_ns();
        processes_start(&p, mask, sum_once, NULL);
        processes_wait(&p, mask);
        assert_true(weft__now_ns() - start < (uint64_t)(BUDGET_MS + 5 * LATE_MS) * 1000000);
        for (int r = 0; r < RANKS; r++)
            if (mask >> r & 1)
                assert_error(&p, r, WEFT_TIMEOUT,
                             pass == 0 ? "rank 1, 3 of 4 did not open within 1000 ms"
                                       : "did not open within 1000 ms");
    }
    assert_reopens(&p);
}

static socklen_t address_of(const struct rank_processes *p, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int len = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "weft/%s", p->name + 5);
    return (socklen_t)(sizeof address->sun_family + 1 + (size_t)len);
}

/* A rank 0 that has stopped, while many knock. */
static void a_deaf_listener_is_given_up(void **state)
{
    (void)state;
    struct rank_processes p;
    struct sockaddr_un address;
    int guest[8], guests = 0, listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    prepare(&p, 2);
    socklen_t len = address_of(&p, &address);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, len), 0);
    assert_int_equal(listen(listener, 0), 0);
    do {
        assert_true(guests < 8);
        guest[guests] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    } while (connect(guest[guests++], (struct sockaddr *)&address, len) == 0);
    uint64_t start = weft__now_ns();
    processes_start(&p, 2, sum_once, NULL);
    processes_wait(&p, 2);
    assert_true(weft__now_ns() - start < (uint64_t)(BUDGET_MS + 5 * LATE_MS) * 1000000);
    assert_error(&p, 1, WEFT_TIMEOUT, "did not open within 1000 ms");
    while (guests > 0) (void)close(guest[--guests]);
    (void)close(listener);
    assert_reopens(&p);
}

static void who_left_before_all_came_may_come_again(void **state)
{
    (void)state;
    struct rank_processes p;
    prepare(&p, 3);
    processes_start(&p, 0x3, sum_once, NULL);
    sleep_ms(2 * LATE_MS);
    (void)kill(p.pid[1], SIGKILL);
    (void)process_wait(&p, 1);
    processes_start(&p, 0x6, sum_once, NULL);
    processes_wait(&p, 0x7);
    for (int r = 0; r < 3; r++)
        if (p.results[r].status != WEFT_OK) fail_msg("rank %d: %s", r, p.results[r].err.text);
    assert_reopens(&p);
}

/* Each side looks who the other is. */
static void other_users_do_not_meet(void **state)
{
    (void)state;
    if (geteuid() != 0) skip(); /* only root can be somebody else */
    struct rank_processes p;
    prepare(&p, 2);
    processes_start(&p, 1, sum_once, NULL);
    assert_int_equal(seteuid(65534), 0);
    processes_start(&p, 2, sum_once, NULL);
    assert_int_equal(seteuid(0), 0);
    processes_wait(&p, 3);
    assert_error(&p, 0, WEFT_TIMEOUT, "rank 1 of 2 did not open within 1000 ms");
    assert_error(&p, 1, WEFT_INVALID, "another user's process listens there");
    assert_reopens(&p);
}

static void a_rank_without_memory_is_named_by_all(void **state)
{
    (void)state;
    struct rank_processes p;
    struct rlimit before, small;
    prepare(&p, RANKS);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){.rlim_cur = 4096, .rlim_max = before.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    processes_start(&p, 4, sum_once, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    processes_start(&p, 0xb, sum_once, NULL);
    processes_wait(&p, 0xf);
    (void)signal(SIGXFSZ, handler);
    for (int r = 0; r < RANKS; r++)
        assert_error(&p, r, WEFT_NO_MEMORY, "of shared memory for rank 2");
    assert_reopens(&p);
}

static void strangers_are_sent_away(void **state)
{
    (void)state;
    struct rank_processes p;
    prepare(&p, 2);
    /* One of another world's size, one that says nothing sensible, one that comes and goes. */
    struct rank_processes other = p;
    other.options.size = 3;
    other.results += 4;
    processes_start(&p, 1, sum_once, NULL);
    processes_start(&other, 2, sum_once, NULL);
    processes_wait(&other, 2);
    assert_error(&other, 1, WEFT_INVALID, "comes to a world of 3 ranks, rank 0 made one of 2");
    struct sockaddr_un address;
    socklen_t len = address_of(&p, &address);
    for (int i = 0; i < 2; i++) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&address, len), 0);
        if (i == 0) assert_int_equal(write(fd, "GET / HTTP/1.1", 14), 14);
        (void)close(fd);
    }
    processes_start(&p, 2, sum_once, NULL);
    processes_wait(&p, 3);
    for (int r = 0; r < 2; r++) assert_int_equal(p.results[r].status, WEFT_OK);
    assert_reopens(&p);
}

static weft_status linger(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)rank, (void)arg;
    sleep_ms(3 * LATE_MS);
    return sum_ones(comm, err);
}

static void names_and_ranks_are_taken_once(void **state)
{
    (void)state;
    struct rank_processes p;
    prepare(&p, 2);
    struct rank_processes again = p;
    again.results += 4;
    processes_start(&p, 1, sum_once, NULL);
    sleep_ms(LATE_MS);
    processes_start(&again, 1, sum_once, NULL); /* rank 0 still waits under this name */
    processes_wait(&again, 1);
    assert_error(&again, 0, WEFT_IO, "another world meets there");
    processes_start(&p, 2, linger, NULL); /* and once all are there, the name is free */
    sleep_ms(LATE_MS);
    processes_start(&again, 3, sum_once, NULL);
    processes_wait(&again, 3);
    processes_wait(&p, 3);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(p.results[r].status, WEFT_OK);
        assert_int_equal(again.results[r].status, WEFT_OK);
    }
    assert_reopens(&p);
}

static void wrong_rendezvous(void **state)
{
    (void)state;
    char name[200] = "unix:";
    weft_world *world = NULL;
    weft_comm *comm = NULL;
    weft_error err;
    assert_int_equal(
        weft_world_create(&(weft_world_options){.size = 2, .rendezvous = "tcp:1"}, &world, &err),
        WEFT_INVALID);
    memset(name + 5, 'x', sizeof name - 6);
    assert_int_equal(
        weft_world_create(&(weft_world_options){.size = 2, .rendezvous = name}, &world, &err),
        WEFT_OK);
    assert_int_equal(weft_comm_open(world, 0, &comm, &err), WEFT_TOO_LONG);
    weft_world_destroy(world);
}

/* ---- nothing is left ---- */

static int entries_of(const char *dir)
{
    int count = 0;
    DIR *open = opendir(dir);
    while (open != NULL && readdir(open) != NULL) count++;
    if (open != NULL) (void)closedir(open);
    return count;
}

static weft_status count_descriptors(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    (void)comm, (void)rank;
    *(int *)arg = entries_of("/proc/self/fd");
    return sum_ones(comm, err);
}

static void nothing_is_left(void **state)
{
    (void)state;
    struct rank_processes p;
    prepare(&p, 2);
    int *open = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int files = entries_of("/dev/shm"), before = entries_of("/proc/self/fd");
    processes_start(&p, 2, count_descriptors, open);
    weft_world *world = NULL;
    weft_comm *comm = NULL;
    weft_error err;
    p.options.rendezvous = p.name;
    for (int i = 0; i < 2; i++) { /* this process is rank 0, twice */
        assert_int_equal(weft_world_create(&p.options, &world, &err), WEFT_OK);
        assert_int_equal(weft_comm_open(world, 0, &comm, &err), WEFT_OK);
        assert_int_equal(entries_of("/proc/self/fd"), before + 1);
        assert_int_equal(weft_comm_open(world, 0, &comm, &err), WEFT_INVALID);
        assert_int_equal(sum_ones(comm, &err), WEFT_OK);
        processes_wait(&p, 2);
        assert_int_equal(*open, before + 1);
        weft_comm_close(comm);
        weft_world_destroy(world);
        assert_int_equal(entries_of("/proc/self/fd"), before);
        if (i == 0) processes_start(&p, 2, count_descriptors, open);
    }
    assert_int_equal(entries_of("/dev/shm"), files);
    (void)munmap(open, 4096);
    processes_release(&p);
}

/* ---- stopped, killed, gone ---- */

enum deed { KILLED_OUTSIDE, KILLED_INSIDE, STOPPED, ABORTED, DELAYED, FINISHED };

struct scene {
    enum deed deed;
    int culprit;
    struct {
        _Atomic uint32_t ready; /* how many ranks are where they should be */
        uint64_t failed_ns[RANKS];
        weft_comm_failure failure[RANKS];
    } * shared;
};

static weft_status act(weft_comm *comm, int rank, void *arg, weft_error *err)
{
    struct scene *scene = arg;
    weft_comm *others;
    WEFT__TRY(weft_comm_split(comm, rank == scene->culprit ? -1 : 0, 0, &others, err));
    for (int i = 0; i < 100; i++) WEFT__TRY(sum_ones(comm, err));
    (void)atomic_fetch_add(&scene->shared->ready, 1);
    if (rank == scene->culprit) {
        switch (scene->deed) {
        case KILLED_OUTSIDE:
        case STOPPED:
            for (;;) (void)pause();
        case ABORTED: /* once nobody is left in the sums above */
            while (atomic_load(&scene->shared->ready) < RANKS) sleep_ms(1);
            weft_comm_abort(comm, "no memory for layer 3");
            break;
        case DELAYED:
            sleep_ms(BUDGET_MS * 8 / 10);
            break;
        case FINISHED:
            return sum_ones(comm, err);
        case KILLED_INSIDE: /* while it waits for a peer itself */
            break;
        }
    } else if (scene->deed == KILLED_INSIDE && rank == 0) {
        sleep_ms(BUDGET_MS / 2);
    }
    weft_status status = sum_ones(comm, err);
    if (status == WEFT_OK && scene->deed == FINISHED) {
        if (rank == 0) sleep_ms(3 * LATE_MS); /* the others wait while the culprit has gone */
        return sum_ones(others, err);
    }
    scene->shared->failed_ns[rank] = weft__now_ns();
    (void)weft_comm_failed(comm, &scene->shared->failure[rank]);
    return status;
}

static void play(struct rank_processes *p, struct scene *scene)
{
    memset(scene->shared, 0, sizeof *scene->shared);
    processes_start(p, all_ranks(RANKS), act, scene);
    for (int i = 0; atomic_load(&scene->shared->ready) < RANKS; i++) {
        for (int r = 0; r < RANKS; r++)
            if (i == 20000 || (p->results[r].status != WEFT_OK && scene->deed != ABORTED))
                fail_msg("rank %d: %s", r, p->results[r].err.text);
        sleep_ms(1);
    }
    sleep_ms(LATE_MS);
}

static void assert_named(const struct rank_processes *p, const struct scene *scene,
                         weft_status status, const char *text)
{
    for (int r = 0; r < RANKS; r++) {
        if (r == scene->culprit) continue;
        assert_error(p, r, status, text);
        assert_int_equal(scene->shared->failure[r].peer, scene->culprit);
    }
}

/* The longest that a rank took from `since` on, milliseconds. */
static uint64_t slowest_ms(const struct scene *scene, uint64_t since)
{
    uint64_t most = 0;
    for (int r = 0; r < RANKS; r++)
        if (r != scene->culprit && scene->shared->failed_ns[r] > since + most)
            most = scene->shared->failed_ns[r] - since;
    return most / 1000000;
}

static void killed_ranks_are_named_at_once(void **state)
{
    (void)state;
    static char text[80];
    struct scene scene = {.shared = mmap(NULL, sizeof *scene.shared, PROT_READ | PROT_WRITE,
                                         MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    for (int deed = KILLED_OUTSIDE; deed <= KILLED_INSIDE; deed++)
        for (scene.culprit = deed == KILLED_INSIDE; scene.culprit < RANKS; scene.culprit++) {
            struct rank_processes p;
            prepare(&p, RANKS);
            scene.deed = (enum deed)deed;
            play(&p, &scene);
            uint64_t start = weft__now_ns();
            (void)kill(p.pid[scene.culprit], SIGKILL);
            processes_wait(&p, all_ranks(RANKS));
            (void)snprintf(text, sizeof text, "the process of rank %d has ended", scene.culprit);
            assert_named(&p, &scene, WEFT_PEER, text);
            assert_true(slowest_ms(&scene, start) < BUDGET_MS + LATE_MS);
            assert_reopens(&p);
        }
    (void)munmap(scene.shared, sizeof *scene.shared);
}

static void stopped_rank_is_named_in_time(void **state)
{
    (void)state;
    struct scene scene = {.deed = STOPPED,
                          .shared = mmap(NULL, sizeof *scene.shared, PROT_READ | PROT_WRITE,
                                         MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    for (scene.culprit = 0; scene.culprit < RANKS; scene.culprit += RANKS - 1) {
        bool in_time = false;
        for (int attempt = 0; attempt < 3 && !in_time; attempt++) { /* others may delay us */
            struct rank_processes p;
            char text[80];
            prepare(&p, RANKS);
            uint64_t start = weft__now_ns();
            play(&p, &scene);
            (void)kill(p.pid[scene.culprit], SIGSTOP);
            processes_wait(&p, all_ranks(RANKS) & ~(1u << scene.culprit));
            (void)snprintf(text, sizeof text, "rank %d gave no sign of life for 1000 ms",
                           scene.culprit);
            assert_named(&p, &scene, WEFT_TIMEOUT, text);
            in_time = slowest_ms(&scene, start) < BUDGET_MS + 3 * LATE_MS;
            (void)kill(p.pid[scene.culprit], SIGKILL);
            processes_wait(&p, 1u << scene.culprit);
            assert_reopens(&p);
        }
        assert_true(in_time);
    }
    (void)munmap(scene.shared, sizeof *scene.shared);
}

static void giving_up_is_heard(void **state)
{
    (void)state;
    struct scene scene = {.deed = ABORTED,
                          .culprit = 2,
                          .shared = mmap(NULL, sizeof *scene.shared, PROT_READ | PROT_WRITE,
                                         MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    struct rank_processes p;
    prepare(&p, RANKS);
    play(&p, &scene);
    processes_wait(&p, all_ranks(RANKS));
    assert_named(&p, &scene, WEFT_PEER, "rank 2 gave up: no memory for layer 3");
    assert_error(&p, 2, WEFT_PEER, "rank 2 gave up: no memory for layer 3");
    assert_reopens(&p);
    (void)munmap(scene.shared, sizeof *scene.shared);
}

static void delayed_and_finished_ranks_are_no_failure(void **state)
{
    (void)state;
    struct scene scene = {.culprit = 1,
                          .shared = mmap(NULL, sizeof *scene.shared, PROT_READ | PROT_WRITE,
                                         MAP_SHARED | MAP_ANONYMOUS, -1, 0)};
    for (int deed = DELAYED; deed <= FINISHED; deed++) {
        struct rank_processes p;
        prepare(&p, RANKS);
        scene.deed = (enum deed)deed;
        play(&p, &scene);
        processes_wait(&p, all_ranks(RANKS));
        for (int r = 0; r < RANKS; r++)
            if (p.results[r].status != WEFT_OK) fail_msg("rank %d: %s", r, p.results[r].err.text);
        assert_reopens(&p);
    }
    (void)munmap(scene.shared, sizeof *scene.shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_ranks_are_named),
        cmocka_unit_test(a_deaf_listener_is_given_up),
        cmocka_unit_test(who_left_before_all_came_may_come_again),
        cmocka_unit_test(other_users_do_not_meet),
        cmocka_unit_test(a_rank_without_memory_is_named_by_all),
        cmocka_unit_test(strangers_are_sent_away),
        cmocka_unit_test(names_and_ranks_are_taken_once),
        cmocka_unit_test(wrong_rendezvous),
        cmocka_unit_test(nothing_is_left),
        cmocka_unit_test(killed_ranks_are_named_at_once),
        cmocka_unit_test(stopped_rank_is_named_in_time),
        cmocka_unit_test(giving_up_is_heard),
        cmocka_unit_test(delayed_and_finished_ranks_are_no_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
