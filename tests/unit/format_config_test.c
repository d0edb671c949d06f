/* Configuration files: limits, grammar, and getters whose errors name file and key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "format/format.h"
#include "format_files.h"

static char dir[64], path[256];

static int setup(void **state)
{
    (void)state;
    make_directory(dir);
    join(dir, "config.json", path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    remove_directory(dir);
    return 0;
}

static struct weft__node parse(const char *text)
{
    struct weft__node root = {0};
    weft_error err = {0};
    put_bytes(path, text, strlen(text));
    if (weft__config_open(path, &root, &err) != WEFT_OK) fail_msg("%s", err.text);
    return root;
}

static void refuse(const char *text, size_t len, weft_status status, const char *piece)
{
    struct weft__node root = {0};
    weft_error err = {0};
    put_bytes(path, text, len);
    weft_status got = weft__config_open(path, &root, &err);
    if (got != status || strstr(err.text, piece) == NULL || strstr(err.text, path) == NULL)
        fail_msg("'%s' lacks '%s'", err.text, piece);
    assert_null(root.json);
}

static void grammar_and_limits(void **state)
{
    (void)state;
    static const char *const cases[][2] = {{"", "expected an object"},
                                           {"[]", "expected an object"},
                                           {"{\"a\":1}}", "line 1"},
                                           {"{\"a\":1}\n\n{", "line 3"},
                                           {"{\n\"a\":1,\n\"a\":2}", "line 3: duplicate key 'a'"},
                                           {"{\"a\":{\"b\":1,\"\\u0062\":2}}", "duplicate key 'b'"},
                                           {"{\"a\":01}", "line 1"},
                                           {"{\"a\":1.}", "malformed number"},
                                           {"{\"a\":.5}", "expected a value"},
                                           {"{\"a\":1e}", "malformed number"},
                                           {"{\"a\":NaN}", "expected a value"},
                                           {"{\"a\":tru}", "expected a value"},
                                           {"{\"a\":\"\x01\"}", "control"},
                                           {"{\"a\":\"\xc3\"}", "UTF-8"},
                                           {"{\"a\":[1,]}", "expected a value"},
                                           {"{\"a\":9223372036854775808}", "out of range"},
                                           {"{\"a\":1e999}", "out of range"},
                                           {"{\"a\":\"b\\u0000\"}", "U+0000"},
                                           {"{\"a\\u0000\":1}", "U+0000"},
                                           {"{'a':1}", "expected a string"}};
    for (size_t i = 0; i < WEFT__COUNT(cases); i++)
        refuse(cases[i][0], strlen(cases[i][0]), WEFT_FORMAT, cases[i][1]);
    refuse("{}\0", 3, WEFT_FORMAT, "more text after");

    /* Nesting: 64 levels pass, more do not, however many. */
    static char deep[1 << 20];
    for (int levels = 63; levels <= 64; levels++) {
        int at = snprintf(deep, sizeof deep, "{\"a\":");
        memset(deep + at, '[', (size_t)levels);
        memset(deep + at + levels, ']', (size_t)levels);
        (void)snprintf(deep + at + 2 * levels, 2, "}");
        if (levels == 63) {
            struct weft__node root = parse(deep);
            weft__config_close(&root);
        } else {
            refuse(deep, strlen(deep), WEFT_FORMAT, "nested deeper");
        }
    }
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    refuse(deep, sizeof deep, WEFT_FORMAT, "nested deeper");

    /* Size and number of values. */
    size_t size = WEFT__MAX_CONFIG + 1;
    char *large = malloc(size);
    memset(large, ' ', size);
    refuse(large, size, WEFT_TOO_LONG, "bytes");
    for (size_t i = 0; i < size; i += 2) memcpy(large + i, "0,", i + 1 < size ? 2 : 1);
    memcpy(large, "{\"a\":  [", 8);
    refuse(large, size - 1, WEFT_FORMAT, "too many values");
    free(large);
}

static void strange_files(void **state)
{
    (void)state;
    struct weft__node root = {0};
    weft_error err = {0};
    assert_int_equal(weft__config_open(path, &root, &err), WEFT_NOT_FOUND);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(weft__config_open(path, &root, &err), WEFT_IO);
    assert_int_equal(weft__config_open(dir, &root, &err), WEFT_IO);
    weft__config_close(&root);
}

static void getters(void **state)
{
    (void)state;
    struct weft__node root =
        parse("{\"hidden\":64,\"eps\":1e-5,\"theta\":10000,\"tied\":true,\"name\":\"llama\","
              "\"none\":null,\"eos\":[1,2],\"pad\":7,\"rope\":{\"type\":\"yarn\",\"n\":1},"
              "\"types\":[\"full\",\"shared\"],\"old\":3,\"new\":3.0}");
    weft_error err = {0};
    int64_t n = -1, values[2];
    double d = 0;
    bool b = false;
    const char *s = NULL;
    assert_int_equal(weft__node_int(&root, "hidden", 1, 64, &n, &err), WEFT_OK);
    assert_int_equal(n, 64);
    assert_int_equal(weft__node_int(&root, "size|hidden", 1, 64, &n, &err), WEFT_OK);
    assert_int_equal(weft__node_double(&root, "eps", 0, 1, &d, &err), WEFT_OK);
    assert_true(d == 1e-5);
    assert_int_equal(weft__node_double(&root, "theta", 1, 1e9, &d, &err), WEFT_OK);
    assert_true(d == 10000);
    assert_int_equal(weft__node_bool_opt(&root, "tied", &b, &err), WEFT_OK);
    assert_true(b);
    assert_int_equal(weft__node_string(&root, "name", &s, &err), WEFT_OK);
    assert_string_equal(s, "llama");

    /* Absent or null: the default stays. */
    n = 5;
    assert_int_equal(weft__node_int_opt(&root, "none|absent", 0, 9, &n, &err), WEFT_OK);
    assert_int_equal(n, 5);
    assert_false(weft__node_has(&root, "none"));
    assert_true(weft__node_has(&root, "none|pad"));

    struct weft__int_list list = {.min = 0, .max = 9, .values = values, .max_count = 2};
    assert_int_equal(weft__node_ints(&root, "eos", &list, &err), WEFT_OK);
    assert_int_equal(list.count, 2);
    assert_int_equal(values[1], 2);
    assert_int_equal(weft__node_ints(&root, "pad", &list, &err), WEFT_OK);
    assert_int_equal(list.count, 1);
    assert_int_equal(values[0], 7);
    assert_int_equal(weft__node_ints(&root, "absent", &list, &err), WEFT_OK);
    assert_int_equal(list.count, 0);

    struct weft__node rope, types, none;
    assert_int_equal(weft__node_object(&root, "rope_parameters|rope", &rope, &err), WEFT_OK);
    assert_int_equal(weft__node_int(&rope, "n", 2, 3, &n, &err), WEFT_FORMAT);
    assert_non_null(strstr(err.text, "config.json: rope.n is 1; allowed are 2 to 3"));
    assert_int_equal(weft__node_list(&root, "types", &types, &err), WEFT_OK);
    assert_int_equal(weft__node_count(&types), 2);
    assert_int_equal(weft__node_string_at(&types, 1, &s, &err), WEFT_OK);
    assert_string_equal(s, "shared");
    assert_int_equal(weft__node_string_at(&types, 2, &s, &err), WEFT_FORMAT);
    assert_int_equal(weft__node_object(&root, "absent", &none, &err), WEFT_OK);
    assert_null(none.json);
    assert_int_equal(weft__node_int_opt(&none, "n", 0, 9, &n, &err), WEFT_OK);
    assert_int_equal(weft__node_int(&none, "n", 0, 9, &n, &err), WEFT_FORMAT);
    assert_non_null(strstr(err.text, "absent.n is missing"));

    /* Two spellings of one value agree, whatever their type. */
    assert_int_equal(weft__node_int(&root, "old|new", 0, 9, &n, &err), WEFT_OK);
    assert_int_equal(n, 3);
    assert_int_equal(weft__node_int(&root, "new", 0, 9, &n, &err), WEFT_OK);
    assert_int_equal(n, 3);
    weft__config_close(&root);
}

static void getter_errors(void **state)
{
    (void)state;
    struct weft__node root = parse(
        "{\"i\":1,\"f\":1.5,\"s\":\"x\",\"t\":true,\"l\":[1,\"2\"],\"o\":{},\"j\":2,\"r\":1e30}");
    weft_error err = {0};
    int64_t n, values[2];
    double d;
    bool b;
    const char *s;
    struct weft__node child;
    struct weft__int_list list = {.min = 0, .max = 9, .values = values, .max_count = 2};
    struct weft__int_list one = {.min = 0, .max = 9, .values = values, .max_count = 1};
#define FAILS(call, piece)                                                                 \
    do {                                                                                   \
        err.text[0] = '\0';                                                                \
        assert_int_not_equal(call, WEFT_OK);                                               \
        assert_non_null(strstr(err.text, path));                                           \
        if (strstr(err.text, piece) == NULL) fail_msg("'%s' lacks '%s'", err.text, piece); \
    } while (0)
    FAILS(weft__node_int(&root, "f", 0, 9, &n, &err), "f must be an integer, not a fraction");
    FAILS(weft__node_int(&root, "r", 0, INT64_MAX, &n, &err), "r is 1e+30; allowed are 0 to 9223");
    FAILS(weft__node_int(&root, "t", 0, 9, &n, &err), "t must be an integer, not true");
    FAILS(weft__node_int(&root, "i", 2, 9, &n, &err), "i is 1; allowed are 2 to 9");
    FAILS(weft__node_int(&root, "i|j", 0, 9, &n, &err), "i and j contradict");
    FAILS(weft__node_int_opt(&root, "i|j", 0, 9, &n, &err), "i and j contradict");
    FAILS(weft__node_int(&root, "x|y", 0, 9, &n, &err), "x is missing");
    FAILS(weft__node_double(&root, "s", 0, 9, &d, &err), "s must be a number, not a string");
    FAILS(weft__node_double(&root, "f", 2, 9, &d, &err), "f is 1.5; allowed are 2 to 9");
    FAILS(weft__node_bool_opt(&root, "i", &b, &err), "i must be true or false, not an integer");
    FAILS(weft__node_string(&root, "o", &s, &err), "o must be a string, not an object");
    FAILS(weft__node_object(&root, "l", &child, &err), "l must be an object, not a list");
    FAILS(weft__node_list(&root, "o", &child, &err), "o must be a list, not an object");
    FAILS(weft__node_ints(&root, "l", &list, &err), "l must be an integer, not a string");
    FAILS(weft__node_ints(&root, "l", &one, &err), "l has 2 values; at most 1");
    weft__config_close(&root);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {TEST(grammar_and_limits), TEST(strange_files), TEST(getters),
                                       TEST(getter_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
