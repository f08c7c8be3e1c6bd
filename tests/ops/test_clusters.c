/* Operators that make and read clusters and low ranks: what defines their results, and cpu against ref. */
#include "ops/ops_util.h"

/* ---- sym_eig ----------------------------------------------------------------------------------- */

/* A = B B' / n of n x m random numbers: rank m at most. */
static float *random_gram(struct kvl_rng *r, int32_t n, int32_t m)
{
    float *b = ut_random(r, (size_t)(n * m), 1), *a = ut_alloc((size_t)(n * n), sizeof *a);
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < n; j++) {
            double sum = 0;
            for (int32_t c = 0; c < m; c++) sum += (double)b[i * m + c] * (double)b[j * m + c];
            a[i * n + j] = j > i ? NAN : (float)(sum / n); /* the upper triangle is not read */
        }
    kvl_free(b);
    return a;
}

static double lower(const float *a, int32_t n, int32_t i, int32_t j)
{
    return (double)a[KVL_MAX(i, j) * n + KVL_MIN(i, j)];
}

static void eig_is_right(const float *a, const float *vec, const float *val, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const float *v = vec + i * n;
        int32_t at = 0;
        assert_true(i == 0 || val[i] <= val[i - 1]);
        for (int32_t c = 1; c < n; c++)
            if (fabsf(v[c]) > fabsf(v[at])) at = c;
        assert_true(v[at] > 0);
        for (int32_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int32_t c = 0; c < n; c++) sum += (double)v[c] * (double)vec[j * n + c];
            if (fabs(sum - (i == j)) > 1e-5) fail_msg("vectors %d and %d: %g", i, j, sum);
        }
        for (int32_t r = 0; r < n; r++) {
            double sum = 0;
            for (int32_t c = 0; c < n; c++) sum += lower(a, n, r, c) * (double)v[c];
            if (fabs(sum - (double)val[i] * (double)v[r]) > 1e-5)
                fail_msg("row %d of vector %d of %d: %g, want %g", r, i, n, sum,
                         (double)val[i] * (double)v[r]);
        }
    }
}

static void body_sym_eig(struct kvl_rng *r)
{
    static const int32_t sizes[] = { 1, 2, 3, 5, 16, 33, 64, 90 };
    for (int32_t i = 0; i < 16; i++) {
        int32_t n = sizes[i / 2], m = i % 2 ? n : (n + 1) / 2;
        float *a = random_gram(r, n, m);
        float *vec = ut_poison((size_t)(n * n)), *val = ut_poison((size_t)n);
        float *want = ut_poison((size_t)n);
        struct kvl_sym_eig_args arg = { .vec = vec, .val = want, .a = a, .n = n };
        assert_int_equal(kvl_ops_ref.sym_eig(&arg), KVL_OK);
        eig_is_right(a, vec, want, n);
        arg.val = val;
        assert_int_equal(kvl_ops_cpu.sym_eig(&arg), KVL_OK);
        eig_is_right(a, vec, val, n);
        ut_near("eigenvalue", val, want, (size_t)n, 1e-6);
        kvl_free(a);
        kvl_free(vec);
        kvl_free(val);
        kvl_free(want);
    }
}

static void test_sym_eig(void **state)
{
    (void)state;
    ut_each_isa(body_sym_eig);
}

/* Eigenvalues 3 and 1; a diagonal matrix, a zero matrix, and what is no number. */
static void test_sym_eig_edges(void **state)
{
    (void)state;
    static const float pair[] = { 2, 0, -1, 2 }, order[] = { 1, 0, 0, 0, 3, 0, 0, 0, 2 };
    static const float zero[9] = { 0 }, nan[] = { 1, 0, NAN, 1 };
    const struct kvl_ops *ops[] = { &kvl_ops_cpu, &kvl_ops_ref };
    for (int32_t i = 0; i < 2; i++) {
        float vec[9], val[3], half = sqrtf(0.5f);
        struct kvl_sym_eig_args a = { .vec = vec, .val = val, .a = pair, .n = 2 };
        assert_int_equal(ops[i]->sym_eig(&a), KVL_OK);
        ut_near("value", val, (float[]){ 3, 1 }, 2, 1e-6);
        ut_near("size", (float[]){ fabsf(vec[0]), fabsf(vec[1]), vec[2], vec[3] },
                (float[]){ half, half, half, half }, 4, 1e-6);
        assert_true(vec[0] * vec[1] < 0);
        a.a = order;
        a.n = 3;
        assert_int_equal(ops[i]->sym_eig(&a), KVL_OK);
        ut_near("value", val, (float[]){ 3, 2, 1 }, 3, 1e-6);
        ut_near("axis", vec, (float[]){ 0, 1, 0, 0, 0, 1, 1, 0, 0 }, 9, 1e-6);
        a.a = zero;
        assert_int_equal(ops[i]->sym_eig(&a), KVL_OK);
        ut_near("axis", vec, (float[]){ 1, 0, 0, 0, 1, 0, 0, 0, 1 }, 9, 1e-6);
        a.a = nan;
        a.n = 2;
        assert_int_equal(ops[i]->sym_eig(&a), KVL_ENUMERIC);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sym_eig),
        cmocka_unit_test(test_sym_eig_edges),
    };
    return cmocka_run_group_tests_name("clusters", tests, NULL, NULL);
}
