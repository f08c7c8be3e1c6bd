/* Records of cells: what samples add up to, on examples small enough to do by hand. */
#include "record.h"
#include "registry.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_CONTEXTS = 3, N_QUESTIONS = 2, N_SAMPLES = 6 };

struct record_test {
    struct kvl_registry *registry;
    struct kvl_point task, policy;
    struct kvl_planned *planned;
    struct kvl_sweep sweep;
    struct kvl_cell cell;
    struct kvl_outcome outcome[N_SAMPLES];
    struct kvl_quality_means quality[N_CONTEXTS];
    struct kvl_err err;
};

static void record_open(struct record_test *t)
{
    static const struct kvl_shape shape = { .n_layers = 2,
                                            .n_heads = 2,
                                            .n_kv_heads = 1,
                                            .head_dim = 8,
                                            .n_embd = 16,
                                            .n_vocab = 32,
                                            .group = 2 };
    static char options[] = "";
    *t = (struct record_test){ .sweep = { .contexts = N_CONTEXTS, .questions = N_QUESTIONS } };
    assert_int_equal(kvl_registry_create(&t->registry, &t->err), KVL_OK);
    assert_int_equal(kvl_registry_find_policy(t->registry, "full", &t->policy.policy, &t->err),
                     KVL_OK);
    assert_int_equal(kvl_registry_find_task(t->registry, "kv_retrieval", &t->task.task, &t->err),
                     KVL_OK);
    t->task.options = t->policy.options = options;
    t->task.opts = kvl_alloc(1, t->task.task->opts_size);
    assert_int_equal(kvl_opt_defaults(t->task.task->opts, t->task.opts, &t->err), KVL_OK);
    assert_int_equal(kvl_planned_create(t->policy.policy, &shape, "", 0, 100, &t->planned, &t->err),
                     KVL_OK);
    t->cell = (struct kvl_cell){ .key = options,
                                 .device = "cpu",
                                 .id = "0123456789abcdef",
                                 .task = &t->task,
                                 .policy = &t->policy,
                                 .length = 100,
                                 .budget = "-",
                                 .planned = t->planned };
    for (int i = 0; i < N_SAMPLES; i++)
        t->outcome[i] = (struct kvl_outcome){
            .have = true, .recall = 1.0, .prefill_ns = 1e9, .context_tok = 100
        };
}

static void record_close(struct record_test *t)
{
    kvl_planned_destroy(t->planned);
    kvl_free(t->task.opts);
    kvl_registry_destroy(t->registry);
}

static json_t *record_make(struct record_test *t)
{
    json_t *r = kvl_record_cell("run", &t->sweep, &t->cell, t->outcome, t->quality);
    assert_non_null(r);
    return r;
}

static double record_number(const json_t *r, const char *a, const char *b)
{
    const json_t *v = json_object_get(json_object_get(r, a), b);
    if (!json_is_number(v)) fail_msg("%s.%s is no number", a, b);
    return json_number_value(v);
}

/* One sample of each kind, and one that failed. */
static void test_evidence(void **state)
{
    static const struct {
        double official, recall;
    } rows[5] = { { 1, 1 }, { 0, 1 }, { 1, 0.99 }, { 0.4, 0 }, { 1, (double)NAN } };
    static const char *const names[5] = { "attended_right", "attended_wrong", "missed_right",
                                          "missed_wrong", "unknown" };
    struct record_test t;
    (void)state;
    record_open(&t);
    for (int i = 0; i < 5; i++) {
        t.outcome[i].official = rows[i].official;
        t.outcome[i].recall = rows[i].recall;
    }
    t.outcome[5].failed = true;
    json_t *r = record_make(&t);
    for (int i = 0; i < 5; i++) assert_int_equal((int)record_number(r, "evidence", names[i]), 1);
    assert_int_equal(json_object_size(json_object_get(r, "evidence")), 5);
    json_decref(r);
    record_close(&t);
}

/* The stages of those that have a score; there and back through a sample's record. */
static void test_stages(void **state)
{
    struct record_test t;
    (void)state;
    record_open(&t);
    json_t *r = record_make(&t);
    assert_true(json_is_null(json_object_get(r, "sub")));
    json_decref(r);
    for (int i = 0; i < N_SAMPLES; i++) {
        t.outcome[i].n_sub = 2;
        t.outcome[i].sub[0] = (struct kvl_outcome_sub){ "sum", i < 5 };
        t.outcome[i].sub[1] = (struct kvl_outcome_sub){ "color", i < 2 };
    }
    t.outcome[0] = (struct kvl_outcome){ .have = true, .failed = true };
    r = record_make(&t);
    const json_t *sum = json_object_get(json_object_get(r, "sub"), "sum");
    const json_t *color = json_object_get(json_object_get(r, "sub"), "color");
    assert_int_equal((int)json_number_value(json_object_get(sum, "k")), 4);
    assert_int_equal((int)json_number_value(json_object_get(color, "k")), 1);
    assert_true(fabs(json_number_value(json_object_get(color, "p")) - 0.2) < 1e-9);
    json_decref(r);
    json_t *sample = json_pack("{s:{s:f, s:n}, s:f}", "sub", "sum", 1.0, "color", "official", 0.5);
    struct kvl_outcome o = { 0 };
    kvl_outcome_of(sample, &o);
    assert_int_equal(o.n_sub, 2);
    assert_string_equal(o.sub[0].name, "sum");
    assert_true(o.sub[0].value > 0.99 && isnan(o.sub[1].value) && isnan(o.strict));
    json_decref(sample);
    record_close(&t);
}

/* 100 tokens per context in 1 s and 3 s; one came from a snapshot. */
static void test_prefill(void **state)
{
    struct record_test t;
    (void)state;
    record_open(&t);
    for (int i = 0; i < N_SAMPLES; i++) t.outcome[i].context_tok = 100.0;
    for (int i = 2; i < 4; i++) t.outcome[i].prefill_ns = 3e9;
    for (int i = 4; i < 6; i++) t.outcome[i].prefill_ns = (double)NAN;
    json_t *r = record_make(&t);
    assert_int_equal((int)json_number_value(json_object_get(r, "prefill_tok_per_s")), 50);
    json_decref(r);
    for (int i = 0; i < N_SAMPLES; i++) t.outcome[i].prefill_ns = (double)NAN;
    r = record_make(&t);
    assert_true(json_is_null(json_object_get(r, "prefill_tok_per_s")));
    json_decref(r);
    record_close(&t);
}

/* Two steps, two layers, two heads; layer 1 is dense in step 1.  Selecting: mass 0.1 .. 0.6. */
static void test_quality_means(void **state)
{
    struct kvl_quality want = { .questions = 1, .steps = 2, .top = { { 4, 9 }, 2 } };
    int32_t pos[] = { 7, 8 };
    uint8_t dense[] = { 0, 0, 0, 1 }, same[] = { 1, 0 };
    float recall[] = { 1, 1, 1, 0, 1, 1, 1, 1, 0.25f, 0.5f, 0.25f, 0.5f, 0.25f, 0.25f, 1, 0 };
    float mass[] = { 0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f, 1, 1 };
    float error[] = { 0, 0, 0, 0, 0, INFINITY, 0.5f, 0.5f };
    double kl[] = { 0.123456789, 0.1 };
    struct kvl_quality_result result = { .n_top = 2,
                                         .n_layers = 2,
                                         .n_heads = 2,
                                         .max_steps = 2,
                                         .n_steps = 2,
                                         .pos = pos,
                                         .dense = dense,
                                         .recall = recall,
                                         .mass = mass,
                                         .error = error,
                                         .kl = kl,
                                         .same = same };
    struct kvl_quality_means m;
    struct record_test t;
    (void)state;
    record_open(&t);
    json_t *r = kvl_record_quality("run", &t.cell, 1, 0, &want, &result, NULL);
    kvl_quality_of(r, &m);
    assert_true(m.have && !m.failed);
    assert_true(fabs(m.select.mass - 0.35) < 1e-6 && fabs(m.dense.mass - 1) < 1e-9);
    assert_true(fabs(m.select.recall[0] - 5.0 / 6) < 1e-9);
    assert_true(fabs(m.select.recall[1] - 2.0 / 6) < 1e-9);
    assert_true(fabs(m.dense.recall[1] - 0.5) < 1e-9);
    assert_true(isnan(m.select.recall[2]));
    assert_true(fabs(m.select.error) < 1e-9 && fabs(m.dense.error - 0.5) < 1e-9);
    assert_true(fabs(m.kl - (0.1235 + 0.1) / 2) < 1e-9 && fabs(m.same - 0.5) < 1e-9);
    assert_true(kvl_quality_fits(r, &want));
    want.top.v[1] = 10;
    assert_false(kvl_quality_fits(r, &want));
    want.top.v[1] = 9;
    want.steps = 3;
    assert_false(kvl_quality_fits(r, &want));
    assert_false(kvl_quality_fits(NULL, &want));
    json_decref(r);
    r = kvl_record_quality("run", &t.cell, 1, 0, &want, NULL, "it broke");
    kvl_quality_of(r, &m);
    assert_true(m.have && m.failed && isnan(m.select.mass));
    json_decref(r);
    record_close(&t);
}

/* Three contexts, one of which failed; nothing dense. */
static void test_quality_cell(void **state)
{
    struct record_test t;
    const json_t *q;
    (void)state;
    record_open(&t);
    t.sweep.quality = (struct kvl_quality){ .questions = 1, .steps = 2, .top = { { 4, 9 }, 2 } };
    for (int i = 0; i < N_CONTEXTS; i++) {
        struct kvl_quality_means *m = &t.quality[i];
        *m = (struct kvl_quality_means){ .have = true, .failed = i == 2, .kl = 0.5 * i, .same = i };
        m->select.recall[0] = 1;
        m->select.recall[1] = 0.25 + 0.25 * i;
        m->select.mass = 0.5 + 0.25 * i;
        m->select.error = 0.125;
        m->dense.mass = m->dense.error = (double)NAN;
    }
    json_t *r = record_make(&t);
    q = json_object_get(r, "quality");
    assert_int_equal(json_integer_value(json_object_get(q, "n")), 2);
    assert_int_equal(json_integer_value(json_object_get(q, "n_errors")), 1);
    assert_true(json_is_null(json_object_get(q, "dense")));
    assert_true(fabs(record_number(q, "kl_nats", "mean") - 0.25) < 1e-9);
    assert_true(fabs(record_number(q, "top1", "mean") - 0.5) < 1e-9);
    const json_t *select = json_object_get(q, "select");
    assert_true(fabs(record_number(select, "mass", "mean") - 0.625) < 1e-9);
    assert_true(fabs(record_number(select, "out_error", "mean") - 0.125) < 1e-9);
    const json_t *recall = json_object_get(select, "recall");
    assert_int_equal(json_array_size(recall), 2);
    assert_true(
        fabs(json_number_value(json_object_get(json_array_get(recall, 1), "mean")) - 0.375) < 1e-9);
    assert_true(kvl_quality_fits(q, &t.sweep.quality));
    json_decref(r);
    record_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_evidence),     cmocka_unit_test(test_stages),
        cmocka_unit_test(test_prefill),      cmocka_unit_test(test_quality_means),
        cmocka_unit_test(test_quality_cell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
