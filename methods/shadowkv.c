/* shadowkv - keys of low rank on the device, values in the host tier, chunks chosen by their mean keys.
 *
 * Sun et al.: ShadowKV: KV Cache in Shadows for High-Throughput Long-Context LLM Inference, ICML 2025
 * (arXiv 2410.21465), section 4, Algorithms 1 and 2.  When the context is complete, for every layer:
 *   - keys before RoPE, the kv heads side by side, K [n][D], are factored at rank r: K = A B with B the
 *     r first right singular vectors (eigenvectors of K'K) and A = K B'
 *   - keys after RoPE are cut in chunks of 8; a chunk's landmark is their mean
 *   - the chunks whose landmark fits worst (lowest of the cosines of its keys with it) are outliers:
 *     they are always read as stored, and have no landmark
 * A step scores landmarks by softmax(q . landmark / sqrt(d)) per query head and the maximum over the
 * group, reads the best chunks of every kv head with keys rebuilt as rotate(A B) and stored values, and
 * reads, as stored: outliers, the last `local` chunks of the context with what is behind them, and all
 * decoded tokens.
 *
 * Official numbers: rank 160 (of D = 1024), chunk_size 8, 48 outliers, 4 local chunks, budget 2048
 * tokens chosen.  Budget B of C chunks: outlier = min(48, C / 6), local = min(4, C / 8) and up to
 * chunk_size - 1 more tokens, chosen chunks from what is left after decoded tokens and the current
 * one.  The engine's cache of fetched tokens, least recently used first to go, holds a budget; decoded
 * tokens older than the local chunks age into the host tier. */
#include "kvl/policy.h"
#include "parts/kept_keys.h"
#include "parts/lowrank.h"
#include "shadowkv_landmark.h"

#include <math.h>

struct shadow_opts {
    int32_t rank, chunk_size, outlier, local;
    bool offload;
    /* not options, from plan: K = A B, and tables of a row per chunk */
    struct kvl_lowrank keys;
    int32_t landmarks, fits;
    struct kvl_state_part outliers; /* of a layer */
    struct kvl_kept_keys kept;      /* what the step before rebuilt */
};

/* Found by the first step that chooses. */
struct shadow_layer {
    bool found;
    int32_t
        outlier[]; /* [n_kv_heads][o->outlier], the first KVL_MIN(o->outlier, chunks) of a row */
};

static const struct kvl_opt shadow_options[] = {
    KVL_ROW_INT(shadow_opts, rank, "auto", 1, KVL_SYM_EIG_MAX,
                "rank of a layer's keys (paper: 160); auto = min(160, half of their width)"),
    KVL_ROW_INT(shadow_opts, chunk_size, "8", 1, 1024, "tokens of a chunk (paper: 8)"),
    KVL_ROW_INT(shadow_opts, outlier, "auto", 0, 1 << 20,
                "chunks that are always read, for a kv head (paper: 48); auto = min(48, a sixth of "
                "the budget)",
                .not_in_tables = true),
    KVL_ROW_INT(shadow_opts, local, "auto", 0, 1 << 20,
                "last chunks of the context, always read (paper: 4); auto = min(4, an eighth)",
                .not_in_tables = true),
    KVL_ROW_BOOL(shadow_opts, offload, "true",
                 "the context lies in the host tier but for its last chunks, as published",
                 .not_in_tables = true),
    { 0 },
};

/* Outlier and local chunks, one to choose, and the newest tokens. */
static int32_t shadow_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct shadow_opts *o = opts;
    (void)shape;
    return (KVL_MAX(o->outlier, 0) + KVL_MAX(o->local, 0) + 2) * o->chunk_size;
}

static int shadow_plan(struct kvl_plan *plan)
{
    struct shadow_opts *o = plan->opts;
    int32_t dim = plan->shape->head_dim, width = plan->shape->n_kv_heads * dim;
    int32_t chunks = plan->budget_tok / o->chunk_size;
    KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->rank == KVL_AUTO) o->rank = KVL_MIN(160, KVL_MAX(1, width / 2));
    if (o->outlier == KVL_AUTO) o->outlier = KVL_MIN(48, chunks / 6);
    if (o->local == KVL_AUTO) o->local = KVL_MIN(4, chunks / 8);
    KVL_TRY(kvl_plan_lowrank(plan, o->rank, &o->keys));
    KVL_TRY(kvl_plan_table(plan, &o->landmarks, .unit = KVL_UNIT_PAGE, .unit_tok = o->chunk_size,
                           .row_elems = dim));
    KVL_TRY(kvl_plan_table(plan, &o->fits, .unit = KVL_UNIT_PAGE, .unit_tok = o->chunk_size,
                           .row_elems = 1));
    kvl_plan_state(plan,
                   sizeof(struct shadow_layer) +
                       (size_t)plan->shape->n_kv_heads * (size_t)o->outlier * sizeof(int32_t),
                   &o->outliers);
    kvl_plan_kept_keys(plan, chunks * o->chunk_size, &o->kept);
    if (!o->offload) return KVL_OK;
    return kvl_plan_offload(
        plan, &(struct kvl_offload){ .keep_last = (o->local + 1) * o->chunk_size, .unit_tok = 1 });
}

/* ---- Algorithm 1: the context ------------------------------------------------------------------ */

/* Chunks of the context that may be chosen: all before the local ones. */
static int32_t shadow_chunks(const struct kvl_pctx *ctx)
{
    const struct shadow_opts *o = ctx->opts;
    return KVL_MAX(0, ctx->context_tok / o->chunk_size - o->local);
}

/* fits: how badly a chunk fits its landmark, minus the lowest cosine. */
static int shadow_landmarks(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct shadow_opts *o = ctx->opts;
    int32_t dim = ctx->shape->head_dim, size = o->chunk_size, n = ctx->context_tok / size;
    struct kvl_rows landmarks, fits;
    float *key;
    KVL_TRY(kvl_table_write(ctx, o->landmarks, layer, 0, &landmarks));
    KVL_TRY(kvl_table_write(ctx, o->fits, layer, 0, &fits));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(size * dim), &key));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        for (int32_t i = 0; i < n; i++) {
            float *fit = kvl_table_row_out(&fits, h, i);
            KVL_TRY(kvl_read_key_span(ctx, layer, h, i * size, size, false, key));
            *fit = -shadow_landmark(key, size, dim, kvl_table_row_out(&landmarks, h, i));
        }
    return KVL_OK;
}

static int shadow_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct shadow_opts *o = ctx->opts;
    if (ctx->context_tok == 0) return KVL_OK;
    KVL_TRY(kvl_lowrank_fit(ctx, &o->keys, layer));
    return shadow_landmarks(ctx, layer);
}

/* ---- Algorithm 2: a step ------------------------------------------------------------------------- */

/* Chunks of every kv head, ascending. */
struct shadow_step {
    int32_t n, n_outlier, n_best; /* that may be chosen; outliers, chosen ones */
    const int32_t *outlier;       /* [n_kv_heads][n_outlier] */
    int32_t *best;                /* [n_kv_heads][n_best] */
    float *score;                 /* [n_kv_heads][n] */
};

/* The chunks that fit their landmarks worst. */
static int shadow_outliers(const struct kvl_pctx *ctx, int32_t layer, struct shadow_step *t)
{
    const struct shadow_opts *o = ctx->opts;
    struct shadow_layer *l = kvl_state_of(ctx, &o->outliers, layer);
    struct kvl_rows fits;
    t->outlier = l->outlier;
    if (l->found) return KVL_OK;
    KVL_TRY(kvl_table_read(ctx, o->fits, layer, t->n, &fits));
    KVL_TRY(kvl_look(ctx)); /* once in a session */
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        for (int32_t i = 0; i < t->n; i++)
            t->score[h * t->n + i] = *(const float *)kvl_table_row(&fits, h, i);
    KVL_TRY(kvl_topk(ctx, t->score, ctx->shape->n_kv_heads, t->n, t->n_outlier, l->outlier));
    l->found = true;
    return KVL_OK;
}

/* mask [n_kv_heads][n]: what added to a score takes outliers out of the choice. */
static int shadow_mask(const struct kvl_pctx *ctx, const struct shadow_step *t, float **mask)
{
    int32_t n_kv = ctx->shape->n_kv_heads;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_kv * (size_t)t->n, mask));
    for (int32_t i = 0; i < n_kv * t->n; i++) (*mask)[i] = 0;
    for (int32_t h = 0; h < n_kv; h++)
        for (int32_t i = 0; i < t->n_outlier; i++)
            (*mask)[h * t->n + t->outlier[h * t->n_outlier + i]] = -INFINITY;
    return KVL_OK;
}

/* score [per kv head `rows`][n] */
static int shadow_exclude(const struct kvl_pctx *ctx, const struct shadow_step *t,
                          const float *mask, float *score, int32_t rows)
{
    size_t n = (size_t)t->n, each = (size_t)rows * n;
    for (size_t h = 0; h < (size_t)ctx->shape->n_kv_heads; h++)
        KVL_TRY(ctx->ops->add(&(struct kvl_add_args){
            .y = score + h * each, .x = mask + h * n, .n = each, .n_x = n }));
    return KVL_OK;
}

/* Softmax of q . landmark / sqrt(d) without outliers, the largest of the group. */
static int shadow_best(const struct kvl_pctx *ctx, const struct kvl_step *step, const float *q,
                       const struct shadow_step *t)
{
    const struct shadow_opts *o = ctx->opts;
    const struct kvl_shape *sh = ctx->shape;
    float *weight, *mask;
    KVL_TRY(shadow_mask(ctx, t, &mask));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)sh->n_heads * (size_t)t->n, &weight));
    KVL_TRY(kvl_table_scores(ctx, &(struct kvl_table_scores){ .table = o->landmarks,
                                                              .layer = step->layer,
                                                              .n_rows = t->n,
                                                              .q = q,
                                                              .scale = sh->scale,
                                                              .score = weight }));
    KVL_TRY(kvl_cap(ctx, weight, (size_t)sh->n_heads * (size_t)t->n));
    KVL_TRY(shadow_exclude(ctx, t, mask, weight, sh->group));
    KVL_TRY(kvl_softmax(ctx, weight, sh->n_heads, t->n));
    KVL_TRY(kvl_group_scores(ctx, weight, t->n, KVL_REDUCE_MAX, t->score));
    KVL_TRY(shadow_exclude(ctx, t, mask, t->score, 1)); /* a weight of 0 may be another's */
    KVL_TRY(kvl_tap_scores(
        ctx, step,
        &(struct kvl_scored){
            .scope = KVL_SCOPE_KV_HEAD, .unit_tok = o->chunk_size, .n = t->n, .score = t->score }));
    return kvl_topk(ctx, t->score, sh->n_kv_heads, t->n, t->n_best, t->best);
}

/* What is rebuilt of all kv heads: pos [n], key [n][head_dim] of each.  The chunks of the step before are there already
 * (the cache of section 4). */
static int shadow_rebuild(const struct kvl_pctx *ctx, int32_t layer, const struct shadow_step *t,
                          int32_t *pos, float *key)
{
    const struct shadow_opts *o = ctx->opts;
    int32_t size = o->chunk_size, lanes = ctx->shape->n_kv_heads, n = t->n_best * size;
    size_t row = (size_t)n * (size_t)ctx->shape->head_dim;
    struct kvl_kept_step step;
    KVL_TRY(kvl_look_at(ctx, t->best, (size_t)(lanes * t->n_best), sizeof *t->best));
    for (int32_t i = 0; i < lanes * n; i++) pos[i] = t->best[i / size] * size + i % size;
    KVL_TRY(kvl_kept_find(ctx, &o->kept, layer, pos, n, &step));
    for (int32_t h = 0; h < lanes; h++)
        KVL_TRY(kvl_lowrank_keys(ctx, &o->keys, layer, h, step.pos + h * n, step.n[h],
                                 step.made + (size_t)h * row));
    return kvl_kept_take(ctx, &o->kept, pos, &step, key);
}

/* First what is read as stored (outliers, local and decoded tokens), then what is rebuilt. */
static int shadow_lists(const struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct shadow_step *t, struct kvl_sel *sel)
{
    const struct shadow_opts *o = ctx->opts;
    int32_t size = o->chunk_size, lanes = ctx->shape->n_kv_heads, n = t->n_best * size, *pos;
    size_t row = (size_t)n * (size_t)ctx->shape->head_dim;
    float *key;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)lanes * (size_t)n, &pos));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)lanes * row, &key));
    KVL_TRY(shadow_rebuild(ctx, step->layer, t, pos, key));
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_KV_HEAD, KVL_ALL_LISTS, t->n * size, step->pos + 1));
    for (int32_t h = 0; h < lanes; h++)
        KVL_TRY(kvl_sel_pages(sel, KVL_SCOPE_KV_HEAD, h, size, t->outlier + h * t->n_outlier,
                              t->n_outlier));
    KVL_TRY(kvl_sel_segment(sel));
    for (int32_t h = 0; h < lanes; h++) {
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, pos + h * n, n));
        KVL_TRY(kvl_sel_keys(sel, KVL_SCOPE_KV_HEAD, h, key + (size_t)h * row, n));
    }
    return KVL_OK;
}

static int shadow_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct shadow_opts *o = ctx->opts;
    struct shadow_step t = { .n = shadow_chunks(ctx) };
    size_t lanes = (size_t)ctx->shape->n_kv_heads;
    if (step->pos < ctx->budget_tok || t.n == 0) return KVL_OK;
    int32_t rest = step->pos + 1 - t.n * o->chunk_size; /* local and decoded */
    t.n_outlier = KVL_MIN(o->outlier, t.n);
    t.n_best = KVL_MAX(0, ctx->budget_tok - rest) / o->chunk_size - t.n_outlier;
    t.n_best = KVL_MAX(0, KVL_MIN(t.n_best, t.n - t.n_outlier));
    KVL_TRY(kvl_scratch_get(ctx, lanes * (size_t)t.n, &t.score));
    KVL_TRY(kvl_scratch_get(ctx, lanes * (size_t)t.n_best, &t.best));
    KVL_TRY(shadow_outliers(ctx, step->layer, &t));
    if (t.n_best > 0) KVL_TRY(shadow_best(ctx, step, q->q, &t));
    return shadow_lists(ctx, step, &t, sel);
}

static const struct kvl_policy shadowkv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "shadowkv",
    .title = "ShadowKV",
    .paper = "Sun et al., ICML 2025, arXiv 2410.21465",
    .help = "keeps all, reads chunks by their mean keys, with keys rebuilt from low rank",
    .follows =
        "Algorithms 1 and 2: one factorisation of all kv heads of a layer before RoPE, landmarks "
        "of 8 keys after RoPE, outliers by the lowest cosine, softmax over chunks per query head "
        "and the maximum over the group, decoded tokens always read. The published sizes, 2048 "
        "chosen tokens, 48 outliers, 4 local chunks, rank 160, are options.",
    .deviations =
        "The budget counts all that is read, not the chosen tokens alone, and outlier and local "
        "chunks shrink with it. Outliers lie before the local chunks. The rank is 160 or half the "
        "width of the keys, whichever is less. Factors are floats. What is fetched from the host "
        "tier is counted with its keys, which the original does not move. Left out: dense first "
        "layers, which the Llama-3 configurations have.",
    .cost =
        "Per step and layer d floats are read for each of n / chunk_size chunks per kv head, d "
        "products per query head, a softmax and a top-k of them; rank floats, rank d products and "
        "a rotation for every chosen token of a kv head that the step before did not choose. Once "
        "n D^2 + 6 D^3 + n D rank products for a layer, D = K d the width of its keys. Memory: "
        "rank floats per token and layer, (d + 1) / chunk_size floats per token and kv head, d "
        "floats per chosen token and kv head, and keys before RoPE, half the cache again.",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_ESTIMATES | KVL_CAP_OFFLOADS | KVL_CAP_SHARES_META |
            KVL_CAP_ASYNC,
    .opts = shadow_options,
    .opts_size = sizeof(struct shadow_opts),
    .min_budget = shadow_min_budget,
    .plan = shadow_plan,
    .prefilled = shadow_prefilled,
    .select = shadow_select,
};

KVL_POLICY_EXPORT(shadowkv)
