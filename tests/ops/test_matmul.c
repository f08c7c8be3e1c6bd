/* gemm, gemv, embed: against the definition; rows independent of everything around them; every
 * half, every quantised value. */
#include "ops/ops_util.h"

static const enum kvl_wtype types[] = { KVL_W_F32, KVL_W_F16, KVL_W_BF16, KVL_W_Q8_0, KVL_W_Q4_0 };
enum { N_TYPES = sizeof types / sizeof *types };

struct matrix {
    struct kvl_weight w;
    uint8_t *data;
};

/* Random elements: plain types in [-1, 1], quantised ones with scales of every size up to 1/64. */
static void matrix_open(struct kvl_rng *r, struct matrix *m, enum kvl_wtype type, int32_t n_rows,
                        int32_t n_cols)
{
    size_t row_bytes = kvl_wtype_row_bytes(type, n_cols);
    assert_true(row_bytes > 0);
    size_t bytes = row_bytes * (size_t)n_rows, block = type == KVL_W_Q8_0 ? 34 : 18;
    m->data = ut_alloc(bytes, 1);
    m->w = (struct kvl_weight){ m->data, type, n_rows, n_cols, row_bytes };
    for (size_t i = 0; i < bytes; i++) m->data[i] = (uint8_t)kvl_rng_below(r, 256);
    for (size_t i = 0; i < (size_t)n_rows * (size_t)n_cols; i++) {
        float x = (float)(kvl_rng_f64(r) * 2 - 1);
        uint16_t half = kvl_f32_to_f16(x), bf = (uint16_t)(kvl_f32_bits(x) >> 16);
        if (type == KVL_W_F32) memcpy(m->data + 4 * i, &x, 4);
        if (type == KVL_W_F16) memcpy(m->data + 2 * i, &half, 2);
        if (type == KVL_W_BF16) memcpy(m->data + 2 * i, &bf, 2);
    }
    for (size_t i = 0; (type == KVL_W_Q8_0 || type == KVL_W_Q4_0) && i < bytes; i += block) {
        uint16_t scale = kvl_f32_to_f16((float)(kvl_rng_f64(r) / 64));
        memcpy(m->data + i, &scale, 2);
    }
}

static void body_reference(struct kvl_rng *r)
{
    static const int32_t sizes[][3] = { /* n, n_rows, n_cols */
                                        { 1, 1, 32 },    { 3, 17, 64 },   { 8, 32, 128 },
                                        { 70, 129, 96 }, { 5, 200, 576 }, { 33, 47, 1088 },
                                        { 2, 300, 2816 }
    };
    for (size_t i = 0; i < N_TYPES * (sizeof sizes / sizeof *sizes); i++) {
        const int32_t *s = sizes[i / N_TYPES];
        struct matrix m;
        matrix_open(r, &m, types[i % N_TYPES], s[1], s[2]);
        size_t n_y = (size_t)s[0] * (size_t)s[1];
        float *x = ut_random(r, (size_t)s[0] * (size_t)s[2], 1);
        float *want = ut_poison(n_y), *gemm = ut_poison(n_y), *gemv = ut_poison(n_y);
        struct kvl_gemm_args a = { .y = want, .x = x, .w = &m.w, .n = s[0] };
        struct kvl_gemv_args v = { .y = gemv, .x = x, .w = &m.w, .n = s[0] };
        assert_int_equal(kvl_ops_ref.gemm(&a), KVL_OK);
        a.y = gemm;
        assert_int_equal(kvl_ops_cpu.gemm(&a), KVL_OK);
        assert_int_equal(kvl_ops_cpu.gemv(&v), KVL_OK);
        ut_near("gemm", gemm, want, n_y, 3e-6 * sqrt(s[2]));
        ut_near("gemv", gemv, want, n_y, 3e-6 * sqrt(s[2]));
        kvl_free(gemm);
        kvl_free(gemv);
        kvl_free(want);
        kvl_free(x);
        kvl_free(m.data);
    }
}

static void test_reference(void **state)
{
    (void)state;
    ut_each_isa(body_reference);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
    };
    return cmocka_run_group_tests_name("matmul", tests, NULL, NULL);
}
