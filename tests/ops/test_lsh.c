/* Hash tables: codes, buckets, collisions against their definitions, bit for bit. */
#include "ops/ops_util.h"

static const struct kvl_ops *const sides[] = { &kvl_ops_cpu, &kvl_ops_ref };

static void expect_same(const char *what, const void *a, const void *b, size_t bytes)
{
    if (memcmp(a, b, bytes) != 0) fail_msg("%s differ (%d threads)", what, kvl_ops_threads());
}

struct tables {
    int32_t n, n_tables, n_bits;
    uint16_t *code; /* [n][n_tables] */
    int32_t *start, *id;
};

/* Codes of random products, some of which are exactly 0 and lie on no side. */
static uint16_t *random_codes(struct kvl_rng *r, const struct tables *t, int32_t n)
{
    size_t n_side = (size_t)n * (size_t)(t->n_tables * t->n_bits);
    size_t n_code = (size_t)n * (size_t)t->n_tables;
    float *side = ut_random(r, n_side, 1);
    uint16_t *code[2];
    for (size_t i = 0; i < n_side; i += 7) side[i] = i % 2 ? 0.0f : -0.0f;
    for (int s = 0; s < 2; s++) {
        code[s] = ut_alloc(n_code, sizeof *code[s]);
        memset(code[s], 0xff, n_code * sizeof *code[s]);
        struct kvl_lsh_codes_args a = {
            .code = code[s], .side = side, .n = n, .n_tables = t->n_tables, .n_bits = t->n_bits
        };
        assert_int_equal(sides[s]->lsh_codes(&a), KVL_OK);
    }
    expect_same("codes", code[0], code[1], n_code * sizeof *code[0]);
    kvl_free(code[1]);
    kvl_free(side);
    return code[0];
}

static struct tables random_tables(struct kvl_rng *r, int32_t n, int32_t n_tables, int32_t n_bits)
{
    struct tables t = { .n = n, .n_tables = n_tables, .n_bits = n_bits };
    size_t n_start = (size_t)n_tables * (((size_t)1 << n_bits) + 1);
    size_t n_id = (size_t)n_tables * (size_t)n;
    int32_t *start[2], *id[2];
    t.code = random_codes(r, &t, n);
    for (int s = 0; s < 2; s++) {
        start[s] = ut_alloc(n_start, sizeof *start[s]);
        id[s] = ut_alloc(n_id, sizeof *id[s]);
        struct kvl_lsh_build_args a = { .start = start[s],
                                        .id = id[s],
                                        .code = t.code,
                                        .n = n,
                                        .n_tables = n_tables,
                                        .n_bits = n_bits };
        assert_int_equal(sides[s]->lsh_build(&a), KVL_OK);
    }
    expect_same("bucket starts", start[0], start[1], n_start * sizeof *start[0]);
    expect_same("buckets", id[0], id[1], n_id * sizeof *id[0]);
    kvl_free(start[1]);
    kvl_free(id[1]);
    t.start = start[0];
    t.id = id[0];
    return t;
}

static void tables_free(struct tables *t)
{
    kvl_free(t->code);
    kvl_free(t->start);
    kvl_free(t->id);
}

static void find(struct kvl_rng *r, const struct tables *t, int32_t n_q, int32_t min_hits)
{
    enum { MAX_Q = 66 };
    const int32_t *start[MAX_Q], *id[MAX_Q];
    int32_t n_found[2][MAX_Q], *found[2];
    int64_t visited[2][MAX_Q];
    uint16_t *code = random_codes(r, t, n_q);
    for (int32_t q = 0; q < n_q; q++) {
        start[q] = t[q % 2].start;
        id[q] = t[q % 2].id;
    }
    for (int s = 0; s < 2; s++) {
        found[s] = ut_alloc((size_t)n_q * (size_t)t->n, sizeof *found[s]);
        struct kvl_lsh_find_args a = { .found = found[s],
                                       .n_found = n_found[s],
                                       .n_visited = visited[s],
                                       .code = code,
                                       .start = start,
                                       .id = id,
                                       .n_q = n_q,
                                       .n = t->n,
                                       .n_tables = t->n_tables,
                                       .n_bits = t->n_bits,
                                       .min_hits = min_hits };
        assert_int_equal(sides[s]->lsh_find(&a), KVL_OK);
    }
    for (int32_t q = 0; q < n_q; q++) {
        assert_int_equal(n_found[0][q], n_found[1][q]);
        assert_int_equal(visited[0][q], visited[1][q]);
        expect_same("vectors found", found[0] + q * t->n, found[1] + q * t->n,
                    (size_t)n_found[0][q] * sizeof *found[0]);
    }
    kvl_free(found[0]);
    kvl_free(found[1]);
    kvl_free(code);
}

static void body_lsh(struct kvl_rng *r)
{
    for (int32_t i = 0; i < 16; i++) {
        int32_t n = UT_PICK(r, 1, 5, 64, 200), bits = ut_between(r, 1, i % 4 ? 5 : 9);
        int32_t n_tables = UT_PICK(r, 1, 2, 6, 40);
        struct tables t[2];
        for (int j = 0; j < 2; j++) t[j] = random_tables(r, n, n_tables, bits);
        find(r, t, ut_between(r, 1, 8), ut_between(r, 1, 3));
        for (int j = 0; j < 2; j++) tables_free(&t[j]);
    }
}

static void test_lsh(void **state)
{
    (void)state;
    ut_each_isa(body_lsh);
}

/* Vectors that more tables find than a byte counts. */
static void test_lsh_tables(void **state)
{
    (void)state;
    struct kvl_rng r;
    struct tables t[2];
    kvl_rng_seed(&r, 3);
    for (int j = 0; j < 2; j++) t[j] = random_tables(&r, 60, 1000, 1);
    find(&r, t, 4, 255);
    find(&r, t, 4, 1);
    for (int j = 0; j < 2; j++) tables_free(&t[j]);
}

/* More vectors and queries than one piece of work of a GPU takes. */
static void test_lsh_many(void **state)
{
    (void)state;
    struct kvl_rng r;
    struct tables t[2];
    kvl_rng_seed(&r, 2);
    for (int j = 0; j < 2; j++) t[j] = random_tables(&r, 17011, 3, 9);
    find(&r, t, 66, 1);
    find(&r, t, 3, 2);
    for (int j = 0; j < 2; j++) tables_free(&t[j]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_lsh),
                                        cmocka_unit_test(test_lsh_tables),
                                        cmocka_unit_test(test_lsh_many) };
    return cmocka_run_group_tests_name("lsh", tests, NULL, NULL);
}
