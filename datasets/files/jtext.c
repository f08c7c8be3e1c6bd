/* JSON as it lies in a file. */
#include "jtext.h"

#include "words.h"

#include <ctype.h>
#include <string.h>

enum { JTEXT_DEPTH = 200 };

/* ---- skipping ---------------------------------------------------------------------------------- */

static const char *jtext_blank(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) at++;
    return at;
}

/* Behind the quote that ends the string that begins at `at`; NULL: none does.  Each byte is looked at twice at
 * most, however many backslashes there are. */
static const char *jtext_string(const char *at, const char *end)
{
    const char *quote = NULL;
    for (at++; at < end;) {
        if (!quote || quote < at) quote = memchr(at, '"', (size_t)(end - at));
        if (!quote) return NULL;
        const char *back = memchr(at, '\\', (size_t)(quote - at));
        if (!back) return quote + 1;
        at = back + 2; /* what follows the backslash is not looked at */
    }
    return NULL;
}

static const char *jtext_word(const char *at, const char *end)
{
    while (at < end && (isalnum((unsigned char)*at) || strchr("+-.", *at)) && *at) at++;
    return at;
}

static bool jtext_scalar(const char *at, const char *end)
{
    static const char *const names[] = { "true", "false", "null", "NaN", "Infinity", "-Infinity" };
    size_t n = (size_t)(end - at);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n && memcmp(at, names[i], n) == 0) return true;
    if (at < end && *at == '-') at++;
    return at < end && isdigit((unsigned char)*at);
}

/* Behind a value; NULL with *wrong where it is none.  Objects and arrays are not called for each other, so
 * that a file cannot exhaust the stack. */
static const char *jtext_skip(const char *at, const char *end, const char **wrong)
{
    char open[JTEXT_DEPTH]; /* what closes each level */
    int32_t depth = 0;
    bool key = false; /* a name and a colon come next */
    for (;;) {
        at = jtext_blank(at, end);
        *wrong = at;
        if (at == end) return NULL;
        if (*at == '{' || *at == '[') {
            if (key || depth == JTEXT_DEPTH) return NULL;
            open[depth++] = *at == '{' ? '}' : ']';
            key = *at++ == '{';
            at = jtext_blank(at, end);
            if (at == end || *at != open[depth - 1]) continue;
        } else {
            const char *behind = *at == '"' ? jtext_string(at, end) : jtext_word(at, end);
            if (!behind || behind == at || (key && *at != '"')) return NULL;
            if (*at != '"' && !jtext_scalar(at, behind)) return NULL;
            at = behind;
            if (key) {
                at = jtext_blank(at, end);
                *wrong = at;
                if (at == end || *at++ != ':') return NULL;
                key = false;
                continue;
            }
        }
        /* behind a value, or before what closes an empty one */
        while (depth > 0) {
            at = jtext_blank(at, end);
            *wrong = at;
            if (at == end) return NULL;
            if (*at != open[depth - 1]) break;
            at++;
            depth--;
        }
        if (depth == 0) return at;
        if (*at++ != ',') return NULL;
        key = open[depth - 1] == '}';
    }
}

int kvl_jtext_value(const char *at, const char *end, struct kvl_jtext *out, const char **wrong)
{
    const char *first = jtext_blank(at, end), *none;
    const char *behind = jtext_skip(first, end, wrong ? wrong : &none);
    if (!behind) return KVL_EINVAL;
    *out = (struct kvl_jtext){ first, (size_t)(behind - first) };
    return KVL_OK;
}

size_t kvl_jtext_not_utf8(struct kvl_jtext v)
{
    size_t bytes;
    for (size_t i = 0; i < v.n; i += bytes) {
        bytes = 1;
        if ((unsigned char)v.s[i] < 0x80) continue;
        if (kvl_letter_at(v.s + i, v.n - i, &bytes) > 0x10ffff) return i;
    }
    return v.n;
}

/* ---- parts ------------------------------------------------------------------------------------- */

bool kvl_jtext_is_string(struct kvl_jtext v)
{
    return v.n > 0 && *v.s == '"';
}

bool kvl_jtext_is_array(struct kvl_jtext v)
{
    return v.n > 0 && *v.s == '[';
}

bool kvl_jtext_is_object(struct kvl_jtext v)
{
    return v.n > 0 && *v.s == '{';
}

bool kvl_jtext_is_null(struct kvl_jtext v)
{
    return v.n == 0 || (v.n == 4 && memcmp(v.s, "null", 4) == 0);
}

/* The value at or behind `at`, and where the one behind its comma begins. */
static struct kvl_jtext jtext_next(const char **at, const char *end)
{
    const char *none, *first = jtext_blank(*at, end);
    const char *behind = first < end ? jtext_skip(first, end, &none) : NULL;
    if (!behind) return (struct kvl_jtext){ 0 };
    *at = jtext_blank(behind, end);
    if (*at < end && (**at == ',' || **at == ':')) ++*at;
    return (struct kvl_jtext){ first, (size_t)(behind - first) };
}

bool kvl_jtext_each_member(struct kvl_jtext v, const char **at, struct kvl_jtext *name,
                           struct kvl_jtext *value)
{
    if (!kvl_jtext_is_object(v)) return false;
    if (*at == v.s) ++*at;
    *name = jtext_next(at, v.s + v.n - 1);
    if (name->n > 0) *value = jtext_next(at, v.s + v.n - 1);
    return name->n > 0;
}

struct kvl_jtext kvl_jtext_member(struct kvl_jtext v, const char *name)
{
    size_t n = strlen(name);
    struct kvl_jtext key, value;
    const char *at = v.s;
    while (kvl_jtext_each_member(v, &at, &key, &value))
        if (key.n == n + 2 && memcmp(key.s + 1, name, n) == 0) return value;
    return (struct kvl_jtext){ 0 };
}

struct kvl_jtext kvl_jtext_item(struct kvl_jtext v, int32_t i)
{
    if (!kvl_jtext_is_array(v)) return (struct kvl_jtext){ 0 };
    const char *at = v.s + 1, *end = v.s + v.n - 1;
    struct kvl_jtext item = jtext_next(&at, end);
    while (i-- > 0 && item.n > 0) item = jtext_next(&at, end);
    return item;
}

int32_t kvl_jtext_items(struct kvl_jtext v)
{
    int32_t n = 0;
    if (!kvl_jtext_is_array(v)) return -1;
    const char *at = v.s + 1, *end = v.s + v.n - 1;
    while (n < INT32_MAX && jtext_next(&at, end).n > 0) n++;
    return n;
}

bool kvl_jtext_each(struct kvl_jtext v, const char **at, struct kvl_jtext *out)
{
    if (!kvl_jtext_is_array(v)) return false;
    if (*at == v.s) ++*at;
    *out = jtext_next(at, v.s + v.n - 1);
    return out->n > 0;
}

/* ---- texts ------------------------------------------------------------------------------------- */

static uint32_t jtext_hex(const char *s, const char *end)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        if (s + i >= end || !isxdigit((unsigned char)s[i])) return 0xfffd;
        char c = s[i];
        v = v << 4 | (uint32_t)(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    return v;
}

/* What a \u stands for; *at: behind it. */
static uint32_t jtext_point(const char **at, const char *end)
{
    uint32_t high = jtext_hex(*at, end);
    *at += KVL_MIN(4, end - *at);
    if (high < 0xd800 || high >= 0xe000) return high ? high : 0xfffd;
    if (high >= 0xdc00 || end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u') return 0xfffd;
    uint32_t low = jtext_hex(*at + 2, end);
    if (low < 0xdc00 || low >= 0xe000) return 0xfffd;
    *at += 6;
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

static int jtext_escape(const char **at, const char *end, struct kvl_buf *out)
{
    static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
    char c = *(*at)++;
    const char *known = strchr(from, c);
    if (c == 'u') return kvl_letter_add(out, jtext_point(at, end));
    if (known && c) c = to[known - from];
    return kvl_buf_add(out, &c, 1);
}

int kvl_jtext_add(struct kvl_jtext v, struct kvl_buf *out)
{
    KVL_TRY(kvl_buf_adds(out, ""));
    if (!kvl_jtext_is_string(v)) return kvl_buf_add(out, v.s, v.n);
    const char *at = v.s + 1, *end = v.s + v.n - 1;
    while (at < end) {
        const char *back = memchr(at, '\\', (size_t)(end - at));
        const char *zero = memchr(at, '\0', (size_t)((back ? back : end) - at));
        const char *stop = zero ? zero : back ? back : end;
        KVL_TRY(kvl_buf_add(out, at, (size_t)(stop - at)));
        at = stop;
        if (at == end) break;
        at++;
        if (zero)
            KVL_TRY(kvl_letter_add(out, 0xfffd));
        else if (at < end)
            KVL_TRY(jtext_escape(&at, end, out));
    }
    return KVL_OK;
}

int kvl_jtext_quote(const char *s, size_t n, struct kvl_buf *out)
{
    KVL_TRY(kvl_buf_adds(out, "\""));
    for (size_t i = 0, bytes; i < n; i += bytes) {
        uint32_t c = kvl_letter_at(s + i, n - i, &bytes);
        if (c == '"' || c == '\\')
            KVL_TRY(kvl_buf_printf(out, "\\%c", (char)c));
        else if (c < 0x20 || c >= 0x110000)
            KVL_TRY(kvl_buf_printf(out, "\\u%04x", c < 0x20 ? c : 0xfffdu));
        else
            KVL_TRY(kvl_buf_add(out, s + i, bytes));
    }
    return kvl_buf_adds(out, "\"");
}
