/* two_stage_retr: the list, sums, spans and answers, read back from the text. */
#include "task_maker.h"

static const char *const colors[23] = { "red",   "green",  "blue",   "yellow",  "orange", "purple",
                                        "pink",  "brown",  "black",  "white",   "gray",   "cyan",
                                        "beige", "maroon", "indigo", "magenta", "violet", "navy",
                                        "olive", "teal",   "lime",   "silver",  "gold" };

static const char intro[] =
    "Below is a list of numbers with a color for each. First add, then look "
    "up the color of the sum.";

struct entry {
    long key;
    size_t begin; /* of the key in the context */
    int color;
};

struct list {
    struct entry *v;
    int32_t n;
    size_t begin, end; /* lines of the list */
};

/* Reads `0: red` lines; what is before and after them are sentences. */
static struct list read_list(const char *context)
{
    struct list l = { 0 };
    l.v = calloc((size_t)count(context, "\n"), sizeof *l.v);
    for (const char *line = context; *line; line = strchr(line, '\n') + 1) {
        char *end;
        struct entry e = { .begin = (size_t)(line - context), .color = 0 };
        if (*line < '0' || *line > '9') continue;
        e.key = strtol(line, &end, 10);
        assert_true(*line != '0' || end == line + 1); /* no leading zeros */
        assert_memory_equal(end, ": ", 2);
        size_t len = strcspn(end + 2, "\n");
        while (e.color < 23 &&
               (strlen(colors[e.color]) != len || strncmp(end + 2, colors[e.color], len) != 0))
            e.color++;
        assert_in_range(e.color, 0, 22);
        if (l.n > 0) assert_int_equal(e.begin, l.end); /* no line between */
        if (l.n == 0) l.begin = e.begin;
        l.end = (size_t)(end + 2 - context) + len + 1;
        l.v[l.n++] = e;
    }
    assert_true(l.n > 0);
    return l;
}

static const struct entry *find_key(const struct list *l, long key)
{
    for (int32_t i = 0; i < l->n; i++)
        if (l->v[i].key == key) return &l->v[i];
    fail_msg("no entry %ld", key);
    return NULL;
}

static void check_entry(const struct kvl_sample *s, const struct kvl_question *q,
                        const struct entry *e, bool cot)
{
    char key[16], after[16];
    snprintf(key, sizeof key, "%ld", e->key);
    snprintf(after, sizeof after, "%s", cot ? key : "");
    assert_int_equal(q->n_evidence, 2);
    for (int32_t g = 0; g < 2; g++) {
        assert_int_equal(q->evidence[g].kind, KVL_EVIDENCE_ALL);
        assert_int_equal(q->evidence[g].n_spans, 1);
        assert_string_equal(q->evidence[g].after, after);
        check_span(s, q->evidence[g].span[0], g == 0 ? key : colors[e->color]);
    }
    assert_int_equal(q->evidence[0].span[0].begin, e->begin);
    assert_int_equal(q->evidence[1].span[0].begin, e->begin + strlen(key) + 2);
}

/* Returns a / sum. */
static double check_asked(const struct kvl_sample *s, const struct list *l,
                          const struct kvl_question *q, bool cot)
{
    char text[128], answer[64];
    long a, b;
    assert_int_equal(sscanf(q->text, "What is the color of %ld + %ld?", &a, &b), 2);
    assert_true(a >= 0 && b >= 0);
    const struct entry *e = find_key(l, a + b);
    const char *color = colors[e->color];
    snprintf(text, sizeof text, "What is the color of %ld + %ld? The %s is", a, b,
             cot ? "sum" : "color");
    snprintf(answer, sizeof answer, " %s", color);
    if (cot) snprintf(answer, sizeof answer, " %ld. The color is %s.", a + b, color);
    assert_string_equal(q->text, text);
    assert_string_equal(q->answer, answer);
    assert_string_equal(q->gold, color);
    check_entry(s, q, e, cot);
    return a + b ? (double)a / (double)(a + b) : 0.5;
}

static struct kvl_sample check_two_stage(const struct want *w, struct list *l, bool cot)
{
    struct kvl_sample s = must_generate(w);
    *l = read_list(s.context);
    check_tokens(w, &s);
    check_layout(&s, intro);
    for (int32_t i = 0; i < s.n_questions; i++) {
        check_question(w, &s, &s.question[i]);
        check_asked(&s, l, &s.question[i], cot);
        for (int32_t j = 0; j < i; j++)
            assert_true(s.question[i].evidence[0].span[0].begin !=
                        s.question[j].evidence[0].span[0].begin);
    }
    return s;
}

static void done(struct kvl_sample *s, struct list *l)
{
    free(l->v);
    kvl_sample_free(s);
}

/* Keys 0, 1, 2 ...; the list is all but a sentence or two before it. */
static void test_consecutive(void **state)
{
    (void)state;
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (uint64_t seed = 0; seed < 12; seed++) {
            struct want w = { .task = kvl_task_two_stage_retr,
                              .i_tokenizer = k,
                              .seed = seed,
                              .length = 703 + (int32_t)(seed * seed * 7),
                              .n_questions = 1 + (int32_t)(seed % 5),
                              .depth = (double)(seed % 12) / 10.0 - 0.1 };
            struct list l;
            struct kvl_sample s = check_two_stage(&w, &l, true);
            for (int32_t i = 0; i < l.n; i++) assert_int_equal(l.v[i].key, i);
            assert_int_equal(strlen(s.context), l.end);
            assert_true(l.begin < sizeof intro + 4 * UNIT_TOK);
            done(&s, &l);
        }
}

static int compare_key(const void *a, const void *b)
{
    long x = ((const struct entry *)a)->key, y = ((const struct entry *)b)->key;
    return (x > y) - (x < y);
}

/* Different keys in no order, below a power of ten that leaves half of the numbers free. */
static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++) {
        struct want w = { .task = kvl_task_two_stage_retr,
                          .options = "keys=random,answer=direct",
                          .i_tokenizer = (int32_t)(seed % (uint64_t)n_tokenizers),
                          .seed = seed,
                          .length = 901 + 1900 * (int32_t)seed,
                          .depth = -1.0,
                          .n_questions = 4 };
        struct list l;
        struct kvl_sample s = check_two_stage(&w, &l, false);
        int32_t descents = 0;
        for (int32_t i = 1; i < l.n; i++) descents += l.v[i].key < l.v[i - 1].key;
        assert_in_range(descents, l.n / 3, l.n * 2 / 3);
        qsort(l.v, (size_t)l.n, sizeof *l.v, compare_key);
        for (int32_t i = 1; i < l.n; i++) assert_true(l.v[i].key > l.v[i - 1].key);
        long limit = l.v[l.n - 1].key < 1000 ? 1000 : l.v[l.n - 1].key < 10000 ? 10000 : 100000;
        assert_true(2 * l.n <= limit && l.v[l.n - 1].key > limit / 2);
        done(&s, &l);
    }
}

/* With a number of entries there is filler around them, and a question for every one. */
static void test_entries(void **state)
{
    (void)state;
    bool before = false, after = false;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct want w = { .task = kvl_task_two_stage_retr,
                          .options = seed % 2 ? "entries=11" : "entries=11,keys=random",
                          .i_tokenizer = (int32_t)(seed % (uint64_t)n_tokenizers),
                          .seed = seed,
                          .length = 777 + (int32_t)seed,
                          .depth = -1.0,
                          .n_questions = 11 };
        struct list l;
        struct kvl_sample s = check_two_stage(&w, &l, true);
        assert_int_equal(l.n, 11);
        before = before || l.begin > sizeof intro + 2 * UNIT_TOK;
        after = after || l.end + 2 * UNIT_TOK < strlen(s.context);
        done(&s, &l);
    }
    assert_true(before && after);
}

/* A list as large as it can be asked for: as many random keys as half of the numbers. */
static void test_many(void **state)
{
    (void)state;
    struct want w = { .task = kvl_task_two_stage_retr, .length = 65000, .n_questions = 3 };
    struct list l;
    w.options = "entries=5000,keys=random";
    struct kvl_sample s = check_two_stage(&w, &l, true);
    assert_int_equal(l.n, 5000);
    qsort(l.v, (size_t)l.n, sizeof *l.v, compare_key);
    for (int32_t i = 1; i < l.n; i++) assert_true(l.v[i].key > l.v[i - 1].key);
    assert_true(l.v[l.n - 1].key < 10000);
    done(&s, &l);
}

/* Colors are uniform, and so is the first addend below the sum. */
static void test_uniform(void **state)
{
    (void)state;
    int32_t seen[23] = { 0 }, quarter[4] = { 0 };
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct want w = { .task = kvl_task_two_stage_retr, .length = 60000, .seed = seed };
        w.n_questions = 400;
        w.depth = -1.0;
        struct kvl_sample s = must_generate(&w);
        struct list l = read_list(s.context);
        assert_in_range(l.n, 4000, 6000);
        for (int32_t i = 0; i < l.n; i++) seen[l.v[i].color]++;
        for (int32_t i = 0; i < s.n_questions; i++) {
            double share = check_asked(&s, &l, &s.question[i], true);
            quarter[KVL_MIN(3, (int32_t)(share * 4.0))]++;
        }
        done(&s, &l);
    }
    for (int32_t i = 0; i < 23; i++) assert_in_range(seen[i], 700, 1050);  /* about 860 */
    for (int32_t i = 0; i < 4; i++) assert_in_range(quarter[i], 330, 470); /* 400 */
}

/* Room for models that answer in their own words. */
static void test_max_new(void **state)
{
    (void)state;
    struct want w = { .task = kvl_task_two_stage_retr, .length = 900, .options = "max_new=200" };
    struct kvl_sample s = must_generate(&w);
    assert_int_equal(s.question[0].max_new_tok, 200);
    kvl_sample_free(&s);
    /* One token per byte: " violet" fits, " magenta" does not. */
    int32_t refused = 0;
    w.options = "answer=direct,max_new=7";
    for (w.seed = 0; w.seed < 120; w.seed++) {
        struct kvl_err err = { 0 };
        if (generate(&w, &s, &err) == KVL_OK) {
            assert_int_equal(s.question[0].max_new_tok, 7);
            assert_true(strlen(s.question[0].answer) <= 7);
            kvl_sample_free(&s);
        } else {
            assert_non_null(strstr(err.msg, "max_new 7 cuts the answer \" magenta\", want at least "
                                            "8 or auto"));
            refused++;
        }
    }
    assert_in_range(refused, 1, 20); /* 120 / 23 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_consecutive), cmocka_unit_test(test_random),
        cmocka_unit_test(test_entries),     cmocka_unit_test(test_many),
        cmocka_unit_test(test_uniform),     cmocka_unit_test(test_max_new),
    };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
