#include "ref.h"

int kvl_ref_moments(const struct kvl_moments_args *a)
{
    size_t dim = (size_t)a->dim, heads = (size_t)a->n_heads;
    for (size_t i = 0; i < (size_t)a->n; i++)
        for (size_t h = 0; h < heads; h++) {
            const float *x = a->x + (i * heads + h) * dim;
            double *product = a->product + h * (dim * (dim + 1) / 2);
            for (size_t r = 0; r < dim; r++) {
                a->sum[h * dim + r] += (double)x[r];
                for (size_t c = r; c < dim; c++) *product++ += (double)x[r] * (double)x[c];
            }
        }
    return KVL_OK;
}
