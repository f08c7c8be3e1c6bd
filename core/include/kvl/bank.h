/* kvl/bank.h - the context bank: lists of tokens that filter layers load from the host for the layers after them
 * (OmniKV).
 *
 * What a load costs is counted, packed loads of whole lists.  With `offload` it is carried out, for a policy whose
 * context lies in the host tier: what the list before had not comes for all layers that read the list as one gather,
 * while the layers in between compute.
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_BANK_H
#define KVL_BANK_H

#include "kvl/filters.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lies in the policy's state; zeroed: no list was loaded. */
struct kvl_bank {
    int64_t n_filtered, n_loads; /* lists that came, and that were loaded */
    int64_t n_listed, n_hits;    /* tokens of these; those that the list before had */
    double loaded_bytes;
    struct {
        int32_t tag, n; /* step + 1 and length of the list at hand, 0 = none */
    } list[KVL_FILTER_MAX_LAYERS];
};

/* A list in the making, of filter layer step->layer. */
struct kvl_bank_list {
    const struct kvl_step *step;
    const struct kvl_filter_role *role;
    float *
        tag; /* of token t of the context: tag[t * stride], in a table of the policy; zero at first */
    size_t stride;
    float *score;     /* [context_tok], overwritten */
    int32_t *item, n; /* in, out: tokens of the context, ascending */
    double
        overlap; /* the list at hand stays where more than this share of the union of both is in both; 1: never */
    bool offload;
};
/* In observe: takes the list, or puts the best of the list at hand, no more than list->n, in its place. */
KVL_API int kvl_bank_take(const struct kvl_pctx *ctx, struct kvl_bank *bank,
                          struct kvl_bank_list *list);
/* bank_calls_per_tok, bank_bytes_per_tok, bank_skipped_share and bank_hit_share of n_steps steps, 1 or more. */
KVL_API int kvl_bank_report(struct kvl_report *r, const struct kvl_bank *bank, int64_t n_steps);

#ifdef __cplusplus
}
#endif

#endif
