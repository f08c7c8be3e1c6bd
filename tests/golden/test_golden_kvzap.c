/* KVzap: what its networks say of hidden states that were written down token by token, and what the policy, a threshold
 * and cuts of the answer make of it.  With KVL_TEST_CUDA, on the emulated GPU. */
#include "golden/one_shot.h"
#include "net_writer.h"

extern const struct kvl_policy *const kvl_policy_kvzap,
    *const kvl_policy_dms, *const kvl_policy_dms_decode, *const kvl_policy_decode,
                                                             *const kvl_policy_knorm;

enum { N = 90, STEPS = 20, LAYERS = 2, KV = 2, EMBD = 64 };

static const struct gw_llama llama = {
    .n_layers = LAYERS, .n_heads = 4, .n_kv_heads = KV, .n_embd = EMBD, .head_dim = 16, .seed = 8
};
static struct shot shot;
static float input[LAYERS][N + STEPS][EMBD];

/* ---- inputs, one by one ------------------------------------------------------------------------------------ */

static int runner_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)ctx;
    (void)sel;
    memcpy(input[step->layer][step->pos], q->x, sizeof input[0][0]);
    return KVL_OK;
}

RIG_POLICY(runner, .caps = KVL_CAP_SELECTS, .prefill = KVL_PREFILL_EITHER, .select = runner_select);

static int open_shot(void **state)
{
    struct kvl_planned *p;
    struct kvl_session *s;
    (void)state;
    shot_open(&shot, &llama, N, 3);
    for (int32_t i = N; i < N + STEPS; i++) shot.id[i] = GW_BYTE0 + (i * 7 + 3) % 250;
    struct kvl_err *err = &shot.r.err;
    RIG_OK(err, kvl_planned_create_own(&runner, rig_shape(&shot.r), "", 0, N, &p, err));
    rig_observe(&shot.r, p);
    RIG_OK(err, kvl_session_create(shot.r.engine, &s, err));
    RIG_OK(err, kvl_session_attach(s, p, 0, KVL_EXEC_REAL, err));
    RIG_OK(err, kvl_session_extend(s, shot.id, N + STEPS, err));
    kvl_session_destroy(s);
    kvl_planned_destroy(p);
    return 0;
}

static int close_shot(void **state)
{
    (void)state;
    shot_close(&shot);
    return 0;
}

/* ---- a budget -------------------------------------------------------------------------------------------- */

static double said(const struct nw *w, int32_t layer, int32_t kv_head, int32_t i)
{
    double y[KV];
    nw_score(w, layer, input[layer][i], y);
    return y[kv_head];
}

static void net_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                       double *score)
{
    (void)t;
    for (int32_t i = 0; i < N; i++) score[i] = said(with, layer, kv_head, i);
}

/* Types of a file, and networks with a hidden layer and without. */
static void test_keeps_what_the_networks_like(void **state)
{
    static const struct {
        int32_t hidden;
        const char *dtype;
    } ways[] = { { 0, "F32" }, { 0, "BF16" }, { 24, "F32" }, { 40, "F16" }, { 1, "BF16" } };
    static struct nw w;
    char options[128];
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        nw_open(&w, LAYERS, EMBD, ways[i].hidden, KV, ways[i].dtype, 5 + i);
        snprintf(options, sizeof options, "weights=%s", w.path);
        for (int32_t budget = 2; budget <= N + 1; budget += 22) {
            struct rig_session rs = shot_policy(&shot, kvl_policy_kvzap, options, budget);
            shot_expect_best(&shot, &rs, budget - 1, net_scores, &w);
            rig_end(&rs);
        }
        nw_close(&w);
    }
}

/* Two files are two observers of one prefill. */
static void test_files_do_not_mix(void **state)
{
    static struct nw w[2];
    struct kvl_observer_set set = { 0 };
    struct kvl_planned *p[2];
    struct kvl_session *s;
    struct kvl_err *err = &shot.r.err;
    char options[128];
    (void)state;
    for (int i = 0; i < 2; i++) {
        nw_open(&w[i], LAYERS, EMBD, 8 * i, KV, "F32", 5);
        snprintf(options, sizeof options, "weights=%s", w[i].path);
        RIG_OK(err, kvl_planned_create(kvl_policy_kvzap, rig_shape(&shot.r), options, 20, N, &p[i],
                                       err));
        RIG_OK(err, kvl_observer_set_merge(&set, kvl_planned_observers(p[i]), err));
    }
    assert_int_equal(set.n_columns, 2);
    RIG_OK(err, kvl_engine_observe(shot.r.engine, &set, err));
    RIG_OK(err, kvl_session_create(shot.r.engine, &s, err));
    RIG_OK(err, kvl_session_prefill(s, shot.id, N, NULL, true, err));
    for (int i = 0; i < 2; i++) {
        struct rig_session rs = { .planned = p[i] };
        RIG_OK(err, kvl_session_fork(s, &rs.s, err));
        RIG_OK(err, kvl_session_attach(rs.s, p[i], 0, KVL_EXEC_REAL, err));
        shot_expect_best(&shot, &rs, 19, net_scores, &w[i]);
        rig_end(&rs);
        nw_close(&w[i]);
    }
    kvl_session_destroy(s);
}

/* ---- without networks -------------------------------------------------------------------------------------- */

static float target[LAYERS][KV][N];

static int told_plan(struct kvl_plan *plan)
{
    return kvl_plan_observe(plan, KVL_OBS_REPLAY_PLUS, 30);
}

static int told_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const float *score;
    int32_t n;
    scores->keep_tok = scores->n_tok;
    KVL_TRY(kvl_obs_replay(ctx, layer, KVL_OBS_REPLAY_PLUS, 30, &score, &n));
    memcpy(target[layer], score, sizeof target[layer]);
    return KVL_OK;
}

RIG_POLICY(told, .caps = KVL_CAP_EVICTS, .plan = told_plan, .score = told_score);

static void target_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                          double *score)
{
    (void)t;
    (void)with;
    for (int32_t i = 0; i < N; i++) score[i] = (double)target[layer][kv_head][i];
}

static int tapped(void *user, const struct kvl_tap_score *s, struct kvl_err *err)
{
    (void)err;
    for (int32_t i = 0; i < KV * N; i++) {
        double want = log((double)target[s->layer][i / N][i % N]);
        assert_true(fabs((double)s->score[i] - want) < 1e-5 * (1 + fabs(want)));
        ++*(int32_t *)user;
    }
    return KVL_OK;
}

/* The logarithm of KVzip+, in the order of KVzip+. */
static void test_without_networks(void **state)
{
    int32_t n_tapped = 0;
    struct kvl_planned *p;
    struct kvl_session *s;
    struct kvl_err *err = &shot.r.err;
    (void)state;
    struct rig_session rs = shot_policy(&shot, &told, "", 0);
    rig_end(&rs);
    rs = shot_policy(&shot, kvl_policy_kvzap, "chunk_size=30", 31);
    shot_expect_best(&shot, &rs, 30, target_scores, NULL);
    rig_end(&rs);
    RIG_OK(err, kvl_planned_create(kvl_policy_kvzap, rig_shape(&shot.r), "chunk_size=30", 31, N, &p,
                                   err));
    rig_observe(&shot.r, p);
    RIG_OK(err, kvl_session_create(shot.r.engine, &s, err));
    RIG_OK(err, kvl_session_prefill(s, shot.id, N, NULL, true, err));
    kvl_session_tap(s, &(struct kvl_tap){ .user = &n_tapped, .score = tapped });
    RIG_OK(err, kvl_session_attach(s, p, 0, KVL_EXEC_REAL, err));
    assert_int_equal(n_tapped, LAYERS * KV * N);
    kvl_session_destroy(s);
    kvl_planned_destroy(p);
}

/* ---- inside a wrapper --------------------------------------------------------------------------------------- */

static struct rig_session wrapped(const struct kvl_policy *outer, const char *options,
                                  const struct nw *w, int32_t budget,
                                  const struct kvl_policy **composed)
{
    char all[192];
    snprintf(all, sizeof all, "%s%skvzap.weights=%s", options, *options ? "," : "", w->path);
    RIG_OK(&shot.r.err, kvl_policy_compose(outer, kvl_policy_kvzap, composed, &shot.r.err));
    return shot_policy(&shot, *composed, all, budget);
}

static void test_a_threshold(void **state)
{
    static const double limits[] = { -6, 0, 4.5 };
    static struct nw w;
    const struct kvl_policy *composed;
    char options[64];
    (void)state;
    nw_open(&w, LAYERS, EMBD, 16, KV, "F32", 7);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        snprintf(options, sizeof options, "threshold=%g,window=20", limits[i]);
        struct rig_session rs = wrapped(kvl_policy_dms, options, &w, 40, &composed);
        for (int32_t lane = 0; lane < LAYERS * KV; lane++) {
            int32_t want[N], n = 0;
            for (int32_t t = 0; t < N; t++)
                if (t >= N - 20 || said(&w, lane / KV, lane % KV, t) >= limits[i]) want[n++] = t;
            assert_true(n > 20 && n < N);
            rig_expect_kept(&rs, lane / KV, lane % KV, want, n);
        }
        rig_end(&rs);
        kvl_policy_decompose(composed);
    }
    nw_close(&w);
}

/* Tokens of a lane that are within the window, or not below a limit. */
static int32_t above(const struct nw *w, int32_t layer, int32_t kv_head, int32_t n, int32_t window,
                     double limit, int32_t *want)
{
    int32_t n_want = 0;
    for (int32_t t = 0; t < n; t++)
        if (t >= n - window || said(w, layer, kv_head, t) >= limit) want[n_want++] = t;
    return n_want;
}

/* Every token is judged once, when it leaves the window.  What enters the first layer does not depend on what was
 * dropped; of the second, tokens of the context. */
static void test_a_threshold_while_decoding(void **state)
{
    static const int32_t windows[] = { 7, 20, 100 };
    static struct nw w;
    const struct kvl_policy *composed;
    char options[64];
    (void)state;
    nw_open(&w, LAYERS, EMBD, 16, KV, "F32", 7);
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        int32_t window = windows[i], want[N + STEPS], pos[N + STEPS], dropped = 0;
        snprintf(options, sizeof options, "threshold=0.5,window=%d", window);
        struct rig_session rs = wrapped(kvl_policy_dms_decode, options, &w, 130, &composed);
        float *logits = rig_logits(&shot.r, 1);
        for (int32_t n = N; n <= N + STEPS; n++) {
            if (n > N) rig_decode(&shot.r, &rs, shot.id + n - 1, 1, logits);
            for (int32_t h = 0; h < KV; h++) {
                int32_t n_want = above(&w, 0, h, n, window, .5, want);
                rig_expect_kept(&rs, 0, h, want, n_want);
                dropped += n - n_want;
                n_want = above(&w, 1, h, n, window, .5, want);
                int32_t n_kept = rig_kept(&rs, 1, h, pos);
                for (int32_t k = 0; k < n_want && want[k] < N; k++)
                    assert_true(k < n_kept && pos[k] == want[k]);
            }
        }
        assert_true(dropped > 0);
        kvl_free(logits);
        rig_end(&rs);
        kvl_policy_decompose(composed);
    }
    nw_close(&w);
}

/* By the budget: the answer is judged by what the context came to. */
static void test_a_budget_while_decoding(void **state)
{
    const struct kvl_policy *composed;
    double score[LAYERS * KV * N], limit[LAYERS];
    struct rig_session rs;
    int32_t pos[N + STEPS];
    (void)state;
    for (int32_t l = 0; l < LAYERS; l++) {
        int32_t n = 0;
        for (int32_t h = 0; h < KV; h++) {
            float *k = shot_read(&shot, l, h, KVL_PART_K);
            for (int32_t t = 0; t < N - 9; t++, n++) {
                score[n] = 0;
                for (int32_t c = 0; c < 16; c++) score[n] -= pow((double)k[t * 16 + c], 2);
            }
            kvl_free(k);
        }
        uint8_t mark[LAYERS * KV * N];
        record_top(score, n, KV * (40 - 1 - 9), mark);
        limit[l] = 0;
        for (int32_t t = 0; t < n; t++)
            if (mark[t]) limit[l] = fmin(limit[l], score[t]);
    }
    RIG_OK(&shot.r.err,
           kvl_policy_compose(kvl_policy_dms_decode, kvl_policy_knorm, &composed, &shot.r.err));
    rs = shot_policy(&shot, composed, "window=9,horizon=6", 46);
    float *logits = rig_logits(&shot.r, STEPS);
    rig_decode(&shot.r, &rs, shot.id + N, STEPS, logits);
    int32_t dropped = 0;
    for (int32_t lane = 0; lane < LAYERS * KV; lane++) {
        int32_t n = rig_kept(&rs, lane / KV, lane % KV, pos);
        float *k = rig_floats((size_t)n * 16);
        RIG_OK(&shot.r.err, kvl_seq_read(kvl_session_seq(rs.s), lane / KV, lane % KV, KVL_PART_K, 0,
                                         n, k, &shot.r.err));
        for (int32_t t = n - 9; t < n; t++) assert_int_equal(pos[t], N + STEPS - n + t);
        kvl_seq_positions(kvl_session_seq(rs.s), lane / KV, lane % KV, pos); /* as they lie */
        for (int32_t t = 0; t < n; t++) {
            double s = 0;
            for (int32_t c = 0; c < 16; c++) s -= pow((double)k[t * 16 + c], 2);
            assert_true(pos[t] >= N + STEPS - 9 || s >= limit[lane / KV] * (1 + 1e-5));
        }
        for (int32_t t = 0; t < n; t++) dropped -= pos[t] >= N;
        dropped += STEPS;
        kvl_free(k);
    }
    assert_true(dropped > 0);
    kvl_free(logits);
    rig_end(&rs);
    kvl_policy_decompose(composed);
}

/* The best of the context and of what came behind it, whose scores are made at every step. */
static void test_cuts_of_the_answer(void **state)
{
    static struct nw w;
    const struct kvl_policy *composed;
    uint8_t mark[N + STEPS];
    double score[N + STEPS];
    (void)state;
    for (int32_t hidden = 0; hidden <= 24; hidden += 24) {
        nw_open(&w, LAYERS, EMBD, hidden, KV, "F32", 9);
        struct rig_session rs = wrapped(
            kvl_policy_decode, "cut_context=false,target=40,interval=20", &w, 61, &composed);
        float *logits = rig_logits(&shot.r, STEPS);
        rig_decode(&shot.r, &rs, shot.id + N, STEPS, logits);
        int32_t later = 0;
        for (int32_t lane = 0; lane < LAYERS * KV; lane++) {
            int32_t want[N + STEPS], n = 0;
            for (int32_t t = 0; t < N + STEPS; t++) score[t] = said(&w, lane / KV, lane % KV, t);
            record_top(score, N + STEPS, 40, mark);
            for (int32_t t = 0; t < N + STEPS; t++)
                if (mark[t]) want[n++] = t;
            later += want[n - 1] >= N;
            rig_expect_kept(&rs, lane / KV, lane % KV, want, n);
        }
        assert_true(later > 0);
        kvl_free(logits);
        rig_end(&rs);
        kvl_policy_decompose(composed);
        nw_close(&w);
    }
}

/* ---- files that are no networks of this model --------------------------------------------------------------- */

static void refused(const struct nw *w, const char *why)
{
    struct kvl_planned *p;
    struct kvl_err err = { 0 };
    char options[128];
    snprintf(options, sizeof options, "weights=%s", w->path);
    assert_int_equal(
        kvl_planned_create(kvl_policy_kvzap, rig_shape(&shot.r), options, 20, N, &p, &err),
        KVL_EINVAL);
    if (!strstr(err.msg, why)) fail_msg("\"%s\" does not say \"%s\"", err.msg, why);
}

static void test_other_files(void **state)
{
    static struct nw w;
    static const struct {
        int32_t n_layers, n_in, hidden, n_out, wrong;
        const char *dtype, *name;
        bool narrow;
        const char *why;
    } files[] = {
        { 1, EMBD, 0, KV, -1, "F32", NULL, false, "networks of 1 layers, the model has 2" },
        { 2, EMBD - 1, 0, KV, -1, "F32", NULL, false, "layers.0.weight is 2 x 63, want 2 x 64" },
        { 2, EMBD, 0, KV + 1, -1, "F32", NULL, false, "layers.0.weight is 3 x 64, want 2 x 64" },
        { 2, EMBD, 9, KV, 6, "F32", NULL, true, "layers.1.2.weight is 2 x 8, want 2 x 9" },
        { 2, EMBD, 9, KV, 5, "F32", NULL, true, "layers.1.0.bias is 1 x 8, want 1 x 9" },
        { 2, EMBD, 0, KV, 0, "F32", "module.0", false, "no tensor layers.0.weight or layers.0.0" },
        { 2, EMBD, 0, KV, 3, "F32", "module.0", false, "no tensor layers.1.bias" },
        { 2, EMBD, 0, KV, 0, "I16", NULL, false, "layers.0.weight is I16, want F32, F16 or BF16" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        nw_open(&w, files[i].n_layers, files[i].n_in, files[i].hidden, files[i].n_out,
                files[i].dtype, 4);
        w.wrong = files[i].wrong;
        w.name = files[i].name;
        w.narrow = files[i].narrow;
        nw_save(&w);
        refused(&w, files[i].why);
        nw_close(&w);
    }
    nw_open(&w, 2, EMBD, 0, KV, "F32", 4);
    gw_check(truncate(w.path, 300) == 0);
    refused(&w, "weights: ");
    nw_close(&w);
    refused(&w, "missing or empty");
}

/* What a plan need not know: layers beyond the model's, and weights that are no numbers. */
static void test_refused_when_loaded(void **state)
{
    static struct nw w;
    struct kvl_err err = { 0 };
    struct kvl_planned *p;
    char options[128];
    (void)state;
    for (int i = 0; i < 2; i++) {
        nw_open(&w, i ? 2 : 3, EMBD, 0, KV, "F32", 4);
        if (i) w.w[5] = NAN;
        nw_save(&w);
        snprintf(options, sizeof options, "weights=%s", w.path);
        RIG_OK(&err,
               kvl_planned_create(kvl_policy_kvzap, rig_shape(&shot.r), options, 20, N, &p, &err));
        assert_int_equal(kvl_engine_observe(shot.r.engine, kvl_planned_observers(p), &err),
                         KVL_EINVAL);
        const char *why = i ? "element 5 of tensor layers.0.weight is not finite"
                            : "networks of 3 layers, the model has 2";
        if (!strstr(err.msg, why)) fail_msg("\"%s\" does not say \"%s\"", err.msg, why);
        kvl_err_clear(&err);
        kvl_planned_destroy(p);
        nw_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keeps_what_the_networks_like),
        cmocka_unit_test(test_files_do_not_mix),
        cmocka_unit_test(test_without_networks),
        cmocka_unit_test(test_a_threshold),
        cmocka_unit_test(test_a_threshold_while_decoding),
        cmocka_unit_test(test_a_budget_while_decoding),
        cmocka_unit_test(test_cuts_of_the_answer),
        cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_refused_when_loaded),
    };
    return cmocka_run_group_tests(tests, open_shot, close_shot);
}
