/* Rooms that methods share: boxes of live tokens, rows that stand for the keys of a unit, the window without a mask, a
 * cache that is counted.  What they answer is worked out here once more, from stored keys and queries. */
#include "conformance/rig.h"
#include "engine_impl.h"
#include "parts/counted_cache.h"
#include "parts/recent.h"

#include <math.h>

enum { N_LAYERS = 2, N_KV = 2, DIM = 16, N_CTX = 50, N_STEPS = 7, N_TOK = N_CTX + N_STEPS };
enum { BOX_TOK = 3, N_CHANNELS = 5, BOXES = 0, FLAT };

static struct rig rig;
static int32_t id[N_TOK], n_checked;

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-4 * (1 + fabs(want)))) fail_msg("got %g, want %g", got, want);
}

/* ---- boxes of live tokens ---------------------------------------------------------------------------- */

static int rooms_plan(struct kvl_plan *plan)
{
    int32_t handle;
    plan->replay = KVL_REPLAY_NONE;
    KVL_TRY(kvl_plan_table(plan, &handle, .unit = KVL_META_LIVE, .unit_tok = 1,
                           .row_elems = KVL_BOX_ELEMS(DIM, BOX_TOK), .elem = KVL_META_KEY));
    return kvl_plan_meta(plan, KVL_META_PAGE, 1, 2 * DIM, &handle);
}

/* Boxes first .. last - 1 of all lanes. */
static int rooms_put(const struct kvl_pctx *ctx, int32_t layer, int32_t first, int32_t last)
{
    const int32_t *pos;
    int32_t n;
    for (int32_t h = 0; h < N_KV; h++) {
        KVL_TRY(kvl_live(ctx, layer, h, &pos, &n));
        KVL_TRY(kvl_table_boxes(ctx, BOXES, layer, h, BOX_TOK, pos, first, last - first));
    }
    return KVL_OK;
}

static int rooms_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    return rooms_put(ctx, layer, 0, N_CTX / BOX_TOK);
}

static int rooms_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                        const float *v)
{
    int32_t n = (step->pos + 1) / BOX_TOK;
    (void)k;
    (void)v;
    return (step->pos + 1) % BOX_TOK ? KVL_OK : rooms_put(ctx, step->layer, n - 1, n);
}

/* The channels of largest sum of |q| over the query heads of a kv head. */
static void channels_of(const struct kvl_shape *sh, const float *q, int32_t kv_head, bool *chosen)
{
    double size[DIM] = { 0 };
    memset(chosen, 0, DIM * sizeof *chosen);
    for (int32_t i = 0; i < sh->group * DIM; i++)
        size[i % DIM] += fabs((double)q[kv_head * sh->group * DIM + i]);
    for (int32_t n = 0; n < N_CHANNELS; n++) {
        int32_t best = -1;
        for (int32_t c = 0; c < DIM; c++)
            if (!chosen[c] && (best < 0 || size[c] > size[best])) best = c;
        chosen[best] = true;
    }
}

/* What a box's channel gives: its maximum where the group's sum of q is not negative, else its minimum. */
static double bound_of(const struct kvl_shape *sh, const float *q, int32_t kv_head, int32_t c,
                       const float *key)
{
    double sum = 0, bound = (double)key[c];
    for (int32_t g = 0; g < sh->group; g++) sum += (double)q[(kv_head * sh->group + g) * DIM + c];
    for (int32_t i = 1; i < BOX_TOK; i++)
        bound =
            sum < 0 ? fmin(bound, (double)key[i * DIM + c]) : fmax(bound, (double)key[i * DIM + c]);
    return bound;
}

static int rooms_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct kvl_shape *sh = ctx->shape;
    int32_t n = step->pos / BOX_TOK;
    float *score, *key;
    (void)sel;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(sh->n_heads * n), &score));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(n * BOX_TOK * DIM), &key));
    int64_t before = ctx->host->session->count.index_read_bytes;
    KVL_TRY(kvl_table_box_scores(ctx, BOXES, step->layer, BOX_TOK, n, N_CHANNELS, q->q, score));
    int64_t elems = KVL_BOX_ELEMS(DIM, BOX_TOK), rows = (n * N_CHANNELS + elems - 1) / elems;
    assert_int_equal(ctx->host->session->count.index_read_bytes - before, rows * elems * N_KV * 4);
    for (int32_t h = 0; h < sh->n_heads; h++) {
        bool chosen[DIM];
        channels_of(sh, q->q, h / sh->group, chosen);
        KVL_TRY(kvl_read_key_span(ctx, step->layer, h / sh->group, 0, n * BOX_TOK, false, key));
        for (int32_t i = 0; i < n; i++) {
            double want = 0;
            for (int32_t c = 0; c < DIM; c++)
                if (chosen[c])
                    want += (double)q->q[h * DIM + c] *
                            bound_of(sh, q->q, h / sh->group, c, key + i * BOX_TOK * DIM);
            near((double)score[h * n + i], want * (double)sh->scale);
        }
    }
    n_checked++;
    return KVL_OK;
}

static const struct kvl_policy rooms = { .abi = KVL_POLICY_ABI,
                                         .size = sizeof(struct kvl_policy),
                                         .name = "rooms",
                                         .title = "t",
                                         .paper = "p",
                                         .help = "h",
                                         .version = 1,
                                         .caps = KVL_CAP_SELECTS,
                                         .plan = rooms_plan,
                                         .append = rooms_append,
                                         .prefilled = rooms_prefilled,
                                         .select = rooms_select };

static void test_boxes_of_live_tokens(void **state)
{
    struct rig_run run = { .policy = &rooms, .id = id, .n_ctx = N_CTX, .budget = 40 };
    float *logits = rig_logits(&rig, N_STEPS);
    float x[DIM * 4] = { 0 };
    struct kvl_err err = { 0 };
    (void)state;
    n_checked = 0;
    struct rig_session rs = rig_start(&rig, &run);
    rig_decode(&rig, &rs, id + N_CTX, N_STEPS, logits);
    assert_int_equal(n_checked, N_LAYERS * N_STEPS);
    kvl_hook_begin(rs.s, &err);
    assert_int_equal(kvl_table_box_scores(&rs.s->ctx, FLAT, 0, BOX_TOK, 1, 2, x, x), KVL_EPOLICY);
    assert_non_null(strstr(err.msg, "want a table of live tokens"));
    kvl_err_clear(&err);
    assert_int_equal(kvl_table_boxes(&rs.s->ctx, BOXES, 0, 0, 1, id, 0, 0), KVL_EPOLICY);
    assert_non_null(strstr(err.msg, "rows of 32 floats"));
    kvl_free(logits);
    rig_end(&rs);
}

/* ---- rows that stand for the keys of a unit ----------------------------------------------------------- */

enum { SUMS = 0, EVEN_MEANS, TOP, TOP_SUM, CODES };
enum { UNIT = 8, UNIT_FIRST = 3, TOP_UNIT = 5, TOP_K = 2, N_TOP = (N_CTX - UNIT_FIRST) / TOP_UNIT };
enum { WINDOW = 6 };

static int units_plan(struct kvl_plan *plan)
{
    int32_t handle, group = plan->shape->group;
    plan->replay = KVL_REPLAY_KEYS;
    plan->raw_keys = true;
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, WINDOW));
    KVL_TRY(kvl_plan_meta(plan, KVL_META_PAGE, UNIT, DIM, &handle));
    KVL_TRY(kvl_plan_meta(plan, KVL_META_PAGE, UNIT, 2 * DIM, &handle));
    KVL_TRY(kvl_plan_meta(plan, KVL_META_PAGE, 1, group * DIM, &handle));
    KVL_TRY(kvl_plan_meta(plan, KVL_META_PAGE, 1, group * DIM + 4, &handle));
    return kvl_plan_table(plan, &handle, .unit = KVL_META_PAGE, .unit_tok = UNIT, .row_elems = DIM,
                          .elem = KVL_META_KEY);
}

/* What lay there before is no number. */
static int units_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                        const float *v)
{
    struct kvl_rows rows;
    (void)v;
    for (int32_t table = SUMS; table <= EVEN_MEANS; table++) {
        KVL_TRY(kvl_table_write(ctx, table, step->layer, step->pos / UNIT, &rows));
        for (int32_t i = 0; i < N_KV * rows.n_rows; i++) {
            float *row = kvl_table_row_out(&rows, i / rows.n_rows, i % rows.n_rows);
            bool begins = step->pos % UNIT == 0 || i % rows.n_rows > 0;
            for (int32_t c = 0; begins && c < rows.row_elems; c++) row[c] = NAN;
        }
    }
    KVL_TRY(kvl_table_key_sums(ctx, SUMS, step, k, 1, false));
    return kvl_table_key_sums(ctx, EVEN_MEANS, step, k, 2, true);
}

static float score_of(int32_t head, int32_t pos)
{
    return (float)((pos * 7 + head * 3) % 11); /* with ties */
}

/* The sum of the TOP_K keys of largest score of a unit, by position where they are equal. */
static double top_sum(const float *key, int32_t head, int32_t first, int32_t c)
{
    bool taken[TOP_UNIT] = { false };
    double sum = 0;
    for (int32_t n = 0; n < TOP_K; n++) {
        int32_t best = -1;
        for (int32_t i = 0; i < TOP_UNIT; i++)
            if (!taken[i] && (best < 0 || score_of(head, first + i) > score_of(head, first + best)))
                best = i;
        taken[best] = true;
        sum += (double)key[(first + best) * DIM + c];
    }
    return sum;
}

static int check_top(const struct kvl_pctx *ctx, int32_t layer, bool raw)
{
    int32_t n_heads = ctx->shape->n_heads, group = ctx->shape->group;
    struct kvl_rows rows;
    float *score, *key;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(n_heads * N_CTX), &score));
    KVL_TRY(kvl_scratch_get(ctx, N_CTX * DIM, &key));
    for (int32_t i = 0; i < n_heads * N_CTX; i++) score[i] = score_of(i / N_CTX, i % N_CTX);
    struct kvl_table_top_keys top = { .table = raw ? TOP_SUM : TOP,
                                      .layer = layer,
                                      .row = 4,
                                      .n = N_TOP,
                                      .first_tok = UNIT_FIRST,
                                      .unit_tok = TOP_UNIT,
                                      .k = TOP_K,
                                      .raw = raw,
                                      .sum = raw,
                                      .score = score + UNIT_FIRST,
                                      .stride = N_CTX };
    KVL_TRY(kvl_table_top_keys(ctx, &top));
    KVL_TRY(kvl_table_peek(ctx, top.table, layer, 4 + N_TOP, &rows));
    for (int32_t h = 0; h < n_heads; h++) {
        KVL_TRY(kvl_read_key_span(ctx, layer, h / group, 0, N_CTX, raw, key));
        for (int32_t i = 0; i < N_TOP * DIM; i++) {
            const float *row = kvl_table_row(&rows, h / group, 4 + i / DIM);
            double want = top_sum(key, h, UNIT_FIRST + i / DIM * TOP_UNIT, i % DIM);
            near((double)row[h % group * DIM + i % DIM], raw ? want : want / TOP_K);
        }
    }
    return KVL_OK;
}

/* Softmax of each of the last queries over all keys, added up. */
static int check_unmasked(const struct kvl_pctx *ctx, int32_t layer)
{
    int32_t n_heads = ctx->shape->n_heads;
    const float *mass;
    float *q, *key;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(n_heads * DIM), &q));
    KVL_TRY(kvl_scratch_get(ctx, N_CTX * DIM, &key));
    KVL_TRY(kvl_obs_window_unmasked(ctx, layer, WINDOW, &mass));
    for (int32_t h = 0; h < n_heads; h++) {
        double want[N_CTX] = { 0 };
        KVL_TRY(kvl_read_key_span(ctx, layer, h / ctx->shape->group, 0, N_CTX, false, key));
        for (int32_t back = 0; back < WINDOW; back++) {
            double e[N_CTX], sum = 0;
            KVL_TRY(kvl_obs_window_query(ctx, layer, back, q));
            for (int32_t t = 0; t < N_CTX; t++) {
                double dot = 0;
                for (int32_t c = 0; c < DIM; c++)
                    dot += (double)q[h * DIM + c] * (double)key[t * DIM + c];
                sum += e[t] = exp(dot * (double)ctx->shape->scale);
            }
            for (int32_t t = 0; t < N_CTX; t++) want[t] += e[t] / sum;
        }
        for (int32_t t = 0; t < N_CTX; t++) near((double)mass[h * N_CTX + t], want[t]);
    }
    return KVL_OK;
}

static int units_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    KVL_TRY(check_top(ctx, layer, false));
    KVL_TRY(check_top(ctx, layer, true));
    return check_unmasked(ctx, layer);
}

static int units_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    int32_t n = step->pos + 1, n_rows = (n + UNIT - 1) / UNIT;
    struct kvl_rows sums, means;
    float *key;
    (void)q;
    (void)sel;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(n * DIM), &key));
    KVL_TRY(kvl_table_peek(ctx, SUMS, step->layer, n_rows, &sums));
    KVL_TRY(kvl_table_peek(ctx, EVEN_MEANS, step->layer, n_rows, &means));
    for (int32_t h = 0; h < N_KV; h++) {
        KVL_TRY(kvl_read_key_span(ctx, step->layer, h, 0, n, false, key));
        for (int32_t i = 0; i < n_rows * DIM; i++) {
            int32_t r = i / DIM, c = i % DIM, end = KVL_MIN(n, (r + 1) * UNIT);
            const float *sum = kvl_table_row(&sums, h, r), *mean = kvl_table_row(&means, h, r);
            double all = 0, even = 0;
            for (int32_t t = r * UNIT; t < end; t++) {
                all += (double)key[t * DIM + c];
                if (t % 2 == 0) even += (double)key[t * DIM + c];
            }
            if (n >= (r + 1) * UNIT) even /= UNIT / 2;
            near((double)sum[c], all);
            near((double)mean[c], even);
            near((double)mean[DIM + c], even);
        }
    }
    n_checked++;
    return KVL_OK;
}

static const struct kvl_policy units = { .abi = KVL_POLICY_ABI,
                                         .size = sizeof(struct kvl_policy),
                                         .name = "units",
                                         .title = "t",
                                         .paper = "p",
                                         .help = "h",
                                         .version = 1,
                                         .caps = KVL_CAP_SELECTS,
                                         .plan = units_plan,
                                         .append = units_append,
                                         .prefilled = units_prefilled,
                                         .select = units_select };

static void test_rows_of_units(void **state)
{
    struct rig_run run = { .policy = &units, .id = id, .n_ctx = N_CTX, .budget = 40 };
    float *logits = rig_logits(&rig, N_STEPS);
    struct kvl_step step = { .pos = N_CTX - 1, .n_tok = 1 };
    struct kvl_table_top_keys top = { .table = SUMS, .n = 1, .unit_tok = 1, .k = 1 };
    float x[DIM * 4] = { 0 };
    struct kvl_err err = { 0 };
    (void)state;
    n_checked = 0;
    struct rig_session rs = rig_start(&rig, &run);
    rig_decode(&rig, &rs, id + N_CTX, N_STEPS, logits);
    assert_int_equal(n_checked, N_LAYERS * N_STEPS);
    kvl_hook_begin(rs.s, &err);
#define REFUSED(call, needle)                                                                      \
    do {                                                                                           \
        kvl_err_clear(&err);                                                                       \
        assert_int_equal(call, KVL_EPOLICY);                                                       \
        if (!strstr(err.msg, needle)) fail_msg("message \"%s\" lacks \"%s\"", err.msg, needle);    \
    } while (0)
    REFUSED(kvl_table_key_sums(&rs.s->ctx, CODES, &step, x, 1, false), "want rows of 1 x 16");
    REFUSED(kvl_table_key_sums(&rs.s->ctx, TOP_SUM, &step, x, 1, false), "want rows of 1 x 16");
    REFUSED(kvl_table_key_sums(&rs.s->ctx, SUMS, &step, x, 0, false), "every 0-th");
    REFUSED(kvl_table_top_keys(&rs.s->ctx, &top), "x 16 floats per page");
    top.table = TOP;
    top.k = 0;
    REFUSED(kvl_table_top_keys(&rs.s->ctx, &top), "the 0 best keys");
    const float *mass;
    REFUSED(kvl_obs_window_unmasked(&rs.s->ctx, 0, N_CTX + 1, &mass), "want 1 to 50");
#undef REFUSED
    kvl_free(logits);
    rig_end(&rs);
}

/* ---- a cache that is counted ---------------------------------------------------------------------------- */

static void expect_units(const struct kvl_counted_cache *c, int32_t n, const int32_t *want)
{
    assert_int_equal(c->n, n);
    for (int32_t i = 0; i < n; i++) assert_int_equal(c->in[i].unit, want[i]);
}

static void request(struct kvl_counted_cache *c, int32_t a, int32_t b, float decay)
{
    assert_int_equal(kvl_counted_request(c, 3, (int32_t[]){ a, b }, 2, decay), KVL_OK);
}

static void test_counted_cache(void **state)
{
    struct kvl_counted_cache *c = kvl_alloc(kvl_counted_bytes(3), 1);
    (void)state;
    request(c, 4, 7, -1);
    request(c, 5, 7, -1); /* 4 is the oldest */
    expect_units(c, 3, (int32_t[]){ 4, 7, 5 });
    request(c, 4, 9, -1); /* 4 is named: of 5 and 7, as old, the lower goes */
    expect_units(c, 3, (int32_t[]){ 4, 7, 9 });
    assert_int_equal(c->n_hits, 2);
    assert_int_equal(c->n_misses, 4);
    assert_int_equal(kvl_counted_request(c, 3, (int32_t[]){ 1, 2, 3, 6 }, 4, -1), KVL_EINVAL);
    expect_units(c, 3, (int32_t[]){ 4, 7, 9 });
    assert_int_equal(c->n_requests, 3);
    memset(c, 0, kvl_counted_bytes(3));
    request(c, 4, 7, .5f);
    kvl_counted_find(c, 4)->rank += 8;
    kvl_counted_find(c, 7)->rank += 1;
    request(c, 5, 6, .5f); /* 4 is worth 4, 7 half a point, which goes */
    expect_units(c, 3, (int32_t[]){ 4, 6, 5 });
    assert_null(kvl_counted_find(c, 7));
    assert_true(kvl_counted_find(c, 4)->rank >= 4 && kvl_counted_find(c, 4)->rank <= 4);
    kvl_free(c);
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
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_boxes_of_live_tokens),
                                        cmocka_unit_test(test_rows_of_units),
                                        cmocka_unit_test(test_counted_cache) };
    return cmocka_run_group_tests_name("method_rooms", tests, open_rig, close_rig);
}
