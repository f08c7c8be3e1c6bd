/* Functions, tests, and methods of lists and dicts. */
#include "jinja_impl.h"

/* ---- functions ------------------------------------------------------------------------------- */

static struct jin_val range(struct kvl_jinja_run *r, const struct jin_args *a)
{
    enum { MOST = 1000000 };
    int64_t v[3] = { 0, 0, 1 };
    struct jin_val out = jin_list(r);
    if (a->n < 1 || a->n > 3) return jin_fail(r, "range of %zu arguments", a->n);
    for (size_t i = 0; i < a->n; i++) {
        if (a->v[i].type != JIN_INT) return jin_fail(r, "range by %s", jin_type_name(a->v[i]));
        v[a->n == 1 ? 1 : i] = a->v[i].i;
    }
    if (v[2] == 0) return jin_fail(r, "range of step 0");
    for (int64_t i = v[0]; r->rc == KVL_OK && (v[2] > 0 ? i < v[1] : i > v[1]);) {
        if (r->rc == KVL_OK && out.l->n >= MOST) return jin_fail(r, "range is too large");
        jin_push(r, out, jin_int(i));
        if (__builtin_add_overflow(i, v[2], &i)) break;
    }
    return out;
}

/* A namespace or a dict, of keywords and of one dict. */
static struct jin_val named(struct kvl_jinja_run *r, const struct jin_args *a, bool space)
{
    struct jin_val out = jin_dict(r);
    for (size_t i = 0; i < a->n && r->rc == KVL_OK; i++) {
        if (a->name[i])
            jin_put(r, out, a->name[i], a->v[i]);
        else if (a->v[i].type == JIN_DICT)
            for (size_t k = 0; k < a->v[i].d->n; k++)
                jin_put_val(r, out.d, a->v[i].d->key[k], a->v[i].d->v[k]);
        else
            return jin_fail(r, "a dict of %s", jin_type_name(a->v[i]));
    }
    if (r->rc == KVL_OK) out.d->space = space;
    return out;
}

/* The same day for everybody, or a prompt would be another one tomorrow: that of Llama 3's own templates, 26 July
 * 2024, 00:00. */
static struct jin_val date(struct kvl_jinja_run *r, const struct jin_args *a)
{
    static const char *const part[] = { "aFri", "AFriday", "bJul",  "BJuly", "d26", "H00",
                                        "I12",  "j208",    "m07",   "M00",   "pAM", "S00",
                                        "w5",   "y24",     "Y2024", "%%" };
    struct jin_val v = jin_arg(a, 0, NULL);
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

static struct jin_val function(struct kvl_jinja_run *r, const char *name, const struct jin_args *a)
{
    if (strcmp(name, "range") == 0) return range(r, a);
    if (strcmp(name, "namespace") == 0) return named(r, a, true);
    if (strcmp(name, "dict") == 0) return named(r, a, false);
    if (strcmp(name, "strftime_now") == 0) return date(r, a);
    struct jin_val said = jin_to_str(r, jin_arg(a, 0, "message"));
    return jin_fail(r, "the template says \"%.*s\"", (int)KVL_MIN(said.s->len, (size_t)400),
                    said.s->s);
}

/* ---- methods --------------------------------------------------------------------------------- */

static const char *const dict_methods[] = { "get",        "items",   "keys",     "values",
                                            "pop",        "update",  "copy",     "clear",
                                            "setdefault", "popitem", "fromkeys", NULL };
static const char *const list_methods[] = {
    "append", "index",   "count", "extend", "insert", "pop",
    "remove", "reverse", "sort",  "copy",   "clear",  NULL
};
static const char *const str_methods[] = {
    "strip",      "lstrip",    "rstrip",       "split",        "rsplit",    "splitlines",
    "startswith", "endswith",  "upper",        "lower",        "title",     "capitalize",
    "replace",    "find",      "rfind",        "index",        "count",     "join",
    "isdigit",    "isspace",   "removeprefix", "removesuffix", "format",    "encode",
    "isalpha",    "isalnum",   "isupper",      "islower",      "partition", "rpartition",
    "zfill",      "center",    "ljust",        "rjust",        "swapcase",  "casefold",
    "expandtabs", "translate", "isnumeric",    "isdecimal",    "istitle",   NULL
};

bool jin_has_method(struct jin_val v, const char *name)
{
    const char *const *list = v.type == JIN_STR                   ? str_methods
                              : v.type == JIN_LIST                ? list_methods
                              : v.type == JIN_DICT && !v.d->space ? dict_methods
                                                                  : NULL;
    for (; list && *list; list++)
        if (strcmp(*list, name) == 0) return true;
    return false;
}

static struct jin_val pair(struct kvl_jinja_run *r, struct jin_val key, struct jin_val v)
{
    struct jin_val out = jin_list(r);
    jin_push(r, out, key);
    jin_push(r, out, v);
    if (r->rc == KVL_OK) out.l->tuple = true;
    return out;
}

static struct jin_val dict_method(struct kvl_jinja_run *r, const char *name,
                                  const struct jin_args *a)
{
    const struct jin_dict *d = a->v[0].d;
    struct jin_val out = jin_list(r);
    if (strcmp(name, "get") == 0) {
        const struct jin_val *v = jin_find(r, d, jin_arg(a, 1, NULL));
        return v ? *v : a->n > 2 ? a->v[2] : jin_none();
    }
    if (strcmp(name, "copy") == 0) return named(r, &(struct jin_args){ a->v, a->name, 1 }, false);
    bool keys = strcmp(name, "keys") == 0, values = strcmp(name, "values") == 0;
    if (!keys && !values && strcmp(name, "items") != 0)
        return jin_fail(r, "method %s of a dict is not known here", name);
    for (size_t i = 0; i < d->n && r->rc == KVL_OK; i++)
        jin_push(r, out, keys ? d->key[i] : values ? d->v[i] : pair(r, d->key[i], d->v[i]));
    return out;
}

static struct jin_val list_method(struct kvl_jinja_run *r, const char *name,
                                  const struct jin_args *a)
{
    const struct jin_list *l = a->v[0].l;
    int64_t n = 0;
    bool index = strcmp(name, "index") == 0;
    if (!index && strcmp(name, "count") != 0)
        return jin_fail(r, "method %s of a list is not known here", name);
    for (size_t i = 0; i < l->n && a->n > 1; i++) {
        bool same = jin_equal(r, l->v[i], a->v[1]);
        if (same && index) return jin_int((int64_t)i);
        n += same;
    }
    return index ? jin_fail(r, "an index of what is not in the list") : jin_int(n);
}

static struct jin_val method(struct kvl_jinja_run *r, const struct jin_call *c,
                             const struct jin_args *given)
{
    struct jin_args a = { jin_get(r, given->n + 1, sizeof *a.v),
                          jin_get(r, given->n + 1, sizeof *a.name), given->n + 1 };
    if (r->rc != KVL_OK) return (struct jin_val){ 0 };
    a.v[0] = c->self;
    for (size_t i = 0; i < given->n; i++) {
        a.v[i + 1] = given->v[i];
        a.name[i + 1] = given->name[i];
    }
    if (c->self.type == JIN_STR) return jin_str_method(r, c->name, a);
    return c->self.type == JIN_DICT ? dict_method(r, c->name, &a) : list_method(r, c->name, &a);
}

struct jin_val jin_call(struct kvl_jinja_run *r, struct jin_val f, struct jin_args a)
{
    if (f.type == JIN_UNDEFINED)
        return jin_fail(r, "'%s' is undefined", f.name ? f.name : "a function");
    if (f.type != JIN_CALL) return jin_fail(r, "'%s' object is not callable", jin_type_name(f));
    if (f.c->macro) return jin_macro(r, f.c, a);
    if (f.c->self.type == JIN_UNDEFINED) return function(r, f.c->name, &a);
    return method(r, f.c, &a);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static const char *const tests[] = { "defined",     "undefined", "none",   "string",  "mapping",
                                     "sequence",    "iterable",  "number", "integer", "float",
                                     "boolean",     "true",      "false",  "odd",     "even",
                                     "divisibleby", "equalto",   "eq",     "ne",      "lt",
                                     "le",          "gt",        "ge",     "in",      "sameas",
                                     "callable" };

bool jin_knows_test(const char *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        if (strcmp(name, tests[i]) == 0) return true;
    return false;
}

static bool test_whole(struct kvl_jinja_run *r, const char *name, struct jin_val v,
                       struct jin_val by)
{
    int64_t n = *name == 'd' ? by.i : 2;
    if (v.type != JIN_INT || (*name == 'd' && (by.type != JIN_INT || n == 0))) {
        jin_fail(r, "%s of %s", name, jin_type_name(v));
        return false;
    }
    if (n == -1) n = 1; /* the least number has no negative */
    return (v.i % n != 0) == (*name == 'o');
}

static bool test_type(const char *name, struct jin_val v)
{
    enum jin_type t = v.type;
    if (strcmp(name, "none") == 0) return t == JIN_NONE;
    if (strcmp(name, "string") == 0) return t == JIN_STR;
    if (strcmp(name, "mapping") == 0) return t == JIN_DICT && !v.d->space;
    if (strcmp(name, "boolean") == 0) return t == JIN_BOOL;
    if (strcmp(name, "true") == 0) return t == JIN_BOOL && v.b;
    if (strcmp(name, "false") == 0) return t == JIN_BOOL && !v.b;
    if (strcmp(name, "integer") == 0) return t == JIN_INT;
    if (strcmp(name, "float") == 0) return t == JIN_FLOAT;
    if (strcmp(name, "number") == 0) return t == JIN_INT || t == JIN_FLOAT || t == JIN_BOOL;
    if (strcmp(name, "callable") == 0) return t == JIN_CALL;
    /* iterable, sequence */
    return t == JIN_STR || t == JIN_LIST || t == JIN_UNDEFINED || (t == JIN_DICT && !v.d->space);
}

bool jin_test(struct kvl_jinja_run *r, const char *name, struct jin_args a)
{
    if (r->rc != KVL_OK) return false;
    struct jin_val v = a.v[0], by = jin_arg(&a, 1, NULL);
    if (strcmp(name, "defined") == 0) return v.type != JIN_UNDEFINED;
    if (strcmp(name, "undefined") == 0) return v.type == JIN_UNDEFINED;
    if (strcmp(name, "equalto") == 0 || strcmp(name, "eq") == 0) return jin_equal(r, v, by);
    if (strcmp(name, "ne") == 0) return !jin_equal(r, v, by);
    if (strcmp(name, "in") == 0) return jin_in(r, v, by);
    if (strcmp(name, "sameas") == 0) return v.type == by.type && jin_equal(r, v, by);
    if (strcmp(name, "lt") == 0) return jin_order(r, v, by) < 0;
    if (strcmp(name, "le") == 0) return jin_order(r, v, by) <= 0;
    if (strcmp(name, "gt") == 0) return jin_order(r, v, by) > 0;
    if (strcmp(name, "ge") == 0) return jin_order(r, v, by) >= 0;
    if (strcmp(name, "odd") == 0 || strcmp(name, "even") == 0 || *name == 'd')
        return test_whole(r, name, v, by);
    return test_type(name, v);
}
