/* Filters. */
#include "jinja_impl.h"

#include <math.h>
#include <stdlib.h>

typedef struct jin_val (*filter_fn)(struct kvl_jinja_run *r, struct jin_args a);

/* ---- of texts -------------------------------------------------------------------------------- */

static struct jin_val f_trim(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_strip(r, jin_to_str(r, a.v[0]), jin_arg(&a, 1, "chars"), true, true);
}

static struct jin_val f_upper(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_cased(r, jin_to_str(r, a.v[0]), 'u');
}

static struct jin_val f_lower(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_cased(r, jin_to_str(r, a.v[0]), 'l');
}

static struct jin_val f_title(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_cased(r, jin_to_str(r, a.v[0]), 't');
}

static struct jin_val f_capitalize(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_cased(r, jin_to_str(r, a.v[0]), 'c');
}

static struct jin_val f_replace(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_val most = jin_arg(&a, 3, "count");
    return jin_replace(r, jin_to_str(r, a.v[0]), jin_to_str(r, jin_arg(&a, 1, "old")),
                       jin_to_str(r, jin_arg(&a, 2, "new")), most.type == JIN_INT ? most.i : -1);
}

static struct jin_val f_string(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_to_str(r, a.v[0]);
}

/* Spaces before every line but the first and the empty ones. */
static struct jin_val f_indent(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_val width = jin_arg(&a, 1, "width"), text = jin_to_str(r, a.v[0]);
    bool first = jin_true(jin_arg(&a, 2, "first")), blank = jin_true(jin_arg(&a, 3, "blank"));
    int64_t n = width.type == JIN_INT ? width.i : 4;
    struct jin_out o = { 0 };
    if (width.type == JIN_STR) return jin_fail(r, "indent by a text is not known here");
    for (size_t at = 0; at <= text.s->len && r->rc == KVL_OK;) {
        const char *s = text.s->s + at, *end = memchr(s, '\n', text.s->len - at);
        size_t len = end ? (size_t)(end - s) : text.s->len - at;
        for (int64_t i = 0; (at ? len > 0 || blank : first) && i < n && r->rc == KVL_OK; i++)
            jin_adds(r, &o, " ");
        if (r->rc == KVL_OK) jin_add(r, &o, jin_part(r, text.s, at, at + len + (end != NULL)).s);
        at += len + 1;
    }
    return jin_made(r, &o);
}

/* ---- of numbers ------------------------------------------------------------------------------ */

static struct jin_val f_int(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_val v = a.v[0], other = jin_arg(&a, 1, "default");
    char *end, text[32] = "";
    (void)r;
    if (v.type == JIN_INT) return v;
    if (v.type == JIN_BOOL) return jin_int(v.b);
    if (v.type == JIN_FLOAT && fabs(v.f) < 9e18) return jin_int((int64_t)v.f);
    if (v.type == JIN_STR && v.s->len < sizeof text) {
        memcpy(text, v.s->s, v.s->len);
        long long i = strtoll(text, &end, 10);
        if (*text && !*end) return jin_int(i);
    }
    return other.type == JIN_UNDEFINED ? jin_int(0) : other;
}

static struct jin_val f_float(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_val v = a.v[0];
    if (v.type == JIN_FLOAT) return v;
    if (v.type == JIN_INT) return (struct jin_val){ JIN_FLOAT, { .f = (double)v.i } };
    return jin_fail(r, "float of %s is not known here", jin_type_name(v));
}

static struct jin_val f_abs(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_val v = a.v[0];
    if (v.type == JIN_INT) return v.i < 0 ? jin_minus(r, v.i) : v;
    if (v.type == JIN_FLOAT) return (struct jin_val){ JIN_FLOAT, { .f = fabs(v.f) } };
    return jin_fail(r, "abs of %s", jin_type_name(v));
}

/* ---- of rows --------------------------------------------------------------------------------- */

static struct jin_val f_length(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_int(jin_length(r, a.v[0]));
}

static struct jin_val at_end(struct kvl_jinja_run *r, struct jin_val v, bool last)
{
    struct jin_val all = jin_to_list(r, v),
                   none = { JIN_UNDEFINED, { .name = last ? "last" : "first" } };
    if (r->rc != KVL_OK || all.l->n == 0) return none;
    return all.l->v[last ? all.l->n - 1 : 0];
}

static struct jin_val f_first(struct kvl_jinja_run *r, struct jin_args a)
{
    return at_end(r, a.v[0], false);
}

static struct jin_val f_last(struct kvl_jinja_run *r, struct jin_args a)
{
    return at_end(r, a.v[0], true);
}

static struct jin_val f_list(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_to_list(r, a.v[0]);
}

/* a.b.c, a number being an index. */
static struct jin_val attribute(struct kvl_jinja_run *r, struct jin_val v, struct jin_val path)
{
    if (path.type != JIN_STR) return jin_item(r, v, path);
    for (size_t at = 0; at <= path.s->len && r->rc == KVL_OK;) {
        const char *s = path.s->s + at, *dot = memchr(s, '.', path.s->len - at);
        size_t len = dot ? (size_t)(dot - s) : path.s->len - at;
        v = jin_item(r, v, jin_part(r, path.s, at, at + len));
        at += len + 1;
    }
    return v;
}

static struct jin_val f_join(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_val by = jin_arg(&a, 1, "d"), path = jin_arg(&a, 2, "attribute"),
                   all = jin_to_list(r, a.v[0]);
    struct jin_out o = { 0 };
    for (size_t i = 0; r->rc == KVL_OK && i < all.l->n; i++) {
        struct jin_val v =
            path.type == JIN_UNDEFINED ? all.l->v[i] : attribute(r, all.l->v[i], path);
        if (i && by.type == JIN_STR) jin_add(r, &o, by.s);
        jin_add(r, &o, jin_to_str(r, v).s);
    }
    return jin_made(r, &o);
}

static struct jin_val f_default(struct kvl_jinja_run *r, struct jin_args a)
{
    bool empty = jin_true(jin_arg(&a, 2, "boolean")) && !jin_true(a.v[0]);
    struct jin_val other = jin_arg(&a, 1, "default_value");
    if (a.v[0].type != JIN_UNDEFINED && !empty) return a.v[0];
    return other.type == JIN_UNDEFINED && a.n == 1 ? jin_lit(r, "") : other;
}

static struct jin_val f_reverse(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_val all = jin_to_list(r, a.v[0]), out = jin_list(r);
    if (a.v[0].type == JIN_STR) return jin_fail(r, "reverse of a text is not known here");
    for (size_t i = r->rc == KVL_OK ? all.l->n : 0; i-- > 0;) jin_push(r, out, all.l->v[i]);
    return out;
}

static struct jin_val f_unique(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_val all = jin_to_list(r, a.v[0]), out = jin_list(r);
    for (size_t i = 0; r->rc == KVL_OK && i < all.l->n; i++)
        if (!jin_in(r, all.l->v[i], out)) jin_push(r, out, all.l->v[i]);
    return out;
}

/* By insertion: what is equal stays in order.  `first`: of pairs the first counts. */
static struct jin_val sorted(struct kvl_jinja_run *r, struct jin_val all, struct jin_val path,
                             bool first)
{
    for (size_t i = 1; r->rc == KVL_OK && i < all.l->n; i++) {
        struct jin_val v = all.l->v[i];
        size_t k = i;
        for (; k > 0 && r->rc == KVL_OK; k--) {
            struct jin_val x = all.l->v[k - 1], y = v;
            if (path.type != JIN_UNDEFINED) {
                x = attribute(r, x, path);
                y = attribute(r, y, path);
            } else if (first) {
                x = x.l->v[0];
                y = y.l->v[0];
            }
            if (r->rc != KVL_OK || jin_order(r, x, y) <= 0) break;
            all.l->v[k] = all.l->v[k - 1];
        }
        all.l->v[k] = v;
    }
    return all;
}

static struct jin_val f_sort(struct kvl_jinja_run *r, struct jin_args a)
{
    if (a.n > 2 || (a.n == 2 && (!a.name[1] || strcmp(a.name[1], "attribute") != 0)))
        return jin_fail(r, "sort with such arguments is not known here");
    return sorted(r, jin_to_list(r, a.v[0]), jin_arg(&a, 9, "attribute"), false);
}

/* The first of the smallest (largest). */
static struct jin_val extreme(struct kvl_jinja_run *r, struct jin_args a, int sign)
{
    struct jin_val all = jin_to_list(r, a.v[0]), out = { JIN_UNDEFINED, { .name = "min or max" } };
    if (a.n > 1) return jin_fail(r, "min and max with arguments are not known here");
    for (size_t i = 0; r->rc == KVL_OK && i < all.l->n; i++)
        if (i == 0 || sign * jin_order(r, all.l->v[i], out) > 0) out = all.l->v[i];
    return out;
}

static struct jin_val f_min(struct kvl_jinja_run *r, struct jin_args a)
{
    return extreme(r, a, -1);
}

static struct jin_val f_max(struct kvl_jinja_run *r, struct jin_args a)
{
    return extreme(r, a, 1);
}

static struct jin_val f_items(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_args none = { a.v, a.name, 0 };
    if (a.v[0].type == JIN_UNDEFINED) return jin_list(r);
    if (a.v[0].type != JIN_DICT) return jin_fail(r, "Can only get item pairs from a mapping.");
    return jin_call(r, jin_bound(r, a.v[0], "items"), none);
}

static struct jin_val f_dictsort(struct kvl_jinja_run *r, struct jin_args a)
{
    if (a.n > 1) return jin_fail(r, "dictsort with arguments is not known here");
    struct jin_val all = f_items(r, a);
    for (size_t i = 0; r->rc == KVL_OK && i < all.l->n; i++) {
        const struct jin_val key = all.l->v[i].l->v[0];
        for (size_t k = 0; key.type == JIN_STR && k < key.s->len; k++)
            if (key.s->s[k] >= 'A' && key.s->s[k] <= 'Z')
                return jin_fail(r, "dictsort of capital letters is not known here");
    }
    return sorted(r, all, (struct jin_val){ 0 }, true);
}

/* ---- of every item --------------------------------------------------------------------------- */

/* The arguments behind the first n, with `v` before them. */
static struct jin_args shifted(struct kvl_jinja_run *r, const struct jin_args *a, size_t n,
                               struct jin_val v)
{
    struct jin_args out = { jin_get(r, a->n + 1, sizeof *out.v),
                            jin_get(r, a->n + 1, sizeof *out.name), 0 };
    if (r->rc != KVL_OK) return out;
    out.v[out.n++] = v;
    for (size_t i = n; i < a->n; i++) {
        out.v[out.n] = a->v[i];
        out.name[out.n++] = a->name[i];
    }
    return out;
}

static const char *known_name(struct kvl_jinja_run *r, struct jin_val v,
                              bool (*known)(const char *name))
{
    char *name = jin_get(r, v.type == JIN_STR ? v.s->len + 1 : 1, 1);
    if (!name) return NULL;
    if (v.type == JIN_STR) memcpy(name, v.s->s, v.s->len);
    if (known(name)) return name;
    jin_fail(r, "no filter or test \"%.40s\" is known here", name);
    return NULL;
}

/* What is false has no items. */
static struct jin_val items_of(struct kvl_jinja_run *r, struct jin_val v)
{
    return jin_true(v) ? jin_to_list(r, v) : jin_list(r);
}

static struct jin_val f_map(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_val path = jin_arg(&a, 9, "attribute"), other = jin_arg(&a, 9, "default");
    struct jin_val all = items_of(r, a.v[0]), out = jin_list(r);
    bool attr = path.type != JIN_UNDEFINED;
    const char *name = attr ? NULL : known_name(r, jin_arg(&a, 1, NULL), jin_knows_filter);
    for (size_t i = 0; r->rc == KVL_OK && i < all.l->n; i++) {
        struct jin_val v = all.l->v[i];
        v = attr ? attribute(r, v, path) : jin_filter(r, name, shifted(r, &a, 2, v));
        jin_push(r, out, v.type == JIN_UNDEFINED && other.type != JIN_UNDEFINED ? other : v);
    }
    return out;
}

/* Those for which a test of the item, or of its attribute, is `wanted`. */
static struct jin_val selected(struct kvl_jinja_run *r, struct jin_args a, bool attr, bool wanted)
{
    size_t at = attr ? 2 : 1;
    struct jin_val all = items_of(r, a.v[0]), out = jin_list(r);
    const char *name = a.n > at ? known_name(r, a.v[at], jin_knows_test) : NULL;
    for (size_t i = 0; r->rc == KVL_OK && i < all.l->n; i++) {
        struct jin_val v = attr ? attribute(r, all.l->v[i], jin_arg(&a, 1, NULL)) : all.l->v[i];
        bool holds = name ? jin_test(r, name, shifted(r, &a, at + 1, v)) : jin_true(v);
        if (holds == wanted) jin_push(r, out, all.l->v[i]);
    }
    return out;
}

static struct jin_val f_select(struct kvl_jinja_run *r, struct jin_args a)
{
    return selected(r, a, false, true);
}

static struct jin_val f_reject(struct kvl_jinja_run *r, struct jin_args a)
{
    return selected(r, a, false, false);
}

static struct jin_val f_selectattr(struct kvl_jinja_run *r, struct jin_args a)
{
    return selected(r, a, true, true);
}

static struct jin_val f_rejectattr(struct kvl_jinja_run *r, struct jin_args a)
{
    return selected(r, a, true, false);
}

static struct jin_val f_safe(struct kvl_jinja_run *r, struct jin_args a)
{
    (void)r;
    return a.v[0];
}

/* ---- by name --------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    filter_fn fn;
} filters[] = {
    { "trim", f_trim },
    { "tojson", jin_json },
    { "length", f_length },
    { "count", f_length },
    { "upper", f_upper },
    { "lower", f_lower },
    { "title", f_title },
    { "capitalize", f_capitalize },
    { "replace", f_replace },
    { "string", f_string },
    { "indent", f_indent },
    { "int", f_int },
    { "float", f_float },
    { "abs", f_abs },
    { "first", f_first },
    { "last", f_last },
    { "list", f_list },
    { "join", f_join },
    { "default", f_default },
    { "d", f_default },
    { "reverse", f_reverse },
    { "unique", f_unique },
    { "sort", f_sort },
    { "min", f_min },
    { "max", f_max },
    { "items", f_items },
    { "dictsort", f_dictsort },
    { "map", f_map },
    { "select", f_select },
    { "reject", f_reject },
    { "selectattr", f_selectattr },
    { "rejectattr", f_rejectattr },
    { "safe", f_safe },
};

static filter_fn filter_find(const char *name)
{
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++)
        if (strcmp(filters[i].name, name) == 0) return filters[i].fn;
    return NULL;
}

bool jin_knows_filter(const char *name)
{
    return filter_find(name) != NULL;
}

struct jin_val jin_filter(struct kvl_jinja_run *r, const char *name, struct jin_args a)
{
    if (r->rc != KVL_OK) return (struct jin_val){ 0 };
    return filter_find(name)(r, a);
}
