/* Operators that share out, merge and prune what was scored, against their definitions. */
#include "ops/ops_util.h"

/* Few different values: ties decide. */
static float *random_ties(struct kvl_rng *r, size_t n, int32_t n_values)
{
    float *x = ut_alloc(n, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)ut_between(r, 0, n_values - 1) / 64;
    return x;
}

static void body_share(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 60; i++) {
        int32_t rows = ut_between(r, 1, 9), n = UT_PICK(r, 1, 2, 7, 100, 333);
        int32_t safe = ut_between(r, 0, i % 2 ? n : n / 4), count[2][9];
        size_t stride = (size_t)n + 5;
        float *x = random_ties(r, stride * (size_t)rows, i % 3 ? 5 : 1000);
        struct kvl_joint_share_args a = { .x = x,
                                          .x_stride = stride,
                                          .n_rows = rows,
                                          .n = n,
                                          .k = ut_between(r, rows * safe, rows * n),
                                          .safe = safe };
        int32_t sum = 0;
        a.count = count[0];
        assert_int_equal(kvl_ops_cpu.joint_share(&a), KVL_OK);
        a.count = count[1];
        assert_int_equal(kvl_ops_ref.joint_share(&a), KVL_OK);
        for (int32_t h = 0; h < rows; h++) {
            assert_int_equal(count[0][h], count[1][h]);
            assert_true(count[0][h] >= safe);
            sum += count[0][h];
        }
        assert_int_equal(sum, a.k);
        x[(size_t)(n - 1)] = NAN;
        assert_int_equal(kvl_ops_cpu.joint_share(&a), KVL_ENUMERIC);
        assert_int_equal(kvl_ops_ref.joint_share(&a), KVL_ENUMERIC);
        kvl_free(x);
    }
}

static void test_joint_share(void **state)
{
    (void)state;
    ut_each_isa(body_share);
}

static void body_chunks(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 60; i++) {
        int32_t rows = ut_between(r, 1, 5), n = UT_PICK(r, 1, 19, 20, 21, 400, 777), best[2];
        size_t stride = (size_t)n + 3, floats = stride * (size_t)rows;
        float *x = i % 2 ? random_ties(r, floats, 2) : ut_random(r, floats, 1);
        float *y = ut_alloc(floats, sizeof *y);
        memcpy(y, x, floats * sizeof *y);
        struct kvl_chunk_mean_args a = { .x = x,
                                         .stride = stride,
                                         .n_rows = rows,
                                         .n = n,
                                         .chunk = UT_PICK(r, 1, 2, 20, 64, 1000),
                                         .n_best = &best[0] };
        a.k = ut_between(r, 0, n / a.chunk + 2);
        assert_int_equal(kvl_ops_cpu.chunk_mean(&a), KVL_OK);
        a.x = y;
        a.n_best = &best[1];
        assert_int_equal(kvl_ops_ref.chunk_mean(&a), KVL_OK);
        ut_same("chunk mean", x, y, floats); /* what lies between rows stays */
        assert_int_equal(best[0], best[1]);
        kvl_free(x);
        kvl_free(y);
    }
}

static void test_chunk_mean(void **state)
{
    (void)state;
    ut_each_isa(body_chunks);
}

/* Rows of keys written in pieces; one key has one value in all channels. */
static uint8_t *put_rows(const struct kvl_ops *ops, const float *k, int32_t n, int32_t kv,
                         int32_t dim, int32_t piece)
{
    size_t bytes = KVL_KEY4_BYTES(dim), stride = bytes * (size_t)n + 9;
    uint8_t *rows = ut_alloc(stride * (size_t)kv, 1);
    memset(rows, 0xee, stride * (size_t)kv);
    for (int32_t at = 0; at < n; at += piece) {
        struct kvl_key4_put_args a = { .rows = rows + (size_t)at * bytes,
                                       .head_stride = stride,
                                       .k = k + (size_t)at * (size_t)(kv * dim),
                                       .n = KVL_MIN(piece, n - at),
                                       .n_kv_heads = kv,
                                       .head_dim = dim };
        assert_int_equal(ops->key4_put(&a), KVL_OK);
    }
    return rows;
}

/* No channel is further off than half a step. */
static void expect_close(const uint8_t *row, const float *k, int32_t dim)
{
    float lo, step;
    memcpy(&lo, row, sizeof lo);
    memcpy(&step, row + sizeof lo, sizeof step);
    for (int32_t c = 0; c < dim; c++) {
        int code = row[8 + c / 2] >> (c % 2 ? 4 : 0) & 15;
        double off = fabs((double)k[c] - ((double)lo + (double)step * code));
        if (off > 0.5001 * (double)step + 1e-6)
            fail_msg("channel %d of %d is off by %g, a step is %g", c, dim, off, (double)step);
    }
}

static void body_key4(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 20; i++) {
        int32_t n = UT_PICK(r, 1, 3, 255, 257, 600), kv = ut_between(r, 1, 3),
                group = ut_between(r, 1, 7), dim = UT_PICK(r, 2, 7, 22, 64, 80, 100, 128);
        size_t floats = (size_t)n * (size_t)(kv * dim), bytes = KVL_KEY4_BYTES(dim);
        float *k = ut_random(r, floats, 3), *q = ut_random(r, (size_t)(group * dim), 1), *y[2];
        for (int32_t c = 0; c < dim; c++) k[c] = 1.5f;
        uint8_t *a = put_rows(&kvl_ops_cpu, k, n, kv, dim, 100);
        uint8_t *b = put_rows(&kvl_ops_ref, k, n, kv, dim, n);
        assert_memory_equal(a, b, (bytes * (size_t)n + 9) * (size_t)kv);
        for (int32_t t = 0; t < n; t++) /* of head 0 */
            expect_close(a + (size_t)t * bytes, k + (size_t)t * (size_t)(kv * dim), dim);
        struct kvl_key4_logits_args l = { .stride = (size_t)n + 2,
                                          .q = q,
                                          .rows = a,
                                          .n = n,
                                          .n_heads = group,
                                          .head_dim = dim,
                                          .scale = 1 / sqrtf((float)dim) };
        y[0] = l.logit = ut_poison(l.stride * (size_t)group);
        assert_int_equal(kvl_ops_cpu.key4_logits(&l), KVL_OK);
        y[1] = l.logit = ut_poison(l.stride * (size_t)group);
        assert_int_equal(kvl_ops_ref.key4_logits(&l), KVL_OK);
        for (int32_t h = 0; h < group; h++)
            ut_near("logit", y[0] + (size_t)h * l.stride, y[1] + (size_t)h * l.stride, (size_t)n,
                    2e-5);
        int32_t pick[] = { 100 + n / 2, 100 + n - 1 }; /* rows counted from 100 */
        float some[2 * 7];
        l.row = pick;
        l.row0 = 100;
        l.n = 2;
        l.stride = 2;
        l.logit = some;
        assert_int_equal(kvl_ops_cpu.key4_logits(&l), KVL_OK);
        for (int32_t h = 0; h < group; h++)
            for (int32_t j = 0; j < 2; j++)
                ut_near("picked", &some[2 * h + j], y[1] + h * (n + 2) + pick[j] - 100, 1, 2e-5);
        kvl_free(k);
        kvl_free(q);
        kvl_free(a);
        kvl_free(b);
        kvl_free(y[0]);
        kvl_free(y[1]);
    }
}

static void test_key4(void **state)
{
    (void)state;
    ut_each_isa(body_key4);
}

/* Multiples of 1 / 64 sum exactly in any order; others may differ in the last token, so that they are
 * spread far apart. */
static void body_top_p(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 120; i++) {
        int32_t n = UT_PICK(r, 1, 2, 9, 100, 1000), rows = ut_between(r, 1, 4), m[2];
        size_t stride = (size_t)n + 1, floats = stride * (size_t)rows;
        float *x = random_ties(r, floats, 3 + i % 20);
        for (size_t j = 0; i % 4 == 0 && j < floats; j++) x[j] = expf(-9 * (float)kvl_rng_f64(r));
        int32_t *index[2] = { ut_alloc((size_t)n, sizeof(int32_t)),
                              ut_alloc((size_t)n, sizeof(int32_t)) };
        struct kvl_top_p_args a = { .weight = x,
                                    .stride = stride,
                                    .n_rows = rows,
                                    .n = n,
                                    .k = i % 3 ? n : ut_between(r, 1, n),
                                    .p = (float)ut_between(r, 1, 31) / 32,
                                    .last = i % 2 == 0 };
        a.index = index[0];
        a.n_index = &m[0];
        assert_int_equal(kvl_ops_cpu.top_p(&a), KVL_OK);
        a.index = index[1];
        a.n_index = &m[1];
        assert_int_equal(kvl_ops_ref.top_p(&a), KVL_OK);
        assert_int_equal(m[0], m[1]);
        assert_true(m[0] <= a.k && (!a.last || index[0][m[0] - 1] == n - 1));
        assert_memory_equal(index[0], index[1], (size_t)m[0] * sizeof(int32_t));
        kvl_free(x);
        kvl_free(index[0]);
        kvl_free(index[1]);
    }
}

static void test_top_p(void **state)
{
    (void)state;
    ut_each_isa(body_top_p);
}

/* All of a row, weights of nothing, and what is no number. */
static void test_top_p_ends(void **state)
{
    static const struct kvl_ops *const tables[] = { &kvl_ops_ref, &kvl_ops_cpu };
    float x[] = { .5f, 0, .25f, .25f }, nothing[4] = { 0 }, nan[] = { .5f, NAN, .25f, .25f };
    int32_t index[4], m;
    (void)state;
    for (int t = 0; t < 2; t++) {
        struct kvl_top_p_args a = {
            .index = index, .n_index = &m, .weight = x, .n_rows = 1, .n = 4, .k = 4, .p = 1
        };
        assert_int_equal(tables[t]->top_p(&a), KVL_OK);
        assert_int_equal(m, 3);
        assert_int_equal(index[2], 3);
        a.weight = nothing;
        assert_int_equal(tables[t]->top_p(&a), KVL_OK);
        assert_int_equal(m, 0);
        a.weight = nan;
        assert_int_equal(tables[t]->top_p(&a), KVL_ENUMERIC);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joint_share), cmocka_unit_test(test_chunk_mean),
        cmocka_unit_test(test_key4),        cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_top_p_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
