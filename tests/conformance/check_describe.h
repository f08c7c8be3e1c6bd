/* check_describe.h - a policy describes itself, and refuses what it cannot do. */
#ifndef KVL_TESTS_CHECK_DESCRIBE_H
#define KVL_TESTS_CHECK_DESCRIBE_H

#include "conformance/fixture.h"

#include <ctype.h>

static void expect_text(const char *text, const char *what)
{
    if (!text || strlen(text) < 2) fail_msg("%s: missing", what);
}

/* The card: plain sentences that begin with a capital (or a name in lower case letters) and end with a
 * full stop, in one line. */
static void expect_sentences(const char *text, const char *what)
{
    expect_text(text, what);
    size_t n = strlen(text);
    if (n < 5 || text[n - 1] != '.' || !isalnum((unsigned char)text[0]))
        fail_msg("%s: \"%s\", want sentences that end with a full stop", what, text);
    if (strpbrk(text, "\n\t") || strstr(text, "  "))
        fail_msg("%s: \"%s\", want one line with single blanks", what, text);
}

static void check_description(void **state)
{
    const struct subject *subject = *state;
    const struct kvl_policy *p = subject->policy;
    struct kvl_err err = { 0 };
    RIG_OK(&err, kvl_policy_check(p, &err));
    if (subject->stem) assert_string_equal(p->name, subject->stem);
    expect_text(p->title, "title");
    expect_text(p->paper, "paper");
    expect_text(p->help, "help");
    const char *const card[] = { p->follows, p->deviations, p->cost };
    for (size_t i = 0; i < sizeof card / sizeof card[0]; i++)
        if (card[i] || subject->stem) expect_sentences(card[i], "follows, deviations, cost");
    assert_true(p->version > 0);
    assert_true(p->caps != 0 || p->inner || p->prefill != KVL_PREFILL_SHARED);
    for (const struct kvl_opt *o = p->opts; o && o->name; o++) {
        expect_text(o->help, o->name);
        assert_non_null(o->def);
    }
}

static int plan(struct fixture *f, const char *options, int32_t budget, struct kvl_planned **out,
                struct kvl_err *err)
{
    *err = (struct kvl_err){ 0 };
    return kvl_planned_create(f->run.policy, rig_shape(&f->r), options, budget, f->run.n_ctx, out,
                              err);
}

static void expect_refused(struct fixture *f, const char *options, int32_t budget,
                           const char *needle)
{
    struct kvl_planned *p;
    struct kvl_err err;
    int rc = plan(f, options, budget, &p, &err);
    if (rc != KVL_EINVAL)
        fail_msg("\"%s\", budget %d: %s, want KVL_EINVAL", options, budget, kvl_status_name(rc));
    if (!strstr(err.msg, f->run.policy->name) || !strstr(err.msg, needle))
        fail_msg("\"%s\", budget %d: message \"%s\" lacks the policy's name or \"%s\"", options,
                 budget, err.msg, needle);
}

static void check_limits_of(struct fixture *f, const struct kvl_opt *o)
{
    char text[256];
    bool number = o->type == KVL_OPT_INT || o->type == KVL_OPT_FLOAT;
    snprintf(text, sizeof text, "%s=no-such-value", o->name);
    if (o->type != KVL_OPT_STR) expect_refused(f, text, f->run.budget, o->name);
    if (!number || (o->min >= 0 && o->min <= 0 && o->max >= 0 && o->max <= 0)) return;
    snprintf(text, sizeof text, "%s=%.0f", o->name, o->min - 7);
    expect_refused(f, text, f->run.budget, o->name);
    snprintf(text, sizeof text, "%s=%.0f", o->name, o->max + 7);
    expect_refused(f, text, f->run.budget, o->name);
}

/* Bad options and budgets are refused with a message; what plan resolved can be typed in again. */
static void check_options(void **state)
{
    struct fixture f;
    struct kvl_planned *p, *again;
    struct kvl_err err;
    open_desc(&f, state, &models[1]);
    expect_refused(&f, "no_such_option=1", f.run.budget, "no_such_option");
    for (const struct kvl_opt *o = f.run.policy->opts; o && o->name; o++) check_limits_of(&f, o);
    int32_t least = min_budget(f.run.policy, rig_shape(&f.r));
    if (least > 1) {
        char number[16];
        snprintf(number, sizeof number, "%d", least);
        expect_refused(&f, "", least - 1, number);
    }
    /* No context is longer than 2^30 tokens: such a budget is everything, a larger one is a slip. */
    expect_refused(&f, "", INT32_MAX, "1073741824");
    RIG_OK(&err, plan(&f, "", 1 << 30, &p, &err));
    kvl_planned_destroy(p);
    RIG_OK(&err, plan(&f, "", least, &p, &err));
    kvl_planned_destroy(p);
    RIG_OK(&err, plan(&f, "", f.run.budget, &p, &err));
    RIG_OK(&err, plan(&f, kvl_planned_options(p), f.run.budget, &again, &err));
    assert_string_equal(kvl_planned_options(p), kvl_planned_options(again));
    assert_null(strstr(kvl_planned_options(p), "auto"));
    kvl_planned_destroy(again);
    kvl_planned_destroy(p);
    close_model(&f);
}

#endif
