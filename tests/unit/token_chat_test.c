/* Chat templates of a directory: where they are looked for, special tokens, what happens to a
 * conversation before it is rendered, and the prompts that docs/ARCHITECTURE.md's sources state. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "token/chat.h"
#include "token/jinja.h"

#define GOLDEN WEFT_SOURCE_DIR "/tests/golden/templates/"

static char dir[] = "/tmp/weft-chat-XXXXXX";
static const char *const files[] = {"chat_template.jinja", "tokenizer_config.json"};

static void put(const char *name, const char *text, size_t len)
{
    char path[200];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(text, 1, len, file) != len || fclose(file) != 0) abort();
}

static void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

static void clear(void)
{
    for (size_t i = 0; i < WEFT__COUNT(files); i++) {
        char path[200];
        (void)snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        (void)unlink(path);
    }
}

/* A directory of which chat_template.jinja is the golden template of that name. */
static struct weft__chat *open_golden(const char *name)
{
    char path[400], *text;
    size_t len;
    weft_error err = {0};
    struct weft__chat *chat = NULL;
    (void)snprintf(path, sizeof path, GOLDEN "%s.jinja", name);
    if (weft__read_file(path, WEFT__TEMPLATE_MAX_TEXT, &text, &len, &err) != WEFT_OK) abort();
    clear();
    put("chat_template.jinja", text, len);
    free(text);
    if (weft__chat_open(dir, &chat, &err) != WEFT_OK) print_error("%s\n", err.text);
    assert_non_null(chat);
    assert_int_equal(weft__chat_check(chat, &err), WEFT_OK);
    return chat;
}

static json_t *parse(const char *text)
{
    json_error_t where;
    json_t *out = json_loads(text, 0, &where);
    if (out == NULL) print_error("%s in %s\n", where.text, text);
    return out;
}

/* The prompt, to be freed; the error's text when there is none. tools, kwargs: JSON or NULL. */
static char *prompt_of(const struct weft__chat *chat, const char *messages, const char *tools,
                       const char *kwargs, weft_status want)
{
    struct weft__chat_input input = {.messages = parse(messages),
                                     .tools = tools != NULL ? parse(tools) : NULL,
                                     .kwargs = kwargs != NULL ? parse(kwargs) : NULL,
                                     .add_generation_prompt = true,
                                     .now = 1735787045};
    json_t *before = json_deep_copy(input.messages);
    struct weft__buf out;
    weft_error err = {0};
    weft__buf_init(&out, WEFT__TEMPLATE_MAX_OUTPUT);
    weft_status status = weft__chat_render(chat, &input, &out, &err);
    if (status != want) print_error("%s\n", err.text);
    assert_int_equal(status, want);
    assert_true(json_equal(before, input.messages)); /* the caller's conversation stays */
    char *text = strdup(status != WEFT_OK ? err.text : out.data != NULL ? out.data : "");
    weft__buf_free(&out);
    json_decref(before);
    json_decref(input.messages);
    json_decref(input.tools);
    json_decref(input.kwargs);
    return text;
}

static void assert_prompt(const struct weft__chat *chat, const char *messages, const char *tools,
                          const char *kwargs, const char *want)
{
    char *text = prompt_of(chat, messages, tools, kwargs, WEFT_OK);
    assert_string_equal(text, want);
    free(text);
}

/* ---- prompts as the models' documentation states them ---- */

#define CONVERSATION_A \
    "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"hi\"}]"
#define CONVERSATION_B                                                                        \
    "[{\"role\":\"user\",\"content\":\"a\"},"                                                 \
    "{\"role\":\"assistant\",\"content\":\"<think>\\nr1\\n</think>\\n\\nb\"},"                \
    "{\"role\":\"user\",\"content\":\"c\"},"                                                  \
    "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"r2\",\"tool_calls\":[{" \
    "\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"          \
    "\"{\\\"\\u00e9\\\": \\\"x\\\", \\\"n\\\": 2}\"}}]},"                                     \
    "{\"role\":\"tool\",\"content\":\"T1\"},{\"role\":\"tool\",\"content\":\"T2\"}]"
#define E_ACUTE "\xc3\xa9"

static void smollm2(void **state)
{
    struct weft__chat *chat = open_golden("smollm2");
    (void)state;
    assert_prompt(chat, CONVERSATION_A, NULL, NULL,
                  "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
                  "<|im_start|>assistant\n");
    assert_prompt(
        chat, "[{\"role\":\"user\",\"content\":\"hi\"}]", NULL, NULL,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
        "Hugging Face<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    weft__chat_close(chat);
}

static void qwen3(void **state)
{
    struct weft__chat *chat = open_golden("qwen3");
    (void)state;
    assert_prompt(chat, CONVERSATION_A, NULL, NULL,
                  "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
                  "<|im_start|>assistant\n");
    assert_prompt(chat, CONVERSATION_A, NULL, "{\"enable_thinking\":false}",
                  "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
                  "<|im_start|>assistant\n<think>\n\n</think>\n\n");
    assert_prompt(chat, CONVERSATION_B, NULL, NULL,
                  "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
                  "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\nr2\n</think>\n\n"
                  "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"" E_ACUTE
                  "\": \"x\", \"n\": 2}}\n</tool_call><|im_end|>\n<|im_start|>user\n"
                  "<tool_response>\nT1\n</tool_response>\n<tool_response>\nT2\n</tool_response>"
                  "<|im_end|>\n<|im_start|>assistant\n");
    weft__chat_close(chat);
}

static void glm_4_6(void **state)
{
    struct weft__chat *chat = open_golden("glm_4_6");
    (void)state;
    assert_prompt(chat, CONVERSATION_A, NULL, NULL,
                  "[gMASK]<sop><|system|>\nS<|user|>\nhi<|assistant|>");
    assert_prompt(chat, CONVERSATION_A, NULL, "{\"enable_thinking\":false}",
                  "[gMASK]<sop><|system|>\nS<|user|>\nhi/nothink<|assistant|>\n<think></think>");
    assert_prompt(chat, CONVERSATION_B, NULL, NULL,
                  "[gMASK]<sop><|user|>\na<|assistant|>\n<think></think>\nb<|user|>\nc<|assistant|>"
                  "\n<think>r2</think>\n<tool_call>f\n<arg_key>" E_ACUTE "</arg_key>\n<arg_value>x"
                  "</arg_value>\n<arg_key>n</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
                  "<|observation|>\n<tool_response>\nT1\n</tool_response>\n<tool_response>\nT2\n"
                  "</tool_response><|assistant|>");
    weft__chat_close(chat);
}

static void glm_4_7(void **state)
{
    struct weft__chat *chat = open_golden("glm_4_7");
    (void)state;
    assert_prompt(chat, CONVERSATION_A, NULL, NULL,
                  "[gMASK]<sop><|system|>S<|user|>hi<|assistant|><think>");
    assert_prompt(chat, CONVERSATION_A, NULL, "{\"enable_thinking\":false}",
                  "[gMASK]<sop><|system|>S<|user|>hi<|assistant|></think>");
#define CALL                                                                                     \
    "<|user|>c<|assistant|><think>r2</think><tool_call>f<arg_key>" E_ACUTE                       \
    "</arg_key><arg_value>x</arg_value><arg_key>n</arg_key><arg_value>2</arg_value></tool_call>" \
    "<|observation|><tool_response>T1</tool_response><tool_response>T2</tool_response>"          \
    "<|assistant|><think>"
    assert_prompt(chat, CONVERSATION_B, NULL, NULL,
                  "[gMASK]<sop><|user|>a<|assistant|></think>b" CALL);
    assert_prompt(chat, CONVERSATION_B, NULL, "{\"clear_thinking\":false}",
                  "[gMASK]<sop><|user|>a<|assistant|><think>r1</think>b" CALL);
    weft__chat_close(chat);
}

/* DeepSeek V3 knows a call by its null content and wants its arguments as text. */
static void deepseek_v3_gets_text_and_null(void **state)
{
    struct weft__chat *chat = open_golden("deepseek_v3");
    (void)state;
#define BAR "\xef\xbd\x9c" /* the fullwidth bar and the lower one eighth block of its tokens */
#define LOW "\xe2\x96\x81"
    assert_prompt(chat,
                  "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"tool_calls\":"
                  "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
                  "\"{\\\"a\\\":1}\"}}]}]",
                  NULL, NULL,
                  "<" BAR "User" BAR ">u<" BAR "Assistant" BAR "><" BAR "tool" LOW "calls" LOW
                  "begin" BAR "><" BAR "tool" LOW "call" LOW "begin" BAR ">function<" BAR "tool" LOW
                  "sep" BAR ">f\n```json\n{\"a\":1}\n```<" BAR "tool" LOW "call" LOW "end" BAR
                  "><" BAR "Assistant" BAR ">");
    weft__chat_close(chat);
}

/* ---- where templates come from ---- */

static void sources_in_order(void **state)
{
    static const char hi[] = "[{\"role\":\"user\",\"content\":\"hi\"}]", tools[] = "[{\"x\":1}]";
    struct weft__chat *chat = NULL;
    (void)state;
    clear();
    put_text("tokenizer_config.json",
             "{\"model_max_length\":1000000000000000019884624838656,\"chat_template\":\"one\"}");
    assert_int_equal(weft__chat_open(dir, &chat, NULL), WEFT_OK);
    assert_prompt(chat, hi, tools, NULL, "one");
    weft__chat_close(chat);

    put_text(
        "tokenizer_config.json",
        "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"tools\"},"
        "{\"name\":\"rag\",\"template\":\"{{\"},{\"name\":\"default\",\"template\":\"plain\"}]}");
    assert_int_equal(weft__chat_open(dir, &chat, NULL), WEFT_OK);
    assert_prompt(chat, hi, NULL, NULL, "plain");
    assert_prompt(chat, hi, "[]", NULL, "plain");
    assert_prompt(chat, hi, tools, NULL, "tools");
    weft__chat_close(chat);

    put_text("chat_template.jinja", "file\n");
    assert_int_equal(weft__chat_open(dir, &chat, NULL), WEFT_OK);
    assert_prompt(chat, hi, tools, NULL, "file");
    weft__chat_close(chat);
}

static void missing_and_broken_templates(void **state)
{
    static const struct {
        const char *config, *file; /* NULL: not there */
        weft_status status;
        const char *message;
    } cases[] = {
        {NULL, NULL, WEFT_NOT_FOUND,
         "looked for chat_template.jinja and for chat_template in "
         "tokenizer_config.json; give the prompt without a template "
         "(run --raw, /v1/completions)"},
        {"{\"eos_token\":\"E\"}", NULL, WEFT_NOT_FOUND, "(run --raw, /v1/completions)"},
        {"{\"chat_template\":null}", NULL, WEFT_NOT_FOUND, "(run --raw, /v1/completions)"},
        {"{\"chat_template\":[{\"name\":\"rag\",\"template\":\"x\"}]}", NULL, WEFT_NOT_FOUND,
         "none of the chat templates is named \"default\""},
        {"{\"chat_template\":\"\\n {% block x %}\"}", NULL, WEFT_UNSUPPORTED,
         "tokenizer_config.json (chat_template): line 2, column 5: no tag named 'block'"},
        {NULL, "{{ x", WEFT_FORMAT, "chat_template.jinja: line 1, column 5: unexpected"},
    };
    (void)state;
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        struct weft__chat *chat = NULL;
        weft_error err = {0};
        clear();
        if (cases[i].config != NULL) put_text("tokenizer_config.json", cases[i].config);
        if (cases[i].file != NULL) put_text("chat_template.jinja", cases[i].file);
        assert_int_equal(weft__chat_open(dir, &chat, &err), WEFT_OK);
        assert_int_equal(weft__chat_check(chat, &err), cases[i].status);
        if (strstr(err.text, cases[i].message) == NULL) print_error("%s\n", err.text);
        assert_non_null(strstr(err.text, cases[i].message));
        char *text = prompt_of(chat, "[]", NULL, NULL, cases[i].status);
        assert_string_equal(text, err.text);
        free(text);
        weft__chat_close(chat);
    }
}

static void broken_configurations(void **state)
{
    static const struct {
        const char *config;
        const char *message;
    } cases[] = {{"{\"a\":", "tokenizer_config.json: "},
                 {"[]", "tokenizer_config.json: not a JSON object"},
                 {"", "tokenizer_config.json: "},
                 {"{\"a\":\"\\ud800\"}", "tokenizer_config.json: "},
                 {"{\"a\":\"\xff\"}", "tokenizer_config.json: "}};
    (void)state;
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        struct weft__chat *chat = NULL;
        weft_error err = {0};
        clear();
        put_text("tokenizer_config.json", cases[i].config);
        assert_int_equal(weft__chat_open(dir, &chat, &err), WEFT_FORMAT);
        assert_null(chat);
        assert_non_null(strstr(err.text, cases[i].message));
    }
}

static void special_tokens(void **state)
{
    struct weft__chat *chat = NULL;
    (void)state;
    clear();
    put_text(
        "tokenizer_config.json",
        "{\"bos_token\":{\"__type\":\"AddedToken\",\"content\":\"<B>\"},\"eos_token\":\"<E>\","
        "\"unk_token\":null,\"add_bos_token\":true,\"additional_special_tokens\":[\"<1>\","
        "{\"content\":\"<2>\"}],\"extra_special_tokens\":{\"image_token\":\"<I>\"},"
        "\"chat_template\":\"{{ bos_token }}{{ eos_token }}{{ image_token }}{{ unk_token is "
        "defined }}{{ additional_special_tokens }}{{ tools is none }}{{ documents is none }}\"}");
    assert_int_equal(weft__chat_open(dir, &chat, NULL), WEFT_OK);
    assert_string_equal(weft__chat_token(chat, "bos_token"), "<B>");
    assert_string_equal(weft__chat_token(chat, "eos_token"), "<E>");
    assert_null(weft__chat_token(chat, "unk_token"));
    assert_null(weft__chat_token(chat, "add_bos_token"));
    assert_prompt(chat, "[]", NULL, NULL, "<B><E><I>False['<1>', '<2>']TrueTrue");
    assert_prompt(chat, "[]", NULL, "{\"bos_token\":\"mine\"}",
                  "mine<E><I>False['<1>', '<2>']TrueTrue");
    weft__chat_close(chat);
}

/* ---- the conversation before it is rendered ---- */

static void messages_are_prepared(void **state)
{
    struct weft__chat *chat = NULL;
    (void)state;
    clear();
    put_text(
        "chat_template.jinja",
        "{% for m in messages %}{{ m.role }}={{ m.content|tojson if m.content is defined }}"
        "{% for c in m.tool_calls or [] %}<{{ c.function.name }} "
        "{{ c.function.arguments|tojson }}>{% endfor %};{% endfor %}{{ add_generation_prompt }}");
    assert_int_equal(weft__chat_open(dir, &chat, NULL), WEFT_OK);
#define CALLS(arguments)                                                               \
    "[{\"role\":\"a\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\"," \
    "\"arguments\":" arguments "}}]}]"
    assert_prompt(chat, CALLS("\"{\\\"z\\\":1,\\\"a\\\":1.50}\""), NULL, NULL,
                  "a=\"\"<f {\"z\": 1, \"a\": 1.5}>;True");
    assert_prompt(chat, CALLS("{\"z\":[1]}"), NULL, NULL, "a=\"\"<f {\"z\": [1]}>;True");
    assert_prompt(chat, CALLS("\"\""), NULL, NULL, "a=\"\"<f {}>;True");
    /* What is not the text of an object stays as it is: numbers of any size too. */
    assert_prompt(chat, CALLS("\"[1]\""), NULL, NULL, "a=\"\"<f \"[1]\">;True");
    assert_prompt(chat, CALLS("\"{\""), NULL, NULL, "a=\"\"<f \"{\">;True");
    assert_prompt(chat, CALLS("\"{\\\"n\\\":123456789012345678901}\""), NULL, NULL,
                  "a=\"\"<f \"{\\\"n\\\":123456789012345678901}\">;True");
    assert_prompt(chat,
                  "[{\"role\":\"u\",\"content\":null},{\"role\":\"v\"},{\"role\":\"w\",\"content\":"
                  "[{\"type\":\"text\"}],\"tool_calls\":[]}]",
                  NULL, "{\"add_generation_prompt\":false}",
                  "u=\"\";v=;w=[{\"type\": \"text\"}];False");
    char *text = prompt_of(chat, "[]", NULL, "{\"messages\":[]}", WEFT_INVALID);
    assert_string_equal(text, "chat_template_kwargs must not contain \"messages\"");
    free(text);
    weft__chat_close(chat);
}

static void contents_suit_the_template(void **state)
{
    static const struct {
        const char *text, *want; /* for TEXT, then LIST */
    } cases[] = {
        /* Prints texts: lists are joined. */
        {"{% for m in messages %}{{ m.content }};{% endfor %}", "a;bcd;"},
        {"{% for m in messages %}{{ '' + m.content }};{% endfor %}", "a;bcd;"},
        /* Knows both, and parts its parts. */
        {"{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
         "{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %};{% endfor %}",
         "a;<bc><d>;"},
        /* Knows lists only; and has no system role. */
        {"{% for m in messages %}{% for p in m.content %}<{{ p['text'] }}>{% endfor %};"
         "{% endfor %}",
         "<a>;<bc><d>;"},
        {"{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
         "{% for p in m.content %}<{{ p['text'] }}>{% endfor %};{% endfor %}",
         "<a>;<bc><d>;"},
    };
    (void)state;
    clear();
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        struct weft__chat *chat = NULL;
        put_text("chat_template.jinja", cases[i].text);
        assert_int_equal(weft__chat_open(dir, &chat, NULL), WEFT_OK);
        assert_prompt(chat,
                      "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":["
                      "{\"type\":\"text\",\"text\":\"bc\"},{\"type\":\"text\",\"text\":\"d\"}]}]",
                      NULL, NULL, cases[i].want);
        weft__chat_close(chat);
    }
}

static void refusals_keep_their_words(void **state)
{
    struct weft__chat *chat = NULL;
    (void)state;
    clear();
    put_text("chat_template.jinja",
             "{% if messages[0].role != 'user' %}{{ raise_exception('Start with a user.') }}"
             "{% endif %}{{ messages[1].content }}");
    assert_int_equal(weft__chat_open(dir, &chat, NULL), WEFT_OK);
    char *text = prompt_of(chat, "[{\"role\":\"system\"}]", NULL, NULL, WEFT_INVALID);
    assert_string_equal(text, "Start with a user.");
    free(text);
    text = prompt_of(chat, "[{\"role\":\"user\"}]", NULL, NULL, WEFT_INVALID);
    assert_string_equal(text, "chat template: line 1, column 105: 'list object' has no element 1");
    free(text);
    weft__chat_close(chat);
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(dir) == NULL ? -1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    clear();
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2),
        cmocka_unit_test(qwen3),
        cmocka_unit_test(glm_4_6),
        cmocka_unit_test(glm_4_7),
        cmocka_unit_test(deepseek_v3_gets_text_and_null),
        cmocka_unit_test(sources_in_order),
        cmocka_unit_test(missing_and_broken_templates),
        cmocka_unit_test(broken_configurations),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(messages_are_prepared),
        cmocka_unit_test(contents_suit_the_template),
        cmocka_unit_test(refusals_keep_their_words),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
