/* Boxes of keys in a table of live tokens: what is put there, and scores over the largest channels. */
#include "ops/ops_util.h"

#include "ref.h"

struct table {
    enum kvl_kv_type type;
    int32_t n_kv, dim, box_tok, n;
    size_t column_stride, head_stride, bytes;
    uint8_t *boxes[2]; /* of cpu and ref */
    float *k;          /* [n_kv][n * box_tok][dim], exact in type */
};

static struct table table_open(struct kvl_rng *r, int32_t i)
{
    struct table t = { .type = (enum kvl_kv_type)(i % 3),
                       .n_kv = ut_between(r, 1, 3),
                       .dim = UT_PICK(r, 32, 64, 80, 100, 128, 2, 22),
                       .box_tok = UT_PICK(r, 1, 2, 3, 5, 16),
                       .n = UT_PICK(r, 1, 7, 64, 257, 300, 517) };
    int32_t columns = (2 * t.dim + t.box_tok - 1) / t.box_tok;
    t.column_stride = (size_t)(t.n * t.box_tok) + 3;
    t.head_stride = t.column_stride * (size_t)columns;
    t.bytes = t.head_stride * (size_t)t.n_kv * (size_t)kvl_kv_elem_bytes(t.type);
    size_t n_k = (size_t)t.n_kv * (size_t)(t.n * t.box_tok) * (size_t)t.dim;
    t.k = ut_random(r, n_k, 1);
    for (size_t j = 0; j < n_k; j++) { /* stored keys */
        float stored;
        kvl_ref_set_elem(&stored, t.type, 0, t.k[j]);
        t.k[j] = kvl_ref_elem(&stored, t.type, 0);
    }
    for (int side = 0; side < 2; side++) {
        t.boxes[side] = ut_alloc(t.bytes, 1);
        memset(t.boxes[side], 0x7f, t.bytes);
    }
    return t;
}

static void table_close(struct table *t)
{
    kvl_free(t->k);
    kvl_free(t->boxes[0]);
    kvl_free(t->boxes[1]);
}

/* A kv head's boxes on one side, a few at a time. */
static void put_head(struct table *t, struct kvl_rng *r, int32_t h, int side)
{
    size_t key = (size_t)t->box_tok * (size_t)t->dim;
    for (int32_t i = 0; i < t->n;) {
        int32_t want = ut_between(r, 1, 40), n = KVL_MIN(want, t->n - i);
        struct kvl_box_put_args a = {
            .boxes =
                t->boxes[side] + (size_t)h * t->head_stride * (size_t)kvl_kv_elem_bytes(t->type),
            .type = t->type,
            .column_stride = t->column_stride,
            .k = t->k + ((size_t)(h * t->n) + (size_t)i) * key,
            .box0 = i,
            .n = n,
            .box_tok = t->box_tok,
            .head_dim = t->dim,
        };
        assert_int_equal((side ? kvl_ops_ref : kvl_ops_cpu).box_put(&a), KVL_OK);
        i += n;
    }
}

static void table_put(struct table *t, struct kvl_rng *r)
{
    for (int side = 0; side < 2; side++)
        for (int32_t h = 0; h < t->n_kv; h++) put_head(t, r, h, side);
}

static void body_put(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 24; i++) {
        struct table t = table_open(r, i);
        table_put(&t, r);
        if (memcmp(t.boxes[0], t.boxes[1], t.bytes) != 0)
            fail_msg("type %d, %d channels, boxes of %d: other bits", (int)t.type, t.dim,
                     t.box_tok);
        table_close(&t);
    }
}

static void test_box_put(void **state)
{
    (void)state;
    ut_each_isa(body_put);
}

static void compare_scores(struct kvl_rng *r, const struct table *t, int32_t group, int32_t n)
{
    int32_t n_heads = t->n_kv * group;
    size_t ld = (size_t)t->n + 5, n_y = ld * (size_t)n_heads;
    float *q = ut_random(r, (size_t)(n_heads * t->dim), 2);
    float *y[2] = { ut_poison(n_y), ut_poison(n_y) };
    for (int side = 0; side < 2; side++) {
        struct kvl_box_scores_args a = { .score = y[side],
                                         .score_stride = ld,
                                         .q = q,
                                         .boxes = t->boxes[0],
                                         .type = t->type,
                                         .head_stride = t->head_stride,
                                         .column_stride = t->column_stride,
                                         .n = t->n,
                                         .box_tok = t->box_tok,
                                         .n_channels = n,
                                         .n_heads = n_heads,
                                         .n_kv_heads = t->n_kv,
                                         .head_dim = t->dim,
                                         .scale = 0.3f };
        assert_int_equal((side ? kvl_ops_ref : kvl_ops_cpu).box_scores(&a), KVL_OK);
    }
    for (int32_t h = 0; h < n_heads; h++)
        ut_near("score", y[0] + (size_t)h * ld, y[1] + (size_t)h * ld, (size_t)t->n, 1e-5);
    kvl_free(y[0]);
    kvl_free(y[1]);
    kvl_free(q);
}

static void body_scores(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 40; i++) {
        struct table t = table_open(r, i);
        table_put(&t, r);
        compare_scores(r, &t, ut_between(r, 1, 9), ut_between(r, 1, t.dim));
        table_close(&t);
    }
}

static void test_box_scores(void **state)
{
    (void)state;
    ut_each_isa(body_scores);
}

/* One key to a box and all channels: the score is the product with the key. */
static void test_boxes_of_one_key(void **state)
{
    static const float k[3][2] = { { 1, -2 }, { 3, .5f }, { -1, -1 } },
                       q[2][2] = { { 2, -1 }, { -3, .5f } };
    (void)state;
    for (int side = 0; side < 2; side++) {
        const struct kvl_ops *ops = side ? &kvl_ops_ref : &kvl_ops_cpu;
        float boxes[12], score[6];
        struct kvl_box_put_args put = {
            .boxes = boxes, .column_stride = 3, .k = &k[0][0], .n = 3, .box_tok = 1, .head_dim = 2
        };
        struct kvl_box_scores_args a = { .score = score,
                                         .score_stride = 3,
                                         .q = &q[0][0],
                                         .boxes = boxes,
                                         .head_stride = 12,
                                         .column_stride = 3,
                                         .n = 3,
                                         .box_tok = 1,
                                         .n_channels = 2,
                                         .n_heads = 2,
                                         .n_kv_heads = 1,
                                         .head_dim = 2,
                                         .scale = 1 };
        assert_int_equal(ops->box_put(&put), KVL_OK);
        assert_int_equal(ops->box_scores(&a), KVL_OK);
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < 3; i++)
                assert_float_equal((double)score[3 * h + i],
                                   (double)(q[h][0] * k[i][0] + q[h][1] * k[i][1]), 1e-6);
        a.n_channels = 1; /* |2| + |-3| in channel 0 */
        assert_int_equal(ops->box_scores(&a), KVL_OK);
        for (int i = 0; i < 3; i++)
            assert_float_equal((double)score[i], (double)(2 * k[i][0]), 1e-6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_box_put),
        cmocka_unit_test(test_box_scores),
        cmocka_unit_test(test_boxes_of_one_key),
    };
    return cmocka_run_group_tests_name("boxes", tests, NULL, NULL);
}
