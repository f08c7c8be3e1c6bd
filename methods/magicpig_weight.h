/* magicpig_weight.h - how likely MagicPIG samples a key (magicpig.c). */
#ifndef KVL_MAGICPIG_WEIGHT_H
#define KVL_MAGICPIG_WEIGHT_H

#include <math.h>

/* P[Binomial(n_tables, p) >= 2] for p = (1 - theta / pi)^n_bits, theta the angle of this cosine:
 * the probability that two vectors share their codes in at least two of the tables. */
static inline double magicpig_weight(double cosine, int n_bits, int n_tables)
{
    const double pi = acos(-1.0);
    double p = pow(1 - acos(fmin(1.0, fmax(-1.0, cosine))) / pi, n_bits);
    return 1 - pow(1 - p, n_tables - 1) * (n_tables * p + 1 - p);
}

#endif
