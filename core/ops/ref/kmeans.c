#include "ref.h"

#include <assert.h>
#include <math.h>

struct kmeans {
    const struct kvl_kmeans_args *a;
    double *far; /* [n] how badly its cluster fits a row */
};

static const float *kmeans_row(const struct kvl_kmeans_args *a, int32_t i)
{
    return a->x + (size_t)i * a->x_stride;
}

static double kmeans_dot(const struct kvl_kmeans_args *a, const float *x, const float *y)
{
    double sum = 0;
    for (int32_t c = 0; c < a->dim; c++) sum += (double)x[c] * (double)y[c];
    return sum;
}

/* Larger is nearer. */
static double kmeans_near(const struct kvl_kmeans_args *a, const float *x, const float *centroid)
{
    double dot = kmeans_dot(a, x, centroid), norm = kmeans_dot(a, centroid, centroid);
    if (!a->cosine) return dot - norm / 2;
    return norm > 0 ? dot / sqrt(norm) : 0;
}

static void kmeans_assign(const struct kmeans *k)
{
    const struct kvl_kmeans_args *a = k->a;
    for (int32_t i = 0; i < a->n; i++) {
        const float *x = kmeans_row(a, i);
        double best = 0, norm = kmeans_dot(a, x, x);
        for (int32_t j = 0; j < a->n_clusters; j++) {
            double near = kmeans_near(a, x, a->centroid + j * a->dim);
            if (j > 0 && near <= best) continue;
            best = near;
            a->assign[i] = j;
        }
        k->far[i] = a->cosine ? sqrt(norm) - best : norm / 2 - best;
    }
}

static void kmeans_count(const struct kvl_kmeans_args *a)
{
    for (int32_t j = 0; j < a->n_clusters; j++) a->count[j] = 0;
    for (int32_t i = 0; i < a->n; i++) a->count[a->assign[i]]++;
}

/* An empty cluster takes the row that fits its own worst, from one that has others. */
static void kmeans_fill(const struct kmeans *k)
{
    const struct kvl_kmeans_args *a = k->a;
    for (int32_t j = 0; j < a->n_clusters; j++) {
        if (a->count[j] > 0) continue;
        int32_t at = -1;
        for (int32_t i = 0; i < a->n; i++)
            if (a->count[a->assign[i]] > 1 && (at < 0 || k->far[i] > k->far[at])) at = i;
        a->count[a->assign[at]]--;
        a->assign[at] = j;
        a->count[j] = 1;
    }
}

static void kmeans_means(const struct kvl_kmeans_args *a)
{
    for (int32_t j = 0; j < a->n_clusters; j++)
        for (int32_t c = 0; c < a->dim; c++) {
            double sum = 0;
            for (int32_t i = 0; i < a->n; i++)
                if (a->assign[i] == j) sum += (double)kmeans_row(a, i)[c];
            a->centroid[j * a->dim + c] = (float)(sum / a->count[j]);
        }
}

int kvl_ref_kmeans(const struct kvl_kmeans_args *a)
{
    struct kmeans k = { .a = a, .far = kvl_alloc((size_t)a->n, sizeof *k.far) };
    assert(a->n_clusters >= 1 && (a->n_iter == 0 || a->n_clusters <= a->n));
    if (!k.far) return KVL_ENOMEM;
    for (int32_t j = 0; a->n_iter > 0 && j < a->n_clusters; j++) {
        const float *x = kmeans_row(a, (int32_t)((int64_t)j * a->n / a->n_clusters));
        for (int32_t c = 0; c < a->dim; c++) a->centroid[j * a->dim + c] = x[c];
    }
    kmeans_assign(&k);
    kmeans_count(a);
    for (int32_t i = 0; i < a->n_iter; i++) {
        if (i > 0) kmeans_assign(&k);
        kmeans_count(a);
        kmeans_fill(&k);
        kmeans_means(a);
    }
    kvl_free(k.far);
    return KVL_OK;
}
