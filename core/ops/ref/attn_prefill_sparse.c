#include "ref.h"

#include <assert.h>

static bool sparse_has(const int32_t *list, int32_t n, int32_t x)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] == x) return true;
    return false;
}

static bool sparse_in_range(const int32_t *pair, int32_t n, int32_t x)
{
    for (int32_t i = 0; i < n; i++)
        if (x >= pair[2 * i] && x < pair[2 * i + 1]) return true;
    return false;
}

/* Whether the query at slot i reads slot j <= i; the chunk begins at slot `past`. */
static bool sparse_sees(const struct kvl_sparse_head *h, int32_t past, int32_t i, int32_t j)
{
    if (h->dense || i == j || j < h->sink || i - j < h->window || (h->chunk && j >= past))
        return true;
    if (sparse_has(h->column, h->n_columns, j)) return true;
    if (sparse_has(h->distance, h->n_distances, i - j)) return true;
    if (h->block_tok == 0) return false;
    int32_t b = (i - past) / h->block_tok, first = h->block_off[b];
    int32_t n = h->block_off[b + 1] - first;
    if (h->ranges) return sparse_in_range(h->block + 2 * first, n, j);
    return sparse_has(h->block + first, n, j / h->block_tok);
}

int kvl_ref_attn_prefill_sparse(const struct kvl_attn_prefill_sparse_args *a)
{
    int32_t n_slots = a->lanes[0].n_slots, past = n_slots - a->n;
    uint8_t *mask = kvl_alloc((size_t)n_slots, 1);
    double *p = kvl_alloc((size_t)n_slots, sizeof *p);
    int64_t n_pairs = 0;
    assert(past >= 0);
    for (int32_t r = 0; mask && p && r < a->n * a->n_heads; r++) {
        int32_t i = past + r / a->n_heads, h = r % a->n_heads;
        struct kvl_ref_query query = { .q = a->q + (size_t)r * (size_t)a->head_dim,
                                       .lane = &a->lanes[h / (a->n_heads / a->n_kv_heads)],
                                       .mask = mask,
                                       .n = i + 1,
                                       .scale = a->scale,
                                       .cap = a->cap,
                                       .bf16 = a->bf16 };
        for (int32_t j = 0; j <= i; j++) n_pairs += mask[j] = sparse_sees(&a->head[h], past, i, j);
        kvl_ref_weights(&query, p);
        kvl_ref_values(&query, p, a->out + (size_t)r * (size_t)a->head_dim);
    }
    int rc = mask && p ? KVL_OK : KVL_ENOMEM;
    if (rc == KVL_OK && a->n_pairs) *a->n_pairs += n_pairs;
    if (rc == KVL_OK && a->n_reads) *a->n_reads += n_pairs;
    kvl_free(mask);
    kvl_free(p);
    return rc;
}
