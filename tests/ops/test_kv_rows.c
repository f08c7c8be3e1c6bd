/* Rows of keys and values: against numpy (kv_vectors.py), bit for bit; the vector kernels and the definition in
 * double against the rows; what a type promises of any row. */
#include "kv_row.h"
#include "kv_rows.h"
#include "ops_util.h"
#include "ref/ref.h"

struct kv_vector {
    enum kvl_kv_type type;
    int32_t n, seed, shape;
    uint32_t crc; /* of the floats that are read */
    const char *row;
};

#include "kv_vectors.h"

enum {
    N_VECTORS = sizeof kv_vectors / sizeof *kv_vectors,
    N_GROUPS = sizeof kv_groups / sizeof *kv_groups,
    MOST = 2048
};
enum { EVEN, SMALL, LARGE, OUTLIER, ONE, ZERO, TIE };

/* numbers() of kv_vectors.py */
static void numbers(const struct kv_vector *t, float *out)
{
    uint32_t x = (uint32_t)t->seed;
    for (int32_t i = 0; i < t->n; i++) {
        x = (x * 1103515245u + 12345u) & 0x7fffffffu;
        float v = (float)((int32_t)(x >> 8 & 0xffff) - 0x8000) / 0x8000;
        if (t->shape == SMALL) v *= 0x1p-20f;
        if (t->shape == LARGE) v *= 2048;
        if (t->shape == OUTLIER && i % 37 == 5) v *= 64;
        if (t->shape == ONE) v = i == 3;
        if (t->shape == ZERO) v = 0;
        if (t->shape == TIE) v = i % 32 > 1 ? floorf(v * 16) / 2 : i % 2 ? 8.0f : -8.0f;
        out[i] = v;
    }
}

static uint32_t crc_of(const float *x, int32_t n)
{
    uint32_t crc = 0xffffffffu;
    for (int32_t i = 0; i < n; i++) {
        float y = x[i] + 0.0f; /* one zero */
        uint8_t byte[sizeof y];
        memcpy(byte, &y, sizeof y);
        for (size_t b = 0; b < sizeof y; b++) {
            crc ^= byte[b];
            for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        }
    }
    return ~crc;
}

static void test_numpy(void **state)
{
    (void)state;
    for (int v = 0; v < N_VECTORS; v++) {
        const struct kv_vector *t = &kv_vectors[v];
        float x[MOST], y[MOST];
        uint8_t row[MOST];
        char hex[2 * MOST + 1];
        size_t bytes = kvl_kv_row_bytes(t->type, t->n);
        numbers(t, x);
        kvl_row_put(t->type, row, x, t->n);
        for (size_t i = 0; i < bytes; i++) snprintf(hex + 2 * i, 3, "%02x", row[i]);
        if (strcmp(hex, t->row) != 0)
            fail_msg("%s, n %d, shape %d:\n%s, want\n%s", kvl_kv_name(t->type).text, t->n, t->shape,
                     hex, t->row);
        kvl_row_get(t->type, y, row, t->n);
        if (crc_of(y, t->n) != t->crc)
            fail_msg("%s, n %d, shape %d: read otherwise", kvl_kv_name(t->type).text, t->n,
                     t->shape);
    }
}

/* Keys of 32 tokens: bytes and floats of numpy; kernels the same bits, the definition in double nearly. */
static void test_groups(void **state)
{
    (void)state;
    for (int v = 0; v < N_GROUPS; v++) {
        const struct kv_vector *t = &kv_groups[v];
        const int32_t n = t->n / KVL_KV_GROUP;
        float x[MOST], y[MOST], z[64];
        double want[64];
        uint8_t group[MOST];
        char hex[2 * MOST + 1];
        numbers(t, x);
        kvl_group_put(t->type, group, x, n);
        size_t bytes = KVL_KV_GROUP * kvl_kv_row_bytes(t->type, n);
        for (size_t i = 0; i < bytes; i++) snprintf(hex + 2 * i, 3, "%02x", group[i]);
        if (strcmp(hex, t->row) != 0)
            fail_msg("%s, n %d, shape %d:\n%s, want\n%s", kvl_kv_name(t->type).text, n, t->shape,
                     hex, t->row);
        for (int32_t i = 0; i < KVL_KV_GROUP; i++) {
            kvl_group_get(t->type, y + i * n, group, n, i);
            kvl_kern()->kv_row(z, (struct kvl_kept){ group, t->type, i }, n);
            assert_memory_equal(y + i * n, z, (size_t)n * sizeof *z);
            kvl_ref_kept_key(group, t->type, n, i, want);
            for (int32_t c = 0; c < n; c++)
                assert_true(fabs((double)z[c] - want[c]) <= 1e-6 * fabs(want[c]) + 1e-9);
        }
        if (crc_of(y, t->n) != t->crc)
            fail_msg("%s, n %d, shape %d: read otherwise", kvl_kv_name(t->type).text, n, t->shape);
    }
}

/* A group is written a row at a time; the definition goes channel by channel.  With numbers that are none, too, in
 * channels of their own: what they touch, and nothing else, is none. */
static void test_group_definition(void **state)
{
    enum { DIM = 96, N = KVL_KV_GROUP * DIM };
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 11);
    for (int round = 0; round < 64; round++) {
        const enum kvl_kv_type type = round % 2 ? KVL_KV_KIVI4 : KVL_KV_KIVI2;
        static float x[N];
        uint8_t got[MOST * 4], want[MOST * 4];
        for (int i = 0; i < N; i++) {
            float size = i % DIM == 3 ? 65519 : i % DIM == 4 ? 0x1p-24f : i % DIM == 5 ? 0 : 1;
            x[i] = (float)(kvl_rng_f64(&r) * 2 - 1) * size;
        }
        if (round > 8) x[kvl_rng_below(&r, N)] = round % 3 ? INFINITY : NAN;
        if (round > 16) x[kvl_rng_below(&r, N)] = -INFINITY;
        kvl_group_put(type, got, x, DIM);
        kvl_kivi_group_put(type, want, x, DIM);
        assert_memory_equal(got, want, KVL_KV_GROUP * kvl_kv_row_bytes(type, DIM));
    }
}

/* Rows of TurboQuant and KIVI, too, are not written as the definition has it. */
static void test_row_definition(void **state)
{
    enum { DIM = 96 };
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 12);
    for (int round = 0; round < 300; round++) {
        static const enum kvl_kv_type of[] = { KVL_KV_TURBOQUANT4, KVL_KV_TURBOQUANT3, KVL_KV_KIVI4,
                                               KVL_KV_KIVI2 };
        const enum kvl_kv_type type = of[round % 4];
        float x[DIM], turned[DIM];
        uint8_t got[4 * DIM + 2], want[4 * DIM + 2];
        for (int i = 0; i < DIM; i++)
            x[i] = round % 7 == 6 ? 0 : (float)(kvl_rng_f64(&r) * 2 - 1) * (i % 31 == 3 ? 50 : 1);
        if (round % 9 == 8) x[kvl_rng_below(&r, DIM)] = round % 5 ? INFINITY : NAN;
        memcpy(turned, x, sizeof x);
        kvl_row_turn_by(kvl_row_turn(type), turned, DIM, false);
        kvl_row_put(type, got, x, DIM);
        kvl_row_put_turned(type, want, turned, DIM);
        assert_memory_equal(got, want, kvl_kv_row_bytes(type, DIM));
    }
}

/* Every type has vectors, but those whose elements are floats. */
static void test_all_types(void **state)
{
    bool seen[256] = { false };
    (void)state;
    for (int v = 0; v < N_VECTORS; v++) seen[kv_vectors[v].type] = true;
    for (int t = KVL_KV_Q8_0; kvl_kv_facts((enum kvl_kv_type)t); t++)
        if (!seen[t]) fail_msg("no vectors of %s", kvl_kv_name((enum kvl_kv_type)t).text);
}

static void random_row(struct kvl_rng *r, float *x, int32_t n)
{
    float size = ldexpf(1, (int)kvl_rng_below(r, 24) - 16);
    for (int32_t i = 0; i < n; i++) {
        x[i] = (float)(kvl_rng_f64(r) * 2 - 1) * size;
        if (kvl_rng_below(r, 40) == 0) x[i] *= 32;
    }
}

/* The kernels of this instruction set give the same bits; the definition in double nearly the same numbers. */
static void rows_agree(struct kvl_rng *r, enum kvl_kv_type type, int32_t n)
{
    float x[MOST], y[MOST], z[MOST];
    double want[MOST];
    uint8_t row[MOST * sizeof *x];
    random_row(r, x, n);
    kvl_row_put(type, row, x, n);
    kvl_row_get(type, y, row, n);
    kvl_kern()->kv_row(z, (struct kvl_kept){ row, type, -1 }, n);
    assert_memory_equal(y, z, (size_t)n * sizeof *y);
    kvl_ref_kept(row, type, n, want);
    double top = 0;
    for (int32_t i = 0; i < n; i++) top = KVL_MAX(top, fabs(want[i]));
    for (int32_t i = 0; i < n; i++) assert_true(fabs((double)y[i] - want[i]) <= top * 2e-6);
}

static void kernels(void *of)
{
    struct kvl_rng r;
    (void)of;
    kvl_rng_seed(&r, 11);
    for (int t = 0; kvl_kv_facts((enum kvl_kv_type)t); t++)
        for (int32_t n = 1; n <= 264; n++)
            if (kvl_kv_check((enum kvl_kv_type)t, n, NULL) == KVL_OK)
                rows_agree(&r, (enum kvl_kv_type)t, n);
}

static void test_kernels(void **state)
{
    static const char *const isa[] = { "base", "avx2", "avx512", "avx512bf16" };
    const char *was = kvl_kern()->name;
    (void)state;
    for (size_t i = 0; i < sizeof isa / sizeof *isa; i++)
        if (kvl_kern_select(isa[i])) kernels(NULL);
    assert_true(kvl_kern_select(was));
}

/* A row with a number that is none is NaN; what a type says it holds it holds. */
static void test_ends(void **state)
{
    const float none[] = { NAN, INFINITY, -INFINITY };
    (void)state;
    for (int t = KVL_KV_Q8_0; kvl_kv_facts((enum kvl_kv_type)t); t++) {
        const struct kvl_kv_facts *f = kvl_kv_facts((enum kvl_kv_type)t);
        float x[64], y[64];
        uint8_t row[256];
        for (int i = 0; i < 64; i++) x[i] = (float)(i - 20);
        for (size_t k = 0; k < sizeof none / sizeof *none; k++) {
            x[7] = none[k];
            kvl_row_put((enum kvl_kv_type)t, row, x, 64);
            kvl_row_get((enum kvl_kv_type)t, y, row, 64);
            assert_true(isnan(y[7]));
        }
        float most = f->most > 0 ? f->most * 0.999f : 1e37f;
        if (f->turn != KVL_TURN_NONE) most /= 8;
        for (int i = 0; i < 64; i++) x[i] = i == 9 ? -most : 0;
        kvl_row_put((enum kvl_kv_type)t, row, x, 64);
        kvl_row_get((enum kvl_kv_type)t, y, row, 64);
        for (int i = 0; i < 64; i++) assert_true(isfinite(y[i]));
    }
}

/* How far from a normal vector its row is, in root mean square over its size: four bits are off by about a tenth. */
static void test_distance(void **state)
{
    static const struct {
        enum kvl_kv_type type;
        double most;
    } of[] = { { KVL_KV_Q8_0, 0.007 },        { KVL_KV_Q4_0, 0.12 },
               { KVL_KV_FP8_E4M3, 0.03 },     { KVL_KV_Q8_0_TURNED, 0.007 },
               { KVL_KV_Q4_0_TURNED, 0.12 },  { KVL_KV_TURBOQUANT4, 0.099 },
               { KVL_KV_TURBOQUANT3, 0.189 }, { KVL_KV_KIVI4, 0.088 },
               { KVL_KV_KIVI2, 0.44 } };
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 5);
    for (size_t t = 0; t < sizeof of / sizeof *of; t++) {
        double off = 0, all = 0;
        for (int round = 0; round < 200; round++) {
            float x[128], y[128];
            uint8_t row[512];
            for (int i = 0; i < 128; i += 2) {
                double u = sqrt(-2 * log(1 - kvl_rng_f64(&r))), a = 6.283185307 * kvl_rng_f64(&r);
                x[i] = (float)(u * cos(a));
                x[i + 1] = (float)(u * sin(a));
            }
            kvl_row_put(of[t].type, row, x, 128);
            kvl_row_get(of[t].type, y, row, 128);
            for (int i = 0; i < 128; i++) {
                off += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
                all += (double)x[i] * (double)x[i];
            }
        }
        double far = sqrt(off / all);
        if (!(far < of[t].most && far > of[t].most / 2))
            fail_msg("%s is off by %.4f", kvl_kv_name(of[t].type).text, far);
    }
}

/* Names and pairs. */
static void test_names(void **state)
{
    enum kvl_kv_type type;
    (void)state;
    for (int k = 0; kvl_kv_facts((enum kvl_kv_type)k); k++)
        for (int v = 0; kvl_kv_facts((enum kvl_kv_type)v); v++) {
            enum kvl_kv_type pair = kvl_kv_pair((enum kvl_kv_type)k, (enum kvl_kv_type)v);
            assert_int_equal(kvl_kv_keys(pair), k);
            assert_int_equal(kvl_kv_values(pair), v);
            assert_true(kvl_kv_find(kvl_kv_name(pair).text, &type));
            assert_int_equal(type, pair);
        }
    assert_string_equal(kvl_kv_name(kvl_kv_pair(KVL_KV_Q8_0, KVL_KV_Q4_0_TURNED)).text,
                        "q8_0/q4_0+hadamard");
    static const char *const bad[] = { "", "q4", "q4_0/", "/q4_0", "f16/f8", "q4_0+", "F16" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(kvl_kv_find(bad[i], &type));
}

/* Bytes of a slot, by hand: blocks, heads of rows, even rows. */
static void test_bytes(void **state)
{
    (void)state;
    assert_int_equal(kvl_kv_slot_bytes(KVL_KV_F16, 96, true), 3 * 192);
    assert_int_equal(kvl_kv_slot_bytes(KVL_KV_Q4_0, 96, false), 2 * 3 * 18);
    assert_int_equal(kvl_kv_row_bytes(KVL_KV_FP8_E4M3, 33), 36);
    assert_int_equal(kvl_kv_row_bytes(KVL_KV_TURBOQUANT3, 64), 26);
    assert_int_equal(kvl_kv_slot_bytes(kvl_kv_pair(KVL_KV_Q8_0, KVL_KV_TURBOQUANT4), 64, true),
                     2 * 68 + 34);
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_kv_check(kvl_kv_pair(KVL_KV_F16, KVL_KV_Q4_0), 80, &err), KVL_EINVAL);
    assert_string_equal(err.msg, "values in q4_0: a head has 80 elements, want a multiple of 32; "
                                 "--kv-type f32, f16, bf16, fp8_e4m3 take any");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numpy),
        cmocka_unit_test(test_all_types),
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_distance),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_group_definition),
        cmocka_unit_test(test_row_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
