/* layer.h - what a layer computes around its attention, on the rows of a call (layer.c). */
#ifndef KVL_LAYER_H
#define KVL_LAYER_H

#include "forward.h"

/* Something was given to the device under this name. */
int kvl_given(const struct kvl_forward *f, const char *op, int rc);

/* Queries, keys and values of e->x: q_raw, k_raw before they turn, q, k, v; e->xn. */
int kvl_layer_project(const struct kvl_forward *f, const struct kvl_layer_weights *w);
/* What e->att and the MLP add to e->x. */
int kvl_layer_finish(const struct kvl_forward *f, const struct kvl_layer_weights *w);
/* Logits of the last n rows, waited for: out [n][n_vocab]. */
int kvl_layer_logits(const struct kvl_forward *f, int32_t n, float *out);

#endif
