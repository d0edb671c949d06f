/* Loading tokenizer.json: what is known about tokens, what is refused and how, and hostile files.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/resource.h>

#include "token_golden.h"

/* ---- a small tokenizer whose parts can be exchanged ---- */

struct parts {
    const char *model, *vocab, *merges, *added, *normalizer, *pre, *post, *decoder, *more;
};

static const struct parts plain = {
    .model = "\"type\":\"BPE\"",
    .vocab = "{\"a\":0,\"b\":1,\"c\":2,\"\\u0120\":3,\"ab\":4,\"abc\":5}",
    .merges = "[[\"a\",\"b\"],[\"ab\",\"c\"]]",
    .added = "[]",
    .normalizer = "null",
    .pre = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}",
    .post = "null",
    .decoder = "{\"type\":\"ByteLevel\"}",
    .more = "",
};

static weft_status parse(const struct parts *p, struct weft__tokenizer **tok, weft_error *err)
{
    struct weft__buf json;
    weft__buf_init(&json, 1 << 24);
    weft__buf_printf(
        &json,
        "{\"version\":\"1.0\",\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,"
        "\"post_processor\":%s,\"decoder\":%s,\"model\":{%s,\"vocab\":%s,\"merges\":%s}%s}",
        p->added, p->normalizer, p->pre, p->post, p->decoder, p->model, p->vocab, p->merges,
        p->more);
    assert_false(json.failed);
    weft_status status = weft__tokenizer_parse(json.data, json.len, "t.json", tok, err);
    weft__buf_free(&json);
    return status;
}

static struct weft__tokenizer *must_parse(const struct parts *p)
{
    struct weft__tokenizer *tok = NULL;
    weft_error err = {0};
    if (parse(p, &tok, &err) != WEFT_OK) fail_msg("%s", err.text);
    return tok;
}

static void must_encode(const struct weft__tokenizer *tok, const char *text, unsigned flags,
                        const char *want)
{
    struct weft__ids ids = {0};
    weft_error err = {0};
    char got[256] = "";
    size_t len = 0;
    if (weft__tokenizer_encode(tok, text, strlen(text), flags, &ids, &err) != WEFT_OK)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < ids.len && len < sizeof got - 16; i++)
        len += (size_t)snprintf(got + len, sizeof got - len, "%s%d", i > 0 ? " " : "",
                                (int)ids.data[i]);
    assert_string_equal(got, want);
    weft__ids_free(&ids);
}

static void tokens(void **state)
{
    (void)state;
    struct parts p = plain;
    p.vocab = "{\"a\":0,\"b\":1,\"\\u0120\":3,\"\\u0120a\":7,\"\\u00c3\\u00a9\":9,\"\\u65e5\":10,"
              "\"ab\":4}";
    p.merges = "[\"a b\",\"\\u0120 a\"]";
    p.added = "[{\"id\":4,\"content\":\"ab\",\"special\":false,\"normalized\":false},"
              "{\"id\":11,\"content\":\"\\u00e9<x>\",\"special\":true,\"normalized\":false}]";
    struct weft__tokenizer *tok = must_parse(&p);
    /* An added token that the vocabulary lacks gets the number of entries, as in the reference: 7
     * entries, so id 7, which the file gave to another token. The added one wins. */
    assert_int_equal(weft__tokenizer_size(tok), 11);
    struct weft__token_text text = weft__token_bytes(tok, 9);
    assert_true(text.len == 2 && memcmp(text.data, "\xc3\xa9", 2) == 0);
    text = weft__token_bytes(tok, 10); /* not in the byte map: as it is */
    assert_true(text.len == 3 && memcmp(text.data, "\xe6\x97\xa5", 3) == 0);
    text = weft__token_bytes(tok, 7);
    assert_true(text.len == 5 && memcmp(text.data, "\xc3\xa9<x>", 5) == 0);
    assert_null(weft__token_bytes(tok, 2).data);
    assert_null(weft__token_bytes(tok, -1).data);
    assert_null(weft__token_bytes(tok, 11).data);
    assert_null(weft__token_bytes(tok, INT32_MIN).data);
    assert_true(weft__token_is_special(tok, 7));
    assert_false(weft__token_is_special(tok, 4));
    assert_false(weft__token_is_special(tok, 99));
    assert_int_equal(weft__token_id(tok, "\xc3\xa9<x>", 5), 7);
    assert_int_equal(weft__token_id(tok, "\xc4\xa0", 2), 3);
    assert_int_equal(weft__token_id(tok, "\xe6\x97\xa5", 3), 10);
    assert_int_equal(weft__token_id(tok, " ", 1), -1);
    assert_int_equal(weft__token_id(tok, "", 0), -1);
    must_encode(tok, "ab a\xc3\xa9<x>", WEFT__PARSE_SPECIAL, "4 7 7");
    /* Without special tokens their text is text; bytes the vocabulary lacks give nothing. */
    must_encode(tok, "ab a\xc3\xa9<x>", 0, "4 7");
    weft__tokenizer_free(tok);
    weft__tokenizer_free(NULL);
}

static void options(void **state)
{
    (void)state;
    struct parts p = plain;
    struct weft__tokenizer *tok = must_parse(&p);
    must_encode(tok, "abc ab", WEFT__ADD_SPECIAL, "5 3 4");
    weft__tokenizer_free(tok);

    p.merges = "[\"#version: 0.2\",\"b c\"]"; /* abc is in the vocabulary, but no merge makes it */
    p.vocab = "{\"a\":0,\"b\":1,\"c\":2,\"bc\":4,\"abc\":5}";
    tok = must_parse(&p);
    must_encode(tok, "abc", 0, "0 4");
    weft__tokenizer_free(tok);
    p.model = "\"ignore_merges\":true,\"dropout\":0.0,\"unk_token\":null,\"byte_fallback\":false,"
              "\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":null,\"fuse_unk\":true";
    tok = must_parse(&p);
    must_encode(tok, "abc", 0, "5");
    weft__tokenizer_free(tok);

    /* In the reference an added token that normalizes to nothing cuts texts into characters. */
    p = plain;
    p.normalizer = "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}";
    p.added = "[{\"content\":\"  \",\"normalized\":true}]";
    weft_error err = {0};
    assert_int_equal(parse(&p, &tok, &err), WEFT_FORMAT);
    assert_non_null(strstr(err.text, "empty once normalized"));
    p.added = "[{\"content\":\"  \",\"normalized\":false}]";
    tok = must_parse(&p);
    must_encode(tok, " ab  ab ", 0, "4 6 4");
    weft__tokenizer_free(tok);

    /* Merges before the vocabulary, and a template around the text. */
    p = plain;
    p.model = "\"merges\":[[\"a\",\"b\"]]";
    p.merges = "[]";
    p.more = ",\"other\":{\"deep\":[1,{\"x\":null}]}";
    assert_int_equal(parse(&p, &tok, &err), WEFT_FORMAT); /* two lists of merges */
    p = plain;
    p.post = "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"S\",\"type_"
             "id\":0}},"
             "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"E\",\"type_"
             "id\":0}}],"
             "\"pair\":[],\"special_tokens\":{\"S\":{\"id\":\"S\",\"ids\":[0,1],\"tokens\":[\"a\","
             "\"b\"]},"
             "\"E\":{\"id\":\"E\",\"ids\":[2],\"tokens\":[\"c\"]}}}";
    tok = must_parse(&p);
    must_encode(tok, "ab", WEFT__ADD_SPECIAL, "0 1 4 2");
    must_encode(tok, "ab", 0, "4");
    must_encode(tok, "", WEFT__ADD_SPECIAL, "0 1 2");
    weft__tokenizer_free(tok);
}

/* ---- refusals ---- */

#define SPLIT(regex)                                                                        \
    "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":" \
    "\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\"}]}"
#define STEP(step) "{\"type\":\"Sequence\",\"pretokenizers\":[" step ",{\"type\":\"ByteLevel\"}]}"

struct refusal {
    size_t field; /* offset in struct parts */
    const char *value;
    weft_status status;
    const char *word; /* in the error */
};

#define AT(field) offsetof(struct parts, field)

static const struct refusal refusals[] = {
    {AT(model), "\"type\":\"WordPiece\"", WEFT_UNSUPPORTED, "WordPiece"},
    {AT(model), "\"type\":\"Unigram\"", WEFT_UNSUPPORTED, "Unigram"},
    {AT(model), "\"byte_fallback\":true", WEFT_UNSUPPORTED, "byte_fallback"},
    {AT(model), "\"unk_token\":\"<unk>\"", WEFT_UNSUPPORTED, "unk_token"},
    {AT(model), "\"dropout\":0.1", WEFT_UNSUPPORTED, "dropout"},
    {AT(model), "\"end_of_word_suffix\":\"</w>\"", WEFT_UNSUPPORTED, "end_of_word_suffix"},
    {AT(model), "\"continuing_subword_prefix\":\"##\"", WEFT_UNSUPPORTED, "continuing_subword"},
    {AT(vocab), "[]", WEFT_FORMAT, "vocabulary"},
    {AT(vocab), "{\"a\":0,\"b\":0}", WEFT_FORMAT, "id 0"},
    {AT(vocab), "{\"a\":0,\"a\":1,\"b\":2}", WEFT_FORMAT, "equal"},
    {AT(vocab), "{\"a\":-1}", WEFT_TOO_LONG, "-1"},
    {AT(vocab), "{\"a\":4194304}", WEFT_TOO_LONG, "4194304"},
    {AT(vocab), "{\"a\":1.5}", WEFT_FORMAT, "integer"},
    {AT(vocab), "{\"a\":\"0\"}", WEFT_FORMAT, "integer"},
    {AT(merges), "[[\"a\",\"x\"]]", WEFT_FORMAT, "\"x\" is not in the vocabulary"},
    {AT(merges), "[[\"b\",\"a\"]]", WEFT_FORMAT, "\"ba\" is not in the vocabulary"},
    {AT(merges), "[\"a b c\"]", WEFT_FORMAT, "one space"},
    {AT(merges), "[\"ab\"]", WEFT_FORMAT, "one space"},
    {AT(merges), "[[\"a\",\"b\"],\"ab c\"]", WEFT_FORMAT, "same form"},
    {AT(merges), "[[\"a\"]]", WEFT_FORMAT, "two tokens"},
    {AT(merges), "[[\"a\",\"b\",\"c\"]]", WEFT_FORMAT, "two tokens"},
    {AT(merges), "[7]", WEFT_FORMAT, "merge"},
    {AT(added), "[{\"content\":\"x\"},{\"content\":\"x\"}]", WEFT_FORMAT, "twice"},
    {AT(added), "[{\"content\":7}]", WEFT_FORMAT, "string"},
    {AT(added), "{}", WEFT_FORMAT, "array"},
    {AT(more), ",\"x\":[1,]", WEFT_FORMAT, "expected"},
    {AT(normalizer), "{\"type\":\"Precompiled\"}", WEFT_UNSUPPORTED, "Precompiled"},
    {AT(normalizer), "{\"type\":\"BertNormalizer\"}", WEFT_UNSUPPORTED, "BertNormalizer"},
    {AT(normalizer), "{\"type\":\"Sequence\"}", WEFT_FORMAT, "normalizers"},
    {AT(normalizer), "7", WEFT_FORMAT, "object"},
    {AT(pre), "null", WEFT_UNSUPPORTED, "ByteLevel"},
    {AT(pre), "{\"type\":\"Metaspace\",\"replacement\":\"_\"}", WEFT_UNSUPPORTED, "Metaspace"},
    {AT(pre), STEP("{\"type\":\"BertPreTokenizer\"}"), WEFT_UNSUPPORTED, "BertPreTokenizer"},
    {AT(pre), STEP("{\"type\":\"Digits\",\"individual_digits\":7}"), WEFT_FORMAT, "true or false"},
    {AT(pre), STEP("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Sideways\"}"),
     WEFT_UNSUPPORTED, "Sideways"},
    {AT(pre), STEP("{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Isolated\"}"), WEFT_FORMAT,
     "Regex"},
    {AT(pre), STEP("{\"type\":\"Digits\",\"type\":\"Digits\"}"), WEFT_FORMAT, "before"},
    {AT(pre), SPLIT("(a"), WEFT_UNSUPPORTED, "group without end"},
    {AT(pre), SPLIT("a)"), WEFT_UNSUPPORTED, "unmatched"},
    {AT(pre), SPLIT("[a"), WEFT_UNSUPPORTED, "class without end"},
    {AT(pre), SPLIT("[z-a]"), WEFT_UNSUPPORTED, "backwards"},
    {AT(pre), SPLIT("*a"), WEFT_UNSUPPORTED, "nothing to repeat"},
    {AT(pre), SPLIT("\\\\p{Klingon}"), WEFT_UNSUPPORTED, "property"},
    {AT(pre), SPLIT("(a)\\\\1"), WEFT_UNSUPPORTED, "escape"},
    {AT(pre), SPLIT("\\\\G"), WEFT_UNSUPPORTED, "escape"},
    {AT(pre), SPLIT("a(?i)b"), WEFT_UNSUPPORTED, "options"},
    {AT(pre), SPLIT("(?i:ss)"), WEFT_UNSUPPORTED, "ss"},
    {AT(pre), SPLIT("(?=a)+"), WEFT_UNSUPPORTED, "assertion"},
    {AT(pre), SPLIT("(?<=a+)b"), WEFT_UNSUPPORTED, "lookbehind"},
    {AT(pre), SPLIT("a{99999}"), WEFT_UNSUPPORTED, "range"},
    {AT(post), "{\"type\":\"Unknown\"}", WEFT_UNSUPPORTED, "Unknown"},
    {AT(post), "{\"type\":\"BertProcessing\",\"sep\":[\"x\",99],\"cls\":[\"a\",0]}", WEFT_FORMAT,
     "99"},
    {AT(post), "{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}}",
     WEFT_UNSUPPORTED, "sequence"},
    {AT(post),
     "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"S\"}}],"
     "\"special_tokens\":{}}",
     WEFT_FORMAT, "\"S\""},
    {AT(decoder), "{\"type\":\"WordPiece\"}", WEFT_UNSUPPORTED, "WordPiece"},
    {AT(more), ",\"model\":{}", WEFT_FORMAT, "before"},
    {AT(more), "x", WEFT_FORMAT, "expected"},
};

static void refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < WEFT__COUNT(refusals); i++) {
        const struct refusal *r = &refusals[i];
        struct parts p = plain;
        struct weft__tokenizer *tok = NULL;
        weft_error err = {0};
        memcpy((char *)&p + r->field, &r->value, sizeof r->value);
        weft_status status = parse(&p, &tok, &err);
        if (status != r->status || err.status != status || tok != NULL ||
            strstr(err.text, r->word) == NULL || strstr(err.text, "t.json") == NULL ||
            strchr(err.text, '\n') != NULL)
            fail_msg("%s: status %d, '%s'", r->value, (int)status, err.text);
    }
}

static void unreadable_files(void **state)
{
    (void)state;
    struct weft__tokenizer *tok = NULL;
    weft_error err = {0};
    assert_int_equal(weft__tokenizer_load("/nowhere/tokenizer.json", &tok, &err), WEFT_NOT_FOUND);
    assert_int_equal(weft__tokenizer_load("/dev/zero", &tok, &err), WEFT_IO);
    assert_int_equal(weft__tokenizer_load(WEFT_SOURCE_DIR, &tok, &err), WEFT_IO);
    assert_int_equal(weft__tokenizer_load(WEFT_SOURCE_DIR "/models/atlas/config.json", &tok, &err),
                     WEFT_FORMAT);
    assert_non_null(strstr(err.text, "no model"));
}

/* Every prefix of a file is refused without a crash, and so is every file with one byte changed, or
 * it is a tokenizer that encodes. */
static void damaged_files(void **state)
{
    (void)state;
    size_t len;
    char *file = read_golden(GOLDEN "added.json", &len);
    struct weft__tokenizer *tok = NULL;
    for (size_t cut = 0; cut + 2 < len; cut += cut < 2500 ? 1 : 17) { /* the last two are }\n */
        char *copy = malloc(cut + 1);
        memcpy(copy, file, cut);
        assert_int_equal(weft__tokenizer_parse(copy, cut, "cut", &tok, NULL), WEFT_FORMAT);
        free(copy);
    }
    for (size_t at = 0; at < len; at += at < 2500 ? 1 : 29) {
        struct weft__ids ids = {0};
        char kept = file[at];
        file[at] = (char)(kept ^ (char)(1 << at % 7));
        if (weft__tokenizer_parse(file, len, "changed", &tok, NULL) == WEFT_OK) {
            (void)!weft__tokenizer_encode(tok, "ABC x  <mask>\n\nThe word", 23, 3, &ids, NULL);
            weft__ids_free(&ids);
            weft__tokenizer_free(tok);
        }
        file[at] = kept;
    }
    free(file);
}

/* ---- hostile texts ---- */

static double cpu_seconds(void)
{
    struct rusage usage;
    (void)getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec * 1e-6;
}

/* One piece of a megabyte takes about as long a byte as one of a sixteenth of that. */
static void long_pieces_are_not_quadratic(void **state)
{
    (void)state;
    static const char *const units[] = {"a",           " ",   "\n", "7", "!", "\xcc\x81\xcc\x96",
                                        "<|im_start|", "\xff"};
    struct weft__tokenizer *tok = load_golden("qwen3");
    enum { SMALL = 1 << 16, LARGE = 1 << 20 };
    char *text = malloc(LARGE);
    for (size_t u = 0; u < WEFT__COUNT(units); u++) {
        double seconds[2];
        size_t unit = strlen(units[u]);
        for (size_t i = 0; i < LARGE; i++) text[i] = units[u][i % unit];
        for (int large = 0; large < 2; large++) {
            struct weft__ids ids = {0};
            weft_error err = {0};
            double start = cpu_seconds();
            if (weft__tokenizer_encode(tok, text, large ? LARGE : SMALL, 0, &ids, &err) != WEFT_OK)
                fail_msg("%s", err.text);
            seconds[large] = cpu_seconds() - start;
            assert_true(ids.len > 0);
            weft__ids_free(&ids);
        }
        /* 16 times the text; 256 times would be quadratic. */
        if (seconds[1] > 80 * seconds[0] + 1)
            fail_msg("unit %zu: %.3f s for 64 KiB, %.3f s for 1 MiB", u, seconds[0], seconds[1]);
    }
    free(text);
    weft__tokenizer_free(tok);
}

static void runaway_expressions_end(void **state)
{
    (void)state;
    struct parts p = plain;
    p.pre = SPLIT("(a+a+)+[bc]");
    struct weft__tokenizer *tok = must_parse(&p);
    struct weft__ids ids = {0};
    weft_error err = {0};
    char text[64];
    memset(text, 'a', sizeof text);
    assert_int_equal(weft__tokenizer_encode(tok, text, sizeof text, 0, &ids, &err), WEFT_TOO_LONG);
    assert_non_null(strstr(err.text, "regular expression"));
    assert_int_equal(ids.len, 0);
    assert_int_equal(weft__tokenizer_encode(tok, "abab", 4, 0, &ids, &err), WEFT_OK);
    size_t before = ids.len;
    assert_int_equal(weft__tokenizer_encode(tok, text, sizeof text, 0, &ids, &err), WEFT_TOO_LONG);
    assert_int_equal(ids.len, before); /* as it was */
    assert_int_equal(weft__tokenizer_encode(tok, text, (size_t)WEFT__MAX_TEXT + 1, 0, &ids, &err),
                     WEFT_TOO_LONG);
    weft__ids_free(&ids);
    weft__tokenizer_free(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens),
        cmocka_unit_test(options),
        cmocka_unit_test(refuses),
        cmocka_unit_test(unreadable_files),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(long_pieces_are_not_quadratic),
        cmocka_unit_test(runaway_expressions_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
