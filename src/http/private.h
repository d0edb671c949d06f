/* private.h: what the files of src/http share. From the wire to the engine:
 *
 *   head.c     bytes -> request heads, chunked bodies; pure
 *   conn.c     connections: reading, answers, streams, time-outs
 *   route.c    which function answers which path, keys, errors
 *   ask.c      JSON -> struct weft__ask, everything checked
 *   constrain.c response_format, forced calls -> guides
 *   prompt.c   prompts and messages -> token ids; tokenize routes
 *   reader.c   a thread that does all this with large bodies, since it takes seconds
 *   call.c     a request under way: submitted, its notes taken, ended
 *   text.c     stop strings; JSON text
 *   extract.c  reasoning, content and tool calls of a chat's text; pure
 *   render.c   answers and stream events
 *   metrics.c  histograms, /metrics, /stats
 *   server.c   the loop */
#ifndef WEFT_SRC_HTTP_PRIVATE_H
#define WEFT_SRC_HTTP_PRIVATE_H

#include <event2/event.h>
#include <event2/listener.h>
#include <jansson.h>
#include <pthread.h>

#include "guide/guide.h"
#include "http.h"

enum {
    WEFT__HEAD_MAX = 64 << 10,    /* bytes of a request's head */
    WEFT__HEADERS_MAX = 128,      /* lines of it */
    WEFT__PATH_MAX = 4096,        /* bytes, decoded */
    WEFT__PENDING_MAX = 1 << 20,  /* bytes a stream's client may be behind */
    WEFT__ANSWER_MAX = 512 << 20, /* bytes of one answer */
    WEFT__BODIES_MAX = 1 << 30,   /* bytes of all bodies, until they are answered */
    WEFT__CONNECTIONS_MAX = 65536,
    WEFT__BODY_SMALL = 64 << 10,     /* bytes of a body that the loop's thread reads itself */
    WEFT__JSON_VALUES_MAX = 4 << 20, /* of one body: what bounds its memory once parsed */
    WEFT__JSON_DEPTH_MAX = 256,
    WEFT__STOPS_MAX = 64,        /* stop strings */
    WEFT__STOP_BYTES_MAX = 4096, /* of one */
    WEFT__PROMPTS_MAX = 2048,    /* of one request */
    WEFT__REQUEST_ID_MAX = 128,
    WEFT__NOTES_MAX = 1 << 30, /* bytes of notes the loop has not taken yet */

    WEFT__IDLE_S = 120, /* keep-alive: longer than the clients keep theirs */
    WEFT__HEAD_S = 30,  /* for a whole head */
    WEFT__STALL_S = 30, /* for the next byte of a body, or for a reader to read */
    WEFT__BODY_S = 600, /* for a whole body */
    WEFT__LINGER_S = 2, /* for a client to notice that it was refused */
};

struct weft__slice {
    const char *data;
    size_t len;
};

/* ---- head.c ---- */

#define WEFT__METHODS(X) \
    X(GET)               \
    X(HEAD)              \
    X(POST)              \
    X(PUT)               \
    X(DELETE)            \
    X(OPTIONS)           \
    X(PATCH)             \
    X(OTHER)
enum weft__method {
#define X(name) WEFT__METHOD_##name,
    WEFT__METHODS(X)
#undef X
};
const char *weft__method_name(enum weft__method method);

struct weft__head { /* slices point into the bytes that were parsed */
    enum weft__method method;
    int minor; /* HTTP/1.minor */
    bool keep_alive, chunked, has_length, has_host, expect;
    uint64_t length; /* of the body, if has_length */
    struct weft__slice target, authorization, api_key, request_id;
    const char *why; /* of a refusal whose status says too little; or NULL */
};

/* Bytes up to and with the empty line; 0: not all there yet. */
size_t weft__head_size(const char *data, size_t len);
/* Parses a whole head. Returns 0, or the status to refuse it with. */
int weft__head_parse(const char *data, size_t size, struct weft__head *head);
/* Cuts off the query, decodes %xx, drops trailing slashes. False: not a path. */
bool weft__path_decode(struct weft__slice target, char out[WEFT__PATH_MAX],
                       struct weft__slice *query);

struct weft__chunked { /* zeroed: at the start of a chunked body */
    enum {
        WEFT__CHUNK_SIZE,
        WEFT__CHUNK_DATA,
        WEFT__CHUNK_END,
        WEFT__CHUNK_TRAILER,
        WEFT__CHUNK_DONE
    } state;
    uint64_t left; /* of the chunk */
    int trailers;
};
/* Takes *used of the bytes, also of bad ones, appends what they carry. Returns 0 or the status to
 * refuse with. */
int weft__chunked_feed(struct weft__chunked *chunked, const char *data, size_t len, size_t *used,
                       struct weft__buf *body);

/* ---- text.c ---- */

/* JSON text, quotes included; what is not UTF-8 becomes U+FFFD. */
void weft__put_string(struct weft__buf *out, const char *data, size_t len);
void weft__put_cstring(struct weft__buf *out, const char *text); /* NULL: null */
/* The shortest of %.9g; -9999.0 for minus infinity: JSON has none. */
void weft__put_logprob(struct weft__buf *out, float value);
int64_t weft__count_characters(const char *data, size_t len);

struct weft__stops {
    struct weft__slice stop[WEFT__STOPS_MAX]; /* UTF-8, not empty */
    int count;
    bool keep; /* the stop string stays in the text */
};

/* Text that could still become a stop string. */
struct weft__tail {
    struct weft__buf held;
};
/* Appends text to out as far as it is certain. Returns the stop that now ended the text, or -1.
 * The first to end wins, so that the result does not depend on how the text is cut. */
int weft__tail_push(struct weft__tail *tail, const struct weft__stops *stops, const char *text,
                    size_t len, struct weft__buf *out);
void weft__tail_finish(struct weft__tail *tail, struct weft__buf *out);

/* ---- extract.c ---- */

enum { WEFT__CALLS_MAX = 128 }; /* calls between one pair of marks */

enum weft__calls_format {
    WEFT__CALLS_NONE,
    WEFT__CALLS_HERMES, /* <tool_call>{"name": ..., "arguments": {...}}</tool_call> */
    WEFT__CALLS_GLM, /* <tool_call>NAME<arg_key>K</arg_key><arg_value>V</arg_value></tool_call> */
    WEFT__CALLS_MISTRAL,  /* [TOOL_CALLS][{...}] and [TOOL_CALLS]NAME[ARGS]{...} */
    WEFT__CALLS_DEEPSEEK, /* V3 and V3.1 */
};
enum weft__calls_format weft__calls_format(const char *template);
/* Whether the text is one of the marks: they stay in the text where other special tokens don't. */
bool weft__extract_mark(const char *text, size_t len);

struct weft__extract {              /* zeroed but for the fields the caller sets, then init */
    enum weft__calls_format format; /* the caller's. NONE: calls stay text */
    const json_t *tools;            /* the caller's, borrowed: what may be called */
    enum {
        WEFT__EXTRACT_TEXT,
        WEFT__EXTRACT_START,     /* reasoning may follow, with its mark */
        WEFT__EXTRACT_REASONING, /* the mark is behind */
        WEFT__EXTRACT_CALL,
    } state; /* the caller's to begin with */
    void *ctx;
    void (*call)(void *ctx, struct weft__slice name, struct weft__slice arguments);
    bool fresh;            /* nothing of this part was given out yet */
    size_t seen;           /* bytes of held without an end mark */
    struct weft__buf held; /* what is not certain yet */
};
struct weft__extracted {
    struct weft__buf *content, *reasoning;
};
void weft__extract_init(struct weft__extract *x);
void weft__extract_free(struct weft__extract *x);
void weft__extract_push(struct weft__extract *x, const char *text, size_t len,
                        const struct weft__extracted *out);
void weft__extract_finish(struct weft__extract *x, const struct weft__extracted *out);

/* ---- refusals ---- */

struct weft__refusal {
    int status;       /* HTTP; 0: none */
    const char *code; /* static, or NULL */
    char param[64];   /* the field at fault, or empty */
    char message[640];
};
/* Fills it in and returns false, so that a check reads `return weft__refuse(...)`. */
bool weft__refuse(struct weft__refusal *refusal, int status, const char *code, const char *param,
                  const char *format, ...) WEFT__PRINTF(5, 6);
/* From an engine's error, by its status. */
bool weft__refuse_error(struct weft__refusal *refusal, const weft_error *err);
/* {"error": {...}} */
void weft__put_refusal(struct weft__buf *out, const struct weft__refusal *refusal);

/* ---- conn.c ---- */

struct weft__conn {
    struct weft__server *server;
    struct weft__conn *next, *prev; /* all of the server, or its graveyard */
    evutil_socket_t fd;
    struct event *read_event, *write_event;
    enum {
        WEFT__CONN_HEAD,   /* waiting for a request */
        WEFT__CONN_BODY,   /* reading its body */
        WEFT__CONN_BUSY,   /* it is being answered */
        WEFT__CONN_LINGER, /* refused; what still comes is dropped */
        WEFT__CONN_DEAD,
    } state;
    bool processing, streaming, close_after;
    uint64_t deadline_ns, body_deadline_ns, write_deadline_ns; /* 0: none */
    struct weft__buf in, out;
    size_t out_sent;

    /* The request. */
    enum weft__method method;
    int minor;
    uint64_t body_left, received_ns;
    bool body_chunked;
    struct weft__chunked chunked;
    struct weft__buf body;
    char path[WEFT__PATH_MAX];
    char query[256];
    char request_id[WEFT__REQUEST_ID_MAX + 1];
    char peer[64];
    int status;                    /* of the answer */
    const char *error;             /* the code of what was refused, or ended the stream */
    struct weft__reading *reading; /* under way */
    struct weft__call *call;
};

void weft__conn_open(struct weft__server *server, evutil_socket_t fd, const char *peer);
void weft__conn_kill(struct weft__conn *conn); /* at once; memory is freed by the next sweep */
void weft__conn_sweep(struct weft__conn *conn, uint64_t now_ns);
void weft__conn_free(struct weft__conn *conn); /* of a dead one */

/* One answer, whole. `headers` are further lines, each with its CRLF. */
void weft__respond(struct weft__conn *conn, int status, const char *type, const char *headers,
                   const struct weft__slice body);
void weft__respond_json(struct weft__conn *conn, int status, const struct weft__buf *body);
void weft__respond_refusal(struct weft__conn *conn, const struct weft__refusal *refusal);

/* A stream of events. `events`: whole events, sent as one chunk and one write. */
void weft__stream_start(struct weft__conn *conn);
void weft__stream_send(struct weft__conn *conn, const struct weft__buf *events);
void weft__stream_end(struct weft__conn *conn);

/* ---- route.c ---- */

/* Refuses by the head alone: unknown path, method, key. False: it was answered. */
bool weft__route_check(struct weft__conn *conn, const struct weft__head *head);
void weft__route(struct weft__conn *conn); /* the body is there */
/* Reads the chat template as its file has it, and what it says of the model's habits. */
void weft__route_prepare(struct weft__server *server);

/* ---- ask.c ---- */

enum weft__ask_kind { WEFT__ASK_COMPLETION, WEFT__ASK_CHAT, WEFT__ASK_NATIVE };

struct weft__ask { /* strings and slices point into `body` */
    enum weft__ask_kind kind;
    json_t *body;
    int64_t max_tokens; /* negative: what is left of the context */
    int64_t min_tokens;
    int samples;
    bool stream, include_usage, continuous_usage;
    bool echo, ignore_eos, skip_special, add_special, return_ids;
    int logprobs;          /* alternatives; negative: no logprobs */
    int64_t logprobs_from; /* native: of the prompt from there; negative: none */
    struct weft__sampling sampling;
    struct weft__logit_bias bias[WEFT__LOGIT_BIAS_MAX];
    struct weft__stops stops;
    int32_t stop_ids[WEFT__STOP_IDS_MAX];
    int32_t stop_id_count;
    int32_t priority;
    uint64_t cache_salt;
    const char *rid;                     /* NULL: none given */
    const json_t *tools;                 /* that may be called; NULL: none */
    bool reasoning;                      /* to be split off, where the model has it */
    bool one_call;                       /* of tools, at most */
    json_t *schema;                      /* of the answer, or NULL; owned */
    char *schema_text;                   /* the same as text; owned */
    bool forced_call;                    /* the schema is of a tool call, marks around it */
    struct weft__constraint *constraint; /* from weft__constrain; the server's */
};

/* Parses a body; the caller decrefs. NULL: refused. */
json_t *weft__body_parse(const struct weft__buf *body, struct weft__refusal *refusal);
/* Takes a reference to body. Zeroed but for its kind by the caller; freed with weft__ask_free
 * whatever comes. */
bool weft__ask_read(struct weft__ask *ask, const struct weft__server *server, json_t *body,
                    struct weft__refusal *refusal);
void weft__ask_free(struct weft__ask *ask);

/* A field, or NULL when it is absent or null. */
json_t *weft__field(const json_t *object, const char *name);
/* Each leaves *out alone when the field is absent. */
bool weft__field_int(const json_t *object, const char *name, int64_t min, int64_t max, int64_t *out,
                     struct weft__refusal *refusal);
bool weft__field_bool(const json_t *object, const char *name, bool *out,
                      struct weft__refusal *refusal);
/* An integer, also when written 128.0. */
bool weft__json_integer(const json_t *value, int64_t *out);

/* ---- constrain.c ---- */

/* Reads response_format and tool_choice. */
bool weft__constrain_read(struct weft__ask *ask, const struct weft__server *server,
                          const json_t *params, struct weft__refusal *refusal);
/* Gives the ask the guide of its schema, if it has one, until released. */
bool weft__constrain(struct weft__server *server, struct weft__ask *ask,
                     struct weft__refusal *refusal);
struct weft__guide *weft__constraint_guide(const struct weft__constraint *constraint);
void weft__constraint_release(struct weft__server *server,
                              struct weft__constraint *constraint); /* NULL allowed */
void weft__constraints_free(struct weft__server *server);

/* ---- prompt.c ---- */

struct weft__prompt {
    struct weft__ids ids;
    struct weft__slice text; /* as given, or NULL data */
    enum weft__thinking {
        WEFT__THINKS_NOT,    /* of a model that doesn't, or told not to */
        WEFT__THINKS_MAYBE,  /* the answer may begin with it */
        WEFT__THINKS_ALREADY /* the prompt ends inside it */
    } thinking;
};
/* All prompts of an ask, in order. *out and each entry's ids are the caller's. */
bool weft__prompts_read(const struct weft__server *server, const struct weft__ask *ask,
                        struct weft__prompt **out, int *count, struct weft__refusal *refusal);
void weft__prompts_free(struct weft__prompt *prompts, int count);

void weft__route_tokenize(struct weft__conn *conn);
void weft__route_detokenize(struct weft__conn *conn);

/* ---- reader.c ---- */

struct weft__reading { /* of one body */
    struct weft__reading *next;
    struct weft__server *server;
    struct weft__conn *conn; /* the loop's; NULL: it has gone */
    struct weft__call *call; /* to be filled in, or NULL */
    struct weft__buf body;
    void (*read)(struct weft__reading *); /* on any thread: fills in what follows */
    void (*done)(struct weft__reading *); /* on the loop's, also when the client has gone */
    struct weft__refusal refusal;
    struct weft__prompt *prompts;
    int prompt_count;
    struct weft__buf answer;
};

struct weft__readings { /* in the order they were added */
    struct weft__reading *first, *last;
};

struct weft__reader {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work;
    struct weft__readings waiting, read;
    int64_t count; /* handed over and not finished; the loop's */
    bool started, closing;
};

weft_status weft__reader_open(struct weft__server *server, weft_error *err);
void weft__reader_close(struct weft__reader *reader);
/* Takes the body of the connection, and the call. */
void weft__read_body(struct weft__conn *conn, struct weft__call *call,
                     void (*read)(struct weft__reading *), void (*done)(struct weft__reading *));
void weft__reader_take(struct weft__reader *reader); /* finishes what was read by now */

/* ---- call.c ---- */

struct weft__logprob_lists { /* the inside of four JSON arrays; chat uses `token` alone */
    struct weft__buf token, value, top, offset;
    int64_t characters; /* where the next token's text begins */
};

struct weft__choice { /* one sample of one prompt */
    struct weft__part *part;
    int index; /* in the answer */
    int32_t sample;

    /* The engine's thread owns these until the choice is in the server's finished list. */
    struct weft__detok detok;
    struct weft__tail tail;
    struct weft__guided guided; /* with a constraint, which waits for the end of reasoning */
    enum weft__thinking thinking;
    int64_t tokens;
    int matched; /* stop string that ended it; -1 */
    struct weft__finish_event finish;
    weft_error error;
    struct weft__choice *next_finished;

    /* The loop's. */
    struct weft__extract extract;
    struct weft__buf text;             /* to be sent; native and whole answers: all of it */
    struct weft__buf reasoning, calls; /* the same; calls: the inside of a JSON array */
    int call_count;
    struct weft__buf ids; /* int32_t, with return_ids */
    struct weft__logprob_lists logprobs;
    int64_t told_tokens;        /* generated, as far as the loop has heard */
    bool told, finished;        /* an event was sent; it has ended */
    uint64_t first_ns, last_ns; /* its first and its last token */
};

struct weft__part { /* one prompt */
    struct weft__call *call;
    struct weft__prompt prompt;
    uint64_t handle;
    struct weft__logprob_lists logprobs; /* of the prompt */
    struct weft__choice *choice;         /* [samples] */
    int64_t cached_tokens;
    bool submitted;
};

struct weft__call {
    struct weft__server *server;
    struct weft__conn *conn; /* NULL: the client is gone, or has its answer */
    struct weft__call *next, *prev;
    struct weft__ask ask;
    struct weft__part *part; /* [parts] */
    int parts, unfinished;   /* choices that the engine still may mention */
    struct weft__choice *choice;
    char id[WEFT__REQUEST_ID_MAX + 16];
    char request_id[WEFT__REQUEST_ID_MAX + 1];
    char peer[64];
    time_t created;
    uint64_t received_ns, sent_ns; /* sent: the last event */
    struct weft__buf prefix;       /* what every object of the answer begins with */
    int64_t body_bytes;            /* of the body, which stays with it as JSON */
    bool probe;                    /* of /health_generate */
    bool head_sent, cancelled;
};

void weft__call_start(struct weft__conn *conn, enum weft__ask_kind kind);
void weft__call_probe(struct weft__conn *conn);
void weft__call_orphan(struct weft__call *call); /* its client is gone */
void weft__call_abort(struct weft__call *call);
void weft__call_fail(struct weft__call *call, const struct weft__refusal *refusal);
void weft__calls_take_notes(struct weft__server *server);
void weft__calls_ping(struct weft__server *server, uint64_t now_ns);

/* ---- render.c ---- */

void weft__render_prompt_logprob(struct weft__part *part, int64_t position,
                                 const struct weft__logprobs *logprobs);
void weft__render_logprob(struct weft__choice *choice, const struct weft__logprobs *logprobs);
/* A tool call, among what the choice has collected. */
void weft__render_call(struct weft__choice *choice, struct weft__slice name,
                       struct weft__slice arguments);
/* Whether a chat's stream has something to say. */
bool weft__render_pending(const struct weft__choice *choice);
/* Stream: what choice has collected, as one event; then, at the end, what ends it. */
void weft__render_event(struct weft__choice *choice, struct weft__buf *out);
void weft__render_finish(struct weft__choice *choice, struct weft__buf *out);
void weft__render_end(struct weft__call *call, struct weft__buf *out);
void weft__render_error(const struct weft__refusal *refusal, struct weft__buf *out);
/* Before the first note: what echo shows, and the beginning of every object. */
void weft__render_begin(struct weft__call *call);
/* The whole answer of a finished call. */
void weft__render_answer(struct weft__call *call, struct weft__buf *out);

/* ---- metrics.c ---- */

enum { WEFT__BUCKETS_MAX = 32, WEFT__HISTORY = 300 };

/* field, name, help, buckets */
#define WEFT__HISTOGRAMS(X)                                                                        \
    X(ttft, "time_to_first_token_seconds", "From the request to its first token.", ttft)           \
    X(itl, "inter_token_latency_seconds", "Between tokens of one sequence.", token)                \
    X(e2e, "e2e_request_latency_seconds", "From the request to its last token.", request)          \
    X(queue, "request_queue_time_seconds", "From the request to its first step.", request)         \
    X(prefill, "request_prefill_time_seconds", "From the first step to the first token.", request) \
    X(decode, "request_decode_time_seconds", "From the first token to the last.", request)         \
    X(inference, "request_inference_time_seconds", "From the first step to the last token.",       \
      request)                                                                                     \
    X(prompt, "request_prompt_tokens", "Tokens of a prompt.", size)                                \
    X(generation, "request_generation_tokens", "Tokens of an answer.", size)

struct weft__histogram {
    uint64_t bucket[WEFT__BUCKETS_MAX + 1]; /* not cumulative; the last: beyond all bounds */
    double sum;
};

struct weft__sample_point { /* one a second, for the console */
    double at_s;
    int64_t running, waiting, generated, prompt, computed, pages_used;
    struct weft__rank_stats rank[WEFT__MAX_RANKS];
};

struct weft__metrics {
#define X(field, name, help, buckets) struct weft__histogram field;
    WEFT__HISTOGRAMS(X)
#undef X
    int64_t requests, refused, disconnects;
    struct weft__sample_point point[WEFT__HISTORY]; /* ring */
    int64_t points;
};

#define WEFT__OBSERVE(server, field, value) \
    weft__observe(&(server)->metrics.field, WEFT__HISTOGRAM_##field, value)
enum weft__histogram_id {
#define X(field, name, help, buckets) WEFT__HISTOGRAM_##field,
    WEFT__HISTOGRAMS(X)
#undef X
};
void weft__observe(struct weft__histogram *histogram, enum weft__histogram_id id, double value);
void weft__metrics_tick(struct weft__server *server);
void weft__route_metrics(struct weft__conn *conn);
void weft__route_stats(struct weft__conn *conn);

/* ---- server.c ---- */

struct weft__notes { /* left by the engine's thread, taken by the loop */
    pthread_mutex_t mutex;
    struct weft__buf list;
    struct weft__choice *finished;
    bool woken;
    struct weft__buf raw, text; /* the engine's thread's own */
};

struct weft__server {
    struct weft__server_options options;
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *wake_event, *sweep_event, *term_event, *int_event;
    int wake_fd, port;
    weft_engine *engine;                   /* NULL: still loading */
    size_t text_max;                       /* bytes: longer ones outgrow any context */
    char *template;                        /* the chat template's text; NULL: none */
    enum weft__calls_format calls_format;  /* that the template teaches */
    bool thinks;                           /* it knows reasoning */
    int32_t think_begin, think_end;        /* ids of its marks, or -1 */
    struct weft__guide_vocab *guide_vocab; /* NULL: not needed yet */
    struct weft__constraint *constraints;
    uint32_t *mask; /* [mask_words], the engine's thread's own; NULL unless it thinks */
    size_t mask_words;
    _Atomic(weft_engine *) opened;
    atomic_bool quit;
    bool draining, aborted, listening;
    uint64_t failed_ns; /* when the engine was seen to have failed; 0: it has not */
    uint64_t drain_deadline_ns, started_ns, next_tick_ns;
    time_t started;
    struct weft__notes notes;
    struct weft__reader reader;
    struct weft__buf taken, scratch, piece;
    struct weft__conn *conns, *graveyard;
    int64_t conn_count, body_bytes;
    struct weft__call *calls;
    uint64_t id_state; /* of generated ids */
    struct weft__metrics metrics;
};

void weft__server_wake(struct weft__server *server); /* from any thread */
/* 32 hexadecimal digits, never twice in a process. */
void weft__server_new_id(struct weft__server *server, char out[33]);
void weft__server_log(struct weft__server *server, const struct weft__conn *conn);
/* Whether requests can be taken now; else says why not. */
bool weft__server_able(const struct weft__server *server, struct weft__refusal *refusal);

#endif
