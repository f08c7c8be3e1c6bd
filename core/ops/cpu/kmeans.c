/* Rows are compared with all centroids by matrix products of fixed tiles; the sums of a mean are formed
 * row by row, in order, whatever the threads.
 *
 * Cost of a round: n x n_clusters x dim multiply-adds at the speed of gemm, a seventh of that at 128 channels
 * for the nearest of n_clusters (kern_nearest.h), and n x dim additions.  OpenBLAS gains nothing here: it
 * takes 0.96 to 1.36 of gemm's time at 64 to 1024 clusters of 32 or 128 channels. */
#include "cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { KMEANS_TILE = KVL_KMEANS_TILE };

struct kmeans {
    const struct kvl_kmeans_args *a;
    float *dots;         /* [tile][n_clusters] */
    float *rows;         /* [tile][dim]: rows without gaps */
    float *scale, *bias; /* [n_clusters]: nearness = dot x scale + bias */
    float *best;         /* [n]: nearness of a row to its cluster, until kmeans_far */
};

static double kmeans_norm(const float *x, int32_t dim)
{
    double sum = 0;
    for (int32_t c = 0; c < dim; c++) sum += (double)x[c] * (double)x[c];
    return sum;
}

static void kmeans_factors(const struct kmeans *k)
{
    const struct kvl_kmeans_args *a = k->a;
    for (int32_t j = 0; j < a->n_clusters; j++) {
        double norm = kmeans_norm(a->centroid + (size_t)j * (size_t)a->dim, a->dim);
        k->scale[j] = a->cosine ? (norm > 0 ? (float)(1 / sqrt(norm)) : 0) : 1;
        k->bias[j] = a->cosine ? 0 : (float)(-norm / 2);
    }
}

static int kmeans_assign(const struct kmeans *k)
{
    const struct kvl_kmeans_args *a = k->a;
    size_t dim = (size_t)a->dim;
    const struct kvl_weight w = { .data = a->centroid,
                                  .type = KVL_W_F32,
                                  .n_rows = a->n_clusters,
                                  .n_cols = a->dim,
                                  .row_bytes = dim * sizeof(float) };
    const struct kvl_kern *kern = kvl_kern();
    int threads = kvl_team((double)KMEANS_TILE * a->n_clusters / 10);
    kmeans_factors(k);
    for (int32_t at = 0; at < a->n; at += KMEANS_TILE) {
        int32_t n = KVL_MIN(KMEANS_TILE, a->n - at);
        for (int32_t i = 0; i < n; i++)
            memcpy(k->rows + (size_t)i * dim, a->x + (size_t)(at + i) * a->x_stride,
                   dim * sizeof *k->rows);
        struct kvl_gemm_args g = { .y = k->dots, .x = k->rows, .w = &w, .n = n };
        KVL_TRY(kvl_cpu_gemm(&g));
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
        for (int32_t i = 0; i < n; i++)
            a->assign[at + i] = kern->nearest(k->dots + (size_t)i * (size_t)a->n_clusters, k->scale,
                                              k->bias, a->n_clusters, &k->best[at + i]);
    }
    memset(a->count, 0, (size_t)a->n_clusters * sizeof *a->count);
    for (int32_t i = 0; i < a->n; i++) a->count[a->assign[i]]++;
    return KVL_OK;
}

/* [n]: how badly its cluster fits a row, in the place of its nearness.  Asked for where a cluster is empty, for
 * the norms take as long as the choice of clusters. */
static const float *kmeans_far(const struct kmeans *k)
{
    const struct kvl_kmeans_args *a = k->a;
    int threads = kvl_team((double)a->n * a->dim);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < a->n; i++) {
        double norm = kmeans_norm(a->x + (size_t)i * a->x_stride, a->dim);
        k->best[i] = (float)((a->cosine ? sqrt(norm) : norm / 2) - (double)k->best[i]);
    }
    return k->best;
}

/* The row that fits its cluster worst, of those in clusters of more than one: while a cluster is empty there is
 * one.  Few rows fit worse than all before them: this is asked first. */
static int32_t kmeans_worst(const struct kvl_kmeans_args *a, const float *far)
{
    int32_t at = 0;
    while (a->count[a->assign[at]] <= 1) at++;
    for (int32_t i = at + 1; i < a->n; i++)
        if (far[i] > far[at] && a->count[a->assign[i]] > 1) at = i;
    return at;
}

/* An empty cluster takes the row that fits its own worst, from one that has others. */
static void kmeans_fill(const struct kmeans *k)
{
    const struct kvl_kmeans_args *a = k->a;
    const float *far = NULL;
    for (int32_t j = 0; j < a->n_clusters; j++) {
        if (a->count[j] > 0) continue;
        if (!far) far = kmeans_far(k);
        int32_t at = kmeans_worst(a, far);
        a->count[a->assign[at]]--;
        a->assign[at] = j;
        a->count[j] = 1;
    }
}

static void kmeans_means(const struct kmeans *k)
{
    const struct kvl_kmeans_args *a = k->a;
    size_t dim = (size_t)a->dim;
    memset(a->centroid, 0, (size_t)a->n_clusters * dim * sizeof *a->centroid);
    for (int32_t i = 0; i < a->n; i++) {
        const float *x = a->x + (size_t)i * a->x_stride;
        float *sum = a->centroid + (size_t)a->assign[i] * dim;
        for (size_t c = 0; c < dim; c++) sum[c] += x[c];
    }
    for (int32_t j = 0; j < a->n_clusters; j++)
        for (size_t c = 0; c < dim; c++) a->centroid[(size_t)j * dim + c] /= (float)a->count[j];
}

int kvl_cpu_kmeans(const struct kvl_kmeans_args *a)
{
    size_t n_clusters = (size_t)a->n_clusters, dim = (size_t)a->dim;
    struct kmeans k = { .a = a, .dots = a->work };
    assert(a->n_clusters >= 1 && (a->n_iter == 0 || a->n_clusters <= a->n));
    k.rows = k.dots + KMEANS_TILE * n_clusters;
    k.scale = k.rows + KMEANS_TILE * dim;
    k.bias = k.scale + n_clusters;
    k.best = k.bias + n_clusters;
    for (size_t j = 0; a->n_iter > 0 && j < n_clusters; j++)
        memcpy(a->centroid + j * dim, a->x + j * (size_t)a->n / n_clusters * a->x_stride,
               dim * sizeof *a->centroid);
    KVL_TRY(kmeans_assign(&k));
    for (int32_t i = 0; i < a->n_iter; i++) {
        if (i > 0) KVL_TRY(kmeans_assign(&k));
        kmeans_fill(&k);
        kmeans_means(&k);
    }
    return KVL_OK;
}
