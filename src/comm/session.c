/* session.c: who takes part from open to close, and the memory they share. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "comm.h"

/* ---- segments ---- */

static weft_status fail_memory(const struct weft__session *session, int rank, weft_error *err)
{
    return weft__fail(err, WEFT_NO_MEMORY,
                      "out of memory: %zu MiB of shared memory for rank %d: %s; fewer ranks or a "
                      "higher limit (ulimit -v) help, in a program of yours also a smaller "
                      "message_bytes or heap_bytes",
                      session->segment_bytes >> 20, rank, strerror(errno));
}

/* Shared, so that it may be a file's; without a file, pages exist once they are touched. */
static weft_status segment_map(struct weft__session *session, int rank, int fd, weft_error *err)
{
    int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS | MAP_NORESERVE : 0);
    void *memory = mmap(NULL, session->segment_bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (memory == MAP_FAILED) return fail_memory(session, rank, err);
    session->segment[rank] = memory;
    return WEFT_OK;
}

static void segment_init(struct weft__session *session, int rank)
{
    uint32_t before = session->world->tuning.first_epoch - 1;
    for (int c = 0; c < WEFT__COMM_CHANNELS; c++) {
        struct weft__comm_channel *channel = &weft__control_of(session, rank)->channel[c];
        channel->epoch = before;
        atomic_init(&channel->progress, before << 2 | WEFT__RELEASE);
    }
}

/* ---- any session ---- */

static struct weft__session *session_new(weft_world *world, weft_error *err)
{
    struct weft__session *session = calloc(1, sizeof *session);
    if (session == NULL) {
        (void)weft__fail_oom(err, sizeof *session, "a session");
        return NULL;
    }
    session->world = world;
    return session;
}

static void session_size(struct weft__session *session)
{
    const weft_world_options *options = &session->world->options;
    session->segment_bytes =
        weft__staging_at() + weft__staging_bytes(options) + options->heap_bytes;
}

static void session_free(struct weft__session *session)
{
    weft_world *world = session->world;
    for (int rank = 0; rank < world->options.size; rank++) {
        if (session->segment[rank] == NULL) continue;
        if (session->joined >> rank & 1) world->dev->release(weft__control_of(session, rank));
        (void)munmap(session->segment[rank], session->segment_bytes);
    }
    weft__meeting_close(session->meeting);
    free(session);
}

weft_status weft__session_map(struct weft__session *session, weft_error *err)
{
    session_size(session);
    for (int rank = 0; rank < session->world->options.size; rank++) {
        WEFT__TRY(segment_map(session, rank, -1, err));
        segment_init(session, rank);
    }
    return WEFT_OK;
}

/* ---- threads; the functions below run with world->mutex held ---- */

static weft_status threads_create(weft_world *world, weft_error *err)
{
    struct weft__session *session = session_new(world, err);
    if (session == NULL) return WEFT_NO_MEMORY;
    weft_status status = weft__session_map(session, err);
    if (status != WEFT_OK) {
        session_free(session);
        return status;
    }
    world->current = session;
    world->references++;
    return WEFT_OK;
}

/* Waits until all ranks have joined. The first to give up ends it for all. */
static weft_status threads_gather(struct weft__session *session, int rank, weft_error *err)
{
    weft_world *world = session->world;
    uint32_t all = (1u << world->options.size) - 1;
    uint64_t deadline = weft__now_ns() + (uint64_t)world->options.timeout_ms * 1000000;
    struct timespec until = {.tv_sec = (time_t)(deadline / 1000000000),
                             .tv_nsec = (long)(deadline % 1000000000)};
    int rc = 0;
    while (session->joined != all && session->left == 0 && world->starved[rank] == 0 &&
           rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&world->changed, &world->mutex, &until);
    const uint32_t starved = world->starved[rank];
    world->starved[rank] = 0;
    if (session->joined == all) return WEFT_OK;
    if (starved == 0)
        return weft__fail_missing(rank, session->joined, world->options.size,
                                  world->options.timeout_ms, err);
    char names[WEFT__RANK_NAMES];
    return weft__fail(err, WEFT_NO_MEMORY,
                      "rank %d: opening the communicator: rank %s of %d ran out of memory", rank,
                      weft__rank_names(starved, names), world->options.size);
}

static weft_status threads_join(weft_world *world, int rank, struct weft__session **out,
                                weft_error *err)
{
    uint32_t bit = 1u << rank;
    struct weft__session *session = world->current;
    if (session != NULL && session->left == 0 && (session->joined & bit) != 0)
        return weft__fail(err, WEFT_INVALID, "rank %d is open already", rank);
    if (session == NULL || session->left != 0) WEFT__TRY(threads_create(world, err));
    session = world->current;
    session->joined |= bit;
    (void)pthread_cond_broadcast(&world->changed);
    *out = session;
    return threads_gather(session, rank, err);
}

/* ---- processes ---- */

/* What the processes tell each other. */
struct card {
    struct weft__world_card world;
    int32_t cuda;
    weft_error error; /* why this rank cannot go on */
};
_Static_assert(sizeof(struct card) <= WEFT__PARCEL_BYTES, "a parcel holds a card");

/* Everybody's cards, and descriptors; or the first rank's error. */
static weft_status exchange(struct weft__session *session, const struct card *mine, int fd,
                            struct weft__parcel *all, weft_error *err)
{
    int size = session->world->options.size;
    struct weft__parcel parcel = {.fd = {fd, -1, -1, -1}};
    memcpy(parcel.bytes, mine, sizeof *mine);
    WEFT__TRY(weft__meeting_exchange(session->meeting, (1u << size) - 1, &parcel, all, err));
    for (int r = 0; r < size; r++) {
        struct card card;
        memcpy(&card, all[r].bytes, sizeof card);
        if (card.error.status == WEFT_OK) continue;
        if (err != NULL) *err = card.error;
        return card.error.status;
    }
    return WEFT_OK;
}

static weft_status take_options(struct weft__session *session, struct weft__parcel *all,
                                weft_error *err)
{
    weft_world *world = session->world;
    const struct card mine = {.world = weft__world_card_of(world),
                              .cuda = world->dev == &weft__cuda_comm};
    struct card theirs;
    WEFT__TRY(exchange(session, &mine, -1, all, err));
    memcpy(&theirs, all[0].bytes, sizeof theirs);
    weft__world_adopt(world, &theirs.world);
    for (int r = 1; r < world->options.size; r++) {
        struct card card;
        memcpy(&card, all[r].bytes, sizeof card);
        if (card.cuda != theirs.cuda)
            return weft__fail(err, WEFT_INVALID, "rank 0 is on a %s, rank %d on a %s",
                              theirs.cuda ? "GPU" : "CPU", r, card.cuda ? "GPU" : "CPU");
    }
    return WEFT_OK;
}

/* This rank's segment: a file without a name. Its memory is taken at once, so that there being too
 * little is an error now and not a signal later. /dev/shm and its size do not matter. */
static weft_status segment_make(struct weft__session *session, int rank, int *fd, weft_error *err)
{
    *fd = memfd_create("weft", MFD_CLOEXEC);
    if (*fd < 0) return fail_memory(session, rank, err);
    if (ftruncate(*fd, (off_t)session->segment_bytes) != 0 ||
        fallocate(*fd, 0, 0, (off_t)session->segment_bytes) != 0)
        return fail_memory(session, rank, err);
    WEFT__TRY(segment_map(session, rank, *fd, err));
    segment_init(session, rank);
    return WEFT_OK;
}

static weft_status share_segments(struct weft__session *session, int rank, struct weft__parcel *all,
                                  weft_error *err)
{
    int fd = -1;
    struct card mine = {0};
    (void)segment_make(session, rank, &fd, &mine.error);
    weft_status status = exchange(session, &mine, mine.error.status == WEFT_OK ? fd : -1, all, err);
    for (int r = 0; r < session->world->options.size; r++) {
        if (r == rank) continue;
        if (status == WEFT_OK) status = segment_map(session, r, all[r].fd[0], err);
        if (all[r].fd[0] >= 0) (void)close(all[r].fd[0]);
    }
    if (fd >= 0) (void)close(fd);
    return status;
}

/* Of this process, whose session nobody else knows. */
static weft_status process_open(struct weft__session *session, int rank, weft_error *err)
{
    const weft_world_options *options = &session->world->options;
    if (session->world->across) return weft__mpi_open(session, rank, err);
    struct weft__parcel *all = malloc(WEFT__MAX_RANKS * sizeof *all);
    if (all == NULL) return weft__fail_oom(err, WEFT__MAX_RANKS * sizeof *all, "a meeting");
    weft_status status = weft__meeting_open(session->world->meeting_name, rank, options->size,
                                            options->timeout_ms, &session->meeting, err);
    if (status == WEFT_OK) status = take_options(session, all, err);
    if (status == WEFT_OK) {
        session_size(session);
        status = share_segments(session, rank, all, err);
    }
    free(all);
    return status;
}

/* ---- joining and leaving ---- */

void weft__session_starve(weft_world *world, int rank)
{
    (void)pthread_mutex_lock(&world->mutex);
    for (int r = 0; r < world->options.size; r++) world->starved[r] |= 1u << rank;
    world->starved[rank] = 0; /* whatever its peers said, this attempt is over */
    (void)pthread_cond_broadcast(&world->changed);
    (void)pthread_mutex_unlock(&world->mutex);
}

static void say_closed(struct weft__session *session, int rank)
{
    for (int c = 0; c < WEFT__COMM_CHANNELS; c++)
        /* Release: pairs with the acquire in sleep_for, after which a peer looks at our progress
         * for the last time. */
        atomic_store_explicit(&weft__control_of(session, rank)->channel[c].closed, 1,
                              memory_order_release);
}

static weft_status process_join(weft_world *world, int rank, struct weft__session **out,
                                weft_error *err)
{
    if (world->current != NULL)
        return weft__fail(err, WEFT_INVALID, "a rank of this process is open already");
    struct weft__session *session = session_new(world, err);
    if (session == NULL) return WEFT_NO_MEMORY;
    world->current = session;
    world->references++;
    (void)pthread_mutex_unlock(&world->mutex);
    weft_status status = process_open(session, rank, err);
    (void)pthread_mutex_lock(&world->mutex);
    session->joined = 1u << rank;
    *out = session;
    return status;
}

weft_status weft__session_join(weft_world *world, int rank, struct weft__session **out,
                               weft_error *err)
{
    struct weft__session *session = NULL;
    (void)pthread_mutex_lock(&world->mutex);
    weft_status status = world->meeting_name != NULL || world->across
                             ? process_join(world, rank, &session, err)
                             : threads_join(world, rank, &session, err);
    (void)pthread_mutex_unlock(&world->mutex);
    if (status == WEFT_OK)
        *out = session;
    else if (session != NULL)
        weft__session_leave(session, rank);
    else if (status == WEFT_NO_MEMORY)
        weft__session_starve(world, rank);
    return status;
}

void weft__session_leave(struct weft__session *session, int rank)
{
    weft_world *world = session->world;
    if (session->segment[rank] != NULL) say_closed(session, rank);
    if (session->wire != NULL) weft__mpi_close(session->wire);
    (void)pthread_mutex_lock(&world->mutex);
    session->left |= 1u << rank;
    (void)pthread_cond_broadcast(&world->changed);
    bool last = session->left == session->joined;
    if (last && world->current == session) world->current = NULL;
    (void)pthread_mutex_unlock(&world->mutex);
    if (!last) return;
    session_free(session);
    weft__world_put(world);
}
