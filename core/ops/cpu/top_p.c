#include "cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Weights are not negative: as integers they have the same order, and the
 * smallest one that is needed is found eleven, ten and ten bits at a time by
 * the sums of what has the same ones.  Three passes over a row, whatever p is.
 */
enum { LEVELS = 3, BINS = 1 << 11 };

static const int bits_below[LEVELS] = { 20, 10, 0 };
static const uint32_t bins_of[LEVELS] = { 1 << 11, 1 << 10, 1 << 10 };

static uint32_t key_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu; /* minus zero */
}

/* The key that the least of the chosen ones has; *above: the sum of all that
 * are larger. */
static uint32_t least_key(const float *x, int32_t n, double need, double *bin, double *above)
{
    uint32_t prefix = 0;
    for (int level = 0; level < LEVELS; level++) {
        int below = bits_below[level], high = level ? bits_below[level - 1] : 31;
        uint32_t n_bins = bins_of[level], at = 0;
        memset(bin, 0, n_bins * sizeof *bin);
        for (int32_t i = 0; i < n; i++) {
            uint32_t key = key_of(x[i]);
            if (key >> high == prefix) bin[key >> below & (n_bins - 1)] += (double)x[i];
        }
        double before = *above, sum = *above; /* the bin at hand left out, and with it */
        for (uint32_t b = n_bins; b-- > 0 && sum < need;) {
            if (!(bin[b] > 0)) continue;
            at = b;
            before = sum;
            sum += bin[b];
        }
        *above = before;
        prefix = prefix << (level ? 10 : 11) | at;
    }
    return prefix;
}

static bool top_p_row(const struct kvl_top_p_args *a, const float *x, uint8_t *mark, double *bin)
{
    double all = 0, above = 0;
    int32_t n = a->n - (a->last ? 1 : 0);
    for (int32_t i = 0; i < a->n; i++) all += (double)x[i];
    if (isnan(all)) return false;
    double need = (double)a->p * all - (a->last ? (double)x[n] : 0);
    if (need <= 0) return true;
    uint32_t least = least_key(x, n, need, bin, &above);
    for (int32_t i = 0; i < n; i++) {
        uint32_t key = key_of(x[i]);
        if (key > least) mark[i] = 1;
        if (key != least || above >= need) continue;
        mark[i] = 1;
        above += (double)x[i];
    }
    return true;
}

/* The marked ones by their summed weight, at most k of them. */
static bool top_p_cut(const struct kvl_top_p_args *a, int32_t n, int32_t k, uint8_t *mark,
                      float *sum, int32_t *index)
{
    int32_t m = 0, *place = index + n, *keys = place + n;
    for (int32_t i = 0; i < n; i++) {
        double s = 0;
        if (!mark[i]) continue;
        for (int32_t r = 0; r < a->n_rows; r++)
            s += (double)a->weight[(size_t)r * a->stride + (size_t)i];
        sum[m] = (float)s;
        place[m++] = i;
    }
    if (m <= k) return true;
    if (!kvl_kern()->topk_row(index, sum, m, k, keys)) return false;
    memset(mark, 0, (size_t)n);
    for (int32_t i = 0; i < k; i++) mark[place[index[i]]] = 1;
    return true;
}

int kvl_cpu_top_p(const struct kvl_top_p_args *a)
{
    int32_t last = a->last ? 1 : 0, n = a->n - last, m = 0;
    size_t room = (size_t)a->n + 1;
    assert(n >= 0 && a->k >= last);
    double *bin = kvl_cpu_scratch(BINS * sizeof *bin + 4 * room * sizeof(float) + room);
    if (!bin) return KVL_ENOMEM;
    float *sum = (float *)(void *)(bin + BINS);
    int32_t *index = (int32_t *)(void *)(sum + room);
    uint8_t *mark = (uint8_t *)(index + 3 * room);
    memset(mark, 0, room);
    for (int32_t r = 0; r < a->n_rows; r++)
        if (!top_p_row(a, a->weight + (size_t)r * a->stride, mark, bin)) return KVL_ENUMERIC;
    if (!top_p_cut(a, n, a->k - last, mark, sum, index)) return KVL_ENUMERIC;
    for (int32_t i = 0; i < n; i++)
        if (mark[i]) a->index[m++] = i;
    if (last) a->index[m++] = n;
    *a->n_index = m;
    return KVL_OK;
}
