/* Tables whose rows forks share: what is copied, what each side sees, what is refused. */
#include "conformance/rig.h"
#include "engine_impl.h"

extern const struct kvl_policy *const kvl_policy_arkvale,
    *const kvl_policy_pqcache, *const kvl_policy_quest, *const kvl_policy_shadowkv,
                                                            *const kvl_policy_sparq,
                                                                *const kvl_policy_twilight;

enum { N_LAYERS = 3, N_KV = 2, DIM = 16, N_CTX = 90, N_TOK = N_CTX + 60, TABLE_UNIT = 8 };

static struct rig rig;
static int32_t id[N_TOK];

/* Sums of the keys of every unit: the row of a unit that is not full depends on what was there. */
static int shared_plan(struct kvl_plan *plan)
{
    plan->replay = KVL_REPLAY_KEYS;
    return kvl_plan_table(plan, (int32_t *)plan->opts, .unit = KVL_UNIT_PAGE,
                          .unit_tok = TABLE_UNIT, .row_elems = DIM, .elem = KVL_ELEM_KEY);
}

static int shared_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                         const float *v)
{
    int32_t first = step->pos / TABLE_UNIT;
    struct kvl_rows rows;
    KVL_TRY(kvl_table_write(ctx, *(const int32_t *)ctx->opts, step->layer, first, &rows));
    if ((step->replay && v) || rows.type != KVL_KV_F32 || !rows.part[0].data)
        return kvl_fail(ctx->err, KVL_EINTERNAL, "values on replay, or another table");
    for (int32_t i = 0; i < step->n_tok * N_KV * DIM; i++) {
        int32_t pos = step->pos + i / (N_KV * DIM), head = i / DIM % N_KV;
        float *at = kvl_table_row_out(&rows, head, pos / TABLE_UNIT - first);
        at += i % DIM;
        *at = pos % TABLE_UNIT == 0 ? k[i] : *at + k[i];
    }
    return KVL_OK;
}

static int shared_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    struct kvl_rows rows;
    (void)q;
    (void)sel;
    return kvl_table_read_operand(ctx, *(const int32_t *)ctx->opts, step->layer,
                                  step->pos / TABLE_UNIT + 1, &rows);
}

static const struct kvl_opt no_options[] = { { 0 } };
static const struct kvl_policy shared = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "shared",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
    .caps = KVL_CAP_SELECTS,
    .opts = no_options,
    .opts_size = sizeof(int32_t), /* the handle */
    .plan = shared_plan,
    .append = shared_append,
    .select = shared_select,
};

static struct rig_session start(void)
{
    struct rig_run run = { .policy = &shared, .id = id, .n_ctx = N_CTX, .budget = 40 };
    return rig_start(&rig, &run);
}

static void shared_parts(const struct rig_session *rs, struct kvl_rows *rows)
{
    struct kvl_err err = { 0 };
    kvl_hook_begin(rs->s, &err);
    RIG_OK(&err, kvl_table_read_operand(&rs->s->ctx, 0, 1, rs->s->host.table[0]->n_rows, rows));
}

static void expect_same_rows(const struct rig_session *a, const struct rig_session *b, int32_t n)
{
    struct kvl_rows x, y;
    shared_parts(a, &x);
    shared_parts(b, &y);
    for (int32_t h = 0; h < N_KV; h++)
        for (int32_t r = 0; r < n; r++)
            if (memcmp(kvl_table_row(&x, h, r), kvl_table_row(&y, h, r), DIM * sizeof(float)) != 0)
                fail_msg("row %d of head %d differs", r, h);
}

/* Every row is the sum of the stored keys of its unit. */
static void expect_sums(const struct rig_session *rs)
{
    struct kvl_rows rows;
    float k[TABLE_UNIT][DIM];
    int32_t n = kvl_session_len(rs->s);
    shared_parts(rs, &rows);
    for (int32_t i = 0; i < N_KV * ((n + TABLE_UNIT - 1) / TABLE_UNIT); i++) {
        int32_t h = i % N_KV, row = i / N_KV, len = KVL_MIN(TABLE_UNIT, n - row * TABLE_UNIT);
        RIG_OK(&rig.err, kvl_seq_read(kvl_session_seq(rs->s), 1, h, KVL_PART_K, row * TABLE_UNIT,
                                      len, k[0], &rig.err));
        for (int32_t t = 1; t < len; t++)
            for (int32_t c = 0; c < DIM; c++) k[0][c] += k[t][c];
        if (memcmp(kvl_table_row(&rows, h, row), k[0], sizeof k[0]) != 0)
            fail_msg("row %d of head %d is not the sum of its %d keys", row, h, len);
    }
}

/* A fork copies no row of the context but the one that it writes to, and neither side sees the other's:
 * each has the rows of a session that went its way alone.  Forks of forks, and after them the first
 * one, too. */
static void test_rows_are_shared_until_written(void **state)
{
    enum { N_MORE = 40, N_ROWS = (N_CTX + N_MORE + TABLE_UNIT - 1) / TABLE_UNIT };
    struct rig_session alone[3], a, b, c;
    float *logits = rig_logits(&rig, N_MORE);
    struct kvl_rows x, y;
    (void)state;
    for (int i = 0; i < 3; i++) {
        alone[i] = start();
        rig_decode(&rig, &alone[i], id + (i == 1 ? 10 : 0), 20, logits);
        rig_decode(&rig, &alone[i], id + (i == 1 ? 30 : 20 + 10 * i), N_MORE - 20, logits);
    }
    a = start();
    b = rig_fork(&rig, &a);
    rig_decode(&rig, &a, id, 1, logits);
    rig_decode(&rig, &b, id + 10, 1, logits);
    shared_parts(&a, &x);
    shared_parts(&b, &y);
    assert_ptr_equal(x.part[0].data, y.part[0].data);
    assert_int_equal(x.part[0].n_rows, N_CTX / TABLE_UNIT);
    assert_ptr_not_equal(x.part[1].data, y.part[1].data);
    rig_decode(&rig, &a, id + 1, 19, logits);
    c = rig_fork(&rig, &a);
    rig_decode(&rig, &b, id + 11, N_MORE - 1, logits);
    rig_decode(&rig, &c, id + 40, N_MORE - 20, logits);
    rig_decode(&rig, &a, id + 20, N_MORE - 20, logits);
    expect_sums(&a);
    expect_same_rows(&a, &alone[0], N_ROWS);
    expect_same_rows(&b, &alone[1], N_ROWS);
    expect_same_rows(&c, &alone[2], N_ROWS);
    kvl_free(logits);
    struct rig_session *all[] = { &a, &b, &c, &alone[0], &alone[1], &alone[2] };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) rig_end(all[i]);
}

/* ---- plans that differ ------------------------------------------------------------------------ */

struct moving_opts {
    int32_t table, first; /* the first of two layers that have rows: by the budget */
};

static int moving_plan(struct kvl_plan *plan)
{
    struct moving_opts *o = plan->opts;
    uint8_t layers[N_LAYERS] = { 0 };
    o->first = plan->budget_tok > 40;
    layers[o->first] = layers[o->first + 1] = 1;
    plan->replay = KVL_REPLAY_KEYS;
    return kvl_plan_table_desc(plan,
                               &(struct kvl_table_desc){ .unit = KVL_UNIT_PAGE,
                                                         .unit_tok = TABLE_UNIT,
                                                         .row_elems = DIM,
                                                         .elem = KVL_ELEM_KEY,
                                                         .layers = layers },
                               &o->table);
}

static int moving_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                         const float *v)
{
    int32_t first = ((const struct moving_opts *)ctx->opts)->first;
    bool has = step->layer == first || step->layer == first + 1;
    return has ? shared_append(ctx, step, k, v) : KVL_OK;
}

/* Tables of the same shape, of other layers: a budget took the rows of another layer for its own. */
static void test_other_layers_are_not_shared(void **state)
{
    struct kvl_policy moving = shared;
    struct kvl_planned *planned[2];
    struct rig_session rs[2] = { 0 };
    (void)state;
    moving.caps |= KVL_CAP_SHARES_META;
    moving.opts_size = sizeof(struct moving_opts);
    moving.plan = moving_plan;
    moving.append = moving_append;
    for (int i = 0; i < 2; i++) {
        RIG_OK(&rig.err, kvl_planned_create(&moving, rig_shape(&rig), "", 40 + i, N_CTX,
                                            &planned[i], &rig.err));
        RIG_OK(&rig.err, kvl_session_create(rig.engine, &rs[i].s, &rig.err));
        RIG_OK(&rig.err, kvl_session_prefill(rs[i].s, id, N_CTX, NULL, true, &rig.err));
        RIG_OK(&rig.err, kvl_session_attach_like(rs[i].s, planned[i], 1, KVL_EXEC_REAL,
                                                 i ? rs[0].s : NULL, &rig.err));
        expect_sums(&rs[i]);
    }
    for (int i = 0; i < 2; i++) {
        rig_end(&rs[i]);
        kvl_planned_destroy(planned[i]);
    }
}

static void expect_no_plan(struct kvl_table_desc desc, const char *needle)
{
    struct kvl_err err = { 0 };
    struct kvl_plan_private priv = { .n_tables = 0 };
    struct kvl_plan plan = { .shape = rig_shape(&rig), .err = &err, .p = &priv };
    int32_t handle;
    assert_int_equal(kvl_plan_table_desc(&plan, &desc, &handle), KVL_EPOLICY);
    if (!strstr(err.msg, needle)) fail_msg("message \"%s\" lacks \"%s\"", err.msg, needle);
}

static void test_tables_that_are_refused(void **state)
{
    struct kvl_table_desc d = { .unit = KVL_UNIT_PAGE, .unit_tok = 1, .row_elems = 1 };
    (void)state;
    d.elem = (enum kvl_table_elem)4;
    expect_no_plan(d, "elements 4, want 0 (float), 1 (as stored keys) to 3");
    d.elem = KVL_ELEM_F32;
    d.unit = KVL_UNIT_LIVE;
    d.unit_tok = 2;
    expect_no_plan(d, "live tokens in units of 2");
    d.unit = KVL_UNIT_LANE;
    expect_no_plan(d, "a row per lane in units of 2");
    d.unit = (enum kvl_table_unit)4;
    expect_no_plan(d, "unit 4");
    d.unit = KVL_UNIT_PAGE;
    d.row_elems = (1 << 20) + 1;
    expect_no_plan(d, "1048577 elements a row");
}

/* Sizes that follow from the budget stood among what tables depend on: sparq copied the keys once more
 * for every budget of a sweep. */
static void test_budgets_share_tables(void **state)
{
    const struct kvl_policy *twilight,
        *policies[] = { kvl_policy_arkvale,  kvl_policy_pqcache, kvl_policy_quest,
                        kvl_policy_shadowkv, kvl_policy_sparq,   NULL };
    struct kvl_err err = { 0 };
    (void)state;
    RIG_OK(&err, kvl_policy_compose(kvl_policy_twilight, kvl_policy_quest, &twilight, &err));
    policies[5] = twilight;
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        struct kvl_planned *wide, *narrow;
        RIG_OK(&err, kvl_planned_create(policies[i], rig_shape(&rig), "", 700, 1000, &wide, &err));
        RIG_OK(&err,
               kvl_planned_create(policies[i], rig_shape(&rig), "", 200, 1000, &narrow, &err));
        assert_string_equal(wide->tabled.data, narrow->tabled.data);
        kvl_planned_destroy(wide);
        kvl_planned_destroy(narrow);
    }
    kvl_policy_decompose(twilight);
}

static int open_rig(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = N_LAYERS, .seed = 61 } };
    (void)state;
    rig_open(&rig, &desc);
    rig_tokens(id, N_TOK, 62);
    return rig_shape(&rig)->n_kv_heads == N_KV && rig_shape(&rig)->head_dim == DIM ? 0 : 1;
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
        cmocka_unit_test(test_rows_are_shared_until_written),
        cmocka_unit_test(test_other_layers_are_not_shared),
        cmocka_unit_test(test_tables_that_are_refused),
        cmocka_unit_test(test_budgets_share_tables),
    };
    return cmocka_run_group_tests_name("shared_rows", tests, open_rig, close_rig);
}
