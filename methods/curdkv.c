/* curdkv - keeps the tokens that a CUR decomposition of keys and values would take.
 *
 * Sengupta et al.: Value-Guided KV Compression for LLMs via Approximated CUR Decomposition, 2025 (arXiv
 * 2509.15038).  Per layer and kv head, when the context is complete:
 *   1. the squared length of every key and of every value, each as its part of the sum over its block of `local` tokens:
 *      an approximate leverage
 *   2. their product (leverage=key, value, mean: one of them, or their mean), divided by its sum
 *   3. the first n_sink tokens score 1, and the best B - 1 stay (ties: the lower position)
 * With projected=true lengths are those of keys and values projected to 20 random channels, as in the paper's
 * randomised form.
 * Budget B: B - 1 tokens of the context, the sinks among them, and the current one; tokens that come later stay.
 */
#include "kvl/policy.h"

#include <math.h>

enum { CURDKV_PRODUCT = 0, CURDKV_KEY, CURDKV_VALUE, CURDKV_MEAN, CURDKV_RANDOM = 20 };

struct curdkv_opts {
    int32_t n_sink, leverage, local;
    bool projected;
};

static const char *const curdkv_leverages[] = { "product", "key", "value", "mean", NULL };

static const struct kvl_opt curdkv_options[] = {
    KVL_ROW_INT(curdkv_opts, n_sink, "4", 0, 65536, "first tokens that stay (kvpress: 4)"),
    KVL_ROW_ENUM(curdkv_opts, leverage, "product", curdkv_leverages,
                 "of keys and values: their product (paper), one of them, their mean"),
    KVL_ROW_INT(curdkv_opts, local, "16", 0, 1 << 20,
                "tokens of a block whose sum a token is part of (kvpress: 16); 0 = all of them"),
    KVL_ROW_BOOL(curdkv_opts, projected, "false",
                 "project keys and values to 20 random channels first (kvpress: false)"),
    { 0 },
};

static int32_t curdkv_min_budget(const struct kvl_shape *shape, const void *opts)
{
    (void)shape;
    return ((const struct curdkv_opts *)opts)->n_sink + 2;
}

/* Step 1: squared lengths as parts of their block's sum. */
static int curdkv_parts(const struct kvl_pctx *ctx, const float *x, int32_t n, int32_t dim,
                        float *part)
{
    const struct curdkv_opts *o = ctx->opts;
    int32_t local = o->local > 0 ? o->local : n;
    KVL_TRY(ctx->ops->row_norms(
        &(struct kvl_row_norms_args){ .y = part, .x = x, .n = n, .dim = dim, .norm = 2 }));
    for (int32_t at = 0; at < n; at += local) {
        int32_t end = KVL_MIN(n, at + local);
        float sum = 0;
        for (int32_t i = at; i < end; i++) part[i] *= part[i];
        for (int32_t i = at; i < end; i++) sum += part[i];
        for (int32_t i = at; o->local > 0 && sum > 0 && i < end; i++) part[i] /= sum;
    }
    return KVL_OK;
}

/* G [20][dim]: normal numbers, the same for keys and values of all heads of a layer. */
static int curdkv_project(const struct kvl_pctx *ctx, int32_t layer, float **g)
{
    size_t n = CURDKV_RANDOM * (size_t)ctx->shape->head_dim;
    float *u;
    KVL_TRY(kvl_scratch_get(ctx, n, g));
    KVL_TRY(kvl_scratch_get(ctx, 2 * n, &u));
    uint64_t seed = kvl_seed_mix(kvl_seed_str(0, "curdkv"), (uint64_t)layer);
    KVL_TRY(
        ctx->ops->random_fill(&(struct kvl_random_fill_args){ .y = u, .n = 2 * n, .seed = seed }));
    for (size_t i = 0; i < n; i++)
        (*g)[i] = sqrtf(-2 * logf(1 - u[2 * i]) / CURDKV_RANDOM) * cosf(6.2831853f * u[2 * i + 1]);
    return KVL_OK;
}

struct curdkv_room {
    float *x, *y, *g, *key, *value; /* rows, projected ones, G or NULL, parts */
};

/* Keys or values of a lane, as they are judged. */
static int curdkv_lane(const struct kvl_pctx *ctx, const struct curdkv_room *r, int32_t n,
                       float *part)
{
    int32_t dim = ctx->shape->head_dim;
    if (!r->g) return curdkv_parts(ctx, r->x, n, dim, part);
    KVL_TRY(kvl_product(ctx, r->x, n, r->g, CURDKV_RANDOM, dim, r->y));
    return curdkv_parts(ctx, r->y, n, CURDKV_RANDOM, part);
}

/* CURPress.score(), step 2. */
static void curdkv_join(const struct curdkv_opts *o, const struct curdkv_room *r, int32_t n,
                        float *score)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        float k = r->key[i], v = r->value[i];
        score[i] = o->leverage == CURDKV_KEY     ? k
                   : o->leverage == CURDKV_VALUE ? v
                   : o->leverage == CURDKV_MEAN  ? (k + v) / 2
                                                 : k * v;
        sum += (double)score[i];
    }
    for (int32_t i = 0; sum > 0 && i < n; i++) score[i] = (float)((double)score[i] / sum);
}

static int curdkv_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const struct curdkv_opts *o = ctx->opts;
    size_t n = (size_t)scores->n_tok, dim = (size_t)ctx->shape->head_dim;
    struct curdkv_room r = { 0 };
    scores->keep_tok = ctx->budget_tok - 1;
    scores->protect_first = o->n_sink;
    if (scores->n_tok <= scores->keep_tok) return KVL_OK;
    KVL_TRY(kvl_scratch_get(ctx, n * dim, &r.x));
    KVL_TRY(kvl_scratch_get(ctx, n * CURDKV_RANDOM, &r.y));
    KVL_TRY(kvl_scratch_get(ctx, n, &r.key));
    KVL_TRY(kvl_scratch_get(ctx, n, &r.value));
    if (o->projected) KVL_TRY(curdkv_project(ctx, layer, &r.g));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        KVL_TRY(kvl_read_key_span(ctx, layer, h, 0, scores->n_tok, false, r.x));
        KVL_TRY(curdkv_lane(ctx, &r, scores->n_tok, r.key));
        KVL_TRY(kvl_read_value_span(ctx, layer, h, 0, scores->n_tok, r.x));
        KVL_TRY(curdkv_lane(ctx, &r, scores->n_tok, r.value));
        curdkv_join(o, &r, scores->n_tok, scores->score + (size_t)h * n);
    }
    return KVL_OK;
}

static const struct kvl_policy curdkv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "curdkv",
    .title = "CurDKV",
    .paper = "Sengupta et al., 2025, arXiv 2509.15038",
    .help = "keeps the tokens whose keys and values are longest among their neighbours, evicts the "
            "rest once",
    .follows =
        "kvpress' CURPress: squared lengths of keys and of values as parts of their sum over 16 "
        "tokens, their product, the first four tokens kept. leverage takes one of them or their "
        "mean, local=0 the sum over all tokens, projected=true the randomised form.",
    .deviations =
        "A block whose keys or values are all zero counts 0, where kvpress divides by zero. The "
        "random projection is the same for every context.",
    .cost =
        "Once, when the context is complete, keys and values are read, d products for each of 2 n "
        "of them, a top-k of n per kv head. Nothing while decoding; no memory after that.",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .opts = curdkv_options,
    .opts_size = sizeof(struct curdkv_opts),
    .min_budget = curdkv_min_budget,
    .plan = kvl_plan_needs_budget,
    .score = curdkv_score,
};

KVL_POLICY_EXPORT(curdkv)
