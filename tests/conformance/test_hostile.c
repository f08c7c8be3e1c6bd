/* Policies that break their contract.  Each wrong answer must end in KVL_EPOLICY (or in the status
 * that the hook itself returned) with a message that says what was wrong; the session is then
 * unusable, and a control run in the same engine gives the bits that it gave before. */
#include "conformance/rig.h"

enum { N_CTX = 60, N_TOK = 80, BUDGET = 24, N_CONTROL = 3 };

enum hook {
    IN_PLAN,
    IN_OPEN,
    IN_APPEND,
    IN_PREFILLED,
    IN_SCORE,
    IN_SCHEDULE,
    IN_SELECT,
    IN_OBSERVE,
    IN_EVICT
};

/* What the policy of the running case does.  Only the hook named in the case misbehaves. */
static const struct hostile *now;

struct answer {
    struct kvl_plan *plan;
    struct kvl_pctx *ctx;
    const struct kvl_step *step;
    const struct kvl_query *q;
    struct kvl_sel *sel;
    struct kvl_keep *keep;
    struct kvl_scores *scores;
};

struct hostile {
    const char *what;
    enum hook hook;
    int (*act)(const struct answer *a);
    int want;            /* status */
    const char *needle;  /* in the message; NULL = just not empty */
    bool after_eviction; /* positions 10 .. 19 are dead when the hook runs */
};

static int act(enum hook hook, const struct answer *a)
{
    return now->hook == hook ? now->act(a) : KVL_OK;
}

/* ---- the policy ---------------------------------------------------------------------------------- */

static int hostile_plan(struct kvl_plan *plan)
{
    if (now->hook == IN_PREFILLED) { /* what some of its cases ask for wrongly */
        KVL_TRY(kvl_plan_observe(plan, KVL_OBS_MOMENTS, 4));
        KVL_TRY(kvl_plan_observe(plan, KVL_OBS_COLUMNS, 4));
    }
    return act(IN_PLAN, &(struct answer){ .plan = plan });
}

static int hostile_open(struct kvl_pctx *ctx)
{
    return act(IN_OPEN, &(struct answer){ .ctx = ctx });
}

static int hostile_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                          const float *v)
{
    (void)k;
    (void)v;
    return step->replay ? KVL_OK : act(IN_APPEND, &(struct answer){ .ctx = ctx, .step = step });
}

static int hostile_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    (void)layer;
    return act(IN_PREFILLED, &(struct answer){ .ctx = ctx });
}

static int hostile_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    (void)layer;
    scores->keep_tok = scores->n_tok;
    if (now->after_eviction) {
        for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
            for (int32_t i = 10; i < 20; i++) scores->score[h * scores->n_tok + i] = -1.0f;
        scores->keep_tok = scores->n_tok - 10;
    }
    return act(IN_SCORE, &(struct answer){ .ctx = ctx, .scores = scores });
}

static int hostile_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    int rc = act(IN_SCHEDULE, &(struct answer){ .ctx = ctx, .step = step });
    return now->hook == IN_SCHEDULE ? rc : KVL_SELECT;
}

static int hostile_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_sel *sel)
{
    return act(IN_SELECT, &(struct answer){ .ctx = ctx, .step = step, .q = q, .sel = sel });
}

static int hostile_observe(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const float *const *probs, const int32_t *n, const float *lse)
{
    (void)probs;
    (void)n;
    (void)lse;
    return act(IN_OBSERVE, &(struct answer){ .ctx = ctx, .step = step });
}

static int hostile_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    if (step->replay) return KVL_OK;
    return act(IN_EVICT, &(struct answer){ .ctx = ctx, .step = step, .keep = keep });
}

static const struct kvl_policy hostile = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "hostile",
    .title = "Breaks its contract",
    .paper = "none",
    .help = "for tests",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_SELECTS,
    .plan = hostile_plan,
    .open = hostile_open,
    .append = hostile_append,
    .prefilled = hostile_prefilled,
    .score = hostile_score,
    .schedule = hostile_schedule,
    .select = hostile_select,
    .observe = hostile_observe,
    .evict = hostile_evict,
};

/* ---- wrong answers of select ---------------------------------------------------------------------- */

static int tokens(const struct answer *a, const int32_t *pos, int32_t n)
{
    return kvl_sel_tokens(a->sel, KVL_SCOPE_LAYER, 0, pos, n);
}

static int token_ahead(const struct answer *a)
{
    return tokens(a, (int32_t[]){ 1, 2, a->step->pos + 1 }, 3);
}
static int token_negative(const struct answer *a)
{
    return tokens(a, (int32_t[]){ -1, 2 }, 2);
}
static int token_twice(const struct answer *a)
{
    return tokens(a, (int32_t[]){ 1, 2, 2, 3 }, 4);
}
static int token_unsorted(const struct answer *a)
{
    return tokens(a, (int32_t[]){ 1, 5, 3 }, 3);
}
static int token_dead(const struct answer *a)
{
    return tokens(a, (int32_t[]){ 1, 2, 15, 30 }, 4);
}
static int tokens_less_than_none(const struct answer *a)
{
    return tokens(a, (int32_t[]){ 1 }, -3);
}
static int tokens_too_many(const struct answer *a)
{
    static int32_t pos[4 * N_TOK];
    for (int32_t i = 0; i < 4 * N_TOK; i++) pos[i] = i;
    return tokens(a, pos, 4 * N_TOK);
}
static int list_out_of_range(const struct answer *a)
{
    return kvl_sel_tokens(a->sel, KVL_SCOPE_KV_HEAD, 9, (int32_t[]){ 1 }, 1);
}
static int list_negative(const struct answer *a)
{
    return kvl_sel_tokens(a->sel, KVL_SCOPE_KV_HEAD, -1, (int32_t[]){ 1 }, 1);
}
static int list_missing(const struct answer *a)
{
    return kvl_sel_tokens(a->sel, KVL_SCOPE_KV_HEAD, 0, (int32_t[]){ 1 }, 1);
}
static int list_given_twice(const struct answer *a)
{
    KVL_TRY(tokens(a, (int32_t[]){ 1 }, 1));
    return tokens(a, (int32_t[]){ 2 }, 1);
}
static int scopes_mixed(const struct answer *a)
{
    KVL_TRY(kvl_sel_tokens(a->sel, KVL_SCOPE_KV_HEAD, 0, (int32_t[]){ 1 }, 1));
    return kvl_sel_tokens(a->sel, KVL_SCOPE_Q_HEAD, 1, (int32_t[]){ 1 }, 1);
}
static int scope_unknown(const struct answer *a)
{
    return kvl_sel_tokens(a->sel, (enum kvl_scope)7, 0, (int32_t[]){ 1 }, 1);
}
static int pages_scope_unknown(const struct answer *a)
{
    return kvl_sel_pages(a->sel, (enum kvl_scope) - 1, 0, 16, (int32_t[]){ 0 }, 1);
}
static int top_tokens_scope_unknown(const struct answer *a)
{
    return kvl_sel_top_tokens(a->sel, (enum kvl_scope)3, (float[]){ 1, 2 }, 2, 1);
}
static int top_pages_scope_unknown(const struct answer *a)
{
    static const float score[N_TOK] = { 0 };
    return kvl_sel_top_pages(a->sel, (enum kvl_scope)3, score, a->step->pos / 16 + 1, 3, 16, true);
}
static int range_scope_unknown(const struct answer *a)
{
    return kvl_sel_range(a->sel, (enum kvl_scope)7, 0, 1, 2);
}
static int log_weights_scope_unknown(const struct answer *a)
{
    KVL_TRY(tokens(a, (int32_t[]){ 1 }, 1));
    return kvl_sel_log_weights(a->sel, (enum kvl_scope)7, 0, (float[]){ 0 }, 1);
}
static int keys_scope_unknown(const struct answer *a)
{
    static const float keys[256] = { 0 };
    for (int32_t h = 0; h < a->ctx->shape->n_kv_heads; h++)
        KVL_TRY(kvl_sel_tokens(a->sel, KVL_SCOPE_KV_HEAD, h, (int32_t[]){ 1 }, 1));
    return kvl_sel_keys(a->sel, (enum kvl_scope)7, 0, keys, 1);
}
/* Although nobody listens. */
static int tap_scope_unknown(const struct answer *a)
{
    return kvl_tap_scores(
        a->ctx, a->step,
        &(struct kvl_scored){
            .scope = (enum kvl_scope)7, .unit_tok = 1, .n = 1, .score = (float[]){ 0 } });
}

/* Operators have no words of their own. */
static int norm_unknown(const struct answer *a)
{
    float y, x[2] = { 3, 4 };
    return a->ctx->ops->row_norms(
        &(struct kvl_row_norms_args){ .y = &y, .x = x, .n = 1, .dim = 2, .norm = 7 });
}
static int reduce(const struct answer *a, enum kvl_reduce how)
{
    float y[2] = { 0 }, x[2] = { 3, 4 };
    return a->ctx->ops->group_reduce(&(struct kvl_group_reduce_args){
        .y = y, .x = x, .x_stride = 1, .n = 1, .n_heads = 2, .n_kv_heads = 1, .reduce = how });
}
static int reduce_unknown(const struct answer *a)
{
    return reduce(a, (enum kvl_reduce)9);
}
static int reduce_none(const struct answer *a)
{
    return reduce(a, KVL_REDUCE_NONE);
}
static int bound_unknown(const struct answer *a)
{
    float bound[1], q[1] = { 1 }, minmax[2] = { 0, 1 };
    return a->ctx->ops->page_bound(&(struct kvl_page_bound_args){ .bound = bound,
                                                                  .q = q,
                                                                  .minmax = minmax,
                                                                  .head_stride = 2,
                                                                  .n_pages = 1,
                                                                  .n_heads = 1,
                                                                  .n_kv_heads = 1,
                                                                  .head_dim = 1,
                                                                  .reduce = (enum kvl_reduce)9 });
}

static int page_ahead(const struct answer *a)
{
    return kvl_sel_pages(a->sel, KVL_SCOPE_LAYER, 0, 16, (int32_t[]){ 0, 1000 }, 2);
}
static int page_of_nothing(const struct answer *a)
{
    return kvl_sel_pages(a->sel, KVL_SCOPE_LAYER, 0, 0, (int32_t[]){ 0 }, 1);
}
static int page_twice(const struct answer *a)
{
    return kvl_sel_pages(a->sel, KVL_SCOPE_LAYER, 0, 16, (int32_t[]){ 1, 1 }, 2);
}

static int top(const struct answer *a, float bad, int32_t n, int32_t k)
{
    static float score[8 * N_TOK];
    for (int32_t i = 0; i < 8 * N_TOK; i++) score[i] = (float)(i % 7);
    score[n > 5 ? 5 : 0] = bad;
    return kvl_sel_top_tokens(a->sel, KVL_SCOPE_LAYER, score, n, k);
}
static int score_nan(const struct answer *a)
{
    return top(a, nanf(""), a->step->pos, 4);
}
static int score_too_many(const struct answer *a)
{
    return top(a, 1.0f, a->step->pos + 2, 4);
}
static int score_less_than_none(const struct answer *a)
{
    return top(a, 1.0f, -1, 4);
}
static int top_less_than_none(const struct answer *a)
{
    return top(a, 1.0f, a->step->pos, -4);
}
static int top_dead(const struct answer *a)
{
    return top(a, 1.0f, a->step->pos, a->step->pos);
}
static int page_scores_too_few(const struct answer *a)
{
    static const float score[N_TOK] = { 0 };
    return kvl_sel_top_pages(a->sel, KVL_SCOPE_LAYER, score, 2, 1, 16, true);
}
static int page_score_nan(const struct answer *a)
{
    float score[N_TOK] = { 0 };
    score[1] = nanf("");
    return kvl_sel_top_pages(a->sel, KVL_SCOPE_LAYER, score, a->step->pos / 16 + 1, 3, 16, true);
}

static int range(const struct answer *a, int32_t first, int32_t last)
{
    return kvl_sel_range(a->sel, KVL_SCOPE_LAYER, 0, first, last);
}
static int sel_range_ahead(const struct answer *a)
{
    return range(a, 3, a->step->pos + 2);
}
static int sel_range_negative(const struct answer *a)
{
    return range(a, -2, 5);
}
static int sel_range_backwards(const struct answer *a)
{
    return range(a, 7, 5);
}
static int range_and_weights(const struct answer *a)
{
    KVL_TRY(tokens(a, (int32_t[]){ 11 }, 1));
    KVL_TRY(kvl_sel_log_weights(a->sel, KVL_SCOPE_LAYER, 0, (float[]){ 1 }, 1));
    return range(a, 3, 9);
}
static int tokens_around_a_range(const struct answer *a)
{
    KVL_TRY(tokens(a, (int32_t[]){ 1 }, 1));
    KVL_TRY(range(a, 3, 9));
    return tokens(a, (int32_t[]){ 11 }, 1);
}
static int sel_range_of_no_list(const struct answer *a)
{
    return kvl_sel_range(a->sel, KVL_SCOPE_KV_HEAD, -2, 1, 3);
}
static int log_weights_of_a_range(const struct answer *a)
{
    KVL_TRY(range(a, 0, 0));
    return kvl_sel_log_weights(a->sel, KVL_SCOPE_LAYER, 0, NULL, 0);
}
static int query_position_alone(const struct answer *a)
{
    return kvl_sel_query_position(a->sel, 5);
}
static int query_position_negative(const struct answer *a)
{
    return kvl_sel_query_position(a->sel, -1);
}

static int position_mode_unknown(const struct answer *a)
{
    return kvl_sel_positions(a->sel, (enum kvl_pos_mode)9, 0);
}
static int raw_keys_not_asked(const struct answer *a)
{
    return kvl_sel_positions(a->sel, KVL_POS_IN_CACHE, 0);
}
static int log_weight_nan(const struct answer *a)
{
    KVL_TRY(tokens(a, (int32_t[]){ 1, 2 }, 2));
    return kvl_sel_log_weights(a->sel, KVL_SCOPE_LAYER, 0, (float[]){ 0.0f, nanf("") }, 2);
}
static int log_weight_count(const struct answer *a)
{
    KVL_TRY(tokens(a, (int32_t[]){ 1, 2 }, 2));
    return kvl_sel_log_weights(a->sel, KVL_SCOPE_LAYER, 0, (float[]){ 0.0f, 0.0f, 0.0f }, 3);
}
static int log_weight_of_nothing(const struct answer *a)
{
    return kvl_sel_log_weights(a->sel, KVL_SCOPE_LAYER, 0, (float[]){ 0.0f }, 1);
}
static int segments_overlap(const struct answer *a)
{
    KVL_TRY(tokens(a, (int32_t[]){ 1, 2, 3 }, 3));
    KVL_TRY(kvl_sel_segment(a->sel));
    return tokens(a, (int32_t[]){ 3, 4 }, 2);
}
static int segments_too_many(const struct answer *a)
{
    for (int32_t i = 0; i < 100; i++) {
        KVL_TRY(tokens(a, &i, 1));
        KVL_TRY(kvl_sel_segment(a->sel));
    }
    return KVL_OK;
}
static int segment_empty(const struct answer *a)
{
    KVL_TRY(tokens(a, (int32_t[]){ 1 }, 1));
    return kvl_sel_segment(a->sel);
}
static int segment_after_everything(const struct answer *a)
{
    return kvl_sel_segment(a->sel);
}
static int share_with_no_layer(const struct answer *a)
{
    return kvl_sel_share(a->sel, 99, 1);
}
static int share_for_no_step(const struct answer *a)
{
    return kvl_sel_share(a->sel, a->step->layer, 0);
}
/* A message of the builder that the hook swallows: the selection must not be used half-built. */
static int error_ignored(const struct answer *a)
{
    (void)tokens(a, (int32_t[]){ 5, 3 }, 2);
    return KVL_OK;
}

/* ---- wrong handles ---------------------------------------------------------------------------------- */

static int handle_wrong(const struct answer *a)
{
    struct kvl_rows rows;
    return kvl_table_all(a->ctx, 7, a->step->layer, &rows);
}
static int window_not_asked(const struct answer *a)
{
    const float *mass;
    int32_t n;
    return kvl_obs_window_mass(a->ctx, 0, 8, &mass, &n);
}
/* Moments and columns are asked for in plan. */
static int columns_of_moments(const struct answer *a)
{
    const float *sums;
    int32_t n;
    return kvl_obs_columns(a->ctx, 0, KVL_OBS_MOMENTS, 4, &sums, &n);
}
static int replay_of_columns(const struct answer *a)
{
    const float *score;
    int32_t n;
    return kvl_obs_replay(a->ctx, 0, KVL_OBS_COLUMNS, 4, &score, &n);
}
static int weights_of_too_many(const struct answer *a)
{
    float probs[8];
    return kvl_attn_weights(a->ctx, a->step, a->q, probs, 2 * N_TOK);
}
static int live_of_no_head(const struct answer *a)
{
    const int32_t *pos;
    int32_t n;
    return kvl_live(a->ctx, a->step->layer, 99, &pos, &n);
}

/* No hook may end a sweep as a signal does. */
static int return_stop(const struct answer *a)
{
    (void)a;
    return KVL_ESTOP;
}
/* A refusal that the hook does not pass on still counts. */
static int keep_refused(const struct answer *a)
{
    (void)kvl_keep_range(a->keep, -1, 9, 3);
    return KVL_OK;
}

/* ---- wrong scores ---------------------------------------------------------------------------------- */

static int scores_shrunk(const struct answer *a)
{
    a->scores->n_tok -= 7;
    return KVL_OK;
}
static int scores_moved(const struct answer *a)
{
    a->scores->score++;
    return KVL_OK;
}
static int scores_nan(const struct answer *a)
{
    a->scores->keep_tok = 10;
    a->scores->score[3] = nanf("");
    return KVL_OK;
}
static int keep_less_than_none(const struct answer *a)
{
    a->scores->keep_tok = -1;
    return KVL_OK;
}
static int protect_more_than_kept(const struct answer *a)
{
    a->scores->keep_tok = 10;
    a->scores->protect_last = 11;
    return KVL_OK;
}
static int protect_overflows(const struct answer *a)
{
    a->scores->keep_tok = 10;
    a->scores->protect_first = INT32_MAX;
    a->scores->protect_last = INT32_MAX;
    return KVL_OK;
}
static int protect_negative(const struct answer *a)
{
    a->scores->keep_tok = 10;
    a->scores->protect_first = -5;
    return KVL_OK;
}

/* ---- wrong evictions --------------------------------------------------------------------------------- */

static int range_ahead(const struct answer *a)
{
    return kvl_keep_range(a->keep, -1, 0, a->step->pos + 2);
}
static int range_backwards(const struct answer *a)
{
    return kvl_keep_range(a->keep, -1, 9, 4);
}
static int range_negative(const struct answer *a)
{
    return kvl_keep_range(a->keep, -1, -4, 4);
}
static int keep_no_head(const struct answer *a)
{
    return kvl_keep_range(a->keep, 99, 0, 4);
}
static int keep_unsorted(const struct answer *a)
{
    return kvl_keep_tokens(a->keep, 0, (int32_t[]){ 4, 2 }, 2);
}
static int keep_dead(const struct answer *a)
{
    return kvl_keep_tokens(a->keep, 0, (int32_t[]){ 4, 12 }, 2);
}
static int keep_ahead(const struct answer *a)
{
    return kvl_keep_tokens(a->keep, 0, (int32_t[]){ 4, a->step->pos + 1 }, 2);
}
static int keep_less_tokens_than_none(const struct answer *a)
{
    return kvl_keep_tokens(a->keep, 0, (int32_t[]){ 4 }, -2);
}

/* What engines know to be there, as scores. */
static const float *some_scores(const struct answer *a)
{
    float *x;
    if (kvl_scratch_f32(a->ctx, 1024, &x) != KVL_OK) return NULL;
    for (int32_t i = 0; i < 1024; i++) x[i] = (float)(i % 7);
    return x;
}
static int keep_best_of_none(const struct answer *a)
{
    return kvl_keep_top(a->keep, 0, some_scores(a), 3, 4);
}
static int keep_best_of_too_many(const struct answer *a)
{
    return kvl_keep_top(a->keep, 0, some_scores(a), a->step->pos + 2, 4);
}
static int keep_less_best_than_none(const struct answer *a)
{
    return kvl_keep_top(a->keep, 0, some_scores(a), 3, -1);
}
static int keep_best_twice(const struct answer *a)
{
    KVL_TRY(kvl_keep_top(a->keep, 0, some_scores(a), 3, 2));
    return kvl_keep_top(a->keep, -1, some_scores(a), 3, 2);
}
static int keep_best_and_tokens(const struct answer *a)
{
    KVL_TRY(kvl_keep_top(a->keep, 0, some_scores(a), 3, 2));
    return kvl_keep_tokens(a->keep, 0, (int32_t[]){ 4 }, 1);
}
static int keep_best_no_number(const struct answer *a)
{
    float *x;
    KVL_TRY(kvl_scratch_f32(a->ctx, 4, &x));
    for (int32_t i = 0; i < 4; i++) x[i] = i == 2 ? NAN : 1;
    return kvl_keep_top(a->keep, 0, x, 4, 2);
}

/* ---- statuses, plan -------------------------------------------------------------------------------- */

static int own_error(const struct answer *a)
{
    return kvl_fail(a->ctx ? a->ctx->err : a->plan->err, KVL_ENOMEM, "the hook's own words");
}
static int own_error_silent(const struct answer *a)
{
    (void)a;
    return KVL_ENOMEM;
}
static int status_positive(const struct answer *a)
{
    (void)a;
    return 11; /* and nothing that schedule may say */
}
static int status_unknown(const struct answer *a)
{
    (void)a;
    return -77;
}
static int schedule_unknown(const struct answer *a)
{
    (void)a;
    return 9;
}
static int plan_tables(const struct answer *a)
{
    int32_t handle;
    for (int i = 0; i <= KVL_MAX_TABLES; i++)
        KVL_TRY(kvl_plan_table(a->plan, &handle, .unit = KVL_UNIT_PAGE, .unit_tok = 16,
                               .row_elems = 4));
    return KVL_OK;
}
static int plan_rows_of_nothing(const struct answer *a)
{
    int32_t handle;
    return kvl_plan_table(a->plan, &handle, .unit = KVL_UNIT_PAGE, .unit_tok = 16, .row_elems = 0);
}
static int plan_unit_unknown(const struct answer *a)
{
    int32_t handle;
    return kvl_plan_table(a->plan, &handle, .unit = (enum kvl_table_unit)9, .unit_tok = 16,
                          .row_elems = 4);
}
static int plan_elem_unknown(const struct answer *a)
{
    int32_t handle;
    return kvl_plan_table_desc(a->plan,
                               &(struct kvl_table_desc){ .unit = KVL_UNIT_PAGE,
                                                         .unit_tok = 16,
                                                         .row_elems = 4,
                                                         .elem = (enum kvl_table_elem)55 },
                               &handle);
}
static int plan_replace_unknown(const struct answer *a)
{
    return kvl_plan_offload(
        a->plan,
        &(struct kvl_offload){ .keep_last = 1, .unit_tok = 1, .replace = (enum kvl_replace)44 });
}
static int plan_replay_unknown(const struct answer *a)
{
    a->plan->replay = (enum kvl_replay)33;
    return KVL_OK;
}
static int plan_observer(const struct answer *a)
{
    return kvl_plan_observe(a->plan, (enum kvl_observer)77, 1);
}

#define BAD(f, hook, needle)                                                                       \
    {                                                                                              \
#f, hook, f, KVL_EPOLICY, needle, false                                                    \
    }
#define REFUSED(f, hook)                                                                           \
    {                                                                                              \
#f, hook, f, KVL_EINVAL, "operator that it called refused an argument", false              \
    }
static const struct hostile cases[] = {
    BAD(token_ahead, IN_SELECT, "61"),
    BAD(token_negative, IN_SELECT, "-1"),
    BAD(token_twice, IN_SELECT, "2"),
    BAD(token_unsorted, IN_SELECT, "3"),
    { "token_dead", IN_SELECT, token_dead, KVL_EPOLICY, "15", true },
    BAD(tokens_less_than_none, IN_SELECT, "-3"),
    BAD(tokens_too_many, IN_SELECT, "61"),
    BAD(list_out_of_range, IN_SELECT, "9"),
    BAD(list_negative, IN_SELECT, "-1"),
    BAD(list_missing, IN_SELECT, "missing"),
    BAD(list_given_twice, IN_SELECT, "twice"),
    BAD(scopes_mixed, IN_SELECT, "query head"),
    BAD(scope_unknown, IN_SELECT, "7"),
    BAD(pages_scope_unknown, IN_SELECT, "scope -1"),
    BAD(top_tokens_scope_unknown, IN_SELECT, "scope 3"),
    BAD(top_pages_scope_unknown, IN_SELECT, "scope 3"),
    BAD(range_scope_unknown, IN_SELECT, "scope 7"),
    BAD(log_weights_scope_unknown, IN_SELECT, "list 0"),
    BAD(keys_scope_unknown, IN_SELECT, "list 0"),
    BAD(tap_scope_unknown, IN_SELECT, "scope 7"),
    REFUSED(norm_unknown, IN_SELECT),
    REFUSED(reduce_unknown, IN_SELECT),
    REFUSED(reduce_none, IN_APPEND),
    REFUSED(bound_unknown, IN_SELECT),
    BAD(page_ahead, IN_SELECT, "1000"),
    BAD(page_of_nothing, IN_SELECT, "0"),
    BAD(page_twice, IN_SELECT, "1"),
    BAD(score_nan, IN_SELECT, "NaN"),
    BAD(score_too_many, IN_SELECT, "62"),
    BAD(score_less_than_none, IN_SELECT, "-1"),
    BAD(top_less_than_none, IN_SELECT, "-4"),
    { "top_dead", IN_SELECT, top_dead, KVL_EPOLICY, "10", true },
    BAD(page_scores_too_few, IN_SELECT, "2"),
    BAD(page_score_nan, IN_SELECT, "NaN"),
    BAD(sel_range_ahead, IN_SELECT, "62"),
    BAD(sel_range_negative, IN_SELECT, "-2"),
    BAD(sel_range_backwards, IN_SELECT, "7"),
    BAD(range_and_weights, IN_SELECT, "weights"),
    BAD(tokens_around_a_range, IN_SELECT, "twice"),
    BAD(sel_range_of_no_list, IN_SELECT, "-2"),
    BAD(log_weights_of_a_range, IN_SELECT, NULL),
    BAD(query_position_alone, IN_SELECT, "together"),
    BAD(query_position_negative, IN_SELECT, "-1"),
    BAD(position_mode_unknown, IN_SELECT, "9"),
    BAD(raw_keys_not_asked, IN_SELECT, "raw_keys"),
    BAD(log_weight_nan, IN_SELECT, NULL),
    BAD(log_weight_count, IN_SELECT, "3"),
    BAD(log_weight_of_nothing, IN_SELECT, NULL),
    BAD(segments_overlap, IN_SELECT, "3"),
    BAD(segments_too_many, IN_SELECT, "segment"),
    BAD(segment_empty, IN_SELECT, "segment"),
    BAD(segment_after_everything, IN_SELECT, "segment"),
    BAD(share_with_no_layer, IN_SELECT, "99"),
    BAD(share_for_no_step, IN_SELECT, "0"),
    BAD(error_ignored, IN_SELECT, NULL),
    BAD(handle_wrong, IN_APPEND, "7"),
    BAD(handle_wrong, IN_SELECT, "7"),
    BAD(window_not_asked, IN_PREFILLED, "plan"),
    BAD(window_not_asked, IN_SELECT, NULL),
    BAD(columns_of_moments, IN_PREFILLED, "observer 4"),
    BAD(replay_of_columns, IN_PREFILLED, "observer 2"),
    BAD(weights_of_too_many, IN_SELECT, "160"),
    BAD(live_of_no_head, IN_SELECT, "99"),
    BAD(return_stop, IN_SELECT, NULL),
    BAD(keep_refused, IN_EVICT, "[9, 3)"),
    BAD(scores_shrunk, IN_SCORE, "53"),
    BAD(scores_moved, IN_SCORE, "buffer"),
    BAD(scores_nan, IN_SCORE, "NaN"),
    BAD(keep_less_than_none, IN_SCORE, "-1"),
    BAD(protect_more_than_kept, IN_SCORE, "11"),
    BAD(protect_overflows, IN_SCORE, NULL),
    BAD(protect_negative, IN_SCORE, "-5"),
    BAD(range_ahead, IN_EVICT, "62"),
    BAD(range_backwards, IN_EVICT, "9"),
    BAD(range_negative, IN_EVICT, "-4"),
    BAD(keep_no_head, IN_EVICT, "99"),
    BAD(keep_unsorted, IN_EVICT, "2"),
    { "keep_dead", IN_EVICT, keep_dead, KVL_EPOLICY, "12", true },
    BAD(keep_ahead, IN_EVICT, "61"),
    BAD(keep_less_tokens_than_none, IN_EVICT, "-2"),
    BAD(keep_best_of_none, IN_EVICT, "the 4 best of the first 3"),
    BAD(keep_best_of_too_many, IN_EVICT, "live tokens of kv head 0"),
    BAD(keep_less_best_than_none, IN_EVICT, "the -1 best"),
    BAD(keep_best_twice, IN_EVICT, "given twice"),
    BAD(keep_best_and_tokens, IN_EVICT, "given twice"),
    BAD(keep_best_no_number, IN_EVICT, "not a number"),
    BAD(schedule_unknown, IN_SCHEDULE, NULL),
    BAD(plan_tables, IN_PLAN, "8"),
    BAD(plan_rows_of_nothing, IN_PLAN, "0"),
    BAD(plan_unit_unknown, IN_PLAN, "unit 9"),
    BAD(plan_elem_unknown, IN_PLAN, "elements 55"),
    BAD(plan_replace_unknown, IN_PLAN, "replacement 44"),
    BAD(plan_replay_unknown, IN_PLAN, "replay 33"),
    BAD(plan_observer, IN_PLAN, "77"),
};

/* ---- running a case ------------------------------------------------------------------------------- */

static struct rig rig;
static int32_t id[N_TOK];

/* A run of a policy that behaves. */
static float *control(void)
{
    static const struct kvl_policy calm = { .abi = KVL_POLICY_ABI,
                                            .size = sizeof calm,
                                            .name = "calm",
                                            .title = "t",
                                            .paper = "p",
                                            .help = "h",
                                            .caps = KVL_CAP_BOUND };
    struct rig_run run = { .policy = &calm, .id = id, .n_ctx = N_CTX, .n_steps = N_CONTROL };
    return rig_run(&rig, &run);
}

/* Plans, attaches and decodes until something fails. */
static int run_hostile(struct rig_session *rs, struct kvl_err *err)
{
    float *logits = rig_logits(&rig, 1);
    static struct kvl_policy policy;
    policy = hostile;
    if (now->hook != IN_OBSERVE) policy.observe = NULL; /* it allows one segment only */
    int rc = kvl_planned_create(&policy, rig_shape(&rig), "", BUDGET, N_CTX, &rs->planned, err);
    if (rc == KVL_OK) rig_observe(&rig, rs->planned);
    if (rc == KVL_OK) rc = kvl_session_create(rig.engine, &rs->s, err);
    if (rc == KVL_OK) rc = kvl_session_prefill(rs->s, id, N_CTX, NULL, true, err);
    if (rc == KVL_OK) rc = kvl_session_attach(rs->s, rs->planned, 1, KVL_EXEC_REAL, err);
    for (int32_t i = 0; rc == KVL_OK && i < 2; i++)
        rc = kvl_session_decode(&rs->s, 1, &id[N_CTX + i], logits, err);
    kvl_free(logits);
    return rc;
}

static void expect_unusable(struct rig_session *rs)
{
    struct kvl_err err = { 0 };
    float *logits = rig_logits(&rig, 1);
    struct kvl_session *fork;
    assert_int_not_equal(kvl_session_decode(&rs->s, 1, id, logits, &err), KVL_OK);
    assert_int_not_equal(kvl_session_fork(rs->s, &fork, &err), KVL_OK);
    kvl_free(logits);
}

static void run_case(const struct hostile *c)
{
    struct rig_session rs = { 0 };
    struct kvl_err err = { 0 };
    float *before = control();
    now = c;
    int rc = run_hostile(&rs, &err);
    if (rc != c->want)
        fail_msg("%s: %s (%s), want %s", c->what, kvl_status_name(rc), err.msg,
                 kvl_status_name(c->want));
    if (!strstr(err.msg, "hostile") || (c->needle && !strstr(err.msg, c->needle)))
        fail_msg("%s: message \"%s\" lacks \"hostile\" or \"%s\"", c->what, err.msg,
                 c->needle ? c->needle : "");
    if (strchr(err.msg, '\n')) fail_msg("%s: message of two lines", c->what);
    if (rs.s) expect_unusable(&rs);
    rig_end(&rs);
    float *after = control();
    rig_expect_same(&rig, before, after, N_CONTROL, c->what);
    kvl_free(before);
    kvl_free(after);
}

static void test_case(void **state)
{
    run_case(*state);
}

/* Every hook's own status comes through with its words; what is no status becomes KVL_EPOLICY. */
static void test_statuses_of_hooks(void **state)
{
    (void)state;
    for (int hook = IN_PLAN; hook <= IN_EVICT; hook++) {
        run_case(&(struct hostile){ "own error", (enum hook)hook, own_error, KVL_ENOMEM,
                                    "the hook's own words", false });
        run_case(&(struct hostile){ "silent error", (enum hook)hook, own_error_silent, KVL_ENOMEM,
                                    NULL, false });
        run_case(&(struct hostile){ "unknown status", (enum hook)hook, status_unknown, KVL_EPOLICY,
                                    NULL, false });
        run_case(&(struct hostile){ "positive status", (enum hook)hook, status_positive,
                                    KVL_EPOLICY, NULL, false });
    }
}

/* ---- a device whose lists are wrong ---------------------------------------------------------------------- */

enum { LISTED = 4 };
static const int32_t *listed; /* what topk answers, [LISTED] */

static int topk_listed(const struct kvl_topk_args *a)
{
    for (int32_t row = 0; row < a->n_rows; row++)
        for (int32_t i = 0; i < a->k; i++) a->index[row * a->k + i] = listed[i];
    return KVL_OK;
}

static int keep_listed(const struct answer *a)
{
    return kvl_keep_top(a->keep, 1, some_scores(a), 40, LISTED);
}

/* What an operator chose is checked like what a hook names: the walk over a lane relies on it. */
static void test_lists_of_a_device(void **state)
{
    static const int32_t lists[][LISTED] = { { 0, 0, 0, 0 },     { 3, 2, 1, 0 },
                                             { 5, 1, 2, 3 },     { 0, 1, 1, 3 },
                                             { -1, 0, 1, 2 },    { 0, 1, 2, 1000 },
                                             { 0, 1000, 1, 39 }, { 38, 39, 39, 39 } };
    struct kvl_engine *right = rig.engine;
    struct kvl_ops ops = kvl_ops_cpu;
    const struct kvl_engine_desc desc = { .model = rig.model, .ops = &ops };
    (void)state;
    ops.topk = topk_listed;
    RIG_OK(&rig.err, kvl_engine_create(&desc, &rig.engine, &rig.err));
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        listed = lists[i];
        run_case(&(struct hostile){
            "a device's list", IN_EVICT, keep_listed, KVL_EPOLICY,
            "layer 0, position 60: kv head 1: 4 tokens to keep of 61 are chosen", false });
    }
    kvl_engine_destroy(rig.engine);
    rig.engine = right;
}

/* ---- objects that are wrong before anything runs --------------------------------------------------- */

static void expect_bad_object(const struct kvl_policy *p, const char *needle)
{
    struct kvl_err err = { 0 };
    struct kvl_planned *planned;
    assert_int_equal(kvl_policy_check(p, &err), KVL_EPOLICY);
    if (!strstr(err.msg, needle)) fail_msg("message \"%s\" lacks \"%s\"", err.msg, needle);
    err = (struct kvl_err){ 0 };
    assert_int_equal(kvl_planned_create(p, rig_shape(&rig), "", BUDGET, N_CTX, &planned, &err),
                     KVL_EPOLICY);
}

static void test_wrong_objects(void **state)
{
    struct kvl_policy p = hostile;
    (void)state;
    p.abi = KVL_POLICY_ABI + 1;
    expect_bad_object(&p, "ABI");
    p = hostile;
    p.size = 8;
    expect_bad_object(&p, "8");
    p = hostile;
    p.name = NULL;
    expect_bad_object(&p, "name");
    p.name = "";
    expect_bad_object(&p, "name");
    p.name = "a b\n";
    expect_bad_object(&p, "name");
    p = hostile;
    p.title = NULL;
    expect_bad_object(&p, "title");
    p = hostile;
    p.select = NULL;
    expect_bad_object(&p, "select");
    p = hostile;
    p.score = NULL;
    p.evict = NULL;
    expect_bad_object(&p, "evict");
    p = hostile;
    p.caps = KVL_CAP_EVICTS;
    p.evict = NULL;
    expect_bad_object(&p, "select");
    p = hostile;
    p.prefill = KVL_PREFILL_OWN + 1;
    expect_bad_object(&p, "prefill 3");
    p = hostile;
    p.caps |= 1u << 30;
    expect_bad_object(&p, "caps 0x40000");
}

static int open_rig(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = 2, .seed = 23 }, .no_raw_keys = true };
    (void)state;
    rig_open(&rig, &desc);
    rig_tokens(id, N_TOK, 24);
    return 0;
}

static int close_rig(void **state)
{
    struct kvl_store_stats st;
    (void)state;
    kvl_store_stats(kvl_engine_store(rig.engine), &st);
    bool clean = st.n_blocks == 0 && st.n_sequences == 0;
    rig_close(&rig);
    return clean ? 0 : 1;
}

int main(void)
{
    enum { N_CASES = sizeof cases / sizeof cases[0], N_OTHERS = 3 };
    static struct hostile copy[N_CASES];
    static struct CMUnitTest tests[N_CASES + N_OTHERS];
    memcpy(copy, cases, sizeof cases);
    for (size_t i = 0; i < N_CASES; i++)
        tests[i] = (struct CMUnitTest){ .name = copy[i].what,
                                        .test_func = test_case,
                                        .initial_state = &copy[i] };
    tests[N_CASES] = (struct CMUnitTest)cmocka_unit_test(test_statuses_of_hooks);
    tests[N_CASES + 1] = (struct CMUnitTest)cmocka_unit_test(test_wrong_objects);
    tests[N_CASES + 2] = (struct CMUnitTest)cmocka_unit_test(test_lists_of_a_device);
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
