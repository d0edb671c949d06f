/* Binary operators and `in`. Integers are 64 bits wide: beyond that is an error, not a wrap. */
#include <math.h>
#include <string.h>

#include "jinja.h"

static const char *spelling(enum weft__jop op)
{
    static const char *const names[] = {
#define X(name, text) text,
        WEFT__J_OPS(X)
#undef X
    };
    return names[op];
}

static struct jvalue overflow(struct jrun *run)
{
    return weft__j_fail(run, WEFT_UNSUPPORTED, "an integer beyond 64 bits");
}

static struct jvalue zero_division(struct jrun *run)
{
    return weft__j_fail(run, WEFT_INVALID, "division by zero");
}

static struct jvalue int_power(struct jrun *run, int64_t base, int64_t exponent)
{
    int64_t out = 1;
    for (; exponent > 0; exponent /= 2) {
        if (exponent % 2 == 1 && __builtin_mul_overflow(out, base, &out)) return overflow(run);
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return overflow(run);
    }
    return weft__j_int(out);
}

/* Python rounds the true quotient once; doubles suffice while both are exact. */
static struct jvalue int_quotient(int64_t a, int64_t b)
{
    const int64_t exact = (int64_t)1 << 53;
    if (a >= -exact && a <= exact && b >= -exact && b <= exact)
        return weft__j_float((double)a / (double)b);
    return weft__j_float((double)((long double)a / (long double)b));
}

static struct jvalue int_binary(struct jrun *run, enum weft__jop op, int64_t a, int64_t b)
{
    int64_t out = 0;
    switch (op) {
    case J_OP_ADD:
        return __builtin_add_overflow(a, b, &out) ? overflow(run) : weft__j_int(out);
    case J_OP_SUB:
        return __builtin_sub_overflow(a, b, &out) ? overflow(run) : weft__j_int(out);
    case J_OP_MUL:
        return __builtin_mul_overflow(a, b, &out) ? overflow(run) : weft__j_int(out);
    case J_OP_POW:
        return int_power(run, a, b);
    default:
        break;
    }
    if (b == 0) return zero_division(run);
    if (op == J_OP_DIV) return int_quotient(a, b);
    if (b == -1) { /* the one quotient that overflows, and C leaves it undefined */
        if (op == J_OP_MOD) return weft__j_int(0);
        return a == INT64_MIN ? overflow(run) : weft__j_int(-a);
    }
    int64_t quotient = a / b, rest = a % b;
    if (rest != 0 && (rest < 0) != (b < 0)) {
        quotient--;
        rest += b;
    }
    return weft__j_int(op == J_OP_MOD ? rest : quotient);
}

/* Python's float_divmod. */
static struct jvalue float_divmod(enum weft__jop op, double a, double b)
{
    double rest = fmod(a, b), quotient = (a - rest) / b;
    if (rest == 0) {
        rest = copysign(0, b);
    } else if ((b < 0) != (rest < 0)) {
        rest += b;
        quotient -= 1;
    }
    if (op == J_OP_MOD) return weft__j_float(rest);
    if (quotient == 0) return weft__j_float(copysign(0, a / b));
    double whole = floor(quotient);
    return weft__j_float(quotient - whole > 0.5 ? whole + 1 : whole);
}

static struct jvalue float_power(struct jrun *run, double a, double b)
{
    if (a == 0 && b < 0)
        return weft__j_fail(run, WEFT_INVALID, "0.0 cannot be raised to a negative power");
    if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
        return weft__j_fail(run, WEFT_UNSUPPORTED, "a complex number");
    double out = pow(a, b);
    if (isinf(out) && isfinite(a) && isfinite(b))
        return weft__j_fail(run, WEFT_INVALID, "numerical result out of range");
    return weft__j_float(out);
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
    case J_OP_POW:
        return float_power(run, a, b);
    case J_OP_DIV:
        return b == 0 ? zero_division(run) : weft__j_float(a / b);
    default:
        return b == 0 ? zero_division(run) : float_divmod(op, a, b);
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

static struct jvalue join_lists(struct jrun *run, struct jvalue a, struct jvalue b)
{
    struct jvalue out = weft__j_new_list(run, a.kind);
    for (uint32_t i = 0; i < a.list->count && run->status == WEFT_OK; i++)
        (void)weft__j_push(run, out.list, a.list->items[i]);
    for (uint32_t i = 0; i < b.list->count && run->status == WEFT_OK; i++)
        (void)weft__j_push(run, out.list, b.list->items[i]);
    return out;
}

static struct jvalue repeat(struct jrun *run, struct jvalue what, int64_t times)
{
    if (what.kind != J_STRING) {
        struct jvalue out = weft__j_new_list(run, what.kind);
        uint32_t count = what.list->count;
        for (int64_t t = 0; count > 0 && t < times && run->status == WEFT_OK; t++)
            for (uint32_t i = 0; i < count && run->status == WEFT_OK; i++)
                (void)weft__j_push(run, out.list, what.list->items[i]);
        return out;
    }
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
    if (a_int && b_int && !(op == J_OP_POW && ib < 0)) return int_binary(run, op, ia, ib);
    if (weft__j_number(a, &fa) && weft__j_number(b, &fb)) return float_binary(run, op, fa, fb);
    if (op == J_OP_MOD && a.kind == J_STRING) return weft__j_percent(run, a, b);
    if (a.kind == J_UNDEFINED) return weft__j_fail_undefined(run, a);
    if (b.kind == J_UNDEFINED) return weft__j_fail_undefined(run, b);
    if (op == J_OP_ADD && a.kind == b.kind && a_sequence)
        return a.kind == J_STRING ? join_strings(run, a, b) : join_lists(run, a, b);
    if (op == J_OP_MUL && a_sequence && b_int) return repeat(run, a, ib);
    if (op == J_OP_MUL && a_int && b_sequence) return repeat(run, b, ia);
    if (op == J_OP_ADD && a_sequence)
        return weft__j_fail(run, WEFT_INVALID, "can only concatenate %s (not \"%s\") to %s",
                            weft__j_type(a), weft__j_type(b), weft__j_type(a));
    return weft__j_fail(run, WEFT_INVALID, "unsupported operand type(s) for %s: '%s' and '%s'",
                        spelling(op), weft__j_type(a), weft__j_type(b));
}

static bool list_contains(struct jrun *run, const struct jlist *items, struct jvalue item)
{
    for (uint32_t i = 0; i < items->count && weft__j_tick(run, 0); i++)
        if (weft__j_equal(run, items->items[i], item)) return true;
    return false;
}

bool weft__j_contains(struct jrun *run, struct jvalue container, struct jvalue item)
{
    struct jlist items;
    switch (container.kind) {
    case J_STRING:
        if (item.kind == J_STRING) return weft__j_search(run, container, 0, item) >= 0;
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
        return weft__j_iterate(run, container, &items) && list_contains(run, &items, item);
    }
}
