/* Causal attention of a chunk: tiles of queries of one head against tiles of slots, with an online softmax.
 *
 * Limit: 4 n (n_slots - n / 2) n_heads head_dim operations, of the tensor cores in bf16, else of fused
 * multiply-adds; keys and values of a tile come from L2 for the query heads of their group and for the row
 * tiles that run at the same time.  Times: results/gpu.md.
 *
 * In bf16 values arrive while keys are multiplied, and the next keys while values are: two blocks on a
 * multiprocessor cover what is left.  Hopper has a kernel of its own (prefill_wide.cuh).
 *
 * Tiles of slots begin at fixed slots, and what a row does not see of a tile is worth an exact zero: neither
 * the chunk nor the place in it changes a row's bits. */
#include "kv_rows.cuh"
#include "prefill_f32.cuh"
#include "prefill_mma.cuh"
#include "prefill_wide.cuh"

struct prefill_work {
    struct pf_queries q; /* of row 0, head 0 */
    float *out, *lse;
    const struct kvl_cuda_lane *lanes;
    int32_t n_heads;
    int32_t window; /* slots that a row sees; INT32_MAX: all */
    float factor;   /* makes a product a logit to the base 2 */
};

/* Where the tile begins that the row at slot `at` sees first, of tiles of n slots. */
static __device__ inline int32_t prefill_begin(const struct prefill_work *w, int32_t at, int32_t n)
{
    return at < w->window ? 0 : (at - w->window + 1) / n * n;
}

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
    const struct kvl_cuda_lane *l = &w.lanes[head / w.q.group];
    int32_t past = l->n_slots - w.q.n, r = row0 + (int32_t)threadIdx.x / 16 * 4;
    int32_t end = past + (row0 + PF_ROWS < w.q.n ? row0 + PF_ROWS : w.q.n);
    size_t at = (size_t)head * (size_t)w.q.head_dim;
    struct pf_state<N> t;
    w.q.q += at;
    pf_open(&t);
    for (int32_t s0 = prefill_begin(&w, past + row0, PF_SLOTS); s0 < end; s0 += PF_SLOTS) {
        float s[4][4] = { { 0 } };
        prefill_rows(sh, l, s0, end);
        pf_products(sh, l, &w.q, row0, s);
        for (int32_t i = 0; i < 4; i++)
            for (int32_t j = 0; j < 4; j++) {
                int32_t back = past + r + i - (s0 + (int32_t)threadIdx.x % 16 * 4 + j);
                bool sees = back >= 0 && back < w.window;
                s[i][j] = sees ? s[i][j] * w.factor : -INFINITY;
            }
        pf_softmax(&t, s);
        if (w.out) pf_values(&t, sh, l, &w.q, row0, s);
    }
    pf_close(&t, &w.q, row0, w.out ? w.out + at : NULL, w.lse ? w.lse + head : NULL,
             (size_t)w.n_heads);
}

/* What rows do not see; s0 is the first slot less the place of the warp's first row. */
template <int M, int N>
static __device__ inline void prefill_hide(int32_t s0, int32_t window, float s[M][N][4])
{
    int32_t g = (int32_t)threadIdx.x % KVL_WARP / 4, t = (int32_t)threadIdx.x % 4;
    if (s0 + 8 * N - 1 <= 0 && 16 * M - 1 - s0 < window) return;
    KVL_UNROLL
    for (int m = 0; m < M; m++) KVL_UNROLL
    for (int n = 0; n < N; n++) KVL_UNROLL
    for (int i = 0; i < 4; i++) {
        int32_t back = 16 * m + g + i / 2 * 8 - (s0 + 8 * n + 2 * t + i % 2);
        if (back < 0 || back >= window) s[m][n][i] = -INFINITY;
    }
}

template <int D, int M>
static __global__ __launch_bounds__(PM_THREADS, 2) void prefill_tensor(struct prefill_work w)
{
    typedef struct pm_shared<D, M> shared;
    KVL_SHARED(shared, sh);
    constexpr int N = pm_slots<D>, rows = PM_ROWS * M;
    int32_t head = (int32_t)blockIdx.x, row0 = (int32_t)(gridDim.y - 1 - blockIdx.y) * rows;
    int32_t i = (int32_t)threadIdx.x, first = i / KVL_WARP * 16 * M, now = 0;
    const struct kvl_cuda_lane *l = &w.lanes[head / w.q.group];
    int32_t past = l->n_slots - w.q.n, end = past + min(row0 + rows, w.q.n);
    size_t at = (size_t)head * (size_t)w.q.head_dim;
    bool is = row0 + first < w.q.n; /* the warp has rows */
    struct pm_state<D, M> t;
    w.q.q += at;
    pm_open(&t);
    pm_put_queries(sh->q, rows, &w.q, row0);
    int32_t begin = prefill_begin(&w, past + row0, N);
    if (i < N) sh->row[0][i] = begin + i < end ? pf_row(l, begin + i) : NULL;
    __syncthreads();
    pm_put_slots(sh->k, N, sh->row[0], KVL_PART_K, l);
    for (int32_t s0 = begin; s0 < end; s0 += N, now ^= 1) {
        float s[M][N / 8][4] = { { { 0 } } };
        int32_t next = s0 + N + i;
        if (i < N) sh->row[now ^ 1][i] = next < end ? pf_row(l, next) : NULL;
        kvl_copy_wait();
        __syncthreads(); /* keys are there, values before these have been read */
        if (w.out) pm_put_slots(sh->v, N, sh->row[now], KVL_PART_V, l);
        if (is) pm_products<D, M, N / 8>(sh->q + first, sh->k, s);
        pm_cap<M, N / 8>(&w.q, s);
        kvl_copy_wait();
        __syncthreads(); /* values are there, keys have been read */
        if (s0 + N < end) pm_put_slots(sh->k, N, sh->row[now ^ 1], KVL_PART_K, l);
        if (!is) continue;
        prefill_hide<M, N / 8>(s0 - past - row0 - first, w.window, s);
        pm_softmax<D, M, N / 8>(&t, w.factor, s);
        if (w.out) pm_values<D, M, N / 8>(&t, sh->v, s);
    }
    pm_close(&t, &w.q, row0 + first, w.out ? w.out + at : NULL, w.lse ? w.lse + head : NULL,
             (size_t)w.n_heads);
}

/* VALUES false: log-sum-exps alone, with the same bits. */
template <int D, bool VALUES>
static __global__
__launch_bounds__(PW_THREADS, 1) void prefill_wide(const __grid_constant__ struct prefill_work w)
{
#if KVL_WGMMA
    KVL_SHARED(uint8_t, bytes);
    int32_t head = (int32_t)blockIdx.x, row0 = (int32_t)(gridDim.y - 1 - blockIdx.y) * PW_ROWS;
    const struct kvl_cuda_lane l = w.lanes[head / w.q.group];
    struct pf_queries q = w.q;
    struct pw_place at = pw_place_of(&l, &q, row0, w.window);
    struct pw_state<D> t;
    struct pw_shared<D> *sh = pw_shared_of<D>(bytes);
    size_t channel = (size_t)head * D;
    q.q += channel;
    at.begin = prefill_begin(&w, at.past + row0, PW_SLOTS) / PW_SLOTS;
    pw_open<D>(&t, sh, &at, &l, &q, row0);
    for (int32_t i = at.begin; i < at.n; i++) pw_tile<D, VALUES>(&t, sh, &at, &l, w.factor, i);
    if (VALUES) pw_last<D>(&t, sh, at.n - 1);
    pw_close<D>(&t, &q, at.row, VALUES ? w.out + channel : NULL, w.lse ? w.lse + head : NULL,
                (size_t)w.n_heads);
#else
    (void)w;
#endif
}

template <int D, bool VALUES> static int prefill_start_wide(const struct prefill_work *w)
{
    void (*prefill)(struct prefill_work) = prefill_wide<D, VALUES>;
    dim3 grid((unsigned)w->n_heads, (unsigned)kvl_ceil_div(w->q.n, PW_ROWS));
    int bytes = (int)(sizeof(struct pw_shared<D>) + PW_ALIGN);
    KVL_TRY(kvl_cuda_check(
        cudaFuncSetAttribute(prefill, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "shared memory of prefill attention"));
    KVL_LAUNCH(prefill, grid, PW_THREADS, (size_t)bytes, *w);
    return KVL_OK;
}

/* What the lanes hold and the model are, and never the chunk, decide: rows have the same bits in every chunk. */
static bool prefill_is_wide(const struct kvl_attn_prefill_args *a, const struct prefill_work *w)
{
    return kvl_cuda_has_wgmma() && kvl_cuda_type(a->lanes[0].layout) == KVL_KV_BF16 &&
           w->q.vectors && (a->head_dim == 64 || a->head_dim == 128) && w->q.cap.in == 0;
}

static int prefill_launch_wide(const struct prefill_work *w)
{
    if (w->q.head_dim == 64)
        return w->out ? prefill_start_wide<64, true>(w) : prefill_start_wide<64, false>(w);
    return w->out ? prefill_start_wide<128, true>(w) : prefill_start_wide<128, false>(w);
}

template <int D, int M> static int prefill_start(const struct prefill_work *w)
{
    void (*prefill)(struct prefill_work) = prefill_tensor<D, M>;
    dim3 grid((unsigned)w->n_heads, (unsigned)kvl_ceil_div(w->q.n, PM_ROWS * M));
    int bytes = (int)sizeof(struct pm_shared<D, M>);
    KVL_TRY(kvl_cuda_check(
        cudaFuncSetAttribute(prefill, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "shared memory of prefill attention"));
    KVL_LAUNCH(prefill, grid, PM_THREADS, (size_t)bytes, *w);
    return KVL_OK;
}

/* Tiles of 128 rows where that fills a large GPU twice (rows have the same bits in tiles of 64).  Accumulators
 * are registers: a kernel for each padded head_dim, and from 192 on room for 64 rows only. */
static int prefill_start_tensor(const struct prefill_work *w)
{
    bool large = (int64_t)w->n_heads * kvl_ceil_div(w->q.n, 2 * PM_ROWS) >= 256;
    int32_t dim = w->q.head_dim;
    if (dim <= 32) return large ? prefill_start<32, 2>(w) : prefill_start<32, 1>(w);
    if (dim <= 64) return large ? prefill_start<64, 2>(w) : prefill_start<64, 1>(w);
    if (dim <= 96) return large ? prefill_start<96, 2>(w) : prefill_start<96, 1>(w);
    if (dim <= 128) return large ? prefill_start<128, 2>(w) : prefill_start<128, 1>(w);
    return dim <= 192 ? prefill_start<192, 1>(w) : prefill_start<256, 1>(w);
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
    w.q.vectors = (uintptr_t)w.q.q % 16 == 0 && a->head_dim % 4 == 0;
    w.out = kvl_cuda_out(&c, a->out, rows * (size_t)a->head_dim);
    w.lse = kvl_cuda_out(&c, a->lse, rows);
    w.lanes = kvl_cuda_lanes(&c, a->lanes, a->n_kv_heads);
    w.n_heads = a->n_heads;
    w.q.group = a->n_heads / a->n_kv_heads;
    w.factor = a->scale * PF_LOG2_E;
    w.q.cap = pf_cap_of(a->cap, a->scale);
    w.window = a->window > 0 ? a->window : INT32_MAX;
    if (c.rc == KVL_OK && a->bf16)
        c.rc = prefill_is_wide(a, &w) ? prefill_launch_wide(&w) : prefill_start_tensor(&w);
    else if (c.rc == KVL_OK)
        prefill_launch(&w);
    return kvl_cuda_end(&c);
}
