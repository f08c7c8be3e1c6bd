/* chunkkv - keeps whole chunks of the context, the same ones for all heads; another policy scores.
 *
 * Liu et al.: ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM Inference,
 * 2025 (arXiv 2502.00299), Algorithm 1.  Per layer:
 *   1. the inner policy's scores, summed over the heads
 *   2. their mean over every chunk of 20 tokens
 *   3. the best chunks stay whole, for all heads, and what the inner policy protects (SnapKV's window)
 * So the tokens of a phrase stay or go together, and blocks of the store with them.
 *
 * Chunks begin with the first token that the inner policy does not protect; the last one may be shorter
 * and counts as one (as in kvpress' ChunkKVPress).  Ties: the earlier chunk.
 * Budget B: B - 1 tokens of the context, of which b are not protected, and the current one: floor(b /
 * chunk) chunks, at least one, of which b tokens stay where b is less.  So up to chunk - 1 tokens fewer
 * than the budget are kept; kvpress keeps a part of the number of chunks, and there the protected tokens
 * are scored like all others, one above the best.
 * Deviations: the paper's reuse of indices by neighbouring layers: no.
 * Cost: that of the inner policy and one pass over the scores of a layer, once.
 */
#include "wrapped.h"

struct chunkkv_opts {
    int32_t chunk;
};

static const struct kvl_opt chunkkv_options[] = {
    { .name = "chunk",
      .type = KVL_OPT_INT,
      .off = offsetof(struct chunkkv_opts, chunk),
      .def = "20",
      .min = 1,
      .max = 4096,
      .help = "tokens that stay or go together (kvpress: 20)" },
    { 0 },
};

static int chunkkv_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct chunkkv_opts *o = ctx->opts;
    int32_t n_best = 0;
    bool evicts;
    KVL_TRY(wrapped_score(ctx, layer, scores, &evicts));
    int32_t guarded = scores->protect_first + scores->protect_last;
    int32_t b = scores->keep_tok - guarded;
    if (!evicts || b <= 0) return KVL_OK;
    int rc = ctx->ops->chunk_mean(&(struct kvl_chunk_mean_args){
        .x = scores->score + scores->protect_first,
        .stride = (size_t)scores->n_tok,
        .n_rows = ctx->shape->n_kv_heads,
        .n = scores->n_tok - guarded,
        .chunk = o->chunk,
        .k = KVL_MAX(1, b / o->chunk),
        .n_best = &n_best,
    });
    if (rc == KVL_ENUMERIC) return kvl_fail(ctx->err, KVL_EPOLICY, "a score is not a number (NaN)");
    scores->keep_tok = guarded + KVL_MIN(n_best, b);
    return rc;
}

static const struct kvl_policy chunkkv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "chunkkv",
    .title = "ChunkKV",
    .paper = "Liu et al., 2025, arXiv 2502.00299",
    .help = "keeps whole chunks of tokens for all heads, by scores that another policy gives",
    .follows =
        "kvpress' ChunkKVPress: scores summed over the heads, their mean over chunks of 20 tokens, "
        "the best chunks for all heads; the window that SnapKV protects stays beside them, as in "
        "the paper's Algorithm 1. Any policy that scores tokens once may be wrapped.",
    .deviations =
        "The number of chunks follows from the budget, of which up to chunk - 1 tokens stay "
        "unused. The paper's reuse of indices by neighbouring layers: no.",
    .cost = "Once that of the inner policy and one pass over the scores; nothing while decoding.",
    .inner = "snapkv",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = chunkkv_options,
    .opts_size = sizeof(struct chunkkv_opts),
    .score = chunkkv_score,
};

KVL_POLICY_EXPORT(chunkkv)
