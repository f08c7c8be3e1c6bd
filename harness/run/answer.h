/* answer.h - the answer to one question under one policy, and the decode loop that makes it. */
#ifndef KVL_ANSWER_H
#define KVL_ANSWER_H

#include "measure.h"

/* Makes room for the results.  Everything else is filled by the caller before. */
int kvl_ask_begin(struct kvl_ask *a, const struct kvl_shape *shape, struct kvl_err *err);
void kvl_ask_free(struct kvl_ask *a);

/* Decodes all until each has its answer; weights are read once per step for all.  An error is that
 * of the whole batch: one cannot tell whose it is, all sessions have to be made again.
 *   logits [n][n_vocab] workspace */
int kvl_ask_decode(struct kvl_ask *const *ask, int32_t n, const struct kvl_model *model,
                   float *logits, struct kvl_err *err);

#endif
