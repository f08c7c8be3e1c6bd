/* A thread per channel of a page: the box around its keys, then their distances from its centre.  Neighbouring
 * threads have neighbouring channels; the second reading of a page comes from the cache.
 *
 * Limit: keys once, 4 bytes an element.  Not timed yet. */
#include "cuda.cuh"

enum { DIGEST_THREADS = 128 };

static __global__ void digest_channels(struct kvl_page_digest_args a)
{
    int64_t i = (int64_t)blockIdx.x * DIGEST_THREADS + (int64_t)threadIdx.x;
    int64_t dim = a.head_dim, page = i / dim, c = i % dim;
    if (page >= a.n_pages) return;
    const float *k = a.k + page * a.page_tok * dim + c;
    float lo = k[0], hi = k[0], far = 0;
    for (int32_t t = 1; t < a.page_tok; t++) {
        float x = k[t * dim];
        lo = x < lo ? x : lo;
        hi = x > hi ? x : hi;
    }
    float centre = 0.5f * (lo + hi);
    for (int32_t t = 0; t < a.page_tok; t++) far += fabsf(k[t * dim] - centre);
    float radius = far / (float)a.page_tok, *out = a.digest + page * 2 * dim + c;
    out[0] = centre - radius;
    out[dim] = centre + radius;
}

int kvl_cuda_page_digest(const struct kvl_page_digest_args *a)
{
    struct kvl_cuda_call c;
    struct kvl_page_digest_args d = *a;
    int64_t n = (int64_t)a->n_pages * a->head_dim;
    if (n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    d.k = kvl_cuda_in(&c, a->k, (size_t)n * (size_t)a->page_tok);
    d.digest = kvl_cuda_out(&c, a->digest, 2 * (size_t)n);
    dim3 grid((unsigned)kvl_ceil_div(n, DIGEST_THREADS));
    if (c.rc == KVL_OK) KVL_LAUNCH(digest_channels, grid, dim3(DIGEST_THREADS), 0, d);
    return kvl_cuda_end(&c);
}
