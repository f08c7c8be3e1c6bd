/* unit_keys.h - rows made of the keys of a unit of positions, and the best units of a layer (InfLLM, KTransformers).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_UNIT_KEYS_H
#define KVL_UNIT_KEYS_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* best [k or n]: of the first n units, whose rows are a vector for each query head of a group, the k with the largest
 * sum of q . vector over all query heads of the layer, ascending (ties: the lower); all of them, and nothing is read,
 * when there are not more.  A trace is told the scores. */
struct kvl_unit_best {
    int32_t table, first_tok, unit_tok; /* of the first unit; of each */
    int32_t n, k;
    const float *q; /* [n_heads][head_dim] */
};
int kvl_unit_best(const struct kvl_pctx *ctx, const struct kvl_step *step,
                  const struct kvl_unit_best *b, int32_t *best);
/* Rows of floats, one per unit, of one vector [head_dim] or several that are the same: the sum of the keys k
 * [step->n_tok][n_kv_heads][head_dim] of every `every`-th token of a unit, from its first on; with `mean` their mean, once the unit is full.  The
 * first takes the place of what the row held. */
int kvl_unit_key_sums(const struct kvl_pctx *ctx, int32_t table, int32_t unit_tok,
                      const struct kvl_step *step, const float *k, int32_t every, bool mean);
/* Rows that begin with a vector [head_dim] for each query head of a group, of floats: the mean, or the sum, of those
 * k keys of a unit, or all, whose scores are the largest (ties: the lower position).  All keys of the units are
 * read, once per kv head. */
struct kvl_unit_top_keys {
    int32_t table, layer;
    int32_t row, n;              /* rows to write: row .. row + n - 1 */
    int32_t first_tok, unit_tok; /* of the first of these units; live positions */
    int32_t k;
    bool raw, sum;      /* keys before RoPE; the sum */
    const float *score; /* of query head h and token first_tok + i: [h * stride + i] */
    size_t stride;
};
int kvl_unit_top_keys(const struct kvl_pctx *ctx, const struct kvl_unit_top_keys *t);

#ifdef __cplusplus
}
#endif

#endif
