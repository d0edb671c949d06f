/* The filters over sequences and mappings. What jinja2 makes lazily is made at once here, and can
 * be read once all the same. */
#include <string.h>

#include "jinja.h"

static bool given(struct jvalue v) { return v.kind != J_ABSENT && v.kind != J_NONE; }

static bool flag(struct jrun *run, struct jvalue v)
{
    return v.kind != J_ABSENT && weft__j_truth(run, v);
}

static bool count_argument(struct jrun *run, struct jvalue v, int64_t *out)
{
    if (weft__j_integer(v, out) && *out > 0) return true;
    weft__j_fail(run, WEFT_INVALID, "expected a count of at least 1");
    return false;
}

/* ---- attribute paths: "a.b.0", or a number ---- */

static struct jvalue path_part(struct jvalue text)
{
    int64_t number = 0;
    for (uint32_t i = 0; i < text.len; i++) {
        if (text.text[i] < '0' || text.text[i] > '9' || number > INT32_MAX) return text;
        number = number * 10 + (text.text[i] - '0');
    }
    return text.len > 0 ? weft__j_int(number) : text;
}

/* otherwise: replaces an undefined value on the way, unless absent or none. */
static struct jvalue at_path(struct jrun *run, struct jvalue item, struct jvalue path,
                             struct jvalue otherwise)
{
    if (!given(path)) return item;
    if (path.kind != J_STRING) return weft__j_getitem(run, item, path);
    for (uint32_t start = 0; start <= path.len && run->status == WEFT_OK;) {
        uint32_t end = start;
        while (end < path.len && path.text[end] != '.') end++;
        item = weft__j_getitem(run, item, path_part(weft__j_text(path.text + start, end - start)));
        if (item.kind == J_UNDEFINED && given(otherwise)) item = otherwise;
        start = end + 1;
    }
    return item;
}

/* What to compare an item by: the value at `path`, strings without case unless cased. */
static struct jvalue key_of(struct jrun *run, struct jvalue item, struct jvalue path, bool cased)
{
    struct jvalue key = at_path(run, item, path, (struct jvalue){0});
    return key.kind == J_STRING && !cased ? weft__j_recase(run, key, J_LOWER) : key;
}

/* The values at several paths, split at commas. Always a list: lists of equal values are not asked
 * for their order, so that sorting by what no item has changes nothing, as in jinja2. */
static struct jvalue keys_of(struct jrun *run, struct jvalue item, struct jvalue paths, bool cased)
{
    struct jvalue out = weft__j_new_list(run, J_LIST);
    for (uint32_t start = 0; run->status == WEFT_OK;) {
        uint32_t end = start;
        while (paths.kind == J_STRING && end < paths.len && paths.text[end] != ',') end++;
        struct jvalue path =
            paths.kind == J_STRING ? weft__j_text(paths.text + start, end - start) : paths;
        (void)weft__j_push(run, out.list, key_of(run, item, path, cased));
        if (paths.kind != J_STRING || end >= paths.len) break;
        start = end + 1;
    }
    return out;
}

/* ---- one item, all items ---- */

static struct jvalue do_first(struct jrun *run, struct jcall *call)
{
    struct jlist items;
    struct jvalue v = call->self;
    if (v.kind == J_ITERATOR && v.iterator->next < v.iterator->items.count)
        return v.iterator->items.items[v.iterator->next++];
    if (v.kind == J_STRING && v.len > 0) return weft__j_getitem(run, v, weft__j_int(0));
    if (!weft__j_iterate(run, v, &items)) return v;
    return items.count > 0 ? items.items[0]
                           : weft__j_missing(run, "No first item, sequence was empty.");
}

static struct jvalue do_last(struct jrun *run, struct jcall *call)
{
    struct jlist items;
    struct jvalue v = call->self;
    if (v.kind == J_ITERATOR)
        return weft__j_fail(run, WEFT_INVALID, "'generator' object is not reversible");
    if (v.kind == J_STRING && v.len > 0) return weft__j_getitem(run, v, weft__j_int(-1));
    if (!weft__j_iterate(run, v, &items)) return v;
    return items.count > 0 ? items.items[items.count - 1]
                           : weft__j_missing(run, "No last item, sequence was empty.");
}

static struct jvalue list_of(struct jrun *run, struct jlist items)
{
    struct jvalue out = weft__j_new_list(run, J_LIST);
    if (out.kind == J_LIST) *out.list = items;
    return out;
}

static struct jvalue do_list(struct jrun *run, struct jcall *call)
{
    struct jlist items;
    return weft__j_iterate(run, call->self, &items) ? list_of(run, items) : call->self;
}

static struct jvalue do_items(struct jrun *run, struct jcall *call)
{
    struct jlist items = {0};
    struct jvalue v = call->self;
    if (v.kind != J_DICT && v.kind != J_UNDEFINED)
        return weft__j_fail(run, WEFT_INVALID, "Can only get item pairs from a mapping.");
    if (v.kind == J_DICT) v.kind = J_ITEMS;
    return weft__j_iterate(run, v, &items) ? weft__j_iterator(run, items) : v;
}

static struct jvalue do_reverse(struct jrun *run, struct jcall *call)
{
    struct jlist items, out = {0};
    struct jvalue v = call->self;
    const struct jvalue backwards[3] = {weft__j_none(), weft__j_none(), weft__j_int(-1)};
    if (v.kind == J_STRING) return weft__j_slice(run, v, backwards);
    if (!weft__j_iterate(run, v, &items)) return v;
    for (uint32_t i = items.count; i > 0; i--)
        if (!weft__j_push(run, &out, items.items[i - 1])) break;
    return v.kind == J_ITERATOR ? list_of(run, out) : weft__j_iterator(run, out);
}

static struct jvalue do_join(struct jrun *run, struct jcall *call)
{
    struct jsink sink = {0};
    struct jlist items;
    struct jvalue by =
        call->arg[0].kind == J_ABSENT ? weft__j_text("", 0) : weft__j_str(run, call->arg[0]);
    if (!weft__j_iterate(run, call->self, &items)) return by;
    for (uint32_t i = 0; i < items.count && weft__j_tick(run, by.len); i++) {
        if (i > 0) weft__j_write(run, &sink, by.text, by.len);
        struct jvalue item = at_path(run, items.items[i], call->arg[1], (struct jvalue){0});
        if (run->status == WEFT_OK) weft__j_write_str(run, &sink, item);
    }
    return weft__j_written(&sink);
}

/* ---- order ---- */

static int ascending(struct jrun *run, const struct jpair *a, const struct jpair *b)
{
    return weft__j_compare(run, a->key, b->key, "<") < 0 ? -1 : 0;
}

static int descending(struct jrun *run, const struct jpair *a, const struct jpair *b)
{
    return ascending(run, b, a);
}

/* Pairs of sort key and item; NULL: failed. */
static struct jpair *keyed(struct jrun *run, const struct jlist *items, struct jvalue paths,
                           bool cased, bool several)
{
    struct jpair *pairs = weft__j_alloc(run, (size_t)items->count * sizeof *pairs);
    for (uint32_t i = 0; pairs != NULL && i < items->count; i++) {
        pairs[i].key = (several ? keys_of : key_of)(run, items->items[i], paths, cased);
        pairs[i].value = items->items[i];
        if (!weft__j_tick(run, 0)) return NULL;
    }
    return pairs;
}

static struct jvalue sorted(struct jrun *run, struct jpair *pairs, uint32_t count, bool reverse)
{
    struct jvalue out = weft__j_new_list(run, J_LIST);
    if (pairs == NULL || !weft__j_sort(run, pairs, count, reverse ? descending : ascending))
        return out;
    for (uint32_t i = 0; i < count; i++)
        if (!weft__j_push(run, out.list, pairs[i].value)) break;
    return out;
}

/* arguments: reverse, case_sensitive, attribute */
static struct jvalue do_sort(struct jrun *run, struct jcall *call)
{
    struct jlist items;
    if (!weft__j_iterate(run, call->self, &items)) return call->self;
    struct jpair *pairs = keyed(run, &items, call->arg[2], flag(run, call->arg[1]), true);
    return sorted(run, pairs, items.count, flag(run, call->arg[0]));
}

/* arguments: case_sensitive, by, reverse */
static struct jvalue do_dictsort(struct jrun *run, struct jcall *call)
{
    struct jvalue by = call->arg[1].kind == J_ABSENT ? weft__j_literal("key") : call->arg[1];
    bool value = weft__j_is_text(by, "value");
    struct jlist items;
    if (!value && !weft__j_is_text(by, "key"))
        return weft__j_fail(run, WEFT_INVALID, "You can only sort by either \"key\" or \"value\"");
    if (call->self.kind != J_DICT)
        return weft__j_fail(run, WEFT_INVALID, "dictsort needs a mapping, not '%s'",
                            weft__j_type(call->self));
    call->self.kind = J_ITEMS;
    if (!weft__j_iterate(run, call->self, &items)) return by;
    struct jpair *pairs = keyed(run, &items, weft__j_int(value), flag(run, call->arg[0]), false);
    return sorted(run, pairs, items.count, flag(run, call->arg[2]));
}

/* arguments: case_sensitive, attribute */
static struct jvalue extreme(struct jrun *run, struct jcall *call, int side)
{
    struct jlist items;
    bool cased = flag(run, call->arg[0]);
    if (!weft__j_iterate(run, call->self, &items)) return call->self;
    if (items.count == 0) return weft__j_missing(run, "No aggregated item, sequence was empty.");
    struct jvalue best = items.items[0], best_key = key_of(run, best, call->arg[1], cased);
    for (uint32_t i = 1; i < items.count && weft__j_tick(run, 0); i++) {
        struct jvalue key = key_of(run, items.items[i], call->arg[1], cased);
        if (weft__j_compare(run, key, best_key, side < 0 ? "<" : ">") != side) continue;
        best = items.items[i];
        best_key = key;
    }
    return best;
}

static struct jvalue do_min(struct jrun *run, struct jcall *call) { return extreme(run, call, -1); }

static struct jvalue do_max(struct jrun *run, struct jcall *call) { return extreme(run, call, 1); }

/* arguments: case_sensitive, attribute */
static struct jvalue do_unique(struct jrun *run, struct jcall *call)
{
    struct jlist items, out = {0};
    struct jvalue seen = weft__j_new_dict(run);
    bool cased = flag(run, call->arg[0]);
    if (!weft__j_iterate(run, call->self, &items)) return seen;
    for (uint32_t i = 0; i < items.count && weft__j_tick(run, 0); i++) {
        uint32_t before = seen.dict->count;
        struct jvalue key = key_of(run, items.items[i], call->arg[1], cased);
        if (!weft__j_put(run, seen.dict, key, weft__j_none())) break;
        if (seen.dict->count > before) (void)weft__j_push(run, &out, items.items[i]);
    }
    return weft__j_iterator(run, out);
}

/* arguments: attribute, default, case_sensitive */
static struct jvalue do_groupby(struct jrun *run, struct jcall *call)
{
    struct jvalue path = call->arg[0], otherwise = call->arg[1],
                  out = weft__j_new_list(run, J_LIST);
    bool cased = flag(run, call->arg[2]);
    struct jlist items;
    if (!weft__j_iterate(run, call->self, &items)) return out;
    struct jpair *pairs = weft__j_alloc(run, (size_t)items.count * sizeof *pairs);
    for (uint32_t i = 0; pairs != NULL && i < items.count && weft__j_tick(run, 0); i++) {
        struct jvalue key = at_path(run, items.items[i], path, otherwise);
        if (key.kind == J_STRING && !cased) key = weft__j_recase(run, key, J_LOWER);
        pairs[i] = (struct jpair){.key = key, .value = items.items[i]};
    }
    if (pairs == NULL || !weft__j_sort(run, pairs, items.count, ascending)) return out;
    for (uint32_t start = 0, end; start < items.count && run->status == WEFT_OK; start = end) {
        struct jvalue group = weft__j_new_list(run, J_LIST);
        for (end = start; end < items.count && run->status == WEFT_OK &&
                          (end == start || weft__j_equal(run, pairs[start].key, pairs[end].key));
             end++)
            (void)weft__j_push(run, group.list, pairs[end].value);
        struct jvalue key = at_path(run, pairs[start].value, path, otherwise);
        struct jvalue pair = weft__j_pair(run, key, group);
        if (run->status == WEFT_OK) (void)weft__j_push(run, out.list, pair);
    }
    return out;
}

/* arguments: attribute, start */
static struct jvalue do_sum(struct jrun *run, struct jcall *call)
{
    struct jlist items;
    struct jvalue total = call->arg[1].kind == J_ABSENT ? weft__j_int(0) : call->arg[1];
    if (!weft__j_iterate(run, call->self, &items)) return total;
    if (total.kind == J_STRING)
        return weft__j_fail(run, WEFT_INVALID,
                            "sum() can't sum strings [use ''.join(seq) instead]");
    for (uint32_t i = 0; i < items.count && weft__j_tick(run, 0); i++) {
        struct jvalue item = at_path(run, items.items[i], call->arg[0], (struct jvalue){0});
        if (run->status == WEFT_OK) total = weft__j_binary(run, J_OP_ADD, total, item);
    }
    return total;
}

/* ---- chunks ---- */

static struct jvalue part_of(struct jrun *run, const struct jlist *items, int64_t start,
                             int64_t end)
{
    struct jvalue out = weft__j_new_list(run, J_LIST);
    for (int64_t i = start; i < end && out.kind != J_ABSENT; i++)
        if (!weft__j_push(run, out.list, items->items[i])) break;
    return out;
}

static struct jvalue do_batch(struct jrun *run, struct jcall *call)
{
    struct jlist items, out = {0};
    int64_t size;
    if (!weft__j_iterate(run, call->self, &items) || !count_argument(run, call->arg[0], &size))
        return call->self;
    for (int64_t start = 0; start < items.count && run->status == WEFT_OK;) {
        int64_t left = items.count - start, count = weft__min(size, left);
        struct jvalue part = part_of(run, &items, start, start + count);
        for (; given(call->arg[1]) && count < size && weft__j_tick(run, 0); count++)
            if (!weft__j_push(run, part.list, call->arg[1])) break;
        if (run->status == WEFT_OK) (void)weft__j_push(run, &out, part);
        start += weft__min(size, left);
    }
    return weft__j_iterator(run, out);
}

static struct jvalue do_slice(struct jrun *run, struct jcall *call)
{
    struct jlist items, out = {0};
    int64_t slices;
    if (!weft__j_iterate(run, call->self, &items) || !count_argument(run, call->arg[0], &slices))
        return call->self;
    int64_t each = items.count / slices, extra = items.count % slices, start = 0;
    for (int64_t i = 0; i < slices && weft__j_tick(run, 0); i++) {
        int64_t end = start + each + (i < extra);
        struct jvalue part = part_of(run, &items, start, end);
        if (run->status == WEFT_OK && given(call->arg[1]) && i >= extra)
            (void)weft__j_push(run, part.list, call->arg[1]);
        if (run->status == WEFT_OK) (void)weft__j_push(run, &out, part);
        start = end;
    }
    return weft__j_iterator(run, out);
}

/* ---- map, select and their kin ---- */

/* The arguments from `skip` on. */
static struct jlist rest(const struct jcall *call, uint32_t skip)
{
    struct jlist out = {0};
    if (call->positional.count <= skip) return out;
    out.items = call->positional.items + skip;
    out.count = out.cap = call->positional.count - skip;
    return out;
}

static struct jvalue map_attribute(struct jrun *run, struct jcall *call, const struct jlist *items)
{
    struct jvalue *path = weft__j_find(run, &call->named, weft__j_literal("attribute"));
    struct jvalue *otherwise = weft__j_find(run, &call->named, weft__j_literal("default"));
    struct jlist out = {0};
    if (path == NULL) return weft__j_fail(run, WEFT_INVALID, "map requires a filter argument");
    if (call->named.count > 1u + (otherwise != NULL))
        return weft__j_fail(run, WEFT_INVALID, "map: unexpected keyword argument");
    for (uint32_t i = 0; i < items->count && weft__j_tick(run, 0); i++) {
        struct jvalue item = at_path(run, items->items[i], *path,
                                     otherwise != NULL ? *otherwise : (struct jvalue){0});
        if (run->status == WEFT_OK) (void)weft__j_push(run, &out, item);
    }
    return weft__j_iterator(run, out);
}

static struct jvalue do_map(struct jrun *run, struct jcall *call)
{
    struct jlist items, out = {0}, arguments = rest(call, 1);
    if (!weft__j_truth(run, call->self) || !weft__j_iterate(run, call->self, &items))
        return weft__j_iterator(run, out);
    if (call->positional.count == 0) return map_attribute(run, call, &items);
    struct jvalue name = call->positional.items[0];
    const struct jfunction *filter =
        name.kind == J_STRING ? weft__j_filter(name.text, name.len) : NULL;
    if (filter == NULL)
        return weft__j_fail(run, WEFT_UNSUPPORTED, "map: no filter named '%.*s'",
                            name.kind == J_STRING ? (int)weft__min(name.len, 80) : 1,
                            name.kind == J_STRING ? name.text : "?");
    for (uint32_t i = 0; i < items.count && weft__j_tick(run, 0); i++) {
        struct jvalue item = weft__j_apply(run, filter, items.items[i], arguments, call->named);
        if (run->status == WEFT_OK) (void)weft__j_push(run, &out, item);
    }
    return weft__j_iterator(run, out);
}

/* attributes: the first argument is a path whose value is tested. */
static struct jvalue choose(struct jrun *run, struct jcall *call, bool attributes, bool want)
{
    struct jlist items, out = {0}, arguments = rest(call, attributes);
    const struct jfunction *test = NULL;
    if (attributes && call->positional.count == 0)
        return weft__j_fail(run, WEFT_INVALID, "Missing parameter for attribute name");
    if (!weft__j_truth(run, call->self) || !weft__j_iterate(run, call->self, &items))
        return weft__j_iterator(run, out);
    if (arguments.count > 0) {
        struct jvalue name = arguments.items[0];
        test = name.kind == J_STRING ? weft__j_test(name.text, name.len) : NULL;
        if (test == NULL)
            return weft__j_fail(run, WEFT_UNSUPPORTED, "%s: no test named '%.*s'",
                                call->function->name,
                                name.kind == J_STRING ? (int)weft__min(name.len, 80) : 1,
                                name.kind == J_STRING ? name.text : "?");
        arguments = rest(call, attributes + 1u);
    }
    for (uint32_t i = 0; i < items.count && weft__j_tick(run, 0); i++) {
        struct jvalue tested = items.items[i];
        if (attributes)
            tested = at_path(run, tested, call->positional.items[0], (struct jvalue){0});
        if (test != NULL && run->status == WEFT_OK)
            tested = weft__j_apply(run, test, tested, arguments, call->named);
        if (weft__j_truth(run, tested) == want && run->status == WEFT_OK)
            (void)weft__j_push(run, &out, items.items[i]);
    }
    return weft__j_iterator(run, out);
}

static struct jvalue do_select(struct jrun *run, struct jcall *call)
{
    return choose(run, call, false, true);
}

static struct jvalue do_reject(struct jrun *run, struct jcall *call)
{
    return choose(run, call, false, false);
}

static struct jvalue do_selectattr(struct jrun *run, struct jcall *call)
{
    return choose(run, call, true, true);
}

static struct jvalue do_rejectattr(struct jrun *run, struct jcall *call)
{
    return choose(run, call, true, false);
}

static const struct jfunction filters[] = {
    {"batch", do_batch, 1, 2, {"linecount", "fill_with"}},
    {"dictsort", do_dictsort, 0, 3, {"case_sensitive", "by", "reverse"}},
    {"first", do_first, 0, 0, {0}},
    {"groupby", do_groupby, 1, 3, {"attribute", "default", "case_sensitive"}},
    {"items", do_items, 0, 0, {0}},
    {"join", do_join, 0, 2, {"d", "attribute"}},
    {"last", do_last, 0, 0, {0}},
    {"list", do_list, 0, 0, {0}},
    {"map", do_map, 0, J_VARARGS, {0}},
    {"max", do_max, 0, 2, {"case_sensitive", "attribute"}},
    {"min", do_min, 0, 2, {"case_sensitive", "attribute"}},
    {"reject", do_reject, 0, J_VARARGS, {0}},
    {"rejectattr", do_rejectattr, 0, J_VARARGS, {0}},
    {"reverse", do_reverse, 0, 0, {0}},
    {"select", do_select, 0, J_VARARGS, {0}},
    {"selectattr", do_selectattr, 0, J_VARARGS, {0}},
    {"slice", do_slice, 1, 2, {"slices", "fill_with"}},
    {"sort", do_sort, 0, 3, {"reverse", "case_sensitive", "attribute"}},
    {"sum", do_sum, 0, 2, {"attribute", "start"}},
    {"unique", do_unique, 0, 2, {"case_sensitive", "attribute"}},
};

const struct jfunction *weft__j_list_filter(const char *name, size_t len)
{
    return weft__j_lookup_function(filters, WEFT__COUNT(filters), name, len);
}
