/* Hash tables of keys: what queries find, at which angle and at which cost, against codes written out. */
#include "conformance/rig.h"
#include "parts/lsh.h"

enum { N_LAYERS = 2, N_HEADS = 4, N_KV = 2, GROUP = N_HEADS / N_KV, DIM = 16 };
enum {
    N_CTX = 90,
    N_TOK = N_CTX + 2,
    FIRST = 3,
    BEHIND = 7,
    N = N_CTX - FIRST - BEHIND,
    QUERIES = 8
};

static struct rig rig;
static int32_t id[N_TOK];

/* Tests only, a real policy keeps no globals. */
static struct {
    struct kvl_lsh lsh;
    int32_t used, position; /* tables that queries look into; one that is not hashed: refused */
    double room;            /* for kvl_lsh_fit */
    int checked, fitted[N_LAYERS];
} seen;

/* Keys of a lane as they are hashed, and how near a product came to 0, where rounding may turn a bit. */
struct lane {
    double key[N][DIM];
    double nearest;
};

static int read_lane(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, struct lane *out)
{
    float *k;
    KVL_TRY(kvl_scratch_get(ctx, N * DIM, &k));
    KVL_TRY(kvl_read_key_span(ctx, layer, kv_head, FIRST, N, false, k));
    for (int32_t c = 0; c < DIM; c++) {
        double mean = 0;
        for (int32_t i = 0; i < N && seen.lsh.centre; i++) mean += (double)k[i * DIM + c] / N;
        for (int32_t i = 0; i < N; i++) out->key[i][c] = (double)k[i * DIM + c] - mean;
    }
    return KVL_OK;
}

static double dot(const double *x, const float *y)
{
    double sum = 0;
    for (int32_t c = 0; c < DIM; c++) sum += x[c] * (double)y[c];
    return sum;
}

/* Tables among the first n_tables in which the key and the query lie on the same side of all K planes. */
static int32_t hits(struct lane *l, const double *key, const double *q, const float *plane,
                    int32_t n_tables)
{
    int32_t n = 0;
    for (int32_t t = 0; t < n_tables; t++) {
        bool same = true;
        for (int32_t j = 0; j < seen.lsh.K; j++, plane += DIM) {
            double x = dot(key, plane), y = dot(q, plane);
            l->nearest = fmin(l->nearest, fmin(fabs(x), fabs(y)));
            same = same && (x > 0) == (y > 0);
        }
        n += same;
    }
    return n;
}

static void check_cosine(const double *key, const double *q, double got)
{
    double kk = 0, qq = 0, kq = 0;
    for (int32_t c = 0; c < DIM; c++) {
        kk += key[c] * key[c];
        qq += q[c] * q[c];
        kq += key[c] * q[c];
    }
    if (!(fabs(got - kq / sqrt(kk * qq)) < 1e-4))
        fail_msg("cosine %g, want %g", got, kq / sqrt(kk * qq));
}

/* Lists of a kv head's queries, what they have together, and the angles of these. */
static int check_head(struct kvl_lsh_hits *m, int32_t kv_head, const float *q, const float *plane)
{
    static struct lane l;
    uint8_t any[N] = { 0 };
    double wide[DIM], *cosine;
    int32_t n_any = 0, n_union;
    KVL_TRY(kvl_lsh_union(m, kv_head, &n_union));
    KVL_TRY(read_lane(m->ctx, m->layer, kv_head, &l));
    KVL_TRY(kvl_lsh_cosines(m, kv_head, q, m->pos, n_union, &cosine));
    l.nearest = 1;
    for (int32_t g = 0; g < GROUP; g++) {
        int32_t h = kv_head * GROUP + g, n = 0;
        for (int32_t c = 0; c < DIM; c++) wide[c] = (double)q[h * DIM + c];
        for (int32_t i = 0; i < N; i++) {
            bool want = hits(&l, l.key[i], wide, plane, m->n_tables) >= seen.lsh.min_hits;
            any[i] |= want;
            if (want && (n >= m->n_found[h] || m->found[h * m->n + n] != i))
                fail_msg("head %d did not find item %d", h, i);
            n += want;
        }
        assert_int_equal(m->n_found[h], n);
        for (int32_t i = 0; i < n_union; i++)
            check_cosine(l.key[m->pos[i] - FIRST], wide, cosine[g * n_union + i]);
    }
    if (!(l.nearest > 1e-5)) fail_msg("a product of %g: choose another seed", l.nearest);
    for (int32_t i = 0; i < N; i++)
        if (any[i]) assert_int_equal(m->pos[n_any++], FIRST + i);
    assert_int_equal(n_union, n_any);
    seen.checked += n_any;
    return KVL_OK;
}

static int hashed_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                         const struct kvl_query *q, struct kvl_sel *sel)
{
    struct kvl_lsh_hits m;
    struct kvl_rows plane;
    double *cosine;
    (void)sel;
    assert_int_equal(kvl_lsh_hashed(ctx, &seen.lsh), N);
    KVL_TRY(kvl_lsh_open(ctx, &seen.lsh, step->layer, &m));
    KVL_TRY(kvl_lsh_find(&m, q->q, seen.used));
    if (seen.position >= 0) return kvl_lsh_cosines(&m, 0, q->q, &seen.position, 1, &cosine);
    KVL_TRY(kvl_table_peek(ctx, seen.lsh.handle[KVL_LSH_PLANE], step->layer, 1, &plane));
    for (int32_t h = 0; h < N_KV; h++)
        KVL_TRY(check_head(&m, h, q->q, kvl_table_row(&plane, 0, 0)));
    return KVL_OK;
}

/* By trying every number of tables. */
static int fit_by_hand(const struct kvl_pctx *ctx, int32_t layer, int32_t *out)
{
    struct kvl_lsh_hits m;
    float *q;
    KVL_TRY(kvl_lsh_open(ctx, &seen.lsh, layer, &m));
    KVL_TRY(kvl_scratch_get(ctx, N_HEADS * DIM, &q));
    *out = seen.lsh.min_hits;
    for (int32_t t = seen.lsh.min_hits; t <= seen.lsh.L; t++) {
        double mean = 0;
        for (int32_t b = 0; b < QUERIES; b++) {
            KVL_TRY(kvl_obs_window_query(ctx, layer, b, q));
            KVL_TRY(kvl_lsh_find(&m, q, t));
            for (int32_t h = 0, n; h < N_KV; h++) {
                KVL_TRY(kvl_lsh_union(&m, h, &n));
                mean += (double)n / (QUERIES * N_KV);
            }
        }
        if (mean <= seen.room + 1e-9) *out = t;
    }
    return KVL_OK;
}

static int hashed_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    int32_t want;
    KVL_TRY(kvl_lsh_build(ctx, &seen.lsh, layer));
    KVL_TRY(kvl_lsh_fit(ctx, &seen.lsh, layer, QUERIES, seen.room, &seen.fitted[layer]));
    KVL_TRY(fit_by_hand(ctx, layer, &want));
    assert_int_equal(seen.fitted[layer], want);
    return KVL_OK;
}

static int hashed_plan(struct kvl_plan *plan)
{
    KVL_TRY(kvl_plan_observe(plan, KVL_OBS_WINDOW, QUERIES));
    return kvl_plan_lsh(plan, NULL, &seen.lsh);
}

RIG_POLICY(hashed, .caps = KVL_CAP_SELECTS, .plan = hashed_plan, .prefilled = hashed_prefilled,
           .select = hashed_select);

static int run(struct kvl_err *err)
{
    struct rig_run r = {
        .policy = &hashed, .id = id, .n_ctx = N_CTX, .n_steps = 2, .budget = 40, .seed = 5
    };
    float *logits = rig_logits(&rig, 1);
    struct rig_session rs = rig_start(&rig, &r);
    seen.checked = 0;
    int rc = kvl_session_decode(&rs.s, 1, &id[N_CTX], logits, err);
    rig_end(&rs);
    kvl_free(logits);
    return rc;
}

static void start(int32_t K, int32_t L, int32_t min_hits)
{
    memset(&seen, 0, sizeof seen);
    seen.lsh = (struct kvl_lsh){
        .K = K, .L = L, .min_hits = min_hits, .first = FIRST, .behind = BEHIND, .centre = true
    };
    seen.used = L;
    seen.position = -1;
    seen.room = 12;
}

static void test_what_is_found(void **state)
{
    static const int32_t shapes[][4] = {
        { 4, 12, 2, 12 }, { 4, 12, 2, 5 }, { 6, 30, 1, 30 }, { 2, 9, 4, 9 }
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int centre = 0; centre < 2; centre++) {
            struct kvl_err err = { 0 };
            start(shapes[i][0], shapes[i][1], shapes[i][2]);
            seen.used = shapes[i][3];
            seen.lsh.centre = centre;
            RIG_OK(&err, run(&err));
            assert_true(seen.checked > 0);
        }
}

/* Tables by what the last queries find: few room, few tables; as much as there is, all. */
static void test_fit(void **state)
{
    static const double rooms[] = { 0, 8, 20, N };
    int32_t before = 0;
    (void)state;
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        struct kvl_err err = { 0 };
        start(5, 40, 2);
        seen.room = rooms[i];
        RIG_OK(&err, run(&err)); /* compares with what trying gives */
        assert_true(seen.fitted[0] >= before);
        before = seen.fitted[0];
        if (i == 0) assert_int_equal(before, 2);
    }
    assert_int_equal(before, 40);
}

static void refuse_plan(int32_t K, int32_t L, int32_t n_ctx, int want, const char *needle)
{
    struct kvl_planned *planned = NULL;
    struct kvl_err err = { 0 };
    start(K, L, 2);
    assert_int_equal(kvl_planned_create(&hashed, rig_shape(&rig), "", 40, n_ctx, &planned, &err),
                     want);
    if (!strstr(err.msg, needle)) fail_msg("message \"%s\" lacks \"%s\"", err.msg, needle);
}

static void test_refusals(void **state)
{
    struct kvl_err err = { 0 };
    (void)state;
    refuse_plan(17, 4, N_CTX, KVL_EPOLICY, "4 hash tables of 17 bits");
    refuse_plan(4, 1, N_CTX, KVL_EPOLICY, "2 collisions in 1 hash tables, want 1 to 1");
    refuse_plan(16, 4096, N_CTX, KVL_EINVAL, "K=16 with L=4096: 268435456 buckets");
    refuse_plan(4, 4096, 1 << 20, KVL_EINVAL, "4294926336 entries for 1048576 tokens");
    start(4, 12, 2);
    seen.position = N_CTX - BEHIND;
    assert_int_equal(run(&err), KVL_EPOLICY);
    if (!strstr(err.msg, "position 83, 3 to 82")) fail_msg("message \"%s\"", err.msg);
    start(4, 12, 2);
    seen.used = 13;
    err = (struct kvl_err){ 0 };
    assert_int_equal(run(&err), KVL_EPOLICY);
    if (!strstr(err.msg, "13 hash tables, want 0 to 12")) fail_msg("message \"%s\"", err.msg);
}

static int open_rig(void **state)
{
    struct rig_desc desc = { .llama = { .n_layers = N_LAYERS, .seed = 81 }, .kv_type = KVL_KV_F32 };
    (void)state;
    rig_open(&rig, &desc);
    rig_tokens(id, N_TOK, 82);
    return rig_shape(&rig)->n_heads == N_HEADS && rig_shape(&rig)->n_kv_heads == N_KV &&
                   rig_shape(&rig)->head_dim == DIM
               ? 0
               : 1;
}

static int close_rig(void **state)
{
    (void)state;
    rig_close(&rig);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_found),
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests_name("hashed_keys", tests, open_rig, close_rig);
}
