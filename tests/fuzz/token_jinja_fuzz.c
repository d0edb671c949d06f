/* Fuzzes the template language: the input is a template, then, behind a zero byte, the JSON of its
 * variables; without that part it gets a conversation with tool calls. */
#include <stdlib.h>
#include <string.h>

#include "token/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len);

static const char conversation[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S \\u00e9\"},{\"role\":\"user\",\"content\":"
    "[{\"type\":\"text\",\"text\":\"hi\"}]},{\"role\":\"assistant\",\"content\":\"<think>\\nr\\n"
    "</think>\\n\\nb\",\"tool_calls\":[{\"id\":\"call00001\",\"type\":\"function\",\"function\":"
    "{\"name\":\"f\",\"arguments\":{\"n\":2,\"x\":[1.5,null,true]}}}]},{\"role\":\"tool\","
    "\"content\":\"T\"},{\"role\":\"user\",\"content\":\"c\"}],\"tools\":[{\"type\":\"function\","
    "\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"]}}}],"
    "\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"eos_token\":\"</s>\",\"s\":\"Hello, "
    "W\\u00f6rld  \",\"e\":\"\",\"n\":null,\"t\":true,\"i\":7,\"f\":2.5,\"l\":[3,1,2],\"m\":{"
    "\"b\":1,\"a\":\"x\",\"items\":[1]}}";

static void check_error(const weft_error *err, weft_status status)
{
    if (err->status != status || err->text[0] == '\0' ||
        !weft__utf8_valid(err->text, strlen(err->text)) || strchr(err->text, '\n') != NULL)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t len)
{
    const char *text = (const char *)input;
    const char *end = len > 0 ? memchr(text, '\0', len) : NULL;
    size_t text_len = end != NULL ? (size_t)(end - text) : len;
    struct weft__template *tmpl = NULL;
    struct weft__buf out;
    weft_error err = {0};
    weft_status status = weft__template_parse("fuzz", text, text_len, &tmpl, &err);
    if (status != WEFT_OK) {
        check_error(&err, status);
        return 0;
    }
    json_t *vars = end != NULL ? json_loadb(end + 1, len - text_len - 1, JSON_ALLOW_NUL, NULL)
                               : json_loads(conversation, 0, NULL);
    weft__buf_init(&out, WEFT__TEMPLATE_MAX_OUTPUT);
    status = weft__template_render(tmpl, vars, 1735787045, &out, &err);
    if (status != WEFT_OK) check_error(&err, status);
    if (status != WEFT_OK && out.len != 0) abort();
    if (out.len > 0 && !weft__utf8_valid(out.data, out.len)) abort();
    weft__buf_free(&out);
    json_decref(vars);
    weft__template_free(tmpl);
    return 0;
}
