/* kern_topk.h - finding the k largest of a row.
 *
 * Floats become integers of the same order, and a binary search over these integers counts, pass by
 * pass, how many reach the middle of what is left: it ends as soon as exactly k do.  Of a long row
 * some are searched first: between two of them the wanted one must lie, nearly always, and only what
 * lies there is searched.  Where it does not, the whole row is. */
#ifndef KVL_KERN_TOPK_H
#define KVL_KERN_TOPK_H

#include "kern_math.h"

#include "half.h"

enum {
    TOPK_STEP = 16,
    TOPK_LANES = 4 * VW,
    TOPK_LONG = 1024, /* rows of which some are searched first */
    TOPK_EACH = 16,   /* at most one of so many */
    TOPK_SOME = 4096  /* as many as are searched alone, at most */
};

/* Larger floats have larger keys; both zeros have the same. */
static bool topk_keys(int32_t *key, const float *x, int32_t n, int32_t *min, int32_t *max)
{
    int32_t lo = INT32_MAX, hi = INT32_MIN, nan = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t bits = (int32_t)kvl_f32_bits(x[i] + 0.0f);
        int32_t k = bits ^ (int32_t)((uint32_t)(bits >> 31) >> 1);
        nan |= x[i] != x[i];
        lo = KVL_MIN(lo, k);
        hi = KVL_MAX(hi, k);
        key[i] = k;
    }
    *min = lo;
    *max = hi;
    return !nan;
}

/* Four vectors side by side: a loop of one is so short that its speed changes with where it begins. */
static int32_t topk_count(const int32_t *key, int32_t n, int32_t least)
{
    int32_t part[TOPK_LANES] = { 0 }, count = 0, i = 0;
    for (; n - i >= TOPK_LANES; i += TOPK_LANES)
        for (int32_t l = 0; l < TOPK_LANES; l++) part[l] += key[i + l] >= least;
    for (; i < n; i++) count += key[i] >= least;
    for (int32_t l = 0; l < TOPK_LANES; l++) count += part[l];
    return count;
}

/* A key that k of n keys reach, exactly (*n_equal is then n: all that are equal count), or that more
 * reach than k, of which only the first *n_equal equal ones count. */
static int32_t topk_threshold(const int32_t *key, int32_t n, int32_t k, int32_t lo, int32_t hi,
                              int32_t *n_equal)
{
    *n_equal = n;
    while (lo < hi) {
        int32_t mid = (int32_t)(lo + ((int64_t)hi - lo + 1) / 2);
        int32_t count = topk_count(key, n, mid);
        if (count == k) return mid;
        if (count > k)
            lo = mid;
        else
            hi = mid - 1;
    }
    *n_equal = k - topk_count(key, n, lo + 1);
    return lo;
}

/* Two keys between which the k-th largest of n nearly always lies: those of a sample that stand three deviations before
 * and behind its share of k.  some: room for it. */
static void topk_guess(const int32_t *key, int32_t n, int32_t k, int32_t *some, int32_t *lo,
                       int32_t *hi)
{
    int32_t step = KVL_MAX((int32_t)TOPK_EACH, n / TOPK_SOME + 1);
    int32_t m = n / step, least = *lo, most = *hi, equal;
    for (int32_t i = 0; i < m; i++) some[i] = key[i * step + i % TOPK_EACH];
    float share = (float)k / (float)n, mid = share * (float)m;
    int32_t off = 1 + (int32_t)(3 * sqrtf(mid * (1 - share)));
    int32_t below = (int32_t)mid + off, above = (int32_t)mid - off;
    if (below < m) *lo = topk_threshold(some, m, below, least, most, &equal);
    if (above > 0) *hi = topk_threshold(some, m, above, *lo, most, &equal);
}

/* The keys from lo to hi: how many, or -1 where there are more than TOPK_SOME; *more: how many are larger. */
static int32_t topk_between(int32_t *some, const int32_t *key, int32_t n, int32_t lo, int32_t hi,
                            int32_t *more)
{
    int32_t m = 0, i = 0;
    *more = hi < INT32_MAX ? topk_count(key, n, hi + 1) : 0;
    for (; i + VW <= n; i += VW) {
        if (m > TOPK_SOME) return -1;
        m += vec_keep(some + m, key + i, lo, hi);
    }
    for (; i < n && m <= TOPK_SOME; i++)
        if (key[i] >= lo && key[i] <= hi) some[m++] = key[i];
    return m > TOPK_SOME ? -1 : m;
}

/* topk_threshold of a row of any length. */
static int32_t topk_least(const int32_t *key, int32_t n, int32_t k, int32_t lo, int32_t hi,
                          int32_t *n_equal)
{
    int32_t some[TOPK_SOME + VW + 1], from = lo, to = hi, more;
    if (n < TOPK_LONG) return topk_threshold(key, n, k, lo, hi, n_equal);
    topk_guess(key, n, k, some, &from, &to);
    int32_t m = topk_between(some, key, n, from, to, &more);
    if (m < 0 || more >= k || more + m < k) return topk_threshold(key, n, k, lo, hi, n_equal);
    int32_t least = topk_threshold(some, m, k - more, from, to, n_equal);
    if (*n_equal == m) *n_equal = n;
    return least;
}

/* Of keys that reach `least`, which k of them do: their indices, as long as a vector more has room; the first key that
 * was not looked at. */
static int32_t topk_exact(int32_t *index, const int32_t *key, int32_t n, int32_t k, int32_t least,
                          int32_t *found)
{
    int32_t m = 0, i = 0;
    for (; n - i >= VW && m + VW <= k; i += VW) m += vec_keep_places(index + m, key + i, least, i);
    *found = m;
    return i;
}

/* Indices of the k largest of x [n], ascending, ties to the lower index; key: room for n.
 * False: one of them is no number. */
static bool topk_row(int32_t *index, const float *x, int32_t n, int32_t k, int32_t *key)
{
    int32_t lo, hi, n_equal, found = 0;
    if (!topk_keys(key, x, n, &lo, &hi)) return false;
    if (k == 0) return true;
    int32_t least = topk_least(key, n, k, lo, hi, &n_equal);
    int32_t i = n_equal == n ? topk_exact(index, key, n, k, least, &found) : 0;
    for (; found < k; i += TOPK_STEP) {
        int32_t m = KVL_MIN(TOPK_STEP, n - i), any = 0;
        for (int32_t j = i; j < i + m; j++) any |= key[j] >= least;
        for (int32_t j = i; any && j < i + m && found < k; j++) {
            bool take = key[j] > least || (key[j] == least && n_equal-- > 0);
            index[found] = j;
            found += take;
        }
    }
    return true;
}

#endif
