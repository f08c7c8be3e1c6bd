/* running_sums and edited_copy: what their scorer says of answers written by hand, the layout of a context, and its
 * bytes. */
#include "task_maker.h"

/* ---- the scorer ------------------------------------------------------------------------------------ */

#define SUMS  "nadope 59\ngotora 116\nkilusa 120\nbemiro 121"
#define CODES "nadope 12345\ngotora 00710\nkilusa 99999\nbemiro 40404\nsofute 88016"

/* Lines by quarter: of four one each, of five two in the first. */
static const struct said {
    const char *gold, *prediction;
    double official, strict, quarter[4];
} said[] = {
    { SUMS, "\n" SUMS, 1, 1, { 1, 1, 1, 1 } },
    { SUMS, " nadope 59 \r\n\n\tgotora 116\nkilusa 120\n\nbemiro 121\n\n", 1, 1, { 1, 1, 1, 1 } },
    /* one number, one letter off */
    { SUMS, "\nnadope 59\ngotora 115\nkilusa 120\nbemiro 121", .75, 0, { 1, 0, 1, 1 } },
    { SUMS, "\nnadope 59\ngotora 116\nkilusa 120\nbemira 121", .75, 0, { 1, 1, 1, 0 } },
    { SUMS, "\nnadope 5\ngotora 116\nkilusa 120\nbemiro 1211", .5, 0, { 0, 1, 1, 0 } },
    /* one sum wrong, and all that are made of it */
    { SUMS, "\nnadope 59\ngotora 117\nkilusa 121\nbemiro 122", .25, 0, { 1, 0, 0, 0 } },
    /* cut: behind a line, within one */
    { SUMS, "\nnadope 59\ngotora 116", .5, 0, { 1, 1, 0, 0 } },
    { SUMS, "\nnadope 59\ngotora 11", .25, 0, { 1, 0, 0, 0 } },
    { SUMS, "\nnadope 59\ngotora", .25, 0, { 1, 0, 0, 0 } },
    { SUMS, "", 0, 0, { 0 } },
    { SUMS, "\n\n \n", 0, 0, { 0 } },
    /* more: a line, text behind a line's end, a word before all of them */
    { SUMS, "\n" SUMS "\nsofute 200", 1, 0, { 1, 1, 1, 1 } },
    { SUMS, "\n" SUMS ".", .75, 0, { 1, 1, 1, 0 } },
    { SUMS, "\nnadope 59 (59)\ngotora 116\nkilusa 120\nbemiro 121", .75, 0, { 0, 1, 1, 1 } },
    { SUMS, "The lines are:\n" SUMS, 0, 0, { 0 } },
    /* one left out: those behind it are not at their place; two changed places */
    { SUMS, "\nnadope 59\nkilusa 120\nbemiro 121", .25, 0, { 1, 0, 0, 0 } },
    { SUMS, "\nnadope 59\nkilusa 120\ngotora 116\nbemiro 121", .5, 0, { 1, 0, 0, 1 } },
    /* other marks, other letters */
    { SUMS, "\nnadope: 59\ngotora 116\nkilusa 120\nBemiro 121", .5, 0, { 0, 1, 1, 0 } },
    { SUMS, "\nnadope  59\ngotora 116\nkilusa 120\nbemiro 121", .75, 0, { 0, 1, 1, 1 } },
    { CODES, "\n" CODES, 1, 1, { 1, 1, 1, 1 } },
    { CODES,
      "\nnadope 12345\ngotora 710\nkilusa 99999\nbemiro 40404\nsofute 88016",
      .8,
      0,
      { .5, 1, 1, 1 } },
    { CODES,
      "\nnadope 54321\ngotora 01700\nkilusa 99999\nbemiro 40404\nsofute 61088",
      .4,
      0,
      { 0, 1, 1, 0 } },
    { CODES, "\nnadope 12345\ngotora 00710\nkilusa 99999\nbemiro 40404", .8, 0, { 1, 1, 1, 0 } },
};

static void expect_score(const struct kvl_task *task, const struct said *w)
{
    char gold[128];
    struct kvl_task_score score;
    snprintf(gold, sizeof gold, "%s", w->gold);
    struct kvl_question q = { .gold = gold };
    task->score(&q, w->prediction, &score);
    assert_int_equal(score.n_sub, 4);
    bool same =
        fabs(score.official - w->official) < 1e-12 && fabs(score.strict - w->strict) < 1e-12;
    for (int k = 0; k < 4; k++) {
        char name[16];
        snprintf(name, sizeof name, "quarter_%d", k + 1);
        assert_string_equal(score.sub[k].name, name);
        same = same && fabs(score.sub[k].value - w->quarter[k]) < 1e-12;
    }
    if (!same)
        fail_msg("%s, \"%s\": %g, %g, quarters %g %g %g %g", task->name, w->prediction,
                 score.official, score.strict, score.sub[0].value, score.sub[1].value,
                 score.sub[2].value, score.sub[3].value);
}

static void test_scores(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        expect_score(kvl_task_running_sums, &said[i]);
        expect_score(kvl_task_edited_copy, &said[i]);
    }
}

/* ---- the layout ------------------------------------------------------------------------------------ */

enum { ROWS = 400, LINES = 7 };

/* The list, read back from a context: lines "name: value" with a name of six letters. */
struct rows {
    char name[ROWS][8], value[ROWS][8];
    int32_t n;
};

static void read_rows(const char *context, struct rows *out)
{
    out->n = 0;
    for (const char *at = context; *at; at += strcspn(at, "\n") + 1) {
        int used = 0;
        assert_true(out->n < ROWS);
        if (sscanf(at, "%6[a-z]: %5[0-9]%n", out->name[out->n], out->value[out->n], &used) == 2 &&
            at[used] == '\n')
            out->n++;
    }
}

/* What the question asks for, worked out from the rows. */
static void check_answer(const struct kvl_sample *s, const struct kvl_question *q,
                         const struct rows *rows, bool sums, bool plain, int32_t shown)
{
    char name[8], want[512] = "";
    want[0] = plain ? ' ' : '\n';
    int32_t lines, from = 0, sum = 0;
    assert_int_equal(sscanf(q->text, "Begin with the line of %6s", name), 1);
    const char *number = strstr(q->text, sums ? "numbers of " : "copy ");
    assert_non_null(number);
    assert_int_equal(sscanf(number, sums ? "numbers of %d lines," : "copy %d lines,", &lines), 1);
    assert_int_equal(lines, shown + LINES);
    while (from < rows->n && strcmp(rows->name[from], name) != 0) from++;
    assert_true(from < rows->n);
    if (plain) { /* the question ends with the lines that it shows and a name */
        char end[512] = "The lines are:";
        for (int32_t i = 0; i <= shown; i++) {
            int32_t row = (from + i) % rows->n;
            size_t at = strlen(end);
            snprintf(end + at, sizeof end - at, i < shown ? "\n%s: %s" : "\n%s:", rows->name[row],
                     rows->value[row]);
        }
        assert_string_equal(q->text + strlen(q->text) - strlen(end), end);
    }
    check_span(s, q->evidence[0].span[0], name);
    check_span(s, q->evidence[1].span[0], rows->value[from]);
    from += shown;
    for (int32_t i = 0; i < LINES; i++) {
        const char *value = rows->value[(from + i) % rows->n];
        size_t at = strlen(want), n = strlen(value);
        sum += atoi(value);
        if (i > 0) at += (size_t)snprintf(want + at, sizeof want - at, "\n");
        if (i > 0 || !plain) /* the question ends with the first name */
            at += (size_t)snprintf(want + at, sizeof want - at, "%s%s",
                                   rows->name[(from + i) % rows->n], plain ? ": " : " ");
        if (sums) snprintf(want + at, sizeof want - at, "%d", sum);
        for (size_t c = 0; !sums && c < n; c++) {
            want[at + c] = value[plain ? c : n - 1 - c];
            want[at + c + 1] = '\0';
        }
    }
    assert_string_equal(q->answer, want);
    assert_string_equal(q->gold, want + 1);
    assert_true(q->flags & KVL_EVIDENCE_WEAK);
}

static void check_rows(const struct rows *rows, bool sums)
{
    for (int32_t i = 0; i < rows->n; i++) {
        assert_int_equal(strlen(rows->name[i]), 6);
        if (!sums) assert_int_equal(strlen(rows->value[i]), 5);
        if (sums) assert_in_range(atoi(rows->value[i]), 1, 99);
        for (int32_t j = 0; j < i; j++) assert_string_not_equal(rows->name[i], rows->name[j]);
    }
}

static void check_context(const struct kvl_task *task, int32_t i_tokenizer, const char *options,
                          int32_t n_rows)
{
    static struct rows rows;
    bool sums = task == kvl_task_running_sums;
    struct want w = { .task = task, .options = options, .i_tokenizer = i_tokenizer };
    w.length = 1500;
    w.depth = -1;
    w.n_questions = 4;
    w.seed = 5;
    struct kvl_sample s = must_generate(&w);
    check_tokens(&w, &s);
    check_layout(&s, sums ? "Below is a table of names and numbers. Remember all of them."
                          : "Below is a list of names and codes. Remember all of them.");
    read_rows(s.context, &rows);
    check_rows(&rows, sums);
    assert_true(n_rows ? rows.n == n_rows : rows.n > 50);
    for (int32_t i = 0; i < s.n_questions; i++) {
        check_question(&w, &s, &s.question[i]);
        check_answer(&s, &s.question[i], &rows, sums, strstr(options, "edit=none"),
                     strstr(options, "shown=3") ? 3 : 0);
        for (int32_t j = 0; j < i; j++)
            assert_string_not_equal(s.question[i].text, s.question[j].text);
    }
    kvl_sample_free(&s);
}

/* Lists that fill the context, and one of five lines, which an answer of seven goes around. */
static void test_layout(void **state)
{
    (void)state;
    for (int32_t k = 0; k < n_tokenizers; k++) {
        check_context(kvl_task_running_sums, k, "lines=7", 0);
        check_context(kvl_task_running_sums, k, "lines=7,rows=5", 5);
        check_context(kvl_task_edited_copy, k, "lines=7", 0);
        check_context(kvl_task_edited_copy, k, "lines=7,rows=5", 5);
        check_context(kvl_task_edited_copy, k, "lines=7,rows=6,edit=none", 6);
        check_context(kvl_task_edited_copy, k, "lines=7,rows=6,edit=none,shown=3", 6);
    }
}

static void test_bytes(void **state)
{
    static const struct {
        const struct kvl_task *const *task;
        uint64_t hash;
    } tasks[] = { { &kvl_task_running_sums, 0x9d5e21f0ff0e8bee },
                  { &kvl_task_edited_copy, 0x8aa3a04ed692cd4c } };
    (void)state;
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
        struct want w = { .task = *tasks[i].task, .length = 700, .depth = 0.5, .seed = 11 };
        uint64_t hash = hash_sample(&w);
        assert_int_equal(w.task->version, 1);
        if (hash != tasks[i].hash)
            fail_msg("%s: 0x%016llx", w.task->name, (unsigned long long)hash);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_scores),
                                        cmocka_unit_test(test_layout),
                                        cmocka_unit_test(test_bytes) };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
