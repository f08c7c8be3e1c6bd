/* What is read of a lane. */
#include "lane.h"

/* A group gives its scales once, whatever is read of it. */
static size_t block_bytes(const struct kvl_layout *l, enum kvl_kv_part part, int32_t first,
                          int32_t n)
{
    if (!kvl_layout_groups(l, part)) return (size_t)n * l->row_bytes[part];
    size_t scales = 4 * (size_t)l->head_dim; /* a min and a scale for each channel */
    size_t codes = l->row_bytes[part] - scales / KVL_KV_GROUP;
    int32_t groups = (first + n - 1) / KVL_KV_GROUP - first / KVL_KV_GROUP + 1;
    return (size_t)groups * scales + (size_t)n * codes;
}

size_t kvl_lane_bytes(const struct kvl_lane *lane, enum kvl_kv_part part, int32_t slot, int32_t n)
{
    const struct kvl_layout *l = lane->layout;
    size_t bytes = 0;
    if (lane->n_sealed == 0) return (size_t)n * l->row_bytes[part];
    for (int32_t m; n > 0; n -= m, slot += m) {
        int32_t in_block = slot & (l->block_tok - 1);
        m = KVL_MIN(n, l->block_tok - in_block);
        bytes += block_bytes(kvl_lane_layout(lane, slot >> l->block_shift), part, in_block, m);
    }
    return bytes;
}
