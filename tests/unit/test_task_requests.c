/* What a request gets: depth, spread, the same bytes every time, every length, filler, refusals. */
#include "task_maker.h"

enum { N_TASKS = 5 };

static const struct kvl_task *retrieval_task(int32_t i)
{
    const struct kvl_task *const all[N_TASKS] = { kvl_task_passkey, kvl_task_kv_retrieval,
                                                  kvl_task_number_string, kvl_task_needle,
                                                  kvl_task_two_stage_retr };
    return all[i];
}

/* ---- depth --------------------------------------------------------------------------------- */

static void test_depth(void **state)
{
    (void)state;
    const int32_t length = 6000;
    const struct {
        const struct kvl_task *task;
        const char *options;
    } kinds[] = { { kvl_task_passkey, "" },
                  { kvl_task_passkey, "keys=6" },
                  { kvl_task_kv_retrieval, "" },
                  { kvl_task_kv_retrieval, "pairs=20" },
                  { kvl_task_number_string, "" },
                  { kvl_task_needle, "facts=9" },
                  { kvl_task_needle, "language=german" },
                  { kvl_task_two_stage_retr, "" },
                  { kvl_task_two_stage_retr, "entries=50,keys=random" } };
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
            for (int32_t d = 0; d <= 10; d++) {
                if (!depth_turn(k + (int32_t)i, d)) continue;
                struct want w = { .task = kinds[i].task,
                                  .options = kinds[i].options,
                                  .i_tokenizer = k,
                                  .length = length,
                                  .depth = d / 10.0,
                                  .seed = 9 };
                struct kvl_sample s = must_generate(&w);
                /* Half a sentence and the words of the item before its digits; the intro, the
                 * item itself or another one may be in the way as well. */
                double off = fabs(s.question[0].depth - w.depth) * length;
                if (off > (d == 0 || d == 10 || strstr(w.options, "s=") ? 2.0 : 1.0) * UNIT_TOK)
                    fail_msg("%s %s %s depth %g: %g tokens off", tokenizers[k].name, w.task->name,
                             w.options, w.depth, off);
                kvl_sample_free(&s);
            }
}

/* Without a depth, question i of n asks a stratum of its own, in an order that depends on the seed. */
static void check_spread(const struct kvl_task *task, const char *options, int32_t first_seen[8])
{
    const int32_t length = 8000;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct want w = { .task = task, .options = options, .length = length, .n_questions = 8 };
        w.depth = -1.0;
        w.seed = seed;
        struct kvl_sample s = must_generate(&w);
        double sorted[8];
        for (int32_t i = 0; i < 8; i++) {
            int32_t j = i;
            for (; j > 0 && sorted[j - 1] > s.question[i].depth; j--) sorted[j] = sorted[j - 1];
            sorted[j] = s.question[i].depth;
        }
        double slack = 4.0 * UNIT_TOK / length;
        for (int32_t i = 0; i < 8; i++)
            assert_true(sorted[i] >= i / 8.0 - slack && sorted[i] <= (i + 1) / 8.0 + slack);
        for (int32_t i = 0; i < 8; i++) first_seen[i] += s.question[0].depth == sorted[i];
        kvl_sample_free(&s);
    }
}

static void test_spread(void **state)
{
    (void)state;
    int32_t seen[8] = { 0 };
    check_spread(kvl_task_passkey, "keys=8", seen);
    check_spread(kvl_task_kv_retrieval, "", seen);
    check_spread(kvl_task_needle, "facts=8", seen);
    check_spread(kvl_task_two_stage_retr, "", seen);
    for (int32_t i = 0; i < 8; i++) assert_in_range(seen[i], 12, 60); /* 240 draws, 30 expected */
}

/* ---- purity -------------------------------------------------------------------------------- */

/* Goldens: these bytes are what records of version 1 of the tasks stand for.  When they change, so
 * must the version of the task. */
static void test_pure(void **state)
{
    (void)state;
    const struct {
        struct want w;
        uint64_t golden;
    } rows[] = {
        { { .task = kvl_task_passkey, .length = 700, .depth = 0.5, .seed = 11 },
          0x30cc2922c704d0c7 },
        { { .task = kvl_task_passkey,
            .options = "keys=3",
            .length = 900,
            .depth = -1.0,
            .n_questions = 3,
            .seed = 12 },
          0x5b0d89c5cb17a68b },
        { { .task = kvl_task_kv_retrieval, .length = 800, .depth = 0.25, .seed = 13 },
          0x29b3ee137b4bb3d4 },
        { { .task = kvl_task_kv_retrieval,
            .options = "uuid=true,pairs=5",
            .length = 1200,
            .depth = -1.0,
            .n_questions = 2,
            .seed = 14 },
          0x79ab643484c73a2e },
        { { .task = kvl_task_passkey,
            .options = "keys=2,wording=2",
            .length = 700,
            .n_questions = 2,
            .seed = 15 },
          0x9673c74871dd5d08 },
        { { .task = kvl_task_kv_retrieval, .options = "wording=3", .length = 800, .seed = 16 },
          0x4a6706cc14ecacfa },
        { { .task = kvl_task_number_string, .length = 700, .depth = 0.5, .seed = 17 },
          0x29eb974722722aad },
        { { .task = kvl_task_needle, .length = 700, .depth = 0.5, .seed = 18 },
          0xcb026d2c721acbf8 },
        { { .task = kvl_task_needle,
            .options = "facts=4,language=german,wording=3",
            .length = 900,
            .depth = -1.0,
            .n_questions = 4,
            .seed = 19 },
          0xe227e85a55cadacb },
        { { .task = kvl_task_two_stage_retr, .length = 800, .depth = 0.25, .seed = 20 },
          0xc8f253743ac5dd7d },
        { { .task = kvl_task_two_stage_retr,
            .options = "entries=30,keys=random,answer=direct,wording=2",
            .length = 1200,
            .depth = -1.0,
            .n_questions = 3,
            .seed = 21 },
          0x1c9ac92c95b06b75 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct want other = rows[i].w;
        uint64_t h = hash_sample(&rows[i].w);
        assert_true(h == hash_sample(&rows[i].w));
        other.seed++;
        assert_true(h != hash_sample(&other));
        if (h != rows[i].golden || rows[i].w.task->version != 1)
            fail_msg("sample %zu: 0x%016llx", i, (unsigned long long)h);
    }
}

/* ---- filler -------------------------------------------------------------------------------- */

static int compare_line(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Hardly any sentence comes twice in 100,000 tokens, and no two in a row do. */
static void check_filler(const struct kvl_task *task, const char *options)
{
    struct want w = { .task = task, .options = options, .length = 400000, .depth = 0.5 };
    struct kvl_sample s = must_generate(&w);
    enum { MOST = 20000 };
    static char *sentence[MOST], *pair[MOST];
    int32_t n = 0, same = 0;
    for (char *p = strchr(s.context, '\n') + 1; p && *p && n < MOST; n++) {
        char *end = strstr(p, ". ");
        if (end) *end = '\0';
        sentence[n] = p;
        p = end ? end + 2 : NULL;
    }
    assert_in_range(n, 400000 / UNIT_TOK, MOST - 1);
    for (int32_t i = 0; i + 1 < n; i++) {
        size_t len = strlen(sentence[i]) + strlen(sentence[i + 1]) + 2;
        pair[i] = malloc(len);
        snprintf(pair[i], len, "%s|%s", sentence[i], sentence[i + 1]);
    }
    qsort(sentence, (size_t)n, sizeof *sentence, compare_line);
    qsort(pair, (size_t)n - 1, sizeof *pair, compare_line);
    for (int32_t i = 1; i < n; i++) same += strcmp(sentence[i - 1], sentence[i]) == 0;
    for (int32_t i = 1; i + 1 < n; i++) assert_string_not_equal(pair[i - 1], pair[i]);
    assert_true(same < n / 200);
    for (int32_t i = 0; i + 1 < n; i++) free(pair[i]);
    kvl_sample_free(&s);
}

static void test_filler(void **state)
{
    (void)state;
    check_filler(kvl_task_passkey, "");
    check_filler(kvl_task_needle, "language=german");
}

/* ---- requests that cannot be met ----------------------------------------------------------- */

static void check_refused(const struct want *w, const char *const *needles)
{
    struct kvl_sample s = { .n_questions = 77 };
    struct kvl_err err = { 0 };
    assert_int_equal(generate(w, &s, &err), KVL_EINVAL);
    assert_int_equal(s.n_questions, 77); /* written only on success */
    assert_int_equal(strncmp(err.msg, w->task->name, strlen(w->task->name)), 0);
    for (; *needles; needles++)
        if (!strstr(err.msg, *needles)) fail_msg("\"%s\" lacks \"%s\"", err.msg, *needles);
}

#define REFUSED(want, ...) check_refused(want, (const char *const[]){ __VA_ARGS__, NULL })

static void test_refused(void **state)
{
    (void)state;
    static const char *const many[] = { "at most 32", "2000 questions, but a list", "want 1",
                                        "at most 30", "entries" };
    for (int32_t i = 0; i < N_TASKS; i++) {
        struct want w = { .task = retrieval_task(i), .length = 3000 };
        w.length = 20;
        REFUSED(&w, "length 20", "too short");
        w.length = 0;
        REFUSED(&w, "length 0", "at least 1");
        w.length = -5;
        REFUSED(&w, "length -5");
        w.length = 3000;
        w.depth = 1.01;
        REFUSED(&w, "1.01", "0 to 1");
        w.depth = (double)NAN;
        REFUSED(&w, "nan", "0 to 1");
        w.depth = 0.5;
        w.n_questions = -1;
        REFUSED(&w, "-1 questions", "at least 1");
        w.n_questions = 2000;
        REFUSED(&w, "2000 questions", many[i]);
    }
    struct want w = { .task = kvl_task_passkey, .options = "digits=1,keys=11", .length = 3000 };
    REFUSED(&w, "keys=11 with digits=1", "want keys=10 or more digits");
    w.options = "";
    w.length = 126; /* one byte of filler more than none */
    REFUSED(&w, "length 126", "exactly", "another length");
    w.options = "keys=32";
    w.length = 1500;
    REFUSED(&w, "1500", "too short");
    w.task = kvl_task_kv_retrieval;
    w.options = "pairs=100";
    REFUSED(&w, "1500", "too short");
    w.options = "pairs=100000";
    REFUSED(&w, "1500", "100000 pairs");
    w.options = "key_digits=4,value_digits=4";
    w.length = 900000;
    REFUSED(&w, "4 hexadecimal digits", "more digits");
    w.task = kvl_task_needle;
    w.options = "digits=1,facts=11,language=german";
    REFUSED(&w, "facts=11 with digits=1", "want facts=10 or more digits");
    w.options = "facts=4";
    w.n_questions = 5;
    REFUSED(&w, "5 questions with facts=4", "want facts=5 or fewer questions");
    w.n_questions = 31;
    REFUSED(&w, "31 questions", "want at most 30");
    w.n_questions = 0;
    w.task = kvl_task_two_stage_retr;
    w.length = 600;
    w.options = "entries=100";
    REFUSED(&w, "600", "too short");
    w.options = "entries=601";
    REFUSED(&w, "600", "601 entries");
    w.options = "max_new=10"; /* bytes */
    REFUSED(&w, "max_new 10 cuts", "The color is", "auto");
}

/* From too short to comfortable: every length, without KVL_LONG one in three, is met exactly or refused with the
 * reason.  As soon as a word or two of filler fit, all are met. */
static void test_every_length(void **state)
{
    (void)state;
    int32_t step = getenv("KVL_LONG") ? 1 : 3;
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (int32_t i = 0; i < N_TASKS; i++) {
            /* Tasks that are alike take turns. */
            if (i >= 2 && k != i && k != i % 2) continue;
            struct want w = { .task = retrieval_task(i) };
            int32_t shortest = 0;
            w.i_tokenizer = k;
            for (w.length = 20; w.length < 450; w.length += i < 2 ? step : 3 * step) {
                struct kvl_sample s = { 0 };
                struct kvl_err err = { 0 };
                if (generate(&w, &s, &err) == KVL_OK) {
                    assert_int_equal(s.tokens.n, w.length);
                    check_tokens(&w, &s);
                    if (!shortest) shortest = w.length;
                } else if (shortest && w.length > shortest + 12) {
                    fail_msg("%s %s: %s", tokenizers[k].name, w.task->name, err.msg);
                } else {
                    assert_true(strstr(err.msg, "too short") || strstr(err.msg, "exactly"));
                }
                kvl_sample_free(&s);
            }
            assert_in_range(shortest, 20, 200);
        }
}

static void test_long(void **state)
{
    (void)state;
    for (int32_t k = 0; k < n_tokenizers; k++)
        for (int32_t i = 0; i < N_TASKS; i++) {
            if (i >= 2 && k != i && k != i % 2) continue;
            struct want w = { .task = retrieval_task(i) };
            w.i_tokenizer = k;
            w.length = 131072;
            w.depth = 0.7;
            uint64_t start = kvl_now_ns();
            struct kvl_sample s = must_generate(&w);
            print_message("%s %s: %.2f s\n", w.task->name, tokenizers[k].name,
                          (double)(kvl_now_ns() - start) * 1e-9);
            assert_int_equal(s.tokens.n, w.length);
            kvl_sample_free(&s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_depth),   cmocka_unit_test(test_spread),
        cmocka_unit_test(test_pure),    cmocka_unit_test(test_filler),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_every_length),
        cmocka_unit_test(test_long),
    };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
