/* A thread per element.  Limit: 4 bytes an element and row read, 4 an element written.  Not
 * timed yet. */
#include "cuda.cuh"

enum { RAISE_THREADS = 256 };

static __global__ void raise_rows(float *y, const float *const *x, const float *factor, size_t n,
                                  int32_t n_rows)
{
    size_t i = (size_t)blockIdx.x * RAISE_THREADS + threadIdx.x;
    if (i >= n) return;
    float top = 0;
    for (int32_t r = 0; r < n_rows; r++) {
        float v = factor[r] * x[r][i];
        if (v > top) top = v;
    }
    y[i] = top;
}

/* The rows' addresses on the device. */
static const float *const *raise_addresses(struct kvl_cuda_call *c, const struct kvl_raise_args *a)
{
    const float *few[64], **x = few;
    size_t n = (size_t)a->n_rows;
    if (n > 64) x = static_cast<const float **>(kvl_alloc(n, sizeof *x));
    if (!x && c->rc == KVL_OK) c->rc = KVL_ENOMEM;
    for (size_t r = 0; x && r < n; r++) x[r] = kvl_cuda_in(c, a->x[r], a->n);
    const float *const *there = x ? kvl_cuda_upload(c, x, n) : NULL;
    if (x != few) kvl_free(x);
    return there;
}

int kvl_cuda_raise(const struct kvl_raise_args *a)
{
    struct kvl_cuda_call c;
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    const float *const *x = raise_addresses(&c, a);
    const float *factor = a->n_rows > 0 ? kvl_cuda_in(&c, a->factor, (size_t)a->n_rows) : NULL;
    float *y = kvl_cuda_out(&c, a->y, a->n);
    dim3 grid((unsigned)kvl_ceil_div((int64_t)a->n, RAISE_THREADS));
    if (c.rc == KVL_OK)
        KVL_LAUNCH(raise_rows, grid, dim3(RAISE_THREADS), 0, y, x, factor, a->n, a->n_rows);
    return kvl_cuda_end(&c);
}
