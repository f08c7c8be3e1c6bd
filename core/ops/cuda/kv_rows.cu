/* A block of threads takes a row: its elements lie in shared memory while they are turned.  What scales a whole row is
 * found by one thread.  Widening a lane for every call that reads it costs its floats, written and read once more; no
 * kernel of attention takes these types in place yet.  Not timed on hardware. */
#include "kv_rows.cuh"

#include "kv_row.h"

enum { ROWS_THREADS = 64 };

/* How a type cuts its rows (kvtypes.def). */
struct rows_type {
    enum kvl_kv_type type;
    int32_t unit, unit_bytes, head_bytes;
};

struct rows_put_params {
    const float *from[3];
    uint32_t off[3], row[3];
    struct rows_type type[3];
    const struct kvl_kv_span *span;
    int32_t n_kv_heads, head_dim;
};

/* ---- kernels -------------------------------------------------------------------------------------- */

static __device__ inline void rows_signs(float *x, int32_t n)
{
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += ROWS_THREADS)
        if (kvl_turn_sign(i)) x[i] = -x[i];
    __syncthreads();
}

/* x [n] in shared memory, which all threads have written: ends with a barrier. */
static __device__ inline void rows_turn(enum kvl_kv_turn turn, float *x, int32_t n, bool back)
{
    __syncthreads();
    if (turn == KVL_TURN_NONE) return; /* all threads */
    int32_t piece = kvl_turn_piece(n);
    float scale = kvl_turn_scale(piece);
    if (turn == KVL_TURN_SIGNED && !back) rows_signs(x, n);
    for (int32_t step = 1; step < piece; step *= 2) {
        for (int32_t i = (int32_t)threadIdx.x, a, b; i < n / 2; i += ROWS_THREADS) {
            kvl_turn_pair(i, step, &a, &b);
            float sum = x[a] + x[b], rest = x[a] - x[b];
            x[a] = sum;
            x[b] = rest;
        }
        __syncthreads();
    }
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += ROWS_THREADS) x[i] *= scale;
    __syncthreads();
    if (turn == KVL_TURN_SIGNED && back) rows_signs(x, n);
}

/* x [n], turned, to a row: a thread a unit where units stand alone, else one thread everything. */
static __device__ inline void rows_store(const struct rows_type &t, uint8_t *row, const float *x,
                                         int32_t n)
{
    if (t.head_bytes > 0) {
        if (threadIdx.x == 0) kvl_row_put_turned(t.type, row, x, n);
        return;
    }
    for (int32_t u = (int32_t)threadIdx.x; u < n / t.unit; u += ROWS_THREADS)
        kvl_row_put_turned(t.type, row + u * t.unit_bytes, x + u * t.unit, t.unit);
}

/* A row widened and turned back to x [n]: ends with a barrier. */
static __device__ inline void rows_load(enum kvl_kv_type type, float *x, const uint8_t *row,
                                        int32_t n)
{
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += ROWS_THREADS)
        x[i] = kvl_row_at_turned(type, row, i);
    rows_turn(kvl_row_turn(type), x, n, true);
}

/* grid (rows) */
static __global__ void __launch_bounds__(ROWS_THREADS)
    rows_read_kernel(struct kvl_kept_lane lane, unsigned part, int32_t slot0, float *out,
                     size_t stride)
{
    KVL_SHARED(float, x);
    int32_t slot = slot0 + (int32_t)blockIdx.x, in_block = slot & ((1 << lane.block_shift) - 1);
    const uint8_t *row = lane.blocks[slot >> lane.block_shift] + kvl_third(lane.off, part) +
                         (size_t)in_block * kvl_third(lane.row, part);
    rows_load(kvl_third(lane.type, part), x, row, lane.head_dim);
    for (int32_t i = (int32_t)threadIdx.x; i < lane.head_dim; i += ROWS_THREADS)
        out[(size_t)blockIdx.x * stride + (size_t)i] = x[i];
}

/* grid (slots, parts): block b of the lane of floats begins `bytes` behind the one before. */
static __global__ void __launch_bounds__(ROWS_THREADS)
    rows_widen_kernel(struct kvl_kept_lane lane, uint8_t *to, size_t bytes, const uint8_t **table)
{
    KVL_SHARED(float, x);
    const unsigned part = blockIdx.y;
    int32_t slot = (int32_t)blockIdx.x, b = slot >> lane.block_shift;
    int32_t block_tok = 1 << lane.block_shift, in_block = slot & (block_tok - 1);
    const uint8_t *row =
        lane.blocks[b] + kvl_third(lane.off, part) + (size_t)in_block * kvl_third(lane.row, part);
    uint8_t *block = to + (size_t)b * bytes;
    float *out = reinterpret_cast<float *>(block) +
                 (size_t)((int32_t)part * block_tok + in_block) * (size_t)lane.head_dim;
    if (in_block == 0 && part == 0 && threadIdx.x == 0) table[b] = block;
    rows_load(kvl_third(lane.type, part), x, row, lane.head_dim);
    for (int32_t i = (int32_t)threadIdx.x; i < lane.head_dim; i += ROWS_THREADS) out[i] = x[i];
}

/* grid (spans, parts) */
static __global__ void __launch_bounds__(ROWS_THREADS) rows_put_kernel(struct rows_put_params a)
{
    KVL_SHARED(float, x);
    const struct kvl_kv_span s = a.span[blockIdx.x];
    const unsigned part = blockIdx.y;
    const int32_t dim = a.head_dim;
    const struct rows_type type = kvl_third(a.type, part);
    const float *from = kvl_third(a.from, part);
    uint8_t *to = s.data + kvl_third(a.off, part) + (size_t)s.slot * kvl_third(a.row, part);
    if (s.link && part == 0 && threadIdx.x == 0) *s.link = s.data;
    for (int32_t r = 0; r < s.n; r++) {
        size_t at = (size_t)(s.row + r) * (size_t)a.n_kv_heads + (size_t)s.kv_head;
        for (int32_t i = (int32_t)threadIdx.x; i < dim; i += ROWS_THREADS)
            x[i] = from[at * (size_t)dim + (size_t)i];
        rows_turn(kvl_row_turn(type.type), x, dim, false);
        rows_store(type, to + (size_t)r * kvl_third(a.row, part), x, dim);
        __syncthreads();
    }
}

/* grid (rows) */
static __global__ void __launch_bounds__(ROWS_THREADS)
    rows_round_kernel(struct rows_type t, float *of, int32_t dim)
{
    KVL_SHARED(float, x);
    uint8_t *row = reinterpret_cast<uint8_t *>(x + dim);
    of += (size_t)blockIdx.x * (size_t)dim;
    for (int32_t i = (int32_t)threadIdx.x; i < dim; i += ROWS_THREADS) x[i] = of[i];
    rows_turn(kvl_row_turn(t.type), x, dim, false);
    rows_store(t, row, x, dim);
    __syncthreads();
    rows_load(t.type, x, row, dim);
    for (int32_t i = (int32_t)threadIdx.x; i < dim; i += ROWS_THREADS) of[i] = x[i];
}

/* ---- launches ------------------------------------------------------------------------------------- */

static struct rows_type rows_type_of(enum kvl_kv_type type)
{
    const struct kvl_kv_facts *f = kvl_kv_facts(type);
    return { type, f->unit, f->unit_bytes, f->head_bytes };
}

void kvl_cuda_rows_read(const struct kvl_kept_lane *lane, int part, int32_t slot0, int32_t n,
                        float *out, size_t stride)
{
    size_t bytes = (size_t)lane->head_dim * sizeof(float);
    KVL_LAUNCH(rows_read_kernel, (unsigned)n, ROWS_THREADS, bytes, *lane, (unsigned)part, slot0,
               out, stride);
}

const uint8_t *const *kvl_cuda_rows_widen(struct kvl_cuda_call *c, const struct kvl_kept_lane *lane,
                                          const struct kvl_layout *l, int32_t n_slots)
{
    unsigned n_parts = l->part_off[KVL_PART_K_RAW] == SIZE_MAX ? 2 : 3;
    size_t n = (size_t)kvl_ceil_div(n_slots, l->block_tok),
           row = (size_t)l->head_dim * sizeof(float);
    size_t bytes = n_parts * (size_t)l->block_tok * row;
    if (n_slots == 0) return NULL;
    uint8_t *to = kvl_cuda_temp<uint8_t>(c, n * bytes);
    const uint8_t **table = kvl_cuda_temp<const uint8_t *>(c, n);
    if (c->rc != KVL_OK) return NULL;
    KVL_LAUNCH(rows_widen_kernel, dim3((unsigned)n_slots, n_parts), ROWS_THREADS, row, *lane, to,
               bytes, table);
    return table;
}

void kvl_cuda_rows_put(const struct kvl_layout *l, const float *const *part,
                       const struct kvl_kv_span *span, int32_t n_spans, int32_t n_kv_heads)
{
    struct rows_put_params p = {};
    unsigned n_parts = l->part_off[KVL_PART_K_RAW] == SIZE_MAX ? 2 : 3;
    for (unsigned i = 0; i < n_parts; i++) {
        p.from[i] = part[i];
        p.off[i] = (uint32_t)l->part_off[i];
        p.row[i] = (uint32_t)l->row_bytes[i];
        p.type[i] = rows_type_of(l->type[i]);
    }
    p.span = span;
    p.n_kv_heads = n_kv_heads;
    p.head_dim = l->head_dim;
    KVL_LAUNCH(rows_put_kernel, dim3((unsigned)n_spans, n_parts), ROWS_THREADS,
               (size_t)l->head_dim * sizeof(float), p);
}

void kvl_cuda_rows_round(enum kvl_kv_type type, float *x, int32_t n, int32_t head_dim)
{
    size_t bytes = (size_t)head_dim * sizeof(float) + kvl_kv_row_bytes(type, head_dim);
    KVL_LAUNCH(rows_round_kernel, (unsigned)n, ROWS_THREADS, bytes, rows_type_of(type), x,
               head_dim);
}
