/* Layout: x is packed once, MR rows at a time with columns outermost; W is widened and packed in
 * panels of NR rows and 512 columns that stay in L2; a register tile of MR x NR sums reads both in
 * order.  Threads take runs of rows of W, each packed by one of them.
 *
 * Own kernels rather than a BLAS (gemm_blas.c, an option): no BLAS promises that a row's rounding is
 * independent of the number of rows, and W would have to be widened as a whole.  Here every element of Y is one chain
 * of multiply-adds over the columns in ascending order.  In bf16 the chain is over pairs of columns, with integers over
 * blocks of 32.
 *
 * Limit: one multiply-add of 16 floats per cycle, or one product of 16 pairs of bf16.  Reached at 512
 * rows: 0.90 of the first, 0.87 of the second; OpenBLAS sgemm reaches 0.86 of the first.
 * With AVX2 two multiply-adds of 8 floats per cycle, or two products of 8 pairs of integers and their
 * sums; with AVX-512 one or two products of 16 pairs, by processor (results/cpu.md). */
#include "cpu.h"

#include <assert.h>
#include <omp.h>

/* Rows of x packed at a time: bounds the scratch. */
enum { GEMM_ROWS = 1024, GEMM_MAX_COLS = 128 };

/* Columns of Y per item: wide enough to reuse x, narrow enough that every thread has work. */
static int32_t gemm_item_cols(const struct kvl_kern *kern, int32_t n_cols, int threads)
{
    int32_t cols = GEMM_MAX_COLS / kern->nr * kern->nr;
    while (cols > kern->nr && n_cols / cols < 3 * threads) cols -= kern->nr;
    return cols;
}

struct gemm_plan {
    const struct kvl_gemm_args *a;
    const struct kvl_kern *kern;
    const struct kvl_gemm_kern *gemm;
    int threads;
    int32_t item_cols;
    size_t row_places; /* of a packed row of x */
    size_t thread_floats;
    float *packed, *scratch;
};

static void gemm_block(const struct gemm_plan *p, int32_t row0, int32_t n)
{
    const struct kvl_weight *w = p->a->w;
    const float *x = p->a->x + (size_t)row0 * (size_t)w->n_cols;
    int32_t mr = p->kern->mr, n_packs = (n + mr - 1) / mr;
    int32_t n_items = (w->n_rows + p->item_cols - 1) / p->item_cols;
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
    {
#pragma omp for schedule(static)
        for (int32_t i = 0; i < n_packs; i++) {
            size_t at = (size_t)i * (size_t)mr, n_cols = (size_t)w->n_cols;
            p->gemm->pack(p->packed + at * p->row_places, x + at * n_cols, n_cols,
                          KVL_MIN(mr, n - i * mr), w->n_cols);
        }
#pragma omp for schedule(dynamic)
        for (int32_t i = 0; i < n_items; i++) {
            struct kvl_gemm_item it = { .y = p->a->y + (size_t)row0 * (size_t)w->n_rows,
                                        .x = p->packed,
                                        .w = w,
                                        .ld_y = (size_t)w->n_rows,
                                        .n = n,
                                        .col0 = i * p->item_cols };
            it.n_cols = KVL_MIN(p->item_cols, w->n_rows - it.col0);
            it.scratch = p->scratch + (size_t)omp_get_thread_num() * p->thread_floats;
            p->gemm->item(&it);
        }
    }
}

static const struct kvl_gemm_kern *gemm_kern(const struct kvl_gemm_args *a)
{
    const struct kvl_gemm_kern *gemm = kvl_kern()->gemm;
    bool blocks = kvl_wtype_find((uint32_t)a->w->type)->x_int16;
    if (a->bf16) return gemm + KVL_GEMM_BF16;
    return gemm + (a->int16 && blocks && gemm[KVL_GEMM_INT16].item ? KVL_GEMM_INT16 : KVL_GEMM_F32);
}

int kvl_cpu_gemm(const struct kvl_gemm_args *a)
{
    if (a->blas) return kvl_cpu_gemm_blas(a);
    double ns = (double)a->n * a->w->n_rows * a->w->n_cols / 40;
    struct gemm_plan p = {
        .a = a, .kern = kvl_kern(), .gemm = gemm_kern(a), .threads = kvl_team(ns)
    };
    int32_t rows = KVL_MIN(a->n, GEMM_ROWS);
    p.row_places = (size_t)p.gemm->places(a->w->n_cols);
    size_t packed = (size_t)((rows + p.kern->mr - 1) / p.kern->mr * p.kern->mr) * p.row_places;
    assert(GEMM_ROWS % p.kern->mr == 0);
    p.item_cols = gemm_item_cols(p.kern, a->w->n_rows, p.threads);
    p.thread_floats = (p.gemm->scratch(p.item_cols) + 15) / 16 * 16;
    packed = (packed + 15) / 16 * 16;
    p.packed = kvl_cpu_scratch((packed + p.thread_floats * (size_t)p.threads) * sizeof(float));
    if (!p.packed) return KVL_ENOMEM;
    p.scratch = p.packed + packed;
    for (int32_t r = 0; r < a->n; r += GEMM_ROWS) gemm_block(&p, r, KVL_MIN(GEMM_ROWS, a->n - r));
    return KVL_OK;
}
