/* What is left takes what is like it took: by policy, carried along lengths. */
#include "forecast.h"
#include "workers_death.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static struct kvl_outcome *outcomes_of(struct kvl_state *s, size_t cell)
{
    struct kvl_outcome *o;
    struct kvl_quality_means *q;
    assert_int_equal(kvl_state_own(s, cell, &o, &q, NULL), KVL_OK);
    return o;
}

/* Without it the tests are skipped. */
static const char file_of_model[] = KVL_SOURCE_DIR "/datasets/model/kvlab-small.gguf";

static int sweep_open_file(void **state, const char *file)
{
    struct kvl_err err = { 0 };
    const struct kvl_where where = { "here", 1, NULL };
    struct sweep *x;
    *state = NULL;
    if (access(file_of_model, F_OK) != 0) return 0;
    x = calloc(1, sizeof *x);
    assert_non_null(x);
    if (kvl_model_open(file_of_model, &x->model, &err) != KVL_OK) fail_msg("%s", err.msg);
    assert_int_equal(kvl_registry_create(&x->registry, &err), KVL_OK);
    int rc = kvl_sweep_load(file, NULL, x->registry, NULL, 0, &x->s, &err);
    if (rc == KVL_OK) rc = kvl_work_create(&x->s, x->model, &where, false, &x->work, &err);
    if (rc == KVL_OK) rc = kvl_state_create(x->work, false, false, &x->state, &err);
    if (rc != KVL_OK) fail_msg("%s", err.msg);
    x->r = (struct kvl_runner){ .work = x->work, .state = &x->state, .jobs = { .threads = 1 } };
    *state = x;
    return 0;
}

static int sweep_open(void **state)
{
    return sweep_open_file(state, KVL_SOURCE_DIR "/harness/sweeps/needle_heatmap.yaml");
}

/* The sweep of kv_length: six lengths, 27 timed cells each, nothing else. */
static int sweep_open_timed(void **state)
{
    return sweep_open_file(state, KVL_SOURCE_DIR "/harness/sweeps/kv_length.yaml");
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
                outcomes_of(&x->state, c)[k].have = true;
                outcomes_of(&x->state, c)[k].wall_ns = answer_ns(&x->work->cell[c], context);
                outcomes_of(&x->state, c)[k].prefill_ns = prefill_ns(g->length);
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

/* The line that a dry run prints, for `n` workers. */
static void time_line(struct sweep *x, int32_t n, char *out, int size)
{
    struct kvl_rates rates = { 0 };
    struct kvl_err err = { 0 };
    FILE *file = tmpfile();
    x->r.jobs.n = n;
    assert_int_equal(kvl_rates_read(&rates, &x->r, &err), KVL_OK);
    assert_true(file && fflush(stdout) == 0);
    int was = dup(STDOUT_FILENO);
    assert_true(was >= 0 && dup2(fileno(file), STDOUT_FILENO) >= 0);
    kvl_forecast_print_time(&rates, &x->r, "a test");
    fflush(stdout);
    assert_true(dup2(was, STDOUT_FILENO) >= 0);
    close(was);
    rewind(file);
    assert_non_null(fgets(out, size, file));
    fclose(file);
    kvl_rates_free(&rates);
}

static void expect_line(struct sweep *x, int32_t n, double want_ns)
{
    char time[32], want[96], got[96];
    kvl_progress_time(1e-9 * want_ns, time, sizeof time);
    snprintf(want, sizeof want, "time: about %s more, at the rates of a test\n", time);
    time_line(x, n, got, sizeof got);
    assert_string_equal(got, want);
}

/* Workers share what answers take. */
static void test_line(void **state)
{
    struct sweep *x = *state;
    if (!x) skip();
    answered(x, lengths_at_the_ends);
    double want = truth_ns(x, lengths_at_the_ends);
    expect_line(x, 1, want);
    expect_line(x, 3, want / 3.0);
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
            outcomes_of(&x->state, c)[k].have = false;
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
            outcomes_of(&x->state, c)[k].prefill_ns = (double)NAN;
    for (size_t i = 0; i < x->work->n_groups; i++)
        want -= (x->s.contexts - 2) * prefill_ns(x->work->group[i].length);
    assert_int_equal(kvl_rates_read(&rates, &x->r, &err), KVL_OK);
    double left = kvl_rates_left(&rates, &x->r).ns;
    if (!(fabs(left - want) <= 1e-9 * want)) fail_msg("left %g, want %g", left, want);
    kvl_rates_free(&rates);
}

/* ---- timed cells ------------------------------------------------------------------------------ */

/* A timed cell of a policy: a constant and a slope of its own; repeats take a fifth less, the same, a fifth
 * more. */
static double timed_ns(const struct kvl_cell *c)
{
    double own = 1.0 + (double)(strlen(c->policy->policy->name) * 13 % 7);
    return (own * 1e6 + own * own * 300.0 * c->length) * (0.8 + 0.2 * c->repeat);
}

/* What is not timed yet, with the prefill of each length. */
static double timed_truth_ns(const struct sweep *x)
{
    double ns = 0.0;
    for (size_t i = 0; i < x->work->n_groups; i++) {
        const struct kvl_group *g = &x->work->group[i];
        size_t n = 0;
        for (size_t c = g->first; c < g->first + g->n; c++) {
            if (x->state.cell[c].done || !x->work->cell[c].planned) continue;
            ns += timed_ns(&x->work->cell[c]);
            n++;
        }
        if (n == g->n) ns += prefill_ns(g->length);
    }
    return ns;
}

static double timed_left_ns(struct sweep *x)
{
    struct kvl_rates rates = { 0 };
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_rates_read(&rates, &x->r, &err), KVL_OK);
    double left = kvl_rates_left(&rates, &x->r).timed_ns;
    kvl_rates_free(&rates);
    return left;
}

static void timed_done(struct sweep *x, const struct kvl_group *g, size_t cell)
{
    struct kvl_progress_cell *p = &x->state.cell[cell];
    p->done = true;
    p->timed_ns = timed_ns(&x->work->cell[cell]);
    p->timed_prefill_ns = prefill_ns(g->length);
}

/* From the second length on, while a twentieth is left: the prefill of the length that is being timed is
 * there, and was counted again until the last of its cells was done. */
static void test_timed(void **state)
{
    struct sweep *x = *state;
    if (!x) skip();
    double all = timed_truth_ns(x), least = 1.0, most = 1.0;
    for (size_t i = 0; i < x->work->n_groups; i++) {
        const struct kvl_group *g = &x->work->group[i];
        x->r.timing = g;
        for (size_t c = g->first; c < g->first + g->n; c++) {
            timed_done(x, g, c);
            double truth = timed_truth_ns(x), part = timed_left_ns(x) / truth;
            if (i == 0 || truth < 0.05 * all) continue;
            least = fmin(least, part);
            most = fmax(most, part);
        }
    }
    print_message("time left is %.2f to %.2f of the truth\n", least, most);
    assert_true(least > 0.8 && most < 1.25);
}

/* A run that goes on prefills again; of a policy its repeats are known, and their mean counts. */
static void test_timed_again(void **state)
{
    struct sweep *x = *state;
    if (!x) skip();
    size_t last = 0;
    for (size_t i = 0; i < x->work->n_groups; i++) {
        const struct kvl_group *g = &x->work->group[i];
        for (size_t c = g->first; c < g->first + g->n; c++) timed_done(x, g, c);
    }
    assert_true(timed_left_ns(x) == 0.0);
    while (x->work->cell[last].repeat != 2) last++;
    x->state.cell[last].done = false;
    x->state.cell[last].timed_ns = 0.0;
    /* Repeats 0 and 1 took 0.8 and 1.0 of what is between them and this one, 1.2. */
    double want = timed_ns(&x->work->cell[last]) / 1.2 * 0.9, prefill = prefill_ns(1024);
    assert_true(fabs(timed_left_ns(x) - want - prefill) <= 1e-9 * prefill);
    x->r.timing = &x->work->group[0];
    assert_true(fabs(timed_left_ns(x) - want) <= 1e-9 * prefill);
}

/* Timed cells are run by one process. */
static void test_timed_line(void **state)
{
    struct sweep *x = *state;
    if (!x) skip();
    const struct kvl_group *g = &x->work->group[x->work->n_groups - 1];
    for (size_t i = 0; i < x->work->n_groups; i++)
        for (size_t c = 0; c < g->n; c++)
            timed_done(x, &x->work->group[i], x->work->group[i].first + c);
    for (size_t c = g->first; c < g->first + g->n; c++)
        x->state.cell[c].done = x->work->cell[c].repeat != 1;
    double want = prefill_ns(g->length);
    for (size_t c = g->first; c < g->first + g->n; c++)
        want += x->work->cell[c].repeat == 1 ? timed_ns(&x->work->cell[c]) : 0.0;
    expect_line(x, 4, want);
}

/* ---- a run from its first context on ----------------------------------------------------------- */

/* Seconds of one context of needle_heatmap, its prefill and its answers under nine policies, as the
 * published log has them (kvlab-small, one thread): the time left once was half of the truth there. */
static const struct seconds {
    int32_t length;
    double prefill, answers;
} seconds[] = {
    { 512, 0.0502, 0.0624 }, { 1024, 0.119, 0.0706 }, { 2048, 0.323, 0.0950 },
    { 4096, 1.017, 0.1477 }, { 8192, 3.522, 0.2904 },
};

static const struct seconds *seconds_of(const struct kvl_group *g)
{
    for (size_t i = 0; i < sizeof seconds / sizeof seconds[0]; i++)
        if (seconds[i].length == g->length) return &seconds[i];
    fail_msg("no length %d", g->length);
    return NULL;
}

/* One context of a group was answered: its policies took as long as each other. */
static void heatmap_did(struct sweep *x, const struct kvl_group *g, int32_t context)
{
    double answers = seconds_of(g)->answers * 1e9 / (double)g->n / x->s.questions;
    for (size_t c = g->first; c < g->first + g->n; c++)
        for (int32_t q = 0; q < x->s.questions; q++) {
            struct kvl_outcome *o = outcomes_of(&x->state, c) + context * x->s.questions + q;
            *o = (struct kvl_outcome){ .have = true, .wall_ns = answers };
            o->prefill_ns = seconds_of(g)->prefill * 1e9;
        }
}

/* Runs the groups forwards or backwards, a context at a time; the worst ratio of time left to the truth
 * while at least a tenth of the time is left. */
static void heatmap(struct sweep *x, bool backwards, double *least, double *most)
{
    const struct kvl_work *w = x->work;
    struct kvl_err err = { 0 };
    double left = 0.0, all;
    for (size_t i = 0; i < w->n_groups; i++)
        left += w->sweep->contexts *
                (seconds_of(&w->group[i])->prefill + seconds_of(&w->group[i])->answers);
    all = left;
    *least = *most = 1.0;
    for (size_t i = 0; i < w->n_groups && left >= 0.1 * all; i++) {
        const struct kvl_group *g = &w->group[backwards ? w->n_groups - 1 - i : i];
        for (int32_t c = 0; c < w->sweep->contexts; c++) {
            struct kvl_rates rates = { 0 };
            heatmap_did(x, g, c);
            left -= seconds_of(g)->prefill + seconds_of(g)->answers;
            assert_int_equal(kvl_rates_read(&rates, &x->r, &err), KVL_OK);
            double ratio = kvl_rates_left(&rates, &x->r).ns * 1e-9 / left;
            kvl_rates_free(&rates);
            if (left < 0.1 * all) break;
            *least = fmin(*least, ratio);
            *most = fmax(*most, ratio);
        }
    }
}

static void test_heatmap(void **state)
{
    struct sweep *x = *state;
    if (!x) skip();
    for (int backwards = 0; backwards < 2; backwards++) {
        double least, most;
        for (size_t c = 0; c < x->work->n_cells; c++)
            for (int32_t k = 0; k < x->s.contexts * x->s.questions; k++)
                outcomes_of(&x->state, c)[k].have = false;
        heatmap(x, backwards, &least, &most);
        print_message("time left is %.2f to %.2f of the truth\n", least, most);
        assert_true(least > 0.75 && most < 1.33);
    }
}

/* A worker gives way for its own limits, and, where the machine has too little left, for what it holds beyond its plan. */
static void test_limits(void **state)
{
    (void)state;
    const int64_t mib = 1 << 20;
    const struct kvl_limits none = { 0 }, all = { 10, 100 * mib, 50 * mib, 20 * mib },
                            machine = { 0, 0, 50 * mib, 20 * mib };
    assert_int_equal(kvl_limit_passed(&none, 1e9, INT64_MAX, 1), KVL_LIMIT_NONE);
    assert_int_equal(kvl_limit_passed(&all, 9.9, 100 * mib, 20 * mib), KVL_LIMIT_NONE);
    assert_int_equal(kvl_limit_passed(&all, 10, 0, 0), KVL_LIMIT_TIME);
    assert_int_equal(kvl_limit_passed(&all, 0, 101 * mib, 0), KVL_LIMIT_BYTES);
    assert_int_equal(kvl_limit_passed(&machine, 0, 51 * mib, 19 * mib), KVL_LIMIT_MACHINE);
    assert_int_equal(kvl_limit_passed(&machine, 0, 50 * mib, 19 * mib), KVL_LIMIT_NONE);
    assert_int_equal(kvl_limit_passed(&machine, 0, 51 * mib, 20 * mib), KVL_LIMIT_NONE);
    assert_int_equal(kvl_limit_passed(&machine, 0, 51 * mib, 0), KVL_LIMIT_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_heatmap, sweep_open, sweep_close),
        cmocka_unit_test_setup_teardown(test_nothing, sweep_open, sweep_close),
        cmocka_unit_test_setup_teardown(test_lengths, sweep_open, sweep_close),
        cmocka_unit_test_setup_teardown(test_contexts, sweep_open, sweep_close),
        cmocka_unit_test_setup_teardown(test_line, sweep_open, sweep_close),
        cmocka_unit_test_setup_teardown(test_unknown, sweep_open, sweep_close),
        cmocka_unit_test_setup_teardown(test_snapshots, sweep_open, sweep_close),
        cmocka_unit_test_setup_teardown(test_timed, sweep_open_timed, sweep_close),
        cmocka_unit_test_setup_teardown(test_timed_again, sweep_open_timed, sweep_close),
        cmocka_unit_test_setup_teardown(test_timed_line, sweep_open_timed, sweep_close),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
