/* A policy, its options and a budget in one word. */
#include "policy_spec.h"

#include <string.h>

static int spec_add_option(struct kvl_policy_spec *s, const char *item, size_t len,
                           struct kvl_err *err)
{
    static const char key[] = "budget=";
    bool budget = strncmp(item, key, sizeof key - 1) == 0;
    struct kvl_buf *out = budget ? &s->budget : &s->options;
    if (budget && s->budget.data)
        return kvl_fail(err, KVL_EINVAL, "option \"budget\" stands twice");
    if (budget) {
        item += sizeof key - 1;
        len -= sizeof key - 1;
    }
    if ((out->len && kvl_buf_adds(out, ",")) || kvl_buf_add(out, item, len))
        return kvl_fail(err, KVL_ENOMEM, "out of memory for options");
    return KVL_OK;
}

static int spec_parse(const struct kvl_registry *r, const char *text, struct kvl_policy_spec *s,
                      struct kvl_err *err)
{
    char name[64];
    size_t n = strcspn(text, ":");
    if (n >= sizeof name) n = sizeof name - 1;
    memcpy(name, text, n);
    name[n] = '\0';
    KVL_TRY(kvl_registry_find_policy(r, name, &s->policy, err));
    const char *p = text + n;
    if (*p == ':') p++;
    while (*p) {
        size_t len = strcspn(p, ",");
        KVL_TRY(spec_add_option(s, p, len, err));
        p += len;
        if (*p == ',') p++;
    }
    struct kvl_buf canonical = { 0 };
    KVL_TRY(kvl_options_canonical(s->policy->opts, s->policy->opts_size,
                                  s->options.data ? s->options.data : "", &canonical, err));
    kvl_buf_free(&s->options);
    s->options = canonical;
    return KVL_OK;
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
    return (policy->caps & KVL_CAP_BOUND) && !(policy->caps & (KVL_CAP_EVICTS | KVL_CAP_SELECTS));
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
        if (!spec_sets(options, o->name)) continue;
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
