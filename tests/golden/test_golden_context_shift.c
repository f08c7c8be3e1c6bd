/* Context shift: what stays by hand, and where keys stand. */
#include "golden/distances.h"

extern const struct kvl_policy *const kvl_policy_context_shift;

static double in_cache(int32_t i, int32_t rank, int32_t n_live, int32_t j)
{
    (void)i;
    (void)j;
    return n_live - 1 - rank;
}

static double original(int32_t i, int32_t rank, int32_t n_live, int32_t j)
{
    (void)rank;
    (void)n_live;
    return i - j;
}

/* Keeps `keep`, drops `discard` of the oldest others when `full` tokens are there. */
static int32_t shift_naive(int32_t *live, int32_t n, int32_t full, int32_t keep, int32_t discard)
{
    if (n < full) return n;
    memmove(live + keep, live + keep + discard, (size_t)(n - keep - discard) * sizeof *live);
    return n - discard;
}

static void check_shift(struct rig *r, const int32_t *id, const char *options, int32_t budget,
                        int32_t keep, int32_t discard)
{
    struct rig_run run = {
        .policy = kvl_policy_context_shift, .options = options, .budget = budget, .id = id
    };
    for (run.n_ctx = 1; run.n_ctx < N_CTX; run.n_ctx += 6) {
        int32_t live[N_TOK], n = 0;
        struct rig_session rs = rig_start(r, &run);
        float *logits = rig_logits(r, 1);
        for (int32_t t = 0; t < N_TOK; t++) {
            live[n++] = t;
            n = shift_naive(live, n, budget, keep, discard);
            if (t >= run.n_ctx) rig_decode(r, &rs, id + t, 1, logits);
            if (t >= run.n_ctx - 1) rig_expect_kept(&rs, 1, 1, live, n);
        }
        kvl_free(logits);
        rig_end(&rs);
    }
}

/* n_ctx = 16, n_keep = 3: with 15 tokens 6 go, and 0, 1, 2, 9 .. 14 are left. */
static void test_what_a_shift_leaves(void **state)
{
    static const int32_t want[] = { 0, 1, 2, 9, 10, 11, 12, 13, 14 };
    struct rig_desc desc = { .llama = { .n_layers = 2, .seed = 24 } };
    struct rig r;
    int32_t id[N_TOK];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 2);
    struct rig_run run = {
        .policy = kvl_policy_context_shift, .options = "n_keep=3,n_ctx=16", .id = id, .n_ctx = 15
    };
    struct rig_session rs = rig_start(&r, &run);
    rig_expect_kept(&rs, 0, 0, want, 9);
    rig_end(&rs);
    check_shift(&r, id, "n_keep=3", 15, 3, 6);
    check_shift(&r, id, "", 16, 1, 7);
    check_shift(&r, id, "n_keep=0,n_discard=5", 12, 0, 5);
    check_shift(&r, id, "mode=rolling", 12, 0, 1);
    check_shift(&r, id, "mode=rolling,n_keep=2,positions=in_cache", 12, 2, 1);
    rig_close(&r);
}

static void test_shifted_keys_stand_at_their_rank(void **state)
{
    (void)state;
    expect_distances(kvl_policy_context_shift, "n_keep=3", 15, false, in_cache);
    expect_distances(kvl_policy_context_shift, "", 15, true, in_cache);
    expect_distances(kvl_policy_context_shift, "mode=rolling", 15, false, original);
    expect_distances(kvl_policy_context_shift, "mode=rolling,positions=in_cache", 15, true,
                     in_cache);
}

static void test_context_shift_refuses(void **state)
{
    (void)state;
    expect_refused(kvl_policy_context_shift, "n_keep=14", 15, 50, "16");
    expect_refused(kvl_policy_context_shift, "n_ctx=16,n_keep=14", 15, 50, "at most 13");
    expect_refused(kvl_policy_context_shift, "n_discard=15", 15, 50, "at most 14");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_shift_leaves),
        cmocka_unit_test(test_shifted_keys_stand_at_their_rank),
        cmocka_unit_test(test_context_shift_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
