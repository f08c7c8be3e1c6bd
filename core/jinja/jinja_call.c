/* Functions, tests, and methods of lists and dicts. */
#include "jinja_impl.h"

/* ---- functions ------------------------------------------------------------------------------- */

static struct jin_val range(struct kvl_jinja_run *r, const struct jin_args *a)
{
    enum { MOST = 100000 }; /* of jinja2's sandbox */
    int64_t v[3] = { 0, 0, 1 };
    struct jin_val out = jin_row_of(jin_list(r), ROW_RANGE);
    for (size_t i = 1; i < a->n; i++) {
        if (a->v[i].type != JIN_INT) return jin_fail(r, "range by %s", jin_type_name(a->v[i]));
        v[a->n == 2 ? 1 : i - 1] = a->v[i].i;
    }
    if (v[2] == 0) return jin_fail(r, "range of step 0");
    for (int64_t i = v[0]; r->rc == KVL_OK && (v[2] > 0 ? i < v[1] : i > v[1]);) {
        if (out.l->n >= MOST) return jin_fail(r, "range is too large");
        jin_push(r, out, jin_int(i));
        if (__builtin_add_overflow(i, v[2], &i)) break;
    }
    return out;
}

/* A namespace or a dict, of keywords and of one dict. */
static struct jin_val named(struct kvl_jinja_run *r, const struct jin_args *a, bool space)
{
    struct jin_val out = jin_dict(r);
    for (size_t i = 1; i < a->n && r->rc == KVL_OK; i++) {
        if (a->name[i])
            jin_put(r, out, a->name[i], a->v[i]);
        else if (i == 1 && jin_is_dict(a->v[i]))
            for (size_t k = 0; k < a->v[i].d->n; k++)
                jin_put_val(r, out.d, a->v[i].d->key[k], a->v[i].d->v[k]);
        else
            return jin_fail(r, "a dict of %s", jin_type_name(a->v[i]));
    }
    if (r->rc == KVL_OK) out.d->space = space ? SPACE_NAMES : SPACE_NONE;
    return out;
}

/* The same day for everybody, or a prompt would be another one tomorrow: that of Llama 3's own templates, 26 July
 * 2024, 00:00. */
static struct jin_val date(struct kvl_jinja_run *r, struct jin_val v)
{
    static const char *const part[] = { "aFri", "AFriday", "bJul",  "BJuly", "d26", "H00",
                                        "I12",  "j208",    "m07",   "M00",   "pAM", "S00",
                                        "w5",   "y24",     "Y2024", "%%" };
    struct jin_out o = { 0 };
    if (v.type != JIN_STR) return jin_fail(r, "strftime_now without a text");
    for (size_t i = 0; i < v.s->len && r->rc == KVL_OK; i++) {
        const char *found = NULL;
        if (v.s->s[i] != '%') {
            jin_add(r, &o, &(struct jin_str){ v.s->s + i, NULL, 1 });
            continue;
        }
        i++;
        for (size_t k = 0; i < v.s->len && k < sizeof part / sizeof part[0] && !found; k++)
            if (part[k][0] == v.s->s[i]) found = part[k] + 1;
        if (found)
            jin_adds(r, &o, found);
        else
            jin_fail(r, "strftime_now(\"%.*s\") is not known here",
                     (int)KVL_MIN(v.s->len, (size_t)64), v.s->s);
    }
    return jin_made(r, &o);
}

static struct jin_val function(struct kvl_jinja_run *r, const char *name, struct jin_args a)
{
    if (strcmp(name, "namespace") == 0) return named(r, &a, true);
    if (strcmp(name, "dict") == 0) return named(r, &a, false);
    bool row = strcmp(name, "range") == 0, day = strcmp(name, "strftime_now") == 0;
    a = jin_ordered(r, name, row ? "1 ?2 ?3" : day ? "format" : "message", a);
    if (r->rc != KVL_OK) return a.v[0];
    if (row) return range(r, &a);
    if (day) return date(r, a.v[1]);
    struct jin_val said = jin_to_str(r, a.v[1]);
    return jin_fail(r, "the template says \"%.*s\"", (int)KVL_MIN(said.s->len, (size_t)400),
                    said.s->s);
}

/* ---- methods --------------------------------------------------------------------------------- */

static struct jin_val pair(struct kvl_jinja_run *r, struct jin_val key, struct jin_val v)
{
    struct jin_val out = jin_list(r);
    jin_push(r, out, key);
    jin_push(r, out, v);
    return jin_row_of(out, ROW_TUPLE);
}

static struct jin_val dict_method(struct kvl_jinja_run *r, const char *name, struct jin_args a)
{
    const struct jin_dict *d = a.v[0].d;
    struct jin_val out = jin_row_of(jin_list(r), ROW_VIEW);
    bool get = strcmp(name, "get") == 0, copy = strcmp(name, "copy") == 0;
    bool keys = strcmp(name, "keys") == 0, values = strcmp(name, "values") == 0;
    if (!get && !copy && !keys && !values && strcmp(name, "items") != 0)
        return jin_fail(r, "method %s of a dict is not known here", name);
    a = jin_ordered(r, name, get ? "1 ?2" : "", a);
    if (r->rc != KVL_OK) return out;
    if (get) {
        const struct jin_val *v = jin_hashable(r, a.v[1]) ? jin_find(r, d, a.v[1]) : NULL;
        return v ? *v : a.n > 2 ? a.v[2] : jin_none();
    }
    if (copy) {
        out = jin_dict(r);
        for (size_t i = 0; i < d->n && r->rc == KVL_OK; i++)
            jin_put_val(r, out.d, d->key[i], d->v[i]);
        return out;
    }
    for (size_t i = 0; i < d->n && r->rc == KVL_OK; i++)
        jin_push(r, out, keys ? d->key[i] : values ? d->v[i] : pair(r, d->key[i], d->v[i]));
    return out;
}

struct jin_val jin_call(struct kvl_jinja_run *r, struct jin_val f, struct jin_args given)
{
    if (f.type == JIN_UNDEFINED)
        return jin_fail(r, "'%s' is undefined", f.name ? f.name : "a function");
    if (f.type != JIN_CALL) return jin_fail(r, "'%s' object is not callable", jin_type_name(f));
    if (f.c->macro) return r->macro(r, f.c, given);
    struct jin_args a = jin_before(r, f.c->self, &given, 0);
    if (r->rc != KVL_OK) return f;
    switch (f.c->self.type) {
    case JIN_UNDEFINED: return function(r, f.c->name, a);
    case JIN_STR: return jin_str_method(r, f.c->name, a);
    case JIN_DICT: return dict_method(r, f.c->name, a);
    default: return jin_fail(r, "method %s of a list is not known here", f.c->name);
    }
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* With the argument of each. */
static const struct {
    const char *name, *args;
} tests[] = {
    { "defined", "" },  { "undefined", "" }, { "none", "" },   { "string", "" },  { "mapping", "" },
    { "sequence", "" }, { "iterable", "" },  { "number", "" }, { "integer", "" }, { "float", "" },
    { "boolean", "" },  { "true", "" },      { "false", "" },  { "odd", "" },     { "even", "" },
    { "equalto", "b" }, { "eq", "b" },       { "==", "b" },    { "ne", "b" },     { "in", "seq" },
};

static const char *test_args(const char *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (strcmp(name, tests[i].name) == 0) return tests[i].args;
    return NULL;
}

bool jin_knows_test(const char *name)
{
    return test_args(name) != NULL;
}

static bool test_type(const char *name, struct jin_val v)
{
    enum jin_type t = v.type;
    if (strcmp(name, "none") == 0) return t == JIN_NONE;
    if (strcmp(name, "string") == 0) return t == JIN_STR;
    if (strcmp(name, "mapping") == 0) return jin_is_dict(v);
    if (strcmp(name, "boolean") == 0) return t == JIN_BOOL;
    if (strcmp(name, "true") == 0) return t == JIN_BOOL && v.b;
    if (strcmp(name, "false") == 0) return t == JIN_BOOL && !v.b;
    if (strcmp(name, "integer") == 0) return t == JIN_INT;
    if (strcmp(name, "float") == 0) return t == JIN_FLOAT;
    if (strcmp(name, "number") == 0) return t == JIN_INT || t == JIN_FLOAT || t == JIN_BOOL;
    if (t == JIN_LIST && strcmp(name, "sequence") == 0) return v.l->row <= ROW_RANGE;
    return t == JIN_STR || t == JIN_LIST || t == JIN_UNDEFINED || jin_is_dict(v);
}

bool jin_test(struct kvl_jinja_run *r, const char *name, struct jin_args a)
{
    if (r->rc == KVL_OK) a = jin_ordered(r, name, test_args(name), a);
    if (r->rc != KVL_OK) return false;
    struct jin_val v = a.v[0];
    if (strcmp(name, "defined") == 0) return v.type != JIN_UNDEFINED;
    if (strcmp(name, "undefined") == 0) return v.type == JIN_UNDEFINED;
    if (*name == '=' || strcmp(name, "equalto") == 0 || strcmp(name, "eq") == 0)
        return jin_equal(r, v, a.v[1]);
    if (strcmp(name, "ne") == 0) return !jin_equal(r, v, a.v[1]);
    if (strcmp(name, "in") == 0) return jin_in(r, v, a.v[1]);
    if (strcmp(name, "odd") == 0 || strcmp(name, "even") == 0) {
        if (v.type == JIN_INT) return (v.i % 2 != 0) == (*name == 'o');
        jin_fail(r, "%s of %s", name, jin_type_name(v));
    }
    return test_type(name, v);
}
