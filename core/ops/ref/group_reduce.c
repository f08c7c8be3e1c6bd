#include "ref.h"

/* Sums in float, heads ascending: part of the definition, so that every device ties alike. */
static float reduce_one(const struct kvl_group_reduce_args *a, int32_t kv, int32_t i)
{
    int32_t group = a->n_heads / a->n_kv_heads;
    const float *x = a->x + (size_t)(kv * group) * a->x_stride + i;
    float y = x[0];
    if (a->reduce == KVL_REDUCE_FIRST) return y;
    for (int32_t g = 1; g < group; g++) {
        float b = x[(size_t)g * a->x_stride];
        y = a->reduce != KVL_REDUCE_MAX ? y + b : b > y ? b : y;
    }
    return a->reduce == KVL_REDUCE_MEAN ? y / (float)group : y;
}

int kvl_ref_group_reduce(const struct kvl_group_reduce_args *a)
{
    if (a->reduce < KVL_REDUCE_SUM || a->reduce > KVL_REDUCE_FIRST) return KVL_EINVAL;
    for (int32_t kv = 0; kv < a->n_kv_heads; kv++)
        for (int32_t i = 0; i < a->n; i++)
            a->y[(size_t)kv * (size_t)a->n + (size_t)i] = reduce_one(a, kv, i);
    return KVL_OK;
}
