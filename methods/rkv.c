/* rkv - keeps what the latest queries look at and what no other key resembles, while the answer grows.
 *
 * Cai et al.: R-KV: Redundancy-aware KV Cache Compression for Training-Free Reasoning Models Acceleration, 2025 (arXiv
 * 2505.24133), section 3, Algorithm 1.  When the context is complete, and every `buffer` tokens after that, per layer and
 * kv head:
 *   1. importance: of the last `window` queries, of which a group's query heads share the largest logit, the softmax over
 *      the tokens before the window, mean over the queries, maximum over `kernel` neighbours
 *   2. redundancy: cosines of the keys with each other; of every key the latest that is alike (above 0.5) is not counted,
 *      nor itself; the mean of what all keys have with one, softmax over the tokens
 *   3. score = lambda importance - (1 - lambda) redundancy; the best stay, and the window
 * Budget B: C = B - buffer tokens after a cut, the window among them; a step attends to C + buffer at most.
 */
#include "parts/latest_queries.h"
#include "parts/live_scores.h"

#include <math.h>
#include <string.h>

#define RKV_ALIKE 0.5f

enum { RKV_ROWS = 256 }; /* keys compared with all others at a time */

struct rkv_opts {
    int32_t kept, buffer, window, kernel;
    double lambda;
    struct kvl_latest latest;   /* not options, here and below */
    struct kvl_state_part last; /* int32_t: position of a layer's last cut */
};

static const struct kvl_opt rkv_options[] = {
    KVL_ROW_INT(rkv_opts, kept, "auto", 2, 1 << 30,
                "tokens that a cut leaves (code: 128); auto = budget - buffer"),
    KVL_ROW_INT(rkv_opts, buffer, "auto", 1, 1 << 20,
                "tokens between two cuts (code: 128); auto = budget / 4, 1 to 128"),
    KVL_ROW_INT(rkv_opts, window, "8", 1, 1024, "last queries that vote, and stay (paper: 8)"),
    KVL_ROW_INT(rkv_opts, kernel, "7", 1, 255, "width of the pooling, odd (code: 7)"),
    KVL_ROW_FLOAT(rkv_opts, lambda, "0.1", 0, 1,
                  "weight of importance against redundancy (paper: 0.1; code: 0.07)"),
    { 0 },
};

static int32_t rkv_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct rkv_opts *o = opts;
    (void)shape;
    return (o->window + 2) * 4 / 3 + 2;
}

static int rkv_plan(struct kvl_plan *plan)
{
    struct rkv_opts *o = plan->opts;
    if (o->kernel % 2 == 0)
        return kvl_fail(plan->err, KVL_EINVAL, "kernel=%d; give an odd number", o->kernel);
    if (o->kept == KVL_AUTO || o->buffer == KVL_AUTO) KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->buffer == KVL_AUTO) o->buffer = KVL_MAX(1, KVL_MIN(128, plan->budget_tok / 4));
    if (o->kept == KVL_AUTO) o->kept = plan->budget_tok - o->buffer;
    if (o->kept <= o->window)
        return kvl_fail(plan->err, KVL_EINVAL, "kept=%d with window=%d; give more", o->kept,
                        o->window);
    kvl_plan_state(plan, sizeof(int32_t), &o->last);
    return kvl_plan_latest(plan, o->window, false, &o->latest);
}

/* compute_attention_scores(), step 1: importance [n - window] of the tokens before the window of a lane with keys
 * k [n][dim]; q [window][n_heads][dim]. */
static int rkv_importance(const struct kvl_pctx *ctx, int32_t kv_head, const float *k, int32_t n,
                          const struct kvl_asked *asked, float *out)
{
    const struct rkv_opts *o = ctx->opts;
    int32_t group = ctx->shape->group, n_old = n - o->window, n_q = asked->n_queries;
    size_t dim = (size_t)ctx->shape->head_dim, m = (size_t)n_old;
    float *logit, *best, *mean;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)group * m, &logit));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_q * m, &best));
    KVL_TRY(kvl_scratch_get(ctx, m, &mean));
    for (int32_t i = 0; i < n_q; i++) {
        const float *q =
            asked->q +
            ((size_t)i * (size_t)ctx->shape->n_heads + (size_t)kv_head * (size_t)group) * dim;
        KVL_TRY(kvl_product(ctx, q, group, k, n_old, (int32_t)dim, logit));
        for (size_t j = 0; j < (size_t)group * m; j++) logit[j] *= ctx->shape->scale;
        KVL_TRY(kvl_cap(ctx, logit, (size_t)group * m));
        KVL_TRY(kvl_layer_scores(ctx, logit, group, n_old, KVL_REDUCE_MAX, best + (size_t)i * m));
    }
    KVL_TRY(kvl_softmax(ctx, best, n_q, n_old));
    KVL_TRY(kvl_layer_scores(ctx, best, n_q, n_old, KVL_REDUCE_MEAN, mean));
    return ctx->ops->pool1d(&(struct kvl_pool1d_args){
        .y = out, .x = mean, .x_stride = m, .n_rows = 1, .n = n_old, .kernel = o->kernel });
}

/* Rows first .. first + m - 1 of the cosines, step 2, added to sum: without the diagonal, and without the last of each
 * row that is alike (none: the first). */
static void rkv_add_rows(float *cosine, int32_t first, int32_t m, int32_t n, double *sum)
{
    for (int32_t r = 0; r < m; r++, cosine += n) {
        int32_t alike = 0;
        cosine[first + r] = 0;
        for (int32_t j = n - 1; j > 0 && alike == 0; j--)
            if (cosine[j] > RKV_ALIKE) alike = j;
        cosine[alike] = 0;
        for (int32_t j = 0; j < n; j++) sum[j] += (double)cosine[j];
    }
}

/* cal_similarity(), step 2: redundancy [n] of keys k [n][dim], which are brought to length 1. */
static int rkv_redundancy(const struct kvl_pctx *ctx, float *k, int32_t n, float *out)
{
    int32_t dim = ctx->shape->head_dim;
    float *cosine;
    double *sum;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)RKV_ROWS * (size_t)n, &cosine));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &sum));
    memset(sum, 0, (size_t)n * sizeof *sum);
    KVL_TRY(ctx->ops->row_norms(
        &(struct kvl_row_norms_args){ .y = out, .x = k, .n = n, .dim = dim, .norm = 2 }));
    for (int32_t i = 0; i < n; i++)
        for (int32_t c = 0; c < dim; c++) k[i * dim + c] /= out[i] + 1e-8f;
    for (int32_t at = 0; at < n; at += RKV_ROWS) {
        int32_t m = KVL_MIN(RKV_ROWS, n - at);
        KVL_TRY(kvl_product(ctx, k + (size_t)at * (size_t)dim, m, k, n, dim, cosine));
        rkv_add_rows(cosine, at, m, n, sum);
    }
    for (int32_t i = 0; i < n; i++) out[i] = (float)(sum[i] / n);
    return kvl_softmax(ctx, out, 1, n);
}

/* R1KV.update_kv(), step 3: scores [n_kv_heads][n] of n live tokens; those of the window are not used. */
static int rkv_scores(const struct kvl_pctx *ctx, int32_t layer, int32_t n, float *score)
{
    const struct rkv_opts *o = ctx->opts;
    int32_t n_old = n - o->window, n_live;
    float *k, *redundancy, lambda = (float)o->lambda;
    struct kvl_asked asked = { 0 };
    const int32_t *live;
    KVL_TRY(kvl_latest_read(ctx, &o->latest, layer, &asked));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * (size_t)ctx->shape->head_dim, &k));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &redundancy));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++, score += n) {
        KVL_TRY(kvl_live(ctx, layer, h, &live, &n_live));
        KVL_TRY(kvl_read_keys(ctx, layer, h, live, n, false, k));
        KVL_TRY(rkv_importance(ctx, h, k, n, &asked, score));
        KVL_TRY(rkv_redundancy(ctx, k, n, redundancy));
        for (int32_t i = 0; i < n_old; i++)
            score[i] = lambda * score[i] - (1 - lambda) * redundancy[i];
        for (int32_t i = n_old; i < n; i++) score[i] = 0;
    }
    return KVL_OK;
}

static int rkv_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct rkv_opts *o = ctx->opts;
    *(int32_t *)kvl_state_of(ctx, &o->last, layer) = ctx->context_tok - 1;
    return kvl_latest_begin(ctx, &o->latest, layer);
}

/* The context, cut like an answer. */
static int rkv_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct rkv_opts *o = ctx->opts;
    scores->keep_tok = o->kept;
    scores->protect_last = o->window;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    return rkv_scores(ctx, layer, scores->n_tok, scores->score);
}

static int rkv_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                      struct kvl_sel *sel)
{
    const struct rkv_opts *o = ctx->opts;
    (void)sel;
    return kvl_latest_add(ctx, &o->latest, step, q);
}

/* Algorithm 1: every `buffer` tokens. */
static int rkv_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct rkv_opts *o = ctx->opts;
    int32_t *last = kvl_state_of(ctx, &o->last, step->layer), n;
    const int32_t *live;
    float *score;
    if (step->replay || step->pos - *last < o->buffer) return KVL_OK;
    *last = step->pos;
    KVL_TRY(kvl_live(ctx, step->layer, 0, &live, &n));
    if (n <= o->kept) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_kv_heads * (size_t)n, &score));
    KVL_TRY(rkv_scores(ctx, step->layer, n, score));
    return kvl_keep_best(ctx, step, keep, KVL_SCOPE_KV_HEAD, score, n, o->kept - o->window,
                         o->window);
}

static const struct kvl_policy rkv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "rkv",
    .title = "R-KV",
    .paper = "Cai et al., 2025, arXiv 2505.24133",
    .help = "keeps what the latest queries attend to and what resembles no other key, again and "
            "again",
    .follows =
        "The official code (R1KV): window 8, pooling 7, largest logit of a group, redundancy by "
        "cosines without the latest token that is alike, the prompt cut with the same scores, a "
        "cut "
        "every 128 tokens; lambda is the paper's 0.1 (the code's default is 0.07).",
    .deviations =
        "Tokens between two cuts are counted from the context's end on, where the code counts the "
        "length of the text. Its other ways to spare duplicates (first, a share of them) are left "
        "out. 32-bit floats.",
    .cost =
        "Once in `buffer` steps and layer B^2 d products per kv head, W queries over B keys for "
        "each of H heads, and a top-k of B. Once n^2 d products per kv head. Memory: d floats for "
        "each of W queries and H heads of a layer.",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = rkv_options,
    .opts_size = sizeof(struct rkv_opts),
    .min_budget = rkv_min_budget,
    .plan = rkv_plan,
    .prefilled = rkv_prefilled,
    .score = rkv_score,
    .select = rkv_select,
    .evict = rkv_evict,
};

KVL_POLICY_EXPORT(rkv)
