/* Rows are compared with all centroids by matrix products of fixed tiles; the sums of a mean are formed
 * row by row, in order, whatever the threads.
 *
 * Cost of a round: n x n_clusters x dim multiply-adds at the speed of gemm, and n x dim additions.  OpenBLAS
 * gains nothing here: it takes 0.96 to 1.36 of gemm's time at 64 to 1024 clusters of 32 or 128 channels. */
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
    float *far;          /* [n]: how badly its cluster fits a row */
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

static void kmeans_choose(const struct kmeans *k, int32_t i, const float *dots, const float *row)
{
    const struct kvl_kmeans_args *a = k->a;
    float best = dots[0] * k->scale[0] + k->bias[0];
    int32_t at = 0;
    for (int32_t j = 1; j < a->n_clusters; j++) {
        float near = dots[j] * k->scale[j] + k->bias[j];
        if (near <= best) continue;
        best = near;
        at = j;
    }
    double norm = kmeans_norm(row, a->dim);
    a->assign[i] = at;
    k->far[i] = (float)((a->cosine ? sqrt(norm) : norm / 2) - (double)best);
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
    int threads = kvl_team((double)KMEANS_TILE * a->n_clusters);
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
            kmeans_choose(k, at + i, k->dots + (size_t)i * (size_t)a->n_clusters,
                          k->rows + (size_t)i * dim);
    }
    memset(a->count, 0, (size_t)a->n_clusters * sizeof *a->count);
    for (int32_t i = 0; i < a->n; i++) a->count[a->assign[i]]++;
    return KVL_OK;
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
    k.far = k.bias + n_clusters;
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
