/* Values: truth, equality, order, lists, mappings, iteration, and JSON on the way in. */
#include <float.h>
#include <string.h>

#include "jinja.h"

const char *weft__j_type(struct jvalue v)
{
    static const char *const names[] = {
#define X(name, text) text,
        WEFT__J_KINDS(X)
#undef X
    };
    return names[v.kind];
}

struct jvalue weft__j_literal(const char *text) { return weft__j_text(text, strlen(text)); }

bool weft__j_is_text(struct jvalue v, const char *text)
{
    return v.kind == J_STRING && v.len == strlen(text) && memcmp(v.text, text, v.len) == 0;
}

bool weft__j_integer(struct jvalue v, int64_t *out)
{
    if (v.kind != J_INT && v.kind != J_BOOL) return false;
    *out = v.kind == J_INT ? v.integer : v.truth;
    return true;
}

bool weft__j_number(struct jvalue v, double *out)
{
    int64_t integer;
    if (v.kind == J_FLOAT)
        *out = v.real;
    else if (weft__j_integer(v, &integer))
        *out = (double)integer;
    else
        return false;
    return true;
}

bool weft__j_is_list(struct jvalue v)
{
    return v.kind == J_LIST || v.kind == J_TUPLE || v.kind == J_RANGE;
}

int64_t weft__j_length(struct jvalue v)
{
    switch (v.kind) {
    case J_STRING:
        return weft__j_chars(v);
    case J_LIST:
    case J_TUPLE:
    case J_RANGE:
        return v.list->count;
    case J_DICT:
    case J_KEYS:
    case J_VALUES:
    case J_ITEMS:
        return v.dict->count;
    case J_UNDEFINED:
        return 0;
    default:
        return -1;
    }
}

bool weft__j_truth(struct jrun *run, struct jvalue v)
{
    if (run->status != WEFT_OK) return false;
    switch (v.kind) {
    case J_NONE:
        return false;
    case J_BOOL:
        return v.truth;
    case J_INT:
        return v.integer != 0;
    case J_FLOAT:
        return v.real != 0;
    case J_STRING:
        return v.len != 0;
    default:
        return weft__j_length(v) != 0;
    }
}

/* ---- undefined ---- */

static struct jvalue new_undefined(struct jrun *run, struct jundefined fields)
{
    struct jundefined *what = weft__j_alloc(run, sizeof *what);
    if (what == NULL) return (struct jvalue){0};
    *what = fields;
    return (struct jvalue){.kind = J_UNDEFINED, .undefined = what};
}

struct jvalue weft__j_undefined(struct jrun *run, struct jvalue object, struct jvalue key)
{
    const char *type = object.kind == J_ABSENT ? NULL : weft__j_type(object);
    return new_undefined(run, (struct jundefined){.type = type, .key = key});
}

struct jvalue weft__j_missing(struct jrun *run, const char *hint)
{
    return new_undefined(run, (struct jundefined){.hint = hint});
}

struct jvalue weft__j_fail_undefined(struct jrun *run, struct jvalue undefined, weft_status status)
{
    const struct jundefined *what = undefined.undefined;
    if (what->hint != NULL) return weft__j_fail(run, status, "%s", what->hint);
    struct jsink sink = {0};
    weft__j_write_repr(run, &sink, what->key);
    struct jvalue key = weft__j_written(&sink);
    int len = (int)weft__min(key.len, 80);
    if (what->type == NULL) return weft__j_fail(run, status, "%.*s is undefined", len, key.text);
    const char *type = strcmp(what->type, "NoneType") == 0 ? "None" : what->type;
    return weft__j_fail(run, status, "'%s%s' has no %s %.*s", type,
                        type == what->type ? " object" : "",
                        what->key.kind == J_STRING ? "attribute" : "element", len, key.text);
}

/* ---- equality and order ---- */

/* false: not two numbers. A long double holds every 64-bit integer. */
static bool order_numbers(struct jvalue a, struct jvalue b, int *order)
{
    long double numbers[2];
    const struct jvalue values[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        int64_t integer;
        bool whole = weft__j_integer(values[i], &integer);
        if (!whole && values[i].kind != J_FLOAT) return false;
        numbers[i] = whole ? (long double)integer : (long double)values[i].real;
    }
    *order = numbers[0] < numbers[1]    ? -1
             : numbers[0] > numbers[1]  ? 1
             : numbers[0] == numbers[1] ? 0
                                        : 2;
    return true;
}
_Static_assert(LDBL_MANT_DIG >= 64, "a long double must hold every 64-bit integer");

static int order_text(struct jvalue a, struct jvalue b)
{
    uint32_t len = a.len < b.len ? a.len : b.len;
    int order = len > 0 ? memcmp(a.text, b.text, len) : 0; /* UTF-8 sorts as its characters do */
    if (order == 0) order = a.len < b.len ? -1 : a.len > b.len;
    return order < 0 ? -1 : order > 0;
}

bool weft__j_equal(struct jrun *run, struct jvalue a, struct jvalue b)
{
    int order;
    if (order_numbers(a, b, &order)) return order == 0;
    if (a.kind != b.kind) return false;
    if (a.kind == J_STRING)
        return a.len == b.len && weft__j_tick(run, a.len) && order_text(a, b) == 0;
    if (a.kind == J_NONE || a.kind == J_UNDEFINED || a.list == b.list) return true;
    bool list = weft__j_is_list(a), equal = weft__j_length(a) == weft__j_length(b);
    if ((!list && a.kind != J_DICT) || !weft__j_tick(run, 0) || !weft__j_enter(run)) return false;
    for (uint32_t i = 0; list && equal && i < a.list->count; i++)
        equal = weft__j_equal(run, a.list->items[i], b.list->items[i]);
    for (uint32_t i = 0; !list && equal && i < a.dict->count; i++) {
        struct jvalue *other = weft__j_find(run, b.dict, a.dict->pairs[i].key);
        equal = other != NULL && weft__j_equal(run, a.dict->pairs[i].value, *other);
    }
    run->depth--;
    return equal && run->status == WEFT_OK;
}

int weft__j_compare(struct jrun *run, struct jvalue a, struct jvalue b, const char *op)
{
    int order;
    if (run->status != WEFT_OK) return 2;
    if (order_numbers(a, b, &order)) return order;
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED) {
        weft__j_fail_undefined(run, a.kind == J_UNDEFINED ? a : b, WEFT_INVALID);
        return 2;
    }
    if (a.kind == J_STRING && b.kind == J_STRING)
        return weft__j_tick(run, a.len < b.len ? a.len : b.len) ? order_text(a, b) : 2;
    if (a.kind != b.kind || (a.kind != J_LIST && a.kind != J_TUPLE)) {
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

struct jvalue weft__j_new_list(struct jrun *run, enum weft__jkind kind)
{
    struct jlist *list = weft__j_alloc(run, sizeof *list);
    return (struct jvalue){.kind = list != NULL ? (uint8_t)kind : J_ABSENT, .list = list};
}

bool weft__j_push(struct jrun *run, struct jlist *list, struct jvalue v)
{
    struct jvalue *items = weft__j_room(run, list->items, list->count, &list->cap, sizeof *items);
    if (items == NULL) return false;
    list->items = items;
    list->items[list->count++] = v;
    return run->status == WEFT_OK;
}

/* A tuple of two. */
static struct jvalue pair_of(struct jrun *run, struct jvalue a, struct jvalue b)
{
    struct jvalue out = weft__j_new_list(run, J_TUPLE);
    struct jvalue *items = weft__j_alloc(run, 2 * sizeof *items);
    if (items == NULL) return (struct jvalue){0};
    items[0] = a;
    items[1] = b;
    *out.list = (struct jlist){.items = items, .count = 2, .cap = 2};
    return out;
}

static bool iterate_text(struct jrun *run, struct jvalue s, struct jlist *out)
{
    for (const char *p = s.text, *end = p + s.len; p < end;) {
        const char *start = p;
        (void)weft__j_char(&p, end);
        if (!weft__j_push(run, out, weft__j_text(start, (size_t)(p - start)))) return false;
    }
    return weft__j_tick(run, s.len);
}

static bool iterate_dict(struct jrun *run, uint8_t kind, const struct jdict *dict,
                         struct jlist *out)
{
    for (uint32_t i = 0; i < dict->count; i++) {
        struct jpair pair = dict->pairs[i];
        struct jvalue item = kind == J_VALUES  ? pair.value
                             : kind == J_ITEMS ? pair_of(run, pair.key, pair.value)
                                               : pair.key;
        if (!weft__j_push(run, out, item)) return false;
    }
    return true;
}

bool weft__j_iterate(struct jrun *run, struct jvalue v, struct jlist *out)
{
    *out = (struct jlist){0};
    if (run->status != WEFT_OK) return false;
    switch (v.kind) {
    case J_UNDEFINED:
        return true;
    case J_LIST:
    case J_TUPLE:
    case J_RANGE:
        *out = *v.list;
        return true;
    case J_STRING:
        return iterate_text(run, v, out);
    case J_DICT:
    case J_KEYS:
    case J_VALUES:
    case J_ITEMS:
        return iterate_dict(run, v.kind, v.dict, out);
    case J_ITERATOR:
        if (v.iterator->next < v.iterator->items.count)
            *out = (struct jlist){.items = v.iterator->items.items + v.iterator->next,
                                  .count = v.iterator->items.count - v.iterator->next};
        v.iterator->next = v.iterator->items.count;
        return true;
    default:
        weft__j_fail(run, WEFT_INVALID, "'%s' object is not iterable", weft__j_type(v));
        return false;
    }
}

struct jvalue weft__j_iterator(struct jrun *run, struct jlist items)
{
    struct jiterator *iterator = weft__j_alloc(run, sizeof *iterator);
    if (iterator == NULL) return (struct jvalue){0};
    iterator->items = items;
    return (struct jvalue){.kind = J_ITERATOR, .iterator = iterator};
}

static bool goes_before(struct jrun *run, struct jvalue a, struct jvalue b)
{
    /* What is equal need not have an order, as in Python's comparison of lists of keys. */
    return !weft__j_equal(run, a, b) && weft__j_compare(run, a, b, "<") == -1;
}

/* By insertion, for the few items that templates sort. */
bool weft__j_sort(struct jrun *run, struct jpair *pairs, uint32_t count, bool reverse)
{
    for (uint32_t i = 1; i < count; i++) {
        struct jpair pair = pairs[i];
        uint32_t low = 0, high = i; /* where it goes */
        while (low < high && weft__j_tick(run, 0)) {
            uint32_t middle = low + (high - low) / 2;
            struct jvalue key = pairs[middle].key;
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

struct jvalue weft__j_new_dict(struct jrun *run)
{
    struct jdict *dict = weft__j_alloc(run, sizeof *dict);
    return (struct jvalue){.kind = dict != NULL ? J_DICT : J_ABSENT, .dict = dict};
}

bool weft__j_hashable(struct jvalue v)
{
    bool hashable = v.kind != J_LIST && v.kind != J_DICT && v.kind != J_KEYS && v.kind != J_ITEMS;
    for (uint32_t i = 0; v.kind == J_TUPLE && hashable && i < v.list->count; i++)
        hashable = v.list->items[i].kind != J_TUPLE && weft__j_hashable(v.list->items[i]);
    return hashable;
}

struct jvalue *weft__j_find(struct jrun *run, const struct jdict *dict, struct jvalue key)
{
    uint32_t i = 0;
    while (i < dict->count && !weft__j_equal(run, dict->pairs[i].key, key)) i++;
    (void)weft__j_tick(run, (size_t)i * 16);
    return i < dict->count ? &dict->pairs[i].value : NULL;
}

/* Adds a pair whose key is not there yet. */
static bool add_pair(struct jrun *run, struct jdict *dict, struct jvalue key, struct jvalue value)
{
    struct jpair *pairs = weft__j_room(run, dict->pairs, dict->count, &dict->cap, sizeof *pairs);
    if (pairs == NULL) return false;
    dict->pairs = pairs;
    dict->pairs[dict->count++] = (struct jpair){.key = key, .value = value};
    return true;
}

bool weft__j_put(struct jrun *run, struct jdict *dict, struct jvalue key, struct jvalue value)
{
    if (!weft__j_hashable(key)) {
        weft__j_fail(run, WEFT_INVALID, "unhashable type: '%s'", weft__j_type(key));
        return false;
    }
    struct jvalue *found = weft__j_find(run, dict, key);
    if (run->status != WEFT_OK) return false;
    if (found == NULL) return add_pair(run, dict, key, value);
    *found = value;
    return true;
}

/* ---- JSON ---- */

struct jvalue weft__j_from_json(struct jrun *run, json_t *json, int depth)
{
    struct jvalue out;
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
            struct jvalue item = weft__j_from_json(run, value, depth + 1);
            if (run->status != WEFT_OK ||
                !add_pair(run, out.dict, weft__j_text(key, key_len), item))
                break;
        }
        return out;
    case JSON_STRING:
        if (json_string_length(json) > WEFT__TEMPLATE_MAX_OUTPUT) break;
        return weft__j_text(json_string_value(json), json_string_length(json));
    case JSON_ARRAY:
        out = weft__j_new_list(run, J_LIST);
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
