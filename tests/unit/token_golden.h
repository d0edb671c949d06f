/* token_golden.h: reads tests/golden/tokenizers for the tests of tokenizers. */
#ifndef WEFT_TESTS_TOKEN_GOLDEN_H
#define WEFT_TESTS_TOKEN_GOLDEN_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "token/token.h"

#define GOLDEN WEFT_SOURCE_DIR "/tests/golden/tokenizers/"

enum { MAX_TEXTS = 400, MAX_NAMES = 64 };

struct corpus {
    char *data; /* all texts, one after the other */
    size_t start[MAX_TEXTS + 1];
    size_t count;
};

static inline char *read_golden(const char *path, size_t *len)
{
    char *data = NULL;
    weft_error err = {0};
    if (weft__read_file(path, WEFT__MAX_TOKENIZER_FILE, &data, len, &err) != WEFT_OK)
        fail_msg("%s", err.text);
    return data;
}

static inline size_t unhex(struct weft__json_text hex, struct weft__buf *out)
{
    for (size_t i = 0; i + 1 < hex.len; i += 2) {
        char digits[3] = {hex.data[i], hex.data[i + 1], '\0'};
        char byte = (char)strtoul(digits, NULL, 16);
        weft__buf_append(out, &byte, 1);
    }
    return out->len;
}

/* corpus.json: an array of strings and of {"hex": ...}. */
static inline void read_corpus(struct corpus *corpus)
{
    size_t len;
    char *file = read_golden(GOLDEN "corpus.json", &len);
    struct weft__json json;
    struct weft__json_text text, key;
    struct weft__buf all, scratch;
    weft__buf_init(&all, 1 << 24);
    weft__buf_init(&scratch, 1 << 24);
    weft__json_init(&json, file, len);
    corpus->count = 0;
    (void)weft__json_enter(&json, WEFT__JSON_ARRAY);
    while (weft__json_item(&json)) {
        corpus->start[corpus->count++] = all.len;
        assert_true(corpus->count < MAX_TEXTS);
        if (weft__json_kind(&json) == WEFT__JSON_STRING) {
            if (weft__json_string(&json, &scratch, &text))
                weft__buf_append(&all, text.data, text.len);
            continue;
        }
        (void)weft__json_enter(&json, WEFT__JSON_OBJECT);
        while (weft__json_member(&json, &scratch, &key))
            if (weft__json_string(&json, &scratch, &text)) (void)unhex(text, &all);
    }
    assert_true(weft__json_end(&json) && corpus->count > 100);
    corpus->start[corpus->count] = all.len;
    corpus->data = all.data;
    weft__buf_free(&scratch);
    free(file);
}

/* The names in the directory with this ending, without it; sorted. */
struct names {
    char name[MAX_NAMES][64];
    size_t count;
};

static inline int compare_names(const void *a, const void *b) { return strcmp(a, b); }

static inline void list_golden(const char *ending, struct names *names)
{
    DIR *dir = opendir(GOLDEN);
    assert_non_null(dir);
    names->count = 0;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        const char *dot = strrchr(entry->d_name, '.');
        if (dot == NULL || strcmp(dot, ending) != 0) continue;
        assert_true(names->count < MAX_NAMES);
        (void)snprintf(names->name[names->count++], 64, "%.*s", (int)(dot - entry->d_name),
                       entry->d_name);
    }
    (void)closedir(dir);
    qsort(names->name, names->count, sizeof names->name[0], compare_names);
}

static inline struct weft__tokenizer *load_golden(const char *name)
{
    char path[512];
    weft_error err = {0};
    struct weft__tokenizer *tok = NULL;
    if (strcmp(name, "atlas") == 0)
        (void)snprintf(path, sizeof path, "%s", WEFT_SOURCE_DIR "/models/atlas/tokenizer.json");
    else
        (void)snprintf(path, sizeof path, GOLDEN "%s.json", name);
    if (weft__tokenizer_load(path, &tok, &err) != WEFT_OK) fail_msg("%s", err.text);
    return tok;
}

#endif
