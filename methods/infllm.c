/* infllm - blocks of far tokens, found by a few representative keys, at one constant distance.
 *
 * Xiao et al.: InfLLM: Training-Free Long-Context Extrapolation for LLMs with an Efficient Context
 * Memory, NeurIPS 2024 (arXiv 2402.04617), section 3, and the official code.  Per layer the past is
 *     [ init: n_init ][ blocks of block_size ][ remainder ][ window: n_local, the current one too ]
 * A token that leaves the window fills init first, then the remainder.  A step that finds block_size
 * tokens in the remainder still reads them there; then they are cut to a block.
 * Representatives: per query head the repr_topk tokens of the block with the highest score; the
 * mean of their keys *before RoPE* is the block's vector r_h(block).
 *     repr_score=mass    official code: probability that a token received while in the window
 *     repr_score=logit   paper: r_m = mean of q_{m+j}.k_m over the queries behind token m; from weights (those
 *                        below e^-87 count as e^-87)
 * Selection, in every step and layer, nothing shared:
 *     score(block) = sum over query heads h of (q_h turned to position n_local - 1) . r_h(block)
 * The topk best blocks, one list for all heads of the layer; all when there are not more.  No
 * 1/sqrt(d), no dense layers.  Attention is one softmax over two parts:
 *     local    original positions, distance 0 .. n_local - 1
 *     far      init, chosen blocks, remainder: each at distance n_local - 1, wherever it is
 * so that n <= n_local is full attention.
 * Block cache: blocks live on the host, max_cached_block of them on the device; hits, misses and bytes are
 * counted, and with offload=true executed.  cache=lru: a block's rank is its last request; lru_s: its rank
 * times score_decay plus the probability that it just received.
 * Prefill.  shared: the context comes from a dense prefill; scores are column sums of it.  own: the context
 * is a stream of steps, of which exc_block_size share one selection: the first selects for them, and blocks
 * cut meanwhile are read until the next selection.  A decoded token selects for itself.
 *
 * Budget B: n_init + n_local + topk block_size + the longest remainder = B; the official sizes are those of
 * B = 6400. */
#include "kvl/policy.h"

#include <float.h>
#include <math.h>

enum { INFLLM_MASS, INFLLM_LOGIT };
enum { INFLLM_LRU, INFLLM_LRU_S };
enum { INFLLM_UNIFIED, INFLLM_ORIGINAL };

struct infllm_opts {
    int32_t n_init, n_local, block_size, topk, repr_topk, repr_score, exc_block_size;
    int32_t max_cached_block, cache, position;
    double score_decay;
    bool offload;
    /* not options: from plan */
    int32_t table;      /* per block and query head: its vector */
    int32_t stream_tok; /* tokens that come as a stream: the context under its own prefill */
};

static const char *const infllm_scores[] = { "mass", "logit", NULL };
static const char *const infllm_caches[] = { "lru", "lru_s", NULL };
static const char *const infllm_positions[] = { "unified", "original", NULL };

static const struct kvl_opt infllm_options[] = {
    KVL_ROW_INT(infllm_opts, n_init, "auto", 0, 1 << 20,
                "first tokens, always read (official: 128); auto = budget / 48, 4 to 128"),
    KVL_ROW_INT(infllm_opts, n_local, "auto", 2, 1 << 20,
                "window, current token included (official: 4096); auto = what the budget leaves"),
    KVL_ROW_INT(
        infllm_opts, block_size, "auto", 1, 4096,
        "tokens per block (official: 128); auto = power of two up to budget / 48, 4 to 128"),
    KVL_ROW_INT(infllm_opts, topk, "auto", 1, 65536,
                "blocks read per step (official: 16); auto = those of a third of the budget"),
    KVL_ROW_INT(infllm_opts, repr_topk, "auto", 1, 4096,
                "representative tokens per block and query head (official: 4); auto = block_size / "
                "4, 1 to 4"),
    KVL_ROW_INT(infllm_opts, exc_block_size, "auto", 1, 65536,
                "steps of its own prefill that share a selection (official: 512); auto = "
                "block_size; 1 with a shared prefill"),
    KVL_ROW_INT(infllm_opts, max_cached_block, "auto", 1, 1 << 20,
                "blocks on the device per layer (official: 32); auto = 2 topk"),
    KVL_ROW_ENUM(
        infllm_opts, repr_score, "mass", infllm_scores,
        "what makes a token representative: attention mass (official), mean logit (paper)"),
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
    int32_t n_blocks;
    int32_t n_chosen, n_seen; /* the selection at hand, and of how many blocks */
    int32_t exc;              /* the run of steps that it serves, + 1 */
};

struct infllm_at {
    struct infllm_layer *l;
    struct kvl_counted_cache *cache;
    int32_t *chosen; /* [topk] blocks, ascending */
    float *
        score; /* [n_heads][ring] of the token at position % ring, in the window or the remainder */
};

/* ---- sizes from the budget ------------------------------------------------------------------ */

static int32_t infllm_clamp(int32_t x, int32_t low, int32_t high)
{
    return KVL_MAX(low, KVL_MIN(x, high));
}

/* What a step reads at most.  The longest remainder is a block that is cut behind the step, and what comes until the
 * next selection. */
static int64_t infllm_attended(const struct infllm_opts *o)
{
    return (int64_t)o->n_init + o->n_local + (o->topk + (int64_t)1) * o->block_size +
           o->exc_block_size - 1;
}

static int32_t infllm_min_budget(const struct kvl_shape *shape, const void *opts)
{
    struct infllm_opts o = *(const struct infllm_opts *)opts;
    (void)shape;
    if (o.n_local != KVL_AUTO && o.topk != KVL_AUTO) return 1;
    if (o.block_size == KVL_AUTO) o.block_size = 4;
    if (o.n_init == KVL_AUTO) o.n_init = 4;
    if (o.n_local == KVL_AUTO) o.n_local = 2;
    if (o.topk == KVL_AUTO) o.topk = 1;
    o.exc_block_size = 1;
    return (int32_t)KVL_MIN(infllm_attended(&o), (int64_t)INT32_MAX);
}

/* block_size with its own prefill, less where the budget is tight; else 1. */
static void infllm_resolve_exc(const struct kvl_plan *plan, bool budgeted)
{
    struct infllm_opts *o = plan->opts, least = *o;
    if (plan->own_prefill && o->exc_block_size != KVL_AUTO) return;
    o->exc_block_size = plan->own_prefill ? o->block_size : 1;
    if (least.topk == KVL_AUTO) least.topk = 1;
    least.exc_block_size = 1;
    int64_t left = plan->budget_tok - infllm_attended(&least);
    if (budgeted && left < o->exc_block_size - 1) o->exc_block_size = (int32_t)KVL_MAX(left, 0) + 1;
}

/* Sizes that are not given; the window last, since it takes what is left. */
static int infllm_resolve(struct kvl_plan *plan)
{
    struct infllm_opts *o = plan->opts;
    int32_t budget = plan->budget_tok;
    bool free_local = o->n_local == KVL_AUTO, free_topk = o->topk == KVL_AUTO;
    if (o->block_size == KVL_AUTO)
        for (o->block_size = 4; o->block_size < 128 && 2 * o->block_size <= budget / 48;)
            o->block_size *= 2;
    if (o->n_init == KVL_AUTO) o->n_init = infllm_clamp(budget / 48, 4, 128);
    if (free_local) o->n_local = 2;
    infllm_resolve_exc(plan, free_local || free_topk);
    if (free_topk) {
        o->topk = 0;
        int64_t room = budget - infllm_attended(o);
        if (free_local) room = KVL_MIN(room, budget / 3);
        o->topk = infllm_clamp((int32_t)KVL_MAX(room, 0) / o->block_size, 1, 65536);
    }
    int64_t left = budget - infllm_attended(o);
    if ((free_local || free_topk) && left < 0)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "budget %d; n_init=%d, n_local=%d, topk=%d, block_size=%d and a remainder "
                        "of %d need %lld more: give a larger budget or smaller blocks",
                        budget, o->n_init, o->n_local, o->topk, o->block_size,
                        o->block_size + o->exc_block_size - 1, (long long)-left);
    if (free_local) o->n_local += (int32_t)KVL_MIN(left, (1 << 20) - 2);
    if (o->repr_topk == KVL_AUTO) o->repr_topk = infllm_clamp(o->block_size / 4, 1, 4);
    if (o->max_cached_block == KVL_AUTO) o->max_cached_block = 2 * o->topk;
    o->stream_tok = plan->own_prefill ? plan->context_tok : 0;
    return KVL_OK;
}

/* ---- plan ---------------------------------------------------------------------------------- */

/* Tokens that pass through the window and the remainder. */
static int32_t infllm_ring(const struct infllm_opts *o)
{
    return o->n_local + o->block_size;
}

static size_t infllm_words(const struct kvl_shape *shape, const struct infllm_opts *o)
{
    return (size_t)o->topk + (size_t)infllm_ring(o) * (size_t)shape->n_heads;
}

/* State: of all layers their numbers, then their block caches, then their arrays. */
static struct infllm_at infllm_at(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct infllm_opts *o = ctx->opts;
    size_t n = (size_t)ctx->shape->n_layers, l = (size_t)layer;
    size_t cache = kvl_counted_bytes(o->max_cached_block);
    struct infllm_layer *all = ctx->state;
    char *caches = (void *)(all + n);
    int32_t *words = (void *)(caches + n * cache);
    words += l * infllm_words(ctx->shape, o);
    return (struct infllm_at){ all + l, (void *)(caches + l * cache), words,
                               (void *)(words + o->topk) };
}

static int infllm_plan(struct kvl_plan *plan)
{
    struct infllm_opts *o = plan->opts;
    const struct kvl_shape *shape = plan->shape;
    bool logit = o->repr_score == INFLLM_LOGIT;
    if (o->n_local == KVL_AUTO || o->topk == KVL_AUTO) KVL_TRY(kvl_plan_needs_budget(plan));
    KVL_TRY(infllm_resolve(plan));
    if (o->repr_topk > o->block_size)
        return kvl_fail(plan->err, KVL_EINVAL, "repr_topk=%d; a block has %d tokens, give no more",
                        o->repr_topk, o->block_size);
    if (o->max_cached_block < o->topk)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "max_cached_block=%d; a step reads topk=%d blocks, give as many or more",
                        o->max_cached_block, o->topk);
    if (o->offload && o->cache != INFLLM_LRU)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "offload=true with cache=lru_s, which is counted only; give cache=lru");
    if (o->offload)
        KVL_TRY(kvl_plan_offload(
            plan, &(struct kvl_offload){ .origin = o->n_init,         /* where blocks begin */
                                         .keep_last = o->n_local + 1, /* they go once cut */
                                         .unit_tok = o->block_size,
                                         .cache_tok = o->max_cached_block * o->block_size }));
    plan->raw_keys = true;
    plan->replay = KVL_REPLAY_NONE; /* prefilled sees the whole context */
    plan->state_bytes = (size_t)shape->n_layers *
                        (sizeof(struct infllm_layer) + kvl_counted_bytes(o->max_cached_block) +
                         infllm_words(shape, o) * sizeof(int32_t));
    if (!plan->own_prefill)
        KVL_TRY(
            kvl_plan_observe(plan, logit ? KVL_OBS_LOGITS : KVL_OBS_COLUMNS, o->n_local - logit));
    return kvl_plan_meta(plan, KVL_META_PAGE, o->block_size, shape->group * shape->head_dim,
                         &o->table);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Of n tokens. */
static int32_t infllm_n_blocks(const struct infllm_opts *o, int32_t n)
{
    return KVL_MAX(0, n - o->n_init - o->n_local) / o->block_size;
}

static int32_t infllm_first(const struct infllm_opts *o, int32_t block)
{
    return o->n_init + block * o->block_size;
}

static float *infllm_token_score(const struct kvl_pctx *ctx, const struct infllm_at *at,
                                 int32_t head, int32_t pos)
{
    int32_t ring = infllm_ring(ctx->opts);
    return at->score + (size_t)head * (size_t)ring + pos % ring;
}

/* Cuts the next n blocks: per query head the mean of the keys of highest score, of query head h and their token i at
 * score [h * stride + i]. */
static int infllm_cut(const struct kvl_pctx *ctx, int32_t layer, int32_t n, const float *score,
                      int32_t stride)
{
    const struct infllm_opts *o = ctx->opts;
    const struct infllm_at at = infllm_at(ctx, layer);
    int32_t block = at.l->n_blocks;
    at.l->n_blocks += n;
    return kvl_table_top_keys(ctx,
                              &(struct kvl_table_top_keys){ .table = o->table,
                                                            .layer = layer,
                                                            .row = block,
                                                            .n = n,
                                                            .first_tok = infllm_first(o, block),
                                                            .unit_tok = o->block_size,
                                                            .k = o->repr_topk,
                                                            .raw = true,
                                                            .score = score,
                                                            .stride = (size_t)stride });
}

/* Blocks of the shared context, from its column sums; tokens that are not in one take theirs on. */
static int infllm_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct infllm_opts *o = ctx->opts;
    const struct infllm_at at = infllm_at(ctx, layer);
    bool logit = o->repr_score == INFLLM_LOGIT;
    const float *sums;
    int32_t n;
    KVL_TRY(kvl_obs_columns(ctx, layer, logit ? KVL_OBS_LOGITS : KVL_OBS_COLUMNS,
                            o->n_local - logit, &sums, &n));
    int32_t n_blocks = infllm_n_blocks(o, n);
    if (n_blocks > 0) KVL_TRY(infllm_cut(ctx, layer, n_blocks, sums + o->n_init, n));
    for (int32_t h = 0; h < ctx->shape->n_heads; h++, sums += n)
        for (int32_t t = infllm_first(o, n_blocks); t < n; t++)
            *infllm_token_score(ctx, &at, h, t) = sums[t];
    return KVL_OK;
}

static int infllm_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                         const float *v)
{
    const struct infllm_at at = infllm_at(ctx, step->layer);
    (void)k;
    (void)v;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++)
        *infllm_token_score(ctx, &at, h, step->pos) = 0.0f;
    return KVL_OK;
}

/* A step is over: the remainder may be a block. */
static int infllm_cut_complete(const struct kvl_pctx *ctx, const struct kvl_step *step)
{
    const struct infllm_opts *o = ctx->opts;
    const struct infllm_at at = infllm_at(ctx, step->layer);
    int32_t size = o->block_size, n = ctx->shape->n_heads * size;
    float *score;
    if (infllm_n_blocks(o, step->pos + 1) == at.l->n_blocks) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &score));
    for (int32_t i = 0; i < n; i++)
        score[i] =
            *infllm_token_score(ctx, &at, i / size, infllm_first(o, at.l->n_blocks) + i % size);
    return infllm_cut(ctx, step->layer, 1, score, size);
}

/* ---- selection ------------------------------------------------------------------------------ */

/* The best blocks: by the sum over query heads of the turned query and the block's vector. */
static int infllm_choose(const struct kvl_pctx *ctx, const struct infllm_at *at,
                         const struct kvl_step *step, const float *q_raw)
{
    const struct infllm_opts *o = ctx->opts;
    int32_t n = at->l->n_blocks, n_heads = ctx->shape->n_heads, n_kv = ctx->shape->n_kv_heads;
    float *q, *part, *score;
    at->l->n_seen = n;
    at->l->n_chosen = KVL_MIN(n, o->topk);
    for (int32_t i = 0; i < at->l->n_chosen; i++) at->chosen[i] = i;
    if (n <= o->topk) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(n_heads * ctx->shape->head_dim), &q));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_kv * (size_t)n, &part));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &score));
    KVL_TRY(kvl_rotate(ctx, step->layer, q_raw, n_heads, o->n_local - 1, q));
    KVL_TRY(kvl_table_scores(ctx, &(struct kvl_table_scores){ .table = o->table,
                                                              .layer = step->layer,
                                                              .n_rows = n,
                                                              .q = q,
                                                              .n_lists = n_kv,
                                                              .score = part }));
    KVL_TRY(kvl_layer_scores(ctx, part, n_kv, n, KVL_REDUCE_SUM, score));
    struct kvl_scored scored = {
        .first_tok = o->n_init, .unit_tok = o->block_size, .n = n, .score = score
    };
    KVL_TRY(kvl_tap_scores(ctx, step, &scored));
    return kvl_topk(ctx, score, 1, n, o->topk, at->chosen);
}

static int infllm_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct infllm_opts *o = ctx->opts;
    const struct infllm_at at = infllm_at(ctx, step->layer);
    int32_t local = step->pos + 1 - o->n_local;
    int32_t exc = step->pos < o->stream_tok ? step->pos / o->exc_block_size + 1 : 0;
    if (local <= 0) return KVL_OK; /* all of it is in the window */
    if (exc == 0 || exc != at.l->exc) {
        KVL_TRY(infllm_choose(ctx, &at, step, q->q_raw));
        KVL_TRY(kvl_counted_request(at.cache, o->max_cached_block, at.chosen, at.l->n_chosen,
                                    o->cache == INFLLM_LRU ? -1.0f : (float)o->score_decay));
        at.l->exc = exc;
    }
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, local, step->pos + 1));
    KVL_TRY(kvl_sel_segment(sel));
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, 0, KVL_MIN(local, o->n_init)));
    for (int32_t i = 0; i < at.l->n_chosen; i++) {
        int32_t first = infllm_first(o, at.chosen[i]);
        KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, first, first + o->block_size));
    }
    int32_t rest = KVL_MIN(local, infllm_first(o, at.l->n_seen));
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, rest, local));
    if (o->position == INFLLM_ORIGINAL) return KVL_OK;
    return kvl_sel_positions(sel, KVL_POS_CONSTANT, o->n_local - 1);
}

/* ---- what a step attended to -------------------------------------------------------------- */

/* Adds n values to the scores of the tokens from `first` on; the ring may end in between. */
static int infllm_add(const struct kvl_pctx *ctx, const struct infllm_at *at, int32_t head,
                      int32_t first, int32_t n, const float *value)
{
    int32_t ring = infllm_ring(ctx->opts), n_end = KVL_MIN(n, ring - first % ring);
    KVL_TRY(ctx->ops->add(&(struct kvl_add_args){
        .y = infllm_token_score(ctx, at, head, first), .x = value, .n = (size_t)n_end }));
    return ctx->ops->add(
        &(struct kvl_add_args){ .y = infllm_token_score(ctx, at, head, first + n_end),
                                .x = value + n_end,
                                .n = (size_t)(n - n_end) });
}

/* Adds to the scores of the window, which comes first in probs. */
static int infllm_add_scores(const struct kvl_pctx *ctx, const struct infllm_at *at, int32_t pos,
                             const float *const *probs, const float *lse)
{
    const struct infllm_opts *o = ctx->opts;
    int32_t local = KVL_MAX(0, pos + 1 - o->n_local), first = KVL_MAX(local, o->n_init);
    for (int32_t h = 0; h < ctx->shape->n_heads && first <= pos; h++) {
        if (o->repr_score == INFLLM_MASS) {
            KVL_TRY(infllm_add(ctx, at, h, first, pos + 1 - first, probs[h] + (first - local)));
            continue;
        }
        for (int32_t t = first; t < pos; t++)
            *infllm_token_score(ctx, at, h, t) +=
                logf(KVL_MAX(probs[h][t - local], FLT_MIN)) + lse[h];
    }
    return KVL_OK;
}

/* cache=lru_s: probability that chosen blocks received, summed over heads; in probs they come after
 * the window and init. */
static void infllm_add_ranks(const struct kvl_pctx *ctx, const struct infllm_at *at,
                             const float *const *probs)
{
    const struct infllm_opts *o = ctx->opts;
    int32_t first = o->n_local + o->n_init, size = o->block_size;
    for (int32_t i = 0; i < at->l->n_chosen; i++, first += size) {
        struct kvl_counted_unit *block = kvl_counted_find(at->cache, at->chosen[i]);
        for (int32_t j = 0; j < ctx->shape->n_heads * size; j++)
            block->rank += probs[j / size][first + j % size];
    }
}

static int infllm_observe(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const float *const *probs, const int32_t *n, const float *lse)
{
    const struct infllm_opts *o = ctx->opts;
    const struct infllm_at at = infllm_at(ctx, step->layer);
    (void)n;
    KVL_TRY(infllm_add_scores(ctx, &at, step->pos, probs, lse));
    if (o->cache == INFLLM_LRU_S) infllm_add_ranks(ctx, &at, probs);
    return infllm_cut_complete(ctx, step);
}

static int infllm_report(struct kvl_pctx *ctx, struct kvl_report *r)
{
    const struct infllm_opts *o = ctx->opts;
    double hits = 0, misses = 0, requests = 0, cached = 0, n_layers = ctx->shape->n_layers;
    double block_bytes = (double)o->block_size * ctx->shape->n_kv_heads * kvl_token_bytes(ctx);
    for (int32_t l = 0; l < ctx->shape->n_layers; l++) {
        const struct kvl_counted_cache *cache = infllm_at(ctx, l).cache;
        hits += (double)cache->n_hits;
        misses += (double)cache->n_misses;
        requests += cache->n_requests;
        cached += cache->n;
    }
    KVL_TRY(kvl_report_num(r, "blocks", infllm_at(ctx, 0).l->n_blocks));
    KVL_TRY(kvl_report_num(r, "cached_blocks", cached / n_layers));
    if (requests * (hits + misses) <= 0) return KVL_OK;
    KVL_TRY(kvl_report_num(r, "cache_hits", hits));
    KVL_TRY(kvl_report_num(r, "cache_misses", misses));
    KVL_TRY(kvl_report_num(r, "cache_hit_share", hits / (hits + misses)));
    return kvl_report_num(r, "cache_load_bytes_per_tok",
                          block_bytes * misses * n_layers / requests);
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
        "one list of blocks per layer, far tokens at the constant distance n_local - 1. Options: "
        "the paper's mean logit (repr_score=logit), far tokens at their own positions "
        "(position=original), other block caches (cache). prefill=own reads the context as a "
        "stream, as published.",
    .deviations =
        "Shared prefill: the context is dense, and scores are its column sums over n_local "
        "queries. Own prefill: the first query of exc_block_size steps selects for them, where the "
        "official code takes the mean of all, later ones included. The block cache is counted, and "
        "executed with offload=true; the mean logit sums the n_local - 1 queries inside the "
        "window. Left out: perhead, the FAISS index.",
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
    .append = infllm_append,
    .prefilled = infllm_prefilled,
    .select = infllm_select,
    .observe = infllm_observe,
    .report = infllm_report,
};

KVL_POLICY_EXPORT(infllm)
