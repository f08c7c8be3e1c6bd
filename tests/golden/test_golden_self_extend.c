/* SelfExtend: distances by hand, and attention worked out from keys before RoPE. */
#include "golden/distances.h"

extern const struct kvl_policy *const kvl_policy_self_extend;

static int32_t extended(int32_t g, int32_t w, int32_t i, int32_t j)
{
    return i - j < w ? i - j : i / g + w - w / g - j / g;
}

/* G = 4, W = 8, q = 20: 11 for 0-3, 10 for 4-7, 9 for 8-11, 8 for 12, then 7 .. 0. */
static double extend_4_8(int32_t i, int32_t rank, int32_t n_live, int32_t j)
{
    (void)rank;
    (void)n_live;
    return extended(4, 8, i, j);
}

static double extend_3_9(int32_t i, int32_t rank, int32_t n_live, int32_t j)
{
    (void)rank;
    (void)n_live;
    return extended(3, 9, i, j);
}

static void test_distances_by_hand(void **state)
{
    static const int32_t want[21] = { 11, 11, 11, 11, 10, 10, 10, 10, 9, 9, 9,
                                      9,  8,  7,  6,  5,  4,  3,  2,  1, 0 };
    (void)state;
    for (int32_t j = 0; j <= 20; j++) assert_int_equal((int)extend_4_8(20, 0, 0, j), want[j]);
}

static void test_self_extend_attends_at_its_distances(void **state)
{
    (void)state;
    expect_distances(kvl_policy_self_extend, "group_size=4,window_size=8", 0, false, extend_4_8);
    expect_distances(kvl_policy_self_extend, "group_size=4,window_size=8", 0, true, extend_4_8);
    expect_distances(kvl_policy_self_extend, "G=3,W=9", 0, false, extend_3_9);
}

/* Groups of one, or a window for all, are plain attention. */
static void test_self_extend_at_its_limits(void **state)
{
    static const char *const options[] = { "group_size=1,window_size=8",
                                           "group_size=4,window_size=128",
                                           "group_size=4,window_size=8" };
    struct rig_desc desc = { .llama = { .n_layers = 3, .seed = 23 } };
    struct rig r;
    int32_t id[N_TOK];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 2);
    struct rig_run run = { .policy = &record_policy, .id = id, .n_ctx = N_CTX, .n_steps = N_STEPS };
    record.window = 0;
    float *want = rig_run(&r, &run);
    run.policy = kvl_policy_self_extend;
    for (int i = 0; i < 3; i++) {
        run.options = options[i];
        float *real = rig_run(&r, &run);
        run.exec = KVL_EXEC_MASKED;
        float *masked = rig_run(&r, &run);
        run.exec = KVL_EXEC_REAL;
        rig_expect_near(&r, real, masked, N_STEPS, 5e-4, "real and masked");
        if (i < 2)
            rig_expect_near(&r, want, real, N_STEPS, 1e-3, options[i]);
        else
            assert_true(rig_distance(&r, want, real, N_STEPS) > 1e-2);
        kvl_free(real);
        kvl_free(masked);
    }
    kvl_free(want);
    rig_close(&r);
}

static void test_self_extend_refuses(void **state)
{
    (void)state;
    expect_refused(kvl_policy_self_extend, "group_size=3,window_size=8", 9, 50, "multiple of 3");
    /* 8192 / 2 + 1024 - 512 = 4608 distances of a model that knows 4096. */
    expect_refused(kvl_policy_self_extend, "group_size=2,window_size=1024", 9, 8192, "4608");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distances_by_hand),
        cmocka_unit_test(test_self_extend_attends_at_its_distances),
        cmocka_unit_test(test_self_extend_at_its_limits),
        cmocka_unit_test(test_self_extend_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
