/* generate.c: loads a model and streams its answer to a question.
 *
 *     cc generate.c -lweft && ./a.out MODEL "What is the capital of France?" */
#include <stdio.h>

#include <weft.h>

static bool print(void *ctx, const char *text, size_t len)
{
    return fwrite(text, 1, len, ctx) == len;
}

int main(int argc, char **argv)
{
    weft_engine *engine;
    weft_generated answer;
    weft_error err;
    if (argc != 3) {
        (void)fprintf(stderr, "usage: %s MODEL QUESTION\n", argv[0]);
        return 2;
    }
    if (weft_engine_open(argv[1], NULL, &engine, &err) != WEFT_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const weft_message question = {.role = "user", .content = argv[2]};
    weft_generation generation = WEFT_GENERATION_DEFAULT;
    generation.messages = &question;
    generation.message_count = 1;
    generation.temperature = 0;
    generation.on_text = print;
    generation.ctx = stdout;
    weft_status status = weft_generate(engine, &generation, &answer, &err);
    if (status == WEFT_OK) {
        (void)printf("\n%lld tokens\n", (long long)answer.generated_tokens);
        weft_generated_free(&answer);
    } else {
        (void)fprintf(stderr, "%s\n", err.text);
    }
    weft_engine_close(engine);
    return status != WEFT_OK;
}
