/* What policies ask of the model and its text: queries, rotation, weights of a query, sizes, tokens. */
#include "policy_impl.h"

/* By the model's own frequencies for that layer and this length of sessions, whatever a method assumes of RoPE. */
int kvl_rotate(const struct kvl_pctx *ctx, int32_t layer, const float *x, int32_t n_heads,
               int32_t pos, float *y)
{
    const struct kvl_engine *e = ctx->host->session->engine;
    if (n_heads < 1 || pos < 0 || layer < 0 || layer >= ctx->shape->n_layers)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "%d vectors of layer %d turned to position %d, want 1 or more, "
                        "0 to %d, 0 or more",
                        n_heads, layer, pos, ctx->shape->n_layers - 1);
    return ctx->ops->rope(
        &(struct kvl_rope_args){ .y = y,
                                 .x = x,
                                 .pos = &pos,
                                 .rope = kvl_layer_rope(e, kvl_layer_of(ctx, layer)),
                                 .n = 1,
                                 .n_heads = n_heads,
                                 .head_dim = ctx->shape->head_dim });
}

/* In place, each vector at a position of its own: one head per row of the operator. */
int kvl_rotate_each(const struct kvl_pctx *ctx, int32_t layer, float *x, int32_t n,
                    const int32_t *pos)
{
    const struct kvl_engine *e = ctx->host->session->engine;
    if (n < 0 || layer < 0 || layer >= ctx->shape->n_layers)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "%d vectors of layer %d turned, want 0 or more, 0 to %d", n, layer,
                        ctx->shape->n_layers - 1);
    if (n == 0) return KVL_OK;
    return ctx->ops->rope(
        &(struct kvl_rope_args){ .y = x,
                                 .x = x,
                                 .pos = pos,
                                 .rope = kvl_layer_rope(e, kvl_layer_of(ctx, layer)),
                                 .n = n,
                                 .n_heads = 1,
                                 .head_dim = ctx->shape->head_dim });
}

/* As layer.c makes a query, with bias and norm. The weight is counted as read: that is what the guess costs. */
int kvl_project_query(const struct kvl_pctx *ctx, int32_t layer, const float *x, int32_t pos,
                      float *q)
{
    struct kvl_session *s = ctx->host->session;
    const struct kvl_engine *e = s->engine;
    if (layer < 0 || layer >= ctx->shape->n_layers)
        return kvl_fail(ctx->err, KVL_EPOLICY, "query of layer %d, want 0 to %d", layer,
                        ctx->shape->n_layers - 1);
    /* Often of a layer that is still to come: methods guess its query from this layer's input. */
    const struct kvl_layer_weights *y = &e->model->w.layer[kvl_layer_of(ctx, layer)];
    const struct kvl_weight *w = &y->attn_q;
    s->count.index_read_bytes += (int64_t)w->n_rows * (int64_t)w->row_bytes;
    KVL_TRY(ctx->ops->gemv(
        &(struct kvl_gemv_args){ .y = q, .x = x, .w = w, .n = 1, .q8 = kvl_decodes_q8(e) }));
    if (y->attn_q_bias)
        KVL_TRY(ctx->ops->add(
            &(struct kvl_add_args){ .y = q, .x = y->attn_q_bias, .n = (size_t)w->n_rows }));
    if (y->attn_q_norm)
        KVL_TRY(ctx->ops->rmsnorm(
            &(struct kvl_rmsnorm_args){ .y = q,
                                        .x = q,
                                        .w = y->attn_q_norm,
                                        .n = ctx->shape->n_heads,
                                        .dim = ctx->shape->head_dim,
                                        .eps = (float)e->model->w.hparams.norm_eps }));
    return kvl_rotate(ctx, layer, q, ctx->shape->n_heads, pos, q);
}

/* Key and value as they are stored, not as hooks see them. */
int32_t kvl_token_bytes(const struct kvl_pctx *ctx)
{
    return (int32_t)kvl_slot_bytes(ctx->host->session->engine);
}

/* Needs lanes in order: the weights are by slot, and the caller takes slots for positions. */
int kvl_attn_weights(const struct kvl_pctx *ctx, const struct kvl_step *step,
                     const struct kvl_query *q, float *probs, int32_t n)
{
    struct kvl_session *s = ctx->host->session;
    struct kvl_engine *e = s->engine;
    const struct kvl_shape *sh = ctx->shape;
    if (step->layer < 0 || step->layer >= sh->n_layers)
        return kvl_fail(ctx->err, KVL_EPOLICY, "attention weights of layer %d, want 0 to %d",
                        step->layer, sh->n_layers - 1);
    if (s->dead && s->count.n_evicted > 0)
        return kvl_fail(ctx->err, KVL_EINVAL,
                        "the mask oracle has no attention weights of evicted lanes");
    for (int32_t h = 0; h < sh->n_kv_heads; h++) {
        e->lanes[h] = kvl_seq_lane(s->seq, kvl_layer_of(ctx, step->layer), h);
        /* All lanes alike, since one operator call writes all heads into rows of n. */
        if (n != e->lanes[h].n_slots || !e->lanes[h].sorted)
            return kvl_fail(ctx->err, KVL_EPOLICY,
                            "attention weights of %d tokens, lane (%d, %d) holds %d in order", n,
                            step->layer, h, e->lanes[h].n_slots);
    }
    for (int32_t h = 0; h < sh->n_kv_heads; h++)
        s->count.index_read_bytes += (int64_t)kvl_lane_bytes(&e->lanes[h], KVL_PART_K, 0, n);
    return kvl_lane_probs(e, ctx->ops, kvl_layer_of(ctx, step->layer), q->q, probs, n);
}

/* A policy that looks at the text says so in its capabilities, and with it in its card. */
static int tokens_check(const struct kvl_pctx *ctx)
{
    const struct kvl_policy *p = ctx->host->session->planned->policy;
    if (p->caps & KVL_CAP_TOKENS) return KVL_OK;
    return kvl_fail(ctx->err, KVL_EPOLICY, "%s asks for tokens without KVL_CAP_TOKENS", p->name);
}

int kvl_tokens(const struct kvl_pctx *ctx, const int32_t **id, int32_t *n)
{
    const struct kvl_session *s = ctx->host->session;
    KVL_TRY(tokens_check(ctx));
    *id = s->id;
    /* Not n_pos: ids of the whole running call are noted already, and a row must not see those
     * after its own. */
    *n = ctx->host->n_visible;
    return KVL_OK;
}

/* No error to give back: a policy without the capability sees tokens of no class. */
uint32_t kvl_token_class(const struct kvl_pctx *ctx, int32_t id)
{
    const struct kvl_tokenizer *t = ctx->host->session->engine->model->tokenizer;
    if (tokens_check(ctx) != KVL_OK) return 0;
    return (kvl_tokenizer_special(t, id) ? KVL_TOKEN_SPECIAL : 0u) |
           (kvl_tokenizer_punct(t, id) ? KVL_TOKEN_PUNCT : 0u);
}
