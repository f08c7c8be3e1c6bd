/* kern_span_rows.h - where the rows of a list lie, a tile at a time. */
#ifndef KVL_KERN_SPAN_ROWS_H
#define KVL_KERN_SPAN_ROWS_H

#include "kern_math.h"

/* Walks the list and yields the address of every row. */
struct walk {
    const struct kvl_lane *lane;
    const struct kvl_attn_job *job;
    struct kvl_run now; /* the run-th of the job */
    int32_t run, off;
    enum kvl_kv_part part[2]; /* keys, values */
};

/* Rows at at[] + off.  Of a lane with sealed blocks `kept` says what each is. */
struct side {
    const uint8_t *at[KVL_SPAN_TILE];
    size_t off;
    struct kvl_kept kept[KVL_SPAN_TILE];
};

/* The keys and values of a tile; a short one is filled up with its last row, so that groups of slots are whole. */
struct rows {
    struct side k, v;
    int32_t n;
    bool kept; /* of a lane with sealed blocks */
};

static void walk_open(struct walk *w, const struct kvl_span *s)
{
    w->lane = s->job->lane;
    w->job = s->job;
    w->now = kvl_span_run(s->job, s->run);
    w->run = s->run;
    w->off = s->run_off;
    w->part[0] = s->job->pos ? KVL_PART_K_RAW : KVL_PART_K;
    w->part[1] = KVL_PART_V;
}

/* len slots from one of a block on, entries i and up of the tile. */
static void walk_side(struct side *to, const struct kvl_layout *l, enum kvl_kv_part part,
                      const uint8_t *block, int32_t in_block, int32_t i, int32_t len)
{
    const size_t row = l->row_bytes[part];
    block += (size_t)in_block * row;
    for (int32_t j = 0; j < len; j++) to->at[i + j] = block + (size_t)j * row;
    to->off = l->part_off[part];
}

/* The same of a lane with blocks of two kinds. */
static void walk_kept(struct side *to, const struct kvl_layout *l, enum kvl_kv_part part,
                      const uint8_t *block, int32_t in_block, int32_t i, int32_t len)
{
    for (int32_t j = 0; j < len; j++) {
        to->kept[i + j] = kvl_block_kept(l, part, block, in_block + j);
        to->at[i + j] = to->kept[i + j].at;
    }
    to->off = 0;
}

static void side_fill(struct side *to, int32_t n, int32_t tile)
{
    for (int32_t i = n; n > 0 && i < tile; i++) to->at[i] = to->at[n - 1];
}

/* The rows of the next n entries of a tile. */
static void walk_next(struct walk *w, int32_t n, int32_t tile, struct rows *rows)
{
    const struct kvl_layout *l = w->lane->layout;
    int32_t i = 0;
    while (i < n) {
        while (w->off >= w->now.n) {
            w->now = kvl_span_run(w->job, ++w->run);
            w->off = 0;
        }
        int32_t slot = w->now.slot + w->off, in_block = slot & (l->block_tok - 1);
        int32_t len = KVL_MIN(l->block_tok - in_block, w->now.n - w->off);
        assert(slot >= 0 && slot < w->lane->n_slots);
        len = KVL_MIN(len, n - i);
        const uint8_t *block = w->lane->blocks[slot >> l->block_shift];
        if (w->lane->n_sealed > 0) {
            const struct kvl_layout *of = kvl_lane_layout(w->lane, slot >> l->block_shift);
            walk_kept(&rows->k, of, w->part[0], block, in_block, i, len);
            walk_kept(&rows->v, of, w->part[1], block, in_block, i, len);
        } else {
            walk_side(&rows->k, l, w->part[0], block, in_block, i, len);
            walk_side(&rows->v, l, w->part[1], block, in_block, i, len);
        }
        i += len;
        w->off += len;
    }
    side_fill(&rows->k, n, tile);
    side_fill(&rows->v, n, tile);
    rows->n = n;
    rows->kept = w->lane->n_sealed > 0;
}

/* n rows of floats take the place of stored ones; scores and values go by pairs of vectors. */
static void side_floats(struct side *to, const float *x, size_t ld, int32_t n)
{
    for (int32_t t = 0; t < n; t++) to->at[t] = (const uint8_t *)(x + (size_t)t * ld);
    for (int32_t t = n; t % (2 * VW) != 0; t++) to->at[t] = to->at[n - 1];
    to->off = 0;
}

static struct kvl_kept side_kept(const struct kvl_span *s, const struct side *from,
                                 enum kvl_kv_type type, int32_t t)
{
    if (s->job->lane->n_sealed > 0) return from->kept[t];
    return (struct kvl_kept){ .at = from->at[t] + from->off, .type = type, .token = -1 };
}

#endif
