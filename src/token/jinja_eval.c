/* Expressions: names, attributes, slices, calls and operators, with Python's meaning. */
#include <stdio.h>
#include <string.h>

#include "jinja.h"

/* ---- attributes and subscripts ---- */

static struct weft__jvalue loop_attribute(struct weft__jrun *run, struct weft__jloop *loop,
                                          struct weft__jvalue name)
{
    struct weft__jvalue next;
    int64_t index = loop->index0, left = (int64_t)loop->items.count - index;
    if (weft__j_is_text(name, "index")) return weft__j_int(index + 1);
    if (weft__j_is_text(name, "index0")) return weft__j_int(index);
    if (weft__j_is_text(name, "first")) return weft__j_bool(index == 0);
    if (weft__j_is_text(name, "last")) return weft__j_bool(!weft__j_loop_peek(run, loop, &next));
    if (weft__j_is_text(name, "previtem"))
        return index > 0 ? loop->before : weft__j_missing(run, "there is no previous item");
    if (weft__j_is_text(name, "nextitem"))
        return weft__j_loop_peek(run, loop, &next) ? next
                                                   : weft__j_missing(run, "there is no next item");
    if (loop->node->c == NULL) { /* with an inline `if`, their number is not known yet */
        if (weft__j_is_text(name, "length")) return weft__j_int(loop->items.count);
        if (weft__j_is_text(name, "revindex")) return weft__j_int(left);
        if (weft__j_is_text(name, "revindex0")) return weft__j_int(left - 1);
    }
    return weft__j_fail(run, WEFT_UNSUPPORTED, "loop.%.*s here", (int)weft__min(name.len, 80),
                        name.text);
}

/* What the object itself has by this name, a method or an attribute; ABSENT: nothing. */
static struct weft__jvalue attribute(struct weft__jrun *run, struct weft__jvalue object,
                                     struct weft__jvalue name)
{
    const struct weft__jfunction *function = weft__j_method(object, name);
    if (function != NULL) {
        struct weft__jmethod *method = weft__j_alloc(run, sizeof *method);
        if (method == NULL) return weft__j_absent();
        *method = (struct weft__jmethod){.self = object, .function = function};
        return (struct weft__jvalue){.kind = WEFT__J_METHOD, .method = method};
    }
    if (object.kind == WEFT__J_LOOP) return loop_attribute(run, object.loop, name);
    if (object.kind == WEFT__J_MACRO || object.kind == WEFT__J_RANGE)
        return weft__j_fail(run, WEFT_UNSUPPORTED, "attributes of a %s", weft__j_type(object));
    struct weft__jvalue *found =
        object.kind == WEFT__J_NAMESPACE ? weft__j_find(run, object.dict, name) : NULL;
    return found != NULL ? *found : weft__j_absent();
}

/* The element at a key or index; ABSENT: none. */
static struct weft__jvalue element(struct weft__jrun *run, struct weft__jvalue object,
                                   struct weft__jvalue key)
{
    int64_t index, length = weft__j_length(object);
    if (object.kind == WEFT__J_DICT) {
        struct weft__jvalue *found =
            weft__j_hashable(key) ? weft__j_find(run, object.dict, key) : NULL;
        return found != NULL ? *found : weft__j_absent();
    }
    if (!weft__j_integer(key, &index)) return weft__j_absent();
    if (index < 0) index += length;
    if (index < 0 || index >= length) return weft__j_absent();
    if (weft__j_is_list(object)) return object.list->items[index];
    if (object.kind != WEFT__J_STRING) return weft__j_absent();
    (void)weft__j_tick(run, object.len);
    const char *p = weft__j_seek(object, index), *end = p;
    (void)weft__j_char(&end, object.text + object.len);
    struct weft__jvalue out = weft__j_text(p, (size_t)(end - p));
    out.markup = object.markup;
    return out;
}

struct weft__jvalue weft__j_getattr(struct weft__jrun *run, struct weft__jvalue object,
                                    struct weft__jvalue name)
{
    if (object.kind == WEFT__J_UNDEFINED) return weft__j_fail_undefined(run, object, WEFT_INVALID);
    struct weft__jvalue out = attribute(run, object, name);
    if (out.kind == WEFT__J_ABSENT) out = element(run, object, name);
    return out.kind != WEFT__J_ABSENT ? out : weft__j_undefined(run, object, name);
}

struct weft__jvalue weft__j_getitem(struct weft__jrun *run, struct weft__jvalue object,
                                    struct weft__jvalue key)
{
    if (object.kind == WEFT__J_UNDEFINED) return weft__j_fail_undefined(run, object, WEFT_INVALID);
    struct weft__jvalue out = element(run, object, key);
    if (out.kind == WEFT__J_ABSENT && key.kind == WEFT__J_STRING) out = attribute(run, object, key);
    return out.kind != WEFT__J_ABSENT ? out : weft__j_undefined(run, object, key);
}

/* start, step and count of a slice */
struct range {
    int64_t start, step, count;
};

/* Python's slice.indices: start and step within a sequence, and how many items. */
static bool slice_range(struct weft__jrun *run, const struct weft__jvalue bounds[3], int64_t length,
                        struct range *out)
{
    int64_t given[3] = {0, 0, 1};
    for (int i = 0; i < 3; i++)
        if (bounds[i].kind != WEFT__J_NONE && !weft__j_integer(bounds[i], &given[i])) {
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
        if (bounds[i].kind == WEFT__J_NONE)
            at = (i == 0) == (step > 0) ? low : high;
        else if (at < 0)
            at = weft__max(at + length, low);
        ends[i] = weft__min(at, high);
    }
    int64_t span = step > 0 ? ends[1] - ends[0] : ends[0] - ends[1];
    uint64_t stride = step > 0 ? (uint64_t)step : (uint64_t)-step;
    *out = (struct range){.start = ends[0],
                          .step = step,
                          .count = span <= 0 ? 0 : (int64_t)(((uint64_t)span - 1) / stride) + 1};
    return true;
}

static struct weft__jvalue slice_string(struct weft__jrun *run, struct weft__jvalue s,
                                        struct range range)
{
    (void)weft__j_tick(run, (size_t)s.len * 2);
    if (range.step != 1) return weft__j_fail(run, WEFT_UNSUPPORTED, "a text sliced in steps");
    const char *from = weft__j_seek(s, range.start);
    struct weft__jvalue out = weft__j_text(from, s.len - (size_t)(from - s.text));
    out.len = (uint32_t)(weft__j_seek(out, range.count) - from);
    out.markup = s.markup;
    return out;
}

static struct weft__jvalue slice(struct weft__jrun *run, struct weft__jvalue object,
                                 const struct weft__jvalue bounds[3])
{
    struct range range;
    if (object.kind == WEFT__J_UNDEFINED) return weft__j_fail_undefined(run, object, WEFT_INVALID);
    if (object.kind != WEFT__J_STRING && !weft__j_is_list(object))
        return weft__j_fail(run, WEFT_INVALID, "'%s' object cannot be sliced",
                            weft__j_type(object));
    if (!slice_range(run, bounds, weft__j_length(object), &range)) return weft__j_absent();
    if (object.kind == WEFT__J_STRING) return slice_string(run, object, range);
    struct weft__jvalue out = weft__j_new_list(run, object.kind);
    for (int64_t i = 0; i < range.count && out.kind != WEFT__J_ABSENT; i++)
        if (!weft__j_push(run, out.list, object.list->items[range.start + i * range.step])) break;
    return out;
}

/* ---- calls ---- */

static void start_call(struct weft__jcall *call, struct weft__jvalue self)
{
    *call = (struct weft__jcall){.self = self};
    call->positional = (struct weft__jlist){.items = call->first, .cap = WEFT__COUNT(call->first)};
}

static bool eval_arguments(struct weft__jrun *run, struct weft__jcall *call,
                           const struct weft__jnode *node)
{
    struct weft__jlist items;
    for (; node != NULL && run->status == WEFT_OK; node = node->next) {
        struct weft__jvalue value = weft__j_eval(run, node->a);
        if (node->op == WEFT__J_ARG_POSITIONAL)
            (void)weft__j_push(run, &call->positional, value);
        else if (node->op == WEFT__J_ARG_NAMED)
            (void)weft__j_put(run, &call->named, run->tmpl->names[node->name], value);
        else if (weft__j_iterate(run, value, &items))
            for (uint32_t i = 0; i < items.count; i++)
                if (!weft__j_push(run, &call->positional, items.items[i])) break;
    }
    return run->status == WEFT_OK;
}

/* Arguments that Python knows and weft does not are found here, too. */
static bool bind_arguments(struct weft__jrun *run, const struct weft__jfunction *function,
                           struct weft__jcall *call)
{
    if (function->max == WEFT__J_VARARGS) return run->status == WEFT_OK;
    if (call->positional.count > function->max)
        weft__j_fail(run, WEFT_UNSUPPORTED, "%s() with %u arguments, it may have %d",
                     function->name, call->positional.count, function->max);
    for (uint32_t i = 0; i < call->positional.count && run->status == WEFT_OK; i++)
        call->arg[i] = call->positional.items[i];
    for (uint32_t i = 0; i < call->named.count && run->status == WEFT_OK; i++) {
        const struct weft__jpair *pair = &call->named.pairs[i];
        int at = 0;
        while (at < function->max && !weft__j_is_text(pair->key, function->params[at])) at++;
        if (at == function->max || call->arg[at].kind != WEFT__J_ABSENT)
            weft__j_fail(run, WEFT_UNSUPPORTED, "%s() got %s argument '%.*s'", function->name,
                         at == function->max ? "an unexpected keyword" : "multiple values for",
                         (int)weft__min(pair->key.len, 80), pair->key.text);
        else
            call->arg[at] = pair->value;
    }
    for (int i = 0; i < function->required && run->status == WEFT_OK; i++)
        if (call->arg[i].kind == WEFT__J_ABSENT)
            weft__j_fail(run, WEFT_INVALID, "%s() misses its argument '%s'", function->name,
                         function->params[i]);
    return run->status == WEFT_OK;
}

static struct weft__jvalue call_function(struct weft__jrun *run,
                                         const struct weft__jfunction *function,
                                         struct weft__jcall *call)
{
    call->function = function;
    if (!bind_arguments(run, function, call)) return weft__j_absent();
    return function->call(run, call);
}

/* Methods of markup give markup. */
static struct weft__jvalue marked(struct weft__jvalue v)
{
    if (v.kind == WEFT__J_STRING) v.markup = true;
    if (v.kind == WEFT__J_LIST || v.kind == WEFT__J_TUPLE) /* fresh, from split and the like */
        for (uint32_t i = 0; i < v.list->count; i++)
            v.list->items[i].markup = v.list->items[i].kind == WEFT__J_STRING;
    return v;
}

/* Whether Python has a method by the name of what is undefined. */
static bool lacks_method(struct weft__jvalue undefined)
{
    static const char names[] =
        " append casefold center clear copy count encode expandtabs extend format_map index insert "
        "isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable "
        "isspace istitle isupper ljust partition pop popitem remove removeprefix removesuffix "
        "reverse rindex rjust rpartition setdefault sort splitlines swapcase translate update "
        "zfill ";
    char name[20];
    struct weft__jvalue key = undefined.undefined->key;
    if (undefined.undefined->type == NULL || key.kind != WEFT__J_STRING || key.len > 17)
        return false;
    (void)snprintf(name, sizeof name, " %.*s ", (int)key.len, key.text);
    return strstr(names, name) != NULL;
}

static struct weft__jvalue call_value(struct weft__jrun *run, struct weft__jvalue what,
                                      struct weft__jcall *call)
{
    struct weft__jvalue out;
    switch (what.kind) {
    case WEFT__J_FUNCTION:
        return call_function(run, what.function, call);
    case WEFT__J_METHOD:
        call->self = what.method->self;
        out = call_function(run, what.method->function, call);
        return what.method->self.kind == WEFT__J_STRING && what.method->self.markup ? marked(out)
                                                                                    : out;
    case WEFT__J_MACRO:
        return weft__j_call_macro(run, what.macro, call);
    case WEFT__J_UNDEFINED:
        return weft__j_fail_undefined(run, what,
                                      lacks_method(what) ? WEFT_UNSUPPORTED : WEFT_INVALID);
    default:
        return weft__j_fail(run, WEFT_INVALID, "'%s' object is not callable", weft__j_type(what));
    }
}

/* caller: what a call block passes along, or ABSENT. */
struct weft__jvalue weft__j_eval_call(struct weft__jrun *run, const struct weft__jnode *node,
                                      struct weft__jvalue caller)
{
    struct weft__jcall call;
    struct weft__jvalue what = weft__j_eval(run, node->a);
    start_call(&call, weft__j_absent());
    if (run->status != WEFT_OK || !eval_arguments(run, &call, node->b)) return weft__j_absent();
    if (caller.kind != WEFT__J_ABSENT)
        (void)weft__j_put(run, &call.named, weft__j_literal("caller"), caller);
    run->at = node;
    return weft__j_tick(run, 0) ? call_value(run, what, &call) : weft__j_absent();
}

struct weft__jvalue weft__j_apply(struct weft__jrun *run, const struct weft__jfunction *function,
                                  struct weft__jvalue self, struct weft__jlist positional,
                                  struct weft__jdict named)
{
    struct weft__jcall call;
    if (!weft__j_enter(run)) return weft__j_absent();
    start_call(&call, self);
    call.positional = positional;
    call.named = named;
    struct weft__jvalue out = call_function(run, function, &call);
    run->depth--;
    return out;
}

/* A filter or test applied to self. */
static struct weft__jvalue apply(struct weft__jrun *run, const struct weft__jnode *node,
                                 struct weft__jvalue self)
{
    struct weft__jcall call;
    start_call(&call, self);
    if (node->function == NULL) {
        run->at = node;
        return weft__j_fail(run, WEFT_UNSUPPORTED, "no %s named '%.80s'",
                            node->kind == WEFT__N_FILTER ? "filter" : "test",
                            run->tmpl->names[node->name].text);
    }
    if (!eval_arguments(run, &call, node->b)) return weft__j_absent();
    run->at = node;
    return call_function(run, node->function, &call);
}

/* ---- operators: integers are 64 bits wide; beyond that is an error, not a wrap ---- */

static struct weft__jvalue int_binary(struct weft__jrun *run, enum weft__jop op, int64_t a,
                                      int64_t b)
{
    const int64_t exact = (int64_t)1 << 53; /* as a double */
    int64_t out = 0;
    bool failed = false;
    if (b == 0 && (op == WEFT__J_OP_DIV || op == WEFT__J_OP_FLOORDIV || op == WEFT__J_OP_MOD))
        return weft__j_fail(run, WEFT_INVALID, "division by zero");
    if (op == WEFT__J_OP_DIV && a >= -exact && a <= exact && b >= -exact && b <= exact)
        return weft__j_float((double)a / (double)b);
    if (op == WEFT__J_OP_ADD)
        failed = __builtin_add_overflow(a, b, &out);
    else if (op == WEFT__J_OP_SUB)
        failed = __builtin_sub_overflow(a, b, &out);
    else if (op == WEFT__J_OP_MUL)
        failed = __builtin_mul_overflow(a, b, &out);
    else if (op == WEFT__J_OP_DIV || (a == INT64_MIN && b == -1))
        failed = true;
    else if (op == WEFT__J_OP_MOD)
        out = a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0);
    else
        out = a / b - (a % b != 0 && (a % b < 0) != (b < 0));
    return failed ? weft__j_fail(run, WEFT_UNSUPPORTED, "an integer beyond 64 bits")
                  : weft__j_int(out);
}

static struct weft__jvalue float_binary(struct weft__jrun *run, enum weft__jop op, double a,
                                        double b)
{
    switch (op) {
    case WEFT__J_OP_ADD:
        return weft__j_float(a + b);
    case WEFT__J_OP_SUB:
        return weft__j_float(a - b);
    case WEFT__J_OP_MUL:
        return weft__j_float(a * b);
    case WEFT__J_OP_DIV:
        if (b != 0) return weft__j_float(a / b);
        return weft__j_fail(run, WEFT_INVALID, "division by zero");
    default:
        return weft__j_fail(run, WEFT_UNSUPPORTED, "%s of floats", weft__j_spelling(op));
    }
}

/* Markup escapes what it is joined with. */
static struct weft__jvalue join_strings(struct weft__jrun *run, struct weft__jvalue a,
                                        struct weft__jvalue b)
{
    bool markup = a.markup || b.markup;
    if (markup && !a.markup) a = weft__j_escape(run, a);
    if (markup && !b.markup) b = weft__j_escape(run, b);
    struct weft__jvalue out = weft__j_concat(run, a, b);
    out.markup = markup;
    return out;
}

/* `times` times over a, then b; lists or tuples. */
static struct weft__jvalue join_lists(struct weft__jrun *run, struct weft__jvalue a, int64_t times,
                                      struct weft__jvalue b)
{
    struct weft__jvalue out = weft__j_new_list(run, a.kind);
    for (int64_t t = 0; a.list->count > 0 && t < times && run->status == WEFT_OK; t++)
        for (uint32_t i = 0; i < a.list->count && run->status == WEFT_OK; i++)
            (void)weft__j_push(run, out.list, a.list->items[i]);
    for (uint32_t i = 0; b.kind != WEFT__J_ABSENT && i < b.list->count && run->status == WEFT_OK;
         i++)
        (void)weft__j_push(run, out.list, b.list->items[i]);
    return out;
}

static struct weft__jvalue repeat(struct weft__jrun *run, struct weft__jvalue what, int64_t times)
{
    if (what.kind != WEFT__J_STRING) return join_lists(run, what, times, weft__j_absent());
    struct weft__jsink sink = {0};
    weft__j_fill(run, &sink, what, times);
    struct weft__jvalue out = weft__j_written(&sink);
    out.markup = what.markup;
    return out;
}

struct weft__jvalue weft__j_binary(struct weft__jrun *run, enum weft__jop op, struct weft__jvalue a,
                                   struct weft__jvalue b)
{
    int64_t ia, ib;
    double fa, fb;
    bool a_int = weft__j_integer(a, &ia), b_int = weft__j_integer(b, &ib);
    bool a_sequence = a.kind == WEFT__J_STRING || a.kind == WEFT__J_LIST || a.kind == WEFT__J_TUPLE;
    bool b_sequence = b.kind == WEFT__J_STRING || b.kind == WEFT__J_LIST || b.kind == WEFT__J_TUPLE;
    if (a_int && b_int) return int_binary(run, op, ia, ib);
    if (weft__j_number(a, &fa) && weft__j_number(b, &fb)) return float_binary(run, op, fa, fb);
    if (op == WEFT__J_OP_MOD && a.kind == WEFT__J_STRING)
        return weft__j_fail(run, WEFT_UNSUPPORTED, "the formatting operator %%");
    if (a.kind == WEFT__J_UNDEFINED) return weft__j_fail_undefined(run, a, WEFT_INVALID);
    if (b.kind == WEFT__J_UNDEFINED) return weft__j_fail_undefined(run, b, WEFT_INVALID);
    if (op == WEFT__J_OP_ADD && a.kind == b.kind && a_sequence)
        return a.kind == WEFT__J_STRING ? join_strings(run, a, b) : join_lists(run, a, 1, b);
    if (op == WEFT__J_OP_MUL && a_sequence && b_int) return repeat(run, a, ib);
    if (op == WEFT__J_OP_MUL && a_int && b_sequence) return repeat(run, b, ia);
    if (op == WEFT__J_OP_ADD && a_sequence)
        return weft__j_fail(run, WEFT_INVALID, "can only concatenate %s (not \"%s\") to %s",
                            weft__j_type(a), weft__j_type(b), weft__j_type(a));
    return weft__j_fail(run, WEFT_INVALID, "unsupported operand type(s) for %s: '%s' and '%s'",
                        weft__j_spelling(op), weft__j_type(a), weft__j_type(b));
}

static bool contains(struct weft__jrun *run, struct weft__jvalue container,
                     struct weft__jvalue item)
{
    struct weft__jlist items;
    switch (container.kind) {
    case WEFT__J_STRING:
        if (item.kind == WEFT__J_STRING) return weft__j_has(run, container, item);
        weft__j_fail(run, WEFT_INVALID, "'in <string>' requires string as left operand, not %s",
                     weft__j_type(item));
        return false;
    case WEFT__J_DICT:
    case WEFT__J_KEYS:
        if (weft__j_hashable(item)) return weft__j_find(run, container.dict, item) != NULL;
        weft__j_fail(run, WEFT_INVALID, "unhashable type: '%s'", weft__j_type(item));
        return false;
    case WEFT__J_ITERATOR: /* reads up to the item */
        while (container.iterator->next < container.iterator->items.count)
            if (weft__j_equal(run, container.iterator->items.items[container.iterator->next++],
                              item))
                return true;
        return false;
    default:
        if (!weft__j_iterate(run, container, &items)) return false;
        for (uint32_t i = 0; i < items.count && weft__j_tick(run, 0); i++)
            if (weft__j_equal(run, items.items[i], item)) return true;
        return false;
    }
}

bool weft__j_relation(struct weft__jrun *run, enum weft__jop op, struct weft__jvalue a,
                      struct weft__jvalue b)
{
    int order;
    switch (op) {
    case WEFT__J_OP_EQ:
        return weft__j_equal(run, a, b);
    case WEFT__J_OP_NE:
        return !weft__j_equal(run, a, b);
    case WEFT__J_OP_LT:
        return weft__j_compare(run, a, b, "<") < 0;
    case WEFT__J_OP_GT:
        return weft__j_compare(run, a, b, ">") == 1;
    case WEFT__J_OP_LE:
        return weft__j_compare(run, a, b, "<=") <= 0;
    case WEFT__J_OP_GE:
        order = weft__j_compare(run, a, b, ">=");
        return order == 0 || order == 1;
    case WEFT__J_OP_IN:
        return contains(run, b, a);
    default:
        return !contains(run, b, a);
    }
}

/* ---- the tree ---- */

static struct weft__jvalue eval_list(struct weft__jrun *run, const struct weft__jnode *node)
{
    struct weft__jvalue out =
        weft__j_new_list(run, node->kind == WEFT__N_LIST ? WEFT__J_LIST : WEFT__J_TUPLE);
    for (const struct weft__jnode *item = node->a; item != NULL && run->status == WEFT_OK;
         item = item->next)
        (void)weft__j_push(run, out.list, weft__j_eval(run, item));
    return out;
}

static struct weft__jvalue eval_dict(struct weft__jrun *run, const struct weft__jnode *node)
{
    struct weft__jvalue out = weft__j_new_dict(run);
    for (const struct weft__jnode *key = node->a; key != NULL && run->status == WEFT_OK;
         key = key->next->next) {
        struct weft__jvalue k = weft__j_eval(run, key), v = weft__j_eval(run, key->next);
        run->at = key;
        if (run->status == WEFT_OK) (void)weft__j_put(run, out.dict, k, v);
    }
    return out;
}

static struct weft__jvalue eval_name(struct weft__jrun *run, const struct weft__jnode *node)
{
    struct weft__jvalue value = weft__j_lookup(run, node->name);
    if (value.kind != WEFT__J_ABSENT) return value;
    return weft__j_undefined(run, value, run->tmpl->names[node->name]);
}

static struct weft__jvalue eval_item(struct weft__jrun *run, const struct weft__jnode *node)
{
    struct weft__jvalue object = weft__j_eval(run, node->a);
    if (node->b->kind != WEFT__N_SLICE) {
        struct weft__jvalue key = weft__j_eval(run, node->b);
        run->at = node;
        return run->status == WEFT_OK ? weft__j_getitem(run, object, key) : key;
    }
    const struct weft__jnode *parts[3] = {node->b->a, node->b->b, node->b->c};
    struct weft__jvalue bounds[3];
    for (int i = 0; i < 3; i++)
        bounds[i] = parts[i] != NULL ? weft__j_eval(run, parts[i]) : weft__j_none();
    run->at = node;
    return run->status == WEFT_OK ? slice(run, object, bounds) : weft__j_absent();
}

static struct weft__jvalue eval_concat(struct weft__jrun *run, const struct weft__jnode *node)
{
    struct weft__jvalue out = weft__j_str(run, weft__j_eval(run, node->a));
    for (const struct weft__jnode *part = node->b; part != NULL && run->status == WEFT_OK;
         part = part->next)
        out = weft__j_concat(run, out, weft__j_str(run, weft__j_eval(run, part->a)));
    out.markup = false;
    return out;
}

static struct weft__jvalue eval_compare(struct weft__jrun *run, const struct weft__jnode *node)
{
    struct weft__jvalue left = weft__j_eval(run, node->a);
    bool holds = true;
    for (const struct weft__jnode *operand = node->b;
         operand != NULL && holds && run->status == WEFT_OK; operand = operand->next) {
        struct weft__jvalue right = weft__j_eval(run, operand->a);
        run->at = operand;
        if (run->status == WEFT_OK) holds = weft__j_relation(run, operand->op, left, right);
        left = right;
    }
    return weft__j_bool(holds);
}

static struct weft__jvalue eval_choice(struct weft__jrun *run, const struct weft__jnode *node)
{
    bool truth = weft__j_truth(run, weft__j_eval(run, node->a));
    if (run->status != WEFT_OK) return weft__j_absent();
    if (truth) return weft__j_eval(run, node->b);
    if (node->c != NULL) return weft__j_eval(run, node->c);
    return weft__j_missing(run, "the inline if-expression evaluated to false and no else section "
                                "was defined.");
}

static struct weft__jvalue eval_unary(struct weft__jrun *run, const struct weft__jnode *node)
{
    struct weft__jvalue value = weft__j_eval(run, node->a);
    int64_t integer;
    run->at = node;
    if (run->status != WEFT_OK) return value;
    if (value.kind == WEFT__J_UNDEFINED) return weft__j_fail_undefined(run, value, WEFT_INVALID);
    if (value.kind == WEFT__J_FLOAT)
        return node->kind == WEFT__N_NEG ? weft__j_float(-value.real) : value;
    if (!weft__j_integer(value, &integer))
        return weft__j_fail(run, WEFT_INVALID, "bad operand type for unary %c: '%s'",
                            node->kind == WEFT__N_NEG ? '-' : '+', weft__j_type(value));
    if (node->kind == WEFT__N_POS) return weft__j_int(integer);
    return int_binary(run, WEFT__J_OP_SUB, 0, integer);
}

static struct weft__jvalue eval_binary(struct weft__jrun *run, const struct weft__jnode *node)
{
    struct weft__jvalue left = weft__j_eval(run, node->a);
    if (node->op == WEFT__J_OP_AND || node->op == WEFT__J_OP_OR) {
        bool truth = weft__j_truth(run, left), both = node->op == WEFT__J_OP_AND;
        return run->status == WEFT_OK && truth == both ? weft__j_eval(run, node->b) : left;
    }
    struct weft__jvalue right = weft__j_eval(run, node->b);
    run->at = node;
    return run->status == WEFT_OK ? weft__j_binary(run, node->op, left, right) : left;
}

static struct weft__jvalue eval_node(struct weft__jrun *run, const struct weft__jnode *node)
{
    struct weft__jvalue value;
    run->at = node;
    switch (node->kind) {
    case WEFT__N_CONST:
        return node->value;
    case WEFT__N_NAME:
        return eval_name(run, node);
    case WEFT__N_TUPLE:
    case WEFT__N_LIST:
        return eval_list(run, node);
    case WEFT__N_DICT:
        return eval_dict(run, node);
    case WEFT__N_GETATTR:
        value = weft__j_eval(run, node->a);
        run->at = node;
        if (run->status != WEFT_OK) return value;
        return weft__j_getattr(run, value, run->tmpl->names[node->name]);
    case WEFT__N_GETITEM:
        return eval_item(run, node);
    case WEFT__N_CALL:
        return weft__j_eval_call(run, node, weft__j_absent());
    case WEFT__N_FILTER:
    case WEFT__N_TEST:
        value = node->a != NULL ? weft__j_eval(run, node->a) : run->block;
        return run->status == WEFT_OK ? apply(run, node, value) : value;
    case WEFT__N_NOT:
        return weft__j_bool(!weft__j_truth(run, weft__j_eval(run, node->a)));
    case WEFT__N_NEG:
    case WEFT__N_POS:
        return eval_unary(run, node);
    case WEFT__N_CONCAT:
        return eval_concat(run, node);
    case WEFT__N_COMPARE:
        return eval_compare(run, node);
    case WEFT__N_COND:
        return eval_choice(run, node);
    default:
        return eval_binary(run, node);
    }
}

/* ABSENT when, and only when, the run has failed. */
struct weft__jvalue weft__j_eval(struct weft__jrun *run, const struct weft__jnode *node)
{
    if (!weft__j_enter(run)) return weft__j_absent();
    struct weft__jvalue out = weft__j_tick(run, 0) ? eval_node(run, node) : weft__j_absent();
    run->depth--;
    return run->status == WEFT_OK ? out : weft__j_absent();
}
