/* The team: workers sleep on an epoch, steal units from a counter, and the one that does the last
 * unit reports to the leader. A worker that wakes late finds nothing left and keeps nobody waiting,
 * so a machine busy with other programs costs little. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"

/* Long enough to bridge the serial code between two operations. */
enum { SPIN_ROUNDS = 1000, CACHE_LINE = 64 };

struct worker {
    pthread_t thread;
    struct weft__team *team;
    int index;
};

struct weft__team {
    alignas(CACHE_LINE) _Atomic uint32_t epoch; /* released by the leader with a new job */
    _Atomic uint32_t epoch_sleepers;
    alignas(
        CACHE_LINE) _Atomic uint32_t complete; /* the job's number once all its units are done */
    _Atomic uint32_t leader_sleeps;
    /* Units to hand out, counted down; the leader's store releases the job to whoever takes one. */
    alignas(CACHE_LINE) _Atomic int64_t left;
    _Atomic int64_t done; /* units */
    alignas(CACHE_LINE) struct weft__dev *dev;
    /* The job: stable while one of its units is not done, and read only by who has taken one. */
    weft__unit_fn *fn;
    const void *arg;
    int64_t units;
    uint32_t job;
    _Atomic bool closing;
    int workers; /* started */
    struct worker worker[];
};

/* Waits until *word != seen. `sleepers` tells the other side whether it must call the kernel: the
 * sequentially consistent pairs (sleepers++, load word) here and (store word, load sleepers) in
 * announce cannot both miss each other. */
static void await(_Atomic uint32_t *word, uint32_t seen, _Atomic uint32_t *sleepers)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) return;
        weft__pause();
    }
    atomic_fetch_add(sleepers, 1);
    while (atomic_load(word) == seen) (void)weft__wait_sleep(word, seen, UINT64_MAX);
    atomic_fetch_sub(sleepers, 1);
}

/* The change of *word has just been stored, sequentially consistent. */
static void announce(_Atomic uint32_t *word, _Atomic uint32_t *sleepers)
{
    if (atomic_load(sleepers) != 0) weft__wake_all(word);
}

static void run_units(struct weft__team *team, int thread)
{
    for (;;) {
        /* Acquire: pairs with the release in weft__team_run, also when other takers came between.
         */
        int64_t left = atomic_fetch_sub_explicit(&team->left, 1, memory_order_acq_rel);
        if (left <= 0) return;
        int64_t units = team->units;
        uint32_t job = team->job;
        team->fn(team->dev, team->arg, units - left, thread);
        /* The leader may start another job as soon as the last unit is counted. */
        if (atomic_fetch_add_explicit(&team->done, 1, memory_order_acq_rel) + 1 == units) {
            atomic_store(&team->complete, job);
            announce(&team->complete, &team->leader_sleeps);
        }
    }
}

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    struct weft__team *team = worker->team;
    for (uint32_t epoch = 0;;) {
        await(&team->epoch, epoch, &team->epoch_sleepers);
        epoch = atomic_load_explicit(&team->epoch, memory_order_acquire);
        if (atomic_load_explicit(&team->closing, memory_order_relaxed)) return NULL;
        run_units(team, worker->index);
    }
}

static void wake_workers(struct weft__team *team)
{
    atomic_fetch_add(&team->epoch, 1);
    announce(&team->epoch, &team->epoch_sleepers);
}

void weft__team_run(struct weft__dev *dev, int64_t units, weft__unit_fn *fn, const void *arg)
{
    struct weft__team *team = dev->team;
    if (units <= 1 || team->workers == 0) {
        for (int64_t unit = 0; unit < units; unit++) fn(dev, arg, unit, 0);
        return;
    }
    uint32_t before = team->job;
    team->job = before + 1;
    team->fn = fn;
    team->arg = arg;
    team->units = units;
    atomic_store_explicit(&team->done, 0, memory_order_relaxed);
    atomic_store_explicit(&team->left, units, memory_order_release);
    wake_workers(team);
    run_units(team, 0);
    /* Acquire: pairs with the store by whoever did the last unit, which follows all the others'. */
    while (atomic_load_explicit(&team->complete, memory_order_acquire) != before + 1)
        await(&team->complete, before, &team->leader_sleeps);
}

static weft_status pin(pthread_t thread, int cpu, weft_error *err)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    int code = EINVAL;
    if (cpu >= 0 && cpu < CPU_SETSIZE) {
        CPU_SET((size_t)cpu, &set);
        code = pthread_setaffinity_np(thread, sizeof set, &set);
    }
    if (code != 0)
        return weft__fail(err, WEFT_INVALID,
                          "cannot pin a thread to CPU %d (%s); use fewer threads or no pinning",
                          cpu, strerror(code));
    return WEFT_OK;
}

void weft__team_close(struct weft__team *team)
{
    if (team == NULL) return;
    atomic_store_explicit(&team->closing, true, memory_order_relaxed);
    wake_workers(team);
    for (int i = 0; i < team->workers; i++) (void)pthread_join(team->worker[i].thread, NULL);
    free(team);
}

weft_status weft__team_open(struct weft__dev *dev, const struct weft__dev_options *options,
                            struct weft__team **out, weft_error *err)
{
    size_t workers = (size_t)options->threads - 1;
    size_t bytes = sizeof(struct weft__team) + workers * sizeof(struct worker);
    bytes = weft__round_up(bytes, CACHE_LINE);
    struct weft__team *team = aligned_alloc(CACHE_LINE, bytes);
    if (team == NULL) return weft__fail_oom(err, bytes, "a team of threads");
    memset(team, 0, bytes);
    team->dev = dev;

    weft_status status = WEFT_OK;
    if (options->first_cpu >= 0) status = pin(pthread_self(), options->first_cpu, err);
    for (int i = 0; status == WEFT_OK && i < (int)workers; i++) {
        struct worker *worker = &team->worker[i];
        *worker = (struct worker){.team = team, .index = i + 1};
        int code = pthread_create(&worker->thread, NULL, worker_main, worker);
        if (code != 0) {
            status = weft__fail(err, WEFT_NO_MEMORY, "cannot start thread %d of a team of %d: %s",
                                i + 1, options->threads, strerror(code));
            break;
        }
        team->workers++;
        if (options->first_cpu >= 0) status = pin(worker->thread, options->first_cpu + i + 1, err);
    }
    if (status != WEFT_OK) {
        weft__team_close(team);
        return status;
    }
    *out = team;
    return WEFT_OK;
}
