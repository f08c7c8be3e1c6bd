/* recent.h - what each of the newest tokens received, in a policy's state (InfLLM).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_RECENT_H
#define KVL_RECENT_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What each of the newest n_tok tokens of a layer received, per query head, as KVL_OBS_COLUMNS or KVL_OBS_LOGITS sums:
 * floats of the policy's state. */
struct kvl_recent {
    struct kvl_state_part part;
    enum kvl_observer what;
    int32_t n_tok;
};
void kvl_plan_recent(struct kvl_plan *plan, enum kvl_observer what, int32_t n_tok,
                     struct kvl_recent *out);
/* In prefilled: positions first .. n - 1 begin with sums [n_heads][n] (kvl_obs_columns). */
int kvl_recent_begin(const struct kvl_pctx *ctx, const struct kvl_recent *r, int32_t layer,
                     int32_t first, const float *sums, int32_t n);
/* In observe: the newest token begins with 0, and positions first .. step->pos get weights probs [n_heads] -> [...],
 * of which the first is that of `first`; KVL_OBS_LOGITS: all but the newest the logits that these stand for with
 * lse [n_heads] (weights below e^-87 count as e^-87). */
int kvl_recent_add(const struct kvl_pctx *ctx, const struct kvl_recent *r,
                   const struct kvl_step *step, int32_t first, const float *const *probs,
                   const float *lse);
/* *score [n_heads][n] in scratch: of positions first .. first + n - 1, which must be among the newest n_tok. */
int kvl_recent_read(const struct kvl_pctx *ctx, const struct kvl_recent *r, int32_t layer,
                    int32_t first, int32_t n, float **score);

#ifdef __cplusplus
}
#endif

#endif
