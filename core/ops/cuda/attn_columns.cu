/* What every slot received from a chunk of queries: a block has 64 slots of one head and meets the queries in
 * order, 64 at a time.  Their probabilities, or logits, are computed by all threads; then one thread for each
 * slot adds them one by one, with the carry.  The sums of a slot are read and written once.
 *
 * A query that a slot does not count leaves sum and carry alone, so that bits depend neither on where a tile of
 * queries begins nor on the chunk.
 *
 * Limit: 2 n (n_slots - n / 2) n_heads head_dim operations; an exponential and four dependent additions for
 * each pair beside them, which other blocks of the multiprocessor cover.  Not timed yet. */
#include "ops/cuda/prefill.cuh"

struct columns_work {
    struct pf_queries q; /* of row 0, head 0 */
    const float *lse;
    float *sums, *carry;
    size_t stride;
    const struct kvl_cuda_lane *lanes;
    int32_t n_heads, group;
    int32_t first, nearest, farthest; /* first tile; distances of queries that count */
    bool probs;
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

/* Kahan's steps of one slot: afterwards sum - carry is the total. */
static __device__ inline void columns_sum(const struct pf_shared *sh, int32_t slot, int32_t r0,
                                          int32_t r1, float *sum, float *carry)
{
    for (int32_t r = r0; r < r1; r++) {
        float y = sh->p[r][slot] - *carry, t = *sum + y;
        *carry = (t - *sum) - y;
        *sum = t;
    }
}

static __global__ __launch_bounds__(PF_THREADS) void columns_float(struct columns_work w)
{
    KVL_SHARED(struct pf_shared, sh);
    int32_t head = (int32_t)blockIdx.x, s0 = (w.first + (int32_t)blockIdx.y) * PF_SLOTS;
    const struct kvl_cuda_lane *l = &w.lanes[head / w.group];
    int32_t i = (int32_t)threadIdx.x, past = l->n_slots - w.q.n, slot = s0 + i;
    bool mine = i < PF_SLOTS && slot < l->n_slots;
    size_t at = (size_t)head * w.stride + (size_t)slot;
    float sum = mine ? w.sums[at] : 0, carry = mine ? w.carry[at] : 0;
    /* Rows that the first and the last slot count. */
    int32_t begin = max(0, s0 + w.nearest - past) / PF_ROWS * PF_ROWS;
    int32_t end = (int32_t)min((int64_t)w.q.n, (int64_t)s0 + PF_SLOTS + w.farthest - past);
    w.q.q += (size_t)head * (size_t)w.q.head_dim;
    if (i < PF_SLOTS) sh->row[i] = slot < l->n_slots ? pf_row(l, slot) : NULL;
    for (int32_t row0 = begin; row0 < end; row0 += PF_ROWS) {
        float s[4][4] = { { 0 } };
        pf_products(sh, l, &w.q, row0, s);
        columns_values(sh, &w, head, row0, s);
        __syncthreads();
        int64_t near = (int64_t)slot + w.nearest - past - row0;
        int64_t far = (int64_t)slot + w.farthest - past - row0 + 1;
        int64_t last = min((int64_t)PF_ROWS, (int64_t)w.q.n - row0);
        if (mine)
            columns_sum(sh, i, (int32_t)max((int64_t)0, min(near, last)),
                        (int32_t)max((int64_t)0, min(far, last)), &sum, &carry);
    }
    if (!mine) return;
    w.sums[at] = sum;
    w.carry[at] = carry;
}

/* Heads are the fast dimension: those of a group read the same keys.  The first slots are seen by all queries
 * and go first. */
static void columns_launch(struct columns_work *w, int32_t n_slots)
{
    int32_t past = n_slots - w->q.n;
    /* Slots before the first one that the chunk's first query reaches get nothing. */
    w->first = KVL_MAX(0, past - w->farthest) / PF_SLOTS;
    dim3 grid((unsigned)w->n_heads, (unsigned)(kvl_ceil_div(n_slots, PF_SLOTS) - w->first));
    KVL_LAUNCH(columns_float, grid, PF_THREADS, sizeof(struct pf_shared), *w);
}

int kvl_cuda_attn_columns(const struct kvl_attn_columns_args *a)
{
    struct kvl_cuda_call c;
    if (a->n == 0) return KVL_OK;
    int32_t n_slots = a->lanes[0].n_slots;
    assert(a->n_heads % a->n_kv_heads == 0 && n_slots >= a->n);
    for (int32_t h = 0; h < a->n_kv_heads; h++) assert(a->lanes[h].n_slots == n_slots);
    size_t rows = (size_t)a->n * (size_t)a->n_heads;
    size_t sums = (size_t)(a->n_heads - 1) * a->stride + (size_t)n_slots;
    kvl_cuda_begin(&c);
    struct columns_work w = {};
    w.q.q = kvl_cuda_in(&c, a->q, rows * (size_t)a->head_dim);
    w.q.step = (size_t)a->n_heads * (size_t)a->head_dim;
    w.q.n = a->n;
    w.q.head_dim = a->head_dim;
    w.q.bf16 = a->bf16;
    w.q.vectors = (uintptr_t)w.q.q % 16 == 0 && a->head_dim % 4 == 0;
    w.probs = a->kind == KVL_COLUMNS_PROBS;
    w.lse = kvl_cuda_in(&c, w.probs ? a->lse : NULL, rows);
    w.sums = kvl_cuda_inout(&c, a->sums, sums);
    w.carry = kvl_cuda_inout(&c, a->carry, sums);
    w.stride = a->stride;
    w.lanes = kvl_cuda_lanes(&c, a->lanes, a->n_kv_heads);
    w.n_heads = a->n_heads;
    w.group = a->n_heads / a->n_kv_heads;
    w.nearest = w.probs ? 0 : 1;
    w.farthest = a->next > 0 ? KVL_MIN(n_slots, a->next - 1 + w.nearest) : n_slots;
    w.factor = w.probs ? a->scale * PF_LOG2_E : a->scale;
    if (c.rc == KVL_OK) columns_launch(&w, n_slots);
    return kvl_cuda_end(&c);
}
