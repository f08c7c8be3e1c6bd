/* Digests of pages, directions of queries and keys, rows less their largest, against ref. */
#include "ops/ops_util.h"

static void body_digest(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 30; i++) {
        int32_t n = ut_between(r, 1, 40), page = ut_between(r, 1, 33);
        int32_t dim = UT_PICK(r, 2, 6, 22, 64, 80, 128);
        float *k = ut_random(r, (size_t)(n * page * dim), 3), *y[2];
        struct kvl_page_digest_args a = { .k = k, .n_pages = n, .page_tok = page, .head_dim = dim };
        y[0] = a.digest = ut_poison((size_t)(n * 2 * dim));
        assert_int_equal(kvl_ops_cpu.page_digest(&a), KVL_OK);
        y[1] = a.digest = ut_poison((size_t)(n * 2 * dim));
        assert_int_equal(kvl_ops_ref.page_digest(&a), KVL_OK);
        ut_near("digest", y[0], y[1], (size_t)(n * 2 * dim), 1e-5);
        /* A page of one key, or of equal ones, is that key. */
        for (int32_t c = 0; page == 1 && c < n * 2 * dim; c++)
            assert_true(y[1][c] == k[c / (2 * dim) * dim + c % dim]);
        kvl_free(k);
        kvl_free(y[0]);
        kvl_free(y[1]);
    }
}

static void body_near_max(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 30; i++) {
        int32_t n = ut_between(r, 1, 3000), rows = ut_between(r, 1, 9);
        float *x = ut_random(r, (size_t)(n * rows), 4),
              *y = ut_alloc((size_t)(n * rows), sizeof *y);
        int32_t got[9], want[9];
        memcpy(y, x, (size_t)(n * rows) * sizeof *y);
        struct kvl_near_max_args a = {
            .x = x, .count = got, .n_rows = rows, .n = n, .alpha = (float)ut_between(r, 0, 5)
        };
        assert_int_equal(kvl_ops_cpu.near_max(&a), KVL_OK);
        a.x = y;
        a.count = want;
        assert_int_equal(kvl_ops_ref.near_max(&a), KVL_OK);
        assert_memory_equal(x, y, (size_t)(n * rows) * sizeof *y);
        assert_memory_equal(got, want, (size_t)rows * sizeof *got);
        kvl_free(x);
        kvl_free(y);
    }
}

/* Few strong directions, far apart in strength, so that eigenvectors and ranks are not a matter of
 * rounding. */
static float *strong_rows(struct kvl_rng *r, int32_t n, int32_t dim)
{
    float *x = ut_random(r, (size_t)n * (size_t)dim, 1);
    for (int32_t i = 0; i < n; i++)
        for (int32_t c = 0; c < dim; c++)
            x[i * dim + c] *= powf(1.7f, (float)((c * 7) % dim) * 12.0f / (float)dim);
    return x;
}

static void body_basis(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 16; i++) {
        int32_t dim = UT_PICK(r, 2, 6, 16, 22, 32), group = ut_between(r, 1, 3);
        int32_t n_q = ut_between(r, dim, 60), n_k = ut_between(r, 0, 90),
                keep = ut_between(r, 1, dim);
        int32_t heads = group + ut_between(r, 0, 2);
        float *q = strong_rows(r, n_q * heads, dim), *k = strong_rows(r, n_k, dim), *y[2];
        struct kvl_partial_basis_args a = { .q = q,
                                            .q_stride = (size_t)(heads * dim),
                                            .k = k,
                                            .n_q = n_q,
                                            .group = group,
                                            .n_k = n_k,
                                            .dim = dim,
                                            .r = keep,
                                            .skew = i % 2 == 0 };
        y[0] = a.basis = ut_poison((size_t)(keep * dim));
        assert_int_equal(kvl_ops_cpu.partial_basis(&a), KVL_OK);
        y[1] = a.basis = ut_poison((size_t)(keep * dim));
        assert_int_equal(kvl_ops_ref.partial_basis(&a), KVL_OK);
        ut_near("basis", y[0], y[1], (size_t)(keep * dim), a.skew ? 1e-3 : 0);
        kvl_free(q);
        kvl_free(k);
        kvl_free(y[0]);
        kvl_free(y[1]);
    }
}

/* Queries along (3, 4) / 5 and keys along (4, -3) / 5: one direction carries the queries, the other the
 * keys; the heavier stays.  As channels, (1, 0) carries 3 + 8 and (0, 1) 4 + 6. */
static void test_basis_golden(void **state)
{
    static const float q[] = { 3, 4, 99, 99, -3, -4, 99, 99 }, k[] = { 4, -3, 4, -3 };
    static const float even[] = { 3, 4 };
    const struct kvl_ops *const tables[] = { &kvl_ops_ref, &kvl_ops_cpu };
    (void)state;
    for (int t = 0; t < 2; t++) {
        float basis[2] = { 0 };
        struct kvl_partial_basis_args a = {
            .basis = basis, .q = q, .q_stride = 4, .k = k, .n_q = 2, .group = 1, .dim = 2, .r = 1
        };
        a.skew = true; /* 10 for the queries' */
        assert_int_equal(tables[t]->partial_basis(&a), KVL_OK);
        assert_float_equal(fabs((double)basis[0]), 0.6, 1e-6);
        assert_float_equal(fabs((double)basis[1]), 0.8, 1e-6);
        a.q = even; /* 5 against 10 of two keys */
        a.n_q = 1;
        a.n_k = 2;
        assert_int_equal(tables[t]->partial_basis(&a), KVL_OK);
        assert_float_equal(fabs((double)basis[0]), 0.8, 1e-6);
        assert_true(basis[0] * basis[1] < 0);
        a.skew = false; /* 3 + 8 against 4 + 6 */
        assert_int_equal(tables[t]->partial_basis(&a), KVL_OK);
        assert_true(basis[0] == 1 && basis[1] == 0);
        a.n_k = 0;
        assert_int_equal(tables[t]->partial_basis(&a), KVL_OK);
        assert_true(basis[0] == 0 && basis[1] == 1);
        for (int i = 0; i < 8; i++) { /* each key counts: 3 against 2.5 or 3.5 of one */
            float each[8] = { 1, 0, 1, 0, 1, 0, 1, 0 };
            each[i / 2 * 2] = 0;
            each[i / 2 * 2 + 1] = i % 2 ? 3.5f : 2.5f;
            a.k = each;
            a.n_k = 4;
            a.n_q = 0;
            assert_int_equal(tables[t]->partial_basis(&a), KVL_OK);
            assert_true(basis[i % 2] == 1 && basis[1 - i % 2] == 0);
        }
    }
}

static void test_digest(void **state)
{
    (void)state;
    ut_each_isa(body_digest);
}

static void test_near_max(void **state)
{
    (void)state;
    ut_each_isa(body_near_max);
}

static void test_basis(void **state)
{
    (void)state;
    ut_each_isa(body_basis);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digest),
        cmocka_unit_test(test_near_max),
        cmocka_unit_test(test_basis_golden),
        cmocka_unit_test(test_basis),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
