/* peek.h - a policy that keeps everything and writes down what observers say of a context: each query of the window and
 * its weights, and how far values reach behind the output projection.  Tests work out from them what methods keep.
 */
#ifndef KVL_TESTS_PEEK_H
#define KVL_TESTS_PEEK_H

#include "golden/one_shot.h"

enum { PEEK_LAYERS = 2, PEEK_WINDOW = 40, PEEK_HEADS = 4, PEEK_TOK = 128, PEEK_DIM = 16 };

static struct {
    float probs[PEEK_LAYERS][PEEK_WINDOW][PEEK_HEADS * PEEK_TOK]; /* by distance from the newest */
    float q[PEEK_LAYERS][PEEK_WINDOW][PEEK_HEADS * PEEK_DIM];
    float norm[PEEK_LAYERS][PEEK_HEADS][PEEK_TOK]; /* |W_o v|_1, of query heads */
} peek;

static int peek_plan(struct kvl_plan *plan)
{
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, PEEK_WINDOW);
}

static int peek_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    int32_t n = scores->n_tok, group = ctx->shape->group;
    float *v, *norm;
    scores->keep_tok = n;
    assert_true(n <= PEEK_TOK && ctx->shape->n_heads <= PEEK_HEADS && layer < PEEK_LAYERS);
    for (int32_t back = 0; back < PEEK_WINDOW; back++) {
        KVL_TRY(kvl_obs_window_probs(ctx, layer, back, peek.probs[layer][back], n));
        KVL_TRY(kvl_obs_window_query(ctx, layer, back, peek.q[layer][back]));
    }
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * (size_t)ctx->shape->head_dim, &v));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * (size_t)group, &norm));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        KVL_TRY(kvl_read_value_span(ctx, layer, h, 0, n, v));
        KVL_TRY(kvl_output_norms(ctx, layer, h, v, n, 1, norm));
        for (int32_t g = 0; g < group; g++)
            memcpy(peek.norm[layer][h * group + g], norm + g * n, (size_t)n * sizeof *norm);
    }
    return KVL_OK;
}

static const struct kvl_policy peek_policy = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "peek",
    .title = "Peek",
    .paper = "none",
    .help = "writes down what observers say",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .plan = peek_plan,
    .score = peek_score,
};

static inline void peek_run(struct shot *t)
{
    struct rig_session rs = shot_policy(t, &peek_policy, "", 0);
    rig_end(&rs);
}

static inline double peek_norm(int32_t layer, int32_t kv_head, int32_t group, int32_t i)
{
    double sum = 0;
    for (int32_t g = 0; g < group; g++) sum += (double)peek.norm[layer][kv_head * group + g][i];
    return sum / group;
}

#endif
