/* comm_ranks.h: runs a function on every rank of a world, each on its own thread or in its own
 * process. */
#ifndef WEFT_TESTS_COMM_RANKS_H
#define WEFT_TESTS_COMM_RANKS_H

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h> /* after what it needs */

#include "base/base.h"
#include "comm/comm.h"

/* Asserts are for the main thread: a rank reports what is wrong by weft__fail. */
typedef weft_status rank_fn(weft_comm *comm, int rank, void *arg, weft_error *err);

struct rank_result {
    weft_status status;
    weft_error err;
};

struct rank_thread {
    weft_world *world;
    int rank;
    rank_fn *fn;
    void *arg;
    struct rank_result *result;
    pthread_t thread;
};

static inline void *rank_main(void *arg)
{
    struct rank_thread *self = arg;
    weft_comm *comm = NULL;
    weft_status status = weft_comm_open(self->world, self->rank, &comm, &self->result->err);
    if (status == WEFT_OK) status = self->fn(comm, self->rank, self->arg, &self->result->err);
    weft_comm_close(comm);
    self->result->status = status;
    return NULL;
}

/* Ranks of `mask` open, run fn and close. */
static inline void ranks_run_some(weft_world *world, uint32_t mask, rank_fn *fn, void *arg,
                                  struct rank_result *results)
{
    struct rank_thread threads[WEFT__MAX_RANKS];
    memset(results, 0, WEFT__MAX_RANKS * sizeof *results);
    for (int r = 0; r < WEFT__MAX_RANKS; r++) {
        if ((mask >> r & 1) == 0) continue;
        threads[r] = (struct rank_thread){world, r, fn, arg, &results[r], 0};
        if (pthread_create(&threads[r].thread, NULL, rank_main, &threads[r]) != 0) abort();
    }
    for (int r = 0; r < WEFT__MAX_RANKS; r++)
        if (mask >> r & 1) (void)pthread_join(threads[r].thread, NULL);
}

static inline uint32_t all_ranks(int size) { return (1u << size) - 1; }

static inline weft_world *world_of(weft_world_options options, struct weft__tuning tuning)
{
    weft_world *world = NULL;
    weft_error err = {0};
    if (weft__world_create(&options, &tuning, &world, &err) != WEFT_OK) fail_msg("%s", err.text);
    return world;
}

/* All ranks run fn, and all succeed. */
static inline void ranks_succeed(weft_world *world, int size, rank_fn *fn, void *arg)
{
    struct rank_result results[WEFT__MAX_RANKS];
    ranks_run_some(world, all_ranks(size), fn, arg, results);
    for (int r = 0; r < size; r++)
        if (results[r].status != WEFT_OK) fail_msg("rank %d: %s", r, results[r].err.text);
}

/* ---- ranks as processes: each makes the world of the same name ---- */

struct rank_processes {
    weft_world_options options;
    struct weft__tuning tuning;
    char name[64];
    pid_t pid[WEFT__MAX_RANKS];
    struct rank_result *results; /* [WEFT__MAX_RANKS], shared with the processes */
};

/* arg is each process's own copy, as it is now; what they share must be mapped shared. */
static inline void processes_start(struct rank_processes *p, uint32_t mask, rank_fn *fn, void *arg)
{
    for (int r = 0; r < WEFT__MAX_RANKS; r++) {
        if ((mask >> r & 1) == 0) continue;
        memset(&p->results[r], 0, sizeof p->results[r]);
        p->pid[r] = fork();
        if (p->pid[r] < 0) abort();
        if (p->pid[r] != 0) continue;
        struct rank_result *result = &p->results[r];
        struct rank_thread self = {.rank = r, .fn = fn, .arg = arg, .result = result};
        p->options.rendezvous = p->name;
        result->status = weft__world_create(&p->options, &p->tuning, &self.world, &result->err);
        if (result->status == WEFT_OK) (void)rank_main(&self);
        weft_world_destroy(self.world);
        _exit(0);
    }
}

/* How it ended, as waitpid says. */
static inline int process_wait(const struct rank_processes *p, int rank)
{
    int how = -1;
    while (waitpid(p->pid[rank], &how, 0) < 0) continue;
    return how;
}

static inline void processes_wait(const struct rank_processes *p, uint32_t mask)
{
    for (int r = 0; r < WEFT__MAX_RANKS; r++)
        if (mask >> r & 1) (void)process_wait(p, r);
}

static inline void processes_prepare(struct rank_processes *p, weft_world_options options,
                                     struct weft__tuning tuning)
{
    *p = (struct rank_processes){.options = options, .tuning = tuning};
    (void)snprintf(p->name, sizeof p->name, "unix:test-%d-%d", (int)getpid(), options.size);
    p->results = mmap(NULL, WEFT__MAX_RANKS * sizeof *p->results, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p->results == MAP_FAILED) abort();
}

static inline void processes_release(struct rank_processes *p)
{
    (void)munmap(p->results, WEFT__MAX_RANKS * sizeof *p->results);
}

/* All ranks run fn, and all succeed. */
static inline void processes_succeed(struct rank_processes *p, rank_fn *fn, void *arg)
{
    processes_start(p, all_ranks(p->options.size), fn, arg);
    processes_wait(p, all_ranks(p->options.size));
    for (int r = 0; r < p->options.size; r++)
        if (p->results[r].status != WEFT_OK) fail_msg("rank %d: %s", r, p->results[r].err.text);
}

static inline void sleep_ms(int ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    (void)nanosleep(&time, NULL);
}

/* A generator that every rank can start alike. */
static inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline int64_t pick_from(uint64_t *state, int64_t low, int64_t high)
{
    return low + (int64_t)(next_random(state) % (uint64_t)(high - low + 1));
}

#endif
