/* jinja_impl.h - what the interpreter's files share.
 *
 *   jinja_lex.c    text to tokens, with Jinja's rules for white space around tags
 *   jinja_parse.c  tokens to a tree: statements;  jinja_expr.c: expressions
 *   jinja_run.c    runs statements;  jinja_eval.c: expressions
 *   jinja_value.c  values: memory, texts, lists, dicts, what Python prints of them
 *   jinja_call.c   functions, tests and methods of lists and dicts
 *   jinja_filter.c filters
 *   jinja_str.c    methods of texts
 *   jinja_json.c   tojson
 *   jinja_parts.c  attributes, items and arguments, which the others ask for
 *
 * An error sticks to the parser or the run; what follows it does nothing, and the first one is told.
 */
#ifndef KVL_JINJA_IMPL_H
#define KVL_JINJA_IMPL_H

#include "jinja.h"
#include "kvl/utf8.h"

#include <string.h>

enum {
    JIN_DEPTH = 100,     /* of expressions, statements and calls within one another */
    JIN_STEPS = 20000000 /* of a run: expressions, and comparisons of values */
};

/* ---- memory ---------------------------------------------------------------------------------- */

struct jin_arena {
    struct jin_block *block;
    size_t at, cap; /* of the newest block */
    size_t all, most;
};
/* NULL: more than `most`, or none there. */
void *jin_arena_get(struct jin_arena *a, size_t bytes);
void jin_arena_free(struct jin_arena *a);

/* ---- tokens ---------------------------------------------------------------------------------- */

enum jin_tok_kind {
    TK_DATA,
    TK_VAR,
    TK_VAR_END,
    TK_BLOCK,
    TK_BLOCK_END,
    TK_NAME,
    TK_INT,
    TK_FLOAT,
    TK_STR,
    TK_OP,
    TK_END
};

struct jin_tok {
    enum jin_tok_kind kind;
    int line;
    const char *s; /* of a string: its value */
    size_t len;
};

struct jin_lex {
    const char *text; /* line ends are \n */
    size_t len, at;
    int line;
    bool line_starts; /* what came before ended a line */
    struct jin_tok *tok;
    size_t n, cap;
    struct jin_arena *arena;
    struct kvl_err *err;
};
/* Tokens (free), TK_END last. */
int jin_lex(struct jin_lex *x);

/* ---- trees ----------------------------------------------------------------------------------- */

enum jin_kind {
    /* expressions */
    N_CONST,
    N_NAME,
    N_LIST,
    N_DICT, /* list: key, value, ... */
    N_NOT,
    N_NEG,
    N_AND,
    N_OR,
    N_BIN,     /* op */
    N_CONCAT,  /* list */
    N_COMPARE, /* a, then list with names as operators */
    N_TEST,    /* a, name, args */
    N_FILTER,
    N_ATTR,    /* a, name */
    N_ITEM,    /* a[b] */
    N_SLICE,   /* a[list: from, to, step] */
    N_CALL,    /* a, args */
    N_IF_ELSE, /* a if b else c */
    /* statements */
    N_DATA,
    N_PRINT,
    N_FOR,        /* a target, b iterable, c condition, body, other */
    N_IF,         /* a condition, body, other */
    N_SET,        /* a target, b value */
    N_SET_BLOCK,  /* a target, body */
    N_MACRO,      /* name, list of defaults with names */
    N_GENERATION, /* body */
    N_BREAK,
    N_CONTINUE
};

struct jin_node {
    enum jin_kind kind;
    int line;
    char op; /* N_BIN: + - * / % and I for //, P for ** */
    bool tuple;
    struct jin_val val;
    const char *name;
    struct jin_node *a, *b, *c;
    struct jin_node **list;
    const char **names; /* [n]: keywords of args, NULL for the others; operators */
    size_t n;
    struct jin_node *body, *other, *next; /* statements */
};

struct kvl_jinja {
    struct jin_arena arena;
    struct jin_node *body;
};

struct jin_parse {
    struct jin_arena *arena;
    const struct jin_tok *tok;
    struct kvl_err *err;
    int rc, depth;
    int loops;             /* that break and continue may leave */
    struct jin_node spare; /* what is made after an error */
};
/* jinja_expr.c: what statements need of expressions. */
struct jin_node *jin_new(struct jin_parse *p, enum jin_kind kind);
void jin_append(struct jin_parse *p, struct jin_node *to, const char *name, struct jin_node *x);
struct jin_node *jin_expression(struct jin_parse *p);
struct jin_node *jin_or(struct jin_parse *p);               /* without `if ... else` */
struct jin_node *jin_tuple(struct jin_parse *p, bool cond); /* one, or several with commas */
struct jin_node *jin_target(struct jin_parse *p);
void *jin_refuse(struct jin_parse *p, const char *fmt, ...) KVL_PRINTF(2, 3); /* NULL */
bool jin_is(const struct jin_parse *p, enum jin_tok_kind kind, const char *s);
bool jin_take(struct jin_parse *p, enum jin_tok_kind kind, const char *s);
void jin_want(struct jin_parse *p, enum jin_tok_kind kind, const char *s);
const char *jin_name(struct jin_parse *p);
bool jin_knows_filter(const char *name);
bool jin_knows_test(const char *name);

/* ---- values ---------------------------------------------------------------------------------- */

/* What Python has where jinja2 gives a row: not all of them print, compare or count. */
enum jin_row {
    ROW_LIST = 0,
    ROW_TUPLE,
    ROW_RANGE,
    ROW_VIEW, /* of a dict */
    ROW_ONCE  /* what map, select and the like give: gone through once */
};
struct jin_list {
    struct jin_val *v;
    size_t n, cap;
    enum jin_row row;
    bool used; /* ROW_ONCE */
};
enum jin_space { SPACE_NONE = 0, SPACE_NAMES, SPACE_LOOP };
struct jin_dict {
    struct jin_val *key, *v;
    size_t n, cap;
    enum jin_space space; /* a namespace or `loop`, which are no dicts */
};

struct jin_env;
struct jin_call {
    const char *name;    /* of a function or method */
    struct jin_val self; /* of a method */
    const struct jin_node *macro;
    struct jin_env *env; /* where it was defined */
};

struct jin_args {
    struct jin_val *v;
    const char **name; /* [n], NULL where none */
    size_t n;
};

struct jin_env {
    struct jin_env *up;
    const char **name;
    struct jin_val *v;
    size_t n, cap;
};

enum jin_jump { JUMP_NONE = 0, JUMP_BREAK, JUMP_CONTINUE };

struct kvl_jinja_run {
    const struct kvl_jinja *t;
    /* Runs the body of a macro that an expression calls: bodies have expressions in turn. */
    struct jin_val (*macro)(struct kvl_jinja_run *r, const struct jin_call *c, struct jin_args a);
    struct jin_arena arena;
    struct jin_env *env, *top;
    struct kvl_buf *out, *mark; /* where text goes */
    struct kvl_err *err;
    enum jin_jump jump;
    int rc, line, depth;
    uint64_t steps;
};

struct jin_val jin_fail(struct kvl_jinja_run *r, const char *fmt, ...) KVL_PRINTF(2, 3);
void *jin_get(struct kvl_jinja_run *r, size_t n, size_t item);
static inline struct jin_val jin_bool(bool b)
{
    return (struct jin_val){ JIN_BOOL, { .b = b } };
}
static inline struct jin_val jin_int(int64_t i)
{
    return (struct jin_val){ JIN_INT, { .i = i } };
}
static inline struct jin_val jin_none(void)
{
    return (struct jin_val){ JIN_NONE, { .i = 0 } };
}
struct jin_val jin_lit(struct kvl_jinja_run *r, const char *s);
struct jin_val jin_part(struct kvl_jinja_run *r, const struct jin_str *s, size_t begin, size_t end);
struct jin_val jin_bound(struct kvl_jinja_run *r, struct jin_val self, const char *name);
/* Text being made. */
struct jin_out {
    struct kvl_buf s, mark;
};
void jin_add(struct kvl_jinja_run *r, struct jin_out *o, const struct jin_str *s);
void jin_adds(struct kvl_jinja_run *r, struct jin_out *o, const char *s);
struct jin_val jin_made(struct kvl_jinja_run *r, struct jin_out *o); /* frees it */

bool jin_true(struct jin_val v);
/* A list or a tuple; a dict. */
bool jin_plain(struct jin_val v);
bool jin_is_dict(struct jin_val v);
/* Whether v may be a key of a dict; false, and said, where not. */
bool jin_hashable(struct kvl_jinja_run *r, struct jin_val v);
/* One step more, `n` of them; false, and said, where a run has had too many. */
bool jin_step(struct kvl_jinja_run *r, uint64_t n);
/* -x, which the least number has not. */
struct jin_val jin_minus(struct kvl_jinja_run *r, int64_t x);
bool jin_equal(struct kvl_jinja_run *r, struct jin_val a, struct jin_val b);
int jin_order(struct kvl_jinja_run *r, struct jin_val a, struct jin_val b);
bool jin_in(struct kvl_jinja_run *r, struct jin_val x, struct jin_val in);
const char *jin_type_name(struct jin_val v); /* as Python has it */
bool jin_str_is(struct jin_val v, const char *s);
size_t jin_chars(const struct jin_str *s);
size_t jin_char_at(const struct jin_str *s, size_t i); /* byte where character i begins */
int64_t jin_length(struct kvl_jinja_run *r, struct jin_val v);
struct jin_val jin_to_str(struct kvl_jinja_run *r, struct jin_val v);
struct jin_val jin_to_list(struct kvl_jinja_run *r,
                           struct jin_val v); /* a new one, of what can be gone through */
const struct jin_val *jin_find(struct kvl_jinja_run *r, const struct jin_dict *d,
                               struct jin_val key);
void jin_put_val(struct kvl_jinja_run *r, struct jin_dict *d, struct jin_val key, struct jin_val v);
void jin_repr(struct kvl_jinja_run *r, struct jin_val v, struct jin_out *o);

/* ---- running --------------------------------------------------------------------------------- */

struct jin_val jin_eval(struct kvl_jinja_run *r, const struct jin_node *n);
struct jin_args jin_eval_args(struct kvl_jinja_run *r, const struct jin_node *n,
                              struct jin_val first, bool with_first);
struct jin_val jin_attr(struct kvl_jinja_run *r, struct jin_val v, const char *name);
struct jin_val jin_item(struct kvl_jinja_run *r, struct jin_val v, struct jin_val key);
void jin_bind(struct kvl_jinja_run *r, const char *name,
              struct jin_val v); /* in the innermost scope */
struct jin_env *jin_scope(struct kvl_jinja_run *r, struct jin_env *up);
struct jin_val jin_call(struct kvl_jinja_run *r, struct jin_val f, struct jin_args a);
struct jin_val jin_filter(struct kvl_jinja_run *r, const char *name, struct jin_args a);
bool jin_test(struct kvl_jinja_run *r, const char *name, struct jin_args a);
bool jin_has_method(struct jin_val v, const char *name);
struct jin_val jin_str_method(struct kvl_jinja_run *r, const char *name, struct jin_args a);
struct jin_val jin_json(struct kvl_jinja_run *r, struct jin_args a);
/* The arguments in the order of `names`, which are those of Python behind the value itself: "?name" may be left out,
 * and is undefined then; "!name" is not known here; a digit stands for one without a name. */
struct jin_args jin_ordered(struct kvl_jinja_run *r, const char *what, const char *names,
                            struct jin_args a);
struct jin_val jin_strip(struct kvl_jinja_run *r, struct jin_val text, struct jin_val chars,
                         bool left, bool right);
struct jin_val jin_replace(struct kvl_jinja_run *r, struct jin_val text, struct jin_val from,
                           struct jin_val to, int64_t most);
struct jin_val jin_cased(struct kvl_jinja_run *r, struct jin_val text, char how);
/* The arguments from `from` on, with `v` before them. */
struct jin_args jin_before(struct kvl_jinja_run *r, struct jin_val v, const struct jin_args *a,
                           size_t from);
/* The row, of the kind given. */
struct jin_val jin_row_of(struct jin_val list, enum jin_row row);

#endif
