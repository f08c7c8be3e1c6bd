/* Two launches.  A block per kv head ranks the channels of its queries, every channel against all others, and
 * lists the chosen ones in ascending order, with the element of a box that each reads.  Then a thread per box
 * adds them up for four query heads at a time.
 *
 * Limit: of every box the chosen channels' elements, n_channels each; but a line of memory holds box_tok
 * elements of a box, of which few are chosen, so lines are read in part (neighbours of a channel that are
 * chosen come from L1).  Not timed yet. */
#include "select.cuh"

enum { BOXES_THREADS = 128, BOXES_QUERIES = 4 };

struct boxes {
    float *score;
    const float *q;
    const void *boxes;
    size_t score_stride, head_stride, column_stride;
    int32_t *channel; /* [n_kv_heads][n_channels], ascending; -1: none */
    int32_t *value;   /* the same: element of a box */
    float scale;
    int32_t n, box_tok, n_channels, n_kv_heads, head_dim;
    int32_t group, n_tiles; /* query heads of a kv head, and tiles of them */
};

/* Sums over the group in the order of the definition; weight: of absolute values. */
static __device__ inline void boxes_sums(const struct boxes *b, int32_t kv, float *weight,
                                         float *sum)
{
    for (int32_t c = (int32_t)threadIdx.x; c < b->head_dim; c += BOXES_THREADS) {
        const float *q = b->q + (size_t)(kv * b->group) * (size_t)b->head_dim + c;
        weight[c] = sum[c] = 0;
        for (int32_t g = 0; g < b->group; g++) {
            float x = q[(size_t)g * (size_t)b->head_dim];
            weight[c] += fabsf(x);
            sum[c] += x;
        }
    }
}

/* Whether few channels are larger, or as large and before. */
static __device__ inline bool boxes_chosen(const struct boxes *b, const float *weight, int32_t c)
{
    int32_t rank = 0;
    for (int32_t i = 0; i < b->head_dim; i++)
        rank += weight[i] > weight[c] || (weight[i] >= weight[c] && i < c);
    return rank < b->n_channels;
}

static __global__ void boxes_choose(struct boxes b)
{
    KVL_SHARED(float, weight);
    __shared__ int32_t room[KVL_WARP];
    int32_t kv = (int32_t)blockIdx.x, t = (int32_t)threadIdx.x, done = 0, n = b.n_channels;
    float *sum = weight + b.head_dim;
    boxes_sums(&b, kv, weight, sum);
    __syncthreads();
    for (int32_t c0 = 0; c0 < b.head_dim; c0 += BOXES_THREADS) {
        int32_t c = c0 + t, found;
        int32_t in = c < b.head_dim && boxes_chosen(&b, weight, c);
        int32_t at = done + kvl_block_before(in, room, &found);
        if (in && at < n) {
            b.channel[kv * n + at] = c;
            b.value[kv * n + at] = sum[c] >= 0 ? b.head_dim + c : c;
        }
        done += found;
    }
    for (int32_t i = done + t; i < n; i += BOXES_THREADS) b.channel[kv * n + i] = -1;
}

template <class T> static __global__ void boxes_scores(struct boxes b)
{
    KVL_SHARED(float, q); /* [n_channels][BOXES_QUERIES], scaled */
    int32_t kv = (int32_t)blockIdx.y / b.n_tiles;
    int32_t g0 = (int32_t)blockIdx.y % b.n_tiles * BOXES_QUERIES,
            n = KVL_MIN(BOXES_QUERIES, b.group - g0);
    int32_t head = kv * b.group + g0, box = (int32_t)(blockIdx.x * BOXES_THREADS + threadIdx.x);
    const int32_t *channel = b.channel + kv * b.n_channels, *value = b.value + kv * b.n_channels;
    for (int32_t i = (int32_t)threadIdx.x; i < b.n_channels * BOXES_QUERIES; i += BOXES_THREADS) {
        int32_t h = i % BOXES_QUERIES, c = channel[i / BOXES_QUERIES];
        size_t at = (size_t)(head + h) * (size_t)b.head_dim;
        q[i] = h < n && c >= 0 ? b.q[at + (size_t)c] * b.scale : 0.0f;
    }
    __syncthreads();
    if (box >= b.n) return; /* no barrier follows */
    const T *own = static_cast<const T *>(b.boxes) + (size_t)kv * b.head_stride +
                   (size_t)box * (size_t)b.box_tok;
    float score[BOXES_QUERIES] = {};
#pragma unroll 4
    for (int32_t i = 0; i < b.n_channels; i++) {
        int32_t v = channel[i] >= 0 ? value[i] : 0;
        float x =
            kvl_to_float(own[(size_t)(v / b.box_tok) * b.column_stride + (size_t)(v % b.box_tok)]);
        kvl_vec16<float> four = *reinterpret_cast<const kvl_vec16<float> *>(q + i * BOXES_QUERIES);
#pragma unroll
        for (int h = 0; h < BOXES_QUERIES; h++) score[h] = fmaf(four.v[h], x, score[h]);
    }
#pragma unroll
    for (int h = 0; h < BOXES_QUERIES; h++)
        if (h < n) b.score[(size_t)(head + h) * b.score_stride + (size_t)box] = score[h];
}

template <class T> static void boxes_launch(const struct boxes *b)
{
    int32_t kv = b->n_kv_heads;
    dim3 grid((unsigned)kvl_ceil_div(b->n, BOXES_THREADS), (unsigned)(b->n_tiles * kv));
    size_t weights = 2 * (size_t)b->head_dim * sizeof(float);
    size_t queries = (size_t)b->n_channels * BOXES_QUERIES * sizeof(float);
    KVL_LAUNCH(boxes_choose, dim3((unsigned)kv), dim3(BOXES_THREADS), weights, *b);
    KVL_LAUNCH(boxes_scores<T>, grid, dim3(BOXES_THREADS), queries, *b);
}

int kvl_cuda_box_scores(const struct kvl_box_scores_args *a)
{
    struct kvl_cuda_call c;
    int32_t group = a->n_heads / a->n_kv_heads;
    struct boxes b = { NULL,           NULL,
                       NULL,           a->score_stride,
                       a->head_stride, a->column_stride,
                       NULL,           NULL,
                       a->scale,       a->n,
                       a->box_tok,     a->n_channels,
                       a->n_kv_heads,  a->head_dim,
                       group,          kvl_ceil_div(group, BOXES_QUERIES) };
    size_t heads = (size_t)a->n_heads, kv = (size_t)a->n_kv_heads, n = (size_t)a->n;
    size_t columns = (size_t)kvl_ceil_div(2 * a->head_dim, a->box_tok);
    size_t elems =
        (kv - 1) * a->head_stride + (columns - 1) * a->column_stride + n * (size_t)a->box_tok;
    assert(a->type <= KVL_KV_BF16 && a->n_channels <= a->head_dim && a->head_dim <= 2048);
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    b.q = kvl_cuda_in(&c, a->q, heads * (size_t)a->head_dim);
    b.boxes = kvl_cuda_in_bytes(&c, a->boxes, elems * (size_t)kvl_kv_elem_bytes(a->type));
    b.score = kvl_cuda_inout(&c, a->score, (heads - 1) * a->score_stride + n);
    b.channel = kvl_cuda_temp<int32_t>(&c, kv * (size_t)a->n_channels);
    b.value = kvl_cuda_temp<int32_t>(&c, kv * (size_t)a->n_channels);
    if (c.rc != KVL_OK) return kvl_cuda_end(&c);
    if (a->type == KVL_KV_F32)
        boxes_launch<float>(&b);
    else if (a->type == KVL_KV_F16)
        boxes_launch<__half>(&b);
    else
        boxes_launch<__nv_bfloat16>(&b);
    return kvl_cuda_end(&c);
}
