/* Knorm: the worked example, the policy's choice against norms of the stored keys, and that RoPE has no
 * say. */
#include "golden/one_shot.h"

extern const struct kvl_policy *const kvl_policy_knorm;

static void test_worked_example(void **state)
{
    static const struct kvl_ops *const tables[] = { &kvl_ops_ref, &kvl_ops_cpu };
    static const float k[5][2] = { { 3, 0 }, { 2, 2 }, { 0, 1 }, { -1, 0 }, { 1, 0 } };
    static const double want[5] = { 3, 2.828427, 1, 1, 1 };
    (void)state;
    for (int t = 0; t < 2; t++) {
        float y[5];
        int32_t best[3];
        struct kvl_row_norms_args norms = { .y = y, .x = &k[0][0], .n = 5, .dim = 2, .norm = 2 };
        assert_int_equal(tables[t]->row_norms(&norms), KVL_OK);
        for (int i = 0; i < 5; i++) {
            assert_float_equal((double)y[i], want[i], 1e-6);
            y[i] = -y[i];
        }
        struct kvl_topk_args top = {
            .index = best, .x = y, .x_stride = 5, .n_rows = 1, .n = 5, .k = 3
        };
        assert_int_equal(tables[t]->topk(&top), KVL_OK);
        assert_memory_equal(best, ((int32_t[]){ 2, 3, 4 }), sizeof best);
    }
}

static void norm_scores(struct shot *t, int32_t layer, int32_t kv_head, const void *with,
                        double *score)
{
    const enum kvl_kv_part *part = with;
    int32_t dim = rig_shape(&t->r)->head_dim;
    float *k = shot_read(t, layer, kv_head, *part);
    for (int32_t i = 0; i < t->n; i++) {
        double sum = 0;
        for (int32_t c = 0; c < dim; c++) sum += pow((double)k[i * dim + c], 2);
        score[i] = -sqrt(sum);
    }
    kvl_free(k);
}

/* Keys before RoPE say the same. */
static void test_policy_keeps_the_shortest(void **state)
{
    static const enum kvl_kv_part parts[] = { KVL_PART_K, KVL_PART_K_RAW };
    static const struct gw_llama llama = { .n_layers = 3, .n_kv_heads = 2, .seed = 4 };
    struct shot t;
    (void)state;
    shot_open(&t, &llama, 130, 7);
    struct rig_session rs = shot_policy(&t, kvl_policy_knorm, "", 41);
    for (int p = 0; p < 2; p++) shot_expect_best(&t, &rs, 40, norm_scores, &parts[p]);
    rig_end(&rs);
    shot_close(&t);
}

static void test_first_layers_can_keep_everything(void **state)
{
    static const struct gw_llama llama = { .n_layers = 3, .n_kv_heads = 2, .seed = 4 };
    struct shot t;
    struct kvl_planned *p;
    (void)state;
    shot_open(&t, &llama, 130, 7);
    struct rig_session rs = shot_policy(&t, kvl_policy_knorm, "skip_layers=2", 41);
    for (int32_t l = 0; l < 3; l++)
        assert_int_equal(kvl_seq_len(kvl_session_seq(rs.s), l, 1), l < 2 ? 130 : 40);
    rig_end(&rs);
    assert_int_equal(kvl_planned_create(kvl_policy_knorm, rig_shape(&t.r), "skip_layers=3", 41, 130,
                                        &p, &t.r.err),
                     KVL_EINVAL);
    assert_non_null(strstr(t.r.err.msg, "give fewer"));
    shot_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test(test_policy_keeps_the_shortest),
        cmocka_unit_test(test_first_layers_can_keep_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
