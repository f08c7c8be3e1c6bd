/* Four neighbouring elements a thread.  Limit: 12 bytes an element. */
#include "rows.cuh"

/* Rounded on its own: a compiler makes one multiply-add of a product of floats and a sum, but not of this. */
static __device__ inline float add_product(float x, float factor)
{
    return (float)((double)x * (double)factor);
}

template <bool WIDE>
static __global__ void __launch_bounds__(KVL_LINEAR_THREADS)
    add_fours(float *y, const float *x, size_t n, const float *factor)
{
    float f = factor ? *factor : 1;
    for (size_t i = kvl_linear_first(); 4 * i < n; i += kvl_linear_step()) {
        float u[4], v[4];
        kvl_four<WIDE>(u, y, i, n);
        kvl_four<WIDE>(v, x, i, n);
        for (int j = 0; j < 4; j++) u[j] = (factor ? add_product(u[j], f) : u[j]) + v[j];
        kvl_put_four<WIDE>(y, i, n, u);
    }
}

/* The same row added to every row. */
static __global__ void __launch_bounds__(KVL_LINEAR_THREADS)
    add_row(float *y, const float *x, size_t n, size_t n_x, const float *factor)
{
    float f = factor ? *factor : 1;
    for (size_t i = kvl_linear_first(); i < n; i += kvl_linear_step())
        y[i] = (factor ? add_product(y[i], f) : y[i]) + x[i % n_x];
}

/* ---- launch ---------------------------------------------------------------------------------------- */

static void add_launch(float *y, const float *x, size_t n, const float *factor)
{
    unsigned blocks = kvl_linear_blocks((n + 3) / 4);
    if (kvl_aligned16(y) && kvl_aligned16(x))
        KVL_LAUNCH(add_fours<true>, blocks, KVL_LINEAR_THREADS, 0, y, x, n, factor);
    else
        KVL_LAUNCH(add_fours<false>, blocks, KVL_LINEAR_THREADS, 0, y, x, n, factor);
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_add(const struct kvl_add_args *a)
{
    struct kvl_cuda_call c;
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    size_t n_x = a->n_x ? a->n_x : a->n;
    const float *x = kvl_cuda_in(&c, a->x, KVL_MIN(n_x, a->n));
    const float *factor = kvl_cuda_in(&c, a->factor, 1);
    float *y = kvl_cuda_inout(&c, a->y, a->n);
    if (c.rc == KVL_OK && n_x < a->n)
        KVL_LAUNCH(add_row, kvl_linear_blocks(a->n), KVL_LINEAR_THREADS, 0, y, x, a->n, n_x,
                   factor);
    else if (c.rc == KVL_OK)
        add_launch(y, x, a->n, factor);
    return kvl_cuda_end(&c);
}
