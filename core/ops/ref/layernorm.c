#include "ref.h"

#include <math.h>

/* Ba, Kiros and Hinton 2016, with the population's variance. */
int kvl_ref_layernorm(const struct kvl_layernorm_args *a)
{
    for (int32_t i = 0; i < a->n; i++) {
        const float *x = a->x + (size_t)i * (size_t)a->dim;
        float *y = a->y + (size_t)i * (size_t)a->dim;
        double sum = 0, square = 0;
        for (int32_t c = 0; c < a->dim; c++) sum += (double)x[c];
        double mean = sum / a->dim;
        for (int32_t c = 0; c < a->dim; c++)
            square += ((double)x[c] - mean) * ((double)x[c] - mean);
        double scale = 1 / sqrt(square / a->dim + (double)a->eps);
        for (int32_t c = 0; c < a->dim; c++)
            y[c] = (float)(((double)x[c] - mean) * scale * (double)a->w[c] + (double)a->b[c]);
    }
    return KVL_OK;
}
