/* Twilight: the worked example of top-p, and a naive one of the first layer in double against what the
 * policy reads: its own 4 bits, softmax and sorting. */
#include "golden/record.h"

extern const struct kvl_policy *const kvl_policy_twilight, *const kvl_policy_quest;

static const struct kvl_ops *const tables[] = { &kvl_ops_ref, &kvl_ops_cpu };

static void expect_top_p(const float *weight, int32_t n, double p, int32_t k, bool last,
                         const int32_t *want, int32_t n_want)
{
    for (int t = 0; t < 2; t++) {
        int32_t index[8], m;
        struct kvl_top_p_args a = { .index = index,
                                    .n_index = &m,
                                    .weight = weight,
                                    .stride = (size_t)n,
                                    .n_rows = 1,
                                    .n = n,
                                    .k = k,
                                    .p = (float)p,
                                    .last = last };
        assert_int_equal(tables[t]->top_p(&a), KVL_OK);
        assert_int_equal(m, n_want);
        for (int32_t i = 0; i < m; i++) assert_int_equal(index[i], want[i]);
    }
}
#define EXPECT(weight, p, k, last, ...)                                                            \
    expect_top_p(weight, 6, p, k, last, (const int32_t[]){ __VA_ARGS__ },                          \
                 (int32_t)(sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t)))

static void test_top_p(void **state)
{
    static const float sorted[] = { .4f, .25f, .15f, .1f, .06f, .04f };
    static const float mixed[] = { .1f, .04f, .4f, .06f, .25f, .15f };
    (void)state;
    EXPECT(sorted, .85, 6, false, 0, 1, 2, 3); /* .90 */
    EXPECT(mixed, .85, 6, false, 0, 2, 4, 5);
    EXPECT(mixed, .5, 6, false, 2, 4);
    EXPECT(mixed, .85, 2, false, 2, 4);
    EXPECT(mixed, .85, 6, true, 0, 2, 4, 5); /* .15 first */
    EXPECT(mixed, .5, 6, true, 2, 5);
    EXPECT(sorted, .85, 3, true, 0, 1, 5);
    EXPECT(mixed, .01, 1, true, 5);
}

/* ---- naive ------------------------------------------------------------------------------------- */

enum { N_CTX = 90, DIM = 16, GROUP = 2, KV = 2 };

/* Candidates: of kv head h those that are not h + 1 modulo 3, per query head for the odd steps. */
static bool is_candidate(int32_t kv_head, int32_t pos)
{
    return pos % 3 != kv_head + 1;
}

static int32_t inner_budget; /* what the inner policy was given; tests only */

static int pick_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    (void)q;
    inner_budget = ctx->budget_tok;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        int32_t pos[N_CTX + 8], n = 0;
        for (int32_t i = 0; i < step->pos; i++) /* two halves: their union is what counts */
            if (is_candidate(h / GROUP, i) && (h % GROUP ? i >= 30 : i < 70)) pos[n++] = i;
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_Q_HEAD, h, pos, n));
    }
    return KVL_OK;
}

static const struct kvl_policy pick = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "pick",
    .title = "Picks",
    .paper = "none",
    .help = "the same tokens always",
    .version = 1,
    .caps = KVL_CAP_SELECTS,
    .select = pick_select,
};

static double rounded_dot(const float *q, const float *k)
{
    double lo = (double)k[0], hi = (double)k[0], dot = 0;
    for (int32_t c = 1; c < DIM; c++) {
        lo = fmin(lo, (double)k[c]);
        hi = fmax(hi, (double)k[c]);
    }
    double step = (hi - lo) / 15;
    for (int32_t c = 0; c < DIM; c++)
        dot += (double)q[c] * (lo + step * floor(((double)k[c] - lo) / step + .5));
    return dot;
}

/* Marks what one query head needs of the candidates (the last is the current token); adds its weights. */
static void naive_head(const float *q, const float *k, const int32_t *pos, int32_t n, double p,
                       uint8_t *mark, double *sum)
{
    double weight[N_CTX + 8], top = -HUGE_VAL, all = 0;
    for (int32_t i = 0; i < n; i++) {
        weight[i] = rounded_dot(q, k + pos[i] * DIM) / sqrt(DIM);
        top = fmax(top, weight[i]);
    }
    for (int32_t i = 0; i < n; i++) all += weight[i] = exp(weight[i] - top);
    double have = weight[n - 1];
    for (int32_t i = 0; i < n; i++) sum[i] += weight[i] / all;
    while (have < p * all) {
        int32_t best = -1;
        for (int32_t i = 0; i < n - 1; i++)
            if (weight[i] >= 0 && (best < 0 || weight[i] > weight[best])) best = i;
        mark[best] = 1;
        have += weight[best];
        weight[best] = -1;
    }
}

static int32_t naive_reads(const float *q, const float *k, int32_t kv_head, int32_t current,
                           double p, int32_t budget, uint8_t *read)
{
    int32_t pos[N_CTX + 8], n = 0, n_read = 0;
    uint8_t mark[N_CTX + 8] = { 0 }, best[N_CTX + 8];
    double sum[N_CTX + 8] = { 0 };
    for (int32_t i = 0; i < current; i++)
        if (is_candidate(kv_head, i)) pos[n++] = i;
    pos[n] = current;
    for (int32_t g = 0; g < GROUP; g++)
        naive_head(q + (kv_head * GROUP + g) * DIM, k, pos, n + 1, p, mark, sum);
    int32_t m = 0;
    for (int32_t i = 0; i < N_CTX; i++) {
        if (i >= n || !mark[i]) sum[i] = -1;
        m += i < n && mark[i];
    }
    record_top(sum, N_CTX, KVL_MIN(m, budget - 1), best);
    memset(read, 0, (size_t)current + 1);
    for (int32_t i = 0; i < n; i++) read[pos[i]] = best[i];
    read[current] = 1;
    for (int32_t i = 0; i <= current; i++) n_read += read[i];
    return n_read;
}

/* The first layer reads what the formula says, at every budget and p; how many it reads follows from
 * the weights, and the budget cuts. */
static void test_policy_reads_what_the_formula_says(void **state)
{
    static const struct {
        const char *options;
        double p;
        int32_t budget;
        bool cut;
    } rows[] = {
        { "candidates=60", .85, 60, false },
        { "candidates=61,p=0.5", .5, 60, false },
        { "candidates=70,p=0.95", .95, 12, true },
        { "p=0.2", .2, 60, false },
        { "p=0.9", .9, 7, true },
    };
    struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = KV, .seed = 21 } };
    const struct kvl_policy *composed;
    struct rig r;
    int32_t id[N_CTX + 1];
    static float k[KV][(N_CTX + 1) * DIM];
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_CTX + 1, 13);
    record_run(&r, id, N_CTX, 1, 0);
    RIG_OK(&r.err, kvl_policy_compose(kvl_policy_twilight, &pick, &composed, &r.err));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct rig_run run = { .policy = composed,
                               .options = rows[i].options,
                               .budget = rows[i].budget,
                               .id = id,
                               .n_ctx = N_CTX };
        struct rig_session rs = rig_start(&r, &run);
        float *logits = rig_logits(&r, 1);
        kvl_session_reset_counters(rs.s);
        const uint8_t *hit = rig_decode_probed(&r, &rs, id[N_CTX], logits);
        for (int32_t h = 0; h < KV; h++) {
            uint8_t want[N_CTX + 1];
            record_keys(&r, &rs, 0, h, N_CTX + 1, k[h]);
            int32_t n =
                naive_reads(&record.q[0][0][0], k[h], h, N_CTX, rows[i].p, rows[i].budget, want);
            if (rows[i].cut) assert_int_equal(n, rows[i].budget);
            if (!rows[i].cut) assert_true(n > 1 && n < rows[i].budget);
            for (int32_t t = 0; t <= N_CTX; t++)
                if ((hit[h * (N_CTX + 1) + t] != 0) != (want[t] != 0))
                    fail_msg("%s: kv head %d, position %d: read %d, want %d", rows[i].options, h, t,
                             hit[h * (N_CTX + 1) + t], want[t]);
        }
        /* 60 candidates and the current token of each lane, in 4 bits and 8 bytes */
        assert_int_equal(kvl_session_counters(rs.s)->index_read_bytes, 2 * KV * 61 * (8 + DIM / 2));
        kvl_free(logits);
        rig_end(&rs);
    }
    assert_int_equal(inner_budget, 22); /* a quarter of 90, more than the budget of 7 */
    kvl_policy_decompose(composed);
    rig_close(&r);
}

/* p = 1 at a budget that holds all candidates is the inner policy; so is Quest, whose pages are
 * candidates. */
static void test_everything_is_quest(void **state)
{
    enum { N_STEPS = 4 };
    struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = KV, .seed = 22 } };
    const struct kvl_policy *composed;
    int32_t id[N_CTX + N_STEPS];
    struct rig r;
    (void)state;
    rig_open(&r, &desc);
    rig_tokens(id, N_CTX + N_STEPS, 6);
    RIG_OK(&r.err, kvl_policy_compose(kvl_policy_twilight, kvl_policy_quest, &composed, &r.err));
    assert_string_equal(composed->name, "twilight(quest)");
    struct rig_run run = { .policy = composed,
                           .options = "p=1,candidates=64",
                           .budget = 64,
                           .id = id,
                           .n_ctx = N_CTX,
                           .n_steps = N_STEPS };
    float *a = rig_run(&r, &run);
    run.policy = kvl_policy_quest;
    run.options = "";
    float *b = rig_run(&r, &run);
    rig_expect_near(&r, a, b, N_STEPS, 1e-4, "nothing pruned");
    kvl_free(a);
    kvl_free(b);
    kvl_policy_decompose(composed);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_policy_reads_what_the_formula_says),
        cmocka_unit_test(test_everything_is_quest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
