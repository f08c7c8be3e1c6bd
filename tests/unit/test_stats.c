/* Intervals and paired tests against published numbers, worked examples, and their own promise:
 * that 95 % of the intervals hold the truth. */
#include "stats.h"

#include "kvl/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("got %.9g, want %.9g", got, want);
}

/* Newcombe, Statistics in Medicine 17 (1998), table I, method 3: four decimals. */
static void test_wilson_published(void **state)
{
    (void)state;
    static const struct {
        double k, n, lo, hi;
    } rows[] = { { 81, 263, 0.2553, 0.3662 },
                 { 15, 148, 0.0624, 0.1605 },
                 { 0, 20, 0.0000, 0.1611 },
                 { 1, 29, 0.0061, 0.1718 } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvl_interval w = kvl_wilson(rows[i].k / rows[i].n, rows[i].n);
        near(w.mean, rows[i].k / rows[i].n, 1e-15);
        near(w.lo, rows[i].lo, 0.00005);
        near(w.hi, rows[i].hi, 0.00005);
    }
}

/* The bounds are where (p - x)^2 = z^2 x (1 - x) / n: the definition instead of the formula.
 * 45 of 50 by bisection of that equation: 0.786398, 0.956524. */
static void test_wilson_definition(void **state)
{
    (void)state;
    struct kvl_interval w = kvl_wilson(0.9, 50);
    near(w.lo, 0.786398, 1e-6);
    near(w.hi, 0.956524, 1e-6);
    const double z2 = 1.959963984540054 * 1.959963984540054;
    for (int n = 1; n < 200; n += 7) {
        for (int k = 0; k <= n; k++) {
            double p = (double)k / n;
            w = kvl_wilson(p, n);
            near((p - w.lo) * (p - w.lo), z2 * w.lo * (1 - w.lo) / n, 1e-12);
            near((p - w.hi) * (p - w.hi), z2 * w.hi * (1 - w.hi) / n, 1e-12);
            assert_true(w.lo <= p && p <= w.hi && w.lo >= 0 && w.hi <= 1);
        }
    }
    assert_true(isnan(kvl_wilson(0.5, 0).lo));
}

static double n_eff_of(const double *x, const int64_t *c, size_t n)
{
    double r = -1;
    assert_int_equal(kvl_n_eff(x, c, n, &r), KVL_OK);
    return r;
}

/* By hand from the formula in stats.h. */
static void test_n_eff_worked(void **state)
{
    (void)state;
    /* p = 1/2, T = 1, 0, 0, -1, sum T^2 = 2, sum (x - p)^2 = 2, D = 4/3, n_eff = 8 / (4/3) */
    const double x[] = { 1, 1, 1, 0, 1, 0, 0, 0 };
    const int64_t c[] = { 5, 5, -2, -2, 9, 9, 0, 0 };
    near(n_eff_of(x, c, 8), 6, 1e-12);
    /* The same, samples in another order. */
    const double y[] = { 0, 1, 0, 1, 1, 0, 1, 0 };
    const int64_t d[] = { 0, 5, -2, 9, 5, 9, -2, 0 };
    near(n_eff_of(y, d, 8), 6, 1e-12);
    /* All alike within a context: a context is one observation. */
    const double same[] = { 1, 1, 0, 0, 1, 1, 0, 0 };
    near(n_eff_of(same, c, 8), 4, 1e-12);
    /* Contexts alike: not more than n. */
    const double even[] = { 1, 0, 1, 0, 1, 0, 1, 0 };
    near(n_eff_of(even, c, 8), 8, 1e-12);
    /* One question each: independent. */
    const int64_t own[] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    near(n_eff_of(x, own, 8), 8, 1e-12);
    /* What cannot be estimated is the number of contexts. */
    const double ones[] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    near(n_eff_of(ones, c, 8), 4, 1e-12);
    const int64_t one[] = { 3, 3, 3, 3, 3, 3, 3, 3 };
    near(n_eff_of(x, one, 8), 1, 1e-12);
    near(n_eff_of(x, c, 0), 0, 0);
}

/* Contexts with 8 questions whose chance of success is one of `easy` or `hard`: the truth is known,
 * and counting questions as independent would hold it far too rarely. */
static void clustered_trial(struct kvl_rng *rng, double spread, double *x, int64_t *c, size_t n)
{
    double chance = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % 8 == 0) chance = 0.6 + (kvl_rng_below(rng, 2) ? spread : -spread);
        c[i] = (int64_t)(i / 8);
        x[i] = kvl_rng_f64(rng) < chance;
    }
}

static void test_coverage(void **state)
{
    (void)state;
    enum { TRIALS = 4000, CONTEXTS = 40, N = CONTEXTS * 8 };
    static double x[N];
    static int64_t c[N];
    struct kvl_rng rng;
    kvl_rng_seed(&rng, 7);
    for (int s = 0; s < 3; s++) {
        int held = 0, naive = 0;
        for (int t = 0; t < TRIALS; t++) {
            clustered_trial(&rng, 0.15 * s, x, c, N);
            double sum = 0;
            for (int i = 0; i < N; i++) sum += x[i];
            struct kvl_interval w = kvl_wilson(sum / N, n_eff_of(x, c, N));
            held += w.lo <= 0.6 && 0.6 <= w.hi;
            w = kvl_wilson(sum / N, N);
            naive += w.lo <= 0.6 && 0.6 <= w.hi;
        }
        if (held < 0.935 * TRIALS || held > 0.975 * TRIALS)
            fail_msg("spread %g: %d of %d intervals hold the truth", 0.15 * s, held, TRIALS);
        if (s == 2) assert_true(naive < 0.89 * TRIALS);
    }
}

/* By hand from the formulas in stats.h. */
static void test_icc_worked(void **state)
{
    (void)state;
    const double x[] = { 1, 1, 1, 0, 1, 0, 0, 0 }, ones[] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    const int64_t c[] = { 5, 5, -2, -2, 9, 9, 0, 0 }, one[] = { 3, 3, 3, 3, 3, 3, 3, 3 };
    struct kvl_spread s;
    struct kvl_icc icc = { 0 };
    near(kvl_icc_value(&icc), 1, 0); /* nothing is known */
    assert_int_equal(kvl_spread_of(x, c, 8, &s), KVL_OK);
    near(s.between, 2, 1e-12);
    near(s.simple, 2, 1e-12);
    near(s.n_contexts, 4, 0);
    kvl_icc_add(&icc, &s); /* (4/3 * 2 - 2 + 1/4) / (2 + 1/4) */
    near(kvl_icc_value(&icc), 11.0 / 27.0, 1e-12);
    /* All right: it has nothing to tell, and is told by the other. */
    assert_int_equal(kvl_spread_of(ones, c, 8, &s), KVL_OK);
    kvl_icc_add(&icc, &s);
    near(kvl_icc_value(&icc), 11.0 / 27.0, 1e-12);
    near(kvl_n_eff_of_icc(&s, kvl_icc_value(&icc)), 8 / (1 + 11.0 / 27.0), 1e-12);
    near(kvl_n_eff_of_icc(&s, 0), 8, 1e-12);
    /* One context tells nothing of others. */
    assert_int_equal(kvl_spread_of(x, one, 8, &s), KVL_OK);
    kvl_icc_add(&icc, &s);
    near(kvl_icc_value(&icc), 11.0 / 27.0, 1e-12);
    near(kvl_n_eff_of_icc(&s, 1), 1, 1e-12);
    /* What a cell tells alone counts where that is less: D = 4/3. */
    assert_int_equal(kvl_spread_of(x, c, 8, &s), KVL_OK);
    near(kvl_n_eff_of_icc(&s, 0), 6, 1e-12);
    near(kvl_n_eff_of_icc(&s, 0.5), 8 / 1.5, 1e-12);
    near(kvl_n_eff_of_icc(&s, 1), 4, 1e-12);
    /* Contexts that are more alike than chance: not below 0 but for the weight of what is known before. */
    const double even[] = { 1, 0, 1, 0, 1, 0, 1, 0 };
    icc = (struct kvl_icc){ 0 };
    assert_int_equal(kvl_spread_of(even, c, 8, &s), KVL_OK);
    kvl_icc_add(&icc, &s);
    near(kvl_icc_value(&icc), 0.25 / 2.25, 1e-12);
    /* Only cells that are all right: as many observations as contexts. */
    icc = (struct kvl_icc){ 0 };
    assert_int_equal(kvl_spread_of(ones, c, 8, &s), KVL_OK);
    kvl_icc_add(&icc, &s);
    near(kvl_n_eff_of_icc(&s, kvl_icc_value(&icc)), 4, 1e-12);
}

/* A task of seven methods on the same contexts.  An answer follows its context with chance sqrt(r), else
 * it is its own: two of one context have correlation r, whatever the rate.  A context that is easy for
 * one method is easy for all. */
enum { ICC_RATES = 7 };
static const double icc_rates[ICC_RATES] = { 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995 };

struct icc_design {
    int contexts, questions;
    double icc;
};

static void icc_scores(struct kvl_rng *rng, const struct icc_design *d, double x[ICC_RATES][64])
{
    double follows = sqrt(d->icc);
    for (int c = 0; c < d->contexts; c++) {
        double luck = kvl_rng_f64(rng);
        for (int i = 0; i < ICC_RATES; i++)
            for (int q = 0; q < d->questions; q++) {
                bool context = kvl_rng_f64(rng) < follows;
                double own = kvl_rng_f64(rng);
                x[i][c * d->questions + q] = (context ? luck : own) < icc_rates[i];
            }
    }
}

/* How many of the intervals hold the truth, of each rate: by all cells, and by each cell alone. */
static void icc_trial(const struct icc_design *d, double x[ICC_RATES][64], int *pooled, int *alone)
{
    int n = d->contexts * d->questions;
    int64_t context[64];
    struct kvl_spread s[ICC_RATES];
    struct kvl_icc icc = { 0 };
    for (int k = 0; k < n; k++) context[k] = k / d->questions;
    for (int i = 0; i < ICC_RATES; i++) {
        assert_int_equal(kvl_spread_of(x[i], context, (size_t)n, &s[i]), KVL_OK);
        kvl_icc_add(&icc, &s[i]);
    }
    for (int i = 0; i < ICC_RATES; i++) {
        double mean = 0;
        for (int k = 0; k < n; k++) mean += x[i][k] / n;
        struct kvl_interval w = kvl_wilson(mean, kvl_n_eff_of_icc(&s[i], kvl_icc_value(&icc)));
        pooled[i] += w.lo <= icc_rates[i] && icc_rates[i] <= w.hi;
        w = kvl_wilson(mean, n_eff_of(x[i], context, (size_t)n));
        alone[i] += w.lo <= icc_rates[i] && icc_rates[i] <= w.hi;
    }
}

/* The table of results/README.md: KVL_SHOW=1 prints its rows.  Of 8 contexts with 8 questions each, the
 * intervals of cells alone held the truth in 81 of 100 cases where contexts matter most. */
static void test_icc_coverage(void **state)
{
    (void)state;
    enum { TRIALS = 4000 };
    static double x[ICC_RATES][64];
    static const struct icc_design designs[] = { { 8, 8, 0 },    { 8, 8, 0.05 }, { 8, 8, 0.15 },
                                                 { 8, 8, 0.3 },  { 8, 8, 0.6 },  { 20, 2, 0 },
                                                 { 20, 2, 0.3 }, { 20, 2, 0.6 } };
    struct kvl_rng rng;
    kvl_rng_seed(&rng, 11);
    for (size_t d = 0; d < sizeof designs / sizeof designs[0]; d++) {
        int pooled[ICC_RATES] = { 0 }, alone[ICC_RATES] = { 0 }, all = 0;
        for (int t = 0; t < TRIALS; t++) {
            icc_scores(&rng, &designs[d], x);
            icc_trial(&designs[d], x, pooled, alone);
        }
        if (getenv("KVL_SHOW"))
            printf("| %d x %d | %g |", designs[d].contexts, designs[d].questions, designs[d].icc);
        for (int i = 0; i < ICC_RATES; i++) {
            all += pooled[i];
            if (getenv("KVL_SHOW"))
                printf(" %.1f (%.1f) |", 100.0 * pooled[i] / TRIALS, 100.0 * alone[i] / TRIALS);
            if (pooled[i] < 0.93 * TRIALS)
                fail_msg("%d contexts of %d, correlation %g, rate %g: %d of %d intervals hold it",
                         designs[d].contexts, designs[d].questions, designs[d].icc, icc_rates[i],
                         pooled[i], TRIALS);
        }
        if (getenv("KVL_SHOW")) printf("\n");
        if (all < 0.945 * TRIALS * ICC_RATES)
            fail_msg("correlation %g: %d of %d intervals hold the truth", designs[d].icc, all,
                     TRIALS * ICC_RATES);
    }
}

/* Differences of two policies in contexts that matter: -1, 0 or 1 with 0.2, 0.7, 0.1; a share of the answers to a
 * context goes with its luck. */
static void paired_trial(struct kvl_rng *rng, bool differ, int contexts, int questions, double *x,
                         int64_t *c)
{
    for (int i = 0; i < contexts; i++) {
        double luck = kvl_rng_f64(rng);
        for (int q = 0; q < questions; q++) {
            double own = kvl_rng_f64(rng), u = kvl_rng_f64(rng) < 0.5 ? luck : own;
            x[i * questions + q] = u < (differ ? 0.2 : 0.15) ? -1 : u > (differ ? 0.9 : 0.85);
            c[i * questions + q] = i;
        }
    }
}

/* Intervals of few contexts, which the percentiles of a plain bootstrap hold in 73 of 100 cases for 3 contexts and in
 * 87 for 8; and how often two policies that do not differ get a verdict. */
static void test_paired_coverage(void **state)
{
    (void)state;
    enum { TRIALS = 800, MOST = 40 };
    static const int designs[][2] = { { 2, 4 }, { 3, 8 },  { 5, 8 }, { 6, 4 },
                                      { 8, 4 }, { 10, 1 }, { 20, 2 } };
    double x[MOST], zero[MOST] = { 0 };
    int64_t c[MOST];
    struct kvl_rng rng;
    kvl_rng_seed(&rng, 5);
    for (size_t d = 0; d < sizeof designs / sizeof designs[0]; d++) {
        int contexts = designs[d][0], n = contexts * designs[d][1], held = 0, verdicts = 0;
        for (int t = 0; t < TRIALS; t++) {
            struct kvl_paired p;
            for (int differ = 0; differ < 2; differ++) {
                paired_trial(&rng, differ, contexts, designs[d][1], x, c);
                assert_int_equal(kvl_paired_diff(x, zero, c, (size_t)n, KVL_RANGE_DIFF, 3, &p),
                                 KVL_OK);
                assert_true(p.diff.lo < p.diff.hi);
                if (differ) held += p.diff.lo <= -0.1 && -0.1 <= p.diff.hi;
                if (!differ)
                    verdicts += p.p_value < KVL_VERDICT_P && (p.diff.lo > 0 || p.diff.hi < 0);
            }
        }
        if (getenv("KVL_SHOW"))
            printf("%d x %d: %.1f hold the truth, %.1f verdicts\n", contexts, designs[d][1],
                   100.0 * held / TRIALS, 100.0 * verdicts / TRIALS);
        if (held < 0.94 * TRIALS)
            fail_msg("%d contexts of %d: %d of %d intervals hold the truth", contexts,
                     designs[d][1], held, TRIALS);
        if (verdicts > (contexts < KVL_VERDICT_CONTEXTS ? 0 : 0.055 * TRIALS))
            fail_msg("%d contexts of %d: %d of %d verdicts without any difference", contexts,
                     designs[d][1], verdicts, TRIALS);
    }
}

static void test_bootstrap_coverage(void **state)
{
    (void)state;
    enum { TRIALS = 400, CONTEXTS = 40, N = CONTEXTS * 8 };
    static double x[N];
    static int64_t c[N];
    struct kvl_rng rng;
    kvl_rng_seed(&rng, 8);
    int held = 0;
    for (int t = 0; t < TRIALS; t++) {
        struct kvl_interval b;
        clustered_trial(&rng, 0.3, x, c, N);
        assert_int_equal(kvl_mean_interval(x, c, N, KVL_RANGE_SHARE, (uint64_t)t, &b), KVL_OK);
        held += b.lo <= 0.6 && 0.6 <= b.hi;
    }
    if (held < 0.90 * TRIALS || held > 0.98 * TRIALS)
        fail_msg("%d of %d intervals hold the truth", held, TRIALS);
}

/* Four contexts with sums 0, 0, 4, 4 of 4: V_cluster = 4/3 * 16 / 16^2 = 1/12, t = 3.182: 0.5 -+ 0.919,
 * within what can be.  Equal contexts: q = 3.8415 / 7.8415 = 0.48989. */
static void test_interval_worked(void **state)
{
    (void)state;
    double x[16];
    int64_t c[16];
    for (int i = 0; i < 16; i++) {
        c[i] = i / 4;
        x[i] = c[i] >= 2;
    }
    struct kvl_interval b, again;
    assert_int_equal(kvl_mean_interval(x, c, 16, KVL_RANGE_SHARE, 1, &b), KVL_OK);
    near(b.mean, 0.5, 1e-15);
    near(b.lo, 0, 0);
    near(b.hi, 1, 0);
    assert_int_equal(kvl_mean_interval(x, c, 16, KVL_RANGE_ANY, 1, &b), KVL_OK);
    near(b.lo, 0.5 - 3.182 * sqrt(1.0 / 12), 1e-9);
    near(b.hi, 0.5 + 3.182 * sqrt(1.0 / 12), 1e-9);
    for (int i = 0; i < 16; i++) x[i] = i % 4 / 3.0;
    assert_int_equal(kvl_mean_interval(x, c, 16, KVL_RANGE_SHARE, 1, &b), KVL_OK);
    near(b.lo, 0.5 - 0.5 * 0.48989, 1e-5);
    near(b.hi, 0.5 + 0.5 * 0.48989, 1e-5);
    assert_int_equal(kvl_mean_interval(x, c, 16, KVL_RANGE_ANY, 1, &b), KVL_OK);
    assert_true(!isnan(b.mean) && isnan(b.lo) && isnan(b.hi));
    for (int i = 0; i < 16; i++) x[i] = sqrt(i * 7 % 16);
    assert_int_equal(kvl_mean_interval(x, c, 16, KVL_RANGE_ANY, 5, &b), KVL_OK);
    assert_int_equal(kvl_mean_interval(x, c, 16, KVL_RANGE_ANY, 5, &again), KVL_OK);
    assert_memory_equal(&b, &again, sizeof b);
    assert_true(b.lo < b.mean && b.mean < b.hi);
    assert_int_equal(kvl_mean_interval(x, c, 4, KVL_RANGE_ANY, 5, &b), KVL_OK); /* one context */
    assert_true(!isnan(b.mean) && isnan(b.lo) && isnan(b.hi));
    assert_int_equal(kvl_mean_interval(x, c, 0, KVL_RANGE_ANY, 5, &b), KVL_OK);
    assert_true(isnan(b.mean));
}

/* The 97.5th percentiles of Student's distribution, from a table with three decimals; contexts of -1 and 1. */
static void test_interval_student(void **state)
{
    (void)state;
    static const struct {
        int contexts;
        double t;
    } rows[] = { { 2, 12.706 }, { 10, 2.262 },  { 12, 2.201 },
                 { 20, 2.093 }, { 40, 2.0227 }, { 120, 1.9801 } };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        double x[120];
        int64_t c[120];
        int n = rows[r].contexts;
        struct kvl_interval b;
        for (int i = 0; i < n; i++) c[i] = i, x[i] = i % 2 ? 1 : -1;
        assert_int_equal(kvl_mean_interval(x, c, (size_t)n, KVL_RANGE_ANY, 1, &b), KVL_OK);
        if (b.hi < rows[r].t / sqrt(n - 1) - 0.001) fail_msg("%d contexts: %g", n, b.hi);
        if (n < 4) near(b.hi, rows[r].t / sqrt(n - 1), 0.001); /* farther than any draw */
    }
}

/* By hand, over contexts: 2 / 2^2, 2 / 2^6; 3 - 1 + 2 = 4 is reached by 6, 4 and their negatives of 8. */
static void test_sign_flips(void **state)
{
    (void)state;
    double zero[40] = { 0 }, x[40];
    int64_t c[40];
    struct kvl_paired p;
    static const struct {
        int n;
        double d[6], p;
    } rows[] = { { 2, { -1, -1 }, 0.5 },
                 { 5, { 1, 1, 1, 1, 1 }, 2.0 / 32 },
                 { 6, { 1, 1, 1, 1, 1, 1 }, 2.0 / 64 },
                 { 3, { 3, -1, 2 }, 0.5 },
                 { 3, { 1, 2, 3 }, 0.25 },
                 { 3, { 0, 0, 0 }, 1 },
                 { 4, { 0, 0, 1, 2 }, 0.5 } };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        int n = 0; /* a context of d whole differences and one question without any */
        for (int i = 0; i < rows[r].n; i++)
            for (int q = 0; q < 4; q++, n++) {
                c[n] = 10 - i;
                x[n] = q < fabs(rows[r].d[i]) ? copysign(1, rows[r].d[i]) : 0;
            }
        assert_int_equal(kvl_paired_diff(x, zero, c, (size_t)n, KVL_RANGE_DIFF, 1, &p), KVL_OK);
        near(p.p_value, rows[r].p, 1e-12);
        assert_int_equal(p.n_contexts, rows[r].n);
    }
    for (int i = 0; i < 20; i++) c[i] = i, x[i] = (i + 1) / 20.0; /* drawn: 2 of 2^20 */
    assert_int_equal(kvl_paired_diff(x, zero, c, 20, KVL_RANGE_DIFF, 1, &p), KVL_OK);
    assert_true(p.p_value < 0.0005 && p.p_value > 0);
    for (int i = 0; i < 20; i += 2) x[i] = -x[i];
    assert_int_equal(kvl_paired_diff(x, zero, c, 20, KVL_RANGE_DIFF, 1, &p), KVL_OK);
    assert_true(p.p_value > 0.5);
}

/* One question per context.  Exact fractions: 1 of 10 is 2 (1 + 10) / 1024; 6 of 22 is 2 * 110056 / 2^22. */
static void test_mcnemar(void **state)
{
    (void)state;
    enum { N = 40 };
    double a[N], b[N];
    int64_t c[N];
    static const struct {
        int a_only, b_only;
        double p;
    } rows[] = { { 1, 9, 22.0 / 1024 }, { 9, 1, 22.0 / 1024 }, { 6, 16, 220112.0 / 4194304 },
                 { 3, 3, 1 },           { 0, 0, 1 },           { 0, 5, 2.0 / 32 } };
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        for (int i = 0; i < N; i++) {
            bool a_only = i < rows[r].a_only;
            bool b_only = !a_only && i < rows[r].a_only + rows[r].b_only;
            a[i] = b_only ? 0 : 1;
            b[i] = a_only ? 0 : 1;
            c[i] = i;
        }
        struct kvl_paired p;
        assert_int_equal(kvl_paired_diff(a, b, c, N, KVL_RANGE_DIFF, 3, &p), KVL_OK);
        assert_int_equal(p.n_a_only, rows[r].a_only);
        assert_int_equal(p.n_b_only, rows[r].b_only);
        near(p.p_value, rows[r].p, 1e-12);
        near(p.diff.mean, (rows[r].a_only - rows[r].b_only) / (double)N, 1e-12);
        assert_true(p.diff.lo <= p.diff.mean && p.diff.mean <= p.diff.hi);
    }
}

/* Holm (1979): the least p times n, the next times n - 1 ..., never less than one before it.  By hand. */
static void test_holm(void **state)
{
    double p[] = { 0.04, 0.001, KVL_NAN, 0.03, 0.5, 0.02 };
    static const double want[] = { 0.09, 0.005, 0, 0.09, 0.5, 0.08 };
    double one[] = { 0.3 }, high[] = { 0.9, 0.8 };
    (void)state;
    assert_int_equal(kvl_holm(p, 6, NULL), KVL_OK);
    for (size_t i = 0; i < 6; i++) assert_true(i == 2 ? isnan(p[i]) : fabs(p[i] - want[i]) < 1e-12);
    assert_int_equal(kvl_holm(one, 1, NULL), KVL_OK);
    assert_true(fabs(one[0] - 0.3) < 1e-12);
    assert_int_equal(kvl_holm(high, 2, NULL), KVL_OK);
    assert_true(fabs(high[0] - 1.0) < 1e-12 && fabs(high[1] - 1.0) < 1e-12);
    assert_int_equal(kvl_holm(NULL, 0, NULL), KVL_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_holm),
        cmocka_unit_test(test_wilson_published),
        cmocka_unit_test(test_wilson_definition),
        cmocka_unit_test(test_n_eff_worked),
        cmocka_unit_test(test_coverage),
        cmocka_unit_test(test_icc_worked),
        cmocka_unit_test(test_icc_coverage),
        cmocka_unit_test(test_bootstrap_coverage),
        cmocka_unit_test(test_paired_coverage),
        cmocka_unit_test(test_interval_worked),
        cmocka_unit_test(test_interval_student),
        cmocka_unit_test(test_sign_flips),
        cmocka_unit_test(test_mcnemar),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
