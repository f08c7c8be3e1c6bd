/* kept_keys.h - keys that a method made for a step, kept for the next one (ShadowKV).
 *
 * A method that makes keys of positions that it chooses makes most of them again at the next step, for the choice changes
 * slowly.  Those of the last step are kept, for every kv head, and only what is new has to be made:
 *   kvl_kept_find   which of the positions have no key yet
 *   ... the method makes these, into `made`
 *   kvl_kept_take   keys of all positions; they are what is kept from here on
 * What is kept is state of the session (a fork has a copy), in floats.
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_KEPT_KEYS_H
#define KVL_KEPT_KEYS_H

#include "layer_state.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lies in the policy's options; zero before plan. */
struct kvl_kept_keys {
    int32_t most; /* keys of a kv head and layer */
    struct kvl_state_part state;
};

/* Of one step: what is to be made, in scratch. */
struct kvl_kept_step {
    int32_t *n;   /* [n_kv_heads] positions of a kv head without a key */
    int32_t *pos; /* [n_kv_heads][n_all] these, the first n of a row */
    float *made;  /* [n_kv_heads][n_all][head_dim]: their keys, to be written */
    int32_t *at,
        *slot; /* [n_kv_heads][n_all] of all: their place among these; of each position, where its key is kept */
    int32_t n_all, layer; /* positions of a kv head */
};

/* In plan: keeps up to `most` keys of a kv head and layer. */
void kvl_plan_kept_keys(struct kvl_plan *plan, int32_t most, struct kvl_kept_keys *out);
/* pos [n_kv_heads][n], ascending in each row, n at most `most`. */
int kvl_kept_find(const struct kvl_pctx *ctx, const struct kvl_kept_keys *k, int32_t layer,
                  const int32_t *pos, int32_t n, struct kvl_kept_step *out);
/* key [n_kv_heads][n][head_dim] of the same positions.  The hook has looked then (kvl_look). */
int kvl_kept_take(const struct kvl_pctx *ctx, const struct kvl_kept_keys *k, const int32_t *pos,
                  const struct kvl_kept_step *step, float *key);

#ifdef __cplusplus
}
#endif

#endif
