/* weft run: one prompt, a file of prompts, or a conversation in the terminal. */
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "prog.h"

enum { TOP_K_DEFAULT = -2, MAX_INPUT = 64 << 20, MAX_TURNS = 4096, MAX_WORKERS = 64 };

struct run {
    struct weft__engine_flags engine_flags;
    int64_t max_tokens, top_k, seed;
    double temperature, top_p, min_p, repetition_penalty;
    const char *system, *prompts;
    bool raw, ignore_eos, stats, json;
    weft_engine *engine;
    bool answering; /* a part of the answer has been printed */
};

/* ---- one generation ---- */

static weft_generation generation_of(const struct run *run)
{
    weft_generation g = WEFT_GENERATION_DEFAULT;
    g.max_tokens = run->max_tokens;
    g.temperature = run->temperature;
    g.top_p = run->top_p;
    g.top_k = run->top_k == -1 ? 0 : run->top_k; /* as the server takes it */
    g.min_p = run->min_p;
    g.repetition_penalty = run->repetition_penalty;
    g.seed = (uint64_t)run->seed;
    g.ignore_eos = run->ignore_eos;
    return g;
}

/* A prompt without history. */
static weft_status generate(struct run *run, const char *prompt,
                            bool (*on_text)(void *, const char *, size_t), weft_generated *out,
                            weft_error *err)
{
    weft_generation g = generation_of(run);
    weft_message messages[2];
    g.on_text = on_text;
    g.ctx = run;
    if (run->raw) {
        g.text = prompt;
    } else {
        if (run->system != NULL)
            messages[g.message_count++] = (weft_message){.role = "system", .content = run->system};
        messages[g.message_count++] = (weft_message){.role = "user", .content = prompt};
        g.messages = messages;
    }
    return weft_generate(run->engine, &g, out, err);
}

/* Set by Ctrl-C during a conversation: ends the answer, not the program. */
static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

static bool print_text(void *ctx, const char *text, size_t len)
{
    ((struct run *)ctx)->answering = true;
    return fwrite(text, 1, len, stdout) == len && fflush(stdout) == 0 && !interrupted;
}

/* What ends an answer, on a line of its own. */
static int report_answer(struct run *run, const weft_error *err)
{
    if (run->answering && putchar('\n') != EOF) (void)fflush(stdout);
    return weft__report("run", err);
}

static double seconds(uint64_t ns) { return round((double)ns / 1e3) / 1e6; }

static json_t *prompt_json(const char *prompt)
{
    json_t *text = json_string(prompt);
    return text != NULL ? text : json_null(); /* it is not UTF-8 */
}

static void print_json_result(const char *prompt, const weft_generated *g)
{
    json_t *object =
        json_pack("{s:o, s:s%, s:I, s:I, s:I, s:s, s:f, s:f}", "prompt", prompt_json(prompt),
                  "text", g->text, g->len, "prompt_tokens", (json_int_t)g->prompt_tokens,
                  "cached_tokens", (json_int_t)g->cached_tokens, "generated_tokens",
                  (json_int_t)g->generated_tokens, "finish_reason", g->complete ? "stop" : "length",
                  "prefill_s", seconds(g->prefill_ns), "decode_s", seconds(g->decode_ns));
    (void)weft__print_json(object, JSON_REAL_PRECISION(12));
}

static void print_json_failure(const char *prompt, const weft_error *err)
{
    (void)weft__print_json(
        json_pack("{s:o, s:s}", "prompt", prompt_json(prompt), "error", err->text), 0);
}

/* ---- statistics ---- */

static double rate(int64_t tokens, uint64_t ns)
{
    return ns == 0 ? 0 : (double)tokens * 1e9 / (double)ns;
}

static void print_answer_stats(const weft_generated *g)
{
    (void)fprintf(stderr,
                  "prefill  %lld tokens in %.3f s, %.1f tokens/s (%lld from the cache)\n"
                  "decode   %lld tokens in %.3f s, %.1f tokens/s\n",
                  (long long)g->prompt_tokens, (double)g->prefill_ns / 1e9,
                  rate(g->prompt_tokens - g->cached_tokens, g->prefill_ns),
                  (long long)g->cached_tokens, (long long)g->generated_tokens,
                  (double)g->decode_ns / 1e9,
                  rate(weft__max(g->generated_tokens - 1, 0), g->decode_ns));
}

/* Of everything that ran. */
static void print_engine_stats(const struct run *run)
{
    const struct weft__engine_view *view = weft__engine_view(run->engine);
    const struct weft__plan *plan = view->plan;
    struct weft__engine_status status;
    weft__engine_status(run->engine, &status);
    (void)fprintf(stderr, "load     %.3f s, %d rank%s x %d thread%s\n", (double)view->load_ns / 1e9,
                  plan->ranks.size, plan->ranks.size == 1 ? "" : "s", plan->ranks.threads,
                  plan->ranks.threads == 1 ? "" : "s");
    for (int r = 0; r < plan->ranks.size; r++) {
        const struct weft__rank_stats *s = &status.rank[r];
        double busy = s->busy_ns > 0 ? (double)s->busy_ns : 1;
        (void)fprintf(stderr, "rank %-3d collectives %.1f %% of step time, %.1f %% waiting\n", r,
                      100 * (double)s->collective_ns / busy, 100 * (double)s->wait_ns / busy);
    }
    static const char *const kinds[] = {[WEFT__TILING_O] = "o_proj", [WEFT__TILING_MLP] = "mlp"};
    for (int kind = 0; kind < WEFT__TILING_KINDS; kind++) {
        const struct weft__tiling_choice *choice = &status.rank[0].tiling[kind];
        if (choice->ratio != 0)
            (void)fprintf(stderr, "tiles    %s and its sum: %.3f of the time at once, %s\n",
                          kinds[kind], (double)choice->ratio,
                          choice->tiles ? "used for prompts" : "not used");
    }
    (void)fprintf(stderr,
                  "memory   weights %.1f MiB, KV pool %.1f MiB (%lld tokens), work %.1f MiB\n",
                  weft__mib(plan->weights_bytes), weft__mib(plan->kv_bytes),
                  (long long)plan->ranks.limits.pages * WEFT__PAGE, weft__mib(plan->work_bytes));
}

/* What ended an answer without --max-tokens. */
static const char *limit(const struct run *run, const weft_generated *g)
{
    const struct weft__generation_config *model = weft__engine_view(run->engine)->generation;
    return g->generated_tokens == model->max_new_tokens
               ? "generation_config.json's max_new_tokens; --max-tokens sets another"
               : "the context is full";
}

/* ---- the three ways to run ---- */

static int run_prompt(struct run *run, const char *prompt)
{
    weft_generated result;
    weft_error err;
    if (generate(run, prompt, run->json ? NULL : print_text, &result, &err) != WEFT_OK)
        return report_answer(run, &err);
    if (run->json)
        print_json_result(prompt, &result);
    else
        (void)putchar('\n');
    if (!result.complete && !run->json && run->max_tokens == 0 && !ferror(stdout))
        (void)fprintf(stderr, "weft run: stopped after %lld tokens: %s\n",
                      (long long)result.generated_tokens, limit(run, &result));
    if (run->stats) {
        print_answer_stats(&result);
        print_engine_stats(run);
    }
    weft_generated_free(&result);
    return WEFT__EXIT_OK;
}

/* Prompts of a file, one a line, side by side; results in the file's order. */
struct lines {
    struct run *run;
    char **line;
    size_t *number; /* of the line in the file */
    weft_generated *result;
    weft_error *error;
    size_t count;
    _Atomic size_t next;
    uint64_t ns; /* that all of them took */
};

static void *work_lines(void *arg)
{
    struct lines *lines = arg;
    for (;;) {
        size_t i = atomic_fetch_add(&lines->next, 1);
        if (i >= lines->count) return NULL;
        if (generate(lines->run, lines->line[i], NULL, &lines->result[i], &lines->error[i]) ==
            WEFT_OK)
            lines->error[i].status = WEFT_OK;
    }
}

static void print_lines_stats(const struct lines *lines)
{
    weft_generated sum = {0};
    long long answered = 0;
    for (size_t i = 0; i < lines->count; i++) {
        if (lines->error[i].status != WEFT_OK) continue;
        answered++;
        sum.prompt_tokens += lines->result[i].prompt_tokens;
        sum.cached_tokens += lines->result[i].cached_tokens;
        sum.generated_tokens += lines->result[i].generated_tokens;
    }
    (void)fprintf(stderr,
                  "prompts  %lld of %zu answered in %.3f s\n"
                  "read     %lld tokens, %.1f tokens/s (%lld from the cache)\n"
                  "written  %lld tokens, %.1f tokens/s\n",
                  answered, lines->count, (double)lines->ns / 1e9, (long long)sum.prompt_tokens,
                  rate(sum.prompt_tokens - sum.cached_tokens, lines->ns),
                  (long long)sum.cached_tokens, (long long)sum.generated_tokens,
                  rate(sum.generated_tokens, lines->ns));
    print_engine_stats(lines->run);
}

static int print_lines(const struct lines *lines)
{
    int status = WEFT__EXIT_OK;
    for (size_t i = 0; i < lines->count; i++) {
        if (lines->error[i].status != WEFT_OK) {
            (void)fprintf(stderr, "weft run: line %zu: %s\n", lines->number[i],
                          lines->error[i].text);
            if (lines->run->json) print_json_failure(lines->line[i], &lines->error[i]);
            status = WEFT__EXIT_FAILED;
            continue;
        }
        if (lines->run->json)
            print_json_result(lines->line[i], &lines->result[i]);
        else
            (void)printf("%s\n", lines->result[i].text);
    }
    if (lines->run->stats) print_lines_stats(lines);
    return status;
}

/* Cuts text into lines in place; empty ones are left out. */
static void cut_lines(struct lines *lines, char *text)
{
    char *rest = text;
    for (size_t number = 1; rest != NULL; number++) {
        char *line = strsep(&rest, "\n");
        size_t len = strlen(line);
        if (len > 0 && line[len - 1] == '\r') line[--len] = '\0';
        if (len == 0) continue;
        lines->line[lines->count] = line;
        lines->number[lines->count++] = number;
    }
}

static int run_lines(struct run *run, char *text, size_t len)
{
    size_t most = 1;
    for (size_t i = 0; i < len; i++) most += text[i] == '\n';
    struct lines lines = {.run = run,
                          .line = calloc(most, sizeof *lines.line),
                          .number = calloc(most, sizeof *lines.number),
                          .result = calloc(most, sizeof *lines.result),
                          .error = calloc(most, sizeof *lines.error)};
    int status = WEFT__EXIT_FAILED;
    if (lines.line == NULL || lines.number == NULL || lines.result == NULL || lines.error == NULL) {
        (void)fprintf(stderr, "weft run: out of memory for %zu prompts\n", most);
    } else {
        pthread_t worker[MAX_WORKERS];
        int workers = 0;
        cut_lines(&lines, text);
        lines.ns = weft__now_ns();
        while (workers < MAX_WORKERS && (size_t)workers < lines.count &&
               pthread_create(&worker[workers], NULL, work_lines, &lines) == 0)
            workers++;
        if (workers == 0) (void)work_lines(&lines);
        for (int i = 0; i < workers; i++) (void)pthread_join(worker[i], NULL);
        lines.ns = weft__now_ns() - lines.ns;
        status = print_lines(&lines);
        for (size_t i = 0; i < lines.count; i++) weft_generated_free(&lines.result[i]);
    }
    free(lines.line);
    free(lines.number);
    free(lines.result);
    free(lines.error);
    return status;
}

static weft_status refuse_nul(const char *name, const struct weft__buf *text, weft_error *err)
{
    if (strlen(text->data) == text->len) return WEFT_OK;
    return weft__fail(err, WEFT_INVALID, "%.200s holds a NUL byte; a prompt is text", name);
}

static int run_file(struct run *run)
{
    struct weft__buf input;
    weft_error err;
    weft__buf_init(&input, MAX_INPUT);
    weft_status result = weft__read_input(run->prompts, &input, &err);
    if (result == WEFT_OK) result = refuse_nul(run->prompts, &input, &err);
    int status =
        result == WEFT_OK ? run_lines(run, input.data, input.len) : weft__report("run", &err);
    weft__buf_free(&input);
    return status;
}

/* A conversation; the history is the messages so far. */
struct chat {
    weft_message message[MAX_TURNS];
    int count;
};

static bool push(struct chat *chat, const char *role, const char *content)
{
    char *copy = chat->count < MAX_TURNS ? strdup(content) : NULL;
    if (copy == NULL) return false;
    chat->message[chat->count++] = (weft_message){.role = role, .content = copy};
    return true;
}

static void forget(struct chat *chat, int keep)
{
    while (chat->count > keep) free((void *)(uintptr_t)chat->message[--chat->count].content);
}

/* One turn; the user's message stays in the history only if it was answered. */
static void chat_turn(struct run *run, struct chat *chat, const char *line)
{
    weft_generation g = generation_of(run);
    weft_generated result;
    weft_error err;
    if (!push(chat, "user", line)) {
        (void)fprintf(stderr, "weft run: the conversation is too long; /new starts another\n");
        return;
    }
    g.messages = chat->message;
    g.message_count = chat->count;
    g.on_text = print_text;
    g.ctx = run;
    run->answering = false;
    if (weft_generate(run->engine, &g, &result, &err) != WEFT_OK) {
        (void)report_answer(run, &err);
        forget(chat, chat->count - 1);
        return;
    }
    (void)putchar('\n');
    if (!result.complete && run->max_tokens == 0 && !interrupted)
        (void)fprintf(stderr, "weft run: stopped: %s; /new starts another conversation\n",
                      limit(run, &result));
    if (run->stats) {
        print_answer_stats(&result);
        print_engine_stats(run);
    }
    if (!push(chat, "assistant", result.text)) forget(chat, chat->count - 1);
    weft_generated_free(&result);
}

static int run_chat(struct run *run)
{
    static struct chat chat; /* too large for the stack */
    char *line = NULL;
    size_t cap = 0;
    /* Without SA_RESTART, so that Ctrl-C at the prompt ends getline, and with it the program. */
    const struct sigaction action = {.sa_handler = interrupt};
    (void)sigaction(SIGINT, &action, NULL);
    (void)fprintf(stderr, "A line is a message. Ctrl-C stops an answer, or ends; /new forgets the "
                          "conversation, /exit ends.\n");
    if (run->system != NULL) (void)push(&chat, "system", run->system);
    int start = chat.count;
    for (;;) {
        interrupted = 0;
        (void)fprintf(stderr, "> ");
        ssize_t len = getline(&line, &cap, stdin);
        if (len < 0) break;
        if (len > 0 && line[len - 1] == '\n') line[--len] = '\0';
        if (strcmp(line, "/exit") == 0) break;
        if (strcmp(line, "/new") == 0)
            forget(&chat, start);
        else if (len > 0)
            chat_turn(run, &chat, line);
    }
    forget(&chat, 0);
    free(line);
    return WEFT__EXIT_OK;
}

static int run_stdin(struct run *run)
{
    struct weft__buf text;
    weft_error err;
    weft__buf_init(&text, MAX_INPUT);
    weft_status result = weft__read_input(NULL, &text, &err);
    if (text.len > 0 && text.data[text.len - 1] == '\n') text.data[--text.len] = '\0';
    if (result == WEFT_OK) result = refuse_nul("standard input", &text, &err);
    int status;
    if (result != WEFT_OK)
        status = weft__report("run", &err);
    else if (text.len == 0)
        status = weft__usage("run", "standard input holds no prompt");
    else
        status = run_prompt(run, text.data);
    weft__buf_free(&text);
    return status;
}

/* ---- the command ---- */

static int run_model(struct run *run, const char *dir, const char *prompt)
{
    weft_error err;
    int status;
    if (!weft__ranks_start("run", dir, &run->engine_flags, &status)) return status;
    weft_engine_options options = weft__engine_options_of(&run->engine_flags);
    if (run->prompts == NULL) options.max_running = 1;
    if (weft_engine_open(dir, &options, &run->engine, &err) != WEFT_OK)
        return weft__report("run", &err);
    const struct weft__engine_view *view = weft__engine_view(run->engine);
    weft__warn_unread(view->checkpoint, view->arch);
    if (view->plan->context_reduced)
        (void)fprintf(stderr, "weft run: context limited to %lld tokens by memory\n",
                      (long long)view->plan->context);
    if (run->engine_flags.verbose &&
        weft__print_plan(view->arch, view->checkpoint, view->plan, &err) != WEFT_OK)
        (void)weft__report("run", &err);
    if (run->prompts != NULL)
        status = run_file(run);
    else if (prompt != NULL)
        status = run_prompt(run, prompt);
    else if (isatty(STDIN_FILENO) && !run->raw)
        status = run_chat(run);
    else
        status = run_stdin(run);
    weft_engine_close(run->engine);
    return status;
}

int weft__cmd_run(int argc, char **argv)
{
    struct run run = {.temperature = -1,
                      .top_p = -1,
                      .top_k = TOP_K_DEFAULT,
                      .min_p = -1,
                      .repetition_penalty = -1,
                      .seed = (int64_t)(weft__now_ns() & INT32_MAX)};
    int status;
    const struct weft__option options[] = {
        {WEFT__OPTION_INT, "max-tokens", &run.max_tokens, 1, INT32_MAX, "N",
         "end the answer there (the model's limit)"},
        {WEFT__OPTION_DOUBLE, "temperature", &run.temperature, WEFT__TEMPERATURE_RANGE, "T",
         "0 is greedy (the model's default, else 1)"},
        {WEFT__OPTION_DOUBLE, "top-p", &run.top_p, WEFT__TOP_P_RANGE, "P",
         "keep the likeliest P of the mass"},
        {WEFT__OPTION_INT, "top-k", &run.top_k, -1, INT32_MAX, "K",
         "keep the K likeliest; 0 or -1: off"},
        {WEFT__OPTION_DOUBLE, "min-p", &run.min_p, WEFT__MIN_P_RANGE, "P",
         "drop below P of the likeliest"},
        {WEFT__OPTION_DOUBLE, "repetition-penalty", &run.repetition_penalty,
         WEFT__REPETITION_PENALTY_RANGE, "R", "above 1: fewer repeats"},
        {WEFT__OPTION_INT, "seed", &run.seed, 0, 9e18, "N", "of sampling (random)"},
        {WEFT__OPTION_FLAG, "ignore-eos", &run.ignore_eos, 0, 0, NULL,
         "go on after the end of the answer"},
        {WEFT__OPTION_STRING, "system", &run.system, 0, 0, "TEXT", "a system message"},
        {WEFT__OPTION_FLAG, "raw", &run.raw, 0, 0, NULL, "complete the text; no chat template"},
        {WEFT__OPTION_STRING, "prompts", &run.prompts, 0, 0, "FILE",
         "one prompt a line, run side by side; - is standard input"},
        {WEFT__OPTION_FLAG, "stats", &run.stats, 0, 0, NULL, "speed and memory on stderr"},
        {WEFT__OPTION_FLAG, "json", &run.json, 0, 0, NULL, "one JSON object an answer"},
        WEFT__ENGINE_FLAGS(&run.engine_flags),
        {0},
    };
    struct weft__command_line line = {
        .command = "run",
        .synopsis = "MODEL [PROMPT]",
        .about = "Answers PROMPT, else standard input, else chats in the terminal.",
        .options = options,
        .arguments_min = 1,
        .arguments_max = 2,
    };
    if (!weft__command_line_parse(&line, argc, argv, &status)) return status;
    if (run.prompts != NULL && line.argument[1] != NULL)
        return weft__usage("run", "give PROMPT or --prompts, not both");
    if (run.raw && run.system != NULL)
        return weft__usage("run", "--system is for the chat template that --raw leaves out");
    if (run.json && run.prompts == NULL && line.argument[1] == NULL && isatty(STDIN_FILENO))
        return weft__usage("run", "--json needs a prompt: chatting in the terminal is text");
    return run_model(&run, line.argument[0], line.argument[1]);
}
