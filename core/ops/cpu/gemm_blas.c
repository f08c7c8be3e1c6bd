/* gemm by OpenBLAS, for processors without kernels of our own.  512 rows of x, W of 1024 x 1024 in F16, one core
 * with AVX-512: 90 GFLOP/s, against 108 of gemm's kernels there and 32 of its portable ones.
 *
 * W is widened BLAS_ROWS rows at a time, and each such piece is a call of its own on one thread: results do not
 * depend on the number of threads.  They depend on n, for which OpenBLAS chooses its tiles. */
#include "cpu.h"
#include "openblas.h"

#include <omp.h>

enum { BLAS_ROWS = 256 };

/* Columns row0 .. row0 + n_rows - 1 of Y. */
static void blas_piece(const struct kvl_openblas *blas, const struct kvl_gemm_args *a, int32_t row0,
                       int32_t n_rows, float *wide)
{
    const struct kvl_weight *w = a->w;
    const uint8_t *data = (const uint8_t *)w->data + (size_t)row0 * w->row_bytes;
    const float *rows = wide;
    for (int32_t i = 0; i < n_rows && w->type != KVL_W_F32; i++)
        kvl_kern()->widen(wide + (size_t)i * (size_t)w->n_cols, data + (size_t)i * w->row_bytes,
                          w->type, w->n_cols);
    if (w->type == KVL_W_F32) rows = (const float *)(const void *)data;
    blas->sgemm(KVL_BLAS_ROW_MAJOR, KVL_BLAS_NO_TRANS, KVL_BLAS_TRANS, a->n, n_rows, w->n_cols, 1,
                a->x, w->n_cols, rows, w->n_cols, 0, a->y + row0, w->n_rows);
}

int kvl_cpu_gemm_blas(const struct kvl_gemm_args *a)
{
    const struct kvl_openblas *blas = kvl_openblas();
    const struct kvl_weight *w = a->w;
    int32_t n_pieces = (w->n_rows + BLAS_ROWS - 1) / BLAS_ROWS;
    int threads = kvl_team((double)a->n * w->n_rows * w->n_cols / 40);
    size_t piece = (size_t)BLAS_ROWS * (size_t)w->n_cols;
    if (!blas) return KVL_EDEVICE;
    float *wide = kvl_cpu_scratch(piece * (size_t)threads * sizeof *wide);
    if (!wide) return KVL_ENOMEM;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < n_pieces; i++)
        blas_piece(blas, a, i * BLAS_ROWS, KVL_MIN(BLAS_ROWS, w->n_rows - i * BLAS_ROWS),
                   wide + (size_t)omp_get_thread_num() * piece);
    return KVL_OK;
}
