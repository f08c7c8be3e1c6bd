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
    bool values;              /* whether these are read */
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
    w->values = s->acc != NULL;
}

/* len slots from one of a block on, entries i and up of the tile, of a lane with blocks of two kinds. */
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

/* Rows of a lane whose blocks are all alike: at[] of keys, and of values where they are wanted.  What does not change is
 * kept out of memory, since a run may be a single row. */
VEC void walk_plain(struct walk *w, int32_t n, struct rows *rows, bool values)
{
    const struct kvl_layout *l = w->lane->layout;
    const size_t k_row = l->row_bytes[w->part[0]], v_row = l->row_bytes[w->part[1]];
    const int32_t shift = l->block_shift, last = l->block_tok - 1;
    const uint8_t *const *blocks = w->lane->blocks;
    const uint8_t **k = rows->k.at, **v = rows->v.at;
    struct kvl_run now = w->now;
    int32_t run = w->run, off = w->off;
    for (int32_t i = 0, len; i < n; i += len, off += len) {
        while (off >= now.n) {
            now = kvl_span_run(w->job, ++run);
            off = 0;
        }
        const int32_t slot = now.slot + off, in_block = slot & last;
        const uint8_t *block = blocks[slot >> shift];
        const uint8_t *key = block + (size_t)in_block * k_row;
        const uint8_t *value = block + (size_t)in_block * v_row;
        assert(slot >= 0 && slot < w->lane->n_slots);
        k[i] = key;
        if (values) v[i] = value;
        len = now.n - off;
        if (len == 1) continue;
        len = KVL_MIN(len, KVL_MIN(last + 1 - in_block, n - i));
        for (int32_t j = 1; j < len; j++) k[i + j] = key + (size_t)j * k_row;
        for (int32_t j = 1; values && j < len; j++) v[i + j] = value + (size_t)j * v_row;
    }
    w->now = now;
    w->run = run;
    w->off = off;
    rows->k.off = l->part_off[w->part[0]];
    rows->v.off = l->part_off[w->part[1]];
}

static void walk_mixed(struct walk *w, int32_t n, struct rows *rows)
{
    const struct kvl_layout *l = w->lane->layout;
    for (int32_t i = 0, len; i < n; i += len, w->off += len) {
        while (w->off >= w->now.n) {
            w->now = kvl_span_run(w->job, ++w->run);
            w->off = 0;
        }
        const int32_t slot = w->now.slot + w->off, in_block = slot & (l->block_tok - 1);
        const struct kvl_layout *of = kvl_lane_layout(w->lane, slot >> l->block_shift);
        const uint8_t *block = w->lane->blocks[slot >> l->block_shift];
        assert(slot >= 0 && slot < w->lane->n_slots);
        len = KVL_MIN(KVL_MIN(l->block_tok - in_block, w->now.n - w->off), n - i);
        walk_kept(&rows->k, of, w->part[0], block, in_block, i, len);
        walk_kept(&rows->v, of, w->part[1], block, in_block, i, len);
    }
}

/* The rows of the next n entries of a tile. */
static void walk_next(struct walk *w, int32_t n, int32_t tile, struct rows *rows)
{
    rows->n = n;
    rows->kept = w->lane->n_sealed > 0;
    if (rows->kept)
        walk_mixed(w, n, rows);
    else if (w->values)
        walk_plain(w, n, rows, true);
    else
        walk_plain(w, n, rows, false);
    side_fill(&rows->k, n, tile);
    if (w->values || rows->kept) side_fill(&rows->v, n, tile);
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
