/* kern_sparse.h - prefill attention of a tile of query rows over the keys that a mask lets through.
 *
 * As kern_prefill.h, but of every PREFILL_SLOTS slots only those are widened that some row of the item
 * reads, and scores of a row that does not read a slot are hidden.  Tiles begin at the same fixed slots,
 * and a hidden slot adds an exact zero: a row does not depend on which others are in its item, and a mask
 * that lets everything through gives the bits of dense attention (in bf16, where products are summed in
 * pairs of slots, up to rounding). */
#ifndef KVL_KERN_SPARSE_H
#define KVL_KERN_SPARSE_H

#include "kern_prefill.h"

/* Slots of a tile that some row of the item reads. */
struct sparse_tile {
    int32_t slot[PREFILL_SLOTS];
    uint8_t column[PREFILL_SLOTS]; /* read by every row that is not before it */
    int32_t n;
};

/* Whether slot j is in the list of blocks or ranges, of which *at is the first that does not lie before. */
static bool sparse_in_block(const struct kvl_sparse_item *it, int32_t j, int32_t *at)
{
    if (it->ranges) {
        while (*at < it->n_blocks && it->block[2 * *at + 1] <= j) ++*at;
        return *at < it->n_blocks && it->block[2 * *at] <= j;
    }
    while (*at < it->n_blocks && it->block[*at] < j / it->block_tok) ++*at;
    return *at < it->n_blocks && it->block[*at] == j / it->block_tok;
}

/* Slots s0 .. end - 1; tok0 .. tok1 are the slots of the rows' own tokens, *block the first block of the
 * list that does not lie before s0. */
static void sparse_gather(const struct kvl_sparse_item *it, int32_t s0, int32_t end, int32_t tok0,
                          int32_t tok1, int32_t *block, struct sparse_tile *tile)
{
    tile->n = 0;
    for (int32_t j = s0; j < end; j++) {
        bool column = sparse_in_block(it, j, block) || it->column[j];
        int32_t near = KVL_MAX(0, tok0 - j), far = tok1 - j;
        if (!column && it->n_before[far + 1] == it->n_before[near]) continue;
        tile->slot[tile->n] = j;
        tile->column[tile->n++] = column;
    }
}

/* Hides from the n_rows rows of a panel, tokens at[r], what they do not read; returns how many pairs
 * are left. */
static int64_t sparse_mask(const struct kvl_sparse_item *it, const struct sparse_tile *tile,
                           int32_t n, const int32_t *at, int32_t n_rows, float *s)
{
    int64_t seen = 0;
    for (int32_t t = 0; t < n; t++, s += NR) {
        const uint8_t *distance = it->distance - tile->slot[t];
        for (int32_t r = 0; r < n_rows; r++) {
            bool column = tile->column[t] && at[r] >= tile->slot[t];
            bool sees = column || distance[at[r]];
            s[r] = sees ? s[r] : -INFINITY;
            seen += sees;
        }
    }
    return seen;
}

VEC void sparse_panel(struct kvl_sparse_item *it, const struct prefill_work *w,
                      const struct sparse_tile *tile, int32_t p, int32_t past, bool bf16)
{
    int32_t at[NR], row0 = it->rows.row0 + p * NR, n = tile->n;
    int32_t n_rows = KVL_MIN(NR, it->rows.n_rows - p * NR);
    for (int32_t r = 0; r < n_rows; r++) at[r] = past + (row0 + r) / it->rows.group;
    while (n > 0 && tile->slot[n - 1] > at[n_rows - 1]) n--;
    if (n == 0) return;
    panel_dot(&it->rows, w, p, n, bf16);
    it->n_pairs += sparse_mask(it, tile, n, at, n_rows, w->s);
    panel_absorb(&it->rows, w, p, n, bf16);
}

VEC void sparse_rows(struct kvl_sparse_item *it, bool bf16)
{
    const struct kvl_prefill_item *rows = &it->rows;
    const struct kvl_attn_prefill_args *a = rows->a;
    int32_t past = a->lanes[rows->kv_head].n_slots - a->n, block = 0;
    int32_t tok0 = past + rows->row0 / rows->group;
    int32_t tok1 = past + (rows->row0 + rows->n_rows - 1) / rows->group;
    struct prefill_work w = prefill_layout(rows->scratch, rows->n_rows, a->head_dim, bf16);
    struct sparse_tile tile;
    prefill_open(rows, &w, bf16);
    for (int32_t s0 = 0; s0 <= tok1; s0 += PREFILL_SLOTS) {
        sparse_gather(it, s0, KVL_MIN(s0 + PREFILL_SLOTS, tok1 + 1), tok0, tok1, &block, &tile);
        if (tile.n == 0) continue;
        it->n_reads += tile.n;
        prefill_tile(&w, rows, &(struct prefill_slots){ .list = tile.slot, .n = tile.n }, bf16);
        for (int32_t p = 0; p < w.n_panels; p++) sparse_panel(it, &w, &tile, p, past, bf16);
    }
    prefill_close(rows, &w);
}

static void sparse_item(struct kvl_sparse_item *it)
{
    if (it->rows.a->bf16)
        sparse_rows(it, true);
    else
        sparse_rows(it, false);
}

#endif
