#include "ops/ref/ref.h"

/* Quest (Tang et al. 2024), Algorithm 1, lines 2-3. */
int kvl_ref_page_minmax(const struct kvl_page_minmax_args *a)
{
    for (int32_t i = 0; i < a->n; i++) {
        int32_t pos = a->pos0 + i, page = pos / a->page_tok;
        for (int32_t h = 0; h < a->n_kv_heads; h++) {
            const float *k =
                a->k + ((size_t)i * (size_t)a->n_kv_heads + (size_t)h) * (size_t)a->head_dim;
            float *lo =
                (float *)a->minmax + (size_t)h * a->head_stride + (size_t)page * 2 * (size_t)a->head_dim;
            float *hi = lo + a->head_dim;
            for (int32_t c = 0; c < a->head_dim; c++) {
                bool first = pos % a->page_tok == 0;
                lo[c] = first || k[c] < lo[c] ? k[c] : lo[c];
                hi[c] = first || k[c] > hi[c] ? k[c] : hi[c];
            }
        }
    }
    return KVL_OK;
}
