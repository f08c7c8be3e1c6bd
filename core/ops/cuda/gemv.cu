/* Decode projections of what gemv_ints.cu does not take: plain types, and quantised ones that are widened by their
 * definition (Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4, TQ1_0, TQ2_0).  A warp takes one or two rows of W and walks along them
 * 256 columns at a time, each lane one piece of eight (wtype.cuh): W is read once, in the order of memory, widened in
 * registers and multiplied as float.  x, a few ten kilobytes, comes from the cache; up to eight rows of x share the read
 * of W.  A lane's sum is one chain of multiply-adds over its columns, the warp's a butterfly, so that neither the number
 * of rows of x nor where a row of W lies changes a bit.
 *
 * Limit of plain types: the bytes of W over the memory's bandwidth.  Times: results/gpu-kernels.md.  x stays float here,
 * also where the CPU rounds it to 16 bits (int16 and k16 in wtypes.def). */
#include "gemv.cuh"

/* Eight columns of R rows of W times N rows of x. */
template <int TYPE, bool WIDE, int N, int R>
static __device__ inline void gemv_step(float (*sum)[N], const float (*w)[KVL_PIECE],
                                        const gemv_in *a, int32_t piece)
{
    float v[KVL_PIECE];
#pragma unroll
    for (int i = 0; i < N; i++) {
        int32_t at = i < a->n ? i : a->n - 1; /* rows that are not there: the last one again */
        kvl_piece_x<TYPE, WIDE>(v, a->x + (size_t)at * (size_t)a->n_cols, piece, a->n_cols);
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int c = 0; c < KVL_PIECE; c++) sum[r][i] = fmaf(w[r][c], v[c], sum[r][i]);
    }
}

/* Pieces of a lane that are asked for at once, of plain types.  Two such sets take turns, so that one is under way
 * while the other is multiplied: with one row of x that is 8 loads of 16 bytes a lane, which the compiler does not
 * bring about by itself (tests/gpu/kernels.txt). */
template <int TYPE, int N, int R> struct gemv_ring {
    enum {
        LOADS = kvl_raw<TYPE>::QUADS * R, /* of a piece */
        PIECES = KVL_MAX(1, (N == 1 ? 4 : 2) / LOADS),
        SETS = 2
    };
};

template <int TYPE, int R, int PIECES>
static __device__ inline void gemv_ask(struct kvl_raw<TYPE> (*set)[R], const uint8_t *const *row,
                                       int32_t piece, int32_t n_pieces)
{
#pragma unroll
    for (int i = 0; i < PIECES; i++)
#pragma unroll
        for (int r = 0; r < R; r++)
            if (piece + i * KVL_WARP < n_pieces)
                kvl_raw_load<TYPE>(&set[i][r], row[r], piece + i * KVL_WARP);
}

template <int TYPE, int N, int R>
static __device__ inline void gemv_walk(float (*sum)[N], const uint8_t *const *row,
                                        const gemv_in *a, int32_t n_pieces)
{
    typedef struct gemv_ring<TYPE, N, R> ring;
    enum { STEP = ring::PIECES * KVL_WARP };
    struct kvl_raw<TYPE> set[ring::SETS][ring::PIECES][R];
    int32_t piece = (int32_t)threadIdx.x % KVL_WARP;
#pragma unroll
    for (int s = 0; s < ring::SETS; s++)
        gemv_ask<TYPE, R, ring::PIECES>(set[s], row, piece + s * STEP, n_pieces);
    for (; piece < n_pieces; piece += ring::SETS * STEP)
#pragma unroll
        for (int s = 0; s < ring::SETS; s++) {
#pragma unroll
            for (int i = 0; i < ring::PIECES; i++) {
                int32_t at = piece + s * STEP + i * KVL_WARP;
                float w[R][KVL_PIECE];
                if (at >= n_pieces) continue;
#pragma unroll
                for (int r = 0; r < R; r++) kvl_raw_widen<TYPE>(w[r], set[s][i][r], at);
                gemv_step<TYPE, true, N, R>(sum, w, a, at);
            }
            gemv_ask<TYPE, R, ring::PIECES>(set[s], row, piece + (s + ring::SETS) * STEP, n_pieces);
        }
}

/* R sums of a warp, of neighbouring rows of W; GATED: of one row of each of two matrices, R = 2. */
template <int TYPE, bool WIDE, int N, int R, bool GATED>
static __global__ void __launch_bounds__(GEMV_THREADS) gemv_rows(const gemv_in a)
{
    constexpr int OUT = GATED ? 1 : R; /* elements of y */
    int32_t lane = (int32_t)threadIdx.x % KVL_WARP, warp = (int32_t)threadIdx.x / KVL_WARP;
    const gemv_matrix *of = &a.matrix[gemv_matrix_at(&a, (int32_t)blockIdx.x)];
    int32_t row0 = (((int32_t)blockIdx.x - of->block0) * GEMV_WARPS + warp) * OUT;
    int32_t n_pieces = (a.n_cols + KVL_PIECE - 1) / KVL_PIECE;
    const uint8_t *row[R];
    float sum[R][N] = {}, w[R][KVL_PIECE];
    gemv_rows_at<R, GATED>(row, of, row0);
    if (row0 >= of->n_rows) n_pieces = 0;
    if constexpr (WIDE && kvl_wtype_is<TYPE>::fast) {
        gemv_walk<TYPE, N, R>(sum, row, &a, n_pieces);
    } else {
#pragma unroll(N == 1 ? 4 : 1)
        for (int32_t piece = lane; piece < n_pieces; piece += KVL_WARP) {
#pragma unroll
            for (int r = 0; r < R; r++) kvl_piece<TYPE, WIDE>(w[r], row[r], piece, a.n_cols);
            gemv_step<TYPE, WIDE, N, R>(sum, w, &a, piece);
        }
    }
    gemv_finish<N, R, GATED>(of, sum, row0, a.n);
}

/* ---- launch ---------------------------------------------------------------------------------------- */

/* Two rows a warp halve the reads of x; one row where two would leave multiprocessors, of which 132 are thought
 * of, with less than four blocks each. */
enum { GEMV_MANY_ROWS = 132 * 4 * 2 * GEMV_WARPS };

template <int TYPE, bool WIDE, int N, int R, bool GATED> static void gemv_start(gemv_in *in)
{
    int32_t n_blocks = gemv_blocks(in, GEMV_WARPS * (GATED ? 1 : R));
    KVL_LAUNCH((gemv_rows<TYPE, WIDE, N, R, GATED>), (unsigned)n_blocks, GEMV_THREADS, 0, *in);
}

template <int TYPE> static void gemv_launch(gemv_in *in, bool wide)
{
    constexpr bool FAST = kvl_wtype_is<TYPE>::fast;
    if (!(FAST && wide) && in->n == 1)
        gemv_start<TYPE, false, 1, 1, false>(in);
    else if (!(FAST && wide))
        gemv_start<TYPE, false, 8, 1, false>(in);
    else if (in->n == 1 && gemv_n_rows(in) < GEMV_MANY_ROWS)
        gemv_start<TYPE, FAST, 1, 1, false>(in);
    else if (in->n == 1)
        gemv_start<TYPE, FAST, 1, FAST ? 2 : 1, false>(in);
    else if (in->n <= 4)
        gemv_start<TYPE, FAST, FAST ? 4 : 8, FAST ? 2 : 1, false>(in);
    else
        gemv_start<TYPE, FAST, 8, FAST ? 2 : 1, false>(in);
}

/* The two products of a gated MLP at once; of types in words, all WIDE. */
template <int TYPE> static void gemv_gated(gemv_in *in)
{
    if constexpr (kvl_wtype_is<TYPE>::fast) {
        if (in->n == 1)
            gemv_start<TYPE, true, 1, 2, true>(in);
        else if (in->n <= 4)
            gemv_start<TYPE, true, 4, 2, true>(in);
        else
            gemv_start<TYPE, true, 8, 2, true>(in);
    }
}

/* All rows of x, eight at a time. */
static void gemv_all(const gemv_in *all, enum kvl_wtype type, bool wide, bool gated)
{
    for (int32_t i = 0; i < all->n; i += GEMV_MAX_ROWS) {
        gemv_in in = *all;
        in.n = KVL_MIN(GEMV_MAX_ROWS, all->n - i);
        in.x = all->x + (size_t)i * (size_t)all->n_cols;
        for (int32_t m = 0; m < in.n_matrices; m++)
            in.matrix[m].y += (size_t)i * (size_t)in.matrix[m].n_rows;
        kvl_wtype_dispatch(type, [&](auto t) {
            constexpr int TYPE = decltype(t)::value;
            if constexpr (kvl_gemv_has_ints(TYPE))
                kvl_cuda_gemv_ints(&in, type, wide, gated);
            else if (gated)
                gemv_gated<TYPE>(&in);
            else
                gemv_launch<TYPE>(&in, wide);
        });
    }
}

/* ---- entry ----------------------------------------------------------------------------------------- */

static bool gemv_is_fast(enum kvl_wtype type)
{
    bool fast = false;
    kvl_wtype_dispatch(type, [&](auto t) { fast = decltype(t)::fast; });
    return fast || kvl_gemv_has_ints(type);
}

static void gemv_matrix_of(struct kvl_cuda_call *c, const struct kvl_gemv_args *a,
                           const struct kvl_weight *w, const void *data, gemv_matrix *m)
{
    size_t n = (size_t)a->n * (size_t)w->n_rows;
    *m = {};
    m->w = static_cast<const uint8_t *>(data);
    m->row_bytes = w->row_bytes;
    m->n_rows = w->n_rows;
    m->bias = kvl_cuda_in(c, a->bias, (size_t)w->n_rows);
    m->add = a->add;
    m->y = a->add ? kvl_cuda_inout(c, a->y, n) : kvl_cuda_out(c, a->y, n);
}

/* The products from `a` on that one launch takes: of one type, all WIDE or none, with nothing to be gated by; the one
 * after them. */
static const struct kvl_gemv_args *gemv_take(struct kvl_cuda_call *c, const struct kvl_gemv_args *a,
                                             gemv_in *in, bool *wide)
{
    enum kvl_wtype type = a->w->type;
    for (in->n_matrices = 0; a && in->n_matrices < GEMV_MATRICES && a->w->type == type && !a->up;
         a = a->next) {
        const void *w = kvl_cuda_in_bytes(c, a->w->data, kvl_weight_bytes(a->w));
        bool this_wide = kvl_wide_rows(a->w, w) && kvl_wide_floats(in->x, in->n_cols);
        if (in->n_matrices > 0 && this_wide != *wide) break;
        *wide = this_wide;
        gemv_matrix_of(c, a, a->w, w, &in->matrix[in->n_matrices++]);
    }
    return a;
}

/* Where one kernel does not take both: the products apart, then glu. */
static void gemv_apart(struct kvl_cuda_call *c, const struct kvl_gemv_args *a, gemv_in *in,
                       const void *up)
{
    size_t n = (size_t)a->n * (size_t)a->w->n_rows;
    gemv_matrix *m = &in->matrix[0], made = *m;
    float *gate = kvl_cuda_temp<float>(c, n), *other = kvl_cuda_temp<float>(c, n);
    if (c->rc != KVL_OK) return;
    m->y = gate;
    m->add = false;
    gemv_all(in, a->w->type, kvl_wide_rows(a->w, m->w) && kvl_wide_floats(in->x, in->n_cols),
             false);
    m->w = static_cast<const uint8_t *>(up);
    m->row_bytes = a->up->row_bytes;
    m->y = other;
    m->bias = made.up_bias;
    gemv_all(in, a->up->type, kvl_wide_rows(a->up, up) && kvl_wide_floats(in->x, in->n_cols),
             false);
    kvl_cuda_glu_launch(made.add ? gate : made.y, gate, other, n, a->act);
    if (made.add) kvl_cuda_add_launch(made.y, gate, n, NULL);
}

static void gemv_both(struct kvl_cuda_call *c, const struct kvl_gemv_args *a, gemv_in *in)
{
    const void *w = kvl_cuda_in_bytes(c, a->w->data, kvl_weight_bytes(a->w));
    const void *up = kvl_cuda_in_bytes(c, a->up->data, kvl_weight_bytes(a->up));
    gemv_matrix *m = &in->matrix[0];
    in->n_matrices = 1;
    gemv_matrix_of(c, a, a->w, w, m);
    m->up = static_cast<const uint8_t *>(up);
    m->up_bytes = a->up->row_bytes;
    m->up_bias = kvl_cuda_in(c, a->up_bias, (size_t)a->up->n_rows);
    m->act = a->act;
    if (c->rc != KVL_OK) return;
    bool wide = kvl_wide_rows(a->w, w) && kvl_wide_rows(a->up, up);
    if (wide && gemv_is_fast(a->w->type) && a->up->type == a->w->type &&
        kvl_wide_floats(in->x, in->n_cols))
        gemv_all(in, a->w->type, true, true);
    else
        gemv_apart(c, a, in, up);
}

int kvl_cuda_gemv(const struct kvl_gemv_args *a)
{
    struct kvl_cuda_call c;
    gemv_in in = {};
    if (a->n == 0) return KVL_OK;
    if (a->q8) return KVL_EINVAL;
    for (const struct kvl_gemv_args *q = a; q; q = q->next)
        assert(q->n == a->n && q->x == a->x && q->w->n_cols == a->w->n_cols);
    kvl_cuda_begin(&c);
    in.n = a->n;
    in.n_cols = a->w->n_cols;
    in.x = kvl_cuda_in(&c, a->x, (size_t)a->n * (size_t)a->w->n_cols);
    while (a && c.rc == KVL_OK) {
        enum kvl_wtype type = a->w->type;
        bool wide = false;
        if (a->up) {
            gemv_both(&c, a, &in);
            a = a->next;
            continue;
        }
        a = gemv_take(&c, a, &in, &wide);
        if (c.rc == KVL_OK) gemv_all(&in, type, wide, false);
    }
    return kvl_cuda_end(&c);
}
