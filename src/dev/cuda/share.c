/* share.c: memory of GPU ranks that are processes: device memory whose descriptors go through the
 * meeting's sockets, and host memory of a file without a name, pinned by every process. The memory
 * of a process that ends lives on as long as others map it. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "comm.h"

static CUmemAllocationProp memory_of(const struct weft__cuda_device *device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                 .location = {CU_MEM_LOCATION_TYPE_DEVICE, device->device}};
}

/* Maps a handle for this rank's device. */
static CUresult map_device(const struct weft__cuda_device *device, uint64_t handle, size_t bytes,
                           CUdeviceptr *out)
{
    const struct weft__cuda_driver *driver = &device->driver;
    CUmemAccessDesc access = {.location = memory_of(device).location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr at = 0;
    CUresult result = driver->memory_reserve(&at, bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS) return result;
    result = driver->memory_map(at, bytes, 0, handle, 0);
    if (result == CUDA_SUCCESS) {
        result = driver->memory_access(at, bytes, &access, 1);
        if (result == CUDA_SUCCESS) {
            *out = at;
            return CUDA_SUCCESS;
        }
        (void)driver->memory_unmap(at, bytes);
    }
    (void)driver->memory_unreserve(at, bytes);
    return result;
}

static weft_status make_device(const struct weft__cuda_device *device,
                               struct weft__cuda_memory *memory, int *fd, weft_error *err)
{
    const struct weft__cuda_driver *driver = &device->driver;
    CUmemAllocationProp what = memory_of(device);
    size_t unit = 1;
    uint64_t handle;
    WEFT__CUDA_TRY(driver, memory_unit(&unit, &what, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                   "asking for the unit of shared memory", err);
    memory->device_bytes = weft__round_up(memory->device_bytes, unit);
    WEFT__CUDA_TRY(driver, memory_create(&handle, memory->device_bytes, &what, 0),
                   "allocating exchange buffers", err);
    CUresult result = map_device(device, handle, memory->device_bytes, &memory->device);
    if (result == CUDA_SUCCESS)
        result = driver->memory_export(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    (void)driver->memory_release(handle); /* the mapping and the descriptor keep it */
    if (result == CUDA_SUCCESS) return WEFT_OK;
    return weft__cuda_fail(driver, result, "sharing exchange buffers with other processes", err);
}

static void *map_host(const struct weft__cuda_driver *driver, int fd, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) return NULL;
    CUresult result =
        driver->host_register(memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (result == CUDA_SUCCESS) return memory;
    (void)munmap(memory, bytes);
    return NULL;
}

static weft_status make_host(const struct weft__cuda_driver *driver,
                             struct weft__cuda_memory *memory, int *fd, weft_error *err)
{
    *fd = memfd_create("weft", MFD_CLOEXEC);
    if (*fd >= 0 && ftruncate(*fd, (off_t)memory->host_bytes) == 0)
        memory->host = map_host(driver, *fd, memory->host_bytes);
    if (memory->host != NULL) return WEFT_OK;
    return weft__fail(err, WEFT_NO_MEMORY, "%zu MiB of pinned shared memory for a GPU rank",
                      memory->host_bytes >> 20);
}

/* A peer's memory, as far as this device reaches it: without, the host path is left. */
static weft_status take_peer(const struct weft__cuda_rank *rank, struct weft__cuda_memory *memory,
                             const struct weft__parcel *parcel, int member, int world_rank,
                             weft_error *err)
{
    const struct weft__cuda_driver *driver = &rank->device.driver;
    uint64_t handle;
    void *descriptor = (void *)(uintptr_t)parcel->fd[0];
    if (driver->memory_import(&handle, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
        CUDA_SUCCESS) {
        (void)map_device(&rank->device, handle, memory->device_bytes,
                         &memory->mapped_device[member]);
        (void)driver->memory_release(handle);
    }
    memory->mapped_host[member] = map_host(driver, parcel->fd[1], memory->host_bytes);
    if (memory->mapped_host[member] != NULL) return WEFT_OK;
    return weft__fail(err, WEFT_NO_MEMORY, "mapping %zu MiB of pinned memory of rank %d's process",
                      memory->host_bytes >> 20, world_rank);
}

weft_status weft__cuda_share(const struct weft__comm_link *link, struct weft__cuda_rank *rank,
                             struct weft__cuda_memory *memory, weft_error *err)
{
    struct weft__parcel mine = {.fd = {-1, -1, -1, -1}}, all[WEFT_COMM_RANKS_MAX];
    weft_error why = {0};
    uint32_t mask = 0;
    for (int m = 0; m < link->size; m++) mask |= 1u << link->world_rank[m];
    weft_status status = make_device(&rank->device, memory, &mine.fd[0], &why);
    if (status == WEFT_OK) status = make_host(&rank->device.driver, memory, &mine.fd[1], &why);
    memcpy(mine.bytes, &why, sizeof why); /* a rank that has failed comes, too, and says why */
    if (status != WEFT_OK) {
        if (mine.fd[0] >= 0) (void)close(mine.fd[0]);
        mine.fd[0] = mine.fd[1] = -1;
    }
    status = weft__meeting_exchange(link->meeting, mask, &mine, all, err);
    for (int m = 0; m < link->size && status == WEFT_OK; m++) {
        int r = link->world_rank[m];
        memcpy(&why, all[r].bytes, sizeof why);
        if (why.status != WEFT_OK) {
            why.text[sizeof why.text - 1] = '\0';
            status = weft__fail(err, WEFT_PEER, "rank %d: %s", r, why.text);
        } else if (m == link->rank) {
            memory->mapped_device[m] = memory->device;
            memory->mapped_host[m] = memory->host;
        } else {
            status = take_peer(rank, memory, &all[r], m, r, err);
        }
    }
    for (int m = 0; m < link->size; m++)
        for (int i = 0; i < 2 && m != link->rank; i++)
            if (all[link->world_rank[m]].fd[i] >= 0) (void)close(all[link->world_rank[m]].fd[i]);
    for (int i = 0; i < 2; i++)
        if (mine.fd[i] >= 0) (void)close(mine.fd[i]);
    return status;
}

static void drop(const struct weft__cuda_driver *driver, const struct weft__cuda_memory *memory,
                 CUdeviceptr device, void *host)
{
    if (device != 0) {
        (void)driver->memory_unmap(device, memory->device_bytes);
        (void)driver->memory_unreserve(device, memory->device_bytes);
    }
    if (host != NULL) {
        (void)driver->host_unregister(host);
        (void)munmap(host, memory->host_bytes);
    }
}

void weft__cuda_unshare(const struct weft__cuda_driver *driver, struct weft__cuda_memory *memory)
{
    for (int m = 0; m < WEFT_COMM_RANKS_MAX; m++)
        if (memory->mapped_device[m] != memory->device || memory->mapped_host[m] != memory->host)
            drop(driver, memory, memory->mapped_device[m], memory->mapped_host[m]);
    drop(driver, memory, memory->device, memory->host);
    *memory = (struct weft__cuda_memory){0};
}
