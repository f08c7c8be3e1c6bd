/* The file of tables beside a model: what is read, what is refused, and who takes filter layers and gates
 * from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "kvl/model.h"
#include "kvl/model_tables.h"

extern const struct kvl_policy *const kvl_policy_omnikv, *const kvl_policy_omnikv_prefill,
                                                             *const kvl_policy_duo_attention;

#define HASH "0123456789abcdef0123456789abcdef"
#define HEAD "kvlab-tables 1\nmodel " HASH "\n"

/* Layer 1 serves layer 2, and layer 3 layer 4; with two dense layers 0 and 3 do best. */
#define ROWS                                                                                       \
    "dense 3  # a remark\n"                                                                        \
    "kept 0 1 .9 .1 .1 .1\n\n# nothing\n"                                                          \
    "kept 1 1 .8 .1 .1\n"                                                                          \
    "kept 2 1 .1 .1\n"                                                                             \
    "kept 3 1 .7\n"                                                                                \
    "kept 4 1"
#define GATES "\ngates 0 .1 .2\ngates 1 .3 .4\ngates 2 .5 .6\ngates 3 .7 .8\ngates 4 .9 1\n"

static const struct kvl_shape five = {
    .n_layers = 5, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .n_embd = 64
};

static int parse(const char *text, struct kvl_tables **out, struct kvl_err *err)
{
    *err = (struct kvl_err){ 0 };
    *out = NULL;
    return kvl_tables_parse(text, strlen(text), HASH, &five, out, err);
}

static void test_reading(void **state)
{
    (void)state;
    struct kvl_tables *t;
    struct kvl_err err;
    assert_int_equal(parse(HEAD ROWS GATES, &t, &err), KVL_OK);
    assert_int_equal(t->dense, 3);
    assert_true(t->kept[0 * 5 + 1] > 0.89 && t->kept[0 * 5 + 1] < 0.91);
    assert_true(t->kept[3 * 5 + 4] > 0.69 && t->kept[3 * 5 + 4] < 0.71);
    assert_true(t->kept[3 * 5 + 1] <= 0.0);
    assert_true(t->gate[3 * 2 + 1] > 0.79f && t->gate[3 * 2 + 1] < 0.81f);
    char sum[KVL_TABLES_SUM];
    kvl_table_sum(HEAD ROWS GATES, strlen(HEAD ROWS GATES), sum);
    assert_string_equal(t->sum, sum);
    assert_int_equal(strlen(sum), 16);
    kvl_tables_free(t);
    assert_int_equal(parse(HEAD ROWS, &t, &err), KVL_OK); /* no gates, no end of the last line */
    assert_null(t->gate);
    kvl_tables_free(t);
}

static void test_paths(void **state)
{
    (void)state;
    static const char *const pairs[][2] = { { "a/b.gguf", "a/b.tables" },
                                            { "a.gguf/b", "a.gguf/b.tables" },
                                            { ".gguf", ".gguf.tables" } };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        char *path = kvl_tables_path(pairs[i][0]);
        assert_string_equal(path, pairs[i][1]);
        kvl_free(path);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
        int rc;
    } bad[] = {
        { "", "want kvlab-tables 1", KVL_EINVAL },
        { "0.1 0.2\n", "line 1: \"0.1\", want kvlab-tables 1", KVL_EINVAL },
        { "kvlab-tables 2\nmodel " HASH "\n" ROWS, "version 2, want 1", KVL_EMODEL },
        { "kvlab-tables 1\nmodel 77\n" ROWS, "tables of model 77, not of this one", KVL_EMODEL },
        { HEAD, "0 lines of kept", KVL_EINVAL },
        { HEAD "dense 5\n", "line 3: dense \"5\", want a whole number from 1 to 4", KVL_EINVAL },
        { HEAD "dense 1 2\n", "line 3: \"2\" is too much", KVL_EINVAL },
        { HEAD "dense 1\ndense 1\n", "line 4: \"dense\", want dense (once)", KVL_EINVAL },
        { HEAD "kept 0 1 1 1 1\n", "line 3: share \"\"", KVL_EINVAL },
        { HEAD "kept 0 1 1 1 1 x\n", "line 3: share \"x\"", KVL_EINVAL },
        { HEAD "kept 0 1 1 1 1 -1\n", "line 3: share \"-1\"", KVL_EINVAL },
        { HEAD "kept 0 1 1 1 1 nan\n", "line 3: share \"nan\"", KVL_EINVAL },
        { HEAD "kept 1 1 1 1 1\n", "line 3: layer \"1\", want a whole number from 0 to 0",
          KVL_EINVAL },
        { HEAD ROWS "\nkept 5 1\n", "line more than the model's 5 layers", KVL_EINVAL },
        { HEAD ROWS "\ngates 0 .1 .2\n", "1 of gates", KVL_EINVAL },
        { HEAD ROWS "\ngates 0 .1\n", "gate \"\"", KVL_EINVAL },
        { HEAD ROWS "\nwhat 0\n", "line 11: \"what\"", KVL_EINVAL },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvl_tables *t;
        struct kvl_err err;
        int rc = parse(bad[i].text, &t, &err);
        if (rc != bad[i].rc || !strstr(err.msg, bad[i].says) || t)
            fail_msg("%zu: %d \"%s\", want %d \"%s\"", i, rc, err.msg, bad[i].rc, bad[i].says);
    }
    struct kvl_tables *t = NULL;
    struct kvl_err err = { 0 };
    static const char nul[] = HEAD "dense 1\n\0kept";
    assert_int_equal(kvl_tables_parse(nul, sizeof nul - 1, HASH, &five, &t, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "line 4: not a text"));
}

/* ---- who takes what ----------------------------------------------------------------------------- */

/* The options that a plan ends with have `want` in them; NULL: it is refused. */
static void expect(const struct kvl_policy *policy, const struct kvl_shape *shape,
                   const char *options, const char *want)
{
    struct kvl_planned *p = NULL;
    struct kvl_err err = { 0 };
    int rc = kvl_planned_create(policy, shape, options, 64, 1000, &p, &err);
    if (rc != (want ? KVL_OK : KVL_EINVAL)) fail_msg("%s: %d %s", options, rc, err.msg);
    if (want && !strstr(kvl_planned_options(p), want))
        fail_msg("%s: %s, want %s", options, kvl_planned_options(p), want);
    kvl_planned_destroy(p);
}

static void test_takers(void **state)
{
    (void)state;
    struct kvl_tables *t;
    struct kvl_err err;
    char text[64];
    assert_int_equal(parse(HEAD ROWS GATES, &t, &err), KVL_OK);
    struct kvl_shape with = five;
    with.tables = t;
    const struct kvl_policy *both[] = { kvl_policy_omnikv, kvl_policy_omnikv_prefill };
    for (int i = 0; i < 2; i++) {
        expect(both[i], &five, "", "filter_layers=measured,dense_layers=2,");
        expect(both[i], &with, "", "filter_layers=1+3,dense_layers=3,");
        expect(both[i], &with, "filter_layers=auto,dense_layers=2", "filter_layers=0+3,");
        expect(both[i], &with, "filter_layers=measured", "filter_layers=measured,dense_layers=2,");
        expect(both[i], &with, "filter_layers=2", "filter_layers=2,");
        snprintf(text, sizeof text, "table_sum=%s", t->sum);
        expect(both[i], &with, "", text);
        expect(both[i], &with, text, text);
        expect(both[i], &with, "filter_layers=2", "table_sum=");
        expect(both[i], &with, "table_sum=00", NULL);
        expect(both[i], &five, text, NULL); /* they are gone */
        expect(both[i], &with, "dense_layers=5", NULL);
    }
    expect(kvl_policy_duo_attention, &five, "", "gates=measure,");
    expect(kvl_policy_duo_attention, &with, "", "gates=table,");
    expect(kvl_policy_duo_attention, &with, "", text);
    expect(kvl_policy_duo_attention, &with, "gates=measure", "gates=measure,");
    expect(kvl_policy_duo_attention, &with, "table_sum=00", NULL);
    expect(kvl_policy_duo_attention, &five, "gates=table", NULL);
    kvl_free(t->gate);
    t->gate = NULL;
    expect(kvl_policy_duo_attention, &with, "", "gates=measure,");
    kvl_tables_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reading),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_takers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
