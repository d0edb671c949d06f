/* JSON Schema -> grammar. The texts of the grammar are a part of those the schema allows:
 * properties come in the order of the schema, and json.c has fewer ways to write a value than JSON.
 * A keyword that would have to be ignored is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"

enum {
    REFS_MAX = 1024,      /* schemas that are referred to */
    NESTING_MAX = 256,    /* schemas in schemas */
    KEY_MAX = 512,        /* bytes of a key in a reference */
    PATH_SHOWN = 200,     /* bytes of the end of a path */
    NAME_MAX_BYTES = 512, /* of a property beside which others are allowed */
    DISJOINT_DEPTH = 8,
    COMPARISONS_MAX = 1 << 20, /* of names and values, in all */
};

/* Bits. */
enum type {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8,
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ANY = 127 & ~TYPE_INTEGER, /* which are numbers */
};

struct compiler {
    struct weft__grammar *g;
    struct weft__rules rules;
    const json_t *root, *near; /* near: the closest schema around with definitions of its own */
    struct weft__buf path;     /* where in the schema */
    weft_error *err;
    struct {
        const json_t *schema;
        int32_t rule;
    } ref[REFS_MAX];
    int refs, depth;
    size_t comparisons; /* made so far */
};

static weft_status compile(struct compiler *c, const json_t *schema, int32_t *out);

/* ---- errors ---- */

static weft_status refuse(const struct compiler *c, weft_status status, const char *what,
                          const char *name)
{
    const char *path = c->path.len > 0 ? c->path.data : "/";
    size_t cut = c->path.len > PATH_SHOWN ? c->path.len - PATH_SHOWN : 0;
    return weft__fail(c->err, status, "schema at %s%s: %s%s%.100s%s", cut > 0 ? "..." : "",
                      path + cut, what, name != NULL ? " \"" : "", name != NULL ? name : "",
                      name != NULL ? "\"" : "");
}

/* Appends a step to the path; the caller restores the length. */
static size_t enter(struct compiler *c, const char *name)
{
    size_t before = c->path.len;
    weft__buf_printf(&c->path, "/%.64s", name);
    return before;
}

static void leave(struct compiler *c, size_t before)
{
    c->path.len = before;
    if (c->path.data != NULL) c->path.data[before] = '\0';
}

/* What grows with the square of a schema is bounded by its sum. */
static bool spend(struct compiler *c, size_t a, size_t b)
{
    size_t product;
    if (!weft__mul_size(a, b, &product) || product > COMPARISONS_MAX - c->comparisons) return false;
    c->comparisons += product;
    return true;
}

/* ---- keywords ---- */

static const char *const annotations[] = {
    "title",   "description", "default",  "examples", "deprecated",  "readOnly",      "writeOnly",
    "$schema", "$id",         "$comment", "$defs",    "definitions", "discriminator", NULL,
};
static const char *const of_objects[] = {"properties", "required", "additionalProperties", NULL};
static const char *const of_arrays[] = {"items", "prefixItems", "minItems", "maxItems", NULL};
static const char *const of_strings[] = {"minLength", "maxLength", NULL};
static const char *const of_integers[] = {"minimum", "exclusiveMinimum", "maximum",
                                          "exclusiveMaximum", NULL};
static const char *const choices[] = {"anyOf", "oneOf", "allOf", NULL};

static bool listed(const char *const *list, const char *name)
{
    while (*list != NULL && strcmp(*list, name) != 0) list++;
    return *list != NULL;
}

/* The first of the list that the schema has; NULL: none. */
static const char *first_of(const json_t *schema, const char *const *list)
{
    while (*list != NULL && json_object_get(schema, *list) == NULL) list++;
    return *list;
}

static bool is_of_types(const char *name)
{
    return strcmp(name, "type") == 0 || listed(of_objects, name) || listed(of_arrays, name) ||
           listed(of_strings, name) || listed(of_integers, name);
}

/* Refuses any keyword that is neither an annotation nor in the list; NULL: those of types. */
static weft_status only(const struct compiler *c, const json_t *schema, const char *const *list)
{
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)schema, name, value)
        if (!listed(annotations, name) && !(list != NULL ? listed(list, name) : is_of_types(name)))
            return refuse(c, WEFT_UNSUPPORTED,
                          list == NULL ? "unsupported keyword" : "unsupported combination with",
                          name);
    return WEFT_OK;
}

static unsigned type_bit(const char *name)
{
    static const char *const names[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    for (unsigned i = 0; name != NULL && i < WEFT__COUNT(names); i++)
        if (strcmp(names[i], name) == 0) return 1U << i;
    return 0;
}

/* The types that `type` names, or those whose keywords are there; 0: it is wrong. */
static unsigned types_of(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *entry;
    size_t i;
    unsigned types = 0;
    if (json_is_array(type)) {
        json_array_foreach (type, i, entry) {
            unsigned bit = type_bit(json_string_value(entry));
            if (bit == 0) return 0;
            types |= bit;
        }
        return types;
    }
    if (type != NULL) return type_bit(json_string_value(type));
    if (first_of(schema, of_objects) != NULL) types |= TYPE_OBJECT;
    if (first_of(schema, of_arrays) != NULL) types |= TYPE_ARRAY;
    if (first_of(schema, of_strings) != NULL) types |= TYPE_STRING;
    return types != 0 ? types : TYPE_ANY;
}

static unsigned type_of_value(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL:
        return json_real_value(value) == floor(json_real_value(value)) ? TYPE_INTEGER : TYPE_NUMBER;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    default:
        return TYPE_OBJECT;
    }
}

/* With the integers that are among the numbers. */
static unsigned widen(unsigned types)
{
    return (types & TYPE_NUMBER) != 0 ? types | TYPE_INTEGER : types;
}

/* A count from 0 to WEFT__REPEAT_MAX; absent leaves *out alone. */
static weft_status read_count(const struct compiler *c, const json_t *schema, const char *name,
                              int64_t *out)
{
    const json_t *value = json_object_get(schema, name);
    if (value == NULL) return WEFT_OK;
    double number = json_number_value(value);
    if (!json_is_number(value) || number < 0 || number > 1e15 || number != (double)(int64_t)number)
        return refuse(c, WEFT_INVALID, "not a count:", name);
    if (number > WEFT__REPEAT_MAX)
        return refuse(c, WEFT_UNSUPPORTED, "more than 8192 is too much for", name);
    *out = (int64_t)number;
    return WEFT_OK;
}

/* ---- strings, arrays ---- */

static weft_status compile_string(struct compiler *c, const json_t *schema, int32_t *out)
{
    int64_t low = 0, high = -1;
    WEFT__TRY(read_count(c, schema, "minLength", &low));
    WEFT__TRY(read_count(c, schema, "maxLength", &high));
    if (high >= 0 && high < low)
        return refuse(c, WEFT_INVALID, "no string meets minLength and maxLength", NULL);
    *out = low == 0 && high < 0 ? weft__rule_any_string(&c->rules)
                                : weft__rule_string_of(&c->rules, low, high);
    return WEFT_OK;
}

/* The first items each have a schema; from the last of them on it is a plain repetition. */
static weft_status compile_tuple(struct compiler *c, const json_t *prefix, int32_t item,
                                 int64_t low, int64_t high, int32_t *out)
{
    struct weft__grammar *g = c->g;
    int64_t count = (int64_t)json_array_size(prefix);
    int32_t end = weft__rule_closing(&c->rules, "]"), separator = weft__rule_comma(&c->rules),
            here = weft__grammar_rule(g);
    int32_t bracket = weft__grammar_chars(g, "[");
    *out = weft__grammar_rule(g);
    WEFT__ADD(g, *out, bracket, weft__rule_space(&c->rules), here);
    for (int64_t i = 0; i < count; i++) {
        int32_t rule = 0, next = weft__grammar_rule(g);
        if (i >= low) WEFT__ADD(g, here, end);
        if (high >= 0 && i >= high) return WEFT_OK;
        char name[40];
        (void)snprintf(name, sizeof name, "prefixItems/%lld", (long long)i);
        size_t before = enter(c, name);
        WEFT__TRY(compile(c, json_array_get(prefix, (size_t)i), &rule));
        leave(c, before);
        if (i > 0)
            WEFT__ADD(g, here, separator, rule, next);
        else
            WEFT__ADD(g, here, rule, next);
        here = next;
    }
    low = weft__max(low - count, 0);
    if (high >= 0) high = weft__max(high - count, 0);
    int32_t follower = weft__grammar_rule(g);
    if (item != 0) WEFT__ADD(g, follower, separator, item);
    WEFT__ADD(g, here, weft__rule_repeat(g, follower, 0, end, low, item != 0 ? high : 0));
    return WEFT_OK;
}

static weft_status compile_array(struct compiler *c, const json_t *schema, int32_t *out)
{
    const json_t *items = json_object_get(schema, "items");
    const json_t *prefix = json_object_get(schema, "prefixItems");
    int64_t low = 0, high = -1;
    int32_t item = 0;
    WEFT__TRY(read_count(c, schema, "minItems", &low));
    WEFT__TRY(read_count(c, schema, "maxItems", &high));
    if (prefix != NULL && (!json_is_array(prefix) || json_array_size(prefix) == 0))
        return refuse(c, WEFT_INVALID, "not a list of schemas:", "prefixItems");
    int64_t most = json_is_false(items) ? (int64_t)json_array_size(prefix) : -1;
    if (most >= 0 && (high < 0 || high > most)) high = most;
    if (high >= 0 && high < low)
        return refuse(c, WEFT_INVALID, "no array meets minItems and maxItems", NULL);
    if (items == NULL) {
        item = weft__rule_any(&c->rules);
    } else if (!json_is_false(items)) {
        size_t before = enter(c, "items");
        WEFT__TRY(compile(c, items, &item));
        leave(c, before);
    }
    if (prefix != NULL) return compile_tuple(c, prefix, item, low, high, out);
    *out = weft__rule_array_of(&c->rules, item, low, high);
    return WEFT_OK;
}

/* ---- objects ---- */

struct names { /* of the properties that an additional one must not have */
    const char *name[WEFT__REPEAT_MAX];
    size_t count;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The rest of a key behind `depth` bytes that names from .. to - 1, sorted, share: any key but
 * those. Escapes may follow only where no name can be meant any more. */
static int32_t other_key(struct compiler *c, const struct names *names, size_t from, size_t to,
                         size_t depth)
{
    struct weft__grammar *g = c->g;
    struct weft__byte_set other = weft__rule_plain_ascii();
    int32_t quote = weft__grammar_chars(g, "\""), rule = weft__grammar_rule(g);
    int32_t rest = weft__rule_repeat(g, weft__rule_character(&c->rules), 0, quote, 0, -1);
    bool ends = names->name[from][depth] == '\0', beyond = false;
    bool inside = ((unsigned char)names->name[from][depth] & 0xc0) == 0x80; /* a character */
    for (size_t i = ends ? from + 1 : from, next; i < to; i = next) {
        unsigned char byte = (unsigned char)names->name[i][depth];
        for (next = i; next < to && (unsigned char)names->name[next][depth] == byte;) next++;
        other.bit[byte / 64] &= ~(UINT64_C(1) << (byte % 64));
        beyond |= byte >= 0x80;
        if (byte == '"' || byte == '\\' || byte < ' ') continue; /* escaped: never written here */
        WEFT__ADD(g, rule, weft__grammar_range(g, byte, byte),
                  other_key(c, names, i, next, depth + 1));
    }
    if (inside) return rule;
    WEFT__ADD(g, rule, weft__grammar_set(g, other), rest);
    if (!ends) WEFT__ADD(g, rule, quote);
    if (!beyond) {
        int32_t character_beyond = weft__grammar_rule(g);
        weft__rule_add_beyond_ascii(g, character_beyond);
        WEFT__ADD(g, rule, character_beyond, rest);
    }
    return rule;
}

/* Any key but those of the properties. */
static weft_status compile_other_key(struct compiler *c, const json_t *properties, int32_t *out)
{
    struct names names = {.count = 0};
    const char *name;
    json_t *property;
    json_object_foreach ((json_t *)(uintptr_t)properties, name, property) {
        if (names.count == WEFT__COUNT(names.name) || strlen(name) > NAME_MAX_BYTES)
            return refuse(c, WEFT_UNSUPPORTED,
                          "too much to tell additional properties from:", name);
        names.name[names.count++] = name;
    }
    if (names.count == 0) {
        *out = weft__rule_any_string(&c->rules);
        return WEFT_OK;
    }
    qsort(names.name, names.count, sizeof *names.name, compare_names);
    *out = weft__grammar_rule(c->g);
    WEFT__ADD(c->g, *out, weft__grammar_chars(c->g, "\""), other_key(c, &names, 0, names.count, 0));
    return WEFT_OK;
}

/* ADDITIONAL_KEY: VALUE; 0 in *out: there may be none. */
static weft_status compile_additional(struct compiler *c, const json_t *schema,
                                      const json_t *properties, int32_t *out)
{
    const json_t *additional = json_object_get(schema, "additionalProperties");
    int32_t key = 0, value = 0;
    *out = 0;
    /* Absent, it allows others; but who lists properties wants those. */
    if (json_is_false(additional) || (additional == NULL && json_object_size(properties) > 0))
        return WEFT_OK;
    size_t before = enter(c, "additionalProperties");
    if (additional == NULL)
        value = weft__rule_any(&c->rules);
    else
        WEFT__TRY(compile(c, additional, &value));
    leave(c, before);
    WEFT__TRY(compile_other_key(c, properties, &key));
    *out = weft__rule_member_of(&c->rules, key, value);
    return WEFT_OK;
}

static bool is_required(const json_t *required, const char *name)
{
    size_t i;
    json_t *entry;
    json_array_foreach (required, i, entry)
        if (json_is_string(entry) && strcmp(json_string_value(entry), name) == 0) return true;
    return false;
}

static weft_status check_object(const struct compiler *c, const json_t *properties,
                                const json_t *required)
{
    size_t i;
    json_t *entry;
    if (properties != NULL && !json_is_object(properties))
        return refuse(c, WEFT_INVALID, "not an object:", "properties");
    if (required != NULL && !json_is_array(required))
        return refuse(c, WEFT_INVALID, "not a list:", "required");
    json_array_foreach (required, i, entry) {
        if (!json_is_string(entry))
            return refuse(c, WEFT_INVALID, "not a list of names:", "required");
        if (json_object_get(properties, json_string_value(entry)) == NULL)
            return refuse(c, WEFT_UNSUPPORTED,
                          "required, but not in properties:", json_string_value(entry));
    }
    return WEFT_OK;
}

static weft_status compile_property(struct compiler *c, const char *name, const json_t *schema,
                                    int32_t *out)
{
    int32_t key = weft__grammar_rule(c->g), value = 0;
    json_t *text = json_string(name);
    char *quoted = text != NULL ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
    json_decref(text);
    if (quoted == NULL) return weft__fail_oom(c->err, strlen(name), "a property's name");
    weft__grammar_text(c->g, key, quoted, strlen(quoted));
    free(quoted);
    size_t before = enter(c, "properties");
    (void)enter(c, name);
    WEFT__TRY(compile(c, schema, &value));
    leave(c, before);
    *out = weft__rule_member_of(&c->rules, key, value);
    return WEFT_OK;
}

/* Two chains over the properties: `first`, while none was written, and `more`, after one was. */
static weft_status compile_object(struct compiler *c, const json_t *schema, int32_t *out)
{
    struct weft__grammar *g = c->g;
    const json_t *properties = json_object_get(schema, "properties");
    const json_t *required = json_object_get(schema, "required");
    const char *name;
    json_t *property;
    int32_t other = 0;
    WEFT__TRY(check_object(c, properties, required));
    if (!spend(c, json_object_size(properties), json_array_size(required)))
        return refuse(c, WEFT_UNSUPPORTED, "too many properties are required", NULL);
    WEFT__TRY(compile_additional(c, schema, properties, &other));
    if (json_object_size(properties) == 0 && other != 0) {
        *out = weft__rule_object_of(&c->rules, other);
        return WEFT_OK;
    }
    int32_t first = weft__grammar_rule(g), more = weft__grammar_rule(g);
    int32_t separator = weft__rule_comma(&c->rules), end = weft__rule_closing(&c->rules, "}"),
            brace = weft__grammar_chars(g, "{");
    *out = weft__grammar_rule(g);
    WEFT__ADD(g, *out, brace, weft__rule_space(&c->rules), first);
    json_object_foreach ((json_t *)(uintptr_t)properties, name, property) {
        int32_t member = 0, next_first = weft__grammar_rule(g), next_more = weft__grammar_rule(g);
        WEFT__TRY(compile_property(c, name, property, &member));
        WEFT__ADD(g, first, member, next_more);
        WEFT__ADD(g, more, separator, member, next_more);
        if (!is_required(required, name)) {
            WEFT__ADD(g, first, next_first);
            WEFT__ADD(g, more, next_more);
        }
        first = next_first;
        more = next_more;
    }
    WEFT__ADD(g, first, end);
    WEFT__ADD(g, more, end);
    if (other != 0) {
        WEFT__ADD(g, first, other, more);
        WEFT__ADD(g, more, separator, other, more);
    }
    return WEFT_OK;
}

/* ---- references ---- */

/* What "#/a/b" points to, or NULL. */
static const json_t *resolve(const json_t *root, const char *ref)
{
    char key[KEY_MAX];
    if (ref == NULL || ref[0] != '#' || (ref[1] != '\0' && ref[1] != '/')) return NULL;
    const json_t *at = root;
    for (ref++; *ref == '/' && at != NULL;) {
        size_t len = 0;
        for (ref++; *ref != '\0' && *ref != '/' && len < sizeof key - 1; ref++) {
            char byte = *ref;
            if (byte == '~' && (ref[1] == '0' || ref[1] == '1')) byte = *++ref == '0' ? '~' : '/';
            key[len++] = byte;
        }
        key[len] = '\0';
        at = json_is_array(at) ? json_array_get(at, strtoul(key, NULL, 10))
                               : json_object_get(at, key);
    }
    return *ref == '\0' ? at : NULL;
}

/* In the whole schema or, as tools have their schemas inside of ours, in the one around. */
static const json_t *find_ref(const struct compiler *c, const json_t *schema)
{
    const char *name = json_string_value(json_object_get(schema, "$ref"));
    const json_t *found = resolve(c->root, name);
    return found != NULL ? found : resolve(c->near, name);
}

static weft_status compile_ref(struct compiler *c, const json_t *schema, int32_t *out)
{
    static const char *const alone[] = {"$ref", NULL};
    const char *name = json_string_value(json_object_get(schema, "$ref"));
    const json_t *target = find_ref(c, schema);
    WEFT__TRY(only(c, schema, alone));
    if (target == NULL) return refuse(c, WEFT_INVALID, "$ref finds nothing at", name);
    for (int i = 0; i < c->refs; i++)
        if (c->ref[i].schema == target) {
            *out = c->ref[i].rule;
            return WEFT_OK;
        }
    if (c->refs == REFS_MAX) return refuse(c, WEFT_UNSUPPORTED, "more than 1024 references", NULL);
    *out = weft__grammar_rule(c->g);
    c->ref[c->refs].schema = target;
    c->ref[c->refs++].rule = *out;
    int32_t rule = 0;
    size_t before = enter(c, name);
    WEFT__TRY(compile(c, target, &rule));
    leave(c, before);
    WEFT__ADD(c->g, *out, rule);
    return WEFT_OK;
}

/* ---- alternatives ---- */

struct view {                                 /* what is plain to see of a schema */
    const json_t *schema, *constant, *values; /* references followed */
    unsigned types;
    bool known; /* that it is no more than this */
};

static struct view view_of(const struct compiler *c, const json_t *schema)
{
    struct view v = {.schema = schema, .types = TYPE_ANY};
    for (int hop = 0; json_object_get(v.schema, "$ref") != NULL && hop < DISJOINT_DEPTH; hop++)
        v.schema = find_ref(c, v.schema);
    if (!json_is_object(v.schema) || json_object_get(v.schema, "$ref") != NULL ||
        first_of(v.schema, choices) != NULL)
        return v;
    v.known = true;
    v.constant = json_object_get(v.schema, "const");
    v.values = json_object_get(v.schema, "enum");
    v.types = types_of(v.schema);
    return v;
}

static size_t count_values(const struct view *v)
{
    return v->constant != NULL ? 1 : json_array_size(v->values);
}

static const json_t *value_at(const struct view *v, size_t i)
{
    return v->constant != NULL ? v->constant : json_array_get(v->values, i);
}

static bool share_value(const struct view *a, const struct view *b)
{
    for (size_t i = 0; i < count_values(a); i++)
        for (size_t k = 0; k < count_values(b); k++)
            if (json_equal(value_at(a, i), value_at(b, k))) return true;
    return false;
}

static unsigned types_seen(const struct view *v)
{
    unsigned types = 0;
    for (size_t i = 0; i < count_values(v); i++) types |= type_of_value(value_at(v, i));
    return types != 0 ? types : widen(v->types);
}

/* Whether no value meets both, as far as types, constants and required properties tell. */
static bool disjoint(struct compiler *c, const json_t *a, const json_t *b, int depth)
{
    const struct view v = view_of(c, a), w = view_of(c, b);
    const json_t *required[] = {json_object_get(v.schema, "required"),
                                json_object_get(w.schema, "required")};
    const char *name;
    json_t *property;
    if (!v.known || !w.known || depth == DISJOINT_DEPTH || !spend(c, 1, 1) ||
        !spend(c, count_values(&v), count_values(&w)))
        return false;
    if ((types_seen(&v) & types_seen(&w)) == 0) return true;
    if (count_values(&v) > 0 && count_values(&w) > 0) return !share_value(&v, &w);
    if (v.types != TYPE_OBJECT || w.types != TYPE_OBJECT) return false;
    json_object_foreach (json_object_get(v.schema, "properties"), name, property) {
        const json_t *other = json_object_get(json_object_get(w.schema, "properties"), name);
        if (!spend(c, 1, 1 + json_array_size(required[0]) + json_array_size(required[1])))
            return false;
        if (other != NULL && (is_required(required[0], name) || is_required(required[1], name)) &&
            disjoint(c, property, other, depth + 1))
            return true;
    }
    return false;
}

static weft_status compile_choice(struct compiler *c, const json_t *schema, const char *keyword,
                                  int32_t *out)
{
    const char *const alone[] = {keyword, NULL};
    const json_t *list = json_object_get(schema, keyword);
    size_t count = json_array_size(list);
    WEFT__TRY(only(c, schema, alone));
    if (count == 0) return refuse(c, WEFT_INVALID, "not a list of schemas:", keyword);
    if (strcmp(keyword, "allOf") == 0 && count > 1)
        return refuse(c, WEFT_UNSUPPORTED, "more than one schema in", keyword);
    *out = weft__grammar_rule(c->g);
    for (size_t i = 0; i < count; i++) {
        char name[40];
        int32_t rule = 0;
        (void)snprintf(name, sizeof name, "%s/%zu", keyword, i);
        size_t before = enter(c, name);
        for (size_t k = 0; k < i && strcmp(keyword, "oneOf") == 0; k++)
            if (!disjoint(c, json_array_get(list, i), json_array_get(list, k), 0))
                return refuse(c, WEFT_UNSUPPORTED,
                              "a value may meet two of oneOf: use anyOf, or a property that is "
                              "constant in each and required",
                              NULL);
        WEFT__TRY(compile(c, json_array_get(list, i), &rule));
        leave(c, before);
        WEFT__ADD(c->g, *out, rule);
    }
    return WEFT_OK;
}

/* A constant as text; of a number the shortest that reads back the same. */
static weft_status add_constant(struct compiler *c, const json_t *value, int32_t rule)
{
    char shortest[40];
    for (int digits = 15; json_is_real(value) && digits <= 17; digits++) {
        (void)snprintf(shortest, sizeof shortest, "%.*g", digits, json_real_value(value));
        if (strtod(shortest, NULL) != json_real_value(value)) continue;
        weft__grammar_text(c->g, rule, shortest, strlen(shortest));
        return WEFT_OK;
    }
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (text == NULL) return weft__fail_oom(c->err, 64, "a constant");
    weft__grammar_text(c->g, rule, text, strlen(text));
    free(text);
    return WEFT_OK;
}

static weft_status compile_values(struct compiler *c, const json_t *schema, int32_t *out)
{
    static const char *const with_type[] = {"const", "enum", "type", NULL};
    const struct view v = {.constant = json_object_get(schema, "const"),
                           .values = json_object_get(schema, "enum")};
    unsigned types = json_object_get(schema, "type") != NULL ? types_of(schema) : TYPE_ANY;
    size_t count = 0;
    WEFT__TRY(only(c, schema, with_type));
    if (v.constant != NULL && v.values != NULL)
        return refuse(c, WEFT_UNSUPPORTED, "const beside enum", NULL);
    if (v.constant == NULL && !json_is_array(v.values))
        return refuse(c, WEFT_INVALID, "not a list:", "enum");
    *out = weft__grammar_rule(c->g);
    for (size_t i = 0; i < count_values(&v); i++) {
        const json_t *value = value_at(&v, i);
        if ((type_of_value(value) & widen(types)) == 0) continue;
        WEFT__TRY(add_constant(c, value, *out));
        count++;
    }
    if (count == 0) return refuse(c, WEFT_INVALID, "no value is left", NULL);
    return WEFT_OK;
}

/* Moves *bound to the first integer that the keyword allows, seen from outside: `sign` is -1 for
 * the upper bounds. */
static weft_status read_bound(const struct compiler *c, const json_t *schema, const char *name,
                              double step, int sign, int64_t *bound)
{
    const json_t *value = json_object_get(schema, name);
    double number = sign * json_number_value(value), limit = (double)WEFT__INTEGER_MAX / 10;
    if (value == NULL) return WEFT_OK;
    if (!json_is_number(value)) return refuse(c, WEFT_INVALID, "not a number:", name);
    if (number > limit || number < -limit) return refuse(c, WEFT_UNSUPPORTED, "too large:", name);
    int64_t first = (int64_t)(step > 0 ? floor(number) + step : ceil(number));
    *bound = weft__max(*bound, first);
    return WEFT_OK;
}

static weft_status compile_integer(struct compiler *c, const json_t *schema, int32_t *out)
{
    int64_t low = -WEFT__INTEGER_MAX, high = -WEFT__INTEGER_MAX; /* high: negated */
    WEFT__TRY(read_bound(c, schema, "minimum", 0, 1, &low));
    WEFT__TRY(read_bound(c, schema, "exclusiveMinimum", 1, 1, &low));
    WEFT__TRY(read_bound(c, schema, "maximum", 0, -1, &high));
    WEFT__TRY(read_bound(c, schema, "exclusiveMaximum", 1, -1, &high));
    if (low > -high) return refuse(c, WEFT_INVALID, "no integer is within the bounds", NULL);
    *out = weft__grammar_integers(c->g, low, -high);
    return WEFT_OK;
}

static weft_status compile_types(struct compiler *c, const json_t *schema, int32_t *out)
{
    unsigned types = types_of(schema);
    int32_t rule = 0;
    WEFT__TRY(only(c, schema, NULL));
    const char *bound = first_of(schema, of_integers);
    if (bound != NULL && (types & TYPE_NUMBER) != 0)
        return refuse(c, WEFT_UNSUPPORTED, "bounds are for type integer alone:", bound);
    if (types == TYPE_ANY && json_object_get(schema, "type") == NULL) {
        *out = weft__rule_any(&c->rules);
        return WEFT_OK;
    }
    if (types == 0) return refuse(c, WEFT_INVALID, "no type of JSON:", "type");
    *out = weft__grammar_rule(c->g);
    if ((types & TYPE_OBJECT) != 0) {
        WEFT__TRY(compile_object(c, schema, &rule));
        WEFT__ADD(c->g, *out, rule);
    }
    if ((types & TYPE_ARRAY) != 0) {
        WEFT__TRY(compile_array(c, schema, &rule));
        WEFT__ADD(c->g, *out, rule);
    }
    if ((types & TYPE_STRING) != 0) {
        WEFT__TRY(compile_string(c, schema, &rule));
        WEFT__ADD(c->g, *out, rule);
    }
    if ((types & TYPE_NUMBER) != 0) WEFT__ADD(c->g, *out, weft__rule_number(&c->rules));
    if ((types & TYPE_INTEGER) != 0) {
        WEFT__TRY(compile_integer(c, schema, &rule));
        WEFT__ADD(c->g, *out, rule);
    }
    if ((types & TYPE_BOOLEAN) != 0) WEFT__ADD(c->g, *out, weft__rule_boolean(&c->rules));
    if ((types & TYPE_NULL) != 0) WEFT__ADD(c->g, *out, weft__rule_null(&c->rules));
    return WEFT_OK;
}

static weft_status compile_keywords(struct compiler *c, const json_t *schema, int32_t *out)
{
    if (json_object_get(schema, "$ref") != NULL) return compile_ref(c, schema, out);
    const char *choice = first_of(schema, choices);
    if (choice != NULL) return compile_choice(c, schema, choice, out);
    if (json_object_get(schema, "const") != NULL || json_object_get(schema, "enum") != NULL)
        return compile_values(c, schema, out);
    return compile_types(c, schema, out);
}

static weft_status compile(struct compiler *c, const json_t *schema, int32_t *out)
{
    if (json_is_true(schema)) {
        *out = weft__rule_any(&c->rules);
        return WEFT_OK;
    }
    if (json_is_false(schema)) return refuse(c, WEFT_INVALID, "no value meets false", NULL);
    if (!json_is_object(schema)) return refuse(c, WEFT_INVALID, "not a schema", NULL);
    if (c->g->too_large) return refuse(c, WEFT_UNSUPPORTED, "from here on it is too large", NULL);
    if (++c->depth > NESTING_MAX)
        return refuse(c, WEFT_UNSUPPORTED, "more than 256 schemas in schemas", NULL);
    const json_t *near = c->near;
    if (json_object_get(schema, "$defs") != NULL || json_object_get(schema, "definitions") != NULL)
        c->near = schema;
    weft_status status = compile_keywords(c, schema, out);
    c->near = near;
    c->depth--;
    return status;
}

weft_status weft__schema_compile(const struct weft__guide_spec *spec, struct weft__grammar *g,
                                 int32_t *root, weft_error *err)
{
    struct compiler c = {.g = g, .rules.g = g, .root = spec->schema, .err = err};
    int32_t value = 0, prefix = weft__grammar_rule(g), suffix = weft__grammar_rule(g);
    weft__buf_init(&c.path, 1 << 16);
    weft__grammar_text(g, prefix, spec->prefix, strlen(spec->prefix));
    weft__grammar_text(g, suffix, spec->suffix, strlen(spec->suffix));
    weft_status status = compile(&c, spec->schema, &value);
    if (status == WEFT_OK) {
        *root = weft__grammar_rule(g);
        int32_t start = weft__grammar_rule(g);
        for (size_t lines = 0; lines <= (spec->lines ? 2 : 0); lines++)
            weft__grammar_text(g, start, "\n\n", lines);
        WEFT__ADD(g, *root, start, prefix, value, suffix);
        if (g->failed || c.path.failed)
            status = weft__fail_oom(err, g->symbols * sizeof *g->symbol, "a grammar");
        else if (g->too_large)
            status = weft__fail(err, WEFT_UNSUPPORTED,
                                "the schema is too large: more than %d symbols", WEFT__GRAMMAR_MAX);
        else if (!weft__grammar_finish(g, *root))
            status = weft__fail(err, WEFT_INVALID,
                                "no value of at most 60 levels meets the schema: does it contain "
                                "itself without an end?");
    }
    weft__buf_free(&c.path);
    return status;
}
