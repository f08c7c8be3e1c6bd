/* KVL_OBS_BLOCKS: what tokens receive of the queries of their own block (Compactor's non-causal attention).
 *
 * A block is summed when its last token has been prefilled: older queries of it are in the window's ring, which the
 * plan made as long as a block and what comes after the last one.  The block that the context ends in, which may have
 * to do without the last tokens, is summed when a policy asks. */
#include "policy_impl.h"

#include <string.h>

/* As KVL_BLOCKS packs them: one number, since it is a parameter of the observer and part of the snapshot's key. */
struct blocks {
    int32_t first, last, size;
};

static struct blocks blocks_of(int32_t param)
{
    return (
        struct blocks){ .first = param >> 16 & 0xff, .last = param >> 24, .size = param & 0xffff };
}

/* Tokens first .. first + n - 1 of a layer, filled up to `size` with zeros. */
struct block {
    const struct kvl_engine *e;
    const struct kvl_observers *o;
    int32_t layer, first, n, size;
    const float
        *q; /* of tokens n_seen and up, [..][n_heads * head_dim]; NULL: all are in the ring */
};

static size_t block_row(const struct block *b)
{
    return (size_t)b->e->model->shape.n_heads * (size_t)b->e->model->shape.head_dim;
}

/* Its queries, one row after the other, from the ring (which begins again at most once) and the chunk. */
static int block_queries(const struct block *b, float *to)
{
    const struct kvl_observers *o = b->o;
    size_t row = block_row(b);
    const float *ring = o->ring + (size_t)b->layer * (size_t)o->set.window * row;
    for (int32_t i = 0, run; i < b->n; i += run) {
        int64_t token = b->first + i;
        /* Tokens of this chunk are not in the ring yet: kvl_observers_add comes after this. */
        bool fresh = b->q && token >= o->n_seen;
        int32_t at = (int32_t)(token % o->set.window);
        int32_t end = fresh || !b->q ? b->n : (int32_t)KVL_MIN(b->n, o->n_seen - b->first);
        run = fresh ? b->n - i : KVL_MIN(end - i, o->set.window - at);
        const float *from =
            fresh ? b->q + (size_t)(token - o->n_seen) * row : ring + (size_t)at * row;
        KVL_TRY(o->dev->copy(to + (size_t)i * row, from, (size_t)run * row * sizeof *to,
                             KVL_STREAM_MAIN));
    }
    return KVL_OK;
}

/* Rows of one query head after the other: by an operator, since they may lie on the device. */
static int block_by_head(const struct block *b, const float *q, float *to)
{
    /* Observers only look at the engine; its arena lends memory all the same. */
    struct kvl_engine *e = (struct kvl_engine *)(uintptr_t)b->e;
    int32_t heads = e->model->shape.n_heads, n = heads * b->n;
    int32_t *row = kvl_arena_get(&e->results, (size_t)n, sizeof *row);
    float *one = kvl_arena_get(&e->results, (size_t)n, sizeof *one);
    if (!row || !one) return KVL_ENOMEM;
    KVL_TRY(kvl_engine_host(e, row, (size_t)n * sizeof *row, true));
    KVL_TRY(kvl_engine_host(e, one, (size_t)n * sizeof *one, true));
    for (int32_t h = 0; h < heads; h++)
        for (int32_t i = 0; i < b->n; i++) {
            row[h * b->n + i] = i * heads + h;
            one[h * b->n + i] = 1;
        }
    return e->now->mix_rows(&(struct kvl_mix_rows_args){ .y = to,
                                                         .x = q,
                                                         .weight = one,
                                                         .row = row,
                                                         .n = n,
                                                         .n_x = n,
                                                         .k = 1,
                                                         .dim = e->model->shape.head_dim });
}

/* Room of a block, in the arena of results. */
struct block_room {
    float *rows, *heads, *padded, *key, *logits, *sum;
};

static int block_room(const struct block *b, struct block_room *r)
{
    struct kvl_arena *a = &((struct kvl_engine *)(uintptr_t)b->e)->results;
    size_t size = (size_t)b->size, dim = (size_t)b->e->model->shape.head_dim;
    r->rows = kvl_arena_get(a, (size_t)b->n * block_row(b), sizeof(float));
    r->heads = kvl_arena_get(a, (size_t)b->n * block_row(b), sizeof(float));
    r->padded = kvl_arena_get(a, size * dim, sizeof(float));
    r->key = kvl_arena_get(a, size * dim, sizeof(float));
    r->logits = kvl_arena_get(a, size * size, sizeof(float));
    r->sum = kvl_arena_get(a, size, sizeof(float));
    bool all = r->rows && r->heads && r->padded && r->key && r->logits && r->sum;
    return all ? KVL_OK : KVL_ENOMEM;
}

static int block_zero(const struct block *b, float *x, size_t n)
{
    KVL_TRY(kvl_engine_host(b->e, x, n * sizeof *x, true));
    memset(x, 0, n * sizeof *x);
    return KVL_OK;
}

/* One query head against the keys in r->key: to [n].  Without the scale of attention and over all `size` keys, those
 * filled up among them, as Compactor does it: a zero key has the logit 0 and its share of the weights. */
static int block_head(const struct block *b, const struct block_room *r, int32_t head, float *to)
{
    const struct kvl_engine *e = b->e;
    size_t dim = (size_t)e->model->shape.head_dim, part = (size_t)b->n * dim;
    const struct kvl_weight keys = { .data = r->key,
                                     .type = KVL_W_F32,
                                     .n_rows = b->size,
                                     .n_cols = (int32_t)dim,
                                     .row_bytes = dim * sizeof(float) };
    KVL_TRY(b->o->dev->copy(r->padded, r->heads + (size_t)head * part, part * sizeof(float),
                            KVL_STREAM_MAIN));
    KVL_TRY(e->now->gemm(
        &(struct kvl_gemm_args){ .y = r->logits, .x = r->padded, .w = &keys, .n = b->size }));
    KVL_TRY(e->now->softmax(&(struct kvl_softmax_args){
        .x = r->logits, .stride = (size_t)b->size, .n_rows = b->size, .n = b->size }));
    KVL_TRY(e->now->group_reduce(&(struct kvl_group_reduce_args){ .y = r->sum,
                                                                  .x = r->logits,
                                                                  .x_stride = (size_t)b->size,
                                                                  .n = b->size,
                                                                  .n_heads = b->size,
                                                                  .n_kv_heads = 1,
                                                                  .reduce = KVL_REDUCE_SUM }));
    return b->o->dev->copy(to, r->sum, (size_t)b->n * sizeof *to, KVL_STREAM_MAIN);
}

/* Lanes are those of the layer; query head h's sums go to `to` + h * stride. */
static int block_sum(const struct block *b, const struct kvl_lane *lanes, float *to, size_t stride)
{
    const struct kvl_engine *e = b->e;
    const struct kvl_shape *sh = &e->model->shape;
    int32_t group = kvl_group(sh);
    size_t dim = (size_t)sh->head_dim;
    struct block_room r;
    KVL_TRY(block_room(b, &r));
    KVL_TRY(block_queries(b, r.rows));
    KVL_TRY(block_by_head(b, r.rows, r.heads));
    /* Zeroed once for all heads: each writes the same first n rows, and what follows them stays
     * zero. */
    KVL_TRY(block_zero(b, r.padded, (size_t)b->size * dim));
    KVL_TRY(block_zero(b, r.key, (size_t)b->size * dim));
    for (int32_t h = 0; h < sh->n_heads; h++) {
        /* Query heads of a group are neighbours and share the keys. */
        if (h % group == 0)
            KVL_TRY(e->now->lane_read(&(struct kvl_lane_read_args){ .out = r.key,
                                                                    .stride = dim,
                                                                    .lane = &lanes[h / group],
                                                                    .part = KVL_PART_K,
                                                                    .slot0 = b->first,
                                                                    .n = b->n }));
        KVL_TRY(block_head(b, &r, h, to + (size_t)h * stride));
    }
    return KVL_OK;
}

int kvl_observers_blocks(const struct kvl_engine *e, const struct kvl_observers *o, int32_t i,
                         int32_t layer, const float *q, int32_t n)
{
    struct blocks bs = blocks_of(o->set.column[i].param);
    int64_t from = KVL_MAX(0, o->n_seen - bs.first) / bs.size, end = o->n_seen + n;
    float *sum =
        o->columns[i].sum + (size_t)layer * (size_t)e->model->shape.n_heads * (size_t)o->n_tok;
    /* From the block on that the tokens before this chunk left open, to the last that it fills. */
    for (int64_t at = bs.first + from * bs.size; at + bs.size <= end; at += bs.size) {
        struct block b = { .e = e, .o = o, .layer = layer, .first = (int32_t)at, .q = q };
        b.n = b.size = bs.size;
        KVL_TRY(block_sum(&b, e->lanes, sum + at, (size_t)o->n_tok));
    }
    return KVL_OK;
}

int kvl_observed_blocks(struct kvl_session *s, int32_t i, int32_t layer, float *sums)
{
    struct kvl_engine *e = s->engine;
    const struct kvl_observers *o = s->obs;
    const struct kvl_shape *sh = &e->model->shape;
    struct blocks bs = blocks_of(o->set.column[i].param);
    size_t n = (size_t)o->n_tok, heads = (size_t)sh->n_heads;
    int32_t end = o->n_tok - bs.last, last = end - KVL_MAX(0, end - bs.first) % bs.size;
    float *kept = o->columns[i].sum + (size_t)layer * heads * n;
    KVL_TRY(kvl_engine_host(e, kept, heads * n * sizeof *kept, false));
    /* Tokens outside of all blocks, the first and the last, received nothing. */
    memset(sums, 0, heads * n * sizeof *sums);
    for (size_t h = 0; h < heads && last > bs.first; h++)
        memcpy(sums + h * n + bs.first, kept + h * n + bs.first,
               (size_t)(last - bs.first) * sizeof *sums);
    if (last >= end || last < bs.first) return KVL_OK;
    for (int32_t h = 0; h < sh->n_kv_heads; h++) e->lanes[h] = kvl_seq_lane(s->seq, layer, h);
    struct block b = { .e = e, .o = o, .layer = layer, .first = last, .size = bs.size };
    b.n = end - last;
    return block_sum(&b, e->lanes, sums + last, n);
}
