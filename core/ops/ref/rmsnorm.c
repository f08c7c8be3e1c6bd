#include "ref.h"

#include <math.h>

/* Zhang and Sennrich 2019, Eq. 4, with eps inside the root. */
int kvl_ref_rmsnorm(const struct kvl_rmsnorm_args *a)
{
    for (int32_t i = 0; i < a->n; i++) {
        const float *x = a->x + (size_t)i * (size_t)a->dim;
        float *y = a->y + (size_t)i * (size_t)a->dim;
        double sum = 0;
        for (int32_t c = 0; c < a->dim; c++) sum += (double)x[c] * (double)x[c];
        double scale = 1 / sqrt(sum / a->dim + (double)a->eps);
        for (int32_t c = 0; c < a->dim; c++) y[c] = (float)((double)x[c] * scale * (double)a->w[c]);
    }
    return KVL_OK;
}
