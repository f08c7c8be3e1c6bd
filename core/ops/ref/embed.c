#include "ref.h"

#include <assert.h>

int kvl_ref_embed(const struct kvl_embed_args *a)
{
    for (int32_t i = 0; i < a->n; i++) {
        assert(a->id[i] >= 0 && a->id[i] < a->w->n_rows);
        float *y = a->y + (size_t)i * (size_t)a->w->n_cols;
        for (int32_t c = 0; c < a->w->n_cols; c++) y[c] = kvl_ref_weight(a->w, a->id[i], c);
    }
    return KVL_OK;
}
