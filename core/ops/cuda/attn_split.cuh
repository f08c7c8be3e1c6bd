/* attn_split.cuh - attn_decode: one split of a list for some query heads of a job.
 *
 * Here is what all splits share, and decode_any, which takes every list: repositioned, given keys too, a warp per slot
 * and two channels per lane, in three steps with barriers between them:
 *   rows    the address of every row, from runs or pages and the lane's table
 *   logits  keys; the sums over lanes leave every lane with a logit of its own
 *   values  the softmax of the whole split is known by then, nothing is rescaled
 * attn_fast.cuh has decode_fast, for the common lists. */
#ifndef KVL_ATTN_SPLIT_CUH
#define KVL_ATTN_SPLIT_CUH

#include "attn.cuh"

enum {
    DECODE_THREADS = 256,
    DECODE_WARPS = DECODE_THREADS / KVL_WARP,
    SPLIT_MAX = 1024,
    UNROLL = 4,    /* rows that a lane has on the way */
    ANY_HEADS = 4, /* heads of a block of decode_any */
    TILE = 128,    /* columns of values at a time there, and in the merge */
    TILE_LANE = TILE / KVL_WARP
};

/* Entries from `start` up to the start of the next run are slots slot, slot + 1 .. */
struct decode_run {
    int32_t slot, start;
};

struct decode_part {
    float max, sum; /* of logits; of exp(logit - max) */
};

struct decode_job {
    const uint8_t *const *blocks; /* NULL: those of the lane of the same index */
    const float *q, *log_weight, *keys;
    const int32_t *pos;
    float *out, *lse, *probs; /* out NULL: no values; lse is never NULL */
    int32_t n_slots, n_heads, q_pos;
    int32_t run0, n_runs, first0; /* its own of `run` and `first`; n_runs 0: entry i is slot i */
    const int32_t *page;          /* [n_pages]; page_tok 0: there is no such list */
    int32_t n_pages, page_tok, tail;
    int32_t part0; /* its [n_splits][n_heads] of `part` and `acc` */
    int32_t fast;
};

enum { DECODE_JOBS = 32 }; /* of one launch: parameters of a kernel are 4 KiB at most */

/* Jobs travel with the launch, so that nothing is copied for lists without runs. */
struct decode_params {
    struct decode_job job[DECODE_JOBS];
    const struct kvl_cuda_lane *lane; /* of every job, where lanes are staged */
    const struct decode_run *run;
    const int32_t *first; /* of every split: the run that its first entry is in */
    struct kvl_cuda_rope rope;
    float *acc; /* [...][head_dim] */
    struct decode_part *part;
    float scale, cap;       /* cap 0: none */
    int32_t head_dim, half; /* half: pairs of a head */
    int32_t ahead;          /* steps that warps of decode_fast ask for */
    int32_t block_shift;
    uint32_t off[3]; /* of parts in a block */
};

static_assert(sizeof(struct decode_params) <= 4096, "too many jobs in a launch");

/* 32 splits, so that 8 kv heads fill a GPU once with two blocks an SM, between 64 and SPLIT_MAX slots each. */
static __host__ __device__ inline int32_t decode_split_of(int32_t n_slots)
{
    int32_t split = (n_slots + 32 * 64 - 1) / (32 * 64) * 64;
    return split < 64 ? 64 : split < SPLIT_MAX ? split : SPLIT_MAX;
}

static __host__ __device__ inline int32_t decode_splits(int32_t n_slots)
{
    int32_t split = decode_split_of(n_slots);
    return (n_slots + split - 1) / split;
}

/* ---- a split ------------------------------------------------------------------------------------- */

/* What a block has of its split. */
struct decode_split {
    const struct decode_job *job;
    const uint8_t *const *blocks;
    int32_t split, index, i0, n; /* entries i0 .. i0 + n - 1 */
    int32_t h0, n_h;
};

/* Shared memory, in this order. */
struct decode_shared {
    const uint8_t **row; /* [split] addresses of rows in part 0 of their block */
    float *q;            /* [heads][head_dim] */
    float *p;            /* [split][heads] the runs of the split, then logits, then weights */
    float *sum;          /* [DECODE_WARPS][heads][columns] */
};

static __device__ inline struct decode_shared decode_cut(uint8_t *bytes, int32_t split,
                                                         int32_t heads, int32_t head_dim)
{
    struct decode_shared s;
    s.row = reinterpret_cast<const uint8_t **>(bytes);
    s.q = reinterpret_cast<float *>(bytes + (size_t)split * sizeof(uint8_t *));
    s.p = s.q + heads * head_dim;
    s.sum = NULL;
    return s;
}

/* False: the block has nothing to do. */
static __device__ inline bool decode_find(const struct decode_params &a, int32_t heads,
                                          struct decode_split *s)
{
    s->job = &a.job[blockIdx.y];
    s->blocks = a.lane ? a.lane[blockIdx.y].blocks : s->job->blocks;
    s->split = decode_split_of(s->job->n_slots);
    s->index = (int32_t)blockIdx.x;
    s->i0 = s->index * s->split;
    s->n = min(s->split, s->job->n_slots - s->i0);
    s->h0 = (int32_t)blockIdx.z * heads;
    s->n_h = min(heads, s->job->n_heads - s->h0);
    return s->n > 0 && s->n_h > 0;
}

/* The run that entry i is in: the last that starts at or before it. */
static __device__ inline int32_t decode_seek(const struct decode_run *run, int32_t n, int32_t i)
{
    int32_t lo = 0;
    while (n > 1) {
        int32_t half = n / 2;
        if (run[lo + half].start <= i) lo += half;
        n -= half;
    }
    return lo;
}

static __device__ inline int32_t decode_paged(const struct decode_job &job, int32_t i)
{
    int32_t page = i / job.page_tok;
    if (page < job.n_pages) return job.page[page] * job.page_tok + i % job.page_tok;
    return job.tail + (i - job.n_pages * job.page_tok);
}

/* A split of n entries is in n runs at most: they come to shared memory at once and are searched there. */
static __device__ inline void decode_rows(const struct decode_params &a,
                                          const struct decode_split &s,
                                          const struct decode_shared &m, size_t row_bytes)
{
    struct decode_run *run = reinterpret_cast<struct decode_run *>(m.p);
    int32_t first = s.job->n_runs > 0 ? a.first[s.job->first0 + s.index] : 0;
    int32_t n_runs = min(s.n, s.job->n_runs - first);
    for (int32_t i = (int32_t)threadIdx.x; i < n_runs; i += DECODE_THREADS)
        run[i] = a.run[s.job->run0 + first + i];
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < s.n; i += DECODE_THREADS) {
        int32_t slot = s.i0 + i, mask = (1 << a.block_shift) - 1;
        if (n_runs > 0) {
            struct decode_run r = run[decode_seek(run, n_runs, slot)];
            slot += r.slot - r.start;
        } else if (s.job->page_tok > 0) {
            slot = decode_paged(*s.job, slot);
        }
        m.row[i] = s.blocks[slot >> a.block_shift] + (size_t)(slot & mask) * row_bytes;
    }
    __syncthreads();
}

static __device__ inline float decode_weighted(const struct decode_params &a,
                                               const struct decode_split &s, int32_t i, float logit)
{
    if (a.cap > 0) logit = a.cap * kvl_tanh(__fdividef(logit, a.cap));
    if (!s.job->log_weight) return logit;
    float w = s.job->log_weight[s.i0 + i];
    return w == -INFINITY ? w : logit + w; /* an unread slot may hold anything */
}

/* Logits to weights exp(logit - maximum), a head per warp; weights of entries that do not exist, up to
 * `padded`, are zero.  A NaN does not get lost: it is in the sum. */
static __device__ inline void decode_softmax(const struct decode_params &a,
                                             const struct decode_split &s, float *p, int32_t heads,
                                             int32_t padded)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, h = (int32_t)threadIdx.x / KVL_WARP;
    float max = -INFINITY, sum = 0;
    if (h >= heads) return; /* whole warps */
    float *probs = s.job->probs && h < s.n_h
                       ? s.job->probs + (size_t)(s.h0 + h) * (size_t)s.job->n_slots + s.i0
                       : NULL;
    for (int32_t i = lane; i < s.n; i += KVL_WARP) {
        float x = p[i * heads + h];
        if (probs) probs[i] = x; /* logits until the total is known */
        max = fmaxf(max, x);
    }
    max = kvl_warp_max(max);
    float shift = max == -INFINITY ? 0 : max;
    for (int32_t i = lane; i < padded; i += KVL_WARP) {
        float w = i < s.n ? expf(p[i * heads + h] - shift) : 0;
        p[i * heads + h] = w;
        sum += w;
    }
    sum = kvl_warp_sum(sum);
    if (lane == 0 && h < s.n_h)
        a.part[s.job->part0 + s.index * s.job->n_heads + s.h0 + h] = { max, sum };
}

/* Adds the sums of the warps in their order: columns c0 .. of the partial results. */
static __device__ inline void decode_store(const struct decode_params &a,
                                           const struct decode_split &s, const float *sum,
                                           int32_t heads, int32_t columns, int32_t c0,
                                           int32_t head_dim)
{
    int32_t row = s.job->part0 + s.index * s.job->n_heads + s.h0;
    float *acc = a.acc + (size_t)row * (size_t)head_dim;
    for (int32_t i = (int32_t)threadIdx.x; i < s.n_h * columns; i += DECODE_THREADS) {
        int32_t h = i / columns, c = c0 + i % columns;
        float x = 0;
        for (int32_t w = 0; w < DECODE_WARPS; w++) x += sum[w * heads * columns + i];
        if (c < head_dim) acc[(size_t)h * (size_t)head_dim + (size_t)c] = x;
    }
}

/* ---- decode_any ---------------------------------------------------------------------------------- */

/* Queries to shared memory, turned to q_pos where keys are raw. */
static __device__ inline void any_queries(const struct decode_params &a,
                                          const struct decode_split &s, float *q)
{
    int32_t half = a.half;
    for (int32_t i = (int32_t)threadIdx.x; i < ANY_HEADS * half; i += DECODE_THREADS) {
        int32_t h = i / half, m = i % half, x, y;
        kvl_rope_pair(a.rope, m, &x, &y);
        const float *from = s.job->q + (size_t)(h < s.n_h ? s.h0 + h : 0) * (size_t)a.head_dim;
        float qx = h < s.n_h ? from[x] : 0, qy = h < s.n_h ? from[y] : 0;
        if (s.job->pos) kvl_rope_turn(a.rope, m, s.job->q_pos, &qx, &qy);
        q[h * a.head_dim + x] = qx * a.scale;
        q[h * a.head_dim + y] = qy * a.scale;
    }
}

struct any_pair {
    float x, y;
};

/* Channels x and y of the key of entry i; `row` is the stored one. */
template <class T>
static __device__ inline struct any_pair any_key(const struct decode_params &a,
                                                 const struct decode_split &s, const uint8_t *row,
                                                 int32_t i, int32_t pair, int32_t x, int32_t y)
{
    if (s.job->keys) {
        const float *k = s.job->keys + (size_t)(s.i0 + i) * (size_t)a.head_dim;
        return { k[x], k[y] };
    }
    float kx = kvl_row_at<T>(row, x), ky = kvl_row_at<T>(row, y);
    if (s.job->pos) kvl_rope_turn(a.rope, pair, s.job->pos[s.i0 + i], &kx, &ky);
    return { kx, ky };
}

/* A warp takes UNROLL entries at a time, a lane a pair of channels of every 64. */
template <class T>
static __device__ inline void any_logits(const struct decode_params &a,
                                         const struct decode_split &s,
                                         const struct decode_shared &m)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    int32_t half = a.half;
    size_t off = s.job->keys ? 0 : a.off[s.job->pos ? KVL_PART_K_RAW : KVL_PART_K];
    for (int32_t t = warp * UNROLL; t < s.n; t += DECODE_WARPS * UNROLL) {
        float dot[UNROLL * ANY_HEADS] = { 0 };
        for (int32_t pair = lane; pair < half; pair += KVL_WARP) {
            int32_t x, y;
            kvl_rope_pair(a.rope, pair, &x, &y);
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int32_t i = min(t + u, s.n - 1);
                struct any_pair k = any_key<T>(a, s, m.row[i] + off, i, pair, x, y);
#pragma unroll
                for (int h = 0; h < ANY_HEADS; h++) {
                    const float *q = m.q + h * a.head_dim;
                    float *d = &dot[u * ANY_HEADS + h];
                    *d = fmaf(q[y], k.y, fmaf(q[x], k.x, *d));
                }
            }
        }
        kvl_fold<UNROLL * ANY_HEADS, KVL_WARP, 1>(dot); /* 16 sums, 32 lanes */
        int32_t v = lane / 2, i = t + v / ANY_HEADS;
        if (lane % 2 == 0 && i < s.n)
            m.p[i * ANY_HEADS + v % ANY_HEADS] = decode_weighted(a, s, i, dot[0]);
    }
}

/* Columns c0 .. c0 + TILE - 1 of the values: warps share the entries, lanes the columns. */
template <class T>
static __device__ inline void any_values(const struct decode_params &a,
                                         const struct decode_split &s,
                                         const struct decode_shared &m, int32_t c0, float *acc)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    for (int i = 0; i < ANY_HEADS * TILE_LANE; i++) acc[i] = 0;
    for (int32_t i = warp; i < s.n; i += DECODE_WARPS) {
        const float *p = m.p + i * ANY_HEADS;
        if (p[0] + p[1] + p[2] + p[3] == 0) continue; /* an unread slot may hold anything */
        const uint8_t *row = m.row[i] + a.off[KVL_PART_V];
#pragma unroll
        for (int k = 0; k < TILE_LANE; k++) {
            int32_t c = c0 + lane + k * KVL_WARP;
            float v = c < a.head_dim ? kvl_row_at<T>(row, c) : 0;
#pragma unroll
            for (int h = 0; h < ANY_HEADS; h++)
                acc[h * TILE_LANE + k] = fmaf(p[h], v, acc[h * TILE_LANE + k]);
        }
    }
}

template <class T>
static __global__ void __launch_bounds__(DECODE_THREADS)
    decode_any(const __grid_constant__ struct decode_params a)
{
    struct decode_split s;
    KVL_SHARED(uint8_t, bytes);
    if (!decode_find(a, ANY_HEADS, &s) || s.job->fast) return; /* whole blocks */
    struct decode_shared m = decode_cut(bytes, s.split, ANY_HEADS, a.head_dim);
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    m.sum = m.p + s.split * ANY_HEADS;
    any_queries(a, s, m.q);
    decode_rows(a, s, m, kvl_row_bytes<T>(a.head_dim));
    any_logits<T>(a, s, m);
    __syncthreads();
    decode_softmax(a, s, m.p, ANY_HEADS, s.n);
    __syncthreads();
    for (int32_t c0 = 0; s.job->out && c0 < a.head_dim; c0 += TILE) {
        float acc[ANY_HEADS * TILE_LANE];
        any_values<T>(a, s, m, c0, acc);
        for (int h = 0; h < ANY_HEADS; h++)
            for (int k = 0; k < TILE_LANE; k++)
                m.sum[(warp * ANY_HEADS + h) * TILE + lane + k * KVL_WARP] = acc[h * TILE_LANE + k];
        __syncthreads();
        decode_store(a, s, m.sum, ANY_HEADS, TILE, c0, a.head_dim);
        __syncthreads();
    }
}

#endif
