/* openblas.h - OpenBLAS and its LAPACK, looked for when they are first needed: a program that is linked with
 * it starts its threads, one per core, in every command.
 *
 * It works on the calling thread alone: several threads may call it at once, each for a piece of fixed size, so
 * that results do not depend on their number, and processes that fork have no threads of its to lose.
 * Results depend on its version and on the processor.
 *
 * Thread-safe: kvl_openblas no; what it returns yes.
 */
#ifndef KVL_OPENBLAS_H
#define KVL_OPENBLAS_H

#include <stddef.h>

/* As cblas.h has them. */
enum { KVL_BLAS_ROW_MAJOR = 101, KVL_BLAS_NO_TRANS = 111, KVL_BLAS_TRANS = 112 };

struct kvl_openblas {
    /* C [m][n] = alpha A B + beta C, where ta and tb say which of A and B are transposed in memory */
    void (*sgemm)(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                  int ld_a, const float *b, int ld_b, float beta, float *c, int ld_c);
    /* LAPACK's, in Fortran: columns first; the lengths of job and uplo come last */
    void (*dsyevd)(const char *job, const char *uplo, const int *n, double *a, const int *ld_a,
                   double *w, double *work, const int *n_work, int *iwork, const int *n_iwork,
                   int *info, size_t job_len, size_t uplo_len);
    char *(*config)(void); /* "OpenBLAS 0.3.21 ... Haswell ..." */
    void (*set_threads)(int n);
};

/* NULL where there is none: kvl_ops_blas_error says so. */
const struct kvl_openblas *kvl_openblas(void);

#endif
