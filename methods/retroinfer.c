/* retroinfer - clusters of keys: the best are read exactly, the next by their means, the rest not at all.
 *
 * Chen et al.: RetroInfer: A Vector-Storage Approach for Scalable Long-Context LLM Inference
 * (arXiv 2505.02922), sections 4.1 to 4.3: the wave index.  Keys between the first `sink` and the last
 * `local` tokens are clustered, segment by segment, in groups of `per_cluster` on average: k-means in
 * angle of the keys minus the segment's mean.  A cluster keeps the mean of its keys, the mean of its
 * values and its size.  A step ranks all clusters of a kv head by the sum over its query heads of
 * softmax(q . mean / sqrt(d)), and attends to
 *   steady zone      the first and the last tokens, exactly
 *   retrieval zone   the tokens of the best clusters, exactly
 *   estimation zone  the next `estimate` of all clusters, each as one entry of weight
 *                    size x exp(q . mean / sqrt(d)) and the mean of its values (Eq. 4, 5)
 * merged by log-sum-exp.
 *
 * Decoded tokens stay in the steady zone until `update` of them have left the last `local`, then
 * become a segment of their own (official: 1024); `update` shrinks with the budget, since what waits is
 * attended.
 * Budget B: sink = 4, local = min(64, B / 4), update = min(1024, B / 8) rounded down to whole clusters,
 * and retrieved tokens up to B, the current one included.  The estimation zone reads no token: its
 * means and sizes are counted as index bytes. */
#include "parts/clusters.h"
#include "parts/ranked.h"

#include <math.h>
#include <string.h>

enum { RETRO_AHEAD = 8 }; /* clusters that are asked for before their turn */

struct retro_opts {
    int32_t sink, local, segment, update, per_cluster, iters;
    double retrieve, estimate, cache;
    bool offload;
    struct kvl_clusters index; /* not an option */
};

static const struct kvl_opt retro_options[] = {
    KVL_ROW_INT(retro_opts, sink, "4", 0, 1 << 20, "first tokens, always read (paper: 4)"),
    KVL_ROW_INT(retro_opts, local, "auto", 1, 1 << 20,
                "last tokens, always read (paper: 64); auto = min(64, budget / 4)"),
    KVL_ROW_INT(retro_opts, segment, "8192", 1, 1 << 24,
                "tokens of the context that are clustered together (paper: 8192)"),
    KVL_ROW_INT(retro_opts, update, "auto", 1, 1 << 24,
                "decoded tokens that become a segment (official: 1024), a multiple of per_cluster; "
                "auto = min(1024, budget / 8)",
                .not_in_tables = true),
    KVL_ROW_INT(retro_opts, per_cluster, "16", 1, 4096,
                "tokens of a cluster on average (paper: 16)"),
    KVL_ROW_INT(retro_opts, iters, "10", 1, 1000, "rounds of k-means (paper: 10)"),
    KVL_ROW_FLOAT(
        retro_opts, retrieve, "1", 0, 1,
        "share of the clusters that is read exactly at most (official: 0.018); 1 = what the "
        "budget holds",
        .not_in_tables = true),
    KVL_ROW_FLOAT(retro_opts, estimate, "0.232", 0, 1,
                  "share of the clusters that is estimated (paper: 0.232)", .not_in_tables = true),
    KVL_ROW_BOOL(retro_opts, offload, "true", "clustered tokens lie in the host tier, as published",
                 .not_in_tables = true),
    KVL_ROW_FLOAT(retro_opts, cache, "0.05", 0, 1,
                  "share of the context that stays on the device once fetched (paper: 0.05)",
                  .not_in_tables = true),
    { 0 },
};

/* Sink, local, what waits to be clustered, and a token. */
static int32_t retro_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct retro_opts *o = opts;
    (void)shape;
    return o->sink + kvl_opt_given(o->local, 4) + kvl_opt_given(o->update, o->per_cluster) + 1;
}

static void retro_sizes(const struct kvl_plan *plan, struct retro_opts *o)
{
    int32_t least = retro_min_budget(plan->shape, o), budget = plan->budget_tok;
    if (o->local == KVL_AUTO)
        o->local = KVL_MIN(KVL_MIN(64, KVL_MAX(4, budget / 4)), 4 + budget - least);
    if (o->update == KVL_AUTO) {
        int32_t left = KVL_MIN(1024, KVL_MIN(budget / 8, budget - o->sink - o->local - 1));
        o->update = KVL_MAX(o->per_cluster, left / o->per_cluster * o->per_cluster);
    }
}

static int retro_plan(struct kvl_plan *plan)
{
    struct retro_opts *o = plan->opts;
    int32_t size = o->per_cluster;
    KVL_TRY(kvl_plan_needs_budget(plan));
    retro_sizes(plan, o);
    if (o->update % size != 0 || o->segment % size != 0)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "segment=%d and update=%d; give multiples of per_cluster, %d", o->segment,
                        o->update, size);
    plan->replay = KVL_REPLAY_NONE; /* prefilled sees the whole context */
    o->index.first = o->sink;
    o->index.per_cluster = size;
    o->index.iters = o->iters;
    KVL_TRY(kvl_plan_clusters(plan, &o->index));
    if (!o->offload) return KVL_OK;
    return kvl_plan_offload(
        plan, &(struct kvl_offload){ .keep_first = o->sink,
                                     .keep_last = o->local + o->update,
                                     .unit_tok = 1,
                                     .cache_tok = (int32_t)(o->cache * plan->context_tok),
                                     .replace = KVL_REPLACE_LRU });
}

/* ---- the wave index (4.2) ------------------------------------------------------------------------- */

/* Tokens before which all are in clusters, but for the sink, and the number of clusters, once positions
 * below n_pos are there. */
struct retro_extent {
    int32_t end, n_clusters;
};

static struct retro_extent retro_extent(const struct kvl_pctx *ctx, int32_t n_pos)
{
    const struct retro_opts *o = ctx->opts;
    struct retro_extent x = { .end = KVL_MAX(o->sink, ctx->context_tok - o->local) };
    int32_t n = x.end - o->sink, whole = n / o->segment;
    x.n_clusters =
        whole * (o->segment / o->per_cluster) + kvl_clusters_of(&o->index, n - whole * o->segment);
    int32_t more = KVL_MAX(0, n_pos - o->local - x.end) / o->update;
    x.end += more * o->update;
    x.n_clusters += more * (o->update / o->per_cluster);
    return x;
}

static int retro_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct retro_opts *o = ctx->opts;
    int32_t end = retro_extent(ctx, ctx->context_tok).end;
    for (int32_t at = o->sink, cluster = 0; at < end; at += o->segment) {
        int32_t n = KVL_MIN(o->segment, end - at);
        KVL_TRY(kvl_clusters_add(ctx, &o->index, layer, at, n, cluster));
        cluster += kvl_clusters_of(&o->index, n);
    }
    return KVL_OK;
}

/* A segment is full: `update` tokens have left the last `local`. */
static int retro_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                        const float *v)
{
    const struct retro_opts *o = ctx->opts;
    struct retro_extent before = retro_extent(ctx, step->pos),
                        now = retro_extent(ctx, step->pos + 1);
    (void)k;
    (void)v;
    if (now.end == before.end) return KVL_OK;
    return kvl_clusters_add(ctx, &o->index, step->layer, before.end, now.end - before.end,
                            before.n_clusters);
}

/* ---- the three zones (4.1, 4.3) ---------------------------------------------------------------------- */

/* What select works with. */
struct retro_step {
    struct retro_extent x;
    int32_t room;               /* tokens that the retrieval zone may have */
    int32_t n_ranked;           /* clusters that are ranked */
    int32_t retrieve, estimate; /* clusters of these zones, at most */
    float *logit, *score;       /* [n_heads][clusters], [n_kv_heads][clusters] */
    float *part, *value;        /* logits and values of the estimation zone */
    int32_t *best; /* [n_kv_heads][n_ranked] clusters; of the kv head at hand, best first */
    int32_t *pos;
    struct kvl_cluster_rows rows;
};

static int retro_buffers(const struct kvl_pctx *ctx, const struct kvl_step *step,
                         struct retro_step *t)
{
    const struct retro_opts *o = ctx->opts;
    size_t ranked = (size_t)t->n_ranked;
    KVL_TRY(kvl_scratch_get(ctx, ranked * (size_t)ctx->shape->group, &t->part));
    KVL_TRY(kvl_scratch_get(ctx, ranked * (size_t)ctx->shape->head_dim, &t->value));
    KVL_TRY(kvl_scratch_get(ctx, ranked * (size_t)ctx->shape->n_kv_heads, &t->best));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)t->room, &t->pos));
    return kvl_clusters_read(ctx, &o->index, step->layer, t->x.n_clusters, t->x.end - o->sink,
                             &t->rows);
}

/* score [n_kv_heads][clusters]: softmax(q . mean / sqrt(d)), added up over the group. */
static int retro_scores(const struct kvl_pctx *ctx, const struct kvl_step *step, const float *q,
                        struct retro_step *t)
{
    const struct retro_opts *o = ctx->opts;
    int32_t n = t->x.n_clusters, n_heads = ctx->shape->n_heads;
    size_t all = (size_t)n_heads * (size_t)n;
    float *weight;
    KVL_TRY(kvl_scratch_get(ctx, all, &weight));
    KVL_TRY(kvl_scratch_get(ctx, all, &t->logit));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_kv_heads * (size_t)n, &t->score));
    struct kvl_table_scores s = {
        .table = o->index.keys, .layer = step->layer, .n_rows = n, .q = q
    };
    s.scale = ctx->shape->scale;
    s.score = t->logit;
    KVL_TRY(kvl_table_scores(ctx, &s));
    KVL_TRY(kvl_cap(ctx, t->logit, all));
    KVL_TRY(ctx->ops->group_reduce(&(struct kvl_group_reduce_args){ .y = weight,
                                                                    .x = t->logit,
                                                                    .x_stride = (size_t)n,
                                                                    .n = n,
                                                                    .n_heads = n_heads,
                                                                    .n_kv_heads = n_heads,
                                                                    .reduce = KVL_REDUCE_FIRST }));
    KVL_TRY(kvl_softmax(ctx, weight, n_heads, n));
    return kvl_group_scores(ctx, weight, n, KVL_REDUCE_SUM, t->score);
}

/* Retrieval zone: tokens of the best clusters while they fit.  These clusters are *taken. */
static int retro_retrieve(const struct kvl_pctx *ctx, const struct retro_step *t, int32_t h,
                          struct kvl_sel *sel, int32_t *taken)
{
    int32_t n_tok = 0, n = KVL_MIN(t->retrieve, t->n_ranked);
    for (*taken = 0; *taken < n; ++*taken) {
        int32_t size = kvl_cluster_size(&t->rows, h, t->best[*taken]);
        if (n_tok + size > t->room) break;
        kvl_cluster_tokens(&t->rows, h, t->best[*taken], t->pos + n_tok);
        n_tok += size;
    }
    KVL_TRY(kvl_ascending(ctx, t->pos, n_tok));
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, t->pos, n_tok));
    return kvl_table_count(ctx, ((const struct retro_opts *)ctx->opts)->index.order, n_tok);
}

/* Estimation zone: each of the next clusters weighs size x exp(q . mean / sqrt(d)) (Eq. 4, 5). */
static int retro_estimate(const struct kvl_pctx *ctx, const struct retro_step *t, int32_t h,
                          int32_t taken, struct kvl_sel *sel)
{
    int32_t group = ctx->shape->group, n = KVL_MIN(t->estimate, t->n_ranked - taken);
    size_t dim = (size_t)ctx->shape->head_dim, n_clusters = (size_t)t->x.n_clusters;
    for (int32_t i = 0; i < n; i++) {
        int32_t cluster = t->best[taken + i];
        if (i + RETRO_AHEAD < n) kvl_cluster_ask(&t->rows, h, t->best[taken + i + RETRO_AHEAD]);
        float log_size = logf((float)kvl_cluster_size(&t->rows, h, cluster));
        for (int32_t g = 0; g < group; g++)
            t->part[g * n + i] =
                t->logit[(size_t)(h * group + g) * n_clusters + (size_t)cluster] + log_size;
        memcpy(t->value + (size_t)i * dim, kvl_table_row(&t->rows.values, h, cluster),
               dim * sizeof *t->value);
    }
    return kvl_sel_pseudo(sel, h, t->part, t->value, n);
}

static int retro_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct retro_opts *o = ctx->opts;
    struct retro_step t = { .x = retro_extent(ctx, step->pos + 1) };
    int32_t steady = step->pos + 1 - t.x.end, taken;
    if (step->pos < ctx->budget_tok || t.x.n_clusters == 0) return KVL_OK;
    t.room = KVL_MAX(0, ctx->budget_tok - o->sink - steady);
    t.retrieve = (int32_t)ceil(o->retrieve * t.x.n_clusters);
    t.estimate = (int32_t)ceil(o->estimate * t.x.n_clusters);
    int64_t most = (int64_t)KVL_MIN(t.retrieve, t.room) + t.estimate;
    t.n_ranked = (int32_t)KVL_MIN(most, t.x.n_clusters);
    KVL_TRY(retro_buffers(ctx, step, &t));
    KVL_TRY(retro_scores(ctx, step, q->q, &t));
    KVL_TRY(kvl_sel_first(sel, KVL_SCOPE_KV_HEAD, KVL_ALL_LISTS, o->sink));
    KVL_TRY(kvl_sel_recent(sel, KVL_SCOPE_KV_HEAD, KVL_ALL_LISTS, steady));
    /* Waits, once, for all that follows. */
    KVL_TRY(
        kvl_topk_ranked(ctx, t.score, ctx->shape->n_kv_heads, t.x.n_clusters, t.n_ranked, t.best));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++, t.best += t.n_ranked) {
        KVL_TRY(retro_retrieve(ctx, &t, h, sel, &taken));
        KVL_TRY(retro_estimate(ctx, &t, h, taken, sel));
    }
    return KVL_OK;
}

static const struct kvl_policy retroinfer = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "retroinfer",
    .title = "RetroInfer",
    .paper = "Chen et al., 2025, arXiv 2505.02922",
    .help = "keeps all, reads the best clusters of keys, and the next ones by their means",
    .follows =
        "The official code: segments of 8192 tokens, 16 tokens per cluster, clusters ranked by the "
        "group's softmaxes over their mean keys without sizes, added up; a steady zone of the "
        "first and the last tokens; estimated clusters weigh their size and give the mean of their "
        "values. retrieve=0.018 reads a share of 1.8 % of the clusters, however many tokens they "
        "have, within the budget; update=1024 makes segments of 1024 decoded tokens where the "
        "budget holds them.",
    .deviations =
        "As many clusters are read as the budget holds, where the original reads a share of them. "
        "Decoded tokens become a segment in portions that fit the budget. Clusters begin as evenly "
        "spaced tokens; an empty one takes the token that fits worst (official: it is masked). The "
        "device cache holds tokens, not pages of clusters, and replaces the least recently used "
        "one.",
    .cost =
        "Per step and layer d floats are read for each of n / per_cluster clusters per kv head, d "
        "products per query head, a softmax and a sort of the best, d floats read for each "
        "estimated cluster; every update tokens are clustered. Once iters rounds of n 8192 / "
        "per_cluster d products per kv head. Memory: (2 d + 2) / per_cluster + 1 numbers of 4 "
        "bytes per token and kv head.",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_ESTIMATES | KVL_CAP_OFFLOADS | KVL_CAP_SHARES_META |
            KVL_CAP_ASYNC,
    .opts = retro_options,
    .opts_size = sizeof(struct retro_opts),
    .min_budget = retro_min_budget,
    .plan = retro_plan,
    .append = retro_append,
    .prefilled = retro_prefilled,
    .select = retro_select,
};

KVL_POLICY_EXPORT(retroinfer)
