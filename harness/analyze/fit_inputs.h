/* fit_inputs.h - linear maps from what enters a layer to the scores of a policy that makes them a dearer way: the networks
 * of kvzap.
 *
 * Of every layer and kv head the ridge regression of the policy's scores, in double and in closed form (Jegou and
 * Jeblick, arXiv 2601.07891: their linear models).  Of texts that are held out, what the maps explain of them.
 *
 * Thread-safe: no.
 */
#ifndef KVL_FIT_INPUTS_H
#define KVL_FIT_INPUTS_H

#include "kvl/model.h"

struct kvl_input_fit;

/* engine: borrowed.  KVL_ENOMEM. */
int kvl_input_fit_create(struct kvl_engine *engine, struct kvl_input_fit **out,
                         struct kvl_err *err);
void kvl_input_fit_destroy(struct kvl_input_fit *f);
/* A context of n tokens, and a plan whose score hook gives what is to be learned. */
int kvl_input_fit_text(struct kvl_input_fit *f, const struct kvl_planned *planned,
                       const int32_t *id, int32_t n, bool held_out, struct kvl_err *err);
/* After all texts: the maps.  KVL_EINVAL: there were no texts to learn from. */
int kvl_input_fit_solve(struct kvl_input_fit *f, struct kvl_err *err);
/* Weights [n_kv_heads][n_embd] of a layer, then its bias [n_kv_heads]. */
const float *kvl_input_fit_map(const struct kvl_input_fit *f, int32_t layer);
/* 1 - the squares that the maps leave of held out texts / those of the scores themselves, mean over kv heads; NaN: no
 * text was held out. */
double kvl_input_fit_explains(const struct kvl_input_fit *f, int32_t layer);

#endif
