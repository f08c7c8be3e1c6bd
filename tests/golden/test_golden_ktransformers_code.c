/* KTransformers' published code: its errors by hand, through the policy's own hooks, and what runs read because of
 * them. */
#include "golden/ktransformers.h"

extern const struct kvl_policy *const kvl_policy_ktransformers,
    *const kvl_policy_ktransformers_code;

static void test_maxima_and_boxes_by_hand(void **state)
{
    struct hand x;
    (void)state;
    for (uint32_t heads = 1; heads <= 2; heads++) {
        hand_open(&x, kvl_policy_ktransformers_code, heads, "representative_type=MAX");
        EXPECT_ROW(&x, 0, DIM, 0, 2, 0, 0);
        expect_score(&x, -2);
        hand_close(&x);
        /* With one kv head the second query head finds a box that was never filled. */
        hand_open(&x, kvl_policy_ktransformers_code, heads, "representative_type=QUEST");
        expect_score(&x, heads == 2 ? 10 : 1e30);
        hand_close(&x);
    }
}

static void test_dynamic_by_hand(void **state)
{
    struct hand x;
    (void)state;
    /* Queries of zeros attend to all alike: tokens 0 and 1, summed; no product here is positive. */
    hand_open(&x, kvl_policy_ktransformers_code, 1, "representative_num=2");
    EXPECT_ROW(&x, 0, 0, -3, 0, -4, 0, -3, 0, -4, 0, 0, 3, 0, 0, 0, 3, 0, 0);
    expect_score(&x, 6); /* of the second head: -2 times -3 */
    hand_close(&x);
}

/* Where blocks of the context alone compete, sums of keys score as those of ktransformers. */
static void test_mean_is_as_it_should_be(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = 4, .n_kv_heads = 2, .seed = 9 } };
    struct rig r;
    int32_t id[N_TOK];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 6);
    struct rig_run run = { .policy = kvl_policy_ktransformers,
                           .options = SIZES(4, 1, 32, 5) "representative_type=MEAN",
                           .budget = 1,
                           .id = id,
                           .n_ctx = N_CTX,
                           .n_steps = N_STEPS };
    float *want = rig_run(&r, &run);
    run.policy = kvl_policy_ktransformers_code;
    float *got = rig_run(&r, &run);
    rig_expect_same(&r, want, got, N_STEPS, "mean keys of the context");
    kvl_free(want);
    kvl_free(got);
    rig_close(&r);
}

static void test_preselect_keeps_important_blocks(void **state)
{
    (void)state;
    check_preselects(kvl_policy_ktransformers_code, true);
}

/* Unfilled boxes are infinite, ties go to later blocks: what is read is a window. */
static void test_quest_is_a_window(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = 2, .seed = 12 } };
    struct rig r;
    int32_t id[N_TOK];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 3);
    struct rig_run run = { .policy = kvl_policy_ktransformers_code,
                           .options = SIZES(8, 1, 16, 4) "representative_type=QUEST",
                           .budget = 1,
                           .id = id,
                           .n_ctx = N_CTX };
    struct rig_session rs = rig_start(&r, &run);
    float *logits = rig_logits(&r, 1);
    reads_tap(&r, &rs);
    rig_decode(&r, &rs, id + N_CTX, 1, logits);
    for (int32_t p = 0; p <= N_CTX; p++) /* 18 full blocks: the first, and from the 12th on */
        assert_int_equal(reads.read[0][0][p], p < 8 || p >= 12 * 8);
    kvl_free(logits);
    rig_end(&rs);
    rig_close(&r);
}

/* Published representatives are not kept up: those of blocks made while decoding stay zero. */
static void test_new_blocks_are_forgotten(void **state)
{
    static const char *const types[] = { "MEAN", "MAX", "QUEST", "FIXED", "DYNAMIC" };
    struct rig_desc desc = { .llama = { .n_layers = 1, .seed = 12 } };
    struct rig r;
    int32_t id[N_TOK];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 3);
    for (int i = 0; i < 10; i++) {
        char options[160];
        struct kvl_rows rows;
        snprintf(options, sizeof options, "block_size=8,representative_type=%s", types[i / 2]);
        struct rig_run run = { .policy =
                                   i % 2 ? kvl_policy_ktransformers_code : kvl_policy_ktransformers,
                               .options = options,
                               .budget = 64,
                               .id = id,
                               .n_ctx = N_CTX };
        struct rig_session rs = rig_start(&r, &run);
        float *logits = rig_logits(&r, N_STEPS);
        rig_decode(&r, &rs, id + N_CTX, N_STEPS, logits);
        kvl_hook_begin(rs.s, &r.err);
        RIG_OK(&r.err, kvl_table_all(&rs.s->ctx, 0, 0, &rows));
        const float *row = kvl_table_row(&rows, 0, 19);
        bool zero = true; /* block 19 begins at 152 and is full */
        for (int32_t c = 0; c < rows.row_elems; c++) zero = zero && fabsf(row[c]) < 1e-12f;
        assert_int_equal(zero, i % 2);
        kvl_free(logits);
        rig_end(&rs);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_maxima_and_boxes_by_hand),
        cmocka_unit_test(test_dynamic_by_hand),
        cmocka_unit_test(test_mean_is_as_it_should_be),
        cmocka_unit_test(test_preselect_keeps_important_blocks),
        cmocka_unit_test(test_quest_is_a_window),
        cmocka_unit_test(test_new_blocks_are_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
