/* weft_generate as a program of its own calls it: an answer, and what can't be a prompt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"

static int open_atlas(void **state)
{
    const weft_engine_options options = {.ranks = 1, .threads = 1, .context = 64, .max_running = 1};
    weft_engine *engine = NULL;
    weft_error err;
    if (weft_engine_open(WEFT_SOURCE_DIR "/models/atlas", &options, &engine, &err) != WEFT_OK)
        return -1;
    *state = engine;
    return 0;
}

static int close_atlas(void **state)
{
    weft_engine_close(*state);
    return 0;
}

static void a_question_is_answered(void **state)
{
    const weft_message question = {.role = "user", .content = "What is the capital of France?"};
    weft_generation ask = WEFT_GENERATION_DEFAULT;
    weft_generated answer = {0};
    weft_error err;
    ask.messages = &question;
    ask.message_count = 1;
    assert_int_equal(weft_generate(*state, &ask, &answer, &err), WEFT_OK);
    assert_string_equal(answer.text, "The capital of France is Paris.");
    assert_true(answer.complete);
    weft_generated_free(&answer);
}

/* The second message is wrong; the error says so. */
static void assert_refused(weft_engine *engine, const char *role, const char *content,
                           const char *text)
{
    const weft_message messages[] = {{.role = "user", .content = "Hello"},
                                     {.role = role, .content = content}};
    weft_generation ask = WEFT_GENERATION_DEFAULT;
    weft_generated answer = {0};
    weft_error err = {0};
    ask.messages = messages;
    ask.message_count = 2;
    assert_int_equal(weft_generate(engine, &ask, &answer, &err), WEFT_INVALID);
    assert_non_null(strstr(err.text, text));
}

static void wrong_messages_are_named(void **state)
{
    assert_refused(*state, "user", NULL, "message 2 of 2 has no role or no content");
    assert_refused(*state, NULL, "Hi", "message 2 of 2 has no role or no content");
    assert_refused(*state, "user", "\xff", "message 2 of 2 is not valid UTF-8");
}

static void a_prompt_is_needed(void **state)
{
    const weft_generation ask = WEFT_GENERATION_DEFAULT;
    weft_generated answer = {0};
    weft_error err = {0};
    assert_int_equal(weft_generate(*state, &ask, &answer, &err), WEFT_INVALID);
    assert_non_null(strstr(err.text, "messages, text or ids"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_question_is_answered),
        cmocka_unit_test(wrong_messages_are_named),
        cmocka_unit_test(a_prompt_is_needed),
    };
    return cmocka_run_group_tests(tests, open_atlas, close_atlas);
}
