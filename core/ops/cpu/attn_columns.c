/* Every item owns the sums of its slots and adds the queries one by one in the order of their
 * positions, with the carry kept between calls: neither chunks nor threads change a sum.
 *
 * The limit is arithmetic: a product of head_dim, an exponential and a compensated sum by query and
 * key, where the attention before it needs two products, an exponential and a sum. */
#include "cpu.h"

#include <assert.h>
#include <omp.h>

/* Slots of one item at most. */
enum { COLUMNS_SLOTS = 128 };

struct columns {
    struct kvl_columns_item item; /* what all items have in common */
    const struct kvl_kern *kern;
    int threads;
    int32_t first, n_tiles, slots; /* tiles of `slots` slots, from the first one that counts */
    size_t thread_floats;
    float *packed, *scratch;
};

/* Queries that a key at distance nearest .. farthest is seen by, as a range of distances. */
static void columns_range(const struct kvl_attn_columns_args *a, struct kvl_columns_item *it)
{
    int32_t all = a->lanes[0].n_slots; /* farther than any query */
    it->nearest = a->kind == KVL_COLUMNS_LOGITS;
    it->farthest = a->next > 0 ? KVL_MIN(all, a->next - 1 + it->nearest) : all;
}

static void columns_run(const struct columns *w)
{
    const struct kvl_attn_columns_args *a = w->item.a;
    int32_t n_slots = a->lanes[0].n_slots;
#pragma omp parallel num_threads(w->threads) if (w->threads > 1)
    {
#pragma omp for schedule(static)
        for (int32_t h = 0; h < a->n_heads; h++)
            w->kern->columns_pack(w->packed + (size_t)h * w->item.q_stride, a, h);
#pragma omp for schedule(dynamic)
        for (int32_t i = 0; i < w->n_tiles * a->n_kv_heads; i++) {
            struct kvl_columns_item it = w->item;
            it.kv_head = i % a->n_kv_heads;
            it.slot0 = (w->first + i / a->n_kv_heads) * w->slots;
            it.n = KVL_MIN(w->slots, n_slots - it.slot0);
            it.scratch = w->scratch + (size_t)omp_get_thread_num() * w->thread_floats;
            assert(a->lanes[it.kv_head].n_slots == n_slots);
            w->kern->columns_item(&it);
        }
    }
}

int kvl_cpu_attn_columns(const struct kvl_attn_columns_args *a)
{
    struct columns w = { .item.a = a, .kern = kvl_kern() };
    if (a->n == 0) return KVL_OK;
    assert(a->n_heads % a->n_kv_heads == 0 && a->lanes[0].n_slots >= a->n);
    columns_range(a, &w.item);
    int32_t n_slots = a->lanes[0].n_slots, past = n_slots - a->n;
    w.slots = COLUMNS_SLOTS / w.kern->nr * w.kern->nr;
    /* Slots before the first one that the chunk's first query reaches get nothing. */
    w.first = KVL_MAX(0, past - w.item.farthest) / w.slots;
    w.n_tiles = (n_slots + w.slots - 1) / w.slots - w.first;
    w.threads = kvl_team(0.02 * a->n * a->n_heads * a->head_dim * (n_slots - a->n / 2.0));
    w.item.q_stride = w.kern->columns_packed(a->n, a->head_dim);
    w.thread_floats = w.kern->columns_scratch(a->head_dim);
    size_t packed = (size_t)a->n_heads * w.item.q_stride;
    w.packed = kvl_cpu_scratch((packed + w.thread_floats * (size_t)w.threads) * sizeof *w.packed);
    if (!w.packed) return KVL_ENOMEM;
    w.scratch = w.packed + packed;
    w.item.q = w.packed;
    columns_run(&w);
    return KVL_OK;
}
