/* Causal attention of a chunk, tiles of 64 queries of one head against tiles of 64 slots.
 *
 * Limit: 4 n (n_slots - n / 2) n_heads head_dim operations; the keys and values of a tile come from L2 for
 * the query heads of their group and for the row tiles that run at the same time.  In floats the limit is
 * that of fused multiply-adds: 16 of them for two vectors of four from shared memory.  Not timed yet.
 *
 * Tiles of slots begin at multiples of 64 from slot 0, and what a row does not see of a tile is worth an exact
 * zero: neither the chunk nor the place in it changes a row's bits. */
#include "ops/cuda/prefill_f32.cuh"

struct prefill_work {
    struct pf_queries q; /* of row 0, head 0 */
    float *out, *lse;
    const struct kvl_cuda_lane *lanes;
    int32_t n_heads, group;
    float factor; /* makes a product a logit to the base 2 */
};

/* Rows of the tile of slots from s0 on, those before `end`. */
static __device__ inline void prefill_rows(struct pf_shared *sh, const struct kvl_cuda_lane *l,
                                           int32_t s0, int32_t end)
{
    int32_t i = (int32_t)threadIdx.x;
    __syncthreads(); /* the tile before has been read */
    if (i < PF_SLOTS) sh->row[i] = s0 + i < end ? pf_row(l, s0 + i) : NULL;
}

template <int N>
static __global__ __launch_bounds__(PF_THREADS) void prefill_float(struct prefill_work w)
{
    KVL_SHARED(struct pf_shared, sh);
    int32_t head = (int32_t)blockIdx.x, row0 = (int32_t)(gridDim.y - 1 - blockIdx.y) * PF_ROWS;
    const struct kvl_cuda_lane *l = &w.lanes[head / w.group];
    int32_t past = l->n_slots - w.q.n, r = row0 + (int32_t)threadIdx.x / 16 * 4;
    int32_t end = past + (row0 + PF_ROWS < w.q.n ? row0 + PF_ROWS : w.q.n);
    size_t at = (size_t)head * (size_t)w.q.head_dim;
    struct pf_state<N> t;
    w.q.q += at;
    pf_open(&t);
    for (int32_t s0 = 0; s0 < end; s0 += PF_SLOTS) {
        float s[4][4] = { { 0 } };
        prefill_rows(sh, l, s0, end);
        pf_products(sh, l, &w.q, row0, s);
        for (int32_t i = 0; i < 4; i++)
            for (int32_t j = 0; j < 4; j++) {
                bool sees = s0 + (int32_t)threadIdx.x % 16 * 4 + j <= past + r + i;
                s[i][j] = sees ? s[i][j] * w.factor : -INFINITY;
            }
        pf_softmax(&t, s);
        if (w.out) pf_values(&t, sh, l, &w.q, s);
    }
    pf_close(&t, &w.q, row0, w.out ? w.out + at : NULL, w.lse ? w.lse + head : NULL,
             (size_t)w.n_heads);
}

/* Heads are the fast dimension, so that those of a group meet in L2; the last tiles see the most slots and
 * go first.  Accumulators are registers: a kernel for each 64 columns. */
static void prefill_launch(const struct prefill_work *w)
{
    static void (*const kernels[])(struct prefill_work) = { prefill_float<1>, prefill_float<2>,
                                                            prefill_float<3>, prefill_float<4> };
    void (*prefill)(struct prefill_work) = kernels[(w->q.head_dim - 1) / PF_ROWS];
    dim3 grid((unsigned)w->n_heads, (unsigned)kvl_ceil_div(w->q.n, PF_ROWS));
    KVL_LAUNCH(prefill, grid, PF_THREADS, sizeof(struct pf_shared), *w);
}

int kvl_cuda_attn_prefill(const struct kvl_attn_prefill_args *a)
{
    struct kvl_cuda_call c;
    if (a->n == 0) return KVL_OK;
    assert(a->n_heads % a->n_kv_heads == 0 && a->head_dim >= 1 && a->head_dim <= PF_MAX_DIM);
    for (int32_t h = 0; h < a->n_kv_heads; h++) assert(a->lanes[h].n_slots >= a->n);
    size_t rows = (size_t)a->n * (size_t)a->n_heads,
           step = (size_t)a->n_heads * (size_t)a->head_dim;
    kvl_cuda_begin(&c);
    struct prefill_work w = {};
    w.q.q = kvl_cuda_in(&c, a->q, rows * (size_t)a->head_dim);
    w.q.step = step;
    w.q.n = a->n;
    w.q.head_dim = a->head_dim;
    w.q.bf16 = a->bf16;
    w.q.vectors = (uintptr_t)w.q.q % 16 == 0 && a->head_dim % 4 == 0;
    w.out = kvl_cuda_out(&c, a->out, rows * (size_t)a->head_dim);
    w.lse = kvl_cuda_out(&c, a->lse, rows);
    w.lanes = kvl_cuda_lanes(&c, a->lanes, a->n_kv_heads);
    w.n_heads = a->n_heads;
    w.group = a->n_heads / a->n_kv_heads;
    w.factor = a->scale * PF_LOG2_E;
    if (c.rc == KVL_OK) prefill_launch(&w);
    return kvl_cuda_end(&c);
}
