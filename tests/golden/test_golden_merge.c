/* Merging partial attention results by natural log-sum-exp: a hand-computed example, and the promise
 * that attention in two parts equals attention in one. */
#include "golden/record.h"

#include "lane.h"

static const struct kvl_ops *const tables[] = { &kvl_ops_ref, &kvl_ops_cpu };
enum { N_TABLES = 2 };

static void merge(const struct kvl_ops *ops, const float *const *part, const float *const *lse,
                  int32_t n_parts, int32_t head_dim, float *out, float *out_lse)
{
    assert_int_equal(ops->attn_merge(&(struct kvl_attn_merge_args){ .out = out,
                                                                    .lse = out_lse,
                                                                    .part = part,
                                                                    .part_lse = lse,
                                                                    .n_parts = n_parts,
                                                                    .n_heads = 1,
                                                                    .head_dim = head_dim }),
                     KVL_OK);
}

/* Block A has logits (1, 0), block B (2, -1).  Values (1, 0) and (0, 1) show the blocks' weights. */
static void test_weights_of_two_blocks(void **state)
{
    static const float a[2] = { 1, 0 }, b[2] = { 0, 1 }, lse_a = 1.313262f, lse_b = 2.048587f;
    (void)state;
    for (int t = 0; t < N_TABLES; t++) {
        float out[2], lse;
        merge(tables[t], (const float *const[]){ a, b }, (const float *const[]){ &lse_a, &lse_b },
              2, 2, out, &lse);
        assert_float_equal((double)lse, 2.44019, 2e-6);
        assert_float_equal((double)out[0], .324027, 2e-6);
        assert_float_equal((double)out[1], .675973, 2e-6);
    }
}

static void test_an_empty_part_counts_nothing(void **state)
{
    static const float a[2] = { 3, 4 }, empty[2] = { 0, 0 }, lse_a = -700.0f;
    const float nothing = (float)-HUGE_VAL;
    (void)state;
    for (int t = 0; t < N_TABLES; t++) {
        float out[2] = { 9, 9 }, lse = 9;
        merge(tables[t], (const float *const[]){ empty, a, empty },
              (const float *const[]){ &nothing, &lse_a, &nothing }, 3, 2, out, &lse);
        assert_float_equal((double)lse, -700.0, 1e-4);
        assert_float_equal((double)out[0], 3.0, 1e-6);
        assert_float_equal((double)out[1], 4.0, 1e-6);
        merge(tables[t], (const float *const[]){ empty, empty },
              (const float *const[]){ &nothing, &nothing }, 2, 2, out, &lse);
        assert_true(isinf(lse) && lse < 0);
        assert_true(out[0] == 0.0f && out[1] == 0.0f);
    }
}

enum { N = 50, D = 8 };

struct lane_rig {
    struct kvl_store *store;
    struct kvl_seq *seq;
    struct kvl_lane lane;
    float k[N][D], v[N][D], q[D];
};

static void lane_open(struct lane_rig *r)
{
    struct kvl_store_desc desc = { .n_layers = 1, .n_kv_heads = 1, .head_dim = D };
    struct kvl_err err = { 0 };
    struct kvl_rng rng;
    int32_t pos[N];
    kvl_rng_seed(&rng, 17);
    for (int i = 0; i < N; i++) {
        pos[i] = i;
        for (int c = 0; c < D; c++) {
            r->k[i][c] = (float)(4 * kvl_rng_f64(&rng) - 2);
            r->v[i][c] = (float)(4 * kvl_rng_f64(&rng) - 2);
        }
    }
    for (int c = 0; c < D; c++) r->q[c] = (float)(4 * kvl_rng_f64(&rng) - 2);
    RIG_OK(&err, kvl_store_create(&desc, &r->store, &err));
    RIG_OK(&err, kvl_seq_create(r->store, &r->seq, &err));
    RIG_OK(&err, kvl_seq_append(r->seq, 0, N, pos, r->k[0], NULL, r->v[0], &err));
    r->lane = kvl_seq_lane(r->seq, 0, 0);
}

static void attend(const struct kvl_ops *ops, const struct lane_rig *r, const struct kvl_run *run,
                   float *out, float *lse)
{
    struct kvl_attn_job job = { .out = out,
                                .lse = lse,
                                .q = r->q,
                                .lane = &r->lane,
                                .runs = run,
                                .n_runs = 1,
                                .n_slots = run->n,
                                .n_heads = 1 };
    assert_int_equal(ops->attn_decode(&(struct kvl_attn_decode_args){
                         .jobs = &job, .n_jobs = 1, .head_dim = D, .scale = sqrtf(1.0f / D) }),
                     KVL_OK);
}

static void test_two_parts_equal_the_whole(void **state)
{
    struct lane_rig r;
    double weight[N], want[D] = { 0 };
    (void)state;
    lane_open(&r);
    record_weights(r.q, r.k[0], N, D, weight);
    for (int i = 0; i < N; i++)
        for (int c = 0; c < D; c++) want[c] += weight[i] * (double)r.v[i][c];
    for (int t = 0; t < N_TABLES; t++)
        for (int32_t cut = 1; cut < N; cut++) {
            float a[D], b[D], lse_a, lse_b, out[D];
            attend(tables[t], &r, &(struct kvl_run){ 0, cut }, a, &lse_a);
            attend(tables[t], &r, &(struct kvl_run){ cut, N - cut }, b, &lse_b);
            merge(tables[t], (const float *const[]){ a, b },
                  (const float *const[]){ &lse_a, &lse_b }, 2, D, out, NULL);
            for (int c = 0; c < D; c++) assert_float_equal((double)out[c], want[c], 1e-5);
        }
    kvl_seq_destroy(r.seq);
    kvl_store_destroy(r.store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_of_two_blocks),
        cmocka_unit_test(test_an_empty_part_counts_nothing),
        cmocka_unit_test(test_two_parts_equal_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
