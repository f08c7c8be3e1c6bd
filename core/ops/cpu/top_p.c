#include "cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Weights are not negative: as integers they have the same order, and the smallest one that is needed is found eleven, ten
 * and ten bits at a time by the sums of what has the same ones.  First what is too small is left out: weights of which even
 * n would not sum to what p leaves over.  The others are passed twice: for the first sums, and to mark what is larger than
 * the bin where these reach p, whose own few weights the other levels look at.  Nothing branches on a weight, which no
 * processor guesses. */
enum { LEVELS = 3, BINS = 1 << 11 };

static const int bits_below[LEVELS] = { 20, 10, 0 };
static const uint32_t bins_of[LEVELS] = { 1 << 11, 1 << 10, 1 << 10 };

static uint32_t key_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu; /* minus zero */
}

/* The bin in which the sum from the top reaches `need`; *above: the sum of those over it. */
static uint32_t least_bin(const double *bin, uint32_t n_bins, double need, double *above)
{
    uint32_t at = 0;
    double before = *above, sum = *above; /* the bin at hand left out, and with it */
    for (uint32_t b = n_bins; b-- > 0 && sum < need;) {
        if (!(bin[b] > 0)) continue;
        at = b;
        before = sum;
        sum += bin[b];
    }
    *above = before;
    return at;
}

/* Sums side by side: one after the other would wait for each addition. */
static double row_sum(const float *x, int32_t n)
{
    enum { LANES = 8 };
    double lane[LANES] = { 0 }, sum = 0;
    int32_t i = 0;
    for (; n - i >= LANES; i += LANES)
        for (int32_t l = 0; l < LANES; l++) lane[l] += (double)x[i + l];
    for (; i < n; i++) sum += (double)x[i];
    for (int32_t l = 0; l < LANES; l++) sum += lane[l];
    return sum;
}

/* The indices of what may be needed, of n weights that leave `over` behind at most. */
static int32_t large_ones(const float *x, int32_t n, double over, int32_t *large)
{
    const float least = (float)(over / (n + 1) * (1 - 1e-6)); /* sums are rounded */
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++) {
        large[m] = i;
        m += !(x[i] < least);
    }
    return m;
}

/* Of m weights marks what is over a bin of the first level; in `some` stay those in it. */
static int32_t mark_over(const float *x, int32_t m, uint32_t at, uint8_t *mark, int32_t *some)
{
    int32_t left = 0;
    for (int32_t i = 0; i < m; i++) {
        int32_t j = some[i];
        uint32_t bin = key_of(x[j]) >> bits_below[0];
        mark[j] |= bin > at;
        some[left] = j;
        left += bin == at;
    }
    return left;
}

/* Of m weights of a bin, those that are needed still. */
static void mark_same(const float *x, const int32_t *same, int32_t m, uint32_t prefix, double need,
                      double above, uint8_t *mark, double *bin)
{
    for (int level = 1; level < LEVELS; level++) {
        uint32_t n_bins = bins_of[level];
        memset(bin, 0, n_bins * sizeof *bin);
        for (int32_t i = 0; i < m; i++) {
            uint32_t key = key_of(x[same[i]]);
            if (key >> bits_below[level - 1] == prefix)
                bin[key >> bits_below[level] & (n_bins - 1)] += (double)x[same[i]];
        }
        prefix = prefix << 10 | least_bin(bin, n_bins, need, &above);
    }
    for (int32_t i = 0; i < m; i++) {
        uint32_t key = key_of(x[same[i]]);
        bool equal = key == prefix && above < need;
        mark[same[i]] |= key > prefix || equal;
        if (equal) above += (double)x[same[i]];
    }
}

/* some: room for n + 1. */
static bool top_p_row(const struct kvl_top_p_args *a, const float *x, uint8_t *mark, double *bin,
                      int32_t *some)
{
    int32_t n = a->n - (a->last ? 1 : 0);
    double above = 0, last = a->last ? (double)x[n] : 0, all = row_sum(x, n) + last;
    if (isnan(all)) return false;
    double need = (double)a->p * all - last;
    if (need <= 0) return true;
    int32_t m = large_ones(x, n, all - last - need, some);
    memset(bin, 0, bins_of[0] * sizeof *bin);
    for (int32_t i = 0; i < m; i++) bin[key_of(x[some[i]]) >> bits_below[0]] += (double)x[some[i]];
    uint32_t at = least_bin(bin, bins_of[0], need, &above);
    m = mark_over(x, m, at, mark, some);
    mark_same(x, some, m, at, need, above, mark, bin);
    return true;
}

/* The marked ones by their summed weight, at most k of them. */
static bool top_p_cut(const struct kvl_top_p_args *a, int32_t n, int32_t k, uint8_t *mark,
                      float *sum, int32_t *index)
{
    int32_t m = 0, *place = index + n, *keys = place + n;
    for (int32_t i = 0; i < n; i++) {
        place[m] = i;
        m += mark[i];
    }
    if (m <= k) return true;
    for (int32_t i = 0; i < m; i++) {
        double s = 0;
        for (int32_t r = 0; r < a->n_rows; r++)
            s += (double)a->weight[(size_t)r * a->stride + (size_t)place[i]];
        sum[i] = (float)s;
    }
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
        if (!top_p_row(a, a->weight + (size_t)r * a->stride, mark, bin, index)) return KVL_ENUMERIC;
    if (!top_p_cut(a, n, a->k - last, mark, sum, index)) return KVL_ENUMERIC;
    for (int32_t i = 0; i < n; i++)
        if (mark[i]) a->index[m++] = i;
    if (last) a->index[m++] = n;
    *a->n_index = m;
    return KVL_OK;
}
