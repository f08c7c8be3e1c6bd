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
 * The official code sums softmaxes of a group's scores, the paper's text the scores: group=sum.  A decoded
 * token gets the codes of its nearest centroids when it comes (code: when it leaves the recent window).
 * Budget B: sink_size = min(32, B / 4), topk_size = half of the rest, recent_size the other half, and
 * the current token.  Everything is read while it fits in B.
 */
#include "kvl/policy.h"

#include <math.h>
#include <string.h>

/* First positions, of which no clusters are formed: their keys are unlike others. */
enum { PQ_SKIP = 32 };
enum { PQ_GROUP_SOFTMAX, PQ_GROUP_SUM };

struct pqcache_opts {
    int32_t sink_size, recent_size, topk_size, n_subvec, n_subbits, max_iter, group, cache_tok;
    bool offload;
    int32_t codes, centroids; /* tables */
};

static const char *const pqcache_groups[] = { "softmax", "sum", NULL };

static const struct kvl_opt pqcache_options[] = {
    KVL_ROW_INT(pqcache_opts, sink_size, "auto", 0, 1 << 20,
                "first tokens, always read (official: 32); auto = min(32, budget / 4)",
                .not_in_tables = true),
    KVL_ROW_INT(pqcache_opts, recent_size, "auto", 0, 1 << 30,
                "tokens before the current one, always read; auto = half of what is left",
                .not_in_tables = true),
    KVL_ROW_INT(pqcache_opts, topk_size, "auto", 1, 1 << 30,
                "tokens chosen in every step; auto = the rest", .not_in_tables = true),
    KVL_ROW_INT(pqcache_opts, n_subvec, "2", 1, 64,
                "pieces of a key (paper: 2); divides the head dimension"),
    KVL_ROW_INT(pqcache_opts, n_subbits, "6", 1, 8, "bits of a piece's code (paper: 6)"),
    KVL_ROW_INT(pqcache_opts, max_iter, "10", 1, 1000,
                "rounds of k-means (paper: what the prefill hides)"),
    KVL_ROW_ENUM(pqcache_opts, group, "softmax", pqcache_groups,
                 "query heads of a kv head: sum of softmaxes (official code), or sum of scores",
                 .not_in_tables = true),
    KVL_ROW_BOOL(pqcache_opts, offload, "true",
                 "what is neither first nor recent lies in the host tier, as published",
                 .not_in_tables = true),
    KVL_ROW_INT(pqcache_opts, cache_tok, "auto", 0, 1 << 30,
                "fetched tokens of a lane that stay on the device (LFU); auto = topk_size",
                .not_in_tables = true),
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
    if (!given) KVL_TRY(kvl_plan_needs_budget(plan));
    pqcache_sizes(plan->budget_tok, o);
    plan->replay = KVL_REPLAY_NONE; /* prefilled sees the whole context */
    KVL_TRY(kvl_plan_table(plan, &o->codes, .unit = KVL_UNIT_PAGE, .unit_tok = 1,
                           .row_elems = o->n_subvec, .elem = KVL_ELEM_U8));
    KVL_TRY(kvl_plan_table(plan, &o->centroids, .unit = KVL_UNIT_LANE, .unit_tok = 1,
                           .row_elems = dim << o->n_subbits));
    if (!o->offload) return KVL_OK;
    return kvl_plan_offload(plan, &(struct kvl_offload){ .keep_first = o->sink_size,
                                                         .keep_last = o->recent_size + 1,
                                                         .unit_tok = 1,
                                                         .cache_tok = o->cache_tok,
                                                         .replace = KVL_REPLACE_LFU });
}

/* ---- section 3.2: codes, build_index_cpu_multi_core_sklr() -------------------------------------- */

/* The first position that clusters are formed of. */
static int32_t pqcache_first(const struct kvl_pctx *ctx)
{
    return KVL_MIN(PQ_SKIP, ctx->context_tok / 2);
}

/* The same for all pieces of n keys, of which n_lanes lanes get codes of their own. */
static int pqcache_kmeans(const struct kvl_pctx *ctx, int32_t n, int32_t n_lanes,
                          struct kvl_kmeans_args *out)
{
    const struct pqcache_opts *o = ctx->opts;
    size_t clusters = (size_t)1 << o->n_subbits, dim = (size_t)ctx->shape->head_dim;
    *out = (struct kvl_kmeans_args){ .n = n,
                                     .dim = ctx->shape->head_dim / o->n_subvec,
                                     .n_clusters = KVL_MIN(1 << o->n_subbits,
                                                           ctx->context_tok - pqcache_first(ctx)) };
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(n_lanes * o->n_subvec) * (size_t)n, &out->assign));
    KVL_TRY(kvl_scratch_get(ctx, clusters, &out->count));
    return kvl_scratch_get(ctx, KVL_KMEANS_TILE * (clusters + dim) + 2 * clusters + (size_t)n,
                           &out->work);
}

/* Codes of the keys, stride floats apart, to assign [n_subvec][n]; before, where first >= 0, max_iter rounds form the
 * centroids of those from key `first` on.  Else these are only read. */
static int pqcache_encode(const struct kvl_pctx *ctx, const struct kvl_kmeans_args *piece,
                          float *centroids, const float *keys, size_t stride, int32_t first)
{
    const struct pqcache_opts *o = ctx->opts;
    for (int32_t s = 0; s < o->n_subvec; s++) {
        struct kvl_kmeans_args a = *piece;
        a.assign += (size_t)s * (size_t)a.n;
        a.centroid = centroids + (size_t)(s * a.dim << o->n_subbits);
        a.x = keys + s * a.dim;
        a.x_stride = stride;
        struct kvl_kmeans_args form = a;
        form.x += (size_t)KVL_MAX(first, 0) * stride;
        form.n -= first;
        form.n_iter = o->max_iter;
        if (first >= 0) KVL_TRY(ctx->ops->kmeans(&form));
        KVL_TRY(ctx->ops->kmeans(&a));
    }
    return KVL_OK;
}

/* They are there, and go into rows of a lane. */
static void pqcache_write(const struct pqcache_opts *o, const struct kvl_kmeans_args *piece,
                          uint8_t *codes)
{
    const int32_t *assign = piece->assign;
    for (int32_t s = 0; s < o->n_subvec; s++)
        for (int32_t i = 0; i < piece->n; i++)
            codes[(size_t)i * (size_t)o->n_subvec + (size_t)s] = (uint8_t)*assign++;
}

static int pqcache_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct pqcache_opts *o = ctx->opts;
    int32_t n = ctx->context_tok;
    size_t dim = (size_t)ctx->shape->head_dim;
    struct kvl_rows codes, centroids;
    struct kvl_kmeans_args piece;
    float *keys;
    if (n == 0) return KVL_OK;
    KVL_TRY(kvl_table_write(ctx, o->codes, layer, 0, &codes));
    KVL_TRY(kvl_table_write(ctx, o->centroids, layer, 0, &centroids));
    KVL_TRY(pqcache_kmeans(ctx, n, 1, &piece));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * dim, &keys));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        KVL_TRY(kvl_read_key_span(ctx, layer, h, 0, n, false, keys));
        KVL_TRY(pqcache_encode(ctx, &piece, kvl_table_row_out(&centroids, h, 0), keys, dim,
                               pqcache_first(ctx)));
        pqcache_write(o, &piece, kvl_table_row_out(&codes, h, 0));
    }
    return KVL_OK;
}

/* predict_index_gpu(): decoded tokens.  Of all lanes the codes are found before the host waits for them. */
static int pqcache_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                          const float *v)
{
    const struct pqcache_opts *o = ctx->opts;
    size_t dim = (size_t)ctx->shape->head_dim, n_kv = (size_t)ctx->shape->n_kv_heads;
    size_t n_codes = (size_t)(step->n_tok * o->n_subvec);
    struct kvl_rows codes, centroids;
    struct kvl_kmeans_args all, piece;
    (void)v;
    if (ctx->context_tok == 0) return KVL_OK;
    KVL_TRY(kvl_table_write(ctx, o->codes, step->layer, step->pos, &codes));
    KVL_TRY(kvl_table_operand(ctx, o->centroids, step->layer, 1, &centroids));
    KVL_TRY(pqcache_kmeans(ctx, step->n_tok, ctx->shape->n_kv_heads, &all));
    piece = all;
    for (size_t h = 0; h < n_kv; h++, piece.assign += n_codes) {
        float *centroid = (float *)(uintptr_t)kvl_table_row(&centroids, (int32_t)h, 0);
        KVL_TRY(pqcache_encode(ctx, &piece, centroid, k + h * dim, n_kv * dim, -1));
    }
    KVL_TRY(kvl_look_at(ctx, all.assign, n_kv * n_codes, sizeof *all.assign));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++, all.assign += n_codes)
        pqcache_write(o, &all, kvl_table_row_out(&codes, h, 0));
    return KVL_OK;
}

/* ---- section 3.2: selection, decoding_attn_GQA_euc() ------------------------------------------------ */

/* scale q_piece . centroid, of all pieces and centroids: in scratch [n_heads][n_subvec][codes]. */
static int pqcache_distances(const struct kvl_pctx *ctx, int32_t layer, const float *q,
                             float **table)
{
    const struct pqcache_opts *o = ctx->opts;
    const struct kvl_shape *sh = ctx->shape;
    struct kvl_rows rows;
    size_t entries = (size_t)sh->n_heads * (size_t)(o->n_subvec << o->n_subbits);
    KVL_TRY(kvl_scratch_get(ctx, entries, table));
    KVL_TRY(kvl_table_operand(ctx, o->centroids, layer, 1, &rows));
    KVL_TRY(kvl_table_count(ctx, o->centroids, (int64_t)rows.row_elems * sh->n_kv_heads));
    return ctx->ops->pq_table(&(struct kvl_pq_table_args){
        .table = *table,
        .q = q,
        .centroid = kvl_table_row(&rows, 0, 0),
        .head_stride = rows.part[rows.part[0].n_rows == 0].head_bytes / sizeof(float),
        .n_heads = sh->n_heads,
        .n_kv_heads = sh->n_kv_heads,
        .head_dim = sh->head_dim,
        .n_sub = o->n_subvec,
        .n_codes = 1 << o->n_subbits,
        .scale = sh->scale });
}

/* score [n_heads][n] = scale q . (the centroids of its codes) of the n tokens behind the first ones, which count as
 * read too. */
static int pqcache_scores(const struct kvl_pctx *ctx, int32_t layer, const float *q, int32_t n,
                          float *score)
{
    const struct pqcache_opts *o = ctx->opts;
    int32_t first = o->sink_size, end = first + n;
    struct kvl_rows codes;
    float *table;
    KVL_TRY(pqcache_distances(ctx, layer, q, &table));
    KVL_TRY(kvl_table_operand(ctx, o->codes, layer, end, &codes));
    KVL_TRY(
        kvl_table_count(ctx, o->codes, (int64_t)end * codes.row_elems * ctx->shape->n_kv_heads));
    for (int32_t i = 0; i < 2; i++) {
        int32_t skip = KVL_MIN(first, codes.part[i].n_rows), more = codes.part[i].n_rows - skip;
        const uint8_t *code = codes.part[i].data;
        first -= skip;
        if (more == 0) continue;
        KVL_TRY(ctx->ops->pq_scores(
            &(struct kvl_pq_scores_args){ .score = score,
                                          .stride = (size_t)n,
                                          .table = table,
                                          .code = code + (size_t)skip * codes.row_bytes,
                                          .head_stride = codes.part[i].head_bytes,
                                          .n = more,
                                          .n_heads = ctx->shape->n_heads,
                                          .group = ctx->shape->group,
                                          .n_sub = o->n_subvec,
                                          .n_codes = 1 << o->n_subbits }));
        score += more;
    }
    return KVL_OK;
}

static int pqcache_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct pqcache_opts *o = ctx->opts;
    const enum kvl_scope lane = KVL_SCOPE_KV_HEAD;
    int32_t n = step->pos - o->recent_size - o->sink_size, k = o->topk_size, *best;
    int32_t n_lanes = ctx->shape->n_kv_heads, n_heads = ctx->shape->n_heads;
    float *score, *sum;
    if (n <= k || ctx->context_tok == 0) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_heads * (size_t)n, &score));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_lanes * (size_t)n, &sum));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_lanes * (size_t)k, &best));
    KVL_TRY(pqcache_scores(ctx, step->layer, q->q, n, score));
    KVL_TRY(kvl_cap(ctx, score, (size_t)n_heads * (size_t)n));
    if (o->group == PQ_GROUP_SOFTMAX) KVL_TRY(kvl_softmax(ctx, score, n_heads, n));
    KVL_TRY(kvl_group_scores(ctx, score, n, KVL_REDUCE_SUM, sum));
    struct kvl_scored scored = {
        .scope = lane, .first_tok = o->sink_size, .unit_tok = 1, .n = n, .score = sum
    };
    KVL_TRY(kvl_tap_scores(ctx, step, &scored));
    KVL_TRY(kvl_topk(ctx, sum, n_lanes, n, k, best));
    KVL_TRY(kvl_look_at(ctx, best, (size_t)(n_lanes * k), sizeof *best));
    for (int32_t i = 0; i < n_lanes * k; i++) best[i] += o->sink_size;
    KVL_TRY(kvl_sel_first(sel, lane, KVL_ALL_LISTS, o->sink_size));
    KVL_TRY(kvl_sel_recent(sel, lane, KVL_ALL_LISTS, o->recent_size + 1));
    for (int32_t h = 0; h < n_lanes; h++) KVL_TRY(kvl_sel_tokens(sel, lane, h, best + h * k, k));
    return KVL_OK;
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
    .caps = KVL_CAP_SELECTS | KVL_CAP_OFFLOADS | KVL_CAP_SHARES_META | KVL_CAP_ASYNC,
    .opts = pqcache_options,
    .opts_size = sizeof(struct pqcache_opts),
    .min_budget = pqcache_min_budget,
    .plan = pqcache_plan,
    .append = pqcache_append,
    .prefilled = pqcache_prefilled,
    .select = pqcache_select,
};

KVL_POLICY_EXPORT(pqcache)
