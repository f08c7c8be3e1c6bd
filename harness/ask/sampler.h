/* sampler.h - the next token of an answer: the best one, or one drawn.
 *
 * Drawn from softmax(logits / temperature), of which the filters leave a part, in this order: the top_k best
 * tokens (0: all); of these the fewest whose probabilities add up to top_p of theirs; of these the ones with at
 * least min_p of the best one's probability.  Ties go to the lower id.
 *
 * A draw is a function of the logits, its stream and its step alone: neither the batch nor threads nor what was
 * drawn for others before change it.  Two policies draw with the same numbers.
 */
#ifndef KVL_SAMPLER_H
#define KVL_SAMPLER_H

#include "config.h"

/* Room for one vocabulary. */
struct kvl_sampler {
    struct kvl_sampler_item {
        double p;
        int32_t id;
    } * item; /* [n_vocab] */
};
int kvl_sampler_create(int32_t n_vocab, struct kvl_sampler *out, struct kvl_err *err);
void kvl_sampler_free(struct kvl_sampler *s);

/* The stream of one answer to a question of a context. */
uint64_t kvl_sampler_stream(const struct kvl_sampling *how, uint64_t context_seed, int32_t question,
                            int32_t answer);
/* Temperature 0: kvl_argmax. */
int32_t kvl_sampler_token(struct kvl_sampler *s, const struct kvl_sampling *how, uint64_t stream,
                          int32_t step, const float *logits, int32_t n_vocab);

#endif
