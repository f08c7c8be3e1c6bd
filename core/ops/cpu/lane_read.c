#include "cpu.h"

#include <assert.h>

int kvl_cpu_lane_read(const struct kvl_lane_read_args *a)
{
    const struct kvl_kern *kern = kvl_kern();
    const struct kvl_layout *l = a->lane->layout;
    const size_t row_bytes = (size_t)l->head_dim * l->elem_bytes;
    assert(a->slot0 >= 0 && a->n >= 0 && a->slot0 + a->n <= a->lane->n_slots);
    for (int32_t i = 0; i < a->n; i++) {
        int32_t slot = a->slot0 + i, in_block = slot & (l->block_tok - 1);
        const uint8_t *rows = kvl_lane_rows(a->lane, a->part, slot >> l->block_shift);
        kern->widen(a->out + (size_t)i * a->stride, rows + (size_t)in_block * row_bytes,
                    kvl_kv_wtype(l->type), l->head_dim);
    }
    return KVL_OK;
}
