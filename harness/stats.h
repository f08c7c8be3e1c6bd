/* stats.h - intervals and comparisons for scores of questions that share contexts.
 *
 * Questions about one context are not independent: an easy context makes all its answers right.  So
 * an interval over n questions is as wide as one over n_eff independent ones, with n_eff between the
 * number of contexts and the number of questions:
 *
 *   scores x_cj of question j in context c, m_c questions in context c, n = sum m_c, p = mean of x.
 *   The variance of p with contexts drawn independently (ratio estimator, linearised) is
 *       V_cluster = C / (C - 1) * sum_c (sum_j (x_cj - p))^2 / n^2
 *   and with questions drawn independently V_simple = p (1 - p) / n for scores of 0 and 1; for
 *   scores between them the sample variance / n.  The design effect is D = V_cluster / V_simple and
 *       n_eff = n / D, kept within [min(n, C), n].
 *   The upper bound stays since a lucky draw of contexts is no reason for an interval narrower than
 *   that of independent questions; the lower one since a context is one observation at least.  With
 *   one context, or all scores equal, D cannot be estimated and n_eff = C.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_STATS_H
#define KVL_STATS_H

#include "kvl/base.h"

struct kvl_interval {
    double mean, lo, hi; /* NaN when there is no observation: write null */
};

/* Wilson's score interval at 95 % for a proportion `p` of `n` observations; n need not be whole. */
struct kvl_interval kvl_wilson(double p, double n);

/* Scores 0 .. 1 with their contexts (any integers; equal = same context).  n_eff of above; 0 for
 * n = 0.  KVL_ENOMEM. */
int kvl_n_eff(const double *score, const int64_t *context, size_t n, double *n_eff);

/* Mean over all scores, with a 95 % percentile bootstrap that draws contexts, 2000 times, seeded:
 * the same input gives the same interval everywhere.  KVL_ENOMEM. */
int kvl_bootstrap_mean(const double *score, const int64_t *context, size_t n, uint64_t seed,
                       struct kvl_interval *out);

/* Two policies on the same questions: a and b are paired by index. */
struct kvl_paired {
    size_t n, n_a_only, n_b_only; /* questions; right (score >= 0.5) for one only */
    double p_value;               /* exact two-sided McNemar: a binomial test of n_a_only */
    struct kvl_interval diff;     /* mean of a - b, 95 % bootstrap over contexts */
};
int kvl_paired_diff(const double *a, const double *b, const int64_t *context, size_t n,
                    uint64_t seed, struct kvl_paired *out);

#endif
