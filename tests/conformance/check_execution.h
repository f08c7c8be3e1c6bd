/* check_execution.h - real execution is what it claims to be. */
#ifndef KVL_TESTS_CHECK_EXECUTION_H
#define KVL_TESTS_CHECK_EXECUTION_H

#include "conformance/fixture.h"

static const struct kvl_policy dense_policy = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "dense",
    .title = "t",
    .paper = "p",
    .help = "h",
    .caps = KVL_CAP_BOUND,
};

/* A budget that holds everything is full attention: bit for bit where the engine takes the same
 * path, up to rounding where keys are rotated anew or sums are of two places. */
static void check_whole_budget_is_full(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        struct rig_run run = f.run;
        run.budget = run.n_ctx + N_STEPS + 256;
        float *got = rig_run(&f.r, &run);
        run.policy = &dense_policy;
        float *want = rig_run(&f.r, &run);
        if (needs_raw_keys(&f) || kvl_engine_device(f.r.engine)->attends_host)
            rig_expect_near(&f.r, want, got, N_STEPS, logits_apart(&f, 1e-3, 3e-2),
                            "full and a budget for everything");
        else
            rig_expect_same(&f.r, want, got, N_STEPS, "full and a budget for everything");
        kvl_free(want);
        kvl_free(got);
        close_model(&f);
    }
}

static void expect_masked_equal(struct fixture *f, const char *options)
{
    struct rig_run run = f->run;
    run.options = options;
    float *real = rig_run(&f->r, &run);
    run.exec = KVL_EXEC_MASKED;
    float *masked = rig_run(&f->r, &run);
    rig_expect_near(&f->r, masked, real, run.n_steps, logits_apart(f, 5e-4, 8e-3), options);
    kvl_free(masked);
    kvl_free(real);
}

/* What is evicted or not selected has weight zero, and nothing else changes. */
static void check_real_equals_masked(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        expect_masked_equal(&f, "");
        close_model(&f);
    }
}

/* The counters of one step with these options. */
static void expect_counted(struct fixture *f, const char *options)
{
    struct rig_run run = f->run;
    run.options = options;
    struct rig_session rs = rig_start(&f->r, &run);
    float *logits = rig_logits(&f->r, 1);
    kvl_session_reset_counters(rs.s);
    rig_decode_probed(&f->r, &rs, f->id[run.n_ctx], logits);
    expect_counters(f, &rs, run.n_ctx + 1);
    kvl_free(logits);
    rig_end(&rs);
}

static void check_choice(struct fixture *f, const char *name, const char *value)
{
    char options[256];
    struct kvl_planned *p;
    struct kvl_err err;
    snprintf(options, sizeof options, "%s=%s", name, value);
    int rc = plan(f, options, f->run.budget, &p, &err);
    if (rc != KVL_OK) {
        assert_int_equal(rc, KVL_EINVAL); /* not with the defaults of the others */
        return;
    }
    kvl_planned_destroy(p);
    expect_masked_equal(f, options);
    expect_counted(f, options);
}

/* Every choice of every option runs, and does what it says. */
static void check_every_choice(void **state)
{
    struct fixture f;
    open_desc(&f, state, &models[1]);
    f.run.n_steps = 3;
    for (const struct kvl_opt *o = f.run.policy->opts; o && o->name; o++) {
        if (o->type == KVL_OPT_BOOL) {
            check_choice(&f, o->name, "true");
            check_choice(&f, o->name, "false");
        }
        for (int i = 0; o->type == KVL_OPT_ENUM && o->choices[i]; i++)
            check_choice(&f, o->name, o->choices[i]);
    }
    close_model(&f);
}

/* Key of the last token in layer 0, which depends on the token and its position alone, of the first kv head
 * from `head` on that holds it; returns that head, -1: none does. */
static int32_t last_key(struct fixture *f, const struct rig_run *run, int32_t head, float *k)
{
    struct rig_session rs = rig_start(&f->r, run);
    const struct kvl_seq *seq = kvl_session_seq(rs.s);
    float *logits = rig_logits(&f->r, N_STEPS);
    int32_t pos = run->n_ctx + N_STEPS - 1, slot = -1, n_heads = rig_shape(&f->r)->n_kv_heads;
    rig_decode(&f->r, &rs, run->id + run->n_ctx, N_STEPS, logits);
    while (head < n_heads && kvl_seq_find(seq, 0, head, &pos, 1, &slot) == 0) head++;
    if (head < n_heads)
        RIG_OK(&f->r.err, kvl_seq_read(seq, 0, head, KVL_PART_K, slot, 1, k, &f->r.err));
    kvl_free(logits);
    rig_end(&rs);
    return head < n_heads ? head : -1;
}

/* Whatever went, positions go on from the true length.  Heads that keep kinds of tokens (FastGen) may drop
 * even the newest: then there is nothing to see. */
static void check_positions_go_on(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        size_t head_dim = (size_t)rig_shape(&f.r)->head_dim;
        float *got = rig_floats(head_dim), *want = rig_floats(head_dim);
        struct rig_run run = f.run;
        int32_t head = last_key(&f, &run, 0, got);
        run.policy = &dense_policy;
        if (head >= 0) {
            assert_int_equal(last_key(&f, &run, head, want), head);
            assert_memory_equal(got, want, head_dim * sizeof *got);
        }
        kvl_free(got);
        kvl_free(want);
        close_model(&f);
    }
}

/* Keys before RoPE beside the others change nothing for a policy that does not ask, and a policy
 * that asks is refused by an engine that has none. */
static void check_raw_keys(void **state)
{
    struct rig_desc bare = models[1];
    struct fixture with, without;
    open_desc(&with, state, &models[1]);
    bare.no_raw_keys = true;
    open_desc(&without, state, &bare);
    if (needs_raw_keys(&with)) {
        struct kvl_planned *p;
        struct kvl_session *s;
        struct kvl_err err;
        RIG_OK(&err, plan(&without, "", without.run.budget, &p, &err));
        RIG_OK(&err, kvl_session_create(without.r.engine, &s, &err));
        RIG_OK(&err, kvl_session_prefill(s, without.id, 9, NULL, true, &err));
        assert_int_not_equal(kvl_session_attach(s, p, 1, KVL_EXEC_REAL, &err), KVL_OK);
        assert_true(strlen(err.msg) > 0);
        kvl_session_destroy(s);
        kvl_planned_destroy(p);
    } else {
        float *want = rig_run(&with.r, &with.run);
        expect_same_run(&without, want, &without.run, "with and without raw keys");
        kvl_free(want);
    }
    close_model(&with);
    close_model(&without);
}

#endif
