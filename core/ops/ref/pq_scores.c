#include "ref.h"

int kvl_ref_pq_scores(const struct kvl_pq_scores_args *a)
{
    for (int32_t h = 0; h < a->n_heads; h++)
        for (int32_t i = 0; i < a->n; i++) {
            const uint8_t *code =
                a->code + (size_t)(h / a->group) * a->head_stride + (size_t)(i * a->n_sub);
            float sum = 0;
            for (int32_t s = 0; s < a->n_sub; s++)
                sum += a->table[((size_t)h * (size_t)a->n_sub + (size_t)s) * (size_t)a->n_codes +
                                code[s]];
            a->score[(size_t)h * a->stride + (size_t)i] = sum;
        }
    return KVL_OK;
}
