/* Pooled accuracies: cells over the same contexts are no new observations. */
#include "summary.h"

#include "kvl/rng.h"
#include "text_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static void near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance)) fail_msg("got %.9g, want %.9g", got, want);
}

/* Ten contexts with one question each; `data`: of the files, "" where contexts are made. */
static struct kvl_result pool_cell(const char *task, const char *protocol, double length,
                                   const char *data, double rate)
{
    char key[96] = "kind=cell;task_options=";
    if (*data)
        snprintf(key, sizeof key, "kind=cell;task=jsonl/1;task_options=data=%s,name=all", data);
    json_t *record = json_pack("{s:s}", "key", key);
    assert_non_null(record);
    return (struct kvl_result){ .record = record,
                                .task = task,
                                .task_options = "",
                                .protocol = protocol,
                                .length_tok = length,
                                .depth = KVL_NAN,
                                .seed = 1,
                                .n = 10,
                                .n_eff = 10,
                                .n_contexts = 10,
                                .recall = KVL_NAN,
                                .recall_best = { KVL_NAN, KVL_NAN, KVL_NAN },
                                .official = { rate, KVL_NAN, KVL_NAN } };
}

static struct kvl_interval pool_of(struct kvl_result *x, size_t n)
{
    struct kvl_pool p = { 0 };
    for (size_t i = 0; i < n; i++) kvl_pool_add(&p, &x[i]);
    for (size_t i = 0; i < n; i++) json_decref(x[i].record);
    return kvl_pool_accuracy(&p);
}

/* Wilson's lower bounds: n of n is n / (n + 3.8415). */
static void test_shared(void **state)
{
    (void)state;
    const char *a = "0123456789abcdef", *b = "0123456789abcdee";
    struct kvl_result protocols[] = { pool_cell("passkey", "question_after_compress", 1024, "", 1),
                                      pool_cell("passkey", "question_in_prefill", 1024, "", 1),
                                      pool_cell("passkey", "multi_turn", 1024, "", 1) };
    near(pool_of(protocols, 3).lo, 10 / 13.8415, 1e-5);
    struct kvl_result lengths[] = { pool_cell("passkey", "p", 1024, "", 1),
                                    pool_cell("passkey", "p", 2048, "", 1) };
    near(pool_of(lengths, 2).lo, 20 / 23.8415, 1e-5);
    struct kvl_result cut[] = { pool_cell("jsonl", "p", 1024, a, 1),
                                pool_cell("jsonl", "p", 2048, a, 1) };
    near(pool_of(cut, 2).lo, 10 / 13.8415, 1e-5);
    struct kvl_result tasks[] = { pool_cell("jsonl", "p", 1024, a, 1),
                                  pool_cell("other", "p", 1024, a, 1),
                                  pool_cell("other", "p", 1024, b, 1) };
    /* 30^2 / ((20^2 + 10^2) / 10) = 18 */
    near(pool_of(tasks, 3).lo, 18 / 21.8415, 1e-5);
    struct kvl_result both[] = { pool_cell("passkey", "p", 1024, "", 1),
                                 pool_cell("vt", "p", 1024, "", 1),
                                 pool_cell("vt", "q", 1024, "", 1),
                                 pool_cell("vt", "q", 4096, "", 1) };
    /* 40^2 / ((10^2 + 20^2 + 10^2) / 10) = 80/3 */
    near(pool_of(both, 4).lo, 80.0 / 3 / (80.0 / 3 + 3.8415), 1e-5);
}

/* A cell alone is what it was; one that tells little and is right half of the time makes the pool tell little. */
static void test_alone(void **state)
{
    (void)state;
    struct kvl_result one = pool_cell("passkey", "p", 1024, "", 0.7);
    struct kvl_interval w = kvl_wilson(0.7, 10), got = pool_of(&one, 1);
    near(got.lo, w.lo, 1e-9);
    near(got.hi, w.hi, 1e-9);
    struct kvl_result two[] = { pool_cell("passkey", "p", 1024, "", 0.5),
                                pool_cell("vt", "p", 1024, "", 1) };
    two[1].n_eff = two[1].n = 100;
    two[0].n = 100;
    /* error^2 = 100^2 * (0.25 / 10) / 200^2; rate 0.75 */
    w = kvl_wilson(0.75, 0.75 * 0.25 / (0.25 / 10 / 4));
    got = pool_of(two, 2);
    near(got.lo, w.lo, 1e-9);
}

/* Three protocols over the same ten contexts: an answer follows its context with chance 0.8.  Counted as
 * thirty observations, fewer than nine of ten intervals would hold the truth. */
static void test_coverage(void **state)
{
    (void)state;
    enum { TRIALS = 3000, CONTEXTS = 10, PROTOCOLS = 3 };
    static const double rates[] = { 0.5, 0.8, 0.95 };
    struct kvl_rng rng;
    kvl_rng_seed(&rng, 17);
    for (size_t r = 0; r < sizeof rates / sizeof rates[0]; r++) {
        int held = 0, naive = 0;
        for (int t = 0; t < TRIALS; t++) {
            double right[PROTOCOLS] = { 0 }, all = 0;
            for (int c = 0; c < CONTEXTS; c++) {
                double luck = kvl_rng_f64(&rng);
                for (int p = 0; p < PROTOCOLS; p++) {
                    double own = kvl_rng_f64(&rng);
                    right[p] += (kvl_rng_f64(&rng) < 0.8 ? luck : own) < rates[r];
                }
            }
            struct kvl_result x[PROTOCOLS];
            for (int p = 0; p < PROTOCOLS; p++) {
                x[p] = pool_cell("passkey", "p", 1024, "", right[p] / CONTEXTS);
                all += right[p] / CONTEXTS / PROTOCOLS;
            }
            struct kvl_interval w = pool_of(x, PROTOCOLS);
            held += w.lo <= rates[r] && rates[r] <= w.hi;
            w = kvl_wilson(all, CONTEXTS * PROTOCOLS);
            naive += w.lo <= rates[r] && rates[r] <= w.hi;
        }
        if (held < 0.95 * TRIALS)
            fail_msg("rate %g: %d of %d hold the truth", rates[r], held, TRIALS);
        assert_true(naive < 0.93 * TRIALS);
    }
}

/* Both ends are never the same text. */
static void test_spans(void **state)
{
    (void)state;
    assert_string_equal(kvl_percent_span(0.7225, 1, 2, "-").s, "72-100");
    assert_string_equal(kvl_percent_span(0.0, 0.0213, 2, "-").s, " 0-2");
    assert_string_equal(kvl_percent_span(0.9981, 1, 0, " to ").s, "99.8 to 100.0");
    assert_string_equal(kvl_percent_span(0.50001, 0.50002, 2, "-").s, "50.001-50.002");
    assert_int_equal(kvl_span_decimals(1.5, 1.5, 1), 1);    /* no width: nothing to show */
    assert_int_equal(kvl_span_decimals(-0.04, 0.04, 1), 1); /* -0.0 and 0.0 */
    assert_int_equal(kvl_span_decimals(KVL_NAN, KVL_NAN, 3), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_coverage),
        cmocka_unit_test(test_spans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
