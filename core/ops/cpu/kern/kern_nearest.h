/* kern_nearest.h - which of many numbers is the largest.
 *
 * Every lane keeps its largest number and where it stood; of lanes that have the same, the smallest place wins.
 * What is no number is rare: lanes only see that there is one, and the definition's own loop begins anew. */
#ifndef KVL_KERN_NEAREST_H
#define KVL_KERN_NEAREST_H

#include "kern_math.h"

#include "half.h"

/* Numbers from `at` on, a vector of them. */
VEC vf nearest_some(const float *dot, const float *scale, const float *bias, int32_t at)
{
    return vf_add(vf_mul(vf_load(dot + at), vf_load(scale + at)), vf_load(bias + at));
}

/* Of the first n numbers, whole vectors.  False: one of them is no number or infinite. */
VEC bool nearest_lanes(const float *dot, const float *scale, const float *bias, int32_t n,
                       int32_t *at, float *most)
{
    vf best = nearest_some(dot, scale, bias, 0), from = vf_zero();
    vf zero = vf_mul(best, vf_zero()); /* but for what is not finite */
    float value[VW], first[VW];
    for (int32_t i = VW; i < n; i += VW) {
        vf y = nearest_some(dot, scale, bias, i);
        from = vf_if_more(y, best, vf_set1(kvl_bits_f32((uint32_t)i)), from);
        best = vf_max(y, best);
        zero = vf_fma(y, vf_zero(), zero);
    }
    if (vf_hsum(zero) != 0) return false;
    float top = vf_hmax(best);
    int32_t found = n;
    vf_store(value, best);
    vf_store(first, from);
    for (int32_t l = 0; l < VW; l++) {
        int32_t place = (int32_t)kvl_f32_bits(first[l]) + l;
        found = value[l] == top && place < found ? place : found;
    }
    *at = found;
    *most = value[found % VW];
    return true;
}

static int32_t nearest(const float *dot, const float *scale, const float *bias, int32_t n,
                       float *most)
{
    int32_t at = 0, i = n / VW * VW;
    float best;
    if (i == 0 || !nearest_lanes(dot, scale, bias, i, &at, &best)) {
        best = dot[0] * scale[0] + bias[0];
        i = 1;
    }
    for (; i < n; i++) {
        float y = dot[i] * scale[i] + bias[i];
        if (y <= best) continue;
        best = y;
        at = i;
    }
    *most = best;
    return at;
}

#endif
