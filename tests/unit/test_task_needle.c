/* needle and number_string: items, questions, spans and languages, read back from the text; and the
 * wordings of every task. */
#include "task_maker.h"

/* ---- needle -------------------------------------------------------------------------------- */

static const struct language {
    const char *name, *intro, *intro_many, *item, *question[3];
} languages[] = {
    { "english",
      "A fact is hidden in the text below. Find it and remember it.",
      "Some facts are hidden in the text below. Find them and remember them.",
      "The magic number of %s is %s.",
      { "What is the magic number of %s? The magic number of %s is",
        "Tell me the magic number of %s. The magic number of %s is",
        "Which magic number belongs to %s? It is" } },
    { "german",
      "Im folgenden Text ist eine Tatsache versteckt. Finde sie und merke sie dir.",
      "Im folgenden Text sind einige Tatsachen versteckt. Finde sie und merke sie dir.",
      "Die magische Zahl von %s ist %s.",
      { "Was ist die magische Zahl von %s? Die magische Zahl von %s ist",
        "Nenne mir die magische Zahl von %s. Die magische Zahl von %s ist",
        "Welche magische Zahl gehört zu %s? Sie ist" } },
};

/* Puts the arguments in place of "%s", in order; the last one again when there are too few. */
static const char *fill(char out[256], const char *format, const char *a, const char *b)
{
    size_t n = 0;
    for (const char *p = format; *p; p++) {
        bool field = p[0] == '%' && p[1] == 's';
        n += (size_t)snprintf(out + n, 256 - n, "%.*s", field ? 256 : 1, field ? a : p);
        assert_true(n < 256);
        if (field) a = b, p++;
    }
    return out;
}

/* The city of a question, by trying all words that begin with a capital letter. */
static void find_city(const char *question, const char *format, char city[32])
{
    char text[256];
    for (const char *p = question; *p; p++) {
        size_t len = 0;
        while (len < 31 && p[len] >= 'A' && p[len] <= 'z') len++;
        memcpy(city, p, len);
        city[len] = '\0';
        if (len > 2 && strcmp(fill(text, format, city, city), question) == 0) return;
    }
    fail_msg("\"%s\" is not \"%s\"", question, format);
}

static void check_fact(const struct kvl_sample *s, const struct kvl_question *q,
                       const struct language *l, int32_t wording)
{
    char city[32], text[256];
    find_city(q->text, l->question[wording - 1], city);
    fill(text, l->item, city, q->gold);
    assert_int_equal(count(s->context, text), 1);
    assert_int_equal(count(s->context, q->gold), 1);
    assert_int_equal(q->answer[0], ' ');
    assert_string_equal(q->answer + 1, q->gold);
    assert_int_equal(q->n_evidence, 1);
    assert_int_equal(q->evidence[0].kind, KVL_EVIDENCE_ALL);
    assert_int_equal(q->evidence[0].n_spans, 1);
    assert_string_equal(q->evidence[0].after, "");
    check_span(s, q->evidence[0].span[0], q->gold);
}

static int32_t digits_of(const char *s)
{
    int32_t n = 0;
    for (; *s; s++) n += *s >= '0' && *s <= '9';
    return n;
}

static void check_needle(struct want *w, int32_t i_language, int32_t facts, int32_t digits,
                         int32_t wording)
{
    char options[128];
    const struct language *l = &languages[i_language];
    snprintf(options, sizeof options, "facts=%d,digits=%d,language=%s,wording=%d", facts, digits,
             l->name, wording);
    w->task = kvl_task_needle;
    w->options = options;
    struct kvl_sample s = must_generate(w);
    check_tokens(w, &s);
    check_layout(&s, facts == 1 ? l->intro : l->intro_many);
    assert_int_equal(count(s.context, "\n"), 2);
    assert_int_equal(digits_of(s.context), facts * digits);
    for (int32_t i = 0; i < s.n_questions; i++) {
        assert_int_equal(strlen(s.question[i].gold), digits);
        check_question(w, &s, &s.question[i]);
        check_fact(&s, &s.question[i], l, wording);
        for (int32_t j = 0; j < i; j++)
            assert_string_not_equal(s.question[i].text, s.question[j].text);
    }
    kvl_sample_free(&s);
}

static void test_needle(void **state)
{
    (void)state;
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (uint64_t seed = 0; seed < 12; seed++) {
            struct want w = { .i_tokenizer = k,
                              .seed = seed,
                              .length = 501 + (int32_t)(seed * seed * 7),
                              .depth = (double)(seed % 12) / 10.0 - 0.1 };
            int32_t language = seed % 2, wording = 1 + (int32_t)(seed % 3);
            check_needle(&w, language, 1, 7, wording);
            w.n_questions = 1 + (int32_t)(seed % 5);
            w.length += 211;
            check_needle(&w, language, 5, 1 + (int32_t)seed, wording);
        }
    struct want two = { .length = 999, .n_questions = 2, .depth = 0.5 };
    struct want most = { .length = 4000, .n_questions = 30 };
    check_needle(&most, 0, 30, 7, 1);
    check_needle(&two, 0, 2, 7, 2);
    check_needle(&two, 1, 2, 7, 1);
    check_needle(&most, 1, 30, 32, 3);
}

/* Filler of one language has no word of the other. */
static void test_languages(void **state)
{
    (void)state;
    static const char *const foreign[] = { " the ", " der " };
    for (int32_t i = 0; i < 2; i++) {
        struct want w = { .task = kvl_task_needle, .length = 20000 };
        w.options = i == 0 ? "language=german" : "";
        struct kvl_sample s = must_generate(&w);
        assert_int_equal(count(s.context, foreign[i]), 0);
        assert_in_range(count(s.context, foreign[1 - i]), 20, 2000);
        kvl_sample_free(&s);
    }
}

/* German grammar: article and ending fit the noun behind them, in every sentence that there is. */
static void test_german_articles(void **state)
{
    (void)state;
    static const struct {
        const char *noun, *right, *wrong;
    } rows[] = {
        { "Fluss", "der den dem", "die das eine" },   { "Hafen", "der den dem", "die das eine" },
        { "Brücke", "die der eine", "den dem das" },  { "Katze", "die der eine", "den dem das" },
        { "Fenster", "das dem", "der die den eine" }, { "Kind", "das dem", "der die den eine" },
    };
    struct want w = { .task = kvl_task_needle, .options = "language=german", .length = 300000 };
    struct kvl_sample s = must_generate(&w);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int32_t wrong = 0; wrong < 2; wrong++) {
            char words[64], text[128];
            int32_t n = 0;
            strcpy(words, wrong ? rows[i].wrong : rows[i].right);
            for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
                snprintf(text, sizeof text, " %s %s", word, rows[i].noun);
                n += count(s.context, text);
            }
            assert_true(wrong ? n == 0 : n > 20);
        }
    kvl_sample_free(&s);
}

/* ---- number_string ------------------------------------------------------------------------- */

/* Takes out doubled digits one by one; five digits remain for every value that doubling made. */
static bool doubled_from_five(const char *value)
{
    char rest[16];
    size_t n = strlen(value);
    if (n == 5) return true;
    for (size_t i = 1; i < n; i++) {
        if (value[i] != value[i - 1]) continue;
        memcpy(rest, value, i);
        memcpy(rest + i, value + i + 1, n - i);
        return doubled_from_five(rest);
    }
    return false;
}

static void test_number_string(void **state)
{
    (void)state;
    int32_t runs[11] = { 0 };
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct want w = { .task = kvl_task_number_string,
                          .i_tokenizer = (int32_t)(seed % (uint64_t)n_tokenizers),
                          .seed = seed,
                          .length = 500 + (int32_t)seed,
                          .depth = (double)(seed % 12) / 10.0 - 0.1 };
        struct kvl_sample s = must_generate(&w);
        struct kvl_question *q = &s.question[0];
        char item[256];
        check_tokens(&w, &s);
        check_layout(&s, "A sequence of digits is hidden in the text below. Find it and remember "
                         "it.");
        check_question(&w, &s, q);
        assert_string_equal(q->text, "What is the sequence of digits? The sequence of digits is");
        fill(item, "The sequence of digits is %s. Remember it: %s is the sequence of digits.",
             q->gold, q->gold);
        assert_int_equal(count(s.context, item), 1);
        assert_int_equal(digits_of(s.context), 20);
        assert_int_equal(strlen(q->gold), 10);
        assert_true(doubled_from_five(q->gold));
        assert_int_equal(q->evidence[0].kind, KVL_EVIDENCE_ANY);
        assert_int_equal(q->evidence[0].n_spans, 2);
        check_span(&s, q->evidence[0].span[0], q->gold);
        check_span(&s, q->evidence[0].span[1], q->gold);
        assert_true(q->evidence[0].span[0].end < q->evidence[0].span[1].begin);
        int32_t n = 1;
        for (size_t i = 1; i < 10; i++) n += q->gold[i] != q->gold[i - 1];
        runs[n]++;
        kvl_sample_free(&s);
    }
    /* Five digits that differ from their neighbours: 0.9^4 of all; four runs: 4 x 0.9^3 x 0.1. */
    assert_in_range(runs[5], 170, 225);
    assert_in_range(runs[4], 60, 115);
}

/* ---- wordings ------------------------------------------------------------------------------ */

/* Another wording asks about the same context and expects the same answer. */
static void check_wordings(struct want w, const char *one, const char *two, const char *three)
{
    const char *const begins[] = { one, two, three };
    const char *options = w.options;
    struct kvl_sample first = must_generate(&w);
    for (int32_t i = 0; i < 3; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s%swording=%d", options, options[0] ? "," : "", i + 1);
        w.options = text;
        struct kvl_sample s = must_generate(&w);
        assert_string_equal(s.context, first.context);
        for (int32_t q = 0; q < s.n_questions; q++) {
            assert_string_equal(s.question[q].answer, first.question[q].answer);
            if (strncmp(s.question[q].text, begins[i], strlen(begins[i])) != 0)
                fail_msg("\"%s\" is not \"%s ...\"", s.question[q].text, begins[i]);
            check_question(&w, &s, &s.question[q]);
        }
        kvl_sample_free(&s);
    }
    kvl_sample_free(&first);
}

static void test_wordings(void **state)
{
    (void)state;
    for (int32_t k = 0; k < n_tokenizers; k++) {
        struct want w = { .i_tokenizer = k, .length = 1500, .depth = 0.4, .options = "" };
        w.task = kvl_task_passkey;
        check_wordings(w, "What is the pass key?", "Tell me the pass key.",
                       "Which pass key was hidden in the text?");
        w.task = kvl_task_number_string;
        check_wordings(w, "What is the sequence of digits?", "Tell me the sequence of digits.",
                       "Which sequence of digits was hidden in the text?");
        w.n_questions = 3;
        w.task = kvl_task_kv_retrieval;
        check_wordings(w, "What is the value of the key \"", "Look up the key \"",
                       "Which value belongs to the key \"");
        w.task = kvl_task_two_stage_retr;
        check_wordings(w, "What is the color of ", "Add ", "Which color belongs to ");
        w.options = "answer=direct";
        check_wordings(w, "What is the color of ", "Add ", "Which color belongs to ");
        w.task = kvl_task_passkey;
        w.options = "keys=3";
        check_wordings(w, "What is the pass key of ", "Tell me the pass key of ",
                       "Which pass key belongs to ");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_needle),          cmocka_unit_test(test_languages),
        cmocka_unit_test(test_german_articles), cmocka_unit_test(test_number_string),
        cmocka_unit_test(test_wordings),
    };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
