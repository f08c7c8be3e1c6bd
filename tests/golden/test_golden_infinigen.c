/* InfiniGen: the tokens that the second layer reads, worked out in double from the weights, the input of
 * the first layer and the stored keys; what is fetched ahead. */
#include "engine_impl.h"
#include "golden/record.h"

extern const struct kvl_policy *const kvl_policy_infinigen;

enum { N_CTX = 180, N_STEPS = 12, HEAD_DIM = 16, N_EMBD = 64, N_HEADS = 4, MAX_TOK = 256 };

/* ---- what a dense run gives to policies ----------------------------------------------------------- */

static struct {
    float x[N_STEPS][N_EMBD];                /* input of layer 0 */
    float x_prev[N_STEPS][N_EMBD];           /* what layer 1 gets as that */
    float window[N_CTX][N_HEADS * HEAD_DIM]; /* queries of layer 1, newest first */
    bool none;                               /* layer 0 has no layer before it */
} seen;

enum { SAMPLE = 64 };

static int seen_plan(struct kvl_plan *plan)
{
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, SAMPLE);
}

static int seen_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    scores->keep_tok = scores->n_tok;
    for (int32_t i = 0; layer == 1 && i < SAMPLE; i++)
        KVL_TRY(kvl_obs_window_query(ctx, layer, i, seen.window[i]));
    return KVL_OK;
}

static int seen_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    (void)ctx;
    (void)sel;
    if (step->layer == 0) {
        memcpy(seen.x[step->index], q->x, sizeof seen.x[0]);
        seen.none = q->x_prev == NULL;
    }
    if (step->layer == 1) memcpy(seen.x_prev[step->index], q->x_prev, sizeof seen.x[0]);
    return KVL_OK;
}

static const struct kvl_policy seeing = { .abi = KVL_POLICY_ABI,
                                          .size = sizeof(struct kvl_policy),
                                          .name = "seeing",
                                          .title = "test",
                                          .paper = "none",
                                          .help = "test",
                                          .version = 1,
                                          .caps = KVL_CAP_SELECTS | KVL_CAP_EVICTS,
                                          .plan = seen_plan,
                                          .score = seen_score,
                                          .select = seen_select };

/* ---- in double -------------------------------------------------------------------------------------- */

/* W_q of layer 1 times x, turned to a position: pairs (2i, 2i + 1). */
static void query_of(const struct rig *r, const float *x, int32_t pos, double *q)
{
    const float *w = r->model->w.layer[1].attn_q.data;
    for (int32_t i = 0; i < N_HEADS * HEAD_DIM; i++) {
        q[i] = 0;
        for (int32_t c = 0; c < N_EMBD; c++) q[i] += (double)w[i * N_EMBD + c] * (double)x[c];
    }
    for (int32_t i = 0; i < N_HEADS * HEAD_DIM; i += 2) {
        double angle = pos * r->model->w.rope[0].inv_freq[i % HEAD_DIM / 2], a = q[i], b = q[i + 1];
        q[i] = a * cos(angle) - b * sin(angle);
        q[i + 1] = a * sin(angle) + b * cos(angle);
    }
}

/* Marks the r channels that carry most of sampled queries and keys of a kv head. */
static void channels_of(const float *k, int32_t kv_head, int32_t group, int32_t r, uint8_t *mark)
{
    double weight[HEAD_DIM] = { 0 };
    for (int32_t c = 0; c < HEAD_DIM; c++) {
        for (int32_t i = 0; i < SAMPLE; i++)
            for (int32_t g = 0; g < group; g++)
                weight[c] += fabs((double)seen.window[i][(kv_head * group + g) * HEAD_DIM + c]);
        for (int32_t i = 0; i < N_CTX; i++) weight[c] += fabs((double)k[i * HEAD_DIM + c]);
    }
    record_top(weight, HEAD_DIM, r, mark);
}

struct infinigen_case {
    const char *options;
    int32_t budget, r;
    double alpha;
};

/* score [group][n] of the query heads of a kv head, less their largest; adds up how many are near it. */
static void guess_of(const double *q, const float *k, int32_t n, int32_t group,
                     const uint8_t *channel, double alpha, double *best, int64_t *count)
{
    for (int32_t i = 0; i < n; i++) best[i] = -HUGE_VAL;
    for (int32_t g = 0; g < group; g++) {
        double s[MAX_TOK], max = -HUGE_VAL;
        for (int32_t i = 0; i < n; i++) {
            s[i] = 0;
            for (int32_t c = 0; c < HEAD_DIM; c++)
                s[i] += channel[c] ? q[g * HEAD_DIM + c] * (double)k[i * HEAD_DIM + c] : 0;
            s[i] /= sqrt(HEAD_DIM);
            max = fmax(max, s[i]);
        }
        for (int32_t i = 0; i < n; i++) {
            *count += s[i] - max > -alpha;
            best[i] = fmax(best[i], s[i] - max);
        }
    }
}

static void check_step(struct rig *r, const int32_t *id, int32_t n_before,
                       const struct infinigen_case *c)
{
    const struct kvl_shape *sh = rig_shape(r);
    int32_t group = N_HEADS / sh->n_kv_heads, n = N_CTX + n_before;
    float *k = rig_floats(MAX_TOK * HEAD_DIM), *logits = rig_logits(r, N_STEPS);
    double q[N_HEADS * HEAD_DIM], best[N_HEADS][MAX_TOK];
    int64_t count = 0;
    struct rig_run run = { .policy = kvl_policy_infinigen,
                           .options = c->options,
                           .budget = c->budget,
                           .id = id,
                           .n_ctx = N_CTX };
    struct rig_session rs = rig_start(r, &run);
    rig_decode(r, &rs, id + N_CTX, n_before, logits);
    const uint8_t *hit = rig_decode_probed(r, &rs, id[n], logits);
    query_of(r, seen.x[n_before], n, q);
    for (int32_t h = 0; h < sh->n_kv_heads; h++) {
        uint8_t channel[HEAD_DIM];
        record_keys(r, &rs, 1, h, n, k);
        channels_of(k, h, group, c->r, channel);
        guess_of(q + h * group * HEAD_DIM, k, n, group, channel, c->alpha, best[h], &count);
    }
    int32_t want = (int32_t)KVL_MIN((count + N_HEADS - 1) / N_HEADS, (int64_t)c->budget - 1);
    for (int32_t h = 0; h < sh->n_kv_heads; h++) {
        uint8_t mark[MAX_TOK];
        const uint8_t *row = hit + (size_t)(sh->n_kv_heads + h) * (size_t)(n + 1);
        record_top(best[h], n, want, mark);
        for (int32_t i = 0; i < n; i++)
            if (row[i] != mark[i])
                fail_msg("%s: step %d head %d position %d is %sread", c->options, n_before, h, i,
                         row[i] ? "" : "not ");
        assert_true(row[n]);
    }
    rig_end(&rs);
    kvl_free(k);
    kvl_free(logits);
}

static const struct infinigen_case cases[] = {
    { "partial_weight_ratio=1,alpha=1000,skewing=false", 40, 16, 1000 },
    { "partial_weight_ratio=1,alpha=1000,skewing=true", 40, 16, 1000 },
    { "partial_weight_ratio=0.3,alpha=1000,skewing=false", 40, 5, 1000 },
    { "partial_weight_ratio=0.5,alpha=0.7,skewing=false", 60, 8, 0.7 },
    { "partial_weight_ratio=1,alpha=1.5,skewing=true", 60, 16, 1.5 },
};

static void test_second_layer_reads_what_the_first_guessed(void **state)
{
    int32_t id[N_CTX + N_STEPS];
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = kv_heads, .seed = 9 } };
        struct rig r;
        rig_open(&r, &desc);
        rig_tokens(id, N_CTX + N_STEPS, 6);
        struct rig_run run = { .policy = &seeing, .id = id, .n_ctx = N_CTX, .n_steps = N_STEPS };
        kvl_free(rig_run(&r, &run));
        assert_true(seen.none);
        assert_memory_equal(seen.x, seen.x_prev, sizeof seen.x);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            check_step(&r, id, 0, &cases[i]);
            check_step(&r, id, N_STEPS - 1, &cases[i]);
        }
        rig_close(&r);
    }
}

/* ---- what moves ------------------------------------------------------------------------------------------ */

/* Four layers, nothing cached: layer 0 fetches all, layer 1 its guess, layers 2 and 3 have theirs when
 * their turn comes. */
static void test_fetched_ahead(void **state)
{
    int32_t id[N_CTX + N_STEPS];
    struct rig r;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 4, .seed = 9 } });
    rig_tokens(id, N_CTX + N_STEPS, 6);
    struct rig_run run = { .policy = kvl_policy_infinigen,
                           .options = "alpha=1000",
                           .budget = 33,
                           .id = id,
                           .n_ctx = N_CTX };
    struct rig_session rs = rig_start(&r, &run);
    float *logits = rig_logits(&r, N_STEPS);
    rig_decode(&r, &rs, id + N_CTX, N_STEPS, logits);
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    int64_t slot = 2 * HEAD_DIM * 4, all = N_STEPS * (2 * N_CTX + N_STEPS - 1) / 2;
    assert_int_equal(c->h2d_bytes, 2 * slot * (all + 3 * 32 * N_STEPS));
    assert_int_equal(c->prefetch_bytes, 2 * slot * 2 * 32 * N_STEPS);
    assert_int_equal(c->prefetch_wrong_bytes, 0);
    assert_int_equal(c->cache_misses, 2 * (all + 32 * N_STEPS));
    assert_int_equal(c->cache_hits, 2 * 2 * 32 * N_STEPS);
    assert_int_equal(c->h2d_calls, 4 * N_STEPS);
    assert_int_equal(c->attended_tok, 33 * 6 * N_STEPS);
    rig_end(&rs);
    kvl_free(logits);
    rig_close(&r);
}

/* In a block layers take all its tokens before the next layer takes any: the same answers. */
static void test_blocks_are_steps(void **state)
{
    int32_t id[N_CTX + N_STEPS];
    struct rig r;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 4, .seed = 9 } });
    rig_tokens(id, N_CTX + N_STEPS, 6);
    struct rig_run run = {
        .policy = kvl_policy_infinigen, .options = "alpha=2", .budget = 33, .id = id, .n_ctx = N_CTX
    };
    struct rig_session one = rig_start(&r, &run), all = rig_start(&r, &run);
    float *a = rig_logits(&r, N_STEPS), *b = rig_logits(&r, N_STEPS);
    size_t n_vocab = (size_t)rig_shape(&r)->n_vocab;
    for (int32_t i = 0; i < N_STEPS; i++)
        RIG_OK(&r.err, kvl_session_extend_logits(one.s, id + N_CTX + i, 1, a + (size_t)i * n_vocab,
                                                 &r.err));
    RIG_OK(&r.err, kvl_session_extend_logits(all.s, id + N_CTX, N_STEPS, b, &r.err));
    rig_expect_same(&r, a, b, N_STEPS, "a block and steps");
    assert_int_equal(kvl_session_counters(all.s)->prefetch_wrong_bytes, 0);
    rig_end(&one);
    rig_end(&all);
    kvl_free(a);
    kvl_free(b);
    rig_close(&r);
}

static void test_refusals(void **state)
{
    struct rig r;
    struct kvl_planned *p = NULL;
    (void)state;
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 1, .seed = 9 } });
    assert_int_equal(
        kvl_planned_create(kvl_policy_infinigen, rig_shape(&r), "", 40, N_CTX, &p, &r.err),
        KVL_EINVAL);
    assert_non_null(strstr(r.err.msg, "a model of 1 layers; guesses are made from the second on"));
    r.err = (struct kvl_err){ 0 };
    rig_close(&r);
    rig_open(&r, &(struct rig_desc){ .llama = { .n_layers = 2, .seed = 9 } });
    assert_int_equal(
        kvl_planned_create(kvl_policy_infinigen, rig_shape(&r), "", 1, N_CTX, &p, &r.err),
        KVL_EINVAL);
    r.err = (struct kvl_err){ 0 };
    /* Without a budget the paper's fifth of the context. */
    RIG_OK(&r.err,
           kvl_planned_create(kvl_policy_infinigen, rig_shape(&r), "", 0, 1000, &p, &r.err));
    assert_non_null(strstr(kvl_planned_options(p), "max_num_kv=200"));
    kvl_planned_destroy(p);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_second_layer_reads_what_the_first_guessed),
        cmocka_unit_test(test_fetched_ahead),
        cmocka_unit_test(test_blocks_are_steps),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
