/* Sessions filled without a prefill: whole, as varied as real ones, fit for every policy. */
#include "conformance/rig.h"
#include "registry.h"

enum { N_LAYERS = 3, N_KV = 2, N_HEADS = 4, DIM = 16, N_FILL = 700, WINDOW = 24, BUDGET = 200 };

static const struct rig_desc desc = {
    .llama = { .n_layers = N_LAYERS, .n_kv_heads = N_KV, .n_ctx = 2048, .seed = 5 },
    .kv_type = KVL_KV_F16,
};

static struct kvl_session *filled(struct rig *r, int32_t n, uint64_t seed)
{
    struct kvl_session *s;
    RIG_OK(&r->err, kvl_session_create(r->engine, &s, &r->err));
    RIG_OK(&r->err, kvl_session_fill(s, n, seed, &r->err));
    return s;
}

static void read_lane(const struct kvl_session *s, int32_t layer, int32_t head,
                      enum kvl_kv_part part, float out[N_FILL][DIM])
{
    struct kvl_err err = { 0 };
    RIG_OK(&err, kvl_seq_read(kvl_session_seq(s), layer, head, part, 0, N_FILL, out[0], &err));
}

static void fills_every_lane(void **state)
{
    (void)state;
    static float x[N_FILL][DIM], first[N_FILL][DIM];
    struct rig r;
    rig_open(&r, &desc);
    struct kvl_session *s = filled(&r, N_FILL, 1);
    assert_int_equal(kvl_session_len(s), N_FILL);
    RIG_OK(&r.err, kvl_store_check(kvl_engine_store(r.engine), &r.err));
    for (int32_t lane = 0; lane < N_LAYERS * N_KV; lane++)
        for (int part = KVL_PART_K; part <= KVL_PART_K_RAW; part++) {
            int32_t pos[N_FILL];
            assert_int_equal(kvl_seq_len(kvl_session_seq(s), lane / N_KV, lane % N_KV), N_FILL);
            kvl_seq_positions(kvl_session_seq(s), lane / N_KV, lane % N_KV, pos);
            read_lane(s, lane / N_KV, lane % N_KV, (enum kvl_kv_part)part, x);
            double sum = 0;
            for (int32_t i = 0; i < N_FILL; i++) {
                assert_int_equal(pos[i], i);
                for (int32_t c = 0; c < DIM; c++) {
                    assert_true(x[i][c] >= -1 && x[i][c] <= 1);
                    sum += (double)x[i][c] * (double)x[i][c];
                }
                for (int32_t j = 0; j < i; j++) /* no ties between tokens */
                    assert_memory_not_equal(x[i], x[j], sizeof x[i]);
            }
            assert_true(fabs(sum / (N_FILL * DIM) - 1.0 / 3) < 0.02); /* uniform */
            if (lane + part == 0) memcpy(first, x, sizeof x);
            if (lane + part > 0) assert_memory_not_equal(first, x, sizeof x);
        }
    kvl_session_destroy(s);
    rig_close(&r);
}

static void seeds_decide(void **state)
{
    (void)state;
    static float a[N_FILL][DIM], b[N_FILL][DIM];
    struct rig r;
    rig_open(&r, &desc);
    for (uint64_t seed = 1; seed <= 2; seed++) {
        struct kvl_session *one = filled(&r, N_FILL, 1), *two = filled(&r, N_FILL, seed);
        read_lane(one, 1, 1, KVL_PART_V, a);
        read_lane(two, 1, 1, KVL_PART_V, b);
        assert_int_equal(memcmp(a, b, sizeof a) == 0, seed == 1);
        kvl_session_destroy(one);
        kvl_session_destroy(two);
    }
    rig_close(&r);
}

/* ---- observers ------------------------------------------------------------------------------------ */

static int watched; /* layers that the policy looked at */

static int watch_plan(struct kvl_plan *plan)
{
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, WINDOW));
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_COLUMNS, 0));
    return kvl_plan_observe(plan, KVL_OBS_LOGITS, 9);
}

/* No two neighbours are equal; probabilities are above 0. */
static void expect_varied(const float *x, int32_t n, bool probs)
{
    for (int32_t i = 0; i < n; i++) {
        assert_true(!probs || x[i] > 0);
        assert_true(i == 0 || x[i] < x[i - 1] || x[i] > x[i - 1]);
    }
}

static int watch_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const float *x;
    int32_t n;
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, 0, &x, &n));
    assert_int_equal(n, ctx->context_tok);
    for (int32_t h = 0; h < N_HEADS; h++) expect_varied(x + h * n, n, true);
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_LOGITS, 9, &x, &n));
    for (int32_t h = 0; h < N_HEADS; h++) expect_varied(x + h * n, n, false);
    KVL_TRY(kvl_obs_window_mass(ctx, layer, WINDOW, &x, &n));
    double sum = 0;
    for (int32_t i = 0; i < N_HEADS * n; i++) sum += (double)x[i];
    expect_varied(x, n - WINDOW, true);
    assert_true(fabs(sum - N_HEADS * WINDOW) < 1e-2);
    watched++;
    return KVL_OK;
}

static const struct kvl_policy watcher = { .abi = KVL_POLICY_ABI,
                                           .size = sizeof(struct kvl_policy),
                                           .name = "watcher",
                                           .title = "t",
                                           .paper = "p",
                                           .help = "h",
                                           .version = 1,
                                           .plan = watch_plan,
                                           .prefilled = watch_prefilled };

/* Before and after real prefills, whose keys and sums stay. */
static void observers_go_on(void **state)
{
    (void)state;
    struct rig r;
    struct kvl_planned *p;
    int32_t id[60];
    rig_open(&r, &desc);
    rig_tokens(id, 60, 2);
    RIG_OK(&r.err, kvl_planned_create(&watcher, rig_shape(&r), "", 0, N_FILL, &p, &r.err));
    rig_observe(&r, p);
    struct kvl_session *s;
    RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
    RIG_OK(&r.err, kvl_session_prefill(s, id, 30, NULL, true, &r.err));
    RIG_OK(&r.err, kvl_session_fill(s, N_FILL, 4, &r.err));
    RIG_OK(&r.err, kvl_session_prefill(s, id + 30, 30, NULL, true, &r.err));
    assert_int_equal(kvl_session_len(s), N_FILL + 60);
    watched = 0;
    RIG_OK(&r.err, kvl_session_attach(s, p, 0, KVL_EXEC_REAL, &r.err));
    assert_int_equal(watched, N_LAYERS);
    kvl_session_destroy(s);
    kvl_planned_destroy(p);
    rig_close(&r);
}

/* ---- policies --------------------------------------------------------------------------------------- */

static void decode_forks(struct rig *r, struct kvl_session *s)
{
    float *logits = rig_logits(r, 1), *other = rig_logits(r, 1);
    struct kvl_session *fork;
    RIG_OK(&r->err, kvl_session_fork(s, &fork, &r->err));
    for (int32_t i = 0; i < 3; i++) {
        int32_t id = GW_BYTE0 + i;
        RIG_OK(&r->err, kvl_session_decode(&s, 1, &id, logits, &r->err));
        RIG_OK(&r->err, kvl_session_decode(&fork, 1, &id, other, &r->err));
        rig_expect_same(r, logits, other, 1, "a fork of a filled session");
    }
    kvl_free(logits);
    kvl_free(other);
    kvl_session_destroy(fork);
}

static void every_policy_attaches(void **state)
{
    (void)state;
    struct kvl_registry *reg;
    struct rig r;
    rig_open(&r, &desc);
    RIG_OK(&r.err, kvl_registry_create(&reg, &r.err));
    for (size_t i = 0; i < kvl_registry_n_policies(reg); i++) {
        struct kvl_planned *p;
        const struct kvl_policy *policy = NULL; /* with the one that it wraps */
        const char *name = kvl_registry_policy(reg, i)->name;
        RIG_OK(&r.err, kvl_registry_find_policy(reg, name, &policy, &r.err));
        if (policy->prefill == KVL_PREFILL_OWN) continue; /* has no use for a context of others */
        RIG_OK(&r.err,
               kvl_planned_create(policy, rig_shape(&r), "",
                                  policy->caps & KVL_CAP_BOUND && !policy->plan ? 0 : BUDGET,
                                  N_FILL, &p, &r.err));
        rig_observe(&r, p);
        struct kvl_session *s = filled(&r, N_FILL, 7);
        RIG_OK(&r.err, kvl_session_attach(s, p, 1, KVL_EXEC_REAL, &r.err));
        decode_forks(&r, s);
        kvl_session_destroy(s);
        kvl_planned_destroy(p);
    }
    kvl_registry_destroy(reg);
    rig_close(&r);
}

/* ---- refusals ------------------------------------------------------------------------------------ */

static void refuse(struct rig *r, struct kvl_session *s, int32_t n, int code, const char *says)
{
    kvl_err_clear(&r->err);
    assert_int_equal(kvl_session_fill(s, n, 1, &r->err), code);
    if (!strstr(r->err.msg, says)) fail_msg("\"%s\" does not say \"%s\"", r->err.msg, says);
    kvl_err_clear(&r->err);
}

static void refuses(void **state)
{
    (void)state;
    struct rig r;
    struct kvl_planned *p;
    rig_open(&r, &desc);
    struct kvl_session *s = filled(&r, 50, 3);
    refuse(&r, s, 0, KVL_EINVAL, "0 tokens, want at least 1");
    refuse(&r, s, 2000, KVL_EINVAL, "2050 tokens, the model's context is 2048");
    assert_int_equal(kvl_session_len(s), 50);
    RIG_OK(&r.err, kvl_session_fill(s, 1998, 3, &r.err)); /* refusals left it as it was */
    RIG_OK(&r.err, kvl_planned_create(&watcher, rig_shape(&r), "", 0, 50, &p, &r.err));
    rig_observe(&r, p);
    struct kvl_session *under = filled(&r, 50, 3);
    RIG_OK(&r.err, kvl_session_attach(under, p, 0, KVL_EXEC_REAL, &r.err));
    refuse(&r, under, 1, KVL_EINTERNAL, "under a policy");
    kvl_session_destroy(under);
    kvl_session_destroy(s);
    kvl_planned_destroy(p);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_every_lane), cmocka_unit_test(seeds_decide),
        cmocka_unit_test(observers_go_on),  cmocka_unit_test(every_policy_attaches),
        cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
