/* KVzip: the scores of a repeated context against a softmax over queries that were written down while the
 * same tokens ran behind it, and what the policy makes of them. */
#include "engine_impl.h"
#include "golden/one_shot.h"
#include "ref.h"

extern const struct kvl_policy *const kvl_policy_kvzip;

enum {
    LAYERS = 3,
    KV = 2,
    LANES = LAYERS * KV,
    N_CTX = 50,
    CHUNK = 20,
    SINK = 4,
    MAX_REPEAT = 128
};
enum { MAX_HEADS = 4, MAX_DIM = 64, MAX_EMBD = 256 };

static const struct gw_llama llama = { .n_layers = LAYERS, .n_kv_heads = KV, .seed = 11 };

/* ---- what the engine says ------------------------------------------------------------------------------ */

static float told[2][LAYERS][KV][N_CTX];
static const enum kvl_observer kinds[2] = { KVL_OBS_REPLAY, KVL_OBS_REPLAY_PLUS };

static int watcher_plan(struct kvl_plan *plan)
{
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_REPLAY, CHUNK));
    return kvl_plan_observe(plan, KVL_OBS_REPLAY_PLUS, CHUNK);
}

static int watcher_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    scores->keep_tok = scores->n_tok;
    for (int kind = 0; kind < 2; kind++) {
        const float *score;
        int32_t n_tok;
        KVL_TRY(kvl_obs_replay(ctx, layer, kinds[kind], CHUNK, &score, &n_tok));
        assert_int_equal(n_tok, N_CTX);
        memcpy(told[kind][layer], score, sizeof told[kind][layer]);
    }
    return KVL_OK;
}

static const struct kvl_policy watcher = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "watcher",
    .title = "Watcher",
    .paper = "none",
    .help = "writes down scores",
    .version = 1,
    .caps = KVL_CAP_EVICTS,
    .plan = watcher_plan,
    .score = watcher_score,
};

/* ---- the same tokens one by one --------------------------------------------------------------------------- */

static struct {
    float q[LAYERS][MAX_REPEAT][MAX_HEADS * MAX_DIM];
    double norm[LAYERS][MAX_REPEAT]; /* of the layer's input */
} ran;

static int runner_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    const struct kvl_shape *sh = ctx->shape;
    double sum = 0;
    (void)sel;
    assert_true(step->index < MAX_REPEAT && sh->n_heads <= MAX_HEADS && sh->head_dim <= MAX_DIM);
    memcpy(ran.q[step->layer][step->index], q->q,
           (size_t)(sh->n_heads * sh->head_dim) * sizeof *q->q);
    for (int32_t i = 0; i < sh->n_embd; i++) sum += pow((double)q->x[i], 2);
    ran.norm[step->layer][step->index] = sqrt(sum);
    return KVL_OK;
}

static const struct kvl_policy runner = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "runner",
    .title = "Runner",
    .paper = "none",
    .help = "writes down queries",
    .version = 1,
    .caps = KVL_CAP_SELECTS,
    .select = runner_select,
};

/* Length of W_o v for query head h. */
static double output_norm(struct shot *t, int32_t layer, int32_t head, const float *v)
{
    const struct kvl_shape *sh = rig_shape(&t->r);
    const struct kvl_weight *w = &t->r.model->w.layer[layer].attn_output;
    double sum = 0;
    for (int32_t row = 0; row < sh->n_embd; row++) {
        double y = 0;
        for (int32_t c = 0; c < sh->head_dim; c++)
            y += (double)kvl_ref_weight(w, row, head * sh->head_dim + c) * (double)v[c];
        sum += y * y;
    }
    return sqrt(sum);
}

static double dot(const float *a, const float *b, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* k: keys of a lane, the context's and then those of the repetition.  Raises the scores of one query. */
static void score_query(struct shot *t, int32_t layer, int32_t head, int32_t i, int32_t first,
                        int32_t last, const float *k, const float *v, double score[2][N_CTX])
{
    int32_t dim = rig_shape(&t->r)->head_dim;
    const float *q = ran.q[layer][i] + head * dim;
    double weight[N_CTX], sum = 0;
    for (int32_t s = 0; s <= N_CTX + i; s++) {
        bool seen = s < SINK || (s >= first && s < last) || s >= N_CTX;
        double w = seen ? exp(dot(q, k + s * dim, dim) / sqrt(dim)) : 0;
        if (s < N_CTX) weight[s] = w;
        sum += w;
    }
    for (int32_t s = first; s < last; s++) {
        double plus =
            weight[s] / sum / ran.norm[layer][i] * output_norm(t, layer, head, v + s * dim);
        score[0][s] = fmax(score[0][s], weight[s] / sum);
        score[1][s] = fmax(score[1][s], plus);
    }
}

static int32_t request(struct shot *t, int32_t first, int32_t last, int32_t *id)
{
    const char *text =
        first == 0 ? "\n\nNow write down the whole text above once more, word for word:\n\n"
                   : "\n\nNow write down the text above once more, word for word, from here on: ";
    struct kvl_tokens tokens = { 0 };
    RIG_OK(&t->r.err, kvl_encode(kvl_model_tokenizer(t->r.model), text, strlen(text),
                                 KVL_ENCODE_CONTINUE, &tokens, &t->r.err));
    int32_t n = tokens.n;
    assert_true(n + CHUNK + 8 <= MAX_REPEAT);
    memcpy(id, tokens.id, (size_t)n * sizeof *id);
    kvl_tokens_free(&tokens);
    for (int32_t i = first == 0 ? 0 : first - 8; i < last; i++) id[n++] = t->id[i];
    return n;
}

static void naive_chunk(struct shot *t, int32_t first, int32_t last, double score[LANES][2][N_CTX])
{
    int32_t id[MAX_REPEAT], n = request(t, first, last, id), dim = rig_shape(&t->r)->head_dim;
    int32_t group = rig_shape(&t->r)->n_heads / KV, n_all = N_CTX + n;
    struct rig_session rs = shot_policy(t, &runner, "", 0);
    float *k = rig_floats((size_t)(n_all * dim)), *v = rig_floats((size_t)(n_all * dim));
    RIG_OK(&t->r.err, kvl_session_extend(rs.s, id, n, &t->r.err));
    for (int32_t lane = 0; lane < LANES; lane++) {
        const struct kvl_seq *seq = kvl_session_seq(rs.s);
        int32_t l = lane / KV, h = lane % KV;
        RIG_OK(&t->r.err, kvl_seq_read(seq, l, h, KVL_PART_K, 0, n_all, k, &t->r.err));
        RIG_OK(&t->r.err, kvl_seq_read(seq, l, h, KVL_PART_V, 0, n_all, v, &t->r.err));
        for (int32_t i = 0; i < n; i++)
            for (int32_t g = 0; g < group; g++)
                score_query(t, l, h * group + g, i, first, last, k, v, score[lane]);
    }
    kvl_free(k);
    kvl_free(v);
    rig_end(&rs);
}

static void test_scores_are_the_largest_weights(void **state)
{
    static double score[LANES][2][N_CTX];
    struct shot t;
    (void)state;
    shot_open(&t, &llama, N_CTX, 5);
    for (int32_t first = 0; first < N_CTX; first += CHUNK)
        naive_chunk(&t, first, KVL_MIN(N_CTX, first + CHUNK), score);
    struct rig_session rs = shot_policy(&t, &watcher, "", 0);
    assert_true(kvl_session_counters(rs.s)->replay_ns > 0);
    for (int kind = 0; kind < 2; kind++)
        for (int32_t lane = 0; lane < LANES; lane++)
            for (int32_t i = 0; i < N_CTX; i++) {
                double got = (double)told[kind][lane / KV][lane % KV][i],
                       want = score[lane][kind][i];
                assert_true(fabs(got - want) <= 1e-4 * (1 + want));
                assert_true(got > 0);
            }
    rig_end(&rs);
    shot_close(&t);
}

/* The prefill's chunks are not those that are repeated. */
static void test_chunks_of_the_prefill_do_not_matter(void **state)
{
    static float one[2][LAYERS][KV][N_CTX];
    int32_t id[N_CTX];
    (void)state;
    rig_tokens(id, N_CTX, 3);
    for (int i = 0; i < 2; i++) {
        struct rig_desc desc = { .llama = llama, .chunk_tok = i ? 7 : 512 };
        struct rig r;
        rig_open(&r, &desc);
        struct rig_run run = { .policy = &watcher, .id = id, .n_ctx = N_CTX };
        struct rig_session rs = rig_start(&r, &run);
        rig_end(&rs);
        rig_close(&r);
        if (i == 0) memcpy(one, told, sizeof one);
    }
    assert_memory_equal(one, told, sizeof one);
}

/* ---- the policy ---------------------------------------------------------------------------------------------- */

/* Marks the best pairs of lanes lane0 .. lane0 + n_lanes - 1 behind the sink. */
static void mark_best(int kind, int32_t lane0, int32_t n_lanes, int32_t k, bool strict,
                      uint8_t mark[LANES][N_CTX])
{
    static double score[LANES * N_CTX];
    static uint8_t best[LANES * N_CTX];
    int32_t n = n_lanes * (N_CTX - SINK);
    double worst = HUGE_VAL;
    for (int32_t i = 0; i < n; i++) {
        int32_t lane = lane0 + i / (N_CTX - SINK);
        score[i] = (double)told[kind][lane / KV][lane % KV][SINK + i % (N_CTX - SINK)];
    }
    record_top(score, n, k, best);
    for (int32_t i = 0; i < n; i++)
        if (best[i]) worst = fmin(worst, score[i]);
    for (int32_t i = 0; i < n; i++)
        mark[lane0 + i / (N_CTX - SINK)][SINK + i % (N_CTX - SINK)] =
            strict ? score[i] > worst : best[i];
}

struct zip {
    const char *options;
    int32_t budget;
    int kind;
    bool layerwise, strict;
};

static void check_policy(struct shot *t, const struct zip *c)
{
    uint8_t mark[LANES][N_CTX] = { { 0 } };
    int32_t want[N_CTX], total = 0, per_lane = c->budget - 1 - SINK;
    struct rig_session rs = shot_policy(t, kvl_policy_kvzip, c->options, c->budget);
    for (int32_t l = 0; l < LAYERS; l++) {
        if (c->layerwise) mark_best(c->kind, l * KV, KV, KV * per_lane, c->strict, mark);
        if (!c->layerwise && l == 0)
            mark_best(c->kind, 0, LANES, LANES * per_lane, c->strict, mark);
    }
    for (int32_t lane = 0; lane < LANES; lane++) {
        int32_t n = 0;
        for (int32_t i = 0; i < N_CTX; i++)
            if (i < SINK || mark[lane][i]) want[n++] = i;
        rig_expect_kept(&rs, lane / KV, lane % KV, want, n);
        total += n;
    }
    assert_int_equal(total, LANES * (c->budget - 1) - c->strict * (c->layerwise ? LAYERS : 1));
    rig_end(&rs);
}

static void test_policy_keeps_the_best_pairs(void **state)
{
    static const struct zip cases[] = {
        { "chunk_size=20", 21, 0, false, false },
        { "chunk_size=20,layerwise=true", 21, 0, true, false },
        { "chunk_size=20,plus=true", 17, 1, false, false },
        { "chunk_size=20,ties=strict", 30, 0, false, true },
        { "chunk_size=20,ties=strict,plus=true,layerwise=true", 12, 1, true, true },
    };
    struct shot t;
    (void)state;
    shot_open(&t, &llama, N_CTX, 5);
    struct rig_session rs = shot_policy(&t, &watcher, "", 0);
    rig_end(&rs);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_policy(&t, &cases[i]);
    shot_close(&t);
}

/* One repetition serves all that start from the same prefill, whatever their budgets; and the context
 * comes out of it as it went in. */
static void test_one_repetition_serves_all(void **state)
{
    struct rig_desc desc = { .llama = llama };
    struct kvl_session *s, *fork[2];
    struct kvl_planned *p[2];
    struct kvl_seq_stats before, after;
    int32_t id[N_CTX];
    struct rig r;
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_CTX, 3);
    for (int i = 0; i < 2; i++)
        RIG_OK(&r.err, kvl_planned_create(kvl_policy_kvzip, rig_shape(&r), "chunk_size=20",
                                          20 + 10 * i, N_CTX, &p[i], &r.err));
    rig_observe(&r, p[0]);
    RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
    RIG_OK(&r.err, kvl_session_prefill(s, id, N_CTX, NULL, true, &r.err));
    kvl_seq_stats(kvl_session_seq(s), &before);
    for (int i = 0; i < 2; i++) {
        RIG_OK(&r.err, kvl_session_fork(s, &fork[i], &r.err));
        RIG_OK(&r.err, kvl_session_attach(fork[i], p[i], 0, KVL_EXEC_REAL, &r.err));
    }
    kvl_seq_stats(kvl_session_seq(s), &after);
    assert_int_equal(before.n_slots, after.n_slots);
    assert_int_equal(kvl_session_len(s), N_CTX);
    uint64_t ns = kvl_session_counters(fork[0])->replay_ns;
    assert_true(ns > 0 && ns == kvl_session_counters(fork[1])->replay_ns);
    for (int i = 0; i < 2; i++) kvl_session_destroy(fork[i]);
    kvl_session_destroy(s);
    for (int i = 0; i < 2; i++) kvl_planned_destroy(p[i]);
    RIG_OK(&r.err, kvl_store_check(kvl_engine_store(r.engine), &r.err));
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores_are_the_largest_weights),
        cmocka_unit_test(test_chunks_of_the_prefill_do_not_matter),
        cmocka_unit_test(test_policy_keeps_the_best_pairs),
        cmocka_unit_test(test_one_repetition_serves_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
