/* prog.h: what the subcommands share: options, numbers, errors for people. */
#ifndef WEFT_SRC_PROG_H
#define WEFT_SRC_PROG_H

#include "engine/engine.h"

/* Exit statuses. */
enum { WEFT__EXIT_OK = 0, WEFT__EXIT_FAILED = 1, WEFT__EXIT_USAGE = 2 };

/* name, summary */
#define WEFT__COMMANDS(X)                                                    \
    X(run, "run", "chat or complete in the terminal")                        \
    X(serve, "serve", "answer over HTTP, OpenAI-compatible, with a console") \
    X(check, "check", "compare logits and greedy tokens with a reference")   \
    X(perplexity, "perplexity", "how well a model predicts a text")          \
    X(bench, "bench", "load a server, compare runs, diagnose busy GPUs")     \
    X(comm_bench, "comm-bench", "time the collectives, and check them")      \
    X(tokenize, "tokenize", "text to token ids and back")                    \
    X(info, "info", "what a model directory holds and needs")                \
    X(quantize, "quantize", "write a checkpoint as NVFP4 or FP8")            \
    X(synth, "synth", "write a random checkpoint of a real model's shapes")

#define X(name, word, summary) int weft__cmd_##name(int argc, char **argv);
WEFT__COMMANDS(X)
#undef X

/* ---- options ---- */

enum weft__option_kind {
    WEFT__OPTION_END,
    WEFT__OPTION_FLAG,   /* bool */
    WEFT__OPTION_INT,    /* int64_t, min to max */
    WEFT__OPTION_DOUBLE, /* double, min to max */
    WEFT__OPTION_STRING, /* const char * */
    WEFT__OPTION_CHOICE, /* of "a|b": the int64_t index */
};

struct weft__option {
    enum weft__option_kind kind;
    const char *name;  /* without the dashes */
    void *target;      /* keeps its value when the option is absent */
    double min, max;   /* of numbers */
    const char *value; /* what the help calls the value: "N" */
    const char *help;
};

/* Gives an option the value that `text` stands for, which is borrowed; a flag's is true or false.
 */
weft_status weft__option_set(const struct weft__option *option, const char *text, weft_error *err);

struct weft__command_line {
    const char *command;                /* "run" */
    const char *synopsis;               /* "MODEL [PROMPT]" */
    const char *about;                  /* a line for the help */
    const struct weft__option *options; /* ends with WEFT__OPTION_END */
    int arguments_min, arguments_max;   /* positional ones */
    const char *argument[8];            /* filled in */
    int arguments;
};

/* Reads argv[1..]. True: go on. False: help was asked for or the usage is wrong, which has been
 * said; *status is then the exit status. Unambiguous prefixes of names are accepted. */
bool weft__command_line_parse(struct weft__command_line *line, int argc, char **argv, int *status);

/* The engine's options. */
struct weft__engine_flags {
    int64_t ranks, threads, context, kv_tokens, chunk, timeout_s;
    int64_t activations;    /* weft_activations */
    int64_t rank_kind;      /* threads, processes, mpi */
    const char *rendezvous; /* set by weft__ranks_start */
    bool portable, verbose;
};
/* Those that say how a model is held and computed. */
#define WEFT__MODEL_FLAGS(f)                                                                 \
    {WEFT__OPTION_INT,                                                                       \
     "tp",                                                                                   \
     &(f)->ranks,                                                                            \
     1,                                                                                      \
     WEFT__MAX_RANKS,                                                                        \
     "N",                                                                                    \
     "ranks the model is split over, 1 to 16 (one a NUMA node)"},                            \
        {WEFT__OPTION_CHOICE,                                                                \
         "ranks",                                                                            \
         &(f)->rank_kind,                                                                    \
         0,                                                                                  \
         0,                                                                                  \
         "threads|processes|mpi",                                                            \
         "what ranks are; mpi: start with mpirun (threads)"},                                \
        {WEFT__OPTION_INT, "threads", &(f)->threads, 1, 1024, "N", "threads of each rank"},  \
        {WEFT__OPTION_INT,                                                                   \
         "context",                                                                          \
         &(f)->context,                                                                      \
         1,                                                                                  \
         INT32_MAX,                                                                          \
         "N",                                                                                \
         "longest sequence, tokens (the model's, or what fits)"},                            \
        {WEFT__OPTION_INT,                                                                   \
         "kv-tokens",                                                                        \
         &(f)->kv_tokens,                                                                    \
         1,                                                                                  \
         INT32_MAX,                                                                          \
         "N",                                                                                \
         "size of the KV pool, tokens"},                                                     \
        {WEFT__OPTION_INT, "chunk", &(f)->chunk, 1, 1 << 19, "N", "tokens per step (2048)"}, \
        {WEFT__OPTION_CHOICE,                                                                \
         "activations",                                                                      \
         &(f)->activations,                                                                  \
         0,                                                                                  \
         0,                                                                                  \
         "f32|quantised|int8",                                                               \
         "inputs of NVFP4 and FP8 weights (f32)"},                                           \
    {                                                                                        \
        WEFT__OPTION_FLAG, "portable", &(f)->portable, 0, 0, NULL,                           \
            "plain C kernels: slower, same bits"                                             \
    }
#define WEFT__ENGINE_FLAGS(f)                                                                    \
    WEFT__MODEL_FLAGS(f),                                                                        \
        {WEFT__OPTION_INT,                                                                       \
         "timeout",                                                                              \
         &(f)->timeout_s,                                                                        \
         1,                                                                                      \
         86400,                                                                                  \
         "S",                                                                                    \
         "seconds a silent rank is waited for (30)"},                                            \
    {                                                                                            \
        WEFT__OPTION_FLAG, "verbose", &(f)->verbose, 0, 0, NULL, "-v: say which rank holds what" \
    }

/* Forks ranks 1 to size - 1 from this process, which must not have threads yet; all of them go on
 * with their rank and the same rendezvous. -1: there is no such process, which has been said. They
 * end with rank 0. */
int weft__ranks_fork(const char *command, int64_t size, const char **rendezvous);

/* Makes processes of the ranks, if the flags say so; call it before there are threads. True: go on,
 * this is rank 0. False: this process was another rank, or has said why it cannot go on; end with
 * *status. */
bool weft__ranks_start(const char *command, const char *dir, struct weft__engine_flags *flags,
                       int *status);

/* With a progress bar when stderr is a terminal. */
weft_engine_options weft__engine_options_of(const struct weft__engine_flags *flags);

/* Appends all of a file or pipe; NULL or "-": of standard input. */
weft_status weft__read_input(const char *path, struct weft__buf *text, weft_error *err);

/* Of a model directory, or of a tokenizer.json itself. */
weft_status weft__load_tokenizer(const char *path, struct weft__tokenizer **out, weft_error *err);

/* On stdout, with the flags of json_dumpf; takes the object. False: it is NULL. */
bool weft__print_json(json_t *object, size_t flags);
json_t *weft__number_json(double value); /* null if it is not finite */

/* Which rank holds what, on stderr. */
weft_status weft__print_plan(const struct weft__arch *arch, struct weft__checkpoint *checkpoint,
                             const struct weft__plan *plan, weft_error *err);

/* ---- one sequence on ranks of its own, for check and perplexity ---- */

struct weft__solo { /* does not move while it is open */
    struct weft__arena arena;
    struct weft__arch arch;
    struct weft__checkpoint *checkpoint;
    struct weft__plan plan;
    struct weft__ranks *ranks;
    int32_t *token; /* [plan.ranks.limits.tokens] of the next step, filled in by the caller */
    int32_t *position, *output, *pages;
    int64_t *slot;
};

weft_status weft__solo_open(const char *dir, struct weft__solo *solo, weft_error *err);
/* Ranks for a sequence of `tokens`, or of options->context when that is given. */
weft_status weft__solo_start(struct weft__solo *solo, const weft_engine_options *options,
                             int64_t tokens, bool verbose, weft_error *err);
void weft__solo_close(struct weft__solo *solo);

struct weft__solo_rows {
    int64_t first, count; /* positions of token[0 .. count) */
    int64_t wanted;       /* logits of positions from here on */
    bool generated;       /* not part of the prompt */
};

/* *logits are valid until the next step. */
weft_status weft__solo_step(struct weft__solo *solo, struct weft__solo_rows rows,
                            const float **logits, weft_error *err);

/* ---- what takes long ---- */

/* A bar on stderr after the first second; where that is no terminal, a line every ten seconds. */
struct weft__bar {
    const char *what; /* "loading" */
    bool terminal;
    uint64_t next_ns; /* not before that */
    int shown;        /* percent, -1: nothing yet */
};

struct weft__bar weft__bar_start(const char *what);
void weft__bar_show(void *bar, double share);
void weft__bar_end(const struct weft__bar *bar); /* before words, when it may be short of 1 */

/* From now on SIGINT and SIGTERM wait, and it can be asked whether one does: for work that must
 * clean up. */
void weft__signals_hold(void);
bool weft__signals_came(void);

/* ---- words for people ---- */

/* "weft run: <text>" on stderr; returns WEFT__EXIT_FAILED. */
int weft__report(const char *command, const weft_error *err);
/* The same for wrong usage, with a pointer to the help; returns WEFT__EXIT_USAGE. */
int weft__usage(const char *command, const char *format, ...) WEFT__PRINTF(2, 3);
/* A line on stderr if a model that is loaded left tensors unread. */
void weft__warn_unread(const struct weft__checkpoint *checkpoint, const struct weft__arch *arch);

#endif
