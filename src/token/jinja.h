/* jinja.h: the template language of chat templates: what they use of Jinja2, as Hugging Face sets
 * it up (trim_blocks, lstrip_blocks, loop controls, generation tag, immutable sandbox, no
 * autoescape). Private to src/token. Text is parsed once to a tree; a render walks it. Strings are
 * UTF-8. What Jinja2 has and weft has not fails with WEFT_UNSUPPORTED, line and column.
 *
 *   jinja_lex.c     text -> tokens
 *   jinja_parse.c   tokens -> tree
 *   jinja_run.c     statements, scopes, macros
 *   jinja_eval.c    expressions, calls, operators
 *   jinja_value.c   truth, equality, order, lists, mappings, from JSON
 *   jinja_print.c   values -> text: str(), repr(), tojson
 *   jinja_text.c    UTF-8, case, searching; methods of strings
 *   jinja_filter.c  filters and tests
 *   jinja_method.c  other methods; global functions
 */
#ifndef WEFT_SRC_JINJA_H
#define WEFT_SRC_JINJA_H

#include <jansson.h>
#include <stdarg.h>
#include <time.h>

#include "base/base.h"

/* ---- the interface ---- */

enum {
    WEFT__TEMPLATE_MAX_TEXT = 1 << 20,
    WEFT__TEMPLATE_MAX_OUTPUT = 16 << 20, /* also the longest string */
    WEFT__TEMPLATE_MAX_MEMORY = 64 << 20, /* of one parse or one render */
    WEFT__TEMPLATE_MAX_STEPS = 10000000,
    WEFT__TEMPLATE_MAX_NESTING = 64, /* of blocks, and of parentheses within one expression */
    WEFT__TEMPLATE_MAX_MACROS = 32,  /* active at a time */
    WEFT__TEMPLATE_MAX_NAMES = 1024, /* different ones, of variables, attributes, filters */
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
    X(FUNCTION, "function")

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
        struct jlist *list; /* LIST, TUPLE, RANGE */
        struct jdict *dict; /* DICT, KEYS, VALUES, ITEMS, NAMESPACE */
        struct jiterator *iterator;
        struct jloop *loop;
        struct jmacro *macro;
        struct jmethod *method;
        const struct jfunction *function;
        const struct jundefined *undefined;
    };
};

struct jlist {
    struct jvalue *items;
    uint32_t count, cap;
};

struct jpair {
    struct jvalue key, value;
};

struct jdict {
    struct jpair *pairs; /* in the order of insertion */
    uint32_t count, cap;
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
    uint32_t taken;                       /* of items; the inline `if` is asked as the loop runs */
    int64_t index0;                       /* of current */
    struct jvalue before, current, after; /* ABSENT when there is none; after: when peeked */
};

/* A call under evaluation. Functions with named parameters find them bound in arg. */
enum { J_MAX_PARAMS = 4, J_VARARGS = 255 };

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
    int8_t mode;           /* which of the things that call can do */
    uint8_t required, max; /* max J_VARARGS: arguments are not bound */
    const char *params[J_MAX_PARAMS];
};

/* ---- the tree ---- */

/* Which members of jnode a kind uses. Lists are chained by next. */
enum weft__jnode {
    N_CONST,   /* value */
    N_NAME,    /* name */
    N_TUPLE,   /* a: items */
    N_LIST,    /* a: items */
    N_DICT,    /* a: key, value, key, value ... */
    N_GETATTR, /* a: object, name */
    N_GETITEM, /* a: object, b: index or N_SLICE */
    N_SLICE,   /* a, b, c: start, stop, step or NULL */
    N_CALL,    /* a: what, b: arguments */
    N_FILTER,  /* a: input or NULL (the body of a block), name, function, b: arguments */
    N_TEST,    /* a: input, name, function, b: arguments */
    N_ARG,     /* op: J_ARG_*, name, a: value */
    N_NOT,     /* a */
    N_NEG,     /* a */
    N_POS,     /* a */
    N_BINARY,  /* op: enum weft__jop, a, b */
    N_CONCAT,  /* a: first, b: N_OPERANDs */
    N_COMPARE, /* a: first, b: N_OPERANDs */
    N_OPERAND, /* op, a */
    N_COND,    /* a: condition, b: then, c: else or NULL */
    N_NSREF,   /* target only: name, value: attribute */
    S_DATA,    /* value */
    S_PRINT,   /* a */
    S_FOR,     /* a: target, b: iterable, c: inline if, d: body, e: else */
    S_IF,      /* a: S_BRANCHes */
    S_BRANCH,  /* a: condition or NULL, b: body */
    S_SET,     /* a: target, b: value */
    S_CAPTURE, /* block set: a: target, b: filters or NULL, c: body */
    S_MACRO,   /* name, a: N_PARAMs, b: body, op: 1 when it speaks of caller */
    N_PARAM,   /* name, a: default or NULL */
    S_CALL,    /* call block: a: N_CALL, b: S_MACRO made of the body */
    S_FILTER,  /* filter block, generation tag: a: filters or NULL, b: body */
    S_BREAK,
    S_CONTINUE,
};

enum { J_ARG_POSITIONAL, J_ARG_NAMED, J_ARG_LIST };

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
    J_OP_AND,
    J_OP_OR,
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

struct weft__template {
    struct weft__arena arena;
    const char *name; /* while parsing */
    const char *text; /* newlines normalised */
    size_t len;
    struct jnode *body;
    struct jvalue names[WEFT__TEMPLATE_MAX_NAMES]; /* texts, these with a NUL behind them */
    uint32_t name_count;
};

/* Names with a meaning of their own, interned first. */
enum { J_NAME_LOOP, J_NAME_CALLER };

/* Words an error: line and column (in characters) of an offset in the text, from 1. */
weft_status weft__j_report(weft_error *err, weft_status status, const char *name, const char *text,
                           size_t offset, const char *format, va_list args);

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
    struct jvalue value; /* DATA, STRING, NAME, OP: text; INT, FLOAT */
};

struct jparser {
    struct weft__template *tmpl;
    weft_error *err;
    weft_status status; /* sticky: once set, tokens are T_END and nodes are NULL */

    size_t pos; /* of the lexer, in tmpl->text */
    uint8_t mode;
    bool line_start;
    int open; /* brackets to be closed */

    struct jtoken token, ahead;
    int blocks, nesting, loops;  /* current depth */
    bool uses_caller;            /* the macro being read */
    bool soft;                   /* inside an `if`, where an unknown filter is found out late */
    const struct jnode *unknown; /* the first unknown filter or test in this tag */
};

void weft__j_syntax(struct jparser *parser, weft_status status, size_t offset, const char *format,
                    ...) WEFT__PRINTF(4, 5);
void *weft__j_parse_alloc(struct jparser *parser, size_t bytes);
void weft__j_lex(struct jparser *parser, struct jtoken *out); /* the next token */
const char *weft__j_spelling(enum weft__jop op);

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
    struct jvalue block;    /* the text of the block whose filters are under way */
    struct jvalue *globals; /* by name */
    size_t out_start;
    time_t now;
};

/* Sets the error unless there is one; gives an ABSENT value, so that callers can return it. */
struct jvalue weft__j_fail(struct jrun *run, weft_status status, const char *format, ...)
    WEFT__PRINTF(3, 4);
void *weft__j_alloc(struct jrun *run, size_t bytes); /* zeroed; NULL: failed */
/* An array with room for one more item of `size` bytes: items, or a larger copy; NULL: failed. */
void *weft__j_room(struct jrun *run, void *items, uint32_t count, uint32_t *cap, size_t size);
bool weft__j_tick(struct jrun *run, size_t bytes);   /* a step, more for much text; false: failed */
bool weft__j_enter(struct jrun *run);                /* one deeper (depth--: back); false: failed */

struct jvalue weft__j_eval(struct jrun *run, const struct jnode *node);
struct jvalue weft__j_apply(struct jrun *run, const struct jfunction *function, struct jvalue self,
                            struct jlist positional, struct jdict named);
struct jvalue weft__j_call_macro(struct jrun *run, struct jmacro *macro, struct jcall *call);
/* caller: what a call block passes along, or ABSENT. */
struct jvalue weft__j_eval_call(struct jrun *run, const struct jnode *node, struct jvalue caller);
bool weft__j_loop_peek(struct jrun *run, struct jloop *loop, struct jvalue *out); /* false: none */
struct jvalue weft__j_lookup(struct jrun *run, uint32_t name); /* ABSENT: unbound */

/* `a.name` and `a[key]` as Jinja has them: never an error but on undefined. */
struct jvalue weft__j_getattr(struct jrun *run, struct jvalue object, struct jvalue name);
struct jvalue weft__j_getitem(struct jrun *run, struct jvalue object, struct jvalue key);
struct jvalue weft__j_binary(struct jrun *run, enum weft__jop op, struct jvalue a, struct jvalue b);
bool weft__j_relation(struct jrun *run, enum weft__jop op, struct jvalue a, struct jvalue b);

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
struct jvalue weft__j_fail_undefined(struct jrun *run, struct jvalue undefined, weft_status status);
bool weft__j_truth(struct jrun *run, struct jvalue v);
bool weft__j_equal(struct jrun *run, struct jvalue a, struct jvalue b);
/* -1, 0, 1; 2: unordered (NaN). op words the error of types that have no order. */
int weft__j_compare(struct jrun *run, struct jvalue a, struct jvalue b, const char *op);
bool weft__j_is_text(struct jvalue v, const char *text);
bool weft__j_is_list(struct jvalue v);               /* LIST, TUPLE, RANGE */
bool weft__j_integer(struct jvalue v, int64_t *out); /* of an int or bool */
bool weft__j_number(struct jvalue v, double *out);   /* of an int, bool or float */
int64_t weft__j_length(struct jvalue v);             /* of what has len(); -1: nothing */

struct jvalue weft__j_new_list(struct jrun *run, enum weft__jkind kind); /* empty LIST or TUPLE */
bool weft__j_push(struct jrun *run, struct jlist *list, struct jvalue v);
/* What iterating over v gives, perhaps shared with v: not to be changed. false: failed. */
bool weft__j_iterate(struct jrun *run, struct jvalue v, struct jlist *out);
struct jvalue weft__j_iterator(struct jrun *run, struct jlist items);

struct jvalue weft__j_new_dict(struct jrun *run);
bool weft__j_put(struct jrun *run, struct jdict *dict, struct jvalue key, struct jvalue value);
struct jvalue *weft__j_find(struct jrun *run, const struct jdict *dict, struct jvalue key);
bool weft__j_hashable(struct jvalue v);
struct jvalue weft__j_from_json(struct jrun *run, json_t *json, int depth);
bool weft__j_sort(struct jrun *run, struct jpair *pairs, uint32_t count, bool reverse); /* stable */

/* ---- text: jinja_print.c, jinja_text.c ---- */

void weft__j_write(struct jrun *run, struct jsink *sink, const char *text, size_t len);
/* `unit` so many times over; none when times is not positive. */
void weft__j_fill(struct jrun *run, struct jsink *sink, struct jvalue unit, int64_t times);
void weft__j_puts(struct jrun *run, struct jsink *sink, const char *text);
struct jvalue weft__j_written(struct jsink *sink); /* what went to a sink in the arena */
void weft__j_write_str(struct jrun *run, struct jsink *sink, struct jvalue v);
void weft__j_write_repr(struct jrun *run, struct jsink *sink, struct jvalue v);
struct jvalue weft__j_str(struct jrun *run, struct jvalue v);
struct jvalue weft__j_concat(struct jrun *run, struct jvalue a, struct jvalue b); /* of strings */
struct jvalue weft__j_tojson(struct jrun *run, struct jcall *call);

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
struct jvalue weft__j_lines(struct jrun *run, struct jvalue s);  /* LIST, without newlines */
struct jvalue weft__j_escape(struct jrun *run, struct jvalue s); /* for HTML */
struct jvalue weft__j_replace(struct jrun *run, struct jvalue s, struct jvalue from,
                              struct jvalue to, int64_t count);
bool weft__j_has(struct jrun *run, struct jvalue s, struct jvalue needle);

enum jcase { J_UPPER, J_LOWER, J_TITLE, J_CAPITALIZE };
struct jvalue weft__j_recase(struct jrun *run, struct jvalue s, int to);

/* An integer argument, or `otherwise` when it is not given. */
bool weft__j_int_argument(struct jrun *run, struct jvalue v, int64_t otherwise, int64_t *out);

/* ---- tables; NULL: no such thing ---- */

const struct jfunction *weft__j_filter(struct jvalue name);
const struct jfunction *weft__j_test(struct jvalue name);
const struct jfunction *weft__j_global(struct jvalue name);
const struct jfunction *weft__j_string_method(struct jvalue name);
const struct jfunction *weft__j_method(struct jvalue object, struct jvalue name);
const struct jfunction *weft__j_lookup_function(const struct jfunction *table, size_t count,
                                                struct jvalue name);

#endif
