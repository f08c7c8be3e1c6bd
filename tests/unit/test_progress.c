/* Time left: work left at the rates of prefills and of answers, whatever the order of the contexts. */
#include "runner.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static void expect_near(double want, double got, double part)
{
    if (!(fabs(got - want) <= part * fabs(want))) fail_msg("want %g, got %g", want, got);
}

/* ---- rates ----------------------------------------------------------------------------------- */

static void did(struct kvl_progress *p, enum kvl_work_kind kind, double cost, double s)
{
    p->work[kind].done += cost;
    p->work[kind].ns += s * 1e9;
}

/* 10 contexts of 100 units of prefill and 30 of answers, which take 2 s and 9 s; times at the end. */
static void test_rates(void **state)
{
    struct kvl_progress p = { .work = { [KVL_WORK_PREFILL] = { .total = 1000.0 },
                                        [KVL_WORK_ANSWER] = { .total = 300.0 },
                                        [KVL_WORK_TIMED] = { .total = 60.0 } } };
    (void)state;
    assert_true(isnan(kvl_progress_left_s(&p)));
    expect_near(0.0, kvl_progress_part(&p), 0.0);
    did(&p, KVL_WORK_PREFILL, 100.0, 2.0);
    /* Nothing but a prefill is known: all at its rate. */
    expect_near((900.0 + 300.0 + 60.0) * 0.02, kvl_progress_left_s(&p), 1e-12);
    did(&p, KVL_WORK_ANSWER, 30.0, 9.0);
    double all = 11.0 / 130.0;
    expect_near(9 * 11.0 + 60.0 * all, kvl_progress_left_s(&p), 1e-12);
    expect_near(11.0 / (110.0 + 60.0 * all), kvl_progress_part(&p), 1e-12);
    p.n_parallel = 3; /* not of timed cells */
    expect_near(3 * 11.0 + 60.0 * all, kvl_progress_left_s(&p), 1e-12);
    kvl_progress_skip(&p, KVL_WORK_ANSWER, 270.0); /* takes no time, and is no sign of speed */
    expect_near(9 * 2.0 / 3.0 + 60.0 * all, kvl_progress_left_s(&p), 1e-12);
    did(&p, KVL_WORK_PREFILL, 900.0, 18.0);
    did(&p, KVL_WORK_TIMED, 20.0, 7.0);
    expect_near(14.0, kvl_progress_left_s(&p), 1e-12);
    did(&p, KVL_WORK_TIMED, 40.0, 14.0);
    assert_true(kvl_progress_left_s(&p) == 0.0);
    expect_near(1.0, kvl_progress_part(&p), 1e-12);
}

/* A prefill of minutes: what is done of it counts, and gives the rate of the rest. */
static void test_amid(void **state)
{
    struct kvl_progress p = {
        .work = { [KVL_WORK_PREFILL] = { .total = 1000.0 }, [KVL_WORK_ANSWER] = { .total = 300.0 } }
    };
    (void)state;
    kvl_progress_amid(&p, 100.0);
    p.amid = 40.0; /* 40 of 100 units in 2 s */
    p.amid_ns = 2e9;
    expect_near((960.0 + 300.0) * 0.05, kvl_progress_left_s(&p), 1e-12);
    expect_near(40.0 / 1300.0, kvl_progress_part(&p), 1e-12);
    kvl_progress_did(&p, KVL_WORK_PREFILL, 100.0); /* is counted once */
    expect_near(100.0, p.work[KVL_WORK_PREFILL].done, 0.0);
    expect_near(100.0 / 1300.0, kvl_progress_part(&p), 1e-12);
}

/* What the log had is no work of this run. */
static void test_begin(void **state)
{
    struct kvl_progress p = { .work = { [KVL_WORK_ANSWER] = { .total = 10.0, .done = 6.0 } } };
    (void)state;
    kvl_progress_begin(&p, true);
    assert_true(isnan(kvl_progress_left_s(&p)));
    usleep(1000);
    kvl_progress_did(&p, KVL_WORK_ANSWER, 2.0);
    assert_true(p.work[KVL_WORK_ANSWER].ns >= 1e6);
    expect_near(p.work[KVL_WORK_ANSWER].ns * 1e-9, kvl_progress_left_s(&p), 1e-12);
    uint64_t now = kvl_now_ns();
    kvl_progress_mark(&p); /* the time until here was nobody's */
    assert_true(p.t_mark >= now);
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

/* ---- a sweep over lengths -------------------------------------------------------------------- */

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

static double answers_cost(const struct kvl_work *w, const struct kvl_group *g)
{
    double cost = 0.0;
    for (size_t i = g->first; i < g->first + g->n; i++)
        cost += kvl_cell_context_cost(w, &w->cell[i]);
    return cost;
}

/* Runs the groups forwards or backwards, a context at a time; the worst ratio of time left to the truth
 * while at least a tenth of the time is left. */
static void heatmap(const struct kvl_work *w, struct kvl_progress p, bool backwards, double *least,
                    double *most)
{
    double left = 0.0, all;
    for (size_t i = 0; i < w->n_groups; i++)
        left += w->sweep->contexts *
                (seconds_of(&w->group[i])->prefill + seconds_of(&w->group[i])->answers);
    all = left;
    *least = *most = 1.0;
    for (size_t i = 0; i < w->n_groups; i++) {
        const struct kvl_group *g = &w->group[backwards ? w->n_groups - 1 - i : i];
        for (int32_t c = 0; c < w->sweep->contexts; c++) {
            did(&p, KVL_WORK_PREFILL, kvl_group_context_cost(w, g), seconds_of(g)->prefill);
            did(&p, KVL_WORK_ANSWER, answers_cost(w, g), seconds_of(g)->answers);
            left -= seconds_of(g)->prefill + seconds_of(g)->answers;
            if (left < 0.1 * all) return;
            *least = fmin(*least, kvl_progress_left_s(&p) / left);
            *most = fmax(*most, kvl_progress_left_s(&p) / left);
        }
    }
}

static void test_heatmap(void **state)
{
    struct kvl_registry *registry;
    struct kvl_model *model;
    struct kvl_sweep s = { 0 };
    struct kvl_work *work;
    struct kvl_state done;
    struct kvl_err err = { 0 };
    const struct kvl_where where = { "here", 1, NULL };
    double least, most;
    (void)state;
    if (kvl_model_open(KVL_SOURCE_DIR "/datasets/model/kvlab-small.gguf", &model, &err) != KVL_OK)
        skip();
    assert_int_equal(kvl_registry_create(&registry, &err), KVL_OK);
    int rc = kvl_sweep_load(KVL_SOURCE_DIR "/harness/sweeps/needle_heatmap.yaml", NULL, registry,
                            NULL, 0, &s, &err);
    if (rc == KVL_OK) rc = kvl_work_create(&s, model, &where, false, &work, &err);
    if (rc == KVL_OK) rc = kvl_state_create(work, false, false, &done, &err);
    if (rc != KVL_OK) fail_msg("%s", err.msg);
    struct kvl_runner r = { .work = work, .state = &done };
    kvl_runner_measure(&r);
    for (int backwards = 0; backwards < 2; backwards++) {
        heatmap(work, r.progress, backwards, &least, &most);
        print_message("time left is %.2f to %.2f of the truth\n", least, most);
        assert_true(least > 0.75 && most < 1.33);
    }
    kvl_state_free(&done);
    kvl_work_destroy(work);
    kvl_sweep_free(&s);
    kvl_registry_destroy(registry);
    kvl_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates), cmocka_unit_test(test_amid),    cmocka_unit_test(test_begin),
        cmocka_unit_test(test_text),  cmocka_unit_test(test_heatmap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
