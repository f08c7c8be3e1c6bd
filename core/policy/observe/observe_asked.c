/* What the queries that a wrapper gave see of the tokens that it asks about.  Few queries and one layer at a time:
 * products by ops->gemm, the rest on the host, in hooks that the engine waits before. */
#include "policy_impl.h"

#include <math.h>
#include <string.h>

static int asked_check(const struct kvl_pctx *ctx, int32_t n_queries)
{
    const struct kvl_asked *a = ctx->host->asked;
    if (n_queries >= 1 && n_queries <= a->n_queries) return KVL_OK;
    return kvl_fail(ctx->err, KVL_EPOLICY,
                    "the last %d queries, of which %d were kept: want 1 to as many", n_queries,
                    a->n_queries);
}

/* Queries `first` and up of the query heads of a kv head: out [n][group][head_dim]. */
static void asked_queries(const struct kvl_pctx *ctx, int32_t kv_head, int32_t first, int32_t n,
                          float *out)
{
    size_t dim = (size_t)ctx->shape->head_dim, row = (size_t)ctx->shape->n_heads * dim;
    size_t part = (size_t)ctx->shape->group * dim;
    const float *q = ctx->host->asked->q + (size_t)first * row + (size_t)kv_head * part;
    for (int32_t i = 0; i < n; i++)
        memcpy(out + (size_t)i * part, q + (size_t)i * row, part * sizeof *q);
}

/* Weights of queries `first` and up of one kv head over its tokens: p [n_queries][group][n]. A
 * query sees no token after it. */
static int asked_weights(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, int32_t first,
                         float *p)
{
    const struct kvl_asked *a = ctx->host->asked;
    int32_t group = ctx->shape->group, n_q = a->n_queries - first, n = a->n;
    size_t dim = (size_t)ctx->shape->head_dim, rows = (size_t)n_q * (size_t)group;
    const int32_t *pos = a->pos + (size_t)kv_head * (size_t)n;
    float *key, *q;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * dim, &key));
    KVL_TRY(kvl_scratch_get(ctx, rows * dim, &q));
    KVL_TRY(kvl_read_keys(ctx, layer, kv_head, pos, n, false, key));
    asked_queries(ctx, kv_head, first, n_q, q);
    KVL_TRY(kvl_product(ctx, q, (int32_t)rows, key, n, (int32_t)dim, p));
    for (size_t i = 0; i < rows * (size_t)n; i++) p[i] *= ctx->shape->scale;
    KVL_TRY(kvl_cap(ctx, p, rows * (size_t)n));
    /* From the newest token down: positions ascend, so the first that a query sees ends its
     * loop. */
    for (size_t r = 0; r < rows; r++)
        for (int32_t t = n; t-- > 0 && pos[t] > a->q_pos[first + (int32_t)(r / (size_t)group)];)
            p[r * (size_t)n + (size_t)t] = -INFINITY;
    return kvl_softmax(ctx, p, (int32_t)rows, n);
}

int kvl_asked_mass(const struct kvl_pctx *ctx, int32_t layer, int32_t window, const float **mass,
                   int32_t *n_tok)
{
    const struct kvl_asked *a = ctx->host->asked;
    size_t n = (size_t)a->n, group = (size_t)ctx->shape->group;
    float *sum, *p;
    KVL_TRY(asked_check(ctx, window));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_heads * n, &sum));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)window * group * n, &p));
    /* Scratch is not cleared. */
    memset(sum, 0, (size_t)ctx->shape->n_heads * n * sizeof *sum);
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        float *to = sum + (size_t)h * group * n;
        KVL_TRY(asked_weights(ctx, layer, h, a->n_queries - window, p));
        for (size_t w = 0; w < (size_t)window; w++)
            for (size_t i = 0; i < group * n; i++) to[i] += p[w * group * n + i];
    }
    *mass = sum;
    *n_tok = a->n;
    return KVL_OK;
}

/* One query alone, though the products are of all after it as well: it is asked for the newest. */
int kvl_asked_probs(const struct kvl_pctx *ctx, int32_t layer, int32_t back, float *probs,
                    int32_t n_tok)
{
    const struct kvl_asked *a = ctx->host->asked;
    size_t part = (size_t)ctx->shape->group * (size_t)a->n;
    float *p;
    KVL_TRY(asked_check(ctx, back + 1));
    if (n_tok != a->n)
        return kvl_fail(ctx->err, KVL_EPOLICY, "room for the weights of %d tokens, want %d", n_tok,
                        a->n);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(back + 1) * part, &p));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        KVL_TRY(asked_weights(ctx, layer, h, a->n_queries - 1 - back, p));
        memcpy(probs + (size_t)h * part, p, part * sizeof *p);
    }
    return KVL_OK;
}

int kvl_asked_query(const struct kvl_pctx *ctx, int32_t back, float *q)
{
    const struct kvl_asked *a = ctx->host->asked;
    size_t row = (size_t)ctx->shape->n_heads * (size_t)ctx->shape->head_dim;
    KVL_TRY(asked_check(ctx, back + 1));
    memcpy(q, a->q + (size_t)(a->n_queries - 1 - back) * row, row * sizeof *q);
    return KVL_OK;
}

/* In double, as those of the context; here all queries are at hand, so the mean is known before the squares are summed
 * and nothing cancels. */
static void asked_head_moments(const float *q, int32_t n_q, size_t row, size_t dim, float *mean,
                               float *cov)
{
    double n = n_q;
    for (size_t r = 0; r < dim; r++) {
        double sum = 0;
        for (size_t i = 0; i < (size_t)n_q * row; i += row) sum += (double)q[i + r];
        mean[r] = (float)(sum / n);
    }
    for (size_t r = 0; r < dim; r++)
        for (size_t c = r; c < dim; c++) {
            double sum = 0;
            for (size_t i = 0; i < (size_t)n_q * row; i += row)
                sum += ((double)q[i + r] - (double)mean[r]) * ((double)q[i + c] - (double)mean[c]);
            cov[r * dim + c] = cov[c * dim + r] = (float)(sum / n);
        }
}

int kvl_asked_moments(const struct kvl_pctx *ctx, const float **mean, const float **cov, int32_t *n)
{
    const struct kvl_asked *a = ctx->host->asked;
    size_t dim = (size_t)ctx->shape->head_dim, heads = (size_t)ctx->shape->n_heads;
    float *m, *c;
    if (a->n_raw < 1)
        return kvl_fail(ctx->err, KVL_EPOLICY, "moments of queries, of which none was kept");
    /* Rows of q_raw are numbered as those of q; the older ones are not known before RoPE. */
    const float *q = a->q_raw + (size_t)(a->n_queries - a->n_raw) * heads * dim;
    KVL_TRY(kvl_scratch_get(ctx, heads * dim, &m));
    KVL_TRY(kvl_scratch_get(ctx, heads * dim * dim, &c));
    for (size_t h = 0; h < heads; h++)
        asked_head_moments(q + h * dim, a->n_raw, heads * dim, dim, m + h * dim, c + h * dim * dim);
    *mean = m;
    *cov = c;
    *n = a->n_raw;
    return KVL_OK;
}
