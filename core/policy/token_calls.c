/* What policies with KVL_CAP_TOKENS see of the text: ids, and what kind of token an id is. */
#include "policy_impl.h"

static int tokens_check(const struct kvl_pctx *ctx)
{
    const struct kvl_policy *p = ctx->host->session->planned->policy;
    if (p->caps & KVL_CAP_TOKENS) return KVL_OK;
    return kvl_fail(ctx->err, KVL_EPOLICY, "%s asks for tokens without KVL_CAP_TOKENS", p->name);
}

int kvl_tokens(const struct kvl_pctx *ctx, const int32_t **id, int32_t *n)
{
    const struct kvl_session *s = ctx->host->session;
    KVL_TRY(tokens_check(ctx));
    *id = s->id;
    *n = ctx->host->n_visible;
    return KVL_OK;
}

uint32_t kvl_token_class(const struct kvl_pctx *ctx, int32_t id)
{
    const struct kvl_tokenizer *t = ctx->host->session->engine->model->tokenizer;
    if (tokens_check(ctx) != KVL_OK) return 0;
    return (kvl_tokenizer_special(t, id) ? KVL_TOKEN_SPECIAL : 0u) |
           (kvl_tokenizer_punct(t, id) ? KVL_TOKEN_PUNCT : 0u);
}
