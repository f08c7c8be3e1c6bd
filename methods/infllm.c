/* infllm - blocks of far tokens, found by a few representative keys, at one constant distance.
 *
 * Xiao et al.: InfLLM: Training-Free Long-Context Extrapolation for LLMs with an Efficient Context
 * Memory, NeurIPS 2024 (arXiv 2402.04617), section 3, and the official code.  Per layer the past is
 *     [ init: n_init ][ blocks of block_size ][ remainder ][ window: n_local, the current one too ]
 * A token that leaves the window fills init first, then the remainder.  A step that finds block_size
 * tokens in the remainder still reads them there; then they are cut to a block: n tokens leave
 * floor((n - n_init - n_local) / block_size) blocks (official sizes, n = 8192: 31) for the next one.
 * Representatives: per query head the repr_topk tokens of the block with the highest score; the
 * mean of their keys *before RoPE* is the block's vector r_h(block).
 *     repr_score=mass    official code: probability that a token received while in the window
 *     repr_score=logit   paper: r_m = mean of q_{m+j}.k_m over the queries behind token m
 * Selection, in every step and layer, nothing shared:
 *     score(block) = sum over query heads h of (q_h turned to position n_local - 1) . r_h(block)
 * The topk best blocks, one list for all heads of the layer; all when there are not more.  No
 * 1/sqrt(d), no dense layers.  Attention is one softmax over two parts:
 *     local    original positions, distance 0 .. n_local - 1
 *     far      init, chosen blocks, remainder: each at distance n_local - 1, wherever it is
 * so that n <= n_local is full attention.  position=original leaves the far part where it was.
 *
 * Block cache: blocks live on the host, max_cached_block of them on the device; hits, misses and bytes are
 * counted, and with offload=true executed (keys before and after RoPE travel).  cache=lru: a block's rank is
 * its last request; lru_s: its rank times score_decay plus the probability that it just received.  Victims
 * are not in the request; ties to the older block.
 *
 * Prefill.  shared: the context comes from a dense prefill; scores are column sums of it.  own: the context
 * is a stream of steps, as published, of which exc_block_size share one selection: the first selects for
 * them, and blocks cut meanwhile are read until the next selection.  A decoded token selects for itself.
 *
 * Budget B: n_init + n_local + topk block_size + (block_size, the longest remainder) = B; infllm_sizes.h.
 * logit takes logits from weights (those below e^-87 count as e^-87). */
#include "infllm_sizes.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* State of one layer; its arrays lie behind all of them, see infllm_at. */
struct infllm_layer {
    int32_t n_blocks;
    int32_t n_chosen, n_seen; /* the selection at hand, and of how many blocks */
    int32_t exc;              /* the run of steps that it serves; -1 = none */
    int32_t n_cached, clock;
    int64_t n_hits, n_misses;
};

struct infllm_at {
    struct infllm_layer *l;
    int32_t *chosen; /* [topk] blocks, ascending */
    int32_t *cached; /* [max_cached_block] blocks */
    float *rank;     /* [max_cached_block] */
    float *score;    /* [n_heads][ring] of the token at position % ring */
};

/* ---- plan ---------------------------------------------------------------------------------- */

/* Tokens that pass through the window and the remainder. */
static int32_t infllm_ring(const struct infllm_opts *o)
{
    return o->n_local + o->block_size;
}

static size_t infllm_words(const struct kvl_shape *shape, const struct infllm_opts *o)
{
    return (size_t)o->topk + 2 * (size_t)o->max_cached_block +
           (size_t)infllm_ring(o) * (size_t)shape->n_heads;
}

static struct infllm_at infllm_at(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct infllm_opts *o = ctx->opts;
    struct infllm_layer *all = ctx->state;
    int32_t *words = (void *)(all + ctx->shape->n_layers);
    words += (size_t)layer * infllm_words(ctx->shape, o);
    struct infllm_at at = { .l = all + layer, .chosen = words, .cached = words + o->topk };
    at.rank = (void *)(at.cached + o->max_cached_block);
    at.score = at.rank + o->max_cached_block;
    return at;
}

static int infllm_plan(struct kvl_plan *plan)
{
    struct infllm_opts *o = plan->opts;
    const struct kvl_shape *shape = plan->shape;
    bool logit = o->repr_score == INFLLM_LOGIT;
    if (o->n_local == KVL_AUTO || o->topk == KVL_AUTO) KVL_TRY(kvl_plan_needs_budget(plan));
    KVL_TRY(infllm_resolve(plan));
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
                        (sizeof(struct infllm_layer) + infllm_words(shape, o) * sizeof(int32_t));
    if (!plan->own_prefill)
        KVL_TRY(
            kvl_plan_observe(plan, logit ? KVL_OBS_LOGITS : KVL_OBS_COLUMNS, o->n_local - logit));
    return kvl_plan_meta(plan, KVL_META_PAGE, o->block_size, shape->group * shape->head_dim,
                         &o->table);
}

static int infllm_open(struct kvl_pctx *ctx)
{
    for (int32_t l = 0; l < ctx->shape->n_layers; l++) infllm_at(ctx, l).l->exc = -1;
    return KVL_OK;
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

/* What cutting a block works with. */
struct infllm_cut {
    int32_t *best;     /* [repr_topk] */
    float *score;      /* [block_size] of one query head */
    float *key;        /* [block_size][head_dim] of one kv head, before RoPE */
    const float *sums; /* [n_heads][n_tok] scores of the context; NULL: the layer's running ones */
    int32_t n_tok;
};

static int infllm_cut_open(const struct kvl_pctx *ctx, struct infllm_cut *cut)
{
    const struct infllm_opts *o = ctx->opts;
    size_t size = (size_t)o->block_size;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)o->repr_topk, &cut->best));
    KVL_TRY(kvl_scratch_get(ctx, size, &cut->score));
    return kvl_scratch_get(ctx, size * (size_t)ctx->shape->head_dim, &cut->key);
}

/* out [head_dim], for one query head of a block: the mean of the keys of highest score. */
static int infllm_represent(const struct kvl_pctx *ctx, const struct infllm_cut *cut, float *out)
{
    const struct infllm_opts *o = ctx->opts;
    size_t dim = (size_t)ctx->shape->head_dim;
    KVL_TRY(kvl_topk(ctx, cut->score, 1, o->block_size, o->repr_topk, cut->best));
    memset(out, 0, dim * sizeof *out);
    for (int32_t i = 0; i < o->repr_topk; i++)
        for (size_t c = 0; c < dim; c++) out[c] += cut->key[(size_t)cut->best[i] * dim + c];
    for (size_t c = 0; c < dim; c++) out[c] /= (float)o->repr_topk;
    return KVL_OK;
}

static int infllm_cut(const struct kvl_pctx *ctx, int32_t layer, int32_t block,
                      const struct infllm_cut *cut)
{
    const struct infllm_opts *o = ctx->opts;
    const struct infllm_at at = infllm_at(ctx, layer);
    int32_t group = ctx->shape->group, dim = ctx->shape->head_dim, first = infllm_first(o, block);
    struct kvl_rows rows;
    KVL_TRY(kvl_table_write(ctx, o->table, layer, block, &rows));
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        float *row = kvl_table_row_out(&rows, h / group, 0);
        const float *sums = cut->sums ? cut->sums + (size_t)h * (size_t)cut->n_tok + first : NULL;
        if (h % group == 0)
            KVL_TRY(kvl_read_key_span(ctx, layer, h / group, first, o->block_size, true, cut->key));
        for (int32_t i = 0; i < o->block_size; i++)
            cut->score[i] = sums ? sums[i] : *infllm_token_score(ctx, &at, h, first + i);
        KVL_TRY(infllm_represent(ctx, cut, row + h % group * dim));
    }
    return KVL_OK;
}

/* Blocks of the shared context, from its column sums; tokens that are not in one take theirs on. */
static int infllm_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct infllm_opts *o = ctx->opts;
    const struct infllm_at at = infllm_at(ctx, layer);
    bool logit = o->repr_score == INFLLM_LOGIT;
    struct infllm_cut cut = { 0 };
    KVL_TRY(kvl_obs_columns(ctx, layer, logit ? KVL_OBS_LOGITS : KVL_OBS_COLUMNS,
                            o->n_local - logit, &cut.sums, &cut.n_tok));
    KVL_TRY(infllm_cut_open(ctx, &cut));
    at.l->n_blocks = infllm_n_blocks(o, cut.n_tok);
    for (int32_t b = 0; b < at.l->n_blocks; b++) KVL_TRY(infllm_cut(ctx, layer, b, &cut));
    for (int32_t t = infllm_first(o, at.l->n_blocks); t < cut.n_tok; t++)
        for (int32_t h = 0; h < ctx->shape->n_heads; h++)
            *infllm_token_score(ctx, &at, h, t) =
                cut.sums[(size_t)h * (size_t)cut.n_tok + (size_t)t];
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
    const struct infllm_at at = infllm_at(ctx, step->layer);
    struct infllm_cut cut = { 0 };
    if (infllm_n_blocks(ctx->opts, step->pos + 1) == at.l->n_blocks) return KVL_OK;
    KVL_TRY(infllm_cut_open(ctx, &cut));
    return infllm_cut(ctx, step->layer, at.l->n_blocks++, &cut);
}

/* ---- block cache ---------------------------------------------------------------------------- */

static int32_t infllm_find(const int32_t *list, int32_t n, int32_t block)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i] == block) return i;
    return -1;
}

/* A slot for a block that has none: a free one, or that of the lowest rank not in the request. */
static int32_t infllm_make_room(const struct infllm_at *at, int32_t capacity)
{
    if (at->l->n_cached < capacity) return at->l->n_cached++;
    int32_t victim = -1;
    for (int32_t i = 0; i < capacity; i++) {
        if (infllm_find(at->chosen, at->l->n_chosen, at->cached[i]) >= 0) continue;
        bool lower = victim < 0 || at->rank[i] < at->rank[victim] ||
                     (at->rank[i] == at->rank[victim] && at->cached[i] < at->cached[victim]);
        if (lower) victim = i;
    }
    return victim;
}

/* The chosen blocks are requested. */
static void infllm_request(const struct infllm_opts *o, const struct infllm_at *at)
{
    at->l->clock++;
    for (int32_t i = 0; o->cache == INFLLM_LRU_S && i < at->l->n_cached; i++)
        at->rank[i] *= (float)o->score_decay;
    for (int32_t i = 0; i < at->l->n_chosen; i++) {
        int32_t slot = infllm_find(at->cached, at->l->n_cached, at->chosen[i]);
        if (slot >= 0) {
            at->l->n_hits++;
        } else {
            at->l->n_misses++;
            slot = infllm_make_room(at, o->max_cached_block);
            at->cached[slot] = at->chosen[i];
            at->rank[slot] = 0.0f;
        }
        if (o->cache == INFLLM_LRU) at->rank[slot] = (float)at->l->clock;
    }
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

/* Far positions of a step whose window begins at `local`: init, chosen blocks, remainder.  Range i of
 * n_chosen + 2; true: it is not empty. */
static bool infllm_far(const struct infllm_opts *o, const struct infllm_at *at, int32_t local,
                       int32_t i, int32_t *first, int32_t *last)
{
    bool rest = i > at->l->n_chosen;
    int32_t block = rest ? at->l->n_seen : i > 0 ? at->chosen[i - 1] : 0;
    *first = i > 0 ? infllm_first(o, block) : 0;
    *last = KVL_MIN(local, rest ? local : i > 0 ? *first + o->block_size : o->n_init);
    return *first < *last;
}

static int infllm_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct infllm_opts *o = ctx->opts;
    const struct infllm_at at = infllm_at(ctx, step->layer);
    int32_t local = step->pos + 1 - o->n_local;
    int32_t exc = step->pos < o->stream_tok ? step->pos / o->exc_block_size : -1;
    if (local <= 0) return KVL_OK; /* all of it is in the window */
    if (exc < 0 || exc != at.l->exc) {
        KVL_TRY(infllm_choose(ctx, &at, step, q->q_raw));
        infllm_request(o, &at);
        at.l->exc = exc;
    }
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, local, step->pos + 1));
    KVL_TRY(kvl_sel_segment(sel));
    for (int32_t i = 0, first, last; i < at.l->n_chosen + 2; i++)
        if (infllm_far(o, &at, local, i, &first, &last))
            KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, first, last));
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
    for (int32_t i = 0; i < at->l->n_chosen; i++) {
        int32_t slot = infllm_find(at->cached, at->l->n_cached, at->chosen[i]);
        int32_t first = o->n_local + o->n_init + i * o->block_size;
        for (int32_t h = 0; h < ctx->shape->n_heads; h++)
            for (int32_t t = 0; t < o->block_size; t++) at->rank[slot] += probs[h][first + t];
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
    int64_t n_hits = 0, n_misses = 0, n_requests = 0, n_cached = 0;
    double block_bytes =
        (double)o->block_size * ctx->shape->n_kv_heads * (double)kvl_token_bytes(ctx);
    for (int32_t l = 0; l < ctx->shape->n_layers; l++) {
        const struct infllm_layer *layer = infllm_at(ctx, l).l;
        n_hits += layer->n_hits;
        n_misses += layer->n_misses;
        n_requests += layer->clock;
        n_cached += layer->n_cached;
    }
    KVL_TRY(kvl_report_num(r, "blocks", infllm_at(ctx, 0).l->n_blocks));
    KVL_TRY(kvl_report_num(r, "cached_blocks", (double)n_cached / ctx->shape->n_layers));
    if (n_hits + n_misses == 0) return KVL_OK;
    KVL_TRY(kvl_report_num(r, "cache_hits", (double)n_hits));
    KVL_TRY(kvl_report_num(r, "cache_misses", (double)n_misses));
    KVL_TRY(kvl_report_num(r, "cache_hit_share", (double)n_hits / (double)(n_hits + n_misses)));
    return kvl_report_num(r, "cache_load_bytes_per_tok",
                          block_bytes * (double)n_misses * ctx->shape->n_layers /
                              (double)n_requests);
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
    .open = infllm_open,
    .append = infllm_append,
    .prefilled = infllm_prefilled,
    .select = infllm_select,
    .observe = infllm_observe,
    .report = infllm_report,
};

KVL_POLICY_EXPORT(infllm)
