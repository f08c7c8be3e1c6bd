#include "ref.h"

#include <assert.h>

int kvl_ref_lane_read(const struct kvl_lane_read_args *a)
{
    const struct kvl_layout *l = a->lane->layout;
    assert(a->slot0 >= 0 && a->n >= 0 && a->slot0 + a->n <= a->lane->n_slots);
    double row[1024];
    for (int32_t i = 0; i < a->n; i++) {
        kvl_ref_slot(a->lane, a->part, a->slot0 + i, row);
        for (int32_t c = 0; c < l->head_dim; c++)
            a->out[(size_t)i * a->stride + (size_t)c] = (float)row[c];
    }
    return KVL_OK;
}
