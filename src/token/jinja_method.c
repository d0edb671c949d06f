/* Methods of lists, mappings, loops and cyclers, and the global functions. */
#include <string.h>
#include <time.h>

#include "jinja.h"

/* jinja2's sandbox allows no longer range. */
enum { MAX_RANGE = 100000 };

static struct jvalue integer_wanted(struct jrun *run, struct jvalue v)
{
    if (v.kind == J_UNDEFINED) return weft__j_fail_undefined(run, v);
    return weft__j_fail(run, WEFT_INVALID, "'%s' object cannot be interpreted as an integer",
                        weft__j_type(v));
}

/* ---- lists, tuples, ranges ---- */

static struct jvalue list_count(struct jrun *run, struct jcall *call)
{
    struct jlist items;
    int64_t count = 0;
    if (!weft__j_iterate(run, call->self, &items)) return call->self;
    for (uint32_t i = 0; i < items.count && weft__j_tick(run, 0); i++)
        count += weft__j_equal(run, items.items[i], call->arg[0]);
    return weft__j_int(count);
}

static struct jvalue list_index(struct jrun *run, struct jcall *call)
{
    struct jlist items;
    int64_t start = 0, end = INT64_MAX;
    if (!weft__j_iterate(run, call->self, &items)) return call->self;
    if (call->arg[1].kind != J_ABSENT && !weft__j_integer(call->arg[1], &start))
        return integer_wanted(run, call->arg[1]);
    if (call->arg[2].kind != J_ABSENT && !weft__j_integer(call->arg[2], &end))
        return integer_wanted(run, call->arg[2]);
    if (start < 0) start = weft__max(start + items.count, 0);
    if (end < 0) end += items.count;
    for (int64_t i = start; i < items.count && i < end && weft__j_tick(run, 0); i++)
        if (weft__j_equal(run, items.items[i], call->arg[0])) return weft__j_int(i);
    return weft__j_fail(run, WEFT_INVALID, "the value is not in the %s", weft__j_type(call->self));
}

static struct jvalue same(struct jrun *run, struct jcall *call)
{
    (void)run; /* copy(): values do not change */
    return call->self;
}

static const struct jfunction list_methods[] = {
    {"copy", same, 0, 0, {0}},
    {"count", list_count, 1, 1, {"value"}},
    {"index", list_index, 1, 3, {"value", "start", "stop"}},
};

/* ---- mappings ---- */

static struct jvalue dict_get(struct jrun *run, struct jcall *call)
{
    if (!weft__j_hashable(call->arg[0]))
        return weft__j_fail(run, WEFT_INVALID, "unhashable type: '%s'", weft__j_type(call->arg[0]));
    struct jvalue *found = weft__j_find(run, call->self.dict, call->arg[0]);
    if (found != NULL) return *found;
    return call->arg[1].kind != J_ABSENT ? call->arg[1] : weft__j_none();
}

static struct jvalue view(struct jvalue dict, enum weft__jkind kind)
{
    return (struct jvalue){.kind = (uint8_t)kind, .dict = dict.dict};
}

static struct jvalue dict_items(struct jrun *run, struct jcall *call)
{
    (void)run;
    return view(call->self, J_ITEMS);
}

static struct jvalue dict_keys(struct jrun *run, struct jcall *call)
{
    (void)run;
    return view(call->self, J_KEYS);
}

static struct jvalue dict_values(struct jrun *run, struct jcall *call)
{
    (void)run;
    return view(call->self, J_VALUES);
}

static const struct jfunction dict_methods[] = {
    {"copy", same, 0, 0, {0}},          {"get", dict_get, 1, 2, {"key", "default"}},
    {"items", dict_items, 0, 0, {0}},   {"keys", dict_keys, 0, 0, {0}},
    {"values", dict_values, 0, 0, {0}},
};

/* ---- loops and cyclers ---- */

static struct jvalue loop_cycle(struct jrun *run, struct jcall *call)
{
    if (call->positional.count == 0)
        return weft__j_fail(run, WEFT_INVALID, "no items for cycling given");
    return call->positional.items[call->self.loop->index0 % call->positional.count];
}

static struct jvalue loop_changed(struct jrun *run, struct jcall *call)
{
    struct jloop *loop = call->self.loop;
    struct jvalue now = weft__j_new_list(run, J_TUPLE);
    for (uint32_t i = 0; i < call->positional.count && now.kind != J_ABSENT; i++)
        if (!weft__j_push(run, now.list, call->positional.items[i])) break;
    bool changed = loop->changed.kind == J_ABSENT || !weft__j_equal(run, loop->changed, now);
    if (changed) loop->changed = now;
    return weft__j_bool(changed);
}

static const struct jfunction loop_methods[] = {
    {"changed", loop_changed, 0, J_VARARGS, {0}},
    {"cycle", loop_cycle, 0, J_VARARGS, {0}},
};

static struct jvalue cycler_next(struct jrun *run, struct jcall *call)
{
    struct jiterator *cycler = call->self.iterator;
    (void)run;
    struct jvalue out = cycler->items.items[cycler->next];
    cycler->next = (cycler->next + 1) % cycler->items.count;
    return out;
}

static struct jvalue cycler_reset(struct jrun *run, struct jcall *call)
{
    (void)run;
    call->self.iterator->next = 0;
    return weft__j_none();
}

static const struct jfunction cycler_methods[] = {
    {"next", cycler_next, 0, 0, {0}},
    {"reset", cycler_reset, 0, 0, {0}},
};

const struct jfunction *weft__j_method(struct jvalue object, const char *name, size_t len)
{
    switch (object.kind) {
    case J_STRING:
        return weft__j_string_method(name, len);
    case J_DICT:
        return weft__j_lookup_function(dict_methods, WEFT__COUNT(dict_methods), name, len);
    case J_LIST:
        return weft__j_lookup_function(list_methods, WEFT__COUNT(list_methods), name, len);
    case J_TUPLE: /* without copy */
    case J_RANGE:
        return weft__j_lookup_function(list_methods + 1, WEFT__COUNT(list_methods) - 1, name, len);
    case J_LOOP:
        return weft__j_lookup_function(loop_methods, WEFT__COUNT(loop_methods), name, len);
    case J_CYCLER:
        return weft__j_lookup_function(cycler_methods, WEFT__COUNT(cycler_methods), name, len);
    default:
        return NULL;
    }
}

/* ---- globals ---- */

static struct jvalue make_range(struct jrun *run, struct jcall *call)
{
    int64_t bounds[3] = {0, 0, 1};
    bool one = call->arg[1].kind == J_ABSENT;
    for (int i = 0; i < 3 && call->arg[i].kind != J_ABSENT; i++)
        if (!weft__j_integer(call->arg[i], &bounds[one ? 1 : i]))
            return integer_wanted(run, call->arg[i]);
    struct jrange *range = weft__j_alloc(run, sizeof *range);
    if (range == NULL) return (struct jvalue){0};
    *range = (struct jrange){.start = bounds[0], .stop = bounds[1], .step = bounds[2]};
    if (range->step == 0) return weft__j_fail(run, WEFT_INVALID, "range() arg 3 must not be zero");
    uint64_t low = (uint64_t)bounds[0], high = (uint64_t)bounds[1];
    uint64_t stride = range->step > 0 ? (uint64_t)range->step : -(uint64_t)range->step;
    uint64_t span = range->step > 0 ? (bounds[1] > bounds[0] ? high - low : 0)
                                    : (bounds[0] > bounds[1] ? low - high : 0);
    uint64_t count = span == 0 ? 0 : (span - 1) / stride + 1;
    if (count > MAX_RANGE)
        return weft__j_fail(run, WEFT_TOO_LONG, "a range of more than %d numbers", MAX_RANGE);
    range->count = (int64_t)count;
    return (struct jvalue){.kind = J_RANGE, .range = range};
}

/* dict() and namespace(): a mapping or pairs, then names. */
static struct jvalue make_dict(struct jrun *run, struct jcall *call)
{
    struct jvalue out = weft__j_new_dict(run);
    if (call->positional.count > 1)
        return weft__j_fail(run, WEFT_INVALID, "%s expected at most 1 argument, got %u",
                            call->function->name, call->positional.count);
    if (call->positional.count == 1 && run->status == WEFT_OK) {
        struct jvalue from = call->positional.items[0];
        struct jlist items, pair;
        if (from.kind == J_DICT) from.kind = J_ITEMS;
        if (!weft__j_iterate(run, from, &items)) return out;
        for (uint32_t i = 0; i < items.count && weft__j_iterate(run, items.items[i], &pair); i++) {
            if (pair.count != 2)
                return weft__j_fail(run, WEFT_INVALID,
                                    "dictionary update sequence element #%u has length %u; 2 is "
                                    "required",
                                    i, pair.count);
            if (!weft__j_put(run, out.dict, pair.items[0], pair.items[1])) break;
        }
    }
    for (uint32_t i = 0; i < call->named.count && run->status == WEFT_OK; i++)
        (void)weft__j_put(run, out.dict, call->named.pairs[i].key, call->named.pairs[i].value);
    return out;
}

static struct jvalue make_namespace(struct jrun *run, struct jcall *call)
{
    struct jvalue out = make_dict(run, call);
    if (out.kind == J_DICT) out.kind = J_NAMESPACE;
    return out;
}

static struct jvalue make_cycler(struct jrun *run, struct jcall *call)
{
    struct jlist items = {0};
    if (call->positional.count == 0)
        return weft__j_fail(run, WEFT_INVALID, "at least one item has to be provided");
    for (uint32_t i = 0; i < call->positional.count; i++)
        if (!weft__j_push(run, &items, call->positional.items[i])) break;
    struct jvalue out = weft__j_iterator(run, items);
    if (out.kind == J_ITERATOR) out.kind = J_CYCLER;
    return out;
}

static struct jvalue make_joiner(struct jrun *run, struct jcall *call)
{
    struct jlist items = {0};
    (void)weft__j_push(run, &items,
                       call->arg[0].kind != J_ABSENT ? call->arg[0] : weft__j_literal(", "));
    struct jvalue out = weft__j_iterator(run, items);
    if (out.kind == J_ITERATOR) out.kind = J_JOINER;
    return out;
}

/* The template's own refusal of a conversation: its message is the error, whole. */
static struct jvalue raise_exception(struct jrun *run, struct jcall *call)
{
    char text[sizeof((weft_error *)0)->text];
    struct jvalue message = weft__j_str(run, call->arg[0]);
    if (run->status != WEFT_OK) return message;
    size_t len = message.len < sizeof text ? message.len : sizeof text - 1;
    while (len < message.len && len > 0 && ((unsigned char)message.text[len] & 0xc0) == 0x80) len--;
    memcpy(text, message.text, len);
    for (size_t i = 0; i < len; i++)
        if (text[i] == '\0') text[i] = ' ';
    text[len] = '\0';
    weft__j_clean(text);
    run->status = weft__fail(run->err, WEFT_INVALID, "%s", text);
    return (struct jvalue){0};
}

/* Python's datetime.now().strftime(): local time that knows no zone. */
static struct jvalue strftime_now(struct jrun *run, struct jcall *call)
{
    struct jvalue format = call->arg[0];
    struct jsink sink = {0};
    struct tm now;
    if (format.kind != J_STRING)
        return weft__j_fail(run, WEFT_INVALID, "strftime() argument 1 must be str, not %s",
                            weft__j_type(format));
    if (localtime_r(&run->now, &now) == NULL)
        return weft__j_fail(run, WEFT_INVALID, "the time cannot be represented");
    for (uint32_t i = 0; i < format.len && weft__j_tick(run, 0); i++) {
        char directive[4] = "%", text[128];
        if (format.text[i] != '%' || i + 1 == format.len) {
            weft__j_write(run, &sink, format.text + i, 1);
            continue;
        }
        char c = format.text[++i];
        if (strchr("-_0^#", c) != NULL && i + 1 < format.len) { /* glibc's flags */
            directive[1] = c;
            c = format.text[++i];
        }
        directive[directive[1] != '\0' ? 2 : 1] = c;
        if (c == 'z' || c == 'Z') continue;
        if (c == '\0' || strchr("aAbBcCdDefFgGhHIjklmMnpPrRsStTuUVwWxXyY%", c) == NULL)
            return weft__j_fail(run, WEFT_UNSUPPORTED, "the time format '%s'", directive);
        if (c == 'f')
            weft__j_puts(run, &sink, "000000");
        else
            weft__j_write(run, &sink, text, strftime(text, sizeof text, directive, &now));
    }
    return weft__j_written(&sink);
}

static const struct jfunction globals[] = {
    {"cycler", make_cycler, 0, J_VARARGS, {0}},
    {"dict", make_dict, 0, J_VARARGS, {0}},
    {"joiner", make_joiner, 0, 1, {"sep"}},
    {"namespace", make_namespace, 0, J_VARARGS, {0}},
    {"raise_exception", raise_exception, 1, 1, {"message"}},
    {"range", make_range, 1, 3, {"start", "stop", "step"}},
    {"strftime_now", strftime_now, 1, 1, {"format"}},
};

const struct jfunction *weft__j_global(const char *name, size_t len)
{
    return weft__j_lookup_function(globals, WEFT__COUNT(globals), name, len);
}
