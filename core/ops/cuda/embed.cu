/* Rows of a table, widened: a thread takes eight columns.  A few rows of some kilobytes; what it takes is the
 * launch. */
#include "wtype.cuh"

enum { EMBED_THREADS = 128 };

struct embed_in {
    float *y;
    const uint8_t *w;
    const int32_t *id;
    size_t row_bytes;
    int32_t n_cols;
};

/* Exact to the bit, unlike kvl_piece: a NaN keeps its payload, infinite scales give infinities and a product
 * with zero keeps its sign. */
template <int TYPE> static __device__ inline float embed_element(const uint8_t *row, int32_t c)
{
    float eight[KVL_PIECE] = { 0 };
    if (TYPE == KVL_W_F32) return reinterpret_cast<const float *>(row)[c];
    if (TYPE == KVL_W_BF16) return kvl_float_of_bits((uint32_t)kvl_u16_at(row + 2 * c) << 16);
    if (TYPE == KVL_W_F16) {
        uint32_t h = kvl_u16_at(row + 2 * c), size = h & 0x7fffu;
        if (size <= 0x7c00u) return kvl_float_of_half((uint16_t)h);
        return kvl_float_of_bits((h & 0x8000u) << 16 | 0x7fc00000u | size << 13);
    }
    kvl_block_piece<TYPE>(eight, row, c / KVL_PIECE * KVL_PIECE);
    return eight[c % KVL_PIECE];
}

template <int TYPE> static __global__ void __launch_bounds__(EMBED_THREADS) embed_rows(embed_in a)
{
    const uint8_t *row = a.w + (size_t)a.id[blockIdx.y] * a.row_bytes;
    float *y = a.y + (size_t)blockIdx.y * (size_t)a.n_cols;
    int32_t c0 = (int32_t)(blockIdx.x * EMBED_THREADS * KVL_PIECE + threadIdx.x);
    for (int32_t i = 0; i < KVL_PIECE; i++) {
        int32_t c = c0 + i * EMBED_THREADS;
        if (c < a.n_cols) y[c] = embed_element<TYPE>(row, c);
    }
}

/* ---- launch ---------------------------------------------------------------------------------------- */

enum { EMBED_MAX_ROWS = 32768 }; /* of a launch: the second dimension of a grid ends at 65535 */

template <int TYPE> static void embed_launch(const embed_in *in, int32_t n)
{
    dim3 grid((unsigned)kvl_ceil_div(in->n_cols, EMBED_THREADS * KVL_PIECE), (unsigned)n);
    KVL_LAUNCH(embed_rows<TYPE>, grid, EMBED_THREADS, 0, *in);
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_embed(const struct kvl_embed_args *a)
{
    struct kvl_cuda_call c;
    size_t n = (size_t)a->n, n_cols = (size_t)a->w->n_cols;
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    embed_in in;
    in.row_bytes = a->w->row_bytes;
    in.n_cols = a->w->n_cols;
    in.w = static_cast<const uint8_t *>(kvl_cuda_in_bytes(&c, a->w->data, kvl_weight_bytes(a->w)));
    const int32_t *id = kvl_cuda_in(&c, a->id, n);
    float *y = kvl_cuda_out(&c, a->y, n * n_cols);
    for (int32_t i = 0; c.rc == KVL_OK && i < a->n; i += EMBED_MAX_ROWS) {
        in.id = id + i;
        in.y = y + (size_t)i * n_cols;
        int32_t n_rows = KVL_MIN(EMBED_MAX_ROWS, a->n - i);
        kvl_wtype_dispatch(a->w->type,
                           [&](auto t) { embed_launch<decltype(t)::value>(&in, n_rows); });
    }
    return kvl_cuda_end(&c);
}
