/* cwe and fwe: words, how often they come, questions and answers, read back from the text by code that
 * shares nothing with the generators. */
#include "task_maker.h"

enum { WORD = 64, MOST_WORDS = 1 << 17 };

struct word {
    char text[WORD];
    int32_t first, times;
};

static struct word words[MOST_WORDS];
static int32_t n_words;

/* Reads the words of a line, with their numbers where it is a list; returns how many there are. */
static int32_t read_words(const char *line, bool numbered)
{
    int32_t n = 0;
    for (const char *p = line; *p != '\n'; n++) {
        char number[16];
        size_t len;
        snprintf(number, sizeof number, "%d. ", n + 1);
        if (numbered) assert_memory_equal(p, number, strlen(number));
        if (numbered) p += strlen(number);
        len = strcspn(p, " \n");
        assert_in_range(len, 1, WORD - 1);
        assert_true(n < MOST_WORDS);
        words[n] = (struct word){ .first = n, .times = 1 };
        memcpy(words[n].text, p, len);
        p += len + (p[len] == ' ');
    }
    return n;
}

static int compare_word(const void *a, const void *b)
{
    const struct word *x = a, *y = b;
    int c = strcmp(x->text, y->text);
    return c ? c : x->first - y->first;
}

static int compare_first(const void *a, const void *b)
{
    return ((const struct word *)a)->first - ((const struct word *)b)->first;
}

static int compare_times(const void *a, const void *b)
{
    return ((const struct word *)b)->times - ((const struct word *)a)->times;
}

/* Makes one of all equal words: where it comes first, and how often. */
static void count_words(int32_t n)
{
    qsort(words, (size_t)n, sizeof *words, compare_word);
    n_words = 0;
    for (int32_t i = 0; i < n; i++) {
        if (n_words > 0 && strcmp(words[n_words - 1].text, words[i].text) == 0)
            words[n_words - 1].times++;
        else
            words[n_words++] = words[i];
    }
}

static size_t last_begin(const struct kvl_sample *s)
{
    size_t begin = strlen(s->context) - 1;
    while (s->context[begin - 1] != '\n') begin--;
    return begin;
}

/* The last line; before it at most one of whole sentences, which is short: a larger text, by `step`
 * words, would not fit. */
static const char *last_line(const struct kvl_sample *s, const char *intro, int32_t step)
{
    size_t begin = last_begin(s);
    check_layout(s, intro);
    assert_in_range(count(s->context, "\n"), 2, 3);
    assert_true(begin < strlen(intro) + (size_t)(6 * UNIT_TOK + 60 * step));
    if (count(s->context, "\n") == 3) assert_int_equal(s->context[begin - 2], '.');
    return s->context + begin;
}

/* The gold parts are the first n words, in their order. */
static void check_answer(const struct want *w, const struct kvl_sample *s, int32_t n)
{
    struct kvl_question *q = &s->question[0];
    struct kvl_tokens answer = encode(w, q->answer, KVL_ENCODE_CONTINUE);
    struct kvl_task_score score;
    struct kvl_buf gold = { 0 };
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(kvl_buf_printf(&gold, "%s%s", i ? ", " : "", words[i].text), KVL_OK);
    assert_string_equal(q->gold, gold.data);
    assert_int_equal(q->answer[0], ' ');
    assert_string_equal(q->answer + 1, gold.data);
    kvl_buf_free(&gold);
    assert_int_equal(s->n_questions, 1);
    assert_int_equal(q->n_evidence, 0); /* all of the list has to be counted */
    assert_true(isnan(q->depth));
    assert_int_equal(q->max_new_tok, answer.n + 2);
    kvl_tokens_free(&answer);
    check_joint(w, s, q);
    w->task->score(q, q->answer, &score);
    assert_true(score.official == 1.0 && score.strict == 1.0);
}

/* ---- cwe --------------------------------------------------------------------------------------- */

static const char cwe_intro[] =
    "Below is a list of values. Some of them are in the list often. Find them and remember them.";

/* A word that is put together has no part twice in a row. */
static bool is_doubled(const char *word)
{
    size_t half = strlen(word) / 2;
    return strlen(word) % 2 == 0 && strncmp(word, word + half, half) == 0;
}

/* Returns the number of uncommon words. */
static int32_t check_cwe(const struct want *w, int32_t asked, int32_t common, int32_t uncommon)
{
    struct kvl_sample s = must_generate(w);
    char text[128];
    int32_t n_common = 0;
    check_tokens(w, &s);
    count_words(read_words(last_line(&s, cwe_intro, uncommon), true));
    qsort(words, (size_t)n_words, sizeof *words, compare_first);
    for (int32_t i = 0; i < n_words; i++) {
        assert_false(is_doubled(words[i].text));
        if (words[i].times != common) {
            assert_int_equal(words[i].times, uncommon);
            continue;
        }
        struct word x = words[i]; /* common ones to the front, in their order */
        memmove(&words[n_common + 1], &words[n_common], (size_t)(i - n_common) * sizeof x);
        words[n_common++] = x;
    }
    assert_int_equal(n_common, asked);
    assert_true(n_words >= 2 * asked);
    snprintf(text, sizeof text,
             "What are the %d values that are often in the list? The %d values are", asked, asked);
    if (!w->options || !strstr(w->options, "wording"))
        assert_string_equal(s.question[0].text, text);
    check_answer(w, &s, asked);
    kvl_sample_free(&s);
    return n_words - n_common;
}

static void test_cwe(void **state)
{
    (void)state;
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            struct want w = { .task = kvl_task_cwe,
                              .i_tokenizer = k,
                              .seed = seed,
                              .length = 3500 + 101 * (int32_t)seed,
                              .depth = (double)seed / 2.0 - 0.5 };
            w.options = "";
            check_cwe(&w, 10, 6, 1);
            w.options = "words=3,common=9,uncommon=8";
            check_cwe(&w, 3, 9, 8);
            w.options = "words=32,common=4,max_new=400";
            struct kvl_sample s = must_generate(&w);
            assert_int_equal(s.question[0].max_new_tok, 400);
            kvl_sample_free(&s);
            w.length = 4096 + (int32_t)seed; /* from here on RULER's larger numbers */
            w.options = "";
            check_cwe(&w, 10, 30, 3);
            w.options = "common=2";
            check_cwe(&w, 10, 2, 1);
        }
    struct want tiny = { .task = kvl_task_cwe, .length = 700 };
    check_cwe(&tiny, 10, 3, 1); /* bytes: 6 times 10 words are too many */
}

/* Long contexts use up the plain words: others are put together, and all are different. */
static void test_cwe_long(void **state)
{
    (void)state;
    for (int32_t k = 0; k < n_tokenizers; k++) {
        struct want w = { .task = kvl_task_cwe, .i_tokenizer = k, .length = 65536 };
        int32_t n = check_cwe(&w, 10, 30, 3);
        assert_in_range(n, 1100, 5000);
        w.options = "uncommon=1"; /* more words than two parts make */
        n = check_cwe(&w, 10, 30, 1);
        assert_in_range(n, 3300, 14000);
    }
}

/* ---- fwe --------------------------------------------------------------------------------------- */

static const char fwe_intro[] =
    "Below is a text of values. The ... in it are ignored. Some values are in the "
    "text often. Find them and remember them.";

/* There is an n such that word k comes n k^-alpha / zeta times, rounded down. */
static bool is_zipf(double alpha, double zeta)
{
    int32_t end = (int32_t)((words[0].times + 1) * zeta) + 1;
    for (int32_t n = (int32_t)(words[0].times * zeta); n < end; n++) {
        int32_t k = 0;
        while (k < n_words && (int32_t)(n * pow(k + 1, -alpha) / zeta) == words[k].times) k++;
        if (k == n_words) return true;
    }
    return false;
}

static void check_fwe(const struct want *w, int32_t asked, double alpha, double zeta, bool coded)
{
    struct kvl_sample s = must_generate(w);
    char text[128];
    check_tokens(w, &s);
    assert_memory_equal(last_line(&s, fwe_intro, 1), "... ", 4);
    count_words(read_words(last_line(&s, fwe_intro, 1), false));
    qsort(words, (size_t)n_words, sizeof *words, compare_times);
    assert_string_equal(words[0].text, "...");
    for (int32_t i = 0; i <= asked && i + 1 < n_words; i++)
        assert_true(words[i].times > words[i + 1].times);
    assert_true(is_zipf(alpha, zeta));
    for (int32_t i = 1; i < n_words; i++) {
        size_t letters = strspn(words[i].text, "abcdefghijklmnopqrstuvwxyz");
        if (coded) assert_true(letters == 6 && words[i].text[6] == '\0');
    }
    snprintf(text, sizeof text,
             "What are the %d values that are often in the text? The %d values are", asked, asked);
    assert_string_equal(s.question[0].text, text);
    memmove(words, words + 1, (size_t)asked * sizeof *words);
    check_answer(w, &s, asked);
    kvl_sample_free(&s);
}

static void test_fwe(void **state)
{
    (void)state;
    static const double zeta_2 = 1.6449340668482264, zeta_3 = 1.2020569031595943,
                        zeta_1_5 = 2.6123753486854883;
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            struct want w = { .task = kvl_task_fwe,
                              .i_tokenizer = k,
                              .seed = seed,
                              .length = 3000 + 101 * (int32_t)seed,
                              .depth = (double)seed / 2.0 - 0.5 };
            w.options = "";
            check_fwe(&w, 3, 2.0, zeta_2, false);
            w.options = "words=coded,asked=2,alpha=3";
            check_fwe(&w, 2, 3.0, zeta_3, true);
            w.options = "asked=1,alpha=1.5";
            check_fwe(&w, 1, 1.5, zeta_1_5, false);
        }
    struct want many = { .task = kvl_task_fwe, .length = 65536, .options = "words=coded" };
    check_fwe(&many, 3, 2.0, zeta_2, true);
}

/* Short texts are refused until what is asked for is clear. */
static void test_fwe_short(void **state)
{
    (void)state;
    int32_t n = 0;
    for (int32_t length = 100; length < 900; length += 7) {
        struct want w = { .task = kvl_task_fwe, .length = length };
        struct kvl_sample s = { 0 };
        struct kvl_err err = { 0 };
        if (generate(&w, &s, &err) == KVL_OK) {
            count_words(read_words(s.context + last_begin(&s), false));
            qsort(words, (size_t)n_words, sizeof *words, compare_times);
            for (int32_t i = 0; i < 4; i++) assert_true(words[i].times > words[i + 1].times);
            n++;
        }
        kvl_sample_free(&s);
    }
    assert_in_range(n, 40, 100);
}

/* ---- wordings ---------------------------------------------------------------------------------- */

/* Another wording asks about the same context and expects the same answer. */
static void check_wordings(struct want w, const char *const begin[3])
{
    struct kvl_sample first = must_generate(&w);
    for (int32_t i = 0; i < 3; i++) {
        char options[16];
        snprintf(options, sizeof options, "wording=%d", i + 1);
        w.options = options;
        struct kvl_sample s = must_generate(&w);
        assert_string_equal(s.context, first.context);
        assert_string_equal(s.question[0].answer, first.question[0].answer);
        assert_string_equal(s.question[0].text, begin[i]);
        check_joint(&w, &s, &s.question[0]);
        kvl_sample_free(&s);
    }
    kvl_sample_free(&first);
}

static void test_wordings(void **state)
{
    (void)state;
    static const char *const cwe[] = {
        "What are the 10 values that are often in the list? The 10 values are",
        "Tell me the 10 values that are often in the list. The values are",
        "Which 10 values are in the list again and again? The values are",
    };
    static const char *const fwe[] = {
        "What are the 3 values that are often in the text? The 3 values are",
        "Tell me the 3 values that are often in the text. The values are",
        "Which 3 values are in the text again and again? The values are",
    };
    for (int32_t k = 0; k < n_tokenizers; k++) {
        check_wordings((struct want){ .task = kvl_task_cwe, .i_tokenizer = k, .length = 2000 },
                       cwe);
        check_wordings((struct want){ .task = kvl_task_fwe, .i_tokenizer = k, .length = 2000 },
                       fwe);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cwe),      cmocka_unit_test(test_cwe_long),
        cmocka_unit_test(test_fwe),      cmocka_unit_test(test_fwe_short),
        cmocka_unit_test(test_wordings),
    };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
