#include "cpu.h"

#include <assert.h>
#include <math.h>

enum { MERGE_MAX_PARTS = 64 };

static void merge_head(const struct kvl_attn_merge_args *a, int32_t h)
{
    const struct kvl_kern *kern = kvl_kern();
    float weight[MERGE_MAX_PARTS], max = -INFINITY, sum = 0;
    const float *part[MERGE_MAX_PARTS];
    for (int32_t p = 0; p < a->n_parts; p++) {
        part[p] = a->part[p] + (size_t)h * (size_t)a->head_dim;
        max = KVL_MAX(max, a->part_lse[p][h]);
    }
    for (int32_t p = 0; p < a->n_parts; p++)
        sum += weight[p] = max == -INFINITY ? 0 : expf(a->part_lse[p][h] - max);
    for (int32_t p = 0; p < a->n_parts && sum > 0; p++) weight[p] /= sum;
    kern->blend(a->out + (size_t)h * (size_t)a->head_dim, part, weight, a->n_parts, a->head_dim);
    if (a->lse) a->lse[h] = sum > 0 ? max + logf(sum) : -INFINITY;
}

int kvl_cpu_attn_merge(const struct kvl_attn_merge_args *a)
{
    for (; a; a = a->next) {
        assert(a->n_parts <= MERGE_MAX_PARTS);
        for (int32_t h = 0; h < a->n_heads; h++) merge_head(a, h);
    }
    return KVL_OK;
}
