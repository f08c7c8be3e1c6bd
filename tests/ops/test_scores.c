/* Operators that judge tokens by keys, values and moments of queries, against their definitions. */
#include "ops/ops_util.h"

static int32_t any_dim(struct kvl_rng *r)
{
    return UT_PICK(r, 2, 6, 22, 32, 64, 80, 100, 128);
}

static void body_norms(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 20; i++) {
        int32_t n = ut_between(r, 1, 300), dim = any_dim(r);
        float *x = ut_random(r, (size_t)(n * dim), 2), *y[2];
        struct kvl_row_norms_args a = { .x = x, .n = n, .dim = dim, .norm = i % 2 + 1 };
        y[0] = a.y = ut_poison((size_t)n);
        assert_int_equal(kvl_ops_cpu.row_norms(&a), KVL_OK);
        y[1] = a.y = ut_poison((size_t)n);
        assert_int_equal(kvl_ops_ref.row_norms(&a), KVL_OK);
        ut_near("norm", y[0], y[1], (size_t)n, 1e-5);
        a.norm = i % 2 * 7; /* 0 or 7 */
        assert_int_equal(kvl_ops_cpu.row_norms(&a), KVL_EINVAL);
        assert_int_equal(kvl_ops_ref.row_norms(&a), KVL_EINVAL);
        kvl_free(x);
        kvl_free(y[0]);
        kvl_free(y[1]);
    }
}

static void test_row_norms(void **state)
{
    (void)state;
    ut_each_isa(body_norms);
}

/* Some rows are zero; row counts on both sides of the pieces that a mean is made of. */
static void body_cosine(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 20; i++) {
        int32_t n = UT_PICK(r, 1, 2, 77, 1023, 1024, 1025, 3000), dim = any_dim(r);
        float *x = ut_random(r, (size_t)(n * dim), 2), *y[2];
        if (i % 3 == 0) memset(x, 0, (size_t)dim * sizeof *x);
        struct kvl_mean_cosine_args a = { .x = x, .n = n, .dim = dim };
        for (int32_t j = 0; j < dim; j++) /* the mean must not be a difference of large numbers */
            for (int32_t t = i % 3 == 0; t < n; t++) x[t * dim + j] += 0.3f;
        y[0] = a.y = ut_poison((size_t)n);
        assert_int_equal(kvl_ops_cpu.mean_cosine(&a), KVL_OK);
        y[1] = a.y = ut_poison((size_t)n);
        assert_int_equal(kvl_ops_ref.mean_cosine(&a), KVL_OK);
        ut_near("cosine", y[0], y[1], (size_t)n, 2e-5);
        kvl_free(x);
        kvl_free(y[0]);
        kvl_free(y[1]);
    }
}

static void test_mean_cosine(void **state)
{
    (void)state;
    ut_each_isa(body_cosine);
}

/* One channel of every block has the same value throughout. */
static void body_spread(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 20; i++) {
        int32_t n = ut_between(r, 1, 6), lag = UT_PICK(r, 1, 2, 7, 128), dim = any_dim(r);
        size_t floats = (size_t)(n + 1) * (size_t)lag * (size_t)dim, out = (size_t)(n * lag);
        float *x = ut_random(r, floats, 2), *y[2];
        for (size_t t = 0; t < floats; t += (size_t)dim) x[t + 1] = 0.5f;
        struct kvl_lag_spread_args a = { .x = x, .n_blocks = n, .lag = lag, .dim = dim };
        y[0] = a.y = ut_poison(out);
        assert_int_equal(kvl_ops_cpu.lag_spread(&a), KVL_OK);
        y[1] = a.y = ut_poison(out);
        assert_int_equal(kvl_ops_ref.lag_spread(&a), KVL_OK);
        if (lag != 2)
            ut_near("spread", y[0], y[1], out, 1e-4); /* of two nearly equal values: noise */
        for (size_t b = 0; b < (size_t)n; b++) {
            double sum = 0;
            for (size_t t = 0; t < (size_t)lag; t++) sum += (double)y[0][b * (size_t)lag + t];
            assert_float_equal(sum, 1, 1e-5);
        }
        kvl_free(x);
        kvl_free(y[0]);
        kvl_free(y[1]);
    }
}

static void test_lag_spread(void **state)
{
    (void)state;
    ut_each_isa(body_spread);
}

static void body_gauss(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 12; i++) {
        int32_t n = UT_PICK(r, 1, 50, 1024, 1100), heads = ut_between(r, 1, 3), dim = any_dim(r);
        size_t d = (size_t)dim;
        float *x = ut_random(r, (size_t)n * d, 1), *mean = ut_random(r, (size_t)heads * d, 1);
        float *cov = ut_random(r, (size_t)heads * d * d, .3), *y[2];
        for (size_t h = 0; h < (size_t)heads; h++)
            for (size_t a = 0; a < d; a++)
                for (size_t b = 0; b < a; b++) cov[(h * d + a) * d + b] = cov[(h * d + b) * d + a];
        struct kvl_gauss_logits_args a = { .x = x,
                                           .mean = mean,
                                           .cov = i % 4 ? cov : NULL,
                                           .n = n,
                                           .n_heads = heads,
                                           .dim = dim,
                                           .scale = 1 / sqrtf((float)dim) };
        y[0] = a.y = ut_poison((size_t)(n * heads));
        assert_int_equal(kvl_ops_cpu.gauss_logits(&a), KVL_OK);
        y[1] = a.y = ut_poison((size_t)(n * heads));
        assert_int_equal(kvl_ops_ref.gauss_logits(&a), KVL_OK);
        ut_near("logit", y[0], y[1], (size_t)(n * heads), 2e-5);
        kvl_free(x);
        kvl_free(mean);
        kvl_free(cov);
        kvl_free(y[0]);
        kvl_free(y[1]);
    }
}

static void test_gauss_logits(void **state)
{
    (void)state;
    ut_each_isa(body_gauss);
}

static void body_softmax(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 20; i++) {
        int32_t n = i == 0 ? 20011 : ut_between(r, 1, 400), rows = ut_between(r, 1, 5);
        size_t stride = (size_t)n + 3, floats = stride * (size_t)rows;
        float *x = ut_random(r, floats, 60), *y = ut_alloc(floats, sizeof *y);
        if (n > 8192) { /* the ends of pieces weigh something */
            x[8191] = x[8192] = 70;
            x[n - 1] = 71;
        }
        memcpy(y, x, floats * sizeof *y);
        struct kvl_softmax_args a = { .x = x, .stride = stride, .n_rows = rows, .n = n };
        assert_int_equal(kvl_ops_cpu.softmax(&a), KVL_OK);
        a.x = y;
        assert_int_equal(kvl_ops_ref.softmax(&a), KVL_OK);
        ut_near("softmax", x, y, floats, 1e-5);
        kvl_free(x);
        kvl_free(y);
    }
}

static void test_softmax(void **state)
{
    (void)state;
    ut_each_isa(body_softmax);
}

/* In one call and in pieces: the same bits, and those of the definition. */
static void body_moments(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 12; i++) {
        int32_t n = ut_between(r, 2, 90), heads = ut_between(r, 1, 4), dim = any_dim(r);
        size_t sums = (size_t)(heads * dim), products = sums * (size_t)(dim + 1) / 2;
        float *x = ut_random(r, (size_t)n * sums, 3);
        double *sum[2], *product[2];
        int32_t cut = ut_between(r, 1, n - 1);
        for (int t = 0; t < 2; t++) {
            const struct kvl_ops *ops = t ? &kvl_ops_ref : &kvl_ops_cpu;
            sum[t] = ut_alloc(sums, sizeof **sum);
            product[t] = ut_alloc(products, sizeof **product);
            struct kvl_moments_args a = {
                .sum = sum[t], .product = product[t], .x = x, .n_heads = heads, .dim = dim
            };
            a.n = t ? n : cut;
            assert_int_equal(ops->moments(&a), KVL_OK);
            a.x = x + (size_t)a.n * sums;
            a.n = n - a.n;
            assert_int_equal(ops->moments(&a), KVL_OK);
        }
        assert_memory_equal(sum[0], sum[1], sums * sizeof **sum);
        assert_memory_equal(product[0], product[1], products * sizeof **product);
        for (int t = 0; t < 2; t++) {
            kvl_free(sum[t]);
            kvl_free(product[t]);
        }
        kvl_free(x);
    }
}

static void test_moments(void **state)
{
    (void)state;
    ut_each_isa(body_moments);
}

/* A sink before the chunk, inside it, or none; own tokens that were there before these queries. */
static void body_peaks(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 16; i++) {
        int32_t kv = ut_between(r, 1, 3), group = ut_between(r, 1, 4), dim = any_dim(r);
        int32_t sink = UT_PICK(r, 0, 1, 4), first = UT_PICK(r, 0, 4, 30),
                chunk = ut_between(r, 4, 600);
        int32_t before = ut_between(r, 0, 20), n = ut_between(r, 1, 40), heads = kv * group;
        int32_t own = first + chunk + UT_PICK(r, 0, 9), n_slots = own + before + n;
        struct ut_lanes t;
        ut_layout(&t.layout, dim, 16, ut_kv_type(r, dim), false);
        ut_lanes_open(&t, r, kv, n_slots);
        float *q = ut_random(r, (size_t)(n * heads * dim), 3), *bias = ut_random(r, (size_t)n, 1);
        float *rest = ut_random(r, (size_t)heads, 4);
        size_t out = (size_t)(heads * chunk);
        float *y[2] = { ut_random(r, out, 8), ut_alloc(out, sizeof(float)) };
        for (size_t j = 0; j < out; j += 2) y[0][j] = -INFINITY;
        memcpy(y[1], y[0], out * sizeof(float));
        struct kvl_attn_peaks_args a = { .peak = y[0],
                                         .q = q,
                                         .bias = i % 2 ? bias : NULL,
                                         .rest = i % 4 < 2 ? rest : NULL,
                                         .lanes = t.lane,
                                         .sink = sink,
                                         .first = first,
                                         .last = first + chunk,
                                         .own = own,
                                         .n = n,
                                         .n_heads = heads,
                                         .n_kv_heads = kv,
                                         .head_dim = dim,
                                         .scale = 1 / sqrtf((float)dim),
                                         .cap = i % 3 ? 0 : 2 };
        assert_int_equal(kvl_ops_cpu.attn_peaks(&a), KVL_OK);
        a.peak = y[1];
        assert_int_equal(kvl_ops_ref.attn_peaks(&a), KVL_OK);
        ut_near("peak", y[0], y[1], out, 2e-5);
        ut_lanes_close(&t);
        kvl_free(q);
        kvl_free(bias);
        kvl_free(rest);
        kvl_free(y[0]);
        kvl_free(y[1]);
    }
}

static void test_attn_peaks(void **state)
{
    (void)state;
    ut_each_isa(body_peaks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_norms),  cmocka_unit_test(test_mean_cosine),
        cmocka_unit_test(test_lag_spread), cmocka_unit_test(test_gauss_logits),
        cmocka_unit_test(test_softmax),    cmocka_unit_test(test_moments),
        cmocka_unit_test(test_attn_peaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
