/* Cyclic Jacobi rotations (Golub, Van Loan: Matrix Computations, section 8.5), in double. */
#include "ref.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { MAX_SWEEPS = 60 };

/* Turns rows and columns p and q of a so that a[p][q] becomes 0; rows of v follow. */
static void jacobi_turn(double *a, double *v, int32_t n, int32_t p, int32_t q)
{
    double apq = a[p * n + q];
    if (apq == 0) return;
    double theta = (a[q * n + q] - a[p * n + p]) / (2 * apq);
    double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
    double c = 1 / sqrt(t * t + 1), s = t * c;
    for (int32_t i = 0; i < n; i++) {
        double x = a[i * n + p], y = a[i * n + q];
        a[i * n + p] = c * x - s * y;
        a[i * n + q] = s * x + c * y;
    }
    for (int32_t i = 0; i < n; i++) {
        double x = a[p * n + i], y = a[q * n + i], e = v[p * n + i], f = v[q * n + i];
        a[p * n + i] = c * x - s * y;
        a[q * n + i] = s * x + c * y;
        v[p * n + i] = c * e - s * f;
        v[q * n + i] = s * e + c * f;
    }
}

static double jacobi_rest(const double *a, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < i; j++) sum += a[i * n + j] * a[i * n + j];
    return sum;
}

/* Row `rank` of the results: eigenvector i, its largest component positive. */
static void jacobi_write(const struct kvl_sym_eig_args *arg, const double *a, const double *v,
                         int32_t i, int32_t rank)
{
    int32_t n = arg->n, at = 0;
    for (int32_t c = 1; c < n; c++)
        if (fabs(v[i * n + c]) > fabs(v[i * n + at])) at = c;
    double sign = v[i * n + at] < 0 ? -1 : 1;
    for (int32_t c = 0; c < n; c++) arg->vec[rank * n + c] = (float)(sign * v[i * n + c]);
    if (arg->val) arg->val[rank] = (float)a[i * n + i];
}

int kvl_ref_sym_eig(const struct kvl_sym_eig_args *arg)
{
    int32_t n = arg->n;
    size_t size = (size_t)n * (size_t)n;
    assert(n >= 1 && n <= KVL_SYM_EIG_MAX);
    double *a = kvl_alloc(2 * size, sizeof *a), *v = a ? a + size : NULL, norm = 0;
    if (!a) return KVL_ENOMEM;
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < n; j++)
            a[i * n + j] = (double)arg->a[KVL_MAX(i, j) * n + KVL_MIN(i, j)];
    for (size_t i = 0; i < size; i++) norm += a[i] * a[i];
    for (int32_t i = 0; i < n; i++) v[i * n + i] = 1;
    for (int32_t sweep = 0; sweep < MAX_SWEEPS && jacobi_rest(a, n) > 1e-30 * norm; sweep++)
        for (int32_t p = 0; p < n; p++)
            for (int32_t q = p + 1; q < n; q++) jacobi_turn(a, v, n, p, q);
    for (int32_t i = 0; i < n; i++) {
        int32_t rank = 0;
        for (int32_t j = 0; j < n; j++)
            rank += a[j * n + j] > a[i * n + i] || (a[j * n + j] == a[i * n + i] && j < i);
        jacobi_write(arg, a, v, i, rank);
    }
    kvl_free(a);
    return isfinite(norm) ? KVL_OK : KVL_ENUMERIC;
}
