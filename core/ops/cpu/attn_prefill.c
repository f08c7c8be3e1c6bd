/* Layout: an item is a run of query rows of one kv head, the whole group of query heads together, so
 * that a tile of 128 keys and values is widened once for all of them.  Rows are packed in panels that
 * lie across the vectors; the scores of one panel and one tile stay in L1, and softmax goes on from
 * tile to tile.  Nothing grows with the context.
 *
 * Limit: the multiply-adds of the two products, as for gemm.  Reached against OpenBLAS sgemm, 512
 * queries: heads of 128 over 4096 keys 1.0, over their own 512 0.90 (half of a diagonal tile is
 * hidden); heads of 32 0.8, since a score takes the same exponential for a quarter of the products.
 * In bf16 1.7, 1.4 and 1.1: the exponentials are in float and stay. */
#include "cpu.h"

#include <assert.h>
#include <omp.h>

/* Query rows per item: each tile of keys is widened once for so many. */
enum { PREFILL_ROWS = 256 };

/* Fewer rows per item when there would be too few items; a row's result does not depend on it. */
static int32_t prefill_item_rows(const struct kvl_kern *kern, int32_t n_rows, int32_t n_kv_heads,
                                 int threads)
{
    int32_t rows = PREFILL_ROWS / kern->nr * kern->nr;
    while (rows > kern->nr && (n_rows + rows - 1) / rows * n_kv_heads < 2 * threads)
        rows -= kern->nr;
    return KVL_MIN(rows, (n_rows + kern->nr - 1) / kern->nr * kern->nr);
}

static double prefill_ns(const struct kvl_attn_prefill_args *a)
{
    double keys = a->lanes[0].n_slots - a->n / 2.0;
    if (a->window > 0) keys = KVL_MIN(keys, a->window);
    return 0.05 * a->n * a->n_heads * a->head_dim * keys;
}

int kvl_cpu_attn_prefill(const struct kvl_attn_prefill_args *a)
{
    const struct kvl_kern *kern = kvl_kern();
    if (a->n == 0) return KVL_OK;
    assert(a->n_heads % a->n_kv_heads == 0);
    int threads = kvl_team(prefill_ns(a));
    int32_t group = a->n_heads / a->n_kv_heads, n_rows = a->n * group;
    int32_t rows = prefill_item_rows(kern, n_rows, a->n_kv_heads, threads);
    int32_t n_tiles = (n_rows + rows - 1) / rows, n_items = n_tiles * a->n_kv_heads;
    size_t floats = kern->prefill_scratch(rows, a->head_dim);
    float *scratch = kvl_cpu_scratch(floats * (size_t)threads * sizeof *scratch);
    if (!scratch) return KVL_ENOMEM;
        /* The last tiles see the most keys: they go first, so that no thread ends with a long one. */
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < n_items; i++) {
        int32_t tile = n_tiles - 1 - i / a->n_kv_heads;
        struct kvl_prefill_item it = { .a = a,
                                       .kv_head = i % a->n_kv_heads,
                                       .head0 = i % a->n_kv_heads * group,
                                       .group = group,
                                       .row0 = tile * rows,
                                       .n_rows = KVL_MIN(rows, n_rows - tile * rows) };
        assert(a->lanes[it.kv_head].n_slots >= a->n);
        it.scratch = scratch + (size_t)omp_get_thread_num() * floats;
        kern->prefill_item(&it);
    }
    return KVL_OK;
}
