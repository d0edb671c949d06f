/* Decides what the options leave open: ranks, threads, context and the size of the KV pool. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "engine.h"

enum {
    DEFAULT_PROMPTS = 2048, /* tokens of a step beside those that running requests get */
    OUTPUTS = 96, /* rows of a step with logits, if no more requests run: they are large */
    DEFAULT_RUNNING = 64,
    DEFAULT_QUEUE = 4096,
    MAX_THREADS = 1024,
    THREADS_A_CPU = 8, /* at most, all ranks together */
    PATH_BYTES = 4096,
    RESERVE = 256 << 20, /* left to the rest of the process and the machine */
};

static bool read_text(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL) return false;
    size_t len = fread(text, 1, size - 1, file);
    text[len] = '\0';
    (void)fclose(file);
    return len > 0;
}

/* The number behind the key in a file; UINT64_MAX: there is none. */
static uint64_t read_number(const char *dir, const char *name, const char *key)
{
    char path[PATH_BYTES], text[8192], *end;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path ||
        !read_text(path, text, sizeof text))
        return UINT64_MAX;
    const char *at = strstr(text, key);
    if (at == NULL) return UINT64_MAX;
    uint64_t number = strtoull(at + strlen(key), &end, 10);
    return end != at + strlen(key) ? number : UINT64_MAX;
}

/* ---- control groups, both versions: limits of a group and of those around it hold ---- */

static const char groups[] = "/sys/fs/cgroup";

/* Whether the word is in the list ":cpu,cpuacct:". */
static bool lists(const char *list, const char *word)
{
    size_t len = strlen(word), skip;
    do {
        list++;
        skip = strcspn(list, ",:");
        if (skip == len && memcmp(list, word, len) == 0) return true;
        list += skip;
    } while (*list == ',');
    return false;
}

void weft__group_find(const char *own, const char *controller, char *dir, size_t size)
{
    (void)snprintf(dir, size, "%s", groups);
    for (const char *line = own, *end; *line != '\0'; line = end + (*end == '\n')) {
        end = line + strcspn(line, "\n");
        const char *list = memchr(line, ':', (size_t)(end - line));
        const char *path = list ? memchr(list + 1, ':', (size_t)(end - list - 1)) : NULL;
        if (path == NULL) continue;
        int len = (int)(end - ++path);
        if (path - list == 2) (void)snprintf(dir, size, "%s%.*s", groups, len, path);
        if (!lists(list, controller)) continue;
        (void)snprintf(dir, size, "%s/%s%.*s", groups, controller, len, path);
        return;
    }
}

/* The directory of this process's group. */
static void own_group(const char *controller, char *dir, size_t size)
{
    char text[16384];
    bool known = read_text("/proc/self/cgroup", text, sizeof text);
    weft__group_find(known ? text : "", controller, dir, size);
}

/* From a group to the one around it; false: there is none. */
static bool leave_group(char *dir)
{
    if (strlen(dir) < sizeof groups) return false;
    *strrchr(dir, '/') = '\0';
    return true;
}

uint64_t weft__group_memory(const char *dir)
{
    uint64_t max = read_number(dir, "memory.max", ""),
             used = read_number(dir, "memory.current", ""),
             active = read_number(dir, "memory.stat", "\nactive_file "),
             inactive = read_number(dir, "memory.stat", "\ninactive_file ");
    if (used == UINT64_MAX) { /* not version 2 */
        max = read_number(dir, "memory.limit_in_bytes", "");
        used = read_number(dir, "memory.usage_in_bytes", "");
        active = read_number(dir, "memory.stat", "\ntotal_active_file ");
        inactive = read_number(dir, "memory.stat", "\ntotal_inactive_file ");
    }
    if (max == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
    if (active < used && inactive < used - active) used -= active + inactive;
    return max > used ? max - used : 0;
}

int weft__group_cpus(const char *dir)
{
    uint64_t quota = read_number(dir, "cpu.max", ""), period = read_number(dir, "cpu.max", " ");
    if (quota == UINT64_MAX) {
        quota = read_number(dir, "cpu.cfs_quota_us", ""); /* -1, read as UINT64_MAX: none */
        period = read_number(dir, "cpu.cfs_period_us", "");
    }
    if (quota == UINT64_MAX || period == UINT64_MAX || period == 0 || quota / period >= INT32_MAX)
        return INT32_MAX;
    return (int)(quota / period + (quota % period != 0));
}

/* What the limit on address space (ulimit -v) leaves. */
static uint64_t address_space(void)
{
    struct rlimit limit;
    uint64_t kib = read_number("/proc/self", "status", "VmSize:");
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        kib > UINT64_MAX / 1024)
        return UINT64_MAX;
    return limit.rlim_cur > kib * 1024 ? limit.rlim_cur - kib * 1024 : 0;
}

uint64_t weft__memory_available(void)
{
    char dir[PATH_BYTES + 64];
    uint64_t kib = read_number("/proc", "meminfo", "MemAvailable:");
    uint64_t available = kib < UINT64_MAX / 1024 ? kib * 1024 : UINT64_MAX;
    uint64_t space = address_space();
    if (space < available) available = space;
    own_group("memory", dir, sizeof dir);
    do {
        uint64_t left = weft__group_memory(dir);
        if (left < available) available = left;
    } while (leave_group(dir));
    return available;
}

int weft__cpu_count(void)
{
    char dir[PATH_BYTES + 64];
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int count = CPU_COUNT(&set);
    own_group("cpu", dir, sizeof dir);
    do {
        int cpus = weft__group_cpus(dir);
        if (cpus < count) count = cpus;
    } while (leave_group(dir));
    return count > 0 ? count : 1;
}

int weft__numa_nodes(void)
{
    /* "0-3" or "0": nodes are numbered without gaps on the machines this matters for. */
    char text[256];
    if (!read_text("/sys/devices/system/node/online", text, sizeof text)) return 1;
    const char *last = strrchr(text, '-');
    const char *comma = strrchr(text, ',');
    if (comma != NULL && (last == NULL || comma > last)) last = comma;
    return last == NULL ? 1 : (int)strtol(last + 1, NULL, 10) + 1;
}

int weft__default_ranks(int nodes, int cpus)
{
    return (int)weft__min(weft__min(nodes, cpus), WEFT__MAX_RANKS);
}

static weft_status check_options(const weft_engine_options *o, weft_error *err)
{
    static const int64_t most = INT32_MAX;
    const struct {
        const char *name;
        int64_t value, min, max; /* min: beside 0, the default */
    } all[] = {
        {"ranks (--tp)", o->ranks, 1, WEFT__MAX_RANKS},
        {"threads", o->threads, 1, MAX_THREADS},
        {"context", o->context, 1, most},
        {"kv_tokens", o->kv_tokens, 1, most},
        {"chunk", o->chunk, 1, WEFT__CHUNK_MAX},
        {"max_running", o->max_running, 1, most},
        {"max_queue", o->max_queue, 1, most},
        {"activations", (int64_t)o->activations, 0, WEFT_ACTIVATIONS_INT8},
    };
    for (size_t i = 0; i < WEFT__COUNT(all); i++)
        if (all[i].value < 0 || all[i].value > all[i].max)
            return weft__fail(err, WEFT_INVALID, "%s is %lld; %lld to %lld are possible",
                              all[i].name, (long long)all[i].value, (long long)all[i].min,
                              (long long)all[i].max);
    return WEFT_OK;
}

static weft_status choose_ranks(const weft_engine_options *o, struct weft__ranks_options *ranks,
                                weft_error *err)
{
    int nodes = weft__numa_nodes(), cpus = weft__cpu_count();
    ranks->size = o->ranks > 0 ? o->ranks : weft__default_ranks(nodes, cpus);
    ranks->threads = o->threads > 0 ? o->threads : (int)weft__max(cpus / ranks->size, 1);
    /* On one node the kernel places threads better than we would beside other programs. */
    ranks->pinned = nodes > 1 && ranks->size * ranks->threads <= cpus;
    ranks->portable = o->portable;
    ranks->timeout_ms = o->timeout_ms;
    ranks->rendezvous = o->rendezvous;
    ranks->on_progress = o->on_progress;
    ranks->ctx = o->ctx;
    int64_t most = weft__max((int64_t)THREADS_A_CPU * cpus, 4 * WEFT__MAX_RANKS);
    if ((int64_t)ranks->size * ranks->threads > most)
        return weft__fail(
            err, WEFT_INVALID,
            "%d rank%s x %d threads are too many for %d CPUs; at most %lld threads run "
            "here, and more than one a CPU only slows it down",
            ranks->size, ranks->size == 1 ? "" : "s", ranks->threads, cpus, (long long)most);
    return WEFT_OK;
}

/* The memory of all ranks at these limits. */
static void measure(const struct weft__arch *arch, const struct weft__checkpoint *checkpoint,
                    struct weft__plan *plan, uint64_t *page_bytes)
{
    int64_t unit = weft__head_unit(checkpoint, arch);
    for (int r = 0; r < plan->ranks.size; r++) {
        struct weft__shard shard = weft__shard_of(arch, unit, r, plan->ranks.size);
        struct weft__model_bytes bytes = weft__model_measure(arch, &shard, &plan->ranks.limits);
        plan->work_bytes += bytes.work;
        *page_bytes += bytes.kv_page;
    }
    for (int64_t i = 0; i < weft__checkpoint_count(checkpoint); i++) {
        struct weft__tensor tensor = weft__checkpoint_at(checkpoint, i);
        if (weft__tensor_used(arch, &tensor)) plan->weights_bytes += (uint64_t)tensor.bytes;
    }
}

/* How many pages: what is asked for, what fits, and at least one sequence of the context. */
static weft_status size_pool(const weft_engine_options *o, struct weft__plan *plan,
                             uint64_t page_bytes, weft_error *err)
{
    uint64_t available = weft__memory_available();
    uint64_t fixed = plan->weights_bytes + plan->work_bytes + RESERVE;
    uint64_t room = available > fixed ? available - fixed : 0;
    int64_t fit = page_bytes > 0 ? (int64_t)(room / page_bytes) : INT32_MAX;
    int64_t context = plan->ranks.limits.context;
    if (o->context == 0 && fit * WEFT__PAGE < context && fit > 0) {
        context = fit * WEFT__PAGE;
        plan->context_reduced = true;
    }
    int64_t one = weft__ceil_div(context, WEFT__PAGE);
    /* Not all of the room by default: other programs need some before the pool is full. */
    int64_t share = weft__max(fit / 4 * 3, weft__min(one, fit));
    int64_t pages = o->kv_tokens > 0 ? weft__ceil_div(o->kv_tokens, WEFT__PAGE)
                                     : weft__min(one * plan->max_running, share);
    pages = weft__min(pages, WEFT__PAGES_MAX);
    if (pages < one && o->kv_tokens > 0)
        return weft__fail(err, WEFT_INVALID,
                          "a KV pool of %lld tokens does not hold one sequence of %lld; raise "
                          "--kv-tokens or lower --context",
                          (long long)o->kv_tokens, (long long)context);
    if (pages < one || pages > fit)
        return weft__fail(
            err, WEFT_NO_MEMORY,
            "the model does not fit: weights %.0f MiB + work space %.0f MiB + KV cache %.0f MiB "
            "(%lld tokens) + %d MiB for the rest of the machine, but %.0f MiB are available; lower "
            "--context, --kv-tokens or --chunk, or use a smaller or more quantised model",
            weft__mib(plan->weights_bytes), weft__mib(plan->work_bytes),
            weft__mib((uint64_t)weft__max(pages, one) * page_bytes),
            (long long)weft__max(pages, one) * WEFT__PAGE, RESERVE >> 20, weft__mib(available));
    plan->context = context;
    plan->ranks.limits.pages = pages;
    plan->kv_bytes = (uint64_t)pages * page_bytes;
    return WEFT_OK;
}

static int64_t running_of(const weft_engine_options *o)
{
    return o->max_running > 0 ? o->max_running : DEFAULT_RUNNING;
}

struct weft__model_limits weft__plan_limits(const weft_engine_options *o, int64_t context)
{
    int64_t running = running_of(o);
    int64_t chunk = o->chunk > 0 ? weft__max(o->chunk, running)
                                 : running + weft__min(DEFAULT_PROMPTS, context * running);
    return (struct weft__model_limits){.tokens = chunk,
                                       .outputs = weft__min(chunk, weft__max(OUTPUTS, running)),
                                       .activations = o->activations,
                                       .context = context};
}

weft_status weft__plan_make(const struct weft__arch *arch, struct weft__checkpoint *checkpoint,
                            const weft_engine_options *o, struct weft__plan *out, weft_error *err)
{
    struct weft__plan plan = {0};
    uint64_t page_bytes = 0;
    WEFT__TRY(check_options(o, err));
    if (o->context > arch->context)
        return weft__fail(err, WEFT_INVALID, "a context of %lld: the model has %lld positions",
                          (long long)o->context, (long long)arch->context);
    WEFT__TRY(choose_ranks(o, &plan.ranks, err));
    plan.max_running = running_of(o);
    plan.max_queue = o->max_queue > 0 ? o->max_queue : DEFAULT_QUEUE;
    plan.ranks.limits = weft__plan_limits(o, o->context > 0 ? o->context : arch->context);
    measure(arch, checkpoint, &plan, &page_bytes);
    WEFT__TRY(size_pool(o, &plan, page_bytes, err));
    plan.ranks.limits.context = plan.context;
    *out = plan;
    return WEFT_OK;
}
