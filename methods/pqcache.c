/* pqcache - reads the tokens whose product-quantised keys match the query best.
 *
 * Zhang et al.: PQCache: Product Quantization-based KVCache for Long Context LLM Inference, SIGMOD 2025
 * (arXiv 2407.12820), section 3.2.  When the context is complete, the keys of every kv head (after
 * RoPE) are cut in n_subvec pieces, and each piece is clustered in 2^n_subbits groups: a key becomes
 * n_subvec codes.  A step multiplies the query with the centroids alone and looks the scores of all
 * tokens up:
 *     s[i] = sum over pieces of q_piece . centroid[code of piece of i] / sqrt(d)
 * and reads, exactly, sink_size first tokens, recent_size tokens before the current one, and of those
 * between them the topk_size best.
 *
 * What we follow of the official code:
 *   - scores of the query heads of a kv head: softmax over the candidates, then their sum; one list per
 *     kv head.  The paper's text sums scores: option group=sum
 *   - clusters are formed once; a decoded token gets the codes of its nearest centroids.  There it
 *     happens when it leaves the recent window, here when it comes: the codes are the same
 *   - first half of what is left behind the sink is recent, the other is chosen (recent_ratio 0.5)
 * Deviations: clusters are formed from the positions behind the 32 first whatever sink_size is, so that
 * codes do not depend on the budget; max_iter is fixed (paper: as many rounds as the prefill hides).
 * The GPU cache of what is fetched replaces the least often used token; the original caches blocks of
 * 128 tokens, of which it fetches the missing tokens alone.
 *
 * Budget B: sink_size = min(32, B / 4), topk_size = half of the rest, recent_size the other half, and
 * the current token.  Everything is read while it fits in B.
 *
 * Cost per step and layer: H 2^n_subbits d multiply-adds for the table of a query; n_subvec additions
 * for each of n tokens and H query heads, and a byte read for each of n_subvec pieces of n tokens per kv
 * head; a softmax and a top-k of n.  A token that comes: 2^n_subbits d multiply-adds per kv head.  Once:
 * max_iter rounds of n 2^n_subbits d multiply-adds per kv head. */
#include "kvl/policy.h"

#include <math.h>
#include <string.h>

enum {
    PQ_SKIP = 32
}; /* first positions, of which no clusters are formed: their keys are unlike others */

enum pq_group { PQ_GROUP_SOFTMAX, PQ_GROUP_SUM };

struct pqcache_opts {
    int32_t sink_size, recent_size, topk_size, n_subvec, n_subbits, max_iter, group, cache_tok;
    bool offload;
    int32_t codes, centroids; /* tables */
};

static const char *const pqcache_groups[] = { "softmax", "sum", NULL };

static const struct kvl_opt pqcache_options[] = {
    { .name = "sink_size",
      .type = KVL_OPT_INT,
      .off = offsetof(struct pqcache_opts, sink_size),
      .def = "auto",
      .min = 0,
      .max = 1 << 20,
      .help = "first tokens, always read (official: 32); auto = min(32, budget / 4)",
      .not_in_tables = true },
    { .name = "recent_size",
      .type = KVL_OPT_INT,
      .off = offsetof(struct pqcache_opts, recent_size),
      .def = "auto",
      .min = 0,
      .max = 1 << 30,
      .help = "tokens before the current one, always read; auto = half of what is left",
      .not_in_tables = true },
    { .name = "topk_size",
      .type = KVL_OPT_INT,
      .off = offsetof(struct pqcache_opts, topk_size),
      .def = "auto",
      .min = 1,
      .max = 1 << 30,
      .help = "tokens chosen in every step; auto = the rest",
      .not_in_tables = true },
    { .name = "n_subvec",
      .type = KVL_OPT_INT,
      .off = offsetof(struct pqcache_opts, n_subvec),
      .def = "2",
      .min = 1,
      .max = 64,
      .help = "pieces of a key (paper: 2); divides the head dimension" },
    { .name = "n_subbits",
      .type = KVL_OPT_INT,
      .off = offsetof(struct pqcache_opts, n_subbits),
      .def = "6",
      .min = 1,
      .max = 8,
      .help = "bits of a piece's code (paper: 6): 2^n_subbits centroids" },
    { .name = "max_iter",
      .type = KVL_OPT_INT,
      .off = offsetof(struct pqcache_opts, max_iter),
      .def = "10",
      .min = 1,
      .max = 1000,
      .help = "rounds of k-means (paper: what the prefill hides)" },
    { .name = "group",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct pqcache_opts, group),
      .def = "softmax",
      .choices = pqcache_groups,
      .help = "query heads of a kv head: sum of softmaxes (official code), or sum of scores",
      .not_in_tables = true },
    { .name = "offload",
      .type = KVL_OPT_BOOL,
      .off = offsetof(struct pqcache_opts, offload),
      .def = "true",
      .help = "what is neither first nor recent lies in the host tier, as published",
      .not_in_tables = true },
    { .name = "cache_tok",
      .type = KVL_OPT_INT,
      .off = offsetof(struct pqcache_opts, cache_tok),
      .def = "auto",
      .min = 0,
      .max = 1 << 30,
      .help = "fetched tokens of a lane that stay on the device, least often used first to go; "
              "auto = topk_size",
      .not_in_tables = true },
    { 0 },
};

static int32_t pqcache_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct pqcache_opts *o = opts;
    (void)shape;
    return KVL_MAX(o->sink_size, 0) + KVL_MAX(o->recent_size, 1) + KVL_MAX(o->topk_size, 1) + 1;
}

/* Sizes that were not given share what the others leave; min_budget sees that there is enough. */
static void pqcache_sizes(int32_t budget, struct pqcache_opts *o)
{
    int32_t left = budget - 1 - KVL_MAX(o->recent_size, 1) - KVL_MAX(o->topk_size, 1);
    if (o->sink_size == KVL_AUTO) o->sink_size = KVL_MIN(left, KVL_MIN(32, budget / 4));
    int32_t rest = budget - 1 - o->sink_size;
    if (o->topk_size == KVL_AUTO)
        o->topk_size = o->recent_size == KVL_AUTO ? rest - rest / 2 : rest - o->recent_size;
    if (o->recent_size == KVL_AUTO) o->recent_size = rest - o->topk_size;
    if (o->cache_tok == KVL_AUTO) o->cache_tok = o->topk_size;
}

static int pqcache_plan(struct kvl_plan *plan)
{
    struct pqcache_opts *o = plan->opts;
    int32_t dim = plan->shape->head_dim;
    if (dim % o->n_subvec != 0)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "n_subvec=%d; give a divisor of the head dimension, %d", o->n_subvec, dim);
    bool given = o->sink_size != KVL_AUTO && o->recent_size != KVL_AUTO && o->topk_size != KVL_AUTO;
    if (!given && plan->budget_tok < pqcache_min_budget(plan->shape, o))
        return kvl_fail(plan->err, KVL_EINVAL, "budget %d; give %d or more, or all three sizes",
                        plan->budget_tok, pqcache_min_budget(plan->shape, o));
    pqcache_sizes(plan->budget_tok, o);
    plan->replay = KVL_REPLAY_NONE; /* prefilled sees the whole context */
    struct kvl_meta_desc codes = {
        .unit = KVL_META_PAGE, .unit_tok = 1, .row_elems = o->n_subvec, .elem = KVL_META_U8
    };
    struct kvl_meta_desc centroids = { .unit = KVL_META_LANE,
                                       .unit_tok = 1,
                                       .row_elems = dim << o->n_subbits };
    KVL_TRY(kvl_plan_meta_desc(plan, &codes, &o->codes));
    KVL_TRY(kvl_plan_meta_desc(plan, &centroids, &o->centroids));
    if (!o->offload) return KVL_OK;
    return kvl_plan_offload(plan, &(struct kvl_offload){ .keep_first = o->sink_size,
                                                         .keep_last = o->recent_size + 1,
                                                         .unit_tok = 1,
                                                         .cache_tok = o->cache_tok,
                                                         .replace = KVL_REPLACE_LFU });
}

/* ---- codes ------------------------------------------------------------------------------------- */

/* Positions of the context that clusters are formed of, and their number. */
static int32_t pqcache_first(const struct kvl_pctx *ctx)
{
    return KVL_MIN(PQ_SKIP, ctx->context_tok / 2);
}

static int32_t pqcache_clusters(const struct kvl_pctx *ctx)
{
    const struct pqcache_opts *o = ctx->opts;
    return KVL_MIN(1 << o->n_subbits, ctx->context_tok - pqcache_first(ctx));
}

struct pq_work {
    int32_t *assign, *count;
    float *room;
};

static int pqcache_work(const struct kvl_pctx *ctx, int32_t n, struct pq_work *out)
{
    const struct pqcache_opts *o = ctx->opts;
    size_t clusters = (size_t)1 << o->n_subbits, dim = (size_t)ctx->shape->head_dim;
    out->assign = (void *)kvl_scratch(ctx, (size_t)n);
    out->count = (void *)kvl_scratch(ctx, clusters);
    out->room = kvl_scratch(ctx, KVL_KMEANS_TILE * (clusters + dim) + 2 * clusters + (size_t)n);
    if (out->assign && out->count && out->room) return KVL_OK;
    return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for the codes of %d tokens", n);
}

/* Codes of n keys, stride floats apart, into rows of the lane's codes; max_iter rounds form the
 * centroids of `of` of them, from key `first` on, before. */
static int pqcache_encode(const struct kvl_pctx *ctx, const struct pq_work *w, float *centroids,
                          uint8_t *codes, const float *keys, size_t stride, int32_t n,
                          int32_t first)
{
    const struct pqcache_opts *o = ctx->opts;
    int32_t dim = ctx->shape->head_dim / o->n_subvec;
    for (int32_t s = 0; s < o->n_subvec; s++) {
        struct kvl_kmeans_args a = { .centroid = centroids + (size_t)(s * dim << o->n_subbits),
                                     .assign = w->assign,
                                     .count = w->count,
                                     .x = keys + s * dim,
                                     .x_stride = stride,
                                     .n = n,
                                     .dim = dim,
                                     .n_clusters = pqcache_clusters(ctx),
                                     .work = w->room };
        struct kvl_kmeans_args form = a;
        form.x += (size_t)KVL_MAX(first, 0) * stride;
        form.n -= first;
        form.n_iter = o->max_iter;
        if (first >= 0) KVL_TRY(ctx->ops->kmeans(&form));
        KVL_TRY(ctx->ops->kmeans(&a));
        for (int32_t i = 0; i < n; i++)
            codes[(size_t)i * (size_t)o->n_subvec + (size_t)s] = (uint8_t)w->assign[i];
    }
    return KVL_OK;
}

static int pqcache_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct pqcache_opts *o = ctx->opts;
    int32_t n = ctx->context_tok;
    size_t dim = (size_t)ctx->shape->head_dim;
    struct kvl_meta_view codes, centroids;
    struct pq_work w;
    if (n == 0) return KVL_OK;
    KVL_TRY(kvl_meta_from(ctx, o->codes, layer, 0, &codes));
    KVL_TRY(kvl_meta_from(ctx, o->centroids, layer, 0, &centroids));
    KVL_TRY(pqcache_work(ctx, n, &w));
    float *keys = kvl_scratch(ctx, (size_t)n * dim);
    int32_t *pos = (void *)kvl_scratch(ctx, (size_t)n);
    if (!keys || !pos) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d keys", n);
    for (int32_t i = 0; i < n; i++) pos[i] = i;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        size_t lane = (size_t)h;
        KVL_TRY(kvl_read_keys(ctx, layer, h, pos, n, false, keys));
        KVL_TRY(pqcache_encode(ctx, &w, centroids.base + lane * centroids.head_stride,
                               (uint8_t *)codes.data + lane * codes.head_stride, keys, dim, n,
                               pqcache_first(ctx)));
    }
    return KVL_OK;
}

/* Decoded tokens. */
static int pqcache_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                          const float *v)
{
    const struct pqcache_opts *o = ctx->opts;
    size_t dim = (size_t)ctx->shape->head_dim, row = (size_t)ctx->shape->n_kv_heads * dim;
    struct kvl_meta_view codes;
    struct kvl_meta_part centroids[2];
    struct pq_work w;
    (void)v;
    if (ctx->context_tok == 0) return KVL_OK;
    KVL_TRY(kvl_meta_from(ctx, o->codes, step->layer, step->pos, &codes));
    KVL_TRY(kvl_meta_peek(ctx, o->centroids, step->layer, 1, centroids));
    const struct kvl_meta_part *from = &centroids[centroids[0].n_rows == 0];
    KVL_TRY(pqcache_work(ctx, step->n_tok, &w));
    float *copy = kvl_scratch(ctx, dim << o->n_subbits);
    if (!copy) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for centroids");
    for (size_t h = 0; h < (size_t)ctx->shape->n_kv_heads; h++) {
        memcpy(copy, (const float *)from->data + h * from->head_stride,
               (dim << o->n_subbits) * sizeof *copy);
        KVL_TRY(pqcache_encode(ctx, &w, copy, (uint8_t *)codes.data + h * codes.head_stride,
                               k + h * dim, row, step->n_tok, -1));
    }
    return KVL_OK;
}

/* ---- selection ------------------------------------------------------------------------------------ */

/* Scores [n_heads][n] of the tokens behind the sink. */
static int pqcache_scores(const struct kvl_pctx *ctx, int32_t layer, const float *q, int32_t n,
                          float *score)
{
    const struct pqcache_opts *o = ctx->opts;
    struct kvl_meta_part codes[2], centroids[2];
    size_t entries = (size_t)ctx->shape->n_heads * (size_t)(o->n_subvec << o->n_subbits);
    float *table = kvl_scratch(ctx, entries);
    if (!table) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for a table of scores");
    KVL_TRY(kvl_meta_rows(ctx, o->centroids, layer, 1, centroids));
    KVL_TRY(kvl_meta_rows(ctx, o->codes, layer, o->sink_size + n, codes));
    const struct kvl_meta_part *from = &centroids[centroids[0].n_rows == 0];
    struct kvl_pq_table_args t = { .table = table,
                                   .q = q,
                                   .centroid = from->data,
                                   .head_stride = from->head_stride,
                                   .n_heads = ctx->shape->n_heads,
                                   .n_kv_heads = ctx->shape->n_kv_heads,
                                   .head_dim = ctx->shape->head_dim,
                                   .n_sub = o->n_subvec,
                                   .n_codes = 1 << o->n_subbits,
                                   .scale = 1 / sqrtf((float)ctx->shape->head_dim) };
    KVL_TRY(ctx->ops->pq_table(&t));
    int32_t skip = o->sink_size, at = 0;
    for (int32_t i = 0; i < 2; skip -= KVL_MIN(skip, codes[i].n_rows), i++) {
        if (codes[i].n_rows <= skip) continue;
        struct kvl_pq_scores_args a = { .score = score + at,
                                        .stride = (size_t)n,
                                        .table = table,
                                        .code = (const uint8_t *)codes[i].data +
                                                (size_t)skip * (size_t)o->n_subvec,
                                        .head_stride = codes[i].head_stride,
                                        .n = codes[i].n_rows - skip,
                                        .n_heads = ctx->shape->n_heads,
                                        .group = ctx->shape->n_heads / ctx->shape->n_kv_heads,
                                        .n_sub = o->n_subvec,
                                        .n_codes = 1 << o->n_subbits };
        KVL_TRY(ctx->ops->pq_scores(&a));
        at += a.n;
    }
    return KVL_OK;
}

/* One list per kv head: the sink, the best of the n behind it, what is recent. */
static int pqcache_lists(const struct kvl_pctx *ctx, const struct kvl_step *step,
                         const float *score, int32_t n, struct kvl_sel *sel)
{
    const struct pqcache_opts *o = ctx->opts;
    int32_t k = KVL_MIN(o->topk_size, n), n_kv = ctx->shape->n_kv_heads, end = o->sink_size + n;
    int32_t *best = (void *)kvl_scratch(ctx, (size_t)n_kv * (size_t)k);
    int32_t *pos = (void *)kvl_scratch(ctx, (size_t)(o->sink_size + k + step->pos + 1 - end));
    if (!best || !pos) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d positions", k);
    struct kvl_topk_args top = {
        .index = best, .x = score, .x_stride = (size_t)n, .n_rows = n_kv, .n = n, .k = k
    };
    KVL_TRY(ctx->ops->topk(&top));
    for (int32_t h = 0; h < n_kv; h++) {
        int32_t m = 0;
        for (int32_t i = 0; i < o->sink_size; i++) pos[m++] = i;
        for (int32_t i = 0; i < k; i++) pos[m++] = o->sink_size + best[h * k + i];
        for (int32_t i = end; i <= step->pos; i++) pos[m++] = i;
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, pos, m));
    }
    return KVL_OK;
}

static int pqcache_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct pqcache_opts *o = ctx->opts;
    const struct kvl_shape *sh = ctx->shape;
    int32_t n = step->pos - o->recent_size - o->sink_size;
    if (n <= o->topk_size || ctx->context_tok == 0) return KVL_OK;
    size_t heads = (size_t)sh->n_heads, lanes = (size_t)sh->n_kv_heads;
    float *score = kvl_scratch(ctx, heads * (size_t)n);
    float *sum = kvl_scratch(ctx, lanes * (size_t)n);
    if (!score || !sum) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d scores", n);
    KVL_TRY(pqcache_scores(ctx, step->layer, q->q, n, score));
    if (o->group == PQ_GROUP_SOFTMAX)
        KVL_TRY(ctx->ops->softmax(&(struct kvl_softmax_args){
            .x = score, .stride = (size_t)n, .n_rows = sh->n_heads, .n = n }));
    KVL_TRY(ctx->ops->group_reduce(&(struct kvl_group_reduce_args){ .y = sum,
                                                                    .x = score,
                                                                    .x_stride = (size_t)n,
                                                                    .n = n,
                                                                    .n_heads = sh->n_heads,
                                                                    .n_kv_heads = sh->n_kv_heads,
                                                                    .reduce = KVL_REDUCE_SUM }));
    KVL_TRY(kvl_tap_scores(ctx, step,
                           &(struct kvl_scored){ .scope = KVL_SCOPE_KV_HEAD,
                                                 .first_tok = o->sink_size,
                                                 .unit_tok = 1,
                                                 .n = n,
                                                 .score = sum }));
    return pqcache_lists(ctx, step, sum, n, sel);
}

static const struct kvl_policy pqcache = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "pqcache",
    .title = "PQCache",
    .paper = "Zhang et al., SIGMOD 2025, arXiv 2407.12820",
    .help = "keeps all, reads the tokens whose product-quantised keys match the query best",
    .follows =
        "The official code: two pieces of six bits, clusters formed once when the context is "
        "complete, scores summed over the group after a softmax, one token list per kv head, "
        "decoded tokens encoded by the clusters of the context, a sink of 32, and the rest of the "
        "budget halved between recent and chosen tokens. group=sum adds scores without a softmax, "
        "as the text of the paper has it.",
    .deviations =
        "Clusters are formed from all positions but the 32 first, whatever the sink, in max_iter "
        "rounds that are fixed. The device cache of fetched tokens drops the least often used "
        "token, where the original caches blocks of 128. Left out: metric ip (keys with one more "
        "channel).",
    .cost =
        "Per step and layer a table of 2^n_subbits d products for each of H heads, n_subvec bytes "
        "read for each of n tokens per kv head and as many additions per query head, a softmax and "
        "a top-k of n; a new token: 2^n_subbits d products per kv head. Once max_iter rounds of n "
        "2^n_subbits d products per kv head. Memory: n_subvec bytes per token and kv head, "
        "2^n_subbits d floats per lane.",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_OFFLOADS | KVL_CAP_SHARES_META,
    .opts = pqcache_options,
    .opts_size = sizeof(struct pqcache_opts),
    .min_budget = pqcache_min_budget,
    .plan = pqcache_plan,
    .append = pqcache_append,
    .prefilled = pqcache_prefilled,
    .select = pqcache_select,
};

KVL_POLICY_EXPORT(pqcache)
