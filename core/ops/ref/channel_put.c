#include "ref.h"

int kvl_ref_channel_put(const struct kvl_channel_put_args *a)
{
    for (int32_t i = 0; i < a->n; i++) {
        size_t pos = (size_t)a->pos0 + (size_t)i, page_tok = (size_t)a->page_tok;
        for (int32_t h = 0; h < a->n_kv_heads; h++)
            for (int32_t c = 0; c < a->head_dim; c++) {
                size_t row = pos / page_tok * (size_t)a->head_dim + (size_t)c;
                size_t at = (size_t)h * a->head_stride + row * page_tok + pos % page_tok;
                size_t from =
                    ((size_t)i * (size_t)a->n_kv_heads + (size_t)h) * (size_t)a->head_dim +
                    (size_t)c;
                kvl_ref_set_elem(a->keys, a->type, at, a->k[from]);
            }
    }
    return KVL_OK;
}
