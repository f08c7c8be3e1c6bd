/* A few threads make a row: each owns sixteen channels, 8 bytes of codes, and keeps that part of up to four
 * queries in registers while it walks over rows.  A code becomes a float by its bits alone, 1 + code / 16, and
 * what that adds to a product is taken off at the end: sixteen times (sum q (1 + code / 16) - sum q).
 *
 * Limit: rows once for four heads, 8 + head_dim / 2 bytes each.  With a group of four the multiply-adds (512 a
 * row of 72 bytes) take longer than the bytes on an H200: arithmetic is the limit there.  Times:
 * results/gpu-kernels.md. */
#include "select.cuh"

enum {
    LOGITS_THREADS = 128,
    LOGITS_QUERIES = 4,
    LOGITS_CODES = 16, /* channels of a thread */
    LOGITS_ROWS = 4,   /* that a thread takes at a time */
    LOGITS_BLOCKS = 1056,
};

struct logits {
    struct kvl_key4_logits_args a;
    int32_t lanes; /* threads of a row, a power of 2 */
    bool whole;    /* rows begin at multiples of 8, codes come in eights */
};

/* Codes 16 lane .. 16 lane + 15 of a row; channels beyond the last give 0. */
static __device__ inline void logits_codes(const uint8_t *row, int32_t lane, int32_t dim,
                                           bool whole, uint32_t *word)
{
    const uint8_t *codes = row + 8 + lane * 8;
    int32_t n = (dim + 1) / 2 - lane * 8; /* bytes */
    word[0] = word[1] = 0;
    if (whole && n > 0) {
        uint64_t both = *reinterpret_cast<const uint64_t *>(codes);
        word[0] = (uint32_t)both;
        word[1] = (uint32_t)(both >> 32);
    } else {
        for (int32_t i = 0; i < n && i < 8; i++) word[i / 4] |= (uint32_t)codes[i] << i % 4 * 8;
    }
}

static __device__ inline void logits_head(const uint8_t *row, bool whole, float *lo, float *step)
{
    if (whole) {
        uint64_t both = *reinterpret_cast<const uint64_t *>(row);
        *lo = kvl_bits_float((uint32_t)both);
        *step = kvl_bits_float((uint32_t)(both >> 32));
    } else {
        memcpy(lo, row, sizeof *lo);
        memcpy(step, row + sizeof *lo, sizeof *step);
    }
}

/* The sum over a row's threads, in each of them. */
static __device__ inline float logits_sum(float x, int32_t lanes)
{
    for (int o = lanes / 2; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}

static __global__ void __launch_bounds__(LOGITS_THREADS) logits_rows(struct logits l)
{
    const struct kvl_key4_logits_args *a = &l.a;
    int32_t lane = (int32_t)threadIdx.x % l.lanes, own = (int32_t)threadIdx.x / l.lanes;
    int32_t per_step = LOGITS_THREADS / l.lanes, first = (int32_t)blockIdx.y * LOGITS_QUERIES;
    size_t bytes = KVL_KEY4_BYTES(a->head_dim);
    float q[LOGITS_QUERIES][LOGITS_CODES], q_sum[LOGITS_QUERIES];
#pragma unroll
    for (int h = 0; h < LOGITS_QUERIES; h++) {
        q_sum[h] = 0;
#pragma unroll
        for (int j = 0; j < LOGITS_CODES; j++) {
            int32_t ch = lane * LOGITS_CODES + j;
            bool live = first + h < a->n_heads && ch < a->head_dim;
            q[h][j] = live ? a->q[(size_t)(first + h) * (size_t)a->head_dim + (size_t)ch] : 0.0f;
            q_sum[h] += q[h][j];
        }
        q_sum[h] = logits_sum(q_sum[h], l.lanes);
    }
    int32_t tile = per_step * LOGITS_ROWS;
    for (int32_t i0 = (int32_t)blockIdx.x * tile; i0 < a->n; i0 += (int32_t)gridDim.x * tile) {
        uint32_t word[LOGITS_ROWS][2];
        float lo[LOGITS_ROWS], step[LOGITS_ROWS];
#pragma unroll
        for (int r = 0; r < LOGITS_ROWS; r++) {
            int32_t i = i0 + r * per_step + own, at = KVL_MIN(i, a->n - 1);
            const uint8_t *row = a->rows + (size_t)(a->row ? a->row[at] - a->row0 : at) * bytes;
            logits_codes(row, lane, a->head_dim, l.whole, word[r]);
            logits_head(row, l.whole, &lo[r], &step[r]);
        }
#pragma unroll
        for (int r = 0; r < LOGITS_ROWS; r++) {
            int32_t i = i0 + r * per_step + own;
            float dot[LOGITS_QUERIES] = {};
#pragma unroll
            for (int j = 0; j < LOGITS_CODES; j++) {
                uint32_t code = word[r][j / 8] >> j % 8 * 4 & 15u;
                float x = kvl_bits_float(0x3f800000u | code << 19); /* 1 + code / 16 */
#pragma unroll
                for (int h = 0; h < LOGITS_QUERIES; h++) dot[h] = fmaf(q[h][j], x, dot[h]);
            }
#pragma unroll
            for (int h = 0; h < LOGITS_QUERIES; h++) {
                float codes = 16 * (logits_sum(dot[h], l.lanes) - q_sum[h]);
                if (lane == 0 && i < a->n && first + h < a->n_heads)
                    a->logit[(size_t)(first + h) * a->stride + (size_t)i] =
                        (lo[r] * q_sum[h] + step[r] * codes) * a->scale;
            }
        }
    }
}

/* Blocks enough to fill the device, and no more: each begins with loading its queries. */
static void logits_launch(struct logits *l)
{
    const struct kvl_key4_logits_args *a = &l->a;
    int32_t parts = kvl_ceil_div(a->head_dim, LOGITS_CODES);
    for (l->lanes = 1; l->lanes < parts;) l->lanes *= 2;
    l->whole = a->head_dim % LOGITS_CODES == 0 && reinterpret_cast<uintptr_t>(a->rows) % 8 == 0;
    int32_t tiles = kvl_ceil_div(a->n, LOGITS_THREADS / l->lanes * LOGITS_ROWS);
    dim3 grid((unsigned)KVL_MIN(tiles, (int32_t)LOGITS_BLOCKS),
              (unsigned)kvl_ceil_div(a->n_heads, LOGITS_QUERIES));
    KVL_LAUNCH(logits_rows, grid, dim3(LOGITS_THREADS), 0, *l);
}

/* Bytes of the table that may be read: of one in host memory, which is staged, up to the last row, so its
 * list is in host memory too. */
static size_t logits_table(const struct kvl_key4_logits_args *a)
{
    int32_t last = a->row ? 0 : a->n - 1;
    if (kvl_cuda_has(a->rows)) return 1;
    for (int32_t i = 0; a->row && i < a->n; i++) last = KVL_MAX(last, a->row[i] - a->row0);
    return ((size_t)last + 1) * KVL_KEY4_BYTES(a->head_dim);
}

int kvl_cuda_key4_logits(const struct kvl_key4_logits_args *a)
{
    struct kvl_cuda_call c;
    struct logits l = { *a, 0, false };
    assert(a->head_dim <= LOGITS_CODES * KVL_WARP);
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    l.a.q = kvl_cuda_in(&c, a->q, (size_t)a->n_heads * (size_t)a->head_dim);
    l.a.rows = kvl_cuda_in(&c, a->rows, logits_table(a));
    l.a.row = a->row ? kvl_cuda_in(&c, a->row, (size_t)a->n) : NULL;
    l.a.logit = kvl_cuda_inout(&c, a->logit, (size_t)(a->n_heads - 1) * a->stride + (size_t)a->n);
    if (c.rc == KVL_OK) logits_launch(&l);
    return kvl_cuda_end(&c);
}
