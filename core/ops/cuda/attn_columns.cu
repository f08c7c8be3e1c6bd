/* What every slot received from a chunk of queries: a block has 64 slots of one head and meets the queries in
 * order, 64 at a time.  Their probabilities, or logits, are computed by all threads; then one thread for each
 * slot adds them one by one, with the carry.  The sums of a slot are read and written once.
 *
 * A query that a slot does not count leaves sum and carry alone, so that bits depend neither on where a tile of
 * queries begins nor on the chunk.
 *
 * Limit: 2 n (n_slots - n / 2) n_heads head_dim operations; an exponential and four dependent additions for
 * each pair beside them, which other blocks of the multiprocessor cover.  Not timed yet. */
#include "prefill_mma.cuh"

struct columns_work {
    struct pf_queries q;     /* of row 0, head 0 */
    const uint16_t *rounded; /* queries in bf16: [n_heads][n][padded head_dim] */
    const float *lse;
    float *sums, *carry;
    size_t stride;
    const struct kvl_cuda_lane *lanes;
    int32_t n_heads;
    int32_t first, nearest, farthest; /* first tile; distances of queries that count */
    int32_t probs;
    float factor; /* makes a product a logit, for probabilities to the base 2 */
};

/* The tile's products become what its slots receive: sh->p [query][slot]. */
static __device__ inline void columns_values(struct pf_shared *sh, const struct columns_work *w,
                                             int32_t head, int32_t row0, const float s[4][4])
{
    int32_t r = (int32_t)threadIdx.x / 16 * 4, t = (int32_t)threadIdx.x % 16 * 4;
    for (int32_t i = 0; i < 4; i++) {
        struct pf_four y;
        size_t row = (size_t)(row0 + r + i) * (size_t)w->n_heads + (size_t)head;
        float minus = w->probs && row0 + r + i < w->q.n ? -w->lse[row] * PF_LOG2_E : 0;
        for (int32_t j = 0; j < 4; j++)
            y.x[j] = w->probs ? exp2f(fmaf(s[i][j], w->factor, minus)) : s[i][j] * w->factor;
        *reinterpret_cast<struct pf_four *>(&sh->p[r + i][t]) = y;
    }
}

/* Rows begin .. end - 1. */
struct columns_span {
    int32_t begin, end;
};

/* Rows of the chunk that slots s0 .. s0 + n - 1 count, from the first of a tile. */
static __device__ inline struct columns_span columns_rows(const struct columns_work *w,
                                                          int32_t past, int32_t s0, int32_t n)
{
    struct columns_span s;
    s.begin = max(0, s0 + w->nearest - past) / PF_ROWS * PF_ROWS;
    s.end = (int32_t)min((int64_t)w->q.n, (int64_t)s0 + n + w->farthest - past);
    return s;
}

/* Those of the tile at row0 that one slot counts, from the tile's first. */
static __device__ inline struct columns_span
columns_counted(const struct columns_work *w, int32_t past, int32_t slot, int32_t row0)
{
    struct columns_span s;
    int64_t near = (int64_t)slot + w->nearest - past - row0;
    int64_t far = (int64_t)slot + w->farthest - past - row0 + 1;
    int64_t last = min((int64_t)PF_ROWS, (int64_t)w->q.n - row0);
    s.begin = (int32_t)max((int64_t)0, min(near, last));
    s.end = (int32_t)max((int64_t)0, min(far, last));
    return s;
}

/* Kahan's steps of one slot, which receives p[r * stride]: afterwards sum - carry is the total. */
static __device__ inline void columns_sum(const float *p, int32_t stride, struct columns_span rows,
                                          float *sum, float *carry)
{
    for (int32_t r = rows.begin; r < rows.end; r++) {
        float y = p[r * stride] - *carry, t = *sum + y;
        *carry = (t - *sum) - y;
        *sum = t;
    }
}

static __global__ __launch_bounds__(PF_THREADS) void columns_float(struct columns_work w)
{
    KVL_SHARED(struct pf_shared, sh);
    int32_t head = (int32_t)blockIdx.x, s0 = (w.first + (int32_t)blockIdx.y) * PF_SLOTS;
    const struct kvl_cuda_lane *l = &w.lanes[head / w.q.group];
    int32_t i = (int32_t)threadIdx.x, past = l->n_slots - w.q.n, slot = s0 + i;
    bool mine = i < PF_SLOTS && slot < l->n_slots;
    size_t at = (size_t)head * w.stride + (size_t)slot;
    float sum = mine ? w.sums[at] : 0, carry = mine ? w.carry[at] : 0;
    struct columns_span span = columns_rows(&w, past, s0, PF_SLOTS);
    w.q.q += (size_t)head * (size_t)w.q.head_dim;
    if (i < PF_SLOTS) sh->row[i] = slot < l->n_slots ? pf_row(l, slot) : NULL;
    for (int32_t row0 = span.begin; row0 < span.end; row0 += PF_ROWS) {
        float s[4][4] = { { 0 } };
        pf_products(sh, l, &w.q, row0, s);
        columns_values(sh, &w, head, row0, s);
        __syncthreads();
        struct columns_span rows = columns_counted(&w, past, slot, row0);
        if (mine) columns_sum(&sh->p[0][i], PF_STRIDE, rows, &sum, &carry);
    }
    if (!mine) return;
    w.sums[at] = sum;
    w.carry[at] = carry;
}

/* Queries in bf16, head by head: eight channels by a thread. */
template <int D>
static __global__ __launch_bounds__(PF_THREADS) void columns_round(struct columns_work w,
                                                                   uint16_t *to)
{
    int32_t head = (int32_t)blockIdx.x;
    int64_t i = (int64_t)blockIdx.y * PF_THREADS + (int64_t)threadIdx.x;
    int32_t row = (int32_t)(i / (D / 8)), c = (int32_t)(i % (D / 8)) * 8;
    if (row >= w.q.n) return;
    const float *q = w.q.q + (size_t)row * w.q.step + (size_t)head * (size_t)w.q.head_dim;
    struct pm_eight y = pm_load(q, KVL_KV_F32, c, w.q.head_dim, w.q.vectors);
    to += ((size_t)head * (size_t)w.q.n + (size_t)row) * D + (size_t)c;
    *reinterpret_cast<struct pm_eight *>(to) = y;
}

/* Tiles of 64 M slots, the rows of the products, by 64 queries. */
enum { COLUMNS_QUERIES = 64 };
template <int D, int M> struct columns_shared {
    struct pm_row<D> k[PM_ROWS * M], q[COLUMNS_QUERIES];
    float p[COLUMNS_QUERIES][PM_ROWS * M + 4]; /* what slots receive: [query][slot] */
    const uint8_t *row[PM_ROWS * M];
};

template <int D>
static __device__ inline void
columns_put_queries(struct pm_row<D> *to, const struct columns_work *w, int32_t head, int32_t row0)
{
    const uint16_t *from = w->rounded + (size_t)head * (size_t)w->q.n * D;
    for (int32_t i = (int32_t)threadIdx.x; i < COLUMNS_QUERIES * (D / 8); i += PM_THREADS) {
        int32_t r = i / (D / 8), c = i % (D / 8) * 8;
        bool is = row0 + r < w->q.n;
        kvl_copy_async(&to[r].x[c], is ? from + (size_t)(row0 + r) * D + (size_t)c : NULL);
    }
}

/* The warp's products become what its slots, from `slot` of the tile on, receive. */
template <int D, int M>
static __device__ inline void
columns_receive(struct columns_shared<D, M> *sh, const struct columns_work *w, int32_t head,
                int32_t row0, int32_t slot, const float s[M][COLUMNS_QUERIES / 8][4])
{
    int32_t g = (int32_t)threadIdx.x % KVL_WARP / 4, t = (int32_t)threadIdx.x % 4;
    KVL_UNROLL
    for (int n = 0; n < COLUMNS_QUERIES / 8; n++) KVL_UNROLL
    for (int j = 0; j < 2; j++) {
        int32_t r = 8 * n + 2 * t + j, row = row0 + r;
        size_t at = (size_t)row * (size_t)w->n_heads + (size_t)head;
        float minus = w->probs && row < w->q.n ? -w->lse[at] * PF_LOG2_E : 0;
        KVL_UNROLL
        for (int i = 0; i < 2 * M; i++) {
            float x = s[i / 2][n][i % 2 * 2 + j];
            sh->p[r][slot + 8 * i + g] =
                w->probs ? exp2f(fmaf(x, w->factor, minus)) : x * w->factor;
        }
    }
}

/* As columns_float: all slots of a head and tile, queries in order; the next queries arrive while these are
 * added. */
template <int D, int M>
static __global__ __launch_bounds__(PM_THREADS) void columns_tensor(struct columns_work w)
{
    typedef struct columns_shared<D, M> shared;
    KVL_SHARED(shared, sh);
    constexpr int slots = PM_ROWS * M, N = COLUMNS_QUERIES / 8;
    int32_t head = (int32_t)blockIdx.x, s0 = (w.first + (int32_t)blockIdx.y) * slots;
    const struct kvl_cuda_lane *l = &w.lanes[head / w.q.group];
    int32_t i = (int32_t)threadIdx.x, past = l->n_slots - w.q.n, slot = s0 + i;
    int32_t first = i / KVL_WARP * 16 * M;
    bool mine = i < slots && slot < l->n_slots;
    size_t at = (size_t)head * w.stride + (size_t)slot;
    float sum = mine ? w.sums[at] : 0, carry = mine ? w.carry[at] : 0;
    struct columns_span span = columns_rows(&w, past, s0, slots);
    if (i < slots) sh->row[i] = slot < l->n_slots ? pf_row(l, slot) : NULL;
    __syncthreads();
    if (span.begin < span.end) {
        pm_put_slots(sh->k, slots, sh->row, KVL_PART_K, l);
        columns_put_queries(sh->q, &w, head, span.begin);
    }
    for (int32_t row0 = span.begin; row0 < span.end; row0 += COLUMNS_QUERIES) {
        float s[M][N][4] = { { { 0 } } };
        kvl_copy_wait();
        __syncthreads(); /* keys and queries are there, sums before these are done */
        pm_products<D, M, N>(sh->k + first, sh->q, s);
        pm_cap<M, N>(&w.q, s);
        columns_receive(sh, &w, head, row0, first, s);
        __syncthreads(); /* queries have been read */
        if (row0 + COLUMNS_QUERIES < span.end)
            columns_put_queries(sh->q, &w, head, row0 + COLUMNS_QUERIES);
        struct columns_span rows = columns_counted(&w, past, slot, row0);
        if (mine) columns_sum(&sh->p[0][i], slots + 4, rows, &sum, &carry);
    }
    if (!mine) return;
    w.sums[at] = sum;
    w.carry[at] = carry;
}

/* Heads are the fast dimension: those of a group read the same keys.  The first slots are seen by all queries
 * and go first; slots before the first one that the chunk's first query reaches get nothing. */
static dim3 columns_grid(struct columns_work *w, int32_t n_slots, int32_t tile)
{
    w->first = KVL_MAX(0, n_slots - w->q.n - w->farthest) / tile;
    return dim3((unsigned)w->n_heads, (unsigned)(kvl_ceil_div(n_slots, tile) - w->first));
}

template <int D, int M>
static int columns_start(struct kvl_cuda_call *c, struct columns_work *w, int32_t n_slots)
{
    void (*round)(struct columns_work, uint16_t *) = columns_round<D>;
    void (*columns)(struct columns_work) = columns_tensor<D, M>;
    int bytes = (int)sizeof(struct columns_shared<D, M>);
    uint16_t *to = kvl_cuda_temp<uint16_t>(c, (size_t)w->n_heads * (size_t)w->q.n * D);
    KVL_TRY(c->rc);
    KVL_TRY(kvl_cuda_check(
        cudaFuncSetAttribute(columns, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "shared memory of column sums"));
    dim3 grid((unsigned)w->n_heads, (unsigned)kvl_ceil_div((int64_t)w->q.n * (D / 8), PF_THREADS));
    KVL_LAUNCH(round, grid, PF_THREADS, 0, *w, to);
    w->rounded = to;
    grid = columns_grid(w, n_slots, PM_ROWS * M);
    KVL_LAUNCH(columns, grid, PM_THREADS, (size_t)bytes, *w);
    return KVL_OK;
}

/* 128 slots and a thread for each, where shared memory has room for their keys. */
static int columns_start_tensor(struct kvl_cuda_call *c, struct columns_work *w, int32_t n_slots)
{
    int32_t dim = w->q.head_dim;
    if (dim <= 32) return columns_start<32, 2>(c, w, n_slots);
    if (dim <= 64) return columns_start<64, 2>(c, w, n_slots);
    if (dim <= 96) return columns_start<96, 2>(c, w, n_slots);
    if (dim <= 128) return columns_start<128, 2>(c, w, n_slots);
    return dim <= 192 ? columns_start<192, 1>(c, w, n_slots) : columns_start<256, 1>(c, w, n_slots);
}

int kvl_cuda_attn_columns(const struct kvl_attn_columns_args *a)
{
    struct kvl_cuda_call c;
    if (a->n == 0) return KVL_OK;
    int32_t n_slots = a->lanes[0].n_slots;
    assert(a->n_heads % a->n_kv_heads == 0 && n_slots >= a->n);
    assert(!a->bf16 || a->head_dim <= PF_MAX_DIM);
    for (int32_t h = 0; h < a->n_kv_heads; h++) assert(a->lanes[h].n_slots == n_slots);
    size_t rows = (size_t)a->n * (size_t)a->n_heads;
    size_t sums = (size_t)(a->n_heads - 1) * a->stride + (size_t)n_slots;
    kvl_cuda_begin(&c);
    struct columns_work w = {};
    w.q.q = kvl_cuda_in(&c, a->q, rows * (size_t)a->head_dim);
    w.q.step = (size_t)a->n_heads * (size_t)a->head_dim;
    w.q.n = a->n;
    w.q.head_dim = a->head_dim;
    w.q.vectors = (uintptr_t)w.q.q % 16 == 0 && a->head_dim % 4 == 0;
    w.probs = a->kind == KVL_COLUMNS_PROBS;
    w.lse = kvl_cuda_in(&c, w.probs ? a->lse : NULL, rows);
    w.sums = kvl_cuda_inout(&c, a->sums, sums);
    w.carry = kvl_cuda_inout(&c, a->carry, sums);
    w.stride = a->stride;
    w.lanes = kvl_cuda_lanes(&c, a->lanes, a->n_kv_heads);
    w.n_heads = a->n_heads;
    w.q.group = a->n_heads / a->n_kv_heads;
    w.nearest = w.probs ? 0 : 1;
    w.farthest = a->next > 0 ? KVL_MIN(n_slots, a->next - 1 + w.nearest) : n_slots;
    w.q.cap = pf_cap_of(a->cap, a->scale);
    w.factor = w.probs ? a->scale * PF_LOG2_E : a->scale;
    if (c.rc == KVL_OK && a->bf16) {
        c.rc = columns_start_tensor(&c, &w, n_slots);
    } else if (c.rc == KVL_OK) {
        dim3 grid = columns_grid(&w, n_slots, PF_SLOTS);
        KVL_LAUNCH(columns_float, grid, PF_THREADS, sizeof(struct pf_shared), w);
    }
    return kvl_cuda_end(&c);
}
