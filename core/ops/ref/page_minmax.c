#include "ref.h"

/* Quest (Tang et al. 2024), Algorithm 1, lines 2-3. */
static void minmax_key(const struct kvl_page_minmax_args *a, const float *k, size_t lo, bool first)
{
    for (size_t c = 0; c < (size_t)a->head_dim; c++) {
        size_t hi = lo + (size_t)a->head_dim;
        if (first || k[c] < kvl_ref_elem(a->minmax, a->type, lo + c))
            kvl_ref_set_elem(a->minmax, a->type, lo + c, k[c]);
        if (first || k[c] > kvl_ref_elem(a->minmax, a->type, hi + c))
            kvl_ref_set_elem(a->minmax, a->type, hi + c, k[c]);
    }
}

int kvl_ref_page_minmax(const struct kvl_page_minmax_args *a)
{
    size_t dim = (size_t)a->head_dim;
    for (int32_t i = 0; i < a->n; i++) {
        int32_t pos = a->pos0 + i, page = pos / a->page_tok;
        for (int32_t h = 0; h < a->n_kv_heads; h++)
            minmax_key(a, a->k + ((size_t)i * (size_t)a->n_kv_heads + (size_t)h) * dim,
                       (size_t)h * a->head_stride + (size_t)page * 2 * dim, pos % a->page_tok == 0);
    }
    return KVL_OK;
}
