/* JSON configuration files, read with limits, and typed getters whose errors name the file and key.
 * The scanner judges the grammar and the limits before jansson builds a tree. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { MAX_KEY = 64 };

static weft_status check_text(const char *path, const char *text, size_t len, weft_error *err)
{
    char *copy = malloc(len + 1); /* the scanner decodes strings in place */
    if (copy == NULL) return weft__fail_oom(err, len + 1, path);
    memcpy(copy, text, len);
    struct weft__scan scan;
    weft__scan_init(&scan, path, copy, len, err);
    weft_status status = weft__json_kind(&scan.json) == WEFT__JSON_OBJECT
                             ? weft__scan_skip(&scan)
                             : weft__scan_fail(&scan, "expected an object");
    if (status == WEFT_OK) status = weft__scan_end(&scan);
    weft__scan_free(&scan);
    free(copy);
    return status;
}

weft_status weft__config_open(const char *path, struct weft__node *root, weft_error *err)
{
    char *text = NULL, *file = NULL;
    size_t len = 0;
    json_error_t error = {.line = 0}; /* jansson does not always set its code */
    weft_status status = weft__read_file(path, WEFT__MAX_CONFIG, &text, &len, err);
    if (status != WEFT_OK) return status;
    status = check_text(path, text, len, err);
    if (status != WEFT_OK) goto free_text;
    file = strdup(path);
    json_t *json = file != NULL ? json_loadb(text, len, JSON_REJECT_DUPLICATES, &error) : NULL;
    if (json == NULL) {
        /* The scanner passed the text, so jansson has one of few reasons. */
        enum json_error_code why = json_error_code(&error);
        bool nul = why == json_error_null_character; /* in a value; the scanner decodes keys */
        if (nul || why == json_error_numeric_overflow)
            status = weft__fail(err, WEFT_FORMAT, "%s: line %d: %s", path, error.line,
                                nul ? "a string holds U+0000" : "a number out of range");
        else
            status = weft__fail_oom(err, len, path);
        free(file);
        goto free_text;
    }
    *root = (struct weft__node){.json = json, .file = file};
free_text:
    free(text);
    return status;
}

void weft__config_close(struct weft__node *root)
{
    json_decref(root->json);
    free((char *)root->file);
    *root = (struct weft__node){0};
}

/* ---- getters ---- */

/* Copies the first of the alternative spellings to key; returns the rest, NULL at the end. */
static const char *next_key(const char *keys, char key[MAX_KEY])
{
    size_t len = strcspn(keys, "|");
    (void)snprintf(key, MAX_KEY, "%.*s", (int)len, keys);
    return keys[len] == '|' ? keys + len + 1 : NULL;
}

static bool same(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b) != 0;
}

/* The value under any of the spellings, NULL when absent. key receives the one found, or the first;
 * spellings that disagree are an error. */
static weft_status lookup(const struct weft__node *node, const char *keys, json_t **value,
                          char key[MAX_KEY], weft_error *err)
{
    *value = NULL;
    char name[MAX_KEY];
    (void)next_key(keys, key);
    while (keys != NULL) {
        keys = next_key(keys, name);
        json_t *found = json_object_get(node->json, name);
        if (found == NULL || json_is_null(found)) continue;
        if (*value != NULL && !same(*value, found))
            return weft__fail(err, WEFT_FORMAT, "%s: %s%s and %s%s contradict each other",
                              node->file, node->where, key, node->where, name);
        if (*value == NULL) {
            *value = found;
            memcpy(key, name, MAX_KEY);
        }
    }
    return WEFT_OK;
}

static weft_status wrong(const struct weft__node *node, const char *key, const json_t *value,
                         const char *want, weft_error *err)
{
    static const char *const types[] = {"an object",  "a list", "a string", "an integer",
                                        "a fraction", "true",   "false",    "null"};
    return weft__fail(err, WEFT_FORMAT, "%s: %s%s must be %s, not %s", node->file, node->where, key,
                      want, types[json_typeof(value)]);
}

static weft_status absent(const struct weft__node *node, const char *keys, weft_error *err)
{
    char key[MAX_KEY];
    (void)next_key(keys, key);
    return weft__fail(err, WEFT_FORMAT, "%s: %s%s is missing", node->file, node->where, key);
}

bool weft__node_has(const struct weft__node *node, const char *keys)
{
    char key[MAX_KEY];
    json_t *value;
    return lookup(node, keys, &value, key, NULL) != WEFT_OK || value != NULL;
}

static weft_status to_int(const struct weft__node *node, const char *key, const json_t *value,
                          int64_t min, int64_t max, int64_t *out, weft_error *err)
{
    double real = json_number_value(value);
    if (!json_is_number(value) || real != floor(real))
        return wrong(node, key, value, "an integer", err);
    if (json_is_real(value) && fabs(real) >= 0x1p53)
        return weft__fail(err, WEFT_FORMAT, "%s: %s%s is %g; allowed are %lld to %lld", node->file,
                          node->where, key, real, (long long)min, (long long)max);
    int64_t number = json_is_real(value) ? (int64_t)real : json_integer_value(value);
    if (number < min || number > max)
        return weft__fail(err, WEFT_FORMAT, "%s: %s%s is %lld; allowed are %lld to %lld",
                          node->file, node->where, key, (long long)number, (long long)min,
                          (long long)max);
    *out = number;
    return WEFT_OK;
}

weft_status weft__node_int_opt(const struct weft__node *node, const char *keys, int64_t min,
                               int64_t max, int64_t *value, weft_error *err)
{
    char key[MAX_KEY];
    json_t *json;
    weft_status status = lookup(node, keys, &json, key, err);
    if (status != WEFT_OK || json == NULL) return status;
    return to_int(node, key, json, min, max, value, err);
}

weft_status weft__node_int(const struct weft__node *node, const char *keys, int64_t min,
                           int64_t max, int64_t *value, weft_error *err)
{
    if (!weft__node_has(node, keys)) return absent(node, keys, err);
    return weft__node_int_opt(node, keys, min, max, value, err);
}

weft_status weft__node_double_opt(const struct weft__node *node, const char *keys, double min,
                                  double max, double *value, weft_error *err)
{
    char key[MAX_KEY];
    json_t *json;
    weft_status status = lookup(node, keys, &json, key, err);
    if (status != WEFT_OK || json == NULL) return status;
    if (!json_is_number(json)) return wrong(node, key, json, "a number", err);
    double number = json_number_value(json);
    if (!(number >= min && number <= max))
        return weft__fail(err, WEFT_FORMAT, "%s: %s%s is %g; allowed are %g to %g", node->file,
                          node->where, key, number, min, max);
    *value = number;
    return WEFT_OK;
}

weft_status weft__node_double(const struct weft__node *node, const char *keys, double min,
                              double max, double *value, weft_error *err)
{
    if (!weft__node_has(node, keys)) return absent(node, keys, err);
    return weft__node_double_opt(node, keys, min, max, value, err);
}

weft_status weft__node_bool_opt(const struct weft__node *node, const char *keys, bool *value,
                                weft_error *err)
{
    char key[MAX_KEY];
    json_t *json;
    weft_status status = lookup(node, keys, &json, key, err);
    if (status != WEFT_OK || json == NULL) return status;
    if (!json_is_boolean(json)) return wrong(node, key, json, "true or false", err);
    *value = json_is_true(json);
    return WEFT_OK;
}

weft_status weft__node_string_opt(const struct weft__node *node, const char *keys,
                                  const char **value, weft_error *err)
{
    char key[MAX_KEY];
    json_t *json;
    weft_status status = lookup(node, keys, &json, key, err);
    if (status != WEFT_OK || json == NULL) return status;
    if (!json_is_string(json)) return wrong(node, key, json, "a string", err);
    *value = json_string_value(json);
    return WEFT_OK;
}

weft_status weft__node_string(const struct weft__node *node, const char *keys, const char **value,
                              weft_error *err)
{
    if (!weft__node_has(node, keys)) return absent(node, keys, err);
    return weft__node_string_opt(node, keys, value, err);
}

weft_status weft__node_ints(const struct weft__node *node, const char *keys,
                            struct weft__int_list *list, weft_error *err)
{
    char key[MAX_KEY];
    json_t *json;
    list->count = 0;
    weft_status status = lookup(node, keys, &json, key, err);
    if (status != WEFT_OK || json == NULL) return status;
    bool one = !json_is_array(json);
    size_t count = one ? 1 : json_array_size(json);
    if (count > (size_t)list->max_count)
        return weft__fail(err, WEFT_TOO_LONG, "%s: %s%s has %zu values; at most %d are allowed",
                          node->file, node->where, key, count, list->max_count);
    for (size_t i = 0; i < count && status == WEFT_OK; i++)
        status = to_int(node, key, one ? json : json_array_get(json, i), list->min, list->max,
                        &list->values[i], err);
    if (status == WEFT_OK) list->count = (int)count;
    return status;
}

/* The nested value as a node; its `where` is the parent's with the key and `suffix`. */
static weft_status nested(const struct weft__node *node, const char *keys, const char *suffix,
                          struct weft__node *child, weft_error *err)
{
    char key[MAX_KEY];
    json_t *json;
    weft_status status = lookup(node, keys, &json, key, err);
    if (status != WEFT_OK) return status;
    bool list = suffix[0] == '\0';
    if (json != NULL && !(list ? json_is_array(json) : json_is_object(json)))
        return wrong(node, key, json, list ? "a list" : "an object", err);
    struct weft__node found = {.json = json, .file = node->file};
    (void)snprintf(found.where, sizeof found.where, "%.*s%.*s%s", 30, node->where, 30, key, suffix);
    *child = found;
    return WEFT_OK;
}

weft_status weft__node_object(const struct weft__node *node, const char *keys,
                              struct weft__node *child, weft_error *err)
{
    return nested(node, keys, ".", child, err);
}

weft_status weft__node_list(const struct weft__node *node, const char *keys,
                            struct weft__node *child, weft_error *err)
{
    return nested(node, keys, "", child, err);
}

int64_t weft__node_count(const struct weft__node *list)
{
    return (int64_t)json_array_size(list->json);
}

weft_status weft__node_string_at(const struct weft__node *list, int64_t i, const char **value,
                                 weft_error *err)
{
    const json_t *json = json_array_get(list->json, (size_t)i);
    if (!json_is_string(json))
        return weft__fail(err, WEFT_FORMAT, "%s: element %lld of %s must be a string", list->file,
                          (long long)i, list->where);
    *value = json_string_value(json);
    return WEFT_OK;
}
