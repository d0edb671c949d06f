/* A libnvidia-ml.so.1 for tests: replays the series of the file that WEFT_FAKE_NVML names, by the
 * time since nvmlInit. Lines of it:
 *
 *     gpu INDEX LIMIT_MW MAX_MHZ PCIE_BYTES_A_SECOND NVLINK_KIB_A_SECOND
 *     at INDEX MS BUSY MEMORY MW MHZ REASONS       from then on
 *     without WHAT                                 fields, energy or pcie: is not supported here */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
enum { GPUS = 16, STEPS = 64, OK = 0, INVALID = 2, NOT_SUPPORTED = 3 };

struct step {
    double ms;
    unsigned busy, memory, mw, mhz, reasons;
};
static struct gpu {
    unsigned limit, max_mhz;
    double pcie, nvlink;
    struct step step[STEPS];
    int steps;
} gpu[GPUS];
static unsigned gpus;
static int no_fields, no_energy, no_pcie;
static double began;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6 - began;
}

static const struct step *step_of(const struct gpu *g)
{
    const struct step *found = &g->step[0];
    for (int i = 0; i < g->steps; i++)
        if (g->step[i].ms <= now_ms()) found = &g->step[i];
    return found;
}

/* mJ since the start, exactly. */
static double energy_of(const struct gpu *g)
{
    double sum = 0, now = now_ms();
    for (int i = 0; i < g->steps && g->step[i].ms < now; i++) {
        double end = i + 1 < g->steps && g->step[i + 1].ms < now ? g->step[i + 1].ms : now;
        sum += (end - g->step[i].ms) / 1e3 * g->step[i].mw;
    }
    return sum;
}

EXPORT int nvmlInit_v2(void)
{
    char line[256], word[32];
    FILE *file = fopen(getenv("WEFT_FAKE_NVML"), "r");
    if (file == NULL) return 9; /* driver not loaded */
    began = 0;
    began = now_ms();
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned i = 0;
        struct gpu g = {0};
        struct step s;
        if (sscanf(line, "gpu %u %u %u %lf %lf", &i, &g.limit, &g.max_mhz, &g.pcie, &g.nvlink) ==
                5 &&
            i < GPUS) {
            gpu[i] = g;
            if (i >= gpus) gpus = i + 1;
        } else if (sscanf(line, "at %u %lf %u %u %u %u %u", &i, &s.ms, &s.busy, &s.memory, &s.mw,
                          &s.mhz, &s.reasons) == 7 &&
                   i < GPUS && gpu[i].steps < STEPS) {
            gpu[i].step[gpu[i].steps++] = s;
        } else if (sscanf(line, "without %31s", word) == 1) {
            no_fields |= strcmp(word, "fields") == 0;
            no_energy |= strcmp(word, "energy") == 0;
            no_pcie |= strcmp(word, "pcie") == 0;
        }
    }
    fclose(file);
    return OK;
}

EXPORT int nvmlShutdown(void) { return OK; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *out) { return *out = gpus, OK; }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned i, struct gpu **out)
{
    return *out = &gpu[i], OK;
}
EXPORT int nvmlDeviceGetName(struct gpu *g, char *out, unsigned n)
{
    (void)g;
    snprintf(out, n, "Fake GPU");
    return OK;
}
EXPORT int nvmlDeviceGetUUID(struct gpu *g, char *out, unsigned n)
{
    snprintf(out, n, "GPU-%d", (int)(g - gpu));
    return OK;
}
EXPORT int nvmlDeviceGetEnforcedPowerLimit(struct gpu *g, unsigned *mw)
{
    return *mw = g->limit, OK;
}
EXPORT int nvmlDeviceGetPowerUsage(struct gpu *g, unsigned *mw) { return *mw = step_of(g)->mw, OK; }
EXPORT int nvmlDeviceGetTotalEnergyConsumption(struct gpu *g, unsigned long long *mj)
{
    *mj = (unsigned long long)energy_of(g);
    return no_energy ? NOT_SUPPORTED : OK;
}
EXPORT int nvmlDeviceGetUtilizationRates(struct gpu *g, unsigned out[2])
{
    out[0] = step_of(g)->busy;
    out[1] = step_of(g)->memory;
    return OK;
}
EXPORT int nvmlDeviceGetClockInfo(struct gpu *g, int kind, unsigned *mhz)
{
    *mhz = step_of(g)->mhz;
    return kind == 1 ? OK : INVALID;
}
EXPORT int nvmlDeviceGetMaxClockInfo(struct gpu *g, int kind, unsigned *mhz)
{
    *mhz = g->max_mhz;
    return kind == 1 ? OK : INVALID;
}
EXPORT int nvmlDeviceGetTemperature(struct gpu *g, int kind, unsigned *c)
{
    (void)g, (void)kind;
    return *c = 55, OK;
}
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(struct gpu *g, unsigned long long *out)
{
    return *out = step_of(g)->reasons, OK;
}
EXPORT int nvmlDeviceGetPcieThroughput(struct gpu *g, int way, unsigned *kb)
{
    (void)way;
    *kb = (unsigned)(g->pcie / 2 / 1e3);
    return no_pcie ? NOT_SUPPORTED : OK;
}

/* nvmlFieldValue_t of nvml.h, API 12 and 13. */
struct field {
    unsigned id, scope;
    long long timestamp, latency;
    int type, result;
    union {
        unsigned u32;
        unsigned long long u64;
    } value;
};

EXPORT int nvmlDeviceGetFieldValues(struct gpu *g, int count, struct field *f)
{
    double seconds = now_ms() / 1e3;
    if (no_fields) return NOT_SUPPORTED;
    for (int i = 0; i < count; i++) {
        f[i].type = 3;
        f[i].result = OK;
        if (f[i].id == 186) {
            f[i].type = 1;
            f[i].value.u32 = step_of(g)->mw;
        } else if (f[i].id == 197 || f[i].id == 198) {
            f[i].value.u64 = (unsigned long long)(g->pcie / 2 * seconds);
            if (no_pcie) f[i].result = NOT_SUPPORTED;
        } else if ((f[i].id == 138 || f[i].id == 139) && f[i].scope == 0xffffffffu) {
            f[i].value.u64 = (unsigned long long)(g->nvlink / 2 * seconds);
            if (g->nvlink == 0) f[i].result = NOT_SUPPORTED;
        } else {
            f[i].result = INVALID;
        }
    }
    return OK;
}
