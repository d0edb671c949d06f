/* Ranks that are processes: started by this one, or with it by mpirun. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "prog.h"

enum { THREADS, PROCESSES, MPI };

/* This process as rank `rank`, to the end. What went wrong with the others is rank 0's to say. */
static int follow(const char *command, const char *dir, const struct weft__engine_flags *flags,
                  int rank)
{
    weft_error err;
    weft_engine_options options = weft__engine_options_of(flags);
    /* Rank 0 decides when all of them end: a terminal and service managers signal every process. */
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGTERM, SIG_IGN);
    (void)signal(SIGHUP, SIG_IGN);
    if (weft_engine_follow(dir, &options, rank, &err) == WEFT_OK) return WEFT__EXIT_OK;
    if (err.status != WEFT_PEER && err.status != WEFT_TIMEOUT)
        (void)fprintf(stderr, "weft %s: rank %d: %s\n", command, rank, err.text);
    return WEFT__EXIT_FAILED;
}

int weft__ranks_fork(const char *command, int64_t size, const char **rendezvous)
{
    static char name[64];
    pid_t parent = getpid();
    (void)snprintf(name, sizeof name, "unix:%d-%llx", (int)parent,
                   (unsigned long long)weft__now_ns());
    *rendezvous = name;
    (void)signal(SIGCHLD, SIG_IGN); /* nobody waits for them */
    for (int rank = 1; rank < size; rank++) {
        pid_t pid = fork();
        if (pid > 0) continue;
        if (pid < 0) {
            (void)fprintf(stderr, "weft %s: no process for rank %d: %s\n", command, rank,
                          strerror(errno));
            return -1;
        }
        /* It ends with rank 0, however that ends, and even when it is stopped itself. */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        return getppid() == parent ? rank : -1;
    }
    return 0;
}

static bool start_processes(const char *command, const char *dir, struct weft__engine_flags *flags,
                            int *status)
{
    struct weft__solo model;
    weft_error err;
    /* What is wrong with the model is said once, before there are ranks to say it. */
    if (weft__solo_open(dir, &model, &err) != WEFT_OK) {
        *status = weft__report(command, &err);
        return false;
    }
    weft__solo_close(&model);
    if (flags->ranks == 0)
        flags->ranks = weft__default_ranks(weft__numa_nodes(), weft__cpu_count());
    int rank = weft__ranks_fork(command, flags->ranks, &flags->rendezvous);
    if (rank == 0) return true;
    *status = rank > 0 ? follow(command, dir, flags, rank) : WEFT__EXIT_FAILED;
    return false;
}

/* A number that mpirun left in the environment; -1: it did not start this process. */
static int64_t launched(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? strtoll(text, NULL, 10) : -1;
}

static bool join_mpi(const char *command, const char *dir, struct weft__engine_flags *flags,
                     int *status)
{
    int64_t rank = launched("OMPI_COMM_WORLD_RANK"), size = launched("OMPI_COMM_WORLD_SIZE");
    *status = WEFT__EXIT_USAGE;
    if (rank < 0 || size < 1 || size > WEFT__MAX_RANKS) {
        (void)weft__usage(command, "--ranks mpi: start with Open MPI's mpirun -n N, N at most %d",
                          WEFT__MAX_RANKS);
        return false;
    }
    if (flags->ranks != 0 && flags->ranks != size) {
        (void)weft__usage(command, "--tp %lld, but mpirun started %lld ranks",
                          (long long)flags->ranks, (long long)size);
        return false;
    }
    flags->ranks = size;
    flags->rendezvous = "mpi";
    if (rank == 0) return true;
    *status = follow(command, dir, flags, (int)rank);
    return false;
}

bool weft__ranks_start(const char *command, const char *dir, struct weft__engine_flags *flags,
                       int *status)
{
    switch (flags->rank_kind) {
    case PROCESSES:
        return start_processes(command, dir, flags, status);
    case MPI:
        return join_mpi(command, dir, flags, status);
    default:
        if (launched("OMPI_COMM_WORLD_SIZE") > 1 && launched("OMPI_COMM_WORLD_RANK") == 0)
            (void)fprintf(stderr,
                          "weft %s: mpirun started several of it, each works for itself: "
                          "--ranks mpi makes them one\n",
                          command);
        return true;
    }
}
