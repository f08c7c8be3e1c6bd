/* Statements of a template, run. */
#include "jinja_impl.h"

static void run_block(struct kvl_jinja_run *r, const struct jin_node *n);

/* ---- scopes ---------------------------------------------------------------------------------- */

struct jin_env *jin_scope(struct kvl_jinja_run *r, struct jin_env *up)
{
    struct jin_env *e = jin_get(r, 1, sizeof *e);
    if (e) e->up = up;
    return e;
}

void jin_bind(struct kvl_jinja_run *r, const char *name, struct jin_val v)
{
    struct jin_env *e = r->env;
    if (r->rc != KVL_OK) return;
    for (size_t i = 0; i < e->n; i++)
        if (strcmp(e->name[i], name) == 0) {
            e->v[i] = v;
            return;
        }
    if (e->n == e->cap) {
        size_t cap = e->cap ? e->cap * 2 : 8;
        const char **names = jin_get(r, cap, sizeof *names);
        struct jin_val *values = jin_get(r, cap, sizeof *values);
        if (r->rc != KVL_OK) return;
        if (e->n) {
            memcpy(names, e->name, e->n * sizeof *names);
            memcpy(values, e->v, e->n * sizeof *values);
        }
        e->name = names;
        e->v = values;
        e->cap = cap;
    }
    e->name[e->n] = name;
    e->v[e->n++] = v;
}

/* A value to a name, to an attribute of a namespace, or to several names. */
static void assign(struct kvl_jinja_run *r, const struct jin_node *to, struct jin_val v)
{
    if (r->rc != KVL_OK) return;
    if (to->kind == N_NAME) {
        jin_bind(r, to->name, v);
    } else if (to->kind == N_ATTR) {
        struct jin_val space = jin_eval(r, to->a);
        if (r->rc == KVL_OK && (space.type != JIN_DICT || space.d->space != SPACE_NAMES))
            jin_fail(r, "cannot assign attribute on non-namespace object");
        jin_put(r, space, to->name, v);
    } else {
        struct jin_val all = jin_to_list(r, v);
        if (r->rc == KVL_OK && all.l->n != to->n)
            jin_fail(r, "%zu values for %zu names", all.l->n, to->n);
        for (size_t i = 0; i < to->n && r->rc == KVL_OK; i++) assign(r, to->list[i], all.l->v[i]);
    }
}

/* ---- output ---------------------------------------------------------------------------------- */

static void print(struct kvl_jinja_run *r, struct jin_val v)
{
    struct jin_out o = { *r->out, *r->mark };
    if (r->rc == KVL_OK) jin_add(r, &o, jin_to_str(r, v).s);
    *r->out = o.s;
    *r->mark = o.mark;
}

/* What a block prints, as a text. */
static struct jin_val printed(struct kvl_jinja_run *r, const struct jin_node *body)
{
    struct jin_out o = { 0 };
    struct kvl_buf *out = r->out, *mark = r->mark;
    r->out = &o.s;
    r->mark = &o.mark;
    run_block(r, body);
    if (r->jump != JUMP_NONE) jin_fail(r, "break or continue in a set block is not known here");
    r->out = out;
    r->mark = mark;
    return jin_made(r, &o);
}

/* ---- loops ----------------------------------------------------------------------------------- */

static struct jin_val loop_value(struct kvl_jinja_run *r, const struct jin_list *l, size_t i)
{
    struct jin_val loop = jin_dict(r), none = { JIN_UNDEFINED, { .name = "previtem" } };
    int64_t at = (int64_t)i, n = (int64_t)l->n;
    jin_put(r, loop, "index", jin_int(at + 1));
    jin_put(r, loop, "index0", jin_int(at));
    jin_put(r, loop, "first", jin_bool(i == 0));
    jin_put(r, loop, "last", jin_bool(i + 1 == l->n));
    jin_put(r, loop, "length", jin_int(n));
    jin_put(r, loop, "revindex", jin_int(n - at));
    jin_put(r, loop, "revindex0", jin_int(n - at - 1));
    jin_put(r, loop, "depth", jin_int(1));
    jin_put(r, loop, "depth0", jin_int(0));
    jin_put(r, loop, "previtem", i ? l->v[i - 1] : none);
    jin_put(r, loop, "nextitem", i + 1 < l->n ? l->v[i + 1] : none);
    if (r->rc == KVL_OK) loop.d->space = SPACE_LOOP;
    return loop;
}

/* Those for which the condition of a loop holds. */
static struct jin_val loop_over(struct kvl_jinja_run *r, const struct jin_node *n)
{
    struct jin_val all = jin_to_list(r, jin_eval(r, n->b)), out;
    struct jin_env *env = r->env;
    if (!n->c || r->rc != KVL_OK) return all;
    out = jin_list(r);
    for (size_t i = 0; i < all.l->n && r->rc == KVL_OK; i++) {
        if (!(r->env = jin_scope(r, env))) break;
        assign(r, n->a, all.l->v[i]);
        if (jin_true(jin_eval(r, n->c))) jin_push(r, out, all.l->v[i]);
    }
    r->env = env;
    return out;
}

static void run_for(struct kvl_jinja_run *r, const struct jin_node *n)
{
    struct jin_val all = loop_over(r, n);
    struct jin_env *env = r->env;
    for (size_t i = 0; r->rc == KVL_OK && i < all.l->n; i++) {
        if (!(r->env = jin_scope(r, env))) break;
        assign(r, n->a, all.l->v[i]);
        jin_bind(r, "loop", loop_value(r, all.l, i));
        run_block(r, n->body);
        bool stop = r->jump == JUMP_BREAK;
        r->jump = JUMP_NONE;
        if (stop) break;
    }
    r->env = env;
    if (r->rc == KVL_OK && all.l->n == 0 && n->other) run_block(r, n->other);
}

/* ---- macros ---------------------------------------------------------------------------------- */

static void define(struct kvl_jinja_run *r, const struct jin_node *n)
{
    struct jin_call *c = jin_get(r, 1, sizeof *c);
    if (!c) return;
    *c = (struct jin_call){ .name = n->name, .macro = n, .env = r->env };
    jin_bind(r, n->name, (struct jin_val){ JIN_CALL, { .c = c } });
}

static struct jin_val macro(struct kvl_jinja_run *r, const struct jin_call *c, struct jin_args a)
{
    const struct jin_node *m = c->macro;
    struct jin_env *env = r->env, *inside = jin_scope(r, c->env);
    size_t used = 0;
    if (!inside) return (struct jin_val){ 0 };
    r->env = inside;
    for (size_t i = 0; i < m->n && r->rc == KVL_OK; i++) {
        struct jin_val v = { JIN_UNDEFINED, { .name = m->names[i] } };
        bool given = false;
        for (size_t k = 0; k < a.n && !given; k++)
            if ((given = a.name[k] ? strcmp(a.name[k], m->names[i]) == 0 : k == i)) v = a.v[k];
        used += given;
        if (!given && m->list[i]) v = jin_eval(r, m->list[i]);
        jin_bind(r, m->names[i], v);
    }
    if (r->rc == KVL_OK && used != a.n)
        jin_fail(r, "macro %s: %zu arguments too many", c->name, a.n - used);
    struct jin_val v = printed(r, m->body);
    r->env = env;
    return v;
}

/* ---- statements ------------------------------------------------------------------------------ */

/* A block whose names are its own; what it prints, or printed already. */
static struct jin_val in_scope(struct kvl_jinja_run *r, const struct jin_node *body, bool as_text)
{
    struct jin_env *env = r->env;
    struct jin_val v = { 0 };
    r->env = jin_scope(r, env);
    if (r->env && as_text) v = printed(r, body);
    if (r->env && !as_text) run_block(r, body);
    r->env = env;
    return v;
}

static void run_one(struct kvl_jinja_run *r, const struct jin_node *n)
{
    r->line = n->line;
    switch (n->kind) {
    case N_DATA: print(r, n->val); break;
    case N_PRINT: print(r, jin_eval(r, n->a)); break;
    case N_FOR: run_for(r, n); break;
    case N_IF: run_block(r, jin_true(jin_eval(r, n->a)) ? n->body : n->other); break;
    case N_SET: assign(r, n->a, jin_eval(r, n->b)); break;
    case N_SET_BLOCK: assign(r, n->a, in_scope(r, n->body, true)); break;
    case N_GENERATION: in_scope(r, n->body, false); break;
    case N_MACRO: define(r, n); break;
    case N_BREAK: r->jump = JUMP_BREAK; break;
    case N_CONTINUE: r->jump = JUMP_CONTINUE; break;
    default: jin_fail(r, "a value as a statement");
    }
}

static void run_block(struct kvl_jinja_run *r, const struct jin_node *n)
{
    if (r->depth >= 4 * JIN_DEPTH) jin_fail(r, "calls nested too deeply");
    r->depth++;
    for (; n && r->rc == KVL_OK && r->jump == JUMP_NONE; n = n->next) run_one(r, n);
    r->depth--;
}

/* ---- from outside ---------------------------------------------------------------------------- */

int kvl_jinja_open(const struct kvl_jinja *t, size_t bytes, struct kvl_jinja_run **out,
                   struct kvl_err *err)
{
    enum { FIXED = 64 << 20, TIMES = 64 };
    struct kvl_jinja_run *r = kvl_alloc(1, sizeof *r);
    if (!r) return kvl_fail(err, KVL_ENOMEM, "no memory for a chat template");
    r->t = t;
    r->macro = macro;
    r->err = err;
    r->arena.most = FIXED + TIMES * bytes;
    r->env = r->top = jin_scope(r, NULL);
    if (!r->env) {
        int rc = r->rc;
        kvl_jinja_close(r);
        return rc;
    }
    *out = r;
    return KVL_OK;
}

void kvl_jinja_close(struct kvl_jinja_run *r)
{
    if (!r) return;
    jin_arena_free(&r->arena);
    kvl_free(r);
}

void jin_set(struct kvl_jinja_run *r, const char *name, struct jin_val v)
{
    jin_bind(r, name, v);
}

int kvl_jinja_render(struct kvl_jinja_run *r, struct kvl_buf *out, struct kvl_buf *mark)
{
    r->out = out;
    r->mark = mark;
    run_block(r, r->t->body);
    return r->rc;
}
