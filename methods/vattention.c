/* vattention - reads what surely matters, and a random sample of the rest that is large enough for a
 * promise about the error.
 *
 * Desai et al.: vAttention: Verified Sparse Attention, 2025 (arXiv 2510.05688).  Every step, per kv head:
 *     forced   the first `sink` tokens, the last `local`, the `top` of largest weight, the current one
 *     base     a uniform sample of base_rate of the n others: sigma, the deviation of their exp(logit),
 *              and D = forced mass + n mean(base), the estimate of the softmax's denominator
 *     b        floor((quantile(1 - delta) sigma n / (epsilon D))^2) tokens, at least as many as base
 *     sample   b of the n others, each with log-weight ln(n / b): sums over it are unbiased
 * so that the denominator is off by more than epsilon D with probability delta at most.
 * Budget B: sink = local = min(128, B / 8), top = B / 4; the sample is what epsilon and delta want, up
 * to the rest: the budget caps it, and steps in which the promise needs more are reported (capped).
 * The same seed gives the same samples, whatever the batch. */
#include "kvl/policy.h"
#include "vattention_budget.h"

#include <string.h>

struct vattention_opts {
    int32_t sink, local, top;
    double base_rate, epsilon, delta;
    double z; /* not an option: quantile(1 - delta) */
};

struct vattention_state {
    double n_lanes, n_capped, n_sampled, n_wanted;
};

static const struct kvl_opt vattention_options[] = {
    KVL_ROW_INT(vattention_opts, sink, "auto", 0, 1 << 30,
                "first tokens, always read; auto = min(128, budget / 8) (paper: 128)"),
    KVL_ROW_INT(vattention_opts, local, "auto", 0, 1 << 30,
                "last tokens, always read; auto = min(128, budget / 8) (paper: 128)"),
    KVL_ROW_INT(vattention_opts, top, "auto", 0, 1 << 30,
                "tokens of largest weight, always read; auto = budget / 4"),
    KVL_ROW_FLOAT(vattention_opts, base_rate, "0.02", 1e-6, 0.999999,
                  "share of the others that the estimate is made from"),
    KVL_ROW_FLOAT(vattention_opts, epsilon, "0.1", 1e-6, 0.999999,
                  "relative error that is promised (paper: 0.05 to 0.3)"),
    KVL_ROW_FLOAT(vattention_opts, delta, "0.1", 1e-6, 0.999999,
                  "probability of a larger one (paper: 0.05 to 0.3)"),
    { 0 },
};

enum { VATTENTION_LEAST = 8, VATTENTION_ENDS = 128 };

static int32_t vattention_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    (void)opts;
    return VATTENTION_LEAST;
}

static int vattention_plan(struct kvl_plan *plan)
{
    struct vattention_opts *o = plan->opts;
    int32_t budget = plan->budget_tok;
    KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->sink == KVL_AUTO) o->sink = KVL_MIN(VATTENTION_ENDS, budget / 8);
    if (o->local == KVL_AUTO) o->local = KVL_MIN(VATTENTION_ENDS, budget / 8);
    if (o->top == KVL_AUTO) o->top = budget / 4;
    int64_t forced = (int64_t)o->sink + o->local + o->top;
    if (forced > budget - 3)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "sink=%d, local=%d and top=%d with budget %d; leave room for the current "
                        "token and 2 of a sample",
                        o->sink, o->local, o->top, budget);
    o->z = vattention_quantile(1 - o->delta);
    plan->state_bytes = sizeof(struct vattention_state);
    return KVL_OK;
}

/* ---- one lane ---------------------------------------------------------------------------------- */

enum { VATTENTION_REST = 0 /* a word of them is 0 */, VATTENTION_FORCED, VATTENTION_SAMPLE };

struct vattention_lane {
    const struct kvl_pctx *ctx;
    const struct kvl_step *step;
    int32_t kv_head;
    const float *probs; /* [group][pos + 1], exact weights: exp(logit) but for a factor */
    uint8_t *mark;      /* [pos] why a position is read */
    int32_t *rest;      /* [n_rest] positions that nothing forces */
    uint8_t *taken;     /* [n_rest] 1 = in the sample drawn last */
    int32_t *sample;    /* [n_sample] these, as positions, ascending */
    int32_t *top;       /* [o->top] the best by weight, of those that are no end */
    int32_t n_rest, n_sample, *pos; /* [budget] */
    float *weight;                  /* [budget] */
};

/* Marks the ends and the best, lists the others. */
static void vattention_force(struct vattention_lane *l)
{
    const struct vattention_opts *o = l->ctx->opts;
    int32_t pos = l->step->pos, n = pos - o->sink - o->local;
    memset(l->mark, VATTENTION_FORCED, (size_t)pos);
    memset(l->mark + o->sink, VATTENTION_REST, (size_t)n);
    for (int32_t i = 0; i < o->top; i++) l->mark[l->top[i] += o->sink] = VATTENTION_FORCED;
    const uint8_t *mark = l->mark;
    int32_t *rest = l->rest, n_rest = 0;
    for (int32_t i = 0; i < pos; i++) {
        rest[n_rest] = i;
        n_rest += mark[i] == VATTENTION_REST;
    }
    l->n_rest = n_rest;
}

/* Takes m of the n_rest, each set of them equally likely (Floyd 1987). */
static void vattention_draw(struct vattention_lane *l, int32_t m, uint64_t salt)
{
    struct kvl_rng rng;
    uint64_t seed = kvl_seed_mix(l->ctx->seed, (uint64_t)l->step->layer);
    seed = kvl_seed_mix(seed, (uint64_t)l->kv_head);
    kvl_rng_seed(&rng, kvl_seed_mix(kvl_seed_mix(seed, (uint64_t)l->step->pos), salt));
    memset(l->taken, 0, (size_t)l->n_rest);
    for (int32_t j = l->n_rest - m; j < l->n_rest; j++) {
        int32_t t = (int32_t)kvl_rng_below(&rng, (uint32_t)j + 1);
        l->taken[l->taken[t] ? j : t] = 1;
    }
    const uint8_t *end = l->taken + l->n_rest, *at = l->taken;
    for (l->n_sample = 0; (at = memchr(at, 1, (size_t)(end - at))) != NULL; at++)
        l->sample[l->n_sample++] = l->rest[at - l->taken];
}

/* What the rest weighs: all but the ends, without the best. */
static double vattention_rest(const struct vattention_lane *l, const float *probs)
{
    const struct vattention_opts *o = l->ctx->opts;
    double lane[4] = { 0 };
    int32_t i = o->sink, end = l->step->pos - o->local;
    for (; i + 4 <= end; i += 4)
        for (int32_t j = 0; j < 4; j++) lane[j] += (double)probs[i + j];
    for (; i < end; i++) lane[0] += (double)probs[i];
    double sum = (lane[0] + lane[1]) + (lane[2] + lane[3]);
    for (int32_t j = 0; j < o->top; j++) sum -= (double)probs[l->top[j]];
    return fmax(sum, 0);
}

/* sparse-attention-hub, _compute_adaptive_budget(): b of one query head, from its weights over a base sample of m. */
static double vattention_wish(const struct vattention_lane *l, const float *probs, int32_t m)
{
    const struct vattention_opts *o = l->ctx->opts;
    double sum = 0, squares = 0, rest = vattention_rest(l, probs);
    for (int32_t i = 0; i < m; i++) sum += (double)probs[l->sample[i]];
    double mean = sum / m;
    for (int32_t i = 0; i < m; i++)
        squares += ((double)probs[l->sample[i]] - mean) * ((double)probs[l->sample[i]] - mean);
    /* Weights sum to 1: what is forced is known; of the rest, what the sample says. */
    double total = 1 - rest + mean * l->n_rest;
    return floor(vattention_need(o->z, sqrt(squares / (m - 1)), l->n_rest, o->epsilon, total));
}

/* Size of the sample: what the heads want, at least the base sample, at most what the budget leaves. */
static int32_t vattention_size(struct vattention_lane *l)
{
    const struct vattention_opts *o = l->ctx->opts;
    struct vattention_state *state = l->ctx->state;
    int32_t room = l->ctx->budget_tok - 1 - o->sink - o->local - o->top;
    int32_t base = (int32_t)ceil(o->base_rate * l->n_rest);
    double want = base = KVL_MIN(KVL_MAX(base, 2), l->n_rest);
    vattention_draw(l, base, 0);
    for (int32_t g = 0; g < l->ctx->shape->group; g++)
        want = fmax(want, vattention_wish(l, l->probs + g * (l->step->pos + 1), base));
    want = fmin(want, l->n_rest);
    int32_t size = (int32_t)fmin(want, room);
    state->n_lanes++;
    state->n_wanted += want;
    state->n_sampled += size;
    state->n_capped += want > room;
    return size;
}

/* What is read, and how it weighs, in order: eight positions that nothing reads are passed over at once. */
static int32_t vattention_read(const struct vattention_lane *l, float correction)
{
    enum { STEP = sizeof(uint64_t) };
    int32_t n = 0, end = l->step->pos;
    for (int32_t i = 0; i < end; i += STEP) {
        uint64_t some = 1;
        int32_t m = KVL_MIN((int32_t)STEP, end - i);
        if (m == STEP) memcpy(&some, l->mark + i, STEP);
        for (int32_t j = i; some != 0 && j < i + m; j++) {
            if (l->mark[j] == VATTENTION_REST) continue;
            l->weight[n] = l->mark[j] == VATTENTION_SAMPLE ? correction : 0;
            l->pos[n++] = j;
        }
    }
    return n;
}

static int vattention_list(struct vattention_lane *l, struct kvl_sel *sel)
{
    vattention_force(l);
    int32_t size = vattention_size(l);
    float correction = logf((float)l->n_rest / (float)size);
    vattention_draw(l, size, 1);
    for (int32_t i = 0; i < l->n_sample; i++) l->mark[l->sample[i]] = VATTENTION_SAMPLE;
    int32_t n = vattention_read(l, correction);
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, l->kv_head, l->pos, n));
    return kvl_sel_log_weights(sel, KVL_SCOPE_KV_HEAD, l->kv_head, l->weight, n);
}

/* The weights of every query head, probs [n_heads][pos + 1], and the best of every kv head by the mean of its group, top
 * [n_kv_heads][o->top]: in one piece, so that the host waits for both at once. */
static int vattention_weights(const struct kvl_pctx *ctx, const struct kvl_step *step,
                              const struct kvl_query *q, float **probs, int32_t **top)
{
    const struct vattention_opts *o = ctx->opts;
    int32_t row = step->pos + 1, n_kv = ctx->shape->n_kv_heads;
    size_t all = (size_t)ctx->shape->n_heads * (size_t)row;
    size_t words = all + (size_t)n_kv * (size_t)o->top;
    float *mean;
    void *room;
    KVL_TRY(kvl_scratch_items(ctx, words, sizeof **probs, &room));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_kv * (size_t)row, &mean));
    *probs = room;
    *top = (int32_t *)room + all;
    KVL_TRY(kvl_attn_weights(ctx, step, q, *probs, row));
    KVL_TRY(kvl_group_scores(ctx, *probs, row, KVL_REDUCE_MEAN, mean));
    int rc = ctx->ops->topk(&(struct kvl_topk_args){ .index = *top,
                                                     .x = mean + o->sink,
                                                     .x_stride = (size_t)row,
                                                     .n_rows = n_kv,
                                                     .n = step->pos - o->sink - o->local,
                                                     .k = o->top });
    if (rc == KVL_ENUMERIC) return kvl_fail(ctx->err, rc, "a weight is not a number (NaN)");
    KVL_TRY(rc);
    return kvl_look_at(ctx, room, words, sizeof **probs);
}

static int vattention_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                             const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct vattention_opts *o = ctx->opts;
    size_t row = (size_t)step->pos + 1, budget = (size_t)ctx->budget_tok;
    struct vattention_lane l = { .ctx = ctx, .step = step };
    float *probs;
    if (step->pos < ctx->budget_tok) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, row, &l.mark));
    KVL_TRY(kvl_scratch_get(ctx, row, &l.rest));
    KVL_TRY(kvl_scratch_get(ctx, row, &l.taken));
    KVL_TRY(kvl_scratch_get(ctx, row, &l.sample));
    KVL_TRY(kvl_scratch_get(ctx, budget, &l.pos));
    KVL_TRY(kvl_scratch_get(ctx, budget, &l.weight));
    KVL_TRY(vattention_weights(ctx, step, q, &probs, &l.top));
    for (; l.kv_head < ctx->shape->n_kv_heads; l.kv_head++, l.top += o->top) {
        l.probs = probs + (size_t)(l.kv_head * ctx->shape->group) * row;
        KVL_TRY(vattention_list(&l, sel));
    }
    return KVL_OK;
}

static int vattention_report(struct kvl_pctx *ctx, struct kvl_report *r)
{
    const struct vattention_state *state = ctx->state;
    if (state->n_lanes < 1) return KVL_OK;
    KVL_TRY(kvl_report_num(r, "sampled_mean", state->n_sampled / state->n_lanes));
    KVL_TRY(kvl_report_num(r, "wanted_mean", state->n_wanted / state->n_lanes));
    KVL_TRY(kvl_report_num(r, "capped", state->n_capped / state->n_lanes));
    return state->n_capped > 0
               ? kvl_report_note(r, "in {capped%} of the lists the budget held a smaller "
                                    "sample than epsilon and delta ask for")
               : KVL_OK;
}

static const struct kvl_policy vattention = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "vattention",
    .title = "vAttention",
    .paper = "Desai et al., 2025, arXiv 2510.05688",
    .help = "keeps all; reads first, latest and heaviest tokens, and a random sample of the rest "
            "large enough for a promised error",
    .follows =
        "Paper and the authors' code with an exact top-k: a base sample estimates deviation (n - 1 "
        "in the denominator) and total, and serves nothing else; the sample proper is drawn anew, "
        "its size floored before it is clamped, and weighted by one over its probability.",
    .deviations =
        "One list per kv head with the largest sample that its query heads want, so that the "
        "promise to every head holds, and top by the mean weight over the group (official: a list "
        "per query head, on repeated keys); sampling without replacement, which errs less "
        "(official: with); the budget caps the sample, and the share of capped lists is reported. "
        "Left out: an approximate top-k below it.",
    .cost =
        "Per step and layer all keys are read for the exact top-k, n d values per kv head counted "
        "as index bytes; a top-k of n per kv head, and the random numbers of two samples. Nothing "
        "once; no memory.",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_ESTIMATES | KVL_CAP_SAMPLES | KVL_CAP_ASYNC,
    .opts = vattention_options,
    .opts_size = sizeof(struct vattention_opts),
    .min_budget = vattention_min_budget,
    .plan = vattention_plan,
    .select = vattention_select,
    .report = vattention_report,
};

KVL_POLICY_EXPORT(vattention)
