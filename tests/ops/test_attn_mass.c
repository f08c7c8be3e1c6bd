/* attn_merge, attn_window, attn_probs against their definitions. */
#include "ops/ops_util.h"

/* Parts that cover a list merge to the list; empty parts count nothing, whatever they hold. */
static void body_merge(struct kvl_rng *r)
{
    static const int32_t dims[] = { 32, 80, 100, 128 };
    for (int32_t i = 0; i < 12; i++) {
        int32_t dim = dims[i % 4], n_heads = ut_between(r, 1, 8), n_parts = ut_between(r, 1, 5);
        size_t n = (size_t)n_heads * (size_t)dim;
        float *parts[5], *lses[5], *out[2], *lse[2];
        for (int32_t p = 0; p < n_parts; p++) {
            parts[p] = ut_random(r, n, 1);
            lses[p] = ut_random(r, (size_t)n_heads, i % 2 ? 1e4 : 3);
            if (kvl_rng_below(r, 3)) continue;
            for (int32_t h = 0; h < n_heads; h++) lses[p][h] = -INFINITY;
            for (size_t c = 0; c < n; c++) parts[p][c] = NAN;
        }
        for (int k = 0; k < 2; k++) {
            out[k] = ut_poison(n);
            lse[k] = ut_poison((size_t)n_heads);
            struct kvl_attn_merge_args a = { .out = out[k],
                                             .lse = lse[k],
                                             .part = (const float *const *)parts,
                                             .part_lse = (const float *const *)lses,
                                             .n_parts = n_parts,
                                             .n_heads = n_heads,
                                             .head_dim = dim };
            assert_int_equal((k ? kvl_ops_ref : kvl_ops_cpu).attn_merge(&a), KVL_OK);
        }
        ut_near("out", out[0], out[1], n, 1e-5);
        ut_near("lse", lse[0], lse[1], (size_t)n_heads, 1e-6);
        for (int k = 0; k < 2; k++) {
            kvl_free(out[k]);
            kvl_free(lse[k]);
        }
        for (int32_t p = 0; p < n_parts; p++) {
            kvl_free(parts[p]);
            kvl_free(lses[p]);
        }
    }
}

static void test_merge(void **state)
{
    (void)state;
    ut_each_isa(body_merge);
}

/* Merges of one call have the bits that they have alone: more than a launch takes, of other sizes, of no
 * heads, of more parts than the next one leaves room for. */
static void body_merge_many(struct kvl_rng *r)
{
    enum { MERGES = 90, PARTS = 60, HEADS = 5, DIM = 160, N = HEADS * DIM };
    float *values = ut_random(r, PARTS * N, 1), *lses = ut_random(r, PARTS * HEADS, 3);
    float *out[2] = { ut_poison(MERGES * N), ut_poison(MERGES * N) };
    float *lse[2] = { ut_poison(MERGES * HEADS), ut_poison(MERGES * HEADS) };
    const float *part[PARTS], *part_lse[PARTS];
    struct kvl_attn_merge_args a[MERGES];
    for (int32_t p = 0; p < PARTS; p++) {
        part[p] = values + p * N;
        part_lse[p] = lses + p * HEADS;
    }
    for (int32_t m = 0; m < MERGES; m++)
        a[m] = (struct kvl_attn_merge_args){ .out = out[0] + m * N,
                                             .lse = m % 3 ? lse[0] + m * HEADS : NULL,
                                             .part = part + m % 30,
                                             .part_lse = part_lse + m % 30,
                                             .n_parts = m % 20 == 7 ? 30 : 1 + m % 3,
                                             .n_heads = m == 40 ? 0 : ut_between(r, 1, HEADS),
                                             .head_dim = UT_PICK(r, 32, 100, DIM),
                                             .next = m + 1 < MERGES ? &a[m + 1] : NULL };
    assert_int_equal(kvl_ops_cpu.attn_merge(a), KVL_OK);
    for (int32_t m = 0; m < MERGES; m++) {
        a[m].next = NULL;
        a[m].out = out[1] + m * N;
        if (a[m].lse) a[m].lse = lse[1] + m * HEADS;
        assert_int_equal(kvl_ops_cpu.attn_merge(&a[m]), KVL_OK);
    }
    ut_same("out of many", out[0], out[1], MERGES * N);
    ut_same("lse of many", lse[0], lse[1], MERGES * HEADS);
    for (int k = 0; k < 2; k++) {
        kvl_free(out[k]);
        kvl_free(lse[k]);
    }
    kvl_free(values);
    kvl_free(lses);
}

static void test_merge_many(void **state)
{
    (void)state;
    ut_each_isa(body_merge_many);
}

/* Two halves of a list, merged, against the whole list. */
static void body_merge_halves(struct kvl_rng *r)
{
    enum { DIM = 64, HEADS = 3, SLOTS = 300 };
    struct ut_lanes t = { 0 };
    float *q = ut_random(r, HEADS * DIM, 3), *out = ut_poison(4 * HEADS * DIM);
    float *lse = ut_poison(4 * HEADS);
    struct kvl_run half[2] = { { 0, 111 }, { 111, SLOTS - 111 } };
    struct kvl_attn_job jobs[3];
    ut_layout(&t.layout, DIM, 16, KVL_KV_F16, false);
    ut_lanes_open(&t, r, 1, SLOTS);
    for (int32_t j = 0; j < 3; j++)
        jobs[j] = (struct kvl_attn_job){ .out = out + j * HEADS * DIM,
                                         .lse = lse + j * HEADS,
                                         .q = q,
                                         .lane = &t.lane[0],
                                         .runs = j < 2 ? &half[j] : NULL,
                                         .n_runs = 1,
                                         .n_slots = j < 2 ? half[j].n : SLOTS,
                                         .n_heads = HEADS };
    struct kvl_attn_decode_args d = { .jobs = jobs, .n_jobs = 3, .head_dim = DIM, .scale = 0.125f };
    assert_int_equal(kvl_ops_cpu.attn_decode(&d), KVL_OK);
    const float *part[2] = { jobs[0].out, jobs[1].out }, *part_lse[2] = { lse, lse + HEADS };
    struct kvl_attn_merge_args m = { .out = out + 3 * HEADS * DIM,
                                     .lse = lse + 3 * HEADS,
                                     .part = part,
                                     .part_lse = part_lse,
                                     .n_parts = 2,
                                     .n_heads = HEADS,
                                     .head_dim = DIM };
    assert_int_equal(kvl_ops_cpu.attn_merge(&m), KVL_OK);
    ut_near("merged out", m.out, jobs[2].out, HEADS * DIM, 1e-5);
    ut_near("merged lse", m.lse, jobs[2].lse, HEADS, 1e-5);
    kvl_free(lse);
    kvl_free(out);
    kvl_free(q);
    ut_lanes_close(&t);
}

static void test_merge_of_halves(void **state)
{
    (void)state;
    ut_each_isa(body_merge_halves);
}

struct mass_case {
    struct ut_lanes lanes;
    int32_t n_heads, n_kv_heads, head_dim, n_slots, n_window;
    float *q, *lse, *y[2]; /* lse: of a window's queries, or NULL */
    size_t n_y;
    float cap;
    bool bf16; /* window */
};

static void mass_open(struct kvl_rng *r, struct mass_case *t, int32_t n_slots, int32_t n_window)
{
    memset(t, 0, sizeof *t);
    t->head_dim = UT_PICK(r, 32, 64, 80, 100, 128, 2, 22);
    t->n_kv_heads = ut_between(r, 1, 3);
    t->n_heads = t->n_kv_heads * ut_between(r, 1, 8);
    t->n_slots = n_slots;
    t->n_window = n_window;
    enum kvl_kv_type type = ut_kv_type(r, t->head_dim);
    ut_layout(&t->lanes.layout, t->head_dim, UT_PICK(r, 8, 16, 32), type, false);
    ut_lanes_open(&t->lanes, r, t->n_kv_heads, n_slots);
    t->q = ut_random(r, (size_t)(n_window * t->n_heads * t->head_dim), 2);
    if (kvl_kv_keys(type) == KVL_KV_BF16)
        ut_round_bf16(t->q, (size_t)(n_window * t->n_heads * t->head_dim));
    t->n_y = (size_t)t->n_heads * (size_t)n_slots;
    t->bf16 = kvl_rng_below(r, 2) && !ut_is_turned(&t->lanes.layout);
    t->cap = (float)UT_PICK(r, 0, 0, 1, 30);
    t->y[0] = ut_poison(t->n_y);
    t->y[1] = ut_poison(t->n_y);
}

static void mass_close(struct mass_case *t)
{
    kvl_free(t->y[0]);
    kvl_free(t->y[1]);
    kvl_free(t->q);
    kvl_free(t->lse);
    ut_lanes_close(&t->lanes);
}

static void window_run(const struct mass_case *t, const struct kvl_ops *ops, float *y)
{
    struct kvl_attn_window_args a = { .mass = y,
                                      .q = t->q,
                                      .lse = t->lse,
                                      .lanes = t->lanes.lane,
                                      .n_window = t->n_window,
                                      .n_slots = t->n_slots,
                                      .n_heads = t->n_heads,
                                      .n_kv_heads = t->n_kv_heads,
                                      .head_dim = t->head_dim,
                                      .scale = 1 / sqrtf((float)t->head_dim),
                                      .cap = t->cap,
                                      .bf16 = t->bf16 };
    assert_int_equal(ops->attn_window(&a), KVL_OK);
}

static void window_lse(struct mass_case *t)
{
    t->lse = ut_poison((size_t)(t->n_window * t->n_heads));
    struct kvl_attn_prefill_args p = { .lse = t->lse,
                                       .q = t->q,
                                       .lanes = t->lanes.lane,
                                       .n = t->n_window,
                                       .n_heads = t->n_heads,
                                       .n_kv_heads = t->n_kv_heads,
                                       .head_dim = t->head_dim,
                                       .scale = 1 / sqrtf((float)t->head_dim),
                                       .cap = t->cap,
                                       .bf16 = t->bf16 };
    assert_int_equal(kvl_ops_cpu.attn_prefill(&p), KVL_OK);
}

static void body_window(struct kvl_rng *r)
{
    static const int32_t sizes[][2] = { { 1, 1 },    { 5, 5 },    { 40, 8 },
                                        { 128, 32 }, { 300, 33 }, { 400, 300 } };
    /* Cut, the last is over 2 items of 128 slots and over 256 queries still. */
    bool few = !getenv("KVL_LONG");
#ifdef KVL_TEST_CUDA
    few = false;
#endif
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct mass_case t;
        bool last = few && sizes[i][0] == 400;
        mass_open(r, &t, last ? 270 : sizes[i][0], last ? 261 : sizes[i][1]);
        window_run(&t, &kvl_ops_cpu, t.y[0]);
        window_run(&t, &kvl_ops_ref, t.y[1]);
        ut_near("mass", t.y[0], t.y[1], t.n_y, 2e-5);
        window_lse(&t);
        window_run(&t, &kvl_ops_cpu, t.y[1]);
        ut_near("mass with a known lse", t.y[1], t.y[0], t.n_y, 2e-5);
        /* What is given is taken. */
        for (int32_t j = 0; j < t.n_window * t.n_heads; j++) t.lse[j] += (float)(j % 3);
        window_run(&t, &kvl_ops_cpu, t.y[0]);
        window_run(&t, &kvl_ops_ref, t.y[1]);
        ut_near("mass", t.y[0], t.y[1], t.n_y, 2e-5);
        kvl_ops_set_threads(3);
        window_run(&t, &kvl_ops_cpu, t.y[1]);
        ut_same("mass", t.y[1], t.y[0], t.n_y);
        mass_close(&t);
    }
}

static void test_window(void **state)
{
    (void)state;
    ut_each_isa(body_window);
}

/* No queries, no mass. */
static void body_no_window(struct kvl_rng *r)
{
    struct mass_case t;
    mass_open(r, &t, 70, 0);
    window_run(&t, &kvl_ops_cpu, t.y[0]);
    window_run(&t, &kvl_ops_ref, t.y[1]);
    ut_same("mass", t.y[0], t.y[1], t.n_y);
    mass_close(&t);
}

static void test_no_window(void **state)
{
    (void)state;
    ut_each_isa(body_no_window);
}

static void probs_run(const struct mass_case *t, const struct kvl_ops *ops, float *y, float *lse)
{
    struct kvl_attn_probs_args a = { .probs = y,
                                     .lse = lse,
                                     .q = t->q,
                                     .lanes = t->lanes.lane,
                                     .n_slots = t->n_slots,
                                     .n_heads = t->n_heads,
                                     .n_kv_heads = t->n_kv_heads,
                                     .head_dim = t->head_dim,
                                     .scale = 0.2f,
                                     .cap = t->cap };
    assert_int_equal(ops->attn_probs(&a), KVL_OK);
}

static void body_probs(struct kvl_rng *r)
{
    static const int32_t sizes[] = { 1, 33, 512, 1500 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct mass_case t;
        mass_open(r, &t, sizes[i], 1);
        size_t n = (size_t)t.n_heads;
        float *lse[2] = { ut_poison(n), ut_poison(n) };
        probs_run(&t, &kvl_ops_cpu, t.y[0], lse[0]);
        probs_run(&t, &kvl_ops_ref, t.y[1], lse[1]);
        ut_near("probs", t.y[0], t.y[1], t.n_y, 1e-5);
        ut_near("lse", lse[0], lse[1], n, 1e-5);
        kvl_ops_set_threads(3);
        probs_run(&t, &kvl_ops_cpu, t.y[1], lse[1]);
        ut_same("probs", t.y[1], t.y[0], t.n_y);
        ut_same("lse", lse[1], lse[0], n);
        probs_run(&t, &kvl_ops_cpu, t.y[1], NULL);
        ut_same("probs without lse", t.y[1], t.y[0], t.n_y);
        t.q[0] = NAN; /* a query that is no number has weights that are none */
        probs_run(&t, &kvl_ops_cpu, t.y[1], lse[1]);
        for (int32_t k = 0; k < t.n_slots; k++) assert_true(isnan(t.y[1][k]));
        kvl_free(lse[0]);
        kvl_free(lse[1]);
        mass_close(&t);
    }
}

static void test_probs(void **state)
{
    (void)state;
    ut_each_isa(body_probs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merge),           cmocka_unit_test(test_merge_many),
        cmocka_unit_test(test_merge_of_halves), cmocka_unit_test(test_window),
        cmocka_unit_test(test_no_window),       cmocka_unit_test(test_probs),
    };
    return cmocka_run_group_tests_name("attn_mass", tests, NULL, NULL);
}
