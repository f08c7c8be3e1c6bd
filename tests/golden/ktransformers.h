/* ktransformers.h - what the golden tests of ktransformers and ktransformers_code share: one block by hand, and what
 * preselect keeps, both through a policy's own hooks. */
#ifndef KVL_TESTS_KTRANSFORMERS_H
#define KVL_TESTS_KTRANSFORMERS_H

#include "golden/reads.h"

#include "engine_impl.h"

/* ---- one block by hand ----------------------------------------------------------------------------- */

enum { DIM = 4, BLOCK = 4, N_HAND = 8 }; /* channel 3 is zero */

static const float hand_keys[BLOCK][DIM] = {
    { -1, 2, -3 }, { -2, 1, -1 }, { -.5f, -4, -2 }, { -3, 0, -5 }
};
static const float hand_q[2][DIM] = { { 1, -1, .5f }, { -2, 0, 1 } };
static const float hand_mass[2][BLOCK] = { { .1f, .4f, .3f, .2f }, { .25f, .05f, .1f, .6f } };

struct hand {
    const struct kvl_policy *policy;
    struct rig r;
    struct rig_session rs;
    struct kvl_err err;
    float score[2];
};

/* A context of two equal blocks, and what its last queries attended to. */
static void hand_context(struct hand *x)
{
    struct kvl_session *s = x->rs.s;
    int32_t heads = rig_shape(&x->r)->n_kv_heads, pos[N_HAND];
    float k[N_HAND * 2 * DIM], v[N_HAND * 2 * DIM] = { 0 };
    for (int32_t i = 0; i < N_HAND; i++) {
        pos[i] = i;
        for (int32_t h = 0; h < heads; h++)
            memcpy(k + (size_t)(i * heads + h) * DIM, hand_keys[i % BLOCK], sizeof hand_keys[0]);
    }
    for (int32_t l = 0; l < 2; l++) {
        struct kvl_mass *m = kvl_alloc(1, sizeof *m);
        *m = (struct kvl_mass){ s->obs->masses, l, N_HAND, N_HAND, rig_floats(2 * N_HAND) };
        for (int32_t i = 0; i < 2 * N_HAND; i++) m->mass[i] = hand_mass[i / N_HAND][i % BLOCK];
        s->obs->masses = m;
        RIG_OK(&x->err, kvl_seq_append(s->seq, l, N_HAND, pos, k, k, v, &x->err));
    }
    s->n_pos = N_HAND;
    s->obs->n_seen = N_HAND;
}

static int hand_score(void *user, const struct kvl_tap_score *t, struct kvl_err *err)
{
    struct hand *x = user;
    (void)err;
    assert_int_equal(t->n, 2);
    memcpy(x->score, t->score, sizeof x->score);
    return KVL_OK;
}

static void hand_open(struct hand *x, const struct kvl_policy *policy, uint32_t n_kv_heads,
                      const char *options)
{
    char text[256];
    snprintf(text, sizeof text,
             "block_size=4,init_block_num=0,local_windows_len=0,second_block_count=1,%s", options);
    *x = (struct hand){ .policy = policy };
    struct rig_desc desc = {
        .llama = { .n_layers = 2, .n_heads = 2, .n_kv_heads = n_kv_heads, .head_dim = DIM }
    };
    rig_open(&x->r, &desc);
    RIG_OK(&x->err,
           kvl_planned_create(policy, rig_shape(&x->r), text, 64, N_HAND, &x->rs.planned, &x->err));
    rig_observe(&x->r, x->rs.planned);
    RIG_OK(&x->err, kvl_session_create(x->r.engine, &x->rs.s, &x->err));
    hand_context(x);
    RIG_OK(&x->err, kvl_session_attach(x->rs.s, x->rs.planned, 1, KVL_EXEC_REAL, &x->err));
}

static void hand_close(struct hand *x)
{
    rig_end(&x->rs);
    rig_close(&x->r);
}

/* Elements `at` and up of the row of block 0 in one kv head's table. */
static void expect_row(struct hand *x, int32_t kv_head, int32_t at, const float *want, int32_t n)
{
    struct kvl_rows rows;
    kvl_hook_begin(x->rs.s, &x->err);
    RIG_OK(&x->err, kvl_table_all(&x->rs.s->ctx, 0, 0, &rows));
    const float *row = kvl_table_row(&rows, kv_head, 0);
    for (int32_t c = 0; c < n; c++) assert_float_equal((double)row[at + c], (double)want[c], 1e-6);
}
#define EXPECT_ROW(x, kv_head, at, ...)                                                            \
    expect_row(x, kv_head, at, (float[]){ __VA_ARGS__ },                                           \
               (int32_t)(sizeof((float[]){ __VA_ARGS__ }) / sizeof(float)))

/* Both blocks score the same; the hook is asked as the engine would. */
static void expect_score(struct hand *x, double want)
{
    struct kvl_session *s = x->rs.s;
    struct kvl_step step = { .layer = 0, .pos = N_HAND, .n_tok = 1 };
    struct kvl_query q = { .q = &hand_q[0][0] };
    struct kvl_tap tap = { .user = x, .score = hand_score };
    struct kvl_sel sel;
    kvl_session_tap(s, &tap);
    kvl_hook_begin(s, &x->err);
    s->host.n_visible = N_HAND + 1;
    kvl_sel_init(&sel, s, 0, N_HAND + 1, &x->err);
    RIG_OK(&x->err, x->policy->select(&s->ctx, &step, &q, &sel));
    for (int i = 0; i < 2; i++) {
        if (want > 1e29)
            assert_true((double)x->score[i] > 1e29);
        else
            assert_float_equal((double)x->score[i], want, 1e-5);
    }
}

/* ---- runs --------------------------------------------------------------------------------------------- */

enum { N_CTX = 150, N_STEPS = 20, N_TOK = N_CTX + N_STEPS, HEAD = 16 };

struct lane {
    float k[N_TOK][HEAD];
};

#define SIZES(block, init, local, pick)                                                            \
    "importance_window=32,block_size=" #block ",init_block_num=" #init                             \
    ",local_windows_len=" #local ",second_block_count=" #pick ","

/* ---- preselect ------------------------------------------------------------------------------------------ */

/* The last queries of the context and its keys, to be judged without a causal mask. */
enum { WINDOW = 12 };
static struct lane window_lane;
static float window_q[READS_LAYERS][WINDOW][READS_Q];

static int window_plan(struct kvl_plan *plan)
{
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, WINDOW);
}

static int window_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    for (int32_t back = 0; back < WINDOW; back++)
        KVL_TRY(kvl_obs_window_query(ctx, layer, back, window_q[layer][back]));
    return KVL_OK;
}

static const struct kvl_policy window_policy = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "window",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
    .plan = window_plan,
    .prefilled = window_prefilled,
};

/* Importance of every token for query heads first .. last - 1 of a layer, mean over them. */
static void naive_importance(struct rig *r, const struct rig_session *rs, int32_t layer,
                             int32_t first, int32_t last, bool causal, double *out)
{
    const struct kvl_shape *sh = rig_shape(r);
    double weight[N_CTX];
    memset(out, 0, N_CTX * sizeof *out);
    for (int32_t h = first; h < last; h++) {
        record_keys(r, rs, layer, h / (sh->n_heads / sh->n_kv_heads), N_CTX, &window_lane.k[0][0]);
        for (int32_t back = 0; back < WINDOW; back++) {
            int32_t n = causal ? N_CTX - back : N_CTX;
            record_weights(window_q[layer][back] + h * HEAD, &window_lane.k[0][0], n, HEAD, weight);
            for (int32_t i = 0; i < n; i++) out[i] += weight[i] / (last - first);
        }
    }
}

/* Blocks with a quarter of a block on either side: marks those that stay of n_far. */
static void naive_preselect(const double *token, int32_t block, int32_t n_far, int32_t count,
                            uint8_t *mark, double *score)
{
    for (int32_t b = 0; b < n_far; b++) {
        int32_t n = 0;
        score[b] = 0;
        for (int32_t t = b * block - block / 4; t < (b + 1) * block + block / 4; t++) {
            if (t < 0 || t >= N_CTX) continue;
            score[b] += token[t];
            n++;
        }
        score[b] /= n;
    }
    record_top(score, n_far, count, mark);
}

/* as_code: importance without a causal mask, the first block that of largest importance. */
static void check_preselect(struct rig *r, const struct kvl_policy *policy, const int32_t *id,
                            bool separate, bool as_code)
{
    enum { BLK = 8, LOCAL = 3, COUNT = 5, FAR = N_CTX / BLK - LOCAL };
    const struct kvl_shape *sh = rig_shape(r);
    int32_t group = sh->n_heads / sh->n_kv_heads;
    char options[256];
    snprintf(options, sizeof options,
             "block_size=8,preselect_block=true,preselect_block_count=5,local_windows_len=31,"
             "second_block_count=2,init_block_num=1,importance_window=12,representative_type=MEAN,"
             "head_select_mode=%s",
             separate ? "SEPARATE" : "SHARED");
    struct rig_run look = { .policy = &window_policy, .budget = 1, .id = id, .n_ctx = N_CTX };
    struct rig_run run = look;
    run.policy = policy;
    run.options = options;
    struct rig_session all = rig_start(r, &look), rs = rig_start(r, &run);
    float *logits = rig_logits(r, 1);
    reads_tap(r, &rs);
    rig_decode(r, &rs, id + N_CTX, 1, logits);
    for (int32_t l = 0; l < sh->n_layers; l++)
        for (int32_t h = 0; h < sh->n_kv_heads; h++) {
            double token[N_CTX], score[FAR];
            uint8_t mark[FAR];
            int32_t want[N_TOK], n = 0, best = 0, lowest = -1;
            naive_importance(r, &all, l, separate ? h * group : 0,
                             separate ? (h + 1) * group : sh->n_heads, !as_code, token);
            naive_preselect(token, BLK, FAR, COUNT, mark, score);
            for (int32_t p = 0; p < N_CTX; p++)
                if (p >= FAR * BLK || mark[p / BLK]) want[n++] = p;
            want[n++] = N_CTX;
            rig_expect_kept(&rs, l, h, want, n);
            for (int32_t b = 0; b < FAR; b++) {
                if (score[b] > score[best]) best = b;
                if (mark[b] && lowest < 0) lowest = b;
            }
            /* The first block of those that are left: by position, published: by importance. */
            const uint8_t *read = reads.read[l][h * group];
            int32_t n_read = 0;
            for (int32_t p = 0; p < FAR * BLK; p++) n_read += read[p];
            assert_int_equal(n_read, 3 * BLK);
            assert_true(read[(as_code ? best : lowest) * BLK]);
            for (int32_t p = FAR * BLK; p <= N_CTX; p++) assert_true(read[p]);
        }
    kvl_free(logits);
    rig_end(&rs);
    rig_end(&all);
}

static void check_preselects(const struct kvl_policy *policy, bool as_code)
{
    int32_t id[N_TOK];
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        struct rig_desc desc = { .llama = { .n_layers = 3, .n_kv_heads = kv_heads, .seed = 12 } };
        struct rig r;
        rig_open(&r, &desc);
        rig_tokens(id, N_TOK, 3);
        for (int i = 0; i < 2; i++) check_preselect(&r, policy, id, i, as_code);
        rig_close(&r);
    }
}

#endif
