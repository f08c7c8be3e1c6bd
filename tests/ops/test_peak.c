/* The yardsticks do the work that they say. */
#include "kvl/peak.h"

#include "ops_util.h"

/* Every float is read once, whatever the number of threads. */
static void reads_all(void **state)
{
    (void)state;
    const size_t sizes[] = { 0, 1, 15, 16, 63, 64, 65, 1000, 4096, 100003 };
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        float *x = kvl_alloc(sizes[s] + 1, sizeof *x);
        assert_non_null(x);
        for (size_t i = 0; i < sizes[s]; i++) x[i] = 1.0f;
        x[sizes[s]] = 1e9f; /* not ours */
        for (int32_t threads = 1; threads <= 4; threads++) {
            kvl_ops_set_threads(threads);
            assert_true(fabsf(kvl_peak_read(x, sizes[s]) - (float)sizes[s]) < 0.5f);
        }
        kvl_free(x);
    }
    kvl_ops_set_threads(0);
}

static void counts_operations(void **state)
{
    (void)state;
    for (int32_t threads = 1; threads <= 3; threads++) {
        kvl_ops_set_threads(threads);
        double lanes = kvl_kern()->peak_lanes * threads;
        assert_true(fabs(kvl_peak_fma(1000) - 2000 * lanes) < 1);
        double bf16 = kvl_peak_bf16(1000);
        assert_true(fabs(bf16 - (kvl_kern()->peak_bf16 ? 4000 * lanes : 0)) < 1);
    }
    kvl_ops_set_threads(0);
}

static void every_isa(void **state)
{
    static const char *const isa[] = { "scalar", "avx2", "avx512", "avx512bf16" };
    const char *best = kvl_ops_isa();
    for (size_t i = 0; i < sizeof isa / sizeof isa[0]; i++) {
        if (!kvl_kern_select(isa[i])) continue;
        reads_all(state);
        counts_operations(state);
    }
    assert_true(kvl_kern_select(best));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_isa) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
