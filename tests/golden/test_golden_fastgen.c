/* FastGen: the worked example; recovery after renormalisation worked out by hand; the policy's choice and
 * its steps against a naive account of what every token received. */
#define KVL_PLUGIN
#include "../methods/fastgen.c"

#include "golden/one_shot.h"

#include <ctype.h>

extern const struct kvl_policy *const kvl_policy_fastgen;

/* ---- five queries over five tokens ------------------------------------------------------------------- */

static const float map[5][5] = {
    { 1 }, { .6f, .4f }, { .5f, .1f, .4f }, { .4f, .1f, .3f, .2f }, { .3f, .1f, .1f, .4f, .1f }
};

/* 0 is special, 2 punctuation; of 1, 3 and 4 the one with the most attention per query is frequent. */
static const uint8_t level[5] = { FASTGEN_SPECIAL, FASTGEN_LOCAL, FASTGEN_PUNCT, FASTGEN_FREQUENT,
                                  FASTGEN_LOCAL };

static void test_worked_example(void **state)
{
    static const double want[] = { .56, .72, .84, .96, 1 };
    static const double threshold[] = { .5, .8, .9, .97 };
    static const enum fastgen_policy chosen[] = { FASTGEN_SPECIAL, FASTGEN_FREQUENT, FASTGEN_LOCAL,
                                                  FASTGEN_FULL };
    struct kvl_nested c = { .level = level, .n = 5, .n_sets = FASTGEN_POLICIES, .window = 2 };
    struct kvl_nested_lane lane;
    float all[5] = { 0 }, near[5] = { 0 };
    (void)state;
    for (int i = 0; i < 5; i++)
        for (int j = 0; j <= i; j++) {
            all[j] += map[i][j];
            if (i - j < c.window) near[j] += map[i][j];
        }
    kvl_nested_mass(&c, all, near, lane.kept);
    for (int p = 0; p < FASTGEN_POLICIES; p++)
        assert_float_equal((double)lane.kept[p], want[p], 1e-6);
    for (int i = 0; i < 4; i++)
        assert_int_equal(kvl_nested_choose(&lane, FASTGEN_POLICIES, threshold[i]), chosen[i]);
    kvl_nested_sizes(&c, lane.size);
    assert_memory_equal(lane.size, ((int32_t[]){ 1, 2, 3, 4, 5 }), sizeof lane.size);
}

/* Sum of |a - b| over the first n tokens, b being a where `kept`, scaled up to a sum of 1. */
static double absolute(const float *a, int32_t n, const uint8_t *kept)
{
    double mass = 0, sum = 0;
    for (int32_t j = 0; j < n; j++) mass += kept[j] ? (double)a[j] : 0;
    for (int32_t j = 0; j < n; j++) sum += fabs((double)a[j] - (kept[j] ? (double)a[j] / mass : 0));
    return sum;
}

/* What is kept is scaled up to 1, the rest counts as lost. */
static void test_distance_after_renormalising(void **state)
{
    static const uint8_t kept[2][FASTGEN_FULL][5] = {
        { { 1, 0, 0, 0, 0 }, { 1, 0, 1, 0, 0 }, { 1, 0, 1, 1, 0 }, { 1, 0, 1, 1, 1 } },
        { { 1 }, { 1, 0, 1 }, { 1, 0, 1, 1 }, { 1, 0, 1, 1 } }, /* one query before */
    };
    static const double special[2] = { 1.4, 1.2 };
    struct kvl_nested c = { .level = level, .n = 5, .n_sets = FASTGEN_POLICIES, .window = 2 };
    (void)state;
    for (int back = 0; back < 2; back++) {
        double distance[FASTGEN_POLICIES] = { 0 };
        kvl_nested_distance(&c, map[4 - back], 4 - back, distance);
        for (int p = 0; p < FASTGEN_FULL; p++)
            assert_float_equal(distance[p], absolute(map[4 - back], 5 - back, kept[back][p]), 1e-6);
        assert_float_equal(distance[FASTGEN_SPECIAL], special[back], 1e-6);
    }
    /* A window of one holds the query's own token, which nothing else keeps. */
    double distance[FASTGEN_POLICIES] = { 0 };
    c.window = 1;
    kvl_nested_distance(&c, map[1], 1, distance);
    assert_float_equal(distance[FASTGEN_FREQUENT], .8, 1e-6);
    assert_float_equal(distance[FASTGEN_LOCAL], 0, 1e-6);
}

/* The largest threshold whose choices fit. */
static void test_threshold_of_a_budget(void **state)
{
    static const struct kvl_nested_lane lane[2] = {
        { .kept = { .2f, .3f, .8f, .9f, 1 }, .size = { 2, 4, 30, 50, 100 } },
        { .kept = { .6f, .7f, .75f, .95f, 1 }, .size = { 2, 6, 33, 55, 100 } },
    };
    (void)state;
    assert_float_equal(kvl_nested_part(lane, 2, FASTGEN_POLICIES, 100, 0, 100), 1, 0);
    assert_float_equal(kvl_nested_part(lane, 2, FASTGEN_POLICIES, 100, 0, 99), .95, 1e-6);
    assert_float_equal(kvl_nested_part(lane, 2, FASTGEN_POLICIES, 100, 0, 18), .7, 1e-6);
    assert_float_equal(kvl_nested_part(lane, 2, FASTGEN_POLICIES, 100, 0, 17), .6, 1e-6);
    assert_float_equal(kvl_nested_part(lane, 2, FASTGEN_POLICIES, 100, 0, 2), .2, 1e-6);
    assert_float_equal(kvl_nested_part(lane, 2, FASTGEN_POLICIES, 100, 0, 1), 0, 1e-6);
    assert_float_equal(kvl_nested_part(lane, 2, FASTGEN_POLICIES, 100, 50, 17), .3,
                       1e-6); /* half as many again */
    /* Distances above 1 recover less than nothing: at 0 both lanes kept 30 tokens and more. */
    static const struct kvl_nested_lane far[2] = {
        { .kept = { -.9f, -.5f, .2f, .4f, 1 }, .size = { 2, 4, 30, 50, 100 } },
        { .kept = { -.6f, -.2f, .1f, .3f, 1 }, .size = { 2, 6, 33, 55, 100 } },
    };
    assert_float_equal(kvl_nested_part(far, 2, FASTGEN_POLICIES, 100, 0, 40), .1, 1e-6);
    assert_float_equal(kvl_nested_part(far, 2, FASTGEN_POLICIES, 100, 0, 4), -.6, 1e-6);
    assert_float_equal(kvl_nested_part(far, 2, FASTGEN_POLICIES, 100, 0, 1), -.9, 1e-6);
}

/* ---- the policy --------------------------------------------------------------------------------------------- */

enum { LAYERS = 3, KV = 2, N_CTX = 90, N_MORE = 12, N_ALL = N_CTX + N_MORE, LOCAL = 20 };

static const struct gw_llama llama = { .n_layers = LAYERS, .n_kv_heads = KV, .seed = 13 };

static double sums[LAYERS][KV][N_ALL]; /* what a token received from its group */

static int watcher_plan(struct kvl_plan *plan)
{
    return kvl_plan_observe(plan, KVL_OBS_COLUMNS, 0);
}

static int watcher_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    int32_t n, group = ctx->shape->n_heads / KV;
    const float *all;
    scores->keep_tok = scores->n_tok;
    KVL_TRY(kvl_obs_columns(ctx, layer, KVL_OBS_COLUMNS, 0, &all, &n));
    memset(sums[layer], 0, sizeof sums[layer]);
    for (int32_t i = 0; i < ctx->shape->n_heads * n; i++)
        sums[layer][i / n / group][i % n] += (double)all[i];
    return KVL_OK;
}

static const struct kvl_policy watcher = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "watcher",
    .title = "Watcher",
    .paper = "none",
    .help = "writes down sums",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .plan = watcher_plan,
    .score = watcher_score,
};

/* Adds the weights of a query that read what its lane holds. */
static int follow(void *user, const struct kvl_tap_read *r, struct kvl_err *err)
{
    struct shot *t = user;
    const struct kvl_seq *seq = kvl_session_seq(r->session);
    int32_t dim = rig_shape(&t->r)->head_dim, group = rig_shape(&t->r)->n_heads / KV;
    for (int32_t head = 0; head < group * KV; head++) {
        int32_t kv = head / group, n = kvl_seq_len(seq, r->layer, kv), pos[N_ALL];
        double weight[N_ALL];
        float *k = rig_floats((size_t)(n * dim));
        assert_int_equal(n, r->n_read[head]);
        kvl_seq_positions(seq, r->layer, kv, pos);
        KVL_TRY(kvl_seq_read(seq, r->layer, kv, KVL_PART_K, 0, n, k, err));
        record_weights(r->q + head * dim, k, n, dim, weight);
        for (int32_t i = 0; i < n; i++) sums[r->layer][kv][pos[i]] += weight[i];
        kvl_free(k);
    }
    return KVL_OK;
}

static bool is_punct(int32_t id)
{
    return id >= GW_BYTE0 && (id - GW_BYTE0 == '\n' || id - GW_BYTE0 == '\r' ||
                              (id - GW_BYTE0 < 128 && ispunct(id - GW_BYTE0)));
}

/* What a policy keeps of `live` [n] when the text is `end` long; returns how many. */
static int32_t naive_keep(const struct shot *t, int policy, int32_t lane, int32_t end, double r_f,
                          const int32_t *live, int32_t n, int32_t *kept)
{
    double score[N_ALL];
    uint8_t frequent[N_ALL];
    int32_t n_free = 0, n_kept = 0;
    if (n < 1 || n > N_ALL) return -1;
    for (int32_t i = 0; i < n; i++) {
        bool kind = live[i] < 4 || is_punct(t->id[live[i]]);
        score[i] = kind ? -1 : sums[lane / KV][lane % KV][live[i]] / (end - live[i]);
        n_free += !kind;
    }
    record_top(score, n, (int32_t)ceil(fmin(r_f * end, n_free)), frequent);
    for (int32_t i = 0; i < n; i++) {
        bool keep = policy == FASTGEN_FULL || live[i] < 4;
        keep = keep || (policy >= FASTGEN_PUNCT && is_punct(t->id[live[i]]));
        keep = keep || (policy >= FASTGEN_FREQUENT && frequent[i]);
        keep = keep || (policy == FASTGEN_LOCAL && live[i] >= end - LOCAL);
        if (keep) kept[n_kept++] = live[i];
    }
    return n_kept;
}

static bool same(const int32_t *a, const int32_t *b, int32_t n, int32_t m)
{
    return n == m && memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

/* The policy whose naive choice a lane made; -1: none. */
static int lane_policy(const struct shot *t, const struct rig_session *rs, int32_t lane, double r_f)
{
    int32_t all[N_CTX], want[N_CTX], got[N_ALL], n = rig_kept(rs, lane / KV, lane % KV, got);
    for (int32_t i = 0; i < N_CTX; i++) all[i] = i;
    for (int p = 0; p < FASTGEN_POLICIES; p++)
        if (same(got, want, n, naive_keep(t, p, lane, N_CTX, r_f, all, N_CTX, want))) return p;
    return -1;
}

static void open_context(struct shot *t)
{
    shot_open(t, &llama, N_CTX, 6);
    rig_tokens(t->id + N_CTX, N_MORE, 17);
    t->id[N_CTX] = GW_BYTE0 + 'x';
    t->id[N_CTX + 1] = GW_BYTE0 + ';';
    struct rig_session rs = shot_policy(t, &watcher, "", 0);
    rig_end(&rs);
}

/* The thresholds make some heads take each of the policies. */
static void check_steps(const char *options, double r_f, int32_t *n_lanes)
{
    struct shot t;
    int policy[LAYERS * KV];
    int32_t held[LAYERS * KV][N_ALL], n_held[LAYERS * KV];
    open_context(&t);
    struct rig_session rs = shot_policy(&t, kvl_policy_fastgen, options, 0);
    struct kvl_tap tap = { .user = &t, .read = follow };
    float *logits = rig_logits(&t.r, 1);
    kvl_session_tap(rs.s, &tap);
    for (int32_t lane = 0; lane < LAYERS * KV; lane++) {
        policy[lane] = lane_policy(&t, &rs, lane, r_f);
        assert_true(policy[lane] >= 0);
        n_lanes[policy[lane]]++;
        n_held[lane] = rig_kept(&rs, lane / KV, lane % KV, held[lane]);
    }
    for (int32_t end = N_CTX + 1; end <= N_ALL; end++) {
        rig_decode(&t.r, &rs, &t.id[end - 1], 1, logits);
        for (int32_t lane = 0; lane < LAYERS * KV; lane++) {
            int32_t want[N_ALL];
            held[lane][n_held[lane]++] = end - 1;
            n_held[lane] =
                naive_keep(&t, policy[lane], lane, end, r_f, held[lane], n_held[lane], want);
            memcpy(held[lane], want, sizeof want);
            rig_expect_kept(&rs, lane / KV, lane % KV, want, n_held[lane]);
        }
    }
    kvl_free(logits);
    rig_end(&rs);
    shot_close(&t);
}

static void test_steps_keep_what_the_policies_say(void **state)
{
    static const char *const options[] = {
        "threshold=0,local=20",
        "threshold=0.3,local=20",
        "threshold=0.45,local=20",
        "threshold=0.5,local=20",
        "threshold=0.55,local=20,r_f=0.1",
        "threshold=0.7,local=20,r_f=0.1",
        "threshold=0.8,local=20,r_f=0.1",
        "threshold=0.3,local=20,r_f=0.1,recovery=renorm",
        "threshold=0.85,local=20,r_f=0.1,recovery=renorm",
    };
    int32_t n_lanes[FASTGEN_POLICIES] = { 0 };
    (void)state;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        check_steps(options[i], i < 4 ? .3 : .1, n_lanes);
    for (int p = 0; p < FASTGEN_POLICIES; p++) assert_true(n_lanes[p] > 0);
}

/* T = 1 is full attention; what a budget allows is its mean over the lanes, `horizon` steps on. */
static void test_budgets_hold_on_average(void **state)
{
    static const int32_t budgets[] = { 8, 30, 45, 60, 80, N_CTX + 1 };
    struct shot t;
    (void)state;
    open_context(&t);
    for (size_t i = 0; i < 2 * sizeof budgets / sizeof *budgets; i++) {
        const char *options = i % 2 ? "local=20,horizon=0,recovery=renorm" : "local=20,horizon=0";
        struct rig_session rs = shot_policy(&t, kvl_policy_fastgen, options, budgets[i / 2]);
        int32_t total = 0;
        for (int32_t lane = 0; lane < LAYERS * KV; lane++)
            total += kvl_seq_len(kvl_session_seq(rs.s), lane / KV, lane % KV);
        assert_true(total <= LAYERS * KV * (budgets[i / 2] - 1));
        if (budgets[i / 2] > N_CTX) assert_int_equal(total, LAYERS * KV * N_CTX);
        rig_end(&rs);
    }
    struct rig_session rs = shot_policy(&t, kvl_policy_fastgen, "threshold=1", 0);
    assert_int_equal(kvl_seq_len(kvl_session_seq(rs.s), 1, 1), N_CTX);
    rig_end(&rs);
    shot_close(&t);
}

static void test_wrong_options(void **state)
{
    static const char *const wrong[] = { "threshold=most", "threshold=1.5", "threshold=-0.1" };
    struct shot t;
    (void)state;
    open_context(&t);
    for (int i = 0; i < 4; i++) {
        struct kvl_planned *p;
        t.r.err = (struct kvl_err){ 0 };
        assert_int_equal(kvl_planned_create(kvl_policy_fastgen, rig_shape(&t.r),
                                            i < 3 ? wrong[i] : "", i < 3 ? 50 : 0, N_CTX, &p,
                                            &t.r.err),
                         KVL_EINVAL);
        assert_non_null(
            strstr(t.r.err.msg, i < 3 ? "from 0 to 1" : "no budget with these options"));
    }
    shot_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test(test_distance_after_renormalising),
        cmocka_unit_test(test_threshold_of_a_budget),
        cmocka_unit_test(test_steps_keep_what_the_policies_say),
        cmocka_unit_test(test_budgets_hold_on_average),
        cmocka_unit_test(test_wrong_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
