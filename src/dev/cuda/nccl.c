/* nccl.c: NCCL, loaded at run time: it carries bytes for weft's own sums (staged.c), and its
 * collectives are a baseline to compare with. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm.h"

typedef struct ncclComm *ncclComm_t;
typedef int ncclResult_t;
typedef struct {
    char internal[WEFT__NCCL_ID_BYTES];
} ncclUniqueId;

enum { VERSION_MIN = 21400, VERSION_MAX = 30000 }; /* 2.14: calls that do not block */
enum { ncclSuccess = 0, ncclInProgress = 7, ncclSum = 0, ncclInt8 = 0, ncclFloat32 = 7 };

/* As of 2.14; later ones fill in what it does not have. */
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking;
} ncclConfig_t;

/* member, symbol, parameters */
#define NCCL_FUNCTIONS(X)                                                                       \
    X(version, ncclGetVersion, (int *out))                                                      \
    X(id, ncclGetUniqueId, (ncclUniqueId * out))                                                \
    X(open, ncclCommInitRankConfig,                                                             \
      (ncclComm_t * out, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config))           \
    X(state, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t * out))                      \
    X(abort, ncclCommAbort, (ncclComm_t comm))                                                  \
    X(begin, ncclGroupStart, (void))                                                            \
    X(end, ncclGroupEnd, (void))                                                                \
    X(send, ncclSend,                                                                           \
      (const void *in, size_t count, int type, int peer, ncclComm_t comm, CUstream s))          \
    X(receive, ncclRecv,                                                                        \
      (void *out, size_t count, int type, int peer, ncclComm_t comm, CUstream s))               \
    X(allreduce, ncclAllReduce,                                                                 \
      (const void *in, void *out, size_t count, int type, int op, ncclComm_t comm, CUstream s)) \
    X(reduce_scatter, ncclReduceScatter,                                                        \
      (const void *in, void *out, size_t count, int type, int op, ncclComm_t comm, CUstream s)) \
    X(all_gather, ncclAllGather,                                                                \
      (const void *in, void *out, size_t count, int type, ncclComm_t comm, CUstream s))         \
    X(broadcast, ncclBroadcast,                                                                 \
      (const void *in, void *out, size_t count, int type, int root, ncclComm_t comm, CUstream s))

struct weft__nccl {
#define X(member, symbol, params) ncclResult_t(*member) params;
    NCCL_FUNCTIONS(X)
#undef X
    uint64_t timeout_ns;
    ncclComm_t comm;
};

static weft_status find_functions(struct weft__nccl *nccl, weft_error *err)
{
    static const char *const names[] = {
#define X(member, symbol, params) #symbol,
        NCCL_FUNCTIONS(X)
#undef X
    };
    /* It may have threads of its own at the end: it stays. */
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL)
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "no NCCL on this machine (%.200s): install it, or set LD_LIBRARY_PATH",
                          dlerror());
    ncclResult_t (**member)(int *) = &nccl->version; /* the first of the table */
    for (size_t i = 0; i < WEFT__COUNT(names); i++) {
        void *symbol = dlsym(library, names[i]);
        memcpy(&member[i], &symbol, sizeof symbol);
        if (symbol == NULL)
            return weft__fail(err, WEFT_UNSUPPORTED, "NCCL has no %s: weft needs 2.14 or newer",
                              names[i]);
    }
    return WEFT_OK;
}

static weft_status check(ncclResult_t result, const char *what, weft_error *err)
{
    if (result == ncclSuccess) return WEFT_OK;
    return weft__fail(err, WEFT_DEVICE, "NCCL: %s: error %d (NCCL_DEBUG=WARN says more)", what,
                      result);
}

struct weft__nccl *weft__nccl_load(bool first, void *id, weft_error *why)
{
    struct weft__nccl *nccl = calloc(1, sizeof *nccl);
    if (nccl == NULL) {
        (void)weft__fail_oom(why, sizeof *nccl, "NCCL");
        return NULL;
    }
    int version = 0;
    weft_status status = find_functions(nccl, why);
    if (status == WEFT_OK) status = check(nccl->version(&version), "asking its version", why);
    if (status == WEFT_OK && (version < VERSION_MIN || version >= VERSION_MAX))
        status = weft__fail(why, WEFT_UNSUPPORTED, "NCCL is version %d: weft needs 2.14 or newer",
                            version);
    if (status == WEFT_OK && first) status = check(nccl->id(id), "making an id", why);
    if (status == WEFT_OK) return nccl;
    free(nccl);
    return NULL;
}

/* Calls return at once; this waits until one has had its effect on the host. */
static weft_status settle(struct weft__nccl *nccl, ncclResult_t result, const char *what,
                          weft_error *err)
{
    uint64_t deadline = weft__now_ns() + nccl->timeout_ns;
    while (result == ncclInProgress && nccl->comm != NULL) {
        if (weft__now_ns() > deadline)
            return weft__fail(err, WEFT_TIMEOUT,
                              "NCCL: %s takes more than %llu ms; it does not say which rank is "
                              "missing",
                              what, (unsigned long long)(nccl->timeout_ns / 1000000));
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        ncclResult_t asked = nccl->state(nccl->comm, &result);
        if (asked != ncclSuccess) result = asked;
    }
    return check(result, what, err);
}

weft_status weft__nccl_open(struct weft__nccl *nccl, const struct weft__comm_link *link,
                            const void *id, weft_error *err)
{
    ncclConfig_t config = {sizeof config, 0xcafebeef, VERSION_MIN, 0};
    ncclUniqueId copy;
    memcpy(&copy, id, sizeof copy);
    nccl->timeout_ns = link->timeout_ns;
    return settle(nccl, nccl->open(&nccl->comm, link->size, copy, link->rank, &config),
                  "making a communicator", err);
}

void weft__nccl_abort(struct weft__nccl *nccl)
{
    if (nccl->comm != NULL) (void)nccl->abort(nccl->comm);
    nccl->comm = NULL;
}

void weft__nccl_close(struct weft__nccl *nccl)
{
    if (nccl == NULL) return;
    weft__nccl_abort(nccl);
    free(nccl);
}

static void *pointer(uint64_t address) { return (void *)(uintptr_t)address; }

weft_status weft__nccl_exchange(struct weft__nccl *nccl, const struct weft__nccl_part *parts,
                                int count, CUstream stream, weft_error *err)
{
    if (nccl->comm == NULL) return WEFT_OK; /* the session has failed */
    ncclResult_t result = nccl->begin();
    for (int i = 0; i < count && result == ncclSuccess; i++) {
        const struct weft__nccl_part *part = &parts[i];
        if (part->send_bytes > 0)
            result = nccl->send(pointer(part->send), part->send_bytes, ncclInt8, part->peer,
                                nccl->comm, stream);
        if (part->receive_bytes > 0 && (result == ncclSuccess || result == ncclInProgress))
            result = nccl->receive(pointer(part->receive), part->receive_bytes, ncclInt8,
                                   part->peer, nccl->comm, stream);
        if (result == ncclInProgress) result = ncclSuccess;
    }
    ncclResult_t ended = nccl->end();
    return settle(nccl, result == ncclSuccess ? ended : result, "sending and receiving", err);
}

weft_status weft__nccl_baseline(struct weft__comm_kernels *k, enum weft__comm_op op, const void *in,
                                void *out, size_t bytes, weft_error *err)
{
    struct weft__nccl *nccl = k->rank->nccl;
    CUstream stream = k->rank->stream;
    size_t floats = bytes / 4;
    ncclResult_t result;
    CUcontext popped;
    if (nccl == NULL || nccl->comm == NULL)
        return weft__fail(err, WEFT_UNSUPPORTED, "NCCL is not open: the path is not \"nccl\"");
    (void)k->rank->device.driver.context_push(k->rank->device.context);
    switch (op) {
    case WEFT__ALLREDUCE:
        result = nccl->allreduce(in, out, floats, ncclFloat32, ncclSum, nccl->comm, stream);
        break;
    case WEFT__REDUCE_SCATTER:
        result = nccl->reduce_scatter(in, out, floats / (size_t)k->link.size, ncclFloat32, ncclSum,
                                      nccl->comm, stream);
        break;
    case WEFT__ALL_GATHER:
        result = nccl->all_gather(in, out, bytes, ncclInt8, nccl->comm, stream);
        break;
    default:
        result = nccl->broadcast(in, out, bytes, ncclInt8, 0, nccl->comm, stream);
    }
    weft_status status = settle(nccl, result, "an operation", err);
    (void)k->rank->device.driver.context_pop(&popped);
    return status;
}
