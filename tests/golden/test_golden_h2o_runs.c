/* H2O in the real engine: against the naive simulation, and against what it must equal. */
#include "golden/h2o_naive.h"

extern const struct kvl_policy *const kvl_policy_h2o, *const kvl_policy_streaming_llm;
extern const struct kvl_policy *const kvl_policy_full, *const kvl_policy_h2o_sim;

enum { N_TOK = 62, HEAD_DIM = 16 };

/* Queries and keys of one layer of a dense run. */
static struct {
    int32_t layer, group;
    float q[N_TOK][RECORD_QUERY], k[MAX_HEADS][N_TOK * HEAD_DIM];
} dense;

static void dense_weigh(int32_t head, int32_t query, const int32_t *pos, int32_t n, double *w)
{
    float k[N_TOK * HEAD_DIM];
    for (int32_t i = 0; i < n; i++)
        memcpy(k + i * HEAD_DIM, dense.k[head / dense.group] + pos[i] * HEAD_DIM,
               HEAD_DIM * sizeof *k);
    record_weights(dense.q[query] + head * HEAD_DIM, k, n, HEAD_DIM, w);
}

/* Token by token, so that no prefill and no observer has a part in it.  The query of the first token
 * does not matter: it has one key. */
static void dense_run(struct rig *r, const int32_t *id, int32_t layer)
{
    const struct kvl_shape *sh = rig_shape(r);
    dense.layer = layer;
    dense.group = sh->n_heads / sh->n_kv_heads;
    record_run(r, id, 1, N_TOK - 1, 0);
    for (int32_t i = 1; i < N_TOK; i++)
        memcpy(dense.q[i], record.q[i - 1][layer], sizeof dense.q[i]);
    struct rig_run run = { .policy = kvl_policy_full, .id = id, .n_ctx = N_TOK };
    struct rig_session rs = rig_start(r, &run);
    for (int32_t h = 0; h < sh->n_kv_heads; h++) record_keys(r, &rs, layer, h, N_TOK, dense.k[h]);
    rig_end(&rs);
}

static void expect_same_as_naive(const struct rig *r, const struct rig_session *rs)
{
    int32_t pos[MAX_TOK];
    for (int32_t h = 0; h < rig_shape(r)->n_kv_heads; h++)
        rig_expect_kept(rs, dense.layer, h, pos, naive_live(h, pos));
}

/* Queries of layer 0 depend on their tokens alone, so that the dense run has those of any policy;
 * further up this holds for the context. */
static void check_rule(struct rig *r, const int32_t *id, const struct rule *rule)
{
    struct rig_run run = { .policy = kvl_policy_h2o,
                           .options = rule->options,
                           .budget = rule->budget,
                           .id = id,
                           .n_ctx = N_PROMPT };
    struct rig_session rs = rig_start(r, &run);
    float *logits = rig_logits(r, 1);
    naive_open(rule, rig_shape(r)->n_heads, dense.group);
    naive_prompt(dense_weigh, N_PROMPT);
    expect_same_as_naive(r, &rs);
    for (int32_t t = N_PROMPT; dense.layer == 0 && t < N_TOK; t++) {
        rig_decode(r, &rs, id + t, 1, logits);
        naive_step(dense_weigh);
        expect_same_as_naive(r, &rs);
    }
    kvl_free(logits);
    rig_end(&rs);
}

static struct rig small_rig(uint32_t n_layers, uint32_t n_kv_heads, int32_t *id)
{
    struct rig_desc desc = { .llama = {
                                 .n_layers = n_layers, .n_kv_heads = n_kv_heads, .seed = 17 } };
    struct rig r;
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 6);
    return r;
}

static void test_runs_equal_the_simulation(void **state)
{
    int32_t id[N_TOK];
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= MAX_HEADS; kv_heads *= 2) {
        struct rig r = small_rig(2, kv_heads, id);
        for (int32_t layer = 0; layer < 2; layer++) {
            dense_run(&r, id, layer);
            for (int i = 0; i < N_RULES; i++) check_rule(&r, id, &rules[i]);
        }
        rig_close(&r);
    }
}

static struct rig_session own_start(struct rig *r, const char *options, int32_t budget)
{
    struct rig_session rs;
    RIG_OK(&r->err, kvl_planned_create_own(kvl_policy_h2o, rig_shape(r), options, budget, N_TOK,
                                           &rs.planned, &r->err));
    RIG_OK(&r->err, kvl_session_create(r->engine, &rs.s, &r->err));
    RIG_OK(&r->err, kvl_session_attach(rs.s, rs.planned, 1, KVL_EXEC_REAL, &r->err));
    return rs;
}

/* With its own prefill every token of the context is a step. */
static void test_streams_from_the_first_token(void **state)
{
    int32_t id[N_TOK];
    struct rig r = small_rig(2, 2, id);
    (void)state;
    dense_run(&r, id, 0);
    for (int i = 0; i < N_RULES; i++) {
        if (rules[i].once) continue;
        struct rig_session rs = own_start(&r, rules[i].options, rules[i].budget);
        naive_open(&rules[i], rig_shape(&r)->n_heads, dense.group);
        for (int32_t t = 0; t < N_TOK; t += 2) {
            RIG_OK(&r.err, kvl_session_extend(rs.s, id + t, 2, &r.err));
            for (int j = 0; j < 2; j++) naive_step(dense_weigh);
            expect_same_as_naive(&r, &rs);
        }
        rig_end(&rs);
    }
    rig_close(&r);
}

static void expect_same_answers(const char *options, int32_t budget,
                                const struct kvl_policy *policy, const char *other,
                                double tolerance)
{
    int32_t id[N_TOK];
    struct rig r = small_rig(3, 2, id);
    struct rig_run run = { .policy = kvl_policy_h2o,
                           .options = options,
                           .budget = budget,
                           .id = id,
                           .n_ctx = N_PROMPT,
                           .n_steps = N_TOK - N_PROMPT };
    float *got = rig_run(&r, &run);
    run.policy = policy;
    run.options = other;
    float *want = rig_run(&r, &run);
    rig_expect_near(&r, want, got, run.n_steps, tolerance, options);
    kvl_free(got);
    kvl_free(want);
    rig_close(&r);
}

/* Up to the order in which a step's keys are added up. */
static void test_no_heavy_tokens_are_a_sliding_window(void **state)
{
    (void)state;
    expect_same_answers("heavy=0", 9, kvl_policy_streaming_llm, "sink=0,positions=original", 1e-5);
    expect_same_answers("heavy=0,recent=20", 0, kvl_policy_streaming_llm,
                        "sink=0,recent=20,positions=original", 1e-5);
}

static void test_room_for_everything_is_full_attention(void **state)
{
    (void)state;
    expect_same_answers("", N_TOK, kvl_policy_full, "", 0);
    expect_same_answers("every=5,reduce=max", N_TOK + 4, kvl_policy_full, "", 0);
    expect_same_answers("variant=flexgen,decay=0.5", N_TOK, kvl_policy_full, "", 0);
    expect_same_answers("variant=observed_attention", N_TOK, kvl_policy_full, "", 0);
    expect_same_answers("heavy=61,recent=1", 0, kvl_policy_full, "", 0);
    /* Sums of parts overflowed. */
    expect_same_answers("heavy=268435456,recent=268435456,layer_budgets=9999/1", 0, kvl_policy_full,
                        "", 0);
}

/* In a model of one layer keys and values depend on their token alone: rolling positions are a dense
 * run over the tokens that are left. */
static void test_rolling_positions(void **state)
{
    int32_t id[N_TOK], pos[N_TOK], kept[N_TOK];
    struct rig r = small_rig(1, 1, id);
    struct rig_run run = { .policy = kvl_policy_h2o,
                           .options = "positions=in_cache",
                           .budget = 11,
                           .id = id,
                           .n_ctx = N_PROMPT };
    struct rig_session rs = rig_start(&r, &run);
    float *got = rig_logits(&r, 1);
    (void)state;
    for (int32_t t = N_PROMPT; t < N_TOK; t++) {
        int32_t n = rig_kept(&rs, 0, 0, pos);
        assert_int_equal(n, 10);
        for (int32_t i = 0; i < n; i++) kept[i] = id[pos[i]];
        kept[n] = id[t];
        struct rig_run left = { .policy = kvl_policy_full, .id = kept, .n_ctx = n, .n_steps = 1 };
        float *want = rig_run(&r, &left);
        rig_decode(&r, &rs, id + t, 1, got);
        rig_expect_near(&r, want, got, 1, 1e-4, "positions 0 .. 10");
        kvl_free(want);
    }
    kvl_free(got);
    rig_end(&rs);
    rig_close(&r);
}

/* Bytes of a policy's tables behind the prompt, and of what its first step read to choose. */
static void expect_bytes(const struct kvl_policy *policy, const char *options, size_t tables,
                         int64_t read)
{
    int32_t id[N_TOK];
    struct rig r = small_rig(3, 2, id);
    struct rig_run run = {
        .policy = policy, .options = options, .budget = 11, .id = id, .n_ctx = N_PROMPT
    };
    struct rig_session rs = rig_start(&r, &run);
    float *logits = rig_logits(&r, 1);
    assert_int_equal(kvl_session_meta_bytes(rs.s), tables);
    rig_decode(&r, &rs, id + N_PROMPT, 1, logits);
    assert_int_equal(kvl_session_counters(rs.s)->index_read_bytes, read);
    kvl_free(logits);
    rig_end(&rs);
    rig_close(&r);
}

/* 3 layers, 2 kv heads of 2 query heads.  Masks were counted once per kv head, each time whole; one
 * cut needs no scores behind it; others keep those of live tokens, and read them when they cut a
 * lane. */
static void test_bytes(void **state)
{
    enum { FLOATS = 3 * 2 * (2 + 1) };
    (void)state;
    expect_bytes(kvl_policy_h2o_sim, "", 4 * FLOATS * N_PROMPT, 4 * FLOATS * (N_PROMPT + 1));
    expect_bytes(kvl_policy_h2o, "", sizeof(float) * 3 * 4 * 10, 4 * 3 * 4 * 11);
    expect_bytes(kvl_policy_h2o, "every=2", sizeof(float) * 3 * 4 * 9, 0);
    expect_bytes(kvl_policy_h2o, "variant=prefill_only", 0, 0);
    expect_bytes(kvl_policy_h2o, "variant=observed_attention", 0, 0);
}

/* ---- options --------------------------------------------------------------------------------------- */

/* Shares 3/1 over three layers are 1.5, 1, .5 of 5 and 5. */
static void test_layer_budgets(void **state)
{
    static const int32_t want[3] = { 7 + 7, 5 + 5, 2 + 2 };
    int32_t id[N_TOK];
    struct rig r = small_rig(3, 2, id);
    struct rig_run run = { .policy = kvl_policy_h2o,
                           .options = "layer_budgets=3/1",
                           .budget = 11,
                           .id = id,
                           .n_ctx = N_PROMPT };
    struct rig_session rs = rig_start(&r, &run);
    float *logits = rig_logits(&r, 1);
    (void)state;
    for (int32_t t = N_PROMPT; t < N_TOK; t++) {
        for (int32_t l = 0; l < 3; l++) {
            int32_t pos[N_TOK];
            for (int32_t h = 0; h < 2; h++) assert_int_equal(rig_kept(&rs, l, h, pos), want[l]);
            for (int32_t i = 1; i <= want[l] / 2; i++)
                assert_int_equal(pos[want[l] - i], t - i); /* half of them recent */
        }
        rig_decode(&r, &rs, id + t, 1, logits);
    }
    kvl_free(logits);
    rig_end(&rs);
    rig_close(&r);
}

struct plan_case {
    const char *options;
    int32_t budget;
    const char *text; /* resolved options, or a part of the refusal */
};

static void check_plan(const struct kvl_policy *policy, const struct plan_case *c, bool own)
{
    struct kvl_shape shape = {
        .n_layers = 3, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .group = 2
    };
    struct kvl_planned *p = NULL;
    struct kvl_err err = { 0 };
    int rc = (own ? kvl_planned_create_own : kvl_planned_create)(policy, &shape, c->options,
                                                                 c->budget, 99, &p, &err);
    const char *text = rc == KVL_OK ? kvl_planned_options(p) : err.msg;
    if (!strstr(text, c->text))
        fail_msg("%s: \"%s\", budget %d: \"%s\" lacks \"%s\"", policy->name, c->options, c->budget,
                 text, c->text);
    kvl_planned_destroy(p);
}

static void test_plans(void **state)
{
    static const struct plan_case plans[] = {
        { "", 12, "heavy=5,recent=6,variant=realdrop,reduce=mean" },
        { "", 3, "heavy=1,recent=1," },
        { "", 2, "needs at least 3" },
        { "every=10", 11, "needs at least 12" },
        { "recent=20", 21, "heavy=0,recent=20," },
        { "recent=20", 20, "needs at least 21" },
        { "heavy=20", 20, "needs at least 21" },
        { "heavy=9,recent=9", 4, "heavy=9,recent=9," },
        { "heavy=0,recent=0", 9, "layer 0 no token" },
        { "", 0, "no budget with these options" },
        { "variant=llama_recipes,reduce=mean", 9, "reduce=first" },
        { "heavy=268435457", 9, "out of range" },
        { "variant=flexgen,heavy=4", 9, "heavy=4,recent=3," },
        { "variant=flexgen,heavy=7", 9, "heavy=7,recent=1," },
        { "variant=flexgen,heavy=0", 9, "variant=flexgen with heavy=0" },
        { "layer_budgets=1/2/3", 13, "layer_budgets=1/2/3" },
        { "layer_budgets=1/0", 13, "layer_budgets=1/0;" },
        { "layer_budgets=1/", 13, "layer_budgets=1/;" },
        { "layer_budgets=x", 13, "layer_budgets=x;" },
        { "layer_budgets=-1/2", 13, "layer_budgets=-1/2;" },
        { "layer_budgets=99999999999", 13, "layer_budgets=99999999999;" },
        { "layer_budgets=1/1/1/1/1/1/1/1/1/1/1/1/1/1/1/1/1", 13, "at most 16" },
        { "layer_budgets=1/100", 13, "layer 0 no token" },
    };
    static const struct plan_case alone[] = {
        { "", 12, "heavy=5,recent=6,variant=realdrop" },
        { "variant=prefill_only", 12, "variant=prefill_only cuts a finished prompt" },
        { "variant=observed_attention", 12, "give prefill: shared" },
    };
    static const struct plan_case sim[] = {
        { "", 13, "heavy=6,recent=7,variant=sim" },
        { "", 1, "needs at least 2" },
        { "variant=lm_eval", 13, "heavy=6,recent=6," },
        { "variant=lm_eval", 2, "needs at least 3" },
        { "heavy=3,recent=0", 13, "variant=sim with recent=0" },
        { "heavy=3,recent=268435457", 13, "out of range" },
        { "variant=lm_eval,heavy=3,recent=0", 0, "heavy=3,recent=0," },
        { "", 0, "no budget with these options" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++)
        check_plan(kvl_policy_h2o, &plans[i], false);
    for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++)
        check_plan(kvl_policy_h2o, &alone[i], true);
    for (size_t i = 0; i < sizeof sim / sizeof sim[0]; i++)
        check_plan(kvl_policy_h2o_sim, &sim[i], false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_equal_the_simulation),
        cmocka_unit_test(test_streams_from_the_first_token),
        cmocka_unit_test(test_no_heavy_tokens_are_a_sliding_window),
        cmocka_unit_test(test_room_for_everything_is_full_attention),
        cmocka_unit_test(test_rolling_positions),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_layer_budgets),
        cmocka_unit_test(test_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
