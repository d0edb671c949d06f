/* Tokens -> expressions. The grammar and its oddities are those of jinja2/parser.py. */
#include <string.h>

#include "jinja.h"

static struct jnode *parse_unary(struct jparser *parser, bool filters);
static struct jnode *parse_filters(struct jparser *parser, struct jnode *node);

/* ---- tokens and nodes, shared with the statements ---- */

static void check_unknown(struct jparser *parser)
{
    const char *text = parser->tmpl->text;
    size_t start = parser->unknown - 1, end = start;
    const char *p = text + start;
    while (weft__j_is_word(weft__j_char(&p, text + parser->tmpl->len))) end = (size_t)(p - text);
    if (!parser->soft)
        weft__j_syntax(parser, WEFT_UNSUPPORTED, start, "no filter or test named '%.*s'",
                       (int)weft__min((int64_t)(end - start), 80), text + start);
    parser->unknown = 0;
}

void weft__j_next(struct jparser *parser)
{
    if (parser->unknown != 0 &&
        (parser->token.type == T_BLOCK_END || parser->token.type == T_PRINT_END))
        check_unknown(parser);
    parser->token = parser->ahead;
    if (parser->token.type == T_END && parser->status != WEFT_OK) return;
    weft__j_lex(parser, &parser->ahead);
    if (parser->status != WEFT_OK) parser->token.type = parser->ahead.type = T_END;
}

static bool is_op(const struct jtoken *token, enum weft__jop op)
{
    return token->type == T_OP && token->op == op;
}

static bool is_name(const struct jtoken *token, const char *name)
{
    return token->type == T_NAME && weft__j_is_text(token->value, name);
}

bool weft__j_at_op(const struct jparser *parser, enum weft__jop op)
{
    return is_op(&parser->token, op);
}

bool weft__j_at_name(const struct jparser *parser, const char *name)
{
    return is_name(&parser->token, name);
}

bool weft__j_skip_op(struct jparser *parser, enum weft__jop op)
{
    if (!weft__j_at_op(parser, op)) return false;
    weft__j_next(parser);
    return true;
}

bool weft__j_skip_name(struct jparser *parser, const char *name)
{
    if (!weft__j_at_name(parser, name)) return false;
    weft__j_next(parser);
    return true;
}

void weft__j_unexpected(struct jparser *parser, const char *wanted)
{
    static const char *const names[] = {[T_END] = "the end of the template",
                                        [T_DATA] = "text",
                                        [T_BLOCK_BEGIN] = "{%",
                                        [T_BLOCK_END] = "the end of the block",
                                        [T_PRINT_BEGIN] = "{{",
                                        [T_PRINT_END] = "the end of the expression",
                                        [T_STRING] = "a string",
                                        [T_INT] = "a number",
                                        [T_FLOAT] = "a number"};
    static const char *const ops[] = {
#define X(name, text) text,
        WEFT__J_OPS(X)
#undef X
    };
    const struct jtoken *token = &parser->token;
    if (token->type == T_NAME)
        weft__j_syntax(parser, WEFT_FORMAT, token->offset, "unexpected '%.*s', expected %s",
                       (int)weft__min(token->value.len, 80), token->value.text, wanted);
    else
        weft__j_syntax(parser, WEFT_FORMAT, token->offset, "unexpected %s, expected %s",
                       token->type == T_OP ? ops[token->op] : names[token->type], wanted);
    parser->token.type = parser->ahead.type = T_END;
}

void weft__j_expect_op(struct jparser *parser, enum weft__jop op)
{
    static const char *const ops[] = {
#define X(name, text) "'" text "'",
        WEFT__J_OPS(X)
#undef X
    };
    if (!weft__j_skip_op(parser, op)) weft__j_unexpected(parser, ops[op]);
}

static bool grow_name_index(struct jparser *parser)
{
    struct weft__template *tmpl = parser->tmpl;
    uint32_t cap = parser->name_cap == 0 ? 64 : parser->name_cap * 2, size = cap * 2;
    struct jname *names = weft__j_parse_alloc(parser, cap * sizeof *names);
    uint32_t *index = weft__j_parse_alloc(parser, size * sizeof *index);
    if (names == NULL || index == NULL) return false;
    if (tmpl->name_count > 0) memcpy(names, tmpl->names, tmpl->name_count * sizeof *names);
    for (uint32_t i = 0; i < tmpl->name_count; i++) {
        uint64_t slot = weft__hash(names[i].text, names[i].len, 0);
        while (index[slot & (size - 1)] != 0) slot++;
        index[slot & (size - 1)] = i + 1;
    }
    tmpl->names = names;
    parser->name_cap = cap;
    parser->name_index = index;
    parser->name_index_size = size;
    return true;
}

uint32_t weft__j_intern(struct jparser *parser, const char *text, size_t len)
{
    struct weft__template *tmpl = parser->tmpl;
    if (tmpl->name_count == parser->name_cap && !grow_name_index(parser)) return 0;
    uint64_t slot = weft__hash(text, len, 0);
    uint32_t mask = parser->name_index_size - 1, entry;
    while ((entry = parser->name_index[slot & mask]) != 0) {
        const struct jname *name = &tmpl->names[entry - 1];
        if (name->len == len && memcmp(name->text, text, len) == 0) return entry - 1;
        slot++;
    }
    char *copy = weft__j_parse_alloc(parser, len + 1);
    if (copy == NULL) return 0;
    memcpy(copy, text, len);
    tmpl->names[tmpl->name_count] = (struct jname){.text = copy, .len = (uint32_t)len};
    parser->name_index[slot & mask] = ++tmpl->name_count;
    return tmpl->name_count - 1;
}

uint32_t weft__j_take_name(struct jparser *parser)
{
    struct jtoken token = parser->token;
    if (token.type != T_NAME) {
        weft__j_unexpected(parser, "a name");
        return 0;
    }
    weft__j_next(parser);
    return weft__j_intern(parser, token.value.text, token.value.len);
}

/* NULL when parsing has failed, so that every loop over nodes ends. */
struct jnode *weft__j_node(struct jparser *parser, enum weft__jnode kind, struct jnode *a,
                           struct jnode *b)
{
    struct jnode *node =
        parser->status == WEFT_OK ? weft__j_parse_alloc(parser, sizeof *node) : NULL;
    if (node == NULL) return NULL;
    node->kind = (uint8_t)kind;
    node->offset = parser->token.offset;
    node->a = a;
    node->b = b;
    return node;
}

static struct jnode *node_at(struct jparser *parser, uint32_t offset, enum weft__jnode kind,
                             struct jnode *a, struct jnode *b)
{
    struct jnode *node = weft__j_node(parser, kind, a, b);
    if (node != NULL) node->offset = offset;
    return node;
}

void weft__j_link(struct jnode ***tail, struct jnode *node)
{
    if (node == NULL) return;
    **tail = node;
    *tail = &node->next;
}

/* ---- primaries ---- */

static struct jnode *parse_list(struct jparser *parser)
{
    struct jnode *items = NULL, **tail = &items;
    uint32_t offset = parser->token.offset;
    weft__j_expect_op(parser, J_OP_LBRACKET);
    while (parser->status == WEFT_OK && !weft__j_at_op(parser, J_OP_RBRACKET)) {
        if (items != NULL) weft__j_expect_op(parser, J_OP_COMMA);
        if (weft__j_at_op(parser, J_OP_RBRACKET)) break;
        weft__j_link(&tail, weft__j_expression(parser));
    }
    weft__j_expect_op(parser, J_OP_RBRACKET);
    return node_at(parser, offset, N_LIST, items, NULL);
}

static struct jnode *parse_dict(struct jparser *parser)
{
    struct jnode *items = NULL, **tail = &items;
    uint32_t offset = parser->token.offset;
    weft__j_expect_op(parser, J_OP_LBRACE);
    while (parser->status == WEFT_OK && !weft__j_at_op(parser, J_OP_RBRACE)) {
        if (items != NULL) weft__j_expect_op(parser, J_OP_COMMA);
        if (weft__j_at_op(parser, J_OP_RBRACE)) break;
        weft__j_link(&tail, weft__j_expression(parser));
        weft__j_expect_op(parser, J_OP_COLON);
        weft__j_link(&tail, weft__j_expression(parser));
    }
    weft__j_expect_op(parser, J_OP_RBRACE);
    return node_at(parser, offset, N_DICT, items, NULL);
}

static struct jnode *constant(struct jparser *parser, uint32_t offset, struct jvalue value)
{
    struct jnode *node = node_at(parser, offset, N_CONST, NULL, NULL);
    if (node != NULL) node->value = value;
    return node;
}

/* Adjacent strings are one, as in Python. */
static struct jnode *parse_string(struct jparser *parser)
{
    uint32_t offset = parser->token.offset;
    struct jvalue text = parser->token.value;
    weft__j_next(parser);
    while (parser->token.type == T_STRING) {
        struct jvalue more = parser->token.value;
        char *joined = weft__j_parse_alloc(parser, (size_t)text.len + more.len);
        if (joined == NULL) return NULL;
        memcpy(joined, text.text, text.len);
        memcpy(joined + text.len, more.text, more.len);
        text = weft__j_text(joined, (size_t)text.len + more.len);
        weft__j_next(parser);
    }
    return constant(parser, offset, text);
}

static struct jnode *parse_word(struct jparser *parser, bool attributes)
{
    static const struct {
        const char *name;
        enum weft__jkind kind;
        bool truth;
    } words[] = {{"true", J_BOOL, true},   {"True", J_BOOL, true},  {"false", J_BOOL, false},
                 {"False", J_BOOL, false}, {"none", J_NONE, false}, {"None", J_NONE, false}};
    uint32_t offset = parser->token.offset;
    for (size_t i = 0; i < WEFT__COUNT(words); i++)
        if (weft__j_skip_name(parser, words[i].name))
            return constant(parser, offset,
                            words[i].kind == J_NONE ? weft__j_none()
                                                    : weft__j_bool(words[i].truth));
    if (weft__j_at_name(parser, "caller")) parser->uses |= J_USES_CALLER;
    if (weft__j_at_name(parser, "varargs")) parser->uses |= J_USES_VARARGS;
    if (weft__j_at_name(parser, "kwargs")) parser->uses |= J_USES_KWARGS;
    uint32_t name = weft__j_take_name(parser);
    bool reference = attributes && weft__j_skip_op(parser, J_OP_DOT);
    struct jnode *node = node_at(parser, offset, reference ? N_NSREF : N_NAME, NULL, NULL);
    if (node == NULL) return NULL;
    node->name = name;
    if (reference) {
        struct jname attribute = parser->tmpl->names[weft__j_take_name(parser)];
        node->value = weft__j_text(attribute.text, attribute.len);
    }
    return node;
}

/* What may end a tuple, besides no comma: jinja2's is_tuple_end. */
static bool at_tuple_end(const struct jparser *parser, bool target)
{
    return parser->token.type == T_PRINT_END || parser->token.type == T_BLOCK_END ||
           weft__j_at_op(parser, J_OP_RPAREN) || (target && weft__j_at_name(parser, "in"));
}

static struct jnode *parse_or(struct jparser *parser);
static struct jnode *parse_primary(struct jparser *parser, bool attributes);

enum { TUPLE_EXPRESSION, TUPLE_NO_CONDITION, TUPLE_TARGET, TUPLE_ATTRIBUTES };

static struct jnode *parse_tuple(struct jparser *parser, int mode, bool parenthesised)
{
    struct jnode *items = NULL, **tail = &items;
    uint32_t offset = parser->token.offset;
    bool tuple = false, target = mode >= TUPLE_TARGET;
    while (parser->status == WEFT_OK) {
        if (items != NULL) weft__j_expect_op(parser, J_OP_COMMA);
        if (at_tuple_end(parser, target)) break;
        weft__j_link(&tail, target ? parse_primary(parser, mode == TUPLE_ATTRIBUTES)
                            : mode == TUPLE_EXPRESSION ? weft__j_expression(parser)
                                                       : parse_or(parser));
        if (!weft__j_at_op(parser, J_OP_COMMA)) break;
        tuple = true;
    }
    if (!tuple && items != NULL) return items;
    if (!tuple && !parenthesised) weft__j_unexpected(parser, "an expression");
    return node_at(parser, offset, N_TUPLE, items, NULL);
}

static struct jnode *parse_primary(struct jparser *parser, bool attributes)
{
    struct jtoken token = parser->token;
    switch (token.type) {
    case T_NAME:
        return parse_word(parser, attributes);
    case T_STRING:
        return parse_string(parser);
    case T_INT:
    case T_FLOAT:
        weft__j_next(parser);
        return constant(parser, token.offset, token.value);
    default:
        break;
    }
    if (weft__j_at_op(parser, J_OP_LBRACKET)) return parse_list(parser);
    if (weft__j_at_op(parser, J_OP_LBRACE)) return parse_dict(parser);
    if (!weft__j_skip_op(parser, J_OP_LPAREN)) {
        weft__j_unexpected(parser, "an expression");
        return NULL;
    }
    struct jnode *node = parse_tuple(parser, TUPLE_EXPRESSION, true);
    weft__j_expect_op(parser, J_OP_RPAREN);
    return node;
}

/* ---- what follows a primary ---- */

static struct jnode *parse_slice(struct jparser *parser)
{
    struct jnode *parts[3] = {NULL, NULL, NULL};
    uint32_t offset = parser->token.offset;
    int count = 0;
    for (;;) {
        bool empty = weft__j_at_op(parser, J_OP_COLON) || weft__j_at_op(parser, J_OP_RBRACKET) ||
                     weft__j_at_op(parser, J_OP_COMMA);
        if (!empty || count == 0)
            parts[count] =
                empty && weft__j_at_op(parser, J_OP_COLON) ? NULL : weft__j_expression(parser);
        if (count == 2 || !weft__j_at_op(parser, J_OP_COLON)) break;
        weft__j_next(parser);
        count++;
    }
    if (count == 0) return parts[0];
    struct jnode *node = node_at(parser, offset, N_SLICE, parts[0], parts[1]);
    if (node != NULL) node->c = parts[2];
    return node;
}

static struct jnode *parse_subscript(struct jparser *parser, struct jnode *object)
{
    struct jtoken token = parser->token;
    if (weft__j_skip_op(parser, J_OP_DOT)) {
        token = parser->token;
        if (token.type == T_INT) {
            weft__j_next(parser);
            return node_at(parser, token.offset, N_GETITEM, object,
                           constant(parser, token.offset, token.value));
        }
        uint32_t name = weft__j_take_name(parser);
        struct jnode *node = node_at(parser, token.offset, N_GETATTR, object, NULL);
        if (node != NULL) node->name = name;
        return node;
    }
    struct jnode *keys = NULL, **tail = &keys;
    weft__j_expect_op(parser, J_OP_LBRACKET);
    if (weft__j_skip_op(parser, J_OP_RBRACKET)) /* jinja2 reads x[] as x[()] */
        return node_at(parser, token.offset, N_GETITEM, object,
                       node_at(parser, token.offset, N_TUPLE, NULL, NULL));
    do {
        struct jnode *key = parse_slice(parser);
        if (key != NULL && key->kind == N_SLICE && keys != NULL)
            weft__j_syntax(parser, WEFT_UNSUPPORTED, key->offset, "a slice inside a tuple");
        weft__j_link(&tail, key);
    } while (parser->status == WEFT_OK && weft__j_skip_op(parser, J_OP_COMMA));
    weft__j_expect_op(parser, J_OP_RBRACKET);
    if (keys != NULL && keys->next != NULL)
        keys = node_at(parser, token.offset, N_TUPLE, keys, NULL);
    return node_at(parser, token.offset, N_GETITEM, object, keys);
}

static struct jnode *parse_argument(struct jparser *parser, int *last)
{
    struct jtoken token = parser->token;
    int op = J_ARG_POSITIONAL;
    uint32_t name = 0;
    if (weft__j_skip_op(parser, J_OP_MUL)) {
        op = J_ARG_LIST;
    } else if (weft__j_skip_op(parser, J_OP_POW)) {
        op = J_ARG_MAPPING;
    } else if (token.type == T_NAME && is_op(&parser->ahead, J_OP_ASSIGN)) {
        op = J_ARG_NAMED;
        name = weft__j_take_name(parser);
        weft__j_next(parser);
    }
    /* Positional, named, one list, one mapping: jinja2's order, but named may follow a list. */
    bool in_order = op == J_ARG_POSITIONAL ? *last == J_ARG_POSITIONAL
                    : op == J_ARG_LIST     ? *last < J_ARG_LIST
                                           : *last < J_ARG_MAPPING;
    if (!in_order)
        weft__j_syntax(parser, WEFT_FORMAT, token.offset, "invalid syntax for function call");
    if (op > *last) *last = op;
    struct jnode *node = node_at(parser, token.offset, N_ARG, weft__j_expression(parser), NULL);
    if (node == NULL) return NULL;
    node->op = (uint8_t)op;
    node->name = name;
    return node;
}

static struct jnode *parse_arguments(struct jparser *parser)
{
    struct jnode *arguments = NULL, **tail = &arguments;
    int last = J_ARG_POSITIONAL;
    weft__j_expect_op(parser, J_OP_LPAREN);
    while (parser->status == WEFT_OK && !weft__j_at_op(parser, J_OP_RPAREN)) {
        if (arguments != NULL) weft__j_expect_op(parser, J_OP_COMMA);
        if (weft__j_at_op(parser, J_OP_RPAREN)) break;
        weft__j_link(&tail, parse_argument(parser, &last));
    }
    weft__j_expect_op(parser, J_OP_RPAREN);
    return arguments;
}

static struct jnode *parse_call(struct jparser *parser, struct jnode *what)
{
    uint32_t offset = parser->token.offset;
    return node_at(parser, offset, N_CALL, what, parse_arguments(parser));
}

/* Sets the name of a filter or test and what it stands for. An unknown one is an error at the end
 * of the tag, unless it stands in an `if`: there jinja2 waits until it is used, and templates that
 * ask for filters of other engines first rely on it. */
static void take_function(struct jparser *parser, struct jnode *node)
{
    uint32_t offset = parser->token.offset, interned = weft__j_take_name(parser);
    if (parser->status != WEFT_OK || node == NULL) return;
    struct jname name = parser->tmpl->names[interned];
    node->offset = offset;
    node->name = interned;
    node->function = node->kind == N_FILTER ? weft__j_filter(name.text, name.len)
                                            : weft__j_test(name.text, name.len);
    if (node->function == NULL && parser->unknown == 0) parser->unknown = offset + 1;
}

static struct jnode *parse_filter(struct jparser *parser, struct jnode *input)
{
    struct jnode *node = weft__j_node(parser, N_FILTER, input, NULL);
    take_function(parser, node);
    struct jnode *arguments = weft__j_at_op(parser, J_OP_LPAREN) ? parse_arguments(parser) : NULL;
    if (node != NULL) node->b = arguments;
    return node;
}

struct jnode *weft__j_filters(struct jparser *parser)
{
    struct jnode *node = NULL;
    do node = parse_filter(parser, node);
    while (parser->status == WEFT_OK && weft__j_skip_op(parser, J_OP_PIPE));
    return node;
}

/* A test takes its argument without parentheses too: `is divisibleby 3`. */
static bool at_test_argument(const struct jparser *parser)
{
    switch (parser->token.type) {
    case T_STRING:
    case T_INT:
    case T_FLOAT:
        return true;
    case T_NAME:
        return !weft__j_at_name(parser, "else") && !weft__j_at_name(parser, "or") &&
               !weft__j_at_name(parser, "and");
    default:
        return weft__j_at_op(parser, J_OP_LBRACKET) || weft__j_at_op(parser, J_OP_LBRACE);
    }
}

static struct jnode *parse_test(struct jparser *parser, struct jnode *input)
{
    bool negated = weft__j_skip_name(parser, "not");
    struct jnode *node = weft__j_node(parser, N_TEST, input, NULL), *arguments = NULL;
    take_function(parser, node);
    if (weft__j_at_op(parser, J_OP_LPAREN)) {
        arguments = parse_arguments(parser);
    } else if (at_test_argument(parser)) {
        if (weft__j_at_name(parser, "is"))
            weft__j_syntax(parser, WEFT_FORMAT, parser->token.offset,
                           "multiple tests cannot be chained with 'is'");
        uint32_t start = parser->token.offset;
        struct jnode *value = weft__j_postfix(parser, parse_primary(parser, false));
        arguments = node_at(parser, start, N_ARG, value, NULL);
    }
    if (node == NULL) return NULL;
    node->b = arguments;
    return negated ? node_at(parser, node->offset, N_NOT, node, NULL) : node;
}

struct jnode *weft__j_postfix(struct jparser *parser, struct jnode *node)
{
    while (parser->status == WEFT_OK) {
        if (weft__j_at_op(parser, J_OP_DOT) || weft__j_at_op(parser, J_OP_LBRACKET))
            node = parse_subscript(parser, node);
        else if (weft__j_at_op(parser, J_OP_LPAREN))
            node = parse_call(parser, node);
        else
            break;
    }
    return node;
}

static struct jnode *parse_filters(struct jparser *parser, struct jnode *node)
{
    while (parser->status == WEFT_OK) {
        if (weft__j_skip_op(parser, J_OP_PIPE))
            node = parse_filter(parser, node);
        else if (weft__j_skip_name(parser, "is"))
            node = parse_test(parser, node);
        else if (weft__j_at_op(parser, J_OP_LPAREN))
            node = parse_call(parser, node);
        else
            break;
    }
    return node;
}

/* ---- operators, loosest last ---- */

static struct jnode *parse_unary(struct jparser *parser, bool filters)
{
    uint32_t offset = parser->token.offset;
    bool minus = weft__j_at_op(parser, J_OP_SUB);
    struct jnode *node;
    if (minus || weft__j_at_op(parser, J_OP_ADD)) {
        weft__j_next(parser);
        if (++parser->nesting > WEFT__TEMPLATE_MAX_NESTING)
            weft__j_syntax(parser, WEFT_TOO_LONG, offset, "signs nested more than %d deep",
                           WEFT__TEMPLATE_MAX_NESTING);
        struct jnode *operand = parser->status == WEFT_OK ? parse_unary(parser, false) : NULL;
        parser->nesting--;
        node = node_at(parser, offset, minus ? N_NEG : N_POS, operand, NULL);
    } else {
        node = parse_primary(parser, false);
    }
    node = weft__j_postfix(parser, node);
    return filters ? parse_filters(parser, node) : node;
}

static struct jnode *binary(struct jparser *parser, struct jtoken token, struct jnode *left,
                            struct jnode *right)
{
    struct jnode *node = node_at(parser, token.offset, N_BINARY, left, right);
    if (node != NULL) node->op = token.op;
    return node;
}

static struct jnode *parse_power(struct jparser *parser)
{
    struct jnode *left = parse_unary(parser, true);
    struct jtoken token = parser->token;
    while (weft__j_skip_op(parser, J_OP_POW)) {
        left = binary(parser, token, left, parse_unary(parser, true));
        token = parser->token;
    }
    return left;
}

static struct jnode *parse_product(struct jparser *parser)
{
    struct jnode *left = parse_power(parser);
    for (;;) {
        struct jtoken token = parser->token;
        if (!weft__j_skip_op(parser, J_OP_MUL) && !weft__j_skip_op(parser, J_OP_DIV) &&
            !weft__j_skip_op(parser, J_OP_FLOORDIV) && !weft__j_skip_op(parser, J_OP_MOD))
            return left;
        left = binary(parser, token, left, parse_power(parser));
    }
}

static struct jnode *parse_concat(struct jparser *parser)
{
    uint32_t offset = parser->token.offset;
    struct jnode *parts = NULL, **tail = &parts;
    do weft__j_link(&tail, parse_product(parser));
    while (weft__j_skip_op(parser, J_OP_TILDE));
    return parts == NULL || parts->next == NULL ? parts
                                                : node_at(parser, offset, N_CONCAT, parts, NULL);
}

static struct jnode *parse_sum(struct jparser *parser)
{
    struct jnode *left = parse_concat(parser);
    for (;;) {
        struct jtoken token = parser->token;
        if (!weft__j_skip_op(parser, J_OP_ADD) && !weft__j_skip_op(parser, J_OP_SUB)) return left;
        left = binary(parser, token, left, parse_concat(parser));
    }
}

/* The comparison at the current token, moving behind it; -1: none. */
static int take_comparison(struct jparser *parser)
{
    static const enum weft__jop ops[] = {J_OP_EQ, J_OP_NE, J_OP_LT, J_OP_LE, J_OP_GT, J_OP_GE};
    for (size_t i = 0; i < WEFT__COUNT(ops); i++)
        if (weft__j_skip_op(parser, ops[i])) return (int)ops[i];
    if (weft__j_skip_name(parser, "in")) return J_OP_IN;
    if (!weft__j_at_name(parser, "not") || !is_name(&parser->ahead, "in")) return -1;
    weft__j_next(parser);
    weft__j_next(parser);
    return J_OP_NOT_IN;
}

static struct jnode *parse_compare(struct jparser *parser)
{
    struct jnode *first = parse_sum(parser), *operands = NULL, **tail = &operands;
    uint32_t offset = parser->token.offset;
    int op;
    while ((op = take_comparison(parser)) >= 0) {
        struct jnode *operand = weft__j_node(parser, N_OPERAND, parse_sum(parser), NULL);
        if (operand != NULL) operand->op = (uint8_t)op;
        weft__j_link(&tail, operand);
    }
    return operands == NULL ? first : node_at(parser, offset, N_COMPARE, first, operands);
}

static struct jnode *parse_not(struct jparser *parser)
{
    uint32_t offset = parser->token.offset;
    if (!weft__j_skip_name(parser, "not")) return parse_compare(parser);
    if (++parser->nesting > WEFT__TEMPLATE_MAX_NESTING)
        weft__j_syntax(parser, WEFT_TOO_LONG, offset, "'not' nested more than %d deep",
                       WEFT__TEMPLATE_MAX_NESTING);
    struct jnode *operand = parser->status == WEFT_OK ? parse_not(parser) : NULL;
    parser->nesting--;
    return node_at(parser, offset, N_NOT, operand, NULL);
}

static struct jnode *parse_and(struct jparser *parser)
{
    struct jnode *left = parse_not(parser);
    uint32_t offset = parser->token.offset;
    while (weft__j_skip_name(parser, "and")) {
        left = node_at(parser, offset, N_AND, left, parse_not(parser));
        offset = parser->token.offset;
    }
    return left;
}

static struct jnode *parse_or(struct jparser *parser)
{
    struct jnode *left = parse_and(parser);
    uint32_t offset = parser->token.offset;
    while (weft__j_skip_name(parser, "or")) {
        left = node_at(parser, offset, N_OR, left, parse_and(parser));
        offset = parser->token.offset;
    }
    return left;
}

struct jnode *weft__j_expression(struct jparser *parser)
{
    if (parser->status != WEFT_OK) return NULL;
    if (++parser->nesting > WEFT__TEMPLATE_MAX_NESTING) {
        weft__j_syntax(parser, WEFT_TOO_LONG, parser->token.offset,
                       "expressions nested more than %d deep", WEFT__TEMPLATE_MAX_NESTING);
        parser->token.type = parser->ahead.type = T_END;
        parser->nesting--;
        return NULL;
    }
    uint32_t unknown = parser->unknown;
    struct jnode *node = parse_or(parser);
    uint32_t offset = parser->token.offset;
    while (weft__j_skip_name(parser, "if")) {
        struct jnode *condition = parse_or(parser);
        struct jnode *otherwise =
            weft__j_skip_name(parser, "else") ? weft__j_expression(parser) : NULL;
        struct jnode *choice = node_at(parser, offset, N_COND, condition, node);
        if (choice != NULL) choice->c = otherwise;
        node = choice;
        offset = parser->token.offset;
        parser->unknown = unknown;
    }
    parser->nesting--;
    return node;
}

struct jnode *weft__j_tuple(struct jparser *parser, bool no_condition)
{
    return parse_tuple(parser, no_condition ? TUPLE_NO_CONDITION : TUPLE_EXPRESSION, false);
}

static bool assignable(const struct jnode *node)
{
    if (node == NULL) return true;
    if (node->kind != N_TUPLE) return node->kind == N_NAME || node->kind == N_NSREF;
    for (const struct jnode *item = node->a; item != NULL; item = item->next)
        if (!assignable(item)) return false;
    return true;
}

struct jnode *weft__j_target(struct jparser *parser, bool attributes)
{
    uint32_t offset = parser->token.offset;
    struct jnode *node = parse_tuple(parser, attributes ? TUPLE_ATTRIBUTES : TUPLE_TARGET, false);
    if (!assignable(node))
        weft__j_syntax(parser, WEFT_FORMAT, offset, "cannot assign to this expression");
    return node;
}
