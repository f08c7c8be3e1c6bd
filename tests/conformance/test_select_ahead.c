/* A layer that chooses, in observe, what the layers behind it read; rotation and sizes for policies.
 * Each token of a block gets its own list; what is wrong is refused. */
#include "conformance/rig.h"

enum { N_LAYERS = 4, N_KV = 2, N_CTX = 50, N_BLOCK = 9, N_TOK = N_CTX + N_BLOCK + 4 };

/* What the policy does; tests only, a real policy keeps no globals. */
static struct {
    int (*choose)(const struct kvl_pctx *ctx, const struct kvl_step *step);
    int32_t n_asked;   /* calls of select */
    int32_t n_rotated; /* queries compared */
    int32_t token_bytes;
} now;

static int ahead_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const struct kvl_query *q, struct kvl_sel *sel)
{
    float turned[256];
    int32_t n = ctx->shape->n_heads * ctx->shape->head_dim;
    (void)sel;
    assert_true(n <= 256);
    now.n_asked++;
    KVL_TRY(kvl_rotate(ctx, step->layer, q->q_raw, ctx->shape->n_heads, step->pos, turned));
    assert_memory_equal(turned, q->q, (size_t)n * sizeof *turned);
    now.n_rotated++;
    now.token_bytes = kvl_token_bytes(ctx);
    return KVL_OK;
}

static int ahead_observe(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const float *const *probs, const int32_t *n, const float *lse)
{
    (void)probs;
    (void)n;
    (void)lse;
    return step->layer == 0 ? now.choose(ctx, step) : KVL_OK;
}

static const struct kvl_policy ahead = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "ahead",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
    .caps = KVL_CAP_SELECTS,
    .select = ahead_select,
    .observe = ahead_observe,
};

static struct rig rig;
static int32_t id[N_TOK];

static struct rig_session start(int (*choose)(const struct kvl_pctx *, const struct kvl_step *))
{
    now.choose = choose;
    now.n_asked = now.n_rotated = 0;
    struct rig_run run = { .policy = &ahead, .id = id, .n_ctx = N_CTX };
    return rig_start(&rig, &run);
}

/* Two positions that follow from the step, for layers 1 and 2. */
static int choose_two(const struct kvl_pctx *ctx, const struct kvl_step *step)
{
    int32_t pos[2] = { step->pos % 7, 20 + step->pos % 11 };
    return kvl_select_ahead(ctx, step, 1, 2, pos, 2);
}

static int compare_reads(void *user, const struct kvl_tap_read *r, struct kvl_err *err)
{
    int32_t *n = user, two[3] = { r->pos % 7, 20 + r->pos % 11, r->pos };
    bool chosen = r->layer == 1 || r->layer == 2;
    (void)err;
    ++*n;
    for (int32_t h = 0; h < 4; h++) {
        assert_int_equal(r->n_read[h], chosen ? 3 : r->pos + 1);
        if (chosen) assert_memory_equal(r->read[h], two, sizeof two);
    }
    return KVL_OK;
}

static void test_every_token_has_its_own_list(void **state)
{
    float *logits = rig_logits(&rig, 1);
    int32_t n_tapped = 0;
    (void)state;
    struct rig_session rs = start(choose_two);
    const struct kvl_tap tap = { .user = &n_tapped, .read = compare_reads };
    kvl_session_tap(rs.s, &tap);
    RIG_OK(&rig.err, kvl_session_extend(rs.s, id + N_CTX, N_BLOCK, &rig.err));
    rig_decode(&rig, &rs, id + N_CTX + N_BLOCK, 1, logits);
    assert_int_equal(n_tapped, (N_BLOCK + 1) * N_LAYERS);
    /* Layers 0 and 3 ask; each list counts as a selection. */
    assert_int_equal(now.n_asked, 2 * (N_BLOCK + 1));
    assert_int_equal(kvl_session_counters(rs.s)->n_select, 3 * (N_BLOCK + 1));
    rig_end(&rs);
    kvl_free(logits);
}

static void test_rotation_is_the_models(void **state)
{
    float *logits = rig_logits(&rig, 1);
    (void)state;
    struct rig_session rs = start(choose_two);
    rig_decode(&rig, &rs, id + N_CTX, 1, logits);
    assert_int_equal(now.n_rotated, 2);
    assert_int_equal(now.token_bytes, 2 * rig_shape(&rig)->head_dim * 4); /* 32-bit keys, values */
    rig_end(&rs);
    kvl_free(logits);
}

/* ---- refusals ---------------------------------------------------------------------------------- */

static int own_layer(const struct kvl_pctx *ctx, const struct kvl_step *step)
{
    return kvl_select_ahead(ctx, step, 0, 2, (int32_t[]){ 1 }, 1);
}
static int no_layer(const struct kvl_pctx *ctx, const struct kvl_step *step)
{
    return kvl_select_ahead(ctx, step, 3, 2, (int32_t[]){ 1 }, 1);
}
static int layer_too_far(const struct kvl_pctx *ctx, const struct kvl_step *step)
{
    return kvl_select_ahead(ctx, step, 1, N_LAYERS, (int32_t[]){ 1 }, 1);
}
static int position_ahead(const struct kvl_pctx *ctx, const struct kvl_step *step)
{
    return kvl_select_ahead(ctx, step, 1, 2, (int32_t[]){ step->pos + 1 }, 1);
}
static int unsorted(const struct kvl_pctx *ctx, const struct kvl_step *step)
{
    return kvl_select_ahead(ctx, step, 1, 2, (int32_t[]){ 4, 3 }, 2);
}
static int less_than_none(const struct kvl_pctx *ctx, const struct kvl_step *step)
{
    return kvl_select_ahead(ctx, step, 1, 2, (int32_t[]){ 4 }, -1);
}
static int rotate_nothing(const struct kvl_pctx *ctx, const struct kvl_step *step)
{
    float x[2] = { 0 };
    (void)step;
    return kvl_rotate(ctx, 0, x, 0, 1, x);
}
static int rotate_back(const struct kvl_pctx *ctx, const struct kvl_step *step)
{
    float x[2] = { 0 };
    (void)step;
    return kvl_rotate(ctx, 0, x, 1, -1, x);
}

static const struct {
    int (*choose)(const struct kvl_pctx *, const struct kvl_step *);
    const char *needle;
} refused[] = {
    { own_layer, "layers 0 to 2" },     { no_layer, "layers 3 to 2" },
    { layer_too_far, "layers 1 to 4" }, { position_ahead, "position 51 out of range" },
    { unsorted, "3 after 4" },          { less_than_none, "-1 positions" },
    { rotate_nothing, "0 vectors" },    { rotate_back, "position -1" },
};

static void test_refusals(void **state)
{
    float *logits = rig_logits(&rig, 1);
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct kvl_err err = { 0 };
        struct rig_session rs = start(refused[i].choose);
        int rc = kvl_session_decode(&rs.s, 1, id + N_CTX, logits, &err);
        if (rc != KVL_EPOLICY || !strstr(err.msg, refused[i].needle))
            fail_msg("case %zu: %s, \"%s\" lacks \"%s\"", i, kvl_status_name(rc), err.msg,
                     refused[i].needle);
        rig_end(&rs);
    }
    kvl_free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_token_has_its_own_list),
        cmocka_unit_test(test_rotation_is_the_models),
        cmocka_unit_test(test_refusals),
    };
    struct rig_desc desc = { .llama = { .n_layers = N_LAYERS, .n_kv_heads = N_KV, .seed = 8 },
                             .kv_type = KVL_KV_F32 };
    rig_open(&rig, &desc);
    rig_tokens(id, N_TOK, 8);
    int rc = cmocka_run_group_tests_name("select ahead", tests, NULL, NULL);
    rig_close(&rig);
    return rc;
}
