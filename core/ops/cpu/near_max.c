#include "cpu.h"

/* Exact whatever the order: a maximum, one difference, a count. */
static void near_max_row(const struct kvl_near_max_args *a, int32_t row)
{
    float *x = a->x + (size_t)row * (size_t)a->n, max = kvl_kern()->row_max(x, a->n);
    int32_t count = 0;
    for (int32_t i = 0; i < a->n; i++) {
        x[i] -= max;
        count += x[i] > -a->alpha;
    }
    a->count[row] = count;
}

int kvl_cpu_near_max(const struct kvl_near_max_args *a)
{
    int threads = kvl_team((double)a->n * a->n_rows * 0.5);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t r = 0; r < a->n_rows; r++) near_max_row(a, r);
    return KVL_OK;
}
