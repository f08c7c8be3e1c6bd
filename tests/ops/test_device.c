/* What a GPU promises where nobody waits: marks of what is no number, and steps that are gathered. */
#include "ops/ops_util.h"

#include "kvl/device.h"

#ifdef KVL_TEST_CUDA

static const struct kvl_device *device;

static struct kvl_device_traffic traffic(void)
{
    struct kvl_device_traffic t;
    device->traffic(&t);
    return t;
}

static void *device_alloc(size_t n, size_t item)
{
    void *p = device->alloc(KVL_PLACE_DEVICE, n, item);
    assert_non_null(p);
    return p;
}

static void copy(void *to, const void *from, size_t bytes)
{
    assert_int_equal(device->copy(to, from, bytes, KVL_STREAM_MAIN), KVL_OK);
}

/* ---- marks --------------------------------------------------------------------------------------------------- */

enum { MARK_N = 20000, MARK_K = 9 };

enum mark_op {
    MARK_TOPK,
    MARK_TOPK_LONG,
    MARK_NONE_WANTED,
    MARK_TOP_P,
    MARK_SHARE,
    MARK_CHUNKS,
    MARK_OPS
};

/* Two rows at x; index [2 * MARK_K], count [2]. */
static int mark_call(enum mark_op op, const struct kvl_ops *ops, float *x, int32_t *index,
                     int32_t *count)
{
    const int32_t n = op == MARK_TOPK_LONG ? MARK_N : 100;
    const int32_t k = op == MARK_NONE_WANTED ? 0 : MARK_K;
    if (op == MARK_TOP_P)
        return ops->top_p(&(struct kvl_top_p_args){ .index = index,
                                                    .n_index = count,
                                                    .weight = x,
                                                    .stride = MARK_N,
                                                    .n_rows = 2,
                                                    .n = n,
                                                    .k = MARK_K,
                                                    .p = 0.5f });
    if (op == MARK_SHARE)
        return ops->joint_share(&(struct kvl_joint_share_args){ .count = count,
                                                                .x = x,
                                                                .x_stride = MARK_N,
                                                                .n_rows = 2,
                                                                .n = n,
                                                                .k = MARK_K,
                                                                .safe = 2 });
    if (op == MARK_CHUNKS)
        return ops->chunk_mean(&(struct kvl_chunk_mean_args){
            .x = x, .stride = MARK_N, .n_rows = 2, .n = n, .chunk = 7, .k = 2, .n_best = count });
    return ops->topk(&(struct kvl_topk_args){
        .index = index, .x = x, .x_stride = MARK_N, .n_rows = 2, .n = n, .k = k });
}

/* On the device: values, some with a NaN, and room for results. */
struct mark_case {
    float *host, *good, *bad;
    int32_t *index, *count;
};

static void mark_open(struct mark_case *t, struct kvl_rng *r)
{
    t->host = ut_alloc(2 * MARK_N, sizeof *t->host);
    for (int32_t i = 0; i < 2 * MARK_N; i++) t->host[i] = (float)kvl_rng_f64(r);
    t->good = device_alloc(2 * MARK_N, sizeof *t->good);
    t->bad = device_alloc(2 * MARK_N, sizeof *t->bad);
    t->index = device_alloc(2 * MARK_K, sizeof *t->index);
    t->count = device_alloc(2, sizeof *t->count);
}

/* Chunks of NaN stay. */
static void mark_fill(struct mark_case *t)
{
    copy(t->good, t->host, 2 * MARK_N * sizeof *t->host);
    t->host[MARK_N + 50] = NAN;
    copy(t->bad, t->host, 2 * MARK_N * sizeof *t->host);
    t->host[MARK_N + 50] = 0.5f;
}

static void mark_close(struct mark_case *t)
{
    kvl_free(t->host);
    device->free(KVL_PLACE_DEVICE, t->good);
    device->free(KVL_PLACE_DEVICE, t->bad);
    device->free(KVL_PLACE_DEVICE, t->index);
    device->free(KVL_PLACE_DEVICE, t->count);
}

static void mark_row_call(const struct mark_case *t, enum mark_op op, int32_t row, float *x)
{
    device->mark_row(row);
    assert_int_equal(mark_call(op, device->ops, x, t->index, t->count), KVL_OK);
}

static void mark_range(const struct mark_case *t, enum mark_op op)
{
    int32_t index[2 * MARK_K], count[2], n = op == MARK_TOPK_LONG ? MARK_N : 100;
    copy(index, t->index, sizeof index);
    copy(count, t->count, sizeof count);
    for (int32_t i = 0; op <= MARK_TOPK_LONG && i < 2 * MARK_K; i++)
        assert_true(index[i] >= 0 && index[i] < n);
    if (op == MARK_TOP_P) assert_in_range(count[0], 0, MARK_K);
    if (op == MARK_SHARE) assert_int_equal(count[0] + count[1], MARK_K);
    if (op == MARK_CHUNKS) assert_in_range(count[0], 7 + 2, 14);
}

static int32_t marked(void)
{
    int32_t row = -2;
    assert_int_equal(device->marked(&row), KVL_OK);
    return row;
}

/* Calls that return at once leave their row's mark, whoever else waits meanwhile; the first row is told. */
static void test_marks(void **state)
{
    struct mark_case t;
    struct kvl_rng r;
    int32_t index[2 * MARK_K], count[2];
    (void)state;
    kvl_rng_seed(&r, 1);
    mark_open(&t, &r);
    assert_int_equal(marked(), -1);
    for (enum mark_op op = 0; op < MARK_OPS; op++) {
        mark_fill(&t);
        int64_t syncs = traffic().n_syncs;
        mark_row_call(&t, op, 7, t.bad);
        mark_row_call(&t, op, 2, t.good);
        mark_row_call(&t, op, 5, t.bad);
        mark_row_call(&t, op, 100000, t.bad);
        assert_int_equal(traffic().n_syncs, syncs);
        mark_range(&t, op);
        assert_int_equal(mark_call(op, device->ops, t.host, index, count), KVL_OK);
        mark_fill(&t);
        assert_int_equal(mark_call(op, device->ops_now, t.good, t.index, t.count), KVL_OK);
        assert_int_equal(marked(), 5);
        assert_int_equal(marked(), -1);
        mark_row_call(&t, op, KVL_DEVICE_MARKS + 3, t.bad);
        assert_int_equal(marked(), KVL_DEVICE_MARKS - 1);
    }
    device->mark_row(0);
    mark_close(&t);
}

/* Calls that wait tell themselves, and leave no mark: not to the next one of their kind either. */
static void test_told(void **state)
{
    struct mark_case t;
    struct kvl_rng r;
    int32_t index[2 * MARK_K], count[2];
    (void)state;
    kvl_rng_seed(&r, 2);
    mark_open(&t, &r);
    for (enum mark_op op = 0; op < MARK_OPS; op++) {
        mark_fill(&t);
        assert_int_equal(mark_call(op, device->ops_now, t.bad, t.index, t.count), KVL_ENUMERIC);
        assert_int_equal(mark_call(op, device->ops_now, t.good, t.index, t.count), KVL_OK);
        float keep = t.host[9];
        t.host[9] = NAN;
        if (op != MARK_CHUNKS) /* which would leave a chunk of them */
            assert_int_equal(mark_call(op, device->ops, t.host, t.index, t.count), KVL_ENUMERIC);
        t.host[9] = keep;
        mark_fill(&t);
        if (op != MARK_NONE_WANTED)
            assert_int_equal(mark_call(op, device->ops, t.bad, index, count), KVL_ENUMERIC);
        assert_int_equal(mark_call(op, device->ops, t.host, index, count), KVL_OK);
        assert_int_equal(marked(), -1);
    }
    mark_close(&t);
}

/* ---- steps --------------------------------------------------------------------------------------------------- */

enum { STEP_ARRAYS = 5, STEP_N = 700, STEP_OPS = 60, STEP_OPS_MANY = 170 };

/* The same random work on arrays of the device.  Host memory is written over as soon as a call returns. */
struct step_case {
    float *x[STEP_ARRAYS], *back;
    int32_t *index;
    struct kvl_rng r, kinds; /* of data; of calls: every second step makes the same ones */
    bool waits;              /* now and then somebody looks */
    size_t upload;
    int32_t n_ops;
};

static void step_open(struct step_case *t, bool waits, size_t upload, uint64_t seed)
{
    for (int32_t i = 0; i < STEP_ARRAYS; i++) t->x[i] = device_alloc(STEP_N, sizeof *t->x[i]);
    t->index = device_alloc(STEP_N, sizeof *t->index);
    t->back = device->alloc(KVL_PLACE_PINNED, STEP_N, sizeof *t->back);
    assert_non_null(t->back);
    t->waits = waits;
    t->upload = upload;
    kvl_rng_seed(&t->r, seed);
}

static void step_close(struct step_case *t)
{
    for (int32_t i = 0; i < STEP_ARRAYS; i++) device->free(KVL_PLACE_DEVICE, t->x[i]);
    device->free(KVL_PLACE_DEVICE, t->index);
    device->free(KVL_PLACE_PINNED, t->back);
}

/* `upload` times the array goes up, each time as something else; the last one stays. */
static int step_upload(struct step_case *t, float *to)
{
    float host[STEP_N];
    for (size_t k = 0; k < t->upload; k++) {
        ut_fill(&t->r, host, STEP_N, 1);
        KVL_TRY(device->copy(to, host, sizeof host, KVL_STREAM_MAIN));
        memset(host, 0xff, sizeof host);
    }
    return KVL_OK;
}

/* Operators whose arguments lie in host memory, all or some of them. */
static int step_staged(struct step_case *t, float *y, bool out)
{
    float host[STEP_N];
    ut_fill(&t->r, host, STEP_N, 1);
    const struct kvl_add_args a = { .y = out ? host : y, .x = out ? y : host, .n = STEP_N };
    KVL_TRY(device->ops->add(&a));
    if (out) KVL_TRY(device->copy(y, host, sizeof host, KVL_STREAM_MAIN));
    memset(host, 0xff, sizeof host);
    return KVL_OK;
}

static int step_merge(struct step_case *t, float *to, const float *from, const float *lse)
{
    const float *part[2] = { from, from + STEP_N / 2 }, *part_lse[2] = { lse, lse + 1 };
    return device->ops->attn_merge(&(struct kvl_attn_merge_args){ .out = to,
                                                                  .lse = t->x[0] + 2,
                                                                  .part = part,
                                                                  .part_lse = part_lse,
                                                                  .n_parts = 2,
                                                                  .n_heads = 1,
                                                                  .head_dim = STEP_N / 2 });
}

static int step_wait(struct step_case *t, const float *x)
{
    float host[STEP_N];
    switch (kvl_rng_below(&t->kinds, 4)) {
    case 0: return device->sync();
    case 1: return device->copy(host, x, sizeof host, KVL_STREAM_MAIN);
    case 2: return device->order(KVL_STREAM_MAIN, KVL_STREAM_COPY);
    default: return device->ops_now->add(&(struct kvl_add_args){ .y = t->x[1], .x = x, .n = 1 });
    }
}

static int step_op(struct step_case *t)
{
    const struct kvl_ops *ops = device->ops;
    int32_t i = ut_between(&t->kinds, 1, STEP_ARRAYS - 1), j = i % (STEP_ARRAYS - 1) + 1;
    float *x = t->x[i], *y = t->x[j];
    switch (kvl_rng_below(&t->kinds, t->waits ? 10 : 8)) {
    case 0: return step_upload(t, x);
    case 1: return step_staged(t, x, false);
    case 2: return device->copy(y, x, STEP_N * sizeof *x, KVL_STREAM_MAIN);
    case 3: return device->fill(x, 0, 40 * sizeof *x, KVL_STREAM_MAIN);
    case 4: return step_merge(t, y, x, t->x[0]);
    case 5: return ops->add(&(struct kvl_add_args){ .y = x, .x = y, .n = STEP_N });
    case 6: return ops->softmax(&(struct kvl_softmax_args){ .x = x, .n_rows = 1, .n = STEP_N });
    case 7:
        return ops->topk(&(struct kvl_topk_args){
            .index = t->index, .x = x, .x_stride = STEP_N, .n_rows = 1, .n = STEP_N, .k = 50 });
    case 8: return step_staged(t, x, true);
    default: return step_wait(t, x);
    }
}

/* What `n_steps` steps leave behind: out [STEP_ARRAYS + 1][STEP_N], the last of them indices. */
static void step_run(const struct step_case *desc, int32_t n_steps, uint64_t seed, bool steps,
                     float *out)
{
    struct step_case t;
    step_open(&t, desc->waits, desc->upload, seed);
    for (int32_t s = 0; s < n_steps; s++) {
        kvl_rng_seed(&t.kinds, seed * 2 + (uint64_t)(s % 2));
        if (steps) assert_int_equal(device->step_begin(), KVL_OK);
        for (int32_t i = 0; i < desc->n_ops; i++) assert_int_equal(step_op(&t), KVL_OK);
        assert_int_equal(device->copy(t.back, t.x[1], STEP_N * sizeof(float), KVL_STREAM_MAIN),
                         KVL_OK);
        if (steps) assert_int_equal(device->step_end(), KVL_OK);
    }
    for (int32_t i = 0; i < STEP_ARRAYS; i++) copy(out + i * STEP_N, t.x[i], STEP_N * sizeof *out);
    copy(out + STEP_ARRAYS * STEP_N, t.index, STEP_N * sizeof *out);
    ut_same("what pinned memory got", t.back, out + STEP_N, STEP_N);
    step_close(&t);
}

static void steps_same(bool waits, size_t upload, int32_t n_ops, int32_t n_steps)
{
    enum { N = (STEP_ARRAYS + 1) * STEP_N };
    const struct step_case desc = { .waits = waits, .upload = upload, .n_ops = n_ops };
    struct kvl_device_info info;
    device->info(&info);
    for (uint64_t seed = 0; seed < 6; seed++) {
        float *y[2] = { ut_alloc(N, sizeof **y), ut_alloc(N, sizeof **y) };
        step_run(&desc, n_steps, seed, false, y[0]);
        int64_t before = traffic().n_graphs;
        step_run(&desc, n_steps, seed, true, y[1]);
        assert_true(!info.graphs || traffic().n_graphs > before);
        for (int32_t i = 0; i < N; i++) assert_memory_equal(&y[0][i], &y[1][i], sizeof(float));
        kvl_free(y[0]);
        kvl_free(y[1]);
    }
    assert_int_equal(marked(), -1);
}

static void test_steps(void **state)
{
    (void)state;
    steps_same(false, 1, STEP_OPS, 5);
    steps_same(false, 1, STEP_OPS_MANY, 3);
}

/* The rest of a step that was waited for runs as it comes. */
static void test_steps_that_wait(void **state)
{
    (void)state;
    steps_same(true, 1, STEP_OPS, 5);
}

/* More uploads than the first step has room for. */
static void test_steps_that_overflow(void **state)
{
    (void)state;
    steps_same(false, 60, STEP_OPS, 3);
}

/* Nothing, and a mark that is left in a step. */
static void test_step_ends(void **state)
{
    struct mark_case t;
    struct kvl_rng r;
    (void)state;
    assert_int_equal(device->step_begin(), KVL_OK);
    assert_int_equal(device->step_end(), KVL_OK);
    kvl_rng_seed(&r, 3);
    mark_open(&t, &r);
    mark_fill(&t);
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(device->step_begin(), KVL_OK);
        mark_row_call(&t, MARK_TOPK, 4, i == 1 ? t.good : t.bad);
        if (i == 2) assert_int_equal(marked(), 4);
        assert_int_equal(device->step_end(), KVL_OK);
        assert_int_equal(marked(), i == 0 ? 4 : -1);
    }
    device->mark_row(0);
    mark_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_told),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_steps_that_wait),
        cmocka_unit_test(test_steps_that_overflow),
        cmocka_unit_test(test_step_ends),
    };
    struct kvl_err err;
    setenv("KVL_CUDA_CHECKS", "0", 1); /* with which every call waits */
    if (kvl_device_open("cuda", &device, &err) != KVL_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}

#else

int main(void)
{
    return 77; /* left out */
}

#endif
