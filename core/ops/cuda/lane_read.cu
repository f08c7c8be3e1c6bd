/* A thread per element, neighbours in a row: reads and writes are of whole lines.  Limit: the stored bytes and
 * 4 for each element written.  Not timed on a GPU yet. */
#include "kv_rows.cuh"

enum { READ_THREADS = 256 };

struct read_params {
    float *out;
    size_t stride, n; /* n: elements */
    const struct kvl_cuda_lane *lane;
    enum kvl_kv_part part;
    int32_t slot0;
};

static __global__ void read_kernel(struct read_params a)
{
    size_t i = (size_t)blockIdx.x * READ_THREADS + threadIdx.x, dim = (size_t)a.lane->head_dim;
    if (i >= a.n) return;
    const void *row = kvl_lane_row(a.lane, a.part, a.slot0 + (int32_t)(i / dim));
    a.out[i / dim * a.stride + i % dim] = kvl_widen(a.lane->type, row, (int32_t)(i % dim));
}

int kvl_cuda_lane_read(const struct kvl_lane_read_args *a)
{
    struct kvl_cuda_call c;
    struct read_params r = {};
    size_t dim = (size_t)a->lane->layout->head_dim, n = (size_t)a->n;
    assert(a->slot0 >= 0 && a->n >= 0 && a->slot0 + a->n <= a->lane->n_slots);
    assert(a->lane->layout->part_off[a->part] != SIZE_MAX && a->stride >= dim);
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    r.out = kvl_cuda_inout(&c, a->out, (n - 1) * a->stride + dim);
    if (kvl_cuda_is_kept(a->lane->layout)) {
        const struct kvl_kept_lane kept = kvl_cuda_kept(&c, a->lane);
        if (c.rc == KVL_OK) kvl_cuda_rows_read(&kept, a->part, a->slot0, a->n, r.out, a->stride);
        return kvl_cuda_end(&c);
    }
    r.lane = kvl_cuda_lanes(&c, a->lane, 1);
    r.stride = a->stride;
    r.n = n * dim;
    r.part = a->part;
    r.slot0 = a->slot0;
    unsigned blocks = (unsigned)kvl_ceil_div((int64_t)r.n, READ_THREADS);
    if (c.rc == KVL_OK) KVL_LAUNCH(read_kernel, blocks, READ_THREADS, 0, r);
    return kvl_cuda_end(&c);
}
