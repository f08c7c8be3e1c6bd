/* A thread owns eight neighbouring tokens and adds up channel after channel of them for four query heads: one
 * load of 16 bytes per channel in 16-bit types serves them all.  A block's 128 threads make a tile of 1024
 * tokens; its largest score and its sum of exponentials go to a second launch, which merges tiles in a fixed
 * order, so that results depend neither on the device nor on the other heads.
 *
 * Limit: the chosen channels' keys, n_channels elements a token, once for four heads; scores are written.  Not
 * timed yet. */
#include "select.cuh"

enum { SCORES_THREADS = 128, SCORES_TILE = SCORES_THREADS * KVL_OCTET, SCORES_QUERIES = 4 };

struct channels {
    struct kvl_channel_scores_args a;
    int32_t group, n_tiles;
    bool whole;       /* loads of 16 bytes */
    bool one_page;    /* eight tokens never lie in two pages */
    float *max, *sum; /* [n_heads][n_tiles] */
};

/* Eight tokens of channel c of a kv head, from token t on; zeros behind the last. */
template <class T>
static __device__ inline void channels_load(const struct channels *s, const T *keys, int32_t c,
                                            int32_t t, float *out)
{
    int32_t page_tok = s->a.page_tok, n = KVL_MIN(KVL_OCTET, s->a.n_tok - t);
    size_t page = (size_t)s->a.head_dim * (size_t)page_tok, line = (size_t)c * (size_t)page_tok;
    if (s->one_page) {
        const T *p = keys + (size_t)(t / page_tok) * page + line + (size_t)(t % page_tok);
        kvl_load_octet(out, p, n, s->whole && n == KVL_OCTET);
        return;
    }
#pragma unroll
    for (int j = 0; j < KVL_OCTET; j++) {
        int32_t at = t + j;
        out[j] = j < n ? kvl_to_float(
                             keys[(size_t)(at / page_tok) * page + line + (size_t)(at % page_tok)])
                       : 0.0f;
    }
}

/* Writes the scores of one head and keeps what a softmax needs of this tile. */
static __device__ inline void channels_end(const struct channels *s, int32_t head, int32_t t,
                                           const float *score, float *room)
{
    float max = -INFINITY, sum = 0;
    float *out = s->a.score + (size_t)head * s->a.score_stride + t;
#pragma unroll
    for (int j = 0; j < KVL_OCTET; j++) {
        if (t + j >= s->a.n_tok) continue;
        out[j] = score[j];
        max = fmaxf(max, score[j]);
    }
    max = kvl_block_most(max, room);
#pragma unroll
    for (int j = 0; j < KVL_OCTET; j++)
        if (t + j < s->a.n_tok) sum += expf(score[j] - max);
    sum = kvl_warp_sum(sum);
    if (threadIdx.x % KVL_WARP == 0) room[threadIdx.x / KVL_WARP] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < SCORES_THREADS / KVL_WARP; w++) sum += room[w];
        s->max[(size_t)head * (size_t)s->n_tiles + blockIdx.x] = max;
        s->sum[(size_t)head * (size_t)s->n_tiles + blockIdx.x] = sum;
    }
    __syncthreads();
}

/* Chosen channels of four queries, times factor: q [n_channels][SCORES_QUERIES], in shared memory. */
static __device__ inline void channels_queries(const struct channels *s, int32_t head, int32_t n,
                                               const int32_t *channel, float *q)
{
    for (int32_t i = (int32_t)threadIdx.x; i < s->a.n_channels * SCORES_QUERIES;
         i += SCORES_THREADS) {
        int32_t h = i % SCORES_QUERIES;
        size_t at = (size_t)(head + h) * (size_t)s->a.head_dim;
        q[i] =
            h < n ? s->a.q[at + (size_t)channel[i / SCORES_QUERIES]] * s->a.factor[head + h] : 0.0f;
    }
}

template <class T>
static __global__ void __launch_bounds__(SCORES_THREADS) channels_tile(struct channels s)
{
    KVL_SHARED(float, q);
    __shared__ float room[KVL_WARP];
    int32_t tiles = (s.group + SCORES_QUERIES - 1) / SCORES_QUERIES,
            kv = (int32_t)blockIdx.y / tiles;
    int32_t g0 = (int32_t)blockIdx.y % tiles * SCORES_QUERIES,
            n = KVL_MIN(SCORES_QUERIES, s.group - g0);
    int32_t head = kv * s.group + g0,
            t = (int32_t)blockIdx.x * SCORES_TILE + (int32_t)threadIdx.x * KVL_OCTET;
    const int32_t *channel = s.a.channel + (size_t)kv * (size_t)s.a.n_channels;
    const T *keys = static_cast<const T *>(s.a.keys) + (size_t)kv * s.a.head_stride;
    float score[SCORES_QUERIES][KVL_OCTET] = {};
    channels_queries(&s, head, n, channel, q);
    __syncthreads();
    if (t < s.a.n_tok) {
#pragma unroll 4
        for (int32_t i = 0; i < s.a.n_channels; i++) {
            float k[KVL_OCTET];
            channels_load(&s, keys, channel[i], t, k);
            kvl_vec16<float> x =
                *reinterpret_cast<const kvl_vec16<float> *>(q + i * SCORES_QUERIES);
#pragma unroll
            for (int h = 0; h < SCORES_QUERIES; h++)
#pragma unroll
                for (int j = 0; j < KVL_OCTET; j++) score[h][j] = fmaf(x.v[h], k[j], score[h][j]);
        }
    }
#pragma unroll
    for (int h = 0; h < SCORES_QUERIES; h++)
        if (h < n) channels_end(&s, head + h, t, score[h], room);
}

/* A warp per head. */
static __global__ void channels_merge(struct channels s)
{
    int32_t lane = (int32_t)threadIdx.x, head = (int32_t)blockIdx.x;
    const float *max = s.max + (size_t)head * (size_t)s.n_tiles;
    const float *sum = s.sum + (size_t)head * (size_t)s.n_tiles;
    float most = -INFINITY, total = 0;
    for (int32_t i = lane; i < s.n_tiles; i += KVL_WARP) most = fmaxf(most, max[i]);
    most = kvl_warp_max(most);
    for (int32_t i = lane; i < s.n_tiles; i += KVL_WARP) total += sum[i] * expf(max[i] - most);
    total = kvl_warp_sum(total);
    if (lane > 0) return;
    s.a.max[head] = most;
    s.a.sum[head] = total;
}

template <class T> static void channels_launch(const struct channels *s)
{
    int32_t tiles = kvl_ceil_div(s->group, SCORES_QUERIES);
    dim3 grid((unsigned)s->n_tiles, (unsigned)(tiles * s->a.n_kv_heads));
    size_t bytes = (size_t)s->a.n_channels * SCORES_QUERIES * sizeof(float);
    if (s->n_tiles > 0) KVL_LAUNCH(channels_tile<T>, grid, dim3(SCORES_THREADS), bytes, *s);
    KVL_LAUNCH(channels_merge, dim3((unsigned)s->a.n_heads), dim3(KVL_WARP), 0, *s);
}

static void channels_run(struct channels *s)
{
    const struct kvl_channel_scores_args *a = &s->a;
    s->one_page = a->page_tok % KVL_OCTET == 0;
    s->whole = s->one_page &&
               kvl_rows_aligned(a->keys, a->head_stride, (size_t)kvl_kv_elem_bytes(a->type));
    if (a->type == KVL_KV_F32)
        channels_launch<float>(s);
    else if (a->type == KVL_KV_F16)
        channels_launch<__half>(s);
    else
        channels_launch<__nv_bfloat16>(s);
}

int kvl_cuda_channel_scores(const struct kvl_channel_scores_args *a)
{
    struct kvl_cuda_call c;
    struct channels s = {
        *a,  a->n_heads / a->n_kv_heads, kvl_ceil_div(a->n_tok, SCORES_TILE), false, false, NULL,
        NULL
    };
    size_t dim = (size_t)a->head_dim, heads = (size_t)a->n_heads, kv = (size_t)a->n_kv_heads;
    size_t pages = (size_t)kvl_ceil_div(a->n_tok, a->page_tok), tok = (size_t)a->n_tok;
    size_t elems = (kv - 1) * a->head_stride + pages * dim * (size_t)a->page_tok;
    assert(a->type <= KVL_KV_BF16 && a->n_channels <= 2048);
    kvl_cuda_begin(&c);
    s.a.q = kvl_cuda_in(&c, a->q, heads * dim);
    s.a.factor = kvl_cuda_in(&c, a->factor, heads);
    s.a.channel = kvl_cuda_in(&c, a->channel, kv * (size_t)a->n_channels);
    s.a.keys =
        kvl_cuda_in_bytes(&c, tok > 0 ? a->keys : NULL, elems * (size_t)kvl_kv_elem_bytes(a->type));
    s.a.score = kvl_cuda_inout(&c, tok > 0 ? a->score : NULL, (heads - 1) * a->score_stride + tok);
    s.a.max = kvl_cuda_out(&c, a->max, heads);
    s.a.sum = kvl_cuda_out(&c, a->sum, heads);
    s.max = kvl_cuda_temp<float>(&c, heads * (size_t)s.n_tiles);
    s.sum = kvl_cuda_temp<float>(&c, heads * (size_t)s.n_tiles);
    if (c.rc == KVL_OK) channels_run(&s);
    return kvl_cuda_end(&c);
}
