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

/* VW / 2 pairs of neighbours; y may be x. */
VEC void rotate_pairs(float *y, const float *x, const float *cosine, const float *sine)
{
    vf v = vf_load(x);
    vf_store(y, vf_less_more(vf_mul(v, vf_pairs(cosine)), vf_mul(vf_swap(v), vf_pairs(sine))));
}

/* VW pairs whose members lie `half` apart; y may be x. */
VEC void rotate_halves(float *y, const float *x, const float *cosine, const float *sine,
                       size_t half)
{
    vf a = vf_load(x), b = vf_load(x + half), c = vf_load(cosine), s = vf_load(sine);
    vf_store(y, vf_sub(vf_mul(a, c), vf_mul(b, s)));
    vf_store(y + half, vf_add(vf_mul(a, s), vf_mul(b, c)));
}

/* y may be x: what is turned is read before it is written. */
static void rotate(float *y, const float *x, const float *cs, int32_t head_dim,
                   const struct kvl_rope *rope)
{
    const bool norm = rope->style == KVL_ROPE_NORM;
    const int32_t half = rope->n_rot / 2;
    const float *sine = cs + half;
    int32_t i = 0;
    for (; norm && i + VW / 2 <= half; i += VW / 2)
        rotate_pairs(y + 2 * i, x + 2 * i, cs + i, sine + i);
    for (; !norm && i + VW <= half; i += VW)
        rotate_halves(y + i, x + i, cs + i, sine + i, (size_t)half);
    for (; i < half; i++) {
        const int32_t at = norm ? 2 * i : i, other = at + (norm ? 1 : half);
        float a = x[at], b = x[other];
        y[at] = a * cs[i] - b * sine[i];
        y[other] = a * sine[i] + b * cs[i];
    }
    for (i = rope->n_rot; y != x && i < head_dim; i++) y[i] = x[i];
}

/* g / (1 + exp(-a)) */
VEC vf times_sigmoid(vf g, vf a)
{
    vf one = vf_set1(1);
    return vf_div(g, vf_add(one, vf_exp(vf_sub(vf_zero(), a))));
}

/* tanh of GELU as a sigmoid: 1 + tanh(u) = 2 / (1 + exp(-2 u)). */
VEC vf gelu_tanh(vf g)
{
    vf cube = vf_mul(vf_mul(g, g), g);
    vf inner = vf_fma(vf_set1(0.044715f), cube, g);
    return times_sigmoid(g, vf_mul(vf_set1(1.5957691216f), inner));
}

VEC vf glu_clamped(vf g, vf u)
{
    vf most = vf_set1(7);
    g = vf_min(g, most);
    u = vf_add(vf_min(vf_max(u, vf_set1(-7)), most), vf_set1(1));
    return vf_mul(times_sigmoid(g, vf_mul(vf_set1(1.702f), g)), u);
}

VEC vf glu_act(vf g, enum kvl_act act)
{
    if (act == KVL_ACT_GELU_TANH) return gelu_tanh(g);
    return act == KVL_ACT_RELU ? vf_max(g, vf_zero()) : times_sigmoid(g, g);
}

/* By libm, an element at a time. */
static void glu_erf(float *y, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float act = 0.5f * gate[i] * (1 + erff(gate[i] * 0.70710678f));
        y[i] = up ? act * up[i] : act;
    }
}

VEC vf glu_one(vf g, const float *up, int32_t n, enum kvl_act act)
{
    if (!up) return glu_act(g, act);
    vf u = n == VW ? vf_load(up) : vf_load_n(up, n);
    return act == KVL_ACT_SWISH_CLAMPED ? glu_clamped(g, u) : vf_mul(glu_act(g, act), u);
}

static void glu(float *y, const float *gate, const float *up, size_t n, enum kvl_act act)
{
    size_t i = 0;
    if (act == KVL_ACT_GELU) {
        glu_erf(y, gate, up, n);
        return;
    }
    for (; i + VW <= n; i += VW)
        vf_store(y + i, glu_one(vf_load(gate + i), up ? up + i : NULL, VW, act));
    int32_t rest = (int32_t)(n - i);
    if (rest)
        vf_store_n(y + i, glu_one(vf_load_n(gate + i, rest), up ? up + i : NULL, rest, act), rest);
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

/* -inf where there is nothing but NaN; lanes side by side. */
static float row_max(const float *x, int32_t n)
{
    float lane[4 * VW], top = -INFINITY;
    int32_t i = 0;
    for (int32_t l = 0; l < 4 * VW; l++) lane[l] = -INFINITY;
    for (; n - i >= 4 * VW; i += 4 * VW)
        for (int32_t l = 0; l < 4 * VW; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int32_t l = 0; l < 4 * VW; l++) top = lane[l] > top ? lane[l] : top;
    return top;
}

static void softmax_row(float *x, int32_t n)
{
    double lane[2 * VW] = { 0 }, sum = 0;
    int32_t i = 0;
    exp_shift(x, row_max(x, n), (size_t)n);
    for (; n - i >= 2 * VW; i += 2 * VW)
        for (int32_t l = 0; l < 2 * VW; l++) lane[l] += (double)x[i + l];
    for (; i < n; i++) sum += (double)x[i];
    for (int32_t l = 0; l < 2 * VW; l++) sum += lane[l];
    const double share = 1 / sum;
    for (i = 0; i < n; i++) x[i] = (float)((double)x[i] * share);
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
