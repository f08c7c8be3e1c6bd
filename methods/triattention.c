/* triattention - keeps, while the answer grows, the keys that a head's mean query will attend to from where the text goes.
 *
 * TriAttention, 2026 (arXiv 2604.04921), section 3, with the official code.  Per model: of every query head the mean of the
 * queries before RoPE, m, and of every pair of channels that turns together the mean length of its part of a query, a_f.
 * While decoding, per layer and kv head, every `buffer` tokens:
 *   1. m at the distances that the next 1, 2, 4 ... 65536 positions will have from the key: sum_f |m_f| |k_f| cos(w_f
 *      distance + phase), mean over these distances
 *   2. plus what the mean does not say of how long queries are: sum_f (a_f - |m_f|) |k_f|
 *   3. of each query head less the mean over the tokens that are judged, divided by their deviation; the largest of a group
 *   4. the best stay; the prompt is not judged, where it fits
 * Since m is turned and not the key, step 1 is the product of the key with the mean of m turned to those positions.
 * table=FILE has m and a (`kvlab tables triattention MODEL`); without one they are measured on the context.
 * Budget B: kept = B - buffer tokens after a cut, the prompt among them; a step attends to at most B.
 */
#include "parts/head_file.h"
#include "parts/layer_state.h"
#include "parts/live_scores.h"

#include <math.h>
#include <string.h>

enum { TRI_AUTO = 0, TRI_KEEP, TRI_JUDGE, TRI_FAR = 65536 };

struct tri_opts {
    char table[KVL_OPT_PATH_SIZE], table_sum[KVL_OPT_STR_SIZE];
    int32_t kept, buffer, prompt, samples;
    bool normalize, report_means;
    struct kvl_state_part
        means; /* not options, here and below: float [n_heads][2][head_dim]: m, a */
    struct kvl_state_part last; /* int32_t: position of a layer's last cut */
    struct kvl_state_part pair; /* int32_t [head_dim]: the channel that turns with one, or itself */
};

static const char *const tri_prompts[] = { "auto", "keep", "judge", NULL };

static const struct kvl_opt tri_options[] = {
    KVL_ROW_PATH(tri_opts, table, "",
                 "file of means: a line \"layer head number ...\" for every query head, mean query "
                 "and mean lengths; see kvlab tables"),
    KVL_ROW_STR(tri_opts, table_sum, "", "checksum of the table, written when it is read"),
    KVL_ROW_INT(tri_opts, kept, "auto", 1, 1 << 30,
                "tokens that a cut leaves (code: 2048); auto = budget - buffer"),
    KVL_ROW_INT(tri_opts, buffer, "auto", 1, 1 << 20,
                "tokens between two cuts (code: 128); auto = budget / 4, 1 to 128"),
    KVL_ROW_ENUM(
        tri_opts, prompt, "auto", tri_prompts,
        "the prompt: keep all of it (code), judge it like the answer, auto = keep it where "
        "it leaves the answer half of kept"),
    KVL_ROW_INT(tri_opts, samples, "512", 1, 65536,
                "last queries of the context that lengths are measured on without a table"),
    KVL_ROW_BOOL(tri_opts, normalize, "true",
                 "scores of a query head less their mean, by their deviation (code: true)"),
    KVL_ROW_BOOL(tri_opts, report_means, "false", "report every mean"),
    { 0 },
};

static int32_t tri_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    (void)opts;
    return 4;
}

static int tri_plan(struct kvl_plan *plan)
{
    struct tri_opts *o = plan->opts;
    const struct kvl_shape *sh = plan->shape;
    size_t dim = (size_t)sh->head_dim;
    if (o->kept == KVL_AUTO || o->buffer == KVL_AUTO) KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->buffer == KVL_AUTO) o->buffer = KVL_MAX(1, KVL_MIN(128, plan->budget_tok / 4));
    if (o->kept == KVL_AUTO) o->kept = plan->budget_tok - o->buffer;
    if (o->kept < 1)
        return kvl_fail(plan->err, KVL_EINVAL, "buffer=%d of a budget of %d; give less", o->buffer,
                        plan->budget_tok);
    if (o->prompt == TRI_AUTO) o->prompt = 2 * plan->context_tok <= o->kept ? TRI_KEEP : TRI_JUDGE;
    kvl_plan_state(plan, (size_t)sh->n_heads * 2 * dim * sizeof(float), &o->means);
    kvl_plan_state(plan, sizeof(int32_t), &o->last);
    kvl_plan_state(plan, dim * sizeof(int32_t), &o->pair);
    if (o->table[0])
        return kvl_head_vectors(o->table, sh, sh->n_heads, 2 * sh->head_dim, o->table_sum,
                                plan->err, NULL);
    o->samples = KVL_MIN(o->samples, plan->context_tok);
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_MOMENTS, 0));
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, o->samples);
}

/* ---- means ------------------------------------------------------------------------------------------- */

/* Which channels turn together, by turning unit vectors. */
static int tri_pairs(const struct kvl_pctx *ctx, int32_t layer, int32_t *pair)
{
    int32_t dim = ctx->shape->head_dim;
    float *unit, *turned;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)dim * (size_t)dim, &unit));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)dim * (size_t)dim, &turned));
    memset(unit, 0, (size_t)dim * (size_t)dim * sizeof *unit);
    for (int32_t i = 0; i < dim; i++) unit[i * dim + i] = 1;
    KVL_TRY(kvl_rotate(ctx, layer, unit, dim, 1, turned));
    for (int32_t i = 0; i < dim; i++) {
        pair[i] = i;
        for (int32_t c = 0; c < dim; c++)
            if (c != i && (turned[i * dim + c] > 0 || turned[i * dim + c] < 0)) pair[i] = c;
    }
    return KVL_OK;
}

/* Length of the part of x that turns with channel i, which the lower channel of a pair stands for. */
static float tri_length(const float *x, const int32_t *pair, int32_t i)
{
    float a = x[i], b = pair[i] == i ? 0 : x[pair[i]];
    return pair[i] < i ? 0 : sqrtf(a * a + b * b);
}

/* calibrate(), on the context: means [n_heads][2][dim]. */
static int tri_measure(const struct kvl_pctx *ctx, int32_t layer, float *means)
{
    const struct tri_opts *o = ctx->opts;
    const int32_t *pair = kvl_state_of(ctx, &o->pair, layer);
    int32_t dim = ctx->shape->head_dim, heads = ctx->shape->n_heads, n;
    const float *mean, *cov;
    float *q;
    KVL_TRY(kvl_obs_moments(ctx, layer, 0, &mean, &cov, &n));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)heads * (size_t)dim, &q));
    memset(means, 0, (size_t)heads * 2 * (size_t)dim * sizeof *means);
    for (int32_t h = 0; h < heads; h++)
        memcpy(means + h * 2 * dim, mean + h * dim, (size_t)dim * sizeof *mean);
    for (int32_t s = 0; s < o->samples; s++) {
        KVL_TRY(kvl_obs_window_query(ctx, layer, s, q));
        for (int32_t i = 0; i < heads * dim; i++)
            means[i / dim * 2 * dim + dim + i % dim] +=
                tri_length(q + i / dim * dim, pair, i % dim) / (float)o->samples;
    }
    return KVL_OK;
}

static int tri_open(struct kvl_pctx *ctx)
{
    struct tri_opts o = *(const struct tri_opts *)ctx->opts;
    for (int32_t l = 0; l < ctx->shape->n_layers; l++) {
        *(int32_t *)kvl_state_of(ctx, &o.last, l) = ctx->context_tok - 1;
        KVL_TRY(tri_pairs(ctx, l, kvl_state_of(ctx, &o.pair, l)));
    }
    if (!o.table[0]) return KVL_OK;
    return kvl_head_vectors(o.table, ctx->shape, ctx->shape->n_heads, 2 * ctx->shape->head_dim,
                            o.table_sum, ctx->err, kvl_state_of(ctx, &o.means, 0));
}

static int tri_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    const struct tri_opts *o = ctx->opts;
    return o->table[0] ? KVL_OK : tri_measure(ctx, layer, kvl_state_of(ctx, &o->means, layer));
}

/* ---- scores ------------------------------------------------------------------------------------------ */

/* build_geometric_offsets(), step 1: m of all query heads, the mean of where it will stand: out [n_heads][dim]. */
static int tri_ahead(const struct kvl_pctx *ctx, int32_t layer, int32_t now, float *out)
{
    const struct tri_opts *o = ctx->opts;
    size_t dim = (size_t)ctx->shape->head_dim, all = (size_t)ctx->shape->n_heads * dim;
    const float *means = kvl_state_of(ctx, &o->means, layer);
    float *m, *turned;
    int32_t n = 0;
    KVL_TRY(kvl_scratch_get(ctx, all, &m));
    KVL_TRY(kvl_scratch_get(ctx, all, &turned));
    for (size_t i = 0; i < all; i++) m[i] = means[i / dim * 2 * dim + i % dim];
    memset(out, 0, all * sizeof *out);
    for (int32_t ahead = 1; ahead <= TRI_FAR; ahead *= 2, n++) {
        KVL_TRY(kvl_rotate(ctx, layer, m, ctx->shape->n_heads, now + ahead, turned));
        for (size_t i = 0; i < all; i++) out[i] += turned[i];
    }
    for (size_t i = 0; i < all; i++) out[i] /= (float)n;
    return KVL_OK;
}

/* compute_frequency_statistics_from_means(), step 2: added to the scores of one query head. */
static void tri_extra(const struct kvl_shape *shape, const float *means, const int32_t *pair,
                      const float *k, int32_t n, float *score)
{
    int32_t dim = shape->head_dim;
    for (int32_t c = 0; c < dim; c++) {
        float more = means[dim + c] - tri_length(means, pair, c);
        if (pair[c] < c) continue;
        for (int32_t i = 0; i < n; i++) score[i] += more * tri_length(k + i * dim, pair, c);
    }
}

/* Step 3. */
static void tri_normalize(float *score, int32_t n)
{
    double sum = 0, squares = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)score[i];
    for (int32_t i = 0; i < n; i++)
        squares += ((double)score[i] - sum / n) * ((double)score[i] - sum / n);
    double deviation = fmax(sqrt(squares / n), 1e-6);
    for (int32_t i = 0; i < n; i++) score[i] = (float)(((double)score[i] - sum / n) / deviation);
}

/* _compute_layer_head_scores(): scores [n_kv_heads][n] of all n live tokens of a layer, of which the first `first` are
 * not judged and infinite. */
static int tri_scores(const struct kvl_pctx *ctx, int32_t layer, int32_t now, int32_t n,
                      int32_t first, float *score)
{
    const struct tri_opts *o = ctx->opts;
    int32_t dim = ctx->shape->head_dim, group = ctx->shape->group, m = n - first, n_live;
    const float *means = kvl_state_of(ctx, &o->means, layer);
    const int32_t *pair = kvl_state_of(ctx, &o->pair, layer), *live;
    float *ahead, *k, *each;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_heads * (size_t)dim, &ahead));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)m * (size_t)dim, &k));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)group * (size_t)m, &each));
    KVL_TRY(tri_ahead(ctx, layer, now, ahead));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++, score += n) {
        KVL_TRY(kvl_live(ctx, layer, h, &live, &n_live));
        KVL_TRY(kvl_read_keys(ctx, layer, h, live + first, m, false, k));
        for (int32_t g = 0; g < group; g++) {
            int32_t head = h * group + g;
            KVL_TRY(kvl_product(ctx, k, m, ahead + head * dim, 1, dim, each + g * m));
            tri_extra(ctx->shape, means + head * 2 * dim, pair, k, m, each + g * m);
            if (o->normalize) tri_normalize(each + g * m, m);
        }
        for (int32_t i = 0; i < first; i++) score[i] = INFINITY;
        KVL_TRY(kvl_layer_scores(ctx, each, group, m, KVL_REDUCE_MAX, score + first));
    }
    return KVL_OK;
}

static int32_t tri_unjudged(const struct kvl_pctx *ctx)
{
    const struct tri_opts *o = ctx->opts;
    return o->prompt == TRI_KEEP ? ctx->context_tok : 0;
}

static int tri_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct tri_opts *o = ctx->opts;
    scores->keep_tok = o->prompt == TRI_KEEP ? scores->n_tok : o->kept;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    return tri_scores(ctx, layer, ctx->context_tok, scores->n_tok, 0, scores->score);
}

/* Step 4. */
static int tri_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct tri_opts *o = ctx->opts;
    int32_t *last = kvl_state_of(ctx, &o->last, step->layer), n, first = tri_unjudged(ctx);
    int32_t stay = KVL_MAX(first, o->kept);
    const int32_t *live;
    float *score;
    if (step->replay || step->pos - *last < o->buffer) return KVL_OK;
    *last = step->pos;
    KVL_TRY(kvl_live(ctx, step->layer, 0, &live, &n));
    if (n <= stay) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_kv_heads * (size_t)n, &score));
    KVL_TRY(tri_scores(ctx, step->layer, step->pos + 1, n, first, score));
    return kvl_keep_best(ctx, step, keep, KVL_SCOPE_KV_HEAD, score, n, stay, 0);
}

static int tri_report(struct kvl_pctx *ctx, struct kvl_report *report)
{
    const struct tri_opts *o = ctx->opts;
    for (int32_t l = 0; o->report_means && l < ctx->shape->n_layers; l++)
        KVL_TRY(kvl_report_vectors(report, l, ctx->shape->n_heads, 2 * ctx->shape->head_dim,
                                   kvl_state_of(ctx, &o->means, l)));
    return KVL_OK;
}

static const struct kvl_policy triattention = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "triattention",
    .title = "TriAttention",
    .paper = "TriAttention, 2026, arXiv 2604.04921",
    .help = "keeps the keys that mean queries will attend to from the positions to come, again and "
            "again",
    .follows =
        "The official code with a selection for every layer and kv head "
        "(per_layer_perhead_pruning), 17 offsets and their mean, scores normalised per query head, "
        "the largest of a group, a cut every 128 tokens, the prompt kept.",
    .deviations =
        "Without a table means and lengths are those of the context, not of other texts. The "
        "code's "
        "union over layers and heads, and its per-head mean over layers, are left out: a layer is "
        "cut before the next one has its token. prompt=auto judges a prompt that would take more "
        "than half of what stays.",
    .cost =
        "Once in `buffer` steps and layer 17 rotations of each mean, 2 d products for each of B "
        "keys and H heads, and a top-k of B per kv head. Once, without a table, d^2 / 2 products "
        "for each of n queries and H heads, in double. Memory: 2 d floats for each of H heads of a "
        "layer.",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = tri_options,
    .opts_size = sizeof(struct tri_opts),
    .min_budget = tri_min_budget,
    .plan = tri_plan,
    .open = tri_open,
    .prefilled = tri_prefilled,
    .score = tri_score,
    .evict = tri_evict,
    .report = tri_report,
};

KVL_POLICY_EXPORT(triattention)
