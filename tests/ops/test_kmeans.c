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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kmeans),
        cmocka_unit_test(test_kmeans_same),
        cmocka_unit_test(test_kmeans_by_hand),
    };
    return cmocka_run_group_tests_name("kmeans", tests, NULL, NULL);
}
