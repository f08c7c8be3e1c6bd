/* Option tables: text to checked values and back. */
#include "kvl/opt.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ------------------------------------------------------------------------------- */

static bool opt_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static const char *opt_skip_digits(const char *s)
{
    while (opt_is_digit(*s)) s++;
    return s;
}

int kvl_parse_i64(const char *s, int64_t *out)
{
    /* strtoll also takes leading spaces and a plus sign. */
    const char *digits = s + (*s == '-');
    if (!opt_is_digit(*digits) || *opt_skip_digits(digits)) return KVL_EINVAL;
    errno = 0;
    long long v = strtoll(s, NULL, 10);
    if (errno == ERANGE) return KVL_EINVAL;
    *out = v;
    return KVL_OK;
}

/* -?digits[.digits][e[+-]digits], with digits on at least one side of the point: no hexadecimal,
 * nan, inf or spaces, which strtod would take. */
static bool opt_is_decimal(const char *s)
{
    if (*s == '-') s++;
    const char *whole = s;
    s = opt_skip_digits(s);
    bool any = s > whole;
    if (*s == '.') {
        const char *fraction = ++s;
        s = opt_skip_digits(s);
        any = any || s > fraction;
    }
    if (!any) return false;
    if (*s == 'e' || *s == 'E') {
        s++;
        if (*s == '+' || *s == '-') s++;
        if (!opt_is_digit(*s)) return false;
        s = opt_skip_digits(s);
    }
    return *s == '\0';
}

int kvl_parse_f64(const char *s, double *out)
{
    if (!opt_is_decimal(s)) return KVL_EINVAL;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) return KVL_ENOMEM;
    double v = strtod_l(s, NULL, c);
    freelocale(c);
    if (!isfinite(v)) return KVL_EINVAL;
    *out = v + 0.0; /* -0 and 0 are one value with one text */
    return KVL_OK;
}

/* The shortest of 15 to 17 digits that reads back as the same number. */
static int opt_print_f64(double v, struct kvl_buf *out)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) return KVL_ENOMEM;
    locale_t before = uselocale(c);
    char text[40] = "";
    for (int digits = 15; digits <= 17; digits++) {
        double back = 0.0;
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (kvl_parse_f64(text, &back) == KVL_OK && back == v) break;
    }
    uselocale(before);
    freelocale(c);
    return kvl_buf_adds(out, text);
}

/* ---- one row ------------------------------------------------------------------------------- */

static size_t opt_count(const struct kvl_opt *table)
{
    size_t n = 0;
    while (table && table[n].name) n++;
    return n;
}

static bool opt_has_auto(const struct kvl_opt *o)
{
    return o->type == KVL_OPT_INT && o->def && strcmp(o->def, "auto") == 0;
}

static bool opt_has_range(const struct kvl_opt *o)
{
    return o->min < 0.0 || o->min > 0.0 || o->max < 0.0 || o->max > 0.0;
}

/* What would be right; a row gives both ends of a range or none. */
static void opt_range_text(const struct kvl_opt *o, char *text, size_t size)
{
    const char *or_auto = opt_has_auto(o) ? "\"auto\" or " : "";
    const char *what = o->type == KVL_OPT_INT ? "a whole number" : "a number";
    if (opt_has_range(o))
        snprintf(text, size, "%s%s from %.15g to %.15g", or_auto, what, o->min, o->max);
    else
        snprintf(text, size, "%s%s", or_auto, what);
}

static int opt_fail(const struct kvl_opt *o, const char *value, const char *why,
                    struct kvl_err *err)
{
    char want[128];
    opt_range_text(o, want, sizeof want);
    return kvl_fail(err, KVL_EINVAL, "option \"%s\": \"%s\" %s, want %s", o->name, value, why,
                    want);
}

static bool opt_in_range(const struct kvl_opt *o, double v)
{
    return !opt_has_range(o) || (v >= o->min && v <= o->max);
}

static int opt_set_int(const struct kvl_opt *o, void *at, const char *value, struct kvl_err *err)
{
    int32_t v = KVL_AUTO;
    if (!opt_has_auto(o) || strcmp(value, "auto") != 0) {
        int64_t wide = 0;
        if (kvl_parse_i64(value, &wide) != KVL_OK)
            return opt_fail(o, value, "is not a whole number", err);
        if (wide < INT32_MIN || wide > INT32_MAX || !opt_in_range(o, (double)wide))
            return opt_fail(o, value, "is out of range", err);
        v = (int32_t)wide;
    }
    memcpy(at, &v, sizeof v);
    return KVL_OK;
}

static int opt_set_float(const struct kvl_opt *o, void *at, const char *value, struct kvl_err *err)
{
    double v = 0.0;
    int rc = kvl_parse_f64(value, &v);
    if (rc == KVL_EINVAL) return opt_fail(o, value, "is not a finite decimal number", err);
    if (rc != KVL_OK) return kvl_fail(err, rc, "option \"%s\": out of memory", o->name);
    if (!opt_in_range(o, v)) return opt_fail(o, value, "is out of range", err);
    memcpy(at, &v, sizeof v);
    return KVL_OK;
}

static int opt_set_bool(const struct kvl_opt *o, void *at, const char *value, struct kvl_err *err)
{
    static const char *const names[] = { "false", "true", "no", "yes", "off", "on", "0", "1" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(value, names[i]) != 0) continue;
        bool v = i % 2 == 1;
        memcpy(at, &v, sizeof v);
        return KVL_OK;
    }
    return kvl_fail(err, KVL_EINVAL, "option \"%s\": \"%s\" is not a switch, want true or false",
                    o->name, value);
}

/* Adds "a, b, c"; a list that does not fit is cut. */
static void opt_list(char *text, size_t size, const char *item)
{
    size_t n = strlen(text);
    snprintf(text + n, size - n, "%s%s", n ? ", " : "", item);
}

static int opt_set_enum(const struct kvl_opt *o, void *at, const char *value, struct kvl_err *err)
{
    char want[512] = "";
    size_t n = 0;
    for (; o->choices[n]; n++) {
        if (strcmp(value, o->choices[n]) == 0) {
            int32_t v = (int32_t)n;
            memcpy(at, &v, sizeof v);
            return KVL_OK;
        }
        opt_list(want, sizeof want, o->choices[n]);
    }
    const char *near = kvl_nearest(value, o->choices, n);
    return kvl_fail(err, KVL_EINVAL, "option \"%s\": \"%s\" is not a choice, want one of %s%s%s%s",
                    o->name, value, want, near ? " (did you mean \"" : "", near ? near : "",
                    near ? "\"?)" : "");
}

/* A comma would end the value in the text "a=1,b=x"; a control character would break a line. */
static int opt_set_str(const struct kvl_opt *o, void *at, const char *value, struct kvl_err *err)
{
    size_t n = strlen(value);
    size_t size = o->type == KVL_OPT_PATH ? KVL_OPT_PATH_SIZE : KVL_OPT_STR_SIZE;
    if (n >= size)
        return kvl_fail(err, KVL_EINVAL,
                        "option \"%s\": a text of %zu bytes is too long, want at most %zu", o->name,
                        n, size - 1);
    for (size_t i = 0; i < n; i++)
        if (value[i] == ',' || (unsigned char)value[i] < 0x20 || value[i] == 0x7f)
            return kvl_fail(err, KVL_EINVAL,
                            "option \"%s\": byte %zu of the text is a comma or a control "
                            "character, want neither",
                            o->name, i);
    memset(at, 0, size);
    memcpy(at, value, n);
    return KVL_OK;
}

static int opt_store(const struct kvl_opt *o, void *opts, const char *value, struct kvl_err *err)
{
    void *at = (char *)opts + o->off;
    switch (o->type) {
    case KVL_OPT_INT: return opt_set_int(o, at, value, err);
    case KVL_OPT_FLOAT: return opt_set_float(o, at, value, err);
    case KVL_OPT_BOOL: return opt_set_bool(o, at, value, err);
    case KVL_OPT_ENUM: return opt_set_enum(o, at, value, err);
    case KVL_OPT_STR:
    case KVL_OPT_PATH: return opt_set_str(o, at, value, err);
    }
    return kvl_fail(err, KVL_EINTERNAL, "option \"%s\": type %d does not exist", o->name,
                    (int)o->type);
}

/* ---- tables -------------------------------------------------------------------------------- */

const struct kvl_opt *kvl_opt_find(const struct kvl_opt *table, const char *name)
{
    for (; table && table->name; table++)
        if (strcmp(table->name, name) == 0 || (table->alias && strcmp(table->alias, name) == 0))
            return table;
    return NULL;
}

static int opt_check_row(const struct kvl_opt *table, const struct kvl_opt *o, struct kvl_err *err)
{
    if (!o->name[0] || strpbrk(o->name, "=, "))
        return kvl_fail(err, KVL_EINTERNAL,
                        "option table: \"%s\" is not a name, want one without \"=\", \",\" and "
                        "spaces",
                        o->name);
    if (kvl_opt_find(table, o->name) != o || (o->alias && kvl_opt_find(table, o->alias) != o))
        return kvl_fail(err, KVL_EINTERNAL, "option table: \"%s\" stands twice", o->name);
    if (!o->def || (o->type == KVL_OPT_ENUM && !o->choices))
        return kvl_fail(err, KVL_EINTERNAL, "option table: \"%s\" has no %s", o->name,
                        o->def ? "choices" : "default");
    return KVL_OK;
}

int kvl_opt_check(const struct kvl_opt *table, size_t opts_size, struct kvl_err *err)
{
    static const size_t bytes[] = {
        [KVL_OPT_INT] = sizeof(int32_t),  [KVL_OPT_FLOAT] = sizeof(double),
        [KVL_OPT_BOOL] = sizeof(bool),    [KVL_OPT_ENUM] = sizeof(int32_t),
        [KVL_OPT_STR] = KVL_OPT_STR_SIZE, [KVL_OPT_PATH] = KVL_OPT_PATH_SIZE
    };
    for (const struct kvl_opt *o = table; o && o->name; o++) {
        bool known = o->type >= KVL_OPT_INT && o->type <= KVL_OPT_PATH;
        if (!known || o->off > opts_size || bytes[o->type] > opts_size - o->off)
            return kvl_fail(
                err, KVL_EINVAL,
                "option %s of type %d at byte %zu does not fit its %zu bytes of options", o->name,
                (int)o->type, o->off, opts_size);
    }
    return KVL_OK;
}

int kvl_opt_defaults(const struct kvl_opt *table, void *opts, struct kvl_err *err)
{
    for (const struct kvl_opt *o = table; o && o->name; o++) {
        KVL_TRY(opt_check_row(table, o, err));
        struct kvl_err why = { 0 };
        if (opt_store(o, opts, o->def, &why) != KVL_OK)
            return kvl_fail(err, KVL_EINTERNAL, "option table, default of %s", why.msg);
    }
    return KVL_OK;
}

static int opt_fail_name(const struct kvl_opt *table, const char *name, struct kvl_err *err)
{
    enum { MAX = 64 };
    const char *names[MAX];
    char list[512] = "";
    size_t n = KVL_MIN(opt_count(table), (size_t)MAX);
    for (size_t i = 0; i < n; i++) {
        names[i] = table[i].name;
        opt_list(list, sizeof list, names[i]);
    }
    if (n == 0) return kvl_fail(err, KVL_EINVAL, "no option \"%s\": there are none", name);
    const char *near = kvl_nearest(name, names, n);
    if (near)
        return kvl_fail(err, KVL_EINVAL, "no option \"%s\", did you mean \"%s\"? (there are: %s)",
                        name, near, list);
    return kvl_fail(err, KVL_EINVAL, "no option \"%s\", want one of %s", name, list);
}

int kvl_opt_set(const struct kvl_opt *table, void *opts, const char *name, const char *value,
                struct kvl_err *err)
{
    const struct kvl_opt *o = kvl_opt_find(table, name);
    if (!o) return opt_fail_name(table, name, err);
    return opt_store(o, opts, value, err);
}

/* Whether `name`, or another name of the same option, stands among the names in [text, end), which
 * holds "name\0value\0" pairs. */
static bool opt_seen(const struct kvl_opt *table, const char *text, const char *end,
                     const char *name)
{
    const struct kvl_opt *o = kvl_opt_find(table, name);
    for (const char *p = text; p < end;) {
        if (strcmp(p, name) == 0 || (o && kvl_opt_find(table, p) == o)) return true;
        p += strlen(p) + 1;
        p += strlen(p) + 1;
    }
    return false;
}

/* Cuts `copy` into names and values and sets them; `text` is the whole for messages. */
static int opt_parse_copy(const struct kvl_opt *table, void *opts, char *copy, const char *text,
                          struct kvl_err *err)
{
    for (char *item = copy, *next; item; item = next) {
        next = strchr(item, ',');
        if (next) *next++ = '\0';
        char *value = strchr(item, '=');
        if (!value || value == item)
            return kvl_fail(err, KVL_EINVAL, "\"%s\" in \"%s\" is not an option, want name=value",
                            item, text);
        *value++ = '\0';
        if (opt_seen(table, copy, item, item))
            return kvl_fail(err, KVL_EINVAL, "option \"%s\" stands twice in \"%s\"", item, text);
        KVL_TRY(kvl_opt_set(table, opts, item, value, err));
    }
    return KVL_OK;
}

int kvl_opt_parse(const struct kvl_opt *table, void *opts, const char *text, struct kvl_err *err)
{
    if (!*text) return KVL_OK;
    struct kvl_buf copy = { 0 };
    int rc = kvl_buf_adds(&copy, text);
    if (rc == KVL_OK)
        rc = opt_parse_copy(table, opts, copy.data, text, err);
    else
        kvl_fail(err, rc, "options of %zu bytes: out of memory", strlen(text));
    kvl_buf_free(&copy);
    return rc;
}

/* ---- canonical text ------------------------------------------------------------------------ */

static int opt_print_int(const struct kvl_opt *o, const void *at, struct kvl_buf *out)
{
    int32_t v;
    memcpy(&v, at, sizeof v);
    if (o->type == KVL_OPT_ENUM) {
        /* A plan hook may have written anything. */
        for (int32_t i = 0; o->choices[i]; i++)
            if (i == v) return kvl_buf_adds(out, o->choices[i]);
        return kvl_buf_printf(out, "%d", v);
    }
    if (v == KVL_AUTO && opt_has_auto(o)) return kvl_buf_adds(out, "auto");
    return kvl_buf_printf(out, "%d", v);
}

int kvl_opt_value(const struct kvl_opt *o, const void *opts, struct kvl_buf *out)
{
    const void *at = (const char *)opts + o->off;
    double f;
    bool b;
    switch (o->type) {
    case KVL_OPT_INT:
    case KVL_OPT_ENUM: return opt_print_int(o, at, out);
    case KVL_OPT_FLOAT: memcpy(&f, at, sizeof f); return opt_print_f64(f, out);
    case KVL_OPT_BOOL: memcpy(&b, at, sizeof b); return kvl_buf_adds(out, b ? "true" : "false");
    case KVL_OPT_STR:
    case KVL_OPT_PATH: return kvl_buf_adds(out, at);
    }
    return KVL_EINTERNAL;
}

int kvl_opt_print(const struct kvl_opt *table, const void *opts, struct kvl_buf *out)
{
    const char *comma = "";
    for (const struct kvl_opt *o = table; o && o->name; o++) {
        /* No file is how a task was before it could read one: texts, seeds and keys stay what they were. */
        if (o->type == KVL_OPT_PATH && !((const char *)opts)[o->off]) continue;
        KVL_TRY(kvl_buf_printf(out, "%s%s=", comma, o->name));
        KVL_TRY(kvl_opt_value(o, opts, out));
        comma = ",";
    }
    return KVL_OK;
}
