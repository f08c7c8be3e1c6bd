#include "ref.h"

int kvl_ref_mix_rows(const struct kvl_mix_rows_args *a)
{
    for (int32_t i = 0; i < a->n; i++)
        for (int32_t c = 0; c < a->dim; c++) {
            double sum = 0;
            for (int32_t j = i * a->k; j < (i + 1) * a->k; j++)
                sum += (double)a->weight[j] *
                       (double)a->x[(size_t)a->row[j] * (size_t)a->dim + (size_t)c];
            a->y[(size_t)i * (size_t)a->dim + (size_t)c] = (float)sum;
        }
    return KVL_OK;
}
