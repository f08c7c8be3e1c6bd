/* A radix search for the k-th largest value, 11 + 8 + 8 + 5 bits, each digit among the keys that
 * share the digits before it; then one pass that collects in ascending order: O(n), exact. */
#include "ops/cpu/cpu.h"

#include "ops/half.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <string.h>

enum { TOPK_BINS = 2048 };

/* Larger floats have larger keys; both zeros have the same. */
static uint32_t topk_key(float x)
{
    uint32_t bits = kvl_f32_bits(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static bool topk_keys(const float *x, int32_t n, uint32_t *key)
{
    bool nan = false;
    for (int32_t i = 0; i < n; i++) {
        nan |= x[i] != x[i];
        key[i] = topk_key(x[i]);
    }
    return !nan;
}

/* Which digit the *need-th largest key has; *need becomes its rank among the keys with that digit.
 * Two tables in turn, because neighbours often have the same digit. */
static uint32_t topk_digit(const uint32_t *key, int32_t n, uint32_t shift, uint32_t width,
                           int32_t *need)
{
    int32_t count[2][TOPK_BINS], i = 0;
    uint32_t mask = (1u << width) - 1u, digit = mask;
    for (size_t t = 0; t < 2; t++) memset(count[t], 0, (mask + 1) * sizeof **count);
    for (; i + 2 <= n; i += 2) {
        count[0][key[i] >> shift & mask]++;
        count[1][key[i + 1] >> shift & mask]++;
    }
    if (i < n) count[0][key[i] >> shift & mask]++;
    for (; count[0][digit] + count[1][digit] < *need; digit--)
        *need -= count[0][digit] + count[1][digit];
    return digit;
}

/* Copies the keys that have this digit; `to` may be `from`. */
static int32_t topk_keep(uint32_t *to, const uint32_t *from, int32_t n, uint32_t shift,
                         uint32_t width, uint32_t digit)
{
    uint32_t mask = (1u << width) - 1u;
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t key = from[i];
        to[kept] = key;
        kept += (key >> shift & mask) == digit;
    }
    return kept;
}

/* The key of the k-th largest (k > 0), and how many keys equal to it belong to the k. */
static uint32_t topk_threshold(const uint32_t *key, int32_t n, int32_t k, uint32_t *rest,
                               int32_t *n_equal)
{
    static const uint32_t width[] = { 11, 8, 8, 5 }, shift[] = { 21, 13, 5, 0 };
    uint32_t threshold = 0;
    *n_equal = k;
    for (size_t i = 0; i < 4; i++) {
        uint32_t digit = topk_digit(i ? rest : key, n, shift[i], width[i], n_equal);
        threshold |= digit << shift[i];
        if (i < 3) n = topk_keep(rest, i ? rest : key, n, shift[i], width[i], digit);
    }
    return threshold;
}

/* key: room for 2 n keys. */
static int topk_row(const float *x, int32_t n, int32_t k, uint32_t *key, int32_t *index)
{
    int32_t found = 0, n_equal;
    if (!topk_keys(x, n, key)) return KVL_ENUMERIC;
    if (k == 0) return KVL_OK;
    uint32_t threshold = topk_threshold(key, n, k, key + n, &n_equal);
    for (int32_t i = 0; found < k; i++) {
        bool take = key[i] > threshold;
        if (key[i] == threshold && n_equal > 0) {
            take = true;
            n_equal--;
        }
        index[found] = i;
        found += take;
    }
    return KVL_OK;
}

int kvl_cpu_topk(const struct kvl_topk_args *a)
{
    int threads = kvl_team((double)a->n_rows * a->n * 3), status = KVL_OK;
    assert(a->k >= 0 && a->k <= a->n);
    uint32_t *keys = kvl_cpu_scratch((size_t)threads * 2 * (size_t)a->n * sizeof *keys);
    if (!keys) return KVL_ENOMEM;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)                    \
    reduction(min                                                                                  \
              : status)
    for (int32_t r = 0; r < a->n_rows; r++) {
        uint32_t *key = keys + (size_t)omp_get_thread_num() * 2 * (size_t)a->n;
        int s = topk_row(a->x + (size_t)r * a->x_stride, a->n, a->k, key,
                         a->index + (size_t)r * (size_t)a->k);
        status = KVL_MIN(status, s);
    }
    return status;
}
