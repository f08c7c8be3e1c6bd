/* random_decode - keeps the prompt, and of the answer a blind sample and the latest tokens.
 *
 * Random Attention, 2026 (arXiv 2609.03430) and its package randkv: for answers that are long a uniform sample of the
 * tokens generated so far does as well as scores do.  A lower bound of every method that evicts while decoding.
 *   1. the prompt stays
 *   2. when more than K + r tokens are there, and r have come since the last cut, the latest r stay
 *   3. of what lies between, a uniform sample fills K, drawn anew for every layer, kv head and cut
 * A token that was dropped once never competes again, so that old tokens thin out.
 * Budget B: K = B - 2 r; a step attends to at most K + 2 r.  A prompt that is longer than K does not fit: prompt=auto
 * samples it like the answer, prompt=keep keeps it all the same, and then the answer has the latest tokens alone.
 */
#include "parts/layer_state.h"
#include "parts/live_scores.h"

#include <math.h>

enum { RANDOM_DECODE_AUTO = 0, RANDOM_DECODE_KEEP, RANDOM_DECODE_SAMPLE };

struct random_decode_opts {
    int32_t kept, buffer, prompt;
    struct kvl_state_part last; /* not an option: int32_t, position of a layer's last cut */
};

static const char *const random_decode_prompts[] = { "auto", "keep", "sample", NULL };

static const struct kvl_opt random_decode_options[] = {
    KVL_ROW_INT(random_decode_opts, kept, "auto", 1, 1 << 30,
                "prompt and sample (randkv: 2048); auto = budget - 2 buffer"),
    KVL_ROW_INT(
        random_decode_opts, buffer, "auto", 1, 1 << 20,
        "latest tokens that stay, and tokens between two cuts (randkv: 64); auto = budget / "
        "8, 1 to 64"),
    KVL_ROW_ENUM(
        random_decode_opts, prompt, "auto", random_decode_prompts,
        "the prompt: keep all of it (paper), sample it like the answer, auto = keep it where "
        "it fits into kept"),
    { 0 },
};

static int32_t random_decode_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    (void)opts;
    return 4;
}

static int random_decode_plan(struct kvl_plan *plan)
{
    struct random_decode_opts *o = plan->opts;
    if (o->kept == KVL_AUTO || o->buffer == KVL_AUTO) KVL_TRY(kvl_plan_needs_budget(plan));
    if (o->buffer == KVL_AUTO) o->buffer = KVL_MAX(1, KVL_MIN(64, plan->budget_tok / 8));
    if (o->kept == KVL_AUTO) o->kept = plan->budget_tok - 2 * o->buffer;
    if (o->prompt == RANDOM_DECODE_AUTO)
        o->prompt = plan->context_tok <= o->kept ? RANDOM_DECODE_KEEP : RANDOM_DECODE_SAMPLE;
    kvl_plan_state(plan, sizeof(int32_t), &o->last);
    if (o->kept >= 1) return KVL_OK;
    return kvl_fail(plan->err, KVL_EINVAL, "buffer=%d of a budget of %d; give less than half",
                    o->buffer, plan->budget_tok);
}

/* Tokens of the prompt that no cut may drop. */
static int32_t random_decode_prompt(const struct kvl_pctx *ctx)
{
    const struct random_decode_opts *o = ctx->opts;
    return o->prompt == RANDOM_DECODE_KEEP ? ctx->context_tok : 0;
}

/* RandomEvictionPolicy.select(): scores [n_kv_heads][n], the prompt's better than any. */
static int random_decode_draw(const struct kvl_pctx *ctx, int32_t layer, int32_t pos, int32_t n,
                              float *score)
{
    uint64_t seed = kvl_seed_mix(kvl_seed_mix(ctx->seed, (uint64_t)layer), (uint64_t)pos);
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++, score += n) {
        KVL_TRY(ctx->ops->random_fill(&(struct kvl_random_fill_args){
            .y = score, .n = (size_t)n, .seed = kvl_seed_mix(seed, (uint64_t)h) }));
        for (int32_t i = 0; i < random_decode_prompt(ctx); i++) score[i] = INFINITY;
    }
    return KVL_OK;
}

/* A prompt that is not kept is cut like an answer. */
static int random_decode_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct random_decode_opts *o = ctx->opts;
    int32_t whole = random_decode_prompt(ctx);
    *(int32_t *)kvl_state_of(ctx, &o->last, layer) = ctx->context_tok - 1;
    scores->keep_tok = whole > 0 ? scores->n_tok : o->kept + o->buffer;
    scores->protect_last = whole > 0 ? 0 : o->buffer;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    return random_decode_draw(ctx, layer, ctx->context_tok - 1, scores->n_tok, scores->score);
}

static int random_decode_evict(struct kvl_pctx *ctx, const struct kvl_step *step,
                               struct kvl_keep *keep)
{
    const struct random_decode_opts *o = ctx->opts;
    int32_t *last = kvl_state_of(ctx, &o->last, step->layer), n;
    int32_t stay = KVL_MAX(random_decode_prompt(ctx), o->kept);
    const int32_t *live;
    float *score;
    if (step->replay) return KVL_OK;
    KVL_TRY(kvl_live(ctx, step->layer, 0, &live, &n));
    if (n <= stay + o->buffer || step->pos - *last < o->buffer) return KVL_OK;
    *last = step->pos;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_kv_heads * (size_t)n, &score));
    KVL_TRY(random_decode_draw(ctx, step->layer, step->pos, n, score));
    return kvl_keep_best(ctx, step, keep, KVL_SCOPE_KV_HEAD, score, n, stay, o->buffer);
}

static const struct kvl_policy random_decode = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "random_decode",
    .title = "Random Attention",
    .paper = "Random Attention, 2026, arXiv 2609.03430",
    .help = "keeps the prompt, and of the answer a random sample and the latest tokens",
    .follows =
        "The package randkv 0.1.0: the prompt stays, and a cut, once in r tokens, keeps the latest "
        "r and a uniform sample of the older answer, K in all with the prompt, drawn per layer and "
        "kv head.",
    .deviations =
        "A prompt longer than K is sampled like the answer, once when it is complete, where randkv "
        "refuses it; prompt=keep keeps it beyond the budget. The cut "
        "comes behind the attention of a step, where randkv cuts before it. Random numbers are the "
        "harness's, of seed, layer, kv head and position.",
    .cost =
        "Once in r steps and layer B random numbers and a top-k of B per kv head. Once n of both, "
        "where the prompt does not fit. No memory.",
    .version = 1,
    .caps = KVL_CAP_BOUND | KVL_CAP_EVICTS | KVL_CAP_SAMPLES,
    .opts = random_decode_options,
    .opts_size = sizeof(struct random_decode_opts),
    .min_budget = random_decode_min_budget,
    .plan = random_decode_plan,
    .score = random_decode_score,
    .evict = random_decode_evict,
};

KVL_POLICY_EXPORT(random_decode)
