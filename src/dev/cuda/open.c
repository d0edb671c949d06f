/* open.c: opens and closes a GPU rank's communicator.
 *
 * A rank publishes its addresses in an offer in its staging in host memory, where the other ranks
 * read them; when they are processes, share.c maps each one's memory in all. Then each path is
 * tried with known data, and all use the paths that work for all. Nobody launches anything before
 * all are through with what can synchronise a device: memory, contexts, loading. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm.h"

enum offer_state { NOTHING, OPENED, PUBLISHED, LOADED, CONNECTED, CHECKED, AGREED, FAILED };
enum { SLICE_NS = 50000000 };

struct offer {
    _Atomic uint32_t state; /* enum offer_state; release after the rest */
    int32_t ordinal;
    uint8_t uuid[16]; /* of the device */
    uint32_t usable;  /* mask of paths: from CONNECTED on to be tried, from CHECKED on that work */
    weft_error nccl;  /* from LOADED on: why it is not there */
    uint8_t nccl_id[WEFT__NCCL_ID_BYTES]; /* of member 0 */
    /* for threads of the same process: */
    CUdevice device;
    CUcontext context;
    uint64_t device_base, host_base;
};

static struct offer *offer_of(const struct weft__comm_link *link, int member)
{
    /* Where no host message is ever staged: sums are made on the device. */
    return (struct offer *)(void *)(link->segment[member] + link->staging[member] +
                                    3 * link->message_bytes);
}

static void announce(const struct weft__comm_link *link, enum offer_state state)
{
    struct offer *mine = offer_of(link, link->rank);
    atomic_store_explicit(&mine->state, state, memory_order_release);
    weft__wake_all(&mine->state);
}

/* Until a member has come as far as `state`, or failed. */
static weft_status await(const struct weft__comm_link *link, int member, enum offer_state state,
                         uint64_t deadline, enum offer_state *out, weft_error *err)
{
    struct offer *offer = offer_of(link, member);
    uint32_t seen = atomic_load_explicit(&offer->state, memory_order_acquire);
    while (seen < state && weft__now_ns() < deadline) {
        uint64_t slice = weft__now_ns() + SLICE_NS;
        seen = weft__wait_change(&offer->state, seen, slice < deadline ? slice : deadline);
        int dead = seen < state ? weft__comm_ended(link) : -1;
        if (dead >= 0)
            return weft__fail(err, WEFT_PEER,
                              "opening the GPU communicator: the process of rank %d has ended",
                              dead);
    }
    *out = (enum offer_state)seen;
    if (seen >= state) return WEFT_OK;
    return weft__fail(err, WEFT_TIMEOUT,
                      "rank %d: opening the GPU communicator: rank %d is not ready after %llu ms",
                      link->world_rank[link->rank], link->world_rank[member],
                      (unsigned long long)(link->timeout_ns / 1000000));
}

static weft_status await_all(const struct weft__comm_link *link, enum offer_state state,
                             weft_error *err)
{
    uint64_t deadline = weft__now_ns() + link->timeout_ns;
    for (int member = 0; member < link->size; member++) {
        enum offer_state seen;
        WEFT__TRY(await(link, member, state, deadline, &seen, err));
        if (seen == FAILED)
            return weft__fail(err, WEFT_PEER, "rank %d could not open its GPU communicator",
                              link->world_rank[member]);
    }
    return WEFT_OK;
}

/* ---- what a rank owns ---- */

static struct weft__comm_rank *control_of(const struct weft__comm_link *link)
{
    return link->world[link->world_rank[link->rank]];
}

static CUresult make_streams(struct weft__cuda_rank *rank)
{
    const struct weft__cuda_driver *driver = &rank->device.driver;
    CUevent *const events[] = {rank->sent[0], rank->sent[1], rank->fetched, rank->summed};
    const unsigned how = CU_STREAM_NON_BLOCKING;
    CUresult result = driver->stream_create(&rank->stream, how);
    if (result == CUDA_SUCCESS) result = driver->stream_create(&rank->out, how);
    if (result == CUDA_SUCCESS) result = driver->stream_create(&rank->in, how);
    for (size_t i = 0; i < WEFT__COUNT(events); i++)
        for (int s = 0; s < WEFT__CUDA_SECTIONS_MAX && result == CUDA_SUCCESS; s++)
            result = driver->event_create(&events[i][s], CU_EVENT_DISABLE_TIMING);
    CUevent *const others[] = {&rank->fork, &rank->pace[0], &rank->pace[1]};
    for (size_t i = 0; i < WEFT__COUNT(others) && result == CUDA_SUCCESS; i++)
        result = driver->event_create(others[i], CU_EVENT_DISABLE_TIMING);
    return result;
}

static void drop_streams(struct weft__cuda_rank *rank)
{
    const struct weft__cuda_driver *driver = &rank->device.driver;
    const CUevent *const events[] = {rank->sent[0], rank->sent[1], rank->fetched, rank->summed};
    if (rank->stream != NULL) (void)driver->stream_destroy(rank->stream);
    if (rank->out != NULL) (void)driver->stream_destroy(rank->out);
    if (rank->in != NULL) (void)driver->stream_destroy(rank->in);
    for (size_t i = 0; i < WEFT__COUNT(events); i++)
        for (int s = 0; s < WEFT__CUDA_SECTIONS_MAX; s++)
            if (events[i][s] != NULL) (void)driver->event_destroy(events[i][s]);
    const CUevent others[] = {rank->fork, rank->pace[0], rank->pace[1]};
    for (size_t i = 0; i < WEFT__COUNT(others); i++)
        if (others[i] != NULL) (void)driver->event_destroy(others[i]);
}

/* The device, with one copy of the kernels for all threads that are ranks on it: chips fetch
 * instructions of the same address once for several processors. */
static weft_status device_open(const struct weft__comm_link *link, struct weft__cuda_device *out,
                               weft_error *err)
{
    const struct weft__cuda_device *lender = NULL;
    if (link->meeting == NULL && link->lender != link->rank) {
        enum offer_state seen;
        uint64_t deadline = weft__now_ns() + link->timeout_ns;
        WEFT__TRY(await(link, link->lender, OPENED, deadline, &seen, err));
        const struct weft__cuda_rank *rank = link->world[link->lender]->device;
        if (seen != FAILED) lender = &rank->device; /* else this rank finds out why itself */
    }
    return weft__cuda_open(link->device, lender, out, err);
}

static weft_status rank_open(const struct weft__comm_link *link, weft_error *err)
{
    struct weft__cuda_rank *rank = calloc(1, sizeof *rank);
    if (rank == NULL) return weft__fail_oom(err, sizeof *rank, "a GPU rank");
    weft_status status = device_open(link, &rank->device, err);
    if (status != WEFT_OK) {
        free(rank);
        return status;
    }
    rank->processes = link->meeting != NULL;
    control_of(link)->device = rank; /* from here on release cleans up */
    announce(link, OPENED);
    const struct weft__cuda_driver *driver = &rank->device.driver;
    CUcontext popped;
    (void)driver->context_push(rank->device.context);
    CUresult result = make_streams(rank);
    for (int r = 0; r < link->world_size && result == CUDA_SUCCESS; r++) {
        /* Pinned for all of a process: threads do it each for their own. */
        void *control = link->world[r];
        if (link->meeting == NULL && control != control_of(link)) continue;
        size_t bytes = link->staging[link->rank]; /* control block and fault come before */
        result = driver->host_register(control, bytes,
                                       CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
        if (result == CUDA_SUCCESS) rank->registered[r] = control;
    }
    (void)driver->context_pop(&popped);
    if (result == CUDA_SUCCESS) return WEFT_OK;
    return weft__cuda_fail(driver, result, "making a stream, pinning memory", err);
}

static void rank_close(struct weft__cuda_rank *rank)
{
    const struct weft__cuda_driver *driver = &rank->device.driver;
    CUcontext popped;
    (void)driver->context_push(rank->device.context);
    weft__nccl_close(rank->nccl);
    drop_streams(rank);
    for (size_t c = 0; c < WEFT__COUNT(rank->memory); c++) {
        struct weft__cuda_memory *memory = &rank->memory[c];
        if (rank->processes) weft__cuda_unshare(driver, memory);
        if (memory->device != 0) (void)driver->mem_free(memory->device);
        if (memory->host != NULL) (void)driver->host_free(memory->host);
    }
    for (int r = 0; r < WEFT_COMM_RANKS_MAX; r++)
        if (rank->registered[r] != NULL) (void)driver->host_unregister(rank->registered[r]);
    (void)driver->context_pop(&popped);
    weft__cuda_close(&rank->device);
    free(rank);
}

static void release(struct weft__comm_rank *control)
{
    if (control->device != NULL) rank_close(control->device);
}

/* ---- slots ---- */

/* Device memory of one rank: a slot for each source, the words of the communicator, a slot that
 * engines fill for each source, a message of sums; of the world, a heap. Pinned memory: a slot, the
 * engines' slot. */
enum { EPOCH_AT = 0, DONE_AT = 128, WATCH_AT = 256, WORDS_BYTES = 512 };

static void lay_out(struct weft__comm_kernels *k, struct weft__cuda_link *link)
{
    uint64_t flags = 4 * 2 * WEFT__CUDA_ROWS_MAX * WEFT__CUDA_CLUSTER_MAX;
    k->packed_bytes = WEFT__CUDA_PACKED_BYTES;
    k->plain_bytes = 2 * weft__round_up(k->link.message_bytes, 4096); /* inputs, sums */
    link->packed_at = weft__round_up(WEFT__CUDA_FLAG_AT + flags, 4096);
    link->plain_at = link->packed_at + k->packed_bytes;
    link->half_bytes = link->plain_at + k->plain_bytes;
}

/* Exchange buffers in device memory and in pinned host memory. */
static weft_status take_memory(const struct weft__comm_kernels *k, struct weft__cuda_memory *memory,
                               weft_error *err)
{
    const struct weft__cuda_driver *driver = &k->rank->device.driver;
    if (k->link.meeting != NULL) return weft__cuda_share(&k->link, k->rank, memory, err);
    WEFT__CUDA_TRY(driver, mem_alloc(&memory->device, memory->device_bytes),
                   "allocating exchange buffers", err);
    WEFT__CUDA_TRY(driver,
                   host_alloc(&memory->host, memory->host_bytes,
                              CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
                   "allocating pinned host memory", err);
    return WEFT_OK;
}

static weft_status allocate(struct weft__comm_kernels *k, const struct weft__cuda_link *layout,
                            weft_error *err)
{
    const struct weft__comm_link *link = &k->link;
    struct weft__cuda_rank *rank = k->rank;
    const struct weft__cuda_driver *driver = &rank->device.driver;
    uint64_t slot = 2 * layout->half_bytes, words = (uint64_t)link->size * slot;
    uint64_t engine = WEFT__CUDA_HEAD_BYTES + link->message_bytes;
    struct weft__cuda_memory *memory = &rank->memory[link->channel];
    memory->device_bytes =
        words + WORDS_BYTES + (uint64_t)link->size * engine + link->message_bytes;
    memory->host_bytes = slot + engine + link->message_bytes;
    if (link->channel == 0) {
        rank->heap_at = memory->device_bytes = weft__round_up(memory->device_bytes, 256);
        memory->device_bytes += link->heap_bytes;
    }
    WEFT__TRY(take_memory(k, memory, err));
    memset(memory->host, 0, memory->host_bytes);
    WEFT__CUDA_TRY(driver, set_u8(memory->device, 0, memory->device_bytes), "clearing memory", err);
    WEFT__CUDA_TRY(driver, to_device(memory->device + words + EPOCH_AT, &link->first_epoch, 4),
                   "storing the epoch", err);
    WEFT__CUDA_TRY(driver, context_sync(), "preparing memory", err);
    struct offer *mine = offer_of(link, link->rank);
    WEFT__CUDA_TRY(driver, device_uuid(mine->uuid, rank->device.device), "naming the device", err);
    mine->ordinal = rank->device.ordinal;
    mine->device = rank->device.device;
    mine->context = rank->device.context;
    mine->device_base = memory->device;
    mine->host_base = (uint64_t)(uintptr_t)memory->host;
    return WEFT_OK;
}

static bool same_device(const struct weft__comm_link *link, int a, int b)
{
    const uint8_t *uuid = offer_of(link, a)->uuid;
    return memcmp(uuid, offer_of(link, b)->uuid, sizeof offer_of(link, a)->uuid) == 0;
}

/* Ranks on the device that has most of them: all ranks shape their launches for it, alike. */
static int most_sharers(const struct weft__comm_link *link)
{
    int most = 0;
    for (int a = 0; a < link->size; a++) {
        int sharers = 0;
        for (int b = 0; b < link->size; b++) sharers += same_device(link, a, b);
        if (sharers > most) most = sharers;
    }
    return most;
}

/* Whether this device reaches the memory of all members. Between threads, peer access to other
 * devices is enabled for it. */
static bool connect_peers(const struct weft__comm_kernels *k)
{
    const struct weft__cuda_device *device = &k->rank->device;
    const struct weft__cuda_memory *memory = &k->rank->memory[k->link.channel];
    bool all = true;
    for (int member = 0; member < k->link.size; member++) {
        const struct offer *peer = offer_of(&k->link, member);
        if (k->link.meeting != NULL) all = all && memory->mapped_device[member] != 0;
        if (k->link.meeting != NULL || same_device(&k->link, k->link.rank, member)) continue;
        int can = 0;
        CUresult result = device->driver.device_can_access_peer(&can, device->device, peer->device);
        if (result == CUDA_SUCCESS && can) {
            result = device->driver.peer_enable(peer->context, 0);
            if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) result = CUDA_SUCCESS;
        }
        all = all && can && result == CUDA_SUCCESS;
    }
    return all;
}

/* The address under which this device reaches pinned host memory. */
static weft_status map_host(const struct weft__comm_kernels *k, const void *memory, uint64_t *out,
                            weft_error *err)
{
    void *writable;
    memcpy(&writable, &memory, sizeof memory);
    WEFT__CUDA_TRY(&k->rank->device.driver, host_address(out, writable, 0), "mapping host memory",
                   err);
    return WEFT_OK;
}

/* What lasting waits look at. */
static weft_status store_watch(const struct weft__comm_kernels *k, CUdeviceptr to, weft_error *err)
{
    const struct weft__comm_link *link = &k->link;
    struct weft__cuda_watch watch = {.budget_ns = link->timeout_ns,
                                     .channel = (uint32_t)link->channel};
    for (int m = 0; m < link->size; m++) {
        WEFT__TRY(map_host(k, link->world[link->world_rank[m]], &watch.control[m], err));
        watch.world_rank[m] = (uint8_t)link->world_rank[m];
    }
    WEFT__TRY(map_host(k, link->fault, &watch.fault, err));
    WEFT__TRY(map_host(k, (const void *)&link->world[0]->poison, &watch.poison, err));
    WEFT__CUDA_TRY(&k->rank->device.driver, to_device(to, &watch, sizeof watch),
                   "storing addresses", err);
    return WEFT_OK;
}

static void fill_engine(struct weft__comm_kernels *k, const struct weft__cuda_link *layout,
                        const uint64_t *base, const uint64_t *host)
{
    uint64_t slot = 2 * layout->half_bytes, ranks = (uint64_t)k->link.size;
    uint64_t at = ranks * slot + WORDS_BYTES, me = (uint64_t)k->link.rank;
    uint64_t bytes = WEFT__CUDA_HEAD_BYTES + k->link.message_bytes;
    for (uint64_t m = 0; m < ranks; m++) {
        k->engine.slot[m] = base[me] + at + m * bytes;
        k->engine.there[m] = base[m] + at + me * bytes;
        k->engine.sums[m] = base[m] + at + ranks * bytes;
        k->engine.host[m] = host[m] + slot;
    }
}

static weft_status fill_paths(struct weft__comm_kernels *k, struct weft__cuda_link *common,
                              weft_error *err)
{
    const struct weft__comm_link *link = &k->link;
    uint64_t slot = 2 * common->half_bytes;
    uint64_t host[WEFT_COMM_RANKS_MAX] = {0}, base[WEFT_COMM_RANKS_MAX] = {0};
    uint64_t me = (uint64_t)link->rank;
    const struct weft__cuda_memory *memory = &k->rank->memory[link->channel];
    for (int m = 0; m < link->size; m++) {
        const void *there = (const void *)(uintptr_t)offer_of(link, m)->host_base;
        base[m] = link->meeting ? memory->mapped_device[m] : offer_of(link, m)->device_base;
        WEFT__TRY(map_host(k, link->meeting ? memory->mapped_host[m] : there, &host[m], err));
    }
    if (link->channel == 0) memcpy(k->rank->base, base, sizeof base);
    uint64_t words = base[me] + (uint64_t)link->size * slot;
    WEFT__TRY(store_watch(k, words + WATCH_AT, err));
    common->epoch = words + EPOCH_AT;
    common->done = words + DONE_AT;
    common->watch = words + WATCH_AT;
    common->ranks = link->size;
    common->rank = link->rank;
    struct weft__cuda_link *push = &k->paths[WEFT_PATH_PUSH], *pull = &k->paths[WEFT_PATH_PULL],
                           *staged = &k->paths[WEFT_PATH_HOST];
    *push = *pull = *staged = *common;
    for (uint64_t m = 0; m < (uint64_t)link->size; m++) {
        push->send[m] = base[m] + me * slot;
        push->recv[m] = base[me] + m * slot;
        pull->recv[m] = base[m] + m * slot;
        staged->recv[m] = m == me ? base[me] + me * slot : host[m];
    }
    bool alone = link->size == 1;
    push->sends = alone ? 0 : link->size;
    push->push = 1;
    pull->sends = alone ? 0 : 1;
    pull->send[0] = base[me] + me * slot;
    staged->sends = alone ? 0 : 2;
    staged->far = 1;
    staged->send[0] = host[me];
    staged->send[1] = base[me] + me * slot;
    k->paths[WEFT_PATH_COPY] = *push;
    k->paths[WEFT_PATH_COPY_HOST] = k->paths[WEFT_PATH_NCCL] = *staged;
    fill_engine(k, common, base, host);
    return WEFT_OK;
}

/* ---- trying the paths ---- */

/* Gathers known data over one path and looks at what arrived. */
static weft_status check_path(struct weft__comm_kernels *k, weft_path path, CUdeviceptr scratch,
                              bool *works, weft_error *err)
{
    enum { BYTES = 4096 };
    const struct weft__cuda_driver *driver = &k->rank->device.driver;
    uint8_t mine[BYTES], seen[BYTES];
    for (size_t i = 0; i < BYTES; i++)
        mine[i] = (uint8_t)(i * 31 + (size_t)k->link.rank * 7 + path);
    WEFT__CUDA_TRY(driver, to_device(scratch, mine, BYTES), "storing a pattern", err);
    /* That may return before the data is there, and the rank's stream would not wait for it. */
    WEFT__CUDA_TRY(driver, stream_sync(NULL), "storing a pattern", err);
    struct weft__comm_move_args args = {
        .post = {.op = WEFT__ALL_GATHER, .shape = {1, BYTES * k->link.size}},
        .bytes = BYTES,
        .rows = 1,
        .out_row_bytes = (uint64_t)BYTES * (uint64_t)k->link.size,
        .in = (const uint8_t *)(uintptr_t)scratch,
        .out = (uint8_t *)(uintptr_t)(scratch + BYTES)};
    for (int m = 0; m < k->link.size; m++) args.row_bytes[m] = BYTES;
    k->tuning.path = path;
    weft__cuda_move(k, &args);
    weft__cuda_sync(k);
    if (atomic_load_explicit(&k->link.fault->state, memory_order_acquire) != WEFT__COMM_HEALTHY)
        return weft__fail(err, WEFT_TIMEOUT,
                          "rank %d: a first exchange between the GPU ranks did not end: their "
                          "kernels do not run at the same time; ranks that share a device need "
                          "CUDA_DEVICE_MAX_CONNECTIONS=32 and nothing else at work there",
                          k->link.world_rank[k->link.rank]);
    if (k->link.spoilt == path)
        WEFT__CUDA_TRY(driver, set_u8(scratch + BYTES, 0xff, 1), "spoiling a pattern", err);
    *works = true;
    for (int m = 0; m < k->link.size; m++) {
        WEFT__CUDA_TRY(driver, to_host(seen, scratch + (CUdeviceptr)(m + 1) * BYTES, BYTES),
                       "reading a pattern", err);
        for (size_t i = 0; i < BYTES; i++)
            *works = *works && seen[i] == (uint8_t)(i * 31 + (size_t)m * 7 + path);
    }
    return WEFT_OK;
}

static const char *path_name(weft_path path)
{
    static const char *const names[] = {
#define X(name, text) text,
        WEFT_PATHS(X)
#undef X
    };
    return names[path];
}

/* The best path of a mask. Stores to a peer need no round trip; among ranks of one device, loads
 * cost no more and every word is stored once. */
static weft_path best_of(const struct weft__comm_kernels *k, uint32_t mask)
{
    bool same = k->rank->sharers == k->link.world_size;
    const weft_path order[] = {same ? WEFT_PATH_PULL : WEFT_PATH_PUSH,
                               same ? WEFT_PATH_PUSH : WEFT_PATH_PULL, WEFT_PATH_HOST};
    for (size_t i = 0; i < WEFT__COUNT(order); i++)
        if (mask >> order[i] & 1) return order[i];
    return WEFT_PATH_AUTO;
}

static weft_status fail_path(const struct weft__comm_kernels *k, weft_path path, int without,
                             weft_error *err)
{
    for (int m = 0; m < k->link.size && path == WEFT_PATH_NCCL; m++)
        if (offer_of(&k->link, m)->nccl.status != WEFT_OK) without = m; /* others miss only it */
    const struct offer *offer = offer_of(&k->link, without);
    if (path == WEFT_PATH_AUTO)
        return weft__fail(err, WEFT_DEVICE,
                          "no path between the GPU ranks works: known data did not arrive at rank "
                          "%d on CUDA device %d, not even through pinned host memory; the kernel "
                          "log may say why",
                          k->link.world_rank[without], offer->ordinal);
    const char *why = "no peer access, or known data did not arrive; use \"host\" or \"auto\"";
    if (path == WEFT_PATH_NCCL && offer->nccl.status != WEFT_OK) why = offer->nccl.text;
    return weft__fail(err, WEFT_UNSUPPORTED,
                      "the path \"%s\" was asked for, but does not work for rank %d on CUDA device "
                      "%d: %.320s",
                      path_name(path), k->link.world_rank[without], offer->ordinal, why);
}

/* The paths that work for every member; the best, or the one asked for, becomes AUTO. */
static weft_status choose_path(struct weft__comm_kernels *k, uint32_t mine, weft_error *err)
{
    offer_of(&k->link, k->link.rank)->usable = mine;
    announce(&k->link, CHECKED);
    WEFT__TRY(await_all(&k->link, CHECKED, err));
    k->usable = mine;
    int without = k->link.rank;
    weft_path wanted = k->link.path, last = wanted != WEFT_PATH_AUTO ? wanted : WEFT_PATH_HOST;
    for (int m = 0; m < k->link.size; m++) {
        k->usable &= offer_of(&k->link, m)->usable;
        if ((offer_of(&k->link, m)->usable >> last & 1) == 0) without = m;
    }
    k->tuning.path = WEFT_PATH_AUTO;
    weft_path best = wanted == WEFT_PATH_AUTO ? best_of(k, k->usable) : wanted;
    if (k->usable >> best & 1) {
        k->rank->usable = k->usable;
        k->rank->best = best;
        return WEFT_OK;
    }
    weft_error late; /* nobody fails before all know why */
    announce(&k->link, AGREED);
    (void)await_all(&k->link, AGREED, &late);
    return fail_path(k, wanted, without, err);
}

/* Moves something between all ranks once, with a bound. */
static weft_status try_nccl(const struct weft__comm_kernels *k, weft_error *err)
{
    const struct weft__cuda_driver *driver = &k->rank->device.driver;
    struct weft__nccl_part parts[WEFT_COMM_RANKS_MAX];
    uint64_t from = k->engine.sums[k->link.rank], deadline = weft__now_ns() + k->link.timeout_ns;
    int count = 0;
    for (int m = 0; m < k->link.size; m++)
        if (m != k->link.rank)
            parts[count++] = (struct weft__nccl_part){
                m, from, k->engine.slot[m] + WEFT__CUDA_HEAD_BYTES, 4096, 4096};
    WEFT__TRY(weft__nccl_exchange(k->rank->nccl, parts, count, k->rank->stream, err));
    CUresult result = driver->stream_query(k->rank->stream);
    while (result == CUDA_ERROR_NOT_READY && weft__now_ns() < deadline) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        result = driver->stream_query(k->rank->stream);
    }
    if (result == CUDA_SUCCESS) return WEFT_OK;
    return weft__cuda_fail(driver, result, "a first exchange by NCCL", err);
}

/* NCCL where all ranks find it and have a device each; offer.nccl says why not. */
static weft_status connect_nccl(struct weft__comm_kernels *k, weft_error *err)
{
    struct offer *mine = offer_of(&k->link, k->link.rank);
    weft_error *why = &mine->nccl;
    bool wanted = k->link.path == WEFT_PATH_AUTO || k->link.path == WEFT_PATH_NCCL;
    if (!wanted || k->link.size == 1)
        (void)weft__fail(why, WEFT_UNSUPPORTED, "NCCL is not wanted");
    else if (k->rank->sharers > 1)
        (void)weft__fail(why, WEFT_UNSUPPORTED, "NCCL wants a CUDA device for each rank");
    else
        k->rank->nccl = weft__nccl_load(k->link.rank == 0, mine->nccl_id, why);
    announce(&k->link, LOADED);
    WEFT__TRY(await_all(&k->link, LOADED, err));
    bool all = true;
    for (int m = 0; m < k->link.size; m++)
        all = all && offer_of(&k->link, m)->nccl.status == WEFT_OK;
    weft_status status =
        all ? weft__nccl_open(k->rank->nccl, &k->link, offer_of(&k->link, 0)->nccl_id, why)
            : WEFT_UNSUPPORTED;
    if (status == WEFT_OK) status = try_nccl(k, why);
    if (status == WEFT_OK) return WEFT_OK;
    weft__nccl_close(k->rank->nccl);
    k->rank->nccl = NULL;
    return WEFT_OK;
}

static weft_status try_paths(struct weft__comm_kernels *k, bool peers, weft_error *err)
{
    if (k->link.channel != 0) { /* a group's devices are the world's */
        k->usable = k->rank->usable;
        return WEFT_OK;
    }
    WEFT__TRY(connect_nccl(k, err));
    const struct weft__cuda_driver *driver = &k->rank->device.driver;
    CUdeviceptr scratch;
    WEFT__CUDA_TRY(driver, mem_alloc(&scratch, 4096 * (WEFT_COMM_RANKS_MAX + 1)),
                   "allocating for a first exchange", err);
    /* With a peer missing, none may launch over it: all look at all. */
    struct offer *mine = offer_of(&k->link, k->link.rank);
    uint32_t can = 1u << WEFT_PATH_HOST | 1u << WEFT_PATH_COPY_HOST, mask = 0;
    if (peers) can |= 1u << WEFT_PATH_PUSH | 1u << WEFT_PATH_PULL | 1u << WEFT_PATH_COPY;
    if (k->rank->nccl != NULL || k->link.size == 1) can |= 1u << WEFT_PATH_NCCL;
    mine->usable = can;
    announce(&k->link, CONNECTED);
    weft_status status = await_all(&k->link, CONNECTED, err);
    for (int m = 0; m < k->link.size; m++) can &= offer_of(&k->link, m)->usable;
    for (weft_path path = WEFT_PATH_PUSH; path <= WEFT_PATH_NCCL && status == WEFT_OK; path++) {
        bool works = false;
        if (can >> path & 1) status = check_path(k, path, scratch, &works, err);
        mask |= (uint32_t)works << path;
    }
    (void)driver->mem_free(scratch); /* before others may launch: it waits for the device */
    return status == WEFT_OK ? choose_path(k, mask, err) : status;
}

/* ---- open and close ---- */

static weft_status find_kernels(struct weft__comm_kernels *k, weft_error *err)
{
    static const char *const names[] = {
#define X(type, dtype, hold, wire) "weft__reduce_" #type "_" #hold "_" #wire,
        WEFT__CUDA_REDUCES(X)
#undef X
    };
    const struct weft__cuda_device *device = &k->rank->device;
    for (size_t i = 0; i < WEFT__COUNT(names); i++) {
        WEFT__TRY(weft__cuda_kernel(device, names[i], &k->reduce[i], err));
        WEFT__CUDA_TRY(&device->driver,
                       function_set(k->reduce[i], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                    device->shared_max - WEFT__CUDA_STATIC_SHARED),
                       "allowing shared memory", err);
    }
    WEFT__TRY(weft__cuda_kernel(device, "weft__step", &k->step, err));
    return weft__cuda_kernel(device, "weft__move", &k->move, err);
}

static weft_status start(struct weft__comm_kernels *k, weft_error *err)
{
    struct weft__cuda_link common = {0};
    WEFT__TRY(find_kernels(k, err));
    lay_out(k, &common);
    WEFT__TRY(allocate(k, &common, err));
    announce(&k->link, PUBLISHED);
    WEFT__TRY(await_all(&k->link, PUBLISHED, err));
    if (k->link.channel == 0) k->rank->sharers = most_sharers(&k->link);
    bool peers = connect_peers(k);
    WEFT__TRY(fill_paths(k, &common, err));
    WEFT__TRY(weft__cuda_check_fit(k, err));
    return try_paths(k, peers, err);
}

static weft_status open_kernels(const struct weft__comm_link *link, bool portable,
                                struct weft__comm_kernels **out, weft_error *err)
{
    (void)portable;
    struct weft__comm_kernels *k = calloc(1, sizeof *k);
    if (k == NULL) return weft__fail_oom(err, sizeof *k, "a GPU communicator");
    k->link = *link;
    weft_status status = WEFT_OK;
    if (link->channel == 0) status = rank_open(link, err);
    k->rank = control_of(link)->device;
    if (status == WEFT_OK) {
        const struct weft__cuda_driver *driver = &k->rank->device.driver;
        CUcontext popped;
        (void)driver->context_push(k->rank->device.context);
        status = start(k, err);
        (void)driver->context_pop(&popped);
    }
    if (status == WEFT_OK) {
        *out = k;
        return WEFT_OK;
    }
    announce(link, FAILED);
    free(k);
    return status;
}

/* What was enqueued completes, or fails within the time-out; then peers may be told that no more
 * comes. */
static void close_kernels(struct weft__comm_kernels *k)
{
    weft__cuda_sync(k);
    free(k);
}

void weft__cuda_tune(struct weft__comm_kernels *k, const struct weft__cuda_tuning *tuning)
{
    k->tuning = *tuning;
}

static void *stream_of(const struct weft__comm_kernels *k) { return k->rank->stream; }

static uint8_t *heap_of(const struct weft__comm_kernels *k)
{
    int me = k->link.world_rank[k->link.rank];
    return (uint8_t *)(uintptr_t)(k->rank->base[me] + k->rank->heap_at);
}

const struct weft__dev_comm weft__cuda_comm = {
    .name = "cuda",
    .release = release,
    .open = open_kernels,
    .close = close_kernels,
    .reduce = weft__cuda_reduce,
    .move = weft__cuda_move,
    .heap = heap_of,
    .stream = stream_of,
    .sync = weft__cuda_sync,
    .trial = &weft__cuda_trials,
    .two_shot_ranks = 3, /* with two, both ways move as much */
    .two_shot_bytes = 512 * 1024,
};
