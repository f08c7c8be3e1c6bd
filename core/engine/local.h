/* local.h - layers of a window and attention sinks; see local.c. */
#ifndef KVL_LOCAL_H
#define KVL_LOCAL_H

#include "engine_impl.h"

enum { KVL_LOCAL_TILE = 128 }; /* slots: a multiple of every tile of attn_prefill */

/* A layer holds positions below n_pos: what the next token does not read of a layer of a window is freed; `more`:
 * as far as the bits of a prefill that goes on allow it. */
void kvl_local_forget(struct kvl_session *s, int32_t layer, int32_t n_pos, bool more);

/* Copies of the sinks where operators find them: e->sinks stays NULL for a model without. */
int kvl_sinks_create(struct kvl_engine *e, struct kvl_err *err);

/* Results of n rows before and after: out, part [n][n_heads][head_dim], lse, part_lse [n][n_heads]. */
struct kvl_sunk {
    float *out, *lse;
    const float *part, *part_lse;
};
int kvl_sinks_merge(struct kvl_engine *e, const struct kvl_sunk *k, int32_t layer, int32_t n);

#endif
