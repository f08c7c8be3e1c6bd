/* layer.h - what a layer computes around its attention, on the rows of a call (layer.c), and what that is made of
 * (products.c). */
#ifndef KVL_LAYER_H
#define KVL_LAYER_H

#include "forward.h"

/* Something was given to the device under this name. */
int kvl_given(const struct kvl_forward *f, const char *op, int rc);

/* A projection of x with what is made of it, as struct kvl_gemv_args has it. */
struct kvl_product {
    float *y;
    const struct kvl_weight *w;
    const float *bias; /* NULL: none */
    const struct kvl_weight
        *up; /* NULL, or y = the model's activation of it, times the product of this one */
    const float *up_bias;
    bool add;    /* y += it */
    float *side; /* with `up` or `add`: [n][w->n_rows] of room */
};
/* Several of the same x. */
int kvl_linear(const struct kvl_forward *f, const float *x, const struct kvl_product *p, int32_t n);
/* y [n] = the model's activation of it, times `up` where there is one. */
int kvl_activation(const struct kvl_forward *f, float *y, const float *up, size_t n);
/* y = the chosen experts of e->xn, weighted (experts.c). */
int kvl_layer_experts(const struct kvl_forward *f, const struct kvl_layer_weights *w, float *y);

/* Queries, keys and values of e->x: q_raw, k_raw before they turn, q, k, v; e->xn. */
int kvl_layer_project(const struct kvl_forward *f, int32_t layer);
/* What e->att and the MLP add to e->x. */
int kvl_layer_finish(const struct kvl_forward *f, const struct kvl_layer_weights *w);
/* Logits of the last n rows, waited for: out [n][n_vocab]. */
int kvl_layer_logits(const struct kvl_forward *f, int32_t n, float *out);

#endif
