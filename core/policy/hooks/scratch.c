/* Memory of a hook, which is given back when it returns. */
#include "policy_impl.h"

/* One more item than was asked for: n = 0 gets an address, too. The arena keeps its size over hooks, so that
 * decoding allocates nothing. */
int kvl_scratch_items(const struct kvl_pctx *ctx, size_t n, size_t item, void **out)
{
    bool fits = n <= SIZE_MAX / 8;
    void *p = fits ? kvl_arena_get(&ctx->host->session->engine->scratch, n + 1, item) : NULL;
    if (!p)
        return kvl_fail(ctx->err, KVL_ENOMEM, "out of memory for scratch: %zu x %zu bytes", n,
                        item);
    *out = p;
    return KVL_OK;
}

int kvl_scratch_f32(const struct kvl_pctx *ctx, size_t n, float **out)
{
    void *p;
    KVL_TRY(kvl_scratch_items(ctx, n, sizeof **out, &p));
    *out = p;
    return KVL_OK;
}

int kvl_scratch_f64(const struct kvl_pctx *ctx, size_t n, double **out)
{
    void *p;
    KVL_TRY(kvl_scratch_items(ctx, n, sizeof **out, &p));
    *out = p;
    return KVL_OK;
}

int kvl_scratch_i32(const struct kvl_pctx *ctx, size_t n, int32_t **out)
{
    void *p;
    KVL_TRY(kvl_scratch_items(ctx, n, sizeof **out, &p));
    *out = p;
    return KVL_OK;
}

int kvl_scratch_u8(const struct kvl_pctx *ctx, size_t n, uint8_t **out)
{
    void *p;
    KVL_TRY(kvl_scratch_items(ctx, n, sizeof **out, &p));
    *out = p;
    return KVL_OK;
}
