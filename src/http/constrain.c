/* Constrained answers: response_format and forced tool calls become guides, which requests with the
 * same schema share. The loop's thread makes and frees them; in between the engine's uses them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"

enum {
    KEPT_MAX = 16,                /* guides that no request uses */
    GUIDES_BYTES_MAX = 512 << 20, /* of all guides: above, no new one is made */
    SCHEMA_BYTES_MAX = 4 << 20,   /* of one as text */
};

struct weft__constraint {
    struct weft__constraint *next;
    struct weft__guide *guide;
    char *key; /* the schema as text */
    bool call; /* inside the marks of a tool call */
    int users;
    uint64_t used_ns;
};

/* ---- which schema ---- */

/* Before it is parsed, and as it is kept. */
static bool check_size(size_t bytes, const char *param, struct weft__refusal *refusal)
{
    if (bytes <= SCHEMA_BYTES_MAX) return true;
    return weft__refuse(refusal, 400, "invalid_value", param, "a schema of more than %d MiB",
                        SCHEMA_BYTES_MAX >> 20);
}

static bool refuse_format(struct weft__refusal *refusal, const char *what)
{
    return weft__refuse(refusal, 400, "invalid_value", "response_format", "response_format%s",
                        what);
}

static bool read_format(struct weft__ask *ask, const json_t *format, struct weft__refusal *refusal)
{
    const char *type = json_string_value(weft__field(format, "type"));
    json_t *schema = weft__field(format, "schema"); /* llama.cpp's place */
    if (type == NULL) return refuse_format(refusal, " must be an object with a type");
    if (strcmp(type, "text") == 0) return true;
    if (strcmp(type, "json_schema") == 0) {
        schema = weft__field(weft__field(format, "json_schema"), "schema");
        if (schema == NULL) return refuse_format(refusal, ".json_schema.schema is missing");
    } else if (strcmp(type, "json_object") != 0) {
        return refuse_format(refusal, ".type must be text, json_object or json_schema");
    }
    ask->schema = schema != NULL ? json_incref(schema) : json_pack("{s:s}", "type", "object");
    return true;
}

/* SGLang's own field, of /generate: a schema as text. */
static bool read_native(struct weft__ask *ask, const json_t *text, struct weft__refusal *refusal)
{
    if (ask->schema != NULL)
        return weft__refuse(refusal, 400, "invalid_value", "json_schema",
                            "json_schema and response_format both ask for a schema");
    if (!check_size(json_string_length(text), "json_schema", refusal)) return false;
    ask->schema =
        json_loadb(json_string_value(text), json_string_length(text), JSON_DECODE_ANY, NULL);
    if (ask->schema != NULL) return true;
    return weft__refuse(refusal, 400, "invalid_value", "json_schema",
                        "json_schema must be the text of a JSON Schema");
}

/* {"name": NAME, "arguments": PARAMETERS}. Arguments are an object, also where PARAMETERS (an
 * object itself, if given) doesn't say so. NULL: it says something else. */
static json_t *call_schema(const json_t *function)
{
    const json_t *given = weft__field(function, "parameters"), *type = weft__field(given, "type");
    const char *word = json_string_value(type);
    if (type != NULL && (word == NULL || strcmp(word, "object") != 0)) return NULL;
    json_t *parameters = given != NULL ? json_copy((json_t *)(uintptr_t)given) : json_object();
    if (json_object_get(parameters, "$ref") == NULL)
        (void)json_object_set_new(parameters, "type", json_string("object"));
    return json_pack("{s:s,s:{s:{s:O},s:o},s:[s,s],s:b}", "type", "object", "properties", "name",
                     "const", weft__field(function, "name"), "arguments", parameters, "required",
                     "name", "arguments", "additionalProperties", 0);
}

static bool read_tool_choice(struct weft__ask *ask, const struct weft__server *server,
                             const json_t *choice, struct weft__refusal *refusal)
{
    const json_t *name = weft__field(weft__field(choice, "function"), "name");
    const char *word = json_string_value(choice);
    json_t *tool, *list = json_array();
    size_t i;
    json_array_foreach (ask->tools, i, tool) {
        const json_t *function = weft__field(tool, "function");
        if (word == NULL && !json_equal(weft__field(function, "name"), name)) continue;
        if (json_array_append_new(list, call_schema(function)) == 0) continue;
        json_decref(list);
        return weft__refuse(refusal, 400, "invalid_value", "tools",
                            "tools[%zu].function.parameters must be a schema of objects", i);
    }
    bool some = json_array_size(list) > 0;
    ask->schema = json_pack("{s:o}", "anyOf", list);
    if (!some)
        return weft__refuse(refusal, 400, "invalid_value", "tool_choice",
                            "tool_choice: there is no such function among the tools");
    if (server->calls_format != WEFT__CALLS_HERMES)
        return weft__refuse(refusal, 400, "unsupported", "tool_choice",
                            "tool_choice can only be \"auto\" or \"none\" with this model: weft "
                            "can force calls that are JSON between <tool_call> marks");
    return true;
}

static bool read_schema(struct weft__ask *ask, const struct weft__server *server,
                        const json_t *params, struct weft__refusal *refusal)
{
    const json_t *format = weft__field(params, "response_format");
    const json_t *native =
        ask->kind == WEFT__ASK_NATIVE ? weft__field(params, "json_schema") : NULL;
    const json_t *choice = weft__field(ask->body, "tool_choice");
    const char *word = json_string_value(choice);
    if (format != NULL && !read_format(ask, format, refusal)) return false;
    if (native != NULL && !read_native(ask, native, refusal)) return false;
    if (ask->kind != WEFT__ASK_CHAT || choice == NULL) return true;
    if (word != NULL && (strcmp(word, "auto") == 0 || strcmp(word, "none") == 0)) return true;
    if (!json_is_object(choice) && (word == NULL || strcmp(word, "required") != 0))
        return weft__refuse(refusal, 400, "invalid_value", "tool_choice",
                            "tool_choice must be none, auto, required or a function");
    if (ask->schema != NULL)
        return weft__refuse(refusal, 400, "invalid_value", "tool_choice",
                            "tool_choice forces a call and response_format something else");
    ask->forced_call = true;
    return read_tool_choice(ask, server, choice, refusal);
}

bool weft__constrain_read(struct weft__ask *ask, const struct weft__server *server,
                          const json_t *params, struct weft__refusal *refusal)
{
    if (!read_schema(ask, server, params, refusal)) return false;
    if (ask->schema == NULL) return true;
    ask->schema_text = json_dumps(ask->schema, JSON_COMPACT | JSON_ENCODE_ANY);
    if (ask->schema_text == NULL)
        return weft__refuse(refusal, 500, "out_of_memory", NULL, "no memory");
    return check_size(strlen(ask->schema_text), ask->forced_call ? "tools" : "response_format",
                      refusal);
}

/* ---- guides ---- */

static bool open_vocab(struct weft__server *server, struct weft__refusal *refusal)
{
    const struct weft__engine_view *view = weft__engine_view(server->engine);
    weft_error err;
    if (server->guide_vocab != NULL) return true;
    if (weft__guide_vocab_open(view->tokenizer, view->arch->vocab, view->generation->eos,
                               view->generation->eos_count, &server->guide_vocab, &err) == WEFT_OK)
        return true;
    return weft__refuse_error(refusal, &err);
}

static struct weft__constraint *make(struct weft__server *server, struct weft__ask *ask,
                                     struct weft__refusal *refusal)
{
    const bool call = ask->forced_call;
    const struct weft__guide_spec spec = {.schema = ask->schema,
                                          .prefix = call ? "<tool_call>\n" : "",
                                          .suffix = call ? "\n</tool_call>" : "",
                                          .lines = server->thinks};
    weft_error err;
    struct weft__constraint *c = calloc(1, sizeof *c);
    if (c == NULL) {
        (void)weft__refuse(refusal, 500, "out_of_memory", NULL, "no memory");
        return NULL;
    }
    weft_status status = weft__guide_open(server->guide_vocab, &spec, &c->guide, &err);
    if (status != WEFT_OK) {
        (void)weft__refuse_error(refusal, &err);
        (void)snprintf(refusal->param, sizeof refusal->param, call ? "tools" : "response_format");
        free(c);
        return NULL;
    }
    c->key = ask->schema_text;
    ask->schema_text = NULL;
    c->call = call;
    c->next = server->constraints;
    server->constraints = c;
    return c;
}

static void drop(struct weft__server *server, struct weft__constraint *c)
{
    struct weft__constraint **at = &server->constraints;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    weft__guide_close(c->guide);
    free(c->key);
    free(c);
}

/* Requests in the queue hold guides too; those that nobody uses go first. */
static bool have_room(struct weft__server *server, struct weft__refusal *refusal)
{
    for (struct weft__constraint *c = server->constraints, *next; c != NULL; c = next) {
        next = c->next;
        if (weft__guide_vocab_bytes(server->guide_vocab) <= GUIDES_BYTES_MAX) return true;
        if (c->users == 0) drop(server, c);
    }
    if (weft__guide_vocab_bytes(server->guide_vocab) <= GUIDES_BYTES_MAX) return true;
    return weft__refuse(refusal, 429, "queue_full", "response_format",
                        "the schemas of the requests under way take too much memory; try again "
                        "later");
}

bool weft__constrain(struct weft__server *server, struct weft__ask *ask,
                     struct weft__refusal *refusal)
{
    if (ask->schema == NULL) return true;
    if (!open_vocab(server, refusal)) return false;
    struct weft__constraint *c = server->constraints;
    while (c != NULL && (c->call != ask->forced_call || strcmp(c->key, ask->schema_text) != 0))
        c = c->next;
    if (c == NULL && have_room(server, refusal)) c = make(server, ask, refusal);
    if (c == NULL) return false;
    c->users++;
    c->used_ns = weft__now_ns();
    ask->constraint = c;
    return true;
}

struct weft__guide *weft__constraint_guide(const struct weft__constraint *constraint)
{
    return constraint->guide;
}

void weft__constraint_release(struct weft__server *server, struct weft__constraint *constraint)
{
    struct weft__constraint *oldest = NULL;
    int idle = 0;
    if (constraint == NULL) return;
    constraint->users--;
    for (struct weft__constraint *c = server->constraints; c != NULL; c = c->next) {
        if (c->users > 0) continue;
        idle++;
        if (oldest == NULL || c->used_ns < oldest->used_ns) oldest = c;
    }
    if (idle > KEPT_MAX) drop(server, oldest);
}

void weft__constraints_free(struct weft__server *server)
{
    while (server->constraints != NULL) drop(server, server->constraints);
    weft__guide_vocab_close(server->guide_vocab);
}
