/* world.c: worlds, communicators and groups: opening and closing; memory. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

enum {
    TIMEOUT_MS = 30000,
    MESSAGE_BYTES = 1 << 20,
    HEAP_BYTES = 64 << 20,
    HEAP_ALIGN = 64,
};

static const char meeting_prefix[] = "unix:";

static const size_t bytes_max = (size_t)1 << 40; /* of a message, of a heap: keeps sums in range */

/* ---- world ---- */

static bool is_meeting(const weft_world_options *options)
{
    return options->rendezvous != NULL &&
           strncmp(options->rendezvous, meeting_prefix, sizeof meeting_prefix - 1) == 0;
}

static bool is_across(const weft_world_options *options)
{
    return options->rendezvous != NULL && strcmp(options->rendezvous, "mpi") == 0;
}

static weft_status fill_options(weft_world_options *options, weft_error *err)
{
    if (options->size < 1 || options->size > WEFT__MAX_RANKS)
        return weft__fail(err, WEFT_INVALID, "a world of %d ranks: size must be 1 to %d",
                          options->size, WEFT__MAX_RANKS);
    if ((unsigned)options->algorithm > WEFT_ALGORITHM_TWO_SHOT)
        return weft__fail(err, WEFT_INVALID, "unknown algorithm %d", (int)options->algorithm);
    if ((unsigned)options->path > WEFT_PATH_NCCL)
        return weft__fail(err, WEFT_INVALID, "unknown path %d", (int)options->path);
    if (options->path != WEFT_PATH_AUTO && options->cuda_devices == NULL)
        return weft__fail(err, WEFT_INVALID, "a path is given, but the ranks are on CPUs");
    if (options->rendezvous != NULL && !is_meeting(options) && !is_across(options))
        return weft__fail(err, WEFT_INVALID, "rendezvous \"%.60s\": must be unix:NAME or mpi",
                          options->rendezvous);
    if (is_across(options) && options->cuda_devices != NULL)
        return weft__fail(err, WEFT_UNSUPPORTED, "MPI serves ranks on CPUs only");
    if (options->timeout_ms == 0) options->timeout_ms = TIMEOUT_MS;
    if (options->message_bytes == 0) options->message_bytes = MESSAGE_BYTES;
    if (options->heap_bytes == 0) options->heap_bytes = HEAP_BYTES;
    if (options->message_bytes < WEFT_COMM_MESSAGE_MIN || options->message_bytes > bytes_max)
        return weft__fail(err, WEFT_INVALID, "message_bytes %zu: must be %d to %zu",
                          options->message_bytes, WEFT_COMM_MESSAGE_MIN, bytes_max);
    if (options->heap_bytes > bytes_max)
        return weft__fail(err, WEFT_INVALID, "heap_bytes %zu: must be at most %zu",
                          options->heap_bytes, bytes_max);
    options->message_bytes = weft__round_up(options->message_bytes, 4096);
    options->heap_bytes = weft__round_up(options->heap_bytes, 4096);
    return WEFT_OK;
}

weft_status weft__world_create(const weft_world_options *options, const struct weft__tuning *tuning,
                               weft_world **out, weft_error *err)
{
    weft_world_options filled = *options;
    WEFT__TRY(fill_options(&filled, err));
    weft_world *world = calloc(1, sizeof *world);
    if (world == NULL) return weft__fail_oom(err, sizeof *world, "a world");
    world->across = is_across(&filled);
    if (is_meeting(&filled)) {
        world->meeting_name = strdup(filled.rendezvous + sizeof meeting_prefix - 1);
        if (world->meeting_name == NULL) {
            free(world);
            return weft__fail_oom(err, strlen(filled.rendezvous), "a name");
        }
    }
    world->options = filled;
    world->tuning = *tuning;
    if (world->tuning.first_epoch == 0) world->tuning.first_epoch = 1;
    world->dev = filled.cuda_devices != NULL ? &weft__cuda_comm : &weft__cpu_comm;
    for (int r = 0; r < filled.size && filled.cuda_devices != NULL; r++)
        world->device[r] = filled.cuda_devices[r];
    world->references = 1;
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&world->mutex, NULL);
    (void)pthread_cond_init(&world->changed, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    *out = world;
    return WEFT_OK;
}

weft_status weft_world_create(const weft_world_options *options, weft_world **out, weft_error *err)
{
    if (options == NULL)
        return weft__fail(err, WEFT_INVALID,
                          "options with the size of the world are wanted, not NULL");
    return weft__world_create(options, &(struct weft__tuning){0}, out, err);
}

void weft__world_put(weft_world *world)
{
    (void)pthread_mutex_lock(&world->mutex);
    bool last = --world->references == 0;
    (void)pthread_mutex_unlock(&world->mutex);
    if (!last) return;
    (void)pthread_cond_destroy(&world->changed);
    (void)pthread_mutex_destroy(&world->mutex);
    weft__mpi_free(world->mpi);
    free(world->meeting_name);
    free(world);
}

void weft_world_destroy(weft_world *world)
{
    if (world != NULL) weft__world_put(world);
}

struct weft__world_card weft__world_card_of(const weft_world *world)
{
    const weft_world_options *options = &world->options;
    return (struct weft__world_card){.message_bytes = options->message_bytes,
                                     .heap_bytes = options->heap_bytes,
                                     .timeout_ms = options->timeout_ms,
                                     .first_epoch = world->tuning.first_epoch,
                                     .algorithm = (int32_t)options->algorithm,
                                     .path = (int32_t)options->path};
}

void weft__world_adopt(weft_world *world, const struct weft__world_card *card)
{
    weft_world_options *options = &world->options;
    options->message_bytes = card->message_bytes;
    options->heap_bytes = card->heap_bytes;
    options->timeout_ms = card->timeout_ms;
    options->algorithm = (weft_algorithm)card->algorithm;
    options->path = (weft_path)card->path;
    world->tuning.first_epoch = card->first_epoch;
}

/* ---- communicator ---- */

/* Fills what a group's members do not choose, and opens the kernels. comm->link has rank, size,
 * channel, world_rank and staging. */
static weft_status comm_start(weft_comm *comm, weft_error *err)
{
    struct weft__session *session = comm->session;
    const weft_world *world = session->world;
    struct weft__comm_link *link = &comm->link;
    link->world_size = world->options.size;
    for (int r = 0; r < link->world_size; r++) link->world[r] = weft__control_of(session, r);
    for (int m = 0; m < link->size; m++) link->segment[m] = session->segment[link->world_rank[m]];
    link->meeting = session->meeting;
    link->wire = session->wire;
    link->fault = weft__fault_of(session);
    link->message_bytes = world->options.message_bytes;
    link->heap_bytes = world->options.heap_bytes;
    link->timeout_ns = (uint64_t)world->options.timeout_ms * 1000000;
    link->first_epoch = world->tuning.first_epoch;
    comm->channel = &link->world[weft__comm_world_rank(comm)]->channel[link->channel];
    comm->dev = world->dev;
    comm->algorithm = world->options.algorithm;
    link->device = world->device[weft__comm_world_rank(comm)];
    while (world->device[link->lender] != link->device) link->lender++;
    link->path = world->options.path;
    if (link->rank == link->size - 1) link->spoilt = world->tuning.spoilt;
    WEFT__TRY(comm->dev->open(link, world->tuning.portable, &comm->kernels, err));
    if (comm->dev == &weft__cpu_comm) return WEFT_OK;
    weft_status status = weft__cpu_comm.open(link, world->tuning.portable, &comm->host, err);
    if (status != WEFT_OK) comm->dev->close(comm->kernels);
    return status;
}

weft_status weft_comm_open(weft_world *world, int rank, weft_comm **out, weft_error *err)
{
    if (rank < 0 || rank >= world->options.size)
        return weft__fail(err, WEFT_INVALID, "rank %d of a world of %d", rank, world->options.size);
    weft_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        weft__session_starve(world, rank);
        return weft__fail_oom(err, sizeof *comm, "a communicator");
    }
    weft_status status = weft__session_join(world, rank, &comm->session, err);
    if (status != WEFT_OK) goto free_comm;
    comm->root = comm;
    comm->link.rank = rank;
    comm->link.size = world->options.size;
    for (int m = 0; m < comm->link.size; m++) {
        comm->link.world_rank[m] = m;
        comm->link.staging[m] = weft__staging_at();
    }
    comm->next_channel = 1;
    comm->heap_next = weft__staging_at() + weft__staging_bytes(&world->options);
    comm->heap_end = comm->session->segment_bytes;
    status = comm_start(comm, err);
    if (status != WEFT_OK) goto leave;
    comm->heap = comm->dev->heap(comm->kernels) - comm->heap_next;
    if (world->tuning.plan_ms >= 0) status = weft__comm_plan_make(comm, err);
    if (status != WEFT_OK) goto close;
    *out = comm;
    return WEFT_OK;
close:
    weft_comm_abort(comm, err != NULL ? err->text : NULL); /* peers are about to wait for it */
    weft_comm_close(comm);
    return status;
leave:
    weft_comm_abort(comm, err != NULL ? err->text : NULL);
    weft__session_leave(comm->session, rank);
free_comm:
    free(comm);
    return status;
}

void weft_comm_close(weft_comm *comm)
{
    if (comm == NULL) return;
    comm->dev->close(comm->kernels);
    if (comm->host != NULL) weft__cpu_comm.close(comm->host);
    if (comm->root != comm) {
        /* Release: see weft__session_leave. */
        atomic_store_explicit(&comm->channel->closed, 1, memory_order_release);
        struct weft__wire *wire = comm->session->wire;
        if (wire != NULL) wire->close(wire, comm->link.channel);
        comm->root->group[comm->link.channel] = NULL;
    } else {
        for (int c = 0; c < WEFT__COMM_CHANNELS; c++) weft_comm_close(comm->group[c]);
        weft__session_leave(comm->session, weft__comm_world_rank(comm));
    }
    free(comm->plan);
    free(comm);
}

int weft_comm_rank(const weft_comm *comm) { return comm->link.rank; }

int weft_comm_size(const weft_comm *comm) { return comm->link.size; }

/* ---- memory ---- */

static weft_status heap_take(weft_comm *root, size_t bytes, size_t *offset, weft_error *err)
{
    size_t left = root->heap_end - root->heap_next;
    if (bytes > left)
        return weft__fail(err, WEFT_NO_MEMORY,
                          "rank %d: %zu bytes of shared heap wanted, %zu of %zu left: raise "
                          "heap_bytes",
                          weft__comm_world_rank(root), bytes, left,
                          root->session->world->options.heap_bytes);
    *offset = root->heap_next;
    root->heap_next += weft__round_up(bytes, HEAP_ALIGN); /* heap_end is a multiple, too */
    return WEFT_OK;
}

weft_status weft_comm_heap_alloc(weft_comm *comm, size_t bytes, void **out, weft_error *err)
{
    size_t offset = 0;
    WEFT__TRY(heap_take(comm->root, bytes, &offset, err));
    *out = comm->root->heap + offset;
    return WEFT_OK;
}

weft_status weft_comm_input(weft_comm *comm, size_t bytes, void **out, weft_error *err)
{
    const struct weft__comm_link *link = &comm->link;
    if (comm->host != NULL)
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "rank %d is on a GPU: pass device memory of your own, best of "
                          "weft_comm_heap_alloc",
                          weft__comm_world_rank(comm));
    WEFT__TRY(weft__comm_health(comm, err));
    if (bytes > link->message_bytes)
        return weft__fail(err, WEFT_TOO_LONG,
                          "rank %d: an input of %zu bytes: a message has %zu; raise "
                          "message_bytes, or pass memory of your own",
                          weft__comm_world_rank(comm), bytes, (size_t)link->message_bytes);
    comm->lent_epoch = comm->channel->epoch + 1;
    *out = link->segment[link->rank] + weft__comm_input_at(link, link->rank, comm->lent_epoch);
    return WEFT_OK;
}

/* ---- groups ---- */

struct offer {
    int32_t color, key;
    int32_t channel; /* the first this rank has free */
    int32_t failed;
    uint64_t staging;
};

/* The members of my group in order, and their channel: free on all of them. */
static void form_group(const weft_comm *parent, const struct offer *offers, weft_comm *group)
{
    struct weft__comm_link *link = &group->link;
    int32_t color = offers[parent->link.rank].color;
    int order[WEFT__MAX_RANKS];
    for (int r = 0; r < parent->link.size; r++) {
        if (offers[r].color != color) continue;
        int at = link->size++;
        for (; at > 0 && offers[order[at - 1]].key > offers[r].key; at--) order[at] = order[at - 1];
        order[at] = r;
        if (offers[r].channel > link->channel) link->channel = offers[r].channel;
    }
    for (int m = 0; m < link->size; m++) {
        if (order[m] == parent->link.rank) link->rank = m;
        link->world_rank[m] = parent->link.world_rank[order[m]];
        link->staging[m] = offers[order[m]].staging;
    }
}

weft_status weft__comm_gather_host(weft_comm *comm, const weft_gather *gather, weft_error *err)
{
    if (comm->host == NULL) return weft_comm_all_gather(comm, gather, err);
    WEFT__TRY(weft_comm_sync(comm, err));
    weft_comm host = *comm;
    host.dev = &weft__cpu_comm;
    host.kernels = comm->host;
    return weft_comm_all_gather(&host, gather, err);
}

static weft_status exchange_offers(weft_comm *comm, int color, int key, struct offer *offers,
                                   weft_error *err)
{
    struct offer mine = {.color = color, .key = key, .channel = comm->root->next_channel};
    size_t staging = 0;
    if (color >= 0) {
        size_t bytes = weft__staging_bytes(&comm->session->world->options);
        mine.failed = heap_take(comm->root, bytes, &staging, NULL) != WEFT_OK;
        mine.staging = staging;
    }
    weft_gather gather = {.rows = 1, .row_bytes = sizeof mine, .in = &mine, .out = offers};
    WEFT__TRY(weft__comm_gather_host(comm, &gather, err));
    for (int r = 0; r < comm->link.size; r++)
        if (offers[r].failed)
            return weft__fail(err, WEFT_NO_MEMORY,
                              "rank %d has no %zu bytes of shared heap left for a group: raise "
                              "heap_bytes",
                              comm->link.world_rank[r],
                              weft__staging_bytes(&comm->session->world->options));
    return WEFT_OK;
}

/* This rank's group. */
static weft_status open_group(weft_comm *comm, const struct offer *offers, weft_comm **out,
                              weft_error *err)
{
    weft_comm *group = calloc(1, sizeof *group);
    if (group == NULL) return weft__fail_oom(err, sizeof *group, "a group");
    group->session = comm->session;
    group->root = comm->root;
    form_group(comm, offers, group);
    weft_status status;
    if (group->link.channel >= WEFT__COMM_CHANNELS) {
        status = weft__fail(err, WEFT_TOO_LONG,
                            "rank %d: more than %d groups since open: keep groups, or close and "
                            "open the communicator",
                            weft__comm_world_rank(comm), WEFT_COMM_GROUPS_MAX);
        goto free_group;
    }
    status = comm_start(group, err);
    if (status != WEFT_OK) goto free_group;
    comm->root->group[group->link.channel] = group;
    comm->root->next_channel = group->link.channel + 1;
    *out = group;
    return WEFT_OK;
free_group:
    free(group);
    return status;
}

weft_status weft_comm_split(weft_comm *comm, int color, int key, weft_comm **out, weft_error *err)
{
    struct offer offers[WEFT__MAX_RANKS];
    WEFT__TRY(exchange_offers(comm, color, key, offers, err));
    weft_comm *group = NULL;
    weft_status status = color >= 0 ? open_group(comm, offers, &group, err) : WEFT_OK;
    if (comm->host != NULL) {
        /* Opening may wait for a whole device; so no rank enqueues before all have done it. */
        uint8_t mine = 0, all[WEFT__MAX_RANKS];
        weft_gather gather = {.rows = 1, .row_bytes = 1, .in = &mine, .out = all};
        weft_status met = weft__comm_gather_host(comm, &gather, status == WEFT_OK ? err : NULL);
        if (status == WEFT_OK && met != WEFT_OK) {
            weft_comm_close(group);
            status = met;
        }
    }
    if (status == WEFT_OK) *out = group;
    return status;
}
