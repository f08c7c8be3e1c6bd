/* shadowkv_landmark.h - what stands for a chunk of keys in ShadowKV (shadowkv.c). */
#ifndef KVL_SHADOWKV_LANDMARK_H
#define KVL_SHADOWKV_LANDMARK_H

#include <math.h>
#include <stdint.h>

static inline double shadow_dot(const float *x, const float *y, int32_t n)
{
    double sum = 0;
    for (int32_t c = 0; c < n; c++) sum += (double)x[c] * (double)y[c];
    return sum;
}

/* The mean of n keys; returns the lowest cosine of one of them with it. */
static inline float shadow_landmark(const float *key, int32_t n, int32_t dim, float *landmark)
{
    double lowest = 1;
    for (int32_t c = 0; c < dim; c++) {
        double sum = 0;
        for (int32_t i = 0; i < n; i++) sum += (double)key[i * dim + c];
        landmark[c] = (float)(sum / n);
    }
    double own = shadow_dot(landmark, landmark, dim);
    for (int32_t i = 0; i < n; i++) {
        const float *k = key + i * dim;
        double norm = sqrt(own * shadow_dot(k, k, dim));
        lowest = fmin(lowest, norm > 0 ? shadow_dot(k, landmark, dim) / norm : 0);
    }
    return (float)lowest;
}

#endif
