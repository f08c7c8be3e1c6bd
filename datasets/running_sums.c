/* Running sums: a table of names and numbers, to be added up line by line from one name on.
 *
 * An answer of some hundred tokens that can be checked to the digit, for methods that evict while decoding (arXiv
 * 2609.03430 and others judge them by long reasoning, whose answers cannot be checked so).  Ours.
 *
 *     intro \n [sentences \n] name: number \n name: number ... \n | question -> \n name sum \n name sum ...
 *
 * A line of the answer needs its line of the table, which lies anywhere in the context, and the line before it, which lies
 * in the answer.  Behind the last line of the table the first one comes.
 *
 * Evidence: group 0 is the name that is asked for, group 1 its number.
 */
#include "answer_lines.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

KVL_PHRASE(sums_intro, "Below is a table of names and numbers. Remember all of them.");
KVL_PHRASE(sums_item, "{name}: {number}");
KVL_PHRASE(
    sums_question,
    "Begin with the line of {name} and add up the numbers of {lines} lines, going on with the "
    "first line after the last one. Write each name and the sum so far. The lines are:");

enum { SUMS_LETTERS = 6, SUMS_DIGITS = 2, SUMS_ROWS = 1 << 20 };

struct sums_opts {
    int32_t lines, rows;
};

static const struct kvl_opt sums_options[] = {
    { .name = "lines",
      .type = KVL_OPT_INT,
      .off = offsetof(struct sums_opts, lines),
      .def = "32",
      .min = 4,
      .max = 400,
      .help = "lines of an answer" },
    { .name = "rows",
      .type = KVL_OPT_INT,
      .off = offsetof(struct sums_opts, rows),
      .def = "auto",
      .min = 4,
      .max = SUMS_ROWS,
      .help = "lines in the context; auto fills it" },
    { 0 },
};

struct sums_state {
    const struct sums_opts *opts;
    struct kvl_rng rng;
};

static int sums_next(struct kvl_list *l)
{
    struct sums_state *s = l->task;
    char key[SUMS_LETTERS + 1], value[16];
    struct kvl_list_entry e;
    KVL_TRY(kvl_lines_key(l, &s->rng, SUMS_LETTERS, key));
    snprintf(value, sizeof value, "%d", 1 + (int)kvl_rng_below(&s->rng, 99));
    return kvl_list_add(l, key, value, &e);
}

/* The lines from the asked one on, behind each other. */
static int sums_ask(const struct kvl_list *l, const struct kvl_list_entry *first,
                    int32_t i_question, struct kvl_list_words *out)
{
    const struct sums_state *s = l->task;
    int32_t from = kvl_lines_index(l, first), lines = s->opts->lines;
    char key[SUMS_LETTERS + 1] = "", number[16];
    int sum = 0;
    (void)i_question;
    memcpy(key, l->text.data + first->key, KVL_MIN(first->n_key, SUMS_LETTERS));
    snprintf(number, sizeof number, "%d", lines);
    const struct kvl_text_field field[] = { { "name", key }, { "lines", number } };
    KVL_TRY(kvl_text_fill(sums_question, field, 2, &out->text));
    for (int32_t i = 0; i < lines; i++) {
        const struct kvl_list_entry *e = kvl_lines_entry(l, from + i);
        sum += atoi(l->text.data + e->value);
        KVL_TRY(kvl_buf_printf(&out->gold, "%s%.*s %d", i > 0 ? "\n" : "", (int)e->n_key,
                               l->text.data + e->key, sum));
    }
    return kvl_buf_printf(&out->answer, "\n%s", out->gold.data);
}

static int sums_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                         struct kvl_err *err)
{
    struct kvl_err why = { 0 };
    struct sums_state s = { .opts = req->opts };
    struct kvl_list list = { .req = req,
                             .err = &why,
                             .intro = sums_intro,
                             .item = sums_item,
                             .key = "name",
                             .value = "number",
                             .before_first = "",
                             .before = "",
                             .after = "\n",
                             .end = "",
                             .many = "lines",
                             .wanted = s.opts->rows,
                             .task = &s,
                             .next = sums_next,
                             .ask = sums_ask };
    kvl_rng_seed(&s.rng, kvl_seed_str(req->seed, "running_sums"));
    int rc = kvl_list_generate(&list, out);
    /* Every line of the answer needs one of the list. */
    for (int32_t i = 0; rc == KVL_OK && i < out->n_questions; i++)
        out->question[i].flags |= KVL_EVIDENCE_WEAK;
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "running_sums: %s", why.msg);
}

/* Of a line whose number is guessed. */
static double sums_chance(const void *opts)
{
    (void)opts;
    return pow(10, -SUMS_DIGITS);
}

static const struct kvl_task running_sums = {
    .abi = KVL_TASK_ABI,
    .size = sizeof running_sums,
    .name = "running_sums",
    .title = "Running sums",
    .paper = "ours",
    .help = "a table fills the context: add its numbers up line by line from one name on",
    .version = 1,
    .opts = sums_options,
    .opts_size = sizeof(struct sums_opts),
    .generate = sums_generate,
    .score = kvl_lines_score,
    .chance = sums_chance,
};

KVL_TASK_EXPORT(running_sums)
