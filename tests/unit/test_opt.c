/* Option tables: what is taken, what is refused and what the message says. */
#include "kvl/opt.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct sample {
    int32_t page, budget, free;
    double ratio, any;
    bool on;
    int32_t reduce;
    char path[KVL_OPT_STR_SIZE];
};

static const char *const reduce_names[] = { "mean", "max", "sum", NULL };

#define ROW(field, kind, text, ...)                                                                \
    {                                                                                              \
        .name = #field, .type = (kind), .off = offsetof(struct sample, field), .def = (text),      \
        __VA_ARGS__                                                                                \
    }

static const struct kvl_opt table[] = {
    ROW(page, KVL_OPT_INT, "16", .min = 1, .max = 4096),
    ROW(budget, KVL_OPT_INT, "auto", .min = 1, .max = 100),
    ROW(free, KVL_OPT_INT, "-7", .help = "no limits"),
    ROW(ratio, KVL_OPT_FLOAT, "0.1", .min = 0, .max = 1),
    ROW(any, KVL_OPT_FLOAT, "2", .help = "no limits"),
    ROW(on, KVL_OPT_BOOL, "false", .help = "a switch"),
    ROW(reduce, KVL_OPT_ENUM, "max", .choices = reduce_names),
    ROW(path, KVL_OPT_STR, "", .help = "a text", .alias = "file"),
    { 0 },
};

static struct sample defaults(void)
{
    struct sample s;
    struct kvl_err err = { 0 };
    memset(&s, 0x5a, sizeof s);
    assert_int_equal(kvl_opt_defaults(table, &s, &err), KVL_OK);
    return s;
}

static void check_print(const struct sample *s, const char *want)
{
    struct kvl_buf text = { 0 };
    assert_int_equal(kvl_opt_print(table, s, &text), KVL_OK);
    assert_string_equal(text.data, want);
    kvl_buf_free(&text);
}

/* The text is refused, nothing changes, and the message holds every needle (NULL-terminated). */
static void check_refused(const char *text, const char *const *needles)
{
    struct sample s = defaults(), before = s;
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_opt_parse(table, &s, text, &err), KVL_EINVAL);
    assert_int_equal(err.code, KVL_EINVAL);
    assert_memory_equal(&s, &before, sizeof s);
    for (; *needles; needles++)
        if (!strstr(err.msg, *needles)) fail_msg("\"%s\" lacks \"%s\"", err.msg, *needles);
}

#define REFUSED(text, ...) check_refused(text, (const char *const[]){ __VA_ARGS__, NULL })

static void test_defaults(void **state)
{
    (void)state;
    struct sample s = defaults();
    assert_int_equal(s.page, 16);
    assert_int_equal(s.budget, KVL_AUTO);
    assert_int_equal(s.free, -7);
    assert_true(s.ratio == 0.1);
    assert_true(s.any == 2.0);
    assert_false(s.on);
    assert_int_equal(s.reduce, 1);
    assert_string_equal(s.path, "");
    check_print(&s, "page=16,budget=auto,free=-7,ratio=0.1,any=2,on=false,reduce=max,path=");
}

static void test_parse(void **state)
{
    (void)state;
    struct sample s = defaults();
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_opt_parse(table, &s, "", &err), KVL_OK);
    assert_int_equal(kvl_opt_parse(table, &s,
                                   "path=a=b/c d,page=4096,budget=100,free=-2147483648,"
                                   "ratio=1,any=-1.5e-3,on=yes,reduce=sum",
                                   &err),
                     KVL_OK);
    check_print(&s, "page=4096,budget=100,free=-2147483648,ratio=1,any=-0.0015,on=true,reduce=sum,"
                    "path=a=b/c d");
    assert_int_equal(kvl_opt_set(table, &s, "budget", "auto", &err), KVL_OK);
    assert_int_equal(s.budget, KVL_AUTO);
    assert_int_equal(kvl_opt_set(table, &s, "path", "", &err), KVL_OK);
    assert_string_equal(s.path, "");
}

/* Printing and parsing again gives the same struct, also for numbers that need 17 digits. */
static void test_round_trip(void **state)
{
    (void)state;
    static const double hard[] = { 0.1 + 0.2, 1.0 / 3.0,           5e-324, 1.7976931348623157e308,
                                   -0.0,      123456789012345678.0 };
    for (size_t i = 0; i < sizeof hard / sizeof hard[0]; i++) {
        struct sample s = defaults(), back = s;
        struct kvl_buf text = { 0 };
        struct kvl_err err = { 0 };
        s.any = hard[i];
        assert_int_equal(kvl_opt_print(table, &s, &text), KVL_OK);
        assert_int_equal(kvl_opt_parse(table, &back, text.data, &err), KVL_OK);
        assert_true(back.any == s.any);
        assert_false(signbit(back.any) && back.any == 0.0);
        kvl_buf_free(&text);
    }
}

static void test_refused_numbers(void **state)
{
    (void)state;
    REFUSED("page=0", "\"page\"", "\"0\"", "from 1 to 4096");
    REFUSED("page=4097", "\"4097\"", "out of range", "from 1 to 4096");
    REFUSED("page=-1", "\"-1\"", "out of range");
    REFUSED("page=", "\"page\"", "\"\"", "whole number");
    REFUSED("page=1.5", "\"1.5\"", "whole number");
    REFUSED("page=16k", "\"16k\"", "whole number");
    REFUSED("page= 16", "\" 16\"", "whole number");
    REFUSED("page=+16", "\"+16\"");
    REFUSED("page=0x10", "\"0x10\"");
    REFUSED("page=auto", "\"auto\"", "from 1 to 4096");
    REFUSED("budget=-1", "\"auto\" or", "from 1 to 100");
    REFUSED("free=2147483648", "\"free\"", "out of range");
    REFUSED("free=99999999999999999999999", "99999999999999999999999");
    REFUSED("ratio=1.0001", "\"ratio\"", "1.0001", "from 0 to 1");
    REFUSED("ratio=-1e-9", "out of range");
    REFUSED("any=nan", "\"any\"", "\"nan\"", "finite");
    REFUSED("any=inf", "finite");
    REFUSED("any=1e999", "finite");
    REFUSED("any=0x1p3", "finite");
    REFUSED("any=.", "finite");
    REFUSED("any=1e", "finite");
    REFUSED("any=1.5.2", "finite");
    REFUSED("any= 1", "finite");
    REFUSED("any=auto", "finite");
}

static void test_refused_others(void **state)
{
    (void)state;
    REFUSED("on=maybe", "\"on\"", "\"maybe\"", "true or false");
    REFUSED("reduce=maxx", "\"maxx\"", "mean, max, sum", "did you mean \"max\"");
    REFUSED("reduce=0", "mean, max, sum");
    REFUSED("pgae=3", "\"pgae\"", "did you mean \"page\"");
    REFUSED("zzzzzzzz=3", "\"zzzzzzzz\"", "page, budget, free");
    REFUSED("page", "\"page\"", "name=value");
    REFUSED("=3", "name=value");
    REFUSED(",", "name=value");
    char text[KVL_OPT_STR_SIZE + 10] = "path=";
    memset(text + 5, 'x', KVL_OPT_STR_SIZE);
    REFUSED(text, "\"path\"", "128 bytes", "at most 127");
    REFUSED("path=a\nb", "\"path\"", "byte 1");
}

/* A path may be longer, and is written as it was given. */
static void test_path(void **state)
{
    struct place {
        char dir[KVL_OPT_PATH_SIZE];
    } x;
    static const struct kvl_opt rows[] = { KVL_ROW_PATH(place, dir, "here", "a folder"), { 0 } };
    char text[KVL_OPT_PATH_SIZE + 10] = "dir=";
    struct kvl_err err = { 0 };
    struct kvl_buf out = { 0 };
    (void)state;
    assert_int_equal(kvl_opt_check(rows, sizeof x, &err), KVL_OK);
    assert_int_not_equal(kvl_opt_check(rows, sizeof x - 1, &err), KVL_OK);
    kvl_err_clear(&err);
    assert_int_equal(kvl_opt_defaults(rows, &x, &err), KVL_OK);
    assert_string_equal(x.dir, "here");
    memset(text + 4, 'x', KVL_OPT_PATH_SIZE - 1);
    assert_int_equal(kvl_opt_parse(rows, &x, text, &err), KVL_OK);
    assert_int_equal(kvl_opt_print(rows, &x, &out), KVL_OK);
    assert_string_equal(out.data, text);
    kvl_buf_free(&out);
    text[4 + KVL_OPT_PATH_SIZE - 1] = 'x';
    assert_int_equal(kvl_opt_parse(rows, &x, text, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "at most 1023"));
}

/* An option has one canonical name, whichever it was given by. */
static void test_alias(void **state)
{
    (void)state;
    struct sample s = defaults();
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_opt_parse(table, &s, "file=x,page=3", &err), KVL_OK);
    assert_string_equal(s.path, "x");
    assert_ptr_equal(kvl_opt_find(table, "file"), kvl_opt_find(table, "path"));
    assert_int_equal(kvl_opt_parse(table, &s, "file=x,path=y", &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "\"path\" stands twice"));
}

/* A part of a refused text may have been set already; the message names what was wrong. */
static void test_refused_lists(void **state)
{
    (void)state;
    struct sample s = defaults();
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_opt_parse(table, &s, "page=3,on=1,page=4", &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "\"page\" stands twice"));
    kvl_err_clear(&err);
    assert_int_equal(kvl_opt_parse(table, &s, "page=3,", &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "name=value"));
    kvl_err_clear(&err);
    assert_int_equal(kvl_opt_set(table, &s, "path", "a,b", &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "comma"));
    /* A value is not a name: "page" as the text of another option is no repetition. */
    kvl_err_clear(&err);
    assert_int_equal(kvl_opt_parse(table, &s, "path=page,page=5", &err), KVL_OK);
    assert_int_equal(s.page, 5);
}

static void test_no_options(void **state)
{
    (void)state;
    struct kvl_err err = { 0 };
    struct kvl_buf text = { 0 };
    assert_int_equal(kvl_opt_defaults(NULL, NULL, &err), KVL_OK);
    assert_int_equal(kvl_opt_print(NULL, NULL, &text), KVL_OK);
    assert_int_equal(text.len, 0);
    assert_int_equal(kvl_opt_parse(NULL, NULL, "a=1", &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "there are none"));
    assert_null(kvl_opt_find(NULL, "a"));
    assert_ptr_equal(kvl_opt_find(table, "free"), &table[2]);
    kvl_buf_free(&text);
}

/* Mistakes of whoever wrote the table. */
static void test_wrong_tables(void **state)
{
    (void)state;
    const struct kvl_opt wrong[][3] = {
        { ROW(page, KVL_OPT_INT, "16", .help = ""),
          ROW(page, KVL_OPT_INT, "16", .help = ""),
          { 0 } },
        { ROW(page, KVL_OPT_INT, "0", .min = 1, .max = 2), { 0 }, { 0 } },
        { ROW(page, KVL_OPT_INT, NULL, .help = ""), { 0 }, { 0 } },
        { ROW(reduce, KVL_OPT_ENUM, "max", .help = ""), { 0 }, { 0 } },
        { ROW(reduce, KVL_OPT_ENUM, "none", .choices = reduce_names), { 0 }, { 0 } },
        { ROW(ratio, KVL_OPT_FLOAT, "auto", .help = ""), { 0 }, { 0 } },
        { ROW(page, (enum kvl_opt_type)99, "1", .help = ""), { 0 }, { 0 } },
        { { .name = "a,b", .type = KVL_OPT_BOOL, .def = "1" }, { 0 }, { 0 } },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct sample s = { 0 };
        struct kvl_err err = { 0 };
        assert_int_equal(kvl_opt_defaults(wrong[i], &s, &err), KVL_EINTERNAL);
        assert_non_null(strstr(err.msg, "option"));
    }
}

/* A locale whose decimal point is a comma changes nothing. */
static void test_locale(void **state)
{
    (void)state;
    static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8" };
    const char *found = NULL;
    for (size_t i = 0; i < 3 && !found; i++) found = setlocale(LC_ALL, names[i]);
    if (!found) {
        print_message("no locale with a decimal comma is installed\n");
        skip();
    }
    struct sample s = defaults();
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_opt_set(table, &s, "any", "1.5", &err), KVL_OK);
    check_print(&s, "page=16,budget=auto,free=-7,ratio=0.1,any=1.5,on=false,reduce=max,path=");
    setlocale(LC_ALL, "C");
}

static void test_parse_numbers(void **state)
{
    (void)state;
    int64_t i = 5;
    double f = 5.0;
    assert_int_equal(kvl_parse_i64("-9223372036854775808", &i), KVL_OK);
    assert_true(i == INT64_MIN);
    assert_int_equal(kvl_parse_i64("9223372036854775808", &i), KVL_EINVAL);
    assert_int_equal(kvl_parse_i64("", &i), KVL_EINVAL);
    assert_int_equal(kvl_parse_i64("-", &i), KVL_EINVAL);
    assert_int_equal(kvl_parse_i64("--1", &i), KVL_EINVAL);
    assert_true(i == INT64_MIN);
    assert_int_equal(kvl_parse_f64(".5", &f), KVL_OK);
    assert_true(f == 0.5);
    assert_int_equal(kvl_parse_f64("-5.E+1", &f), KVL_OK);
    assert_true(f == -50.0);
    assert_int_equal(kvl_parse_f64("", &f), KVL_EINVAL);
    assert_int_equal(kvl_parse_f64("1 ", &f), KVL_EINVAL);
    assert_true(f == -50.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),       cmocka_unit_test(test_parse),
        cmocka_unit_test(test_round_trip),     cmocka_unit_test(test_refused_numbers),
        cmocka_unit_test(test_refused_others), cmocka_unit_test(test_refused_lists),
        cmocka_unit_test(test_no_options),     cmocka_unit_test(test_wrong_tables),
        cmocka_unit_test(test_path),           cmocka_unit_test(test_alias),
        cmocka_unit_test(test_locale),         cmocka_unit_test(test_parse_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
