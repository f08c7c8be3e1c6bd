/* The networks that kvlab tables kvzap fits: the normal equations of a ridge regression hold for inputs and scores that
 * other policies wrote down, and what is said of held out texts is what their tokens say. */
#include "conformance/rig.h"
#include "fit_inputs.h"

extern const struct kvl_policy *const kvl_policy_kvzap;

enum { LAYERS = 2, KV = 2, EMBD = 32, N_TOK = 70, N_TEXTS = 3 };

static float input[N_TEXTS][LAYERS][N_TOK][EMBD], target[N_TEXTS][LAYERS][KV][N_TOK];
static int32_t text[N_TEXTS][N_TOK];
static int at; /* the text at hand */

static int runner_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)ctx;
    (void)sel;
    memcpy(input[at][step->layer][step->pos], q->x, sizeof input[0][0][0]);
    return KVL_OK;
}

RIG_POLICY(runner, .caps = KVL_CAP_SELECTS, .prefill = KVL_PREFILL_EITHER, .select = runner_select);

static int told_plan(struct kvl_plan *plan)
{
    return kvl_plan_observe(plan, KVL_OBS_REPLAY_PLUS, 2048);
}

static int told_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const float *score;
    int32_t n;
    scores->keep_tok = scores->n_tok;
    KVL_TRY(kvl_obs_replay(ctx, layer, KVL_OBS_REPLAY_PLUS, 2048, &score, &n));
    for (int32_t i = 0; i < KV * n; i++) target[at][layer][i / n][i % n] = logf(score[i]);
    return KVL_OK;
}

RIG_POLICY(told, .caps = KVL_CAP_EVICTS, .plan = told_plan, .score = told_score);

static void write_down(struct rig *r, const struct kvl_policy *policy, bool own)
{
    struct kvl_planned *p;
    struct kvl_session *s;
    RIG_OK(&r->err, (own ? kvl_planned_create_own : kvl_planned_create)(policy, rig_shape(r), "", 0,
                                                                        N_TOK, &p, &r->err));
    rig_observe(r, p);
    RIG_OK(&r->err, kvl_session_create(r->engine, &s, &r->err));
    if (!own) RIG_OK(&r->err, kvl_session_prefill(s, text[at], N_TOK, NULL, true, &r->err));
    RIG_OK(&r->err, kvl_session_attach(s, p, 0, KVL_EXEC_REAL, &r->err));
    if (own) RIG_OK(&r->err, kvl_session_extend(s, text[at], N_TOK, &r->err));
    kvl_session_destroy(s);
    kvl_planned_destroy(p);
}

static double left(const float *map, int t, int32_t layer, int32_t head, int32_t i)
{
    double y = (double)target[t][layer][head][i] - (double)map[KV * EMBD + head];
    for (int32_t c = 0; c < EMBD; c++)
        y -= (double)map[head * EMBD + c] * (double)input[t][layer][i][c];
    return y;
}

/* The first two texts were learned from. */
static void expect_normal(const float *map, int32_t layer, int32_t head)
{
    double sum = 0, with[EMBD] = { 0 };
    for (int t = 0; t < 2; t++)
        for (int32_t i = 0; i < N_TOK; i++) {
            double e = left(map, t, layer, head, i);
            sum += e;
            for (int32_t c = 0; c < EMBD; c++) with[c] += e * (double)input[t][layer][i][c];
        }
    assert_true(fabs(sum) < 1e-2);
    for (int32_t c = 0; c < EMBD; c++) {
        double w = (double)map[head * EMBD + c];
        if (!(fabs(with[c] - w) < 1e-2))
            fail_msg("%d.%d.%d: %g, want %g", layer, head, c, with[c], w);
    }
}

static double explained(const float *map, int32_t layer)
{
    double all = 0;
    for (int32_t h = 0; h < KV; h++) {
        double mean = 0, rest = 0, square = 0;
        for (int32_t i = 0; i < N_TOK; i++) mean += (double)target[2][layer][h][i] / N_TOK;
        for (int32_t i = 0; i < N_TOK; i++) {
            rest += pow(left(map, 2, layer, h, i), 2);
            square += pow((double)target[2][layer][h][i] - mean, 2);
        }
        all += (1 - rest / square) / KV;
    }
    return all;
}

static void test_ridge(void **state)
{
    struct rig r;
    struct kvl_input_fit *f;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = LAYERS,
                                                .n_heads = 4,
                                                .n_kv_heads = KV,
                                                .n_embd = EMBD,
                                                .head_dim = 16,
                                                .seed = 9 },
                                     .chunk_tok = 32 });
    RIG_OK(&r.err, kvl_input_fit_create(r.engine, &f, &r.err));
    assert_int_equal(kvl_input_fit_solve(f, &r.err), KVL_EINVAL);
    kvl_err_clear(&r.err);
    for (at = 0; at < N_TEXTS; at++) {
        struct kvl_planned *p;
        rig_tokens(text[at], N_TOK, 20 + (uint64_t)at);
        write_down(&r, &runner, true);
        write_down(&r, &told, false);
        RIG_OK(&r.err,
               kvl_planned_create(kvl_policy_kvzap, rig_shape(&r), "", 2, N_TOK, &p, &r.err));
        RIG_OK(&r.err, kvl_input_fit_text(f, p, text[at], N_TOK, at == 2, &r.err));
        if (at < 2) assert_true(isnan(kvl_input_fit_explains(f, 0)));
        kvl_planned_destroy(p);
    }
    RIG_OK(&r.err, kvl_input_fit_solve(f, &r.err));
    for (int32_t l = 0; l < LAYERS; l++) {
        const float *map = kvl_input_fit_map(f, l);
        for (int32_t h = 0; h < KV; h++) expect_normal(map, l, h);
        assert_true(fabs(kvl_input_fit_explains(f, l) - explained(map, l)) < 1e-4);
    }
    kvl_input_fit_destroy(f);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_ridge) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
