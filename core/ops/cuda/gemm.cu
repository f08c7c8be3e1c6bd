/* Prefill projections.
 *
 * In float: own kernel.  Blocks of 128 rows of x by 128 rows of W (16 where there are few rows of x), 32 columns
 * at a time, dequantised on their way into shared memory; a thread sums 8 x 8 elements, each in one chain of
 * multiply-adds over the columns.  So a row's bits depend on nothing around it, and are those of the CPU with
 * multiply-adds; a BLAS promises neither, and its answer to a shape may change with the rows.  Limit: the
 * multiply-adds of the float units.
 *
 * In bf16: x and W are rounded into temporary memory and multiplied by cuBLAS on tensor cores, summed in float.
 * Every call has the same number of rows, the last padded with zeros, so that for one W it is always the same
 * call (blas.cuh says what that rests on).  W in bf16 is read where it lies.  Limit: the tensor cores; beside
 * them W is read, written and read again as bf16 when it is of another type.  Neither has been timed yet. */
#include "gemm.cuh"

#include "blas.cuh"

enum {
    GEMM_COLS = 128,   /* rows of W of a block */
    GEMM_DEPTH = 32,   /* columns in shared memory */
    GEMM_PAD = 4,      /* floats: rows stay aligned for loads of 16 bytes */
    GEMM_THREADS = 256 /* 16 x 16 */
};

struct gemm_in {
    float *y;
    const float *x;
    const uint8_t *w;
    size_t row_bytes;
    int32_t n, n_rows, n_cols;
};

/* Pieces of W's rows row0 and up, transposed; threads of a warp write neighbouring rows. */
template <int TYPE, bool WIDE>
static __device__ inline void gemm_load_w(float (*to)[GEMM_COLS + GEMM_PAD], const gemm_in *a,
                                          int32_t row0, int32_t piece0)
{
    for (int32_t i = (int32_t)threadIdx.x; i < GEMM_COLS * GEMM_DEPTH / KVL_PIECE;
         i += GEMM_THREADS) {
        int32_t r = i % GEMM_COLS, p = i / GEMM_COLS, piece = piece0 + p;
        float w[KVL_PIECE] = { 0 };
        if (row0 + r < a->n_rows && piece * KVL_PIECE < a->n_cols)
            kvl_piece<TYPE, WIDE>(w, a->w + (size_t)(row0 + r) * a->row_bytes, piece, a->n_cols);
        for (int c = 0; c < KVL_PIECE; c++) {
            int32_t half = c < 4 ? kvl_piece_first<TYPE>(p) : kvl_piece_second<TYPE>(p);
            to[half + c % 4][r] = w[c];
        }
    }
}

template <int ROWS, bool WIDE>
static __device__ inline void gemm_load_x(float (*to)[ROWS + GEMM_PAD], const gemm_in *a,
                                          int32_t row0, int32_t piece0)
{
    for (int32_t i = (int32_t)threadIdx.x; i < ROWS * GEMM_DEPTH / KVL_PIECE; i += GEMM_THREADS) {
        int32_t r = i % ROWS, p = i / ROWS, piece = piece0 + p;
        float x[KVL_PIECE] = { 0 };
        if (row0 + r < a->n && piece * KVL_PIECE < a->n_cols)
            kvl_piece_x<KVL_W_F32, WIDE>(x, a->x + (size_t)(row0 + r) * (size_t)a->n_cols, piece,
                                         a->n_cols);
        for (int c = 0; c < KVL_PIECE; c++) to[p * KVL_PIECE + c][r] = x[c];
    }
}

/* Row i of a thread's rows, or of its columns: groups of four, 64 apart. */
static __device__ inline int32_t gemm_place(int32_t thread, int i)
{
    return thread * 4 + i % 4 + i / 4 * 64;
}

template <int ROWS>
static __device__ inline void gemm_add(float (*sum)[8], const float (*x)[ROWS + GEMM_PAD],
                                       const float (*w)[GEMM_COLS + GEMM_PAD], int32_t tx,
                                       int32_t ty)
{
    constexpr int N = ROWS / 16;
    for (int k = 0; k < GEMM_DEPTH; k++) {
        float u[N], v[8];
#pragma unroll
        for (int i = 0; i < N; i++) u[i] = x[k][N == 1 ? ty : gemm_place(ty, i)];
#pragma unroll
        for (int j = 0; j < 8; j++) v[j] = w[k][gemm_place(tx, j)];
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) sum[i][j] = fmaf(u[i], v[j], sum[i][j]);
    }
}

template <int TYPE, bool WIDE, int ROWS>
static __global__ void __launch_bounds__(GEMM_THREADS) gemm_chain(const gemm_in a)
{
    constexpr int N = ROWS / 16;
    __shared__ float x[GEMM_DEPTH][ROWS + GEMM_PAD], w[GEMM_DEPTH][GEMM_COLS + GEMM_PAD];
    int32_t row0 = (int32_t)blockIdx.y * ROWS, col0 = (int32_t)blockIdx.x * GEMM_COLS;
    int32_t tx = (int32_t)threadIdx.x % 16, ty = (int32_t)threadIdx.x / 16;
    float sum[N][8];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < 8; j++) sum[i][j] = 0;
    for (int32_t k = 0; k < a.n_cols; k += GEMM_DEPTH) {
        gemm_load_x<ROWS, WIDE>(x, &a, row0, k / KVL_PIECE);
        gemm_load_w<TYPE, WIDE>(w, &a, col0, k / KVL_PIECE);
        __syncthreads();
        gemm_add<ROWS>(sum, x, w, tx, ty);
        __syncthreads();
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < 8; j++) {
            int32_t r = row0 + (N == 1 ? ty : gemm_place(ty, i)), c = col0 + gemm_place(tx, j);
            if (r < a.n && c < a.n_rows) a.y[(size_t)r * (size_t)a.n_rows + (size_t)c] = sum[i][j];
        }
}

/* y [n_to][ld_to], zero beyond x [n][n_cols]: a thread writes neighbouring elements of a row in turn. */
static __global__ void __launch_bounds__(256)
    gemm_round_x(__nv_bfloat16 *y, const float *x, int32_t n, int32_t n_cols, int32_t ld_to)
{
    int32_t c = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x), r = (int32_t)blockIdx.y;
    if (c >= ld_to) return;
    float v = r < n && c < n_cols ? x[(size_t)r * (size_t)n_cols + (size_t)c] : 0;
    y[(size_t)r * (size_t)ld_to + (size_t)c] = __float2bfloat16_rn(v);
}

/* Rows row0 and up of W, rounded: a piece per thread. */
template <int TYPE, bool WIDE>
static __global__ void __launch_bounds__(256)
    gemm_round_w(__nv_bfloat16 *y, const gemm_in a, int32_t row0, int32_t ld_to)
{
    int32_t piece = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    int32_t r = (int32_t)blockIdx.y;
    float w[KVL_PIECE];
    if (piece * KVL_PIECE >= a.n_cols) return;
    __nv_bfloat16 *to = y + (size_t)r * (size_t)ld_to;
    kvl_piece<TYPE, WIDE>(w, a.w + (size_t)(row0 + r) * a.row_bytes, piece, a.n_cols);
    for (int c = 0; c < KVL_PIECE; c++) {
        int32_t half = c < 4 ? kvl_piece_first<TYPE>(piece) : kvl_piece_second<TYPE>(piece);
        to[half + c % 4] = __float2bfloat16_rn(w[c]);
    }
}

static __global__ void __launch_bounds__(256)
    gemm_copy(float *y, const float *from, int32_t n_rows, int32_t ld_y, int32_t ld_from)
{
    int32_t c = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (c >= n_rows) return;
    y[(size_t)blockIdx.y * (size_t)ld_y + (size_t)c] =
        from[(size_t)blockIdx.y * (size_t)ld_from + (size_t)c];
}

/* ---- launch ---------------------------------------------------------------------------------------- */

/* Sixteen rows of x fill a block's threads eight times less, and there are few of them: the end of a prompt, a
 * question. */
enum { GEMM_FEW_ROWS = 32, GEMM_GRID_ROWS = 65535 };

template <int TYPE, bool WIDE, int ROWS> static void gemm_start(const gemm_in *in)
{
    dim3 grid((unsigned)kvl_ceil_div(in->n_rows, GEMM_COLS), (unsigned)kvl_ceil_div(in->n, ROWS));
    assert(grid.y <= GEMM_GRID_ROWS);
    KVL_LAUNCH((gemm_chain<TYPE, WIDE, ROWS>), grid, GEMM_THREADS, 0, *in);
}

template <int TYPE> static void gemm_launch(const gemm_in *in, bool wide)
{
    constexpr bool FAST = kvl_wtype_is<TYPE>::fast;
    bool few = in->n <= GEMM_FEW_ROWS;
    if (wide && few)
        gemm_start<TYPE, FAST, 16>(in);
    else if (wide)
        gemm_start<TYPE, FAST, 128>(in);
    else if (few)
        gemm_start<TYPE, false, 16>(in);
    else
        gemm_start<TYPE, false, 128>(in);
}

void kvl_cuda_gemm_chain(float *y, const float *x, const struct kvl_weight *w, const void *data,
                         int32_t n)
{
    gemm_in in = {};
    bool wide = kvl_wide_rows(w, data) && kvl_wide_floats(x, w->n_cols);
    in.y = y;
    in.x = x;
    in.w = static_cast<const uint8_t *>(data);
    in.row_bytes = w->row_bytes;
    in.n = n;
    in.n_rows = w->n_rows;
    in.n_cols = w->n_cols;
    kvl_wtype_dispatch(w->type, [&](auto t) { gemm_launch<decltype(t)::value>(&in, wide); });
}

enum { GEMM_ROUND_THREADS = 256 };

template <int TYPE>
static void gemm_round_launch(__nv_bfloat16 *to, const gemm_in *in, int32_t row0, int32_t n,
                              int32_t ld_to, bool wide)
{
    int32_t n_pieces = kvl_ceil_div(in->n_cols, KVL_PIECE);
    dim3 grid((unsigned)kvl_ceil_div(n_pieces, GEMM_ROUND_THREADS), (unsigned)n);
    if (wide)
        KVL_LAUNCH((gemm_round_w<TYPE, kvl_wtype_is<TYPE>::fast>), grid, GEMM_ROUND_THREADS, 0, to,
                   *in, row0, ld_to);
    else
        KVL_LAUNCH((gemm_round_w<TYPE, false>), grid, GEMM_ROUND_THREADS, 0, to, *in, row0, ld_to);
}

static void gemm_round_rows(__nv_bfloat16 *to, const gemm_in *in, enum kvl_wtype type, int32_t row0,
                            int32_t n, int32_t ld_to, bool wide)
{
    kvl_wtype_dispatch(
        type, [&](auto t) { gemm_round_launch<decltype(t)::value>(to, in, row0, n, ld_to, wide); });
}

/* ---- bf16: panels of W's rows, tiles of x's ---------------------------------------------------------- */

/* Rows of W rounded at a time: all of a projection, parts of an output layer. */
enum { GEMM_PANEL_ROWS = 32768 };

struct gemm_bf16 {
    gemm_in in;
    enum kvl_wtype type;
    bool wide, as_is; /* as_is: W is bf16 and lies as cuBLAS wants it */
    int32_t ld, ld_y; /* ld_y: of `tile` */
    __nv_bfloat16 *x, *w;
    float *tile; /* where Y cannot be written by cuBLAS itself */
};

/* Rows i .. of one panel's columns of Y.  Whole tiles whose rows are aligned go straight there; alignment
 * could change what cuBLAS does, so that other places are written as aligned ones are. */
static int gemm_bf16_tile(const struct gemm_bf16 *g, const __nv_bfloat16 *w, int32_t row0,
                          int32_t n_panel, int32_t i)
{
    const gemm_in *in = &g->in;
    int32_t n = KVL_MIN((int32_t)KVL_BLAS_ROWS, in->n - i);
    float *y = in->y + (size_t)i * (size_t)in->n_rows + (size_t)row0;
    const __nv_bfloat16 *x = g->x + (size_t)i * (size_t)g->ld;
    if (!g->tile ||
        (n == KVL_BLAS_ROWS && g->ld_y == in->n_rows && reinterpret_cast<uintptr_t>(y) % 16 == 0))
        return kvl_blas_bf16(y, in->n_rows, x, w, g->ld, n_panel, in->n_cols);
    KVL_TRY(kvl_blas_bf16(g->tile, g->ld_y, x, w, g->ld, n_panel, in->n_cols));
    dim3 grid((unsigned)kvl_ceil_div(n_panel, 256), (unsigned)n);
    KVL_LAUNCH(gemm_copy, grid, 256, 0, y, (const float *)g->tile, n_panel, in->n_rows, g->ld_y);
    return KVL_OK;
}

static int gemm_bf16_panel(const struct gemm_bf16 *g, int32_t row0)
{
    int32_t n_panel = KVL_MIN((int32_t)GEMM_PANEL_ROWS, g->in.n_rows - row0);
    const __nv_bfloat16 *w = g->w;
    if (g->as_is)
        w = reinterpret_cast<const __nv_bfloat16 *>(g->in.w + (size_t)row0 * g->in.row_bytes);
    else
        gemm_round_rows(g->w, &g->in, g->type, row0, n_panel, g->ld, g->wide);
    for (int32_t i = 0; i < g->in.n; i += KVL_BLAS_ROWS)
        KVL_TRY(gemm_bf16_tile(g, w, row0, n_panel, i));
    return KVL_OK;
}

static void gemm_bf16_run(struct kvl_cuda_call *c, struct gemm_bf16 *g)
{
    gemm_in *in = &g->in;
    int32_t n_padded = kvl_ceil_div(in->n, KVL_BLAS_ROWS) * KVL_BLAS_ROWS;
    g->ld = kvl_ceil_div(in->n_cols, KVL_PIECE) * KVL_PIECE;
    g->ld_y = kvl_ceil_div(in->n_rows, 4) * 4;
    g->as_is = g->type == KVL_W_BF16 && g->wide && in->row_bytes == 2 * (size_t)g->ld;
    g->x = kvl_cuda_temp<__nv_bfloat16>(c, (size_t)n_padded * (size_t)g->ld);
    if (!g->as_is)
        g->w = kvl_cuda_temp<__nv_bfloat16>(
            c, (size_t)KVL_MIN((int32_t)GEMM_PANEL_ROWS, in->n_rows) * (size_t)g->ld);
    bool direct =
        in->n == n_padded && g->ld_y == in->n_rows && reinterpret_cast<uintptr_t>(in->y) % 16 == 0;
    if (!direct) g->tile = kvl_cuda_temp<float>(c, (size_t)KVL_BLAS_ROWS * (size_t)g->ld_y);
    if (c->rc != KVL_OK) return;
    for (int32_t r = 0; r < n_padded; r += GEMM_GRID_ROWS) {
        int32_t n = KVL_MIN((int32_t)GEMM_GRID_ROWS, n_padded - r);
        dim3 grid((unsigned)kvl_ceil_div(g->ld, 256), (unsigned)n);
        KVL_LAUNCH(gemm_round_x, grid, 256, 0, g->x + (size_t)r * (size_t)g->ld,
                   in->x + (size_t)KVL_MIN(r, in->n) * (size_t)in->n_cols, in->n - r, in->n_cols,
                   g->ld);
    }
    for (int32_t row0 = 0; c->rc == KVL_OK && row0 < in->n_rows; row0 += GEMM_PANEL_ROWS)
        c->rc = gemm_bf16_panel(g, row0);
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_gemm(const struct kvl_gemm_args *a)
{
    struct kvl_cuda_call c;
    struct gemm_bf16 g = {};
    const struct kvl_weight *w = a->w;
    if (a->blas) return KVL_EINVAL;
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    g.in.x = kvl_cuda_in(&c, a->x, (size_t)a->n * (size_t)w->n_cols);
    g.in.w = static_cast<const uint8_t *>(kvl_cuda_in_bytes(&c, w->data, kvl_weight_bytes(w)));
    g.in.y = kvl_cuda_out(&c, a->y, (size_t)a->n * (size_t)w->n_rows);
    g.in.row_bytes = w->row_bytes;
    g.in.n = a->n;
    g.in.n_rows = w->n_rows;
    g.in.n_cols = w->n_cols;
    g.type = w->type;
    g.wide = c.rc == KVL_OK && kvl_wide_rows(w, g.in.w);
    if (c.rc == KVL_OK && a->bf16)
        gemm_bf16_run(&c, &g);
    else if (c.rc == KVL_OK)
        kvl_cuda_gemm_chain(g.in.y, g.in.x, w, g.in.w, a->n);
    return kvl_cuda_end(&c);
}
