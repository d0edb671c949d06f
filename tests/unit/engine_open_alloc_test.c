/* A model is opened, asked and closed while memory runs out at every allocation: text side, plan,
 * scheduler, ranks and their threads, weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "alloc_fail.h"
#include "engine/engine.h"

struct model {
    const char *dir;
    int ranks;
    bool has_tokenizer; /* without one there is nothing to ask */
};

/* Rank 0 hears of another rank's failure in that rank's words. */
static weft_status own(weft_status status, weft_error *err)
{
    if (status == WEFT_PEER && strstr(err->text, "out of memory") != NULL)
        err->status = status = WEFT_NO_MEMORY;
    return status;
}

static weft_status open_and_ask(void *context, weft_error *err)
{
    const struct model *model = context;
    static const int32_t ids[] = {5, 6, 7};
    const weft_engine_options options = {
        .ranks = model->ranks,
        .threads = 2,
        .context = 32,
        .max_running = 2,
        .timeout_ms = 5000,
    };
    weft_generation ask = WEFT_GENERATION_DEFAULT;
    weft_generated answer = {0};
    weft_engine *engine = NULL;
    ask.ids = ids;
    ask.id_count = 3;
    ask.max_tokens = 2;
    ask.ignore_eos = true;
    weft_status status = weft_engine_open(model->dir, &options, &engine, err);
    if (status == WEFT_OK && model->has_tokenizer)
        status = weft_generate(engine, &ask, &answer, err);
    weft_generated_free(&answer);
    weft_engine_close(engine);
    return own(status, err);
}

static int setup(void **state)
{
    (void)state;
    alloc_fail_jansson();
    return 0;
}

static void one_rank(void **state)
{
    (void)state;
    struct model model = {WEFT_SOURCE_DIR "/models/atlas", 1, true};
    alloc_fail_sweep("atlas on 1 rank", open_and_ask, &model, 500);
}

static void ranks(void **state)
{
    (void)state;
    struct model model = {WEFT_SOURCE_DIR "/tests/golden/models/fp8-block", 3, false};
    alloc_fail_sweep("fp8-block on 3 ranks", open_and_ask, &model, 500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks),
        cmocka_unit_test(one_rank),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
