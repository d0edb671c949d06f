/* Expressions: names, attributes, calls, operators, slices, with Python's meaning. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "jinja.h"

/* ---- attributes and subscripts ---- */

static struct jvalue loop_attribute(struct jrun *run, struct jloop *loop, struct jvalue name)
{
    struct jvalue next;
    int64_t index = loop->index0;
    if (weft__j_is_text(name, "index")) return weft__j_int(index + 1);
    if (weft__j_is_text(name, "index0")) return weft__j_int(index);
    if (weft__j_is_text(name, "first")) return weft__j_bool(index == 0);
    if (weft__j_is_text(name, "last")) return weft__j_bool(!weft__j_loop_peek(run, loop, &next));
    if (weft__j_is_text(name, "length")) return weft__j_int(weft__j_loop_length(run, loop));
    if (weft__j_is_text(name, "revindex"))
        return weft__j_int(weft__j_loop_length(run, loop) - index);
    if (weft__j_is_text(name, "revindex0"))
        return weft__j_int(weft__j_loop_length(run, loop) - index - 1);
    if (weft__j_is_text(name, "depth")) return weft__j_int(loop->depth0 + 1);
    if (weft__j_is_text(name, "depth0")) return weft__j_int(loop->depth0);
    if (weft__j_is_text(name, "previtem"))
        return index > 0 ? loop->before : weft__j_missing(run, "there is no previous item");
    if (weft__j_is_text(name, "nextitem"))
        return weft__j_loop_peek(run, loop, &next) ? next
                                                   : weft__j_missing(run, "there is no next item");
    return (struct jvalue){0};
}

static struct jvalue macro_attribute(struct jrun *run, const struct jmacro *macro,
                                     struct jvalue name)
{
    const struct jnode *node = macro->node;
    if (weft__j_is_text(name, "name")) {
        struct jname text = run->tmpl->names[node->name];
        return weft__j_text(text.text, text.len);
    }
    if (weft__j_is_text(name, "catch_kwargs")) return weft__j_bool((node->op & J_USES_KWARGS) != 0);
    if (weft__j_is_text(name, "catch_varargs"))
        return weft__j_bool((node->op & J_USES_VARARGS) != 0);
    if (weft__j_is_text(name, "caller")) return weft__j_bool((node->op & J_USES_CALLER) != 0);
    if (!weft__j_is_text(name, "arguments")) return (struct jvalue){0};
    struct jvalue list = weft__j_new_list(run, J_TUPLE);
    for (const struct jnode *p = node->a; list.kind == J_TUPLE && p != NULL; p = p->next) {
        struct jname text = run->tmpl->names[p->name];
        (void)weft__j_push(run, list.list, weft__j_text(text.text, text.len));
    }
    return list;
}

/* What the object itself has by this name, a method or an attribute; ABSENT: nothing. */
static struct jvalue attribute(struct jrun *run, struct jvalue object, struct jvalue name)
{
    const struct jfunction *function = weft__j_method(object, name.text, name.len);
    if (function != NULL) {
        struct jmethod *method = weft__j_alloc(run, sizeof *method);
        if (method == NULL) return (struct jvalue){0};
        *method = (struct jmethod){.self = object, .function = function};
        return (struct jvalue){.kind = J_METHOD, .method = method};
    }
    struct jvalue *found;
    switch (object.kind) {
    case J_NAMESPACE:
        found = weft__j_find(run, object.dict, name);
        return found != NULL ? *found : (struct jvalue){0};
    case J_LOOP:
        return loop_attribute(run, object.loop, name);
    case J_MACRO:
        return macro_attribute(run, object.macro, name);
    case J_CYCLER:
        if (weft__j_is_text(name, "current") && object.iterator->items.count > 0)
            return object.iterator->items.items[object.iterator->next];
        return (struct jvalue){0};
    case J_TUPLE: /* what groupby gives */
        if (object.list->count == 2 && weft__j_is_text(name, "grouper"))
            return object.list->items[0];
        if (object.list->count == 2 && weft__j_is_text(name, "list")) return object.list->items[1];
        return (struct jvalue){0};
    case J_RANGE:
        if (weft__j_is_text(name, "start")) return weft__j_int(object.range->start);
        if (weft__j_is_text(name, "step")) return weft__j_int(object.range->step);
        return (struct jvalue){0};
    default:
        return (struct jvalue){0};
    }
}

/* The element at a key or index; ABSENT: none. */
static struct jvalue element(struct jrun *run, struct jvalue object, struct jvalue key)
{
    int64_t index, length = weft__j_length(object);
    if (object.kind == J_DICT) {
        struct jvalue *found = weft__j_hashable(key) ? weft__j_find(run, object.dict, key) : NULL;
        return found != NULL ? *found : (struct jvalue){0};
    }
    if (!weft__j_integer(key, &index)) return (struct jvalue){0};
    if (index < 0) index += length;
    if (index < 0 || index >= length) return (struct jvalue){0};
    switch (object.kind) {
    case J_LIST:
    case J_TUPLE:
        return object.list->items[index];
    case J_RANGE:
        return weft__j_int(weft__j_at(object.range, index));
    case J_STRING: {
        (void)weft__j_tick(run, object.len);
        const char *p = weft__j_seek(object, index), *end = p;
        (void)weft__j_char(&end, object.text + object.len);
        struct jvalue out = weft__j_text(p, (size_t)(end - p));
        out.markup = object.markup;
        return out;
    }
    default:
        return (struct jvalue){0};
    }
}

struct jvalue weft__j_getattr(struct jrun *run, struct jvalue object, struct jvalue name)
{
    if (object.kind == J_UNDEFINED) return weft__j_fail_undefined(run, object);
    struct jvalue out = attribute(run, object, name);
    if (out.kind == J_ABSENT) out = element(run, object, name);
    return out.kind != J_ABSENT ? out : weft__j_undefined(run, object, name);
}

struct jvalue weft__j_getitem(struct jrun *run, struct jvalue object, struct jvalue key)
{
    if (object.kind == J_UNDEFINED) return weft__j_fail_undefined(run, object);
    struct jvalue out = element(run, object, key);
    if (out.kind == J_ABSENT && key.kind == J_STRING) out = attribute(run, object, key);
    return out.kind != J_ABSENT ? out : weft__j_undefined(run, object, key);
}

/* Python's slice.indices: start and step within a sequence, and how many items. */
static bool slice_range(struct jrun *run, const struct jvalue bounds[3], int64_t length,
                        struct jrange *out)
{
    int64_t given[3] = {0, 0, 1};
    for (int i = 0; i < 3; i++)
        if (bounds[i].kind != J_NONE && !weft__j_integer(bounds[i], &given[i])) {
            weft__j_fail(run, WEFT_INVALID,
                         "slice indices must be integers or None or have an __index__ method");
            return false;
        }
    int64_t step = weft__max(given[2], -INT64_MAX);
    if (step == 0) {
        weft__j_fail(run, WEFT_INVALID, "slice step cannot be zero");
        return false;
    }
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? length - 1 : length, ends[2];
    for (int i = 0; i < 2; i++) {
        int64_t at = given[i];
        if (bounds[i].kind == J_NONE)
            at = (i == 0) == (step > 0) ? low : high;
        else if (at < 0)
            at = weft__max(at + length, low);
        ends[i] = weft__min(at, high);
    }
    int64_t span = step > 0 ? ends[1] - ends[0] : ends[0] - ends[1];
    uint64_t stride = step > 0 ? (uint64_t)step : (uint64_t)-step;
    *out = (struct jrange){.start = ends[0],
                           .stop = ends[1],
                           .step = step,
                           .count = span <= 0 ? 0 : (int64_t)(((uint64_t)span - 1) / stride) + 1};
    return true;
}

static struct jvalue slice_string(struct jrun *run, struct jvalue s, struct jrange range)
{
    (void)weft__j_tick(run, (size_t)s.len * 2);
    if (range.count == 0) return weft__j_text("", 0);
    const char *end = s.text + s.len;
    if (range.step == 1) {
        const char *from = weft__j_seek(s, range.start);
        struct jvalue rest = weft__j_text(from, (size_t)(end - from));
        return weft__j_text(from, (size_t)(weft__j_seek(rest, range.count) - from));
    }
    /* One walk over the characters, front to back, writing each that is taken to its place. */
    struct jlist chars;
    struct jsink sink = {0};
    if (!weft__j_iterate(run, s, &chars)) return (struct jvalue){0};
    for (int64_t i = 0; i < range.count && run->status == WEFT_OK; i++) {
        struct jvalue c = chars.items[range.start + i * range.step];
        weft__j_write(run, &sink, c.text, c.len);
    }
    return weft__j_written(&sink);
}

struct jvalue weft__j_slice(struct jrun *run, struct jvalue object, const struct jvalue bounds[3])
{
    struct jrange range;
    if (object.kind == J_UNDEFINED) return weft__j_fail_undefined(run, object);
    if (object.kind != J_STRING && object.kind != J_LIST && object.kind != J_TUPLE &&
        object.kind != J_RANGE)
        return weft__j_fail(run, WEFT_INVALID, "'%s' object cannot be sliced",
                            weft__j_type(object));
    if (!slice_range(run, bounds, weft__j_length(object), &range)) return (struct jvalue){0};
    if (object.kind == J_STRING) {
        struct jvalue part = slice_string(run, object, range);
        part.markup = object.markup;
        return part;
    }
    if (object.kind == J_RANGE) {
        struct jrange *copy = weft__j_alloc(run, sizeof *copy);
        if (copy == NULL) return (struct jvalue){0};
        *copy = (struct jrange){.start = weft__j_at(object.range, range.start),
                                .stop = weft__j_at(object.range, range.stop),
                                .step = object.range->step * range.step,
                                .count = range.count};
        return (struct jvalue){.kind = J_RANGE, .range = copy};
    }
    struct jvalue out = weft__j_new_list(run, object.kind);
    for (int64_t i = 0; i < range.count && out.kind != J_ABSENT; i++)
        if (!weft__j_push(run, out.list, object.list->items[range.start + i * range.step])) break;
    return out;
}

/* ---- calls ---- */

static void start_call(struct jcall *call, struct jvalue self)
{
    call->self = self;
    call->positional =
        (struct jlist){.items = call->first, .count = 0, .cap = WEFT__COUNT(call->first)};
    call->named = (struct jdict){0};
    for (int i = 0; i < J_MAX_PARAMS; i++) call->arg[i] = (struct jvalue){0};
}

static void spread(struct jrun *run, struct jcall *call, uint8_t op, struct jvalue value)
{
    struct jlist items;
    if (op == J_ARG_LIST) {
        if (!weft__j_iterate(run, value, &items)) return;
        for (uint32_t i = 0; i < items.count; i++)
            if (!weft__j_push(run, &call->positional, items.items[i])) return;
    } else if (value.kind != J_DICT) {
        weft__j_fail(run, WEFT_INVALID, "argument after ** must be a mapping, not %s",
                     weft__j_type(value));
    } else {
        for (uint32_t i = 0; i < value.dict->count; i++) {
            struct jpair pair = value.dict->pairs[i];
            if (pair.key.kind != J_STRING)
                weft__j_fail(run, WEFT_INVALID, "keywords must be strings");
            else if (weft__j_find(run, &call->named, pair.key) != NULL)
                weft__j_fail(run, WEFT_INVALID, "multiple values for keyword argument");
            if (!weft__j_put(run, &call->named, pair.key, pair.value)) return;
        }
    }
}

static bool eval_arguments(struct jrun *run, struct jcall *call, const struct jnode *node)
{
    for (; node != NULL && run->status == WEFT_OK; node = node->next) {
        struct jvalue value = weft__j_eval(run, node->a);
        struct jname name = run->tmpl->names[node->name];
        struct jvalue key = weft__j_text(name.text, name.len);
        if (node->op == J_ARG_POSITIONAL)
            (void)weft__j_push(run, &call->positional, value);
        else if (node->op == J_ARG_NAMED)
            (void)weft__j_put(run, &call->named, key, value);
        else
            spread(run, call, node->op, value);
    }
    return run->status == WEFT_OK;
}

bool weft__j_bind(struct jrun *run, const struct jfunction *function, struct jcall *call)
{
    if (function->max == J_VARARGS) return run->status == WEFT_OK;
    if (call->positional.count > function->max)
        weft__j_fail(run, WEFT_INVALID, "%s() takes at most %d arguments (%u given)",
                     function->name, function->max, call->positional.count);
    for (uint32_t i = 0; i < call->positional.count && run->status == WEFT_OK; i++)
        call->arg[i] = call->positional.items[i];
    for (uint32_t i = 0; i < call->named.count && run->status == WEFT_OK; i++) {
        const struct jpair *pair = &call->named.pairs[i];
        int at = 0;
        while (at < function->max && !weft__j_is_text(pair->key, function->params[at])) at++;
        if (at == function->max || call->arg[at].kind != J_ABSENT)
            weft__j_fail(run, WEFT_INVALID, "%s() got %s argument '%.*s'", function->name,
                         at == function->max ? "an unexpected keyword" : "multiple values for",
                         (int)weft__min(pair->key.len, 80), pair->key.text);
        else
            call->arg[at] = pair->value;
    }
    for (int i = 0; i < function->required && run->status == WEFT_OK; i++)
        if (call->arg[i].kind == J_ABSENT)
            weft__j_fail(run, WEFT_INVALID, "%s() misses its argument '%s'", function->name,
                         function->params[i]);
    return run->status == WEFT_OK;
}

static struct jvalue call_function(struct jrun *run, const struct jfunction *function,
                                   struct jcall *call)
{
    call->function = function;
    if (!weft__j_bind(run, function, call)) return (struct jvalue){0};
    return function->call(run, call);
}

struct jvalue weft__j_call(struct jrun *run, struct jvalue what, struct jcall *call)
{
    switch (what.kind) {
    case J_FUNCTION:
        return call_function(run, what.function, call);
    case J_METHOD:
        call->self = what.method->self;
        return call_function(run, what.method->function, call);
    case J_MACRO:
        return weft__j_call_macro(run, what.macro, call);
    case J_UNDEFINED:
        return weft__j_fail_undefined(run, what);
    case J_LOOP:
        if (call->positional.count == 1 && call->named.count == 0)
            return weft__j_call_loop(run, what.loop, call->positional.items[0]);
        return weft__j_fail(run, WEFT_INVALID, "loop() takes one argument");
    case J_JOINER:
        if (what.iterator->next == 1) return what.iterator->items.items[0];
        what.iterator->next = 1;
        return weft__j_text("", 0);
    default:
        return weft__j_fail(run, WEFT_INVALID, "'%s' object is not callable", weft__j_type(what));
    }
}

/* Methods of markup give markup. */
static struct jvalue marked(struct jvalue v)
{
    if (v.kind == J_STRING) v.markup = true;
    if (v.kind == J_LIST || v.kind == J_TUPLE) /* fresh, from split and the like */
        for (uint32_t i = 0; i < v.list->count; i++)
            v.list->items[i].markup = v.list->items[i].kind == J_STRING;
    return v;
}

/* caller: what a call block passes along, or ABSENT. */
static struct jvalue eval_call(struct jrun *run, const struct jnode *node, struct jvalue caller)
{
    struct jcall call;
    struct jvalue what = {0};
    const struct jfunction *method = NULL;
    if (node->a->kind == N_GETATTR) { /* the common a.method(): no method value is made */
        struct jname name = run->tmpl->names[node->a->name];
        struct jvalue object = weft__j_eval(run, node->a->a);
        run->at = node->a;
        method = weft__j_method(object, name.text, name.len);
        start_call(&call, object);
        if (method == NULL && run->status == WEFT_OK)
            what = weft__j_getattr(run, object, weft__j_text(name.text, name.len));
    } else {
        what = weft__j_eval(run, node->a);
        start_call(&call, (struct jvalue){0});
    }
    if (run->status != WEFT_OK || !eval_arguments(run, &call, node->b)) return (struct jvalue){0};
    if (caller.kind != J_ABSENT)
        (void)weft__j_put(run, &call.named, weft__j_literal("caller"), caller);
    run->at = node;
    if (!weft__j_tick(run, 0)) return (struct jvalue){0};
    if (method == NULL) return weft__j_call(run, what, &call);
    struct jvalue out = call_function(run, method, &call);
    return call.self.kind == J_STRING && call.self.markup ? marked(out) : out;
}

struct jvalue weft__j_call_block(struct jrun *run, const struct jnode *node, struct jvalue caller)
{
    return caller.kind == J_ABSENT ? caller : eval_call(run, node, caller);
}

struct jvalue weft__j_apply(struct jrun *run, const struct jfunction *function, struct jvalue self,
                            struct jlist positional, struct jdict named)
{
    struct jcall call;
    if (!weft__j_enter(run)) return (struct jvalue){0};
    start_call(&call, self);
    call.positional = positional;
    call.named = named;
    struct jvalue out = call_function(run, function, &call);
    run->depth--;
    return out;
}

/* A filter or test applied to self. */
static struct jvalue apply(struct jrun *run, const struct jnode *node, struct jvalue self)
{
    struct jcall call;
    start_call(&call, self);
    if (node->function == NULL) {
        run->at = node;
        return weft__j_fail(run, WEFT_UNSUPPORTED, "no %s named '%.80s'",
                            node->kind == N_FILTER ? "filter" : "test",
                            run->tmpl->names[node->name].text);
    }
    if (!eval_arguments(run, &call, node->b)) return (struct jvalue){0};
    run->at = node;
    return call_function(run, node->function, &call);
}

struct jvalue weft__j_filter_block(struct jrun *run, const struct jnode *filters, struct jvalue in)
{
    if (!weft__j_enter(run)) return (struct jvalue){0};
    struct jvalue self = filters->a != NULL ? weft__j_filter_block(run, filters->a, in) : in;
    run->depth--;
    return apply(run, filters, self);
}

/* ---- the tree ---- */

static struct jvalue eval_list(struct jrun *run, const struct jnode *node)
{
    struct jvalue out = weft__j_new_list(run, node->kind == N_LIST ? J_LIST : J_TUPLE);
    for (const struct jnode *item = node->a; item != NULL && run->status == WEFT_OK;
         item = item->next)
        (void)weft__j_push(run, out.list, weft__j_eval(run, item));
    return out;
}

static struct jvalue eval_dict(struct jrun *run, const struct jnode *node)
{
    struct jvalue out = weft__j_new_dict(run);
    for (const struct jnode *key = node->a; key != NULL && run->status == WEFT_OK;
         key = key->next->next) {
        struct jvalue k = weft__j_eval(run, key), v = weft__j_eval(run, key->next);
        run->at = key;
        if (run->status == WEFT_OK) (void)weft__j_put(run, out.dict, k, v);
    }
    return out;
}

static struct jvalue eval_name(struct jrun *run, const struct jnode *node)
{
    struct jvalue value = weft__j_lookup(run, node->name);
    if (value.kind != J_ABSENT) return value;
    struct jname name = run->tmpl->names[node->name];
    return weft__j_undefined(run, value, weft__j_text(name.text, name.len));
}

static struct jvalue eval_item(struct jrun *run, const struct jnode *node)
{
    struct jvalue object = weft__j_eval(run, node->a);
    if (node->b->kind != N_SLICE) {
        struct jvalue key = weft__j_eval(run, node->b);
        run->at = node;
        return run->status == WEFT_OK ? weft__j_getitem(run, object, key) : key;
    }
    const struct jnode *parts[3] = {node->b->a, node->b->b, node->b->c};
    struct jvalue bounds[3];
    for (int i = 0; i < 3; i++)
        bounds[i] = parts[i] != NULL ? weft__j_eval(run, parts[i]) : weft__j_none();
    run->at = node;
    return run->status == WEFT_OK ? weft__j_slice(run, object, bounds) : (struct jvalue){0};
}

static struct jvalue eval_concat(struct jrun *run, const struct jnode *node)
{
    struct jvalue out = weft__j_str(run, weft__j_eval(run, node->a));
    for (const struct jnode *part = node->a->next; part != NULL && run->status == WEFT_OK;
         part = part->next)
        out = weft__j_concat(run, out, weft__j_str(run, weft__j_eval(run, part)));
    out.markup = false;
    return out;
}

static bool compare(struct jrun *run, enum weft__jop op, struct jvalue a, struct jvalue b)
{
    int order;
    switch (op) {
    case J_OP_EQ:
        return weft__j_equal(run, a, b);
    case J_OP_NE:
        return !weft__j_equal(run, a, b);
    case J_OP_LT:
        return weft__j_compare(run, a, b, "<") < 0;
    case J_OP_GT:
        return weft__j_compare(run, a, b, ">") == 1;
    case J_OP_LE:
        return weft__j_compare(run, a, b, "<=") <= 0;
    case J_OP_GE:
        order = weft__j_compare(run, a, b, ">=");
        return order == 0 || order == 1;
    case J_OP_IN:
        return weft__j_contains(run, b, a);
    default:
        return !weft__j_contains(run, b, a);
    }
}

static struct jvalue eval_compare(struct jrun *run, const struct jnode *node)
{
    struct jvalue left = weft__j_eval(run, node->a);
    bool holds = true;
    for (const struct jnode *operand = node->b; operand != NULL && holds && run->status == WEFT_OK;
         operand = operand->next) {
        struct jvalue right = weft__j_eval(run, operand->a);
        run->at = operand;
        if (run->status == WEFT_OK) holds = compare(run, operand->op, left, right);
        left = right;
    }
    return weft__j_bool(holds);
}

static struct jvalue eval_choice(struct jrun *run, const struct jnode *node)
{
    bool truth = weft__j_truth(run, weft__j_eval(run, node->a));
    if (run->status != WEFT_OK) return (struct jvalue){0};
    if (truth) return weft__j_eval(run, node->b);
    if (node->c != NULL) return weft__j_eval(run, node->c);
    return weft__j_missing(run, "the inline if-expression evaluated to false and no else section "
                                "was defined.");
}

static struct jvalue eval_unary(struct jrun *run, const struct jnode *node)
{
    struct jvalue value = weft__j_eval(run, node->a);
    int64_t integer;
    run->at = node;
    if (run->status != WEFT_OK) return value;
    if (value.kind == J_UNDEFINED) return weft__j_fail_undefined(run, value);
    if (value.kind == J_FLOAT) return node->kind == N_NEG ? weft__j_float(-value.real) : value;
    if (!weft__j_integer(value, &integer))
        return weft__j_fail(run, WEFT_INVALID, "bad operand type for unary %c: '%s'",
                            node->kind == N_NEG ? '-' : '+', weft__j_type(value));
    if (node->kind == N_POS) return weft__j_int(integer);
    if (integer == INT64_MIN)
        return weft__j_fail(run, WEFT_UNSUPPORTED, "an integer beyond 64 bits");
    return weft__j_int(-integer);
}

static struct jvalue eval_binary(struct jrun *run, const struct jnode *node)
{
    struct jvalue left = weft__j_eval(run, node->a);
    if (node->kind != N_BINARY) {
        bool truth = weft__j_truth(run, left);
        return run->status == WEFT_OK && truth == (node->kind == N_AND) ? weft__j_eval(run, node->b)
                                                                        : left;
    }
    struct jvalue right = weft__j_eval(run, node->b);
    run->at = node;
    return run->status == WEFT_OK ? weft__j_binary(run, node->op, left, right) : left;
}

static struct jvalue eval_node(struct jrun *run, const struct jnode *node)
{
    struct jvalue value;
    struct jname name;
    run->at = node;
    switch (node->kind) {
    case N_CONST:
        return node->value;
    case N_NAME:
        return eval_name(run, node);
    case N_TUPLE:
    case N_LIST:
        return eval_list(run, node);
    case N_DICT:
        return eval_dict(run, node);
    case N_GETATTR:
        value = weft__j_eval(run, node->a);
        name = run->tmpl->names[node->name];
        run->at = node;
        if (run->status != WEFT_OK) return value;
        return weft__j_getattr(run, value, weft__j_text(name.text, name.len));
    case N_GETITEM:
        return eval_item(run, node);
    case N_CALL:
        return eval_call(run, node, (struct jvalue){0});
    case N_FILTER:
    case N_TEST:
        value = weft__j_eval(run, node->a);
        return run->status == WEFT_OK ? apply(run, node, value) : value;
    case N_NOT:
        return weft__j_bool(!weft__j_truth(run, weft__j_eval(run, node->a)));
    case N_NEG:
    case N_POS:
        return eval_unary(run, node);
    case N_CONCAT:
        return eval_concat(run, node);
    case N_COMPARE:
        return eval_compare(run, node);
    case N_COND:
        return eval_choice(run, node);
    default:
        return eval_binary(run, node);
    }
}

/* ABSENT when, and only when, the run has failed. */
struct jvalue weft__j_eval(struct jrun *run, const struct jnode *node)
{
    if (!weft__j_enter(run)) return (struct jvalue){0};
    struct jvalue out = weft__j_tick(run, 0) ? eval_node(run, node) : (struct jvalue){0};
    run->depth--;
    return run->status == WEFT_OK ? out : (struct jvalue){0};
}
