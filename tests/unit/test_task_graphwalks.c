/* graphwalks and needle_latent: what their scorers say, answers worked out again from the text of a context, and
 * bytes. */
#include "task_maker.h"

enum { EDGES = 4096, NODE = 8 };

struct edges {
    char from[EDGES][NODE + 1], to[EDGES][NODE + 1];
    int32_t n;
};

static struct edges read_edges(const char *context)
{
    static struct edges e;
    e.n = 0;
    for (const char *at = context; (at = strstr(at, " -> ")) != NULL; at += 4) {
        assert_true(e.n < EDGES);
        snprintf(e.from[e.n], NODE + 1, "%.8s", at - NODE);
        snprintf(e.to[e.n++], NODE + 1, "%.8s", at + 4);
    }
    return e;
}

/* Distances by relaxing every edge until nothing changes. */
static int32_t distance(const struct edges *e, const char *from, const char *to)
{
    static char name[EDGES][NODE + 1];
    static int32_t far[EDGES];
    int32_t n = 1, result = -1;
    snprintf(name[0], NODE + 1, "%s", from);
    far[0] = 0;
    for (int32_t i = 0; i < n && n < EDGES; i++)
        for (int32_t k = 0; k < e->n; k++) {
            bool known = strcmp(e->from[k], name[i]) != 0;
            for (int32_t j = 0; j < n && !known; j++) known = strcmp(name[j], e->to[k]) == 0;
            if (known) continue;
            snprintf(name[n], NODE + 1, "%s", e->to[k]);
            far[n++] = far[i] + 1;
        }
    for (int32_t i = 0; i < n; i++)
        if (strcmp(name[i], to) == 0) result = far[i];
    return result;
}

static bool says(const char *gold, const char *node)
{
    return strstr(gold, node) != NULL;
}

static void check_walk(const char *options, bool parents, int32_t steps)
{
    struct want w = { .task = kvl_task_graphwalks,
                      .options = options,
                      .length = 3000,
                      .depth = -1.0,
                      .n_questions = 3,
                      .seed = 9 };
    struct kvl_sample s = must_generate(&w);
    struct edges e = read_edges(s.context);
    check_tokens(&w, &s);
    assert_true(e.n > 80);
    for (int32_t i = 0; i < s.n_questions; i++) {
        const struct kvl_question *q = &s.question[i];
        char node[NODE + 1];
        snprintf(node, sizeof node, "%.8s",
                 strstr(q->text, parents ? "leads to " : "from ") + (parents ? 9 : 5));
        check_question(&w, &s, q);
        for (int32_t k = 0; k < e.n; k++) {
            if (parents)
                assert_int_equal(says(q->gold, e.from[k]), distance(&e, e.from[k], node) == 1);
            else
                assert_int_equal(says(q->gold, e.to[k]), distance(&e, node, e.to[k]) == steps);
        }
        /* An edge each. */
        int32_t spans = 0;
        for (int32_t g = 0; g < q->n_evidence; g++)
            for (int32_t k = 0; k < q->evidence[g].n_spans; k++, spans++) {
                struct kvl_span span = q->evidence[g].span[k];
                assert_int_equal(span.end - span.begin, 2 * NODE + 4);
                assert_memory_equal(s.context + span.begin + NODE, " -> ", 4);
            }
        assert_int_equal(spans, (int32_t)(strlen(q->gold) + 2) / (NODE + 2));
    }
    kvl_sample_free(&s);
}

static void test_parents(void **state)
{
    (void)state;
    check_walk("", true, 1);
}

static void test_bfs(void **state)
{
    (void)state;
    check_walk("operation=bfs,steps=1", false, 1);
    check_walk("operation=bfs,steps=2", false, 2);
    check_walk("operation=bfs,steps=3", false, 3);
}

static void test_graph_scores(void **state)
{
    static const struct {
        const char *prediction;
        double official;
        bool strict;
    } rows[] = {
        { " 11111111, aaaaaaaa", 1.0, true },
        { " aaaaaaaa and 11111111.", 1.0, true },
        { " aaaaaaaa", 2.0 / 3, false },
        { " aaaaaaaa, 11111111, 22222222", 0.8, false },
        { " aaaaaaaa, aaaaaaaa, 11111111", 1.0, false },
        { " 1111111, aaaaaaaab", 0.0, false },
        { "\naaaaaaaa\n11111111", 2.0 / 3, false },
        { "", 0.0, false },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char gold[] = "11111111, aaaaaaaa";
        struct kvl_task_score score;
        struct kvl_question q = { .gold = gold };
        kvl_task_graphwalks->score(&q, rows[i].prediction, &score);
        if (fabs(score.official - rows[i].official) > 1e-9 ||
            (score.strict >= 1.0) != rows[i].strict)
            fail_msg("\"%s\": %g and %g", rows[i].prediction, score.official, score.strict);
    }
}

/* No word of the question but small ones stands in the fact. */
static void test_latent(void **state)
{
    struct want w = {
        .task = kvl_task_needle_latent, .length = 900, .depth = -1.0, .n_questions = 4, .seed = 3
    };
    (void)state;
    struct kvl_sample s = must_generate(&w);
    check_tokens(&w, &s);
    for (int32_t i = 0; i < s.n_questions; i++) {
        const struct kvl_question *q = &s.question[i];
        char country[32];
        const char *in = strstr(q->text, "stays in ");
        assert_non_null(in);
        snprintf(country, sizeof country, "%.*s", (int)strcspn(in + 9, "?"), in + 9);
        assert_null(strstr(s.context, country));
        check_question(&w, &s, q);
        check_span(&s, q->evidence[1].span[0], q->gold);
        char fact[64];
        snprintf(fact, sizeof fact, "%s lives next to ", q->gold);
        assert_int_equal(count(s.context, fact), 1);
    }
    kvl_sample_free(&s);
}

static void test_bytes(void **state)
{
    (void)state;
    struct want w = { .task = kvl_task_graphwalks, .length = 700, .depth = 0.5, .seed = 11 };
    assert_int_equal(kvl_task_graphwalks->version, 1);
    assert_int_equal(hash_sample(&w), 0x231f732f9fc57be4u);
    w.task = kvl_task_needle_latent;
    assert_int_equal(kvl_task_needle_latent->version, 1);
    assert_int_equal(hash_sample(&w), 0xe571a79f2ad5b049u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parents),      cmocka_unit_test(test_bfs),
        cmocka_unit_test(test_graph_scores), cmocka_unit_test(test_latent),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
