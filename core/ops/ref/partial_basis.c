#include "ref.h"

#include <math.h>
#include <string.h>

/* sum over n rows, `stride` apart, of |row.direction| */
static double carried(const float *x, int32_t n, size_t stride, const float *direction, int32_t dim)
{
    double total = 0;
    for (int32_t i = 0; i < n; i++) {
        double dot = 0;
        for (int32_t c = 0; c < dim; c++)
            dot += (double)x[(size_t)i * stride + (size_t)c] * (double)direction[c];
        total += fabs(dot);
    }
    return total;
}

static int all_directions(const struct kvl_partial_basis_args *a, float *vec)
{
    size_t dim = (size_t)a->dim;
    memset(vec, 0, dim * dim * sizeof *vec);
    for (size_t i = 0; !a->skew && i < dim; i++) vec[i * dim + i] = 1;
    if (!a->skew) return KVL_OK;
    float *sum = kvl_alloc(dim * dim, sizeof *sum);
    if (!sum) return KVL_ENOMEM;
    for (size_t i = 0; i < dim; i++)
        for (size_t j = 0; j <= i; j++) {
            double x = 0;
            for (size_t t = 0; t < (size_t)(a->n_q * a->group); t++) {
                const float *q =
                    a->q + t / (size_t)a->group * a->q_stride + t % (size_t)a->group * dim;
                x += (double)q[i] * (double)q[j];
            }
            sum[i * dim + j] = (float)x;
        }
    int rc = kvl_ref_sym_eig(&(struct kvl_sym_eig_args){ .vec = vec, .a = sum, .n = a->dim });
    kvl_free(sum);
    return rc;
}

/* InfiniGen (Lee et al. 2024), sections 4.2 and 4.3: skewing by the singular vectors of sampled queries;
 * columns with the largest sums of absolute values of the skewed queries and keys. */
int kvl_ref_partial_basis(const struct kvl_partial_basis_args *a)
{
    size_t dim = (size_t)a->dim;
    float *vec = kvl_alloc(dim * dim, sizeof *vec);
    double *weight = kvl_alloc(dim, sizeof *weight);
    int rc = vec && weight ? all_directions(a, vec) : KVL_ENOMEM;
    for (size_t i = 0; rc == KVL_OK && i < dim; i++) {
        weight[i] = carried(a->k, a->n_k, dim, vec + i * dim, a->dim);
        for (size_t j = 0; j < (size_t)a->group; j++)
            weight[i] += carried(a->q + j * dim, a->n_q, a->q_stride, vec + i * dim, a->dim);
    }
    for (size_t i = 0, to = 0; rc == KVL_OK && i < dim; i++) {
        int32_t before = 0;
        for (size_t j = 0; j < dim; j++)
            before += weight[j] > weight[i] || (j < i && weight[j] == weight[i]);
        if (before < a->r) memcpy(a->basis + dim * to++, vec + i * dim, dim * sizeof *vec);
    }
    kvl_free(vec);
    kvl_free(weight);
    return rc;
}
