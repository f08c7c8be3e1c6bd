/* keydiff - keeps the tokens whose keys differ most from the others.
 *
 * Park et al.: KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in
 * Resource-Constrained Environments, 2025 (arXiv 2504.15364), section 3.  Per layer and kv head, over the
 * keys that a cache holds (after RoPE):
 *     anchor = mean of k_i / |k_i|        score_j = -cos(k_j, anchor)
 * and the best stay (ties: the lower position).  No queries, no attention weights.
 *
 * The paper processes a prompt in blocks under a bounded cache: with block=128 the first B - 1 tokens are
 * taken, and then for each block that follows the cache and the block are judged together, by an anchor
 * of their own, and cut to B - 1 again.  What was dropped once never competes later.  block=0 judges all
 * tokens together, once (kvpress' KeyDiffPress; its BlockPress is the other).  The two keep different
 * tokens.  recent: the newest tokens of every round stay, the paper's sliding-window variant; 0 is its
 * main form, which protects nothing.
 *
 * A wrapper that lets a lane keep more than B - 1 finds dropped tokens ordered by how long they lasted,
 * then by their last score.
 * Budget B: B - 1 tokens of the context and the current one; tokens that come later stay.
 */
#include "kvl/policy.h"

#include <string.h>

/* More than any two scores differ: what a round drops ranks below what it keeps. */
#define KEYDIFF_ROUND 4.0f

struct keydiff_opts {
    int32_t block, recent;
};

static const struct kvl_opt keydiff_options[] = {
    KVL_ROW_INT(keydiff_opts, block, "128", 0, 1 << 20,
                "tokens that come between two cuts (paper: 128); 0 = one cut of the whole context "
                "(kvpress)"),
    KVL_ROW_INT(
        keydiff_opts, recent, "0", 0, 1 << 20,
        "newest tokens that every cut keeps (paper: 0; more in its sliding-window variant)"),
    { 0 },
};

static int32_t keydiff_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct keydiff_opts *o = opts;
    (void)shape;
    return o->recent + 2;
}

/* What a round looks at. */
struct keydiff_cache {
    float *k;     /* [n][head_dim] */
    float *score; /* [n] */
    int32_t *pos; /* [n] ascending */
    int32_t *best;
    int32_t n, keep;
};

/* Section 3, KeyDiffPress.score(): minus the cosine with the anchor. */
static int keydiff_judge(const struct kvl_pctx *ctx, const float *k, int32_t n, float *score)
{
    KVL_TRY(ctx->ops->mean_cosine(
        &(struct kvl_mean_cosine_args){ .y = score, .x = k, .n = n, .dim = ctx->shape->head_dim }));
    for (int32_t i = 0; i < n; i++) score[i] = -score[i];
    return KVL_OK;
}

/* Judges the cache and cuts it; `out` [context] gets the scores of this round, those of what it drops
 * lowered by `below`. */
static int keydiff_round(const struct kvl_pctx *ctx, struct keydiff_cache *c, float below,
                         float *out)
{
    const struct keydiff_opts *o = ctx->opts;
    size_t dim = (size_t)ctx->shape->head_dim;
    int32_t n_old = c->n - o->recent, k = c->keep - o->recent;
    KVL_TRY(keydiff_judge(ctx, c->k, c->n, c->score));
    for (int32_t i = 0; i < c->n; i++) out[c->pos[i]] = c->score[i] - below;
    KVL_TRY(kvl_topk(ctx, c->score, 1, n_old, k, c->best));
    for (int32_t i = 0; i < o->recent; i++) c->best[k + i] = n_old + i;
    for (int32_t i = 0; i < c->keep; i++) {
        int32_t from = c->best[i];
        out[c->pos[from]] = c->score[from];
        c->pos[i] = c->pos[from];
        memmove(c->k + (size_t)i * dim, c->k + (size_t)from * dim, dim * sizeof *c->k);
    }
    c->n = c->keep;
    return KVL_OK;
}

static int keydiff_memory(const struct kvl_pctx *ctx, int32_t n, struct keydiff_cache *c)
{
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * (size_t)ctx->shape->head_dim, &c->k));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &c->score));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &c->pos));
    return kvl_scratch_get(ctx, (size_t)n, &c->best);
}

/* The paper's prefill, BlockPress: the first keep tokens, then block after block. */
static int keydiff_blocks(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                          struct keydiff_cache *c, int32_t n, const int32_t *pos, float *out)
{
    const struct keydiff_opts *o = ctx->opts;
    size_t dim = (size_t)ctx->shape->head_dim;
    int32_t n_rounds = (n - c->keep + o->block - 1) / o->block, at = 0;
    c->n = 0;
    for (int32_t round = 0; round < n_rounds; round++) {
        int32_t more = KVL_MIN(round == 0 ? c->keep + o->block : o->block, n - at);
        KVL_TRY(
            kvl_read_keys(ctx, layer, kv_head, pos + at, more, false, c->k + (size_t)c->n * dim));
        memcpy(c->pos + c->n, pos + at, (size_t)more * sizeof *pos);
        c->n += more;
        at += more;
        KVL_TRY(keydiff_round(ctx, c, KEYDIFF_ROUND * (float)(n_rounds - round), out));
    }
    return KVL_OK;
}

static int keydiff_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct keydiff_opts *o = ctx->opts;
    struct keydiff_cache c = { .keep = ctx->budget_tok - 1 };
    const int32_t *pos;
    int32_t n, seen = scores->n_tok;
    scores->keep_tok = c.keep;
    scores->protect_last = o->recent;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    if (o->block > 0) seen = (int32_t)KVL_MIN((int64_t)seen, (int64_t)c.keep + o->block);
    KVL_TRY(keydiff_memory(ctx, seen, &c));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        float *score = scores->score + (size_t)h * (size_t)scores->n_tok;
        KVL_TRY(kvl_live(ctx, layer, h, &pos, &n));
        if (o->block > 0) {
            KVL_TRY(keydiff_blocks(ctx, layer, h, &c, n, pos, score));
            continue;
        }
        KVL_TRY(kvl_read_keys(ctx, layer, h, pos, n, false, c.k));
        KVL_TRY(keydiff_judge(ctx, c.k, n, score));
    }
    return KVL_OK;
}

static const struct kvl_policy keydiff = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "keydiff",
    .title = "KeyDiff",
    .paper = "Park et al., 2025, arXiv 2504.15364",
    .help = "keeps the tokens whose keys differ most from the mean direction, evicts the rest once",
    .follows =
        "The paper: minus the cosine to the mean of the unit keys after RoPE, per kv head, in "
        "blocks of 128 with an anchor of their own. block=0 judges the whole context at once, as "
        "kvpress' KeyDiffPress does; recent is the sliding-window variant.",
    .deviations =
        "Keys come from one dense prefill, as in kvpress, where the paper's come from blocks that "
        "saw the cut cache; tokens that come later stay. Left out: the anchor of pairwise "
        "similarities, the paper's slow form.",
    .cost =
        "Once, when the context is complete, 3 d products for B + block keys and a top-k of them, "
        "n / block times per kv head (block=0: for n keys, once). Nothing while decoding; no "
        "memory after that.",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = keydiff_options,
    .opts_size = sizeof(struct keydiff_opts),
    .min_budget = keydiff_min_budget,
    .plan = kvl_plan_needs_budget,
    .score = keydiff_score,
};

KVL_POLICY_EXPORT(keydiff)
