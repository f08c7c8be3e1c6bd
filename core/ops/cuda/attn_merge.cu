/* A block per head; its threads are the columns, and every one of them forms the weights of all parts itself:
 * they are few.  The list of parts goes with the launch, so that nothing is copied.
 *
 * Limit: the parts are read once, but they are some KiB: the time is that of a launch. */
#include "ops/cuda/cuda.cuh"

enum { MERGE_THREADS = 128, MERGE_PARTS = 64 };

struct merge_params {
    float *out, *lse;
    const float *part[MERGE_PARTS], *part_lse[MERGE_PARTS];
    int32_t n_parts, head_dim;
};

static __global__ void merge_kernel(struct merge_params a)
{
    int32_t h = (int32_t)blockIdx.x;
    float max = -INFINITY, sum = 0;
    for (int32_t p = 0; p < a.n_parts; p++) max = fmaxf(max, a.part_lse[p][h]);
    float shift = max == -INFINITY ? 0 : max;
    for (int32_t p = 0; p < a.n_parts; p++) sum += expf(a.part_lse[p][h] - shift);
    for (int32_t c = (int32_t)threadIdx.x; c < a.head_dim; c += MERGE_THREADS) {
        size_t at = (size_t)h * (size_t)a.head_dim + (size_t)c;
        float x = 0;
        for (int32_t p = 0; p < a.n_parts; p++) {
            float lse = a.part_lse[p][h];
            if (lse != -INFINITY) x += expf(lse - shift) / sum * a.part[p][at];
        }
        a.out[at] = x;
    }
    if (a.lse && threadIdx.x == 0) a.lse[h] = sum == 0 ? -INFINITY : shift + logf(sum);
}

int kvl_cuda_attn_merge(const struct kvl_attn_merge_args *a)
{
    struct kvl_cuda_call c;
    size_t heads = (size_t)a->n_heads, n = heads * (size_t)a->head_dim;
    struct merge_params m = {};
    assert(a->n_parts <= MERGE_PARTS);
    if (a->n_heads == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    for (int32_t p = 0; p < a->n_parts; p++) {
        m.part[p] = kvl_cuda_in(&c, a->part[p], n);
        m.part_lse[p] = kvl_cuda_in(&c, a->part_lse[p], heads);
    }
    m.out = kvl_cuda_out(&c, a->out, n);
    m.lse = kvl_cuda_out(&c, a->lse, heads);
    m.n_parts = a->n_parts;
    m.head_dim = a->head_dim;
    if (c.rc == KVL_OK) KVL_LAUNCH(merge_kernel, (unsigned)a->n_heads, MERGE_THREADS, 0, m);
    return kvl_cuda_end(&c);
}
