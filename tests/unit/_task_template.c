/* template: what its scorers say, the layout of a context, and its bytes - a test of a task, to copy
 * (datasets/README.md has the commands).  What holds for every task is tests/conformance/check_task.h's.
 *
 *   1. Rows of the scorers: where there is a published one, with what it says, near misses above all.
 *   2. The layout, read back from the text: intro, items, questions, evidence.
 *   3. The hash of a sample: run the test, and put in what it prints.  Other bytes are another version.
 */
#include "task_maker.h"

static void test_scores(void **state)
{
    (void)state;
    static const struct {
        const char *gold, *prediction;
        bool official, strict;
    } rows[] = {
        { "river", " river.", true, true },    { "river", "\n river, road", true, true },
        { "river", "the river", true, false }, { "river", "rivers", true, false },
        { "river", "road", false, false },     { "river", "", false, false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char gold[32];
        struct kvl_task_score score;
        snprintf(gold, sizeof gold, "%s", rows[i].gold);
        struct kvl_question q = { .gold = gold };
        kvl_task_template->score(&q, rows[i].prediction, &score);
        if ((score.official >= 1.0) != rows[i].official || (score.strict >= 1.0) != rows[i].strict)
            fail_msg("\"%s\": %g and %g", rows[i].prediction, score.official, score.strict);
    }
}

static void test_layout(void **state)
{
    (void)state;
    for (int32_t k = 0; k < n_tokenizers; k++) {
        struct want w = { .task = kvl_task_template,
                          .options = "words=3",
                          .i_tokenizer = k,
                          .length = 900,
                          .depth = 0.5,
                          .n_questions = 3,
                          .seed = 5 };
        struct kvl_sample s = must_generate(&w);
        check_tokens(&w, &s);
        check_layout(&s, "Some words are hidden in the text below. Find them and remember them.");
        assert_int_equal(count(s.context, "The word of "), 3);
        for (int32_t i = 0; i < s.n_questions; i++) {
            check_question(&w, &s, &s.question[i]);
            check_span(&s, s.question[i].evidence[0].span[0], s.question[i].gold);
        }
        kvl_sample_free(&s);
    }
}

static void test_bytes(void **state)
{
    (void)state;
    struct want w = { .task = kvl_task_template, .length = 700, .depth = 0.5, .seed = 11 };
    uint64_t hash = hash_sample(&w);
    assert_int_equal(kvl_task_template->version, 1);
    if (hash != 0x872c3bec6efb012f) fail_msg("0x%016llx", (unsigned long long)hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_scores),
                                        cmocka_unit_test(test_layout),
                                        cmocka_unit_test(test_bytes) };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
