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

/* Begin of the last character. */
static size_t last_begin(const char *s, size_t begin, size_t end)
{
    size_t at = end - 1;
    while (at > begin && end - at < 4 && ((unsigned char)s[at] & 0xc0) == 0x80) at--;
    return kvl_utf8_len(s + at, end - at) == end - at ? at : end - 1;
}

struct jin_val jin_strip(struct kvl_jinja_run *r, struct jin_val text, struct jin_val chars,
                         bool left, bool right)
{
    if (!is_str(r, text, "strip")) return text;
    const struct jin_str *s = text.s;
    size_t begin = 0, end = s->len;
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
        at = last_begin(s->s, begin, end);
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
    if (with.type == JIN_LIST)
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

/* Byte of the first (last) `what` in s from `from` on; -1: there is none. */
static int64_t find(const struct jin_str *s, const struct jin_str *what, size_t from, bool last)
{
    if (what->len > s->len || from > s->len) return -1;
    if (!last) {
        const char *at = memmem(s->s + from, s->len - from, what->s, what->len);
        return at || what->len > 0 ? (at ? at - s->s : -1) : (int64_t)from;
    }
    for (size_t at = s->len - what->len + 1; at-- > from;) {
        if (memcmp(s->s + at, what->s, what->len) == 0) return (int64_t)at;
    }
    return -1;
}

static struct jin_val split_blank(struct kvl_jinja_run *r, const struct jin_str *s, int64_t most)
{
    struct jin_val out = jin_list(r);
    size_t at = kvl_utf8_blanks(s->s, s->len);
    while (at < s->len && r->rc == KVL_OK) {
        size_t end = at;
        while (end < s->len && kvl_utf8_blank(s->s + end, s->len - end) == 0) end++;
        if (most >= 0 && (int64_t)out.l->n == most)
            end = at + kvl_utf8_trimmed(s->s + at, s->len - at);
        jin_push(r, out, jin_part(r, s, at, end));
        at = end + kvl_utf8_blanks(s->s + end, s->len - end);
    }
    return out;
}

static struct jin_val split(struct kvl_jinja_run *r, const struct jin_str *s, struct jin_val by,
                            int64_t most, bool right)
{
    struct jin_val out = jin_list(r);
    size_t at = 0, end = s->len;
    if (by.type == JIN_UNDEFINED || by.type == JIN_NONE) return split_blank(r, s, most);
    if (!is_str(r, by, "split")) return out;
    if (by.s->len == 0) return jin_fail(r, "split by an empty text");
    for (int64_t n = 0, found; r->rc == KVL_OK && (most < 0 || n < most); n++) {
        const struct jin_str part = { s->s, s->mark, end };
        found = right ? find(&part, by.s, 0, true) : find(s, by.s, at, false);
        if (found < 0) break;
        jin_push(r, out,
                 right ? jin_part(r, s, (size_t)found + by.s->len, end)
                       : jin_part(r, s, at, (size_t)found));
        if (right)
            end = (size_t)found;
        else
            at = (size_t)found + by.s->len;
    }
    jin_push(r, out, jin_part(r, s, at, end));
    for (size_t i = 0; r->rc == KVL_OK && right && i < out.l->n / 2; i++) {
        struct jin_val v = out.l->v[i];
        out.l->v[i] = out.l->v[out.l->n - 1 - i];
        out.l->v[out.l->n - 1 - i] = v;
    }
    return out;
}

static struct jin_val lines(struct kvl_jinja_run *r, const struct jin_str *s)
{
    struct jin_val out = jin_list(r);
    for (size_t at = 0; at < s->len && r->rc == KVL_OK;) {
        size_t end = at;
        while (end < s->len && s->s[end] != '\n' && s->s[end] != '\r') end++;
        jin_push(r, out, jin_part(r, s, at, end));
        at = end + (end + 1 < s->len && s->s[end] == '\r' && s->s[end + 1] == '\n') + 1;
    }
    return out;
}

struct jin_val jin_replace(struct kvl_jinja_run *r, struct jin_val text, struct jin_val from,
                           struct jin_val to, int64_t most)
{
    struct jin_out o = { 0 };
    size_t at = 0;
    if (!is_str(r, text, "replace") || !is_str(r, from, "replace") || !is_str(r, to, "replace"))
        return text;
    if (from.s->len == 0) return jin_fail(r, "replace of an empty text");
    for (int64_t n = 0; r->rc == KVL_OK && (most < 0 || n < most); n++) {
        int64_t found = find(text.s, from.s, at, false);
        if (found < 0) break;
        jin_add(r, &o, jin_part(r, text.s, at, (size_t)found).s);
        jin_add(r, &o, to.s);
        at = (size_t)found + from.s->len;
    }
    if (r->rc == KVL_OK) jin_add(r, &o, jin_part(r, text.s, at, text.s->len).s);
    return jin_made(r, &o);
}

/* how: u, l, t(itle), c(apitalize). */
struct jin_val jin_cased(struct kvl_jinja_run *r, struct jin_val text, char how)
{
    bool word = false;
    if (!is_str(r, text, "upper or lower case")) return text;
    char *out = jin_get(r, text.s->len + 1, 1);
    struct jin_str *s = jin_get(r, 1, sizeof *s);
    if (r->rc != KVL_OK) return text;
    for (size_t i = 0; i < text.s->len; i++) {
        int c = (unsigned char)text.s->s[i];
        if (c >= 0x80)
            return jin_fail(r,
                            "upper and lower case of other letters than a to z are not known here");
        bool up = how == 'u' || (how == 't' && !word) || (how == 'c' && i == 0);
        out[i] = (char)(up ? toupper(c) : tolower(c));
        word = isalpha(c);
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

static bool all_are(const struct jin_str *s, bool digits)
{
    bool all = s->len > 0;
    for (size_t i = 0, n; all && i < s->len; i += KVL_MAX(n, (size_t)1)) {
        n = digits ? isdigit((unsigned char)s->s[i]) != 0 : kvl_utf8_blank(s->s + i, s->len - i);
        all = n > 0;
    }
    return all;
}

static int64_t whole(struct jin_val v)
{
    return v.type == JIN_INT ? v.i : -1;
}

/* find, rfind, index and count, which take a text. */
static struct jin_val searched(struct kvl_jinja_run *r, const char *name, const struct jin_str *s,
                               struct jin_val what)
{
    if (!is_str(r, what, name)) return what;
    if (strcmp(name, "count") == 0) {
        int64_t n = 0, at = 0;
        if (what.s->len == 0) return jin_fail(r, "count of an empty text");
        while ((at = find(s, what.s, (size_t)at, false)) >= 0) {
            at += (int64_t)what.s->len;
            n++;
        }
        return jin_int(n);
    }
    int64_t at = find(s, what.s, 0, *name == 'r');
    if (at < 0 && *name == 'i') return jin_fail(r, "index of what is not in the text");
    return jin_int(at < 0 ? -1 : (int64_t)jin_chars(&(struct jin_str){ s->s, NULL, (size_t)at }));
}

struct jin_val jin_str_method(struct kvl_jinja_run *r, const char *name, struct jin_args a)
{
    struct jin_val self = a.v[0], x = jin_arg(&a, 1, NULL), y = jin_arg(&a, 2, NULL);
    const struct jin_str *s = self.s;
    if (strcmp(name, "strip") == 0) return jin_strip(r, self, x, true, true);
    if (strcmp(name, "lstrip") == 0) return jin_strip(r, self, x, true, false);
    if (strcmp(name, "rstrip") == 0) return jin_strip(r, self, x, false, true);
    if (strcmp(name, "split") == 0)
        return split(r, s, jin_arg(&a, 1, "sep"), whole(jin_arg(&a, 2, "maxsplit")), false);
    if (strcmp(name, "rsplit") == 0 && x.type == JIN_STR)
        return split(r, s, x, whole(jin_arg(&a, 2, "maxsplit")), true);
    if (strcmp(name, "splitlines") == 0 && a.n == 1) return lines(r, s);
    if (strcmp(name, "startswith") == 0 && a.n == 2) return has_end(r, s, x, true);
    if (strcmp(name, "endswith") == 0 && a.n == 2) return has_end(r, s, x, false);
    if (strcmp(name, "replace") == 0)
        return jin_replace(r, self, x, y, whole(jin_arg(&a, 3, "count")));
    if (strcmp(name, "join") == 0) return joined(r, s, x);
    if (strcmp(name, "upper") == 0 || strcmp(name, "lower") == 0 || strcmp(name, "title") == 0 ||
        strcmp(name, "capitalize") == 0)
        return jin_cased(r, self, *name);
    if (a.n == 2 && (strcmp(name, "find") == 0 || strcmp(name, "rfind") == 0 ||
                     strcmp(name, "index") == 0 || strcmp(name, "count") == 0))
        return searched(r, name, s, x);
    if (strcmp(name, "isdigit") == 0) return jin_bool(all_are(s, true));
    if (strcmp(name, "isspace") == 0) return jin_bool(all_are(s, false));
    if (strcmp(name, "removeprefix") == 0 && is_str(r, x, name))
        return starts(s, x.s) ? jin_part(r, s, x.s->len, s->len) : self;
    if (strcmp(name, "removesuffix") == 0 && is_str(r, x, name))
        return ends(s, x.s) ? jin_part(r, s, 0, s->len - x.s->len) : self;
    return jin_fail(r, "method %s of a text is not known here", name);
}
