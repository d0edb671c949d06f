/* Request heads and chunked bodies, by RFC 9112; tests/e2e/serve_wire.py sends more over a socket.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "http/private.h"

static int parse(const char *text, struct weft__head *head)
{
    assert_int_equal(weft__head_size(text, strlen(text)), strlen(text));
    return weft__head_parse(text, strlen(text), head);
}

static void a_head_is_read(void **unused)
{
    (void)unused;
    struct weft__head head;
    assert_int_equal(
        parse("POST /v1/x?a=b HTTP/1.1\r\nHost: h\r\nCONTENT-LENGTH:  12 \r\n"
              "authorization: Bearer k\r\nX-Request-Id: 7\r\nExpect: 100-Continue\r\n\r\n",
              &head),
        0);
    assert_int_equal(head.method, WEFT__METHOD_POST);
    assert_int_equal(head.minor, 1);
    assert_true(head.keep_alive && head.expect && head.has_length && !head.chunked);
    assert_int_equal(head.length, 12);
    assert_memory_equal(head.target.data, "/v1/x?a=b", head.target.len);
    assert_memory_equal(head.authorization.data, "Bearer k", head.authorization.len);
    assert_memory_equal(head.request_id.data, "7", head.request_id.len);
}

static void keep_alive_follows_the_version(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        bool alive;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade , Close\r\n\r\n", false},
        {"GET / HTTP/1.0\r\n\r\n", false},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true},
    };
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        struct weft__head head;
        assert_int_equal(parse(cases[i].text, &head), 0);
        assert_int_equal(head.keep_alive, cases[i].alive);
    }
}

static void bad_heads_have_their_status(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"GET /\r\n\r\n", 400},
        {"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET / HTTP/1.1 \r\n\r\n", 400},
        {"G(T / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\n\r\n", 505},
        {"GET / HTTP/1.2\r\n\r\n", 505},
        {"GET / HTTP/1.1\r\nHost: x\r\nA\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nA: b\nC: d\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
         400},
        {"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {"GET / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n", 417},
    };
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        struct weft__head head;
        int status = parse(cases[i].text, &head);
        if (status != cases[i].status)
            fail_msg("%s: %d, wanted %d", cases[i].text, status, cases[i].status);
    }
}

/* RFC 9112, 3.2. */
static void a_host_is_named_once(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: \xc3\xa4\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\n\r\n", 0},
        {"GET / HTTP/1.1\r\nHOST:\r\n\r\n", 0},
        {"GET / HTTP/1.1\r\nHost: [fe80::1%25eth0]:8000\r\n\r\n", 0},
        {"GET / HTTP/1.1\r\nHost: my_host.example-1.org:80\r\n\r\n", 0},
    };
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        struct weft__head head;
        int status = parse(cases[i].text, &head);
        if (status != cases[i].status || (status != 0) != (head.why != NULL))
            fail_msg("%s: %d, wanted %d", cases[i].text, status, cases[i].status);
    }
}

static void paths_are_decoded(void **unused)
{
    (void)unused;
    static const struct {
        const char *target, *path, *query; /* path NULL: refused */
    } cases[] = {
        {"/", "/", ""},
        {"/a/b//?x=%20", "/a/b", "x=%20"},
        {"/a%2Fb%20c", "/a/b c", ""},
        {"/a%2", NULL, NULL},
        {"/a%zz", NULL, NULL},
        {"/a%00", NULL, NULL},
        {"*", NULL, NULL},
        {"http://h:80/a?b", "/a", "b"},
        {"HTTPS://h", "/", ""},
        {"http://", NULL, NULL},
        {"http:///a", NULL, NULL},
        {"http://h?a/b", NULL, NULL},
        {"ftp://h/a", NULL, NULL},
        {"?a", NULL, NULL},
        {"/%c3%a4", "/\xc3\xa4", ""},
    };
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        char path[WEFT__PATH_MAX];
        struct weft__slice query, target = {cases[i].target, strlen(cases[i].target)};
        bool ok = weft__path_decode(target, path, &query);
        assert_int_equal(ok, cases[i].path != NULL);
        if (!ok) continue;
        assert_string_equal(path, cases[i].path);
        assert_int_equal(query.len, strlen(cases[i].query));
        assert_memory_equal(query.data, cases[i].query, query.len);
    }
}

/* Fed in pieces of every size, the body is the same and what follows it is left. */
static void chunks_are_joined(void **unused)
{
    (void)unused;
    static const char text[] =
        "5\r\nhello\r\n1;name=\"v\"\r\n,\r\n006\r\n world\r\n0\r\nT: x\r\n\r\nGET /";
    size_t len = strlen(text);
    for (size_t piece = 1; piece <= len; piece++) {
        struct weft__chunked chunked = {0};
        struct weft__buf body;
        size_t start = 0;
        weft__buf_init(&body, 100);
        for (size_t end = piece; chunked.state != WEFT__CHUNK_DONE; end += piece) {
            size_t used;
            if (end > len) end = len;
            assert_int_equal(weft__chunked_feed(&chunked, text + start, end - start, &used, &body),
                             0);
            start += used;
        }
        assert_string_equal(body.data, "hello, world");
        assert_string_equal(text + start, "GET /");
        weft__buf_free(&body);
    }
}

static void bad_chunks_have_their_status(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"\r\n", 400},      {"g\r\n", 400},         {"5\nhello", 400},
        {"-1\r\n", 400},    {"3\r\nabcd\r\n", 400}, {"ffffffffffffff\r\n", 400},
        {"ffff\r\na", 413}, {"0x3\r\nabc", 400},    {"\n", 400},
    };
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        struct weft__chunked chunked = {0};
        struct weft__buf body;
        size_t len = strlen(cases[i].text), used = SIZE_MAX;
        weft__buf_init(&body, 100);
        int status = weft__chunked_feed(&chunked, cases[i].text, len, &used, &body);
        if (status != cases[i].status || used > len)
            fail_msg("%s: %d, wanted %d; %zu used", cases[i].text, status, cases[i].status, used);
        weft__buf_free(&body);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_is_read),
        cmocka_unit_test(keep_alive_follows_the_version),
        cmocka_unit_test(bad_heads_have_their_status),
        cmocka_unit_test(a_host_is_named_once),
        cmocka_unit_test(paths_are_decoded),
        cmocka_unit_test(chunks_are_joined),
        cmocka_unit_test(bad_chunks_have_their_status),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
