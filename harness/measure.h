/* measure.h - what the harness observes of an answer, never the method: evidence recall and bytes.
 *
 * Recall.  The evidence needed at an answer step is the last evidence group of the question (for a
 * key and its value: the value).  A group is satisfied in a layer when, in the union of the layer's
 * kv heads, one span (ANY) or every span (ALL) was attended in full.  A step is a hit when some
 * selecting layer is satisfied; layers that the policy left dense do not count unless there are no
 * others.  Answer steps are those that make the tokens of the answer: as many as the tokenised
 * answer has, or fewer when the model stops before.
 */
#ifndef KVL_MEASURE_H
#define KVL_MEASURE_H

#include "kvl/model.h"
#include "kvl/task.h"

/* Positions of the evidence of a question. */
struct kvl_watch {
    int32_t *pos; /* [n], span after span */
    int32_t n;
    int32_t first[4], count[4]; /* of each span, in pos */
    int32_t n_spans;
    enum kvl_evidence_kind kind;
};

/* Tokens that cover a byte of a span, for the last evidence group; n = 0 when there is none. */
int kvl_watch_create(const struct kvl_tokens *context, const struct kvl_question *q,
                     struct kvl_watch *out, struct kvl_err *err);
void kvl_watch_free(struct kvl_watch *w);

struct kvl_recall {
    int32_t n_steps, n_hit;
    int32_t n_layers, n_kv_heads;
    double *lane; /* [n_layers][n_kv_heads] sums over steps of the share of evidence attended */
};
int kvl_recall_create(const struct kvl_shape *shape, struct kvl_recall *out, struct kvl_err *err);
void kvl_recall_free(struct kvl_recall *r);
/* One answer step: hit [n_layers][n_kv_heads][watch->n], dense [n_layers]. */
void kvl_recall_add(struct kvl_recall *r, const struct kvl_watch *watch, const uint8_t *hit,
                    const uint8_t *dense);

/* KV bytes of one sequence as this policy alone needs them: keys before RoPE that another policy of
 * the sweep made the store keep do not count. */
struct kvl_kv_bytes {
    double logical, physical, own, meta;
};
/* Bytes of a slot and of a block without and with keys before RoPE. */
struct kvl_kv_units {
    size_t slot[2], block[2];
};
int kvl_kv_units(const struct kvl_store *store, struct kvl_kv_units *out, struct kvl_err *err);
/* `shared_blocks`: blocks that the policy shared with the prefilled context when it was attached. */
void kvl_kv_measure(const struct kvl_session *s, const struct kvl_kv_units *units, bool raw_keys,
                    int64_t shared_blocks, struct kvl_kv_bytes *out);

/* Peak resident memory of the process. */
int64_t kvl_rss_peak_bytes(void);

#endif
