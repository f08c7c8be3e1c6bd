#include "cpu.h"

#include <math.h>

enum { NORM_LANES = 8 }; /* sums that the compiler keeps in one or two vectors */

static float row_norm(const float *x, int32_t dim, bool squares)
{
    float part[NORM_LANES] = { 0 }, sum = 0;
    int32_t c = 0;
    for (; c + NORM_LANES <= dim; c += NORM_LANES)
        for (int32_t i = 0; i < NORM_LANES; i++)
            part[i] += squares ? x[c + i] * x[c + i] : fabsf(x[c + i]);
    for (; c < dim; c++) part[0] += squares ? x[c] * x[c] : fabsf(x[c]);
    for (int32_t i = 0; i < NORM_LANES; i++) sum += part[i];
    return squares ? sqrtf(sum) : sum;
}

int kvl_cpu_row_norms(const struct kvl_row_norms_args *a)
{
    int threads = kvl_team((double)a->n * a->dim * 0.3);
    if (a->norm != 1 && a->norm != 2) return KVL_EINVAL;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < a->n; i++)
        a->y[i] = row_norm(a->x + (size_t)i * (size_t)a->dim, a->dim, a->norm == 2);
    return KVL_OK;
}
