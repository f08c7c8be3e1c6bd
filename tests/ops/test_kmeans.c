/* k-means: what defines its result, and cpu against ref. */
#include "ops/ops_util.h"

struct clusters {
    float *centroid, *work;
    int32_t *assign, *count;
};

static void clusters_open(struct clusters *c, int32_t n, int32_t k, int32_t dim)
{
    size_t rows = (size_t)n, cols = (size_t)dim, many = (size_t)k;
    c->centroid = ut_poison(many * cols);
    c->work = ut_poison(KVL_KMEANS_TILE * (many + cols) + 2 * many + rows);
    c->assign = ut_alloc(rows, sizeof *c->assign);
    c->count = ut_alloc(many, sizeof *c->count);
}

static void clusters_close(struct clusters *c)
{
    kvl_free(c->centroid);
    kvl_free(c->work);
    kvl_free(c->assign);
    kvl_free(c->count);
}

static double nearness(const float *x, const float *c, int32_t dim, bool cosine)
{
    double dot = 0, norm = 0;
    for (int32_t i = 0; i < dim; i++) {
        dot += (double)x[i] * (double)c[i];
        norm += (double)c[i] * (double)c[i];
    }
    return cosine ? (norm > 0 ? dot / sqrt(norm) : 0) : dot - norm / 2;
}

static void assignment_is_optimal(const struct kvl_kmeans_args *a)
{
    for (int32_t i = 0; i < a->n; i++) {
        const float *x = a->x + (size_t)i * a->x_stride;
        double own = nearness(x, a->centroid + a->assign[i] * a->dim, a->dim, a->cosine);
        for (int32_t j = 0; j < a->n_clusters; j++) {
            double other = nearness(x, a->centroid + j * a->dim, a->dim, a->cosine);
            if (other > own + 1e-5) fail_msg("row %d is in %d, nearer to %d", i, a->assign[i], j);
        }
    }
}

static void means_are_exact(const struct kvl_kmeans_args *a)
{
    for (int32_t j = 0; j < a->n_clusters; j++) {
        int32_t n = 0;
        for (int32_t i = 0; i < a->n; i++) n += a->assign[i] == j;
        if (n == 0 || n != a->count[j])
            fail_msg("cluster %d of %d rows, says %d", j, n, a->count[j]);
        for (int32_t c = 0; c < a->dim; c++) {
            double sum = 0;
            for (int32_t i = 0; i < a->n; i++)
                if (a->assign[i] == j) sum += (double)a->x[(size_t)i * a->x_stride + (size_t)c];
            float mean = (float)(sum / n);
            ut_near("mean", &a->centroid[j * a->dim + c], &mean, 1, 1e-5);
        }
    }
}

/* Whoever computes: means of what is assigned, and, given these means, the nearest of them. */
static void body_kmeans(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 24; i++) {
        int32_t n = UT_PICK(r, 1, 2, 7, 65, 300, 601), dim = UT_PICK(r, 1, 5, 16, 33);
        int32_t k = ut_between(r, 1, KVL_MIN(n, 40));
        size_t stride = (size_t)dim + 3;
        float *x = ut_random(r, (size_t)n * stride, 1);
        for (size_t c = 0; i % 4 == 3 && c < (size_t)n * stride; c++)
            x[c] = x[c % stride]; /* equal */
        const struct kvl_ops *ops = i % 2 ? &kvl_ops_cpu : &kvl_ops_ref;
        struct clusters c;
        clusters_open(&c, n, k, dim);
        struct kvl_kmeans_args a = { .centroid = c.centroid,
                                     .assign = c.assign,
                                     .count = c.count,
                                     .x = x,
                                     .x_stride = stride,
                                     .n = n,
                                     .dim = dim,
                                     .n_clusters = k,
                                     .n_iter = ut_between(r, 1, 6),
                                     .cosine = i / 2 % 2 == 1,
                                     .work = c.work };
        assert_int_equal(ops->kmeans(&a), KVL_OK);
        means_are_exact(&a);
        a.n_iter = 0;
        assert_int_equal(ops->kmeans(&a), KVL_OK);
        assignment_is_optimal(&a);
        kvl_free(x);
        clusters_close(&c);
    }
}

static void test_kmeans(void **state)
{
    (void)state;
    ut_each_isa(body_kmeans);
}

/* Groups far apart: both find the same clusters, with the same means. */
static void body_kmeans_same(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 8; i++) {
        int32_t n = ut_between(r, 40, 400), dim = UT_PICK(r, 8, 32), k = 5;
        float *x = ut_random(r, (size_t)(n * dim), 0.1);
        for (int32_t j = 0; j < n; j++) x[j * dim + (int32_t)kvl_rng_below(r, 5)] += 10;
        struct clusters c[2];
        for (int32_t t = 0; t < 2; t++) {
            clusters_open(&c[t], n, k, dim);
            struct kvl_kmeans_args a = { .centroid = c[t].centroid,
                                         .assign = c[t].assign,
                                         .count = c[t].count,
                                         .x = x,
                                         .x_stride = (size_t)dim,
                                         .n = n,
                                         .dim = dim,
                                         .n_clusters = k,
                                         .n_iter = 4,
                                         .cosine = i % 2 == 1,
                                         .work = c[t].work };
            assert_int_equal((t ? &kvl_ops_cpu : &kvl_ops_ref)->kmeans(&a), KVL_OK);
        }
        assert_memory_equal(c[0].assign, c[1].assign, (size_t)n * sizeof(int32_t));
        assert_memory_equal(c[0].count, c[1].count, (size_t)k * sizeof(int32_t));
        ut_near("mean", c[1].centroid, c[0].centroid, (size_t)(k * dim), 1e-5);
        clusters_close(&c[0]);
        clusters_close(&c[1]);
        kvl_free(x);
    }
}

static void test_kmeans_same(void **state)
{
    (void)state;
    ut_each_isa(body_kmeans_same);
}

/* By hand: rows 0, 1, 10, 11 from seeds 0 and 10; then three equal rows and two clusters. */
static void test_kmeans_by_hand(void **state)
{
    (void)state;
    static const float line[] = { 0, 1, 10, 11 }, equal[] = { 2, 2, 2 };
    const struct kvl_ops *ops[] = { &kvl_ops_cpu, &kvl_ops_ref };
    for (int32_t i = 0; i < 2; i++) {
        struct clusters c;
        clusters_open(&c, 4, 2, 1);
        struct kvl_kmeans_args a = { .centroid = c.centroid,
                                     .assign = c.assign,
                                     .count = c.count,
                                     .x = line,
                                     .x_stride = 1,
                                     .n = 4,
                                     .dim = 1,
                                     .n_clusters = 2,
                                     .n_iter = 2,
                                     .work = c.work };
        assert_int_equal(ops[i]->kmeans(&a), KVL_OK);
        ut_near("mean", c.centroid, (float[]){ 0.5f, 10.5f }, 2, 1e-6);
        assert_memory_equal(c.assign, ((int32_t[]){ 0, 0, 1, 1 }), 4 * sizeof(int32_t));
        a.x = equal;
        a.n = 3;
        assert_int_equal(ops[i]->kmeans(&a), KVL_OK);
        assert_memory_equal(c.assign, ((int32_t[]){ 1, 0, 0 }), 3 * sizeof(int32_t));
        clusters_close(&c);
    }
}

/* ---- ties, and what is no number ------------------------------------------------------------------ */

/* Fewer clusters than lanes of a vector, as many, more, a part of one left over. */
static const int32_t widths[] = { 1,  2,  3,  4,  5,  7,  8,  9,  12, 15, 16,
                                  17, 24, 31, 32, 33, 47, 48, 50, 64, 65 };
enum { N_WIDTHS = sizeof widths / sizeof *widths };

/* One row, 1, and k clusters: at 1, or `other`.  Of two at 1 the first wins, wherever they stand. */
static void tie_is_first(int32_t k, int32_t one, int32_t two, float other)
{
    static const float row[] = { 1 };
    struct clusters c;
    clusters_open(&c, 1, k, 1);
    struct kvl_kmeans_args a = { .centroid = c.centroid,
                                 .assign = c.assign,
                                 .count = c.count,
                                 .x = row,
                                 .x_stride = 1,
                                 .n = 1,
                                 .dim = 1,
                                 .n_clusters = k,
                                 .work = c.work };
    for (int32_t j = 0; j < k; j++) c.centroid[j] = j == one || j == two ? 1 : other;
    assert_int_equal(kvl_ops_cpu.kmeans(&a), KVL_OK);
    if (c.assign[0] != one)
        fail_msg("%d clusters, of which %d and %d are nearest: took %d (isa %s)", k, one, two,
                 c.assign[0], kvl_ops_isa());
    clusters_close(&c);
}

static void body_kmeans_ties(struct kvl_rng *r)
{
    for (int32_t i = 0; i < N_WIDTHS; i++) {
        int32_t k = widths[i];
        for (int32_t one = 0; one < k; one++) {
            if (ut_left_out(i, one)) continue;
            for (int32_t two = one; two < k; two += 1 + k / 9) tie_is_first(k, one, two, -1);
            tie_is_first(k, one, k - 1, (float)ut_between(r, 2, 9));
        }
    }
}

static void test_kmeans_ties(void **state)
{
    (void)state;
    ut_each_isa(body_kmeans_ties);
}

/* Runs cpu and ref on the same rows, and on the same centroids where none are formed. */
static void same_as_ref(const struct kvl_kmeans_args *args, const float *centroid)
{
    size_t k = (size_t)args->n_clusters, n = (size_t)args->n, dim = (size_t)args->dim;
    struct clusters c[2];
    for (int32_t t = 0; t < 2; t++) {
        struct kvl_kmeans_args a = *args;
        clusters_open(&c[t], a.n, a.n_clusters, a.dim);
        if (centroid) memcpy(c[t].centroid, centroid, k * dim * sizeof *centroid);
        a.centroid = c[t].centroid;
        a.assign = c[t].assign;
        a.count = c[t].count;
        a.work = c[t].work;
        assert_int_equal((t ? &kvl_ops_cpu : &kvl_ops_ref)->kmeans(&a), KVL_OK);
    }
    for (size_t i = 0; i < n; i++)
        if (c[1].assign[i] != c[0].assign[i])
            fail_msg("row %zu of %zu is in %d of %zu clusters, want %d (isa %s)", i, n,
                     c[1].assign[i], k, c[0].assign[i], kvl_ops_isa());
    assert_memory_equal(c[0].count, c[1].count, k * sizeof(int32_t));
    if (!centroid) ut_same("mean", c[1].centroid, c[0].centroid, k * dim);
    clusters_close(&c[0]);
    clusters_close(&c[1]);
}

/* Small integers: no sum is rounded, and many rows and clusters are equal.  In angle clusters lie on the axes, 1, 2,
 * 4 or 8 from 0, or at 0. */
static void small_clusters(struct kvl_rng *r, float *centroid, int32_t k, int32_t dim, bool cosine)
{
    for (int32_t j = 0; j < k; j++, centroid += dim) {
        for (int32_t d = 0; d < dim; d++) centroid[d] = cosine ? 0 : (float)ut_between(r, -2, 2);
        if (!cosine) continue;
        int32_t far = (int32_t)UT_PICK(r, 0, 1, 2, 4, 8, -1, -2);
        centroid[ut_between(r, 0, dim - 1)] = (float)far;
    }
}

static void body_kmeans_exact(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 4 * N_WIDTHS; i++) {
        int32_t k = widths[i % N_WIDTHS], dim = UT_PICK(r, 1, 2, 3, 9),
                n = k + ut_between(r, 0, 300);
        float *x = ut_alloc((size_t)(n * dim), sizeof *x), *centroid = ut_poison((size_t)(k * dim));
        bool cosine = kvl_rng_below(r, 2);
        for (int32_t c = 0; c < n * dim; c++) x[c] = (float)ut_between(r, -3, 3);
        small_clusters(r, centroid, k, dim, cosine);
        struct kvl_kmeans_args a = {
            .x = x, .x_stride = (size_t)dim, .n = n, .dim = dim, .n_clusters = k, .cosine = cosine
        };
        same_as_ref(&a, centroid);
        a.n_iter = 1; /* equal seeds leave clusters empty */
        a.cosine = false;
        same_as_ref(&a, NULL);
        kvl_free(x);
        kvl_free(centroid);
    }
}

static void test_kmeans_exact(void **state)
{
    (void)state;
    ut_each_isa(body_kmeans_exact);
}

#ifndef KVL_TEST_CUDA /* which takes cluster 0 for a row that is no number */
/* Distances to a cluster that is no number, or infinite, wherever it stands, and of rows of the kind.  (In angle ref
 * has 0 for a cluster whose length is no number.) */
static void body_kmeans_nan(struct kvl_rng *r)
{
    static const float odd[] = { NAN, -NAN, INFINITY, -INFINITY };
    enum { N = 40, DIM = 2 };
    for (int32_t i = 0; i < 8 * N_WIDTHS; i++) {
        int32_t k = widths[i % N_WIDTHS], n_odd = UT_PICK(r, 0, 1, 2, k);
        float x[N * DIM], *centroid = ut_poison((size_t)(k * DIM));
        for (int32_t c = 0; c < N * DIM; c++) x[c] = (float)ut_between(r, -3, 3);
        x[ut_between(r, 0, N * DIM - 1)] = odd[i % 4];
        small_clusters(r, centroid, k, DIM, false);
        for (int32_t j = 0; j < n_odd; j++)
            centroid[ut_between(r, 0, k * DIM - 1)] = odd[kvl_rng_below(r, 4)];
        struct kvl_kmeans_args a = { .x = x, .x_stride = DIM, .n = N, .dim = DIM, .n_clusters = k };
        same_as_ref(&a, centroid);
        kvl_free(centroid);
    }
}

/* The kernel against the definition's loop: the same place and the same bits. */
static void body_nearest(struct kvl_rng *r)
{
    static const float odd[] = { 0, -0.0f, 1, NAN, INFINITY, -INFINITY };
    for (int32_t i = 0; i < 40 * N_WIDTHS; i++) {
        int32_t n = widths[i % N_WIDTHS], at = 0, n_kinds = UT_PICK(r, 2, 3, 4, 6);
        float dot[80], scale[80], bias[80], most, best = 0;
        for (int32_t j = 0; j < n; j++) {
            bool random = i % 3 == 0 || (i % 3 == 1 && kvl_rng_below(r, (uint32_t)n) > 0);
            dot[j] =
                random ? (float)(kvl_rng_f64(r) - 1) : odd[kvl_rng_below(r, (uint32_t)n_kinds)];
            scale[j] = random ? (float)kvl_rng_f64(r) : 1;
            bias[j] = random ? (float)kvl_rng_f64(r) - 1 : -0.0f;
            float product = dot[j] * scale[j], y = product + bias[j]; /* not fused */
            if (j > 0 && y <= best) continue;
            best = y;
            at = j;
        }
        int32_t found = kvl_kern()->nearest(dot, scale, bias, n, &most);
        if (found != at) fail_msg("took %d of %d, want %d (isa %s)", found, n, at, kvl_ops_isa());
        if (isnan(best))
            assert_true(isnan(most));
        else
            ut_same("nearness", &most, &best, 1);
    }
}

static void test_kmeans_nan(void **state)
{
    (void)state;
    ut_each_isa(body_kmeans_nan);
    ut_each_isa(body_nearest);
}
#endif

/* ---- clusters without rows ------------------------------------------------------------------------- */

struct filled {
    const float *x;
    int32_t n, dim, k;
    bool cosine;
    const int32_t *assign, *count;
    const float *mean;
};

static void filled_is(const struct filled *f)
{
    const struct kvl_ops *ops[] = { &kvl_ops_cpu, &kvl_ops_ref };
    for (int32_t i = 0; i < 2; i++) {
        struct clusters c;
        clusters_open(&c, f->n, f->k, f->dim);
        struct kvl_kmeans_args a = { .centroid = c.centroid,
                                     .assign = c.assign,
                                     .count = c.count,
                                     .x = f->x,
                                     .x_stride = (size_t)f->dim,
                                     .n = f->n,
                                     .dim = f->dim,
                                     .n_clusters = f->k,
                                     .n_iter = 1,
                                     .cosine = f->cosine,
                                     .work = c.work };
        assert_int_equal(ops[i]->kmeans(&a), KVL_OK);
        assert_memory_equal(c.assign, f->assign, (size_t)f->n * sizeof(int32_t));
        assert_memory_equal(c.count, f->count, (size_t)f->k * sizeof(int32_t));
        ut_same("mean", c.centroid, f->mean, (size_t)(f->k * f->dim));
        clusters_close(&c);
    }
}

/* Clusters begin as rows 0, 2, 4 (and 6).
 *
 * On a line they begin at 0, 0, 0 and 8: rows 0 2 4 5 go to the first, rows 6 1 3 7 to the last.  Half of the squared
 * distance to their own is 0 0 0 1/2 and 0 1/2 72 18: cluster 1 takes row 3, which then is alone, and cluster 2 row 7.
 *
 * In angle they begin along (1, 0) twice and (0, 1): rows 0 2 3 5 go to the first, 1 and 4 to the last.  Length less
 * projection is 0 0 1 2 and 2 0: cluster 1 takes row 1, which comes before row 5; row 3 is the longest. */
static void body_kmeans_filled(struct kvl_rng *r)
{
    (void)r;
    filled_is(&(struct filled){ .x = (float[]){ 0, 9, 0, 20, 0, 1, 8, 14 },
                                .n = 8,
                                .dim = 1,
                                .k = 4,
                                .assign = (int32_t[]){ 0, 3, 0, 1, 0, 0, 3, 2 },
                                .count = (int32_t[]){ 4, 1, 1, 2 },
                                .mean = (float[]){ 0.25f, 20, 14, 8.5f } });
    filled_is(&(struct filled){ .x = (float[]){ 4, 0, 6, 8, 4, 0, 24, 7, 0, 4, 8, 6 },
                                .n = 6,
                                .dim = 2,
                                .k = 3,
                                .cosine = true,
                                .assign = (int32_t[]){ 0, 1, 0, 0, 2, 0 },
                                .count = (int32_t[]){ 4, 1, 1 },
                                .mean = (float[]){ 10, 3.25f, 6, 8, 0, 4 } });
}

static void test_kmeans_filled(void **state)
{
    (void)state;
    ut_each_isa(body_kmeans_filled);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kmeans),         cmocka_unit_test(test_kmeans_same),
        cmocka_unit_test(test_kmeans_by_hand), cmocka_unit_test(test_kmeans_ties),
        cmocka_unit_test(test_kmeans_exact),
#ifndef KVL_TEST_CUDA
        cmocka_unit_test(test_kmeans_nan),
#endif
        cmocka_unit_test(test_kmeans_filled),
    };
    return cmocka_run_group_tests_name("kmeans", tests, NULL, NULL);
}
