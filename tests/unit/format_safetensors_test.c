/* Every rule of a safetensors loader, broken by a file made for it; and the files that must open.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "format/format.h"
#include "format_files.h"

static char dir[64];

static int setup(void **state)
{
    (void)state;
    make_directory(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    remove_directory(dir);
    return 0;
}

/* Opens path and expects the status, and every "; "-separated piece of text in the message. */
static void expect_failure(const char *path, weft_status status, const char *pieces)
{
    struct weft__checkpoint *checkpoint = NULL;
    weft_error err = {0};
    weft_status got = weft__checkpoint_open(path, &checkpoint, &err);
    if (got != status) print_error("%s: got '%s', wanted '%s'\n", path, err.text, pieces);
    assert_int_equal(got, status);
    assert_int_equal(err.status, status);
    assert_null(checkpoint);
    assert_null(strchr(err.text, '\n'));
    for (const char *piece = pieces; *piece != '\0';) {
        char text[128];
        size_t len = strcspn(piece, ";");
        (void)snprintf(text, sizeof text, "%.*s", (int)len, piece);
        if (strstr(err.text, text) == NULL) fail_msg("'%s' lacks '%s'", err.text, text);
        piece += len + strspn(piece + len, "; ");
    }
}

#define T(dtype, shape, offsets) \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

/* header, bytes of data, pieces of the message. */
static const struct {
    const char *header;
    size_t data;
    const char *pieces;
} broken[] = {
    /* rule 2: one JSON object of valid UTF-8 */
    {" {}", 0, "does not begin with {"},
    {"[]", 0, "does not begin with {"},
    {"{}x", 0, "spaces after"},
    {"{}\n", 0, "spaces after"},
    {"{}{}", 0, "spaces after"},
    {"{\"a\":" T("U8", "[1]", "[0,1]"), 1, "line 1; expected , or }"},
    {"{\"a\"}", 0, "expected : after"},
    {"{\"a\":1}", 0, "expected an object"},
    {"{\"a\":{}}", 0, "'a'; lacks dtype"},
    {"{,}", 0, "expected a string"},
    {"{\"a\":" T("U8", "[1]", "[0,1]") ",}", 1, "expected a string"},
    {"{\"\xff\":" T("U8", "[1]", "[0,1]") "}", 1, "ill-formed UTF-8"},
    {"{\"\xc0\xaf\":" T("U8", "[1]", "[0,1]") "}", 1, "ill-formed UTF-8"},
    {"{\"\xe0\x80\xaf\":" T("U8", "[1]", "[0,1]") "}", 1, "ill-formed UTF-8"},
    {"{\"\xed\xa0\x80\":" T("U8", "[1]", "[0,1]") "}", 1, "ill-formed UTF-8"},
    {"{\"\xf4\x90\x80\x80\":" T("U8", "[1]", "[0,1]") "}", 1, "ill-formed UTF-8"},
    {"{\"\xe2\x82\":" T("U8", "[1]", "[0,1]") "}", 1, "ill-formed UTF-8"},
    {"{\"a\tb\":" T("U8", "[1]", "[0,1]") "}", 1, "control character"},
    {"{\"a\\u0000b\":" T("U8", "[1]", "[0,1]") "}", 1, "U+0000"},
    {"{\"a\\ud800\":" T("U8", "[1]", "[0,1]") "}", 1, "surrogate"},
    {"{\"a\\ud800\\u0041\":" T("U8", "[1]", "[0,1]") "}", 1, "surrogate"},
    {"{\"a\\udc00\":" T("U8", "[1]", "[0,1]") "}", 1, "surrogate"},
    {"{\"a\\udc00\\ud800\":" T("U8", "[1]", "[0,1]") "}", 1, "surrogate"},
    {"{\"a\\x\":" T("U8", "[1]", "[0,1]") "}", 1, "unknown escape"},
    {"{\"a\\u12", 0, "without end"},
    {"{\"abc", 0, "without end"},
    {"{\"\":" T("U8", "[1]", "[0,1]") "}", 1, "1 to 1024 bytes"},
    {"{\"a\":[[[[[[[[", 0, "expected an object"},
    {"{\"a\":{\"dtype\":{\"dtype\":{}}}}", 0, "expected a string"},
    /* rule 3: duplicate keys, however spelt */
    {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"a\":" T("U8", "[1]", "[1,2]") "}", 2, "'a'; twice"},
    {"{\"a\":" T("U8", "[1]", "[0,1]") ",\"\\u0061\":" T("U8", "[1]", "[1,2]") "}", 2,
     "'a'; twice"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     "'a'; duplicate member"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__; twice"},
    {"{\"__metadata__\":{\"k\":\"v\",\"k\":\"v\"}}", 0, "'k'; duplicate"},
    /* rule 4: shapes */
    {"{\"a\":" T("U8", "[1.0]", "[0,1]") "}", 1, "'a'; integer"},
    {"{\"a\":" T("U8", "[1e0]", "[0,1]") "}", 1, "'a'; integer"},
    {"{\"a\":" T("U8", "[-1]", "[0,1]") "}", 1, "'a'; negative"},
    {"{\"a\":" T("U8", "[01]", "[0,1]") "}", 1, "'a'; malformed number"},
    {"{\"a\":" T("U8", "[\"1\"]", "[0,1]") "}", 1, "'a'; integer"},
    {"{\"a\":" T("U8", "[1 1]", "[0,1]") "}", 1, "'a'; expected , or ]"},
    {"{\"a\":" T("U8", "1", "[0,1]") "}", 1, "expected an array"},
    {"{\"a\":" T("U8", "null", "[0,1]") "}", 1, "expected an array"},
    {"{\"a\":" T("U8", "[18446744073709551616]", "[0,1]") "}", 1, "64 bits"},
    {"{\"a\":" T("U8", "[9223372036854775808]", "[0,1]") "}", 1, "'a'; 64 bits"},
    {"{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "'a'; 8 dimensions"},
    {"{\"a\":" T("U8", "[4294967296,4294967296]", "[0,1]") "}", 1, "'a'; 2^64 bits"},
    {"{\"a\":" T("F32", "[576460752303423488]", "[0,1]") "}", 1, "'a'; 2^64 bits"},
    {"{\"a\":" T("F4", "[3]", "[0,1]") "}", 1, "'a'; whole bytes"},
    {"{\"a\":" T("F6_E2M3", "[2]", "[0,1]") "}", 1, "'a'; whole bytes"},
    {"{\"a\":" T("F32", "[2]", "[0,4]") "}", 4, "'a'; F32 [2] takes 8 bytes; span 4"},
    {"{\"a\":" T("U8", "[0]", "[0,1]") "}", 1, "'a'; U8 [0] takes 0 bytes; span 1"},
    {"{\"a\":" T("F32", "[]", "[0,8]") "}", 8, "'a'; F32 [] takes 4 bytes; span 8"},
    /* rule 5: offsets */
    {"{\"a\":" T("U8", "[1]", "[0]") "}", 1, "'a'; fewer than two"},
    {"{\"a\":" T("U8", "[1]", "[0,1,2]") "}", 1, "'a'; more than two"},
    {"{\"a\":" T("U8", "[1]", "[]") "}", 1, "'a'; fewer than two"},
    {"{\"a\":" T("U8", "[1]", "[0.0,1]") "}", 1, "'a'; integer"},
    {"{\"a\":" T("U8", "[1]", "{\"b\":0}") "}", 1, "expected an array"},
    {"{\"a\":" T("U8", "[1]", "[2,1]") "}", 3, "'a'; backwards"},
    {"{\"a\":" T("U8", "[4]", "[0,4]") "}", 3, "'a'; byte 4; holds 3; truncated"},
    {"{\"a\":" T("U8", "[1]", "[18446744073709551615,0]") "}", 1, "'a'; 64 bits"},
    {"{\"a\":" T("U8", "[1]", "[0,18446744073709551615]") "}", 1, "'a'; 64 bits"},
    {"{\"a\":" T("U8", "[1]", "[0,9223372036854775807]") "}", 1, "'a'; truncated"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "'a'; lacks"},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "'a'; lacks"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "'a'; lacks"},
    {"{\"a\":{\"dtype\":8,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "expected a string"},
    /* rule 6: tiling */
    {"{\"a\":" T("U8", "[1]", "[1,2]") "}", 2, "'a'; begins at byte 1; gap"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[1,3]") "}", 3, "'b'; overlap"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[0,2]") "}", 2, "overlap"},
    {"{\"b\":" T("U8", "[2]", "[3,5]") ",\"a\":" T("U8", "[2]", "[0,2]") "}", 5, "'b'; gap"},
    {"{\"a\":" T("U8", "[2]", "[0,2]") "}", 3, "1 bytes after the last tensor"},
    {"{}", 1, "1 bytes after the last tensor"},
    {"{\"a\":" T("U8", "[0]", "[1,1]") ",\"b\":" T("U8", "[2]", "[0,2]") "}", 2, "'a'; overlap"},
    /* rule 7: metadata */
    {"{\"__metadata__\":{\"k\":1}}", 0, "expected a string"},
    {"{\"__metadata__\":[]}", 0, "expected an object"},
    {"{\"__metadata__\":{\"k\":{\"k\":\"v\"}}}", 0, "expected a string"},
    /* rule 8: unknown members */
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"strides\":[1]}}", 1,
     "'a'; member other than"},
    /* control characters in a name do not reach the message */
    {"{\"a\\n\\u001b[2J\":" T("U8", "[1]", "[1,2]") "}", 2, "'a??[2J'; gap"},
};

static void broken_headers(void **state)
{
    (void)state;
    char path[256];
    join(dir, "model.safetensors", path);
    const char zeros[16] = {0};
    for (size_t i = 0; i < WEFT__COUNT(broken); i++) {
        put_file(path, strlen(broken[i].header), broken[i].header, zeros, broken[i].data);
        expect_failure(path, WEFT_FORMAT, "model.safetensors");
        expect_failure(dir, WEFT_FORMAT, broken[i].pieces);
    }
}

/* Rule 1. */
static void broken_lengths(void **state)
{
    (void)state;
    char path[256];
    join(dir, "model.safetensors", path);
    for (size_t len = 0; len < 8; len++) {
        put_bytes(path, "\2\0\0\0\0\0\0\0", len);
        expect_failure(dir, WEFT_FORMAT, "model.safetensors; too few");
    }
    const uint64_t lengths[] = {0, 1, 3, 100, 99999999};
    for (size_t i = 0; i < WEFT__COUNT(lengths); i++) {
        put_file(path, lengths[i], "{}", "", 0);
        expect_failure(dir, WEFT_FORMAT, "header of; in a file of 10; truncated");
    }
    const uint64_t huge[] = {100000001, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63};
    for (size_t i = 0; i < WEFT__COUNT(huge); i++) {
        put_file(path, huge[i], "{}", "", 0);
        expect_failure(dir, WEFT_TOO_LONG, "model.safetensors; at most 100000000");
    }
    put_bytes(path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", 55);
    expect_failure(dir, WEFT_FORMAT, "git lfs pull");
}

/* A header as large as the limit, of the densest nonsense: refused without a tree. */
static void large_headers(void **state)
{
    (void)state;
    char path[256];
    size_t len = 20 << 20;
    char *header = malloc(len + 1);
    memset(header, '[', len);
    header[len] = '\0';
    memcpy(header, "{\"a\":", 5);
    put_file(join(dir, "model.safetensors", path), len, header, "", 0);
    expect_failure(dir, WEFT_FORMAT, "expected an object");
    /* A name beyond the limit. */
    memset(header, 'x', len);
    memcpy(header, "{\"", 2);
    memcpy(header + 1027, "\":{}}", 6);
    put_file(path, strlen(header), header, "", 0);
    expect_failure(dir, WEFT_FORMAT, "1 to 1024 bytes");
    free(header);
}

static struct weft__checkpoint *open_good(const char *path)
{
    struct weft__checkpoint *checkpoint = NULL;
    weft_error err = {0};
    if (weft__checkpoint_open(path, &checkpoint, &err) != WEFT_OK) fail_msg("%s", err.text);
    return checkpoint;
}

static void good_file(void **state)
{
    (void)state;
    char path[256];
    static const char header[] =
        "{ \"__metadata__\" : {\"format\":\"pt\"},\n"
        "\"w\":" T("F32", "[2,2]",
                   "[3,19]") ",\r\n\t"
                             "\"empty\":" T(
                                 "BF16", "[0,7]",
                                 "[3,3]") ","
                                          "\"scalar\":" T(
                                              "F32", "[]",
                                              "[19,23]") ","
                                                         "\"odd\":{\"data_offsets\":[0,3],"
                                                         "\"shape\":[3],\"dtype\":\"Q9\"},"
                                                         "\"caf\\u00e9\\ud83d\\ude00\\/\":" T(
                                                             "U8", "[1]", "[23,24]") "}      ";
    uint8_t data[24] = {1, 2, 3};
    const float values[5] = {1.5f, -2, 3, 4, 0.25f};
    memcpy(data + 3, values, sizeof values);
    data[23] = 77;
    put_file(join(dir, "model.safetensors", path), strlen(header), header, data, sizeof data);
    struct weft__checkpoint *checkpoint = open_good(dir);
    struct weft__tensor t;
    weft_error err;
    assert_string_equal(weft__checkpoint_path(checkpoint), dir);
    assert_int_equal(weft__checkpoint_count(checkpoint), 5);

    /* File order. */
    const char *const order[] = {"odd", "empty", "w", "scalar", "caf\xc3\xa9\xf0\x9f\x98\x80/"};
    for (int i = 0; i < 5; i++) {
        t = weft__checkpoint_at(checkpoint, i);
        assert_string_equal(t.name, order[i]);
        assert_true(weft__checkpoint_find(checkpoint, order[i], &t));
        assert_string_equal(t.file, path);
    }
    assert_int_equal(t.data[0], 77);
    assert_false(weft__checkpoint_find(checkpoint, "W", &t));

    const int64_t shape[] = {-1, 2}, other[] = {2, 3};
    float out[4];
    assert_int_equal(weft__checkpoint_get(checkpoint, "w", 2, shape, &t, &err), WEFT_OK);
    assert_int_equal(t.bytes, 16);
    assert_memory_equal(t.data, values, 16);
    assert_int_equal(weft__tensor_f32(&t, out, &err), WEFT_OK);
    assert_memory_equal(out, values, 16);
    struct weft__tensor row = weft__tensor_slice(&t, 1);
    assert_int_equal(row.dims, 1);
    assert_int_equal(row.shape[0], 2);
    assert_int_equal(weft__tensor_read(&row, 4, 4, out, &err), WEFT_OK);
    assert_true(out[0] == 4);
    assert_int_equal(weft__tensor_read(&row, 4, 5, out, &err), WEFT_INVALID);
    weft__tensor_prefetch(&t);
    assert_memory_equal(t.data, values, 16);

    assert_int_equal(weft__checkpoint_get(checkpoint, "w", 2, other, &t, &err), WEFT_FORMAT);
    assert_non_null(strstr(err.text, "[2, 2]"));
    assert_non_null(strstr(err.text, "[2, 3]"));
    assert_int_equal(weft__checkpoint_get(checkpoint, "w", 1, other, &t, &err), WEFT_FORMAT);
    assert_int_equal(weft__checkpoint_get(checkpoint, "none", 1, other, &t, &err), WEFT_NOT_FOUND);
    assert_non_null(strstr(err.text, "'none'"));
    const int64_t three[] = {3};
    assert_int_equal(weft__checkpoint_get(checkpoint, "odd", 1, three, &t, &err), WEFT_UNSUPPORTED);
    assert_non_null(strstr(err.text, "'odd'"));
    weft__checkpoint_close(checkpoint);
    weft__checkpoint_close(NULL);
}

/* Conversions of the types that norms and scales come in. */
static void converts(void **state)
{
    (void)state;
    char path[256];
    static const char header[] =
        "{\"h\":" T("F16", "[2]", "[0,4]") ",\"b\":" T("BF16", "[2]", "[4,8]") ",\"q\":" T(
            "F8_E4M3", "[2]", "[8,10]") ",\"e\":" T("F8_E8M0", "[2]",
                                                    "[10,12]") ",\"i\":" T("I8", "[1]",
                                                                           "[12,13]") "}";
    const uint8_t data[] = {0, 0x3e, 0, 0xc0, 0xc0, 0x3f, 0, 0xc0, 0x3c, 0xb8, 127, 130, 1};
    const float want[4][2] = {{1.5f, -2}, {1.5f, -2}, {1.5f, -1}, {1, 8}};
    put_file(join(dir, "model.safetensors", path), strlen(header), header, data, sizeof data);
    struct weft__checkpoint *checkpoint = open_good(path);
    for (int i = 0; i < 4; i++) {
        struct weft__tensor t = weft__checkpoint_at(checkpoint, i);
        float out[2];
        assert_int_equal(weft__tensor_f32(&t, out, NULL), WEFT_OK);
        assert_memory_equal(out, want[i], sizeof out);
    }
    struct weft__tensor t = weft__checkpoint_at(checkpoint, 4);
    float out;
    assert_int_equal(weft__tensor_f32(&t, &out, NULL), WEFT_UNSUPPORTED);
    weft__checkpoint_close(checkpoint);
}

/* A file that shrinks after it was opened gives an error to those who copy. */
static void shrinks(void **state)
{
    (void)state;
    char path[256];
    static const char header[] = "{\"a\":" T("U8", "[4]", "[0,4]") "}";
    put_file(join(dir, "model.safetensors", path), strlen(header), header, "abcd", 4);
    struct weft__checkpoint *checkpoint = open_good(dir);
    struct weft__tensor t = weft__checkpoint_at(checkpoint, 0);
    weft_error err;
    char out[4];
    assert_int_equal(truncate(path, (off_t)(8 + strlen(header) + 2)), 0);
    assert_int_equal(weft__tensor_read(&t, 0, 2, out, &err), WEFT_OK);
    assert_int_equal(weft__tensor_read(&t, 0, 4, out, &err), WEFT_IO);
    assert_non_null(strstr(err.text, "shorter"));
    weft__checkpoint_close(checkpoint);
}

/* ---- directories ---- */

static void put_shard(const char *name, const char *tensor, char value)
{
    char path[256], header[256];
    (void)snprintf(header, sizeof header, "{\"%s\":" T("U8", "[1]", "[0,1]") "}", tensor);
    put_file(join(dir, name, path), strlen(header), header, &value, 1);
}

static void put_index(const char *text)
{
    char path[256];
    put_bytes(join(dir, "model.safetensors.index.json", path), text, strlen(text));
}

static void good_shards(void **state)
{
    (void)state;
    char path[256];
    static const char two[] =
        "{\"a\":" T("U8", "[1]", "[0,1]") ",\"extra\":" T("U8", "[1]", "[1,2]") "}";
    put_file(join(dir, "s2.safetensors", path), strlen(two), two, "AE", 2);
    put_shard("s1.safetensors", "b", 'B');
    put_shard("model.safetensors", "unused", 'U');
    put_index("{\"metadata\":{\"total_size\":99,\"x\":[{},null,true,false,-1.5e+3,\"\"]},"
              "\"weight_map\":{\"a\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}}\n");
    struct weft__checkpoint *checkpoint = open_good(dir);
    struct weft__tensor t;
    assert_int_equal(weft__checkpoint_count(checkpoint), 2);
    t = weft__checkpoint_at(checkpoint, 0); /* shards by name */
    assert_string_equal(t.name, "b");
    assert_true(weft__checkpoint_find(checkpoint, "a", &t));
    assert_int_equal(t.data[0], 'A');
    assert_false(weft__checkpoint_find(checkpoint, "extra", &t));
    weft__checkpoint_close(checkpoint);
}

#define NEST "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["

static void broken_indexes(void **state)
{
    (void)state;
    static const struct {
        const char *index, *pieces;
    } cases[] = {
        {"", "index.json; expected an object"},
        {"[]", "expected an object"},
        {"{}", "no weight_map"},
        {"{\"metadata\":{}}", "no weight_map"},
        {"{\"weight_map\":[]}", "expected an object"},
        {"{\"weight_map\":{\"a\":1}}", "expected a string"},
        {"{\"weight_map\":{\"a\":\"s1\",\"a\":\"s1\"}}", "'a'; twice"},
        {"{\"weight_map\":{\"a\":\"s1\",\"\\u0061\":\"s1\"}}", "'a'; twice"},
        {"{\"weight_map\":{},\"weight_map\":{}}", "duplicate"},
        {"{\"metadata\":{\"k\":1,\"k\":2},\"weight_map\":{}}", "duplicate; 'k'"},
        {"{\"weight_map\":{}} x", "more text after"},
        {"{\"metadata\":" NEST "0"
         ",\"weight_map\":{}}",
         "nested deeper"},
        {"{\"weight_map\":{\"a\":\"../s1\"}}", "'a'; '../s1'; plain file name"},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "'a'; '/etc/passwd'; plain file name"},
        {"{\"weight_map\":{\"a\":\"sub/s1\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":\"sub\\\\s1\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":\".\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "plain file name"},
        {"{\"weight_map\":{\"a\":\"s\\u0000\"}}", "U+0000"},
        {"{\"weight_map\":{\"b\":\"s1\"}}", "s1; lacks tensor 'b'"},
        {"{\"weight_map\":{\"a\":\"s1\",\"b\":\"s1\"}}", "s1; lacks tensor 'b'"},
        {"{\"weight_map\":{\"a\":\"s1\",\"c\":\"s2\"}}", "s2; tensor 'a' is here; s1"},
        {"{\"weight_map\":{\"a\":\"s1\",\"d\":\"bad\"}}", "bad; too few"},
    };
    put_shard("s1", "a", 1);
    put_shard("s2", "a", 2);
    char path[256];
    put_bytes(join(dir, "bad", path), "", 0);
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        put_index(cases[i].index);
        expect_failure(dir, WEFT_FORMAT, cases[i].pieces);
    }
    put_index("{\"weight_map\":{\"a\":\"s1\",\"b\":\"s9\"}}");
    expect_failure(dir, WEFT_NOT_FOUND, "s9; missing");
}

/* What is not a regular file is refused without waiting for it. */
static void strange_files(void **state)
{
    (void)state;
    char path[256], target[256];
    expect_failure(dir, WEFT_NOT_FOUND, "neither model.safetensors nor; weft-format");
    expect_failure(join(dir, "none", path), WEFT_NOT_FOUND, "none");
    expect_failure("/dev/zero", WEFT_IO, "not a regular file");

    join(dir, "model.safetensors", path);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_failure(dir, WEFT_IO, "model.safetensors; not a regular file");
    expect_failure(path, WEFT_IO, "model.safetensors; not a regular file");
    assert_int_equal(unlink(path), 0);

    assert_int_equal(mkdir(path, 0700), 0);
    expect_failure(dir, WEFT_IO, "model.safetensors; not a regular file");
    assert_int_equal(rmdir(path), 0);

    assert_int_equal(symlink("model.safetensors", path), 0); /* to itself */
    expect_failure(dir, WEFT_IO, "model.safetensors; symbolic links");
    assert_int_equal(unlink(path), 0);

    /* A link to a regular file is how the Hugging Face cache stores models. */
    put_shard("blob", "a", 5);
    assert_int_equal(symlink(join(dir, "blob", target), path), 0);
    weft__checkpoint_close(open_good(dir));

    assert_int_equal(mkfifo(join(dir, "model.safetensors.index.json", path), 0600), 0);
    expect_failure(dir, WEFT_IO, "index.json; not a regular file");
    assert_int_equal(unlink(path), 0);
    put_index("{\"weight_map\":{\"a\":\"fifo\"}}");
    assert_int_equal(mkfifo(join(dir, "fifo", path), 0600), 0);
    expect_failure(dir, WEFT_IO, "fifo; not a regular file");
}

/* Names that collide in the low bits of an unseeded hash would make this quadratic. */
static void many_tensors(void **state)
{
    (void)state;
    enum { COUNT = 100000 };
    char path[256];
    size_t size = COUNT * 80, at = 0;
    char *header = malloc(size);
    for (int i = 0; i < COUNT; i++)
        at += (size_t)snprintf(header + at, size - at, "%c\"t%d\":" T("U8", "[0]", "[0,0]"),
                               i == 0 ? '{' : ',', i);
    (void)snprintf(header + at, size - at, "}");
    put_file(join(dir, "model.safetensors", path), strlen(header), header, "", 0);
    free(header);
    struct weft__checkpoint *checkpoint = open_good(dir);
    assert_int_equal(weft__checkpoint_count(checkpoint), COUNT);
    for (int i = 0; i < COUNT; i += 7) {
        struct weft__tensor t;
        (void)snprintf(path, sizeof path, "t%d", i);
        assert_true(weft__checkpoint_find(checkpoint, path, &t));
        assert_string_equal(t.name, path);
    }
    weft__checkpoint_close(checkpoint);
}

/* Ten thousand damaged copies of a valid file: any status, no crash, and what opens is readable. */
static void mutations(void **state)
{
    (void)state;
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},\"model.w\":" T(
        "BF16", "[2,4]", "[0,16]") ",\"model.s\":" T("F32", "[]",
                                                     "[16,20]") ",\"model.q\":" T("U8", "[3,4]",
                                                                                  "[20,32]") "}  ";
    static const char alphabet[] = "0123456789[]{}\",:-.eE\\u \xff\x80";
    char path[256], copy[512];
    size_t len = 8 + strlen(header) + 32;
    memset(copy, 0, sizeof copy);
    copy[0] = (char)strlen(header);
    memcpy(copy + 8, header, strlen(header));
    char original[512];
    memcpy(original, copy, sizeof copy);
    join(dir, "model.safetensors", path);
    srand(20240601);
    int opened = 0;
    for (int round = 0; round < 10000; round++) {
        memcpy(copy, original, sizeof copy);
        for (int n = 1 + rand() % 3; n > 0; n--) {
            size_t at = (size_t)rand() % len;
            if (rand() % 2)
                copy[at] = alphabet[(size_t)rand() % (sizeof alphabet - 1)];
            else
                copy[at] = (char)(rand() % 256);
        }
        put_bytes(path, copy, rand() % 8 == 0 ? (size_t)rand() % len : len);
        struct weft__checkpoint *checkpoint = NULL;
        weft_error err = {0};
        if (weft__checkpoint_open(dir, &checkpoint, &err) != WEFT_OK) {
            assert_true(err.text[0] != '\0');
            continue;
        }
        opened++;
        unsigned sum = 0;
        for (int64_t i = 0; i < weft__checkpoint_count(checkpoint); i++) {
            struct weft__tensor t = weft__checkpoint_at(checkpoint, i);
            for (int64_t b = 0; b < t.bytes; b++) sum += t.data[b];
        }
        assert_true(sum <= 256 * 32);
        weft__checkpoint_close(checkpoint);
    }
    assert_in_range(opened, 100, 9000);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(broken_headers), TEST(broken_lengths), TEST(large_headers), TEST(good_file),
        TEST(converts),       TEST(shrinks),        TEST(good_shards),   TEST(broken_indexes),
        TEST(strange_files),  TEST(many_tensors),   TEST(mutations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
