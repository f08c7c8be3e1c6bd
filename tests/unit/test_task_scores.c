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
        struct kvl_task_score score = { .official = -1.0, .strict = -1.0, .n_sub = 9 };
        memcpy(gold, row[i].gold, strlen(row[i].gold) + 1);
        struct kvl_question q = { .gold = gold };
        task->score(&q, row[i].prediction, &score);
        assert_int_equal(score.n_sub, 0);
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

/* InfiniteBench's scorer, as for pass keys. */
static void test_number_string(void **state)
{
    (void)state;
    static const struct row rows[] = {
        { "0336666688", " 0336666688.", 1, 1 },
        { "0336666688", "033666668", 0, 0 }, /* one of a run is missing */
        { "0336666688", "03366666688", 0, 0 },
        { "0336666688", "It is 0336666688", 1, 0 },
        { "0336666688", "336666688", 0, 0 },
    };
    check_rows(kvl_task_number_string, rows, sizeof rows / sizeof rows[0]);
}

/* Official: a substring (RULER). */
static void test_needle(void **state)
{
    (void)state;
    static const struct row rows[] = {
        { "1234567", " 1234567.", 1, 1 },
        { "1234567", "91234567 8", 1, 0 }, /* RULER takes it */
        { "1234567", "12345678", 1, 0 },
        { "1234567", "The number is 1234567", 1, 0 },
        { "1234567", "7654321 1234567", 1, 0 },
        { "1234567", "1234 567", 0, 0 },
        { "1234567", "1,234,567", 0, 0 },
        { "1234567", "\n1234567, 7654321", 1, 1 },
        { "0012345", "12345", 0, 0 },
        { "1234567", "", 0, 0 },
    };
    check_rows(kvl_task_needle, rows, sizeof rows / sizeof rows[0]);
}

struct stage_row {
    const char *answer, *gold, *prediction;
    int official, strict, sum, color; /* sum -1: none is asked for */
};

static void check_stages(const struct stage_row *row)
{
    char gold[16], answer[64];
    struct kvl_task_score s;
    memset(&s, 0x5a, sizeof s);
    strcpy(gold, row->gold);
    strcpy(answer, row->answer);
    struct kvl_question q = { .gold = gold, .answer = answer };
    kvl_task_two_stage_retr->score(&q, row->prediction, &s);
    int32_t cot = row->sum >= 0;
    assert_int_equal(s.n_sub, 1 + cot);
    if (cot) assert_string_equal(s.sub[0].name, "sum");
    assert_string_equal(s.sub[cot].name, "color");
    if ((int)s.official != row->official || (int)s.strict != row->strict ||
        (cot && (int)s.sub[0].value != row->sum) || (int)s.sub[cot].value != row->color)
        fail_msg("\"%s\" for \"%s\": official %g strict %g first %g color %g", row->prediction,
                 gold, s.official, s.strict, s.sub[0].value, s.sub[cot].value);
}

/* Official: a substring, whatever the case (OmniKV), with its traps. */
static void test_two_stage_retr(void **state)
{
    (void)state;
#define COT    " 122. The color is red.", "red"
#define DIRECT " red", "red"
    static const struct stage_row rows[] = {
        { COT, " 122. The color is red.", 1, 1, 1, 1 },
        { COT, " 122. The color is RED", 1, 1, 1, 1 },
        { COT, " 121. The color is red.", 1, 0, 0, 1 },
        { COT, " 1122. The color is red.", 1, 0, 0, 1 },
        { COT, " 1220: red", 1, 0, 0, 1 },
        { COT, " 122. One hundred is blue.", 1, 0, 1, 0 }, /* hundRED */
        { COT, " 122. It is required.", 1, 0, 1, 0 },      /* requiRED */
        { COT, " 122. The colored one.", 1, 0, 1, 0 },     /* coloRED */
        { COT, " 122. Ordered: green", 1, 0, 1, 0 },       /* ordeRED */
        { COT, " 122. The color is reddish.", 1, 0, 1, 0 },
        { COT, " 122. The color is red or blue.", 1, 0, 1, 0 },
        { COT, " 122. Not blue but red.", 1, 1, 1, 1 },
        { COT, " red. The sum is 122.", 1, 0, 1, 1 },     /* the color came first */
        { COT, " 122: blue. So 122 is red", 1, 1, 1, 1 }, /* behind the last sum */
        { COT, " 122: red. So it is 122.", 1, 0, 1, 1 },
        { COT, " 122 + 0 = 122.\n\nThe color is \"red\".", 1, 1, 1, 1 },
        { COT, " 122. \u201cred\u201d", 1, 1, 1, 1 },
        { COT, " 122. blue-red", 1, 1, 1, 1 },
        { COT, " 122nd: red", 1, 0, 0, 1 },
        { COT, " 122. red_1", 1, 0, 1, 0 },
        { COT, " 122", 0, 0, 1, 0 },
        { COT, "", 0, 0, 0, 0 },
        { " 7. The color is gold.", "gold", " 7. golden", 1, 0, 1, 0 },
        { " 7. The color is gold.", "gold", " 7. Gold it is.", 1, 1, 1, 1 },
        { " 7. The color is lime.", "lime", " 7. sublime", 1, 0, 1, 0 },
        { " 0. The color is pink.", "pink", " 0. The color is pink.", 1, 1, 1, 1 },
        { DIRECT, " red", 1, 1, -1, 1 },
        { DIRECT, " Red.", 1, 1, -1, 1 },
        { DIRECT, " red, or blue", 1, 1, -1, 1 },
        { DIRECT, " blue or red", 1, 0, -1, 0 },
        { DIRECT, " hundred: red", 1, 1, -1, 1 },
        { DIRECT, " hundred", 1, 0, -1, 0 },
        { DIRECT, " 122: red", 1, 1, -1, 1 },
        { DIRECT, " black", 0, 0, -1, 0 },
        { DIRECT, "", 0, 0, -1, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) check_stages(&rows[i]);
}

/* The chance of the task with options from text. */
static double chance(const struct kvl_task *task, const char *options)
{
    double opts[1024] = { 0 };
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
    assert_true(fabs(chance(kvl_task_needle, "facts=3,digits=2") - 0.01) < 1e-12);
    assert_true(fabs(chance(kvl_task_number_string, "") / 1e-5 - 1.0) < 1e-12);
    assert_true(fabs(chance(kvl_task_two_stage_retr, "") - 0.0435) < 5e-5); /* 1 of 23 */
    assert_true(chance(kvl_task_kv_retrieval, "") == 0x1p-32);
    assert_true(chance(kvl_task_kv_retrieval, "value_digits=4,key_digits=12") == 0x1p-16);
    assert_true(chance(kvl_task_kv_retrieval, "uuid=true,value_digits=4") == 0x1p-128);
}

static void check_task(const char *stem, const struct kvl_task *task)
{
    double opts[1024] = { 0 };
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
        cmocka_unit_test(test_passkey),        cmocka_unit_test(test_kv_retrieval),
        cmocka_unit_test(test_number_string),  cmocka_unit_test(test_needle),
        cmocka_unit_test(test_two_stage_retr), cmocka_unit_test(test_chance),
        cmocka_unit_test(test_descriptions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
