/* Values, and what Python prints of them. */
#include "jinja_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- memory ---------------------------------------------------------------------------------- */

struct jin_block {
    struct jin_block *older;
    max_align_t data[];
};

enum { BLOCK_BYTES = 1 << 16 };

void *jin_arena_get(struct jin_arena *a, size_t bytes)
{
    bytes = (bytes + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    if (bytes > a->most || a->all > a->most - bytes) return NULL;
    if (!a->block || a->cap - a->at < bytes) {
        size_t cap = KVL_MAX(bytes, (size_t)BLOCK_BYTES);
        struct jin_block *b = calloc(1, sizeof *b + cap);
        if (!b) return NULL;
        b->older = a->block;
        a->block = b;
        a->at = 0;
        a->cap = cap;
    }
    void *p = (char *)a->block->data + a->at;
    a->at += bytes;
    a->all += bytes;
    return p;
}

void jin_arena_free(struct jin_arena *a)
{
    for (struct jin_block *b = a->block, *older; b; b = older) {
        older = b->older;
        free(b);
    }
    *a = (struct jin_arena){ 0 };
}

struct jin_val jin_fail(struct kvl_jinja_run *r, const char *fmt, ...)
{
    char text[512];
    va_list list;
    va_start(list, fmt);
    vsnprintf(text, sizeof text, fmt, list);
    va_end(list);
    if (r->rc == KVL_OK) r->rc = kvl_fail(r->err, KVL_EINVAL, "line %d: %s", r->line, text);
    return (struct jin_val){ 0 };
}

void *jin_get(struct kvl_jinja_run *r, size_t n, size_t item)
{
    size_t bytes;
    void *p = kvl_mul_size(n, item, &bytes) == KVL_OK ? jin_arena_get(&r->arena, bytes) : NULL;
    if (!p) jin_fail(r, "more than %zu bytes of memory are needed", r->arena.most);
    return p;
}

/* ---- texts ----------------------------------------------------------------------------------- */

static struct jin_val str_of(struct kvl_jinja_run *r, const char *s, const uint8_t *mark,
                             size_t len)
{
    struct jin_str *x = jin_get(r, 1, sizeof *x);
    if (!x) return (struct jin_val){ 0 };
    *x = (struct jin_str){ s, mark, len };
    return (struct jin_val){ JIN_STR, { .s = x } };
}

struct jin_val jin_text(struct kvl_jinja_run *r, const char *s, size_t len, uint8_t mark)
{
    char *copy = jin_get(r, len + 1, 1);
    uint8_t *marks = mark && len ? jin_get(r, len, 1) : NULL;
    if (r->rc != KVL_OK) return (struct jin_val){ 0 };
    if (len) memcpy(copy, s, len);
    if (marks) memset(marks, mark, len);
    return str_of(r, copy, marks, len);
}

struct jin_val jin_lit(struct kvl_jinja_run *r, const char *s)
{
    return jin_text(r, s, strlen(s), 0);
}

struct jin_val jin_part(struct kvl_jinja_run *r, const struct jin_str *s, size_t begin, size_t end)
{
    if (end < begin) end = begin;
    return str_of(r, s->s + begin, s->mark ? s->mark + begin : NULL, end - begin);
}

void jin_add(struct kvl_jinja_run *r, struct jin_out *o, const struct jin_str *s)
{
    static const uint8_t none[256];
    if (r->rc != KVL_OK || s->len == 0) return;
    if (o->s.len + s->len > r->arena.most) {
        jin_fail(r, "a text of more than %zu bytes", r->arena.most);
        return;
    }
    int rc = kvl_buf_add(&o->s, s->s, s->len);
    for (size_t i = 0; rc == KVL_OK && !s->mark && i < s->len; i += sizeof none)
        rc = kvl_buf_add(&o->mark, none, KVL_MIN(sizeof none, s->len - i));
    if (rc == KVL_OK && s->mark) rc = kvl_buf_add(&o->mark, s->mark, s->len);
    if (rc != KVL_OK) jin_fail(r, "no memory for %zu bytes", s->len);
}

void jin_adds(struct kvl_jinja_run *r, struct jin_out *o, const char *s)
{
    jin_add(r, o, &(struct jin_str){ s, NULL, strlen(s) });
}

struct jin_val jin_made(struct kvl_jinja_run *r, struct jin_out *o)
{
    struct jin_val v = jin_text(r, o->s.data ? o->s.data : "", o->s.len, o->s.len ? 1 : 0);
    if (r->rc == KVL_OK && v.s->mark) memcpy((void *)(uintptr_t)v.s->mark, o->mark.data, v.s->len);
    kvl_buf_free(&o->s);
    kvl_buf_free(&o->mark);
    return v;
}

bool jin_str_is(struct jin_val v, const char *s)
{
    return v.type == JIN_STR && v.s->len == strlen(s) && memcmp(v.s->s, s, v.s->len) == 0;
}

size_t jin_char_at(const struct jin_str *s, size_t i)
{
    size_t at = 0;
    for (; i > 0 && at < s->len; i--)
        at += KVL_MAX(kvl_utf8_len(s->s + at, s->len - at), (size_t)1);
    return at;
}

size_t jin_chars(const struct jin_str *s)
{
    size_t n = 0;
    for (size_t at = 0; at < s->len; n++)
        at += KVL_MAX(kvl_utf8_len(s->s + at, s->len - at), (size_t)1);
    return n;
}

/* ---- lists and dicts ------------------------------------------------------------------------- */

struct jin_val jin_list(struct kvl_jinja_run *r)
{
    struct jin_list *l = jin_get(r, 1, sizeof *l);
    if (!l) return (struct jin_val){ 0 };
    return (struct jin_val){ JIN_LIST, { .l = l } };
}

struct jin_val jin_dict(struct kvl_jinja_run *r)
{
    struct jin_dict *d = jin_get(r, 1, sizeof *d);
    if (!d) return (struct jin_val){ 0 };
    return (struct jin_val){ JIN_DICT, { .d = d } };
}

/* Room for one more of n values. */
static void grow(struct kvl_jinja_run *r, struct jin_val **v, size_t n, size_t cap)
{
    struct jin_val *p = jin_get(r, cap, sizeof *p);
    if (p && n) memcpy(p, *v, n * sizeof *p);
    if (p) *v = p;
}

void jin_push(struct kvl_jinja_run *r, struct jin_val list, struct jin_val v)
{
    if (r->rc != KVL_OK) return;
    struct jin_list *l = list.l;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 8;
        grow(r, &l->v, l->n, cap);
        if (r->rc != KVL_OK) return;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

const struct jin_val *jin_find(struct kvl_jinja_run *r, const struct jin_dict *d,
                               struct jin_val key)
{
    for (size_t i = 0; i < d->n; i++)
        if (jin_equal(r, d->key[i], key)) return &d->v[i];
    return NULL;
}

void jin_put_val(struct kvl_jinja_run *r, struct jin_dict *d, struct jin_val key, struct jin_val v)
{
    if (r->rc != KVL_OK) return;
    struct jin_val *old = (struct jin_val *)(uintptr_t)jin_find(r, d, key);
    if (old) {
        *old = v;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 8;
        grow(r, &d->key, d->n, cap);
        grow(r, &d->v, d->n, cap);
        if (r->rc != KVL_OK) return;
        d->cap = cap;
    }
    d->key[d->n] = key;
    d->v[d->n++] = v;
}

void jin_put(struct kvl_jinja_run *r, struct jin_val dict, const char *key, struct jin_val v)
{
    struct jin_val k = jin_lit(r, key);
    if (r->rc == KVL_OK) jin_put_val(r, dict.d, k, v);
}

/* ---- what holds of them ---------------------------------------------------------------------- */

const char *jin_type_name(struct jin_val v)
{
    static const char *const name[] = { "Undefined", "NoneType", "bool", "int",     "float",
                                        "str",       "list",     "dict", "function" };
    return name[v.type];
}

bool jin_true(struct jin_val v)
{
    switch (v.type) {
    case JIN_UNDEFINED:
    case JIN_NONE: return false;
    case JIN_BOOL: return v.b;
    case JIN_INT: return v.i != 0;
    case JIN_FLOAT: return v.f != 0.0;
    case JIN_STR: return v.s->len > 0;
    case JIN_LIST: return v.l->row == ROW_ONCE || v.l->n > 0;
    case JIN_DICT: return v.d->space || v.d->n > 0;
    default: return true;
    }
}

bool jin_plain(struct jin_val v)
{
    return v.type == JIN_LIST && (v.l->row == ROW_LIST || v.l->row == ROW_TUPLE);
}

bool jin_is_dict(struct jin_val v)
{
    return v.type == JIN_DICT && !v.d->space;
}

struct jin_val jin_row_of(struct jin_val list, enum jin_row row)
{
    if (list.type == JIN_LIST) list.l->row = row;
    return list;
}

bool jin_hashable(struct kvl_jinja_run *r, struct jin_val v)
{
    bool can = v.type != JIN_DICT && (v.type != JIN_LIST || v.l->row == ROW_TUPLE);
    if (!jin_step(r, 1)) return false;
    if (!can) jin_fail(r, "unhashable type: '%s'", jin_type_name(v));
    for (size_t i = 0; can && v.type == JIN_LIST && i < v.l->n; i++)
        can = jin_hashable(r, v.l->v[i]);
    return can;
}

static bool is_number(struct jin_val v)
{
    return v.type == JIN_BOOL || v.type == JIN_INT || v.type == JIN_FLOAT;
}

/* Holds every int and every double. */
static long double exactly(struct jin_val v)
{
    return v.type == JIN_BOOL ? v.b : v.type == JIN_INT ? (long double)v.i : (long double)v.f;
}

static int by_number(struct jin_val a, struct jin_val b)
{
    long double x = exactly(a), y = exactly(b);
    return (x > y) - (x < y);
}

static bool same_dict(struct kvl_jinja_run *r, const struct jin_dict *a, const struct jin_dict *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct jin_val *v = jin_find(r, b, a->key[i]);
        if (!v || !jin_equal(r, a->v[i], *v)) return false;
    }
    return true;
}

bool jin_step(struct kvl_jinja_run *r, uint64_t n)
{
    r->steps += n;
    if (r->rc == KVL_OK && r->steps > JIN_STEPS) jin_fail(r, "more than %d steps", (int)JIN_STEPS);
    return r->rc == KVL_OK;
}

struct jin_val jin_minus(struct kvl_jinja_run *r, int64_t x)
{
    return x == INT64_MIN ? jin_fail(r, "a number beyond 64 bits") : jin_int(-x);
}

static bool equal_values(struct kvl_jinja_run *r, struct jin_val a, struct jin_val b)
{
    if (is_number(a) && is_number(b)) return by_number(a, b) == 0;
    if (a.type != b.type) return false;
    switch (a.type) {
    case JIN_STR: return a.s->len == b.s->len && memcmp(a.s->s, b.s->s, a.s->len) == 0;
    case JIN_LIST:
        if (!jin_plain(a) || !jin_plain(b)) jin_fail(r, "such rows are not compared here");
        if (a.l->n != b.l->n || a.l->row != b.l->row) return false;
        for (size_t i = 0; i < a.l->n; i++)
            if (!jin_equal(r, a.l->v[i], b.l->v[i])) return false;
        return true;
    case JIN_DICT: return a.d == b.d || (!a.d->space && !b.d->space && same_dict(r, a.d, b.d));
    case JIN_CALL: jin_fail(r, "functions are not compared here"); return false;
    default: return true;
    }
}

bool jin_equal(struct kvl_jinja_run *r, struct jin_val a, struct jin_val b)
{
    if (!jin_step(r, 1)) return false;
    if (r->depth >= 4 * JIN_DEPTH) {
        jin_fail(r, "values nested too deeply");
        return false;
    }
    r->depth++;
    bool equal = equal_values(r, a, b);
    r->depth--;
    return equal && r->rc == KVL_OK;
}

int jin_order(struct kvl_jinja_run *r, struct jin_val a, struct jin_val b)
{
    if (!jin_step(r, 1)) return 0;
    if (is_number(a) && is_number(b)) return by_number(a, b);
    if (a.type == JIN_STR && b.type == JIN_STR) {
        int c = memcmp(a.s->s, b.s->s, KVL_MIN(a.s->len, b.s->len));
        return c ? c : (a.s->len > b.s->len) - (a.s->len < b.s->len);
    }
    jin_fail(r, "%s and %s have no order", jin_type_name(a), jin_type_name(b));
    return 0;
}

bool jin_in(struct kvl_jinja_run *r, struct jin_val x, struct jin_val in)
{
    if (in.type == JIN_STR && x.type == JIN_STR)
        return x.s->len == 0 || memmem(in.s->s, in.s->len, x.s->s, x.s->len);
    if (jin_is_dict(in)) return jin_hashable(r, x) && jin_find(r, in.d, x);
    bool row = in.type == JIN_LIST && in.l->row != ROW_ONCE;
    if (row && in.l->row == ROW_VIEW && !jin_hashable(r, x)) return false;
    for (size_t i = 0; row && i < in.l->n; i++)
        if (jin_equal(r, in.l->v[i], x)) return true;
    if (!row && in.type != JIN_UNDEFINED)
        jin_fail(r, "%s in %s", jin_type_name(x), jin_type_name(in));
    return false;
}

int64_t jin_length(struct kvl_jinja_run *r, struct jin_val v)
{
    if (v.type == JIN_UNDEFINED) return 0;
    if (v.type == JIN_STR) return (int64_t)jin_chars(v.s);
    if (v.type == JIN_LIST && v.l->row != ROW_ONCE) return (int64_t)v.l->n;
    if (jin_is_dict(v)) return (int64_t)v.d->n;
    jin_fail(r, "%s has no length", jin_type_name(v));
    return 0;
}

struct jin_val jin_to_list(struct kvl_jinja_run *r, struct jin_val v)
{
    struct jin_val out = jin_list(r);
    if (v.type == JIN_LIST && v.l->used) return jin_fail(r, "a row is gone through a second time");
    if (v.type == JIN_LIST) {
        v.l->used = v.l->row == ROW_ONCE;
        for (size_t i = 0; i < v.l->n && r->rc == KVL_OK; i++) jin_push(r, out, v.l->v[i]);
    } else if (jin_is_dict(v))
        for (size_t i = 0; i < v.d->n && r->rc == KVL_OK; i++) jin_push(r, out, v.d->key[i]);
    else if (v.type == JIN_STR)
        for (size_t at = 0, n; at < v.s->len && r->rc == KVL_OK; at += n) {
            n = KVL_MAX(kvl_utf8_len(v.s->s + at, v.s->len - at), (size_t)1);
            jin_push(r, out, jin_part(r, v.s, at, at + n));
        }
    else if (v.type != JIN_UNDEFINED)
        jin_fail(r, "'%s' object is not iterable", jin_type_name(v));
    return out;
}

/* ---- as text --------------------------------------------------------------------------------- */

/* As Python: the fewest digits that tell it, with an exponent below 1e-4 and from 1e16 on. */
static void float_text(double f, char out[40])
{
    int digits = 0;
    for (; digits < 17; digits++) {
        snprintf(out, 40, "%.*e", digits, f);
        if (strtod(out, NULL) == f) break;
    }
    const char *power = strchr(out, 'e');
    int e = power ? atoi(power + 1) : 0;
    if (power && e >= -4 && e < 16) snprintf(out, 40, "%.*f", KVL_MAX(digits - e, 1), f);
}

static void repr_str(struct kvl_jinja_run *r, const struct jin_str *s, struct jin_out *o)
{
    bool twice = memchr(s->s, '\'', s->len) && !memchr(s->s, '"', s->len);
    const char *quote = twice ? "\"" : "'";
    jin_adds(r, o, quote);
    for (size_t i = 0; i < s->len; i++) {
        unsigned char c = (unsigned char)s->s[i];
        char code[8] = { '\\', (char)c };
        if (c == '\n' || c == '\r' || c == '\t')
            code[1] = c == '\n' ? 'n' : c == '\r' ? 'r' : 't';
        else if (c >= 0x80)
            jin_fail(r, "a list or dict with other letters than ASCII, as text, is not known here");
        else if (c < 0x20 || c == 0x7f)
            snprintf(code, sizeof code, "\\x%02x", c);
        else if (c != '\\' && c != (unsigned char)*quote) {
            code[0] = (char)c;
            code[1] = '\0';
        }
        jin_add(r, o, &(struct jin_str){ code, NULL, strlen(code) });
        for (size_t k = 0; r->rc == KVL_OK && s->mark && k < strlen(code); k++)
            o->mark.data[o->mark.len - 1 - k] = (char)s->mark[i];
    }
    jin_adds(r, o, quote);
}

static void repr_items(struct kvl_jinja_run *r, struct jin_val v, struct jin_out *o)
{
    size_t n = v.type == JIN_LIST ? v.l->n : v.d->n;
    const char *open = v.type == JIN_DICT ? "{" : v.l->row == ROW_TUPLE ? "(" : "[";
    jin_adds(r, o, open);
    for (size_t i = 0; i < n && r->rc == KVL_OK; i++) {
        if (i) jin_adds(r, o, ", ");
        if (v.type == JIN_DICT) {
            jin_repr(r, v.d->key[i], o);
            jin_adds(r, o, ": ");
        }
        jin_repr(r, v.type == JIN_LIST ? v.l->v[i] : v.d->v[i], o);
    }
    if (*open == '(' && n == 1) jin_adds(r, o, ",");
    jin_adds(r, o, *open == '(' ? ")" : *open == '[' ? "]" : "}");
}

void jin_repr(struct kvl_jinja_run *r, struct jin_val v, struct jin_out *o)
{
    if (++r->depth > JIN_DEPTH) jin_fail(r, "values nested deeper than %d", JIN_DEPTH);
    if (r->rc == KVL_OK) {
        if (jin_plain(v) || jin_is_dict(v))
            repr_items(r, v, o);
        else if (v.type == JIN_STR)
            repr_str(r, v.s, o);
        else if (v.type == JIN_UNDEFINED)
            jin_adds(r, o, "Undefined");
        else
            jin_add(r, o, jin_to_str(r, v).s);
    }
    r->depth--;
}

struct jin_val jin_to_str(struct kvl_jinja_run *r, struct jin_val v)
{
    char text[40] = "";
    struct jin_out o = { 0 };
    static const struct jin_str empty = { "", NULL, 0 };
    if (v.type == JIN_STR) return v;
    if (v.type == JIN_NONE) strcpy(text, "None");
    if (v.type == JIN_BOOL) strcpy(text, v.b ? "True" : "False");
    if (v.type == JIN_INT) snprintf(text, sizeof text, "%" PRId64, v.i);
    if (v.type == JIN_FLOAT) float_text(v.f, text);
    if (v.type == JIN_CALL || (v.type == JIN_LIST && !jin_plain(v)) ||
        (v.type == JIN_DICT && v.d->space))
        jin_fail(r, "a function, namespace or such a row as text");
    if (v.type == JIN_LIST || v.type == JIN_DICT) {
        jin_repr(r, v, &o);
        v = jin_made(r, &o);
    } else {
        v = jin_lit(r, text);
    }
    return r->rc == KVL_OK ? v : (struct jin_val){ JIN_STR, { .s = &empty } };
}
