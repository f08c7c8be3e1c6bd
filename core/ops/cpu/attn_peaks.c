#include "cpu.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <string.h>

/* Columns of the maxima that one thread takes. */
enum { PEAKS_COLUMNS = 512 };

/* The keys that queries see lie one after the other: before the chunk, the chunk, the queries' own run.
 * With them logits are a product of matrices. */
struct peaks {
    const struct kvl_attn_peaks_args *a;
    int32_t n_before, n_chunk, n_keys; /* sink slots outside the chunk; keys in all */
    int threads;
    float *k;    /* [n_keys][head_dim] */
    float *q;    /* [n][head_dim] of one head */
    float *y;    /* [n][n_keys] */
    float *base; /* [n] lse + bias */
    float *tmp;  /* [threads][n_keys] */
};

static int peaks_read(const struct peaks *p, int32_t kv_head, int32_t slot0, int32_t n, float *out)
{
    if (n == 0) return KVL_OK;
    return kvl_cpu_lane_read(&(struct kvl_lane_read_args){ .out = out,
                                                           .stride = (size_t)p->a->head_dim,
                                                           .lane = &p->a->lanes[kv_head],
                                                           .part = KVL_PART_K,
                                                           .slot0 = slot0,
                                                           .n = n });
}

static int peaks_keys(const struct peaks *p, int32_t kv_head)
{
    const struct kvl_attn_peaks_args *a = p->a;
    size_t dim = (size_t)a->head_dim;
    int32_t n_own = p->n_keys - p->n_before - p->n_chunk;
    KVL_TRY(peaks_read(p, kv_head, 0, p->n_before, p->k));
    KVL_TRY(peaks_read(p, kv_head, a->first, p->n_chunk, p->k + (size_t)p->n_before * dim));
    return peaks_read(p, kv_head, a->own, n_own, p->k + (size_t)(p->n_before + p->n_chunk) * dim);
}

static int peaks_logits(const struct peaks *p, int32_t head)
{
    const struct kvl_attn_peaks_args *a = p->a;
    size_t dim = (size_t)a->head_dim;
    struct kvl_weight keys = { .data = p->k,
                               .type = KVL_W_F32,
                               .n_rows = p->n_keys,
                               .n_cols = a->head_dim,
                               .row_bytes = dim * sizeof(float) };
    for (size_t i = 0; i < (size_t)a->n; i++)
        memcpy(p->q + i * dim, a->q + (i * (size_t)a->n_heads + (size_t)head) * dim,
               dim * sizeof *p->q);
    return kvl_cpu_gemm(&(struct kvl_gemm_args){ .y = p->y, .x = p->q, .w = &keys, .n = a->n });
}

/* Scales the logits of query i, and finds what is taken off them. */
static void peaks_base(const struct peaks *p, int32_t head, int32_t i, float *tmp)
{
    const struct kvl_attn_peaks_args *a = p->a;
    int32_t n = p->n_keys - a->n + i + 1; /* keys that it sees */
    float *y = p->y + (size_t)i * (size_t)p->n_keys, top = -INFINITY;
    double sum = 0;
    for (int32_t j = 0; j < n; j++) y[j] *= a->scale;
    for (int32_t j = 0; a->cap > 0 && j < n; j++) y[j] = a->cap * tanhf(y[j] / a->cap);
    for (int32_t j = 0; j < n; j++) top = y[j] > top ? y[j] : top;
    memcpy(tmp, y, (size_t)n * sizeof *tmp);
    kvl_kern()->exp_shift(tmp, top, (size_t)n);
    for (int32_t j = 0; j < n; j++) sum += (double)tmp[j];
    if (a->rest) sum += exp((double)a->rest[head] - (double)top);
    p->base[i] = (float)((double)top + log(sum) + (a->bias ? (double)a->bias[i] : 0));
}

static void peaks_raise(const struct peaks *p, float *peak, int32_t column0)
{
    int32_t n = KVL_MIN(PEAKS_COLUMNS, p->n_chunk - column0);
    for (int32_t i = 0; i < p->a->n; i++) {
        const float *y = p->y + (size_t)i * (size_t)p->n_keys + p->n_before + column0;
        for (int32_t j = 0; j < n; j++) {
            float x = y[j] - p->base[i];
            peak[column0 + j] = x > peak[column0 + j] ? x : peak[column0 + j];
        }
    }
}

static int peaks_head(const struct peaks *p, int32_t head)
{
    float *peak = p->a->peak + (size_t)head * (size_t)p->n_chunk;
    KVL_TRY(peaks_logits(p, head));
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
    {
        float *tmp = p->tmp + (size_t)omp_get_thread_num() * (size_t)p->n_keys;
#pragma omp for schedule(static)
        for (int32_t i = 0; i < p->a->n; i++) peaks_base(p, head, i, tmp);
#pragma omp for schedule(static)
        for (int32_t c = 0; c < p->n_chunk; c += PEAKS_COLUMNS) peaks_raise(p, peak, c);
    }
    return KVL_OK;
}

static int peaks_memory(struct peaks *p)
{
    size_t n = (size_t)p->a->n, dim = (size_t)p->a->head_dim, keys = (size_t)p->n_keys;
    size_t floats = keys * dim + n * dim + n * keys + n + (size_t)p->threads * keys;
    p->k = kvl_alloc(floats, sizeof *p->k); /* the product takes the scratch for itself */
    if (!p->k) return KVL_ENOMEM;
    p->q = p->k + keys * dim;
    p->y = p->q + n * dim;
    p->base = p->y + n * keys;
    p->tmp = p->base + n;
    return KVL_OK;
}

int kvl_cpu_attn_peaks(const struct kvl_attn_peaks_args *a)
{
    int32_t group = a->n_heads / a->n_kv_heads, n_own = a->lanes[0].n_slots - a->own;
    struct peaks p = { .a = a,
                       .n_before = KVL_MIN(a->sink, a->first),
                       .n_chunk = a->last - a->first };
    assert(a->sink <= a->last && a->first < a->last && a->last <= a->own && n_own >= a->n);
    p.n_keys = p.n_before + p.n_chunk + n_own;
    p.threads = kvl_team((double)a->n * p.n_keys);
    KVL_TRY(peaks_memory(&p));
    int rc = KVL_OK;
    for (int32_t h = 0; rc == KVL_OK && h < a->n_heads; h++) {
        if (h % group == 0) rc = peaks_keys(&p, h / group);
        if (rc == KVL_OK) rc = peaks_head(&p, h);
    }
    kvl_free(p.k);
    return rc;
}
