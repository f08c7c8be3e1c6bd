/* Expressions of a template, evaluated. */
#include "jinja_impl.h"

#include <math.h>

/* ---- names and parts ------------------------------------------------------------------------- */

static struct jin_val lookup(struct kvl_jinja_run *r, const char *name)
{
    for (const struct jin_env *e = r->env; e; e = e->up)
        for (size_t i = e->n; i-- > 0;)
            if (strcmp(e->name[i], name) == 0) return e->v[i];
    static const char *const known[] = { "raise_exception", "strftime_now", "range",
                                         "namespace",       "dict",         "cycler",
                                         "joiner",          "lipsum",       "self",
                                         "caller",          "kwargs",       "varargs" };
    enum { FUNCTIONS = 5 };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(name, known[i]) == 0)
            return i < FUNCTIONS ? jin_bound(r, (struct jin_val){ 0 }, known[i])
                                 : jin_fail(r, "%s is not known here", name);
    return (struct jin_val){ JIN_UNDEFINED, { .name = name } };
}

/* A bound of a slice: `none` where not given. */
static int64_t bound(struct kvl_jinja_run *r, const struct jin_node *n, int64_t none)
{
    if (!n) return none;
    struct jin_val v = jin_eval(r, n);
    if (v.type == JIN_NONE) return none;
    if (v.type != JIN_INT && v.type != JIN_BOOL) {
        jin_fail(r, "a slice by %s", jin_type_name(v));
        return none;
    }
    return v.type == JIN_INT ? v.i : v.b;
}

static struct jin_val slice(struct kvl_jinja_run *r, const struct jin_node *n)
{
    struct jin_val v = jin_eval(r, n->a), part;
    if (r->rc == KVL_OK && !jin_plain(v) && v.type != JIN_STR)
        return jin_fail(r, "a slice of %s", jin_type_name(v));
    int64_t step = bound(r, n->list[2], 1), len = jin_length(r, v);
    if (r->rc == KVL_OK && step == 0) return jin_fail(r, "a slice of step 0");
    bool back = step < 0;
    int64_t from = bound(r, n->list[0], back ? INT64_MAX : 0);
    int64_t to = bound(r, n->list[1], back ? INT64_MIN : INT64_MAX);
    if (r->rc != KVL_OK) return v;
    if (from < 0) from = KVL_MAX(from + len, back ? -1 : 0);
    if (to < 0 && to != INT64_MIN) to = KVL_MAX(to + len, back ? -1 : 0);
    if (to == INT64_MIN) to = -1;
    from = KVL_MIN(from, back ? len - 1 : len);
    to = KVL_MIN(to, back ? len - 1 : len);
    if (v.type == JIN_STR && step == 1)
        return jin_part(r, v.s, jin_char_at(v.s, (size_t)from),
                        jin_char_at(v.s, (size_t)KVL_MAX(from, to)));
    struct jin_val all = v.type == JIN_STR ? jin_to_list(r, v) : v, out = jin_list(r);
    struct jin_out text = { 0 };
    for (int64_t i = from; r->rc == KVL_OK && (back ? i > to : i < to); i += step) {
        part = all.l->v[i];
        if (v.type == JIN_STR)
            jin_add(r, &text, part.s);
        else
            jin_push(r, out, part);
        if (step > len || step < -len) break;
    }
    if (v.type == JIN_STR) return jin_made(r, &text);
    return r->rc == KVL_OK ? jin_row_of(out, v.l->row) : out;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static bool number(struct jin_val v, double *out)
{
    if (v.type == JIN_FLOAT) *out = v.f;
    if (v.type == JIN_INT) *out = (double)v.i;
    if (v.type == JIN_BOOL) *out = v.b;
    return v.type == JIN_FLOAT || v.type == JIN_INT || v.type == JIN_BOOL;
}

static struct jin_val whole_numbers(struct kvl_jinja_run *r, char op, int64_t a, int64_t b)
{
    int64_t out = 0;
    bool over = false;
    if ((op == 'I' || op == '%') && b == 0) return jin_fail(r, "a division by zero");
    if (b == -1 && (op == 'I' || op == '%')) return op == '%' ? jin_int(0) : jin_minus(r, a);
    switch (op) {
    case '+': over = __builtin_add_overflow(a, b, &out); break;
    case '-': over = __builtin_sub_overflow(a, b, &out); break;
    case '*': over = __builtin_mul_overflow(a, b, &out); break;
    case 'I': out = a / b - (a % b != 0 && (a < 0) != (b < 0)); break;
    case '%': out = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0); break;
    default: return jin_fail(r, "** is not known here");
    }
    return over ? jin_fail(r, "a number beyond 64 bits") : jin_int(out);
}

static struct jin_val numbers(struct kvl_jinja_run *r, char op, double a, double b)
{
    const double most = 9007199254740992.0; /* what is larger may be an integer that was rounded */
    double out = a + b;
    if (b == 0.0 && op == '/') return jin_fail(r, "a division by zero");
    if (op == '-') out = a - b;
    if (op == '*') out = a * b;
    if (op == '/') out = a / b;
    if (op == 'I' || op == '%' || op == 'P')
        return jin_fail(r, "//, %% and ** of floats are not known here");
    if (!(fabs(a) < most && fabs(b) < most)) return jin_fail(r, "a number beyond 53 bits");
    return (struct jin_val){ JIN_FLOAT, { .f = out } };
}

/* A text or a list n times. */
static struct jin_val times(struct kvl_jinja_run *r, struct jin_val v, int64_t n)
{
    struct jin_val out = v.type == JIN_LIST ? jin_row_of(jin_list(r), v.l->row) : v;
    struct jin_out text = { 0 };
    for (int64_t i = 0; i < n && r->rc == KVL_OK; i++) {
        if (v.type == JIN_STR && v.s->len == 0) break;
        if (v.type == JIN_STR) jin_add(r, &text, v.s);
        for (size_t k = 0; v.type == JIN_LIST && k < v.l->n; k++) jin_push(r, out, v.l->v[k]);
        if (v.type == JIN_LIST && v.l->n == 0) break;
    }
    return v.type == JIN_STR ? jin_made(r, &text) : out;
}

static struct jin_val joined(struct kvl_jinja_run *r, struct jin_val a, struct jin_val b)
{
    struct jin_out text = { 0 };
    if (a.type == JIN_STR) {
        jin_add(r, &text, a.s);
        jin_add(r, &text, b.s);
        return jin_made(r, &text);
    }
    struct jin_val out = jin_row_of(jin_to_list(r, a), a.l->row);
    for (size_t i = 0; i < b.l->n; i++) jin_push(r, out, b.l->v[i]);
    return out;
}

static struct jin_val binary(struct kvl_jinja_run *r, const struct jin_node *n)
{
    struct jin_val a = jin_eval(r, n->a), b = jin_eval(r, n->b);
    double x, y;
    if (r->rc != KVL_OK) return a;
    if (number(a, &x) && number(b, &y)) {
        if (a.type == JIN_FLOAT || b.type == JIN_FLOAT || n->op == '/')
            return numbers(r, n->op, x, y);
        return whole_numbers(r, n->op, a.type == JIN_BOOL ? a.b : a.i,
                             b.type == JIN_BOOL ? b.b : b.i);
    }
    bool text = a.type == JIN_STR && b.type == JIN_STR;
    if (n->op == '+' && (text || (jin_plain(a) && jin_plain(b) && a.l->row == b.l->row)))
        return joined(r, a, b);
    if (n->op == '*' && (a.type == JIN_STR || jin_plain(a)) && b.type == JIN_INT)
        return times(r, a, b.i);
    if (n->op == '*' && (b.type == JIN_STR || jin_plain(b)) && a.type == JIN_INT)
        return times(r, b, a.i);
    if (a.type == JIN_UNDEFINED || b.type == JIN_UNDEFINED) {
        const char *name = a.type == JIN_UNDEFINED ? a.name : b.name;
        return jin_fail(r, "'%s' is undefined", name ? name : "a value");
    }
    return jin_fail(r, "%s %c %s", jin_type_name(a), n->op == 'I' ? '/' : n->op, jin_type_name(b));
}

static struct jin_val compare(struct kvl_jinja_run *r, const struct jin_node *n)
{
    struct jin_val a = jin_eval(r, n->a);
    for (size_t i = 0; i < n->n && r->rc == KVL_OK; i++) {
        struct jin_val b = jin_eval(r, n->list[i]);
        const char *op = n->names[i];
        bool holds = false;
        if (r->rc != KVL_OK) break;
        if (strcmp(op, "==") == 0 || strcmp(op, "!=") == 0)
            holds = jin_equal(r, a, b) == (*op == '=');
        else if (strcmp(op, "in") == 0 || strcmp(op, "not in") == 0)
            holds = jin_in(r, a, b) == (*op == 'i');
        else {
            int c = jin_order(r, a, b);
            holds = (*op == '<' && c < 0) || (*op == '>' && c > 0) || (op[1] == '=' && c == 0);
        }
        if (!holds) return jin_bool(false);
        a = b;
    }
    return jin_bool(true);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static struct jin_val negative(struct kvl_jinja_run *r, struct jin_val v)
{
    if (v.type == JIN_FLOAT) return (struct jin_val){ JIN_FLOAT, { .f = -v.f } };
    if (v.type == JIN_INT || v.type == JIN_BOOL) return jin_minus(r, v.type == JIN_INT ? v.i : v.b);
    return jin_fail(r, "minus %s", jin_type_name(v));
}

static struct jin_val row(struct kvl_jinja_run *r, const struct jin_node *n)
{
    struct jin_val out = n->kind == N_DICT ? jin_dict(r) : jin_list(r);
    for (size_t i = 0; i < n->n && r->rc == KVL_OK; i++) {
        struct jin_val v = jin_eval(r, n->list[i]);
        if (n->kind == N_LIST)
            jin_push(r, out, v);
        else if (r->rc == KVL_OK && jin_hashable(r, v))
            jin_put_val(r, out.d, v, jin_eval(r, n->list[++i]));
    }
    return n->kind == N_LIST && n->tuple ? jin_row_of(out, ROW_TUPLE) : out;
}

static struct jin_val concat(struct kvl_jinja_run *r, const struct jin_node *n)
{
    struct jin_out o = { 0 };
    for (size_t i = 0; i < n->n && r->rc == KVL_OK; i++)
        jin_add(r, &o, jin_to_str(r, jin_eval(r, n->list[i])).s);
    return jin_made(r, &o);
}

struct jin_args jin_eval_args(struct kvl_jinja_run *r, const struct jin_node *n,
                              struct jin_val first, bool with_first)
{
    struct jin_args a = { 0 };
    size_t all = n->n + with_first;
    a.v = jin_get(r, all + 1, sizeof *a.v);
    a.name = jin_get(r, all + 1, sizeof *a.name);
    if (r->rc != KVL_OK) return a;
    if (with_first) a.v[a.n++] = first;
    for (size_t i = 0; i < n->n && r->rc == KVL_OK; i++) {
        a.v[a.n] = jin_eval(r, n->list[i]);
        a.name[a.n++] = n->names[i];
    }
    return a;
}

static struct jin_val eval_more(struct kvl_jinja_run *r, const struct jin_node *n)
{
    struct jin_val a;
    struct jin_args args;
    switch (n->kind) {
    case N_LIST:
    case N_DICT: return row(r, n);
    case N_BIN: return binary(r, n);
    case N_CONCAT: return concat(r, n);
    case N_COMPARE: return compare(r, n);
    case N_SLICE: return slice(r, n);
    case N_ATTR: a = jin_eval(r, n->a); return r->rc == KVL_OK ? jin_attr(r, a, n->name) : a;
    case N_ITEM:
        a = jin_eval(r, n->a);
        return r->rc == KVL_OK ? jin_item(r, a, jin_eval(r, n->b)) : a;
    case N_NEG: return negative(r, jin_eval(r, n->a));
    case N_CALL:
        a = jin_eval(r, n->a);
        args = jin_eval_args(r, n, a, false);
        return r->rc == KVL_OK ? jin_call(r, a, args) : a;
    case N_TEST:
        args = jin_eval_args(r, n, jin_eval(r, n->a), true);
        return jin_bool(r->rc == KVL_OK && jin_test(r, n->name, args));
    case N_FILTER:
        args = jin_eval_args(r, n, jin_eval(r, n->a), true);
        return r->rc == KVL_OK ? jin_filter(r, n->name, args) : (struct jin_val){ 0 };
    default: return jin_fail(r, "a statement as a value");
    }
}

struct jin_val jin_eval(struct kvl_jinja_run *r, const struct jin_node *n)
{
    struct jin_val v = { 0 };
    if (r->rc != KVL_OK) return v;
    if (r->depth >= 4 * JIN_DEPTH) return jin_fail(r, "calls nested too deeply");
    if (++r->steps > JIN_STEPS) return jin_fail(r, "more than %d steps", (int)JIN_STEPS);
    r->depth++;
    r->line = n->line;
    switch (n->kind) {
    case N_CONST: v = n->val; break;
    case N_NAME: v = lookup(r, n->name); break;
    case N_NOT: v = jin_bool(!jin_true(jin_eval(r, n->a))); break;
    case N_AND:
        v = jin_eval(r, n->a);
        if (jin_true(v)) v = jin_eval(r, n->b);
        break;
    case N_OR:
        v = jin_eval(r, n->a);
        if (!jin_true(v)) v = jin_eval(r, n->b);
        break;
    case N_IF_ELSE:
        v = jin_eval(r, n->b);
        if (jin_true(v))
            v = jin_eval(r, n->a);
        else
            v = n->c ? jin_eval(r, n->c) : (struct jin_val){ 0 };
        break;
    default: v = eval_more(r, n);
    }
    r->depth--;
    return v;
}
