/* The bounds of every table: `oracle` reads the heaviest tokens of its scope, `random` a uniform
 * sample of the budget's size. */
#include "golden/record.h"

extern const struct kvl_policy *const kvl_policy_oracle, *const kvl_policy_random;

enum { N_CTX = 120, N_STEPS = 40, HEAD_DIM = 16, BUDGET = 21 };

static const char *const scopes[] = { "layer", "kv_head", "q_head" };

static void open_rig(struct rig *r, int32_t *id, uint32_t n_kv_heads)
{
    struct rig_desc desc = { .llama = { .n_layers = 2, .n_kv_heads = n_kv_heads, .seed = 13 } };
    rig_open(r, &desc);
    rig_tokens(id, N_CTX + N_STEPS, 14);
}

/* ---- oracle -------------------------------------------------------------------------------------- */

/* Marks what the query heads first .. first + n - 1 read when they share a list. */
static void add_list(const double *weight, int32_t n_heads, int32_t n_tok, bool maximum,
                     uint8_t *read)
{
    double score[N_CTX + 1];
    uint8_t mark[N_CTX + 1];
    for (int32_t i = 0; i < n_tok; i++) {
        score[i] = weight[i];
        for (int32_t h = 1; h < n_heads; h++) {
            double w = weight[h * n_tok + i];
            score[i] = maximum ? fmax(score[i], w) : score[i] + w;
        }
    }
    record_top(score, n_tok - 1, BUDGET - 1, mark);
    mark[n_tok - 1] = 1; /* the current token */
    for (int32_t i = 0; i < n_tok; i++) read[i] |= mark[i];
}

static void check_lane(const double *weight, int32_t n_heads, int32_t n_kv_heads, int32_t kv_head,
                       int scope, bool maximum, const uint8_t *hit)
{
    uint8_t read[N_CTX + 1] = { 0 };
    int32_t group = n_heads / n_kv_heads, n_tok = N_CTX + 1, first = kv_head * group;
    if (scope == 0) add_list(weight, n_heads, n_tok, maximum, read);
    if (scope == 1) add_list(weight + first * n_tok, group, n_tok, maximum, read);
    for (int32_t g = 0; scope == 2 && g < group; g++)
        add_list(weight + (first + g) * n_tok, 1, n_tok, maximum, read);
    for (int32_t i = 0; i < n_tok; i++)
        if (hit[i] != read[i])
            fail_msg("scope %s, head %d: position %d is %sread", scopes[scope], kv_head, i,
                     hit[i] ? "" : "not ");
}

/* Layer 0 sees the same queries as a dense run. */
static void check_oracle(struct rig *r, const int32_t *id, int scope, bool maximum)
{
    const struct kvl_shape *sh = rig_shape(r);
    int32_t group = sh->n_heads / sh->n_kv_heads, n_tok = N_CTX + 1;
    char options[64];
    double weight[8 * (N_CTX + 1)];
    float *k = rig_floats((N_CTX + 1) * HEAD_DIM), *logits = rig_logits(r, 1);
    snprintf(options, sizeof options, "scope=%s,reduce=%s", scopes[scope],
             maximum ? "max" : "mean");
    struct rig_run run = {
        .policy = kvl_policy_oracle, .options = options, .budget = BUDGET, .id = id, .n_ctx = N_CTX
    };
    struct rig_session rs = rig_start(r, &run);
    const uint8_t *hit = rig_decode_probed(r, &rs, id[N_CTX], logits);
    for (int32_t h = 0; h < sh->n_heads; h++) {
        record_keys(r, &rs, 0, h / group, n_tok, k);
        record_weights(record.q[0][0] + h * HEAD_DIM, k, n_tok, HEAD_DIM, weight + h * n_tok);
    }
    for (int32_t h = 0; h < sh->n_kv_heads; h++)
        check_lane(weight, sh->n_heads, sh->n_kv_heads, h, scope, maximum, hit + h * n_tok);
    rig_end(&rs);
    kvl_free(k);
    kvl_free(logits);
}

static void test_oracle_reads_the_heaviest_tokens(void **state)
{
    int32_t id[N_CTX + N_STEPS];
    struct rig r;
    (void)state;
    for (uint32_t kv_heads = 1; kv_heads <= 4; kv_heads *= 2) {
        open_rig(&r, id, kv_heads);
        record_run(&r, id, N_CTX, 1, 0);
        for (int scope = 0; scope < 3; scope++)
            for (int maximum = 0; maximum < 2; maximum++) check_oracle(&r, id, scope, maximum != 0);
        rig_close(&r);
    }
}

/* ---- random -------------------------------------------------------------------------------------- */

/* Every step another sample of exactly the budget; over all of them no part of the text is favoured:
 * the mean position of 40 steps x 2 layers x 2 heads x 20 tokens has a deviation of about 0.6 %. */
static void test_random_select_is_uniform_and_fresh(void **state)
{
    int32_t id[N_CTX + N_STEPS], n_read = 0, n_same = 0;
    uint8_t before[N_CTX] = { 0 };
    double sum = 0;
    struct rig r;
    (void)state;
    open_rig(&r, id, 2);
    struct rig_run run = {
        .policy = kvl_policy_random, .budget = BUDGET, .id = id, .n_ctx = N_CTX, .seed = 77
    };
    struct rig_session rs = rig_start(&r, &run);
    float *logits = rig_logits(&r, 1);
    for (int32_t t = 0; t < N_STEPS; t++) {
        int32_t n_tok = N_CTX + t + 1;
        const uint8_t *hit = rig_decode_probed(&r, &rs, id[N_CTX + t], logits);
        for (int32_t lane = 0; lane < 4; lane++) {
            int32_t n = 0;
            for (int32_t i = 0; i < n_tok; i++)
                if (hit[lane * n_tok + i]) {
                    n++;
                    if (i < n_tok - 1) sum += (double)i / (n_tok - 2);
                }
            assert_int_equal(n, BUDGET);
            assert_true(hit[lane * n_tok + n_tok - 1]);
            n_read += n - 1;
        }
        for (int32_t i = 0; i < N_CTX; i++) n_same += before[i] && hit[i];
        memcpy(before, hit, sizeof before);
    }
    assert_float_equal((sum / n_read), 0.5, 0.025);
    /* Two samples of 20 of about 140 share 3; equal ones would share 20. */
    assert_true(n_same < 6 * N_STEPS);
    kvl_free(logits);
    rig_end(&rs);
    rig_close(&r);
}

static int32_t overlap(const int32_t *a, const int32_t *b, int32_t n)
{
    int32_t same = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < n; j++) same += a[i] == b[j];
    return same;
}

/* One sample of B - 1 of the context, per head or for the whole layer; nothing goes afterwards. */
static void test_random_evict_draws_once(void **state)
{
    int32_t id[N_CTX + N_STEPS], kept[2][N_CTX + N_STEPS];
    struct rig r;
    (void)state;
    open_rig(&r, id, 2);
    for (int scope = 0; scope < 2; scope++) {
        char options[64];
        snprintf(options, sizeof options, "mode=evict,scope=%s", scopes[scope]);
        struct rig_run run = { .policy = kvl_policy_random,
                               .options = options,
                               .budget = BUDGET,
                               .id = id,
                               .n_ctx = N_CTX,
                               .seed = 5 };
        struct rig_session rs = rig_start(&r, &run);
        float *logits = rig_logits(&r, 3);
        for (int32_t h = 0; h < 2; h++) assert_int_equal(rig_kept(&rs, 1, h, kept[h]), BUDGET - 1);
        int32_t same = overlap(kept[0], kept[1], BUDGET - 1);
        if (scope == 0) assert_int_equal(same, BUDGET - 1);
        if (scope == 1) assert_true(same < BUDGET / 2);
        rig_decode(&r, &rs, id + N_CTX, 3, logits);
        for (int32_t i = 0; i < 3; i++) kept[0][BUDGET - 1 + i] = N_CTX + i;
        rig_expect_kept(&rs, 1, 0, kept[0], BUDGET + 2);
        kvl_free(logits);
        rig_end(&rs);
    }
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_oracle_reads_the_heaviest_tokens),
        cmocka_unit_test(test_random_select_is_uniform_and_fresh),
        cmocka_unit_test(test_random_evict_draws_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
