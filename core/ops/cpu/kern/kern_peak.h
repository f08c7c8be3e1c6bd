/* kern_peak.h - as many loads or multiply-adds as the processor takes: independent chains, nothing
 * else.  Twelve chains cover a latency of four cycles on two or three units. */
#ifndef KVL_KERN_PEAK_H
#define KVL_KERN_PEAK_H

#include "kern_math.h"

enum { PEAK_CHAINS = 12, PEAK_STREAMS = 4 };

static float peak_read(const float *p, size_t n)
{
    vf sum[PEAK_STREAMS];
    size_t i = 0;
    for (int c = 0; c < PEAK_STREAMS; c++) sum[c] = vf_zero();
    for (; i + PEAK_STREAMS * VW <= n; i += PEAK_STREAMS * VW)
        for (int c = 0; c < PEAK_STREAMS; c++) sum[c] = vf_add(sum[c], vf_load(p + i + c * VW));
    float total = vf_hsum(vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3])));
    for (; i < n; i++) total += p[i];
    return total;
}

/* x [3]: two factors and a start that the compiler does not know. */
static float peak_fma(const float *x, int64_t n)
{
    vf sum[PEAK_CHAINS], a = vf_set1(x[0]), b = vf_set1(x[1]);
    for (int c = 0; c < PEAK_CHAINS; c++) sum[c] = vf_set1(x[2] + (float)c);
    for (int64_t i = 0; i < n; i++)
        for (int c = 0; c < PEAK_CHAINS; c++) sum[c] = vf_fma(a, b, sum[c]);
    for (int c = 1; c < PEAK_CHAINS; c++) sum[0] = vf_add(sum[0], sum[c]);
    return vf_hsum(sum[0]);
}

#if defined(VEC_HAS_BF16)
#define PEAK_DOTS peak_dots
static float peak_dots(const float *x, int64_t n)
{
    vf sum[PEAK_CHAINS];
    vb a = vb_round(vf_set1(x[0]), vf_set1(x[0])), b = vb_round(vf_set1(x[1]), vf_set1(x[1]));
    for (int c = 0; c < PEAK_CHAINS; c++) sum[c] = vf_set1(x[2] + (float)c);
    for (int64_t i = 0; i < n; i++)
        for (int c = 0; c < PEAK_CHAINS; c++) sum[c] = vf_dot_bf16(sum[c], a, b);
    for (int c = 1; c < PEAK_CHAINS; c++) sum[0] = vf_add(sum[0], sum[c]);
    return vf_hsum(sum[0]);
}
#else
#define PEAK_DOTS NULL
#endif

#endif
