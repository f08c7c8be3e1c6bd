/* Parts of values, and the arguments of calls: what calls, filters and expressions all need. */
#include "jinja_impl.h"

/* ---- attributes and items --------------------------------------------------------------------- */

/* All that Python has, since what is no method may be an item. */
static const char *const dict_methods[] = { "get",        "items",   "keys",     "values",
                                            "pop",        "update",  "copy",     "clear",
                                            "setdefault", "popitem", "fromkeys", NULL };
static const char *const list_methods[] = {
    "append", "index",   "count", "extend", "insert", "pop",
    "remove", "reverse", "sort",  "copy",   "clear",  NULL
};
static const char *const str_methods[] = {
    "strip",      "lstrip",     "rstrip",       "split",        "rsplit",    "splitlines",
    "startswith", "endswith",   "upper",        "lower",        "title",     "capitalize",
    "replace",    "find",       "rfind",        "index",        "count",     "join",
    "isdigit",    "isspace",    "removeprefix", "removesuffix", "format",    "encode",
    "isalpha",    "isalnum",    "isupper",      "islower",      "partition", "rpartition",
    "zfill",      "center",     "ljust",        "rjust",        "swapcase",  "casefold",
    "expandtabs", "translate",  "isnumeric",    "isdecimal",    "istitle",   "isascii",
    "maketrans",  "format_map", "isidentifier", "isprintable",  NULL
};

bool jin_has_method(struct jin_val v, const char *name)
{
    const char *const *list = v.type == JIN_STR    ? str_methods
                              : v.type == JIN_LIST ? list_methods
                              : jin_is_dict(v)     ? dict_methods
                                                   : NULL;
    for (; list && *list; list++)
        if (strcmp(*list, name) == 0) return true;
    return false;
}

struct jin_val jin_bound(struct kvl_jinja_run *r, struct jin_val self, const char *name)
{
    struct jin_call *c = jin_get(r, 1, sizeof *c);
    if (!c) return (struct jin_val){ 0 };
    *c = (struct jin_call){ .name = name, .self = self };
    return (struct jin_val){ JIN_CALL, { .c = c } };
}

struct jin_val jin_attr(struct kvl_jinja_run *r, struct jin_val v, const char *name)
{
    if (v.type == JIN_UNDEFINED)
        return jin_fail(r, "'%s' is undefined", v.name ? v.name : "a value");
    if (jin_has_method(v, name)) return jin_bound(r, v, name);
    if (v.type == JIN_DICT)
        for (size_t i = 0; i < v.d->n; i++)
            if (jin_str_is(v.d->key[i], name)) return v.d->v[i];
    bool own = v.type == JIN_BOOL || v.type == JIN_INT || v.type == JIN_FLOAT ||
               v.type == JIN_CALL || (v.type == JIN_DICT && v.d->space == SPACE_LOOP) ||
               (v.type == JIN_LIST && !jin_plain(v));
    if (own || *name == '_') return jin_fail(r, "attribute %s is not known here", name);
    return (struct jin_val){ JIN_UNDEFINED, { .name = name } };
}

/* Place of index i in a row of n, counted from the end where negative; -1: there is none. */
static int64_t place(int64_t i, int64_t n)
{
    if (i < 0) i += n;
    return i >= 0 && i < n ? i : -1;
}

struct jin_val jin_item(struct kvl_jinja_run *r, struct jin_val v, struct jin_val key)
{
    struct jin_val none = { JIN_UNDEFINED, { .name = "an item" } };
    if (v.type == JIN_UNDEFINED)
        return jin_fail(r, "'%s' is undefined", v.name ? v.name : "a value");
    if (v.type == JIN_DICT) {
        const struct jin_val *found = jin_find(r, v.d, key);
        if (found) return *found;
    }
    bool whole = key.type == JIN_INT || key.type == JIN_BOOL;
    int64_t i = key.type == JIN_BOOL ? key.b : whole ? key.i : 0;
    if (v.type == JIN_LIST && v.l->row > ROW_RANGE)
        return jin_fail(r, "an item of such a row is not known here");
    if (v.type == JIN_LIST && whole) {
        i = place(i, (int64_t)v.l->n);
        return i < 0 ? none : v.l->v[i];
    }
    if (v.type == JIN_STR && whole) {
        i = place(i, (int64_t)jin_chars(v.s));
        if (i < 0) return none;
        return jin_part(r, v.s, jin_char_at(v.s, (size_t)i), jin_char_at(v.s, (size_t)i + 1));
    }
    if (key.type != JIN_STR) return none;
    char *name = jin_get(r, key.s->len + 1, 1); /* Jinja looks for an attribute, too */
    if (!name) return none;
    memcpy(name, key.s->s, key.s->len);
    none = jin_attr(r, v, name);
    return none.type == JIN_CALL ? jin_fail(r, "a method as an item") : none;
}

/* ---- arguments -------------------------------------------------------------------------------- */

struct jin_args jin_before(struct kvl_jinja_run *r, struct jin_val v, const struct jin_args *a,
                           size_t from)
{
    struct jin_args out = { jin_get(r, a->n + 1, sizeof *out.v),
                            jin_get(r, a->n + 1, sizeof *out.name), 0 };
    if (r->rc != KVL_OK) return out;
    out.v[out.n++] = v;
    for (size_t i = from; i < a->n; i++) {
        out.v[out.n] = a->v[i];
        out.name[out.n++] = a->name[i];
    }
    return out;
}

/* Place in the call of argument `name` [len], the i-th; a->n: not given. */
static size_t given(const struct jin_args *a, size_t i, const char *name, size_t len)
{
    size_t k = 0;
    while (k < a->n &&
           (a->name[k] ? strlen(a->name[k]) != len || memcmp(a->name[k], name, len) != 0 : k != i))
        k++;
    return k;
}

struct jin_args jin_ordered(struct kvl_jinja_run *r, const char *what, const char *names,
                            struct jin_args a)
{
    enum { MOST = 5 };
    struct jin_args out = { jin_get(r, MOST, sizeof *out.v), NULL, 1 };
    size_t used = 1;
    if (r->rc != KVL_OK) return out;
    out.v[0] = a.v[0];
    for (size_t i = 1; *names; i++) {
        char kind = *names == '?' || *names == '!' ? *names++ : ' ';
        size_t len = strcspn(names, " "), k = given(&a, i, names, len);
        if (k < a.n ? kind == '!' : kind == ' ')
            jin_fail(r, "%s %s its argument %.*s is not known here", what,
                     k < a.n ? "with" : "without", (int)len, names);
        out.v[i] = k < a.n ? a.v[k] : (struct jin_val){ 0 };
        if (k < a.n) out.n = i + 1;
        used += k < a.n;
        names += len + (names[len] == ' ');
    }
    if (r->rc == KVL_OK && used != a.n)
        jin_fail(r, "%s with such arguments is not known here", what);
    return out;
}
