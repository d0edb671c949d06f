/* Opening a directory's chat templates and rendering one while memory runs out at every
 * allocation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "token/chat.h"

static char dir[] = "/tmp/weft-chat-XXXXXX", path[100];

static int setup(void **state)
{
    static const char text[] =
        "{\"eos_token\":{\"content\":\"<E>\"},\"additional_special_tokens\":[\"<1>\"],"
        "\"chat_template\":[{\"name\":\"default\",\"template\":\"{% for m in messages %}"
        "{{ m.role|upper + ': ' ~ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}\"},"
        "{\"name\":\"tool_use\",\"template\":\"{% macro f(x) %}{{ x|list|sort|join }}{% endmacro %}"
        "{{ f(tools[0]) }}{{ namespace(a=1).a }}\"}]}";
    (void)state;
    if (mkdtemp(dir) == NULL) return -1;
    (void)snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0) return -1;
    alloc_fail_jansson();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(dir);
}

/* The conversation is made while allocations work. */
static json_t *messages, *tools;

static weft_status open_and_render(void *context, weft_error *err)
{
    struct weft__chat *chat = NULL;
    struct weft__chat_input input = {.messages = messages, .tools = context};
    struct weft__buf out;
    weft_status status = weft__chat_open(dir, &chat, err);
    if (status != WEFT_OK) return status;
    weft__buf_init(&out, 1000);
    status = weft__chat_render(chat, &input, &out, err);
    if (status == WEFT_OK)
        assert_string_equal(out.data,
                            context == NULL ? "USER: hiASSISTANT: f{\"a\": 1}" : "namex1");
    weft__buf_free(&out);
    weft__chat_close(chat);
    return status;
}

static void templates_without_memory(void **state)
{
    (void)state;
    messages = json_loads("[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\","
                          "\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
                          "\"arguments\":\"{\\\"a\\\":1}\"}}]}]",
                          0, NULL);
    tools = json_loads("[{\"x\":1,\"name\":2}]", 0, NULL);
    alloc_fail_sweep("chat template", open_and_render, NULL, 1000);
    alloc_fail_sweep("tool template", open_and_render, tools, 1000);
    json_decref(messages);
    json_decref(tools);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(templates_without_memory)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
