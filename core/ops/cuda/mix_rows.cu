/* An element a thread.  Limit: reading k rows and writing one. */
#include "rows.cuh"

struct mix_rows_in {
    float *y;
    const float *x, *weight;
    const int32_t *row;
    int32_t k, dim;
    size_t n; /* elements of y */
};

static __global__ void __launch_bounds__(KVL_LINEAR_THREADS) mix_rows_all(const mix_rows_in a)
{
    for (size_t i = kvl_linear_first(); i < a.n; i += kvl_linear_step()) {
        size_t first = i / (size_t)a.dim * (size_t)a.k, c = i % (size_t)a.dim;
        float sum = 0;
        for (size_t j = first; j < first + (size_t)a.k; j++)
            sum = fmaf(a.weight[j], a.x[(size_t)a.row[j] * (size_t)a.dim + c], sum);
        a.y[i] = sum;
    }
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_mix_rows(const struct kvl_mix_rows_args *a)
{
    struct kvl_cuda_call c;
    size_t n_in = (size_t)a->n * (size_t)a->k, dim = (size_t)a->dim;
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    mix_rows_in in = {};
    in.x = kvl_cuda_in(&c, a->x, (size_t)a->n_x * dim);
    in.weight = kvl_cuda_in(&c, a->weight, n_in);
    in.row = kvl_cuda_in(&c, a->row, n_in);
    in.k = a->k;
    in.dim = a->dim;
    in.n = (size_t)a->n * dim;
    in.y = kvl_cuda_out(&c, a->y, in.n);
    if (c.rc == KVL_OK)
        KVL_LAUNCH(mix_rows_all, kvl_linear_blocks(in.n), KVL_LINEAR_THREADS, 0, in);
    return kvl_cuda_end(&c);
}
