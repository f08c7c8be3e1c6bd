/* analysis.h - what attention of a dense run looks like: how few tokens hold its mass, how alike layers
 * are, how fast its important tokens change.
 *
 * One observation is one decode step; its *important* tokens of a layer are the m largest weights,
 * reduced over the query heads by their maximum or their mean, of all tokens before the current one
 * (ties: the lower position).  The current token is always read, so it is never one of them, and its
 * weight always counts as captured.
 *
 *   mass        per layer and head: tokens that together hold 90, 95, 99 % of the weights, the
 *               largest first, the current one included
 *   similarity  capture[l1][l2], l2 >= l1: weight of layer l2, mean over its heads, that falls on the
 *               important tokens of l1 and the current one; hit[l]: share of the evidence needed at a
 *               step that is important in layer l
 *   drift       of the important tokens of a layer at two steps of one answer, `lag` apart: the share
 *               of the old ones that are important still, and intersection / union
 *
 * Thread-safe: no.
 */
#ifndef KVL_ANALYSIS_H
#define KVL_ANALYSIS_H

#include "measure.h"

enum { KVL_ANALYSIS_M = 8, KVL_ANALYSIS_P = 3, KVL_ANALYSIS_LAG = 64 };

enum kvl_analysis_reduce { KVL_ANALYSIS_MAX = 0, KVL_ANALYSIS_MEAN, KVL_ANALYSIS_REDUCES };

struct kvl_analysis_want {
    bool mass, similarity, drift;
    int32_t m[KVL_ANALYSIS_M], n_m; /* ascending, different */
    int32_t lag;                    /* 1 .. KVL_ANALYSIS_LAG */
};

/* Sums over observations.  Indices: r = reduce, m, l = layer, h = query head. */
struct kvl_analysis {
    struct kvl_analysis_want want; /* as given to create */
    int32_t n_layers, n_heads;
    int64_t n_steps;
    /* mass: counts of every observation, [n_steps][l][h][KVL_ANALYSIS_P], and sums of shares */
    struct kvl_buf counts;
    double *share;   /* [l][h][KVL_ANALYSIS_P] */
    double *capture; /* [r][m][l][l] */
    double *hit;     /* [r][m][l], over n_hits steps */
    int64_t n_hits;
    double *jaccard, *kept; /* [r][m][lag - 1][l] */
    int64_t *n_pairs;       /* [lag - 1] */
    struct kvl_analysis_step *step;
};

int kvl_analysis_create(const struct kvl_analysis_want *want, const struct kvl_shape *shape,
                        int32_t max_tok, struct kvl_analysis **out, struct kvl_err *err);
void kvl_analysis_destroy(struct kvl_analysis *a);

/* Steps that follow are of another answer: none of them is compared with those before. */
void kvl_analysis_answer(struct kvl_analysis *a);
/* One decode step of a session without a policy.  watch NULL: no evidence; else the step-th answer step
 * of it.  logits [n_vocab]. */
int kvl_analysis_decode(struct kvl_analysis *a, struct kvl_session *s, int32_t id,
                        const struct kvl_watch *watch, int32_t step, float *logits,
                        struct kvl_err *err);

/* The masses that are looked for: 0.90, 0.95, 0.99. */
extern const double kvl_analysis_mass[KVL_ANALYSIS_P];
const char *kvl_analysis_reduce_name(enum kvl_analysis_reduce r);

/* ---- filter layers ---------------------------------------------------------------------------- */

/* Filter layers for OmniKV by its rule (methods/omnikv.c): of all sets that leave at most `dense` layers
 * dense - those before the first filter, the filters, and `wait` behind each - and serve a layer
 * each, the one of largest sum over layers of capture[filter][layer], dense layers counting 1; ties to the
 * lower layers.  capture [n][n], means.  filter [n]: non-zero where one is.  *sparse: mean capture
 * of the layers that read a list, NaN without any.  KVL_EINVAL: no set leaves so few layers dense. */
int kvl_filter_layers(const double *capture, int32_t n, int32_t dense, int32_t wait,
                      uint8_t *filter, double *sparse, struct kvl_err *err);

#endif
