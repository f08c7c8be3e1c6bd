/* sparq - scores all keys by the largest channels of the query, reads the best, and lets the mean value
 * stand for the rest.
 *
 * Ribar et al.: SparQ Attention: Bandwidth-Efficient LLM Inference, ICML 2024 (arXiv 2312.04985),
 * Algorithm 1.  Every step, per kv head with the query heads h of its group:
 *     C     = the r channels of largest sum_h |q_h,c|
 *     s_h   = softmax(q_h,C . K_C / sqrt(d sum_C |q_h,c| / sum_c |q_h,c|))     over all tokens
 *     list  = the current token, the local_k before it, and the best others by the sum over h of the
 *             scores before the softmax: k and the current one in all
 *     out_h = alpha_h attention(list) + (1 - alpha_h) mean(V),   alpha_h = sum of s_h over the list
 * reallocation=false leaves the mean out (the authors do so for some grouped-query models).  A query
 * that is 0 everywhere has scale sqrt(d), where the formula has 0 / 0.
 * Keys are stored a second time, channel by channel.
 * Budget B: k = B - 1.  The paper: k = 128, r = 16 to 64 of 128 channels, local_k = k / 4. */
#include "parts/channels.h"

#include <math.h>
#include <string.h>

struct sparq_opts {
    int32_t r, k, local_k;
    bool reallocation;
    int32_t keys, values; /* not options: handles of tables, from plan */
};

static const struct kvl_opt sparq_options[] = {
    KVL_ROW_INT(sparq_opts, r, "auto", 1, 1024,
                "channels that score keys; auto = head_dim / 4 (paper: 16 to 64 of 128)",
                .not_in_tables = true),
    KVL_ROW_INT(sparq_opts, k, "auto", 1, 1 << 30,
                "tokens read besides the current one; auto = budget - 1 (paper: 128)",
                .not_in_tables = true),
    KVL_ROW_INT(sparq_opts, local_k, "auto", 0, 1 << 30,
                "of them the latest, always read; auto = k / 4", .not_in_tables = true),
    KVL_ROW_BOOL(sparq_opts, reallocation, "true",
                 "the mean value stands for what is not read, by its approximate weight"),
    { 0 },
};

static int32_t sparq_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    return ((const struct sparq_opts *)opts)->k == KVL_AUTO ? 2 : 1;
}

static int sparq_plan(struct kvl_plan *plan)
{
    struct sparq_opts *o = plan->opts;
    int32_t d = plan->shape->head_dim;
    if (o->k == KVL_AUTO) {
        KVL_TRY(kvl_plan_needs_budget(plan));
        o->k = plan->budget_tok - 1;
    }
    if (o->local_k == KVL_AUTO) o->local_k = o->k / 4;
    if (o->r == KVL_AUTO) o->r = KVL_MAX(1, d / 4);
    if (o->local_k > o->k)
        return kvl_fail(plan->err, KVL_EINVAL, "local_k=%d with k=%d; give at most k", o->local_k,
                        o->k);
    if (o->r > d) return kvl_fail(plan->err, KVL_EINVAL, "r=%d; a head has %d channels", o->r, d);
    plan->replay = o->reallocation ? KVL_REPLAY_ALL : KVL_REPLAY_KEYS;
    KVL_TRY(kvl_plan_channels(plan, &o->keys));
    /* Sums of values, and what rounding took from them. */
    return o->reallocation ? kvl_plan_table(plan, &o->values, .unit = KVL_UNIT_LANE, .unit_tok = 1,
                                            .row_elems = 2 * d)
                           : KVL_OK;
}

/* Kahan's sum: values of 1e5 tokens keep their mean. */
static void sparq_sum(float *sum, float *carry, const float *v, int32_t n)
{
    for (int32_t c = 0; c < n; c++) {
        float x = v[c] - carry[c], total = sum[c] + x;
        carry[c] = (total - sum[c]) - x;
        sum[c] = total;
    }
}

static int sparq_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                        const float *v)
{
    const struct sparq_opts *o = ctx->opts;
    int32_t n_kv = ctx->shape->n_kv_heads, d = ctx->shape->head_dim;
    struct kvl_rows values;
    KVL_TRY(kvl_channels_put(ctx, o->keys, step, k));
    if (!o->reallocation) return KVL_OK;
    KVL_TRY(kvl_table_write(ctx, o->values, step->layer, 0, &values));
    KVL_TRY(kvl_look_at(ctx, v, (size_t)(step->n_tok * n_kv * d), sizeof *v));
    for (int32_t i = 0; i < step->n_tok * n_kv; i++, v += d) {
        float *sum = kvl_table_row_out(&values, i % n_kv, 0);
        sparq_sum(sum, sum + d, v, d);
    }
    return KVL_OK;
}

/* ---- Algorithm 1: C and s ----------------------------------------------------------------------- */

/* Of one step: score [n_heads][n] and best [n_kv_heads][n_best], in one piece: the host waits for both at once; the largest
 * score and the sum of exponentials [n_heads]. */
struct sparq_scores {
    int32_t n, n_best;
    float *score, *max, *sum, *factor;
    int32_t *best;
    int32_t *channel; /* [n_kv_heads][r] */
};

/* channel, and factor: one over the root of d times the share of |q| that the channels have. */
static int sparq_channels(const struct kvl_pctx *ctx, const float *q, struct sparq_scores *s)
{
    const struct sparq_opts *o = ctx->opts;
    const struct kvl_shape *sh = ctx->shape;
    int32_t d = sh->head_dim, group = sh->group;
    float *size;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(sh->n_kv_heads * d), &size));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)sh->n_heads, &s->factor));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(sh->n_kv_heads * o->r), &s->channel));
    KVL_TRY(kvl_look_at(ctx, q, (size_t)(sh->n_heads * d), sizeof *q));
    memset(size, 0, (size_t)(sh->n_kv_heads * d) * sizeof *size);
    for (int32_t i = 0; i < sh->n_heads * d; i++) size[i / d / group * d + i % d] += fabsf(q[i]);
    KVL_TRY(kvl_topk(ctx, size, sh->n_kv_heads, d, o->r, s->channel));
    KVL_TRY(kvl_look_at(ctx, s->channel, (size_t)(sh->n_kv_heads * o->r), sizeof *s->channel));
    for (int32_t h = 0; h < sh->n_heads; h++) {
        const int32_t *channel = s->channel + h / group * o->r;
        float chosen = 0, all = 0;
        for (int32_t c = 0; c < d; c++) all += fabsf(q[h * d + c]);
        for (int32_t i = 0; i < o->r; i++) chosen += fabsf(q[h * d + channel[i]]);
        float share = chosen > 0 ? chosen / all : 1.0f;
        s->factor[h] = 1.0f / sqrtf((float)d * share);
    }
    return KVL_OK;
}

static size_t sparq_words(const struct kvl_shape *sh, const struct sparq_scores *s)
{
    return (size_t)sh->n_heads * (size_t)s->n + (size_t)sh->n_kv_heads * (size_t)s->n_best;
}

static int sparq_room(const struct kvl_pctx *ctx, struct sparq_scores *s)
{
    size_t heads = (size_t)ctx->shape->n_heads;
    void *room;
    KVL_TRY(kvl_scratch_items(ctx, sparq_words(ctx->shape, s), sizeof *s->score, &room));
    s->score = room;
    s->best = (int32_t *)room + heads * (size_t)s->n;
    KVL_TRY(kvl_scratch_get(ctx, heads, &s->max));
    return kvl_scratch_get(ctx, heads, &s->sum);
}

static int sparq_score(const struct kvl_pctx *ctx, int32_t layer, const float *q,
                       struct sparq_scores *s)
{
    const struct sparq_opts *o = ctx->opts;
    KVL_TRY(sparq_channels(ctx, q, s));
    return kvl_channel_scores(ctx, &(struct kvl_channel_scores){ .table = o->keys,
                                                                 .layer = layer,
                                                                 .n = s->n,
                                                                 .n_channels = o->r,
                                                                 .q = q,
                                                                 .factor = s->factor,
                                                                 .channel = s->channel,
                                                                 .score = s->score,
                                                                 .max = s->max,
                                                                 .sum = s->sum });
}

/* ---- Algorithm 1: the list, alpha and the mean value --------------------------------------------- */

/* The best of every kv head: best [n_kv_heads][k - local_k]. */
static int sparq_best(const struct kvl_pctx *ctx, const struct kvl_step *step,
                      const struct sparq_scores *s, int32_t *best)
{
    const struct sparq_opts *o = ctx->opts;
    int32_t n_kv = ctx->shape->n_kv_heads, n = step->pos - o->local_k;
    float *sum;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_kv * (size_t)s->n, &sum));
    KVL_TRY(ctx->ops->group_reduce(&(struct kvl_group_reduce_args){ .y = sum,
                                                                    .x = s->score,
                                                                    .x_stride = (size_t)s->n,
                                                                    .n = n,
                                                                    .n_heads = ctx->shape->n_heads,
                                                                    .n_kv_heads = n_kv,
                                                                    .reduce = KVL_REDUCE_SUM }));
    KVL_TRY(kvl_tap_scores(
        ctx, step,
        &(struct kvl_scored){ .scope = KVL_SCOPE_KV_HEAD, .unit_tok = 1, .n = n, .score = sum }));
    return kvl_topk(ctx, sum, n_kv, n, o->k - o->local_k, best);
}

/* alpha, of what is read, and the mean value. */
static int sparq_residual(const struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct sparq_scores *s, const int32_t *best, struct kvl_sel *sel)
{
    const struct sparq_opts *o = ctx->opts;
    const struct kvl_shape *sh = ctx->shape;
    int32_t d = sh->head_dim, k = o->k - o->local_k;
    struct kvl_rows values;
    float *alpha, *mean;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)sh->n_heads, &alpha));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(sh->n_kv_heads * d), &mean));
    KVL_TRY(kvl_table_read(ctx, o->values, step->layer, 1, &values));
    for (int32_t i = 0; i < sh->n_kv_heads * d; i++)
        mean[i] = ((const float *)kvl_table_row(&values, i / d, 0))[i % d] / (float)(step->pos + 1);
    for (int32_t h = 0; h < sh->n_heads; h++) {
        const float *score = s->score + (size_t)h * (size_t)s->n;
        const int32_t *item = best + (size_t)(h / sh->group) * (size_t)k;
        float mass = expf(score[step->pos] - s->max[h]);
        for (int32_t i = 0; i < k; i++) mass += expf(score[item[i]] - s->max[h]);
        for (int32_t i = step->pos - o->local_k; i < step->pos; i++)
            mass += expf(score[i] - s->max[h]);
        alpha[h] = KVL_MIN(1.0f, mass / s->sum[h]);
    }
    return kvl_sel_residual(sel, alpha, mean);
}

static int sparq_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct sparq_opts *o = ctx->opts;
    int32_t k = o->k - o->local_k;
    struct sparq_scores s = { .n = step->pos + 1, .n_best = k };
    size_t n_best = (size_t)ctx->shape->n_kv_heads * (size_t)k;
    if (step->pos <= o->k) return KVL_OK;
    KVL_TRY(sparq_room(ctx, &s));
    KVL_TRY(sparq_score(ctx, step->layer, q->q, &s));
    KVL_TRY(sparq_best(ctx, step, &s, s.best));
    /* At the list, and for alpha at scores. */
    KVL_TRY(o->reallocation
                ? kvl_look_at(ctx, s.score, sparq_words(ctx->shape, &s), sizeof *s.score)
                : kvl_look_at(ctx, s.best, n_best, sizeof *s.best));
    KVL_TRY(kvl_sel_recent(sel, KVL_SCOPE_KV_HEAD, KVL_ALL_LISTS, o->local_k + 1));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, s.best + (size_t)h * (size_t)k, k));
    return o->reallocation ? sparq_residual(ctx, step, &s, s.best, sel) : KVL_OK;
}

static const struct kvl_policy sparq = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "sparq",
    .title = "SparQ",
    .paper = "Ribar et al., ICML 2024, arXiv 2312.04985",
    .help =
        "keeps all; scores keys by the query's largest channels, reads the best, the mean value "
        "stands for the rest",
    .follows =
        "The official code: channels by the sum over the group, scores summed over the group "
        "before the softmax, the current and local_k latest tokens forced, alpha over all that is "
        "read, the mean value over all tokens, the current one included. reallocation=false leaves "
        "the mean value out.",
    .deviations = "None that answers depend on. A query of zeros has scale sqrt(d).",
    .cost =
        "Per step and layer r of d channels of a second, channel-major copy of the keys are read "
        "for n tokens per kv head, n exponentials for each of H heads, a top-k of n per kv head, 2 "
        "d floats of the sum of values; a token adds d values and one sum. Once that copy of all "
        "keys, and the sum of all values. Memory: half the cache again, and 2 d floats per kv "
        "head.",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_ESTIMATES | KVL_CAP_SHARES_META | KVL_CAP_ASYNC,
    .opts = sparq_options,
    .opts_size = sizeof(struct sparq_opts),
    .min_budget = sparq_min_budget,
    .plan = sparq_plan,
    .append = sparq_append,
    .select = sparq_select,
};

KVL_POLICY_EXPORT(sparq)
