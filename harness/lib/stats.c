/* Intervals and comparisons; stats.h derives the formulas. */
#include "stats.h"

#include "kvl/rng.h"

#include <math.h>
#include <stdlib.h>

#define Z95             1.959963984540054 /* 97.5th percentile of the normal distribution */
#define BOOTSTRAP_DRAWS 2000

struct kvl_interval kvl_wilson(double p, double n)
{
    if (!(n > 0)) return (struct kvl_interval){ KVL_NAN, KVL_NAN, KVL_NAN };
    double z2n = Z95 * Z95 / n;
    double mid = (p + z2n / 2) / (1 + z2n);
    double half = Z95 / (1 + z2n) * sqrt(p * (1 - p) / n + z2n / (4 * n));
    /* Rounding must not put p, or 0 and 1, outside. */
    return (struct kvl_interval){ p, fmax(0, fmin(p, mid - half)), fmin(1, fmax(p, mid + half)) };
}

/* ---- contexts ------------------------------------------------------------------------------ */

/* Sum and number of the values of one context. */
struct cluster {
    int64_t context;
    double sum;
    size_t n;
};

static int cluster_order(const void *a, const void *b)
{
    const struct cluster *x = a, *y = b;
    return (x->context > y->context) - (x->context < y->context);
}

/* One entry per context, ordered, so that the order of samples in a log changes nothing but the
 * rounding of sums.  Freed with kvl_free. */
static int clusters_build(const double *value, const int64_t *context, size_t n,
                          struct cluster **out, size_t *n_out)
{
    struct cluster *c = kvl_alloc(n, sizeof *c);
    if (!c) return KVL_ENOMEM;
    for (size_t i = 0; i < n; i++)
        c[i] = (struct cluster){ .context = context[i], .sum = value[i], .n = 1 };
    qsort(c, n, sizeof *c, cluster_order);
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        if (used && c[used - 1].context == c[i].context) {
            c[used - 1].sum += c[i].sum;
            c[used - 1].n++;
        } else {
            c[used++] = c[i];
        }
    }
    *out = c;
    *n_out = used;
    return KVL_OK;
}

static double clusters_mean(const struct cluster *c, size_t n_clusters)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < n_clusters; i++) {
        sum += c[i].sum;
        n += c[i].n;
    }
    return sum / (double)n;
}

int kvl_spread_of(const double *score, const int64_t *context, size_t n, struct kvl_spread *out)
{
    struct kvl_spread s = { .n = (double)n };
    struct cluster *c;
    size_t n_clusters;
    *out = s;
    if (n == 0) return KVL_OK;
    KVL_TRY(clusters_build(score, context, n, &c, &n_clusters));
    double p = clusters_mean(c, n_clusters);
    for (size_t i = 0; i < n_clusters; i++) {
        double t = c[i].sum - p * (double)c[i].n;
        s.between += t * t;
    }
    for (size_t i = 0; i < n; i++) s.simple += (score[i] - p) * (score[i] - p);
    s.n_contexts = (double)n_clusters;
    kvl_free(c);
    *out = s;
    return KVL_OK;
}

/* Not above n, not below the contexts. */
static double n_eff_within(double n_eff, const struct kvl_spread *s)
{
    return fmin(s->n, fmax(s->n_contexts, n_eff));
}

/* Of a cell alone; false: it tells nothing. */
static bool n_eff_alone(const struct kvl_spread *s, double *n_eff)
{
    if (!(s->n_contexts > 1) || !(s->simple > 1e-12)) return false;
    double design = s->n_contexts / (s->n_contexts - 1) * s->between / s->simple;
    *n_eff = n_eff_within(s->n / design, s);
    return true;
}

int kvl_n_eff(const double *score, const int64_t *context, size_t n, double *n_eff)
{
    struct kvl_spread s;
    KVL_TRY(kvl_spread_of(score, context, n, &s));
    if (!n_eff_alone(&s, n_eff)) *n_eff = s.n_contexts;
    return KVL_OK;
}

/* ---- the correlation within contexts --------------------------------------------------------- */

#define ICC_DOUBT 0.25 /* the variance of an answer that is right as often as wrong */

void kvl_icc_add(struct kvl_icc *icc, const struct kvl_spread *s)
{
    if (!(s->n_contexts > 1)) return;
    double more = s->n / s->n_contexts - 1;
    icc->excess += s->n_contexts / (s->n_contexts - 1) * s->between - s->simple;
    icc->pairs += s->simple * more;
    icc->more += more;
    icc->n_cells++;
}

double kvl_icc_value(const struct kvl_icc *icc)
{
    double known = icc->n_cells ? ICC_DOUBT * icc->more / (double)icc->n_cells : 0;
    double of = icc->pairs + known;
    return of > 0 ? fmin(1, (fmax(0, icc->excess) + known) / of) : 1;
}

double kvl_n_eff_of_icc(const struct kvl_spread *s, double icc)
{
    if (!(s->n > 0) || !(s->n_contexts > 0)) return s->n;
    double alone, pooled = n_eff_within(s->n / (1 + (s->n / s->n_contexts - 1) * icc), s);
    return n_eff_alone(s, &alone) ? fmin(alone, pooled) : pooled;
}

/* ---- logits -------------------------------------------------------------------------------- */

double kvl_log_sum_exp(const float *logits, int32_t n)
{
    double most = (double)logits[0], sum = 0.0;
    for (int32_t i = 1; i < n; i++) most = fmax(most, (double)logits[i]);
    for (int32_t i = 0; i < n; i++) sum += exp((double)logits[i] - most);
    return log(sum) + most;
}

double kvl_nll(const float *logits, int32_t n, int32_t id)
{
    return kvl_log_sum_exp(logits, n) - (double)logits[id];
}

/* ---- bootstrap ----------------------------------------------------------------------------- */

static int double_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of sorted values, interpolated between neighbours. */
static double percentile(const double *sorted, size_t n, double share)
{
    double at = share * (double)(n - 1);
    size_t i = (size_t)at;
    if (i + 1 >= n) return sorted[n - 1];
    return sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]);
}

static double bootstrap_draw(const struct cluster *c, size_t n_clusters, struct kvl_rng *rng)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < n_clusters; i++) {
        const struct cluster *drawn = &c[kvl_rng_below(rng, (uint32_t)n_clusters)];
        sum += drawn->sum;
        n += drawn->n;
    }
    return sum / (double)n;
}

int kvl_bootstrap_mean(const double *value, const int64_t *context, size_t n, uint64_t seed,
                       struct kvl_interval *out)
{
    *out = (struct kvl_interval){ KVL_NAN, KVL_NAN, KVL_NAN };
    if (n == 0) return KVL_OK;
    struct cluster *c;
    size_t n_clusters;
    KVL_TRY(clusters_build(value, context, n, &c, &n_clusters));
    double *draws = kvl_alloc(BOOTSTRAP_DRAWS, sizeof *draws);
    if (draws) out->mean = clusters_mean(c, n_clusters);
    if (draws && n_clusters > 1) {
        struct kvl_rng rng;
        kvl_rng_seed(&rng, seed);
        for (size_t i = 0; i < BOOTSTRAP_DRAWS; i++) draws[i] = bootstrap_draw(c, n_clusters, &rng);
        qsort(draws, BOOTSTRAP_DRAWS, sizeof *draws, double_order);
        out->lo = percentile(draws, BOOTSTRAP_DRAWS, 0.025);
        out->hi = percentile(draws, BOOTSTRAP_DRAWS, 0.975);
    }
    int rc = draws ? KVL_OK : KVL_ENOMEM;
    kvl_free(draws);
    kvl_free(c);
    return rc;
}

/* ---- pairs --------------------------------------------------------------------------------- */

/* Two-sided: twice the smaller tail of a binomial distribution with p = 1/2. */
static double mcnemar_exact(size_t a, size_t b)
{
    size_t n = a + b, least = KVL_MIN(a, b);
    if (n == 0) return 1;
    double tail = 0;
    for (size_t i = 0; i <= least; i++)
        tail += exp(lgamma((double)n + 1) - lgamma((double)i + 1) - lgamma((double)(n - i) + 1) -
                    (double)n * log(2));
    return fmin(1, 2 * tail);
}

int kvl_paired_diff(const double *a, const double *b, const int64_t *context, size_t n,
                    uint64_t seed, struct kvl_paired *out)
{
    struct kvl_paired r = { .n = n };
    double *diff = kvl_alloc(n, sizeof *diff);
    if (!diff) return KVL_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        bool a_right = a[i] >= 0.5, b_right = b[i] >= 0.5;
        r.n_a_only += a_right && !b_right;
        r.n_b_only += b_right && !a_right;
        diff[i] = a[i] - b[i];
    }
    r.p_value = mcnemar_exact(r.n_a_only, r.n_b_only);
    int rc = kvl_bootstrap_mean(diff, context, n, seed, &r.diff);
    kvl_free(diff);
    if (rc == KVL_OK) *out = r;
    return rc;
}
