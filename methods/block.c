/* block - another policy judges the context block by block, as under a bounded cache.
 *
 * NVIDIA: kvpress, BlockPress, 2025, the prefill of KeyDiff (arXiv 2504.15364, section 3) for any scorer.  Per layer, with C
 * tokens of each lane to keep:
 *   1. the first C tokens of the context are taken
 *   2. for every block of `size` that follows, the inner policy scores the cache and the block together, and the C best
 *      of each lane stay
 * A token that was dropped never competes later.
 * Budget B: C = B - 1 tokens of the context and the current one; tokens that come later stay.
 */
#include "kvl/policy.h"
#include "parts/asked_lists.h"

#include <string.h>

struct block_opts {
    int32_t size;
};

static const struct kvl_opt block_options[] = {
    KVL_ROW_INT(block_opts, size, "128", 1, 1 << 20, "tokens of a block (kvpress: 128)"),
    { 0 },
};

/* BlockPress.compress(): the cache pos [n_kv_heads][keep] and the next `more` tokens, from `at` on, judged together. */
static int block_round(const struct kvl_pctx *ctx, int32_t layer, int32_t *pos, int32_t keep,
                       int32_t at, int32_t more)
{
    int32_t n_kv = ctx->shape->n_kv_heads, n = keep + more, *all, *best;
    struct kvl_scores scores;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_kv * (size_t)n, &all));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_kv * (size_t)keep, &best));
    for (int32_t h = 0; h < n_kv; h++) {
        memcpy(all + h * n, pos + h * keep, (size_t)keep * sizeof *pos);
        for (int32_t i = 0; i < more; i++) all[h * n + keep + i] = at + i;
    }
    KVL_TRY(kvl_inner_score_tokens(
        ctx, layer, &(struct kvl_asked){ .pos = all, .n = n, .keep = keep }, &scores));
    kvl_scores_protect(ctx, &scores);
    KVL_TRY(kvl_topk(ctx, scores.score, n_kv, n, keep, best));
    for (int32_t h = 0; h < n_kv; h++)
        for (int32_t i = 0; i < keep; i++) pos[h * keep + i] = all[h * n + best[h * keep + i]];
    return KVL_OK;
}

static int block_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct block_opts *o = ctx->opts;
    int32_t n_kv = ctx->shape->n_kv_heads, n = scores->n_tok, keep = ctx->budget_tok - 1, *pos;
    scores->keep_tok = keep;
    if (n <= keep) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_kv * (size_t)keep, &pos));
    for (int32_t h = 0; h < n_kv; h++)
        for (int32_t i = 0; i < keep; i++) pos[h * keep + i] = i;
    for (int32_t at = keep; at < n; at += o->size)
        KVL_TRY(block_round(ctx, layer, pos, keep, at, KVL_MIN(o->size, n - at)));
    for (int32_t h = 0; h < n_kv; h++)
        for (int32_t i = 0; i < keep; i++)
            scores->score[(size_t)h * (size_t)n + (size_t)pos[h * keep + i]] = 1;
    return KVL_OK;
}

static const struct kvl_policy block = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "block",
    .title = "Block-wise eviction",
    .paper = "NVIDIA, kvpress, BlockPress, 2025",
    .help = "judges the context block by block under a bounded cache, by scores of another policy",
    .follows =
        "kvpress' BlockPress: the first tokens that the budget has room for, then cache and block "
        "of 128 judged together, again and again. Any policy that scores by keys and values alone "
        "may be wrapped; block(keydiff:block=0) is keydiff.",
    .deviations =
        "Policies that look at queries are refused, where kvpress hands them states that do not "
        "belong to their tokens. Keys come from one dense prefill, as there.",
    .cost =
        "Once that of the inner policy for B + size tokens, n / size times, and as many top-k of "
        "them per kv head. Nothing while decoding; no memory after that.",
    .inner = "keydiff:block=0",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_ASKS,
    .opts = block_options,
    .opts_size = sizeof(struct block_opts),
    .score = block_score,
};

KVL_POLICY_EXPORT(block)
