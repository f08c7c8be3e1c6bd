/* attn_fast.cuh - attn_decode: one pass over a split of 16-bit elements or q8_0 with head_dim 64 or 128.
 *
 * Eight channels per lane, several rows per warp.  A warp asks for keys and values of a step together, some steps ahead, and
 * has no barrier before the end of the split: memory is busy from the first row to the last.  What a lane asked for it
 * finds in its own places of shared memory.  The softmax is kept per warp and rescaled when a step has a new
 * maximum.  Warps meet at the end of the split, splits at the end of the list: the last block of a job to end
 * merges them, in their order. */
#ifndef KVL_ATTN_FAST_CUH
#define KVL_ATTN_FAST_CUH

#include "attn_split.cuh"
#include "mma.cuh"

enum {
    FAST_Z = 64,       /* groups of heads of a job at most */
    FAST_AHEAD = 3,    /* steps that a warp has asked for */
    FAST_PARTS = 4096, /* parts of a merge that shared memory holds */
    FAST_CHAINS = 2,   /* sums over splits: every second one */
    FAST_LOADS = 8,    /* of a merge, under way at once */
};

template <int D, int G> struct fast_map {
    enum {
        ROWS = 4,                                   /* that a lane has on the way */
        LANES = D / 8,                              /* that share a row */
        GROUPS = KVL_WARP / LANES,                  /* rows of a warp side by side */
        STEP = GROUPS * ROWS,                       /* rows of a warp at a time */
        PART = G < 4 ? G : 4,                       /* heads whose logits are made at a time */
        LOGITS = ROWS * PART,                       /* of a group at a time */
        HELD = LOGITS > LANES ? LOGITS / LANES : 1, /* of these in one lane in the end */
        WEIGHTS = STEP * G,                         /* of a step */
        OWN = WEIGHTS > KVL_WARP ? WEIGHTS / KVL_WARP : 1, /* of these in one lane */
        SUMS = G * 8 / GROUPS,                             /* of values in one lane in the end */
        BLOCKS = G == 8 ? 1 : 2, /* of an SM: as many as nothing spills for */
        TURN = WEIGHTS + G,      /* floats of a warp for one step */
    };
};

/* Shared memory at the end of a split, and of a merge. */
template <int D, int G> struct fast_ends {
    float sum[DECODE_WARPS][G * D];
    struct decode_part part[DECODE_WARPS][G], total[G];
    float worth[FAST_PARTS]; /* of splits and heads, beside the whole */
};

struct alignas(16) fast_four {
    float x[4];
};

/* N floats of shared memory, in as few loads as they allow. */
template <int N> static __device__ inline void fast_read(float *x, const float *from)
{
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            struct fast_four y = *reinterpret_cast<const struct fast_four *>(from + i);
#pragma unroll
            for (int j = 0; j < 4; j++) x[i + j] = y.x[j];
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = from[i];
    }
}

/* The softmax of a warp: of head lane % G.  Weights of a row of a step are added apart, so that the order of a
 * sum does not depend on G. */
template <int D, int G> struct fast_state {
    float max, sum[fast_map<D, G>::OWN];
};

/* Blocks of each group of heads of a job that have ended; the last leaves zero. */
static __device__ uint32_t fast_ended[DECODE_JOBS][FAST_Z];

/* Rows t + u * GROUPS + the lane's group of a part; beyond the end the last one again. */
template <class T, int D, int G>
static __device__ inline void fast_load(struct kvl_eight *x, const uint8_t *const *row, size_t off,
                                        int32_t t, int32_t n)
{
    typedef fast_map<D, G> map;
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
#pragma unroll
    for (int u = 0; u < map::ROWS; u++) {
        int32_t i = t + u * map::GROUPS + lane / map::LANES;
        x[u] = kvl_load_eight<T>(row[min(i, n - 1)] + off, lane % map::LANES);
    }
}

/* The same begun, to the lane's places. */
template <int D, int G>
static __device__ inline void fast_ask(uint8_t *place, const uint8_t *const *row, size_t off,
                                       int32_t t, int32_t n)
{
    typedef fast_map<D, G> map;
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
#pragma unroll
    for (int u = 0; u < map::ROWS; u++) {
        int32_t i = t + u * map::GROUPS + lane / map::LANES;
        kvl_copy_async(place + u * KVL_WARP * 16, row[min(i, n - 1)] + off + lane % map::LANES * 16,
                       true);
    }
}

template <int D, int G>
static __device__ inline void fast_take(struct kvl_eight *x, const uint8_t *place)
{
#pragma unroll
    for (int u = 0; u < (fast_map<D, G>::ROWS); u++)
        x[u] = *reinterpret_cast<const struct kvl_eight *>(place + u * KVL_WARP * 16);
}

/* Logits of heads h0 .. of the step at t to w[row][head], -inf behind the end. */
template <class T, int D, int G>
static __device__ inline void fast_logits(const struct decode_params &a,
                                          const struct decode_split &s, const float *q,
                                          const struct kvl_eight *k, int32_t t, int h0, float *w)
{
    typedef fast_map<D, G> map;
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP;
    int32_t group = lane / map::LANES, l = lane % map::LANES;
    float x[map::LOGITS];
#pragma unroll
    for (int h = 0; h < map::PART; h++) {
        float y[8];
        fast_read<8>(y, q + (h0 + h) * D + l * 8);
#pragma unroll
        for (int u = 0; u < map::ROWS; u++) {
            float dot = 0;
#pragma unroll
            for (int e = 0; e < 8; e++) dot = fmaf(y[e], kvl_eight_at<T>(k[u], e), dot);
            x[u * map::PART + h] = dot;
        }
    }
    kvl_fold<map::LOGITS, map::LANES, 1>(x);
#pragma unroll
    for (int r = 0; r < map::HELD; r++) {
        int32_t v = l * map::LOGITS / map::LANES + r;
        int32_t i = v / map::PART * map::GROUPS + group;
        if (l * map::LOGITS % map::LANES == 0)
            w[i * G + h0 + v % map::PART] =
                t + i < s.n ? decode_weighted(a, s, t + i, x[r]) : -INFINITY;
    }
}

/* Logits to weights exp(logit - maximum); behind them what older sums are worth, of each head.  A NaN does not get lost:
 * it is in the sum. */
template <int D, int G>
static __device__ inline void fast_softmax(const struct decode_split &s, int32_t t,
                                           struct fast_state<D, G> *state, float *w)
{
    typedef fast_map<D, G> map;
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, h = lane % G;
    float x[map::OWN], top = -INFINITY;
    float *probs = s.job->probs && h < s.n_h
                       ? s.job->probs + (size_t)(s.h0 + h) * (size_t)s.job->n_slots + s.i0 + t
                       : NULL;
#pragma unroll
    for (int k = 0; k < map::OWN; k++) {
        int32_t at = lane + k * KVL_WARP;
        x[k] = at < map::WEIGHTS ? w[at] : -INFINITY;
        top = fmaxf(top, x[k]);
        if (probs && at < map::WEIGHTS && t + at / G < s.n)
            probs[at / G] = x[k]; /* logits until the total is known */
    }
#pragma unroll
    for (int o = KVL_WARP / 2; o >= G; o /= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    top = fmaxf(top, state->max);
    float shift = top == -INFINITY ? 0 : top;
    float keep = top == state->max ? 1 : expf(state->max - shift);
#pragma unroll
    for (int k = 0; k < map::OWN; k++) {
        int32_t at = lane + k * KVL_WARP;
        float p = expf(x[k] - shift);
        state->sum[k] = fmaf(state->sum[k], keep, p);
        if (at < map::WEIGHTS) w[at] = p;
    }
    state->max = top;
    if (lane < G) w[map::WEIGHTS + lane] = keep;
}

template <class T, int D, int G>
static __device__ inline void fast_values(const struct kvl_eight *v, const float *w, float *acc)
{
    typedef fast_map<D, G> map;
    int32_t group = (int32_t)threadIdx.x % KVL_WARP / map::LANES;
    float keep[G];
    bool same = true;
    fast_read<G>(keep, w + map::WEIGHTS);
#pragma unroll
    for (int h = 0; h < G; h++) same = same && keep[h] == 1;
    if (!same) {
#pragma unroll
        for (int i = 0; i < G * 8; i++) acc[i] *= keep[i / 8];
    }
#pragma unroll
    for (int u = 0; u < map::ROWS; u++) {
        float p[G], any = 0;
        fast_read<G>(p, w + (u * map::GROUPS + group) * G);
#pragma unroll
        for (int h = 0; h < G; h++) any += p[h];
        if (any == 0) continue; /* an unread slot may hold anything */
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float x = kvl_eight_at<T>(v[u], e);
#pragma unroll
            for (int h = 0; h < G; h++) acc[h * 8 + e] = fmaf(p[h], x, acc[h * 8 + e]);
        }
    }
}

/* What the warp has of each head to shared memory. */
template <int D, int G>
static __device__ inline void fast_close(struct fast_state<D, G> t, float *acc,
                                         struct fast_ends<D, G> *e)
{
    typedef fast_map<D, G> map;
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    int32_t group = lane / map::LANES, l = lane % map::LANES;
    kvl_fold<G * 8, map::GROUPS, map::LANES>(acc);
#pragma unroll
    for (int o = map::OWN / 2; o > 0; o /= 2)
#pragma unroll
        for (int k = 0; k < o; k++) t.sum[k] += t.sum[k + o];
#pragma unroll
    for (int o = KVL_WARP / 2; o >= G; o /= 2)
        t.sum[0] += __shfl_xor_sync(0xffffffffu, t.sum[0], o);
    __syncthreads(); /* rows and queries have been read */
    if (lane < G) e->part[warp][lane] = { t.max, t.sum[0] };
#pragma unroll
    for (int i = 0; i < map::SUMS; i++) {
        int32_t at = group * map::SUMS + i;
        e->sum[warp][at / 8 * D + l * 8 + at % 8] = acc[i];
    }
    __syncthreads();
}

/* What a part counts for beside the maximum of all. */
static __device__ inline float fast_worth(float max, float all)
{
    return max == -INFINITY ? 0 : expf(max - all);
}

/* The warps of a block, in their order, to the partial results. */
template <int D, int G>
static __device__ inline void fast_store(const struct decode_params &a,
                                         const struct decode_split &s, struct fast_ends<D, G> *e)
{
    int32_t row = s.job->part0 + s.index * s.job->n_heads + s.h0, i = (int32_t)threadIdx.x;
    if (i < G) {
        struct decode_part t = { -INFINITY, 0 };
        for (int32_t w = 0; w < DECODE_WARPS; w++) t.max = fmaxf(t.max, e->part[w][i].max);
        for (int32_t w = 0; w < DECODE_WARPS; w++) {
            float worth = fast_worth(e->part[w][i].max, t.max);
            t.sum = fmaf(worth, e->part[w][i].sum, t.sum);
            e->part[w][i].max = worth;
        }
        if (i < s.n_h) a.part[row + i] = t;
    }
    __syncthreads();
    float *acc = a.acc + (size_t)row * D;
    for (; s.job->out && i < s.n_h * D; i += DECODE_THREADS) {
        float x = 0;
        for (int32_t w = 0; w < DECODE_WARPS; w++) x = fmaf(e->part[w][i / D].max, e->sum[w][i], x);
        acc[i] = x;
    }
}

/* Whether all other splits of these heads have ended, and what they left can be read. */
static __device__ inline bool fast_is_last(const struct decode_split &s, uint32_t *ticket)
{
    __syncthreads(); /* what all of the block stored goes before the fence of one */
    if (threadIdx.x == 0) {
        __threadfence();
        uint32_t *ended = &fast_ended[blockIdx.y][blockIdx.z];
        *ticket = atomicAdd(ended, 1u);
        if (*ticket + 1 == (uint32_t)decode_splits(s.job->n_slots)) atomicExch(ended, 0u);
    }
    __syncthreads();
    bool last = *ticket + 1 == (uint32_t)decode_splits(s.job->n_slots);
    if (last) __threadfence();
    return last;
}

static __device__ inline struct decode_part fast_part(const struct decode_part *part)
{
    float2 x = __ldcg(reinterpret_cast<const float2 *>(part));
    return { x.x, x.y };
}

/* The maximum and the sum over n splits: a warp per head. */
template <int D, int G>
static __device__ inline void fast_total(const struct decode_split &s,
                                         const struct decode_part *part, int32_t n,
                                         struct fast_ends<D, G> *e)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, h = (int32_t)threadIdx.x / KVL_WARP;
    if (h >= s.n_h) return; /* whole warps */
    struct decode_part t = { -INFINITY, 0 };
#pragma unroll 4
    for (int32_t i = lane; i < n; i += KVL_WARP)
        t.max = fmaxf(t.max, fast_part(part + i * s.job->n_heads + h).max);
    t.max = kvl_warp_max(t.max);
#pragma unroll 4
    for (int32_t i = lane; i < n; i += KVL_WARP) {
        struct decode_part p = fast_part(part + i * s.job->n_heads + h);
        float worth = fast_worth(p.max, t.max);
        t.sum = fmaf(worth, p.sum, t.sum);
        if (i * G + h < FAST_PARTS) e->worth[i * G + h] = worth;
    }
    t.sum = kvl_warp_sum(t.sum);
    if (lane > 0) return;
    e->total[h] = t;
    s.job->lse[s.h0 + h] = t.sum == 0 ? -INFINITY : t.max + logf(t.sum);
}

/* Four columns of a head over every second split from `first` on. */
template <int D, int G>
static __device__ inline struct fast_four
fast_chain(const struct decode_params &a, const struct decode_split &s,
           const struct decode_part *part, int32_t first, int32_t n, int32_t c,
           const struct fast_ends<D, G> *e)
{
    const float *from = a.acc + (size_t)(s.job->part0 + s.h0) * D + c;
    const size_t step = (size_t)s.job->n_heads * D;
    int32_t h = c / D;
    struct fast_four x = { { 0, 0, 0, 0 } };
    for (int32_t i0 = first; i0 < n; i0 += FAST_LOADS * FAST_CHAINS) {
        float4 y[FAST_LOADS];
#pragma unroll
        for (int u = 0; u < FAST_LOADS; u++) {
            int32_t i = min(i0 + u * FAST_CHAINS, n - 1);
            y[u] = __ldcg(reinterpret_cast<const float4 *>(from + (size_t)i * step));
        }
#pragma unroll
        for (int u = 0; u < FAST_LOADS; u++) {
            int32_t i = i0 + u * FAST_CHAINS;
            if (i >= n) break;
            float worth =
                i * G + h < FAST_PARTS
                    ? e->worth[i * G + h]
                    : fast_worth(fast_part(part + i * s.job->n_heads + h).max, e->total[h].max);
            x.x[0] = fmaf(worth, y[u].x, x.x[0]);
            x.x[1] = fmaf(worth, y[u].y, x.x[1]);
            x.x[2] = fmaf(worth, y[u].z, x.x[2]);
            x.x[3] = fmaf(worth, y[u].w, x.x[3]);
        }
    }
    return x;
}

/* All splits of the block's heads. */
template <int D, int G>
static __device__ inline void fast_merge(const struct decode_params &a,
                                         const struct decode_split &s, struct fast_ends<D, G> *e)
{
    int32_t n = decode_splits(s.job->n_slots);
    const struct decode_part *part = a.part + s.job->part0 + s.h0;
    fast_total<D, G>(s, part, n, e);
    __syncthreads();
    if (!s.job->out) return;
    for (int32_t i = (int32_t)threadIdx.x; i < FAST_CHAINS * (G * D / 4); i += DECODE_THREADS) {
        int32_t chain = i / (G * D / 4), c = i % (G * D / 4) * 4;
        if (c / D >= s.n_h) continue;
        *reinterpret_cast<struct fast_four *>(&e->sum[chain][c]) =
            fast_chain<D, G>(a, s, part, chain, n, c, e);
    }
    __syncthreads();
    for (int32_t i = (int32_t)threadIdx.x; i < s.n_h * D; i += DECODE_THREADS) {
        float sum = e->total[i / D].sum;
        s.job->out[(size_t)s.h0 * D + (size_t)i] =
            sum == 0 ? 0 : (e->sum[0][i] + e->sum[1][i]) / sum;
    }
}

template <class T> struct fast_copies {
    static constexpr bool YES = !std::is_same<T, struct kvl_q8>::value; /* rows are of 16 bytes */
};

/* The places of a warp for a part of one step. */
template <int D, int G> struct fast_place {
    enum { BYTES = fast_map<D, G>::ROWS * KVL_WARP * 16 };
};

/* The warp's step at t, asked for; a step that is not there is an empty group. */
template <int D, int G>
static __device__ inline void fast_ahead(const struct decode_params &a,
                                         const struct decode_split &s,
                                         const struct decode_shared &m, uint8_t *place, int32_t t)
{
    if (t < s.n) {
        fast_ask<D, G>(place, m.row, a.off[KVL_PART_K], t, s.n);
        if (s.job->out)
            fast_ask<D, G>(place + fast_place<D, G>::BYTES, m.row, a.off[KVL_PART_V], t, s.n);
    }
    kvl_copy_commit();
}

/* A step whose keys and values are there. */
template <class T, int D, int G>
static __device__ inline void fast_step(const struct decode_params &a, const struct decode_split &s,
                                        const struct decode_shared &m, const uint8_t *place,
                                        int32_t t, float *w, struct fast_state<D, G> *state,
                                        float *acc)
{
    typedef fast_map<D, G> map;
    struct kvl_eight x[map::ROWS];
    if (fast_copies<T>::YES)
        fast_take<D, G>(x, place);
    else
        fast_load<T, D, G>(x, m.row, a.off[KVL_PART_K], t, s.n);
#pragma unroll
    for (int h0 = 0; h0 < G; h0 += map::PART) fast_logits<T, D, G>(a, s, m.q, x, t, h0, w);
    if (!fast_copies<T>::YES && s.job->out) fast_load<T, D, G>(x, m.row, a.off[KVL_PART_V], t, s.n);
    __syncwarp();
    fast_softmax<D, G>(s, t, state, w);
    __syncwarp();
    if (!s.job->out) return;
    if (fast_copies<T>::YES) fast_take<D, G>(x, place + fast_place<D, G>::BYTES);
    fast_values<T, D, G>(x, w, acc);
}

/* The oldest step that was asked for is there. */
static __device__ inline void fast_arrived(int32_t ahead)
{
    if (ahead == FAST_AHEAD)
        kvl_copy_wait_but<FAST_AHEAD - 1>();
    else
        kvl_copy_wait_but<FAST_AHEAD - 2>();
}

/* The warp's rows of a split. */
template <class T, int D, int G>
static __device__ inline struct fast_state<D, G>
fast_rows(const struct decode_params &a, const struct decode_split &s,
          const struct decode_shared &m, float *w, uint8_t *place, float *acc) {
    typedef fast_map<D, G> map;
    enum { ALL = DECODE_WARPS * map::STEP, STAGE = 2 * fast_place<D, G>::BYTES };
    struct fast_state<D, G> state = {
        - INFINITY,
        {
            0
        }
    };
    int32_t t0 = (int32_t)threadIdx.x / KVL_WARP * map::STEP, stage = 0, turn = 0;
    place += (int32_t)threadIdx.x % KVL_WARP * 16;
    if (fast_copies<T>::YES)
        for (int i = 0; i < a.ahead; i++)
            fast_ahead<D, G>(a, s, m, place + i * STAGE, t0 + i * ALL);
    for (int32_t t = t0; t < s.n; t += ALL) {
        uint8_t *here = place + stage * STAGE;
        if (fast_copies<T>::YES) fast_arrived(a.ahead);
        /* w by turns: a lane may be a step behind */
        fast_step<T, D, G>(a, s, m, here, t, w + turn * map::TURN, &state, acc);
        if (fast_copies<T>::YES) fast_ahead<D, G>(a, s, m, here, t + a.ahead * ALL);
        stage = stage + 1 == a.ahead ? 0 : stage + 1;
        turn ^= 1;
    }
    if (fast_copies<T>::YES) kvl_copy_wait();
    return state;
}

/* Bytes before the places: rows, queries, then the runs of a split or weights of the warps. */
template <int D, int G>
static __host__ __device__ inline size_t fast_front(int32_t split, bool has_runs)
{
    size_t runs = has_runs ? (size_t)split * sizeof(struct decode_run) : 0;
    size_t weights = (size_t)(DECODE_WARPS * 2 * fast_map<D, G>::TURN) * sizeof(float);
    size_t bytes = (size_t)split * sizeof(uint8_t *) + (size_t)(G * D) * sizeof(float) +
                   (runs > weights ? runs : weights);
    return (bytes + 15) / 16 * 16;
}

template <class T, int D, int G>
static __global__ void __launch_bounds__(DECODE_THREADS, (fast_map<D, G>::BLOCKS))
    decode_fast(const __grid_constant__ struct decode_params a)
{
    typedef fast_map<D, G> map;
    struct decode_split s;
    __shared__ uint32_t ticket;
    KVL_SHARED(uint8_t, bytes);
    if (!decode_find(a, G, &s) || !s.job->fast) return; /* whole blocks */
    struct decode_shared m = decode_cut(bytes, s.split, G, D);
    struct fast_ends<D, G> *e = reinterpret_cast<struct fast_ends<D, G> *>(bytes);
    for (int32_t i = (int32_t)threadIdx.x; i < G * D; i += DECODE_THREADS)
        m.q[i] = i / D < s.n_h ? s.job->q[s.h0 * D + i] * a.scale : 0;
    decode_rows(a, s, m, kvl_row_bytes<T>(D));
    float acc[G * 8];
#pragma unroll
    for (int i = 0; i < G * 8; i++) acc[i] = 0;
    int32_t warp = (int32_t)threadIdx.x / KVL_WARP;
    float *w = m.p + warp * 2 * map::TURN;
    uint8_t *place = bytes + fast_front<D, G>(s.split, a.run != NULL) +
                     (size_t)(warp * a.ahead) * 2 * fast_place<D, G>::BYTES;
    struct fast_state<D, G> state = fast_rows<T, D, G>(a, s, m, w, place, acc);
    fast_close<D, G>(state, acc, e);
    fast_store<D, G>(a, s, e);
    if (fast_is_last(s, &ticket)) fast_merge<D, G>(a, s, e);
}

/* Shared memory of a block: that of a split, or of its end. */
template <class T, int D, int G>
static size_t fast_bytes(int32_t split, int32_t ahead, bool has_runs)
{
    size_t places = (size_t)(DECODE_WARPS * ahead) * 2 * fast_place<D, G>::BYTES;
    size_t first = fast_front<D, G>(split, has_runs) + (fast_copies<T>::YES ? places : 0);
    size_t last = sizeof(struct fast_ends<D, G>);
    return KVL_MAX(first, last);
}

#endif
