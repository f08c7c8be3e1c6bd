/* Expressions: tokens to trees, in the order in which Jinja binds. */
#include "jinja_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- tokens ---------------------------------------------------------------------------------- */

void *jin_refuse(struct jin_parse *p, const char *fmt, ...)
{
    char text[256];
    va_list list;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    if (p->rc == KVL_OK) p->rc = kvl_fail(p->err, KVL_EMODEL, "line %d: %s", p->tok->line, text);
    return NULL;
}

/* s NULL: any of the kind. */
bool jin_is(const struct jin_parse *p, enum jin_tok_kind kind, const char *s)
{
    const struct jin_tok *t = p->tok;
    return t->kind == kind && (!s || (t->len == strlen(s) && memcmp(t->s, s, t->len) == 0));
}

bool jin_take(struct jin_parse *p, enum jin_tok_kind kind, const char *s)
{
    if (!jin_is(p, kind, s)) return false;
    if (p->tok->kind != TK_END) p->tok++;
    return true;
}

void jin_want(struct jin_parse *p, enum jin_tok_kind kind, const char *s)
{
    if (!jin_take(p, kind, s))
        jin_refuse(p, "\"%.*s\", want \"%s\"", (int)KVL_MIN(p->tok->len, (size_t)32), p->tok->s, s);
}

static bool op(struct jin_parse *p, const char *s)
{
    return jin_take(p, TK_OP, s);
}

static bool word(struct jin_parse *p, const char *s)
{
    return jin_take(p, TK_NAME, s);
}

const char *jin_name(struct jin_parse *p)
{
    const struct jin_tok *t = p->tok;
    char *name = t->kind == TK_NAME ? jin_arena_get(p->arena, t->len + 1) : NULL;
    if (!name)
        return jin_refuse(p, "\"%.*s\", want a name", (int)KVL_MIN(t->len, (size_t)32), t->s);
    memcpy(name, t->s, t->len);
    name[t->len] = '\0';
    p->tok++;
    return name;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Never NULL: with an error it is a node that nobody runs. */
struct jin_node *jin_new(struct jin_parse *p, enum jin_kind kind)
{
    struct jin_node *n = jin_arena_get(p->arena, sizeof *n);
    if (!n) {
        jin_refuse(p, "a chat template that is too large");
        return &p->spare;
    }
    *n = (struct jin_node){ .kind = kind, .line = p->tok->line };
    return n;
}

static struct jin_node *node_of(struct jin_parse *p, enum jin_kind kind, struct jin_node *a,
                                struct jin_node *b)
{
    struct jin_node *n = jin_new(p, kind);
    if (p->rc != KVL_OK) return n;
    n->a = a;
    n->b = b;
    return n;
}

void jin_append(struct jin_parse *p, struct jin_node *to, const char *name, struct jin_node *x)
{
    if (p->rc != KVL_OK) return;
    if ((to->n & (to->n - 1)) == 0) { /* full at each power of two */
        size_t cap = to->n ? to->n * 2 : 1;
        struct jin_node **list = jin_arena_get(p->arena, cap * sizeof *list);
        const char **names = jin_arena_get(p->arena, cap * sizeof *names);
        if (!list || !names) {
            jin_refuse(p, "a chat template that is too large");
            return;
        }
        if (to->n) {
            memcpy(list, to->list, to->n * sizeof *list);
            memcpy(names, to->names, to->n * sizeof *names);
        }
        to->list = list;
        to->names = names;
    }
    to->list[to->n] = x;
    to->names[to->n++] = name;
}

static struct jin_node *constant(struct jin_parse *p, struct jin_val v)
{
    struct jin_node *n = jin_new(p, N_CONST);
    if (p->rc == KVL_OK) n->val = v;
    return n;
}

/* ---- what stands alone ----------------------------------------------------------------------- */

/* Texts beside one another are one. */
static struct jin_node *text(struct jin_parse *p)
{
    struct jin_str *s = jin_arena_get(p->arena, sizeof *s);
    size_t len = 0, n = 0;
    for (const struct jin_tok *t = p->tok; t->kind == TK_STR; t++) len += t->len;
    char *all = jin_arena_get(p->arena, len + 1);
    if (!s || !all) return jin_refuse(p, "a chat template that is too large");
    for (; p->tok->kind == TK_STR; p->tok++) {
        memcpy(all + n, p->tok->s, p->tok->len);
        n += p->tok->len;
    }
    *s = (struct jin_str){ all, NULL, len };
    return constant(p, (struct jin_val){ JIN_STR, { .s = s } });
}

static struct jin_node *number(struct jin_parse *p)
{
    char digits[32] = { 0 }; /* the lexer takes 18 */
    memcpy(digits, p->tok->s, KVL_MIN(p->tok->len, sizeof digits - 1));
    bool whole = p->tok->kind == TK_INT;
    p->tok++;
    if (whole) return constant(p, jin_int(strtoll(digits, NULL, 10)));
    return constant(p, (struct jin_val){ JIN_FLOAT, { .f = strtod(digits, NULL) } });
}

static struct jin_node *list_until(struct jin_parse *p, const char *end, struct jin_node *n)
{
    while (p->rc == KVL_OK && !op(p, end)) {
        jin_append(p, n, NULL, jin_expression(p));
        if (!jin_is(p, TK_OP, end)) jin_want(p, TK_OP, ",");
    }
    return n;
}

static struct jin_node *dict(struct jin_parse *p)
{
    struct jin_node *n = jin_new(p, N_DICT);
    while (p->rc == KVL_OK && !op(p, "}")) {
        jin_append(p, n, NULL, jin_expression(p));
        jin_want(p, TK_OP, ":");
        jin_append(p, n, NULL, jin_expression(p));
        if (!jin_is(p, TK_OP, "}")) jin_want(p, TK_OP, ",");
    }
    return n;
}

/* Behind "(": an expression, or a tuple. */
static struct jin_node *grouped(struct jin_parse *p)
{
    if (op(p, ")")) {
        struct jin_node *none = jin_new(p, N_LIST);
        if (p->rc == KVL_OK) none->tuple = true;
        return none;
    }
    struct jin_node *n = jin_tuple(p, true);
    jin_want(p, TK_OP, ")");
    return n;
}

static struct jin_node *name_or_constant(struct jin_parse *p)
{
    if (word(p, "true") || word(p, "True")) return constant(p, jin_bool(true));
    if (word(p, "false") || word(p, "False")) return constant(p, jin_bool(false));
    if (word(p, "none") || word(p, "None")) return constant(p, jin_none());
    struct jin_node *n = jin_new(p, N_NAME);
    const char *name = jin_name(p);
    if (p->rc == KVL_OK) n->name = name;
    return n;
}

static struct jin_node *primary(struct jin_parse *p)
{
    switch (p->tok->kind) {
    case TK_STR: return text(p);
    case TK_INT:
    case TK_FLOAT: return number(p);
    case TK_NAME: return name_or_constant(p);
    default: break;
    }
    if (op(p, "(")) return grouped(p);
    if (op(p, "[")) return list_until(p, "]", jin_new(p, N_LIST));
    if (op(p, "{")) return dict(p);
    return jin_refuse(p, "\"%.*s\" where a value is wanted", (int)KVL_MIN(p->tok->len, (size_t)32),
                      p->tok->s);
}

/* ---- what stands behind ---------------------------------------------------------------------- */

static void arguments(struct jin_parse *p, struct jin_node *n)
{
    while (p->rc == KVL_OK && !op(p, ")")) {
        const char *name = NULL;
        if (p->tok->kind == TK_NAME && p->tok[1].kind == TK_OP && p->tok[1].len == 1 &&
            p->tok[1].s[0] == '=') {
            name = jin_name(p);
            p->tok++;
        }
        if (jin_is(p, TK_OP, "*") || jin_is(p, TK_OP, "**"))
            jin_refuse(p, "arguments with * are not known here");
        jin_append(p, n, name, jin_expression(p));
        if (!jin_is(p, TK_OP, ")")) jin_want(p, TK_OP, ",");
    }
}

/* Behind "[": an index or a slice. */
static struct jin_node *subscript(struct jin_parse *p, struct jin_node *of)
{
    struct jin_node *part[3] = { NULL, NULL, NULL };
    int colons = 0;
    while (p->rc == KVL_OK && !op(p, "]")) {
        if (op(p, ":")) {
            if (++colons > 2) return jin_refuse(p, "a slice of four parts");
        } else {
            part[colons] = jin_expression(p);
            if (!jin_is(p, TK_OP, ":") && !jin_is(p, TK_OP, "]")) jin_want(p, TK_OP, "]");
        }
    }
    if (colons == 0 && !part[0]) return jin_refuse(p, "[] without an index");
    struct jin_node *n = node_of(p, colons ? N_SLICE : N_ITEM, of, part[0]);
    for (int i = 0; colons && i < 3; i++) jin_append(p, n, NULL, part[i]);
    return n;
}

static struct jin_node *attribute(struct jin_parse *p, struct jin_node *of)
{
    if (p->tok->kind == TK_INT) return node_of(p, N_ITEM, of, number(p));
    struct jin_node *n = node_of(p, N_ATTR, of, NULL);
    const char *name = jin_name(p);
    if (p->rc == KVL_OK) n->name = name;
    return n;
}

static struct jin_node *postfix(struct jin_parse *p, struct jin_node *n)
{
    while (p->rc == KVL_OK) {
        if (op(p, "."))
            n = attribute(p, n);
        else if (op(p, "["))
            n = subscript(p, n);
        else if (op(p, "("))
            arguments(p, n = node_of(p, N_CALL, n, NULL));
        else
            break;
    }
    return n;
}

static struct jin_node *filter(struct jin_parse *p, struct jin_node *of)
{
    struct jin_node *n = node_of(p, N_FILTER, of, NULL);
    const char *name = jin_name(p);
    if (p->rc != KVL_OK) return n;
    if (!jin_knows_filter(name)) return jin_refuse(p, "no filter \"%s\" is known here", name);
    n->name = name;
    if (op(p, "(")) arguments(p, n);
    return n;
}

/* Behind "is". */
static struct jin_node *test(struct jin_parse *p, struct jin_node *of)
{
    bool negated = word(p, "not");
    struct jin_node *n = node_of(p, N_TEST, of, NULL);
    const char *name = jin_name(p);
    if (p->rc != KVL_OK) return n;
    if (!jin_knows_test(name)) return jin_refuse(p, "no test \"%s\" is known here", name);
    n->name = name;
    enum jin_tok_kind next = p->tok->kind;
    if (op(p, "("))
        arguments(p, n);
    else if ((next == TK_NAME && !jin_is(p, TK_NAME, "else") && !jin_is(p, TK_NAME, "or") &&
              !jin_is(p, TK_NAME, "and")) ||
             next == TK_STR || next == TK_INT || next == TK_FLOAT || jin_is(p, TK_OP, "[") ||
             jin_is(p, TK_OP, "{"))
        jin_append(p, n, NULL, postfix(p, primary(p)));
    return negated ? node_of(p, N_NOT, n, NULL) : n;
}

static struct jin_node *unary(struct jin_parse *p, bool filters)
{
    struct jin_node *n;
    if (++p->depth > JIN_DEPTH) jin_refuse(p, "expressions nested deeper than %d", JIN_DEPTH);
    if (p->rc != KVL_OK) return NULL;
    if (op(p, "-"))
        n = node_of(p, N_NEG, unary(p, false), NULL);
    else
        n = primary(p);
    n = postfix(p, n);
    while (filters && p->rc == KVL_OK) {
        if (op(p, "|"))
            n = filter(p, n);
        else if (word(p, "is"))
            n = test(p, n);
        else if (op(p, "("))
            arguments(p, n = node_of(p, N_CALL, n, NULL));
        else
            break;
    }
    p->depth--;
    return n;
}

/* ---- operators, the tightest first ------------------------------------------------------------- */

static struct jin_node *binary(struct jin_parse *p, const char *const *ops, const char *code,
                               struct jin_node *(*part)(struct jin_parse *p))
{
    struct jin_node *n = part(p);
    for (size_t i = 0; ops[i] && p->rc == KVL_OK; i++)
        if (op(p, ops[i])) {
            n = node_of(p, N_BIN, n, part(p));
            if (p->rc == KVL_OK) n->op = code[i];
            i = (size_t)-1;
        }
    return n;
}

static struct jin_node *value(struct jin_parse *p)
{
    return unary(p, true);
}

static struct jin_node *power(struct jin_parse *p)
{
    static const char *const ops[] = { "**", NULL };
    return binary(p, ops, "P", value);
}

static struct jin_node *product(struct jin_parse *p)
{
    static const char *const ops[] = { "*", "/", "//", "%", NULL };
    return binary(p, ops, "*/I%", power);
}

static struct jin_node *joined(struct jin_parse *p)
{
    struct jin_node *n = product(p);
    if (!jin_is(p, TK_OP, "~")) return n;
    struct jin_node *all = jin_new(p, N_CONCAT);
    jin_append(p, all, NULL, n);
    while (p->rc == KVL_OK && op(p, "~")) jin_append(p, all, NULL, product(p));
    return all;
}

static struct jin_node *sum(struct jin_parse *p)
{
    static const char *const ops[] = { "+", "-", NULL };
    return binary(p, ops, "+-", joined);
}

static struct jin_node *comparison(struct jin_parse *p)
{
    static const char *const ops[] = { "==", "!=", "<", ">", "<=", ">=" };
    struct jin_node *first = sum(p), *n = NULL;
    while (p->rc == KVL_OK) {
        const char *found = NULL;
        for (size_t i = 0; i < sizeof ops / sizeof ops[0] && !found; i++)
            if (op(p, ops[i])) found = ops[i];
        if (!found && word(p, "in")) found = "in";
        if (!found && jin_is(p, TK_NAME, "not") && p->tok[1].kind == TK_NAME &&
            p->tok[1].len == 2 && memcmp(p->tok[1].s, "in", 2) == 0) {
            p->tok += 2;
            found = "not in";
        }
        if (!found) break;
        if (!n) n = node_of(p, N_COMPARE, first, NULL);
        jin_append(p, n, found, sum(p));
    }
    return n ? n : first;
}

static struct jin_node *negation(struct jin_parse *p)
{
    if (!word(p, "not")) return comparison(p);
    if (++p->depth > JIN_DEPTH)
        return jin_refuse(p, "expressions nested deeper than %d", JIN_DEPTH);
    struct jin_node *n = node_of(p, N_NOT, negation(p), NULL);
    p->depth--;
    return n;
}

static struct jin_node *both(struct jin_parse *p)
{
    struct jin_node *n = negation(p);
    while (p->rc == KVL_OK && word(p, "and")) n = node_of(p, N_AND, n, negation(p));
    return n;
}

struct jin_node *jin_or(struct jin_parse *p)
{
    struct jin_node *n = both(p);
    while (p->rc == KVL_OK && word(p, "or")) n = node_of(p, N_OR, n, both(p));
    return n;
}

struct jin_node *jin_expression(struct jin_parse *p)
{
    if (++p->depth > JIN_DEPTH) jin_refuse(p, "expressions nested deeper than %d", JIN_DEPTH);
    struct jin_node *n = p->rc == KVL_OK ? jin_or(p) : NULL;
    while (p->rc == KVL_OK && word(p, "if")) {
        n = node_of(p, N_IF_ELSE, n, jin_or(p));
        if (p->rc == KVL_OK && word(p, "else")) n->c = jin_expression(p);
    }
    p->depth--;
    return n;
}

struct jin_node *jin_tuple(struct jin_parse *p, bool cond)
{
    struct jin_node *n = cond ? jin_expression(p) : jin_or(p), *all;
    if (!jin_is(p, TK_OP, ",")) return n;
    all = jin_new(p, N_LIST);
    if (p->rc != KVL_OK) return n;
    all->tuple = true;
    jin_append(p, all, NULL, n);
    while (p->rc == KVL_OK && op(p, ",") && !jin_is(p, TK_OP, ")"))
        jin_append(p, all, NULL, cond ? jin_expression(p) : jin_or(p));
    return all;
}

/* A name, an attribute of a namespace, or several names. */
struct jin_node *jin_target(struct jin_parse *p)
{
    bool closed = op(p, "(");
    struct jin_node *all = jin_new(p, N_LIST);
    do {
        struct jin_node *n = jin_new(p, N_NAME);
        const char *name = jin_name(p);
        if (p->rc != KVL_OK) return n;
        n->name = name;
        if (op(p, ".")) n = attribute(p, n);
        jin_append(p, all, NULL, n);
    } while (p->rc == KVL_OK && op(p, ",") && p->tok->kind == TK_NAME);
    if (closed) jin_want(p, TK_OP, ")");
    return p->rc == KVL_OK && all->n == 1 ? all->list[0] : all;
}
