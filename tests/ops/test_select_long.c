/* Selection over rows and tables that are more than one piece of work for an operator: pieces are cut at fixed
 * sizes, on a GPU over several blocks, and what lies on both sides of a cut must fit together. */
#include "ops/ops_util.h"

#include "ref.h"

/* Many ties, close neighbours, one value but for a few, and anything. */
static float any_value(struct kvl_rng *r, int32_t kind)
{
    if (kind == 0) return (float)(kvl_rng_f64(r) * 2 - 1);
    if (kind == 1) return (float)kvl_rng_below(r, 3) - 1;
    if (kind == 2) return kvl_bits_f32(0x3f800000u + kvl_rng_below(r, 3000));
    if (kind == 3) return kvl_rng_below(r, 1000) == 0 ? (float)kvl_rng_f64(r) : 0.25f;
    uint32_t bits = kvl_rng_u32(r);
    return (bits & 0x7f800000u) == 0x7f800000u ? INFINITY : kvl_bits_f32(bits);
}

static void test_topk(void **state)
{
    static const int32_t sizes[] = { 2048, 2049, 8192, 8193, 16384, 16385, 20480, 50000 };
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 3);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int32_t kind = 0; kind < 5; kind++) {
            int32_t n = sizes[s], rows = ut_between(&r, 1, 3);
            int32_t k[] = { 1, ut_between(&r, 2, n - 2), n - 1, n };
            size_t stride = (size_t)n + 3;
            float *x = ut_alloc(stride * (size_t)rows, sizeof *x);
            for (size_t j = 0; j < stride * (size_t)rows; j++) x[j] = any_value(&r, kind);
            for (int32_t i = kind % 2; i < 4; i += 2) ut_compare_topk(x, stride, rows, n, k[i]);
            ut_compare_topk(x, stride, rows, n, k[1]);
            kvl_free(x);
        }
}

/* Wherever it is, and whatever k. */
static void test_topk_nan(void **state)
{
    enum { N = 20000 };
    float *x = ut_alloc(2 * N, sizeof *x);
    int32_t *index = ut_alloc(2 * N, sizeof *index), k[] = { 0, 1, 300, N };
    static const int32_t at[] = { 0, N - 1, N, 2 * N - 1 };
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct kvl_topk_args a = {
            .index = index, .x = x, .x_stride = N, .n_rows = 2, .n = N, .k = k[i]
        };
        assert_int_equal(kvl_ops_cpu.topk(&a), KVL_OK);
        x[at[i]] = NAN;
        assert_int_equal(kvl_ops_cpu.topk(&a), KVL_ENUMERIC);
        x[at[i]] = 0;
    }
    kvl_free(x);
    kvl_free(index);
}

/* More pages than blocks take at a time; channels beyond what one load of a page's threads covers; more queries
 * of a group than shared memory holds, up to all that the loader admits. */
static void test_page_bound(void **state)
{
    static const int32_t shapes[][4] = { { 2300, 200, 8, 5 },
                                         { 40, 264, 2, 6 },
                                         { 3000, 16, 1, 4 },
                                         { 150, 256, 1, 50 },
                                         { 10, 1024, 1, 64 } };
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 4);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int type = 0; type < 3; type++) {
            int32_t n = shapes[s][0], dim = shapes[s][1], kv = shapes[s][2], group = shapes[s][3];
            size_t stride = (size_t)(n * 2 * dim), n_y = (size_t)(kv * group * n);
            float *wide = ut_random(&r, stride * (size_t)kv, 1);
            float *q = ut_random(&r, (size_t)(kv * group * dim), 1), *y[2];
            uint8_t *table =
                ut_alloc(stride * (size_t)kv, (size_t)kvl_kv_elem_bytes((enum kvl_kv_type)type));
            /* The upper half of a page is not below the lower one; type 1: bounds below 0. */
            float less = type == 1 ? 4.0f : 0.0f;
            for (size_t i = 0; i < stride * (size_t)kv; i++)
                kvl_ref_set_elem(table, (enum kvl_kv_type)type, i,
                                 wide[i] + (i / (size_t)dim % 2 ? 2.0f : 0.0f) - less);
            for (int32_t i = 0; type == 1 && i < kv * group * dim; i++) q[i] = fabsf(q[i]);
            struct kvl_page_bound_args a = { .q = q,
                                             .minmax = table,
                                             .type = (enum kvl_kv_type)type,
                                             .head_stride = stride,
                                             .n_pages = n,
                                             .n_heads = kv * group,
                                             .n_kv_heads = kv,
                                             .head_dim = dim,
                                             .reduce = type == 1   ? KVL_REDUCE_MAX
                                                       : type == 2 ? KVL_REDUCE_SUM
                                                                   : KVL_REDUCE_NONE };
            y[0] = a.bound = ut_poison(n_y);
            assert_int_equal(kvl_ops_cpu.page_bound(&a), KVL_OK);
            y[1] = a.bound = ut_poison(n_y);
            assert_int_equal(kvl_ops_ref.page_bound(&a), KVL_OK);
            ut_near("bound", y[0], y[1], (size_t)(kv * (type ? 1 : group) * n), 1e-5);
            kvl_free(wide);
            kvl_free(q);
            kvl_free(table);
            kvl_free(y[0]);
            kvl_free(y[1]);
        }
}

static void test_channel_scores(void **state)
{
    enum { TOKENS = 5000, PAGE = 64, DIM = 16, KV = 2, HEADS = 6, CHANNELS = 7 };
    const size_t stride = (size_t)(TOKENS + PAGE - 1) / PAGE * DIM * PAGE;
    int32_t channel[KV * CHANNELS];
    float ends[2][2][HEADS], *y[2];
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 5);
    float *keys = ut_random(&r, stride * KV, 1), *q = ut_random(&r, HEADS * DIM, 3);
    float *factor = ut_random(&r, HEADS, 1);
    for (int32_t i = 0; i < KV * CHANNELS; i++) channel[i] = (i * 5 + 2) % DIM;
    for (int side = 0; side < 2; side++) {
        struct kvl_channel_scores_args a = { .score_stride = TOKENS,
                                             .max = ends[side][0],
                                             .sum = ends[side][1],
                                             .q = q,
                                             .factor = factor,
                                             .channel = channel,
                                             .keys = keys,
                                             .type = KVL_KV_F32,
                                             .head_stride = stride,
                                             .n_tok = TOKENS,
                                             .page_tok = PAGE,
                                             .n_channels = CHANNELS,
                                             .n_heads = HEADS,
                                             .n_kv_heads = KV,
                                             .head_dim = DIM };
        y[side] = a.score = ut_poison(HEADS * TOKENS);
        assert_int_equal((side ? kvl_ops_ref : kvl_ops_cpu).channel_scores(&a), KVL_OK);
    }
    ut_near("score", y[0], y[1], HEADS * TOKENS, 1e-5);
    ut_near("largest", ends[0][0], ends[1][0], HEADS, 1e-5);
    ut_near("sum", ends[0][1], ends[1][1], HEADS, 1e-4);
    struct kvl_channel_scores_args none = { .max = ends[0][0],
                                            .sum = ends[0][1],
                                            .q = q,
                                            .factor = factor,
                                            .channel = channel,
                                            .page_tok = PAGE,
                                            .n_channels = CHANNELS,
                                            .n_heads = HEADS,
                                            .n_kv_heads = KV,
                                            .head_dim = DIM };
    assert_int_equal(kvl_ops_cpu.channel_scores(&none), KVL_OK);
    assert_true(ends[0][0][0] == -INFINITY && ends[0][1][HEADS - 1] == 0);
    kvl_free(keys);
    kvl_free(q);
    kvl_free(factor);
    kvl_free(y[0]);
    kvl_free(y[1]);
}

static void test_key4_logits(void **state)
{
    enum { ROWS = 69000, DIM = 128, HEADS = 5 };
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 6);
    float *k = ut_random(&r, (size_t)ROWS * DIM, 2), *q = ut_random(&r, HEADS * DIM, 1), *y[2];
    uint8_t *rows = ut_alloc(ROWS, KVL_KEY4_BYTES(DIM));
    struct kvl_key4_put_args put = {
        .rows = rows, .k = k, .n = ROWS, .n_kv_heads = 1, .head_dim = DIM
    };
    assert_int_equal(kvl_ops_ref.key4_put(&put), KVL_OK);
    struct kvl_key4_logits_args a = { .stride = ROWS,
                                      .q = q,
                                      .rows = rows,
                                      .n = ROWS,
                                      .n_heads = HEADS,
                                      .head_dim = DIM,
                                      .scale = 0.1f };
    y[0] = a.logit = ut_poison((size_t)ROWS * HEADS);
    assert_int_equal(kvl_ops_cpu.key4_logits(&a), KVL_OK);
    y[1] = a.logit = ut_poison((size_t)ROWS * HEADS);
    assert_int_equal(kvl_ops_ref.key4_logits(&a), KVL_OK);
    ut_near("logit", y[0], y[1], (size_t)ROWS * HEADS, 2e-5);
    kvl_free(k);
    kvl_free(q);
    kvl_free(rows);
    kvl_free(y[0]);
    kvl_free(y[1]);
}

/* Values of all kinds; from nothing safe to little else. */
static void test_joint_share(void **state)
{
    enum { ROWS = 6, N = 4000 };
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 7);
    float *x = ut_alloc(ROWS * N, sizeof *x);
    for (int32_t i = 0; i < 6; i++) {
        int32_t count[2][ROWS];
        struct kvl_joint_share_args a = { .x = x, .x_stride = N, .n_rows = ROWS, .n = N };
        for (int32_t j = 0; j < ROWS * N; j++) x[j] = any_value(&r, i % 5);
        a.safe = i == 0 ? 0 : ut_between(&r, 1, 3000);
        a.k = i == 1 ? ROWS * a.safe : ut_between(&r, ROWS * a.safe, ROWS * N);
        a.count = count[0];
        assert_int_equal(kvl_ops_cpu.joint_share(&a), KVL_OK);
        a.count = count[1];
        assert_int_equal(kvl_ops_ref.joint_share(&a), KVL_OK);
        assert_memory_equal(count[0], count[1], sizeof count[0]);
    }
    kvl_free(x);
}

static void test_chunk_mean(void **state)
{
    enum { N = 20003, ROWS = 2 };
    static const int32_t chunk[] = { 1, 2, 20, 3000 };
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 8);
    float *x = ut_alloc(ROWS * N, sizeof *x), *y = ut_alloc(ROWS * N, sizeof *y);
    for (int i = 0; i < 4; i++) {
        int32_t best[2] = { -1, -1 }, n_chunks = (N + chunk[i] - 1) / chunk[i];
        for (int32_t j = 0; j < ROWS * N; j++) x[j] = y[j] = (float)kvl_rng_below(&r, 40) / 64;
        struct kvl_chunk_mean_args a = { .x = x,
                                         .stride = N,
                                         .n_rows = ROWS,
                                         .n = N,
                                         .chunk = chunk[i],
                                         .k = ut_between(&r, 1, n_chunks - 1),
                                         .n_best = &best[0] };
        assert_int_equal(kvl_ops_cpu.chunk_mean(&a), KVL_OK);
        a.x = y;
        a.n_best = &best[1];
        assert_int_equal(kvl_ops_ref.chunk_mean(&a), KVL_OK);
        ut_same("chunk mean", x, y, ROWS * N);
        assert_int_equal(best[0], best[1]);
    }
    kvl_free(x);
    kvl_free(y);
}

/* Multiples of 1 / 64 sum exactly, as do values that differ by less than 2^16. */
static void test_top_p(void **state)
{
    enum { ROWS = 3, MOST = 20000 };
    static const int32_t sizes[] = { 1023, 1025, 4000, MOST };
    int32_t *index[2] = { ut_alloc(MOST, sizeof **index), ut_alloc(MOST, sizeof **index) }, m[2];
    struct kvl_rng r;
    float *x = ut_alloc(ROWS * MOST, sizeof *x);
    (void)state;
    kvl_rng_seed(&r, 9);
    for (int32_t i = 0; i < 24; i++) {
        int32_t n = sizes[i % 4];
        for (int32_t j = 0; j < ROWS * n; j++)
            x[j] = i / 4 % 2 ? expf(-9 * (float)kvl_rng_f64(&r)) : (float)kvl_rng_below(&r, 9) / 64;
        struct kvl_top_p_args a = { .weight = x,
                                    .stride = (size_t)n,
                                    .n_rows = ROWS,
                                    .n = n,
                                    .k = i % 3 ? n : ut_between(&r, 1, n),
                                    .p = (float)ut_between(&r, 1, 31) / 32,
                                    .last = i / 8 == 1 };
        a.index = index[0];
        a.n_index = &m[0];
        assert_int_equal(kvl_ops_cpu.top_p(&a), KVL_OK);
        a.index = index[1];
        a.n_index = &m[1];
        assert_int_equal(kvl_ops_ref.top_p(&a), KVL_OK);
        assert_int_equal(m[0], m[1]);
        assert_memory_equal(index[0], index[1], (size_t)m[0] * sizeof **index);
    }
    kvl_free(x);
    kvl_free(index[0]);
    kvl_free(index[1]);
}

static void test_near_max(void **state)
{
    enum { ROWS = 3, N = 10001 };
    int32_t got[ROWS], want[ROWS];
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 10);
    float *x = ut_random(&r, ROWS * N, 4), *y = ut_alloc(ROWS * N, sizeof *y);
    memcpy(y, x, ROWS * N * sizeof *y);
    struct kvl_near_max_args a = { .x = x, .count = got, .n_rows = ROWS, .n = N, .alpha = 3 };
    assert_int_equal(kvl_ops_cpu.near_max(&a), KVL_OK);
    a.x = y;
    a.count = want;
    assert_int_equal(kvl_ops_ref.near_max(&a), KVL_OK);
    assert_memory_equal(x, y, ROWS * N * sizeof *y);
    assert_memory_equal(got, want, sizeof got);
    a.n = 0;
    assert_int_equal(kvl_ops_cpu.near_max(&a), KVL_OK);
    assert_int_equal(want[ROWS - 1], 0);
    kvl_free(x);
    kvl_free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_topk),        cmocka_unit_test(test_topk_nan),
        cmocka_unit_test(test_page_bound),  cmocka_unit_test(test_channel_scores),
        cmocka_unit_test(test_key4_logits), cmocka_unit_test(test_joint_share),
        cmocka_unit_test(test_chunk_mean),  cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_near_max),
    };
    return cmocka_run_group_tests_name("select_long", tests, NULL, NULL);
}
