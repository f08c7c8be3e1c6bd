/* Methods of texts, as Python has them. */
#include "jinja_impl.h"

#include <ctype.h>

static bool is_str(struct kvl_jinja_run *r, struct jin_val v, const char *what)
{
    if (r->rc == KVL_OK && v.type != JIN_STR) jin_fail(r, "%s of %s", what, jin_type_name(v));
    return r->rc == KVL_OK;
}

/* ---- ends ------------------------------------------------------------------------------------ */

static bool one_of(const struct jin_str *set, const char *s, size_t len)
{
    for (size_t at = 0, n; at < set->len; at += n) {
        n = KVL_MAX(kvl_utf8_len(set->s + at, set->len - at), (size_t)1);
        if (n == len && memcmp(set->s + at, s, n) == 0) return true;
    }
    return false;
}

struct jin_val jin_strip(struct kvl_jinja_run *r, struct jin_val text, struct jin_val chars,
                         bool left, bool right)
{
    if (!is_str(r, text, "strip")) return text;
    const struct jin_str *s = text.s;
    size_t begin = 0, end = s->len;
    if (chars.type != JIN_UNDEFINED && chars.type != JIN_NONE && !is_str(r, chars, "strip"))
        return text;
    if (chars.type != JIN_STR) {
        if (left) begin = kvl_utf8_blanks(s->s, end);
        if (right) end = begin + kvl_utf8_trimmed(s->s + begin, end - begin);
        return jin_part(r, s, begin, end);
    }
    for (size_t n; left && begin < end; begin += n) {
        n = KVL_MAX(kvl_utf8_len(s->s + begin, end - begin), (size_t)1);
        if (!one_of(chars.s, s->s + begin, n)) break;
    }
    for (size_t at; right && end > begin; end = at) {
        at = end - kvl_utf8_last(s->s + begin, end - begin);
        if (!one_of(chars.s, s->s + at, end - at)) break;
    }
    return jin_part(r, s, begin, end);
}

static bool starts(const struct jin_str *s, const struct jin_str *with)
{
    return s->len >= with->len && memcmp(s->s, with->s, with->len) == 0;
}

static bool ends(const struct jin_str *s, const struct jin_str *with)
{
    return s->len >= with->len && memcmp(s->s + s->len - with->len, with->s, with->len) == 0;
}

/* Of one text or a tuple of them. */
static struct jin_val has_end(struct kvl_jinja_run *r, const struct jin_str *s, struct jin_val with,
                              bool start)
{
    struct jin_val one = jin_list(r);
    if (with.type == JIN_LIST && with.l->row == ROW_TUPLE)
        one = with;
    else
        jin_push(r, one, with);
    for (size_t i = 0; r->rc == KVL_OK && i < one.l->n; i++) {
        if (!is_str(r, one.l->v[i], "a beginning or end")) break;
        if (start ? starts(s, one.l->v[i].s) : ends(s, one.l->v[i].s)) return jin_bool(true);
    }
    return jin_bool(false);
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Byte of the first `what`, which is not empty, in s from `from` on; -1: there is none. */
static int64_t find(const struct jin_str *s, const struct jin_str *what, size_t from)
{
    const char *at = memmem(s->s + from, s->len - from, what->s, what->len);
    return at ? at - s->s : -1;
}

static struct jin_val split_blank(struct kvl_jinja_run *r, const struct jin_str *s, int64_t most)
{
    struct jin_val out = jin_list(r);
    size_t at = kvl_utf8_blanks(s->s, s->len);
    while (at < s->len && r->rc == KVL_OK) {
        size_t end = at;
        while (end < s->len && kvl_utf8_blank(s->s + end, s->len - end) == 0) end++;
        if (most >= 0 && (int64_t)out.l->n == most) end = s->len;
        jin_push(r, out, jin_part(r, s, at, end));
        at = end + kvl_utf8_blanks(s->s + end, s->len - end);
    }
    return out;
}

static struct jin_val split(struct kvl_jinja_run *r, const struct jin_str *s, struct jin_val by,
                            int64_t most)
{
    struct jin_val out = jin_list(r);
    size_t at = 0;
    if (by.type == JIN_UNDEFINED || by.type == JIN_NONE) return split_blank(r, s, most);
    if (!is_str(r, by, "split")) return out;
    if (by.s->len == 0) return jin_fail(r, "split by an empty text");
    for (int64_t n = 0, found; r->rc == KVL_OK && (most < 0 || n < most); n++) {
        found = find(s, by.s, at);
        if (found < 0) break;
        jin_push(r, out, jin_part(r, s, at, (size_t)found));
        at = (size_t)found + by.s->len;
    }
    jin_push(r, out, jin_part(r, s, at, s->len));
    return out;
}

struct jin_val jin_replace(struct kvl_jinja_run *r, struct jin_val text, struct jin_val from,
                           struct jin_val to, int64_t most)
{
    struct jin_out o = { 0 };
    size_t at = 0;
    if (!is_str(r, text, "replace") || !is_str(r, from, "replace") || !is_str(r, to, "replace"))
        return text;
    if (from.s->len == 0) return jin_fail(r, "replace of an empty text is not known here");
    for (int64_t n = 0; r->rc == KVL_OK && (most < 0 || n < most); n++) {
        int64_t found = find(text.s, from.s, at);
        if (found < 0) break;
        jin_add(r, &o, jin_part(r, text.s, at, (size_t)found).s);
        jin_add(r, &o, to.s);
        at = (size_t)found + from.s->len;
    }
    if (r->rc == KVL_OK) jin_add(r, &o, jin_part(r, text.s, at, text.s->len).s);
    return jin_made(r, &o);
}

/* how: u, l, c(apitalize). */
struct jin_val jin_cased(struct kvl_jinja_run *r, struct jin_val text, char how)
{
    if (!is_str(r, text, "upper or lower case")) return text;
    char *out = jin_get(r, text.s->len + 1, 1);
    struct jin_str *s = jin_get(r, 1, sizeof *s);
    if (r->rc != KVL_OK) return text;
    for (size_t i = 0; i < text.s->len; i++) {
        int c = (unsigned char)text.s->s[i];
        if (c >= 0x80)
            return jin_fail(r,
                            "upper and lower case of other letters than a to z are not known here");
        bool up = how == 'u' || (how == 'c' && i == 0);
        out[i] = (char)(up ? toupper(c) : tolower(c));
    }
    *s = (struct jin_str){ out, text.s->mark, text.s->len };
    return (struct jin_val){ JIN_STR, { .s = s } };
}

static struct jin_val joined(struct kvl_jinja_run *r, const struct jin_str *s, struct jin_val with)
{
    struct jin_out o = { 0 };
    struct jin_val all = jin_to_list(r, with);
    for (size_t i = 0; r->rc == KVL_OK && i < all.l->n; i++) {
        if (i) jin_add(r, &o, s);
        if (is_str(r, all.l->v[i], "join")) jin_add(r, &o, all.l->v[i].s);
    }
    return jin_made(r, &o);
}

/* A count that may be left out: -1. */
static int64_t count_of(struct kvl_jinja_run *r, const struct jin_args *a, size_t i)
{
    if (a->n <= i) return -1;
    if (a->v[i].type != JIN_INT) jin_fail(r, "a count of %s", jin_type_name(a->v[i]));
    return a->v[i].i;
}

/* ---- by name --------------------------------------------------------------------------------- */

static struct jin_val m_strip(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_strip(r, a.v[0], a.v[1], true, true);
}

static struct jin_val m_lstrip(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_strip(r, a.v[0], a.v[1], true, false);
}

static struct jin_val m_rstrip(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_strip(r, a.v[0], a.v[1], false, true);
}

static struct jin_val m_split(struct kvl_jinja_run *r, struct jin_args a)
{
    return split(r, a.v[0].s, a.v[1], count_of(r, &a, 2));
}

static struct jin_val m_startswith(struct kvl_jinja_run *r, struct jin_args a)
{
    return has_end(r, a.v[0].s, a.v[1], true);
}

static struct jin_val m_endswith(struct kvl_jinja_run *r, struct jin_args a)
{
    return has_end(r, a.v[0].s, a.v[1], false);
}

static struct jin_val m_replace(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_replace(r, a.v[0], a.v[1], a.v[2], count_of(r, &a, 3));
}

static struct jin_val m_join(struct kvl_jinja_run *r, struct jin_args a)
{
    return joined(r, a.v[0].s, a.v[1]);
}

static struct jin_val m_upper(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_cased(r, a.v[0], 'u');
}

static struct jin_val m_lower(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_cased(r, a.v[0], 'l');
}

static struct jin_val m_capitalize(struct kvl_jinja_run *r, struct jin_args a)
{
    return jin_cased(r, a.v[0], 'c');
}

static const struct {
    const char *name, *args;
    struct jin_val (*fn)(struct kvl_jinja_run *r, struct jin_args a);
} methods[] = {
    { "strip", "?1", m_strip },
    { "lstrip", "?1", m_lstrip },
    { "rstrip", "?1", m_rstrip },
    { "split", "?sep ?maxsplit", m_split },
    { "startswith", "1", m_startswith },
    { "endswith", "1", m_endswith },
    { "replace", "1 2 ?3", m_replace },
    { "join", "1", m_join },
    { "upper", "", m_upper },
    { "lower", "", m_lower },
    { "capitalize", "", m_capitalize },
};

struct jin_val jin_str_method(struct kvl_jinja_run *r, const char *name, struct jin_args a)
{
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
        if (strcmp(name, methods[i].name) == 0) {
            a = jin_ordered(r, name, methods[i].args, a);
            return r->rc == KVL_OK ? methods[i].fn(r, a) : a.v[0];
        }
    return jin_fail(r, "method %s of a text is not known here", name);
}
