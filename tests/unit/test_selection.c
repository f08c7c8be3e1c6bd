/* Selections that no shipped policy makes yet: segments, log-weights, sharing over layers and steps,
 * constant positions, observed weights.  Small policies of the test's own say what to read; the
 * results are compared with full attention or with each other. */
#include "conformance/rig.h"

enum { N_CTX = 200, N_STEPS = 5 };

/* ---- the test's policies: one select hook each ---------------------------------------------------- */

/* The first half of the positions in one segment, the second half in another. */
static int select_halves(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t pos[N_CTX + N_STEPS], n = step->pos + 1, half = n / 2;
    (void)q;
    for (int32_t i = 0; i < n; i++) pos[i] = i;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, pos, half));
    KVL_TRY(kvl_sel_segment(sel));
    return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, pos + half, n - half);
}

/* Every third position, with log-weights that are all the same: softmax cannot see them. */
static int select_third(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel, const float *weight)
{
    int32_t pos[N_CTX + N_STEPS], n = 0;
    (void)q;
    for (int32_t i = step->pos % 3; i <= step->pos; i += 3) pos[n++] = i;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_Q_HEAD, h, pos, n));
        if (weight) KVL_TRY(kvl_sel_log_weights(sel, KVL_SCOPE_Q_HEAD, h, weight, n));
    }
    return KVL_OK;
}

static int select_plain(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    return select_third(ctx, step, q, sel, NULL);
}

static int select_weighted(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    float weight[N_CTX + N_STEPS];
    for (int32_t i = 0; i < N_CTX + N_STEPS; i++) weight[i] = -0.75f;
    return select_third(ctx, step, q, sel, weight);
}

/* A weight of -100 is as good as leaving the token out. */
static int select_buried(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t pos[N_CTX + N_STEPS];
    float weight[N_CTX + N_STEPS];
    (void)q;
    for (int32_t i = 0; i <= step->pos; i++) {
        pos[i] = i;
        weight[i] = (step->pos - i) % 3 == 0 ? 0.0f : -100.0f;
    }
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_Q_HEAD, h, pos, step->pos + 1));
        KVL_TRY(kvl_sel_log_weights(sel, KVL_SCOPE_Q_HEAD, h, weight, step->pos + 1));
    }
    return KVL_OK;
}

/* The same page list for all layers and three steps, declared as shared. */
static int select_shared(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    const int32_t page[] = { 0, 3, 7 };
    (void)step;
    (void)q;
    KVL_TRY(kvl_sel_pages(sel, KVL_SCOPE_LAYER, 0, 16, page, 3));
    return kvl_sel_share(sel, ctx->shape->n_layers - 1, 3);
}

static int select_repeated(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    const int32_t page[] = { 0, 3, 7 };
    (void)ctx;
    (void)step;
    (void)q;
    return kvl_sel_pages(sel, KVL_SCOPE_LAYER, 0, 16, page, 3);
}

static int select_constant(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)ctx;
    (void)step;
    (void)q;
    return kvl_sel_positions(sel, KVL_POS_CONSTANT, 9);
}

static int plan_raw(struct kvl_plan *plan)
{
    plan->raw_keys = true;
    return KVL_OK;
}

/* Sums of what each query head was given: 1 for every head and step. */
struct observe_state {
    double worst;
    int64_t n_items, n_calls;
};

static int plan_state(struct kvl_plan *plan)
{
    plan->state_bytes = sizeof(struct observe_state);
    return KVL_OK;
}

static int observe_sums(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const float *const *probs, const int32_t *n, const float *lse)
{
    struct observe_state *st = ctx->state;
    (void)step;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        double sum = 0;
        for (int32_t i = 0; i < n[h]; i++) sum += (double)probs[h][i];
        st->worst = fmax(st->worst, fabs(sum - 1));
        st->n_items += n[h];
        if (!isfinite(lse[h])) return kvl_fail(ctx->err, KVL_EPOLICY, "lse %g", (double)lse[h]);
    }
    st->n_calls++;
    return KVL_OK;
}

static int report_sums(struct kvl_pctx *ctx, struct kvl_report *report)
{
    const struct observe_state *st = ctx->state;
    KVL_TRY(kvl_report_num(report, "worst", st->worst));
    KVL_TRY(kvl_report_num(report, "items", (double)st->n_items));
    return kvl_report_num(report, "calls", (double)st->n_calls);
}

RIG_POLICY(everything, .caps = KVL_CAP_BOUND);
RIG_POLICY(halves, .caps = KVL_CAP_SELECTS, .select = select_halves);
RIG_POLICY(plain, .caps = KVL_CAP_SELECTS, .select = select_plain);
RIG_POLICY(weighted, .caps = KVL_CAP_SELECTS, .select = select_weighted);
RIG_POLICY(buried, .caps = KVL_CAP_SELECTS, .select = select_buried);
RIG_POLICY(shared, .caps = KVL_CAP_SELECTS, .select = select_shared);
RIG_POLICY(repeated, .caps = KVL_CAP_SELECTS, .select = select_repeated);
RIG_POLICY(constant, .caps = KVL_CAP_SELECTS | KVL_CAP_REPOSITIONS, .plan = plan_raw,
           .select = select_constant);
RIG_POLICY(observing, .caps = KVL_CAP_SELECTS, .plan = plan_state, .select = select_plain,
           .observe = observe_sums, .report = report_sums);

/* ---- tests -------------------------------------------------------------------------------------------- */

static int32_t ids[N_CTX + N_STEPS];

static void open_rig(struct rig *r)
{
    rig_open(r, &(struct rig_desc){ .llama = { .n_layers = 3, .seed = 5 } });
    rig_tokens(ids, N_CTX + N_STEPS, 77);
}

static float *run_policy(struct rig *r, const struct kvl_policy *policy, enum kvl_exec exec)
{
    return rig_run(
        r, &(struct rig_run){
               .policy = policy, .id = ids, .n_ctx = N_CTX, .n_steps = N_STEPS, .exec = exec });
}

static void expect_near(struct rig *r, const struct kvl_policy *a, const struct kvl_policy *b,
                        double tolerance)
{
    float *la = run_policy(r, a, KVL_EXEC_REAL), *lb = run_policy(r, b, KVL_EXEC_REAL);
    rig_expect_near(r, la, lb, N_STEPS, tolerance, a->name);
    kvl_free(la);
    kvl_free(lb);
}

static double distance(struct rig *r, const struct kvl_policy *a, const struct kvl_policy *b)
{
    float *la = run_policy(r, a, KVL_EXEC_REAL), *lb = run_policy(r, b, KVL_EXEC_REAL);
    double d = rig_distance(r, la, lb, N_STEPS);
    kvl_free(la);
    kvl_free(lb);
    return d;
}

static void test_segments_merge_to_full(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r);
    expect_near(&r, &halves, &everything, 1e-4);
    rig_close(&r);
}

static void test_equal_log_weights_change_nothing(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r);
    expect_near(&r, &weighted, &plain, 1e-4);
    assert_true(distance(&r, &plain, &everything) > 1e-3); /* a third is not all */
    rig_close(&r);
}

static void test_buried_tokens_weigh_nothing(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r);
    expect_near(&r, &buried, &plain, 1e-4);
    rig_close(&r);
}

static void test_segments_and_lists_equal_their_mask(void **state)
{
    const struct kvl_policy *all[] = { &halves, &plain, &repeated, &constant };
    struct rig r;
    (void)state;
    open_rig(&r);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        float *real = run_policy(&r, all[i], KVL_EXEC_REAL);
        float *masked = run_policy(&r, all[i], KVL_EXEC_MASKED);
        rig_expect_near(&r, real, masked, N_STEPS, 1e-4, all[i]->name);
        kvl_free(real);
        kvl_free(masked);
    }
    rig_close(&r);
}

/* At one constant distance a permutation of positions cannot matter, and RoPE does nothing but turn
 * the query: the result differs from attention at the original positions. */
static void test_constant_positions_differ_from_original(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r);
    assert_true(distance(&r, &constant, &everything) > 1e-3);
    rig_close(&r);
}

static void test_shared_selection_is_asked_once(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r);
    expect_near(&r, &shared, &repeated, 0.0);
    struct rig_run run = { .policy = &shared, .id = ids, .n_ctx = N_CTX, .n_steps = N_STEPS };
    struct rig_session rs = rig_start(&r, &run);
    float *logits = rig_logits(&r, N_STEPS);
    rig_decode(&r, &rs, ids + N_CTX, 2, logits);
    assert_int_equal(kvl_session_counters(rs.s)->n_select, 1);
    /* A fork inherits what is shared; the third step is its last. */
    struct rig_session child = rig_fork(&r, &rs);
    rig_decode(&r, &child, ids + N_CTX + 2, 1, logits);
    assert_int_equal(kvl_session_counters(child.s)->n_select, 1);
    rig_decode(&r, &child, ids + N_CTX + 3, 1, logits);
    assert_int_equal(kvl_session_counters(child.s)->n_select, 2);
    rig_end(&child);
    rig_end(&rs);
    kvl_free(logits);
    rig_close(&r);
}

/* The latest positions of every token, shared by all layers and two steps: a token must not see what
 * a later one of its block shares. */
static int select_latest(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t pos[24];
    (void)q;
    for (int32_t i = 0; i < 24; i++) pos[i] = step->pos - 23 + i;
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, pos, 24));
    return kvl_sel_share(sel, ctx->shape->n_layers - 1, 2);
}

RIG_POLICY(latest, .caps = KVL_CAP_SELECTS, .select = select_latest);

/* Logits after `n` tokens under `latest`, run in blocks of `block`. */
static void latest_run(struct rig *r, int32_t block, float *logits, int64_t *attended)
{
    enum { N_BLOCK = 12 };
    struct rig_run run = { .policy = &latest, .id = ids, .n_ctx = N_CTX - N_BLOCK, .n_steps = 0 };
    struct rig_session rs = rig_start(r, &run);
    for (int32_t at = 0; at < N_BLOCK; at += block)
        RIG_OK(&r->err, kvl_session_extend(rs.s, ids + N_CTX - N_BLOCK + at, block, &r->err));
    *attended = kvl_session_counters(rs.s)->attended_tok;
    rig_decode(r, &rs, ids + N_CTX, 1, logits);
    rig_end(&rs);
}

static void test_sharing_in_a_block_is_causal(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r);
    float *one = rig_logits(&r, 1), *all = rig_logits(&r, 1);
    int64_t attended_one, attended_all;
    latest_run(&r, 1, one, &attended_one);
    latest_run(&r, 12, all, &attended_all);
    assert_int_equal(attended_one, attended_all);
    rig_expect_same(&r, one, all, 1, "blocks of 1 and 12");
    latest_run(&r, 4, all, &attended_all);
    rig_expect_same(&r, one, all, 1, "blocks of 1 and 4");
    kvl_free(one);
    kvl_free(all);
    rig_close(&r);
}

static void collect(void *user, const char *name, double value)
{
    double *out = user;
    out[name[0] == 'w' ? 0 : (name[0] == 'i' ? 1 : 2)] = value;
}

static void observed_weights(enum kvl_exec exec)
{
    struct rig r;
    double got[3] = { -1, -1, -1 };
    open_rig(&r);
    struct rig_run run = {
        .policy = &observing, .id = ids, .n_ctx = N_CTX, .n_steps = N_STEPS, .exec = exec
    };
    struct rig_session rs = rig_start(&r, &run);
    float *logits = rig_logits(&r, N_STEPS);
    rig_decode(&r, &rs, ids + N_CTX, N_STEPS, logits);
    RIG_OK(&r.err, kvl_session_report(rs.s, &(struct kvl_report_to){ .user = got, .num = collect },
                                      &r.err));
    const struct kvl_shape *sh = rig_shape(&r);
    double items = 0;
    for (int32_t i = 0; i < N_STEPS; i++) items += (N_CTX + i) / 3 + 1;
    assert_true(got[0] < 1e-5);
    assert_true(got[1] == items * sh->n_heads * sh->n_layers);
    assert_true(got[2] == N_STEPS * sh->n_layers);
    rig_end(&rs);
    kvl_free(logits);
    rig_close(&r);
}

static void test_observed_weights_sum_to_one(void **state)
{
    (void)state;
    observed_weights(KVL_EXEC_REAL);
    observed_weights(KVL_EXEC_MASKED);
}

/* What is read is counted by the engine: per query head lists are read once each, the lane counts
 * their union. */
static void test_counts_follow_the_lists(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r);
    struct rig_run run = { .policy = &plain, .id = ids, .n_ctx = N_CTX, .n_steps = N_STEPS };
    struct rig_session rs = rig_start(&r, &run);
    float *logits = rig_logits(&r, N_STEPS);
    rig_decode(&r, &rs, ids + N_CTX, 1, logits);
    const struct kvl_shape *sh = rig_shape(&r);
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    int64_t list = N_CTX / 3 + 1, lanes = (int64_t)sh->n_layers * sh->n_kv_heads;
    assert_int_equal(c->attended_lanes, lanes);
    assert_int_equal(c->attended_tok, lanes * list);
    assert_int_equal(c->kv_read_bytes,
                     (int64_t)sh->n_layers * sh->n_heads * list * 2 * sh->head_dim * 4);
    assert_int_equal(c->dense_lanes, 0);
    rig_end(&rs);
    kvl_free(logits);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segments_merge_to_full),
        cmocka_unit_test(test_equal_log_weights_change_nothing),
        cmocka_unit_test(test_buried_tokens_weigh_nothing),
        cmocka_unit_test(test_segments_and_lists_equal_their_mask),
        cmocka_unit_test(test_constant_positions_differ_from_original),
        cmocka_unit_test(test_shared_selection_is_asked_once),
        cmocka_unit_test(test_sharing_in_a_block_is_causal),
        cmocka_unit_test(test_observed_weights_sum_to_one),
        cmocka_unit_test(test_counts_follow_the_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
