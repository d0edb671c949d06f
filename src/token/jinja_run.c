/* Statements, scopes, macros and loops of a render. */
#include <stdio.h>
#include <string.h>

#include "jinja.h"

/* Bounds the C stack: a template's tree may be deep, and macros multiply it. */
enum { MAX_DEPTH = 800 };

/* ---- failures, memory, steps ---- */

struct weft__jvalue weft__j_fail(struct weft__jrun *run, weft_status status, const char *format,
                                 ...)
{
    const struct weft__jplace place = {"chat template", run->tmpl->text,
                                       run->at != NULL ? run->at->offset : 0};
    va_list args;
    va_start(args, format);
    if (run->status == WEFT_OK) run->status = weft__j_report(run->err, status, place, format, args);
    va_end(args);
    return weft__j_absent();
}

void *weft__j_alloc(struct weft__jrun *run, size_t bytes)
{
    if (run->status != WEFT_OK) return NULL;
    if (bytes > WEFT__TEMPLATE_MAX_MEMORY || run->arena.bytes > WEFT__TEMPLATE_MAX_MEMORY - bytes) {
        weft__j_fail(run, WEFT_TOO_LONG, "the template needs more than %d MiB of memory",
                     WEFT__TEMPLATE_MAX_MEMORY >> 20);
        return NULL;
    }
    void *out = weft__arena_alloc(&run->arena, bytes);
    if (out == NULL) run->status = weft__fail_oom(run->err, bytes, "a chat template");
    return out;
}

void *weft__j_room(struct weft__jrun *run, void *items, uint32_t count, uint32_t *cap, size_t size)
{
    if (count < *cap) return items;
    uint32_t larger = *cap == 0 ? 4 : *cap * 2;
    void *copy = weft__j_alloc(run, larger * size);
    if (copy == NULL) return NULL;
    if (count > 0) memcpy(copy, items, count * size);
    *cap = larger;
    return copy;
}

bool weft__j_tick(struct weft__jrun *run, size_t bytes)
{
    run->steps += 1 + (int64_t)(bytes / 256);
    if (run->steps > WEFT__TEMPLATE_MAX_STEPS)
        weft__j_fail(run, WEFT_TOO_LONG, "the template takes more than %d steps",
                     WEFT__TEMPLATE_MAX_STEPS);
    return run->status == WEFT_OK;
}

/* ---- scopes ---- */

static struct weft__jscope *push_scope(struct weft__jrun *run, struct weft__jscope *parent)
{
    struct weft__jscope *scope = run->free_scopes;
    if (scope != NULL)
        run->free_scopes = scope->parent;
    else if ((scope = weft__j_alloc(run, sizeof *scope)) == NULL)
        return NULL;
    scope->parent = parent;
    scope->count = 0;
    scope->captured = false;
    run->scope = scope;
    return scope;
}

/* Back to `outer`; the innermost scope is used again unless a macro still looks at it. */
static void pop_scope(struct weft__jrun *run, struct weft__jscope *scope,
                      struct weft__jscope *outer)
{
    if (scope != NULL && !scope->captured) {
        scope->parent = run->free_scopes;
        run->free_scopes = scope;
    }
    run->scope = outer;
}

static void capture_scopes(struct weft__jscope *scope)
{
    for (; scope != NULL && !scope->captured; scope = scope->parent) scope->captured = true;
}

static struct weft__jvalue *find_binding(struct weft__jrun *run, struct weft__jscope *scope,
                                         uint32_t name)
{
    run->steps += scope->count / 16;
    for (uint32_t i = 0; i < scope->count; i++)
        if (scope->vars[i].name == name) return &scope->vars[i].value;
    return NULL;
}

struct weft__jvalue weft__j_lookup(struct weft__jrun *run, uint32_t name)
{
    for (struct weft__jscope *scope = run->scope; scope != NULL; scope = scope->parent) {
        struct weft__jvalue *bound = find_binding(run, scope, name);
        if (bound != NULL) return *bound;
    }
    return run->globals[name];
}

static void bind(struct weft__jrun *run, uint32_t name, struct weft__jvalue value)
{
    struct weft__jscope *scope = run->scope;
    if (scope == NULL) {
        run->globals[name] = value;
        return;
    }
    struct weft__jvalue *bound = find_binding(run, scope, name);
    if (bound != NULL) {
        *bound = value;
        return;
    }
    struct weft__jbinding *vars =
        weft__j_room(run, scope->vars, scope->count, &scope->cap, sizeof *vars);
    if (vars == NULL) return;
    scope->vars = vars;
    scope->vars[scope->count++] = (struct weft__jbinding){.name = name, .value = value};
}

static void assign(struct weft__jrun *run, const struct weft__jnode *target,
                   struct weft__jvalue value)
{
    run->at = target;
    if (target->kind == WEFT__N_NAME) {
        bind(run, target->name, value);
    } else if (target->kind == WEFT__N_NSREF) {
        struct weft__jvalue object = weft__j_lookup(run, target->name);
        if (object.kind == WEFT__J_NAMESPACE)
            (void)weft__j_put(run, object.dict, target->value, value);
        else
            weft__j_fail(run, WEFT_INVALID, "cannot assign attribute on non-namespace object");
    } else {
        struct weft__jlist items;
        uint32_t count = 0, i = 0;
        for (const struct weft__jnode *part = target->a; part != NULL; part = part->next) count++;
        if (!weft__j_iterate(run, value, &items)) return;
        if (items.count < count)
            weft__j_fail(run, WEFT_INVALID, "not enough values to unpack (expected %u, got %u)",
                         count, items.count);
        else if (items.count > count)
            weft__j_fail(run, WEFT_INVALID, "too many values to unpack (expected %u)", count);
        if (run->status != WEFT_OK) return;
        for (const struct weft__jnode *part = target->a; part != NULL; part = part->next)
            assign(run, part, items.items[i++]);
    }
}

/* ---- statements ---- */

static void exec(struct weft__jrun *run, const struct weft__jnode *body);

/* What a body prints, as a string. */
static struct weft__jvalue captured(struct weft__jrun *run, const struct weft__jnode *body)
{
    struct weft__jsink sink = {0}, *outer = run->sink;
    run->sink = &sink;
    exec(run, body);
    run->sink = outer;
    return weft__j_written(&sink);
}

/* Whether the inline `if` of the loop lets an item through. */
static bool passes(struct weft__jrun *run, struct weft__jloop *loop, struct weft__jvalue item)
{
    if (loop->node->c == NULL) return true;
    struct weft__jscope *outer = run->scope, *scope = push_scope(run, loop->scope);
    if (scope == NULL || !weft__j_tick(run, 0)) return false;
    assign(run, loop->node->a, item);
    bool out = weft__j_truth(run, weft__j_eval(run, loop->node->c));
    pop_scope(run, scope, outer);
    return out;
}

/* The item after the current one, asked for ahead of time. */
bool weft__j_loop_peek(struct weft__jrun *run, struct weft__jloop *loop, struct weft__jvalue *out)
{
    while (loop->after.kind == WEFT__J_ABSENT && loop->taken < loop->items.count &&
           run->status == WEFT_OK) {
        struct weft__jvalue item = loop->items.items[loop->taken++];
        if (passes(run, loop, item)) loop->after = item;
    }
    *out = loop->after;
    return out->kind != WEFT__J_ABSENT;
}

static void exec_loop(struct weft__jrun *run, struct weft__jloop *loop)
{
    const struct weft__jnode *node = loop->node;
    struct weft__jscope *outer = run->scope, *scope = push_scope(run, loop->scope);
    struct weft__jvalue item;
    bool completed = false; /* a body to its end: what jinja2 asks for before an else */
    while (scope != NULL && weft__j_loop_peek(run, loop, &item) && weft__j_tick(run, 0)) {
        loop->before = loop->current;
        loop->current = item;
        loop->after = weft__j_absent();
        loop->index0++;
        scope->count = 0;
        bind(run, WEFT__J_NAME_LOOP, (struct weft__jvalue){.kind = WEFT__J_LOOP, .loop = loop});
        assign(run, node->a, item);
        exec(run, node->d);
        uint8_t flow = run->flow;
        run->flow = 0;
        completed = completed || flow == 0;
        if (flow == WEFT__S_BREAK) break;
    }
    if (scope != NULL && !completed) {
        scope->count = 0;
        exec(run, node->e);
    }
    pop_scope(run, scope, outer);
}

static void exec_for(struct weft__jrun *run, const struct weft__jnode *node)
{
    struct weft__jvalue items = weft__j_eval(run, node->b);
    struct weft__jloop *loop = weft__j_alloc(run, sizeof *loop);
    if (loop == NULL) return;
    *loop = (struct weft__jloop){.node = node, .scope = run->scope, .index0 = -1};
    run->at = node->b;
    if (!weft__j_iterate(run, items, &loop->items)) return;
    if (node->c != NULL) capture_scopes(run->scope); /* read again as the loop runs */
    exec_loop(run, loop);
}

/* The argument by this name, which is taken out of the call; ABSENT: none. */
static struct weft__jvalue take_named(struct weft__jrun *run, struct weft__jcall *call,
                                      struct weft__jvalue name)
{
    struct weft__jvalue *found = weft__j_find(run, &call->named, name), value = {0};
    if (found != NULL) {
        value = *found;
        *found = weft__j_absent();
    }
    return value;
}

/* Binds what a call passed to the parameters of a macro; a scope for its body is current. */
static void bind_parameters(struct weft__jrun *run, const struct weft__jnode *node,
                            struct weft__jcall *call)
{
    const char *macro = run->tmpl->names[node->name].text;
    uint32_t given = 0;
    bool wants_caller = node->op != 0;
    for (const struct weft__jnode *param = node->a; param != NULL; param = param->next) {
        struct weft__jvalue name = run->tmpl->names[param->name], value;
        if (given < call->positional.count)
            value = call->positional.items[given++];
        else if ((value = take_named(run, call, name)).kind == WEFT__J_ABSENT && param->a != NULL)
            value = weft__j_eval(run, param->a);
        if (run->status != WEFT_OK) return;
        if (value.kind == WEFT__J_ABSENT) {
            char *hint = weft__j_alloc(run, name.len + 40);
            if (hint == NULL) return;
            (void)snprintf(hint, name.len + 40, "parameter '%s' was not provided", name.text);
            value = weft__j_missing(run, hint);
        }
        wants_caller = wants_caller && param->name != WEFT__J_NAME_CALLER;
        bind(run, param->name, value);
    }
    if (wants_caller) {
        struct weft__jvalue caller = take_named(run, call, weft__j_literal("caller"));
        bind(run, WEFT__J_NAME_CALLER,
             caller.kind != WEFT__J_ABSENT ? caller : weft__j_missing(run, "no caller defined"));
    }
    for (uint32_t i = 0; i < call->named.count; i++)
        if (call->named.pairs[i].value.kind != WEFT__J_ABSENT)
            weft__j_fail(run, WEFT_INVALID, "macro '%s' takes no keyword argument '%.*s'", macro,
                         (int)weft__min(call->named.pairs[i].key.len, 80),
                         call->named.pairs[i].key.text);
    if (given < call->positional.count)
        weft__j_fail(run, WEFT_INVALID, "macro '%s' takes not more than %u argument(s)", macro,
                     given);
}

struct weft__jvalue weft__j_call_macro(struct weft__jrun *run, struct weft__jmacro *macro,
                                       struct weft__jcall *call)
{
    struct weft__jvalue out = {0};
    if (run->macros == WEFT__TEMPLATE_MAX_MACROS)
        return weft__j_fail(run, WEFT_TOO_LONG, "macros nested more than %d deep",
                            WEFT__TEMPLATE_MAX_MACROS);
    run->macros++;
    struct weft__jscope *outer = run->scope, *scope = push_scope(run, macro->scope);
    if (scope != NULL) {
        bind_parameters(run, macro->node, call);
        out = captured(run, macro->node->b);
    }
    pop_scope(run, scope, outer);
    run->macros--;
    return out;
}

static struct weft__jvalue new_macro(struct weft__jrun *run, const struct weft__jnode *node)
{
    struct weft__jmacro *macro = weft__j_alloc(run, sizeof *macro);
    if (macro == NULL) return weft__j_absent();
    *macro = (struct weft__jmacro){.node = node, .scope = run->scope};
    capture_scopes(run->scope);
    return (struct weft__jvalue){.kind = WEFT__J_MACRO, .macro = macro};
}

static void exec_if(struct weft__jrun *run, const struct weft__jnode *node)
{
    for (const struct weft__jnode *branch = node->a; branch != NULL; branch = branch->next)
        if (branch->a == NULL || weft__j_truth(run, weft__j_eval(run, branch->a))) {
            exec(run, branch->b);
            return;
        }
}

static void exec_capture(struct weft__jrun *run, const struct weft__jnode *target,
                         const struct weft__jnode *filters, const struct weft__jnode *body)
{
    struct weft__jscope *outer = run->scope, *scope = push_scope(run, outer);
    struct weft__jvalue value = scope != NULL ? captured(run, body) : weft__j_absent();
    run->block = value;
    if (filters != NULL) value = weft__j_eval(run, filters);
    pop_scope(run, scope, outer);
    if (run->status != WEFT_OK || run->flow != 0) return;
    if (target != NULL)
        assign(run, target, value);
    else
        weft__j_write_str(run, run->sink, value);
}

static void exec_node(struct weft__jrun *run, const struct weft__jnode *node)
{
    struct weft__jvalue value;
    run->at = node;
    switch (node->kind) {
    case WEFT__S_DATA:
        weft__j_write(run, run->sink, node->value.text, node->value.len);
        break;
    case WEFT__S_PRINT:
        value = weft__j_eval(run, node->a);
        run->at = node;
        weft__j_write_str(run, run->sink, value);
        break;
    case WEFT__S_FOR:
        exec_for(run, node);
        break;
    case WEFT__S_IF:
        exec_if(run, node);
        break;
    case WEFT__S_SET:
        value = weft__j_eval(run, node->b);
        if (run->status == WEFT_OK) assign(run, node->a, value);
        break;
    case WEFT__S_CAPTURE:
        exec_capture(run, node->a, node->b, node->c);
        break;
    case WEFT__S_FILTER:
        exec_capture(run, NULL, node->a, node->b);
        break;
    case WEFT__S_MACRO:
        bind(run, node->name, new_macro(run, node));
        break;
    case WEFT__S_CALL:
        value = new_macro(run, node->b);
        if (run->status == WEFT_OK) value = weft__j_eval_call(run, node->a, value);
        weft__j_write_str(run, run->sink, value);
        break;
    default:
        run->flow = node->kind; /* S_BREAK, S_CONTINUE */
    }
}

static void exec(struct weft__jrun *run, const struct weft__jnode *body)
{
    if (!weft__j_enter(run)) return;
    for (; body != NULL && run->flow == 0 && weft__j_tick(run, 0); body = body->next)
        exec_node(run, body);
    run->depth--;
}

bool weft__j_enter(struct weft__jrun *run)
{
    if (run->depth < MAX_DEPTH) {
        run->depth++;
        return true;
    }
    weft__j_fail(run, WEFT_TOO_LONG, "the template nests more than %d deep", MAX_DEPTH);
    return false;
}

/* ---- a whole render ---- */

static void load_globals(struct weft__jrun *run, json_t *vars)
{
    run->globals = weft__j_alloc(run, run->tmpl->name_count * sizeof *run->globals);
    for (uint32_t i = 0; run->status == WEFT_OK && i < run->tmpl->name_count; i++) {
        struct weft__jvalue name = run->tmpl->names[i];
        json_t *given = json_object_getn(vars, name.text, name.len);
        const struct weft__jfunction *function = weft__j_global(name);
        if (given != NULL)
            run->globals[i] = weft__j_from_json(run, given, 0);
        else if (function != NULL)
            run->globals[i] = (struct weft__jvalue){.kind = WEFT__J_FUNCTION, .function = function};
    }
}

weft_status weft__template_render(const struct weft__template *tmpl, json_t *vars, time_t now,
                                  struct weft__buf *out, weft_error *err)
{
    struct weft__jsink sink = {.buf = out};
    struct weft__jrun run = {
        .tmpl = tmpl, .err = err, .sink = &sink, .out_start = out->len, .now = now};
    load_globals(&run, vars);
    if (run.status == WEFT_OK) exec(&run, tmpl->body);
    if (run.status != WEFT_OK) {
        out->len = run.out_start;
        if (out->data != NULL) out->data[out->len] = '\0';
        out->failed = false;
    }
    weft__arena_free(&run.arena);
    return run.status;
}
