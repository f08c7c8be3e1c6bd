/* layer_state.h - parts of a policy's state that every layer has (InfLLM).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_LAYER_STATE_H
#define KVL_LAYER_STATE_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `bytes` of the policy's state for every layer, zeroed, behind what plan->state_bytes holds so far, which grows.
 * Nothing lies between: parts that need the alignment of 8 bytes come first, in multiples of 8. */
struct kvl_state_part {
    size_t first, bytes; /* of layer l from first + l * bytes on */
};
void kvl_plan_state(struct kvl_plan *plan, size_t bytes, struct kvl_state_part *out);
/* Those of a layer. */
void *kvl_state_of(const struct kvl_pctx *ctx, const struct kvl_state_part *part, int32_t layer);

#ifdef __cplusplus
}
#endif

#endif
