/* Power and what explains it: GPUs by NVML, loaded at run time, and processor packages by RAPL. */
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

/* ---- NVML, of nvml.h ---- */

typedef struct nvmlDevice_st *nvmlDevice;
enum {
    NVML_CLOCK_SM = 1,
    NVML_TEMPERATURE_GPU = 0,
    NVML_PCIE_TX = 0,
    NVML_PCIE_RX = 1,
    NVML_FI_NVLINK_DATA_TX = 138, /* KiB */
    NVML_FI_NVLINK_DATA_RX = 139,
    NVML_FI_POWER_INSTANT = 186, /* mW */
    NVML_FI_PCIE_BYTES_TX = 197,
    NVML_FI_PCIE_BYTES_RX = 198,
};

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization;

typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    int type, result;
    union {
        double real;
        unsigned u32;
        unsigned long ulong;
        unsigned long long u64;
        long long s64;
        int s32;
        unsigned short u16;
    } value;
} nvmlFieldValue;

/* member, symbol, parameters. Any may be missing from an older library. */
#define NVML_FUNCTIONS(X)                                                                          \
    X(init, nvmlInit_v2, (void))                                                                   \
    X(shutdown, nvmlShutdown, (void))                                                              \
    X(count, nvmlDeviceGetCount_v2, (unsigned *out))                                               \
    X(handle, nvmlDeviceGetHandleByIndex_v2, (unsigned index, nvmlDevice *out))                    \
    X(name, nvmlDeviceGetName, (nvmlDevice device, char *out, unsigned bytes))                     \
    X(uuid, nvmlDeviceGetUUID, (nvmlDevice device, char *out, unsigned bytes))                     \
    X(limit, nvmlDeviceGetEnforcedPowerLimit, (nvmlDevice device, unsigned *mw))                   \
    X(power, nvmlDeviceGetPowerUsage, (nvmlDevice device, unsigned *mw))                           \
    X(energy, nvmlDeviceGetTotalEnergyConsumption, (nvmlDevice device, uint64_t * mj))             \
    X(busy, nvmlDeviceGetUtilizationRates, (nvmlDevice device, nvmlUtilization * out))             \
    X(clock, nvmlDeviceGetClockInfo, (nvmlDevice device, int kind, unsigned *mhz))                 \
    X(max_clock, nvmlDeviceGetMaxClockInfo, (nvmlDevice device, int kind, unsigned *mhz))          \
    X(temperature, nvmlDeviceGetTemperature, (nvmlDevice device, int kind, unsigned *c))           \
    X(reasons, nvmlDeviceGetCurrentClocksEventReasons, (nvmlDevice device, uint64_t * out))        \
    X(reasons_old, nvmlDeviceGetCurrentClocksThrottleReasons, (nvmlDevice device, uint64_t * out)) \
    X(pcie, nvmlDeviceGetPcieThroughput, (nvmlDevice device, int way, unsigned *kb))               \
    X(fields, nvmlDeviceGetFieldValues, (nvmlDevice device, int count, nvmlFieldValue *io))

struct nvml {
#define X(member, symbol, params) int(*member) params;
    NVML_FUNCTIONS(X)
#undef X
    void *library;
};

/* ---- meters ---- */

enum { PCIE_EVERY = 10 }; /* readings: the call measures for 20 ms, and blocks as long */

struct meter {
    struct weft__meter about;
    nvmlDevice device; /* of a GPU */
    char path[512];    /* of a package's folder */
    double range_uj;
    uint64_t at_ns, reads;
    double energy, pcie, nvlink, cpu_all, cpu_idle; /* counters as last read; NAN: not yet */
    double energy_j;                                /* since it was opened */
    double pcie_mbs;                                /* last known */
};

struct weft__power {
    struct nvml nvml;
    bool started;
    struct meter meter[WEFT__METERS_MAX];
    int count;
    char note[2][200]; /* why there is no GPU, no package; "": there is one */
};

/* What a counter grew by; NAN of the first reading. A wrap adds the range, when there is one. */
static double grown(double *counter, double now, double range)
{
    double by = now - *counter;
    *counter = now;
    return by < 0 ? (range > 0 ? by + range : NAN) : by;
}

/* ---- GPUs ---- */

static void load_nvml(struct weft__power *power)
{
    struct nvml *nvml = &power->nvml;
    void *symbol;
    nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (nvml->library == NULL) {
        (void)snprintf(power->note[0], sizeof power->note[0], "no libnvidia-ml.so.1");
        return;
    }
#define X(member, name, params)           \
    symbol = dlsym(nvml->library, #name); \
    memcpy(&nvml->member, &symbol, sizeof symbol);
    NVML_FUNCTIONS(X)
#undef X
    int result = -1;
    if (nvml->init != NULL && nvml->shutdown != NULL && nvml->count != NULL && nvml->handle != NULL)
        result = nvml->init();
    power->started = result == 0;
    if (!power->started)
        (void)snprintf(power->note[0], sizeof power->note[0], "NVML does not start (error %d)",
                       result);
}

static void open_gpus(struct weft__power *power)
{
    const struct nvml *nvml = &power->nvml;
    unsigned count = 0, value;
    load_nvml(power);
    if (!power->started) return;
    if (nvml->count(&count) != 0 || count == 0)
        (void)snprintf(power->note[0], sizeof power->note[0], "NVML names no GPU");
    for (unsigned i = 0; i < count && power->count < WEFT__METERS_MAX; i++) {
        struct meter *m = &power->meter[power->count];
        if (nvml->handle(i, &m->device) != 0) continue;
        m->about = (struct weft__meter){.gpu = true, .limit_w = NAN, .clock_max_mhz = NAN};
        (void)snprintf(m->about.name, sizeof m->about.name, "GPU");
        if (nvml->name != NULL) (void)nvml->name(m->device, m->about.name, sizeof m->about.name);
        if (nvml->uuid != NULL) (void)nvml->uuid(m->device, m->about.id, sizeof m->about.id);
        m->about.name[sizeof m->about.name - 1] = m->about.id[sizeof m->about.id - 1] = '\0';
        if (nvml->limit != NULL && nvml->limit(m->device, &value) == 0 && value > 0)
            m->about.limit_w = value / 1e3;
        if (nvml->max_clock != NULL && nvml->max_clock(m->device, NVML_CLOCK_SM, &value) == 0)
            m->about.clock_max_mhz = value;
        power->count++;
    }
}

static double field_value(const nvmlFieldValue *f)
{
    const double values[] = {f->value.real,        f->value.u32,         (double)f->value.ulong,
                             (double)f->value.u64, (double)f->value.s64, f->value.s32,
                             f->value.u16};
    bool known = f->result == 0 && f->type >= 0 && f->type < (int)WEFT__COUNT(values);
    return known ? values[f->type] : NAN;
}

/* Counters of the links, and the power of now where the card tells it from the last second's. */
static void read_fields(const struct nvml *nvml, struct meter *m, double seconds,
                        struct weft__power_reading *out)
{
    nvmlFieldValue f[] = {{.field = NVML_FI_POWER_INSTANT},
                          {.field = NVML_FI_PCIE_BYTES_TX},
                          {.field = NVML_FI_PCIE_BYTES_RX},
                          {.field = NVML_FI_NVLINK_DATA_TX, .scope = UINT32_MAX},
                          {.field = NVML_FI_NVLINK_DATA_RX, .scope = UINT32_MAX}};
    if (nvml->fields == NULL || nvml->fields(m->device, (int)WEFT__COUNT(f), f) != 0) return;
    double instant = field_value(&f[0]) / 1e3;
    double pcie = grown(&m->pcie, field_value(&f[1]) + field_value(&f[2]), 0);
    double nvlink = grown(&m->nvlink, field_value(&f[3]) + field_value(&f[4]), 0);
    if (instant > 0) out->power_w = instant;
    out->pcie_mbs = pcie / seconds / 1e6;
    out->nvlink_mbs = nvlink * 1024 / seconds / 1e6;
}

static void read_gpu(const struct nvml *nvml, struct meter *m, double seconds,
                     struct weft__power_reading *out)
{
    unsigned value, back;
    uint64_t wide;
    nvmlUtilization busy;
    if (nvml->power != NULL && nvml->power(m->device, &value) == 0) out->power_w = value / 1e3;
    read_fields(nvml, m, seconds, out);
    if (nvml->busy != NULL && nvml->busy(m->device, &busy) == 0) {
        out->busy = busy.gpu;
        out->memory_busy = busy.memory;
    }
    if (nvml->clock != NULL && nvml->clock(m->device, NVML_CLOCK_SM, &value) == 0)
        out->clock_mhz = value;
    if (nvml->temperature != NULL &&
        nvml->temperature(m->device, NVML_TEMPERATURE_GPU, &value) == 0)
        out->temperature_c = value;
    int (*reasons)(nvmlDevice, uint64_t *) =
        nvml->reasons != NULL ? nvml->reasons : nvml->reasons_old;
    if (reasons != NULL && reasons(m->device, &wide) == 0) out->reasons = wide;
    if (isnan(out->pcie_mbs) && isnan(m->pcie) && nvml->pcie != NULL) {
        if (m->reads % PCIE_EVERY == 0 && nvml->pcie(m->device, NVML_PCIE_TX, &value) == 0 &&
            nvml->pcie(m->device, NVML_PCIE_RX, &back) == 0)
            m->pcie_mbs = ((double)value + back) / 1e3;
        out->pcie_mbs = m->pcie_mbs;
    }
    double joules = out->power_w * seconds;
    if (nvml->energy != NULL && nvml->energy(m->device, &wide) == 0)
        joules = grown(&m->energy, (double)wide / 1e3, 0);
    if (joules > 0) m->energy_j += joules;
}

/* ---- packages ---- */

static bool read_line(const char *dir, const char *name, char *out, size_t bytes)
{
    char path[640];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    bool good = fgets(out, (int)bytes, file) != NULL;
    (void)fclose(file);
    if (good) out[strcspn(out, "\n")] = '\0';
    return good;
}

static double read_number(const char *dir, const char *name)
{
    char text[64], *end;
    if (!read_line(dir, name, text, sizeof text)) return NAN;
    double value = strtod(text, &end);
    return end != text && value >= 0 ? value : NAN;
}

static void open_packages(struct weft__power *power, const char *powercap)
{
    char *note = power->note[1];
    const size_t room = sizeof power->note[1];
    int found = 0;
    for (int i = 0; i < WEFT__METERS_MAX && power->count < WEFT__METERS_MAX; i++) {
        struct meter *m = &power->meter[power->count];
        char name[64];
        (void)snprintf(m->path, sizeof m->path, "%.400s/intel-rapl:%d", powercap, i);
        if (!read_line(m->path, "name", name, sizeof name)) break;
        if (strncmp(name, "package", 7) != 0) continue; /* psys holds the packages */
        found++;
        if (isnan(read_number(m->path, "energy_uj"))) {
            (void)snprintf(note, room, "%.120s/energy_uj: %s (only root reads it)", m->path,
                           strerror(errno));
            continue;
        }
        m->about = (struct weft__meter){.limit_w = NAN, .clock_max_mhz = NAN};
        (void)snprintf(m->about.name, sizeof m->about.name, "CPU %s", name);
        (void)snprintf(m->about.id, sizeof m->about.id, "intel-rapl:%d", i);
        m->range_uj = read_number(m->path, "max_energy_range_uj");
        double limit = read_number(m->path, "constraint_0_power_limit_uw") / 1e6;
        if (limit > 0) m->about.limit_w = limit;
        power->count++;
    }
    if (found == 0)
        (void)snprintf(note, room, "no package under %.150s (RAPL is absent here)", powercap);
}

static void read_package(struct meter *m, double seconds, struct weft__power_reading *out)
{
    double joules = grown(&m->energy, read_number(m->path, "energy_uj"), m->range_uj) / 1e6;
    out->power_w = joules / seconds;
    if (joules > 0) m->energy_j += joules;
    /* Busy: of all processors; user nice system idle iowait irq softirq steal. */
    char text[512], *at = text + 4, *end;
    if (!read_line("/proc", "stat", text, sizeof text) || strlen(text) < 5) return;
    double all = 0, idle = 0;
    for (int i = 0; i < 8; i++, at = end) {
        double ticks = strtod(at, &end);
        all += ticks;
        if (i == 3 || i == 4) idle += ticks;
    }
    double spent = grown(&m->cpu_all, all, 0), slept = grown(&m->cpu_idle, idle, 0);
    if (spent > 0) out->busy = 100 * fmin(fmax(1 - slept / spent, 0), 1);
}

/* ---- all of them ---- */

weft_status weft__power_open(const char *powercap, struct weft__power **out, weft_error *err)
{
    struct weft__power *power = calloc(1, sizeof *power);
    if (power == NULL) return weft__fail_oom(err, sizeof *power, "the meters");
    open_gpus(power);
    open_packages(power, powercap);
    for (int i = 0; i < power->count; i++) {
        struct meter *m = &power->meter[i];
        m->energy = m->pcie = m->nvlink = m->cpu_all = m->cpu_idle = m->pcie_mbs = NAN;
        m->at_ns = weft__now_ns();
    }
    *out = power;
    return WEFT_OK;
}

void weft__power_close(struct weft__power *power)
{
    if (power == NULL) return;
    if (power->started) (void)power->nvml.shutdown();
    if (power->nvml.library != NULL) (void)dlclose(power->nvml.library);
    free(power);
}

int weft__power_count(const struct weft__power *power) { return power->count; }

const struct weft__meter *weft__power_meter(const struct weft__power *power, int i)
{
    return &power->meter[i].about;
}

const char *weft__power_note(const struct weft__power *power, bool gpu)
{
    return power->note[gpu ? 0 : 1];
}

void weft__power_read(struct weft__power *power, int i, struct weft__power_reading *out)
{
    struct meter *m = &power->meter[i];
    uint64_t now = weft__now_ns();
    double seconds = fmax((double)(now - m->at_ns) / 1e9, 1e-6);
    *out = (struct weft__power_reading){.power_w = NAN,
                                        .busy = NAN,
                                        .memory_busy = NAN,
                                        .clock_mhz = NAN,
                                        .temperature_c = NAN,
                                        .pcie_mbs = NAN,
                                        .nvlink_mbs = NAN};
    m->at_ns = now;
    if (m->about.gpu)
        read_gpu(&power->nvml, m, seconds, out);
    else
        read_package(m, seconds, out);
    m->reads++;
    out->energy_j = m->energy_j;
}
