/* gemv_x.h - how gemv rounds a row of x for quantised weights, for ref and cpu alike, bit for bit.
 *
 * A block of 32 columns becomes integers from -32767 to 32767 and one scale; the largest of the block
 * is exact to float.  A block with infinities or NaN has a NaN for scale. */
#ifndef KVL_GEMV_X_H
#define KVL_GEMV_X_H

#include <float.h>
#include <math.h>
#include <stdint.h>

/* The scale of a block whose largest absolute value is `top`; *times = what to multiply by. */
static inline float kvl_gemv_scale(float top, float *times)
{
    *times = 0;
    if (!(top <= FLT_MAX)) return NAN;
    if (top < 1e-30f) return 0; /* 32767 / top would overflow for a subnormal */
    *times = 32767.0f / top;
    return top * (1.0f / 32767);
}

static inline int16_t kvl_gemv_round(float x, float times)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float v = x * times;
    float n = (v + magic) - magic;
    return (int16_t)(n == n ? n : 0);
}

#endif
