/* A warp per centroid of a kv head: its lanes read the centroid once, side by side, and multiply it with
 * the piece of every query head of the group.
 *
 * Limit: the centroids, n_kv_heads * n_codes * head_dim floats once; they are of a size that L2 keeps, so
 * what counts is one launch with enough warps (8 kv heads of 2 pieces of 64 codes are 1024).  Not timed
 * yet. */
#include "cuda.cuh"

enum { TABLE_WARPS = 8 };

struct pq_table {
    float *table;
    const float *q, *centroid;
    size_t head_stride;
    int32_t n_kv_heads, group, dim, n_sub, n_codes; /* dim: of a piece */
    float scale;
};

static __global__ void pq_table_kernel(struct pq_table a)
{
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, per_head = a.n_sub * a.n_codes;
    int32_t i = (int32_t)(blockIdx.x * TABLE_WARPS + threadIdx.x / KVL_WARP);
    if (i >= a.n_kv_heads * per_head) return; /* a whole warp; no barrier follows */
    int32_t head = i / per_head, entry = i % per_head, sub = entry / a.n_codes;
    const float *c = a.centroid + (size_t)head * a.head_stride + (size_t)entry * (size_t)a.dim;
    for (int32_t g = 0; g < a.group; g++) {
        size_t h = (size_t)head * (size_t)a.group + (size_t)g;
        const float *q = a.q + (h * (size_t)a.n_sub + (size_t)sub) * (size_t)a.dim;
        float sum = 0;
        for (int32_t j = lane; j < a.dim; j += KVL_WARP) sum = fmaf(q[j], c[j], sum);
        sum = kvl_warp_sum(sum);
        if (lane == 0) a.table[h * (size_t)per_head + (size_t)entry] = sum * a.scale;
    }
}

static void pq_table_launch(const struct pq_table *a)
{
    int64_t warps = (int64_t)a->n_kv_heads * a->n_sub * a->n_codes;
    KVL_LAUNCH(pq_table_kernel, (unsigned)kvl_ceil_div(warps, TABLE_WARPS), TABLE_WARPS * KVL_WARP,
               0, *a);
}

int kvl_cuda_pq_table(const struct kvl_pq_table_args *a)
{
    struct kvl_cuda_call c;
    size_t cent =
        (size_t)(a->n_kv_heads - 1) * a->head_stride + (size_t)a->n_codes * (size_t)a->head_dim;
    assert(a->n_kv_heads >= 1 && a->n_heads % a->n_kv_heads == 0 && a->head_dim % a->n_sub == 0);
    kvl_cuda_begin(&c);
    struct pq_table t = {};
    t.q = kvl_cuda_in(&c, a->q, (size_t)a->n_heads * (size_t)a->head_dim);
    t.centroid = kvl_cuda_in(&c, a->centroid, cent);
    t.table =
        kvl_cuda_out(&c, a->table, (size_t)a->n_heads * (size_t)a->n_sub * (size_t)a->n_codes);
    t.head_stride = a->head_stride;
    t.n_kv_heads = a->n_kv_heads;
    t.group = a->n_heads / a->n_kv_heads;
    t.dim = a->head_dim / a->n_sub;
    t.n_sub = a->n_sub;
    t.n_codes = a->n_codes;
    t.scale = a->scale;
    if (c.rc == KVL_OK) pq_table_launch(&t);
    return kvl_cuda_end(&c);
}
