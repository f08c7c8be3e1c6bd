/* Once per lane and context, over a few hundred vectors: plain loops along the channels, and sym_eig.  No
 * BLAS for the sums: taken in their order they are the same on every device, to the bit, and with them what
 * defines vectors and ranks that are nearly equal. */
#include "cpu.h"

#include <math.h>
#include <string.h>

static void sum_products(const struct kvl_partial_basis_args *a, double *sum)
{
    size_t dim = (size_t)a->dim;
    memset(sum, 0, dim * dim * sizeof *sum);
    for (int32_t t = 0; t < a->n_q * a->group; t++) {
        const float *q = a->q + (size_t)(t / a->group) * a->q_stride + (size_t)(t % a->group) * dim;
        for (size_t i = 0; i < dim; i++)
            for (size_t j = 0; j <= i; j++) sum[i * dim + j] += (double)q[i] * (double)q[j];
    }
}

/* weight[i] += |x . row i of vec| for n rows of x, `stride` apart */
static void add_carried(const float *x, int32_t n, size_t stride, const float *vec, int32_t n_dim,
                        double *weight)
{
    size_t dim = (size_t)n_dim;
    for (size_t t = 0; t < (size_t)n; t++)
        for (size_t i = 0; i < dim; i++) {
            double dot = 0;
            for (size_t c = 0; c < dim; c++)
                dot += (double)x[t * stride + c] * (double)vec[i * dim + c];
            weight[i] += fabs(dot);
        }
}

/* The rows of the r largest weights, in order. */
static void keep_heaviest(const struct kvl_partial_basis_args *a, const float *vec,
                          const double *weight)
{
    size_t dim = (size_t)a->dim, to = 0;
    for (size_t i = 0; i < dim; i++) {
        int32_t before = 0;
        for (size_t j = 0; j < dim; j++)
            before += weight[j] > weight[i] || (j < i && weight[j] == weight[i]);
        if (before < a->r) memcpy(a->basis + dim * to++, vec + i * dim, dim * sizeof *vec);
    }
}

int kvl_cpu_partial_basis(const struct kvl_partial_basis_args *a)
{
    /* sym_eig has the scratch: what is needed beside it is taken here. */
    size_t dim = (size_t)a->dim, square = dim * dim;
    double *sum = kvl_alloc(square, sizeof *sum), *weight = kvl_alloc(dim, sizeof *weight);
    float *vec = kvl_alloc(2 * square, sizeof *vec);
    int rc = sum && weight && vec ? KVL_OK : KVL_ENOMEM;
    if (rc == KVL_OK && a->skew) {
        sum_products(a, sum);
        for (size_t i = 0; i < square; i++) vec[square + i] = (float)sum[i];
        rc = kvl_cpu_sym_eig(
            &(struct kvl_sym_eig_args){ .vec = vec, .a = vec + square, .n = a->dim });
    } else if (rc == KVL_OK) {
        for (size_t i = 0; i < dim; i++) vec[i * dim + i] = 1;
    }
    if (rc == KVL_OK) {
        for (int32_t j = 0; j < a->group; j++)
            add_carried(a->q + (size_t)j * dim, a->n_q, a->q_stride, vec, a->dim, weight);
        add_carried(a->k, a->n_k, dim, vec, a->dim, weight);
        keep_heaviest(a, vec, weight);
    }
    kvl_free(sum);
    kvl_free(weight);
    kvl_free(vec);
    return rc;
}
