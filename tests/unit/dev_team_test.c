/* The device's life cycle: memory, teams, many ranks on few cores. */
#include <pthread.h>
#include <sched.h>

#include "dev_case.h"

static void memory_is_zero_and_aligned(void **state)
{
    (void)state;
    const size_t sizes[] = {0, 1, 63, 64, 4097, 5000000};
    for (size_t i = 0; i < WEFT__COUNT(sizes); i++) {
        unsigned char *memory = weft__cpu.core->alloc(case_dev[0], sizes[i]);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (size_t b = 0; b < sizes[i]; b++) assert_int_equal(memory[b], 0);
        memset(memory, 1, sizes[i]);
        weft__cpu.core->free(case_dev[0], memory);
    }
    assert_null(weft__cpu.core->alloc(case_dev[0], SIZE_MAX));
    weft__cpu.core->free(case_dev[0], NULL);
    weft__cpu.core->close(NULL);
}

static void open_refuses_what_cannot_be(void **state)
{
    (void)state;
    struct weft__dev *dev = NULL;
    weft_error err;
    const struct weft__dev_options none = {.threads = 0, .first_cpu = -1};
    assert_int_equal(weft__cpu.core->open(&none, &dev, &err), WEFT_INVALID);
    const struct weft__dev_options far = {.threads = 2, .first_cpu = 100000};
    assert_int_equal(weft__cpu.core->open(&far, &dev, &err), WEFT_INVALID);
    assert_non_null(strstr(err.text, "CPU 100000"));
    const struct weft__dev_options strange = {.threads = 1, .first_cpu = -1, .kernels = "abacus"};
    assert_int_equal(weft__cpu.core->open(&strange, &dev, &err), WEFT_UNSUPPORTED);
    assert_non_null(strstr(err.text, "abacus"));
    assert_null(dev);
}

static void *pinned(void *arg)
{
    const struct weft__dev_options options = {.threads = 1, .first_cpu = *(int *)arg};
    struct weft__dev *dev;
    cpu_set_t set;
    *(int *)arg = -1;
    if (weft__cpu.core->open(&options, &dev, NULL) != WEFT_OK) return NULL;
    if (pthread_getaffinity_np(pthread_self(), sizeof set, &set) == 0 && CPU_COUNT(&set) == 1)
        *(int *)arg = sched_getcpu();
    weft__cpu.core->close(dev);
    return NULL;
}

static void threads_are_pinned(void **state)
{
    (void)state;
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    int cpu = 0;
    while (!CPU_ISSET((size_t)cpu, &set)) cpu++;
    int got = cpu;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, pinned, &got), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(got, cpu);
}

static void prepare_knows_its_types(void **state)
{
    (void)state;
    weft_error err;
    for (int d = 0; d < WEFT_DTYPE_COUNT; d++) {
        struct weft__matrix w = {.dtype = (weft_dtype)d};
        bool works = d == WEFT_F32 || d == WEFT_F16 || d == WEFT_BF16 || d == WEFT_F8_E4M3 ||
                     d == WEFT_F4_E2M1;
        assert_int_equal(weft__cpu.core->prepare(case_dev[0], &w, &err),
                         works ? WEFT_OK : WEFT_UNSUPPORTED);
    }
    assert_int_equal(weft__cpu.core->sync(case_dev[0], &err), WEFT_OK);
}

/* Sixteen ranks at once, each with its team: `rounds` products, each checked. */
struct rank {
    int threads, rounds, wrong;
};

static void *rank_main(void *arg)
{
    struct rank *rank = arg;
    const struct weft__dev_options options = {.threads = rank->threads, .first_cpu = -1};
    struct weft__dev *dev;
    enum { ROWS = 300, COLS = 256 };
    rank->wrong = 1;
    if (weft__cpu.core->open(&options, &dev, NULL) != WEFT_OK) return NULL;
    float *x = weft__cpu.core->alloc(dev, COLS * sizeof(float));
    float *y = weft__cpu.core->alloc(dev, ROWS * sizeof(float));
    float *w = weft__cpu.core->alloc(dev, ROWS * COLS * sizeof(float));
    if (x == NULL || y == NULL || w == NULL) return NULL;
    for (int i = 0; i < COLS; i++) x[i] = 1;
    for (int i = 0; i < ROWS * COLS; i++) w[i] = (float)(i / COLS);
    struct weft__matrix m = {.dtype = WEFT_F32,
                             .rows = ROWS,
                             .cols = COLS,
                             .data = (const uint8_t *)w,
                             .row_bytes = COLS * sizeof(float),
                             .scale_global = 1};
    struct weft__op_linear op = {
        .w = &m, .count = 1, .x = x, .x_stride = COLS, .tokens = 1, .y = y, .y_stride = ROWS};
    rank->wrong = 0;
    for (int i = 0; i < rank->rounds; i++) {
        memset(y, 0xff, ROWS * sizeof(float));
        weft__cpu.model->linear(dev, &op);
        for (int r = 0; r < ROWS; r++) rank->wrong += y[r] != (float)(r * COLS);
    }
    weft__cpu.core->free(dev, x);
    weft__cpu.core->free(dev, y);
    weft__cpu.core->free(dev, w);
    weft__cpu.core->close(dev);
    return NULL;
}

static void many_ranks_on_few_cores(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        struct rank rank[16];
        pthread_t thread[16];
        for (int r = 0; r < 16; r++) {
            rank[r] = (struct rank){.threads = threads, .rounds = 30};
            assert_int_equal(pthread_create(&thread[r], NULL, rank_main, &rank[r]), 0);
        }
        for (int r = 0; r < 16; r++) assert_int_equal(pthread_join(thread[r], NULL), 0);
        for (int r = 0; r < 16; r++) assert_int_equal(rank[r].wrong, 0);
    }
}

/* Job after job, so fast that workers are asleep, spinning, or late when the next begins. */
static void short_jobs_follow_each_other(void **state)
{
    (void)state;
    for (int threads = 2; threads <= 5; threads++) {
        struct rank rank = {.threads = threads, .rounds = 600};
        (void)rank_main(&rank);
        assert_int_equal(rank.wrong, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_zero_and_aligned),
        cmocka_unit_test(open_refuses_what_cannot_be),
        cmocka_unit_test(threads_are_pinned),
        cmocka_unit_test(prepare_knows_its_types),
        cmocka_unit_test(many_ranks_on_few_cores),
        cmocka_unit_test(short_jobs_follow_each_other),
    };
    return cmocka_run_group_tests(tests, case_setup, case_teardown);
}
