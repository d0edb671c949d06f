/* weft serve: a model behind HTTP. */
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "http/http.h"
#include "prog.h"

enum { MAX_FILE = 1 << 20, MAX_KEYS = 256, MAX_ARGS = 512 };
enum { MODEL, OPENAI }; /* --sampling-defaults */
enum { TEXT, JSON };    /* --log-format */

struct serve {
    struct weft__engine_flags engine_flags;
    const char *host, *keys, *key_file, *name, *config;
    int64_t port, max_running, max_queued, drain_timeout, request_timeout, ping, max_body_mib;
    int64_t sampling, log_format;
    bool any_model;
    char *key_text; /* keys cut out of the option and the file */
    const char *key[MAX_KEYS];
    int keys_count;
    char *args; /* of the command line, as JSON */

    const char *dir;
    weft_engine_options engine_options;
    struct weft__server *server;
    weft_engine *engine;
    atomic_bool load_failed; /* before the server is told to quit */
};

/* ---- the log ---- */

static void write_line(void *ctx, const char *line, size_t len)
{
    (void)ctx;
    (void)fprintf(stderr, "%.*s\n", (int)len, line);
}

static void say_loaded(const struct serve *serve)
{
    const struct weft__engine_view *view = weft__engine_view(serve->engine);
    const struct weft__plan *plan = view->plan;
    const struct weft__model_limits *limits = &plan->ranks.limits;
    long long tokens = (long long)limits->pages * WEFT__PAGE;
    (void)fprintf(
        stderr,
        "weft serve: model %s (%s) loaded in %.2f s on %d rank%s x %d thread%s\n"
        "weft serve: memory: weights %.1f MiB, KV pool %.1f MiB, work %.1f MiB, %.1f MiB "
        "still free\n"
        "weft serve: KV pool: %lld pages x %d tokens = %lld tokens of %.1f KiB; context "
        "%lld%s: %lld sequence%s at full length, at most %lld at once, %lld waiting; "
        "steps of %lld tokens\n",
        serve->name, view->arch->family->model_type, (double)view->load_ns / 1e9, plan->ranks.size,
        plan->ranks.size == 1 ? "" : "s", plan->ranks.threads, plan->ranks.threads == 1 ? "" : "s",
        weft__mib(plan->weights_bytes), weft__mib(plan->kv_bytes), weft__mib(plan->work_bytes),
        weft__mib(weft__memory_available()), (long long)limits->pages, WEFT__PAGE, tokens,
        (double)plan->kv_bytes / 1024 / (double)tokens, (long long)plan->context,
        plan->context_reduced ? " (reduced to fit the memory)" : "",
        tokens / (long long)plan->context, tokens / plan->context == 1 ? "" : "s",
        (long long)plan->max_running, (long long)plan->max_queue, (long long)limits->tokens);
    weft__warn_unread(view->checkpoint, view->arch);
    weft_error err;
    if (serve->engine_flags.verbose &&
        weft__print_plan(view->arch, view->checkpoint, plan, &err) != WEFT_OK)
        (void)weft__report("serve", &err);
    if (weft__chat_check(view->chat, &err) != WEFT_OK)
        (void)fprintf(stderr, "weft serve: chat completions will be refused: %s\n", err.text);
    (void)fprintf(stderr, "weft serve: ready\n");
}

/* ---- loading, beside the loop ---- */

static void *load(void *arg)
{
    struct serve *serve = arg;
    weft_error err;
    weft_status status = weft_engine_open(serve->dir, &serve->engine_options, &serve->engine, &err);
    if (status == WEFT_OK && weft__engine_view(serve->engine)->tokenizer == NULL)
        status = weft__fail(&err, WEFT_NOT_FOUND,
                            "%s: no tokenizer.json: a server needs the checkpoint's", serve->dir);
    if (status != WEFT_OK) {
        (void)weft__report("serve", &err);
        atomic_store(&serve->load_failed, true);
        weft__server_quit(serve->server);
        return NULL;
    }
    say_loaded(serve);
    weft__server_ready(serve->server, serve->engine);
    return NULL;
}

static int run(struct serve *serve, const struct weft__server_options *options)
{
    weft_error err;
    pthread_t loader;
    if (weft__server_open(options, &serve->server, &err) != WEFT_OK)
        return weft__report("serve", &err);
    (void)fprintf(stderr, "weft serve: http://%s%s%s:%d/ (console), API under /v1; loading %s\n",
                  strchr(serve->host, ':') ? "[" : "", serve->host,
                  strchr(serve->host, ':') ? "]" : "", weft__server_port(serve->server),
                  serve->dir);
    if (pthread_create(&loader, NULL, load, serve) != 0) {
        (void)fprintf(stderr, "weft serve: no thread for loading\n");
        weft__server_close(serve->server);
        return WEFT__EXIT_FAILED;
    }
    bool drained = weft__server_run(serve->server);
    bool load_failed = atomic_load(&serve->load_failed);
    /* A load that is still going on, or requests that a second signal gave up, aren't waited for.
     */
    if (!load_failed && (!drained || !weft__server_loaded(serve->server))) {
        if (pthread_tryjoin_np(loader, NULL) != 0) _exit(WEFT__EXIT_OK);
    } else {
        (void)pthread_join(loader, NULL);
    }
    weft__server_close(serve->server);
    struct weft__engine_status engine = {0};
    if (serve->engine != NULL) weft__engine_status(serve->engine, &engine);
    weft_engine_close(serve->engine);
    (void)fprintf(stderr, "weft serve: stopped\n");
    return load_failed || engine.failed ? WEFT__EXIT_FAILED : WEFT__EXIT_OK;
}

/* ---- options ---- */

/* Cuts text at commas and ends of lines, in place. */
static bool add_keys(struct serve *serve, char *text)
{
    char *state = NULL;
    for (char *key = strtok_r(text, ",\r\n \t", &state); key != NULL;
         key = strtok_r(NULL, ",\r\n \t", &state)) {
        if (serve->keys_count == MAX_KEYS) return false;
        serve->key[serve->keys_count++] = key;
    }
    return true;
}

static int read_keys(struct serve *serve)
{
    char *file = NULL;
    size_t len = 0;
    weft_error err;
    if (serve->key_file != NULL &&
        weft__read_file(serve->key_file, MAX_FILE, &file, &len, &err) != WEFT_OK)
        return weft__report("serve", &err);
    struct weft__buf text;
    weft__buf_init(&text, 2 * MAX_FILE);
    weft__buf_puts(&text, serve->keys != NULL ? serve->keys : "");
    weft__buf_puts(&text, "\n");
    weft__buf_append(&text, file, len);
    free(file);
    serve->key_text = text.data;
    if (text.failed || !add_keys(serve, text.data))
        return weft__usage("serve", "more than %d API keys", MAX_KEYS);
    if (serve->keys_count == 0 && (serve->keys != NULL || serve->key_file != NULL))
        return weft__usage("serve", "no API key in --api-key or --api-key-file");
    return WEFT__EXIT_OK;
}

static bool parse(struct serve *serve, int argc, char **argv, int *status);

/* What the configuration file says, as arguments before the command line's own, which win;
 * its model only when the command line names none. */
static int merge_config(const json_t *config, bool model, char **out, int *count)
{
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)config, name, value) {
        char *text = NULL;
        int failed = 0;
        if (*count + 1 >= MAX_ARGS) return -1;
        if (strcmp(name, "model") == 0 && !model) continue;
        if (strcmp(name, "model") == 0 && json_is_string(value))
            text = strdup(json_string_value(value));
        else if (json_is_true(value))
            failed = asprintf(&text, "--%s", name);
        else if (json_is_string(value))
            failed = asprintf(&text, "--%s=%s", name, json_string_value(value));
        else if (json_is_integer(value))
            failed = asprintf(&text, "--%s=%lld", name, (long long)json_integer_value(value));
        else if (json_is_real(value))
            failed = asprintf(&text, "--%s=%.17g", name, json_real_value(value));
        else if (!json_is_false(value) && !json_is_null(value))
            return -1;
        else
            continue;
        if (failed < 0 || text == NULL) return -1;
        out[(*count)++] = text;
    }
    return 0;
}

static bool parse_with_config(struct serve *serve, int argc, char **argv, int *status)
{
    static char *merged[2 * MAX_ARGS]; /* its strings live as long as the process */
    struct serve defaults = *serve;
    json_error_t error;
    int count = 1;
    if (!parse(serve, argc, argv, status)) return false;
    if (serve->config == NULL) return true;
    const char *path = serve->config;
    json_t *config = json_load_file(path, 0, &error);
    *status = WEFT__EXIT_USAGE;
    if (!json_is_object(config) || merge_config(config, serve->dir == NULL, merged, &count) != 0 ||
        argc + count > 2 * MAX_ARGS) {
        *status = weft__usage("serve",
                              "--config %.200s: a JSON object of option names and strings, numbers "
                              "or booleans is wanted%s%.100s",
                              path, config == NULL ? ": " : "", config == NULL ? error.text : "");
        json_decref(config);
        return false;
    }
    json_decref(config);
    merged[0] = argv[0];
    memcpy(merged + count, argv + 1, (size_t)(argc - 1) * sizeof *merged);
    *serve = defaults;
    return parse(serve, count + argc - 1, merged, status);
}

static bool parse(struct serve *s, int argc, char **argv, int *status)
{
    const struct weft__option options[] = {
        {WEFT__OPTION_STRING, "host", &s->host, 0, 0, "HOST", "address to listen at (127.0.0.1)"},
        {WEFT__OPTION_INT, "port", &s->port, 0, 65535, "N", "port; 0: any free one (8000)"},
        {WEFT__OPTION_STRING, "api-key", &s->keys, 0, 0, "KEY,...", "keys clients must send"},
        {WEFT__OPTION_STRING, "api-key-file", &s->key_file, 0, 0, "FILE", "the same, one a line"},
        {WEFT__OPTION_STRING, "served-model-name", &s->name, 0, 0, "ID",
         "the model's id (its folder's name)"},
        {WEFT__OPTION_FLAG, "any-model", &s->any_model, 0, 0, NULL, "accept every model id"},
        {WEFT__OPTION_INT, "max-running-requests", &s->max_running, 1, 1 << 16, "N",
         "sequences at once (64)"},
        {WEFT__OPTION_INT, "max-queued-requests", &s->max_queued, 1, 1 << 19, "N",
         "sequences waiting beyond those; then 429 (4096)"},
        {WEFT__OPTION_INT, "drain-timeout", &s->drain_timeout, 0, 86400, "S",
         "seconds that running requests have after SIGTERM (30)"},
        {WEFT__OPTION_INT, "request-timeout", &s->request_timeout, 0, 86400 * 30, "S",
         "seconds a request may take; 0: any (0)"},
        {WEFT__OPTION_INT, "sse-ping-interval", &s->ping, 0, 86400, "S",
         "seconds between comments in quiet streams; 0: none (0)"},
        {WEFT__OPTION_INT, "max-body", &s->max_body_mib, 1, 1024, "MIB",
         "largest request body (64)"},
        {WEFT__OPTION_CHOICE, "sampling-defaults", &s->sampling, 0, 0, "model|openai",
         "of generation_config.json, or OpenAI's (model)"},
        {WEFT__OPTION_CHOICE, "log-format", &s->log_format, 0, 0, "text|json",
         "lines, or an object a request (text)"},
        {WEFT__OPTION_STRING, "config", &s->config, 0, 0, "FILE",
         "JSON object of these names; \"model\" is MODEL"},
        WEFT__ENGINE_FLAGS(&s->engine_flags),
        {0},
    };
    struct weft__command_line line = {
        .command = "serve",
        .synopsis = "MODEL",
        .about = "Serves MODEL over HTTP, compatible with OpenAI's API, with a console at /.",
        .options = options,
        .arguments_max = 1,
    };
    if (!weft__command_line_parse(&line, argc, argv, status)) return false;
    s->dir = line.argument[0];
    return true;
}

/* The folder's own name: what people call a model. */
static char *base_name(const char *dir)
{
    char *path = realpath(dir, NULL);
    const char *slash = strrchr(path != NULL ? path : dir, '/');
    char *name = strdup(slash != NULL && slash[1] != '\0' ? slash + 1 : dir);
    free(path);
    return name;
}

static char *args_json(const struct serve *s)
{
    json_t *args = json_pack(
        "{s:s, s:s, s:I, s:s, s:b, s:I, s:I, s:I, s:s, s:s}", "model_path", s->dir, "host", s->host,
        "port", (json_int_t)s->port, "served_model_name", s->name, "any_model", s->any_model,
        "drain_timeout", (json_int_t)s->drain_timeout, "request_timeout",
        (json_int_t)s->request_timeout, "sse_ping_interval", (json_int_t)s->ping,
        "sampling_defaults", s->sampling == OPENAI ? "openai" : "model", "log_format",
        s->log_format == JSON ? "json" : "text");
    char *text = args != NULL ? json_dumps(args, JSON_COMPACT) : NULL;
    json_decref(args);
    return text;
}

int weft__cmd_serve(int argc, char **argv)
{
    static struct serve serve; /* a loader that is not waited for may still use it */
    int status;
    serve =
        (struct serve){.host = "127.0.0.1", .port = 8000, .drain_timeout = 30, .max_body_mib = 64};
    if (!parse_with_config(&serve, argc, argv, &status)) return status;
    if (serve.dir == NULL) return weft__usage("serve", "MODEL is wanted");
    status = read_keys(&serve);
    if (status != WEFT__EXIT_OK) return status;
    char *name = base_name(serve.dir);
    if (serve.name == NULL) serve.name = name;
    serve.args = args_json(&serve);
    if (serve.name == NULL || serve.args == NULL)
        return weft__usage("serve", "the model's path or an option is not UTF-8");
    if (!weft__ranks_start("serve", serve.dir, &serve.engine_flags, &status)) return status;
    serve.engine_options = weft__engine_options_of(&serve.engine_flags);
    serve.engine_options.max_running = serve.max_running;
    serve.engine_options.max_queue = serve.max_queued;
    const struct weft__server_options options = {
        .host = serve.host,
        .port = (int)serve.port,
        .keys = serve.key,
        .key_count = serve.keys_count,
        .model = serve.name,
        .args = serve.args,
        .any_model = serve.any_model,
        .neutral_sampling = serve.sampling == OPENAI,
        .drain_timeout_s = serve.drain_timeout,
        .request_timeout_s = serve.request_timeout,
        .ping_interval_s = serve.ping,
        .max_body = serve.max_body_mib << 20,
        .json_log = serve.log_format == JSON,
        .log = write_line,
    };
    status = run(&serve, &options);
    free(name);
    free(serve.args);
    free(serve.key_text);
    return status;
}
