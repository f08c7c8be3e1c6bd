#include "cpu.h"

/* The new keys of each page in one pass: its row is read and written once.  Minima and maxima of keys
 * are keys, exact in the type of the table. */
static void minmax_head(const struct kvl_page_minmax_args *a, const struct kvl_kern *kern,
                        int32_t h)
{
    size_t dim = (size_t)a->head_dim, ld = (size_t)a->n_kv_heads * dim;
    size_t elem = (size_t)kvl_kv_elem_bytes(a->type);
    uint8_t *rows = (uint8_t *)a->minmax + (size_t)h * a->head_stride * elem;
    for (int32_t i = 0, n; i < a->n; i += n) {
        int32_t pos = a->pos0 + i, in_page = pos % a->page_tok;
        n = KVL_MIN(a->page_tok - in_page, a->n - i);
        kern->page_minmax(rows + (size_t)(pos / a->page_tok) * 2 * dim * elem,
                          kvl_kv_wtype(a->type), a->k + (size_t)i * ld + (size_t)h * dim, ld, n,
                          a->head_dim, in_page == 0);
    }
}

int kvl_cpu_page_minmax(const struct kvl_page_minmax_args *a)
{
    const struct kvl_kern *kern = kvl_kern();
    int threads = kvl_team((double)a->n * a->n_kv_heads * a->head_dim * 0.1);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t h = 0; h < a->n_kv_heads; h++) minmax_head(a, kern, h);
    return KVL_OK;
}
