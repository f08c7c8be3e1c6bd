/* A radix search for the k-th largest value, 11 + 11 + 10 bits, then one pass that collects in
 * ascending order: O(n), exact. */
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

/* Among keys whose bits above `shift + width` equal those of `prefix`, finds the digit of the
 * *need-th largest; *need becomes its rank among the keys with that digit. */
static uint32_t topk_digit(const uint32_t *key, int32_t n, uint32_t prefix, uint32_t shift,
                           uint32_t width, int32_t *need)
{
    int32_t count[TOPK_BINS] = { 0 };
    uint32_t above = shift + width, mask = (1u << width) - 1u, digit = mask;
    for (int32_t i = 0; i < n; i++)
        if (above == 32 || key[i] >> above == prefix) count[key[i] >> shift & mask]++;
    for (; count[digit] < *need; digit--) *need -= count[digit];
    return digit;
}

/* The key of the k-th largest (k > 0), and how many keys equal to it belong to the k. */
static uint32_t topk_threshold(const uint32_t *key, int32_t n, int32_t k, int32_t *n_equal)
{
    *n_equal = k;
    uint32_t prefix = topk_digit(key, n, 0, 21, 11, n_equal);
    prefix = prefix << 11 | topk_digit(key, n, prefix, 10, 11, n_equal);
    return prefix << 10 | topk_digit(key, n, prefix, 0, 10, n_equal);
}

static int topk_row(const float *x, int32_t n, int32_t k, uint32_t *key, int32_t *index)
{
    int32_t found = 0, n_equal;
    if (!topk_keys(x, n, key)) return KVL_ENUMERIC;
    if (k == 0) return KVL_OK;
    uint32_t threshold = topk_threshold(key, n, k, &n_equal);
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
    int threads = kvl_team((double)a->n_rows * a->n * 8), status = KVL_OK;
    assert(a->k >= 0 && a->k <= a->n);
    uint32_t *keys = kvl_cpu_scratch((size_t)threads * (size_t)a->n * sizeof *keys);
    if (!keys) return KVL_ENOMEM;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)                    \
    reduction(min                                                                                  \
              : status)
    for (int32_t r = 0; r < a->n_rows; r++) {
        uint32_t *key = keys + (size_t)omp_get_thread_num() * (size_t)a->n;
        int s = topk_row(a->x + (size_t)r * a->x_stride, a->n, a->k, key,
                         a->index + (size_t)r * (size_t)a->k);
        status = KVL_MIN(status, s);
    }
    return status;
}
