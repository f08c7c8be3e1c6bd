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
 * What we follow of the official code: ranking without sizes; segments of 8192 tokens of the context;
 * 16 tokens per cluster; decoded tokens stay in the steady zone until `update` of them have left the
 * last `local`, then become a segment of their own (official: 1024).
 * Deviations: as many clusters are retrieved as fit in the budget (official: a share of them, 1.8 %;
 * option retrieve); `update` shrinks with the budget, since what waits is attended; an empty cluster
 * takes the token that fits worst (official: it stays empty, and is masked); clusters begin as evenly
 * spaced tokens.  The device cache replaces the least recently used token, not the page of a cluster.
 *
 * Budget B: sink = 4, local = min(64, B / 4), update = min(1024, B / 8) rounded down to whole clusters,
 * and retrieved tokens up to B, the current one included.  The estimation zone reads no token: its
 * means and sizes are counted as index bytes.
 *
 * Cost per step and layer: H d multiply-adds for each of n / per_cluster clusters, a softmax and a sort
 * of the best of them, d for each estimated cluster and query head.  Once: `iters` rounds of n x
 * 8192 / per_cluster x d multiply-adds per kv head; the same for `update` tokens in every `update`
 * steps. */
#include "retroinfer_index.h"

#include "kvl/policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct kvl_opt retro_options[] = {
    { .name = "sink",
      .type = KVL_OPT_INT,
      .off = offsetof(struct retro_opts, sink),
      .def = "4",
      .min = 0,
      .max = 1 << 20,
      .help = "first tokens, always read (paper: 4)" },
    { .name = "local",
      .type = KVL_OPT_INT,
      .off = offsetof(struct retro_opts, local),
      .def = "auto",
      .min = 1,
      .max = 1 << 20,
      .help = "last tokens, always read (paper: 64); auto = min(64, budget / 4)" },
    { .name = "segment",
      .type = KVL_OPT_INT,
      .off = offsetof(struct retro_opts, segment),
      .def = "8192",
      .min = 1,
      .max = 1 << 24,
      .help = "tokens of the context that are clustered together (paper: 8192)" },
    { .name = "update",
      .type = KVL_OPT_INT,
      .off = offsetof(struct retro_opts, update),
      .def = "auto",
      .min = 1,
      .max = 1 << 24,
      .help = "decoded tokens that become a segment (official: 1024), a multiple of per_cluster; "
              "auto = min(1024, budget / 8)",
      .not_in_tables = true },
    { .name = "per_cluster",
      .type = KVL_OPT_INT,
      .off = offsetof(struct retro_opts, per_cluster),
      .def = "16",
      .min = 1,
      .max = 4096,
      .help = "tokens of a cluster on average (paper: 16)" },
    { .name = "iters",
      .type = KVL_OPT_INT,
      .off = offsetof(struct retro_opts, iters),
      .def = "10",
      .min = 1,
      .max = 1000,
      .help = "rounds of k-means (paper: 10)" },
    { .name = "retrieve",
      .type = KVL_OPT_FLOAT,
      .off = offsetof(struct retro_opts, retrieve),
      .def = "1",
      .min = 0,
      .max = 1,
      .help = "share of the clusters that is read exactly at most (official: 0.018); 1 = what the "
              "budget holds",
      .not_in_tables = true },
    { .name = "estimate",
      .type = KVL_OPT_FLOAT,
      .off = offsetof(struct retro_opts, estimate),
      .def = "0.232",
      .min = 0,
      .max = 1,
      .help = "share of the clusters that is estimated (paper: 0.232)",
      .not_in_tables = true },
    { .name = "offload",
      .type = KVL_OPT_BOOL,
      .off = offsetof(struct retro_opts, offload),
      .def = "true",
      .help = "clustered tokens lie in the host tier, as published",
      .not_in_tables = true },
    { .name = "cache",
      .type = KVL_OPT_FLOAT,
      .off = offsetof(struct retro_opts, cache),
      .def = "0.05",
      .min = 0,
      .max = 1,
      .help = "share of the context that stays on the device once fetched (paper: 0.05)",
      .not_in_tables = true },
    { 0 },
};

static int32_t retro_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct retro_opts *o = opts;
    (void)shape;
    int32_t local = o->local == KVL_AUTO ? 4 : o->local;
    int32_t update = o->update == KVL_AUTO ? o->per_cluster : o->update;
    return o->sink + local + update + 1;
}

static int retro_sizes(struct kvl_plan *plan, struct retro_opts *o)
{
    int32_t least = retro_min_budget(plan->shape, o), budget = plan->budget_tok;
    if (budget < least)
        return kvl_fail(
            plan->err, KVL_EINVAL,
            "budget %d; give %d or more (sink, local, what waits to be clustered, and a "
            "token)",
            budget, least);
    if (o->local == KVL_AUTO)
        o->local = KVL_MIN(KVL_MIN(64, KVL_MAX(4, budget / 4)), 4 + budget - least);
    if (o->update == KVL_AUTO) {
        int32_t left = KVL_MIN(1024, KVL_MIN(budget / 8, budget - o->sink - o->local - 1));
        o->update = KVL_MAX(o->per_cluster, left / o->per_cluster * o->per_cluster);
    }
    if (o->update % o->per_cluster != 0 || o->segment % o->per_cluster != 0)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "segment=%d and update=%d; give multiples of per_cluster, %d", o->segment,
                        o->update, o->per_cluster);
    least = retro_min_budget(plan->shape, o);
    if (budget >= least) return KVL_OK;
    return kvl_fail(plan->err, KVL_EINVAL, "budget %d with update=%d; give %d or more", budget,
                    o->update, least);
}

static int retro_plan(struct kvl_plan *plan)
{
    struct retro_opts *o = plan->opts;
    KVL_TRY(retro_sizes(plan, o));
    plan->replay = KVL_REPLAY_NONE; /* prefilled sees the whole context */
    struct kvl_meta_desc spans = {
        .unit = KVL_META_PAGE, .unit_tok = o->per_cluster, .row_elems = 2, .elem = KVL_META_I32
    };
    struct kvl_meta_desc order = {
        .unit = KVL_META_PAGE, .unit_tok = 1, .row_elems = 1, .elem = KVL_META_I32
    };
    KVL_TRY(kvl_plan_meta(plan, KVL_META_PAGE, o->per_cluster, plan->shape->head_dim, &o->keys));
    KVL_TRY(kvl_plan_meta(plan, KVL_META_PAGE, o->per_cluster, plan->shape->head_dim, &o->values));
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

/* ---- the index --------------------------------------------------------------------------------- */

static int retro_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct retro_opts *o = ctx->opts;
    int32_t end = retro_extent(ctx, ctx->context_tok).end;
    for (int32_t at = o->sink, cluster = 0; at < end; at += o->segment) {
        int32_t n = KVL_MIN(o->segment, end - at);
        KVL_TRY(retro_segment(ctx, layer, at, n, cluster));
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
    return retro_segment(ctx, step->layer, before.end, now.end - before.end, before.n_clusters);
}

/* ---- selection ------------------------------------------------------------------------------------- */

/* The rows of a lane, in two pieces. */
static const void *retro_row(const struct kvl_meta_part part[2], size_t elem, int32_t kv_head,
                             int32_t row, size_t row_elems)
{
    const struct kvl_meta_part *p = &part[row >= part[0].n_rows];
    size_t at = (size_t)(row >= part[0].n_rows ? row - part[0].n_rows : row);
    return (const char *)p->data + ((size_t)kv_head * p->head_stride + at * row_elems) * elem;
}

/* logit [n_heads][n]: q . mean / sqrt(d). */
static int retro_logits(const struct kvl_pctx *ctx, int32_t layer, const float *q, int32_t n,
                        float *logit)
{
    const struct retro_opts *o = ctx->opts;
    const struct kvl_shape *sh = ctx->shape;
    struct kvl_meta_part part[2];
    size_t dim = (size_t)sh->head_dim;
    KVL_TRY(kvl_meta_rows(ctx, o->keys, layer, n, part));
    for (int32_t h = 0; h < sh->n_heads; h++) {
        size_t kv_head = (size_t)(h / (sh->n_heads / sh->n_kv_heads));
        float *y = logit + (size_t)h * (size_t)n;
        for (int32_t i = 0; i < 2; y += part[i++].n_rows) {
            if (part[i].n_rows == 0) continue;
            struct kvl_weight w = { .data =
                                        (const float *)part[i].data + kv_head * part[i].head_stride,
                                    .type = KVL_W_F32,
                                    .n_rows = part[i].n_rows,
                                    .n_cols = sh->head_dim,
                                    .row_bytes = dim * sizeof(float) };
            KVL_TRY(ctx->ops->gemv(
                &(struct kvl_gemv_args){ .y = y, .x = q + (size_t)h * dim, .w = &w, .n = 1 }));
        }
    }
    float scale = 1 / sqrtf((float)sh->head_dim);
    for (size_t i = 0; i < (size_t)sh->n_heads * (size_t)n; i++) logit[i] *= scale;
    return KVL_OK;
}

struct retro_rank {
    float score;
    int32_t cluster;
};

static int retro_before(const void *a, const void *b)
{
    const struct retro_rank *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->cluster < y->cluster ? -1 : 1;
}

static int retro_ascends(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Clusters of one kv head, best first, at most m. */
static int retro_best(const struct kvl_pctx *ctx, const float *score, int32_t n, int32_t m,
                      struct retro_rank *rank, int32_t *index)
{
    KVL_TRY(ctx->ops->topk(&(struct kvl_topk_args){
        .index = index, .x = score, .x_stride = (size_t)n, .n_rows = 1, .n = n, .k = m }));
    for (int32_t i = 0; i < m; i++) rank[i] = (struct retro_rank){ score[index[i]], index[i] };
    qsort(rank, (size_t)m, sizeof *rank, retro_before);
    return KVL_OK;
}

/* What select works with. */
struct retro_step {
    struct retro_extent x;
    int32_t room;     /* tokens that the retrieval zone may have */
    int32_t n_ranked; /* clusters that are ranked */
    int32_t retrieve, estimate;
    float *logit; /* [n_heads][clusters] */
    float *score; /* [n_kv_heads][clusters] */
    float *part;  /* logits and values of the estimation zone */
    struct retro_rank *rank;
    int32_t *index, *pos;
    struct kvl_meta_part spans[2], order[2], values[2];
};

/* Takes the tokens of the best clusters while they fit, and counts these clusters in *taken. */
static int retro_retrieve(const struct kvl_pctx *ctx, const struct retro_step *t, int32_t h,
                          int32_t *n_pos, int32_t *taken)
{
    int32_t n_tok = 0, n = KVL_MIN(t->retrieve, t->n_ranked);
    for (*taken = 0; *taken < n; ++*taken) {
        const int32_t *span = retro_row(t->spans, sizeof *span, h, t->rank[*taken].cluster, 2);
        if (n_tok + span[1] > t->room) break;
        for (int32_t i = 0; i < span[1]; i++)
            t->pos[(*n_pos)++] =
                *(const int32_t *)retro_row(t->order, sizeof(int32_t), h, span[0] + i, 1);
        n_tok += span[1];
    }
    return kvl_meta_count(ctx, ((const struct retro_opts *)ctx->opts)->order, n_tok);
}

/* The next clusters as one entry each. */
static int retro_estimate(const struct kvl_pctx *ctx, const struct retro_step *t, int32_t h,
                          int32_t taken, struct kvl_sel *sel)
{
    int32_t group = ctx->shape->n_heads / ctx->shape->n_kv_heads;
    int32_t n = KVL_MIN(t->estimate, t->n_ranked - taken);
    size_t dim = (size_t)ctx->shape->head_dim, n_clusters = (size_t)t->x.n_clusters;
    float *value = t->part + (size_t)group * (size_t)n;
    for (int32_t i = 0; i < n; i++) {
        int32_t cluster = t->rank[taken + i].cluster;
        const int32_t *span = retro_row(t->spans, sizeof *span, h, cluster, 2);
        for (int32_t g = 0; g < group; g++)
            t->part[g * n + i] = t->logit[(size_t)(h * group + g) * n_clusters + (size_t)cluster] +
                                 logf((float)span[1]);
        memcpy(value + (size_t)i * dim, retro_row(t->values, sizeof *value, h, cluster, dim),
               dim * sizeof *value);
    }
    return kvl_sel_pseudo(sel, h, t->part, value, n);
}

static int retro_lane(const struct kvl_pctx *ctx, const struct kvl_step *step, struct retro_step *t,
                      int32_t h, struct kvl_sel *sel)
{
    const struct retro_opts *o = ctx->opts;
    int32_t n_pos = 0, taken;
    KVL_TRY(retro_best(ctx, t->score + (size_t)h * (size_t)t->x.n_clusters, t->x.n_clusters,
                       t->n_ranked, t->rank, t->index));
    for (int32_t i = 0; i < o->sink; i++) t->pos[n_pos++] = i;
    KVL_TRY(retro_retrieve(ctx, t, h, &n_pos, &taken));
    qsort(t->pos + o->sink, (size_t)(n_pos - o->sink), sizeof *t->pos, retro_ascends);
    for (int32_t i = t->x.end; i <= step->pos; i++) t->pos[n_pos++] = i;
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, t->pos, n_pos));
    return retro_estimate(ctx, t, h, taken, sel);
}

static int retro_buffers(const struct kvl_pctx *ctx, const struct kvl_step *step,
                         struct retro_step *t)
{
    const struct retro_opts *o = ctx->opts;
    size_t n = (size_t)t->x.n_clusters, heads = (size_t)ctx->shape->n_heads;
    size_t lanes = (size_t)ctx->shape->n_kv_heads, ranked = (size_t)t->n_ranked;
    t->logit = kvl_scratch(ctx, heads * n);
    t->score = kvl_scratch(ctx, (heads + lanes) * n);
    t->part = kvl_scratch(ctx, ranked * (heads / lanes + (size_t)ctx->shape->head_dim) + 1);
    t->rank = (void *)kvl_scratch(ctx, 2 * ranked + 1);
    t->index = (void *)kvl_scratch(ctx, ranked + 1);
    t->pos = (void *)kvl_scratch(ctx, (size_t)(o->sink + t->room + step->pos + 1 - t->x.end));
    if (!t->logit || !t->score || !t->part || !t->rank || !t->index || !t->pos)
        return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d clusters", t->x.n_clusters);
    KVL_TRY(kvl_meta_rows(ctx, o->spans, step->layer, t->x.n_clusters, t->spans));
    KVL_TRY(kvl_meta_peek(ctx, o->values, step->layer, t->x.n_clusters, t->values));
    return kvl_meta_peek(ctx, o->order, step->layer, t->x.end - o->sink, t->order);
}

/* score [n_kv_heads][n]: the group's softmaxes, added up. */
static int retro_scores(const struct kvl_pctx *ctx, const struct retro_step *t)
{
    const struct kvl_shape *sh = ctx->shape;
    int32_t n = t->x.n_clusters;
    float *weight = t->score + (size_t)sh->n_kv_heads * (size_t)n;
    memcpy(weight, t->logit, (size_t)sh->n_heads * (size_t)n * sizeof *weight);
    KVL_TRY(ctx->ops->softmax(&(struct kvl_softmax_args){
        .x = weight, .stride = (size_t)n, .n_rows = sh->n_heads, .n = n }));
    return ctx->ops->group_reduce(&(struct kvl_group_reduce_args){ .y = t->score,
                                                                   .x = weight,
                                                                   .x_stride = (size_t)n,
                                                                   .n = n,
                                                                   .n_heads = sh->n_heads,
                                                                   .n_kv_heads = sh->n_kv_heads,
                                                                   .reduce = KVL_REDUCE_SUM });
}

static int retro_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct retro_opts *o = ctx->opts;
    struct retro_step t = { .x = retro_extent(ctx, step->pos + 1) };
    t.room = ctx->budget_tok - o->sink - (step->pos + 1 - t.x.end);
    if (step->pos < ctx->budget_tok || t.x.n_clusters == 0) return KVL_OK;
    t.room = KVL_MAX(0, t.room);
    t.retrieve = (int32_t)ceil(o->retrieve * t.x.n_clusters);
    t.estimate = (int32_t)ceil(o->estimate * t.x.n_clusters);
    int64_t most = (int64_t)KVL_MIN(t.retrieve, t.room) + t.estimate;
    t.n_ranked = (int32_t)KVL_MIN(most, t.x.n_clusters);
    KVL_TRY(retro_buffers(ctx, step, &t));
    KVL_TRY(retro_logits(ctx, step->layer, q->q, t.x.n_clusters, t.logit));
    KVL_TRY(retro_scores(ctx, &t));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) KVL_TRY(retro_lane(ctx, step, &t, h, sel));
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
        "group's softmaxes over their mean keys, added up; a steady zone of the first and the last "
        "tokens; estimated clusters weigh their size and give the mean of their values.",
    .deviations =
        "As many clusters are read as the budget holds, where the original reads a share of them. "
        "Decoded tokens become a segment in portions that fit the budget. An empty cluster takes "
        "the "
        "token that fits worst. The device cache holds tokens, not pages of clusters.",
    .cost = "Per step and layer d products for each of n / per_cluster clusters and query head, a "
            "softmax and a sort of the best, d values read for each estimated cluster. Once iters "
            "rounds "
            "of k-means over all keys. Memory: 2 d + 2 values per cluster and a number per token, "
            "per kv "
            "head.",
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
