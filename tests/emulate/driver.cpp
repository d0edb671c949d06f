/* driver.cpp: a libcuda.so.1 without a GPU. The kernels of kernels/ run on the CPU, thread by
 * thread, so that the tests of tests/conform check there what ranks say to one another and every
 * bit that they compute. run.sh builds and uses it; by hand:
 *
 *     LD_LIBRARY_PATH=build/emulate EMULATE_DEVICES=2 build/emulate/numbers
 *
 * EMULATE_DEVICES: how many GPUs there are; 1 if not said.
 * EMULATE_ARCH: 900, or 800 for GPUs without clusters of blocks.
 * EMULATE_PEERS: 0 for GPUs that say they can't reach one another's memory.
 * EMULATE_REPORT: seconds between reports of what has not ended; none if not said.
 *
 * What it can't show:
 *
 * - Memory order. One thread of the CPU is all GPUs, and goes on to another GPU thread only where
 *   one waits, or before it loads what peers write. A missing fence, acquire or release is not
 *   found, nor a torn word, nor a race between threads of a block at other places.
 * - Time. Kernels take thousands of times longer; what the plan chooses means nothing.
 * - Chaining. A stream's kernels run one after the other: grid_wait() and grid_release() are
 *   empty. All blocks of a grid are resident, however many there are.
 * - Devices. All memory is the host's, and every device reaches it: a wrong context, a kernel that
 *   lacks peer access or memory that is not pinned are not found. Processes can't share memory.
 * - What nvcc makes of the source.
 *
 * Instructions that device.h replaces: ld and st with .sys, relaxed, acquire, release, .v2.b64 and
 * .b128; fence.sys; griddepcontrol; barrier.cluster, mapa, st.async, mbarrier; globaltimer;
 * cvt.bf16x2, cvt.f16, cvt.f16x2. Kernels take their own branch for chips without cvt.e4m3x2. */
#include "grid.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <mutex>
#include <thread>
#include <unistd.h>

#define _Atomic /* base.h is C; its words are not used here */
extern "C" {
#include "dev/cuda/driver.h"

#define X(member, symbol, params) CUresult symbol params;
WEFT__CUDA_FUNCTIONS(X)
#undef X
}

enum { PROCESSORS = 8, BLOCKS_A_PROCESSOR = 2, SHARED_MAX = 227 * 1024, PAGE = 4096, IDLE_US = 20 };
enum { QUEUE_MAX = 512 }; /* entries of a stream; half of what a driver has room for */
static const CUresult OUT_OF_MEMORY = 2, NOT_FOUND = 500, NOT_SUPPORTED = 801;

struct task {
    enum { LAUNCH, SET, COPY, RECORD, AWAIT } what;
    CUstream stream;
    CUevent event;
    uint64_t count; /* of the event's records: number of this one, or of the awaited one */
    bool of_graph;
    struct emulate::launch launch;
    void *to;
    const void *from;
    size_t bytes;
    int value;
};

struct CUevent_st {
    uint64_t recorded, reached; /* records submitted, and done */
    uint64_t ns;                /* of the last that is done */
    CUgraph graph;              /* in whose capture it was recorded */
};

struct CUstream_st {
    std::deque<struct task> queue;
    struct emulate::grid *grid; /* of the first task, when it is a launch that has begun */
    CUgraph graph;              /* that is captured from it */
    bool gone;
};

struct CUgraph_st {
    std::vector<struct task> tasks;
};

struct CUgraphExec_st {
    std::vector<struct task> tasks;
};

/* Never destroyed: the thread that is the GPUs runs until the process ends. */
static struct driver {
    std::once_flag started;
    std::mutex lock; /* of streams, their queues and the counts of events */
    std::condition_variable advanced;
    std::vector<CUstream> streams;
    CUstream null_stream; /* what NULL means; one of them */
    int devices;
    bool peers;
    uint64_t report_ns;
} &driver = *new struct driver;

/* ---- the GPUs ---- */

static uint64_t now_ns()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* False: it has to wait. */
static bool task_continue(struct task *task)
{
    std::unique_lock<std::mutex> guard(driver.lock, std::defer_lock);
    CUstream stream = task->stream;
    switch (task->what) {
    case task::LAUNCH:
        if (stream->grid == nullptr) stream->grid = emulate::grid_start(task->launch);
        if (emulate::grid_continue(stream->grid)) return false;
        stream->grid = nullptr;
        return true;
    case task::SET:
        memset(task->to, task->value, task->bytes);
        return true;
    case task::COPY:
        memcpy(task->to, task->from, task->bytes);
        return true;
    case task::RECORD:
        guard.lock();
        task->event->ns = now_ns();
        task->event->reached = task->count;
        return true;
    case task::AWAIT:
        guard.lock();
        return task->event->reached >= task->count;
    }
    return true;
}

/* As far as a stream gets; whether it has done anything. */
static bool stream_continue(CUstream stream)
{
    for (bool busy = false;; busy = true) {
        std::unique_lock<std::mutex> guard(driver.lock);
        if (stream->queue.empty()) return busy;
        struct task *task = &stream->queue.front();
        guard.unlock();
        if (!task_continue(task)) return busy || stream->grid != nullptr;
        guard.lock();
        stream->queue.pop_front();
        driver.advanced.notify_all();
    }
}

static void report()
{
    std::lock_guard<std::mutex> guard(driver.lock);
    for (CUstream stream : driver.streams) {
        if (stream->queue.empty()) continue;
        static const char *const names[] = {"launch", "set", "copy", "record", "await"};
        fprintf(stderr, "emulate: stream %p has %zu tasks; the first: %s\n", (void *)stream,
                stream->queue.size(), names[stream->queue.front().what]);
        if (stream->grid != nullptr) emulate::grid_print(stream->grid);
    }
}

static void run_gpus()
{
    for (uint64_t last = now_ns();;) {
        std::vector<CUstream> streams;
        std::unique_lock<std::mutex> guard(driver.lock);
        for (CUstream stream : driver.streams)
            if (stream->gone)
                delete stream;
            else
                streams.push_back(stream);
        driver.streams = streams;
        guard.unlock();
        bool busy = false;
        for (CUstream stream : streams) busy = stream_continue(stream) || busy;
        if (!busy) usleep(IDLE_US);
        if (driver.report_ns == 0 || now_ns() - last < driver.report_ns) continue;
        report();
        last = now_ns();
    }
}

/* ---- work ---- */

static void submit(struct task task)
{
    std::lock_guard<std::mutex> guard(driver.lock);
    if (task.what == task::RECORD) task.count = ++task.event->recorded;
    if (task.what == task::AWAIT) task.count = task.event->recorded;
    task.stream->queue.push_back(task);
}

static CUstream stream_of(CUstream stream)
{
    return stream != nullptr ? stream : driver.null_stream;
}

static CUresult submit_or_capture(struct task task)
{
    CUgraph graph = task.stream->graph;
    if (graph != nullptr) {
        task.of_graph = true;
        graph->tasks.push_back(task);
        return CUDA_SUCCESS;
    }
    submit(task);
    std::lock_guard<std::mutex> guard(driver.lock);
    if (std::count_if(task.stream->queue.begin(), task.stream->queue.end(),
                      [](const struct task &each) { return !each.of_graph; }) <= QUEUE_MAX)
        return CUDA_SUCCESS;
    fprintf(stderr, "emulator: a queue is full: a driver would wait here, and hold up others\n");
    abort();
}

static CUresult drain(CUstream stream)
{
    stream = stream_of(stream);
    std::unique_lock<std::mutex> guard(driver.lock);
    driver.advanced.wait(guard, [stream] { return stream->queue.empty(); });
    return CUDA_SUCCESS;
}

/* ---- devices and contexts ---- */

static int option(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text != nullptr ? (int)strtol(text, nullptr, 10) : otherwise;
}

static void start()
{
    driver.devices = option("EMULATE_DEVICES", 1);
    driver.peers = option("EMULATE_PEERS", 1) != 0;
    emulated_arch = option("EMULATE_ARCH", 900);
    driver.report_ns = (uint64_t)option("EMULATE_REPORT", 0) * 1000000000;
    driver.null_stream = new struct CUstream_st();
    driver.streams.push_back(driver.null_stream);
    std::thread(run_gpus).detach();
}

CUresult cuInit(unsigned)
{
    std::call_once(driver.started, start);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult, const char **out)
{
    *out = "an error of the emulator";
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *out)
{
    *out = driver.devices;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
    *out = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(void *out, CUdevice device)
{
    memset(out, device + 1, 16);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *out, int attribute, CUdevice)
{
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *out = PROCESSORS;
        return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *out = SHARED_MAX;
        return CUDA_SUCCESS;
    default:
        return NOT_SUPPORTED;
    }
}

CUresult cuDeviceCanAccessPeer(int *out, CUdevice, CUdevice)
{
    *out = driver.peers;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    *out = (CUcontext)(intptr_t)(device + 1);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent_v2(CUcontext) { return CUDA_SUCCESS; }
CUresult cuCtxEnablePeerAccess(CUcontext, unsigned) { return CUDA_SUCCESS; }
CUresult cuCtxSynchronize() { return drain(nullptr); }

CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
    *out = nullptr;
    return CUDA_SUCCESS;
}

/* ---- memory ---- */

static void *pages(size_t bytes) { return aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE); }

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    *out = (CUdeviceptr)pages(bytes);
    return *out != 0 ? (CUresult)CUDA_SUCCESS : OUT_OF_MEMORY;
}

CUresult cuMemFree_v2(CUdeviceptr memory)
{
    free((void *)memory);
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned)
{
    *out = pages(bytes);
    return *out != nullptr ? (CUresult)CUDA_SUCCESS : OUT_OF_MEMORY;
}

CUresult cuMemFreeHost(void *memory)
{
    free(memory);
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *, size_t, unsigned) { return CUDA_SUCCESS; }
CUresult cuMemHostUnregister(void *) { return CUDA_SUCCESS; }

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *memory, unsigned)
{
    *out = (CUdeviceptr)memory;
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8_v2(CUdeviceptr memory, unsigned char value, size_t bytes)
{
    (void)drain(nullptr);
    memset((void *)memory, value, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    (void)drain(nullptr);
    memcpy((void *)to, from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    (void)drain(nullptr);
    memcpy(to, (const void *)from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, size_t bytes, CUstream stream)
{
    struct task task = {};
    task.what = task::SET;
    task.stream = stream_of(stream);
    task.to = (void *)memory;
    task.value = value;
    task.bytes = bytes;
    return submit_or_capture(task);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    struct task task = {};
    task.what = task::COPY;
    task.stream = stream_of(stream);
    task.to = (void *)to;
    task.from = (const void *)from;
    task.bytes = bytes;
    return submit_or_capture(task);
}

/* Memory that processes share is not there. */
extern "C" CUresult emulate_refuse() { return NOT_SUPPORTED; }

#pragma GCC diagnostic ignored "-Wattribute-alias" /* parameters of other types */
#define REFUSED(symbol) decltype(symbol) symbol __attribute__((alias("emulate_refuse")))
extern "C" {
REFUSED(cuMemGetAllocationGranularity);
REFUSED(cuMemCreate);
REFUSED(cuMemRelease);
REFUSED(cuMemExportToShareableHandle);
REFUSED(cuMemImportFromShareableHandle);
REFUSED(cuMemAddressReserve);
REFUSED(cuMemAddressFree);
REFUSED(cuMemMap);
REFUSED(cuMemUnmap);
REFUSED(cuMemSetAccess);
}
#undef REFUSED

/* ---- streams and events ---- */

CUresult cuStreamCreate(CUstream *out, unsigned)
{
    std::lock_guard<std::mutex> guard(driver.lock);
    *out = new struct CUstream_st();
    driver.streams.push_back(*out);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    (void)drain(stream);
    std::lock_guard<std::mutex> guard(driver.lock);
    stream->gone = true;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) { return drain(stream); }

CUresult cuStreamQuery(CUstream stream)
{
    std::lock_guard<std::mutex> guard(driver.lock);
    return stream_of(stream)->queue.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventCreate(CUevent *out, unsigned)
{
    *out = new struct CUevent_st();
    return CUDA_SUCCESS;
}

/* Kept: what is queued may still name it. */
CUresult cuEventDestroy_v2(CUevent) { return CUDA_SUCCESS; }

static CUresult event_task(CUevent event, CUstream stream, bool await)
{
    struct task task = {};
    task.what = await ? task::AWAIT : task::RECORD;
    task.stream = stream_of(stream);
    task.event = event;
    return submit_or_capture(task);
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    event->graph = stream_of(stream)->graph;
    return event_task(event, stream, false);
}

/* CU_EVENT_RECORD_EXTERNAL, the only flag: nobody joins a capture by it. */
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned)
{
    return event_task(event, stream, false);
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned)
{
    if (event->graph != nullptr) stream_of(stream)->graph = event->graph;
    return event_task(event, stream, true);
}

CUresult cuEventQuery(CUevent event)
{
    std::lock_guard<std::mutex> guard(driver.lock);
    return event->reached >= event->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event)
{
    std::unique_lock<std::mutex> guard(driver.lock);
    driver.advanced.wait(guard, [event] { return event->reached >= event->recorded; });
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
    std::lock_guard<std::mutex> guard(driver.lock);
    *ms = std::max((float)(to->ns - from->ns) / 1e6f, 0.001f);
    return CUDA_SUCCESS;
}

/* ---- graphs: the tasks in the order of their capture, on the same streams ---- */

CUresult cuThreadExchangeStreamCaptureMode(int *) { return CUDA_SUCCESS; }

CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    *status = stream->graph != nullptr;
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int)
{
    stream->graph = new struct CUgraph_st();
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *out)
{
    *out = stream->graph;
    stream->graph = nullptr;
    for (struct task &task : (*out)->tasks) {
        task.stream->graph = nullptr;
        if (task.event != nullptr) task.event->graph = nullptr;
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long)
{
    *out = new struct CUgraphExec_st();
    (*out)->tasks = graph->tasks;
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream)
{
    for (const struct task &task : graph->tasks) submit(task);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec graph)
{
    delete graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    delete graph;
    return CUDA_SUCCESS;
}

/* ---- kernels; every library has them all ---- */

CUresult cuLibraryLoadData(CUlibrary *out, const void *, int *, void **, unsigned, int *, void **,
                           unsigned)
{
    *out = nullptr;
    return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }

CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary, const char *name)
{
    *out = (CUkernel)emulate::kernel_named(name);
    return *out != nullptr ? (CUresult)CUDA_SUCCESS : NOT_FOUND;
}

CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel)
{
    *out = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction, int, int) { return CUDA_SUCCESS; }

static unsigned cluster_of(const CUlaunchConfig *config)
{
    for (unsigned i = 0; i < config->attribute_count; i++)
        if (config->attributes[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            return config->attributes[i].value.cluster.x;
    return 1;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, CUfunction, int, size_t)
{
    *out = BLOCKS_A_PROCESSOR;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *out, CUfunction, const CUlaunchConfig *config)
{
    *out = PROCESSORS * BLOCKS_A_PROCESSOR / (int)cluster_of(config);
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **)
{
    struct task task = {};
    const struct emulate::kernel *kernel = (const struct emulate::kernel *)function;
    task.what = task::LAUNCH;
    task.stream = stream_of(config->stream);
    task.launch.kernel = kernel;
    task.launch.blocks = config->grid_x;
    task.launch.threads = config->block_x;
    task.launch.cluster = cluster_of(config);
    task.launch.shared_bytes = config->shared_bytes;
    for (int i = 0; i < 2 && kernel->param_bytes[i] > 0; i++) {
        const char *param = (const char *)params[i];
        task.launch.params.insert(task.launch.params.end(), param, param + kernel->param_bytes[i]);
        task.launch.params.resize((task.launch.params.size() + 7) / 8 * 8);
    }
    return submit_or_capture(task);
}
