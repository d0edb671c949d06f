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

enum { MAX_FILE = 1 << 20, MAX_KEYS = 256 };
enum { MODEL, OPENAI }; /* --sampling-defaults */
enum { TEXT, JSON };    /* --log-format */

struct serve {
    struct weft__engine_flags engine_flags;
    const char *host, *keys, *key_file, *name, *config;
    int64_t port, max_running, max_queued, drain_timeout, request_timeout, ping, max_body_mib;
    int64_t sampling, log_format;
    bool any_model;
    char *key_text, *key_file_text; /* what the keys are cut out of */
    const char *key[MAX_KEYS];
    int keys_count;
    char *args;   /* of the command line, as JSON */
    json_t *file; /* of --config: options point into it */

    const char *dir;
    weft_engine_options engine_options;
    struct weft__server_options server_options;
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

/* A line about the server itself. */
static WEFT__PRINTF(3, 4) void say(const struct serve *serve, const char *event, const char *format,
                                   ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (serve->log_format == JSON)
        weft__log_event(&serve->server_options, event, text);
    else
        (void)fprintf(stderr, "weft serve: %s\n", text);
}

static void say_loaded(const struct serve *serve)
{
    const struct weft__engine_view *view = weft__engine_view(serve->engine);
    const struct weft__plan *plan = view->plan;
    const struct weft__model_limits *limits = &plan->ranks.limits;
    long long tokens = (long long)limits->pages * WEFT__PAGE;
    say(serve, "model", "model %s (%s) loaded in %.2f s on %d rank%s x %d thread%s", serve->name,
        view->arch->family->model_type, (double)view->load_ns / 1e9, plan->ranks.size,
        plan->ranks.size == 1 ? "" : "s", plan->ranks.threads, plan->ranks.threads == 1 ? "" : "s");
    say(serve, "memory",
        "memory: weights %.1f MiB, KV pool %.1f MiB, work %.1f MiB, %.1f MiB still free",
        weft__mib(plan->weights_bytes), weft__mib(plan->kv_bytes), weft__mib(plan->work_bytes),
        weft__mib(weft__memory_available()));
    say(serve, "pool",
        "KV pool: %lld pages x %d tokens = %lld tokens of %.1f KiB; context %lld%s: %lld "
        "sequence%s at full length, at most %lld at once, %lld waiting; steps of %lld tokens",
        (long long)limits->pages, WEFT__PAGE, tokens,
        (double)plan->kv_bytes / 1024 / (double)tokens, (long long)plan->context,
        plan->context_reduced ? " (reduced to fit the memory)" : "",
        tokens / (long long)plan->context, tokens / plan->context == 1 ? "" : "s",
        (long long)plan->max_running, (long long)plan->max_queue, (long long)limits->tokens);
    weft_error err;
    if (weft__weights_unread(view->checkpoint, view->arch, &err) > 0)
        say(serve, "warning", "warning: %s", err.text);
    if (serve->engine_flags.verbose &&
        weft__print_plan(view->arch, view->checkpoint, plan, &err) != WEFT_OK)
        say(serve, "warning", "%s", err.text);
    if (weft__chat_check(view->chat, &err) != WEFT_OK)
        say(serve, "warning", "chat completions will be refused: %s", err.text);
    say(serve, "ready", "ready");
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
        say(serve, "failed", "%s", err.text);
        atomic_store(&serve->load_failed, true);
        weft__server_quit(serve->server);
        return NULL;
    }
    say_loaded(serve);
    weft__server_ready(serve->server, serve->engine);
    return NULL;
}

static int run(struct serve *serve)
{
    weft_error err;
    pthread_t loader;
    if (weft__server_open(&serve->server_options, &serve->server, &err) != WEFT_OK) {
        say(serve, "failed", "%s", err.text);
        return WEFT__EXIT_FAILED;
    }
    bool ipv6 = strchr(serve->host, ':') != NULL;
    say(serve, "listen", "http://%s%s%s:%d/ (console), API under /v1; loading %s", ipv6 ? "[" : "",
        serve->host, ipv6 ? "]" : "", weft__server_port(serve->server), serve->dir);
    if (pthread_create(&loader, NULL, load, serve) != 0) {
        say(serve, "failed", "no thread for loading");
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
    say(serve, "stopped", "stopped");
    return load_failed || engine.failed ? WEFT__EXIT_FAILED : WEFT__EXIT_OK;
}

/* ---- options ---- */

/* Cuts keys out of text, in place: a line each, or what is between commas. */
static int take_keys(struct serve *serve, char *text, const char *end, const char *source)
{
    static const char blanks[] = " \t\r";
    bool lines = end[0] == '\n';
    for (int n = 1; text != NULL; n++) {
        char *key = strsep(&text, end);
        key += strspn(key, blanks);
        size_t len = strlen(key);
        while (len > 0 && strchr(blanks, key[len - 1]) != NULL) len--;
        key[len] = '\0';
        if (len == 0 || (lines && key[0] == '#')) continue;
        if (key[strcspn(key, blanks)] != '\0')
            return weft__usage("serve", "%.300s, %s %d: an API key has no blank inside%s", source,
                               lines ? "line" : "key", n,
                               lines ? "; a comment starts with # and has a line of its own" : "");
        if (serve->keys_count == MAX_KEYS)
            return weft__usage("serve", "more than %d API keys", MAX_KEYS);
        serve->key[serve->keys_count++] = key;
    }
    return WEFT__EXIT_OK;
}

static int read_keys(struct serve *serve)
{
    size_t len;
    weft_error err;
    int status = WEFT__EXIT_OK;
    if (serve->keys != NULL) serve->key_text = strdup(serve->keys);
    if (serve->key_file != NULL &&
        weft__read_file(serve->key_file, MAX_FILE, &serve->key_file_text, &len, &err) != WEFT_OK)
        return weft__report("serve", &err);
    if (serve->key_file != NULL && strlen(serve->key_file_text) != len)
        return weft__usage("serve", "--api-key-file %.300s: a NUL byte: not a text",
                           serve->key_file);
    status = take_keys(serve, serve->key_text, ",", "--api-key");
    if (status == WEFT__EXIT_OK)
        status = take_keys(serve, serve->key_file_text, "\n", serve->key_file);
    if (status == WEFT__EXIT_OK && serve->keys_count == 0 &&
        (serve->keys != NULL || serve->key_file != NULL))
        return weft__usage("serve", "no API key in --api-key or --api-key-file");
    return status;
}

static weft_status take_entry(struct serve *serve, const struct weft__option *options,
                              const char *name, const json_t *value, weft_error *err)
{
    const struct weft__option model = {
        .kind = WEFT__OPTION_STRING, .name = "model", .target = &serve->dir};
    const struct weft__option *o = options;
    char word[64] = "";
    const char *text = json_string_value(value);
    while (o->kind != WEFT__OPTION_END && strcmp(o->name, name) != 0) o++;
    if (strcmp(name, model.name) == 0) o = &model;
    if (o->kind == WEFT__OPTION_END || o->target == &serve->config)
        return weft__fail(err, WEFT_INVALID, "there is no option %.60s", name);
    if (json_is_null(value)) return WEFT_OK;
    if (text == NULL) (void)json_dumpb(value, word, sizeof word - 1, JSON_ENCODE_ANY);
    if (text == NULL && o->kind == WEFT__OPTION_STRING)
        return weft__fail(err, WEFT_INVALID, "%s needs a value in quotes, not %.40s", name, word);
    return weft__option_set(o, text != NULL ? text : word, err);
}

/* What --config says. */
static bool read_config(struct serve *serve, const struct weft__option *options, int *status)
{
    json_error_t error;
    weft_error err;
    const char *path = serve->config, *name;
    json_t *value;
    serve->file = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(serve->file)) {
        *status =
            weft__usage("serve", "--config %.200s: a JSON object is wanted%s%.150s", path,
                        serve->file == NULL ? ": " : "", serve->file == NULL ? error.text : "");
        return false;
    }
    json_object_foreach (serve->file, name, value)
        if (take_entry(serve, options, name, value, &err) != WEFT_OK) {
            *status = weft__usage("serve", "--config %.200s: %s", path, err.text);
            return false;
        }
    return true;
}

static bool parse(struct serve *s, int argc, char **argv, int *status)
{
    const struct weft__option options[] = {
        {WEFT__OPTION_STRING, "host", &s->host, 0, 0, "HOST", "address to listen at (127.0.0.1)"},
        {WEFT__OPTION_INT, "port", &s->port, 0, 65535, "N", "port; 0: any free one (8000)"},
        {WEFT__OPTION_STRING, "api-key", &s->keys, 0, 0, "KEY,...", "keys clients must send"},
        {WEFT__OPTION_STRING, "api-key-file", &s->key_file, 0, 0, "FILE",
         "the same, one a line; # starts a comment line"},
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
    if (s->config != NULL) {
        /* It comes first; then the command line once more, which wins. */
        if (!read_config(s, options, status)) return false;
        line.arguments = 0;
        if (!weft__command_line_parse(&line, argc, argv, status)) return false;
    }
    if (line.arguments > 0) s->dir = line.argument[0];
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
    if (!parse(&serve, argc, argv, &status)) return status;
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
    if (serve.log_format == JSON) serve.engine_options.on_progress = NULL;
    serve.server_options = (struct weft__server_options){
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
    status = run(&serve);
    free(name);
    free(serve.args);
    free(serve.key_text);
    free(serve.key_file_text);
    json_decref(serve.file);
    return status;
}
