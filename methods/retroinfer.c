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
#include "kvl/policy.h"

#include <math.h>
#include <string.h>

struct retro_opts {
    int32_t sink, local, segment, update, per_cluster, iters;
    double retrieve, estimate, cache;
    bool offload;
    int32_t keys, values, spans, order; /* tables */
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
    int32_t local = o->local == KVL_AUTO ? 4 : o->local;
    int32_t update = o->update == KVL_AUTO ? o->per_cluster : o->update;
    return o->sink + local + update + 1;
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
    int32_t size = o->per_cluster, dim = plan->shape->head_dim;
    KVL_TRY(kvl_plan_needs_budget(plan));
    retro_sizes(plan, o);
    if (o->update % size != 0 || o->segment % size != 0)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "segment=%d and update=%d; give multiples of per_cluster, %d", o->segment,
                        o->update, size);
    struct kvl_meta_desc spans = {
        .unit = KVL_META_PAGE, .unit_tok = size, .row_elems = 2, .elem = KVL_META_I32
    };
    struct kvl_meta_desc order = {
        .unit = KVL_META_PAGE, .unit_tok = 1, .row_elems = 1, .elem = KVL_META_I32
    };
    plan->replay = KVL_REPLAY_NONE; /* prefilled sees the whole context */
    KVL_TRY(kvl_plan_meta(plan, KVL_META_PAGE, size, dim, &o->keys));
    KVL_TRY(kvl_plan_meta(plan, KVL_META_PAGE, size, dim, &o->values));
    KVL_TRY(kvl_plan_meta_desc(plan, &spans, &o->spans));
    KVL_TRY(kvl_plan_meta_desc(plan, &order, &o->order));
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

static int32_t retro_clusters_of(const struct retro_opts *o, int32_t n_tok)
{
    return n_tok == 0 ? 0 : KVL_MAX(1, n_tok / o->per_cluster);
}

static struct retro_extent retro_extent(const struct kvl_pctx *ctx, int32_t n_pos)
{
    const struct retro_opts *o = ctx->opts;
    struct retro_extent x = { .end = KVL_MAX(o->sink, ctx->context_tok - o->local) };
    int32_t n = x.end - o->sink, whole = n / o->segment;
    x.n_clusters =
        whole * (o->segment / o->per_cluster) + retro_clusters_of(o, n - whole * o->segment);
    int32_t more = KVL_MAX(0, n_pos - o->local - x.end) / o->update;
    x.end += more * o->update;
    x.n_clusters += more * (o->update / o->per_cluster);
    return x;
}

/* x [n][dim] minus its mean. */
static void retro_centre(float *x, float *mean, int32_t n, int32_t dim)
{
    for (int32_t c = 0; c < dim; c++) {
        double sum = 0;
        for (int32_t i = 0; i < n; i++) sum += (double)x[i * dim + c];
        mean[c] = (float)(sum / n);
        for (int32_t i = 0; i < n; i++) x[i * dim + c] -= mean[c];
    }
}

/* A segment of one lane; rows of its clusters and members. */
struct retro_segment {
    int32_t first, n, n_clusters;
    float *key, *value, *mean, *room; /* of the tokens, the mean of their keys */
    int32_t *assign, *count;          /* cluster of each token; tokens of each cluster */
    float *mean_key, *mean_value;     /* [n_clusters][head_dim] */
    int32_t *span, *order;            /* begin and number in the list of members; that list */
};

/* Means of keys and values, and lists of members, ascending within a cluster. */
static void retro_members(const struct retro_segment *g, int32_t sink, int32_t dim)
{
    int32_t begin = g->first - sink;
    for (int32_t j = 0, at = begin; j < g->n_clusters; at += g->count[j++]) {
        g->span[2 * j] = at;
        g->span[2 * j + 1] = 0; /* counts up below */
        for (int32_t c = 0; c < dim; c++) {
            g->mean_key[j * dim + c] += g->mean[c];
            g->mean_value[j * dim + c] = 0;
        }
    }
    for (int32_t i = 0; i < g->n; i++) {
        int32_t j = g->assign[i], *span = g->span + 2 * j;
        g->order[span[0] - begin + span[1]++] = g->first + i;
        for (int32_t c = 0; c < dim; c++)
            g->mean_value[j * dim + c] += g->value[i * dim + c] / (float)g->count[j];
    }
}

/* Clusters positions first .. first + n - 1 of all lanes of a layer; the first cluster is `cluster`. */
static int retro_cluster(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t n,
                         int32_t cluster)
{
    const struct retro_opts *o = ctx->opts;
    int32_t dim = ctx->shape->head_dim;
    struct retro_segment g = { .first = first, .n = n, .n_clusters = retro_clusters_of(o, n) };
    struct kvl_rows keys, values, spans, order;
    size_t n_key = (size_t)n * (size_t)dim, clusters = (size_t)g.n_clusters;
    size_t room = KVL_KMEANS_TILE * (clusters + (size_t)dim) + 2 * clusters + (size_t)n;
    KVL_TRY(kvl_scratch_get(ctx, n_key, &g.key));
    KVL_TRY(kvl_scratch_get(ctx, n_key, &g.value));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)dim, &g.mean));
    KVL_TRY(kvl_scratch_get(ctx, room, &g.room));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &g.assign));
    KVL_TRY(kvl_scratch_get(ctx, clusters, &g.count));
    KVL_TRY(kvl_table_write(ctx, o->keys, layer, cluster, &keys));
    KVL_TRY(kvl_table_write(ctx, o->values, layer, cluster, &values));
    KVL_TRY(kvl_table_write(ctx, o->spans, layer, cluster, &spans));
    KVL_TRY(kvl_table_write(ctx, o->order, layer, first - o->sink, &order));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        g.mean_key = kvl_table_row_out(&keys, h, 0);
        g.mean_value = kvl_table_row_out(&values, h, 0);
        g.span = kvl_table_row_out(&spans, h, 0);
        g.order = kvl_table_row_out(&order, h, 0);
        KVL_TRY(kvl_read_key_span(ctx, layer, h, first, n, false, g.key));
        KVL_TRY(kvl_read_value_span(ctx, layer, h, first, n, g.value));
        retro_centre(g.key, g.mean, n, dim);
        KVL_TRY(ctx->ops->kmeans(&(struct kvl_kmeans_args){ .centroid = g.mean_key,
                                                            .assign = g.assign,
                                                            .count = g.count,
                                                            .x = g.key,
                                                            .x_stride = (size_t)dim,
                                                            .n = n,
                                                            .dim = dim,
                                                            .n_clusters = g.n_clusters,
                                                            .n_iter = o->iters,
                                                            .cosine = true,
                                                            .work = g.room }));
        retro_members(&g, o->sink, dim);
    }
    return KVL_OK;
}

static int retro_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct retro_opts *o = ctx->opts;
    int32_t end = retro_extent(ctx, ctx->context_tok).end;
    for (int32_t at = o->sink, cluster = 0; at < end; at += o->segment) {
        int32_t n = KVL_MIN(o->segment, end - at);
        KVL_TRY(retro_cluster(ctx, layer, at, n, cluster));
        cluster += retro_clusters_of(o, n);
    }
    return KVL_OK;
}

/* A segment is full: `update` tokens have left the last `local`. */
static int retro_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                        const float *v)
{
    (void)k;
    (void)v;
    struct retro_extent before = retro_extent(ctx, step->pos),
                        now = retro_extent(ctx, step->pos + 1);
    if (now.end == before.end) return KVL_OK;
    return retro_cluster(ctx, step->layer, before.end, now.end - before.end, before.n_clusters);
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
    int32_t *best;              /* [n_ranked] clusters of one kv head, best first */
    int32_t *pos;
    struct kvl_rows spans, order, values;
};

static int retro_buffers(const struct kvl_pctx *ctx, const struct kvl_step *step,
                         struct retro_step *t)
{
    const struct retro_opts *o = ctx->opts;
    size_t ranked = (size_t)t->n_ranked;
    KVL_TRY(kvl_scratch_get(ctx, ranked * (size_t)ctx->shape->group, &t->part));
    KVL_TRY(kvl_scratch_get(ctx, ranked * (size_t)ctx->shape->head_dim, &t->value));
    KVL_TRY(kvl_scratch_get(ctx, ranked, &t->best));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)t->room, &t->pos));
    KVL_TRY(kvl_table_read(ctx, o->spans, step->layer, t->x.n_clusters, &t->spans));
    KVL_TRY(kvl_table_peek(ctx, o->values, step->layer, t->x.n_clusters, &t->values));
    return kvl_table_peek(ctx, o->order, step->layer, t->x.end - o->sink, &t->order);
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
    struct kvl_table_scores s = { .table = o->keys, .layer = step->layer, .n_rows = n, .q = q };
    s.scale = ctx->shape->scale;
    s.score = t->logit;
    KVL_TRY(kvl_table_scores(ctx, &s));
    KVL_TRY(kvl_cap(ctx, t->logit, all));
    memcpy(weight, t->logit, all * sizeof *weight);
    KVL_TRY(kvl_softmax(ctx, weight, n_heads, n));
    return kvl_group_scores(ctx, weight, n, KVL_REDUCE_SUM, t->score);
}

/* Retrieval zone: tokens of the best clusters while they fit.  These clusters are *taken. */
static int retro_retrieve(const struct kvl_pctx *ctx, const struct retro_step *t, int32_t h,
                          struct kvl_sel *sel, int32_t *taken)
{
    int32_t n_tok = 0, n = KVL_MIN(t->retrieve, t->n_ranked);
    for (*taken = 0; *taken < n; ++*taken) {
        const int32_t *span = kvl_table_row(&t->spans, h, t->best[*taken]);
        if (n_tok + span[1] > t->room) break;
        for (int32_t i = 0; i < span[1]; i++)
            t->pos[n_tok++] = *(const int32_t *)kvl_table_row(&t->order, h, span[0] + i);
    }
    kvl_ascending(t->pos, n_tok);
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, t->pos, n_tok));
    return kvl_meta_count(ctx, ((const struct retro_opts *)ctx->opts)->order, n_tok);
}

/* Estimation zone: each of the next clusters weighs size x exp(q . mean / sqrt(d)) (Eq. 4, 5). */
static int retro_estimate(const struct kvl_pctx *ctx, const struct retro_step *t, int32_t h,
                          int32_t taken, struct kvl_sel *sel)
{
    int32_t group = ctx->shape->group, n = KVL_MIN(t->estimate, t->n_ranked - taken);
    size_t dim = (size_t)ctx->shape->head_dim, n_clusters = (size_t)t->x.n_clusters;
    for (int32_t i = 0; i < n; i++) {
        int32_t cluster = t->best[taken + i];
        const int32_t *span = kvl_table_row(&t->spans, h, cluster);
        for (int32_t g = 0; g < group; g++)
            t->part[g * n + i] = t->logit[(size_t)(h * group + g) * n_clusters + (size_t)cluster] +
                                 logf((float)span[1]);
        memcpy(t->value + (size_t)i * dim, kvl_table_row(&t->values, h, cluster),
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
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        const float *score = t.score + (size_t)h * (size_t)t.x.n_clusters;
        KVL_TRY(kvl_topk_ranked(ctx, score, t.x.n_clusters, t.n_ranked, t.best));
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
    .caps = KVL_CAP_SELECTS | KVL_CAP_ESTIMATES | KVL_CAP_OFFLOADS | KVL_CAP_SHARES_META,
    .opts = retro_options,
    .opts_size = sizeof(struct retro_opts),
    .min_budget = retro_min_budget,
    .plan = retro_plan,
    .append = retro_append,
    .prefilled = retro_prefilled,
    .select = retro_select,
};

KVL_POLICY_EXPORT(retroinfer)
