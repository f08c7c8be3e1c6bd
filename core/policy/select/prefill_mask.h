/* prefill_mask.h - attention of a prefilled chunk under a policy's prefill_mask. */
#ifndef KVL_PREFILL_MASK_H
#define KVL_PREFILL_MASK_H

#include "policy_impl.h"

/* Queries that a counted fetch of keys serves, as in attn_prefill_sparse. */
enum { KVL_PREFILL_TILE = 64 };

/* The chunk's keys are stored: asks the hook, and computes e->att.  Counts pairs and bytes. */
int kvl_prefill_masked(const struct kvl_forward *f, int32_t layer);

#endif
