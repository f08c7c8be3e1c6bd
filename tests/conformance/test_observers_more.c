/* What policies may ask about queries, projected values, inputs and tokens: the right answers, and refusals that name what
 * was not asked for in plan.  With KVL_TEST_CUDA, on the emulated GPU. */
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

static int ask_inputs(struct kvl_pctx *ctx, int32_t layer)
{
    const float *score;
    int32_t n;
    return kvl_obs_columns(ctx, layer, KVL_OBS_INPUTS, 7, &score, &n);
}

static int ask_step_inputs(struct kvl_pctx *ctx, int32_t layer)
{
    float score[8];
    return kvl_step_inputs(ctx, layer, 7, score);
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
    run(ask_inputs, 0, "(observer 9) of 7 queries were not asked for in plan");
    run(ask_step_inputs, 0, "is there in append of a step");
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

/* ---- scores of inputs ------------------------------------------------------------------------------------------ */

static struct kvl_input_scorer scorer;
static int n_loaded;
static float worst; /* what a score is */
static float told[2][2][N_CTX];

static int inputs_plan(struct kvl_plan *plan)
{
    return kvl_plan_inputs(plan, &scorer);
}

static int inputs_load(const struct kvl_input_scorer *from, const struct kvl_shape *shape,
                       void *memory, struct kvl_err *err)
{
    n_loaded++;
    *(float *)memory = 2;
    if (shape->n_layers == 2) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL, "of %d layers, key %d", shape->n_layers, from->key);
}

static int inputs_score(const struct kvl_pctx *ctx, const void *memory, int32_t layer,
                        const float *x, int32_t n, float *score)
{
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        for (int32_t i = 0; i < n; i++)
            score[h * n + i] =
                *(const float *)memory * x[i * ctx->shape->n_embd + h] + (float)layer + worst;
    return KVL_OK;
}

static int inputs_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                         const float *v)
{
    float score[8];
    (void)k;
    (void)v;
    if (step->replay) return KVL_OK;
    KVL_TRY(kvl_step_inputs(ctx, step->layer, 5, score));
    for (int32_t h = 0; h < 2; h++) told[step->layer][h][step->pos] = score[h];
    return KVL_OK;
}

/* Of the context but its last token, whose score comes in append. */
static int inputs_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const float *score;
    int32_t n;
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_INPUTS, 5, &score, &n));
    for (int32_t h = 0; h < 2; h++)
        memcpy(told[layer][h], score + (size_t)h * (size_t)n, (size_t)n * sizeof *score);
    return KVL_OK;
}

RIG_POLICY(inputs, .caps = KVL_CAP_BOUND, .plan = inputs_plan, .append = inputs_append,
           .prefilled = inputs_prefilled);

/* What a query says of its layer's input, x, in a prefill of the policy's own. */
static int own_mask(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                    struct kvl_prefill_mask *mask)
{
    (void)mask;
    for (int32_t i = 0; i < step->n_tok; i++)
        for (int32_t h = 0; h < 2; h++) {
            float want = 2 * q->x[i * ctx->shape->n_embd + h] + (float)step->layer;
            float got = told[step->layer][h][step->pos + i];
            assert_true(fabsf(want - got) < 1e-4f * (1 + fabsf(want)));
        }
    return KVL_OK;
}

RIG_POLICY(own, .caps = KVL_CAP_BOUND, .prefill = KVL_PREFILL_OWN, .prefill_mask = own_mask);

static const struct kvl_input_scorer good = {
    .key = 5, .looks = true, .bytes = sizeof(float), .load = inputs_load, .score = inputs_score
};

static void open_inputs(struct rig *r, uint32_t n_layers)
{
    rig_open(r, &(struct rig_desc){ .llama = { .n_layers = n_layers, .n_kv_heads = 2, .seed = 3 },
                                    .chunk_tok = 9 });
    rig_tokens(id, N_CTX, 5);
    scorer = good;
    worst = 0;
    n_loaded = 0;
}

/* Scores of the context and of a token behind it, against what another policy is shown of the same tokens. */
static void test_scores_of_inputs(void **state)
{
    struct rig r;
    (void)state;
    open_inputs(&r, 2);
    memset(told, 0, sizeof told);
    struct rig_run run = { .policy = &inputs, .id = id, .n_ctx = N_CTX - 1, .n_steps = 1 };
    for (int i = 0; i < 2; i++) kvl_free(rig_run(&r, &run));
    assert_int_equal(n_loaded, 1); /* once per engine */
    run = (struct rig_run){ .policy = &own, .id = id, .n_ctx = N_CTX };
    struct rig_session rs = rig_start(&r, &run);
    rig_end(&rs);
    rig_close(&r);
}

static void expect_planned(struct rig *r, const char *why)
{
    struct kvl_planned *p;
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_planned_create(&inputs, rig_shape(r), "", 0, N_CTX, &p, &err),
                     KVL_EPOLICY);
    if (!strstr(err.msg, why)) fail_msg("\"%s\" does not say \"%s\"", err.msg, why);
    scorer = good;
}

static void test_scorers_that_are_none(void **state)
{
    struct kvl_planned *p;
    struct kvl_session *s;
    struct rig r;
    (void)state;
    open_inputs(&r, 2);
    scorer.key = -1;
    expect_planned(&r, "key -1");
    scorer.bytes = 0;
    expect_planned(&r, "0 bytes");
    scorer.score = NULL;
    expect_planned(&r, "without load or score");
    RIG_OK(&r.err, kvl_planned_create(&inputs, rig_shape(&r), "", 0, N_CTX, &p, &r.err));
    rig_observe(&r, p);
    RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
    worst = NAN;
    assert_int_equal(kvl_session_prefill(s, id, N_CTX, NULL, true, &r.err), KVL_ENUMERIC);
    assert_non_null(strstr(r.err.msg, "an input of layer 0 is a NaN"));
    kvl_session_destroy(s);
    rig_close(&r);
    open_inputs(&r, 3); /* load refuses, and is asked again */
    for (int i = 1; i <= 2; i++) {
        assert_int_equal(kvl_engine_observe(r.engine, kvl_planned_observers(p), &r.err),
                         KVL_EINVAL);
        assert_non_null(strstr(r.err.msg, "of 3 layers, key 5"));
        assert_int_equal(n_loaded, i);
        kvl_err_clear(&r.err);
    }
    kvl_planned_destroy(p);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_norms_of_projected_values),
        cmocka_unit_test(test_scores_of_inputs),
        cmocka_unit_test(test_scorers_that_are_none),
    };
    return cmocka_run_group_tests_name("observers_more", tests, NULL, NULL);
}
