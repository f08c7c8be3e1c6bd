/* A policy, its options and a budget in one word. */
#include "policy_spec.h"

#include "kvl/model.h"

#include <stdio.h>
#include <string.h>

int kvl_options_take(const char *options, const char *name, struct kvl_buf *rest,
                     struct kvl_buf *value, struct kvl_err *err)
{
    size_t n_name = strlen(name), n;
    int rc = kvl_buf_adds(rest, "");
    for (const char *p = options; *p && rc == KVL_OK; p += n + (p[n] == ',')) {
        n = strcspn(p, ",");
        bool named = n > n_name && p[n_name] == '=' && strncmp(p, name, n_name) == 0;
        if (named && value->data)
            return kvl_fail(err, KVL_EINVAL, "option \"%s\" stands twice", name);
        if (!named && rest->len) rc = kvl_buf_adds(rest, ",");
        if (rc == KVL_OK && named)
            rc = kvl_buf_add(value, p + n_name + 1, n - n_name - 1);
        else if (rc == KVL_OK)
            rc = kvl_buf_add(rest, p, n);
        if (rc == KVL_OK && named) rc = kvl_buf_adds(value, ""); /* data, even of no text */
    }
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "out of memory for options");
}

int kvl_prefill_parse(const struct kvl_policy *policy, const char *text, bool *own,
                      struct kvl_err *err)
{
    bool only_own = policy && policy->prefill == KVL_PREFILL_OWN;
    if (text && only_own && strcmp(text, "shared") == 0)
        return kvl_fail(
            err, KVL_EINVAL,
            "prefill=shared: %s is a way to prefill, and would have nothing to do after a "
            "shared one; want prefill=own, or leave it out",
            policy->name);
    *own = text ? strcmp(text, "own") == 0 : only_own;
    if (!text || *own || strcmp(text, "shared") == 0) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL, "prefill \"%s\": want own or shared", text);
}

/* The harness's own words leave the options; the rest is the policy's. */
static int spec_options(struct kvl_policy_spec *s, const char *options, struct kvl_err *err)
{
    struct kvl_buf left = { 0 }, rest = { 0 }, prefill = { 0 };
    int rc = kvl_options_take(options, "budget", &left, &s->budget, err);
    if (rc == KVL_OK) rc = kvl_options_take(left.data, "prefill", &rest, &prefill, err);
    if (rc == KVL_OK) rc = kvl_prefill_parse(s->policy, prefill.data, &s->own, err);
    if (rc == KVL_OK)
        rc = kvl_options_canonical(s->policy->opts, s->policy->opts_size, rest.data, &s->options,
                                   err);
    kvl_buf_free(&left);
    kvl_buf_free(&rest);
    kvl_buf_free(&prefill);
    return rc;
}

size_t kvl_outside(const char *text, const char *stop)
{
    int depth = 0;
    const char *p = text;
    for (; *p && (depth > 0 || !strchr(stop, *p)); p++) depth += (*p == '(') - (*p == ')');
    return (size_t)(p - text);
}

size_t kvl_list_word(const char *text)
{
    size_t n = kvl_outside(text, ",");
    while (text[n]) {
        const char *piece = text + n + 1;
        if (piece[kvl_outside(piece, "=:,")] != '=') break;
        n += 1 + kvl_outside(piece, ",");
    }
    return n;
}

/* "a=1,b=2" of the inner policy, each with its name before it. */
static int word_inner_options(const char *text, size_t len, const struct kvl_policy *inner,
                              struct kvl_buf *out)
{
    for (size_t at = 0; at < len;) {
        size_t n = KVL_MIN(strcspn(text + at, ","), len - at);
        KVL_TRY(
            kvl_buf_printf(out, "%s%s.%.*s", out->len ? "," : "", inner->name, (int)n, text + at));
        at += n + 1;
    }
    return KVL_OK;
}

/* Splits "outer(inner:options)" of n characters: the name without options into `name`. */
static int word_split(const char *text, size_t n, struct kvl_buf *name, const char **options,
                      size_t *n_options)
{
    size_t open = strcspn(text, "("), colon = open + strcspn(text + open, ":");
    *n_options = 0;
    if (open >= n || colon >= n || text[n - 1] != ')') return kvl_buf_add(name, text, n);
    *options = text + colon + 1;
    *n_options = n - colon - 2;
    KVL_TRY(kvl_buf_add(name, text, colon));
    return kvl_buf_adds(name, ")");
}

int kvl_policy_word_parse(const struct kvl_registry *r, const char *text,
                          const struct kvl_policy **policy, struct kvl_buf *options,
                          struct kvl_err *err)
{
    const char *inside = "";
    const struct kvl_policy *inner;
    size_t n = kvl_outside(text, ":"), n_inside;
    struct kvl_buf name = { 0 };
    int rc = word_split(text, n, &name, &inside, &n_inside);
    if (rc != KVL_OK) kvl_fail(err, rc, "out of memory for the name of a policy");
    if (rc == KVL_OK) rc = kvl_registry_find_policy(r, name.data, policy, err);
    kvl_buf_free(&name);
    KVL_TRY(rc);
    rc = kvl_buf_adds(options, "");
    if (rc == KVL_OK && kvl_policy_parts(*policy, NULL, &inner))
        rc = word_inner_options(inside, n_inside, inner, options);
    if (rc == KVL_OK && text[n] && text[n + 1])
        rc = kvl_buf_printf(options, "%s%s", options->len ? "," : "", text + n + 1);
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "out of memory for options");
}

static int spec_parse(const struct kvl_registry *r, const char *text, struct kvl_policy_spec *s,
                      struct kvl_err *err)
{
    struct kvl_buf options = { 0 };
    int rc = kvl_policy_word_parse(r, text, &s->policy, &options, err);
    if (rc == KVL_OK) rc = spec_options(s, options.data, err);
    kvl_buf_free(&options);
    return rc;
}

int kvl_policy_spec_parse(const struct kvl_registry *r, const char *text,
                          struct kvl_policy_spec *out, struct kvl_err *err)
{
    struct kvl_policy_spec s = { 0 };
    int rc = spec_parse(r, text, &s, err);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_policy_spec_free(&s);
    return rc == KVL_OK ? rc : kvl_fail_at(err, rc, "policy \"%s\"", text);
}

void kvl_policy_spec_free(struct kvl_policy_spec *s)
{
    kvl_buf_free(&s->options);
    kvl_buf_free(&s->budget);
}

int kvl_budget_parse(const char *text, int32_t context_tok, int32_t *out, struct kvl_err *err)
{
    size_t n = strlen(text);
    bool percent = n > 1 && text[n - 1] == '%';
    char number[32];
    double v = 0.0;
    int64_t tok = 0;
    int rc = n < sizeof number ? KVL_OK : KVL_EINVAL;
    if (rc == KVL_OK) {
        memcpy(number, text, n + 1);
        if (percent) number[n - 1] = '\0';
        rc = percent ? kvl_parse_f64(number, &v) : kvl_parse_i64(number, &tok);
    }
    bool good = percent ? v > 0.0 && v <= 100.0 : tok >= 1 && tok <= INT32_MAX;
    if (rc != KVL_OK || !good)
        return kvl_fail(err, KVL_EINVAL,
                        "budget \"%s\": want tokens per lane (256) or a part of the context (25%%)",
                        text);
    *out = percent ? KVL_MAX(1, (int32_t)(v / 100.0 * context_tok)) : (int32_t)tok;
    return KVL_OK;
}

bool kvl_policy_ignores_budget(const struct kvl_policy *policy)
{
    bool reads_all = !(policy->caps & (KVL_CAP_EVICTS | KVL_CAP_SELECTS));
    return reads_all && (policy->caps & (KVL_CAP_BOUND | KVL_CAP_REPOSITIONS));
}

/* Whether "a=1,b=2" sets `name`. */
static bool spec_sets(const char *options, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = options; *p;) {
        if (strncmp(p, name, n) == 0 && p[n] == '=') return true;
        p += strcspn(p, ",");
        if (*p) p++;
    }
    return false;
}

static int spec_print_explicit(const struct kvl_opt *table, const void *opts, const char *options,
                               struct kvl_buf *out)
{
    KVL_TRY(kvl_buf_adds(out, ""));
    for (const struct kvl_opt *o = table; o && o->name; o++) {
        if (!spec_sets(options, o->name) && !(o->alias && spec_sets(options, o->alias))) continue;
        KVL_TRY(kvl_buf_printf(out, "%s%s=", out->len ? "," : "", o->name));
        KVL_TRY(kvl_opt_value(o, opts, out));
    }
    return KVL_OK;
}

int kvl_options_canonical(const struct kvl_opt *table, size_t opts_size, const char *options,
                          struct kvl_buf *out, struct kvl_err *err)
{
    void *opts = kvl_alloc(1, opts_size ? opts_size : 1);
    if (!opts) return kvl_fail(err, KVL_ENOMEM, "out of memory for options");
    int rc = kvl_opt_defaults(table, opts, err);
    if (rc == KVL_OK) rc = kvl_opt_parse(table, opts, options, err);
    if (rc == KVL_OK && spec_print_explicit(table, opts, options, out) != KVL_OK)
        rc = kvl_fail(err, KVL_ENOMEM, "out of memory for options");
    kvl_free(opts);
    return rc;
}
