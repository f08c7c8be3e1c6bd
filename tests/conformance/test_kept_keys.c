/* Keys that a step made and the next one has: lists that shrink, grow and change altogether, a layer and a kv head beside the
 * other, a fork. */
#include "conformance/rig.h"
#include "parts/kept_keys.h"

enum { N_LAYERS = 2, N_KV = 2, DIM = 16, N_CTX = 90, N_STEPS = 60, MOST = 24 };

static struct rig rig;
static int32_t id[N_CTX + N_STEPS];

/* Tests only, a real policy keeps no globals. */
static struct {
    struct kvl_kept_keys kept;
    int64_t n_asked, n_made;
    bool too_many;
} seen;

static int ask_plan(struct kvl_plan *plan)
{
    kvl_plan_kept_keys(plan, MOST, &seen.kept);
    return KVL_OK;
}

/* What the key of a position is, in one layer and kv head. */
static float element(int32_t layer, int32_t kv_head, int32_t pos, int32_t c)
{
    return (float)(((layer * N_KV + kv_head) * N_CTX + pos) * DIM + c);
}

/* Ascending positions of a step: windows that move on, shrink and grow, and lists without a position of the one before. */
static int32_t step_list(int32_t index, int32_t kv_head, int32_t *pos)
{
    int32_t n = 3 + (index * 7) % (MOST - 2), every = index % 5 == 4 ? 2 : 3;
    for (int32_t i = 0; i < n; i++) pos[i] = (index / 6 * 3 + kv_head + every * i) % N_CTX;
    for (int32_t i = 1; i < n; i++)
        for (int32_t j = i; j > 0 && pos[j] < pos[j - 1]; j--) {
            int32_t swap = pos[j];
            pos[j] = pos[j - 1];
            pos[j - 1] = swap;
        }
    return n;
}

static int rebuild(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                   struct kvl_sel *sel)
{
    int32_t pos[N_KV * (MOST + 1)], n = seen.too_many ? MOST + 1 : 0;
    struct kvl_kept_step made;
    float *key;
    (void)q;
    (void)sel;
    for (int32_t h = 0; h < N_KV; h++) n = KVL_MAX(n, step_list(step->index, h, pos));
    for (int32_t h = 0; h < N_KV && n <= MOST; h++) (void)step_list(step->index, h, pos + h * n);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(N_KV * n * DIM), &key));
    KVL_TRY(kvl_kept_find(ctx, &seen.kept, step->layer, pos, n, &made));
    for (int32_t h = 0; h < N_KV; h++) {
        for (int32_t i = 0; i < made.n[h] * DIM; i++)
            made.made[h * n * DIM + i] =
                element(step->layer, h, made.pos[h * n + i / DIM], i % DIM);
        seen.n_made += made.n[h];
        seen.n_asked += n;
    }
    KVL_TRY(kvl_kept_take(ctx, &seen.kept, pos, &made, key));
    for (int32_t i = 0; i < N_KV * n * DIM; i++)
        assert_true(key[i] == element(step->layer, i / (n * DIM), pos[i / DIM], i % DIM));
    return KVL_OK;
}

RIG_POLICY(kept, .caps = KVL_CAP_SELECTS, .plan = ask_plan, .select = rebuild);

static void test_keys_are_those_of_their_positions(void **state)
{
    struct rig_run r = {
        .policy = &kept, .id = id, .n_ctx = N_CTX, .n_steps = N_STEPS, .budget = 40
    };
    float *logits = rig_logits(&rig, N_STEPS);
    struct kvl_session *fork;
    (void)state;
    struct rig_session rs = rig_start(&rig, &r);
    rig_decode(&rig, &rs, id + N_CTX, N_STEPS / 2, logits);
    /* Most are there already, and none that was never made. */
    assert_true(seen.n_made > 0 && seen.n_made < seen.n_asked * 2 / 3);
    RIG_OK(&rig.err, kvl_session_fork(rs.s, &fork, &rig.err));
    rig_decode(&rig, &rs, id + N_CTX + N_STEPS / 2, N_STEPS / 2, logits);
    kvl_session_destroy(rs.s);
    rs.s = fork;
    rig_decode(&rig, &rs, id + N_CTX + N_STEPS / 2, N_STEPS / 2, logits);
    rig_end(&rs);
    kvl_free(logits);
}

static void test_more_than_was_planned(void **state)
{
    struct rig_run r = { .policy = &kept, .id = id, .n_ctx = N_CTX, .n_steps = 1, .budget = 40 };
    float *logits = rig_logits(&rig, 1);
    (void)state;
    seen.too_many = true;
    struct rig_session rs = rig_start(&rig, &r);
    assert_int_equal(kvl_session_decode(&rs.s, 1, id + N_CTX, logits, &rig.err), KVL_EPOLICY);
    assert_non_null(strstr(rig.err.msg, "25 keys of a step, want 0 to 24"));
    rig.err = (struct kvl_err){ 0 };
    seen.too_many = false;
    rig_end(&rs);
    kvl_free(logits);
}

static int open_rig(void **state)
{
    (void)state;
    rig_open(&rig, &(struct rig_desc){ .llama = { .n_layers = N_LAYERS, .seed = 4 } });
    rig_tokens(id, N_CTX + N_STEPS, 6);
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
        cmocka_unit_test(test_keys_are_those_of_their_positions),
        cmocka_unit_test(test_more_than_was_planned),
    };
    return cmocka_run_group_tests_name("kept_keys", tests, open_rig, close_rig);
}
