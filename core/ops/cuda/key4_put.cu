/* A warp per key: smallest and largest channel by shuffles, then every thread makes bytes of two neighbouring
 * channels.  Rows may begin anywhere, so they are written byte by byte, neighbours by neighbours.
 *
 * Limit: keys once, 4 bytes a channel; an eighth of that is written.  Not timed yet. */
#include "cuda.cuh"

#include <string.h>

enum { KEY4_THREADS = 128, KEY4_KEYS = KEY4_THREADS / KVL_WARP };

static __device__ inline uint32_t key4_code(float x, float lo, float step)
{
    return step > 0 ? (uint32_t)fminf(floorf((x - lo) / step + 0.5f), 15) : 0;
}

static __global__ void key4_rows(struct kvl_key4_put_args a, int64_t n_keys)
{
    int64_t key = (int64_t)blockIdx.x * KEY4_KEYS + (int64_t)(threadIdx.x / KVL_WARP);
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, dim = a.head_dim;
    if (key >= n_keys) return; /* the whole warp */
    const float *k = a.k + key * dim;
    uint8_t *row = a.rows + (size_t)(key % a.n_kv_heads) * a.head_stride +
                   (size_t)(key / a.n_kv_heads) * KVL_KEY4_BYTES(dim);
    float lo = INFINITY, hi = -INFINITY;
    for (int32_t c = lane; c < dim; c += KVL_WARP) {
        lo = fminf(lo, k[c]);
        hi = fmaxf(hi, k[c]);
    }
    lo = -kvl_warp_max(-lo);
    hi = kvl_warp_max(hi);
    float step = (hi - lo) / 15.0f;
    for (int32_t b = lane; b < (dim + 1) / 2; b += KVL_WARP) {
        uint32_t odd = 2 * b + 1 < dim ? key4_code(k[2 * b + 1], lo, step) : 0;
        row[8 + b] = (uint8_t)(key4_code(k[2 * b], lo, step) | odd << 4);
    }
    uint8_t head[8];
    memcpy(head, &lo, sizeof lo);
    memcpy(head + sizeof lo, &step, sizeof step);
    if (lane == 0)
        for (int i = 0; i < 8; i++) row[i] = head[i];
}

int kvl_cuda_key4_put(const struct kvl_key4_put_args *a)
{
    struct kvl_cuda_call c;
    struct kvl_key4_put_args d = *a;
    int64_t n = (int64_t)a->n * a->n_kv_heads;
    if (n == 0) return KVL_OK;
    size_t room = (size_t)a->n * KVL_KEY4_BYTES(a->head_dim);
    kvl_cuda_begin(&c);
    d.k = kvl_cuda_in(&c, a->k, (size_t)n * (size_t)a->head_dim);
    d.rows = kvl_cuda_inout(&c, a->rows, (size_t)(a->n_kv_heads - 1) * a->head_stride + room);
    dim3 grid((unsigned)kvl_ceil_div(n, KEY4_KEYS));
    if (c.rc == KVL_OK) KVL_LAUNCH(key4_rows, grid, dim3(KEY4_THREADS), 0, d, n);
    return kvl_cuda_end(&c);
}
