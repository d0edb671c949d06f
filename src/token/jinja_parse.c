/* Tokens -> statements. */
#include <stdlib.h>
#include <string.h>

#include "jinja.h"

/* Parses statements up to one of the tags in `ends` (NULL-terminated), which is left current;
 * ends NULL: up to the end of the template. soft: see jparser. */
static struct jnode *parse_body(struct jparser *parser, const char *const *ends, bool soft);

static void end_tag(struct jparser *parser)
{
    if (parser->token.type == T_BLOCK_END)
        weft__j_next(parser);
    else
        weft__j_unexpected(parser, "the end of the block");
}

/* The body of a block up to {% end %}, whose name is consumed. */
static struct jnode *block_body(struct jparser *parser, const char *end)
{
    const char *const ends[] = {end, NULL};
    end_tag(parser);
    struct jnode *body = parse_body(parser, ends, false);
    weft__j_next(parser);
    return body;
}

static struct jnode *parse_for(struct jparser *parser)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct jnode *node = weft__j_node(parser, S_FOR, NULL, NULL);
    struct jnode *target = weft__j_target(parser, false);
    if (!weft__j_skip_name(parser, "in")) weft__j_unexpected(parser, "'in'");
    struct jnode *items = weft__j_tuple(parser, true);
    struct jnode *condition = weft__j_skip_name(parser, "if") ? weft__j_expression(parser) : NULL;
    bool recursive = weft__j_skip_name(parser, "recursive");
    end_tag(parser);
    parser->loops++;
    struct jnode *body = parse_body(parser, ends, false);
    parser->loops--;
    struct jnode *otherwise = NULL;
    if (weft__j_skip_name(parser, "else"))
        otherwise = block_body(parser, "endfor");
    else
        weft__j_next(parser);
    if (node == NULL) return NULL;
    node->a = target;
    node->b = items;
    node->c = condition;
    node->d = body;
    node->e = otherwise;
    node->op = recursive;
    return node;
}

static struct jnode *parse_if(struct jparser *parser)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jnode *node = weft__j_node(parser, S_IF, NULL, NULL), *branches = NULL;
    struct jnode **tail = &branches;
    bool more = true;
    while (more && parser->status == WEFT_OK) {
        struct jnode *branch = weft__j_node(parser, S_BRANCH, NULL, NULL);
        bool soft = parser->soft;
        parser->soft = true;
        struct jnode *condition = weft__j_tuple(parser, true);
        end_tag(parser);
        parser->soft = soft;
        struct jnode *body = parse_body(parser, ends, true);
        if (branch == NULL) break;
        branch->a = condition;
        branch->b = body;
        weft__j_link(&tail, branch);
        more = weft__j_skip_name(parser, "elif");
    }
    if (weft__j_skip_name(parser, "else")) {
        struct jnode *branch = weft__j_node(parser, S_BRANCH, NULL, NULL);
        end_tag(parser);
        struct jnode *body = parse_body(parser, ends, true);
        if (!weft__j_skip_name(parser, "endif")) weft__j_unexpected(parser, "'endif'");
        if (branch != NULL) branch->b = body;
        weft__j_link(&tail, branch);
    } else {
        weft__j_next(parser);
    }
    if (node != NULL) node->a = branches;
    return node;
}

static struct jnode *parse_set(struct jparser *parser)
{
    struct jnode *node = weft__j_node(parser, S_SET, NULL, NULL);
    struct jnode *target = weft__j_target(parser, true);
    if (weft__j_skip_op(parser, J_OP_ASSIGN)) {
        struct jnode *value = weft__j_tuple(parser, false);
        if (node == NULL) return NULL;
        node->a = target;
        node->b = value;
        return node;
    }
    struct jnode *filters = weft__j_skip_op(parser, J_OP_PIPE) ? weft__j_filters(parser) : NULL;
    struct jnode *body = block_body(parser, "endset");
    if (node == NULL) return NULL;
    node->kind = S_CAPTURE;
    node->a = target;
    node->b = filters;
    node->c = body;
    return node;
}

static struct jnode *parse_parameters(struct jparser *parser)
{
    struct jnode *parameters = NULL, **tail = &parameters;
    bool defaults = false;
    weft__j_expect_op(parser, J_OP_LPAREN);
    while (parser->status == WEFT_OK && !weft__j_at_op(parser, J_OP_RPAREN)) {
        if (parameters != NULL) weft__j_expect_op(parser, J_OP_COMMA);
        struct jnode *node = weft__j_node(parser, N_PARAM, NULL, NULL);
        uint32_t name = weft__j_take_name(parser), offset = parser->token.offset;
        bool has_default = weft__j_skip_op(parser, J_OP_ASSIGN);
        struct jnode *value = has_default ? weft__j_expression(parser) : NULL;
        if (defaults && !has_default)
            weft__j_syntax(parser, WEFT_FORMAT, offset,
                           "non-default argument follows default argument");
        defaults = has_default;
        if (node == NULL) break;
        node->name = name;
        node->a = value;
        weft__j_link(&tail, node);
    }
    weft__j_expect_op(parser, J_OP_RPAREN);
    return parameters;
}

/* The part of macros and call blocks from the parameters on. A macro's body is no part of the loop
 * around it, and what it says of caller, varargs and kwargs is noted. */
static void macro_rest(struct jparser *parser, struct jnode *node, struct jnode *parameters,
                       const char *end)
{
    int loops = parser->loops;
    uint8_t uses = parser->uses;
    parser->loops = 0;
    parser->uses = 0;
    struct jnode *body = block_body(parser, end);
    if (node != NULL) {
        node->op = parser->uses;
        node->a = parameters;
        node->b = body;
    }
    parser->loops = loops;
    parser->uses |= uses;
}

static struct jnode *parse_macro(struct jparser *parser)
{
    struct jnode *node = weft__j_node(parser, S_MACRO, NULL, NULL);
    uint32_t name = weft__j_take_name(parser);
    struct jnode *parameters = parse_parameters(parser);
    macro_rest(parser, node, parameters, "endmacro");
    if (node != NULL) node->name = name;
    return node;
}

static struct jnode *parse_call_block(struct jparser *parser)
{
    struct jnode *node = weft__j_node(parser, S_CALL, NULL, NULL);
    struct jnode *macro = weft__j_node(parser, S_MACRO, NULL, NULL);
    struct jnode *parameters = weft__j_at_op(parser, J_OP_LPAREN) ? parse_parameters(parser) : NULL;
    uint32_t offset = parser->token.offset;
    struct jnode *call = weft__j_expression(parser);
    if (call != NULL && call->kind != N_CALL)
        weft__j_syntax(parser, WEFT_FORMAT, offset, "expected a call");
    macro_rest(parser, macro, parameters, "endcall");
    if (node == NULL || macro == NULL) return NULL;
    macro->name = J_NAME_CALLER;
    node->a = call;
    node->b = macro;
    return node;
}

static struct jnode *parse_filter_block(struct jparser *parser)
{
    struct jnode *node = weft__j_node(parser, S_FILTER, NULL, NULL);
    struct jnode *filters = weft__j_filters(parser);
    struct jnode *body = block_body(parser, "endfilter");
    if (node == NULL) return NULL;
    node->a = filters;
    node->b = body;
    return node;
}

static struct jnode *parse_with(struct jparser *parser)
{
    struct jnode *node = weft__j_node(parser, S_WITH, NULL, NULL), *sets = NULL, **tail = &sets;
    while (parser->status == WEFT_OK && parser->token.type != T_BLOCK_END) {
        if (sets != NULL) weft__j_expect_op(parser, J_OP_COMMA);
        struct jnode *set = weft__j_node(parser, S_SET, NULL, NULL);
        uint32_t name = weft__j_take_name(parser);
        struct jnode *target = weft__j_node(parser, N_NAME, NULL, NULL);
        weft__j_expect_op(parser, J_OP_ASSIGN);
        struct jnode *value = weft__j_expression(parser);
        if (set == NULL || target == NULL) break;
        target->name = name;
        set->a = target;
        set->b = value;
        weft__j_link(&tail, set);
    }
    struct jnode *body = block_body(parser, "endwith");
    if (node == NULL) return NULL;
    node->a = sets;
    node->b = body;
    return node;
}

/* Marks assistant text for training in Hugging Face's environment; here only its body counts. */
static struct jnode *parse_generation(struct jparser *parser)
{
    struct jnode *node = weft__j_node(parser, S_WITH, NULL, NULL);
    struct jnode *body = block_body(parser, "endgeneration");
    if (node != NULL) node->b = body;
    return node;
}

static struct jnode *parse_print(struct jparser *parser)
{
    struct jnode *list = NULL, **tail = &list;
    while (parser->status == WEFT_OK && parser->token.type != T_BLOCK_END) {
        if (list != NULL) weft__j_expect_op(parser, J_OP_COMMA);
        weft__j_link(&tail, weft__j_node(parser, S_PRINT, weft__j_expression(parser), NULL));
    }
    return list;
}

static struct jnode *parse_break(struct jparser *parser)
{
    if (parser->loops == 0)
        weft__j_syntax(parser, WEFT_FORMAT, parser->token.offset, "'break' outside a loop");
    return weft__j_node(parser, S_BREAK, NULL, NULL);
}

static struct jnode *parse_continue(struct jparser *parser)
{
    if (parser->loops == 0)
        weft__j_syntax(parser, WEFT_FORMAT, parser->token.offset, "'continue' outside a loop");
    return weft__j_node(parser, S_CONTINUE, NULL, NULL);
}

static const struct {
    const char *name;
    struct jnode *(*parse)(struct jparser *parser); /* NULL: Jinja knows it, weft does not */
} tags[] = {
    {"for", parse_for},
    {"if", parse_if},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"generation", parse_generation},
    {"print", parse_print},
    {"break", parse_break},
    {"continue", parse_continue},
    {"include", NULL},
    {"import", NULL},
    {"from", NULL},
    {"extends", NULL},
    {"block", NULL},
    {"autoescape", NULL},
    {"do", NULL},
    {"trans", NULL},
    {"debug", NULL},
};

/* A tag, behind its `{%`, up to and including its last `%}`. */
static struct jnode *parse_tag(struct jparser *parser, const char *const *ends)
{
    struct jtoken token = parser->token;
    int length = (int)weft__min(token.value.len, 80);
    if (token.type != T_NAME) {
        weft__j_unexpected(parser, "the name of a tag");
        return NULL;
    }
    for (size_t i = 0; i < WEFT__COUNT(tags); i++) {
        if (!weft__j_at_name(parser, tags[i].name)) continue;
        if (tags[i].parse == NULL) break;
        weft__j_next(parser);
        struct jnode *node = tags[i].parse(parser);
        end_tag(parser);
        return node;
    }
    if (length > 3 && memcmp(token.value.text, "end", 3) == 0 && ends != NULL)
        weft__j_syntax(parser, WEFT_FORMAT, token.offset,
                       "unexpected tag '%.*s', the innermost open block wants '%s'", length,
                       token.value.text, ends[0]);
    else
        weft__j_syntax(parser, WEFT_UNSUPPORTED, token.offset, "no tag named '%.*s'", length,
                       token.value.text);
    return NULL;
}

static bool at_end_tag(const struct jparser *parser, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++)
        if (weft__j_at_name(parser, *ends)) return true;
    return false;
}

static struct jnode *parse_piece(struct jparser *parser, const char *const *ends, bool *done)
{
    struct jnode *node = NULL;
    switch (parser->token.type) {
    case T_DATA:
        node = weft__j_node(parser, S_DATA, NULL, NULL);
        if (node != NULL) node->value = parser->token.value;
        weft__j_next(parser);
        return node;
    case T_PRINT_BEGIN:
        weft__j_next(parser);
        node = weft__j_node(parser, S_PRINT, NULL, NULL);
        struct jnode *value = weft__j_tuple(parser, false);
        if (node != NULL) node->a = value;
        if (parser->token.type == T_PRINT_END)
            weft__j_next(parser);
        else
            weft__j_unexpected(parser, "the end of the expression");
        return node;
    case T_BLOCK_BEGIN:
        weft__j_next(parser);
        *done = at_end_tag(parser, ends);
        return *done ? NULL : parse_tag(parser, ends);
    default:
        *done = true;
        if (ends != NULL && parser->status == WEFT_OK)
            weft__j_syntax(parser, WEFT_FORMAT, parser->token.offset,
                           "unexpected end of the template, the innermost open block wants '%s'",
                           ends[0]);
        return NULL;
    }
}

static struct jnode *parse_body(struct jparser *parser, const char *const *ends, bool soft)
{
    struct jnode *body = NULL, **tail = &body;
    bool done = false, outer = parser->soft;
    parser->soft = soft;
    if (++parser->blocks > WEFT__TEMPLATE_MAX_NESTING)
        weft__j_syntax(parser, WEFT_TOO_LONG, parser->token.offset,
                       "blocks nested more than %d deep", WEFT__TEMPLATE_MAX_NESTING);
    while (!done && parser->status == WEFT_OK) {
        weft__j_link(&tail, parse_piece(parser, ends, &done));
        while (*tail != NULL) tail = &(*tail)->next; /* one print tag is several statements */
    }
    parser->blocks--;
    parser->soft = outer;
    return body;
}

/* Every kind of newline becomes \n, and one at the very end is dropped. */
static char *normalise(struct weft__arena *arena, const char *text, size_t *len)
{
    char *out = weft__arena_alloc(arena, *len + 1);
    if (out == NULL) return NULL;
    size_t n = 0;
    for (size_t i = 0; i < *len; i++) {
        if (text[i] == '\r' && i + 1 < *len && text[i + 1] == '\n') continue;
        out[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (n > 0 && out[n - 1] == '\n') n--;
    out[n] = '\0';
    *len = n;
    return out;
}

weft_status weft__template_parse(const char *name, const char *text, size_t len,
                                 struct weft__template **out, weft_error *err)
{
    if (len > WEFT__TEMPLATE_MAX_TEXT)
        return weft__fail(err, WEFT_TOO_LONG, "%s: %zu bytes, a template may have %d", name, len,
                          WEFT__TEMPLATE_MAX_TEXT);
    if (!weft__utf8_valid(text, len))
        return weft__fail(err, WEFT_FORMAT, "%s: not valid UTF-8", name);
    struct weft__template *tmpl = calloc(1, sizeof *tmpl);
    if (tmpl == NULL) return weft__fail_oom(err, sizeof *tmpl, name);
    struct jparser parser = {.tmpl = tmpl, .err = err, .line_start = true};
    tmpl->len = len;
    tmpl->name = weft__arena_strndup(&tmpl->arena, name, strlen(name));
    tmpl->text = normalise(&tmpl->arena, text, &tmpl->len);
    if (tmpl->name == NULL || tmpl->text == NULL) {
        parser.status = weft__fail_oom(err, len, name);
    } else {
        static const char *const special[] = {[J_NAME_LOOP] = "loop",
                                              [J_NAME_CALLER] = "caller",
                                              [J_NAME_VARARGS] = "varargs",
                                              [J_NAME_KWARGS] = "kwargs"};
        for (size_t i = 0; i < WEFT__COUNT(special); i++)
            (void)weft__j_intern(&parser, special[i], strlen(special[i]));
        weft__j_next(&parser);
        weft__j_next(&parser);
        tmpl->body = parse_body(&parser, NULL, false);
    }
    if (parser.status != WEFT_OK) {
        weft__template_free(tmpl);
        return parser.status;
    }
    *out = tmpl;
    return WEFT_OK;
}

void weft__template_free(struct weft__template *tmpl)
{
    if (tmpl == NULL) return;
    weft__arena_free(&tmpl->arena);
    free(tmpl);
}
