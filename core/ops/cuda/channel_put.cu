/* Keys come with their channels side by side and go where their tokens are: tiles of 32 x 32 turn in shared
 * memory, so that both sides go in rows.  A single key leaves most of its tiles empty, and writes one element
 * to each of its lines: the layout asks for that.
 *
 * Limit: keys once, 4 bytes an element, and once more in the table's type.  Not timed yet. */
#include "select.cuh"

enum { PUT_TILE = 32, PUT_ROWS = 8 };

template <class T> static __global__ void put_tile(struct kvl_channel_put_args a)
{
    __shared__ float tile[PUT_TILE][PUT_TILE + 1];
    int32_t h = (int32_t)blockIdx.z, x = (int32_t)threadIdx.x;
    int32_t t0 = (int32_t)blockIdx.x * PUT_TILE, c0 = (int32_t)blockIdx.y * PUT_TILE;
    size_t dim = (size_t)a.head_dim, page_tok = (size_t)a.page_tok;
    for (int32_t y = (int32_t)threadIdx.y; y < PUT_TILE; y += PUT_ROWS)
        if (t0 + y < a.n && c0 + x < a.head_dim)
            tile[y][x] =
                a.k[((size_t)(t0 + y) * (size_t)a.n_kv_heads + (size_t)h) * dim + (size_t)(c0 + x)];
    __syncthreads();
    size_t pos = (size_t)a.pos0 + (size_t)(t0 + x);
    T *page = static_cast<T *>(a.keys) + (size_t)h * a.head_stride +
              pos / page_tok * dim * page_tok + pos % page_tok;
    for (int32_t y = (int32_t)threadIdx.y; y < PUT_TILE; y += PUT_ROWS)
        if (t0 + x < a.n && c0 + y < a.head_dim)
            kvl_from_float(&page[(size_t)(c0 + y) * page_tok], tile[x][y]);
}

static void put_launch(const struct kvl_channel_put_args *a)
{
    dim3 grid((unsigned)kvl_ceil_div(a->n, PUT_TILE), (unsigned)kvl_ceil_div(a->head_dim, PUT_TILE),
              (unsigned)a->n_kv_heads);
    dim3 block(PUT_TILE, PUT_ROWS);
    if (a->type == KVL_KV_F32)
        KVL_LAUNCH(put_tile<float>, grid, block, 0, *a);
    else if (a->type == KVL_KV_F16)
        KVL_LAUNCH(put_tile<__half>, grid, block, 0, *a);
    else
        KVL_LAUNCH(put_tile<__nv_bfloat16>, grid, block, 0, *a);
}

int kvl_cuda_channel_put(const struct kvl_channel_put_args *a)
{
    struct kvl_cuda_call c;
    struct kvl_channel_put_args d = *a;
    size_t dim = (size_t)a->head_dim, heads = (size_t)a->n_kv_heads;
    assert(a->page_tok > 0 && a->type <= KVL_KV_BF16);
    if (a->n == 0) return KVL_OK;
    size_t pages = (size_t)((a->pos0 + a->n - 1) / a->page_tok) + 1;
    size_t elems = (heads - 1) * a->head_stride + pages * dim * (size_t)a->page_tok;
    kvl_cuda_begin(&c);
    d.k = kvl_cuda_in(&c, a->k, (size_t)a->n * heads * dim);
    d.keys = kvl_cuda_out_bytes(&c, a->keys, elems * (size_t)kvl_kv_elem_bytes(a->type), true);
    if (c.rc == KVL_OK) put_launch(&d);
    return kvl_cuda_end(&c);
}
