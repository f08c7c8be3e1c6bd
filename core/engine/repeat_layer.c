/* A layer of a repetition: the largest weights that its tokens put on the chunk. */
#include "repeat.h"

#include <math.h>

enum { REPEAT_SINK = 4 }; /* first keys that every chunk's queries see */

const enum kvl_observer kvl_repeat_kind[KVL_REPEAT_KINDS] = { KVL_OBS_REPLAY, KVL_OBS_REPLAY_PLUS,
                                                              KVL_OBS_REREAD };

/* Logarithms of the norms of what enters the layer. */
static int repeat_bias(struct kvl_engine *e, int32_t first, int32_t n, const float **out)
{
    const size_t n_embd = (size_t)e->model->shape.n_embd;
    float *norm = kvl_arena_get(&e->step, (size_t)n, sizeof *norm);
    if (!norm) return KVL_ENOMEM;
    KVL_TRY(e->now->row_norms(&(struct kvl_row_norms_args){ .y = norm,
                                                            .x = e->xn + (size_t)first * n_embd,
                                                            .n = n,
                                                            .dim = (int32_t)n_embd,
                                                            .norm = 2 }));
    for (int32_t i = 0; i < n; i++) norm[i] = logf(norm[i]);
    *out = norm;
    return KVL_OK;
}

/* The repeated tokens' own keys lie after those of the context, from slot n_ctx on.  Peaks are kept of the chunk that is
 * repeated, but the softmax that they are weights of also runs over the first tokens, the repeated ones and the model's
 * sinks: `sink`, `own` and `rest`. */
int kvl_repeat_layer(struct kvl_repeat *r, const struct kvl_session *s, int32_t layer,
                     int32_t first, int32_t n)
{
    struct kvl_engine *e = r->e;
    const struct kvl_shape *sh = &e->model->shape;
    const size_t q = (size_t)first * (size_t)sh->n_heads * (size_t)sh->head_dim;
    size_t at = (size_t)layer * (size_t)sh->n_heads * (size_t)(r->last - r->first);
    for (int32_t h = 0; h < sh->n_kv_heads; h++) e->lanes[h] = kvl_seq_lane(s->seq, layer, h);
    KVL_TRY(kvl_step_reset(e, NULL));
    for (int kind = 0; kind < KVL_REPEAT_KINDS; kind++) {
        const float *bias = NULL;
        if (!r->peak[kind]) continue;
        if (kvl_repeat_kind[kind] == KVL_OBS_REPLAY_PLUS) KVL_TRY(repeat_bias(e, first, n, &bias));
        KVL_TRY(
            e->ops->attn_peaks(&(struct kvl_attn_peaks_args){ .peak = r->peak[kind] + at,
                                                              .q = e->q + q,
                                                              .bias = bias,
                                                              .rest = kvl_layer_sinks(e, layer),
                                                              .lanes = e->lanes,
                                                              .sink = KVL_MIN(REPEAT_SINK, r->last),
                                                              .first = r->first,
                                                              .last = r->last,
                                                              .own = r->n_ctx,
                                                              .n = n,
                                                              .n_heads = sh->n_heads,
                                                              .n_kv_heads = sh->n_kv_heads,
                                                              .head_dim = sh->head_dim,
                                                              .scale = e->scale,
                                                              .cap = e->cap }));
    }
    return KVL_OK;
}
