/* vAttention: sizes of samples, what is forced and what is drawn against the formulas written out, and
 * that sums over the sample are unbiased and keep their promise. */
#include "../methods/vattention_budget.h"
#include "conformance/rig.h"

extern const struct kvl_policy *const kvl_policy_vattention;

enum {
    N_CTX = 260,
    N_STEPS = 6,
    N_TOK = N_CTX + N_STEPS,
    MAX_DIM = 32,
    MAX_GROUP = 4,
    MAX_HEADS = 8
};

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("got %.9g, want %.9g", got, want);
}

static void test_sizes(void **state)
{
    (void)state;
    near(vattention_quantile(.5), 0, 1e-12);
    near(vattention_quantile(.9), 1.2815515655446004, 1e-12);
    near(vattention_quantile(.05), -1.6448536269514722, 1e-12);
    double z = vattention_quantile(.9);
    near(vattention_need(z, .5, 10000, .1, 800), 6415.525, 1e-3);
    assert_int_equal((int)floor(vattention_need(z, .05, 10000, .1, 800)), 64);
    assert_int_equal((int)floor(vattention_need(vattention_quantile(.95), .5, 10000, .1, 8000)),
                     105);
}

/* ---- one lane, written out ------------------------------------------------------------------- */

static struct rig rig;
static struct kvl_session *prefill;
static int32_t id[N_TOK];

struct lane {
    int32_t n, group;                             /* tokens, the last of them the current one */
    double e[MAX_GROUP][N_TOK], total[MAX_GROUP]; /* exp(logit), their sum */
    bool forced[N_TOK];
    int32_t rest[N_TOK], n_rest;
    double closest; /* between the last of the heaviest and the next */
};

static struct watch {
    int32_t sink, local, top, budget, n_lanes, n_close, n_capped, n_between;
    double base_rate, epsilon, delta;
    uint64_t seed;
} watch;

static void lane_weights(const struct kvl_tap_read *t, int32_t kv_head, struct lane *l)
{
    const struct kvl_shape *sh = rig_shape(&rig);
    struct kvl_err err = { 0 };
    float k[MAX_DIM];
    l->group = sh->n_heads / sh->n_kv_heads;
    l->n = t->pos + 1;
    for (int32_t g = 0; g < l->group; g++) l->total[g] = 0;
    for (int32_t i = 0; i < l->n; i++) {
        RIG_OK(&err, kvl_seq_read(kvl_session_seq(t->session), t->layer, kv_head, KVL_PART_K, i, 1,
                                  k, &err));
        for (int32_t g = 0; g < l->group; g++) {
            double dot = 0;
            const float *q = t->q + (kv_head * l->group + g) * sh->head_dim;
            for (int32_t c = 0; c < sh->head_dim; c++) dot += (double)q[c] * (double)k[c];
            l->total[g] += l->e[g][i] = exp(dot / sqrt(sh->head_dim));
        }
    }
}

/* First, last and heaviest by the mean weight; the others are the rest. */
static void lane_force(struct lane *l)
{
    double mean[N_TOK] = { 0 }, last = HUGE_VAL, next = 0;
    for (int32_t i = 0; i < l->n; i++) {
        l->forced[i] = i < watch.sink || i >= l->n - 1 - watch.local;
        for (int32_t g = 0; g < l->group; g++) mean[i] += l->e[g][i] / l->total[g] / l->group;
    }
    for (int32_t j = 0; j < watch.top; j++) {
        int32_t best = -1;
        for (int32_t i = 0; i < l->n; i++)
            if (!l->forced[i] && (best < 0 || mean[i] > mean[best])) best = i;
        l->forced[best] = true;
        last = mean[best];
    }
    l->n_rest = 0;
    for (int32_t i = 0; i < l->n; i++) {
        if (l->forced[i]) continue;
        l->rest[l->n_rest++] = i;
        next = fmax(next, mean[i]);
    }
    l->closest = last - next;
}

/* The draw of seed, layer, kv head, position and purpose: Floyd's sample of m of the rest. */
static void lane_draw(const struct lane *l, const struct kvl_tap_read *t, int32_t kv_head,
                      uint64_t purpose, int32_t m, bool *taken)
{
    uint64_t seed = kvl_seed_mix(kvl_seed_mix(watch.seed, (uint64_t)t->layer), (uint64_t)kv_head);
    struct kvl_rng rng;
    kvl_rng_seed(&rng, kvl_seed_mix(kvl_seed_mix(seed, (uint64_t)t->pos), purpose));
    for (int32_t i = 0; i < l->n_rest; i++) taken[i] = false;
    for (int32_t j = l->n_rest - m; j < l->n_rest; j++) {
        int32_t at = (int32_t)kvl_rng_below(&rng, (uint32_t)j + 1);
        taken[taken[at] ? j : at] = true;
    }
}

/* Of one head: deviation and denominator from the base sample, then the size. */
static double head_size(const struct lane *l, int32_t g, const bool *base, int32_t m)
{
    double sum = 0, squares = 0, forced = 0;
    for (int32_t i = 0; i < l->n; i++) forced += l->forced[i] ? l->e[g][i] : 0;
    for (int32_t i = 0; i < l->n_rest; i++) sum += base[i] ? l->e[g][l->rest[i]] : 0;
    for (int32_t i = 0; i < l->n_rest; i++)
        squares += base[i] ? pow(l->e[g][l->rest[i]] - sum / m, 2) : 0;
    double z = vattention_quantile(1 - watch.delta);
    return vattention_need(z, sqrt(squares / (m - 1)), l->n_rest, watch.epsilon,
                           forced + sum / m * l->n_rest);
}

static int32_t lane_size(const struct lane *l, const struct kvl_tap_read *t, int32_t kv_head)
{
    bool base[N_TOK];
    int32_t m = (int32_t)ceil(watch.base_rate * l->n_rest), size = m = m < 2 ? 2 : m;
    int32_t room = watch.budget - 1 - watch.sink - watch.local - watch.top;
    lane_draw(l, t, kv_head, 0, m, base);
    for (int32_t g = 0; g < l->group; g++) {
        double need = head_size(l, g, base, m);
        if (fabs(need - round(need)) < 1e-3) return -1; /* floats may floor to another */
        size = (int32_t)fmax(size, fmin(floor(need), l->n_rest));
    }
    watch.n_capped += size > room;
    watch.n_between += size > m && size < room && size < l->n_rest;
    return size > room ? room : size;
}

static void compare_lane(const struct kvl_tap_read *t, int32_t kv_head)
{
    struct lane l;
    bool taken[N_TOK], read[N_TOK] = { false };
    lane_weights(t, kv_head, &l);
    lane_force(&l);
    int32_t size = lane_size(&l, t, kv_head), h = kv_head * l.group, rank[N_TOK];
    watch.n_lanes++;
    if (size < 0 || l.closest < 1e-7) {
        watch.n_close++;
        return;
    }
    lane_draw(&l, t, kv_head, 1, size, taken);
    for (int32_t i = 0; i < l.n; i++) read[i] = l.forced[i];
    for (int32_t i = 0; i < l.n_rest; i++) read[l.rest[i]] = taken[i];
    for (int32_t i = 0, n = 0; i < l.n; i++) {
        rank[i] = n < t->n_read[h] && t->read[h][n] == i ? n++ : -1;
        if ((rank[i] >= 0) != read[i])
            fail_msg("layer %d, kv head %d, position %d: token %d", t->layer, kv_head, t->pos, i);
        double want = l.forced[i] ? 0 : log((double)l.n_rest / size);
        if (read[i]) near((double)t->log_weight[h][rank[i]], want, 1e-5);
    }
}

static int compare(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    (void)user;
    (void)err;
    for (int32_t h = 0; h < rig_shape(&rig)->n_kv_heads; h++) compare_lane(t, h);
    return KVL_OK;
}

/* A fork of one prefilled context under the policy, some steps. */
static void run_tapped(const char *options, int32_t budget, uint64_t seed, int32_t n_steps,
                       int (*read)(void *, const struct kvl_tap_read *, struct kvl_err *))
{
    struct rig_session rs = { 0 };
    struct kvl_err *err = &rig.err;
    RIG_OK(err, kvl_planned_create(kvl_policy_vattention, rig_shape(&rig), options, budget, N_CTX,
                                   &rs.planned, err));
    RIG_OK(err, kvl_session_fork(prefill, &rs.s, err));
    RIG_OK(err, kvl_session_attach(rs.s, rs.planned, seed, KVL_EXEC_REAL, err));
    float *logits = rig_logits(&rig, n_steps);
    const struct kvl_tap tap = { .read = read };
    kvl_session_tap(rs.s, &tap);
    rig_decode(&rig, &rs, id + N_CTX, n_steps, logits);
    kvl_free(logits);
    rig_end(&rs);
}

static void open_rig(uint32_t n_layers)
{
    rig_open(&rig, &(struct rig_desc){ .llama = { .n_layers = n_layers, .seed = 91 } });
    rig_tokens(id, N_TOK, 92);
    RIG_OK(&rig.err, kvl_session_create(rig.engine, &prefill, &rig.err));
    RIG_OK(&rig.err, kvl_session_prefill(prefill, id, N_CTX, NULL, true, &rig.err));
}

static void close_rig(void)
{
    kvl_session_destroy(prefill);
    rig_close(&rig);
}

static void test_policy_follows_the_formulas(void **state)
{
    (void)state;
    open_rig(3);
    int32_t lanes = N_STEPS * 3 * rig_shape(&rig)->n_kv_heads;
    watch = (struct watch){ .sink = 16, .local = 16, .top = 32, .budget = 128, .seed = 5 };
    watch.base_rate = .02;
    watch.epsilon = watch.delta = .1;
    run_tapped("", 128, 5, N_STEPS, compare);
    assert_true(watch.n_lanes == lanes && watch.n_close < lanes / 4);
    /* Sizes that follow from deviation and denominator. */
    watch = (struct watch){ .sink = 16, .local = 16, .top = 32, .budget = 255, .seed = 5 };
    watch.base_rate = .02;
    watch.epsilon = .05;
    watch.delta = .1;
    run_tapped("sink=16,local=16,top=32,epsilon=0.05", 255, 5, N_STEPS, compare);
    assert_true(watch.n_between > lanes / 4);
    watch = (struct watch){ .sink = 3, .local = 0, .top = 0, .budget = 200, .seed = 6 };
    watch.base_rate = .25;
    watch.epsilon = .05;
    watch.delta = .3;
    run_tapped("sink=3,local=0,top=0,base_rate=0.25,epsilon=0.05,delta=0.3", 200, 6, N_STEPS,
               compare);
    assert_true(watch.n_lanes == lanes && watch.n_close < lanes / 4 && watch.n_capped < lanes);
    watch = (struct watch){ .sink = 2, .local = 5, .top = 1, .budget = 40, .seed = 7 };
    watch.base_rate = .02;
    watch.epsilon = watch.delta = .01;
    run_tapped("sink=2,local=5,top=1,epsilon=0.01,delta=0.01", 40, 7, N_STEPS, compare);
    assert_true(watch.n_close < lanes / 4 && watch.n_capped > lanes / 2);
    close_rig();
}

/* ---- sums over the sample -------------------------------------------------------------------- */

enum { SEEDS = 500 };
static struct sums {
    int32_t n, n_broken;
    double mean[MAX_HEADS], square[MAX_HEADS];
} sums;

/* Of the first layer, whose queries no sample changes: estimated by true denominator. */
static int gather(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    (void)user;
    (void)err;
    for (int32_t kv = 0; t->layer == 0 && kv < rig_shape(&rig)->n_kv_heads; kv++) {
        struct lane l;
        lane_weights(t, kv, &l);
        for (int32_t g = 0; g < l.group; g++) {
            int32_t h = kv * l.group + g;
            double part = 0;
            for (int32_t i = 0; i < t->n_read[h]; i++)
                part += l.e[g][t->read[h][i]] * exp((double)t->log_weight[h][i]);
            double ratio = part / l.total[g];
            sums.n_broken += fabs(ratio - 1) > .03;
            sums.mean[h] += ratio / SEEDS;
            sums.square[h] += ratio * ratio / SEEDS;
        }
    }
    sums.n += t->layer == 0;
    return KVL_OK;
}

static void test_unbiased_and_as_promised(void **state)
{
    (void)state;
    open_rig(1);
    int32_t n_heads = rig_shape(&rig)->n_heads;
    memset(&sums, 0, sizeof sums);
    for (uint64_t seed = 1; seed <= SEEDS; seed++)
        run_tapped("sink=4,local=4,top=4,base_rate=0.1,epsilon=0.03,delta=0.1", 255, seed, 1,
                   gather);
    assert_int_equal(sums.n, SEEDS);
    for (int32_t h = 0; h < n_heads; h++) {
        double deviation = sqrt((sums.square[h] - sums.mean[h] * sums.mean[h]) / SEEDS);
        assert_true(deviation > 1e-5);
        if (!(fabs(sums.mean[h] - 1) < 4 * deviation))
            fail_msg("head %d: %.5f of the denominator on average, +- %.5f", h, sums.mean[h],
                     deviation);
    }
    /* The formula's quantile is of one side. */
    assert_true(sums.n_broken > 0 && sums.n_broken < 2 * .1 * SEEDS * n_heads);
    close_rig();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_policy_follows_the_formulas),
        cmocka_unit_test(test_unbiased_and_as_promised),
    };
    return cmocka_run_group_tests_name("golden_vattention", tests, NULL, NULL);
}
