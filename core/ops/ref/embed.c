#include "ref.h"

#include <assert.h>

int kvl_ref_embed(const struct kvl_embed_args *a)
{
    for (int32_t i = 0; i < a->n; i++) {
        assert(a->id[i] >= 0 && a->id[i] < a->w->n_rows);
        kvl_ref_row(a->w, a->id[i], a->y + (size_t)i * (size_t)a->w->n_cols);
    }
    return KVL_OK;
}
