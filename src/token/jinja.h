/* jinja.h: the template language of chat templates: a subset of Jinja2 as Hugging Face sets it up
 * (trim_blocks, lstrip_blocks, loopcontrols, generation tag, immutable sandbox, no autoescape).
 * Private to src/token. Text is parsed once to a tree; a render walks it. Strings are UTF-8.
 *
 *   jinja_lex.c     text -> tokens            jinja_value.c   truth, equality, order, dicts, JSON
 * in jinja_expr.c    tokens -> expressions     jinja_print.c   str(), repr(), tojson jinja_parse.c
 * tokens -> statements      jinja_text.c, jinja_case.c  Unicode jinja_run.c     statements, scopes
 * jinja_string.c  methods of strings jinja_eval.c    expressions, calls        jinja_format.c  %
 * and str.format jinja_op.c      operators                 jinja_filter.c, jinja_list.c,
 * jinja_is.c, jinja_method.c  the tables of functions
 */
#ifndef WEFT_SRC_JINJA_H
#define WEFT_SRC_JINJA_H

#include <jansson.h>
#include <time.h>

#include "base/base.h"

/* ---- the interface ---- */

enum {
    WEFT__TEMPLATE_MAX_TEXT = 1 << 20,
    WEFT__TEMPLATE_MAX_OUTPUT = 16 << 20, /* also the longest string */
    WEFT__TEMPLATE_MAX_MEMORY = 64 << 20, /* of one parse or one render */
    WEFT__TEMPLATE_MAX_STEPS = 10000000,
    WEFT__TEMPLATE_MAX_NESTING = 64, /* of blocks, and of parentheses within one expression */
    WEFT__TEMPLATE_MAX_MACROS = 32,  /* macros (and recursive loops) active at a time */
    WEFT__TEMPLATE_MAX_DATA = 128,   /* nesting of lists and mappings */
};

struct weft__template;

/* `name` says in errors where the text is from. Errors: WEFT_FORMAT (syntax), WEFT_UNSUPPORTED (a
 * construct outside the subset), WEFT_TOO_LONG, all with line and column. Caller frees. */
WEFT_CHECKED weft_status weft__template_parse(const char *name, const char *text, size_t len,
                                              struct weft__template **out, weft_error *err);
void weft__template_free(struct weft__template *tmpl); /* NULL is allowed */

/* Appends to out, which stays as it was on failure. vars: an object, borrowed. Any number of
 * threads may render one template. */
WEFT_CHECKED weft_status weft__template_render(const struct weft__template *tmpl, json_t *vars,
                                               time_t now, struct weft__buf *out, weft_error *err);

/* ---- values ---- */

/* kind, Python's name of the type */
#define WEFT__J_KINDS(X)                                                                     \
    X(ABSENT, "?") /* argument not given, variable not bound: never seen by a template */    \
    X(UNDEFINED, "Undefined")                                                                \
    X(NONE, "NoneType")                                                                      \
    X(BOOL, "bool")                                                                          \
    X(INT, "int")                                                                            \
    X(FLOAT, "float")                                                                        \
    X(STRING, "str")                                                                         \
    X(LIST, "list")                                                                          \
    X(TUPLE, "tuple")                                                                        \
    X(DICT, "dict")                                                                          \
    X(KEYS, "dict_keys")                                                                     \
    X(VALUES, "dict_values")                                                                 \
    X(ITEMS, "dict_items")                                                                   \
    X(RANGE, "range")                                                                        \
    X(ITERATOR, "generator") /* read once, as the results of map, select and the like are */ \
    X(NAMESPACE, "Namespace")                                                                \
    X(LOOP, "LoopContext")                                                                   \
    X(MACRO, "Macro")                                                                        \
    X(METHOD, "builtin_function_or_method")                                                  \
    X(FUNCTION, "function")                                                                  \
    X(CYCLER, "Cycler")                                                                      \
    X(JOINER, "Joiner")

enum weft__jkind {
#define X(name, text) J_##name,
    WEFT__J_KINDS(X)
#undef X
};

struct jvalue {
    uint8_t kind;
    bool growable; /* STRING: text lies in a struct jgrow, so that appending need not copy */
    bool markup;   /* STRING: from safe or escape; what is added to it gets escaped */
    uint32_t len;  /* STRING: bytes */
    union {
        bool truth;
        int64_t integer;
        double real;
        const char *text;   /* valid UTF-8, no terminator */
        struct jlist *list; /* LIST, TUPLE */
        struct jdict *dict; /* DICT, KEYS, VALUES, ITEMS, NAMESPACE */
        struct jrange *range;
        struct jiterator *iterator; /* also CYCLER; JOINER: one item, next 1 once used */
        struct jloop *loop;
        struct jmacro *macro;
        struct jmethod *method;
        const struct jfunction *function;
        const struct jundefined *undefined; /* may be NULL */
    };
};

struct jlist {
    struct jvalue *items;
    uint32_t count, cap;
};

struct jpair {
    struct jvalue key, value;
};

/* Insertion order in pairs; `index` (open addressing, pair + 1) exists from a few pairs up. */
struct jdict {
    struct jpair *pairs;
    uint32_t count, cap;
    uint32_t *index;
    uint32_t index_size; /* a power of two */
};

struct jrange {
    int64_t start, stop, step, count;
};

struct jiterator {
    struct jlist items;
    uint32_t next;
};

/* What an undefined value would have been, for the error of who uses it. */
struct jundefined {
    const char *hint; /* the whole message, or NULL: composed from the others */
    const char *type; /* of the object that lacks it, or NULL: a variable */
    struct jvalue key;
};

struct jgrow {
    uint32_t used, cap;
    char text[];
};

struct jmethod {
    struct jvalue self;
    const struct jfunction *function;
};

struct jmacro {
    const struct jnode *node; /* S_MACRO */
    struct jscope *scope;     /* where it was defined */
};

struct jloop {
    const struct jnode *node; /* S_FOR */
    struct jscope *scope;     /* outside the loop */
    struct jlist items;
    uint32_t taken; /* of items */
    bool filtering; /* the inline `if` still has to be asked for the rest of items */
    int64_t index0; /* of current */
    int64_t length; /* -1: not known yet */
    int depth0;     /* of recursion */
    struct jvalue before, current, after; /* ABSENT when there is none; after: when peeked */
    struct jvalue changed;                /* what changed() saw last */
};

/* A call under evaluation. Functions with named parameters find them bound in arg. */
enum { J_MAX_PARAMS = 6, J_VARARGS = 255 };

struct jcall {
    const struct jfunction *function;
    struct jvalue self; /* input of a filter or test, object of a method */
    struct jlist positional;
    struct jvalue first[3]; /* room for positional before it grows */
    struct jdict named;
    struct jvalue arg[J_MAX_PARAMS]; /* ABSENT: not given */
};

struct jrun;
typedef struct jvalue jcallback(struct jrun *run, struct jcall *call);

struct jfunction {
    const char *name;
    jcallback *call;
    uint8_t required, max; /* max J_VARARGS: arguments are not bound */
    const char *params[J_MAX_PARAMS];
};

/* ---- the tree ---- */

/* Which members of jnode a kind uses. Lists are chained by next. */
#define WEFT__J_NODES(X)                                                                     \
    X(N_CONST)   /* value */                                                                 \
    X(N_NAME)    /* name */                                                                  \
    X(N_TUPLE)   /* a: items */                                                              \
    X(N_LIST)    /* a: items */                                                              \
    X(N_DICT)    /* a: key, value, key, value ... */                                         \
    X(N_GETATTR) /* a: object, name */                                                       \
    X(N_GETITEM) /* a: object, b: index or N_SLICE */                                        \
    X(N_SLICE)   /* a, b, c: start, stop, step or NULL */                                    \
    X(N_CALL)    /* a: what, b: arguments */                                                 \
    X(N_FILTER)  /* a: input or NULL (the body of a block), name, function, b: arguments */  \
    X(N_TEST)    /* a: input, name, function, b: arguments */                                \
    X(N_ARG)     /* op: J_ARG_*, name, a: value */                                           \
    X(N_NOT)     /* a */                                                                     \
    X(N_NEG)     /* a */                                                                     \
    X(N_POS)     /* a */                                                                     \
    X(N_AND)     /* a, b */                                                                  \
    X(N_OR)      /* a, b */                                                                  \
    X(N_BINARY)  /* op: enum weft__jop, a, b */                                              \
    X(N_CONCAT)  /* a: parts */                                                              \
    X(N_COMPARE) /* a: first, b: N_OPERANDs */                                               \
    X(N_OPERAND) /* op, a */                                                                 \
    X(N_COND)    /* a: condition, b: then, c: else or NULL */                                \
    X(N_NSREF)   /* target only: name, value: attribute */                                   \
    X(S_DATA)    /* value */                                                                 \
    X(S_PRINT)   /* a */                                                                     \
    X(S_FOR)     /* a: target, b: iterable, c: inline if, d: body, e: else, op: recursive */ \
    X(S_IF)      /* a: S_BRANCHes */                                                         \
    X(S_BRANCH)  /* a: condition or NULL, b: body */                                         \
    X(S_SET)     /* a: target, b: value */                                                   \
    X(S_CAPTURE) /* block set: a: target, b: filters or NULL, c: body */                     \
    X(S_MACRO)   /* name, a: N_PARAMs, b: body, op: J_USES_* */                              \
    X(N_PARAM)   /* name, a: default or NULL */                                              \
    X(S_CALL)    /* call block: a: N_CALL, b: S_MACRO made of the body */                    \
    X(S_FILTER)  /* filter block: a: filters, b: body */                                     \
    X(S_WITH)    /* a: S_SETs, b: body; also the generation tag */                           \
    X(S_BREAK)                                                                               \
    X(S_CONTINUE)

enum weft__jnode {
#define X(name) name,
    WEFT__J_NODES(X)
#undef X
};

enum { J_ARG_POSITIONAL, J_ARG_NAMED, J_ARG_LIST, J_ARG_MAPPING };
enum { J_USES_CALLER = 1, J_USES_VARARGS = 2, J_USES_KWARGS = 4 };

/* op, spelling; two characters first, as the lexer tries them in this order */
#define WEFT__J_OPS(X) \
    X(FLOORDIV, "//")  \
    X(POW, "**")       \
    X(EQ, "==")        \
    X(NE, "!=")        \
    X(GE, ">=")        \
    X(LE, "<=")        \
    X(ADD, "+")        \
    X(SUB, "-")        \
    X(DIV, "/")        \
    X(MUL, "*")        \
    X(MOD, "%")        \
    X(TILDE, "~")      \
    X(LBRACKET, "[")   \
    X(RBRACKET, "]")   \
    X(LPAREN, "(")     \
    X(RPAREN, ")")     \
    X(LBRACE, "{")     \
    X(RBRACE, "}")     \
    X(GT, ">")         \
    X(LT, "<")         \
    X(ASSIGN, "=")     \
    X(DOT, ".")        \
    X(COLON, ":")      \
    X(PIPE, "|")       \
    X(COMMA, ",")      \
    X(SEMICOLON, ";")

enum weft__jop {
#define X(name, text) J_OP_##name,
    WEFT__J_OPS(X)
#undef X
        J_OP_IN,
    J_OP_NOT_IN,
};

struct jnode {
    uint8_t kind, op;
    uint32_t offset; /* in the template's text, for errors */
    uint32_t name;   /* interned */
    struct jnode *next;
    struct jnode *a, *b;
    union {
        struct jvalue value;
        struct {
            struct jnode *c, *d, *e;
        };
    };
    const struct jfunction *function; /* NULL: no such filter or test */
};

struct jname {
    const char *text; /* NUL-terminated, in the template's arena */
    uint32_t len;
};

struct weft__template {
    struct weft__arena arena;
    const char *name; /* while parsing */
    const char *text; /* newlines normalised */
    size_t len;
    struct jnode *body;
    struct jname *names;
    uint32_t name_count;
};

/* Names with a meaning of their own, interned first. */
enum { J_NAME_LOOP, J_NAME_CALLER, J_NAME_VARARGS, J_NAME_KWARGS };

/* One-based line and column (in characters) of a position in the text. */
void weft__j_locate(const char *text, size_t offset, int *line, int *column);

/* ---- lexer and parser ---- */

enum weft__jtoken {
    T_END,
    T_DATA,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_PRINT_BEGIN,
    T_PRINT_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP,
};

struct jtoken {
    uint8_t type, op;
    uint32_t offset;
    struct jvalue value; /* DATA, STRING, NAME: text; INT, FLOAT */
};

enum { J_MAX_OPEN = 4 * WEFT__TEMPLATE_MAX_NESTING };

struct jparser {
    struct weft__template *tmpl;
    weft_error *err;
    weft_status status; /* sticky: once set, tokens are T_END and nodes are NULL */

    size_t pos; /* of the lexer, in tmpl->text */
    uint8_t mode;
    bool line_start;
    char open[J_MAX_OPEN]; /* brackets to be closed */
    int open_count;

    struct jtoken token, ahead;
    int blocks, nesting, loops; /* current depth */
    uint8_t uses;               /* J_USES_* of the macro being read */
    bool soft;                  /* inside an `if`, where an unknown filter is found out late */
    uint32_t unknown;           /* offset + 1 of an unknown filter or test in this tag */

    uint32_t *name_index; /* open addressing, name + 1 */
    uint32_t name_index_size, name_cap;
};

void weft__j_syntax(struct jparser *parser, weft_status status, size_t offset, const char *format,
                    ...) WEFT__PRINTF(4, 5);
void *weft__j_parse_alloc(struct jparser *parser, size_t bytes);
void weft__j_lex(struct jparser *parser, struct jtoken *out); /* the next token */

void weft__j_next(struct jparser *parser); /* token = ahead */
bool weft__j_at_op(const struct jparser *parser, enum weft__jop op);
bool weft__j_at_name(const struct jparser *parser, const char *name);
bool weft__j_skip_op(struct jparser *parser, enum weft__jop op);
bool weft__j_skip_name(struct jparser *parser, const char *name);
void weft__j_expect_op(struct jparser *parser, enum weft__jop op);
void weft__j_unexpected(struct jparser *parser, const char *wanted);
uint32_t weft__j_take_name(struct jparser *parser); /* expects one; interned */
uint32_t weft__j_intern(struct jparser *parser, const char *text, size_t len);
struct jnode *weft__j_node(struct jparser *parser, enum weft__jnode kind, struct jnode *a,
                           struct jnode *b);
void weft__j_link(struct jnode ***tail, struct jnode *node); /* appends to a list */

struct jnode *weft__j_expression(struct jparser *parser);
/* An expression or a bare tuple; no_condition leaves a trailing `if` alone. */
struct jnode *weft__j_tuple(struct jparser *parser, bool no_condition);
struct jnode *weft__j_target(struct jparser *parser, bool attributes);
struct jnode *weft__j_postfix(struct jparser *parser, struct jnode *node);
struct jnode *weft__j_filters(struct jparser *parser); /* `upper|trim(...)` of a block */

/* ---- a render ---- */

struct jbinding {
    uint32_t name;
    struct jvalue value;
};

struct jscope {
    struct jscope *parent; /* NULL: run->globals is next */
    struct jbinding *vars;
    uint32_t count, cap;
    bool captured; /* a macro may still look here */
};

/* Text being written: to the caller's buffer, or to the arena when buf is NULL. */
struct jsink {
    struct weft__buf *buf;
    struct jgrow *grow;
};

struct jrun {
    const struct weft__template *tmpl;
    struct weft__arena arena;
    weft_error *err;
    weft_status status; /* sticky: the first failure; what is computed after it is thrown away */
    const struct jnode *at;
    int64_t steps;
    int depth;    /* of the tree walk */
    int macros;   /* active */
    uint8_t flow; /* 0, S_BREAK or S_CONTINUE */
    struct jsink *sink;
    struct jscope *scope; /* NULL: the top level */
    struct jscope *free_scopes;
    struct jvalue *globals; /* by name */
    size_t out_start;
    time_t now;
};

/* Sets the error unless there is one; gives an ABSENT value, so that callers can return it. */
struct jvalue weft__j_fail(struct jrun *run, weft_status status, const char *format, ...)
    WEFT__PRINTF(3, 4);
void *weft__j_alloc(struct jrun *run, size_t bytes); /* zeroed; NULL: failed */
bool weft__j_tick(struct jrun *run, size_t bytes);   /* a step, more for much text; false: failed */
bool weft__j_enter(struct jrun *run);                /* one deeper (depth--: back); false: failed */

struct jvalue weft__j_eval(struct jrun *run, const struct jnode *node);
bool weft__j_bind(struct jrun *run, const struct jfunction *function, struct jcall *call);
struct jvalue weft__j_call(struct jrun *run, struct jvalue what, struct jcall *call);
struct jvalue weft__j_apply(struct jrun *run, const struct jfunction *function, struct jvalue self,
                            struct jlist positional, struct jdict named);
struct jvalue weft__j_call_macro(struct jrun *run, struct jmacro *macro, struct jcall *call);
struct jvalue weft__j_call_loop(struct jrun *run, struct jloop *loop, struct jvalue items);
struct jvalue weft__j_call_block(struct jrun *run, const struct jnode *node, struct jvalue caller);
bool weft__j_loop_peek(struct jrun *run, struct jloop *loop, struct jvalue *out); /* false: none */
int64_t weft__j_loop_length(struct jrun *run, struct jloop *loop);
struct jvalue weft__j_lookup(struct jrun *run, uint32_t name); /* ABSENT: unbound */
struct jvalue weft__j_filter_block(struct jrun *run, const struct jnode *filters, struct jvalue in);

/* `a.name` and `a[key]` as Jinja has them: never an error but on undefined. */
struct jvalue weft__j_getattr(struct jrun *run, struct jvalue object, struct jvalue name);
struct jvalue weft__j_getitem(struct jrun *run, struct jvalue object, struct jvalue key);
struct jvalue weft__j_binary(struct jrun *run, enum weft__jop op, struct jvalue a, struct jvalue b);
struct jvalue weft__j_slice(struct jrun *run, struct jvalue object, const struct jvalue bounds[3]);
bool weft__j_contains(struct jrun *run, struct jvalue container, struct jvalue item);

/* ---- values: jinja_value.c ---- */

static inline struct jvalue weft__j_none(void) { return (struct jvalue){.kind = J_NONE}; }
static inline struct jvalue weft__j_bool(bool truth)
{
    return (struct jvalue){.kind = J_BOOL, .truth = truth};
}
static inline struct jvalue weft__j_int(int64_t integer)
{
    return (struct jvalue){.kind = J_INT, .integer = integer};
}
static inline struct jvalue weft__j_float(double real)
{
    return (struct jvalue){.kind = J_FLOAT, .real = real};
}
static inline struct jvalue weft__j_text(const char *text, size_t len)
{
    return (struct jvalue){.kind = J_STRING, .len = (uint32_t)len, .text = text};
}
struct jvalue weft__j_literal(const char *text);

const char *weft__j_type(struct jvalue v);
struct jvalue weft__j_undefined(struct jrun *run, struct jvalue object, struct jvalue key);
struct jvalue weft__j_missing(struct jrun *run, const char *hint); /* undefined with its message */
struct jvalue weft__j_fail_undefined(struct jrun *run, struct jvalue undefined);
bool weft__j_truth(struct jrun *run, struct jvalue v);
bool weft__j_equal(struct jrun *run, struct jvalue a, struct jvalue b);
/* -1, 0, 1; 2: unordered (NaN). op words the error of types that have no order. */
int weft__j_compare(struct jrun *run, struct jvalue a, struct jvalue b, const char *op);
bool weft__j_is_text(struct jvalue v, const char *text);
bool weft__j_integer(struct jvalue v, int64_t *out); /* of an int or bool */
bool weft__j_number(struct jvalue v, double *out);   /* of an int, bool or float */
int64_t weft__j_length(struct jvalue v);             /* of what has len(); -1: nothing */

struct jvalue weft__j_new_list(struct jrun *run, enum weft__jkind kind); /* empty LIST or TUPLE */
bool weft__j_push(struct jrun *run, struct jlist *list, struct jvalue v);
struct jvalue weft__j_pair(struct jrun *run, struct jvalue a, struct jvalue b); /* a TUPLE */
/* What iterating over v gives, perhaps shared with v: not to be changed. false: failed. */
bool weft__j_iterate(struct jrun *run, struct jvalue v, struct jlist *out);
struct jvalue weft__j_iterator(struct jrun *run, struct jlist items);
int64_t weft__j_at(const struct jrange *range, int64_t index);

struct jvalue weft__j_new_dict(struct jrun *run);
bool weft__j_put(struct jrun *run, struct jdict *dict, struct jvalue key, struct jvalue value);
struct jvalue *weft__j_find(struct jrun *run, const struct jdict *dict, struct jvalue key);
bool weft__j_hashable(struct jvalue v);
struct jvalue weft__j_from_json(struct jrun *run, json_t *json, int depth);
/* Stable, in place. order: negative when a goes first; must tolerate a failed run. */
typedef int jorder(struct jrun *run, const struct jpair *a, const struct jpair *b);
bool weft__j_sort(struct jrun *run, struct jpair *pairs, uint32_t count, jorder *order);

/* ---- text: jinja_print.c, jinja_text.c ---- */

void weft__j_write(struct jrun *run, struct jsink *sink, const char *text, size_t len);
/* `unit` so many times over; none when times is not positive. */
void weft__j_fill(struct jrun *run, struct jsink *sink, struct jvalue unit, int64_t times);
void weft__j_puts(struct jrun *run, struct jsink *sink, const char *text);
struct jvalue weft__j_written(struct jsink *sink); /* what went to a sink in the arena */
void weft__j_write_str(struct jrun *run, struct jsink *sink, struct jvalue v);
void weft__j_write_repr(struct jrun *run, struct jsink *sink, struct jvalue v);
void weft__j_write_float(struct jrun *run, struct jsink *sink, double value, bool json);
struct jvalue weft__j_str(struct jrun *run, struct jvalue v);
struct jvalue weft__j_concat(struct jrun *run, struct jvalue a, struct jvalue b); /* of strings */
struct jvalue weft__j_tojson(struct jrun *run, struct jcall *call);
struct jvalue weft__j_percent(struct jrun *run, struct jvalue format, struct jvalue args);
struct jvalue weft__j_format(struct jrun *run, struct jcall *call); /* str.format */

/* Decodes one character of valid UTF-8 and moves on; at the end gives 0. */
uint32_t weft__j_char(const char **p, const char *end);
void weft__j_clean(char *text);         /* makes an error message one line of valid UTF-8 */
int64_t weft__j_chars(struct jvalue s); /* characters of a string */
const char *weft__j_seek(struct jvalue s, int64_t index); /* character -> position */
bool weft__j_is_space(uint32_t c);
bool weft__j_is_word(uint32_t c);
bool weft__j_is_printable(uint32_t c);
size_t weft__j_skip_space(const char *text, size_t len, size_t pos);
size_t weft__j_trim_end(const char *text, size_t len); /* length without trailing space */

enum { J_STRIP_LEFT = 1, J_STRIP_RIGHT = 2 };
struct jvalue weft__j_strip(struct jrun *run, struct jvalue s, struct jvalue chars, int sides);
struct jvalue weft__j_lines(struct jrun *run, struct jvalue s, bool keep_ends); /* LIST */
struct jvalue weft__j_escape(struct jrun *run, struct jvalue s);                /* for HTML */
struct jvalue weft__j_replace(struct jrun *run, struct jvalue s, struct jvalue from,
                              struct jvalue to, int64_t count);
/* Position of needle in s at or after start, or -1. */
int64_t weft__j_search(struct jrun *run, struct jvalue s, size_t start, struct jvalue needle);

enum jcase { J_UPPER, J_LOWER, J_TITLE, J_CAPITALIZE, J_SWAPCASE };
struct jvalue weft__j_recase(struct jrun *run, struct jvalue s, enum jcase to);
bool weft__j_is_case(struct jvalue s, enum jcase want); /* islower, isupper, istitle */

/* ---- tables; NULL: no such thing ---- */

const struct jfunction *weft__j_filter(const char *name, size_t len);
const struct jfunction *weft__j_list_filter(const char *name, size_t len); /* part of the former */
const struct jfunction *weft__j_test(const char *name, size_t len);
const struct jfunction *weft__j_global(const char *name, size_t len);
const struct jfunction *weft__j_string_method(const char *name, size_t len);
const struct jfunction *weft__j_method(struct jvalue object, const char *name, size_t len);
const struct jfunction *weft__j_lookup_function(const struct jfunction *table, size_t count,
                                                const char *name, size_t len);

#endif
