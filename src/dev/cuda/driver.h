/* driver.h: the CUDA driver, loaded at run time, and one device with the embedded kernels.
 *
 * Declares the few types and functions of the driver that weft uses, so that it builds without the
 * CUDA toolkit; names and values are those of cuda.h. */
#ifndef WEFT_SRC_DEV_CUDA_DRIVER_H
#define WEFT_SRC_DEV_CUDA_DRIVER_H

#include "base/base.h"

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef struct CUlib_st *CUlibrary;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;

enum { CUDA_SUCCESS = 0, CUDA_ERROR_NOT_READY = 600, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704 };
enum { /* CUdevice_attribute */
       CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
       CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
};
enum { CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };
enum { CU_STREAM_NON_BLOCKING = 1 };
enum { CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1, CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum { CU_EVENT_DISABLE_TIMING = 2, CU_EVENT_RECORD_EXTERNAL = 1 };
enum { CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2 };

/* ---- memory that other processes map ---- */

enum {
    CU_MEM_ALLOCATION_TYPE_PINNED = 1,
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
    CU_MEM_LOCATION_TYPE_DEVICE = 1,
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};

typedef struct CUmemLocation {
    int type, id;
} CUmemLocation;

typedef struct CUmemAllocationProp {
    int type, handle_types;
    CUmemLocation location;
    void *unused;
    unsigned char flags[8];
} CUmemAllocationProp;

typedef struct CUmemAccessDesc {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

enum {
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4,
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
};

typedef struct CUlaunchAttribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        struct {
            unsigned x, y, z;
        } cluster;
        int flag;
    } value;
} CUlaunchAttribute;

typedef struct CUlaunchConfig {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream stream;
    CUlaunchAttribute *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

/* member, symbol, parameters */
#define WEFT__CUDA_FUNCTIONS(X)                                                                  \
    X(init, cuInit, (unsigned flags))                                                            \
    X(error_name, cuGetErrorName, (CUresult result, const char **out))                           \
    X(device_count, cuDeviceGetCount, (int *out))                                                \
    X(device_get, cuDeviceGet, (CUdevice * out, int ordinal))                                    \
    X(device_attribute, cuDeviceGetAttribute, (int *out, int attribute, CUdevice device))        \
    X(device_can_access_peer, cuDeviceCanAccessPeer, (int *out, CUdevice device, CUdevice peer)) \
    X(context_retain, cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice device))              \
    X(context_release, cuDevicePrimaryCtxRelease_v2, (CUdevice device))                          \
    X(context_push, cuCtxPushCurrent_v2, (CUcontext context))                                    \
    X(context_pop, cuCtxPopCurrent_v2, (CUcontext * out))                                        \
    X(context_sync, cuCtxSynchronize, (void))                                                    \
    X(peer_enable, cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags))                      \
    X(mem_alloc, cuMemAlloc_v2, (CUdeviceptr * out, size_t bytes))                               \
    X(mem_free, cuMemFree_v2, (CUdeviceptr memory))                                              \
    X(host_alloc, cuMemHostAlloc, (void **out, size_t bytes, unsigned flags))                    \
    X(host_free, cuMemFreeHost, (void *memory))                                                  \
    X(host_register, cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags))         \
    X(host_unregister, cuMemHostUnregister, (void *memory))                                      \
    X(host_address, cuMemHostGetDevicePointer_v2,                                                \
      (CUdeviceptr * out, void *memory, unsigned flags))                                         \
    X(device_uuid, cuDeviceGetUuid_v2, (void *out, CUdevice device))                             \
    X(memory_unit, cuMemGetAllocationGranularity,                                                \
      (size_t * out, const CUmemAllocationProp *what, int option))                               \
    X(memory_create, cuMemCreate,                                                                \
      (uint64_t * handle, size_t bytes, const CUmemAllocationProp *what,                         \
       unsigned long long flags))                                                                \
    X(memory_release, cuMemRelease, (uint64_t handle))                                           \
    X(memory_export, cuMemExportToShareableHandle,                                               \
      (void *out, uint64_t handle, int type, unsigned long long flags))                          \
    X(memory_import, cuMemImportFromShareableHandle, (uint64_t * handle, void *from, int type))  \
    X(memory_reserve, cuMemAddressReserve,                                                       \
      (CUdeviceptr * out, size_t bytes, size_t alignment, CUdeviceptr at,                        \
       unsigned long long flags))                                                                \
    X(memory_unreserve, cuMemAddressFree, (CUdeviceptr memory, size_t bytes))                    \
    X(memory_map, cuMemMap,                                                                      \
      (CUdeviceptr at, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags))  \
    X(memory_unmap, cuMemUnmap, (CUdeviceptr memory, size_t bytes))                              \
    X(memory_access, cuMemSetAccess,                                                             \
      (CUdeviceptr memory, size_t bytes, const CUmemAccessDesc *who, size_t count))              \
    X(set_u8, cuMemsetD8_v2, (CUdeviceptr memory, unsigned char value, size_t bytes))            \
    X(set_u8_async, cuMemsetD8Async,                                                             \
      (CUdeviceptr memory, unsigned char value, size_t bytes, CUstream stream))                  \
    X(to_device, cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes))              \
    X(to_host, cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes))                      \
    X(copy, cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))    \
    X(stream_create, cuStreamCreate, (CUstream * out, unsigned flags))                           \
    X(stream_destroy, cuStreamDestroy_v2, (CUstream stream))                                     \
    X(stream_sync, cuStreamSynchronize, (CUstream stream))                                       \
    X(stream_query, cuStreamQuery, (CUstream stream))                                            \
    X(stream_capturing, cuStreamIsCapturing, (CUstream stream, int *status))                     \
    X(stream_wait, cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))          \
    X(capture_mode, cuThreadExchangeStreamCaptureMode, (int *mode))                              \
    X(capture_begin, cuStreamBeginCapture_v2, (CUstream stream, int mode))                       \
    X(capture_end, cuStreamEndCapture, (CUstream stream, CUgraph * out))                         \
    X(graph_make, cuGraphInstantiateWithFlags,                                                   \
      (CUgraphExec * out, CUgraph graph, unsigned long long flags))                              \
    X(graph_launch, cuGraphLaunch, (CUgraphExec graph, CUstream stream))                         \
    X(graph_exec_destroy, cuGraphExecDestroy, (CUgraphExec graph))                               \
    X(graph_destroy, cuGraphDestroy, (CUgraph graph))                                            \
    X(event_create, cuEventCreate, (CUevent * out, unsigned flags))                              \
    X(event_destroy, cuEventDestroy_v2, (CUevent event))                                         \
    X(event_record, cuEventRecord, (CUevent event, CUstream stream))                             \
    X(event_record_in_graph, cuEventRecordWithFlags,                                             \
      (CUevent event, CUstream stream, unsigned flags))                                          \
    X(event_query, cuEventQuery, (CUevent event))                                                \
    X(event_sync, cuEventSynchronize, (CUevent event))                                           \
    X(event_elapsed, cuEventElapsedTime, (float *ms, CUevent from, CUevent to))                  \
    X(library_load, cuLibraryLoadData,                                                           \
      (CUlibrary * out, const void *image, int *jit_options, void **jit_values,                  \
       unsigned jit_count, int *options, void **values, unsigned count))                         \
    X(library_unload, cuLibraryUnload, (CUlibrary library))                                      \
    X(library_kernel, cuLibraryGetKernel, (CUkernel * out, CUlibrary library, const char *name)) \
    X(kernel_function, cuKernelGetFunction, (CUfunction * out, CUkernel kernel))                 \
    X(function_set, cuFuncSetAttribute, (CUfunction function, int attribute, int value))         \
    X(occupancy_blocks, cuOccupancyMaxActiveBlocksPerMultiprocessor,                             \
      (int *out, CUfunction function, int threads, size_t shared_bytes))                         \
    X(occupancy_clusters, cuOccupancyMaxActiveClusters,                                          \
      (int *out, CUfunction function, const CUlaunchConfig *config))                             \
    X(launch, cuLaunchKernelEx,                                                                  \
      (const CUlaunchConfig *config, CUfunction function, void **params, void **extra))

struct weft__cuda_driver {
#define X(member, symbol, params) CUresult(*member) params;
    WEFT__CUDA_FUNCTIONS(X)
#undef X
    void *library;
};

/* UNSUPPORTED, with the reason, on a machine without a usable driver or device. */
weft_status weft__cuda_load(struct weft__cuda_driver *out, weft_error *err);
void weft__cuda_unload(struct weft__cuda_driver *driver);

/* DEVICE: `what` did not work. */
weft_status weft__cuda_fail(const struct weft__cuda_driver *driver, CUresult result,
                            const char *what, weft_error *err);

/* Returns from a function that has nothing to undo. */
#define WEFT__CUDA_TRY(driver, call, what, err)                                                \
    do {                                                                                       \
        CUresult result_ = (driver)->call;                                                     \
        if (result_ != CUDA_SUCCESS) return weft__cuda_fail((driver), result_, (what), (err)); \
    } while (0)

/* ---- one device ---- */

enum { WEFT__CUDA_IMAGES_MAX = 16 };

struct weft__cuda_device {
    struct weft__cuda_driver driver;
    int ordinal, processors, shared_max;
    int arch; /* of the machine code that was chosen: 900 for sm_90; 800 when made from PTX */
    CUdevice device;
    CUcontext context;
    CUlibrary library[WEFT__CUDA_IMAGES_MAX];
    int libraries;
    bool borrowed; /* these are another's */
};

/* Makes the context and loads every embedded kernel, or takes those of the lender: the same device,
 * opened, to be closed when this one has launched its last; NULL: none. Nothing is loaded later.
 * The calling thread's current context is as before. */
weft_status weft__cuda_open(int ordinal, const struct weft__cuda_device *lender,
                            struct weft__cuda_device *out, weft_error *err);
void weft__cuda_close(struct weft__cuda_device *device); /* zeroed is allowed */

weft_status weft__cuda_kernel(const struct weft__cuda_device *device, const char *name,
                              CUfunction *out, weft_error *err);

/* Whether clusters of blocks can be launched: the chosen machine code has them. */
static inline bool weft__cuda_has_clusters(const struct weft__cuda_device *device)
{
    return device->arch >= 900;
}

#endif
