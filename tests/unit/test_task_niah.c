/* niah_multikey, niah_multivalue, niah_multiquery and vt: needles, statements, questions, spans and
 * answers, read back from the text by code that shares nothing with the generators. */
#include "task_maker.h"

enum { MOST_ITEMS = 8192, MOST_PARTS = 16, KEYS = 64, WORD = 64 };

/* ---- needles ----------------------------------------------------------------------------------- */

struct needle {
    char key[WORD], value[WORD];
    size_t at; /* of the value in the context */
};

static struct needle needles[MOST_ITEMS];
static int32_t n_needles;

/* Copies text up to `end`, without the quotes of a uuid; returns where it begins. */
static const char *take(const char *p, const char *end, char out[WORD])
{
    if (*p == '"') {
        assert_int_equal(end - p, 38);
        assert_int_equal(*--end, '"');
        p++;
    }
    assert_in_range(end - p, 1, WORD - 1);
    memcpy(out, p, (size_t)(end - p));
    out[end - p] = '\0';
    assert_null(strchr(out, '"'));
    return p;
}

static void read_needles(const char *context)
{
    static const char begin[] = "The magic value of ";
    n_needles = 0;
    for (const char *p = context; (p = strstr(p, begin)) != NULL; n_needles++) {
        struct needle *x = &needles[n_needles];
        assert_true(n_needles < MOST_ITEMS);
        p += strlen(begin);
        const char *is = strstr(p, " is "), *end = strchr(is, '.');
        take(p, is, x->key);
        x->at = (size_t)(take(is + 4, end, x->value) - context);
        p = end;
    }
}

static bool is_uuid(const char *s)
{
    static const char form[] = "xxxxxxxx-xxxx-4xxx-yxxx-xxxxxxxxxxxx";
    for (size_t i = 0; i < sizeof form; i++) {
        if (form[i] == 'x' && s[i] && strchr("0123456789abcdef", s[i])) continue;
        if (form[i] == 'y' && s[i] && strchr("89ab", s[i])) continue;
        if (form[i] != s[i]) return false;
    }
    return true;
}

static bool is_number(const char *s)
{
    return strlen(s) == 7 && strspn(s, "0123456789") == 7 && s[0] != '0';
}

static bool is_words(const char *s)
{
    return s[strspn(s, "abcdefghijklmnopqrstuvwxyz ")] == '\0' && strchr(s, ' ');
}

/* "words", "numbers", "uuids" */
static void check_type(const char *s, const char *type)
{
    bool ok = type[0] == 'u' ? is_uuid(s) : type[0] == 'n' ? is_number(s) : is_words(s);
    if (!ok) fail_msg("\"%s\" is no %s", s, type);
}

static int32_t values_of(const char *key)
{
    int32_t n = 0;
    for (int32_t i = 0; i < n_needles; i++) n += strcmp(needles[i].key, key) == 0;
    return n;
}

/* ---- parts of an answer ------------------------------------------------------------------------ */

struct part {
    const char *text;
    size_t begin, end; /* what tells it */
};

/* The text of a uuid behind its last dash, of anything else all. */
static const char *mark(const char *text)
{
    return strlen(text) == 36 ? text + 24 : text;
}

static void check_parts(const struct kvl_question *q, const struct part *part, int32_t n)
{
    char gold[1024] = "", answer[1200] = "";
    int32_t n_groups = n < 4 ? n : 4, k = 0;
    for (int32_t i = 0; i < n; i++) {
        const char *quote = is_uuid(part[i].text) ? "\"" : "";
        snprintf(gold + strlen(gold), sizeof gold - strlen(gold), "%s%s", i ? ", " : "",
                 part[i].text);
        snprintf(answer + strlen(answer), sizeof answer - strlen(answer), "%s %s%s%s", i ? "," : "",
                 quote, part[i].text, quote);
    }
    assert_string_equal(q->gold, gold);
    assert_string_equal(q->answer, answer);
    assert_int_equal(q->n_evidence, n_groups);
    for (int32_t g = 0; g < n_groups; g++) {
        const struct kvl_evidence *e = &q->evidence[g];
        assert_int_equal(e->kind, KVL_EVIDENCE_ALL);
        assert_in_range(e->n_spans, n / n_groups, (n + n_groups - 1) / n_groups);
        assert_string_equal(e->after, k > 0 ? mark(part[k - 1].text) : "");
        for (int32_t i = 0; i < e->n_spans; i++, k++) {
            assert_int_equal(e->span[i].begin, part[k].begin);
            assert_int_equal(e->span[i].end, part[k].end);
        }
    }
    assert_int_equal(k, n);
}

/* Puts a text in place of every "%s". */
static const char *fill(char *out, size_t size, const char *format, const char *text)
{
    size_t n = 0;
    for (const char *p = format; *p; p++) {
        bool field = p[0] == '%';
        n += (size_t)snprintf(out + n, size - n, "%.*s", field ? (int)size : 1, field ? text : p);
        assert_true(n < size);
        if (field) p++;
    }
    return out;
}

/* ---- the niah tasks ---------------------------------------------------------------------------- */

/* About one value, and about several. */
static const char *const questions[2][3] = {
    { "What is the magic value of %s? The magic value of %s is",
      "Tell me the magic value of %s. The magic value of %s is",
      "Which magic value belongs to %s? It is" },
    { "What are the magic values of %s? The magic values of %s are",
      "Tell me the magic values of %s. The magic values are",
      "Look up %s in the text. The magic values are" },
};

/* The keys that a question names, between `of ` or `up ` or `to ` and what follows. */
static int32_t asked_keys(const char *question, char key[MOST_PARTS][WORD])
{
    char list[1200];
    const char *from = strstr(question, " of ");
    if (!from) from = strstr(question, " to ");
    if (strncmp(question, "Look", 4) == 0) from = question + 4;
    assert_non_null(from);
    from += 4;
    const char *end = strpbrk(from, "?.");
    if (strstr(from, " in the text.")) end = strstr(from, " in the text.");
    assert_in_range(end - from, 1, sizeof list - 1);
    memcpy(list, from, (size_t)(end - from));
    list[end - from] = '\0';
    int32_t n = 0;
    for (char *p = list; p; n++) {
        assert_true(n < MOST_PARTS);
        char *comma = strstr(p, ", "), *and = strstr(p, " and ");
        char *stop = comma ? comma : and;
        if (comma && and) assert_true(comma < and);
        take(p, stop ? stop : p + strlen(p), key[n]);
        p = !stop ? NULL : stop + (comma ? 2 : 5);
    }
    return n;
}

struct niah {
    const char *options, *key, *value; /* types */
    int32_t keys, values, queries, wording;
};

/* The text of a question, whatever it is about; the needles that it asks for. */
static int32_t check_niah_question(const struct niah *x, const struct kvl_question *q,
                                   struct part part[MOST_PARTS])
{
    char key[MOST_PARTS][WORD], list[1200] = "", text[3000];
    int32_t n = 0, n_keys = asked_keys(q->text, key);
    assert_int_equal(n_keys, x->queries);
    for (int32_t k = 0; k < n_keys; k++) {
        const char *quote = x->key[0] == 'u' ? "\"" : "";
        const char *join = k == 0 ? "" : k < n_keys - 1 ? ", " : " and ";
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s%s%s", join, quote, key[k],
                 quote);
        assert_int_equal(values_of(key[k]), x->values);
        for (int32_t i = 0; i < n_needles; i++)
            if (strcmp(needles[i].key, key[k]) == 0)
                part[n++] = (struct part){ needles[i].value, needles[i].at,
                                           needles[i].at + strlen(needles[i].value) };
    }
    fill(text, sizeof text, questions[n > 1][x->wording - 1], list);
    assert_string_equal(q->text, text);
    return n;
}

/* No two questions ask about the same key. */
static void check_other_keys(const struct kvl_sample *s)
{
    static char key[KEYS + MOST_PARTS][WORD];
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_questions; i++) {
        int32_t more = asked_keys(s->question[i].text, key + n);
        for (int32_t k = 0; k < n; k++)
            for (int32_t j = n; j < n + more; j++) assert_string_not_equal(key[k], key[j]);
        n += more;
        assert_true(n <= KEYS);
    }
}

static void check_niah(struct want *w, const struct niah *x)
{
    w->options = x->options;
    struct kvl_sample s = must_generate(w);
    check_tokens(w, &s);
    check_layout(&s, x->keys * x->values == 1
                         ? "A magic value is hidden in the text below. Find it and remember it."
                         : "Some magic values are hidden in the text below. Find them and remember "
                           "them.");
    assert_int_equal(count(s.context, "\n"), 2);
    read_needles(s.context);
    assert_int_equal(n_needles, x->keys * x->values);
    for (int32_t i = 0; i < n_needles; i++) {
        const char *key = needles[i].key;
        bool words = x->key[0] == 'w';
        if (words) assert_memory_equal(key, "the ", 4);
        check_type(words ? key + 4 : key, x->key);
        check_type(needles[i].value, x->value);
        assert_int_equal(values_of(key), x->values);
        for (int32_t j = 0; j < i; j++) assert_string_not_equal(needles[i].value, needles[j].value);
    }
    for (int32_t i = 0; i < s.n_questions; i++) {
        struct part part[MOST_PARTS];
        check_question(w, &s, &s.question[i]);
        check_parts(&s.question[i], part, check_niah_question(x, &s.question[i], part));
    }
    check_other_keys(&s);
    kvl_sample_free(&s);
}

static void test_niah(void **state)
{
    (void)state;
    const struct {
        const struct kvl_task *task;
        struct niah x;
        int32_t questions;
    } rows[] = {
        { kvl_task_niah_multikey, { "", "words", "numbers", 4, 1, 1, 1 }, 4 },
        { kvl_task_niah_multikey, { "wording=2,keys=1", "words", "numbers", 1, 1, 1, 2 }, 1 },
        { kvl_task_niah_multikey,
          { "wording=3,keys=8,key=uuids,value=uuids", "uuids", "uuids", 8, 1, 1, 3 },
          3 },
        { kvl_task_niah_multikey,
          { "keys=9,key=numbers,value=words", "numbers", "words", 9, 1, 1, 1 },
          9 },
        { kvl_task_niah_multivalue, { "", "words", "numbers", 1, 4, 1, 1 }, 1 },
        { kvl_task_niah_multivalue,
          { "values=3,keys=4,value=uuids,wording=2", "words", "uuids", 4, 3, 1, 2 },
          4 },
        { kvl_task_niah_multivalue,
          { "values=16,key=uuids,value=words,wording=3", "uuids", "words", 1, 16, 1, 3 },
          1 },
        { kvl_task_niah_multivalue, { "values=1,keys=2", "words", "numbers", 2, 1, 1, 1 }, 2 },
        { kvl_task_niah_multiquery, { "", "words", "numbers", 4, 1, 4, 1 }, 1 },
        { kvl_task_niah_multiquery,
          { "queries=2,keys=7,key=numbers,wording=2", "numbers", "numbers", 7, 1, 2, 2 },
          3 },
        { kvl_task_niah_multiquery,
          { "queries=11,key=uuids,wording=3", "uuids", "numbers", 11, 1, 11, 3 },
          1 },
        { kvl_task_niah_multiquery,
          { "queries=1,keys=3,wording=3", "words", "numbers", 3, 1, 1, 3 },
          2 },
    };
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
            for (uint64_t seed = 0; seed < 4; seed++) {
                struct want w = { .task = rows[i].task,
                                  .i_tokenizer = k,
                                  .seed = seed,
                                  .length = 2000 + 7 * (int32_t)(seed * seed),
                                  .n_questions = rows[i].questions,
                                  .depth = (double)seed / 2.0 - 0.5 };
                check_niah(&w, &rows[i].x);
            }
}

/* ---- needles all over -------------------------------------------------------------------------- */

/* A line of filler at most, then needles only, one per line, with different keys. */
static void check_all_over(const struct want *w, const struct niah *x)
{
    struct kvl_sample s = must_generate(w);
    check_tokens(w, &s);
    check_layout(&s, "Below is a list of magic values. Find the value that is asked for.");
    read_needles(s.context);
    int32_t lines = count(s.context, "\n"), on_lines = count(s.context, "\nThe magic value of ");
    assert_int_equal(on_lines, n_needles);
    assert_in_range(lines - n_needles, 1, x->keys ? 3 : 2); /* intro, filler */
    if (x->keys) assert_int_equal(n_needles, x->keys);
    if (!x->keys) assert_true(strstr(s.context, "\nThe magic") - s.context < 16 * UNIT_TOK);
    for (int32_t i = 0; i < n_needles; i += 1 + n_needles / 50)
        assert_int_equal(values_of(needles[i].key), 1);
    for (int32_t i = 0; i < s.n_questions; i++) {
        const struct kvl_question *q = &s.question[i];
        char key[MOST_PARTS][WORD];
        struct part part[MOST_PARTS];
        int32_t at = 0;
        check_question(w, &s, q);
        assert_int_equal(check_niah_question(x, q, part), 1);
        assert_int_equal(asked_keys(q->text, key), 1);
        while (strcmp(needles[at].key, key[0]) != 0) at++;
        check_type(needles[at].value, x->value);
        assert_string_equal(q->gold, needles[at].value);
        assert_int_equal(q->n_evidence, 2);
        check_span(&s, q->evidence[0].span[0], key[0]);
        check_span(&s, q->evidence[1].span[0], q->gold);
        assert_int_equal(q->evidence[1].span[0].begin, needles[at].at);
        assert_true(q->evidence[0].span[0].end < needles[at].at);
        assert_true(q->evidence[0].span[0].end + 8 > needles[at].at);
    }
    kvl_sample_free(&s);
}

static void test_all_over(void **state)
{
    (void)state;
    static const struct niah rows[] = {
        { "haystack=needles", "words", "numbers", 0, 1, 1, 1 },
        { "haystack=needles,key=uuids,value=uuids,wording=2", "uuids", "uuids", 0, 1, 1, 2 },
        { "haystack=needles,keys=9,key=numbers,value=words,wording=3", "numbers", "words", 9, 1, 1,
          3 },
        { "haystack=needles,keys=5,value=uuids", "words", "uuids", 5, 1, 1, 1 },
    };
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
            for (uint64_t seed = 0; seed < 4; seed++) {
                struct niah x = rows[i];
                struct want w = { .task = kvl_task_niah_multikey,
                                  .options = x.options,
                                  .i_tokenizer = k,
                                  .seed = seed,
                                  .length = 3000 + (int32_t)seed * 311,
                                  .n_questions = 3,
                                  .depth = (double)seed / 2.0 - 0.5 };
                check_all_over(&w, &x);
            }
    struct want most = { .task = kvl_task_niah_multikey,
                         .options = rows[0].options,
                         .length = 400000,
                         .n_questions = 20 };
    check_all_over(&most, &rows[0]);
    assert_in_range(n_needles, 5000, 7500);
}

/* ---- vt ---------------------------------------------------------------------------------------- */

struct statement {
    char key[WORD], from[WORD]; /* a value of digits, or another key */
    size_t begin, end;
};

static struct statement statements[64];
static int32_t n_statements;

static void read_statements(const char *context)
{
    static const char begin[] = "The value of ", of[] = "the value of ";
    n_statements = 0;
    for (const char *p = context; (p = strstr(p, begin)) != NULL; n_statements++) {
        assert_true(n_statements < 64);
        struct statement *x = &statements[n_statements];
        p += strlen(begin);
        const char *is = strstr(p, " is "), *end = strchr(is, '.'), *from = is + 4;
        if (strncmp(from, of, strlen(of)) == 0) from += strlen(of);
        take(p, is, x->key);
        take(from, end, x->from);
        x->begin = (size_t)(p - context);
        x->end = (size_t)(end - context);
        p = end;
    }
}

/* Follows the chain from a value and returns its length. */
static int32_t follow(const char *value, struct part *part)
{
    int32_t n = 0;
    for (const char *from = value; from;) {
        const struct statement *next = NULL;
        for (int32_t i = 0; i < n_statements; i++)
            if (strcmp(statements[i].from, from) == 0) {
                assert_null(next);
                next = &statements[i];
            }
        if (next) {
            assert_true(n < MOST_PARTS);
            if (n > 0) assert_true(next->begin > part[n - 1].end); /* in the order of the text */
            part[n++] = (struct part){ next->key, next->begin, next->end };
        }
        from = next ? next->key : NULL;
    }
    return n;
}

static void check_vt(const struct want *w, int32_t chains, int32_t hops, int32_t wording)
{
    static const char *const question[3] = {
        "What are the keys of the value %s? The keys of the value %s are",
        "Tell me the keys of the value %s. The keys are",
        "Look up the value %s in the text. It is the value of",
    };
    struct kvl_sample s = must_generate(w);
    check_tokens(w, &s);
    check_layout(&s, "Some keys with values are hidden in the text below. Find them and remember "
                     "the keys of each value.");
    read_statements(s.context);
    assert_int_equal(n_statements, chains * (hops + 1));
    for (int32_t i = 0; i < n_statements; i++)
        for (int32_t j = 0; j < i; j++) {
            assert_string_not_equal(statements[i].key, statements[j].key);
            assert_string_not_equal(statements[i].from, statements[j].from);
        }
    for (int32_t i = 0; i < s.n_questions; i++) {
        const struct kvl_question *q = &s.question[i];
        struct part part[MOST_PARTS];
        char value[8], text[128];
        memcpy(value, strpbrk(q->text, "123456789"), 5);
        value[5] = '\0';
        assert_int_equal(strspn(value, "0123456789"), 5);
        fill(text, sizeof text, question[wording - 1], value);
        assert_string_equal(q->text, text);
        check_question(w, &s, q);
        assert_int_equal(follow(value, part), hops + 1);
        check_parts(q, part, hops + 1);
        for (int32_t j = 0; j < i; j++) assert_string_not_equal(q->text, s.question[j].text);
    }
    kvl_sample_free(&s);
}

static void test_vt(void **state)
{
    (void)state;
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (uint64_t seed = 0; seed < 6; seed++) {
            struct want w = { .task = kvl_task_vt,
                              .i_tokenizer = k,
                              .seed = seed,
                              .length = 2500 + (int32_t)(seed * seed * 7),
                              .depth = (double)seed / 4.0 - 0.25 };
            w.options = "";
            check_vt(&w, 1, 4, 1);
            w.options = "chains=3,hops=2,wording=2";
            w.n_questions = 3;
            check_vt(&w, 3, 2, 2);
            w.options = "chains=2,hops=15,wording=3";
            w.n_questions = 2;
            check_vt(&w, 2, 15, 3);
            w.options = "chains=31,hops=1";
            w.n_questions = 1 + (int32_t)seed;
            check_vt(&w, 31, 1, 1);
            w.options = "chains=6,hops=0";
            check_vt(&w, 6, 0, 1);
        }
}

/* So many that some would be alike by chance: words that are values, values of chains. */
static void test_different(void **state)
{
    (void)state;
    static const struct niah x = {
        "values=16,keys=10,value=words", "words", "words", 10, 16, 1, 1,
    };
    struct want niah = { .task = kvl_task_niah_multivalue, .length = 12000, .n_questions = 10 };
    check_niah(&niah, &x);
    static const struct niah same = {
        "values=16,value=words", "words", "words", 1, 16, 1, 1,
    };
    for (uint64_t seed = 0; seed < 300; seed++) { /* also a value that stands in its key */
        struct want w = { .task = kvl_task_niah_multivalue, .length = 2500, .seed = seed };
        check_niah(&w, &same);
    }
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct want w = { .task = kvl_task_vt, .length = 4000, .seed = seed };
        w.options = "chains=62,hops=0";
        check_vt(&w, 62, 0, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_niah),
        cmocka_unit_test(test_all_over),
        cmocka_unit_test(test_vt),
        cmocka_unit_test(test_different),
    };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
