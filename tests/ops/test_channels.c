/* Keys that lie channel by channel: what is put there, and scores over chosen channels. */
#include "ops/ops_util.h"

#include "ref.h"

struct table {
    enum kvl_kv_type type;
    int32_t n_kv, dim, page_tok, n_tok;
    size_t stride, bytes;
    uint8_t *keys[2]; /* of cpu and ref */
    float *k;         /* [n_tok][n_kv][dim], exact in type */
};

static struct table table_open(struct kvl_rng *r, int32_t i)
{
    struct table t = { .type = (enum kvl_kv_type)(i % 3),
                       .n_kv = ut_between(r, 1, 3),
                       .dim = UT_PICK(r, 32, 64, 80, 100, 128, 2, 22),
                       .page_tok = UT_PICK(r, 1, 8, 64, 100, 128),
                       .n_tok = UT_PICK(r, 1, 7, 64, 65, 300, 517) };
    int32_t n_pages = (t.n_tok + t.page_tok - 1) / t.page_tok;
    t.stride = (size_t)n_pages * (size_t)t.dim * (size_t)t.page_tok + 3;
    t.bytes = t.stride * (size_t)t.n_kv * (size_t)kvl_kv_elem_bytes(t.type);
    size_t n_k = (size_t)t.n_tok * (size_t)t.n_kv * (size_t)t.dim;
    t.k = ut_random(r, n_k, 1);
    for (size_t j = 0; j < n_k; j++) { /* stored keys */
        float stored;
        kvl_ref_set_elem(&stored, t.type, 0, t.k[j]);
        t.k[j] = kvl_ref_elem(&stored, t.type, 0);
    }
    for (int side = 0; side < 2; side++) {
        t.keys[side] = ut_alloc(t.bytes, 1);
        memset(t.keys[side], 0x7f, t.bytes);
    }
    return t;
}

/* Both sides in the same random chunks. */
static void table_put(struct table *t, struct kvl_rng *r)
{
    for (int32_t pos = 0; pos < t->n_tok;) {
        int32_t want = ut_between(r, 1, 130), n = KVL_MIN(want, t->n_tok - pos);
        struct kvl_channel_put_args a = { .type = t->type,
                                          .head_stride = t->stride,
                                          .k = t->k + (size_t)pos * (size_t)(t->n_kv * t->dim),
                                          .pos0 = pos,
                                          .n = n,
                                          .n_kv_heads = t->n_kv,
                                          .head_dim = t->dim,
                                          .page_tok = t->page_tok };
        for (int side = 0; side < 2; side++) {
            a.keys = t->keys[side];
            assert_int_equal((side ? kvl_ops_ref : kvl_ops_cpu).channel_put(&a), KVL_OK);
        }
        pos += n;
    }
}

static void table_close(struct table *t)
{
    kvl_free(t->k);
    kvl_free(t->keys[0]);
    kvl_free(t->keys[1]);
}

static void body_put(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 24; i++) {
        struct table t = table_open(r, i);
        table_put(&t, r);
        if (memcmp(t.keys[0], t.keys[1], t.bytes) != 0)
            fail_msg("type %d, %d channels, pages of %d: other bits", (int)t.type, t.dim,
                     t.page_tok);
        table_close(&t);
    }
}

static void test_channel_put(void **state)
{
    (void)state;
    ut_each_isa(body_put);
}

/* Channels in any order, each at most once. */
static int32_t *some_channels(struct kvl_rng *r, const struct table *t, int32_t n)
{
    int32_t *all = ut_alloc((size_t)t->dim, sizeof *all);
    int32_t *out = ut_alloc((size_t)(t->n_kv * n), sizeof *out);
    for (int32_t c = 0; c < t->dim; c++) all[c] = c;
    for (int32_t h = 0; h < t->n_kv; h++) {
        kvl_rng_shuffle(r, all, t->dim);
        memcpy(out + h * n, all, (size_t)n * sizeof *out);
    }
    kvl_free(all);
    return out;
}

static void compare_scores(struct kvl_rng *r, const struct table *t, int32_t group, int32_t n)
{
    int32_t n_heads = t->n_kv * group, *channel = some_channels(r, t, n);
    size_t ld = (size_t)t->n_tok + 5, n_y = ld * (size_t)n_heads;
    float *q = ut_random(r, (size_t)(n_heads * t->dim), 2);
    float *factor = ut_random(r, (size_t)n_heads, 1);
    float *y[2] = { ut_poison(n_y), ut_poison(n_y) }, ends[2][2][64];
    for (int side = 0; side < 2; side++) {
        struct kvl_channel_scores_args a = { .score = y[side],
                                             .score_stride = ld,
                                             .max = ends[side][0],
                                             .sum = ends[side][1],
                                             .q = q,
                                             .factor = factor,
                                             .channel = channel,
                                             .keys = t->keys[0],
                                             .type = t->type,
                                             .head_stride = t->stride,
                                             .n_tok = t->n_tok,
                                             .page_tok = t->page_tok,
                                             .n_channels = n,
                                             .n_heads = n_heads,
                                             .n_kv_heads = t->n_kv,
                                             .head_dim = t->dim };
        assert_int_equal((side ? kvl_ops_ref : kvl_ops_cpu).channel_scores(&a), KVL_OK);
    }
    for (int32_t h = 0; h < n_heads; h++)
        ut_near("score", y[0] + (size_t)h * ld, y[1] + (size_t)h * ld, (size_t)t->n_tok, 1e-5);
    ut_near("largest", ends[0][0], ends[1][0], (size_t)n_heads, 1e-5);
    ut_near("sum", ends[0][1], ends[1][1], (size_t)n_heads, 1e-4);
    kvl_free(y[0]);
    kvl_free(y[1]);
    kvl_free(factor);
    kvl_free(q);
    kvl_free(channel);
}

static void body_scores(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 60; i++) {
        struct table t = table_open(r, i);
        table_put(&t, r);
        compare_scores(r, &t, ut_between(r, 1, 9), ut_between(r, 1, t.dim));
        table_close(&t);
    }
}

static void test_channel_scores(void **state)
{
    (void)state;
    ut_each_isa(body_scores);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_channel_put),
        cmocka_unit_test(test_channel_scores),
    };
    return cmocka_run_group_tests_name("channels", tests, NULL, NULL);
}
