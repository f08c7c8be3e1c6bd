/* Rows of live tables close ranks after an eviction, all lanes of a step in one launch.
 *
 * A block takes one column of one lane and walks from its first run to its last; what it reads lies at or behind what
 * it writes, a step of threads at a time.  Limit: what lies behind the first row that goes, read and written once. */
#include "runtime.cuh"

enum { KEEP_THREADS = 256 };

template <class T> static __device__ inline void keep_run(T *column, const struct kvl_rows_run r)
{
    for (int32_t i0 = 0; i0 < r.n; i0 += KEEP_THREADS) {
        int32_t i = i0 + (int32_t)threadIdx.x;
        T x = 0;
        if (i < r.n) x = column[r.from + i];
        __syncthreads();
        if (i < r.n) column[r.to + i] = x;
        __syncthreads(); /* the next step may read what was written here by others */
    }
}

template <class T>
static __device__ inline void keep_column(const struct kvl_rows_lane *l,
                                          const struct kvl_rows_run *run, int32_t column)
{
    T *at = reinterpret_cast<T *>(l->data + (size_t)column * l->column_bytes);
    for (int32_t i = 0; i < l->n_runs; i++) keep_run(at, run[l->first_run + i]);
    for (int32_t i = l->n_kept + (int32_t)threadIdx.x; i < l->n_live; i += KEEP_THREADS) at[i] = 0;
}

/* grid (columns of the widest lane, lanes) */
static __global__ void __launch_bounds__(KEEP_THREADS)
    rows_keep_kernel(const struct kvl_rows_lane *lane, const struct kvl_rows_run *run)
{
    const struct kvl_rows_lane l = lane[blockIdx.y];
    int32_t column = (int32_t)blockIdx.x;
    if (column >= l.n_columns) return;
    if (l.elem_bytes == 4) keep_column<uint32_t>(&l, run, column);
    if (l.elem_bytes == 2) keep_column<uint16_t>(&l, run, column);
    if (l.elem_bytes == 1) keep_column<uint8_t>(&l, run, column);
}

enum { KEEP_LANES = 32768 }; /* of a grid */

int kvl_cuda_rows_keep(const struct kvl_rows_keep_args *a)
{
    struct kvl_cuda_call c;
    int32_t columns = 0;
    if (a->n_lanes == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    struct kvl_rows_lane *there =
        static_cast<struct kvl_rows_lane *>(kvl_alloc((size_t)a->n_lanes, sizeof *there));
    if (!there) c.rc = KVL_ENOMEM;
    for (int32_t i = 0; c.rc == KVL_OK && i < a->n_lanes; i++) {
        const struct kvl_rows_lane *l = &a->lane[i];
        assert(l->elem_bytes == 4 || l->elem_bytes == 2 || l->elem_bytes == 1);
        assert(kvl_cuda_has(l->data) && l->n_kept <= l->n_live);
        columns = KVL_MAX(columns, l->n_columns);
        there[i] = *l;
        there[i].data = kvl_cuda_inout(&c, l->data, (size_t)l->n_columns * l->column_bytes);
    }
    const struct kvl_rows_lane *lane = kvl_cuda_upload(&c, there, (size_t)a->n_lanes);
    kvl_free(there);
    const struct kvl_rows_run *run = kvl_cuda_upload(&c, a->run, (size_t)a->n_runs);
    for (int32_t i = 0; c.rc == KVL_OK && i < a->n_lanes; i += KEEP_LANES) {
        dim3 grid((unsigned)columns, (unsigned)KVL_MIN((int32_t)KEEP_LANES, a->n_lanes - i));
        KVL_LAUNCH(rows_keep_kernel, grid, KEEP_THREADS, 0, lane + i, run);
    }
    return kvl_cuda_end(&c);
}
