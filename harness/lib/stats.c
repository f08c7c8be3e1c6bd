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

/* ---- means --------------------------------------------------------------------------------- */

/* 97.5th percentile of Student's distribution. */
static double student(size_t freedom)
{
    static const double few[] = { 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262 };
    if (freedom <= sizeof few / sizeof few[0]) return few[freedom - 1];
    double z = Z95, z3 = z * z * z, z5 = z3 * z * z, f = (double)freedom;
    return z + (z3 + z) / (4 * f) + (5 * z5 + 16 * z3 + 3 * z) / (96 * f * f);
}

static double normal_below(double z)
{
    return 0.5 * erfc(-z / sqrt(2.0));
}

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

/* The square root of V_cluster. */
static double clusters_error(const struct cluster *c, size_t n_clusters, double mean)
{
    double sum = 0, n = 0, count = (double)n_clusters;
    for (size_t i = 0; i < n_clusters; i++) {
        double t = c[i].sum - mean * (double)c[i].n;
        sum += t * t;
        n += (double)c[i].n;
    }
    return sqrt(count / (count - 1) * sum) / n;
}

/* Of contexts that all have the mean of `out`. */
static void interval_of_equals(size_t n_clusters, struct kvl_range range, struct kvl_interval *out)
{
    double others = Z95 * Z95 / ((double)n_clusters + Z95 * Z95);
    if (!isfinite(range.least) || !isfinite(range.most)) return;
    out->lo = out->mean - others * (out->mean - range.least);
    out->hi = out->mean + others * (range.most - out->mean);
}

static int interval_of_clusters(const struct cluster *c, size_t n_clusters, struct kvl_range range,
                                uint64_t seed, struct kvl_interval *out)
{
    double error = clusters_error(c, n_clusters, out->mean), t = student(n_clusters - 1);
    if (error <= 1e-12 * (1 + fabs(out->mean))) {
        interval_of_equals(n_clusters, range, out);
        return KVL_OK;
    }
    double *draws = kvl_alloc(BOOTSTRAP_DRAWS, sizeof *draws), count = (double)n_clusters;
    if (!draws) return KVL_ENOMEM;
    double tail = normal_below(-t * sqrt(count / (count - 1)));
    struct kvl_rng rng;
    kvl_rng_seed(&rng, seed);
    for (size_t i = 0; i < BOOTSTRAP_DRAWS; i++) draws[i] = bootstrap_draw(c, n_clusters, &rng);
    qsort(draws, BOOTSTRAP_DRAWS, sizeof *draws, double_order);
    out->lo = fmin(out->mean - t * error, percentile(draws, BOOTSTRAP_DRAWS, tail));
    out->hi = fmax(out->mean + t * error, percentile(draws, BOOTSTRAP_DRAWS, 1 - tail));
    out->lo = fmax(range.least, out->lo);
    out->hi = fmin(range.most, out->hi);
    kvl_free(draws);
    return KVL_OK;
}

int kvl_mean_interval(const double *value, const int64_t *context, size_t n, struct kvl_range range,
                      uint64_t seed, struct kvl_interval *out)
{
    *out = (struct kvl_interval){ KVL_NAN, KVL_NAN, KVL_NAN };
    if (n == 0) return KVL_OK;
    struct cluster *c;
    size_t n_clusters;
    KVL_TRY(clusters_build(value, context, n, &c, &n_clusters));
    struct kvl_interval v = { clusters_mean(c, n_clusters), KVL_NAN, KVL_NAN };
    int rc = n_clusters > 1 ? interval_of_clusters(c, n_clusters, range, seed, &v) : KVL_OK;
    kvl_free(c);
    if (rc == KVL_OK) *out = v;
    return rc;
}

/* ---- pairs --------------------------------------------------------------------------------- */

enum { FLIPS_EXACT = 16, FLIPS_DRAWN = 20000 };

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

/* Of all ways to sign d [n], the share whose sum is as far from 0 as `least`: a step flips one sign. */
static double flips_all(const double *d, size_t n, double least)
{
    double sum = 0;
    size_t far = 0, all = (size_t)1 << n, sign = 0;
    for (size_t i = 0; i < n; i++) sum -= d[i];
    for (size_t step = 0;; step++) {
        far += fabs(sum) >= least;
        if (step + 1 == all) return (double)far / (double)all;
        size_t i = 0;
        while (!((step + 1) >> i & 1)) i++;
        sign ^= (size_t)1 << i;
        sum += (sign >> i & 1 ? 2 : -2) * d[i];
    }
}

static double flips_drawn(const double *d, size_t n, double least, uint64_t seed)
{
    struct kvl_rng rng;
    size_t far = 1; /* what was observed is one of them */
    kvl_rng_seed(&rng, seed);
    for (int draw = 0; draw < FLIPS_DRAWN; draw++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += kvl_rng_below(&rng, 2) ? d[i] : -d[i];
        far += fabs(sum) >= least;
    }
    return (double)far / (FLIPS_DRAWN + 1);
}

/* d [n]: sums of the contexts' differences; those of 0 are taken out. */
static double sign_flip(double *d, size_t n, uint64_t seed)
{
    size_t used = 0, above = 0;
    double sum = 0, least = HUGE_VAL, most = 0;
    for (size_t i = 0; i < n; i++) {
        if (fabs(d[i]) < 1e-12) continue;
        sum += d[i];
        above += d[i] > 0;
        least = fmin(least, fabs(d[i]));
        most = fmax(most, fabs(d[i]));
        d[used++] = d[i];
    }
    double far =
        fabs(sum) - 1e-9 * most; /* sums in another order are not the same to the last bit */
    if (used == 0 || most - least < 1e-9 * most) return mcnemar_exact(above, used - above);
    return used <= FLIPS_EXACT ? flips_all(d, used, far) : flips_drawn(d, used, far, seed);
}

static int paired_test(const double *diff, const int64_t *context, size_t n, uint64_t seed,
                       struct kvl_paired *r)
{
    struct cluster *c;
    KVL_TRY(clusters_build(diff, context, n, &c, &r->n_contexts));
    double *sum = kvl_alloc(r->n_contexts + 1, sizeof *sum);
    for (size_t i = 0; sum && i < r->n_contexts; i++) sum[i] = c[i].sum;
    if (sum) r->p_value = sign_flip(sum, r->n_contexts, seed);
    int rc = sum ? KVL_OK : KVL_ENOMEM;
    kvl_free(sum);
    kvl_free(c);
    return rc;
}

int kvl_paired_diff(const double *a, const double *b, const int64_t *context, size_t n,
                    struct kvl_range range, uint64_t seed, struct kvl_paired *out)
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
    int rc = paired_test(diff, context, n, seed, &r);
    if (rc == KVL_OK) rc = kvl_mean_interval(diff, context, n, range, seed, &r.diff);
    kvl_free(diff);
    if (rc == KVL_OK) *out = r;
    return rc;
}

/* ---- many tests ------------------------------------------------------------------------------ */

static int holm_order(const void *a, const void *b, void *user)
{
    const double *p = user;
    double x = p[*(const size_t *)a], y = p[*(const size_t *)b];
    return (x > y) - (x < y);
}

int kvl_holm(double *p, size_t n, struct kvl_err *err)
{
    size_t *order = kvl_alloc(n, sizeof *order), known = 0;
    if (n && !order) return kvl_fail(err, KVL_ENOMEM, "no memory for %zu tests", n);
    for (size_t i = 0; i < n; i++)
        if (!isnan(p[i])) order[known++] = i;
    if (known) qsort_r(order, known, sizeof *order, holm_order, p);
    double least = 0.0;
    for (size_t i = 0; i < known; i++) {
        least = fmax(least, fmin(1.0, (double)(known - i) * p[order[i]]));
        p[order[i]] = least;
    }
    kvl_free(order);
    return KVL_OK;
}
