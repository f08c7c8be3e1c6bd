/* stats.h - intervals and comparisons for scores of questions that share contexts.
 *
 * Questions about one context are not independent: an easy context makes all its answers right.  So
 * an interval over n questions is as wide as one over n_eff independent ones, with n_eff between the
 * number of contexts and the number of questions.
 *
 *   Scores x_cj of question j in context c, C contexts, n questions, p = mean of x.
 *   If contexts are drawn independently, p is a ratio of two sums over contexts (scores and
 *   questions).  Linearised, its error is sum_c T_c / n with T_c = sum_j (x_cj - p), so that
 *       V_cluster = C / (C - 1) * sum_c T_c^2 / n^2
 *   while n independent questions would have
 *       V_simple = sum_cj (x_cj - p)^2 / n^2      (= p (1 - p) / n for scores of 0 and 1).
 *   The design effect is D = V_cluster / V_simple, and n_eff = n / D, kept within [min(n, C), n]:
 *   not above n, since a lucky draw of contexts must not make an interval narrower than that of
 *   independent questions; not below C, since a context is one observation.  With one context or
 *   equal scores D cannot be estimated, and n_eff = C.
 *
 * That is what one cell tells alone, and with few contexts it tells little: D is noise, and where all
 * answers are right or all are wrong there is none.  Tables take all cells of a task together.  D is
 * 1 + (m - 1) r with m = n / C questions per context and the correlation r of two answers from one context
 * (Kish, Survey Sampling, 1965, 5.4), which is taken to be one number for a task:
 *       r = (sum over cells of V_simple (D - 1) n^2 + w) / (sum over cells of V_simple (m - 1) n^2 + w)
 *   within [0, 1], and n_eff of a cell is the less of n / (1 + (m - 1) r), within [min(n, C), n], and
 *   what it tells alone where it tells anything: a method may depend on the context more than others.  The
 *   weight w = (m - 1) / 4, one answer in doubt that follows its context wholly, is what is known before:
 *   cells that tell nothing have r = 1 and n_eff = C.  results/README.md has the coverage that this gives.
 *
 * Means of values that are no proportions (recall, differences) get an interval over contexts, with
 * V_cluster of above.  It reaches as far as the farther of two:
 *   - Student's: mean -+ t sqrt(V_cluster), t of C - 1 degrees of freedom;
 *   - a bootstrap: C contexts drawn with replacement, the mean over all their questions, 2000 times, from
 *     the percentile Phi(-t sqrt(C / (C - 1))) to its reverse (Hesterberg, American Statistician 69, 2015:
 *     the usual 2.5 and 97.5 are too narrow for few contexts).
 * Where all contexts have the same mean m neither has a width.  Of C equal contexts follows with 95 % that
 * at most q = z^2 / (C + z^2) of all contexts are others (Wilson, C of C), so that the mean of values
 * within [a, b] lies in [m - q (m - a), m + q (b - m)]; of values without bounds nothing is known.
 *
 * Whether two policies differ is told by the sign-flip test: if neither is better, the difference of a
 * context is as likely as its negative.  Of k contexts that differ, none can tell more than p = 2 / 2^k.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_STATS_H
#define KVL_STATS_H

#include "kvl/base.h"

#include <math.h>

/* "Not known", in double. */
#define KVL_NAN ((double)NAN)

/* `lo` and `hi` are NaN when they cannot be known, `mean` too when there is no observation; the log
 * has null there. */
struct kvl_interval {
    double mean, lo, hi;
};

/* p values [n] of a family of tests, each made the least level at which Holm's procedure rejects it: the chance of any
 * false rejection in the family is at most that.  NaN counts for none.  KVL_ENOMEM. */
int kvl_holm(double *p, size_t n, struct kvl_err *err);

/* Wilson's score interval at 95 % for a proportion `p` of `n` observations; n need not be whole. */
struct kvl_interval kvl_wilson(double p, double n);

/* Scores [n] with the contexts [n] they belong to (any integers; equal = same context): n_eff of
 * above, 0 for n = 0.  KVL_ENOMEM. */
int kvl_n_eff(const double *score, const int64_t *context, size_t n, double *n_eff);

/* How scores lie between and within contexts: n^2 C / (C - 1) V_cluster and n^2 V_simple of above without
 * the factor. */
struct kvl_spread {
    double n, n_contexts;
    double between; /* sum_c T_c^2 */
    double simple;  /* sum_cj (x_cj - p)^2 */
};
int kvl_spread_of(const double *score, const int64_t *context, size_t n, struct kvl_spread *out);

/* What cells of a task have told so far of the correlation within contexts. */
struct kvl_icc {
    double excess, pairs, more; /* sums of V_simple (D - 1) n^2, V_simple (m - 1) n^2, m - 1 */
    size_t n_cells;
};
/* Nothing is added for one context or none. */
void kvl_icc_add(struct kvl_icc *icc, const struct kvl_spread *s);
/* r of above, 0 .. 1. */
double kvl_icc_value(const struct kvl_icc *icc);
/* n_eff of a cell of a task with that correlation. */
double kvl_n_eff_of_icc(const struct kvl_spread *s, double icc);

/* What values can be at all. */
struct kvl_range {
    double least, most;
};
#define KVL_RANGE_SHARE ((struct kvl_range){ 0, 1 })
#define KVL_RANGE_DIFF  ((struct kvl_range){ -1, 1 }) /* of two shares */
#define KVL_RANGE_ABOVE ((struct kvl_range){ 0, INFINITY })
#define KVL_RANGE_ANY   ((struct kvl_range){ -INFINITY, INFINITY })

/* Mean of values [n] with its interval over contexts; the same input and seed give the same interval on
 * every machine.  lo and hi are NaN for one context, and for equal contexts without bounds: an interval
 * has a width, or there is none.  KVL_ENOMEM. */
int kvl_mean_interval(const double *value, const int64_t *context, size_t n, struct kvl_range range,
                      uint64_t seed, struct kvl_interval *out);

/* Natural log of the sum of exp of n >= 1 logits. */
double kvl_log_sum_exp(const float *logits, int32_t n);
/* -log of the probability that a softmax of logits [n] gives to `id`, in nats. */
double kvl_nll(const float *logits, int32_t n, int32_t id);

/* Two policies on the same questions. */
struct kvl_paired {
    size_t n, n_contexts;
    size_t n_a_only, n_b_only; /* questions that only one got right (score >= 0.5) */
    /* Two-sided sign-flip test over contexts, exact up to 16 that differ and where all differ by as much
     * (one question each: McNemar's test), else of 20000 draws. */
    double p_value;
    struct kvl_interval diff; /* mean of a - b */
};
/* With fewer contexts the test cannot get below 0.05. */
#define KVL_VERDICT_CONTEXTS 6
#define KVL_VERDICT_P        0.05
/* a and b [n], differences within `range`, are paired by index.  KVL_ENOMEM. */
int kvl_paired_diff(const double *a, const double *b, const int64_t *context, size_t n,
                    struct kvl_range range, uint64_t seed, struct kvl_paired *out);

#endif
