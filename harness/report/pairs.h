/* pairs.h - two cells on the same questions.
 *
 * Samples are paired by context and question.  Whether both were asked the same is told by the hashes of
 * their prompts, where the logs have them.
 */
#ifndef KVL_PAIRS_H
#define KVL_PAIRS_H

#include "results.h"

enum kvl_pair_what {
    KVL_PAIR_SCORE, /* of a question its official score, of a text its mean nll */
    KVL_PAIR_RECALL,
    KVL_PAIR_WHATS
};

struct kvl_pairs {
    struct kvl_paired test; /* of a less b; test.n = 0: nothing that both have */
    double a, b;            /* means over the pairs, NaN without any */
    size_t n_common;        /* questions that both logs have, with a number or not */
    size_t n_other_prompt;  /* of these: asked with other tokens */
    bool without_samples;   /* a side has no samples at all, as in a published log */
};

/* The two cells may be of two logs.  KVL_ENOMEM. */
int kvl_pairs(const struct kvl_results *of_a, const struct kvl_result *a,
              const struct kvl_results *of_b, const struct kvl_result *b, enum kvl_pair_what what,
              struct kvl_pairs *out, struct kvl_err *err);

#endif
