#include "ref.h"

#include <math.h>

static double row_dot(const float *x, const double *y, int32_t dim)
{
    double sum = 0;
    for (int32_t c = 0; c < dim; c++) sum += (double)x[c] * (y ? y[c] : (double)x[c]);
    return sum;
}

/* KeyDiff (Park et al. 2025), Eq. of the anchor: the mean of the rows at length 1, itself left as long as
 * it is, since a cosine does not ask. */
int kvl_ref_mean_cosine(const struct kvl_mean_cosine_args *a)
{
    size_t dim = (size_t)a->dim;
    double *mean = kvl_alloc(dim, sizeof *mean), length = 0;
    if (!mean) return KVL_ENOMEM;
    for (size_t i = 0; i < (size_t)a->n; i++) {
        double norm = sqrt(row_dot(a->x + i * dim, NULL, a->dim));
        for (size_t c = 0; norm > 0 && c < dim; c++)
            mean[c] += (double)a->x[i * dim + c] / norm / a->n;
    }
    for (size_t c = 0; c < dim; c++) length += mean[c] * mean[c];
    for (size_t i = 0; i < (size_t)a->n; i++) {
        double norms = sqrt(length * row_dot(a->x + i * dim, NULL, a->dim));
        a->y[i] = norms > 0 ? (float)(row_dot(a->x + i * dim, mean, a->dim) / norms) : 0;
    }
    kvl_free(mean);
    return KVL_OK;
}
