/* TOVA: hand-computed rows through the policy's own hooks, and what runs keep against a naive cache. */
#include "golden/reads.h"

#include "engine_impl.h"

extern const struct kvl_policy *const kvl_policy_tova;

/* ---- by hand: two query heads, a cache of three ------------------------------------------------------ */

/* Queries of a hand-made context of zeros attend to all alike; the rows come through observe. */
struct hand {
    struct rig r;
    struct rig_session rs;
    struct kvl_err err;
};

static void hand_append(struct hand *x, int32_t pos)
{
    static const float zero[64] = { 0 };
    struct kvl_session *s = x->rs.s;
    kvl_row_table_append(s->host.table[0], 0, pos + 1);
    RIG_OK(&x->err, kvl_seq_append(s->seq, 0, 1, &pos, zero, zero, zero, &x->err));
}

/* Positions 0 .. n - 1, no context. */
static void hand_open(struct hand *x, uint32_t n_kv_heads, const char *options, int32_t n)
{
    *x = (struct hand){ 0 };
    struct rig_desc desc = {
        .llama = { .n_layers = 1, .n_heads = 2, .n_kv_heads = n_kv_heads, .head_dim = 4 }
    };
    rig_open(&x->r, &desc);
    RIG_OK(&x->err, kvl_planned_create_own(kvl_policy_tova, rig_shape(&x->r), options, 4, 16,
                                           &x->rs.planned, &x->err));
    RIG_OK(&x->err, kvl_session_create(x->r.engine, &x->rs.s, &x->err));
    RIG_OK(&x->err, kvl_session_attach(x->rs.s, x->rs.planned, 1, KVL_EXEC_REAL, &x->err));
    for (int32_t i = 0; i < n; i++) hand_append(x, i);
}

static void hand_close(struct hand *x)
{
    rig_end(&x->rs);
    rig_close(&x->r);
}

/* A step at `pos` whose two heads give these weights to what is live. */
static void hand_step(struct hand *x, int32_t pos, const float *a, const float *b, int32_t n,
                      const int32_t *want, int32_t n_want)
{
    struct kvl_session *s = x->rs.s;
    struct kvl_step step = { .layer = 0, .index = pos, .pos = pos, .n_tok = 1 };
    const float *probs[2] = { a, b };
    int32_t counts[2] = { n, n };
    float lse[2] = { 0, 0 };
    kvl_hook_begin(s, &x->err);
    s->host.n_visible = pos + 1;
    RIG_OK(&x->err, kvl_policy_tova->observe(&s->ctx, &step, probs, counts, lse));
    kvl_arena_reset(&x->r.engine->step);
    RIG_OK(&x->err, kvl_evict_layer(s, &step, false));
    for (int32_t h = 0; h < rig_shape(&x->r)->n_kv_heads; h++)
        rig_expect_kept(&x->rs, 0, h, want, n_want);
}
#define ROW(...)                                                                                   \
    (float[])                                                                                      \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define SET(...)                                                                                   \
    (int32_t[]){ __VA_ARGS__ }, (int32_t)(sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t))

/* Means .22, .20, .14, .15, .29, then .4, .1, .175, .325 over 0, 1, 4, 5. */
static void test_two_steps_by_hand(void **state)
{
    (void)state;
    for (uint32_t heads = 1; heads <= 2; heads++) {
        struct hand x;
        hand_open(&x, heads, "", 5);
        hand_step(&x, 4, ROW(.30f, .05f, .25f, .10f, .30f), ROW(.14f, .35f, .03f, .20f, .28f), 5,
                  SET(0, 1, 4));
        hand_append(&x, 5);
        hand_step(&x, 5, ROW(.5f, .1f, .15f, .25f), ROW(.3f, .1f, .2f, .4f), 4, SET(0, 4, 5));
        hand_close(&x);
    }
}

/* Ids 0, 4, 5, 6 with .4, .3, .25, .05: the newest goes, unless it is to stay. */
static void test_the_newest_may_go(void **state)
{
    static const float row[] = { .4f, .01f, .01f, .02f, .3f, .25f };
    struct hand x;
    (void)state;
    for (int i = 0; i < 2; i++) {
        hand_open(&x, 2, i ? "keep_newest=true" : "", 6);
        hand_step(&x, 5, row, row, 6, SET(0, 4, 5));
        hand_append(&x, 6);
        static const float next[] = { .4f, .3f, .25f, .05f }, last[] = { .1f, .2f, .3f, .4f };
        if (i)
            hand_step(&x, 6, next, next, 4, SET(0, 4, 6));
        else
            hand_step(&x, 6, next, next, 4, SET(0, 4, 5));
        hand_append(&x, 7); /* the newest is the best: it is counted once */
        if (i)
            hand_step(&x, 7, last, last, 4, SET(4, 6, 7));
        else
            hand_step(&x, 7, last, last, 4, SET(4, 5, 7));
        hand_close(&x);
    }
}

/* ---- runs ------------------------------------------------------------------------------------------------ */

enum { N_CTX = 60, N_STEPS = 30, N_TOK = N_CTX + N_STEPS, HEAD = 16 };

/* Mean weight of the step's queries over the live positions of a layer, from keys that were noted when
 * they came. */
static float noted[READS_LAYERS][READS_HEADS][N_TOK][HEAD];

static void note_key(struct rig *r, const struct rig_session *rs, int32_t layer, int32_t kv_head,
                     int32_t pos)
{
    int32_t slot;
    assert_int_equal(kvl_seq_find(kvl_session_seq(rs->s), layer, kv_head, &pos, 1, &slot), 1);
    RIG_OK(&r->err, kvl_seq_read(kvl_session_seq(rs->s), layer, kv_head, KVL_PART_K, slot, 1,
                                 noted[layer][kv_head][pos], &r->err));
}

static void mean_weights(const struct kvl_shape *sh, int32_t layer, const int32_t *live, int32_t n,
                         double *mean)
{
    float k[N_TOK * HEAD];
    double weight[N_TOK];
    memset(mean, 0, (size_t)n * sizeof *mean);
    for (int32_t h = 0; h < sh->n_heads; h++) {
        for (int32_t i = 0; i < n; i++)
            memcpy(k + i * HEAD, noted[layer][h / (sh->n_heads / sh->n_kv_heads)][live[i]],
                   HEAD * sizeof *k);
        record_weights(reads.q[layer] + h * HEAD, k, n, HEAD, weight);
        for (int32_t i = 0; i < n; i++) mean[i] += weight[i];
    }
}

/* Drops all but the `size` best. */
static int32_t cut(int32_t *live, int32_t n, const double *mean, int32_t size)
{
    uint8_t mark[N_TOK];
    int32_t m = 0;
    if (n <= size) return n;
    record_top(mean, n, size, mark);
    for (int32_t i = 0; i < n; i++)
        if (mark[i]) live[m++] = live[i];
    return m;
}

/* Newest keys are read through a tap before they may be dropped. */
static struct {
    struct rig *r;
    const struct rig_session *rs;
} watched;

static int take(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    const struct kvl_shape *sh = user;
    for (int32_t h = 0; h < sh->n_kv_heads; h++)
        note_key(watched.r, watched.rs, t->layer, h, t->pos);
    return reads_take(user, t, err);
}

/* Every step of a run keeps the naive cache's positions, from the first token on. */
static void check_own_prefill(uint32_t n_kv_heads, int32_t size)
{
    struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = n_kv_heads, .seed = 21 } };
    struct rig r;
    struct rig_session rs;
    int32_t id[N_TOK], live[READS_LAYERS][N_TOK], n[READS_LAYERS] = { 0 };
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 2);
    const struct kvl_shape *sh = rig_shape(&r);
    RIG_OK(&r.err,
           kvl_planned_create_own(kvl_policy_tova, sh, "", size + 1, N_TOK, &rs.planned, &r.err));
    RIG_OK(&r.err, kvl_session_create(r.engine, &rs.s, &r.err));
    RIG_OK(&r.err, kvl_session_attach(rs.s, rs.planned, 1, KVL_EXEC_REAL, &r.err));
    watched.r = &r;
    watched.rs = &rs;
    struct kvl_tap tap = { .user = (void *)(uintptr_t)sh, .read = take };
    kvl_session_tap(rs.s, &tap);
    for (int32_t t = 0; t < N_TOK; t++) {
        double mean[N_TOK];
        RIG_OK(&r.err, kvl_session_extend(rs.s, id + t, 1, &r.err));
        for (int32_t l = 0; l < sh->n_layers; l++) {
            live[l][n[l]++] = t;
            mean_weights(sh, l, live[l], n[l], mean);
            n[l] = cut(live[l], n[l], mean, size);
            for (int32_t h = 0; h < sh->n_kv_heads; h++) rig_expect_kept(&rs, l, h, live[l], n[l]);
        }
    }
    rig_end(&rs);
    rig_close(&r);
}

static void test_own_prefill_decides_after_every_token(void **state)
{
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) check_own_prefill(kv_heads, 12);
    check_own_prefill(2, 1);
}

/* The last token of a shared prefill decides about all of it: its queries are those of the last step of a
 * dense run. */
static void test_shared_prefill_is_cut_by_its_last_token(void **state)
{
    static const char *const options[] = { "", "mode=oneshot", "mode=oneshot,keep_newest=true" };
    struct rig_desc desc = { .llama = { .n_layers = 2, .seed = 21 } };
    struct rig r;
    int32_t id[N_TOK];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_TOK, 2);
    record_run(&r, id, N_CTX - 1, 1, 0);
    const struct kvl_shape *sh = rig_shape(&r);
    struct rig_run dense = { .policy = &record_policy, .id = id, .n_ctx = N_CTX };
    struct rig_session all = rig_start(&r, &dense);
    for (int32_t l = 0; l < 2; l++) {
        memcpy(reads.q[l], record.q[0][l], sizeof reads.q[l]);
        for (int32_t h = 0; h < sh->n_kv_heads; h++)
            for (int32_t p = 0; p < N_CTX; p++) note_key(&r, &all, l, h, p);
    }
    rig_end(&all);
    for (int i = 0; i < 3; i++) {
        struct rig_run run = {
            .policy = kvl_policy_tova, .options = options[i], .budget = 21, .id = id, .n_ctx = N_CTX
        };
        struct rig_session rs = rig_start(&r, &run);
        float *logits = rig_logits(&r, N_STEPS);
        for (int32_t l = 0; l < 2; l++) {
            int32_t live[N_TOK];
            double mean[N_TOK];
            for (int32_t p = 0; p < N_CTX; p++) live[p] = p;
            mean_weights(sh, l, live, N_CTX, mean);
            if (i == 2) mean[N_CTX - 1] = HUGE_VAL;
            int32_t n = cut(live, N_CTX, mean, 20);
            for (int32_t h = 0; h < sh->n_kv_heads; h++) rig_expect_kept(&rs, l, h, live, n);
        }
        rig_decode(&r, &rs, id + N_CTX, N_STEPS, logits);
        assert_int_equal(kvl_seq_len(kvl_session_seq(rs.s), 1, 1), i ? 20 + N_STEPS : 20);
        kvl_free(logits);
        rig_end(&rs);
    }
    rig_close(&r);
}

static void test_oneshot_has_no_own_prefill(void **state)
{
    struct kvl_shape shape = { .n_layers = 4,
                               .n_heads = 4,
                               .n_kv_heads = 2,
                               .head_dim = 16,
                               .n_embd = 64,
                               .n_vocab = 99,
                               .n_ctx_train = 4096,
                               .group = 2,
                               .scale = 0.25f };
    struct kvl_planned *p;
    struct kvl_err err = { 0 };
    (void)state;
    assert_int_equal(
        kvl_planned_create_own(kvl_policy_tova, &shape, "mode=oneshot", 9, 100, &p, &err),
        KVL_EINVAL);
    assert_non_null(strstr(err.msg, "prefill: shared"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_steps_by_hand),
        cmocka_unit_test(test_the_newest_may_go),
        cmocka_unit_test(test_own_prefill_decides_after_every_token),
        cmocka_unit_test(test_shared_prefill_is_cut_by_its_last_token),
        cmocka_unit_test(test_oneshot_has_no_own_prefill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
