/* capture.h - how much of its attention a layer keeps when it reads what another layer found.
 *
 * A step is a token of a question or of its answer, fed to full attention behind a context of n tokens.
 * Layer l's *list* are the k = max(1, n * share) tokens of the context of the largest weights, the largest
 * of any query head (ties: the lower position), as a filter layer of OmniKV makes it (methods/omnikv.c).
 * C(l, m), m >= l, is the weight of layer m, mean over its heads, that falls on l's list and on all that
 * came behind the context, which is always read.
 *
 * S(l, m) is C(l, m) / C(m, m) of the worst step of a context, mean over contexts: most tokens of a
 * question look at what is near, whatever a list has, and an answer needs the few that do not.
 *
 * Thread-safe: no.
 */
#ifndef KVL_CAPTURE_H
#define KVL_CAPTURE_H

#include "kvl/model.h"

struct kvl_capture {
    int32_t n_layers, n_heads, max_tok;
    double *kept;       /* [n_layers][n_layers] sums of S over contexts; 0 for m < l */
    double *least;      /* the same of the context at hand */
    int32_t n_contexts; /* that are in `kept` */
    int64_t n_steps;
    struct kvl_session *session; /* while it decodes */
    int32_t context_tok, k;
    double *captured;              /* [n_layers] C(l, m) of the layer m at hand */
    float *probs, *weight, *score; /* of one layer [n_heads][max_tok]; [max_tok]; [max_tok] */
    int32_t *list;                 /* [n_layers][max_tok] */
};

/* max_tok: of the longest context with its question and answer. */
int kvl_capture_create(const struct kvl_shape *shape, int32_t max_tok, struct kvl_capture **out,
                       struct kvl_err *err);
void kvl_capture_destroy(struct kvl_capture *c);
/* Feeds the n tokens, 1 at least, of a question and its answer to a session without a policy that holds
 * their context, 1 token at least; share: above 0, at most 1.  logits [n_vocab]: a place to work. */
int kvl_capture_context(struct kvl_capture *c, struct kvl_session *s, double share,
                        const int32_t *id, int32_t n, float *logits, struct kvl_err *err);

#endif
