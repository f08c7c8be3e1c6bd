#include "ref.h"

/* The logarithm of E exp(scale q.x) for a normal q (Devoto et al. 2025). */
static double gauss_logit(const struct kvl_gauss_logits_args *a, const float *x, int32_t head)
{
    size_t dim = (size_t)a->dim;
    const float *mean = a->mean + (size_t)head * dim;
    double linear = 0, quadratic = 0, scale = (double)a->scale;
    for (size_t c = 0; c < dim; c++) linear += (double)x[c] * (double)mean[c];
    for (size_t r = 0; a->cov && r < dim; r++)
        for (size_t c = 0; c < dim; c++)
            quadratic +=
                (double)x[r] * (double)a->cov[((size_t)head * dim + r) * dim + c] * (double)x[c];
    return scale * linear + scale * scale / 2 * quadratic;
}

int kvl_ref_gauss_logits(const struct kvl_gauss_logits_args *a)
{
    for (int32_t h = 0; h < a->n_heads; h++)
        for (int32_t i = 0; i < a->n; i++)
            a->y[(size_t)h * (size_t)a->n + (size_t)i] =
                (float)gauss_logit(a, a->x + (size_t)i * (size_t)a->dim, h);
    return KVL_OK;
}
