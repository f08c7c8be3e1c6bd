/* record.h - a policy that changes nothing and writes down what policies are given: the queries of a
 * step and the window mass.  With them and the stored keys a test works out on its own what a method
 * must decide.  The first layers, up to the first that selects, see the same in every run.
 */
#ifndef KVL_TESTS_RECORD_H
#define KVL_TESTS_RECORD_H

#include "conformance/rig.h"

enum { RECORD_LAYERS = 8, RECORD_STEPS = 64, RECORD_QUERY = 256, RECORD_MASS = 8192 };

static struct {
    float q[RECORD_STEPS][RECORD_LAYERS][RECORD_QUERY];
    float mass[RECORD_LAYERS][RECORD_MASS]; /* [n_heads][n_tok] */
    int32_t window;                         /* of the mass; 0 = not asked for */
} record;

static int record_plan(struct kvl_plan *plan)
{
    if (record.window == 0) return KVL_OK;
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, record.window);
}

static int record_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    const float *mass;
    int32_t n_tok;
    scores->keep_tok = scores->n_tok;
    if (record.window == 0) return KVL_OK;
    KVL_TRY(kvl_obs_window_mass(ctx, layer, record.window, &mass, &n_tok));
    size_t n = (size_t)ctx->shape->n_heads * (size_t)n_tok;
    assert_true(n <= RECORD_MASS);
    memcpy(record.mass[layer], mass, n * sizeof *mass);
    return KVL_OK;
}

static int record_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    size_t n = (size_t)ctx->shape->n_heads * (size_t)ctx->shape->head_dim;
    (void)sel;
    assert_true(n <= RECORD_QUERY && step->index < RECORD_STEPS);
    memcpy(record.q[step->index][step->layer], q->q, n * sizeof *q->q);
    return KVL_OK;
}

static const struct kvl_policy record_policy = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "record",
    .title = "Recorder",
    .paper = "none",
    .help = "writes down what it is given",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_EVICTS,
    .plan = record_plan,
    .score = record_score,
    .select = record_select,
};

/* Fills the record from a dense run of these tokens. */
static inline void record_run(struct rig *r, const int32_t *id, int32_t n_ctx, int32_t n_steps,
                              int32_t window)
{
    record.window = window;
    struct rig_run run = { .policy = &record_policy, .id = id, .n_ctx = n_ctx, .n_steps = n_steps };
    kvl_free(rig_run(r, &run));
}

/* Keys after RoPE of positions 0 .. n - 1 of a lane from which nothing was evicted. */
static inline void record_keys(struct rig *r, const struct rig_session *rs, int32_t layer,
                               int32_t kv_head, int32_t n, float *k)
{
    RIG_OK(&r->err,
           kvl_seq_read(kvl_session_seq(rs->s), layer, kv_head, KVL_PART_K, 0, n, k, &r->err));
}

/* Softmax weights of one query over n keys, in double. */
static inline void record_weights(const float *q, const float *k, int32_t n, int32_t head_dim,
                                  double *weight)
{
    double top = -HUGE_VAL, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        weight[i] = 0;
        for (int32_t c = 0; c < head_dim; c++)
            weight[i] += (double)q[c] * (double)k[(size_t)i * (size_t)head_dim + (size_t)c];
        weight[i] /= sqrt((double)head_dim);
        top = fmax(top, weight[i]);
    }
    for (int32_t i = 0; i < n; i++) sum += weight[i] = exp(weight[i] - top);
    for (int32_t i = 0; i < n; i++) weight[i] /= sum;
}

/* Marks the k best of n; ties to the lower index. */
static inline void record_top(const double *x, int32_t n, int32_t k, uint8_t *mark)
{
    for (int32_t i = 0; i < n; i++) mark[i] = 0;
    for (int32_t j = 0; j < k; j++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++)
            if (!mark[i] && (best < 0 || x[i] > x[best])) best = i;
        mark[best] = 1;
    }
}

#endif
