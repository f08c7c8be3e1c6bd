/* Selections with weights and what stands for the rest: log-weights per query head over several segments,
 * residuals; and tables of integers, of one row per lane, of stored keys of live tokens. */
#include "conformance/rig.h"
#include "engine_impl.h"

enum { N_LAYERS = 3, N_HEADS = 4, N_KV = 2, DIM = 16, N_CTX = 90, N_STEPS = 4, N_TOK = N_CTX + 40 };

static struct rig rig;
static int32_t id[N_TOK];

typedef int (*select_function)(struct kvl_pctx *ctx, const struct kvl_step *step,
                               const struct kvl_query *q, struct kvl_sel *sel);

static const struct kvl_policy base = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "weighted",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
    .caps = KVL_CAP_SELECTS,
};

static float *run_policy(const struct kvl_policy *p, enum kvl_exec exec)
{
    struct rig_run run = {
        .policy = p, .id = id, .n_ctx = N_CTX, .n_steps = N_STEPS, .exec = exec, .budget = 40
    };
    return rig_run(&rig, &run);
}

static float *run_select(select_function select, enum kvl_exec exec)
{
    struct kvl_policy p = base;
    p.select = select;
    return run_policy(&p, exec);
}

static void expect_alike(select_function a, enum kvl_exec exec_a, select_function b,
                         enum kvl_exec exec_b, const char *what)
{
    float *la = run_select(a, exec_a), *lb = run_select(b, exec_b);
    rig_expect_near(&rig, la, lb, N_STEPS, 1e-4, what);
    kvl_free(la);
    kvl_free(lb);
}

static double distance(select_function a, select_function b)
{
    float *la = run_select(a, KVL_EXEC_REAL), *lb = run_select(b, KVL_EXEC_REAL);
    double d = rig_distance(&rig, la, lb, N_STEPS);
    kvl_free(la);
    kvl_free(lb);
    return d;
}

/* ---- log-weights ----------------------------------------------------------------------------- */

/* Weights of query head h: far apart, so that a mistake shows. */
static float weight_of(int32_t h, int32_t pos)
{
    return (float)((pos * 7 + h * 3) % 11) * 0.4f - 2.0f;
}

static int weigh(struct kvl_sel *sel, int32_t h, const int32_t *pos, int32_t n)
{
    float weight[N_TOK];
    for (int32_t i = 0; i < n; i++) weight[i] = weight_of(h, pos[i]);
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_Q_HEAD, h, pos, n));
    return kvl_sel_log_weights(sel, KVL_SCOPE_Q_HEAD, h, weight, n);
}

static int weighted_in_one(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)ctx;
    (void)step;
    (void)q;
    for (int32_t h = 0; h < N_HEADS; h++) {
        int32_t pos[] = { 2 + h, 9, 20, 21, 22, 40 + h, 60, 61, 80 };
        KVL_TRY(weigh(sel, h, pos, 9));
    }
    return KVL_OK;
}

/* The same in three segments, one of them empty for some heads; the current token joins the first. */
static int weighted_in_segments(struct kvl_pctx *ctx, const struct kvl_step *step,
                                const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)ctx;
    (void)step;
    (void)q;
    for (int32_t h = 0; h < N_HEADS; h++) KVL_TRY(weigh(sel, h, (int32_t[]){ 20, 21, 22, 80 }, 4));
    KVL_TRY(kvl_sel_segment(sel));
    for (int32_t h = 0; h < N_HEADS; h++)
        KVL_TRY(weigh(sel, h, (int32_t[]){ 2 + h, 9, 40 + h, 60, 61 }, h % 2 ? 5 : 0));
    KVL_TRY(kvl_sel_segment(sel));
    for (int32_t h = 0; h < N_HEADS; h++)
        KVL_TRY(weigh(sel, h, (int32_t[]){ 2 + h, 9, 40 + h, 60, 61 }, h % 2 ? 0 : 5));
    return KVL_OK;
}

/* Said once for all layers and two steps. */
static int weighted_and_shared(struct kvl_pctx *ctx, const struct kvl_step *step,
                               const struct kvl_query *q, struct kvl_sel *sel)
{
    KVL_TRY(weighted_in_one(ctx, step, q, sel));
    return kvl_sel_share(sel, N_LAYERS - 1, 2);
}

static int unweighted(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                      struct kvl_sel *sel)
{
    (void)ctx;
    (void)step;
    (void)q;
    for (int32_t h = 0; h < N_HEADS; h++) {
        int32_t pos[] = { 2 + h, 9, 20, 21, 22, 40 + h, 60, 61, 80 };
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_Q_HEAD, h, pos, 9));
    }
    return KVL_OK;
}

static void test_log_weights_of_segments(void **state)
{
    (void)state;
    expect_alike(weighted_in_one, KVL_EXEC_REAL, weighted_in_segments, KVL_EXEC_REAL, "segments");
    expect_alike(weighted_in_one, KVL_EXEC_REAL, weighted_in_one, KVL_EXEC_MASKED, "masked");
    expect_alike(weighted_in_one, KVL_EXEC_REAL, weighted_in_segments, KVL_EXEC_MASKED,
                 "segments, masked");
    expect_alike(weighted_in_one, KVL_EXEC_REAL, weighted_and_shared, KVL_EXEC_REAL, "shared");
    assert_true(distance(weighted_in_one, unweighted) > 1e-2);
}

/* Lists per query head of a lane with holes: slots are no positions there. */
static int keep_most(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    (void)ctx;
    if (!step->replay) return KVL_OK;
    KVL_TRY(kvl_keep_range(keep, -1, 2, 10));
    KVL_TRY(kvl_keep_range(keep, -1, 20, 30));
    return kvl_keep_range(keep, -1, 35, N_CTX);
}

static void test_log_weights_after_eviction(void **state)
{
    struct kvl_policy p = base;
    (void)state;
    p.caps |= KVL_CAP_EVICTS;
    p.evict = keep_most;
    p.select = weighted_in_segments;
    float *real = run_policy(&p, KVL_EXEC_REAL), *masked = run_policy(&p, KVL_EXEC_MASKED);
    rig_expect_near(&rig, real, masked, N_STEPS, 1e-4, "evicted, masked");
    kvl_free(real);
    kvl_free(masked);
}

/* ---- residuals ------------------------------------------------------------------------------- */

static float alphas[N_HEADS], means[N_KV * DIM];

static int with_residual(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    KVL_TRY(unweighted(ctx, step, q, sel));
    return kvl_sel_residual(sel, alphas, means);
}

static int residual_of_segments(struct kvl_pctx *ctx, const struct kvl_step *step,
                                const struct kvl_query *q, struct kvl_sel *sel)
{
    KVL_TRY(kvl_sel_residual(sel, alphas, means));
    return weighted_in_segments(ctx, step, q, sel);
}

static int residual_of_all(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)ctx;
    (void)step;
    (void)q;
    return kvl_sel_residual(sel, alphas, means);
}

/* out, as it was told: alpha times the attention over what was read and the rest of the mean. */
static int check_residual(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    int32_t *n = user;
    assert_memory_equal(t->alpha, alphas, sizeof alphas);
    assert_memory_equal(t->mean, means, sizeof means);
    for (int32_t h = 0; h < N_HEADS; h++) {
        double out[DIM] = { 0 }, sum = 0;
        int32_t kv = h / (N_HEADS / N_KV);
        for (int32_t i = 0; i < t->n_read[h]; i++) {
            float k[DIM], v[DIM];
            const struct kvl_seq *seq = kvl_session_seq(t->session);
            RIG_OK(err, kvl_seq_read(seq, t->layer, kv, KVL_PART_K, t->read[h][i], 1, k, err));
            RIG_OK(err, kvl_seq_read(seq, t->layer, kv, KVL_PART_V, t->read[h][i], 1, v, err));
            double dot = 0;
            for (int32_t c = 0; c < DIM; c++) dot += (double)t->q[h * DIM + c] * (double)k[c];
            double w = exp(dot / 4 + (t->log_weight[h] ? (double)t->log_weight[h][i] : 0));
            sum += w;
            for (int32_t c = 0; c < DIM; c++) out[c] += w * (double)v[c];
        }
        double a = (double)alphas[h];
        for (int32_t c = 0; c < DIM; c++) {
            double want = a * out[c] / sum + (1 - a) * (double)means[kv * DIM + c];
            double got = (double)t->out[h * DIM + c];
            if (!(fabs(got - want) < 1e-4)) fail_msg("head %d: %g, want %g", h, got, want);
        }
    }
    ++*n;
    return KVL_OK;
}

static void tapped(select_function select, enum kvl_exec exec)
{
    struct kvl_policy p = base;
    int32_t n = 0;
    p.select = select;
    struct rig_run run = { .policy = &p, .id = id, .n_ctx = N_CTX, .budget = 40, .exec = exec };
    struct rig_session rs = rig_start(&rig, &run);
    float *logits = rig_logits(&rig, N_STEPS);
    const struct kvl_tap tap = { .user = &n, .read = check_residual };
    kvl_session_tap(rs.s, &tap);
    rig_decode(&rig, &rs, id + N_CTX, N_STEPS, logits);
    assert_int_equal(n, N_STEPS * N_LAYERS);
    kvl_free(logits);
    rig_end(&rs);
}

static void test_residuals(void **state)
{
    static const select_function all[] = { with_residual, residual_of_segments, residual_of_all };
    (void)state;
    for (int32_t i = 0; i < N_KV * DIM; i++) means[i] = (float)(i % 5) - 1.5f;
    for (int32_t h = 0; h < N_HEADS; h++) alphas[h] = (float)h / (N_HEADS - 1);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        tapped(all[i], KVL_EXEC_REAL);
        tapped(all[i], KVL_EXEC_MASKED);
        expect_alike(all[i], KVL_EXEC_REAL, all[i], KVL_EXEC_MASKED, "a residual, masked");
    }
    assert_true(distance(with_residual, unweighted) > 1e-2);
    for (int32_t h = 0; h < N_HEADS; h++) alphas[h] = 1;
    float *a = run_select(with_residual, KVL_EXEC_REAL), *b = run_select(unweighted, KVL_EXEC_REAL);
    rig_expect_same(&rig, b, a, N_STEPS, "a residual of nothing");
    kvl_free(a);
    kvl_free(b);
}

static int residual_twice(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_sel *sel)
{
    KVL_TRY(with_residual(ctx, step, q, sel));
    return kvl_sel_residual(sel, alphas, means);
}

static int residual_shared(struct kvl_pctx *ctx, const struct kvl_step *step,
                           const struct kvl_query *q, struct kvl_sel *sel)
{
    KVL_TRY(with_residual(ctx, step, q, sel));
    return kvl_sel_share(sel, step->layer, 2);
}

static void expect_refused(select_function select, const char *needle)
{
    struct kvl_policy p = base;
    struct kvl_err err = { 0 };
    p.select = select;
    struct rig_run run = { .policy = &p, .id = id, .n_ctx = N_CTX, .budget = 40 };
    struct rig_session rs = rig_start(&rig, &run);
    float *logits = rig_logits(&rig, 1);
    assert_int_equal(kvl_session_decode(&rs.s, 1, id + N_CTX, logits, &err), KVL_EPOLICY);
    if (!strstr(err.msg, needle)) fail_msg("message \"%s\" lacks \"%s\"", err.msg, needle);
    kvl_free(logits);
    rig_end(&rs);
}

static void test_residuals_that_are_refused(void **state)
{
    (void)state;
    expect_refused(residual_twice, "a residual is given twice");
    expect_refused(residual_shared, "a residual, which is this query's alone, is shared");
    alphas[2] = 1.5f;
    expect_refused(with_residual, "alpha 2 is 1.5, want 0 to 1");
    alphas[2] = NAN;
    expect_refused(with_residual, "alpha 2 is");
    alphas[2] = 1;
    means[7] = INFINITY;
    expect_refused(with_residual, "value 7 is inf");
    means[7] = 0;
}

/* ---- tables ---------------------------------------------------------------------------------- */

enum { LONG = (1 << 20) + 5, PAGE = 8 };
enum { LANE_I32, LAYER_U8, PAGE_I32, LIVE_KEY, N_TABLES };

static int table_plan(struct kvl_plan *plan)
{
    const uint8_t one[N_LAYERS] = { 0, 1, 0 };
    const struct kvl_table_desc desc[N_TABLES] = {
        { .unit = KVL_UNIT_LANE,
          .unit_tok = 1,
          .row_elems = LONG,
          .elem = KVL_ELEM_I32,
          .layers = one },
        { .unit = KVL_UNIT_LANE,
          .unit_tok = 1,
          .row_elems = 33,
          .elem = KVL_ELEM_U8,
          .per_layer = true },
        { .unit = KVL_UNIT_PAGE, .unit_tok = PAGE, .row_elems = 3, .elem = KVL_ELEM_I32 },
        { .unit = KVL_UNIT_LIVE, .unit_tok = 1, .row_elems = 2, .elem = KVL_ELEM_KEY },
    };
    for (int32_t i = 0; i < N_TABLES; i++) {
        int32_t handle = -1;
        KVL_TRY(kvl_plan_table_desc(plan, &desc[i], &handle));
        if (handle != i) return kvl_fail(plan->err, KVL_EINTERNAL, "handle %d", handle);
    }
    return KVL_OK;
}

static int32_t mark(int32_t layer, int32_t head, int32_t i)
{
    return layer * 10000 + head * 1000 + i;
}

/* Once: rows of lanes. */
static int table_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    struct kvl_rows rows;
    KVL_TRY(kvl_table_write(ctx, LAYER_U8, layer, 0, &rows));
    if (rows.elem != KVL_ELEM_U8 || rows.n_rows != 1 || rows.part[0].head_bytes != 0)
        return kvl_fail(ctx->err, KVL_EINTERNAL, "another table than was planned");
    uint8_t *byte = kvl_table_row_out(&rows, 0, 0);
    for (int32_t i = 0; i < 33; i++) byte[i] = (uint8_t)(layer * 50 + i);
    if (layer != 1) return KVL_OK;
    KVL_TRY(kvl_table_write(ctx, LANE_I32, layer, 0, &rows));
    if (rows.elem != KVL_ELEM_I32 || rows.part[0].head_bytes != LONG * sizeof(int32_t))
        return kvl_fail(ctx->err, KVL_EINTERNAL, "another table than was planned");
    for (int32_t h = 0; h < N_KV; h++)
        for (int32_t i = 0; i < LONG; i++)
            ((int32_t *)kvl_table_row_out(&rows, h, 0))[i] = mark(layer, h, i);
    return KVL_OK;
}

static int table_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                        const float *v)
{
    struct kvl_rows rows;
    (void)v;
    for (int32_t i = step->pos; i < step->pos + step->n_tok; i++, k += N_KV * DIM) {
        KVL_TRY(kvl_table_write(ctx, PAGE_I32, step->layer, i / PAGE, &rows));
        for (int32_t h = 0; h < N_KV; h++)
            for (int32_t c = 0; c < 3; c++)
                ((int32_t *)kvl_table_row_out(&rows, h, 0))[c] = mark(step->layer, h, i) + c;
        if (step->replay) continue; /* all are live at first: rows are positions */
        KVL_TRY(kvl_table_all(ctx, LIVE_KEY, step->layer, &rows));
        if (rows.elem != KVL_ELEM_KEY || rows.type != KVL_KV_F32)
            return kvl_fail(ctx->err, KVL_EINTERNAL, "another table than was planned");
        for (int32_t h = 0; h < N_KV; h++)
            ((float *)kvl_table_column(&rows, h, 1))[rows.n_rows - 1] = (float)i;
    }
    return KVL_OK;
}

/* Every row is what was written for it, and only the elements that are told are counted. */
static int table_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    struct kvl_rows rows;
    (void)q;
    (void)sel;
    KVL_TRY(kvl_table_peek(ctx, LAYER_U8, step->layer, 1, &rows));
    const uint8_t *byte = kvl_table_row(&rows, 0, 0);
    for (int32_t i = 0; i < 33; i++) assert_int_equal(byte[i], (uint8_t)(step->layer * 50 + i));
    KVL_TRY(kvl_table_peek(ctx, PAGE_I32, step->layer, step->pos / PAGE + 1, &rows));
    for (int32_t p = 0; p <= step->pos / PAGE; p++) {
        assert_int_equal(rows.elem, KVL_ELEM_I32);
        int32_t last = KVL_MIN(p * PAGE + PAGE - 1, step->pos);
        for (int32_t h = 0; h < N_KV; h++)
            assert_int_equal(((const int32_t *)kvl_table_row(&rows, h, p))[2],
                             mark(step->layer, h, last) + 2);
    }
    KVL_TRY(kvl_table_count(ctx, PAGE_I32, 7));
    KVL_TRY(kvl_table_count(ctx, LAYER_U8, 5));
    if (step->layer != 1) return KVL_OK;
    KVL_TRY(kvl_table_peek(ctx, LANE_I32, 1, 1, &rows));
    for (int32_t h = 0; h < N_KV; h++)
        assert_int_equal(((const int32_t *)kvl_table_row(&rows, h, 0))[LONG - 1],
                         mark(1, h, LONG - 1));
    return kvl_table_count(ctx, LANE_I32, 3);
}

static int keep_even(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    struct kvl_rows rows;
    if (!step->replay) return KVL_OK;
    KVL_TRY(kvl_table_write(ctx, LIVE_KEY, step->layer, 0, &rows));
    for (int32_t h = 0; h < N_KV; h++)
        for (int32_t i = 0; i < N_CTX; i++) ((float *)kvl_table_column(&rows, h, 1))[i] = (float)i;
    int32_t pos[N_CTX], n = 0;
    for (int32_t i = 0; i < N_CTX; i += 2) pos[n++] = i;
    return kvl_keep_tokens(keep, -1, pos, n);
}

static struct kvl_policy table_policy(void)
{
    struct kvl_policy p = base;
    p.caps |= KVL_CAP_EVICTS;
    p.plan = table_plan;
    p.append = table_append;
    p.prefilled = table_prefilled;
    p.select = table_select;
    p.evict = keep_even;
    return p;
}

/* The second column of the live table holds the position of every live token. */
static void expect_live(const struct rig_session *rs)
{
    struct kvl_rows rows;
    struct kvl_err err = { 0 };
    int32_t n = N_CTX / 2 + kvl_session_len(rs->s) - N_CTX;
    kvl_hook_begin(rs->s, &err);
    RIG_OK(&err, kvl_table_all(&rs->s->ctx, LIVE_KEY, 2, &rows));
    assert_int_equal(rows.n_rows, n);
    for (int32_t i = 0; i < n; i++) {
        int32_t want = i < N_CTX / 2 ? 2 * i : N_CTX / 2 + i;
        assert_int_equal((int)((const float *)kvl_table_column(&rows, 1, 1))[i], want);
    }
}

static const void *lane_row(const struct rig_session *rs)
{
    struct kvl_rows rows;
    struct kvl_err err = { 0 };
    kvl_hook_begin(rs->s, &err);
    RIG_OK(&err, kvl_table_peek(&rs->s->ctx, LANE_I32, 1, 1, &rows));
    return kvl_table_row(&rows, 0, 0);
}

static void test_tables(void **state)
{
    struct kvl_policy p = table_policy();
    struct rig_run run = { .policy = &p, .id = id, .n_ctx = N_CTX, .budget = 40 };
    float *logits = rig_logits(&rig, 20);
    struct kvl_rows rows;
    struct kvl_err err = { 0 };
    (void)state;
    struct rig_session a = rig_start(&rig, &run);
    size_t pages = (N_CTX + PAGE - 1) / PAGE;
    assert_int_equal(kvl_session_meta_bytes(a.s),
                     (size_t)N_KV * LONG * 4 + N_LAYERS * 33 +
                         N_LAYERS * N_KV * (pages * 3 * 4 + N_CTX / 2 * 2 * 4));
    struct rig_session b = rig_fork(&rig, &a);
    rig_decode(&rig, &a, id, 20, logits);
    rig_decode(&rig, &b, id + 5, 9, logits);
    expect_live(&a);
    expect_live(&b);
    /* Forks share a row until one of them writes it, which the other does not see. */
    assert_ptr_equal(lane_row(&a), lane_row(&b));
    kvl_hook_begin(b.s, &err);
    RIG_OK(&err, kvl_table_write(&b.s->ctx, LANE_I32, 1, 0, &rows));
    ((int32_t *)kvl_table_row_out(&rows, 0, 0))[LONG - 1] = -1;
    assert_int_equal(((const int32_t *)lane_row(&a))[LONG - 1], mark(1, 0, LONG - 1));
    assert_int_equal(((const int32_t *)lane_row(&b))[LONG - 1], -1);
    assert_int_equal(((const int32_t *)lane_row(&b))[17], mark(1, 0, 17));
    assert_int_equal(kvl_session_counters(b.s)->index_read_bytes,
                     9 * (N_LAYERS * (7 * 4 + 5) + 3 * 4));
    RIG_OK(&err, KVL_OK);
    assert_int_equal(kvl_table_count(&b.s->ctx, LANE_I32, -1), KVL_EPOLICY);
    assert_int_equal(kvl_table_count(&b.s->ctx, N_TABLES, 1), KVL_EPOLICY);
    assert_int_equal(kvl_table_peek(&b.s->ctx, LIVE_KEY, 1, 1, &rows), KVL_EPOLICY);
    kvl_free(logits);
    rig_end(&b);
    rig_end(&a);
}

static int open_rig(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = N_LAYERS, .seed = 61 } };
    (void)state;
    rig_open(&rig, &desc);
    rig_tokens(id, N_TOK, 62);
    const struct kvl_shape *sh = rig_shape(&rig);
    return sh->n_heads == N_HEADS && sh->n_kv_heads == N_KV && sh->head_dim == DIM ? 0 : 1;
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
        cmocka_unit_test(test_log_weights_of_segments),
        cmocka_unit_test(test_log_weights_after_eviction),
        cmocka_unit_test(test_residuals),
        cmocka_unit_test(test_residuals_that_are_refused),
        cmocka_unit_test(test_tables),
    };
    return cmocka_run_group_tests_name("weighted", tests, open_rig, close_rig);
}
