/* 16-bit floats against their definition: value = sign * 1.mantissa * 2^exponent, written with
 * ldexp, and rounding by looking at the two neighbours. */
#include "half.h"
#include "kvl/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

/* A format with `m` mantissa bits and an exponent bias; finite values, and infinity as the value
 * that the next exponent would have. */
struct format {
    int m, bias;
};
static const struct format f16 = { 10, 15 }, bf16 = { 7, 127 };

static double value_of(struct format f, uint32_t magnitude)
{
    int exponent = (int)(magnitude >> f.m);
    double mantissa = (double)(magnitude & ((1u << f.m) - 1));
    if (exponent == 0) return ldexp(mantissa, 1 - f.bias - f.m);
    return ldexp(mantissa + (double)(1u << f.m), exponent - f.bias - f.m);
}

/* Nearest, ties to even; anything that rounds past the largest finite value is infinity. */
static uint16_t nearest(struct format f, double x)
{
    uint32_t top = (uint32_t)(f.bias * 2 + 1) << f.m, lo = 0, hi = top;
    double a = fabs(x);
    if (a >= value_of(f, top)) lo = hi = top;
    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (value_of(f, mid) <= a)
            lo = mid;
        else
            hi = mid;
    }
    double below = a - value_of(f, lo), above = value_of(f, hi) - a;
    uint32_t best = below < above || (below == above && lo % 2 == 0) ? lo : hi;
    return (uint16_t)(best | (signbit(x) ? 0x8000u : 0u));
}

static bool is_nan(struct format f, uint32_t magnitude)
{
    return magnitude > (uint32_t)(f.bias * 2 + 1) << f.m;
}

static void expect_widened(struct format f, uint16_t h, float got)
{
    uint32_t magnitude = h & 0x7fffu, top = (uint32_t)(f.bias * 2 + 1) << f.m;
    if (is_nan(f, magnitude)) {
        assert_true(isnan(got));
        return;
    }
    double want = magnitude == top ? HUGE_VAL : value_of(f, magnitude);
    if ((double)got != (h & 0x8000u ? -want : want) || !signbit(got) != !(h & 0x8000u))
        fail_msg("%#x widens to %a, want %a", h, (double)got, want);
}

static void test_widen_all(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        expect_widened(f16, (uint16_t)h, kvl_f16_to_f32((uint16_t)h));
        expect_widened(bf16, (uint16_t)h, kvl_bf16_to_f32((uint16_t)h));
    }
}

static void expect_narrowed(float x)
{
    uint16_t h = kvl_f32_to_f16(x), b = kvl_f32_to_bf16(x);
    if (isnan(x)) {
        assert_true(is_nan(f16, h & 0x7fffu) && is_nan(bf16, b & 0x7fffu));
        return;
    }
    if (h != nearest(f16, (double)x)) fail_msg("f16 of %a is %#x", (double)x, h);
    if (b != nearest(bf16, (double)x)) fail_msg("bf16 of %a is %#x", (double)x, b);
}

/* Every half, the middle to the next one, and the floats beside both; then any bits. */
static void test_narrow(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double a = value_of(f16, h), b = value_of(f16, h + 1);
        float at[] = { (float)a, (float)((a + b) / 2) };
        for (int i = 0; i < 2; i++) {
            expect_narrowed(at[i]);
            expect_narrowed(-at[i]);
            expect_narrowed(nextafterf(at[i], INFINITY));
            expect_narrowed(nextafterf(at[i], -INFINITY));
        }
    }
    struct kvl_rng r;
    kvl_rng_seed(&r, 1);
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = kvl_rng_u32(&r);
        expect_narrowed(kvl_bits_f32(bits));
        expect_narrowed(kvl_bits_f32((bits & 0xffff0000u) | 0x8000u)); /* a tie of bf16 */
    }
    expect_narrowed(INFINITY);
    expect_narrowed(-INFINITY);
}

/* What the F16C instructions give for NaNs: quiet, sign and the top of the payload kept. */
static void test_nan_bits(void **state)
{
    (void)state;
    assert_int_equal(kvl_f32_to_f16(kvl_bits_f32(0x7f800001u)), 0x7e00);
    assert_int_equal(kvl_f32_to_f16(kvl_bits_f32(0xffc02000u)), 0xfe01);
    assert_int_equal(kvl_f32_bits(kvl_f16_to_f32(0x7c01)), 0x7fc02000);
    assert_int_equal(kvl_f32_to_bf16(kvl_bits_f32(0x7f800001u)), 0x7fc0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widen_all),
        cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_nan_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
