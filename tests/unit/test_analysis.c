/* Filter layers against all subsets, and the marks of running means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "analysis.h"
#include "kvl/model_tables.h"
#include "kvl/rng.h"
#include "record_text.h"
#include "stats.h"

enum { LAYERS = 9 };

/* The sum that a set of filters is worth, layer by layer as the rule says; -1: not allowed. */
static double worth(const double *capture, int32_t n, int32_t dense, int32_t wait, unsigned set,
                    double *sparse)
{
    int32_t filter = -1, n_dense = 0, served = 1;
    double sum = 0.0, kept = 0.0;
    for (int32_t l = 0; l < n; l++) {
        if (set >> l & 1) {
            if (!served) return -1.0; /* the filter before serves no layer */
            if (filter >= 0 && l - filter <= wait) return -1.0;
            filter = l;
            served = 0;
        }
        bool is_sparse = filter >= 0 && l - filter > wait;
        n_dense += !is_sparse;
        served += is_sparse;
        sum += is_sparse ? capture[filter * n + l] : 1.0;
        kept += is_sparse ? capture[filter * n + l] : 0.0;
    }
    if (!served || filter < 0 || n_dense > dense) return -1.0;
    *sparse = kept / (n - n_dense);
    return sum;
}

static void test_filters(void **state)
{
    (void)state;
    struct kvl_rng rng;
    kvl_rng_seed(&rng, 7);
    for (int32_t round = 0; round < 400; round++) {
        int32_t n = 2 + (int32_t)kvl_rng_below(&rng, LAYERS - 1);
        int32_t wait = (int32_t)kvl_rng_below(&rng, 3);
        int32_t dense = 1 + (int32_t)kvl_rng_below(&rng, (uint32_t)n);
        double capture[LAYERS * LAYERS], best = -1.0, best_sparse = 0.0, sparse;
        for (int32_t i = 0; i < n * n; i++) capture[i] = kvl_rng_f64(&rng);
        for (unsigned set = 1; set < 1u << n; set++) {
            double kept = 0.0, v = worth(capture, n, dense, wait, set, &kept);
            if (v <= best) continue;
            best = v;
            best_sparse = kept;
        }
        uint8_t filter[LAYERS];
        unsigned found = 0;
        int rc = kvl_filter_layers(capture, n, dense, wait, filter, &sparse, NULL);
        assert_int_equal(rc, best < 0.0 ? KVL_EINVAL : KVL_OK);
        if (rc != KVL_OK) continue;
        for (int32_t l = 0; l < n; l++) found |= (unsigned)filter[l] << l;
        double kept = 0.0;
        assert_true(fabs(worth(capture, n, dense, wait, found, &kept) - best) < 1e-12);
        assert_true(fabs(sparse - best_sparse) < 1e-12);
    }
}

/* Of equal sets the lower layers. */
static void test_filter_ties(void **state)
{
    (void)state;
    double capture[6 * 6], sparse;
    uint8_t filter[6];
    for (int32_t i = 0; i < 36; i++) capture[i] = 0.5;
    assert_int_equal(kvl_filter_layers(capture, 6, 2, 0, filter, &sparse, NULL), KVL_OK);
    assert_memory_equal(filter, ((uint8_t[]){ 1, 0, 1, 0, 0, 0 }), 6);
    assert_true(fabs(sparse - 0.5) < 1e-12);
}

static void test_marks(void **state)
{
    (void)state;
    static const int32_t want[] = { 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 50 };
    int32_t mark = 0;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        mark = kvl_curve_mark(mark, 50);
        assert_int_equal(mark, want[i]);
    }
    assert_int_equal(kvl_curve_mark(mark, 50), 0);
    assert_int_equal(kvl_curve_mark(0, 1), 1);
    assert_int_equal(kvl_curve_mark(1, 1), 0);
}

static void test_nll(void **state)
{
    (void)state;
    float logits[3] = { 1000.0f, 1000.0f, 1001.0f };
    double z = log(2.0 + exp(1.0));
    assert_true(fabs(kvl_nll(logits, 3, 0) - z) < 1e-12);
    assert_true(fabs(kvl_nll(logits, 3, 2) - (z - 1.0)) < 1e-12);
    assert_true(fabs(kvl_nll(logits, 1, 0)) < 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_filter_ties),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_nll),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
