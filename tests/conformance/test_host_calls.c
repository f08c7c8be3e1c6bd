/* What policies may ask of the engine beyond observers: stored keys, tables of some layers or of none
 * per head, the weights of what several segments read. */
#include "conformance/rig.h"

enum { N_LAYERS = 3, N_HEADS = 4, N_KV = 2, DIM = 16, N_CTX = 90, N_STEPS = 4, N_TOK = N_CTX + 60 };

static const struct kvl_policy base = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "caller",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
};

static struct rig rig;
static int32_t id[N_TOK];

/* What the hooks saw; tests only, a real policy keeps no globals. */
static struct {
    float keys[N_LAYERS][N_TOK][N_KV][DIM]; /* as append got them */
    int calls;
    double worst;
} seen;

static void start(struct rig_session *rs, const struct kvl_policy *p, enum kvl_exec exec)
{
    struct rig_run run = {
        .policy = p, .id = id, .n_ctx = N_CTX, .n_steps = N_STEPS, .exec = exec, .budget = 40
    };
    *rs = rig_start(&rig, &run);
}

static void run_policy(const struct kvl_policy *p, enum kvl_exec exec)
{
    struct rig_session rs;
    float *logits = rig_logits(&rig, N_STEPS);
    start(&rs, p, exec);
    rig_decode(&rig, &rs, id + N_CTX, N_STEPS, logits);
    kvl_free(logits);
    rig_end(&rs);
}

/* ---- stored keys ------------------------------------------------------------------------------- */

static int raw_plan(struct kvl_plan *plan)
{
    plan->raw_keys = true;
    return KVL_OK;
}

static int note_keys(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                     const float *v)
{
    (void)ctx;
    (void)v;
    memcpy(seen.keys[step->layer][step->pos], k, (size_t)step->n_tok * sizeof seen.keys[0][0]);
    return KVL_OK;
}

/* RoPE written out, base 10000, neighbouring pairs. */
static void turn(const float *x, int32_t pos, double *y)
{
    for (int32_t i = 0; i < DIM / 2; i++) {
        double angle = pos * pow(10000.0, -2.0 * i / DIM), c = cos(angle), s = sin(angle);
        double a = (double)x[2 * i], b = (double)x[2 * i + 1];
        y[2 * i] = a * c - b * s;
        y[2 * i + 1] = a * s + b * c;
    }
}

static void compare_key(int32_t layer, int32_t head, int32_t pos, const float *k, const float *raw)
{
    const float *want = seen.keys[layer][pos][head];
    double turned[DIM];
    turn(raw, pos, turned);
    for (int32_t c = 0; c < DIM; c++) {
        seen.worst = fmax(seen.worst, fabs((double)k[c] - (double)want[c]));
        seen.worst = fmax(seen.worst, fabs(turned[c] - (double)want[c]) - 1e-5);
    }
}

/* All live positions of a lane, out of order and with gaps. */
static int read_lane(struct kvl_pctx *ctx, int32_t layer, int32_t head)
{
    const int32_t *live;
    int32_t n, m = 0, pos[N_TOK];
    float *k, *raw;
    KVL_TRY(kvl_scratch_get(ctx, 2 * N_TOK * DIM, &k));
    raw = k + N_TOK * DIM;
    KVL_TRY(kvl_live(ctx, layer, head, &live, &n));
    for (int32_t i = 0; i < n; i++)
        if (i % 7 != 3) pos[m++] = live[i];
    for (int32_t i = 0; i < m / 2; i += 2) {
        int32_t t = pos[i];
        pos[i] = pos[m - 1 - i];
        pos[m - 1 - i] = t;
    }
    KVL_TRY(kvl_read_keys(ctx, layer, head, pos, m, false, k));
    KVL_TRY(kvl_read_keys(ctx, layer, head, pos, m, true, raw));
    for (int32_t i = 0; i < m; i++) compare_key(layer, head, pos[i], k + i * DIM, raw + i * DIM);
    seen.calls++;
    return KVL_OK;
}

static int read_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    return read_lane(ctx, layer, 1);
}

static int read_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    (void)q;
    (void)sel;
    KVL_TRY(read_lane(ctx, step->layer, 0));
    return read_lane(ctx, step->layer, 1);
}

/* Keeps every third position of head 0, every fifth and the last ones of head 1. */
static int keep_some(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    if (!step->replay) return KVL_OK;
    for (int32_t h = 0; h < N_KV; h++) {
        int32_t pos[N_CTX], n = 0;
        for (int32_t i = 0; i < N_CTX; i++)
            if (i % (h ? 5 : 3) == 0 || (h && i > 70)) pos[n++] = i;
        KVL_TRY(kvl_keep_tokens(keep, h, pos, n));
    }
    (void)ctx;
    return KVL_OK;
}

static struct kvl_policy reader(void)
{
    struct kvl_policy p = base;
    p.caps = KVL_CAP_SELECTS | KVL_CAP_EVICTS;
    p.plan = raw_plan;
    p.append = note_keys;
    p.prefilled = read_prefilled;
    p.select = read_select;
    p.evict = keep_some;
    return p;
}

static void test_keys_are_those_that_were_stored(void **state)
{
    struct kvl_policy p = reader();
    (void)state;
    for (int exec = KVL_EXEC_REAL; exec <= KVL_EXEC_MASKED; exec++) {
        memset(&seen, 0, sizeof seen);
        run_policy(&p, (enum kvl_exec)exec);
        assert_int_equal(seen.calls, N_LAYERS * (1 + 2 * N_STEPS));
        if (seen.worst > 0) fail_msg("keys differ by %g (exec %d)", seen.worst, exec);
    }
}

static int read_five(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                     struct kvl_sel *sel)
{
    float k[5 * DIM];
    (void)q;
    (void)sel;
    return kvl_read_keys(ctx, step->layer, 0, (int32_t[]){ 9, 3, 4, 5, 88 }, 5, false, k);
}

static int read_before(struct kvl_pctx *ctx, int32_t layer)
{
    float k[DIM];
    return kvl_read_keys(ctx, layer, 0, (int32_t[]){ 9 }, 1, false, k);
}

/* To the steps that read them: what the context costs once was spread over the tokens of an answer. */
static void test_keys_are_charged(void **state)
{
    struct kvl_policy p = base;
    struct rig_session rs;
    float *logits = rig_logits(&rig, 1);
    (void)state;
    p.caps = KVL_CAP_SELECTS;
    p.prefilled = read_before;
    p.select = read_five;
    start(&rs, &p, KVL_EXEC_REAL);
    assert_int_equal(kvl_session_counters(rs.s)->index_read_bytes, 0);
    rig_decode(&rig, &rs, id + N_CTX, 1, logits);
    assert_int_equal(kvl_session_counters(rs.s)->index_read_bytes, N_LAYERS * 5 * DIM * 4);
    kvl_free(logits);
    rig_end(&rs);
}

static int32_t asked_pos, asked_head;
static bool asked_raw;

static int read_asked(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                      struct kvl_sel *sel)
{
    float k[DIM];
    (void)q;
    (void)sel;
    return kvl_read_keys(ctx, step->layer, asked_head, &asked_pos, 1, asked_raw, k);
}

static void expect_no_key(const struct kvl_policy *p, enum kvl_exec exec, int32_t head, int32_t pos,
                          bool raw, const char *needle)
{
    struct rig_session rs;
    struct kvl_err err = { 0 };
    float *logits = rig_logits(&rig, 1);
    asked_head = head;
    asked_pos = pos;
    asked_raw = raw;
    start(&rs, p, exec);
    assert_int_equal(kvl_session_decode(&rs.s, 1, id + N_CTX, logits, &err), KVL_EPOLICY);
    if (!strstr(err.msg, needle)) fail_msg("message \"%s\" lacks \"%s\"", err.msg, needle);
    kvl_free(logits);
    rig_end(&rs);
}

static void test_keys_that_are_not_there(void **state)
{
    struct kvl_policy p = reader();
    (void)state;
    p.prefilled = NULL;
    p.select = read_asked;
    for (int i = KVL_EXEC_REAL; i <= KVL_EXEC_MASKED; i++) {
        enum kvl_exec exec = (enum kvl_exec)i;
        expect_no_key(&p, exec, 0, 4, false, "position 4, which is not live");
        expect_no_key(&p, exec, 1, N_CTX + 1, true, "position 91, which is not live");
        expect_no_key(&p, exec, 1, -1, false, "position -1");
        expect_no_key(&p, exec, N_KV, 0, false, "lane (0, 2)");
    }
    p.plan = NULL;
    expect_no_key(&p, KVL_EXEC_REAL, 0, 3, true, "not asked for in plan");
}

/* ---- tables ------------------------------------------------------------------------------------- */

enum { TABLE_UNIT = 8, TABLE_ROW = 3 };

struct table_opts {
    int32_t some, each; /* handles: layers 0 and 2; every layer, one row for all heads */
};
static const struct kvl_opt no_options[] = { { 0 } };

static int table_plan(struct kvl_plan *plan)
{
    struct table_opts *o = plan->opts;
    uint8_t layers[N_LAYERS] = { 1, 0, 7 };
    KVL_TRY(kvl_plan_table_desc(plan,
                                &(struct kvl_table_desc){ .unit = KVL_UNIT_PAGE,
                                                          .unit_tok = TABLE_UNIT,
                                                          .row_elems = TABLE_ROW,
                                                          .layers = layers },
                                &o->some));
    memset(layers, 0, sizeof layers); /* copied */
    return kvl_plan_table_desc(
        plan,
        &(struct kvl_table_desc){
            .unit = KVL_UNIT_PAGE, .unit_tok = 1, .row_elems = 1, .per_layer = true },
        &o->each);
}

static float mark(int32_t layer, int32_t head, int32_t row)
{
    return (float)(1 + layer * 10000 + head * 1000 + row);
}

static int table_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                        const float *v)
{
    const struct table_opts *o = ctx->opts;
    struct kvl_rows some, each;
    (void)k;
    (void)v;
    KVL_TRY(kvl_table_all(ctx, o->each, step->layer, &each));
    if (each.part[0].head_bytes != 0)
        return kvl_fail(ctx->err, KVL_EINTERNAL, "a stride between heads");
    for (int32_t i = step->pos; i < step->pos + step->n_tok; i++)
        *(float *)kvl_table_row_out(&each, 0, i) = mark(step->layer, 9, i);
    if (step->layer == 1) return KVL_OK;
    KVL_TRY(kvl_table_all(ctx, o->some, step->layer, &some));
    for (int32_t i = step->pos; i < step->pos + step->n_tok; i++)
        for (int32_t h = 0; h < N_KV && i % TABLE_UNIT == 0; h++)
            *(float *)kvl_table_row_out(&some, h, i / TABLE_UNIT) =
                mark(step->layer, h, i / TABLE_UNIT);
    return KVL_OK;
}

static int table_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct table_opts *o = ctx->opts;
    struct kvl_rows some, each;
    (void)q;
    (void)sel;
    KVL_TRY(kvl_table_all(ctx, o->each, step->layer, &each));
    for (int32_t i = 0; i <= step->pos; i++)
        seen.worst = fmax(seen.worst, fabs((double)(*(const float *)kvl_table_row(&each, 0, i) -
                                                    mark(step->layer, 9, i))));
    if (step->layer == 1) return KVL_OK;
    KVL_TRY(kvl_table_all(ctx, o->some, step->layer, &some));
    for (int32_t h = 0; h < N_KV; h++)
        for (int32_t r = 0; r <= step->pos / TABLE_UNIT; r++)
            seen.worst = fmax(seen.worst, fabs((double)(*(const float *)kvl_table_row(&some, h, r) -
                                                        mark(step->layer, h, r))));
    seen.calls++;
    return KVL_OK;
}

static int table_wrong_layer(struct kvl_pctx *ctx, const struct kvl_step *step,
                             const struct kvl_query *q, struct kvl_sel *sel)
{
    struct kvl_rows view;
    (void)q;
    (void)sel;
    return kvl_table_all(ctx, ((const struct table_opts *)ctx->opts)->some, step->layer, &view);
}

static struct kvl_policy table_policy(void)
{
    struct kvl_policy p = base;
    p.caps = KVL_CAP_SELECTS;
    p.opts = no_options;
    p.opts_size = sizeof(struct table_opts);
    p.plan = table_plan;
    p.append = table_append;
    p.select = table_select;
    return p;
}

/* Rows of some layers and rows per layer keep their contents as they grow and fork, and only what
 * exists is counted. */
static void test_tables_of_some_layers(void **state)
{
    enum { N_MORE = 50 };
    struct kvl_policy p = table_policy();
    struct rig_session a, b;
    float *logits = rig_logits(&rig, 1);
    (void)state;
    memset(&seen, 0, sizeof seen);
    start(&a, &p, KVL_EXEC_REAL);
    size_t some = 2 * N_KV * ((N_CTX + 7) / 8) * TABLE_ROW, each = N_LAYERS * N_CTX;
    assert_int_equal(kvl_session_meta_bytes(a.s), (some + each) * sizeof(float));
    b = rig_fork(&rig, &a);
    for (int32_t i = 0; i < N_MORE; i++) {
        rig_decode(&rig, &a, id + i, 1, logits);
        if (i % 2 == 0) rig_decode(&rig, &b, id + i, 1, logits);
    }
    assert_int_equal(seen.calls, 2 * (N_MORE + N_MORE / 2));
    if (seen.worst > 0) fail_msg("a row is off by %g", seen.worst);
    int64_t n = N_CTX + N_MORE, bytes = 0;
    for (int64_t t = N_CTX + 1; t <= n; t++)
        bytes += 4 * (N_LAYERS * t + 2 * N_KV * ((t + 7) / 8) * TABLE_ROW);
    assert_int_equal(kvl_session_counters(a.s)->index_read_bytes, bytes);
    kvl_free(logits);
    rig_end(&b);
    rig_end(&a);
}

static int read_rows(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                     struct kvl_sel *sel)
{
    const struct table_opts *o = ctx->opts;
    struct kvl_rows view;
    (void)q;
    (void)sel;
    KVL_TRY(kvl_table_read(ctx, o->each, step->layer, 7, &view));
    return step->layer == 1 ? KVL_OK : kvl_table_read(ctx, o->some, step->layer, 2, &view);
}

static int read_rows_behind(struct kvl_pctx *ctx, const struct kvl_step *step,
                            const float *const *probs, const int32_t *n, const float *lse)
{
    const struct table_opts *o = ctx->opts;
    struct kvl_rows view;
    (void)probs;
    (void)n;
    (void)lse;
    KVL_TRY(kvl_table_all(ctx, o->each, step->layer, &view)); /* to write: not counted */
    return kvl_table_read(ctx, o->each, step->layer, 5, &view);
}

static int read_more_rows(struct kvl_pctx *ctx, const struct kvl_step *step,
                          const struct kvl_query *q, struct kvl_sel *sel)
{
    struct kvl_rows view;
    (void)q;
    (void)sel;
    return kvl_table_read(ctx, ((const struct table_opts *)ctx->opts)->each, step->layer,
                          step->pos + 2, &view);
}

/* What a policy says it reads is what counts, in whichever hook: a filter that chooses in observe read
 * for nothing, and one that read a few rows paid for all. */
static void test_rows_are_charged(void **state)
{
    struct kvl_policy p = table_policy();
    struct rig_session rs;
    float *logits = rig_logits(&rig, 1);
    (void)state;
    p.select = read_rows;
    p.observe = read_rows_behind;
    start(&rs, &p, KVL_EXEC_REAL);
    rig_decode(&rig, &rs, id + N_CTX, 1, logits);
    assert_int_equal(kvl_session_counters(rs.s)->index_read_bytes,
                     4 * (N_LAYERS * (7 + 5) + 2 * N_KV * 2 * TABLE_ROW));
    rig_end(&rs);
    p.select = read_more_rows;
    start(&rs, &p, KVL_EXEC_REAL);
    kvl_err_clear(&rig.err);
    int rc = kvl_session_decode(&rs.s, 1, id, logits, &rig.err);
    assert_int_equal(rc, KVL_EPOLICY);
    assert_non_null(strstr(rig.err.msg, "92 rows of table 1, which has 91"));
    kvl_free(logits);
    rig_end(&rs);
}

static void test_a_layer_without_rows(void **state)
{
    struct kvl_policy p = table_policy();
    struct rig_session rs;
    struct kvl_err err = { 0 };
    float *logits = rig_logits(&rig, 1);
    (void)state;
    p.select = table_wrong_layer;
    start(&rs, &p, KVL_EXEC_REAL);
    assert_int_equal(kvl_session_decode(&rs.s, 1, id + N_CTX, logits, &err), KVL_EPOLICY);
    if (!strstr(err.msg, "no rows in layer 1")) fail_msg("message \"%s\"", err.msg);
    kvl_free(logits);
    rig_end(&rs);
}

/* ---- the weights of several segments --------------------------------------------------------------- */

/* Three segments: a list per query head, nothing, pages; the current token joins the first. */
static int in_segments(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    (void)step;
    (void)q;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        int32_t pos[] = { 2 + h, 20, 31 };
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_Q_HEAD, h, pos, 3));
    }
    KVL_TRY(kvl_sel_segment(sel));
    KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, NULL, 0));
    KVL_TRY(kvl_sel_segment(sel));
    for (int32_t h = 0; h < N_KV; h++)
        KVL_TRY(kvl_sel_pages(sel, KVL_SCOPE_KV_HEAD, h, 4, (int32_t[]){ 10 + h, 21 }, 2));
    return KVL_OK;
}

/* The same as one list per query head. */
static int in_one(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                  struct kvl_sel *sel)
{
    (void)step;
    (void)q;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        int32_t first = 4 * (10 + h / (N_HEADS / N_KV));
        int32_t pos[] = { 2 + h, 20, 31, first, first + 1, first + 2, first + 3, 84, 85, 86, 87 };
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_Q_HEAD, h, pos, 11));
    }
    return KVL_OK;
}

enum { N_READ = 12 };
static struct {
    float probs[N_STEPS][N_LAYERS][N_HEADS][N_READ], lse[N_STEPS][N_LAYERS][N_HEADS];
    int32_t calls;
} weights;

static int note_weights(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const float *const *probs, const int32_t *n, const float *lse)
{
    for (int32_t h = 0; h < N_HEADS; h++) {
        if (n[h] != N_READ)
            return kvl_fail(ctx->err, KVL_EINTERNAL, "%d weights, want %d", n[h], N_READ);
        memcpy(weights.probs[step->index][step->layer][h], probs[h], N_READ * sizeof(float));
        weights.lse[step->index][step->layer][h] = lse[h];
    }
    weights.calls++;
    return KVL_OK;
}

static void observe_run(struct kvl_policy *p,
                        int (*select)(struct kvl_pctx *, const struct kvl_step *,
                                      const struct kvl_query *, struct kvl_sel *),
                        enum kvl_exec exec)
{
    memset(&weights, 0, sizeof weights);
    p->select = select;
    run_policy(p, exec);
    assert_int_equal(weights.calls, N_LAYERS * N_STEPS);
}

static void test_weights_of_segments(void **state)
{
    /* Where the i-th weight of the segments is in the one list: the current token comes after the
     * first segment, and is last in the list. */
    static const int32_t order[N_READ] = { 0, 1, 2, 11, 3, 4, 5, 6, 7, 8, 9, 10 };
    struct kvl_policy p = base;
    (void)state;
    p.caps = KVL_CAP_SELECTS;
    p.observe = note_weights;
    observe_run(&p, in_one, KVL_EXEC_REAL);
    const size_t size = sizeof weights;
    void *want = kvl_alloc(size, 1);
    assert_non_null(want);
    memcpy(want, &weights, size);
    const float *probs = want, *lse = probs + sizeof weights.probs / sizeof(float);
    for (int exec = KVL_EXEC_REAL; exec <= KVL_EXEC_MASKED; exec++) {
        observe_run(&p, in_segments, (enum kvl_exec)exec);
        for (int32_t i = 0; i < N_STEPS * N_LAYERS * N_HEADS; i++) {
            const float *got = &weights.probs[0][0][0][0] + (size_t)i * N_READ;
            double sum = 0;
            for (int32_t t = 0; t < N_READ; t++) {
                double x = (double)got[t], y = (double)probs[i * N_READ + order[t]];
                if (!(fabs(x - y) <= 1e-5))
                    fail_msg("weight %d of row %d: %g, want %g", t, i, x, y);
                sum += x;
            }
            assert_true(fabs(sum - 1) < 1e-5);
            double off = (double)(&weights.lse[0][0][0])[i] - (double)lse[i];
            if (!(fabs(off) < 1e-4)) fail_msg("log-sum-exp of row %d is off by %g", i, off);
        }
    }
    kvl_free(want);
}

static int open_rig(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = N_LAYERS, .seed = 61 } };
    (void)state;
    rig_open(&rig, &desc);
    rig_tokens(id, N_TOK, 62);
    return rig_shape(&rig)->n_heads == N_HEADS && rig_shape(&rig)->n_kv_heads == N_KV &&
                   rig_shape(&rig)->head_dim == DIM
               ? 0
               : 1;
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
        cmocka_unit_test(test_keys_are_those_that_were_stored),
        cmocka_unit_test(test_keys_are_charged),
        cmocka_unit_test(test_keys_that_are_not_there),
        cmocka_unit_test(test_tables_of_some_layers),
        cmocka_unit_test(test_rows_are_charged),
        cmocka_unit_test(test_a_layer_without_rows),
        cmocka_unit_test(test_weights_of_segments),
    };
    return cmocka_run_group_tests_name("host_calls", tests, open_rig, close_rig);
}
