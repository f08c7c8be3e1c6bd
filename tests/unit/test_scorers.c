/* The scorers of benchmarks: what the official Python gives for the same texts. */
#include "scorers.h"
#include "similar.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct row {
    enum kvl_scorer scorer;
    const char *prediction;
    const char *answer[6];
    double official, strict;
    const char *cls[4];
};

static void check(const struct row *r, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct kvl_gold gold = { .answer = r[i].answer, .cls = r[i].cls };
        struct kvl_answer_score s;
        struct kvl_err err = { 0 };
        while (gold.n < 6 && r[i].answer[gold.n]) gold.n++;
        while (gold.n_cls < 4 && r[i].cls[gold.n_cls]) gold.n_cls++;
        if (kvl_score_answer(r[i].scorer, &gold, r[i].prediction, &s, &err) != KVL_OK)
            fail_msg("row %zu: %s", i, err.msg);
        if (!(fabs(s.official - r[i].official) < 1e-6) || !(fabs(s.strict - r[i].strict) < 1e-6))
            fail_msg("%s, \"%s\": %.9g official and %.9g strict, want %.9g and %.9g",
                     kvl_scorer_names[r[i].scorer], r[i].prediction, s.official, s.strict,
                     r[i].official, r[i].strict);
    }
}

#define CHECK(rows) check(rows, sizeof(rows) / sizeof *(rows))

static void test_f1(void **state)
{
    static const struct row rows[] = {
        { KVL_SCORE_F1, "The capital is Paris.", { "Paris" }, 0.5, 0.5, { 0 } },
        { KVL_SCORE_F1, "Paris", { "Paris, France" }, 2.0 / 3, 2.0 / 3, { 0 } },
        { KVL_SCORE_F1, "an apple a day", { "the apple" }, 2.0 / 3, 2.0 / 3, { 0 } },
        { KVL_SCORE_F1, "U.S.A", { "USA" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_F1, "red red blue", { "red blue blue" }, 2.0 / 3, 2.0 / 3, { 0 } },
        { KVL_SCORE_F1, "", { "x" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_F1, "the", { "the" }, 0.0, 0.0, { 0 } }, /* nothing is left of either */
        { KVL_SCORE_F1, "Paris", { "London", "Paris" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_F1, "\xc3\x89mile Zola", { "\xc3\xa9mile zola" }, 1.0, 1.0, { 0 } },
        /* HELMET, by its code */
        { KVL_SCORE_SUBSTRING_EM, "It is V7.", { "v-7" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_SUBSTRING_EM, "see a catalog", { "the cat" }, 1.0, 0.0, { 0 } },
        { KVL_SCORE_SUBSTRING_EM, "a dog", { "cat", "Dog!" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_SUBSTRING_EM, "dog", { "dogs" }, 0.0, 0.0, { 0 } },
        /* Python makes two letters of a capital I with a dot. */
        { KVL_SCORE_F1_ZH, "\xc4\xb0", { "ix" }, 0.5, 0.5, { 0 } },
        /* A dash is no word, so that the article before it is one. */
        { KVL_SCORE_F1, "the\xe2\x80\x94x", { "\xe2\x80\x94x" }, 1.0, 1.0, { 0 } },
        /* 北京。 and 北京市: two of two, two of three characters */
        { KVL_SCORE_F1_ZH,
          "\xe5\x8c\x97\xe4\xba\xac\xe3\x80\x82",
          { "\xe5\x8c\x97\xe4\xba\xac\xe5\xb8\x82" },
          0.8,
          0.8,
          { 0 } },
    };
    (void)state;
    CHECK(rows);
}

static void test_rouge(void **state)
{
    static const struct row rows[] = {
        { KVL_SCORE_ROUGE_L, "the cat sat on the mat", { "the cat is on the mat" }, .8, .8, { 0 } },
        { KVL_SCORE_ROUGE_L, "a b c. d e f", { "a b c d e f" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_ROUGE_L, "Hello world.", { "hello world" }, 0.5, 0.5, { 0 } },
        { KVL_SCORE_ROUGE_L, "a a a a", { "a" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_ROUGE_L,
          "the cat. the cat sat.",
          { "the cat sat on the mat. it slept." },
          0.6,
          0.6,
          { 0 } },
        { KVL_SCORE_ROUGE_L, ".", { "x" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_ROUGE_L, "", { "x" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_ROUGE_LSUM, "The cat, sat!", { "the CAT sat" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_ROUGE_LSUM, "a b\nc d", { "a c\nb d" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_ROUGE_LSUM, "a a a", { "a" }, 0.5, 0.5, { 0 } },
        { KVL_SCORE_ROUGE_LSUM, "", { "x" }, 0.0, 0.0, { 0 } },
    };
    (void)state;
    CHECK(rows);
}

/* Sentences of 700 words that have only their first one in common are too much for the recursion of the
 * official script, those of 400 are not. */
static void test_rouge_deep(void **state)
{
    static const struct {
        int32_t n;
        bool deep;
    } rows[] = { { 400, false }, { 700, true } };
    (void)state;
    for (size_t r = 0; r < 2; r++) {
        struct kvl_buf a = { 0 }, b = { 0 };
        double official, strict, want = 1.0 / rows[r].n;
        for (int32_t i = 0; i < rows[r].n; i++) {
            assert_int_equal(kvl_buf_printf(&a, i ? " a%d" : "same", i), KVL_OK);
            assert_int_equal(kvl_buf_printf(&b, i ? " b%d" : "same", i), KVL_OK);
        }
        assert_int_equal(kvl_rouge_l(a.data, b.data, KVL_ROUGE_STEPS, &official), KVL_OK);
        assert_int_equal(kvl_rouge_l(a.data, b.data, 0, &strict), KVL_OK);
        assert_true(fabs(strict - want) < 1e-6);
        assert_true(rows[r].deep ? official == 0.0 : fabs(official - want) < 1e-6);
        kvl_buf_free(&a);
        kvl_buf_free(&b);
    }
}

/* Of equal texts 990 words are compared, 991 are too many (LongBench's eval.py with rouge 1.0.1); where the text is cut
 * by words first one less, since that is a call more. */
static void test_rouge_limit(void **state)
{
    static const struct {
        enum kvl_scorer scorer;
        int32_t n;
        double official;
    } rows[] = { { KVL_SCORE_ROUGE_L, 990, 1.0 },
                 { KVL_SCORE_ROUGE_L, 991, 0.0 },
                 { KVL_SCORE_ROUGE_L_ZH, 989, 1.0 },
                 { KVL_SCORE_ROUGE_L_ZH, 990, 0.0 } };
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct kvl_buf text = { 0 };
        struct kvl_answer_score s;
        for (int32_t i = 0; i < rows[r].n; i++)
            assert_int_equal(
                kvl_buf_printf(&text, rows[r].scorer == KVL_SCORE_ROUGE_L ? "w%d " : "x", i),
                KVL_OK);
        const char *answer[] = { text.data };
        struct kvl_gold gold = { .answer = answer, .n = 1 };
        assert_int_equal(kvl_score_answer(rows[r].scorer, &gold, text.data, &s, NULL), KVL_OK);
        if (fabs(s.official - rows[r].official) > 1e-6 || fabs(s.strict - 1.0) > 1e-6)
            fail_msg("%d words: %g official, %g strict", rows[r].n, s.official, s.strict);
        kvl_buf_free(&text);
    }
}

struct form_row {
    enum kvl_scorer scorer;
    const char *prediction;
    const char *answer[4];
    enum kvl_gold_form form;
    bool numeric;
    double official, strict;
};

/* What InfiniteBench's and SCBench's compute_scores.py give where an answer is of a form that they do not expect. */
static void test_forms(void **state)
{
    static const struct form_row rows[] = {
        /* gone through letter by letter */
        { KVL_SCORE_F1_ZH, "你好世界", { "你好世界" }, KVL_GOLD_TEXT, false, 0.4, 1.0 },
        { KVL_SCORE_F1_ZH, "你好世界", { "你好世界" }, KVL_GOLD_LIST, false, 1.0, 1.0 },
        { KVL_SCORE_F1, "Paris", { "Paris" }, KVL_GOLD_TEXT, false, 0.0, 1.0 },
        { KVL_SCORE_IN_UPPER, "see it", { "(E)" }, KVL_GOLD_TEXT, false, 1.0, 0.0 },
        { KVL_SCORE_DIALOGUE, "A", { "ACE" }, KVL_GOLD_TEXT, false, 1.0, 0.0 },
        { KVL_SCORE_VT_ROUNDED, "ABC", { "ABD" }, KVL_GOLD_TEXT, false, 0.67, 0.0 },
        /* a list is no word, a number is no text, a text no number */
        { KVL_SCORE_KV_WORDS, "v1", { "v1" }, KVL_GOLD_LIST, false, 0.0, 1.0 },
        { KVL_SCORE_KV_WORDS, "v1", { "v1" }, KVL_GOLD_TEXT, false, 1.0, 1.0 },
        { KVL_SCORE_KV_IN, "v1", { "v1" }, KVL_GOLD_LIST, false, 0.0, 1.0 },
        { KVL_SCORE_FIRST_INT, "71432", { "71432" }, KVL_GOLD_LIST, true, 0.0, 1.0 },
        { KVL_SCORE_FIRST_INT, "71432", { "71432" }, KVL_GOLD_LIST, false, 1.0, 1.0 },
        { KVL_SCORE_CODE_RUN, "3", { "3" }, KVL_GOLD_TEXT, false, 0.0, 1.0 },
        { KVL_SCORE_CODE_RUN, "3", { "3" }, KVL_GOLD_LIST, true, 1.0, 1.0 },
        { KVL_SCORE_MATH_FIND, "3", { "3" }, KVL_GOLD_TEXT, false, 0.0, 1.0 },
        { KVL_SCORE_MATH_CALC, "1, 3", { "1", "3" }, KVL_GOLD_LIST, false, 0.0, 1.0 },
        { KVL_SCORE_COUNT, "3", { "3" }, KVL_GOLD_LIST, true, 1.0, 1.0 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct form_row *r = &rows[i];
        struct kvl_gold gold = { .answer = r->answer, .form = r->form, .numeric = r->numeric };
        struct kvl_answer_score s;
        while (gold.n < 4 && r->answer[gold.n]) gold.n++;
        assert_int_equal(kvl_score_answer(r->scorer, &gold, r->prediction, &s, NULL), KVL_OK);
        if (fabs(s.official - r->official) > 1e-6 || fabs(s.strict - r->strict) > 1e-6)
            fail_msg("%s, row %zu: %g official, %g strict", kvl_scorer_names[r->scorer], i,
                     s.official, s.strict);
    }
}

/* Digits as the scripts' patterns and Python's int() and float() take them. */
static void test_digits(void **state)
{
    static const struct row rows[] = {
        { KVL_SCORE_MATH_FIND, "3e3", { "3" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_MATH_FIND, "0x3", { "3" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_MATH_FIND, "it is ７", { "7" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_MATH_FIND, "007", { "7" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_MATH_FIND, "12345678901234567890", { "12345678901234567890" }, 1, 1, { 0 } },
        { KVL_SCORE_MATH_FIND, "12345678901234567891", { "12345678901234567890" }, 0, 0, { 0 } },
        { KVL_SCORE_MATH_FIND, "3.0e1", { "3.0" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_MATH_FIND_SC, "3.9e9", { "3" }, 1.0, 0.0, { 0 } },
        { KVL_SCORE_MATH_FIND_SC, "0x3", { "3" }, 0.0, 0.0, { 0 } },
        /* int(float()): what a float has no digits for is lost. */
        { KVL_SCORE_MATH_FIND_SC, "9007199254740993", { "9007199254740993" }, 0.0, 1.0, { 0 } },
        { KVL_SCORE_NUMBER, "0x3", { "3" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_NUMBER, "3e3", { "3" }, 1.0, 0.0, { 0 } },
        { KVL_SCORE_CODE_RUN, "+-17", { "-17" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_CODE_RUN, "+17", { "17" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_CODE_RUN, "-_1", { "-1" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_CODE_RUN, "1_7", { "17" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_CODE_RUN, "1__7", { "17" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_CODE_RUN, "17_", { "17" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_CODE_RUN, "-0", { "0" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_CODE_RUN, "-123456789012345678901", { "-123456789012345678901" }, 1, 1, { 0 } },
        { KVL_SCORE_CODE_RUN, "5", { "5.0" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_MATH_CALC,
          "1, 18446744073709551617",
          { "1", "18446744073709551617" },
          1,
          1,
          { 0 } },
        /* findall takes digits of any script, and compares their text. */
        { KVL_SCORE_COUNT, "3 or ３", { "3" }, 0.5, 1.0, { 0 } },
        { KVL_SCORE_RETRIEVAL, "7", { "Paragraph x, Paragraph 7" }, 1.0, 1.0, { 0 } },
    };
    (void)state;
    CHECK(rows);
}

static void test_classes(void **state)
{
    static const struct row rows[] = {
        { KVL_SCORE_CLASSIFICATION,
          "It is Date or Number",
          { "Date" },
          0.5,
          0.5,
          { "Date", "Number", "Person" } },
        { KVL_SCORE_CLASSIFICATION,
          "Individual",
          { "Individual" },
          0.5,
          1.0,
          { "Ind", "Indiv", "Individual" } },
        { KVL_SCORE_CLASSIFICATION,
          "Individual",
          { "Individual" },
          0.5,
          1.0,
          { "Individual", "Indiv", "Ind" } },
        { KVL_SCORE_CLASSIFICATION,
          "Location",
          { "Location" },
          1.0,
          1.0,
          { "Location", "Local", "Loc" } },
        { KVL_SCORE_BABILONG,
          "The kitchen.",
          { "kitchen" },
          1.0,
          1.0,
          { "kitchen", "garden", "office" } },
        { KVL_SCORE_BABILONG,
          "The kitchen or garden.",
          { "kitchen" },
          0.0,
          0.0,
          { "kitchen", "garden" } },
        { KVL_SCORE_BABILONG,
          "apple and milk",
          { "apple,milk" },
          1.0,
          1.0,
          { "apple", "football", "milk" } },
    };
    (void)state;
    CHECK(rows);
}

static void test_numbers(void **state)
{
    static const struct row rows[] = {
        { KVL_SCORE_RETRIEVAL, "Paragraph 7 or 8", { "Paragraph 7" }, 0.5, 1.0, { 0 } },
        { KVL_SCORE_RETRIEVAL, "The answer is 17.", { "Paragraph 7" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_COUNT, "5 of 10", { "5" }, 0.5, 1.0, { 0 } },
        { KVL_SCORE_COUNT, "05", { "5" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_FIRST_INT, " 71432.", { "71432" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_FIRST_INT, "99999 then 71432", { "71432" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_FIRST_INT, "71,432", { "71432" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_FIRST_INT, "714321", { "71432" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_FIRST_INT, "71432x", { "71432" }, 1.0, 0.0, { 0 } },
        { KVL_SCORE_FIRST_INT, "key: 0123", { "0123" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_CODE_RUN, "The return value is: 4.", { "4" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_CODE_RUN, "4\nThe return value is:", { "4" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_CODE_RUN, "it is -12", { "-12" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_MATH_FIND, "3.5", { "3" }, 0.0, 0.0, { 0 } }, /* ends the official script */
        { KVL_SCORE_MATH_FIND_SC, "3.5", { "3" }, 1.0, 0.0, { 0 } },
        { KVL_SCORE_MATH_FIND, "is 3.5 or", { "3.5" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_MATH_FIND, "-12", { "12" }, 1.0, 0.0, { 0 } },
        { KVL_SCORE_MATH_CALC, "[1, 2, 4]", { "1", "2", "3" }, 2.0 / 3, 2.0 / 3, { 0 } },
        { KVL_SCORE_MATH_CALC, "[1, -2]", { "1", "2" }, 1.0, 0.5, { 0 } },
        { KVL_SCORE_MATH_CALC, "[1, -2]", { "1", "-2" }, 0.5, 1.0, { 0 } },
        { KVL_SCORE_NUMBER, " -4.50 ", { "-4.5" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_NUMBER, "about 7, not 8", { "7" }, 1.0, 0.0, { 0 } },
    };
    (void)state;
    CHECK(rows);
}

#define UUID "c14cb8ba-002b-43be-bdc7-8a83f0fe1ac8"
static void test_substrings(void **state)
{
    static const struct row rows[] = {
        { KVL_SCORE_KV_WORDS, "is: \"" UUID "\"}", { UUID }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_KV_WORDS, UUID "\n\nKey: \"x\"", { UUID }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_KV_WORDS, UUID "-x", { UUID }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_KV_WORDS, UUID ";", { UUID }, 0.0, 1.0, { 0 } },
        { KVL_SCORE_KV_WORDS, "C14CB8BA-002B-43BE-BDC7-8A83F0FE1AC8", { UUID }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_KV_WORDS, "c14cb8ba-002b-43be-bdc7-8a83f0fe1ac", { UUID }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_KV_IN, "x" UUID, { UUID }, 1.0, 0.0, { 0 } },
        { KVL_SCORE_ALL_SUBSTRINGS,
          " 1234567, 7654321.",
          { "1234567", "7654321", "1111111", "2222222" },
          0.5,
          0.5,
          { 0 } },
        { KVL_SCORE_ALL_SUBSTRINGS, "91234567 8", { "1234567" }, 1.0, 0.0, { 0 } },
        { KVL_SCORE_ANY_SUBSTRING, "in PARIS", { "London", "Paris" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_ALL_SUBSTRINGS, "", { "x" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_VT_ROUNDED, "ABCDE", { "ABCDE", "B", "FGHIJ" }, 0.67, 1.0 / 3, { 0 } },
        { KVL_SCORE_COLOR, "That is required.", { "red" }, 1.0, 0.0, { 0 } },
        { KVL_SCORE_COLOR, "The sum is 5: red? No, blue.", { "blue" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_DIALOGUE, "It is \"Jim\".", { "JIM" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_DIALOGUE, "Mr. Smith", { "MR. SMITH" }, 0.0, 1.0, { 0 } },
        { KVL_SCORE_EXACT, " yes\n", { "no", "yes" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_REGEX, "It is 42.", { "4[0-9]" }, 1.0, 0.0, { 0 } },
        { KVL_SCORE_REGEX, " 42\n", { "4[0-9]" }, 1.0, 1.0, { 0 } },
    };
    (void)state;
    CHECK(rows);
}

static void test_choices(void **state)
{
    static const struct row rows[] = {
        /* A letter of three bytes behind the prefix; space of Unicode in front. */
        { KVL_SCORE_CHOICE,
          "answer is:\xe3\x80\x82"
          "B",
          { "Foo", "B" },
          1.0,
          1.0,
          { 0 } },
        { KVL_SCORE_CHOICE,
          "\xe3\x80\x80"
          "A. Foo",
          { "x", "A" },
          1.0,
          1.0,
          { 0 } },
        { KVL_SCORE_CHOICE, "B", { "Foo", "B" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_CHOICE, "B. Foo", { "Foo", "B" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_CHOICE, "The answer is B", { "Foo", "B" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_CHOICE, "Both", { "Foo", "B" }, 1.0, 0.0, { 0 } },
        { KVL_SCORE_CHOICE, "Choose C", { "Foo", "B" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_CHOICE, "", { "Foo", "B" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_CHOICE_TAG, "The correct answer is **(C)**", { "C" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_CHOICE_TAG, "The correct answer is C.", { "C" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_CHOICE_TAG, "The correct answer is Both", { "B" }, 1.0, 0.0, { 0 } },
        { KVL_SCORE_CHOICE_TAG, "C", { "C" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_CODE_DEBUG, "B. foo", { "foo", "B" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_CODE_DEBUG, "the answer is: Option B", { "foo", "B" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_CODE_DEBUG, "it is foo", { "foo", "B" }, 0.0, 1.0, { 0 } },
    };
    (void)state;
    CHECK(rows);
}

static void test_alike(void **state)
{
    static const struct row rows[] = {
        { KVL_SCORE_CODE_SIM, "\n# c\nx = foo(1)\ny=2", { "x = foo(2)" }, 0.90, 0.90, { 0 } },
        { KVL_SCORE_CODE_SIM, "    return self.x", { "return self.x" }, 0.87, 0.87, { 0 } },
        { KVL_SCORE_CODE_SIM, "cbbca", { "baaac" }, .20, .40, { 0 } },
        { KVL_SCORE_CODE_SIM, "bccaa", { "bbcababc" }, .46, .62, { 0 } },
        { KVL_SCORE_CODE_SIM, "acacc", { "acbaca" }, .55, .73, { 0 } },
        { KVL_SCORE_CODE_SIM, "# only a comment", { "x" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_CODE_SIM, "", { "" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_EDIT, "kitten", { "sitting" }, 1.0 - 3.0 / 7, 1.0 - 3.0 / 7, { 0 } },
        { KVL_SCORE_MRCR, "k3xsame", { "k3xsame", "k3x" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_MRCR, "same", { "k3xsame", "k3x" }, 0.0, 0.0, { 0 } },
        { KVL_SCORE_SET_F1, "I think.\nFinal Answer: [a, b]", { "a", "c" }, 0.5, 0.5, { 0 } },
        { KVL_SCORE_SET_F1, "[a, b]", { "a", "b" }, 0.0, 1.0, { 0 } },
        { KVL_SCORE_SET_F1, "Final Answer: []", { "" }, 1.0, 1.0, { 0 } },
        { KVL_SCORE_SET_F1, "none", { "" }, 0.0, 0.0, { 0 } },
    };
    (void)state;
    CHECK(rows);
}

/* What a scorer cannot compare with is an error, not a zero. */
static void test_refused(void **state)
{
    static const char *const word[] = { "word" };
    static const char *const pattern[] = { "(" };
    struct kvl_gold gold = { .answer = word, .n = 1 };
    struct kvl_answer_score s = { 7.0, 7.0 };
    struct kvl_err err = { 0 };
    static const enum kvl_scorer refuses[] = { KVL_SCORE_RETRIEVAL,  KVL_SCORE_CODE_RUN,
                                               KVL_SCORE_MATH_FIND,  KVL_SCORE_CLASSIFICATION,
                                               KVL_SCORE_CODE_DEBUG, KVL_SCORE_NEEDLEBENCH,
                                               KVL_SCORE_NUMBER };
    (void)state;
    for (size_t i = 0; i < sizeof refuses / sizeof *refuses; i++) {
        kvl_err_clear(&err);
        assert_int_equal(kvl_score_answer(refuses[i], &gold, "12", &s, &err), KVL_EINVAL);
        assert_non_null(strstr(err.msg, kvl_scorer_names[refuses[i]]));
    }
    kvl_err_clear(&err);
    gold.answer = pattern;
    assert_int_equal(kvl_score_answer(KVL_SCORE_REGEX, &gold, "12", &s, &err), KVL_EINVAL);
    gold.n = 0;
    assert_int_equal(kvl_score_answer(KVL_SCORE_F1, &gold, "12", &s, &err), KVL_EINVAL);
    assert_true(s.official == 7.0 && s.strict == 7.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f1),         cmocka_unit_test(test_rouge),
        cmocka_unit_test(test_rouge_deep), cmocka_unit_test(test_rouge_limit),
        cmocka_unit_test(test_forms),      cmocka_unit_test(test_digits),
        cmocka_unit_test(test_classes),    cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_substrings), cmocka_unit_test(test_choices),
        cmocka_unit_test(test_alike),      cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
