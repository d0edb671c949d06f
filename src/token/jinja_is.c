/* The tests, for `x is name` and for select and its kin. */
#include <math.h>
#include <string.h>

#include "jinja.h"

static bool is_sequence(struct jvalue v)
{
    return v.kind == J_STRING || v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_DICT ||
           v.kind == J_RANGE || v.kind == J_UNDEFINED;
}

static struct jvalue is_kind(const struct jcall *call, enum weft__jkind kind)
{
    return weft__j_bool(call->self.kind == kind);
}

static struct jvalue is_defined(struct jrun *run, struct jcall *call)
{
    (void)run;
    return weft__j_bool(call->self.kind != J_UNDEFINED);
}

static struct jvalue is_undefined(struct jrun *run, struct jcall *call)
{
    (void)run;
    return is_kind(call, J_UNDEFINED);
}

static struct jvalue is_none(struct jrun *run, struct jcall *call)
{
    (void)run;
    return is_kind(call, J_NONE);
}

static struct jvalue is_boolean(struct jrun *run, struct jcall *call)
{
    (void)run;
    return is_kind(call, J_BOOL);
}

static struct jvalue is_true(struct jrun *run, struct jcall *call)
{
    (void)run;
    return weft__j_bool(call->self.kind == J_BOOL && call->self.truth);
}

static struct jvalue is_false(struct jrun *run, struct jcall *call)
{
    (void)run;
    return weft__j_bool(call->self.kind == J_BOOL && !call->self.truth);
}

static struct jvalue is_integer(struct jrun *run, struct jcall *call)
{
    (void)run;
    return is_kind(call, J_INT);
}

static struct jvalue is_float(struct jrun *run, struct jcall *call)
{
    (void)run;
    return is_kind(call, J_FLOAT);
}

static struct jvalue is_number(struct jrun *run, struct jcall *call)
{
    double value;
    (void)run;
    return weft__j_bool(weft__j_number(call->self, &value));
}

static struct jvalue is_string(struct jrun *run, struct jcall *call)
{
    (void)run;
    return is_kind(call, J_STRING);
}

static struct jvalue is_mapping(struct jrun *run, struct jcall *call)
{
    (void)run;
    return is_kind(call, J_DICT);
}

static struct jvalue is_sequence_test(struct jrun *run, struct jcall *call)
{
    (void)run;
    return weft__j_bool(is_sequence(call->self));
}

static struct jvalue is_iterable(struct jrun *run, struct jcall *call)
{
    uint8_t kind = call->self.kind;
    (void)run;
    return weft__j_bool(is_sequence(call->self) || kind == J_KEYS || kind == J_VALUES ||
                        kind == J_ITEMS || kind == J_ITERATOR || kind == J_LOOP);
}

static struct jvalue is_callable(struct jrun *run, struct jcall *call)
{
    uint8_t kind = call->self.kind;
    (void)run;
    return weft__j_bool(kind == J_FUNCTION || kind == J_METHOD || kind == J_MACRO ||
                        kind == J_LOOP || kind == J_JOINER || kind == J_UNDEFINED);
}

/* ---- numbers ---- */

static struct jvalue divides(struct jrun *run, struct jvalue a, struct jvalue b, int64_t rest)
{
    struct jvalue modulo = weft__j_binary(run, J_OP_MOD, a, b);
    if (run->status != WEFT_OK) return modulo;
    return weft__j_bool(weft__j_equal(run, modulo, weft__j_int(rest)));
}

static struct jvalue is_odd(struct jrun *run, struct jcall *call)
{
    return divides(run, call->self, weft__j_int(2), 1);
}

static struct jvalue is_even(struct jrun *run, struct jcall *call)
{
    return divides(run, call->self, weft__j_int(2), 0);
}

static struct jvalue is_divisibleby(struct jrun *run, struct jcall *call)
{
    return divides(run, call->self, call->arg[0], 0);
}

/* ---- text ---- */

static struct jvalue is_case(struct jrun *run, struct jcall *call, enum jcase want)
{
    struct jvalue s = weft__j_str(run, call->self);
    if (run->status != WEFT_OK || !weft__j_tick(run, (size_t)s.len * 8)) return s;
    return weft__j_bool(weft__j_is_case(s, want));
}

static struct jvalue is_lower(struct jrun *run, struct jcall *call)
{
    return is_case(run, call, J_LOWER);
}

static struct jvalue is_upper(struct jrun *run, struct jcall *call)
{
    return is_case(run, call, J_UPPER);
}

static struct jvalue is_escaped(struct jrun *run, struct jcall *call)
{
    (void)run;
    (void)call;
    return weft__j_bool(false);
}

static struct jvalue not_a_key(struct jrun *run, const struct jcall *call)
{
    return weft__j_fail(run, WEFT_INVALID, "unhashable type: '%s'", weft__j_type(call->self));
}

static struct jvalue is_filter(struct jrun *run, struct jcall *call)
{
    if (!weft__j_hashable(call->self)) return not_a_key(run, call);
    return weft__j_bool(call->self.kind == J_STRING &&
                        weft__j_filter(call->self.text, call->self.len) != NULL);
}

static struct jvalue is_test(struct jrun *run, struct jcall *call)
{
    if (!weft__j_hashable(call->self)) return not_a_key(run, call);
    return weft__j_bool(call->self.kind == J_STRING &&
                        weft__j_test(call->self.text, call->self.len) != NULL);
}

/* ---- comparisons ---- */

static struct jvalue is_equal(struct jrun *run, struct jcall *call)
{
    return weft__j_bool(weft__j_equal(run, call->self, call->arg[0]));
}

static struct jvalue is_unequal(struct jrun *run, struct jcall *call)
{
    return weft__j_bool(!weft__j_equal(run, call->self, call->arg[0]));
}

static struct jvalue is_greater(struct jrun *run, struct jcall *call)
{
    return weft__j_bool(weft__j_compare(run, call->self, call->arg[0], ">") == 1);
}

static struct jvalue is_less(struct jrun *run, struct jcall *call)
{
    return weft__j_bool(weft__j_compare(run, call->self, call->arg[0], "<") == -1);
}

static struct jvalue is_at_least(struct jrun *run, struct jcall *call)
{
    int order = weft__j_compare(run, call->self, call->arg[0], ">=");
    return weft__j_bool(order == 0 || order == 1);
}

static struct jvalue is_at_most(struct jrun *run, struct jcall *call)
{
    return weft__j_bool(weft__j_compare(run, call->self, call->arg[0], "<=") <= 0);
}

static struct jvalue is_in(struct jrun *run, struct jcall *call)
{
    return weft__j_bool(weft__j_contains(run, call->arg[0], call->self));
}

/* Identity, which values have here: equal and of one kind; lists and mappings by address. */
static struct jvalue is_sameas(struct jrun *run, struct jcall *call)
{
    struct jvalue a = call->self, b = call->arg[0];
    if (a.kind != b.kind) return weft__j_bool(false);
    if (a.kind == J_LIST || a.kind == J_DICT) return weft__j_bool(a.list == b.list);
    return weft__j_bool(weft__j_equal(run, a, b));
}

static const struct jfunction tests[] = {
    {"!=", is_unequal, 1, 1, {"other"}},
    {"<", is_less, 1, 1, {"other"}},
    {"<=", is_at_most, 1, 1, {"other"}},
    {"==", is_equal, 1, 1, {"other"}},
    {">", is_greater, 1, 1, {"other"}},
    {">=", is_at_least, 1, 1, {"other"}},
    {"boolean", is_boolean, 0, 0, {0}},
    {"callable", is_callable, 0, 0, {0}},
    {"defined", is_defined, 0, 0, {0}},
    {"divisibleby", is_divisibleby, 1, 1, {"num"}},
    {"eq", is_equal, 1, 1, {"other"}},
    {"equalto", is_equal, 1, 1, {"other"}},
    {"escaped", is_escaped, 0, 0, {0}},
    {"even", is_even, 0, 0, {0}},
    {"false", is_false, 0, 0, {0}},
    {"filter", is_filter, 0, 0, {0}},
    {"float", is_float, 0, 0, {0}},
    {"ge", is_at_least, 1, 1, {"other"}},
    {"greaterthan", is_greater, 1, 1, {"other"}},
    {"gt", is_greater, 1, 1, {"other"}},
    {"in", is_in, 1, 1, {"seq"}},
    {"integer", is_integer, 0, 0, {0}},
    {"iterable", is_iterable, 0, 0, {0}},
    {"le", is_at_most, 1, 1, {"other"}},
    {"lessthan", is_less, 1, 1, {"other"}},
    {"lower", is_lower, 0, 0, {0}},
    {"lt", is_less, 1, 1, {"other"}},
    {"mapping", is_mapping, 0, 0, {0}},
    {"ne", is_unequal, 1, 1, {"other"}},
    {"none", is_none, 0, 0, {0}},
    {"number", is_number, 0, 0, {0}},
    {"odd", is_odd, 0, 0, {0}},
    {"sameas", is_sameas, 1, 1, {"other"}},
    {"sequence", is_sequence_test, 0, 0, {0}},
    {"string", is_string, 0, 0, {0}},
    {"test", is_test, 0, 0, {0}},
    {"true", is_true, 0, 0, {0}},
    {"undefined", is_undefined, 0, 0, {0}},
    {"upper", is_upper, 0, 0, {0}},
};

const struct jfunction *weft__j_test(const char *name, size_t len)
{
    return weft__j_lookup_function(tests, WEFT__COUNT(tests), name, len);
}
