/* Rooms that methods share: boxes of live tokens.  What they answer is worked out here once more, from stored keys. */
#include "conformance/rig.h"
#include "engine_impl.h"

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
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_boxes_of_live_tokens) };
    return cmocka_run_group_tests_name("method_rooms", tests, open_rig, close_rig);
}
