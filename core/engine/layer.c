/* The arithmetic of a layer but its attention: embedding, projections, MLP, logits.  What a model has and what it
 * lacks is in its weights. */
#include "layer.h"

/* Rows x [n][dim]. */
static int norm_rows(const struct kvl_forward *f, float *y, const float *x, const float *w,
                     int32_t n, int32_t dim)
{
    float eps = (float)f->e->model->w.hparams.norm_eps;
    return kvl_given(f, "norm",
                     f->e->ops->rmsnorm(&(struct kvl_rmsnorm_args){
                         .y = y, .x = x, .w = w, .n = n, .dim = dim, .eps = eps }));
}

/* The norm before a part or before the logits, as the model has it: with a bias it is a layer norm. */
static int norm(const struct kvl_forward *f, float *y, const float *x, const float *w,
                const float *bias, int32_t n)
{
    int32_t dim = f->e->model->shape.n_embd;
    float eps = (float)f->e->model->w.hparams.norm_eps;
    if (!bias) return norm_rows(f, y, x, w, n, dim);
    return kvl_given(f, "norm",
                     f->e->ops->layernorm(&(struct kvl_layernorm_args){
                         .y = y, .x = x, .w = w, .b = bias, .n = n, .dim = dim, .eps = eps }));
}

/* What a part is about to add, if the model norms that at all. */
static int post_norm(const struct kvl_forward *f, float *x, const float *w)
{
    return w ? norm_rows(f, x, x, w, f->n, f->e->model->shape.n_embd) : KVL_OK;
}

/* Every head of x, in place, if heads are normed at all. */
static int norm_heads(const struct kvl_forward *f, float *x, const float *w, int32_t n_heads)
{
    return w ? norm_rows(f, x, x, w, f->n * n_heads, f->e->model->shape.head_dim) : KVL_OK;
}

/* Queries and keys in one call, keys after queries: on a GPU one kernel.  The raw ones stay, for methods that change
 * positions. */
static int rotate(const struct kvl_forward *f, const struct kvl_rope *rope)
{
    const struct kvl_engine *e = f->e;
    struct kvl_rope_args k = { .y = e->k,
                               .x = e->k_raw,
                               .pos = e->given + f->n,
                               .rope = rope,
                               .n = f->n,
                               .n_heads = e->model->shape.n_kv_heads,
                               .head_dim = e->model->shape.head_dim };
    struct kvl_rope_args q = k;
    q.y = e->q;
    q.x = e->q_raw;
    q.n_heads = e->model->shape.n_heads;
    q.next = &k;
    return kvl_given(f, "rope", e->ops->rope(&q));
}

/* Where a product cannot add to x itself. */
static int residual(const struct kvl_forward *f, const float *part)
{
    size_t n = (size_t)f->n * (size_t)f->e->model->shape.n_embd;
    return kvl_given(f, "residual",
                     f->e->ops->add(&(struct kvl_add_args){ .y = f->e->x, .x = part, .n = n }));
}

/* Three products of one input in one call; biases go along. */
int kvl_layer_project(const struct kvl_forward *f, int32_t layer)
{
    const struct kvl_layer_weights *w = &f->e->model->w.layer[layer];
    const struct kvl_rope *rope = kvl_layer_rope(f->e, layer);
    struct kvl_engine *e = f->e;
    const struct kvl_shape *sh = &e->model->shape;
    KVL_TRY(norm(f, e->xn, e->x, w->attn_norm, w->attn_norm_bias, f->n));
    const struct kvl_product qkv[] = { { e->q_raw, &w->attn_q, .bias = w->attn_q_bias },
                                       { e->k_raw, &w->attn_k, .bias = w->attn_k_bias },
                                       { e->v, &w->attn_v, .bias = w->attn_v_bias } };
    KVL_TRY(kvl_linear(f, e->xn, qkv, 3));
    KVL_TRY(norm_heads(f, e->q_raw, w->attn_q_norm, sh->n_heads));
    KVL_TRY(norm_heads(f, e->k_raw, w->attn_k_norm, sh->n_kv_heads));
    return rotate(f, rope);
}

/* The MLP of e->xn, to y, which e->xn may be, or added to e->x where y is NULL.  Without a gate the one branch takes
 * its place. */
static int layer_mlp(const struct kvl_forward *f, const struct kvl_layer_weights *w, float *y)
{
    struct kvl_engine *e = f->e;
    size_t n = (size_t)f->n * (size_t)e->model->w.hparams.n_ff;
    bool gated = w->ffn_gate.data;
    const struct kvl_product wide = { .y = e->gate,
                                      .w = gated ? &w->ffn_gate : &w->ffn_up,
                                      .bias = gated ? w->ffn_gate_bias : w->ffn_up_bias,
                                      .up = gated ? &w->ffn_up : NULL,
                                      .up_bias = gated ? w->ffn_up_bias : NULL,
                                      .side = e->up };
    const struct kvl_product down = {
        .y = y ? y : e->x, .w = &w->ffn_down, .bias = w->ffn_down_bias, .add = !y, .side = e->tmp
    };
    KVL_TRY(kvl_linear(f, e->xn, &wide, 1));
    if (!gated) KVL_TRY(kvl_activation(f, e->gate, NULL, n));
    return kvl_linear(f, e->gate, &down, 1);
}

/* One after the other, or both of the same input.  What nothing comes between adds itself to e->x at once. */
int kvl_layer_finish(const struct kvl_forward *f, const struct kvl_layer_weights *w)
{
    struct kvl_engine *e = f->e;
    bool parallel = e->model->w.parallel, direct = !parallel && !w->attn_post_norm;
    bool mlp_direct = !parallel && !w->ffn_post_norm && !w->router.data;
    float *mlp = parallel ? e->xn : e->tmp;
    const struct kvl_product out = { .y = direct ? e->x : e->tmp,
                                     .w = &w->attn_output,
                                     .bias = w->attn_output_bias,
                                     .add = direct,
                                     .side = e->tmp };
    KVL_TRY(kvl_linear(f, e->att, &out, 1));
    KVL_TRY(post_norm(f, e->tmp, w->attn_post_norm));
    if (!parallel && !direct) KVL_TRY(residual(f, e->tmp));
    KVL_TRY(norm(f, e->xn, e->x, w->ffn_norm, w->ffn_norm_bias, f->n));
    if (parallel) KVL_TRY(residual(f, e->tmp));
    if (mlp_direct) return layer_mlp(f, w, NULL);
    KVL_TRY(w->router.data ? kvl_layer_experts(f, w, mlp) : layer_mlp(f, w, mlp));
    KVL_TRY(post_norm(f, mlp, w->ffn_post_norm));
    return residual(f, mlp);
}

/* x = factor x, softly limited to cap, unless that changes nothing. */
static int scale(const struct kvl_forward *f, float *x, size_t n, float factor, float cap)
{
    bool neutral = !(factor < 1 || factor > 1) && !(cap > 0);
    if (neutral) return KVL_OK;
    return kvl_given(
        f, "scale",
        f->e->ops->scale(&(struct kvl_scale_args){ .y = x, .n = n, .factor = factor, .cap = cap }));
}

/* Only the last n rows are normed and multiplied: a decode step wants all of its rows, a prefill its last one.  e->xn
 * is free for them, since no hook runs after the last layer. */
int kvl_layer_logits(const struct kvl_forward *f, int32_t n, float *out)
{
    struct kvl_engine *e = f->e;
    const struct kvl_weights *w = &e->model->w;
    size_t at = (size_t)(f->n - n) * (size_t)e->model->shape.n_embd;
    struct kvl_forward tail = *f;
    tail.n = n;
    KVL_TRY(norm(f, e->xn, e->x + at, w->output_norm, w->output_norm_bias, n));
    KVL_TRY(kvl_linear(&tail, e->xn, &(struct kvl_product){ .y = out, .w = &w->output }, 1));
    KVL_TRY(scale(f, out, (size_t)n * (size_t)w->hparams.n_vocab, 1, w->final_cap));
    return kvl_engine_failed(e, "waiting for the device", kvl_engine_rest(e), f->err);
}

/* What a position is by itself, where the model learned that. */
static int embed_positions(const struct kvl_forward *f)
{
    struct kvl_engine *e = f->e;
    const struct kvl_weight *w = &e->model->w.positions;
    if (!w->data) return KVL_OK;
    KVL_TRY(kvl_given(f, "embedding",
                      e->ops->embed(&(struct kvl_embed_args){
                          .y = e->tmp, .w = w, .id = e->given + f->n, .n = f->n })));
    return residual(f, e->tmp);
}

/* Scaled where the model says so (Gemma), then with learned positions where it has these (GPT-2). */
int kvl_forward_embed(const struct kvl_forward *f)
{
    struct kvl_engine *e = f->e;
    const struct kvl_weights *w = &e->model->w;
    size_t n = (size_t)f->n * (size_t)w->hparams.n_embd;
    KVL_TRY(kvl_given(f, "embedding",
                      e->ops->embed(&(struct kvl_embed_args){
                          .y = e->x, .w = &w->embed, .id = e->given, .n = f->n })));
    KVL_TRY(scale(f, e->x, n, w->embed_scale, 0));
    return embed_positions(f);
}
