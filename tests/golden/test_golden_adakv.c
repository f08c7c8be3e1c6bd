/* Ada-KV: the worked examples through the whole policy, in its three ways to make tokens of fractions,
 * and a naive one on random scores. */
#include "golden/given.h"

extern const struct kvl_policy *const kvl_policy_adakv,
    *const kvl_policy_snapkv, *const kvl_policy_ktransformers, *const kvl_policy_ktransformers_code;

static const float two_heads[2][6] = { { .50f, .08f, .20f, .05f, .10f, .07f },
                                       { .02f, .30f, .01f, .28f, .015f, .012f } };
static const float three_heads[3][10] = {
    { .90f, .02f, .021f, .01f, .011f, .012f, .013f, .014f, .005f, .006f },
    { .2f, .15f, .12f, .11f, .10f, .09f, .08f, .06f, .051f, .04f },
    { .40f, .30f, .105f, .055f, .048f, .03f, .031f, .022f, .009f, .008f },
};

static void open_heads(struct rig *r, uint32_t n_heads)
{
    struct rig_desc desc = { .llama = { .n_layers = 2,
                                        .n_heads = 2 * n_heads,
                                        .n_kv_heads = n_heads,
                                        .n_embd = 32 * n_heads,
                                        .head_dim = 16,
                                        .seed = 4 } };
    memset(&given, 0, sizeof given);
    rig_open(r, &desc);
}

/* Position sets as bits, one per head. */
static void expect_sets(struct rig *r, const char *options, int32_t budget, int32_t n_ctx,
                        int32_t n_heads, const uint32_t *sets)
{
    const struct kvl_policy *composed;
    struct given_run g = { kvl_policy_adakv, options, budget, n_ctx };
    struct rig_session rs = given_start(r, &g, &composed);
    for (int32_t l = 0; l < 2; l++)
        for (int32_t h = 0; h < n_heads; h++) {
            int32_t want[32], n = 0;
            for (int32_t i = 0; i < n_ctx; i++)
                if (sets[h] >> i & 1) want[n++] = i;
            rig_expect_kept(&rs, l, h, want, n);
        }
    rig_end(&rs);
    kvl_policy_decompose(composed);
}

#define SET2(a, b)       (1u << (a) | 1u << (b))
#define SET3(a, b, c)    (SET2(a, b) | 1u << (c))
#define SET4(a, b, c, d) (SET2(a, b) | SET2(c, d))
#define UPTO(n)          ((1u << (n)) - 1) /* {0 .. n - 1} */

/* 6 tokens, 3 for each of two heads: of the six best of both, four are of the first. */
static void test_two_heads(void **state)
{
    struct rig r;
    (void)state;
    open_heads(&r, 2);
    for (int h = 0; h < 2; h++) memcpy(given.score[h], two_heads[h], sizeof two_heads[h]);
    const uint32_t four_two[] = { SET4(0, 1, 2, 4), SET2(1, 3) };
    const uint32_t three_two[] = { SET3(0, 2, 4), SET2(1, 3) };
    const uint32_t even[] = { SET3(0, 2, 4), SET3(0, 1, 3) };
    expect_sets(&r, "totals=official,floor_alpha=0", 4, 6, 2, four_two);
    expect_sets(&r, "totals=official,floor_alpha=0.2", 4, 6, 2, three_two); /* 5, not 6 */
    expect_sets(&r, "totals=official,floor_alpha=0.5", 4, 6, 2, three_two);
    expect_sets(&r, "totals=official,floor_alpha=1", 4, 6, 2, even);
    expect_sets(&r, "totals=kvpress,floor_alpha=0.2", 4, 6, 2, four_two);
    expect_sets(&r, "floor_alpha=0", 4, 6, 2, four_two);
    expect_sets(&r, "floor_alpha=0.2", 4, 6, 2, four_two); /* 3.8 and 2.2 */
    expect_sets(&r, "floor_alpha=1", 4, 6, 2, even);
    rig_close(&r);
}

/* 10 tokens, 5 for each of three heads: 1, 9 and 5 of the fifteen best.  Heads keep the best of their
 * sorted scores. */
static void test_three_heads(void **state)
{
    struct rig r;
    (void)state;
    open_heads(&r, 3);
    for (int h = 0; h < 3; h++) memcpy(given.score[h], three_heads[h], sizeof three_heads[h]);
    const uint32_t one[] = { 1, SET2(0, 2), SET3(0, 2, 1), SET4(0, 1, 2, 7) }; /* of head 0 */
    expect_sets(&r, "totals=official,floor_alpha=0", 6, 10, 3,
                (uint32_t[]){ one[0], UPTO(9), UPTO(5) });
    expect_sets(&r, "totals=official,floor_alpha=0.2", 6, 10, 3,
                (uint32_t[]){ one[1], UPTO(8), UPTO(5) });
    /* 2.5, 6.5 and 4.5, half to even: 12 tokens, not 15 */
    expect_sets(&r, "totals=official,floor_alpha=0.5", 6, 10, 3,
                (uint32_t[]){ one[1], UPTO(6), UPTO(4) });
    expect_sets(&r, "totals=kvpress,floor_alpha=0.2", 6, 10, 3,
                (uint32_t[]){ one[0], UPTO(9), UPTO(5) });
    expect_sets(&r, "totals=kvpress,floor_alpha=0.5", 6, 10, 3,
                (uint32_t[]){ one[1], UPTO(9), UPTO(4) });
    expect_sets(&r, "totals=kvpress,floor_alpha=0.8", 6, 10, 3,
                (uint32_t[]){ one[3], UPTO(7), UPTO(4) });
    /* 1.8, 8.2 and 5; 3, 7 and 5 */
    expect_sets(&r, "floor_alpha=0.2", 6, 10, 3, (uint32_t[]){ one[1], UPTO(8), UPTO(5) });
    expect_sets(&r, "floor_alpha=0.5", 6, 10, 3, (uint32_t[]){ one[2], UPTO(7), UPTO(5) });
    rig_close(&r);
}

/* The same with protected tokens at both ends, which every head keeps on top of its share; kvpress
 * counts them among the safe ones. */
static void test_protected_tokens(void **state)
{
    struct rig r;
    (void)state;
    open_heads(&r, 2);
    for (int h = 0; h < 2; h++) memcpy(given.score[h] + 1, two_heads[h], sizeof two_heads[h]);
    for (int h = 0; h < 2; h++) given.score[h][0] = 1; /* no candidate */
    given.first = 1;
    given.last = 3;
    const uint32_t ends = 1u | 7u << 7;
    const uint32_t four_two[] = { SET4(0, 1, 2, 4) << 1 | ends, SET2(1, 3) << 1 | ends };
    const uint32_t even[] = { SET3(0, 2, 4) << 1 | ends, SET3(0, 1, 3) << 1 | ends };
    expect_sets(&r, "floor_alpha=0.2", 8, 10, 2, four_two);
    expect_sets(&r, "totals=kvpress,floor_alpha=0.5", 8, 10, 2,
                four_two); /* 3 safe: all at the ends */
    expect_sets(&r, "totals=kvpress,floor_alpha=1", 8, 10, 2, even);
    rig_close(&r);
}

/* ---- naive --------------------------------------------------------------------------------------- */

enum { HEADS = 4, N = 60 };

/* How many of the H b largest scores a head has: one by one, ties to the lower head and position. */
static void naive_counts(int32_t b, int32_t *count)
{
    uint8_t taken[HEADS][N] = { { 0 } };
    memset(count, 0, HEADS * sizeof *count);
    for (int32_t k = 0; k < HEADS * b; k++) {
        int32_t best_h = -1, best_i = 0;
        for (int32_t h = 0; h < HEADS; h++)
            for (int32_t i = 0; i < N; i++) {
                if (taken[h][i]) continue;
                if (best_h >= 0 && !(given.score[h][i] > given.score[best_h][best_i])) continue;
                best_h = h;
                best_i = i;
            }
        taken[best_h][best_i] = 1;
        count[best_h]++;
    }
}

static void test_random_scores(void **state)
{
    struct kvl_rng rng;
    struct rig r;
    (void)state;
    open_heads(&r, HEADS);
    kvl_rng_seed(&rng, 9);
    for (int32_t round = 0; round < 12; round++) {
        int32_t b = 1 + (int32_t)kvl_rng_below(&rng, N - 2), count[HEADS], sum = 0;
        const struct kvl_policy *composed;
        for (int32_t h = 0; h < HEADS; h++)
            for (int32_t i = 0; i < N; i++)
                given.score[h][i] = (float)kvl_rng_below(&rng, 8u << h); /* ties; head 3 is rich */
        naive_counts(b, count);
        struct given_run g = { kvl_policy_adakv, "floor_alpha=0.25", b + 1, N };
        struct rig_session rs = given_start(&r, &g, &composed);
        for (int32_t h = 0; h < HEADS; h++) {
            int32_t kept = kvl_seq_len(kvl_session_seq(rs.s), 1, h);
            double want = .75 * count[h] + .25 * b;
            assert_true(fabs(kept - want) < 1);
            sum += kept;
        }
        assert_int_equal(sum, HEADS * b);
        rig_end(&rs);
        kvl_policy_decompose(composed);
    }
    rig_close(&r);
}

/* alpha = 1 is the inner policy, token for token. */
static void test_even_shares_are_snapkv(void **state)
{
    enum { N_CTX = 120 };
    const struct kvl_policy *composed;
    int32_t id[N_CTX + 4];
    struct rig r;
    (void)state;
    open_heads(&r, 2);
    rig_tokens(id, N_CTX + 4, 6);
    RIG_OK(&r.err, kvl_policy_compose(kvl_policy_adakv, kvl_policy_snapkv, &composed, &r.err));
    assert_string_equal(composed->name, "adakv(snapkv)");
    struct rig_run run = { .policy = kvl_policy_snapkv,
                           .options = "window=12",
                           .budget = 40,
                           .id = id,
                           .n_ctx = N_CTX,
                           .n_steps = 4 };
    float *a = rig_run(&r, &run);
    run.policy = composed;
    for (int i = 0; i < 3; i++) {
        run.options = (const char *[]){ "floor_alpha=1,snapkv.window=12",
                                        "totals=official,snapkv.window=12,floor_alpha=1",
                                        "totals=kvpress,snapkv.window=12,floor_alpha=1" }[i];
        float *b = rig_run(&r, &run);
        rig_expect_same(&r, a, b, 4, run.options);
        kvl_free(b);
    }
    kvl_free(a);
    kvl_policy_decompose(composed);
    rig_close(&r);
}

static void test_lanes_with_budgets(void **state)
{
    (void)state;
    given_refuses(kvl_policy_adakv);
}

/* Lanes of ktransformers hold different numbers of blocks here: it took all for as many as the first
 * lane's, and picked more than there were. */
static void check_blocks(const struct kvl_policy *inner, const char *options)
{
    enum { N_CTX = 120, N_STEPS = 4, BUDGET = 40 };
    const struct kvl_policy *composed;
    int32_t id[N_CTX + N_STEPS];
    char text[256];
    struct rig r;
    open_heads(&r, 4);
    rig_tokens(id, N_CTX + N_STEPS, 5);
    snprintf(text, sizeof text, "%s.block_size=4,%s.preselect_block=true%s", inner->name,
             inner->name, options);
    RIG_OK(&r.err, kvl_policy_compose(kvl_policy_adakv, inner, &composed, &r.err));
    struct rig_run run = {
        .policy = composed, .options = text, .budget = BUDGET, .id = id, .n_ctx = N_CTX
    };
    struct rig_session rs = rig_start(&r, &run);
    float *logits = rig_logits(&r, N_STEPS);
    rig_decode(&r, &rs, id + N_CTX, N_STEPS, logits);
    const struct kvl_counters *n = kvl_session_counters(rs.s);
    assert_true(n->attended_tok <= (int64_t)BUDGET * n->attended_lanes);
    kvl_free(logits);
    rig_end(&rs);
    kvl_policy_decompose(composed);
    rig_close(&r);
}

static void test_blocks_of_ktransformers(void **state)
{
    (void)state;
    check_blocks(kvl_policy_ktransformers, ",ktransformers.head_select_mode=SEPARATE");
    check_blocks(kvl_policy_ktransformers_code, ",ktransformers_code.head_select_mode=SEPARATE");
    check_blocks(kvl_policy_ktransformers, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lanes_with_budgets),
        cmocka_unit_test(test_two_heads),
        cmocka_unit_test(test_three_heads),
        cmocka_unit_test(test_protected_tokens),
        cmocka_unit_test(test_random_scores),
        cmocka_unit_test(test_even_shares_are_snapkv),
        cmocka_unit_test(test_blocks_of_ktransformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
