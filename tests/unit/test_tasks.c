/* The samples of the tasks: layout, items, questions, spans and answers, read back from the text by
 * code that shares nothing with the generators. */
#include "task_maker.h"

/* ---- passkey ------------------------------------------------------------------------------- */

static void check_passkey_item(const struct kvl_sample *s, const struct kvl_question *q)
{
    char item[256], answer[64], question[128], name[32] = "";
    const char *of = strstr(q->text, " of ");
    if (of) {
        size_t len = strcspn(of + 4, "?");
        assert_in_range(len, 1, sizeof name - 1);
        memcpy(name, of + 4, len);
    }
    const char *link = of ? " of " : "";
    snprintf(item, sizeof item, "The pass key%s%s is %s. Remember it: %s is the pass key%s%s.",
             link, name, q->gold, q->gold, link, name);
    snprintf(question, sizeof question, "What is the pass key%s%s? The pass key%s%s is", link, name,
             link, name);
    snprintf(answer, sizeof answer, " %s", q->gold);
    assert_string_equal(q->text, question);
    assert_string_equal(q->answer, answer);
    assert_int_equal(count(s->context, item), 1);
    assert_int_equal(count(s->context, q->gold), 2);
    assert_int_equal(q->n_evidence, 1);
    assert_int_equal(q->evidence[0].kind, KVL_EVIDENCE_ANY);
    assert_int_equal(q->evidence[0].n_spans, 2);
    size_t at = (size_t)(strstr(s->context, item) - s->context);
    check_span(s, q->evidence[0].span[0], q->gold);
    check_span(s, q->evidence[0].span[1], q->gold);
    assert_true(q->evidence[0].span[0].begin > at);
    assert_true(q->evidence[0].span[1].begin > q->evidence[0].span[0].end);
    assert_true(q->evidence[0].span[1].end < at + strlen(item));
}

/* Runs of digits in a text: nothing but the items has any. */
static int32_t digit_runs(const char *s)
{
    int32_t n = 0;
    for (; *s; s++) n += *s >= '0' && *s <= '9' && !(s[1] >= '0' && s[1] <= '9');
    return n;
}

static void check_passkey(const struct want *w, int32_t keys, size_t digits)
{
    struct kvl_sample s = must_generate(w);
    check_tokens(w, &s);
    check_layout(&s, keys == 1 ? "A pass key is hidden in the text below. Find it and remember it."
                               : "Some pass keys are hidden in the text below. Find them and "
                                 "remember them.");
    assert_int_equal(count(s.context, "\n"), 2);
    assert_int_equal(digit_runs(s.context), 2 * keys);
    assert_int_equal(s.n_questions, KVL_MAX(1, w->n_questions));
    for (int32_t i = 0; i < s.n_questions; i++) {
        assert_int_equal(strlen(s.question[i].gold), digits);
        check_question(w, &s, &s.question[i]);
        check_passkey_item(&s, &s.question[i]);
        for (int32_t j = 0; j < i; j++) /* different keys, so different questions */
            assert_string_not_equal(s.question[i].text, s.question[j].text);
    }
    kvl_sample_free(&s);
}

static void test_passkey(void **state)
{
    (void)state;
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (uint64_t seed = 0; seed < 16; seed++) {
            struct want w = { .task = kvl_task_passkey,
                              .i_tokenizer = k,
                              .seed = seed,
                              .length = 500 + (int32_t)(seed * seed * 7),
                              .depth = (double)(seed % 12) / 10.0 - 0.1 };
            check_passkey(&w, 1, 5);
            w.options = "keys=4,digits=7";
            w.n_questions = 1 + (int32_t)(seed % 4);
            w.length += 211;
            check_passkey(&w, 4, 7);
        }
    struct want many = { .task = kvl_task_passkey, .length = 8000, .n_questions = 32 };
    many.options = "keys=32,digits=2";
    check_passkey(&many, 32, 2);
    many.options = "keys=32,digits=32";
    check_passkey(&many, 32, 32);
    many.options = "keys=10,digits=1"; /* every digit is a key */
    many.n_questions = 10;
    check_passkey(&many, 10, 1);
}

/* Leading zeros stay. */
static void test_passkey_zeros(void **state)
{
    (void)state;
    int32_t zeros = 0;
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct want w = { .task = kvl_task_passkey, .length = 400, .seed = seed };
        struct kvl_sample s = must_generate(&w);
        zeros += s.question[0].gold[0] == '0';
        kvl_sample_free(&s);
    }
    assert_in_range(zeros, 5, 40); /* a tenth */
}

/* ---- kv_retrieval -------------------------------------------------------------------------- */

struct list {
    char (*key)[65], (*value)[65];
    int32_t n;
    size_t begin; /* of the list in the context */
};

/* Copies what stands between quotes at p and returns what follows. */
static const char *take_quoted(const char *p, char out[65])
{
    assert_int_equal(*p, '"');
    size_t n = strcspn(p + 1, "\"");
    assert_in_range(n, 1, 64);
    memcpy(out, p + 1, n);
    out[n] = '\0';
    assert_int_equal(strspn(out, "0123456789abcdef-"), n);
    return p + n + 2;
}

/* Reads `{"k": "v",\n "k": "v"}` to the letter. */
static struct list read_list(const char *context)
{
    const char *p = strstr(context, "\n{");
    assert_non_null(p);
    int32_t most = count(p, "\n");
    struct list l = { .begin = (size_t)(p + 1 - context) };
    l.key = calloc((size_t)most, sizeof *l.key);
    l.value = calloc((size_t)most, sizeof *l.value);
    p += 2;
    for (;;) {
        assert_true(l.n < most);
        p = take_quoted(p, l.key[l.n]);
        assert_memory_equal(p, ": ", 2);
        p = take_quoted(p + 2, l.value[l.n++]);
        if (*p == '}') break;
        assert_memory_equal(p, ",\n ", 3);
        p += 3;
    }
    assert_int_equal(p[1], '\n');
    return l;
}

static void free_list(struct list *l)
{
    free(l->key);
    free(l->value);
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void check_distinct(const struct list *l)
{
    size_t n = (size_t)l->n;
    char(*all)[65] = calloc(2 * n, sizeof *all);
    memcpy(all, l->key, n * sizeof *all);
    memcpy(all + n, l->value, n * sizeof *all);
    qsort(all, 2 * n, sizeof *all, compare_text);
    for (size_t i = 1; i < 2 * n; i++) assert_string_not_equal(all[i - 1], all[i]);
    free(all);
}

static void check_kv_question(const struct kvl_sample *s, const struct list *l,
                              const struct kvl_question *q)
{
    char text[256], answer[80];
    int32_t i = 0;
    while (i < l->n && !strstr(q->text, l->key[i])) i++;
    assert_true(i < l->n);
    snprintf(text, sizeof text, "What is the value of the key \"%s\"? The value is \"", l->key[i]);
    snprintf(answer, sizeof answer, "%s\"", l->value[i]);
    assert_string_equal(q->text, text);
    assert_string_equal(q->answer, answer);
    assert_string_equal(q->gold, l->value[i]);
    assert_int_equal(q->n_evidence, 2);
    for (int32_t g = 0; g < 2; g++) {
        assert_int_equal(q->evidence[g].kind, KVL_EVIDENCE_ALL);
        assert_int_equal(q->evidence[g].n_spans, 1);
        check_span(s, q->evidence[g].span[0], g == 0 ? l->key[i] : l->value[i]);
    }
    assert_int_equal(q->evidence[1].span[0].begin, q->evidence[0].span[0].end + strlen("\": \""));
}

/* Returns the number of pairs. */
static int32_t check_kv(const struct want *w, size_t n_key, size_t n_value)
{
    struct kvl_sample s = must_generate(w);
    struct list l = read_list(s.context);
    check_tokens(w, &s);
    check_layout(&s, "Below is a list of keys and values. Find the value of the key that is asked "
                     "for.");
    check_distinct(&l);
    for (int32_t i = 0; i < l.n; i++) {
        assert_int_equal(strlen(l.key[i]), n_key);
        assert_int_equal(strlen(l.value[i]), n_value);
    }
    for (int32_t i = 0; i < s.n_questions; i++) {
        check_question(w, &s, &s.question[i]);
        check_kv_question(&s, &l, &s.question[i]);
        if (n_key == n_value) assert_int_equal(count(s.context, s.question[i].gold), 1);
        for (int32_t j = 0; j < i; j++)
            assert_string_not_equal(s.question[i].text, s.question[j].text);
    }
    int32_t n = l.n;
    free_list(&l);
    kvl_sample_free(&s);
    return n;
}

static void test_kv(void **state)
{
    (void)state;
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (uint64_t seed = 0; seed < 16; seed++) {
            struct want w = { .task = kvl_task_kv_retrieval,
                              .i_tokenizer = k,
                              .seed = seed,
                              .length = 1000 + (int32_t)(seed * seed * 7),
                              .n_questions = 1 + (int32_t)(seed % 5),
                              .depth = (double)(seed % 12) / 10.0 - 0.1 };
            check_kv(&w, 8, 8);
            w.options = "uuid=true,key_digits=5";
            check_kv(&w, 36, 36);
            w.options = "key_digits=4,value_digits=17";
            check_kv(&w, 4, 17);
            w.options = "pairs=9";
            assert_int_equal(check_kv(&w, 8, 8), 9);
        }
}

/* A third of all strings of 4 digits is in use, and none twice. */
static void test_kv_distinct(void **state)
{
    (void)state;
    struct want w = { .task = kvl_task_kv_retrieval, .length = 200000, .n_questions = 3 };
    w.options = "key_digits=4,value_digits=4";
    assert_in_range(check_kv(&w, 4, 4), 11000, 12000);
}

/* The list takes nearly the whole context; what filler there is stands before it. */
static void test_kv_fills(void **state)
{
    (void)state;
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (int32_t length = 3000; length < 3012; length++) {
            struct want w = { .task = kvl_task_kv_retrieval, .i_tokenizer = k, .length = length };
            struct kvl_sample s = must_generate(&w);
            struct list l = read_list(s.context);
            const char *end = strstr(s.context, "\"}\n");
            assert_non_null(end);
            assert_int_equal(end[3], '\0');
            assert_true(l.begin < 85 + 4 * UNIT_TOK);
            assert_int_not_equal(s.context[l.begin - 2], ' ');
            assert_int_equal(s.context[l.begin - 2], '.'); /* whole sentences */
            free_list(&l);
            kvl_sample_free(&s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_passkey),  cmocka_unit_test(test_passkey_zeros),
        cmocka_unit_test(test_kv),       cmocka_unit_test(test_kv_distinct),
        cmocka_unit_test(test_kv_fills),
    };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
