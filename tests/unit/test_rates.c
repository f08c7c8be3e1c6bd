/* What is left takes what is like it took: by policy, carried along lengths. */
#include "rates.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The sweep of needle_heatmap: five lengths, depths, nine policies. */
struct sweep {
    struct kvl_registry *registry;
    struct kvl_model *model;
    struct kvl_sweep s;
    struct kvl_work *work;
    struct kvl_state state;
    struct kvl_runner r;
};

static int sweep_open(void **state)
{
    struct kvl_err err = { 0 };
    const struct kvl_where where = { "here", 1, NULL };
    struct sweep *x = calloc(1, sizeof *x);
    *state = NULL;
    if (kvl_model_open(KVL_SOURCE_DIR "/datasets/model/kvlab-small.gguf", &x->model, &err)) {
        free(x);
        return 0;
    }
    assert_int_equal(kvl_registry_create(&x->registry, &err), KVL_OK);
    int rc = kvl_sweep_load(KVL_SOURCE_DIR "/harness/sweeps/needle_heatmap.yaml", NULL, x->registry,
                            NULL, 0, &x->s, &err);
    if (rc == KVL_OK) rc = kvl_work_create(&x->s, x->model, &where, false, &x->work, &err);
    if (rc == KVL_OK) rc = kvl_state_create(x->work, false, false, &x->state, &err);
    if (rc != KVL_OK) fail_msg("%s", err.msg);
    x->r = (struct kvl_runner){ .work = x->work, .state = &x->state, .jobs = { .threads = 1 } };
    *state = x;
    return 0;
}

static int sweep_close(void **state)
{
    struct sweep *x = *state;
    if (!x) return 0;
    kvl_state_free(&x->state);
    kvl_work_destroy(x->work);
    kvl_sweep_free(&x->s);
    kvl_registry_destroy(x->registry);
    kvl_model_close(x->model);
    free(x);
    return 0;
}

/* A policy's answer: a constant and a slope of its own.  Every other context takes a tenth more or less. */
static double answer_ns(const struct kvl_cell *c, int32_t context)
{
    double own = 1.0 + (double)(strlen(c->policy->policy->name) * 13 % 7);
    return (own * 1e6 + own * own * 100.0 * c->length) * (context % 2 ? 0.9 : 1.1);
}

static double prefill_ns(int32_t length)
{
    return 1e5 * length + 12.0 * length * length;
}

/* Answers of the first two contexts of groups that `want` names by length. */
static void answered(struct sweep *x, bool (*want)(int32_t length))
{
    for (size_t i = 0; i < x->work->n_groups; i++) {
        const struct kvl_group *g = &x->work->group[i];
        for (size_t c = g->first; want(g->length) && c < g->first + g->n; c++)
            for (int32_t k = 0; k < 2 * x->s.questions; k++) {
                int32_t context = k / x->s.questions;
                x->state.cell[c].outcome[k].have = true;
                x->state.cell[c].outcome[k].wall_ns = answer_ns(&x->work->cell[c], context);
                x->state.cell[c].outcome[k].prefill_ns = prefill_ns(g->length);
            }
    }
}

static bool lengths_at_the_ends(int32_t length)
{
    return length == 512 || length == 8192;
}

static bool lengths_all(int32_t length)
{
    return length > 0;
}

/* All that is not there, at the mean of the two contexts. */
static double truth_ns(const struct sweep *x, bool (*known)(int32_t length))
{
    double ns = 0.0;
    for (size_t i = 0; i < x->work->n_groups; i++) {
        const struct kvl_group *g = &x->work->group[i];
        double n = x->s.contexts - (known(g->length) ? 2 : 0);
        ns += n * prefill_ns(g->length);
        for (size_t c = g->first; c < g->first + g->n; c++) {
            const struct kvl_cell *cell = &x->work->cell[c];
            if (cell->planned)
                ns += n * x->s.questions * (answer_ns(cell, 0) + answer_ns(cell, 1)) / 2.0;
        }
    }
    return ns;
}

static void check_left(struct sweep *x, bool (*known)(int32_t length))
{
    struct kvl_rates rates = { 0 };
    struct kvl_err err = { 0 };
    answered(x, known);
    assert_int_equal(kvl_rates_read(&rates, &x->r, &err), KVL_OK);
    assert_true(kvl_rates_know(&rates, &x->r));
    struct kvl_rates_left left = kvl_rates_left(&rates, &x->r);
    double want = truth_ns(x, known);
    if (!(fabs(left.ns - want) <= 1e-9 * want)) fail_msg("left %g, want %g", left.ns, want);
    assert_true(left.timed_ns == 0.0);
    kvl_rates_free(&rates);
}

static void test_nothing(void **state)
{
    struct sweep *x = *state;
    struct kvl_rates rates = { 0 };
    struct kvl_err err = { 0 };
    if (!x) skip();
    assert_int_equal(kvl_rates_read(&rates, &x->r, &err), KVL_OK);
    assert_true(rates.n == 0 && rates.ns == 0.0);
    assert_false(kvl_rates_know(&rates, &x->r));
    assert_true(isnan(kvl_rates_left(&rates, &x->r).ns));
}

/* Lengths between two that are known lie on their line; a prefill on its parabola. */
static void test_lengths(void **state)
{
    if (!*state) skip();
    check_left(*state, lengths_at_the_ends);
}

static void test_contexts(void **state)
{
    if (!*state) skip();
    check_left(*state, lengths_all);
}

/* A policy of which nothing is known takes what the others do per unit, and is told. */
static void test_unknown(void **state)
{
    struct sweep *x = *state;
    struct kvl_rates rates = { 0 };
    struct kvl_err err = { 0 };
    if (!x) skip();
    answered(x, lengths_all);
    const struct kvl_point *lost = &x->s.policies.v[x->s.policies.n - 1];
    for (size_t c = 0; c < x->work->n_cells; c++)
        for (int32_t k = 0; x->work->cell[c].policy == lost && k < 2 * x->s.questions; k++)
            x->state.cell[c].outcome[k].have = false;
    assert_int_equal(kvl_rates_read(&rates, &x->r, &err), KVL_OK);
    assert_false(kvl_rates_know(&rates, &x->r));
    assert_true(kvl_rates_left(&rates, &x->r).ns > truth_ns(x, lengths_all));
    kvl_rates_free(&rates);
}

/* Contexts from snapshots have no time of their prefill: what is left was NaN, and shown as
 * known. */
static void test_snapshots(void **state)
{
    struct sweep *x = *state;
    struct kvl_rates rates = { 0 };
    struct kvl_err err = { 0 };
    if (!x) skip();
    answered(x, lengths_all);
    double want = truth_ns(x, lengths_all);
    for (size_t c = 0; c < x->work->n_cells; c++)
        for (int32_t k = 0; k < 2 * x->s.questions; k++)
            x->state.cell[c].outcome[k].prefill_ns = (double)NAN;
    for (size_t i = 0; i < x->work->n_groups; i++)
        want -= (x->s.contexts - 2) * prefill_ns(x->work->group[i].length);
    assert_int_equal(kvl_rates_read(&rates, &x->r, &err), KVL_OK);
    double left = kvl_rates_left(&rates, &x->r).ns;
    if (!(fabs(left - want) <= 1e-9 * want)) fail_msg("left %g, want %g", left, want);
    kvl_rates_free(&rates);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing, sweep_open, sweep_close),
        cmocka_unit_test_setup_teardown(test_lengths, sweep_open, sweep_close),
        cmocka_unit_test_setup_teardown(test_contexts, sweep_open, sweep_close),
        cmocka_unit_test_setup_teardown(test_unknown, sweep_open, sweep_close),
        cmocka_unit_test_setup_teardown(test_snapshots, sweep_open, sweep_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
