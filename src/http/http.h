/* http.h: an OpenAI-compatible server in front of an engine.
 *
 * One thread runs the loop and owns every connection; another reads large bodies for it, and the
 * engine's leaves notes.
 * Hidden behind the handle: sockets, routes, requests under way, metrics, the console page. */
#ifndef WEFT_SRC_HTTP_H
#define WEFT_SRC_HTTP_H

#include "engine/engine.h"

struct weft__server;

struct weft__server_options {
    const char *host;        /* name or address to listen at */
    int port;                /* 0: any free one */
    const char *const *keys; /* [key_count] accepted API keys; none: everyone may ask */
    int key_count;
    const char *model;         /* the id clients ask for */
    const char *args;          /* what /server_info shows of the command line: a JSON object */
    bool any_model;            /* accept every id */
    bool neutral_sampling;     /* absent fields mean OpenAI's defaults, not the checkpoint's */
    int64_t drain_timeout_s;   /* after SIGTERM: until running requests are ended */
    int64_t request_timeout_s; /* 0: none */
    int64_t ping_interval_s;   /* comment lines in quiet streams; 0: none */
    int64_t max_body;          /* bytes of a request's body */
    bool json_log;
    /* One line, no newline, from any thread. */
    void (*log)(void *ctx, const char *line, size_t len);
    void *ctx;
};

/* Listens; everything but liveness is answered with 503 until weft__server_ready. The strings of
 * the options are borrowed until close. */
weft_status weft__server_open(const struct weft__server_options *options, struct weft__server **out,
                              weft_error *err);
void weft__server_close(struct weft__server *server); /* NULL allowed; before the engine's close */

/* A line of the log that is about no request, from any thread; needs no open server. */
void weft__log_event(const struct weft__server_options *options, const char *event,
                     const char *text);

int weft__server_port(const struct weft__server *server);
bool weft__server_loaded(const struct weft__server *server); /* ready was called */

/* From any thread: the engine is open, has a tokenizer, and stays so until the server is closed. */
void weft__server_ready(struct weft__server *server, weft_engine *engine);
/* From any thread: run returns. For an engine that could not be opened. */
void weft__server_quit(struct weft__server *server);

/* Serves on the calling thread until SIGTERM or SIGINT and the end of what was running by then, or
 * until a second signal; or until some seconds after the engine has failed. True: every request had
 * ended by itself. */
bool weft__server_run(struct weft__server *server);

#endif
