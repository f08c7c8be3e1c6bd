/* outer(inner): what two policies that are one share and what each keeps to itself; budgets per lane;
 * views of selections; what is refused.  Small policies of our own say what they see. */
#include "conformance/rig.h"
#include "engine_impl.h"

enum { N_CTX = 90, N_STEPS = 5, N_TOK = N_CTX + N_STEPS + 2 };

static struct rig rig;
static int32_t id[N_TOK];

/* What hooks of the running policies saw; tests only. */
static struct {
    int32_t budget[2], context, opened[2], replayed[2], no_values[2], inner_selects;
    int32_t opts[2];
    char log[32]; /* hooks of layer 0 in their order: o/i open, A/a append, P/p prefilled ... */
} seen;

static void note(char c)
{
    size_t n = strlen(seen.log);
    if (n + 1 < sizeof seen.log && (n == 0 || seen.log[n - 1] != c)) seen.log[n] = c;
}

/* ---- two policies ------------------------------------------------------------------------------ */

enum { OUT = 0, IN = 1 };

struct part_opts {
    int32_t size, table;
    double other;
};

struct part_state {
    int32_t steps;
    char name[4];
};

static const struct kvl_opt part_options[] = {
    { .name = "size",
      .type = KVL_OPT_INT,
      .off = offsetof(struct part_opts, size),
      .def = "auto",
      .min = 1,
      .max = 99,
      .help = "of the table's rows",
      .alias = "width" },
    { .name = "other",
      .type = KVL_OPT_FLOAT,
      .off = offsetof(struct part_opts, other),
      .def = "0.5",
      .help = "not used" },
    { 0 },
};

static int part_plan(struct kvl_plan *plan, int i)
{
    struct part_opts *o = plan->opts;
    if (o->size == KVL_AUTO) o->size = 3 + i;
    seen.budget[i] = plan->budget_tok;
    seen.context = plan->context_tok;
    plan->state_bytes = sizeof(struct part_state);
    return kvl_plan_table(plan, &o->table, .unit = KVL_UNIT_PAGE, .unit_tok = 8,
                          .row_elems = o->size);
}

static int out_plan(struct kvl_plan *plan)
{
    assert_int_equal(plan->inner_budget_tok, plan->budget_tok);
    plan->inner_budget_tok = plan->budget_tok + 7;
    return part_plan(plan, OUT);
}

static int in_plan(struct kvl_plan *plan)
{
    plan->raw_keys = true;
    plan->replay = KVL_REPLAY_KEYS;
    return part_plan(plan, IN);
}

static int part_open(struct kvl_pctx *ctx, int i)
{
    struct part_state *s = ctx->state;
    assert_int_equal(s->steps, 0);
    strcpy(s->name, i == OUT ? "out" : "in");
    seen.opened[i]++;
    seen.opts[i] = ((const struct part_opts *)ctx->opts)->size;
    note(i == OUT ? 'O' : 'o');
    return KVL_OK;
}

static int out_open(struct kvl_pctx *ctx)
{
    return part_open(ctx, OUT);
}
static int in_open(struct kvl_pctx *ctx)
{
    return part_open(ctx, IN);
}

/* Row r of part i holds 1000 i + r in every column. */
static int part_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *v, int i)
{
    const struct part_opts *o = ctx->opts;
    struct kvl_rows rows;
    if (step->replay) seen.replayed[i] += step->n_tok;
    if (step->replay && !v) seen.no_values[i] = 1;
    if (!step->replay && !v) return kvl_fail(ctx->err, KVL_EINTERNAL, "no values of a new token");
    if (step->layer == 0) note(i == OUT ? 'A' : 'a');
    KVL_TRY(kvl_table_all(ctx, o->table, step->layer, &rows));
    for (int32_t r = step->pos / 8; r < rows.n_rows; r++)
        for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
            for (int32_t c = 0; c < o->size; c++)
                ((float *)kvl_table_row_out(&rows, h, r))[c] = (float)(1000 * i + r);
    return KVL_OK;
}

static int out_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                      const float *v)
{
    (void)k;
    return part_append(ctx, step, v, OUT);
}
static int in_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                     const float *v)
{
    (void)k;
    return part_append(ctx, step, v, IN);
}

static int out_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    (void)ctx;
    if (layer == 0) note('P');
    return KVL_OK;
}
static int in_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    (void)ctx;
    if (layer == 0) note('p');
    return KVL_OK;
}

/* State and table are the part's own. */
static int part_check(const struct kvl_pctx *ctx, const struct kvl_step *step, int i)
{
    const struct part_opts *o = ctx->opts;
    struct part_state *s = ctx->state;
    struct kvl_rows rows;
    if (strcmp(s->name, i == OUT ? "out" : "in") != 0)
        return kvl_fail(ctx->err, KVL_EINTERNAL, "the state of another part");
    if (step->layer == 0) s->steps++;
    if (s->steps != step->index + 1)
        return kvl_fail(ctx->err, KVL_EINTERNAL, "step %d, counted %d", step->index, s->steps);
    KVL_TRY(kvl_table_all(ctx, o->table, step->layer, &rows));
    for (int32_t r = 0; r < rows.n_rows; r++)
        if ((int32_t) * (const float *)kvl_table_row(&rows, 0, r) != 1000 * i + r)
            return kvl_fail(ctx->err, KVL_EINTERNAL, "part %d: row %d is %g", i, r,
                            (double)*(const float *)kvl_table_row(&rows, 0, r));
    return KVL_OK;
}

static int in_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                     struct kvl_sel *sel)
{
    int32_t pages[] = { 0, 2, 3, 7 };
    (void)q;
    seen.inner_selects++;
    if (ctx->budget_tok != 71) return kvl_fail(ctx->err, KVL_EINTERNAL, "budget");
    KVL_TRY(part_check(ctx, step, IN));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(kvl_sel_pages(sel, KVL_SCOPE_KV_HEAD, h, 8, pages + h, 2));
    return KVL_OK;
}

/* Every second token of what the inner one chose. */
static int out_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                      struct kvl_sel *sel)
{
    const int32_t *pos[8];
    int32_t n[8], half[64];
    if (ctx->budget_tok != 64) return kvl_fail(ctx->err, KVL_EINTERNAL, "budget");
    KVL_TRY(part_check(ctx, step, OUT));
    KVL_TRY(kvl_inner_select(ctx, step, q, sel));
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) KVL_TRY(kvl_sel_view(sel, h, &pos[h], &n[h]));
    KVL_TRY(kvl_sel_clear(sel));
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        for (int32_t i = 0; i < n[h]; i += 2) half[i / 2] = pos[h][i];
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_Q_HEAD, h, half, (n[h] + 1) / 2));
    }
    return KVL_OK;
}

static const struct kvl_policy base = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 3,
    .opts = part_options,
    .opts_size = sizeof(struct part_opts),
};

static struct kvl_policy outer_policy(void)
{
    struct kvl_policy p = base;
    p.name = "out";
    p.inner = "in:other=0.25";
    p.caps = KVL_CAP_SELECTS;
    p.plan = out_plan;
    p.open = out_open;
    p.append = out_append;
    p.prefilled = out_prefilled;
    p.select = out_select;
    return p;
}

static struct kvl_policy inner_policy(void)
{
    struct kvl_policy p = base;
    p.name = "in";
    p.caps = KVL_CAP_SELECTS | KVL_CAP_SAMPLES | KVL_CAP_BOUND;
    p.plan = in_plan;
    p.open = in_open;
    p.append = in_append;
    p.prefilled = in_prefilled;
    p.select = in_select;
    return p;
}

static const struct kvl_policy *composed_of(const struct kvl_policy *outer,
                                            const struct kvl_policy *inner)
{
    const struct kvl_policy *p;
    RIG_OK(&rig.err, kvl_policy_compose(outer, inner, &p, &rig.err));
    return p;
}

/* ---- one object ---------------------------------------------------------------------------------- */

static void test_it_describes_itself(void **state)
{
    struct kvl_policy o = outer_policy(), i = inner_policy();
    const struct kvl_policy *p = composed_of(&o, &i), *a, *b;
    (void)state;
    assert_string_equal(p->name, "out(in)");
    assert_int_equal(p->version, 3003);
    assert_int_equal(p->caps, KVL_CAP_SELECTS | KVL_CAP_SAMPLES);
    assert_true(kvl_policy_parts(p, &a, &b) && a == &o && b == &i);
    assert_false(kvl_policy_parts(&o, &a, &b));
    RIG_OK(&rig.err, kvl_policy_check(p, &rig.err));
    static const char *const names[] = { "size", "other", "in.size", "in.other" };
    for (int k = 0; k < 4; k++) assert_string_equal(p->opts[k].name, names[k]);
    assert_null(p->opts[4].name);
    assert_string_equal(p->opts[1].def, "0.5");
    assert_string_equal(p->opts[3].def, "0.25"); /* the outer one's wish */
    assert_string_equal(p->opts[2].alias, "in.width");
    kvl_policy_decompose(p);
    kvl_policy_decompose(NULL);
}

static void test_each_has_its_own(void **state)
{
    struct kvl_policy o = outer_policy(), i = inner_policy();
    const struct kvl_policy *p = composed_of(&o, &i);
    float *logits = rig_logits(&rig, N_STEPS);
    (void)state;
    memset(&seen, 0, sizeof seen);
    struct rig_run run = {
        .policy = p, .options = "in.width=9", .budget = 64, .id = id, .n_ctx = N_CTX
    };
    struct rig_session rs = rig_start(&rig, &run);
    assert_string_equal(kvl_planned_options(rs.planned),
                        "size=3,other=0.5,in.size=9,in.other=0.25");
    assert_true(kvl_planned_raw_keys(rs.planned));
    assert_int_equal(seen.budget[OUT], 64);
    assert_int_equal(seen.budget[IN], 71);
    assert_int_equal(seen.context, N_CTX);
    assert_int_equal(seen.opts[OUT], 3);
    assert_int_equal(seen.opts[IN], 9);
    assert_string_equal(seen.log, "oOaApP");
    assert_int_equal(seen.replayed[OUT], N_CTX * 2);
    assert_int_equal(seen.replayed[IN], N_CTX * 2);
    assert_int_equal(seen.no_values[OUT], 0);
    assert_int_equal(seen.no_values[IN], 1); /* asked for keys alone */
    rig_decode(&rig, &rs, id + N_CTX, 2, logits);
    struct rig_session fork = rig_fork(&rig, &rs);
    rig_decode(&rig, &fork, id + N_CTX + 2, 2, logits); /* counts its own steps from here */
    rig_decode(&rig, &rs, id + N_CTX + 3, 3, logits);
    rig_end(&fork);
    rig_end(&rs);
    assert_int_equal(seen.opened[OUT], 1);
    kvl_free(logits);
    kvl_policy_decompose(p);
}

static int failing_open(struct kvl_pctx *ctx)
{
    return kvl_fail(ctx->err, KVL_EINVAL, "will not open");
}

/* The inner one opens first: the outer one is not asked. */
static void test_inner_opens_first(void **state)
{
    struct kvl_policy o = outer_policy(), i = inner_policy();
    struct rig_session rs = { 0 };
    (void)state;
    i.open = failing_open;
    const struct kvl_policy *p = composed_of(&o, &i);
    memset(&seen, 0, sizeof seen);
    RIG_OK(&rig.err, kvl_planned_create(p, rig_shape(&rig), "", 64, N_CTX, &rs.planned, &rig.err));
    RIG_OK(&rig.err, kvl_session_create(rig.engine, &rs.s, &rig.err));
    RIG_OK(&rig.err, kvl_session_prefill(rs.s, id, N_CTX, NULL, true, &rig.err));
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_session_attach(rs.s, rs.planned, 1, KVL_EXEC_REAL, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "out(in)"));
    assert_non_null(strstr(err.msg, "will not open"));
    rig_end(&rs);
    assert_int_equal(seen.opened[OUT], 0);
    kvl_policy_decompose(p);
}

/* ---- selections ------------------------------------------------------------------------------------ */

/* Pages 0 and 2 of head 0, 2 and 3 of head 1; every second position of them, and the current one. */
static void test_the_outer_one_prunes(void **state)
{
    struct kvl_policy o = outer_policy(), i = inner_policy();
    const struct kvl_policy *p = composed_of(&o, &i);
    float *logits = rig_logits(&rig, 1);
    (void)state;
    struct rig_run run = { .policy = p, .options = "", .budget = 64, .id = id, .n_ctx = N_CTX };
    struct rig_session rs = rig_start(&rig, &run);
    const uint8_t *hit = rig_decode_probed(&rig, &rs, id[N_CTX], logits);
    for (int32_t lane = 0; lane < 4; lane++) {
        static const int32_t first[2][2] = { { 0, 16 }, { 16, 24 } };
        for (int32_t t = 0; t <= N_CTX; t++) {
            const int32_t *f = first[lane % 2];
            bool in = (t >= f[0] && t < f[0] + 8) || (t >= f[1] && t < f[1] + 8);
            bool want = t == N_CTX || (in && t % 2 == 0);
            assert_int_equal(hit[lane * (N_CTX + 1) + t] != 0, want);
        }
    }
    kvl_free(logits);
    rig_end(&rs);
    kvl_policy_decompose(p);
}

static int dense_first(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    (void)ctx;
    return step->layer == 0 ? KVL_DENSE : KVL_SELECT;
}

static int dense_second(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    (void)ctx;
    return step->layer == 1 ? KVL_DENSE : KVL_SELECT;
}

static int first_page(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                      struct kvl_sel *sel)
{
    (void)ctx;
    (void)step;
    (void)q;
    return kvl_sel_pages(sel, KVL_SCOPE_LAYER, 0, 8, (int32_t[]){ 0 }, 1);
}

static int relay_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    return kvl_inner_select(ctx, step, q, sel);
}

/* A layer is dense where either says so. */
static void test_dense_layers_of_both(void **state)
{
    (void)state;
    for (int says = 0; says < 4; says++) {
        struct kvl_policy o = outer_policy(), i = inner_policy();
        o.select = relay_select;
        i.select = first_page;
        o.schedule = says & 1 ? dense_first : NULL;
        i.schedule = says & 2 ? dense_second : NULL;
        const struct kvl_policy *p = composed_of(&o, &i);
        struct rig_run run = { .policy = p, .options = "", .budget = 64, .id = id, .n_ctx = N_CTX };
        struct rig_session rs = rig_start(&rig, &run);
        float *logits = rig_logits(&rig, 1);
        rig_decode(&rig, &rs, id + N_CTX, 1, logits);
        int n_dense = 2 * ((says & 1) + (says >> 1)); /* two kv heads */
        assert_int_equal(kvl_session_counters(rs.s)->dense_lanes, n_dense);
        assert_int_equal(kvl_session_counters(rs.s)->attended_lanes, 4 - n_dense);
        kvl_free(logits);
        rig_end(&rs);
        kvl_policy_decompose(p);
    }
}

static int sharing_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t pages[] = { 0, 2, 3, 7 };
    (void)step;
    (void)q;
    seen.inner_selects++;
    KVL_TRY(kvl_sel_pages(sel, KVL_SCOPE_LAYER, 0, 8, pages, 4));
    return kvl_sel_share(sel, ctx->shape->n_layers - 1, 2);
}

/* What the inner one shares is served to the outer one, which prunes it anew everywhere. */
static void test_shared_selections_are_pruned(void **state)
{
    struct kvl_policy o = outer_policy(), i = inner_policy();
    (void)state;
    i.select = sharing_select;
    const struct kvl_policy *p = composed_of(&o, &i);
    struct rig_run run = {
        .policy = p, .options = "", .budget = 64, .id = id, .n_ctx = N_CTX, .n_steps = 4
    };
    seen.inner_selects = 0;
    struct rig_session rs = rig_start(&rig, &run);
    float *logits = rig_logits(&rig, 4);
    kvl_session_reset_counters(rs.s);
    rig_decode(&rig, &rs, id + N_CTX, 4, logits);
    assert_int_equal(seen.inner_selects, 2); /* of 4 steps in 2 layers */
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    assert_int_equal(c->n_select, 8);
    assert_int_equal(c->attended_tok, 4 * 2 * 2 * (16 + 1));
    run.exec = KVL_EXEC_MASKED;
    float *masked = rig_run(&rig, &run);
    rig_expect_near(&rig, logits, masked, 4, 1e-4, "pruned");
    kvl_free(logits);
    kvl_free(masked);
    rig_end(&rs);
    kvl_policy_decompose(p);
}

/* A selection under construction, seen head by head; run by one policy that checks itself. */
static int viewing_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_sel *sel)
{
    const int32_t *pos;
    int32_t n;
    (void)q;
    KVL_TRY(kvl_sel_view(sel, 0, &pos, &n)); /* everything but the current token */
    if (n != step->pos || pos[0] != 0 || pos[n - 1] != step->pos - 1)
        return kvl_fail(ctx->err, KVL_EINTERNAL, "everything is %d", n);
    KVL_TRY(kvl_sel_pages(sel, KVL_SCOPE_LAYER, 0, 16, (int32_t[]){ 1, step->pos / 16 }, 2));
    KVL_TRY(kvl_sel_segment(sel));
    for (int32_t h = 0; h < ctx->shape->n_heads; h++)
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_Q_HEAD, h, (int32_t[]){ h, 40 + h }, 2));
    KVL_TRY(kvl_sel_view(sel, 3, &pos, &n));
    int32_t tail = step->pos % 16 + 1; /* the newest page holds the current token: named */
    if (n != 2 + 16 + tail || pos[0] != 3 || pos[1] != 16 || pos[17] != 43 ||
        pos[n - 1] != step->pos)
        return kvl_fail(ctx->err, KVL_EINTERNAL, "head 3 has %d", n);
    KVL_TRY(kvl_sel_clear(sel));
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, 4, 9));
    KVL_TRY(kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, 20, step->pos));
    KVL_TRY(kvl_sel_view(sel, 1, &pos, &n));
    if (n != 5 + step->pos - 20 || pos[4] != 8 || pos[5] != 20 || pos[n - 1] != step->pos - 1)
        return kvl_fail(ctx->err, KVL_EINTERNAL, "ranges have %d", n);
    KVL_TRY(kvl_sel_clear(sel));
    return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, (int32_t[]){ 5 }, 1);
}

/* Kinds of selections that are more than positions. */
static int more_than_tokens; /* which one; tests only */

static int rich_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    static const float zero[512] = { 0 };
    const int32_t *pos;
    int32_t n;
    (void)step;
    (void)q;
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, (int32_t[]){ 5 }, 1));
    if (more_than_tokens == 0)
        KVL_TRY(kvl_sel_log_weights(sel, KVL_SCOPE_LAYER, 0, (float[]){ -1 }, 1));
    if (more_than_tokens == 1) KVL_TRY(kvl_sel_residual(sel, zero, zero));
    for (int32_t h = 0; more_than_tokens == 2 && h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(kvl_sel_pseudo(sel, h, zero, zero, 1));
    return kvl_sel_view(sel, 0, &pos, &n);
}

static int cleared_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)ctx;
    (void)step;
    (void)q;
    return kvl_sel_clear(sel);
}

static int far_view_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    const int32_t *pos;
    int32_t n;
    (void)step;
    (void)q;
    return kvl_sel_view(sel, ctx->shape->n_heads, &pos, &n);
}

static int lonely_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    return kvl_inner_select(ctx, step, q, sel);
}

typedef int (*select_function)(struct kvl_pctx *ctx, const struct kvl_step *step,
                               const struct kvl_query *q, struct kvl_sel *sel);

static void expect_select(select_function select, const char *refused)
{
    struct kvl_policy p = base;
    p.name = "viewer";
    p.caps = KVL_CAP_SELECTS;
    p.select = select;
    struct rig_run run = { .policy = &p, .options = "", .budget = 64, .id = id, .n_ctx = N_CTX };
    struct rig_session rs = rig_start(&rig, &run);
    float *logits = rig_logits(&rig, 1);
    struct kvl_err err = { 0 };
    int rc = kvl_session_decode(&rs.s, 1, &id[N_CTX], logits, &err);
    if (!refused) RIG_OK(&err, rc);
    if (refused && (rc == KVL_OK || !strstr(err.msg, refused)))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, refused);
    if (!refused) assert_int_equal(kvl_session_counters(rs.s)->attended_tok, 2 * 4);
    kvl_free(logits);
    rig_end(&rs);
}

static void test_views(void **state)
{
    (void)state;
    expect_select(viewing_select, NULL);
    for (more_than_tokens = 0; more_than_tokens < 3; more_than_tokens++)
        expect_select(rich_select, "is more than a list of tokens");
    expect_select(cleared_select, "names no list");
    expect_select(far_view_select, "want 0 to 3");
    expect_select(lonely_select, "has none");
}

/* ---- budgets per lane ------------------------------------------------------------------------------- */

static struct {
    int32_t keep, lane[2], first, last;
} wish;

static int wishing_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    (void)layer;
    assert_int_equal(scores->keep_lane[0], -1);
    scores->keep_tok = wish.keep;
    scores->protect_first = wish.first;
    scores->protect_last = wish.last;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        scores->keep_lane[h] = wish.lane[h];
        for (int32_t i = 0; i < scores->n_tok; i++) /* the older, the better */
            scores->score[h * scores->n_tok + i] = (float)-i;
    }
    return KVL_OK;
}

static struct kvl_policy wishing_policy(void)
{
    struct kvl_policy p = base;
    p.name = "wishing";
    p.caps = KVL_CAP_EVICTS | KVL_CAP_RAGGED;
    p.score = wishing_score;
    return p;
}

/* Lane h of every layer keeps want[h] tokens: the protected ones and the oldest. */
static void expect_lanes(int32_t want_0, int32_t want_1)
{
    struct kvl_policy p = wishing_policy();
    const int32_t want[] = { want_0, want_1 };
    for (int exec = 0; exec < 2; exec++) {
        struct rig_run run = { .policy = &p,
                               .options = "",
                               .budget = 64,
                               .id = id,
                               .n_ctx = N_CTX,
                               .n_steps = 3,
                               .exec = exec ? KVL_EXEC_MASKED : KVL_EXEC_REAL };
        struct rig_session rs = rig_start(&rig, &run);
        float *logits = rig_logits(&rig, 1);
        const uint8_t *hit = rig_decode_probed(&rig, &rs, id[N_CTX], logits);
        for (int32_t lane = 0; lane < 4; lane++)
            for (int32_t t = 0; t < N_CTX; t++) {
                int32_t n = want[lane % 2];
                bool in = t < n - wish.last || t >= N_CTX - wish.last;
                assert_int_equal(hit[lane * (N_CTX + 1) + t] != 0, in);
            }
        int32_t evicted = 2 * (2 * N_CTX - want_0 - want_1);
        assert_int_equal(kvl_session_counters(rs.s)->n_evicted, evicted);
        kvl_free(logits);
        rig_end(&rs);
    }
}

static void test_lanes_keep_different_numbers(void **state)
{
    (void)state;
    memset(&wish, 0, sizeof wish);
    wish.keep = 20;
    wish.last = 4;
    wish.lane[0] = wish.lane[1] = -1;
    expect_lanes(20, 20);
    wish.lane[1] = 31;
    expect_lanes(20, 31);
    wish.lane[0] = 4;
    expect_lanes(4, 31);
    wish.lane[1] = N_CTX;
    expect_lanes(4, N_CTX);
    wish.lane[1] = N_CTX + 9;
    expect_lanes(4, N_CTX);
    wish.last = 0;
    wish.lane[0] = 0;
    expect_lanes(0, N_CTX);
}

static void test_lane_budgets_are_checked(void **state)
{
    static const struct {
        int32_t lane, first;
    } rows[] = { { -2, 0 }, { 3, 5 } };
    struct kvl_policy p = wishing_policy();
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct rig_session rs = { 0 };
        struct kvl_err err = { 0 };
        memset(&wish, 0, sizeof wish);
        wish.keep = 20;
        wish.lane[0] = -1;
        wish.lane[1] = rows[i].lane;
        wish.first = rows[i].first;
        RIG_OK(&rig.err,
               kvl_planned_create(&p, rig_shape(&rig), "", 64, N_CTX, &rs.planned, &rig.err));
        RIG_OK(&rig.err, kvl_session_create(rig.engine, &rs.s, &rig.err));
        RIG_OK(&rig.err, kvl_session_prefill(rs.s, id, N_CTX, NULL, true, &rig.err));
        assert_int_equal(kvl_session_attach(rs.s, rs.planned, 1, KVL_EXEC_REAL, &err), KVL_EPOLICY);
        assert_non_null(strstr(err.msg, "kv head 1 keeps"));
        rig_end(&rs);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

static void refuse(const struct kvl_policy *outer, const struct kvl_policy *inner, const char *says)
{
    const struct kvl_policy *p = NULL;
    struct kvl_err err = { 0 };
    assert_int_not_equal(kvl_policy_compose(outer, inner, &p, &err), KVL_OK);
    assert_null(p);
    if (!strstr(err.msg, says)) fail_msg("\"%s\" does not say \"%s\"", err.msg, says);
}

static int scoring(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    bool evicts;
    return kvl_inner_even_score(ctx, layer, scores, &evicts);
}

static int evicting(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    (void)ctx;
    (void)step;
    (void)keep;
    return KVL_OK;
}

static int observing(struct kvl_pctx *ctx, const struct kvl_step *step, const float *const *probs,
                     const int32_t *n, const float *lse)
{
    (void)ctx;
    (void)step;
    (void)probs;
    (void)n;
    (void)lse;
    return KVL_OK;
}

static void test_what_does_not_go_together(void **state)
{
    struct kvl_policy o = outer_policy(), i = inner_policy(), w = wishing_policy();
    struct kvl_policy scores = outer_policy();
    (void)state;
    refuse(&i, &w, "in wraps no other policy");
    refuse(&o, &o, "one level");
    const struct kvl_policy *p = composed_of(&o, &i);
    refuse(&o, p, "one level");
    kvl_policy_decompose(p);
    refuse(&o, &w, "out works on selections, wishing makes none");
    scores.name = "scores";
    scores.caps = KVL_CAP_EVICTS;
    scores.select = NULL;
    scores.score = scoring;
    refuse(&scores, &i, "scores works on scores, in gives none");
    refuse(&scores, &w, "wishing gives every lane a budget of its own");
    w.evict = evicting;
    refuse(&scores, &w, "wishing evicts at every step");
    i.caps |= KVL_CAP_ESTIMATES;
    refuse(&o, &i, "what in selects is more than a list of tokens");
    i.caps &= ~(uint32_t)KVL_CAP_ESTIMATES;
    i.observe = observing;
    refuse(&o, &i, "looks at the weights of what it selected");
    o.inner = NULL;
    refuse(&o, &i, "out wraps no other policy");
}

/* A wrapper alone, a budget that leaves the inner one too little, an inner one that keeps everything. */
static void test_what_plan_and_score_refuse(void **state)
{
    struct kvl_policy o = outer_policy(), w = wishing_policy(), scores = outer_policy();
    struct rig_session rs = { 0 };
    struct kvl_err err = { 0 };
    (void)state;
    w.caps = KVL_CAP_EVICTS;
    assert_int_equal(kvl_planned_create(&o, rig_shape(&rig), "", 64, N_CTX, &rs.planned, &err),
                     KVL_EINVAL);
    assert_non_null(strstr(err.msg, "out wraps another policy: want out(in:other=0.25)"));
    scores.caps = KVL_CAP_EVICTS;
    scores.select = NULL;
    scores.score = scoring;
    const struct kvl_policy *p = composed_of(&scores, &w);
    memset(&wish, 0, sizeof wish);
    wish.keep = N_CTX;
    wish.lane[0] = wish.lane[1] = -1;
    RIG_OK(&rig.err, kvl_planned_create(p, rig_shape(&rig), "", 64, N_CTX, &rs.planned, &rig.err));
    RIG_OK(&rig.err, kvl_session_create(rig.engine, &rs.s, &rig.err));
    RIG_OK(&rig.err, kvl_session_prefill(rs.s, id, N_CTX, NULL, true, &rig.err));
    kvl_err_clear(&err);
    assert_int_equal(kvl_session_attach(rs.s, rs.planned, 1, KVL_EXEC_REAL, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "wishing keeps all 90 tokens at budget 71"));
    rig_end(&rs);
    kvl_policy_decompose(p);
}

static int open_rig(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = 2, .seed = 41 } };
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
        cmocka_unit_test(test_it_describes_itself),
        cmocka_unit_test(test_each_has_its_own),
        cmocka_unit_test(test_inner_opens_first),
        cmocka_unit_test(test_the_outer_one_prunes),
        cmocka_unit_test(test_dense_layers_of_both),
        cmocka_unit_test(test_shared_selections_are_pruned),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_lanes_keep_different_numbers),
        cmocka_unit_test(test_lane_budgets_are_checked),
        cmocka_unit_test(test_what_does_not_go_together),
        cmocka_unit_test(test_what_plan_and_score_refuse),
    };
    return cmocka_run_group_tests(tests, open_rig, close_rig);
}
