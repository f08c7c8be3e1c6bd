#include "ref.h"

#include <math.h>

int kvl_ref_row_norms(const struct kvl_row_norms_args *a)
{
    if (a->norm != 1 && a->norm != 2) return KVL_EINVAL;
    for (int32_t i = 0; i < a->n; i++) {
        double sum = 0;
        for (int32_t c = 0; c < a->dim; c++) {
            double x = (double)a->x[(size_t)i * (size_t)a->dim + (size_t)c];
            sum += a->norm == 1 ? fabs(x) : x * x;
        }
        a->y[i] = (float)(a->norm == 1 ? sum : sqrt(sum));
    }
    return KVL_OK;
}
