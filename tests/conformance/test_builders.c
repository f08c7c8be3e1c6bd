/* What the interface offers beyond what today's methods use: segments, log-weights, sharing, other
 * positions, probabilities, state.  Small well-behaved policies say the same thing in two ways, or
 * check what they are given; the engine must agree with itself and with its mask oracle. */
#include "conformance/rig.h"

enum { N_CTX = 90, N_STEPS = 4, N_TOK = N_CTX + N_STEPS + 2 };

typedef int (*select_function)(struct kvl_pctx *ctx, const struct kvl_step *step,
                               const struct kvl_query *q, struct kvl_sel *sel);

/* Counts of the running policy; tests only, a real policy keeps nothing in globals. */
static struct {
    int select, observe, open;
    double worst; /* largest error that a hook saw */
} seen;

static const struct kvl_policy base = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "builder",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
    .caps = KVL_CAP_SELECTS,
};

static struct rig rig;
static int32_t id[N_TOK];

static float *run_policy(const struct kvl_policy *policy, enum kvl_exec exec)
{
    struct rig_run run = {
        .policy = policy, .id = id, .n_ctx = N_CTX, .n_steps = N_STEPS, .exec = exec, .budget = 64
    };
    return rig_run(&rig, &run);
}

static struct kvl_policy selecting(select_function select)
{
    struct kvl_policy p = base;
    p.select = select;
    return p;
}

static void expect_alike(select_function a, select_function b, const char *what)
{
    struct kvl_policy pa = selecting(a), pb = selecting(b);
    float *la = run_policy(&pa, KVL_EXEC_REAL), *lb = run_policy(&pb, KVL_EXEC_REAL);
    rig_expect_near(&rig, la, lb, N_STEPS, 1e-4, what);
    kvl_free(la);
    kvl_free(lb);
}

static void expect_masked(const struct kvl_policy *p, const char *what)
{
    float *real = run_policy(p, KVL_EXEC_REAL), *masked = run_policy(p, KVL_EXEC_MASKED);
    rig_expect_near(&rig, real, masked, N_STEPS, 1e-4, what);
    kvl_free(real);
    kvl_free(masked);
}

/* ---- the same tokens, said in several ways ----------------------------------------------------- */

/* Positions 8 .. 23 and 40 .. 47. */
static int32_t chosen(int32_t *pos)
{
    int32_t n = 0;
    for (int32_t i = 8; i < 24; i++) pos[n++] = i;
    for (int32_t i = 40; i < 48; i++) pos[n++] = i;
    return n;
}

static int as_tokens(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                     struct kvl_sel *sel)
{
    int32_t pos[64], n = chosen(pos);
    (void)ctx;
    (void)step;
    (void)q;
    seen.select++;
    return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, pos, n);
}

static int as_tokens_with_current(struct kvl_pctx *ctx, const struct kvl_step *step,
                                  const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t pos[64], n = chosen(pos);
    (void)ctx;
    (void)q;
    pos[n++] = step->pos;
    return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, pos, n);
}

static int as_pages(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                    struct kvl_sel *sel)
{
    (void)step;
    (void)q;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(kvl_sel_pages(sel, KVL_SCOPE_KV_HEAD, h, 8, (int32_t[]){ 1, 2, 5 }, 3));
    return KVL_OK;
}

static int as_ranges(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                     struct kvl_sel *sel)
{
    (void)q;
    (void)step;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_KV_HEAD, h, 2, 2));
        KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_KV_HEAD, h, 8, 19));
        KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_KV_HEAD, h, 19, 24));
        KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_KV_HEAD, h, 40, 48));
    }
    return KVL_OK;
}

static int as_ranges_with_current(struct kvl_pctx *ctx, const struct kvl_step *step,
                                  const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)ctx;
    (void)q;
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, 8, 24));
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, 40, 48));
    return kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, step->pos, step->pos + 1);
}

/* Ranges before, behind and over positions, in any order; for all lists at once. */
static int as_a_mixture(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t some[] = { 12, 18, 19, 41, 45 };
    (void)q;
    (void)step;
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_KV_HEAD, KVL_ALL_LISTS, 42, 48));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, some, 5));
        KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_KV_HEAD, h, 40, 41));
        KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_KV_HEAD, h, 8, 16));
        KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_KV_HEAD, h, 14, 24));
    }
    return KVL_OK;
}

/* Scores choose the middle; the beginning and the end are named beside them. */
static int as_top_and_ranges(struct kvl_pctx *ctx, const struct kvl_step *step,
                             const struct kvl_query *q, struct kvl_sel *sel)
{
    float score[N_TOK] = { 0 };
    int32_t n_pages = step->pos / 8 + 1;
    (void)ctx;
    (void)q;
    score[2] = score[5] = 1;
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, 8, 20));
    KVL_TRY(kvl_sel_top_pages(sel, KVL_SCOPE_LAYER, score, n_pages, 2, 8, false));
    return kvl_sel_recent(sel, KVL_SCOPE_LAYER, KVL_ALL_LISTS, 1);
}

/* A range, then pages, and nothing behind them. */
static int as_range_and_pages(struct kvl_pctx *ctx, const struct kvl_step *step,
                              const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)ctx;
    (void)step;
    (void)q;
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, 8, 24));
    return kvl_sel_pages(sel, KVL_SCOPE_LAYER, 0, 4, (int32_t[]){ 3, 10, 11 }, 3);
}

static int first_and_recent(struct kvl_pctx *ctx, const struct kvl_step *step,
                            const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)ctx;
    (void)step;
    (void)q;
    KVL_TRY(kvl_sel_recent(sel, KVL_SCOPE_LAYER, 0, 9));
    return kvl_sel_first(sel, KVL_SCOPE_LAYER, 0, 4);
}

static int first_and_recent_by_hand(struct kvl_pctx *ctx, const struct kvl_step *step,
                                    const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t pos[13], n = 0;
    (void)ctx;
    (void)q;
    for (int32_t i = 0; i < 4; i++) pos[n++] = i;
    for (int32_t i = step->pos - 8; i <= step->pos; i++) pos[n++] = i;
    return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, pos, n);
}

/* More than there are: everything. */
static int more_than_there_are(struct kvl_pctx *ctx, const struct kvl_step *step,
                               const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)ctx;
    (void)q;
    KVL_TRY(kvl_sel_first(sel, KVL_SCOPE_LAYER, 0, step->pos + 7));
    return kvl_sel_recent(sel, KVL_SCOPE_LAYER, 0, step->pos + 9);
}

static int nothing_named(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)ctx;
    (void)step;
    (void)q;
    (void)sel;
    return KVL_OK;
}

static int per_query_head(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t pos[64], n = chosen(pos);
    (void)step;
    (void)q;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++)
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_Q_HEAD, h, pos, n));
    return KVL_OK;
}

static int in_segments(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    int32_t pos[64], n = chosen(pos);
    (void)step;
    (void)q;
    KVL_TRY(kvl_sel_pages(sel, KVL_SCOPE_LAYER, 0, 8, (int32_t[]){ 5 }, 1));
    KVL_TRY(kvl_sel_segment(sel));
    for (int32_t h = 0; h < ctx->shape->n_heads; h++)
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_Q_HEAD, h, pos, 9));
    KVL_TRY(kvl_sel_segment(sel));
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, NULL, 0)); /* an empty one counts nothing */
    KVL_TRY(kvl_sel_segment(sel));
    return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, pos + 9, n - 9 - 8);
}

static int by_scores(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                     struct kvl_sel *sel)
{
    int32_t pos[64], n = chosen(pos);
    float score[N_TOK] = { 0 };
    (void)ctx;
    (void)q;
    for (int32_t i = 0; i < n; i++) score[pos[i]] = 1.0f + (float)i;
    return kvl_sel_top_tokens(sel, KVL_SCOPE_LAYER, score, step->pos, n);
}

static int no_weight(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                     struct kvl_sel *sel)
{
    static const float zero[64] = { 0 };
    int32_t pos[64], n = chosen(pos);
    KVL_TRY(as_tokens(ctx, step, q, sel));
    return kvl_sel_log_weights(sel, KVL_SCOPE_LAYER, 0, zero, n);
}

static void test_one_choice_in_many_words(void **state)
{
    (void)state;
    expect_alike(as_tokens, as_tokens_with_current, "the current token named");
    expect_alike(as_tokens, as_pages, "pages");
    expect_alike(as_tokens, as_ranges, "ranges");
    expect_alike(as_tokens, as_ranges_with_current, "ranges and the current token");
    expect_alike(as_tokens, as_a_mixture, "positions and ranges");
    expect_alike(as_tokens, as_range_and_pages, "a range and pages");
    expect_alike(as_tokens, as_top_and_ranges, "top scores and ranges");
    expect_alike(first_and_recent_by_hand, first_and_recent, "first and recent");
    expect_alike(nothing_named, more_than_there_are, "more than there are");
    expect_alike(as_tokens, per_query_head, "lists per query head");
    expect_alike(as_tokens, in_segments, "segments");
    expect_alike(as_tokens, by_scores, "top scores");
    expect_alike(as_tokens, no_weight, "log-weights of zero");
}

static void test_builders_under_the_mask(void **state)
{
    static const select_function all[] = { as_tokens,    as_pages,          as_ranges,
                                           as_a_mixture, as_top_and_ranges, per_query_head,
                                           in_segments,  by_scores,         first_and_recent };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct kvl_policy p = selecting(all[i]);
        char what[32];
        snprintf(what, sizeof what, "builder %zu", i);
        expect_masked(&p, what);
    }
}

/* Ranges over holes: what is live of them. */
static int evict_some(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    (void)ctx;
    KVL_TRY(kvl_keep_range(keep, -1, 0, 12));
    return kvl_keep_range(keep, -1, 17, step->pos + step->n_tok);
}

static int tokens_of_holes(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t pos[64], n = chosen(pos), m = 0;
    (void)ctx;
    (void)step;
    (void)q;
    for (int32_t i = 0; i < n; i++)
        if (pos[i] < 12 || pos[i] >= 17) pos[m++] = pos[i];
    return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, pos, m);
}

static void test_ranges_over_holes(void **state)
{
    struct kvl_policy a = selecting(tokens_of_holes), b = selecting(as_ranges);
    (void)state;
    a.caps |= KVL_CAP_EVICTS;
    b.caps |= KVL_CAP_EVICTS;
    a.evict = b.evict = evict_some;
    float *la = run_policy(&a, KVL_EXEC_REAL), *lb = run_policy(&b, KVL_EXEC_REAL);
    rig_expect_same(&rig, la, lb, N_STEPS, "ranges over holes");
    kvl_free(la);
    kvl_free(lb);
    expect_masked(&b, "ranges over holes");
}

/* A weight of -80 hides a token: as if it had not been listed. */
static int hidden_by_weight(struct kvl_pctx *ctx, const struct kvl_step *step,
                            const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t pos[64], n = chosen(pos);
    float weight[64] = { 0 };
    for (int32_t i = n - 5; i < n; i++) weight[i] = -80.0f;
    KVL_TRY(as_tokens(ctx, step, q, sel));
    return kvl_sel_log_weights(sel, KVL_SCOPE_LAYER, 0, weight, n);
}

static int hidden_by_absence(struct kvl_pctx *ctx, const struct kvl_step *step,
                             const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t pos[64], n = chosen(pos);
    (void)ctx;
    (void)step;
    (void)q;
    return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, pos, n - 5);
}

static void test_log_weights_count(void **state)
{
    (void)state;
    expect_alike(hidden_by_weight, hidden_by_absence, "hidden tokens");
}

/* ---- positions ------------------------------------------------------------------------------------- */

static int raw_plan(struct kvl_plan *plan)
{
    plan->raw_keys = true;
    return KVL_OK;
}

static int in_cache_some(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    KVL_TRY(as_tokens(ctx, step, q, sel));
    return kvl_sel_positions(sel, KVL_POS_IN_CACHE, 0);
}

static int constant_some(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    KVL_TRY(as_tokens(ctx, step, q, sel));
    return kvl_sel_positions(sel, KVL_POS_CONSTANT, 12);
}

static int grouped_some(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    KVL_TRY(as_tokens(ctx, step, q, sel));
    KVL_TRY(kvl_sel_positions(sel, KVL_POS_GROUPED, 3));
    return kvl_sel_query_position(sel, step->pos / 3 + 4);
}

static int grouped_all(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    (void)ctx;
    (void)q;
    KVL_TRY(kvl_sel_positions(sel, KVL_POS_GROUPED, 3));
    return kvl_sel_query_position(sel, step->pos / 3 + 4);
}

static void test_positions_under_the_mask(void **state)
{
    struct kvl_policy p = selecting(in_cache_some);
    (void)state;
    p.plan = raw_plan;
    p.caps |= KVL_CAP_REPOSITIONS;
    expect_masked(&p, "positions in the cache");
    p.select = constant_some;
    expect_masked(&p, "constant distance");
    p.select = grouped_some;
    expect_masked(&p, "grouped positions");
    p.select = grouped_all;
    expect_masked(&p, "grouped positions of everything");
    p.caps |= KVL_CAP_EVICTS;
    p.evict = evict_some;
    expect_masked(&p, "grouped positions over holes");
}

/* ---- sharing ---------------------------------------------------------------------------------------- */

static int shared(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                  struct kvl_sel *sel)
{
    KVL_TRY(as_tokens(ctx, step, q, sel));
    return kvl_sel_share(sel, ctx->shape->n_layers - 1, 2);
}

/* One selection for all layers and two steps: asked for half as many steps, once each. */
static void test_sharing_is_served_and_counted(void **state)
{
    (void)state;
    seen.select = 0;
    expect_alike(as_tokens, shared, "a shared selection");
    int32_t layers = rig_shape(&rig)->n_layers;
    assert_int_equal(seen.select, layers * N_STEPS + N_STEPS / 2);
    struct kvl_policy p = selecting(shared);
    expect_masked(&p, "a shared selection");
}

/* A range that ends with the current token goes on while its selection is shared. */
static int open_range(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                      struct kvl_sel *sel)
{
    (void)ctx;
    (void)q;
    seen.select++;
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, 3, 5));
    return kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, 80, step->pos + 1);
}

static int open_range_shared(struct kvl_pctx *ctx, const struct kvl_step *step,
                             const struct kvl_query *q, struct kvl_sel *sel)
{
    KVL_TRY(open_range(ctx, step, q, sel));
    return kvl_sel_share(sel, ctx->shape->n_layers - 1, N_STEPS);
}

static void test_an_open_range_goes_on(void **state)
{
    (void)state;
    seen.select = 0;
    expect_alike(open_range, open_range_shared, "a shared open range");
    assert_int_equal(seen.select, rig_shape(&rig)->n_layers * N_STEPS + 1);
    struct kvl_policy p = selecting(open_range_shared);
    expect_masked(&p, "a shared open range");
}

/* ---- probabilities ------------------------------------------------------------------------------------ */

static int check_probs(struct kvl_pctx *ctx, const struct kvl_step *step, const float *const *probs,
                       const int32_t *n, const float *lse)
{
    (void)step;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        double sum = 0;
        if (n[h] != 25) return kvl_fail(ctx->err, KVL_EINTERNAL, "%d weights, want 25", n[h]);
        for (int32_t i = 0; i < n[h]; i++) sum += (double)probs[h][i];
        seen.worst = fmax(seen.worst, fabs(sum - 1));
        if (!isfinite(lse[h])) return kvl_fail(ctx->err, KVL_EINTERNAL, "no log-sum-exp");
    }
    seen.observe++;
    return KVL_OK;
}

static int exact_weights(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t n = step->pos + 1;
    float *probs;
    (void)sel;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)ctx->shape->n_heads * (size_t)n, &probs));
    seen.select++;
    return kvl_attn_weights(ctx, step, q, probs, n);
}

static void test_observe_gets_the_weights_of_what_was_read(void **state)
{
    struct kvl_policy p = selecting(as_tokens);
    (void)state;
    p.observe = check_probs;
    memset(&seen, 0, sizeof seen);
    float *with = run_policy(&p, KVL_EXEC_REAL);
    assert_int_equal(seen.observe, rig_shape(&rig)->n_layers * N_STEPS);
    assert_true(seen.worst < 1e-5);
    p = selecting(as_tokens);
    float *without = run_policy(&p, KVL_EXEC_REAL);
    rig_expect_same(&rig, with, without, N_STEPS, "with and without observe");
    kvl_free(with);
    kvl_free(without);
}

/* Looking at every key changes nothing but the bytes that are counted. */
static void test_looking_is_charged(void **state)
{
    struct kvl_policy p = selecting(exact_weights);
    struct rig_run run = { .policy = &p, .id = id, .n_ctx = N_CTX };
    float *logits = rig_logits(&rig, 1);
    (void)state;
    struct rig_session rs = rig_start(&rig, &run);
    rig_decode(&rig, &rs, id + N_CTX, 1, logits);
    const struct kvl_shape *sh = rig_shape(&rig);
    int64_t keys = (int64_t)(N_CTX + 1) * sh->n_kv_heads * sh->head_dim * sh->n_layers * 4;
    assert_int_equal(kvl_session_counters(rs.s)->index_read_bytes, keys);
    assert_int_equal(kvl_session_counters(rs.s)->kv_read_bytes, 2 * keys);
    kvl_free(logits);
    rig_end(&rs);
}

/* ---- state and lifetime --------------------------------------------------------------------------------- */

static int state_plan(struct kvl_plan *plan)
{
    plan->state_bytes = sizeof(int32_t);
    return KVL_OK;
}

static int state_open(struct kvl_pctx *ctx)
{
    seen.open++;
    return *(int32_t *)ctx->state == 0 ? KVL_OK
                                       : kvl_fail(ctx->err, KVL_EINTERNAL, "state is not zero");
}

/* Counts its own steps; the sequence decides what it reads, so that a lost state shows. */
static int state_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t *count = ctx->state;
    (void)q;
    if (step->layer == 0) ++*count;
    if (*count != step->index + 1)
        return kvl_fail(ctx->err, KVL_EINTERNAL, "step %d, counted %d", step->index, *count);
    return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, count, 1);
}

static int state_report(struct kvl_pctx *ctx, struct kvl_report *r)
{
    return kvl_report_num(r, "steps", *(int32_t *)ctx->state);
}

static void take_number(void *user, const char *name, double value)
{
    assert_string_equal(name, "steps");
    *(double *)user = value;
}

/* State is zeroed, copied by a fork, and the two go their own ways. */
static void test_state_forks(void **state)
{
    struct kvl_policy p = selecting(state_select);
    struct rig_run run = { .policy = &p, .id = id, .n_ctx = N_CTX };
    float *logits = rig_logits(&rig, N_STEPS);
    double steps = 0;
    (void)state;
    memset(&seen, 0, sizeof seen);
    p.plan = state_plan;
    p.open = state_open;
    p.report = state_report;
    struct rig_session a = rig_start(&rig, &run);
    rig_decode(&rig, &a, id + N_CTX, 2, logits);
    struct rig_session b = rig_fork(&rig, &a);
    rig_decode(&rig, &b, id + N_CTX, 2, logits);
    rig_decode(&rig, &a, id + N_CTX + 2, 1, logits);
    const struct kvl_report_to to = { .user = &steps, .num = take_number };
    RIG_OK(&rig.err, kvl_session_report(b.s, &to, &rig.err));
    assert_true(steps > 3.5 && steps < 4.5);
    RIG_OK(&rig.err, kvl_session_report(a.s, &to, &rig.err));
    assert_true(steps > 2.5 && steps < 3.5);
    rig_end(&b);
    rig_end(&a);
    assert_int_equal(seen.open, 1);
    kvl_free(logits);
}

/* ---- tables ------------------------------------------------------------------------------------------ */

static int table_plan(struct kvl_plan *plan)
{
    int32_t *handle = plan->opts;
    return kvl_plan_table(plan, handle, .unit = KVL_UNIT_PAGE, .unit_tok = 8, .row_elems = 2);
}

/* Each row holds the first position of its page, and of the layer and head. */
static int table_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                        const float *v)
{
    struct kvl_rows rows;
    (void)k;
    (void)v;
    KVL_TRY(kvl_table_all(ctx, *(const int32_t *)ctx->opts, step->layer, &rows));
    for (int32_t i = step->pos; i < step->pos + step->n_tok; i++)
        for (int32_t h = 0; h < ctx->shape->n_kv_heads && i % 8 == 0; h++) {
            float *row = kvl_table_row_out(&rows, h, i / 8);
            row[0] = (float)i;
            row[1] = (float)(step->layer * 10 + h);
        }
    return KVL_OK;
}

static int table_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    struct kvl_rows rows;
    (void)q;
    (void)sel;
    seen.select++;
    KVL_TRY(kvl_table_all(ctx, *(const int32_t *)ctx->opts, step->layer, &rows));
    if (rows.n_rows != step->pos / 8 + 1)
        return kvl_fail(ctx->err, KVL_EINTERNAL, "%d rows at position %d", rows.n_rows, step->pos);
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        for (int32_t r = 0; r < rows.n_rows; r++) {
            const float *row = kvl_table_row(&rows, h, r);
            double off = fabs((double)row[0] - 8.0 * r) +
                         fabs((double)row[1] - (double)(step->layer * 10 + h));
            seen.worst = fmax(seen.worst, off);
        }
    return KVL_OK;
}

/* Tables grow with the sequence, are copied when a fork writes, and rows stay where they were. */
static void test_tables_grow_and_fork(void **state)
{
    static const struct kvl_opt no_options[] = { { 0 } };
    enum { N_MORE = 300 };
    struct kvl_policy p = selecting(table_select);
    float *logits = rig_logits(&rig, 1);
    (void)state;
    memset(&seen, 0, sizeof seen);
    p.opts = no_options;
    p.opts_size = sizeof(int32_t);
    p.plan = table_plan;
    p.append = table_append;
    struct rig_run run = { .policy = &p, .id = id, .n_ctx = N_CTX };
    struct rig_session a = rig_start(&rig, &run), b = rig_fork(&rig, &a);
    for (int32_t i = 0; i < N_MORE; i++) {
        rig_decode(&rig, &a, id + i % N_TOK, 1, logits);
        if (i % 3 == 0) rig_decode(&rig, &b, id + i % N_TOK, 1, logits);
    }
    assert_true(seen.worst < 0.5);
    assert_true(kvl_session_meta_bytes(a.s) > kvl_session_meta_bytes(b.s));
    kvl_free(logits);
    rig_end(&b);
    rig_end(&a);
}

static int open_rig(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = 2, .seed = 41 } };
    (void)state;
    rig_open(&rig, &desc);
    rig_tokens(id, N_TOK, 42);
    return 0;
}

static int close_rig(void **state)
{
    (void)state;
    rig_close(&rig);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_choice_in_many_words),
        cmocka_unit_test(test_builders_under_the_mask),
        cmocka_unit_test(test_ranges_over_holes),
        cmocka_unit_test(test_an_open_range_goes_on),
        cmocka_unit_test(test_log_weights_count),
        cmocka_unit_test(test_positions_under_the_mask),
        cmocka_unit_test(test_sharing_is_served_and_counted),
        cmocka_unit_test(test_observe_gets_the_weights_of_what_was_read),
        cmocka_unit_test(test_looking_is_charged),
        cmocka_unit_test(test_state_forks),
        cmocka_unit_test(test_tables_grow_and_fork),
    };
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
