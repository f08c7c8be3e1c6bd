/* fastgen_profile.h - what the five policies of FastGen would keep of a context, and how much of a head's
 * attention that is.
 *
 * Included once, by fastgen.c.  Policies are a chain, each keeping what the one before it keeps:
 *   special < punct < frequent < local < full
 */
#ifndef FASTGEN_PROFILE_H
#define FASTGEN_PROFILE_H

#include "kvl/policy.h"

#include <math.h>

enum fastgen_policy {
    FASTGEN_SPECIAL = 0,
    FASTGEN_PUNCT,
    FASTGEN_FREQUENT,
    FASTGEN_LOCAL,
    FASTGEN_FULL,
    FASTGEN_POLICIES,
};

/* Of every position: the first policy of the chain that keeps it for what it is or has received; LOCAL
 * stands for tokens that only being recent keeps. */
struct fastgen_context {
    const uint8_t *level; /* [n] SPECIAL, PUNCT, FREQUENT or LOCAL */
    int32_t n, window; /* newest tokens that LOCAL keeps of what a query sees, its own included */
};

/* One kv head: of each policy, the part of the attention that it keeps, and tokens kept at the end. */
struct fastgen_lane {
    float recovery[FASTGEN_POLICIES];
    int32_t size[FASTGEN_POLICIES];
};

static inline void fastgen_sizes(const struct fastgen_context *c, int32_t *size)
{
    for (int p = 0; p < FASTGEN_POLICIES; p++) size[p] = 0;
    for (int32_t j = 0; j < c->n; j++) {
        size[FASTGEN_FULL]++;
        size[FASTGEN_LOCAL] += c->level[j] < FASTGEN_LOCAL || j >= c->n - c->window;
        for (int p = c->level[j]; p < FASTGEN_LOCAL; p++) size[p]++;
    }
}

/* Mass that is kept, a mean over all queries: `all` [n] is what every token received from all of them,
 * `near` [n] from the `window` queries from its own on.  A query's window holds a token exactly while the
 * query is among those. */
static inline void fastgen_mass(const struct fastgen_context *c, const float *all,
                                const float *near, float *recovery)
{
    double kept[FASTGEN_POLICIES] = { 0 };
    for (int32_t j = 0; j < c->n; j++) {
        for (int p = c->level[j]; p < FASTGEN_LOCAL; p++) kept[p] += (double)all[j];
        kept[FASTGEN_LOCAL] += (double)(c->level[j] < FASTGEN_LOCAL ? all[j] : near[j]);
    }
    for (int p = 0; p < FASTGEN_FULL; p++) recovery[p] = (float)(kept[p] / c->n);
    recovery[FASTGEN_FULL] = 1;
}

/* Adds |a - b|, the sum of absolute differences, of one query to distance [FASTGEN_POLICIES]: a its weights
 * on the positions up to `at`, b those that a softmax over what a policy keeps of them gives.  Kept weights
 * grow to a sum of 1: they gain what the others lose. */
static inline void fastgen_distance(const struct fastgen_context *c, const float *a, int32_t at,
                                    double *distance)
{
    double mass[FASTGEN_FULL] = { 0 }, all = 0;
    for (int32_t j = 0; j <= at; j++) {
        all += (double)a[j];
        for (int p = 0; p < FASTGEN_FULL; p++) {
            bool local = p == FASTGEN_LOCAL && j > at - c->window;
            bool kept = c->level[j] <= KVL_MIN(p, FASTGEN_FREQUENT) || local;
            mass[p] += kept ? (double)a[j] : 0;
        }
    }
    for (int p = 0; p < FASTGEN_FULL; p++) {
        double gained = mass[p] > 0 ? fmax(0, 1 - mass[p]) : 0;
        distance[p] += gained + fmax(0, all - mass[p]);
    }
}

/* The cheapest policy that recovers enough; 1: everything, whatever sums are rounded to. */
static inline enum fastgen_policy fastgen_choose(const struct fastgen_lane *lane, double threshold)
{
    int p = 0;
    while (p < FASTGEN_FULL && (threshold >= 1 || (double)lane->recovery[p] < threshold)) p++;
    return (enum fastgen_policy)p;
}

/* Tokens that a lane holds on average after `more` steps, if its kinds of token go on as they were. */
static inline double fastgen_mean_size(const struct fastgen_lane *lane, int32_t n_lanes, int32_t n,
                                       int32_t more, double threshold)
{
    double sum = 0;
    for (int32_t i = 0; i < n_lanes; i++)
        sum += lane[i].size[fastgen_choose(&lane[i], threshold)] * (1 + (double)more / n);
    return sum / n_lanes;
}

/* The largest threshold with which lanes hold at most `most` tokens on average; when there is none, 0, or
 * less where that is what all lanes recover with the cheapest policy (distances go up to 2); 1 when all of
 * the n fit. */
static inline double fastgen_threshold(const struct fastgen_lane *lane, int32_t n_lanes, int32_t n,
                                       int32_t more, int32_t most)
{
    double low = 0, high = 1;
    if (n <= most) return high;
    for (int32_t i = 0; i < n_lanes; i++)
        low = KVL_MIN(low, (double)lane[i].recovery[FASTGEN_SPECIAL]);
    for (int i = 0; i < 40; i++) {
        double middle = (low + high) / 2;
        if (fastgen_mean_size(lane, n_lanes, n, more, middle) <= most)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#endif
