/* weft tokenize: text to ids and back, as the `tokenizers` package does by default. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prog.h"

struct tokenize {
    bool decode, json, no_special, keep_special;
    struct weft__tokenizer *tokenizer;
};

/* A token's bytes as JSON text: what is not UTF-8 becomes U+FFFD. */
static json_t *token_json(const struct weft__tokenizer *tok, int32_t id)
{
    struct weft__buf text;
    weft__buf_init(&text, WEFT__MAX_TEXT);
    weft__tokenizer_decode(tok, &id, 1, false, &text);
    json_t *string = json_stringn(text.data != NULL ? text.data : "", text.len);
    weft__buf_free(&text);
    return string;
}

static weft_status print_json(json_t *object, weft_error *err)
{
    return weft__print_json(object, 0) ? WEFT_OK : weft__fail_oom(err, 0, "the output");
}

static weft_status encode(const struct tokenize *t, const char *text, size_t len, weft_error *err)
{
    struct weft__ids ids = {0};
    unsigned flags = WEFT__PARSE_SPECIAL | (t->no_special ? 0 : WEFT__ADD_SPECIAL);
    WEFT__TRY(weft__tokenizer_encode(t->tokenizer, text, len, flags, &ids, err));
    weft_status status = WEFT_OK;
    if (t->json) {
        json_t *list = json_array(), *tokens = json_array();
        for (size_t i = 0; i < ids.len; i++) {
            (void)json_array_append_new(list, json_integer(ids.data[i]));
            (void)json_array_append_new(tokens, token_json(t->tokenizer, ids.data[i]));
        }
        status = print_json(json_pack("{s:o, s:o, s:I}", "ids", list, "tokens", tokens, "count",
                                      (json_int_t)ids.len),
                            err);
    } else {
        for (size_t i = 0; i < ids.len; i++) (void)printf(i == 0 ? "%d" : " %d", ids.data[i]);
        (void)putchar('\n');
    }
    weft__ids_free(&ids);
    return status;
}

/* Ids between blanks, commas or brackets. */
static weft_status parse_ids(char *text, size_t len, int32_t **out, size_t *count, weft_error *err)
{
    char *state = NULL;
    int32_t *ids = malloc((len / 2 + 1) * sizeof *ids);
    size_t n = 0;
    if (ids == NULL) return weft__fail_oom(err, len * 2, "token ids");
    for (char *word = strtok_r(text, " \t\r\n,[]", &state); word != NULL;
         word = strtok_r(NULL, " \t\r\n,[]", &state)) {
        char *end;
        errno = 0;
        long id = strtol(word, &end, 10);
        if (*end != '\0' || errno != 0 || id < 0 || id > INT32_MAX) {
            free(ids);
            return weft__fail(err, WEFT_INVALID, "\"%.40s\" is not a token id", word);
        }
        ids[n++] = (int32_t)id;
    }
    *out = ids;
    *count = n;
    return WEFT_OK;
}

static weft_status decode(const struct tokenize *t, char *text, size_t len, weft_error *err)
{
    int32_t *ids = NULL;
    size_t count = 0;
    struct weft__buf out;
    WEFT__TRY(parse_ids(text, len, &ids, &count, err));
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < count && status == WEFT_OK; i++)
        if (weft__token_bytes(t->tokenizer, ids[i]).data == NULL)
            status = weft__fail(err, WEFT_INVALID, "%d is no token; ids go to %d", ids[i],
                                weft__tokenizer_size(t->tokenizer) - 1);
    weft__buf_init(&out, WEFT__MAX_TEXT);
    if (status == WEFT_OK) {
        weft__tokenizer_decode(t->tokenizer, ids, count, !t->keep_special, &out);
        const char *data = out.data != NULL ? out.data : "";
        if (out.failed)
            status = weft__fail_oom(err, out.len, "the text");
        else if (t->json)
            status = print_json(json_pack("{s:s%}", "text", data, out.len), err);
        else
            (void)(fwrite(data, 1, out.len, stdout) + (size_t)putchar('\n'));
    }
    weft__buf_free(&out);
    free(ids);
    return status;
}

static weft_status run(struct tokenize *t, const char *model, const char *text, weft_error *err)
{
    struct weft__buf input;
    WEFT__TRY(weft__load_tokenizer(model, &t->tokenizer, err));
    weft__buf_init(&input, WEFT__MAX_TEXT);
    weft__buf_puts(&input, text != NULL ? text : "");
    weft_status status = text != NULL ? WEFT_OK : weft__read_input(NULL, &input, err);
    if (status == WEFT_OK)
        status = t->decode ? decode(t, input.data, input.len, err)
                           : encode(t, input.data, input.len, err);
    weft__buf_free(&input);
    weft__tokenizer_free(t->tokenizer);
    return status;
}

int weft__cmd_tokenize(int argc, char **argv)
{
    struct tokenize t = {0};
    weft_error err;
    int status;
    const struct weft__option options[] = {
        {WEFT__OPTION_FLAG, "decode", &t.decode, 0, 0, NULL, "TEXT is ids; print what they say"},
        {WEFT__OPTION_FLAG, "no-special", &t.no_special, 0, 0, NULL,
         "add no tokens that are not in the text"},
        {WEFT__OPTION_FLAG, "keep-special", &t.keep_special, 0, 0, NULL,
         "with --decode: print special tokens, too"},
        {WEFT__OPTION_FLAG, "json", &t.json, 0, 0, NULL, "for machines"},
        {0},
    };
    struct weft__command_line line = {
        .command = "tokenize",
        .synopsis = "MODEL [TEXT]",
        .about = "Token ids of TEXT, else of standard input to the byte. MODEL may be a bare\n"
                 "tokenizer.json.",
        .options = options,
        .arguments_min = 1,
        .arguments_max = 2,
    };
    if (!weft__command_line_parse(&line, argc, argv, &status)) return status;
    if (run(&t, line.argument[0], line.argument[1], &err) != WEFT_OK)
        return weft__report("tokenize", &err);
    return WEFT__EXIT_OK;
}
