/* A warp per chunk of tokens: sums in double, each thread its tokens in order, threads by a butterfly; the mean
 * goes to the chunk's tokens of all rows.  Then the radix select of topk finds the best chunks: only the
 * last can be shorter, so what it must tell is whether that one is among them.
 *
 * Limit: scores read once and written once, 8 bytes each.  Not timed yet. */
#include "topk.cuh"

enum { CHUNK_THREADS = 128, CHUNK_WARPS = CHUNK_THREADS / KVL_WARP };

struct chunks {
    struct kvl_chunk_mean_args a;
    int32_t n_chunks;
    float *value; /* [n_chunks] */
};

static __global__ void chunk_values(struct chunks s)
{
    int32_t chunk = (int32_t)(blockIdx.x * CHUNK_WARPS + threadIdx.x / KVL_WARP);
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, first = chunk * s.a.chunk;
    if (chunk >= s.n_chunks) return; /* the whole warp */
    int32_t n = KVL_MIN(s.a.chunk, s.a.n - first);
    int64_t all = (int64_t)n * s.a.n_rows; /* row after row */
    double sum = 0;
    for (int64_t i = lane; i < all; i += KVL_WARP)
        sum += (double)s.a.x[(size_t)(i / n) * s.a.stride + (size_t)first + (size_t)(i % n)];
    for (int o = KVL_WARP / 2; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    float value = (float)(sum / n);
    __syncwarp(); /* all has been read */
    for (int64_t i = lane; i < all; i += KVL_WARP)
        s.a.x[(size_t)(i / n) * s.a.stride + (size_t)first + (size_t)(i % n)] = value;
    if (lane == 0) s.value[chunk] = value;
}

/* Tokens of the k chunks that were found. */
static __global__ void chunk_best(struct chunks s, const int32_t *index, int32_t k)
{
    bool last = k > 0 && index[k - 1] == s.n_chunks - 1;
    int32_t missing = s.n_chunks * s.a.chunk - s.a.n;
    if (threadIdx.x == 0) *s.a.n_best = k * s.a.chunk - (last ? missing : 0);
}

int kvl_cuda_chunk_mean(const struct kvl_chunk_mean_args *a)
{
    struct kvl_cuda_call c;
    struct chunks s = { *a, kvl_ceil_div(a->n, a->chunk), NULL };
    int32_t k = KVL_MIN(a->k, s.n_chunks);
    assert(a->chunk > 0 && a->k >= 0 && (int64_t)s.n_chunks * a->chunk <= INT32_MAX);
    kvl_cuda_begin(&c);
    s.a.n_best = kvl_cuda_out(&c, a->n_best, 1);
    s.a.x = a->n > 0 ? kvl_cuda_inout(&c, a->x, (size_t)(a->n_rows - 1) * a->stride + (size_t)a->n)
                     : NULL;
    s.value = kvl_cuda_temp<float>(&c, (size_t)s.n_chunks);
    int32_t *index = kvl_cuda_temp<int32_t>(&c, (size_t)k);
    dim3 grid((unsigned)kvl_ceil_div(s.n_chunks, CHUNK_WARPS)), block(CHUNK_THREADS);
    if (c.rc == KVL_OK && a->n > 0) KVL_LAUNCH(chunk_values, grid, block, 0, s);
    kvl_cuda_topk_rows(&c, index, s.value, (size_t)s.n_chunks, 1, s.n_chunks, k, kvl_cuda_mark(&c));
    if (c.rc == KVL_OK) KVL_LAUNCH(chunk_best, dim3(1), dim3(KVL_WARP), 0, s, index, k);
    return kvl_cuda_end(&c);
}
