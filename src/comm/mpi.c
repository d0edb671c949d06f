/* Ranks on several hosts, over MPI. Each process keeps a copy of every peer's segment. What a rank
 * publishes - progress, post, and the bytes that the peer needs - goes to each peer as one message,
 * which the peer writes into its copy before it shows the progress there; so the kernels fold the
 * same bytes in the same order as over shared memory. MPI only carries bytes.
 *
 * Open MPI is loaded when it is asked for: no header of it is needed to build. Its handles are the
 * addresses of variables. Nothing blocks: requests are tested, so that deadlines hold. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm.h"

enum {
    SERIALIZED = 2, /* MPI_THREAD_SERIALIZED */
    OPENING = 0,    /* tag of messages before a session; its own number is the session's tag */
    TAGS = 32000,
    SLOTS = 512,                      /* messages under way from one process */
    BEAT_NS = 50 * 1000 * 1000,       /* between signs of life without an operation */
    NAP_MIN_NS = 10 * 1000,           /* between looks at what has come: at first, */
    NAP_MAX_NS = 1000 * 1000,         /* and after a while */
    FAREWELL_NS = 1000 * 1000 * 1000, /* how long closing may take */
};

/* name, arguments. All return 0 when they succeed. */
#define MPI_CALLS(X)                                                                           \
    X(Initialized, (int *flag))                                                                \
    X(Finalized, (int *flag))                                                                  \
    X(Init_thread, (int *argc, char ***argv, int required, int *provided))                     \
    X(Finalize, (void))                                                                        \
    X(Comm_rank, (void *comm, int *rank))                                                      \
    X(Comm_size, (void *comm, int *size))                                                      \
    X(Comm_set_errhandler, (void *comm, void *handler))                                        \
    X(Isend, (const void *data, int count, void *type, int to, int tag, void *comm, void **r)) \
    X(Irecv, (void *data, int count, void *type, int from, int tag, void *comm, void **r))     \
    X(Test, (void **request, int *done, void *status))                                         \
    X(Cancel, (void **request))

struct hello {
    char version[16];
    uint64_t nonce; /* of this attempt; a welcome to an earlier one is passed over */
    int32_t session;
    struct weft__world_card world;
};

/* A message before a session. MPI may use it as long as its request is there, also when the attempt
 * to open has failed. */
struct letter {
    void *request;
    struct hello hello;
};

struct weft__mpi {
    void *library;
#define X(name, arguments) int(*name) arguments;
    MPI_CALLS(X)
#undef X
    void *world, *bytes; /* MPI_COMM_WORLD, MPI_BYTE */
    int opened;          /* sessions, as rank 0 counts them */
    bool failed;         /* the last session: then others may not come to MPI_Finalize */
    struct letter sent[WEFT__MAX_RANKS], received[WEFT__MAX_RANKS]; /* by peer */
};

enum note_kind { PUBLISHED, LIFE, CLOSED, FAULT };

struct note {
    uint32_t kind, channel, progress, heartbeat;
    struct weft__comm_post post; /* with INPUT */
    uint64_t waiting;
    uint64_t at, bytes; /* what follows goes there in the sender's segment */
};

struct slot {
    void *request; /* NULL: free */
    uint8_t *data;
    size_t capacity;
};

struct inbox {
    void *request;
    uint8_t *data;
};

struct mpi_wire {
    struct weft__wire wire;
    struct weft__session *session;
    struct weft__mpi *mpi;
    int rank, tag;
    size_t capacity; /* of a message */
    struct slot slot[SLOTS];
    struct inbox inbox[WEFT__MAX_RANKS];
    uint64_t told_waiting, told_ns;
    uint32_t told_heartbeat;
    bool told_fault;
};

/* ---- the library ---- */

static void *symbol(struct weft__mpi *mpi, const char *name, const char **missing)
{
    void *found = dlsym(mpi->library, name);
    if (found == NULL) *missing = name;
    return found;
}

static weft_status load(struct weft__mpi *mpi, weft_error *err)
{
    const char *missing = NULL;
    /* Global: Open MPI's own plugins look for its symbols. */
    mpi->library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
    if (mpi->library == NULL)
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "rendezvous \"mpi\": Open MPI cannot be loaded (%.200s); install "
                          "openmpi-bin",
                          dlerror());
#define X(name, arguments)                                 \
    {                                                      \
        void *found = symbol(mpi, "MPI_" #name, &missing); \
        memcpy(&mpi->name, &found, sizeof found);          \
    }
    MPI_CALLS(X)
#undef X
    mpi->world = symbol(mpi, "ompi_mpi_comm_world", &missing);
    mpi->bytes = symbol(mpi, "ompi_mpi_byte", &missing);
    void *handler = symbol(mpi, "ompi_mpi_errors_return", &missing);
    if (missing != NULL)
        return weft__fail(err, WEFT_UNSUPPORTED, "libmpi.so.40 has no %s: not Open MPI?", missing);
    int over = 0, begun = 0, provided = SERIALIZED;
    (void)mpi->Finalized(&over);
    (void)mpi->Initialized(&begun);
    if (over)
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "MPI has been used and finalised by this process; it starts only once");
    if (!begun && mpi->Init_thread(NULL, NULL, SERIALIZED, &provided) != 0)
        return weft__fail(err, WEFT_UNSUPPORTED, "MPI_Init_thread failed");
    if (provided < SERIALIZED)
        return weft__fail(err, WEFT_UNSUPPORTED, "this MPI serves only one thread of a process");
    (void)mpi->Comm_set_errhandler(mpi->world, handler);
    return WEFT_OK;
}

/* The world's MPI; loaded and started by its first session. */
static weft_status start(weft_world *world, int rank, weft_error *err)
{
    if (world->mpi == NULL) {
        struct weft__mpi *mpi = calloc(1, sizeof *mpi);
        if (mpi == NULL) return weft__fail_oom(err, sizeof *mpi, "MPI");
        weft_status status = load(mpi, err);
        if (status != WEFT_OK) {
            free(mpi); /* what dlopen loaded stays loaded */
            return status;
        }
        world->mpi = mpi;
    }
    int size = 0, own = -1;
    (void)world->mpi->Comm_size(world->mpi->world, &size);
    (void)world->mpi->Comm_rank(world->mpi->world, &own);
    if (size != world->options.size || own != rank)
        return weft__fail(err, WEFT_INVALID,
                          "rank %d of %d, but for MPI this process is rank %d of %d", rank,
                          world->options.size, own, size);
    return WEFT_OK;
}

void weft__mpi_free(struct weft__mpi *mpi)
{
    if (mpi == NULL) return;
    if (!mpi->failed) (void)mpi->Finalize();
    for (int r = 0; r < WEFT__MAX_RANKS; r++)
        if (mpi->sent[r].request != NULL || mpi->received[r].request != NULL) return; /* in use */
    free(mpi);
}

static void nap(uint64_t *ns)
{
    struct timespec time = {.tv_nsec = (long)*ns};
    (void)nanosleep(&time, NULL);
    if (*ns < NAP_MAX_NS) *ns += *ns / 4;
}

/* Then *request is NULL. One that failed is done, too; what it should have brought is missed. */
static bool done(struct weft__mpi *mpi, void **request)
{
    int flag = 0;
    if (mpi->Test(request, &flag, NULL) == 0 && flag == 0) return false;
    *request = NULL;
    return true;
}

static bool wait_until(struct weft__mpi *mpi, void **request, uint64_t deadline_ns)
{
    uint64_t pause = NAP_MIN_NS;
    while (!done(mpi, request)) {
        if (weft__now_ns() >= deadline_ns) return false;
        nap(&pause);
    }
    return true;
}

/* ---- a session's messages ---- */

static void break_session(struct mpi_wire *w, const char *what)
{
    struct weft__comm_fault fault = {.kind = WEFT__FAULT_ABORT, .rank = w->rank, .peer = w->rank};
    (void)snprintf(fault.reason, sizeof fault.reason, "%s", what);
    weft__comm_fail(weft__fault_of(w->session), &fault);
}

static struct slot *free_slot(struct mpi_wire *w)
{
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &w->slot[i];
        if (slot->request == NULL || done(w->mpi, &slot->request)) return slot;
    }
    return NULL;
}

static void send_note(struct mpi_wire *w, int to, const struct note *note, const void *data)
{
    size_t bytes = sizeof *note + note->bytes;
    struct slot *slot = free_slot(w);
    if (slot == NULL) {
        break_session(w, "its peers take no messages any more");
        return;
    }
    if (slot->capacity < bytes) {
        uint8_t *grown = realloc(slot->data, bytes);
        if (grown == NULL) {
            break_session(w, "out of memory for a message");
            return;
        }
        slot->data = grown;
        slot->capacity = bytes;
    }
    memcpy(slot->data, note, sizeof *note);
    if (note->bytes > 0) memcpy(slot->data + sizeof *note, data, note->bytes);
    if (w->mpi->Isend(slot->data, (int)bytes, w->mpi->bytes, to, w->tag, w->mpi->world,
                      &slot->request) != 0) {
        slot->request = NULL;
        break_session(w, "MPI_Isend failed");
    }
}

static void send_all(struct mpi_wire *w, const struct note *note, const void *data)
{
    for (int r = 0; r < w->session->world->options.size; r++)
        if (r != w->rank) send_note(w, r, note, data);
}

/* What has come from a peer becomes visible in its copy. */
static void take_note(struct mpi_wire *w, int from, const uint8_t *message)
{
    struct weft__comm_rank *control = weft__control_of(w->session, from);
    struct weft__comm_fault fault;
    struct note note;
    memcpy(&note, message, sizeof note);
    const uint8_t *data = message + sizeof note;
    if (note.channel >= WEFT__COMM_CHANNELS || note.bytes > w->capacity - sizeof note ||
        note.at > w->session->segment_bytes || note.bytes > w->session->segment_bytes - note.at) {
        break_session(w, "a message makes no sense");
        return;
    }
    struct weft__comm_channel *channel = &control->channel[note.channel];
    switch (note.kind) {
    case PUBLISHED:
        if (note.bytes > 0) memcpy(w->session->segment[from] + note.at, data, note.bytes);
        if ((note.progress & 3) == WEFT__INPUT) channel->post[note.progress >> 2 & 1] = note.post;
        atomic_store_explicit(&control->heartbeat, note.heartbeat, memory_order_relaxed);
        atomic_store_explicit(&channel->progress, note.progress, memory_order_release);
        break;
    case LIFE:
        atomic_store_explicit(&control->heartbeat, note.heartbeat, memory_order_relaxed);
        atomic_store_explicit(&control->waiting, note.waiting, memory_order_release);
        break;
    case CLOSED: /* with the world all groups */
        for (uint32_t c = 0; c < WEFT__COMM_CHANNELS; c++)
            if (note.channel == 0 || note.channel == c)
                atomic_store_explicit(&control->channel[c].closed, 1, memory_order_release);
        break;
    case FAULT:
        if (note.bytes != sizeof fault) break;
        memcpy(&fault, data, sizeof fault);
        w->told_fault = true; /* by the one who noticed */
        weft__comm_fail(weft__fault_of(w->session), &fault);
        break;
    }
}

static bool listen_to(struct mpi_wire *w, int peer)
{
    struct inbox *box = &w->inbox[peer];
    return w->mpi->Irecv(box->data, (int)w->capacity, w->mpi->bytes, peer, w->tag, w->mpi->world,
                         &box->request) == 0;
}

/* Tells what peers cannot see in memory: a failure; for whom this rank waits; that it lives. */
static void tell(struct mpi_wire *w)
{
    struct weft__comm_fault *fault = weft__fault_of(w->session);
    const struct weft__comm_rank *self = weft__control_of(w->session, w->rank);
    if (!w->told_fault &&
        atomic_load_explicit(&fault->state, memory_order_acquire) == WEFT__COMM_FAILED) {
        struct note note = {.kind = FAULT, .bytes = sizeof *fault};
        w->told_fault = true;
        send_all(w, &note, fault);
    }
    struct note life = {.kind = LIFE};
    life.heartbeat = atomic_load_explicit(&self->heartbeat, memory_order_relaxed);
    life.waiting = atomic_load_explicit(&self->waiting, memory_order_relaxed);
    /* That it does not wait any more, at once: others would blame whom it waited for. */
    bool up = life.waiting == 0 && w->told_waiting != 0;
    bool changed = life.waiting != w->told_waiting || life.heartbeat != w->told_heartbeat;
    if (!up && (!changed || weft__now_ns() < w->told_ns + BEAT_NS)) return;
    w->told_ns = weft__now_ns();
    w->told_waiting = life.waiting;
    w->told_heartbeat = life.heartbeat;
    send_all(w, &life, NULL);
}

static void pump(struct weft__wire *wire)
{
    struct mpi_wire *w = (struct mpi_wire *)wire;
    for (int r = 0; r < w->session->world->options.size; r++) {
        struct inbox *box = &w->inbox[r];
        int flag = 0;
        if (box->request == NULL) continue;
        if (w->mpi->Test(&box->request, &flag, NULL) != 0) {
            box->request = NULL;
            break_session(w, "MPI lost the connection to a peer");
        } else if (flag) {
            take_note(w, r, box->data);
            if (!listen_to(w, r)) break_session(w, "MPI_Irecv failed");
        }
    }
    tell(w);
}

static void publish(struct weft__wire *wire, const struct weft__wire_part *part)
{
    struct mpi_wire *w = (struct mpi_wire *)wire;
    const struct weft__comm_rank *self = weft__control_of(w->session, w->rank);
    const struct note note = {.kind = PUBLISHED,
                              .channel = (uint32_t)part->channel,
                              .progress = part->progress,
                              .heartbeat =
                                  atomic_load_explicit(&self->heartbeat, memory_order_relaxed),
                              .post = *part->post,
                              .at = part->at,
                              .bytes = part->bytes};
    send_note(w, part->to, &note, w->session->segment[w->rank] + part->at);
}

static void close_channel(struct weft__wire *wire, int channel)
{
    const struct note closed = {.kind = CLOSED, .channel = (uint32_t)channel};
    send_all((struct mpi_wire *)wire, &closed, NULL);
}

static void wait_sleep(struct weft__wire *wire, _Atomic uint32_t *word, uint32_t seen,
                       uint64_t deadline_ns)
{
    struct mpi_wire *w = (struct mpi_wire *)wire;
    uint64_t pause = NAP_MIN_NS;
    while (atomic_load_explicit(word, memory_order_acquire) == seen &&
           atomic_load_explicit(&weft__fault_of(w->session)->state, memory_order_relaxed) ==
               WEFT__COMM_HEALTHY &&
           weft__now_ns() < deadline_ns) {
        nap(&pause);
        pump(wire);
    }
}

/* ---- opening: rank 0 collects hellos, then welcomes all into a session ---- */

static struct hello hello_of(const weft_world *world)
{
    struct hello hello = {.nonce = weft__now_ns(), .world = weft__world_card_of(world)};
    (void)snprintf(hello.version, sizeof hello.version, "weft %s", WEFT_VERSION);
    return hello;
}

/* Drops a receive that nobody is going to match. */
static void drop(struct weft__mpi *mpi, void **request)
{
    if (*request == NULL) return;
    (void)mpi->Cancel(request);
    (void)wait_until(mpi, request, weft__now_ns() + FAREWELL_NS);
}

static weft_status send_hello(struct weft__mpi *mpi, const struct hello *hello, int to,
                              uint64_t deadline_ns, weft_error *err)
{
    struct letter *letter = &mpi->sent[to];
    if (letter->request == NULL || wait_until(mpi, &letter->request, deadline_ns)) {
        letter->hello = *hello;
        if (mpi->Isend(&letter->hello, (int)sizeof letter->hello, mpi->bytes, to, OPENING,
                       mpi->world, &letter->request) != 0)
            letter->request = NULL;
        else if (wait_until(mpi, &letter->request, deadline_ns))
            return WEFT_OK;
    }
    return weft__fail(err, WEFT_IO, "opening the communicator: MPI cannot send to rank %d", to);
}

/* Goes on with a receive that an earlier attempt could not drop. */
static weft_status expect_hello(struct weft__mpi *mpi, int from, weft_error *err)
{
    struct letter *letter = &mpi->received[from];
    if (letter->request != NULL || mpi->Irecv(&letter->hello, (int)sizeof letter->hello, mpi->bytes,
                                              from, OPENING, mpi->world, &letter->request) == 0)
        return WEFT_OK;
    letter->request = NULL;
    return weft__fail(err, WEFT_IO, "opening the communicator: MPI_Irecv failed");
}

static weft_status welcome_all(weft_world *world, uint64_t deadline_ns, int *tag, weft_error *err)
{
    struct weft__mpi *mpi = world->mpi;
    struct hello mine = hello_of(world);
    const uint32_t all = (1u << world->options.size) - 1;
    uint32_t joined = 1;
    uint64_t pause = NAP_MIN_NS;
    weft_status status = WEFT_OK;
    for (int r = 1; r < world->options.size && status == WEFT_OK; r++)
        status = expect_hello(mpi, r, err);
    while (joined != all && status == WEFT_OK) {
        for (int r = 1; r < world->options.size; r++)
            if ((joined >> r & 1) == 0 && done(mpi, &mpi->received[r].request)) joined |= 1u << r;
        if (joined != all && weft__now_ns() >= deadline_ns)
            status =
                weft__fail_missing(0, joined, world->options.size, world->options.timeout_ms, err);
        if (joined != all) nap(&pause);
    }
    mine.session = *tag = 1 + mpi->opened++ % TAGS;
    for (int r = 1; r < world->options.size && status == WEFT_OK; r++) {
        const struct hello *theirs = &mpi->received[r].hello;
        if (memcmp(theirs->version, mine.version, sizeof mine.version) != 0)
            status = weft__fail(err, WEFT_INVALID, "rank %d runs another version than rank 0", r);
        mine.nonce = theirs->nonce;
        if (status == WEFT_OK) status = send_hello(mpi, &mine, r, deadline_ns, err);
    }
    for (int r = 1; r < world->options.size; r++) drop(mpi, &mpi->received[r].request);
    return status;
}

static weft_status ask_rank_0(weft_world *world, int rank, uint64_t deadline_ns, int *tag,
                              weft_error *err)
{
    struct weft__mpi *mpi = world->mpi;
    const weft_world_options *o = &world->options;
    struct letter *answer = &mpi->received[0];
    const struct hello mine = hello_of(world), *theirs = &answer->hello;
    WEFT__TRY(send_hello(mpi, &mine, 0, deadline_ns, err));
    do {
        WEFT__TRY(expect_hello(mpi, 0, err));
        if (!wait_until(mpi, &answer->request, deadline_ns)) {
            drop(mpi, &answer->request);
            return weft__fail(err, WEFT_TIMEOUT,
                              "rank %d: opening the communicator: not all of %d ranks opened "
                              "within %u ms",
                              rank, o->size, o->timeout_ms);
        }
    } while (theirs->nonce != mine.nonce);
    *tag = theirs->session;
    weft__world_adopt(world, &theirs->world);
    return WEFT_OK;
}

static void wire_free(struct mpi_wire *w)
{
    for (int r = 0; r < WEFT__MAX_RANKS; r++) {
        drop(w->mpi, &w->inbox[r].request);
        if (w->inbox[r].request == NULL) free(w->inbox[r].data); /* else MPI may still write */
    }
    for (int i = 0; i < SLOTS; i++)
        if (w->slot[i].request == NULL || done(w->mpi, &w->slot[i].request)) free(w->slot[i].data);
    free(w);
}

weft_status weft__mpi_open(struct weft__session *session, int rank, weft_error *err)
{
    weft_world *world = session->world;
    WEFT__TRY(start(world, rank, err));
    world->mpi->failed = true;
    struct mpi_wire *w = calloc(1, sizeof *w);
    if (w == NULL) return weft__fail_oom(err, sizeof *w, "an MPI session");
    *w = (struct mpi_wire){
        .wire = {.pump = pump, .publish = publish, .close = close_channel, .sleep = wait_sleep},
        .session = session,
        .mpi = world->mpi,
        .rank = rank};
    uint64_t deadline = weft__now_ns() + (uint64_t)world->options.timeout_ms * 1000000;
    weft_status status = rank == 0 ? welcome_all(world, deadline, &w->tag, err)
                                   : ask_rank_0(world, rank, deadline, &w->tag, err);
    w->capacity = sizeof(struct note) + world->options.message_bytes;
    if (status == WEFT_OK && w->capacity > INT_MAX)
        status = weft__fail(err, WEFT_TOO_LONG, "message_bytes %zu: too long for MPI",
                            world->options.message_bytes);
    if (status == WEFT_OK) status = weft__session_map(session, err);
    for (int r = 0; r < world->options.size && status == WEFT_OK; r++) {
        if (r == rank) continue;
        w->inbox[r].data = malloc(w->capacity);
        if (w->inbox[r].data == NULL)
            status = weft__fail_oom(err, w->capacity, "messages");
        else if (!listen_to(w, r))
            status = weft__fail(err, WEFT_IO, "opening the communicator: MPI_Irecv failed");
    }
    if (status == WEFT_OK)
        session->wire = &w->wire;
    else
        wire_free(w);
    return status;
}

/* Others may still need what was published: it leaves before this rank does. */
void weft__mpi_close(struct weft__wire *wire)
{
    struct mpi_wire *w = (struct mpi_wire *)wire;
    uint64_t deadline = weft__now_ns() + FAREWELL_NS;
    pump(wire);
    close_channel(wire, 0);
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &w->slot[i];
        if (slot->request != NULL) (void)wait_until(w->mpi, &slot->request, deadline);
    }
    w->mpi->failed = atomic_load_explicit(&weft__fault_of(w->session)->state,
                                          memory_order_relaxed) != WEFT__COMM_HEALTHY;
    wire_free(w);
}
