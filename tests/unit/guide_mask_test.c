/* Constrained decoding over the tokens of atlas: masks against what single tokens do, random walks
 * whose texts jansson must read, states that are dropped, and schemas that take too much. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "guide/private.h"

enum { EOS = 0, STEPS_MAX = 400 };

static struct weft__tokenizer *tokenizer;
static struct weft__guide_vocab *vocab;
static const int32_t eos[] = {EOS};

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525U + 1013904223U;
    return *state >> 8;
}

static int set_up(void **unused)
{
    (void)unused;
    weft_error err;
    return weft__tokenizer_load(WEFT_SOURCE_DIR "/models/atlas/tokenizer.json", &tokenizer, &err) ==
                       WEFT_OK &&
                   weft__guide_vocab_open(tokenizer, weft__tokenizer_size(tokenizer) + 40, eos, 1,
                                          &vocab, &err) == WEFT_OK
               ? 0
               : -1;
}

static int tear_down(void **unused)
{
    (void)unused;
    weft__guide_vocab_close(vocab);
    weft__tokenizer_free(tokenizer);
    return 0;
}

static weft_status open_guide(const char *schema, struct weft__guide **out, weft_error *err)
{
    json_t *value = json_loads(schema, JSON_DECODE_ANY, NULL);
    assert_non_null(value);
    const struct weft__guide_spec spec = {.schema = value, .prefix = "", .suffix = ""};
    weft_status status = weft__guide_open(vocab, &spec, out, err);
    json_decref(value);
    return status;
}

static struct weft__guide *guide_of(const char *schema)
{
    struct weft__guide *guide = NULL;
    weft_error err;
    if (open_guide(schema, &guide, &err) != WEFT_OK) fail_msg("%s: %s", schema, err.text);
    return guide;
}

static json_t *long_token(const json_t *like, int32_t id, size_t len)
{
    json_t *token = json_deep_copy(like);
    char content[300];
    memset(content, 'x', len);
    json_object_set_new(token, "id", json_integer(id));
    json_object_set_new(token, "content", json_stringn(content, len));
    json_object_set_new(token, "special", json_false());
    return token;
}

/* The tokenizer of atlas with two more tokens, of as many bytes as may be chosen and one more. */
static struct weft__tokenizer *with_long_tokens(int32_t first)
{
    char path[] = "/tmp/weft-guide-XXXXXX";
    int fd = mkstemp(path);
    json_t *root = json_load_file(WEFT_SOURCE_DIR "/models/atlas/tokenizer.json", 0, NULL);
    json_t *added = json_object_get(root, "added_tokens"), *like = json_array_get(added, 0);
    struct weft__tokenizer *out = NULL;
    weft_error err;
    for (int i = 0; i < 2; i++)
        json_array_append_new(added,
                              long_token(like, first + i, WEFT__GUIDE_TOKEN_MAX + (size_t)i));
    assert_true(fd >= 0 && json_dumpfd(root, fd, 0) == 0);
    (void)close(fd);
    if (weft__tokenizer_load(path, &out, &err) != WEFT_OK) fail_msg("%s", err.text);
    (void)unlink(path);
    json_decref(root);
    return out;
}

static bool in_mask(const uint32_t *mask, int32_t id)
{
    return (mask[id / 32] >> (id % 32) & 1) != 0;
}

/* An allowed token, or -1; text that ends soon is preferred, so that walks end. */
static int32_t pick(const uint32_t *mask, uint32_t *random, bool hurry)
{
    int32_t size = weft__tokenizer_size(tokenizer),
            begin = (int32_t)(next(random) % (uint32_t)size);
    if (in_mask(mask, EOS)) return EOS;
    for (const char *closing = hurry ? "\"}]0,:" : ""; *closing != '\0'; closing++) {
        int32_t id = weft__token_id(tokenizer, closing, 1);
        if (id >= 0 && in_mask(mask, id)) return id;
    }
    for (int32_t i = 0; i < size; i++)
        if (in_mask(mask, (begin + i) % size)) return (begin + i) % size;
    return -1;
}

static const char *const schemas[] = {
    "true",
    "{\"type\":\"object\"}",
    "{\"type\":\"number\"}",
    "{\"enum\":[\"a\",\"ab\",\"\\u00e9\",12,-1.5,null,[],{\"k\":[1]}]}",
    "{\"type\":\"string\",\"minLength\":2,\"maxLength\":6}",
    "{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":1,\"maxItems\":3}",
    "{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":["
    "\"b\"]}",
    "{\"properties\":{\"ab\":{},\"a\\u00fc\":{}},\"additionalProperties\":{\"type\":\"null\"}}",
    "{\"$defs\":{\"n\":{\"properties\":{\"v\":{\"type\":\"integer\"},\"n\":{\"$ref\":\"#/$defs/"
    "n\"}}}},"
    "\"$ref\":\"#/$defs/n\"}",
};

/* A token is allowed where, and only where, its bytes alone lead on. */
static void masks_are_what_tokens_do(void **unused)
{
    (void)unused;
    uint32_t random = 7;
    for (size_t i = 0; i < WEFT__COUNT(schemas); i++) {
        struct weft__guide *guide = guide_of(schemas[i]);
        struct weft__guided text;
        weft__guided_init(&text, guide);
        for (int step = 0; step < 12; step++) {
            uint32_t mask[4096];
            assert_true(vocab->vocab <= (int64_t)sizeof mask * 8);
            memcpy(mask, weft__guided_mask(&text), (size_t)(vocab->vocab + 31) / 32 * 4);
            for (int32_t id = 0; id < vocab->vocab; id++) {
                if (id == EOS) continue;
                struct weft__token_text bytes = weft__token_bytes(tokenizer, id);
                bool usable = bytes.len > 0 && !weft__token_is_special(tokenizer, id);
                struct weft__guided copy = text;
                weft__buf_init(&copy.text, 1000);
                (void)weft__guided_push(&copy, usable ? id : EOS);
                bool alive = usable && copy.state >= 0;
                weft__guided_free(&copy);
                if (alive != in_mask(mask, id))
                    fail_msg("%s, step %d: token %d", schemas[i], step, id);
            }
            int32_t id = pick(mask, &random, false);
            assert_int_not_equal(id, -1);
            if (weft__guided_push(&text, id)) break;
        }
        weft__guided_free(&text);
        weft__guide_close(guide);
    }
}

static void walks_end_in_json(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < WEFT__COUNT(schemas); i++) {
        struct weft__guide *guide = guide_of(schemas[i]);
        for (uint32_t walk = 0; walk < 200; walk++) {
            struct weft__guided text;
            uint32_t random = walk * 7919 + 1;
            bool done = false;
            weft__guided_init(&text, guide);
            for (int step = 0; step < STEPS_MAX && !done; step++) {
                int32_t id = pick(weft__guided_mask(&text), &random, step > (int)(walk % 40));
                if (id < 0) fail_msg("%s: dead end after %s", schemas[i], text.text.data);
                done = weft__guided_push(&text, id);
            }
            assert_true(done);
            json_t *value = json_loadb(text.text.data, text.text.len, JSON_DECODE_ANY, NULL);
            if (value == NULL) fail_msg("%s: not JSON: %s", schemas[i], text.text.data);
            json_decref(value);
            weft__guided_free(&text);
        }
        weft__guide_close(guide);
    }
}

static int32_t byte_token(char byte)
{
    int32_t id = 0;
    while (weft__token_bytes(tokenizer, id).len != 1 ||
           weft__token_bytes(tokenizer, id).data[0] != byte)
        id++;
    return id;
}

static bool accepts(struct weft__guide *guide, const char *bytes)
{
    struct weft__guided text;
    weft__guided_init(&text, guide);
    for (; *bytes != '\0'; bytes++) (void)weft__guided_push(&text, byte_token(*bytes));
    bool end = in_mask(weft__guided_mask(&text), EOS);
    weft__guided_free(&text);
    return end;
}

/* All integers around the bounds, against what the bounds say. */
static void bounds_are_exact(void **unused)
{
    (void)unused;
    static const struct {
        const char *keywords;
        int64_t low, high;
    } ranges[] = {
        {"\"minimum\":0,\"maximum\":100", 0, 100},
        {"\"minimum\":-7,\"maximum\":7", -7, 7},
        {"\"minimum\":-1234,\"maximum\":-98", -1234, -98},
        {"\"exclusiveMinimum\":9,\"exclusiveMaximum\":1001", 10, 1000},
        {"\"minimum\":0.5,\"exclusiveMaximum\":305.5", 1, 305},
        {"\"minimum\":-2.5", -2, INT64_MAX},
        {"\"maximum\":199,\"exclusiveMaximum\":500", INT64_MIN, 199},
        {"\"minimum\":777,\"maximum\":777", 777, 777},
    };
    for (size_t i = 0; i < WEFT__COUNT(ranges); i++) {
        char schema[200], number[24];
        (void)snprintf(schema, sizeof schema, "{\"type\":\"integer\",%s}", ranges[i].keywords);
        struct weft__guide *guide = guide_of(schema);
        for (int64_t x = -2000; x <= 2000; x++) {
            (void)snprintf(number, sizeof number, "%lld", (long long)x);
            if (accepts(guide, number) != (x >= ranges[i].low && x <= ranges[i].high))
                fail_msg("%s: %s", schema, number);
        }
        assert_false(accepts(guide, "007") || accepts(guide, "-0") || accepts(guide, "1.0"));
        weft__guide_close(guide);
    }
}

#define K_IS(value) "{\"type\":\"object\",\"properties\":{\"k\":{\"const\":" value "}}"
#define NULLS "{\"type\":\"null\"},{\"type\":\"null\"}"
#define BLANKS "                    " /* 20 */
#define U_UMLAUT \
    "{\"properties\":{\"\u00fc\":{\"const\":1}},\"additionalProperties\":{\"type\":\"null\"}}"

/* Where a text begins to be none. */
static void borders_are_exact(void **unused)
{
    (void)unused;
    static const struct {
        const char *schema, *good, *bad;
    } borders[] = {
        {"{\"type\":\"number\"}", "0.1234567890123456", "0.12345678901234567"},
        {"{\"type\":\"number\"}", "1e+5", "1e5.0"},
        {"{\"items\":{\"type\":\"null\"}}", "[\n" BLANKS "null]", "[\n" BLANKS " null]"},
        {"{\"type\":\"string\"}", "\"\\ud7ff\"", "\"\\ud800\""},
        {"{\"type\":\"string\"}", "\"\\u0001\"", "\"\\u0000\""},
        {"{\"type\":\"string\"}", "\"\xc2\x80\"", "\"\xc1\xbf\""},
        {"{\"type\":\"string\"}", "\"\xe0\xa0\x80\"", "\"\xe0\x9f\xbf\""},
        {"{\"type\":\"string\"}", "\"\xed\x9f\xbf\"", "\"\xed\xa0\x80\""},
        {"{\"type\":\"string\"}", "\"\xf0\x90\x80\x80\"", "\"\xf0\x8f\xbf\xbf\""},
        {"{\"type\":\"string\"}", "\"\xf4\x8f\xbf\xbf\"", "\"\xf4\x90\x80\x80\""},
        {"{\"prefixItems\":[" NULLS "],\"maxItems\":1}", "[null]", "[null,null]"},
        {"{\"$defs\":{\"a/b\":{\"const\":1},\"c~d\":{\"const\":2}},\"prefixItems\":[{\"$ref\":"
         "\"#/$defs/a~1b\"},{\"$ref\":\"#/$defs/c~0d\"}],\"minItems\":2}",
         "[1,2]", "[2,1]"},
        {"{\"enum\":[2.0,2.5],\"type\":\"integer\"}", "2", "2.5"},
        {U_UMLAUT, "{\"\xc3\xbc\":1,\"x\":null}", "{\"\xc3\xbc\":null}"},
        {"{\"prefixItems\":[{\"type\":\"null\"}],\"items\":{\"type\":\"null\"},\"maxItems\":2}",
         "[null,null]", "[null,null,null]"},
        {"{\"items\":false}", "[]", "[null]"},
        {"{\"oneOf\":[" K_IS("1") ",\"required\":[\"k\"]}," K_IS("2") "}]}", "{}", "{\"k\":3}"},
        {"{\"maxItems\":0}", "[]", "[null]"},
        {"{\"properties\":{\"a\":{\"const\":1}}}", "{\"a\":1}", "{\"b\":1}"},
        {"{\"properties\":{\"a\\\"b\":{\"const\":1}},\"additionalProperties\":{\"type\":\"null\"}}",
         "{\"a\\\"b\":1,\"ab\":null}", "{\"a\"c\":null}"},
        {U_UMLAUT, "{}", "{\"\xc3x\":null}"},
    };
    for (size_t i = 0; i < WEFT__COUNT(borders); i++) {
        struct weft__guide *guide = guide_of(borders[i].schema);
        if (!accepts(guide, borders[i].good) || accepts(guide, borders[i].bad))
            fail_msg("%s: %s, not %s", borders[i].schema, borders[i].good, borders[i].bad);
        weft__guide_close(guide);
    }
}

/* A text is complete when nothing can follow, not when it may end. */
static void a_text_may_go_on_where_it_may_end(void **unused)
{
    (void)unused;
    struct weft__guide *guide = guide_of("{\"enum\":[1,12]}");
    struct weft__guided text;
    weft__guided_init(&text, guide);
    assert_false(weft__guided_push(&text, byte_token('1')));
    assert_true(in_mask(weft__guided_mask(&text), EOS));
    assert_true(weft__guided_push(&text, byte_token('2')));
    weft__guided_free(&text);
    weft__guide_close(guide);
}

/* A long text is read again whatever one token may cost. */
static void a_long_text_is_read_again(void **unused)
{
    (void)unused;
    struct weft__guide *guide = guide_of("{\"type\":\"string\"}");
    struct weft__guided text;
    weft__guided_init(&text, guide);
    (void)weft__guided_push(&text, byte_token('"'));
    for (int i = 0; i < WEFT__GUIDE_WORK_MAX / 16; i++)
        (void)weft__guided_push(&text, byte_token('x'));
    text.generation = 0;
    assert_true(in_mask(weft__guided_mask(&text), byte_token('"')));
    weft__guided_free(&text);
    weft__guide_close(guide);
}

/* The name of a property is no name of another, nor is what begins like it forbidden. */
static void other_properties_have_other_names(void **unused)
{
    (void)unused;
    struct weft__guide *guide = guide_of("{\"properties\":{\"id\":{\"type\":\"integer\"}},"
                                         "\"additionalProperties\":{\"type\":\"null\"}}");
    assert_true(accepts(guide, "{\"id\":1,\"i\":null,\"idx\":null,\"\":null}"));
    assert_true(accepts(guide, "{\"x\":null}"));
    assert_false(accepts(guide, "{\"id\":null}") || accepts(guide, "{\"i\":1}"));
    weft__guide_close(guide);
}

/* Of nested schemas each is refused or has a text, the deepest that is taken, too. */
static void the_deepest_is_not_a_dead_end(void **unused)
{
    (void)unused;
    struct weft__buf schema;
    int taken = 0;
    weft__buf_init(&schema, 1 << 16);
    for (int depth = 1; depth <= WEFT__GUIDE_DEPTH_MAX + 2; depth++) {
        struct weft__guide *guide = NULL;
        struct weft__guided text;
        weft_error err;
        schema.len = 0;
        for (int i = 0; i < depth; i++)
            weft__buf_puts(&schema, "{\"prefixItems\":[{\"type\":\"null\"},");
        weft__buf_puts(&schema, "{\"type\":\"null\"}");
        for (int i = 0; i < depth; i++) weft__buf_puts(&schema, "],\"minItems\":2}");
        if (open_guide(schema.data, &guide, &err) != WEFT_OK) continue;
        taken++;
        assert_int_equal(taken, depth);
        weft__guided_init(&text, guide);
        bool done = false;
        for (uint32_t random = 1, step = 0; !done && step < 2000; step++) {
            int32_t id = pick(weft__guided_mask(&text), &random, true);
            if (id < 0) fail_msg("depth %d: dead end after %s", depth, text.text.data);
            done = weft__guided_push(&text, id);
        }
        assert_true(done);
        weft__guided_free(&text);
        weft__guide_close(guide);
    }
    assert_true(taken > WEFT__GUIDE_DEPTH_MAX / 4 && taken < WEFT__GUIDE_DEPTH_MAX + 2);
    weft__buf_free(&schema);
}

static void longer_tokens_are_never_chosen(void **unused)
{
    (void)unused;
    int32_t first = weft__tokenizer_size(tokenizer);
    struct weft__tokenizer *longer = with_long_tokens(first);
    struct weft__guide_vocab *own = NULL;
    struct weft__guide *guide = NULL;
    struct weft__guided text;
    weft_error err;
    json_t *schema = json_pack("{s:s}", "type", "string");
    const struct weft__guide_spec spec = {.schema = schema, .prefix = "", .suffix = ""};
    assert_int_equal(weft__guide_vocab_open(longer, first + 2, eos, 1, &own, &err), WEFT_OK);
    assert_int_equal(weft__guide_open(own, &spec, &guide, &err), WEFT_OK);
    weft__guided_init(&text, guide);
    (void)weft__guided_push(&text, byte_token('"'));
    const uint32_t *mask = weft__guided_mask(&text);
    assert_true(in_mask(mask, first) && !in_mask(mask, first + 1));
    weft__guided_free(&text);
    weft__guide_close(guide);
    weft__guide_vocab_close(own);
    weft__tokenizer_free(longer);
    json_decref(schema);
}

/* Three long strings make more states than are kept. */
static void dropped_states_are_found_again(void **unused)
{
    (void)unused;
    struct weft__guide *guide = guide_of(
        "{\"type\":\"array\",\"minItems\":3,\"prefixItems\":[{\"minLength\":8192,\"maxLength\":"
        "8192},"
        "{\"minLength\":8192,\"maxLength\":8192},{\"minLength\":8192,\"maxLength\":8192}]}");
    struct weft__guided text;
    weft__guided_init(&text, guide);
    int32_t x = weft__token_id(tokenizer, "x", 1), quote = weft__token_id(tokenizer, "\"", 1);
    int32_t letters = 0;
    (void)weft__guided_push(&text, weft__token_id(tokenizer, "[", 1));
    uint32_t generation = text.generation;
    for (int s = 0; s < 3; s++) {
        if (s > 0) (void)weft__guided_push(&text, weft__token_id(tokenizer, ",", 1));
        (void)weft__guided_push(&text, quote);
        for (; in_mask(weft__guided_mask(&text), x); letters++) (void)weft__guided_push(&text, x);
        assert_true(in_mask(weft__guided_mask(&text), quote));
        (void)weft__guided_push(&text, quote);
    }
    assert_int_equal(letters, 3 * 8192);
    assert_true(text.generation > generation);
    /* When all guides together take too much, each keeps less. */
    generation = text.generation;
    (void)atomic_fetch_add(&vocab->bytes, WEFT__GUIDES_MEMORY_MAX);
    assert_true(in_mask(weft__guided_mask(&text), weft__token_id(tokenizer, "]", 1)));
    (void)atomic_fetch_sub(&vocab->bytes, WEFT__GUIDES_MEMORY_MAX);
    assert_true(text.generation > generation);
    weft__guided_free(&text);
    weft__guide_close(guide);
}

static void what_cannot_be_met_is_refused(void **unused)
{
    (void)unused;
    static const struct {
        const char *schema, *words;
        weft_status status;
    } refused[] = {
        {"{\"properties\":{\"a\":{\"pattern\":\"x\"}}}",
         "schema at /properties/a: unsupported keyword \"pattern\"", WEFT_UNSUPPORTED},
        {"{\"$ref\":\"#\"}", "contain itself", WEFT_INVALID},
        {"{\"anyOf\":[{\"$defs\":{\"a\":{}},\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"}]}",
         "schema at /anyOf/1: $ref finds nothing", WEFT_INVALID}, /* definitions end with theirs */
        {"{\"enum\":[1],\"type\":\"string\"}", "no value is left", WEFT_INVALID},
        {"false", "no value meets false", WEFT_INVALID},
        {"3", "not a schema", WEFT_INVALID},
        {"{\"oneOf\":[{\"const\":1},{\"enum\":[2,1]}]}", "two of oneOf", WEFT_UNSUPPORTED},
        {"{\"minLength\":3,\"maxLength\":2}", "no string meets", WEFT_INVALID},
        {"{\"minItems\":2,\"maxItems\":1}", "no array meets", WEFT_INVALID},
        {"{\"prefixItems\":[true],\"items\":false,\"minItems\":2}", "no array meets", WEFT_INVALID},
        {"{\"type\":\"integer\",\"minimum\":2,\"exclusiveMaximum\":2}", "no integer is",
         WEFT_INVALID},
        {"{\"minItems\":0.5}", "not a count: \"minItems\"", WEFT_INVALID},
        {"{\"oneOf\":[" K_IS("1") "}," K_IS("2") "}]}", "two of oneOf", WEFT_UNSUPPORTED}, /* {} */
        {"{\"minLength\":8193}", "more than 8192", WEFT_UNSUPPORTED},
        {"{\"type\":3}", "no type of JSON", WEFT_INVALID},
        {"{\"type\":[\"string\",\"text\"]}", "no type of JSON", WEFT_INVALID},
        {"{\"properties\":{},\"required\":[\"a\"]}", "required, but not in properties: \"a\"",
         WEFT_UNSUPPORTED},
        {"{\"type\":\"integer\",\"minimum\":1e16}", "too large: \"minimum\"", WEFT_UNSUPPORTED},
        {"{\"allOf\":[{},{}]}", "more than one schema in \"allOf\"", WEFT_UNSUPPORTED},
        {"{\"const\":1,\"enum\":[1]}", "const beside enum", WEFT_UNSUPPORTED},
        {"{\"minItems\":-1}", "not a count: \"minItems\"", WEFT_INVALID},
    };
    for (size_t i = 0; i < WEFT__COUNT(refused); i++) {
        struct weft__guide *guide = NULL;
        weft_error err;
        if (open_guide(refused[i].schema, &guide, &err) != refused[i].status)
            fail_msg("%s", refused[i].schema);
        if (strstr(err.text, refused[i].words) == NULL) fail_msg("%s", err.text);
    }
}

/* One of so many objects with so many properties, which differ in the last. */
static json_t *like_objects(int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++) {
        json_t *properties = json_object(), *required = json_array();
        for (int k = 0; k < count; k++) {
            char name[16];
            (void)snprintf(name, sizeof name, "p%d", k);
            json_object_set_new(properties, name,
                                json_pack("{s:i}", "const", k < count - 1 ? k : -i));
            json_array_append_new(required, json_string(name));
        }
        json_array_append_new(list, json_pack("{s:s,s:o,s:o}", "type", "object", "properties",
                                              properties, "required", required));
    }
    return json_pack("{s:o}", "oneOf", list);
}

/* Schemas whose parts have to be compared with each other, or that make millions of rules. */
static void large_schemas_are_refused_soon(void **unused)
{
    (void)unused;
    enum { COUNT = 5000 };
    static const char *const words[] = {
        "may meet two of oneOf", "too many properties are required", "from here on it is too large",
        "may meet two of oneOf", "more than 256 schemas in schemas", "more than 1024 references",
        "too much to tell"};
    json_t *schemas_made[] = {json_object(), json_object(), json_object(), like_objects(60),
                              json_true(),   json_object(), json_object()};
    json_t *one_of = json_array(), *required = json_array(), *properties = json_object(),
           *tuple = json_array();
    for (int i = 0; i < COUNT; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "p%d", i);
        json_array_append_new(one_of, json_pack("{s:i}", "const", i));
        json_array_append_new(required, json_string(name));
        json_object_set_new(properties, name, json_true());
        json_array_append_new(tuple, json_pack("{s:i}", "minLength", 8192));
    }
    json_object_set_new(schemas_made[0], "oneOf", one_of);
    json_object_set_new(schemas_made[1], "properties", properties);
    json_object_set_new(schemas_made[1], "required", required);
    json_object_set_new(schemas_made[2], "prefixItems", tuple);
    json_t *definitions = json_object(), *references = json_array(), *long_name = json_object();
    for (int i = 0; i < 1025; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "#/$defs/d%d", i);
        json_array_append_new(references, json_pack("{s:s}", "$ref", name));
        json_object_set_new(definitions, name + strlen("#/$defs/"), json_object());
    }
    json_object_set_new(schemas_made[5], "$defs", definitions);
    json_object_set_new(schemas_made[5], "anyOf", references);
    char key[514] = {0};
    memset(key, 'x', sizeof key - 1);
    json_object_set_new(long_name, key, json_true());
    json_object_set_new(schemas_made[6], "properties", long_name);
    json_object_set_new(schemas_made[6], "additionalProperties", json_true());
    for (int i = 0; i < 300; i++) schemas_made[4] = json_pack("{s:o}", "items", schemas_made[4]);
    for (size_t i = 0; i < WEFT__COUNT(schemas_made); i++) {
        const struct weft__guide_spec spec = {
            .schema = schemas_made[i], .prefix = "", .suffix = ""};
        struct weft__guide *guide = NULL;
        weft_error err;
        assert_int_equal(weft__guide_open(vocab, &spec, &guide, &err), WEFT_UNSUPPORTED);
        if (strstr(err.text, words[i]) == NULL) fail_msg("%s", err.text);
        assert_int_equal(weft__guide_vocab_bytes(vocab), 0);
        json_decref(schemas_made[i]);
    }
}

/* Strings of every length up to `lengths` beside values of an enum: each must be followed. */
static json_t *wide(int lengths, int values)
{
    json_t *list = json_array(), *names = json_array();
    for (int i = 1; i <= lengths; i++)
        json_array_append_new(list, json_pack("{s:s,s:i}", "type", "string", "maxLength", i));
    for (int i = 0; i < values; i++) {
        char name[24];
        (void)snprintf(name, sizeof name, "%x", (unsigned)i * 2654435761U);
        json_array_append_new(names, json_string(name));
    }
    if (values > 0) json_array_append_new(list, json_pack("{s:O}", "enum", names));
    json_decref(names);
    return json_pack("{s:o}", "anyOf", list);
}

static weft_status open_value(json_t *schema, struct weft__guide **out, weft_error *err)
{
    const struct weft__guide_spec spec = {.schema = schema, .prefix = "", .suffix = ""};
    weft_status status = weft__guide_open(vocab, &spec, out, err);
    json_decref(schema);
    return status;
}

/* What may follow '"' takes no more than its share of work and memory, or is refused with words;
 * nothing of it stays. */
static void wide_masks_are_refused(void **unused)
{
    (void)unused;
    static const struct {
        int lengths, values;
        weft_status open, mask;
    } cases[] = {
        {250, 40000, WEFT_UNSUPPORTED, WEFT_OK},
        {250, 20000, WEFT_OK, WEFT_UNSUPPORTED},
        {40, 16000, WEFT_OK, WEFT_UNSUPPORTED}, /* because of what is looked at in vain */
        {30, 200, WEFT_OK, WEFT_OK},
        {0, 5000, WEFT_OK, WEFT_OK},
    };
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        struct weft__guide *guide = NULL;
        struct weft__guided text;
        weft_error err;
        weft_status status = open_value(wide(cases[i].lengths, cases[i].values), &guide, &err);
        assert_int_equal(status, cases[i].open);
        if (status == WEFT_OK) {
            weft__guided_init(&text, guide);
            (void)weft__guided_push(&text, weft__token_id(tokenizer, "\"", 1));
            (void)weft__guided_mask(&text);
            status = weft__guided_check(&text, &err);
            if (status != cases[i].mask)
                fail_msg("%d lengths, %d values", cases[i].lengths, cases[i].values);
            if (status != WEFT_OK) assert_non_null(strstr(err.text, "too complex"));
            assert_true(weft__guide_vocab_bytes(vocab) < 2 * WEFT__GUIDE_MEMORY_HARD);
            weft__guided_free(&text);
        }
        weft__guide_close(guide);
        assert_int_equal(weft__guide_vocab_bytes(vocab), 0);
    }
}

/* It ends its text alone: others of the guide go on. */
static void too_much_work_ends_its_text_alone(void **unused)
{
    (void)unused;
    struct weft__guide *guide = NULL;
    struct weft__guided text, other;
    weft_error err;
    assert_int_equal(open_value(wide(250, 2000), &guide, &err), WEFT_OK);
    weft__guided_init(&text, guide);
    weft__guided_init(&other, guide);
    int32_t quote = weft__token_id(tokenizer, "\"", 1);
    assert_true(in_mask(weft__guided_mask(&text), quote));
    (void)weft__guided_push(&text, quote);
    const uint32_t *mask = weft__guided_mask(&text);
    for (int64_t i = 0; i < (vocab->vocab + 31) / 32; i++) assert_int_equal(mask[i], 0);
    assert_int_equal(weft__guided_check(&text, &err), WEFT_UNSUPPORTED);
    assert_true(in_mask(weft__guided_mask(&other), quote));
    assert_int_equal(weft__guided_check(&other, &err), WEFT_OK);
    weft__guided_free(&text);
    weft__guided_free(&other);
    weft__guide_close(guide);
}

/* The ends of strings are shared: many of them make no large grammar. */
static void long_strings_are_cheap(void **unused)
{
    (void)unused;
    struct weft__guide *guide = NULL;
    weft_error err;
    json_t *properties = json_object();
    for (int i = 0; i < 100; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "p%d", i);
        json_object_set_new(properties, name, json_pack("{s:i}", "maxLength", 8192 - i));
    }
    json_t *schema = json_pack("{s:o}", "properties", properties);
    assert_int_equal(open_value(schema, &guide, &err), WEFT_OK);
    assert_true(weft__guide_vocab_bytes(vocab) < 2 << 20);
    weft__guide_close(guide);
}

/* The exponent's sign must not be lost on the way. */
static void large_constants_are_exact(void **unused)
{
    (void)unused;
    static const struct {
        const char *schema, *text;
    } constants[] = {
        {"{\"const\":1e22}", "1e+22"},
        {"{\"const\":1.5e25}", "1.5e+25"},
        {"{\"enum\":[1.7976931348623157e308]}", "1.7976931348623157e+308"},
        {"{\"const\":0.1}", "0.1"},
        {"{\"const\":5e-324}", "4.94065645841247e-324"},
    };
    for (size_t i = 0; i < WEFT__COUNT(constants); i++) {
        struct weft__guide *guide = guide_of(constants[i].schema);
        if (!accepts(guide, constants[i].text)) fail_msg("%s", constants[i].schema);
        assert_false(accepts(guide, "1e+2") || accepts(guide, "1.5e+2"));
        weft__guide_close(guide);
    }
}

/* Whether the text can go on with these tokens, one a byte. */
static bool goes_on(struct weft__guide *guide, const char *bytes)
{
    struct weft__guided text;
    bool alive = true;
    weft__guided_init(&text, guide);
    for (; *bytes != '\0' && alive; bytes++) {
        int32_t id = byte_token(*bytes);
        alive = in_mask(weft__guided_mask(&text), id);
        (void)weft__guided_push(&text, id);
    }
    weft__guided_free(&text);
    return alive;
}

static void line_ends_come_first_where_wanted(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        bool plain, lines;
    } cases[] = {{"[", true, true},        {"\n[", false, true}, {"\n\n[", false, true},
                 {"\n\n\n", false, false}, {" ", false, false},  {"\n ", false, false},
                 {"[ ", true, true}};
    for (int lines = 0; lines < 2; lines++) {
        json_t *schema = json_true();
        const struct weft__guide_spec spec = {
            .schema = schema, .prefix = "", .suffix = "", .lines = lines};
        struct weft__guide *guide = NULL;
        weft_error err;
        assert_int_equal(weft__guide_open(vocab, &spec, &guide, &err), WEFT_OK);
        for (size_t i = 0; i < WEFT__COUNT(cases); i++)
            assert_int_equal(goes_on(guide, cases[i].text),
                             lines ? cases[i].lines : cases[i].plain);
        weft__guide_close(guide);
        json_decref(schema);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line_ends_come_first_where_wanted),
        cmocka_unit_test(masks_are_what_tokens_do),
        cmocka_unit_test(walks_end_in_json),
        cmocka_unit_test(bounds_are_exact),
        cmocka_unit_test(borders_are_exact),
        cmocka_unit_test(a_text_may_go_on_where_it_may_end),
        cmocka_unit_test(a_long_text_is_read_again),
        cmocka_unit_test(other_properties_have_other_names),
        cmocka_unit_test(the_deepest_is_not_a_dead_end),
        cmocka_unit_test(longer_tokens_are_never_chosen),
        cmocka_unit_test(dropped_states_are_found_again),
        cmocka_unit_test(what_cannot_be_met_is_refused),
        cmocka_unit_test(large_schemas_are_refused_soon),
        cmocka_unit_test(wide_masks_are_refused),
        cmocka_unit_test(too_much_work_ends_its_text_alone),
        cmocka_unit_test(long_strings_are_cheap),
        cmocka_unit_test(large_constants_are_exact),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
