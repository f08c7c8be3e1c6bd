/* attn_prefill against its definition; a row is the same in every chunk and for every number of
 * threads, and agrees with attn_decode. */
#include "ops/ops_util.h"

struct prefill_case {
    struct ut_lanes lanes;
    struct kvl_attn_prefill_args args;
    float *q, *out[2], *lse[2];
    size_t n_out, n_lse;
};

/* args: the shape. */
static void case_fill(struct kvl_rng *r, struct prefill_case *t, int32_t past, int32_t n)
{
    struct kvl_attn_prefill_args *a = &t->args;
    enum kvl_kv_type type = ut_kv_type(r, a->head_dim);
    ut_layout(&t->lanes.layout, a->head_dim, UT_PICK(r, 8, 16, 32, 256), type, kvl_rng_below(r, 2));
    ut_lanes_open(&t->lanes, r, a->n_kv_heads, past + n);
    t->n_lse = (size_t)(n * a->n_heads);
    t->n_out = t->n_lse * (size_t)a->head_dim;
    t->q = ut_random(r, t->n_out, 3);
    for (int i = 0; i < 2; i++) {
        t->out[i] = ut_poison(t->n_out);
        t->lse[i] = ut_poison(t->n_lse);
    }
    a->q = t->q;
    a->lanes = t->lanes.lane;
    a->n = n;
    a->scale = 1 / sqrtf((float)a->head_dim);
    a->cap = (float)UT_PICK(r, 0, 0, 2, 30);
    a->window = UT_PICK(r, 0, 0, 1, 9, 64, 130);
}

static void case_open(struct kvl_rng *r, struct prefill_case *t, int32_t past, int32_t n)
{
    memset(t, 0, sizeof *t);
    t->args.head_dim = UT_PICK(r, 32, 64, 80, 128, 100, 2, 22, 160, 256);
    t->args.n_kv_heads = ut_between(r, 1, 3);
    t->args.n_heads = t->args.n_kv_heads * ut_between(r, 1, 8);
    case_fill(r, t, past, n);
}

static void case_close(struct prefill_case *t)
{
    for (int i = 0; i < 2; i++) {
        kvl_free(t->out[i]);
        kvl_free(t->lse[i]);
    }
    kvl_free(t->q);
    ut_lanes_close(&t->lanes);
}

static void case_run(struct prefill_case *t, const struct kvl_ops *ops, int i)
{
    t->args.out = t->out[i];
    t->args.lse = t->lse[i];
    assert_int_equal(ops->attn_prefill(&t->args), KVL_OK);
}

static void body_reference(struct kvl_rng *r)
{
    static const int32_t sizes[][2] = { { 0, 1 },   { 0, 2 },   { 5, 3 },    { 0, 8 },   { 16, 16 },
                                        { 0, 33 },  { 127, 1 }, { 128, 1 },  { 127, 2 }, { 0, 129 },
                                        { 200, 7 }, { 60, 70 }, { 300, 100 } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct prefill_case t;
        case_open(r, &t, sizes[i][0], sizes[i][1]);
        case_run(&t, &kvl_ops_cpu, 0);
        case_run(&t, &kvl_ops_ref, 1);
        ut_near("out", t.out[0], t.out[1], t.n_out, 2e-5);
        ut_near("lse", t.lse[0], t.lse[1], t.n_lse, 1e-5);
        t.args.out = NULL;
        assert_int_equal(kvl_ops_ref.attn_prefill(&t.args), KVL_OK);
        ut_near("lse alone", t.lse[0], t.lse[1], t.n_lse, 1e-5);
        t.args.lse = ut_poison(t.n_lse);
        assert_int_equal(kvl_ops_cpu.attn_prefill(&t.args), KVL_OK);
        ut_same("lse alone", t.args.lse, t.lse[0], t.n_lse);
        kvl_free(t.args.lse);
        case_close(&t);
    }
}

static void test_reference(void **state)
{
    (void)state;
    ut_each_isa(body_reference);
}

/* Weights are rounded relative to the largest logit so far, not to that of the whole row: outputs
 * differ by what such roundings average to.  Logits are exact sums of rounded factors. */
static void body_bf16(struct kvl_rng *r)
{
    static const int32_t sizes[][2] = {
        { 0, 1 },   { 0, 2 },   { 5, 3 },   { 16, 16 }, { 0, 33 },
        { 127, 1 }, { 127, 2 }, { 200, 7 }, { 60, 70 }, { 300, 100 }
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct prefill_case t;
        case_open(r, &t, sizes[i][0], sizes[i][1]);
        t.args.bf16 = true;
        case_run(&t, &kvl_ops_cpu, 0);
        case_run(&t, &kvl_ops_ref, 1);
        ut_near("out", t.out[0], t.out[1], t.n_out, 3e-3);
        ut_near("lse", t.lse[0], t.lse[1], t.n_lse, ut_is_turned(&t.lanes.layout) ? 1e-3 : 1e-5);
        t.args.bf16 = false;
        case_run(&t, &kvl_ops_ref, 1);
        ut_near("lse of floats", t.lse[0], t.lse[1], t.n_lse, 3e-2);
        case_close(&t);
    }
}

static void test_bf16(void **state)
{
    (void)state;
    ut_each_isa(body_bf16);
}

/* Runs the chunk in pieces, as a prefill would: the lanes grow with it. */
static void run_in_chunks(struct prefill_case *t, int32_t chunk, int32_t past)
{
    struct kvl_attn_prefill_args whole = t->args;
    size_t row = (size_t)whole.n_heads;
    for (int32_t i = 0; i < whole.n; i += chunk) {
        size_t at = (size_t)i * row;
        t->args = whole;
        t->args.n = KVL_MIN(chunk, whole.n - i);
        t->args.q = whole.q + at * (size_t)whole.head_dim;
        t->args.out = t->out[1] + at * (size_t)whole.head_dim;
        t->args.lse = t->lse[1] + at;
        for (int32_t h = 0; h < whole.n_kv_heads; h++)
            t->lanes.lane[h].n_slots = past + i + t->args.n;
        assert_int_equal(kvl_ops_cpu.attn_prefill(&t->args), KVL_OK);
    }
    t->args = whole;
}

static void body_chunks(struct kvl_rng *r)
{
    static const int32_t chunks[] = { UT_SMALL_CHUNKS, 64, 150, 400 };
    for (int32_t k = 0; k < 4; k++) {
        struct prefill_case t;
        int32_t past = k / 2 * 101;
        case_open(r, &t, past, UT_CHUNKED);
        t.args.bf16 = k % 2;
        case_run(&t, &kvl_ops_cpu, 0);
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            kvl_ops_set_threads(1 + (int32_t)(i % 3));
            run_in_chunks(&t, chunks[i], past);
            ut_same("out", t.out[1], t.out[0], t.n_out);
            ut_same("lse", t.lse[1], t.lse[0], t.n_lse);
        }
        case_close(&t);
    }
}

static void test_row_does_not_depend_on_chunk(void **state)
{
    (void)state;
    ut_each_isa(body_chunks);
}

#ifdef KVL_TEST_CUDA
/* As many heads and rows as ask for the largest tiles of a device: the bits of small ones. */
static void body_many_heads(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 2; i++) {
        struct prefill_case t = { .args = { .head_dim = i ? 128 : 22,
                                            .n_kv_heads = MAX_LANES,
                                            .n_heads = MAX_LANES * 16,
                                            .bf16 = true } };
        case_fill(r, &t, 40, 130);
        case_run(&t, &kvl_ops_cpu, 0);
        run_in_chunks(&t, 50, 40);
        ut_same("out", t.out[1], t.out[0], t.n_out);
        ut_same("lse", t.lse[1], t.lse[0], t.n_lse);
        case_close(&t);
    }
}

static void test_many_heads(void **state)
{
    (void)state;
    ut_each_isa(body_many_heads);
}
#endif

/* The last row is what a decode step over everything computes. */
static void body_decode(struct kvl_rng *r)
{
    struct prefill_case t;
    case_open(r, &t, 700, 20);
    t.args.window = 0;
    case_run(&t, &kvl_ops_cpu, 0);
    int32_t group = t.args.n_heads / t.args.n_kv_heads, last = 19 * t.args.n_heads;
    size_t dim = (size_t)t.args.head_dim;
    struct kvl_attn_job jobs[MAX_LANES];
    for (int32_t h = 0; h < t.args.n_kv_heads; h++) {
        size_t head = (size_t)(last + h * group);
        jobs[h] = (struct kvl_attn_job){ .out = t.out[1] + head * dim,
                                         .lse = t.lse[1] + head,
                                         .q = t.q + head * dim,
                                         .lane = &t.lanes.lane[h],
                                         .n_slots = 720,
                                         .n_heads = group };
    }
    struct kvl_attn_decode_args d = { .jobs = jobs,
                                      .n_jobs = t.args.n_kv_heads,
                                      .head_dim = t.args.head_dim,
                                      .scale = t.args.scale,
                                      .cap = t.args.cap };
    assert_int_equal(kvl_ops_cpu.attn_decode(&d), KVL_OK);
    ut_near("out", t.out[0] + (size_t)last * dim, t.out[1] + (size_t)last * dim,
            (size_t)t.args.n_heads * dim, 2e-5);
    ut_near("lse", t.lse[0] + last, t.lse[1] + last, (size_t)t.args.n_heads, 1e-5);
    case_close(&t);
}

static void test_agrees_with_decode(void **state)
{
    (void)state;
    ut_each_isa(body_decode);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_row_does_not_depend_on_chunk),
#ifdef KVL_TEST_CUDA
        cmocka_unit_test(test_many_heads),
#endif
        cmocka_unit_test(test_agrees_with_decode),
    };
    return cmocka_run_group_tests_name("attn_prefill", tests, NULL, NULL);
}
