/* channels.h - a second copy of keys, channel by channel, and scores by some of the channels (SparQ).
 *
 * Keys lie in pages of KVL_CHANNEL_PAGE tokens, in a page channel after channel, so that a channel is read in pieces of
 * whole cache lines; in the type of the store (of q8_0: in f16, rounded).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_CHANNELS_H
#define KVL_CHANNELS_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVL_CHANNEL_PAGE = 128 };

/* In plan: declares the table. */
int kvl_plan_channels(struct kvl_plan *plan, int32_t *table);
/* In append: keys k [step->n_tok][n_kv_heads][head_dim] of this step go in. */
int kvl_channels_put(const struct kvl_pctx *ctx, int32_t table, const struct kvl_step *step,
                     const float *k);
/* score_h(t) = factor_h sum over channels c of q_h,c k_t,c, of the first n tokens, as the model caps logits; what is
 * read of the copy, and nothing else, is counted. */
struct kvl_channel_scores {
    int32_t table, layer, n, n_channels;
    const float *q, *factor; /* [n_heads][head_dim], [n_heads] */
    const int32_t *channel;  /* [n_kv_heads][n_channels] */
    float *score;            /* out [n_heads][n] */
    float *max, *sum;        /* out [n_heads]: the largest score, sum of exp(score - max) */
};
int kvl_channel_scores(const struct kvl_pctx *ctx, const struct kvl_channel_scores *s);

#ifdef __cplusplus
}
#endif

#endif
