/* The largest logarithm of a weight that a slot of a chunk gets.  What queries see (a sink, the chunk, their own
 * run) are ranges of slots: laid end to end they are a lane of which the queries are the last, so that one pass
 * takes the log-sum-exp of causal attention, and a second one meets the slots of the chunk with all
 * queries.
 *
 * Limit: 4 n n_keys n_heads head_dim operations in floats.  Not timed yet. */
#include "prefill_f32.cuh"

struct peaks_work {
    struct pf_queries q; /* of row 0, head 0 */
    float *peak, *lse;   /* lse [n][n_heads] */
    const float *bias, *rest;
    const struct kvl_cuda_lane *lanes;
    int32_t n_heads;
    int32_t n_before, n_chunk, n_keys; /* sink slots outside the chunk; slots of it; all keys */
    int32_t first, own;
    float scale, factor; /* makes a product a logit; to the base 2 */
};

static __device__ inline int32_t peaks_slot(const struct peaks_work *w, int32_t key)
{
    if (key < w->n_before) return key;
    key -= w->n_before;
    return key < w->n_chunk ? w->first + key : w->own + key - w->n_chunk;
}

static __device__ inline void peaks_rows(struct pf_shared *sh, const struct peaks_work *w,
                                         const struct kvl_cuda_lane *l, int32_t key0, int32_t end)
{
    int32_t i = (int32_t)threadIdx.x;
    __syncthreads(); /* the tile before has been read */
    if (i < PF_SLOTS) sh->row[i] = key0 + i < end ? pf_row(l, peaks_slot(w, key0 + i)) : NULL;
}

static __global__ __launch_bounds__(PF_THREADS) void peaks_lse(struct peaks_work w)
{
    KVL_SHARED(struct pf_shared, sh);
    int32_t head = (int32_t)blockIdx.x, row0 = (int32_t)blockIdx.y * PF_ROWS;
    const struct kvl_cuda_lane *l = &w.lanes[head / w.q.group];
    int32_t past = w.n_keys - w.q.n, r = row0 + (int32_t)threadIdx.x / 16 * 4;
    int32_t end = past + min(row0 + PF_ROWS, w.q.n);
    struct pf_state<1> t;
    w.q.q += (size_t)head * (size_t)w.q.head_dim;
    pf_open(&t);
    for (int32_t k0 = 0; k0 < end; k0 += PF_SLOTS) {
        float s[4][4] = { { 0 } };
        peaks_rows(sh, &w, l, k0, end);
        pf_products(sh, l, &w.q, row0, s);
        for (int32_t i = 0; i < 4; i++)
            for (int32_t j = 0; j < 4; j++) {
                bool sees = k0 + (int32_t)threadIdx.x % 16 * 4 + j <= past + r + i;
                s[i][j] = sees ? s[i][j] * w.factor : -INFINITY;
            }
        pf_softmax(&t, s);
    }
    pf_close(&t, &w.q, row0, NULL, w.lse + head, (size_t)w.n_heads);
}

/* Largest of the tile's rows for the 4 slots of a thread. */
static __device__ inline void peaks_take(const struct peaks_work *w, int32_t head, int32_t row0,
                                         const float s[4][4], float top[4])
{
    for (int32_t i = 0; i < 4; i++) {
        int32_t row = row0 + (int32_t)threadIdx.x / 16 * 4 + i;
        if (row >= w->q.n) continue;
        float base = w->lse[(size_t)row * (size_t)w->n_heads + (size_t)head];
        if (w->rest) base += log1pf(expf(w->rest[head] - base));
        if (w->bias) base += w->bias[row];
        for (int32_t j = 0; j < 4; j++) {
            float x = s[i][j] * w->scale - base;
            top[j] = x > top[j] ? x : top[j];
        }
    }
}

static __global__ __launch_bounds__(PF_THREADS) void peaks_raise(struct peaks_work w)
{
    KVL_SHARED(struct pf_shared, sh);
    int32_t head = (int32_t)blockIdx.x, c0 = (int32_t)blockIdx.y * PF_SLOTS;
    const struct kvl_cuda_lane *l = &w.lanes[head / w.q.group];
    int32_t i = (int32_t)threadIdx.x, t = i % 16 * 4;
    float top[4] = { -INFINITY, -INFINITY, -INFINITY, -INFINITY };
    w.q.q += (size_t)head * (size_t)w.q.head_dim;
    peaks_rows(sh, &w, l, w.n_before + c0, w.n_before + w.n_chunk);
    for (int32_t row0 = 0; row0 < w.q.n; row0 += PF_ROWS) {
        float s[4][4] = { { 0 } };
        pf_products(sh, l, &w.q, row0, s);
        peaks_take(&w, head, row0, s, top);
    }
    __syncthreads();
    for (int32_t j = 0; j < 4; j++) sh->p[i / 16][t + j] = top[j];
    __syncthreads();
    if (i >= PF_SLOTS || c0 + i >= w.n_chunk) return;
    float *peak = w.peak + (size_t)head * (size_t)w.n_chunk + (size_t)(c0 + i), best = *peak;
    for (int32_t r = 0; r < PF_THREADS / 16; r++) best = sh->p[r][i] > best ? sh->p[r][i] : best;
    *peak = best;
}

/* Tiles of queries, then tiles of the chunk's slots: both are many where this takes time. */
static void peaks_launch(const struct peaks_work *w)
{
    dim3 rows((unsigned)w->n_heads, (unsigned)kvl_ceil_div(w->q.n, PF_ROWS));
    dim3 columns((unsigned)w->n_heads, (unsigned)kvl_ceil_div(w->n_chunk, PF_SLOTS));
    KVL_LAUNCH(peaks_lse, rows, PF_THREADS, sizeof(struct pf_shared), *w);
    KVL_LAUNCH(peaks_raise, columns, PF_THREADS, sizeof(struct pf_shared), *w);
}

int kvl_cuda_attn_peaks(const struct kvl_attn_peaks_args *a)
{
    struct kvl_cuda_call c;
    if (a->n == 0) return KVL_OK;
    int32_t n_own = a->lanes[0].n_slots - a->own;
    assert(a->n_heads % a->n_kv_heads == 0 && n_own >= a->n);
    assert(a->sink <= a->last && a->first < a->last && a->last <= a->own);
    size_t rows = (size_t)a->n * (size_t)a->n_heads;
    kvl_cuda_begin(&c);
    struct peaks_work w = {};
    w.q.q = kvl_cuda_in(&c, a->q, rows * (size_t)a->head_dim);
    w.q.step = (size_t)a->n_heads * (size_t)a->head_dim;
    w.q.n = a->n;
    w.q.head_dim = a->head_dim;
    w.q.vectors = (uintptr_t)w.q.q % 16 == 0 && a->head_dim % 4 == 0;
    w.n_before = KVL_MIN(a->sink, a->first);
    w.n_chunk = a->last - a->first;
    w.n_keys = w.n_before + w.n_chunk + n_own;
    w.peak = kvl_cuda_inout(&c, a->peak, (size_t)a->n_heads * (size_t)w.n_chunk);
    w.lse = kvl_cuda_temp<float>(&c, rows);
    w.bias = kvl_cuda_in(&c, a->bias, (size_t)a->n);
    w.rest = kvl_cuda_in(&c, a->rest, (size_t)a->n_heads);
    w.lanes = kvl_cuda_lanes(&c, a->lanes, a->n_kv_heads);
    w.n_heads = a->n_heads;
    w.q.group = a->n_heads / a->n_kv_heads;
    w.first = a->first;
    w.own = a->own;
    w.scale = a->scale;
    w.q.cap = pf_cap_of(a->cap, a->scale);
    w.factor = a->scale * PF_LOG2_E;
    if (c.rc == KVL_OK) peaks_launch(&w);
    return kvl_cuda_end(&c);
}
