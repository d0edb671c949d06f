/* The filters and tests. What jinja2 makes lazily is made at once here, and can be read once all
 * the same. In the tables, mode says which of its kind an entry is. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "jinja.h"

static bool given(struct weft__jvalue v)
{
    return v.kind != WEFT__J_ABSENT && v.kind != WEFT__J_NONE;
}

static bool flag(struct weft__jrun *run, struct weft__jvalue v)
{
    return v.kind != WEFT__J_ABSENT && weft__j_truth(run, v);
}

bool weft__j_int_argument(struct weft__jrun *run, struct weft__jvalue v, int64_t otherwise,
                          int64_t *out)
{
    *out = otherwise;
    if (v.kind == WEFT__J_ABSENT || weft__j_integer(v, out)) return true;
    if (v.kind == WEFT__J_UNDEFINED)
        weft__j_fail_undefined(run, v, WEFT_INVALID);
    else
        weft__j_fail(run, WEFT_INVALID, "'%s' object cannot be interpreted as an integer",
                     weft__j_type(v));
    return false;
}

/* ---- text ---- */

static struct weft__jvalue do_case(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jvalue s = weft__j_str(run, call->self);
    return run->status == WEFT_OK ? weft__j_recase(run, s, call->function->mode) : s;
}

/* Words begin after -, space and opening brackets: not str.title(). */
static bool parts_words(uint32_t c)
{
    return weft__j_is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
}

static struct weft__jvalue do_title(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jvalue s = weft__j_str(run, call->self);
    struct weft__jsink sink = {0};
    for (const char *p = s.text, *end = p + s.len; run->status == WEFT_OK && p < end;) {
        const char *start = p;
        bool parting = parts_words(weft__j_char(&p, end));
        const char *first = p, *stop = p;
        while (p < end && parts_words(weft__j_char(&p, end)) == parting) stop = p;
        p = stop;
        struct weft__jvalue head = weft__j_text(start, (size_t)(first - start));
        struct weft__jvalue tail = weft__j_text(first, (size_t)(stop - first));
        weft__j_write_str(run, &sink, weft__j_recase(run, head, WEFT__J_UPPER));
        weft__j_write_str(run, &sink, weft__j_recase(run, tail, WEFT__J_LOWER));
    }
    return weft__j_written(&sink);
}

static struct weft__jvalue do_trim(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jvalue s = weft__j_str(run, call->self);
    if (run->status != WEFT_OK) return s;
    struct weft__jvalue out =
        weft__j_strip(run, s, call->arg[0], WEFT__J_STRIP_LEFT | WEFT__J_STRIP_RIGHT);
    out.markup = s.markup;
    return out;
}

enum { PLAIN, SAFE, ESCAPE };

static struct weft__jvalue do_string(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jvalue s = weft__j_str(run, call->self);
    if (call->function->mode == ESCAPE) return weft__j_escape(run, s);
    s.markup = s.markup || call->function->mode == SAFE;
    return s;
}

struct weft__jvalue weft__j_escape(struct weft__jrun *run, struct weft__jvalue s)
{
    static const char *const escapes[][2] = {
        {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&#34;"}, {"'", "&#39;"}};
    for (size_t i = 0; i < WEFT__COUNT(escapes) && !s.markup && run->status == WEFT_OK; i++)
        s = weft__j_replace(run, s, weft__j_literal(escapes[i][0]), weft__j_literal(escapes[i][1]),
                            -1);
    s.markup = true;
    return s;
}

static struct weft__jvalue do_replace(struct weft__jrun *run, struct weft__jcall *call)
{
    int64_t count;
    struct weft__jvalue s = weft__j_str(run, call->self), from = weft__j_str(run, call->arg[0]),
                        to = weft__j_str(run, call->arg[1]);
    if (call->arg[2].kind == WEFT__J_NONE) call->arg[2] = weft__j_absent();
    if (!weft__j_int_argument(run, call->arg[2], -1, &count) || run->status != WEFT_OK) return s;
    s.markup = false;
    return weft__j_replace(run, s, from, to, count);
}

/* arguments: width, first, blank */
static struct weft__jvalue do_indent(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jvalue s = call->self, indent = call->arg[0];
    struct weft__jsink spaces = {0}, sink = {0};
    bool first = flag(run, call->arg[1]), blank = flag(run, call->arg[2]);
    int64_t width;
    if (s.kind == WEFT__J_UNDEFINED) return weft__j_fail_undefined(run, s, WEFT_INVALID);
    if (s.kind != WEFT__J_STRING)
        return weft__j_fail(run, WEFT_INVALID, "indent needs a string, not '%s'", weft__j_type(s));
    if (indent.kind != WEFT__J_STRING) {
        if (!weft__j_int_argument(run, indent, 4, &width)) return s;
        weft__j_fill(run, &spaces, weft__j_literal(" "), width);
        indent = weft__j_written(&spaces);
    }
    /* The newline that jinja2 appends makes an empty last line count. */
    struct weft__jvalue lines = weft__j_lines(run, weft__j_concat(run, s, weft__j_literal("\n")));
    for (uint32_t i = 0; run->status == WEFT_OK && i < lines.list->count; i++) {
        struct weft__jvalue line = lines.list->items[i];
        if (i > 0) weft__j_puts(run, &sink, "\n");
        if (i == 0 ? first : blank || line.len > 0)
            weft__j_write(run, &sink, indent.text, indent.len);
        weft__j_write(run, &sink, line.text, line.len);
        (void)weft__j_tick(run, line.len);
    }
    struct weft__jvalue out = weft__j_written(&sink);
    out.markup = s.markup;
    return out;
}

/* ---- numbers ---- */

/* int() of a text: decimal, white space around it aside; false: it is no number. What is neither
 * plainly the one nor the other fails the run. */
static bool parse_int(struct weft__jrun *run, struct weft__jvalue s, int64_t *out)
{
    char text[24] = "", *end;
    size_t start = weft__j_skip_space(s.text, s.len, 0);
    size_t len = weft__j_trim_end(s.text + start, s.len - start);
    bool digits = false;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s.text[start + i];
        digits = digits || (c >= '0' && c <= '9') || c >= 0x80;
    }
    if (!digits) return false;
    if (len < sizeof text) memcpy(text, s.text + start, len);
    errno = 0;
    *out = strtoll(text, &end, 10);
    if ((size_t)(end - text) != len || errno != 0)
        weft__j_fail(run, WEFT_UNSUPPORTED, "int of a text that is no 64-bit decimal number");
    return true;
}

static struct weft__jvalue do_int(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jvalue self = call->self;
    int64_t out;
    if (self.kind == WEFT__J_UNDEFINED) return weft__j_fail_undefined(run, self, WEFT_INVALID);
    if (weft__j_integer(self, &out)) return weft__j_int(out);
    if (self.kind == WEFT__J_STRING && parse_int(run, self, &out)) return weft__j_int(out);
    if (self.kind != WEFT__J_FLOAT || !isfinite(self.real))
        return call->arg[0].kind != WEFT__J_ABSENT ? call->arg[0] : weft__j_int(0);
    if (fabs(self.real) < 0x1p63) return weft__j_int((int64_t)self.real);
    return weft__j_fail(run, WEFT_UNSUPPORTED, "an integer beyond 64 bits");
}

/* ---- any value ---- */

static struct weft__jvalue do_default(struct weft__jrun *run, struct weft__jcall *call)
{
    bool falsy = flag(run, call->arg[1]) && !weft__j_truth(run, call->self);
    if (call->self.kind != WEFT__J_UNDEFINED && !falsy) return call->self;
    return call->arg[0].kind != WEFT__J_ABSENT ? call->arg[0] : weft__j_text("", 0);
}

static struct weft__jvalue do_length(struct weft__jrun *run, struct weft__jcall *call)
{
    int64_t length = weft__j_length(call->self);
    if (call->self.kind == WEFT__J_LOOP)
        return weft__j_getattr(run, call->self, weft__j_literal("length"));
    if (!weft__j_tick(run, call->self.kind == WEFT__J_STRING ? call->self.len : 0))
        return call->self;
    if (length >= 0) return weft__j_int(length);
    return weft__j_fail(run, WEFT_INVALID, "object of type '%s' has no len()",
                        weft__j_type(call->self));
}

/* ---- lists: one item, all items ---- */

/* mode: 0 the first, -1 the last */
static struct weft__jvalue do_end(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jlist items;
    struct weft__jvalue v = call->self;
    bool last = call->function->mode != 0;
    if (v.kind == WEFT__J_ITERATOR && last)
        return weft__j_fail(run, WEFT_INVALID, "'generator' object is not reversible");
    if (v.kind == WEFT__J_ITERATOR && v.iterator->next < v.iterator->items.count)
        return v.iterator->items.items[v.iterator->next++];
    if (v.kind == WEFT__J_STRING && v.len > 0) return weft__j_getitem(run, v, weft__j_int(-last));
    if (!weft__j_iterate(run, v, &items)) return v;
    if (items.count > 0) return items.items[last ? items.count - 1 : 0];
    return weft__j_missing(run, last ? "No last item, sequence was empty."
                                     : "No first item, sequence was empty.");
}

static struct weft__jvalue list_of(struct weft__jrun *run, struct weft__jlist items)
{
    struct weft__jvalue out = weft__j_new_list(run, WEFT__J_LIST);
    if (out.kind == WEFT__J_LIST) *out.list = items;
    return out;
}

static struct weft__jvalue do_list(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jlist items;
    return weft__j_iterate(run, call->self, &items) ? list_of(run, items) : call->self;
}

static struct weft__jvalue do_items(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jlist items = {0};
    struct weft__jvalue v = call->self;
    if (v.kind != WEFT__J_DICT && v.kind != WEFT__J_UNDEFINED)
        return weft__j_fail(run, WEFT_INVALID, "Can only get item pairs from a mapping.");
    if (v.kind == WEFT__J_DICT) v.kind = WEFT__J_ITEMS;
    return weft__j_iterate(run, v, &items) ? weft__j_iterator(run, items) : v;
}

static struct weft__jvalue do_reverse(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jlist items, out = {0};
    struct weft__jvalue v = call->self;
    if (v.kind == WEFT__J_STRING) return weft__j_fail(run, WEFT_UNSUPPORTED, "reverse of a text");
    if (!weft__j_iterate(run, v, &items)) return v;
    for (uint32_t i = items.count; i > 0; i--)
        if (!weft__j_push(run, &out, items.items[i - 1])) break;
    return v.kind == WEFT__J_ITERATOR ? list_of(run, out) : weft__j_iterator(run, out);
}

/* The value at a path "a.b.0", or at any other key; without a path the item itself. */
static struct weft__jvalue at_path(struct weft__jrun *run, struct weft__jvalue item,
                                   struct weft__jvalue path)
{
    if (!given(path)) return item;
    if (path.kind != WEFT__J_STRING) return weft__j_getitem(run, item, path);
    for (const char *p = path.text, *end = p + path.len; run->status == WEFT_OK; p++) {
        const char *start = p;
        int64_t number = 0;
        bool digits = true;
        for (; p < end && *p != '.'; p++) {
            digits = digits && *p >= '0' && *p <= '9';
            if (digits) number = weft__min(number * 10 + *p - '0', INT32_MAX);
        }
        item = weft__j_getitem(run, item,
                               digits && p > start ? weft__j_int(number)
                                                   : weft__j_text(start, (size_t)(p - start)));
        if (p == end) break;
    }
    return item;
}

/* arguments: d, attribute */
static struct weft__jvalue do_join(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jsink sink = {0};
    struct weft__jlist items;
    struct weft__jvalue by =
        call->arg[0].kind == WEFT__J_ABSENT ? weft__j_text("", 0) : weft__j_str(run, call->arg[0]);
    if (!weft__j_iterate(run, call->self, &items)) return by;
    for (uint32_t i = 0; i < items.count && weft__j_tick(run, by.len); i++) {
        if (i > 0) weft__j_write(run, &sink, by.text, by.len);
        struct weft__jvalue item = at_path(run, items.items[i], call->arg[1]);
        if (run->status == WEFT_OK) weft__j_write_str(run, &sink, item);
    }
    return weft__j_written(&sink);
}

/* ---- order ---- */

/* What to compare an item by: the value at `path`, strings without case unless cased. */
static struct weft__jvalue key_of(struct weft__jrun *run, struct weft__jvalue item,
                                  struct weft__jvalue path, bool cased)
{
    struct weft__jvalue key = at_path(run, item, path);
    return key.kind == WEFT__J_STRING && !cased ? weft__j_recase(run, key, WEFT__J_LOWER) : key;
}

static struct weft__jvalue sorted(struct weft__jrun *run, struct weft__jlist items,
                                  struct weft__jvalue path, bool cased, bool reverse)
{
    struct weft__jpair *pairs = weft__j_alloc(run, (size_t)items.count * sizeof *pairs);
    struct weft__jvalue out = weft__j_new_list(run, WEFT__J_LIST);
    for (uint32_t i = 0; pairs != NULL && i < items.count && weft__j_tick(run, 0); i++)
        pairs[i] = (struct weft__jpair){.key = key_of(run, items.items[i], path, cased),
                                        .value = items.items[i]};
    if (run->status != WEFT_OK || !weft__j_sort(run, pairs, items.count, reverse)) return out;
    for (uint32_t i = 0; i < items.count; i++)
        if (!weft__j_push(run, out.list, pairs[i].value)) break;
    return out;
}

/* arguments: reverse, case_sensitive, attribute */
static struct weft__jvalue do_sort(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jlist items;
    struct weft__jvalue path = call->arg[2];
    if (path.kind == WEFT__J_STRING && memchr(path.text, ',', path.len) != NULL)
        return weft__j_fail(run, WEFT_UNSUPPORTED, "sort by several attributes");
    if (!weft__j_iterate(run, call->self, &items)) return call->self;
    return sorted(run, items, path, flag(run, call->arg[1]), flag(run, call->arg[0]));
}

/* arguments: case_sensitive, by, reverse */
static struct weft__jvalue do_dictsort(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jvalue by =
        call->arg[1].kind == WEFT__J_ABSENT ? weft__j_literal("key") : call->arg[1];
    bool value = weft__j_is_text(by, "value");
    struct weft__jlist items;
    if (!value && !weft__j_is_text(by, "key"))
        return weft__j_fail(run, WEFT_INVALID, "You can only sort by either \"key\" or \"value\"");
    if (call->self.kind != WEFT__J_DICT)
        return weft__j_fail(run, WEFT_INVALID, "dictsort needs a mapping, not '%s'",
                            weft__j_type(call->self));
    call->self.kind = WEFT__J_ITEMS;
    if (!weft__j_iterate(run, call->self, &items)) return by;
    return sorted(run, items, weft__j_int(value), flag(run, call->arg[0]), flag(run, call->arg[2]));
}

/* mode: -1 min, 1 max; arguments: case_sensitive, attribute */
static struct weft__jvalue do_extreme(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jlist items;
    bool cased = flag(run, call->arg[0]);
    int side = call->function->mode;
    if (!weft__j_iterate(run, call->self, &items)) return call->self;
    if (items.count == 0) return weft__j_missing(run, "No aggregated item, sequence was empty.");
    struct weft__jvalue best = items.items[0], best_key = key_of(run, best, call->arg[1], cased);
    for (uint32_t i = 1; i < items.count && weft__j_tick(run, 0); i++) {
        struct weft__jvalue key = key_of(run, items.items[i], call->arg[1], cased);
        if (weft__j_compare(run, key, best_key, side < 0 ? "<" : ">") != side) continue;
        best = items.items[i];
        best_key = key;
    }
    return best;
}

/* arguments: case_sensitive, attribute */
static struct weft__jvalue do_unique(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jlist items, out = {0};
    struct weft__jvalue seen = weft__j_new_dict(run);
    bool cased = flag(run, call->arg[0]);
    if (!weft__j_iterate(run, call->self, &items)) return seen;
    for (uint32_t i = 0; i < items.count && weft__j_tick(run, 0); i++) {
        uint32_t before = seen.dict->count;
        struct weft__jvalue key = key_of(run, items.items[i], call->arg[1], cased);
        if (!weft__j_put(run, seen.dict, key, weft__j_none())) break;
        if (seen.dict->count > before) (void)weft__j_push(run, &out, items.items[i]);
    }
    return weft__j_iterator(run, out);
}

/* ---- map, select and their kin ---- */

/* The arguments from `skip` on. */
static struct weft__jlist rest(const struct weft__jcall *call, uint32_t skip)
{
    struct weft__jlist out = {0};
    if (call->positional.count <= skip) return out;
    out.items = call->positional.items + skip;
    out.count = out.cap = call->positional.count - skip;
    return out;
}

/* The filter or test that an argument names; NULL: failed. */
static const struct weft__jfunction *named(struct weft__jrun *run, const struct weft__jcall *call,
                                           struct weft__jvalue name, bool filter)
{
    const struct weft__jfunction *found = NULL;
    if (name.kind == WEFT__J_STRING) found = filter ? weft__j_filter(name) : weft__j_test(name);
    if (found == NULL)
        weft__j_fail(run, WEFT_UNSUPPORTED, "%s: no %s named '%.*s'", call->function->name,
                     filter ? "filter" : "test",
                     name.kind == WEFT__J_STRING ? (int)weft__min(name.len, 80) : 1,
                     name.kind == WEFT__J_STRING ? name.text : "?");
    return found;
}

/* map('filter', arguments) or map(attribute='path') */
static struct weft__jvalue do_map(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jlist items, out = {0}, arguments = rest(call, 1);
    const struct weft__jfunction *filter = NULL;
    struct weft__jvalue *path = weft__j_find(run, &call->named, weft__j_literal("attribute"));
    if (!weft__j_truth(run, call->self) || !weft__j_iterate(run, call->self, &items))
        return weft__j_iterator(run, out);
    if (call->positional.count > 0 &&
        (filter = named(run, call, call->positional.items[0], true)) == NULL)
        return call->self;
    if (filter == NULL && (path == NULL || call->named.count > 1))
        return weft__j_fail(run, WEFT_UNSUPPORTED, "map: neither a filter nor just an attribute");
    for (uint32_t i = 0; i < items.count && weft__j_tick(run, 0); i++) {
        struct weft__jvalue item =
            filter == NULL ? at_path(run, items.items[i], *path)
                           : weft__j_apply(run, filter, items.items[i], arguments, call->named);
        if (run->status == WEFT_OK) (void)weft__j_push(run, &out, item);
    }
    return weft__j_iterator(run, out);
}

enum { REJECT = 0, SELECT = 1, BY_ATTRIBUTE = 2 };

/* select('test', arguments); by attribute, the first argument is a path whose value is tested. */
static struct weft__jvalue do_select(struct weft__jrun *run, struct weft__jcall *call)
{
    bool by_attribute = (call->function->mode & BY_ATTRIBUTE) != 0;
    struct weft__jlist items, out = {0}, arguments = rest(call, by_attribute);
    const struct weft__jfunction *test = NULL;
    if (by_attribute && call->positional.count == 0)
        return weft__j_fail(run, WEFT_INVALID, "Missing parameter for attribute name");
    if (!weft__j_truth(run, call->self) || !weft__j_iterate(run, call->self, &items))
        return weft__j_iterator(run, out);
    if (arguments.count > 0) {
        if ((test = named(run, call, arguments.items[0], false)) == NULL) return call->self;
        arguments = rest(call, by_attribute + 1u);
    }
    for (uint32_t i = 0; i < items.count && weft__j_tick(run, 0); i++) {
        struct weft__jvalue tested = items.items[i];
        if (by_attribute) tested = at_path(run, tested, call->positional.items[0]);
        if (test != NULL && run->status == WEFT_OK)
            tested = weft__j_apply(run, test, tested, arguments, call->named);
        if (weft__j_truth(run, tested) == ((call->function->mode & SELECT) != 0) &&
            run->status == WEFT_OK)
            (void)weft__j_push(run, &out, items.items[i]);
    }
    return weft__j_iterator(run, out);
}

/* ---- tests ---- */

static struct weft__jvalue is_kind(struct weft__jrun *run, struct weft__jcall *call)
{
    (void)run;
    return weft__j_bool(call->self.kind == call->function->mode);
}

static struct weft__jvalue is_defined(struct weft__jrun *run, struct weft__jcall *call)
{
    (void)run;
    return weft__j_bool(call->self.kind != WEFT__J_UNDEFINED);
}

static struct weft__jvalue is_truth(struct weft__jrun *run, struct weft__jcall *call)
{
    (void)run;
    return weft__j_bool(call->self.kind == WEFT__J_BOOL &&
                        call->self.truth == call->function->mode);
}

static struct weft__jvalue is_number(struct weft__jrun *run, struct weft__jcall *call)
{
    double value;
    (void)run;
    return weft__j_bool(weft__j_number(call->self, &value));
}

/* mode: whether what can be iterated over but has no [] passes, too */
static struct weft__jvalue is_iterable(struct weft__jrun *run, struct weft__jcall *call)
{
    uint8_t kind = call->self.kind;
    (void)run;
    bool items = kind == WEFT__J_STRING || kind == WEFT__J_DICT || kind == WEFT__J_UNDEFINED ||
                 weft__j_is_list(call->self);
    bool others = kind == WEFT__J_KEYS || kind == WEFT__J_VALUES || kind == WEFT__J_ITEMS ||
                  kind == WEFT__J_ITERATOR || kind == WEFT__J_LOOP;
    return weft__j_bool(items || (others && call->function->mode));
}

/* mode: the remainder of a division by the argument, or by 2 */
static struct weft__jvalue is_divided(struct weft__jrun *run, struct weft__jcall *call)
{
    struct weft__jvalue by = call->arg[0].kind != WEFT__J_ABSENT ? call->arg[0] : weft__j_int(2);
    struct weft__jvalue modulo = weft__j_binary(run, WEFT__J_OP_MOD, call->self, by);
    if (run->status != WEFT_OK) return modulo;
    return weft__j_bool(weft__j_equal(run, modulo, weft__j_int(call->function->mode)));
}

static struct weft__jvalue is_related(struct weft__jrun *run, struct weft__jcall *call)
{
    return weft__j_bool(
        weft__j_relation(run, (enum weft__jop)call->function->mode, call->self, call->arg[0]));
}

/* ---- tables ---- */

const struct weft__jfunction *weft__j_lookup_function(const struct weft__jfunction *table,
                                                      size_t count, struct weft__jvalue name)
{
    for (size_t i = 0; i < count; i++)
        if (weft__j_is_text(name, table[i].name)) return &table[i];
    return NULL;
}

static const struct weft__jfunction filters[] = {
    {"capitalize", do_case, WEFT__J_CAPITALIZE, 0, 0, {0}},
    {"count", do_length, 0, 0, 0, {0}},
    {"d", do_default, 0, 0, 2, {"default_value", "boolean"}},
    {"default", do_default, 0, 0, 2, {"default_value", "boolean"}},
    {"dictsort", do_dictsort, 0, 0, 3, {"case_sensitive", "by", "reverse"}},
    {"e", do_string, ESCAPE, 0, 0, {0}},
    {"escape", do_string, ESCAPE, 0, 0, {0}},
    {"first", do_end, 0, 0, 0, {0}},
    {"indent", do_indent, 0, 0, 3, {"width", "first", "blank"}},
    {"int", do_int, 0, 0, 1, {"default"}},
    {"items", do_items, 0, 0, 0, {0}},
    {"join", do_join, 0, 0, 2, {"d", "attribute"}},
    {"last", do_end, -1, 0, 0, {0}},
    {"length", do_length, 0, 0, 0, {0}},
    {"list", do_list, 0, 0, 0, {0}},
    {"lower", do_case, WEFT__J_LOWER, 0, 0, {0}},
    {"map", do_map, 0, 0, WEFT__J_VARARGS, {0}},
    {"max", do_extreme, 1, 0, 2, {"case_sensitive", "attribute"}},
    {"min", do_extreme, -1, 0, 2, {"case_sensitive", "attribute"}},
    {"reject", do_select, REJECT, 0, WEFT__J_VARARGS, {0}},
    {"rejectattr", do_select, REJECT | BY_ATTRIBUTE, 0, WEFT__J_VARARGS, {0}},
    {"replace", do_replace, 0, 2, 3, {"old", "new", "count"}},
    {"reverse", do_reverse, 0, 0, 0, {0}},
    {"safe", do_string, SAFE, 0, 0, {0}},
    {"select", do_select, SELECT, 0, WEFT__J_VARARGS, {0}},
    {"selectattr", do_select, SELECT | BY_ATTRIBUTE, 0, WEFT__J_VARARGS, {0}},
    {"sort", do_sort, 0, 0, 3, {"reverse", "case_sensitive", "attribute"}},
    {"string", do_string, PLAIN, 0, 0, {0}},
    {"title", do_title, 0, 0, 0, {0}},
    {"tojson", weft__j_tojson, 0, 0, 4, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", do_trim, 0, 0, 1, {"chars"}},
    {"unique", do_unique, 0, 0, 2, {"case_sensitive", "attribute"}},
    {"upper", do_case, WEFT__J_UPPER, 0, 0, {0}},
};

static const struct weft__jfunction tests[] = {
    {"!=", is_related, WEFT__J_OP_NE, 1, 1, {"other"}},
    {"<", is_related, WEFT__J_OP_LT, 1, 1, {"other"}},
    {"<=", is_related, WEFT__J_OP_LE, 1, 1, {"other"}},
    {"==", is_related, WEFT__J_OP_EQ, 1, 1, {"other"}},
    {">", is_related, WEFT__J_OP_GT, 1, 1, {"other"}},
    {">=", is_related, WEFT__J_OP_GE, 1, 1, {"other"}},
    {"boolean", is_kind, WEFT__J_BOOL, 0, 0, {0}},
    {"defined", is_defined, 0, 0, 0, {0}},
    {"divisibleby", is_divided, 0, 1, 1, {"num"}},
    {"eq", is_related, WEFT__J_OP_EQ, 1, 1, {"other"}},
    {"equalto", is_related, WEFT__J_OP_EQ, 1, 1, {"other"}},
    {"even", is_divided, 0, 0, 0, {0}},
    {"false", is_truth, false, 0, 0, {0}},
    {"float", is_kind, WEFT__J_FLOAT, 0, 0, {0}},
    {"ge", is_related, WEFT__J_OP_GE, 1, 1, {"other"}},
    {"greaterthan", is_related, WEFT__J_OP_GT, 1, 1, {"other"}},
    {"gt", is_related, WEFT__J_OP_GT, 1, 1, {"other"}},
    {"in", is_related, WEFT__J_OP_IN, 1, 1, {"seq"}},
    {"integer", is_kind, WEFT__J_INT, 0, 0, {0}},
    {"iterable", is_iterable, true, 0, 0, {0}},
    {"le", is_related, WEFT__J_OP_LE, 1, 1, {"other"}},
    {"lessthan", is_related, WEFT__J_OP_LT, 1, 1, {"other"}},
    {"lt", is_related, WEFT__J_OP_LT, 1, 1, {"other"}},
    {"mapping", is_kind, WEFT__J_DICT, 0, 0, {0}},
    {"ne", is_related, WEFT__J_OP_NE, 1, 1, {"other"}},
    {"none", is_kind, WEFT__J_NONE, 0, 0, {0}},
    {"number", is_number, 0, 0, 0, {0}},
    {"odd", is_divided, 1, 0, 0, {0}},
    {"sequence", is_iterable, false, 0, 0, {0}},
    {"string", is_kind, WEFT__J_STRING, 0, 0, {0}},
    {"true", is_truth, true, 0, 0, {0}},
    {"undefined", is_kind, WEFT__J_UNDEFINED, 0, 0, {0}},
};

const struct weft__jfunction *weft__j_filter(struct weft__jvalue name)
{
    return weft__j_lookup_function(filters, WEFT__COUNT(filters), name);
}

const struct weft__jfunction *weft__j_test(struct weft__jvalue name)
{
    return weft__j_lookup_function(tests, WEFT__COUNT(tests), name);
}
