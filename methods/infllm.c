/* infllm - blocks of far tokens, found by a few representative keys, at one constant distance.
 *
 * Xiao et al.: InfLLM: Training-Free Long-Context Extrapolation for LLMs with an Efficient Context
 * Memory, NeurIPS 2024 (arXiv 2402.04617), section 3, and the official code.  Per layer the past is
 *     [ init: n_init ][ blocks of block_size ][ remainder ][ window: n_local, the current one too ]
 * A token that leaves the window fills init first, then the remainder.  A step that finds block_size
 * tokens in the remainder still reads them there; then they are cut to a block, so that n tokens leave
 *     floor((n - n_init - n_local) / block_size) blocks   (official sizes, n = 8192: 31)
 * for the next one.
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
 * Block cache: blocks live on the host, max_cached_block of them on the device.  Counted: hits, misses
 * and bytes; with offload=true executed as well (keys before and after RoPE travel).  cache=lru: a block's rank is its last request; lru_s: its rank
 * times score_decay plus the probability that it just received.  Victims are not in the request;
 * ties to the older block.
 *
 * Prefill.  shared: the context comes from a dense prefill (deviation; scores are then column sums
 * of that prefill, of n_local queries at most).  own: the context is a stream of steps, as
 * published.  There the official code lets exc_block_size queries share one selection, by their
 * mean; a stream has not seen the later ones, so the first query of each such run selects for it,
 * and blocks cut meanwhile are read until the next selection.  A decoded token selects for itself.
 *
 * Budget B: n_init + n_local + topk block_size + (block_size, the longest remainder) = B.  The
 * published sizes, 128 + 4096 + 16 x 128 + 128, are those of B = 6400:
 *     block_size  the largest power of two <= B / 48, within 4 .. 128
 *     n_init      B / 48, within 4 .. 128
 *     topk        floor(B / 3 / block_size), at least 1
 *     n_local     the rest; own prefill leaves exc_block_size - 1 more for blocks cut meanwhile
 *     repr_topk   block_size / 4, within 1 .. 4
 *     max_cached_block  2 topk
 *     exc_block_size    block_size with its own prefill (less where B is tight), else 1
 * Deviations: logit sums n_local - 1 queries, those that see the token inside the window, and takes
 * logits from weights (those below e^-87 count as e^-87); scores are 32-bit floats.
 * Cost per step and layer: n_heads head_dim floats for each block; B keys and values; at every
 * block_size-th token one block's keys are read.
 */
#include "infllm_sizes.h"

#include "kvl/policy.h"

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

/* Blocks begin behind n_init; the remainder and the window stay on the device. */
static int infllm_offload(struct kvl_plan *plan, const struct infllm_opts *o)
{
    if (o->cache != INFLLM_LRU)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "offload=true with cache=lru_s, which is counted only; give cache=lru");
    return kvl_plan_offload(
        plan, &(struct kvl_offload){ .origin = o->n_init,
                                     .keep_last = o->n_local + 1, /* a block goes once it is cut */
                                     .unit_tok = o->block_size,
                                     .cache_tok = o->max_cached_block * o->block_size });
}

static int infllm_plan(struct kvl_plan *plan)
{
    struct infllm_opts *o = plan->opts;
    const struct kvl_shape *shape = plan->shape;
    if ((o->n_local == KVL_AUTO || o->topk == KVL_AUTO) &&
        plan->budget_tok < infllm_min_budget(shape, o))
        return kvl_fail(plan->err, KVL_EINVAL, "budget %d; give %d or more, or n_local and topk",
                        plan->budget_tok, infllm_min_budget(shape, o));
    KVL_TRY(infllm_resolve(plan));
    o->repr_topk = infllm_or(o->repr_topk, infllm_clamp(o->block_size / 4, 1, 4));
    o->max_cached_block = infllm_or(o->max_cached_block, 2 * o->topk);
    if (o->repr_topk > o->block_size)
        return kvl_fail(plan->err, KVL_EINVAL, "repr_topk=%d; a block has %d tokens, give no more",
                        o->repr_topk, o->block_size);
    if (o->max_cached_block < o->topk)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "max_cached_block=%d; a step reads topk=%d blocks, give as many or more",
                        o->max_cached_block, o->topk);
    o->stream_tok = plan->own_prefill ? plan->context_tok : 0;
    if (o->offload) KVL_TRY(infllm_offload(plan, o));
    plan->raw_keys = true;
    plan->replay = KVL_REPLAY_NONE; /* prefilled sees the whole context */
    plan->state_bytes = (size_t)shape->n_layers *
                        (sizeof(struct infllm_layer) + infllm_words(shape, o) * sizeof(int32_t));
    if (!plan->own_prefill && o->repr_score == INFLLM_MASS)
        KVL_TRY(kvl_plan_observe(plan, KVL_OBS_COLUMNS, o->n_local));
    if (!plan->own_prefill && o->repr_score == INFLLM_LOGIT)
        KVL_TRY(kvl_plan_observe(plan, KVL_OBS_LOGITS, o->n_local - 1));
    return kvl_plan_meta(plan, KVL_META_PAGE, o->block_size,
                         shape->n_heads / shape->n_kv_heads * shape->head_dim, &o->table);
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

/* Scratch for cutting blocks. */
struct infllm_cut {
    int32_t *pos;      /* [block_size] */
    int32_t *best;     /* [repr_topk] */
    float *score;      /* [block_size] of one query head */
    float *key;        /* [block_size][head_dim] of one kv head, before RoPE */
    const float *sums; /* [n_heads][n_tok] scores of the context; NULL: the layer's running ones */
    int32_t n_tok;
};

static int infllm_cut_begin(const struct kvl_pctx *ctx, struct infllm_cut *cut)
{
    const struct infllm_opts *o = ctx->opts;
    size_t size = (size_t)o->block_size;
    cut->pos = (void *)kvl_scratch(ctx, size);
    cut->best = (void *)kvl_scratch(ctx, (size_t)o->repr_topk);
    cut->score = kvl_scratch(ctx, size);
    cut->key = kvl_scratch(ctx, size * (size_t)ctx->shape->head_dim);
    if (!cut->pos || !cut->best || !cut->score || !cut->key)
        return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for a block of %d tokens", o->block_size);
    return KVL_OK;
}

static int infllm_top(const struct kvl_pctx *ctx, const float *score, int32_t n, int32_t k,
                      int32_t *index)
{
    int rc = ctx->ops->topk(&(struct kvl_topk_args){
        .index = index, .x = score, .x_stride = (size_t)n, .n_rows = 1, .n = n, .k = k });
    return rc == KVL_OK ? KVL_OK : kvl_fail(ctx->err, rc, "the %d best of %d scores", k, n);
}

static void infllm_mean(float *out, const float *key, const int32_t *index, int32_t n, size_t dim)
{
    memset(out, 0, dim * sizeof *out);
    for (int32_t i = 0; i < n; i++)
        for (size_t c = 0; c < dim; c++) out[c] += key[(size_t)index[i] * dim + c];
    for (size_t c = 0; c < dim; c++) out[c] /= (float)n;
}

/* One query head of a block: cut->score and cut->key are there, out [head_dim]. */
static int infllm_represent(const struct kvl_pctx *ctx, const struct infllm_cut *cut, float *out)
{
    const struct infllm_opts *o = ctx->opts;
    KVL_TRY(infllm_top(ctx, cut->score, o->block_size, o->repr_topk, cut->best));
    infllm_mean(out, cut->key, cut->best, o->repr_topk, (size_t)ctx->shape->head_dim);
    return KVL_OK;
}

static int infllm_cut(const struct kvl_pctx *ctx, int32_t layer, int32_t block,
                      const struct infllm_cut *cut)
{
    const struct infllm_opts *o = ctx->opts;
    const struct infllm_at at = infllm_at(ctx, layer);
    int32_t group = ctx->shape->n_heads / ctx->shape->n_kv_heads;
    int32_t first = infllm_first(o, block);
    size_t dim = (size_t)ctx->shape->head_dim;
    struct kvl_meta_view rows;
    KVL_TRY(kvl_meta_from(ctx, o->table, layer, block, &rows));
    for (int32_t i = 0; i < o->block_size; i++) cut->pos[i] = first + i;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        int32_t kv_head = h / group;
        size_t row = (size_t)(h % group);
        if (h % group == 0)
            KVL_TRY(kvl_read_keys(ctx, layer, kv_head, cut->pos, o->block_size, true, cut->key));
        for (int32_t i = 0; i < o->block_size; i++)
            cut->score[i] = cut->sums
                                ? cut->sums[(size_t)h * (size_t)cut->n_tok + (size_t)(first + i)]
                                : *infllm_token_score(ctx, &at, h, first + i);
        KVL_TRY(
            infllm_represent(ctx, cut, rows.base + (size_t)kv_head * rows.head_stride + row * dim));
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
    KVL_TRY(infllm_cut_begin(ctx, &cut));
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
    KVL_TRY(infllm_cut_begin(ctx, &cut));
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

/* score [n]: sum over query heads of the turned query and the block's vector. */
static int infllm_block_scores(const struct kvl_pctx *ctx, int32_t layer, const float *q_raw,
                               int32_t n, float *score)
{
    const struct infllm_opts *o = ctx->opts;
    const struct kvl_shape *shape = ctx->shape;
    size_t heads = (size_t)shape->n_kv_heads, row = (size_t)(shape->n_heads * shape->head_dim);
    struct kvl_meta_part rows[2];
    float *q = kvl_scratch(ctx, row), *part = kvl_scratch(ctx, heads * (size_t)n);
    if (!q || !part) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d blocks", n);
    row /= heads;
    KVL_TRY(kvl_rotate(ctx, q_raw, shape->n_heads, o->n_local - 1, q));
    KVL_TRY(kvl_meta_rows(ctx, o->table, layer, n, rows));
    for (size_t i = 0; i < 2 * heads; i++) {
        size_t h = i / 2;
        const struct kvl_meta_part *in = &rows[i % 2];
        if (in->n_rows == 0) continue; /* and no data */
        struct kvl_weight vectors = { .data = (const float *)in->data + h * in->head_stride,
                                      .type = KVL_W_F32,
                                      .n_rows = in->n_rows,
                                      .n_cols = (int32_t)row,
                                      .row_bytes = row * sizeof(float) };
        float *y = part + h * (size_t)n + (i % 2 ? rows[0].n_rows : 0);
        KVL_TRY(ctx->ops->gemv(
            &(struct kvl_gemv_args){ .y = y, .x = q + h * row, .w = &vectors, .n = 1 }));
    }
    return ctx->ops->group_reduce(&(struct kvl_group_reduce_args){ .y = score,
                                                                   .x = part,
                                                                   .x_stride = (size_t)n,
                                                                   .n = n,
                                                                   .n_heads = shape->n_kv_heads,
                                                                   .n_kv_heads = 1,
                                                                   .reduce = KVL_REDUCE_SUM });
}

static int infllm_choose(const struct kvl_pctx *ctx, const struct infllm_at *at,
                         const struct kvl_step *step, const float *q_raw)
{
    const struct infllm_opts *o = ctx->opts;
    int32_t n = at->l->n_blocks;
    at->l->n_seen = n;
    at->l->n_chosen = KVL_MIN(n, o->topk);
    if (n <= o->topk) {
        for (int32_t i = 0; i < n; i++) at->chosen[i] = i;
        return KVL_OK;
    }
    float *score = kvl_scratch(ctx, (size_t)n);
    if (!score) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d blocks", n);
    KVL_TRY(infllm_block_scores(ctx, step->layer, q_raw, n, score));
    KVL_TRY(kvl_tap_scores(
        ctx, step,
        &(struct kvl_scored){
            .first_tok = o->n_init, .unit_tok = o->block_size, .n = n, .score = score }));
    return infllm_top(ctx, score, n, o->topk, at->chosen);
}

/* Appends first .. last - 1. */
static int32_t infllm_range(int32_t *pos, int32_t n, int32_t first, int32_t last)
{
    for (int32_t p = first; p < last; p++) pos[n++] = p;
    return n;
}

/* Far positions of a step whose window begins at `local`: init, chosen blocks, remainder. */
static int32_t infllm_far(const struct infllm_opts *o, const struct infllm_at *at, int32_t local,
                          int32_t *pos)
{
    int32_t n = infllm_range(pos, 0, 0, KVL_MIN(o->n_init, local));
    for (int32_t i = 0; i < at->l->n_chosen; i++) {
        int32_t first = infllm_first(o, at->chosen[i]);
        n = infllm_range(pos, n, first, first + o->block_size);
    }
    return infllm_range(pos, n, infllm_first(o, at->l->n_seen), local);
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
    size_t room = (size_t)KVL_MAX(local, o->n_local);
    int32_t *pos = (void *)kvl_scratch(ctx, room);
    if (!pos) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %zu positions", room);
    int32_t n = infllm_range(pos, 0, local, step->pos + 1);
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, pos, n));
    KVL_TRY(kvl_sel_segment(sel));
    n = infllm_far(o, &at, local, pos);
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, pos, n));
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
