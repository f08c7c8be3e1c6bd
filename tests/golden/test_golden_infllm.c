/* InfLLM: the worked example (scores, cache), the split of the past, and a naive
 * InfLLM of the first layer, in double and token by token, against what the policy reads and returns.
 * The file of the method is included, so that its parts can be called one by one. */
#define KVL_PLUGIN
#include "../methods/infllm.c"

#include "engine_impl.h"
#include "golden/record.h"

/* ---- a context without an engine ------------------------------------------------------------- */

struct bare {
    struct kvl_engine engine;
    struct kvl_session session;
    struct kvl_host host;
    struct kvl_shape shape;
    struct kvl_err err;
    struct infllm_opts opts;
    struct kvl_pctx ctx;
};

static void bare_open(struct bare *b, const char *options)
{
    *b = (struct bare){
        .shape = { .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .group = 1, .head_dim = 2 }
    };
    b->session.engine = &b->engine;
    b->host.session = &b->session;
    b->ctx = (struct kvl_pctx){
        .shape = &b->shape, .ops = &kvl_ops_cpu, .opts = &b->opts, .err = &b->err, .host = &b->host
    };
    RIG_OK(&b->err, kvl_opt_defaults(infllm_options, &b->opts, &b->err));
    RIG_OK(&b->err, kvl_opt_parse(infllm_options, &b->opts, options, &b->err));
    struct kvl_plan_private private = { 0 };
    struct kvl_plan plan = {
        .shape = &b->shape, .opts = &b->opts, .own_prefill = true, .err = &b->err, .p = &private
    };
    if (b->opts.repr_topk == KVL_AUTO) b->opts.repr_topk = 1;
    RIG_OK(&b->err, infllm_plan(&plan));
    b->ctx.state = kvl_alloc(plan.state_bytes, 1);
    assert_non_null(b->ctx.state);
}

static void bare_close(struct bare *b)
{
    kvl_arena_free(&b->engine.scratch);
    kvl_free(b->ctx.state);
}

static void expect_near(double got, double want, double tolerance, const char *what)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("%s is %.9g, want %.9g", what, got, want);
}

/* ---- the worked example ----------------------------------------------------------------------- */

/* Two or three queries over keys, no mask: each as a token of its own behind the keys, whose own
 * weight is left out. */
static void check_scores(const char *kind, int32_t n_queries, const double (*q)[2], int32_t n_keys,
                         const double (*k)[2], const double *want)
{
    struct bare b;
    char options[128];
    snprintf(options, sizeof options,
             "n_init=0,n_local=20,block_size=4,topk=1,max_cached_block=1,repr_score=%s", kind);
    bare_open(&b, options);
    for (int32_t j = 0; j < n_queries; j++) {
        float probs[8] = { 0 }, lse;
        const float *row = probs;
        double sum = 0, e[8];
        for (int32_t t = 0; t < n_keys; t++)
            sum += e[t] = exp((q[j][0] * k[t][0] + q[j][1] * k[t][1]) / sqrt(2));
        for (int32_t t = 0; t < n_keys; t++) probs[t] = (float)(e[t] / sum);
        lse = (float)log(sum);
        const struct kvl_step step = { .pos = n_keys };
        assert_int_equal(infllm_observe(&b.ctx, &step, &row, NULL, &lse), KVL_OK);
    }
    bool logit = strcmp(kind, "logit") == 0;
    float *score;
    RIG_OK(&b.err, kvl_recent_read(&b.ctx, &b.opts.scores, 0, 0, n_keys, &score));
    for (int32_t t = 0; t < n_keys; t++) {
        double got = (double)score[t];
        expect_near(logit ? got * sqrt(2) / n_queries : got, want[t], 3e-6, kind);
    }
    bare_close(&b);
}

static void test_scores_of_the_example(void **state)
{
    static const double q[2][2] = { { 2, 0 }, { 0, 1 } },
                        k[3][2] = { { 1, 0 }, { 0, 1 }, { 1, 1 } };
    static const double q2[3][2] = { { 4, 0 }, { 0, 1 }, { 0, 1 } };
    static const double k2[2][2] = { { 1, 0 }, { 0, 1.5 } };
    (void)state;
    check_scores("mass", 2, q, 3, k, (double[]){ .643584, .509496, .84692 });
    check_scores("logit", 2, q, 3, k, (double[]){ 1, .5, 1.5 });
    check_scores("mass", 3, q2, 2, k2, (double[]){ 1.458559, 1.541441 }); /* ranked differently */
    check_scores("logit", 3, q2, 2, k2, (double[]){ 1.333333, 1 });
}

static struct kvl_counted_cache *cache_of(const struct bare *b)
{
    return kvl_state_of(&b->ctx, &b->opts.cached, 0);
}

static void request(struct bare *b, int32_t first, int32_t second)
{
    struct infllm_layer *l = kvl_state_of(&b->ctx, &b->opts.layers, 0);
    l->chosen[0] = first;
    l->chosen[1] = second;
    l->n_chosen = 2;
    assert_int_equal(
        kvl_counted_request(cache_of(b), b->opts.max_cached_block, l->chosen, 2,
                            b->opts.cache == INFLLM_LRU_S ? (float)b->opts.score_decay : -1.0f),
        KVL_OK);
}

static void expect_cached(struct bare *b, const char *want)
{
    char got[16] = "";
    for (int32_t block = 0; block < 10; block++)
        if (kvl_counted_find(cache_of(b), block))
            snprintf(got + strlen(got), sizeof got - strlen(got), "%d", block);
    assert_string_equal(got, want);
}

static void test_lru_of_the_example(void **state)
{
    static const int32_t ask[5][2] = { { 0, 1 }, { 1, 2 }, { 1, 3 }, { 0, 3 }, { 0, 2 } };
    static const char *const cached[5] = { "01", "012", "123", "013", "023" };
    static const int64_t misses[5] = { 2, 3, 4, 5, 6 };
    struct bare b;
    (void)state;
    bare_open(&b, "n_local=4,block_size=4,topk=2,max_cached_block=3");
    for (int i = 0; i < 5; i++) {
        request(&b, ask[i][0], ask[i][1]);
        expect_cached(&b, cached[i]);
        assert_int_equal(cache_of(&b)->n_misses, misses[i]);
    }
    assert_int_equal(cache_of(&b)->n_hits, 4);
    request(&b, 0, 2); /* the same selection: no miss */
    assert_int_equal(cache_of(&b)->n_misses, 6);
    request(&b, 1, 3); /* 3 is the oldest, but asked for: 0 goes */
    expect_cached(&b, "123");
    assert_int_equal(cache_of(&b)->n_misses, 7);
    bare_close(&b);
}

/* Ranks by hand, decay 0.5: what was heavy long ago goes later than what was light just now, but not
 * for ever. */
static void test_lru_s_goes_by_decayed_mass(void **state)
{
    static const struct {
        int32_t ask[2];
        float mass[2];
        const char *cached;
    } steps[] = {
        { { 0, 1 }, { 4, 1 }, "01" },  /* 0: 4    1: 1                      */
        { { 1, 2 }, { 1, 1 }, "012" }, /* 0: 2    1: 1.5    2: 1            */
        { { 1, 3 }, { 1, 1 }, "013" }, /* 0: 1    1: 1.75   2 goes   3: 1   */
        { { 1, 3 }, { 1, 1 }, "013" }, /* 0: .5   1: 1.875           3: 1.5 */
        { { 1, 4 }, { 1, 1 }, "134" }, /* 0 goes (.25), 3 (.75) stays       */
    };
    struct bare b;
    (void)state;
    bare_open(&b, "n_init=0,n_local=2,block_size=1,topk=2,max_cached_block=3,cache=lru_s,"
                  "score_decay=0.5");
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        const struct kvl_step step = { .pos = 1 };
        float probs[4] = { 0, 0, steps[i].mass[0], steps[i].mass[1] };
        const float *row = probs;
        request(&b, steps[i].ask[0], steps[i].ask[1]);
        assert_int_equal(infllm_observe(&b.ctx, &step, &row, NULL, NULL), KVL_OK);
        expect_cached(&b, steps[i].cached);
    }
    bare_close(&b);
}

/* n tokens to init, blocks, and what is left in the window: no remainder at these lengths. */
static void test_split_of_the_past(void **state)
{
    static const int32_t want[][4] = { { 4096, 0, 0, 4096 },
                                       { 4200, 104, 0, 4096 },
                                       { 8192, 128, 31, 4096 },
                                       { 131072, 128, 991, 4096 } };
    struct bare b;
    (void)state;
    bare_open(&b, "n_init=128,n_local=4096,block_size=128,topk=1,max_cached_block=1");
    for (int i = 0; i < 4; i++) {
        int32_t n = want[i][0], blocks = infllm_n_blocks(&b.opts, n);
        assert_int_equal(blocks, want[i][2]);
        assert_int_equal(KVL_MIN(n - 4096, infllm_first(&b.opts, blocks)), n - want[i][3]);
        assert_int_equal(n - want[i][1] - blocks * 128, want[i][3]);
    }
    bare_close(&b);
}

/* ---- a naive InfLLM of the first layer ------------------------------------------------------------ */

extern const struct kvl_policy *const kvl_policy_infllm;

enum { N_TOK = 62, H = 4, D = 16, MAX_BLOCKS = N_TOK };

static struct {
    struct rig r;
    int32_t id[N_TOK], n_kv;
    double q[N_TOK][H][D], k[N_TOK][H][D], v[N_TOK][H][D]; /* before RoPE, keys per query head */
    double score[N_TOK][H], vector[MAX_BLOCKS][H][D];
    double dense[N_TOK][H][N_TOK]; /* weights of full attention */
    double weight[H][N_TOK], out[H][D];
    uint8_t read[N_TOK];
    bool chosen[MAX_BLOCKS];
    int32_t n_blocks, n_seen;
} world;

struct sizes {
    int32_t n_init, n_local, block_size, topk, repr_topk, exc;
    bool logit, own, original;
    const char *more;
};

static void turn(const double *x, int32_t pos, double *y)
{
    for (int i = 0; i < D / 2; i++) {
        double a = pos * pow(10000.0, -2.0 * i / D), re = x[2 * i], im = x[2 * i + 1];
        y[2 * i] = re * cos(a) - im * sin(a);
        y[2 * i + 1] = re * sin(a) + im * cos(a);
    }
}

static double dot(const double *a, const double *b)
{
    double sum = 0;
    for (int c = 0; c < D; c++) sum += a[c] * b[c];
    return sum;
}

/* Logit of query p and key t of a head, the two standing at these positions. */
static double logit_at(int32_t p, int32_t h, int32_t t, int32_t q_pos, int32_t k_pos)
{
    double q[D], k[D];
    turn(world.q[p][h], q_pos, q);
    turn(world.k[t][h], k_pos, k);
    return dot(q, k) / sqrt(D);
}

/* Softmax over the positions that are read; far ones at distance n_local - 1. */
static void naive_attend(const struct sizes *z, int32_t p)
{
    for (int h = 0; h < H; h++) {
        double sum = 0;
        memset(world.out[h], 0, sizeof world.out[h]);
        for (int32_t t = 0; t <= p; t++) {
            bool far = p - t >= z->n_local && !z->original;
            double x = far ? logit_at(p, h, t, z->n_local - 1, 0) : logit_at(p, h, t, p, t);
            world.weight[h][t] = world.read[t] ? exp(x) : 0;
            sum += world.weight[h][t];
        }
        for (int32_t t = 0; t <= p; t++) {
            world.weight[h][t] /= sum;
            for (int c = 0; c < D; c++) world.out[h][c] += world.weight[h][t] * world.v[t][h][c];
        }
    }
}

/* What query p gives to the tokens of its window. */
static void naive_score(const struct sizes *z, int32_t p, double (*weight)[N_TOK])
{
    for (int32_t t = KVL_MAX(0, p + 1 - z->n_local); t <= p; t++)
        for (int h = 0; h < H; h++) {
            if (!z->logit) world.score[t][h] += weight[h][t];
            if (z->logit && t < p) world.score[t][h] += logit_at(p, h, t, p, t);
        }
}

static void naive_cut(const struct sizes *z, int32_t block)
{
    int32_t first = z->n_init + block * z->block_size;
    for (int h = 0; h < H; h++) {
        double score[N_TOK];
        uint8_t mark[N_TOK];
        for (int32_t i = 0; i < z->block_size; i++) score[i] = world.score[first + i][h];
        record_top(score, z->block_size, z->repr_topk, mark);
        memset(world.vector[block][h], 0, sizeof world.vector[block][h]);
        for (int32_t i = 0; i < z->block_size; i++)
            for (int c = 0; mark[i] && c < D; c++)
                world.vector[block][h][c] += world.k[first + i][h][c] / z->repr_topk;
    }
}

static void naive_choose(const struct sizes *z, int32_t p)
{
    double score[MAX_BLOCKS];
    uint8_t mark[MAX_BLOCKS];
    world.n_seen = world.n_blocks;
    if (world.n_blocks <= 0) return;
    for (int32_t b = 0; b < world.n_blocks; b++) {
        score[b] = 0;
        for (int h = 0; h < H; h++) {
            double q[D];
            turn(world.q[p][h], z->n_local - 1, q);
            score[b] += dot(q, world.vector[b][h]);
        }
    }
    record_top(score, world.n_blocks, KVL_MIN(z->topk, world.n_blocks), mark);
    for (int32_t b = 0; b < world.n_blocks; b++) world.chosen[b] = mark[b];
}

static void naive_step(const struct sizes *z, int32_t p, int32_t n_ctx)
{
    /* Blocks are cut behind the step that completes them. */
    while (z->n_init + (world.n_blocks + 1) * z->block_size <= p - z->n_local)
        naive_cut(z, world.n_blocks++);
    bool stream = z->own && p < n_ctx;
    bool again = p > 0 && p - 1 >= z->n_local && stream && p / z->exc == (p - 1) / z->exc;
    if (!again) naive_choose(z, p);
    for (int32_t t = 0; t <= p; t++) {
        int32_t block = t < z->n_init ? -1 : (t - z->n_init) / z->block_size;
        world.read[t] =
            t < z->n_init || p - t < z->n_local || block >= world.n_seen || world.chosen[block];
    }
    naive_attend(z, p);
    naive_score(z, p, world.weight);
}

/* ---- the policy beside it ---------------------------------------------------------------------- */

static void read_part(const struct rig_session *rs, enum kvl_kv_part part, double (*out)[H][D])
{
    float *x = rig_floats(N_TOK * D);
    for (int32_t h = 0; h < H; h++) {
        RIG_OK(&world.r.err, kvl_seq_read(kvl_session_seq(rs->s), 0, h / (H / world.n_kv), part, 0,
                                          N_TOK, x, &world.r.err));
        for (int i = 0; i < N_TOK * D; i++) out[i / D][h][i % D] = (double)x[i];
    }
    kvl_free(x);
}

/* A dense run token by token: queries, keys and values of the first layer, weights of full
 * attention.  No query of position 0 is recorded; it sees but itself, at any value. */
static void open_world(uint32_t n_kv_heads, uint64_t seed)
{
    struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = n_kv_heads, .seed = seed } };
    rig_open(&world.r, &desc);
    assert_int_equal(rig_shape(&world.r)->head_dim, D);
    assert_int_equal(rig_shape(&world.r)->n_heads, H);
    world.n_kv = (int32_t)n_kv_heads;
    /* All different: the first layer scores equal tokens the same, and rounding would choose. */
    for (int32_t i = 0; i < N_TOK; i++) world.id[i] = GW_BYTE0 + i * 37 % 250;
    record_run(&world.r, world.id, 1, N_TOK - 1, 0);
    struct rig_run run = { .policy = &record_policy, .id = world.id, .n_ctx = N_TOK };
    struct rig_session rs = rig_start(&world.r, &run);
    read_part(&rs, KVL_PART_K_RAW, world.k);
    read_part(&rs, KVL_PART_V, world.v);
    rig_end(&rs);
    memset(world.q[0], 0, sizeof world.q[0]);
    for (int32_t p = 1; p < N_TOK; p++)
        for (int h = 0; h < H; h++) {
            double q[D];
            for (int c = 0; c < D; c++) q[c] = (double)record.q[p - 1][0][h * D + c];
            turn(q, -p, world.q[p][h]);
        }
    const struct sizes all = { .n_local = N_TOK };
    memset(world.read, 1, sizeof world.read);
    for (int32_t p = 0; p < N_TOK; p++) {
        naive_attend(&all, p);
        memcpy(world.dense[p], world.weight, sizeof world.weight);
    }
}

static void reset_world(const struct sizes *z, int32_t n_ctx)
{
    memset(world.score, 0, sizeof world.score);
    world.n_blocks = world.n_seen = 0;
    for (int32_t p = 0; !z->own && p < n_ctx; p++) naive_score(z, p, world.dense[p]);
}

static int compare_read(void *user, const struct kvl_tap_read *got, struct kvl_err *err)
{
    const struct sizes *z = user;
    (void)err;
    if (got->layer > 0) return KVL_OK;
    naive_step(z, got->pos, z->own ? N_TOK - 10 : 0);
    for (int32_t h = 0; h < H; h++) {
        uint8_t read[N_TOK] = { 0 };
        for (int32_t i = 0; i < got->n_read[h]; i++) read[got->read[h][i]] = 1;
        for (int32_t t = 0; t <= got->pos; t++)
            if (read[t] != world.read[t])
                fail_msg(
                    "n_local=%d logit=%d own=%d exc=%d: step %d, head %d: position %d is %sread",
                    z->n_local, z->logit, z->own, z->exc, got->pos, h, t, read[t] ? "" : "not ");
        for (int c = 0; c < D; c++)
            expect_near((double)got->out[h * D + c], world.out[h][c], 2e-5, "attention");
    }
    return KVL_OK;
}

static void options_of(const struct sizes *z, char *out, size_t size)
{
    snprintf(out, size,
             "n_init=%d,n_local=%d,block_size=%d,topk=%d,repr_topk=%d,exc_block_size=%d,"
             "repr_score=%s,position=%s%s",
             z->n_init, z->n_local, z->block_size, z->topk, z->repr_topk, z->exc,
             z->logit ? "logit" : "mass", z->original ? "original" : "unified",
             z->more ? z->more : "");
}

static void check_beside_naive(struct sizes z)
{
    char options[256];
    int32_t n_ctx = z.own ? N_TOK - 10 : 33;
    struct rig_session rs = { 0 };
    struct kvl_err *err = &world.r.err;
    float *logits = rig_logits(&world.r, N_TOK);
    const struct kvl_tap tap = { .user = &z, .read = compare_read };
    options_of(&z, options, sizeof options);
    reset_world(&z, n_ctx);
    struct rig_run run = {
        .policy = kvl_policy_infllm, .options = options, .id = world.id, .n_ctx = n_ctx
    };
    if (!z.own) rs = rig_start(&world.r, &run);
    if (z.own) {
        RIG_OK(err, kvl_planned_create_own(run.policy, rig_shape(&world.r), options, 0, n_ctx,
                                           &rs.planned, err));
        RIG_OK(err, kvl_session_create(world.r.engine, &rs.s, err));
        RIG_OK(err, kvl_session_attach(rs.s, rs.planned, 1, KVL_EXEC_REAL, err));
    }
    kvl_session_tap(rs.s, &tap);
    if (z.own) RIG_OK(err, kvl_session_extend(rs.s, world.id, n_ctx, err));
    rig_decode(&world.r, &rs, world.id + n_ctx, N_TOK - n_ctx, logits);
    rig_end(&rs);
    kvl_free(logits);
}

/* Context of 33 tokens from a dense prefill, then 29 steps: blocks of the context, blocks that tokens
 * of both make, blocks of steps alone; and the same as a stream of 52 tokens, then 10 steps. */
static void test_policy_beside_a_naive_one(void **state)
{
    static const struct sizes base[] = {
        { .n_init = 3, .n_local = 10, .block_size = 4, .topk = 2, .repr_topk = 2, .exc = 1 },
        { .n_init = 0, .n_local = 7, .block_size = 5, .topk = 3, .repr_topk = 1, .exc = 1 },
        { .n_init = 5, .n_local = 2, .block_size = 1, .topk = 6, .repr_topk = 1, .exc = 1 },
        { .n_init = 1, .n_local = 20, .block_size = 8, .topk = 1, .repr_topk = 8, .exc = 1 },
        { .n_init = 40, .n_local = 6, .block_size = 3, .topk = 1, .repr_topk = 2, .exc = 1 },
    };
    (void)state;
    for (uint32_t kv = 1; kv <= 4; kv *= 2) {
        open_world(kv, 40 + kv);
        for (size_t i = 0; i < sizeof base / sizeof base[0]; i++)
            for (int bits = 0; bits < 16; bits++) {
                struct sizes z = base[i];
                z.logit = bits & 1;
                z.original = bits & 2;
                z.own = bits & 4;
                z.exc = bits & 8 ? 6 : 1;
                z.more = bits & 8 ? ",cache=lru_s" : "";
                check_beside_naive(z);
            }
        rig_close(&world.r);
    }
}

/* Vectors of the blocks there are, where some must be chosen, and the keys of each block that is cut:
 * nothing else.  (Rows of the table for blocks to come were counted too.) */
static void test_bytes_read_to_choose(void **state)
{
    enum { CTX = 33, REST = 3 + 10, SIZE = 4, TOPK = 2, BYTES = 4, LAYERS = 2 };
    int64_t want = 0;
    (void)state;
    for (uint32_t kv = 1; kv <= 4; kv *= 2) {
        open_world(kv, 50);
        struct rig_run run = { .policy = kvl_policy_infllm,
                               .options = "n_init=3,n_local=10,block_size=4,topk=2,repr_topk=2",
                               .id = world.id,
                               .n_ctx = CTX };
        struct rig_session rs = rig_start(&world.r, &run);
        float *logits = rig_logits(&world.r, 1);
        want = 0;
        for (int32_t n = CTX + 1; n <= N_TOK; n++) {
            int32_t blocks = (n - 1 - REST) / SIZE; /* that the step finds */
            if (blocks > TOPK) want += LAYERS * blocks * H * D * BYTES;
            if ((n - REST) / SIZE > blocks) want += LAYERS * SIZE * (int64_t)kv * D * BYTES;
            rig_decode(&world.r, &rs, world.id + n - 1, 1, logits);
            assert_int_equal(kvl_session_counters(rs.s)->index_read_bytes, want);
        }
        kvl_free(logits);
        rig_end(&rs);
        rig_close(&world.r);
    }
}

/* A window that holds everything is full attention, bit for bit. */
static void test_window_over_everything_is_full(void **state)
{
    (void)state;
    open_world(2, 3);
    struct rig_run run = { .policy = kvl_policy_infllm,
                           .options = "n_local=62,topk=1,n_init=4,block_size=4",
                           .id = world.id,
                           .n_ctx = 40,
                           .n_steps = N_TOK - 40 };
    float *got = rig_run(&world.r, &run);
    run.policy = &record_policy;
    run.options = "";
    float *want = rig_run(&world.r, &run);
    rig_expect_same(&world.r, want, got, run.n_steps, "one window and full attention");
    kvl_free(got);
    kvl_free(want);
    rig_close(&world.r);
}

/* ---- budget ------------------------------------------------------------------------------------------ */

static int plan_with(const char *options, int32_t budget, bool own, struct kvl_buf *text)
{
    struct kvl_shape shape = {
        .n_layers = 4, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .n_embd = 64, .group = 2
    };
    struct kvl_planned *p = NULL;
    struct kvl_err err = { 0 };
    int rc = (own ? kvl_planned_create_own : kvl_planned_create)(kvl_policy_infllm, &shape, options,
                                                                 budget, 5000, &p, &err);
    if (rc == KVL_OK && text) RIG_OK(&err, kvl_buf_adds(text, kvl_planned_options(p)));
    if (rc != KVL_OK) assert_true(err.msg[0] != '\0');
    kvl_planned_destroy(p);
    return rc;
}

static int32_t value_of(const struct kvl_buf *text, const char *name)
{
    const char *at = strstr(text->data, name);
    assert_non_null(at);
    return (int32_t)strtol(at + strlen(name), NULL, 10);
}

static void test_sizes_fill_the_budget(void **state)
{
    static const char *const given[] = { "",
                                         "block_size=3",
                                         "n_init=0",
                                         "n_local=9",
                                         "topk=2",
                                         "topk=1,n_init=1",
                                         "block_size=2,n_local=8" };
    (void)state;
    for (int32_t budget = 1; budget < 9000; budget += budget < 100 ? 1 : 37)
        for (size_t i = 0; i < sizeof given / sizeof given[0]; i++)
            for (int own = 0; own < 2; own++) {
                struct kvl_buf text = { 0 };
                int rc = plan_with(given[i], budget, own, &text);
                if (rc == KVL_OK) {
                    int32_t size = value_of(&text, "block_size="), n = value_of(&text, "n_init=");
                    n += value_of(&text, "n_local=") + size;
                    n += size * value_of(&text, "topk=");
                    if (own) n += value_of(&text, "exc_block_size=") - 1;
                    if (n > budget || (!strstr(given[i], "n_local") && n != budget))
                        fail_msg("budget %d: %d tokens with %s", budget, n, text.data);
                } else if (budget >= (i == 0 ? 14 : 40)) {
                    fail_msg("budget %d, \"%s\": refused", budget, given[i]);
                }
                kvl_buf_free(&text);
            }
}

static void test_official_sizes_are_those_of_their_budget(void **state)
{
    struct kvl_buf text = { 0 };
    (void)state;
    assert_int_equal(plan_with("", 6400, false, &text), KVL_OK);
    assert_int_equal(value_of(&text, "n_init="), 128);
    assert_int_equal(value_of(&text, "block_size="), 128);
    assert_int_equal(value_of(&text, "n_local="), 4096);
    assert_int_equal(value_of(&text, "topk="), 16);
    assert_int_equal(value_of(&text, "repr_topk="), 4);
    assert_int_equal(value_of(&text, "max_cached_block="), 32);
    kvl_buf_free(&text);
}

static void test_bad_options_are_refused(void **state)
{
    (void)state;
    assert_int_equal(plan_with("", 13, false, NULL), KVL_EINVAL);
    assert_int_equal(plan_with("", 14, false, NULL), KVL_OK);
    assert_int_equal(plan_with("", 0, false, NULL), KVL_EINVAL);
    assert_int_equal(plan_with("n_local=64,topk=4,n_init=4,block_size=4", 0, false, NULL), KVL_OK);
    assert_int_equal(plan_with("topk=64,max_cached_block=32", 9000, false, NULL), KVL_EINVAL);
    assert_int_equal(plan_with("block_size=4,repr_topk=5", 64, false, NULL), KVL_EINVAL);
    assert_int_equal(plan_with("n_local=1", 64, false, NULL), KVL_EINVAL);
    assert_int_equal(plan_with("block_size=64", 128, false, NULL), KVL_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores_of_the_example),
        cmocka_unit_test(test_lru_of_the_example),
        cmocka_unit_test(test_lru_s_goes_by_decayed_mass),
        cmocka_unit_test(test_split_of_the_past),
        cmocka_unit_test(test_policy_beside_a_naive_one),
        cmocka_unit_test(test_bytes_read_to_choose),
        cmocka_unit_test(test_window_over_everything_is_full),
        cmocka_unit_test(test_sizes_fill_the_budget),
        cmocka_unit_test(test_official_sizes_are_those_of_their_budget),
        cmocka_unit_test(test_bad_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
