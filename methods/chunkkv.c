/* chunkkv - keeps whole chunks of the context, the same ones for all heads; another policy scores.
 *
 * Liu et al.: ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM Inference,
 * 2025 (arXiv 2502.00299), Algorithm 1.  Per layer:
 *   1. the inner policy's scores, summed over the heads
 *   2. their mean over every chunk of 20 tokens
 *   3. the best chunks stay whole, for all heads, and what the inner policy protects (SnapKV's window)
 * So the tokens of a phrase stay or go together, and blocks of the store with them.
 *
 * protected: what becomes of the tokens that the inner policy protects
 *   beside   they stay, and chunks begin with the first token behind those of the beginning.  Ours, and the
 *            default.  Budget B: B - 1 tokens of the context, of which b are not protected, and the current
 *            one: floor(b / chunk) chunks, at least one, of which b tokens stay where b is less.  So up to
 *            chunk - 1 tokens fewer than the budget are kept
 *   scored   kvpress' ChunkKVPress over its SnapKVPress and ExpectedAttentionPress: they score one above the
 *            best of the layer, over all heads (from 0.5.4 on; before, the best), and go with their chunk; SnapKV's
 *            scores are means over its window there and sums here, where one is the window's size.  Chunks begin with the first token, and of all of them floor(number (B - 1) / n) stay, at least
 *            one: up to chunk tokens more or fewer than the budget.  A context shorter than a chunk is the
 *            inner policy's
 * The last chunk may be shorter and counts as one.  Ties: the earlier chunk.
 */
#include "kvl/policy.h"
#include "parts/protected.h"

#include <math.h>

struct chunkkv_opts {
    int32_t chunk, protected;
};

enum { CHUNKKV_BESIDE = 0, CHUNKKV_SCORED };
static const char *const chunkkv_protected[] = { "beside", "scored", NULL };

static const struct kvl_opt chunkkv_options[] = {
    KVL_ROW_INT(chunkkv_opts, chunk, "20", 1, 4096,
                "tokens that stay or go together (kvpress: 20)"),
    KVL_ROW_ENUM(chunkkv_opts, protected, "beside", chunkkv_protected,
                 "tokens that the inner policy protects: stay beside the chunks (paper), or score "
                 "above the best and go with their chunk (kvpress)"),
    { 0 },
};

/* Protected tokens score above the best of any head, and are protected no more. */
static void chunkkv_unprotect(int32_t n_heads, struct kvl_scores *scores)
{
    size_t n = (size_t)scores->n_tok, first = (size_t)scores->protect_first;
    size_t last = n - (size_t)scores->protect_last;
    float above = kvl_protected_score(n_heads, scores);
    for (float *s = scores->score; s < scores->score + (size_t)n_heads * n; s += n)
        for (size_t t = 0; t < n; t++)
            if (t < first || t >= last) s[t] = above;
    scores->protect_first = scores->protect_last = 0;
}

/* ChunkKVPress.compress(): chunks that kvpress keeps at the ratio 1 - keep_tok / n_tok, to the double. */
static int32_t chunkkv_part(const struct kvl_scores *scores, int32_t chunk)
{
    double ratio = 1 - (double)scores->keep_tok / scores->n_tok;
    return (int32_t)((scores->n_tok + chunk - 1) / chunk * (1 - ratio));
}

/* Algorithm 1: scores (step 1), their means over chunks (2), the best chunks (3). */
static int chunkkv_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct chunkkv_opts *o = ctx->opts;
    int32_t n_best = 0;
    bool evicts;
    KVL_TRY(kvl_inner_even_score(ctx, layer, scores, &evicts));
    if (!evicts) return KVL_OK;
    bool scored = o->protected == CHUNKKV_SCORED;
    if (scored && scores->n_tok < o->chunk) return KVL_OK;
    if (scored) chunkkv_unprotect(ctx->shape->n_kv_heads, scores);
    int32_t guarded = scores->protect_first + scores->protect_last;
    int32_t b = scores->keep_tok - guarded;
    if (b <= 0) return KVL_OK;
    int rc = ctx->ops->chunk_mean(&(struct kvl_chunk_mean_args){
        .x = scores->score + scores->protect_first,
        .stride = (size_t)scores->n_tok,
        .n_rows = ctx->shape->n_kv_heads,
        .n = scores->n_tok - guarded,
        .chunk = o->chunk,
        .k = KVL_MAX(1, scored ? chunkkv_part(scores, o->chunk) : b / o->chunk),
        .n_best = &n_best,
    });
    if (rc == KVL_ENUMERIC) return kvl_fail(ctx->err, KVL_EPOLICY, "a score is not a number (NaN)");
    scores->keep_tok = scored ? n_best : guarded + KVL_MIN(n_best, b);
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
        "the paper's Algorithm 1. protected=scored treats the window as kvpress does: scored one "
        "above the best (of means over the window, so its size above these sums), it goes with its "
        "chunks. Any policy that scores tokens once may be wrapped.",
    .deviations =
        "The number of chunks follows from the budget, of which up to chunk - 1 tokens stay unused "
        "(protected=scored: kvpress' part of all chunks, from the ratio that the budget is, up to "
        "a chunk more or fewer than the budget). Left out: reuse of indices by neighbouring "
        "layers.",
    .cost =
        "Once that of the inner policy, and a pass over the K n scores of a layer. Nothing while "
        "decoding; no memory after that.",
    .inner = "snapkv",
    .version = 2,
    .caps = KVL_CAP_EVICTS,
    .opts = chunkkv_options,
    .opts_size = sizeof(struct chunkkv_opts),
    .score = chunkkv_score,
};

KVL_POLICY_EXPORT(chunkkv)
