/* kern_row.h - kernels over rows of floats. */
#ifndef KVL_KERN_ROW_H
#define KVL_KERN_ROW_H

#include "kern_math.h"

static void rmsnorm_row(float *y, const float *x, const float *w, int32_t dim, float eps)
{
    vf sum = vf_zero();
    int32_t c = 0;
    for (; c + VW <= dim; c += VW) sum = vf_fma(vf_load(x + c), vf_load(x + c), sum);
    if (c < dim) {
        vf v = vf_load_n(x + c, dim - c);
        sum = vf_fma(v, v, sum);
    }
    float s = 1 / sqrtf(vf_hsum(sum) / (float)dim + eps);
    for (c = 0; c < dim; c++) y[c] = x[c] * s * w[c];
}

static void rotate(float *y, const float *x, const float *cs, int32_t head_dim,
                   const struct kvl_rope *rope)
{
    int32_t half = rope->n_rot / 2;
    const float *cosine = cs, *sine = cs + half;
    if (rope->style == KVL_ROPE_NORM) {
        for (int32_t i = 0; i < half; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            y[2 * i] = a * cosine[i] - b * sine[i];
            y[2 * i + 1] = a * sine[i] + b * cosine[i];
        }
    } else {
        for (int32_t i = 0; i < half; i++) {
            float a = x[i], b = x[i + half];
            y[i] = a * cosine[i] - b * sine[i];
            y[i + half] = a * sine[i] + b * cosine[i];
        }
    }
    for (int32_t i = rope->n_rot; y != x && i < head_dim; i++) y[i] = x[i];
}

VEC vf silu(vf g)
{
    vf one = vf_set1(1);
    return vf_div(g, vf_add(one, vf_exp(vf_sub(vf_zero(), g))));
}

static void swiglu(float *y, const float *gate, const float *up, size_t n)
{
    size_t i = 0;
    for (; i + VW <= n; i += VW) vf_store(y + i, vf_mul(silu(vf_load(gate + i)), vf_load(up + i)));
    int32_t rest = (int32_t)(n - i);
    if (rest)
        vf_store_n(y + i, vf_mul(silu(vf_load_n(gate + i, rest)), vf_load_n(up + i, rest)), rest);
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

static void exp_shift(float *x, float shift, size_t n)
{
    vf s = vf_set1(shift);
    size_t i = 0;
    for (; i + VW <= n; i += VW) vf_store(x + i, vf_exp(vf_sub(vf_load(x + i), s)));
    int32_t rest = (int32_t)(n - i);
    if (rest) vf_store_n(x + i, vf_exp(vf_sub(vf_load_n(x + i, rest), s)), rest);
}

static void blend(float *y, const float *const *part, const float *weight, int32_t n_parts,
                  int32_t dim)
{
    for (int32_t c = 0; c < dim; c++) y[c] = 0;
    for (int32_t p = 0; p < n_parts; p++) {
        if (weight[p] == 0) continue; /* the rows of an empty part may hold anything */
        for (int32_t c = 0; c < dim; c++) y[c] += weight[p] * part[p][c];
    }
}

static void max_into(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = x[i] > y[i] ? x[i] : y[i];
}

static void scale(float *y, float divisor, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] = y[i] / divisor;
}

#endif
