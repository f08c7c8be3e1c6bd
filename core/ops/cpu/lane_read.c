#include "cpu.h"

#include <assert.h>

int kvl_cpu_lane_read(const struct kvl_lane_read_args *a)
{
    const struct kvl_kern *kern = kvl_kern();
    assert(a->slot0 >= 0 && a->n >= 0 && a->slot0 + a->n <= a->lane->n_slots);
    for (int32_t i = 0; i < a->n; i++)
        kern->kv_row(a->out + (size_t)i * a->stride, kvl_lane_kept(a->lane, a->part, a->slot0 + i),
                     a->lane->layout->head_dim);
    return KVL_OK;
}
