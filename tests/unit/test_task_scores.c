/* Scorers of the retrieval tasks against vectors computed with the published Python scorers, and
 * what every task says about itself. */
#include "kvl/task.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define KVL_TASK_X(name) extern const struct kvl_task *const kvl_task_##name;
#include "kvl_tasks.def"
#undef KVL_TASK_X

struct row {
    const char *gold, *prediction;
    int official, strict;
};

static void check_rows(const struct kvl_task *task, const struct row *row, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char gold[64];
        struct kvl_task_score score = { .official = -1.0, .strict = -1.0 };
        memcpy(gold, row[i].gold, strlen(row[i].gold) + 1);
        struct kvl_question q = { .gold = gold };
        task->score(&q, row[i].prediction, &score);
        if ((int)score.official != row[i].official || (int)score.strict != row[i].strict)
            fail_msg("%s: gold \"%s\", prediction \"%s\": official %g strict %g, want %d and %d",
                     task->name, gold, row[i].prediction, score.official, score.strict,
                     row[i].official, row[i].strict);
    }
}

/* Official: the first run of digits, equal as text (InfiniteBench). */
static void test_passkey(void **state)
{
    (void)state;
    static const struct row rows[] = {
        { "71432", " 71432.", 1, 1 },
        { "71432", "99999 then 71432", 0, 0 },
        { "71432", "71,432", 0, 0 },
        { "71432", "714321", 0, 0 },
        { "0123", "key: 0123", 1, 0 },
        { "0123", "123", 0, 0 },
        { "123", "0123", 0, 0 },
        { "71432", "71432", 1, 1 },
        { "71432", "\n\t 71432\nRemember", 1, 1 },
        { "71432", "71432abc", 1, 1 }, /* only a digit continues a number */
        { "71432", "7143", 0, 0 },
        { "71432", "71432 714321", 1, 1 },
        { "71432", "\"71432\"", 1, 0 },
        { "71432", "-71432", 1, 0 },
        { "71432", "", 0, 0 },
        { "71432", "no digits", 0, 0 },
        { "71432", "\u0661 71432", 1, 0 }, /* digits of another script are none */
    };
    check_rows(kvl_task_passkey, rows, sizeof rows / sizeof rows[0]);
}

/* Official: one of the words after \n : " ' . , ? ! { } became spaces (InfiniteBench). */
static void test_kv_retrieval(void **state)
{
    (void)state;
#define UUID "9d75b4ba-2a87-5b4b-6468-e887df034e13"
    static const struct row rows[] = {
        { UUID, "\"" UUID "\"", 1, 0 },
        { UUID, "{" UUID "}", 1, 0 },
        { UUID, UUID "\n\nKey:", 1, 1 },
        { UUID, UUID "\"", 1, 1 },
        { UUID, UUID "-x", 0, 0 },
        { UUID, UUID ";", 0, 1 }, /* the published scorer keeps the semicolon in the word */
        { UUID, "9D75B4BA-2A87-5B4B-6468-E887DF034E13", 0, 0 },
        { UUID, "9d75b4ba-2a87-5b4b-6468-e887df034e1", 0, 0 },
        { UUID, UUID "3", 0, 0 },
        { UUID, UUID "F", 0, 0 },
        { UUID, "The value is: '" UUID "'!", 1, 0 },
        { UUID, "key:" UUID ",next", 1, 0 },
        { "3f327c16", " 3f327c16\".", 1, 1 },
        { "3f327c16", "x3f327c16", 0, 0 },
        { "3f327c16", "(3f327c16)", 0, 0 },
        { "3f327c16", "3f327c16x", 0, 1 }, /* x cannot continue the value */
        { "3f327c16", "00000000 3f327c16", 1, 0 },
        { "3f327c16", "a\u00a03f327c16\u3000b", 1, 0 }, /* str.split() knows these spaces */
        { "3f327c16",
          "a\x1c"
          "3f327c16",
          1, 0 },
        { "3f327c16", "a\u200b3f327c16", 0, 0 }, /* and not this one */
        { "3f327c16", "", 0, 0 },
        { "3f327c16", ":\"'.,?!{}\n", 0, 0 },
    };
    check_rows(kvl_task_kv_retrieval, rows, sizeof rows / sizeof rows[0]);
}

/* The chance of the task with options from text. */
static double chance(const struct kvl_task *task, const char *options)
{
    double opts[64] = { 0 };
    struct kvl_err err = { 0 };
    assert_true(task->opts_size <= sizeof opts);
    assert_int_equal(kvl_opt_defaults(task->opts, opts, &err), KVL_OK);
    assert_int_equal(kvl_opt_parse(task->opts, opts, options, &err), KVL_OK);
    return task->chance(opts);
}

static void test_chance(void **state)
{
    (void)state;
    assert_true(fabs(chance(kvl_task_passkey, "") / 1e-5 - 1.0) < 1e-12);
    assert_true(fabs(chance(kvl_task_passkey, "digits=1,keys=9") - 0.1) < 1e-12);
    assert_true(chance(kvl_task_kv_retrieval, "") == 0x1p-32);
    assert_true(chance(kvl_task_kv_retrieval, "value_digits=4,key_digits=12") == 0x1p-16);
    assert_true(chance(kvl_task_kv_retrieval, "uuid=true,value_digits=4") == 0x1p-128);
}

static void check_task(const char *stem, const struct kvl_task *task)
{
    double opts[64] = { 0 };
    struct kvl_err err = { 0 };
    assert_string_equal(task->name, stem);
    assert_int_equal(task->abi, KVL_TASK_ABI);
    assert_int_equal(task->size, sizeof *task);
    assert_true(task->title[0] && task->paper[0] && task->help[0] && task->version > 0);
    assert_true(task->generate && !task->score == !task->chance);
    assert_true(task->opts_size <= sizeof opts);
    assert_int_equal(kvl_opt_defaults(task->opts, opts, &err), KVL_OK);
    for (const struct kvl_opt *o = task->opts; o && o->name; o++)
        assert_true(o->help && o->help[0] && o->off < task->opts_size);
    double p = task->chance ? task->chance(opts) : 0.0;
    assert_true(p >= 0.0 && p < 1.0);
}

static void test_descriptions(void **state)
{
    (void)state;
#define KVL_TASK_X(name) check_task(#name, kvl_task_##name);
#include "kvl_tasks.def"
#undef KVL_TASK_X
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passkey),
        cmocka_unit_test(test_kv_retrieval),
        cmocka_unit_test(test_chance),
        cmocka_unit_test(test_descriptions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
