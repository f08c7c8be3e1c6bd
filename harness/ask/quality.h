/* quality.h - how well a policy chose: a reference pass beside it, outside of anything that is timed.
 *
 * Two sessions run the same tokens: one under the policy, one densely from the same prefilled context.
 * At every answer step and layer, what the policy's attention read and gave is compared with full
 * attention of the same query (the policy's own) over the keys and values of the dense session:
 *   recall     share of the n tokens with the largest weights of full attention that were read
 *   mass       sum of full attention's weights over what was read
 *   out_error  |out - full| / |full| over the head's dimensions
 * and the logits of both: KL(dense || policy) in nats, and whether both have the same best token.
 *
 * Thread-safe: no.
 */
#ifndef KVL_QUALITY_H
#define KVL_QUALITY_H

#include "measured.h"

int kvl_quality_create(const struct kvl_quality *want, const struct kvl_shape *shape,
                       struct kvl_quality_result *out, struct kvl_err *err);
void kvl_quality_free(struct kvl_quality_result *r);

/* One question; sessions are borrowed and end up behind its answer. */
struct kvl_quality_run {
    const struct kvl_quality *want;
    const struct kvl_prompt *prompt; /* what ends an answer */
    const struct kvl_shape *shape;
    struct kvl_session *policy; /* up to the tokens to feed */
    struct kvl_session *dense;  /* without a policy: context and question but its last token */
    const int32_t *feed;        /* [n_feed]; the last one makes the first answer token */
    int32_t n_feed, max_new;
    float *logits; /* [2][n_vocab] workspace */
};
/* Greedy steps until the answer ends, at most want->steps. */
int kvl_quality_measure(const struct kvl_quality_run *run, struct kvl_quality_result *out,
                        struct kvl_err *err);

/* ---- the measures, of one query ---------------------------------------------------------------- */

/* recall [n_top]: of the top[i] largest of probs [n] (ties: the lower index; all n where there are no
 * more), the share that is in read [n_read], ascending.  `heap`: workspace [largest of top]. */
void kvl_quality_recall(const float *probs, int32_t n, const int32_t *read, int32_t n_read,
                        const int32_t *top, int32_t n_top, int32_t *heap, double *recall);
double kvl_quality_mass(const float *probs, const int32_t *read, int32_t n_read);
/* 0 where both are zero. */
double kvl_quality_error(const float *out, const float *full, int32_t n);
/* KL(p || q) of the softmax of logits [n], in nats. */
double kvl_quality_kl(const float *p, const float *q, int32_t n);

#endif
