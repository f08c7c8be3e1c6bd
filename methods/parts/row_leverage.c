/* Leverage by Cholesky's factor: with A = L L', x' A^-1 x is the square of the length of L^-1 x. */
#include "row_leverage.h"

#include <math.h>
#include <string.h>

enum { LEVERAGE_TRIES = 5 };

/* a [dim][dim], symmetric, to L below its diagonal and on it. */
static int factor(double *a, size_t dim)
{
    for (size_t j = 0; j < dim; j++)
        for (size_t i = j; i < dim; i++) {
            double sum = a[i * dim + j];
            for (size_t k = 0; k < j; k++) sum -= a[i * dim + k] * a[j * dim + k];
            if (i == j && !(sum > 0)) return KVL_ENUMERIC;
            a[i * dim + j] = i == j ? sqrt(sum) : sum / a[j * dim + j];
        }
    return KVL_OK;
}

/* out [dim][dim]: L^-1, zeros above. */
static void invert(const double *l, size_t dim, float *out)
{
    memset(out, 0, dim * dim * sizeof *out);
    for (size_t c = 0; c < dim; c++)
        for (size_t i = c; i < dim; i++) {
            double sum = i == c ? 1 : 0;
            for (size_t k = c; k < i; k++) sum -= l[i * dim + k] * (double)out[k * dim + c];
            out[i * dim + c] = (float)(sum / l[i * dim + i]);
        }
}

/* a: ridge I + the sum of products of n rows, of which `product` is the upper triangle. */
static void matrix(const double *product, size_t dim, double ridge, double *a)
{
    for (size_t r = 0; r < dim; r++)
        for (size_t c = r; c < dim; c++) {
            double x = *product++ + (r == c ? ridge : 0);
            a[r * dim + c] = a[c * dim + r] = x;
        }
}

static int weigh(const struct kvl_pctx *ctx, const float *x, const float *weight, int32_t n,
                 size_t dim, const float **out)
{
    float *to;
    *out = x;
    if (!weight) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * dim, &to));
    for (size_t i = 0; i < (size_t)n * dim; i++) to[i] = x[i] * sqrtf(weight[i / dim]);
    *out = to;
    return KVL_OK;
}

int kvl_leverage(const struct kvl_pctx *ctx, const float *x, const float *weight, int32_t n,
                 int32_t dim, double ridge, float *score)
{
    size_t d = (size_t)dim, half = d * (d + 1) / 2;
    double *sum, *product, *a;
    const float *weighed;
    float *inverse, *y;
    KVL_TRY(kvl_scratch_get(ctx, d, &sum));
    KVL_TRY(kvl_scratch_get(ctx, half, &product));
    KVL_TRY(kvl_scratch_get(ctx, d * d, &a));
    KVL_TRY(kvl_scratch_get(ctx, d * d, &inverse));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * d, &y));
    memset(sum, 0, d * sizeof *sum);
    memset(product, 0, half * sizeof *product);
    KVL_TRY(weigh(ctx, x, weight, n, d, &weighed));
    KVL_TRY(ctx->ops->moments(&(struct kvl_moments_args){
        .sum = sum, .product = product, .x = weighed, .n = n, .n_heads = 1, .dim = dim }));
    matrix(product, d, ridge, a);
    KVL_TRY(factor(a, d));
    invert(a, d, inverse);
    KVL_TRY(kvl_product(ctx, x, n, inverse, dim, dim, y));
    KVL_TRY(ctx->ops->row_norms(
        &(struct kvl_row_norms_args){ .y = score, .x = y, .n = n, .dim = dim, .norm = 2 }));
    for (int32_t i = 0; i < n; i++) score[i] *= score[i];
    return KVL_OK;
}

/* ---- keys --------------------------------------------------------------------------------------------- */

static void centre(float *x, int32_t n, size_t dim)
{
    for (size_t c = 0; c < dim; c++) {
        double sum = 0;
        for (size_t i = 0; i < (size_t)n; i++) sum += (double)x[i * dim + c];
        for (size_t i = 0; i < (size_t)n; i++) x[i * dim + c] -= (float)(sum / n);
    }
}

/* Normal numbers by Box and Muller, divided by the root of their number in a row of the transposed sketch. */
static int draw(const struct kvl_pctx *ctx, uint64_t seed, size_t n, double scale, float *out)
{
    float *u;
    KVL_TRY(kvl_scratch_get(ctx, 2 * n, &u));
    KVL_TRY(
        ctx->ops->random_fill(&(struct kvl_random_fill_args){ .y = u, .n = 2 * n, .seed = seed }));
    for (size_t i = 0; i < n; i++)
        out[i] = (float)(scale * sqrt(-2 * log(1 - (double)u[2 * i])) *
                         cos(2 * 3.14159265358979323846 * (double)u[2 * i + 1]));
    return KVL_OK;
}

/* x [n][dim] to y [n][sketch]; without a sketch y is x. */
static int sketch_of(const struct kvl_pctx *ctx, float *x, int32_t n, int32_t sketch, uint64_t seed,
                     float **y)
{
    size_t dim = (size_t)ctx->shape->head_dim, width = (size_t)sketch;
    float *phi;
    *y = x;
    if (sketch == 0) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, width * dim, &phi));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * width, y));
    KVL_TRY(draw(ctx, seed, width * dim, 1 / sqrt((double)sketch), phi));
    return kvl_product(ctx, x, n, phi, sketch, (int32_t)dim, *y);
}

int kvl_key_leverage(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t n,
                     int32_t sketch, float *score, size_t stride)
{
    int32_t dim = ctx->shape->head_dim, width = sketch > 0 ? sketch : dim;
    uint64_t seed = kvl_seed_mix(kvl_seed_str(0, "leverage"), (uint64_t)layer);
    float *x, *y;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * (size_t)dim, &x));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        int rc = KVL_ENUMERIC;
        KVL_TRY(kvl_read_key_span(ctx, layer, h, first, n, true, x));
        centre(x, n, (size_t)dim);
        KVL_TRY(sketch_of(ctx, x, n, sketch, kvl_seed_mix(seed, (uint64_t)h), &y));
        double ridge = 0.01;
        for (int i = 0; i < LEVERAGE_TRIES && rc == KVL_ENUMERIC; i++, ridge *= 10)
            rc = kvl_leverage(ctx, y, NULL, n, width, ridge, score + (size_t)h * stride);
        if (rc == KVL_ENUMERIC)
            return kvl_fail(ctx->err, KVL_EPOLICY, "keys of layer %d, kv head %d have no leverage",
                            layer, h);
        KVL_TRY(rc);
    }
    return KVL_OK;
}

void kvl_z_scores(float *x, int32_t n_rows, int32_t n, size_t stride)
{
    double sum = 0, squares = 0, all = (double)n_rows * n;
    for (int32_t r = 0; r < n_rows; r++)
        for (int32_t i = 0; i < n; i++) sum += (double)x[(size_t)r * stride + (size_t)i];
    for (int32_t r = 0; r < n_rows; r++)
        for (int32_t i = 0; i < n; i++) {
            double off = (double)x[(size_t)r * stride + (size_t)i] - sum / all;
            squares += off * off;
        }
    double deviation = all > 1 ? sqrt(squares / (all - 1)) : 0;
    for (int32_t r = 0; r < n_rows; r++)
        for (int32_t i = 0; i < n; i++) {
            float *at = &x[(size_t)r * stride + (size_t)i];
            *at = (float)(((double)*at - sum / all) / (deviation > 1e-6 ? deviation : 1e-6));
        }
}
