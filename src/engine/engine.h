/* engine.h: owns ranks and life cycles.
 *
 *   weft__ranks   p ranks that run one batch together; no queue, no text
 *   weft_engine   a thread that drives weft__sched over the ranks; submit and cancel are
 *                 thread-safe */
#ifndef WEFT_SRC_ENGINE_H
#define WEFT_SRC_ENGINE_H

#include "format/format.h"
#include "model/model.h"
#include "sched/sched.h"
#include "token/chat.h"
#include "token/token.h"
#include "weft.h"

/* ---- ranks ---- */

struct weft__ranks;

struct weft__ranks_options {
    int size, threads;
    bool pinned; /* rank r's team starts at CPU r * threads */
    bool portable;
    uint32_t timeout_ms;
    const char *rendezvous; /* of weft_world_options; NULL: threads */
    struct weft__model_limits limits;
    void (*on_progress)(void *ctx, double share); /* NULL, or rank 0's */
    void *ctx;
};

struct weft__rank_stats {
    const char *device;              /* "cpu" */
    uint64_t steps, busy_ns;         /* inside forward passes */
    uint64_t collective_ns, wait_ns; /* of these: in collectives; of those: waiting for peers */
    /* The rest of busy_ns, shared out by the rows of each step: prompt rows and sampled ones. */
    uint64_t prefill_ns, decode_ns;
    uint64_t sample_ns; /* between passes, rank 0: planning, sampling, handing tokens out */
    struct weft__tiling_choice tiling[WEFT__TILING_KINDS]; /* the same on all ranks */
};

/* The calling thread becomes rank 0's and must be the one that steps. */
weft_status weft__ranks_open(const struct weft__arch *arch, struct weft__checkpoint *checkpoint,
                             const struct weft__ranks_options *options, struct weft__ranks **out,
                             weft_error *err);
/* NULL allowed. False: a rank's thread hangs and was left behind, with all that it uses; so arch
 * and checkpoint must stay, too. */
bool weft__ranks_close(struct weft__ranks *ranks);

/* Runs one of the other ranks in this process until rank 0 closes or all fail. Of the options only
 * size, timeout_ms at open and rendezvous are this rank's, the rest is rank 0's. */
weft_status weft__ranks_follow(const char *dir, const struct weft__ranks_options *options, int rank,
                               weft_error *err);

/* logits [outputs, vocab], valid until the next step. After a failure every step fails; err is not
 * NULL. */
weft_status weft__ranks_step(struct weft__ranks *ranks, const struct weft__batch *batch,
                             const float **logits, weft_error *err);

/* Between steps only; of the other ranks, as the last step found them. */
struct weft__rank_stats weft__ranks_stats(const struct weft__ranks *ranks, int rank);

/* ---- a model directory ---- */

enum { WEFT__EOS_MAX = 16 };

struct weft__generation_config { /* generation_config.json, with defaults filled in */
    struct weft__sampling sampling;
    int32_t eos[WEFT__EOS_MAX];
    int32_t eos_count;
    int64_t max_new_tokens; /* where the request sets no limit; 0: none given */
};

/* generation_config.json (absent: defaults), and the eos ids of config.json. */
weft_status weft__generation_config_load(const char *dir, int64_t vocab,
                                         struct weft__generation_config *out, weft_error *err);
/* Once each; ids outside the vocabulary are left out, since nothing generates them. */
void weft__generation_config_add_eos(struct weft__generation_config *config, int64_t id,
                                     int64_t vocab);

/* ---- sizing ---- */

/* Bytes this process may still use: MemAvailable, bounded by the limits of its control groups. */
uint64_t weft__memory_available(void);
/* The directory of the group whose limits for the controller hold: in version 1 each may have its
 * own, "4:memory:/path" in own, the text of /proc/self/cgroup; version 2 has the others,
 * "0::/path". */
void weft__group_find(const char *own, const char *controller, char *dir, size_t size);
/* What the control group at dir still allows, pages of files taken as free, as in MemAvailable;
 * UINT64_MAX: it has no limit. */
uint64_t weft__group_memory(const char *dir);
/* CPUs this process may keep busy: those it may run on, at most as many as a quota is for. */
int weft__cpu_count(void);
int weft__group_cpus(const char *dir); /* INT32_MAX: the control group has no quota */
int weft__numa_nodes(void);
/* Where no number of ranks is asked for: one a NUMA node, as far as each gets a CPU. */
int weft__default_ranks(int nodes, int cpus);

struct weft__plan { /* everything weft_engine_options leaves open, decided */
    struct weft__ranks_options ranks;
    int64_t context, max_running, max_queue;
    bool context_reduced;                         /* below the model's, because of memory */
    uint64_t weights_bytes, kv_bytes, work_bytes; /* all ranks; weights: of the files */
};

/* What one step of sequences up to `context` may hold; its pages are left open. */
struct weft__model_limits weft__plan_limits(const weft_engine_options *options, int64_t context);
/* Decides, or says with numbers why the model does not fit. */
weft_status weft__plan_make(const struct weft__arch *arch, struct weft__checkpoint *checkpoint,
                            const weft_engine_options *options, struct weft__plan *out,
                            weft_error *err);

/* Starts reading the weights that the model uses; with on_progress, waits for them and reports, to
 * the other ranks by signs of life. */
void weft__warm(const struct weft__checkpoint *checkpoint, const struct weft__arch *arch,
                const struct weft__ranks_options *options, weft_comm *comm);

/* ---- engine, for the server and the programs ---- */

struct weft__engine_view { /* immutable while the engine lives; borrowed */
    const char *dir;
    const struct weft__arch *arch;
    struct weft__checkpoint *checkpoint;
    const struct weft__tokenizer *tokenizer; /* NULL: the directory has none */
    const struct weft__chat *chat;
    const struct weft__generation_config *generation;
    const struct weft__plan *plan;
    uint64_t load_ns;
};
const struct weft__engine_view *weft__engine_view(const weft_engine *engine);

/* As weft__sched_submit, from any thread but not from a callback. Callbacks come on the engine's
 * thread. CLOSED after a failure or close. */
weft_status weft__engine_submit(weft_engine *engine, const struct weft__request *request,
                                uint64_t *handle, weft_error *err);
/* From any thread, callbacks excepted (they call the weft__sched functions). */
void weft__engine_cancel(weft_engine *engine, uint64_t handle);
void weft__engine_flush(weft_engine *engine);
/* For callbacks: the scheduler they may call cancel and stop of. */
struct weft__sched *weft__engine_sched(weft_engine *engine);

struct weft__engine_status {
    struct weft__sched_counters counters;
    struct weft__rank_stats rank[WEFT__MAX_RANKS];
    uint64_t last_step_ns; /* clock when the last step ended; 0: none yet */
    bool failed;
    weft_error error;
};
void weft__engine_status(weft_engine *engine, struct weft__engine_status *out);

#endif
