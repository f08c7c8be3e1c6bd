/* What this machine gives at most: streaming reads, multiply-adds, somebody else's product. */
#include "bench.h"

#include "kvl/peak.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MACHINE_FMA = 4000000, GEMM_M = 512, GEMM_N = 2816, GEMM_K = 1024 };

void *bench_huge(size_t bytes)
{
    const size_t huge = (size_t)2 << 20, whole = (bytes + huge - 1) / huge * huge;
    void *p = aligned_alloc(huge, whole);
    if (p) (void)madvise(p, whole, MADV_HUGEPAGE);
    return p;
}

/* ---- streaming ----------------------------------------------------------------------------------------- */

/* Far more than a cache holds (--quick: than most), on huge pages where the system has them. */
static int stream_open(struct bench *b)
{
    const size_t huge = (size_t)2 << 20, most = (size_t)2 << (b->config.quick ? 25 : 30);
    size_t bytes = bench_memory_free() / 8;
    bytes = KVL_MAX(KVL_MIN(bytes, most) / huge, 1) * huge;
    b->stream = bench_huge(bytes);
    if (!b->stream) return kvl_fail(b->err, KVL_ENOMEM, "no memory for %zu bytes to read", bytes);
    b->n_stream = bytes / sizeof *b->stream;
    for (size_t i = 0; i < b->n_stream; i++) b->stream[i] = 1e-3f;
    return KVL_OK;
}

double bench_stream(struct bench *b, int32_t threads)
{
    kvl_ops_set_threads(threads);
    uint64_t t0 = kvl_now_ns();
    (void)kvl_peak_read(b->stream, b->n_stream);
    return 1e9 * (double)(b->n_stream * sizeof *b->stream) / (double)(kvl_now_ns() - t0);
}

/* ---- OpenBLAS -------------------------------------------------------------------------------------------- */

static bool blas_load(struct bench_blas *blas)
{
    static const char *const names[] = { "libopenblas.so.0", "libopenblas.so" };
    void *lib = NULL;
    for (size_t i = 0; !lib && i < sizeof names / sizeof names[0]; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib) return false;
    *(void **)(void *)&blas->sgemm = dlsym(lib, "cblas_sgemm");
    *(void **)(void *)&blas->set_threads = dlsym(lib, "openblas_set_num_threads");
    *(void **)(void *)&blas->core_name = dlsym(lib, "openblas_get_corename");
    return blas->sgemm && blas->set_threads && blas->core_name;
}

/* Loaded at run time: a program that is linked with it starts its threads in every command. */
const struct bench_blas *bench_blas(void)
{
    static struct bench_blas blas;
    static enum { UNKNOWN, MISSING, LOADED } state;
    if (state == UNKNOWN) state = blas_load(&blas) ? LOADED : MISSING;
    return state == LOADED ? &blas : NULL;
}

void bench_sgemm(const struct bench_blas *blas, int32_t m, int32_t n, int32_t k, const float *a,
                 const float *w, float *c)
{
    enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
    blas->sgemm(ROW_MAJOR, NO_TRANS, TRANS, m, n, k, 1.0f, a, k, w, k, 0.0f, c, n);
}

/* ---- the lines --------------------------------------------------------------------------------------------- */

struct peaks {
    double stream[BENCH_MAX_ROUNDS], fma[BENCH_MAX_ROUNDS], bf16[BENCH_MAX_ROUNDS],
        sgemm[BENCH_MAX_ROUNDS];
    float *a, *w, *c; /* of the product */
};

static double per_second(double work, uint64_t t0)
{
    return 1e9 * work / (double)(kvl_now_ns() - t0);
}

static void peaks_round(struct bench *b, struct peaks *p, const struct bench_blas *blas,
                        int32_t threads, int32_t round)
{
    p->stream[round] = 1e-9 * bench_stream(b, threads);
    uint64_t t = kvl_now_ns();
    p->fma[round] = 1e-9 * per_second(kvl_peak_fma(MACHINE_FMA), t);
    t = kvl_now_ns();
    p->bf16[round] = 1e-9 * per_second(kvl_peak_bf16(MACHINE_FMA), t);
    if (!blas) return;
    blas->set_threads(threads);
    t = kvl_now_ns();
    bench_sgemm(blas, GEMM_M, GEMM_N, GEMM_K, p->a, p->w, p->c);
    p->sgemm[round] = 1e-9 * per_second(2.0 * GEMM_M * GEMM_N * GEMM_K, t);
}

static int peaks_emit(struct bench *b, struct peaks *p, bool blas, int32_t threads)
{
    int32_t n = b->config.rounds;
    struct bench_line line = { .part = "machine", .threads = threads, .depth = -1 };
    if (blas) {
        line.what = "OpenBLAS sgemm";
        line.unit = "GFLOP/s";
        line.against = "FMA peak";
        line.ratio = bench_ratio(p->sgemm, p->fma, n);
        line.value = bench_spread(p->sgemm, n);
        KVL_TRY(bench_emit(b, &line));
        line.against = NULL;
    }
    const struct {
        const char *what, *unit;
        double *v;
    } row[] = { { "stream read", "GB/s", p->stream },
                { "FMA peak", "GFLOP/s", p->fma },
                { "bf16 dot peak", "GFLOP/s", p->bf16 } };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        line.what = row[i].what;
        line.unit = row[i].unit;
        line.value = bench_spread(row[i].v, n);
        if (line.value.mid > 0) KVL_TRY(bench_emit(b, &line));
    }
    return KVL_OK;
}

static int peaks_measure(struct bench *b, struct peaks *p)
{
    const struct bench_blas *blas = bench_blas();
    size_t n_a = (size_t)GEMM_M * GEMM_K, n_w = (size_t)GEMM_N * GEMM_K;
    p->a = kvl_alloc(n_a, sizeof *p->a);
    p->w = kvl_alloc(n_w, sizeof *p->w);
    p->c = kvl_alloc((size_t)GEMM_M * GEMM_N, sizeof *p->c);
    if (!p->a || !p->w || !p->c) return kvl_fail(b->err, KVL_ENOMEM, "no memory for a product");
    for (size_t i = 0; i < n_a; i++) p->a[i] = (float)(i % 17) * 0.01f;
    for (size_t i = 0; i < n_w; i++) p->w[i] = (float)(i % 13) * 0.01f;
    for (int32_t t = 0; t < b->config.threads.n; t++) {
        int32_t threads = b->config.threads.v[t];
        peaks_round(b, p, blas, threads, 0); /* warm-up */
        for (int32_t r = 0; r < b->config.rounds; r++) {
            peaks_round(b, p, blas, threads, r);
            KVL_TRY(bench_stopped(b));
        }
        if (b->config.parts & BENCH_MACHINE) KVL_TRY(peaks_emit(b, p, blas != NULL, threads));
    }
    return KVL_OK;
}

int bench_machine(struct bench *b)
{
    KVL_TRY(stream_open(b));
    if (!(b->config.parts & BENCH_MACHINE)) return KVL_OK;
    struct peaks p = { .a = NULL };
    if (!bench_blas())
        KVL_TRY(bench_skip(b, "OpenBLAS sgemm: libopenblas.so.0 is not there (libopenblas-dev)"));
    int rc = peaks_measure(b, &p);
    kvl_free(p.a);
    kvl_free(p.w);
    kvl_free(p.c);
    return rc;
}
