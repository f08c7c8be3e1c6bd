/* Random numbers against published vectors of the two generators, and their distributions. */
#include "kvl/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* SplitMix64 with state 1234567: its first outputs, as published with the generator. */
static void test_seed_mix(void **state)
{
    (void)state;
    static const uint64_t want[] = { 6457827717110365317u, 3203168211198807973u,
                                     9817491932198370423u, 4593380528125082431u,
                                     16408922859458223821u };
    for (uint64_t i = 0; i < 5; i++) assert_true(kvl_seed_mix(1234567, i) == want[i]);
}

/* The demonstration program of PCG32: seed 42, sequence 54. */
static void test_pcg32(void **state)
{
    (void)state;
    static const uint32_t want[] = { 0xa15c02b7, 0x7b47f409, 0xba1d3330,
                                     0x83d2f293, 0xbfa4784b, 0xcbed606e };
    struct kvl_rng r = { .state = 0, .inc = 54u << 1 | 1u };
    (void)kvl_rng_u32(&r);
    r.state += 42;
    (void)kvl_rng_u32(&r);
    for (size_t i = 0; i < 6; i++) assert_int_equal(kvl_rng_u32(&r), want[i]);
}

/* Computed by a separate program: what a seed means must never change. */
static void test_seed(void **state)
{
    (void)state;
    static const uint32_t want[] = { 0xb09737a5, 0x3fdc497c, 0x82dc4f29,
                                     0x48103d83, 0xe2122ad4, 0x372ec59c };
    struct kvl_rng r;
    kvl_rng_seed(&r, 1);
    for (size_t i = 0; i < 6; i++) assert_int_equal(kvl_rng_u32(&r), want[i]);
    kvl_rng_seed(&r, 2026);
    assert_true(kvl_rng_f64(&r) == 0.6260787064030731);
    assert_true(kvl_seed_str(0, "passkey") == 0x506d8df3da085dafu);
    assert_true(kvl_seed_str(7, "") == 7);
    assert_true(kvl_seed_str(0, "ab") != kvl_seed_str(0, "ba"));
}

static void test_below(void **state)
{
    (void)state;
    enum { N = 7, DRAWS = 70000 };
    struct kvl_rng r;
    int32_t seen[N] = { 0 };
    kvl_rng_seed(&r, 3);
    for (int32_t i = 0; i < DRAWS; i++) {
        uint32_t v = kvl_rng_below(&r, N);
        assert_true(v < N);
        seen[v]++;
    }
    /* 10000 each; the standard deviation is 93. */
    for (int32_t i = 0; i < N; i++) assert_in_range(seen[i], 9500, 10500);
    for (int32_t i = 0; i < 100; i++) assert_int_equal(kvl_rng_below(&r, 1), 0);
}

/* Of 2^32 numbers, n = 3 * 2^30 results cannot get equal shares without rejecting some: every third
 * result would come twice as often. */
static void test_below_bias(void **state)
{
    (void)state;
    struct kvl_rng r;
    int32_t seen[3] = { 0 };
    kvl_rng_seed(&r, 4);
    for (int32_t i = 0; i < 30000; i++) seen[kvl_rng_below(&r, 3u << 30) % 3]++;
    for (int32_t i = 0; i < 3; i++) assert_in_range(seen[i], 9600, 10400); /* deviation 82 */
}

static void test_f64(void **state)
{
    (void)state;
    struct kvl_rng r;
    double sum = 0.0, least = 1.0, most = 0.0;
    kvl_rng_seed(&r, 5);
    for (int32_t i = 0; i < 100000; i++) {
        double v = kvl_rng_f64(&r);
        assert_true(v >= 0.0 && v < 1.0);
        sum += v;
        least = KVL_MIN(least, v);
        most = KVL_MAX(most, v);
    }
    assert_true(sum > 49500 && sum < 50500);
    assert_true(least < 0.001 && most > 0.999);
}

/* Every order of three is as frequent as every other, and nothing gets lost. */
static void test_shuffle(void **state)
{
    (void)state;
    struct kvl_rng r;
    int32_t seen[27] = { 0 }, n_orders = 0;
    kvl_rng_seed(&r, 6);
    for (int32_t i = 0; i < 60000; i++) {
        int32_t v[] = { 0, 1, 2 };
        kvl_rng_shuffle(&r, v, 3);
        assert_int_equal(1 << v[0] | 1 << v[1] | 1 << v[2], 7);
        seen[v[0] * 9 + v[1] * 3 + v[2]]++;
    }
    for (int32_t i = 0; i < 27; i++) {
        if (seen[i] == 0) continue;
        n_orders++;
        assert_in_range(seen[i], 9600, 10400); /* standard deviation 91 */
    }
    assert_int_equal(n_orders, 6);
    kvl_rng_shuffle(&r, NULL, 0);
}

/* Neighbouring seeds share nothing: their first numbers differ in about half of the bits. */
static void test_neighbours(void **state)
{
    (void)state;
    int32_t bits = 0;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        struct kvl_rng a, b;
        kvl_rng_seed(&a, seed);
        kvl_rng_seed(&b, seed + 1);
        for (uint32_t x = kvl_rng_u32(&a) ^ kvl_rng_u32(&b); x; x &= x - 1) bits++;
    }
    assert_in_range(bits, 15500, 16500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seed_mix),   cmocka_unit_test(test_pcg32),
        cmocka_unit_test(test_seed),       cmocka_unit_test(test_below),
        cmocka_unit_test(test_below_bias), cmocka_unit_test(test_f64),
        cmocka_unit_test(test_shuffle),    cmocka_unit_test(test_neighbours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
