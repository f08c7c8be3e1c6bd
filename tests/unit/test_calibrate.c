/* A sweep in little: what is run for its times, by a clock that the test turns. */
#include "calibrate.h"
#include "forecast.h"
#include "machine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* The linker sends every reading of the clock here: each is a tick later.  After some readings (0: never) it jumps
 * by an hour.  A thread of the little sweep reads it too. */
static uint64_t clock_ns, clock_tick_ns, clock_n, clock_jump;

uint64_t __wrap_kvl_now_ns(void);
uint64_t __wrap_kvl_now_ns(void)
{
    uint64_t n = __atomic_add_fetch(&clock_n, 1, __ATOMIC_RELAXED);
    uint64_t step = clock_tick_ns + (n == clock_jump ? 3600000000000u : 0);
    return __atomic_add_fetch(&clock_ns, step, __ATOMIC_RELAXED);
}

static const char sweep_text[] = "name: small\n"
                                 "model: " KVL_SOURCE_DIR "/datasets/model/kvlab-test.gguf\n"
                                 "tasks: [{task: passkey, keys: 2}, kv_retrieval]\n"
                                 "lengths: [320, 256]\n"
                                 "protocols: [question_after_compress]\n"
                                 "contexts: 3\n"
                                 "questions: 2\n"
                                 "policies: [full, quest, snapkv]\n"
                                 "budgets: [32, 64]\n"
                                 "exclude: [{policy: quest, budget: 32}]\n";

struct sweep {
    struct kvl_registry *registry;
    struct kvl_model *model;
    struct kvl_machine machine;
    struct kvl_sweep s;
    struct kvl_work *work;
    struct kvl_state state;
    struct kvl_run_info info;
    volatile int stop;
    struct kvl_runner r;
};

/* Without it the tests are skipped. */
static const char file_of_model[] = KVL_SOURCE_DIR "/datasets/model/kvlab-test.gguf";

static void sweep_write(char *path, size_t size)
{
    snprintf(path, size, "/tmp/kvl-calibrate-XXXXXX");
    int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    assert_non_null(f);
    fputs(sweep_text, f);
    assert_int_equal(fclose(f), 0);
}

static int sweep_open(void **state)
{
    struct kvl_err err = { 0 };
    const struct kvl_where where = { "here", 1, NULL };
    struct sweep *x;
    char path[64];
    *state = NULL;
    clock_tick_ns = 1000;
    clock_n = clock_jump = 0;
    if (access(file_of_model, F_OK) != 0) return 0;
    x = calloc(1, sizeof *x);
    assert_non_null(x);
    if (kvl_model_open(file_of_model, &x->model, &err) != KVL_OK) fail_msg("%s", err.msg);
    sweep_write(path, sizeof path);
    int rc = kvl_registry_create(&x->registry, &err);
    if (rc == KVL_OK) rc = kvl_sweep_load(path, NULL, x->registry, NULL, 0, &x->s, &err);
    if (rc == KVL_OK) rc = kvl_work_create(&x->s, x->model, &where, true, &x->work, &err);
    if (rc == KVL_OK) rc = kvl_state_create(x->work, false, false, &x->state, &err);
    unlink(path);
    if (rc != KVL_OK) fail_msg("%s", err.msg);
    x->info = (struct kvl_run_info){ .work = x->work, .machine = &x->machine, .threads = 1 };
    x->r = (struct kvl_runner){ .work = x->work,
                                .state = &x->state,
                                .info = &x->info,
                                .stop = &x->stop,
                                .allow_overlong = true,
                                .jobs = { .n = 1, .threads = 1 } };
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

/* Rates of a task at a length; answers: of policies, else of its prefill. */
static size_t n_rates(const struct kvl_rates *t, const struct kvl_point *task, int32_t length,
                      bool answers)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++)
        n += t->rate[i].task == task && t->rate[i].length == length && !t->rate[i].timed &&
             !t->rate[i].policy == !answers && t->rate[i].ns > 0.0;
    return n;
}

static int64_t n_left(struct sweep *x)
{
    struct kvl_forecast f = { 0 };
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_forecast(&x->r, &f, &err), KVL_OK);
    int64_t n = f.n_answers;
    kvl_forecast_free(&f);
    return n;
}

/* One context of each task at the shortest length, of the first one at the longest as well; the sweep
 * itself stays where it was. */
static void test_all(void **state)
{
    struct sweep *x = *state;
    struct kvl_rates rates = { 0 };
    struct kvl_err err = { 0 };
    bool whole = false;
    if (!x) skip();
    const struct kvl_point *task = x->s.tasks.v;
    assert_false(kvl_rates_know(&rates, &x->r));
    if (kvl_calibrate(&x->r, &rates, &whole, &err) != KVL_OK) fail_msg("%s", err.msg);
    assert_true(whole);
    for (size_t i = 0; i < 2; i++) {
        bool longer = i == 0;
        assert_int_equal(n_rates(&rates, &task[i], 256, false), 1);
        assert_int_equal(n_rates(&rates, &task[i], 256, true), 4); /* full, quest, twice snapkv */
        assert_int_equal(n_rates(&rates, &task[i], 320, false), longer);
        assert_int_equal(n_rates(&rates, &task[i], 320, true), longer ? 4 : 0);
    }
    assert_int_equal(rates.n, 15);
    for (size_t i = 0; i < rates.n;
         i++) /* four cells of two questions: a batch has room for them */
        assert_true(rates.rate[i].n == (rates.rate[i].policy ? 2.0 : 1.0));
    assert_true(kvl_rates_know(&rates, &x->r));
    assert_true(kvl_rates_left(&rates, &x->r).ns > 0.0);
    assert_int_equal(n_left(x), 2 * 2 * 4 * 3 * 2);
    kvl_rates_free(&rates);
}

/* When the time is over it ends, amid its first context too; what there is then is no error, but told. */
static void test_slow(void **state)
{
    struct sweep *x = *state;
    struct kvl_rates rates = { 0 };
    struct kvl_err err = { 0 };
    bool whole = true;
    if (!x) skip();
    clock_tick_ns = (uint64_t)KVL_CALIBRATE_S * 1000000000u;
    if (kvl_calibrate(&x->r, &rates, &whole, &err) != KVL_OK) fail_msg("%s", err.msg);
    assert_false(whole);
    assert_int_equal(rates.n, 0);
    kvl_rates_free(&rates);
}

/* The time is over amid the first context, where nothing but the thread looks at the clock for it. */
static void test_amid(void **state)
{
    struct sweep *x = *state;
    struct kvl_rates rates = { 0 };
    struct kvl_err err = { 0 };
    bool whole = true;
    if (!x) skip();
    clock_jump = 3; /* the readings before: when it began, and the first look */
    if (kvl_calibrate(&x->r, &rates, &whole, &err) != KVL_OK) fail_msg("%s", err.msg);
    assert_false(whole);
    assert_true(rates.n < 15);
    kvl_rates_free(&rates);
}

static void test_stopped(void **state)
{
    struct sweep *x = *state;
    struct kvl_rates rates = { 0 };
    struct kvl_err err = { 0 };
    bool whole = false;
    if (!x) skip();
    x->stop = 2;
    assert_int_equal(kvl_calibrate(&x->r, &rates, &whole, &err), KVL_ESTOP);
    assert_int_equal(rates.n, 0);
    assert_false(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all, sweep_open, sweep_close),
        cmocka_unit_test_setup_teardown(test_slow, sweep_open, sweep_close),
        cmocka_unit_test_setup_teardown(test_amid, sweep_open, sweep_close),
        cmocka_unit_test_setup_teardown(test_stopped, sweep_open, sweep_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
