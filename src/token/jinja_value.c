/* Values: truth, equality, order, lists, mappings, iteration, and JSON on the way in. */
#include <float.h>
#include <string.h>

#include "jinja.h"

const char *weft__j_type(struct weft__jvalue v)
{
    static const char *const names[] = {
#define X(name, text) text,
        WEFT__J_KINDS(X)
#undef X
    };
    return names[v.kind];
}

struct weft__jvalue weft__j_literal(const char *text) { return weft__j_text(text, strlen(text)); }

bool weft__j_is_text(struct weft__jvalue v, const char *text)
{
    return v.kind == WEFT__J_STRING && v.len == strlen(text) && memcmp(v.text, text, v.len) == 0;
}

bool weft__j_integer(struct weft__jvalue v, int64_t *out)
{
    if (v.kind != WEFT__J_INT && v.kind != WEFT__J_BOOL) return false;
    *out = v.kind == WEFT__J_INT ? v.integer : v.truth;
    return true;
}

bool weft__j_number(struct weft__jvalue v, double *out)
{
    int64_t integer;
    if (v.kind == WEFT__J_FLOAT)
        *out = v.real;
    else if (weft__j_integer(v, &integer))
        *out = (double)integer;
    else
        return false;
    return true;
}

bool weft__j_is_list(struct weft__jvalue v)
{
    return v.kind == WEFT__J_LIST || v.kind == WEFT__J_TUPLE || v.kind == WEFT__J_RANGE;
}

int64_t weft__j_length(struct weft__jvalue v)
{
    switch (v.kind) {
    case WEFT__J_STRING:
        return weft__j_chars(v);
    case WEFT__J_LIST:
    case WEFT__J_TUPLE:
    case WEFT__J_RANGE:
        return v.list->count;
    case WEFT__J_DICT:
    case WEFT__J_KEYS:
    case WEFT__J_VALUES:
    case WEFT__J_ITEMS:
        return v.dict->count;
    case WEFT__J_UNDEFINED:
        return 0;
    default:
        return -1;
    }
}

bool weft__j_truth(struct weft__jrun *run, struct weft__jvalue v)
{
    if (run->status != WEFT_OK) return false;
    switch (v.kind) {
    case WEFT__J_NONE:
        return false;
    case WEFT__J_BOOL:
        return v.truth;
    case WEFT__J_INT:
        return v.integer != 0;
    case WEFT__J_FLOAT:
        return v.real != 0;
    case WEFT__J_STRING:
        return v.len != 0;
    default:
        return weft__j_length(v) != 0;
    }
}

/* ---- undefined ---- */

static struct weft__jvalue new_undefined(struct weft__jrun *run, struct weft__jundefined fields)
{
    struct weft__jundefined *what = weft__j_alloc(run, sizeof *what);
    if (what == NULL) return weft__j_absent();
    *what = fields;
    return (struct weft__jvalue){.kind = WEFT__J_UNDEFINED, .undefined = what};
}

struct weft__jvalue weft__j_undefined(struct weft__jrun *run, struct weft__jvalue object,
                                      struct weft__jvalue key)
{
    const char *type = object.kind == WEFT__J_ABSENT ? NULL : weft__j_type(object);
    return new_undefined(run, (struct weft__jundefined){.type = type, .key = key});
}

struct weft__jvalue weft__j_missing(struct weft__jrun *run, const char *hint)
{
    return new_undefined(run, (struct weft__jundefined){.hint = hint});
}

struct weft__jvalue weft__j_fail_undefined(struct weft__jrun *run, struct weft__jvalue undefined,
                                           weft_status status)
{
    const struct weft__jundefined *what = undefined.undefined;
    if (what->hint != NULL) return weft__j_fail(run, status, "%s", what->hint);
    struct weft__jsink sink = {0};
    weft__j_write_repr(run, &sink, what->key);
    struct weft__jvalue key = weft__j_written(&sink);
    int len = (int)weft__min(key.len, 80);
    if (what->type == NULL) return weft__j_fail(run, status, "%.*s is undefined", len, key.text);
    const char *type = strcmp(what->type, "NoneType") == 0 ? "None" : what->type;
    return weft__j_fail(run, status, "'%s%s' has no %s %.*s", type,
                        type == what->type ? " object" : "",
                        what->key.kind == WEFT__J_STRING ? "attribute" : "element", len, key.text);
}

/* ---- equality and order ---- */

/* false: not two numbers. A long double holds every 64-bit integer. */
static bool order_numbers(struct weft__jvalue a, struct weft__jvalue b, int *order)
{
    long double numbers[2];
    const struct weft__jvalue values[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        int64_t integer;
        bool whole = weft__j_integer(values[i], &integer);
        if (!whole && values[i].kind != WEFT__J_FLOAT) return false;
        numbers[i] = whole ? (long double)integer : (long double)values[i].real;
    }
    *order = numbers[0] < numbers[1]    ? -1
             : numbers[0] > numbers[1]  ? 1
             : numbers[0] == numbers[1] ? 0
                                        : 2;
    return true;
}
_Static_assert(LDBL_MANT_DIG >= 64, "a long double must hold every 64-bit integer");

static int order_text(struct weft__jvalue a, struct weft__jvalue b)
{
    uint32_t len = a.len < b.len ? a.len : b.len;
    int order = len > 0 ? memcmp(a.text, b.text, len) : 0; /* UTF-8 sorts as its characters do */
    if (order == 0) order = a.len < b.len ? -1 : a.len > b.len;
    return order < 0 ? -1 : order > 0;
}

bool weft__j_equal(struct weft__jrun *run, struct weft__jvalue a, struct weft__jvalue b)
{
    int order;
    if (order_numbers(a, b, &order)) return order == 0;
    if (a.kind != b.kind) return false;
    if (a.kind == WEFT__J_STRING)
        return a.len == b.len && weft__j_tick(run, a.len) && order_text(a, b) == 0;
    if (a.kind == WEFT__J_NONE || a.kind == WEFT__J_UNDEFINED || a.list == b.list) return true;
    bool list = weft__j_is_list(a), equal = weft__j_length(a) == weft__j_length(b);
    if ((!list && a.kind != WEFT__J_DICT) || !weft__j_tick(run, 0) || !weft__j_enter(run))
        return false;
    for (uint32_t i = 0; list && equal && i < a.list->count; i++)
        equal = weft__j_equal(run, a.list->items[i], b.list->items[i]);
    for (uint32_t i = 0; !list && equal && i < a.dict->count; i++) {
        struct weft__jvalue *other = weft__j_find(run, b.dict, a.dict->pairs[i].key);
        equal = other != NULL && weft__j_equal(run, a.dict->pairs[i].value, *other);
    }
    run->depth--;
    return equal && run->status == WEFT_OK;
}

int weft__j_compare(struct weft__jrun *run, struct weft__jvalue a, struct weft__jvalue b,
                    const char *op)
{
    int order;
    if (run->status != WEFT_OK) return 2;
    if (order_numbers(a, b, &order)) return order;
    if (a.kind == WEFT__J_UNDEFINED || b.kind == WEFT__J_UNDEFINED) {
        weft__j_fail_undefined(run, a.kind == WEFT__J_UNDEFINED ? a : b, WEFT_INVALID);
        return 2;
    }
    if (a.kind == WEFT__J_STRING && b.kind == WEFT__J_STRING)
        return weft__j_tick(run, a.len < b.len ? a.len : b.len) ? order_text(a, b) : 2;
    if (a.kind != b.kind || (a.kind != WEFT__J_LIST && a.kind != WEFT__J_TUPLE)) {
        weft__j_fail(run, WEFT_INVALID, "'%s' not supported between instances of '%s' and '%s'", op,
                     weft__j_type(a), weft__j_type(b));
        return 2;
    }
    if (!weft__j_tick(run, 0) || !weft__j_enter(run)) return 2;
    uint32_t i = 0, na = a.list->count, nb = b.list->count;
    while (i < na && i < nb && weft__j_equal(run, a.list->items[i], b.list->items[i])) i++;
    order = i < na && i < nb ? weft__j_compare(run, a.list->items[i], b.list->items[i], op)
            : na < nb        ? -1
                             : na > nb;
    run->depth--;
    return run->status == WEFT_OK ? order : 2;
}

/* ---- lists ---- */

struct weft__jvalue weft__j_new_list(struct weft__jrun *run, enum weft__jkind kind)
{
    struct weft__jlist *list = weft__j_alloc(run, sizeof *list);
    return (struct weft__jvalue){.kind = list != NULL ? (uint8_t)kind : WEFT__J_ABSENT,
                                 .list = list};
}

bool weft__j_push(struct weft__jrun *run, struct weft__jlist *list, struct weft__jvalue v)
{
    struct weft__jvalue *items =
        weft__j_room(run, list->items, list->count, &list->cap, sizeof *items);
    if (items == NULL) return false;
    list->items = items;
    list->items[list->count++] = v;
    return run->status == WEFT_OK;
}

/* A tuple of two. */
static struct weft__jvalue pair_of(struct weft__jrun *run, struct weft__jvalue a,
                                   struct weft__jvalue b)
{
    struct weft__jvalue out = weft__j_new_list(run, WEFT__J_TUPLE);
    struct weft__jvalue *items = weft__j_alloc(run, 2 * sizeof *items);
    if (items == NULL) return weft__j_absent();
    items[0] = a;
    items[1] = b;
    *out.list = (struct weft__jlist){.items = items, .count = 2, .cap = 2};
    return out;
}

static bool iterate_text(struct weft__jrun *run, struct weft__jvalue s, struct weft__jlist *out)
{
    for (const char *p = s.text, *end = p + s.len; p < end;) {
        const char *start = p;
        (void)weft__j_char(&p, end);
        if (!weft__j_push(run, out, weft__j_text(start, (size_t)(p - start)))) return false;
    }
    return weft__j_tick(run, s.len);
}

static bool iterate_dict(struct weft__jrun *run, uint8_t kind, const struct weft__jdict *dict,
                         struct weft__jlist *out)
{
    for (uint32_t i = 0; i < dict->count; i++) {
        struct weft__jpair pair = dict->pairs[i];
        struct weft__jvalue item = kind == WEFT__J_VALUES  ? pair.value
                                   : kind == WEFT__J_ITEMS ? pair_of(run, pair.key, pair.value)
                                                           : pair.key;
        if (!weft__j_push(run, out, item)) return false;
    }
    return true;
}

bool weft__j_iterate(struct weft__jrun *run, struct weft__jvalue v, struct weft__jlist *out)
{
    *out = (struct weft__jlist){0};
    if (run->status != WEFT_OK) return false;
    switch (v.kind) {
    case WEFT__J_UNDEFINED:
        return true;
    case WEFT__J_LIST:
    case WEFT__J_TUPLE:
    case WEFT__J_RANGE:
        *out = *v.list;
        return true;
    case WEFT__J_STRING:
        return iterate_text(run, v, out);
    case WEFT__J_DICT:
    case WEFT__J_KEYS:
    case WEFT__J_VALUES:
    case WEFT__J_ITEMS:
        return iterate_dict(run, v.kind, v.dict, out);
    case WEFT__J_ITERATOR:
        if (v.iterator->next < v.iterator->items.count)
            *out = (struct weft__jlist){.items = v.iterator->items.items + v.iterator->next,
                                        .count = v.iterator->items.count - v.iterator->next};
        v.iterator->next = v.iterator->items.count;
        return true;
    default:
        weft__j_fail(run, WEFT_INVALID, "'%s' object is not iterable", weft__j_type(v));
        return false;
    }
}

struct weft__jvalue weft__j_iterator(struct weft__jrun *run, struct weft__jlist items)
{
    struct weft__jiterator *iterator = weft__j_alloc(run, sizeof *iterator);
    if (iterator == NULL) return weft__j_absent();
    iterator->items = items;
    return (struct weft__jvalue){.kind = WEFT__J_ITERATOR, .iterator = iterator};
}

static bool goes_before(struct weft__jrun *run, struct weft__jvalue a, struct weft__jvalue b)
{
    /* What is equal need not have an order, as in Python's comparison of lists of keys. */
    return !weft__j_equal(run, a, b) && weft__j_compare(run, a, b, "<") == -1;
}

/* By insertion, for the few items that templates sort. */
bool weft__j_sort(struct weft__jrun *run, struct weft__jpair *pairs, uint32_t count, bool reverse)
{
    for (uint32_t i = 1; i < count; i++) {
        struct weft__jpair pair = pairs[i];
        uint32_t low = 0, high = i; /* where it goes */
        while (low < high && weft__j_tick(run, 0)) {
            uint32_t middle = low + (high - low) / 2;
            struct weft__jvalue key = pairs[middle].key;
            bool before =
                reverse ? goes_before(run, key, pair.key) : goes_before(run, pair.key, key);
            *(before ? &high : &low) = before ? middle : middle + 1;
        }
        memmove(&pairs[low + 1], &pairs[low], (i - low) * sizeof pair);
        pairs[low] = pair;
        if (!weft__j_tick(run, (i - low) * sizeof pair)) return false;
    }
    return run->status == WEFT_OK;
}

/* ---- mappings: few pairs, looked through one by one ---- */

struct weft__jvalue weft__j_new_dict(struct weft__jrun *run)
{
    struct weft__jdict *dict = weft__j_alloc(run, sizeof *dict);
    return (struct weft__jvalue){.kind = dict != NULL ? WEFT__J_DICT : WEFT__J_ABSENT,
                                 .dict = dict};
}

bool weft__j_hashable(struct weft__jvalue v)
{
    bool hashable = v.kind != WEFT__J_LIST && v.kind != WEFT__J_DICT && v.kind != WEFT__J_KEYS &&
                    v.kind != WEFT__J_ITEMS;
    for (uint32_t i = 0; v.kind == WEFT__J_TUPLE && hashable && i < v.list->count; i++)
        hashable = v.list->items[i].kind != WEFT__J_TUPLE && weft__j_hashable(v.list->items[i]);
    return hashable;
}

struct weft__jvalue *weft__j_find(struct weft__jrun *run, const struct weft__jdict *dict,
                                  struct weft__jvalue key)
{
    uint32_t i = 0;
    while (i < dict->count && !weft__j_equal(run, dict->pairs[i].key, key)) i++;
    (void)weft__j_tick(run, (size_t)i * 16);
    return i < dict->count ? &dict->pairs[i].value : NULL;
}

/* Adds a pair whose key is not there yet. */
static bool add_pair(struct weft__jrun *run, struct weft__jdict *dict, struct weft__jvalue key,
                     struct weft__jvalue value)
{
    struct weft__jpair *pairs =
        weft__j_room(run, dict->pairs, dict->count, &dict->cap, sizeof *pairs);
    if (pairs == NULL) return false;
    dict->pairs = pairs;
    dict->pairs[dict->count++] = (struct weft__jpair){.key = key, .value = value};
    return true;
}

bool weft__j_put(struct weft__jrun *run, struct weft__jdict *dict, struct weft__jvalue key,
                 struct weft__jvalue value)
{
    if (!weft__j_hashable(key)) {
        weft__j_fail(run, WEFT_INVALID, "unhashable type: '%s'", weft__j_type(key));
        return false;
    }
    struct weft__jvalue *found = weft__j_find(run, dict, key);
    if (run->status != WEFT_OK) return false;
    if (found == NULL) return add_pair(run, dict, key, value);
    *found = value;
    return true;
}

/* ---- JSON ---- */

struct weft__jvalue weft__j_from_json(struct weft__jrun *run, json_t *json, int depth)
{
    struct weft__jvalue out;
    const char *key;
    size_t key_len;
    json_t *value;
    if (depth > WEFT__TEMPLATE_MAX_DATA)
        return weft__j_fail(run, WEFT_TOO_LONG, "the conversation nests more than %d deep",
                            WEFT__TEMPLATE_MAX_DATA);
    switch (json_typeof(json)) {
    case JSON_NULL:
        return weft__j_none();
    case JSON_TRUE:
        return weft__j_bool(true);
    case JSON_FALSE:
        return weft__j_bool(false);
    case JSON_INTEGER:
        return weft__j_int(json_integer_value(json));
    case JSON_REAL:
        return weft__j_float(json_real_value(json));
    case JSON_OBJECT:
        out = weft__j_new_dict(run);
        json_object_keylen_foreach (json, key, key_len, value) {
            struct weft__jvalue item = weft__j_from_json(run, value, depth + 1);
            if (run->status != WEFT_OK ||
                !add_pair(run, out.dict, weft__j_text(key, key_len), item))
                break;
        }
        return out;
    case JSON_STRING:
        if (json_string_length(json) > WEFT__TEMPLATE_MAX_OUTPUT) break;
        return weft__j_text(json_string_value(json), json_string_length(json));
    case JSON_ARRAY:
        out = weft__j_new_list(run, WEFT__J_LIST);
        for (size_t i = 0; i < json_array_size(json) && run->status == WEFT_OK; i++)
            (void)weft__j_push(run, out.list,
                               weft__j_from_json(run, json_array_get(json, i), depth + 1));
        return out;
    default:
        break;
    }
    return weft__j_fail(run, WEFT_TOO_LONG, "a text of more than %d MiB in the conversation",
                        WEFT__TEMPLATE_MAX_OUTPUT >> 20);
}
