/* Evidence recall, on examples small enough to do by hand. */
#include "measure.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A context of 20 bytes with a key and its value; tokens of 1 to 3 bytes.
 *
 *   byte   0         1
 *          01234567890123456789
 *          ab key9 = 4711 cd 47
 *   token  0  1  2 3 4 5 6  7      begin of each below; token 0 is BOS
 */
static char measure_context[] = "ab key9 = 4711 cd 47";
static int32_t measure_id[9];
static size_t measure_begin[] = { 0, 0, 2, 6, 8, 10, 11, 13, 15 };
/* The answer " 4711!": a space, "47", "11", the end. */
static char measure_answer[] = " 4711!", measure_gold[] = "4711";
static size_t measure_answer_begin[] = { 0, 1, 3, 5 };

static const struct kvl_shape measure_shape = { .n_layers = 2, .n_kv_heads = 2 };

struct measure {
    struct kvl_sample sample;
    struct kvl_question q;
    struct kvl_tokens answer;
    struct kvl_watch watch;
    struct kvl_recall recall;
    const char *said; /* the answer so far */
    struct kvl_err err;
};

static void measure_open(struct measure *m, enum kvl_evidence_kind kind, int32_t n_spans,
                         struct kvl_span a, struct kvl_span b)
{
    *m = (struct measure){
        .sample = { .context = measure_context,
                    .tokens = { .id = measure_id, .begin = measure_begin, .n = 9 } },
        .q = { .answer = measure_answer, .gold = measure_gold, .n_evidence = 2 },
        .answer = { .id = measure_id, .begin = measure_answer_begin, .n = 4 },
        .said = "",
    };
    m->q.evidence[0] = (struct kvl_evidence){ .n_spans = 1, .span = { { 3, 7 } } }; /* the key */
    m->q.evidence[1] = (struct kvl_evidence){ .kind = kind, .n_spans = n_spans, .span = { a, b } };
    assert_int_equal(kvl_watch_create(&m->sample, &m->q, &m->answer, &m->watch, &m->err), KVL_OK);
    assert_int_equal(kvl_recall_create(&measure_shape, &m->recall, &m->err), KVL_OK);
}

static void measure_close(struct measure *m)
{
    kvl_watch_free(&m->watch);
    kvl_recall_free(&m->recall);
}

/* One step: what each of the four lanes attended, as one digit per watched position. */
static void measure_step(struct measure *m, const char *lanes[4], const uint8_t dense[2])
{
    uint8_t hit[64] = { 0 };
    for (int32_t lane = 0; lane < 4; lane++) {
        assert_int_equal(strlen(lanes[lane]), m->watch.n);
        for (int32_t i = 0; i < m->watch.n; i++) hit[lane * m->watch.n + i] = lanes[lane][i] == '1';
    }
    kvl_recall_add(&m->recall, &m->watch, m->said, strlen(m->said), hit, dense);
}

static const uint8_t measure_select[2] = { 0, 0 }, measure_first_dense[2] = { 1, 0 },
                     measure_all_dense[2] = { 1, 1 };

/* "4711" is bytes 10..13: tokens 5 ("4"), 6 ("71") and 7 ("1 c"). */
static void test_positions(void **state)
{
    struct measure m;
    (void)state;
    measure_open(&m, KVL_EVIDENCE_ALL, 1, (struct kvl_span){ 10, 14 }, (struct kvl_span){ 0, 0 });
    assert_int_equal(m.watch.n, 3);
    for (int32_t i = 0; i < 3; i++) assert_int_equal(m.watch.pos[i], 5 + i);
    measure_close(&m);
    /* The last token covers the rest; a token that begins before the span is part of it. */
    measure_open(&m, KVL_EVIDENCE_ALL, 2, (struct kvl_span){ 18, 20 }, (struct kvl_span){ 7, 8 });
    assert_int_equal(m.watch.n, 2);
    assert_int_equal(m.watch.pos[0], 8);
    assert_int_equal(m.watch.pos[1], 3);
    measure_close(&m);
}

/* Step 0 writes the space and needs nothing; step 1 copies "47": tokens up to byte 11 are 5 and 6;
 * step 2 copies "11": all three; step 3 writes what is not in the evidence. */
static void test_copied(void **state)
{
    struct measure m;
    const char *first_two[4] = { "100", "010", "000", "000" };
    (void)state;
    measure_open(&m, KVL_EVIDENCE_ALL, 1, (struct kvl_span){ 10, 14 }, (struct kvl_span){ 0, 0 });
    for (int step = 0; step < 4; step++) measure_step(&m, first_two, measure_select);
    assert_int_equal(m.recall.n_steps, 2);
    assert_int_equal(m.recall.n_hit, 1);
    /* More steps than the answer has tokens do not count. */
    measure_step(&m, first_two, measure_select);
    assert_int_equal(m.recall.n_steps, 2);
    measure_close(&m);
}

/* Heads of one layer make a union, layers do not. */
static void test_layers(void **state)
{
    struct measure m;
    const char *heads[4] = { "101", "010", "000", "000" };
    const char *split[4] = { "100", "000", "011", "000" };
    (void)state;
    measure_open(&m, KVL_EVIDENCE_ALL, 1, (struct kvl_span){ 10, 14 }, (struct kvl_span){ 0, 0 });
    measure_step(&m, heads, measure_select);
    measure_step(&m, heads, measure_select);
    measure_step(&m, split, measure_select);
    assert_int_equal(m.recall.n_steps, 2);
    assert_int_equal(m.recall.n_hit, 1); /* step 1 by the union, step 2 not across layers */
    assert_true(m.recall.lane[0] > 0.99 && m.recall.lane[0] < 1.01); /* 2/3 + 1/3 */
    assert_true(m.recall.lane[2] > 0.66 && m.recall.lane[2] < 0.67);
    measure_close(&m);
}

/* A layer that the policy left dense proves nothing about it, unless all are. */
static void test_dense(void **state)
{
    struct measure m;
    const char *first_layer[4] = { "111", "111", "000", "000" };
    (void)state;
    measure_open(&m, KVL_EVIDENCE_ALL, 1, (struct kvl_span){ 10, 14 }, (struct kvl_span){ 0, 0 });
    measure_step(&m, first_layer, measure_first_dense);
    measure_step(&m, first_layer, measure_first_dense);
    assert_int_equal(m.recall.n_steps, 1);
    assert_int_equal(m.recall.n_hit, 0);
    measure_step(&m, first_layer, measure_all_dense);
    assert_int_equal(m.recall.n_hit, 1);
    measure_close(&m);
}

/* Evidence that is not the answer's text is needed whole, at every step; of ANY, one span is enough. */
static void test_whole(void **state)
{
    struct measure m;
    const char *one[4] = { "110", "000", "000", "000" };
    const char *other[4] = { "001", "000", "000", "000" };
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        measure_open(&m, kind ? KVL_EVIDENCE_ANY : KVL_EVIDENCE_ALL, 2, (struct kvl_span){ 3, 7 },
                     (struct kvl_span){ 8, 9 });
        assert_int_equal(m.watch.n, 3);
        measure_step(&m, one, measure_select);
        measure_step(&m, other, measure_select);
        assert_int_equal(m.recall.n_steps, 2);
        assert_int_equal(m.recall.n_hit, kind ? 2 : 0);
        measure_close(&m);
    }
}

static void test_holds(void **state)
{
    static const struct {
        const char *text;
        bool holds;
    } rows[] = {
        { "", false },     { "7", false },       { "70", true },     { " 70.", true },
        { "170", false },  { "70a", false },     { "170 70", true }, { "a70 b70 70b", false },
        { "=70\n", true }, { "7 0 70x", false },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (kvl_text_holds(rows[i].text, strlen(rows[i].text), "70") != rows[i].holds)
            fail_msg("\"%s\"", rows[i].text);
    assert_false(kvl_text_holds("a 70", 3, "70")); /* what lies behind the end is not there */
}

/* The value is needed once the answer holds "9": the expected one is "9", ":", " ", "47", "11", "!".
 * The model takes more words to it; what it needs from there on is the same. */
static void test_after(void **state)
{
    static char expected[] = "9: 4711!";
    static size_t begin[] = { 0, 1, 2, 3, 5, 7 };
    static const struct {
        const char *said;
        int32_t n_steps, n_hit;
    } rows[] = {
        { "", 0, 0 },
        { "I say", 0, 0 },
        { "I say 95", 0, 0 },
        { "I say 9", 0, 0 },
        { "I say 9:", 0, 0 },
        { "I say 9: ", 1, 1 },
        { "I say 9: 47", 2, 1 },
        { "I say 9: 4711", 2, 1 },
    };
    struct measure m;
    const char *first_two[4] = { "110", "000", "000", "000" };
    (void)state;
    measure_open(&m, KVL_EVIDENCE_ALL, 1, (struct kvl_span){ 10, 14 }, (struct kvl_span){ 0, 0 });
    kvl_watch_free(&m.watch);
    m.q.answer = expected;
    m.answer = (struct kvl_tokens){ .id = measure_id, .begin = begin, .n = 6 };
    strcpy(m.q.evidence[0].after, "9"); /* the key and its value are needed from there on */
    strcpy(m.q.evidence[1].after, "9");
    assert_int_equal(kvl_watch_create(&m.sample, &m.q, &m.answer, &m.watch, &m.err), KVL_OK);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        m.said = rows[i].said;
        measure_step(&m, first_two, measure_select);
        assert_int_equal(m.recall.n_steps, rows[i].n_steps);
        assert_int_equal(m.recall.n_hit, rows[i].n_hit);
    }
    measure_close(&m);
}

/* An answer of two parts, " 4711, ab!": " ", "47", "11", ", ", "ab", "!".  A step needs what it copies, of
 * the part whose turn it is; an answer whose first part is wrong never comes to the second. */
static void test_parts(void **state)
{
    static char expected[] = " 4711, ab!", gold[] = "4711, ab";
    static size_t begin[] = { 0, 1, 3, 5, 7, 9 };
    static const struct {
        const char *said;
        int32_t n_steps, n_hit;
    } right[] = { { "", 0, 0 },      { " ", 1, 1 },       { " 47", 2, 1 },
                  { " 4711", 2, 1 }, { " 4711, ", 3, 2 }, { " 4711, ab", 3, 2 } },
      wrong[] = { { "", 0, 0 },      { " ", 1, 1 },       { " 47", 2, 1 },
                  { " 4712", 2, 1 }, { " 4712, ", 2, 1 }, { " 4712, ab", 2, 1 } };
    const char *hits[4] = { "1101", "0000", "0000", "0000" };
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct measure m;
        measure_open(&m, KVL_EVIDENCE_ALL, 1, (struct kvl_span){ 0, 2 }, (struct kvl_span){ 0, 0 });
        kvl_watch_free(&m.watch);
        m.q.answer = expected;
        m.q.gold = gold;
        m.answer = (struct kvl_tokens){ .id = measure_id, .begin = begin, .n = 6 };
        m.q.evidence[0].span[0] = (struct kvl_span){ 10, 14 };
        strcpy(m.q.evidence[1].after, "4711");
        assert_int_equal(kvl_watch_create(&m.sample, &m.q, &m.answer, &m.watch, &m.err), KVL_OK);
        assert_int_equal(m.watch.n, 4);
        for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
            m.said = k ? wrong[i].said : right[i].said;
            measure_step(&m, hits, measure_select);
            assert_int_equal(m.recall.n_steps, k ? wrong[i].n_steps : right[i].n_steps);
            assert_int_equal(m.recall.n_hit, k ? wrong[i].n_hit : right[i].n_hit);
        }
        /* Lane 0 has two of three tokens of the first part, all of the second. */
        assert_true(fabs(m.recall.lane[0] - (2 * 2.0 / 3 + (k ? 0.0 : 1.0))) < 1e-12);
        measure_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_positions), cmocka_unit_test(test_copied),
        cmocka_unit_test(test_layers),    cmocka_unit_test(test_dense),
        cmocka_unit_test(test_whole),     cmocka_unit_test(test_holds),
        cmocka_unit_test(test_after),     cmocka_unit_test(test_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
