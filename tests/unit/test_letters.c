/* Upper and lower case, words and digits of all code points against Python's: the numbers are those of
 * datasets/files/letter_tables.py --check.  Seven of ten capitals beyond Latin-1 were left as they are once. */
#include "scorers.h"
#include "words.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include <cmocka.h>

static void text_of(const char *before, uint32_t c, const char *behind, struct kvl_buf *out)
{
    out->len = 0;
    assert_int_equal(kvl_buf_adds(out, before), KVL_OK);
    assert_int_equal(kvl_letter_add(out, c), KVL_OK);
    assert_int_equal(kvl_buf_adds(out, behind), KVL_OK);
}

static uLong crc_of(const char *before, const char *behind, const char *end,
                    int (*change)(const char *, struct kvl_buf *))
{
    struct kvl_buf text = { 0 }, out = { 0 };
    uLong crc = crc32(0, NULL, 0);
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xd800 && c < 0xe000) continue;
        out.len = 0;
        text_of(before, c, behind, &text);
        if (c ==
            0) { /* a C string ends there: what is before, the byte and what is behind stay apart */
            struct kvl_buf b = { 0 };
            assert_int_equal(change(before, &out), KVL_OK);
            assert_int_equal(kvl_buf_add(&out, "", 1), KVL_OK);
            assert_int_equal(change(behind, &b), KVL_OK);
            assert_int_equal(kvl_buf_adds(&out, b.data), KVL_OK);
            kvl_buf_free(&b);
        } else {
            assert_int_equal(change(text.data, &out), KVL_OK);
        }
        assert_int_equal(kvl_buf_adds(&out, end), KVL_OK);
        crc = crc32(crc, (const Bytef *)out.data, (uInt)out.len);
    }
    kvl_buf_free(&text);
    kvl_buf_free(&out);
    return crc;
}

static void test_cases(void **state)
{
    static const char sigma[] = "a\xce\xa3";
    (void)state;
    assert_int_equal(crc_of("x", " ", "", kvl_text_lower), 0xb7221789);
    assert_int_equal(crc_of("x", " ", "", kvl_text_upper), 0xae02b6bb);
    assert_int_equal(crc_of(sigma, "b ", "", kvl_text_lower), 0x61f1df54);
    assert_int_equal(crc_of("a", "\xce\xa3 ", "", kvl_text_lower), 0xb21bba1a);
    assert_int_equal(crc_of(sigma, "", "\n", kvl_text_lower), 0xcf938fa1);
}

static bool is_digit(uint32_t c)
{
    return kvl_letter_digit(c) >= 0;
}

static void test_kinds(void **state)
{
    static const struct {
        bool (*is)(uint32_t);
        uLong crc;
    } row[] = { { kvl_letter_word, 0xfd94c1a1 },
                { is_digit, 0xe44fddc8 },
                { kvl_letter_space, 0xe0455782 } };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        uLong crc = crc32(0, NULL, 0);
        for (uint32_t c = 0; c < 0x110000; c++)
            if (c < 0xd800 || c >= 0xe000)
                crc = crc32(crc, (const Bytef *)(row[i].is(c) ? "1" : "0"), 1);
        assert_int_equal(crc, row[i].crc);
        assert_false(row[i].is(0x110000 + 0xe9)); /* a byte that is no UTF-8 */
    }
}

static void test_scores(void **state)
{
    static const struct {
        enum kvl_scorer scorer;
        const char *gold, *said;
        double official;
    } row[] = {
        { KVL_SCORE_SUBSTRING, "οδος", "Η ΟΔΟΣ είναι κλειστή", 1 },
        { KVL_SCORE_SUBSTRING, "Ⅷ", "ⅷ", 1 },
        { KVL_SCORE_SUBSTRING, "Știință, Ơ, Ά, Ә", "știință, ơ, ά, ә", 1 },
        { KVL_SCORE_SUBSTRING, "Οδοσ", "ΟΔΟΣ", 0 }, /* its last letter is another one */
        { KVL_SCORE_DIALOGUE, "RENÉ", "It was René.", 1 },
        { KVL_SCORE_DIALOGUE, "STRASSE", "Straße", 1 },
        { KVL_SCORE_IN_UPPER, "Straße", "in der STRASSE", 1 },
        { KVL_SCORE_IN_UPPER, "οδοσ", "ΟΔΟΣ", 1 },
        /* A combining accent is no letter of a word: the article before it goes. */
        { KVL_SCORE_F1,
          "a\xcc\x81"
          "b c",
          "\xcc\x81"
          "b c",
          1 },
        { KVL_SCORE_F1, "aé c", "é c", 0.5 },
        /* Arabic-Indic digits are a number, which is not the answer. */
        { KVL_SCORE_COUNT, "3", "3 ٣", 0.5 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const struct kvl_gold gold = { .answer = &row[i].gold, .n = 1 };
        struct kvl_answer_score s;
        struct kvl_err err = { 0 };
        assert_int_equal(kvl_score_answer(row[i].scorer, &gold, row[i].said, &s, &err), KVL_OK);
        if (s.official < row[i].official || s.official > row[i].official)
            fail_msg("row %zu: %g, want %g", i, s.official, row[i].official);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
