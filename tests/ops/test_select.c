/* Operators of selection against their definitions; those that are exact, bit for bit. */
#include "ops/ops_util.h"

#include "ref.h"

/* Fills a table of pages with random minima and maxima, each exact in its type. */
static void random_pages(struct kvl_rng *r, void *minmax, enum kvl_kv_type type, size_t at,
                         int32_t n_pages, int32_t dim)
{
    for (int32_t i = 0; i < n_pages * dim; i++) {
        size_t lo = at + (size_t)(i / dim * 2 * dim + i % dim);
        float a = (float)(kvl_rng_f64(r) * 2 - 1), b = (float)(kvl_rng_f64(r) * 2 - 1);
        kvl_ref_set_elem(minmax, type, lo, KVL_MIN(a, b));
        kvl_ref_set_elem(minmax, type, lo + (size_t)dim, KVL_MAX(a, b));
    }
}

static void body_minmax(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 18; i++) {
        enum kvl_kv_type type = (enum kvl_kv_type)(i % 3);
        int32_t kv = ut_between(r, 1, 4), dim = UT_PICK(r, 32, 64, 80, 100, 144, 2, 22),
                page = UT_PICK(r, 1, 8, 20);
        enum { TOKENS = 100 };
        size_t stride = (size_t)((TOKENS + page) / page * 2 * dim) + 5,
               n_k = (size_t)kv * (size_t)dim;
        size_t bytes = stride * (size_t)kv * (size_t)kvl_kv_elem_bytes(type);
        float *k = ut_random(r, TOKENS * n_k, 1);
        for (size_t j = 0; j < TOKENS * n_k; j++) { /* stored keys */
            float stored;
            kvl_ref_set_elem(&stored, type, 0, k[j]);
            k[j] = kvl_ref_elem(&stored, type, 0);
        }
        uint8_t *y[2] = { ut_alloc(bytes, 1), ut_alloc(bytes, 1) };
        memset(y[0], 0x7e, bytes);
        memset(y[1], 0x7e, bytes);
        for (int32_t pos = 0; pos < TOKENS;) { /* both sides in the same random chunks */
            int32_t want = ut_between(r, 1, 30), n = KVL_MIN(want, TOKENS - pos);
            struct kvl_page_minmax_args a = { .type = type,
                                              .head_stride = stride,
                                              .pos0 = pos,
                                              .n = n,
                                              .k = k + (size_t)pos * n_k,
                                              .n_kv_heads = kv,
                                              .head_dim = dim,
                                              .page_tok = page };
            a.minmax = y[0];
            assert_int_equal(kvl_ops_cpu.page_minmax(&a), KVL_OK);
            a.minmax = y[1];
            assert_int_equal(kvl_ops_ref.page_minmax(&a), KVL_OK);
            pos += n;
        }
        if (memcmp(y[0], y[1], bytes) != 0)
            fail_msg("type %d, %d channels, pages of %d: other bits", (int)type, dim, page);
        kvl_free(y[0]);
        kvl_free(y[1]);
        kvl_free(k);
    }
}

static void test_page_minmax(void **state)
{
    (void)state;
    ut_each_isa(body_minmax);
}

static void body_bound(struct kvl_rng *r)
{
    static const enum kvl_reduce reduce[] = {
        KVL_REDUCE_NONE, KVL_REDUCE_SUM,   KVL_REDUCE_MAX,
        KVL_REDUCE_MEAN, KVL_REDUCE_FIRST, KVL_REDUCE_MEAN_Q
    };
    for (int32_t i = 0; i < 72; i++) {
        enum kvl_kv_type type = (enum kvl_kv_type)(i % 3);
        int32_t kv = ut_between(r, 1, 3), group = ut_between(r, 1, 8),
                n = UT_PICK(r, 1, 5, 64, 300);
        int32_t dim = UT_PICK(r, 32, 64, 80, 100, 128, 2, 22);
        size_t stride = (size_t)(n * 2 * dim) + 3, elem = (size_t)kvl_kv_elem_bytes(type);
        size_t list = i % 5 ? (size_t)n + 7 : (size_t)n, n_y = (size_t)(kv * group) * list;
        uint8_t *minmax = ut_alloc(stride * (size_t)kv, elem);
        for (int32_t h = 0; h < kv; h++) random_pages(r, minmax, type, (size_t)h * stride, n, dim);
        float *q = ut_random(r, (size_t)(kv * group * dim), 1);
        float *y[2] = { ut_poison(n_y), ut_poison(n_y) };
        struct kvl_page_bound_args a = { .bound = y[0],
                                         .bound_stride = i % 5 ? list : 0,
                                         .q = q,
                                         .minmax = minmax,
                                         .type = type,
                                         .head_stride = stride,
                                         .n_pages = n,
                                         .n_heads = kv * group,
                                         .n_kv_heads = kv,
                                         .head_dim = dim,
                                         .reduce = reduce[i / 3 % 6] };
        assert_int_equal(kvl_ops_cpu.page_bound(&a), KVL_OK);
        a.bound = y[1];
        assert_int_equal(kvl_ops_ref.page_bound(&a), KVL_OK);
        enum kvl_reduce good = a.reduce;
        a.reduce = (enum kvl_reduce)(i % 2 ? 6 : -1);
        assert_int_equal(kvl_ops_cpu.page_bound(&a), KVL_EINVAL);
        assert_int_equal(kvl_ops_ref.page_bound(&a), KVL_EINVAL);
        a.reduce = good;
        int32_t lists = a.reduce == KVL_REDUCE_NONE ? kv * group : kv;
        for (int32_t l = 0; l < lists; l++)
            ut_near("bound", y[0] + (size_t)l * list, y[1] + (size_t)l * list, (size_t)n, 1e-5);
        /* The same pages in two pieces. */
        float *pieces = ut_poison(n_y);
        int32_t n_first = ut_between(r, 0, n);
        struct kvl_page_bound_args second = a;
        second.bound_stride = list;
        second.bound = pieces + n_first;
        second.minmax = minmax + (size_t)n_first * 2 * (size_t)dim * elem;
        second.n_pages = n - n_first;
        a = second;
        a.bound = pieces;
        a.minmax = minmax;
        a.n_pages = n_first;
        a.next = &second;
        assert_int_equal(kvl_ops_cpu.page_bound(&a), KVL_OK);
        for (int32_t l = 0; l < lists; l++)
            ut_near("bound in pieces", pieces + (size_t)l * list, y[1] + (size_t)l * list,
                    (size_t)n, 1e-5);
        kvl_free(pieces);
        kvl_free(y[0]);
        kvl_free(y[1]);
        kvl_free(q);
        kvl_free(minmax);
    }
}

static void test_page_bound(void **state)
{
    (void)state;
    ut_each_isa(body_bound);
}

/* A table of half floats gives the bits that the same values in a table of floats give. */
static void body_bound_types(struct kvl_rng *r)
{
    enum { KV = 2, GROUP = 4, DIM = 96, PAGES = 77 };
    size_t n = (size_t)KV * PAGES * 2 * DIM;
    float *wide = ut_alloc(n, sizeof *wide), *q = ut_random(r, KV * GROUP * DIM, 1);
    uint16_t *half = ut_alloc(n, sizeof *half);
    for (int i = 0; i < 12; i++) {
        enum kvl_kv_type type = i % 2 ? KVL_KV_F16 : KVL_KV_BF16;
        float *y[2] = { ut_poison(KV * GROUP * PAGES), ut_poison(KV * GROUP * PAGES) };
        random_pages(r, half, type, 0, KV * PAGES, DIM);
        for (size_t j = 0; j < n; j++) wide[j] = kvl_ref_elem(half, type, j);
        struct kvl_page_bound_args a = { .bound = y[0],
                                         .q = q,
                                         .minmax = half,
                                         .type = type,
                                         .head_stride = PAGES * 2 * DIM,
                                         .n_pages = PAGES,
                                         .n_heads = KV * GROUP,
                                         .n_kv_heads = KV,
                                         .head_dim = DIM,
                                         .reduce = (enum kvl_reduce)(i / 2) };
        assert_int_equal(kvl_ops_cpu.page_bound(&a), KVL_OK);
        a.bound = y[1];
        a.minmax = wide;
        a.type = KVL_KV_F32;
        assert_int_equal(kvl_ops_cpu.page_bound(&a), KVL_OK);
        ut_same("bound", y[0], y[1], (size_t)(KV * (i / 2 ? 1 : GROUP) * PAGES));
        kvl_free(y[0]);
        kvl_free(y[1]);
    }
    kvl_free(wide);
    kvl_free(half);
    kvl_free(q);
}

static void test_page_bound_types(void **state)
{
    (void)state;
    ut_each_isa(body_bound_types);
}

static void body_reduce(struct kvl_rng *r)
{
    static const enum kvl_reduce reduce[] = { KVL_REDUCE_SUM, KVL_REDUCE_MAX, KVL_REDUCE_MEAN,
                                              KVL_REDUCE_FIRST };
    for (int32_t i = 0; i < 24; i++) {
        int32_t kv = ut_between(r, 1, 4), group = ut_between(r, 1, 8),
                n = UT_PICK(r, 1, 7, 1000, 9000);
        size_t stride = (size_t)n + 3, n_y = (size_t)(kv * n);
        float *x = ut_random(r, stride * (size_t)(kv * group), 1);
        float *y[2] = { ut_poison(n_y), ut_poison(n_y) };
        struct kvl_group_reduce_args a = { .y = y[0],
                                           .x = x,
                                           .x_stride = stride,
                                           .n = n,
                                           .n_heads = kv * group,
                                           .n_kv_heads = kv,
                                           .reduce = reduce[i % 4] };
        assert_int_equal(kvl_ops_cpu.group_reduce(&a), KVL_OK);
        a.y = y[1];
        assert_int_equal(kvl_ops_ref.group_reduce(&a), KVL_OK);
        ut_same("reduced", y[0], y[1], n_y);
        a.reduce = i % 3 == 0 ? KVL_REDUCE_NONE : (enum kvl_reduce)(KVL_REDUCE_FIRST + i % 3);
        assert_int_equal(kvl_ops_cpu.group_reduce(&a), KVL_EINVAL);
        assert_int_equal(kvl_ops_ref.group_reduce(&a), KVL_EINVAL);
        kvl_free(y[0]);
        kvl_free(y[1]);
        kvl_free(x);
    }
}

static void test_group_reduce(void **state)
{
    (void)state;
    ut_each_isa(body_reduce);
}

static void body_lane_read(struct kvl_rng *r)
{
    static const enum kvl_kv_part parts[] = { KVL_PART_K, KVL_PART_V, KVL_PART_K_RAW };
    for (int32_t i = 0; i < 18; i++) {
        struct ut_lanes t = { 0 };
        int32_t dim = UT_PICK(r, 32, 80, 100, 128), n_slots = ut_between(r, 1, 100);
        ut_layout(&t.layout, dim, UT_PICK(r, 8, 16), ut_kv_type(r, dim), true);
        ut_lanes_open(&t, r, 1, n_slots);
        int32_t slot0 = ut_between(r, 0, n_slots - 1), n = ut_between(r, 0, n_slots - slot0);
        size_t stride = (size_t)dim + 9, n_y = (size_t)n * stride;
        float *y[2] = { ut_alloc(n_y, sizeof **y), ut_alloc(n_y, sizeof **y) };
        struct kvl_lane_read_args a = { .out = y[0],
                                        .stride = stride,
                                        .lane = &t.lane[0],
                                        .part = parts[i / 3 % 3],
                                        .slot0 = slot0,
                                        .n = n };
        assert_int_equal(kvl_ops_cpu.lane_read(&a), KVL_OK);
        a.out = y[1];
        assert_int_equal(kvl_ops_ref.lane_read(&a), KVL_OK);
        if (ut_is_turned(&t.layout))
            ut_near("slots", y[0], y[1], n_y, 1e-6);
        else
            ut_same("slots", y[0], y[1], n_y);
        kvl_free(y[0]);
        kvl_free(y[1]);
        ut_lanes_close(&t);
    }
}

static void test_lane_read(void **state)
{
    (void)state;
    ut_each_isa(body_lane_read);
}

static void body_raise(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 12; i++) {
        size_t n = (size_t)ut_between(r, 0, i < 10 ? 300 : 9000);
        int32_t n_rows = i % 7;
        float *x[6], factor[6], *y[2] = { ut_random(r, n, 0.3), ut_random(r, n, 0.3) };
        for (int32_t h = 0; h < n_rows; h++) {
            x[h] = ut_random(r, n, 1);
            factor[h] = (float)kvl_rng_f64(r);
            if (n > 0) x[h][(size_t)h * n / 6] = NAN;
        }
        struct kvl_raise_args a = {
            .y = y[0], .x = (const float *const *)x, .factor = factor, .n = n, .n_rows = n_rows
        };
        assert_int_equal(kvl_ops_cpu.raise(&a), KVL_OK);
        a.y = y[1];
        assert_int_equal(kvl_ops_ref.raise(&a), KVL_OK);
        ut_same("raised", y[0], y[1], n);
        for (int32_t h = 0; h < n_rows; h++) kvl_free(x[h]);
        kvl_free(y[0]);
        kvl_free(y[1]);
    }
}

static void test_raise(void **state)
{
    (void)state;
    ut_each_isa(body_raise);
}

static void body_pool(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 40; i++) {
        int32_t rows = ut_between(r, 1, 4), n = UT_PICK(r, 1, 2, 6, 63, 500);
        size_t stride = (size_t)n + 2, n_y = (size_t)(rows * n);
        float *x = ut_random(r, stride * (size_t)rows, 1),
              *y[2] = { ut_poison(n_y), ut_poison(n_y) };
        struct kvl_pool1d_args a = { .y = y[0],
                                     .x = x,
                                     .x_stride = stride,
                                     .n_rows = rows,
                                     .n = n,
                                     .kernel = UT_PICK(r, 1, 3, 5, 7, 13, 63),
                                     .average = i % 2 };
        assert_int_equal(kvl_ops_cpu.pool1d(&a), KVL_OK);
        a.y = y[1];
        assert_int_equal(kvl_ops_ref.pool1d(&a), KVL_OK);
        ut_same("pooled", y[0], y[1], n_y);
        kvl_free(y[0]);
        kvl_free(y[1]);
        kvl_free(x);
    }
}

static void test_pool1d(void **state)
{
    (void)state;
    ut_each_isa(body_pool);
}

/* Padding is -inf for the maximum and counted zeros for the average. */
static void test_pool1d_edges(void **state)
{
    (void)state;
    const float x[3] = { -3, -1, -2 };
    float y[3];
    struct kvl_pool1d_args a = { .y = y, .x = x, .x_stride = 3, .n_rows = 1, .n = 3, .kernel = 3 };
    assert_int_equal(kvl_ops_cpu.pool1d(&a), KVL_OK);
    assert_true(y[0] == -1 && y[1] == -1 && y[2] == -1);
    a.average = true;
    assert_int_equal(kvl_ops_cpu.pool1d(&a), KVL_OK);
    assert_true(y[0] == -4.0f / 3 && y[1] == -2 && y[2] == -1);
}

/* Values with many ties, both zeros, infinities and close neighbours. */
static float topk_value(struct kvl_rng *r, int32_t kind)
{
    static const float odd[] = { 0.0f, -0.0f, 1, -1, INFINITY, -INFINITY, 1e-42f, -1e-42f };
    if (kind == 0) return (float)(kvl_rng_f64(r) * 2 - 1);
    if (kind == 1) return (float)kvl_rng_below(r, 5);
    if (kind == 2) return odd[kvl_rng_below(r, 8)];
    return kvl_bits_f32(0x3f800000u + kvl_rng_below(r, 3000));
}

/* Long rows of which a sample tells little: ascending, descending, all but a few the same, what every sixteenth or so has,
 * and all but one of every block the smallest. */
static void body_topk_long(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 60; i++) {
        int32_t n = UT_PICK(r, 1023, 1024, 1500, 8192, 20001, 70000), any = ut_between(r, 0, n);
        int32_t k = UT_PICK(r, 1, n / 8, n - 1, any);
        float *x = ut_alloc((size_t)n, sizeof *x);
        for (int32_t j = 0; j < n; j++) {
            const float u = (float)kvl_rng_f64(r);
            const float value[] = { (float)j,
                                    (float)-j / 3,
                                    u < 0.001f ? u : 0.5f,
                                    (float)(j % 16 == j / 16 % 16) + u / 4,
                                    j % 512 == 7 ? u : -INFINITY,
                                    u };
            x[j] = value[i % 6];
        }
        ut_compare_topk(x, (size_t)n, 1, n, k);
        kvl_free(x);
    }
}

static void body_topk(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 80; i++) {
        int32_t rows = ut_between(r, 1, 5), n = UT_PICK(r, 1, 2, 17, 100, 1000, 4096);
        int32_t any = ut_between(r, 0, n), k = UT_PICK(r, 0, 1, n, any);
        size_t stride = (size_t)n + 1;
        float *x = ut_alloc(stride * (size_t)rows, sizeof *x);
        for (size_t j = 0; j < stride * (size_t)rows; j++) x[j] = topk_value(r, i % 4);
        ut_compare_topk(x, stride, rows, n, k);
        kvl_free(x);
    }
}

/* Both zeros are one value: ties go by index, whatever the sign. */
static void test_topk_zeros(void **state)
{
    (void)state;
    const float x[6] = { -1, -0.0f, 0.0f, -0.0f, 0.0f, 1 };
    for (int32_t k = 0; k <= 6; k++) ut_compare_topk(x, 6, 1, 6, k);
}

static void test_topk(void **state)
{
    (void)state;
    ut_each_isa(body_topk);
    ut_each_isa(body_topk_long);
}

static void test_topk_nan(void **state)
{
    (void)state;
    float x[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    int32_t index[4];
    struct kvl_topk_args a = { .index = index, .x = x, .x_stride = 4, .n_rows = 2, .n = 4, .k = 2 };
    assert_int_equal(kvl_ops_cpu.topk(&a), KVL_OK);
    assert_true(index[0] == 2 && index[1] == 3 && index[2] == 2 && index[3] == 3);
    for (int32_t i = 0; i < 8; i++) {
        float keep = x[i];
        x[i] = i % 2 ? NAN : -NAN;
        assert_int_equal(kvl_ops_cpu.topk(&a), KVL_ENUMERIC);
        assert_int_equal(kvl_ops_ref.topk(&a), KVL_ENUMERIC);
        x[i] = keep;
    }
}

static void body_random(struct kvl_rng *r)
{
    static const size_t sizes[] = { 0, 1, 7, 1000, 600000 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        float *y[2] = { ut_poison(n), ut_poison(n) };
        double sum = 0;
        struct kvl_random_fill_args a = { .y = y[0], .n = n, .seed = kvl_rng_u32(r) };
        assert_int_equal(kvl_ops_cpu.random_fill(&a), KVL_OK);
        a.y = y[1];
        assert_int_equal(kvl_ops_ref.random_fill(&a), KVL_OK);
        ut_same("random", y[0], y[1], n);
        for (size_t j = 0; j < n; j++) {
            assert_true(y[0][j] >= 0 && y[0][j] < 1);
            sum += (double)y[0][j];
        }
        if (n > 1000) assert_true(fabs(sum / (double)n - 0.5) < 0.003); /* 6 sigma */
        kvl_free(y[0]);
        kvl_free(y[1]);
    }
}

static void test_random_fill(void **state)
{
    (void)state;
    ut_each_isa(body_random);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page_minmax),
        cmocka_unit_test(test_page_bound),
        cmocka_unit_test(test_page_bound_types),
        cmocka_unit_test(test_raise),
        cmocka_unit_test(test_lane_read),
        cmocka_unit_test(test_group_reduce),
        cmocka_unit_test(test_pool1d),
        cmocka_unit_test(test_pool1d_edges),
        cmocka_unit_test(test_topk),
        cmocka_unit_test(test_topk_nan),
        cmocka_unit_test(test_topk_zeros),
        cmocka_unit_test(test_random_fill),
    };
    return cmocka_run_group_tests_name("select", tests, NULL, NULL);
}
