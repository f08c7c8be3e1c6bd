/* Split-KV decoding (Flash-Decoding, Dao et al. 2023): a list is cut in splits whose size follows from its
 * length alone, a block computes one split for some query heads of the job, a second kernel merges the
 * splits of a head in their order.
 *
 * Limit: the bytes of K and V, each read once.  Partial results are 4 (head_dim + 2) bytes per head and
 * split and stay in L2: for 4 heads, head_dim 128 and 512 slots of bf16 they are 0.8 % of the split's bytes,
 * written and read.  Multiply-adds: 2 per element and head; 4 heads take about a quarter of those of an
 * H200.  Not timed on a GPU yet.
 *
 * A block goes over its split in three steps with barriers between them; other blocks of the SM keep
 * memory busy meanwhile:
 *   rows    the address of every row, from runs and the lane's table
 *   logits  keys; eight channels per lane, several slots per warp at a time.  The sums over lanes leave
 *           every lane with a logit of its own
 *   values  the same mapping; the softmax of the whole split is known by then, nothing is rescaled
 * Lists of 16-bit elements with head_dim 64 or 128 take decode_fast; everything else, repositioned and
 * given keys too, takes decode_any, a warp per slot and two channels per lane. */
#include "ops/cuda/attn.cuh"

enum {
    DECODE_THREADS = 256,
    DECODE_WARPS = DECODE_THREADS / KVL_WARP,
    SPLIT_MAX = 512,
    UNROLL = 4,    /* rows that a lane has on the way */
    ANY_HEADS = 4, /* heads of a block of decode_any */
    TILE = 128,    /* columns of values at a time there, and in the merge */
    TILE_LANE = TILE / KVL_WARP,
    PROBS_TILE = 2048
};

/* Entries from `start` up to the start of the next run are slots slot, slot + 1 .. */
struct decode_run {
    int32_t slot, start;
};

struct decode_part {
    float max, sum; /* of logits; of exp(logit - max) */
};

struct decode_job {
    const float *q, *log_weight, *keys;
    const int32_t *pos;
    float *out, *lse, *probs; /* out NULL: no values; lse is never NULL */
    float *acc;               /* [n_splits][n_heads][head_dim] */
    struct decode_part *part; /* [n_splits][n_heads] */
    int32_t n_slots, n_heads, split, n_splits, q_pos;
    int32_t run0, n_runs, first0; /* its own of run and first below; n_runs 0: entry i is slot i */
    bool fast;
};

struct decode_params {
    const struct decode_job *job;
    const struct kvl_cuda_lane *lane; /* of every job */
    const struct decode_run *run;
    const int32_t *first; /* of every split: the run that its first entry is in */
    const double *inv_freq;
    float scale;
    int32_t head_dim, half; /* half: pairs of a head */
    int32_t neox;
};

/* ---- a split ------------------------------------------------------------------------------------- */

/* What a block has of its split. */
struct decode_split {
    const struct decode_job *job;
    const struct kvl_cuda_lane *lane;
    int32_t index, i0, n; /* entries i0 .. i0 + n - 1 */
    int32_t h0, n_h;
};

/* Shared memory, in this order. */
struct decode_shared {
    const uint8_t **row; /* [split] addresses of rows in part 0 of their block */
    float *q;            /* [heads][head_dim] */
    float *p;            /* [split][heads] the runs of the split, then logits, then weights */
    float *sum;          /* [DECODE_WARPS][heads][columns]; decode_fast: over all others */
};

static int32_t decode_weights(int32_t split, int32_t heads)
{
    return split * (heads < 2 ? 2 : heads); /* a run is as large as two */
}

static __device__ inline struct decode_shared decode_cut(uint8_t *bytes, int32_t split,
                                                         int32_t heads, int32_t head_dim)
{
    struct decode_shared s;
    s.row = reinterpret_cast<const uint8_t **>(bytes);
    s.q = reinterpret_cast<float *>(bytes + (size_t)split * sizeof(uint8_t *));
    s.p = s.q + heads * head_dim;
    s.sum = reinterpret_cast<float *>(bytes);
    return s;
}

/* False: the block has nothing to do. */
static __device__ inline bool decode_find(const struct decode_params &a, int32_t heads,
                                          struct decode_split *s)
{
    s->job = &a.job[blockIdx.y];
    s->lane = &a.lane[blockIdx.y];
    s->index = (int32_t)blockIdx.x;
    s->i0 = s->index * s->job->split;
    s->n = min(s->job->split, s->job->n_slots - s->i0);
    s->h0 = (int32_t)blockIdx.z * heads;
    s->n_h = min(heads, s->job->n_heads - s->h0);
    return s->index < s->job->n_splits && s->n_h > 0;
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

/* A split of n entries is in n runs at most: they come to shared memory at once and are searched there. */
static __device__ inline void decode_rows(const struct decode_params &a,
                                          const struct decode_split &s,
                                          const struct decode_shared &m, size_t row_bytes)
{
    const struct kvl_cuda_lane *l = s.lane;
    struct decode_run *run = reinterpret_cast<struct decode_run *>(m.p);
    int32_t first = s.job->n_runs > 0 ? a.first[s.job->first0 + s.index] : 0;
    int32_t n_runs = min(s.n, s.job->n_runs - first);
    for (int32_t i = (int32_t)threadIdx.x; i < n_runs; i += DECODE_THREADS)
        run[i] = a.run[s.job->run0 + first + i];
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < s.n; i += DECODE_THREADS) {
        int32_t slot = s.i0 + i, mask = (1 << l->block_shift) - 1;
        if (n_runs > 0) {
            struct decode_run r = run[decode_seek(run, n_runs, slot)];
            slot += r.slot - r.start;
        }
        m.row[i] = l->blocks[slot >> l->block_shift] + (size_t)(slot & mask) * row_bytes;
    }
    __syncthreads();
}

static __device__ inline float decode_weighted(const struct decode_split &s, int32_t i, float logit)
{
    if (!s.job->log_weight) return logit;
    float w = s.job->log_weight[s.i0 + i];
    return w == -INFINITY ? w : logit + w; /* an unread slot may hold anything */
}

/* Logits to weights exp(logit - maximum), a head per warp; weights of entries that do not exist, up to
 * `padded`, are zero.  A NaN does not get lost: it is in the sum. */
static __device__ inline void decode_softmax(const struct decode_split &s, float *p, int32_t heads,
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
        s.job->part[(size_t)s.index * (size_t)s.job->n_heads + (size_t)(s.h0 + h)] = { max, sum };
}

/* Adds the sums of the warps in their order: columns c0 .. of the partial results. */
static __device__ inline void decode_store(const struct decode_split &s, const float *sum,
                                           int32_t heads, int32_t columns, int32_t c0,
                                           int32_t head_dim)
{
    size_t row = (size_t)s.index * (size_t)s.job->n_heads + (size_t)s.h0;
    float *acc = s.job->acc + row * (size_t)head_dim;
    for (int32_t i = (int32_t)threadIdx.x; i < s.n_h * columns; i += DECODE_THREADS) {
        int32_t h = i / columns, c = c0 + i % columns;
        float x = 0;
        for (int32_t w = 0; w < DECODE_WARPS; w++) x += sum[w * heads * columns + i];
        if (c < head_dim) acc[(size_t)h * (size_t)head_dim + (size_t)c] = x;
    }
}

/* ---- decode_fast: 16-bit elements, head_dim D, G heads ------------------------------------------- */

template <int D, int G> struct decode_map {
    enum {
        LANES = D / 8,                              /* that share a row */
        GROUPS = KVL_WARP / LANES,                  /* rows of a warp side by side */
        STEP = GROUPS * UNROLL,                     /* rows of a warp at a time */
        LOGITS = UNROLL * G,                        /* of a group at a time */
        HELD = LOGITS > LANES ? LOGITS / LANES : 1, /* of these in one lane in the end */
        SUMS = G * 8 / GROUPS                       /* of values in one lane in the end */
    };
};

/* The rows i0 + u * groups of a lane's group; beyond the end the last one again. */
static __device__ inline void decode_load(struct kvl_eight *x, const uint8_t *const *row,
                                          size_t off, int32_t i0, int32_t groups, int32_t n)
{
#pragma unroll
    for (int u = 0; u < UNROLL; u++) x[u] = kvl_load_eight(row[min(i0 + u * groups, n - 1)] + off);
}

template <class T, int D, int G>
static __device__ inline void decode_logits(const struct decode_split &s,
                                            const struct decode_shared &m)
{
    typedef struct decode_map<D, G> map;
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    int32_t group = lane / map::LANES, l = lane % map::LANES;
    size_t off = s.lane->off[KVL_PART_K] + (size_t)l * 16;
    for (int32_t t = warp * map::STEP; t < s.n; t += DECODE_WARPS * map::STEP) {
        struct kvl_eight k[UNROLL];
        float x[map::LOGITS];
        decode_load(k, m.row, off, t + group, map::GROUPS, s.n);
#pragma unroll
        for (int h = 0; h < G; h++) {
            float q[8];
#pragma unroll
            for (int e = 0; e < 8; e++) q[e] = m.q[h * D + l * 8 + e];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                float dot = 0;
#pragma unroll
                for (int e = 0; e < 8; e++) dot = fmaf(q[e], kvl_eight_at<T>(k[u], e), dot);
                x[u * G + h] = dot;
            }
        }
        kvl_fold<map::LOGITS, map::LANES, 1>(x);
#pragma unroll
        for (int r = 0; r < map::HELD; r++) {
            int32_t v = l * map::LOGITS / map::LANES + r;
            int32_t i = t + v / G * map::GROUPS + group;
            if (l * map::LOGITS % map::LANES == 0 && i < s.n)
                m.p[i * G + v % G] = decode_weighted(s, i, x[r]);
        }
    }
}

/* x holds the first rows already: they were asked for before the softmax. */
template <class T, int D, int G>
static __device__ inline void decode_values(const struct decode_split &s,
                                            const struct decode_shared &m, struct kvl_eight *x,
                                            float *acc)
{
    typedef struct decode_map<D, G> map;
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    int32_t group = lane / map::LANES, l = lane % map::LANES, t0 = warp * map::STEP;
    size_t off = s.lane->off[KVL_PART_V] + (size_t)l * 16;
#pragma unroll
    for (int i = 0; i < G * 8; i++) acc[i] = 0;
    for (int32_t t = t0; t < s.n; t += DECODE_WARPS * map::STEP) {
        if (t > t0) decode_load(x, m.row, off, t + group, map::GROUPS, s.n);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float p[G], any = 0;
#pragma unroll
            for (int h = 0; h < G; h++) any += p[h] = m.p[(t + u * map::GROUPS + group) * G + h];
            if (any == 0) continue; /* an unread slot may hold anything */
#pragma unroll
            for (int e = 0; e < 8; e++) {
                float v = kvl_eight_at<T>(x[u], e);
#pragma unroll
                for (int h = 0; h < G; h++) acc[h * 8 + e] = fmaf(p[h], v, acc[h * 8 + e]);
            }
        }
    }
}

template <class T, int D, int G>
static __global__ void __launch_bounds__(DECODE_THREADS) decode_fast(struct decode_params a)
{
    typedef struct decode_map<D, G> map;
    struct decode_split s;
    KVL_SHARED(uint8_t, bytes);
    if (!decode_find(a, G, &s) || !s.job->fast) return; /* whole blocks */
    struct decode_shared m = decode_cut(bytes, s.job->split, G, D);
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    int32_t group = lane / map::LANES, l = lane % map::LANES;
    for (int32_t i = (int32_t)threadIdx.x; i < G * D; i += DECODE_THREADS)
        m.q[i] = i / D < s.n_h ? s.job->q[s.h0 * D + i] * a.scale : 0;
    decode_rows(a, s, m, D * sizeof(T));
    decode_logits<T, D, G>(s, m);
    struct kvl_eight v[UNROLL];
    if (s.job->out)
        decode_load(v, m.row, s.lane->off[KVL_PART_V] + (size_t)l * 16, warp * map::STEP + group,
                    map::GROUPS, s.n);
    __syncthreads();
    decode_softmax(s, m.p, G, (s.n + map::STEP - 1) / map::STEP * map::STEP);
    __syncthreads();
    if (!s.job->out) return;
    float acc[G * 8];
    decode_values<T, D, G>(s, m, v, acc);
    kvl_fold<G * 8, map::GROUPS, map::LANES>(acc);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < map::SUMS; i++) {
        int32_t at = group * map::SUMS + i;
        m.sum[(warp * G + at / 8) * D + l * 8 + at % 8] = acc[i];
    }
    __syncthreads();
    decode_store(s, m.sum, G, D, 0, D);
}

/* ---- decode_any ---------------------------------------------------------------------------------- */

/* Queries to shared memory, turned to q_pos where keys are raw. */
static __device__ inline void any_queries(const struct decode_params &a,
                                          const struct decode_split &s, float *q)
{
    int32_t half = a.half;
    for (int32_t i = (int32_t)threadIdx.x; i < ANY_HEADS * half; i += DECODE_THREADS) {
        int32_t h = i / half, m = i % half;
        int32_t x = a.neox ? m : 2 * m, y = a.neox ? m + half : 2 * m + 1;
        const float *from = s.job->q + (size_t)(h < s.n_h ? s.h0 + h : 0) * (size_t)a.head_dim;
        float qx = h < s.n_h ? from[x] : 0, qy = h < s.n_h ? from[y] : 0, c = 1, d = 0;
        if (s.job->pos) kvl_turn(s.job->q_pos, a.inv_freq[m], &c, &d);
        q[h * a.head_dim + x] = (qx * c - qy * d) * a.scale;
        q[h * a.head_dim + y] = (qx * d + qy * c) * a.scale;
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
    const T *k = reinterpret_cast<const T *>(row);
    float kx = kvl_float(k[x]), ky = kvl_float(k[y]), c, d;
    if (!s.job->pos) return { kx, ky };
    kvl_turn(s.job->pos[s.i0 + i], a.inv_freq[pair], &c, &d);
    return { kx * c - ky * d, kx * d + ky * c };
}

/* A warp takes UNROLL entries at a time, a lane a pair of channels of every 64. */
template <class T>
static __device__ inline void any_logits(const struct decode_params &a,
                                         const struct decode_split &s,
                                         const struct decode_shared &m)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    int32_t half = a.half;
    size_t off = s.job->keys ? 0 : s.lane->off[s.job->pos ? KVL_PART_K_RAW : KVL_PART_K];
    for (int32_t t = warp * UNROLL; t < s.n; t += DECODE_WARPS * UNROLL) {
        float dot[UNROLL * ANY_HEADS] = { 0 };
        for (int32_t pair = lane; pair < half; pair += KVL_WARP) {
            int32_t x = a.neox ? pair : 2 * pair, y = a.neox ? pair + half : 2 * pair + 1;
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
            m.p[i * ANY_HEADS + v % ANY_HEADS] = decode_weighted(s, i, dot[0]);
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
        const T *row = reinterpret_cast<const T *>(m.row[i] + s.lane->off[KVL_PART_V]);
#pragma unroll
        for (int k = 0; k < TILE_LANE; k++) {
            int32_t c = c0 + lane + k * KVL_WARP;
            float v = c < a.head_dim ? kvl_float(row[c]) : 0;
#pragma unroll
            for (int h = 0; h < ANY_HEADS; h++)
                acc[h * TILE_LANE + k] = fmaf(p[h], v, acc[h * TILE_LANE + k]);
        }
    }
}

template <class T>
static __global__ void __launch_bounds__(DECODE_THREADS) decode_any(struct decode_params a)
{
    struct decode_split s;
    KVL_SHARED(uint8_t, bytes);
    if (!decode_find(a, ANY_HEADS, &s) || s.job->fast) return; /* whole blocks */
    struct decode_shared m = decode_cut(bytes, s.job->split, ANY_HEADS, a.head_dim);
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    m.sum = m.p + s.job->split * ANY_HEADS; /* weights are read for every tile of columns */
    any_queries(a, s, m.q);
    decode_rows(a, s, m, (size_t)a.head_dim * sizeof(T));
    any_logits<T>(a, s, m);
    __syncthreads();
    decode_softmax(s, m.p, ANY_HEADS, s.n);
    __syncthreads();
    for (int32_t c0 = 0; s.job->out && c0 < a.head_dim; c0 += TILE) {
        float acc[ANY_HEADS * TILE_LANE];
        any_values<T>(a, s, m, c0, acc);
        for (int h = 0; h < ANY_HEADS; h++)
            for (int k = 0; k < TILE_LANE; k++)
                m.sum[(warp * ANY_HEADS + h) * TILE + lane + k * KVL_WARP] = acc[h * TILE_LANE + k];
        __syncthreads();
        decode_store(s, m.sum, ANY_HEADS, TILE, c0, a.head_dim);
        __syncthreads();
    }
}

/* ---- the merge ----------------------------------------------------------------------------------- */

/* The maximum of all parts of head h, and the sum of their sums. */
static __device__ inline struct decode_part merge_total(const struct decode_job *job, int32_t h,
                                                        struct decode_part *warp_part)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    struct decode_part t = { -INFINITY, 0 };
    for (int32_t i = (int32_t)threadIdx.x; i < job->n_splits; i += DECODE_THREADS)
        t.max = fmaxf(t.max, job->part[i * job->n_heads + h].max);
    t.max = kvl_warp_max(t.max);
    if (lane == 0) warp_part[warp].max = t.max;
    __syncthreads();
    for (int32_t w = 0; w < DECODE_WARPS; w++) t.max = fmaxf(t.max, warp_part[w].max);
    float shift = t.max == -INFINITY ? 0 : t.max;
    for (int32_t i = (int32_t)threadIdx.x; i < job->n_splits; i += DECODE_THREADS) {
        struct decode_part p = job->part[i * job->n_heads + h];
        t.sum += expf(p.max - shift) * p.sum;
    }
    t.sum = kvl_warp_sum(t.sum);
    if (lane == 0) warp_part[warp].sum = t.sum;
    __syncthreads();
    t.sum = 0;
    for (int32_t w = 0; w < DECODE_WARPS; w++) t.sum += warp_part[w].sum;
    return { shift, t.sum };
}

/* A block per head of a job; its warps share the splits. */
static __global__ void __launch_bounds__(DECODE_THREADS) decode_merge(struct decode_params a)
{
    __shared__ struct decode_part warp_part[DECODE_WARPS];
    __shared__ float sum[DECODE_WARPS][TILE];
    const struct decode_job *job = &a.job[blockIdx.y];
    int32_t h = (int32_t)blockIdx.x;
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    if (h >= job->n_heads) return; /* whole blocks */
    struct decode_part t = merge_total(job, h, warp_part);
    if (threadIdx.x == 0) job->lse[h] = t.sum == 0 ? -INFINITY : t.max + logf(t.sum);
    for (int32_t c0 = 0; job->out && c0 < a.head_dim; c0 += TILE) {
        float acc[TILE_LANE] = { 0 };
#pragma unroll 4
        for (int32_t i = warp; i < job->n_splits; i += DECODE_WARPS) {
            size_t row = (size_t)i * (size_t)job->n_heads + (size_t)h;
            float w = expf(job->part[row].max - t.max);
#pragma unroll
            for (int k = 0; k < TILE_LANE; k++) {
                int32_t c = c0 + lane + k * KVL_WARP;
                if (c < a.head_dim)
                    acc[k] = fmaf(w, job->acc[row * (size_t)a.head_dim + (size_t)c], acc[k]);
            }
        }
#pragma unroll
        for (int k = 0; k < TILE_LANE; k++) sum[warp][lane + k * KVL_WARP] = acc[k];
        __syncthreads();
        int32_t c = c0 + (int32_t)threadIdx.x;
        if (threadIdx.x < TILE && c < a.head_dim) {
            float x = 0;
            for (int32_t w = 0; w < DECODE_WARPS; w++) x += sum[w][threadIdx.x];
            job->out[(size_t)h * (size_t)a.head_dim + (size_t)c] = t.sum == 0 ? 0 : x / t.sum;
        }
        __syncthreads();
    }
}

/* Logits to weights within the list. */
static __global__ void __launch_bounds__(DECODE_THREADS) decode_probs(struct decode_params a)
{
    const struct decode_job *job = &a.job[blockIdx.z];
    int32_t h = (int32_t)blockIdx.y, i0 = (int32_t)blockIdx.x * PROBS_TILE;
    if (!job->probs || h >= job->n_heads) return;
    float *probs = job->probs + (size_t)h * (size_t)job->n_slots;
    float lse = job->lse[h], shift = lse == -INFINITY ? 0 : lse;
    for (int32_t i = i0 + (int32_t)threadIdx.x; i < min(i0 + PROBS_TILE, job->n_slots);
         i += DECODE_THREADS)
        probs[i] = expf(probs[i] - shift);
}

/* ---- launches ------------------------------------------------------------------------------------ */

typedef void (*decode_kernel)(struct decode_params a);

/* What a call needs of tables and partial results. */
struct decode_plan {
    int32_t n_runs, n_firsts;
    size_t n_parts;                        /* splits of heads */
    int32_t n_slots, n_heads;              /* of the largest job */
    int32_t splits[2], heads[2], split[2]; /* the same of those of a kernel: any, fast */
    bool probs;
};

/* Short lists in small splits, so that a GPU is full with 8 of them at once: 2048 slots give 256 blocks.
 * Long ones in large splits, for few partial results. */
static int32_t decode_split_of(int32_t n_slots)
{
    if (n_slots <= 4096) return 64;
    if (n_slots <= 8192) return 128;
    return n_slots <= 16384 ? 256 : SPLIT_MAX;
}

static bool decode_is_fast(const struct kvl_attn_job *job)
{
    const struct kvl_layout *l = job->lane->layout;
    return l->type != KVL_KV_F32 && (l->head_dim == 64 || l->head_dim == 128) && !job->pos &&
           !job->keys;
}

static struct decode_plan decode_measure(const struct kvl_attn_decode_args *a)
{
    struct decode_plan p = {};
    for (int32_t j = 0; j < a->n_jobs; j++) {
        const struct kvl_attn_job *job = &a->jobs[j];
        int32_t split = decode_split_of(job->n_slots), kind = decode_is_fast(job);
        int32_t n_splits = kvl_ceil_div(job->n_slots, split);
        assert(job->lane->layout->head_dim == a->head_dim && job->n_heads >= 1);
        assert(!job->pos || job->lane->layout->part_off[KVL_PART_K_RAW] != SIZE_MAX);
        assert(!job->pos || !job->keys);
        if (job->runs) p.n_runs += job->n_runs;
        if (job->runs) p.n_firsts += n_splits;
        p.n_parts += (size_t)n_splits * (size_t)job->n_heads;
        p.n_slots = KVL_MAX(p.n_slots, job->n_slots);
        p.n_heads = KVL_MAX(p.n_heads, job->n_heads);
        p.probs = p.probs || job->probs;
        p.splits[kind] = KVL_MAX(p.splits[kind], n_splits);
        p.heads[kind] = KVL_MAX(p.heads[kind], job->n_heads);
        p.split[kind] = KVL_MAX(p.split[kind], split);
    }
    return p;
}

/* Runs with the entry they start at, and the run of every split's first entry.  Empty runs go. */
static int32_t decode_put_runs(const struct kvl_attn_job *job, int32_t split,
                               struct decode_run *run, int32_t *first)
{
    int32_t n = 0, start = 0,
            next = 0; /* next: the first entry of a split whose run is not known */
    for (int32_t r = 0; r < job->n_runs; r++) {
        if (job->runs[r].n == 0) continue;
        assert(job->runs[r].slot >= 0 && job->runs[r].n > 0 &&
               job->runs[r].slot + job->runs[r].n <= job->lane->n_slots);
        run[n] = { job->runs[r].slot, start };
        start += job->runs[r].n;
        for (; next < start; next += split) *first++ = n;
        n++;
    }
    assert(start == job->n_slots);
    return n;
}

/* Host memory for the tables of a call, kept for the next one. */
static uint8_t *decode_host(size_t bytes)
{
    static uint8_t *memory;
    static size_t size;
    if (bytes > size) {
        kvl_free(memory);
        size = bytes + bytes / 2;
        memory = static_cast<uint8_t *>(kvl_alloc(size, 1));
        if (!memory) size = 0;
    }
    return memory;
}

static struct decode_job decode_job_of(struct kvl_cuda_call *c, const struct kvl_attn_job *job,
                                       int32_t head_dim, bool values)
{
    struct decode_job d = {};
    size_t n = (size_t)job->n_slots, heads = (size_t)job->n_heads, dim = (size_t)head_dim;
    d.q = kvl_cuda_in(c, job->q, heads * dim);
    d.log_weight = kvl_cuda_in(c, job->log_weight, n);
    d.keys = kvl_cuda_in(c, job->keys, n * dim);
    d.pos = kvl_cuda_in(c, job->pos, n);
    if (values) d.out = kvl_cuda_out(c, job->out, heads * dim);
    d.lse = job->lse ? kvl_cuda_out(c, job->lse, heads) : kvl_cuda_temp<float>(c, heads);
    d.probs = kvl_cuda_out(c, job->probs, heads * n);
    d.n_slots = job->n_slots;
    d.n_heads = job->n_heads;
    d.q_pos = job->q_pos;
    d.split = decode_split_of(job->n_slots);
    d.n_splits = kvl_ceil_div(job->n_slots, d.split);
    d.fast = decode_is_fast(job);
    return d;
}

/* Fills in and uploads jobs, runs and splits, in one piece. */
static int decode_tables(struct kvl_cuda_call *c, const struct kvl_attn_decode_args *a,
                         const struct decode_plan *p, bool values, struct decode_params *out)
{
    size_t n_jobs = (size_t)a->n_jobs, n_runs = (size_t)p->n_runs, n_firsts = (size_t)p->n_firsts;
    size_t runs_at = n_jobs * sizeof(struct decode_job);
    size_t firsts_at = runs_at + n_runs * sizeof(struct decode_run);
    size_t lanes_at = (firsts_at + n_firsts * sizeof(int32_t) + 7) / 8 * 8;
    uint8_t *host = decode_host(lanes_at + n_jobs * sizeof(struct kvl_lane *));
    if (!host) return KVL_ENOMEM;
    struct decode_job *job = reinterpret_cast<struct decode_job *>(host);
    struct decode_run *run = reinterpret_cast<struct decode_run *>(host + runs_at);
    int32_t *first = reinterpret_cast<int32_t *>(host + firsts_at);
    const struct kvl_lane **lane = reinterpret_cast<const struct kvl_lane **>(host + lanes_at);
    float *acc = values ? kvl_cuda_temp<float>(c, p->n_parts * (size_t)a->head_dim) : NULL;
    struct decode_part *part = kvl_cuda_temp<struct decode_part>(c, p->n_parts);
    int32_t n_run = 0, n_first = 0;
    size_t n_part = 0;
    for (int32_t j = 0; j < a->n_jobs; j++) {
        struct decode_job d = decode_job_of(c, &a->jobs[j], a->head_dim, values);
        d.run0 = n_run;
        d.first0 = n_first;
        d.acc = acc + n_part * (size_t)(values ? a->head_dim : 0);
        d.part = part + n_part;
        if (a->jobs[j].runs) {
            d.n_runs = decode_put_runs(&a->jobs[j], d.split, run + n_run, first + n_first);
            n_run += d.n_runs;
            n_first += d.n_splits;
        }
        n_part += (size_t)d.n_splits * (size_t)d.n_heads;
        lane[j] = a->jobs[j].lane;
        job[j] = d;
    }
    const uint8_t *tables = kvl_cuda_upload(c, host, lanes_at);
    if (c->rc != KVL_OK) return c->rc;
    out->job = reinterpret_cast<const struct decode_job *>(tables);
    out->run = reinterpret_cast<const struct decode_run *>(tables + runs_at);
    out->first = reinterpret_cast<const int32_t *>(tables + firsts_at);
    out->lane = kvl_cuda_lane_list(c, lane, a->n_jobs);
    return c->rc;
}

template <class T, int D> static decode_kernel decode_fast_of(int32_t heads)
{
    if (heads == 1) return decode_fast<T, D, 1>;
    if (heads == 2) return decode_fast<T, D, 2>;
    return heads == 4 ? decode_fast<T, D, 4> : decode_fast<T, D, 8>;
}

/* As many heads as the largest job has, up to 8: keys and values are read once for these, and sums of 8
 * heads still fit into registers. */
static void decode_launch_fast(const struct decode_params *a, const struct decode_plan *p,
                               int32_t n_jobs, enum kvl_kv_type type)
{
    int32_t heads = p->heads[1] <= 2 ? p->heads[1] : p->heads[1] <= 4 ? 4 : 8, dim = a->head_dim;
    size_t before = (size_t)p->split[1] * sizeof(uint8_t *) +
                    (size_t)(heads * dim + decode_weights(p->split[1], heads)) * sizeof(float);
    size_t after = (size_t)(DECODE_WARPS * heads * dim) * sizeof(float);
    dim3 grid((unsigned)p->splits[1], (unsigned)n_jobs, (unsigned)kvl_ceil_div(p->heads[1], heads));
    decode_kernel decode_fast_kernel;
    if (type == KVL_KV_F16)
        decode_fast_kernel =
            dim == 64 ? decode_fast_of<__half, 64>(heads) : decode_fast_of<__half, 128>(heads);
    else
        decode_fast_kernel = dim == 64 ? decode_fast_of<__nv_bfloat16, 64>(heads)
                                       : decode_fast_of<__nv_bfloat16, 128>(heads);
    KVL_LAUNCH(decode_fast_kernel, grid, DECODE_THREADS, KVL_MAX(before, after), *a);
}

static void decode_launch_any(const struct decode_params *a, const struct decode_plan *p,
                              int32_t n_jobs, enum kvl_kv_type type)
{
    size_t bytes = (size_t)p->split[0] * sizeof(uint8_t *) +
                   (size_t)(ANY_HEADS * a->head_dim + decode_weights(p->split[0], ANY_HEADS) +
                            DECODE_WARPS * ANY_HEADS * TILE) *
                       sizeof(float);
    dim3 grid((unsigned)p->splits[0], (unsigned)n_jobs,
              (unsigned)kvl_ceil_div(p->heads[0], ANY_HEADS));
    if (type == KVL_KV_F32)
        KVL_LAUNCH(decode_any<float>, grid, DECODE_THREADS, bytes, *a);
    else if (type == KVL_KV_F16)
        KVL_LAUNCH(decode_any<__half>, grid, DECODE_THREADS, bytes, *a);
    else
        KVL_LAUNCH(decode_any<__nv_bfloat16>, grid, DECODE_THREADS, bytes, *a);
}

/* Blocks of jobs with fewer splits or heads than the largest, or of the other kernel, end at once. */
static void decode_launch(const struct decode_params *a, const struct decode_plan *p,
                          int32_t n_jobs, enum kvl_kv_type type)
{
    if (p->splits[1] > 0) decode_launch_fast(a, p, n_jobs, type);
    if (p->splits[0] > 0) decode_launch_any(a, p, n_jobs, type);
    dim3 heads((unsigned)p->n_heads, (unsigned)n_jobs);
    KVL_LAUNCH(decode_merge, heads, DECODE_THREADS, 0, *a);
    dim3 tiles((unsigned)kvl_ceil_div(p->n_slots, PROBS_TILE), (unsigned)p->n_heads,
               (unsigned)n_jobs);
    if (p->probs && p->n_slots > 0) KVL_LAUNCH(decode_probs, tiles, DECODE_THREADS, 0, *a);
}

int kvl_cuda_attend(const struct kvl_attn_decode_args *a, bool values)
{
    struct kvl_cuda_call c;
    if (a->n_jobs == 0) return KVL_OK;
    assert(a->n_jobs <= 65535 && a->head_dim % 2 == 0 && a->head_dim <= 1024);
    struct decode_plan p = decode_measure(a);
    kvl_cuda_begin(&c);
    struct decode_params d = {};
    d.inv_freq = kvl_cuda_in(&c, a->inv_freq, (size_t)a->head_dim / 2);
    d.scale = a->scale;
    d.head_dim = a->head_dim;
    d.half = a->head_dim / 2;
    d.neox = a->style == KVL_ROPE_NEOX;
    if (c.rc == KVL_OK) c.rc = decode_tables(&c, a, &p, values, &d);
    if (c.rc == KVL_OK) decode_launch(&d, &p, a->n_jobs, a->jobs[0].lane->layout->type);
    return kvl_cuda_end(&c);
}

int kvl_cuda_attn_decode(const struct kvl_attn_decode_args *a)
{
    return kvl_cuda_attend(a, true);
}
