/* MagicPIG: sampling probabilities, the worked example, unbiasedness, and what the policy reads and how
 * it weights it against the formulas written out, for every step, layer and head. */
#include "../methods/magicpig_weight.h"
#include "conformance/rig.h"
#include "engine_impl.h"

extern const struct kvl_policy *const kvl_policy_magicpig;

enum { N_CTX = 300, N_STEPS = 6, N_TOK = N_CTX + N_STEPS, MAX_DIM = 32, MAX_SIDES = 4096 };

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("got %.9g, want %.9g", got, want);
}

/* ---- probabilities --------------------------------------------------------------------------- */

static void test_weights(void **state)
{
    static const double cosine[] = { .9, .5, .2, 0, -.2 };
    static const struct {
        int K, L;
        double want[5];
    } table[] = {
        { 10, 150, { 1, .735551, .086737, .009684, .000669 } },
        { 10, 170, { 1, .795586, .106952, .012289, .000857 } },
        { 11, 300, { 1, .862270, .106252, .009710, .000512 } },
        { 8, 75, { 1, .795558, .179648, .035083, .004427 } },
        { 9, 120, { 1, .822104, .153405, .023390, .002205 } },
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        for (int j = 1; j < 5; j++)
            near(magicpig_weight(cosine[j], table[i].K, table[i].L), table[i].want[j], 1e-6);
        near(magicpig_weight(.9, table[i].K, table[i].L), 1, 1e-3);
    }
    near(magicpig_weight(1, 10, 150), 1, 0);
    near(magicpig_weight(1 + 1e-6, 10, 150), 1, 0); /* rounding of a cosine */
    near(magicpig_weight(-1 - 1e-6, 10, 150), 0, 0);
    for (int K = 1; K < 5; K++) { /* two tables: both */
        double p = pow(1 - acos(.3) / acos(-1.0), K);
        near(magicpig_weight(.3, K, 2), p * p, 1e-12);
    }
}

static double normal(struct kvl_rng *rng)
{
    double u = 1 - kvl_rng_f64(rng);
    return sqrt(-2 * log(u)) * cos(2 * acos(-1.0) * kvl_rng_f64(rng));
}

static double product(const double *a, const double *b, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* Tables in which two vectors agree on all bits. */
static int32_t collisions(const double *a, const double *b, const double *plane, int32_t dim,
                          int32_t K, int32_t L)
{
    int32_t hits = 0;
    for (int32_t l = 0; l < L; l++) {
        bool same = true;
        for (int32_t j = 0; j < K; j++, plane += dim)
            same &= (product(a, plane, dim) > 0) == (product(b, plane, dim) > 0);
        hits += same;
    }
    return hits;
}

/* How often two vectors at this angle collide twice, by drawing hyperplanes. */
static void test_weight_is_the_probability(void **state)
{
    enum { DIM = 8, K = 3, L = 6, DRAWS = 20000 };
    const double cosine = .844175;
    double a[DIM] = { 1 }, b[DIM] = { cosine, sqrt(1 - cosine * cosine) }, plane[K * L * DIM];
    struct kvl_rng rng;
    int32_t n = 0;
    (void)state;
    kvl_rng_seed(&rng, 5);
    for (int32_t i = 0; i < DRAWS; i++) {
        for (int32_t c = 0; c < K * L * DIM; c++) plane[c] = normal(&rng);
        n += collisions(a, b, plane, DIM, K, L) >= 2;
    }
    near(magicpig_weight(cosine, K, L), .9316, 5e-5);
    near((double)n / DRAWS, magicpig_weight(cosine, K, L), .006);
}

/* ---- the worked example ---------------------------------------------------------------------- */

static void test_example(void **state)
{
    static const double plane[] = { 1, .2, .5, -1, .1, 1, 1, 1 }, q[] = { 1, .5 };
    static const double key[] = { 1, .7, -1, .7, -2, .2, 0, -1.3, 2, -.3 };
    static const int32_t hits[] = { 4, 2, 1, 0, 2 };
    static const double w[] = { .999604, .422783, 0, 0, .974687 },
                        logits[] = { .95489, .40104, 0, 0, 1.333684 };
    double sum = 0, out = 0;
    (void)state;
    for (int i = 0; i < 5; i++) {
        const double *k = key + 2 * i;
        assert_int_equal(collisions(q, k, plane, 2, 1, 4), hits[i]);
        if (hits[i] < 2) continue;
        double dot = product(q, k, 2);
        double weight = magicpig_weight(dot / sqrt(product(q, q, 2) * product(k, k, 2)), 1, 4);
        double logit = dot / sqrt(2.0) - log(weight + 1e-4);
        near(weight, w[i], 1e-6);
        near(logit, logits[i], 1e-6);
        sum += exp(logit);
        out += exp(logit) * (i + 1);
    }
    near(out / sum, 3.114096, 1e-6);
    near(log(sum), 2.065185, 1e-6);
    double dense = exp(.176777);
    near((out + 10 * dense) / (sum + dense), 4.019083, 1e-6);
}

/* The same through the operators: codes, buckets, collisions; a product of exactly 0 is bit 0. */
static void test_example_in_tables(void **state)
{
    static const float side[] = { 1.14f, -.2f,   .8f,   1.7f, -.86f, -1.2f, .6f,
                                  -.3f,  -1.96f, -1.2f, 0.0f, -1.8f, -.26f, 1.3f,
                                  -1.3f, -1.3f,  1.94f, 1.3f, -.1f,  1.7f };
    static const float q_side[] = { 1.1f, 0.0f, .6f, 1.5f };
    static const struct kvl_ops *const ops[] = { &kvl_ops_ref, &kvl_ops_cpu };
    (void)state;
    for (int t = 0; t < 2; t++) {
        uint16_t code[5 * 4], q_code[4];
        int32_t start[4 * 3], id[4 * 5], found[5], n_found;
        const int32_t *starts = start, *ids = id;
        int64_t visited;
        assert_int_equal(ops[t]->lsh_codes(&(struct kvl_lsh_codes_args){
                             .code = code, .side = side, .n = 5, .n_tables = 4, .n_bits = 1 }),
                         KVL_OK);
        assert_int_equal(ops[t]->lsh_codes(&(struct kvl_lsh_codes_args){
                             .code = q_code, .side = q_side, .n = 1, .n_tables = 4, .n_bits = 1 }),
                         KVL_OK);
        assert_memory_equal(q_code, ((uint16_t[]){ 1, 0, 1, 1 }), sizeof q_code);
        assert_int_equal(code[2 * 4 + 2], 0);
        assert_int_equal(
            ops[t]->lsh_build(&(struct kvl_lsh_build_args){
                .start = start, .id = id, .code = code, .n = 5, .n_tables = 4, .n_bits = 1 }),
            KVL_OK);
        assert_int_equal(ops[t]->lsh_find(&(struct kvl_lsh_find_args){ .found = found,
                                                                       .n_found = &n_found,
                                                                       .n_visited = &visited,
                                                                       .code = q_code,
                                                                       .start = &starts,
                                                                       .id = &ids,
                                                                       .n_q = 1,
                                                                       .n = 5,
                                                                       .n_tables = 4,
                                                                       .n_bits = 1,
                                                                       .min_hits = 2 }),
                         KVL_OK);
        assert_int_equal(n_found, 3);
        assert_memory_equal(found, ((int32_t[]){ 0, 1, 4 }), sizeof(int32_t) * 3);
        assert_int_equal(visited, 4 + 2 + 1 + 0 + 2);
    }
}

/* ---- the policy ------------------------------------------------------------------------------ */

static struct rig rig;
static int32_t id[N_TOK];

static struct watch {
    struct kvl_session *s;
    int32_t K, L, sink, local;
    double eps;
    int32_t handle; /* of the hyperplanes */
    bool centre, thinned;
    int32_t budget, n_dense, n_lists, n_sampled, n_lanes, n_thin;
    double left; /* of what the heads of a kv head found, the share that is read */
} watch = { .handle = 4 };

/* Hyperplanes of a layer, as the policy drew them. */
static int32_t planes_of(int32_t layer, double *plane)
{
    struct kvl_err err = { 0 };
    struct kvl_rows rows;
    int32_t n = watch.s->host.table[watch.handle]->decl.row_elems;
    kvl_hook_begin(watch.s, &err);
    RIG_OK(&err, kvl_table_peek(&watch.s->ctx, watch.handle, layer, 1, &rows));
    const float *x = kvl_table_row(&rows, 0, 0);
    assert_true(n <= MAX_SIDES * MAX_DIM);
    for (int32_t i = 0; i < n; i++) plane[i] = (double)x[i];
    return n;
}

static void keys_of(const struct kvl_tap_read *t, int32_t kv_head, int32_t n, double *key)
{
    struct kvl_err err = { 0 };
    float row[MAX_DIM];
    for (int32_t i = 0; i < n; i++) {
        RIG_OK(&err, kvl_seq_read(kvl_session_seq(t->session), t->layer, kv_head, KVL_PART_K, i, 1,
                                  row, &err));
        for (int32_t c = 0; c < rig_shape(&rig)->head_dim; c++) *key++ = (double)row[c];
    }
}

/* Subtracts the mean over the hashed keys from them. */
static void centre(double *key, int32_t n, int32_t dim)
{
    for (int32_t c = 0; watch.centre && c < dim; c++) {
        double mean = 0;
        for (int32_t i = 0; i < n; i++) mean += key[i * dim + c] / n;
        for (int32_t i = 0; i < n; i++) key[i * dim + c] -= mean;
    }
}

/* One query head: dense ends with weight 0, collisions with theirs, nothing else. */
static void compare_head(const struct kvl_tap_read *t, int32_t h, const double *key,
                         const double *plane)
{
    const struct kvl_shape *sh = rig_shape(&rig);
    int32_t dim = sh->head_dim, last = N_CTX - watch.local, n = 0;
    double q[MAX_DIM];
    for (int32_t c = 0; c < dim; c++) q[c] = (double)t->q[h * dim + c];
    for (int32_t i = 0; i <= t->pos; i++) {
        bool read = n < t->n_read[h] && t->read[h][n] == i, hashed = i >= watch.sink && i < last;
        const double *k = key + (size_t)(i - watch.sink) * (size_t)dim;
        bool found = !hashed || collisions(q, k, plane, dim, watch.K, watch.L) >= 2;
        if (watch.thinned ? read && !found : read != found)
            fail_msg("layer %d, head %d, position %d: token %d", t->layer, h, t->pos, i);
        if (!read) continue;
        double got = t->log_weight[h] ? (double)t->log_weight[h][n] : 0;
        n++;
        if (!hashed) near(got, 0, 0);
        if (!hashed) continue;
        double cosine = product(q, k, dim) / sqrt(product(q, q, dim) * product(k, k, dim));
        double w = magicpig_weight(cosine, watch.K, watch.L) + watch.eps;
        near(got, -log(w * watch.left), 1e-3);
        watch.n_sampled++;
    }
    assert_int_equal(n, t->n_read[h]);
    watch.n_lists++;
}

/* What thinning leaves of the union that a kv head's query heads find. */
static double left_of(const struct kvl_tap_read *t, int32_t kv_head, const double *key,
                      const double *plane)
{
    const struct kvl_shape *sh = rig_shape(&rig);
    int32_t dim = sh->head_dim, group = sh->n_heads / sh->n_kv_heads, n = 0;
    int32_t n_hashed = N_CTX - watch.local - watch.sink;
    int32_t room = watch.budget - 1 - (t->pos - n_hashed);
    for (int32_t i = 0; i < n_hashed; i++) {
        bool found = false;
        for (int32_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
            double q[MAX_DIM];
            for (int32_t c = 0; c < dim; c++) q[c] = (double)t->q[h * dim + c];
            found |= collisions(q, key + i * dim, plane, dim, watch.K, watch.L) >= 2;
        }
        n += found;
    }
    watch.n_lanes++;
    watch.n_thin += n > room;
    return n > room ? (double)room / n : 1;
}

static int compare(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    static double key[N_TOK * MAX_DIM], plane[MAX_SIDES * MAX_DIM];
    const struct kvl_shape *sh = rig_shape(&rig);
    (void)user;
    (void)err;
    watch.n_dense += t->dense;
    if (t->dense) return KVL_OK;
    (void)planes_of(t->layer, plane);
    for (int32_t h = 0; h < sh->n_heads; h++) {
        keys_of(t, h / (sh->n_heads / sh->n_kv_heads), N_CTX, key);
        double *hashed = key + watch.sink * sh->head_dim;
        centre(hashed, N_CTX - watch.local - watch.sink, sh->head_dim);
        int32_t group = sh->n_heads / sh->n_kv_heads;
        watch.left = watch.thinned ? left_of(t, h / group, hashed, plane) : 1;
        compare_head(t, h, hashed, plane);
    }
    return KVL_OK;
}

static void take_number(void *user, const char *name, double value)
{
    (void)user;
    if (strcmp(name, "tables_mean") == 0) watch.L = (int32_t)lround(value);
}

static void run_watched(const char *options, int32_t budget)
{
    struct rig_run run = { .policy = kvl_policy_magicpig,
                           .options = options,
                           .budget = budget,
                           .id = id,
                           .n_ctx = N_CTX,
                           .seed = 3 };
    struct rig_session rs = rig_start(&rig, &run);
    float *logits = rig_logits(&rig, N_STEPS);
    const struct kvl_tap tap = { .read = compare };
    const struct kvl_report_to to = { .num = take_number };
    watch.s = rs.s;
    watch.budget = budget;
    watch.n_lanes = watch.n_dense = watch.n_lists = watch.n_sampled = watch.n_thin = 0;
    RIG_OK(&rig.err, kvl_session_report(rs.s, &to, &rig.err));
    kvl_session_tap(rs.s, &tap);
    rig_decode(&rig, &rs, id + N_CTX, N_STEPS, logits);
    kvl_free(logits);
    rig_end(&rs);
}

static void open_rig(uint32_t n_layers)
{
    rig_open(&rig, &(struct rig_desc){ .llama = { .n_layers = n_layers, .seed = 81 } });
    rig_tokens(id, N_TOK, 82);
}

static void test_policy_follows_the_formulas(void **state)
{
    (void)state;
    open_rig(5);
    int32_t lists = N_STEPS * rig_shape(&rig)->n_heads;
    watch = (struct watch){ .handle = 4, .K = 5, .L = 24, .sink = 4, .local = 64, .eps = 1e-4 };
    watch.centre = true;
    run_watched("K=5,L=24,local=64", 0);
    assert_true(watch.n_lists == 4 * lists && watch.n_dense == N_STEPS && watch.n_sampled > lists);
    watch.eps = 0;
    watch.sink = 7;
    watch.local = 11;
    watch.centre = false;
    run_watched("K=5,L=24,local=11,sink=7,eps=0,centre=false,dense_every=0", 0);
    assert_true(watch.n_lists == 5 * lists && watch.n_dense == 0);
    watch.L = 2;
    run_watched("K=5,L=2,local=11,sink=7,eps=0,centre=false,dense_every=2,seed=9", 0);
    assert_true(watch.n_lists == 2 * lists && watch.n_dense == 3 * N_STEPS);
    rig_close(&rig);
}

/* Measured tables: as many as the budget holds and no more; what is over is thinned. */
static void test_measured_tables(void **state)
{
    (void)state;
    open_rig(2);
    int32_t layers_lists = N_STEPS * rig_shape(&rig)->n_heads;
    watch = (struct watch){ .handle = 4, .K = 5, .sink = 4, .local = 25, .eps = 1e-4 };
    watch.centre = watch.thinned = true;
    run_watched("K=5,local=25,dense_every=2", 100);
    assert_int_equal(watch.n_lists, layers_lists); /* of one layer: its tables are the mean */
    assert_true(watch.L > 2 && watch.L < 64);
    /* Within 9 / 10 of the room on average: some lists are longer, most are not. */
    assert_true(watch.n_thin > 0 && 2 * watch.n_thin < watch.n_lanes);
    int32_t few = watch.L;
    run_watched("K=5,local=25,dense_every=2", 200);
    assert_int_equal(watch.n_lists, layers_lists);
    assert_true(watch.L > few);
    rig_close(&rig);
}

/* ---- unbiased -------------------------------------------------------------------------------- */

enum { SEEDS = 400, N_SHORT = 120, MAX_HEADS = 8 };
static struct sums {
    int32_t n;
    double full[MAX_HEADS], mean[MAX_HEADS], square[MAX_HEADS];
} sums;

/* Of the layer that samples: ratio of the estimated partition sum to the true one. */
static int gather(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    static double key[N_TOK * MAX_DIM];
    const struct kvl_shape *sh = rig_shape(&rig);
    int32_t dim = sh->head_dim;
    (void)user;
    (void)err;
    if (t->layer != 0) return KVL_OK;
    for (int32_t h = 0; h < sh->n_heads; h++) {
        double full = 0, part = 0, q[MAX_DIM];
        int32_t n = 0;
        keys_of(t, h / (sh->n_heads / sh->n_kv_heads), t->pos + 1, key);
        for (int32_t c = 0; c < dim; c++) q[c] = (double)t->q[h * dim + c];
        for (int32_t i = 0; i <= t->pos; i++) {
            double e = exp(product(q, key + i * dim, dim) / sqrt(dim));
            full += e;
            if (n == t->n_read[h] || t->read[h][n] != i) continue;
            part += e * exp(t->log_weight[h] ? (double)t->log_weight[h][n] : 0);
            n++;
        }
        sums.mean[h] += part / full / SEEDS;
        sums.square[h] += (part / full) * (part / full) / SEEDS;
    }
    sums.n++;
    return KVL_OK;
}

static void gather_seed(const struct kvl_session *prefill, const struct kvl_planned *p,
                        uint64_t seed)
{
    struct rig_session rs = { 0 };
    float *logits = rig_logits(&rig, 1);
    const struct kvl_tap tap = { .read = gather };
    RIG_OK(&rig.err, kvl_session_fork(prefill, &rs.s, &rig.err));
    RIG_OK(&rig.err, kvl_session_attach(rs.s, p, seed, KVL_EXEC_REAL, &rig.err));
    kvl_session_tap(rs.s, &tap);
    rig_decode(&rig, &rs, id + N_SHORT, 1, logits);
    kvl_free(logits);
    rig_end(&rs);
}

static void expect_unbiased(const char *options, int32_t budget)
{
    struct kvl_session *prefill;
    struct kvl_planned *p;
    memset(&sums, 0, sizeof sums);
    RIG_OK(&rig.err, kvl_planned_create(kvl_policy_magicpig, rig_shape(&rig), options, budget,
                                        N_SHORT, &p, &rig.err));
    RIG_OK(&rig.err, kvl_session_create(rig.engine, &prefill, &rig.err));
    RIG_OK(&rig.err, kvl_session_prefill(prefill, id, N_SHORT, NULL, true, &rig.err));
    for (uint64_t seed = 1; seed <= SEEDS; seed++) gather_seed(prefill, p, seed);
    kvl_session_destroy(prefill);
    kvl_planned_destroy(p);
    assert_int_equal(sums.n, SEEDS);
    for (int32_t h = 0; h < rig_shape(&rig)->n_heads; h++) {
        double deviation = sqrt((sums.square[h] - sums.mean[h] * sums.mean[h]) / SEEDS);
        assert_true(deviation > 1e-4); /* it does sample */
        if (!(fabs(sums.mean[h] - 1) < 4 * deviation))
            fail_msg("%s: head %d: %.4f of the partition sum on average, +- %.4f", options, h,
                     sums.mean[h], deviation);
    }
}

/* Over draws of the hyperplanes the sum of exp(logit) / w is the partition sum, thinned or not. */
static void test_unbiased(void **state)
{
    (void)state;
    open_rig(1);
    expect_unbiased("K=3,L=10,sink=2,local=8,eps=0,dense_every=0", 0);
    expect_unbiased("K=3,sink=2,local=8,eps=0,dense_every=0", 24);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_weight_is_the_probability),
        cmocka_unit_test(test_example),
        cmocka_unit_test(test_example_in_tables),
        cmocka_unit_test(test_policy_follows_the_formulas),
        cmocka_unit_test(test_measured_tables),
        cmocka_unit_test(test_unbiased),
    };
    return cmocka_run_group_tests_name("golden_magicpig", tests, NULL, NULL);
}
