/* The methods of lists, mappings and loops, and the global functions. */
#include <string.h>
#include <time.h>

#include "jinja.h"

/* jinja2's sandbox allows no longer range. */
enum { MAX_RANGE = 100000 };

/* ---- methods ---- */

static struct weft__jvalue dict_get(struct weft__jrun *run, struct weft__jcall *call)
{
    if (!weft__j_hashable(call->arg[0]))
        return weft__j_fail(run, WEFT_INVALID, "unhashable type: '%s'", weft__j_type(call->arg[0]));
    struct weft__jvalue *found = weft__j_find(run, call->self.dict, call->arg[0]);
    if (found != NULL) return *found;
    return call->arg[1].kind != WEFT__J_ABSENT ? call->arg[1] : weft__j_none();
}

/* items(), keys(), values(): mode is the kind of view */
static struct weft__jvalue dict_view(struct weft__jrun *run, struct weft__jcall *call)
{
    (void)run;
    call->self.kind = (uint8_t)call->function->mode;
    return call->self;
}

static struct weft__jvalue loop_cycle(struct weft__jrun *run, struct weft__jcall *call)
{
    if (call->positional.count == 0)
        return weft__j_fail(run, WEFT_INVALID, "no items for cycling given");
    return call->positional.items[call->self.loop->index0 % call->positional.count];
}

static const struct weft__jfunction dict_methods[] = {
    {"get", dict_get, 0, 1, 2, {"key", "default"}},
    {"items", dict_view, WEFT__J_ITEMS, 0, 0, {0}},
    {"keys", dict_view, WEFT__J_KEYS, 0, 0, {0}},
    {"values", dict_view, WEFT__J_VALUES, 0, 0, {0}},
};

static const struct weft__jfunction loop_methods[] = {
    {"cycle", loop_cycle, 0, 0, WEFT__J_VARARGS, {0}},
};

const struct weft__jfunction *weft__j_method(struct weft__jvalue object, struct weft__jvalue name)
{
    switch (object.kind) {
    case WEFT__J_STRING:
        return weft__j_string_method(name);
    case WEFT__J_DICT:
        return weft__j_lookup_function(dict_methods, WEFT__COUNT(dict_methods), name);
    case WEFT__J_LOOP:
        return weft__j_lookup_function(loop_methods, WEFT__COUNT(loop_methods), name);
    default:
        return NULL;
    }
}

/* ---- globals ---- */

static struct weft__jvalue make_range(struct weft__jrun *run, struct weft__jcall *call)
{
    int64_t bounds[3] = {0, 0, 1};
    bool one = call->arg[1].kind == WEFT__J_ABSENT;
    for (int i = 0; i < 3 && call->arg[i].kind != WEFT__J_ABSENT; i++)
        if (!weft__j_int_argument(run, call->arg[i], 0, &bounds[one ? 1 : i])) return call->self;
    int64_t at = bounds[0], step = bounds[2];
    if (step == 0) return weft__j_fail(run, WEFT_INVALID, "range() arg 3 must not be zero");
    struct weft__jvalue out = weft__j_new_list(run, WEFT__J_RANGE);
    while (run->status == WEFT_OK && (step > 0 ? at < bounds[1] : at > bounds[1])) {
        if (out.list->count == MAX_RANGE)
            return weft__j_fail(run, WEFT_TOO_LONG, "a range of more than %d numbers", MAX_RANGE);
        (void)weft__j_push(run, out.list, weft__j_int(at));
        if (__builtin_add_overflow(at, step, &at)) break;
    }
    return out;
}

/* dict() and namespace(), whose mode is the kind they make: a mapping, then names. */
static struct weft__jvalue make_dict(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jvalue out = weft__j_new_dict(run), from;
    const struct weft__jdict *parts[] = {NULL, &call->named};
    if (call->positional.count > 0) {
        from = call->positional.items[0];
        if (call->positional.count > 1 || from.kind != WEFT__J_DICT)
            return weft__j_fail(run, WEFT_UNSUPPORTED, "%s() of other than one mapping and names",
                                call->function->name);
        parts[0] = from.dict;
    }
    for (int part = 0; part < 2; part++)
        for (uint32_t i = 0; parts[part] != NULL && i < parts[part]->count; i++)
            if (run->status != WEFT_OK ||
                !weft__j_put(run, out.dict, parts[part]->pairs[i].key, parts[part]->pairs[i].value))
                return out;
    if (out.kind == WEFT__J_DICT) out.kind = (uint8_t)call->function->mode;
    return out;
}

/* The template's own refusal of a conversation: its message is the error, whole. */
static struct weft__jvalue raise_exception(struct weft__jrun *run, struct weft__jcall *call)
{
    char text[sizeof((weft_error *)0)->text];
    struct weft__jvalue message = weft__j_str(run, call->arg[0]);
    if (run->status != WEFT_OK) return message;
    size_t len = message.len < sizeof text ? message.len : sizeof text - 1;
    while (len < message.len && len > 0 && ((unsigned char)message.text[len] & 0xc0) == 0x80) len--;
    memcpy(text, message.text, len);
    for (size_t i = 0; i < len; i++)
        if (text[i] == '\0') text[i] = ' ';
    text[len] = '\0';
    weft__j_clean(text);
    run->status = weft__fail(run->err, WEFT_INVALID, "%s", text);
    return weft__j_absent();
}

/* Python's datetime.now().strftime(): local time that knows no zone. */
static struct weft__jvalue strftime_now(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jvalue format = call->arg[0];
    struct weft__jsink sink = {0};
    struct tm now;
    if (format.kind != WEFT__J_STRING)
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
        if (c == '-' && i + 1 < format.len) { /* glibc's: no zeros in front */
            directive[1] = c;
            c = format.text[++i];
        }
        directive[directive[1] != '\0' ? 2 : 1] = c;
        if (c == '\0' || strchr("aAbBcdDeFgGhHIjklmMnpPrRStTuUVwWxXyY%", c) == NULL)
            return weft__j_fail(run, WEFT_UNSUPPORTED, "the time format '%s'", directive);
        weft__j_write(run, &sink, text, strftime(text, sizeof text, directive, &now));
    }
    return weft__j_written(&sink);
}

static struct weft__jvalue not_supported(struct weft__jrun *run, struct weft__jcall *call)
{
    return weft__j_fail(run, WEFT_UNSUPPORTED, "%s()", call->function->name);
}

static const struct weft__jfunction globals[] = {
    {"cycler", not_supported, 0, 0, WEFT__J_VARARGS, {0}},
    {"dict", make_dict, WEFT__J_DICT, 0, WEFT__J_VARARGS, {0}},
    {"joiner", not_supported, 0, 0, WEFT__J_VARARGS, {0}},
    {"lipsum", not_supported, 0, 0, WEFT__J_VARARGS, {0}},
    {"namespace", make_dict, WEFT__J_NAMESPACE, 0, WEFT__J_VARARGS, {0}},
    {"raise_exception", raise_exception, 0, 1, 1, {"message"}},
    {"range", make_range, 0, 1, 3, {"start", "stop", "step"}},
    {"strftime_now", strftime_now, 0, 1, 1, {"format"}},
};

const struct weft__jfunction *weft__j_global(struct weft__jvalue name)
{
    return weft__j_lookup_function(globals, WEFT__COUNT(globals), name);
}
