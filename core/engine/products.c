/* Products, biases and activations: what the parts of a layer are made of. */
#include "layer.h"

int kvl_given(const struct kvl_forward *f, const char *op, int rc)
{
    f->e->pending = true;
    return kvl_engine_failed(f->e, op, rc, f->err);
}

enum { MAX_PRODUCTS = 3 };

/* Decode starts one team for all of them: starting one costs as much as a small projection. */
int kvl_linear(const struct kvl_forward *f, const float *x, const struct kvl_product *p, int32_t n)
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

int kvl_add_bias(const struct kvl_forward *f, float *x, const float *bias, int32_t n_x)
{
    size_t row = (size_t)n_x;
    if (!bias) return KVL_OK;
    return kvl_given(f, "bias",
                     f->e->ops->add(&(struct kvl_add_args){
                         .y = x, .x = bias, .n = (size_t)f->n * row, .n_x = row }));
}

int kvl_activation(const struct kvl_forward *f, bool gated, size_t n)
{
    struct kvl_engine *e = f->e;
    return kvl_given(f, "activation",
                     e->ops->glu(&(struct kvl_glu_args){ .y = e->gate,
                                                         .gate = e->gate,
                                                         .up = gated ? e->up : NULL,
                                                         .n = n,
                                                         .act = e->model->w.arch->act }));
}
