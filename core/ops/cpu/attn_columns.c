/* Every item owns the sums of its slots and adds the queries one by one in the order of their
 * positions, with the carry kept between calls: neither chunks nor threads change a sum. */
#include "ops/cpu/cpu.h"

#include <assert.h>
#include <omp.h>

/* Slots of one item. */
enum { COLUMNS_SLOTS = 128 };

/* Queries that a key at distance nearest .. farthest is seen by, as a range of distances. */
static void columns_range(const struct kvl_attn_columns_args *a, struct kvl_columns_item *it)
{
    int32_t all = a->lanes[0].n_slots; /* farther than any query */
    it->nearest = a->kind == KVL_COLUMNS_LOGITS;
    it->farthest = a->next > 0 ? KVL_MIN(all, a->next - 1 + it->nearest) : all;
}

int kvl_cpu_attn_columns(const struct kvl_attn_columns_args *a)
{
    const struct kvl_kern *kern = kvl_kern();
    struct kvl_columns_item range = { .a = a };
    if (a->n == 0) return KVL_OK;
    assert(a->n_heads % a->n_kv_heads == 0 && a->lanes[0].n_slots >= a->n);
    columns_range(a, &range);
    int32_t n_slots = a->lanes[0].n_slots, past = n_slots - a->n;
    /* Slots before the first one that the chunk's first query reaches get nothing. */
    int32_t first = KVL_MAX(0, past - range.farthest) / COLUMNS_SLOTS;
    int32_t n_tiles = (n_slots + COLUMNS_SLOTS - 1) / COLUMNS_SLOTS - first;
    int threads = kvl_team(0.03 * a->n * a->n_heads * a->head_dim * (n_slots - a->n / 2.0));
    size_t floats = kern->columns_scratch(a->head_dim);
    float *scratch = kvl_cpu_scratch(floats * (size_t)threads * sizeof *scratch);
    if (!scratch) return KVL_ENOMEM;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < n_tiles * a->n_kv_heads; i++) {
        struct kvl_columns_item it = range;
        it.kv_head = i % a->n_kv_heads;
        it.slot0 = (first + i / a->n_kv_heads) * COLUMNS_SLOTS;
        it.n = KVL_MIN(COLUMNS_SLOTS, n_slots - it.slot0);
        it.scratch = scratch + (size_t)omp_get_thread_num() * floats;
        assert(a->lanes[it.kv_head].n_slots == n_slots);
        kern->columns_item(&it);
    }
    return KVL_OK;
}
