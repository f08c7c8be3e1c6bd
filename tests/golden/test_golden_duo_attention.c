/* DuoAttention: heads by gates and quantile, the budget of all lanes, tables of
 * gates, and on a model the gates that are measured, the tokens that stay and
 * those that queries of the prefill read. */
#define KVL_PLUGIN
#include "../methods/duo_attention.c"

#include "conformance/rig.h"

/* ---- gates
 * ----------------------------------------------------------------------------------------
 */

static void expect_full(const float *gate, int32_t n, double sparsity, double threshold,
                        const float *want)
{
    float full[64];
    double got = kvl_gates_split(gate, n, sparsity, full);
    assert_true(fabs(got - threshold) < 1e-6);
    for (int32_t i = 0; i < n; i++)
        if (full[i] != want[i])
            fail_msg("lane %d at sparsity %g: %g", i, sparsity, (double)full[i]);
}

static void test_quantile(void **state)
{
    static const float gate[8] = { .9f, .1f, .4f, .7f, .2f, .8f, .05f, .6f };
    (void)state;
    expect_full(gate, 8, 0.5, 0.5, (const float[8]){ 1, 0, 0, 1, 0, 1, 0, 1 });
    expect_full(gate, 8, 0, 0.05, (const float[8]){ 1, 1, 1, 1, 1, 1, 1, 1 });
    expect_full(gate, 8, 0.75, 0.725, (const float[8]){ 1, 0, 0, 0, 0, 1, 0, 0 });
    expect_full(gate, 8, 1, (double)0.9f, (const float[8]){ 0 });
    /* Equal gates: the lower lanes are full. */
    static const float same[4] = { .5f, .5f, .5f, .5f };
    expect_full(same, 4, 0.5, 0.5, (const float[4]){ 1, 1, 0, 0 });
}

/* ---- sizes
 * --------------------------------------------------------------------------------------------
 */

static const struct kvl_shape eight_lanes = {
    .n_layers = 4, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .n_embd = 16, .n_vocab = 9
};

static int plan_with(const char *options, int32_t budget, int32_t context, struct duo_opts *o,
                     struct kvl_err *err)
{
    struct kvl_planned *p = NULL;
    *err = (struct kvl_err){ 0 };
    int rc = kvl_planned_create(&duo_attention, &eight_lanes, options, budget, context, &p, err);
    if (rc == KVL_OK) {
        kvl_opt_defaults(duo_options, o, err);
        RIG_OK(err, kvl_opt_parse(duo_options, o, kvl_planned_options(p), err));
        RIG_OK(err, kvl_parse_f64(o->sparsity, &o->share));
    }
    kvl_planned_destroy(p);
    return rc;
}

static void test_sizes(void **state)
{
    struct duo_opts o;
    struct kvl_err err;
    (void)state;
    RIG_OK(&err, plan_with("", 0, 4000, &o, &err));
    assert_int_equal(o.sink, 64);
    assert_int_equal(o.recent, 256);
    assert_string_equal(o.sparsity, "0.5");
    assert_int_equal(o.gates, DUO_MEASURED);
    /* 936 + 64 tokens, 8 lanes of 400: with windows of 100, (3200 - 800) / 900 = 2 full lanes,
     * and (3200 - 2000) / 6 = 200 for each of the others. */
    RIG_OK(&err, plan_with("", 400, 936, &o, &err));
    assert_int_equal(kvl_gates_below(o.share, 8), 6);
    assert_int_equal(o.sink, 40);
    assert_int_equal(o.recent, 160);
    /* Given: half full, the others share (3200 - 4 * 500) / 4 = 300. */
    RIG_OK(&err, plan_with("sparsity=0.5,sink=100", 400, 436, &o, &err));
    assert_int_equal(o.recent, 200);
    RIG_OK(&err, plan_with("sink=10,recent=90", 400, 936, &o, &err));
    assert_int_equal(kvl_gates_below(o.share, 8), 6); /* (3200 - 800) / 900 */
    RIG_OK(&err, plan_with("", 936, 936, &o, &err));
    assert_string_equal(o.sparsity, "0");
    assert_int_equal(plan_with("sparsity=0.5", 400, 936, &o, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "4 full of 8 lanes"));
    assert_non_null(strstr(err.msg, "give a budget of 501 or more")); /* (4 * 1000 + 4 * 2) / 8 */
    /* What was not given is not shown as a number. */
    assert_null(strstr(err.msg, "-1"));
    assert_int_equal(plan_with("sparsity=0.5,sink=10,recent=90", 400, 936, &o, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "give a budget of 550 or more")); /* (4 * 1000 + 4 * 100) / 8 */
    assert_int_equal(plan_with("sparsity=half", 400, 936, &o, &err), KVL_EINVAL);
    assert_int_equal(plan_with("gates=table", 400, 936, &o, &err), KVL_EINVAL);
    assert_int_equal(plan_with("gates=measure,table=x", 400, 936, &o, &err), KVL_EINVAL);
}

static void expect_table(const char *text, const char *why)
{
    char path[] = "/tmp/kvl-table-XXXXXX", options[64];
    struct duo_opts o;
    struct kvl_err err;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    snprintf(options, sizeof options, "table=%s", path);
    int rc = plan_with(options, 400, 936, &o, &err);
    unlink(path);
    if (!why) {
        RIG_OK(&err, rc);
        assert_int_equal(o.gates, DUO_TABLE);
        return;
    }
    assert_int_equal(rc, KVL_EINVAL);
    if (!strstr(err.msg, why) || !strstr(err.msg, path)) fail_msg("\"%s\", want %s", err.msg, why);
}

static void test_tables(void **state)
{
    (void)state;
    expect_table("# gates\n.9\t.1\n.4 .7\n.2, .8 # third\n.05 .6\n", NULL);
    expect_table(".9 .1\n.4 .7\n.2 .8\n", "3 lines of gates; the model has 4 layers");
    expect_table(".9 .1\n.4\n.2 .8\n.05 .6\n", "line 2: gate \"\"");
    expect_table(".9 .1\n.4 .7 .3\n.2 .8\n.05 .6\n", "line 2: more than the model's 2 kv heads");
    expect_table(".9 .1\n.4 .7\n.2 .8\n.05 .6\n1 1\n", "line 5: more than the model's 4 layers");
    expect_table(".9 .1\n.4 x7\n.2 .8\n.05 .6\n", "line 2: gate \"x7\"");
    expect_table(".9 .1\n.4 nan\n.2 .8\n.05 .6\n", "line 2: gate \"nan\"");
}

/* ---- on a model
 * ---------------------------------------------------------------------------------------------
 */

enum { N_CTX = 200 };
static float measured[64];
static double wanted[64];

/* All queries of the context, one by one. */
static int watched_plan(struct kvl_plan *plan)
{
    KVL_TRY(duo_plan(plan));
    return plan->own_prefill ? KVL_OK : kvl_plan_observe(plan, KVL_OBS_WINDOW, N_CTX);
}

static int watched_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct duo_opts *o = ctx->opts;
    const struct duo_state *s = ctx->state;
    const struct kvl_shape *sh = ctx->shape;
    float *p = rig_floats((size_t)sh->n_heads * N_CTX);
    int32_t group = sh->n_heads / sh->n_kv_heads;
    for (int32_t l = 0; layer == 0 && l < sh->n_layers; l++)
        for (int32_t b = 0; b < N_CTX; b++) {
            assert_int_equal(kvl_obs_window_probs(ctx, l, b, p, N_CTX), KVL_OK);
            int32_t pos = N_CTX - 1 - b;
            for (int32_t h = 0; h < sh->n_heads; h++)
                for (int32_t j = 0; j <= pos; j++)
                    if (j >= o->sink && pos - j >= o->measure_window)
                        wanted[l * sh->n_kv_heads + h / group] +=
                            (double)p[h * N_CTX + j] / (N_CTX * group);
        }
    kvl_free(p);
    KVL_TRY(duo_prefilled(ctx, layer));
    memcpy(measured, s->gate, duo_lanes(sh) * sizeof *measured);
    return KVL_OK;
}

/* Gates are the weight outside, token by token; the lanes of the smaller ones
 * stream. */
static void test_measured(void **state)
{
    struct kvl_policy watched = duo_attention;
    struct rig r;
    int32_t id[N_CTX + 4];
    (void)state;
    watched.plan = watched_plan;
    watched.prefilled = watched_prefilled;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 2, .n_kv_heads = 2, .seed = 6 } });
    rig_tokens(id, N_CTX + 4, 5);
    struct rig_run run = { .policy = &watched,
                           .options = "sink=5,recent=20,sparsity=0.5,measure_window=17",
                           .budget = 0,
                           .id = id,
                           .n_ctx = N_CTX };
    struct rig_session rs = { 0 };
    RIG_OK(&r.err,
           kvl_planned_create(&watched, rig_shape(&r), run.options, 0, N_CTX, &rs.planned, &r.err));
    RIG_OK(&r.err, kvl_engine_observe(r.engine, kvl_planned_observers(rs.planned), &r.err));
    RIG_OK(&r.err, kvl_session_create(r.engine, &rs.s, &r.err));
    rig_context(&r, &run, rs.planned, rs.s);
    for (int i = 0; i < 4; i++)
        if (fabs((double)measured[i] - wanted[i]) > 1e-5)
            fail_msg("gate %d is %g, want %g", i, (double)measured[i], wanted[i]);
    float *logits = rig_logits(&r, 4);
    rig_decode(&r, &rs, id + N_CTX, 4, logits);
    for (int32_t i = 0; i < 4; i++) {
        int32_t rank = 0, pos[N_CTX + 4], n = 0, end = N_CTX + 4;
        for (int32_t j = 0; j < 4; j++)
            rank += measured[j] < measured[i] || (measured[j] <= measured[i] && j > i);
        for (int32_t j = 0; j < end; j++)
            if (rank >= 2 || j < 5 || j > end - 20) pos[n++] = j;
        rig_expect_kept(&rs, i / 2, i % 2, pos, n);
    }
    kvl_free(logits);
    rig_end(&rs);
    rig_close(&r);
}

/* prefill: own counts what full and streaming heads read; the first chunk is
 * dense. */
static void test_own(void **state)
{
    struct rig r;
    int32_t id[N_CTX];
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 2, .n_kv_heads = 2, .seed = 6 } });
    rig_tokens(id, N_CTX, 5);
    struct rig_run run = { .policy = &duo_attention,
                           .options = "sink=5,recent=20,sparsity=0.5,chunk=64",
                           .budget = 0,
                           .id = id,
                           .n_ctx = N_CTX };
    struct rig_session rs = { 0 };
    RIG_OK(&r.err, kvl_planned_create_own(&duo_attention, rig_shape(&r), run.options, 0, N_CTX,
                                          &rs.planned, &r.err));
    RIG_OK(&r.err, kvl_session_create(r.engine, &rs.s, &r.err));
    rig_context(&r, &run, rs.planned, rs.s);
    int64_t want = 0, group = rig_shape(&r)->n_heads / 2;
    for (int32_t i = 0; i < N_CTX; i++) /* two of the four lanes are full */
        want += group * 2 * ((i + 1) + (i < 64 ? i + 1 : KVL_MIN(i + 1, 25)));
    assert_int_equal(kvl_session_counters(rs.s)->prefill_pairs, want);
    assert_int_equal(kvl_session_counters(rs.s)->n_evicted, 2 * (N_CTX - 24));
    rig_end(&rs);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantile), cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_tables),   cmocka_unit_test(test_measured),
        cmocka_unit_test(test_own),
    };
    return cmocka_run_group_tests_name("duo_attention", tests, NULL, NULL);
}
