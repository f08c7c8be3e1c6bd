/* What policies may ask about queries, projected values and tokens: the right answers, and refusals that
 * name what was not asked for in plan. */
#include "conformance/rig.h"

#include "engine_impl.h"
#include "ref.h"

enum { N_CTX = 40, WINDOW = 64 };

static int (*ask)(struct kvl_pctx *ctx, int32_t layer);
static bool planned; /* asks in plan, too */

static int asker_plan(struct kvl_plan *plan)
{
    if (!planned) return KVL_OK;
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, WINDOW));
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_MOMENTS, 4));
    return kvl_plan_observe(plan, KVL_OBS_REPLAY, 16);
}

static int asker_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    scores->keep_tok = scores->n_tok;
    return layer == 1 ? ask(ctx, layer) : KVL_OK;
}

static struct kvl_policy asker = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "asker",
    .title = "Asker",
    .paper = "none",
    .help = "asks",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .plan = asker_plan,
    .score = asker_score,
};

static int32_t id[N_CTX];

/* Attaches the asker; `why` NULL: it must work. */
static void run(int (*what)(struct kvl_pctx *ctx, int32_t layer), uint32_t caps, const char *why)
{
    struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = 2, .seed = 3 } };
    struct kvl_planned *p;
    struct kvl_session *s;
    struct rig r;
    ask = what;
    asker.caps = KVL_CAP_EVICTS | caps;
    rig_open(&r, &desc);
    rig_tokens(id, N_CTX, 5);
    RIG_OK(&r.err, kvl_planned_create(&asker, rig_shape(&r), "", 0, N_CTX, &p, &r.err));
    rig_observe(&r, p);
    RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
    RIG_OK(&r.err, kvl_session_prefill(s, id, N_CTX, NULL, true, &r.err));
    int rc = kvl_session_attach(s, p, 0, KVL_EXEC_REAL, &r.err);
    if (!why) {
        RIG_OK(&r.err, rc);
    } else {
        assert_int_not_equal(rc, KVL_OK);
        if (!strstr(r.err.msg, why)) fail_msg("\"%s\" does not say \"%s\"", r.err.msg, why);
    }
    kvl_session_destroy(s);
    kvl_planned_destroy(p);
    rig_close(&r);
}

static int ask_tokens(struct kvl_pctx *ctx, int32_t layer)
{
    const int32_t *got;
    int32_t n;
    (void)layer;
    KVL_TRY(kvl_tokens(ctx, &got, &n));
    assert_int_equal(n, N_CTX);
    assert_memory_equal(got, id, sizeof id);
    assert_int_equal(kvl_token_class(ctx, id[0]), KVL_TOKEN_SPECIAL);
    assert_int_equal(kvl_token_class(ctx, GW_BYTE0 + '.'), KVL_TOKEN_PUNCT);
    assert_int_equal(kvl_token_class(ctx, GW_BYTE0 + 'x'), 0);
    return KVL_OK;
}

static int ask_moments(struct kvl_pctx *ctx, int32_t layer)
{
    const float *mean, *cov;
    int32_t n;
    return kvl_obs_moments(ctx, layer, planned ? 5 : 4, &mean, &cov, &n);
}

static int ask_replay(struct kvl_pctx *ctx, int32_t layer)
{
    const float *score;
    int32_t n;
    return kvl_obs_replay(ctx, layer, KVL_OBS_REPLAY, planned ? 17 : 16, &score, &n);
}

static int ask_plus(struct kvl_pctx *ctx, int32_t layer)
{
    const float *score;
    int32_t n;
    return kvl_obs_replay(ctx, layer, KVL_OBS_REPLAY_PLUS, 16, &score, &n);
}

static int ask_query(struct kvl_pctx *ctx, int32_t layer)
{
    float q[256];
    return kvl_obs_window_query(ctx, layer, planned ? WINDOW : 0, q);
}

static int ask_older_query(struct kvl_pctx *ctx, int32_t layer)
{
    float q[256];
    return kvl_obs_window_query(ctx, layer, N_CTX, q);
}

static int ask_kv_head(struct kvl_pctx *ctx, int32_t layer)
{
    float x[256] = { 0 };
    return kvl_output_norms(ctx, layer, 2, x, 1, 2, x);
}

static void test_refusals(void **state)
{
    (void)state;
    planned = false;
    run(ask_tokens, 0, "without KVL_CAP_TOKENS");
    run(ask_moments, 0, "moments of queries from 4 on were not asked for in plan");
    run(ask_replay, 0, "in chunks of 16 was not asked for in plan");
    run(ask_query, 0, "was not asked for in plan");
    run(ask_kv_head, 0, "of kv head 2");
    planned = true;
    run(ask_moments, 0, "moments of queries from 5 on were not asked for in plan");
    run(ask_replay, 0, "in chunks of 17 was not asked for in plan");
    run(ask_plus, 0, "was not asked for in plan");
    run(ask_query, 0, "window of 65 queries");
    run(ask_older_query, 0, "the context has only 40 tokens");
    run(ask_tokens, KVL_CAP_TOKENS, NULL);
}

/* Length of the projection of values by the columns of each query head. */
static int ask_norms(struct kvl_pctx *ctx, int32_t layer)
{
    enum { N = 300 };
    const struct kvl_shape *sh = ctx->shape;
    const struct kvl_weight *w = &ctx->host->session->engine->model->w.layer[layer].attn_output;
    int32_t dim = sh->head_dim, group = sh->n_heads / sh->n_kv_heads, kv = 1;
    float *v = rig_floats((size_t)(N * dim)), *got = rig_floats((size_t)(group * N));
    struct kvl_rng rng;
    kvl_rng_seed(&rng, 1);
    for (int32_t i = 0; i < N * dim; i++) v[i] = (float)kvl_rng_f64(&rng) - .5f;
    for (int norm = 1; norm <= 2; norm++) {
        KVL_TRY(kvl_output_norms(ctx, layer, kv, v, N, norm, got));
        for (int32_t i = 0; i < group * N; i += 7) {
            double sum = 0;
            for (int32_t row = 0; row < sh->n_embd; row++) {
                double y = 0;
                for (int32_t c = 0; c < dim; c++)
                    y += (double)kvl_ref_weight(w, row, (kv * group + i / N) * dim + c) *
                         (double)v[i % N * dim + c];
                sum += norm == 1 ? fabs(y) : y * y;
            }
            assert_true(fabs((double)got[i] - (norm == 1 ? sum : sqrt(sum))) < 1e-4 * (1 + sum));
        }
    }
    kvl_free(v);
    kvl_free(got);
    return KVL_OK;
}

static void test_norms_of_projected_values(void **state)
{
    (void)state;
    planned = false;
    run(ask_norms, 0, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_norms_of_projected_values),
    };
    return cmocka_run_group_tests_name("observers_more", tests, NULL, NULL);
}
