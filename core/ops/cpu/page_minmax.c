#include "ops/cpu/cpu.h"

#include <string.h>

static void minmax_head(const struct kvl_page_minmax_args *a, const struct kvl_kern *kern,
                        int32_t h)
{
    size_t dim = (size_t)a->head_dim, bytes = dim * sizeof(float);
    for (int32_t i = 0; i < a->n; i++) {
        int32_t pos = a->pos0 + i;
        const float *k = a->k + ((size_t)i * (size_t)a->n_kv_heads + (size_t)h) * dim;
        float *lo = (float *)a->minmax + (size_t)h * a->head_stride + (size_t)(pos / a->page_tok) * 2 * dim;
        if (pos % a->page_tok == 0) {
            memcpy(lo, k, bytes);
            memcpy(lo + dim, k, bytes);
        } else {
            kern->minmax_row(lo, lo + dim, k, a->head_dim);
        }
    }
}

int kvl_cpu_page_minmax(const struct kvl_page_minmax_args *a)
{
    const struct kvl_kern *kern = kvl_kern();
    int threads = kvl_team((double)a->n * a->n_kv_heads * a->head_dim * 0.2);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t h = 0; h < a->n_kv_heads; h++) minmax_head(a, kern, h);
    return KVL_OK;
}
