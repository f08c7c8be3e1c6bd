/* entropychunkkv - chunks as in ChunkKV, but good chunks whose score lies on a few tokens keep those alone.
 *
 * NVIDIA: kvpress, EntropyGatedChunkKVPress, 2026, on Liu et al.: ChunkKV (arXiv 2502.00299).  Per layer:
 *   1. the inner policy's scores, summed over the heads; their mean and their entropy in every chunk, divided by the
 *      logarithm of its length
 *   2. from the best chunk on, while the budget lasts: a chunk whose mean is not below the median and whose entropy is
 *      below the median keeps its `few` best tokens, any other all of them, the last one as many as there is room for
 *   3. what is left goes to the best of all tokens that are not kept
 * The same tokens for all heads.  What the inner policy protects scores one above the best, as
 * kvpress' means over queries do (parts/protected.h), and goes with its chunk.
 * Budget B: B - 1 tokens of the context and the current one; tokens that come later stay.
 */
#include "kvl/policy.h"
#include "parts/protected.h"
#include "parts/ranked.h"

#include <math.h>
#include <string.h>

#define ENTROPY_EPSILON 1e-8f

struct entropychunkkv_opts {
    int32_t chunk, few;
};

static const struct kvl_opt entropychunkkv_options[] = {
    KVL_ROW_INT(entropychunkkv_opts, chunk, "10", 2, 4096, "tokens of a chunk (kvpress: 10)"),
    KVL_ROW_INT(entropychunkkv_opts, few, "4", 1, 4095,
                "tokens that a good chunk of low entropy keeps (kvpress: 4)"),
    { 0 },
};

static int entropychunkkv_plan(struct kvl_plan *plan)
{
    const struct entropychunkkv_opts *o = plan->opts;
    if (o->few < o->chunk) return KVL_OK;
    return kvl_fail(plan->err, KVL_EINVAL, "few=%d of chunk=%d; give less", o->few, o->chunk);
}

/* Scores summed over the heads, protected tokens above the best of any head, in every head. */
static void entropychunkkv_sum(int32_t n_heads, const struct kvl_scores *scores, float *sum)
{
    int32_t n = scores->n_tok, first = scores->protect_first, last = n - scores->protect_last;
    float above = kvl_protected_score(n_heads, scores);
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int32_t h = 0; h < n_heads; h++)
        for (int32_t i = 0; i < n; i++)
            sum[i] += i < first || i >= last ? above : scores->score[h * n + i];
}

/* Of one chunk, step 1: entropy of its scores as parts of their sum, from 0 to 1; lifted where one is negative. */
static float entropychunkkv_entropy(const float *s, int32_t n)
{
    float low = 0, sum = 0, h = 0;
    if (n == 1) return 0;
    for (int32_t i = 0; i < n; i++) low = fminf(low, s[i]);
    for (int32_t i = 0; i < n; i++) sum += s[i] - low;
    for (int32_t i = 0; i < n; i++) {
        float p = (s[i] - low) / (sum + ENTROPY_EPSILON);
        h -= p * logf(p + ENTROPY_EPSILON);
    }
    return fminf(1, fmaxf(0, h / logf((float)n)));
}

/* The lower one of the two in the middle, as torch.median(). */
static int entropychunkkv_median(const struct kvl_pctx *ctx, const float *x, int32_t n, float *out)
{
    int32_t *order;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &order));
    KVL_TRY(kvl_topk_ranked(ctx, x, 1, n, n, order));
    *out = x[order[n / 2]];
    return KVL_OK;
}

struct entropychunkkv_room {
    float *sum, *mean, *entropy, *rest;
    int32_t *order, *best;
    uint8_t *keep;
    int32_t n, n_chunks;
};

static int entropychunkkv_room(const struct kvl_pctx *ctx, int32_t n, struct entropychunkkv_room *r)
{
    const struct entropychunkkv_opts *o = ctx->opts;
    r->n = n;
    r->n_chunks = (n + o->chunk - 1) / o->chunk;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &r->sum));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &r->rest));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &r->mean));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &r->entropy));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &r->order));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &r->best));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &r->keep));
    memset(r->keep, 0, (size_t)n);
    return KVL_OK;
}

static void entropychunkkv_judge(const struct entropychunkkv_opts *o, struct entropychunkkv_room *r)
{
    for (int32_t c = 0; c < r->n_chunks; c++) {
        int32_t at = c * o->chunk, len = KVL_MIN(o->chunk, r->n - at);
        float sum = 0;
        for (int32_t i = 0; i < len; i++) sum += r->sum[at + i];
        r->mean[c] = sum / (float)len;
        r->entropy[c] = entropychunkkv_entropy(r->sum + at, len);
    }
}

/* EntropyGatedChunkKVPress.compress(), step 2; *room is what is left. */
static int entropychunkkv_chunks(const struct kvl_pctx *ctx, struct entropychunkkv_room *r,
                                 int32_t *room)
{
    const struct entropychunkkv_opts *o = ctx->opts;
    float middle, entropy;
    KVL_TRY(entropychunkkv_median(ctx, r->mean, r->n_chunks, &middle));
    KVL_TRY(entropychunkkv_median(ctx, r->entropy, r->n_chunks, &entropy));
    KVL_TRY(kvl_topk_ranked(ctx, r->mean, 1, r->n_chunks, r->n_chunks, r->order));
    for (int32_t c = 0; c<r->n_chunks && * room> 0; c++) {
        int32_t at = r->order[c] * o->chunk, len = KVL_MIN(o->chunk, r->n - at);
        int32_t k = KVL_MIN(len, *room);
        bool few = r->mean[r->order[c]] >= middle && r->entropy[r->order[c]] < entropy;
        if (few) k = KVL_MIN(k, o->few);
        KVL_TRY(kvl_topk(ctx, r->sum + at, 1, len, k, r->best));
        for (int32_t i = 0; i < k; i++) r->keep[at + r->best[i]] = 1;
        *room -= k;
    }
    return KVL_OK;
}

/* Step 3. */
static int entropychunkkv_rest(const struct kvl_pctx *ctx, struct entropychunkkv_room *r,
                               int32_t room)
{
    for (int32_t i = 0; i < r->n; i++) r->rest[i] = r->keep[i] ? -INFINITY : r->sum[i];
    if (room <= 0) return KVL_OK;
    KVL_TRY(kvl_topk(ctx, r->rest, 1, r->n, room, r->best));
    for (int32_t i = 0; i < room; i++) r->keep[r->best[i]] = 1;
    return KVL_OK;
}

static int entropychunkkv_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    struct entropychunkkv_room r;
    int32_t n = scores->n_tok, n_heads = ctx->shape->n_kv_heads;
    bool evicts;
    KVL_TRY(kvl_inner_even_score(ctx, layer, scores, &evicts));
    if (!evicts) return KVL_OK;
    int32_t room = scores->keep_tok;
    KVL_TRY(entropychunkkv_room(ctx, n, &r));
    entropychunkkv_sum(n_heads, scores, r.sum);
    entropychunkkv_judge(ctx->opts, &r);
    KVL_TRY(entropychunkkv_chunks(ctx, &r, &room));
    KVL_TRY(entropychunkkv_rest(ctx, &r, room));
    scores->protect_first = scores->protect_last = 0;
    for (int32_t h = 0; h < n_heads; h++)
        for (int32_t i = 0; i < n; i++) scores->score[h * n + i] = r.keep[i];
    return KVL_OK;
}

static const struct kvl_policy entropychunkkv = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "entropychunkkv",
    .title = "Entropy-gated ChunkKV",
    .paper = "NVIDIA, kvpress, EntropyGatedChunkKVPress, 2026",
    .help = "keeps chunks, and of good chunks whose score lies on a few tokens these alone",
    .follows =
        "kvpress' EntropyGatedChunkKVPress: chunks of 10, 4 tokens of a good chunk of low entropy, "
        "medians as the lower of the two in the middle, the rest of the budget to the best single "
        "tokens. Any policy that scores tokens once may be wrapped.",
    .deviations = "None but 32-bit floats.",
    .cost = "Once that of the inner policy, a pass over the K n scores of a layer with a logarithm "
            "each, and a sort of n / chunk. Nothing while decoding; no memory after that.",
    .inner = "snapkv",
    .version = 2,
    .caps = KVL_CAP_EVICTS,
    .opts = entropychunkkv_options,
    .opts_size = sizeof(struct entropychunkkv_opts),
    .plan = entropychunkkv_plan,
    .score = entropychunkkv_score,
};

KVL_POLICY_EXPORT(entropychunkkv)
