/* The oracle that real execution is compared with: it shares nothing with attn_decode but the turning of a
 * pair, and forms sums in double, as the CPU does.  Three passes: logits, a warp per slot and head; maximum
 * and total of a head; values, a block per head and 32 columns.
 *
 * Limit: double multiply-adds, one per element and head in each of two passes; it is not on the way of a
 * token but for variants that exist under masks only.  Not timed on a GPU yet. */
#include "attn.cuh"

enum { MASKED_THREADS = 256, MASKED_WARPS = MASKED_THREADS / KVL_WARP };

struct masked_total {
    double max, sum; /* max 0 where nothing is read */
};

struct masked_params {
    float *out, *lse, *probs;
    const float *q;
    const struct kvl_cuda_lane *lane;
    const uint8_t *mask;
    const float *bias;
    const int32_t *pos;
    const float *const *keys;
    struct kvl_cuda_rope rope;
    double *logit; /* [n_heads][n_slots] */
    struct masked_total *total;
    int32_t q_pos, n_slots, n_heads, head_dim;
    float scale, cap; /* cap 0: none */
};

static __device__ inline double masked_warp_sum(double x)
{
    for (int o = KVL_WARP / 2; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}

static __global__ void __launch_bounds__(MASKED_THREADS) masked_logits(struct masked_params a)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, h = (int32_t)blockIdx.y;
    int32_t slot = (int32_t)blockIdx.x * MASKED_WARPS + (int32_t)threadIdx.x / KVL_WARP;
    if (slot >= a.n_slots) return; /* whole warps */
    double *logit = &a.logit[(size_t)h * (size_t)a.n_slots + (size_t)slot];
    if (!a.mask[slot]) {
        if (lane == 0) *logit = -INFINITY;
        return;
    }
    const float *q = a.q + (size_t)h * (size_t)a.head_dim, *given = a.keys ? a.keys[slot] : NULL;
    const void *row = kvl_lane_row(a.lane, a.pos ? KVL_PART_K_RAW : KVL_PART_K, slot);
    double dot = 0;
    for (int32_t pair = lane; pair < a.head_dim / 2; pair += KVL_WARP) {
        int32_t x, y;
        kvl_rope_pair(a.rope, pair, &x, &y);
        float kx = given ? given[x] : kvl_widen(a.lane->type, row, x);
        float ky = given ? given[y] : kvl_widen(a.lane->type, row, y);
        float qx = q[x], qy = q[y];
        if (a.pos) kvl_rope_turn(a.rope, pair, a.q_pos, &qx, &qy);
        if (a.pos && !given) kvl_rope_turn(a.rope, pair, a.pos[slot], &kx, &ky);
        dot += (double)qx * (double)kx + (double)qy * (double)ky;
    }
    dot = masked_warp_sum(dot);
    dot *= (double)a.scale;
    if (a.cap > 0) dot = (double)a.cap * tanh(dot / (double)a.cap);
    if (lane == 0) *logit = dot + (a.bias ? (double)a.bias[slot] : 0);
}

/* The same in all threads of the block: warps, then their results in order. */
static __device__ inline double masked_block_max(double x, double *warp)
{
    for (int o = KVL_WARP / 2; o > 0; o /= 2) x = fmax(x, __shfl_xor_sync(0xffffffffu, x, o));
    if (threadIdx.x % KVL_WARP == 0) warp[threadIdx.x / KVL_WARP] = x;
    __syncthreads();
    for (int32_t w = 0; w < MASKED_WARPS; w++) x = fmax(x, warp[w]);
    __syncthreads();
    return x;
}

static __global__ void __launch_bounds__(MASKED_THREADS) masked_totals(struct masked_params a)
{
    __shared__ double warp[MASKED_WARPS];
    int32_t h = (int32_t)blockIdx.x;
    const double *logit = a.logit + (size_t)h * (size_t)a.n_slots;
    double max = -INFINITY, sum = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < a.n_slots; i += MASKED_THREADS)
        max = fmax(max, logit[i]);
    max = masked_block_max(max, warp);
    if (max == -INFINITY) max = 0;
    for (int32_t i = (int32_t)threadIdx.x; i < a.n_slots; i += MASKED_THREADS)
        sum += exp(logit[i] - max);
    sum = masked_warp_sum(sum);
    if (threadIdx.x % KVL_WARP == 0) warp[threadIdx.x / KVL_WARP] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    sum = 0;
    for (int32_t w = 0; w < MASKED_WARPS; w++) sum += warp[w];
    a.total[h] = { max, sum };
    a.lse[h] = sum == 0 ? -INFINITY : (float)(max + log(sum));
}

static __global__ void __launch_bounds__(MASKED_THREADS) masked_values(struct masked_params a)
{
    __shared__ double part[MASKED_WARPS][KVL_WARP];
    int32_t h = (int32_t)blockIdx.y;
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    int32_t c = (int32_t)blockIdx.x * KVL_WARP + lane;
    const double *logit = a.logit + (size_t)h * (size_t)a.n_slots;
    struct masked_total total = a.total[h];
    double acc = 0;
    for (int32_t i = warp; i < a.n_slots && c < a.head_dim; i += MASKED_WARPS) {
        double p = exp(logit[i] - total.max);
        if (p == 0) continue; /* an unread slot may hold anything */
        acc += p * (double)kvl_widen(a.lane->type, kvl_lane_row(a.lane, KVL_PART_V, i), c);
    }
    part[warp][lane] = acc;
    __syncthreads();
    if (warp > 0 || c >= a.head_dim) return;
    acc = 0;
    for (int32_t w = 0; w < MASKED_WARPS; w++) acc += part[w][lane];
    a.out[(size_t)h * (size_t)a.head_dim + (size_t)c] =
        total.sum == 0 ? 0.0f : (float)(acc / total.sum);
}

static __global__ void __launch_bounds__(MASKED_THREADS) masked_probs(struct masked_params a)
{
    int32_t i = (int32_t)blockIdx.x * MASKED_THREADS + (int32_t)threadIdx.x;
    int32_t h = (int32_t)blockIdx.y;
    if (i >= a.n_slots) return;
    size_t at = (size_t)h * (size_t)a.n_slots + (size_t)i;
    struct masked_total total = a.total[h];
    a.probs[at] = total.sum == 0 ? 0.0f : (float)(exp(a.logit[at] - total.max) / total.sum);
}

static void masked_launch(const struct masked_params *a)
{
    unsigned heads = (unsigned)a->n_heads;
    dim3 slots((unsigned)kvl_ceil_div(a->n_slots, MASKED_WARPS), heads);
    dim3 columns((unsigned)kvl_ceil_div(a->head_dim, KVL_WARP), heads);
    dim3 tiles((unsigned)kvl_ceil_div(a->n_slots, MASKED_THREADS), heads);
    if (a->n_slots > 0) KVL_LAUNCH(masked_logits, slots, MASKED_THREADS, 0, *a);
    KVL_LAUNCH(masked_totals, heads, MASKED_THREADS, 0, *a);
    KVL_LAUNCH(masked_values, columns, MASKED_THREADS, 0, *a);
    if (a->probs && a->n_slots > 0) KVL_LAUNCH(masked_probs, tiles, MASKED_THREADS, 0, *a);
}

/* The table of given keys, with addresses that a kernel may use. */
static const float *const *masked_keys(struct kvl_cuda_call *c,
                                       const struct kvl_attn_masked_args *a)
{
    size_t n = (size_t)a->n_slots;
    if (!a->keys || n == 0) return NULL;
    const float **keys = static_cast<const float **>(kvl_alloc(n, sizeof *keys));
    if (!keys) c->rc = KVL_ENOMEM;
    for (size_t i = 0; keys && i < n; i++)
        keys[i] = kvl_cuda_in(c, a->keys[i], (size_t)a->head_dim);
    const float *const *table = keys ? kvl_cuda_upload(c, keys, n) : NULL;
    kvl_free(keys);
    return table;
}

int kvl_cuda_attn_masked(const struct kvl_attn_masked_args *a)
{
    struct kvl_cuda_call c;
    struct masked_params m = {};
    size_t heads = (size_t)a->n_heads, n = (size_t)a->n_slots, dim = (size_t)a->head_dim;
    assert(a->lane->layout->head_dim == a->head_dim && a->n_slots <= a->lane->n_slots);
    assert(!a->pos || a->lane->layout->part_off[KVL_PART_K_RAW] != SIZE_MAX);
    assert(a->head_dim % 2 == 0 && a->n_heads <= 65535);
    if (a->n_heads == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    m.lane = kvl_cuda_lanes(&c, a->lane, 1);
    m.q = kvl_cuda_in(&c, a->q, heads * dim);
    m.mask = kvl_cuda_in(&c, a->mask, n);
    m.bias = kvl_cuda_in(&c, a->bias, n);
    m.pos = kvl_cuda_in(&c, a->pos, n);
    m.keys = masked_keys(&c, a);
    m.rope = kvl_cuda_rope_of(&c, a->rope, a->pos);
    m.logit = kvl_cuda_temp<double>(&c, heads * n);
    m.total = kvl_cuda_temp<struct masked_total>(&c, heads);
    m.out = kvl_cuda_out(&c, a->out, heads * dim);
    m.lse = kvl_cuda_out(&c, a->lse, heads);
    m.probs = kvl_cuda_out(&c, a->probs, heads * n);
    m.q_pos = a->q_pos;
    m.n_slots = a->n_slots;
    m.n_heads = a->n_heads;
    m.head_dim = a->head_dim;
    m.scale = a->scale;
    m.cap = a->cap;
    if (c.rc == KVL_OK) masked_launch(&m);
    return kvl_cuda_end(&c);
}
