/* vattention_budget.h - how many tokens a uniform sample needs for a promise (vattention.c). */
#ifndef KVL_VATTENTION_BUDGET_H
#define KVL_VATTENTION_BUDGET_H

#include <math.h>

/* x with P[standard normal <= x] = p, 0 < p < 1, to 1e-12. */
static inline double vattention_quantile(double p)
{
    double lo = -40, hi = 40;
    for (int i = 0; i < 120; i++) {
        double mid = (lo + hi) / 2;
        if (0.5 * erfc(-mid / sqrt(2.0)) < p)
            lo = mid;
        else
            hi = mid;
    }
    return (lo + hi) / 2;
}

/* Tokens of n to sample so that the estimate of a sum of terms with standard deviation sigma is off by
 * more than epsilon * total with probability delta at most; z = quantile(1 - delta).  Not rounded. */
static inline double vattention_need(double z, double sigma, double n, double epsilon, double total)
{
    double root = z * sigma * n / (epsilon * total);
    return root * root;
}

#endif
