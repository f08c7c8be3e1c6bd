/* The progress line: what is told to it, as text. */
#include "progress.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* Nothing is known at the start; then what is left takes as long as what was done. */
static void test_part(void **state)
{
    struct kvl_progress p = { .part = 0.5, .left_s = 3.0 };
    (void)state;
    kvl_progress_begin(&p, true);
    assert_true(p.part <= 0.0 && isnan(p.left_s));
    kvl_progress_part(&p, 0.0);
    assert_true(isnan(p.left_s));
    p.t_start = kvl_now_ns() - 3000000000u;
    kvl_progress_part(&p, 0.25);
    assert_true(p.part >= 0.25 && p.part <= 0.25);
    assert_true(p.left_s >= 9.0 && p.left_s < 10.0);
}

/* Amid a piece that takes longer than all was to take, something is still left. */
static void test_longer(void **state)
{
    struct kvl_progress p = { .t_known = 1, .left_s = 60.0 };
    (void)state;
    double before = 60.0;
    for (uint64_t s = 1; s <= 300; s++) {
        double left = kvl_progress_left_s(&p, 1 + s * 1000000000);
        assert_true(left < before && left > 0.0);
        if (s <= 6) assert_true(fabs(left - (60.0 - (double)s)) < 0.4);
        before = left;
    }
}

static void test_text(void **state)
{
    char text[32];
    (void)state;
    kvl_progress_time(3723.4, text, sizeof text);
    assert_string_equal(text, "1:02:03");
    kvl_progress_time(123.6, text, sizeof text);
    assert_string_equal(text, "2:04");
    kvl_progress_time((double)NAN, text, sizeof text);
    assert_string_equal(text, "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_part),
        cmocka_unit_test(test_longer),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
