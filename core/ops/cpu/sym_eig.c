/* Householder reflections to a tridiagonal matrix, then implicit QL steps whose rotations turn the
 * product of the reflections (Golub, Van Loan: Matrix Computations, sections 8.3.1 and 8.3.3).
 *
 * In double and on one thread: some 6 n^3 multiply-adds in all, a few seconds for n = 1024.  Vectors
 * are rows, so that inner loops run along memory. */
#include "cpu.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

enum { MAX_STEPS = 60 }; /* of QL for one eigenvalue; two or three are usual */

/* T has the diagonal d and e[i] between i and i + 1. */
struct eig {
    double *a; /* [n][n]: the matrix, the reflections, then eigenvectors as rows */
    double *d, *e, *v, *p;
    size_t n;
};

static double eig_dot(const double *x, const double *y, size_t n)
{
    double sum[4] = { 0 };
    size_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (size_t j = 0; j < 4; j++) sum[j] += x[i + j] * y[i + j];
    for (; i < n; i++) sum[0] += x[i] * y[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* v: 1 - v v' leaves only the last of the i elements of a row; 0 when there is nothing to do. */
static void eig_reflector(struct eig *g, size_t i)
{
    const double *row = g->a + i * g->n;
    double rest = eig_dot(row, row, i - 1), last = row[i - 1];
    memset(g->v, 0, i * sizeof *g->v);
    g->e[i - 1] = last;
    if (rest == 0) return;
    double norm = sqrt(rest + last * last), to = last > 0 ? -norm : norm;
    double scale = 1 / sqrt(norm * norm - to * last);
    for (size_t c = 0; c < i; c++) g->v[c] = row[c] * scale;
    g->v[i - 1] = (last - to) * scale;
    g->e[i - 1] = to;
}

/* Reflects the first i rows and columns from both sides. */
static void eig_reflect(struct eig *g, size_t i)
{
    for (size_t r = 0; r < i; r++) g->p[r] = eig_dot(g->a + r * g->n, g->v, i);
    double half = eig_dot(g->p, g->v, i) / 2;
    for (size_t r = 0; r < i; r++) g->p[r] -= half * g->v[r];
    for (size_t r = 0; r < i; r++) {
        double *row = g->a + r * g->n, v = g->v[r], p = g->p[r];
        for (size_t c = 0; c < i; c++) row[c] -= v * g->p[c] + p * g->v[c];
    }
}

/* Row i of `a` keeps the reflector that made it; then their product takes their place, row by row. */
static void eig_tridiagonal(struct eig *g)
{
    size_t n = g->n;
    for (size_t i = n - 1; i > 0; i--) {
        eig_reflector(g, i);
        eig_reflect(g, i);
        memcpy(g->a + i * n, g->v, i * sizeof *g->v);
    }
    for (size_t i = 0; i < n; i++) g->d[i] = g->a[i * n + i];
    for (size_t i = 0; i < n; i++) {
        memcpy(g->v, g->a + i * n, i * sizeof *g->v);
        memset(g->a + i * n, 0, n * sizeof *g->a);
        g->a[i * n + i] = 1;
        for (size_t r = 0; r < i; r++) {
            double *row = g->a + r * n, s = eig_dot(row, g->v, i);
            for (size_t c = 0; c < i; c++) row[c] -= s * g->v[c];
            row[i] = 0;
        }
    }
}

/* Rows i and i + 1 turned. */
static void eig_turn(struct eig *g, size_t i, double c, double s)
{
    double *x = g->a + i * g->n, *y = x + g->n;
    for (size_t k = 0; k < g->n; k++) {
        double t = y[k];
        y[k] = s * x[k] + c * t;
        x[k] = c * x[k] - s * t;
    }
}

/* One QL step with Wilkinson's shift on rows first .. last of T, which e couples. */
static void eig_step(struct eig *g, size_t first, size_t last)
{
    double *d = g->d, *e = g->e, shift = (d[first + 1] - d[first]) / (2 * e[first]);
    double bulge = d[last] - d[first] + e[first] / (shift + copysign(hypot(shift, 1), shift));
    double s = 1, c = 1, moved = 0;
    for (size_t i = last; i-- > first;) {
        double f = s * e[i], b = c * e[i], r = hypot(f, bulge);
        e[i + 1] = r;
        if (r == 0) { /* the chain falls apart here */
            d[i + 1] -= moved;
            e[last] = 0;
            return;
        }
        s = f / r;
        c = bulge / r;
        bulge = d[i + 1] - moved;
        r = (d[i] - bulge) * s + 2 * c * b;
        moved = s * r;
        d[i + 1] = bulge + moved;
        bulge = c * r - b;
        eig_turn(g, i, c, s);
    }
    d[first] -= moved;
    e[first] = bulge;
    e[last] = 0;
}

static int eig_diagonal(struct eig *g)
{
    double norm = 0;
    for (size_t i = 0; i < g->n; i++) norm = fmax(norm, fabs(g->d[i]) + fabs(g->e[i]));
    for (size_t first = 0; first < g->n; first++)
        for (int32_t step = 0;; step++) {
            size_t last = first;
            while (last + 1 < g->n && fabs(g->e[last]) > DBL_EPSILON * norm) last++;
            if (last == first) break;
            if (step == MAX_STEPS) return KVL_ENUMERIC;
            eig_step(g, first, last);
        }
    return KVL_OK;
}

/* Eigenvector i to row `rank`, its largest component positive. */
static void eig_write(const struct kvl_sym_eig_args *arg, const struct eig *g, size_t i,
                      size_t rank)
{
    const double *row = g->a + i * g->n;
    float *out = arg->vec + rank * g->n;
    size_t at = 0;
    for (size_t c = 1; c < g->n; c++)
        if (fabs(row[c]) > fabs(row[at])) at = c;
    double sign = row[at] < 0 ? -1 : 1;
    for (size_t c = 0; c < g->n; c++) out[c] = (float)(sign * row[c]);
    if (arg->val) arg->val[rank] = (float)g->d[i];
}

int kvl_cpu_sym_eig(const struct kvl_sym_eig_args *arg)
{
    assert(arg->n >= 1 && arg->n <= KVL_SYM_EIG_MAX);
    size_t n = (size_t)arg->n;
    double *room = kvl_cpu_scratch((n * n + 4 * n) * sizeof *room), sum = 0;
    if (!room) return KVL_ENOMEM;
    struct eig g = { .a = room, .d = room + n * n, .n = n };
    g.e = g.d + n;
    g.v = g.e + n;
    g.p = g.v + n;
    memset(g.d, 0, 4 * n * sizeof *g.d);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            sum += g.a[i * n + j] = (double)arg->a[KVL_MAX(i, j) * n + KVL_MIN(i, j)];
    if (!isfinite(sum)) return KVL_ENUMERIC;
    eig_tridiagonal(&g);
    KVL_TRY(eig_diagonal(&g));
    for (size_t i = 0; i < n; i++) {
        size_t rank = 0;
        for (size_t j = 0; j < n; j++) rank += g.d[j] > g.d[i] || (g.d[j] == g.d[i] && j < i);
        eig_write(arg, &g, i, rank);
    }
    return KVL_OK;
}
