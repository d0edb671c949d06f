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
#define X(name, text) WEFT__J_##name,
    WEFT__J_KINDS(X)
#undef X
};

struct weft__jvalue {
    uint8_t kind;
    bool growable; /* STRING: text lies in a struct weft__jgrow, so that appending need not copy */
    bool markup;   /* STRING: from safe or escape; what is added to it gets escaped */
    uint32_t len;  /* STRING: bytes */
    union {
        bool truth;
        int64_t integer;
        double real;
        const char *text;         /* valid UTF-8, no terminator */
        struct weft__jlist *list; /* LIST, TUPLE, RANGE */
        struct weft__jdict *dict; /* DICT, KEYS, VALUES, ITEMS, NAMESPACE */
        struct weft__jiterator *iterator;
        struct weft__jloop *loop;
        struct weft__jmacro *macro;
        struct weft__jmethod *method;
        const struct weft__jfunction *function;
        const struct weft__jundefined *undefined;
    };
};

struct weft__jlist {
    struct weft__jvalue *items;
    uint32_t count, cap;
};

struct weft__jpair {
    struct weft__jvalue key, value;
};

struct weft__jdict {
    struct weft__jpair *pairs; /* in the order of insertion */
    uint32_t count, cap;
};

struct weft__jiterator {
    struct weft__jlist items;
    uint32_t next;
};

/* What an undefined value would have been, for the error of who uses it. */
struct weft__jundefined {
    const char *hint; /* the whole message, or NULL: composed from the others */
    const char *type; /* of the object that lacks it, or NULL: a variable */
    struct weft__jvalue key;
};

struct weft__jgrow {
    uint32_t used, cap;
    char text[];
};

struct weft__jmethod {
    struct weft__jvalue self;
    const struct weft__jfunction *function;
};

struct weft__jmacro {
    const struct weft__jnode *node; /* S_MACRO */
    struct weft__jscope *scope;     /* where it was defined */
};

struct weft__jloop {
    const struct weft__jnode *node; /* S_FOR */
    struct weft__jscope *scope;     /* outside the loop */
    struct weft__jlist items;
    uint32_t taken; /* of items; the inline `if` is asked as the loop runs */
    int64_t index0; /* of current */
    struct weft__jvalue before, current, after; /* ABSENT when there is none; after: when peeked */
};

/* A call under evaluation. Functions with named parameters find them bound in arg. */
enum { WEFT__J_MAX_PARAMS = 4, WEFT__J_VARARGS = 255 };

struct weft__jcall {
    const struct weft__jfunction *function;
    struct weft__jvalue self; /* input of a filter or test, object of a method */
    struct weft__jlist positional;
    struct weft__jvalue first[3]; /* room for positional before it grows */
    struct weft__jdict named;
    struct weft__jvalue arg[WEFT__J_MAX_PARAMS]; /* ABSENT: not given */
};

struct weft__jrun;
typedef struct weft__jvalue weft__jcallback(struct weft__jrun *run, struct weft__jcall *call);

struct weft__jfunction {
    const char *name;
    weft__jcallback *call;
    int8_t mode;           /* which of the things that call can do */
    uint8_t required, max; /* max J_VARARGS: arguments are not bound */
    const char *params[WEFT__J_MAX_PARAMS];
};

/* ---- the tree ---- */

/* Which members of weft__jnode a kind uses. Lists are chained by next. */
enum weft__jnode_kind {
    WEFT__N_CONST,   /* value */
    WEFT__N_NAME,    /* name */
    WEFT__N_TUPLE,   /* a: items */
    WEFT__N_LIST,    /* a: items */
    WEFT__N_DICT,    /* a: key, value, key, value ... */
    WEFT__N_GETATTR, /* a: object, name */
    WEFT__N_GETITEM, /* a: object, b: index or N_SLICE */
    WEFT__N_SLICE,   /* a, b, c: start, stop, step or NULL */
    WEFT__N_CALL,    /* a: what, b: arguments */
    WEFT__N_FILTER,  /* a: input or NULL (the body of a block), name, function, b: arguments */
    WEFT__N_TEST,    /* a: input, name, function, b: arguments */
    WEFT__N_ARG,     /* op: J_ARG_*, name, a: value */
    WEFT__N_NOT,     /* a */
    WEFT__N_NEG,     /* a */
    WEFT__N_POS,     /* a */
    WEFT__N_BINARY,  /* op: enum weft__jop, a, b */
    WEFT__N_CONCAT,  /* a: first, b: N_OPERANDs */
    WEFT__N_COMPARE, /* a: first, b: N_OPERANDs */
    WEFT__N_OPERAND, /* op, a */
    WEFT__N_COND,    /* a: condition, b: then, c: else or NULL */
    WEFT__N_NSREF,   /* target only: name, value: attribute */
    WEFT__S_DATA,    /* value */
    WEFT__S_PRINT,   /* a */
    WEFT__S_FOR,     /* a: target, b: iterable, c: inline if, d: body, e: else */
    WEFT__S_IF,      /* a: S_BRANCHes */
    WEFT__S_BRANCH,  /* a: condition or NULL, b: body */
    WEFT__S_SET,     /* a: target, b: value */
    WEFT__S_CAPTURE, /* block set: a: target, b: filters or NULL, c: body */
    WEFT__S_MACRO,   /* name, a: N_PARAMs, b: body, op: 1 when it speaks of caller */
    WEFT__N_PARAM,   /* name, a: default or NULL */
    WEFT__S_CALL,    /* call block: a: N_CALL, b: S_MACRO made of the body */
    WEFT__S_FILTER,  /* filter block, generation tag: a: filters or NULL, b: body */
    WEFT__S_BREAK,
    WEFT__S_CONTINUE,
};

enum { WEFT__J_ARG_POSITIONAL, WEFT__J_ARG_NAMED, WEFT__J_ARG_LIST };

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
#define X(name, text) WEFT__J_OP_##name,
    WEFT__J_OPS(X)
#undef X
        WEFT__J_OP_IN,
    WEFT__J_OP_NOT_IN,
    WEFT__J_OP_AND,
    WEFT__J_OP_OR,
};

struct weft__jnode {
    uint8_t kind, op;
    uint32_t offset; /* in the template's text, for errors */
    uint32_t name;   /* interned */
    struct weft__jnode *next;
    struct weft__jnode *a, *b;
    union {
        struct weft__jvalue value;
        struct {
            struct weft__jnode *c, *d, *e;
        };
    };
    const struct weft__jfunction *function; /* NULL: no such filter or test */
};

struct weft__template {
    struct weft__arena arena;
    const char *name; /* while parsing */
    const char *text; /* newlines normalised */
    size_t len;
    struct weft__jnode *body;
    struct weft__jvalue names[WEFT__TEMPLATE_MAX_NAMES]; /* texts, these with a NUL behind them */
    uint32_t name_count;
};

/* Names with a meaning of their own, interned first. */
enum { WEFT__J_NAME_LOOP, WEFT__J_NAME_CALLER };

struct weft__jplace {
    const char *name, *text;
    size_t offset; /* in the text */
};

/* Words an error, with line and column (in characters) of its place, from 1. */
weft_status weft__j_report(weft_error *err, weft_status status, struct weft__jplace place,
                           const char *format, va_list args);

/* ---- lexer and parser ---- */

enum weft__jtoken_kind {
    WEFT__T_END,
    WEFT__T_DATA,
    WEFT__T_BLOCK_BEGIN,
    WEFT__T_BLOCK_END,
    WEFT__T_PRINT_BEGIN,
    WEFT__T_PRINT_END,
    WEFT__T_NAME,
    WEFT__T_STRING,
    WEFT__T_INT,
    WEFT__T_FLOAT,
    WEFT__T_OP,
};

struct weft__jtoken {
    uint8_t type, op;
    uint32_t offset;
    struct weft__jvalue value; /* DATA, STRING, NAME, OP: text; INT, FLOAT */
};

struct weft__jparser {
    struct weft__template *tmpl;
    weft_error *err;
    weft_status status; /* sticky: once set, tokens are T_END and nodes are NULL */

    size_t pos; /* of the lexer, in tmpl->text */
    uint8_t mode;
    bool line_start;
    int open; /* brackets to be closed */

    struct weft__jtoken token, ahead;
    int blocks, nesting, loops; /* current depth */
    bool uses_caller;           /* the macro being read */
    bool soft;                  /* inside an `if`, where an unknown filter is found out late */
    const struct weft__jnode *unknown; /* the first unknown filter or test in this tag */
};

void weft__j_syntax(struct weft__jparser *parser, weft_status status, size_t offset,
                    const char *format, ...) WEFT__PRINTF(4, 5);
void *weft__j_parse_alloc(struct weft__jparser *parser, size_t bytes);
void weft__j_lex(struct weft__jparser *parser, struct weft__jtoken *out); /* the next token */
const char *weft__j_spelling(enum weft__jop op);

/* ---- a render ---- */

struct weft__jbinding {
    uint32_t name;
    struct weft__jvalue value;
};

struct weft__jscope {
    struct weft__jscope *parent; /* NULL: run->globals is next */
    struct weft__jbinding *vars;
    uint32_t count, cap;
    bool captured; /* a macro may still look here */
};

/* Text being written: to the caller's buffer, or to the arena when buf is NULL. */
struct weft__jsink {
    struct weft__buf *buf;
    struct weft__jgrow *grow;
};

struct weft__jrun {
    const struct weft__template *tmpl;
    struct weft__arena arena;
    weft_error *err;
    weft_status status; /* sticky: the first failure; what is computed after it is thrown away */
    const struct weft__jnode *at;
    int64_t steps;
    int depth;    /* of the tree walk */
    int macros;   /* active */
    uint8_t flow; /* 0, S_BREAK or S_CONTINUE */
    struct weft__jsink *sink;
    struct weft__jscope *scope; /* NULL: the top level */
    struct weft__jscope *free_scopes;
    struct weft__jvalue block;    /* the text of the block whose filters are under way */
    struct weft__jvalue *globals; /* by name */
    size_t out_start;
    time_t now;
};

/* Sets the error unless there is one; gives an ABSENT value, so that callers can return it. */
struct weft__jvalue weft__j_fail(struct weft__jrun *run, weft_status status, const char *format,
                                 ...) WEFT__PRINTF(3, 4);
void *weft__j_alloc(struct weft__jrun *run, size_t bytes); /* zeroed; NULL: failed */
/* An array with room for one more item of `size` bytes: items, or a larger copy; NULL: failed. */
void *weft__j_room(struct weft__jrun *run, void *items, uint32_t count, uint32_t *cap, size_t size);
bool weft__j_tick(struct weft__jrun *run,
                  size_t bytes);            /* a step, more for much text; false: failed */
bool weft__j_enter(struct weft__jrun *run); /* one deeper (depth--: back); false: failed */

struct weft__jvalue weft__j_eval(struct weft__jrun *run, const struct weft__jnode *node);
struct weft__jvalue weft__j_apply(struct weft__jrun *run, const struct weft__jfunction *function,
                                  struct weft__jvalue self, struct weft__jlist positional,
                                  struct weft__jdict named);
struct weft__jvalue weft__j_call_macro(struct weft__jrun *run, struct weft__jmacro *macro,
                                       struct weft__jcall *call);
/* caller: what a call block passes along, or ABSENT. */
struct weft__jvalue weft__j_eval_call(struct weft__jrun *run, const struct weft__jnode *node,
                                      struct weft__jvalue caller);
bool weft__j_loop_peek(struct weft__jrun *run, struct weft__jloop *loop,
                       struct weft__jvalue *out);                          /* false: none */
struct weft__jvalue weft__j_lookup(struct weft__jrun *run, uint32_t name); /* ABSENT: unbound */

/* `a.name` and `a[key]` as Jinja has them: never an error but on undefined. */
struct weft__jvalue weft__j_getattr(struct weft__jrun *run, struct weft__jvalue object,
                                    struct weft__jvalue name);
struct weft__jvalue weft__j_getitem(struct weft__jrun *run, struct weft__jvalue object,
                                    struct weft__jvalue key);
struct weft__jvalue weft__j_binary(struct weft__jrun *run, enum weft__jop op, struct weft__jvalue a,
                                   struct weft__jvalue b);
bool weft__j_relation(struct weft__jrun *run, enum weft__jop op, struct weft__jvalue a,
                      struct weft__jvalue b);

/* ---- values: jinja_value.c ---- */

static inline struct weft__jvalue weft__j_absent(void) { return (struct weft__jvalue){0}; }
static inline struct weft__jvalue weft__j_none(void)
{
    return (struct weft__jvalue){.kind = WEFT__J_NONE};
}
static inline struct weft__jvalue weft__j_bool(bool truth)
{
    return (struct weft__jvalue){.kind = WEFT__J_BOOL, .truth = truth};
}
static inline struct weft__jvalue weft__j_int(int64_t integer)
{
    return (struct weft__jvalue){.kind = WEFT__J_INT, .integer = integer};
}
static inline struct weft__jvalue weft__j_float(double real)
{
    return (struct weft__jvalue){.kind = WEFT__J_FLOAT, .real = real};
}
static inline struct weft__jvalue weft__j_text(const char *text, size_t len)
{
    return (struct weft__jvalue){.kind = WEFT__J_STRING, .len = (uint32_t)len, .text = text};
}
struct weft__jvalue weft__j_literal(const char *text);

const char *weft__j_type(struct weft__jvalue v);
struct weft__jvalue weft__j_undefined(struct weft__jrun *run, struct weft__jvalue object,
                                      struct weft__jvalue key);
struct weft__jvalue weft__j_missing(struct weft__jrun *run,
                                    const char *hint); /* undefined with its message */
struct weft__jvalue weft__j_fail_undefined(struct weft__jrun *run, struct weft__jvalue undefined,
                                           weft_status status);
bool weft__j_truth(struct weft__jrun *run, struct weft__jvalue v);
bool weft__j_equal(struct weft__jrun *run, struct weft__jvalue a, struct weft__jvalue b);
/* -1, 0, 1; 2: unordered (NaN). op words the error of types that have no order. */
int weft__j_compare(struct weft__jrun *run, struct weft__jvalue a, struct weft__jvalue b,
                    const char *op);
bool weft__j_is_text(struct weft__jvalue v, const char *text);
bool weft__j_is_list(struct weft__jvalue v);               /* LIST, TUPLE, RANGE */
bool weft__j_integer(struct weft__jvalue v, int64_t *out); /* of an int or bool */
bool weft__j_number(struct weft__jvalue v, double *out);   /* of an int, bool or float */
int64_t weft__j_length(struct weft__jvalue v);             /* of what has len(); -1: nothing */

struct weft__jvalue weft__j_new_list(struct weft__jrun *run,
                                     enum weft__jkind kind); /* empty LIST or TUPLE */
bool weft__j_push(struct weft__jrun *run, struct weft__jlist *list, struct weft__jvalue v);
/* What iterating over v gives, perhaps shared with v: not to be changed. false: failed. */
bool weft__j_iterate(struct weft__jrun *run, struct weft__jvalue v, struct weft__jlist *out);
struct weft__jvalue weft__j_iterator(struct weft__jrun *run, struct weft__jlist items);

struct weft__jvalue weft__j_new_dict(struct weft__jrun *run);
bool weft__j_put(struct weft__jrun *run, struct weft__jdict *dict, struct weft__jvalue key,
                 struct weft__jvalue value);
struct weft__jvalue *weft__j_find(struct weft__jrun *run, const struct weft__jdict *dict,
                                  struct weft__jvalue key);
bool weft__j_hashable(struct weft__jvalue v);
struct weft__jvalue weft__j_from_json(struct weft__jrun *run, json_t *json, int depth);
bool weft__j_sort(struct weft__jrun *run, struct weft__jpair *pairs, uint32_t count,
                  bool reverse); /* stable */

/* ---- text: jinja_print.c, jinja_text.c ---- */

void weft__j_write(struct weft__jrun *run, struct weft__jsink *sink, const char *text, size_t len);
/* `unit` so many times over; none when times is not positive. */
void weft__j_fill(struct weft__jrun *run, struct weft__jsink *sink, struct weft__jvalue unit,
                  int64_t times);
void weft__j_puts(struct weft__jrun *run, struct weft__jsink *sink, const char *text);
struct weft__jvalue
weft__j_written(struct weft__jsink *sink); /* what went to a sink in the arena */
void weft__j_write_str(struct weft__jrun *run, struct weft__jsink *sink, struct weft__jvalue v);
void weft__j_write_repr(struct weft__jrun *run, struct weft__jsink *sink, struct weft__jvalue v);
struct weft__jvalue weft__j_str(struct weft__jrun *run, struct weft__jvalue v);
struct weft__jvalue weft__j_concat(struct weft__jrun *run, struct weft__jvalue a,
                                   struct weft__jvalue b); /* of strings */
struct weft__jvalue weft__j_tojson(struct weft__jrun *run, struct weft__jcall *call);

/* Decodes one character of valid UTF-8 and moves on; at the end gives 0. */
uint32_t weft__j_char(const char **p, const char *end);
void weft__j_clean(char *text);               /* makes an error message one line of valid UTF-8 */
int64_t weft__j_chars(struct weft__jvalue s); /* characters of a string */
const char *weft__j_seek(struct weft__jvalue s, int64_t index); /* character -> position */
bool weft__j_is_space(uint32_t c);
bool weft__j_is_word(uint32_t c);
bool weft__j_is_printable(uint32_t c);
size_t weft__j_skip_space(const char *text, size_t len, size_t pos);
size_t weft__j_trim_end(const char *text, size_t len); /* length without trailing space */

enum { WEFT__J_STRIP_LEFT = 1, WEFT__J_STRIP_RIGHT = 2 };
struct weft__jvalue weft__j_strip(struct weft__jrun *run, struct weft__jvalue s,
                                  struct weft__jvalue chars, int sides);
struct weft__jvalue weft__j_lines(struct weft__jrun *run,
                                  struct weft__jvalue s); /* LIST, without newlines */
struct weft__jvalue weft__j_escape(struct weft__jrun *run, struct weft__jvalue s); /* for HTML */
struct weft__jvalue weft__j_replace(struct weft__jrun *run, struct weft__jvalue s,
                                    struct weft__jvalue from, struct weft__jvalue to,
                                    int64_t count);
bool weft__j_has(struct weft__jrun *run, struct weft__jvalue s, struct weft__jvalue needle);

enum weft__jcase { WEFT__J_UPPER, WEFT__J_LOWER, WEFT__J_TITLE, WEFT__J_CAPITALIZE };
struct weft__jvalue weft__j_recase(struct weft__jrun *run, struct weft__jvalue s, int to);

/* An integer argument, or `otherwise` when it is not given. */
bool weft__j_int_argument(struct weft__jrun *run, struct weft__jvalue v, int64_t otherwise,
                          int64_t *out);

/* ---- tables; NULL: no such thing ---- */

const struct weft__jfunction *weft__j_filter(struct weft__jvalue name);
const struct weft__jfunction *weft__j_test(struct weft__jvalue name);
const struct weft__jfunction *weft__j_global(struct weft__jvalue name);
const struct weft__jfunction *weft__j_string_method(struct weft__jvalue name);
const struct weft__jfunction *weft__j_method(struct weft__jvalue object, struct weft__jvalue name);
const struct weft__jfunction *weft__j_lookup_function(const struct weft__jfunction *table,
                                                      size_t count, struct weft__jvalue name);

#endif
