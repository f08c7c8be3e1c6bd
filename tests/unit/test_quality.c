/* The measures of a reference pass against the obvious way: sort everything, sum everything. */
#include "quality.h"

#include "kvl/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_MOST = 300, N_ROUNDS = 400 };

static const float *quality_order_of; /* of the comparison below */

static int quality_order(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (quality_order_of[x] > quality_order_of[y]) return -1;
    if (quality_order_of[x] < quality_order_of[y]) return 1;
    return x < y ? -1 : 1;
}

/* Few different weights, so that ties are everywhere. */
static void test_recall(void **state)
{
    struct kvl_rng rng;
    float probs[N_MOST];
    int32_t order[N_MOST], read[N_MOST], heap[N_MOST + 50];
    (void)state;
    kvl_rng_seed(&rng, 5);
    for (int round = 0; round < N_ROUNDS; round++) {
        int32_t n = 1 + (int32_t)kvl_rng_below(&rng, N_MOST), n_read = 0;
        int32_t top[3] = { 1, 1 + (int32_t)kvl_rng_below(&rng, 40), N_MOST + 50 };
        bool is_read[N_MOST] = { false };
        double recall[3];
        for (int32_t i = 0; i < n; i++) {
            probs[i] = (float)kvl_rng_below(&rng, round % 2 ? 5 : 100000);
            order[i] = i;
            is_read[i] = kvl_rng_below(&rng, 3) == 0;
            if (is_read[i]) read[n_read++] = i;
        }
        quality_order_of = probs;
        qsort(order, (size_t)n, sizeof *order, quality_order);
        kvl_quality_recall(probs, n, read, n_read, top, 3, heap, recall);
        for (int t = 0; t < 3; t++) {
            int32_t k = KVL_MIN(top[t], n), found = 0;
            for (int32_t i = 0; i < k; i++) found += is_read[order[i]];
            if (fabs(recall[t] - (double)found / k) > 1e-12)
                fail_msg("round %d: top %d of %d: %g, want %d of %d", round, top[t], n, recall[t],
                         found, k);
        }
    }
}

static void test_mass(void **state)
{
    const float probs[] = { 0.5f, 0.25f, 0.125f, 0.125f };
    const int32_t read[] = { 0, 3 };
    (void)state;
    assert_true(fabs(kvl_quality_mass(probs, read, 2) - 0.625) < 1e-12);
    assert_true(fabs(kvl_quality_mass(probs, read, 0)) < 1e-12);
}

static void test_error(void **state)
{
    const float full[] = { 3, 4 }, out[] = { 3, 1 }, zero[] = { 0, 0 };
    (void)state;
    assert_true(fabs(kvl_quality_error(out, full, 2) - 0.6) < 1e-12);
    assert_true(fabs(kvl_quality_error(full, full, 2)) < 1e-12);
    assert_true(fabs(kvl_quality_error(zero, full, 2) - 1) < 1e-12);
    assert_true(fabs(kvl_quality_error(zero, zero, 2)) < 1e-12);
    assert_true(isinf(kvl_quality_error(full, zero, 2)));
}

/* p = 1/2, 1/4, 1/4 and q = 1/4, 1/2, 1/4: 1/2 log 2 - 1/4 log 2; adding a constant changes nothing,
 * and numbers whose exponentials are no floats do no harm. */
static void test_kl(void **state)
{
    float two = logf(2.0f);
    float p[] = { two, 0, 0 }, q[] = { 0, two, 0 }, far[] = { 1000 + two, 1000, 1000 };
    float sure[] = { 0, -800, -800 };
    (void)state;
    assert_true(fabs(kvl_quality_kl(p, q, 3) - 0.25 * log(2.0)) < 1e-6);
    assert_true(kvl_quality_kl(p, far, 3) < 1e-4);
    assert_true(kvl_quality_kl(p, p, 3) >= 0);
    assert_true(fabs(kvl_quality_kl(sure, p, 3) - log(2.0)) < 1e-6);
    /* 1/2 (log 1/2 - 0) + 2 * 1/4 (log 1/4 + 800) */
    assert_true(fabs(kvl_quality_kl(p, sure, 3) - (400 - 1.5 * log(2.0))) < 1e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recall),
        cmocka_unit_test(test_mass),
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_kl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
