/* weft_generate as a program of its own calls it: an answer, and what can't be a prompt. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

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

struct listener {
    char text[256];
    size_t len;
    int calls, most;
};

/* Pieces in order; false from the call `most` on. */
static bool listen_to(void *ctx, const char *text, size_t len)
{
    struct listener *listener = ctx;
    memcpy(listener->text + listener->len, text, len);
    listener->len += len;
    return ++listener->calls != listener->most;
}

static void text_is_heard_as_it_comes(void **state)
{
    const weft_message question = {.role = "user", .content = "What is the capital of France?"};
    weft_generation ask = WEFT_GENERATION_DEFAULT;
    for (int most = 0; most < 3; most += 2) { /* to the end; until the second piece */
        struct listener listener = {.most = most};
        weft_generated answer = {0};
        weft_error err;
        ask.messages = &question;
        ask.message_count = 1;
        ask.on_text = listen_to;
        ask.ctx = &listener;
        assert_int_equal(weft_generate(*state, &ask, &answer, &err), WEFT_OK);
        assert_int_equal(answer.len, listener.len);
        assert_memory_equal(answer.text, listener.text, listener.len);
        assert_int_equal(answer.complete, most == 0);
        assert_true(most == 0 ? listener.calls > 2 : listener.calls == most);
        weft_generated_free(&answer);
    }
}

static weft_generated complete(weft_engine *engine, const weft_generation *ask)
{
    weft_generated answer = {0};
    weft_error err;
    if (weft_generate(engine, ask, &answer, &err) != WEFT_OK) fail_msg("%s", err.text);
    return answer;
}

static void ids_length_and_seed_are_heeded(void **state)
{
    static const int32_t ids[] = {300, 301, 302};
    weft_generation ask = WEFT_GENERATION_DEFAULT;
    ask.ids = ids;
    ask.id_count = 3;
    ask.max_tokens = 20;
    ask.ignore_eos = true;
    ask.temperature = 3;
    ask.seed = 1;
    uint64_t start = weft__now_ns();
    weft_generated one = complete(*state, &ask), same = complete(*state, &ask);
    ask.seed = 2;
    weft_generated other = complete(*state, &ask);
    ask.top_k = 1;
    weft_generated likeliest = complete(*state, &ask);
    ask.top_k = -1;
    ask.temperature = 0;
    weft_generated greedy = complete(*state, &ask);
    ask.repetition_penalty = 10;
    weft_generated varied = complete(*state, &ask);
    ask.repetition_penalty = -1;
    ask.temperature = 3;
    ask.min_p = 1;
    weft_generated best = complete(*state, &ask);
    assert_int_equal(one.prompt_tokens, 3);
    assert_int_equal(one.generated_tokens, 20);
    assert_false(one.complete);
    assert_true(one.prefill_ns > 0 && one.decode_ns > 0);
    assert_true(one.prefill_ns + one.decode_ns < weft__now_ns() - start);
    assert_string_equal(one.text, same.text);
    assert_string_not_equal(one.text, other.text);
    assert_string_equal(likeliest.text, greedy.text);
    assert_string_not_equal(varied.text, greedy.text);
    assert_string_equal(best.text, greedy.text);
    weft_generated_free(&one);
    weft_generated_free(&same);
    weft_generated_free(&other);
    weft_generated_free(&likeliest);
    weft_generated_free(&greedy);
    weft_generated_free(&varied);
    weft_generated_free(&best);
}

/* An answer may be cut within a character: its beginning is replaced, and heard. */
static void half_a_character_is_replaced(void **state)
{
    static const int32_t ids[] = {300, 301, 302};
    static const char replacement[] = "\xef\xbf\xbd";
    weft_generation ask = WEFT_GENERATION_DEFAULT;
    struct listener listener;
    weft_generated answer = {0};
    ask.ids = ids;
    ask.id_count = 3;
    ask.max_tokens = 2;
    ask.ignore_eos = true;
    ask.temperature = 100; /* any token */
    ask.on_text = listen_to;
    ask.ctx = &listener;
    do { /* until the first is the beginning of a character, which the second does not go on with */
        weft_generated_free(&answer);
        listener = (struct listener){.most = 1};
        ask.seed++;
        answer = complete(*state, &ask);
    } while (ask.seed < 10000 && (answer.generated_tokens < 2 || answer.len < 4 ||
                                  memcmp(answer.text, replacement, 3) != 0));
    weft_generated_free(&answer);
    ask.max_tokens = 1;
    listener = (struct listener){0};
    answer = complete(*state, &ask);
    assert_string_equal(answer.text, replacement);
    assert_string_equal(listener.text, replacement);
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

static void assert_ask_refused(weft_engine *engine, const weft_generation *ask, const char *text)
{
    weft_generated answer = {0};
    weft_error err = {0};
    assert_int_equal(weft_generate(engine, ask, &answer, &err), WEFT_INVALID);
    if (strstr(err.text, text) == NULL) fail_msg("%s", err.text);
}

/* Only negative settings mean the default. */
static void what_is_no_number_or_count_is_refused(void **state)
{
    static const int32_t ids[] = {300, 301, 302};
    weft_generation ask = WEFT_GENERATION_DEFAULT;
    ask.ids = ids;
    ask.id_count = 3;
    const struct {
        double *value;
        const char *name;
    } settings[] = {{&ask.temperature, "temperature is "},
                    {&ask.top_p, "top_p is "},
                    {&ask.min_p, "min_p is "},
                    {&ask.repetition_penalty, "repetition_penalty is "}};
    static const double wrong[] = {NAN, -NAN, INFINITY, 1e300, 101};
    for (size_t i = 0; i < WEFT__COUNT(settings); i++) {
        for (size_t k = 0; k < WEFT__COUNT(wrong); k++) {
            *settings[i].value = wrong[k];
            assert_ask_refused(*state, &ask, settings[i].name);
        }
        *settings[i].value = -1;
    }
    ask.max_tokens = -1;
    assert_ask_refused(*state, &ask, "max_tokens is -1, must be 0 or more");
    ask.max_tokens = 0;
    ask.id_count = -1;
    assert_ask_refused(*state, &ask, "id_count is -1, must be 0 or more");
    const weft_message hello = {.role = "user", .content = "Hello"};
    ask = (weft_generation)WEFT_GENERATION_DEFAULT;
    ask.messages = &hello;
    ask.message_count = -1;
    assert_ask_refused(*state, &ask, "message_count is -1, must be 0 or more");
}

static void one_prompt_is_needed(void **state)
{
    static const int32_t ids[] = {300};
    weft_generation ask = WEFT_GENERATION_DEFAULT;
    assert_ask_refused(*state, &ask, "messages, text or ids, one of them; 0 are set");
    ask.ids = ids;
    ask.id_count = 1;
    ask.text = "Hello";
    assert_ask_refused(*state, &ask, "messages, text or ids, one of them; 2 are set");
}

static void wrong_options_are_named(void **state)
{
    const weft_engine_options activations = {.activations = (weft_activations)7},
                              ranks = {.ranks = 17};
    const struct {
        const char *dir;
        const weft_engine_options *options;
        const char *text;
    } wrong[] = {{NULL, NULL, "directory is wanted"},
                 {WEFT_SOURCE_DIR "/models/atlas", &activations, "activations is 7; 0 to 2 are"},
                 {WEFT_SOURCE_DIR "/models/atlas", &ranks, "(--tp) is 17; 1 to 16 are"}};
    (void)state;
    weft_error err = {0};
    for (size_t i = 0; i < WEFT__COUNT(wrong); i++) {
        weft_engine *engine = NULL;
        weft_status status = weft_engine_open(wrong[i].dir, wrong[i].options, &engine, &err);
        assert_int_equal(status, WEFT_INVALID);
        if (strstr(err.text, wrong[i].text) == NULL) fail_msg("%s", err.text);
    }
    assert_int_equal(weft_engine_follow("x", NULL, 1, &err), WEFT_INVALID);
}

static void put(const char *dir, const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* Ends of both files, each once, those the model has, and no more than there is room for. */
static void generation_config_is_taken_as_it_is(void **state)
{
    char dir[] = "/tmp/weft-config-XXXXXX", path[128];
    struct weft__generation_config config;
    weft_error err;
    (void)state;
    if (mkdtemp(dir) == NULL) abort();
    put(dir, "generation_config.json",
        "{\"eos_token_id\": [3, 1, 3, 64], \"do_sample\": false, \"temperature\": 0.5, "
        "\"top_k\": 7}");
    put(dir, "config.json", "{\"eos_token_id\": [1, 63]}");
    assert_int_equal(weft__generation_config_load(dir, 64, &config, &err), WEFT_OK);
    assert_int_equal(config.eos_count, 3);
    assert_memory_equal(config.eos, ((int32_t[]){3, 1, 63}), 3 * sizeof(int32_t));
    assert_true(config.sampling.temperature == 0 && config.sampling.top_k == 7);
    for (int64_t id = 0; id < 2 * WEFT__EOS_MAX; id++)
        weft__generation_config_add_eos(&config, id, 64);
    assert_int_equal(config.eos_count, WEFT__EOS_MAX);
    put(dir, "generation_config.json", "{\"temperature\": 0.5}");
    assert_int_equal(weft__generation_config_load(dir, 64, &config, &err), WEFT_OK);
    assert_true(config.sampling.temperature == 0.5f);
    /* What loads can be sampled with. */
    put(dir, "generation_config.json", "{\"temperature\": 100, \"repetition_penalty\": 0.01}");
    assert_int_equal(weft__generation_config_load(dir, 64, &config, &err), WEFT_OK);
    assert_int_equal(weft__sampling_check(&config.sampling, 64, &err), WEFT_OK);
    put(dir, "generation_config.json", "{\"repetition_penalty\": 0.005}");
    assert_int_not_equal(weft__generation_config_load(dir, 64, &config, &err), WEFT_OK);
    assert_non_null(strstr(err.text, "repetition_penalty"));
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%sconfig.json", dir, i == 0 ? "" : "generation_");
        (void)unlink(path);
    }
    (void)rmdir(dir);
}

/* Reading weights that takes ms a call, once or each time. */
struct slow {
    unsigned ms, calls;
    bool once;
};

static void read_slowly(void *ctx, double share)
{
    struct slow *slow = ctx;
    (void)share;
    if (slow->calls++ == 0 || !slow->once) (void)usleep(slow->ms * 1000);
}

static weft_status open_slowly(uint32_t timeout_ms, struct slow *slow, weft_error *err)
{
    const weft_engine_options options = {.ranks = 2,
                                         .threads = 1,
                                         .context = 64,
                                         .chunk = 1, /* as large as what runs, at least */
                                         .max_running = 2,
                                         .timeout_ms = timeout_ms,
                                         .on_progress = read_slowly,
                                         .ctx = slow};
    weft_engine *engine;
    weft_status status =
        weft_engine_open(WEFT_SOURCE_DIR "/tests/golden/models/llama", &options, &engine, err);
    if (status == WEFT_OK) weft_engine_close(engine);
    return status;
}

/* The other rank waits while there are signs of life. */
static void loading_may_take_long_but_not_hang(void **state)
{
    struct slow all = {.ms = 50}, one = {.ms = 800, .once = true};
    weft_error err = {0};
    (void)state;
    if (open_slowly(1000, &all, &err) != WEFT_OK) fail_msg("%s", err.text);
    assert_true(all.calls * all.ms > 1000);
    assert_int_equal(open_slowly(300, &one, &err), WEFT_TIMEOUT);
    assert_non_null(strstr(err.text, "rank 0 gave no sign of life for 300 ms"));
}

static void remove_files(const char *dir, const char *const *names, size_t count)
{
    char path[256];
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
}

static void the_limit_on_address_space_is_heeded(void **state)
{
    enum { LEFT = 64 << 20 };
    unsigned long long pages = 0;
    struct rlimit before, low;
    FILE *file = fopen("/proc/self/statm", "r");
    (void)state;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu", &pages), 1);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    low = before;
    low.rlim_cur = pages * (unsigned long long)sysconf(_SC_PAGESIZE) + LEFT;
    assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
    uint64_t available = weft__memory_available();
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_in_range(available, LEFT / 2, LEFT);
}

/* Of memory, pages of files count as free: those of a model read once before are no reason to
 * refuse it. Of a CPU, a part makes one. */
static void limits_of_a_control_group_are_read(void **state)
{
    (void)state;
    char dir[] = "/tmp/weft-group-XXXXXX";
    static const char *const names[] = {"memory.max", "memory.current", "memory.stat", "cpu.max"};
    assert_non_null(mkdtemp(dir));
    assert_true(weft__group_memory(dir) == UINT64_MAX);
    put(dir, "memory.max", "max\n");
    put(dir, "memory.current", "700\n");
    assert_true(weft__group_memory(dir) == UINT64_MAX);
    put(dir, "memory.max", "1000\n");
    assert_int_equal(weft__group_memory(dir), 300);
    put(dir, "memory.stat", "anon 100\nfile 550\nshmem 50\ninactive_file 400\nactive_file 100\n");
    assert_int_equal(weft__group_memory(dir), 800);
    put(dir, "memory.stat", "anon 100\ninactive_file 4000\nactive_file 100\n");
    assert_int_equal(weft__group_memory(dir), 300);
    put(dir, "memory.max", "500\n");
    assert_int_equal(weft__group_memory(dir), 0);
    assert_int_equal(weft__group_cpus(dir), INT32_MAX);
    put(dir, "cpu.max", "max 100000\n");
    assert_int_equal(weft__group_cpus(dir), INT32_MAX);
    put(dir, "cpu.max", "250000 100000\n");
    assert_int_equal(weft__group_cpus(dir), 3);
    put(dir, "cpu.max", "1000 100000\n");
    assert_int_equal(weft__group_cpus(dir), 1);
    remove_files(dir, names, WEFT__COUNT(names));
}

/* Version 1: other files, and numbers of a group alone beside those with the groups in it. */
static void limits_of_an_older_control_group_are_read(void **state)
{
    (void)state;
    char dir[] = "/tmp/weft-group-XXXXXX";
    static const char *const names[] = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                        "memory.stat", "cpu.cfs_quota_us", "cpu.cfs_period_us"};
    assert_non_null(mkdtemp(dir));
    put(dir, "memory.usage_in_bytes", "700\n");
    put(dir, "memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    assert_true(weft__group_memory(dir) > (uint64_t)1 << 62);
    put(dir, "memory.limit_in_bytes", "1000\n");
    assert_int_equal(weft__group_memory(dir), 300);
    put(dir, "memory.stat",
        "cache 9\ninactive_file 4\nactive_file 1\ntotal_inactive_file 400\ntotal_active_file "
        "100\n");
    assert_int_equal(weft__group_memory(dir), 800);
    put(dir, "cpu.cfs_quota_us", "-1\n");
    put(dir, "cpu.cfs_period_us", "100000\n");
    assert_int_equal(weft__group_cpus(dir), INT32_MAX);
    put(dir, "cpu.cfs_quota_us", "150000\n");
    assert_int_equal(weft__group_cpus(dir), 2);
    remove_files(dir, names, WEFT__COUNT(names));
}

static void the_group_of_a_controller_is_found(void **state)
{
    (void)state;
    static const char old[] =
        "12:cpuset:/wrong\n7:cpu,cpuacct:/a\n4:memory:/b/c\n1:name=systemd:/d\n",
                      both[] = "4:memory:/b\n0::/e/memory\n", new[] = "0::/e:f\n";
    static const struct {
        const char *own, *controller, *dir;
    } cases[] = {
        {old, "memory", "/sys/fs/cgroup/memory/b/c"}, {old, "cpu", "/sys/fs/cgroup/cpu/a"},
        {both, "memory", "/sys/fs/cgroup/memory/b"},  {both, "cpu", "/sys/fs/cgroup/e/memory"},
        {new, "memory", "/sys/fs/cgroup/e:f"},        {"", "memory", "/sys/fs/cgroup"},
    };
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        char dir[256];
        weft__group_find(cases[i].own, cases[i].controller, dir, sizeof dir);
        assert_string_equal(dir, cases[i].dir);
    }
}

static void each_default_rank_has_a_cpu(void **state)
{
    (void)state;
    assert_int_equal(weft__default_ranks(2, 64), 2);
    assert_int_equal(weft__default_ranks(4, 3), 3);
    assert_int_equal(weft__default_ranks(8, 1), 1);
    assert_int_equal(weft__default_ranks(64, 512), WEFT__MAX_RANKS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_question_is_answered),
        cmocka_unit_test(text_is_heard_as_it_comes),
        cmocka_unit_test(ids_length_and_seed_are_heeded),
        cmocka_unit_test(half_a_character_is_replaced),
        cmocka_unit_test(wrong_messages_are_named),
        cmocka_unit_test(what_is_no_number_or_count_is_refused),
        cmocka_unit_test(one_prompt_is_needed),
        cmocka_unit_test(wrong_options_are_named),
        cmocka_unit_test(generation_config_is_taken_as_it_is),
        cmocka_unit_test(loading_may_take_long_but_not_hang),
        cmocka_unit_test(the_limit_on_address_space_is_heeded),
        cmocka_unit_test(limits_of_a_control_group_are_read),
        cmocka_unit_test(limits_of_an_older_control_group_are_read),
        cmocka_unit_test(the_group_of_a_controller_is_found),
        cmocka_unit_test(each_default_rank_has_a_cpu),
    };
    return cmocka_run_group_tests(tests, open_atlas, close_atlas);
}
