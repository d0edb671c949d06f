/* Fuzzes the text of chats: cut anywhere, the same reasoning, content and calls must come out, and
 * every call must be of a known function with an object as arguments. */
#include <stdlib.h>
#include <string.h>

#include "http/private.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len);

enum { TEXT_MAX = 1 << 20 };

static json_t *tools;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    tools = json_loads("[{\"function\":{\"name\":\"get\",\"parameters\":{\"properties\":{\"city\":"
                       "{\"type\":\"string\"}}}}},{\"function\":{\"name\":\"now\"}}]",
                       0, NULL);
    if (tools == NULL) abort();
    return 0;
}

struct result {
    struct weft__buf content, reasoning, calls;
};

static void on_call(void *ctx, struct weft__slice name, struct weft__slice arguments)
{
    struct weft__buf *calls = ctx;
    json_t *value = json_loadb(arguments.data, arguments.len, JSON_ALLOW_NUL, NULL);
    if (name.len != 3 || (memcmp(name.data, "get", 3) != 0 && memcmp(name.data, "now", 3) != 0))
        abort();
    /* jansson refuses what others read: numbers out of range, NUL in keys, ill-formed UTF-8. */
    if (value != NULL && !json_is_object(value)) abort();
    json_decref(value);
    weft__buf_append(calls, name.data, name.len);
    weft__buf_append(calls, arguments.data, arguments.len);
}

static void feed(const uint8_t *head, const char *text, size_t len, size_t piece, struct result *r)
{
    struct weft__extract x = {.format = (enum weft__calls_format)(head[0] % 5),
                              .tools = tools,
                              .ctx = &r->calls,
                              .call = on_call};
    const struct weft__extracted out = {&r->content, &r->reasoning};
    if (head[1] % 3 == 1) x.state = WEFT__EXTRACT_START;
    if (head[1] % 3 == 2) x.state = WEFT__EXTRACT_REASONING;
    weft__buf_init(&r->content, TEXT_MAX);
    weft__buf_init(&r->reasoning, TEXT_MAX);
    weft__buf_init(&r->calls, TEXT_MAX);
    weft__extract_init(&x);
    for (size_t at = 0; at < len; at += piece)
        weft__extract_push(&x, text + at, len - at < piece ? len - at : piece, &out);
    weft__extract_finish(&x, &out);
    weft__extract_free(&x);
}

static void same(const struct weft__buf *a, const struct weft__buf *b)
{
    if (a->len != b->len || (a->len > 0 && memcmp(a->data, b->data, a->len) != 0)) abort();
}

/* Byte 0: the format; byte 1: reasoning; byte 2: the pieces' length. */
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len)
{
    struct result whole, pieces;
    if (len < 3) return 0;
    const char *text = (const char *)input + 3;
    feed(input, text, len - 3, len, &whole);
    feed(input, text, len - 3, 1 + input[2] % 8U, &pieces);
    same(&whole.content, &pieces.content);
    same(&whole.reasoning, &pieces.reasoning);
    same(&whole.calls, &pieces.calls);
    struct result *results[] = {&whole, &pieces};
    for (size_t i = 0; i < WEFT__COUNT(results); i++) {
        weft__buf_free(&results[i]->content);
        weft__buf_free(&results[i]->reasoning);
        weft__buf_free(&results[i]->calls);
    }
    return 0;
}
