/* Products, biases and activations: what the parts of a layer are made of. */
#include "layer.h"

#include <assert.h>

int kvl_given(const struct kvl_forward *f, const char *op, int rc)
{
    f->e->pending = true;
    return kvl_engine_failed(f->e, op, rc, f->err);
}

/* To every row of x [f->n][n_x]; NULL: none. */
static int add_bias(const struct kvl_forward *f, float *x, const float *bias, int32_t n_x)
{
    size_t row = (size_t)n_x;
    if (!bias) return KVL_OK;
    return kvl_given(f, "bias",
                     f->e->ops->add(&(struct kvl_add_args){
                         .y = x, .x = bias, .n = (size_t)f->n * row, .n_x = row }));
}

int kvl_activation(const struct kvl_forward *f, float *y, const float *up, size_t n)
{
    return kvl_given(f, "activation",
                     f->e->ops->glu(&(struct kvl_glu_args){
                         .y = y, .gate = y, .up = up, .n = n, .act = f->e->model->w.arch->act }));
}

enum { MAX_PRODUCTS = 3 };

/* One team, or one kernel, for all of them: starting one costs as much as a small projection. */
static int linear_decode(const struct kvl_forward *f, const float *x, const struct kvl_product *p,
                         int32_t n)
{
    struct kvl_gemv_args v[MAX_PRODUCTS];
    for (int32_t i = 0; i < n; i++)
        v[i] = (struct kvl_gemv_args){ .y = p[i].y,
                                       .x = x,
                                       .w = p[i].w,
                                       .n = f->n,
                                       .next = i + 1 < n ? &v[i + 1] : NULL,
                                       .bias = p[i].bias,
                                       .up = p[i].up,
                                       .up_bias = p[i].up_bias,
                                       .act = f->e->model->w.arch->act,
                                       .add = p[i].add,
                                       .q8 = kvl_decodes_q8(f->e) };
    return kvl_given(f, "projection", f->e->ops->gemv(v));
}

static int linear_rows(const struct kvl_forward *f, float *y, const float *x,
                       const struct kvl_weight *w)
{
    int rc = f->e->ops->gemm(
        &(struct kvl_gemm_args){ .y = y,
                                 .x = x,
                                 .w = w,
                                 .n = f->n,
                                 .bf16 = kvl_prefills_bf16(f->e),
                                 .int16 = f->e->desc.prefill_type == KVL_PREFILL_F32,
                                 .blas = f->e->desc.prefill_type == KVL_PREFILL_BLAS });
    return kvl_given(f, "projection", rc);
}

/* A prefill multiplies tiles of rows and is bound by the product, so biases, gates and sums are
 * steps of their own; gemm writes and cannot add, hence `side`. */
static int linear_prefill(const struct kvl_forward *f, const float *x, const struct kvl_product *p)
{
    float *y = p->add ? p->side : p->y;
    size_t n = (size_t)f->n * (size_t)p->w->n_rows;
    KVL_TRY(linear_rows(f, y, x, p->w));
    KVL_TRY(add_bias(f, y, p->bias, p->w->n_rows));
    if (p->up) {
        /* Both would want `side`. */
        assert(!p->add);
        KVL_TRY(linear_rows(f, p->side, x, p->up));
        KVL_TRY(add_bias(f, p->side, p->up_bias, p->up->n_rows));
        KVL_TRY(kvl_activation(f, y, p->side, n));
    }
    if (!p->add) return KVL_OK;
    return kvl_given(f, "residual",
                     f->e->ops->add(&(struct kvl_add_args){ .y = p->y, .x = y, .n = n }));
}

int kvl_linear(const struct kvl_forward *f, const float *x, const struct kvl_product *p, int32_t n)
{
    assert(n <= MAX_PRODUCTS);
    if (f->mode == KVL_DECODE) return linear_decode(f, x, p, n);
    for (int32_t i = 0; i < n; i++) KVL_TRY(linear_prefill(f, x, &p[i]));
    return KVL_OK;
}
