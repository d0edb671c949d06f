/* Routes: which function answers which path, who may ask, what is refused and how. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"

/* ---- refusals ---- */

bool weft__refuse(struct weft__refusal *refusal, int status, const char *code, const char *param,
                  const char *format, ...)
{
    va_list args;
    *refusal = (struct weft__refusal){.status = status, .code = code};
    if (param != NULL) (void)snprintf(refusal->param, sizeof refusal->param, "%s", param);
    va_start(args, format);
    (void)vsnprintf(refusal->message, sizeof refusal->message, format, args);
    va_end(args);
    return false;
}

bool weft__refuse_error(struct weft__refusal *refusal, const weft_error *err)
{
    int status = 500;
    const char *code = "internal_error";
    switch (err->status) {
    case WEFT_INVALID:
    case WEFT_NOT_FOUND:
    case WEFT_UNSUPPORTED:
    case WEFT_FORMAT:
        status = 400;
        code = "invalid_value";
        break;
    case WEFT_TOO_LONG:
        status = 400;
        code = "context_length_exceeded";
        break;
    case WEFT_BUSY:
        status = 429;
        code = "queue_full";
        break;
    case WEFT_CLOSED:
        status = 503;
        code = "engine_dead";
        break;
    default:
        break;
    }
    return weft__refuse(refusal, status, code, NULL, "%s", err->text);
}

static const char *type_of(int status)
{
    if (status == 401) return "authentication_error";
    if (status == 429) return "rate_limit_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

void weft__put_refusal(struct weft__buf *out, const struct weft__refusal *refusal)
{
    weft__buf_puts(out, "{\"error\":{\"message\":");
    weft__put_cstring(out, refusal->message);
    weft__buf_printf(out, ",\"type\":\"%s\",\"param\":", type_of(refusal->status));
    weft__put_cstring(out, refusal->param[0] != '\0' ? refusal->param : NULL);
    weft__buf_puts(out, ",\"code\":");
    weft__put_cstring(out, refusal->code);
    weft__buf_puts(out, "}}");
}

/* ---- small routes ---- */

static void respond_literal(struct weft__conn *conn, const char *json)
{
    weft__respond(conn, 200, "application/json", "", (struct weft__slice){json, strlen(json)});
}

static void route_completions(struct weft__conn *conn)
{
    weft__call_start(conn, WEFT__ASK_COMPLETION);
}
static void route_chat(struct weft__conn *conn) { weft__call_start(conn, WEFT__ASK_CHAT); }
static void route_generate(struct weft__conn *conn) { weft__call_start(conn, WEFT__ASK_NATIVE); }

/* Liveness: never behind the key, and true only when a request would be taken. */
static void route_health(struct weft__conn *conn)
{
    struct weft__refusal refusal;
    if (weft__server_able(conn->server, &refusal))
        respond_literal(conn, "{\"status\":\"ok\"}");
    else
        weft__respond_refusal(conn, &refusal);
}

static void put_model(const struct weft__server *server, struct weft__buf *out)
{
    const struct weft__engine_view *view = weft__engine_view(server->engine);
    weft__buf_puts(out, "{\"id\":");
    weft__put_cstring(out, server->options.model);
    weft__buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"weft\",\"root\":",
                     (long long)server->started);
    weft__put_cstring(out, view->dir);
    weft__buf_printf(out, ",\"parent\":null,\"max_model_len\":%lld}",
                     (long long)view->plan->context);
}

static void respond_built(struct weft__conn *conn, struct weft__buf *body)
{
    weft__respond_json(conn, 200, body);
    weft__buf_free(body);
}

static void route_models(struct weft__conn *conn)
{
    struct weft__buf body;
    weft__buf_init(&body, WEFT__ANSWER_MAX);
    weft__buf_puts(&body, "{\"object\":\"list\",\"data\":[");
    put_model(conn->server, &body);
    weft__buf_puts(&body, "]}");
    respond_built(conn, &body);
}

static void route_model(struct weft__conn *conn)
{
    const char *id = strstr(conn->path, "/models/") + strlen("/models/");
    struct weft__refusal refusal;
    if (strcmp(id, conn->server->options.model) != 0 && !conn->server->options.any_model) {
        (void)weft__refuse(&refusal, 404, "model_not_found", "model",
                           "there is no model \"%.200s\" here; this server has \"%.200s\"", id,
                           conn->server->options.model);
        weft__respond_refusal(conn, &refusal);
        return;
    }
    struct weft__buf body;
    weft__buf_init(&body, WEFT__ANSWER_MAX);
    put_model(conn->server, &body);
    respond_built(conn, &body);
}

static void route_model_info(struct weft__conn *conn)
{
    const struct weft__engine_view *view = weft__engine_view(conn->server->engine);
    struct weft__buf body;
    weft__buf_init(&body, WEFT__ANSWER_MAX);
    weft__buf_puts(&body, "{\"model_path\":");
    weft__put_cstring(&body, view->dir);
    weft__buf_puts(&body, ",\"tokenizer_path\":");
    weft__put_cstring(&body, view->dir);
    weft__buf_puts(&body, ",\"served_model_name\":");
    weft__put_cstring(&body, conn->server->options.model);
    weft__buf_printf(&body,
                     ",\"is_generation\":true,\"max_model_len\":%lld,\"weight_version\":"
                     "\"default\",\"model_type\":",
                     (long long)view->plan->context);
    weft__put_cstring(&body, view->arch->family->model_type);
    weft__buf_puts(&body, "}");
    respond_built(conn, &body);
}

static void route_server_info(struct weft__conn *conn)
{
    const struct weft__server *server = conn->server;
    const struct weft__plan *plan = weft__engine_view(server->engine)->plan;
    struct weft__buf body;
    weft__buf_init(&body, WEFT__ANSWER_MAX);
    weft__buf_printf(&body, "{\"version\":\"%s\",\"model_path\":", weft_version());
    weft__put_cstring(&body, weft__engine_view(server->engine)->dir);
    weft__buf_puts(&body, ",\"served_model_name\":");
    weft__put_cstring(&body, server->options.model);
    weft__buf_printf(&body,
                     ",\"args\":%s,\"tp_size\":%d,\"threads\":%d,\"context_length\":%lld,"
                     "\"max_running_requests\":%lld,\"max_queued_requests\":%lld,"
                     "\"max_total_num_tokens\":%lld,"
                     "\"internal_states\":[{\"avg_spec_accept_length\":null}]}",
                     server->options.args, plan->ranks.size, plan->ranks.threads,
                     (long long)plan->context, (long long)plan->max_running,
                     (long long)plan->max_queue, (long long)plan->ranks.limits.pages * WEFT__PAGE);
    respond_built(conn, &body);
}

static void route_load(struct weft__conn *conn)
{
    struct weft__engine_status status;
    struct weft__buf body;
    weft__engine_status(conn->server->engine, &status);
    const struct weft__sched_counters *c = &status.counters;
    weft__buf_init(&body, WEFT__ANSWER_MAX);
    weft__buf_printf(&body,
                     "{\"loads\":[{\"dp_rank\":0,\"num_running_reqs\":%lld,\"num_waiting_reqs\":"
                     "%lld,\"num_used_tokens\":%lld,\"max_total_num_tokens\":%lld,"
                     "\"token_usage\":%.6f}],\"num_running_reqs\":%lld,\"num_waiting_reqs\":%lld,"
                     "\"num_used_tokens\":%lld}",
                     (long long)c->running, (long long)c->waiting,
                     (long long)c->pages_used * WEFT__PAGE, (long long)c->pages * WEFT__PAGE,
                     (double)c->pages_used / (double)weft__max(c->pages, 1), (long long)c->running,
                     (long long)c->waiting, (long long)c->pages_used * WEFT__PAGE);
    respond_built(conn, &body);
}

static void route_version(struct weft__conn *conn)
{
    struct weft__buf body;
    weft__buf_init(&body, 256);
    weft__buf_printf(&body, "{\"version\":\"%s\"}", weft_version());
    respond_built(conn, &body);
}

/* What clients that render themselves need; NULL when there is none. */
static char *read_template(const char *dir)
{
    enum { FILE_MAX = 64 << 20 };
    char path[4200], *text = NULL, *template = NULL;
    size_t len;
    (void)snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    if (weft__read_file(path, FILE_MAX, &template, &len, NULL) == WEFT_OK) return template;
    (void)snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    if (weft__read_file(path, FILE_MAX, &text, &len, NULL) != WEFT_OK) return NULL;
    json_t *config = json_loadb(text, len, 0, NULL), *entry;
    json_t *given = weft__field(config, "chat_template");
    size_t i;
    json_array_foreach (given, i, entry) {
        const char *name = json_string_value(weft__field(entry, "name"));
        if (name != NULL && strcmp(name, "default") == 0) given = weft__field(entry, "template");
    }
    if (json_is_string(given)) template = strdup(json_string_value(given));
    json_decref(config);
    free(text);
    return template;
}

/* What is longer than a context of the longest tokens is too long, also where a normalizer makes a
 * fourth of it, unless it is short anyway. Encoding it to count its tokens could take a minute. */
static size_t text_max(const struct weft__engine_view *view)
{
    size_t longest = 1;
    for (int32_t id = 0; id < weft__tokenizer_size(view->tokenizer); id++) {
        size_t len = weft__token_bytes(view->tokenizer, id).len;
        if (len > longest) longest = len;
    }
    return (size_t)weft__max(4 * view->plan->context * (int64_t)longest, 1 << 20);
}

void weft__route_prepare(struct weft__server *server)
{
    const struct weft__engine_view *view = weft__engine_view(server->engine);
    server->text_max = text_max(view);
    server->template = read_template(view->dir);
    if (server->template == NULL) return;
    server->calls_format = weft__calls_format(server->template);
    server->thinks = strstr(server->template, "</think>") != NULL;
    server->think_begin = server->think_end = -1;
    if (!server->thinks) return;
    server->think_begin = weft__token_id(view->tokenizer, "<think>", 7);
    server->think_end = weft__token_id(view->tokenizer, "</think>", 8);
    server->mask_words = (size_t)weft__ceil_div(view->arch->vocab, 32);
    server->mask = calloc(server->mask_words, sizeof *server->mask);
    if (server->think_begin < 0 || server->mask == NULL) server->think_end = -1;
}

static void route_tokenizer_info(struct weft__conn *conn)
{
    static const char *const names[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    const struct weft__engine_view *view = weft__engine_view(conn->server->engine);
    struct weft__buf body;
    weft__buf_init(&body, WEFT__ANSWER_MAX);
    weft__buf_puts(&body, "{\"tokenizer_class\":\"PreTrainedTokenizerFast\"");
    for (size_t i = 0; i < WEFT__COUNT(names); i++) {
        const char *text = weft__chat_token(view->chat, names[i]);
        weft__buf_printf(&body, ",\"%s\":", names[i]);
        weft__put_cstring(&body, text);
    }
    weft__buf_puts(&body, ",\"chat_template\":");
    weft__put_cstring(&body, conn->server->template);
    weft__buf_puts(&body, "}");
    respond_built(conn, &body);
}

static void route_profile(struct weft__conn *conn)
{
    respond_literal(conn, "{\"success\":true,\"message\":\"weft has no profiler to start; "
                          "/metrics and /stats are always on\"}");
}

/* Idle prefixes can be dropped while others run, so nothing has to be waited for. */
static void route_flush(struct weft__conn *conn)
{
    struct weft__engine_status status;
    struct weft__refusal refusal;
    weft__engine_status(conn->server->engine, &status);
    if (status.counters.running + status.counters.waiting > 0) {
        (void)weft__refuse(&refusal, 400, "busy", NULL,
                           "requests are running (%lld) or waiting (%lld): flush when idle",
                           (long long)status.counters.running, (long long)status.counters.waiting);
        weft__respond_refusal(conn, &refusal);
        return;
    }
    weft__engine_flush(conn->server->engine);
    respond_literal(conn, "{\"success\":true,\"message\":\"cache flushed\"}");
}

static void route_abort(struct weft__conn *conn)
{
    struct weft__refusal refusal = {0};
    bool small = conn->body.len <= WEFT__BODY_SMALL;
    json_t *body = small ? weft__body_parse(&conn->body, &refusal) : NULL;
    bool all = false;
    int64_t count = 0;
    if (!small)
        (void)weft__refuse(&refusal, 413, "invalid_value", NULL, "a body of %zu bytes for one id",
                           conn->body.len);
    if (body == NULL || !weft__field_bool(body, "abort_all", &all, &refusal)) {
        json_decref(body);
        weft__respond_refusal(conn, &refusal);
        return;
    }
    const char *rid = json_string_value(weft__field(body, "rid"));
    for (struct weft__call *call = conn->server->calls; call != NULL; call = call->next) {
        bool match = rid != NULL && (strcmp(rid, call->id) == 0 ||
                                     (call->ask.rid != NULL && strcmp(rid, call->ask.rid) == 0) ||
                                     strcmp(rid, call->request_id) == 0);
        if (all || match) {
            weft__call_abort(call);
            count++;
        }
    }
    for (struct weft__conn *c = conn->server->conns; c != NULL; c = c->next) {
        struct weft__call *unread = c->reading != NULL ? c->reading->call : NULL;
        if (unread != NULL && (all || (rid != NULL && strcmp(rid, c->request_id) == 0))) {
            weft__call_abort(unread);
            count++;
        }
    }
    json_decref(body);
    struct weft__buf answer;
    weft__buf_init(&answer, 256);
    weft__buf_printf(&answer, "{\"success\":true,\"aborted\":%lld}", (long long)count);
    respond_built(conn, &answer);
}

static void route_console(struct weft__conn *conn)
{
    extern const char weft__console_start[], weft__console_end[];
    weft__respond(conn, 200, "text/html; charset=utf-8",
                  "Cache-Control: no-cache\r\n"
                  "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; "
                  "style-src 'unsafe-inline'; connect-src 'self'; img-src data:\r\n",
                  (struct weft__slice){weft__console_start,
                                       (size_t)(weft__console_end - weft__console_start)});
}

/* ---- the table ---- */

enum { GET = 1 << WEFT__METHOD_GET, POST = 1 << WEFT__METHOD_POST };
enum {
    OPEN = 1,  /* no key */
    EARLY = 2, /* also while loading or draining */
    API = 4    /* also below /v1, where nothing is that changes the server */
};

static const struct route {
    const char *path; /* a final slash: everything below */
    int methods, flags;
    void (*answer)(struct weft__conn *);
} routes[] = {
    {"/", GET, OPEN | EARLY, route_console},
    {"/models", GET, API, route_models},
    {"/models/", GET, API, route_model},
    {"/completions", POST, API, route_completions},
    {"/chat/completions", POST, API, route_chat},
    {"/generate", POST, 0, route_generate},
    {"/tokenize", POST, API, weft__route_tokenize},
    {"/detokenize", POST, API, weft__route_detokenize},
    {"/tokenizer_info", GET, API, route_tokenizer_info},
    {"/health", GET, OPEN | EARLY | API, route_health},
    {"/ping", GET | POST, OPEN | EARLY, route_health},
    {"/health_generate", GET, OPEN, weft__call_probe},
    {"/metrics", GET, OPEN | EARLY, weft__route_metrics},
    {"/stats", GET, EARLY, weft__route_stats},
    {"/model_info", GET, 0, route_model_info},
    {"/get_model_info", GET, 0, route_model_info},
    {"/server_info", GET, 0, route_server_info},
    {"/get_server_info", GET, 0, route_server_info},
    {"/get_load", GET, 0, route_load},
    {"/loads", GET, API, route_load},
    {"/version", GET, EARLY, route_version},
    {"/flush_cache", GET | POST, 0, route_flush},
    {"/reset_prefix_cache", POST, 0, route_flush},
    {"/abort_request", POST, 0, route_abort},
    {"/start_profile", GET | POST, 0, route_profile},
    {"/stop_profile", GET | POST, 0, route_profile},
};

static const struct route *find_route(const char *path)
{
    bool api = strncmp(path, "/v1/", 4) == 0;
    if (api) path += 3;
    for (size_t i = 0; i < WEFT__COUNT(routes); i++) {
        if (api && (routes[i].flags & API) == 0) continue;
        const char *known = routes[i].path;
        size_t len = strlen(known);
        bool below = len > 1 && known[len - 1] == '/';
        if (below ? strncmp(path, known, len) == 0 && path[len] != '\0' : strcmp(path, known) == 0)
            return &routes[i];
    }
    return NULL;
}

/* In a time that does not tell how much of the key was right. */
static bool same_key(const char *key, struct weft__slice given)
{
    size_t len = strlen(key);
    unsigned char differ = len != given.len;
    for (size_t i = 0; i < given.len && len > 0; i++)
        differ = (unsigned char)(differ | (key[i % len] ^ given.data[i]));
    return differ == 0;
}

static bool key_ok(const struct weft__server *server, const struct weft__head *head)
{
    struct weft__slice given = head->authorization.len > 0 ? head->authorization : head->api_key;
    if (given.len > 7 && strncasecmp(given.data, "Bearer ", 7) == 0) {
        given.data += 7; /* the key alone, without the word, is accepted, too */
        given.len -= 7;
    }
    bool ok = server->options.key_count == 0;
    for (int i = 0; i < server->options.key_count; i++)
        ok |= same_key(server->options.keys[i], given);
    return ok;
}

static void refuse_method(struct weft__conn *conn, const struct route *route)
{
    struct weft__refusal refusal;
    struct weft__buf body;
    char headers[128];
    (void)snprintf(headers, sizeof headers, "Allow: %s%sOPTIONS\r\nx-should-retry: false\r\n",
                   route->methods & GET ? "GET, HEAD, " : "",
                   route->methods & POST ? "POST, " : "");
    (void)weft__refuse(
        &refusal, 405, "method_not_allowed", NULL, "%s does not work with %s", conn->path,
        conn->method == WEFT__METHOD_OTHER ? "this method" : weft__method_name(conn->method));
    conn->error = refusal.code;
    weft__buf_init(&body, 16384);
    weft__put_refusal(&body, &refusal);
    weft__respond(conn, 405, "application/json", headers,
                  (struct weft__slice){body.data, body.len});
    weft__buf_free(&body);
}

bool weft__route_check(struct weft__conn *conn, const struct weft__head *head)
{
    const struct route *route = find_route(conn->path);
    struct weft__refusal refusal = {0};
    if (conn->method == WEFT__METHOD_OPTIONS) {
        /* The star is every header but that one. */
        weft__respond(conn, 204, NULL,
                      "Access-Control-Allow-Methods: GET, POST, OPTIONS\r\n"
                      "Access-Control-Allow-Headers: authorization, *\r\n"
                      "Access-Control-Max-Age: 86400\r\n",
                      (struct weft__slice){"", 0});
        return false;
    }
    int method = conn->method == WEFT__METHOD_HEAD ? GET : 1 << conn->method;
    if (route == NULL)
        (void)weft__refuse(&refusal, 404, "not_found", NULL, "there is no %s %.300s here",
                           weft__method_name(conn->method), conn->path);
    else if ((route->flags & OPEN) == 0 && !key_ok(conn->server, head))
        (void)weft__refuse(&refusal, 401, "invalid_api_key", NULL,
                           "a valid API key is needed: Authorization: Bearer KEY");
    else if ((route->methods & method) == 0) {
        refuse_method(conn, route);
        return false;
    } else if ((route->flags & EARLY) != 0 || weft__server_able(conn->server, &refusal))
        return true;
    weft__respond_refusal(conn, &refusal);
    return false;
}

void weft__route(struct weft__conn *conn) { find_route(conn->path)->answer(conn); }
