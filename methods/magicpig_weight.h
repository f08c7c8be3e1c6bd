/* magicpig_weight.h - how likely MagicPIG samples a key (magicpig.c). */
#ifndef KVL_MAGICPIG_WEIGHT_H
#define KVL_MAGICPIG_WEIGHT_H

#include <math.h>

/* x^n, n >= 0. */
static inline double magicpig_power(double x, int n)
{
    double power = 1;
    for (; n > 0; n /= 2, x *= x)
        if (n % 2) power *= x;
    return power;
}

/* P[Binomial(n_tables, p) >= 2] for p = (1 - theta / pi)^n_bits, theta the angle of this cosine:
 * the probability that two vectors share their codes in at least two of the tables. */
static inline double magicpig_weight(double cosine, int n_bits, int n_tables)
{
    const double pi = 3.14159265358979323846;
    double p = magicpig_power(1 - acos(fmin(1.0, fmax(-1.0, cosine))) / pi, n_bits);
    return 1 - magicpig_power(1 - p, n_tables - 1) * (n_tables * p + 1 - p);
}

#endif
