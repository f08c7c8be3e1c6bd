/* rmsnorm, layernorm, rope, glu, add, scale, mix_rows against their definitions; in place as well as into another buffer. */
#include "ops/ops_util.h"

#include "kvl/device.h"

static void body_rmsnorm(struct kvl_rng *r)
{
    static const int32_t dims[] = { 1, 7, 32, 100, 128, 2048 };
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        int32_t n = ut_between(r, 1, 300), dim = dims[i];
        size_t total = (size_t)n * (size_t)dim;
        float *x = ut_random(r, total, 5), *w = ut_random(r, (size_t)dim, 2);
        float *y[2] = { ut_poison(total), ut_poison(total) };
        struct kvl_rmsnorm_args a = { .y = y[0], .x = x, .w = w, .n = n, .dim = dim, .eps = 1e-5f };
        assert_int_equal(kvl_ops_cpu.rmsnorm(&a), KVL_OK);
        a.y = y[1];
        assert_int_equal(kvl_ops_ref.rmsnorm(&a), KVL_OK);
        ut_near("rmsnorm", y[0], y[1], total, 2e-6);
        a.y = x;
        assert_int_equal(kvl_ops_cpu.rmsnorm(&a), KVL_OK);
        ut_same("rmsnorm in place", x, y[0], total);
        kvl_free(y[0]);
        kvl_free(y[1]);
        kvl_free(w);
        kvl_free(x);
    }
}

static void body_layernorm(struct kvl_rng *r)
{
    static const int32_t dims[] = { 1, 7, 32, 100, 2048 };
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        int32_t n = ut_between(r, 1, 100), dim = dims[i];
        size_t total = (size_t)n * (size_t)dim;
        float *x = ut_random(r, total, 5), *w = ut_random(r, 2 * (size_t)dim, 2);
        float *y[2] = { ut_poison(total), ut_poison(total) };
        for (size_t j = 0; j < total; j++) x[j] += 3;
        struct kvl_layernorm_args a = {
            .y = y[0], .x = x, .w = w, .b = w + dim, .n = n, .dim = dim, .eps = 1e-5f
        };
        assert_int_equal(kvl_ops_cpu.layernorm(&a), KVL_OK);
        a.y = y[1];
        assert_int_equal(kvl_ops_ref.layernorm(&a), KVL_OK);
        ut_near("layernorm", y[0], y[1], total, 3e-6);
        a.y = x;
        assert_int_equal(kvl_ops_cpu.layernorm(&a), KVL_OK);
        ut_same("layernorm in place", x, y[0], total);
        kvl_free(y[0]);
        kvl_free(y[1]);
        kvl_free(w);
        kvl_free(x);
    }
}

static void test_layernorm(void **state)
{
    (void)state;
    ut_each_isa(body_layernorm);
}

static void body_scale_mix(struct kvl_rng *r)
{
    enum { N = 37, K = 3, ROWS = 50, DIM = 129 };
    float *x = ut_random(r, ROWS * DIM, 20), *weight = ut_random(r, N * K, 1);
    float *y[2] = { ut_poison(N * DIM), ut_poison(N * DIM) };
    int32_t row[N * K];
    for (int32_t i = 0; i < N * K; i++) row[i] = ut_between(r, 0, ROWS - 1);
    struct kvl_mix_rows_args a = {
        .y = y[0], .x = x, .row = row, .weight = weight, .n = N, .k = K, .n_x = ROWS, .dim = DIM
    };
    assert_int_equal(kvl_ops_cpu.mix_rows(&a), KVL_OK);
    a.y = y[1];
    assert_int_equal(kvl_ops_ref.mix_rows(&a), KVL_OK);
    ut_near("mix_rows", y[0], y[1], N * DIM, 3e-6);
    for (int cap = 0; cap < 2; cap++) {
        memcpy(y[1], y[0], N * DIM * sizeof *y[1]);
        struct kvl_scale_args s = {
            .y = y[0], .n = N * DIM, .factor = 1.375f, .cap = cap ? 30 : 0
        };
        assert_int_equal(kvl_ops_cpu.scale(&s), KVL_OK);
        s.y = y[1];
        assert_int_equal(kvl_ops_ref.scale(&s), KVL_OK);
        ut_near("scale", y[0], y[1], N * DIM, 1e-6);
    }
    kvl_free(x);
    kvl_free(weight);
    kvl_free(y[0]);
    kvl_free(y[1]);
}

static void test_scale_mix(void **state)
{
    (void)state;
    ut_each_isa(body_scale_mix);
}

static void test_rmsnorm(void **state)
{
    (void)state;
    ut_each_isa(body_rmsnorm);
}

/* Positions far apart collide in the table of angles; up to a million they stay exact to float. */
static void body_rope(struct kvl_rng *r)
{
    static const int32_t dims[] = { 2, 32, 64, 80, 100, 128 };
    for (size_t i = 0; i < 2 * sizeof dims / sizeof *dims; i++) {
        int32_t n = ut_between(r, 1, 60), heads = UT_PICK(r, 1, 2, 4, 19), dim = dims[i / 2];
        size_t total = (size_t)(n * heads * dim);
        float *x = ut_random(r, total, 1), *y[2] = { ut_poison(total), ut_poison(total) };
        int32_t *pos = ut_alloc((size_t)n, sizeof *pos);
        double *inv_freq = ut_inv_freq(dim);
        for (int32_t k = 0; k < n; k++)
            pos[k] = k % 3 ? 8192 * (k % 7) + 5 : ut_between(r, 0, 1000000);
        struct kvl_rope rope = { .inv_freq = inv_freq,
                                 .n_rot = kvl_rng_below(r, 2) ? ut_between(r, 1, dim / 2) * 2 : dim,
                                 .style = i % 2 ? KVL_ROPE_NEOX : KVL_ROPE_NORM,
                                 .mag = kvl_rng_below(r, 2) ? 1 : 1.25f };
        struct kvl_rope_args a = {
            .y = y[0], .x = x, .pos = pos, .rope = &rope, .n = n, .n_heads = heads, .head_dim = dim
        };
        assert_int_equal(kvl_ops_cpu.rope(&a), KVL_OK);
        a.y = y[1];
        assert_int_equal(kvl_ops_ref.rope(&a), KVL_OK);
        ut_near("rope", y[0], y[1], total, 3e-7);
        /* Other heads of the same tokens with them: three of each, of which two take one launch. */
        float *more[3] = { ut_poison(total), ut_poison(total), ut_poison((size_t)(n * dim)) };
        struct kvl_rope_args third = a, second = a, first = a;
        third.y = more[2], third.n_heads = 1, third.x = x;
        second.y = more[1], second.next = &third;
        first.y = more[0], first.next = &second;
        assert_int_equal(kvl_ops_cpu.rope(&first), KVL_OK);
        ut_same("rope with others", more[0], y[0], total);
        ut_same("rope of others", more[1], y[0], total);
        first.y = y[1];
        second.y = ut_poison(total);
        third.y = ut_poison((size_t)(n * dim));
        assert_int_equal(kvl_ops_ref.rope(&first), KVL_OK);
        ut_near("rope of others", more[1], second.y, total, 3e-7);
        ut_near("rope of one head", more[2], third.y, (size_t)(n * dim), 3e-7);
        kvl_free(second.y);
        kvl_free(third.y);
        for (int k = 0; k < 3; k++) kvl_free(more[k]);
        a.y = x;
        assert_int_equal(kvl_ops_cpu.rope(&a), KVL_OK);
        ut_same("rope in place", x, y[0], total);
        kvl_free(inv_freq);
        kvl_free(pos);
        kvl_free(y[0]);
        kvl_free(y[1]);
        kvl_free(x);
    }
}

static void test_rope(void **state)
{
    (void)state;
    ut_each_isa(body_rope);
}

static void body_glu(struct kvl_rng *r)
{
#ifdef KVL_TEST_CUDA /* more than the threads of a launch take at once */
    static const size_t sizes[] = { 0, 1, 15, 100, 8193, 2200003 };
#else
    static const size_t sizes[] = { 0, 1, 15, 100, 8193, 900000 };
#endif
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        float *gate = ut_random(r, n, 100), *up = ut_random(r, n, 2);
        float *y[2] = { ut_poison(n), ut_poison(n) };
        struct kvl_glu_args a = { .y = y[0], .gate = gate, .up = up, .n = n };
        for (int act = KVL_ACT_SWISH_CLAMPED; act >= KVL_ACT_SILU; act--)
            for (int up_there = 0; up_there < 2; up_there++) {
                if (!up_there && act == KVL_ACT_SWISH_CLAMPED) continue;
                a.act = (enum kvl_act)act;
                a.up = up_there ? up : NULL;
                for (size_t j = 0; act == KVL_ACT_GELU && j < n; j++) gate[j] *= 0.05f;
                a.y = y[0];
                assert_int_equal(kvl_ops_cpu.glu(&a), KVL_OK);
                a.y = y[1];
                assert_int_equal(kvl_ops_ref.glu(&a), KVL_OK);
                ut_near("glu", y[0], y[1], n, 1e-6);
            }
        a.y = gate;
        assert_int_equal(kvl_ops_cpu.glu(&a), KVL_OK);
        ut_same("glu in place", gate, y[0], n);
        struct kvl_add_args add = { .y = y[0], .x = up, .n = n };
        assert_int_equal(kvl_ops_cpu.add(&add), KVL_OK);
        for (size_t k = 0; k < n; k++) gate[k] += up[k];
        ut_same("add", y[0], gate, n);
        const float factor = 0.75f;
        add.factor = &factor;
        for (size_t j = 0; j < n; j++) {
            float scaled = gate[j] * factor;
            gate[j] = scaled + up[j];
        }
        assert_int_equal(kvl_ops_cpu.add(&add), KVL_OK);
        ut_same("add with a factor", y[0], gate, n);
        if (n > 1) { /* one row for all rows of y, the last of which may end early */
            add.n_x = 1 + n / 3;
            for (size_t j = 0; j < n; j++) {
                float scaled = gate[j] * factor;
                gate[j] = scaled + up[j % add.n_x];
            }
            memcpy(y[1], y[0], n * sizeof *y[1]);
            assert_int_equal(kvl_ops_cpu.add(&add), KVL_OK);
            ut_same("add of a row", y[0], gate, n);
            add.y = y[1];
            assert_int_equal(kvl_ops_ref.add(&add), KVL_OK);
            ut_same("add of a row by the definition", y[1], gate, n);
        }
        kvl_free(y[0]);
        kvl_free(y[1]);
        kvl_free(gate);
        kvl_free(up);
    }
}

static void test_glu_add(void **state)
{
    (void)state;
    ut_each_isa(body_glu);
}

/* More sums than a launch takes; each row of y gets three of them, the first with a factor. */
static void body_add_list(struct kvl_rng *r)
{
    enum { ROWS = 31, SUMS = 3 * ROWS, N = 1500 };
    struct kvl_add_args add[SUMS];
    float *x = ut_random(r, SUMS * N, 3), *start = ut_random(r, ROWS * N, 3);
    float *y[3] = { ut_alloc(ROWS * N, sizeof *start), ut_alloc(ROWS * N, sizeof *start),
                    ut_alloc(ROWS * N, sizeof *start) };
    const float factor = 0.5f;
    for (int way = 0; way < 3; way++) {
        memcpy(y[way], start, ROWS * N * sizeof *start);
        for (int32_t i = 0; i < SUMS; i++)
            add[i] = (struct kvl_add_args){ .y = y[way] + i / 3 * N,
                                            .x = x + i * N,
                                            .n = (size_t)(N - i / 3 * 40),
                                            .factor = i % 3 == 0 && i % 2 ? &factor : NULL,
                                            .next = way < 2 && i + 1 < SUMS ? &add[i + 1] : NULL };
        if (way == 0) assert_int_equal(kvl_ops_cpu.add(add), KVL_OK);
        if (way == 1) assert_int_equal(kvl_ops_ref.add(add), KVL_OK);
        for (int32_t i = 0; way == 2 && i < SUMS; i++)
            assert_int_equal(kvl_ops_cpu.add(&add[i]), KVL_OK);
    }
    ut_same("sums together", y[0], y[1], ROWS * N);
    ut_same("sums one by one", y[0], y[2], ROWS * N);
    for (int way = 0; way < 3; way++) kvl_free(y[way]);
    kvl_free(start);
    kvl_free(x);
}

static void test_add_list(void **state)
{
    (void)state;
    ut_each_isa(body_add_list);
}

#ifdef KVL_TEST_CUDA
/* A flag that stays until somebody asks. */
static void test_finite(void **state)
{
    enum { N = 600001 };
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    const struct kvl_device *d = NULL;
    bool finite = false;
    (void)state;
    assert_int_equal(kvl_device_open("cuda", &d, &(struct kvl_err){ 0 }), KVL_OK);
    float *x = d->alloc(KVL_PLACE_SHARED, N, sizeof *x);
    assert_non_null(x);
    x[1] = 3e38f;
    for (int32_t i = 0; i < 6; i++) {
        x[i % 2 ? N - 1 : 0] = bad[i / 2];
        assert_int_equal(d->check_finite(x, N), KVL_OK);
        assert_int_equal(d->check_finite(x, 0), KVL_OK);
        assert_int_equal(d->finite(&finite), KVL_OK);
        assert_false(finite);
        assert_int_equal(d->sync(), KVL_OK);
        x[i % 2 ? N - 1 : 0] = 0;
        assert_int_equal(d->check_finite(x, N), KVL_OK);
        assert_int_equal(d->finite(&finite), KVL_OK);
        assert_true(finite);
        assert_int_equal(d->sync(), KVL_OK);
    }
    d->free(KVL_PLACE_SHARED, x);
}
#endif

/* The vector exp over its whole range, against libm: relative error below 3e-7, -inf gives 0. */
static void body_exp(struct kvl_rng *r)
{
    enum { N = 100003 };
    float *x = ut_alloc(N, sizeof *x), *y = ut_alloc(N, sizeof *y);
    (void)r;
    for (int32_t i = 0; i < N; i++) x[i] = y[i] = -87.2f + 175.0f * (float)i / N;
    kvl_kern()->exp_shift(y, 0, N);
    for (int32_t i = 0; i < N; i++) {
        double want = exp((double)x[i]);
        if (fabs((double)y[i] / want - 1) > 3e-7)
            fail_msg("exp(%.9g) = %.9g, want %.9g (isa %s)", (double)x[i], (double)y[i], want,
                     kvl_ops_isa());
    }
    float end[3] = { -INFINITY, -1e4f, NAN };
    kvl_kern()->exp_shift(end, 0, 3);
    assert_true(end[0] == 0 && end[1] == 0 && isnan(end[2]));
    kvl_free(x);
    kvl_free(y);
}

static void test_exp(void **state)
{
    (void)state;
    ut_each_isa(body_exp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm),   cmocka_unit_test(test_rope),
        cmocka_unit_test(test_glu_add),   cmocka_unit_test(test_add_list),
        cmocka_unit_test(test_exp),       cmocka_unit_test(test_layernorm),
        cmocka_unit_test(test_scale_mix),
#ifdef KVL_TEST_CUDA
        cmocka_unit_test(test_finite),
#endif
    };
    return cmocka_run_group_tests_name("rows", tests, NULL, NULL);
}
