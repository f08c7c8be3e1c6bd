/* kern_row.h - kernels over rows of floats. */
#ifndef KVL_KERN_ROW_H
#define KVL_KERN_ROW_H

#include "ops/cpu/kern_math.h"

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
                   enum kvl_rope_style style)
{
    int32_t half = head_dim / 2;
    const float *cosine = cs, *sine = cs + half;
    if (style == KVL_ROPE_NORM) {
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

static void minmax_row(float *lo, float *hi, const float *k, int32_t dim)
{
    for (int32_t c = 0; c < dim; c++) {
        lo[c] = k[c] < lo[c] ? k[c] : lo[c];
        hi[c] = k[c] > hi[c] ? k[c] : hi[c];
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

/* Queries and pages of one register tile: as many sums as a vector has lanes. */
enum { BOUND_Q = 4, BOUND_PAGES = VW / BOUND_Q };

VEC void bound_step(vf *s, const float *const *page, const float *q_pos, const float *q_neg,
                    int32_t n_q, size_t pad, int32_t head_dim, int32_t c, int32_t len)
{
    vf lo[BOUND_PAGES], hi[BOUND_PAGES];
    UNROLL
    for (int32_t j = 0; j < BOUND_PAGES; j++) {
        lo[j] = len == VW ? vf_load(page[j] + c) : vf_load_n(page[j] + c, len);
        hi[j] =
            len == VW ? vf_load(page[j] + head_dim + c) : vf_load_n(page[j] + head_dim + c, len);
    }
    UNROLL
    for (int32_t i = 0; i < n_q; i++) {
        vf p = vf_load(q_pos + (size_t)i * pad + c), n = vf_load(q_neg + (size_t)i * pad + c);
        UNROLL
        for (int32_t j = 0; j < BOUND_PAGES; j++)
            s[i * BOUND_PAGES + j] = vf_fma(n, lo[j], vf_fma(p, hi[j], s[i * BOUND_PAGES + j]));
    }
}

VEC void bound_tile(float *bound, size_t ld, const float *q_pos, const float *q_neg, int32_t n_q,
                    const float *minmax, int32_t head_dim, int32_t p0, int32_t n)
{
    vf s[VW];
    float sums[VW];
    const float *page[BOUND_PAGES];
    int32_t c = 0;
    size_t pad = kvl_head_pad(head_dim);
    for (int32_t i = 0; i < VW; i++) s[i] = vf_zero();
    for (int32_t j = 0; j < BOUND_PAGES; j++)
        page[j] = minmax + (size_t)(p0 + KVL_MIN(j, n - 1)) * 2 * (size_t)head_dim;
    for (; c + VW <= head_dim; c += VW)
        bound_step(s, page, q_pos, q_neg, n_q, pad, head_dim, c, VW);
    if (c < head_dim) bound_step(s, page, q_pos, q_neg, n_q, pad, head_dim, c, head_dim - c);
    vf_store(sums, vf_sums(s));
    for (int32_t i = 0; i < n_q; i++)
        for (int32_t j = 0; j < n; j++)
            bound[(size_t)i * ld + (size_t)(p0 + j)] = sums[i * BOUND_PAGES + j];
}

static void page_bound(float *bound, size_t ld, const float *q_pos, const float *q_neg, int32_t n_q,
                       const float *minmax, int32_t head_dim, int32_t p0, int32_t p1)
{
    size_t pad = kvl_head_pad(head_dim);
    for (int32_t p = p0; p < p1; p += BOUND_PAGES) {
        int32_t n = KVL_MIN(BOUND_PAGES, p1 - p);
        for (int32_t i = 0; i < n_q; i += BOUND_Q) {
            const float *qp = q_pos + (size_t)i * pad, *qn = q_neg + (size_t)i * pad;
            float *to = bound + (size_t)i * ld;
            switch (KVL_MIN(BOUND_Q, n_q - i)) {
            case 4: bound_tile(to, ld, qp, qn, 4, minmax, head_dim, p, n); break;
            case 3: bound_tile(to, ld, qp, qn, 3, minmax, head_dim, p, n); break;
            case 2: bound_tile(to, ld, qp, qn, 2, minmax, head_dim, p, n); break;
            default: bound_tile(to, ld, qp, qn, 1, minmax, head_dim, p, n); break;
            }
        }
    }
}

#endif
