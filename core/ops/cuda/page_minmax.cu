/* A thread per channel of a page that has new keys takes them in order, so that its minimum and maximum are
 * read and written once; neighbouring threads have neighbouring channels.  In decode that is one key and
 * n_kv_heads * head_dim threads.
 *
 * Limit: new keys once (4 bytes a channel), tables of the pages that they fall in once each way.  Not timed
 * yet. */
#include "select.cuh"

enum { MINMAX_THREADS = 128 };

template <class T> static __global__ void minmax_pages(struct kvl_page_minmax_args a, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * MINMAX_THREADS + (int64_t)threadIdx.x;
    if (i >= n) return;
    int32_t c = (int32_t)(i % a.head_dim), h = (int32_t)(i / a.head_dim % a.n_kv_heads);
    int32_t page = a.pos0 / a.page_tok + (int32_t)(i / a.head_dim / a.n_kv_heads);
    int32_t first = page * a.page_tok, from = first > a.pos0 ? first : a.pos0;
    int32_t to = KVL_MIN(a.page_tok - (from - first), a.pos0 + a.n - from); /* so many keys */
    size_t dim = (size_t)a.head_dim, step = (size_t)a.n_kv_heads * dim;
    const float *k = a.k + (size_t)(from - a.pos0) * step + (size_t)h * dim + (size_t)c;
    T *lo = static_cast<T *>(a.minmax) + (size_t)h * a.head_stride + (size_t)page * 2 * dim + c;
    bool fresh = from == first;
    float min = fresh ? *k : kvl_to_float(lo[0]), max = fresh ? *k : kvl_to_float(lo[dim]);
    for (int32_t t = 0; t < to; t++, k += step) {
        if (*k < min) min = *k;
        if (*k > max) max = *k;
    }
    kvl_from_float(&lo[0], min);
    kvl_from_float(&lo[dim], max);
}

static void minmax_launch(const struct kvl_page_minmax_args *a)
{
    int64_t pages = (a->pos0 + a->n - 1) / a->page_tok - a->pos0 / a->page_tok + 1;
    int64_t n = pages * a->n_kv_heads * a->head_dim;
    dim3 grid((unsigned)kvl_ceil_div(n, MINMAX_THREADS)), block(MINMAX_THREADS);
    if (a->type == KVL_KV_F32)
        KVL_LAUNCH(minmax_pages<float>, grid, block, 0, *a, n);
    else if (a->type == KVL_KV_F16)
        KVL_LAUNCH(minmax_pages<__half>, grid, block, 0, *a, n);
    else
        KVL_LAUNCH(minmax_pages<__nv_bfloat16>, grid, block, 0, *a, n);
}

int kvl_cuda_page_minmax(const struct kvl_page_minmax_args *a)
{
    struct kvl_cuda_call c;
    struct kvl_page_minmax_args d = *a;
    size_t dim = (size_t)a->head_dim, heads = (size_t)a->n_kv_heads;
    assert(a->page_tok > 0 && a->type <= KVL_KV_BF16);
    if (a->n == 0) return KVL_OK;
    size_t pages = (size_t)((a->pos0 + a->n - 1) / a->page_tok) + 1;
    size_t elems = (heads - 1) * a->head_stride + pages * 2 * dim;
    kvl_cuda_begin(&c);
    d.k = kvl_cuda_in(&c, a->k, (size_t)a->n * heads * dim);
    d.minmax = kvl_cuda_out_bytes(&c, a->minmax, elems * (size_t)kvl_kv_elem_bytes(a->type), true);
    if (c.rc == KVL_OK) minmax_launch(&d);
    return kvl_cuda_end(&c);
}
