/* Calls that shorten methods: tables as operands, rows wherever they lie, scores, scratch, layers of a plan.  Each is
 * worked out here once more, from stored keys, in a session whose rows lie in two pieces. */
#include "conformance/rig.h"
#include "engine_impl.h"
#include "parts/ranked.h"

#include <math.h>

enum {
    N_LAYERS = 3,
    N_KV = 2,
    DIM = 16,
    N_CTX = 90,
    N_STEPS = 6,
    N_TOK = N_CTX + N_STEPS,
    PAGE = 8
};
enum { BOX, ROWS, LAYER, N_TABLES };

static struct rig rig;
static int32_t id[N_TOK];
static int32_t n_checked, n_told;

static int calls_plan(struct kvl_plan *plan)
{
    uint8_t *layers;
    int32_t handle;
    KVL_TRY(kvl_plan_needs_budget(plan));
    KVL_TRY(kvl_plan_layers(plan, "from", 1, 1, &layers));
    plan->replay = KVL_REPLAY_KEYS;
    const struct kvl_table_desc desc[N_TABLES] = {
        { .unit = KVL_UNIT_PAGE,
          .unit_tok = PAGE,
          .row_elems = 2 * DIM,
          .elem = KVL_ELEM_KEY,
          .layers = layers },
        { .unit = KVL_UNIT_PAGE, .unit_tok = 1, .row_elems = DIM + 3 },
        { .unit = KVL_UNIT_PAGE,
          .unit_tok = 1,
          .row_elems = 2,
          .elem = KVL_ELEM_I32,
          .per_layer = true },
    };
    for (int32_t i = 0; i < N_TABLES; i++) KVL_TRY(kvl_plan_table_desc(plan, &desc[i], &handle));
    return KVL_OK;
}

/* Row of a token: three numbers, then its key. */
static int calls_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                        const float *v)
{
    struct kvl_rows rows, layer;
    (void)v;
    if (step->layer >= 1) KVL_TRY(kvl_table_minmax(ctx, BOX, step, k));
    KVL_TRY(kvl_table_write(ctx, ROWS, step->layer, step->pos, &rows));
    KVL_TRY(kvl_table_write(ctx, LAYER, step->layer, step->pos, &layer));
    for (int32_t i = 0; i < step->n_tok; i++) {
        int32_t *both = kvl_table_row_out(&layer, N_KV - 1, i); /* heads share it */
        both[0] = step->pos + i;
        both[1] = step->layer;
        for (int32_t h = 0; h < N_KV; h++) {
            float *row = kvl_table_row_out(&rows, h, i);
            row[0] = row[1] = row[2] = (float)h;
            memcpy(row + 3, k + (i * N_KV + h) * DIM, DIM * sizeof *row);
        }
    }
    return KVL_OK;
}

static double dot(const float *x, const float *y)
{
    double sum = 0;
    for (int32_t c = 0; c < DIM; c++) sum += (double)x[c] * (double)y[c];
    return sum;
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-4 * (1 + fabs(want)))) fail_msg("got %g, want %g", got, want);
}

static int check_rows(const struct kvl_pctx *ctx, int32_t layer, int32_t n, const float *key)
{
    struct kvl_rows rows, both;
    int64_t before = ctx->host->session->count.index_read_bytes;
    KVL_TRY(kvl_table_peek(ctx, ROWS, layer, n, &rows));
    assert_int_equal(ctx->host->session->count.index_read_bytes, before);
    KVL_TRY(kvl_table_read(ctx, LAYER, layer, n, &both));
    assert_int_equal(ctx->host->session->count.index_read_bytes, before + n * 2 * 4);
    assert_true(rows.part[0].n_rows > 0 && rows.part[1].n_rows > 0); /* what this is about */
    for (int32_t i = 0; i < n; i++) {
        const int32_t *pair = kvl_table_row(&both, i % N_KV, i);
        assert_int_equal(pair[0], i);
        assert_int_equal(pair[1], layer);
        for (int32_t h = 0; h < N_KV; h++) {
            const float *row = kvl_table_row(&rows, h, i);
            near((double)row[2], h);
            assert_memory_equal(row + 3, key + (h * n + i) * DIM, DIM * sizeof *row);
        }
    }
    return KVL_OK;
}

static int check_scores(const struct kvl_pctx *ctx, int32_t layer, const float *q, int32_t n,
                        const float *key)
{
    const struct kvl_shape *sh = ctx->shape;
    float *all, *part;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(sh->n_heads * n), &all));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(N_KV * n), &part));
    struct kvl_table_scores s = { .table = ROWS,
                                  .layer = layer,
                                  .n_rows = n,
                                  .q = q,
                                  .first_elem = 3,
                                  .elems = DIM,
                                  .scale = .25f,
                                  .score = all };
    int64_t before = ctx->host->session->count.index_read_bytes;
    KVL_TRY(kvl_table_scores(ctx, &s));
    assert_int_equal(ctx->host->session->count.index_read_bytes - before, N_KV * n * (DIM + 3) * 4);
    for (int32_t i = 0; i < sh->n_heads * n; i++)
        near((double)all[i], dot(q + i / n * DIM, key + (i / n / sh->group * n + i % n) * DIM) / 4);
    s.n_lists = N_KV; /* a vector per kv head */
    s.scale = 0;
    s.score = part;
    KVL_TRY(kvl_table_scores(ctx, &s));
    for (int32_t i = 0; i < N_KV * n; i++)
        near((double)part[i], dot(q + i / n * DIM, key + (i / n * n + i % n) * DIM));
    KVL_TRY(kvl_group_scores(ctx, all, n, KVL_REDUCE_MAX, part));
    for (int32_t i = 0; i < N_KV * n; i++) {
        float want = all[i / n * sh->group * n + i % n];
        for (int32_t g = 1; g < sh->group; g++)
            want = fmaxf(want, all[(i / n * sh->group + g) * n + i % n]);
        assert_true(part[i] >= want && part[i] <= want);
    }
    KVL_TRY(kvl_layer_scores(ctx, part, N_KV, n, KVL_REDUCE_SUM, all));
    for (int32_t i = 0; i < n; i++) near((double)all[i], (double)part[i] + (double)part[n + i]);
    return KVL_OK;
}

/* Bounds of the boxes of `n` keys by n_lists vectors q; 0: by one per query head. */
static int check_bounds(const struct kvl_pctx *ctx, int32_t layer, const float *q, int32_t n_lists,
                        int32_t n, const float *key)
{
    const struct kvl_shape *sh = ctx->shape;
    int32_t n_pages = (n + PAGE - 1) / PAGE, lists = n_lists ? n_lists : sh->n_heads;
    float *bound;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(lists * n_pages), &bound));
    KVL_TRY(kvl_table_bounds(ctx, &(struct kvl_table_bounds){ .table = BOX,
                                                              .layer = layer,
                                                              .n_rows = n_pages,
                                                              .q = q,
                                                              .n_lists = n_lists,
                                                              .reduce = KVL_REDUCE_NONE,
                                                              .bound = bound }));
    for (int32_t i = 0; i < lists * n_pages; i++) {
        int32_t head = i / n_pages, page = i % n_pages, end = KVL_MIN(n, (page + 1) * PAGE);
        double want = 0;
        for (int32_t c = 0; c < DIM; c++) {
            double most = -HUGE_VAL;
            for (int32_t p = page * PAGE; p < end; p++)
                most = fmax(most, (double)q[head * DIM + c] *
                                      (double)key[(head / (lists / N_KV) * n + p) * DIM + c]);
            want += most;
        }
        near((double)bound[i], want);
    }
    return KVL_OK;
}

static int check_ranks(const struct kvl_pctx *ctx)
{
    float x[] = { 1, 5, 3, 5, -2, 4, 3 };
    /* Signs, a zero of each, ties; numbers of both signs that differ in all of their bytes. */
    float signs[] = { -1, -0.0f, 0, -3e20f, 2, -1 };
    float two[] = { 1, 2, 3, 9, 8, 7 }, even[] = { 0, 0, 0, 0 };
    int32_t index[6], number[] = { 4, 1, 9, -3 }, many[520];
    for (int32_t i = 0; i < 520; i++) many[i] = i * 261 % 520 * 1000003 - 250000000;
    KVL_TRY(kvl_topk_ranked(ctx, signs, 1, 6, 6, index));
    assert_memory_equal(index, ((int32_t[]){ 4, 1, 2, 0, 5, 3 }), sizeof index);
    KVL_TRY(kvl_ascending(ctx, many, 520));
    for (int32_t i = 0; i < 520; i++) assert_int_equal(many[i], i * 1000003 - 250000000);
    KVL_TRY(kvl_topk_ranked(ctx, x, 1, 7, 4, index));
    assert_memory_equal(index, ((int32_t[]){ 1, 3, 5, 2 }), 4 * sizeof *index);
    KVL_TRY(kvl_topk(ctx, two, 2, 3, 2, index));
    assert_memory_equal(index, ((int32_t[]){ 1, 2, 0, 1 }), 4 * sizeof *index);
    KVL_TRY(kvl_ascending(ctx, number, 4));
    assert_memory_equal(number, ((int32_t[]){ -3, 1, 4, 9 }), sizeof number);
    KVL_TRY(kvl_softmax(ctx, even, 2, 2));
    for (int32_t i = 0; i < 4; i++) near((double)even[i], .5);
    return KVL_OK;
}

static int check_product(const struct kvl_pctx *ctx, const float *x, int32_t n, const float *w,
                         int32_t n_rows)
{
    float *y;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(n * n_rows + 1), &y));
    y[n * n_rows] = 77;
    KVL_TRY(kvl_product(ctx, x, n, w, n_rows, DIM, y));
    for (int32_t i = 0; i < n * n_rows; i++)
        near((double)y[i], dot(x + i / n_rows * DIM, w + i % n_rows * DIM));
    near((double)y[n * n_rows], 77);
    return kvl_product(ctx, x, 0, w, n_rows, DIM, NULL); /* nothing to do */
}

static int check_scratch(const struct kvl_pctx *ctx)
{
    float *f;
    double *d;
    int32_t *i;
    uint8_t *u;
    void *p;
    KVL_TRY(kvl_scratch_get(ctx, 100, &f));
    KVL_TRY(kvl_scratch_get(ctx, 100, &d));
    KVL_TRY(kvl_scratch_get(ctx, 100, &i));
    KVL_TRY(kvl_scratch_get(ctx, 100, &u));
    KVL_TRY(kvl_scratch_items(ctx, 100, 24, &p));
    memset(f, 1, 100 * sizeof *f);
    memset(d, 2, 100 * sizeof *d);
    memset(i, 3, 100 * sizeof *i);
    memset(u, 4, 100);
    memset(p, 5, 100 * 24);
    assert_int_equal(((uint8_t *)f)[399], 1);
    assert_int_equal(((uint8_t *)d)[799], 2);
    assert_int_equal(i[99], 0x03030303);
    assert_int_equal(u[99], 4);
    return KVL_OK;
}

/* One score of every list, at the position of its number. */
static int check_tap(const struct kvl_pctx *ctx, const struct kvl_step *step)
{
    float *room;
    KVL_TRY(kvl_tap_room(ctx, step, KVL_SCOPE_KV_HEAD, &room));
    assert_true((room != NULL) == kvl_tap_listens(ctx));
    for (int32_t h = 0; room && h < N_KV; h++) room[h * (step->pos + 1) + h] = (float)(h + 7);
    return kvl_tap_positions(ctx, step, KVL_SCOPE_KV_HEAD, room);
}

static int told(void *user, const struct kvl_tap_score *t, struct kvl_err *err)
{
    (void)user;
    (void)err;
    assert_int_equal(t->scope, KVL_SCOPE_KV_HEAD);
    assert_int_equal(t->n_lists, N_KV);
    assert_int_equal(t->unit_tok, 1);
    assert_int_equal(t->first_tok, 0);
    assert_int_equal(t->n, N_CTX + n_told++ / N_LAYERS + 1);
    for (int32_t h = 0; h < N_KV; h++)
        for (int32_t i = 0; i < t->n; i++) {
            float x = t->score[h * t->n + i];
            assert_true(i == h ? x >= (float)(h + 7) && x <= (float)(h + 7) : isinf(x) && x < 0);
        }
    return KVL_OK;
}

static int calls_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t n = step->pos + 1;
    float *key, *one;
    int32_t *pos;
    (void)sel;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(N_KV * n * DIM), &key));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(N_KV * n * DIM), &one));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &pos));
    for (int32_t i = 0; i < n; i++) pos[i] = i;
    for (int32_t h = 0; h < N_KV; h++) {
        KVL_TRY(kvl_read_keys(ctx, step->layer, h, pos, n, false, key + h * n * DIM));
        KVL_TRY(kvl_read_key_span(ctx, step->layer, h, 3, n - 3, false, one));
        assert_memory_equal(one, key + (h * n + 3) * DIM, (size_t)((n - 3) * DIM) * sizeof *one);
        KVL_TRY(kvl_read_values(ctx, step->layer, h, pos + 5, n - 5, one));
        KVL_TRY(kvl_read_value_span(ctx, step->layer, h, 5, n - 5, one + (n - 5) * DIM));
        assert_memory_equal(one, one + (n - 5) * DIM, (size_t)((n - 5) * DIM) * sizeof *one);
    }
    KVL_TRY(check_rows(ctx, step->layer, n, key));
    KVL_TRY(check_scores(ctx, step->layer, q->q, n, key));
    if (step->layer >= 1) {
        KVL_TRY(check_bounds(ctx, step->layer, q->q, 0, n, key));
        KVL_TRY(check_bounds(ctx, step->layer, q->q, N_KV, n, key));
    }
    KVL_TRY(check_ranks(ctx));
    KVL_TRY(check_tap(ctx, step));
    KVL_TRY(check_product(ctx, q->q, ctx->shape->n_heads, key, n));
    n_checked++;
    return check_scratch(ctx);
}

static const struct kvl_policy calls = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "calls",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
    .caps = KVL_CAP_SELECTS,
    .plan = calls_plan,
    .append = calls_append,
    .select = calls_select,
};

/* A fork gives its rows to a base: its next ones lie apart. */
static void test_rows_in_two_pieces(void **state)
{
    struct rig_run run = { .policy = &calls, .id = id, .n_ctx = N_CTX, .budget = 40 };
    float *logits = rig_logits(&rig, N_STEPS);
    (void)state;
    n_checked = n_told = 0;
    struct rig_session a = rig_start(&rig, &run), b = rig_fork(&rig, &a), c = rig_fork(&rig, &a);
    rig_decode(&rig, &b, id + N_CTX, N_STEPS, logits);
    assert_int_equal(n_checked, N_LAYERS * N_STEPS);
    assert_int_equal(n_told, 0);
    kvl_session_tap(c.s, &(struct kvl_tap){ .score = told });
    rig_decode(&rig, &c, id + N_CTX, N_STEPS, logits);
    assert_int_equal(n_told, N_LAYERS * N_STEPS);
    kvl_free(logits);
    rig_end(&c);
    rig_end(&b);
    rig_end(&a);
}

/* Calls with what they cannot take, on a session in no hook. */
static void test_refusals(void **state)
{
    struct rig_run run = { .policy = &calls, .id = id, .n_ctx = N_CTX, .budget = 40 };
    struct rig_session rs = rig_start(&rig, &run);
    const struct kvl_pctx *ctx = &rs.s->ctx;
    struct kvl_step step = { .layer = 1, .pos = N_CTX - 1, .n_tok = 1 };
    struct kvl_rows rows;
    struct kvl_err err = { 0 };
    float x[N_TOK * 4] = { 0 };
    int32_t index[4];
    (void)state;
    kvl_hook_begin(rs.s, &err);
    struct kvl_table_scores s = { .table = LAYER, .layer = 1, .n_rows = 3, .q = x, .score = x };
#define REFUSED(call, code, needle)                                                                \
    do {                                                                                           \
        kvl_err_clear(&err);                                                                       \
        assert_int_equal(call, code);                                                              \
        if (!strstr(err.msg, needle)) fail_msg("message \"%s\" lacks \"%s\"", err.msg, needle);    \
    } while (0)
    REFUSED(kvl_table_scores(ctx, &s), KVL_EPOLICY, "want rows of floats");
    s.table = ROWS;
    s.n_lists = N_KV + 1;
    REFUSED(kvl_table_scores(ctx, &s), KVL_EPOLICY, "a multiple of 2 kv heads");
    s.n_lists = 0;
    s.first_elem = 4;
    s.elems = DIM;
    REFUSED(kvl_table_scores(ctx, &s), KVL_EPOLICY, "elements 4 to 19");
    s.n_rows = N_TOK;
    REFUSED(kvl_table_scores(ctx, &s), KVL_EPOLICY, "rows of table 1");
    REFUSED(kvl_table_minmax(ctx, ROWS, &step, x), KVL_EPOLICY, "a row of 2 x 16");
    REFUSED(kvl_table_minmax(ctx, N_TABLES, &step, x), KVL_EPOLICY, "want a handle from plan");
    REFUSED(kvl_table_bounds(ctx, &(struct kvl_table_bounds){ .table = LAYER, .q = x, .bound = x }),
            KVL_EPOLICY, "a row of 2 x 16");
    REFUSED(kvl_table_bounds(ctx,
                             &(struct kvl_table_bounds){
                                 .table = BOX, .q = x, .n_lists = N_KV + 1, .bound = x }),
            KVL_EPOLICY, "a multiple of 2 kv heads");
    REFUSED(kvl_table_read(ctx, BOX, 0, 1, &rows), KVL_EPOLICY, "no rows in layer 0");
    REFUSED(kvl_topk(ctx, x, 1, 3, 4, index), KVL_EPOLICY, "the 4 best of 3");
    REFUSED(kvl_group_scores(ctx, x, 3, KVL_REDUCE_NONE, x), KVL_EPOLICY, "reduction 0");
    REFUSED(kvl_softmax(ctx, x, 1, 0), KVL_EPOLICY, "softmax of 1 rows of 0");
    REFUSED(kvl_product(ctx, x, 1, x, 1, 0, x), KVL_EPOLICY, "products of 1 vectors");
    x[1] = nanf("");
    REFUSED(kvl_topk(ctx, x, 1, 3, 2, index), KVL_ENUMERIC, "NaN");
#undef REFUSED
    rig_end(&rs);
}

static void test_plans(void **state)
{
    struct kvl_err err = { 0 };
    struct kvl_planned *planned;
    struct kvl_plan_private p = { .n_tables = 0 };
    struct kvl_plan plan = { .shape = rig_shape(&rig), .err = &err, .p = &p };
    uint8_t *layers, *others;
    (void)state;
    assert_int_equal(kvl_plan_layers(&plan, "dense", 3, 1, &layers), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "dense=3; the model has 3 layers, give less"));
    kvl_err_clear(&err);
    assert_int_equal(kvl_plan_layers(&plan, "dense", -1, 1, &layers), KVL_EPOLICY);
    kvl_err_clear(&err);
    RIG_OK(&err, kvl_plan_layers(&plan, "dense", 0, 2, &layers));
    RIG_OK(&err, kvl_plan_layers(&plan, "dense", 2, 1, &others));
    assert_memory_equal(layers, ((uint8_t[]){ 1, 0, 1 }), 3);
    assert_memory_equal(others, ((uint8_t[]){ 0, 0, 1 }), 3);
    kvl_arena_free(&p.masks);
    assert_int_equal(kvl_planned_create(&calls, rig_shape(&rig), "", 0, N_CTX, &planned, &err),
                     KVL_EINVAL);
    assert_non_null(strstr(err.msg, "no budget"));
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
        cmocka_unit_test(test_rows_in_two_pieces),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_plans),
    };
    return cmocka_run_group_tests_name("policy_calls", tests, open_rig, close_rig);
}
