/* Keys at low rank: the factors of a layer, and keys made of them. */
#include "lowrank.h"

#include <string.h>

enum { LOWRANK_BATCH = 512 }; /* tokens whose keys are read at a time */

static int32_t lowrank_width(const struct kvl_shape *sh)
{
    return sh->n_kv_heads * sh->head_dim;
}

int kvl_plan_lowrank(struct kvl_plan *plan, int32_t rank, struct kvl_lowrank *out)
{
    int32_t width = lowrank_width(plan->shape);
    if (rank > width)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "rank=%d; the keys of a layer are %d wide, give that or less", rank, width);
    if (width > KVL_SYM_EIG_MAX)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "keys of a layer are %d wide; low rank is made of up to %d", width,
                        KVL_SYM_EIG_MAX);
    out->rank = rank;
    plan->raw_keys = true;
    KVL_TRY(kvl_plan_table(plan, &out->left, .unit = KVL_META_PAGE, .unit_tok = 1,
                           .row_elems = rank, .per_layer = true));
    return kvl_plan_table(plan, &out->right, .unit = KVL_META_LANE, .unit_tok = 1,
                          .row_elems = rank * width, .per_layer = true);
}

/* ---- factors -------------------------------------------------------------------------------------- */

/* A batch of keys before RoPE. */
struct lowrank_batch {
    float *x, *xt, *lane; /* [n][width], [width][n], [n][head_dim] */
};

static int lowrank_open(const struct kvl_pctx *ctx, struct lowrank_batch *b)
{
    size_t batch = LOWRANK_BATCH * (size_t)lowrank_width(ctx->shape);
    KVL_TRY(kvl_scratch_get(ctx, batch, &b->x));
    KVL_TRY(kvl_scratch_get(ctx, batch, &b->xt));
    return kvl_scratch_get(ctx, LOWRANK_BATCH * (size_t)ctx->shape->head_dim, &b->lane);
}

static int lowrank_read(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t n,
                        const struct lowrank_batch *b)
{
    int32_t dim = ctx->shape->head_dim, width = lowrank_width(ctx->shape);
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        KVL_TRY(kvl_read_key_span(ctx, layer, h, first, n, true, b->lane));
        for (int32_t i = 0; i < n; i++)
            for (int32_t c = 0; c < dim; c++) {
                b->x[i * width + h * dim + c] = b->lane[i * dim + c];
                b->xt[(h * dim + c) * n + i] = b->lane[i * dim + c];
            }
    }
    return KVL_OK;
}

/* vec [width][width]: the eigenvectors of K'K, the largest first. */
static int lowrank_vectors(const struct kvl_pctx *ctx, int32_t layer, const struct lowrank_batch *b,
                           float *vec)
{
    int32_t width = lowrank_width(ctx->shape), n;
    size_t size = (size_t)width * (size_t)width;
    float *gram, *part;
    KVL_TRY(kvl_scratch_get(ctx, size, &gram));
    KVL_TRY(kvl_scratch_get(ctx, size, &part));
    memset(gram, 0, size * sizeof *gram);
    for (int32_t at = 0; at < ctx->context_tok; at += n) {
        n = KVL_MIN(LOWRANK_BATCH, ctx->context_tok - at);
        KVL_TRY(lowrank_read(ctx, layer, at, n, b));
        KVL_TRY(kvl_product(ctx, b->xt, width, b->xt, width, n, part));
        KVL_TRY(ctx->ops->add(&(struct kvl_add_args){ .y = gram, .x = part, .n = size }));
    }
    return ctx->ops->sym_eig(&(struct kvl_sym_eig_args){ .vec = vec, .a = gram, .n = width });
}

int kvl_lowrank_fit(const struct kvl_pctx *ctx, const struct kvl_lowrank *k, int32_t layer)
{
    int32_t width = lowrank_width(ctx->shape), n;
    struct kvl_rows left, right;
    struct lowrank_batch b;
    float *vec;
    KVL_TRY(lowrank_open(ctx, &b));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)width * (size_t)width, &vec));
    KVL_TRY(kvl_table_write(ctx, k->left, layer, 0, &left));
    KVL_TRY(kvl_table_write(ctx, k->right, layer, 0, &right));
    KVL_TRY(lowrank_vectors(ctx, layer, &b, vec));
    float *out = kvl_table_row_out(&right, 0, 0); /* B by column: [width][rank] */
    for (int32_t c = 0; c < width; c++)
        for (int32_t i = 0; i < k->rank; i++) out[c * k->rank + i] = vec[i * width + c];
    for (int32_t at = 0; at < ctx->context_tok; at += n) {
        n = KVL_MIN(LOWRANK_BATCH, ctx->context_tok - at);
        KVL_TRY(lowrank_read(ctx, layer, at, n, &b));
        KVL_TRY(kvl_product(ctx, b.x, n, vec, k->rank, width, kvl_table_row_out(&left, 0, at)));
    }
    return KVL_OK;
}

/* ---- keys of them ----------------------------------------------------------------------------------- */

int kvl_lowrank_keys(const struct kvl_pctx *ctx, const struct kvl_lowrank *k, int32_t layer,
                     int32_t kv_head, const int32_t *pos, int32_t n, float *key)
{
    int32_t dim = ctx->shape->head_dim;
    size_t rank = (size_t)k->rank;
    struct kvl_rows left, right;
    float *low;
    if (kv_head < 0 || kv_head >= ctx->shape->n_kv_heads)
        return kvl_fail(ctx->err, KVL_EPOLICY, "keys of kv head %d, want 0 to %d", kv_head,
                        ctx->shape->n_kv_heads - 1);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * rank, &low));
    KVL_TRY(kvl_table_peek(ctx, k->left, layer, ctx->context_tok, &left));
    KVL_TRY(kvl_table_peek(ctx, k->right, layer, 1, &right));
    KVL_TRY(kvl_look(ctx)); /* the host reads positions and rows */
    for (int32_t i = 0; i < n; i++) {
        if (pos[i] < 0 || pos[i] >= ctx->context_tok)
            return kvl_fail(ctx->err, KVL_EPOLICY, "a key of position %d, want 0 to %d", pos[i],
                            ctx->context_tok - 1);
        memcpy(low + (size_t)i * rank, kvl_table_row(&left, 0, pos[i]), rank * sizeof *low);
    }
    const float *b = kvl_table_row(&right, 0, 0);
    KVL_TRY(kvl_product(ctx, low, n, b + (size_t)(kv_head * dim) * rank, dim, k->rank, key));
    for (int32_t i = 0; i < n; i++)
        KVL_TRY(kvl_rotate(ctx, layer, key + i * dim, 1, pos[i], key + i * dim));
    KVL_TRY(kvl_meta_count(ctx, k->left, (int64_t)n * k->rank));
    return kvl_meta_count(ctx, k->right, (int64_t)dim * k->rank);
}
