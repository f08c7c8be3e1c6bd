/* chunk - every chunk of the context keeps the same part, by scores that another policy gives in it alone.
 *
 * NVIDIA: kvpress, ChunkPress, 2024, after FINCH (arXiv 2408.00167).  Per layer:
 *   1. the inner policy scores each chunk of `size` tokens by itself
 *   2. of a chunk of m tokens of n the m (B - 1) / n best of each lane stay, so that what is kept is spread over the text
 * Parts are rounded down, one token at least, and what that leaves of the budget goes to the first chunks, a token each.
 * Budget B: B - 1 tokens of the context and the current one; tokens that come later stay.
 */
#include "kvl/policy.h"
#include "parts/asked_lists.h"

struct chunk_opts {
    int32_t size;
    bool exact;
};

static const struct kvl_opt chunk_options[] = {
    KVL_ROW_INT(chunk_opts, size, "1024", 1, 1 << 20, "tokens of a chunk (kvpress: 1024)"),
    KVL_ROW_BOOL(chunk_opts, exact, "true",
                 "give what rounding leaves of the budget to the first chunks; false: kvpress"),
    { 0 },
};

/* Tokens that a chunk of m keeps; *left of the budget. */
static int32_t chunk_part(const struct chunk_opts *o, int32_t m, int32_t n, int32_t keep,
                          int32_t *left)
{
    double ratio = 1 - (double)keep / n;
    int32_t k = KVL_MAX(1, (int32_t)(m * (1 - ratio)));
    bool more = o->exact && *left > 0 && k < m;
    if (more) --*left;
    return k + more;
}

/* What the parts leave, rounded down. */
static int32_t chunk_left(const struct chunk_opts *o, int32_t n, int32_t keep)
{
    int32_t left = keep, none = 0;
    for (int32_t at = 0; at < n; at += o->size)
        left -= chunk_part(o, KVL_MIN(o->size, n - at), n, keep, &none);
    return left;
}

/* ChunkPress.compress(), steps 1 and 2: the chosen score 1. */
static int chunk_one(const struct kvl_pctx *ctx, int32_t layer, int32_t at, int32_t m, int32_t k,
                     struct kvl_scores *out)
{
    int32_t n_kv = ctx->shape->n_kv_heads, *best;
    struct kvl_asked asked = { .keep = k };
    struct kvl_scores scores;
    KVL_TRY(kvl_ask_live(ctx, layer, at, m, &asked));
    KVL_TRY(kvl_inner_score_tokens(ctx, layer, &asked, &scores));
    kvl_scores_protect(ctx, &scores);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_kv * (size_t)k, &best));
    KVL_TRY(kvl_topk(ctx, scores.score, n_kv, m, k, best));
    for (int32_t h = 0; h < n_kv; h++)
        for (int32_t i = 0; i < k; i++)
            out->score[(size_t)h * (size_t)out->n_tok + (size_t)(at + best[h * k + i])] = 1;
    return KVL_OK;
}

static int chunk_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct chunk_opts *o = ctx->opts;
    int32_t n = scores->n_tok, keep = ctx->budget_tok - 1, sum = 0;
    scores->keep_tok = keep;
    if (n <= keep) return KVL_OK;
    int32_t left = chunk_left(o, n, keep);
    for (int32_t at = 0, m, k; at < n; at += m) {
        m = KVL_MIN(o->size, n - at);
        k = chunk_part(o, m, n, keep, &left);
        sum += k;
        KVL_TRY(chunk_one(ctx, layer, at, m, k, scores));
    }
    scores->keep_tok = o->exact ? KVL_MIN(keep, sum) : sum;
    return KVL_OK;
}

static const struct kvl_policy chunk = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "chunk",
    .title = "Chunk-wise eviction",
    .paper = "NVIDIA, kvpress, ChunkPress, 2024",
    .help = "every chunk of the context keeps the same part, by another policy's scores in it",
    .follows =
        "kvpress' ChunkPress with exact=false: chunks of 1024, each scored by itself, the same "
        "part of each. Any policy that scores by keys and values alone may be wrapped.",
    .deviations =
        "exact=true, the default, gives what rounding leaves of the budget to the first chunks. "
        "Policies that look at queries are refused: of a chunk's queries there are none.",
    .cost =
        "Once that of the inner policy, chunk by chunk, and a top-k of each per kv head. Nothing "
        "while decoding; no memory after that.",
    .inner = "knorm",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_ASKS,
    .opts = chunk_options,
    .opts_size = sizeof(struct chunk_opts),
    .score = chunk_score,
};

KVL_POLICY_EXPORT(chunk)
