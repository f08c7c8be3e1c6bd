/* SparQ: the worked example of the formulas, and what the policy reads and returns against the same
 * formulas written out, for every step, layer and head. */
#include "conformance/rig.h"

extern const struct kvl_policy *const kvl_policy_sparq;

enum {
    MAX_N = 600,
    MAX_GROUP = 4,
    MAX_DIM = 32,
    N_CTX = 300,
    N_STEPS = 8,
    N_TOK = N_CTX + N_STEPS
};

/* ---- the formulas ---------------------------------------------------------------------------- */

/* One kv head and its group, row-major; the last of n tokens is the current one. */
struct naive {
    int32_t group, dim, n, r, k, local_k;
    const double *q, *key, *value; /* [group][dim], [n][dim], [n][dim] */
    bool channel[MAX_DIM], read[MAX_N];
    double scale[MAX_GROUP], score[MAX_GROUP][MAX_N], alpha[MAX_GROUP], out[MAX_GROUP][MAX_DIM];
    double
        closest; /* between what is just chosen and what is just not: below it rounding decides */
};

/* Marks the k largest of n; ties to the lower index.  Returns the distance to the next. */
static double largest(const double *x, int32_t n, int32_t k, bool *mark)
{
    double last = HUGE_VAL, next = -HUGE_VAL;
    for (int32_t i = 0; i < n; i++) mark[i] = false;
    for (int32_t j = 0; j < k; j++) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++)
            if (!mark[i] && (best < 0 || x[i] > x[best])) best = i;
        mark[best] = true;
        last = x[best];
    }
    for (int32_t i = 0; i < n; i++)
        if (!mark[i]) next = fmax(next, x[i]);
    return last - next;
}

static void naive_scores(struct naive *s)
{
    double size[MAX_DIM] = { 0 };
    for (int32_t i = 0; i < s->group * s->dim; i++) size[i % s->dim] += fabs(s->q[i]);
    s->closest = largest(size, s->dim, s->r, s->channel);
    for (int32_t h = 0; h < s->group; h++) {
        double part = 0, all = 0;
        for (int32_t c = 0; c < s->dim; c++) {
            all += fabs(s->q[h * s->dim + c]);
            if (s->channel[c]) part += fabs(s->q[h * s->dim + c]);
        }
        s->scale[h] = sqrt(s->dim * part / all);
        for (int32_t i = 0; i < s->n; i++) {
            s->score[h][i] = 0;
            for (int32_t c = 0; c < s->dim; c++)
                if (s->channel[c])
                    s->score[h][i] += s->q[h * s->dim + c] * s->key[i * s->dim + c] / s->scale[h];
        }
    }
}

static void naive_choose(struct naive *s)
{
    double sum[MAX_N];
    int32_t free_tok = s->n - 1 - s->local_k;
    for (int32_t i = 0; i < free_tok; i++) {
        sum[i] = 0;
        for (int32_t h = 0; h < s->group; h++) sum[i] += s->score[h][i];
    }
    s->closest = fmin(s->closest, largest(sum, free_tok, s->k - s->local_k, s->read));
    for (int32_t i = free_tok; i < s->n; i++) s->read[i] = true;
}

/* out = the softmax of `logit` over the tokens of `read`, times the values. */
static void attend(const struct naive *s, const double *logit, const bool *read, double *out)
{
    double sum = 0;
    for (int32_t c = 0; c < s->dim; c++) out[c] = 0;
    for (int32_t i = 0; i < s->n; i++) {
        if (read && !read[i]) continue;
        sum += exp(logit[i]);
        for (int32_t c = 0; c < s->dim; c++) out[c] += exp(logit[i]) * s->value[i * s->dim + c];
    }
    for (int32_t c = 0; c < s->dim; c++) out[c] /= sum;
}

static void naive_out(struct naive *s, int32_t h)
{
    double logit[MAX_N], mean[MAX_DIM] = { 0 }, all = 0, part = 0;
    for (int32_t i = 0; i < s->n; i++) {
        logit[i] = 0;
        for (int32_t c = 0; c < s->dim; c++) {
            logit[i] += s->q[h * s->dim + c] * s->key[i * s->dim + c] / sqrt(s->dim);
            mean[c] += s->value[i * s->dim + c] / s->n;
        }
        all += exp(s->score[h][i]);
        if (s->read[i]) part += exp(s->score[h][i]);
    }
    s->alpha[h] = part / all;
    attend(s, logit, s->read, s->out[h]);
    for (int32_t c = 0; c < s->dim; c++)
        s->out[h][c] = s->alpha[h] * s->out[h][c] + (1 - s->alpha[h]) * mean[c];
}

static void naive_run(struct naive *s)
{
    naive_scores(s);
    naive_choose(s);
    for (int32_t h = 0; h < s->group; h++) naive_out(s, h);
}

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("got %.9g, want %.9g", got, want);
}

static void test_example(void **state)
{
    static const double q[] = { 2, -.5, 0, 1, 1, 0, -.5, -2 }, value[] = { 1, 2, 3, 4, 5, 6 };
    static const double key[] = { 1,  0, 0, 0, 0,  1,  0,  .5, 2, 0, 1, -1,
                                  -1, 0, 0, 1, .5, .5, .5, .5, 1, 1, 0, 0 };
    static const double want[2][6] = { { 1.080123, .270031, 1.620185, -.540062, .810093, 1.080123 },
                                       { .540062, -.540062, 2.160247, -1.620185, -.270031,
                                         .540062 } };
    double values[24];
    struct naive s = { .group = 2,
                       .dim = 4,
                       .n = 6,
                       .r = 2,
                       .k = 2,
                       .local_k = 1,
                       .q = q,
                       .key = key,
                       .value = values };
    (void)state;
    for (int i = 0; i < 24; i++) values[i] = value[i / 4];
    naive_run(&s);
    assert_true(s.channel[0] && s.channel[3] && !s.channel[1] && !s.channel[2]);
    for (int i = 0; i < 6; i++) assert_int_equal(s.read[i], i == 2 || i >= 4);
    for (int h = 0; h < 2; h++) {
        near(s.scale[h], 1.85164, 1e-5);
        for (int i = 0; i < 6; i++) near(s.score[h][i], want[h][i], 1e-6);
    }
    near(s.alpha[0], .679299, 1e-6);
    near(s.alpha[1], .817085, 1e-6);
    near(s.out[0][0], 3.969666, 1e-6);
    near(s.out[1][0], 3.7298, 1e-6);
}

/* ---- the policy ------------------------------------------------------------------------------ */

static struct watch {
    int32_t r, k, local_k, n_compared, n_close;
    bool reallocation;
} watch;

static struct rig rig;

static void widen(const struct kvl_tap_read *t, int32_t kv_head, enum kvl_kv_part part, double *out)
{
    const struct kvl_seq *seq = kvl_session_seq(t->session);
    struct kvl_err err = { 0 };
    float row[MAX_DIM];
    for (int32_t i = 0; i <= t->pos; i++) {
        RIG_OK(&err, kvl_seq_read(seq, t->layer, kv_head, part, i, 1, row, &err));
        for (int32_t c = 0; c < rig_shape(&rig)->head_dim; c++) *out++ = (double)row[c];
    }
}

static void compare_head(const struct kvl_tap_read *t, const struct naive *s, int32_t h, int32_t g)
{
    bool read[MAX_N] = { false };
    assert_int_equal(t->n_read[h], watch.k + 1);
    for (int32_t i = 0; i < t->n_read[h]; i++) read[t->read[h][i]] = true;
    for (int32_t i = 0; i < s->n; i++)
        if (read[i] != s->read[i])
            fail_msg("layer %d, head %d, position %d: token %d", t->layer, h, t->pos, i);
    if (!watch.reallocation) {
        assert_null(t->alpha);
        return;
    }
    near((double)t->alpha[h], s->alpha[g], 1e-5);
    for (int32_t c = 0; c < s->dim; c++) near((double)t->out[h * s->dim + c], s->out[g][c], 2e-4);
}

static int compare(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    const struct kvl_shape *sh = rig_shape(&rig);
    static double q[MAX_GROUP * MAX_DIM], key[MAX_N * MAX_DIM], value[MAX_N * MAX_DIM];
    int32_t group = sh->n_heads / sh->n_kv_heads, dim = sh->head_dim;
    (void)user;
    (void)err;
    for (int32_t kv = 0; kv < sh->n_kv_heads; kv++) {
        struct naive s = { .group = group,
                           .dim = dim,
                           .n = t->pos + 1,
                           .r = watch.r,
                           .k = watch.k,
                           .local_k = watch.local_k,
                           .q = q,
                           .key = key,
                           .value = value };
        for (int32_t i = 0; i < group * dim; i++) q[i] = (double)t->q[kv * group * dim + i];
        widen(t, kv, KVL_PART_K, key);
        widen(t, kv, KVL_PART_V, value);
        naive_run(&s);
        watch.n_close += s.closest < 1e-5;
        if (s.closest < 1e-5) continue; /* floats may choose another */
        for (int32_t g = 0; g < group; g++) compare_head(t, &s, kv * group + g, g);
        watch.n_compared++;
    }
    return KVL_OK;
}

static void run_watched(enum kvl_kv_type type, const char *options, int32_t budget)
{
    int32_t id[N_TOK];
    rig_open(&rig, &(struct rig_desc){ .llama = { .n_layers = 3, .seed = 71 }, .kv_type = type });
    rig_tokens(id, N_TOK, 72);
    struct rig_run run = {
        .policy = kvl_policy_sparq, .options = options, .budget = budget, .id = id, .n_ctx = N_CTX
    };
    struct rig_session rs = rig_start(&rig, &run);
    float *logits = rig_logits(&rig, N_STEPS);
    const struct kvl_tap tap = { .read = compare };
    kvl_session_tap(rs.s, &tap);
    watch.n_compared = watch.n_close = 0;
    rig_decode(&rig, &rs, id + N_CTX, N_STEPS, logits);
    assert_true(watch.n_compared > 3 * watch.n_close && watch.n_compared > 0);
    kvl_free(logits);
    rig_end(&rs);
    rig_close(&rig);
}

static void test_policy_follows_the_formulas(void **state)
{
    (void)state;
    watch = (struct watch){ .r = 4, .k = 40, .local_k = 10, .reallocation = true };
    run_watched(KVL_KV_F32, "", 41);
    run_watched(KVL_KV_F16, "", 41);
    watch = (struct watch){ .r = 7, .k = 128, .local_k = 3, .reallocation = true };
    run_watched(KVL_KV_F32, "r=7,local_k=3", 129);
    watch = (struct watch){ .r = 1, .k = 5, .local_k = 0 };
    run_watched(KVL_KV_F32, "r=1,k=5,local_k=0,reallocation=false", 0);
}

/* All channels and all tokens: full attention. */
static void test_everything_is_full(void **state)
{
    int32_t id[N_TOK];
    struct kvl_policy full = { .abi = KVL_POLICY_ABI,
                               .size = sizeof full,
                               .name = "dense",
                               .title = "t",
                               .paper = "p",
                               .help = "h",
                               .caps = KVL_CAP_BOUND };
    (void)state;
    rig_open(&rig, &(struct rig_desc){ .llama = { .n_layers = 3, .seed = 73 } });
    rig_tokens(id, N_TOK, 74);
    struct rig_run run = {
        .policy = kvl_policy_sparq, .id = id, .n_ctx = N_CTX, .n_steps = 1, .budget = N_CTX + 1
    };
    char options[64];
    snprintf(options, sizeof options, "r=%d", rig_shape(&rig)->head_dim);
    run.options = options;
    float *got = rig_run(&rig, &run);
    run.policy = &full;
    run.options = "";
    float *want = rig_run(&rig, &run);
    rig_expect_same(&rig, want, got, 1, "all tokens");
    kvl_free(got);
    kvl_free(want);
    rig_close(&rig);
}

/* What is read of the second layout is r of its channels, and the sum of values. */
static void test_bytes(void **state)
{
    int32_t id[N_TOK];
    (void)state;
    rig_open(&rig,
             &(struct rig_desc){ .llama = { .n_layers = 3, .seed = 75 }, .kv_type = KVL_KV_F16 });
    rig_tokens(id, N_TOK, 76);
    struct rig_run run = {
        .policy = kvl_policy_sparq, .options = "r=5", .budget = 50, .id = id, .n_ctx = N_CTX
    };
    struct rig_session rs = rig_start(&rig, &run);
    float *logits = rig_logits(&rig, 1);
    const struct kvl_shape *sh = rig_shape(&rig);
    rig_decode(&rig, &rs, id + N_CTX, 1, logits);
    int64_t lanes = (int64_t)sh->n_layers * sh->n_kv_heads, d = sh->head_dim;
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    assert_int_equal(c->index_read_bytes, lanes * ((N_CTX + 1) * 5 * 2 + 2 * d * 4));
    assert_int_equal(c->kv_read_bytes, lanes * 50 * 2 * d * 2);
    kvl_free(logits);
    rig_end(&rs);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_example),
        cmocka_unit_test(test_policy_follows_the_formulas),
        cmocka_unit_test(test_everything_is_full),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests_name("golden_sparq", tests, NULL, NULL);
}
