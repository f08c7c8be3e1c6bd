/* A product of matrices, queries x slots, in tiles of 64 x 64, sixteen sums per thread; it is never stored. A
 * block has 64 slots of one query head, goes over the queries 64 at a time, and ends with the mass of its
 * slots.  Without a known log-sum-exp the same tiles come first once for it: per row and tile a maximum and
 * a sum, merged over the tiles in their order.
 *
 * Limit: 2 n_window n_heads n_slots head_dim floating-point operations in floats, twice without lse: for a
 * window of 32 and 32 heads over 128K slots of 128 channels 34 GFLOP, once per prefill, which itself takes
 * some hundred times that; so no tensor cores.  Not timed on a GPU yet. */
#include "attn.cuh"

enum {
    WINDOW_THREADS = 256,
    WINDOW_TILE = 64,                       /* queries, slots */
    WINDOW_SIDE = 16,                       /* threads of a tile's side */
    WINDOW_OWN = WINDOW_TILE / WINDOW_SIDE, /* rows and columns of a thread: r, r + 16, .. */
    WINDOW_DEPTH = 16,                      /* channels in shared memory at a time */
    WINDOW_PAD = WINDOW_TILE + 1
};

struct window_part {
    float max, sum;
};

struct window_params {
    float *mass;
    const float *q, *lse;
    const struct kvl_cuda_lane *lanes;
    struct window_part *part; /* [n_heads][n_window][n_tiles] */
    float *lse_out;           /* [n_window][n_heads] */
    int32_t n_window, n_slots, n_heads, n_kv_heads, head_dim, n_tiles;
    float scale, cap; /* cap 0: none */
    int32_t bf16;
};

/* ---- a tile -------------------------------------------------------------------------------------- */

static __device__ inline float window_round(float x, bool bf16)
{
    return bf16 ? __bfloat162float(__float2bfloat16(x)) : x;
}

/* Channels c0 .. of 64 queries from w0 on and 64 slots from s0 on, channel by channel; zero beyond the
 * ends. */
static __device__ inline void window_load(const struct window_params &a, int32_t h, int32_t w0,
                                          int32_t s0, int32_t c0, float (*q)[WINDOW_PAD],
                                          float (*k)[WINDOW_PAD])
{
    const struct kvl_cuda_lane *lane = &a.lanes[h / (a.n_heads / a.n_kv_heads)];
    for (int32_t i = (int32_t)threadIdx.x; i < WINDOW_TILE * WINDOW_DEPTH; i += WINDOW_THREADS) {
        int32_t row = i / WINDOW_DEPTH, d = i % WINDOW_DEPTH, c = c0 + d;
        float x = 0, y = 0;
        if (w0 + row < a.n_window && c < a.head_dim)
            x = a.q[((size_t)(w0 + row) * (size_t)a.n_heads + (size_t)h) * (size_t)a.head_dim +
                    (size_t)c];
        if (s0 + row < a.n_slots && c < a.head_dim)
            y = kvl_widen(lane->type, kvl_lane_row(lane, KVL_PART_K, s0 + row), c);
        q[d][row] = window_round(x, a.bf16);
        k[d][row] = window_round(y, a.bf16);
    }
}

/* Scaled logits of the thread's queries w0 + ty + 16 i and slots s0 + tx + 16 j; -inf where a query does not
 * see a slot, or there is none. */
static __device__ inline void window_logits(const struct window_params &a, int32_t h, int32_t w0,
                                            int32_t s0, float (*dot)[WINDOW_OWN])
{
    __shared__ float q[WINDOW_DEPTH][WINDOW_PAD], k[WINDOW_DEPTH][WINDOW_PAD];
    int32_t tx = (int32_t)threadIdx.x % WINDOW_SIDE, ty = (int32_t)threadIdx.x / WINDOW_SIDE;
    for (int i = 0; i < WINDOW_OWN; i++)
        for (int j = 0; j < WINDOW_OWN; j++) dot[i][j] = 0;
    for (int32_t c0 = 0; c0 < a.head_dim; c0 += WINDOW_DEPTH) {
        window_load(a, h, w0, s0, c0, q, k);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < WINDOW_DEPTH; d++)
#pragma unroll
            for (int i = 0; i < WINDOW_OWN; i++)
#pragma unroll
                for (int j = 0; j < WINDOW_OWN; j++)
                    dot[i][j] =
                        fmaf(q[d][ty + i * WINDOW_SIDE], k[d][tx + j * WINDOW_SIDE], dot[i][j]);
        __syncthreads();
    }
    for (int i = 0; i < WINDOW_OWN; i++)
        for (int j = 0; j < WINDOW_OWN; j++) {
            int32_t w = w0 + ty + i * WINDOW_SIDE, s = s0 + tx + j * WINDOW_SIDE;
            bool seen = w < a.n_window && s <= a.n_slots - a.n_window + w;
            float logit = dot[i][j] * a.scale;
            if (a.cap > 0) logit = a.cap * kvl_tanh(__fdividef(logit, a.cap));
            dot[i][j] = seen ? logit : -INFINITY;
        }
}

/* ---- kernels ------------------------------------------------------------------------------------- */

/* Sixteen threads with the same queries are half a warp. */
static __global__ void __launch_bounds__(WINDOW_THREADS) window_parts(struct window_params a)
{
    int32_t tile = (int32_t)blockIdx.x, h = (int32_t)blockIdx.y;
    int32_t w0 = (int32_t)blockIdx.z * WINDOW_TILE;
    int32_t tx = (int32_t)threadIdx.x % WINDOW_SIDE, ty = (int32_t)threadIdx.x / WINDOW_SIDE;
    float x[WINDOW_OWN][WINDOW_OWN];
    window_logits(a, h, w0, tile * WINDOW_TILE, x);
    for (int i = 0; i < WINDOW_OWN; i++) {
        int32_t w = w0 + ty + i * WINDOW_SIDE;
        float max = -INFINITY, sum = 0;
        for (int j = 0; j < WINDOW_OWN; j++) max = fmaxf(max, x[i][j]);
        for (int o = WINDOW_SIDE / 2; o > 0; o /= 2)
            max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, o));
        float shift = max == -INFINITY ? 0 : max;
        for (int j = 0; j < WINDOW_OWN; j++) sum += expf(x[i][j] - shift);
        for (int o = WINDOW_SIDE / 2; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
        size_t row = (size_t)h * (size_t)a.n_window + (size_t)w;
        if (tx == 0 && w < a.n_window)
            a.part[row * (size_t)a.n_tiles + (size_t)tile] = { max, sum };
    }
}

/* A warp per query and head. */
static __global__ void __launch_bounds__(WINDOW_THREADS) window_lse(struct window_params a)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
    int32_t w = (int32_t)(blockIdx.x * WINDOW_THREADS + threadIdx.x) / KVL_WARP;
    int32_t h = (int32_t)blockIdx.y;
    if (w >= a.n_window) return; /* whole warps */
    const struct window_part *part =
        a.part + ((size_t)h * (size_t)a.n_window + (size_t)w) * (size_t)a.n_tiles;
    float max = -INFINITY, sum = 0;
    for (int32_t i = lane; i < a.n_tiles; i += KVL_WARP) max = fmaxf(max, part[i].max);
    max = kvl_warp_max(max);
    if (max == -INFINITY) max = 0; /* a NaN is in the sum */
    for (int32_t i = lane; i < a.n_tiles; i += KVL_WARP)
        sum += expf(part[i].max - max) * part[i].sum;
    sum = kvl_warp_sum(sum);
    if (lane == 0) a.lse_out[(size_t)w * (size_t)a.n_heads + (size_t)h] = max + logf(sum);
}

static __global__ void __launch_bounds__(WINDOW_THREADS) window_mass(struct window_params a)
{
    __shared__ float sum[WINDOW_SIDE][WINDOW_TILE];
    int32_t h = (int32_t)blockIdx.y, s0 = (int32_t)blockIdx.x * WINDOW_TILE;
    int32_t tx = (int32_t)threadIdx.x % WINDOW_SIDE, ty = (int32_t)threadIdx.x / WINDOW_SIDE;
    float mass[WINDOW_OWN] = { 0 };
    for (int32_t w0 = 0; w0 < a.n_window; w0 += WINDOW_TILE) {
        float x[WINDOW_OWN][WINDOW_OWN];
        window_logits(a, h, w0, s0, x);
        for (int i = 0; i < WINDOW_OWN; i++) {
            int32_t w = w0 + ty + i * WINDOW_SIDE;
            if (w >= a.n_window) continue;
            float lse = a.lse[(size_t)w * (size_t)a.n_heads + (size_t)h];
            for (int j = 0; j < WINDOW_OWN; j++)
                mass[j] += x[i][j] == -INFINITY ? 0 : expf(x[i][j] - lse);
        }
    }
    for (int j = 0; j < WINDOW_OWN; j++) sum[ty][tx + j * WINDOW_SIDE] = mass[j];
    __syncthreads();
    int32_t s = s0 + (int32_t)threadIdx.x;
    if (threadIdx.x >= WINDOW_TILE || s >= a.n_slots) return;
    float total = 0;
    for (int32_t i = 0; i < WINDOW_SIDE; i++) total += sum[i][threadIdx.x];
    a.mass[(size_t)h * (size_t)a.n_slots + (size_t)s] = total;
}

/* ---- launches ------------------------------------------------------------------------------------ */

/* The log-sum-exp has a block for every tile, so that a short context with many queries fills the GPU too; the
 * mass adds over all queries of its slots in one block. */
static void window_launch(struct window_params *a)
{
    unsigned heads = (unsigned)a->n_heads, tiles = (unsigned)a->n_tiles;
    if (!a->lse && a->n_window > 0) {
        dim3 parts(tiles, heads, (unsigned)kvl_ceil_div(a->n_window, WINDOW_TILE));
        dim3 rows((unsigned)kvl_ceil_div((int64_t)a->n_window * KVL_WARP, WINDOW_THREADS), heads);
        KVL_LAUNCH(window_parts, parts, WINDOW_THREADS, 0, *a);
        KVL_LAUNCH(window_lse, rows, WINDOW_THREADS, 0, *a);
        a->lse = a->lse_out;
    }
    KVL_LAUNCH(window_mass, dim3(tiles, heads), WINDOW_THREADS, 0, *a);
}

int kvl_cuda_attn_window(const struct kvl_attn_window_args *a)
{
    struct kvl_cuda_call c;
    struct window_params w = {};
    size_t heads = (size_t)a->n_heads, n = (size_t)a->n_slots, n_w = (size_t)a->n_window;
    assert(a->n_window >= 0 && a->n_slots >= a->n_window && a->n_heads <= 65535);
    if (a->n_slots == 0 || a->n_heads == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    w.n_tiles = kvl_ceil_div(a->n_slots, WINDOW_TILE);
    if (n_w > 0) w.q = kvl_cuda_in(&c, a->q, n_w * heads * (size_t)a->head_dim);
    if (n_w > 0) w.lse = kvl_cuda_in(&c, a->lse, n_w * heads);
    w.lanes = kvl_cuda_lanes(&c, a->lanes, a->n_kv_heads);
    w.mass = kvl_cuda_out(&c, a->mass, heads * n);
    if (!a->lse) {
        w.part = kvl_cuda_temp<struct window_part>(&c, heads * n_w * (size_t)w.n_tiles);
        w.lse_out = kvl_cuda_temp<float>(&c, heads * n_w);
    }
    w.n_window = a->n_window;
    w.n_slots = a->n_slots;
    w.n_heads = a->n_heads;
    w.n_kv_heads = a->n_kv_heads;
    w.head_dim = a->head_dim;
    w.scale = a->scale;
    w.cap = a->cap;
    w.bf16 = a->bf16;
    if (c.rc == KVL_OK) window_launch(&w);
    return kvl_cuda_end(&c);
}
