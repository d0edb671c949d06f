/* nccl.c: NCCL, loaded at run time: what the library's own collectives take here, as a baseline.
 * Its sums are its own; weft's never use it. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"

typedef struct ncclComm *ncclComm_t;
typedef int ncclResult_t;
typedef struct {
    char internal[WEFT__NCCL_ID_BYTES];
} ncclUniqueId;

enum { ncclSuccess = 0, ncclSum = 0, ncclInt8 = 0, ncclFloat32 = 7 };

/* member, symbol, parameters */
#define NCCL_FUNCTIONS(X)                                                                       \
    X(id, ncclGetUniqueId, (ncclUniqueId * out))                                                \
    X(open, ncclCommInitRank, (ncclComm_t * out, int ranks, ncclUniqueId id, int rank))         \
    X(close, ncclCommAbort, (ncclComm_t comm))                                                  \
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
    void *library;
    ncclComm_t comm;
};

static weft_status load(struct weft__nccl *nccl, weft_error *err)
{
    static const char *const names[] = {
#define X(member, symbol, params) #symbol,
        NCCL_FUNCTIONS(X)
#undef X
    };
    nccl->library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (nccl->library == NULL)
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "no NCCL on this machine (%s): install it, or set LD_LIBRARY_PATH",
                          dlerror());
    ncclResult_t (**member)(ncclUniqueId *) = &nccl->id; /* the first of the table */
    for (size_t i = 0; i < WEFT__COUNT(names); i++) {
        void *symbol = dlsym(nccl->library, names[i]);
        memcpy(&member[i], &symbol, sizeof symbol);
        if (symbol == NULL)
            return weft__fail(err, WEFT_UNSUPPORTED, "NCCL has no %s: it is too old", names[i]);
    }
    return WEFT_OK;
}

static weft_status check(ncclResult_t result, const char *what, weft_error *err)
{
    if (result == ncclSuccess) return WEFT_OK;
    return weft__fail(err, WEFT_DEVICE, "NCCL: %s: error %d (NCCL_DEBUG=WARN says more)", what,
                      result);
}

static void nccl_close(struct weft__comm_kernels *k)
{
    struct weft__nccl *nccl = k->nccl;
    if (nccl == NULL) return;
    CUcontext popped;
    (void)k->rank->device.driver.context_push(k->rank->device.context);
    if (nccl->comm != NULL) (void)nccl->close(nccl->comm);
    (void)k->rank->device.driver.context_pop(&popped);
    if (nccl->library != NULL) (void)dlclose(nccl->library);
    free(nccl);
    k->nccl = NULL;
}

static weft_status nccl_id(struct weft__comm_kernels *k, void *id, weft_error *err)
{
    k->nccl = calloc(1, sizeof *k->nccl);
    if (k->nccl == NULL) return weft__fail_oom(err, sizeof *k->nccl, "NCCL");
    WEFT__TRY(load(k->nccl, err));
    return check(k->nccl->id(id), "making an id", err);
}

static weft_status nccl_open(struct weft__comm_kernels *k, const void *id, weft_error *err)
{
    ncclUniqueId copy;
    memcpy(&copy, id, sizeof copy);
    CUcontext popped;
    (void)k->rank->device.driver.context_push(k->rank->device.context);
    ncclResult_t result = k->nccl->open(&k->nccl->comm, k->link.size, copy, k->link.rank);
    (void)k->rank->device.driver.context_pop(&popped);
    return check(result, "making a communicator", err);
}

static weft_status nccl_run(struct weft__comm_kernels *k, enum weft__comm_op op, const void *in,
                            void *out, size_t bytes, weft_error *err)
{
    const struct weft__nccl *nccl = k->nccl;
    CUstream stream = k->rank->stream;
    size_t floats = bytes / 4;
    ncclResult_t result;
    CUcontext popped;
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
    (void)k->rank->device.driver.context_pop(&popped);
    return check(result, "an operation", err);
}

const struct weft__dev_baseline weft__cuda_nccl = {
    .id = nccl_id, .open = nccl_open, .run = nccl_run, .close = nccl_close};
