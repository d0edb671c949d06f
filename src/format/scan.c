/* Sets of names, and the JSON scanner over base's pull reader. A parser that builds a tree needs up
 * to forty bytes for each byte of a hostile header; this one leaves the strings where they are. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "internal.h"

/* ---- names ---- */

static uint32_t names_probe(const struct weft__names *names, const char *name)
{
    uint32_t mask = names->slots - 1;
    uint32_t at = (uint32_t)weft__hash(name, strlen(name), names->seed) & mask;
    while (names->slot[at] != 0 && strcmp(names->name[names->slot[at] - 1], name) != 0)
        at = (at + 1) & mask;
    return at;
}

int64_t weft__names_find(const struct weft__names *names, const char *name)
{
    if (names->slots == 0) return -1;
    return (int64_t)names->slot[names_probe(names, name)] - 1;
}

static weft_status names_grow(struct weft__names *names, weft_error *err)
{
    if (names->slots == 0 &&
        getrandom(&names->seed, sizeof names->seed, 0) != (ssize_t)sizeof names->seed)
        return weft__fail(err, WEFT_IO, "the kernel's random numbers cannot be read");
    uint32_t cap = names->cap == 0 ? 8 : names->cap * 2, slots = cap * 2;
    size_t bytes = cap * sizeof(char *);
    const char **name = realloc(names->name, bytes);
    if (name == NULL) return weft__fail_oom(err, bytes, "names");
    names->name = name;
    uint32_t *slot = calloc(slots, sizeof *slot);
    if (slot == NULL) return weft__fail_oom(err, slots * sizeof *slot, "names");
    free(names->slot);
    names->slot = slot;
    names->slots = slots;
    names->cap = cap;
    for (uint32_t i = 0; i < names->count; i++) names->slot[names_probe(names, name[i])] = i + 1;
    return WEFT_OK;
}

weft_status weft__names_add(struct weft__names *names, const char *name, bool *added,
                            weft_error *err)
{
    if (names->count == names->cap) {
        weft_status status = names_grow(names, err);
        if (status != WEFT_OK) return status;
    }
    uint32_t at = names_probe(names, name);
    *added = names->slot[at] == 0;
    if (*added) {
        names->name[names->count++] = name;
        names->slot[at] = names->count;
    }
    return WEFT_OK;
}

void weft__names_free(struct weft__names *names)
{
    free(names->name);
    free(names->slot);
    *names = (struct weft__names){0};
}

/* ---- scanner ---- */

void weft__scan_init(struct weft__scan *scan, const char *file, char *text, size_t len,
                     weft_error *err)
{
    *scan = (struct weft__scan){.file = file, .text = text, .err = err};
    weft__json_init(&scan->json, text, len);
    weft__buf_init(&scan->scratch, len);
}

void weft__scan_free(struct weft__scan *scan) { weft__buf_free(&scan->scratch); }

static long long line(const struct weft__scan *scan)
{
    long long count = 1;
    for (const char *p = scan->json.begin; p < scan->json.at; p++) count += *p == '\n';
    return count;
}

/* The reader's error, if it has one. */
static weft_status outcome(const struct weft__scan *scan)
{
    const struct weft__json *json = &scan->json;
    if (json->error == NULL) return WEFT_OK;
    if (json->no_memory) return weft__fail_oom(scan->err, scan->scratch.len, scan->file);
    if (scan->tensor != NULL)
        return weft__fail(scan->err, WEFT_FORMAT, "%s: tensor " NAME ": %s", scan->file,
                          scan->tensor, json->error);
    return weft__fail(scan->err, WEFT_FORMAT, "%s: not the JSON it should be: line %lld: %s",
                      scan->file, line(scan), json->error);
}

weft_status weft__scan_fail(struct weft__scan *scan, const char *what)
{
    weft__json_fail(&scan->json, what);
    return outcome(scan);
}

/* The text as a string of its own, over the bytes it was read from: decoded it is never longer than
 * what stood in the file, and behind it was a quote. */
static weft_status keep(struct weft__scan *scan, struct weft__json_text text, char **out)
{
    const struct weft__json *json = &scan->json;
    if (memchr(text.data, '\0', text.len) != NULL)
        return weft__scan_fail(scan, "a string holds U+0000");
    bool decoded = text.data == scan->scratch.data;
    size_t at = (size_t)((decoded ? json->at - text.len - 1 : text.data) - json->begin);
    char *to = scan->text + at;
    memmove(to, text.data, text.len);
    to[text.len] = '\0';
    *out = to;
    return WEFT_OK;
}

weft_status weft__scan_enter(struct weft__scan *scan, enum weft__json_kind kind)
{
    (void)weft__json_enter(&scan->json, kind);
    return outcome(scan);
}

weft_status weft__scan_item(struct weft__scan *scan, bool *more)
{
    *more = weft__json_item(&scan->json);
    return outcome(scan);
}

weft_status weft__scan_member(struct weft__scan *scan, char **key)
{
    struct weft__json_text text;
    *key = NULL;
    bool more = weft__json_member(&scan->json, &scan->scratch, &text);
    return more ? keep(scan, text, key) : outcome(scan);
}

weft_status weft__scan_string(struct weft__scan *scan, char **out)
{
    struct weft__json_text text;
    bool read = weft__json_string(&scan->json, &scan->scratch, &text);
    return read ? keep(scan, text, out) : outcome(scan);
}

weft_status weft__scan_size(struct weft__scan *scan, int64_t *out)
{
    bool number = weft__json_kind(&scan->json) == WEFT__JSON_NUMBER;
    if (number && *scan->json.at == '-') return weft__scan_fail(scan, "a negative size");
    (void)weft__json_int(&scan->json, out);
    return outcome(scan);
}

static weft_status skip_members(struct weft__scan *scan)
{
    struct weft__names keys = {0};
    char *key;
    bool added;
    weft_status status;
    while ((status = weft__scan_member(scan, &key)) == WEFT_OK && key != NULL) {
        status = weft__names_add(&keys, key, &added, scan->err);
        if (status == WEFT_OK && !added)
            status = weft__fail(scan->err, WEFT_FORMAT, "%s: line %lld: duplicate key " NAME,
                                scan->file, line(scan), key);
        if (status == WEFT_OK) status = weft__scan_skip(scan);
        if (status != WEFT_OK) break;
    }
    weft__names_free(&keys);
    return status;
}

weft_status weft__scan_skip(struct weft__scan *scan)
{
    enum weft__json_kind kind = weft__json_kind(&scan->json);
    if (++scan->values > WEFT__MAX_CONFIG_VALUES) return weft__scan_fail(scan, "too many values");
    if (kind != WEFT__JSON_OBJECT && kind != WEFT__JSON_ARRAY) {
        weft__json_skip(&scan->json);
        return outcome(scan);
    }
    weft_status status = weft__scan_enter(scan, kind); /* which bounds the recursion */
    if (status != WEFT_OK) return status;
    if (kind == WEFT__JSON_OBJECT) return skip_members(scan);
    bool more;
    while ((status = weft__scan_item(scan, &more)) == WEFT_OK && more) {
        status = weft__scan_skip(scan);
        if (status != WEFT_OK) return status;
    }
    return status;
}

weft_status weft__scan_end(struct weft__scan *scan)
{
    (void)weft__json_end(&scan->json);
    return outcome(scan);
}
