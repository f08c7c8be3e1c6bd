/* Layers of a window, and attention sinks: what a model does by itself, beside any policy.
 *
 * A layer of a window keeps the blocks that hold its newest tokens.  A prefill frees older ones in multiples of
 * the tiles of attention, so that a row's bits do not depend on the chunks that came before.
 *
 * A sink is a logit without a key: one more part of the merge, whose output is zero. */
#include "local.h"

#include <math.h>

void kvl_local_forget(struct kvl_session *s, int32_t layer, int32_t n_pos, bool more)
{
    const struct kvl_engine *e = s->engine;
    int32_t window = kvl_window_of(e, layer), unit = kvl_store_desc(e->store)->block_tok;
    if (window == 0) return;
    if (more) unit = KVL_MAX(unit, KVL_LOCAL_TILE);
    kvl_seq_forget(s->seq, layer, n_pos - window + 1, unit);
}

/* A sink is a logit without a value: a segment whose log-sum-exp is that logit and whose output is nothing.  Layers
 * without one have minus infinity, which no merge notices, so that all layers take the same way. */
int kvl_sinks_create(struct kvl_engine *e, struct kvl_err *err)
{
    const struct kvl_shape *sh = &e->model->shape;
    size_t heads = (size_t)sh->n_heads, floats = heads * (size_t)sh->head_dim;
    bool any = false;
    for (int32_t l = 0; l < sh->n_layers; l++) any |= e->model->w.layer[l].attn_sinks != NULL;
    if (!any) return KVL_OK;
    e->sinks = e->dev->alloc(KVL_PLACE_TABLE, (size_t)sh->n_layers * heads, sizeof *e->sinks);
    e->nothing = e->dev->alloc(KVL_PLACE_TABLE, floats, sizeof *e->nothing);
    if (!e->sinks || !e->nothing) return kvl_fail(err, KVL_ENOMEM, "out of memory for sinks");
    int rc = kvl_engine_host(e, e->sinks, (size_t)sh->n_layers * heads * sizeof *e->sinks, true);
    KVL_TRY(kvl_engine_failed(e, "sinks", rc, err));
    for (int32_t l = 0; l < sh->n_layers; l++)
        for (size_t h = 0; h < heads; h++) {
            const float *sink = e->model->w.layer[l].attn_sinks;
            e->sinks[(size_t)l * heads + h] = sink ? sink[h] : -INFINITY;
        }
    return KVL_OK;
}

int kvl_sinks_merge(struct kvl_engine *e, const struct kvl_sunk *k, int32_t layer, int32_t n)
{
    const struct kvl_shape *sh = &e->model->shape;
    size_t heads = (size_t)sh->n_heads, row = heads * (size_t)sh->head_dim;
    struct kvl_attn_merge_args *m = kvl_arena_get(&e->step, (size_t)n, sizeof *m);
    const float **part = kvl_arena_get(&e->step, 4 * (size_t)n, sizeof *part);
    if (!m || !part) return KVL_ENOMEM;
    for (size_t i = 0; i < (size_t)n; i++, part += 4) {
        part[0] = k->part + i * row;
        part[1] = e->nothing;
        part[2] = k->part_lse + i * heads;
        part[3] = e->sinks + (size_t)layer * heads;
        m[i] = (struct kvl_attn_merge_args){ .out = k->out + i * row,
                                             .lse = k->lse + i * heads,
                                             .part = part,
                                             .part_lse = part + 2,
                                             .n_parts = 2,
                                             .n_heads = sh->n_heads,
                                             .head_dim = sh->head_dim,
                                             .next = i + 1 < (size_t)n ? &m[i + 1] : NULL };
    }
    return e->ops->attn_merge(m);
}
