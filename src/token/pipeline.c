/* Reads the small parts of tokenizer.json: normalizer, pre-tokenizer, post-processor, decoder. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer.h"

/* These values are small, so fields are looked up by walking the object again each time: there is
 * no tree. The first failure sticks in `status`. */
struct reader {
    const char *name; /* of the file */
    const char *part; /* of it */
    struct weft__buf scratch;
    weft_status status;
    weft_error *err;
};

enum { MAX_CONTENT = 1 << 16 }; /* bytes of any string here */

static void reader_init(struct reader *in, const char *name, const char *part, weft_error *err)
{
    *in = (struct reader){.name = name, .part = part, .status = WEFT_OK, .err = err};
    weft__buf_init(&in->scratch, MAX_CONTENT);
}

static weft_status reader_end(struct reader *in)
{
    weft__buf_free(&in->scratch);
    return in->status;
}

/* Notes the error of a walk, if there is one. */
static bool good(struct reader *in, const struct weft__json *json)
{
    if (in->status == WEFT_OK) in->status = weft__json_check(json, in->name, in->err);
    return in->status == WEFT_OK;
}

static void unsupported(struct reader *in, struct weft__json_text what, const char *supported)
{
    if (in->status != WEFT_OK) return;
    in->status =
        weft__fail(in->err, WEFT_UNSUPPORTED, "%s: %s %.*s is not supported; supported: %s",
                   in->name, in->part, (int)weft__min((int64_t)what.len, 60), what.data, supported);
}

/* Finds a member of the object that stands at *object; null counts as absent. */
static bool field(struct reader *in, const struct weft__json *object, const char *key,
                  struct weft__json *value)
{
    struct weft__json walk = *object;
    struct weft__json_text name;
    bool found = false;
    if (in->status != WEFT_OK) return false;
    (void)weft__json_enter(&walk, WEFT__JSON_OBJECT);
    while (weft__json_member(&walk, &in->scratch, &name)) {
        if (weft__json_is(name, key)) {
            if (found) weft__json_fail(&walk, "key that stood here before");
            found = true;
            *value = walk;
        }
        weft__json_skip(&walk);
    }
    if (!good(in, &walk)) return false;
    return found && weft__json_kind(value) != WEFT__JSON_NULL;
}

/* A string member, valid until the next call; an empty one if absent. */
static struct weft__json_text text_field(struct reader *in, const struct weft__json *object,
                                         const char *key)
{
    struct weft__json value;
    struct weft__json_text text = {"", 0};
    if (!field(in, object, key, &value)) return text;
    if (!weft__json_string(&value, &in->scratch, &text)) text = (struct weft__json_text){"", 0};
    (void)good(in, &value);
    return text;
}

static bool flag_field(struct reader *in, const struct weft__json *object, const char *key,
                       bool fallback)
{
    struct weft__json value;
    bool flag = fallback;
    if (!field(in, object, key, &value)) return fallback;
    (void)weft__json_bool(&value, &flag);
    (void)good(in, &value);
    return flag;
}

/* Enters a list that must be there. */
static bool list_field(struct reader *in, const struct weft__json *object, const char *key,
                       struct weft__json *list)
{
    if (!field(in, object, key, list)) {
        if (in->status == WEFT_OK)
            in->status =
                weft__fail(in->err, WEFT_FORMAT, "%s: %s: no list \"%s\"", in->name, in->part, key);
        return false;
    }
    (void)weft__json_enter(list, WEFT__JSON_ARRAY);
    return good(in, list);
}

/* Gives `one` the step at `at`, or, if that is a Sequence, each of those in its list. Nesting is
 * bounded by the reader's depth. */
static void each_step(struct reader *in, const struct weft__json *at, const char *list_key,
                      void (*one)(struct reader *in, const struct weft__json *at,
                                  struct weft__json_text type, void *ctx),
                      void *ctx)
{
    struct weft__json list;
    struct weft__json_text type = text_field(in, at, "type");
    if (in->status != WEFT_OK) return;
    if (!weft__json_is(type, "Sequence")) {
        one(in, at, type, ctx);
        return;
    }
    if (!list_field(in, at, list_key, &list)) return;
    while (in->status == WEFT_OK && weft__json_item(&list)) {
        each_step(in, &list, list_key, one, ctx);
        weft__json_skip(&list);
    }
    (void)good(in, &list);
}

/* ---- patterns ---- */

/* {"String": ...} or {"Regex": ...} under the key "pattern". */
static void read_pattern(struct reader *in, const struct weft__json *object,
                         struct weft__regex *regex)
{
    struct weft__json pattern, value;
    struct weft__json_text text;
    char where[300];
    if (in->status != WEFT_OK) return;
    (void)snprintf(where, sizeof where, "%s: %s", in->name, in->part);
    bool found = field(in, object, "pattern", &pattern), literal = false;
    if (found && !field(in, &pattern, "Regex", &value))
        literal = found = field(in, &pattern, "String", &value);
    if (in->status != WEFT_OK) return;
    if (!found) {
        in->status =
            weft__fail(in->err, WEFT_FORMAT, "%s: a pattern is neither Regex nor String", where);
        return;
    }
    bool read = weft__json_string(&value, &in->scratch, &text);
    if (!good(in, &value) || !read) return;
    in->status = literal ? weft__regex_literal(regex, text.data, text.len, where, in->err)
                         : weft__regex_compile(regex, text.data, text.len, where, in->err);
}

static void set_pattern(struct reader *in, struct weft__regex *regex, const char *pattern)
{
    if (in->status == WEFT_OK)
        in->status = weft__regex_compile(regex, pattern, strlen(pattern), in->part, in->err);
}

/* ---- normalizer ---- */

static void read_content(struct reader *in, const struct weft__json *object, const char *key,
                         struct weft__normalize_step *step)
{
    struct weft__json_text text = text_field(in, object, key);
    if (in->status != WEFT_OK) return;
    step->content = malloc(text.len + 1);
    if (step->content == NULL) {
        in->status = weft__fail_oom(in->err, text.len + 1, "a normalizer");
        return;
    }
    memcpy(step->content, text.data, text.len);
    step->content_len = text.len;
}

static void add_normalizer(struct reader *in, const struct weft__json *at,
                           struct weft__json_text type, void *ctx)
{
    struct weft__normalizer *out = ctx;
    if (out->count == WEFT__MAX_STEPS ||
        (out->count > 0 && out->steps[out->count - 1].kind == WEFT__NORMALIZE_BYTES)) {
        unsupported(in, type, "at most 32 steps, ByteLevel as the last");
        return;
    }
    struct weft__normalize_step step = {.kind = WEFT__NORMALIZE_UNICODE};
    if (weft__json_is(type, "NFC") || weft__json_is(type, "NFD") || weft__json_is(type, "NFKC") ||
        weft__json_is(type, "NFKD")) {
        step.compose = type.data[type.len - 1] == 'C';
        step.compat = type.len == 4;
    } else if (weft__json_is(type, "Lowercase")) {
        step.kind = WEFT__NORMALIZE_LOWERCASE;
    } else if (weft__json_is(type, "ByteLevel")) {
        step.kind = WEFT__NORMALIZE_BYTES;
    } else if (weft__json_is(type, "Strip")) {
        step.kind = WEFT__NORMALIZE_STRIP;
        step.left = flag_field(in, at, "strip_left", false);
        step.right = flag_field(in, at, "strip_right", false);
    } else if (weft__json_is(type, "Prepend")) {
        step.kind = WEFT__NORMALIZE_PREPEND;
        read_content(in, at, "prepend", &step);
    } else if (weft__json_is(type, "Replace")) {
        step.kind = WEFT__NORMALIZE_REPLACE;
        read_pattern(in, at, &step.regex);
        read_content(in, at, "content", &step);
    } else {
        unsupported(in, type,
                    "NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace, ByteLevel, "
                    "Sequence");
        return;
    }
    out->steps[out->count++] = step; /* on failure, too: its owner frees it */
}

weft_status weft__read_normalizer(const struct weft__json *at, const char *name,
                                  struct weft__normalizer *out, weft_error *err)
{
    struct reader in;
    reader_init(&in, name, "normalizer", err);
    each_step(&in, at, "normalizers", add_normalizer, out);
    return reader_end(&in);
}

/* ---- pre-tokenizer ---- */

/* What ByteLevel splits with; GPT-2's. */
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Rust's is_numeric is one Unicode version ahead of Oniguruma, its table of punctuation many
 * behind. Measured with the `tokenizers` package over all code points. */
static const char digits_pattern[] = "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]";
static const char punctuation_pattern[] =
    "[\\p{P}$+<=>\\^`|~\\x{166d}\\x{111c9}&&[^\\x{61d}\\x{9fd}\\x{a76}\\x{c77}\\x{c84}\\x{1b4e}"
    "\\x{1b4f}\\x{1b7d}-\\x{1b7f}\\x{2e43}-\\x{2e4f}\\x{2e52}-\\x{2e5d}\\x{10d6e}\\x{10ead}"
    "\\x{10f55}-\\x{10f59}\\x{10f86}-\\x{10f89}\\x{113d4}\\x{113d5}\\x{113d7}\\x{113d8}"
    "\\x{1144b}-\\x{1144f}\\x{1145a}\\x{1145b}\\x{1145d}\\x{11660}-\\x{1166c}\\x{116b9}\\x{1183b}"
    "\\x{11944}-\\x{11946}\\x{119e2}\\x{11a3f}-\\x{11a46}\\x{11a9a}-\\x{11a9c}\\x{11a9e}-\\x{11aa2}"
    "\\x{11b00}-\\x{11b09}\\x{11be1}\\x{11c41}-\\x{11c45}\\x{11c70}\\x{11c71}\\x{11ef7}\\x{11ef8}"
    "\\x{11f43}-\\x{11f4f}\\x{11fff}\\x{12ff1}\\x{12ff2}\\x{16d6d}-\\x{16d6f}\\x{16e97}-\\x{16e9a}"
    "\\x{16fe2}\\x{1e5ff}\\x{1e95e}\\x{1e95f}]]";

struct steps {
    struct weft__pretokenizer *out;
    bool byte_level; /* one was seen: what follows sees characters of the map */
};

static struct weft__step *add_step(struct reader *in, struct steps *steps,
                                   enum weft__step_kind kind)
{
    struct weft__pretokenizer *out = steps->out;
    if (out->count == WEFT__MAX_STEPS) {
        unsupported(in, (struct weft__json_text){"", 0}, "at most 32 steps");
        return NULL;
    }
    out->steps[out->count] = (struct weft__step){.kind = kind};
    return &out->steps[out->count++];
}

static enum weft__split_behavior read_behavior(struct reader *in, const struct weft__json *at)
{
    static const char *const names[] = {
        [WEFT__SPLIT_ISOLATED] = "Isolated",
        [WEFT__SPLIT_REMOVED] = "Removed",
        [WEFT__SPLIT_CONTIGUOUS] = "Contiguous",
        [WEFT__SPLIT_MERGED_WITH_PREVIOUS] = "MergedWithPrevious",
        [WEFT__SPLIT_MERGED_WITH_NEXT] = "MergedWithNext",
    };
    struct weft__json_text text = text_field(in, at, "behavior");
    for (size_t i = 0; i < WEFT__COUNT(names); i++)
        if (weft__json_is(text, names[i])) return (enum weft__split_behavior)i;
    unsupported(in, text,
                "the behaviors Isolated, Removed, Contiguous, MergedWithPrevious, "
                "MergedWithNext");
    return WEFT__SPLIT_ISOLATED;
}

static void add_byte_level(struct reader *in, const struct weft__json *at, struct steps *steps)
{
    if (flag_field(in, at, "add_prefix_space", true))
        (void)add_step(in, steps, WEFT__STEP_PREFIX_SPACE);
    if (flag_field(in, at, "use_regex", true)) {
        struct weft__step *step = add_step(in, steps, WEFT__STEP_SPLIT);
        if (step != NULL) set_pattern(in, &step->regex, gpt2_pattern);
    }
    steps->byte_level = true;
    /* Taken off again if nothing follows: then pieces stay bytes. */
    (void)add_step(in, steps, WEFT__STEP_MAP);
}

static void add_pretokenizer(struct reader *in, const struct weft__json *at,
                             struct weft__json_text type, void *ctx)
{
    struct steps *steps = ctx;
    static const char supported[] = "ByteLevel, with Split, Digits, Punctuation, WhitespaceSplit, "
                                    "Sequence: byte-level BPE";
    bool split = weft__json_is(type, "Split"), digits = weft__json_is(type, "Digits"),
         punctuation = weft__json_is(type, "Punctuation"),
         space = weft__json_is(type, "WhitespaceSplit");
    if (weft__json_is(type, "ByteLevel")) {
        add_byte_level(in, at, steps);
        return;
    }
    if (!split && !digits && !punctuation && !space) {
        unsupported(in, type, supported);
        return;
    }
    struct weft__step *step = add_step(in, steps, WEFT__STEP_SPLIT);
    if (step == NULL) return;
    if (split) {
        step->behavior = read_behavior(in, at);
        step->invert = flag_field(in, at, "invert", false);
        read_pattern(in, at, &step->regex);
    } else if (digits) {
        bool individual = flag_field(in, at, "individual_digits", false);
        step->behavior = individual ? WEFT__SPLIT_ISOLATED : WEFT__SPLIT_CONTIGUOUS;
        set_pattern(in, &step->regex, digits_pattern);
    } else if (punctuation) {
        struct weft__json behavior;
        if (field(in, at, "behavior", &behavior)) step->behavior = read_behavior(in, at);
        set_pattern(in, &step->regex, punctuation_pattern);
    } else {
        step->behavior = WEFT__SPLIT_REMOVED;
        set_pattern(in, &step->regex, "\\s");
    }
}

weft_status weft__read_pretokenizer(const struct weft__json *at, const char *name, bool mapped,
                                    struct weft__pretokenizer *out, weft_error *err)
{
    struct reader in;
    struct steps steps = {.out = out};
    struct weft__json probe = *at;
    reader_init(&in, name, "pre_tokenizer", err);
    if (weft__json_kind(&probe) != WEFT__JSON_NULL)
        each_step(&in, at, "pretokenizers", add_pretokenizer, &steps);
    if (in.status == WEFT_OK && !steps.byte_level && !mapped)
        unsupported(&in, (struct weft__json_text){"without ByteLevel", 17}, "byte-level BPE");
    if (in.status == WEFT_OK) {
        if (steps.byte_level && out->steps[out->count - 1].kind == WEFT__STEP_MAP)
            out->count--;
        else
            out->mapped = true;
    }
    return reader_end(&in);
}

/* ---- post-processor ---- */

/* The token that a template's piece names, out of its special_tokens. */
static void template_ids(struct reader *in, const struct weft__json *at, const char *id,
                         int32_t *out, size_t *count)
{
    struct weft__json tokens, token, ids;
    int64_t value;
    if (!field(in, at, "special_tokens", &tokens) || !field(in, &tokens, id, &token)) {
        if (in->status == WEFT_OK)
            in->status = weft__fail(in->err, WEFT_FORMAT,
                                    "%s: post_processor: special token \"%.60s\" is not described",
                                    in->name, id);
        return;
    }
    if (!list_field(in, &token, "ids", &ids)) return;
    while (weft__json_item(&ids) && weft__json_int(&ids, &value)) {
        if (value < 0 || value >= WEFT__MAX_VOCAB || *count == WEFT__MAX_TEMPLATE)
            weft__json_fail(&ids, "template with an impossible id, or with more than 256 tokens");
        else
            out[(*count)++] = (int32_t)value;
    }
    (void)good(in, &ids);
}

static void template_piece(struct reader *in, const struct weft__json *at,
                           const struct weft__json *piece, bool *text_seen,
                           struct weft__tokenizer *out)
{
    struct weft__json value;
    if (field(in, piece, "Sequence", &value)) {
        struct weft__json_text id = text_field(in, &value, "id");
        if (in->status == WEFT_OK && (*text_seen || !weft__json_is(id, "A")))
            unsupported(in, id, "templates that hold sequence A once");
        *text_seen = true;
        return;
    }
    if (!field(in, piece, "SpecialToken", &value)) return;
    struct weft__json_text id = text_field(in, &value, "id");
    if (in->status != WEFT_OK) return;
    char *copy = malloc(id.len + 1); /* looking it up reuses the scratch buffer */
    if (copy == NULL) {
        in->status = weft__fail_oom(in->err, id.len + 1, "a template");
        return;
    }
    memcpy(copy, id.data, id.len);
    copy[id.len] = '\0';
    if (*text_seen)
        template_ids(in, at, copy, out->suffix, &out->suffix_count);
    else
        template_ids(in, at, copy, out->prefix, &out->prefix_count);
    free(copy);
}

static void read_template(struct reader *in, const struct weft__json *at,
                          struct weft__tokenizer *out)
{
    struct weft__json list;
    bool text_seen = false;
    if (!list_field(in, at, "single", &list)) return;
    while (in->status == WEFT_OK && weft__json_item(&list)) {
        template_piece(in, at, &list, &text_seen, out);
        weft__json_skip(&list);
    }
    if (good(in, &list) && !text_seen)
        unsupported(in, (struct weft__json_text){"without a sequence", 18},
                    "templates that hold sequence A once");
}

/* ["</s>", 2] */
static void read_pair(struct reader *in, const struct weft__json *at, const char *key, int32_t *out,
                      size_t *count)
{
    struct weft__json list;
    struct weft__json_text text;
    int64_t id = -1;
    if (!list_field(in, at, key, &list)) return;
    if (weft__json_item(&list) && weft__json_string(&list, &in->scratch, &text) &&
        weft__json_item(&list) && weft__json_int(&list, &id) && (id < 0 || id >= WEFT__MAX_VOCAB))
        weft__json_fail(&list, "impossible id");
    if (good(in, &list)) out[(*count)++] = (int32_t)id;
}

struct wrapping {
    struct weft__tokenizer *out;
    bool done; /* a processor before this one adds tokens */
};

static void add_postprocessor(struct reader *in, const struct weft__json *at,
                              struct weft__json_text type, void *ctx)
{
    struct wrapping *wrapping = ctx;
    struct weft__tokenizer *out = wrapping->out;
    if (weft__json_is(type, "ByteLevel")) return; /* that is about offsets only */
    bool template = weft__json_is(type, "TemplateProcessing");
    bool pair = weft__json_is(type, "RobertaProcessing") || weft__json_is(type, "BertProcessing");
    if (wrapping->done || (!template && !pair)) {
        unsupported(in, type,
                    "one of TemplateProcessing, RobertaProcessing, BertProcessing, with "
                    "ByteLevel, Sequence");
        return;
    }
    wrapping->done = true;
    if (template) {
        read_template(in, at, out);
    } else {
        read_pair(in, at, "cls", out->prefix, &out->prefix_count);
        read_pair(in, at, "sep", out->suffix, &out->suffix_count);
    }
}

static bool is_token(const struct weft__tokenizer *tok, int32_t id)
{
    return (size_t)id < tok->vocab.size &&
           (tok->vocab.entries[id].used || tok->vocab.entries[id].added);
}

weft_status weft__read_postprocessor(const struct weft__json *at, const char *name,
                                     struct weft__tokenizer *out, weft_error *err)
{
    struct reader in;
    struct wrapping wrapping = {.out = out};
    reader_init(&in, name, "post_processor", err);
    each_step(&in, at, "processors", add_postprocessor, &wrapping);
    for (size_t i = 0; i < out->prefix_count + out->suffix_count && in.status == WEFT_OK; i++) {
        int32_t id = i < out->prefix_count ? out->prefix[i] : out->suffix[i - out->prefix_count];
        if (!is_token(out, id))
            in.status = weft__fail(err, WEFT_FORMAT,
                                   "%s: post_processor adds %d, which is no token", name, (int)id);
    }
    return reader_end(&in);
}

/* ---- decoder ---- */

static void check_decoder(struct reader *in, const struct weft__json *at,
                          struct weft__json_text type, void *ctx)
{
    (void)at;
    (void)ctx;
    if (!weft__json_is(type, "ByteLevel")) unsupported(in, type, "ByteLevel");
}

weft_status weft__read_decoder(const struct weft__json *at, const char *name, weft_error *err)
{
    struct reader in;
    reader_init(&in, name, "decoder", err);
    each_step(&in, at, "decoders", check_decoder, NULL);
    return reader_end(&in);
}
