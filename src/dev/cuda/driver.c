/* driver.c: loads the driver and the embedded kernels. */
#include <dlfcn.h>
#include <string.h>

#include "driver.h"

extern const struct {
    const char *name;
    const uint8_t *start, *end;
} weft__cuda_images[]; /* cmake/kernels.cmake */

weft_status weft__cuda_fail(const struct weft__cuda_driver *driver, CUresult result,
                            const char *what, weft_error *err)
{
    const char *name = NULL;
    if (driver->error_name == NULL || driver->error_name(result, &name) != CUDA_SUCCESS)
        name = "unknown error";
    return weft__fail(err, WEFT_DEVICE, "CUDA: %s: %s (%d)", what, name, result);
}

weft_status weft__cuda_load(struct weft__cuda_driver *out, weft_error *err)
{
    static const char *const names[] = {
#define X(member, symbol, params) #symbol,
        WEFT__CUDA_FUNCTIONS(X)
#undef X
    };
    struct weft__cuda_driver driver = {.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (driver.library == NULL)
        return weft__fail(err, WEFT_UNSUPPORTED,
                          "no CUDA driver on this machine (%s): install NVIDIA's, or use CPU ranks",
                          dlerror());
    CUresult (**member)(unsigned) = &driver.init; /* the first of the table */
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < WEFT__COUNT(names) && status == WEFT_OK; i++) {
        void *symbol = dlsym(driver.library, names[i]);
        memcpy(&member[i], &symbol, sizeof symbol);
        if (symbol == NULL)
            status = weft__fail(err, WEFT_UNSUPPORTED,
                                "the CUDA driver has no %s: weft needs driver 525 (CUDA 12) or "
                                "newer",
                                names[i]);
    }
    CUresult result = status == WEFT_OK ? driver.init(0) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        (void)weft__cuda_fail(&driver, result, "no usable device: starting the driver", err);
        status = WEFT_UNSUPPORTED;
        if (err != NULL) err->status = status;
    }
    if (status == WEFT_OK)
        *out = driver;
    else
        weft__cuda_unload(&driver);
    return status;
}

void weft__cuda_unload(struct weft__cuda_driver *driver)
{
    if (driver->library != NULL) (void)dlclose(driver->library);
    *driver = (struct weft__cuda_driver){0};
}

weft_status weft__cuda_kernel(const struct weft__cuda_device *device, const char *name,
                              CUfunction *out, weft_error *err)
{
    const struct weft__cuda_driver *driver = &device->driver;
    for (int i = 0; i < device->libraries; i++) {
        CUkernel kernel;
        if (driver->library_kernel(&kernel, device->library[i], name) == CUDA_SUCCESS) {
            WEFT__CUDA_TRY(driver, kernel_function(out, kernel), name, err);
            return WEFT_OK;
        }
    }
    return weft__fail(err, WEFT_UNSUPPORTED,
                      "kernel %s is not in this build: build weft where nvcc is found", name);
}

/* Which machine code the driver has chosen, by running some. */
static weft_status probe_arch(struct weft__cuda_device *device, weft_error *err)
{
    enum { COUNT = 64 };
    const struct weft__cuda_driver *driver = &device->driver;
    CUfunction function;
    WEFT__TRY(weft__cuda_kernel(device, "weft__probe", &function, err));
    CUdeviceptr memory;
    WEFT__CUDA_TRY(driver, mem_alloc(&memory, COUNT * 4), "allocating", err);
    uint32_t count = COUNT, seen[COUNT] = {0};
    void *params[] = {&memory, &count};
    CUlaunchConfig config = {1, 1, 1, COUNT, 1, 1, 0, NULL, NULL, 0};
    CUresult result = driver->launch(&config, function, params, NULL);
    if (result == CUDA_SUCCESS) result = driver->to_host(seen, memory, sizeof seen);
    (void)driver->mem_free(memory);
    if (result != CUDA_SUCCESS) return weft__cuda_fail(driver, result, "running a kernel", err);
    for (uint32_t i = 0; i < COUNT; i++)
        if (seen[i] != i * 3 + seen[0])
            return weft__fail(err, WEFT_DEVICE,
                              "CUDA device %d: the probe kernel stored %u, not %u", device->ordinal,
                              seen[i], i * 3 + seen[0]);
    device->arch = (int)seen[0];
    return WEFT_OK;
}

static weft_status load_images(struct weft__cuda_device *device,
                               const struct weft__cuda_device *lender, weft_error *err)
{
    const struct weft__cuda_driver *driver = &device->driver;
    if (lender != NULL) {
        memcpy(device->library, lender->library, sizeof device->library);
        device->libraries = lender->libraries;
        device->arch = lender->arch;
        device->borrowed = true;
        return WEFT_OK;
    }
    for (int i = 0; weft__cuda_images[i].name != NULL; i++) {
        if (i == WEFT__CUDA_IMAGES_MAX)
            return weft__fail(err, WEFT_INTERNAL, "more than %d kernel images", i);
        WEFT__CUDA_TRY(driver,
                       library_load(&device->library[i], weft__cuda_images[i].start, NULL, NULL, 0,
                                    NULL, NULL, 0),
                       weft__cuda_images[i].name, err);
        device->libraries++;
    }
    return probe_arch(device, err);
}

static weft_status find_device(struct weft__cuda_device *device, weft_error *err)
{
    const struct weft__cuda_driver *driver = &device->driver;
    int count;
    WEFT__CUDA_TRY(driver, device_count(&count), "counting devices", err);
    if (device->ordinal < 0 || device->ordinal >= count)
        return weft__fail(err, WEFT_NOT_FOUND, "CUDA device %d: this machine has %d, from 0 on",
                          device->ordinal, count);
    WEFT__CUDA_TRY(driver, device_get(&device->device, device->ordinal), "finding a device", err);
    WEFT__CUDA_TRY(driver,
                   device_attribute(&device->processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                                    device->device),
                   "reading an attribute", err);
    WEFT__CUDA_TRY(driver,
                   device_attribute(&device->shared_max,
                                    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                                    device->device),
                   "reading an attribute", err);
    WEFT__CUDA_TRY(driver, context_retain(&device->context, device->device), "making a context",
                   err);
    return WEFT_OK;
}

weft_status weft__cuda_open(int ordinal, const struct weft__cuda_device *lender,
                            struct weft__cuda_device *out, weft_error *err)
{
    struct weft__cuda_device device = {.ordinal = ordinal};
    WEFT__TRY(weft__cuda_load(&device.driver, err));
    weft_status status = find_device(&device, err);
    if (status == WEFT_OK) {
        (void)device.driver.context_push(device.context);
        status = load_images(&device, lender, err);
        CUcontext popped;
        (void)device.driver.context_pop(&popped);
    }
    if (status != WEFT_OK)
        weft__cuda_close(&device);
    else
        *out = device;
    return status;
}

void weft__cuda_close(struct weft__cuda_device *device)
{
    for (int i = 0; i < device->libraries && !device->borrowed; i++)
        (void)device->driver.library_unload(device->library[i]);
    if (device->context != NULL) (void)device->driver.context_release(device->device);
    weft__cuda_unload(&device->driver);
    *device = (struct weft__cuda_device){0};
}
