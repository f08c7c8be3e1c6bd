/* Attention of a prefill: what a chunk appends to a layer and reads of it.
 *
 * Where the store's type seals, the first token of a block seals another one, and none of a chunk may read sealed what
 * it would have read in 16 bits alone: the lengths of chunks would change what is read.  So a chunk, whose projections
 * want many rows, is cut here at the ends of blocks: a piece is appended, attended and observed before the next. */
#include "forward.h"

#include "layer.h"
#include "local.h"
#include "prefill_mask.h"

/* Tokens first .. first + n - 1 of the chunk. */
struct piece {
    int32_t first, n;
};

/* A store that has no way of its own to a device's memory reads the rows itself. */
int kvl_append_rows(const struct kvl_forward *f, struct kvl_session *s, int32_t layer, int32_t i,
                    int32_t n)
{
    struct kvl_engine *e = f->e;
    const struct kvl_shape *sh = &e->model->shape;
    size_t at = (size_t)i * (size_t)sh->n_kv_heads * (size_t)sh->head_dim;
    if (!e->dev->kv_put) KVL_TRY(kvl_engine_wait(e, f->err));
    KVL_TRY(kvl_seq_append(s->seq, layer, n, e->pos + i, e->k + at,
                           e->desc.raw_keys ? e->k_raw + at : NULL, e->v + at, f->err));
    e->pending = true;
    return KVL_OK;
}

/* Where the queries of a piece begin, and its results. */
static size_t piece_at(const struct kvl_forward *f, struct piece p)
{
    const struct kvl_shape *sh = &f->e->model->shape;
    return (size_t)p.first * (size_t)sh->n_heads * (size_t)sh->head_dim;
}

/* The piece's attention: e->att, and lse [n][n_heads] or NULL.  With sinks the result is merged with one more segment,
 * which has no value; the log-sum-exp that observers get is that of the merge. */
static int piece_rows(const struct kvl_forward *f, int32_t layer, struct piece p, float *lse)
{
    struct kvl_engine *e = f->e;
    const struct kvl_shape *sh = &e->model->shape;
    size_t heads = (size_t)p.n * (size_t)sh->n_heads;
    float *out = e->att + piece_at(f, p);
    struct kvl_attn_prefill_args a = { .out = out,
                                       .lse = lse,
                                       .q = e->q + piece_at(f, p),
                                       .lanes = e->lanes,
                                       .n = p.n,
                                       .n_heads = sh->n_heads,
                                       .n_kv_heads = sh->n_kv_heads,
                                       .head_dim = sh->head_dim,
                                       .scale = e->scale,
                                       .cap = e->cap,
                                       .window = kvl_window_of(e, layer),
                                       .bf16 = kvl_prefills_bf16(e) };
    if (!e->sinks) return e->ops->attn_prefill(&a);
    float *part = kvl_arena_get(&e->results, heads * (size_t)sh->head_dim, sizeof *part);
    float *part_lse = kvl_arena_get(&e->results, heads, sizeof *part_lse);
    if (!part || !part_lse) return KVL_ENOMEM;
    a.out = part;
    a.lse = part_lse;
    KVL_TRY(e->ops->attn_prefill(&a));
    const struct kvl_sunk sunk = { .out = out, .lse = lse, .part = part, .part_lse = part_lse };
    return kvl_sinks_merge(e, &sunk, layer, p.n);
}

/* What the observers keep of a layer that a policy sees.  kvl_observers_add comes last: in the last layer it moves
 * n_seen on, from which the others count. */
static int piece_observe(const struct kvl_forward *f, int32_t layer, struct piece p,
                         const float *lse)
{
    struct kvl_engine *e = f->e;
    struct kvl_session *s = e->row[0].s;
    const float *q = e->q + piece_at(f, p), *q_raw = e->q_raw + piece_at(f, p);
    if (s->repeat)
        return kvl_given(f, "repetition", kvl_repeat_layer(s->repeat, s, layer, p.first, p.n));
    if (!s->obs) return KVL_OK;
    /* In the last layer the pieces before have moved it on already. */
    int32_t ahead = layer == e->model->shape.n_layers - 1 ? 0 : p.first;
    s->obs->n_seen += ahead;
    KVL_TRY(kvl_given(f, "moments", kvl_observers_moments(e, s->obs, layer, q_raw, p.n)));
    KVL_TRY(kvl_given(f, "column sums", kvl_observers_sum(e, s->obs, layer, q, lse, p.n)));
    KVL_TRY(kvl_observers_inputs(s, layer, p.first, p.n, f->err));
    KVL_TRY(kvl_given(f, "observers", kvl_observers_add(e, s->obs, layer, q, lse, p.n)));
    s->obs->n_seen -= ahead;
    return KVL_OK;
}

/* Layers of a window forget as they go, so that a long context never lies in them whole. */
static int piece_attend(const struct kvl_forward *f, int32_t layer, struct piece p)
{
    struct kvl_engine *e = f->e;
    struct kvl_session *s = e->row[0].s;
    const struct kvl_shape *sh = &e->model->shape;
    for (int32_t h = 0; h < sh->n_kv_heads; h++) e->lanes[h] = kvl_seq_lane(s->seq, layer, h);
    float *lse = NULL;
    if (s->obs || e->sinks) {
        KVL_TRY(kvl_step_reset(e, f->err));
        lse = kvl_arena_get(&e->results, (size_t)p.n * (size_t)sh->n_heads, sizeof *lse);
        if (!lse) return kvl_fail(f->err, KVL_ENOMEM, "out of memory for attention");
    }
    KVL_TRY(kvl_given(f, "prefill attention", piece_rows(f, layer, p, lse)));
    if (kvl_window_of(e, layer) == 0) return piece_observe(f, layer, p, lse);
    kvl_local_forget(s, layer, e->pos[p.first + p.n - 1] + 1, true);
    kvl_observers_pass(s, layer, p.n);
    return KVL_OK;
}

/* A session under a policy is here only if the policy masks its own prefill, which is refused where a type seals. */
int kvl_attend_prefill(const struct kvl_forward *f, int32_t layer)
{
    struct kvl_engine *e = f->e;
    struct kvl_session *s = e->row[0].s;
    const struct kvl_store_desc *d = kvl_store_desc(e->store);
    const bool seals = kvl_kv_seals(d->type);
    for (struct piece p = { 0 }; p.first < f->n; p.first += p.n) {
        p.n = f->n - p.first;
        if (seals) p.n = KVL_MIN(p.n, d->block_tok - e->pos[p.first] % d->block_tok);
        KVL_TRY(kvl_append_rows(f, s, layer, p.first, p.n));
        if (s->planned && kvl_window_of(e, layer) == 0) return kvl_prefill_masked(f, layer);
        KVL_TRY(piece_attend(f, layer, p));
    }
    return KVL_OK;
}
