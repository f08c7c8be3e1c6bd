#include "ref.h"

int kvl_ref_pq_table(const struct kvl_pq_table_args *a)
{
    int32_t dim = a->head_dim / a->n_sub, group = a->n_heads / a->n_kv_heads;
    for (int32_t h = 0; h < a->n_heads; h++)
        for (int32_t s = 0; s < a->n_sub; s++)
            for (int32_t i = 0; i < a->n_codes; i++) {
                const float *q = a->q + h * a->head_dim + s * dim;
                const float *c = a->centroid + (size_t)(h / group) * a->head_stride +
                                 (size_t)((s * a->n_codes + i) * dim);
                double sum = 0;
                for (int32_t j = 0; j < dim; j++) sum += (double)q[j] * (double)c[j];
                a->table[(h * a->n_sub + s) * a->n_codes + i] = (float)(sum * (double)a->scale);
            }
    return KVL_OK;
}
