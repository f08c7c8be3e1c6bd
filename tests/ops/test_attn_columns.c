/* attn_columns against its definition; what a slot received is the same for every chunking and every
 * number of threads, and all that the queries gave arrives. */
#include "ops/ops_util.h"

struct columns_case {
    struct ut_lanes lanes;
    struct kvl_attn_columns_args args;
    float *q, *lse, *sums[2], *carry[2];
    size_t n_sums;
};

static void columns_lse(struct columns_case *t)
{
    struct kvl_attn_columns_args *a = &t->args;
    size_t n = (size_t)(a->n * a->n_heads);
    float *out = ut_alloc(n * (size_t)a->head_dim, sizeof *out);
    struct kvl_attn_prefill_args p = { .out = out,
                                       .lse = t->lse,
                                       .q = t->q,
                                       .lanes = t->lanes.lane,
                                       .n = a->n,
                                       .n_heads = a->n_heads,
                                       .n_kv_heads = a->n_kv_heads,
                                       .head_dim = a->head_dim,
                                       .scale = a->scale,
                                       .cap = a->cap,
                                       .bf16 = a->bf16 };
    assert_int_equal(kvl_ops_cpu.attn_prefill(&p), KVL_OK);
    kvl_free(out);
}

/* Sums start as something, so that adding is seen; what lies behind a row is poison. */
static void columns_open(struct kvl_rng *r, struct columns_case *t, int32_t past, int32_t n)
{
    int32_t head_dim = UT_PICK(r, 32, 64, 80, 128, 100, 2, 22, 160, 256);
    int32_t n_kv_heads = ut_between(r, 1, 3), group = ut_between(r, 1, 8);
    enum kvl_kv_type type = ut_kv_type(r, head_dim);
    memset(t, 0, sizeof *t);
    ut_layout(&t->lanes.layout, head_dim, UT_PICK(r, 8, 16, 32), type, false);
    ut_lanes_open(&t->lanes, r, n_kv_heads, past + n);
    t->args = (struct kvl_attn_columns_args){ .stride = (size_t)(past + n + ut_between(r, 0, 9)),
                                              .lanes = t->lanes.lane,
                                              .n = n,
                                              .n_heads = n_kv_heads * group,
                                              .n_kv_heads = n_kv_heads,
                                              .head_dim = head_dim,
                                              .scale = 1 / sqrtf((float)head_dim),
                                              .cap = (float)UT_PICK(r, 0, 0, 2, 30),
                                              .bf16 = kvl_rng_below(r, 2) &&
                                                      !ut_is_turned(&t->lanes.layout) };
    size_t n_q = (size_t)(n * t->args.n_heads);
    t->n_sums = (size_t)t->args.n_heads * t->args.stride;
    t->q = ut_random(r, n_q * (size_t)head_dim, 3);
    t->lse = ut_poison(n_q);
    columns_lse(t);
    t->args.q = t->q;
    t->args.lse = t->lse;
    for (int i = 0; i < 2; i++) {
        t->sums[i] = ut_poison(t->n_sums);
        t->carry[i] = ut_poison(t->n_sums);
    }
}

static void columns_close(struct columns_case *t)
{
    for (int i = 0; i < 2; i++) {
        kvl_free(t->sums[i]);
        kvl_free(t->carry[i]);
    }
    kvl_free(t->q);
    kvl_free(t->lse);
    ut_lanes_close(&t->lanes);
}

static void columns_reset(struct columns_case *t, int i, float start)
{
    int32_t n_slots = t->lanes.lane[0].n_slots;
    for (int32_t h = 0; h < t->args.n_heads; h++)
        for (int32_t s = 0; s < n_slots; s++) {
            size_t at = (size_t)h * t->args.stride + (size_t)s;
            t->sums[i][at] = start * (float)(s % 5);
            t->carry[i][at] = 0;
        }
    t->args.sums = t->sums[i];
    t->args.carry = t->carry[i];
}

static void columns_near(const struct columns_case *t, double tol)
{
    size_t n_slots = (size_t)t->lanes.lane[0].n_slots;
    for (int32_t h = 0; h < t->args.n_heads; h++) {
        size_t at = (size_t)h * t->args.stride;
        ut_near("sums", t->sums[0] + at, t->sums[1] + at, n_slots, tol);
        for (size_t s = n_slots; s < t->args.stride; s++)
            if (!isnan(t->sums[0][at + s])) fail_msg("slot %zu of %zu was written", s, n_slots);
    }
}

static void body_reference(struct kvl_rng *r)
{
    static const int32_t sizes[][2] = { { 0, 1 },   { 0, 2 },   { 5, 3 },    { 0, 8 },   { 31, 16 },
                                        { 0, 33 },  { 127, 1 }, { 128, 1 },  { 127, 2 }, { 0, 129 },
                                        { 200, 7 }, { 60, 70 }, { 150, 100 } };
    static const int32_t nexts[] = { 0, 1, 2, 40, 1000 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct columns_case t;
        columns_open(r, &t, sizes[i][0], sizes[i][1]);
        t.args.kind = (enum kvl_columns)UT_PICK(r, KVL_COLUMNS_PROBS, KVL_COLUMNS_LOGITS);
        t.args.next = nexts[(i + kvl_rng_below(r, 2)) % 5];
        columns_reset(&t, 0, 0.25f);
        assert_int_equal(kvl_ops_cpu.attn_columns(&t.args), KVL_OK);
        columns_reset(&t, 1, 0.25f);
        assert_int_equal(kvl_ops_ref.attn_columns(&t.args), KVL_OK);
        columns_near(&t, 2e-5);
        columns_close(&t);
    }
}

static void test_reference(void **state)
{
    (void)state;
    ut_each_isa(body_reference);
}

/* As a prefill would: the lanes grow with it. */
static void columns_chunks(struct columns_case *t, int32_t chunk, int32_t past)
{
    struct kvl_attn_columns_args whole = t->args;
    for (int32_t i = 0; i < whole.n; i += chunk) {
        size_t at = (size_t)(i * whole.n_heads);
        t->args.n = KVL_MIN(chunk, whole.n - i);
        t->args.q = whole.q + at * (size_t)whole.head_dim;
        t->args.lse = whole.lse + at;
        for (int32_t h = 0; h < whole.n_kv_heads; h++)
            t->lanes.lane[h].n_slots = past + i + t->args.n;
        assert_int_equal(kvl_ops_cpu.attn_columns(&t->args), KVL_OK);
    }
    t->args = whole;
}

static void body_chunks(struct kvl_rng *r)
{
    static const int32_t chunks[] = { UT_SMALL_CHUNKS, 64, 150 };
    for (int32_t round = 0; round < 4; round++) {
        struct columns_case t;
        int32_t past = round % 2 * 60;
        columns_open(r, &t, past, 220);
        t.args.kind = round < 2 ? KVL_COLUMNS_PROBS : KVL_COLUMNS_LOGITS;
        t.args.next = round == 0 ? 0 : 37;
        columns_reset(&t, 0, 0);
        assert_int_equal(kvl_ops_cpu.attn_columns(&t.args), KVL_OK);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            kvl_ops_set_threads(1 + (int32_t)(i % 3));
            columns_reset(&t, 1, 0);
            columns_chunks(&t, chunks[i], past);
            for (int32_t h = 0; h < t.args.n_heads; h++) {
                size_t at = (size_t)h * t.args.stride, n = (size_t)(past + 220);
                ut_same("sums", t.sums[1] + at, t.sums[0] + at, n);
                ut_same("carry", t.carry[1] + at, t.carry[0] + at, n);
            }
        }
        columns_close(&t);
    }
}

static void test_sums_do_not_depend_on_chunks(void **state)
{
    (void)state;
    ut_each_isa(body_chunks);
}

/* Every query gives one: the columns of a head add up to the number of queries. */
static void test_nothing_is_lost(void **state)
{
    enum { N = UT_LONG_CONTEXT, CHUNK = 512 };
    struct kvl_rng r;
    struct columns_case t = { 0 };
    (void)state;
    kvl_rng_seed(&r, 5);
    ut_layout(&t.lanes.layout, 32, 16, KVL_KV_F16, false);
    ut_lanes_open(&t.lanes, &r, 1, N);
    t.args = (struct kvl_attn_columns_args){ .stride = N,
                                             .lanes = t.lanes.lane,
                                             .n = N,
                                             .n_heads = 1,
                                             .n_kv_heads = 1,
                                             .head_dim = 32,
                                             .scale = 1 };
    t.q = ut_random(&r, N * 32, 4); /* sharp enough for some columns to grow large */
    t.lse = ut_poison(N);
    columns_lse(&t);
    t.args.q = t.q;
    t.args.lse = t.lse;
    t.sums[0] = ut_poison(N);
    t.carry[0] = ut_poison(N);
    columns_reset(&t, 0, 0);
    columns_chunks(&t, CHUNK, 0);
    double total = 0;
    for (int32_t s = 0; s < N; s++) total += (double)t.sums[0][s];
    if (fabs(total - N) > 1e-5 * N) fail_msg("columns add up to %.6f of %d", total, N);
    columns_close(&t);
}

/* What one query gives is far below the last bit of a large sum, and still arrives. */
static void body_small(struct kvl_rng *r)
{
    const double start = 1 << 26;
    struct columns_case t;
    columns_open(r, &t, 40, 300);
    columns_reset(&t, 1, 0);
    assert_int_equal(kvl_ops_ref.attn_columns(&t.args), KVL_OK);
    columns_reset(&t, 0, 0);
    for (size_t i = 0; i < t.n_sums; i++) t.sums[0][i] = (float)start;
    assert_int_equal(kvl_ops_cpu.attn_columns(&t.args), KVL_OK);
    for (int32_t h = 0; h < t.args.n_heads; h++)
        for (size_t s = 0; s < 340; s++) {
            size_t at = (size_t)h * t.args.stride + s;
            double got = (double)t.sums[0][at] - start - (double)t.carry[0][at];
            double want = (double)t.sums[1][at];
            if (fabs(got - want) > 2e-5 * (1 + want))
                fail_msg("slot %zu got %g beyond %g, want %g", s, got, start, want);
        }
    columns_close(&t);
}

static void test_small_gifts_arrive(void **state)
{
    (void)state;
    ut_each_isa(body_small);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_sums_do_not_depend_on_chunks),
        cmocka_unit_test(test_nothing_is_lost),
        cmocka_unit_test(test_small_gifts_arrive),
    };
    return cmocka_run_group_tests_name("attn_columns", tests, NULL, NULL);
}
