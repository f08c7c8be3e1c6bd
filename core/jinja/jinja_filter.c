/* Filters. */
#include "jinja_impl.h"

#include <math.h>

typedef struct jin_val (*filter_fn)(struct kvl_jinja_run *r, struct jin_args a);

/* ---- of texts -------------------------------------------------------------------------------- */

static struct jin_val f_trim(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_strip(r, jin_to_str(r, a.v[0]), a.v[1], true, true);
}

static struct jin_val f_upper(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_cased(r, jin_to_str(r, a.v[0]), 'u');
}

static struct jin_val f_lower(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_cased(r, jin_to_str(r, a.v[0]), 'l');
}

static struct jin_val f_capitalize(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_cased(r, jin_to_str(r, a.v[0]), 'c');
}

static struct jin_val f_replace(struct kvl_jinja_run *r, struct jin_args a)
{
    if (a.n > 3 && a.v[3].type != JIN_INT) return jin_fail(r, "replace by such a count");
    return jin_replace(r, jin_to_str(r, a.v[0]), jin_to_str(r, a.v[1]), jin_to_str(r, a.v[2]),
                       a.n > 3 ? a.v[3].i : -1);
}

static struct jin_val f_string(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_to_str(r, a.v[0]);
}

/* Whether Python ends a line at s, but for \n. */
static bool other_line_end(const char *s, size_t len)
{
    size_t n = kvl_utf8_len(s, len);
    uint32_t c = n ? kvl_utf8_value(s, n) : 0;
    return (c >= 0x0b && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

/* Spaces before every line but the first and the empty ones. */
static struct jin_val f_indent(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_val text = a.v[0];
    bool first = jin_true(a.v[2]);
    int64_t n = a.v[1].type == JIN_INT ? a.v[1].i : 4;
    struct jin_out o = { 0 };
    if (text.type != JIN_STR) return jin_fail(r, "indent of %s", jin_type_name(text));
    if (a.v[1].type != JIN_INT && a.v[1].type != JIN_UNDEFINED)
        return jin_fail(r, "indent by %s is not known here", jin_type_name(a.v[1]));
    for (size_t i = 0; i < text.s->len; i++)
        if (other_line_end(text.s->s + i, text.s->len - i))
            return jin_fail(r, "indent of lines that end with other than \\n is not known here");
    for (size_t at = 0; at <= text.s->len && r->rc == KVL_OK;) {
        const char *s = text.s->s + at, *end = memchr(s, '\n', text.s->len - at);
        size_t len = end ? (size_t)(end - s) : text.s->len - at;
        for (int64_t i = 0; (at ? len > 0 : first) && i < n && r->rc == KVL_OK; i++)
            jin_adds(r, &o, " ");
        if (r->rc == KVL_OK) jin_add(r, &o, jin_part(r, text.s, at, at + len + (end != NULL)).s);
        at += len + 1;
    }
    return jin_made(r, &o);
}

/* ---- of numbers ------------------------------------------------------------------------------ */

/* Of texts: digits alone; and what cannot be a number of any kind. */
static struct jin_val int_of_text(struct kvl_jinja_run *r, const struct jin_str *s,
                                  struct jin_val other)
{
    enum { MOST = 18 };
    bool sign = s->len > 0 && (s->s[0] == '-' || s->s[0] == '+'), number = false;
    int64_t v = 0;
    size_t n = sign;
    for (; n < s->len && n < MOST && s->s[n] >= '0' && s->s[n] <= '9'; n++)
        v = v * 10 + (s->s[n] - '0');
    if (n == s->len && n > (size_t)sign) return jin_int(*s->s == '-' ? -v : v);
    for (size_t i = 0; i < s->len; i++) /* of 3.7, 1e3, 1_0, other digits, inf, nan */
        number |= (s->s[i] >= '0' && s->s[i] <= '9') || (s->s[i] | 32) == 'n' ||
                  (unsigned char)s->s[i] >= 0x80;
    return number ? jin_fail(r, "int of such a text is not known here") : other;
}

static struct jin_val f_int(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_val v = a.v[0], other = a.n > 1 ? a.v[1] : jin_int(0);
    switch (v.type) {
    case JIN_INT: return v;
    case JIN_BOOL: return jin_int(v.b);
    case JIN_STR: return int_of_text(r, v.s, other);
    case JIN_FLOAT:
        if (fabs(v.f) < 9e18) return jin_int((int64_t)v.f);
        return jin_fail(r, "a number beyond 64 bits");
    case JIN_UNDEFINED: return jin_fail(r, "'%s' is undefined", v.name ? v.name : "a value");
    default: return other;
    }
}

/* ---- of rows --------------------------------------------------------------------------------- */

static struct jin_val f_length(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_int(jin_length(r, a.v[0]));
}

static struct jin_val at_end(struct kvl_jinja_run *r, struct jin_val v, bool last)
{
    if (last && v.type == JIN_LIST && v.l->row == ROW_ONCE)
        return jin_fail(r, "the last of what is gone through once");
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

/* a.b.c; `other`, where it is given, for what is not there. */
static struct jin_val attribute(struct kvl_jinja_run *r, struct jin_val v, struct jin_val path,
                                struct jin_val other)
{
    if (path.type != JIN_STR) return jin_fail(r, "an attribute of such a name is not known here");
    for (size_t i = 0; i < path.s->len; i++)
        if ((path.s->s[i] >= '0' && path.s->s[i] <= '9') || path.s->s[i] == ',' ||
            (path.s->s[i] == '.' && other.type != JIN_UNDEFINED))
            return jin_fail(r, "an attribute of such a name is not known here");
    for (size_t at = 0; at <= path.s->len && r->rc == KVL_OK;) {
        const char *s = path.s->s + at, *dot = memchr(s, '.', path.s->len - at);
        size_t len = dot ? (size_t)(dot - s) : path.s->len - at;
        v = jin_item(r, v, jin_part(r, path.s, at, at + len));
        at += len + 1;
    }
    return v.type == JIN_UNDEFINED ? other : v;
}

static struct jin_val f_join(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_val by = jin_to_str(r, a.v[1]), all = jin_to_list(r, a.v[0]);
    struct jin_out o = { 0 };
    for (size_t i = 0; r->rc == KVL_OK && i < all.l->n; i++) {
        struct jin_val v = all.l->v[i];
        if (a.n > 2) v = attribute(r, v, a.v[2], (struct jin_val){ 0 });
        if (i) jin_add(r, &o, by.s);
        jin_add(r, &o, jin_to_str(r, v).s);
    }
    return jin_made(r, &o);
}

static struct jin_val f_default(struct kvl_jinja_run *r, struct jin_args a)
{
    bool empty = jin_true(a.v[2]) && !jin_true(a.v[0]);
    if (a.v[0].type != JIN_UNDEFINED && !empty) return a.v[0];
    return a.n > 1 ? a.v[1] : jin_lit(r, "");
}

/* What Jinja compares: texts without capitals. */
static struct jin_val compared(struct kvl_jinja_run *r, struct jin_val v)
{
    return v.type == JIN_STR ? jin_cased(r, v, 'l') : v;
}

static struct jin_val f_unique(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_val all = jin_to_list(r, a.v[0]), out = jin_list(r), seen = jin_list(r);
    for (size_t i = 0; r->rc == KVL_OK && i < all.l->n; i++) {
        struct jin_val key = compared(r, all.l->v[i]);
        if (!jin_hashable(r, key) || jin_in(r, key, seen)) continue;
        jin_push(r, seen, key);
        jin_push(r, out, all.l->v[i]);
    }
    return jin_row_of(out, ROW_ONCE);
}

/* By insertion: what is equal stays in order. */
static struct jin_val sorted(struct kvl_jinja_run *r, struct jin_val all, struct jin_val path)
{
    struct jin_val key = jin_list(r);
    for (size_t i = 0; r->rc == KVL_OK && i < all.l->n; i++) {
        struct jin_val v = all.l->v[i];
        if (path.type == JIN_INT)
            v = v.l->v[path.i];
        else if (path.type != JIN_UNDEFINED)
            v = attribute(r, v, path, (struct jin_val){ 0 });
        jin_push(r, key, compared(r, v));
    }
    for (size_t i = 1; r->rc == KVL_OK && i < all.l->n; i++) {
        struct jin_val v = all.l->v[i], by = key.l->v[i];
        size_t k = i;
        for (; k > 0 && jin_order(r, key.l->v[k - 1], by) > 0; k--) {
            all.l->v[k] = all.l->v[k - 1];
            key.l->v[k] = key.l->v[k - 1];
        }
        all.l->v[k] = v;
        key.l->v[k] = by;
    }
    return all;
}

static struct jin_val f_sort(struct kvl_jinja_run *r, struct jin_args a)
{
    return sorted(r, jin_to_list(r, a.v[0]), a.v[3]);
}

/* The first of the smallest (largest). */
static struct jin_val extreme(struct kvl_jinja_run *r, struct jin_args a, int sign)
{
    struct jin_val all = jin_to_list(r, a.v[0]), out = { JIN_UNDEFINED, { .name = "min or max" } };
    struct jin_val best = out;
    for (size_t i = 0; r->rc == KVL_OK && i < all.l->n; i++) {
        struct jin_val key = compared(r, all.l->v[i]);
        if (i > 0 && sign * jin_order(r, key, best) <= 0) continue;
        best = key;
        out = all.l->v[i];
    }
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
    if (a.v[0].type == JIN_UNDEFINED) return jin_row_of(jin_list(r), ROW_ONCE);
    if (!jin_is_dict(a.v[0])) return jin_fail(r, "Can only get item pairs from a mapping.");
    struct jin_val all = jin_call(r, jin_bound(r, a.v[0], "items"), (struct jin_args){ 0 });
    return r->rc == KVL_OK ? jin_row_of(all, ROW_ONCE) : all;
}

static struct jin_val f_dictsort(struct kvl_jinja_run *r, struct jin_args a)
{
    if (!jin_is_dict(a.v[0])) return jin_fail(r, "dictsort of %s", jin_type_name(a.v[0]));
    return sorted(r, jin_to_list(r, f_items(r, a)), jin_int(0));
}

/* ---- of every item --------------------------------------------------------------------------- */

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
    struct jin_val all = items_of(r, a.v[0]), out = jin_list(r), none = { 0 };
    if (a.n < 2) return jin_fail(r, "map without a filter or an attribute");
    bool attr = a.name[1] != NULL;
    struct jin_args by = attr ? jin_ordered(r, "map", "attribute ?default", a) : a;
    const char *name = attr ? NULL : known_name(r, a.v[1], jin_knows_filter);
    for (size_t i = 0; r->rc == KVL_OK && i < all.l->n; i++) {
        struct jin_val v = all.l->v[i];
        v = attr ? attribute(r, v, by.v[1], by.n > 2 ? by.v[2] : none)
                 : jin_filter(r, name, jin_before(r, v, &a, 2));
        jin_push(r, out, v);
    }
    return jin_row_of(out, ROW_ONCE);
}

/* Those for which a test of the item, or of its attribute, is `wanted`. */
static struct jin_val selected(struct kvl_jinja_run *r, struct jin_args a, bool attr, bool wanted)
{
    size_t at = attr ? 2 : 1;
    struct jin_val all = items_of(r, a.v[0]), out = jin_list(r), none = { 0 };
    for (size_t i = 1; i < a.n; i++)
        if (a.name[i]) return jin_fail(r, "a test with %s= is not known here", a.name[i]);
    if (a.n < at) return jin_fail(r, "a choice by an attribute without its name");
    const char *name = a.n > at ? known_name(r, a.v[at], jin_knows_test) : NULL;
    for (size_t i = 0; r->rc == KVL_OK && i < all.l->n; i++) {
        struct jin_val v = all.l->v[i], x = attr ? attribute(r, v, a.v[1], none) : v;
        bool holds = name ? jin_test(r, name, jin_before(r, x, &a, at + 1)) : jin_true(x);
        if (holds == wanted) jin_push(r, out, v);
    }
    return jin_row_of(out, ROW_ONCE);
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

/* Jinja escapes what is added to such a text; where it is printed at once, the parser takes the filter off. */
static struct jin_val f_safe(struct kvl_jinja_run *r, struct jin_args a)
{
    (void)a;
    return jin_fail(r, "safe is known here where it is printed alone");
}

/* ---- by name --------------------------------------------------------------------------------- */

/* With the arguments of each; NULL: they are its own affair. */
static const struct filter {
    const char *name, *args;
    filter_fn fn;
} filters[] = {
    { "trim", "?chars", f_trim },
    { "tojson", "?ensure_ascii ?indent ?separators ?sort_keys", jin_json },
    { "length", "", f_length },
    { "count", "", f_length },
    { "upper", "", f_upper },
    { "lower", "", f_lower },
    { "capitalize", "", f_capitalize },
    { "replace", "old new ?count", f_replace },
    { "string", "", f_string },
    { "indent", "?width ?first !blank", f_indent },
    { "int", "?default !base", f_int },
    { "first", "", f_first },
    { "last", "", f_last },
    { "list", "", f_list },
    { "join", "?d ?attribute", f_join },
    { "default", "?default_value ?boolean", f_default },
    { "d", "?default_value ?boolean", f_default },
    { "unique", "!case_sensitive !attribute", f_unique },
    { "sort", "!reverse !case_sensitive ?attribute", f_sort },
    { "min", "!case_sensitive !attribute", f_min },
    { "max", "!case_sensitive !attribute", f_max },
    { "items", "", f_items },
    { "dictsort", "!case_sensitive !by !reverse", f_dictsort },
    { "map", NULL, f_map },
    { "select", NULL, f_select },
    { "reject", NULL, f_reject },
    { "selectattr", NULL, f_selectattr },
    { "rejectattr", NULL, f_rejectattr },
    { "safe", "", f_safe },
};

static const struct filter *filter_find(const char *name)
{
    for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++)
        if (strcmp(filters[i].name, name) == 0) return &filters[i];
    return NULL;
}

bool jin_knows_filter(const char *name)
{
    return filter_find(name) != NULL;
}

struct jin_val jin_filter(struct kvl_jinja_run *r, const char *name, struct jin_args a)
{
    const struct filter *f = filter_find(name);
    if (r->rc == KVL_OK && f->args) a = jin_ordered(r, name, f->args, a);
    return r->rc == KVL_OK ? f->fn(r, a) : (struct jin_val){ 0 };
}
