/* Expressions: names, attributes, slices, calls and operators, with Python's meaning. */
#include <stdio.h>
#include <string.h>

#include "jinja.h"

/* ---- attributes and subscripts ---- */

static struct jvalue loop_attribute(struct jrun *run, struct jloop *loop, struct jvalue name)
{
    struct jvalue next;
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
static struct jvalue attribute(struct jrun *run, struct jvalue object, struct jvalue name)
{
    const struct jfunction *function = weft__j_method(object, name);
    if (function != NULL) {
        struct jmethod *method = weft__j_alloc(run, sizeof *method);
        if (method == NULL) return (struct jvalue){0};
        *method = (struct jmethod){.self = object, .function = function};
        return (struct jvalue){.kind = J_METHOD, .method = method};
    }
    if (object.kind == J_LOOP) return loop_attribute(run, object.loop, name);
    if (object.kind == J_MACRO || object.kind == J_RANGE)
        return weft__j_fail(run, WEFT_UNSUPPORTED, "attributes of a %s", weft__j_type(object));
    struct jvalue *found = object.kind == J_NAMESPACE ? weft__j_find(run, object.dict, name) : NULL;
    return found != NULL ? *found : (struct jvalue){0};
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
    if (weft__j_is_list(object)) return object.list->items[index];
    if (object.kind != J_STRING) return (struct jvalue){0};
    (void)weft__j_tick(run, object.len);
    const char *p = weft__j_seek(object, index), *end = p;
    (void)weft__j_char(&end, object.text + object.len);
    struct jvalue out = weft__j_text(p, (size_t)(end - p));
    out.markup = object.markup;
    return out;
}

struct jvalue weft__j_getattr(struct jrun *run, struct jvalue object, struct jvalue name)
{
    if (object.kind == J_UNDEFINED) return weft__j_fail_undefined(run, object, WEFT_INVALID);
    struct jvalue out = attribute(run, object, name);
    if (out.kind == J_ABSENT) out = element(run, object, name);
    return out.kind != J_ABSENT ? out : weft__j_undefined(run, object, name);
}

struct jvalue weft__j_getitem(struct jrun *run, struct jvalue object, struct jvalue key)
{
    if (object.kind == J_UNDEFINED) return weft__j_fail_undefined(run, object, WEFT_INVALID);
    struct jvalue out = element(run, object, key);
    if (out.kind == J_ABSENT && key.kind == J_STRING) out = attribute(run, object, key);
    return out.kind != J_ABSENT ? out : weft__j_undefined(run, object, key);
}

/* start, step and count of a slice */
struct range {
    int64_t start, step, count;
};

/* Python's slice.indices: start and step within a sequence, and how many items. */
static bool slice_range(struct jrun *run, const struct jvalue bounds[3], int64_t length,
                        struct range *out)
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
    *out = (struct range){.start = ends[0],
                          .step = step,
                          .count = span <= 0 ? 0 : (int64_t)(((uint64_t)span - 1) / stride) + 1};
    return true;
}

static struct jvalue slice_string(struct jrun *run, struct jvalue s, struct range range)
{
    (void)weft__j_tick(run, (size_t)s.len * 2);
    if (range.step != 1) return weft__j_fail(run, WEFT_UNSUPPORTED, "a text sliced in steps");
    const char *from = weft__j_seek(s, range.start);
    struct jvalue out = weft__j_text(from, s.len - (size_t)(from - s.text));
    out.len = (uint32_t)(weft__j_seek(out, range.count) - from);
    out.markup = s.markup;
    return out;
}

static struct jvalue slice(struct jrun *run, struct jvalue object, const struct jvalue bounds[3])
{
    struct range range;
    if (object.kind == J_UNDEFINED) return weft__j_fail_undefined(run, object, WEFT_INVALID);
    if (object.kind != J_STRING && !weft__j_is_list(object))
        return weft__j_fail(run, WEFT_INVALID, "'%s' object cannot be sliced",
                            weft__j_type(object));
    if (!slice_range(run, bounds, weft__j_length(object), &range)) return (struct jvalue){0};
    if (object.kind == J_STRING) return slice_string(run, object, range);
    struct jvalue out = weft__j_new_list(run, object.kind);
    for (int64_t i = 0; i < range.count && out.kind != J_ABSENT; i++)
        if (!weft__j_push(run, out.list, object.list->items[range.start + i * range.step])) break;
    return out;
}

/* ---- calls ---- */

static void start_call(struct jcall *call, struct jvalue self)
{
    *call = (struct jcall){.self = self};
    call->positional = (struct jlist){.items = call->first, .cap = WEFT__COUNT(call->first)};
}

static bool eval_arguments(struct jrun *run, struct jcall *call, const struct jnode *node)
{
    struct jlist items;
    for (; node != NULL && run->status == WEFT_OK; node = node->next) {
        struct jvalue value = weft__j_eval(run, node->a);
        if (node->op == J_ARG_POSITIONAL)
            (void)weft__j_push(run, &call->positional, value);
        else if (node->op == J_ARG_NAMED)
            (void)weft__j_put(run, &call->named, run->tmpl->names[node->name], value);
        else if (weft__j_iterate(run, value, &items))
            for (uint32_t i = 0; i < items.count; i++)
                if (!weft__j_push(run, &call->positional, items.items[i])) break;
    }
    return run->status == WEFT_OK;
}

/* Arguments that Python knows and weft does not are found here, too. */
static bool bind_arguments(struct jrun *run, const struct jfunction *function, struct jcall *call)
{
    if (function->max == J_VARARGS) return run->status == WEFT_OK;
    if (call->positional.count > function->max)
        weft__j_fail(run, WEFT_UNSUPPORTED, "%s() with %u arguments, it may have %d",
                     function->name, call->positional.count, function->max);
    for (uint32_t i = 0; i < call->positional.count && run->status == WEFT_OK; i++)
        call->arg[i] = call->positional.items[i];
    for (uint32_t i = 0; i < call->named.count && run->status == WEFT_OK; i++) {
        const struct jpair *pair = &call->named.pairs[i];
        int at = 0;
        while (at < function->max && !weft__j_is_text(pair->key, function->params[at])) at++;
        if (at == function->max || call->arg[at].kind != J_ABSENT)
            weft__j_fail(run, WEFT_UNSUPPORTED, "%s() got %s argument '%.*s'", function->name,
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
    if (!bind_arguments(run, function, call)) return (struct jvalue){0};
    return function->call(run, call);
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

/* Whether Python has a method by the name of what is undefined. */
static bool lacks_method(struct jvalue undefined)
{
    static const char names[] =
        " append casefold center clear copy count encode expandtabs extend format_map index insert "
        "isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable "
        "isspace istitle isupper ljust partition pop popitem remove removeprefix removesuffix "
        "reverse rindex rjust rpartition setdefault sort splitlines swapcase translate update "
        "zfill ";
    char name[20];
    struct jvalue key = undefined.undefined->key;
    if (undefined.undefined->type == NULL || key.kind != J_STRING || key.len > 17) return false;
    (void)snprintf(name, sizeof name, " %.*s ", (int)key.len, key.text);
    return strstr(names, name) != NULL;
}

static struct jvalue call_value(struct jrun *run, struct jvalue what, struct jcall *call)
{
    struct jvalue out;
    switch (what.kind) {
    case J_FUNCTION:
        return call_function(run, what.function, call);
    case J_METHOD:
        call->self = what.method->self;
        out = call_function(run, what.method->function, call);
        return what.method->self.kind == J_STRING && what.method->self.markup ? marked(out) : out;
    case J_MACRO:
        return weft__j_call_macro(run, what.macro, call);
    case J_UNDEFINED:
        return weft__j_fail_undefined(run, what,
                                      lacks_method(what) ? WEFT_UNSUPPORTED : WEFT_INVALID);
    default:
        return weft__j_fail(run, WEFT_INVALID, "'%s' object is not callable", weft__j_type(what));
    }
}

/* caller: what a call block passes along, or ABSENT. */
struct jvalue weft__j_eval_call(struct jrun *run, const struct jnode *node, struct jvalue caller)
{
    struct jcall call;
    struct jvalue what = weft__j_eval(run, node->a);
    start_call(&call, (struct jvalue){0});
    if (run->status != WEFT_OK || !eval_arguments(run, &call, node->b)) return (struct jvalue){0};
    if (caller.kind != J_ABSENT)
        (void)weft__j_put(run, &call.named, weft__j_literal("caller"), caller);
    run->at = node;
    return weft__j_tick(run, 0) ? call_value(run, what, &call) : (struct jvalue){0};
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

/* ---- operators: integers are 64 bits wide; beyond that is an error, not a wrap ---- */

static struct jvalue int_binary(struct jrun *run, enum weft__jop op, int64_t a, int64_t b)
{
    const int64_t exact = (int64_t)1 << 53; /* as a double */
    int64_t out = 0;
    bool failed = false;
    if (b == 0 && (op == J_OP_DIV || op == J_OP_FLOORDIV || op == J_OP_MOD))
        return weft__j_fail(run, WEFT_INVALID, "division by zero");
    if (op == J_OP_DIV && a >= -exact && a <= exact && b >= -exact && b <= exact)
        return weft__j_float((double)a / (double)b);
    if (op == J_OP_ADD)
        failed = __builtin_add_overflow(a, b, &out);
    else if (op == J_OP_SUB)
        failed = __builtin_sub_overflow(a, b, &out);
    else if (op == J_OP_MUL)
        failed = __builtin_mul_overflow(a, b, &out);
    else if (op == J_OP_DIV || (a == INT64_MIN && b == -1))
        failed = true;
    else if (op == J_OP_MOD)
        out = a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0);
    else
        out = a / b - (a % b != 0 && (a % b < 0) != (b < 0));
    return failed ? weft__j_fail(run, WEFT_UNSUPPORTED, "an integer beyond 64 bits")
                  : weft__j_int(out);
}

static struct jvalue float_binary(struct jrun *run, enum weft__jop op, double a, double b)
{
    switch (op) {
    case J_OP_ADD:
        return weft__j_float(a + b);
    case J_OP_SUB:
        return weft__j_float(a - b);
    case J_OP_MUL:
        return weft__j_float(a * b);
    case J_OP_DIV:
        if (b != 0) return weft__j_float(a / b);
        return weft__j_fail(run, WEFT_INVALID, "division by zero");
    default:
        return weft__j_fail(run, WEFT_UNSUPPORTED, "%s of floats", weft__j_spelling(op));
    }
}

/* Markup escapes what it is joined with. */
static struct jvalue join_strings(struct jrun *run, struct jvalue a, struct jvalue b)
{
    bool markup = a.markup || b.markup;
    if (markup && !a.markup) a = weft__j_escape(run, a);
    if (markup && !b.markup) b = weft__j_escape(run, b);
    struct jvalue out = weft__j_concat(run, a, b);
    out.markup = markup;
    return out;
}

/* `times` times over a, then b; lists or tuples. */
static struct jvalue join_lists(struct jrun *run, struct jvalue a, int64_t times, struct jvalue b)
{
    struct jvalue out = weft__j_new_list(run, a.kind);
    for (int64_t t = 0; a.list->count > 0 && t < times && run->status == WEFT_OK; t++)
        for (uint32_t i = 0; i < a.list->count && run->status == WEFT_OK; i++)
            (void)weft__j_push(run, out.list, a.list->items[i]);
    for (uint32_t i = 0; b.kind != J_ABSENT && i < b.list->count && run->status == WEFT_OK; i++)
        (void)weft__j_push(run, out.list, b.list->items[i]);
    return out;
}

static struct jvalue repeat(struct jrun *run, struct jvalue what, int64_t times)
{
    if (what.kind != J_STRING) return join_lists(run, what, times, (struct jvalue){0});
    struct jsink sink = {0};
    weft__j_fill(run, &sink, what, times);
    struct jvalue out = weft__j_written(&sink);
    out.markup = what.markup;
    return out;
}

struct jvalue weft__j_binary(struct jrun *run, enum weft__jop op, struct jvalue a, struct jvalue b)
{
    int64_t ia, ib;
    double fa, fb;
    bool a_int = weft__j_integer(a, &ia), b_int = weft__j_integer(b, &ib);
    bool a_sequence = a.kind == J_STRING || a.kind == J_LIST || a.kind == J_TUPLE;
    bool b_sequence = b.kind == J_STRING || b.kind == J_LIST || b.kind == J_TUPLE;
    if (a_int && b_int) return int_binary(run, op, ia, ib);
    if (weft__j_number(a, &fa) && weft__j_number(b, &fb)) return float_binary(run, op, fa, fb);
    if (op == J_OP_MOD && a.kind == J_STRING)
        return weft__j_fail(run, WEFT_UNSUPPORTED, "the formatting operator %%");
    if (a.kind == J_UNDEFINED) return weft__j_fail_undefined(run, a, WEFT_INVALID);
    if (b.kind == J_UNDEFINED) return weft__j_fail_undefined(run, b, WEFT_INVALID);
    if (op == J_OP_ADD && a.kind == b.kind && a_sequence)
        return a.kind == J_STRING ? join_strings(run, a, b) : join_lists(run, a, 1, b);
    if (op == J_OP_MUL && a_sequence && b_int) return repeat(run, a, ib);
    if (op == J_OP_MUL && a_int && b_sequence) return repeat(run, b, ia);
    if (op == J_OP_ADD && a_sequence)
        return weft__j_fail(run, WEFT_INVALID, "can only concatenate %s (not \"%s\") to %s",
                            weft__j_type(a), weft__j_type(b), weft__j_type(a));
    return weft__j_fail(run, WEFT_INVALID, "unsupported operand type(s) for %s: '%s' and '%s'",
                        weft__j_spelling(op), weft__j_type(a), weft__j_type(b));
}

static bool contains(struct jrun *run, struct jvalue container, struct jvalue item)
{
    struct jlist items;
    switch (container.kind) {
    case J_STRING:
        if (item.kind == J_STRING) return weft__j_has(run, container, item);
        weft__j_fail(run, WEFT_INVALID, "'in <string>' requires string as left operand, not %s",
                     weft__j_type(item));
        return false;
    case J_DICT:
    case J_KEYS:
        if (weft__j_hashable(item)) return weft__j_find(run, container.dict, item) != NULL;
        weft__j_fail(run, WEFT_INVALID, "unhashable type: '%s'", weft__j_type(item));
        return false;
    case J_ITERATOR: /* reads up to the item */
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

bool weft__j_relation(struct jrun *run, enum weft__jop op, struct jvalue a, struct jvalue b)
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
        return contains(run, b, a);
    default:
        return !contains(run, b, a);
    }
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
    return weft__j_undefined(run, value, run->tmpl->names[node->name]);
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
    return run->status == WEFT_OK ? slice(run, object, bounds) : (struct jvalue){0};
}

static struct jvalue eval_concat(struct jrun *run, const struct jnode *node)
{
    struct jvalue out = weft__j_str(run, weft__j_eval(run, node->a));
    for (const struct jnode *part = node->b; part != NULL && run->status == WEFT_OK;
         part = part->next)
        out = weft__j_concat(run, out, weft__j_str(run, weft__j_eval(run, part->a)));
    out.markup = false;
    return out;
}

static struct jvalue eval_compare(struct jrun *run, const struct jnode *node)
{
    struct jvalue left = weft__j_eval(run, node->a);
    bool holds = true;
    for (const struct jnode *operand = node->b; operand != NULL && holds && run->status == WEFT_OK;
         operand = operand->next) {
        struct jvalue right = weft__j_eval(run, operand->a);
        run->at = operand;
        if (run->status == WEFT_OK) holds = weft__j_relation(run, operand->op, left, right);
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
    if (value.kind == J_UNDEFINED) return weft__j_fail_undefined(run, value, WEFT_INVALID);
    if (value.kind == J_FLOAT) return node->kind == N_NEG ? weft__j_float(-value.real) : value;
    if (!weft__j_integer(value, &integer))
        return weft__j_fail(run, WEFT_INVALID, "bad operand type for unary %c: '%s'",
                            node->kind == N_NEG ? '-' : '+', weft__j_type(value));
    if (node->kind == N_POS) return weft__j_int(integer);
    return int_binary(run, J_OP_SUB, 0, integer);
}

static struct jvalue eval_binary(struct jrun *run, const struct jnode *node)
{
    struct jvalue left = weft__j_eval(run, node->a);
    if (node->op == J_OP_AND || node->op == J_OP_OR) {
        bool truth = weft__j_truth(run, left), both = node->op == J_OP_AND;
        return run->status == WEFT_OK && truth == both ? weft__j_eval(run, node->b) : left;
    }
    struct jvalue right = weft__j_eval(run, node->b);
    run->at = node;
    return run->status == WEFT_OK ? weft__j_binary(run, node->op, left, right) : left;
}

static struct jvalue eval_node(struct jrun *run, const struct jnode *node)
{
    struct jvalue value;
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
        run->at = node;
        if (run->status != WEFT_OK) return value;
        return weft__j_getattr(run, value, run->tmpl->names[node->name]);
    case N_GETITEM:
        return eval_item(run, node);
    case N_CALL:
        return weft__j_eval_call(run, node, (struct jvalue){0});
    case N_FILTER:
    case N_TEST:
        value = node->a != NULL ? weft__j_eval(run, node->a) : run->block;
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
