/* Many random traces through the fuzzer's driver, which checks every token and every step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "../fuzz/sched_trace.h"

static void random_traces(void **unused)
{
    (void)unused;
    static uint8_t data[6000];
    uint64_t state = 3;
    struct weft__sched_counters total = {0};
    for (int round = 0; round < 400; round++) {
        size_t size = 200 + (size_t)round * 14;
        for (size_t i = 0; i < size; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            data[i] = (uint8_t)(state >> 56);
        }
        struct weft__sched_counters counters;
        trace_run(data, size, &counters);
        total.steps += counters.steps;
        total.generated_tokens += counters.generated_tokens;
        total.retractions += counters.retractions;
        total.cached_tokens += counters.cached_tokens;
        for (int i = 0; i < WEFT__FINISH_COUNT; i++) total.finished[i] += counters.finished[i];
    }
    print_message("%lld steps, %lld tokens, %lld retractions, %lld cached tokens\n",
                  (long long)total.steps, (long long)total.generated_tokens,
                  (long long)total.retractions, (long long)total.cached_tokens);
    /* The traces reach what they are for. */
    assert_true(total.retractions > 1000 && total.cached_tokens > 10000);
    for (int i = 0; i < WEFT__FINISH_COUNT; i++) {
        print_message("%s: %lld\n", weft__finish_name((enum weft__finish)i),
                      (long long)total.finished[i]);
        assert_true(total.finished[i] > 10);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_traces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
