#include "cpu.h"

#include <assert.h>

int kvl_cpu_embed(const struct kvl_embed_args *a)
{
    const struct kvl_kern *kern = kvl_kern();
    for (int32_t i = 0; i < a->n; i++) {
        assert(a->id[i] >= 0 && a->id[i] < a->w->n_rows);
        const uint8_t *row = (const uint8_t *)a->w->data + (size_t)a->id[i] * a->w->row_bytes;
        kern->widen(a->y + (size_t)i * (size_t)a->w->n_cols, row, a->w->type, a->w->n_cols);
    }
    return KVL_OK;
}
