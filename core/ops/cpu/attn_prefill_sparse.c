/* Layout: that of attn_prefill, but an item is a run of at most KVL_SPARSE_TOK tokens: the keys that one of
 * them reads are gathered for all, so few tokens waste little.  Runs begin at multiples of it, whatever
 * the chunk.  Query heads of a group that read the same share an item.
 *
 * Limit: that of attn_prefill for the pairs of a query and a gathered key; the search for these keys
 * takes a byte of each slot and item, 1 / (64 head_dim) of dense attention.  512 queries over 4096 keys
 * of heads of 128, a window of 512 and a sink: a quarter of the time that all pairs take. */
#include "cpu.h"

#include <assert.h>
#include <omp.h>
#include <string.h>

/* One mask: of a query head, or of a group that agrees. */
struct sparse_mask {
    const struct kvl_sparse_head *head;
    int32_t kv_head, head0, group;
    uint8_t *column, *distance; /* kvl_sparse_item */
    int32_t *n_before;
};

struct sparse {
    const struct kvl_attn_prefill_sparse_args *a;
    const struct kvl_kern *kern;
    struct kvl_attn_prefill_args dense; /* the same chunk without a mask */
    struct sparse_mask *mask;
    int32_t n_masks, n_slots, past;
    float *scratch;
    size_t thread_floats;
};

static bool same_mask(const struct kvl_sparse_head *x, const struct kvl_sparse_head *y)
{
    if (x->dense || y->dense) return x->dense == y->dense;
    return x->chunk == y->chunk && x->sink == y->sink && x->window == y->window &&
           x->column == y->column && x->n_columns == y->n_columns && x->distance == y->distance &&
           x->n_distances == y->n_distances && x->block_tok == y->block_tok &&
           x->ranges == y->ranges && x->block_off == y->block_off && x->block == y->block;
}

/* Heads of a group that read the same from the same lists are one mask. */
static void sparse_masks(struct sparse *t)
{
    const struct kvl_attn_prefill_sparse_args *a = t->a;
    int32_t group = a->n_heads / a->n_kv_heads;
    for (int32_t kv = 0; kv < a->n_kv_heads; kv++) {
        bool same = true;
        for (int32_t h = 1; h < group; h++)
            same = same && same_mask(&a->head[kv * group], &a->head[kv * group + h]);
        for (int32_t h = 0; h < (same ? 1 : group); h++)
            t->mask[t->n_masks++] = (struct sparse_mask){ .head = &a->head[kv * group + h],
                                                          .kv_head = kv,
                                                          .head0 = kv * group + h,
                                                          .group = same ? group : 1 };
    }
}

/* Columns and distances as bytes. */
static void sparse_mark(const struct sparse *t, struct sparse_mask *m)
{
    const struct kvl_sparse_head *h = m->head;
    size_t n = (size_t)t->n_slots, sink = (size_t)KVL_MIN(KVL_MAX(0, h->sink), t->n_slots);
    size_t window = (size_t)KVL_MIN(KVL_MAX(1, h->window), t->n_slots);
    if (h->dense) return;
    memset(m->column, 0, n);
    memset(m->column, 1, sink);
    if (h->chunk) memset(m->column + t->past, 1, n - (size_t)t->past);
    for (int32_t i = 0; i < h->n_columns; i++) m->column[h->column[i]] = 1;
    memset(m->distance - KVL_SPARSE_TOK, 0, n + KVL_SPARSE_TOK);
    memset(m->distance, 1, window);
    for (int32_t i = 0; i < h->n_distances; i++) m->distance[h->distance[i]] = 1;
    m->n_before[0] = 0;
    for (size_t d = 0; d < n; d++) m->n_before[d + 1] = m->n_before[d] + m->distance[d];
}

/* Tokens first .. last - 1 of the chunk, of one block of queries. */
static void sparse_run(const struct sparse *t, const struct sparse_mask *m, int32_t first,
                       int32_t last, int64_t *n_pairs, int64_t *n_reads)
{
    const struct kvl_sparse_head *h = m->head;
    struct kvl_sparse_item it = {
        .rows = { .a = &t->dense,
                  .kv_head = m->kv_head,
                  .head0 = m->head0,
                  .group = m->group,
                  .row0 = first * m->group,
                  .n_rows = (last - first) * m->group,
                  .scratch = t->scratch + (size_t)omp_get_thread_num() * t->thread_floats },
        .column = m->column,
        .distance = m->distance,
        .n_before = m->n_before,
        .block_tok = 1,
    };
    if (h->dense) {
        int64_t low = t->past + first + 1, high = t->past + last;
        t->kern->prefill_item(&it.rows);
        *n_pairs += (low + high) * (last - first) / 2 * m->group;
        *n_reads += high;
        return;
    }
    if (h->block_tok > 0) {
        int32_t b = first / h->block_tok;
        it.block_tok = h->block_tok;
        it.ranges = h->ranges;
        it.block = h->block + h->block_off[b] * (h->ranges ? 2 : 1);
        it.n_blocks = h->block_off[b + 1] - h->block_off[b];
    }
    t->kern->sparse_item(&it);
    *n_pairs += it.n_pairs;
    *n_reads += it.n_reads;
}

/* A tile of KVL_SPARSE_TOK slots, in runs that end where a block of queries does. */
static void sparse_tile_run(const struct sparse *t, const struct sparse_mask *m, int32_t tile,
                            int64_t *n_pairs, int64_t *n_reads)
{
    int32_t block = m->head->dense ? 0 : m->head->block_tok;
    int32_t at = KVL_MAX(0, tile * KVL_SPARSE_TOK - t->past);
    int32_t end = KVL_MIN(t->a->n, (tile + 1) * KVL_SPARSE_TOK - t->past);
    for (int32_t last; at < end; at = last) {
        last = block > 0 ? KVL_MIN(end, (at / block + 1) * block) : end;
        sparse_run(t, m, at, last, n_pairs, n_reads);
    }
}

/* Scratch: the masks, their bytes and counts, an area per thread. */
static int sparse_memory(struct sparse *t, int threads)
{
    const struct kvl_attn_prefill_sparse_args *a = t->a;
    size_t bytes = ((size_t)t->n_slots + KVL_SPARSE_TOK + 63) / 64 * 64;
    size_t counts = ((size_t)t->n_slots + 1 + 15) / 16 * 16 * sizeof(int32_t);
    size_t masks = ((size_t)a->n_heads * sizeof *t->mask + 63) / 64 * 64;
    size_t each = 2 * bytes + counts, heads = (size_t)a->n_heads;
    t->thread_floats =
        t->kern->prefill_scratch(KVL_SPARSE_TOK * (a->n_heads / a->n_kv_heads), a->head_dim);
    size_t floats = t->thread_floats * (size_t)threads;
    uint8_t *p = kvl_cpu_scratch(masks + heads * each + floats * sizeof(float));
    if (!p) return KVL_ENOMEM;
    t->mask = (struct sparse_mask *)(void *)p;
    sparse_masks(t);
    for (int32_t i = 0; i < t->n_masks; i++) {
        uint8_t *at = p + masks + (size_t)i * each;
        t->mask[i].n_before = (int32_t *)(void *)at;
        t->mask[i].distance = at + counts + KVL_SPARSE_TOK;
        t->mask[i].column = at + counts + bytes;
        sparse_mark(t, &t->mask[i]);
    }
    t->scratch = (float *)(void *)(p + masks + heads * each);
    return KVL_OK;
}

int kvl_cpu_attn_prefill_sparse(const struct kvl_attn_prefill_sparse_args *a)
{
    struct sparse t = { .a = a, .kern = kvl_kern() };
    if (a->n == 0) return KVL_OK;
    assert(a->n_heads % a->n_kv_heads == 0 && a->lanes[0].n_slots >= a->n);
    t.dense = (struct kvl_attn_prefill_args){ .out = a->out,
                                              .q = a->q,
                                              .lanes = a->lanes,
                                              .n = a->n,
                                              .n_heads = a->n_heads,
                                              .n_kv_heads = a->n_kv_heads,
                                              .head_dim = a->head_dim,
                                              .scale = a->scale,
                                              .cap = a->cap,
                                              .bf16 = a->bf16 };
    t.n_slots = a->lanes[0].n_slots;
    t.past = t.n_slots - a->n;
    int threads = kvl_team(0.01 * a->n * a->n_heads * a->head_dim * t.n_slots);
    KVL_TRY(sparse_memory(&t, threads));
    int32_t tile0 = t.past / KVL_SPARSE_TOK, tile1 = (t.n_slots - 1) / KVL_SPARSE_TOK;
    int32_t n_items = (tile1 - tile0 + 1) * t.n_masks;
    int64_t n_pairs = 0, n_reads = 0;
    /* The last tiles may read the most: they go first. */
#pragma omp parallel for schedule(dynamic) num_threads(threads)                                    \
    reduction(+ : n_pairs, n_reads) if (threads > 1)
    for (int32_t i = 0; i < n_items; i++)
        sparse_tile_run(&t, &t.mask[i % t.n_masks], tile1 - i / t.n_masks, &n_pairs, &n_reads);
    if (a->n_pairs) *a->n_pairs += n_pairs;
    if (a->n_reads) *a->n_reads += n_reads;
    return KVL_OK;
}
