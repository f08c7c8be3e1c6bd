/* things: what its scorers say, the layout of a context, and its bytes. */
#include "task_maker.h"

static void test_scores(void **state)
{
    (void)state;
    static const struct {
        const char *gold, *prediction;
        bool official, strict;
    } rows[] = {
        { "0482", " 0482.", true, true },       { "0482", "\n0482 is it", true, true },
        { "0482", " 482.", false, false },      { "0482", " 04821.", false, false },
        { "0482", " It is 0482", true, false }, { "0482", " 0,482", false, false },
        { "0482", "", false, false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char gold[32];
        struct kvl_task_score score;
        snprintf(gold, sizeof gold, "%s", rows[i].gold);
        struct kvl_question q = { .gold = gold };
        kvl_task_things->score(&q, rows[i].prediction, &score);
        if ((score.official >= 1.0) != rows[i].official || (score.strict >= 1.0) != rows[i].strict)
            fail_msg("\"%s\": %g and %g", rows[i].prediction, score.official, score.strict);
    }
}

/* What a question is about: "What is the door code? The door code is" -> "door code". */
static void thing_of(const struct kvl_question *q, char out[64])
{
    assert_int_equal(sscanf(q->text, "What is the %63[^?]? The", out), 1);
}

static void check_item(const struct kvl_sample *s, const struct kvl_question *q)
{
    char thing[64], item[256];
    thing_of(q, thing);
    snprintf(item, sizeof item, "The %s is %s. Remember it: %s is the %s.", thing, q->gold, q->gold,
             thing);
    assert_int_equal(count(s->context, item), 1);
    assert_int_equal(count(s->context, thing), 2);
    assert_int_equal(q->evidence[0].kind, KVL_EVIDENCE_ANY);
    assert_int_equal(q->evidence[0].n_spans, 2);
    for (int32_t i = 0; i < 2; i++) check_span(s, q->evidence[0].span[i], q->gold);
}

/* A word of one thing is in no other one, nor in the filler: what is asked for is found by its words. */
static void check_words(const struct kvl_sample *s)
{
    for (int32_t i = 0; i < s->n_questions; i++) {
        char thing[64];
        thing_of(&s->question[i], thing);
        for (char *word = strtok(thing, " "); word; word = strtok(NULL, " ")) {
            char alone[64];
            snprintf(alone, sizeof alone, " %s ", word);
            if (count(s->context, alone) > 2) fail_msg("\"%s\" is in something else, too", word);
        }
    }
}

static void test_layout(void **state)
{
    (void)state;
    for (int32_t k = 0; k < n_tokenizers; k++) {
        struct want w = { .task = kvl_task_things,
                          .options = "keys=32",
                          .i_tokenizer = k,
                          .length = 2500,
                          .depth = -1,
                          .n_questions = 32,
                          .seed = 5 };
        struct kvl_sample s = must_generate(&w);
        check_tokens(&w, &s);
        check_layout(&s, "Some numbers are hidden in the text below. Find them and remember them.");
        for (int32_t i = 0; i < s.n_questions; i++) {
            check_question(&w, &s, &s.question[i]);
            check_item(&s, &s.question[i]);
            for (int32_t j = 0; j < i; j++)
                assert_string_not_equal(s.question[i].text, s.question[j].text);
        }
        check_words(&s);
        kvl_sample_free(&s);
    }
}

static void test_one(void **state)
{
    (void)state;
    struct want w = { .task = kvl_task_things,
                      .options = "keys=1,digits=7,wording=2",
                      .length = 300,
                      .depth = 0.5,
                      .seed = 3 };
    struct kvl_sample s = must_generate(&w);
    check_layout(&s, "A number is hidden in the text below. Find it and remember it.");
    assert_int_equal(strlen(s.question[0].gold), 7);
    assert_memory_equal(s.question[0].text, "Tell me the ", 12);
    kvl_sample_free(&s);
}

static void test_bytes(void **state)
{
    (void)state;
    struct want w = { .task = kvl_task_things, .length = 700, .depth = 0.5, .seed = 11 };
    uint64_t hash = hash_sample(&w);
    assert_int_equal(kvl_task_things->version, 1);
    if (hash != 0x7f554cd31aae8c51) fail_msg("0x%016llx", (unsigned long long)hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_scores),
                                        cmocka_unit_test(test_layout), cmocka_unit_test(test_one),
                                        cmocka_unit_test(test_bytes) };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
