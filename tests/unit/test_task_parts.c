/* Scorers of tasks whose answers have several parts, on answers made by hand; and the requests of
 * these tasks: depth, spread, the same bytes every time, every length, refusals, chance. */
#include "task_maker.h"

/* ---- scores ------------------------------------------------------------------------------------ */

struct row {
    const char *gold, *prediction;
    double official;
    int strict, ordered; /* strict of the tasks that take any order, and of those that do not */
};

static void check_row(const struct kvl_task *task, const struct row *row, int strict)
{
    char gold[128];
    struct kvl_task_score score;
    memset(&score, 0x5a, sizeof score);
    strcpy(gold, row->gold);
    struct kvl_question q = { .gold = gold };
    task->score(&q, row->prediction, &score);
    assert_int_equal(score.n_sub, 0);
    if (fabs(score.official - row->official) > 1e-12 || score.strict != strict)
        fail_msg("%s: gold \"%s\", prediction \"%s\": official %g strict %g, want %g and %d",
                 task->name, gold, row->prediction, score.official, score.strict, row->official,
                 strict);
}

/* Official: the mean over the parts of being a substring, whatever the case (RULER). */
static void test_scores(void **state)
{
    (void)state;
#define FOUR "1234567, 7654321, 1111111, 2222222"
    static const struct row rows[] = {
        { FOUR, " " FOUR, 1, 1, 1 },
        { FOUR, " " FOUR ". The magic value", 1, 1, 1 },
        { FOUR, "\n" FOUR "\nThe", 1, 1, 1 },
        { FOUR, " 1234567, 7654321, 1111111, and 2222222.", 1, 1, 1 },
        { FOUR, " 1234567,7654321 and 1111111 and 2222222", 1, 1, 1 },
        { FOUR, " \"1234567\", \"7654321\", \"1111111\", \"2222222\".", 1, 1, 1 },
        { FOUR, " 7654321, 1234567, 1111111, 2222222.", 1, 1, 0 },
        { FOUR, " 1234567, 7654321.", 0.5, 0, 0 }, /* RULER's example of half */
        { FOUR, " 1234567, 7654321, 1111111, 1111111.", 0.75, 0, 0 },
        { FOUR, " " FOUR ", 3333333.", 1, 0, 0 },                 /* one too many */
        { FOUR, " " FOUR " are the values.", 1, 0, 0 },           /* other words in the list */
        { FOUR, " 1234567, 7654321, 1111111. 2222222", 1, 0, 0 }, /* behind the list */
        { FOUR, " They are " FOUR, 1, 0, 0 },
        { FOUR, " 91234567, 76543210, 1111111, 2222222.", 1, 0, 0 }, /* substrings */
        { FOUR, " 1234 567, 765,4321", 0, 0, 0 },
        { FOUR, "", 0, 0, 0 }, /* an empty answer is none (another scorer takes it) */
        { FOUR, ".", 0, 0, 0 },
        { "1234567", "91234567 8", 1, 0, 0 },
        { "1234567", " 1234567.", 1, 1, 1 },
        { "1234567", " 1234567\n", 1, 1, 1 },
        { "1234567", " 1234567 is it", 1, 0, 0 },
        { "old river, boat", " old river and boat.", 1, 1, 1 },
        { "old river, boat", " OLD RIVER, Boat.", 1, 0, 0 }, /* strict: the same letters */
        { "old river, boat", " boat, old river", 1, 1, 0 },
        { "old river, boat", " old riverboat", 1, 0, 0 },
        { "Anna, Ulm, Zell", " Anna, Ulm and Zell.", 1, 1, 1 },
        { "Anna, Ulm, Zell", " Anna, Ulm", 2.0 / 3, 0, 0 },
        { "Anna, Ulm, Zell", " Susanna, Ulm, Zell", 1, 0, 0 },
        { "9d75b4ba-2a87-4b4b-a468-e887df034e13", " \"9d75b4ba-2a87-4b4b-a468-e887df034e13\".", 1,
          1, 1 },
        { "9d75b4ba-2a87-4b4b-a468-e887df034e13", " \"9d75b4ba-2a87-4b4b-a468-e887df034e1\".", 0, 0,
          0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_row(kvl_task_niah_multikey, &rows[i], rows[i].ordered);
        check_row(kvl_task_niah_multiquery, &rows[i], rows[i].ordered);
        check_row(kvl_task_niah_multivalue, &rows[i], rows[i].strict);
        check_row(kvl_task_vt, &rows[i], rows[i].strict);
        check_row(kvl_task_cwe, &rows[i], rows[i].strict);
        check_row(kvl_task_fwe, &rows[i], rows[i].strict);
    }
}

static double chance(const struct kvl_task *task, const char *options)
{
    double opts[1024] = { 0 };
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_opt_defaults(task->opts, opts, &err), KVL_OK);
    assert_int_equal(kvl_opt_parse(task->opts, opts, options, &err), KVL_OK);
    return task->chance(opts);
}

static void test_chance(void **state)
{
    (void)state;
    assert_true(chance(kvl_task_niah_multikey, "") == 1.0 / 9e6);
    assert_true(chance(kvl_task_niah_multivalue, "value=uuids") == 0x1p-122);
    assert_true(fabs(chance(kvl_task_niah_multiquery, "value=words") - 1.0 / 24 / 59) < 1e-12);
    assert_true(fabs(chance(kvl_task_vt, "") - 5.0 / 62) < 1e-12);
    assert_true(fabs(chance(kvl_task_cwe, "words=6") - 6.0 / 192) < 1e-12);
    assert_true(fabs(chance(kvl_task_fwe, "") - 3.0 / 192) < 1e-12);
    assert_true(chance(kvl_task_fwe, "words=coded") < 1e-7);
}

/* ---- places ------------------------------------------------------------------------------------ */

static const struct kind {
    const struct kvl_task *const *task;
    const char *options;
} kinds[] = {
    { &kvl_task_niah_multikey, "" },
    { &kvl_task_niah_multikey, "haystack=needles" },
    { &kvl_task_niah_multivalue, "" },
    { &kvl_task_niah_multivalue, "keys=3,values=2" },
    { &kvl_task_niah_multiquery, "" },
    { &kvl_task_vt, "" },
    { &kvl_task_vt, "chains=4" },
    { &kvl_task_cwe, "" },
    { &kvl_task_fwe, "" },
};
enum { N_KINDS = sizeof kinds / sizeof kinds[0], N_PLACED = 7 };

/* The first part lies at the depth asked for, the others of its answer behind it. */
static void test_depth(void **state)
{
    (void)state;
    const int32_t length = 8000;
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (int32_t i = 0; i < N_PLACED; i++)
            for (int32_t d = 0; d <= 10; d++) {
                if (!depth_turn(k + i, d)) continue;
                struct want w = { .task = *kinds[i].task,
                                  .options = kinds[i].options,
                                  .i_tokenizer = k,
                                  .length = length,
                                  .depth = d / 10.0,
                                  .seed = 9 };
                struct kvl_sample s = must_generate(&w);
                /* Sentences and other items in the way; at the end the rest of the answer too. */
                double off = fabs(s.question[0].depth - w.depth) * length;
                if (off > (d == 10 ? 5.0 : 2.0) * UNIT_TOK)
                    fail_msg("%s %s %s depth %g: %g tokens off", tokenizers[k].name, w.task->name,
                             w.options, w.depth, off);
                kvl_sample_free(&s);
            }
}

/* Without a depth the parts of an answer are all over the context, and no order is preferred. */
static void test_spread(void **state)
{
    (void)state;
    static const struct kind spread[] = { { &kvl_task_niah_multivalue, "" },
                                          { &kvl_task_niah_multiquery, "" } };
    int32_t rising = 0, stratum[4] = { 0 };
    for (size_t i = 0; i < 2; i++)
        for (uint64_t seed = 0; seed < 200; seed++) {
            struct want w = { .task = *spread[i].task, .length = 3000, .depth = -1.0 };
            w.seed = seed;
            struct kvl_sample s = must_generate(&w);
            const struct kvl_evidence *e = s.question[0].evidence;
            bool ascends = true;
            double size = (double)strlen(s.context);
            for (int32_t g = 0; g < 4; g++) {
                stratum[(int32_t)(4.0 * (double)e[g].span[0].begin / size)]++;
                ascends = ascends && (g == 0 || e[g - 1].span[0].end < e[g].span[0].begin);
            }
            if (i == 0) assert_true(ascends);
            rising += i == 1 && ascends;
            kvl_sample_free(&s);
        }
    assert_in_range(rising, 1, 25); /* 200 of 4! orders: 8 */
    for (int32_t g = 0; g < 4; g++) assert_in_range(stratum[g], 370, 430);
}

/* ---- purity ------------------------------------------------------------------------------------ */

/* Goldens: the bytes of version 1 of the tasks.  When they change, so must the version. */
static void test_pure(void **state)
{
    (void)state;
    static const uint64_t golden[N_KINDS] = { 0x4c083262698ec166, 0xb3ab073d642f7bbb,
                                              0xad16f9e3cc409cb0, 0xead0d3106e8bc4c8,
                                              0xe0a789f783516983, 0x42a4bfbf2048754a,
                                              0xf8a60d9e7296a7f1, 0xf86ff7bc7ff09581,
                                              0x3b2c00722114ae6f };
    for (int32_t i = 0; i < N_KINDS; i++) {
        struct want w = { .task = *kinds[i].task,
                          .options = kinds[i].options,
                          .length = 1500,
                          .depth = i % 2 ? 0.5 : -1.0,
                          .seed = 40 + (uint64_t)i };
        struct want other = w;
        uint64_t h = hash_sample(&w);
        other.seed++;
        assert_true(h == hash_sample(&w));
        assert_true(h != hash_sample(&other));
        if (h != golden[i] || w.task->version != 1)
            fail_msg("sample %d: 0x%016llx", i, (unsigned long long)h);
    }
}

/* ---- lengths ----------------------------------------------------------------------------------- */

/* The shipped model reads every task from 256 tokens on; other vocabularies need a little more. */
static int32_t first_length(int32_t i_tokenizer)
{
    const char *name = tokenizers[i_tokenizer].name;
    return strcmp(name, "bytes") == 0 ? 1024 : strcmp(name, "kvlab-tiny") == 0 ? 256 : 512;
}

/* Up to 65536 tokens, exactly. */
static void test_lengths(void **state)
{
    (void)state;
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (int32_t i = 0; i < N_KINDS; i++)
            for (int32_t length = first_length(k); length <= 65536; length *= 2) {
                if (length > 4096 && k != i % n_tokenizers) continue; /* tokenizers take turns */
                struct want w = { .task = *kinds[i].task,
                                  .options = kinds[i].options,
                                  .i_tokenizer = k,
                                  .length = length,
                                  .depth = -1.0,
                                  .seed = 5 };
                struct kvl_sample s = must_generate(&w);
                assert_int_equal(s.tokens.n, length);
                check_tokens(&w, &s);
                kvl_sample_free(&s);
            }
}

/* From too short to comfortable: every length is met exactly or refused with the reason. */
static void test_every_length(void **state)
{
    (void)state;
    int32_t step = getenv("KVL_LONG") ? 7 : 17;
    for (int32_t i = 0; i < N_KINDS && n_tokenizers > 1; i++) {
        struct want w = { .task = *kinds[i].task, .options = kinds[i].options };
        int32_t shortest = 0;
        w.i_tokenizer = 1 + i % (n_tokenizers - 1); /* not single bytes, which take more room */
        for (w.length = 20 + i; w.length < 900; w.length += step) {
            struct kvl_sample s = { 0 };
            struct kvl_err err = { 0 };
            if (generate(&w, &s, &err) == KVL_OK) {
                check_tokens(&w, &s);
                if (!shortest) shortest = w.length;
            } else if (shortest && w.length > shortest + 40) {
                fail_msg("%s %s: %s", tokenizers[w.i_tokenizer].name, w.task->name, err.msg);
            } else {
                assert_true(strstr(err.msg, "too short") || strstr(err.msg, "exactly"));
            }
            kvl_sample_free(&s);
        }
        assert_in_range(shortest, 20, 700);
    }
}

/* ---- requests that cannot be met --------------------------------------------------------------- */

static void check_refused(const struct want *w, const char *const *needles)
{
    struct kvl_sample s = { .n_questions = 77 };
    struct kvl_err err = { 0 };
    assert_int_equal(generate(w, &s, &err), KVL_EINVAL);
    assert_int_equal(s.n_questions, 77); /* written only on success */
    assert_int_equal(strncmp(err.msg, w->task->name, strlen(w->task->name)), 0);
    assert_null(strchr(err.msg, '\n'));
    for (; *needles; needles++)
        if (!strstr(err.msg, *needles)) fail_msg("\"%s\" lacks \"%s\"", err.msg, *needles);
}

#define REFUSED(task_, options_, length_, questions_, ...)                                         \
    check_refused(&(struct want){ .task = kvl_task_##task_,                                        \
                                  .options = options_,                                             \
                                  .length = length_,                                               \
                                  .n_questions = questions_,                                       \
                                  .depth = 0.5 },                                                  \
                  (const char *const[]){ __VA_ARGS__, NULL })

static void test_refused(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_KINDS; i++) {
        struct want w = { .task = *kinds[i].task, .options = kinds[i].options, .length = 60 };
        check_refused(&w, (const char *const[]){ "length 60", "too short", NULL });
        w.length = 0;
        check_refused(&w, (const char *const[]){ "length 0", "at least 1", NULL });
        w.length = 4000;
        w.depth = 1.01;
        check_refused(&w, (const char *const[]){ "1.01", "0 to 1", NULL });
        w.depth = 0.5;
        w.n_questions = -1;
        check_refused(&w, (const char *const[]){ "-1 questions", "at least 1", NULL });
        w.n_questions = 500;
        check_refused(&w, (const char *const[]){ "500 questions", NULL });
    }
    REFUSED(niah_multikey, "keys=65", 9000, 1, "keys=65", "at most 64", "haystack=needles");
    REFUSED(niah_multikey, "keys=3", 9000, 4, "4 questions with keys=3", "want keys=4");
    REFUSED(niah_multikey, "keys=900,haystack=needles", 9000, 1, "9000", "too short");
    REFUSED(niah_multikey, "max_new=6", 9000, 1, "max_new 6 cuts", "auto");
    REFUSED(niah_multikey, "max_new=6,haystack=needles", 9000, 1, "max_new 6 cuts", "auto");
    REFUSED(niah_multivalue, "", 9000, 2, "2 questions with keys=1", "want keys=2");
    REFUSED(niah_multivalue, "keys=64,values=16", 1000, 1, "1000", "1024 items");
    REFUSED(niah_multiquery, "queries=5,keys=4", 9000, 1, "queries=5 with keys=4",
            "keys=5 or more");
    REFUSED(niah_multiquery, "", 9000, 2, "2 questions about 4 keys each", "want keys=8");
    REFUSED(vt, "", 9000, 2, "2 questions with chains=1", "want chains=2");
    REFUSED(edited_copy, "shown=3", 900, 1, "shown=3", "want edit=none");
    REFUSED(vt, "chains=13", 9000, 1, "chains=13 with hops=4", "65", "at most 62");
    REFUSED(cwe, "", 9000, 2, "2 questions", "want 1");
    REFUSED(cwe, "common=3,uncommon=3", 9000, 1, "common=3 with uncommon=3", "common=4");
    REFUSED(cwe, "common=900", 9000, 1, "9000", "too short", "smallest text");
    REFUSED(fwe, "asked=16", 1000, 1, "1000", "too short", "smallest text");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scores),       cmocka_unit_test(test_chance),
        cmocka_unit_test(test_depth),        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_pure),         cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_every_length), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
