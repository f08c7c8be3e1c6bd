/* given.h - an inner policy whose scores a test writes down: golden numbers go through the whole way of
 * a wrapper, from its spec to what lanes keep. */
#ifndef KVL_TESTS_GIVEN_H
#define KVL_TESTS_GIVEN_H

#include "conformance/rig.h"

enum { GIVEN_HEADS = 8, GIVEN_TOK = 512 };

static struct {
    float score[GIVEN_HEADS][GIVEN_TOK]; /* of every layer */
    int32_t first, last;                 /* protected */
    int32_t n_summed;
    int32_t own; /* 0, or the lane, from 1 on, that has a budget of its own */
} given;

/* Budget B: B - 1 tokens of the context. */
static int given_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    (void)layer;
    scores->keep_tok = ctx->budget_tok - 1;
    scores->protect_first = given.first;
    scores->protect_last = given.last;
    scores->n_summed = given.n_summed;
    if (given.own > 0) scores->keep_lane[given.own - 1] = 0;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        for (int32_t i = 0; i < scores->n_tok; i++)
            scores->score[h * scores->n_tok + i] = given.score[h][i];
    return KVL_OK;
}

static const struct kvl_policy given_policy = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "given",
    .title = "Given",
    .paper = "none",
    .help = "scores that a test wrote down",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .score = given_score,
};

/* The positions that lane (layer, kv_head) keeps under outer(given). */
struct given_run {
    const struct kvl_policy *outer;
    const char *options;
    int32_t budget, n_ctx;
};

static inline struct rig_session given_start(struct rig *r, const struct given_run *g,
                                             const struct kvl_policy **composed)
{
    static int32_t id[GIVEN_TOK];
    RIG_OK(&r->err, kvl_policy_compose(g->outer, &given_policy, composed, &r->err));
    rig_tokens(id, g->n_ctx, 5);
    struct rig_run run = {
        .policy = *composed, .options = g->options, .budget = g->budget, .id = id, .n_ctx = g->n_ctx
    };
    return rig_start(r, &run);
}

/* An inner policy that gives one lane a budget of its own is refused, whichever lane it is. */
static inline void given_refuses(const struct kvl_policy *outer)
{
    enum { N_CTX = 40, HEADS = 4 };
    struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = HEADS, .seed = 4 } };
    const struct kvl_policy *composed;
    int32_t id[N_CTX];
    struct rig r;
    rig_open(&r, &desc);
    rig_tokens(id, N_CTX, 5);
    RIG_OK(&r.err, kvl_policy_compose(outer, &given_policy, &composed, &r.err));
    for (int32_t own = 1; own <= HEADS; own++) {
        struct rig_session rs = { 0 };
        struct kvl_err err = { 0 };
        memset(&given, 0, sizeof given);
        given.own = own;
        RIG_OK(&r.err,
               kvl_planned_create(composed, rig_shape(&r), "", 20, N_CTX, &rs.planned, &r.err));
        RIG_OK(&r.err, kvl_session_create(r.engine, &rs.s, &r.err));
        RIG_OK(&r.err, kvl_session_prefill(rs.s, id, N_CTX, NULL, true, &r.err));
        assert_int_equal(kvl_session_attach(rs.s, rs.planned, 1, KVL_EXEC_REAL, &err), KVL_EINVAL);
        assert_non_null(strstr(err.msg, "budgets of its own"));
        rig_end(&rs);
    }
    memset(&given, 0, sizeof given);
    kvl_policy_decompose(composed);
    rig_close(&r);
}

#endif
