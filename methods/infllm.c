/* infllm - blocks of far tokens, found by a few representative keys, at one constant distance.
 *
 * Xiao et al.: InfLLM: Training-Free Long-Context Extrapolation for LLMs with an Efficient Context Memory, NeurIPS
 * 2024 (arXiv 2402.04617), section 3; functions of the official context_manager.py.  Per layer the past is
 *     [ init: n_init ][ blocks of block_size ][ remainder ][ window: n_local, the current one too ]
 *   1. append_global: a token that leaves the window fills init first, then the remainder.  A step that finds
 *      block_size tokens in the remainder still reads them there; then they are cut to a block
 *   2. get_block_k: per query head the repr_topk tokens of a block of highest score represent it; the mean of their
 *      keys before RoPE is its vector r_h.  repr_score=mass, the code: probability that a token received while in
 *      the window; =logit, the paper: r_m = mean of q_(m+j).k_m over the queries behind token m
 *   3. calc_block_topk: in every step and layer the topk blocks of largest sum over query heads h of (q_h turned to
 *      position n_local - 1).r_h, one list for all heads; all when there are not more.  No dense layers
 *   4. get_global_hidden_and_mask: one softmax over the window, at its own distances, and init, chosen blocks and
 *      remainder, all of these at distance n_local - 1; so n <= n_local is full attention
 *   5. remove_lru_blocks, update_block_score: max_cached_block blocks lie on the device, others on the host; counted,
 *      with offload=true executed.  A block's rank is its last request, or decays and grows by what it receives
 * With its own prefill the context is a stream of steps, of which exc_block_size share the selection of the first;
 * blocks that are cut meanwhile are read until the next one.  A decoded token selects for itself.
 * Budget B: n_init + n_local + topk block_size + the longest remainder = B; official sizes: B = 6400. */
#include "parts/counted_cache.h"
#include "parts/recent.h"

enum { INFLLM_LOGIT = 1, INFLLM_LRU_S = 1, INFLLM_ORIGINAL = 1 }; /* the second of two words */

struct infllm_opts {
    int32_t n_init, n_local, block_size, topk, repr_topk, repr_score, exc_block_size;
    int32_t max_cached_block, cache, position;
    double score_decay;
    bool offload;
    /* not options: from plan */
    struct kvl_state_part layers, cached;
    struct kvl_recent scores;  /* of tokens in the window or the remainder */
    int32_t table, stream_tok; /* of vectors of blocks; tokens that come as a stream */
};

static const char *const infllm_scores[] = { "mass", "logit", NULL };
static const char *const infllm_caches[] = { "lru", "lru_s", NULL };
static const char *const infllm_positions[] = { "unified", "original", NULL };

static const struct kvl_opt infllm_options[] = {
    KVL_ROW_INT(infllm_opts, n_init, "auto", 0, 1 << 20,
                "first tokens, always read (official: 128); auto = budget / 48, 4 to 128"),
    KVL_ROW_INT(infllm_opts, n_local, "auto", 2, 1 << 20,
                "window, current token included (official: 4096); auto = what the budget leaves"),
    KVL_ROW_INT(infllm_opts, block_size, "auto", 1, 4096,
                "tokens per block (official: 128); auto = power of two to budget / 48, 4 to 128"),
    KVL_ROW_INT(infllm_opts, topk, "auto", 1, 65536,
                "blocks read per step (official: 16); auto = those of a third of the budget"),
    KVL_ROW_INT(infllm_opts, repr_topk, "auto", 1, 4096,
                "tokens that represent a block per head (official: 4); auto = 1 to 4, size / 4"),
    KVL_ROW_INT(infllm_opts, exc_block_size, "auto", 1, 65536,
                "steps that share a selection (official: 512); auto: a block; prefill shared: 1"),
    KVL_ROW_INT(infllm_opts, max_cached_block, "auto", 1, (1 << 19) - 1,
                "blocks on the device per layer (official: 32); auto = 2 topk"),
    KVL_ROW_ENUM(infllm_opts, repr_score, "mass", infllm_scores,
                 "makes a token representative: attention mass (official), mean logit (paper)"),
    KVL_ROW_ENUM(infllm_opts, cache, "lru", infllm_caches,
                 "which cached block goes: least recent, or least decayed attention"),
    KVL_ROW_FLOAT(infllm_opts, score_decay, "0.1", 0, 1,
                  "of cache=lru_s: what is left of a block's rank after a step"),
    KVL_ROW_ENUM(infllm_opts, position, "unified", infllm_positions,
                 "of far tokens: unified = all at distance n_local - 1 (paper), original"),
    KVL_ROW_BOOL(infllm_opts, offload, "false",
                 "the block cache is executed: blocks live on the host (published: always)"),
    { 0 },
};

struct infllm_layer {
    int32_t n_blocks, exc;    /* exc: the run of steps that the selection serves, + 1 */
    int32_t n_seen, n_chosen; /* the selection is of so many blocks */
    int32_t chosen[];         /* [topk], ascending */
};

/* What a step reads at most where a selection serves one step, with the least of what is not given.  The longest
 * remainder is a block, which is cut behind the step. */
static int64_t infllm_attended(const struct infllm_opts *o)
{
    return (int64_t)kvl_opt_given(o->n_init, 4) + kvl_opt_given(o->n_local, 2) +
           (kvl_opt_given(o->topk, 1) + (int64_t)1) * kvl_opt_given(o->block_size, 4);
}

static int32_t infllm_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct infllm_opts *o = opts;
    (void)shape;
    if (o->n_local != KVL_AUTO && o->topk != KVL_AUTO) return 1;
    return (int32_t)KVL_MIN(infllm_attended(o), (int64_t)INT32_MAX);
}

/* Sizes that are not given; the window last, since it takes what is left. */
static int infllm_resolve(struct kvl_plan *plan)
{
    struct infllm_opts *o = plan->opts;
    int32_t budget = plan->budget_tok, part = KVL_MAX(4, KVL_MIN(budget / 48, 128));
    bool free_local = o->n_local == KVL_AUTO, free_topk = o->topk == KVL_AUTO;
    if (o->block_size == KVL_AUTO)
        for (o->block_size = 4; 2 * o->block_size <= part;) o->block_size *= 2;
    if (o->n_init == KVL_AUTO) o->n_init = part;
    if (free_local) o->n_local = 2;
    /* What the least of all leaves, for steps that share a selection first. */
    int64_t left = free_local || free_topk ? budget - infllm_attended(o) : INT32_MAX;
    if (!plan->own_prefill) o->exc_block_size = 1;
    if (o->exc_block_size == KVL_AUTO)
        o->exc_block_size = (int32_t)KVL_MIN(KVL_MAX(left, 0) + 1, o->block_size);
    left -= o->exc_block_size - 1;
    if (free_topk) {
        int64_t room = left + o->block_size; /* one is in `left` */
        if (free_local) room = KVL_MIN(room, budget / 3);
        o->topk = (int32_t)KVL_MAX(1, KVL_MIN(room / o->block_size, 65536));
        left -= (o->topk - (int64_t)1) * o->block_size;
    }
    if (left < 0)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "budget %d; n_init=%d, n_local=%d, topk=%d, block_size=%d and a remainder "
                        "of %d need %lld more: give a larger budget or smaller blocks",
                        budget, o->n_init, o->n_local, o->topk, o->block_size,
                        o->block_size + o->exc_block_size - 1, (long long)-left);
    if (free_local) o->n_local += (int32_t)KVL_MIN(left, (1 << 20) - 2);
    if (o->repr_topk == KVL_AUTO) o->repr_topk = KVL_MAX(1, KVL_MIN(o->block_size / 4, 4));
    if (o->max_cached_block == KVL_AUTO) o->max_cached_block = 2 * o->topk;
    o->stream_tok = plan->own_prefill ? plan->context_tok : 0;
    return KVL_OK;
}

static int infllm_plan(struct kvl_plan *plan)
{
    struct infllm_opts *o = plan->opts;
    if (o->n_local == KVL_AUTO || o->topk == KVL_AUTO) KVL_TRY(kvl_plan_needs_budget(plan));
    KVL_TRY(infllm_resolve(plan));
    if (o->repr_topk > o->block_size)
        return kvl_fail(plan->err, KVL_EINVAL, "repr_topk=%d; a block has %d tokens, give no more",
                        o->repr_topk, o->block_size);
    if (o->max_cached_block < o->topk)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "max_cached_block=%d; a step reads topk=%d blocks, give as many or more",
                        o->max_cached_block, o->topk);
    if (o->offload && o->cache == INFLLM_LRU_S)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "offload=true with cache=lru_s, which is counted only; give cache=lru");
    struct kvl_offload blocks = { .origin = o->n_init,         /* where blocks begin */
                                  .keep_last = o->n_local + 1, /* they go once cut */
                                  .unit_tok = o->block_size,
                                  .cache_tok = o->max_cached_block * o->block_size };
    if (o->offload) KVL_TRY(kvl_plan_offload(plan, &blocks));
    plan->raw_keys = true;
    kvl_plan_state(plan, kvl_counted_bytes(o->max_cached_block), &o->cached);
    kvl_plan_state(plan, sizeof(struct infllm_layer) + (size_t)o->topk * sizeof(int32_t),
                   &o->layers);
    enum kvl_observer what = o->repr_score == INFLLM_LOGIT ? KVL_OBS_LOGITS : KVL_OBS_COLUMNS;
    kvl_plan_recent(plan, what, o->n_local + o->block_size, &o->scores);
    if (!plan->own_prefill) KVL_TRY(kvl_plan_observe(plan, what, o->n_local - o->repr_score));
    return kvl_plan_meta(plan, KVL_META_PAGE, o->block_size,
                         plan->shape->group * plan->shape->head_dim, &o->table);
}

/* 1. append_global(): blocks, of n_tok tokens, and where they begin. */
static int32_t infllm_n_blocks(const struct infllm_opts *o, int32_t n_tok)
{
    return KVL_MAX(0, n_tok - o->n_init - o->n_local) / o->block_size;
}

static int32_t infllm_first(const struct infllm_opts *o, int32_t block)
{
    return o->n_init + block * o->block_size;
}

/* 2. get_block_k(): cuts the next n blocks: per query head the mean of the keys of highest score, of query head h and
 * their token i at score [h * stride + i]. */
static int infllm_cut(const struct kvl_pctx *ctx, int32_t layer, int32_t n, const float *score,
                      int32_t stride)
{
    const struct infllm_opts *o = ctx->opts;
    struct infllm_layer *l = kvl_state_of(ctx, &o->layers, layer);
    struct kvl_table_top_keys top = { .table = o->table, .layer = layer, .row = l->n_blocks };
    top.n = n;
    top.first_tok = infllm_first(o, l->n_blocks);
    top.unit_tok = o->block_size;
    top.k = o->repr_topk;
    top.raw = true;
    top.score = score;
    top.stride = (size_t)stride;
    l->n_blocks += n;
    return kvl_table_top_keys(ctx, &top);
}

/* Blocks of the shared context, from its column sums; tokens that are not in one take theirs on. */
static int infllm_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct infllm_opts *o = ctx->opts;
    const float *sums;
    int32_t n;
    KVL_TRY(kvl_obs_columns(ctx, layer, o->scores.what, o->n_local - o->repr_score, &sums, &n));
    int32_t n_blocks = infllm_n_blocks(o, n);
    if (n_blocks > 0) KVL_TRY(infllm_cut(ctx, layer, n_blocks, sums + o->n_init, n));
    return kvl_recent_begin(ctx, &o->scores, layer, infllm_first(o, n_blocks), sums, n);
}

/* A step is over: the window, which comes first in probs, has new scores, and the remainder may be a block. */
static int infllm_observe(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const float *const *probs, const int32_t *n, const float *lse)
{
    const struct infllm_opts *o = ctx->opts;
    const struct infllm_layer *l = kvl_state_of(ctx, &o->layers, step->layer);
    int32_t size = o->block_size, local = KVL_MAX(0, step->pos + 1 - o->n_local);
    float *score;
    (void)n;
    KVL_TRY(kvl_recent_add(ctx, &o->scores, step, local, probs, lse));
    if (o->cache == INFLLM_LRU_S) /* 5. update_block_score() */
        kvl_counted_add(ctx, kvl_state_of(ctx, &o->cached, step->layer), l->chosen, l->n_chosen,
                        size, probs, o->n_local + o->n_init);
    if (infllm_n_blocks(o, step->pos + 1) == l->n_blocks) return KVL_OK;
    KVL_TRY(
        kvl_recent_read(ctx, &o->scores, step->layer, infllm_first(o, l->n_blocks), size, &score));
    return infllm_cut(ctx, step->layer, 1, score, size);
}

/* 3. calc_block_topk(): the blocks that a step reads. */
static int infllm_choose(const struct kvl_pctx *ctx, const struct kvl_step *step,
                         const float *q_raw, struct infllm_layer *l)
{
    const struct infllm_opts *o = ctx->opts;
    float *q;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(ctx->shape->n_heads * ctx->shape->head_dim), &q));
    KVL_TRY(kvl_rotate(ctx, step->layer, q_raw, ctx->shape->n_heads, o->n_local - 1, q));
    struct kvl_table_best best = {
        .table = o->table, .first_tok = o->n_init, .n = l->n_blocks, .k = o->topk, .q = q
    };
    KVL_TRY(kvl_table_best(ctx, step, &best, l->chosen));
    l->n_seen = l->n_blocks;
    l->n_chosen = KVL_MIN(l->n_seen, o->topk);
    return kvl_counted_request(kvl_state_of(ctx, &o->cached, step->layer), o->max_cached_block,
                               l->chosen, l->n_chosen,
                               o->cache == INFLLM_LRU_S ? (float)o->score_decay : -1.0f);
}

/* 4. get_global_hidden_and_mask(): the window, and what is far. */
static int infllm_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct infllm_opts *o = ctx->opts;
    struct infllm_layer *l = kvl_state_of(ctx, &o->layers, step->layer);
    int32_t local = step->pos + 1 - o->n_local;
    int32_t exc = step->pos < o->stream_tok ? step->pos / o->exc_block_size + 1 : 0;
    if (local <= 0) return KVL_OK; /* all of it is in the window */
    if (exc == 0 || exc != l->exc) KVL_TRY(infllm_choose(ctx, step, q->q_raw, l));
    l->exc = exc;
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, local, step->pos + 1));
    KVL_TRY(kvl_sel_segment(sel));
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, 0, KVL_MIN(local, o->n_init)));
    for (int32_t i = 0; i < l->n_chosen; i++) {
        int32_t first = infllm_first(o, l->chosen[i]);
        KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, first, first + o->block_size));
    }
    int32_t rest = KVL_MIN(local, infllm_first(o, l->n_seen));
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, rest, local));
    if (o->position == INFLLM_ORIGINAL) return KVL_OK;
    return kvl_sel_positions(sel, KVL_POS_CONSTANT, o->n_local - 1);
}

static int infllm_report(struct kvl_pctx *ctx, struct kvl_report *r)
{
    const struct infllm_opts *o = ctx->opts;
    const struct infllm_layer *l = kvl_state_of(ctx, &o->layers, 0);
    KVL_TRY(kvl_report_num(r, "blocks", l->n_blocks));
    return kvl_counted_report(ctx, r, &o->cached, o->block_size);
}

static const struct kvl_policy infllm = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "infllm",
    .title = "InfLLM",
    .paper = "Xiao et al., NeurIPS 2024, arXiv 2402.04617",
    .help = "keeps all; reads first and latest tokens, and far blocks by their representative keys",
    .follows =
        "The official code: representatives by attention mass, one query turned to n_local - 1, "
        "one list of blocks per layer, far tokens at the constant distance n_local - 1; options "
        "for the paper's mean logit and other rules. prefill=own reads the context as a stream.",
    .deviations =
        "Shared prefill: the context is dense, and scores are its column sums over n_local "
        "queries. Own prefill: the first query of exc_block_size steps selects for them, where the "
        "official code takes the mean of all. The block cache is counted, and executed with "
        "offload=true; the mean logit sums the n_local - 1 queries in the window. Without perhead.",
    .cost = "Per step and layer H d floats for each of n / block_size blocks; far keys are rotated "
            "anew, and every block_size tokens one block's keys are read. Once all keys, and the "
            "column sums of the prefill, one set per n_local. Memory: H d floats per block, H per "
            "token of the window, and keys before RoPE, half the cache again.",
    .version = 2,
    .caps = KVL_CAP_SELECTS | KVL_CAP_REPOSITIONS | KVL_CAP_OFFLOADS,
    .prefill = KVL_PREFILL_EITHER,
    .opts = infllm_options,
    .opts_size = sizeof(struct infllm_opts),
    .min_budget = infllm_min_budget,
    .plan = infllm_plan,
    .prefilled = infllm_prefilled,
    .select = infllm_select,
    .observe = infllm_observe,
    .report = infllm_report,
};

KVL_POLICY_EXPORT(infllm)
