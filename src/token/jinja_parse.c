/* Tokens -> the tree. The grammar and its oddities are those of jinja2/parser.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jinja.h"

static struct weft__jnode *parse_expression(struct weft__jparser *parser);
static struct weft__jnode *parse_binary(struct weft__jparser *parser, int level);
static struct weft__jnode *parse_filters(struct weft__jparser *parser, struct weft__jnode *node);

/* ---- tokens and nodes ---- */

static void check_unknown(struct weft__jparser *parser)
{
    const struct weft__jnode *node = parser->unknown;
    parser->unknown = NULL;
    if (!parser->soft)
        weft__j_syntax(parser, WEFT_UNSUPPORTED, node->offset, "no filter or test named '%.80s'",
                       parser->tmpl->names[node->name].text);
}

static void next_token(struct weft__jparser *parser)
{
    if (parser->unknown != NULL &&
        (parser->token.type == WEFT__T_BLOCK_END || parser->token.type == WEFT__T_PRINT_END))
        check_unknown(parser);
    parser->token = parser->ahead;
    if (parser->token.type == WEFT__T_END && parser->status != WEFT_OK) return;
    weft__j_lex(parser, &parser->ahead);
    if (parser->status != WEFT_OK) parser->token.type = parser->ahead.type = WEFT__T_END;
}

static bool is_op(const struct weft__jtoken *token, enum weft__jop op)
{
    return token->type == WEFT__T_OP && token->op == op;
}

static bool is_name(const struct weft__jtoken *token, const char *name)
{
    return token->type == WEFT__T_NAME && weft__j_is_text(token->value, name);
}

static bool at_op(const struct weft__jparser *parser, enum weft__jop op)
{
    return is_op(&parser->token, op);
}

static bool at_name(const struct weft__jparser *parser, const char *name)
{
    return is_name(&parser->token, name);
}

static bool skip_op(struct weft__jparser *parser, enum weft__jop op)
{
    if (!at_op(parser, op)) return false;
    next_token(parser);
    return true;
}

static bool skip_name(struct weft__jparser *parser, const char *name)
{
    if (!at_name(parser, name)) return false;
    next_token(parser);
    return true;
}

static void unexpected(struct weft__jparser *parser, const char *wanted)
{
    static const char *const names[] = {[WEFT__T_END] = "the end of the template",
                                        [WEFT__T_DATA] = "text",
                                        [WEFT__T_BLOCK_BEGIN] = "{%",
                                        [WEFT__T_BLOCK_END] = "the end of the block",
                                        [WEFT__T_PRINT_BEGIN] = "{{",
                                        [WEFT__T_PRINT_END] = "the end of the expression",
                                        [WEFT__T_STRING] = "a string",
                                        [WEFT__T_INT] = "a number",
                                        [WEFT__T_FLOAT] = "a number"};
    const struct weft__jtoken *token = &parser->token;
    if (token->type == WEFT__T_NAME || token->type == WEFT__T_OP)
        weft__j_syntax(parser, WEFT_FORMAT, token->offset, "unexpected '%.*s', expected %s",
                       (int)weft__min(token->value.len, 80), token->value.text, wanted);
    else
        weft__j_syntax(parser, WEFT_FORMAT, token->offset, "unexpected %s, expected %s",
                       names[token->type], wanted);
    parser->token.type = parser->ahead.type = WEFT__T_END;
}

static void expect_op(struct weft__jparser *parser, enum weft__jop op)
{
    char wanted[8];
    (void)snprintf(wanted, sizeof wanted, "'%s'", weft__j_spelling(op));
    if (!skip_op(parser, op)) unexpected(parser, wanted);
}

static uint32_t intern(struct weft__jparser *parser, const char *text, size_t len)
{
    struct weft__template *tmpl = parser->tmpl;
    for (uint32_t i = 0; i < tmpl->name_count; i++)
        if (tmpl->names[i].len == len && memcmp(tmpl->names[i].text, text, len) == 0) return i;
    if (tmpl->name_count == WEFT__TEMPLATE_MAX_NAMES) {
        weft__j_syntax(parser, WEFT_TOO_LONG, parser->token.offset, "more than %d different names",
                       WEFT__TEMPLATE_MAX_NAMES);
        return 0;
    }
    char *copy = weft__j_parse_alloc(parser, len + 1);
    if (copy == NULL) return 0;
    memcpy(copy, text, len);
    tmpl->names[tmpl->name_count] = weft__j_text(copy, len);
    return tmpl->name_count++;
}

static uint32_t take_name(struct weft__jparser *parser)
{
    struct weft__jtoken token = parser->token;
    if (token.type != WEFT__T_NAME) {
        unexpected(parser, "a name");
        return 0;
    }
    next_token(parser);
    return intern(parser, token.value.text, token.value.len);
}

/* A copy of `fields`; NULL when parsing has failed, so that every loop over nodes ends. */
static struct weft__jnode *make(struct weft__jparser *parser, struct weft__jnode fields)
{
    struct weft__jnode *node =
        parser->status == WEFT_OK ? weft__j_parse_alloc(parser, sizeof *node) : NULL;
    if (node != NULL) *node = fields;
    return node;
}

static struct weft__jnode *node_at(struct weft__jparser *parser, uint32_t offset,
                                   enum weft__jnode_kind kind, struct weft__jnode *a,
                                   struct weft__jnode *b)
{
    return make(parser,
                (struct weft__jnode){.kind = (uint8_t)kind, .offset = offset, .a = a, .b = b});
}

static void link(struct weft__jnode ***tail, struct weft__jnode *node)
{
    if (node == NULL) return;
    **tail = node;
    *tail = &node->next;
}

/* ---- primaries ---- */

/* `[a, b]` and `{a: b, c: d}` */
static struct weft__jnode *parse_list(struct weft__jparser *parser, enum weft__jop end,
                                      enum weft__jnode_kind kind)
{
    struct weft__jnode *items = NULL, **tail = &items;
    uint32_t offset = parser->token.offset;
    next_token(parser);
    while (parser->status == WEFT_OK && !at_op(parser, end)) {
        if (items != NULL) expect_op(parser, WEFT__J_OP_COMMA);
        if (at_op(parser, end)) break;
        link(&tail, parse_expression(parser));
        if (kind != WEFT__N_DICT) continue;
        expect_op(parser, WEFT__J_OP_COLON);
        link(&tail, parse_expression(parser));
    }
    expect_op(parser, end);
    return node_at(parser, offset, kind, items, NULL);
}

static struct weft__jnode *constant(struct weft__jparser *parser, uint32_t offset,
                                    struct weft__jvalue value)
{
    return make(parser,
                (struct weft__jnode){.kind = WEFT__N_CONST, .offset = offset, .value = value});
}

/* Adjacent strings are one, as in Python. */
static struct weft__jnode *parse_string(struct weft__jparser *parser)
{
    uint32_t offset = parser->token.offset;
    struct weft__jvalue text = parser->token.value;
    next_token(parser);
    while (parser->token.type == WEFT__T_STRING) {
        struct weft__jvalue more = parser->token.value;
        char *joined = weft__j_parse_alloc(parser, (size_t)text.len + more.len);
        if (joined == NULL) return NULL;
        memcpy(joined, text.text, text.len);
        memcpy(joined + text.len, more.text, more.len);
        text = weft__j_text(joined, (size_t)text.len + more.len);
        next_token(parser);
    }
    return constant(parser, offset, text);
}

static struct weft__jnode *parse_word(struct weft__jparser *parser, bool attributes)
{
    static const struct {
        const char *name;
        struct weft__jvalue value;
    } words[] = {{"true", {.kind = WEFT__J_BOOL, .truth = true}},
                 {"True", {.kind = WEFT__J_BOOL, .truth = true}},
                 {"false", {.kind = WEFT__J_BOOL}},
                 {"False", {.kind = WEFT__J_BOOL}},
                 {"none", {.kind = WEFT__J_NONE}},
                 {"None", {.kind = WEFT__J_NONE}}};
    uint32_t offset = parser->token.offset;
    for (size_t i = 0; i < WEFT__COUNT(words); i++)
        if (skip_name(parser, words[i].name)) return constant(parser, offset, words[i].value);
    if (at_name(parser, "caller")) parser->uses_caller = true;
    if (at_name(parser, "varargs") || at_name(parser, "kwargs"))
        weft__j_syntax(parser, WEFT_UNSUPPORTED, offset, "varargs and kwargs of macros");
    struct weft__jnode fields = {.kind = WEFT__N_NAME, .offset = offset, .name = take_name(parser)};
    if (attributes && skip_op(parser, WEFT__J_OP_DOT)) {
        fields.kind = WEFT__N_NSREF;
        fields.value = parser->tmpl->names[take_name(parser)];
    }
    return make(parser, fields);
}

/* What may end a tuple, besides no comma: jinja2's is_tuple_end. */
static bool at_tuple_end(const struct weft__jparser *parser, bool target)
{
    return parser->token.type == WEFT__T_PRINT_END || parser->token.type == WEFT__T_BLOCK_END ||
           at_op(parser, WEFT__J_OP_RPAREN) || (target && at_name(parser, "in"));
}

static struct weft__jnode *parse_primary(struct weft__jparser *parser, bool attributes);

enum { TUPLE_EXPRESSION, TUPLE_NO_CONDITION, TUPLE_TARGET, TUPLE_ATTRIBUTES };

static struct weft__jnode *parse_tuple(struct weft__jparser *parser, int mode, bool parenthesised)
{
    struct weft__jnode *items = NULL, **tail = &items;
    uint32_t offset = parser->token.offset;
    bool tuple = false, target = mode >= TUPLE_TARGET;
    while (parser->status == WEFT_OK) {
        if (items != NULL) expect_op(parser, WEFT__J_OP_COMMA);
        if (at_tuple_end(parser, target)) break;
        link(&tail, target                     ? parse_primary(parser, mode == TUPLE_ATTRIBUTES)
                    : mode == TUPLE_EXPRESSION ? parse_expression(parser)
                                               : parse_binary(parser, 0));
        if (!at_op(parser, WEFT__J_OP_COMMA)) break;
        tuple = true;
    }
    if (!tuple && items != NULL) return items;
    if (!tuple && !parenthesised) unexpected(parser, "an expression");
    return node_at(parser, offset, WEFT__N_TUPLE, items, NULL);
}

static struct weft__jnode *parse_primary(struct weft__jparser *parser, bool attributes)
{
    struct weft__jtoken token = parser->token;
    switch (token.type) {
    case WEFT__T_NAME:
        return parse_word(parser, attributes);
    case WEFT__T_STRING:
        return parse_string(parser);
    case WEFT__T_INT:
    case WEFT__T_FLOAT:
        next_token(parser);
        return constant(parser, token.offset, token.value);
    default:
        break;
    }
    if (at_op(parser, WEFT__J_OP_LBRACKET))
        return parse_list(parser, WEFT__J_OP_RBRACKET, WEFT__N_LIST);
    if (at_op(parser, WEFT__J_OP_LBRACE))
        return parse_list(parser, WEFT__J_OP_RBRACE, WEFT__N_DICT);
    if (!skip_op(parser, WEFT__J_OP_LPAREN)) {
        unexpected(parser, "an expression");
        return NULL;
    }
    struct weft__jnode *node = parse_tuple(parser, TUPLE_EXPRESSION, true);
    expect_op(parser, WEFT__J_OP_RPAREN);
    return node;
}

/* ---- what follows a primary ---- */

static struct weft__jnode *parse_slice(struct weft__jparser *parser)
{
    struct weft__jnode *parts[3] = {NULL, NULL, NULL};
    uint32_t offset = parser->token.offset;
    int count = 0;
    for (;; count++) {
        bool empty =
            at_op(parser, WEFT__J_OP_COLON) ||
            (count > 0 && (at_op(parser, WEFT__J_OP_RBRACKET) || at_op(parser, WEFT__J_OP_COMMA)));
        if (!empty) parts[count] = parse_expression(parser);
        if (count == 2 || !skip_op(parser, WEFT__J_OP_COLON)) break;
    }
    if (count == 0) return parts[0];
    return make(
        parser,
        (struct weft__jnode){
            .kind = WEFT__N_SLICE, .offset = offset, .a = parts[0], .b = parts[1], .c = parts[2]});
}

static struct weft__jnode *parse_subscript(struct weft__jparser *parser, struct weft__jnode *object)
{
    struct weft__jtoken token = parser->token;
    struct weft__jnode *key;
    if (skip_op(parser, WEFT__J_OP_LBRACKET)) {
        key = parse_slice(parser);
        if (at_op(parser, WEFT__J_OP_COMMA))
            weft__j_syntax(parser, WEFT_UNSUPPORTED, parser->token.offset,
                           "a tuple as the subscript");
        expect_op(parser, WEFT__J_OP_RBRACKET);
        return node_at(parser, token.offset, WEFT__N_GETITEM, object, key);
    }
    next_token(parser); /* the point */
    token = parser->token;
    if (token.type == WEFT__T_INT) {
        next_token(parser);
        key = constant(parser, token.offset, token.value);
        return node_at(parser, token.offset, WEFT__N_GETITEM, object, key);
    }
    return make(parser, (struct weft__jnode){.kind = WEFT__N_GETATTR,
                                             .offset = token.offset,
                                             .a = object,
                                             .name = take_name(parser)});
}

static struct weft__jnode *parse_argument(struct weft__jparser *parser, int *last)
{
    struct weft__jtoken token = parser->token;
    int op = WEFT__J_ARG_POSITIONAL;
    uint32_t name = 0;
    if (skip_op(parser, WEFT__J_OP_MUL)) {
        op = WEFT__J_ARG_LIST;
    } else if (at_op(parser, WEFT__J_OP_POW)) {
        weft__j_syntax(parser, WEFT_UNSUPPORTED, token.offset, "** in a call");
    } else if (token.type == WEFT__T_NAME && is_op(&parser->ahead, WEFT__J_OP_ASSIGN)) {
        op = WEFT__J_ARG_NAMED;
        name = take_name(parser);
        next_token(parser);
    }
    /* Positional, named, one list: jinja2's order, but named may follow a list. */
    if (op == WEFT__J_ARG_POSITIONAL ? *last != op : op == WEFT__J_ARG_LIST && *last == op)
        weft__j_syntax(parser, WEFT_FORMAT, token.offset, "invalid syntax for function call");
    if (op > *last) *last = op;
    return make(parser, (struct weft__jnode){.kind = WEFT__N_ARG,
                                             .op = (uint8_t)op,
                                             .offset = token.offset,
                                             .name = name,
                                             .a = parse_expression(parser)});
}

static struct weft__jnode *parse_arguments(struct weft__jparser *parser)
{
    struct weft__jnode *arguments = NULL, **tail = &arguments;
    int last = WEFT__J_ARG_POSITIONAL;
    expect_op(parser, WEFT__J_OP_LPAREN);
    while (parser->status == WEFT_OK && !at_op(parser, WEFT__J_OP_RPAREN)) {
        if (arguments != NULL) expect_op(parser, WEFT__J_OP_COMMA);
        if (at_op(parser, WEFT__J_OP_RPAREN)) break;
        link(&tail, parse_argument(parser, &last));
    }
    expect_op(parser, WEFT__J_OP_RPAREN);
    return arguments;
}

static struct weft__jnode *parse_call(struct weft__jparser *parser, struct weft__jnode *what)
{
    uint32_t offset = parser->token.offset;
    return node_at(parser, offset, WEFT__N_CALL, what, parse_arguments(parser));
}

/* The name of a filter or test and what it stands for, in a node without its arguments. An unknown
 * one is an error at the end of the tag, unless it stands in an `if`: there jinja2 waits until it
 * is used, and templates that ask for filters of other engines first rely on it. */
static struct weft__jnode *take_function(struct weft__jparser *parser, enum weft__jnode_kind kind,
                                         struct weft__jnode *input)
{
    struct weft__jnode fields = {.kind = (uint8_t)kind, .offset = parser->token.offset, .a = input};
    fields.name = take_name(parser);
    struct weft__jvalue name = parser->tmpl->names[fields.name];
    fields.function = kind == WEFT__N_FILTER ? weft__j_filter(name) : weft__j_test(name);
    struct weft__jnode *node = make(parser, fields);
    if (fields.function == NULL && parser->unknown == NULL) parser->unknown = node;
    return node;
}

static void set_arguments(struct weft__jnode *node, struct weft__jnode *arguments)
{
    if (node != NULL) node->b = arguments;
}

static struct weft__jnode *parse_filter(struct weft__jparser *parser, struct weft__jnode *input)
{
    struct weft__jnode *node = take_function(parser, WEFT__N_FILTER, input);
    if (at_op(parser, WEFT__J_OP_LPAREN)) set_arguments(node, parse_arguments(parser));
    return node;
}

/* `upper|trim(...)` of a block */
static struct weft__jnode *block_filters(struct weft__jparser *parser)
{
    struct weft__jnode *node = NULL;
    do node = parse_filter(parser, node);
    while (parser->status == WEFT_OK && skip_op(parser, WEFT__J_OP_PIPE));
    return node;
}

/* A test takes its argument without parentheses too: `is divisibleby 3`. */
static bool at_test_argument(const struct weft__jparser *parser)
{
    if (parser->token.type == WEFT__T_NAME)
        return !at_name(parser, "else") && !at_name(parser, "or") && !at_name(parser, "and");
    return parser->token.type == WEFT__T_STRING || parser->token.type == WEFT__T_INT ||
           parser->token.type == WEFT__T_FLOAT || at_op(parser, WEFT__J_OP_LBRACKET) ||
           at_op(parser, WEFT__J_OP_LBRACE);
}

static struct weft__jnode *parse_postfix(struct weft__jparser *parser, struct weft__jnode *node);

static struct weft__jnode *parse_test(struct weft__jparser *parser, struct weft__jnode *input)
{
    bool negated = skip_name(parser, "not");
    struct weft__jnode *node = take_function(parser, WEFT__N_TEST, input);
    uint32_t start = parser->token.offset;
    if (at_op(parser, WEFT__J_OP_LPAREN)) {
        set_arguments(node, parse_arguments(parser));
    } else if (at_test_argument(parser)) {
        if (at_name(parser, "is"))
            weft__j_syntax(parser, WEFT_FORMAT, start,
                           "multiple tests cannot be chained with 'is'");
        struct weft__jnode *value = parse_postfix(parser, parse_primary(parser, false));
        set_arguments(node, node_at(parser, start, WEFT__N_ARG, value, NULL));
    }
    return negated && node != NULL ? node_at(parser, node->offset, WEFT__N_NOT, node, NULL) : node;
}

static struct weft__jnode *parse_postfix(struct weft__jparser *parser, struct weft__jnode *node)
{
    while (parser->status == WEFT_OK) {
        if (at_op(parser, WEFT__J_OP_DOT) || at_op(parser, WEFT__J_OP_LBRACKET))
            node = parse_subscript(parser, node);
        else if (at_op(parser, WEFT__J_OP_LPAREN))
            node = parse_call(parser, node);
        else
            break;
    }
    return node;
}

static struct weft__jnode *parse_filters(struct weft__jparser *parser, struct weft__jnode *node)
{
    while (parser->status == WEFT_OK) {
        if (skip_op(parser, WEFT__J_OP_PIPE))
            node = parse_filter(parser, node);
        else if (skip_name(parser, "is"))
            node = parse_test(parser, node);
        else if (at_op(parser, WEFT__J_OP_LPAREN))
            node = parse_call(parser, node);
        else
            break;
    }
    return node;
}

/* ---- operators ---- */

/* One level deeper, while what nests parses itself; false: too deep. */
static bool nest(struct weft__jparser *parser)
{
    if (++parser->nesting > WEFT__TEMPLATE_MAX_NESTING)
        weft__j_syntax(parser, WEFT_TOO_LONG, parser->token.offset,
                       "expressions nested more than %d deep", WEFT__TEMPLATE_MAX_NESTING);
    return parser->status == WEFT_OK;
}

static struct weft__jnode *parse_unary(struct weft__jparser *parser, bool filters)
{
    uint32_t offset = parser->token.offset;
    bool minus = skip_op(parser, WEFT__J_OP_SUB);
    struct weft__jnode *node;
    if (minus || skip_op(parser, WEFT__J_OP_ADD)) {
        struct weft__jnode *operand = nest(parser) ? parse_unary(parser, false) : NULL;
        parser->nesting--;
        node = node_at(parser, offset, minus ? WEFT__N_NEG : WEFT__N_POS, operand, NULL);
    } else {
        node = parse_primary(parser, false);
    }
    node = parse_postfix(parser, node);
    return filters ? parse_filters(parser, node) : node;
}

/* From loose to tight; and what stands between the levels: a `not` before its operand, comparisons
 * in chains. `~` binds tighter than `+`, as in jinja2. */
enum {
    LEVEL_OR,
    LEVEL_AND,
    LEVEL_NOT,
    LEVEL_COMPARE,
    LEVEL_SUM,
    LEVEL_CONCAT,
    LEVEL_PRODUCT,
    LEVELS
};

/* The operator of a level at the current token, moving behind it; -1: none. */
static int take_operator(struct weft__jparser *parser, int level)
{
    static const struct {
        uint8_t level, op;
    } ops[] = {{LEVEL_COMPARE, WEFT__J_OP_EQ},   {LEVEL_COMPARE, WEFT__J_OP_NE},
               {LEVEL_COMPARE, WEFT__J_OP_LT},   {LEVEL_COMPARE, WEFT__J_OP_LE},
               {LEVEL_COMPARE, WEFT__J_OP_GT},   {LEVEL_COMPARE, WEFT__J_OP_GE},
               {LEVEL_SUM, WEFT__J_OP_ADD},      {LEVEL_SUM, WEFT__J_OP_SUB},
               {LEVEL_CONCAT, WEFT__J_OP_TILDE}, {LEVEL_PRODUCT, WEFT__J_OP_MUL},
               {LEVEL_PRODUCT, WEFT__J_OP_DIV},  {LEVEL_PRODUCT, WEFT__J_OP_FLOORDIV},
               {LEVEL_PRODUCT, WEFT__J_OP_MOD}};
    if (level == LEVEL_OR) return skip_name(parser, "or") ? WEFT__J_OP_OR : -1;
    if (level == LEVEL_AND) return skip_name(parser, "and") ? WEFT__J_OP_AND : -1;
    for (size_t i = 0; i < WEFT__COUNT(ops); i++)
        if (ops[i].level == level && skip_op(parser, ops[i].op)) return ops[i].op;
    if (level != LEVEL_COMPARE) return -1;
    if (skip_name(parser, "in")) return WEFT__J_OP_IN;
    if (!at_name(parser, "not") || !is_name(&parser->ahead, "in")) return -1;
    next_token(parser);
    next_token(parser);
    return WEFT__J_OP_NOT_IN;
}

/* A chain of comparisons, or of parts to concatenate, is one node. */
static struct weft__jnode *parse_chain(struct weft__jparser *parser, int level)
{
    struct weft__jnode *first = parse_binary(parser, level + 1), *rest = NULL, **tail = &rest;
    uint32_t start = parser->token.offset, offset = start;
    for (int op; parser->status == WEFT_OK && (op = take_operator(parser, level)) >= 0;
         offset = parser->token.offset) {
        struct weft__jnode fields = {.kind = WEFT__N_OPERAND, .op = (uint8_t)op, .offset = offset};
        fields.a = parse_binary(parser, level + 1);
        link(&tail, make(parser, fields));
    }
    if (rest == NULL) return first;
    return node_at(parser, start, level == LEVEL_COMPARE ? WEFT__N_COMPARE : WEFT__N_CONCAT, first,
                   rest);
}

static struct weft__jnode *parse_binary(struct weft__jparser *parser, int level)
{
    uint32_t offset = parser->token.offset;
    if (level == LEVEL_COMPARE || level == LEVEL_CONCAT) return parse_chain(parser, level);
    if (level == LEVELS) {
        struct weft__jnode *operand = parse_unary(parser, true);
        if (at_op(parser, WEFT__J_OP_POW))
            weft__j_syntax(parser, WEFT_UNSUPPORTED, parser->token.offset, "the operator **");
        return operand;
    }
    if (level == LEVEL_NOT) {
        if (!skip_name(parser, "not")) return parse_binary(parser, level + 1);
        struct weft__jnode *operand = nest(parser) ? parse_binary(parser, level) : NULL;
        parser->nesting--;
        return node_at(parser, offset, WEFT__N_NOT, operand, NULL);
    }
    struct weft__jnode *left = parse_binary(parser, level + 1);
    offset = parser->token.offset;
    for (int op; parser->status == WEFT_OK && (op = take_operator(parser, level)) >= 0;
         offset = parser->token.offset) {
        struct weft__jnode fields = {
            .kind = WEFT__N_BINARY, .op = (uint8_t)op, .offset = offset, .a = left};
        fields.b = parse_binary(parser, level + 1);
        left = make(parser, fields);
    }
    return left;
}

static struct weft__jnode *parse_expression(struct weft__jparser *parser)
{
    const struct weft__jnode *unknown = parser->unknown;
    uint32_t offset;
    struct weft__jnode *node = nest(parser) ? parse_binary(parser, LEVEL_OR) : NULL;
    while (offset = parser->token.offset, skip_name(parser, "if")) {
        struct weft__jnode fields = {.kind = WEFT__N_COND, .offset = offset, .b = node};
        fields.a = parse_binary(parser, LEVEL_OR);
        if (skip_name(parser, "else")) fields.c = parse_expression(parser);
        node = make(parser, fields);
        parser->unknown = unknown;
    }
    parser->nesting--;
    return node;
}

static bool assignable(const struct weft__jnode *node)
{
    if (node == NULL) return true;
    if (node->kind != WEFT__N_TUPLE)
        return node->kind == WEFT__N_NAME || node->kind == WEFT__N_NSREF;
    for (const struct weft__jnode *item = node->a; item != NULL; item = item->next)
        if (!assignable(item)) return false;
    return true;
}

static struct weft__jnode *parse_target(struct weft__jparser *parser, bool attributes)
{
    uint32_t offset = parser->token.offset;
    struct weft__jnode *node =
        parse_tuple(parser, attributes ? TUPLE_ATTRIBUTES : TUPLE_TARGET, false);
    if (!assignable(node))
        weft__j_syntax(parser, WEFT_FORMAT, offset, "cannot assign to this expression");
    return node;
}

/* ---- statements ---- */

/* Parses statements up to one of the tags in `ends` (NULL-terminated), which is left current;
 * ends NULL: up to the end of the template. soft: see jparser. */
static struct weft__jnode *parse_body(struct weft__jparser *parser, const char *const *ends,
                                      bool soft);

static void end_tag(struct weft__jparser *parser)
{
    if (parser->token.type == WEFT__T_BLOCK_END)
        next_token(parser);
    else
        unexpected(parser, "the end of the block");
}

/* The body of a block up to {% end %}, whose name is consumed. */
static struct weft__jnode *block_body(struct weft__jparser *parser, const char *end)
{
    const char *const ends[] = {end, NULL};
    end_tag(parser);
    struct weft__jnode *body = parse_body(parser, ends, false);
    next_token(parser);
    return body;
}

static struct weft__jnode *parse_for(struct weft__jparser *parser)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct weft__jnode fields = {.kind = WEFT__S_FOR, .offset = parser->token.offset};
    fields.a = parse_target(parser, false);
    if (!skip_name(parser, "in")) unexpected(parser, "'in'");
    fields.b = parse_tuple(parser, TUPLE_NO_CONDITION, false);
    if (skip_name(parser, "if")) fields.c = parse_expression(parser);
    if (at_name(parser, "recursive"))
        weft__j_syntax(parser, WEFT_UNSUPPORTED, parser->token.offset, "a recursive loop");
    end_tag(parser);
    parser->loops++;
    fields.d = parse_body(parser, ends, false);
    parser->loops--;
    if (skip_name(parser, "else"))
        fields.e = block_body(parser, "endfor");
    else
        next_token(parser);
    return make(parser, fields);
}

static struct weft__jnode *parse_if(struct weft__jparser *parser)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct weft__jnode *branches = NULL, **tail = &branches;
    uint32_t offset = parser->token.offset;
    for (bool more = true, last = false; more && parser->status == WEFT_OK;) {
        struct weft__jnode branch = {.kind = WEFT__S_BRANCH, .offset = parser->token.offset};
        bool soft = parser->soft;
        parser->soft = true;
        if (!last) branch.a = parse_tuple(parser, TUPLE_NO_CONDITION, false);
        end_tag(parser);
        parser->soft = soft;
        branch.b = parse_body(parser, ends, true);
        link(&tail, make(parser, branch));
        if (last && !at_name(parser, "endif")) unexpected(parser, "'endif'");
        last = at_name(parser, "else");
        more = !at_name(parser, "endif");
        next_token(parser);
    }
    return node_at(parser, offset, WEFT__S_IF, branches, NULL);
}

static struct weft__jnode *parse_set(struct weft__jparser *parser)
{
    struct weft__jnode fields = {.kind = WEFT__S_SET, .offset = parser->token.offset};
    fields.a = parse_target(parser, true);
    if (skip_op(parser, WEFT__J_OP_ASSIGN)) {
        fields.b = parse_tuple(parser, TUPLE_EXPRESSION, false);
    } else {
        fields.kind = WEFT__S_CAPTURE;
        if (skip_op(parser, WEFT__J_OP_PIPE)) fields.b = block_filters(parser);
        fields.c = block_body(parser, "endset");
    }
    return make(parser, fields);
}

static struct weft__jnode *parse_parameters(struct weft__jparser *parser)
{
    struct weft__jnode *parameters = NULL, **tail = &parameters;
    bool defaults = false;
    expect_op(parser, WEFT__J_OP_LPAREN);
    while (parser->status == WEFT_OK && !at_op(parser, WEFT__J_OP_RPAREN)) {
        if (parameters != NULL) expect_op(parser, WEFT__J_OP_COMMA);
        struct weft__jnode fields = {.kind = WEFT__N_PARAM, .offset = parser->token.offset};
        fields.name = take_name(parser);
        if (skip_op(parser, WEFT__J_OP_ASSIGN))
            fields.a = parse_expression(parser);
        else if (defaults)
            weft__j_syntax(parser, WEFT_FORMAT, parser->token.offset,
                           "non-default argument follows default argument");
        defaults = fields.a != NULL;
        link(&tail, make(parser, fields));
    }
    expect_op(parser, WEFT__J_OP_RPAREN);
    return parameters;
}

/* The part of macros and call blocks from the parameters on. A macro's body is no part of the loop
 * around it, and whether it speaks of caller is noted. */
static struct weft__jnode *macro_rest(struct weft__jparser *parser, struct weft__jnode fields,
                                      const char *end)
{
    int loops = parser->loops;
    bool uses_caller = parser->uses_caller;
    parser->loops = 0;
    parser->uses_caller = false;
    fields.kind = WEFT__S_MACRO;
    fields.b = block_body(parser, end);
    fields.op = parser->uses_caller;
    parser->loops = loops;
    parser->uses_caller |= uses_caller;
    return make(parser, fields);
}

static struct weft__jnode *parse_macro(struct weft__jparser *parser)
{
    struct weft__jnode fields = {.offset = parser->token.offset};
    fields.name = take_name(parser);
    fields.a = parse_parameters(parser);
    return macro_rest(parser, fields, "endmacro");
}

static struct weft__jnode *parse_call_block(struct weft__jparser *parser)
{
    struct weft__jnode macro = {.offset = parser->token.offset, .name = WEFT__J_NAME_CALLER};
    if (at_op(parser, WEFT__J_OP_LPAREN)) macro.a = parse_parameters(parser);
    uint32_t offset = parser->token.offset;
    struct weft__jnode *call = parse_expression(parser);
    if (call != NULL && call->kind != WEFT__N_CALL)
        weft__j_syntax(parser, WEFT_FORMAT, offset, "expected a call");
    return node_at(parser, macro.offset, WEFT__S_CALL, call, macro_rest(parser, macro, "endcall"));
}

static struct weft__jnode *parse_filter_block(struct weft__jparser *parser)
{
    uint32_t offset = parser->token.offset;
    struct weft__jnode *filters = block_filters(parser);
    return node_at(parser, offset, WEFT__S_FILTER, filters, block_body(parser, "endfilter"));
}

/* Marks assistant text for training in Hugging Face's environment, as the body of a call block;
 * here only that body counts. */
static struct weft__jnode *parse_generation(struct weft__jparser *parser)
{
    uint32_t offset = parser->token.offset;
    int loops = parser->loops;
    parser->loops = 0;
    struct weft__jnode *body = block_body(parser, "endgeneration");
    parser->loops = loops;
    return node_at(parser, offset, WEFT__S_FILTER, NULL, body);
}

static struct weft__jnode *parse_jump(struct weft__jparser *parser, enum weft__jnode_kind kind)
{
    if (parser->loops == 0)
        weft__j_syntax(parser, WEFT_FORMAT, parser->token.offset, "a jump outside a loop");
    return node_at(parser, parser->token.offset, kind, NULL, NULL);
}

static struct weft__jnode *parse_break(struct weft__jparser *parser)
{
    return parse_jump(parser, WEFT__S_BREAK);
}

static struct weft__jnode *parse_continue(struct weft__jparser *parser)
{
    return parse_jump(parser, WEFT__S_CONTINUE);
}

static const struct {
    const char *name;
    struct weft__jnode *(*parse)(struct weft__jparser *parser);
} tags[] = {
    {"break", parse_break},
    {"call", parse_call_block},
    {"continue", parse_continue},
    {"filter", parse_filter_block},
    {"for", parse_for},
    {"generation", parse_generation},
    {"if", parse_if},
    {"macro", parse_macro},
    {"set", parse_set},
};

/* A tag, behind its `{%`, up to and including its last `%}`. */
static struct weft__jnode *parse_tag(struct weft__jparser *parser, const char *const *ends)
{
    struct weft__jtoken token = parser->token;
    int length = (int)weft__min(token.value.len, 80);
    if (token.type != WEFT__T_NAME) {
        unexpected(parser, "the name of a tag");
        return NULL;
    }
    for (size_t i = 0; i < WEFT__COUNT(tags); i++) {
        if (!at_name(parser, tags[i].name)) continue;
        next_token(parser);
        struct weft__jnode *node = tags[i].parse(parser);
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

static bool at_end_tag(const struct weft__jparser *parser, const char *const *ends)
{
    for (; ends != NULL && *ends != NULL; ends++)
        if (at_name(parser, *ends)) return true;
    return false;
}

static struct weft__jnode *parse_piece(struct weft__jparser *parser, const char *const *ends,
                                       bool *done)
{
    struct weft__jnode fields = {.offset = parser->token.offset, .value = parser->token.value};
    uint8_t type = parser->token.type;
    *done = type == WEFT__T_END;
    if (*done && ends != NULL && parser->status == WEFT_OK)
        weft__j_syntax(parser, WEFT_FORMAT, fields.offset,
                       "unexpected end of the template, the innermost open block wants '%s'",
                       ends[0]);
    if (*done) return NULL;
    next_token(parser);
    if (type == WEFT__T_BLOCK_BEGIN) {
        *done = at_end_tag(parser, ends);
        return *done ? NULL : parse_tag(parser, ends);
    }
    fields.kind = WEFT__S_DATA;
    if (type == WEFT__T_PRINT_BEGIN) {
        fields.kind = WEFT__S_PRINT;
        fields.offset = parser->token.offset;
        fields.a = parse_tuple(parser, TUPLE_EXPRESSION, false);
        if (parser->token.type == WEFT__T_PRINT_END)
            next_token(parser);
        else
            unexpected(parser, "the end of the expression");
    }
    return make(parser, fields);
}

static struct weft__jnode *parse_body(struct weft__jparser *parser, const char *const *ends,
                                      bool soft)
{
    struct weft__jnode *body = NULL, **tail = &body;
    bool done = false, outer = parser->soft;
    parser->soft = soft;
    if (++parser->blocks > WEFT__TEMPLATE_MAX_NESTING)
        weft__j_syntax(parser, WEFT_TOO_LONG, parser->token.offset,
                       "blocks nested more than %d deep", WEFT__TEMPLATE_MAX_NESTING);
    while (!done && parser->status == WEFT_OK) link(&tail, parse_piece(parser, ends, &done));
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
    struct weft__jparser parser = {.tmpl = tmpl, .err = err, .line_start = true};
    tmpl->len = len;
    tmpl->name = weft__arena_strndup(&tmpl->arena, name, strlen(name));
    tmpl->text = normalise(&tmpl->arena, text, &tmpl->len);
    if (tmpl->name == NULL || tmpl->text == NULL) {
        parser.status = weft__fail_oom(err, len, name);
    } else {
        (void)intern(&parser, "loop", 4);   /* J_NAME_LOOP */
        (void)intern(&parser, "caller", 6); /* J_NAME_CALLER */
        next_token(&parser);
        next_token(&parser);
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
