/* Parses JSON by jansson, which refuses some of what the programs write that made these files.  What it refuses is
 * made another value before, of a kind that no key wants: a key that is needed then is refused by name, and others
 * do not matter.
 *   - integers beyond 64 bits (10^30 for "no limit") become reals;
 *   - numbers beyond a double, NaN and Infinity become [["1e400"]], which no key takes;
 *   - half of a surrogate pair in a string becomes U+FFFD. */
#include "hf_json.h"

#include "gguf_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HF_JSON_LIMIT ((size_t)128 << 20)

/* ---- what jansson refuses -------------------------------------------------------------------- */

static bool is_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '+' || c == '.';
}

/* Letters and digits of a number or a name from `s` on. */
static size_t word_len(const char *s, const char *end)
{
    const char *p = s;
    while (p < end && is_word(*p)) p++;
    return (size_t)(p - s);
}

static bool is_name(const char *s, size_t n)
{
    static const char *const names[] = { "NaN", "Infinity", "-Infinity" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == n && memcmp(names[i], s, n) == 0) return true;
    return false;
}

/* -0, 1, 12.5e+3: what JSON allows and nothing else, since what is not JSON must stay refused. */
static bool is_number(const char *s, size_t n, bool *whole)
{
    size_t i = n > 0 && s[0] == '-', from = i, part;
    while (i < n && s[i] >= '0' && s[i] <= '9') i++;
    *whole = i == n;
    if (i == from || (s[from] == '0' && i > from + 1)) return false;
    if (i < n && s[i] == '.') {
        for (part = ++i; i < n && s[i] >= '0' && s[i] <= '9';) i++;
        if (i == part) return false;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        if (i < n && (s[i] == '-' || s[i] == '+')) i++;
        for (part = i; i < n && s[i] >= '0' && s[i] <= '9';) i++;
        if (i == part) return false;
    }
    return i == n;
}

/* A word outside of strings. */
static int tame_word(const char *s, size_t n, struct kvl_buf *out)
{
    bool whole, fits = true, quote = is_name(s, n);
    if (is_number(s, n, &whole)) {
        struct kvl_buf text = { 0 };
        KVL_TRY(kvl_buf_add(&text, s, n));
        errno = 0;
        if (whole) (void)strtoll(text.data, NULL, 10);
        fits = errno == 0;
        quote = !isfinite(strtod(text.data, NULL));
        kvl_buf_free(&text);
    }
    KVL_TRY(kvl_buf_adds(out, quote ? "[[\"" : ""));
    KVL_TRY(kvl_buf_add(out, s, n));
    return kvl_buf_adds(out, quote ? "\"]]" : fits ? "" : ".0");
}

/* The four hexadecimal digits behind \u at s; -1: there are none. */
static int32_t escaped(const char *s, const char *end)
{
    char digits[5] = { 0 };
    if (end - s < 6 || s[0] != '\\' || s[1] != 'u') return -1;
    memcpy(digits, s + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (int32_t)strtol(digits, NULL, 16) : -1;
}

static bool is_high(int32_t c)
{
    return c >= 0xd800 && c < 0xdc00;
}

static bool is_low(int32_t c)
{
    return c >= 0xdc00 && c < 0xe000;
}

/* From a quote to the one behind it. */
static int tame_string(const char **at, const char *end, struct kvl_buf *out)
{
    const char *s = *at, *p = s + 1;
    while (p < end && *p != '"') {
        int32_t c = escaped(p, end);
        bool pair = is_high(c) && is_low(escaped(p + 6, end));
        size_t n = pair ? 12 : c >= 0 ? 6 : *p == '\\' && p + 1 < end ? 2 : 1;
        if (!pair && (is_high(c) || is_low(c))) {
            KVL_TRY(kvl_buf_add(out, s, (size_t)(p - s)));
            KVL_TRY(kvl_buf_adds(out, "\\ufffd"));
            s = p + n;
        }
        p += n;
    }
    p += p < end;
    *at = p;
    return kvl_buf_add(out, s, (size_t)(p - s));
}

static int tame(const char *text, size_t len, struct kvl_buf *out)
{
    const char *end = text + len;
    for (const char *s = text; s < end;) {
        if (*s == '"') {
            KVL_TRY(tame_string(&s, end, out));
            continue;
        }
        size_t n = word_len(s, end);
        KVL_TRY(n ? tame_word(s, n, out) : kvl_buf_add(out, s, 1));
        s += n ? n : 1;
    }
    return KVL_OK;
}

static json_t *parse(const char *text, size_t len, uint32_t how, json_error_t *e)
{
    size_t flags = JSON_ALLOW_NUL | (how & KVL_HF_JSON_DOUBLES ? 0 : JSON_REJECT_DUPLICATES);
    json_t *v = json_loadb(text, len, flags, e);
    bool number = !v && (json_error_code(e) == json_error_numeric_overflow ||
                         json_error_code(e) == json_error_invalid_syntax);
    struct kvl_buf tamed = { 0 };
    if (number && kvl_buf_adds(&tamed, "") == KVL_OK && tame(text, len, &tamed) == KVL_OK) {
        json_error_t other;
        v = json_loadb(tamed.data, tamed.len, flags, &other);
        if (!v && json_error_code(e) == json_error_numeric_overflow) *e = other;
    }
    kvl_buf_free(&tamed);
    return v;
}

/* ---- files ----------------------------------------------------------------------------------- */

int kvl_hf_json(const char *text, size_t len, uint32_t how, json_t **out, struct kvl_err *err)
{
    json_error_t e = { .line = 0 };
    char shown[GGUF_SHOWN + 4];
    json_t *v = parse(text ? text : "", len, how, &e);
    if (!v)
        return kvl_fail(err, KVL_EMODEL, "line %d, column %d: %s", e.line, e.column,
                        kvl_gguf_show(e.text, strlen(e.text), shown));
    if (!json_is_object(v)) {
        json_decref(v);
        return kvl_fail(err, KVL_EMODEL, "the JSON is no object, want {...}");
    }
    *out = v;
    return KVL_OK;
}

int kvl_hf_json_file(const char *path, uint32_t how, json_t **out, struct kvl_err *err)
{
    struct kvl_buf text = { 0 };
    KVL_TRY(kvl_read_file(path, HF_JSON_LIMIT, &text, err));
    int rc = kvl_hf_json(text.data, text.len, how, out, err);
    kvl_buf_free(&text);
    return rc == KVL_OK ? KVL_OK : kvl_fail_at(err, rc, "%s", path);
}

struct kvl_str kvl_hf_json_str(const json_t *v)
{
    if (!json_is_string(v)) return (struct kvl_str){ "", 0 };
    return (struct kvl_str){ json_string_value(v), json_string_length(v) };
}

bool kvl_hf_json_is(const json_t *v, const char *text)
{
    return json_is_string(v) && strcmp(json_string_value(v), text) == 0;
}

int kvl_hf_json_refuse(struct kvl_err *err, const char *path, const json_t *found, const char *want)
{
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    int rc = kvl_fail(err, KVL_EMODEL, "%s is %.60s%s, want %s", path, text ? text : "missing",
                      text && strlen(text) > 60 ? "..." : "", want);
    free(text);
    return rc;
}
