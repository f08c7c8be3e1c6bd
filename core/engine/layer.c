/* The arithmetic of a layer but its attention: embedding, projections, MLP, logits.  What a model has and what it
 * lacks is in its weights. */
#include "layer.h"

int kvl_given(const struct kvl_forward *f, const char *op, int rc)
{
    f->e->pending = true;
    return kvl_engine_failed(f->e, op, rc, f->err);
}

/* A projection of x, and others of the same x after it. */
struct product {
    float *y;
    const struct kvl_weight *w;
};

enum { MAX_PRODUCTS = 3 };

/* Decode starts one team for all of them: starting one costs as much as a small projection. */
static int linear_all(const struct kvl_forward *f, const float *x, const struct product *p,
                      int32_t n)
{
    const struct kvl_ops *ops = f->e->ops;
    struct kvl_gemv_args v[MAX_PRODUCTS];
    int rc = KVL_OK;
    for (int32_t i = 0; i < n && f->mode == KVL_DECODE; i++)
        v[i] = (struct kvl_gemv_args){
            .y = p[i].y, .x = x, .w = p[i].w, .n = f->n, .next = i + 1 < n ? &v[i + 1] : NULL
        };
    if (f->mode == KVL_DECODE) rc = ops->gemv(v);
    for (int32_t i = 0; i < n && f->mode != KVL_DECODE && rc == KVL_OK; i++)
        rc = ops->gemm(
            &(struct kvl_gemm_args){ .y = p[i].y,
                                     .x = x,
                                     .w = p[i].w,
                                     .n = f->n,
                                     .bf16 = kvl_prefills_bf16(f->e),
                                     .blas = f->e->desc.prefill_type == KVL_PREFILL_BLAS });
    return kvl_given(f, "projection", rc);
}

static int linear(const struct kvl_forward *f, float *y, const float *x, const struct kvl_weight *w)
{
    return linear_all(f, x, &(struct product){ y, w }, 1);
}

/* Rows x [n][dim]. */
static int norm_rows(const struct kvl_forward *f, float *y, const float *x, const float *w,
                     int32_t n, int32_t dim)
{
    float eps = (float)f->e->model->w.hparams.rms_eps;
    return kvl_given(f, "norm",
                     f->e->ops->rmsnorm(&(struct kvl_rmsnorm_args){
                         .y = y, .x = x, .w = w, .n = n, .dim = dim, .eps = eps }));
}

static int norm(const struct kvl_forward *f, float *y, const float *x, const float *w, int32_t n)
{
    return norm_rows(f, y, x, w, n, f->e->model->shape.n_embd);
}

/* Every head of x, in place, if heads are normed at all. */
static int norm_heads(const struct kvl_forward *f, float *x, const float *w, int32_t n_heads)
{
    return w ? norm_rows(f, x, x, w, f->n * n_heads, f->e->model->shape.head_dim) : KVL_OK;
}

static int rotate(const struct kvl_forward *f, const struct kvl_rope *rope, float *y,
                  const float *x, int32_t n_heads)
{
    const struct kvl_model *m = f->e->model;
    return kvl_given(f, "rope",
                     f->e->ops->rope(&(struct kvl_rope_args){ .y = y,
                                                              .x = x,
                                                              .pos = f->e->pos,
                                                              .rope = rope,
                                                              .n = f->n,
                                                              .n_heads = n_heads,
                                                              .head_dim = m->shape.head_dim }));
}

static int residual(const struct kvl_forward *f)
{
    size_t n = (size_t)f->n * (size_t)f->e->model->shape.n_embd;
    return kvl_given(
        f, "residual",
        f->e->ops->add(&(struct kvl_add_args){ .y = f->e->x, .x = f->e->tmp, .n = n }));
}

/* To every row of x [n][n_x], if there is a bias at all. */
static int add_bias(const struct kvl_forward *f, float *x, const float *bias, int32_t n_x)
{
    size_t row = (size_t)n_x;
    if (!bias) return KVL_OK;
    return kvl_given(f, "bias",
                     f->e->ops->add(&(struct kvl_add_args){
                         .y = x, .x = bias, .n = (size_t)f->n * row, .n_x = row }));
}

int kvl_layer_project(const struct kvl_forward *f, const struct kvl_layer_weights *w)
{
    struct kvl_engine *e = f->e;
    const struct kvl_shape *sh = &e->model->shape;
    int32_t n_q = sh->n_heads * sh->head_dim, n_kv = sh->n_kv_heads * sh->head_dim;
    KVL_TRY(norm(f, e->xn, e->x, w->attn_norm, f->n));
    const struct product qkv[] = { { e->q_raw, &w->attn_q },
                                   { e->k_raw, &w->attn_k },
                                   { e->v, &w->attn_v } };
    KVL_TRY(linear_all(f, e->xn, qkv, 3));
    KVL_TRY(add_bias(f, e->q_raw, w->attn_q_bias, n_q));
    KVL_TRY(add_bias(f, e->k_raw, w->attn_k_bias, n_kv));
    KVL_TRY(add_bias(f, e->v, w->attn_v_bias, n_kv));
    KVL_TRY(norm_heads(f, e->q_raw, w->attn_q_norm, sh->n_heads));
    KVL_TRY(norm_heads(f, e->k_raw, w->attn_k_norm, sh->n_kv_heads));
    KVL_TRY(rotate(f, w->rope, e->q, e->q_raw, sh->n_heads));
    return rotate(f, w->rope, e->k, e->k_raw, sh->n_kv_heads);
}

static int layer_mlp(const struct kvl_forward *f, const struct kvl_layer_weights *w)
{
    struct kvl_engine *e = f->e;
    int32_t n_embd = e->model->shape.n_embd, n_ff = e->model->w.hparams.n_ff;
    KVL_TRY(norm(f, e->xn, e->x, w->ffn_norm, f->n));
    const struct product wide[] = { { e->gate, &w->ffn_gate }, { e->up, &w->ffn_up } };
    KVL_TRY(linear_all(f, e->xn, wide, 2));
    KVL_TRY(add_bias(f, e->gate, w->ffn_gate_bias, n_ff));
    KVL_TRY(add_bias(f, e->up, w->ffn_up_bias, n_ff));
    size_t n = (size_t)f->n * (size_t)n_ff;
    KVL_TRY(kvl_given(f, "swiglu",
                      e->ops->swiglu(&(struct kvl_swiglu_args){
                          .y = e->gate, .gate = e->gate, .up = e->up, .n = n })));
    KVL_TRY(linear(f, e->tmp, e->gate, &w->ffn_down));
    return add_bias(f, e->tmp, w->ffn_down_bias, n_embd);
}

int kvl_layer_finish(const struct kvl_forward *f, const struct kvl_layer_weights *w)
{
    KVL_TRY(linear(f, f->e->tmp, f->e->att, &w->attn_output));
    KVL_TRY(add_bias(f, f->e->tmp, w->attn_output_bias, f->e->model->shape.n_embd));
    KVL_TRY(residual(f));
    KVL_TRY(layer_mlp(f, w));
    return residual(f);
}

int kvl_layer_logits(const struct kvl_forward *f, int32_t n, float *out)
{
    struct kvl_engine *e = f->e;
    size_t at = (size_t)(f->n - n) * (size_t)e->model->shape.n_embd;
    struct kvl_forward tail = *f;
    tail.n = n;
    KVL_TRY(norm(f, e->xn, e->x + at, e->model->w.output_norm, n));
    KVL_TRY(linear(&tail, out, e->xn, &e->model->w.output));
    return kvl_engine_wait(e, f->err);
}

int kvl_forward_embed(const struct kvl_forward *f)
{
    struct kvl_engine *e = f->e;
    return kvl_given(f, "embedding",
                     e->ops->embed(&(struct kvl_embed_args){
                         .y = e->x, .w = &e->model->w.embed, .id = e->id, .n = f->n }));
}
