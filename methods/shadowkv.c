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
 * tokens chosen.
 * Deviations: budget B counts everything that is read (official: the chosen chunks alone); outliers are
 * found among chunks before the local ones; rank = min(160, D / 2), a smaller share on models with many
 * kv heads; A and B are floats (official: half floats).  The engine's cache of fetched tokens, least
 * recently used first to go, holds a budget; decoded tokens older than the local chunks age into the
 * host tier.
 *
 * Budget B of C chunks: outlier = min(48, C / 6), local = min(4, C / 8) and up to chunk_size - 1 more
 * tokens, chosen chunks from what is left behind decoded tokens and the current one.
 *
 * Cost per step and layer: H d multiply-adds for each of n / chunk_size chunks, a softmax and a top-k of
 * them; for every chosen token of a kv head r d multiply-adds and one rotation, r values read.  Once: K'K
 * (n D^2), its eigenvectors (6 D^3), A (n D r). */
#include "kvl/policy.h"
#include "shadowkv_landmark.h"

#include <math.h>
#include <string.h>

enum { SHADOW_BATCH = 512 }; /* tokens whose keys are read at a time */

struct shadow_opts {
    int32_t rank, chunk_size, outlier, local;
    bool offload;
    int32_t left, right, landmarks, fits; /* tables */
};

static const struct kvl_opt shadow_options[] = {
    { .name = "rank",
      .type = KVL_OPT_INT,
      .off = offsetof(struct shadow_opts, rank),
      .def = "auto",
      .min = 1,
      .max = KVL_SYM_EIG_MAX,
      .help = "rank of a layer's keys (paper: 160); auto = min(160, half of their width)" },
    { .name = "chunk_size",
      .type = KVL_OPT_INT,
      .off = offsetof(struct shadow_opts, chunk_size),
      .def = "8",
      .min = 1,
      .max = 1024,
      .help = "tokens of a chunk (paper: 8)" },
    { .name = "outlier",
      .type = KVL_OPT_INT,
      .off = offsetof(struct shadow_opts, outlier),
      .def = "auto",
      .min = 0,
      .max = 1 << 20,
      .help = "chunks that are always read, for a kv head (paper: 48); auto = min(48, a sixth of "
              "the budget)",
      .not_in_tables = true },
    { .name = "local",
      .type = KVL_OPT_INT,
      .off = offsetof(struct shadow_opts, local),
      .def = "auto",
      .min = 0,
      .max = 1 << 20,
      .help = "last chunks of the context, always read (paper: 4); auto = min(4, an eighth)",
      .not_in_tables = true },
    { .name = "offload",
      .type = KVL_OPT_BOOL,
      .off = offsetof(struct shadow_opts, offload),
      .def = "true",
      .help = "the context lies in the host tier but for its last chunks, as published",
      .not_in_tables = true },
    { 0 },
};

static int32_t shadow_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct shadow_opts *o = opts;
    (void)shape;
    return (KVL_MAX(o->outlier, 0) + KVL_MAX(o->local, 0) + 2) * o->chunk_size;
}

static int shadow_tables(struct kvl_plan *plan, struct shadow_opts *o, int32_t width)
{
    struct kvl_meta_desc left = {
        .unit = KVL_META_PAGE, .unit_tok = 1, .row_elems = o->rank, .per_layer = true
    };
    struct kvl_meta_desc right = {
        .unit = KVL_META_LANE, .unit_tok = 1, .row_elems = o->rank * width, .per_layer = true
    };
    KVL_TRY(kvl_plan_meta_desc(plan, &left, &o->left));
    KVL_TRY(kvl_plan_meta_desc(plan, &right, &o->right));
    KVL_TRY(
        kvl_plan_meta(plan, KVL_META_PAGE, o->chunk_size, plan->shape->head_dim, &o->landmarks));
    return kvl_plan_meta(plan, KVL_META_PAGE, o->chunk_size, 1, &o->fits);
}

static int shadow_plan(struct kvl_plan *plan)
{
    struct shadow_opts *o = plan->opts;
    int32_t width = plan->shape->n_kv_heads * plan->shape->head_dim, budget = plan->budget_tok;
    int32_t chunks = budget / o->chunk_size, least = shadow_min_budget(plan->shape, o);
    if (budget < least)
        return kvl_fail(
            plan->err, KVL_EINVAL,
            "budget %d with chunk_size=%d; give %d or more (outlier and local chunks, one "
            "to choose, and the newest tokens)",
            budget, o->chunk_size, least);
    if (o->rank == KVL_AUTO) o->rank = KVL_MIN(160, KVL_MAX(1, width / 2));
    if (o->outlier == KVL_AUTO) o->outlier = KVL_MIN(48, chunks / 6);
    if (o->local == KVL_AUTO) o->local = KVL_MIN(4, chunks / 8);
    if (o->rank > width)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "rank=%d; the keys of a layer are %d wide, give that or less", o->rank,
                        width);
    if (width > KVL_SYM_EIG_MAX)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "keys of a layer are %d wide; shadowkv serves up to %d", width,
                        KVL_SYM_EIG_MAX);
    plan->raw_keys = true;
    KVL_TRY(shadow_tables(plan, o, width));
    if (!o->offload) return KVL_OK;
    return kvl_plan_offload(
        plan, &(struct kvl_offload){ .keep_last = (o->local + 1) * o->chunk_size, .unit_tok = 1 });
}

/* ---- the context ----------------------------------------------------------------------------- */

/* Chunks of the context that may be chosen: all before the local ones. */
static int32_t shadow_chunks(const struct kvl_pctx *ctx)
{
    const struct shadow_opts *o = ctx->opts;
    return KVL_MAX(0, ctx->context_tok / o->chunk_size - o->local);
}

/* Keys before RoPE of positions first .. first + n - 1: x [n][D], and xt [D][n]. */
static int shadow_read(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t n,
                       float *x, float *xt, float *lane)
{
    int32_t pos[SHADOW_BATCH], dim = ctx->shape->head_dim, width = dim * ctx->shape->n_kv_heads;
    for (int32_t i = 0; i < n; i++) pos[i] = first + i;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        KVL_TRY(kvl_read_keys(ctx, layer, h, pos, n, true, lane));
        for (int32_t i = 0; i < n; i++)
            for (int32_t c = 0; c < dim; c++) {
                x[i * width + h * dim + c] = lane[i * dim + c];
                xt[(h * dim + c) * n + i] = lane[i * dim + c];
            }
    }
    return KVL_OK;
}

struct shadow_work {
    float *x, *xt, *lane;     /* a batch of keys */
    float *gram, *part, *vec; /* [D][D] */
};

static int shadow_work(const struct kvl_pctx *ctx, struct shadow_work *w)
{
    size_t width = (size_t)(ctx->shape->n_kv_heads * ctx->shape->head_dim);
    w->x = kvl_scratch(ctx, SHADOW_BATCH * width);
    w->xt = kvl_scratch(ctx, SHADOW_BATCH * width);
    w->lane = kvl_scratch(ctx, SHADOW_BATCH * (size_t)ctx->shape->head_dim);
    w->gram = kvl_scratch(ctx, width * width);
    w->part = kvl_scratch(ctx, width * width);
    w->vec = kvl_scratch(ctx, width * width);
    if (w->x && w->xt && w->lane && w->gram && w->part && w->vec) return KVL_OK;
    return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for the factors of %zu channels", width);
}

/* y [n][w rows] = x times the transpose of w [rows][cols]. */
static int shadow_product(const struct kvl_pctx *ctx, float *y, const float *x, int32_t n,
                          const float *w, int32_t n_rows, int32_t n_cols)
{
    struct kvl_weight weight = { .data = w,
                                 .type = KVL_W_F32,
                                 .n_rows = n_rows,
                                 .n_cols = n_cols,
                                 .row_bytes = (size_t)n_cols * sizeof *w };
    return ctx->ops->gemm(&(struct kvl_gemm_args){ .y = y, .x = x, .w = &weight, .n = n });
}

/* The r first right singular vectors, by column: right [D][r]. */
static int shadow_right(const struct kvl_pctx *ctx, int32_t layer, const struct shadow_work *w,
                        float *right)
{
    const struct shadow_opts *o = ctx->opts;
    int32_t width = ctx->shape->n_kv_heads * ctx->shape->head_dim, n;
    size_t size = (size_t)width * (size_t)width;
    memset(w->gram, 0, size * sizeof *w->gram);
    for (int32_t at = 0; at < ctx->context_tok; at += n) {
        n = KVL_MIN(SHADOW_BATCH, ctx->context_tok - at);
        KVL_TRY(shadow_read(ctx, layer, at, n, w->x, w->xt, w->lane));
        KVL_TRY(shadow_product(ctx, w->part, w->xt, width, w->xt, width, n));
        KVL_TRY(ctx->ops->add(&(struct kvl_add_args){ .y = w->gram, .x = w->part, .n = size }));
    }
    KVL_TRY(
        ctx->ops->sym_eig(&(struct kvl_sym_eig_args){ .vec = w->vec, .a = w->gram, .n = width }));
    for (int32_t c = 0; c < width; c++)
        for (int32_t i = 0; i < o->rank; i++) right[c * o->rank + i] = w->vec[i * width + c];
    return KVL_OK;
}

static int shadow_factors(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct shadow_opts *o = ctx->opts;
    int32_t width = ctx->shape->n_kv_heads * ctx->shape->head_dim, n;
    struct kvl_meta_view left, right;
    struct shadow_work w;
    KVL_TRY(shadow_work(ctx, &w));
    KVL_TRY(kvl_meta_from(ctx, o->left, layer, 0, &left));
    KVL_TRY(kvl_meta_from(ctx, o->right, layer, 0, &right));
    KVL_TRY(shadow_right(ctx, layer, &w, right.base));
    for (int32_t at = 0; at < ctx->context_tok; at += n) {
        n = KVL_MIN(SHADOW_BATCH, ctx->context_tok - at);
        KVL_TRY(shadow_read(ctx, layer, at, n, w.x, w.xt, w.lane));
        KVL_TRY(shadow_product(ctx, left.base + (size_t)at * (size_t)o->rank, w.x, n, w.vec,
                               o->rank, width));
    }
    return KVL_OK;
}

/* fits: how badly a chunk fits its landmark, minus the lowest cosine. */
static int shadow_landmarks(const struct kvl_pctx *ctx, int32_t layer)
{
    const struct shadow_opts *o = ctx->opts;
    int32_t dim = ctx->shape->head_dim, size = o->chunk_size, n = ctx->context_tok / size;
    struct kvl_meta_view landmark, fit;
    KVL_TRY(kvl_meta_from(ctx, o->landmarks, layer, 0, &landmark));
    KVL_TRY(kvl_meta_from(ctx, o->fits, layer, 0, &fit));
    float *key = kvl_scratch(ctx, (size_t)(size * dim));
    int32_t *pos = (void *)kvl_scratch(ctx, (size_t)size);
    if (!key || !pos) return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for a chunk");
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        for (int32_t i = 0; i < n; i++) {
            float *mark = landmark.base + (size_t)h * landmark.head_stride + (size_t)(i * dim);
            for (int32_t j = 0; j < size; j++) pos[j] = i * size + j;
            KVL_TRY(kvl_read_keys(ctx, layer, h, pos, size, false, key));
            fit.base[(size_t)h * fit.head_stride + (size_t)i] =
                -shadow_landmark(key, size, dim, mark);
        }
    return KVL_OK;
}

static int shadow_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    if (ctx->context_tok == 0) return KVL_OK;
    KVL_TRY(shadow_factors(ctx, layer));
    return shadow_landmarks(ctx, layer);
}

/* ---- selection ------------------------------------------------------------------------------------ */

/* What select works with: lists of chunks of a kv head. */
struct shadow_step {
    int32_t n, n_outlier, n_best,
        pos;                 /* chunks that may be chosen, outliers, chosen; current token */
    float *weight, *score;   /* [n_heads][n], [n_kv_heads][n] */
    int32_t *outlier, *best; /* [n_kv_heads][..] ascending */
    int32_t *list;
    float *low, *key; /* [tokens][rank], [tokens][head_dim] */
};

static int shadow_buffers(const struct kvl_pctx *ctx, struct shadow_step *t)
{
    const struct shadow_opts *o = ctx->opts;
    size_t n = (size_t)t->n, heads = (size_t)ctx->shape->n_heads;
    size_t lanes = (size_t)ctx->shape->n_kv_heads, tok = (size_t)(t->n_best * o->chunk_size);
    t->weight = kvl_scratch(ctx, heads * n);
    t->score = kvl_scratch(ctx, lanes * n);
    t->outlier = (void *)kvl_scratch(ctx, lanes * (size_t)t->n_outlier + 1);
    t->best = (void *)kvl_scratch(ctx, lanes * (size_t)t->n_best + 1);
    t->list = (void *)kvl_scratch(ctx, (size_t)t->pos + 1);
    t->low = kvl_scratch(ctx, tok * (size_t)o->rank + 1);
    t->key = kvl_scratch(ctx, tok * (size_t)ctx->shape->head_dim + 1);
    if (t->weight && t->score && t->outlier && t->best && t->list && t->low && t->key)
        return KVL_OK;
    return kvl_fail(ctx->err, KVL_ENOMEM, "no memory for %d chunks", t->n);
}

/* The chunks of every kv head that fit their landmarks worst. */
static int shadow_outliers(const struct kvl_pctx *ctx, int32_t layer, struct shadow_step *t)
{
    const struct shadow_opts *o = ctx->opts;
    struct kvl_meta_part fit[2];
    KVL_TRY(kvl_meta_rows(ctx, o->fits, layer, t->n, fit));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        float *row = t->score + (size_t)h * (size_t)t->n;
        for (int32_t i = 0; i < 2; row += fit[i++].n_rows)
            if (fit[i].n_rows > 0)
                memcpy(row, (const float *)fit[i].data + (size_t)h * fit[i].head_stride,
                       (size_t)fit[i].n_rows * sizeof *row);
    }
    struct kvl_topk_args top = { .index = t->outlier,
                                 .x = t->score,
                                 .x_stride = (size_t)t->n,
                                 .n_rows = ctx->shape->n_kv_heads,
                                 .n = t->n,
                                 .k = t->n_outlier };
    return ctx->ops->topk(&top);
}

/* weight [n_heads][n]: q . landmark / sqrt(d), none for outliers. */
static int shadow_logits(const struct kvl_pctx *ctx, int32_t layer, const float *q,
                         struct shadow_step *t)
{
    const struct shadow_opts *o = ctx->opts;
    const struct kvl_shape *sh = ctx->shape;
    int32_t group = sh->n_heads / sh->n_kv_heads;
    struct kvl_meta_part part[2];
    KVL_TRY(kvl_meta_rows(ctx, o->landmarks, layer, t->n, part));
    float scale = 1 / sqrtf((float)sh->head_dim);
    for (int32_t h = 0; h < sh->n_heads; h++) {
        float *row = t->weight + (size_t)h * (size_t)t->n, *y = row;
        for (int32_t i = 0; i < 2; y += part[i++].n_rows) {
            const float *mark = part[i].data;
            if (part[i].n_rows == 0) continue;
            mark += (size_t)(h / group) * part[i].head_stride;
            KVL_TRY(shadow_product(ctx, y, q + h * sh->head_dim, 1, mark, part[i].n_rows,
                                   sh->head_dim));
        }
        for (int32_t i = 0; i < t->n; i++) row[i] *= scale;
        const int32_t *outlier = t->outlier + h / group * t->n_outlier;
        for (int32_t i = 0; i < t->n_outlier; i++) row[outlier[i]] = -INFINITY;
    }
    return KVL_OK;
}

static int shadow_best(const struct kvl_pctx *ctx, const struct kvl_step *step,
                       struct shadow_step *t)
{
    const struct shadow_opts *o = ctx->opts;
    const struct kvl_shape *sh = ctx->shape;
    size_t n = (size_t)t->n;
    KVL_TRY(ctx->ops->softmax(&(struct kvl_softmax_args){
        .x = t->weight, .stride = n, .n_rows = sh->n_heads, .n = t->n }));
    KVL_TRY(ctx->ops->group_reduce(&(struct kvl_group_reduce_args){ .y = t->score,
                                                                    .x = t->weight,
                                                                    .x_stride = n,
                                                                    .n = t->n,
                                                                    .n_heads = sh->n_heads,
                                                                    .n_kv_heads = sh->n_kv_heads,
                                                                    .reduce = KVL_REDUCE_MAX }));
    for (int32_t h = 0; h < sh->n_kv_heads; h++) /* a softmax of -inf may be a weight of others */
        for (int32_t i = 0; i < t->n_outlier; i++)
            t->score[(size_t)h * n + (size_t)t->outlier[h * t->n_outlier + i]] = -INFINITY;
    KVL_TRY(kvl_tap_scores(
        ctx, step,
        &(struct kvl_scored){
            .scope = KVL_SCOPE_KV_HEAD, .unit_tok = o->chunk_size, .n = t->n, .score = t->score }));
    struct kvl_topk_args top = { .index = t->best,
                                 .x = t->score,
                                 .x_stride = n,
                                 .n_rows = sh->n_kv_heads,
                                 .n = t->n,
                                 .k = t->n_best };
    return ctx->ops->topk(&top);
}

/* Rows of A of the chosen tokens. */
static int shadow_gather(const struct kvl_pctx *ctx, int32_t layer, const int32_t *pos, int32_t n,
                         float *low)
{
    const struct shadow_opts *o = ctx->opts;
    struct kvl_meta_part part[2];
    size_t rank = (size_t)o->rank;
    KVL_TRY(kvl_meta_peek(ctx, o->left, layer, ctx->context_tok, part));
    for (int32_t i = 0; i < n; i++) {
        bool behind = pos[i] >= part[0].n_rows;
        size_t row = (size_t)(pos[i] - (behind ? part[0].n_rows : 0));
        memcpy(low + (size_t)i * rank, (const float *)part[behind].data + row * rank,
               rank * sizeof *low);
    }
    return kvl_meta_count(ctx, o->left, (int64_t)n * o->rank);
}

/* Keys of n tokens of a kv head, rebuilt: key [n][head_dim]. */
static int shadow_rebuild(const struct kvl_pctx *ctx, int32_t layer, int32_t h, const int32_t *pos,
                          int32_t n, const struct shadow_step *t)
{
    const struct shadow_opts *o = ctx->opts;
    int32_t dim = ctx->shape->head_dim;
    struct kvl_meta_part part[2];
    KVL_TRY(shadow_gather(ctx, layer, pos, n, t->low));
    KVL_TRY(kvl_meta_peek(ctx, o->right, layer, 1, part));
    const float *right = part[part[0].n_rows == 0].data;
    KVL_TRY(
        shadow_product(ctx, t->key, t->low, n, right + (size_t)(h * dim * o->rank), dim, o->rank));
    for (int32_t i = 0; i < n; i++)
        KVL_TRY(kvl_rotate(ctx, t->key + i * dim, 1, pos[i], t->key + i * dim));
    return kvl_meta_count(ctx, o->right, (int64_t)dim * o->rank);
}

static int32_t shadow_tokens(int32_t *list, int32_t n, const int32_t *chunk, int32_t n_chunks,
                             int32_t size)
{
    for (int32_t i = 0; i < n_chunks; i++)
        for (int32_t j = 0; j < size; j++) list[n++] = chunk[i] * size + j;
    return n;
}

/* First what is read as stored, then what is rebuilt. */
static int shadow_lists(const struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct shadow_step *t, struct kvl_sel *sel)
{
    const struct shadow_opts *o = ctx->opts;
    int32_t size = o->chunk_size;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        int32_t n = shadow_tokens(t->list, 0, t->outlier + h * t->n_outlier, t->n_outlier, size);
        for (int32_t i = t->n * size; i <= step->pos; i++) t->list[n++] = i;
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, t->list, n));
    }
    KVL_TRY(kvl_sel_segment(sel));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        int32_t n = shadow_tokens(t->list, 0, t->best + h * t->n_best, t->n_best, size);
        KVL_TRY(shadow_rebuild(ctx, step->layer, h, t->list, n, t));
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, t->list, n));
        KVL_TRY(kvl_sel_keys(sel, KVL_SCOPE_KV_HEAD, h, t->key, n));
    }
    return KVL_OK;
}

static int shadow_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct shadow_opts *o = ctx->opts;
    struct shadow_step t = { .n = shadow_chunks(ctx), .pos = step->pos };
    if (step->pos < ctx->budget_tok || t.n == 0) return KVL_OK;
    int32_t rest = step->pos + 1 - t.n * o->chunk_size; /* local and decoded */
    t.n_outlier = KVL_MIN(o->outlier, t.n);
    t.n_best = KVL_MAX(0, ctx->budget_tok - rest) / o->chunk_size - t.n_outlier;
    t.n_best = KVL_MAX(0, KVL_MIN(t.n_best, t.n - t.n_outlier));
    KVL_TRY(shadow_buffers(ctx, &t));
    KVL_TRY(shadow_outliers(ctx, step->layer, &t));
    if (t.n_best > 0) {
        KVL_TRY(shadow_logits(ctx, step->layer, q->q, &t));
        KVL_TRY(shadow_best(ctx, step, &t));
    }
    return shadow_lists(ctx, step, &t, sel);
}

static const struct kvl_policy shadowkv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "shadowkv",
    .title = "ShadowKV",
    .paper = "Sun et al., ICML 2025, arXiv 2410.21465",
    .help = "keeps all, reads chunks by their mean keys, with keys rebuilt from low rank",
    .follows = "Algorithms 1 and 2: one factorisation of all kv heads of a layer before RoPE, "
               "landmarks of 8 "
               "keys after RoPE, outliers by the lowest cosine, softmax over chunks per query head "
               "and the "
               "maximum over the group, decoded tokens always read.",
    .deviations =
        "The budget counts all that is read, and outlier and local chunks shrink with it. The rank "
        "is "
        "160 or half the width of the keys, whichever is less. Factors are floats. What is fetched "
        "from the host tier is counted with its keys, which the original does not move.",
    .cost =
        "Per step and layer d products for each of n / chunk_size chunks and query head, a softmax "
        "and a top-k of them; rank x d products, rank values and a rotation for every chosen token "
        "of "
        "a kv head. Once n D^2 + 6 D^3 + n D rank multiply-adds for a layer, D the width of its "
        "keys. "
        "Memory: rank floats per token and layer, and (d + 1) per chunk and kv head; keys before "
        "RoPE, half the cache again.",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_ESTIMATES | KVL_CAP_OFFLOADS | KVL_CAP_SHARES_META,
    .opts = shadow_options,
    .opts_size = sizeof(struct shadow_opts),
    .min_budget = shadow_min_budget,
    .plan = shadow_plan,
    .prefilled = shadow_prefilled,
    .select = shadow_select,
};

KVL_POLICY_EXPORT(shadowkv)
